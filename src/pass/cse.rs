//! Common subexpressions: equal nodes become one.

use std::collections::HashMap;

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, SourceId, Tensor, Type, ValueId};

/// Merges nodes that do the same to the same operands, and constants of the same bits. The first
/// node and its source stay. O(nodes + operands + bytes of constants).
///
/// Never merged: inputs and parameters; nodes whose sources differ in pin or colocation mark;
/// nodes that a control dependency holds (the first may be earlier than allowed). Error: only of
/// a graph that does not verify.
pub fn cse(graph: &mut Graph) -> Result<()> {
    let places = Places::new(graph);
    let mut rewriter = Rewriter::new(graph);
    let mut constants: HashMap<(&Tensor, u32), ValueId> = HashMap::new();
    let mut nodes: HashMap<Key<'_>, ValueId> = HashMap::new();
    let mut merged = false;
    for id in graph.node_ids() {
        let node = graph.node(id);
        // Still kept: later nodes read it.
        if rewriter.is_ordered(id) {
            rewriter.keep(id)?;
            continue;
        }
        let place = places.of(node.source);
        let first = match &node.op {
            Op::Input | Op::Param(_) => None,
            Op::Constant(constant) => constants.get(&(graph.constant(*constant), place)).copied(),
            _ => nodes.get(&key(graph, &rewriter, id, place)?).copied(),
        };
        if let Some(first) = first {
            rewriter.replace(id, first);
            merged = true;
            continue;
        }
        rewriter.keep(id)?;
        let value = rewriter.value(node.first_result)?;
        match &node.op {
            Op::Input | Op::Param(_) => {}
            Op::Constant(constant) => {
                constants.insert((graph.constant(*constant), place), value);
            }
            _ => {
                nodes.insert(key(graph, &rewriter, id, place)?, value);
            }
        }
    }
    if merged {
        *graph = rewriter.finish()?;
    }
    Ok(())
}

/// What makes two nodes equal. The type tells operations apart that infer it from nothing.
#[derive(PartialEq, Eq, Hash)]
struct Key<'g> {
    op: &'g Op,
    operands: Box<[ValueId]>,
    ty: &'g Type,
    place: u32,
}

fn key<'g>(graph: &'g Graph, rewriter: &Rewriter<'_>, id: NodeId, place: u32) -> Result<Key<'g>> {
    let node = graph.node(id);
    let operands = rewriter.operands(id)?.into();
    Ok(Key { op: &node.op, operands, ty: graph.ty(node.first_result), place })
}

/// By source: a number that is the same for the same pin and mark.
struct Places(Vec<u32>);

impl Places {
    fn new(graph: &Graph) -> Self {
        let mut numbers: HashMap<(Option<&str>, Option<&str>), u32> = HashMap::new();
        let of = graph.sources().iter().map(|source| {
            let next = numbers.len() as u32;
            *numbers.entry((source.pin.as_deref(), source.colocate.as_deref())).or_insert(next)
        });
        Self(of.collect())
    }

    fn of(&self, source: SourceId) -> u32 {
        self.0[source.index()]
    }
}
