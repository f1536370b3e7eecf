//! The cost graph: what the planner sees of a network, and what other engines build.
//!
//! Flat arrays with typed indices. A node has a time on each device kind, parameter bytes, a workspace and
//! output tensors. A tensor has bytes, a producer and consumers. Operations, files and devices are not
//! known here.
//!
//! Built once by a [`Builder`] or from [`Columns`], then immutable. The node order is the builder's; it need not be
//! topological. 50 to 100 bytes a node.

mod builder;
mod columns;
pub mod derive;
mod frugal;
pub mod microbatch;
mod names;
mod visit;

pub use builder::{Builder, NodeSpec};
pub use columns::Columns;
pub(crate) use frugal::frugal_order;
pub use visit::{Neighbors, Visited};

use std::collections::HashSet;

use crate::csr::Csr;
use crate::units::{Bytes, Nanos};

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The position as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index! {
    /// A node's position in the graph.
    NodeIx
}
index! {
    /// A tensor's position in the graph: one output of one node.
    TensorIx
}
index! {
    /// A parameter's position in the graph; tied `param` nodes share one.
    ParamIx
}

/// What a node is to the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Runs in the step.
    Compute,
    /// Loaded before the step; held by each device that reads it. Floats: it follows its consumers.
    Param,
    /// Handed over before the step, on one device.
    Input,
}

impl Role {
    /// What an operation of this name is.
    fn of(op: &str) -> Self {
        match op {
            "param" => Self::Param,
            "input" => Self::Input,
            _ => Self::Compute,
        }
    }
}

/// The graph. See the module's documentation for what holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostGraph {
    /// The network's name.
    pub name: String,
    /// Device kinds that times are given for.
    pub kinds: Vec<String>,
    names: String,
    name_ends: Vec<u32>,
    ops: Vec<u16>,
    op_names: Vec<String>,
    roles: Vec<Role>,
    /// Row-major by (node, kind); `u64::MAX`: that kind cannot run it.
    times: Vec<u64>,
    owned: Vec<u64>,
    workspace: Vec<u64>,
    params: Vec<u32>,
    param_bytes: Vec<u64>,
    param_names: Vec<String>,
    colocate: Vec<u32>,
    colocation_classes: u32,
    forward: Vec<u32>,
    backward: Vec<bool>,
    pins: Vec<(NodeIx, String)>,
    /// (node, input, output), ascending by node.
    in_place: Vec<(NodeIx, u32, u32)>,
    /// (tensor made in the step, input tensor whose place it takes after it), ascending.
    updates: Vec<(TensorIx, TensorIx)>,
    /// (node whose output is a part of its input, where that begins), ascending.
    views: Vec<(NodeIx, u64)>,
    output_start: Vec<u32>,
    tensor_bytes: Vec<u64>,
    tensor_node: Vec<u32>,
    tensor_is_result: Vec<bool>,
    consumers: Csr<NodeIx>,
    inputs: Csr<TensorIx>,
}

const NONE: u32 = u32::MAX;

fn some(raw: u32) -> Option<u32> {
    (raw != NONE).then_some(raw)
}

impl CostGraph {
    /// Number of nodes.
    pub fn node_count(&self) -> usize {
        self.roles.len()
    }

    /// Number of tensors.
    pub fn tensor_count(&self) -> usize {
        self.tensor_bytes.len()
    }

    /// Number of (tensor, consumer) pairs.
    pub fn edge_count(&self) -> usize {
        self.inputs.entries().len()
    }

    /// Number of distinct parameters, tied ones counted once.
    pub fn param_count(&self) -> usize {
        self.param_bytes.len()
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeIx> + DoubleEndedIterator + use<> {
        (0..self.node_count() as u32).map(NodeIx)
    }

    /// All tensors, in order of their producers.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorIx> + DoubleEndedIterator + use<> {
        (0..self.tensor_count() as u32).map(TensorIx)
    }

    /// The node's id in the source.
    pub fn node_name(&self, node: NodeIx) -> &str {
        let start = if node.0 == 0 { 0 } else { self.name_ends[node.index() - 1] as usize };
        &self.names[start..self.name_ends[node.index()] as usize]
    }

    /// The node's operation, for people to read.
    pub fn op(&self, node: NodeIx) -> &str {
        &self.op_names[self.ops[node.index()] as usize]
    }

    /// What the node is to the planner.
    pub fn role(&self, node: NodeIx) -> Role {
        self.roles[node.index()]
    }

    /// The position of a device kind in [`CostGraph::kinds`].
    pub fn kind(&self, name: &str) -> Option<usize> {
        self.kinds.iter().position(|kind| kind == name)
    }

    /// The node's time on a kind of device; none where that kind cannot run it.
    pub fn time(&self, node: NodeIx, kind: usize) -> Option<Nanos> {
        let time = self.times[node.index() * self.kinds.len() + kind];
        (time != u64::MAX).then_some(Nanos(time))
    }

    /// Bytes that live with the node wherever it is placed (parameters, state of its own).
    /// Zero for a [`Role::Param`] node, whose bytes are [`CostGraph::param_bytes`].
    pub fn owned_bytes(&self, node: NodeIx) -> Bytes {
        Bytes(self.owned[node.index()])
    }

    /// Bytes that the node needs only while it runs.
    pub fn workspace_bytes(&self, node: NodeIx) -> Bytes {
        Bytes(self.workspace[node.index()])
    }

    /// The parameter that a [`Role::Param`] node stands for.
    pub fn param(&self, node: NodeIx) -> Option<ParamIx> {
        some(self.params[node.index()]).map(ParamIx)
    }

    /// A parameter's bytes on each device that holds it.
    pub fn param_bytes(&self, param: ParamIx) -> Bytes {
        Bytes(self.param_bytes[param.index()])
    }

    /// A parameter's name: the tie's where there is one, else its node's.
    pub fn param_name(&self, param: ParamIx) -> &str {
        &self.param_names[param.index()]
    }

    /// The colocation class: nodes of one class go together. Classes are numbered from 0.
    pub fn colocation(&self, node: NodeIx) -> Option<u32> {
        some(self.colocate[node.index()])
    }

    /// Number of colocation classes.
    pub fn colocation_classes(&self) -> u32 {
        self.colocation_classes
    }

    /// The forward node whose backward or update this one is: it prefers that one's device.
    pub fn forward(&self, node: NodeIx) -> Option<NodeIx> {
        some(self.forward[node.index()]).map(NodeIx)
    }

    /// True for nodes of the backward pass.
    pub fn is_backward(&self, node: NodeIx) -> bool {
        self.backward[node.index()]
    }

    /// Nodes that the source itself pins to a device, by the device's name.
    pub fn pins(&self) -> &[(NodeIx, String)] {
        &self.pins
    }

    /// By parameter: whether it is that of one node only, whose name it has. Others go by their own names, each once.
    /// O(nodes).
    pub(crate) fn own_params(&self) -> Vec<bool> {
        let mut nodes = vec![0u32; self.param_count()];
        let mut is_named = vec![false; self.param_count()];
        for (node, param) in self.nodes().filter_map(|node| Some((node, self.param(node)?))) {
            nodes[param.index()] += 1;
            is_named[param.index()] = self.node_name(node) == self.param_name(param);
        }
        nodes.iter().zip(is_named).map(|(&nodes, is_named)| nodes == 1 && is_named).collect()
    }

    /// (input, output) pairs of which the output may be written where the input is, by their
    /// positions among [`CostGraph::inputs`] and [`CostGraph::outputs`], by output. O(log pairs).
    pub fn in_place(&self, node: NodeIx) -> impl Iterator<Item = (u32, u32)> + '_ {
        let first = self.in_place.partition_point(|&(other, ..)| other < node);
        let own = self.in_place[first..].iter().take_while(move |&&(other, ..)| other == node);
        own.map(|&(_, input, output)| (input, output))
    }

    /// Bytes of results that lie where operands lay that a launch is the last to read, each counted once: an operand `dies`
    /// with it. O(in-place pairs).
    pub(crate) fn saved_in_place(&self, node: NodeIx, dies: impl Fn(&TensorIx) -> bool) -> u64 {
        let (mut operands, mut last) = (HashSet::new(), None);
        let mut saved = 0u64;
        for (input, output) in self.in_place(node) {
            let Some(&operand) = self.inputs(node).get(input as usize) else { continue };
            let Some(result) = self.output(node, output) else { continue };
            // Pairs of one result follow each other.
            let is_new = last != Some(result) && !operands.contains(&operand);
            if is_new && dies(&operand) && self.updated(result).is_none() {
                saved = saved.saturating_add(self.tensor_bytes(result).0);
                operands.insert(operand);
                last = Some(result);
            }
        }
        saved
    }

    /// True where a tensor's bytes can be used again after its last reader.
    pub(crate) fn is_freed(&self, tensor: TensorIx) -> bool {
        self.role(self.producer(tensor)) == Role::Compute && !self.is_result(tensor)
    }

    /// Positions of the inputs in whose place a tensor may be written by the node that makes it. O(log pairs).
    fn in_place_of(&self, tensor: TensorIx) -> impl Iterator<Item = u32> + '_ {
        let (node, output) = (self.producer(tensor), self.output_index(tensor));
        let first = self.in_place.partition_point(|&(other, _, written)| (other, written) < (node, output));
        let own = self.in_place[first..].iter().take_while(move |pair| (pair.0, pair.2) == (node, output));
        own.map(|&(_, input, _)| input)
    }

    /// The state that a tensor takes the place of after the step: an input's tensor, as large, which
    /// goes with the node that makes the tensor. O(log updates).
    pub fn updated(&self, tensor: TensorIx) -> Option<TensorIx> {
        let found = self.updates.binary_search_by_key(&tensor, |&(new, _)| new).ok()?;
        Some(self.updates[found].1)
    }

    /// All (tensor, state) pairs of [`CostGraph::updated`], ascending.
    pub fn updates(&self) -> &[(TensorIx, TensorIx)] {
        &self.updates
    }

    /// The byte of a node's only input at which its only output begins, where that lies in the input's bytes and nothing
    /// runs for it. O(log views).
    pub fn view(&self, node: NodeIx) -> Option<u64> {
        let found = self.views.binary_search_by_key(&node, |&(node, _)| node).ok()?;
        Some(self.views[found].1)
    }

    /// Whether any node's output lies in its input.
    pub fn has_views(&self) -> bool {
        !self.views.is_empty()
    }

    /// The state in whose place a tensor can be written, where both are on one device and all others that read
    /// the state come before. O(pairs of the tensor + readers of the state).
    pub fn overwritten(&self, tensor: TensorIx) -> Option<TensorIx> {
        let state = self.updated(tensor)?;
        let node = self.producer(tensor);
        let own = self.in_place_of(tensor).any(|input| self.inputs(node)[input as usize] == state);
        // A state that is a result itself is still there when the step ends.
        (!self.is_result(state) && (own || !self.reads(node, state))).then_some(state)
    }

    /// Whether a node reads a tensor. O(readers of the tensor).
    pub(crate) fn reads(&self, node: NodeIx, tensor: TensorIx) -> bool {
        self.consumers(tensor).contains(&node)
    }

    /// Bytes that a tensor takes where it is made: none where it lies in another's.
    pub fn made_bytes(&self, tensor: TensorIx) -> Bytes {
        match self.view(self.producer(tensor)) {
            Some(_) => Bytes::ZERO,
            None => self.tensor_bytes(tensor),
        }
    }

    /// Whether a tensor cannot be where an input of its node is. O(log pairs).
    pub(crate) fn is_distinct(&self, tensor: TensorIx) -> bool {
        self.in_place_of(tensor).next().is_none()
    }

    /// The node's outputs that cannot be where one of its inputs is. O(outputs x log pairs).
    pub fn distinct_outputs(&self, node: NodeIx) -> impl Iterator<Item = TensorIx> + '_ {
        self.outputs(node).filter(|&tensor| self.is_distinct(tensor))
    }

    /// The node's outputs.
    pub fn outputs(&self, node: NodeIx) -> impl ExactSizeIterator<Item = TensorIx> + use<> {
        let range = self.output_start[node.index()]..self.output_start[node.index() + 1];
        range.map(TensorIx)
    }

    /// The node's output at a position.
    pub(crate) fn output(&self, node: NodeIx, position: u32) -> Option<TensorIx> {
        let tensor = self.output_start[node.index()].checked_add(position)?;
        (tensor < self.output_start[node.index() + 1]).then_some(TensorIx(tensor))
    }

    /// The node that makes a tensor.
    pub fn producer(&self, tensor: TensorIx) -> NodeIx {
        NodeIx(self.tensor_node[tensor.index()])
    }

    /// Position of a tensor among its producer's outputs.
    pub fn output_index(&self, tensor: TensorIx) -> u32 {
        tensor.0 - self.output_start[self.producer(tensor).index()]
    }

    /// A tensor's bytes.
    pub fn tensor_bytes(&self, tensor: TensorIx) -> Bytes {
        Bytes(self.tensor_bytes[tensor.index()])
    }

    /// True where the tensor must still be there when the step ends.
    pub fn is_result(&self, tensor: TensorIx) -> bool {
        self.tensor_is_result[tensor.index()]
    }

    /// The nodes that read a tensor, in ascending order, each once.
    pub fn consumers(&self, tensor: TensorIx) -> &[NodeIx] {
        self.consumers.row(tensor.index())
    }

    /// The tensors that a node reads, in the order in which its edges were given, each once.
    pub fn inputs(&self, node: NodeIx) -> &[TensorIx] {
        self.inputs.row(node.index())
    }

    /// A digest of all that the planner sees: XXH3, 128 bits, in hexadecimal. Equal graphs have
    /// equal digests on every machine. O(size).
    pub fn digest(&self) -> String {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        let mut text = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        text(&self.name);
        text(&self.names);
        self.kinds.iter().chain(&self.op_names).chain(&self.param_names).for_each(|one| text(one));
        self.pins.iter().for_each(|(_, device)| text(device));
        let mut words = |words: &mut dyn Iterator<Item = u64>| {
            words.for_each(|word| hash.update(&word.to_le_bytes()));
        };
        for list in [&self.times, &self.owned, &self.workspace, &self.param_bytes, &self.tensor_bytes] {
            words(&mut list.iter().copied());
        }
        for list in [&self.name_ends, &self.params, &self.colocate, &self.forward, &self.output_start] {
            words(&mut list.iter().map(|&word| word.into()));
        }
        words(&mut self.inputs.starts().iter().map(|&word| word.into()));
        words(&mut self.ops.iter().map(|&op| op.into()));
        words(&mut self.roles.iter().map(|&role| role as u64));
        words(&mut self.backward.iter().chain(&self.tensor_is_result).map(|&flag| flag.into()));
        words(&mut self.inputs.entries().iter().map(|tensor| tensor.0.into()));
        words(&mut self.pins.iter().map(|(node, _)| node.0.into()));
        words(
            &mut self
                .in_place
                .iter()
                .flat_map(|&(node, input, output)| [node.0, input, output].map(u64::from)),
        );
        words(&mut self.updates.iter().flat_map(|&(new, state)| [new.0, state.0].map(u64::from)));
        words(&mut self.views.iter().flat_map(|&(node, first)| [node.0.into(), first]));
        format!("{:032x}", hash.digest128())
    }
}
