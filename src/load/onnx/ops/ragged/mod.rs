//! Tensors of which only the first elements along an axis count, as many as data says: which operators keep that so,
//! and on which axis of their results. All others are refused.

mod sizes;

use std::collections::HashSet;

pub(super) use self::sizes::compute_with_counts;
use super::super::lower::Ragged;
use super::super::node::At;
use super::select::{Chosen, chosen};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Graph, Op, Shape, Size, ValueId};

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

/// Operators that do the same for each sample of a batch, which is the first axis of their first operand.
const OF_SAMPLES: &[&str] = &[
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "GridSample",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LpPool",
    "MaxPool",
    "Resize",
    "SpaceToDepth",
    "Upsample",
];

/// Marks the results of a node one of whose inputs is ragged. Error: they would not be the elements that count,
/// followed by others.
pub(super) fn carry(at: &mut At<'_>) -> Result<()> {
    let count = at.input_count();
    let inputs: Vec<Option<Ragged>> = (0..count).map(|i| at.ragged_input(i)).collect();
    let Some(first) = inputs.iter().flatten().next().copied() else { return Ok(()) };
    // Where it said itself how many count.
    let counts_itself = match at.op_type() {
        "TopK" => true,
        // Boxes, and a score of each for each class.
        "NonMaxSuppression" => match inputs.as_slice() {
            [Some(boxes), Some(scores), rest @ ..] => {
                let are_aligned = boxes.axis == 1 && scores.axis == 2 && !boxes.is_size && !scores.is_size;
                let are_alike = are_alike(at.graph(), boxes.count, scores.count);
                are_aligned && are_alike && rest.iter().all(Option::is_none)
            }
            _ => false,
        },
        _ => false,
    };
    if counts_itself && at.is_ragged_output(0) {
        return Ok(());
    }
    if first.is_size || inputs.iter().flatten().any(|other| other.is_size) || at.op_type() == "Shape" {
        return sizes::carry(at, &inputs, first);
    }
    if let Some(picked) = gathered_within(at, &inputs)? {
        return at.set_ragged(picked);
    }
    // Operators that look at what counts themselves.
    if matches!(at.op_type(), "Compress" | "NonZero" | "Size" | "SplitToSequence") {
        return Ok(());
    }
    if joined(at, &inputs)? {
        return Ok(());
    }
    if is_scattered(at, &inputs)? {
        return inputs[0].map_or(Ok(()), |of| at.set_ragged(of));
    }
    if !inputs.iter().flatten().all(|other| are_alike(at.graph(), other.count, first.count)) {
        return Err(at.depends_on_data());
    }
    if let Some(part) = sliced(at, first)? {
        return at.set_ragged(part);
    }
    if takes_known_places(at, &inputs)? {
        return Ok(());
    }
    if let Some(flat) = merged(at, first)? {
        return at.set_ragged(flat);
    }
    if at.op_type().starts_with("Reduce") && reduced(at, first.axis)?.is_none() {
        // What is reduced counts those that count.
        return Ok(());
    }
    let Some(axis) = axis_behind(at, &inputs, first)? else { return Err(at.depends_on_data()) };
    at.set_ragged(Ragged::along(axis, first.count))
}

/// Pairs of values that are compared before two counts are taken for different.
const MOST_COMPARED: usize = 1 << 20;

/// Whether two values are computed from the same ones in the same way, as counts are of tensors that go side by side.
fn are_alike(graph: &Graph, one: ValueId, other: ValueId) -> bool {
    let (mut waiting, mut compared) = (vec![(one, other)], HashSet::new());
    while let Some((one, other)) = waiting.pop() {
        if one == other || !compared.insert((one, other)) {
            continue;
        }
        let (left, right) = (graph.maker(one), graph.maker(other));
        let is_same_result = one.0 - left.first_result.0 == other.0 - right.first_result.0;
        let is_leaf = matches!(left.op, Op::Input | Op::Param(_));
        let is_same = is_same_result && left.op == right.op && left.operands.len() == right.operands.len();
        if !is_same || is_leaf || graph.ty(one) != graph.ty(other) || compared.len() > MOST_COMPARED {
            return false;
        }
        waiting.extend(left.operands.iter().copied().zip(right.operands.iter().copied()));
    }
    true
}

/// The axis of a result of which the elements that count come first, as they do in what is read; none where they do not.
fn axis_behind(at: &mut At<'_>, inputs: &[Option<Ragged>], first: Ragged) -> Result<Option<usize>> {
    Ok(match at.op_type() {
        op if ELEMENTWISE.binary_search(&op).is_ok() => broadcast(at, inputs)?,
        "Transpose" => transposed(at, first.axis)?,
        "Unsqueeze" | "Squeeze" | "Reshape" | "Flatten" => same_axis(at, first.axis)?,
        "Gather" => gathered(at, inputs)?,
        "GatherND" => match inputs {
            [None, Some(of)] if of.axis == 0 && at.int_or("batch_dims", 0)? == 0 => Some(0),
            _ => None,
        },
        op if OF_SAMPLES.binary_search(&op).is_ok() => match inputs {
            [Some(of), others @ ..] if of.axis == 0 && others.iter().all(Option::is_none) => {
                let mixes = op == "BatchNormalization" && at.flag("training_mode", false)?;
                let samples = at.ty(0)?.shape[0].clone();
                at.output_shape(0).filter(|to| !mixes && to[0] == samples).map(|_| 0)
            }
            _ => None,
        },
        "Pad" if inputs[0].is_some() => padded(at, first.axis)?,
        // Regions, and which image each is of.
        "RoiAlign" => match inputs {
            [None, Some(regions), images] if regions.axis == 0 && images.is_none_or(|of| of.axis == 0) => {
                Some(0)
            }
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
        "GatherElements" => match inputs {
            [None, Some(of)] => Some(of.axis),
            [Some(of), Some(places)] if of.axis == places.axis => apart_from(at, of.axis, 0)?,
            _ => None,
        },
        "ArgMax" | "ArgMin" => {
            let gone = at.axis(at.int_or("axis", 0)?, at.rank(0)?)?;
            let before = usize::from(gone < first.axis && !at.flag("keepdims", true)?);
            (gone != first.axis).then(|| first.axis - before)
        }
        op if op.starts_with("Reduce") => reduced(at, first.axis)?,
        "MatMul" => match (inputs[0], &inputs[1]) {
            (Some(of), None) if of.axis + 1 < at.rank(0)? => {
                Some(of.axis + at.output_rank(0).unwrap_or(0).saturating_sub(at.rank(0)?))
            }
            _ => None,
        },
        "Gemm" | "FusedGemm" => match (inputs[0], at.flag("transA", false)?) {
            (Some(of), false) if of.axis == 0 && inputs[1].is_none() => Some(0),
            _ => None,
        },
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

/// Where nothing is put before or behind the axis.
fn padded(at: &At<'_>, axis: usize) -> Result<Option<usize>> {
    let rank = at.rank(0)?;
    let pads = match at.ints("pads")? {
        Some(pads) => pads.to_vec(),
        None => at.integers(1, "pads")?,
    };
    let axes = if at.has(3) { at.integers(3, "axes")? } else { (0..rank as i64).collect() };
    for (place, &own) in axes.iter().enumerate() {
        let ends = [pads.get(place), pads.get(place + axes.len())];
        if at.axis(own, rank)? == axis && ends != [Some(&0); 2] {
            return Ok(None);
        }
    }
    Ok(Some(axis))
}

/// The axis and the next ones as one: of each element that counts, so many as these have.
fn merged(at: &mut At<'_>, of: Ragged) -> Result<Option<Ragged>> {
    if !matches!(at.op_type(), "Reshape" | "Flatten") || same_axis(at, of.axis)?.is_some() {
        return Ok(None);
    }
    let (from, Some(to)) = (at.ty(0)?.shape, at.output_shape(0)) else { return Ok(None) };
    let outer = at.product(&from.sizes()[..of.axis])?;
    for own in 0..to.rank() {
        let (Some(size), Some(whole)) = (from[of.axis].known(), to[own].known()) else { continue };
        let is_aligned = at.product(&to.sizes()[..own])? == outer;
        if is_aligned && size > 0 && whole > size && whole % size == 0 {
            let count = at.binary_scalar(Binary::Mul, of.count, (whole / size) as f64)?;
            return Ok(Some(Ragged::along(own, count)));
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

/// Whether as many updates as count go to indices of the same number: the result has all elements of the data, of which as
/// many count.
fn is_scattered(at: &mut At<'_>, inputs: &[Option<Ragged>]) -> Result<bool> {
    let [_, Some(indices), updates] = inputs else { return Ok(false) };
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
    if let [Some(alone)] = *inputs {
        at.set_ragged(alone)?;
        return Ok(true);
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
    at.set_ragged(Ragged::along(along, count))?;
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

/// Elements of the axis at known places, as loops over it take them: there are such, or the node is wrong.
fn takes_known_places(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<bool> {
    let ("Gather", [Some(of), None]) = (at.op_type(), inputs) else { return Ok(false) };
    let known = at.known(1).and_then(|known| known.sizes());
    let counts_from_first = |size: &Size| size.known().is_some_and(|place| place >= 0);
    let along = at.axis(at.int_or("axis", 0)?, at.rank(0)?)?;
    Ok(along == of.axis && known.is_some_and(|places| places.iter().all(counts_from_first)))
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
