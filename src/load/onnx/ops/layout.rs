//! Operators that move elements: reshapes, slices, concatenation, padding.

use super::super::known::{self, Items, Known};
use super::super::narrow::{Narrow, STRING};
use super::super::node::At;
use super::super::tensor;
use crate::error::Result;
use crate::ir::{DType, Op, Pad, PadMode, Real, Shape, Size, Slice, Tensor, Type, ValueId};

const ONE: Size = Size::Known(1);

/// The tensor that a node holds in one of its attributes.
pub(super) fn constant(at: &mut At<'_>) -> Result<()> {
    let mut narrow = None;
    let texts = match at.texts("value_strings")? {
        Some(texts) => Some(super::super::tensor::of_texts(&texts)),
        None => at.tensor("value")?.filter(|proto| proto.data_type == STRING).cloned(),
    };
    let data = if let Some(proto) = texts {
        let (numbers, table) = at.lowering().texts.numbered(proto)?;
        narrow = Some(Narrow::Text(table));
        let header = tensor::header(&numbers)?;
        tensor::inline(numbers, &header)?
    } else if let Some(proto) = at.tensor("value")? {
        narrow = Narrow::from_number(proto.data_type);
        let mut proto = proto.clone();
        tensor::embed(&mut proto, &at.lowering().file.folder)?;
        let header = tensor::header(&proto)?;
        tensor::inline(proto, &header)?
    } else if let Some(sparse) = at.sparse("sparse_value")? {
        let proto = super::super::sparse::dense(sparse.clone())?;
        let header = tensor::header(&proto)?;
        tensor::inline(proto, &header)?
    } else if let Some(value) = at.float("value_float")? {
        tensor::scalar(DType::F32, value)?
    } else if let Some(value) = at.int("value_int")? {
        Tensor::from_i64(Vec::new(), &[value])?
    } else if let Some(values) = at.floats("value_floats")? {
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        Tensor::from_f32(vec![values.len() as u64], &values)?
    } else if let Some(values) = at.ints("value_ints")? {
        Tensor::from_i64(vec![values.len() as u64], &values)?
    } else {
        return Err(at.unsupported("with this kind of value"));
    };
    let floats = matches!(narrow, Some(Narrow::Float(_)));
    match Known::of_tensor(&data).filter(|_| !floats) {
        Some(known) => at.set_known(0, known),
        None => {
            let value = at.constant(data);
            at.set(0, value);
        }
    }
    if let Some(narrow) = narrow {
        at.set_narrow(narrow);
    }
    Ok(())
}

pub(super) fn constant_of_shape(at: &mut At<'_>) -> Result<()> {
    let fill = match at.tensor("value")? {
        None => tensor::scalar(DType::F32, 0.0)?,
        Some(proto) => {
            let header = tensor::header(proto)?;
            if header.elements != 1 || tensor::is_external(proto) {
                return Err(at.wrong("attribute value has not one element"));
            }
            let data = tensor::inline(proto.clone(), &header)?;
            Tensor::new(data.dtype(), Vec::new(), data.bytes())?
        }
    };
    let sizes = at.sizes(0, "sizes")?;
    not_negative(at, &sizes)?;
    let dims: Option<Vec<u64>> = sizes.iter().map(|size| u64::try_from(size.known()?).ok()).collect();
    let known = dims.and_then(|dims| Known::of_tensor(&fill)?.broadcast(&dims));
    if let Some(known) = known.filter(|known| matches!(known.items, Items::Sizes(_))) {
        at.set_known(0, known);
        return Ok(());
    }
    let scalar = at.constant(fill);
    let value = at.broadcast(scalar, Shape::new(sizes))?;
    at.set(0, value);
    Ok(())
}

fn not_negative(at: &At<'_>, sizes: &[Size]) -> Result<()> {
    match sizes.iter().find(|size| size.known().is_some_and(|size| size < 0)) {
        None => Ok(()),
        Some(size) => Err(at.wrong(format!("size {} is negative", at.show(size)))),
    }
}

pub(super) fn reshape(at: &mut At<'_>) -> Result<()> {
    let sizes = reshape_sizes(at)?;
    set_reshaped(at, sizes)
}

/// Output 0 is input 0 with these sizes.
fn set_reshaped(at: &mut At<'_>, sizes: Vec<Size>) -> Result<()> {
    let x = at.value(0)?;
    let y = at.reshape(x, sizes)?;
    at.set(0, y);
    Ok(())
}

/// The sizes that a reshape gives: 0 copies the input's, -1 is what is left over.
pub(super) fn reshape_sizes(at: &At<'_>) -> Result<Vec<Size>> {
    let from = at.ty(0)?.shape;
    let allow_zero = at.flag("allowzero", false)?;
    let mut sizes = at.sizes(1, "sizes")?;
    let mut free = None;
    for (axis, size) in sizes.iter_mut().enumerate() {
        match size.known() {
            Some(0) if !allow_zero => match from.sizes().get(axis) {
                Some(copied) => *size = copied.clone(),
                None => return Err(at.wrong(format!("size 0 at axis {axis} has nothing to copy"))),
            },
            Some(-1) if free.is_none() => free = Some(axis),
            Some(-1) => return Err(at.wrong("more than one size is -1")),
            Some(negative) if negative < 0 => return Err(at.wrong(format!("size {negative} is negative"))),
            _ => {}
        }
    }
    if let Some(axis) = free {
        let others = [&sizes[..axis], &sizes[axis + 1..]].concat();
        sizes[axis] = match known::remaining(from.sizes(), &others) {
            Some(size) => size,
            None if from.dims().is_none() => return Err(at.undecided("size -1", from.sizes())),
            None => return Err(at.wrong("its elements do not divide into the sizes")),
        };
    }
    Ok(sizes)
}

pub(super) fn flatten(at: &mut At<'_>) -> Result<()> {
    let sizes = flatten_sizes(at)?;
    set_reshaped(at, sizes)
}

/// The rows before an axis, and the columns from it on.
pub(super) fn flatten_sizes(at: &At<'_>) -> Result<Vec<Size>> {
    let shape = at.ty(0)?.shape;
    let rank = shape.rank();
    // The axis may also stand after the last.
    let axis = match at.int_or("axis", 1)? {
        axis if usize::try_from(axis) == Ok(rank) => rank,
        axis => at.axis(axis, rank)?,
    };
    let product = |sizes: &[Size]| sizes.iter().try_fold(ONE, |product, size| product.mul(size));
    let sizes = shape.sizes();
    match (product(&sizes[..axis]), product(&sizes[axis..])) {
        (Some(rows), Some(columns)) => Ok(vec![rows, columns]),
        _ => Err(at.undecided("sizes", sizes)),
    }
}

pub(super) fn squeeze(at: &mut At<'_>) -> Result<()> {
    let sizes = squeeze_sizes(at)?;
    set_reshaped(at, sizes)
}

/// Axes are an attribute before opset 13, then an input.
fn axes_of(at: &At<'_>) -> Result<Option<Vec<i64>>> {
    match at.opset < 13 {
        true => at.ints("axes"),
        false if at.has(1) => at.integers(1, "axes").map(Some),
        false => Ok(None),
    }
}

pub(super) fn squeeze_sizes(at: &At<'_>) -> Result<Vec<Size>> {
    let shape = at.ty(0)?.shape;
    let sizes = shape.sizes();
    let gone = match axes_of(at)? {
        Some(axes) => at.axes(&axes, sizes.len())?,
        // Which axes go depends on every size.
        None => match sizes.iter().find(|size| size.known().is_none()) {
            Some(open) => return Err(at.undecided("size", std::slice::from_ref(open))),
            None => (0..sizes.len()).filter(|&axis| sizes[axis] == ONE).collect(),
        },
    };
    if let Some(&axis) = gone.iter().find(|&&axis| sizes[axis] != ONE) {
        return match sizes[axis].known() {
            None => Err(at.undecided("size", &sizes[axis..=axis])),
            Some(size) => Err(at.wrong(format!("axis {axis} has size {size}, not 1"))),
        };
    }
    Ok((0..sizes.len()).filter(|axis| !gone.contains(axis)).map(|axis| sizes[axis].clone()).collect())
}

pub(super) fn unsqueeze(at: &mut At<'_>) -> Result<()> {
    let sizes = unsqueeze_sizes(at)?;
    set_reshaped(at, sizes)
}

pub(super) fn unsqueeze_sizes(at: &At<'_>) -> Result<Vec<Size>> {
    let shape = at.ty(0)?.shape;
    let axes = axes_of(at)?.ok_or_else(|| at.wrong("axes are missing"))?;
    let rank = shape.rank() + axes.len();
    let added = at.axes(&axes, rank)?;
    let mut rest = shape.sizes().iter().cloned();
    Ok((0..rank).map(|axis| if added.contains(&axis) { ONE } else { rest.next().unwrap_or(ONE) }).collect())
}

pub(super) fn transpose(at: &mut At<'_>) -> Result<()> {
    let perm = permutation(at)?;
    let x = at.value(0)?;
    let y = at.transpose(x, perm.into_iter().map(|axis| axis as u32).collect())?;
    at.set(0, y);
    Ok(())
}

/// Which axis of the input each axis of the result is: the attribute, or all in reverse.
pub(super) fn permutation(at: &At<'_>) -> Result<Vec<usize>> {
    let rank = at.rank(0)?;
    let Some(perm) = at.ints("perm")? else { return Ok((0..rank).rev().collect()) };
    at.axes(&perm, rank)?;
    perm.iter().map(|&axis| at.axis(axis, rank)).collect()
}

pub(super) fn expand(at: &mut At<'_>) -> Result<()> {
    let sizes = expand_sizes(at)?;
    let x = at.value(0)?;
    let y = at.broadcast(x, Shape::new(sizes))?;
    at.set(0, y);
    Ok(())
}

/// The shape that the input and the stated sizes both broadcast to.
pub(super) fn expand_sizes(at: &At<'_>) -> Result<Vec<Size>> {
    let from = at.ty(0)?.shape;
    let to = at.sizes(1, "sizes")?;
    not_negative(at, &to)?;
    let rank = from.rank().max(to.len());
    let size = |sizes: &[Size], axis: usize| match (axis + sizes.len()).checked_sub(rank) {
        Some(own) => sizes[own].clone(),
        None => ONE,
    };
    (0..rank)
        .map(|axis| match (size(from.sizes(), axis), size(&to, axis)) {
            (one, other) | (other, one) if one == ONE || one == other => Ok(other),
            (one, other) if one.known().is_some() && other.known().is_some() => {
                Err(at.wrong(format!("size {} does not expand to {}", at.show(&one), at.show(&other))))
            }
            (one, other) => Err(at.undecided("size", &[one, other])),
        })
        .collect()
}

pub(super) fn concat(at: &mut At<'_>) -> Result<()> {
    let Some(axis) = at.int("axis")? else { return Err(at.wrong("attribute axis is missing")) };
    let axis = at.axis(axis, at.rank(0)?)? as u32;
    let values = at.values()?;
    let y = match values.as_slice() {
        [one] => *one,
        values => at.apply(Op::Concat { axis }, values)?,
    };
    at.set(0, y);
    Ok(())
}

pub(super) fn slice(at: &mut At<'_>) -> Result<()> {
    let plan = slice_plan(at)?;
    let x = at.value(0)?;
    let whole = plan.sizes == at.type_of(x).shape.sizes() && plan.steps.iter().all(|&step| step == 1);
    let y = if whole { x } else { at.apply(Op::Slice(Box::new(plan)), &[x])? };
    at.set(0, y);
    Ok(())
}

/// The range of one axis as a slice states it.
#[derive(Clone)]
pub(super) struct Bounds {
    pub(super) start: Size,
    pub(super) end: Size,
    pub(super) step: i64,
}

/// The range that a slice states of an axis; none where it states none.
pub(super) fn slice_bounds(at: &At<'_>, axis: usize) -> Result<Option<Bounds>> {
    let stated = stated_bounds(at)?;
    Ok(stated.into_iter().rev().find(|(of, _)| *of == axis).map(|(_, bounds)| bounds))
}

/// The ranges that a slice states, by their axes. Bounds are attributes before opset 10.
fn stated_bounds(at: &At<'_>) -> Result<Vec<(usize, Bounds)>> {
    let rank = at.ty(0)?.shape.rank();
    let (starts, ends, axes, steps) = match at.opset < 10 {
        true => {
            let known = |numbers: Option<Vec<i64>>| -> Vec<Size> {
                numbers.unwrap_or_default().into_iter().map(Size::Known).collect()
            };
            (known(at.ints("starts")?), known(at.ints("ends")?), at.ints("axes")?, None)
        }
        false => {
            let axes = if at.has(3) { Some(at.integers(3, "axes")?) } else { None };
            let steps = if at.has(4) { Some(at.integers(4, "steps")?) } else { None };
            (at.sizes(1, "starts")?, at.sizes(2, "ends")?, axes, steps)
        }
    };
    let axes = match axes {
        Some(axes) => {
            at.axes(&axes, rank)?;
            axes.iter().map(|&axis| at.axis(axis, rank)).collect::<Result<Vec<_>>>()?
        }
        None => (0..starts.len()).collect(),
    };
    let steps = steps.unwrap_or_else(|| vec![1; axes.len()]);
    let count = axes.len();
    if [starts.len(), ends.len(), steps.len()] != [count; 3] || count > rank {
        return Err(at.wrong("starts, ends, axes and steps differ in number"));
    }
    let bounds = starts.into_iter().zip(ends).zip(steps);
    let bounds = bounds.map(|((start, end), step)| Bounds { start, end, step });
    Ok(axes.into_iter().zip(bounds).collect())
}

/// What a slice takes, clamped to the input.
pub(super) fn slice_plan(at: &At<'_>) -> Result<Slice> {
    let shape = at.ty(0)?.shape;
    let rank = shape.rank();
    let mut plan =
        Slice { starts: vec![Size::Known(0); rank], sizes: shape.sizes().to_vec(), steps: vec![1; rank] };
    for (axis, Bounds { start, end, step }) in stated_bounds(at)? {
        let size = &shape[axis];
        if step == 0 || step == i64::MIN {
            return Err(at.wrong(format!("step {step} is not possible")));
        }
        let taken = range(size, &start, &end, step);
        let (start, taken) = taken.ok_or_else(|| at.undecided("range", &[size.clone(), start, end]))?;
        plan.starts[axis] = start;
        plan.sizes[axis] = taken;
        plan.steps[axis] = step;
    }
    Ok(plan)
}

/// First element and number of elements of a range of an axis. Of a backward one, a start before the axis
/// is taken as its first element, as onnxruntime does and the standard's text says, where NumPy and the
/// standard's reference take nothing: `[1, 2, 3][-9:-99:-1]` is `[1]`. An end that is one of the largest
/// integers is behind the first element, then, as it is behind the last of a forward one. A bound that may or may not lie
/// within the axis, depending on a dimension, is taken to be within: binding the dimension checks
/// it again, and a dimension bound before loading is clamped exactly. None: not affine.
pub(super) fn range(size: &Size, start: &Size, end: &Size, step: i64) -> Option<(Size, Size)> {
    let (zero, minus_one) = (Size::Known(0), Size::Known(-1));
    let last = size.add(&minus_one)?;
    let (start, end, span) = if step > 0 {
        let start = clamp(position(start, size)?, &zero, size);
        let end = clamp(position(end, size)?, &zero, size);
        let span = end.sub(&start)?;
        (start, end, span)
    } else {
        let start = clamp(position(start, size)?, &zero, &last);
        let end = match end.known() {
            Some(end) if end >= FAR => minus_one,
            _ => clamp(position(end, size)?, &minus_one, &last),
        };
        let span = start.sub(&end)?;
        (start, end, span)
    };
    if start == end || *size == zero {
        return Some((zero.clone(), zero));
    }
    let count = known::div_ceil(&span, step.checked_abs()?)?;
    let none = known::at_least(&zero, &count) == Some(true);
    Some(if none { (zero.clone(), zero) } else { (start, count) })
}

/// What exporters write for "to the end"; its negative, or less, for "from before the start".
pub(super) const FAR: i64 = i32::MAX as i64 - 1;

/// A bound counted from the start: negative ones count from the end.
fn position(bound: &Size, size: &Size) -> Option<Size> {
    match bound.known() {
        Some(bound) if bound >= FAR => Some(size.clone()),
        Some(bound) if bound <= -FAR => Some(Size::Known(-1)),
        _ if known::at_least(bound, &Size::Known(0)) == Some(false) => bound.add(size),
        _ => Some(bound.clone()),
    }
}

fn clamp(position: Size, low: &Size, high: &Size) -> Size {
    let raised = known::larger(&position, low).unwrap_or(position);
    known::smaller(&raised, high).unwrap_or(raised)
}

/// Sizes are an attribute before opset 13, then an input; equal parts where there are none.
pub(super) fn split(at: &mut At<'_>) -> Result<()> {
    let shape = at.ty(0)?.shape;
    let axis = at.axis(at.int_or("axis", 0)?, shape.rank())?;
    let stated = match at.opset < 13 {
        true => at.ints("split")?.map(|sizes| sizes.into_iter().map(Size::Known).collect::<Vec<_>>()),
        false if at.has(1) => Some(at.sizes(1, "sizes")?),
        false => None,
    };
    let parts = match at.int("num_outputs")? {
        Some(parts) => parts,
        None => at.output_count() as i64,
    };
    let sizes = match stated {
        Some(sizes) => sizes,
        None => equal_parts(at, &shape[axis], parts)?,
    };
    let total = sizes.iter().try_fold(Size::Known(0), |total, size| total.add(size));
    if sizes.len() != at.output_count() || total.as_ref() != Some(&shape[axis]) {
        return Err(at.wrong(format!("its parts do not add up to {}", at.show(&shape[axis]))));
    }
    // Parts of a shape are known where it is.
    let known = at.known(0).cloned();
    let mut start = Size::Known(0);
    for (i, size) in sizes.into_iter().enumerate() {
        let mut plan = Slice {
            starts: vec![Size::Known(0); shape.rank()],
            sizes: shape.sizes().to_vec(),
            steps: vec![1; shape.rank()],
        };
        plan.starts[axis] = start.clone();
        start = start.add(&size).ok_or_else(|| at.wrong("its parts overflow"))?;
        plan.sizes[axis] = size;
        let known = known.as_ref().and_then(|known| known.slice(&plan));
        let of_weights = at.is_of_weights(0);
        if let Some(part) = known.clone().filter(|_| !of_weights) {
            at.set_known(i, part);
        } else if at.wants(i) {
            let x = at.value(0)?;
            let part = at.apply(Op::Slice(Box::new(plan)), &[x])?;
            at.set(i, part);
            if let Some(part) = known {
                at.know(i, part);
            }
        }
    }
    Ok(())
}

/// Parts of one size; only the last may be smaller.
fn equal_parts(at: &At<'_>, size: &Size, parts: i64) -> Result<Vec<Size>> {
    if parts < 1 || parts != at.output_count() as i64 {
        return Err(at.wrong(format!("it has {} outputs for {parts} parts", at.output_count())));
    }
    let part =
        known::div_ceil(size, parts).ok_or_else(|| at.undecided("size", std::slice::from_ref(size)))?;
    let last = part.scale(parts - 1).and_then(|before| size.sub(&before));
    let last = last.ok_or_else(|| at.wrong("its parts overflow"))?;
    not_negative(at, std::slice::from_ref(&last))?;
    let mut sizes = vec![part; parts as usize - 1];
    sizes.push(last);
    Ok(sizes)
}

/// Amounts and the constant are attributes before opset 11, then inputs.
pub(super) fn pad(at: &mut At<'_>) -> Result<()> {
    let mode = match at.text("mode", "constant")?.as_str() {
        "constant" => Some(PadMode::Constant),
        "reflect" => Some(PadMode::Reflect),
        "edge" => Some(PadMode::Edge),
        "wrap" => None,
        other => return Err(at.unsupported(format!("with mode {other:?}"))),
    };
    let rank = at.rank(0)?;
    let (amounts, value) = match at.opset < 11 {
        true => (at.ints("pads")?.unwrap_or_default(), at.float_or("value", 0.0)?),
        false => {
            let value = if at.has(2) { at.reals(2, "value")? } else { Vec::new() };
            (at.integers(1, "pads")?, value.first().copied().unwrap_or(0.0))
        }
    };
    let axes = match at.has(3) {
        true => {
            let axes = at.integers(3, "axes")?;
            at.axes(&axes, rank)?;
            axes.iter().map(|&axis| at.axis(axis, rank)).collect::<Result<Vec<_>>>()?
        }
        false => (0..rank).collect(),
    };
    if amounts.len() != 2 * axes.len() {
        return Err(at.wrong(format!("expected {} pads, found {}", 2 * axes.len(), amounts.len())));
    }
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    for (i, &axis) in axes.iter().enumerate() {
        before[axis] = amounts[i];
        after[axis] = amounts[i + axes.len()];
    }
    let x = at.value(0)?;
    let y = match (before.iter().chain(&after).all(|&amount| amount == 0), mode) {
        (true, _) => x,
        (false, Some(mode)) => {
            at.apply(Op::Pad(Box::new(Pad { before, after, mode, value: Real(value) })), &[x])?
        }
        (false, None) => wrapped(at, x, &before, &after)?,
    };
    at.set(0, y);
    Ok(())
}

/// The most elements of an axis that are listed one by one.
const MOST_LISTED: i64 = 1 << 24;

/// Padding that goes on from the other end of its axis.
fn wrapped(at: &mut At<'_>, mut x: ValueId, before: &[i64], after: &[i64]) -> Result<ValueId> {
    for axis in 0..before.len() {
        if before[axis] == 0 && after[axis] == 0 {
            continue;
        }
        let size = &at.sizes_of(x)[axis];
        let size = size.known().ok_or_else(|| at.undecided("size", std::slice::from_ref(size)))?;
        let count = size.saturating_add(before[axis]).saturating_add(after[axis]);
        if size < 1 || !(0..=MOST_LISTED).contains(&count) {
            return Err(at.wrong(format!("axis {axis} of {size} elements cannot be padded so")));
        }
        let places: Vec<i64> = (0..count).map(|i| (i - before[axis]).rem_euclid(size)).collect();
        let places = at.integer_constant(&[count], &places)?;
        x = at.gather(x, places, axis)?;
    }
    Ok(x)
}

/// Each axis is repeated beside itself: `[a, b]` becomes `[ra, a, rb, b]`, then `[ra*a, rb*b]`.
pub(super) fn tile(at: &mut At<'_>) -> Result<()> {
    let shape = at.ty(0)?.shape;
    let repeats = at.sizes(1, "repeats")?;
    not_negative(at, &repeats)?;
    if repeats.len() != shape.rank() {
        return Err(at.wrong(format!("expected {} repeats, found {}", shape.rank(), repeats.len())));
    }
    let (mut split, mut repeated, mut result) = (Vec::new(), Vec::new(), Vec::new());
    for (size, repeat) in shape.sizes().iter().zip(&repeats) {
        if *repeat != ONE {
            split.push(ONE);
            repeated.push(repeat.clone());
        }
        split.push(size.clone());
        repeated.push(size.clone());
        let product = size.mul(repeat);
        result.push(product.ok_or_else(|| at.undecided("size", &[size.clone(), repeat.clone()]))?);
    }
    let x = at.value(0)?;
    let x = at.reshape(x, split)?;
    let x = at.broadcast(x, Shape::new(repeated))?;
    let y = at.reshape(x, result)?;
    at.set(0, y);
    Ok(())
}

/// Block size, and the sizes `[n, c, h, w]` of input 0.
fn blocks(at: &At<'_>) -> Result<(i64, [Size; 4])> {
    let block = at.int_or("blocksize", 0)?;
    let sizes: Option<[Size; 4]> = at.ty(0)?.shape.sizes().to_vec().try_into().ok();
    match sizes {
        Some(sizes) if block >= 1 => Ok((block, sizes)),
        Some(_) => Err(at.wrong(format!("block size {block} is less than 1"))),
        None => Err(at.wrong("its input has not 4 axes")),
    }
}

pub(super) fn depth_to_space(at: &mut At<'_>) -> Result<()> {
    let (block, [n, c, h, w]) = blocks(at)?;
    let inner = block.checked_mul(block).and_then(|area| c.div_exact(area));
    let Some(inner) = inner else { return Err(at.wrong("the blocks do not divide the channels")) };
    let b = Size::Known(block);
    let (split, perm) = match at.text("mode", "DCR")?.as_str() {
        "DCR" => ([n.clone(), b.clone(), b, inner.clone(), h.clone(), w.clone()], vec![0, 3, 4, 1, 5, 2]),
        "CRD" => ([n.clone(), inner.clone(), b.clone(), b, h.clone(), w.clone()], vec![0, 1, 4, 2, 5, 3]),
        other => return Err(at.unsupported(format!("with mode {other:?}"))),
    };
    let (Some(height), Some(width)) = (h.scale(block), w.scale(block)) else {
        return Err(at.wrong("its size overflows"));
    };
    let x = at.value(0)?;
    let x = at.reshape(x, split)?;
    let x = at.transpose(x, perm)?;
    let y = at.reshape(x, [n, inner, height, width])?;
    at.set(0, y);
    Ok(())
}

pub(super) fn space_to_depth(at: &mut At<'_>) -> Result<()> {
    let (block, [n, c, h, w]) = blocks(at)?;
    let (Some(rows), Some(columns)) = (h.div_exact(block), w.div_exact(block)) else {
        return Err(at.wrong("the blocks do not divide the image"));
    };
    let Some(depth) = block.checked_mul(block).and_then(|area| c.scale(area)) else {
        return Err(at.wrong("its size overflows"));
    };
    let b = Size::Known(block);
    let x = at.value(0)?;
    let x = at.reshape(x, [n.clone(), c, rows.clone(), b.clone(), columns.clone(), b])?;
    let x = at.transpose(x, vec![0, 3, 5, 1, 2, 4])?;
    let y = at.reshape(x, [n, depth, rows, columns])?;
    at.set(0, y);
    Ok(())
}

/// A type of i64 with these sizes.
pub(super) fn indices(sizes: impl IntoIterator<Item = Size>) -> Type {
    Type::new(DType::I64, Shape::new(sizes))
}
