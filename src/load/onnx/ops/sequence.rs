//! Sources of known sizes: shapes, and ranges of numbers.

use super::super::known::{self, Items, Known, LIMIT};
use super::super::limits;
use super::super::lower::Ragged;
use super::super::node::At;
use crate::error::Result;
use crate::ir::{Binary, DType, Op, Shape, Size, Type};

/// The input's sizes, or from opset 15 a part of them.
pub(super) fn shape(at: &mut At<'_>) -> Result<()> {
    let shape = at.ty(0)?.shape;
    let rank = shape.rank() as i64;
    let bound = |bound: i64| if bound < 0 { (bound.saturating_add(rank)).max(0) } else { bound.min(rank) };
    let start = bound(at.int_or("start", 0)?);
    let end = bound(at.int_or("end", rank)?).max(start);
    let sizes = shape.sizes()[start as usize..end as usize].to_vec();
    at.set_known(0, Known::vector(sizes));
    Ok(())
}

/// The input's number of elements.
pub(super) fn size(at: &mut At<'_>) -> Result<()> {
    let shape = at.ty(0)?.shape;
    if let Some(of) = at.counted_input(0) {
        let mut row = shape.sizes().to_vec();
        row.remove(of.axis);
        let row = at.product(&row)?;
        let row = at.size_value(&row, DType::I64)?;
        let count = at.mul(of.count, row)?;
        at.set(0, count);
        return Ok(());
    }
    let count = shape.elements().ok_or_else(|| at.undecided("size", shape.sizes()))?;
    at.set_known(0, Known::scalar(count));
    Ok(())
}

/// Numbers from a start up to a limit.
pub(super) fn range(at: &mut At<'_>) -> Result<()> {
    let dtype = at.ty(0)?.dtype;
    for i in 0..3 {
        if at.rank(i)? != 0 && at.known(i).is_none_or(|known| known.len() != 1) {
            return Err(at.wrong(format!("input {i} is not one number")));
        }
    }
    at.ignore(&["stash_type"]);
    if !dtype.is_float() && at.known(1).is_none() {
        return range_of_data(at, dtype);
    }
    let count = if dtype.is_float() { real_count(at)? } else { integer_count(at)? };
    if let Some(known) = small(at, dtype, &count) {
        at.set_known(0, known);
        return Ok(());
    }
    let mut value = at.iota(Type::new(dtype, Shape::new([count])), 0);
    let delta = at.reals(2, "step")?[0];
    if delta != 1.0 {
        value = at.binary_scalar(Binary::Mul, value, delta)?;
    }
    let zero = Items::Sizes(vec![Size::Known(0)]);
    if at.known(0).is_none_or(|start| start.items != zero) {
        let start = at.value(0)?;
        let start = at.reshape(start, [])?;
        value = at.binary(Binary::Add, value, start)?;
    }
    at.set(0, value);
    Ok(())
}

/// Integers up to a limit that data says: planned for the most that there can be, with their number beside.
fn range_of_data(at: &mut At<'_>, dtype: DType) -> Result<()> {
    let (start, step) = (at.sizes(0, "start")?[0].clone(), at.integer(2, "step")?);
    let limit = at.value(1)?;
    let most = if step > 0 { limits::most(at.graph(), limit) } else { None };
    let planned = most.as_ref().and_then(|most| known::div_ceil(&most.sub(&start)?, step));
    let planned = planned.and_then(|planned| known::larger(&planned, &Size::Known(0)));
    let (Some(most), Some(planned)) = (most, planned) else {
        if limits::is_of_sizes(at.graph(), limit) {
            return Err(at.undecided("limit", &[]));
        }
        let way_out = "whose limit depends on data and is not bounded (by Min with a constant, say)";
        return Err(at.unsupported(way_out));
    };
    // As many as there can be are there, where the limit is no less than its bound.
    let least = limits::least(at.graph(), limit);
    let is_fixed = least.is_some_and(|least| known::at_least(&least, &most) == Some(true));
    let limit = at.reshape(limit, [])?;
    let limit = at.convert(limit, DType::I64)?;
    let first = at.size_value(&start, DType::I64)?;
    // Rounded up: the numbers below the limit, one of each step.
    let span = at.binary(Binary::Sub, limit, first)?;
    let span = at.binary_scalar(Binary::Add, span, (step - 1) as f64)?;
    let span = at.binary_scalar(Binary::Max, span, 0.0)?;
    let count = at.binary_scalar(Binary::Div, span, step as f64)?;
    let value = at.iota(Type::new(dtype, Shape::new([planned])), 0);
    let value = at.binary_scalar(Binary::Mul, value, step as f64)?;
    let first = at.convert(first, dtype)?;
    let value = at.binary(Binary::Add, value, first)?;
    at.set(0, value);
    if !is_fixed {
        at.set_ragged_output(0, Ragged::along(0, count));
    }
    Ok(())
}

/// Numbers of a short range of integers.
fn small(at: &At<'_>, dtype: DType, count: &Size) -> Option<Known> {
    let count = count.known().filter(|&count| u64::try_from(count).is_ok_and(|count| count <= LIMIT))?;
    let (start, delta) = (at.known(0)?.sizes()?.first()?, at.known(2)?.sizes()?.first()?);
    let sizes: Option<Vec<Size>> = (0..count).map(|i| start.add(&delta.scale(i)?)).collect();
    let sizes = sizes?;
    Some(Known { dtype, dims: vec![sizes.len() as u64], items: Items::Sizes(sizes) })
}

fn integer_count(at: &At<'_>) -> Result<Size> {
    let (start, limit) = (at.sizes(0, "start")?, at.sizes(1, "limit")?);
    whole_count(at, &start[0], &limit[0], at.integer(2, "step")?)
}

fn whole_count(at: &At<'_>, start: &Size, limit: &Size, step: i64) -> Result<Size> {
    let span = if step > 0 { limit.sub(start) } else { start.sub(limit) };
    let positive = step.checked_abs().filter(|&step| step > 0);
    let Some(step) = positive else { return Err(at.wrong(format!("step {step} is not possible"))) };
    let count = span.and_then(|span| known::div_ceil(&span, step));
    let count = count.and_then(|count| known::larger(&count, &Size::Known(0)));
    count.ok_or_else(|| at.undecided("size", &[start.clone(), limit.clone()]))
}

/// A float that is a whole number, or a size, which may be open.
fn whole(at: &mut At<'_>, i: usize) -> Result<Option<Size>> {
    const EXACT: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;
    let Some(known) = at.known(i) else {
        // What is computed, as a cast of a size is, has bounds that are the same where it can be no other.
        let value = at.value(i)?;
        let node = at.graph().maker(value);
        let value = if matches!(node.op, Op::Convert { .. }) { node.operands[0] } else { value };
        let (most, least) = (limits::most(at.graph(), value), limits::least(at.graph(), value));
        return Ok(if most == least { most } else { None });
    };
    Ok(match &known.items {
        Items::Sizes(sizes) => sizes.first().cloned(),
        Items::Reals(reals) => {
            let real = reals.first().filter(|real| real.fract() == 0.0 && real.abs() <= EXACT);
            real.map(|&real| Size::Known(real as i64))
        }
    })
}

fn real_count(at: &mut At<'_>) -> Result<Size> {
    let step = whole(at, 2)?.and_then(|step| step.known()).filter(|&step| step != 0);
    if let (Some(start), Some(limit), Some(step)) = (whole(at, 0)?, whole(at, 1)?, step) {
        return whole_count(at, &start, &limit, step);
    }
    let (start, limit) = (at.reals(0, "start")?[0], at.reals(1, "limit")?[0]);
    let step = at.reals(2, "step")?[0];
    let count = ((limit - start) / step).ceil().max(0.0);
    match count.is_finite() && count < 1e15 {
        true => Ok(Size::Known(count as i64)),
        false => Err(at.wrong("its number of elements is not finite")),
    }
}
