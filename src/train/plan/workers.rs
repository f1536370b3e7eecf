//! What workers that do not wait for one another run: the plans of their gradients and of the updates.

use crate::compile;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::topology::Topology;
use crate::train::options::Options;
use crate::train::plan::{Losses, Planned, layers_together};
use crate::train::spread::asynchronous::Async;
use crate::train::step::{Step, gradient_step, update_step};

/// Plans of a step that does not wait: of the updates, and of each worker's gradients. The first
/// worker's device updates too: every worker leaves room for that.
pub(crate) fn planned(
    forward: &Graph,
    topology: &Topology,
    options: &Options,
    asynchronous: Async,
    control: &Control<'_>,
) -> Result<(Planned, Vec<Planned>)> {
    let devices: Vec<String> = topology.computing().map(|id| topology.device(id).name.clone()).collect();
    if asynchronous.workers == 0 || asynchronous.workers > devices.len() {
        let message = format!("there are {} devices", devices.len());
        return Err(Error::usage(format!("--replicas {}", asynchronous.workers), message)
            .with_help("--devices with one for each worker"));
    }
    let (step, trained) = gradient_step(forward.clone(), &options.recipe)?;
    let plan = |graph: Graph, step: Step, number: usize, reserve| {
        let mut asked = compile::Options { bind: Default::default(), batch: None, ..options.compile.clone() };
        asked.place.pins.push(("*".to_owned(), devices[number].clone()));
        asked.place.reserve += reserve;
        let compiled = compile::compile_with(Model::Graph(graph), topology, &asked, control)?;
        Ok(Planned { forward: forward.clone(), step, asked, compiled })
    };
    let updates = update_step(forward, &trained, &options.recipe)?;
    let updates = plan(updates, Step { graph: Graph::new(""), ..step.clone() }, 0, Default::default())?;
    let reserve = updates.plan().devices.iter().map(|device| device.arena).max().unwrap_or_default();
    let mut graph = step.graph.clone();
    layers_together(&mut graph, Losses::WithLayers);
    let workers = (0..asynchronous.workers)
        .map(|number| plan(graph.clone(), Step { graph: Graph::new(""), ..step.clone() }, number, reserve));
    Ok((updates, workers.collect::<Result<_>>()?))
}
