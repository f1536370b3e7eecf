//! A short hand for appending nodes to a graph, all of one source.

use crate::error::{Error, Result};
use crate::ir::half::{f32_to_bf16, f32_to_f16};
use crate::ir::{
    Binary, Compare, DType, Graph, Op, Pad, PadMode, Real, ReduceKind, Shape, Size, Slice, SourceId, Tensor,
    Type, Unary, ValueId,
};

/// What becomes of axes that are reduced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReducedAxes {
    /// They stay, with size 1.
    Kept,
    Dropped,
}

/// An operand of a matrix product.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    pub(crate) value: ValueId,
    pub(crate) transposed: bool,
}

impl Factor {
    pub(crate) const fn transposed(value: ValueId) -> Self {
        Self { value, transposed: true }
    }
}

impl From<ValueId> for Factor {
    fn from(value: ValueId) -> Self {
        Self { value, transposed: false }
    }
}

/// Appends nodes of one source. Every dimension of the graph is bound.
pub(crate) struct Build<'g> {
    pub(crate) graph: &'g mut Graph,
    pub(crate) source: SourceId,
}

impl Build<'_> {
    pub(crate) fn apply(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId> {
        self.graph.apply(op, operands, self.source)
    }

    pub(crate) fn dtype(&self, value: ValueId) -> DType {
        self.graph.ty(value).dtype
    }

    pub(crate) fn rank(&self, value: ValueId) -> usize {
        self.graph.ty(value).shape.rank()
    }

    /// Error: a dimension is not bound.
    pub(crate) fn dims(&self, value: ValueId) -> Result<Vec<i64>> {
        self.graph.ty(value).shape.dims().ok_or_else(|| {
            Error::usage("training", "a dimension has no value").with_help("--batch N or --dim NAME=N")
        })
    }

    pub(crate) fn unary(&mut self, op: Unary, x: ValueId) -> Result<ValueId> {
        self.apply(Op::Unary(op), &[x])
    }

    pub(crate) fn binary(&mut self, op: Binary, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.apply(Op::Binary(op), &[x, y])
    }

    pub(crate) fn add(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Add, x, y)
    }

    pub(crate) fn sub(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Sub, x, y)
    }

    pub(crate) fn mul(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Mul, x, y)
    }

    pub(crate) fn div(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Div, x, y)
    }

    /// `x op number`.
    pub(crate) fn with(&mut self, op: Binary, x: ValueId, number: f64) -> Result<ValueId> {
        let number = self.number(self.dtype(x), number)?;
        self.binary(op, x, number)
    }

    pub(crate) fn scale(&mut self, x: ValueId, factor: f64) -> Result<ValueId> {
        if factor == 1.0 { Ok(x) } else { self.with(Binary::Mul, x, factor) }
    }

    pub(crate) fn compare(&mut self, op: Compare, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.apply(Op::Compare(op), &[x, y])
    }

    pub(crate) fn select(&mut self, condition: ValueId, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.apply(Op::Select, &[condition, x, y])
    }

    /// `x` where the condition holds, else zero.
    pub(crate) fn masked(&mut self, condition: ValueId, x: ValueId) -> Result<ValueId> {
        let zero = self.number(self.dtype(x), 0.0)?;
        self.select(condition, x, zero)
    }

    pub(crate) fn convert(&mut self, x: ValueId, to: DType) -> Result<ValueId> {
        if self.dtype(x) == to { Ok(x) } else { self.apply(Op::Convert { to }, &[x]) }
    }

    /// A scalar constant.
    pub(crate) fn number(&mut self, dtype: DType, value: f64) -> Result<ValueId> {
        let tensor = constant(dtype, &[], &[value])?;
        Ok(self.graph.add_constant(tensor, self.source))
    }

    /// A constant of these sizes.
    pub(crate) fn constant(&mut self, dtype: DType, dims: &[i64], values: &[f64]) -> Result<ValueId> {
        let tensor = constant(dtype, dims, values)?;
        Ok(self.graph.add_constant(tensor, self.source))
    }

    /// A tensor of one number.
    pub(crate) fn full(&mut self, dtype: DType, dims: &[i64], value: f64) -> Result<ValueId> {
        let number = self.number(dtype, value)?;
        self.broadcast(number, dims)
    }

    pub(crate) fn broadcast(&mut self, x: ValueId, dims: &[i64]) -> Result<ValueId> {
        if self.dims(x)? == dims {
            return Ok(x);
        }
        self.apply(Op::Broadcast { shape: Shape::known(dims) }, &[x])
    }

    pub(crate) fn reshape(&mut self, x: ValueId, dims: &[i64]) -> Result<ValueId> {
        if self.dims(x)? == dims {
            return Ok(x);
        }
        self.apply(Op::Reshape { shape: Shape::known(dims) }, &[x])
    }

    pub(crate) fn transpose(&mut self, x: ValueId, perm: &[usize]) -> Result<ValueId> {
        if perm.iter().enumerate().all(|(at, &axis)| at == axis) {
            return Ok(x);
        }
        self.apply(Op::Transpose { perm: perm.iter().map(|&axis| axis as u32).collect() }, &[x])
    }

    pub(crate) fn reduce(
        &mut self,
        kind: ReduceKind,
        x: ValueId,
        axes: &[u32],
        reduced: ReducedAxes,
    ) -> Result<ValueId> {
        if axes.is_empty() {
            return Ok(x);
        }
        let keep = reduced == ReducedAxes::Kept;
        self.apply(Op::Reduce { kind, axes: axes.to_vec(), keep }, &[x])
    }

    pub(crate) fn sum(&mut self, x: ValueId, axes: &[u32], reduced: ReducedAxes) -> Result<ValueId> {
        self.reduce(ReduceKind::Sum, x, axes, reduced)
    }

    #[cfg(feature = "run")]
    pub(crate) fn mean(&mut self, x: ValueId, axes: &[u32], reduced: ReducedAxes) -> Result<ValueId> {
        self.reduce(ReduceKind::Mean, x, axes, reduced)
    }

    /// Sums a gradient over what broadcasting repeated, so that it has these sizes.
    pub(crate) fn sum_to(&mut self, x: ValueId, dims: &[i64]) -> Result<ValueId> {
        let own = self.dims(x)?;
        if own == dims {
            return Ok(x);
        }
        let extra = own.len() - dims.len();
        let axes: Vec<u32> = (0..own.len())
            .filter(|&axis| axis < extra || (dims[axis - extra] == 1 && own[axis] != 1))
            .map(|axis| axis as u32)
            .collect();
        let summed = self.sum(x, &axes, ReducedAxes::Kept)?;
        self.reshape(summed, dims)
    }

    /// Padding with zeros, or cropping where an amount is negative.
    pub(crate) fn pad(&mut self, x: ValueId, before: &[i64], after: &[i64], value: f64) -> Result<ValueId> {
        if before.iter().chain(after).all(|&amount| amount == 0) {
            return Ok(x);
        }
        let pad = Pad {
            before: before.to_vec(),
            after: after.to_vec(),
            mode: PadMode::Constant,
            value: Real(value),
        };
        self.apply(Op::Pad(Box::new(pad)), &[x])
    }

    /// A strided part.
    pub(crate) fn slice(
        &mut self,
        x: ValueId,
        starts: &[i64],
        sizes: &[i64],
        steps: &[i64],
    ) -> Result<ValueId> {
        if self.dims(x)? == sizes && steps.iter().all(|&step| step == 1) {
            return Ok(x);
        }
        let known = |list: &[i64]| list.iter().map(|&size| Size::Known(size)).collect();
        let slice = Slice { starts: known(starts), sizes: known(sizes), steps: steps.to_vec() };
        self.apply(Op::Slice(Box::new(slice)), &[x])
    }

    /// Elements `start..start + size` along one axis.
    pub(crate) fn part(&mut self, x: ValueId, axis: usize, start: i64, size: i64) -> Result<ValueId> {
        let mut sizes = self.dims(x)?;
        let mut starts = vec![0; sizes.len()];
        (starts[axis], sizes[axis]) = (start, size);
        let steps = vec![1; sizes.len()];
        self.slice(x, &starts, &sizes, &steps)
    }

    pub(crate) fn concat(&mut self, parts: &[ValueId], axis: usize) -> Result<ValueId> {
        match parts {
            [one] => Ok(*one),
            _ => self.apply(Op::Concat { axis: axis as u32 }, parts),
        }
    }

    pub(crate) fn matmul(&mut self, left: impl Into<Factor>, right: impl Into<Factor>) -> Result<ValueId> {
        let (left, right) = (left.into(), right.into());
        let op = Op::MatMul {
            transpose_left: left.transposed,
            transpose_right: right.transposed,
            wide: false,
            rounds: false,
        };
        self.apply(op, &[left.value, right.value])
    }

    /// Positions along an axis of a tensor of these sizes.
    pub(crate) fn iota(&mut self, dtype: DType, dims: &[i64], axis: usize) -> ValueId {
        self.graph.add_iota(Type::new(dtype, Shape::known(dims)), axis as u32, self.source)
    }

    /// `y[..., o, ...] = sum over i of matrix[o, i] * x[..., i, ...]` backwards: from a gradient of
    /// `y` along `axis` that of `x`. The matrix is `[o, i]`.
    pub(crate) fn along_transposed(
        &mut self,
        gradient: ValueId,
        axis: usize,
        matrix: ValueId,
    ) -> Result<ValueId> {
        let rank = self.rank(gradient);
        let mut perm: Vec<usize> = (0..rank).filter(|&other| other != axis).collect();
        perm.push(axis);
        let last = self.transpose(gradient, &perm)?;
        let dims = self.dims(last)?;
        let rows = dims[..rank - 1].iter().product();
        let flat = self.reshape(last, &[rows, dims[rank - 1]])?;
        let product = self.matmul(flat, matrix)?;
        let inner = self.dims(matrix)?[1];
        let whole: Vec<i64> = dims[..rank - 1].iter().copied().chain([inner]).collect();
        let shaped = self.reshape(product, &whole)?;
        self.transpose(shaped, &inverse(&perm))
    }
}

/// The permutation that undoes another.
pub(crate) fn inverse(perm: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(at, &axis)| inverse[axis] = at);
    inverse
}

/// A tensor of numbers, rounded to the element type.
pub(crate) fn constant(dtype: DType, dims: &[i64], values: &[f64]) -> Result<Tensor> {
    let mut bytes: Vec<u8> = Vec::with_capacity(values.len() * dtype.size() as usize);
    for &value in values {
        match dtype {
            DType::F32 => bytes.extend((value as f32).to_le_bytes()),
            DType::F64 => bytes.extend(value.to_le_bytes()),
            DType::F16 => bytes.extend(f32_to_f16(value as f32).to_le_bytes()),
            DType::Bf16 => bytes.extend(f32_to_bf16(value as f32).to_le_bytes()),
            DType::I8 => bytes.extend((value as i8).to_le_bytes()),
            DType::I16 => bytes.extend((value as i16).to_le_bytes()),
            DType::I32 => bytes.extend((value as i32).to_le_bytes()),
            DType::I64 => bytes.extend((value as i64).to_le_bytes()),
            DType::U8 => bytes.push(value as u8),
            DType::U16 => bytes.extend((value as u16).to_le_bytes()),
            DType::U32 => bytes.extend((value as u32).to_le_bytes()),
            DType::U64 => bytes.extend((value as u64).to_le_bytes()),
            DType::Bool => bytes.push(u8::from(value != 0.0)),
        }
    }
    Tensor::new(dtype, dims.iter().map(|&dim| dim.unsigned_abs()).collect(), bytes)
}
