//! The cost graph of a grouped network.

use std::collections::{BTreeSet, HashMap};

use super::class::class_work;
use super::roofline::group_work;
use super::{KindProfile, Profile, Rates};
use crate::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use crate::error::{Error, Result};
use crate::ir::{Graph, NodeId, Op, Phase, SourceId, ValueId};
use crate::kernel::{
    Fused, Group, GroupId, Grouping, digest, group_workspace, group_workspace_on_gpu, in_place,
};
use crate::topology::Topology;
use crate::units::{Bytes, Nanos};

/// What a node of the cost graph stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A graph input.
    Input(ValueId),
    /// A parameter or constant.
    Data(ValueId),
    /// A group.
    Group(GroupId),
}

/// A cost graph and what its parts stand for.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The cost graph.
    pub graph: CostGraph,
    /// By cost node.
    pub origins: Vec<Origin>,
    /// By tensor: the value that it is.
    pub values: Vec<ValueId>,
    /// By group: its cost node.
    pub group_nodes: Vec<NodeIx>,
}

/// Lowers a network whose dimensions are all bound and whose nodes are grouped.
///
/// The graph's kinds are the distinct (kind, rates) of the topology's devices, named as
/// [`Topology::kind_key`] names them; times are what `profile` has measured, where it has. Groups that hold
/// nodes of one source, or whose sources carry one mark, are colocated; a pin of any of their sources pins
/// them. O(nodes + edges).
///
/// Errors: a size that is not bound or overflows, two pins on one group.
pub fn lower(
    graph: &Graph,
    grouping: &Grouping,
    topology: &Topology,
    profile: Option<&Profile>,
) -> Result<Lowered> {
    let (kinds, rates) = kinds_of(topology);
    let measured = kinds.iter().map(|kind| profile.and_then(|profile| profile.kind(kind))).collect();
    let mut lowering = Lowering {
        graph,
        grouping,
        workspace: workspace_of(topology),
        rates,
        measured,
        names: HashMap::new(),
        builder: Builder::new(graph.name.clone(), kinds),
        origins: Vec::new(),
        values: Vec::new(),
        tensor_of: vec![None; graph.value_count()],
    };
    lowering.add_inputs()?;
    let classes = colocation_classes(graph, grouping);
    lowering.add_data(&classes)?;
    let group_nodes = lowering.add_groups(&classes)?;
    lowering.set_updates();
    lowering.set_forward(&group_nodes);
    for (_, value) in graph.outputs() {
        let base = grouping.base[value.index()];
        if let Some((node, output)) = lowering.tensor_of[base.index()] {
            lowering.builder.set_result(node, output);
        }
    }
    let Lowering { builder, origins, values, .. } = lowering;
    Ok(Lowered { graph: builder.finish()?, origins, values, group_nodes })
}

/// Kind names and rates, in the order in which the devices first show them.
fn kinds_of(topology: &Topology) -> (Vec<String>, Vec<Rates>) {
    let mut kinds: Vec<String> = Vec::new();
    let mut rates = Vec::new();
    let mut seen = BTreeSet::new();
    for (device, key) in topology.ids().zip(topology.kind_keys()) {
        if seen.insert(key.clone()) {
            kinds.push(key);
            rates.push(Rates::of(topology, device));
        }
    }
    (kinds, rates)
}

/// How much workspace a group has: with what a library of products needs where one of the devices is a GPU, whichever
/// device runs the group.
fn workspace_of(topology: &Topology) -> fn(&Graph, &Fused<'_>) -> Bytes {
    match topology.has_accelerators() {
        true => group_workspace_on_gpu,
        false => group_workspace,
    }
}

struct Lowering<'a> {
    graph: &'a Graph,
    grouping: &'a Grouping,
    workspace: fn(&Graph, &Fused<'_>) -> Bytes,
    rates: Vec<Rates>,
    /// By kind: what a profile says of it.
    measured: Vec<Option<&'a KindProfile>>,
    names: HashMap<String, u32>,
    builder: Builder,
    origins: Vec<Origin>,
    values: Vec<ValueId>,
    /// By value: the cost node and output that it is.
    tensor_of: Vec<Option<(NodeIx, u32)>>,
}

impl Lowering<'_> {
    fn add_inputs(&mut self) -> Result<()> {
        for (name, value) in self.graph.inputs() {
            let bytes = self.bytes(*value)?;
            let name = self.unique(name);
            let pin = self.graph.source(self.graph.maker(*value).source).pin.clone();
            let spec = NodeSpec {
                name: &name,
                op: "input",
                outputs: &[bytes],
                pin: pin.as_deref(),
                ..NodeSpec::default()
            };
            self.add(&spec, Origin::Input(*value), &[*value])?;
        }
        Ok(())
    }

    /// Parameters and constants that some group reads, or that are outputs themselves.
    fn add_data(&mut self, classes: &[Option<u32>]) -> Result<()> {
        let mut used = vec![false; self.graph.value_count()];
        let reads = self.grouping.groups.iter().flat_map(|group| &group.reads);
        let outputs = self.graph.outputs().iter().map(|(_, value)| &self.grouping.base[value.index()]);
        for value in reads.chain(outputs) {
            used[value.index()] = true;
        }
        for node in self.graph.node_ids() {
            let data = self.graph.node(node);
            if self.is_state(&data.op) {
                self.add_state(data.first_result, classes)?;
                continue;
            }
            if !matches!(data.op, Op::Param(_) | Op::Constant(_)) || !used[data.first_result.index()] {
                continue;
            }
            let bytes = self.bytes(data.first_result)?;
            let name = match data.op {
                Op::Param(param) => self.graph.param(param).name.clone(),
                _ => self.graph.source(data.source).name.clone(),
            };
            let name = self.unique(&name);
            let spec = NodeSpec {
                name: &name,
                op: "param",
                param_bytes: bytes,
                outputs: &[bytes],
                ..NodeSpec::default()
            };
            self.add(&spec, Origin::Data(data.first_result), &[data.first_result])?;
        }
        Ok(())
    }

    fn is_state(&self, op: &Op) -> bool {
        matches!(op, Op::Param(param) if self.graph.param(*param).update.is_some())
    }

    /// A parameter that an output takes the place of: it goes with the group that makes that one.
    fn add_state(&mut self, value: ValueId, classes: &[Option<u32>]) -> Result<()> {
        let Op::Param(id) = self.graph.maker(value).op else { return Ok(()) };
        let param = self.graph.param(id);
        let bytes = self.bytes(value)?;
        let new = param.update.map(|output| self.graph.outputs()[output as usize].1);
        let base = new.map(|new| self.grouping.base[new.index()]);
        let group = base.and_then(|base| self.grouping.group_of[self.graph.value(base).node.index()]);
        let class = group.and_then(|group| classes[group.index()]).map(|class| class.to_string());
        let name = self.unique(&param.name);
        let spec = NodeSpec {
            name: &name,
            op: "input",
            outputs: &[bytes],
            colocate: class.as_deref(),
            ..NodeSpec::default()
        };
        self.add(&spec, Origin::Input(value), &[value])?;
        Ok(())
    }

    /// Which tensor takes the place of which state.
    fn set_updates(&mut self) {
        for param in self.graph.params() {
            let Some(output) = param.update else { continue };
            let new = self.grouping.base[self.graph.outputs()[output as usize].1.index()];
            let state = self.graph.node(param.node).first_result;
            if let (Some((node, output)), Some((input, _))) =
                (self.tensor_of[new.index()], self.tensor_of[state.index()])
                && self.grouping.group_of[self.graph.value(new).node.index()].is_some()
            {
                self.builder.set_update(input, node, output);
            }
        }
    }

    /// Names, for each group of the backward pass and the updates, the first group of its forward
    /// source.
    fn set_forward(&mut self, group_nodes: &[NodeIx]) {
        let mut first: Vec<Option<u32>> = vec![None; self.graph.sources().len()];
        for (index, group) in self.grouping.groups.iter().enumerate() {
            for &node in &group.nodes {
                first[self.graph.node(node).source.index()].get_or_insert(index as u32);
            }
        }
        for (index, group) in self.grouping.groups.iter().enumerate() {
            let forward = group.nodes.iter().rev().find_map(|&node| {
                let source = self.graph.source(self.graph.node(node).source);
                source.forward.and_then(|forward| first[forward.index()])
            });
            if let Some(forward) = forward.filter(|&forward| forward != index as u32) {
                self.builder.set_forward(group_nodes[index], group_nodes[forward as usize]);
            }
        }
    }

    /// Whether a group reads what steps write over.
    fn reads_state(&self, group: &Group) -> bool {
        group.reads.iter().any(|&value| self.is_state(&self.graph.maker(value).op))
    }

    fn is_backward(&self, group: &Group) -> bool {
        let phase = |node: &NodeId| self.graph.source(self.graph.node(*node).source).phase;
        group.nodes.iter().all(|node| phase(node) != Phase::Forward)
    }

    fn add_groups(&mut self, classes: &[Option<u32>]) -> Result<Vec<NodeIx>> {
        let mut nodes = Vec::with_capacity(self.grouping.groups.len());
        for (index, group) in self.grouping.groups.iter().enumerate() {
            let last =
                *group.nodes.last().ok_or_else(|| Error::Internal(format!("group {index} is empty")))?;
            let source = self.graph.source(self.graph.node(last).source);
            let name = self.unique(&source.name);
            let view = self.grouping.slice(GroupId(index as u32)).filter(|_| !self.reads_state(group));
            let times = match view {
                Some(_) => vec![Some(Nanos::ZERO); self.rates.len()],
                None => self.times(group),
            };
            let outputs = group.writes.iter().map(|&value| self.bytes(value)).collect::<Result<Vec<_>>>()?;
            let class = classes[index].map(|class| class.to_string());
            let pin = self.pin_of(&group.nodes)?;
            let fused = self.grouping.fused(GroupId(index as u32));
            let spec = NodeSpec {
                name: &name,
                op: lead_op(self.graph, &group.nodes),
                times: &times,
                workspace: (self.workspace)(self.graph, &fused),
                in_place: &in_place(self.graph, &fused),
                outputs: &outputs,
                colocate: class.as_deref(),
                backward: self.is_backward(group),
                pin: pin.as_deref(),
                view,
                ..NodeSpec::default()
            };
            let node = self.add(&spec, Origin::Group(GroupId(index as u32)), &group.writes)?;
            for read in &group.reads {
                let (producer, output) = self.tensor_of[read.index()].ok_or_else(|| {
                    Error::Internal(format!("group {index} reads {read} before it is made"))
                })?;
                self.builder.connect(producer, output, node);
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    fn add(&mut self, spec: &NodeSpec<'_>, origin: Origin, values: &[ValueId]) -> Result<NodeIx> {
        let node = self.builder.add(spec)?;
        self.origins.push(origin);
        for (output, value) in values.iter().enumerate() {
            self.tensor_of[value.index()] = Some((node, output as u32));
            self.values.push(*value);
        }
        Ok(node)
    }

    /// By kind: the group's time, measured where there is a profile.
    fn times(&self, group: &Group) -> Vec<Option<Nanos>> {
        let base = &self.grouping.base;
        let work = group_work(self.graph, base, group);
        let classes = class_work(self.graph, base, group);
        // Digests are needed only where something was measured.
        if self.measured.iter().all(Option::is_none) {
            return self.rates.iter().map(|rates| Some(rates.time(&work, &classes))).collect();
        }
        let hash = digest(self.graph, base, group);
        let kinds = self.rates.iter().zip(&self.measured);
        kinds
            .map(|(rates, measured)| {
                Some(match measured {
                    Some(measured) => measured.time(hash, &classes, &work, rates),
                    None => rates.time(&work, &classes),
                })
            })
            .collect()
    }

    fn bytes(&self, value: ValueId) -> Result<Bytes> {
        self.graph.ty(value).bytes().ok_or_else(|| {
            let source = self.graph.source(self.graph.maker(value).source);
            Error::model(
                format!("node {}", source.name),
                "its result has a size that is not bound, or overflows",
            )
            .with_help("bind every dimension with --dim NAME=N")
        })
    }

    /// The pin of the nodes' sources; two different ones are an error.
    fn pin_of(&self, nodes: &[NodeId]) -> Result<Option<String>> {
        let mut pin: Option<&str> = None;
        for &node in nodes {
            let source = self.graph.source(self.graph.node(node).source);
            match (pin, source.pin.as_deref()) {
                (Some(one), Some(other)) if one != other => {
                    return Err(Error::Internal(format!("node {} is fused across pins", source.name)));
                }
                (_, found) => pin = found.or(pin),
            }
        }
        Ok(pin.map(str::to_owned))
    }

    /// `name`, or `name#2`, `name#3`, ... where it is taken.
    fn unique(&mut self, name: &str) -> String {
        // A file may leave names out; those of cost graphs are none of them empty.
        let name = if name.is_empty() { "unnamed" } else { name };
        let mut candidate = name.to_owned();
        while let Some(count) = self.names.get_mut(&candidate) {
            *count += 1;
            candidate = format!("{name}#{count}");
        }
        self.names.insert(candidate.clone(), 1);
        candidate
    }
}

/// The op that gives the group its character: its first node's that is not elementwise, or its
/// last node's.
fn lead_op(graph: &Graph, nodes: &[NodeId]) -> &'static str {
    let primitive = nodes.iter().find(|&&node| !graph.node(node).op.is_elementwise());
    primitive.or(nodes.last()).map_or("map", |&node| graph.node(node).op.name())
}

/// By group: the class of groups that go together, where there is more than one in it.
fn colocation_classes(graph: &Graph, grouping: &Grouping) -> Vec<Option<u32>> {
    let groups = grouping.groups.len();
    let mut classes = petgraph::unionfind::UnionFind::<u32>::new(groups);
    let mut first_of_source: Vec<Option<u32>> = vec![None; graph.sources().len()];
    let mut first_of_mark: HashMap<&str, u32> = HashMap::new();
    let mut join = |slot: &mut Option<u32>, group: u32| match *slot {
        Some(first) => {
            classes.union(first, group);
        }
        None => *slot = Some(group),
    };
    for (index, group) in grouping.groups.iter().enumerate() {
        for &node in &group.nodes {
            let SourceId(source) = graph.node(node).source;
            join(&mut first_of_source[source as usize], index as u32);
            if let Some(mark) = &graph.sources()[source as usize].colocate {
                let mut slot = first_of_mark.get(mark.as_str()).copied();
                join(&mut slot, index as u32);
                if let Some(first) = slot {
                    first_of_mark.insert(mark, first);
                }
            }
        }
    }
    let labels = classes.into_labeling();
    let mut members = vec![0u32; groups];
    for &label in &labels {
        members[label as usize] += 1;
    }
    // What replaces a parameter goes with it: it needs a class also where it is alone.
    for (output, param) in graph.outputs().iter().zip(graph.updates()) {
        let base = grouping.base[output.1.index()];
        if let (Some(_), Some(group)) = (param, grouping.group_of[graph.value(base).node.index()]) {
            members[labels[group.index()] as usize] += 1;
        }
    }
    labels.into_iter().map(|label| (members[label as usize] > 1).then_some(label)).collect()
}
