//! Functions that reduce in several steps: moments, weighted means, distances between neighbours, and what passes over
//! elements that are no numbers.

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, float, tensor_of, value};
use super::ranked::is_absent;
use super::tools::{positions, reduced};
use crate::error::Result;
use crate::ir::{ArgReduce, Binary, Compare, DType, Op, ReduceKind, Size, Unary, ValueId};

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Statistics {
    Moments(Over),
    /// The mean with weights, which are an operand.
    Average(Option<Vec<i64>>),
    /// The greatest less the least.
    Span(Over),
    /// Each element less the one before, so many times.
    Differences {
        times: i64,
        axis: i64,
    },
    /// The area under lines from element to element.
    Trapezoid {
        step: f64,
        axis: i64,
    },
    /// Without what is no number.
    Numbers(Kind, Over),
    /// The place of an extreme among what is one.
    Place(ArgReduce, Over),
    /// Running sums or products.
    Running {
        product: bool,
        axis: Option<i64>,
        dtype: Option<DType>,
    },
    /// Correlations of rows.
    Correlations,
}

/// Axes of a reduction; all without any.
#[derive(Debug)]
pub(in super::super) struct Over {
    axes: Option<Vec<i64>>,
    keep: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Kind {
    Sum,
    Product,
    Greatest,
    Least,
    Mean,
    Variance,
    Deviation,
}

impl Statistics {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let over = || -> Result<Over> {
            Ok(Over { axes: config.int_or_ints("axis")?, keep: config.flag("keepdims", false)? })
        };
        let numbers = |kind: Kind| Ok::<_, crate::error::Error>(Self::Numbers(kind, over()?));
        Ok(Some(match class {
            "Moments" => {
                // Over the replicas of a distributed step, of which there is one here.
                config.ignore(&["synchronized"]);
                Self::Moments(Over {
                    axes: config.int_or_ints("axes")?,
                    keep: config.flag("keepdims", false)?,
                })
            }
            "Average" => Self::Average(config.int_or_ints("axis")?),
            "Ptp" => Self::Span(over()?),
            "Diff" => Self::Differences {
                times: config.int("n")?.unwrap_or(1),
                axis: config.int("axis")?.unwrap_or(-1),
            },
            "Trapezoid" => {
                Self::Trapezoid { step: config.real_or("dx", 1.0)?, axis: config.int("axis")?.unwrap_or(-1) }
            }
            "Nansum" => numbers(Kind::Sum)?,
            "Nanprod" => numbers(Kind::Product)?,
            "Nanmax" => numbers(Kind::Greatest)?,
            "Nanmin" => numbers(Kind::Least)?,
            "Nanmean" => numbers(Kind::Mean)?,
            "Nanvar" => numbers(Kind::Variance)?,
            "Nanstd" => numbers(Kind::Deviation)?,
            "Nanargmax" => Self::Place(ArgReduce::Max, over()?),
            "Nanargmin" => Self::Place(ArgReduce::Min, over()?),
            "Nancumsum" | "Nancumprod" => Self::Running {
                product: class == "Nancumprod",
                axis: config.int("axis")?,
                dtype: super::stated_type(config)?,
            },
            "Corrcoef" => Self::Correlations,
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<Vec<ValueId>> {
        let x = tensor_of(site, operands, 0)?;
        let one = match self {
            Self::Moments(over) => {
                let own = site.dtype(x);
                let x = float(site, x)?;
                let mean = reduced(site, ReduceKind::Mean, x, over.axes.as_deref(), over.keep)?;
                let variance = variance(site, x, over)?;
                // Of the type that is asked about.
                return Ok(vec![site.convert(mean, own)?, site.convert(variance, own)?]);
            }
            Self::Average(axes) => average(site, x, operands, axes.as_deref())?,
            Self::Span(over) => {
                let greatest = reduced(site, ReduceKind::Max, x, over.axes.as_deref(), over.keep)?;
                let least = reduced(site, ReduceKind::Min, x, over.axes.as_deref(), over.keep)?;
                site.binary(Binary::Sub, greatest, least)?
            }
            Self::Differences { times, axis } => differences(site, x, *times, *axis)?,
            Self::Trapezoid { step, axis } => trapezoid(site, x, *step, *axis)?,
            Self::Numbers(kind, over) => numbers(site, x, *kind, over)?,
            Self::Place(kind, over) => place(site, x, *kind, over)?,
            Self::Running { product, axis, dtype } => {
                let x = super::numeric::counted(site, x, *dtype)?;
                running(site, x, *product, *axis)?
            }
            Self::Correlations => correlations(site, x)?,
        };
        Ok(vec![one])
    }
}

fn variance(site: &mut Site<'_>, x: ValueId, over: &Over) -> Result<ValueId> {
    let axes = over.axes.as_deref();
    let mean = reduced(site, ReduceKind::Mean, x, axes, true)?;
    let apart = site.binary(Binary::Sub, x, mean)?;
    let squares = site.binary(Binary::Mul, apart, apart)?;
    reduced(site, ReduceKind::Mean, squares, axes, over.keep)
}

fn average(site: &mut Site<'_>, x: ValueId, operands: &[Operand], axes: Option<&[i64]>) -> Result<ValueId> {
    let x = float(site, x)?;
    if is_absent(operands, 1) {
        return reduced(site, ReduceKind::Mean, x, axes, false);
    }
    let weights = tensor_of(site, operands, 1)?;
    let mut weights = site.convert(weights, site.dtype(x))?;
    if site.rank(weights) == 1 && site.rank(x) > 1 {
        let Some(&[axis]) = axes.map(|axes| axes as &[i64]) else {
            return Err(site.error("a weight for each element of an axis, which is not named"));
        };
        let mut sizes = vec![Size::Known(1); site.rank(x)];
        sizes[site.axis(x, axis)?] = site.sizes(weights)[0].clone();
        weights = site.reshape(weights, sizes)?;
    }
    let weights = site.broadcast(weights, site.sizes(x))?;
    let product = site.binary(Binary::Mul, x, weights)?;
    let sum = reduced(site, ReduceKind::Sum, product, axes, false)?;
    let weight = reduced(site, ReduceKind::Sum, weights, axes, false)?;
    site.binary(Binary::Div, sum, weight)
}

fn differences(site: &mut Site<'_>, mut x: ValueId, times: i64, axis: i64) -> Result<ValueId> {
    let axis = site.axis(x, axis)?;
    let size = site.known(x, axis)?;
    if times < 0 || times > size {
        return Err(site.error(&format!("{times} differences of {size} elements")));
    }
    for taken in 0..times {
        let left = size - taken - 1;
        let (after, before) = (site.slice(x, axis, 1, left)?, site.slice(x, axis, 0, left)?);
        x = match site.dtype(x) {
            DType::Bool => site.binary(Binary::Xor, after, before)?,
            _ => site.binary(Binary::Sub, after, before)?,
        };
    }
    Ok(x)
}

fn trapezoid(site: &mut Site<'_>, x: ValueId, step: f64, axis: i64) -> Result<ValueId> {
    let x = float(site, x)?;
    let at = site.axis(x, axis)?;
    let size = site.known(x, at)?;
    if size < 1 {
        return Err(site.error("is taken of no elements"));
    }
    let (after, before) = (site.slice(x, at, 1, size - 1)?, site.slice(x, at, 0, size - 1)?);
    let sum = site.binary(Binary::Add, after, before)?;
    let area = site.binary_scalar(Binary::Mul, sum, step / 2.0)?;
    reduced(site, ReduceKind::Sum, area, Some(&[axis]), false)
}

/// Elements that are no numbers as one that is, and which they are.
fn replaced(site: &mut Site<'_>, x: ValueId, number: f64) -> Result<(ValueId, ValueId)> {
    let missing = site.unary(Unary::IsNan, x)?;
    let number = site.scalar_like(number, x)?;
    Ok((site.apply(Op::Select, &[missing, number, x])?, missing))
}

fn numbers(site: &mut Site<'_>, x: ValueId, kind: Kind, over: &Over) -> Result<ValueId> {
    let x = match (kind, site.dtype(x)) {
        (Kind::Mean | Kind::Variance | Kind::Deviation, _) => float(site, x)?,
        (Kind::Greatest | Kind::Least, DType::Bool) => {
            let number = site.convert(x, DType::I32)?;
            let found = numbers(site, number, kind, over)?;
            return site.convert(found, DType::Bool);
        }
        (_, DType::Bool) => site.convert(x, DType::I32)?,
        _ => x,
    };
    let axes = over.axes.as_deref();
    let (reduce, neutral) = match kind {
        Kind::Product => (ReduceKind::Prod, 1.0),
        Kind::Greatest => (ReduceKind::Max, f64::NEG_INFINITY),
        Kind::Least => (ReduceKind::Min, f64::INFINITY),
        Kind::Sum | Kind::Mean | Kind::Variance | Kind::Deviation => (ReduceKind::Sum, 0.0),
    };
    if !site.dtype(x).is_float() {
        return reduced(site, reduce, x, axes, over.keep);
    }
    let (filled, missing) = replaced(site, x, neutral)?;
    let found = reduced(site, reduce, filled, axes, over.keep)?;
    if matches!(kind, Kind::Sum | Kind::Product) {
        return Ok(found);
    }
    let present = site.unary(Unary::Not, missing)?;
    let present = site.convert(present, site.dtype(x))?;
    let count = reduced(site, ReduceKind::Sum, present, axes, over.keep)?;
    match kind {
        Kind::Greatest | Kind::Least => {
            let zero = site.scalar_like(0.0, count)?;
            let none = site.apply(Op::Compare(Compare::Eq), &[count, zero])?;
            let nan = site.scalar_like(f64::NAN, found)?;
            site.apply(Op::Select, &[none, nan, found])
        }
        Kind::Mean => site.binary(Binary::Div, found, count),
        _ => {
            let squares = squares_of_numbers(site, filled, present, axes)?;
            let sum = reduced(site, ReduceKind::Sum, squares, axes, over.keep)?;
            let variance = site.binary(Binary::Div, sum, count)?;
            if kind == Kind::Deviation { site.unary(Unary::Sqrt, variance) } else { Ok(variance) }
        }
    }
}

/// How far each number is from the mean of those that are there, squared; 0 for what is none.
fn squares_of_numbers(
    site: &mut Site<'_>,
    filled: ValueId,
    present: ValueId,
    axes: Option<&[i64]>,
) -> Result<ValueId> {
    let sum = reduced(site, ReduceKind::Sum, filled, axes, true)?;
    let count = reduced(site, ReduceKind::Sum, present, axes, true)?;
    let mean = site.binary(Binary::Div, sum, count)?;
    let apart = site.binary(Binary::Sub, filled, mean)?;
    let apart = site.binary(Binary::Mul, apart, present)?;
    site.binary(Binary::Mul, apart, apart)
}

/// The place of an extreme; -1 where all are no numbers.
fn place(site: &mut Site<'_>, x: ValueId, kind: ArgReduce, over: &Over) -> Result<ValueId> {
    let rank = site.rank(x);
    let x = if site.dtype(x) == DType::Bool { site.convert(x, DType::I32)? } else { x };
    let (x, axis) = match over.axes.as_deref() {
        Some(&[axis]) => (x, site.axis(x, axis)?),
        Some(_) => return Err(site.unsupported("places along several axes")),
        None => (super::lower::flat(site, x)?, 0),
    };
    let along = axis as u32;
    let least = if kind == ArgReduce::Max { f64::NEG_INFINITY } else { f64::INFINITY };
    let is_float = site.dtype(x).is_float();
    let (filled, missing) = if is_float { replaced(site, x, least)? } else { (x, x) };
    let op = Op::ArgReduce { kind, axis: along, keep: over.keep, last: false };
    let found = site.apply(op, &[filled])?;
    let mut found = site.convert(found, DType::I32)?;
    if is_float {
        let missing = site.convert(missing, DType::I32)?;
        let all = Op::Reduce { kind: ReduceKind::Min, axes: vec![along], keep: over.keep };
        let all = site.apply(all, &[missing])?;
        let all = site.convert(all, DType::Bool)?;
        let none = site.scalar_like(-1.0, found)?;
        found = site.apply(Op::Select, &[all, none, found])?;
    }
    if over.keep && over.axes.is_none() {
        return site.reshape(found, vec![Size::Known(1); rank]);
    }
    Ok(found)
}

fn running(site: &mut Site<'_>, x: ValueId, product: bool, axis: Option<i64>) -> Result<ValueId> {
    let x = if axis.is_none() { super::lower::flat(site, x)? } else { x };
    let axis = axis.unwrap_or(0);
    let filled = match site.dtype(x).is_float() {
        true => replaced(site, x, if product { 1.0 } else { 0.0 })?.0,
        false => x,
    };
    if product {
        return super::numeric::running_product(site, filled, axis);
    }
    let axis = site.axis(x, axis)? as u32;
    site.apply(Op::CumSum { axis, exclusive: false, reverse: false }, &[filled])
}

/// Covariances of the rows of a matrix, divided by the deviations of both, and cut off at 1.
fn correlations(site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
    site.expect_rank(x, 2)?;
    let x = float(site, x)?;
    let is_one = site.sizes(x)[0] == Size::Known(1);
    let mean = reduced(site, ReduceKind::Mean, x, Some(&[1]), true)?;
    let apart = site.binary(Binary::Sub, x, mean)?;
    let products = site.matmul(apart, apart, true)?;
    let squares = site.binary(Binary::Mul, apart, apart)?;
    let squares = reduced(site, ReduceKind::Sum, squares, Some(&[1]), true)?;
    let root = site.unary(Unary::Sqrt, squares)?;
    let row = site.transpose(root, &[1, 0])?;
    let share = site.binary(Binary::Div, products, root)?;
    let share = site.binary(Binary::Div, share, row)?;
    let share = site.binary_scalar(Binary::Max, share, -1.0)?;
    let share = site.binary_scalar(Binary::Min, share, 1.0)?;
    if is_one { site.reshape(share, Vec::new()) } else { Ok(share) }
}

/// The norm of a vector, or of a matrix, over axes.
#[derive(Debug)]
pub(in super::super) struct Norm {
    pub(super) order: Option<Order>,
    pub(super) axes: Option<Vec<i64>>,
    pub(super) keep: bool,
}

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Order {
    Power(f64),
    Frobenius,
}

impl Norm {
    pub(super) fn read(config: Config<'_>) -> Result<Option<Self>> {
        let order = match config.get("ord") {
            None => None,
            Some(name) if name == "fro" => Some(Order::Frobenius),
            // TensorFlow's name.
            Some(name) if name == "euclidean" => None,
            Some(_) if config.real("ord").is_ok() => config.real("ord")?.map(Order::Power),
            Some(_) => return Ok(None),
        };
        Ok(Some(Self { order, axes: config.int_or_ints("axis")?, keep: config.flag("keepdims", false)? }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        let x = float(site, value(site, operands, 0)?)?;
        // Axes of a matrix are those of its columns and its rows, in that order.
        let axes = match &self.axes {
            Some(axes) => axes.iter().map(|&axis| site.axis(x, axis)).collect::<Result<Vec<usize>>>()?,
            None => positions(site, x, None)?,
        };
        match (self.order, axes.as_slice()) {
            (None | Some(Order::Frobenius), _) => length(site, x, self.axes.as_deref(), self.keep),
            (Some(Order::Power(order)), &[axis]) => power_norm(site, x, order, axis, self.keep),
            (Some(Order::Power(order)), &[rows, columns]) => {
                // The sums of one axis, and of those the extreme.
                let (sums, extremes) = match order.abs() {
                    1.0 => (rows, columns),
                    f64::INFINITY => (columns, rows),
                    _ => return Err(site.unsupported("a norm by singular values")),
                };
                let kind = if order > 0.0 { ReduceKind::Max } else { ReduceKind::Min };
                let size = site.unary(Unary::Abs, x)?;
                let sum = reduced(site, ReduceKind::Sum, size, Some(&[sums as i64]), true)?;
                let found = reduced(site, kind, sum, Some(&[extremes as i64]), true)?;
                match self.keep {
                    true => Ok(found),
                    false => super::lower::squeeze(site, found, Some(&[rows as i64, columns as i64])),
                }
            }
            _ => Err(site.error("is a norm of neither vectors nor matrices")),
        }
    }
}

/// The root of the sum of squares.
pub(super) fn length(site: &mut Site<'_>, x: ValueId, axes: Option<&[i64]>, keep: bool) -> Result<ValueId> {
    let squares = site.binary(Binary::Mul, x, x)?;
    let sum = reduced(site, ReduceKind::Sum, squares, axes, keep)?;
    site.unary(Unary::Sqrt, sum)
}

/// The norm of vectors along one axis.
pub(super) fn power_norm(
    site: &mut Site<'_>,
    x: ValueId,
    order: f64,
    axis: usize,
    keep: bool,
) -> Result<ValueId> {
    let size = site.unary(Unary::Abs, x)?;
    let axes = [axis as i64];
    let over = |site: &mut Site<'_>, kind, x| reduced(site, kind, x, Some(&axes), keep);
    match order {
        f64::INFINITY => over(site, ReduceKind::Max, size),
        f64::NEG_INFINITY => over(site, ReduceKind::Min, size),
        0.0 => {
            let is_set = site.convert(x, DType::Bool)?;
            let number = site.convert(is_set, site.dtype(x))?;
            over(site, ReduceKind::Sum, number)
        }
        1.0 => over(site, ReduceKind::Sum, size),
        2.0 => length(site, x, Some(&axes), keep),
        _ => {
            let powers = site.binary_scalar(Binary::Pow, size, order)?;
            let sum = over(site, ReduceKind::Sum, powers)?;
            site.binary_scalar(Binary::Pow, sum, 1.0 / order)
        }
    }
}
