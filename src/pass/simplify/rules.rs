//! The rules, one function for each kind of operation.

use super::super::rewrite::Rewriter;
use super::Rewrite;
use crate::ir::{
    Binary, DType, ElementwiseOp, Family, IndexOp, LayoutOp, MatMul, Op, Pad, Shape, Size, Slice, Tensor,
    Type, Unary, ValueId, float_element,
};

/// A node whose operands are simplified.
pub(super) struct Look<'a, 'g> {
    pub(super) rewriter: &'a Rewriter<'g>,
    /// By constant: whether all its elements are the same bits.
    pub(super) uniform: &'a [bool],
    pub(super) op: &'a Op,
    pub(super) operands: &'a [ValueId],
    /// The type of its result.
    pub(super) ty: &'a Type,
}

/// True where a transposition changes the last two axes and no others.
fn swaps_last_two(perm: &[u32]) -> bool {
    let rank = perm.len() as u32;
    let swapped = |axis: u32| match rank.checked_sub(axis) {
        Some(1) => rank - 2,
        Some(2) => rank - 1,
        _ => axis,
    };
    rank >= 2 && (0..rank).zip(perm).all(|(axis, &from)| swapped(axis) == from)
}

/// What may take the node's place, best first. The caller takes the first that has the result's
/// type.
pub(super) fn rewritten(look: &Look<'_, '_>) -> Vec<Rewrite> {
    match look.op.family() {
        Family::Elementwise(op) => match op {
            ElementwiseOp::Unary(Unary::Not) => one(look.twice_not()),
            // Gradients are made before a graph is simplified.
            ElementwiseOp::Unary(Unary::Detach) => one(look.identity()),
            ElementwiseOp::Unary(_) => Vec::new(),
            ElementwiseOp::Binary(binary) => look.binary(binary),
            ElementwiseOp::Compare(_) => look.without_broadcasts(),
            ElementwiseOp::Select => look.select(),
            ElementwiseOp::Convert { .. } => one(look.identity()),
        },
        Family::Layout(op) => one(match op {
            LayoutOp::Reshape { .. } => look.identity().or_else(|| look.past_same()),
            LayoutOp::Transpose { perm } => look.transpose(perm),
            LayoutOp::Broadcast { shape } => look.broadcast(shape),
            LayoutOp::Slice(slice) => look.slice(slice),
            LayoutOp::Pad(pad) => look.pad(pad),
            LayoutOp::Concat { axis } => look.concat(axis as usize),
        }),
        Family::Index(op) => match op {
            IndexOp::Gather { axis } => one(look.gather(axis as usize)),
            IndexOp::GatherElements { .. }
            | IndexOp::GatherNd { .. }
            | IndexOp::ScatterElements { .. }
            | IndexOp::ScatterNd { .. }
            | IndexOp::UpdateSlice { .. }
            | IndexOp::TopK(_)
            | IndexOp::TreeLeaves { .. } => Vec::new(),
        },
        Family::Product(op) => one(look.product(op)),
        // No rewriting of these is known that holds for every bit.
        Family::Leaf
        | Family::Generator(_)
        | Family::Window(_)
        | Family::Reduce(_)
        | Family::Normalize(_)
        | Family::Packed(_)
        | Family::Attention(_)
        | Family::Recurrent(_) => Vec::new(),
    }
}

fn one(rewrite: Option<Rewrite>) -> Vec<Rewrite> {
    rewrite.into_iter().collect()
}

impl<'a> Look<'a, '_> {
    fn operand_type(&self, position: usize) -> Option<&'a Type> {
        self.operands.get(position).map(|&value| self.rewriter.graph().ty(value))
    }

    /// The operation and operands that make an operand.
    fn maker(&self, position: usize) -> Option<(&'a Op, &'a [ValueId])> {
        self.rewriter.maker(*self.operands.get(position)?)
    }

    /// The first operand, where it has the type of the result.
    fn identity(&self) -> Option<Rewrite> {
        (self.operand_type(0)? == self.ty).then(|| Rewrite::Value(self.operands[0]))
    }

    /// The same operation past an operand that is made by such an operation too: of two reshapes
    /// or broadcasts the later decides.
    fn past_same(&self) -> Option<Rewrite> {
        let (op, inner) = self.maker(0)?;
        (std::mem::discriminant(op) == std::mem::discriminant(self.op))
            .then(|| Rewrite::Node(self.op.clone(), inner.to_vec()))
    }

    fn transpose(&self, perm: &[u32]) -> Option<Rewrite> {
        if perm.iter().enumerate().all(|(position, &axis)| position == axis as usize) {
            return self.identity();
        }
        if let Some((Op::Transpose { perm: inner }, operands)) = self.maker(0) {
            let perm: Option<Vec<u32>> = perm.iter().map(|&axis| inner.get(axis as usize).copied()).collect();
            return Some(Rewrite::Node(Op::Transpose { perm: perm? }, operands.to_vec()));
        }
        let sizes = self.operand_type(0)?.shape.sizes();
        let long = perm.iter().filter(|&&axis| sizes.get(axis as usize) != Some(&Size::Known(1)));
        long.is_sorted().then(|| self.reshape())
    }

    /// A matrix product reads a transposed operand as it is stored.
    fn product(&self, MatMul { transpose_left, transpose_right, wide, rounds }: MatMul) -> Option<Rewrite> {
        let mut transposed = [transpose_left, transpose_right];
        let mut operands = self.operands.to_vec();
        let mut changed = false;
        for (position, transposed) in transposed.iter_mut().enumerate() {
            let Some((Op::Transpose { perm }, inner)) = self.maker(position) else { continue };
            if swaps_last_two(perm) {
                operands[position] = *inner.first()?;
                *transposed = !*transposed;
                changed = true;
            }
        }
        let [transpose_left, transpose_right] = transposed;
        changed
            .then_some(Rewrite::Node(Op::MatMul { transpose_left, transpose_right, wide, rounds }, operands))
    }

    /// A reshape to the result.
    fn reshape(&self) -> Rewrite {
        Rewrite::Node(Op::Reshape { shape: self.ty.shape.clone() }, self.operands.to_vec())
    }

    fn broadcast(&self, shape: &Shape) -> Option<Rewrite> {
        if let Some(rewrite) = self.identity().or_else(|| self.past_same()) {
            return Some(rewrite);
        }
        let own = self.operand_type(0)?.shape.sizes();
        let (added, rest) = shape.sizes().split_at_checked(shape.rank().checked_sub(own.len())?)?;
        (rest == own && added.iter().all(|size| *size == Size::Known(1))).then(|| self.reshape())
    }

    fn slice(&self, slice: &Slice) -> Option<Rewrite> {
        let whole =
            slice.starts.iter().zip(&slice.sizes).zip(&slice.steps).all(|((start, size), &step)| {
                *start == Size::Known(0) && (step == 1 || *size == Size::Known(1))
            });
        if whole {
            self.identity().or_else(|| self.slice_of_one())
        } else {
            self.slice_of_one()
                .or_else(|| self.slice_past_ones(slice))
                .or_else(|| self.slice_past_turn(slice))
        }
    }

    /// A slice of what is one element everywhere, as that element in fewer places.
    fn slice_of_one(&self) -> Option<Rewrite> {
        let (Op::Broadcast { .. }, &[x]) = self.maker(0)? else { return None };
        let is_one = self.rewriter.graph().ty(x).elements() == Some(1);
        is_one.then(|| Rewrite::Node(Op::Broadcast { shape: self.ty.shape.clone() }, vec![x]))
    }

    /// A slice of a reshape that only adds or drops axes of size 1, as such a reshape of a slice.
    fn slice_past_ones(&self, slice: &Slice) -> Option<Rewrite> {
        let (Op::Reshape { .. }, &[x]) = self.maker(0)? else { return None };
        let own = self.operand_type(0)?.shape.sizes();
        let under = self.rewriter.graph().ty(x).shape.sizes();
        let long = |sizes: &[Size]| -> Vec<usize> {
            (0..sizes.len()).filter(|&axis| sizes[axis] != Size::Known(1)).collect()
        };
        let (from, to) = (long(own), long(under));
        if from.len() != to.len() || from.iter().zip(&to).any(|(&from, &to)| own[from] != under[to]) {
            return None;
        }
        // What it takes of an axis of size 1 is that one element.
        let ones = (0..own.len()).filter(|axis| !from.contains(axis));
        if ones.into_iter().any(|axis| slice.sizes[axis] != Size::Known(1)) {
            return None;
        }
        let (mut starts, mut steps) = (vec![Size::Known(0); under.len()], vec![1; under.len()]);
        let mut sizes = vec![Size::Known(1); under.len()];
        for (&from, &to) in from.iter().zip(&to) {
            starts[to] = slice.starts[from].clone();
            sizes[to] = slice.sizes[from].clone();
            steps[to] = slice.steps[from];
        }
        let taken = Op::Slice(Box::new(Slice { starts, sizes, steps }));
        Some(Rewrite::Both(taken, vec![x], Op::Reshape { shape: self.ty.shape.clone() }))
    }

    /// A slice of a transposition that moves only axes of which the slice takes one element, as a
    /// reshape of a slice.
    fn slice_past_turn(&self, slice: &Slice) -> Option<Rewrite> {
        let (Op::Transpose { perm }, &[x]) = self.maker(0)? else { return None };
        let long = |&position: &usize| slice.sizes[position] != Size::Known(1);
        let moved: Vec<u32> = (0..perm.len()).filter(long).map(|position| perm[position]).collect();
        if !moved.is_sorted() {
            return None;
        }
        let mut position_of = vec![0; perm.len()];
        perm.iter().enumerate().for_each(|(position, &axis)| position_of[axis as usize] = position);
        let taken = Slice {
            starts: position_of.iter().map(|&position| slice.starts[position].clone()).collect(),
            sizes: position_of.iter().map(|&position| slice.sizes[position].clone()).collect(),
            steps: position_of.iter().map(|&position| slice.steps[position]).collect(),
        };
        let taken = Op::Slice(Box::new(taken));
        Some(Rewrite::Both(taken, vec![x], Op::Reshape { shape: self.ty.shape.clone() }))
    }

    /// A gather whose indices are constants that follow one another, as a slice.
    fn gather(&self, axis: usize) -> Option<Rewrite> {
        let (Op::Constant(id), _) = self.maker(1)? else { return None };
        let indices = self.rewriter.graph().constant(*id).to_i64()?;
        let dims = self.operand_type(0)?.shape.dims()?;
        let size = *dims.get(axis)?;
        let count = i64::try_from(indices.len()).ok()?;
        let place = |index: i64| if index < 0 { index.checked_add(size) } else { Some(index) };
        let start = place(*indices.first()?)?;
        if start < 0 || start.checked_add(count)? > size {
            return None;
        }
        if !(start..start + count).zip(&indices).all(|(expected, &index)| place(index) == Some(expected)) {
            return None;
        }
        let mut slice = Slice {
            starts: vec![Size::Known(0); dims.len()],
            sizes: dims.iter().map(|&dim| Size::Known(dim)).collect(),
            steps: vec![1; dims.len()],
        };
        (slice.starts[axis], slice.sizes[axis]) = (Size::Known(start), Size::Known(count));
        let data = vec![*self.operands.first()?];
        let then = Op::Reshape { shape: self.ty.shape.clone() };
        Some(Rewrite::Both(Op::Slice(Box::new(slice)), data, then))
    }

    fn pad(&self, pad: &Pad) -> Option<Rewrite> {
        let nothing = pad.before.iter().chain(&pad.after).all(|&amount| amount == 0);
        nothing.then(|| self.identity())?
    }

    /// Leaves out operands that are empty along the axis; one that is left is the result.
    fn concat(&self, axis: usize) -> Option<Rewrite> {
        let empty = |value: &&ValueId| {
            self.rewriter.graph().ty(**value).shape.sizes().get(axis) == Some(&Size::Known(0))
        };
        let left: Vec<ValueId> = self.operands.iter().filter(|value| !empty(value)).copied().collect();
        match left[..] {
            [single] => Some(Rewrite::Value(single)),
            [] => self.identity(),
            _ if left.len() == self.operands.len() => None,
            _ => Some(Rewrite::Node(self.op.clone(), left)),
        }
    }

    fn twice_not(&self) -> Option<Rewrite> {
        match self.maker(0)? {
            (Op::Unary(Unary::Not), inner) => Some(Rewrite::Value(*inner.first()?)),
            _ => None,
        }
    }

    fn binary(&self, binary: Binary) -> Vec<Rewrite> {
        let mut found = self.without_broadcasts();
        let [x, y] = self.operands else { return found };
        if self.is_neutral(binary, *y) {
            found.push(Rewrite::Value(*x));
        }
        let commutes = matches!(binary, Binary::Add | Binary::Mul);
        if commutes && self.is_neutral(binary, *x) {
            found.push(Rewrite::Value(*y));
        }
        found
    }

    /// Whether every element of a value is a constant that leaves the left operand of the
    /// operation as it is. Of floats, `-0.0 + 0.0` and `-0.0 - -0.0` are `0.0`, so only
    /// `x + -0.0` and `x - 0.0` are exact.
    fn is_neutral(&self, binary: Binary, value: ValueId) -> bool {
        let Some(element) = self.element(value) else { return false };
        match binary {
            Binary::Add => element == Element::Int(0) || element == Element::Float((-0.0f64).to_bits()),
            Binary::Sub => element == Element::Int(0) || element == Element::Float(0.0f64.to_bits()),
            Binary::Mul | Binary::Div => {
                element == Element::Int(1) || element == Element::Float(1.0f64.to_bits())
            }
            Binary::Mod
            | Binary::Rem
            | Binary::Pow
            | Binary::Max
            | Binary::Min
            | Binary::And
            | Binary::Or
            | Binary::Xor
            | Binary::Hash => false,
        }
    }

    /// The element that a constant consists of.
    fn element(&self, value: ValueId) -> Option<Element> {
        let (Op::Constant(id), _) = self.rewriter.maker(value)? else { return None };
        if !*self.uniform.get(id.index())? {
            return None;
        }
        Element::first(self.rewriter.graph().constant(*id))
    }

    /// The value that a known condition selects; a broadcast of it where the result is larger.
    fn select(&self) -> Vec<Rewrite> {
        let [condition, yes, no] = self.operands else { return Vec::new() };
        let chosen = match self.element(*condition) {
            _ if yes == no => *yes,
            Some(Element::Int(known)) => {
                if known != 0 {
                    *yes
                } else {
                    *no
                }
            }
            Some(_) | None => return self.without_broadcasts(),
        };
        let broadcast = Op::Broadcast { shape: self.ty.shape.clone() };
        vec![Rewrite::Value(chosen), Rewrite::Node(broadcast, vec![chosen])]
    }

    /// The same operation past each operand that is a broadcast.
    fn without_broadcasts(&self) -> Vec<Rewrite> {
        let mut found = Vec::new();
        for position in 0..self.operands.len() {
            if let Some((Op::Broadcast { .. }, &[inner])) = self.maker(position) {
                let mut operands = self.operands.to_vec();
                operands[position] = inner;
                found.push(Rewrite::Node(self.op.clone(), operands));
            }
        }
        found
    }
}

/// One element of a constant: an integer or bool, or the bits of a float as f64.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Element {
    Int(i64),
    Float(u64),
}

impl Element {
    fn first(tensor: &Tensor) -> Option<Self> {
        let bytes = tensor.bytes().get(..tensor.dtype().size() as usize)?;
        Some(Self::Int(match tensor.dtype() {
            float @ (DType::F32 | DType::F64 | DType::F16 | DType::Bf16) => {
                return float_element(float, bytes).map(|value| Self::Float(value.to_bits()));
            }
            DType::I8 | DType::U8 | DType::Bool => bytes[0].into(),
            DType::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
            DType::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
            DType::I16 => i16::from_le_bytes(bytes.try_into().ok()?).into(),
            DType::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
            // The bits tell elements apart, which is all that is asked.
            DType::U64 | DType::I64 => i64::from_le_bytes(bytes.try_into().ok()?),
        }))
    }
}
