//! What an engine can hold if no load is above some limit, copies over the boundary of what it holds included.
//!
//! Groups are decided one after the other, in a fixed order: in the engine's set or not. What was decided matters to
//! the rest through the open nets alone, those with groups on both sides of the line: so far all of a net is in, all is
//! out, or it is cut and paid for. By such states, and by the weight of the set, the least load is found exactly. The
//! states are as few as the nets that cross the line allow (dynamic programming over a linear layout of small
//! vertex separation: Kinnersley, "The vertex separation number of a graph equals its path-width", 1992).

use std::collections::BTreeMap;

/// No set has this load.
const NONE: u64 = 1 << 62;

/// Limits above which loads are not counted.
const MOST_LIMIT: u64 = 1 << 48;

/// Groups of which some make and others read what is copied.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CopiedNet {
    /// The groups, ascending.
    pub(super) members: Vec<u32>,
    /// What a copy adds to the load of an engine that holds some of them, but not all.
    pub(super) load: u64,
}

/// Where the decided groups of an open net are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Out,
    In,
    /// Some in and some out: paid for.
    Cut,
}

/// A decision about one group: from one state to another.
struct Arc {
    from: u32,
    to: u32,
    /// True where the group is in the set.
    taken: bool,
    load: u64,
}

/// All decisions about one group, by the state that they lead to.
struct Step {
    group: u32,
    arcs: Vec<Arc>,
    /// By state that they lead to, the least load that is still to come.
    to_come: Vec<u64>,
}

/// Sets of groups that load an engine no more than the limit.
pub(super) struct Frontier {
    steps: Vec<Step>,
    limit: u64,
}

/// By step and state, for each weight the least load of a set.
pub(super) struct Filled(Vec<Vec<Vec<u64>>>);

impl Frontier {
    /// Over groups in `order`, each with its time or none where it cannot be. None where there are more than
    /// `most` states.
    pub(super) fn new(
        order: &[u32],
        times: &[Option<u64>],
        nets: &[CopiedNet],
        limit: u64,
        most: usize,
    ) -> Option<Self> {
        if limit > MOST_LIMIT || order.len() > 1 << 12 {
            return None;
        }
        let mut line = Line::new(order.len(), nets);
        let mut states = BTreeMap::from([(Vec::new(), (0, 0))]);
        let mut steps = Vec::with_capacity(order.len());
        let mut count = 0;
        for &group in order {
            let (step, next) = line.step(group, times[group as usize], &states, limit);
            count += next.len();
            if count > most {
                return None;
            }
            steps.push(step);
            states = next;
        }
        let mut frontier = Self { steps, limit };
        frontier.look_back();
        Some(frontier)
    }

    /// How many states there are, at all steps together.
    pub(super) fn states(&self) -> usize {
        self.steps.iter().map(|step| step.to_come.len()).sum()
    }

    /// Finds the least load to come from each state.
    fn look_back(&mut self) {
        for number in (1..self.steps.len()).rev() {
            let mut to_come = vec![NONE; self.steps[number - 1].to_come.len()];
            let step = &self.steps[number];
            for arc in &step.arcs {
                let least = &mut to_come[arc.from as usize];
                *least = (*least).min(arc.load + step.to_come[arc.to as usize]);
            }
            self.steps[number - 1].to_come = to_come;
        }
    }

    /// By weight, the least load of sets of that weight. O(states x weight).
    pub(super) fn fill(&self, weights: &[u32]) -> Filled {
        let mut rows: Vec<Vec<Vec<u64>>> = vec![vec![vec![0]]];
        for step in &self.steps {
            let mut next = vec![Vec::new(); step.to_come.len()];
            for arc in &step.arcs {
                let from = &rows[rows.len() - 1][arc.from as usize];
                let more = if arc.taken { weights[step.group as usize] as usize } else { 0 };
                let to: &mut Vec<u64> = &mut next[arc.to as usize];
                if to.len() < from.len() + more {
                    to.resize(from.len() + more, NONE);
                }
                for (least, load) in to[more..].iter_mut().zip(from) {
                    *least = (*least).min(load + arc.load);
                }
            }
            for (row, to_come) in next.iter_mut().zip(&step.to_come) {
                while row.last().is_some_and(|load| load + to_come > self.limit) {
                    row.pop();
                }
            }
            rows.push(next);
        }
        Filled(rows)
    }

    /// The groups of a set of some weight, of the least load.
    pub(super) fn set(&self, filled: &Filled, weights: &[u32], mut weight: usize) -> Vec<u32> {
        let (mut state, mut set) = (0, Vec::new());
        for (number, step) in self.steps.iter().enumerate().rev() {
            let load = filled.0[number + 1][state as usize][weight];
            let comes = |arc: &&Arc| {
                let more = if arc.taken { weights[step.group as usize] as usize } else { 0 };
                let from = &filled.0[number][arc.from as usize];
                let before = weight.checked_sub(more).and_then(|before| from.get(before));
                arc.to == state && before.is_some_and(|before| before + arc.load == load)
            };
            let Some(arc) = step.arcs.iter().find(comes) else { break };
            state = arc.from;
            if arc.taken {
                weight -= weights[step.group as usize] as usize;
                set.push(step.group);
            }
        }
        set
    }
}

impl Filled {
    /// By weight, the least load; above any limit where no set has that weight.
    pub(super) fn loads(&self) -> &[u64] {
        self.0.last().and_then(|rows| rows.first()).map_or(&[], Vec::as_slice)
    }

    /// The most weight that an engine holds if it is loaded no more than `limit`.
    pub(super) fn heaviest(&self, limit: u64) -> usize {
        self.loads().iter().rposition(|&load| load <= limit).unwrap_or(0)
    }

    /// Loads that were counted.
    pub(super) fn len(&self) -> usize {
        self.0.iter().flatten().map(Vec::len).sum()
    }
}

/// Nets while groups are decided.
struct Line<'n> {
    nets: &'n [CopiedNet],
    /// By group, its nets.
    of_group: Vec<Vec<u32>>,
    /// By net, how many of its groups are not decided.
    left: Vec<usize>,
    open: Vec<u32>,
}

/// By state its number, and the least load of a set that leads there.
type States = BTreeMap<Vec<Side>, (u32, u64)>;

impl<'n> Line<'n> {
    fn new(groups: usize, nets: &'n [CopiedNet]) -> Self {
        let mut of_group = vec![Vec::new(); groups];
        for (number, net) in nets.iter().enumerate() {
            net.members.iter().for_each(|&group| of_group[group as usize].push(number as u32));
        }
        Self { nets, of_group, left: nets.iter().map(|net| net.members.len()).collect(), open: Vec::new() }
    }

    /// Decides a group: the decisions, and the states after them.
    fn step(&mut self, group: u32, time: Option<u64>, states: &States, limit: u64) -> (Step, States) {
        let own = &self.of_group[group as usize];
        self.open.extend(
            own.iter().filter(|&&net| self.left[net as usize] == self.nets[net as usize].members.len()),
        );
        own.iter().for_each(|&net| self.left[net as usize] -= 1);
        let own: Vec<(usize, u64)> = (self.open.iter().enumerate())
            .filter(|(_, net)| own.contains(net))
            .map(|(at, &net)| (at, self.nets[net as usize].load))
            .collect();
        let kept: Vec<usize> =
            (0..self.open.len()).filter(|&at| self.left[self.open[at] as usize] > 0).collect();
        let mut next = States::new();
        let mut arcs = Vec::new();
        for (state, &(from, before)) in states {
            for (taken, time) in [(false, Some(0)), (true, time)] {
                let Some(time) = time else { continue };
                let side = if taken { Side::In } else { Side::Out };
                let (sides, copies) = decide(state, self.open.len(), &own, side);
                let load = copies.saturating_add(time);
                let sum = load.saturating_add(before);
                if sum <= limit {
                    let number = next.len() as u32;
                    let entry =
                        next.entry(kept.iter().map(|&at| sides[at]).collect()).or_insert((number, sum));
                    entry.1 = entry.1.min(sum);
                    arcs.push(Arc { from, to: entry.0, taken, load });
                }
            }
        }
        self.open = kept.iter().map(|&at| self.open[at]).collect();
        (Step { group, arcs, to_come: vec![0; next.len()] }, next)
    }
}

/// Where the groups of open nets are once one more is decided, and the load of the copies that this makes necessary.
/// `own` are the nets of that group: (position, load of a copy).
fn decide(state: &[Side], open: usize, own: &[(usize, u64)], side: Side) -> (Vec<Side>, u64) {
    let mut sides = state.to_vec();
    sides.resize(open, side);
    let mut load = 0u64;
    for &(at, copy) in own {
        if sides[at] != side && sides[at] != Side::Cut {
            sides[at] = Side::Cut;
            load = load.saturating_add(copy);
        }
    }
    (sides, load)
}
