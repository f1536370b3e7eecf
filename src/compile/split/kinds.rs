//! Which nodes a search for splits cannot tell apart: the blocks of a network are decided once for all that repeat them.

use std::collections::HashMap;

use super::search::{Work, is_leaf};
use crate::cost::NodeWork;
use crate::ir::{Graph, NodeId, Op, Type, ValueId};
use crate::kernel::split::Split;

/// All that the ways to compute a node follow from.
#[derive(PartialEq, Eq, Hash)]
struct Key<'g> {
    op: &'g Op,
    operands: Vec<Operand<'g>>,
    results: Vec<&'g Type>,
    work: &'g NodeWork,
    /// With how many elements of each belong together.
    splits: Vec<(&'g Split, u64)>,
}

#[derive(PartialEq, Eq, Hash)]
struct Operand<'g> {
    ty: &'g Type,
    is_leaf: bool,
    is_param: bool,
    /// The first operand that is the same value.
    first: usize,
}

/// By node: a number that it shares with the nodes whose ways are the same. O(nodes + edges).
pub(super) fn kinds(work: &Work<'_>) -> Vec<u32> {
    let mut numbers: HashMap<Key<'_>, u32> = HashMap::new();
    let number = |node| {
        let next = numbers.len() as u32;
        *numbers.entry(key(work, node)).or_insert(next)
    };
    work.graph.node_ids().map(number).collect()
}

fn key<'g>(work: &'g Work<'_>, node: NodeId) -> Key<'g> {
    let graph: &'g Graph = work.graph;
    let operands = &graph.node(node).operands;
    let mut firsts: HashMap<ValueId, usize> = HashMap::new();
    let operand = |(at, &value): (usize, &ValueId)| Operand {
        ty: graph.ty(value),
        is_leaf: is_leaf(graph, value),
        is_param: matches!(graph.maker(value).op, Op::Param(_)),
        first: *firsts.entry(value).or_insert(at),
    };
    let splits = work.splits[node.index()].iter();
    Key {
        op: &graph.node(node).op,
        operands: operands.iter().enumerate().map(operand).collect(),
        results: graph.results(node).map(|value| graph.ty(value)).collect(),
        work: &work.works[node.index()],
        splits: splits.map(|split| (split, work.units.of(graph, node, split))).collect(),
    }
}
