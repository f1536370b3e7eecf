//! Operations on constants: what a node makes of operands that are known.
//!
//! Only what every IEEE machine computes to the same bits: integers, moved elements, and the basic
//! float operations. No function of a mathematics library, no sum of floats, nothing that gives
//! not-a-number (whose bits differ between machines), nothing that is an error when it runs.

mod elements;
mod layout;
mod number;

use super::{DType, ElementwiseOp, Family, GeneratorOp, IndexOp, LayoutOp, Op, ReduceOp, Size, Tensor, Type};
use number::Numbers;

/// Most elements of a result, and of an operand that is read as a whole.
pub(crate) const EVALUATED: u64 = 64 << 10;

/// The tensor of type `ty` that an operation of one result makes of these operands. None: it has more than
/// [`EVALUATED`] elements, one of its sizes is open, or it is not evaluated: divisions of integers by zero, indices
/// out of range, not-a-number, float reductions, functions such as `exp`. Integers wrap to their type.
/// O(elements).
pub(crate) fn evaluate(op: &Op, ty: &Type, operands: &[&Tensor]) -> Option<Tensor> {
    let count = ty.elements().filter(|&count| count <= EVALUATED)?;
    // Numbers are computed with as signed ones of 64 bits, which those are not.
    let wide = |dtype| dtype == DType::U64;
    if wide(ty.dtype) || operands.iter().any(|operand| wide(operand.dtype())) {
        return None;
    }
    let dims: Option<Vec<u64>> = ty.shape.dims()?.into_iter().map(|dim| u64::try_from(dim).ok()).collect();
    let result = Outcome { dtype: ty.dtype, dims: dims?, count: count as usize };
    let bytes = result.evaluate(op, operands)?;
    Tensor::new(result.dtype, result.dims, bytes).ok()
}

/// What a node makes.
struct Outcome {
    dtype: DType,
    dims: Vec<u64>,
    count: usize,
}

impl Outcome {
    /// None of what rounds or needs a mathematics library, and of what is rare among constants.
    fn evaluate(&self, op: &Op, operands: &[&Tensor]) -> Option<Vec<u8>> {
        match op.family() {
            Family::Generator(op) => self.generated(op),
            Family::Elementwise(op) => self.elementwise(op, operands),
            Family::Layout(op) => self.moved(op, operands),
            Family::Index(op) => self.gathered(op, operands),
            Family::Reduce(op) => self.reduced(op, operands),
            Family::Leaf
            | Family::Window(_)
            | Family::Normalize(_)
            | Family::Product(_)
            | Family::Packed(_)
            | Family::Attention(_)
            | Family::Recurrent(_) => None,
        }
    }

    fn generated(&self, op: GeneratorOp<'_>) -> Option<Vec<u8>> {
        match op {
            GeneratorOp::Sizes(sizes) => {
                let known: Option<Vec<i64>> = sizes.iter().map(Size::known).collect();
                Numbers::Ints(known?).encode(self.dtype)
            }
            GeneratorOp::Iota { axis } => number::iota(self, axis as usize)?.encode(self.dtype),
        }
    }

    fn elementwise(&self, op: ElementwiseOp, operands: &[&Tensor]) -> Option<Vec<u8>> {
        match (op, operands) {
            (ElementwiseOp::Unary(f), [x]) => number::unary(f, &arithmetic(x)?)?.encode(self.dtype),
            (ElementwiseOp::Binary(f), [x, y]) => {
                let (x, y) = (self.spread_arithmetic(x)?, self.spread_arithmetic(y)?);
                number::binary(f, &x, &y)?.encode(self.dtype)
            }
            (ElementwiseOp::Compare(f), [x, y]) => {
                number::compare(f, &self.spread(x)?, &self.spread(y)?)?.encode(self.dtype)
            }
            (ElementwiseOp::Select, [condition, yes, no]) => self.select(condition, yes, no),
            (ElementwiseOp::Convert { to }, [x]) => {
                number::convert(&Numbers::decode(x.dtype(), x.bytes()), to)
            }
            // Inference has counted the operands.
            (
                ElementwiseOp::Unary(_)
                | ElementwiseOp::Binary(_)
                | ElementwiseOp::Compare(_)
                | ElementwiseOp::Select
                | ElementwiseOp::Convert { .. },
                _,
            ) => None,
        }
    }

    fn moved(&self, op: LayoutOp<'_>, operands: &[&Tensor]) -> Option<Vec<u8>> {
        let &x = operands.first()?;
        match op {
            LayoutOp::Reshape { .. } => Some(x.bytes().to_vec()),
            LayoutOp::Transpose { perm } => layout::transpose(self, perm, x),
            LayoutOp::Broadcast { .. } => layout::broadcast(self, x),
            LayoutOp::Slice(slice) => layout::slice(self, slice, x),
            LayoutOp::Pad(pad) => layout::pad(self, pad, x),
            LayoutOp::Concat { axis } => layout::concat(self, axis as usize, operands),
        }
    }

    fn gathered(&self, op: IndexOp<'_>, operands: &[&Tensor]) -> Option<Vec<u8>> {
        let &[data, indices, ..] = operands else { return None };
        match op {
            IndexOp::Gather { axis } => layout::gather(axis as usize, data, indices, self.count),
            IndexOp::GatherElements { axis } => layout::gather_elements(axis as usize, data, indices),
            IndexOp::GatherNd { batch_dims } => {
                layout::gather_nd(batch_dims as usize, data, indices, self.count)
            }
            IndexOp::ScatterElements { .. }
            | IndexOp::ScatterNd { .. }
            | IndexOp::UpdateSlice { .. }
            | IndexOp::TopK(_)
            | IndexOp::TreeLeaves { .. } => None,
        }
    }

    fn reduced(&self, op: ReduceOp<'_>, operands: &[&Tensor]) -> Option<Vec<u8>> {
        let &[x] = operands else { return None };
        match op {
            ReduceOp::Reduce { kind, axes, .. } => {
                number::reduce(kind, axes, x, self.count)?.encode(self.dtype)
            }
            ReduceOp::CumSum(sum) => number::cum_sum(sum, x)?.encode(self.dtype),
            ReduceOp::ArgReduce { .. } => None,
        }
    }

    /// An operand's numbers, broadcast to the result.
    fn spread(&self, x: &Tensor) -> Option<Numbers> {
        Some(Numbers::decode(x.dtype(), &layout::broadcast(self, x)?))
    }

    /// The same, of a type that is computed in.
    fn spread_arithmetic(&self, x: &Tensor) -> Option<Numbers> {
        (!x.dtype().is_half()).then(|| self.spread(x))?
    }

    fn select(&self, condition: &Tensor, yes: &Tensor, no: &Tensor) -> Option<Vec<u8>> {
        let condition = layout::broadcast(self, condition)?;
        let (yes, no) = (layout::broadcast(self, yes)?, layout::broadcast(self, no)?);
        let size = self.dtype.size() as usize;
        let both = yes.chunks_exact(size).zip(no.chunks_exact(size));
        let chosen = condition.iter().zip(both).map(|(&c, (yes, no))| if c != 0 { yes } else { no });
        let bytes: Vec<u8> = chosen.flatten().copied().collect();
        // By way of f32, a 16-bit not-a-number changes its bits.
        let changes = self.dtype.is_half() && Numbers::decode(self.dtype, &bytes).has_nan();
        (!changes).then_some(bytes)
    }
}

/// 16-bit floats are computed in wider types, which rounds twice.
fn arithmetic(x: &Tensor) -> Option<Numbers> {
    (!x.dtype().is_half()).then(|| Numbers::decode(x.dtype(), x.bytes()))
}
