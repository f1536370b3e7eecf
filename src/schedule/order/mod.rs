//! In which order the steps stand.
//!
//! [`list`] gives a topological order of all tasks by one of three [`Rule`]s. The first is for
//! speed; the others hold less memory and are for caps that the first does not meet. For caps that none of them meets an
//! order is searched for ([`frugal_order`]).

pub(crate) mod earliest;
pub(crate) mod improve;
mod peak;
mod source;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::copies::{ArrivalIx, Source};
use super::problem::{Problem, Task};
use super::simulate::{Run, Tasks, Work, run_greedy};
use crate::costgraph::{NodeIx, Role, TensorIx, frugal_order};
use crate::units::Nanos;

/// How to order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Greedy list scheduling on the simulator; the most urgent is what has the longest way,
    /// copies included, to the end of the step (the upward rank of HEFT: Topcuoglu, Hariri and Wu
    /// 2002). Copies start as early as their producers allow.
    Urgency,
    /// The order of the source, as far as it is topological, but updates of state as soon as they can be made, so that
    /// gradients need not wait, and what follows from parameters alone just before its first reader; so are copies.
    Source,
    /// Always next what adds the fewest bytes (what it makes less what it reads last), the most
    /// recently ready among equals; copies just before their first reader.
    Memory,
}

impl Rule {
    pub(super) const ALL: [Self; 3] = [Self::Urgency, Self::Source, Self::Memory];
}

/// The orders of all rules, those first that are to be tried first: by urgency, and where there is nothing to
/// gain by it ([`peak::is_one_lane`]), the one that holds the fewest bytes. Each keeps updates late.
pub(super) fn orders<'p>(problem: &'p Problem<'_>) -> Box<dyn Iterator<Item = Vec<u32>> + 'p> {
    let orders = Rule::ALL.iter().map(|&rule| updates_late(problem, list(problem, rule)));
    if !peak::is_one_lane(problem) {
        return Box::new(orders);
    }
    let mut orders: Vec<Vec<u32>> = orders.collect();
    orders.sort_by_cached_key(|order| peak::peak(problem, order));
    Box::new(orders.into_iter())
}

/// An order that is searched for where no rule's holds little enough: no device is to hold more than its `room` beside what
/// is there before the step. None where the graph is too large, see [`frugal_order`].
pub(super) fn frugal(problem: &Problem<'_>, room: &[u64]) -> Option<Vec<u32>> {
    let device: Vec<u32> = problem.placement().iter().map(|id| id.0).collect();
    let launches = frugal_order(problem.graph, &device, room)?;
    Some(updates_late(problem, with_copies(problem, &launches)))
}

/// The tasks in a topological order. O((nodes + edges) log nodes).
fn list(problem: &Problem<'_>, rule: Rule) -> Vec<u32> {
    match rule {
        Rule::Urgency => fetched_late(problem, urgent(problem).order),
        Rule::Source => with_copies(problem, &source::by_source(problem)),
        Rule::Memory => with_copies(problem, &by_memory(problem)),
    }
}

/// The same order, but with launches that only update state behind the last other launch or copy that
/// reads the state: so they write in place. Only those that nothing waits for are moved.
/// O(tasks + readers).
fn updates_late(problem: &Problem<'_>, order: Vec<u32>) -> Vec<u32> {
    let (graph, copies) = (problem.graph, &problem.copies);
    if graph.updates().is_empty() {
        return order;
    }
    let mut position = vec![0u32; problem.task_count()];
    order.iter().zip(0..).for_each(|(&task, at)| position[task as usize] = at);
    let mut until: BTreeMap<u32, u32> = BTreeMap::new();
    let producer = |update: &(TensorIx, TensorIx)| graph.producer(update.0);
    for updates in graph.updates().chunk_by(|one, other| producer(one) == producer(other)) {
        let node = producer(&updates[0]);
        // Something waits for what it makes, so it stays.
        if graph.outputs(node).any(|tensor| !graph.consumers(tensor).is_empty()) {
            continue;
        }
        for &(_, state) in updates {
            let home = problem.device(graph.producer(state));
            let readers = graph.consumers(state).iter().filter(|&&reader| {
                reader != node && problem.device(reader) == home && problem.runs(reader.0)
            });
            let sent = copies.leaves_first(state).into_iter().flat_map(|arrival| copies.filling(arrival));
            let tasks = readers.map(|reader| reader.0).chain(sent.map(|copy| problem.copy_task(copy)));
            let last = tasks.map(|task| position[task as usize]).max().unwrap_or(0);
            if last > position[node.index()] {
                let known = until.entry(node.0).or_insert(last);
                *known = last.max(*known);
            }
        }
    }
    let mut later: Vec<(u32, u32)> = until.into_iter().map(|(node, last)| (last, node)).collect();
    later.sort_unstable_by_key(|&(last, node)| (last, position[node as usize]));
    let mut moved = vec![false; problem.task_count()];
    later.iter().for_each(|&(_, node)| moved[node as usize] = true);
    let mut late = later.into_iter().peekable();
    let mut result = Vec::with_capacity(order.len());
    for (&task, at) in order.iter().zip(0..) {
        if !moved[task as usize] {
            result.push(task);
        }
        while let Some((_, node)) = late.next_if(|&(last, _)| last == at) {
            result.push(node);
        }
    }
    result
}

/// Greedy list scheduling, with its times.
pub(super) fn urgent(problem: &Problem<'_>) -> Run {
    let priority: Vec<u64> = ranks(problem).into_iter().map(|rank| u64::MAX - rank.0).collect();
    let work: Vec<Work> = (0..problem.task_count() as u32).map(|task| problem.work(task)).collect();
    let dependents = problem.dependents();
    let waits = problem.waits(&dependents);
    let tasks = Tasks { work: &work, priority: &priority, dependents: &dependents, waits, record: false };
    run_greedy(problem.topology, &problem.machine, tasks)
}

/// By task: the longest way from its start to the end of the step, undisturbed.
pub(super) fn ranks(problem: &Problem<'_>) -> Vec<Nanos> {
    let graph = problem.graph;
    let copies = &problem.copies;
    let mut rank = vec![Nanos::ZERO; problem.task_count()];
    // By arrival: the longest way from the moment at which it is there.
    let mut beyond = vec![Nanos::ZERO; copies.arrival_count()];
    let order = graph.topological_order().unwrap_or_default();
    for &node in order.iter().rev() {
        let mut longest = rank[node.index()];
        for tensor in graph.outputs(node) {
            // Leaves first: what goes on from an arrival is known before the arrival's own way is.
            for arrival in copies.leaves_first(tensor) {
                let target = copies.arrival(arrival);
                let route = problem.topology.route(target.from, target.to);
                for copy in copies.filling(arrival) {
                    let own = beyond[arrival.index()] + route.time(copies.bytes(copy));
                    rank[problem.copy_task(copy) as usize] = own;
                    let before = match target.origin {
                        Some(origin) => &mut beyond[origin.index()],
                        None => &mut longest,
                    };
                    *before = (*before).max(own);
                }
            }
        }
        longest += problem.duration(node);
        rank[node.index()] = longest;
        for source in copies.sources(node) {
            let before = match *source {
                Source::Local(producer) => &mut rank[producer.index()],
                Source::Copied(arrival) => &mut beyond[arrival.index()],
                Source::Resident => continue,
            };
            *before = (*before).max(longest);
        }
    }
    rank
}

/// Among those ready, what adds the fewest bytes. A node's key falls when it becomes the last
/// reader of an input; it is then entered again and the old entry skipped.
fn by_memory(problem: &Problem<'_>) -> Vec<NodeIx> {
    let graph = problem.graph;
    let mut waits = Waits::new(problem);
    let mut readers: Vec<u32> = graph.tensors().map(|t| graph.consumers(t).len() as u32).collect();
    let mut key: Vec<i128> = graph.nodes().map(|node| added_bytes(problem, node)).collect();
    let mut done = vec![false; graph.node_count()];
    let mut is_ready = vec![false; graph.node_count()];
    let mut count = 0u32;
    let mut ready: BinaryHeap<(Reverse<i128>, u32, Reverse<NodeIx>)> = BinaryHeap::new();
    for node in waits.ready(problem) {
        is_ready[node.index()] = true;
        ready.push((Reverse(key[node.index()]), count, Reverse(node)));
    }
    let mut order = Vec::with_capacity(graph.node_count());
    while let Some((_, _, Reverse(node))) = ready.pop() {
        if std::mem::replace(&mut done[node.index()], true) {
            continue;
        }
        order.push(node);
        count += 1;
        for &tensor in graph.inputs(node) {
            readers[tensor.index()] -= 1;
            // One reader is left, and will free the tensor.
            if readers[tensor.index()] != 1 || !graph.is_freed(tensor) {
                continue;
            }
            let Some(&last) = graph.consumers(tensor).iter().find(|reader| !done[reader.index()]) else {
                continue;
            };
            key[last.index()] -= i128::from(graph.tensor_bytes(tensor).0);
            if is_ready[last.index()] {
                ready.push((Reverse(key[last.index()]), count, Reverse(last)));
            }
        }
        waits.done(problem, node, |next| {
            is_ready[next.index()] = true;
            ready.push((Reverse(key[next.index()]), count, Reverse(next)));
        });
    }
    order
}

/// What a node makes, less what only it reads.
fn added_bytes(problem: &Problem<'_>, node: NodeIx) -> i128 {
    let graph = problem.graph;
    let made: i128 = graph.outputs(node).map(|tensor| i128::from(graph.tensor_bytes(tensor).0)).sum();
    let freed = |&&tensor: &&TensorIx| graph.consumers(tensor).len() == 1 && graph.is_freed(tensor);
    let freed: i128 =
        graph.inputs(node).iter().filter(freed).map(|&t| i128::from(graph.tensor_bytes(t).0)).sum();
    made - freed
}

/// For each node how many inputs are not made yet.
struct Waits(Vec<u32>);

impl Waits {
    fn new(problem: &Problem<'_>) -> Self {
        let graph = problem.graph;
        let made = |tensor: &&TensorIx| graph.role(graph.producer(**tensor)) == Role::Compute;
        Self(graph.nodes().map(|node| graph.inputs(node).iter().filter(made).count() as u32).collect())
    }

    fn ready(&self, problem: &Problem<'_>) -> impl Iterator<Item = NodeIx> {
        problem.graph.nodes().filter(|node| self.0[node.index()] == 0 && problem.runs(node.0))
    }

    fn done(&mut self, problem: &Problem<'_>, node: NodeIx, mut ready: impl FnMut(NodeIx)) {
        for tensor in problem.graph.outputs(node) {
            for &consumer in problem.graph.consumers(tensor) {
                self.0[consumer.index()] -= 1;
                if self.0[consumer.index()] == 0 {
                    ready(consumer);
                }
            }
        }
    }
}

/// The launches in the given order; what is offloaded leaves as soon as it is made, and each other
/// copy comes just before the first launch that reads it.
pub(super) fn with_copies(problem: &Problem<'_>, launches: &[NodeIx]) -> Vec<u32> {
    let mut lister = Lister::new(problem, launches.len());
    for &node in launches {
        for source in problem.copies.sources(node) {
            match *source {
                Source::Copied(arrival) => lister.arrive(arrival),
                Source::Local(_) | Source::Resident => {}
            }
        }
        lister.order.push(node.0);
        lister.offload(node);
    }
    lister.order
}

/// The order with whatever comes back from the host listed just before its first reader: a list
/// that is greedy for speed would fetch it as soon as it is there.
fn fetched_late(problem: &Problem<'_>, order: Vec<u32>) -> Vec<u32> {
    if problem.copies.offload().is_empty() {
        return order;
    }
    let mut lister = Lister::new(problem, order.len());
    for &task in &order {
        match problem.task(task) {
            Task::Launch(node) => {
                for source in problem.copies.sources(node) {
                    match *source {
                        Source::Copied(arrival) => lister.arrive(arrival),
                        Source::Local(_) | Source::Resident => {}
                    }
                }
                lister.order.push(task);
            }
            // What comes back from a host is left to its first reader.
            Task::Copy(copy) if problem.copies.target(copy).origin.is_some() => {}
            Task::Copy(copy) => lister.arrive(problem.copies.fills(copy)),
        }
    }
    lister.order
}

/// Lists each arrival's copies once, after those of the arrival that they come from.
struct Lister<'p, 'a> {
    problem: &'p Problem<'a>,
    order: Vec<u32>,
    /// By arrival.
    listed: Vec<bool>,
}

impl<'p, 'a> Lister<'p, 'a> {
    fn new(problem: &'p Problem<'a>, tasks: usize) -> Self {
        let listed = vec![false; problem.copies.arrival_count()];
        Self { problem, order: Vec::with_capacity(tasks + problem.copies.len()), listed }
    }

    fn arrive(&mut self, arrival: ArrivalIx) {
        let mut way = Vec::new();
        let mut last = arrival;
        while let Some(origin) = self.problem.copies.arrival(last).origin {
            way.push(last);
            last = origin;
        }
        self.fill(last);
        way.iter().rev().for_each(|&arrival| self.fill(arrival));
    }

    fn fill(&mut self, arrival: ArrivalIx) {
        if !std::mem::replace(&mut self.listed[arrival.index()], true) {
            let copies = self.problem.copies.filling(arrival);
            self.order.extend(copies.map(|copy| self.problem.copy_task(copy)));
        }
    }

    /// Lists what leaves for the host once a node is done.
    fn offload(&mut self, node: NodeIx) {
        let offload = self.problem.copies.offload();
        if offload.is_empty() {
            return;
        }
        for tensor in self.problem.graph.outputs(node) {
            if let Ok(found) = offload.binary_search_by_key(&tensor, |offload| offload.tensor)
                && let Some(arrival) = self.problem.copies.find(tensor, offload[found].host)
            {
                self.arrive(arrival);
            }
        }
    }
}
