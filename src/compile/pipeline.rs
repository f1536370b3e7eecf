//! Plans of steps that are divided into microbatches.
//!
//! A cost graph is the step of the whole batch, of which each microbatch takes a part; a network is
//! lowered at the size of one microbatch.

use std::collections::BTreeMap;

use super::split::mixing;
use super::step::Step;
use super::{Network, Options, batch_dim};
use crate::cost::Lowered;
use crate::error::{Error, Result};
use crate::ir::{Graph, Phase, Size, ValueId};
use crate::place::Objective;
use crate::plan::Plan;
use crate::schedule::Content;
use crate::strategy::pipeline;

/// Options as a pipeline takes them, where they ask for one. Error: with one, a plan that is to be
/// kept to.
pub(super) fn settled(mut options: Options) -> Result<Options> {
    if options.pipeline.is_none() && options.unrolled.is_none() {
        return Ok(options);
    }
    if options.from.is_some() || options.place.from.is_some() {
        return Err(Error::usage("--from", "a plan with microbatches does not keep to an earlier one")
            .with_help("leave out --from or --microbatches"));
    }
    if options.place.objective == Objective::Transfer {
        // Stages are what microbatches are for, and fewest bytes would have as few as there can be.
        options.place.objective = Objective::Latency;
    }
    Ok(options)
}

/// How the batch of a network is divided.
pub(super) struct Divided {
    /// The whole of it.
    pub(super) batch: i64,
    /// One part.
    pub(super) microbatch: i64,
    axes: Axes,
}

impl Divided {
    /// Says of each buffer of a microbatch along which axis it is divided.
    ///
    /// Error: one value holds inputs or outputs that are divided along different axes.
    pub(super) fn annotate(
        &self,
        plan: &mut Plan,
        network: &Network,
        lowered: &Lowered,
        step: &Step,
    ) -> Result<()> {
        let Some(derived) = &step.derived else { return Ok(()) };
        let axes = self.axes.of_values(network)?;
        for (buffer, scheduled) in plan.buffers.iter_mut().zip(&step.schedule.buffers) {
            if let Content::Tensor(tensor) = scheduled.content {
                let value = lowered.values[derived.base_tensor(tensor).index()];
                buffer.axis = axes.get(&value).filter(|_| buffer.microbatch.is_some()).copied();
            }
        }
        Ok(())
    }
}

/// By name of an input or output, the axis that is as long as the batch.
struct Axes(BTreeMap<String, u32>);

impl Axes {
    /// By value that holds an input or output. Error: one value holds two of different axes.
    fn of_values(&self, network: &Network) -> Result<BTreeMap<ValueId, u32>> {
        let Network { graph, grouping, .. } = network;
        let mut axes = BTreeMap::new();
        for (name, value) in graph.inputs().iter().chain(graph.outputs()) {
            let Some(&axis) = self.0.get(name) else { continue };
            if axes.insert(grouping.base[value.index()], axis).is_some_and(|other| other != axis) {
                let message = "it shares its bytes with another one, whose batch is on another axis";
                return Err(
                    Error::usage(format!("output {name}"), message).with_help("plan without --microbatches")
                );
            }
        }
        Ok(axes)
    }
}

/// How the batch is divided, where the step is to be.
///
/// Errors: it is not given, or does not divide; an input or output has not one axis that is as long
/// as the batch.
pub(super) fn divided(graph: &Graph, options: &Options) -> Result<Option<Divided>> {
    let Some(pipeline::Options { microbatches, .. }) = options.pipeline else { return Ok(None) };
    let place = format!("--microbatches {microbatches}");
    let dim = batch_dim(graph).ok_or_else(|| {
        Error::usage(&place, "the model has no batch dimension that is open").with_help(
            "microbatches divide a batch that is open: --batch says how large it is, --dim binds it",
        )
    })?;
    let count = i64::from(microbatches);
    let Some(batch) = options.batch.or_else(|| options.bind.get(&dim).copied()) else {
        return Err(Error::usage(&place, "the size of the batch is not given")
            .with_help(format!("--batch {count} gives each microbatch one sample")));
    };
    if count < 1 || batch % count != 0 {
        return Err(indivisible(&place, batch, count));
    }
    let mut axes = BTreeMap::new();
    for (name, value) in graph.inputs().iter().chain(graph.outputs()) {
        let depends = graph.ty(*value).shape.sizes().iter().flat_map(Size::terms);
        let depends = depends.clone().any(|&(one, _)| graph.dim_name(one) == dim);
        let is_output = graph.outputs().iter().any(|(other, _)| other == name);
        match graph.axis_of(*value, &dim) {
            Some(axis) => {
                axes.insert(name.clone(), axis as u32);
            }
            // An input that is the same for all samples goes to each microbatch.
            None if !depends && !is_output => {}
            None => {
                let message = format!("{name} has not one axis that is as long as {dim}");
                return Err(Error::usage(&place, message)
                    .with_help("it cannot be divided into microbatches and put together again"));
            }
        }
    }
    // Of a training step, gradients of the microbatches are added up.
    if graph.sources().iter().all(|source| source.phase == Phase::Forward) {
        check_apart(graph, &place, &dim, &axes, &options.bind)?;
    }
    Ok(Some(Divided { batch, microbatch: batch / count, axes: Axes(axes) }))
}

/// Error: microbatches do not give what the whole batch gives.
fn check_apart(
    graph: &Graph,
    place: &str,
    dim: &str,
    axes: &BTreeMap<String, u32>,
    dims: &BTreeMap<String, i64>,
) -> Result<()> {
    let help = "leave --microbatches out";
    if let Some(state) = graph.params().iter().find(|param| param.state.is_some()) {
        let message = format!("{} stays from step to step, for the whole batch", state.name);
        return Err(Error::usage(place, message).with_help(help));
    }
    match mixing(graph, dim, axes, dims)? {
        Some(name) => {
            let message = format!("{name} does not compute the samples of a batch apart");
            Err(Error::usage(place, message).with_help(help))
        }
        None => Ok(()),
    }
}

/// What of a network is not computed for each sample of a batch apart; none where all is, or where no batch is open.
/// `dims` binds other dimensions. O(nodes + edges).
///
/// Errors: none but internal ones.
#[cfg(feature = "run")]
pub(crate) fn not_apart(graph: &Graph, dims: &BTreeMap<String, i64>) -> Result<Option<String>> {
    let Some(dim) = batch_dim(graph) else { return Ok(None) };
    let axis = |(name, value): &(String, ValueId)| Some((name.clone(), graph.axis_of(*value, &dim)? as u32));
    let axes = graph.inputs().iter().chain(graph.outputs()).filter_map(axis).collect();
    mixing(graph, &dim, &axes, dims)
}

/// What would do in place of a batch that does not divide.
fn indivisible(place: &str, batch: i64, count: i64) -> Error {
    let divisors: Vec<String> =
        (1..=batch.min(64)).filter(|one| batch % one == 0).map(|one| one.to_string()).collect();
    let below = batch / count.max(1) * count.max(1);
    let batches = match below {
        0 => format!("--batch {count}"),
        below => format!("--batch {below} or {}", below.saturating_add(count)),
    };
    Error::usage(place, format!("a batch of {batch} does not divide into {count} parts"))
        .with_help(format!("--microbatches {}, or {batches}", divisors.join(", ")))
}
