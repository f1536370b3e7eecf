//! What becomes another loss where a batch is taken in parts: the samples of each part meet one another alone.

use super::options::Options;
use super::step::statistics::is_frozen;
use crate::compile;
use crate::error::Result;
use crate::ir::{Graph, Param};

/// What is to be told of a step in which the batch is taken in parts: replicas, microbatches, workers. None where each
/// sample is computed apart from the others.
///
/// Errors: none but internal ones.
pub fn of_parts(graph: &Graph, options: &Options) -> Result<Option<String>> {
    if !divides(options) {
        return Ok(None);
    }
    if let Some(name) = compile::not_apart(graph, &options.compile.bind)? {
        let told = "is computed of several samples together, and here of those of one part of the batch: the loss is another one than that of the whole batch";
        return Ok(Some(format!("{name} {told}")));
    }
    let is_moved = |param: &&Param| param.statistic.is_some() && !is_frozen(param, &options.recipe.freeze);
    let statistic = graph.params().iter().find(is_moved);
    Ok(statistic.map(|param| {
        let told =
            "is of each part of the batch by itself: the loss is another one than that of the whole batch";
        format!("the batch statistic that {} follows {told}", param.name)
    }))
}

/// Whether the batch is taken in parts.
fn divides(options: &Options) -> bool {
    let shards = options.replicas.map_or(1, |replicas| replicas.shards);
    let microbatches = options.pipeline.map_or(1, |pipeline| pipeline.microbatches);
    let workers = options.asynchronous.map_or(1, |asynchronous| asynchronous.workers);
    shards > 1 || microbatches > 1 || options.recipe.updates.microbatches > 1 || workers > 1
}
