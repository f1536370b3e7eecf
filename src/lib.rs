//! Splits a neural network over devices: decides which device computes what so that the least data
//! crosses between them and everything fits, schedules the copies, and runs the plan.
//!
//! An engine that embeds the planner uses what stands at the top of the crate, and nothing else:
//!
//! 1. A [`Builder`] takes the engine's nodes, each with its time on every kind of device and its bytes, and gives a
//!    [`CostGraph`]. ([`CostGraph::from_columns`]
//!    takes over flat arrays, [`read_costgraph`] reads a file's bytes.)
//! 2. A [`Topology`] is parsed from a specification, read from a file, or built from a [`Description`].
//! 3. [`plan()`], or [`plan_with`] under a [`Control`], gives a [`Plan`] for them, as the [`Options`] ask.
//! 4. The engine follows the plan's [`Step`]s. A plan that was read from a file is proven by [`check()`] first,
//!    which is all that the file alone can prove; [`check_costgraph`] proves it against the graph, its times included.
//!
//! ```
//! use partition::{Action, Builder, Bytes, Nanos, NodeSpec, Options, Topology};
//!
//! # fn main() -> partition::Result<()> {
//! let mut builder = Builder::new("two layers", vec!["l4-24g".into()]);
//! let layer = |name| NodeSpec {
//!     name,
//!     op: "layer",
//!     times: &[Some(Nanos(4_000_000))],
//!     param_bytes: Bytes(3_000_000_000),
//!     outputs: &[Bytes(8_000_000)],
//!     ..NodeSpec::default()
//! };
//! let (first, second) = (builder.add(&layer("first"))?, builder.add(&layer("second"))?);
//! builder.connect(first, 0, second);
//! // Neither device has the memory for both.
//! let devices = Topology::parse("2xl4-24g:memory=4GB")?;
//! let plan = partition::plan(&builder.finish()?, &devices, &Options::default())?;
//! assert_eq!(plan.cost.step_bytes, Bytes(8_000_000));
//! let copies = plan.steps.iter().filter(|step| matches!(step.action, Action::Copy(_)));
//! assert_eq!(copies.count(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! `snapshots/public_surface.txt` lists all of it. The rest is in [`unstable`].

#[cfg(feature = "run")]
mod calibrate;
#[cfg(feature = "cli")]
mod cli;
mod compile;
mod control;
mod cost;
mod costgraph;
mod csr;
#[cfg(feature = "run")]
mod data;
mod emit;
mod error;
mod escape;
mod explain;
mod files;
#[cfg(feature = "cli")]
mod fit;
mod ir;
mod json;
mod kernel;
mod load;
#[cfg(feature = "run")]
mod metrics;
mod order;
mod pass;
mod place;
mod plan;
mod random;
mod report;
#[cfg(feature = "run")]
mod run;
mod schedule;
#[cfg(feature = "run")]
mod state;
mod strategy;
mod topology;
#[cfg(feature = "run")]
mod train;
mod units;

// What is planned.
pub use costgraph::{Builder, Columns, CostGraph, NodeIx, NodeSpec, ParamIx, Role as NodeRole, TensorIx};
pub use load::read_costgraph;

// For which devices.
pub use topology::{
    Channel, ChannelId, Communication, Contention, Description, Device, DeviceGroup, DeviceId, Hop, Legs,
    LinkGroup, Physical, Role as DeviceRole, Route, Target, Topology,
};

// What is asked for.
pub use compile::embed::{Options, check_costgraph, plan, plan_with};
pub use control::{Control, Mark, Progress};
pub use place::{DeviceUse, Effort, Objective, Previous, Stability};
pub use strategy::pipeline::{Options as Pipeline, Order as PipelineOrder};

// What comes back.
pub use cost::{Class as KernelClass, ClassRate, CopyTime, KernelTime, KindProfile, Profile};
pub use error::{Error, FaultKind, Infeasible, Member, MemberKind, Repair, Report, Result};
pub use plan::{
    Action, Bound, Buffer, BufferKind, Checked, CopyAction, Cost, Kernel, Lane, Launch, MovedState, Plan,
    PlanDevice, PlanModel, PlanOptions, PlanSplit, Replan, Step, check,
};
pub use units::{Bytes, Flops, Nanos, Rate};

/// The modules of the program, for its binary, tests, benchmarks and tools. **Nothing in here is promised to stay**:
/// names and signatures change in any version. ARCHITECTURE.md lists the modules from the bottom up.
pub mod unstable {
    /// Measures plans on this machine into a profile.
    #[cfg(feature = "run")]
    pub mod calibrate {
        pub use crate::calibrate::*;
    }

    /// Arguments, exit codes, progress, rendering.
    #[cfg(feature = "cli")]
    pub mod cli {
        pub use crate::cli::*;
    }

    /// The pipeline on one screen.
    pub mod compile {
        pub use crate::compile::*;
    }

    /// A caller's control of a long computation: threads, cancellation, time limit, progress.
    pub mod control {
        pub use crate::control::*;
    }

    /// Operation counts, bytes, roofline and measured times; the network as a cost graph.
    pub mod cost {
        pub use crate::cost::*;
    }

    /// Flat arrays that the planner sees and embedders build, with petgraph's visit traits.
    pub mod costgraph {
        pub use crate::costgraph::*;
    }

    /// Training records, read by threads through bounded queues, in a fixed order, as batches.
    #[cfg(feature = "run")]
    pub mod data {
        pub use crate::data::*;
    }

    /// Kernel programs as CUDA C (`cuda`), NVRTC (loaded at run time), the on-disk cache of compiled kernels.
    pub mod emit {
        pub use crate::emit::*;
    }

    /// The one typed error: place, message, way out, details, exit code.
    pub mod error {
        pub use crate::error::*;
    }

    /// Explains a plan: what bounds it, what other devices would cost, shadow prices.
    pub mod explain {
        pub use crate::explain::*;
    }

    /// The one place that opens files to read (regular files only) and the one that writes them (atomically);
    /// which files a model may name.
    pub mod files {
        pub use crate::files::*;
    }

    /// Which devices to buy: the cheapest set of a catalogue on which a plan reaches a target.
    #[cfg(feature = "cli")]
    pub mod fit {
        pub use crate::fit::*;
    }

    /// The graph arena, its operations, types with affine sizes, inference, verifier, text form.
    pub mod ir {
        pub use crate::ir::*;
    }

    /// Groups (the nodes of one kernel), their verifier, text and workspace; kernel programs (`program`):
    /// lowering, verifier, text, f64 evaluation.
    pub mod kernel {
        pub use crate::kernel::*;
    }

    /// A folder or file per format, recognised by content; weights; initialisers.
    pub mod load {
        pub use crate::load::*;
    }

    /// Accuracy and other metrics, batch by batch.
    #[cfg(feature = "run")]
    pub mod metrics {
        pub use crate::metrics::*;
    }

    /// Free functions over the graph: folding, simplification, merging, sweeping, grouping, gradients.
    pub mod pass {
        pub use crate::pass::*;
    }

    /// Which device computes what: problem, evaluation, candidates.
    pub mod place {
        pub use crate::place::*;
    }

    /// The serialised plan, its text form, its checker, diff, other tools' formats.
    pub mod plan {
        pub use crate::plan::*;
    }

    /// Summaries and drawings for people.
    pub mod report {
        pub use crate::report::*;
    }

    /// Kernels and executor for CPU virtual devices; plans on GPUs (`cuda`); probing this machine.
    #[cfg(feature = "run")]
    pub mod run {
        pub use crate::run::*;
    }

    /// Copies, order, memory, and the one simulator.
    pub mod schedule {
        pub use crate::schedule::*;
    }

    /// What outlives a run: atomic checkpoints, weights as files, state by name.
    #[cfg(feature = "run")]
    pub mod state {
        pub use crate::state::*;
    }

    /// Loops over placement and schedule until the arenas fit.
    pub mod strategy {
        pub use crate::strategy::*;
    }

    /// Devices, slices, channels and routes; the specification's grammar, files, presets.
    pub mod topology {
        pub use crate::topology::*;
    }

    /// The training step of a network (loss, gradients, optimizer), and the loop over batches.
    #[cfg(feature = "run")]
    pub mod train {
        pub use crate::train::*;
    }

    /// `Bytes`, `Nanos`, `Flops`, `Rate`: integers with their unit in the type.
    pub mod units {
        pub use crate::units::*;
    }
}
