//! Operations and bytes of one node.

use crate::ir::{
    Attention, AttentionOp, Cell, ElementwiseOp, Family, GeneratorOp, Graph, IndexOp, Layout, LayoutOp,
    NodeId, NormalizeOp, Op, PackedOp, Recurrent, TRANSCENDENTAL, Type, ValueId, WindowOp,
};
use crate::units::{Bytes, Flops};

/// Floating-point operations of a node (integer ones count the same), with a multiplication and
/// an addition as two, and a transcendental function as eight. Saturates. Zero where
/// a size is not bound.
pub fn node_flops(graph: &Graph, node: NodeId) -> Flops {
    let operands: Vec<&Type> = graph.node(node).operands.iter().map(|&value| graph.ty(value)).collect();
    let results: Vec<&Type> = graph.results(node).map(|value| graph.ty(value)).collect();
    Flops(flops(&graph.node(node).op, &operands, &results))
}

/// Whether a node's operations are those of halves: what it makes is one, or a product of them that keeps its sums.
pub(crate) fn is_half(graph: &Graph, node: NodeId) -> bool {
    let is_half = |value: ValueId| graph.ty(value).dtype.is_half();
    match graph.node(node).op.family() {
        Family::Product(_) => graph.node(node).operands.iter().any(|&operand| is_half(operand)),
        _ => graph.results(node).next().is_some_and(is_half),
    }
}

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
    match op.family() {
        Family::Leaf | Family::Generator(GeneratorOp::Sizes(_)) => 0,
        Family::Generator(GeneratorOp::Iota { .. }) => made,
        Family::Elementwise(op) => match op {
            ElementwiseOp::Unary(f) => made.saturating_mul(f.traits().flops),
            ElementwiseOp::Binary(_)
            | ElementwiseOp::Compare(_)
            | ElementwiseOp::Select
            | ElementwiseOp::Convert { .. } => made,
        },
        Family::Layout(_) => 0,
        Family::Index(op) => match op {
            IndexOp::Gather { .. }
            | IndexOp::GatherElements { .. }
            | IndexOp::GatherNd { .. }
            | IndexOp::UpdateSlice { .. } => 0,
            IndexOp::ScatterElements { .. } | IndexOp::ScatterNd { .. } => {
                operands.get(2).map_or(0, |ty| elements(ty))
            }
            // A comparison and a sum.
            IndexOp::TreeLeaves { depth } => made.saturating_mul(2 * u64::from(depth)),
            IndexOp::TopK(topk) => {
                // A heap of k elements takes about as many comparisons for each element as k has bits.
                let comparisons = u64::from(64 - topk.k.unsigned_abs().leading_zeros());
                read.saturating_mul(comparisons.max(1))
            }
        },
        Family::Window(op) => window(op, operands, made, read),
        Family::Reduce(_) => read,
        Family::Normalize(op) => match op {
            NormalizeOp::Softmax(_) => made.saturating_mul(TRANSCENDENTAL + 4),
            NormalizeOp::SoftmaxGradient(of) => {
                made.saturating_mul(if of.log { TRANSCENDENTAL + 3 } else { 4 })
            }
            NormalizeOp::CrossEntropy | NormalizeOp::CrossEntropyGradient => {
                read.saturating_mul(TRANSCENDENTAL + 4)
            }
            NormalizeOp::Normalize(_) => made.saturating_mul(6),
            NormalizeOp::NormalizeGradient { scaled, .. } => {
                made.saturating_mul(if scaled { 16 } else { 12 })
            }
            NormalizeOp::LocalResponseNorm(response) => {
                made.saturating_mul(2 * TRANSCENDENTAL + response.size.unsigned_abs())
            }
        },
        Family::Product(op) => {
            let left = operands[0];
            let from_end = if op.transpose_left { 2 } else { 1 };
            product([2, made, size(left, left.shape.rank().wrapping_sub(from_end))])
        }
        Family::Packed(op) => match op {
            PackedOp::Unpack(_) => made.saturating_mul(2),
            // Two operations for each number that is unpacked.
            PackedOp::MatMul(packed) => {
                let rows = operands
                    .get(1)
                    .map_or(0, |rows| elements(rows) / size(rows, rows.shape.rank().wrapping_sub(1)).max(1));
                let columns = packed.columns.unsigned_abs();
                product([2, made, columns]).saturating_add(product([2, rows, columns]))
            }
        },
        Family::Attention(op) => match op {
            AttentionOp::Attention(heads) => attention(heads, operands),
            // Five products where that has two, one of them twice.
            AttentionOp::AttentionGradient(heads) => attention(heads, operands).saturating_mul(3),
            AttentionOp::Rotary { .. } => made.saturating_mul(3),
        },
        Family::Recurrent(layer) => recurrent(layer, operands, made),
    }
}

fn window(op: WindowOp<'_>, operands: &[&Type], made: u64, read: u64) -> u64 {
    let of_kernel = |kernel: &[i64]| product(kernel.iter().map(|size| size.unsigned_abs()));
    match op {
        // Each result element is a sum over one filter.
        WindowOp::Conv(conv) => product([2, made, filter(conv.layout, operands[1])]),
        // Each input element is multiplied with one filter.
        WindowOp::ConvTranspose(conv) => product([2, read, filter(conv.layout, operands[1])]),
        WindowOp::Pool(pool) => made.saturating_mul(of_kernel(&pool.kernel)),
        WindowOp::MaxPoolGradient(pool) => {
            let windows = operands.get(1).map_or(0, |ty| elements(ty));
            windows.saturating_mul(of_kernel(&pool.kernel))
        }
        WindowOp::Resize(_) => made.saturating_mul(4),
    }
}

/// Elements of a convolution's weights for one of the channels on their outer axis.
fn filter(layout: Layout, weights: &Type) -> u64 {
    let outer = match layout {
        Layout::ChannelsFirst => 0,
        Layout::ChannelsLast => weights.shape.rank().wrapping_sub(1),
    };
    elements(weights) / size(weights, outer).max(1)
}

/// `made` counts time x directions x batch x hidden.
fn recurrent(layer: &Recurrent, operands: &[&Type], made: u64) -> u64 {
    let gates = match layer.cell {
        Cell::Rnn => 1,
        Cell::Lstm => 4,
        Cell::Gru | Cell::GruResetAfter => 3,
    };
    let (hidden, input) = (layer.hidden.unsigned_abs(), size(operands[0], 2));
    let products = product([2, made, gates, input.saturating_add(hidden)]);
    products.saturating_add(product([made, gates, TRANSCENDENTAL]))
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

/// Bytes of its operand number `operand` that a node reads: all of it, or of what is gathered
/// from only what is taken.
pub fn node_traffic(graph: &Graph, node: NodeId, operand: usize) -> Bytes {
    let data = &graph.node(node);
    let whole = graph.ty(data.operands[operand]).bytes().unwrap_or_default();
    // It is updated in place.
    if operand == 0 && matches!(data.op, Op::UpdateSlice { .. }) {
        return Bytes::ZERO;
    }
    if operand > 0 || !takes_a_part(&data.op) {
        return whole;
    }
    let taken = graph.results(node).next().and_then(|value| graph.ty(value).bytes()).unwrap_or_default();
    whole.min(taken)
}

/// Whether an operation reads of its first operand only what its result holds.
fn takes_a_part(op: &Op) -> bool {
    match op.family() {
        Family::Layout(op) => match op {
            LayoutOp::Slice(_) => true,
            LayoutOp::Reshape { .. }
            | LayoutOp::Transpose { .. }
            | LayoutOp::Broadcast { .. }
            | LayoutOp::Pad(_)
            | LayoutOp::Concat { .. } => false,
        },
        Family::Index(op) => match op {
            IndexOp::Gather { .. } | IndexOp::GatherElements { .. } | IndexOp::GatherNd { .. } => true,
            IndexOp::ScatterElements { .. }
            | IndexOp::ScatterNd { .. }
            | IndexOp::TopK(_)
            | IndexOp::UpdateSlice { .. }
            | IndexOp::TreeLeaves { .. } => false,
        },
        Family::Leaf
        | Family::Generator(_)
        | Family::Elementwise(_)
        | Family::Window(_)
        | Family::Reduce(_)
        | Family::Normalize(_)
        | Family::Product(_)
        | Family::Packed(_)
        | Family::Attention(_)
        | Family::Recurrent(_) => false,
    }
}

/// Bytes of a result that its node writes: all of it, or of what is updated in place only the update.
pub(super) fn made_traffic(graph: &Graph, value: ValueId) -> Bytes {
    let maker = graph.maker(value);
    let written = match (&maker.op, &maker.operands[..]) {
        (Op::UpdateSlice { .. }, &[_, _, update]) => update,
        _ => value,
    };
    graph.ty(written).bytes().unwrap_or_default()
}
