//! Evaluation of operators on known elements: the arithmetic on shapes. Each gives none where the
//! result is not affine, not decided, or too large to be worth it.

use std::cmp::Ordering;

use super::super::known::{self, Items, Known, LIMIT, broadcast_dims};
use super::super::node::At;
use super::super::tensor;
use super::{layout, ranked, reduce};
use crate::error::Result;
use crate::ir::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::ir::{Binary, Compare, DType, ReduceKind, Size, Unary};

type Folded = Result<Option<Known>>;

fn input<'a>(at: &'a At<'_>, i: usize) -> Option<&'a Known> {
    at.known(i)
}

pub(super) fn unary(at: &At<'_>, unary: Unary) -> Folded {
    Ok(input(at, 0).and_then(|x| evaluate_unary(unary, x)))
}

fn evaluate_unary(unary: Unary, x: &Known) -> Option<Known> {
    let items = match &x.items {
        Items::Sizes(sizes) => {
            let one = |size: &Size| match unary {
                Unary::Neg => size.scale(-1),
                Unary::Abs if known::least(size).is_some_and(|least| least >= 0) => Some(size.clone()),
                Unary::Abs => size.known()?.checked_abs().map(Size::Known),
                Unary::Not => Some(Size::Known(i64::from(size.known()? == 0))),
                Unary::Relu => known::larger(size, &Size::Known(0)),
                Unary::Sign => Some(Size::Known(size.known()?.signum())),
                _ => None,
            };
            Items::Sizes(sizes.iter().map(one).collect::<Option<_>>()?)
        }
        Items::Reals(reals) => {
            let one = |&real: &f64| match unary {
                Unary::Neg => Some(-real),
                Unary::Relu if !real.is_nan() => Some(real.max(0.0)),
                Unary::Abs => Some(real.abs()),
                Unary::Ceil => Some(real.ceil()),
                Unary::Floor => Some(real.floor()),
                Unary::Sqrt => Some(round(x.dtype, real.sqrt())),
                Unary::Round => Some(real.round_ties_even()),
                Unary::Reciprocal => Some(round(x.dtype, real.recip())),
                _ => None,
            };
            Items::Reals(reals.iter().map(one).collect::<Option<_>>()?)
        }
    };
    fits(Known { dtype: x.dtype, dims: x.dims.clone(), items })
}

/// The real in the precision of its type.
fn round(dtype: DType, real: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(real as f32),
        DType::F16 => f64::from(f16_to_f32(f32_to_f16(real as f32))),
        DType::Bf16 => f64::from(bf16_to_f32(f32_to_bf16(real as f32))),
        _ => real,
    }
}

/// The tensor where every integer that is a number fits its type: others wrap at run time.
fn fits(known: Known) -> Option<Known> {
    let range = match known.dtype {
        DType::Bool => 0..=1,
        DType::U8 => 0..=255,
        DType::U16 => 0..=u16::MAX.into(),
        DType::U32 => 0..=u32::MAX.into(),
        DType::U64 => 0..=i64::MAX,
        DType::I8 => -128..=127,
        DType::I16 => i16::MIN.into()..=i16::MAX.into(),
        DType::I32 => i32::MIN.into()..=i32::MAX.into(),
        DType::I64 | DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => i64::MIN..=i64::MAX,
    };
    let sizes = known.sizes().unwrap_or_default();
    sizes.iter().all(|size| size.known().is_none_or(|value| range.contains(&value))).then_some(known)
}

/// And and or, where one operand alone is known and decides, whatever the other one is.
pub(super) fn decided_by_one(at: &At<'_>, operation: Binary) -> Folded {
    let decides = |known: &Known| {
        let all = |truth: bool| known.truths().is_some_and(|truths| truths.iter().all(|&one| one == truth));
        all(operation == Binary::Or)
    };
    let Some(decided) = (0..2).find_map(|i| input(at, i).filter(|known| decides(known))) else {
        return Ok(None);
    };
    let (Some(left), Some(right)) = (dims(at, 0)?, dims(at, 1)?) else { return Ok(None) };
    let dims = broadcast_dims(&left, &right).filter(|dims| known::elements(dims).is_some_and(|n| n <= LIMIT));
    let Some(dims) = dims else { return Ok(None) };
    let truth = i64::from(operation == Binary::Or);
    let count = dims.iter().product::<u64>() as usize;
    Ok(Some(Known { dtype: decided.dtype, dims, items: Items::Sizes(vec![Size::Known(truth); count]) }))
}

/// The sizes of an input, where all are numbers.
fn dims(at: &At<'_>, i: usize) -> Result<Option<Vec<u64>>> {
    let dims = at.ty(i)?.shape.dims();
    Ok(dims.and_then(|dims| dims.into_iter().map(|dim| u64::try_from(dim).ok()).collect()))
}

pub(super) fn binary(at: &At<'_>, binary: Binary) -> Folded {
    let mut result = input(at, 0).cloned();
    if at.input_count() == 1 {
        return Ok(result);
    }
    for i in 1..at.input_count() {
        let (Some(x), Some(y)) = (&result, input(at, i)) else { return Ok(None) };
        result = evaluate_binary(binary, x, y);
    }
    Ok(result)
}

/// Exporters write the side of a square of patches as a power.
pub(super) fn pow(at: &At<'_>) -> Folded {
    let (Some(base), Some(exponent)) = (input(at, 0), input(at, 1)) else { return Ok(None) };
    let Some(dims) = broadcast_dims(&base.dims, &exponent.dims) else { return Ok(None) };
    let (Some(base), Some(exponent)) = (base.broadcast(&dims), exponent.broadcast(&dims)) else {
        return Ok(None);
    };
    let exponents: Option<Vec<f64>> = match &exponent.items {
        Items::Reals(reals) => Some(reals.clone()),
        Items::Sizes(sizes) => sizes.iter().map(|size| size.known().map(|size| size as f64)).collect(),
    };
    let (Items::Reals(bases), Some(exponents)) = (&base.items, exponents) else { return Ok(None) };
    let power = |(&number, exponent): (&f64, f64)| round(base.dtype, libm::pow(number, exponent));
    let items = Items::Reals(bases.iter().zip(exponents).map(power).collect());
    Ok(fits(Known { dtype: base.dtype, dims, items }))
}

fn evaluate_binary(binary: Binary, x: &Known, y: &Known) -> Option<Known> {
    if x.dtype != y.dtype {
        return None;
    }
    let dims = broadcast_dims(&x.dims, &y.dims)?;
    let (x, y) = (x.broadcast(&dims)?, y.broadcast(&dims)?);
    let items = match (&x.items, &y.items) {
        (Items::Sizes(left), Items::Sizes(right)) => {
            let pairs = left.iter().zip(right);
            Items::Sizes(
                pairs.map(|(left, right)| size(binary, x.dtype, left, right)).collect::<Option<_>>()?,
            )
        }
        (Items::Reals(left), Items::Reals(right)) => {
            let pairs = left.iter().zip(right);
            Items::Reals(
                pairs
                    .map(|(&left, &right)| real(binary, left, right).map(|v| round(x.dtype, v)))
                    .collect::<Option<_>>()?,
            )
        }
        _ => return None,
    };
    fits(Known { dtype: x.dtype, dims, items })
}

fn size(binary: Binary, dtype: DType, x: &Size, y: &Size) -> Option<Size> {
    let bools = |f: fn(bool, bool) -> bool| {
        if dtype != DType::Bool {
            return None;
        }
        Some(Size::Known(i64::from(f(x.known()? != 0, y.known()? != 0))))
    };
    match binary {
        Binary::Add => x.add(y),
        Binary::Sub => x.sub(y),
        Binary::Mul => x.mul(y),
        Binary::Div => known::divide(x, y),
        Binary::Mod => {
            let (x, y) = (x.known()?, y.known()?);
            let rest = x.checked_rem(y)?;
            Some(Size::Known(if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }))
        }
        Binary::Rem => x.known()?.checked_rem(y.known()?).map(Size::Known),
        Binary::Max => known::larger(x, y),
        Binary::Min => known::smaller(x, y),
        Binary::And => bools(|x, y| x && y),
        Binary::Or => bools(|x, y| x || y),
        Binary::Xor => bools(|x, y| x != y),
        Binary::Pow | Binary::Hash => None,
    }
}

fn real(binary: Binary, x: f64, y: f64) -> Option<f64> {
    Some(match binary {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::Max if !x.is_nan() && !y.is_nan() => x.max(y),
        Binary::Min if !x.is_nan() && !y.is_nan() => x.min(y),
        Binary::Max
        | Binary::Min
        | Binary::Mod
        | Binary::Rem
        | Binary::Pow
        | Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::Hash => return None,
    })
}

pub(super) fn modulo(at: &At<'_>) -> Folded {
    let fmod = at.flag("fmod", false)?;
    binary(at, if fmod { Binary::Rem } else { Binary::Mod })
}

pub(super) fn compare(at: &At<'_>, compare: Compare) -> Folded {
    let (Some(x), Some(y)) = (input(at, 0), input(at, 1)) else { return Ok(None) };
    Ok(evaluate_compare(compare, x, y))
}

fn evaluate_compare(compare: Compare, x: &Known, y: &Known) -> Option<Known> {
    let dims = broadcast_dims(&x.dims, &y.dims)?;
    let (x, y) = (x.broadcast(&dims)?, y.broadcast(&dims)?);
    let holds = |order: Ordering| match compare {
        Compare::Eq => order.is_eq(),
        Compare::Ne => order.is_ne(),
        Compare::Lt => order.is_lt(),
        Compare::Le => order.is_le(),
        Compare::Gt => order.is_gt(),
        Compare::Ge => order.is_ge(),
    };
    let size = |x: &Size, y: &Size| match compare {
        Compare::Ge => known::at_least(x, y),
        Compare::Le => known::at_least(y, x),
        Compare::Lt => known::at_least(x, y).map(|holds| !holds),
        Compare::Gt => known::at_least(y, x).map(|holds| !holds),
        Compare::Eq | Compare::Ne => known::compare(x, y).map(holds),
    };
    let bools: Option<Vec<bool>> = match (&x.items, &y.items) {
        (Items::Sizes(x), Items::Sizes(y)) => x.iter().zip(y).map(|(x, y)| size(x, y)).collect(),
        (Items::Reals(x), Items::Reals(y)) => {
            x.iter().zip(y).map(|(x, y)| x.partial_cmp(y).map(holds)).collect()
        }
        _ => None,
    };
    let items = Items::Sizes(bools?.into_iter().map(|bool| Size::Known(bool.into())).collect());
    Some(Known { dtype: DType::Bool, dims, items })
}

pub(super) fn select(at: &At<'_>) -> Folded {
    let (Some(condition), Some(yes), Some(no)) = (input(at, 0), input(at, 1), input(at, 2)) else {
        return Ok(None);
    };
    Ok(evaluate_select(condition, yes, no))
}

fn evaluate_select(condition: &Known, yes: &Known, no: &Known) -> Option<Known> {
    let dims = broadcast_dims(&condition.dims, &broadcast_dims(&yes.dims, &no.dims)?)?;
    let condition = condition.broadcast(&dims)?;
    let (yes, no) = (yes.broadcast(&dims)?, no.broadcast(&dims)?);
    let chosen: Vec<bool> =
        condition.sizes()?.iter().map(|size| Some(size.known()? != 0)).collect::<Option<_>>()?;
    let items = match (yes.items, no.items) {
        (Items::Sizes(yes), Items::Sizes(no)) => Items::Sizes(choose(&chosen, yes, no)),
        (Items::Reals(yes), Items::Reals(no)) => Items::Reals(choose(&chosen, yes, no)),
        _ => return None,
    };
    (yes.dtype == no.dtype).then_some(Known { dtype: yes.dtype, dims, items })
}

fn choose<T>(chosen: &[bool], yes: Vec<T>, no: Vec<T>) -> Vec<T> {
    chosen
        .iter()
        .zip(yes.into_iter().zip(no))
        .map(|(&first, (yes, no))| if first { yes } else { no })
        .collect()
}

pub(super) fn cast(at: &At<'_>) -> Folded {
    let Some(to) = at.int("to")? else { return Ok(None) };
    if at.narrow(0).is_some() || (17..=26).contains(&to) && to != 16 {
        return Ok(None);
    }
    let to = tensor::dtype(i32::try_from(to).unwrap_or(0))?;
    // They speak of floats of eight bits only; onnxruntime writes them whatever the type.
    at.ignore(&["saturate", "round_mode"]);
    Ok(input(at, 0).and_then(|x| convert(x, to)))
}

fn convert(x: &Known, to: DType) -> Option<Known> {
    if to == x.dtype {
        return Some(x.clone());
    }
    let items = match (&x.items, to) {
        (Items::Sizes(sizes), to) if to.is_float() => Items::Reals(
            sizes.iter().map(|size| Some(round(to, size.known()? as f64))).collect::<Option<_>>()?,
        ),
        (Items::Reals(reals), to) if to.is_float() => {
            Items::Reals(reals.iter().map(|&real| round(to, real)).collect())
        }
        (Items::Sizes(sizes), DType::Bool) => {
            let zero = Size::Known(0);
            let one =
                |size: &Size| known::compare(size, &zero).map(|order| Size::Known(order.is_ne().into()));
            Items::Sizes(sizes.iter().map(one).collect::<Option<_>>()?)
        }
        (Items::Reals(reals), DType::Bool) => {
            Items::Sizes(reals.iter().map(|&real| Size::Known((real != 0.0).into())).collect())
        }
        (Items::Sizes(sizes), _) => Items::Sizes(sizes.clone()),
        (Items::Reals(reals), _) => {
            let whole = |&real: &f64| (real.abs() < 9.0e15).then_some(Size::Known(real as i64));
            Items::Sizes(reals.iter().map(whole).collect::<Option<_>>()?)
        }
    };
    fits(Known { dtype: to, dims: x.dims.clone(), items })
}

pub(super) fn concat(at: &At<'_>) -> Folded {
    let Some(axis) = at.int("axis")? else { return Ok(None) };
    let rank = at.rank(0)?;
    let axis = at.axis(axis, rank)?;
    let parts: Option<Vec<&Known>> = (0..at.input_count()).map(|i| input(at, i)).collect();
    Ok(parts.and_then(|parts| evaluate_concat(&parts, axis)))
}

fn evaluate_concat(parts: &[&Known], axis: usize) -> Option<Known> {
    let first = parts.first()?;
    let mut dims = first.dims.clone();
    for part in &parts[1..] {
        let same = part.dims.len() == dims.len()
            && part.dims.iter().zip(&dims).enumerate().all(|(at, (a, b))| at == axis || a == b);
        if !same || part.dtype != first.dtype {
            return None;
        }
        dims[axis] = dims[axis].checked_add(part.dims[axis])?;
    }
    known::elements(&dims).filter(|&count| count <= LIMIT)?;
    let outer: u64 = dims[..axis].iter().product();
    let (mut sizes, mut reals) = (Vec::new(), Vec::new());
    for row in 0..outer as usize {
        for part in parts {
            let length = part.len() / (outer as usize).max(1);
            let range = row * length..(row + 1) * length;
            match &part.items {
                Items::Sizes(items) => sizes.extend_from_slice(items.get(range)?),
                Items::Reals(items) => reals.extend_from_slice(items.get(range)?),
            }
        }
    }
    let items = if first.reals().is_some() { Items::Reals(reals) } else { Items::Sizes(sizes) };
    Some(Known { dtype: first.dtype, dims, items })
}

pub(super) fn gather(at: &At<'_>) -> Folded {
    let (Some(data), Some(indices)) = (input(at, 0), input(at, 1)) else { return Ok(None) };
    let axis = at.axis(at.int_or("axis", 0)?, data.rank())?;
    Ok(evaluate_gather(data, indices, axis))
}

fn evaluate_gather(data: &Known, indices: &Known, axis: usize) -> Option<Known> {
    let size = i64::try_from(data.dims[axis]).ok()?;
    let outer: u64 = data.dims[..axis].iter().product();
    let inner: u64 = data.dims[axis + 1..].iter().product();
    let mut rows = Vec::with_capacity(indices.len());
    for index in indices.sizes()? {
        let index = index.known()?;
        let index = if index < 0 { index.checked_add(size)? } else { index };
        rows.push((0..size).contains(&index).then_some(index as u64)?);
    }
    let dims = [&data.dims[..axis], &indices.dims, &data.dims[axis + 1..]].concat();
    known::elements(&dims).filter(|&count| count <= LIMIT)?;
    let positions: Vec<usize> = (0..outer)
        .flat_map(|o| rows.iter().map(move |&row| (o, row)))
        .flat_map(|(o, row)| (0..inner).map(move |i| ((o * size as u64 + row) * inner + i) as usize))
        .collect();
    data.pick(&positions, dims)
}

pub(super) fn slice(at: &At<'_>) -> Folded {
    let Some(data) = input(at, 0) else { return Ok(None) };
    let plan = layout::slice_plan(at)?;
    Ok(data.slice(&plan))
}

/// The input under the dimensions that a reshaping operator gives it.
fn with_sizes(at: &At<'_>, sizes: &[Size]) -> Option<Known> {
    let dims = sizes.iter().map(|size| u64::try_from(size.known()?).ok()).collect::<Option<_>>()?;
    input(at, 0)?.with_dims(dims)
}

pub(super) fn reshape(at: &At<'_>) -> Folded {
    Ok(with_sizes(at, &layout::reshape_sizes(at)?))
}

pub(super) fn squeeze(at: &At<'_>) -> Folded {
    Ok(with_sizes(at, &layout::squeeze_sizes(at)?))
}

pub(super) fn unsqueeze(at: &At<'_>) -> Folded {
    Ok(with_sizes(at, &layout::unsqueeze_sizes(at)?))
}

pub(super) fn flatten(at: &At<'_>) -> Folded {
    Ok(with_sizes(at, &layout::flatten_sizes(at)?))
}

pub(super) fn transpose(at: &At<'_>) -> Folded {
    let perm = layout::permutation(at)?;
    Ok(input(at, 0).and_then(|x| evaluate_transpose(x, &perm)))
}

fn evaluate_transpose(x: &Known, perm: &[usize]) -> Option<Known> {
    let mut strides = vec![1usize; x.rank()];
    for axis in (1..x.rank()).rev() {
        strides[axis - 1] = strides[axis] * x.dims[axis] as usize;
    }
    let mut positions = vec![0usize];
    for &axis in perm {
        let coordinates = 0..x.dims[axis] as usize;
        positions = positions
            .iter()
            .flat_map(|&outer| coordinates.clone().map(move |i| (outer, i)))
            .map(|(outer, i)| outer + i * strides[axis])
            .collect();
    }
    x.pick(&positions, perm.iter().map(|&axis| x.dims[axis]).collect())
}

pub(super) fn tile(at: &At<'_>) -> Folded {
    let (Some(x), Some(repeats)) = (input(at, 0), input(at, 1)) else { return Ok(None) };
    Ok(evaluate_tile(x, repeats))
}

fn evaluate_tile(x: &Known, repeats: &Known) -> Option<Known> {
    let repeats: Option<Vec<u64>> =
        repeats.sizes()?.iter().map(|size| u64::try_from(size.known()?).ok()).collect();
    let repeats = repeats.filter(|repeats| repeats.len() == x.rank())?;
    // Each axis becomes two: the repeats, which the elements are broadcast along, and its own.
    let interleave = |first: &dyn Fn(usize) -> u64| -> Vec<u64> {
        (0..x.rank()).flat_map(|axis| [first(axis), x.dims[axis]]).collect()
    };
    let dims = x.dims.iter().zip(&repeats).map(|(&size, &times)| size.checked_mul(times));
    let interleaved = x.with_dims(interleave(&|_| 1))?;
    interleaved.broadcast(&interleave(&|axis| repeats[axis]))?.with_dims(dims.collect::<Option<_>>()?)
}

pub(super) fn expand(at: &At<'_>) -> Folded {
    let sizes = layout::expand_sizes(at)?;
    let dims: Option<Vec<u64>> = sizes.iter().map(|size| u64::try_from(size.known()?).ok()).collect();
    Ok(dims.and_then(|dims| input(at, 0)?.broadcast(&dims)))
}

/// One of two values at each index along a new axis, the other elsewhere.
pub(super) fn one_hot(at: &At<'_>) -> Folded {
    let (Some(index), Some(depth), Some(values)) = (input(at, 0), input(at, 1), input(at, 2)) else {
        return Ok(None);
    };
    let axis = at.axis(at.int_or("axis", -1)?, index.rank() + 1)?;
    Ok(evaluate_one_hot(index, depth, values, axis))
}

/// O(elements).
fn evaluate_one_hot(index: &Known, depth: &Known, values: &Known, axis: usize) -> Option<Known> {
    let [depth] = whole_numbers(depth)?[..] else { return None };
    let index_of: Vec<i64> = whole_numbers(index)?;
    let mut dims = index.dims.clone();
    dims.insert(axis, u64::try_from(depth).ok()?);
    known::elements(&dims).filter(|&count| count <= LIMIT)?;
    let inner: usize = index.dims[axis..].iter().product::<u64>() as usize;
    let mut positions = Vec::new();
    for outer in index_of.chunks(inner.max(1)) {
        for place in 0..depth {
            let is_hot = |&at: &i64| at == place || at < 0 && at + depth == place;
            positions.extend(outer.iter().map(|at| usize::from(is_hot(at))));
        }
    }
    values.pick(&positions, dims)
}

/// Elements that are whole numbers; none where one is a size that is no number.
fn whole_numbers(known: &Known) -> Option<Vec<i64>> {
    match &known.items {
        Items::Sizes(sizes) => sizes.iter().map(Size::known).collect(),
        Items::Reals(reals) => Some(reals.iter().map(|&real| real as i64).collect()),
    }
}

/// A vector with some of its elements replaced.
pub(super) fn scatter_nd(at: &At<'_>) -> Folded {
    let (Some(data), Some(indices), Some(updates)) = (input(at, 0), input(at, 1), input(at, 2)) else {
        return Ok(None);
    };
    if data.rank() != 1 || indices.dims.last() != Some(&1) || at.text("reduction", "none")? != "none" {
        return Ok(None);
    }
    Ok(ranked::replaced(data, indices, updates))
}

/// Running sums of a vector.
pub(super) fn cum_sum(at: &At<'_>) -> Folded {
    let Some(x) = input(at, 0) else { return Ok(None) };
    if x.rank() != 1 || at.flag("exclusive", false)? || at.flag("reverse", false)? {
        return Ok(None);
    }
    let Some((first, others)) = x.sizes().and_then(<[Size]>::split_first) else { return Ok(None) };
    let mut sums = vec![first.clone()];
    for next in others {
        let Some(sum) = size(Binary::Add, x.dtype, &sums[sums.len() - 1], next) else { return Ok(None) };
        sums.push(sum);
    }
    Ok(fits(Known { dtype: x.dtype, dims: x.dims.clone(), items: Items::Sizes(sums) }))
}

/// Reductions of vectors to one element.
pub(super) fn reduce(at: &At<'_>, kind: ReduceKind) -> Folded {
    let Some(x) = input(at, 0) else { return Ok(None) };
    let plan = reduce::plan(at)?;
    Ok(evaluate_reduce(kind, x, &plan))
}

/// O(elements).
fn evaluate_reduce(kind: ReduceKind, x: &Known, plan: &reduce::Plan) -> Option<Known> {
    let is_reduced = |axis: usize| plan.axes.contains(&(axis as u32));
    let kept: Vec<u64> =
        x.dims.iter().enumerate().map(|(axis, &size)| if is_reduced(axis) { 1 } else { size }).collect();
    let count: u64 = kept.iter().product();
    if x.len() == 0 || count == 0 {
        return None;
    }
    // Of each element, the place of the result that it goes into.
    let place = |element: usize| -> usize {
        let (mut rest, mut place, mut stride) = (element as u64, 0, 1);
        for (&size, &kept) in x.dims.iter().zip(&kept).rev() {
            place += (rest % size).min(kept - 1) * stride;
            rest /= size;
            stride *= kept;
        }
        place as usize
    };
    let binary = match kind {
        ReduceKind::Sum | ReduceKind::Mean => Binary::Add,
        ReduceKind::Prod => Binary::Mul,
        ReduceKind::Max => Binary::Max,
        ReduceKind::Min => Binary::Min,
        ReduceKind::SumSquares => return None,
    };
    let items = match &x.items {
        // A mean of integers is rounded, which no size is.
        Items::Sizes(_) if kind == ReduceKind::Mean => return None,
        Items::Sizes(sizes) => {
            Items::Sizes(reduced(sizes, count, place, |left, right| size(binary, x.dtype, left, right))?)
        }
        Items::Reals(reals) => {
            let step = |left: &f64, right: &f64| Some(round(x.dtype, real(binary, *left, *right)?));
            let mut totals = reduced(reals, count, place, step)?;
            if kind == ReduceKind::Mean {
                let each = x.len() as f64 / count as f64;
                totals.iter_mut().for_each(|total| *total = round(x.dtype, *total / each));
            }
            Items::Reals(totals)
        }
    };
    let left = kept.iter().enumerate().filter(|&(axis, _)| plan.keep || !is_reduced(axis));
    fits(Known { dtype: x.dtype, dims: left.map(|(_, &size)| size).collect(), items })
}

/// Elements that go into the same place are joined, in order.
fn reduced<T: Clone>(
    items: &[T],
    count: u64,
    place: impl Fn(usize) -> usize,
    join: impl Fn(&T, &T) -> Option<T>,
) -> Option<Vec<T>> {
    let mut totals: Vec<Option<T>> = vec![None; count as usize];
    for (element, item) in items.iter().enumerate() {
        let total = &mut totals[place(element)];
        *total = Some(match total.take() {
            Some(before) => join(&before, item)?,
            None => item.clone(),
        });
    }
    totals.into_iter().collect()
}
