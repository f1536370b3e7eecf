//! Tensors of which only the first elements along an axis count, as many as data says: which operators keep that so,
//! and on which axis of their results. All others are refused.

use super::super::lower::Ragged;
use super::super::node::At;
use super::select::{Chosen, chosen};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, Shape, Size};

/// Operators of each element, and those that broadcast.
const ELEMENTWISE: &[&str] = &[
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Div",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "Pow",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Where",
    "Xor",
];

/// Gives a node that computes with sizes those that data has in the place of those that are planned. What only passes
/// sizes on, or makes tensors of them, reads what is planned.
pub(super) fn compute_with_counts(at: &mut At<'_>) -> Result<()> {
    if at.op_type() == "Identity" || ELEMENTWISE.binary_search(&at.op_type()).is_err() {
        return Ok(());
    }
    for i in 0..at.input_count() {
        let Some(of) = at.ragged_input(i).filter(|of| of.is_size) else { continue };
        let planned = at.value(i)?;
        let sizes = at.sizes_of(planned);
        let real = match sizes.len() {
            0 => of.count,
            1 => {
                let places = at.iota(super::layout::indices(sizes), 0);
                let is_it = at.compare_scalar(Compare::Eq, places, of.axis as f64)?;
                at.select(is_it, of.count, planned)?
            }
            _ => continue,
        };
        let real = at.bound(real);
        at.read_instead(i, real);
    }
    Ok(())
}

/// Marks the results of a node one of whose inputs is ragged. Error: they would not be the elements that count,
/// followed by others.
pub(super) fn carry(at: &mut At<'_>) -> Result<()> {
    let count = at.input_count();
    let inputs: Vec<Option<Ragged>> = (0..count).map(|i| at.ragged_input(i)).collect();
    let Some(first) = inputs.iter().flatten().next().copied() else { return Ok(()) };
    if first.is_size || inputs.iter().flatten().any(|other| other.is_size) || at.op_type() == "Shape" {
        return carry_size(at, &inputs, first);
    }
    if let Some(picked) = gathered_within(at, &inputs)? {
        at.set_ragged(picked);
        return Ok(());
    }
    // Operators that look at what counts themselves.
    if matches!(at.op_type(), "Compress" | "NonZero" | "Size") {
        return Ok(());
    }
    if joined(at, &inputs)? || is_scattered(at, &inputs)? {
        return Ok(());
    }
    if inputs.iter().flatten().any(|other| other.count != first.count) {
        return Err(at.depends_on_data());
    }
    if let Some(part) = sliced(at, first)? {
        at.set_ragged(part);
        return Ok(());
    }
    let axis = match at.op_type() {
        op if ELEMENTWISE.binary_search(&op).is_ok() => broadcast(at, &inputs)?,
        "Transpose" => transposed(at, first.axis)?,
        "Unsqueeze" | "Squeeze" | "Reshape" | "Flatten" => same_axis(at, first.axis)?,
        "Gather" => gathered(at, &inputs)?,
        "GatherND" => match inputs.as_slice() {
            [None, Some(of)] if of.axis == 0 && at.int_or("batch_dims", 0)? == 0 => Some(0),
            _ => None,
        },
        "Concat" => {
            let rank = at.rank(0)?;
            let along = at.axis(at.int_or("axis", 0)?, rank)?;
            let all = inputs.iter().all(|of| of.is_some_and(|of| of.axis == first.axis));
            (all && along != first.axis).then_some(first.axis)
        }
        "Split" | "Slice" | "Softmax" | "LogSoftmax" => same_size(at, first.axis)?,
        // Sums so far meet only what stands before.
        "CumSum" if !at.flag("reverse", false)? => Some(first.axis),
        "TopK" if inputs[0].is_some() => apart_from(at, first.axis, -1)?,
        "LayerNormalization" | "RMSNormalization" if inputs[0].is_some() => {
            let from = at.axis(at.int_or("axis", -1)?, at.rank(0)?)?;
            (first.axis < from).then_some(first.axis)
        }
        "GatherElements" => match inputs.as_slice() {
            [None, Some(of)] => Some(of.axis),
            [Some(of), Some(places)] if of.axis == places.axis => apart_from(at, of.axis, 0)?,
            _ => None,
        },
        "ArgMax" | "ArgMin" => {
            let gone = at.axis(at.int_or("axis", 0)?, at.rank(0)?)?;
            let before = usize::from(gone < first.axis && !at.flag("keepdims", true)?);
            (gone != first.axis).then(|| first.axis - before)
        }
        // What is reduced counts those that count.
        op if op.starts_with("Reduce") => match reduced(at, first.axis)? {
            None => return Ok(()),
            axis => axis,
        },
        "MatMul" => match (&inputs[0], &inputs[1]) {
            (Some(of), None) if of.axis + 1 < at.rank(0)? => {
                Some(of.axis + at.output_rank(0).unwrap_or(0).saturating_sub(at.rank(0)?))
            }
            _ => None,
        },
        "Gemm" => match (&inputs[0], at.flag("transA", false)?) {
            (Some(of), false) if of.axis == 0 && inputs[1].is_none() => Some(0),
            _ => None,
        },
        _ => None,
    };
    let Some(axis) = axis else { return Err(at.depends_on_data()) };
    at.set_ragged(Ragged::along(axis, first.count));
    Ok(())
}

/// Sizes that are planned: made by `Shape`, and read by what gives a result that many elements, of which then as many
/// count.
fn carry_size(at: &mut At<'_>, inputs: &[Option<Ragged>], first: Ragged) -> Result<()> {
    if at.op_type() == "Shape" {
        let (start, rank) = (at.int_or("start", 0)?, at.rank(0)?);
        let start = if start < 0 { start.saturating_add(rank as i64).max(0) } else { start };
        // Sizes from another axis on are known.
        let start = usize::try_from(start).ok();
        let Some(position) = start.and_then(|start| first.axis.checked_sub(start)) else { return Ok(()) };
        let count = at.output_shape(0).and_then(|shape| shape[0].known()).unwrap_or(0);
        if (position as i64) < count {
            at.set_ragged_output(0, Ragged { axis: position, count: first.count, is_size: true });
        }
        return Ok(());
    }
    if let Some(position) = position_of_size(at, inputs, first)? {
        if let Some(axis) = position {
            at.set_ragged_output(0, Ragged { axis, count: first.count, is_size: true });
        }
        return Ok(());
    }
    if let Some(part) = cut_at_size(at, inputs)? {
        at.set_ragged(part);
        return Ok(());
    }
    if counts_up_to(at, inputs) {
        at.set_ragged_output(0, Ragged::along(0, first.count));
        return Ok(());
    }
    let sizes = match at.op_type() {
        "Expand" | "Reshape" => inputs.get(1).copied().flatten(),
        "ConstantOfShape" => inputs.first().copied().flatten(),
        _ => None,
    };
    let (Some(sizes), Some(rank)) = (sizes.filter(|of| of.is_size), at.output_rank(0)) else {
        return Err(at.depends_on_data());
    };
    // The sizes are aligned from the last axis, the operand's too.
    let length = at.ty(if at.op_type() == "ConstantOfShape" { 0 } else { 1 })?.shape[0].known();
    let Some(lead) = length.and_then(|length| rank.checked_sub(length as usize)) else {
        return Err(at.depends_on_data());
    };
    let axis = sizes.axis + lead;
    if at.op_type() != "ConstantOfShape" {
        let own = inputs[0].filter(|own| !own.is_size);
        let aligned = match (own, at.op_type()) {
            (Some(own), "Expand") => own.axis + rank.saturating_sub(at.rank(0)?) == axis,
            (Some(own), _) => same_axis(at, own.axis)? == Some(axis),
            (None, "Expand") => {
                at.rank(0)? + axis < rank || at.ty(0)?.shape[at.rank(0)? + axis - rank] == Size::Known(1)
            }
            (None, _) => false,
        };
        if !aligned {
            return Err(at.depends_on_data());
        }
    }
    at.set_ragged(Ragged::along(axis, sizes.count));
    Ok(())
}

/// Whether a result is the numbers from 0 up to a size: as many as that.
fn counts_up_to(at: &At<'_>, inputs: &[Option<Ragged>]) -> bool {
    let is =
        |input, number| at.known(input).and_then(|known| known.sizes()) == Some(&[Size::Known(number)][..]);
    at.op_type() == "Range"
        && matches!(inputs, [None, Some(limit), None] if limit.is_size)
        && is(0, 0)
        && is(2, 1)
}

/// The elements of an axis up to a size that data has: as many as that of those that are planned.
fn cut_at_size(at: &mut At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<Ragged>> {
    let ends = match inputs {
        [None, None, Some(ends)] | [None, None, Some(ends), None] | [None, None, Some(ends), None, None] => {
            ends
        }
        _ => return Ok(None),
    };
    if at.op_type() != "Slice" || !ends.is_size {
        return Ok(None);
    }
    let axis = match at.has(3) {
        true => at.integers(3, "axes")?.get(ends.axis).copied(),
        false => Some(ends.axis as i64),
    };
    let Some(axis) = axis else { return Ok(None) };
    let axis = at.axis(axis, at.rank(0)?)?;
    let plan = super::layout::slice_plan(at)?;
    let Some(bounds) = super::layout::slice_bounds(at, axis)? else { return Ok(None) };
    if bounds.start != Size::Known(0) || plan.steps[axis] != 1 {
        return Ok(None);
    }
    // Where the axis is as long as the largest number that data can say, it cuts nothing off.
    if plan.sizes[axis] == bounds.end {
        return Ok(Some(Ragged::along(axis, ends.count)));
    }
    let taken = at.size_value(&plan.sizes[axis], DType::I64)?;
    let count = at.binary(Binary::Min, ends.count, taken)?;
    Ok(Some(Ragged::along(axis, count)))
}

/// Where a size stands in a result that only passes on sizes; no place where it is not among them, and none at all where
/// the operator is another one.
fn position_of_size(at: &At<'_>, inputs: &[Option<Ragged>], first: Ragged) -> Result<Option<Option<usize>>> {
    let is_alone = inputs.iter().flatten().count() == 1;
    Ok(match at.op_type() {
        _ if !is_alone => None,
        "Gather" if inputs[0].is_some() => {
            let length = at.ty(0)?.shape.sizes().iter().filter_map(Size::known).product::<i64>();
            let places = at.integers(1, "places")?;
            let counted = places.iter().map(|&place| if place < 0 { place + length } else { place });
            let found: Vec<usize> = counted
                .enumerate()
                .filter(|(_, place)| usize::try_from(*place).is_ok_and(|place| place == first.axis))
                .map(|(at, _)| at)
                .collect();
            match found.as_slice() {
                [] => Some(None),
                [one] => Some(Some(*one)),
                _ => None,
            }
        }
        "Unsqueeze" | "Squeeze" | "Identity" if inputs[0].is_some() => Some(Some(first.axis)),
        "Concat" => {
            let mut before = 0;
            for (i, of) in inputs.iter().enumerate() {
                if of.is_some() {
                    break;
                }
                let own = at.ty(i)?.shape.sizes().first().and_then(Size::known);
                let Some(own) = own.and_then(|own| usize::try_from(own).ok()) else { return Ok(None) };
                before += own;
            }
            Some(Some(before + first.axis))
        }
        _ => None,
    })
}

/// Whether any input has a size that depends on data.
pub(super) fn reads_any(at: &mut At<'_>) -> bool {
    (0..at.input_count()).any(|i| at.ragged_input(i).is_some())
}

/// Axes are aligned from the last, and operands that are not ragged do not vary along the axis.
fn broadcast(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<usize>> {
    let Some(rank) = at.output_rank(0) else { return Ok(None) };
    let mut found = None;
    for (i, of) in inputs.iter().enumerate() {
        let Some(of) = of else { continue };
        let axis = of.axis + rank.saturating_sub(at.rank(i)?);
        if found.is_some_and(|other| other != axis) {
            return Ok(None);
        }
        found = Some(axis);
    }
    let Some(axis) = found else { return Ok(None) };
    for (i, of) in inputs.iter().enumerate() {
        if of.is_some() || !at.has(i) {
            continue;
        }
        let shape = at.ty(i)?.shape;
        let own = (axis + shape.rank()).checked_sub(rank);
        if own.is_some_and(|own| shape[own] != Size::Known(1)) {
            return Ok(None);
        }
    }
    Ok(found)
}

fn transposed(at: &At<'_>, axis: usize) -> Result<Option<usize>> {
    let rank = at.rank(0)?;
    Ok(match at.ints("perm")? {
        Some(perm) => perm.iter().position(|&from| at.axis(from, rank).is_ok_and(|from| from == axis)),
        None => Some(rank - 1 - axis),
    })
}

/// Where as many elements stand before and behind the axis as did.
fn same_axis(at: &At<'_>, axis: usize) -> Result<Option<usize>> {
    let (from, Some(to)) = (at.ty(0)?.shape, at.output_shape(0)) else { return Ok(None) };
    let before = |shape: &crate::ir::Shape, axis: usize| at.product(&shape.sizes()[..axis]);
    let behind = |shape: &crate::ir::Shape, axis: usize| at.product(&shape.sizes()[axis + 1..]);
    let (outer, inner) = (before(&from, axis)?, behind(&from, axis)?);
    for own in 0..to.rank() {
        if to[own] == from[axis] && before(&to, own)? == outer && behind(&to, own)? == inner {
            return Ok(Some(own));
        }
    }
    Ok(None)
}

/// Where all elements of the axis are kept: the operator works along another one.
fn same_size(at: &At<'_>, axis: usize) -> Result<Option<usize>> {
    let whole = match at.op_type() {
        "Slice" | "Split" => {
            at.output_shape(0).is_some_and(|to| at.ty(0).is_ok_and(|ty| ty.shape[axis] == to[axis]))
        }
        _ => {
            let default = if at.opset < 13 { 1 } else { -1 };
            at.axis(at.int_or("axis", default)?, at.rank(0)?)? != axis && at.opset >= 13
        }
    };
    Ok(whole.then_some(axis))
}

/// The axis, where the operator works along another one.
fn apart_from(at: &At<'_>, axis: usize, default: i64) -> Result<Option<usize>> {
    let along = at.axis(at.int_or("axis", default)?, at.rank(0)?)?;
    Ok((along != axis).then_some(axis))
}

/// Whether as many updates as count go to indices of the same number: the result has all elements of the data.
fn is_scattered(at: &mut At<'_>, inputs: &[Option<Ragged>]) -> Result<bool> {
    let [None, Some(indices), updates] = inputs else { return Ok(false) };
    let components = match at.op_type() {
        "ScatterND" => 1,
        "ScatterElements" => 0,
        _ => return Ok(false),
    };
    let is_of_rows = indices.axis + components < at.rank(1)?;
    let Some(updates) = updates else { return Ok(is_of_rows) };
    // Of updates that were cut there are as many, or the node is wrong.
    let node = at.graph().maker(updates.count);
    let is_cut = matches!(node.op, Op::Binary(Binary::Min)) && node.operands.contains(&indices.count);
    Ok(is_of_rows && updates.axis == indices.axis && (updates.count == indices.count || is_cut))
}

/// Joins tensors along the axis of which only the first elements of each count: these move together. False where it is
/// another operator, or works along another axis.
fn joined(at: &mut At<'_>, inputs: &[Option<Ragged>]) -> Result<bool> {
    if at.op_type() != "Concat" {
        return Ok(false);
    }
    let along = at.axis(at.int_or("axis", 0)?, at.rank(0)?)?;
    if inputs.iter().flatten().any(|of| of.axis != along) {
        return Ok(false);
    }
    let (mut values, mut holds) = (Vec::new(), Vec::new());
    for (i, of) in inputs.iter().enumerate() {
        let value = at.value(i)?;
        let size = at.sizes_of(value)[along].clone();
        holds.push(match of {
            Some(of) => {
                let positions = at.iota(super::layout::indices([size]), 0);
                at.compare(Compare::Lt, positions, of.count)?
            }
            None => {
                let yes = at.scalar(DType::Bool, 1.0)?;
                at.broadcast(yes, Shape::new([size]))?
            }
        });
        values.push(value);
    }
    let (all, holds) = (at.concat(&values, along)?, at.concat(&holds, 0)?);
    let Chosen { positions, count } = chosen(at, holds)?;
    let y = at.gather(all, positions, along)?;
    at.set(0, y);
    at.set_ragged(Ragged::along(along, count));
    Ok(true)
}

/// What a slice along the axis takes: from an element on, up to one, or up to so many before the last that counts. None
/// where it works along other axes, or would move with the count: backwards, or from the end.
fn sliced(at: &mut At<'_>, of: Ragged) -> Result<Option<Ragged>> {
    if at.op_type() != "Slice" || same_size(at, of.axis)?.is_some() {
        return Ok(None);
    }
    let plan = super::layout::slice_plan(at)?;
    let Some(bounds) = super::layout::slice_bounds(at, of.axis)? else { return Ok(None) };
    let (Some(taken), Some(start), Some(end)) =
        (plan.sizes[of.axis].known(), bounds.start.known(), bounds.end.known())
    else {
        return Ok(None);
    };
    if start < 0 || plan.steps[of.axis] != 1 {
        return Ok(None);
    }
    // An end that is counted from the last element is counted from the last that counts.
    let before = start.saturating_sub(end.min(0));
    let count = at.binary_scalar(Binary::Sub, of.count, before as f64)?;
    let count = at.binary_scalar(Binary::Max, count, 0.0)?;
    let count = at.binary_scalar(Binary::Min, count, taken as f64)?;
    Ok(Some(Ragged::along(of.axis, count)))
}

/// Elements of the axis at places of which only the first count: these places are of elements that count.
fn gathered_within(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<Ragged>> {
    let [Some(of), Some(places)] = inputs else { return Ok(None) };
    match at.op_type() {
        "Gather" => {
            let along = at.axis(at.int_or("axis", 0)?, at.rank(0)?)?;
            Ok((along == of.axis).then_some(Ragged::along(along + places.axis, places.count)))
        }
        "GatherND" => {
            let are_rows = of.axis == 0 && places.axis == 0 && at.rank(1)? > 1;
            let whole = are_rows && at.int_or("batch_dims", 0)? == 0;
            Ok(whole.then_some(Ragged::along(0, places.count)))
        }
        _ => Ok(None),
    }
}

fn gathered(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<usize>> {
    let along = at.axis(at.int_or("axis", 0)?, at.rank(0)?)?;
    Ok(match inputs {
        [None, Some(of)] => Some(along + of.axis),
        [Some(of), None] if of.axis < along => Some(of.axis),
        [Some(of), None] if of.axis > along => Some(of.axis + at.rank(1)? - 1),
        _ => None,
    })
}

fn reduced(at: &At<'_>, axis: usize) -> Result<Option<usize>> {
    let plan = super::reduce::plan(at)?;
    let gone = |axis: usize| plan.axes.contains(&(axis as u32));
    if gone(axis) {
        return Ok(None);
    }
    let before = (0..axis).filter(|&before| gone(before) && !plan.keep).count();
    Ok(Some(axis - before))
}
