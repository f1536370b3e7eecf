//! Shorthands for the operations that lowerings are made of.

use super::known::Known;
use super::lower::Ragged;
use super::node::At;
use super::tensor;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, Size, Slice, Tensor, Type, Unary, ValueId};

impl At<'_> {
    pub(super) fn add(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Add, x, y)
    }

    pub(super) fn sub(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Sub, x, y)
    }

    pub(super) fn mul(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Mul, x, y)
    }

    pub(super) fn div(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Div, x, y)
    }

    pub(super) fn compare(&mut self, compare: Compare, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.apply(Op::Compare(compare), &[x, y])
    }

    /// A comparison with a number on the right.
    pub(super) fn compare_scalar(&mut self, compare: Compare, x: ValueId, number: f64) -> Result<ValueId> {
        let number = self.scalar(self.graph().ty(x).dtype, number)?;
        self.compare(compare, x, number)
    }

    pub(super) fn not(&mut self, x: ValueId) -> Result<ValueId> {
        self.unary(Unary::Not, x)
    }

    pub(super) fn and(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::And, x, y)
    }

    pub(super) fn select(&mut self, condition: ValueId, yes: ValueId, no: ValueId) -> Result<ValueId> {
        self.apply(Op::Select, &[condition, yes, no])
    }

    /// `yes` where the condition holds, else a number.
    pub(super) fn select_or(&mut self, condition: ValueId, yes: ValueId, number: f64) -> Result<ValueId> {
        let no = self.scalar(self.graph().ty(yes).dtype, number)?;
        self.select(condition, yes, no)
    }

    pub(super) fn reduce(
        &mut self,
        kind: ReduceKind,
        x: ValueId,
        axes: impl IntoIterator<Item = usize>,
        keep: bool,
    ) -> Result<ValueId> {
        let axes: Vec<u32> = axes.into_iter().map(|axis| axis as u32).collect();
        if axes.is_empty() {
            return Ok(x);
        }
        self.apply(Op::Reduce { kind, axes, keep }, &[x])
    }

    pub(super) fn sum(
        &mut self,
        x: ValueId,
        axes: impl IntoIterator<Item = usize>,
        keep: bool,
    ) -> Result<ValueId> {
        self.reduce(ReduceKind::Sum, x, axes, keep)
    }

    pub(super) fn matmul(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.apply(
            Op::MatMul { transpose_left: false, transpose_right: false, wide: false, rounds: false },
            &[x, y],
        )
    }

    /// `x y^T`
    pub(super) fn matmul_transposed(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.apply(
            Op::MatMul { transpose_left: false, transpose_right: true, wide: false, rounds: false },
            &[x, y],
        )
    }

    pub(super) fn concat(&mut self, values: &[ValueId], axis: usize) -> Result<ValueId> {
        match values {
            [one] => Ok(*one),
            values => self.apply(Op::Concat { axis: axis as u32 }, values),
        }
    }

    pub(super) fn gather(&mut self, data: ValueId, indices: ValueId, axis: usize) -> Result<ValueId> {
        self.apply(Op::Gather { axis: axis as u32 }, &[data, indices])
    }

    /// Elements `start..start + size` of an axis.
    pub(super) fn part(&mut self, x: ValueId, axis: usize, start: Size, size: Size) -> Result<ValueId> {
        self.strided(x, axis, start, size, 1)
    }

    /// `size` elements of an axis from `start` on, `step` apart.
    pub(super) fn strided(
        &mut self,
        x: ValueId,
        axis: usize,
        start: Size,
        size: Size,
        step: i64,
    ) -> Result<ValueId> {
        let shape = self.type_of(x).shape;
        let rank = shape.rank();
        self.expect_axes(x, axis + 1)?;
        if step == 1 && start == Size::Known(0) && size == shape[axis] {
            return Ok(x);
        }
        let mut slice =
            Slice { starts: vec![Size::Known(0); rank], sizes: shape.sizes().to_vec(), steps: vec![1; rank] };
        slice.starts[axis] = start;
        slice.sizes[axis] = size;
        slice.steps[axis] = step;
        self.apply(Op::Slice(Box::new(slice)), &[x])
    }

    /// An axis from its last element to its first.
    pub(super) fn reversed(&mut self, x: ValueId, axis: usize) -> Result<ValueId> {
        self.expect_axes(x, axis + 1)?;
        let size = self.type_of(x).shape[axis].clone();
        let Some(last) = size.sub(&Size::Known(1)) else { return Err(self.wrong("its size overflows")) };
        match last == Size::Known(-1) {
            true => Ok(x),
            false => self.strided(x, axis, last, size, -1),
        }
    }

    /// Element `index` of an axis, which goes.
    pub(super) fn element(&mut self, x: ValueId, axis: usize, index: i64) -> Result<ValueId> {
        let one = self.part(x, axis, Size::Known(index), Size::Known(1))?;
        self.without_axis(one, axis)
    }

    /// Which elements of a tensor of this value's sizes count.
    pub(super) fn counting(&mut self, value: ValueId, of: Ragged) -> Result<ValueId> {
        let ty = Type::new(DType::I64, self.type_of(value).shape);
        let places = self.iota(ty, of.axis);
        self.compare(Compare::Lt, places, of.count)
    }

    /// Without an axis of size 1.
    pub(super) fn without_axis(&mut self, x: ValueId, axis: usize) -> Result<ValueId> {
        self.expect_axes(x, axis + 1)?;
        let mut sizes = self.sizes_of(x);
        sizes.remove(axis);
        self.reshape(x, sizes)
    }

    /// With an axis of size 1 more.
    pub(super) fn with_axis(&mut self, x: ValueId, axis: usize) -> Result<ValueId> {
        self.expect_axes(x, axis)?;
        let mut sizes = self.sizes_of(x);
        sizes.insert(axis, Size::Known(1));
        self.reshape(x, sizes)
    }

    /// The axes in another order, in which axis `from` stands at `to`.
    pub(super) fn moved_axis(&mut self, x: ValueId, from: usize, to: usize) -> Result<ValueId> {
        self.expect_axes(x, from.max(to) + 1)?;
        let mut perm: Vec<u32> = (0..self.sizes_of(x).len() as u32).collect();
        let axis = perm.remove(from);
        perm.insert(to, axis);
        self.transpose(x, perm)
    }

    /// Error: `x` has fewer axes than an operator of this kind takes.
    fn expect_axes(&self, x: ValueId, least: usize) -> Result<()> {
        let rank = self.graph().ty(x).shape.rank();
        if rank < least {
            return Err(self.wrong(format!("an input has {rank} axes where {least} are needed")));
        }
        Ok(())
    }

    pub(super) fn sizes_of(&self, x: ValueId) -> Vec<Size> {
        self.graph().ty(x).shape.sizes().to_vec()
    }

    /// The sizes of a value as numbers.
    pub(super) fn numbers(&self, x: ValueId) -> Result<Vec<i64>> {
        let sizes = self.sizes_of(x);
        sizes.iter().map(Size::known).collect::<Option<_>>().ok_or_else(|| self.undecided("size", &sizes))
    }

    /// The product of sizes.
    pub(super) fn product(&self, sizes: &[Size]) -> Result<Size> {
        let product = sizes.iter().try_fold(Size::Known(1), |product, size| product.mul(size));
        product.ok_or_else(|| self.undecided("size", sizes))
    }

    /// Integers as a constant.
    pub(super) fn integer_constant(&mut self, dims: &[i64], items: &[i64]) -> Result<ValueId> {
        let dims = dims.iter().map(|&dim| dim as u64).collect();
        Ok(self.constant(Tensor::from_i64(dims, items)?))
    }

    /// Real numbers as a constant.
    pub(super) fn real_constant(&mut self, dtype: DType, dims: &[i64], items: &[f64]) -> Result<ValueId> {
        let dims = dims.iter().map(|&dim| dim as u64).collect();
        let bytes = items.iter().flat_map(|&item| tensor::encode(dtype, item)).collect::<Vec<u8>>();
        let tensor = Tensor::new(dtype, dims, bytes)?;
        Ok(self.constant(tensor))
    }

    /// A size as a scalar of a type.
    pub(super) fn size_value(&mut self, size: &Size, dtype: DType) -> Result<ValueId> {
        let value = self.make(&Known::scalar(size.clone()))?;
        self.convert(value, dtype)
    }

    /// `log(1 + x)`, exact near zero (Kahan: the error of `1 + x` cancels in the quotient).
    pub(super) fn log1p(&mut self, x: ValueId) -> Result<ValueId> {
        let sum = self.binary_scalar(Binary::Add, x, 1.0)?;
        let log = self.unary(Unary::Log, sum)?;
        let rest = self.binary_scalar(Binary::Sub, sum, 1.0)?;
        let quotient = self.div(x, rest)?;
        let exact = self.mul(log, quotient)?;
        let none = self.compare_scalar(Compare::Eq, rest, 0.0)?;
        let infinite = self.unary(Unary::IsInf, sum)?;
        let usual = self.select(infinite, log, exact)?;
        self.select(none, x, usual)
    }
}
