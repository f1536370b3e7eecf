//! Functions that repeat, divide, order or look up elements.

use serde_json::Value;

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, expand, flat, float, list, reshape, tensor_of, value};
use super::statistics::{length, power_norm};
use super::tools::{cut_at, reduced};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, Pad, PadMode, Real, ReduceKind, Shape, Size, TopK, ValueId};

/// More elements are not written down one by one.
const MOST_PLACES: i64 = 1 << 24;

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Arrange {
    Same,
    Pad {
        widths: Widths,
        around: Around,
        value: f64,
    },
    CumSum(Option<i64>, Option<DType>),
    /// Each element so many times; of all elements in a row without an axis.
    Repeat {
        times: i64,
        axis: Option<i64>,
    },
    Tile(Vec<i64>),
    /// At these positions, or into so many.
    Split {
        at: Vec<i64>,
        parts: Option<i64>,
        sizes: bool,
        axis: i64,
    },
    /// Into all parts of an axis, whose number may be said.
    Unstack {
        axis: i64,
        count: Option<i64>,
    },
    TopK(i64),
    Sort(i64),
    Take(Option<i64>),
    Roll {
        shifts: Vec<i64>,
        axes: Vec<i64>,
    },
    OneHot {
        classes: i64,
        axis: i64,
        dtype: Option<DType>,
    },
    /// As many of one number.
    Filled(f64, Option<DType>),
    /// Whether any is true, or all are.
    Truth {
        all: bool,
        axes: Option<Vec<i64>>,
        keep: bool,
    },
    /// Divided by the root of the sum of squares, or by `least` where that is more.
    Unit {
        axes: Vec<i64>,
        least: f64,
    },
    /// The same with the norm of another order.
    UnitOf {
        order: f64,
        axis: i64,
        least: f64,
    },
    MoveAxis {
        from: Vec<i64>,
        to: Vec<i64>,
    },
    SquaredDifference,
    Sum,
    /// The product of matrices, each transposed or not.
    Product {
        left: bool,
        right: bool,
    },
    /// Added along the last axis.
    Bias,
}

impl Arrange {
    /// The function of a class of `keras.ops`; none where it is not one of these.
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let axis = |default: i64| -> Result<i64> { Ok(config.int("axis")?.unwrap_or(default)) };
        let keep = || config.flag("keepdims", false);
        Ok(Some(match class {
            "Identity" | "Copy" | "Conj" | "Conjugate" | "Real" => Self::Same,
            "Pad" => Self::Pad {
                widths: Widths::read(config)?,
                around: Around::read(config)?,
                value: config.real("constant_values")?.unwrap_or(0.0),
            },
            "Cumsum" => Self::CumSum(config.int("axis")?, super::stated_type(config)?),
            "Repeat" => Self::Repeat { times: config.positive("repeats")?, axis: config.int("axis")? },
            "Tile" => Self::Tile(config.int_or_ints("repeats")?.ok_or_else(|| config.missing("repeats"))?),
            "Split" => {
                let key = "indices_or_sections";
                let parts = config.get(key).filter(|value| value.is_number()).map(|_| config.positive(key));
                let at = if parts.is_some() { Vec::new() } else { config.ints(key)?.unwrap_or_default() };
                let sizes = config.flag("sizes", false)?;
                Self::Split { at, parts: parts.transpose()?, sizes, axis: axis(0)? }
            }
            "Unstack" => Self::Unstack { axis: axis(0)?, count: config.int("num")? },
            "TopK" => {
                // Those of either order are sorted here.
                config.ignore(&["sorted"]);
                Self::TopK(config.positive("k")?)
            }
            "Sort" => Self::Sort(axis(-1)?),
            "Take" => Self::Take(config.int("axis")?),
            "Roll" => Self::Roll {
                shifts: config.int_or_ints("shift")?.ok_or_else(|| config.missing("shift"))?,
                axes: config.int_or_ints("axis")?.unwrap_or_default(),
            },
            "OneHot" => Self::OneHot {
                classes: config.positive("num_classes")?,
                axis: axis(-1)?,
                dtype: super::stated_type(config)?,
            },
            "ZerosLike" => Self::Filled(0.0, super::stated_type(config)?),
            "OnesLike" => Self::Filled(1.0, super::stated_type(config)?),
            "Any" | "All" => {
                Self::Truth { all: class == "All", axes: config.int_or_ints("axis")?, keep: keep()? }
            }
            "L2Normalize" => Self::Unit {
                axes: config.int_or_ints("axis")?.unwrap_or_else(|| vec![-1]),
                least: config.real_or("epsilon", 1e-12)?.sqrt(),
            },
            "Normalize" => match config.real_or("order", 2.0)? {
                2.0 => Self::Unit { axes: vec![axis(-1)?], least: config.real_or("epsilon", 1e-7)? },
                order => Self::UnitOf { order, axis: axis(-1)?, least: config.real_or("epsilon", 1e-7)? },
            },
            "Moveaxis" => Self::MoveAxis {
                from: config.int_or_ints("source")?.ok_or_else(|| config.missing("source"))?,
                to: config.int_or_ints("destination")?.ok_or_else(|| config.missing("destination"))?,
            },
            "SquaredDifference" => Self::SquaredDifference,
            "AddN" => Self::Sum,
            "Product" => Self::Product {
                left: config.flag("transpose_a", false)? || config.flag("adjoint_a", false)?,
                right: config.flag("transpose_b", false)? || config.flag("adjoint_b", false)?,
            },
            "BiasAdd" => Self::Bias,
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<Vec<ValueId>> {
        match self {
            Self::Split { at, parts, sizes, axis } => {
                split(site, value(site, operands, 0)?, (at, *parts, *sizes), *axis)
            }
            Self::Unstack { axis, count } => unstack(site, value(site, operands, 0)?, *axis, *count),
            Self::TopK(k) => largest(site, value(site, operands, 0)?, *k),
            _ => Ok(vec![self.one(site, operands)?]),
        }
    }

    /// What a function of one result makes.
    fn one(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        let first = |site: &Site<'_>| value(site, operands, 0);
        match self {
            Self::Split { .. } | Self::Unstack { .. } | Self::TopK(_) => {
                Err(site.unsupported("one result of several"))
            }
            Self::Same => first(site),
            Self::Pad { widths, around, value: number } => padded(site, operands, widths, around, *number),
            Self::CumSum(axis, dtype) => {
                let x = super::numeric::counted(site, first(site)?, *dtype)?;
                let x = if axis.is_none() { flat(site, x)? } else { x };
                let axis = site.axis(x, axis.unwrap_or(0))? as u32;
                site.apply(Op::CumSum { axis, exclusive: false, reverse: false }, &[x])
            }
            Self::Repeat { times, axis } => repeat(site, first(site)?, *times, *axis),
            Self::Tile(times) => tile(site, first(site)?, times),
            Self::Sort(axis) => sorted(site, first(site)?, *axis),
            Self::Take(axis) => take(site, operands, *axis),
            Self::Roll { shifts, axes } => roll(site, first(site)?, shifts, axes),
            Self::OneHot { classes, axis, dtype } => {
                let marks = one_hot(site, first(site)?, *classes, *axis)?;
                site.convert(marks, dtype.unwrap_or(DType::F32))
            }
            Self::Filled(number, dtype) => {
                let x = first(site)?;
                let x = site.convert(x, dtype.unwrap_or(site.dtype(x)))?;
                let number = site.scalar_like(*number, x)?;
                site.apply(Op::Broadcast { shape: Shape::new(site.sizes(x)) }, &[number])
            }
            Self::Truth { all, axes, keep } => {
                let kind = if *all { ReduceKind::Min } else { ReduceKind::Max };
                truth(site, first(site)?, kind, axes.as_deref(), *keep)
            }
            Self::Unit { axes, least } => {
                let x = float(site, first(site)?)?;
                let norm = length(site, x, Some(axes), true)?;
                divided_by_norm(site, x, norm, *least)
            }
            Self::UnitOf { order, axis, least } => {
                let x = float(site, first(site)?)?;
                let axis = site.axis(x, *axis)?;
                let norm = power_norm(site, x, *order, axis, true)?;
                divided_by_norm(site, x, norm, *least)
            }
            Self::MoveAxis { from, to } => move_axis(site, first(site)?, from, to),
            Self::SquaredDifference => {
                let (x, y) = (first(site)?, value(site, operands, 1)?);
                let apart = site.binary(Binary::Sub, x, y)?;
                site.binary(Binary::Mul, apart, apart)
            }
            Self::Sum => {
                let values = list(site, operands)?;
                let (first, others) = (values[0], &values[1..]);
                others.iter().try_fold(first, |sum, &other| site.binary(Binary::Add, sum, other))
            }
            Self::Product { left, right } => {
                let (x, y) = (first(site)?, value(site, operands, 1)?);
                if site.rank(x) < 2 || site.rank(y) < 2 {
                    return Err(site.unsupported("a product with a vector"));
                }
                let (transpose_left, transpose_right) = (*left, *right);
                site.apply(
                    Op::MatMul { transpose_left, transpose_right, wide: false, rounds: false },
                    &[x, y],
                )
            }
            Self::Bias => {
                let (x, y) = (first(site)?, tensor(site, operands, 1)?);
                site.binary(Binary::Add, x, y)
            }
        }
    }
}

/// The largest of each row, and where they are.
fn largest(site: &mut Site<'_>, x: ValueId, k: i64) -> Result<Vec<ValueId>> {
    let axis = site.axis(x, -1)? as u32;
    let found = site.push(Op::TopK(TopK { axis, k, largest: true }), &[x])?;
    Ok(vec![found[0], site.convert(found[1], DType::I32)?])
}

/// In ascending order along an axis.
fn sorted(site: &mut Site<'_>, x: ValueId, axis: i64) -> Result<ValueId> {
    let axis = site.axis(x, axis)?;
    let k = site.known(x, axis)?;
    Ok(site.push(Op::TopK(TopK { axis: axis as u32, k, largest: false }), &[x])?[0])
}

/// What is not zero counts as 1.
fn truth(
    site: &mut Site<'_>,
    x: ValueId,
    kind: ReduceKind,
    axes: Option<&[i64]>,
    keep: bool,
) -> Result<ValueId> {
    let x = site.convert(x, DType::Bool)?;
    let number = site.convert(x, DType::F32)?;
    let value = reduced(site, kind, number, axes, keep)?;
    site.convert(value, DType::Bool)
}

/// By a norm, or by `least` where that is more.
fn divided_by_norm(site: &mut Site<'_>, x: ValueId, norm: ValueId, least: f64) -> Result<ValueId> {
    let norm = site.binary_scalar(Binary::Max, norm, least)?;
    site.binary(Binary::Div, x, norm)
}

/// A second operand is what constant padding fills with.
fn padded(
    site: &mut Site<'_>,
    operands: &[Operand],
    widths: &Widths,
    around: &Around,
    number: f64,
) -> Result<ValueId> {
    let x = value(site, operands, 0)?;
    let widths = widths.of(site, x)?;
    match (around, operands.get(1)) {
        (Around::Mirrored, _) => mirrored(site, x, &widths),
        (Around::Mode(PadMode::Constant), Some(_)) => {
            let number = tensor_of(site, operands, 1)?;
            filled(site, x, &widths, number)
        }
        (Around::Mode(mode), _) => {
            let (before, after) = widths.into_iter().unzip();
            let pad = Pad { before, after, mode: *mode, value: Real(number) };
            site.apply(Op::Pad(Box::new(pad)), &[x])
        }
    }
}

/// `(before, after)` of each axis: a number for all ends, a pair for all axes, or one for each.
#[derive(Debug)]
pub(in super::super) enum Widths {
    All(i64, i64),
    Each(Vec<(i64, i64)>),
}

impl Widths {
    fn read(config: Config<'_>) -> Result<Self> {
        let key = "pad_width";
        let widths = config.get(key).ok_or_else(|| config.missing(key))?;
        let pair = |item: &Value| match item.as_array().map(Vec::as_slice) {
            Some([before, after]) => Some((before.as_i64()?, after.as_i64()?)),
            _ => None,
        };
        let found = match widths {
            Value::Array(items) => match (pair(widths), items.as_slice()) {
                (Some((before, after)), _) => Some(Self::All(before, after)),
                (None, [one]) => pair(one).map(|(before, after)| Self::All(before, after)),
                _ => items.iter().map(pair).collect::<Option<_>>().map(Self::Each),
            },
            one => one.as_i64().map(|width| Self::All(width, width)),
        };
        let is_width = |(before, after): &(i64, i64)| *before >= 0 && *after >= 0;
        let found = found.filter(|found| match found {
            Self::All(before, after) => is_width(&(*before, *after)),
            Self::Each(pairs) => pairs.iter().all(is_width),
        });
        found.ok_or_else(|| config.fault(key, "expected two numbers for each axis"))
    }

    fn of(&self, site: &Site<'_>, x: ValueId) -> Result<Vec<(i64, i64)>> {
        match self {
            Self::All(before, after) => Ok(vec![(*before, *after); site.rank(x)]),
            Self::Each(pairs) if pairs.len() == site.rank(x) => Ok(pairs.clone()),
            Self::Each(pairs) => {
                Err(site.error(&format!("{} widths for {} axes", pairs.len(), site.rank(x))))
            }
        }
    }
}

/// What is put around a tensor.
#[derive(Debug)]
pub(in super::super) enum Around {
    Mode(PadMode),
    /// The elements at the end in reverse, the last one first.
    Mirrored,
}

impl Around {
    fn read(config: Config<'_>) -> Result<Self> {
        Ok(match config.text("mode")?.unwrap_or("constant").to_lowercase().as_str() {
            "constant" => Self::Mode(PadMode::Constant),
            "reflect" => Self::Mode(PadMode::Reflect),
            "edge" => Self::Mode(PadMode::Edge),
            "symmetric" => Self::Mirrored,
            other => return Err(config.fault("mode", format!("{other} is not supported yet"))),
        })
    }
}

fn mirrored(site: &mut Site<'_>, mut x: ValueId, widths: &[(i64, i64)]) -> Result<ValueId> {
    for (axis, &(before, after)) in widths.iter().enumerate() {
        if (before, after) == (0, 0) {
            continue;
        }
        let size = site.known(x, axis)?;
        if before > size || after > size {
            return Err(site.error(&format!("{} more than there are on axis {axis}", before.max(after))));
        }
        let (first, last) = (site.slice(x, axis, 0, before)?, site.slice(x, axis, size - after, after)?);
        let (first, last) = (site.reverse(first, axis)?, site.reverse(last, axis)?);
        x = site.concat(axis, &[first, x, last])?;
    }
    Ok(x)
}

/// With a number around it that is computed.
fn filled(site: &mut Site<'_>, x: ValueId, widths: &[(i64, i64)], number: ValueId) -> Result<ValueId> {
    let number = site.convert(number, site.dtype(x))?;
    let (before, after): (Vec<i64>, Vec<i64>) = widths.iter().copied().unzip();
    let pad = Op::Pad(Box::new(Pad { before, after, mode: PadMode::Constant, value: Real(0.0) }));
    let one = site.positions(&[1])?;
    let ones = site.apply(Op::Broadcast { shape: Shape::new(site.sizes(x)) }, &[one])?;
    let inside = site.apply(pad.clone(), &[ones])?;
    let inside = site.convert(inside, DType::Bool)?;
    let padded = site.apply(pad, &[x])?;
    site.apply(Op::Select, &[inside, padded, number])
}

/// Operand `i`: a tensor, or numbers in the call as an f32 constant.
fn tensor(site: &mut Site<'_>, operands: &[Operand], i: usize) -> Result<ValueId> {
    let Some(Operand::Constant(constant)) = operands.get(i) else { return value(site, operands, i) };
    let numbers: Option<Vec<f64>> =
        constant.as_array().and_then(|items| items.iter().map(Value::as_f64).collect());
    match numbers {
        Some(numbers) => site.vector(&numbers),
        None => Err(site.unsupported("an argument that is neither a tensor nor a list of numbers")),
    }
}

fn repeat(site: &mut Site<'_>, x: ValueId, times: i64, axis: Option<i64>) -> Result<ValueId> {
    let x = if axis.is_none() { reshape(site, x, &[-1])? } else { x };
    let axis = site.axis(x, axis.unwrap_or(0))?;
    let mut sizes = site.sizes(x);
    let merged = sizes[axis].scale(times).ok_or_else(|| site.error("a size overflows"))?;
    let apart = expand(site, x, &[axis as i64 + 1])?;
    sizes.insert(axis + 1, Size::Known(times));
    let apart = site.apply(Op::Broadcast { shape: Shape::new(sizes.clone()) }, &[apart])?;
    sizes.remove(axis + 1);
    sizes[axis] = merged;
    site.reshape(apart, sizes)
}

fn tile(site: &mut Site<'_>, x: ValueId, times: &[i64]) -> Result<ValueId> {
    let missing = times.len().saturating_sub(site.rank(x));
    let mut x = expand(site, x, &(0..missing as i64).collect::<Vec<i64>>())?;
    let first = site.rank(x) - times.len();
    for (axis, &times) in (first..).zip(times) {
        if times == 1 {
            continue;
        }
        if times < 1 {
            return Err(site.unsupported(&format!("a repetition {times} times")));
        }
        let mut sizes = site.sizes(x);
        let merged = sizes[axis].scale(times).ok_or_else(|| site.error("a size overflows"))?;
        let apart = expand(site, x, &[axis as i64])?;
        sizes.insert(axis, Size::Known(times));
        let apart = site.apply(Op::Broadcast { shape: Shape::new(sizes.clone()) }, &[apart])?;
        sizes.remove(axis);
        sizes[axis] = merged;
        x = site.reshape(apart, sizes)?;
    }
    Ok(x)
}

fn split(
    site: &mut Site<'_>,
    x: ValueId,
    (at, parts, sizes): (&[i64], Option<i64>, bool),
    axis: i64,
) -> Result<Vec<ValueId>> {
    let axis = site.axis(x, axis)?;
    let size = site.known(x, axis)?;
    let mut ends: Vec<i64> = match parts {
        Some(parts) if size % parts == 0 && parts <= size => {
            (1..=parts).map(|part| part * (size / parts)).collect()
        }
        Some(parts) => {
            return Err(site.error(&format!("{size} elements cannot be divided into {parts} parts")));
        }
        None if sizes => at
            .iter()
            .scan(0i64, |end, &size| {
                *end = end.saturating_add(size);
                Some(*end)
            })
            .collect(),
        None => at.to_vec(),
    };
    if parts.is_none() && !sizes {
        ends.push(size);
    }
    cut_at(site, x, axis, &ends)
}

fn unstack(site: &mut Site<'_>, x: ValueId, axis: i64, count: Option<i64>) -> Result<Vec<ValueId>> {
    let axis = site.axis(x, axis)?;
    let size = site.known(x, axis)?;
    if count.is_some_and(|count| count != size) {
        return Err(site.error(&format!("has {size} parts, not as many as it says")));
    }
    if size > 4096 {
        return Err(site.unsupported(&format!("{size} results")));
    }
    let mut sizes = site.sizes(x);
    sizes.remove(axis);
    (0..size)
        .map(|at| {
            let part = site.slice(x, axis, at, 1)?;
            site.reshape(part, sizes.clone())
        })
        .collect()
}

fn take(site: &mut Site<'_>, operands: &[Operand], axis: Option<i64>) -> Result<ValueId> {
    let x = value(site, operands, 0)?;
    let x = if axis.is_none() { reshape(site, x, &[-1])? } else { x };
    let axis = site.axis(x, axis.unwrap_or(0))? as u32;
    let places = match operands.get(1) {
        Some(Operand::Constant(places)) => constants(site, places)?,
        _ => value(site, operands, 1)?,
    };
    let places = if site.dtype(places).is_integer() { places } else { site.convert(places, DType::I32)? };
    site.apply(Op::Gather { axis }, &[x, places])
}

/// Whole numbers in lists of lists.
fn constants(site: &mut Site<'_>, value: &Value) -> Result<ValueId> {
    fn collect(value: &Value, depth: usize, dims: &mut Vec<i64>, found: &mut Vec<i64>) -> Option<()> {
        match value {
            Value::Array(items) => {
                if dims.len() == depth {
                    dims.push(items.len() as i64);
                }
                (dims.get(depth) == Some(&(items.len() as i64))).then_some(())?;
                items.iter().try_for_each(|item| collect(item, depth + 1, dims, found))
            }
            number => {
                (depth == dims.len()).then_some(())?;
                found.push(number.as_i64()?);
                Some(())
            }
        }
    }
    // Keras 3 writes arrays as objects that hold their values.
    let value = value.get("config").and_then(|config| config.get("value")).unwrap_or(value);
    let (mut dims, mut found) = (Vec::new(), Vec::new());
    if collect(value, 0, &mut dims, &mut found).is_none() || found.len() as i64 > MOST_PLACES {
        return Err(site.unsupported("places that are neither a tensor nor whole numbers"));
    }
    let places = site.positions(&found)?;
    site.reshape(places, dims.into_iter().map(Size::Known).collect())
}

fn roll(site: &mut Site<'_>, mut x: ValueId, shifts: &[i64], axes: &[i64]) -> Result<ValueId> {
    if axes.is_empty() {
        // As one row.
        let sizes = site.sizes(x);
        let row = flat(site, x)?;
        let row = roll(site, row, shifts, &vec![0; shifts.len()])?;
        return site.reshape(row, sizes);
    }
    if shifts.len() != axes.len() {
        return Err(site.error("has other shifts than axes"));
    }
    for (&shift, &axis) in shifts.iter().zip(axes) {
        let axis = site.axis(x, axis)?;
        let size = site.known(x, axis)?.max(1);
        let shift = shift.rem_euclid(size);
        if shift == 0 {
            continue;
        }
        let back = site.slice(x, axis, size - shift, shift)?;
        let front = site.slice(x, axis, 0, size - shift)?;
        x = site.concat(axis, &[back, front])?;
    }
    Ok(x)
}

/// Numbers of classes as vectors that are 1 at one place.
pub(super) fn one_hot(site: &mut Site<'_>, x: ValueId, classes: i64, axis: i64) -> Result<ValueId> {
    let x = site.convert(x, DType::I64)?;
    let column = expand(site, x, &[axis])?;
    let axis = site.axis(column, axis)?;
    let mut sizes = vec![Size::Known(1); site.rank(column)];
    sizes[axis] = Size::Known(classes);
    let class = site.iota(&sizes, axis as u32);
    let is = site.apply(Op::Compare(Compare::Eq), &[column, class])?;
    site.convert(is, DType::F32)
}

fn move_axis(site: &mut Site<'_>, x: ValueId, from: &[i64], to: &[i64]) -> Result<ValueId> {
    let rank = site.rank(x);
    let counted = |site: &Site<'_>, axes: &[i64]| {
        axes.iter().map(|&axis| site.axis(x, axis)).collect::<Result<Vec<usize>>>()
    };
    let (from, to) = (counted(site, from)?, counted(site, to)?);
    let mut rest = (0..rank).filter(|axis| !from.contains(axis));
    let place = |axis: usize| match to.iter().position(|&at| at == axis) {
        Some(index) => from.get(index).copied(),
        None => rest.next(),
    };
    let perm: Option<Vec<usize>> = (0..rank).map(place).collect();
    let perm = perm.filter(|perm| (0..rank).all(|axis| perm.contains(&axis)));
    let perm = perm.ok_or_else(|| site.error("axes that do not fit one another"))?;
    site.transpose(x, &perm)
}
