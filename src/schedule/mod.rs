//! The schedule: in which order each device works, which copies are made and when, and where in
//! memory each buffer lies.
//!
//! [`Schedule::steps`] stands in one global topological order: every dependency points backwards
//! in it, and each lane runs its steps in list order, so a schedule cannot deadlock.

use crate::costgraph::{NodeIx, ParamIx, TensorIx};
use crate::topology::DeviceId;
use crate::units::{Bytes, Nanos};

/// A step's position in [`Schedule::steps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepIx(pub u32);

impl StepIx {
    /// The position as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A buffer's position in [`Schedule::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferIx(pub u32);

impl BufferIx {
    /// The position as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which of a device's queues runs a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Kernels.
    Compute,
    /// Copies that arrive.
    Copy,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Runs a node.
    Launch(NodeIx),
    /// Brings a tensor from the device that made it; the step's own device receives it.
    Copy {
        /// What is moved.
        tensor: TensorIx,
        /// The buffer that is read.
        from: BufferIx,
        /// The buffer that is written.
        to: BufferIx,
    },
}

/// Why a dependency or a step is there, where it does not follow from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Waits so that bytes can be used again.
    Memory,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The device that runs it: for a copy, the one that receives.
    pub device: DeviceId,
    /// The lane that runs it.
    pub lane: Lane,
    /// Steps that must be done before; ascending. Those of the same lane that stand before it
    /// are implied and left out.
    pub after: Vec<StepIx>,
    /// Dependencies of `after` that the data does not ask for, with their reason.
    pub control: Vec<(StepIx, Why)>,
    /// What it does.
    pub action: Action,
    /// Simulated start.
    pub start: Nanos,
    /// Simulated end.
    pub end: Nanos,
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A tensor that is made on this device or copied to it.
    Tensor(TensorIx),
    /// A parameter.
    Param(ParamIx),
    /// Parameters or state that a node owns.
    Owned(NodeIx),
    /// A node's workspace.
    Workspace(NodeIx),
}

/// When a buffer is made, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// Handed over before the step.
    Input,
    /// Loaded before the step, never written in it.
    Param,
    /// Made in the step by the node on this device, read to its last use.
    Temp,
    /// Made in the step, and still there when it ends.
    Output,
    /// Arrives by a copy.
    Copy,
    /// Needed while one node runs.
    Workspace,
}

/// A range of one device's arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The device.
    pub device: DeviceId,
    /// What it holds.
    pub content: Content,
    /// When it is made.
    pub kind: BufferKind,
    /// Where it begins; a multiple of [`ALIGNMENT`].
    pub offset: Bytes,
    /// How long it is.
    pub bytes: Bytes,
}

/// Every buffer begins at a multiple of this many bytes of its arena.
pub const ALIGNMENT: u64 = 64;

/// One device's share of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Most bytes live at once on the simulated timeline, everything included.
    pub peak: Bytes,
    /// Bytes to allocate; sound for every interleaving that the dependencies allow.
    pub arena: Bytes,
    /// Time in which its compute lane is busy.
    pub busy: Nanos,
    /// Bytes it receives in a step.
    pub received: Bytes,
    /// Bytes of parameters, state and inputs it holds.
    pub resident: Bytes,
}

/// What a step costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes moved in each step.
    pub step_bytes: Bytes,
    /// Bytes of parameters on devices beyond the first that holds each.
    pub load_bytes: Bytes,
    /// Simulated time of one step.
    pub latency: Nanos,
    /// Highest load of any device or channel in steady state.
    pub max_load: Nanos,
}

/// A schedule. See the module's documentation for what holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The steps, in one global topological order.
    pub steps: Vec<Step>,
    /// The buffers of all devices.
    pub buffers: Vec<Buffer>,
    /// By device.
    pub devices: Vec<DeviceUsage>,
    /// What it costs.
    pub cost: Cost,
}
