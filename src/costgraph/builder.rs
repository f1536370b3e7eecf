//! Builds a [`CostGraph`] node by node, edge by edge.

use std::collections::{HashMap, HashSet};

use super::names::Names;
use super::{CostGraph, NONE, NodeIx, Role, TensorIx};
use crate::csr::Csr;
use crate::error::{Error, Result};
use crate::order::cycle;
use crate::units::{Bytes, Nanos};

/// One node as handed to [`Builder::add`].
#[derive(Clone, Debug, Default)]
pub struct NodeSpec<'a> {
    /// The node's id in the source; unique.
    pub name: &'a str,
    /// The operation, for people to read. `param` and `input` are reserved: they take no time and
    /// are there before the step.
    pub op: &'a str,
    /// Time for each kind of the graph, in order; none where that kind cannot run it. May be
    /// empty for `param`, `input` and a view.
    pub times: &'a [Option<Nanos>],
    /// Bytes of parameters or state that live where the node is.
    pub param_bytes: Bytes,
    /// Name that tied `param` nodes share.
    pub params: Option<&'a str>,
    /// Bytes needed only while the node runs.
    pub workspace: Bytes,
    /// Bytes of each output.
    pub outputs: &'a [Bytes],
    /// Nodes with one mark go together.
    pub colocate: Option<&'a str>,
    /// Part of the backward pass.
    pub backward: bool,
    /// Name of the device that it must be on.
    pub pin: Option<&'a str>,
    /// (input, output) pairs of which the output may be written where the input is: each of its
    /// elements depends on no element of that input but the one at its place. Inputs count as in
    /// [`CostGraph::inputs`].
    pub in_place: &'a [(u32, u32)],
    /// Nothing runs: the only output is the part of the only input that begins at this byte, and lies in its bytes.
    pub view: Option<u64>,
}

/// Collects nodes and edges; [`Builder::finish`] checks them and makes the graph.
///
/// What a node borrows is copied once, to where the graph has it. An engine that has flat arrays of its own hands them
/// over whole ([`Columns`](super::Columns)).
#[derive(Debug)]
pub struct Builder {
    graph: CostGraph,
    ids: Names,
    ties: HashMap<String, u32>,
    classes: HashMap<String, u32>,
    op_ids: HashMap<String, u16>,
    edges: Vec<(NodeIx, TensorIx)>,
    dangling: Option<Error>,
}

impl Builder {
    /// Starts a graph whose nodes have a time for each of `kinds`.
    pub fn new(name: impl Into<String>, kinds: Vec<String>) -> Self {
        let graph = CostGraph::empty(name.into(), kinds);
        Self {
            graph,
            ids: Names::default(),
            ties: HashMap::new(),
            classes: HashMap::new(),
            op_ids: HashMap::new(),
            edges: Vec::new(),
            dangling: None,
        }
    }

    /// The node with this name.
    pub fn find(&self, name: &str) -> Option<NodeIx> {
        self.ids.find(&self.graph, name)
    }

    /// The name of a node; none where it was not added.
    pub(crate) fn name(&self, node: NodeIx) -> Option<&str> {
        (node.index() < self.graph.node_count()).then(|| self.graph.node_name(node))
    }

    /// Number of outputs of a node that was added.
    pub fn output_count(&self, node: NodeIx) -> u32 {
        let start = |at: usize| self.graph.output_start.get(at).copied();
        let [first, end] = [node.index(), node.index().saturating_add(1)].map(start);
        first.zip(end).map_or(0, |(first, end)| end - first)
    }

    /// Adds a node. Errors: a name that is empty or used twice, a number of times other than that of the kinds,
    /// two sizes for one tied parameter, more than 2^32 - 2 nodes or outputs.
    pub fn add(&mut self, node: &NodeSpec<'_>) -> Result<NodeIx> {
        let role = Role::of(node.op);
        let ix = self.check(node, role)?;
        self.add_name(ix, node)?;
        let graph = &mut self.graph;
        graph.roles.push(role);
        for kind in 0..graph.kinds.len() {
            let time = match role {
                Role::Compute if !node.times.is_empty() => {
                    node.times[kind].map_or(u64::MAX, |time| time.0.min(u64::MAX - 1))
                }
                Role::Compute | Role::Param | Role::Input => 0,
            };
            graph.times.push(time);
        }
        let is_param = role == Role::Param;
        graph.owned.push(if is_param { 0 } else { node.param_bytes.0 });
        let param = if is_param { self.param(node)? } else { NONE };
        let graph = &mut self.graph;
        graph.params.push(param);
        graph.workspace.push(node.workspace.0);
        graph.colocate.push(match node.colocate {
            Some(mark) => class(&mut self.classes, mark),
            None => NONE,
        });
        graph.forward.push(NONE);
        graph.backward.push(node.backward);
        if let Some(pin) = node.pin {
            graph.pins.push((ix, pin.to_owned()));
        }
        graph.in_place.extend(node.in_place.iter().map(|&(input, output)| (ix, input, output)));
        graph.views.extend(node.view.map(|first| (ix, first)));
        for bytes in node.outputs {
            graph.tensor_bytes.push(bytes.0);
            graph.tensor_node.push(ix.0);
            graph.tensor_is_result.push(false);
        }
        graph.output_start.push(graph.tensor_bytes.len() as u32);
        Ok(ix)
    }

    /// The node's index. Errors: the graph is too large, or the node's times are not one for each kind.
    fn check(&mut self, node: &NodeSpec<'_>, role: Role) -> Result<NodeIx> {
        let graph = &self.graph;
        if graph.roles.len() >= NONE as usize - 1
            || graph.tensor_bytes.len() + node.outputs.len() >= NONE as usize - 1
            || graph.names.len() + node.name.len() >= NONE as usize
        {
            return Err(fault(node, "the graph is too large"));
        }
        let ix = NodeIx(graph.roles.len() as u32);
        let (expected, found) = (graph.kinds.len(), node.times.len());
        let needs_times = role == Role::Compute && node.view.is_none();
        if expected == 0 && (needs_times || found > 0) {
            return Err(fault(node, "has times on each kind of device, and the graph has no kinds"));
        }
        if found != expected && (needs_times || found > 0) {
            let message = format!("expected {expected} times, one for each kind, found {found}");
            return Err(fault(node, message));
        }
        Ok(ix)
    }

    /// Stores the node's name, and its operation by number. Errors: the name is empty or used, there are too many operations.
    fn add_name(&mut self, ix: NodeIx, node: &NodeSpec<'_>) -> Result<()> {
        if node.name.is_empty() {
            return Err(Error::model(format!("node {}", ix.0), "its id is empty"));
        }
        let graph = &mut self.graph;
        graph.names.push_str(node.name);
        graph.name_ends.push(graph.names.len() as u32);
        if !self.ids.add(graph, ix) {
            graph.name_ends.pop();
            graph.names.truncate(graph.names.len() - node.name.len());
            return Err(fault(node, "this id is used twice"));
        }
        let op = match self.op_ids.get(node.op) {
            Some(&op) => op,
            None => {
                let op = u16::try_from(graph.op_names.len())
                    .map_err(|_| fault(node, "over 65,535 distinct ops"))?;
                graph.op_names.push(node.op.to_owned());
                self.op_ids.insert(node.op.to_owned(), op);
                op
            }
        };
        graph.ops.push(op);
        Ok(())
    }

    /// The number of a parameter node's parameter: of one that is tied, that of the others of this name.
    fn param(&mut self, node: &NodeSpec<'_>) -> Result<u32> {
        let graph = &mut self.graph;
        let next = graph.param_bytes.len() as u32;
        if let Some(tie) = node.params {
            if let Some(&param) = self.ties.get(tie) {
                let (here, before) = (node.param_bytes.0, graph.param_bytes[param as usize]);
                if before != here {
                    let message = format!("tied parameter {tie} has {here} bytes here, {before} before");
                    return Err(fault(node, message));
                }
                return Ok(param);
            }
            self.ties.insert(tie.to_owned(), next);
        }
        graph.param_bytes.push(node.param_bytes.0);
        graph.param_names.push(node.params.unwrap_or(node.name).to_owned());
        Ok(next)
    }

    /// Says that `consumer` reads output number `output` of `producer`. An edge given twice
    /// counts once. A dangling edge is reported by [`Builder::finish`].
    pub fn connect(&mut self, producer: NodeIx, output: u32, consumer: NodeIx) {
        let place =
            |builder: &Self| format!("edge from {} to {}", builder.shown(producer), builder.shown(consumer));
        let Some(tensor) = self.tensor(producer, output, place) else { return };
        match self.is_known(consumer) {
            true => self.edges.push((consumer, tensor)),
            false => self.fault(place(self), "its reader does not exist".to_owned()),
        }
    }

    /// Names the forward node whose backward or update `node` is. One that does not exist is an error of
    /// [`Builder::finish`], here and below.
    pub fn set_forward(&mut self, node: NodeIx, forward: NodeIx) {
        // The forward node may be added later.
        match self.is_known(node) {
            true => self.graph.forward[node.index()] = forward.0,
            false => self.fault("forward node".to_owned(), "the node that has it does not exist".to_owned()),
        }
    }

    /// Says that an output must still be there when the step ends.
    pub fn set_result(&mut self, node: NodeIx, output: u32) {
        if let Some(tensor) =
            self.tensor(node, output, |builder| format!("result of {}", builder.shown(node)))
        {
            self.graph.tensor_is_result[tensor.index()] = true;
        }
    }

    /// Says that output `output` of `node` takes the place of what `input`, an `input` node with one
    /// output, holds: it is a result, and may be written there once nothing reads the old value.
    pub fn set_update(&mut self, input: NodeIx, node: NodeIx, output: u32) {
        self.replace((node, output), (input, 0));
    }

    /// As [`Builder::set_update`], of any output of an input.
    pub(crate) fn replace(&mut self, new: (NodeIx, u32), old: (NodeIx, u32)) {
        self.set_result(new.0, new.1);
        let place =
            |builder: &Self| format!("update of {} by {}", builder.shown(old.0), builder.shown(new.0));
        let new = self.tensor(new.0, new.1, place);
        let old = self.tensor(old.0, old.1, place);
        self.graph.updates.extend(new.zip(old));
    }

    fn is_known(&self, node: NodeIx) -> bool {
        node.index() < self.graph.roles.len()
    }

    fn shown(&self, node: NodeIx) -> &str {
        if self.is_known(node) { self.graph.node_name(node) } else { "?" }
    }

    /// An output; none where there is no such one, which is an error of [`Builder::finish`].
    fn tensor(&mut self, node: NodeIx, output: u32, place: impl Fn(&Self) -> String) -> Option<TensorIx> {
        if self.is_known(node) && output < self.output_count(node) {
            return Some(TensorIx(self.graph.output_start[node.index()] + output));
        }
        let message = format!("output {output} of {} does not exist", self.shown(node));
        self.fault(place(self), message);
        None
    }

    /// Keeps the first.
    fn fault(&mut self, place: String, message: String) {
        self.dangling.get_or_insert_with(|| Error::model(place, message));
    }

    /// Makes the graph. An output that nothing reads is a result. O(nodes + edges log degree).
    ///
    /// Errors: a dangling edge, a mark of a node or an output that does not exist, a kind that is there twice, a `param` or
    /// `input` node that reads something, an in-place pair
    /// that does not exist or has two sizes, a cycle (its nodes are named).
    pub fn finish(self) -> Result<CostGraph> {
        let Self { mut graph, ids, classes, edges, dangling, .. } = self;
        if let Some(error) = dangling {
            return Err(error);
        }
        drop(ids);
        let count = graph.roles.len() as u32;
        let beyond = graph.forward.iter().position(|&forward| forward != NONE && forward >= count);
        if let Some(node) = beyond {
            let node = graph.node_name(NodeIx(node as u32));
            return Err(Error::model(format!("forward node of {node}"), "does not exist"));
        }
        let mut kinds = HashSet::new();
        if let Some(twice) = graph.kinds.iter().find(|kind| !kinds.insert(kind.as_str())) {
            return Err(Error::model(format!("kind {twice}"), "is there twice"));
        }
        graph.colocation_classes = classes.len() as u32;
        graph.link(edges)?;
        graph.updates.sort_unstable();
        graph.checked()
    }
}

/// The number of a colocation mark.
fn class(classes: &mut HashMap<String, u32>, mark: &str) -> u32 {
    if let Some(&class) = classes.get(mark) {
        return class;
    }
    let next = classes.len() as u32;
    classes.insert(mark.to_owned(), next);
    next
}

fn fault(node: &NodeSpec<'_>, message: impl Into<String>) -> Error {
    Error::model(format!("node {}", node.name), message)
}

/// Every in-place pair is of an input and an output of its node, equal in size.
fn check_in_place(graph: &CostGraph) -> Result<()> {
    for &(node, input, output) in &graph.in_place {
        let read = graph.inputs(node).get(input as usize).copied();
        let written = graph.output(node, output);
        let sizes =
            read.zip(written).map(|(read, written)| (graph.tensor_bytes(read), graph.tensor_bytes(written)));
        if sizes.is_none_or(|(read, written)| read != written) {
            let message = format!(
                "cannot write output {output} in place of input {input}: one does not exist, or their sizes differ"
            );
            return Err(Error::model(format!("node {}", graph.node_name(node)), message));
        }
    }
    Ok(())
}

/// Every view is of one output that lies within the one input, which is no parameter.
fn check_views(graph: &CostGraph) -> Result<()> {
    let misfit = |&(node, first): &(NodeIx, u64)| Some((node, misfit(graph, node, first)?));
    match graph.views.iter().find_map(misfit) {
        Some((node, message)) => Err(Error::model(format!("node {}", graph.node_name(node)), message)),
        None => Ok(()),
    }
}

/// Why a node cannot be the view that begins at byte `first` of its input; none where it can.
fn misfit(graph: &CostGraph, node: NodeIx, first: u64) -> Option<String> {
    use crate::units::ALIGNMENT;
    let inputs = graph.inputs(node);
    let &[read] = inputs else {
        return Some(format!("a view is of one input, found {}", inputs.len()));
    };
    let mut outputs = graph.outputs(node);
    let (Some(made), 0) = (outputs.next(), outputs.count()) else {
        return Some(format!("a view has one output, found {}", graph.outputs(node).len()));
    };
    let producer = graph.producer(read);
    if graph.role(producer) == Role::Param {
        let name = graph.node_name(producer);
        return Some(format!("a view is of what is made or an input, and {name} is a parameter"));
    }
    if !first.is_multiple_of(ALIGNMENT) {
        return Some(format!("a view begins at a multiple of {ALIGNMENT} bytes, found {first}"));
    }
    let (held, bytes) = (graph.tensor_bytes(read).0, graph.tensor_bytes(made).0);
    if first.checked_add(bytes).is_some_and(|end| end <= held) {
        return None;
    }
    Some(format!("a view of {bytes} bytes from byte {first} on goes beyond its input, which has {held}"))
}

/// Every state is that of an input, as large as what takes its place; none is taken twice.
fn check_updates(graph: &CostGraph) -> Result<()> {
    let mut states: Vec<TensorIx> = graph.updates.iter().map(|&(_, state)| state).collect();
    states.sort_unstable();
    let twice = states.windows(2).any(|pair| pair[0] == pair[1]);
    let unfit = |&(new, state): &(TensorIx, TensorIx)| {
        graph.role(graph.producer(state)) != Role::Input
            || graph.role(graph.producer(new)) != Role::Compute
            || graph.tensor_bytes(new) != graph.tensor_bytes(state)
    };
    match graph.updates.iter().find(|pair| unfit(pair)).or(graph.updates.first().filter(|_| twice)) {
        Some(&(new, _)) => {
            let place = format!("node {}", graph.node_name(graph.producer(new)));
            Err(Error::model(place, "an update is of an input as large, and each input has one"))
        }
        None => Ok(()),
    }
}

impl CostGraph {
    /// A graph without nodes.
    pub(super) fn empty(name: String, kinds: Vec<String>) -> Self {
        Self {
            name,
            kinds,
            names: String::new(),
            name_ends: Vec::new(),
            ops: Vec::new(),
            op_names: Vec::new(),
            roles: Vec::new(),
            times: Vec::new(),
            owned: Vec::new(),
            workspace: Vec::new(),
            params: Vec::new(),
            param_bytes: Vec::new(),
            param_names: Vec::new(),
            colocate: Vec::new(),
            colocation_classes: 0,
            forward: Vec::new(),
            backward: Vec::new(),
            pins: Vec::new(),
            in_place: Vec::new(),
            updates: Vec::new(),
            views: Vec::new(),
            output_start: vec![0],
            tensor_bytes: Vec::new(),
            tensor_node: Vec::new(),
            tensor_is_result: Vec::new(),
            consumers: Csr::new(),
            inputs: Csr::new(),
        }
    }

    /// Indexes the edges, each a node with a tensor that it reads. An edge given twice counts once.
    ///
    /// Errors: more than 2^32 edges, a `param` or `input` node that reads something.
    pub(super) fn link(&mut self, edges: Vec<(NodeIx, TensorIx)>) -> Result<()> {
        if edges.len() >= NONE as usize {
            return Err(Error::model("edges", "more than 2^32 edges"));
        }
        let reads = edges.iter().map(|&(consumer, tensor)| (consumer.index(), tensor));
        self.inputs = Csr::from_pairs(self.node_count(), reads);
        drop(edges);
        let mut seen = vec![NONE; self.tensor_count()];
        self.inputs
            .retain(|node, tensor| std::mem::replace(&mut seen[tensor.index()], node as u32) != node as u32);
        self.index_readers()
    }

    /// Indexes the readers of each tensor. Error: a `param` or `input` node reads something.
    pub(super) fn index_readers(&mut self) -> Result<()> {
        let reads = |node: &NodeIx| self.role(*node) != Role::Compute && !self.inputs(*node).is_empty();
        if let Some(node) = self.nodes().find(reads) {
            let place = format!("node {}", self.node_name(node));
            return Err(Error::model(place, "ops `param` and `input` read nothing"));
        }
        let inputs = &self.inputs;
        let readers =
            |node: u32| inputs.row(node as usize).iter().map(move |tensor| (tensor.index(), NodeIx(node)));
        let readers = (0..self.node_count() as u32).flat_map(readers);
        self.consumers = Csr::from_pairs(self.tensor_count(), readers);
        Ok(())
    }

    /// The graph itself, whose edges are indexed; an output that nothing reads is a result of it.
    ///
    /// Errors: an in-place pair, an update or a view that cannot be, a cycle.
    pub(super) fn checked(mut self) -> Result<Self> {
        self.mark_unread();
        self.in_place.sort_unstable_by_key(|&(node, input, output)| (node, output, input));
        check_in_place(&self)?;
        check_updates(&self)?;
        check_views(&self)?;
        self.acyclic()
    }

    /// Makes results of what nothing reads.
    fn mark_unread(&mut self) {
        for tensor in 0..self.tensor_count() {
            let unread = self.consumers(TensorIx(tensor as u32)).is_empty();
            let made = self.roles[self.tensor_node[tensor] as usize] == Role::Compute;
            self.tensor_is_result[tensor] |= unread && made;
        }
    }

    /// The graph itself. Error: a cycle (its nodes are named).
    pub(super) fn acyclic(self) -> Result<Self> {
        let graph = self;
        match graph.topological_order() {
            Ok(_) => Ok(graph),
            Err(cycle) => {
                let names: Vec<&str> = cycle.iter().take(6).map(|&ix| graph.node_name(ix)).collect();
                let more = if cycle.len() > names.len() { " -> ..." } else { "" };
                Err(Error::model(
                    format!("node {}", names[0]),
                    format!("is on a cycle of {} nodes: {}{more}", cycle.len(), names.join(" -> ")),
                ))
            }
        }
    }

    /// A topological order: the first by node number among those ready (Kahn's algorithm with a
    /// first-in-first-out queue). On a cyclic graph, the nodes of one cycle in order instead.
    /// O(nodes + edges).
    pub fn topological_order(&self) -> Result<Vec<NodeIx>, Vec<NodeIx>> {
        let mut missing: Vec<u32> = self.nodes().map(|node| self.inputs(node).len() as u32).collect();
        let mut order: Vec<NodeIx> = self.nodes().filter(|node| missing[node.index()] == 0).collect();
        let mut head = 0;
        while head < order.len() {
            let node = order[head];
            head += 1;
            for tensor in self.outputs(node) {
                for &consumer in self.consumers(tensor) {
                    missing[consumer.index()] -= 1;
                    if missing[consumer.index()] == 0 {
                        order.push(consumer);
                    }
                }
            }
        }
        if order.len() == self.node_count() {
            return Ok(order);
        }
        let waits = |node: &NodeIx| missing[node.index()] > 0;
        let maker = |reader: usize| {
            let mut makers = self.inputs.row(reader).iter().map(|&tensor| self.producer(tensor));
            makers.find(waits).map(NodeIx::index)
        };
        Err(cycle(&missing, maker).into_iter().map(|node| NodeIx(node as u32)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node<'a>(name: &'a str, outputs: &'a [Bytes]) -> NodeSpec<'a> {
        NodeSpec { name, op: "f", times: &[Some(Nanos(1))], outputs, ..NodeSpec::default() }
    }

    #[test]
    fn an_edge_given_twice_counts_once() {
        let mut b = Builder::new("g", vec!["cpu".into()]);
        let one = b.add(&node("a", &[Bytes(4)])).unwrap();
        let two = b.add(&node("b", &[Bytes(4)])).unwrap();
        b.connect(one, 0, two);
        b.connect(one, 0, two);
        let graph = b.finish().unwrap();
        assert_eq!(graph.edge_count(), 1);
        assert_eq!(graph.consumers(TensorIx(0)), &[two]);
        assert!(graph.is_result(TensorIx(1)) && !graph.is_result(TensorIx(0)));
    }

    #[test]
    fn a_cycle_is_named() {
        let mut b = Builder::new("g", vec!["cpu".into()]);
        let ids: Vec<NodeIx> =
            ["a", "b", "c"].iter().map(|n| b.add(&node(n, &[Bytes(4)])).unwrap()).collect();
        b.connect(ids[0], 0, ids[1]);
        b.connect(ids[1], 0, ids[2]);
        b.connect(ids[2], 0, ids[1]);
        let error = b.finish().unwrap_err().to_string();
        assert!(error.contains("cycle of 2 nodes"), "{error}");
    }

    #[test]
    fn a_dangling_edge_is_an_error() {
        let mut b = Builder::new("g", vec!["cpu".into()]);
        let one = b.add(&node("a", &[Bytes(4)])).unwrap();
        b.connect(one, 3, one);
        assert!(b.finish().unwrap_err().to_string().contains("output 3 of a does not exist"));
    }

    #[test]
    fn a_digest_tells_graphs_apart() {
        let digest = |bytes: u64, read: bool| {
            let mut b = Builder::new("g", vec!["cpu".into()]);
            let one = b.add(&node("a", &[Bytes(bytes)])).unwrap();
            let two = b.add(&node("b", &[Bytes(4)])).unwrap();
            if read {
                b.connect(one, 0, two);
            }
            b.finish().unwrap().digest()
        };
        assert_eq!(digest(4, true), digest(4, true));
        assert_ne!(digest(4, true), digest(8, true));
        assert_ne!(digest(4, true), digest(4, false));
    }
}
