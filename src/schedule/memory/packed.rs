//! The arenas of a schedule that is chosen, packed as tightly as is worth the work.

use crate::costgraph::{CostGraph, TensorIx};
use crate::schedule::memory::arena;
use crate::schedule::memory::hold::hold_back;
use crate::schedule::memory::lifetimes::lives;
use crate::schedule::memory::offsets::{Ground, arenas, merged, settle, storage, taken};
use crate::schedule::{Accesses, Action, BufferIx, Content, Schedule, Step, cost};
use crate::units::Bytes;

/// How tightly arenas are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Visits of pairs of buffers that may be alive together, in each round.
    pub work: usize,
    /// Rounds; before each but the first, copies are held back.
    pub rounds: usize,
}

impl Packing {
    /// This many visits of pairs in each of a few rounds.
    pub fn new(work: usize) -> Self {
        Self { work, rounds: 4 }
    }
}

impl Schedule {
    /// Packs the arenas anew and sets [`crate::schedule::DeviceUsage::bound`]: no arena becomes longer, and what may be
    /// written in place is. Copies wait longer where that saves bytes and no time. `graph` is the one that
    /// was scheduled.
    ///
    /// O(rounds x ((steps + dependencies) x lanes + buffers log buffers + work)).
    pub fn pack(mut self, graph: &CostGraph, packing: Packing) -> Self {
        let uses = Uses::new(graph, &self);
        let rounds = packing.rounds.max(1);
        for round in 1..=rounds {
            let touched = |step: &Step, visit: &mut dyn FnMut(u32, bool)| uses.touched(step, visit);
            let devices = self.devices.len();
            let lives = lives(&self.steps, &self.buffers, devices, touched);
            let taken = taken(&self.buffers, &lives, &uses.in_place);
            let (base, end) = self.ground();
            let ground = Ground { base: &base, end: &end };
            let shortest = vec![Some(Bytes::ZERO); devices];
            let bounds = settle(&mut self.buffers, ground, &lives, &taken, &shortest, packing.work);
            let arenas = arenas(&self.buffers, devices);
            for (usage, (arena, bound)) in self.devices.iter_mut().zip(arenas.into_iter().zip(bounds)) {
                (usage.arena, usage.bound) = (arena, bound);
            }
            let in_place: Vec<(u32, u32)> = merged(&self.buffers, &taken).collect();
            let users = cost::users(&self.steps, &self.buffers, &in_place, touched);
            cost::measure_memory(&mut self, &users);
            // The last round only packs: what is held back there would not be packed again.
            if round == rounds || !hold_back(&mut self, &lives, &taken) {
                break;
            }
        }
        // The simulated timeline is one of those that the steps allow.
        for usage in &mut self.devices {
            usage.bound = usage.bound.map(|bound| bound.max(usage.peak));
        }
        self
    }

    /// By device: the first aligned offset above what is there before the step, and its end.
    fn ground(&self) -> (Vec<u64>, Vec<u64>) {
        let mut end = vec![0u64; self.devices.len()];
        for buffer in self.buffers.iter().filter(|buffer| buffer.kind.is_resident()) {
            let end = &mut end[buffer.device.index()];
            *end = (*end).max((buffer.offset + buffer.bytes).0);
        }
        let base = end.iter().map(|&end| arena::aligned(end).unwrap_or(u64::MAX)).collect();
        (base, end)
    }
}

/// What each launch uses of what is made in the step.
struct Uses {
    /// By node: where its buffers begin in `buffers`.
    start: Vec<u32>,
    /// Buffer, and true where it is written.
    buffers: Vec<(u32, bool)>,
    /// (operand, result) of each launch of which the second may be where the first does, as far as
    /// the operation goes; in the order of the steps.
    in_place: Vec<(u32, u32)>,
    /// By buffer: the one whose bytes it has.
    storage: Vec<u32>,
}

impl Uses {
    fn new(graph: &CostGraph, schedule: &Schedule) -> Self {
        let accesses = Accesses::new(graph, schedule);
        let count = schedule.buffers.len() as u32;
        let storage: Vec<u32> = (0..count).map(|buffer| storage(&schedule.buffers, buffer)).collect();
        let mut uses = Self { start: Vec::new(), buffers: Vec::new(), in_place: Vec::new(), storage };
        let mut device = vec![None; graph.node_count()];
        for step in &schedule.steps {
            let Action::Launch(node) = step.action else { continue };
            device[node.index()] = Some(step.device);
            if graph.in_place(node).next().is_none() {
                continue;
            }
            let read = |&tensor: &TensorIx| accesses.operand(node, tensor, step.device).map(|read| read.0);
            let lying_in = graph.inputs(node).iter().filter_map(read).filter(|&read| !uses.has_own(read));
            let mut lying_in: Vec<u32> = lying_in.map(|read| uses.storage[read as usize]).collect();
            lying_in.sort_unstable();
            for (input, output) in graph.in_place(node) {
                let operand = accesses.operand(node, graph.inputs(node)[input as usize], step.device);
                let result = graph.output(node, output);
                let result = result.and_then(|tensor| accesses.find(Content::Tensor(tensor), step.device));
                let result = result.filter(|result| !schedule.buffers[result.index()].kind.is_resident());
                let pair = operand.zip(result).map(|(operand, result)| (operand.0, result.0));
                // What lies in other bytes is not free when it is read for the last time, and what else the launch reads
                // of the same bytes would be written over before.
                let pair = pair.filter(|&(operand, result)| {
                    uses.has_own(operand) && uses.has_own(result) && lying_in.binary_search(&operand).is_err()
                });
                uses.in_place.extend(pair);
            }
        }
        for (node, device) in graph.nodes().zip(device) {
            uses.start.push(uses.buffers.len() as u32);
            let Some(device) = device else { continue };
            let outputs = graph.outputs(node).map(Content::Tensor).chain([Content::Workspace(node)]);
            let writes = outputs.filter_map(|content| accesses.find(content, device));
            let made = |buffer: &BufferIx| !schedule.buffers[buffer.index()].kind.is_resident();
            let written =
                writes.filter(made).map(|buffer| (uses.storage[buffer.index()], uses.has_own(buffer.0)));
            let written: Vec<(u32, bool)> = written.collect();
            uses.buffers.extend(written);
            let reads =
                graph.inputs(node).iter().filter_map(|&tensor| accesses.operand(node, tensor, device));
            let read: Vec<(u32, bool)> =
                reads.filter(made).map(|buffer| (uses.storage[buffer.index()], false)).collect();
            uses.buffers.extend(read);
        }
        uses.start.push(uses.buffers.len() as u32);
        uses
    }

    /// Whether a buffer has bytes of its own.
    fn has_own(&self, buffer: u32) -> bool {
        self.storage[buffer as usize] == buffer
    }

    /// Visits the buffers that a step uses and that are not there before; true with those that it
    /// writes.
    fn touched(&self, step: &Step, visit: &mut dyn FnMut(u32, bool)) {
        match step.action {
            Action::Copy { from, to, .. } => {
                visit(self.storage[from.index()], false);
                visit(to.0, true);
            }
            Action::Launch(node) => {
                let range = self.start[node.index()] as usize..self.start[node.index() + 1] as usize;
                self.buffers[range].iter().for_each(|&(buffer, writes)| visit(buffer, writes));
            }
        }
    }
}
