//! Makes a schedule faster by local search on the simulator.
//!
//! A candidate says how urgent each launch and each arrival is, where arrivals come from and in
//! which parts ([`Arrangement`]), and what is held back until something else is done. Greedy list
//! scheduling on the simulator makes an order of it, so every candidate is sound; one that would
//! wait for itself does not end and is dropped.
//!
//! Broadcast trees (`trees`) and parts (`parts`) are tried first, all together and then tensor by
//! tensor; what is not needed goes again. Then the critical path is walked, and wherever something
//! on it waited for an engine or a channel that something else had taken, the two change places: the
//! later one becomes more urgent, or the earlier one is held back. Where nothing on the path helps,
//! all urgencies are shaken a little. Ordering transfers by what waits for them is the idea of
//! TicTac (Hashemi, Jyothi and Campbell, MLSys 2019); holding back what would take a busy resource
//! too early is what XLA's latency-hiding scheduler does with its async copies.
//!
//! Work is counted, in simulated tasks, so that the result is the same on every machine.

mod candidate;
mod conflicts;
mod parts;
mod trees;

use crate::costgraph::{CostGraph, Role, TensorIx};
use crate::error::Result;
use crate::place::Placement;
use crate::random::Rng;
use crate::schedule::assemble::assemble;
use crate::schedule::copies::{Arrangement, ArrivalIx};
use crate::schedule::fit::fit;
use crate::schedule::memory::residents::Residents;
use crate::schedule::order::improve::candidate::{Candidate, Item, Scored, score};
use crate::schedule::order::improve::conflicts::{Conflict, conflicts};
use crate::schedule::problem::{Problem, Task};
use crate::schedule::{Options, Schedule, Why, order};
use crate::topology::Topology;
use crate::units::Nanos;

/// Steps up to which a schedule is improved.
pub const MOST_STEPS: usize = 20_000;

/// How much a schedule is improved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// Tasks that may be simulated.
    pub work: u64,
    /// Candidates that may be simulated.
    pub candidates: u32,
    /// Whether copies may be relayed and split. That changes the loads of channels.
    pub copies: bool,
}

/// A schedule of the same placement that is at least as fast, under the same caps. It moves the same
/// bytes. The schedule itself where it has more than [`MOST_STEPS`] steps.
///
/// Errors: the schedule is not one of this placement.
pub fn improve(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    schedule: Schedule,
    options: &Options,
    search: Search,
) -> Result<Schedule> {
    if schedule.steps.len() > MOST_STEPS || search.candidates == 0 {
        return Ok(schedule);
    }
    let (initial, tasks) = Problem::of_schedule(graph, topology, placement, &schedule)?;
    let base = Problem::new(graph, topology, &placement.device, &schedule.offload)?;
    let arrangement = base.arrangement(&schedule.replay_steps()).unwrap_or_default();
    let Some(mut improver) = Improver::new(base, &initial, arrangement, &tasks, search) else {
        return Ok(schedule);
    };
    if improver.is_least(schedule.cost.latency) {
        return Ok(schedule);
    }
    if search.copies {
        improver.rearrange();
    }
    improver.reorder();
    improver.simplify();
    improver.finish(schedule, options)
}

/// Where the random numbers of a search begin: any number would do.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

struct Improver<'a> {
    base: Problem<'a>,
    best: Scored<'a>,
    search: Search,
    random: Rng,
}

/// Distance of urgencies that follow one another, so that others fit between.
const GAP: u64 = 1 << 20;

/// Tensors whose copies are tried one by one.
const MOST_TENSORS: usize = 64;

/// Holds that are looked at once more when the schedule is put together.
const MOST_HOLDS: usize = 32;

/// Into how many parts a tensor is tried to be split.
const PARTS: [u64; 3] = [4, 2, 8];

/// Which candidates replace the best one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accept {
    Faster,
    /// Those that take the same time, too: what they leave out is not needed.
    AsFast,
}

impl<'a> Improver<'a> {
    /// None where the schedule cannot be simulated as it is.
    fn new(
        base: Problem<'a>,
        initial: &Problem<'a>,
        arrangement: Arrangement,
        tasks: &[u32],
        search: Search,
    ) -> Option<Self> {
        let count = base.copies.arrival_count();
        let mut candidate = Candidate {
            arrangement,
            launches: vec![0; base.graph.node_count()],
            arrivals: vec![u64::MAX; count],
            holds: Vec::new(),
        };
        for (position, &task) in tasks.iter().enumerate() {
            let urgency = (position as u64 + 1) * GAP;
            match initial.task(task) {
                Task::Launch(node) => candidate.launches[node.index()] = urgency,
                Task::Copy(copy) => {
                    // An arrival is as urgent as its first part.
                    let arrival = &mut candidate.arrivals[initial.copies.fills(copy).index()];
                    *arrival = urgency.min(*arrival);
                }
            }
        }
        let mut spare = search;
        let best = score(&base, candidate, &mut spare)?;
        Some(Self { base, best, search: spare, random: Rng::new(SEED) })
    }

    fn is_over(&self) -> bool {
        self.search.candidates == 0 || self.search.work == 0
    }

    /// Takes a candidate that is fast enough; true where it was.
    fn attempt(&mut self, candidate: Candidate, accept: Accept) -> bool {
        if self.is_over() {
            return false;
        }
        let Some(scored) = score(&self.base, candidate, &mut self.search) else { return false };
        let (new, old) = (scored.run.timeline.latency, self.best.run.timeline.latency);
        let taken = new < old || (accept == Accept::AsFast && new == old);
        if taken {
            self.best = scored;
        }
        taken
    }

    /// By arrival: the longest way from its arriving to the end of the step, as things are.
    fn urgency(&self) -> Vec<Nanos> {
        let (problem, ranks) = (&self.best.problem, order::ranks(&self.best.problem));
        let rank = |arrival| {
            let ranks = problem.copies.filling(arrival).map(|copy| ranks[problem.copy_task(copy) as usize]);
            ranks.max().unwrap_or_default()
        };
        problem.copies.arrivals().map(rank).collect()
    }

    /// No order is faster with the copies as they are: neither than the longest way through the step,
    /// nor than the work of any engine.
    fn least(&self) -> Nanos {
        let problem = &self.best.problem;
        let mut busy = vec![Nanos::ZERO; problem.machine.engine_count()];
        for node in problem.graph.nodes().filter(|&node| problem.graph.role(node) == Role::Compute) {
            busy[problem.machine.engine(problem.device(node))] += problem.duration(node);
        }
        order::ranks(problem).into_iter().chain(busy).max().unwrap_or_default()
    }

    /// True where no copies, however they come, and no order make a step of this latency faster.
    fn is_least(&self, latency: Nanos) -> bool {
        let copies = self.search.copies && self.base.copies.arrival_count() > 0;
        !copies && latency <= self.least()
    }

    /// A candidate with other urgencies: by the ranks of its own arrangement, each changed by up to
    /// `noise` thousandths.
    fn ranked(&mut self, mut candidate: Candidate, noise: u64) -> Candidate {
        let problem = self.base.arranged(&candidate.arrangement);
        let ranks = order::ranks(&problem);
        let mut shaken = |rank: Nanos| {
            let part = 1000 + if noise == 0 { 0 } else { self.random.next_u64() % (noise + 1) };
            let shaken = u128::from(rank.0) * u128::from(part) / 1000;
            u64::MAX - u64::try_from(shaken).unwrap_or(u64::MAX)
        };
        for node in problem.graph.nodes() {
            candidate.launches[node.index()] = shaken(ranks[node.index()]);
        }
        for arrival in problem.copies.arrivals() {
            let first = problem.copies.filling(arrival).next();
            let rank = first.map_or(Nanos::ZERO, |copy| ranks[problem.copy_task(copy) as usize]);
            candidate.arrivals[arrival.index()] = shaken(rank);
        }
        candidate
    }

    /// Trees and parts: all that promise something, then the largest one by one.
    fn rearrange(&mut self) {
        let trees = trees::propose(&self.base, &self.urgency());
        if !trees.is_empty() {
            let mut all = self.best.candidate.clone();
            trees.iter().for_each(|(tensor, tree)| all.relay(&self.base, *tensor, Some(tree)));
            // Trees change the ranks: both the urgencies as they were and new ones are tried.
            let ranked = self.ranked(all.clone(), 0);
            if !self.attempt(all, Accept::Faster) && !self.attempt(ranked, Accept::Faster) {
                for (tensor, tree) in self.largest(&trees) {
                    let mut one = self.best.candidate.clone();
                    one.relay(&self.base, tensor, Some(&tree));
                    self.attempt(one, Accept::Faster);
                }
            }
        }
        let mut moved: Vec<TensorIx> = self.base.graph.tensors().collect();
        moved.retain(|&tensor| self.base.copies.of(tensor).len() > 0);
        for count in PARTS {
            let mut all = self.best.candidate.clone();
            moved.iter().for_each(|&tensor| all.split(&self.base, &self.best.problem, tensor, count));
            if all.arrangement != self.best.candidate.arrangement {
                self.attempt(all, Accept::Faster);
            }
        }
    }

    /// The trees of the tensors that move most bytes.
    fn largest(&self, trees: &[(TensorIx, trees::Tree)]) -> Vec<(TensorIx, trees::Tree)> {
        let bytes = |tensor: TensorIx| self.base.graph.tensor_bytes(tensor).0;
        let mut trees = trees.to_vec();
        trees.sort_by_key(|(tensor, tree)| {
            (std::cmp::Reverse(u128::from(bytes(*tensor)) * tree.len() as u128), *tensor)
        });
        trees.truncate(MOST_TENSORS);
        trees
    }

    /// Follows the critical path as long as that helps, and shakes the urgencies where it does not.
    fn reorder(&mut self) {
        let ranked = self.ranked(self.best.candidate.clone(), 0);
        self.attempt(ranked, Accept::Faster);
        while !self.is_over() && self.best.run.timeline.latency > self.least() {
            if self.follow() {
                continue;
            }
            let noise = [50, 200, 500][(self.random.next_u64() % 3) as usize];
            let shaken = self.ranked(self.best.candidate.clone(), noise);
            self.attempt(shaken, Accept::Faster);
        }
    }

    /// Tries what could shorten the critical path, from its end on; true with the first that does.
    fn follow(&mut self) -> bool {
        let conflicts = conflicts(&self.best);
        for conflict in conflicts {
            for candidate in self.answers(conflict) {
                if self.attempt(candidate, Accept::Faster) {
                    return true;
                }
                if self.is_over() {
                    return false;
                }
            }
        }
        false
    }

    /// Candidates in which a conflict is resolved otherwise.
    fn answers(&mut self, conflict: Conflict) -> Vec<Candidate> {
        let now = self.best.candidate.clone();
        let mut answers = Vec::new();
        match conflict {
            Conflict::Blocked { late, early } => {
                let mut sooner = now.clone();
                *sooner.urgency(late) = now.urgency_of(early).saturating_sub(1);
                answers.push(sooner.clone());
                if self.may_hold(early, late) {
                    // Held until the data of the late one is made, or until that one is done.
                    for until in [self.source(late), Some(late)].into_iter().flatten() {
                        if until != early {
                            let mut delayed = sooner.clone();
                            delayed.holds.push((early, until));
                            answers.push(delayed);
                        }
                    }
                }
            }
            Conflict::Copied(arrival) if self.search.copies => {
                let tensor = self.base.copies.arrival(arrival).tensor;
                for count in PARTS {
                    let mut split = now.clone();
                    split.split(&self.base, &self.best.problem, tensor, count);
                    if split.arrangement != now.arrangement {
                        answers.push(split);
                    }
                }
                if self.base.copies.of(tensor).len() > 1 {
                    let trees = trees::propose_for(&self.best.problem, tensor, &self.urgency());
                    for tree in [trees.as_ref(), None] {
                        let mut other = now.clone();
                        other.relay(&self.base, tensor, tree);
                        if other.arrangement != now.arrangement {
                            answers.push(other);
                        }
                    }
                }
            }
            Conflict::Copied(_) => {}
        }
        answers
    }

    /// Launches are held back by the order of their own lane; copies by a dependency.
    fn may_hold(&self, early: Item, late: Item) -> bool {
        match (early, late) {
            (Item::Launch(a), Item::Launch(b)) => self.base.device(a) == self.base.device(b),
            (Item::Arrival(_), _) => true,
            (Item::Launch(_), Item::Arrival(_)) => false,
        }
    }

    /// What makes the data that an arrival brings.
    fn source(&self, item: Item) -> Option<Item> {
        let Item::Arrival(arrival) = item else { return None };
        let arrival = self.best.problem.copies.arrival(arrival);
        let producer = self.base.graph.producer(arrival.tensor);
        match arrival.origin {
            Some(origin) => Some(Item::Arrival(origin)),
            None => (self.base.graph.role(producer) == Role::Compute).then_some(Item::Launch(producer)),
        }
    }

    /// Takes back whatever the result does not need: holds, parts, relays.
    fn simplify(&mut self) {
        // What the result does not need is taken back even if the search has spent its work.
        self.search.candidates = self.search.candidates.max(MOST_TENSORS as u32);
        self.search.work = u64::MAX;
        for number in (0..self.best.candidate.holds.len()).rev() {
            let mut without = self.best.candidate.clone();
            without.holds.remove(number);
            self.attempt(without, Accept::AsFast);
        }
        let split: Vec<ArrivalIx> = self.best.candidate.arrangement.parts.iter().map(|part| part.0).collect();
        let relayed: Vec<ArrivalIx> =
            self.best.candidate.arrangement.origins.iter().map(|part| part.0).collect();
        let mut tensors: Vec<TensorIx> =
            split.iter().chain(&relayed).map(|&arrival| self.base.copies.arrival(arrival).tensor).collect();
        tensors.dedup();
        for &tensor in &tensors {
            let mut whole = self.best.candidate.clone();
            whole.join(&self.base, tensor);
            if whole.arrangement != self.best.candidate.arrangement {
                self.attempt(whole, Accept::AsFast);
            }
            let mut direct = self.best.candidate.clone();
            direct.join(&self.base, tensor);
            direct.relay(&self.base, tensor, None);
            if direct.arrangement != self.best.candidate.arrangement {
                self.attempt(direct, Accept::AsFast);
            }
        }
    }

    /// The schedule of the best candidate where it fits and is faster than the one that was given.
    fn finish(self, initial: Schedule, options: &Options) -> Result<Schedule> {
        let Scored { mut problem, run, .. } = self.best;
        let caps = options.caps(problem.topology)?;
        let residents = Residents::new(&problem)?;
        let made = |problem: &Problem<'_>| -> Result<Option<Schedule>> {
            let draft = fit(problem, &residents, &run.order, &caps, options.pressing())?.ok();
            Ok(draft.map(|draft| assemble(problem, &residents, &run.order, draft)))
        };
        let Some(mut best) = made(&problem)?.filter(|made| made.cost.latency < initial.cost.latency) else {
            return Ok(initial);
        };
        // What is held back without need, now that memory has its say, is let go.
        for number in (0..problem.holds.len()).rev().take(MOST_HOLDS) {
            let starves = |schedule: &Schedule| {
                schedule.steps.iter().flat_map(|step| &step.control).any(|(_, why)| *why == Why::Starve)
            };
            if !starves(&best) {
                break;
            }
            let hold = problem.holds.remove(number);
            match made(&problem)?.filter(|made| made.cost.latency <= best.cost.latency) {
                Some(without) => best = without,
                None => problem.holds.insert(number, hold),
            }
        }
        Ok(best)
    }
}
