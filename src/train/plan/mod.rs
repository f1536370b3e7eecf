//! From a network to the plan of its training step, and to a program with its parameters' first values: on one
//! device, over replicas, as a pipeline, with workers that do not wait; and which of these is fastest.

pub(crate) mod again;
pub(crate) mod parallel;
pub(crate) mod pipelined;
pub(crate) mod workers;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use self::pipelined::pipelined;
use crate::compile::{self, Compiled};
use crate::control::Control;
use crate::data::{Field, Role};
use crate::error::{Error, Result};
use crate::ir::{Graph, ParamId, SourceId, SourceRole, Tensor};
use crate::load::weights::ParamReader;
use crate::load::{Model, fill_param};
use crate::place;
use crate::plan::{Plan, PlanReplicas};
use crate::run::{Engines, GroupedGraph, Runner};
use crate::topology::Topology;
use crate::train::options::Options;
use crate::train::spread::exchange::Replicas;
use crate::train::spread::groups::ReplicaGroups;
use crate::train::spread::links::Links;
use crate::train::spread::names::{base_name, part_of};
use crate::train::spread::reduce::part;
use crate::train::spread::replicas::replicated_step;
use crate::train::step::accumulate::expect_open;
use crate::train::step::loss::Loss;
use crate::train::step::{Step, Target, evaluation, training_step};

/// A training step with its plan.
pub(crate) struct Planned {
    /// The network without its training.
    pub(crate) forward: Graph,
    /// The step, but for its graph.
    pub(crate) step: Step,
    pub(crate) asked: compile::Options,
    pub(crate) compiled: Compiled,
}

/// Plans all that a step takes: what updates, and, for workers that do not wait, what each of them runs.
///
/// Errors: those of [`planned`].
pub(crate) fn all_planned(
    mut graph: Graph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<(Planned, Vec<Planned>)> {
    only_floats(&mut graph);
    let mut options = options.clone();
    options.compile.training = Some(again::recorded(&options));
    let options = &options;
    let Some(asynchronous) = options.asynchronous else {
        return Ok((planned(graph, topology, options, control)?, Vec::new()));
    };
    let (forward, dims) = compile::bound(graph, &options.compile)?;
    let compile = compile::Options { dims, ..options.compile.clone() };
    let options = Options { compile, ..options.clone() };
    workers::planned(&forward, topology, &options, asynchronous, control)
}

/// What is trained is f32, and so is what is compared with it.
fn only_floats(graph: &mut Graph) {
    graph.rules_mut().arrays.blocks.clear();
}

/// The plan of the network alone with the loss of each sample, in the room that a step leaves, and its targets.
///
/// Errors: those of planning.
pub(crate) fn evaluation_plan(
    forward: &Graph,
    loss: &Loss,
    step: &Plan,
    topology: &Topology,
    asked: &compile::Options,
) -> Result<(Compiled, Vec<Target>)> {
    let (graph, targets) = evaluation(forward.clone(), loss)?;
    let devices = topology.devices.iter().zip(&step.devices);
    let mut asked = asked.clone();
    // Rules speak of the step's nodes; the network alone is split where it must be.
    asked.split.rules.clear();
    asked.place.caps = Some(devices.map(|(device, own)| device.memory.saturating_sub(own.arena)).collect());
    let compiled = compile::compile(Model::Graph(graph), topology, &asked);
    let compiled = compiled.map_err(|error| error.within("validation, beside the training step"))?;
    Ok((compiled, targets))
}

/// A planned step, ready to run, with its parameters' first values; programs of the same `engines` may run at
/// the same time.
pub(crate) fn program(
    compiled: Compiled,
    forward: &Graph,
    options: &Options,
    engines: &Engines,
) -> Result<Runner> {
    let Compiled { plan, network, .. } = compiled;
    let network = network.ok_or_else(|| Error::Internal("a graph compiles to a network".into()))?;
    let reader = RefCell::new(ParamReader::new());
    // Looked up, never iterated.
    let whole: HashMap<&str, u32> =
        forward.params().iter().map(|param| param.name.as_str()).zip(0..).collect();
    let of_network = |id: ParamId| {
        let (number, count, name) = part_of(network.graph.param(id).whole_name())?;
        whole.get(name).map(|&whole| (number, count, ParamId(whole)))
    };
    let weights = |id: ParamId| {
        let reader = &mut *reader.borrow_mut();
        match of_network(id) {
            Some((number, count, whole)) => {
                let part = cut(&initial(forward, whole, reader, options.seed)?, number, count)?;
                network.graph.param(id).own_part(&network.graph, part)
            }
            None => initial(&network.graph, id, reader, options.seed),
        }
    };
    let of = GroupedGraph { graph: &network.graph, grouping: &network.grouping };
    Runner::beside(engines, of, &plan, &weights, options.timeout, &options.gpus)
}

impl Planned {
    pub(crate) fn plan(&self) -> &Plan {
        &self.compiled.plan
    }
}

/// Makes the training step of a network and plans it.
///
/// Errors: those of [`training_step`] and of planning.
pub(crate) fn planned(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<Planned> {
    if let Some(pipeline) = options.pipeline {
        return pipelined(graph, topology, options, pipeline, control);
    }
    let Made { forward, mut step, dims, replicas } = step_of(graph, topology, options, control)?;
    let graph = std::mem::replace(&mut step.graph, Graph::new(""));
    let opened = dims.keys().filter(|name| !options.compile.dims.contains_key(*name)).cloned().collect();
    let mut asked =
        compile::Options { dims, opened, bind: Default::default(), batch: None, ..options.compile.clone() };
    if let Some(training) = &mut asked.training {
        training.replicas = replicas;
    }
    let compiled = match options.split {
        true => compile::compile_with(Model::Graph(graph), topology, &asked, control),
        false => in_layers(graph, topology, &asked, control),
    };
    Ok(Planned { forward, step, asked, compiled: compiled? })
}

/// Plans a step layer by layer; where that fits nowhere, operation by operation, split where they must be.
fn in_layers(
    graph: Graph,
    topology: &Topology,
    asked: &compile::Options,
    control: &Control<'_>,
) -> Result<Compiled> {
    let together = |losses: Losses| {
        let mut together = graph.clone();
        layers_together(&mut together, losses);
        // What goes together is whole.
        let split = compile::SplitOptions { auto: false, ..asked.split.clone() };
        let mut whole = compile::Options { split, ..asked.clone() };
        if let Some(training) = &mut whole.training {
            training.together = Some(losses.name().to_owned());
        }
        compile::compile_with(Model::Graph(together), topology, &whole, control)
    };
    let mut compiled = together(Losses::WithLayers);
    if let Err(Error::Usage(_)) = compiled {
        // There may be fewer layers than devices that are to compute something.
        compiled = together(Losses::Free);
    }
    match compiled {
        // A layer with all that its training needs may be too large for one device.
        Err(Error::Infeasible(_)) => compile::compile_with(Model::Graph(graph), topology, asked, control),
        compiled => compiled,
    }
}

/// What planning a step begins with.
pub(crate) struct Made {
    /// The network, bound.
    forward: Graph,
    pub(crate) step: Step,
    dims: BTreeMap<String, i64>,
    /// What the plan says of replicas, where there are any.
    replicas: Option<PlanReplicas>,
}

/// Binds a network and makes its training step.
///
/// Errors: those of [`training_step`].
pub(crate) fn step_of(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<Made> {
    let unbound = options.replicas.map(|_| graph.clone());
    let (forward, dims) = compile::bound(graph, &options.compile)?;
    let (step, replicas) = match (options.replicas, unbound) {
        (Some(replicas), Some(unbound)) => {
            let (step, groups) = over_replicas(&forward, &unbound, topology, options, &replicas, control)?;
            let batch = compile::batch_dim(&unbound);
            (step, Some(again::recorded_replicas(&replicas, &groups, batch)))
        }
        _ => (training_step(forward.clone(), &options.recipe)?, None),
    };
    Ok(Made { forward, step, dims, replicas })
}

/// Where losses go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Losses {
    /// With the layer whose output they take.
    WithLayers,
    /// Anywhere.
    Free,
}

impl Losses {
    /// What plans call a step whose layers lie together.
    const fn name(self) -> &'static str {
        match self {
            Self::WithLayers => "losses",
            Self::Free => "layers",
        }
    }

    /// Error: plans do not have this name.
    fn from_name(name: &str) -> Result<Self> {
        [Self::WithLayers, Self::Free].into_iter().find(|own| own.name() == name).ok_or_else(|| {
            Error::format("options.training.together", format!("expected losses or layers, found {name}"))
        })
    }
}

/// Marks gradients and updates to go with the layer that they belong to, and losses with the layer whose
/// output they take, but for those that are pinned.
pub(crate) fn layers_together(graph: &mut Graph, losses: Losses) {
    let mut layers: Vec<(SourceId, SourceId)> = Vec::new();
    for node in graph.node_ids().filter(|_| losses == Losses::WithLayers).map(|id| graph.node(id)) {
        let is_loss = |id: SourceId| graph.source(id).op == "loss" && graph.source(id).pin.is_none();
        if !is_loss(node.source) || layers.iter().any(|(loss, _)| *loss == node.source) {
            continue;
        }
        let makers = node.operands.iter().map(|&operand| graph.maker(operand).source);
        let is_layer = |id: &SourceId| graph.source(*id).role == SourceRole::Node && *id != node.source;
        layers.extend(makers.into_iter().find(is_layer).map(|layer| (node.source, layer)));
    }
    for (loss, layer) in layers {
        let layer = graph.source_mut(layer);
        let mark = layer.colocate.get_or_insert_with(|| format!("layer {}", layer.name)).clone();
        graph.source_mut(loss).colocate.get_or_insert(mark);
    }
    for id in (0..graph.sources().len() as u32).map(SourceId) {
        let Some(forward) = graph.source(id).forward.filter(|_| graph.source(id).pin.is_none()) else {
            continue;
        };
        let layer = graph.source_mut(forward);
        let mark = layer.colocate.get_or_insert_with(|| format!("layer {}", layer.name)).clone();
        graph.source_mut(id).colocate = Some(mark);
    }
}

/// Error: a parameter is called as a replica's, or a part of one, is.
pub(crate) fn check_names(network: &Graph) -> Result<()> {
    let taken = |name: &str| part_of(name).is_some() || base_name(name) != name;
    match network.params().iter().find(|param| taken(&param.name)) {
        None => Ok(()),
        Some(param) => {
            let message = "training calls parts and replicas of parameters so";
            Err(Error::usage(format!("parameter {}", param.name), message)
                .with_help("rename it in the model"))
        }
    }
}

/// A part of an array, flat.
pub(crate) fn cut(whole: &Tensor, number: usize, count: usize) -> Result<Tensor> {
    let size = whole.dtype().size() as usize;
    let (start, length) = part((whole.bytes().len() / size) as u64, number, count);
    let bytes = &whole.bytes()[start as usize * size..][..length as usize * size];
    Tensor::new(whole.dtype(), vec![length as u64], bytes)
}

/// A parameter's first value.
pub(crate) fn initial(graph: &Graph, id: ParamId, reader: &mut ParamReader, seed: u64) -> Result<Tensor> {
    if let Some(tensor) = reader.read(graph, id)? {
        return Ok(tensor);
    }
    fill_param(graph, id, seed, base_name(graph.param(id).whole_name()))
}

/// The network for some of a batch's samples. Error: its own batch is fixed, and another.
fn of_samples(unbound: &Graph, samples: i64, batch: i64, options: &compile::Options) -> Result<Graph> {
    expect_open(unbound, samples, batch)?;
    let asked = compile::Options { batch: Some(samples), ..options.clone() };
    compile::bound(unbound.clone(), &asked).map(|(graph, _)| graph)
}

/// The step of a batch over replicas, each of which takes a part of it, and where they are.
fn over_replicas(
    forward: &Graph,
    unbound: &Graph,
    topology: &Topology,
    options: &Options,
    replicas: &Replicas,
    control: &Control<'_>,
) -> Result<(Step, ReplicaGroups)> {
    let first = forward.inputs().first().map(|(_, value)| forward.ty(*value).shape.dims());
    let batch = first.flatten().and_then(|dims| dims.first().copied()).unwrap_or(1);
    replicas.check(topology, batch)?;
    let bound = |samples: i64| of_samples(unbound, samples, batch, &options.compile);
    let names: Vec<String> = topology.computing().map(|id| topology.device(id).name.clone()).collect();
    let groups = match replicas.each {
        1 => ReplicaGroups::single(names.into_iter().take(replicas.count).collect()),
        each => groups_of(names, &bound(batch / replicas.shards as i64)?, topology, options, each, control)?,
    };
    let links = Links::of(topology, &groups);
    let step = replicated_step(batch, &bound, &options.recipe, replicas, &groups, links)?;
    Ok((step, groups))
}

/// Devices for replicas of several each: one replica is planned alone; what it uses is the first group,
/// the others follow in the specification's order.
fn groups_of(
    names: Vec<String>,
    shard: &Graph,
    topology: &Topology,
    options: &Options,
    each: usize,
    control: &Control<'_>,
) -> Result<ReplicaGroups> {
    let mut graph = training_step(shard.clone(), &options.recipe)?.graph;
    layers_together(&mut graph, Losses::WithLayers);
    let place = place::Options {
        devices: place::DeviceUse::Count(each as u32),
        effort: place::Effort::Fast,
        ..options.compile.place.clone()
    };
    let asked = compile::Options { bind: Default::default(), batch: None, place, ..options.compile.clone() };
    let plan = compile::compile_with(Model::Graph(graph), topology, &asked, control)?.plan;
    let used: BTreeSet<&str> = plan.placement.iter().map(|(_, device)| device.as_str()).collect();
    let (mut first, rest): (Vec<String>, Vec<String>) =
        names.into_iter().partition(|name| used.contains(name.as_str()));
    let last_batch = each.saturating_sub(first.len());
    first.extend(rest.iter().take(last_batch).cloned());
    let places: BTreeMap<&str, usize> = plan
        .placement
        .iter()
        .filter_map(|(name, device)| Some((name.as_str(), first.iter().position(|own| own == device)?)))
        .collect();
    let others = rest[last_batch.min(rest.len())..].chunks_exact(each).map(<[String]>::to_vec);
    let devices = std::iter::once(first.clone()).chain(others).collect();
    Ok(ReplicaGroups::several(devices, shard, |name| places.get(name).copied()))
}

/// What each record gives, and the batch.
///
/// Errors: an input without a batch axis, or two sizes of it.
pub(crate) fn fields(forward: &Graph, targets: &[Target]) -> Result<(Vec<Field>, usize)> {
    let mut fields = Vec::new();
    let mut batch: Option<i64> = None;
    let inputs = forward.inputs().iter().map(|(name, value)| {
        let ty = forward.ty(*value);
        let rule = forward.rules().inputs.get(name);
        let below = rule.and_then(|rule| rule.below.clone());
        (name, Role::Input, ty.dtype, ty.shape.dims().unwrap_or_default(), below)
    });
    let targets =
        targets.iter().map(|one| (&one.name, Role::Target, one.dtype, one.dims.clone(), one.limit()));
    for (name, role, dtype, dims, below) in inputs.chain(targets) {
        let Some((&first, rest)) = dims.split_first() else {
            return Err(Error::usage(format!("input {name}"), "it has no batch axis"));
        };
        if *batch.get_or_insert(first) != first {
            let message = format!("its first axis has {first} elements, others {}", batch.unwrap_or(0));
            return Err(Error::usage(format!("input {name}"), message)
                .with_help("the first axis of inputs and outputs is the batch"));
        }
        let rest: Vec<u64> = rest.iter().map(|dim| dim.unsigned_abs()).collect();
        fields.push(Field { below, ..Field::new(name.clone(), role, dtype, &rest) });
    }
    Ok((fields, batch.unwrap_or(1).unsigned_abs() as usize))
}
