//! The largest batch, and the memory equation of each device, for people and as JSON.

use serde::Serialize;

use crate::error::Error;
use crate::escape::escaped;
use crate::units::Bytes;

/// The largest batch that fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchLine {
    /// How many samples.
    pub batch: i64,
    /// What batches are multiples of: microbatches, replicas.
    pub unit: i64,
    /// How many sizes were planned for.
    pub tried: usize,
    /// Operations were left whole, though parts of them are allowed: a larger batch may fit where some are split.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Why the next larger batch does not fit; none where the search ended before.
    #[serde(flatten)]
    pub refused: Option<Refusal>,
    /// By device that holds something.
    pub memory: Vec<MemoryLine>,
}

/// Why a batch does not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// How many samples it has.
    #[serde(rename = "refused_batch")]
    pub batch: i64,
    /// Why.
    #[serde(rename = "refused")]
    pub why: String,
    /// What it says of memory is of another step than the one that the equations are of.
    #[serde(skip)]
    pub of: Option<OtherStep>,
}

/// In what the step that does not fit differs from the one that does, beside its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherStep {
    /// Its nodes are placed otherwise.
    Placed,
    /// Nothing is computed again or offloaded.
    AsItIs,
}

impl Refusal {
    /// Of a batch for which there is only an error; the plan that fits may compute again, or offload.
    pub fn new(batch: i64, error: &Error, is_rewritten: bool) -> Self {
        let of = match error {
            Error::Infeasible(why) if !why.proven && is_rewritten => Some(OtherStep::AsItIs),
            Error::Infeasible(why) if !why.proven => Some(OtherStep::Placed),
            _ => None,
        };
        Self { batch, why: error.to_string(), of }
    }

    /// After the size of the largest batch, a multiple of `unit`.
    fn text(&self, largest: i64, unit: i64) -> String {
        let more = match self.batch - largest {
            1 => "one sample more".to_owned(),
            more if unit > 1 => format!("{more} samples more (batches are multiples of {unit})"),
            more => format!("{more} samples more"),
        };
        let of = match self.of {
            None => "",
            Some(OtherStep::Placed) => {
                "; that is said of the placement which comes closest there, not of this one"
            }
            Some(OtherStep::AsItIs) => {
                "; that is said of a step in which nothing is computed again or offloaded, as it is here"
            }
        };
        format!("{more}: {}{of}", escaped(&self.why))
    }
}

/// What the memory of one device is made of: `parameters + state + batch x per_sample + fixed +
/// workspace + unused + reserve`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryLine {
    /// The device's name.
    pub device: String,
    /// Parameters and constants.
    pub parameters: Bytes,
    /// What nodes own; of a training step the parameters that it updates, with what their optimizer keeps.
    pub state: Bytes,
    /// Samples; those of one microbatch, where the step is divided.
    pub batch: i64,
    /// How much of the inputs and of the tensors that are alive when most is comes with one sample.
    pub per_sample: Bytes,
    /// What of them does not grow with the batch; less than zero where they do not grow evenly.
    pub fixed: i64,
    /// Workspace that is in use when most is alive.
    pub workspace: Bytes,
    /// The rest of the arena: alignment, and what the order of the steps does not let be used again.
    pub unused: Bytes,
    /// Kept free.
    pub reserve: Bytes,
    /// The sum.
    pub total: Bytes,
    /// What the device has.
    pub cap: Bytes,
}

impl BatchLine {
    /// Closing lines of a summary.
    pub(crate) fn text(&self) -> String {
        let more = match &self.refused {
            Some(refused) => refused.text(self.batch, self.unit),
            None => "no larger one was tried".to_owned(),
        };
        let whole = if self.whole { " with whole operations" } else { "" };
        let mut text = format!("batch      {} is the largest that fits{whole}; {more}\n", self.batch);
        for line in &self.memory {
            text += &line.text();
        }
        text
    }
}

impl MemoryLine {
    fn text(&self) -> String {
        // What a sample adds is measured at the largest batch: below it activations may grow in other steps.
        let (sign, fixed) = match self.fixed < 0 {
            true => ('-', "activations that grow unevenly with the batch"),
            false => ('+', "activations of any batch"),
        };
        format!(
            "memory     {}: {} parameters + {} state + {} x {} activations {sign} {} {fixed} + {} workspace + {} unused + {} reserve = {} of {}\n",
            escaped(&self.device),
            self.parameters,
            self.state,
            self.batch,
            self.per_sample,
            Bytes(self.fixed.unsigned_abs()),
            self.workspace,
            self.unused,
            self.reserve,
            self.total,
            self.cap
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a device of 4 kB of parameters at a batch of 8, of 1 kB each, with `fixed` beside them.
    fn lines(fixed: i64, refused: Option<&str>) -> String {
        let line = MemoryLine {
            device: "cuda0".to_owned(),
            parameters: Bytes(4_000),
            batch: 8,
            per_sample: Bytes(1_000),
            fixed,
            total: Bytes(12_000u64.saturating_add_signed(fixed)),
            cap: Bytes(20_000),
            ..MemoryLine::default()
        };
        let refused = refused.map(|why| Refusal { batch: 9, why: why.to_owned(), of: None });
        BatchLine { batch: 8, unit: 1, tried: 5, whole: false, refused, memory: vec![line] }.text()
    }

    #[test]
    fn every_term_of_the_equation_is_named() {
        let text = lines(500, Some("cuda0 has no room\u{1b}"));
        let (first, second) = text.split_once('\n').unwrap();
        assert_eq!(first, "batch      8 is the largest that fits; one sample more: cuda0 has no room\\u{1b}");
        assert_eq!(
            second,
            "memory     cuda0: 4 kB parameters + 0 B state + 8 x 1 kB activations + 500 B activations of any batch \
             + 0 B workspace + 0 B unused + 0 B reserve = 12.5 kB of 20 kB\n"
        );
    }

    #[test]
    fn the_batch_that_does_not_fit_is_told() {
        let why = Error::Infeasible(Box::default());
        let told = |batch, is_rewritten| Refusal::new(batch, &why, is_rewritten).text(8, 2);
        assert!(told(10, true).starts_with("2 samples more (batches are multiples of 2): "));
        assert!(told(10, true).ends_with("in which nothing is computed again or offloaded, as it is here"));
        assert!(told(10, false).ends_with("of the placement which comes closest there, not of this one"));
    }

    #[test]
    fn what_is_taken_off_is_named_too() {
        let text = lines(-1_500, None);
        assert!(text.contains("fits; no larger one was tried\n"), "{text}");
        let taken =
            "8 x 1 kB activations - 1.5 kB activations that grow unevenly with the batch + 0 B workspace";
        assert!(text.contains(taken) && text.contains("= 10.5 kB of 20 kB"), "{text}");
        assert!(!text.contains("+ -") && !text.contains("any batch"), "{text}");
    }
}
