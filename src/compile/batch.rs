//! The largest batch that fits, and what its memory is made of.
//!
//! The model is bound anew for every size that is tried (see `largest`). A size fits where the planner
//! finds a plan with the effort asked for or with the least, which is what most sizes are tried with. Where the step is
//! divided into microbatches, sizes are multiples of their count.

use std::collections::BTreeMap;

use super::labels::labels;
use super::largest::{Largest, largest};
use super::{Compiled, Options, SplitOptions, batch_dim, compile_with, fixed_batch, prepare};
use crate::control::Control;
use crate::cost;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::place::{self, Effort, Placement};
use crate::plan;
use crate::report::MemoryLine;
use crate::schedule::{BufferKind, Content};
use crate::topology::{DeviceId, Topology};
use crate::units::Bytes;

/// The largest batch that fits.
#[derive(Debug)]
pub struct LargestBatch {
    /// How many samples.
    pub batch: i64,
    /// The plan for them.
    pub compiled: Compiled,
    /// By device that holds something: what its memory is made of.
    pub memory: Vec<MemoryLine>,
    /// Every size that was tried, and whether it fits, in that order.
    pub tried: Vec<(i64, bool)>,
    /// The next larger batch, and why it does not fit; none where no larger one was tried.
    pub refused: Option<(i64, Error)>,
    /// What batches are multiples of.
    pub unit: i64,
}

/// Finds the largest batch that fits with whole operations, but for those that rules split; where none does, with
/// operations that are split as far as they must be. `options.batch` is not looked at. About 2 log2(batch) plans with the
/// least effort, and a few with the one asked for.
///
/// Errors: a model without a batch dimension that is open; where one sample does not fit, why.
pub fn largest_batch(
    model: &Model,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<LargestBatch> {
    let graph = match model {
        Model::Graph(graph) if batch_dim(graph).is_some() => graph,
        Model::Graph(graph) => {
            return Err(Error::usage("--batch max", fixed_batch(graph))
                .with_help("leave --batch out; a model that is exported with an open batch takes any"));
        }
        Model::CostGraph { .. } => {
            return Err(Error::usage("--batch max", "a cost graph is of one batch").with_help("leave it out"));
        }
    };
    // In what sizes are counted: microbatches divide them.
    let unit = options.pipeline.map_or(1, |asked| i64::from(asked.microbatches.max(1)));
    let plan = |batch: i64, effort: Effort, auto: bool| {
        let split = SplitOptions { auto, ..options.split.clone() };
        let place = place::Options { effort, ..options.place.clone() };
        let options = Options { batch: Some(batch), place, split, ..options.clone() };
        compile_with(Model::Graph(graph.clone()), topology, &options, control)
    };
    let search =
        |auto: bool| largest(unit, options.place.effort, &|batch, effort| plan(batch, effort, auto), control);
    // Parts take longer: a batch that fits only so is no batch that fits, unless none does.
    let found = match search(false) {
        Err(Error::Infeasible(_)) if options.split.auto => search(true),
        found => found,
    };
    let Largest { size: batch, best: compiled, tried, refused } = found?;
    // One sample more, or one more in each microbatch.
    let samples = batch / unit;
    let options = Options { batch: Some(samples.saturating_add(1)), ..options.clone() };
    let memory = memory_lines(&compiled, samples, graph.clone(), topology, &options)?;
    Ok(LargestBatch { batch, compiled, memory, tried, refused, unit })
}

/// The memory equations of a plan for `samples`; `more` is the same network, which under `options` has
/// one sample more.
///
/// Errors: those of preparing it.
pub(crate) fn memory_lines(
    compiled: &Compiled,
    samples: i64,
    more: Graph,
    topology: &Topology,
    options: &Options,
) -> Result<Vec<MemoryLine>> {
    let network = prepare(more, &options.clone().on(topology))?;
    let profile = options.profile.as_deref();
    let lowered = cost::lower(&network.graph, &network.grouping, topology, profile)?;
    let device = vec![DeviceId(0); lowered.graph.node_count()];
    let labels = labels(&network, &lowered, topology, &Placement { device, ..Placement::default() });
    let sizes = lowered.graph.tensors().map(|tensor| lowered.graph.tensor_bytes(tensor));
    let names = labels.tensors.iter().map(|label| label.name.as_str());
    let next: BTreeMap<&str, Bytes> = names.zip(sizes).collect();
    Ok(equations(compiled, samples, &next))
}

/// The equation of every device that holds something, for so many samples, of a microbatch where there
/// are several. `next` has the sizes of tensors, by name, with one sample more.
fn equations(compiled: &Compiled, samples: i64, next: &BTreeMap<&str, Bytes>) -> Vec<MemoryLine> {
    let (plan, schedule) = (&compiled.plan, &compiled.schedule);
    let grown = |buffer: usize| {
        let buffer = &plan.buffers[buffer];
        next.get(buffer.value.as_str()).map_or(Bytes::ZERO, |bytes| bytes.saturating_sub(buffer.bytes))
    };
    let mut lines = vec![MemoryLine::default(); compiled.plan.devices.len()];
    let mut activations = vec![Bytes::ZERO; lines.len()];
    let resident = (0..schedule.buffers.len()).filter(|&at| schedule.buffers[at].kind.is_resident());
    let alive = schedule.at_peak.iter().flatten().map(|buffer| buffer.index());
    for at in resident.chain(alive) {
        let buffer = &schedule.buffers[at];
        let line = &mut lines[buffer.device.index()];
        match (buffer.content, buffer.kind) {
            (Content::Param(_), _) => line.parameters += buffer.bytes,
            (Content::Owned(_), _) => line.state += buffer.bytes,
            _ if plan.buffers[at].kind == plan::BufferKind::State => line.state += buffer.bytes,
            (_, BufferKind::Workspace) => line.workspace += buffer.bytes,
            (Content::Tensor(_) | Content::Returned(_) | Content::Workspace(_), _) => {
                activations[buffer.device.index()] += buffer.bytes;
                line.per_sample += grown(at);
            }
        }
    }
    for (number, line) in lines.iter_mut().enumerate() {
        let (device, usage) = (&compiled.plan.devices[number], &schedule.devices[number]);
        line.device.clone_from(&device.name);
        (line.batch, line.reserve, line.cap) = (samples, device.reserve, device.memory);
        let known = line.parameters + line.state + activations[number] + line.workspace;
        // Gaps between buffers, and what is not in use at the peak.
        line.unused = usage.arena.saturating_sub(known);
        line.total = known + line.unused + line.reserve;
        let growing = i128::from(samples) * i128::from(line.per_sample.0);
        line.fixed = i64::try_from(i128::from(activations[number].0) - growing).unwrap_or(i64::MAX);
    }
    lines.retain(|line| line.total > line.reserve);
    lines
}
