//! An order that holds few bytes, for caps that greedy orders do not meet: a beam over sets of launches.
//!
//! What memories hold depends on which launches are done and not on their order, so of all orders of one set only that with
//! the lowest peak is kept (Ahn et al., "Ordering Chaos", MLSys 2020). Of each number of launches the best sets go on: where
//! few sets are possible these are all of them, and the peak is the lowest that there is.

use std::collections::HashSet;

use super::{CostGraph, NodeIx, Role, TensorIx};
use crate::random;
use crate::units::Bytes;

/// Readers of tensors that are looked at.
const LOOKS: usize = 100_000;

/// Numbers that are copied as fast as a reader is looked at.
const PER_LOOK: usize = 16;

/// How often each launch has to be affordable; where it is less, an order is no better than a greedy one.
const LEAST_LOOKS: usize = 8;

/// The launches in an order that, as far as one is found, lets no memory hold more than its `room` beside what is there
/// before the step; `memory` is that of each node, a position in `room`. Copies are taken to come just before their first
/// readers. At most about 100,000 readers of tensors are looked at; none where that is too little for the graph.
pub(crate) fn frugal_order(graph: &CostGraph, memory: &[u32], room: &[u64]) -> Option<Vec<NodeIx>> {
    let count = graph.nodes().filter(|&node| graph.role(node) == Role::Compute).count();
    let (memory, room) = used(memory, room);
    let (memory, room) = (&memory[..], &room[..]);
    let once: usize = graph.nodes().map(|node| looks_at(graph, node)).sum();
    let looks = LOOKS.checked_div(count)?;
    if looks < LEAST_LOOKS.saturating_mul(once.div_ceil(count)) {
        return None;
    }
    let beam = Beam { graph, memory, room, looks };
    let mut sets = vec![beam.nothing_done()];
    let mut steps = Vec::new();
    for _ in 0..count {
        sets = beam.longer(&sets, &mut steps);
    }
    let mut order = Vec::with_capacity(count);
    let mut last = sets.first()?.last;
    while let Some(Step { node, before }) = last.map(|last: usize| steps[last]) {
        order.push(node);
        last = before;
    }
    order.reverse();
    Some(order)
}

/// Readers of what a node reads, and one.
fn looks_at(graph: &CostGraph, node: NodeIx) -> usize {
    1 + graph.inputs(node).iter().map(|&tensor| graph.consumers(tensor).len()).sum::<usize>()
}

/// The memories that nodes are in, numbered anew, and their room.
fn used(memory: &[u32], room: &[u64]) -> (Vec<u32>, Vec<u64>) {
    let mut number = vec![None; room.len()];
    let mut rooms = Vec::new();
    let numbered = memory.iter().map(|&at| {
        *number[at as usize].get_or_insert_with(|| {
            rooms.push(room[at as usize]);
            rooms.len() as u32 - 1
        })
    });
    (numbered.collect(), rooms)
}

/// A launch, and the step before it.
#[derive(Clone, Copy)]
struct Step {
    node: NodeIx,
    before: Option<usize>,
}

/// Launches that are done, in the order with the lowest peak of those that were looked at.
#[derive(Clone)]
struct Set {
    /// By node, as bits.
    done: Vec<u64>,
    hash: u64,
    /// Launches whose inputs are made.
    ready: Vec<NodeIx>,
    /// By memory: bytes beside those from before the step.
    held: Vec<u64>,
    /// Most bytes that a memory held above its room.
    over: u64,
    /// The last step of the order.
    last: Option<usize>,
}

impl Set {
    fn has(&self, node: NodeIx) -> bool {
        self.done[node.index() / 64] >> (node.index() % 64) & 1 == 1
    }

    /// How many numbers stand for it.
    fn numbers(&self) -> usize {
        self.done.len() + self.ready.len() + self.held.len()
    }
}

/// A set with one launch more.
struct Longer {
    parent: usize,
    node: NodeIx,
    hash: u64,
    over: u64,
    /// By memory.
    held: Vec<u64>,
}

impl Longer {
    /// The smaller the better.
    fn rank(&self) -> (u64, u64, usize, NodeIx) {
        (self.over, sum(&self.held), self.parent, self.node)
    }
}

fn aligned(bytes: Bytes) -> u64 {
    bytes.aligned().get()
}

fn sum(held: &[u64]) -> u64 {
    held.iter().copied().fold(0, u64::saturating_add)
}

struct Beam<'b> {
    graph: &'b CostGraph,
    /// By node.
    memory: &'b [u32],
    /// By memory.
    room: &'b [u64],
    /// Readers that may be looked at for each number of launches.
    looks: usize,
}

impl Beam<'_> {
    fn memory(&self, node: NodeIx) -> usize {
        self.memory[node.index()] as usize
    }

    /// Where a tensor is made, or handed in.
    fn home(&self, tensor: TensorIx) -> usize {
        self.memory(self.graph.producer(tensor))
    }

    fn nothing_done(&self) -> Set {
        let is_before = |&tensor: &TensorIx| self.graph.role(self.graph.producer(tensor)) != Role::Compute;
        let launches = self.graph.nodes().filter(|&node| self.graph.role(node) == Role::Compute);
        Set {
            done: vec![0; self.graph.node_count().div_ceil(64)],
            hash: 0,
            ready: launches.filter(|&node| self.graph.inputs(node).iter().all(is_before)).collect(),
            held: vec![0; self.room.len()],
            over: 0,
            last: None,
        }
    }

    /// The best sets of one launch more than `sets`, the best first.
    fn longer(&self, sets: &[Set], steps: &mut Vec<Step>) -> Vec<Set> {
        let mut found: Vec<Longer> = Vec::new();
        let mut looks = 0;
        for (parent, set) in sets.iter().enumerate() {
            let start = found.len();
            for &node in &set.ready {
                if looks >= self.looks {
                    break;
                }
                looks += looks_at(self.graph, node) + set.held.len() / PER_LOOK;
                let longer = self.with(set, parent, node);
                // What takes no room comes first in some best order: no other launch has to be looked at.
                let is_free =
                    longer.over == set.over && longer.held.iter().zip(&set.held).all(|(new, old)| new <= old);
                if is_free {
                    found.truncate(start);
                }
                found.push(longer);
                if is_free {
                    break;
                }
            }
        }
        found.sort_unstable_by_key(Longer::rank);
        let mut seen = HashSet::new();
        found.retain(|longer| seen.insert(longer.hash));
        let numbers = sets.iter().map(Set::numbers).max().unwrap_or(0);
        found.truncate((self.looks / (1 + numbers / PER_LOOK)).max(1));
        found.into_iter().map(|longer| self.made(&sets[longer.parent], longer, steps)).collect()
    }

    /// What memories hold once one launch more is done.
    fn with(&self, set: &Set, parent: usize, node: NodeIx) -> Longer {
        let (graph, own) = (self.graph, self.memory(node));
        let mut held = set.held.clone();
        let mut dying = Vec::new();
        let (mut comes, mut leaves) = (0u64, 0u64);
        for &tensor in graph.inputs(node) {
            // Parameters are on every device that reads them before the step.
            if graph.role(graph.producer(tensor)) == Role::Param {
                continue;
            }
            let (made, home) = (aligned(graph.made_bytes(tensor)), self.home(tensor));
            let bytes = if home == own { made } else { aligned(graph.tensor_bytes(tensor)) };
            let lies = |after: Option<NodeIx>, at: usize| self.lies(set, after, tensor, at);
            if home != own && !lies(None, own) {
                comes = comes.saturating_add(bytes);
            }
            if !lies(Some(node), own) {
                leaves = leaves.saturating_add(bytes);
                dying.push(tensor);
            }
            if home != own && lies(None, home) && !lies(Some(node), home) {
                held[home] = held[home].saturating_sub(made);
            }
        }
        for tensor in graph.outputs(node).filter(|&tensor| graph.updated(tensor).is_none()) {
            let bytes = aligned(graph.made_bytes(tensor));
            comes = comes.saturating_add(bytes);
            if graph.consumers(tensor).is_empty() && self.graph.is_freed(tensor) {
                leaves = leaves.saturating_add(bytes);
            }
        }
        let saved = graph.saved_in_place(node, |tensor| dying.contains(tensor));
        let here = held[own].saturating_add(comes);
        let during = here.saturating_add(aligned(graph.workspace_bytes(node))).saturating_sub(saved);
        held[own] = here.saturating_sub(leaves);
        Longer {
            parent,
            node,
            // Numbers of nodes, exclusively or-ed, tell sets apart (Zobrist 1970).
            hash: set.hash ^ random::bits(0, node.0.into()),
            over: set.over.max(during.saturating_sub(self.room[own])),
            held,
        }
    }

    /// Whether a tensor that is made takes bytes in a memory, once `after` is done too. O(readers).
    fn lies(&self, set: &Set, after: Option<NodeIx>, tensor: TensorIx, at: usize) -> bool {
        let readers = self.graph.consumers(tensor);
        let is_done = |reader: NodeIx| set.has(reader) || Some(reader) == after;
        let mut here = readers.iter().filter(|&&reader| self.memory(reader) == at);
        if self.home(tensor) != at {
            let (done, left): (Vec<NodeIx>, Vec<NodeIx>) = here.partition(|&&reader| is_done(reader));
            return !done.is_empty() && !left.is_empty();
        }
        if !self.graph.is_freed(tensor) || here.any(|&reader| !is_done(reader)) {
            return true;
        }
        // It is kept until it was sent to all that read it.
        let there = readers.iter().filter(|&&reader| self.memory(reader) != at);
        let mut came: Vec<usize> =
            there.clone().filter(|&&reader| is_done(reader)).map(|&reader| self.memory(reader)).collect();
        came.sort_unstable();
        there.clone().any(|&reader| came.binary_search(&self.memory(reader)).is_err())
    }

    fn made(&self, parent: &Set, longer: Longer, steps: &mut Vec<Step>) -> Set {
        let graph = self.graph;
        let Longer { node, hash, over, held, .. } = longer;
        let mut set = Set { hash, over, held, last: Some(steps.len()), ..parent.clone() };
        steps.push(Step { node, before: parent.last });
        set.done[node.index() / 64] |= 1 << (node.index() % 64);
        set.ready.retain(|&other| other != node);
        for reader in graph.outputs(node).flat_map(|tensor| graph.consumers(tensor)) {
            let is_made = |&tensor: &TensorIx| {
                let maker = graph.producer(tensor);
                graph.role(maker) != Role::Compute || set.has(maker)
            };
            if graph.inputs(*reader).iter().all(is_made) && !set.ready.contains(reader) {
                set.ready.push(*reader);
            }
        }
        set
    }
}
