//! Tensors of which only the first elements along an axis count, as many as data says: which operators keep that so,
//! and on which axis of their results. All others are refused.

mod along;
mod places;
mod sizes;

use std::collections::HashSet;

use super::super::lower::Ragged;
use super::super::node::At;
use super::einsum;
use super::select::{Chosen, chosen};
use super::signal;
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
    "Dropout",
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
    "PRelu",
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
    "StopGradient",
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

/// Gives a node that is about to be lowered what counts of its inputs: real sizes, places from the real end, and nothing to
/// meet behind it.
pub(super) fn prepare(at: &mut At<'_>) -> Result<()> {
    sizes::compute_with_counts(at)?;
    sizes::expand_as_counted(at)?;
    places::count_from_last(at)?;
    along::hide_the_rest(at)
}

/// Marks the results of a node one of whose inputs is ragged. Error: they would not be the elements that count,
/// followed by others.
pub(super) fn carry(at: &mut At<'_>) -> Result<()> {
    let count = at.input_count();
    let inputs: Vec<Option<Ragged>> = (0..count).map(|i| at.ragged_input(i)).collect();
    let Some(first) = inputs.iter().flatten().next().copied() else { return Ok(()) };
    if counts_itself(at, &inputs) {
        return Ok(());
    }
    if first.is_size || inputs.iter().flatten().any(|other| other.is_size) || at.op_type() == "Shape" {
        return sizes::carry(at, &inputs, first);
    }
    if let Some(picked) = places::gathered_within(at, &inputs)? {
        return at.set_ragged(picked);
    }
    if joined(at, &inputs)? {
        return Ok(());
    }
    if places::is_scattered(at, &inputs)? {
        return inputs[0].map_or(Ok(()), |of| at.set_ragged(of));
    }
    if !inputs.iter().flatten().all(|other| are_alike(at.graph(), other.count, first.count)) {
        return Err(at.depends_on_data());
    }
    if leaves_none(at, &inputs, first)? {
        return Ok(());
    }
    match counted_behind(at, &inputs, first)? {
        Some(result) => at.set_ragged(result),
        None => Err(at.depends_on_data()),
    }
}

/// Whether an operator looks at what counts itself, and said how much of its results does.
fn counts_itself(at: &At<'_>, inputs: &[Option<Ragged>]) -> bool {
    match at.op_type() {
        "TopK" => at.is_ragged_output(0),
        "Compress" | "NonZero" | "Size" | "SplitToSequence" | "Unique" => {
            inputs.iter().flatten().all(|of| !of.is_size)
        }
        // Boxes, a score of each for each class, and how many to take.
        "NonMaxSuppression" => match inputs {
            [boxes, scores, rest @ ..] => {
                let are_alike = match (boxes, scores) {
                    (None, None) => true,
                    (Some(boxes), Some(scores)) => {
                        let are_aligned = boxes.axis == 1 && scores.axis == 2;
                        are_aligned && are_alike(at.graph(), boxes.count, scores.count)
                    }
                    _ => false,
                };
                are_alike && rest.iter().enumerate().all(|(i, of)| of.is_none_or(|of| i == 0 && of.is_size))
            }
            _ => false,
        },
        _ => false,
    }
}

/// Whether all elements of the results count: none of their axes is one of which only the first ones do.
fn leaves_none(at: &mut At<'_>, inputs: &[Option<Ragged>], first: Ragged) -> Result<bool> {
    if places::takes_places(at, inputs)? {
        return Ok(true);
    }
    Ok(match at.op_type() {
        // What is reduced counts those that count.
        op if op.starts_with("Reduce") => reduced(at, first.axis)?.is_none(),
        "Einsum" => einsum::shared_axis(at, &axes(inputs))? == Some(None),
        "Attention" => along::attended(at, inputs)? == Some(None),
        "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss" => along::is_one_loss(at, inputs)?,
        _ => along::is_gone(at, inputs)?,
    })
}

fn axes(inputs: &[Option<Ragged>]) -> Vec<Option<usize>> {
    inputs.iter().map(|of| of.map(|of| of.axis)).collect()
}

/// How many elements of a result count, and along which axis; none where they do not come first.
fn counted_behind(at: &mut At<'_>, inputs: &[Option<Ragged>], first: Ragged) -> Result<Option<Ragged>> {
    if let Some(part) = places::sliced(at, first)? {
        return Ok(Some(part));
    }
    if let Some(flat) = merged(at, first)? {
        return Ok(Some(flat));
    }
    match at.op_type() {
        "Tile" if inputs[0].is_some() => along::tiled(at, first),
        "Pad" if inputs[0].is_some() => along::padded(at, first),
        _ => Ok(axis_behind(at, inputs, first)?.map(|axis| Ragged::along(axis, first.count))),
    }
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
        if let (Some(one), Some(other)) = (graph.as_constant(one), graph.as_constant(other)) {
            if one != other {
                return false;
            }
            continue;
        }
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
        "Expand" => expanded(at, first.axis)?,
        "Gather" | "GatherElements" | "GatherND" => places::gathered(at, inputs)?,
        op if OF_SAMPLES.binary_search(&op).is_ok() => of_samples(at, inputs)?,
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
        // Sums so far meet only what stands before, or zeros.
        "CumSum" if inputs[0].is_some() => Some(first.axis),
        "CumProd" if inputs[0].is_some() && !at.flag("reverse", false)? => Some(first.axis),
        "TopK" if inputs[0].is_some() => apart_from(at, first.axis, -1)?,
        "LayerNormalization" | "RMSNormalization" if inputs[0].is_some() => {
            let from = at.axis(at.int_or("axis", -1)?, at.rank(0)?)?;
            (first.axis < from).then_some(first.axis)
        }
        "ArgMax" | "ArgMin" => {
            let gone = at.axis(at.int_or("axis", 0)?, at.rank(0)?)?;
            let before = usize::from(gone < first.axis && !at.flag("keepdims", true)?);
            (gone != first.axis).then(|| first.axis - before)
        }
        op if op.starts_with("Reduce") => reduced(at, first.axis)?,
        "MatMul" | "Gemm" | "FusedGemm" => along::multiplied(at, inputs)?,
        "Einsum" => einsum::shared_axis(at, &axes(inputs))?.flatten(),
        "Attention" => along::attended(at, inputs)?.flatten(),
        "DFT" if inputs[0].is_some() => {
            let along = signal::axis_of_dft(at)?;
            (along != first.axis).then_some(first.axis)
        }
        "OneHot" if inputs[0].is_some() => {
            let own = at.axis(at.int_or("axis", -1)?, at.rank(0)? + 1)?;
            Some(first.axis + usize::from(own <= first.axis))
        }
        _ => None,
    })
}

/// Operators that compute samples apart.
fn of_samples(at: &mut At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<usize>> {
    let [Some(of), others @ ..] = inputs else { return Ok(None) };
    let mixes = at.op_type() == "BatchNormalization" && at.flag("training_mode", false)?;
    if mixes || of.axis != 0 || others.iter().any(Option::is_some) {
        return Ok(None);
    }
    let samples = at.ty(0)?.shape[0].clone();
    Ok(at.output_shape(0).filter(|to| to[0] == samples).map(|_| 0))
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

/// Where all elements of the axis are kept in their order, or weighed by one another.
fn same_size(at: &At<'_>, axis: usize) -> Result<Option<usize>> {
    let whole = match at.op_type() {
        "Slice" | "Split" => {
            let is_backwards = at.op_type() == "Slice"
                && super::layout::slice_bounds(at, axis)?.is_some_and(|bounds| bounds.step < 0);
            let is_as_long =
                at.output_shape(0).is_some_and(|to| at.ty(0).is_ok_and(|ty| ty.shape[axis] == to[axis]));
            is_as_long && !is_backwards
        }
        _ => at.opset >= 13,
    };
    Ok(whole.then_some(axis))
}

/// Where the axis is not made longer.
fn expanded(at: &At<'_>, axis: usize) -> Result<Option<usize>> {
    let rank = at.rank(0)?;
    let sizes = at.sizes(1, "sizes")?;
    let stated = (axis + sizes.len()).checked_sub(rank).and_then(|place| sizes.get(place));
    let is_kept = stated.is_none_or(|size| *size == Size::Known(1));
    Ok(is_kept.then_some(axis + sizes.len().saturating_sub(rank)))
}

/// The axis, where the operator works along another one.
fn apart_from(at: &At<'_>, axis: usize, default: i64) -> Result<Option<usize>> {
    let along = at.axis(at.int_or("axis", default)?, at.rank(0)?)?;
    Ok((along != axis).then_some(axis))
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

fn reduced(at: &At<'_>, axis: usize) -> Result<Option<usize>> {
    let plan = super::reduce::plan(at)?;
    let gone = |axis: usize| plan.axes.contains(&(axis as u32));
    if gone(axis) {
        return Ok(None);
    }
    let before = (0..axis).filter(|&before| gone(before) && !plan.keep).count();
    Ok(Some(axis - before))
}
