//! The largest batch whose training step fits, and what its memory is made of.

use super::options::Options;
use super::step::gradient_step;
use crate::compile::{self, Largest};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::place::{self, Effort};
use crate::report::{BatchLine, Refusal};
use crate::topology::Topology;
use crate::train::plan::pipelined::on_stages;
use crate::train::plan::{Planned, all_planned, evaluation_plan, step_of};
use crate::train::spread::exchange::Replicas;

/// The largest batch that can be trained on.
#[derive(Clone, Debug)]
pub struct LargestBatch {
    /// How large it is, and what memory is made of.
    pub report: BatchLine,
    /// The options that were asked for, with this batch and the effort that found a plan for it.
    pub options: Options,
}

/// Finds the largest batch whose step fits under the caps of the devices, and validation beside it where
/// the run is `validated`: `options.compile.batch` is not looked at. With microbatches or shards it is a
/// multiple of their number, and the equations speak of one sample more in each. Workers that do not
/// wait keep room for the updates as a reserve. About 2 log2(batch) plans.
///
/// A last batch that is smaller is a step of its own beside this one, and is not counted.
///
/// Errors: a network without an open batch; where not even the smallest batch fits, why.
pub fn largest_batch(
    graph: &Graph,
    topology: &Topology,
    options: &Options,
    validated: bool,
    control: &Control<'_>,
) -> Result<LargestBatch> {
    if !compile::has_open_batch(graph) {
        return Err(Error::usage("--batch max", "the model has no batch dimension that is open")
            .with_help("leave --batch out"));
    }
    let mut graph = graph.clone();
    graph.forget_data();
    // Microbatches run one after the other: a step takes the batch of one of them.
    let parts = i64::from(options.recipe.updates.microbatches.max(1));
    let of = |samples: i64, place| {
        let compile = compile::Options { batch: Some(samples / parts), place, ..options.compile.clone() };
        Options { compile, ..options.clone() }
    };
    let place = &options.compile.place;
    let plan = |batch: i64, effort: Effort| {
        let options = of(batch, place::Options { effort, ..place.clone() });
        let (main, workers) = all_planned(graph.clone(), topology, &options, control)?;
        let all = if workers.is_empty() { vec![main] } else { workers };
        if let Some(step) = all.first().filter(|_| validated) {
            evaluation_plan(&step.forward, &options.recipe.loss, step.plan(), topology, &step.asked)?;
        }
        Ok((all, effort))
    };
    let replicas = |of: fn(&Replicas) -> usize| options.replicas.as_ref().map_or(1, of).max(1) as i64;
    let shards = match options.pipeline {
        Some(pipeline) => i64::from(pipeline.microbatches.max(1)) * replicas(|own| own.count),
        None => replicas(|own| own.shards),
    };
    let unit = parts.saturating_mul(shards);
    let Largest { size: batch, best: (best, effort), tried, refused } =
        compile::largest(unit, place.effort, &plan, control)?;
    let more = of(batch.saturating_add(unit), options.compile.place.clone());
    let mut memory = Vec::new();
    for step in &best {
        let larger = larger(graph.clone(), topology, &more, step, control)?;
        let samples = batch / unit;
        memory.extend(compile::memory_lines(&step.compiled, samples, larger, topology, &step.asked)?);
    }
    let is_rewritten = best.iter().any(|step| step.compiled.is_rewritten());
    let refused = refused.as_ref().map(|(size, error)| Refusal::new(*size, error, is_rewritten));
    let report = BatchLine { batch, unit, tried: tried.len(), whole: false, refused, memory };
    let mut options = options.clone();
    options.compile.batch = Some(batch);
    options.compile.place.effort = effort;
    Ok(LargestBatch { report, options })
}

/// The graph of a step that `options` ask for, laid as the one that fits is.
fn larger(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    fits: &Planned,
    control: &Control<'_>,
) -> Result<Graph> {
    let step = match (options.pipeline, options.asynchronous) {
        (Some(pipeline), _) => {
            let stages = fits.plan().placement.iter().cloned().collect();
            on_stages(graph, topology, options, pipeline, &stages)?
        }
        (None, Some(_)) => gradient_step(compile::bound(graph, &options.compile)?.0, &options.recipe)?.0,
        (None, None) => step_of(graph, topology, options, control)?.step,
    };
    Ok(step.graph)
}
