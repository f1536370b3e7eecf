//! Sizes that are planned where data has others: who passes them on, who computes with them, and whose results have as many
//! elements.

use super::super::super::lower::Ragged;
use super::super::super::node::At;
use super::super::super::tensor;
use super::super::layout;
use super::{ELEMENTWISE, are_alike, same_axis};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, Size, ValueId};

/// Gives a node that computes with sizes those that data has in the place of those that are planned. What only passes
/// sizes on, or makes tensors of them, reads what is planned.
pub(in super::super) fn compute_with_counts(at: &mut At<'_>) -> Result<()> {
    if passes_on(at)? || ELEMENTWISE.binary_search(&at.op_type()).is_err() {
        return Ok(());
    }
    let inputs: Vec<Option<Ragged>> = (0..at.input_count()).map(|i| at.ragged_input(i)).collect();
    if chosen_size(at, &inputs)?.is_some() || growing(at, &inputs).is_some() {
        return Ok(());
    }
    for i in 0..at.input_count() {
        let Some(of) = at.ragged_input(i).filter(|of| of.is_size) else { continue };
        let Some(real) = real_sizes(at, i, of)? else { continue };
        let real = at.bound(real);
        at.read_instead(i, real);
    }
    Ok(())
}

/// Sizes that a tensor is expanded to, where one of them is computed from data, as how often a condition holds: what counts along
/// that axis is as long, or the node is wrong.
pub(super) fn expand_as_counted(at: &mut At<'_>) -> Result<()> {
    if at.op_type() != "Expand" || at.known(1).is_some() {
        return Ok(());
    }
    let Some(own) = at.counted_input(0) else { return Ok(()) };
    let sizes = at.value(1)?;
    let graph = at.graph();
    let parts = match &graph.maker(sizes).op {
        Op::Concat { .. } => graph.maker(sizes).operands.clone(),
        _ => return Ok(()),
    };
    let mut planned = Vec::with_capacity(parts.len());
    let mut open = Vec::new();
    for &part in &parts {
        match graph.as_constant(part).and_then(|known| known.to_i64()) {
            Some(known) => planned.extend(known.into_iter().map(Size::Known)),
            None if graph.ty(part).elements() == Some(1) => {
                open.push(planned.len());
                planned.push(Size::Known(1));
            }
            None => return Ok(()),
        }
    }
    if open == [own.axis] && planned.len() == at.rank(0)? {
        planned[own.axis] = at.ty(0)?.shape[own.axis].clone();
        let sizes = at.bound_sizes(planned, own);
        at.read_instead(1, sizes);
    }
    Ok(())
}

/// Whether sizes stay as they are, in the type that sizes have.
fn passes_on(at: &At<'_>) -> Result<bool> {
    Ok(match at.op_type() {
        "Identity" => true,
        // There are types that only `Cast` itself knows.
        "Cast" => {
            let to = i32::try_from(at.int_or("to", 0)?).unwrap_or(0);
            tensor::dtype(to).is_ok_and(|dtype| dtype == DType::I64)
        }
        _ => false,
    })
}

/// Sizes with the one that data has in its place; none where they are no vector.
fn real_sizes(at: &mut At<'_>, i: usize, of: Ragged) -> Result<Option<ValueId>> {
    let planned = at.value(i)?;
    let sizes = at.sizes_of(planned);
    Ok(match sizes.len() {
        0 => Some(of.count),
        1 => {
            let places = at.iota(layout::indices(sizes), 0);
            let is_it = at.compare_scalar(Compare::Eq, places, of.axis as f64)?;
            Some(at.select(is_it, of.count, planned)?)
        }
        _ => None,
    })
}

/// The least or largest of sizes, their sum or product, which is a size in its turn. What is planned is at least that: none
/// is below 0.
fn reduced_size(at: &mut At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<Ragged>> {
    let Some(Some(of)) = inputs.first().copied() else { return Ok(None) };
    let kind = match at.op_type() {
        "ReduceMin" => ReduceKind::Min,
        "ReduceMax" => ReduceKind::Max,
        "ReduceSum" => ReduceKind::Sum,
        "ReduceProd" => ReduceKind::Prod,
        _ => return Ok(None),
    };
    let plan = super::super::reduce::plan(at)?;
    let Some(real) = real_sizes(at, 0, of)? else { return Ok(None) };
    if plan.axes.len() != at.sizes_of(real).len() {
        return Ok(None);
    }
    let count = at.apply(Op::Reduce { kind, axes: plan.axes, keep: false }, &[real])?;
    Ok(Some(Ragged { axis: 0, count, is_size: true }))
}

/// Sizes that are planned: made by `Shape`, and read by what gives a result that many elements, of which then as many
/// count.
pub(super) fn carry(at: &mut At<'_>, inputs: &[Option<Ragged>], first: Ragged) -> Result<()> {
    // How many sizes there are is known.
    if first.is_size && matches!(at.op_type(), "Shape" | "Size") {
        return Ok(());
    }
    if at.op_type() == "Shape" {
        return size_of_axis(at, first);
    }
    if let Some(place) = place_of_size(at, inputs, first)? {
        if let Some(axis) = place {
            at.set_ragged_output(0, Ragged { axis, count: first.count, is_size: true });
        }
        return Ok(());
    }
    if let Some(of) = computed_size(at, inputs)? {
        at.set_ragged_output(0, of);
        return Ok(());
    }
    if let Some(part) = cut_at_size(at, inputs)? {
        return at.set_ragged(part);
    }
    if counts_up_to(at, inputs) {
        at.set_ragged_output(0, Ragged::along(0, first.count));
        return Ok(());
    }
    match as_long_as_said(at, inputs)? {
        Some(result) => at.set_ragged(result),
        None => Err(at.depends_on_data()),
    }
}

/// The shape of a tensor says how long the axis is that data decides, unless it begins behind it.
fn size_of_axis(at: &mut At<'_>, of: Ragged) -> Result<()> {
    let (start, rank) = (at.int_or("start", 0)?, at.rank(0)?);
    let start = if start < 0 { start.saturating_add(rank as i64).max(0) } else { start };
    let place = usize::try_from(start).ok().and_then(|start| of.axis.checked_sub(start));
    let sizes = at.output_shape(0).and_then(|shape| shape[0].known()).unwrap_or(0);
    if let Some(axis) = place.filter(|&place| (place as i64) < sizes) {
        at.set_ragged_output(0, Ragged { axis, count: of.count, is_size: true });
    }
    Ok(())
}

/// Where a size stands in a result of sizes: see [`chosen_size`] and [`position_of_size`].
fn place_of_size(at: &At<'_>, inputs: &[Option<Ragged>], first: Ragged) -> Result<Position> {
    match chosen_size(at, inputs)? {
        Some(place) => Ok(Some(place)),
        None => position_of_size(at, inputs, first),
    }
}

/// A size that is computed of sizes: see [`growing`] and [`reduced_size`].
fn computed_size(at: &mut At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<Ragged>> {
    let Some(binary) = growing(at, inputs) else { return reduced_size(at, inputs) };
    let mut counts = Vec::with_capacity(inputs.len());
    for (i, of) in inputs.iter().enumerate() {
        counts.push(match of {
            Some(of) => of.count,
            None => {
                let number = at.value(i)?;
                at.reshape(number, [])?
            }
        });
    }
    let count = at.binary(binary, counts[0], counts[1])?;
    Ok(Some(Ragged { axis: 0, count, is_size: true }))
}

/// The axis of a result that is as long as a size says; none where what is made so long does not count along it.
fn as_long_as_said(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<Ragged>> {
    let operand = match at.op_type() {
        "Expand" | "Reshape" => 1,
        "ConstantOfShape" => 0,
        _ => return Ok(None),
    };
    let sizes = inputs.get(operand).copied().flatten().filter(|of| of.is_size);
    let (Some(sizes), Some(rank)) = (sizes, at.output_rank(0)) else { return Ok(None) };
    // The sizes are aligned from the last axis, the operand's too.
    let length = at.ty(operand)?.shape[0].known();
    let Some(lead) = length.and_then(|length| rank.checked_sub(length as usize)) else { return Ok(None) };
    let axis = sizes.axis + lead;
    let own = inputs[0].filter(|own| !own.is_size);
    let is_aligned = match (at.op_type(), own) {
        ("ConstantOfShape", _) => true,
        ("Expand", Some(own)) => own.axis + rank.saturating_sub(at.rank(0)?) == axis,
        ("Expand", None) => {
            let before = rank.saturating_sub(at.rank(0)?);
            axis < before || at.ty(0)?.shape[axis - before] == Size::Known(1)
        }
        (_, Some(own)) => same_axis(at, own.axis)? == Some(axis),
        (_, None) => false,
    };
    Ok(is_aligned.then(|| Ragged::along(axis, sizes.count)))
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
    let [own, None, Some(ends), rest @ ..] = inputs else { return Ok(None) };
    if at.op_type() != "Slice" || !ends.is_size || rest.iter().any(Option::is_some) {
        return Ok(None);
    }
    let axis = match at.has(3) {
        true => at.integers(3, "axes")?.get(ends.axis).copied(),
        false => Some(ends.axis as i64),
    };
    let Some(axis) = axis else { return Ok(None) };
    let axis = at.axis(axis, at.rank(0)?)?;
    let plan = layout::slice_plan(at)?;
    let Some(bounds) = layout::slice_bounds(at, axis)? else { return Ok(None) };
    let is_other_axis = own.is_some_and(|own| own.is_size || own.axis != axis);
    if bounds.start != Size::Known(0) || plan.steps[axis] != 1 || is_other_axis {
        return Ok(None);
    }
    let mut ends = *ends;
    if let Some(own) = own.filter(|own| !are_alike(at.graph(), own.count, ends.count)) {
        ends.count = at.binary(Binary::Min, ends.count, own.count)?;
    }
    // Where the axis is as long as the largest number that data can say, it cuts nothing off.
    if plan.sizes[axis] == bounds.end {
        return Ok(Some(Ragged::along(axis, ends.count)));
    }
    let taken = at.size_value(&plan.sizes[axis], DType::I64)?;
    let count = at.binary(Binary::Min, ends.count, taken)?;
    Ok(Some(Ragged::along(axis, count)))
}

/// What is computed of one size and a number, or another size, where that is the larger the larger they are: what is planned
/// is at least what data has, as of the sizes themselves.
fn growing(at: &At<'_>, inputs: &[Option<Ragged>]) -> Option<Binary> {
    let binary = match at.op_type() {
        "Add" => Binary::Add,
        "Mul" => Binary::Mul,
        "Max" => Binary::Max,
        "Min" => Binary::Min,
        "Sub" if inputs.get(1) == Some(&None) => Binary::Sub,
        "Div" if inputs.get(1) == Some(&None) => Binary::Div,
        _ => return None,
    };
    let is_size = |of: &Option<Ragged>| of.is_some_and(|of| of.is_size);
    let is_one = |i: usize| {
        let known = at.known(i).and_then(|known| known.sizes());
        known.is_some_and(|sizes| matches!(sizes, [one] if one.known().is_some_and(|number| number >= 0)))
    };
    (inputs.len() == 2 && inputs.iter().any(is_size) && (0..2).all(is_one)).then_some(binary)
}

/// Where a size stands behind what exporters write for `-1`, as long as an axis is: sizes are compared with a number below 0,
/// which none is, and chosen where they are not that. None where the operator does something else.
fn chosen_size(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<Option<usize>>> {
    let known = |i: usize| at.known(i).and_then(|known| known.sizes());
    match (at.op_type(), inputs) {
        ("Equal", [Some(of), None] | [None, Some(of)]) if of.is_size => {
            let other = usize::from(inputs[0].is_some());
            let is_below = |size: &Size| size.known().is_some_and(|number| number < 0);
            let all_below = known(other).is_some_and(|sizes| sizes.iter().all(is_below));
            Ok(all_below.then_some(None))
        }
        ("Where", [None, Some(of), None] | [None, None, Some(of)]) if of.is_size => {
            // The other side may be one number for all.
            let own = if inputs[1].is_some() { 1 } else { 2 };
            let is_alike = at.ty(0)?.shape == at.ty(own)?.shape && at.ty(3 - own)?.shape.rank() < 2;
            let taken = known(0).and_then(|truths| truths.get(of.axis)?.known()).filter(|_| is_alike);
            let taken = taken.map(|holds| if holds != 0 { 1 } else { 2 });
            Ok(taken.map(|side| inputs[side].map(|of| of.axis)))
        }
        _ => Ok(None),
    }
}

/// Where a size stands in a result of sizes, `Some(None)` where it is not among them; none where the operator does something
/// else with it.
type Position = Option<Option<usize>>;

/// Where a size stands in a result that only passes on sizes.
fn position_of_size(at: &At<'_>, inputs: &[Option<Ragged>], first: Ragged) -> Result<Position> {
    let is_alone = inputs.iter().flatten().count() == 1;
    Ok(match at.op_type() {
        _ if !is_alone => None,
        "Gather" if inputs[0].is_some() => position_gathered(at, first)?,
        "Slice" if inputs[0].is_some() => position_sliced(at, first)?,
        // One of known sizes is another.
        "ScatterElements" if matches!(inputs, [None, None, Some(_)]) => {
            let known = at.known(1).and_then(|known| known.sizes());
            let place = known.and_then(|places| if let [one] = places { one.known() } else { None });
            place.and_then(|place| usize::try_from(place).ok()).map(Some)
        }
        "Unsqueeze" | "Squeeze" if inputs[0].is_some() => Some(Some(first.axis)),
        _ if passes_on(at)? => Some(Some(first.axis)),
        "Reshape" if inputs[0].is_some() && at.output_rank(0).is_some_and(|rank| rank < 2) => {
            Some(Some(first.axis))
        }
        "Concat" => sizes_before(at, inputs)?.map(|before| Some(before + first.axis)),
        _ => None,
    })
}

/// Of sizes that are picked by known places; none where it is picked more than once.
fn position_gathered(at: &At<'_>, first: Ragged) -> Result<Position> {
    let length = at.ty(0)?.shape.sizes().iter().filter_map(Size::known).product::<i64>();
    let places = at.integers(1, "places")?;
    let counted = places.iter().map(|&place| if place < 0 { place + length } else { place });
    let mut found = (0..).zip(counted).filter(|&(_, place)| usize::try_from(place) == Ok(first.axis));
    let position = found.next().map(|(at, _)| at);
    Ok(if found.next().is_none() { Some(position) } else { None })
}

/// Of sizes of which some that follow each other are taken.
fn position_sliced(at: &At<'_>, first: Ragged) -> Result<Position> {
    let plan = layout::slice_plan(at)?;
    let numbers = (plan.starts[0].known(), plan.sizes[0].known(), plan.steps[0]);
    let (Some(start), Some(count), 1) = numbers else { return Ok(None) };
    let place = first.axis as i64 - start;
    Ok(Some(usize::try_from(place).ok().filter(|_| place < count)))
}

/// How many sizes stand before those of the operand with the size that data decides; none where that is not known.
fn sizes_before(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<usize>> {
    let mut before = 0;
    for i in inputs.iter().enumerate().take_while(|(_, of)| of.is_none()).map(|(i, _)| i) {
        let own = at.ty(i)?.shape.sizes().first().and_then(Size::known);
        let Some(own) = own.and_then(|own| usize::try_from(own).ok()) else { return Ok(None) };
        before += own;
    }
    Ok(Some(before))
}
