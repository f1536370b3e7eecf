//! Derived graphs: their nodes are instances of a base graph's nodes.
//!
//! A pipeline runs each node once for every microbatch, recomputation runs some a second time. Both
//! are instances of a node in a graph of their own, which is placed, scheduled and simulated as any
//! other; what each instance and each tensor came from is kept, so that plans name the source.
//! Parameters keep their numbers and are shared by all instances.

use std::collections::HashMap;

use super::{CostGraph, NONE, NodeIx, TensorIx, some};
use crate::error::{Error, Result};

/// A run of a base graph's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance {
    /// The node of the base graph.
    pub node: NodeIx,
    /// The microbatch that it works on; none where it runs once for all of them.
    pub microbatch: Option<u32>,
    /// True where it makes again what an earlier instance has made.
    pub again: bool,
}

impl Instance {
    /// The node as it runs once in a step.
    pub const fn once(node: NodeIx) -> Self {
        Self { node, microbatch: None, again: false }
    }
}

/// A graph of instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    /// The instances as a cost graph. Names are the base's with the microbatch (`conv1@2`), and
    /// `again` for what is computed again (`conv1@2 again`).
    pub graph: CostGraph,
    instances: Vec<Instance>,
    tensors: Vec<TensorIx>,
    /// Nodes by ascending instance.
    sorted: Vec<NodeIx>,
    microbatches: u32,
}

impl Derived {
    /// What a node is an instance of.
    pub fn instance(&self, node: NodeIx) -> Instance {
        self.instances[node.index()]
    }

    /// By node: what it is an instance of.
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// The base graph's tensor that a tensor is an instance of.
    pub fn base_tensor(&self, tensor: TensorIx) -> TensorIx {
        self.tensors[tensor.index()]
    }

    /// The node that is this instance. O(log nodes).
    pub fn find(&self, instance: Instance) -> Option<NodeIx> {
        let found = self.sorted.binary_search_by_key(&instance, |node| self.instances[node.index()]).ok()?;
        Some(self.sorted[found])
    }

    /// Into how many microbatches the step is divided: 1 where it is not.
    pub fn microbatches(&self) -> u32 {
        self.microbatches
    }

    /// The same graph, where its base is itself one of instances: of the nodes that those are of.
    /// O(nodes log nodes).
    pub fn through(mut self, base: &Self) -> Self {
        for instance in &mut self.instances {
            let of = base.instance(instance.node);
            *instance = Instance { again: of.again || instance.again, ..of };
        }
        self.tensors.iter_mut().for_each(|tensor| *tensor = base.base_tensor(*tensor));
        let instances = &self.instances;
        self.sorted.sort_unstable_by_key(|node| instances[node.index()]);
        self.microbatches = base.microbatches;
        self
    }

    /// Says that all instances of a node of `base`, from which this was derived, go to one device.
    /// O(nodes).
    pub fn together(&mut self, base: &CostGraph) {
        let mut count = base.colocation_classes();
        for instances in self
            .sorted
            .chunk_by(|one, other| self.instances[one.index()].node == self.instances[other.index()].node)
        {
            let node = self.instances[instances[0].index()].node;
            let class = match base.colocation(node) {
                Some(class) => class,
                None if instances.len() == 1 => continue,
                None => {
                    count += 1;
                    count - 1
                }
            };
            instances.iter().for_each(|node| self.graph.colocate[node.index()] = class);
        }
        self.graph.colocation_classes = count;
    }

    /// For each node what `of_base` holds for its base node. O(nodes).
    pub fn spread<T: Copy>(&self, of_base: &[T]) -> Vec<T> {
        self.instances.iter().map(|instance| of_base[instance.node.index()]).collect()
    }

    /// For each node of the base what `of_node` holds for its first instance. O(nodes).
    pub fn gather<T: Copy>(&self, of_node: &[T]) -> Vec<T> {
        let instance = |node: &NodeIx| self.instances[node.index()].node;
        let firsts = self.sorted.chunk_by(|one, other| instance(one) == instance(other));
        firsts.filter_map(|instances| of_node.get(instances.first()?.index()).copied()).collect()
    }
}

/// Makes a [`Derived`] graph instance by instance, edge by edge.
#[derive(Debug)]
pub struct Derivation<'a> {
    base: &'a CostGraph,
    graph: CostGraph,
    instances: Vec<Instance>,
    tensors: Vec<TensorIx>,
    edges: Vec<(NodeIx, TensorIx)>,
    /// By base node: true once an instance holds what the node owns.
    owned: Vec<bool>,
    pins: Vec<u32>,
}

impl<'a> Derivation<'a> {
    /// Starts a graph of instances of `base`. O(nodes + parameters).
    pub fn new(base: &'a CostGraph) -> Self {
        let mut graph = CostGraph::empty(base.name.clone(), base.kinds.clone());
        graph.op_names.clone_from(&base.op_names);
        graph.param_bytes.clone_from(&base.param_bytes);
        graph.param_names.clone_from(&base.param_names);
        graph.colocation_classes = base.colocation_classes;
        let mut pins = vec![NONE; base.node_count()];
        for (number, (node, _)) in base.pins.iter().enumerate() {
            pins[node.index()] = number as u32;
        }
        Self {
            base,
            graph,
            instances: Vec::new(),
            tensors: Vec::new(),
            edges: Vec::new(),
            owned: vec![false; base.node_count()],
            pins,
        }
    }

    /// Adds an instance with its node's times and sizes. What the node owns counts with its first
    /// instance alone.
    ///
    /// Error: more than 2^32 - 2 nodes, tensors or bytes of names.
    pub fn add(&mut self, instance: Instance) -> Result<NodeIx> {
        let (base, graph, node) = (self.base, &mut self.graph, instance.node.index());
        let ix = NodeIx(graph.roles.len() as u32);
        graph.names.push_str(base.node_name(instance.node));
        if let Some(microbatch) = instance.microbatch {
            graph.names.push('@');
            graph.names.push_str(&microbatch.to_string());
        }
        if instance.again {
            graph.names.push_str(" again");
        }
        let outputs = base.outputs(instance.node);
        let largest = graph.names.len().max(graph.tensor_bytes.len() + outputs.len()).max(ix.index());
        if largest >= NONE as usize - 1 {
            return Err(too_large(&base.name));
        }
        graph.name_ends.push(graph.names.len() as u32);
        graph.ops.push(base.ops[node]);
        graph.roles.push(base.roles[node]);
        let kinds = base.kinds.len();
        graph.times.extend_from_slice(&base.times[node * kinds..(node + 1) * kinds]);
        let owns = !std::mem::replace(&mut self.owned[node], true);
        graph.owned.push(if owns { base.owned[node] } else { 0 });
        graph.params.push(base.params[node]);
        graph.workspace.push(base.workspace[node]);
        graph.colocate.push(base.colocate[node]);
        graph.forward.push(NONE);
        graph.backward.push(base.backward[node]);
        if let Some(pin) = some(self.pins[node]) {
            graph.pins.push((ix, base.pins[pin as usize].1.clone()));
        }
        graph.views.extend(base.view(instance.node).map(|first| (ix, first)));
        for tensor in outputs {
            graph.tensor_bytes.push(base.tensor_bytes[tensor.index()]);
            graph.tensor_node.push(ix.0);
            graph.tensor_is_result.push(base.is_result(tensor) && !instance.again);
            self.tensors.push(tensor);
        }
        graph.output_start.push(graph.tensor_bytes.len() as u32);
        self.instances.push(instance);
        Ok(ix)
    }

    /// Lets an instance do one of `parts` of its node's work: times, workspace and outputs are
    /// divided and rounded up, but for outputs whose base tensor is `whole`.
    pub fn divide(&mut self, node: NodeIx, parts: u32, whole: impl Fn(TensorIx) -> bool) {
        let parts = u64::from(parts.max(1));
        let (graph, kinds) = (&mut self.graph, self.base.kinds.len());
        for time in &mut graph.times[node.index() * kinds..(node.index() + 1) * kinds] {
            if *time != u64::MAX {
                *time = time.div_ceil(parts);
            }
        }
        // Bytes of a part of the input lie elsewhere.
        if let Ok(at) = graph.views.binary_search_by_key(&node, |&(view, _)| view) {
            graph.views.remove(at);
        }
        let workspace = &mut graph.workspace[node.index()];
        *workspace = workspace.div_ceil(parts);
        for tensor in graph.outputs(node) {
            if !whole(self.tensors[tensor.index()]) {
                let bytes = &mut graph.tensor_bytes[tensor.index()];
                *bytes = bytes.div_ceil(parts);
            }
        }
    }

    /// Says that `reader` reads output number `output` of `producer`; both were added, and the
    /// producer's node has that output. An edge given twice counts once.
    pub fn read(&mut self, reader: NodeIx, producer: NodeIx, output: u32) {
        let tensor = TensorIx(self.graph.output_start[producer.index()] + output);
        debug_assert!(tensor.0 < self.graph.output_start[producer.index() + 1]);
        self.edges.push((reader, tensor));
    }

    /// Makes the graph. Its results are the instances of the base's results that are not made
    /// again. O((nodes + edges) log nodes).
    ///
    /// Errors: an instance added twice; edges that close a cycle.
    pub fn finish(self) -> Result<Derived> {
        let Self { base, mut graph, instances, tensors, edges, .. } = self;
        let mut sorted: Vec<NodeIx> = (0..instances.len() as u32).map(NodeIx).collect();
        sorted.sort_unstable_by_key(|node| instances[node.index()]);
        let same = |pair: &&[NodeIx]| instances[pair[0].index()] == instances[pair[1].index()];
        if let Some(pair) = sorted.windows(2).find(same) {
            return Err(Error::Internal(format!("instance {} is added twice", graph.node_name(pair[0]))));
        }
        graph.link(edges)?;
        let last = instances.iter().filter_map(|instance| instance.microbatch).max();
        let microbatches = last.map_or(1, |last| last.saturating_add(1));
        in_place(base, &mut graph, &instances, &tensors);
        let mut derived = Derived { graph: graph.acyclic()?, instances, tensors, sorted, microbatches };
        for node in derived.graph.nodes() {
            let instance = derived.instance(node);
            let Some(forward) = base.forward(instance.node) else { continue };
            let same = derived.find(Instance { node: forward, again: false, ..instance });
            if let Some(forward) = same.or_else(|| derived.find(Instance::once(forward))) {
                derived.graph.forward[node.index()] = forward.0;
            }
        }
        derived.graph.updates = updates(base, &derived);
        Ok(derived)
    }
}

/// Gives every instance the in-place pairs of its node, as far as its inputs and outputs are still
/// of one size.
fn in_place(base: &CostGraph, graph: &mut CostGraph, instances: &[Instance], tensors: &[TensorIx]) {
    let mut pairs = Vec::new();
    for (node, instance) in graph.nodes().zip(instances) {
        let mut pairs_of_node = base.in_place(instance.node).peekable();
        if pairs_of_node.peek().is_none() {
            continue;
        }
        let inputs = graph.inputs(node);
        // The first that stands for a tensor.
        let position_of: HashMap<TensorIx, usize> =
            inputs.iter().enumerate().rev().map(|(at, input)| (tensors[input.index()], at)).collect();
        for (input, output) in pairs_of_node {
            let read = base.inputs(instance.node)[input as usize];
            let Some(&input) = position_of.get(&read) else { continue };
            let written = TensorIx(graph.output_start[node.index()] + output);
            if graph.tensor_bytes(inputs[input]) == graph.tensor_bytes(written) {
                pairs.push((node, input as u32, output));
            }
        }
    }
    graph.in_place = pairs;
}

/// The updates of state that is there once and made once in a step, as large as it was.
fn updates(base: &CostGraph, derived: &Derived) -> Vec<(TensorIx, TensorIx)> {
    let once = |tensor: TensorIx| {
        let node = derived.find(Instance::once(base.producer(tensor)))?;
        derived.graph.output(node, base.output_index(tensor))
    };
    let pairs = base.updates.iter().filter_map(|&(new, state)| Some((once(new)?, once(state)?)));
    let same = |&(new, state): &(TensorIx, TensorIx)| {
        derived.graph.tensor_bytes(new) == derived.graph.tensor_bytes(state)
    };
    let mut updates: Vec<(TensorIx, TensorIx)> = pairs.filter(same).collect();
    updates.sort_unstable();
    updates
}

fn too_large(name: &str) -> Error {
    Error::model(format!("graph {name}"), "it has too many instances of its nodes")
        .with_help("divide the step into fewer microbatches")
}
