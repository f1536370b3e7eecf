//! What a caller asks of a placement. The words that options are written with, on the command line and in
//! plans, are read and printed here and nowhere else.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::Previous;
use crate::error::{Error, Result};
use crate::topology::Topology;
use crate::units::Bytes;

/// What a plan makes small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Bytes moved; then the time they take on their links, latency, and the number of devices.
    #[default]
    Transfer,
    /// The makespan of one step.
    Latency,
    /// The highest load of any device or link in steady state.
    Throughput,
}

impl Objective {
    /// Every objective.
    pub const ALL: [Self; 3] = [Self::Transfer, Self::Latency, Self::Throughput];

    /// The name on the command line and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Transfer => "transfer",
            Self::Latency => "latency",
            Self::Throughput => "throughput",
        }
    }
}

impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Objective {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let named = Self::ALL.into_iter().find(|objective| objective.name() == text);
        named.ok_or_else(|| unknown(text, "transfer, latency or throughput"))
    }
}

/// How many devices to use: `auto`, `all`, or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceUse {
    /// As many as the objective asks for.
    #[default]
    Auto,
    /// Every device computes something.
    All,
    /// Exactly this many devices compute something.
    Count(u32),
}

impl fmt::Display for DeviceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::All => f.write_str("all"),
            Self::Count(count) => count.fmt(f),
        }
    }
}

impl FromStr for DeviceUse {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            count => count.parse().map(Self::Count).map_err(|_| unknown(text, "auto, all or a number")),
        }
    }
}

/// How much work to spend, counted, not timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// The least that gives a sound plan.
    Fast,
    /// What suits most.
    #[default]
    Default,
    /// As much as may help.
    Best,
}

impl Effort {
    /// Every effort, the least first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Default, Self::Best];

    /// The name on the command line and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Default => "default",
            Self::Best => "best",
        }
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Effort {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let named = Self::ALL.into_iter().find(|effort| effort.name() == text);
        named.ok_or_else(|| unknown(text, "fast, default or best"))
    }
}

fn unknown(text: &str, known: &str) -> Error {
    Error::format("", format!("expected {known}, found {text}"))
}

/// What the caller asks of a placement (and of the schedule that follows from it).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// What to make small.
    pub objective: Objective,
    /// How many devices to use.
    pub devices: DeviceUse,
    /// (glob over node names, device name): matching nodes must be there. A pattern that matches
    /// nothing is an error; the later of two that match one node wins.
    pub pins: Vec<(String, String)>,
    /// Globs over node names: nodes that match one pattern go together.
    pub colocate: Vec<String>,
    /// Each device's compute time at most (1 + this) of its fair share.
    pub balance: Option<f64>,
    /// A node that its device cannot run falls back to one that can, and is reported.
    pub soft: bool,
    /// Kept free on each device.
    pub reserve: Bytes,
    /// Caps in place of the topology's, one for each device; for searches that tighten them.
    pub caps: Option<Vec<Bytes>>,
    /// How much work to spend.
    pub effort: Effort,
    /// Bytes moved with which the search for the fewest may end; none where it goes as far as the effort does.
    pub enough: Option<Bytes>,
    /// Seed of whatever is drawn.
    pub seed: u64,
    /// The placement that the new one replaces: little state is moved.
    pub from: Option<Arc<Previous>>,
}

impl Options {
    /// These options for a graph whose nodes no longer bear the names that the patterns speak of.
    pub(crate) fn without_patterns(&self) -> Self {
        Self { pins: Vec::new(), colocate: Vec::new(), ..self.clone() }
    }

    /// What is left of `cap` beside the reserve.
    pub(crate) fn usable(&self, cap: Bytes) -> Bytes {
        cap.saturating_sub(self.reserve)
    }

    /// What each device's arena may take: its cap, or its memory where no caps are set, less the reserve.
    ///
    /// Errors: [`Error::Usage`] where the caps are not one for each device.
    pub(crate) fn arena_caps(&self, topology: &Topology) -> Result<Vec<Bytes>> {
        if let Some(caps) = self.caps.as_ref().filter(|caps| caps.len() != topology.len()) {
            let message =
                format!("expected {} caps, one for each device, found {}", topology.len(), caps.len());
            return Err(Error::usage("caps", message));
        }
        let memory = |device: &crate::topology::Device| device.memory;
        let caps = self.caps.clone().unwrap_or_else(|| topology.devices.iter().map(memory).collect());
        Ok(caps.into_iter().map(|cap| self.usable(cap)).collect())
    }
}
