//! Patterns that frameworks spell out, each rewritten as the one operation that it means: GELU in
//! both forms, SiLU, softmax, layer norm and RMS norm, and powers by small numbers.
//!
//! On exit a graph computes what it did, up to the rounding of these operations' own kernels. The
//! nodes that a pattern consists of stay where something else reads them; else they are left for
//! [`super::dce`]. A predicate is exact: operations, types, axes, and constants to the bit.

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{
    Binary, DType, Graph, NodeId, Op, Real, ReduceKind, Size, Tensor, Type, Unary, ValueId, infer,
};

/// Rewrites every pattern. O(nodes + operands + bytes of constants).
///
/// Error: only of a graph that does not verify.
pub fn fuse(graph: &mut Graph) -> Result<()> {
    let uniform: Vec<Option<f64>> = graph.constants().iter().map(number).collect();
    let mut rewriter = Rewriter::new(graph);
    for id in graph.node_ids() {
        visit(graph, &mut rewriter, &uniform, id)?;
    }
    *graph = rewriter.finish()?;
    Ok(())
}

/// Keeps a node, or the operation that it is the last node of.
fn visit(graph: &Graph, rewriter: &mut Rewriter<'_>, uniform: &[Option<f64>], id: NodeId) -> Result<()> {
    let node = graph.node(id);
    let pattern = matches!(node.op, Op::Binary(Binary::Mul | Binary::Div | Binary::Pow));
    if rewriter.is_ordered(id) || !pattern {
        return rewriter.keep(id);
    }
    let ty = graph.ty(node.first_result);
    let operands = rewriter.operands(id)?;
    let look = Look { rewriter, uniform };
    let found = match node.op {
        Op::Binary(Binary::Pow) => look.power(&operands),
        _ => look
            .gelu(&node.op, &operands)
            .or_else(|| look.silu(&node.op, &operands))
            .or_else(|| look.normalized(&node.op, &operands))
            .or_else(|| look.softmax(&node.op, &operands)),
    };
    match found.filter(|(op, operands)| is_of(rewriter.graph(), op, operands, ty)) {
        Some((op, operands)) => rewriter.keep_as(id, op, &operands),
        None => rewriter.keep(id),
    }
}

/// True where an operation has one result, of this type.
fn is_of(graph: &Graph, op: &Op, operands: &[ValueId], ty: &Type) -> bool {
    let types: Vec<&Type> = operands.iter().map(|&value| graph.ty(value)).collect();
    infer(op, &types, &|dim| graph.dim_name(dim).to_owned())
        .is_ok_and(|results| results.len() == 1 && results[0] == *ty)
}

/// The number that every element of a float constant is.
fn number(tensor: &Tensor) -> Option<f64> {
    let size = tensor.dtype().size() as usize;
    let mut elements = tensor.bytes().chunks_exact(size);
    let first = elements.next()?;
    if !elements.all(|element| element == first) {
        return None;
    }
    match tensor.dtype() {
        DType::F32 => Some(f32::from_le_bytes(first.try_into().ok()?).into()),
        DType::F64 => Some(f64::from_le_bytes(first.try_into().ok()?)),
        _ => None,
    }
}

/// An operation and its operands.
type Found = Option<(Op, Vec<ValueId>)>;

struct Look<'a, 'g> {
    rewriter: &'a Rewriter<'g>,
    uniform: &'a [Option<f64>],
}

impl Look<'_, '_> {
    /// The constant that a value is.
    fn constant(&self, value: ValueId) -> Option<f64> {
        match self.rewriter.maker(value)? {
            (Op::Constant(id), _) => self.uniform.get(id.index()).copied().flatten(),
            _ => None,
        }
    }

    /// True where a value is this constant, rounded to its type.
    fn is(&self, value: ValueId, number: f64) -> bool {
        let rounded = match self.rewriter.graph().ty(value).dtype {
            DType::F32 => f64::from(number as f32),
            _ => number,
        };
        self.constant(value) == Some(rounded)
    }

    fn unary(&self, value: ValueId, unary: Unary) -> Option<ValueId> {
        match self.rewriter.maker(value)? {
            (Op::Unary(other), &[x]) if *other == unary => Some(x),
            _ => None,
        }
    }

    fn binary(&self, value: ValueId, binary: Binary) -> Option<[ValueId; 2]> {
        match self.rewriter.maker(value)? {
            (Op::Binary(other), &[x, y]) if *other == binary => Some([x, y]),
            _ => None,
        }
    }

    /// The other operand of a commutative operation with this constant.
    fn with(&self, value: ValueId, binary: Binary, number: f64) -> Option<ValueId> {
        let [x, y] = self.binary(value, binary)?;
        if self.is(y, number) { Some(x) } else { self.is(x, number).then_some(y) }
    }

    /// `x * x`, or `x ^ 2`.
    fn square(&self, value: ValueId) -> Option<ValueId> {
        match self.binary(value, Binary::Mul) {
            Some([x, y]) => (x == y).then_some(x),
            None => self.binary(value, Binary::Pow).and_then(|[x, two]| self.is(two, 2.0).then_some(x)),
        }
    }

    /// `x ^ 3`, or a product of three.
    fn is_cube(&self, value: ValueId, x: ValueId) -> bool {
        if let Some([base, three]) = self.binary(value, Binary::Pow) {
            return base == x && self.is(three, 3.0);
        }
        let Some([a, b]) = self.binary(value, Binary::Mul) else { return false };
        a == x && self.square(b) == Some(x) || b == x && self.square(a) == Some(x)
    }

    /// Powers by 2 and -1.
    fn power(&self, operands: &[ValueId]) -> Found {
        let &[x, exponent] = operands else { return None };
        match self.constant(exponent)? {
            2.0 => Some((Op::Binary(Binary::Mul), vec![x, x])),
            -1.0 => Some((Op::Unary(Unary::Reciprocal), vec![x])),
            _ => None,
        }
    }

    /// The three ways to multiply `x`, 1/2 and a third factor: `x` and that factor.
    fn halved(&self, operands: [ValueId; 2]) -> Vec<[ValueId; 2]> {
        let mut found = Vec::new();
        for [a, b] in [operands, [operands[1], operands[0]]] {
            // (x / 2) * f, (f / 2) * x
            if let Some(x) = self.with(a, Binary::Mul, 0.5) {
                found.extend([[x, b], [b, x]]);
            }
            // (x * f) / 2
            if self.is(b, 0.5)
                && let Some([x, f]) = self.binary(a, Binary::Mul)
            {
                found.extend([[x, f], [f, x]]);
            }
        }
        found
    }

    /// `x/2 * (1 + erf(x / sqrt 2))`, `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
    fn gelu(&self, op: &Op, operands: &[ValueId]) -> Found {
        let (Op::Binary(Binary::Mul), &[a, b]) = (op, operands) else { return None };
        self.halved([a, b]).into_iter().find_map(|[x, factor]| {
            let inner = self.with(factor, Binary::Add, 1.0)?;
            let exact = self.unary(inner, Unary::Erf).is_some_and(|scaled| self.is_over_sqrt_2(scaled, x));
            let approximate = self.unary(inner, Unary::Tanh).is_some_and(|cubic| self.is_cubic(cubic, x));
            match (exact, approximate) {
                (true, _) => Some((Op::Unary(Unary::Gelu), vec![x])),
                (_, true) => Some((Op::Unary(Unary::GeluTanh), vec![x])),
                _ => None,
            }
        })
    }

    fn is_over_sqrt_2(&self, value: ValueId, x: ValueId) -> bool {
        let divided = self.binary(value, Binary::Div);
        divided.is_some_and(|[y, root]| y == x && self.is(root, std::f64::consts::SQRT_2))
            || self.with(value, Binary::Mul, std::f64::consts::FRAC_1_SQRT_2) == Some(x)
    }

    fn is_cubic(&self, value: ValueId, x: ValueId) -> bool {
        let sum = self.with(value, Binary::Mul, (2.0 / std::f64::consts::PI).sqrt());
        let Some([a, b]) = sum.and_then(|sum| self.binary(sum, Binary::Add)) else { return false };
        let is_third =
            |value| self.with(value, Binary::Mul, 0.044715).is_some_and(|cube| self.is_cube(cube, x));
        a == x && is_third(b) || b == x && is_third(a)
    }

    /// `x * sigmoid(x)`.
    fn silu(&self, op: &Op, operands: &[ValueId]) -> Found {
        let (Op::Binary(Binary::Mul), &[a, b]) = (op, operands) else { return None };
        let pair = [[a, b], [b, a]];
        let found = pair.into_iter().find(|&[x, s]| self.unary(s, Unary::Sigmoid) == Some(x));
        found.map(|[x, _]| (Op::Unary(Unary::Silu), vec![x]))
    }

    /// `d / sqrt(mean of d^2 + epsilon)`, also as a product with the reciprocal: where `d` is
    /// `x - mean of x`, of `x` with its mean subtracted.
    fn normalized(&self, op: &Op, operands: &[ValueId]) -> Found {
        let (numerator, root) = match (op, operands) {
            (Op::Binary(Binary::Div), &[d, root]) => (d, root),
            (Op::Binary(Binary::Mul), &[a, b]) => match self.unary(b, Unary::Reciprocal) {
                Some(root) => (a, root),
                None => (b, self.unary(a, Unary::Reciprocal)?),
            },
            _ => return None,
        };
        let shifted = self.unary(root, Unary::Sqrt)?;
        let [a, b] = self.binary(shifted, Binary::Add)?;
        let (variance, epsilon) = match self.constant(b) {
            Some(epsilon) => (a, epsilon),
            None => (b, self.constant(a)?),
        };
        let (squares, axes) = self.mean(variance)?;
        if self.square(squares)? != numerator {
            return None;
        }
        let centered = self
            .binary(numerator, Binary::Sub)
            .filter(|&[x, mean]| self.mean(mean).is_some_and(|(of, over)| of == x && over == axes));
        let x = centered.map_or(numerator, |[x, _]| x);
        Some((Op::Normalize { axes, epsilon: Real(epsilon), center: centered.is_some() }, vec![x]))
    }

    /// What a value is the mean of, its axes kept, and over which.
    fn mean(&self, value: ValueId) -> Option<(ValueId, Vec<u32>)> {
        match self.rewriter.maker(value)? {
            (Op::Reduce { kind: ReduceKind::Mean, axes, keep: true }, &[x]) => Some((x, axes.clone())),
            _ => None,
        }
    }

    /// `e / sum of e` along an axis, where `e` is `exp(x - max of x)`.
    fn softmax(&self, op: &Op, operands: &[ValueId]) -> Found {
        let (Op::Binary(Binary::Div), &[e, sum]) = (op, operands) else { return None };
        let along = |value: ValueId, of: ReduceKind| match self.rewriter.maker(value)? {
            (Op::Reduce { kind, axes, keep: true }, &[x]) if *kind == of && axes.len() == 1 => {
                Some((x, axes[0]))
            }
            _ => None,
        };
        let (summed, axis) = along(sum, ReduceKind::Sum)?;
        let [x, largest] = self.binary(self.unary(e, Unary::Exp)?, Binary::Sub)?;
        let size = self.rewriter.graph().ty(x).shape.sizes().get(axis as usize)?.clone();
        let matches = summed == e && along(largest, ReduceKind::Max) == Some((x, axis));
        // Of nothing there is no largest.
        (matches && size != Size::Known(0)).then(|| (Op::Softmax { axis, log: false }, vec![x]))
    }
}
