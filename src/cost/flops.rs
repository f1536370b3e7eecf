//! Operations and bytes of one node.

use crate::ir::{Attention, Cell, Graph, NodeId, Op, Type, Unary};
use crate::units::{Bytes, Flops};

/// Floating-point operations of a node (integer ones count the same), with a multiplication and
/// an addition as two, and a transcendental function as eight. Saturates. Zero where
/// a size is not bound.
pub fn node_flops(graph: &Graph, node: NodeId) -> Flops {
    let operands: Vec<&Type> = graph.node(node).operands.iter().map(|&value| graph.ty(value)).collect();
    let results: Vec<&Type> = graph.results(node).map(|value| graph.ty(value)).collect();
    Flops(flops(&graph.node(node).op, &operands, &results))
}

/// What one `exp`, `tanh` and the like counts as.
const TRANSCENDENTAL: u64 = 8;

fn elements(ty: &Type) -> u64 {
    ty.elements().unwrap_or(0)
}

fn size(ty: &Type, axis: usize) -> u64 {
    ty.shape
        .sizes()
        .get(axis)
        .and_then(|size| size.known())
        .and_then(|size| u64::try_from(size).ok())
        .unwrap_or(0)
}

fn product(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(1, u64::saturating_mul)
}

fn flops(op: &Op, operands: &[&Type], results: &[&Type]) -> u64 {
    let made = results.first().map_or(0, |ty| elements(ty));
    let read = operands.first().map_or(0, |ty| elements(ty));
    match op {
        Op::Input | Op::Param(_) | Op::Constant(_) | Op::Sizes(_) => 0,
        Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Broadcast { .. }
        | Op::Slice(_)
        | Op::Pad(_)
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. } => 0,
        Op::Iota { .. } | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Convert { .. } => made,
        Op::Unary(unary) => made.saturating_mul(unary_flops(*unary)),
        Op::Reduce { .. } | Op::ArgReduce { .. } | Op::CumSum { .. } => read,
        Op::Softmax { .. } => made.saturating_mul(TRANSCENDENTAL + 4),
        Op::SoftmaxGradient { log, .. } => made.saturating_mul(if *log { TRANSCENDENTAL + 3 } else { 4 }),
        Op::CrossEntropy | Op::CrossEntropyGradient => read.saturating_mul(TRANSCENDENTAL + 4),
        Op::Normalize { .. } => made.saturating_mul(6),
        Op::NormalizeGradient { scaled, .. } => made.saturating_mul(if *scaled { 16 } else { 12 }),
        Op::LocalResponseNorm { size, .. } => made.saturating_mul(2 * TRANSCENDENTAL + size.unsigned_abs()),
        Op::MatMul { transpose_left, .. } => {
            let left = operands[0];
            let rank = left.shape.rank();
            let depth = size(left, if *transpose_left { rank.wrapping_sub(2) } else { rank.wrapping_sub(1) });
            product([2, made, depth])
        }
        Op::Attention(op) => attention(op, operands),
        // Five products where that has two, one of them twice.
        Op::AttentionGradient(op) => attention(op, operands).saturating_mul(3),
        Op::Rotary { .. } => made.saturating_mul(3),
        Op::Conv(conv) => {
            // Each result element is a sum over one filter.
            let filters = match conv.layout {
                crate::ir::Layout::ChannelsFirst => size(operands[1], 0),
                crate::ir::Layout::ChannelsLast => {
                    size(operands[1], operands[1].shape.rank().wrapping_sub(1))
                }
            };
            product([2, made, elements(operands[1]) / filters.max(1)])
        }
        Op::ConvTranspose(conv) => {
            // Each input element is multiplied with one filter.
            let inputs = match conv.layout {
                crate::ir::Layout::ChannelsFirst => size(operands[1], 0),
                crate::ir::Layout::ChannelsLast => {
                    size(operands[1], operands[1].shape.rank().wrapping_sub(1))
                }
            };
            product([2, read, elements(operands[1]) / inputs.max(1)])
        }
        Op::Pool(pool) => made.saturating_mul(product(pool.kernel.iter().map(|k| k.unsigned_abs()))),
        Op::MaxPoolGradient(pool) => {
            let windows = operands.get(1).map_or(0, |ty| elements(ty));
            windows.saturating_mul(product(pool.kernel.iter().map(|k| k.unsigned_abs())))
        }
        Op::Resize(_) => made.saturating_mul(4),
        Op::Recurrent(recurrent) => {
            let gates = match recurrent.cell {
                Cell::Rnn => 1,
                Cell::Lstm => 4,
                Cell::Gru | Cell::GruResetAfter => 3,
            };
            let hidden = recurrent.hidden.unsigned_abs();
            let input = size(operands[0], 2);
            // `made` counts time x directions x batch x hidden.
            let products = product([2, made, gates, input.saturating_add(hidden)]);
            products.saturating_add(product([made, gates, TRANSCENDENTAL]))
        }
        Op::ScatterElements { .. } | Op::ScatterNd { .. } => operands.get(2).map_or(0, |ty| elements(ty)),
        Op::TopK(topk) => {
            let comparisons = u64::from(64 - topk.k.unsigned_abs().leading_zeros());
            read.saturating_mul(comparisons.max(1))
        }
    }
}

/// Both products and the softmax of every score that counts.
fn attention(op: &Attention, operands: &[&Type]) -> u64 {
    let [q, k, v] = [operands[0], operands[1], operands[2]];
    let (rows, keys) = (size(q, op.orders[0].axes().1), size(k, op.orders[1].axes().1));
    let scores = match op.causal {
        None => rows.saturating_mul(keys),
        Some(offset) => {
            // Of the rows with fewer keys, the first has `least` and each one more.
            let most = i128::from(keys);
            let (rows, offset) = (i128::from(rows), i128::from(offset));
            let short = (most - offset - 1).clamp(0, rows);
            let begin = (-offset).clamp(0, short);
            let sum = (short - begin) * (begin + offset + 1 + short + offset) / 2 + (rows - short) * most;
            u64::try_from(sum).unwrap_or(u64::MAX)
        }
    };
    let each = (size(q, 3).saturating_add(size(v, 3))).saturating_mul(2).saturating_add(TRANSCENDENTAL + 4);
    product([size(q, 0), op.heads.unsigned_abs(), scores, each])
}

fn unary_flops(unary: Unary) -> u64 {
    match unary {
        Unary::Neg
        | Unary::Abs
        | Unary::Sign
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Relu
        | Unary::Not
        | Unary::IsNan
        | Unary::IsInf => 1,
        Unary::Sqrt | Unary::Reciprocal => 4,
        Unary::Exp
        | Unary::Expm1
        | Unary::Log
        | Unary::Sin
        | Unary::Cos
        | Unary::Tan
        | Unary::Sinh
        | Unary::Cosh
        | Unary::Tanh
        | Unary::Sigmoid
        | Unary::Erf
        | Unary::Gelu
        | Unary::GeluTanh
        | Unary::Silu
        | Unary::Softplus => TRANSCENDENTAL,
    }
}

/// Bytes of its operand number `operand` that a node reads: all of it, or of what is gathered
/// from only what is taken.
pub fn node_traffic(graph: &Graph, node: NodeId, operand: usize) -> Bytes {
    let data = &graph.node(node);
    let whole = graph.ty(data.operands[operand]).bytes().unwrap_or_default();
    match data.op {
        Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } | Op::Slice(_)
            if operand == 0 =>
        {
            let taken =
                graph.results(node).next().and_then(|value| graph.ty(value).bytes()).unwrap_or_default();
            whole.min(taken)
        }
        _ => whole,
    }
}
