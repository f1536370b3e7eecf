//! Reductions, extreme positions, running sums.

use super::super::lower::Ragged;
use super::super::node::At;
use crate::error::Result;
use crate::ir::{ArgReduce, Binary, DType, Op, ReduceKind, Shape, Size, Type, Unary, ValueId};

/// The axes of a reduction.
pub(super) struct Plan {
    /// Ascending; none where nothing is reduced.
    pub(super) axes: Vec<u32>,
    /// Whether they stay, with size 1.
    pub(super) keep: bool,
}

/// Axes are an attribute before opset 18 (13 for `ReduceSum`), then an input. Without axes all go,
/// or none where `noop_with_empty_axes`.
pub(super) fn plan(at: &At<'_>) -> Result<Plan> {
    let rank = at.rank(0)?;
    let stated = match at.ints("axes")? {
        Some(axes) => axes,
        None if at.has(1) => at.integers(1, "axes")?,
        None => Vec::new(),
    };
    let noop = at.flag("noop_with_empty_axes", false)?;
    let axes = match stated.is_empty() {
        true if noop => Vec::new(),
        true => (0..rank).collect(),
        false => at.axes(&stated, rank)?,
    };
    Ok(Plan { axes: axes.into_iter().map(|axis| axis as u32).collect(), keep: at.flag("keepdims", true)? })
}

fn reduced(at: &mut At<'_>, kind: ReduceKind, plan: &Plan, x: ValueId) -> Result<ValueId> {
    if plan.axes.is_empty() {
        return Ok(x);
    }
    if let Some(of) = at.ragged_input(0).filter(|of| !of.is_size && plan.axes.contains(&(of.axis as u32))) {
        return reduced_ragged(at, kind, plan, (x, of));
    }
    let ty = at.type_of(x);
    let empty = plan.axes.iter().any(|&axis| ty.shape[axis as usize] == Size::Known(0));
    if empty && matches!(kind, ReduceKind::Max | ReduceKind::Min) {
        return extreme_of_nothing(at, kind, plan, &ty);
    }
    at.apply(Op::Reduce { kind, axes: plan.axes.clone(), keep: plan.keep }, &[x])
}

/// Over the elements that count: the others become what changes no other number.
fn reduced_ragged(
    at: &mut At<'_>,
    kind: ReduceKind,
    plan: &Plan,
    (x, of): (ValueId, Ragged),
) -> Result<ValueId> {
    let ty = at.type_of(x);
    let (low, high) = ends(ty.dtype);
    let (kind, neutral) = match kind {
        ReduceKind::Sum | ReduceKind::SumSquares => (kind, 0.0),
        ReduceKind::Mean => (ReduceKind::Sum, 0.0),
        ReduceKind::Prod => (kind, 1.0),
        ReduceKind::Max => (kind, low),
        ReduceKind::Min => (kind, high),
    };
    let mean = kind == ReduceKind::Sum && at.op_type() == "ReduceMean";
    let counts = at.counting(x, of)?;
    let neutral = at.scalar(ty.dtype, neutral)?;
    let kept = at.apply(Op::Select, &[counts, x, neutral])?;
    let reduce = Op::Reduce { kind, axes: plan.axes.clone(), keep: plan.keep };
    let y = at.apply(reduce.clone(), &[kept])?;
    if !mean {
        return Ok(y);
    }
    let ones = at.convert(counts, ty.dtype)?;
    let count = at.apply(reduce, &[ones])?;
    at.binary(Binary::Div, y, count)
}

/// The standard's extreme of no elements: what changes no other number.
fn extreme_of_nothing(at: &mut At<'_>, kind: ReduceKind, plan: &Plan, ty: &Type) -> Result<ValueId> {
    let largest = kind == ReduceKind::Min;
    let (low, high) = ends(ty.dtype);
    let mut sizes = Vec::new();
    for (axis, size) in ty.shape.sizes().iter().enumerate() {
        match (plan.axes.contains(&(axis as u32)), plan.keep) {
            (false, _) => sizes.push(size.clone()),
            (true, true) => sizes.push(Size::Known(1)),
            (true, false) => {}
        }
    }
    let bound = at.scalar(ty.dtype, if largest { high } else { low })?;
    at.broadcast(bound, Shape::new(sizes))
}

/// The least and the greatest number of a type.
pub(super) fn ends(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => (f64::NEG_INFINITY, f64::INFINITY),
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        // Converting saturates, so that these are the bounds exactly.
        DType::I64 => (i64::MIN as f64, i64::MAX as f64),
        DType::U8 => (0.0, 255.0),
        DType::U16 => (0.0, u16::MAX.into()),
        DType::U32 => (0.0, u32::MAX.into()),
        DType::U64 => (0.0, u64::MAX as f64),
        DType::Bool => (0.0, 1.0),
    }
}

/// Bools (opset 20) are reduced as bytes.
pub(super) fn reduce(at: &mut At<'_>, kind: ReduceKind) -> Result<()> {
    let plan = plan(at)?;
    let x = at.value(0)?;
    let dtype = at.type_of(x).dtype;
    let number = at.convert(x, if dtype == DType::Bool { DType::U8 } else { dtype })?;
    let y = reduced(at, kind, &plan, number)?;
    let y = at.convert(y, dtype)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn reduce_l1(at: &mut At<'_>) -> Result<()> {
    let plan = plan(at)?;
    let x = at.value(0)?;
    let parts = at.unary(Unary::Abs, x)?;
    let y = reduced(at, ReduceKind::Sum, &plan, parts)?;
    at.set(0, y);
    Ok(())
}

fn sum_of_squares(at: &mut At<'_>) -> Result<ValueId> {
    let plan = plan(at)?;
    let x = at.value(0)?;
    let parts = at.binary(Binary::Mul, x, x)?;
    reduced(at, ReduceKind::Sum, &plan, parts)
}

pub(super) fn reduce_sum_square(at: &mut At<'_>) -> Result<()> {
    let y = sum_of_squares(at)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn reduce_l2(at: &mut At<'_>) -> Result<()> {
    let sum = sum_of_squares(at)?;
    let y = at.unary(Unary::Sqrt, sum)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn reduce_log_sum(at: &mut At<'_>) -> Result<()> {
    let plan = plan(at)?;
    let x = at.value(0)?;
    let sum = reduced(at, ReduceKind::Sum, &plan, x)?;
    let y = at.unary(Unary::Log, sum)?;
    at.set(0, y);
    Ok(())
}

/// The largest element is taken out of the sum, so that nothing overflows; where that is infinite, so is the result.
pub(super) fn reduce_log_sum_exp(at: &mut At<'_>) -> Result<()> {
    let plan = plan(at)?;
    let x = at.value(0)?;
    let kept = Plan { axes: plan.axes.clone(), keep: true };
    let largest = reduced(at, ReduceKind::Max, &kept, x)?;
    let infinite = at.unary(Unary::IsInf, largest)?;
    let zero = at.scalar(at.type_of(x).dtype, 0.0)?;
    let largest = at.apply(Op::Select, &[infinite, zero, largest])?;
    let below = at.binary(Binary::Sub, x, largest)?;
    let power = at.unary(Unary::Exp, below)?;
    let sum = reduced(at, ReduceKind::Sum, &plan, power)?;
    let log = at.unary(Unary::Log, sum)?;
    let sizes = at.type_of(log).shape.sizes().to_vec();
    let largest = at.reshape(largest, sizes)?;
    let y = at.binary(Binary::Add, log, largest)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn arg_reduce(at: &mut At<'_>, kind: ArgReduce) -> Result<()> {
    let axis = at.axis(at.int_or("axis", 0)?, at.rank(0)?)? as u32;
    let (keep, last) = (at.flag("keepdims", true)?, at.flag("select_last_index", false)?);
    let x = at.value(0)?;
    let y = at.apply(Op::ArgReduce { kind, axis, keep, last }, &[x])?;
    at.set(0, y);
    Ok(())
}

pub(super) fn cum_sum(at: &mut At<'_>) -> Result<()> {
    let axis = at.axis(at.integer(1, "axis")?, at.rank(0)?)? as u32;
    let (exclusive, reverse) = (at.flag("exclusive", false)?, at.flag("reverse", false)?);
    let x = at.value(0)?;
    let y = at.apply(Op::CumSum { axis, exclusive, reverse }, &[x])?;
    at.set(0, y);
    Ok(())
}
