//! The ideals of a problem's units, counted up to a limit.

use std::collections::BTreeSet;

use fixedbitset::FixedBitSet;
use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;

use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::place::problem::{NONE, Problem};

/// All ideals, smaller ones first, as sets of blocks: units between which there is a way in both
/// directions are one block.
pub(super) struct Lattice {
    /// Units of each block; blocks are numbered along a topological order.
    pub(super) blocks: Vec<Vec<u32>>,
    /// Block of each unit.
    pub(super) block_of: Vec<u32>,
    /// Blocks of each ideal.
    ideals: Vec<FixedBitSet>,
}

impl Lattice {
    /// None where there are more than `most`. O(most x blocks).
    pub(super) fn new(problem: &Problem<'_>, most: usize) -> Option<Self> {
        let mut arcs = arcs(problem, most)?;
        arcs.extend(back_from_leaves(problem, &arcs));
        let mut graph: DiGraph<(), (), u32> = DiGraph::default();
        (0..problem.unit_count()).for_each(|_| _ = graph.add_node(()));
        arcs.iter().for_each(|&(from, to)| _ = graph.add_edge(from.into(), to.into(), ()));
        let mut blocks: Vec<Vec<u32>> = kosaraju_scc(&graph)
            .into_iter()
            .map(|block| block.into_iter().map(|unit| unit.index() as u32).collect())
            .collect();
        // Components come in reverse topological order.
        blocks.reverse();
        let mut block_of = vec![0; problem.unit_count()];
        for (number, block) in blocks.iter().enumerate() {
            block.iter().for_each(|&unit| block_of[unit as usize] = number as u32);
        }
        if blocks.len() >= most {
            return None;
        }
        let mut before = vec![Vec::new(); blocks.len()];
        for (from, to) in arcs {
            let (from, to) = (block_of[from as usize], block_of[to as usize]);
            if from != to {
                before[to as usize].push(from);
            }
        }
        before.iter_mut().for_each(|before| {
            before.sort_unstable();
            before.dedup();
        });
        let ideals = enumerated(&before, most)?;
        Some(Self { blocks, block_of, ideals })
    }

    /// Number of ideals, the empty one and the whole included.
    pub(super) fn len(&self) -> usize {
        self.ideals.len()
    }

    /// An ideal's blocks.
    pub(super) fn ideal(&self, number: usize) -> &FixedBitSet {
        &self.ideals[number]
    }

    /// The blocks that lie between two ideals, ascending.
    pub(super) fn between(&self, inner: usize, outer: usize) -> impl Iterator<Item = usize> + '_ {
        self.ideals[outer].difference(&self.ideals[inner])
    }

    /// True where an ideal lies within another.
    pub(super) fn is_within(&self, inner: usize, outer: usize) -> bool {
        self.ideals[inner].is_subset(&self.ideals[outer])
    }
}

/// Which unit depends on which, along the forward pass; of what the backward pass alone has, such as sums of gradients, as
/// the forward pass would have it, from what reads it to what it reads. None for more units than may be.
fn arcs(problem: &Problem<'_>, most: usize) -> Option<Vec<(u32, u32)>> {
    // Ideals outnumber blocks; the factor leaves room for blocks of several units.
    if problem.unit_count() >= most.saturating_mul(64) {
        return None;
    }
    let graph = problem.graph;
    let leads = |node: NodeIx| graph.role(node) == Role::Compute && !follows(graph, node);
    let mut has_lead = vec![false; problem.unit_count()];
    for unit in graph.nodes().filter(|&node| leads(node)).map(|node| problem.unit_of[node.index()]) {
        if unit != NONE {
            has_lead[unit as usize] = true;
        }
    }
    let mut arcs = Vec::new();
    for tensor in graph.tensors().filter(|&tensor| graph.role(graph.producer(tensor)) == Role::Compute) {
        let producer = graph.producer(tensor);
        let from = problem.unit_of[producer.index()];
        for &reader in graph.consumers(tensor) {
            let to = problem.unit_of[reader.index()];
            if from == to || from == NONE || to == NONE {
                continue;
            }
            if leads(producer) && leads(reader) {
                arcs.push((from, to));
                continue;
            }
            let goes_back = follows(graph, producer) && follows(graph, reader);
            if goes_back && !(has_lead[from as usize] && has_lead[to as usize]) {
                arcs.push((to, from));
            }
        }
    }
    arcs.sort_unstable();
    arcs.dedup();
    Some(arcs)
}

/// A leaf takes at most this part of the time of all.
const LIGHT: u64 = 1_024;

/// Arcs that make each leaf one block with its only neighbour: what takes hardly any time, and either reads nothing and is
/// read by one unit, or is read by none and reads one. A weight is with the layer that reads it; apart it would double the
/// ideals. O(units x devices + arcs).
fn back_from_leaves(problem: &Problem<'_>, arcs: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut degrees = vec![(0u32, 0u32); problem.unit_count()];
    for &(from, to) in arcs {
        degrees[from as usize].1 += 1;
        degrees[to as usize].0 += 1;
    }
    let most: Vec<u64> = problem.devices.iter().map(|&device| problem.total_time(device) / LIGHT).collect();
    let is_light = |unit: u32| {
        let times = problem.devices.iter().map(|&device| problem.unit_time(unit as usize, device));
        times.zip(&most).all(|(time, &most)| time.is_some_and(|time| time <= most))
    };
    let is_leaf = |unit: u32, degrees: (u32, u32)| {
        matches!(degrees, (0, 1) | (1, 0)) && problem.fixed(unit as usize).is_none() && is_light(unit)
    };
    let has_leaf = |&&(from, to): &&(u32, u32)| {
        is_leaf(from, degrees[from as usize]) || is_leaf(to, degrees[to as usize])
    };
    arcs.iter().filter(has_leaf).map(|&(from, to)| (to, from)).collect()
}

fn follows(graph: &CostGraph, node: NodeIx) -> bool {
    graph.is_backward(node) || graph.forward(node).is_some()
}

/// The ideals, by size; none where there are more than `most`.
fn enumerated(before: &[Vec<u32>], most: usize) -> Option<Vec<FixedBitSet>> {
    let mut ideals: Vec<FixedBitSet> = Vec::new();
    let mut layer = BTreeSet::from([FixedBitSet::with_capacity(before.len())]);
    let mut count = 0;
    while !layer.is_empty() {
        count += layer.len();
        if count > most {
            return None;
        }
        let mut next = BTreeSet::new();
        for ideal in layer {
            for (block, before) in before.iter().enumerate() {
                let has = |other: u32| ideal.contains(other as usize);
                if !ideal.contains(block) && before.iter().all(|&other| has(other)) {
                    let mut larger = ideal.clone();
                    larger.insert(block);
                    next.insert(larger);
                }
            }
            // Asked before the layer is complete, which may be far beyond the limit.
            if count + next.len() > most {
                return None;
            }
            ideals.push(ideal);
        }
        layer = next;
    }
    Some(ideals)
}
