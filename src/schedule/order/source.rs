//! The order of the source, bent where that holds less: what follows from parameters and state alone stands just
//! before its first reader, and what is made for an update of state alone, with the update, as early as that
//! can write over it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::super::problem::Problem;
use crate::costgraph::{NodeIx, Role, TensorIx};

/// Kahn's algorithm, the least node number among those ready first, but updates of state, and what leads to one of
/// them alone, before all others once the state's other readers are listed. O((nodes + edges) log nodes).
pub(super) fn by_source(problem: &Problem<'_>) -> Vec<NodeIx> {
    let mut lister = Lister::new(problem);
    for node in problem.graph.nodes().filter(|&node| problem.runs(node.0)) {
        if !lister.follows_params[node.index()] && lister.waits[node.index()] == 0 {
            lister.offer(node);
        }
    }
    while let Some(node) = lister.next() {
        lister.list_with_operands(node);
    }
    // What nothing reads.
    let unread: Vec<NodeIx> =
        problem.graph.nodes().filter(|&node| lister.follows_params[node.index()]).collect();
    unread.into_iter().for_each(|node| lister.list_with_operands(node));
    lister.order
}

struct Lister<'p, 'a> {
    problem: &'p Problem<'a>,
    order: Vec<NodeIx>,
    is_listed: Vec<bool>,
    /// By node: it runs, and reads parameters and state alone, or what follows from them.
    follows_params: Vec<bool>,
    /// By node: how many inputs that do not follow from parameters are not made yet.
    waits: Vec<u32>,
    /// By node: the one update that all who read of it lead to; an update leads to itself.
    leads_to: Vec<Option<NodeIx>>,
    /// By update: the readers of its state that do not lead to it and are not listed.
    readers: BTreeMap<NodeIx, u32>,
    /// By state: who updates it.
    updates: BTreeMap<TensorIx, NodeIx>,
    ready: BinaryHeap<Reverse<(bool, NodeIx)>>,
    /// (update, node that leads to it): ready, and the update could not write over its state yet.
    parked: BTreeSet<(NodeIx, NodeIx)>,
}

impl<'p, 'a> Lister<'p, 'a> {
    fn new(problem: &'p Problem<'a>) -> Self {
        let graph = problem.graph;
        let mut follows_params = vec![false; graph.node_count()];
        let mut is_state = vec![false; graph.node_count()];
        graph.updates().iter().for_each(|&(_, state)| is_state[graph.producer(state).index()] = true);
        for node in graph.topological_order().unwrap_or_default() {
            let producers = || graph.inputs(node).iter().map(|&tensor| graph.producer(tensor));
            let known = |node: NodeIx| {
                follows_params[node.index()] || is_state[node.index()] || graph.role(node) == Role::Param
            };
            follows_params[node.index()] = problem.runs(node.0) && producers().all(known);
        }
        let waited = |tensor: &&TensorIx| {
            let producer = graph.producer(**tensor);
            graph.role(producer) == Role::Compute && !follows_params[producer.index()]
        };
        let waits =
            graph.nodes().map(|node| graph.inputs(node).iter().filter(waited).count() as u32).collect();
        let leads_to = leads_to(problem);
        let (mut readers, mut updates) = (BTreeMap::new(), BTreeMap::new());
        for &(new, state) in graph.updates() {
            let node = graph.producer(new);
            let is_other = |reader: &&NodeIx| leads_to[reader.index()] != Some(node);
            let others = graph.consumers(state).iter().filter(is_other).count() as u32;
            *readers.entry(node).or_insert(0) += others;
            updates.insert(state, node);
        }
        let count = graph.node_count();
        Self {
            problem,
            order: Vec::with_capacity(count),
            is_listed: vec![false; count],
            follows_params,
            waits,
            leads_to,
            readers,
            updates,
            ready: BinaryHeap::new(),
            parked: BTreeSet::new(),
        }
    }

    /// A node whose inputs are made.
    fn offer(&mut self, node: NodeIx) {
        let Some(update) = self.leads_to[node.index()] else {
            return self.ready.push(Reverse((true, node)));
        };
        // False sorts first: updates go before all others, so that gradients are not kept for them.
        match self.readers.get(&update) {
            None | Some(0) => self.ready.push(Reverse((false, node))),
            Some(_) => _ = self.parked.insert((update, node)),
        }
    }

    /// The next node to list: a parked one only where nothing else is ready.
    fn next(&mut self) -> Option<NodeIx> {
        let ready = self.ready.pop().map(|Reverse((_, node))| node);
        ready.or_else(|| self.parked.pop_first().map(|(_, node)| node))
    }

    /// Lists a node, behind what it reads that follows from parameters and is not listed.
    fn list_with_operands(&mut self, node: NodeIx) {
        // A stack in place of recursion: such chains may be as deep as the graph.
        let mut stack = vec![(node, false)];
        while let Some((node, behind)) = stack.pop() {
            if self.is_listed[node.index()] {
                continue;
            }
            if behind {
                self.list(node);
                continue;
            }
            stack.push((node, true));
            let graph = self.problem.graph;
            let producers = graph.inputs(node).iter().rev().map(|&tensor| graph.producer(tensor));
            stack
                .extend(producers.filter(|node| self.follows_params[node.index()]).map(|node| (node, false)));
        }
    }

    fn list(&mut self, node: NodeIx) {
        let graph = self.problem.graph;
        self.is_listed[node.index()] = true;
        self.order.push(node);
        if !self.follows_params[node.index()] {
            for tensor in graph.outputs(node) {
                for &consumer in graph.consumers(tensor) {
                    self.waits[consumer.index()] -= 1;
                    if self.waits[consumer.index()] == 0 {
                        self.offer(consumer);
                    }
                }
            }
        }
        for tensor in graph.inputs(node) {
            let Some(&update) = self.updates.get(tensor) else { continue };
            if self.leads_to[node.index()] == Some(update) {
                continue;
            }
            let Some(left) = self.readers.get_mut(&update) else { continue };
            *left = left.saturating_sub(1);
            if *left == 0 {
                let last = (update, NodeIx(u32::MAX));
                let freed: Vec<_> = self.parked.range((update, NodeIx(0))..=last).copied().collect();
                for parked in freed {
                    self.parked.remove(&parked);
                    self.ready.push(Reverse((false, parked.1)));
                }
            }
        }
    }
}

/// By node: the update of state that it is, or that all who read of it lead to, if it is one.
fn leads_to(problem: &Problem<'_>) -> Vec<Option<NodeIx>> {
    let graph = problem.graph;
    let mut leads_to: Vec<Option<NodeIx>> = vec![None; graph.node_count()];
    graph.updates().iter().map(|&(new, _)| graph.producer(new)).for_each(|node| {
        leads_to[node.index()] = Some(node);
    });
    for node in graph.topological_order().unwrap_or_default().into_iter().rev() {
        if leads_to[node.index()].is_some() || !problem.runs(node.0) {
            continue;
        }
        let mut readers = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor));
        let first = readers.next().and_then(|reader| leads_to[reader.index()]);
        let is_result = graph.outputs(node).any(|tensor| graph.is_result(tensor));
        if !is_result && readers.all(|reader| leads_to[reader.index()] == first) {
            leads_to[node.index()] = first;
        }
    }
    leads_to
}
