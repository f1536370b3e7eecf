//! A training step that is planned and proven, and nothing more: for devices that need not be here.

use super::layers::{Layer, layers};
use super::options::Options;
use crate::compile::Compiled;
use crate::control::Control;
use crate::error::Result;
use crate::ir::Graph;
use crate::plan;
use crate::topology::Topology;
use crate::train::plan::{all_planned, check_names};

/// A step as it would be run.
#[derive(Clone, Debug)]
pub struct DryRun {
    /// The network's layers, with their devices.
    pub layers: Vec<Layer>,
    /// The plan, and what it was made from.
    pub compiled: Compiled,
}

/// Plans a training step as [`super::Trainer::with`] does, and has the plan checked.
///
/// Errors: those of making the training step and of planning; a plan that fails its check.
pub fn dry_run(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<DryRun> {
    check_names(&graph)?;
    let options = options.of_a_part(&graph)?;
    let (main, others) = all_planned(graph, topology, &options, control)?;
    let forward = main.forward.clone();
    // The plan to show is that of the network.
    let compiled = others.into_iter().next().unwrap_or(main).compiled;
    plan::check(&compiled.plan)?;
    Ok(DryRun { layers: layers(&forward, &compiled.plan), compiled })
}
