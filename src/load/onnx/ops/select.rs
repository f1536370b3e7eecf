//! Operators whose results are as long as data says: planned for the longest that they can be, with a count beside.

use super::super::known::{Items, Known};
use super::super::lower::Ragged;
use super::super::node::At;
use super::layout::indices;
use super::ranked;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, ScatterKind, Shape, Size, TopK, Unary, ValueId};

/// Positions that hold, first ones first, then zeros; and how many there are.
pub(super) struct Chosen {
    /// One axis.
    pub(super) positions: ValueId,
    pub(super) count: ValueId,
}

/// The positions at which a vector of bools holds.
pub(super) fn chosen(at: &mut At<'_>, holds: ValueId) -> Result<Chosen> {
    let size = at.sizes_of(holds)[0].clone();
    let ones = at.convert(holds, DType::I64)?;
    let count = at.sum(ones, [0], false)?;
    let places = places(at, holds, ones, &size)?;
    let numbers = at.iota(indices([size.clone()]), 0);
    Ok(Chosen { positions: moved(at, numbers, places, &size)?, count })
}

/// Where each element that holds goes; those that do not, behind all.
fn places(at: &mut At<'_>, holds: ValueId, ones: ValueId, size: &Size) -> Result<ValueId> {
    // How many hold before it is an element's place among those that do (Blelloch, Prefix Sums and Their Applications,
    // 1990, section 1.3).
    let running = at.apply(Op::CumSum { axis: 0, exclusive: true, reverse: false }, &[ones])?;
    let behind = at.size_value(size, DType::I64)?;
    at.select(holds, running, behind)
}

/// Elements of a vector at other places of one as long; what goes behind the last is lost, and what nothing goes to is
/// zero.
fn moved(at: &mut At<'_>, x: ValueId, places: ValueId, size: &Size) -> Result<ValueId> {
    let Some(longer) = size.add(&Size::Known(1)) else { return Err(at.wrong("its size overflows")) };
    let zero = at.scalar(at.graph().ty(x).dtype, 0.0)?;
    let empty = at.broadcast(zero, Shape::new([longer]))?;
    let kind = ScatterKind::Replace;
    let full = at.apply(Op::ScatterElements { axis: 0, kind }, &[empty, places, x])?;
    at.part(full, 0, Size::Known(0), size.clone())
}

/// The elements as one axis.
fn flat(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let sizes = at.sizes_of(x);
    let count = at.product(&sizes)?;
    at.reshape(x, [count])
}

/// Whether elements are other than zero.
fn truth(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    match at.graph().ty(x).dtype {
        DType::Bool => Ok(x),
        _ => at.convert(x, DType::Bool),
    }
}

pub(super) fn non_zero(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let sizes = at.sizes_of(x);
    let mut holds = truth(at, x)?;
    if let Some(of) = at.counted_input(0) {
        let counts = at.counting(x, of)?;
        holds = at.and(holds, counts)?;
    }
    let holds = flat(at, holds)?;
    let Chosen { mut positions, count } = chosen(at, holds)?;
    // Digits of the flat position, the fastest axis first.
    let mut rows = Vec::with_capacity(sizes.len());
    for size in sizes.iter().rev() {
        let size = at.size_value(size, DType::I64)?;
        let row = at.binary(Binary::Rem, positions, size)?;
        positions = at.div(positions, size)?;
        rows.push(at.with_axis(row, 0)?);
    }
    if rows.is_empty() {
        return Err(at.unsupported("of a number alone"));
    }
    rows.reverse();
    let y = at.concat(&rows, 0)?;
    at.set(0, y);
    at.set_ragged_output(0, Ragged::along(1, count));
    Ok(())
}

/// Where the first `size` elements of a condition hold; none where one is not known.
fn places_known(holds: &Known, size: i64) -> Option<Vec<i64>> {
    let holds = holds.truths()?;
    let places = (0..size).zip(holds).filter(|(_, holds)| *holds);
    Some(places.map(|(place, _)| place).collect())
}

/// [`non_zero`] of what is known while a model is read: so many places.
pub(super) fn known_places(at: &At<'_>) -> Result<Option<Known>> {
    let Some(x) = at.known(0) else { return Ok(None) };
    let (Some(holds), false) = (x.truths(), x.dims.is_empty()) else { return Ok(None) };
    let places: Vec<u64> = (0u64..).zip(holds).filter(|(_, holds)| *holds).map(|(place, _)| place).collect();
    let mut inner: u64 = x.dims.iter().product();
    let mut items = Vec::with_capacity(places.len() * x.dims.len());
    for &size in &x.dims {
        inner /= size.max(1);
        let digit = |&place: &u64| Size::Known((place / inner.max(1) % size.max(1)) as i64);
        items.extend(places.iter().map(digit));
    }
    let dims = vec![x.dims.len() as u64, places.len() as u64];
    Ok(Some(Known { dtype: DType::I64, dims, items: Items::Sizes(items) }))
}

/// The parts of an axis, or the elements of all axes, at which a condition holds.
pub(super) fn compress(at: &mut At<'_>) -> Result<()> {
    let (given, mut holds) = (at.value(0)?, at.value(1)?);
    if let Some(of) = at.counted_input(1) {
        let counts = at.counting(holds, of)?;
        holds = at.and(holds, counts)?;
    }
    let along = at.int("axis")?;
    let (x, axis) = match along {
        Some(axis) => (given, at.axis(axis, at.rank(0)?)?),
        None => (flat(at, given)?, 0),
    };
    let own = match at.counted_input(0) {
        None => None,
        Some(of) if of.axis != axis => return Err(at.depends_on_data()),
        Some(of) if along.is_some() => Some(of.count),
        // As one axis, all elements of the rows that count.
        Some(of) => {
            let row = at.product(&at.sizes_of(given)[1..])?;
            let row = at.size_value(&row, DType::I64)?;
            Some(at.mul(of.count, row)?)
        }
    };
    let (whole, stated) = (at.sizes_of(x)[axis].clone(), at.sizes_of(holds)[0].clone());
    // A condition that is longer says nothing of what is not there.
    let mut holds = match (whole.known(), stated.known()) {
        (Some(whole), Some(stated)) if stated > whole => {
            at.part(holds, 0, Size::Known(0), Size::Known(whole))?
        }
        _ => holds,
    };
    let places = whole.known().filter(|_| own.is_none());
    if let Some(places) = places.and_then(|whole| places_known(at.known(1)?, whole)) {
        let positions = at.integer_constant(&[places.len() as i64], &places)?;
        let y = at.gather(x, positions, axis)?;
        at.set(0, y);
        return Ok(());
    }
    if let Some(count) = own {
        let counts = at.counting(holds, Ragged::along(0, count))?;
        holds = at.and(holds, counts)?;
    }
    let Chosen { positions, count } = chosen(at, holds)?;
    let y = at.gather(x, positions, axis)?;
    at.set(0, y);
    at.set_ragged_output(0, Ragged::along(axis, count));
    Ok(())
}

/// Elements, or parts of an axis, in order.
struct Sorted {
    /// Where each of them stands, the first of equal ones first.
    positions: ValueId,
    /// Whether each is another than the one before it.
    fresh: ValueId,
    size: Size,
}

/// Which of the sorted elements count, where only the first of a vector do: the others are new nowhere. Error: those that count
/// would not stand first among the elements of several axes.
fn first_of_all(at: &mut At<'_>, sorted: &mut Sorted) -> Result<Option<ValueId>> {
    let Some(of) = at.counted_input(0) else { return Ok(None) };
    if at.rank(0)? > 1 {
        return Err(at.depends_on_data());
    }
    // Equal ones stand in their order, those that count before those that do not.
    let counts = at.compare(Compare::Lt, sorted.positions, of.count)?;
    sorted.fresh = at.and(sorted.fresh, counts)?;
    Ok(Some(counts))
}

/// Each element once, or each part of an axis; where it stands first, which each of all is, and how often it is there.
pub(super) fn unique(at: &mut At<'_>) -> Result<()> {
    let sorts = at.flag("sorted", true)?;
    // Of a vector its one axis is as good as none.
    let is_vector = at.int("axis")?.is_none_or(|axis| matches!(axis, 0 | -1));
    if is_vector && ranked::unique(at, sorts) {
        return Ok(());
    }
    let x = at.value(0)?;
    let (x, axis) = match at.int("axis")? {
        Some(axis) => (x, at.axis(axis, at.rank(0)?)?),
        None => (flat(at, x)?, 0),
    };
    let mut sorted =
        if at.sizes_of(x).len() == 1 { sorted_elements(at, x)? } else { sorted_parts(at, x, axis)? };
    let counts = first_of_all(at, &mut sorted)?;
    let size = sorted.size.clone();
    let ones = at.convert(sorted.fresh, DType::I64)?;
    let count = at.sum(ones, [0], false)?;
    let running = at.apply(Op::CumSum { axis: 0, exclusive: false, reverse: false }, &[ones])?;
    let mut group = at.binary_scalar(Binary::Sub, running, 1.0)?;
    let places = places(at, sorted.fresh, ones, &size)?;
    let mut first = moved(at, sorted.positions, places, &size)?;
    if !sorts {
        (first, group) = by_first(at, first, group, count, &size)?;
    }
    let y = at.gather(x, first, axis)?;
    at.set(0, y);
    at.set(1, first);
    let zero = at.scalar(DType::I64, 0.0)?;
    let zeros = at.broadcast(zero, Shape::new([size]))?;
    let inverse = Op::ScatterElements { axis: 0, kind: ScatterKind::Replace };
    let inverse = at.apply(inverse, &[zeros, sorted.positions, group])?;
    at.set(2, inverse);
    let (each, group) = match counts {
        // What does not count may stand before the first group, and adds nothing there.
        Some(counts) => (at.convert(counts, DType::I64)?, at.binary_scalar(Binary::Max, group, 0.0)?),
        None => {
            let one = at.scalar(DType::I64, 1.0)?;
            (at.broadcast(one, at.type_of(group).shape)?, group)
        }
    };
    let often = at.apply(Op::ScatterElements { axis: 0, kind: ScatterKind::Add }, &[zeros, group, each])?;
    at.set(3, often);
    for (output, axis) in [(0, axis), (1, 0), (3, 0)] {
        at.set_ragged_output(output, Ragged::along(axis, count));
    }
    if let Some(of) = at.counted_input(0) {
        at.set_ragged_output(2, of);
    }
    Ok(())
}

/// Groups in the order in which their first elements stand, instead of their own.
fn by_first(
    at: &mut At<'_>,
    first: ValueId,
    group: ValueId,
    count: ValueId,
    size: &Size,
) -> Result<(ValueId, ValueId)> {
    let positions = at.iota(indices([size.clone()]), 0);
    let there = at.compare(Compare::Lt, positions, count)?;
    let behind = at.size_value(size, DType::I64)?;
    let key = at.select(there, first, behind)?;
    let k = size.known().ok_or_else(|| at.undecided("size", std::slice::from_ref(size)))?;
    let sorted = at.apply_all(Op::TopK(TopK { axis: 0, k, largest: false }), &[key])?;
    let zero = at.scalar(DType::I64, 0.0)?;
    let first = at.select(there, sorted[0], zero)?;
    // Which group stands where, and the other way about.
    let zeros = at.broadcast(zero, Shape::new([size.clone()]))?;
    let kind = ScatterKind::Replace;
    let rank = at.apply(Op::ScatterElements { axis: 0, kind }, &[zeros, sorted[1], positions])?;
    let group = at.gather(rank, group, 0)?;
    Ok((first, group))
}

fn sorted_elements(at: &mut At<'_>, x: ValueId) -> Result<Sorted> {
    let size = at.sizes_of(x)[0].clone();
    let k = size.known().ok_or_else(|| at.undecided("size", std::slice::from_ref(&size)))?;
    let results = at.apply_all(Op::TopK(TopK { axis: 0, k, largest: false }), &[x])?;
    let fresh = differs(at, results[0], 0, k)?;
    Ok(Sorted { positions: results[1], fresh, size })
}

/// Whether the parts of an axis differ from the ones before them; the first does.
fn differs(at: &mut At<'_>, x: ValueId, axis: usize, size: i64) -> Result<ValueId> {
    let yes = at.scalar(DType::Bool, 1.0)?;
    let yes = at.broadcast(yes, Shape::known(&[size.min(1)]))?;
    if size < 2 {
        return Ok(yes);
    }
    let (one, other) = (
        at.part(x, axis, Size::Known(1), Size::Known(size - 1))?,
        at.part(x, axis, Size::Known(0), Size::Known(size - 1))?,
    );
    let mut differs = at.compare(Compare::Ne, one, other)?;
    if at.sizes_of(differs).len() > 1 {
        let axes = (0..at.sizes_of(differs).len()).filter(|&other| other != axis);
        let bytes = at.convert(differs, DType::U8)?;
        let any = at.reduce(ReduceKind::Max, bytes, axes, false)?;
        differs = at.convert(any, DType::Bool)?;
    }
    at.concat(&[yes, differs], 0)
}

/// The most comparisons of parts of an axis with each other.
const MOST: i64 = 1 << 24;

/// Parts in the order of their first elements that differ: each is compared with all others.
fn sorted_parts(at: &mut At<'_>, x: ValueId, axis: usize) -> Result<Sorted> {
    let sizes = at.numbers(x)?;
    let count = sizes[axis];
    let width =
        sizes.iter().enumerate().filter(|(other, _)| *other != axis).map(|(_, size)| size).product::<i64>();
    if count.checked_mul(count).and_then(|pairs| pairs.checked_mul(width)).is_none_or(|all| all > MOST) {
        return Err(at.unsupported("of so many parts of an axis"));
    }
    let rows = at.moved_axis(x, axis, 0)?;
    let rows = at.reshape(rows, [Size::Known(count), Size::Known(width)])?;
    let (one, other) = (at.with_axis(rows, 1)?, at.with_axis(rows, 0)?);
    // [part, other part, element]: whether the other stands before, at the first element that differs.
    let unequal = at.compare(Compare::Ne, one, other)?;
    let unequal = at.convert(unequal, DType::I32)?;
    let before = at.apply(Op::CumSum { axis: 2, exclusive: true, reverse: false }, &[unequal])?;
    let first = at.compare_scalar(Compare::Eq, before, 0.0)?;
    let less = at.compare(Compare::Lt, other, one)?;
    let less = at.and(first, less)?;
    let less = any(at, less, 2)?;
    let same = at.reduce(ReduceKind::Max, unequal, [2], false)?;
    let same = at.compare_scalar(Compare::Eq, same, 0.0)?;
    let (row, column) = (
        at.iota(indices([Size::Known(count), Size::Known(1)]), 0),
        at.iota(indices([Size::Known(1), Size::Known(count)]), 1),
    );
    let earlier = at.compare(Compare::Lt, column, row)?;
    let same = at.and(same, earlier)?;
    let ahead = at.binary(Binary::Or, less, same)?;
    let ahead = at.convert(ahead, DType::I64)?;
    let place = at.sum(ahead, [1], false)?;
    let size = Size::Known(count);
    let numbers = at.iota(indices([size.clone()]), 0);
    let positions = moved(at, numbers, place, &size)?;
    let rows = at.gather(rows, positions, 0)?;
    let fresh = differs(at, rows, 0, count)?;
    Ok(Sorted { positions, fresh, size })
}

/// Whether a bool holds anywhere along an axis.
fn any(at: &mut At<'_>, x: ValueId, axis: usize) -> Result<ValueId> {
    let bytes = at.convert(x, DType::U8)?;
    let largest = at.reduce(ReduceKind::Max, bytes, [axis], false)?;
    at.convert(largest, DType::Bool)
}

/// How many boxes are chosen one after another, at most.
const MOST_ROUNDS: i64 = 4096;

/// Boxes with the largest scores that do not overlap chosen ones too much, for each class of each image.
pub(super) fn non_max_suppression(at: &mut At<'_>) -> Result<()> {
    let (boxes, scores) = (at.value(0)?, at.value(1)?);
    let shape = at.numbers(scores)?;
    let [images, classes, boxes_each] = shape[..] else {
        return Err(at.wrong("its scores have not three axes"));
    };
    let most = if at.has(2) { at.integer(2, "number of boxes")? } else { 0 };
    let rounds = most.clamp(0, boxes_each);
    if rounds > MOST_ROUNDS {
        return Err(at.unsupported(format!("of more than {MOST_ROUNDS} boxes for each class")));
    }
    let wanted = at.ragged_input(2).map(|of| of.count);
    let overlaps = overlaps(at, boxes)?;
    let dtype = at.graph().ty(scores).dtype;
    let limit = match at.optional(3)? {
        Some(limit) => at.reshape(limit, [])?,
        None => at.scalar(dtype, 0.0)?,
    };
    let close = at.compare(Compare::Gt, overlaps, limit)?;
    let close = at.with_axis(close, 1)?;
    let mut left = scores;
    if let Some(least) = at.optional(4)? {
        let least = at.reshape(least, [])?;
        let enough = at.compare(Compare::Gt, scores, least)?;
        left = at.select_or(enough, scores, f64::NEG_INFINITY)?;
    }
    if let Some(of) = at.counted_input(1) {
        let counts = at.counting(scores, of)?;
        left = at.select_or(counts, left, f64::NEG_INFINITY)?;
    }
    let picks = pick_boxes(at, left, close, [boxes_each, rounds])?;
    let chosen_shape = [images, classes, rounds];
    if picks.boxes.is_empty() || chosen_shape.contains(&0) {
        let empty = at.integer_constant(&[0, 3], &[])?;
        at.set(0, empty);
        return Ok(());
    }
    let (y, count) = chosen_rows(at, &picks, chosen_shape, wanted)?;
    at.set(0, y);
    at.set_ragged_output(0, Ragged::along(0, count));
    Ok(())
}

/// For each round the box with the largest score that is left, `[images, classes, 1]`, and whether there was one.
struct Picks {
    boxes: Vec<ValueId>,
    there: Vec<ValueId>,
}

/// Picks boxes one after another; what overlaps a pick too much (`close`) is out from then on.
fn pick_boxes(
    at: &mut At<'_>,
    scores: ValueId,
    close: ValueId,
    [boxes_each, rounds]: [i64; 2],
) -> Result<Picks> {
    let dtype = at.graph().ty(scores).dtype;
    let line = at.iota(indices([1, 1, boxes_each].map(Size::Known)), 2);
    let mut left = scores;
    let mut picks = Picks { boxes: Vec::new(), there: Vec::new() };
    for _ in 0..rounds {
        let largest = Op::ArgReduce { kind: crate::ir::ArgReduce::Max, axis: 2, keep: true, last: false };
        let pick = at.apply(largest, &[left])?;
        let score = at.reduce(ReduceKind::Max, left, [2], true)?;
        picks.there.push(at.compare_scalar(Compare::Gt, score, f64::NEG_INFINITY)?);
        picks.boxes.push(pick);
        let own = at.compare(Compare::Eq, line, pick)?;
        // The pick's row of the overlaps, which are symmetric.
        let row = at.with_axis(own, 2)?;
        let row = at.and(close, row)?;
        let row = any(at, row, 3)?;
        let gone = at.binary(Binary::Or, row, own)?;
        let none = at.scalar(dtype, f64::NEG_INFINITY)?;
        left = at.select(gone, none, left)?;
    }
    Ok(picks)
}

/// Image, class and box of each pick that was there, `[picks, 3]`, and how many there were; of each class no more than wanted.
fn chosen_rows(
    at: &mut At<'_>,
    picks: &Picks,
    shape: [i64; 3],
    wanted: Option<ValueId>,
) -> Result<(ValueId, ValueId)> {
    let (boxes, mut there) = (at.concat(&picks.boxes, 2)?, at.concat(&picks.there, 2)?);
    if let Some(wanted) = wanted {
        let rounds = at.iota(indices([1, 1, shape[2]].map(Size::Known)), 2);
        let is_wanted = at.compare(Compare::Lt, rounds, wanted)?;
        there = at.and(there, is_wanted)?;
    }
    let size = Size::Known(shape.iter().product());
    let mut columns = Vec::new();
    for axis in 0..2 {
        let mut line = [Size::Known(1), Size::Known(1), Size::Known(1)];
        line[axis] = Size::Known(shape[axis]);
        let numbers = at.iota(indices(line), axis);
        columns.push(at.broadcast(numbers, Shape::known(&shape))?);
    }
    columns.push(boxes);
    let there = at.reshape(there, [size.clone()])?;
    let Chosen { positions, count } = chosen(at, there)?;
    for column in &mut columns {
        let flat = at.reshape(*column, [size.clone()])?;
        let picked = at.gather(flat, positions, 0)?;
        *column = at.with_axis(picked, 1)?;
    }
    Ok((at.concat(&columns, 1)?, count))
}

/// The intersections of boxes by their unions, `[images, boxes, boxes]`.
fn overlaps(at: &mut At<'_>, boxes: ValueId) -> Result<ValueId> {
    let centred = at.flag("center_point_box", false)?;
    let mut sides = Vec::new();
    for column in 0..4 {
        sides.push(at.element(boxes, 2, column)?);
    }
    let mut spans = Vec::new();
    for axis in 0..2 {
        let (a, b) = (sides[axis], sides[axis + 2]);
        spans.push(match centred {
            true => {
                let half = at.binary_scalar(Binary::Mul, b, 0.5)?;
                (at.sub(a, half)?, at.add(a, half)?)
            }
            false => (at.binary(Binary::Min, a, b)?, at.binary(Binary::Max, a, b)?),
        });
    }
    let (mut common, mut area) = (None, None);
    for (low, high) in spans {
        let size = at.sub(high, low)?;
        area = Some(match area {
            Some(area) => at.mul(area, size)?,
            None => size,
        });
        let [low_row, low_column] = crossed(at, low)?;
        let [high_row, high_column] = crossed(at, high)?;
        let (low, high) =
            (at.binary(Binary::Max, low_row, low_column)?, at.binary(Binary::Min, high_row, high_column)?);
        let width = at.sub(high, low)?;
        let width = at.unary(Unary::Relu, width)?;
        common = Some(match common {
            Some(common) => at.mul(common, width)?,
            None => width,
        });
    }
    let (Some(common), Some(area)) = (common, area) else { return Err(at.wrong("its boxes have no sides")) };
    let [row, column] = crossed(at, area)?;
    let sum = at.add(row, column)?;
    let union = at.sub(sum, common)?;
    let some = at.compare_scalar(Compare::Gt, union, 0.0)?;
    let one = at.scalar(at.graph().ty(union).dtype, 1.0)?;
    let divisor = at.select(some, union, one)?;
    at.div(common, divisor)
}

/// `[images, boxes]` along either of two axes of boxes.
fn crossed(at: &mut At<'_>, x: ValueId) -> Result<[ValueId; 2]> {
    Ok([at.with_axis(x, 2)?, at.with_axis(x, 1)?])
}
