//! In which order the steps stand.
//!
//! [`list`] gives a topological order of all tasks by one of three [`Rule`]s. The first is for
//! speed; the others hold less memory and are for caps that the first does not meet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::copies::{CopyIx, Source};
use super::problem::Problem;
use super::simulate::{Run, Tasks, Work, run_greedy};
use crate::costgraph::{NodeIx, Role, TensorIx};
use crate::units::Nanos;

/// How to order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Greedy list scheduling on the simulator; the most urgent is what has the longest way,
    /// copies included, to the end of the step (the upward rank of HEFT: Topcuoglu, Hariri and Wu
    /// 2002). Copies start as early as their producers allow.
    Urgency,
    /// The order of the source, as far as it is topological; copies just before their first reader.
    Source,
    /// Always next what adds the fewest bytes (what it makes less what it reads last), the most
    /// recently ready among equals; copies just before their first reader.
    Memory,
}

impl Rule {
    pub(super) const ALL: [Self; 3] = [Self::Urgency, Self::Source, Self::Memory];
}

/// The tasks in a topological order. O((nodes + edges) log nodes).
pub(super) fn list(problem: &Problem<'_>, rule: Rule) -> Vec<u32> {
    match rule {
        Rule::Urgency => urgent(problem).order,
        Rule::Source => with_copies(problem, &by_source(problem)),
        Rule::Memory => with_copies(problem, &by_memory(problem)),
    }
}

/// Greedy list scheduling, with its times.
pub(super) fn urgent(problem: &Problem<'_>) -> Run {
    let priority: Vec<u64> = ranks(problem).into_iter().map(|rank| u64::MAX - rank.0).collect();
    let work: Vec<Work> = (0..problem.task_count() as u32).map(|task| problem.work(task)).collect();
    let dependents = problem.dependents();
    let mut waits = dependents.occurrences(problem.task_count());
    for (task, waits) in waits.iter_mut().enumerate() {
        if !problem.runs(task as u32) {
            *waits = u32::MAX;
        }
    }
    let tasks = Tasks { work: &work, priority: &priority, dependents: &dependents, waits };
    run_greedy(problem.topology, &problem.machine, tasks)
}

/// By task: the longest way from its start to the end of the step, undisturbed.
fn ranks(problem: &Problem<'_>) -> Vec<Nanos> {
    let graph = problem.graph;
    let mut rank = vec![Nanos::ZERO; problem.task_count()];
    let order = graph.topological_order().unwrap_or_default();
    for &node in order.iter().rev() {
        let mut longest = rank[node.index()];
        for tensor in graph.outputs(node) {
            for copy in problem.copies.of(tensor) {
                let route = problem.topology.route(problem.device(node), problem.copies.receiver(copy));
                let own = &mut rank[problem.copy_task(copy) as usize];
                *own += route.time(graph.tensor_bytes(tensor));
                longest = longest.max(*own);
            }
        }
        longest += problem.duration(node);
        rank[node.index()] = longest;
        for source in problem.copies.sources(node) {
            let task = match *source {
                Source::Local(producer) => producer.0,
                Source::Copied(copy) => problem.copy_task(copy),
                Source::Resident => continue,
            };
            let before = &mut rank[task as usize];
            *before = (*before).max(longest);
        }
    }
    rank
}

/// Kahn's algorithm, the least node number among those ready first.
fn by_source(problem: &Problem<'_>) -> Vec<NodeIx> {
    let graph = problem.graph;
    let mut waits = Waits::new(problem);
    let mut ready: BinaryHeap<Reverse<NodeIx>> = waits.ready(problem).map(Reverse).collect();
    let mut order = Vec::with_capacity(graph.node_count());
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        waits.done(problem, node, |next| ready.push(Reverse(next)));
    }
    order
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
            if readers[tensor.index()] != 1 || !is_freed(problem, tensor) {
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

/// True where the tensor's bytes can be used again after its last reader.
fn is_freed(problem: &Problem<'_>, tensor: TensorIx) -> bool {
    let role = problem.graph.role(problem.graph.producer(tensor));
    role == Role::Compute && !problem.graph.is_result(tensor)
}

/// What a node makes, less what only it reads.
fn added_bytes(problem: &Problem<'_>, node: NodeIx) -> i128 {
    let graph = problem.graph;
    let made: i128 = graph.outputs(node).map(|tensor| i128::from(graph.tensor_bytes(tensor).0)).sum();
    let freed = |&&tensor: &&TensorIx| graph.consumers(tensor).len() == 1 && is_freed(problem, tensor);
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

/// The launches in the given order, each copy just before the first that reads it.
pub(super) fn with_copies(problem: &Problem<'_>, launches: &[NodeIx]) -> Vec<u32> {
    let mut order = Vec::with_capacity(launches.len() + problem.copies.len());
    let mut listed = vec![false; problem.copies.len()];
    let mut list = |order: &mut Vec<u32>, copy: CopyIx| {
        if !std::mem::replace(&mut listed[copy.index()], true) {
            order.push(problem.copy_task(copy));
        }
    };
    for &node in launches {
        for source in problem.copies.sources(node) {
            match *source {
                Source::Copied(copy) => list(&mut order, copy),
                Source::Local(_) | Source::Resident => {}
            }
        }
        order.push(node.0);
    }
    order
}
