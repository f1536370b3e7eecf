//! What can be said of a training run before its step is planned, which may take long.

use super::options::Options;
use super::step::targets;
use crate::compile;
use crate::data::{self, Field, Last, Order, Source};
use crate::error::Result;
use crate::ir::Graph;
use crate::train::epochs::fit::{Fit, too_few, trained_on, unknown_steps};
use crate::train::epochs::last_batch::takes_any_batch;
use crate::train::plan::{check_names, fields};
use crate::units::Bytes;

/// What each record is to give a network that is trained so, as [`super::Trainer::fields`] has it.
///
/// Errors: those of making a training step that have to do with inputs and outputs.
pub fn fields_of(graph: &Graph, options: &Options) -> Result<Vec<Field>> {
    Ok(bound(graph, options)?.0)
}

/// The fields, and the batch.
fn bound(graph: &Graph, options: &Options) -> Result<(Vec<Field>, usize)> {
    check_names(graph)?;
    let mut graph = graph.clone();
    graph.forget_data();
    let (forward, _) = compile::bound(graph, &options.compile)?;
    fields(&forward, &targets(&forward, &options.recipe.loss)?)
}

/// Whether [`fit`](crate::train::fit) could begin on this data; one record is read.
///
/// Errors: fewer records than a batch, a malformed first record, a rate that depends on a number of steps that
/// nobody says.
pub fn check_data(graph: &Graph, options: &Options, source: &Source, fitting: &Fit<'_>) -> Result<()> {
    let (_, batch) = bound(graph, options)?;
    let short = takes_any_batch(graph, options) && !fitting.drop_remainder;
    let least = if short { 1 } else { batch.max(1) };
    let records = trained_on(source, fitting)?;
    if records.is_some_and(|records| records < least as u64) {
        return Err(too_few(batch));
    }
    if options.rate.needs_steps() && options.total_steps == 0 && records.is_none() && fitting.steps.is_none()
    {
        return Err(unknown_steps());
    }
    let one = data::Options {
        batch: 1,
        last: Last::Keep,
        order: Order::Fifo,
        epochs: Some(1),
        threads: 1,
        prefetch: 1,
        ..fitting.data.clone()
    };
    match source.batches(&one)?.next() {
        Some(first) => first.map(|_| ()),
        None => Err(too_few(batch)),
    }
}

/// Bytes of a network's parameters.
pub fn weight_bytes(graph: &Graph) -> Bytes {
    let bytes = |param: &crate::ir::Param| graph.ty(graph.node(param.node).first_result).bytes();
    graph.params().iter().filter_map(bytes).sum()
}
