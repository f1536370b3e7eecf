//! Branches, scans and sequences. A branch that is decided while the model is read is taken; of others both are computed, and
//! the condition selects. Scans are unrolled.

use std::collections::HashMap;
use std::rc::Rc;

use super::super::body::Body;
use super::super::known::Known;
use super::super::lower::{Form, Ragged};
use super::super::node::At;
use crate::error::Result;
use crate::ir::{DType, Op, Shape, Size, ValueId};

pub(super) fn branch(at: &mut At<'_>) -> Result<()> {
    let Some(condition) = at.binding(0) else { return Err(at.wrong("its condition is missing")) };
    if let Some(holds) = decided(at, condition) {
        let (taken, other) =
            if holds { ("then_branch", "else_branch") } else { ("else_branch", "then_branch") };
        at.ignore(&[other]);
        let body = at.body(taken)?;
        let results = at.run(&body, &[], taken)?;
        return results.into_iter().enumerate().try_for_each(|(i, result)| at.set_binding(i, result));
    }
    let (yes, no) = (at.body("then_branch")?, at.body("else_branch")?);
    let (yes, no) = (at.run(&yes, &[], "then_branch")?, at.run(&no, &[], "else_branch")?);
    if yes.len() != no.len() {
        return Err(at.wrong("its branches differ in their number of outputs"));
    }
    let condition = scalar(at, condition)?;
    let mut counts = Counts::new();
    for (i, (yes, no)) in yes.into_iter().zip(no).enumerate() {
        let result = chosen(at, condition, [yes, no], &mut counts)?;
        at.set_binding(i, result)?;
    }
    Ok(())
}

/// Which of two counts a condition takes: what has as many elements on both sides has one count behind.
pub(super) type Counts = HashMap<[ValueId; 2], ValueId>;

/// The value of a condition, where it is known.
pub(super) fn decided(at: &mut At<'_>, index: usize) -> Option<bool> {
    let known = at.lowering().binding(index).known.as_ref()?;
    match known.sizes()? {
        [one] => one.known().map(|value| value != 0),
        _ => None,
    }
}

/// A condition as a value of rank 0.
pub(super) fn scalar(at: &mut At<'_>, index: usize) -> Result<ValueId> {
    let value = at.lowering().value(index)?;
    at.reshape(value, [])
}

/// A binding that is one or the other.
pub(super) fn chosen(
    at: &mut At<'_>,
    condition: ValueId,
    [yes, no]: [usize; 2],
    taken: &mut Counts,
) -> Result<usize> {
    if yes == no {
        return Ok(yes);
    }
    let counts = [yes, no].map(|side| at.lowering().binding(side).ragged);
    let values = [at.lowering().value(yes)?, at.lowering().value(no)?];
    let Sides { values: [yes, no], counts } = alongside(at, values, counts)?;
    let ragged = match counts {
        None => None,
        Some([one, other]) => {
            let both = [one.count, other.count];
            let count = match taken.get(&both) {
                _ if one.count == other.count => one.count,
                Some(&count) => count,
                None => at.select(condition, one.count, other.count)?,
            };
            taken.insert(both, count);
            Some(Ragged { count, ..one })
        }
    };
    let value = at.select(condition, yes, no)?;
    Ok(at.bound_ragged(value, ragged))
}

/// Two values of one type, and how many elements of an axis count of each, where they are not all.
struct Sides {
    values: [ValueId; 2],
    counts: Option<[Ragged; 2]>,
}

/// Both values as long as the longer one. Error: they differ in more than the size of one axis.
fn alongside(at: &mut At<'_>, values: [ValueId; 2], counts: [Option<Ragged>; 2]) -> Result<Sides> {
    let types = values.map(|value| at.type_of(value));
    let is_size = |of: &Ragged| of.is_size;
    if types[0] == types[1] {
        match counts {
            [None, None] => return Ok(Sides { values, counts: None }),
            [Some(one), Some(other)] if one.axis == other.axis && one.is_size == other.is_size => {
                return Ok(Sides { values, counts: Some([one, other]) });
            }
            _ => {}
        }
    }
    let what = "that gives values of other types or sizes, depending on data,";
    let [one, other] = types.each_ref().map(|ty| ty.shape.sizes());
    let differ: Vec<usize> =
        (0..one.len().min(other.len())).filter(|&axis| one[axis] != other[axis]).collect();
    let counted = counts.iter().flatten().next().map(|of| of.axis);
    let (Some(axis), true) = (differ.first().copied().or(counted), differ.len() < 2) else {
        return Err(at.unsupported(what));
    };
    let is_other_axis = counts.iter().flatten().any(|of| of.axis != axis || is_size(of));
    if types[0].dtype != types[1].dtype || one.len() != other.len() || is_other_axis {
        return Err(at.unsupported(what));
    }
    let (Some(left), Some(right)) = (one[axis].known(), other[axis].known()) else {
        return Err(at.unsupported(what));
    };
    let (mut longer, mut both) = (values, Vec::new());
    for (side, size) in [left, right].into_iter().enumerate() {
        let count = match counts[side] {
            Some(of) => of.count,
            None => at.scalar(DType::I64, size as f64)?,
        };
        both.push(Ragged::along(axis, count));
        longer[side] = lengthened(at, values[side], axis, left.max(right) - size)?;
    }
    Ok(Sides { values: longer, counts: Some([both[0], both[1]]) })
}

/// With so many zeros behind the elements of an axis.
fn lengthened(at: &mut At<'_>, value: ValueId, axis: usize, more: i64) -> Result<ValueId> {
    if more == 0 {
        return Ok(value);
    }
    let ty = at.type_of(value);
    let mut sizes = ty.shape.sizes().to_vec();
    sizes[axis] = Size::Known(more);
    let zeros = nothing(at, ty.dtype, sizes)?;
    at.concat(&[value, zeros], axis)
}

/// Values one after the other along a new axis.
pub(super) fn stack(at: &mut At<'_>, parts: &[usize], axis: usize) -> Result<ValueId> {
    let mut values = Vec::with_capacity(parts.len());
    for &part in parts {
        let value = at.lowering().value(part)?;
        values.push(at.with_axis(value, axis)?);
    }
    at.concat(&values, axis)
}

/// No value at all along a new axis, of what has the type of this one.
pub(super) fn no_slices(at: &mut At<'_>, like: usize, axis: usize) -> Result<ValueId> {
    let binding = at.lowering().binding(like);
    if !matches!(binding.form, Form::Tensor) || binding.ragged.is_some() {
        return Err(at.unsupported("that stacks nothing, as it never runs,"));
    }
    let ty = binding.ty.clone();
    let mut sizes = ty.shape.sizes().to_vec();
    sizes.insert(axis, Size::Known(0));
    nothing(at, ty.dtype, sizes)
}

/// Zeros of these sizes, of which none is looked at.
fn nothing(at: &mut At<'_>, dtype: DType, sizes: Vec<Size>) -> Result<ValueId> {
    let zero = at.scalar(dtype, 0.0)?;
    at.broadcast(zero, Shape::new(sizes))
}

/// A limit to the iterations that are unrolled.
pub(super) const MOST_TRIPS: i64 = 1 << 16;

/// What a scan reads and writes along an axis.
struct Along {
    axis: usize,
    backwards: bool,
}

/// Before opset 9 there is a batch in front of everything, and the lengths of its sequences.
pub(super) fn scan(at: &mut At<'_>) -> Result<()> {
    match at.opset < 9 {
        true => scan_batches(at),
        false => {
            let inputs: Option<Vec<usize>> = (0..at.input_count()).map(|i| at.binding(i)).collect();
            let Some(inputs) = inputs else { return Err(at.wrong("an input is missing")) };
            let body = at.body("body")?;
            let results = scan_once(at, &body, &inputs, "")?;
            results.into_iter().enumerate().try_for_each(|(i, result)| at.set_binding(i, result))
        }
    }
}

fn scan_once(at: &mut At<'_>, body: &Body, inputs: &[usize], label: &str) -> Result<Vec<usize>> {
    let count = at.int_or("num_scan_inputs", 0)?;
    let states = usize::try_from(count).ok().and_then(|count| inputs.len().checked_sub(count));
    let Some(states) = states.filter(|&states| states < inputs.len()) else {
        return Err(at.wrong(format!("{count} of its inputs cannot be scanned")));
    };
    let outputs = body.output_count().checked_sub(states);
    let Some(outputs) = outputs else { return Err(at.wrong("its body has too few outputs")) };
    let mut scanned = Vec::new();
    for (i, &input) in inputs[states..].iter().enumerate() {
        let value = at.lowering().value(input)?;
        let rank = at.sizes_of(value).len();
        let along = along(at, ["scan_input_axes", "scan_input_directions"], i, rank)?;
        let value = if along.backwards { at.reversed(value, along.axis)? } else { value };
        scanned.push((value, along.axis));
    }
    let (first, axis) = scanned[0];
    let length = at.sizes_of(first)[axis].clone();
    let trips = length.known().ok_or_else(|| at.undecided("length", std::slice::from_ref(&length)))?;
    if trips > MOST_TRIPS {
        return Err(at.unsupported(format!("of more than {MOST_TRIPS} steps")));
    }
    let mut carried = inputs[..states].to_vec();
    let mut stacked = vec![Vec::new(); outputs];
    for trip in 0..trips {
        let mut arguments = carried.clone();
        for &(value, axis) in &scanned {
            let element = at.element(value, axis, trip)?;
            arguments.push(at.bound(element));
        }
        let results = at.run(body, &arguments, &format!("{label}{trip}"))?;
        carried = results[..states].to_vec();
        stacked.iter_mut().zip(&results[states..]).for_each(|(parts, &part)| parts.push(part));
    }
    let mut results = carried;
    if trips == 0 && outputs > 0 {
        let types = step_of_nothing(at, body, &inputs[..states], &scanned, label)?;
        for (i, &like) in types[states..].iter().enumerate() {
            let rank = at.lowering().binding(like).ty.shape.rank() + 1;
            let along = along(at, ["scan_output_axes", "scan_output_directions"], i, rank)?;
            let nothing = no_slices(at, like, along.axis)?;
            results.push(at.bound(nothing));
        }
        return Ok(results);
    }
    for (i, parts) in stacked.iter().enumerate() {
        let Some(&part) = parts.first() else { continue };
        let rank = at.lowering().binding(part).ty.shape.rank() + 1;
        let along = along(at, ["scan_output_axes", "scan_output_directions"], i, rank)?;
        let mut parts = parts.clone();
        if along.backwards {
            parts.reverse();
        }
        let stack = stack(at, &parts, along.axis)?;
        results.push(at.bound(stack));
    }
    Ok(results)
}

/// What a step would give of a scan that has none.
fn step_of_nothing(
    at: &mut At<'_>,
    body: &Body,
    states: &[usize],
    scanned: &[(ValueId, usize)],
    label: &str,
) -> Result<Vec<usize>> {
    let mut arguments = states.to_vec();
    for &(value, axis) in scanned {
        let ty = at.type_of(value);
        let mut sizes = ty.shape.sizes().to_vec();
        sizes.remove(axis);
        let element = nothing(at, ty.dtype, sizes)?;
        arguments.push(at.bound(element));
    }
    at.run(body, &arguments, &format!("{label}0"))
}

fn along(at: &At<'_>, [axes, directions]: [&str; 2], i: usize, rank: usize) -> Result<Along> {
    let entry = |name: &str| Ok(at.ints(name)?.and_then(|list| list.get(i).copied()).unwrap_or(0));
    Ok(Along { axis: at.axis(entry(axes)?, rank)?, backwards: entry(directions)? != 0 })
}

fn scan_batches(at: &mut At<'_>) -> Result<()> {
    if at.has(0) {
        return Err(at.unsupported("with sequences of different lengths"));
    }
    at.ignore(&["directions"]);
    if at.ints("directions")?.is_some_and(|list| list.iter().any(|&backwards| backwards != 0)) {
        return Err(at.unsupported("backwards at this opset"));
    }
    let mut inputs = Vec::new();
    for i in 1..at.input_count() {
        inputs.push(at.value(i)?);
    }
    let Some(&first) = inputs.first() else { return Err(at.wrong("it has no inputs")) };
    let body = at.body("body")?;
    let batch = at.numbers(first)?[0];
    if batch > MOST_TRIPS {
        return Err(at.unsupported(format!("of more than {MOST_TRIPS} batch entries")));
    }
    let mut results: Vec<Vec<usize>> = Vec::new();
    for entry in 0..batch {
        let mut arguments = Vec::new();
        for &input in &inputs {
            let one = at.element(input, 0, entry)?;
            arguments.push(at.bound(one));
        }
        let outputs = scan_once(at, &body, &arguments, &format!("{entry}."))?;
        results.resize(outputs.len(), Vec::new());
        results.iter_mut().zip(outputs).for_each(|(parts, part)| parts.push(part));
    }
    for (i, parts) in results.iter().enumerate() {
        let stack = stack(at, parts, 0)?;
        at.set(i, stack);
    }
    Ok(())
}

/// A loop over the elements of sequences: the body sees one of each, and makes one of each output.
pub(super) fn sequence_map(at: &mut At<'_>) -> Result<()> {
    let body = at.body("body")?;
    let Some(first) = at.binding(0) else { return Err(at.wrong("its first input is missing")) };
    let Form::Sequence(items) = at.form(first) else {
        return Err(at.wrong("its first input is no sequence"));
    };
    let mut results = vec![Vec::new(); body.output_count()];
    for (i, &item) in items.iter().enumerate() {
        let mut arguments = vec![item];
        for input in 1..at.input_count() {
            let Some(input) = at.binding(input) else { return Err(at.wrong("an input is missing")) };
            arguments.push(match at.form(input) {
                Form::Sequence(others) => match others.get(i) {
                    Some(&other) => other,
                    None => return Err(at.wrong("its sequences differ in length")),
                },
                Form::Tensor | Form::Optional(_) => input,
            });
        }
        let outputs = at.run(&body, &arguments, &format!("{i}"))?;
        results.iter_mut().zip(outputs).for_each(|(parts, part)| parts.push(part));
    }
    results.into_iter().enumerate().try_for_each(|(i, parts)| at.set_sequence(i, parts))
}

// Sequences and optional values.

/// The bindings of a sequence.
fn sequence(at: &mut At<'_>, i: usize) -> Result<Rc<[usize]>> {
    let Some(mut index) = at.binding(i) else { return Err(at.wrong(format!("its input {i} is missing"))) };
    loop {
        match at.form(index) {
            Form::Sequence(items) => return Ok(items),
            Form::Optional(Some(inner)) => index = inner,
            Form::Optional(None) | Form::Tensor => {
                return Err(at.wrong(format!("its input {i} is no sequence")));
            }
        }
    }
}

/// A position in a list of `count` entries; negative ones count from the end.
fn position(at: &At<'_>, i: usize, count: usize) -> Result<usize> {
    let position = at.integer(i, "position")?;
    let count = count as i64;
    let own = if position < 0 { position.saturating_add(count) } else { position };
    match (0..count).contains(&own) {
        true => Ok(own as usize),
        false => Err(at.wrong(format!("position {position} is out of range for {count} entries"))),
    }
}

pub(super) fn sequence_construct(at: &mut At<'_>) -> Result<()> {
    let items = (0..at.input_count()).filter_map(|i| at.binding(i)).collect();
    at.set_sequence(0, items)
}

pub(super) fn sequence_empty(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["dtype"]);
    at.set_sequence(0, Vec::new())
}

pub(super) fn sequence_at(at: &mut At<'_>) -> Result<()> {
    let items = sequence(at, 0)?;
    let position = position(at, 1, items.len())?;
    at.set_binding(0, items[position])
}

pub(super) fn sequence_length(at: &mut At<'_>) -> Result<()> {
    let items = sequence(at, 0)?;
    at.set_known(0, Known::scalar(Size::Known(items.len() as i64)));
    Ok(())
}

pub(super) fn sequence_insert(at: &mut At<'_>) -> Result<()> {
    let mut items = sequence(at, 0)?.to_vec();
    let Some(item) = at.binding(1) else { return Err(at.wrong("its input 1 is missing")) };
    // The position after the last is one too.
    let place = match at.has(2) {
        true => match at.integer(2, "position")? {
            end if end == items.len() as i64 => items.len(),
            _ => position(at, 2, items.len())?,
        },
        false => items.len(),
    };
    items.insert(place, item);
    at.set_sequence(0, items)
}

pub(super) fn sequence_erase(at: &mut At<'_>) -> Result<()> {
    let mut items = sequence(at, 0)?.to_vec();
    let last = items.len().saturating_sub(1);
    let place = if at.has(1) { position(at, 1, items.len())? } else { last };
    if items.is_empty() {
        return Err(at.wrong("its sequence is empty"));
    }
    items.remove(place);
    at.set_sequence(0, items)
}

pub(super) fn concat_from_sequence(at: &mut At<'_>) -> Result<()> {
    let items = sequence(at, 0)?;
    let Some(axis) = at.int("axis")? else { return Err(at.wrong("attribute axis is missing")) };
    let Some(&first) = items.first() else { return Err(at.wrong("its sequence is empty")) };
    let new = at.flag("new_axis", false)?;
    let rank = at.lowering().binding(first).ty.shape.rank();
    let axis = at.axis(axis, if new { rank + 1 } else { rank })?;
    let joined = match new {
        true => stack(at, &items, axis)?,
        false => {
            let values = items.iter().map(|&item| at.lowering().value(item)).collect::<Result<Vec<_>>>()?;
            at.concat(&values, axis)?
        }
    };
    at.set(0, joined);
    Ok(())
}

/// Parts of equal sizes, the last of what is left; or of the sizes that are given.
pub(super) fn split_to_sequence(at: &mut At<'_>) -> Result<()> {
    let shape = at.ty(0)?.shape;
    let axis = at.axis(at.int_or("axis", 0)?, shape.rank())?;
    let keep = at.flag("keepdims", true)?;
    let whole = shape[axis].known();
    let Some(whole) = whole else { return Err(at.undecided("size", std::slice::from_ref(&shape[axis]))) };
    let equal_parts = |size: i64| -> Result<Vec<i64>> {
        if size < 1 {
            return Err(at.wrong(format!("size {size} is less than 1")));
        }
        if whole / size > MOST_TRIPS {
            return Err(
                at.wrong(format!("{whole} elements in parts of {size} are more than {MOST_TRIPS} parts"))
            );
        }
        Ok((0..whole).step_by(size as usize).map(|start| size.min(whole - start)).collect())
    };
    let sizes = match at.has(1) {
        true if at.rank(1)? == 0 => equal_parts(at.integer(1, "size")?)?,
        true => at.integers(1, "sizes")?,
        false => equal_parts(1)?,
    };
    let sum = sizes.iter().try_fold(0i64, |sum, &size| if size < 0 { None } else { sum.checked_add(size) });
    if sum != Some(whole) {
        return Err(at.wrong(format!("its parts do not add up to {whole}")));
    }
    let drops = !keep && !at.has(1);
    let ragged = at.ragged_input(0);
    if ragged.is_some_and(|of| of.is_size || of.axis == axis) {
        return Err(at.depends_on_data());
    }
    let of_parts = ragged.map(|of| Ragged { axis: of.axis - usize::from(drops && axis < of.axis), ..of });
    let x = at.value(0)?;
    let (mut start, mut items) = (0, Vec::with_capacity(sizes.len()));
    for &size in &sizes {
        let mut part = at.part(x, axis, Size::Known(start), Size::Known(size))?;
        if drops {
            part = at.without_axis(part, axis)?;
        }
        start += size;
        items.push(at.bound_ragged(part, of_parts));
    }
    at.set_sequence(0, items)
}

pub(super) fn optional(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["type"]);
    let inner = at.binding(0);
    at.set_form(0, Form::Optional(inner));
    Ok(())
}

pub(super) fn optional_has_element(at: &mut At<'_>) -> Result<()> {
    let there = Known { dtype: DType::Bool, ..Known::scalar(Size::Known(i64::from(at.has(0)))) };
    at.set_known(0, there);
    Ok(())
}

pub(super) fn optional_get_element(at: &mut At<'_>) -> Result<()> {
    let Some(index) = at.binding(0) else { return Err(at.wrong("its input is missing")) };
    match at.form(index) {
        Form::Optional(Some(inner)) => at.set_binding(0, inner),
        Form::Optional(None) => Err(at.wrong("its input holds nothing")),
        Form::Tensor | Form::Sequence(_) => at.set_binding(0, index),
    }
}

/// Each sequence read backwards up to its length; what is after that stays.
pub(super) fn reverse_sequence(at: &mut At<'_>) -> Result<()> {
    let (batch, time) = (at.int_or("batch_axis", 1)?, at.int_or("time_axis", 0)?);
    let rank = at.rank(0)?;
    let (batch, time) = (at.axis(batch, rank)?, at.axis(time, rank)?);
    if batch == time {
        return Err(at.wrong("its axes are the same"));
    }
    let (x, lengths) = (at.value(0)?, at.value(1)?);
    let y = reversed_up_to(at, x, lengths, [batch, time])?;
    at.set(0, y);
    Ok(())
}

/// As [`reverse_sequence`], with the axes of the batch and of the time.
pub(super) fn reversed_up_to(
    at: &mut At<'_>,
    x: ValueId,
    lengths: ValueId,
    [batch, time]: [usize; 2],
) -> Result<ValueId> {
    let sizes = at.sizes_of(x);
    let mut line = vec![Size::Known(1); sizes.len()];
    line[time] = sizes[time].clone();
    let positions = at.iota(super::layout::indices(line.clone()), time);
    line[time] = Size::Known(1);
    line[batch] = sizes[batch].clone();
    let lengths = at.convert(lengths, DType::I64)?;
    let lengths = at.reshape(lengths, line)?;
    let last = at.binary_scalar(crate::ir::Binary::Sub, lengths, 1.0)?;
    let mirrored = at.sub(last, positions)?;
    let inside = at.compare_scalar(crate::ir::Compare::Ge, mirrored, 0.0)?;
    let from = at.select(inside, mirrored, positions)?;
    let from = at.broadcast(from, Shape::new(sizes))?;
    at.apply(Op::GatherElements { axis: time as u32 }, &[x, from])
}
