//! Placement: which device computes what.
//!
//! [`place`] turns a cost graph, a topology and [`Options`] into a [`Placement`]. It knows nothing
//! of operations, files or GPUs.

use crate::topology::DeviceId;
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

/// How many devices to use.
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
    /// Seed of whatever is drawn.
    pub seed: u64,
}

/// A device for each node of a cost graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// By node. A `param` node's device is its home; every other device with a consumer holds a
    /// copy as well.
    pub device: Vec<DeviceId>,
    /// Soft fallbacks and the like: one line each, for people to read.
    pub notes: Vec<String>,
}
