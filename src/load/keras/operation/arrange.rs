//! Functions that repeat, divide, order or look up elements.

use serde_json::Value;

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, expand, float, list, reshape, value};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, Pad, PadMode, Real, ReduceKind, Shape, Size, TopK, ValueId};

/// More elements are not written down one by one.
const MOST_PLACES: i64 = 1 << 24;

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Arrange {
    Same,
    Pad {
        widths: Vec<(i64, i64)>,
        mode: PadMode,
        value: f64,
    },
    CumSum(i64, Option<DType>),
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
    Unstack(i64),
    TopK(i64),
    Sort {
        axis: i64,
        places: bool,
    },
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
    /// The root of the sum of squares.
    Norm {
        axes: Option<Vec<i64>>,
        keep: bool,
    },
    /// Divided by that, or by `least` where that is more.
    Unit {
        axes: Vec<i64>,
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
                widths: widths(config)?,
                mode: match config.text("mode")?.unwrap_or("constant").to_lowercase().as_str() {
                    "constant" => PadMode::Constant,
                    "reflect" => PadMode::Reflect,
                    "edge" => PadMode::Edge,
                    other => return Err(config.fault("mode", format!("{other} is not supported yet"))),
                },
                value: config.real("constant_values")?.unwrap_or(0.0),
            },
            "Cumsum" => match config.int("axis")? {
                Some(axis) => Self::CumSum(axis, super::stated_type(config)?),
                None => return Ok(None),
            },
            "Repeat" => Self::Repeat { times: config.positive("repeats")?, axis: config.int("axis")? },
            "Tile" => Self::Tile(config.int_or_ints("repeats")?.ok_or_else(|| config.missing("repeats"))?),
            "Split" => {
                let key = "indices_or_sections";
                let parts = config.get(key).filter(|value| value.is_number()).map(|_| config.positive(key));
                let at = if parts.is_some() { Vec::new() } else { config.ints(key)?.unwrap_or_default() };
                let sizes = config.flag("sizes", false)?;
                Self::Split { at, parts: parts.transpose()?, sizes, axis: axis(0)? }
            }
            "Unstack" => Self::Unstack(axis(0)?),
            "TopK" => {
                // Those of either order are sorted here.
                config.ignore(&["sorted"]);
                Self::TopK(config.positive("k")?)
            }
            "Sort" | "Argsort" => Self::Sort { axis: axis(-1)?, places: class == "Argsort" },
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
            "Norm" => match config.get("ord") {
                Some(order) if order.as_f64() != Some(2.0) && order != "euclidean" => return Ok(None),
                _ => Self::Norm { axes: config.int_or_ints("axis")?, keep: keep()? },
            },
            "L2Normalize" => Self::Unit {
                axes: config.int_or_ints("axis")?.unwrap_or_else(|| vec![-1]),
                least: config.real_or("epsilon", 1e-12)?.sqrt(),
            },
            "Normalize" => match config.real_or("order", 2.0)? {
                2.0 => Self::Unit { axes: vec![axis(-1)?], least: config.real_or("epsilon", 1e-7)? },
                _ => return Ok(None),
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
        let first = |site: &Site<'_>| value(site, operands, 0);
        let one = match self {
            Self::Same => first(site)?,
            Self::Pad { widths, mode, value: number } => {
                let x = first(site)?;
                if widths.len() != site.rank(x) {
                    return Err(site.error(&format!("{} widths for {} axes", widths.len(), site.rank(x))));
                }
                let (before, after) = widths.iter().copied().unzip();
                site.apply(Op::Pad(Box::new(Pad { before, after, mode: *mode, value: Real(*number) })), &[x])?
            }
            Self::CumSum(axis, dtype) => {
                let x = super::numeric::counted(site, first(site)?, *dtype)?;
                let axis = site.axis(x, *axis)? as u32;
                site.apply(Op::CumSum { axis, exclusive: false, reverse: false }, &[x])?
            }
            Self::Repeat { times, axis } => repeat(site, first(site)?, *times, *axis)?,
            Self::Tile(times) => tile(site, first(site)?, times)?,
            Self::Split { at, parts, sizes, axis } => {
                return split(site, first(site)?, (at, *parts, *sizes), *axis);
            }
            Self::Unstack(axis) => return unstack(site, first(site)?, *axis),
            Self::TopK(k) => {
                let x = first(site)?;
                let axis = site.axis(x, -1)? as u32;
                return site.push(Op::TopK(TopK { axis, k: *k, largest: true }), &[x]);
            }
            Self::Sort { axis, places } => {
                let x = first(site)?;
                let axis = site.axis(x, *axis)?;
                let k = site.known(x, axis)?;
                let results = site.push(Op::TopK(TopK { axis: axis as u32, k, largest: false }), &[x])?;
                results[usize::from(*places)]
            }
            Self::Take(axis) => take(site, operands, *axis)?,
            Self::Roll { shifts, axes } => roll(site, first(site)?, shifts, axes)?,
            Self::OneHot { classes, axis, dtype } => {
                let marks = one_hot(site, first(site)?, *classes, *axis)?;
                site.convert(marks, dtype.unwrap_or(DType::F32))?
            }
            Self::Filled(number, dtype) => {
                let x = first(site)?;
                let x = site.convert(x, dtype.unwrap_or(site.dtype(x)))?;
                let number = site.scalar_like(*number, x)?;
                site.apply(Op::Broadcast { shape: Shape::new(site.sizes(x)) }, &[number])?
            }
            Self::Truth { all, axes, keep } => {
                let x = site.convert(first(site)?, DType::Bool)?;
                let number = site.convert(x, DType::F32)?;
                let kind = if *all { ReduceKind::Min } else { ReduceKind::Max };
                let value = reduced(site, kind, number, axes.as_deref(), *keep)?;
                site.convert(value, DType::Bool)?
            }
            Self::Norm { axes, keep } => {
                let x = float(site, first(site)?)?;
                norm(site, x, axes.as_deref(), *keep)?
            }
            Self::Unit { axes, least } => {
                let x = float(site, first(site)?)?;
                let norm = norm(site, x, Some(axes), true)?;
                let norm = site.binary_scalar(Binary::Max, norm, *least)?;
                site.binary(Binary::Div, x, norm)?
            }
            Self::MoveAxis { from, to } => move_axis(site, first(site)?, from, to)?,
            Self::SquaredDifference => {
                let (x, y) = (first(site)?, value(site, operands, 1)?);
                let apart = site.binary(Binary::Sub, x, y)?;
                site.binary(Binary::Mul, apart, apart)?
            }
            Self::Sum => {
                let values = list(site, operands)?;
                let (first, others) = (values[0], &values[1..]);
                others.iter().try_fold(first, |sum, &other| site.binary(Binary::Add, sum, other))?
            }
            Self::Product { left, right } => {
                let (x, y) = (first(site)?, value(site, operands, 1)?);
                if site.rank(x) < 2 || site.rank(y) < 2 {
                    return Err(site.unsupported("a product with a vector"));
                }
                site.apply(
                    Op::MatMul { transpose_left: *left, transpose_right: *right, wide: false, rounds: false },
                    &[x, y],
                )?
            }
            Self::Bias => {
                let (x, y) = (first(site)?, tensor(site, operands, 1)?);
                site.binary(Binary::Add, x, y)?
            }
        };
        Ok(vec![one])
    }
}

/// `(before, after)` of each axis.
fn widths(config: Config<'_>) -> Result<Vec<(i64, i64)>> {
    let key = "pad_width";
    let items = config.get(key).and_then(Value::as_array).ok_or_else(|| config.missing(key))?;
    let pair = |item: &Value| match item.as_array().map(Vec::as_slice) {
        Some([before, after]) => Some((before.as_i64()?, after.as_i64()?)),
        _ => None,
    };
    let pairs: Option<Vec<(i64, i64)>> = items.iter().map(pair).collect();
    pairs
        .filter(|pairs| pairs.iter().all(|(before, after)| *before >= 0 && *after >= 0))
        .ok_or_else(|| config.fault(key, "expected two numbers for each axis"))
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

fn reduced(
    site: &mut Site<'_>,
    kind: ReduceKind,
    x: ValueId,
    axes: Option<&[i64]>,
    keep: bool,
) -> Result<ValueId> {
    let all: Vec<i64> = (0..site.rank(x) as i64).collect();
    let axes = axes.unwrap_or(&all).iter().map(|&axis| Ok(site.axis(x, axis)? as u32));
    let mut axes: Vec<u32> = axes.collect::<Result<_>>()?;
    axes.sort_unstable();
    axes.dedup();
    site.apply(Op::Reduce { kind, axes, keep }, &[x])
}

fn norm(site: &mut Site<'_>, x: ValueId, axes: Option<&[i64]>, keep: bool) -> Result<ValueId> {
    let squares = site.binary(Binary::Mul, x, x)?;
    let sum = reduced(site, ReduceKind::Sum, squares, axes, keep)?;
    site.unary(crate::ir::Unary::Sqrt, sum)
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
    let mut start = 0;
    let mut results = Vec::new();
    for end in ends {
        if end < start || end > size {
            return Err(site.error(&format!("a part from {start} to {end} of {size} elements")));
        }
        results.push(site.slice(x, axis, start, end - start)?);
        start = end;
    }
    Ok(results)
}

fn unstack(site: &mut Site<'_>, x: ValueId, axis: i64) -> Result<Vec<ValueId>> {
    let axis = site.axis(x, axis)?;
    let size = site.known(x, axis)?;
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
    if axes.is_empty() || shifts.len() != axes.len() {
        return Err(site.unsupported("a shift of all elements as one row"));
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
fn one_hot(site: &mut Site<'_>, x: ValueId, classes: i64, axis: i64) -> Result<ValueId> {
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
