//! What an order is made of, and what comes of it on the simulator.

use crate::costgraph::{NodeIx, TensorIx};
use crate::schedule::copies::{Arrangement, ArrivalIx};
use crate::schedule::order::improve::{Search, parts, trees};
use crate::schedule::problem::{Problem, Task};
use crate::schedule::simulate::{Run, Tasks, Work, run_greedy};

/// What can be urgent, or be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Item {
    Launch(NodeIx),
    Arrival(ArrivalIx),
}

/// What an order is made of.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) arrangement: Arrangement,
    /// By node; the least is the most urgent.
    pub(crate) launches: Vec<u64>,
    /// By arrival.
    pub(crate) arrivals: Vec<u64>,
    /// What is held back, and until when.
    pub(crate) holds: Vec<(Item, Item)>,
}

/// A candidate with its order and times.
pub(crate) struct Scored<'a> {
    pub(crate) candidate: Candidate,
    pub(crate) problem: Problem<'a>,
    pub(crate) run: Run,
}

impl Candidate {
    pub(crate) fn urgency(&mut self, item: Item) -> &mut u64 {
        match item {
            Item::Launch(node) => &mut self.launches[node.index()],
            Item::Arrival(arrival) => &mut self.arrivals[arrival.index()],
        }
    }

    pub(crate) fn urgency_of(&self, item: Item) -> u64 {
        match item {
            Item::Launch(node) => self.launches[node.index()],
            Item::Arrival(arrival) => self.arrivals[arrival.index()],
        }
    }

    /// Lets a tensor's arrivals come as a tree says; straight from home without one. Parts, which
    /// belong to the way, are joined.
    pub(crate) fn relay(&mut self, base: &Problem<'_>, tensor: TensorIx, tree: Option<&trees::Tree>) {
        if base.copies.is_offloaded(tensor) {
            return;
        }
        self.join(base, tensor);
        let of = |arrival: ArrivalIx| base.copies.arrival(arrival).tensor == tensor;
        self.arrangement.origins.retain(|&(arrival, _)| !of(arrival));
        let relayed = tree.into_iter().flatten().filter(|(_, origin)| origin.is_some());
        self.arrangement.origins.extend(relayed.copied());
        self.arrangement.origins.sort_unstable();
    }

    /// Lets a tensor's arrivals come whole.
    pub(crate) fn join(&mut self, base: &Problem<'_>, tensor: TensorIx) {
        self.arrangement.parts.retain(|(arrival, _)| base.copies.arrival(*arrival).tensor != tensor);
    }

    /// Lets a tensor's arrivals come in so many parts, where that may help. `problem` has them as
    /// they come now.
    pub(crate) fn split(&mut self, base: &Problem<'_>, problem: &Problem<'_>, tensor: TensorIx, count: u64) {
        let split = parts::propose(problem, tensor, count);
        if !split.is_empty() {
            self.join(base, tensor);
            self.arrangement.parts.extend(split);
            self.arrangement.parts.sort_by_key(|(arrival, _)| *arrival);
        }
    }
}

/// The order and the times of a candidate; none where it waits for itself.
pub(crate) fn score<'a>(base: &Problem<'a>, candidate: Candidate, search: &mut Search) -> Option<Scored<'a>> {
    let mut problem = base.arranged(&candidate.arrangement);
    for &(delayed, until) in &candidate.holds {
        // The last part implies the others: copies of one arrival complete in order.
        let done: Vec<u32> = tasks(&problem, until);
        for task in tasks(&problem, delayed) {
            problem.holds.extend(done.last().map(|&other| (task, other)));
        }
    }
    problem.holds.sort_unstable();
    problem.holds.dedup();
    search.candidates = search.candidates.saturating_sub(1);
    search.work = search.work.saturating_sub(problem.task_count() as u64);
    let work: Vec<Work> = (0..problem.task_count() as u32).map(|task| problem.work(task)).collect();
    let urgency = |task: u32| match problem.task(task) {
        Task::Launch(node) => candidate.launches[node.index()],
        Task::Copy(copy) => candidate.arrivals[problem.copies.fills(copy).index()],
    };
    let priority: Vec<u64> = (0..problem.task_count() as u32).map(urgency).collect();
    let dependents = problem.dependents();
    let waits = problem.waits(&dependents);
    let tasks = Tasks { work: &work, priority: &priority, dependents: &dependents, waits, record: true };
    let run = run_greedy(problem.topology, &problem.machine, tasks);
    // What waits for itself never becomes ready, and is missing from the order.
    let whole = (0..problem.task_count() as u32).filter(|&task| problem.runs(task)).count();
    (run.order.len() == whole).then_some(Scored { candidate, problem, run })
}

/// The tasks of an item, in order.
fn tasks(problem: &Problem<'_>, item: Item) -> Vec<u32> {
    match item {
        Item::Launch(node) => vec![node.0],
        Item::Arrival(arrival) => {
            problem.copies.filling(arrival).map(|copy| problem.copy_task(copy)).collect()
        }
    }
}
