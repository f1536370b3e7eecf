//! Data parallel training: the network once for each part of the batch, on devices side by side, with
//! one loss and one gradient.
//!
//! The batch is cut into *shards*, in order and as evenly as it goes. Gradients of the shards are added
//! in an order that follows from the shards alone (see `reduce`), so the parameters have the same bits
//! for any number of replicas that divides the number of shards, from run to run and for any number of
//! threads.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::ir::{Graph, Op, Param, ParamId, Source, SourceId, SourceRole, Type, ValueId};
use crate::pass::gradient::build::{Build, ReducedAxes};
use crate::pass::gradient::{gradient, unroll};
use crate::train::spread::exchange::{Replicas, Sync};
use crate::train::spread::groups::ReplicaGroups;
use crate::train::spread::links::Links;
use crate::train::spread::names::replica_name;
use crate::train::step::ignored::{TargetValue, add_target};
use crate::train::step::noise::disturb;
use crate::train::step::penalty::{penalised, penalty, penalty_source};
use crate::train::step::scaling::Scale;
use crate::train::step::statistics::{Moved, batch_statistics};
use crate::train::step::stored::by_stored_statistics;
use crate::train::step::{Recipe, Step, Target, batch_of, check_without_buffers, targets, trainable};

/// The training step of a batch over replicas; `bound` gives the network for a number of samples.
///
/// Errors: those of [`training_step`](crate::train::training_step), for each size of a shard.
pub(crate) fn replicated_step(
    batch: i64,
    bound: &dyn Fn(i64) -> Result<Graph>,
    recipe: &Recipe,
    replicas: &Replicas,
    groups: &ReplicaGroups,
    links: Links,
) -> Result<Step> {
    let shards = replicas.shards as i64;
    let sizes: Vec<i64> =
        (0..shards).map(|shard| (shard + 1) * batch / shards - shard * batch / shards).collect();
    let mut networks: Vec<(i64, Network)> = Vec::new();
    for &size in &sizes {
        if networks.iter().all(|(known, _)| *known != size) {
            networks.push((size, Network::new(bound(size)?, &recipe.freeze)?));
        }
    }
    let network = |size: i64| -> Result<&Network> {
        let found = networks.iter().find(|(known, _)| *known == size);
        found.map(|(_, network)| network).ok_or_else(|| Error::Internal("a shard without a network".into()))
    };
    let mut whole = bound(batch)?;
    let disturbed = disturb(&mut whole, batch)?;
    let targets = targets(&whole, &recipe.loss)?;
    let first = network(sizes[0])?;
    let mut step = Replicated::new(&whole, first, recipe, replicas, groups, links)?;
    step.add_inputs(&whole, &targets);
    step.add_params(&first.graph)?;
    let mut start = 0;
    for (shard, &size) in sizes.iter().enumerate() {
        step.add_shard(network(size)?, shard, ShardRows { start, size, batch }, recipe, &targets)?;
        start += size;
    }
    for (shard, &size) in sizes.iter().enumerate() {
        step.differentiate(network(size)?, shard)?;
    }
    let trained = step.finish(first, recipe, &whole)?;
    Ok(Step { graph: step.graph, targets, trained, disturbed })
}

/// The network of a shard, as it trains.
pub(crate) struct Network {
    pub(crate) graph: Graph,
    moved: Vec<Moved>,
}

impl Network {
    fn new(mut graph: Graph, freeze: &[String]) -> Result<Self> {
        check_without_buffers(&graph, "of replicas")?;
        unroll(&mut graph)?;
        by_stored_statistics(&mut graph)?;
        let batch = batch_of(&graph);
        disturb(&mut graph, batch)?;
        let moved = batch_statistics(&mut graph, freeze)?;
        Ok(Self { graph, moved })
    }
}

/// Where a parameter is kept.
pub(crate) enum Storage {
    /// Whole, by every set of parameters.
    Replicated,
    /// A part on each replica, which is gathered where it is read.
    Sharded(Vec<(ParamId, ValueId)>),
}

/// The graph of all replicas as it grows.
pub(crate) struct Replicated<'a> {
    pub(crate) graph: Graph,
    pub(crate) replicas: &'a Replicas,
    pub(crate) groups: &'a ReplicaGroups,
    pub(crate) links: Links,
    /// By replica, then by parameter of the network: its value. One list where they share them.
    pub(crate) params: Vec<Vec<ValueId>>,
    /// By parameter.
    pub(crate) storage: Vec<Storage>,
    pub(crate) names: Vec<String>,
    /// By parameter: the device of each group that it belongs to.
    pub(crate) stages: Vec<usize>,
    /// Inputs of the whole batch, then of each target what it has: itself, and its shares.
    inputs: Vec<ValueId>,
    pub(crate) losses: Vec<ValueId>,
    /// By replica: what its loss counts, where some are spare.
    pub(crate) counts: Vec<Option<ValueId>>,
    /// By shard, then by value of its network: the copy's.
    values: Vec<Vec<ValueId>>,
    /// By parameter: what the microbatches of a pipeline so far have made of a statistic.
    moved: Vec<Option<ValueId>>,
    /// By shard, then by output of the network.
    pub(crate) outputs: Vec<Vec<ValueId>>,
    /// By shard, then by parameter: its gradient, or the value that it is to have.
    pub(crate) gradients: Vec<Vec<Option<ValueId>>>,
    /// The state of the loss's scaling.
    pub(crate) scale: Option<Scale>,
    /// By parameter: the source of the first shard that reads it.
    pub(crate) readers: Vec<Option<SourceId>>,
    pub(crate) trainable: Vec<bool>,
    /// By replica: parameters gathered anew for its backward pass, by what was gathered before.
    pub(crate) gathered_again: Vec<Option<HashMap<ValueId, ValueId>>>,
    /// By parameter: what the owners of its parts send for that.
    pub(crate) sent_again: Vec<Option<Vec<ValueId>>>,
    /// By device: bytes that it adds up or keeps.
    pub(crate) load: Vec<u64>,
}

/// The samples of a shard, among those of the batch.
#[derive(Clone, Copy)]
struct ShardRows {
    start: i64,
    size: i64,
    batch: i64,
}

impl<'a> Replicated<'a> {
    fn new(
        whole: &Graph,
        network: &Network,
        recipe: &Recipe,
        replicas: &'a Replicas,
        groups: &'a ReplicaGroups,
        links: Links,
    ) -> Result<Self> {
        let params = network.graph.params();
        let mut trained = vec![false; params.len()];
        trainable(&network.graph, &recipe.freeze)?.iter().for_each(|id| trained[id.index()] = true);
        let mut graph = Graph::new(whole.name.clone());
        Ok(Self {
            // Where there is nothing to scale, too: what is divided by a factor, and so what is summed over shards, is of f32.
            scale: recipe.scaling.map(|scaling| Scale::add(&mut graph, scaling)),
            graph,
            replicas,
            stages: groups.stages_of_params(&network.graph),
            groups,
            links,
            params: Vec::new(),
            storage: params.iter().map(|_| Storage::Replicated).collect(),
            names: params.iter().map(|param| param.name.clone()).collect(),
            inputs: Vec::new(),
            losses: Vec::new(),
            counts: vec![None; replicas.count],
            values: Vec::new(),
            moved: vec![None; params.len()],
            outputs: Vec::new(),
            gradients: Vec::new(),
            readers: vec![None; params.len()],
            trainable: trained,
            gathered_again: (0..replicas.count).map(|_| None).collect(),
            sent_again: vec![None; params.len()],
            load: vec![0; replicas.count],
        })
    }

    fn add_inputs(&mut self, whole: &Graph, targets: &[Target]) {
        let graph = &mut self.graph;
        for (name, value) in whole.inputs() {
            let source = graph.add_source(Source::new(name.clone(), "input", SourceRole::Data));
            self.inputs.push(graph.add_input(name.clone(), whole.ty(*value).clone(), source));
        }
        for target in targets {
            let TargetValue { value, share, .. } = add_target(graph, target);
            self.inputs.extend([value].into_iter().chain(share));
        }
    }

    fn add_params(&mut self, network: &Graph) -> Result<()> {
        let sets = if self.replicas.sync == Sync::AllReduce { self.replicas.count } else { 1 };
        self.params = vec![Vec::with_capacity(network.params().len()); sets];
        for (at, param) in network.params().iter().enumerate() {
            let ty = network.ty(network.node(param.node).first_result).clone();
            if self.is_in_parts(at, &ty) {
                self.add_parts(at, param, &ty)?;
                continue;
            }
            for replica in 0..sets {
                let name = replica_name(replica, &param.name);
                let value = self.add_param(name, ty.clone(), param);
                self.params[replica].push(value);
            }
        }
        Ok(())
    }

    pub(crate) fn add_param(&mut self, name: String, ty: Type, param: &Param) -> ValueId {
        let source = self.graph.add_source(Source::new(name.clone(), "weight", SourceRole::Data));
        self.graph.add_param(name, ty, param.init.clone(), param.data.clone(), source)
    }

    /// The replica that a shard belongs to.
    pub(crate) fn replica(&self, shard: usize) -> usize {
        shard * self.replicas.count / self.replicas.shards.max(1)
    }

    /// Which of its replica's shards one is: they are what a replica does one after the other.
    pub(crate) fn microbatch(&self, shard: usize) -> Option<u32> {
        let each = self.replicas.shards / self.replicas.count.max(1);
        u32::try_from(shard % each.max(1)).ok()
    }

    /// The device of a replica that a parameter belongs to.
    pub(crate) fn pin(&self, at: usize, replica: usize) -> Option<String> {
        Some(self.groups.devices[replica][self.stages[at]].clone())
    }

    /// A source on the device of a replica that makes the network's outputs.
    pub(crate) fn source(&mut self, name: String, op: &str, replica: usize) -> SourceId {
        let pin = Some(self.groups.devices[replica][self.groups.last].clone());
        self.graph.add_source(Source { pin, ..Source::new(name, op, SourceRole::Node) })
    }

    /// The sources of a network for a shard.
    fn sources(&mut self, network: &Graph, shard: usize, device: usize) -> Vec<SourceId> {
        let first = self.graph.sources().len() as u32;
        let microbatch = self.microbatch(shard);
        for (number, source) in network.sources().iter().enumerate() {
            let stage = self.groups.stages.get(number).copied().unwrap_or(0);
            let name = if shard == 0 { source.name.clone() } else { format!("{}@{shard}", source.name) };
            self.graph.add_source(Source {
                name,
                pin: Some(self.groups.devices[device][stage].clone()),
                colocate: None,
                consumer: None,
                forward: source.forward.map(|forward| SourceId(first + forward.0)),
                microbatch,
                ..source.clone()
            });
        }
        (first..self.graph.sources().len() as u32).map(SourceId).collect()
    }

    fn add_shard(
        &mut self,
        network: &Network,
        shard: usize,
        rows: ShardRows,
        recipe: &Recipe,
        targets: &[Target],
    ) -> Result<()> {
        let ShardRows { start, size, batch } = rows;
        let device = self.replica(shard);
        let microbatch = self.microbatch(shard);
        let mut parts = Vec::new();
        for (number, input) in self.inputs.clone().into_iter().enumerate() {
            let name = format!("shard {shard} of {}", self.graph.inputs()[number].0);
            let split = Source { microbatch, ..Source::new(name, "slice", SourceRole::Node) };
            let split = self.graph.add_source(split);
            let mut b = Build { graph: &mut self.graph, source: split };
            parts.push(if size == batch { input } else { b.part(input, 0, start, size)? });
        }
        let set = if self.params.len() == 1 { 0 } else { device };
        let sources = self.sources(&network.graph, shard, device);
        if microbatch == Some(0) {
            self.moved.fill(None);
        }
        let values = self.copy(&network.graph, &sources, &parts, set);
        // The microbatches of a pipeline move a statistic one after the other, as those of one device do.
        for moved in network.moved.iter().filter(|_| self.groups.pipelines) {
            self.moved[moved.param.index()] = Some(values[moved.value.index()]);
        }
        let outputs: Vec<ValueId> =
            network.graph.outputs().iter().map(|(_, value)| values[value.index()]).collect();
        let source = self.source(format!("loss@{shard}"), "loss", device);
        self.graph.source_mut(source).microbatch = microbatch;
        let mut rest = parts[network.graph.inputs().len()..].iter().copied();
        let mut b = Build { graph: &mut self.graph, source };
        let mut total: Option<ValueId> = None;
        for (&output, target) in outputs.iter().zip(targets) {
            let missing = || Error::Internal("a target without its part".into());
            let value = rest.next().ok_or_else(missing)?;
            let share = if target.has_shares { rest.next() } else { None };
            let value = TargetValue { value, share, takes_bits: target.takes_bits };
            let each = recipe.loss.per_sample(&mut b, output, value)?;
            let sum = b.sum(each, &[0], ReducedAxes::Dropped)?;
            total = Some(match total {
                Some(total) => b.add(total, sum)?,
                None => sum,
            });
        }
        let mut total = total.ok_or_else(|| Error::usage("model", "it has no output to train"))?;
        for (id, of) in penalised(&network.graph, &recipe.freeze)? {
            let param = network.graph.param(id);
            let node = network.graph.node(param.node);
            let reader = sources[node.source.index()];
            let pin = self.graph.source(reader).pin.clone();
            let own = penalty_source(&format!("{}@{shard}", param.name));
            let own = self.graph.add_source(Source { pin, microbatch, ..own });
            let mut b = Build { graph: &mut self.graph, source: own };
            let to = b.dtype(total);
            let added = penalty(&mut b, values[node.first_result.index()], of, to)?;
            // As many times as the shard has samples: the whole batch adds it once.
            let added = b.scale(added, size as f64)?;
            b.source = source;
            total = b.add(total, added)?;
        }
        let loss = Build { graph: &mut self.graph, source }.scale(total, 1.0 / batch as f64)?;
        let loss = self.counted(shard, loss)?;
        if shard == 0 {
            self.note_readers(&network.graph, &sources);
        }
        self.losses.push(loss);
        self.outputs.push(outputs);
        self.values.push(values);
        Ok(())
    }

    /// The gradients of a shard's loss.
    fn differentiate(&mut self, network: &Network, shard: usize) -> Result<()> {
        let replica = self.replica(shard);
        let set = if self.params.len() == 1 { 0 } else { replica };
        self.gather_again(replica)?;
        let of: Vec<ValueId> = self.params[set].clone();
        let first = self.graph.node_count();
        let loss = self.losses[shard];
        let source = self.graph.maker(loss).source;
        let loss = match self.scale {
            Some(scale) => scale.scaled(&mut Build { graph: &mut self.graph, source }, loss)?,
            None => loss,
        };
        let mut found = gradient(&mut self.graph, loss, &of)?;
        if let Some(scale) = self.scale {
            for gradient in found.iter_mut().flatten() {
                let own = self.graph.maker(*gradient);
                let source = if own.op.is_leaf() { source } else { own.source };
                *gradient = scale.unscaled(&mut Build { graph: &mut self.graph, source }, *gradient)?;
            }
        }
        if let Some(gathered) = &self.gathered_again[replica] {
            self.graph.substitute(first, gathered);
        }
        for (gradient, trainable) in found.iter_mut().zip(&self.trainable) {
            *gradient = gradient.filter(|_| *trainable);
        }
        for moved in &network.moved {
            let value = self.values[shard][moved.value.index()];
            found[moved.param.index()] = Some(self.counted(shard, value)?);
        }
        self.gradients.push(found);
        Ok(())
    }

    fn note_readers(&mut self, graph: &Graph, sources: &[SourceId]) {
        for node in graph.node_ids() {
            for &operand in &graph.node(node).operands {
                if let Op::Param(id) = graph.maker(operand).op {
                    self.readers[id.index()].get_or_insert(sources[graph.node(node).source.index()]);
                }
            }
        }
    }

    /// The nodes of a network with these inputs and parameters; by value of the network, the copy's.
    fn copy(
        &mut self,
        network: &Graph,
        sources: &[SourceId],
        inputs: &[ValueId],
        set: usize,
    ) -> Vec<ValueId> {
        let mut values: Vec<ValueId> = Vec::with_capacity(network.value_count());
        let mut next_input = inputs.iter();
        for id in network.node_ids() {
            let node = network.node(id);
            let source = sources[node.source.index()];
            match &node.op {
                Op::Input => values.extend(next_input.next()),
                Op::Param(param) => {
                    let stored = self.params[set][param.index()];
                    values.push(self.moved[param.index()].unwrap_or(stored));
                }
                Op::Constant(constant) => {
                    values.push(self.graph.add_constant(network.constant(*constant).clone(), source));
                }
                op => {
                    let operands: Vec<ValueId> =
                        node.operands.iter().map(|operand| values[operand.index()]).collect();
                    let types = network.results(id).map(|value| network.ty(value).clone()).collect();
                    let copy = self.graph.append(op.clone(), &operands, types, source);
                    values.extend(self.graph.results(copy));
                }
            }
        }
        values
    }

    pub(crate) fn name_of(&self, at: usize) -> String {
        self.names[at].clone()
    }
}
