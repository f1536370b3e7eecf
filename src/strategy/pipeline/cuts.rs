//! Cuts a graph into stages: successive parts of its source's order, as equal in time as may be.
//!
//! The least bound that the time of every part can keep is found by bisection, each part taking as
//! much as it may (on devices in a given order that is best: a part that takes less leaves more to
//! the others). Then each cut is put where the fewest bytes cross it, within what leaves all parts
//! under the bound. Backward nodes and updates are where their forward nodes are.

use crate::costgraph::microbatch::Runs;
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::topology::{DeviceId, Topology};

/// A graph laid out on a line, to be cut.
pub(super) struct Line {
    /// By node: its position, with its forward node's where it is not forward itself; none for
    /// parameters and inputs.
    position: Vec<Option<u32>>,
    /// By kind of the graph: time of all before each position; one longer than the line.
    time: Vec<Vec<u64>>,
    /// By position: bytes that cross a cut before it.
    crossing: Vec<u64>,
    /// Bytes of parameters and state before each position; one longer than the line.
    resident: Vec<u64>,
    /// Bytes of one microbatch's activations before each position; one longer than the line.
    active: Vec<u64>,
}

impl Line {
    /// Lays out the graph of one microbatch of `count`; `runs` says when each node runs.
    /// O((nodes + edges) log nodes).
    pub(super) fn new(graph: &CostGraph, runs: &[Runs], count: u32) -> Self {
        let order = by_source(graph);
        let computes = |node: NodeIx| graph.role(node) == Role::Compute;
        let mut position: Vec<Option<u32>> = vec![None; graph.node_count()];
        let mut length = 0;
        for &node in order
            .iter()
            .filter(|&&node| computes(node) && runs[node.index()] == Runs::Each && !graph.is_backward(node))
        {
            position[node.index()] = Some(length);
            length += 1;
        }
        // What runs first stands with its first reader. Parameters stand there only until the line is
        // weighed: in the end they have no position.
        for &node in order.iter().rev().filter(|node| runs[node.index()] == Runs::First) {
            let readers = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor));
            position[node.index()] = readers.filter_map(|reader| position[reader.index()]).min();
        }
        for &node in order.iter().filter(|&&node| computes(node)) {
            if position[node.index()].is_none() {
                let own = graph.forward(node).and_then(|forward| position[forward.index()]);
                let read = || {
                    let read = graph.inputs(node).iter();
                    read.filter_map(|&tensor| position[graph.producer(tensor).index()]).max()
                };
                position[node.index()] = own.or_else(read).or(Some(0));
            }
        }
        let mut line = Self {
            time: vec![vec![0; length as usize + 1]; graph.kinds.len()],
            crossing: crossing(graph, &position, length as usize),
            resident: vec![0; length as usize + 1],
            active: vec![0; length as usize + 1],
            position,
        };
        line.weigh(graph, runs, count);
        for node in graph.nodes().filter(|&node| !computes(node)) {
            line.position[node.index()] = None;
        }
        line
    }

    fn weigh(&mut self, graph: &CostGraph, runs: &[Runs], count: u32) {
        let trains = graph.nodes().any(|node| graph.is_backward(node));
        for node in graph.nodes() {
            let Some(position) = self.position[node.index()] else { continue };
            let after = position as usize + 1;
            if after >= self.resident.len() {
                continue;
            }
            for (kind, time) in self.time.iter_mut().enumerate() {
                let own = graph.time(node, kind).map_or(0, |time| time.get());
                // What runs once in a step takes its share in each microbatch.
                let each = runs[node.index()] == Runs::Each;
                let own = if each { own } else { own.div_ceil(u64::from(count.max(1))) };
                time[after] = time[after].saturating_add(own);
            }
            let param = graph.param(node).map_or(0, |param| graph.param_bytes(param).get());
            let owned = graph.owned_bytes(node).get().saturating_add(param);
            self.resident[after] = self.resident[after].saturating_add(owned);
            let is_forward = runs[node.index()] == Runs::Each && !graph.is_backward(node);
            if trains && is_forward {
                let made = graph.outputs(node).map(|tensor| graph.tensor_bytes(tensor).get());
                self.active[after] = made.fold(self.active[after], u64::saturating_add);
            }
        }
        for sums in self.time.iter_mut().chain([&mut self.resident, &mut self.active]) {
            for i in 1..sums.len() {
                sums[i] = sums[i].saturating_add(sums[i - 1]);
            }
        }
    }

    /// Nodes on the line.
    pub(super) fn len(&self) -> usize {
        self.crossing.len()
    }

    /// By node: the device of its part, where it computes; parts go to `devices` one after the
    /// other. None where there are more parts than nodes, or their bytes exceed `caps`, for which
    /// the parts of one device share its cap and each holds as many microbatches as parts follow.
    /// O(parts x log(nodes) x log(time)), and nodes once.
    pub(super) fn cut(
        &self,
        topology: &Topology,
        kinds: &[Option<usize>],
        devices: &[DeviceId],
        caps: &[u64],
        microbatches: u32,
    ) -> Option<Vec<Option<DeviceId>>> {
        let shares = |id: DeviceId| devices.iter().filter(|&&other| other == id).count().max(1) as u64;
        let parts: Option<Vec<StagePart<'_>>> = devices
            .iter()
            .enumerate()
            .map(|(number, &id)| {
                Some(StagePart {
                    time: self.time.get(kinds[id.index()]?)?,
                    cap: caps[id.index()] / shares(id),
                    resident: u64::from(microbatches).min((devices.len() - number) as u64),
                })
            })
            .collect();
        let parts = parts?;
        debug_assert!(devices.iter().all(|id| id.index() < topology.len()));
        if devices.len() > self.len() {
            return None;
        }
        let (mut low, mut high) = (0u64, parts.iter().map(|part| *part.time.last().unwrap_or(&0)).max()?);
        // The caps may allow no cut even where time is no limit.
        self.fill(&parts, high)?;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.fill(&parts, middle).is_some() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let starts = self.settle(&parts, high)?;
        let part_of = |position: u32| starts.partition_point(|&start| start <= position as usize) - 1;
        let device = |position: &Option<u32>| position.map(|position| devices[part_of(position)]);
        Some(self.position.iter().map(device).collect())
    }

    /// Where each part begins when each takes as much as it may under a bound of its time, and
    /// leaves one node for each that follows; none where some is left over.
    fn fill(&self, parts: &[StagePart<'_>], bound: u64) -> Option<Vec<usize>> {
        let mut starts = Vec::with_capacity(parts.len());
        let mut start = 0;
        for (number, part) in parts.iter().enumerate() {
            starts.push(start);
            let most = self.len() - (parts.len() - number - 1);
            let end = self.reach(part, start, bound, most);
            if end == start {
                return None;
            }
            start = end;
        }
        (start == self.len()).then_some(starts)
    }

    /// The farthest end of a part that begins at `start`.
    fn reach(&self, part: &StagePart<'_>, start: usize, bound: u64, most: usize) -> usize {
        let fits = |end: usize| {
            let resident = (self.active[end] - self.active[start]).saturating_mul(part.resident);
            let bytes = (self.resident[end] - self.resident[start]).saturating_add(resident);
            part.time[end] - part.time[start] <= bound && bytes <= part.cap
        };
        let (mut low, mut high) = (start, most.max(start));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Puts each cut where the fewest bytes cross, between the least and the most that all parts
    /// allow under a bound.
    fn settle(&self, parts: &[StagePart<'_>], bound: u64) -> Option<Vec<usize>> {
        let mut least = vec![self.len(); parts.len() + 1];
        for number in (0..parts.len()).rev() {
            // The earliest start from which this part reaches the next one's earliest.
            let next = least[number + 1];
            let (mut low, mut high) = (number, next.saturating_sub(1));
            while low < high {
                let middle = low + (high - low) / 2;
                if self.reach(&parts[number], middle, bound, next) >= next {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            least[number] = high;
        }
        let mut starts = vec![0];
        for number in 1..parts.len() {
            let before = starts[number - 1];
            let most = self.len() - (parts.len() - number);
            let most = self.reach(&parts[number - 1], before, bound, most);
            let (from, to) = (least[number].max(before + 1), most);
            // Cheap cuts before this one left too little room; the tightest filling is known to work.
            if from > to {
                return self.fill(parts, bound);
            }
            let cheapest = (from..=to).min_by_key(|&cut| (self.crossing[cut], std::cmp::Reverse(cut)));
            starts.push(cheapest?);
        }
        Some(starts)
    }
}

/// What one part may take.
struct StagePart<'a> {
    time: &'a [u64],
    cap: u64,
    /// Microbatches whose activations it holds.
    resident: u64,
}

/// Bytes of the forward tensors that cross a cut before each position.
fn crossing(graph: &CostGraph, position: &[Option<u32>], length: usize) -> Vec<u64> {
    let mut begins = vec![0u128; length + 1];
    let mut ends = vec![0u128; length + 1];
    for tensor in graph.tensors() {
        let producer = graph.producer(tensor);
        if graph.role(producer) == Role::Param || graph.is_backward(producer) {
            continue;
        }
        let readers = graph.consumers(tensor).iter().filter(|&&reader| !graph.is_backward(reader));
        let last = readers.filter_map(|reader| position[reader.index()]).max();
        if let (Some(from), Some(last)) = (position[producer.index()], last)
            && from < last
        {
            let bytes = u128::from(graph.tensor_bytes(tensor).get());
            begins[from as usize + 1] += bytes;
            ends[last as usize] += bytes;
        }
    }
    let mut crossing = Vec::with_capacity(length);
    let mut now = 0u128;
    // A tensor crosses all cuts from behind its maker to just before its last reader.
    for position in 0..length {
        now += begins[position];
        crossing.push(u64::try_from(now).unwrap_or(u64::MAX));
        now -= ends[position];
    }
    crossing
}

/// A topological order, the least node number among those ready first.
fn by_source(graph: &CostGraph) -> Vec<NodeIx> {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;
    let mut missing: Vec<u32> = graph.nodes().map(|node| graph.inputs(node).len() as u32).collect();
    let ready = graph.nodes().filter(|node| missing[node.index()] == 0).map(Reverse);
    let mut ready: BinaryHeap<Reverse<NodeIx>> = ready.collect();
    let mut order = Vec::with_capacity(graph.node_count());
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        for reader in graph.outputs(node).flat_map(|tensor| graph.consumers(tensor)) {
            missing[reader.index()] -= 1;
            if missing[reader.index()] == 0 {
                ready.push(Reverse(*reader));
            }
        }
    }
    order
}
