//! Elements by their places along the axis of which only the first count: those that a slice or a list of places names, and
//! those that are written over.

use super::super::super::lower::Ragged;
use super::super::super::node::At;
use super::super::layout::{self, FAR};
use super::same_size;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Graph, Op, ReduceKind, ScatterKind, Size, Slice, Type, ValueId};

/// Places below 0 count from the last element that counts, not from the last that is planned.
pub(in super::super) fn count_from_last(at: &mut At<'_>) -> Result<()> {
    let Some(of) = at.counted_input(0) else { return Ok(()) };
    if !names_places(at, of)? || !may_be_below_zero(at) {
        return Ok(());
    }
    let (places, own) = (at.value(1)?, at.ragged_input(1));
    if is_counted_from_first(at.graph(), places, MOST_MAKERS) {
        return Ok(());
    }
    let is_below = at.compare_scalar(Compare::Lt, places, 0.0)?;
    let dtype = at.type_of(places).dtype;
    let is_by_rows = matches!(at.op_type(), "GatherND" | "ScatterND");
    let mut moves = is_below;
    if is_by_rows {
        let ty = Type::new(DType::I64, at.type_of(places).shape);
        let last = ty.shape.rank().saturating_sub(1);
        let component = at.iota(ty, last);
        let is_own = at.compare_scalar(Compare::Eq, component, of.axis as f64)?;
        moves = at.and(is_below, is_own)?;
    }
    let count = at.convert(of.count, dtype)?;
    let counted = at.add(places, count)?;
    let places = at.select(moves, counted, places)?;
    let places = at.bound_ragged(places, own);
    at.read_instead(1, places);
    Ok(())
}

/// Whether input 1 names places along the axis.
fn names_places(at: &At<'_>, of: Ragged) -> Result<bool> {
    Ok(match at.op_type() {
        "Gather" | "GatherElements" | "ScatterElements" => {
            at.axis(at.int_or("axis", 0)?, at.rank(0)?)? == of.axis
        }
        "GatherND" | "ScatterND" => of.axis < components(at)? && at.int_or("batch_dims", 0)? == 0,
        _ => false,
    })
}

/// How many axes a row of places names.
fn components(at: &At<'_>) -> Result<usize> {
    let last = at.ty(1)?.shape.sizes().last().and_then(Size::known);
    Ok(last.and_then(|last| usize::try_from(last).ok()).unwrap_or(0))
}

/// Whether a place may count from the last element.
fn may_be_below_zero(at: &At<'_>) -> bool {
    let known = at.known(1).and_then(|known| known.sizes());
    known.is_none_or(|places| places.iter().any(|place| place.known().is_none_or(|place| place < 0)))
}

/// How many operations in a row are looked through for where places come from.
const MOST_MAKERS: usize = 12;

/// Whether integers are positions, or moved, joined or added up of such: 0 and more.
fn is_counted_from_first(graph: &Graph, value: ValueId, most: usize) -> bool {
    let node = graph.maker(value);
    let are = |operands: &[ValueId]| {
        most > 0 && operands.iter().all(|&operand| is_counted_from_first(graph, operand, most - 1))
    };
    match &node.op {
        Op::Iota { .. } | Op::ArgReduce { .. } => true,
        Op::TopK(_) => value != node.first_result || are(&node.operands),
        Op::Constant(_) => graph
            .as_constant(value)
            .and_then(|known| known.to_i64())
            .is_some_and(|all| all.iter().all(|&number| number >= 0)),
        Op::Convert { .. } => graph.ty(node.operands[0]).dtype == DType::Bool || are(&node.operands),
        Op::Select => are(&node.operands[1..]),
        Op::Gather { .. } | Op::GatherElements { .. } => are(&node.operands[..1]),
        Op::ScatterElements { kind, .. } => {
            let [data, _, updates] = node.operands[..] else { return false };
            *kind != ScatterKind::Mul && are(&[data, updates])
        }
        Op::Binary(Binary::Add | Binary::Mul | Binary::Div | Binary::Rem | Binary::Min)
        | Op::Concat { .. }
        | Op::CumSum { .. }
        | Op::Reshape { .. }
        | Op::Broadcast { .. }
        | Op::Transpose { .. }
        | Op::Slice(_)
        | Op::Reduce { kind: ReduceKind::Sum | ReduceKind::Max | ReduceKind::Min, .. } => are(&node.operands),
        Op::Binary(Binary::Max) => node.operands.iter().any(|&operand| are(&[operand])),
        Op::Sizes(_) => true,
        _ => false,
    }
}

/// What a slice along the axis takes; none where its bounds are no numbers, or it works along other axes.
pub(super) fn sliced(at: &mut At<'_>, of: Ragged) -> Result<Option<Ragged>> {
    if at.op_type() != "Slice" || same_size(at, of.axis)?.is_some() {
        return Ok(None);
    }
    let plan = layout::slice_plan(at)?;
    let Some(bounds) = layout::slice_bounds(at, of.axis)? else { return Ok(None) };
    let (Some(taken), Some(start), Some(end)) =
        (plan.sizes[of.axis].known(), bounds.start.known(), bounds.end.known())
    else {
        return Ok(None);
    };
    if start < 0 || bounds.step != 1 {
        return moving(at, of, plan, (start, end, bounds.step));
    }
    // An end that is counted from the last element is counted from the last that counts.
    let before = start.saturating_sub(end.min(0));
    let count = at.binary_scalar(Binary::Sub, of.count, before as f64)?;
    let count = at.binary_scalar(Binary::Max, count, 0.0)?;
    let count = at.binary_scalar(Binary::Min, count, taken as f64)?;
    Ok(Some(Ragged::along(of.axis, count)))
}

/// A slice that begins where the number of elements says, or takes every so many of them: its elements are looked up.
fn moving(
    at: &mut At<'_>,
    of: Ragged,
    mut plan: Slice,
    (start, end, step): (i64, i64, i64),
) -> Result<Option<Ragged>> {
    let Some(size) = at.ty(0)?.shape[of.axis].known() else { return Ok(None) };
    let taken = |size: i64| layout::range(&Size::Known(size), &Size::Known(start), &Size::Known(end), step);
    let taken = (0..=size).filter_map(|size| taken(size)?.1.known());
    let most = taken.max().unwrap_or(0);
    let (first, count) = real_range(at, of.count, (start, end, step))?;
    plan.starts[of.axis] = Size::Known(0);
    plan.sizes[of.axis] = Size::Known(size);
    plan.steps[of.axis] = 1;
    let x = at.value(0)?;
    let x = at.apply(Op::Slice(Box::new(plan)), &[x])?;
    let places = at.iota(layout::indices([Size::Known(most)]), 0);
    let places = at.binary_scalar(Binary::Mul, places, step as f64)?;
    let places = at.add(places, first)?;
    let places = at.binary_scalar(Binary::Max, places, 0.0)?;
    let places = at.binary_scalar(Binary::Min, places, (size - 1).max(0) as f64)?;
    let y = at.gather(x, places, of.axis)?;
    at.set(0, y);
    Ok(Some(Ragged::along(of.axis, count)))
}

/// The first element and the number of elements of a range of an axis that has so many.
fn real_range(
    at: &mut At<'_>,
    size: ValueId,
    (start, end, step): (i64, i64, i64),
) -> Result<(ValueId, ValueId)> {
    let last = at.binary_scalar(Binary::Sub, size, 1.0)?;
    let (low, high) = if step > 0 { (0.0, size) } else { (-1.0, last) };
    let first = bound(at, start, size)?;
    let first = at.binary_scalar(Binary::Max, first, 0.0)?;
    let first = at.binary(Binary::Min, first, high)?;
    let behind = match step < 0 && !(-FAR + 1..FAR).contains(&end) {
        true => at.scalar(DType::I64, -1.0)?,
        false => bound(at, end, size)?,
    };
    let behind = at.binary_scalar(Binary::Max, behind, low)?;
    let behind = at.binary(Binary::Min, behind, high)?;
    let span = if step > 0 { at.sub(behind, first)? } else { at.sub(first, behind)? };
    let span = at.binary_scalar(Binary::Max, span, 0.0)?;
    let width = step.unsigned_abs() as f64;
    let span = at.binary_scalar(Binary::Add, span, width - 1.0)?;
    Ok((first, at.binary_scalar(Binary::Div, span, width)?))
}

/// A bound of a range: below 0 it counts from the end.
fn bound(at: &mut At<'_>, bound: i64, size: ValueId) -> Result<ValueId> {
    match bound {
        FAR.. => Ok(size),
        0.. => at.scalar(DType::I64, bound as f64),
        _ => at.binary_scalar(Binary::Add, size, bound.max(-FAR) as f64),
    }
}

/// Elements of the axis at places of which only the first count: these places are of elements that count.
pub(super) fn gathered_within(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<Ragged>> {
    let [Some(of), Some(places)] = inputs else { return Ok(None) };
    if of.is_size || places.is_size || !names_places(at, *of)? {
        return Ok(None);
    }
    Ok(match at.op_type() {
        "Gather" => Some(Ragged::along(of.axis + places.axis, places.count)),
        "GatherElements" => Some(*places),
        "GatherND" if places.axis + 1 < at.rank(1)? => Some(*places),
        _ => None,
    })
}

/// Whether elements of the axis are taken at places that are known, or that data says: there are such, or the node is wrong.
pub(super) fn takes_places(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<bool> {
    let [Some(of), None] = inputs else { return Ok(false) };
    Ok(matches!(at.op_type(), "Gather" | "GatherElements" | "GatherND") && names_places(at, *of)?)
}

/// The axis of what is looked up, where it is that of the places or another one than is looked up.
pub(super) fn gathered(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<usize>> {
    if at.op_type() == "GatherND" {
        let (count, rank) = (components(at)?, at.rank(1)?);
        return Ok(match inputs {
            _ if at.int_or("batch_dims", 0)? != 0 => None,
            [None, Some(places)] if places.axis + 1 < rank => Some(places.axis),
            [Some(of), None] if of.axis >= count => (of.axis + rank).checked_sub(1 + count),
            _ => None,
        });
    }
    let along = at.axis(at.int_or("axis", 0)?, at.rank(0)?)?;
    if at.op_type() == "GatherElements" {
        return Ok(match inputs {
            [None, Some(places)] => Some(places.axis),
            [Some(of), Some(places)] if of.axis == places.axis && of.axis != along => Some(of.axis),
            _ => None,
        });
    }
    Ok(match inputs {
        [None, Some(places)] => Some(along + places.axis),
        [Some(of), None] if of.axis < along => Some(of.axis),
        [Some(of), None] if of.axis > along => Some(of.axis + at.rank(1)? - 1),
        _ => None,
    })
}

/// Whether as many updates as count go to indices of the same number: the result has all elements of the data, of which as
/// many count.
pub(super) fn is_scattered(at: &mut At<'_>, inputs: &[Option<Ragged>]) -> Result<bool> {
    let components = match at.op_type() {
        "ScatterND" => 1,
        "ScatterElements" => 0,
        _ => return Ok(false),
    };
    let [_, Some(indices), updates] = inputs else {
        return Ok(matches!(inputs, [Some(_), None, None]));
    };
    let is_of_rows = indices.axis + components < at.rank(1)?;
    // Of updates there are as many, or the node is wrong.
    Ok(is_of_rows && updates.is_none_or(|updates| updates.axis == indices.axis))
}
