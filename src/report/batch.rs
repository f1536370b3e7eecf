//! The largest batch, and the memory equation of each device, for people and as JSON.

use serde::Serialize;

use crate::escape::escaped;
use crate::units::Bytes;

/// The largest batch that fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BatchLine {
    /// How many samples.
    pub batch: i64,
    /// How many sizes were planned for.
    pub tried: usize,
    /// Operations were left whole, though parts of them are allowed: a larger batch may fit where some are split.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Why one sample more does not fit; none where the search ended before.
    pub refused: Option<String>,
    /// By device that holds something.
    pub memory: Vec<MemoryLine>,
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
            Some(why) => format!("one sample more: {}", escaped(why)),
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
        let refused = refused.map(str::to_owned);
        BatchLine { batch: 8, tried: 5, whole: false, refused, memory: vec![line] }.text()
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
    fn what_is_taken_off_is_named_too() {
        let text = lines(-1_500, None);
        assert!(text.contains("fits; no larger one was tried\n"), "{text}");
        let taken =
            "8 x 1 kB activations - 1.5 kB activations that grow unevenly with the batch + 0 B workspace";
        assert!(text.contains(taken) && text.contains("= 10.5 kB of 20 kB"), "{text}");
        assert!(!text.contains("+ -") && !text.contains("any batch"), "{text}");
    }
}
