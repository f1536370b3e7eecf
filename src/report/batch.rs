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
        let mut text = format!("batch      {} is the largest that fits; {more}\n", self.batch);
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
