//! Data parallel training: the network once for each part of the batch, on devices side by side, with
//! one loss and one gradient.
//!
//! The batch is cut into *shards*, in order and as evenly as it goes. Gradients of the shards are added
//! in the order of the shards whatever the devices, so the parameters have the same bits for any number
//! of replicas that divides the number of shards, from run to run and for any number of threads.

use std::fmt;
use std::str::FromStr;

use super::noise::disturb;
use super::optimizer::Scalars;
use super::statistics::{Moved, batch_statistics};
use super::step::{LOSS, Recipe, Step, Target, batch_of, targets, trainable, update_source};
use crate::error::{Error, Result};
use crate::ir::{Graph, Op, ParamId, Phase, Shape, Source, SourceId, SourceRole, Type, ValueId};
use crate::pass::gradient::build::Build;
use crate::pass::gradient::{gradient, unroll};
use crate::topology::Topology;

/// How replicas come to one gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// Every replica holds the parameters and updates them alike. A large gradient is cut into a part
    /// for each replica, which adds that part up and sends the sum to all others: what each sends and
    /// receives is that of a ring. Small ones are added up whole, by the replica with the least to do.
    #[default]
    AllReduce,
    /// Every parameter, with what its optimizer keeps, lives on one replica, which adds its gradients
    /// up, updates it, and sends it to the others in each step. Parameters are spread by their bytes.
    Server,
    /// The same, spread one by one in the network's order.
    ServerRoundRobin,
}

impl FromStr for Sync {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "allreduce" => Ok(Self::AllReduce),
            "ps" => Ok(Self::Server),
            "ps:round-robin" => Ok(Self::ServerRoundRobin),
            _ => Err(Error::usage(format!("--sync {text}"), "there is no such way")
                .with_help("allreduce, ps, ps:round-robin")),
        }
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "allreduce",
            Self::Server => "ps",
            Self::ServerRoundRobin => "ps:round-robin",
        })
    }
}

/// How a step is spread over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// How many; each on a device of its own.
    pub count: usize,
    /// Into how many parts the batch is cut; a multiple of `count`.
    pub shards: usize,
    /// How they come to one gradient.
    pub sync: Sync,
}

impl Replicas {
    /// One shard for each replica.
    pub const fn new(count: usize) -> Self {
        Self { count, shards: count, sync: Sync::AllReduce }
    }

    /// The devices of the replicas, in the specification's order.
    ///
    /// Errors: none or more replicas than devices; shards that the replicas do not divide, or more than
    /// samples.
    pub(super) fn devices(&self, topology: &Topology, batch: i64) -> Result<Vec<String>> {
        let place = || format!("--replicas {}", self.count);
        if self.count == 0 || self.count > topology.len() {
            let message = format!("there are {} devices", topology.len());
            return Err(Error::usage(place(), message).with_help("--devices with one for each replica"));
        }
        if self.shards == 0 || !self.shards.is_multiple_of(self.count) || self.shards as i64 > batch {
            let message = format!(
                "{} shards of a batch of {batch}: expected a multiple, at most the batch",
                self.shards
            );
            return Err(Error::usage(place(), message).with_help("--shards N, --batch N"));
        }
        Ok(topology.devices.iter().take(self.count).map(|device| device.name.clone()).collect())
    }
}

/// Gradients of fewer elements than this are added up whole.
const WHOLE: u64 = 1 << 16;

/// The name of a replica's parameter; the first replica's is the network's own.
fn replica_name(replica: usize, name: &str) -> String {
    if replica == 0 { name.to_owned() } else { format!("replica{replica}/{name}") }
}

/// The network's own name of a replica's parameter.
pub(super) fn base_name(name: &str) -> &str {
    let inner = name.strip_prefix("replica").and_then(|rest| rest.split_once('/'));
    match inner {
        Some((number, own)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => own,
        _ => name,
    }
}

/// The training step of a batch over replicas; `bound` gives the network for a number of samples.
///
/// Errors: those of [`training_step`](super::training_step), for each size of a shard.
pub(super) fn replicated_step(
    batch: i64,
    bound: &dyn Fn(i64) -> Result<Graph>,
    recipe: &Recipe,
    replicas: &Replicas,
    devices: &[String],
) -> Result<Step> {
    let (count, shards) = (replicas.count, replicas.shards as i64);
    let sizes: Vec<i64> =
        (0..shards).map(|shard| (shard + 1) * batch / shards - shard * batch / shards).collect();
    let mut networks: Vec<(i64, Network)> = Vec::new();
    for &size in &sizes {
        if networks.iter().all(|(known, _)| *known != size) {
            networks.push((size, Network::new(bound(size)?)?));
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
    let mut step = Replicated::new(&whole, first, &targets, replicas, devices);
    for (shard, &size) in sizes.iter().enumerate() {
        let start = sizes[..shard].iter().sum();
        step.add_shard(network(size)?, shard, (start, size, batch), recipe, &targets)?;
    }
    let trained = step.finish(first, recipe, &whole, count)?;
    Ok(Step { graph: step.graph, targets, trained, disturbed })
}

/// The network of a shard, as it trains.
struct Network {
    graph: Graph,
    moved: Vec<Moved>,
}

impl Network {
    fn new(mut graph: Graph) -> Result<Self> {
        unroll(&mut graph)?;
        let batch = batch_of(&graph);
        disturb(&mut graph, batch)?;
        let moved = batch_statistics(&mut graph)?;
        Ok(Self { graph, moved })
    }
}

/// The graph of all replicas as it grows.
struct Replicated<'a> {
    graph: Graph,
    replicas: &'a Replicas,
    devices: &'a [String],
    /// By replica, then by parameter of the network: its value. One list where they share them.
    params: Vec<Vec<ValueId>>,
    /// Inputs of the whole batch, then targets.
    inputs: Vec<ValueId>,
    losses: Vec<ValueId>,
    /// By shard, then by output of the network.
    outputs: Vec<Vec<ValueId>>,
    /// By shard, then by parameter: its gradient, or the value that it is to have.
    gradients: Vec<Vec<Option<ValueId>>>,
    /// By parameter: the source of the first shard that reads it.
    readers: Vec<Option<SourceId>>,
    trainable: Vec<bool>,
    /// By device: bytes that it adds up or keeps.
    load: Vec<u64>,
}

impl<'a> Replicated<'a> {
    fn new(
        whole: &Graph,
        network: &Network,
        targets: &[Target],
        replicas: &'a Replicas,
        devices: &'a [String],
    ) -> Self {
        let mut graph = Graph::new(whole.name.clone());
        let mut inputs = Vec::new();
        for (name, value) in whole.inputs() {
            let source = graph.add_source(Source::new(name.clone(), "input", SourceRole::Data));
            inputs.push(graph.add_input(name.clone(), whole.ty(*value).clone(), source));
        }
        for target in targets {
            let source = graph.add_source(Source::new(target.name.clone(), "target", SourceRole::Data));
            let ty = Type::new(target.dtype, Shape::known(&target.dims));
            inputs.push(graph.add_input(target.name.clone(), ty, source));
        }
        let sets = if replicas.sync == Sync::AllReduce { replicas.count } else { 1 };
        let mut params = Vec::new();
        for replica in 0..sets {
            let add = |param: &crate::ir::Param| {
                let ty = network.graph.ty(network.graph.node(param.node).first_result).clone();
                let name = replica_name(replica, &param.name);
                let source = graph.add_source(Source::new(name.clone(), "weight", SourceRole::Data));
                graph.add_param(name, ty, param.init.clone(), param.data.clone(), source)
            };
            params.push(network.graph.params().iter().map(add).collect());
        }
        Self {
            graph,
            replicas,
            devices,
            params,
            inputs,
            losses: Vec::new(),
            outputs: Vec::new(),
            gradients: Vec::new(),
            readers: vec![None; network.graph.params().len()],
            trainable: Vec::new(),
            load: vec![0; devices.len()],
        }
    }

    /// The replica that a shard belongs to.
    fn replica(&self, shard: usize) -> usize {
        shard * self.replicas.count / self.replicas.shards.max(1)
    }

    fn source(&mut self, name: String, op: &str, device: usize) -> SourceId {
        let pin = Some(self.devices[device].clone());
        self.graph.add_source(Source { pin, ..Source::new(name, op, SourceRole::Node) })
    }

    /// The sources of a network for a shard.
    fn sources(&mut self, network: &Graph, shard: usize, device: usize) -> Vec<SourceId> {
        let first = self.graph.sources().len() as u32;
        for source in network.sources() {
            let name = if shard == 0 { source.name.clone() } else { format!("{}@{shard}", source.name) };
            self.graph.add_source(Source {
                name,
                pin: Some(self.devices[device].clone()),
                colocate: None,
                consumer: None,
                forward: source.forward.map(|forward| SourceId(first + forward.0)),
                ..source.clone()
            });
        }
        (first..self.graph.sources().len() as u32).map(SourceId).collect()
    }

    fn add_shard(
        &mut self,
        network: &Network,
        shard: usize,
        (start, size, batch): (i64, i64, i64),
        recipe: &Recipe,
        targets: &[Target],
    ) -> Result<()> {
        let device = self.replica(shard);
        let split = self.graph.add_source(Source::new(format!("shard {shard}"), "slice", SourceRole::Node));
        let mut parts = Vec::new();
        for input in self.inputs.clone() {
            let mut b = Build { graph: &mut self.graph, source: split };
            parts.push(if size == batch { input } else { b.part(input, 0, start, size)? });
        }
        let set = if self.params.len() == 1 { 0 } else { device };
        let sources = self.sources(&network.graph, shard, device);
        let values = self.copy(&network.graph, &sources, &parts, set);
        let outputs: Vec<ValueId> =
            network.graph.outputs().iter().map(|(_, value)| values[value.index()]).collect();
        let source = self.source(format!("loss@{shard}"), "loss", device);
        let inputs = network.graph.inputs().len();
        let mut b = Build { graph: &mut self.graph, source };
        let mut total: Option<ValueId> = None;
        for (&output, &target) in outputs.iter().zip(&parts[inputs..inputs + targets.len()]) {
            let each = recipe.loss.per_sample(&mut b, output, target)?;
            let sum = b.sum(each, &[0], false)?;
            total = Some(match total {
                Some(total) => b.add(total, sum)?,
                None => sum,
            });
        }
        let total = total.ok_or_else(|| Error::usage("model", "it has no output to train"))?;
        let loss = b.scale(total, 1.0 / batch as f64)?;
        if shard == 0 {
            self.first_shard(network, recipe, &sources)?;
        }
        let of: Vec<ValueId> = self.params[set].clone();
        let mut found = gradient(&mut self.graph, loss, &of)?;
        for (gradient, trainable) in found.iter_mut().zip(&self.trainable) {
            *gradient = gradient.filter(|_| *trainable);
        }
        for moved in &network.moved {
            found[moved.param.index()] = Some(values[moved.value.index()]);
        }
        self.gradients.push(found);
        self.losses.push(loss);
        self.outputs.push(outputs);
        Ok(())
    }

    fn first_shard(&mut self, network: &Network, recipe: &Recipe, sources: &[SourceId]) -> Result<()> {
        let graph = &network.graph;
        let wanted = trainable(graph, &recipe.freeze)?;
        self.trainable = vec![false; graph.params().len()];
        wanted.iter().for_each(|id| self.trainable[id.index()] = true);
        for node in graph.node_ids() {
            for &operand in &graph.node(node).operands {
                if let Op::Param(id) = graph.maker(operand).op {
                    self.readers[id.index()].get_or_insert(sources[graph.node(node).source.index()]);
                }
            }
        }
        Ok(())
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
                Op::Param(param) => values.push(self.params[set][param.index()]),
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

    /// Sums, updates, outputs; how many parameters are trained.
    fn finish(&mut self, network: &Network, recipe: &Recipe, whole: &Graph, count: usize) -> Result<usize> {
        let all = self.source("loss".to_owned(), "loss", 0);
        let losses = self.losses.clone();
        let loss = self.sum_of(&losses, all)?;
        let mut outputs = vec![(LOSS.to_owned(), loss)];
        if recipe.outputs {
            for (position, (name, _)) in whole.outputs().iter().enumerate() {
                let parts: Vec<ValueId> = self.outputs.iter().map(|shard| shard[position]).collect();
                let value = Build { graph: &mut self.graph, source: all }.concat(&parts, 0)?;
                outputs.push((name.clone(), value));
            }
        }
        self.graph.set_outputs(outputs);
        let sets = self.params.len();
        // By set: what its updates take.
        let mut gradients: Vec<Vec<(ParamId, SourceId, ValueId)>> = vec![Vec::new(); sets];
        let mut trained = 0;
        for at in 0..network.graph.params().len() {
            let parts: Vec<ValueId> = self.gradients.iter().filter_map(|shard| shard[at]).collect();
            if parts.len() != self.gradients.len() {
                continue;
            }
            let statistic = network.graph.params()[at].statistic.is_some();
            trained += usize::from(!statistic);
            let sums = self.reduce(at, &parts, count)?;
            for (set, &sum) in sums.iter().enumerate() {
                let (id, source) = self.update_of(set, at, sum)?;
                if statistic {
                    let mut b = Build { graph: &mut self.graph, source };
                    let mean = b.scale(sum, 1.0 / parts.len() as f64)?;
                    self.graph.update_param(id, mean)?;
                } else {
                    gradients[set].push((id, source, sum));
                }
            }
        }
        self.update(recipe, gradients)?;
        if trained == 0 {
            return Err(Error::usage("model", "the loss depends on no parameter that is trained"));
        }
        Ok(trained)
    }

    fn update(&mut self, recipe: &Recipe, gradients: Vec<Vec<(ParamId, SourceId, ValueId)>>) -> Result<()> {
        let Some(&(_, _, any)) = gradients.first().and_then(|list| list.first()) else { return Ok(()) };
        let hyper = self.graph.add_source(Source::new("optimizer", "optimizer", SourceRole::Data));
        let dtype = self.graph.ty(any).dtype;
        let mut b = Build { graph: &mut self.graph, source: hyper };
        let scalars = Scalars::add(&mut b, &recipe.updates, dtype);
        for mut list in gradients {
            recipe.updates.accumulate(&mut b, &scalars, &mut list)?;
            recipe.updates.clip(&mut b, &mut list)?;
            for (id, source, gradient) in list {
                b.source = source;
                recipe.updates.apply(&mut b, &scalars, id, gradient)?;
            }
        }
        Ok(())
    }

    /// The parameter of a set, and the source of its update: on the set's device, or where the sum is.
    fn update_of(&mut self, set: usize, at: usize, sum: ValueId) -> Result<(ParamId, SourceId)> {
        let Op::Param(id) = self.graph.maker(self.params[set][at]).op else {
            return Err(Error::Internal("a parameter that is none".into()));
        };
        let forward = self.readers[at].unwrap_or(self.graph.maker(sum).source);
        let pin = match self.params.len() {
            1 => self.graph.source(self.graph.maker(sum).source).pin.clone(),
            _ => Some(self.devices[set].clone()),
        };
        let source = update_source(&mut self.graph, id, forward);
        self.graph.source_mut(source).pin = pin;
        Ok((id, source))
    }

    /// The sum of the shards' gradients, in their order: for each set of parameters a value on its
    /// device, which may be one and the same.
    fn reduce(&mut self, at: usize, parts: &[ValueId], count: usize) -> Result<Vec<ValueId>> {
        let ty = self.graph.ty(parts[0]).clone();
        let elements = ty.elements().unwrap_or(0);
        let bytes = ty.bytes().map_or(0, |bytes| bytes.get());
        let sets = self.params.len();
        if sets == 1 || count == 1 || elements < WHOLE {
            let owner = self.owner(at, bytes);
            let name = format!("{}/sum", self.name_of(at));
            let source = self.backward(name, at, owner);
            let sum = self.sum_of(parts, source)?;
            return Ok(vec![sum; sets]);
        }
        let mut sums = Vec::with_capacity(count);
        for owner in 0..count {
            let (start, end) =
                (elements * owner as u64 / count as u64, elements * (owner as u64 + 1) / count as u64);
            let mut chunks = Vec::with_capacity(parts.len());
            for (shard, &part) in parts.iter().enumerate() {
                let device = self.replica(shard);
                let name = format!("{}/part {owner}@{shard}", self.name_of(at));
                let source = self.backward(name, at, device);
                let mut b = Build { graph: &mut self.graph, source };
                let flat = b.reshape(part, &[elements as i64])?;
                chunks.push(b.part(flat, 0, start as i64, (end - start) as i64)?);
            }
            let source = self.backward(format!("{}/sum {owner}", self.name_of(at)), at, owner);
            sums.push(self.sum_of(&chunks, source)?);
        }
        let dims = ty.shape.dims().unwrap_or_default();
        let mut gathered = Vec::with_capacity(count);
        for replica in 0..count {
            let source = self.backward(format!("{}/gather@{replica}", self.name_of(at)), at, replica);
            let mut b = Build { graph: &mut self.graph, source };
            let flat = b.concat(&sums, 0)?;
            gathered.push(b.reshape(flat, &dims)?);
        }
        Ok(gathered)
    }

    fn name_of(&self, at: usize) -> String {
        match self.graph.maker(self.params[0][at]).op {
            Op::Param(id) => self.graph.param(id).name.clone(),
            _ => String::new(),
        }
    }

    /// A source of the backward pass on a device.
    fn backward(&mut self, name: String, at: usize, device: usize) -> SourceId {
        let pin = Some(self.devices[device].clone());
        let (forward, phase) = (self.readers[at], Phase::Backward);
        let source = Source { pin, forward, phase, ..Source::new(name, "all-reduce", SourceRole::Node) };
        self.graph.add_source(source)
    }

    /// Who adds a gradient up: the device with the least to do so far, or the next one.
    fn owner(&mut self, at: usize, bytes: u64) -> usize {
        let owner = match self.replicas.sync {
            Sync::ServerRoundRobin => at % self.devices.len().max(1),
            Sync::AllReduce | Sync::Server => {
                (0..self.load.len()).min_by_key(|&device| self.load[device]).unwrap_or(0)
            }
        };
        self.load[owner] = self.load[owner].saturating_add(bytes);
        owner
    }

    /// One after the other.
    fn sum_of(&mut self, parts: &[ValueId], source: SourceId) -> Result<ValueId> {
        let mut b = Build { graph: &mut self.graph, source };
        let mut sum = parts[0];
        for &part in &parts[1..] {
            sum = b.add(sum, part)?;
        }
        Ok(sum)
    }
}
