//! Weights of few bits: matrices of parameters that only products read are held packed, and multiplied in place.

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{BlockFormat, DType, Graph, NodeId, Op, Packed, Repacked, ValueId};

/// Numbers that a matrix has at least to be packed.
const LEAST: i64 = 1 << 12;

/// How the readers of a value read it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Readers {
    None,
    /// Products alone, as their right operand; transposed, or as it is stored.
    Products {
        turned: bool,
    },
    Others,
}

/// Packs every matrix of f32 parameters that nothing reads but products, as their right operand, and whose sums are of
/// whole blocks: the parameter holds the blocks, made of what is supplied when that is loaded. What a step updates
/// stays as it is. Returns how many were packed. O(nodes + operands).
///
/// Errors: none but internal ones.
pub fn pack_weights(graph: &mut Graph, format: BlockFormat) -> Result<usize> {
    let readers = readers(graph);
    let packed: Vec<Option<Repacked>> =
        graph.node_ids().map(|id| repacked(graph, id, format, &readers)).collect();
    let count = packed.iter().flatten().count();
    if count == 0 {
        return Ok(0);
    }
    let mut rewriter = Rewriter::new(graph);
    for id in graph.node_ids() {
        let node = graph.node(id);
        if let Some(packed) = packed[id.index()] {
            rewriter.keep_packed(id, packed)?;
            continue;
        }
        let of = match (&node.op, &node.operands[..]) {
            (Op::MatMul { .. }, &[_, right]) => packed[graph.value(right).node.index()],
            _ => None,
        };
        match of {
            Some(Repacked { format, columns, .. }) => {
                let operands = rewriter.operands(id)?;
                rewriter.keep_as(id, Op::PackedMatMul(Packed { format, columns }), &operands)?;
            }
            None => rewriter.keep(id)?,
        }
    }
    *graph = rewriter.finish()?;
    Ok(count)
}

fn readers(graph: &Graph) -> Vec<Readers> {
    let mut readers = vec![Readers::None; graph.value_count()];
    for node in graph.node_ids().map(|id| graph.node(id)) {
        for (position, operand) in node.operands.iter().enumerate() {
            let own = match node.op {
                Op::MatMul { transpose_left: false, transpose_right, .. } if position == 1 => {
                    Readers::Products { turned: transpose_right }
                }
                _ => Readers::Others,
            };
            let known = &mut readers[operand.index()];
            *known = if *known == Readers::None || *known == own { own } else { Readers::Others };
        }
    }
    graph.outputs().iter().for_each(|(_, value)| readers[value.index()] = Readers::Others);
    readers
}

/// How a node's result is packed, where it is such a matrix.
fn repacked(graph: &Graph, id: NodeId, format: BlockFormat, readers: &[Readers]) -> Option<Repacked> {
    let node = graph.node(id);
    let Op::Param(param) = node.op else { return None };
    let (value, param): (ValueId, _) = (node.first_result, graph.param(param));
    let ty = graph.ty(value);
    let Readers::Products { turned } = readers[value.index()] else { return None };
    let whole = param.update.is_none() && param.statistic.is_none() && param.slice.is_none();
    let &[rows, columns] = &ty.shape.dims()?[..] else { return None };
    let inner = if turned { columns } else { rows };
    let fits = inner > 0
        && u64::try_from(inner).ok()?.is_multiple_of(format.elements())
        && rows.checked_mul(columns)? >= LEAST;
    (whole && fits && ty.dtype == DType::F32 && param.supplied.is_none() && param.repacked.is_none())
        .then_some(Repacked { format, columns: inner, turned: !turned })
}
