//! The largest batch that fits, and what its memory is made of.
//!
//! The model is bound anew for every size that is tried: sizes are doubled until one does not fit,
//! then halved in between. A size fits where the planner finds a plan with the least effort or with
//! the one asked for. That what fits is all that is smaller is not taken on trust: sizes just above
//! the one found are tried too. Where the step is divided into microbatches, sizes are multiples of
//! their count.

use std::collections::BTreeMap;

use super::labels::labels;
use super::{Compiled, Options, batch_dim, compile_with, prepare};
use crate::control::Control;
use crate::cost;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::place::{self, Effort, Placement};
use crate::report::MemoryLine;
use crate::schedule::{BufferKind, Content};
use crate::topology::{DeviceId, Topology};
use crate::units::Bytes;

/// No batch is larger.
const LARGEST: i64 = 1 << 40;

/// Sizes above the one found that are tried beside the next one.
const BEYOND: [i64; 2] = [2, 3];

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
    /// Why one sample more does not fit; none where no larger batch was tried.
    pub refused: Option<Error>,
}

/// Finds the largest batch that fits: `options.batch` is not looked at. About
/// 2 log2(batch) plans.
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
        _ => {
            return Err(Error::usage("--batch max", "the model has no batch dimension that is open")
                .with_help("leave --batch out"));
        }
    };
    // In what sizes are counted: microbatches divide them.
    let unit = options.pipeline.map_or(1, |asked| i64::from(asked.microbatches.max(1)));
    let mut search =
        Search { graph, topology, options, control, unit, tried: Vec::new(), best: None, refused: None };
    let (mut fits, mut fails) = (0, 1);
    let most = LARGEST / unit;
    loop {
        while fails <= most && (fits == 0 || !control.stopped()) && search.fits(fails)? {
            (fits, fails) = (fails, fails.saturating_mul(2));
        }
        while fails - fits > 1 && fails <= most && !control.stopped() {
            let middle = fits + (fails - fits) / 2;
            *(if search.fits(middle)? { &mut fits } else { &mut fails }) = middle;
        }
        let mut above = None;
        for size in BEYOND.map(|more| fits + more) {
            if above.is_none() && size <= most && !control.stopped() && search.fits(size)? {
                above = Some(size);
            }
        }
        let Some(size) = above else { break };
        (fits, fails) = (size, size + 1);
    }
    search.found()
}

struct Search<'a, 'c> {
    graph: &'a Graph,
    topology: &'a Topology,
    options: &'a Options,
    control: &'a Control<'c>,
    unit: i64,
    tried: Vec<(i64, bool)>,
    /// The largest batch that fits so far.
    best: Option<(i64, Compiled)>,
    /// The smallest that does not, and why.
    refused: Option<(i64, Error)>,
}

impl Search<'_, '_> {
    /// Whether a batch of so many units fits; one that was tried is not tried again. Errors that do
    /// not say that nothing fits count as a batch that is too large, but for the smallest.
    fn fits(&mut self, units: i64) -> Result<bool> {
        let batch = units * self.unit;
        if let Some(&(_, fits)) = self.tried.iter().find(|(size, _)| *size == batch) {
            return Ok(fits);
        }
        let planned = self.plan(batch);
        self.tried.push((batch, planned.is_ok()));
        match planned {
            Ok(compiled) => {
                if self.best.as_ref().is_none_or(|(best, _)| *best < batch) {
                    self.best = Some((batch, compiled));
                }
                Ok(true)
            }
            Err(error) if units == 1 => Err(error),
            Err(error) => {
                if self.refused.as_ref().is_none_or(|(least, _)| batch < *least) {
                    self.refused = Some((batch, error));
                }
                Ok(false)
            }
        }
    }

    /// The plan for a batch with the effort asked for; where that finds none, with the least.
    fn plan(&self, batch: i64) -> Result<Compiled> {
        let of = |effort: Effort| {
            let place = place::Options { effort, ..self.options.place.clone() };
            let options = Options { batch: Some(batch), place, ..self.options.clone() };
            compile_with(Model::Graph(self.graph.clone()), self.topology, &options, self.control)
        };
        match of(self.options.place.effort) {
            Err(Error::Infeasible(_)) if self.options.place.effort != Effort::Fast => of(Effort::Fast),
            planned => planned,
        }
    }

    fn found(self) -> Result<LargestBatch> {
        let (batch, compiled) = self.best.ok_or_else(|| Error::Internal("no batch was tried".into()))?;
        // One sample more, or one more in each microbatch.
        let samples = batch / self.unit;
        let options = Options { batch: Some(samples.saturating_add(1)), ..self.options.clone() };
        let network = prepare(self.graph.clone(), &options)?;
        let profile = options.profile.as_deref();
        let lowered = cost::lower(&network.graph, &network.grouping, self.topology, profile)?;
        let device = vec![DeviceId(0); lowered.graph.node_count()];
        let labels = labels(&network, &lowered, self.topology, &Placement { device, ..Placement::default() });
        let sizes = lowered.graph.tensors().map(|tensor| lowered.graph.tensor_bytes(tensor));
        let names = labels.tensors.iter().map(|label| label.name.as_str());
        let next: BTreeMap<&str, Bytes> = names.zip(sizes).collect();
        let memory = equations(&compiled, samples, &next);
        let refused = self.refused.filter(|(size, _)| *size > batch).map(|(_, error)| error);
        Ok(LargestBatch { batch, compiled, memory, tried: self.tried, refused })
    }
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
        line.unused = usage.arena.saturating_sub(known);
        line.total = known + line.unused + line.reserve;
        let growing = i128::from(samples) * i128::from(line.per_sample.0);
        line.fixed = i64::try_from(i128::from(activations[number].0) - growing).unwrap_or(i64::MAX);
    }
    lines.retain(|line| line.total > Bytes::ZERO);
    lines
}
