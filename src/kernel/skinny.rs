//! Products of few rows that normalise these themselves: every block of such a kernel does so for itself,
//! which is little beside the part of the weights that it reads.

use crate::ir::{DType, Graph, NodeId, Op};

/// Most rows that a product multiplies without tiles.
pub(crate) const SKINNY_ROWS: u64 = 8;

/// Bytes of normalised rows that a block keeps: what every device gives, less what folds need.
const KEPT: u64 = 44 << 10;

/// Whether a product's kernel can normalise the rows of its left operand, which has the elements of the norm's
/// result: they are few, whole, and multiplied with one matrix.
pub(crate) fn normalizes_rows(graph: &Graph, norm: NodeId, product: NodeId) -> bool {
    let (norm, product) = (graph.node(norm), graph.node(product));
    let (Op::Normalize { axes, moments: false, .. }, Op::MatMul { transpose_left: false, .. }) =
        (&norm.op, &product.op)
    else {
        return false;
    };
    let [left, right] = product.operands[..] else { return false };
    let (made, read, matrix) = (graph.ty(norm.first_result), graph.ty(left), graph.ty(right));
    let (Some(made_dims), Some(dims), Some(right_dims)) =
        (made.shape.dims(), read.shape.dims(), matrix.shape.dims())
    else {
        return false;
    };
    let (Some((&size, outer)), [one @ .., _, _]) = (dims.split_last(), &right_dims[..]) else { return false };
    let rows = outer.iter().map(|&dim| dim.max(0).unsigned_abs()).fold(1, u64::saturating_mul);
    let width = if made.dtype == DType::F64 { 8 } else { 4 };
    // Between them may stand a conversion to halves, which are computed with as f32.
    let is_narrowed = made.dtype == DType::F32 && read.dtype.is_half();
    let kept = rows.saturating_mul(size.max(0).unsigned_abs()).saturating_mul(width);
    axes[..] == [made_dims.len().saturating_sub(1) as u32]
        && made_dims.last() == Some(&size)
        && made.elements() == read.elements()
        && (made.dtype == read.dtype || is_narrowed)
        && one.iter().all(|&dim| dim == 1)
        && (1..=SKINNY_ROWS).contains(&rows)
        && kept <= KEPT
}

#[cfg(test)]
mod tests {
    use super::normalizes_rows;
    use crate::ir::NodeId;
    use crate::ir::text::parse;

    /// Whether the product of a norm's rows and `[right]` can do both.
    fn both(dtype: &str, x: &str, axis: u32, right: &str, out: &str) -> bool {
        let text = format!(
            "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n%0: {dtype}[{x}] = input \"x\" @s0
%1: {dtype}[{right}] = input \"w\" @s0
%2: {dtype}[{x}] = normalize %0 axes=[{axis}] epsilon=0.00001 @s0
%3: {dtype}[{out}] = matmul %2, %1 @s0
output \"y\" %3
"
        );
        let graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        normalizes_rows(&graph, NodeId(2), NodeId(3))
    }

    /// The same where a conversion stands between.
    fn narrowed(from: &str, to: &str) -> bool {
        let text = format!(
            "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n%0: {from}[1, 64] = input \"x\" @s0
%1: {to}[64, 9] = input \"w\" @s0
%2: {from}[1, 64] = normalize %0 axes=[1] epsilon=0.00001 @s0
%3: {to}[1, 64] = convert %2 to={to} @s0
%4: {to}[1, 9] = matmul %3, %1 @s0
output \"y\" %4
"
        );
        let graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        normalizes_rows(&graph, NodeId(2), NodeId(4))
    }

    #[test]
    fn few_whole_rows_are_normalised_where_they_are_multiplied() {
        assert!(both("f32", "1, 8, 64", 2, "64, 9", "1, 8, 9"));
        assert!(both("bf16", "1, 11264", 1, "11264, 2", "1, 2"));
        assert!(narrowed("f32", "bf16") && narrowed("f32", "f16"));
        assert!(!narrowed("f64", "bf16") && !narrowed("f64", "f32"));
        for (dtype, x, axis, right, out) in [
            // Nine rows; columns; a matrix for each; more than a block keeps.
            ("f32", "3, 3, 64", 2, "64, 9", "3, 3, 9"),
            ("f32", "8, 8", 0, "8, 9", "8, 9"),
            ("f32", "2, 2, 64", 2, "2, 64, 9", "2, 2, 9"),
            ("bf16", "1, 11265", 1, "11265, 2", "1, 2"),
            ("f64", "1, 11264", 1, "11264, 2", "1, 2"),
        ] {
            assert!(!both(dtype, x, axis, right, out), "{dtype}[{x}]");
        }
    }
}
