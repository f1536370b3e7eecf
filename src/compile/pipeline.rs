//! Plans of steps that are divided into microbatches.
//!
//! A cost graph is the step of the whole batch, of which each microbatch takes a part; a network is
//! lowered at the size of one microbatch.

use std::collections::BTreeMap;

use super::labels::labels;
use super::{Compiled, Network, Options, batch_dim, prepare, profile};
use crate::control::Control;
use crate::cost;
use crate::costgraph::CostGraph;
use crate::costgraph::microbatch::one_of;
use crate::error::{Error, Result};
use crate::ir::{Graph, Size, SourceRole, ValueId};
use crate::load::Model;
use crate::place::{self, Objective};
use crate::plan;
use crate::schedule::Content;
use crate::strategy::pipeline::{self, pipeline};
use crate::topology::Topology;

/// Plans a pipeline. Errors: those of [`pipeline()`]; a batch that the microbatches do not divide; a
/// network whose results cannot be put together from those of microbatches.
pub(super) fn compile(
    model: Model,
    topology: &Topology,
    options: &Options,
    asked: pipeline::Options,
    control: &Control<'_>,
) -> Result<Compiled> {
    if options.from.is_some() || options.place.from.is_some() {
        return Err(Error::usage("--from", "a plan with microbatches does not keep to an earlier one")
            .with_help("leave out --from or --microbatches"));
    }
    let mut options = options.clone();
    if options.place.objective == Objective::Transfer {
        // Fewest bytes would be moved by one device.
        options.place.objective = Objective::Latency;
    }
    match model {
        Model::CostGraph { graph, .. } => of_cost_graph(&graph, topology, &options, asked, control),
        Model::Graph(graph) => of_network(graph, topology, &options, asked, control),
    }
}

fn of_cost_graph(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    asked: pipeline::Options,
    control: &Control<'_>,
) -> Result<Compiled> {
    let one = one_of(graph, asked.microbatches)?;
    let found = pipeline(&one, topology, &options.place, asked, control)?;
    let mut meta = options.meta(&graph.name, graph.node_count(), &BTreeMap::new());
    meta.options.schedule = Some(found.figures.schedule.to_owned());
    meta.options.truncated = control.was_truncated();
    let pipeline::Pipeline { derived, placement, schedule, figures } = found;
    let plan = plan::build_derived(graph, &derived, topology, &placement, &schedule, None, meta)?;
    plan::check(&plan)?;
    Ok(Compiled {
        plan,
        network: None,
        cost_graph: derived.graph,
        topology: topology.clone(),
        placement,
        schedule,
        pipeline: Some(figures),
    })
}

fn of_network(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    asked: pipeline::Options,
    control: &Control<'_>,
) -> Result<Compiled> {
    let (part, axes) = divided(&graph, options, asked.microbatches)?;
    let network = prepare(graph, &Options { batch: Some(part), ..options.clone() })?;
    let lowered = cost::lower(&network.graph, &network.grouping, topology, options.profile.as_deref())?;
    let place = place::Options { pins: Vec::new(), colocate: Vec::new(), ..options.place.clone() };
    let found = pipeline(&lowered.graph, topology, &place, asked, control)?;
    let Network { graph, dims, .. } = &network;
    let nodes = graph.sources().iter().filter(|source| source.role == SourceRole::Node).count();
    let mut meta = options.meta(&graph.name, nodes, dims);
    meta.options.schedule = Some(found.figures.schedule.to_owned());
    meta.options.batch = u64::try_from(part.saturating_mul(asked.microbatches.into())).ok();
    meta.options.truncated = control.was_truncated();
    let pipeline::Pipeline { derived, placement, schedule, figures } = found;
    let base = place::Placement { device: derived.gather(&placement.device), ..placement.clone() };
    let labels = labels(&network, &lowered, topology, &base);
    let mut plan =
        plan::build_derived(&lowered.graph, &derived, topology, &placement, &schedule, Some(&labels), meta)?;
    plan.profile = profile(options, topology, &labels);
    let axes = axes.of_values(&network)?;
    for (buffer, scheduled) in plan.buffers.iter_mut().zip(&schedule.buffers) {
        if let Content::Tensor(tensor) = scheduled.content {
            let value = lowered.values[derived.base_tensor(tensor).index()];
            buffer.axis = axes.get(&value).filter(|_| buffer.microbatch.is_some()).copied();
        }
    }
    plan::check(&plan)?;
    Ok(Compiled {
        plan,
        network: Some(network),
        cost_graph: derived.graph,
        topology: topology.clone(),
        placement,
        schedule,
        pipeline: Some(figures),
    })
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

/// The size of a microbatch, where the batch is given and divides into them, and the axes along
/// which it is divided.
///
/// Errors: it is not given, or does not divide; an input or output has not one axis that is as long
/// as the batch.
fn divided(graph: &Graph, options: &Options, microbatches: u32) -> Result<(i64, Axes)> {
    let place = format!("--microbatches {microbatches}");
    let dim = batch_dim(graph).ok_or_else(|| {
        Error::usage(&place, "the model has no batch dimension that is open")
            .with_help("only a model whose batch is open can be run in microbatches")
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
    Ok((batch / count, Axes(axes)))
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
