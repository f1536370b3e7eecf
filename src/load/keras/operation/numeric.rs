//! Functions of `keras.ops` of numbers: counts, thresholds, products of vectors, choices.

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, beside, common, constant, expand, flat, float, items, pair, tensor_of, value};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, Size, TopK, Unary, ValueId};

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Numeric {
    CumProd(Option<i64>, Option<DType>),
    /// The angle of the point (second, first).
    Angle,
    Outer,
    NanToNum {
        nan: f64,
        most: Option<f64>,
        least: Option<f64>,
    },
    CountNonZero(Option<Vec<i64>>),
    /// How many bounds are at or below each element.
    Digitize,
    /// The first choice whose condition holds.
    Choose,
    Glu(i64),
    Threshold {
        above: f64,
        otherwise: f64,
    },
    SparsePlus,
    SparseMax(i64),
}

impl Numeric {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let axis = || Ok::<i64, crate::error::Error>(config.int("axis")?.unwrap_or(-1));
        Ok(Some(match class {
            "Cumprod" => Self::CumProd(config.int("axis")?, super::stated_type(config)?),
            "Arctan2" => Self::Angle,
            "Outer" => Self::Outer,
            "NanToNum" => Self::NanToNum {
                nan: config.real_or("nan", 0.0)?,
                most: config.real("posinf")?,
                least: config.real("neginf")?,
            },
            "CountNonzero" => Self::CountNonZero(config.int_or_ints("axis")?),
            "Digitize" => Self::Digitize,
            "Select" => Self::Choose,
            "Glu" => Self::Glu(axis()?),
            "Threshold" => Self::Threshold {
                above: config.real_or("threshold", 0.0)?,
                otherwise: config.real_or("default_value", 0.0)?,
            },
            "SparsePlus" => Self::SparsePlus,
            "Sparsemax" => Self::SparseMax(axis()?),
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        let first = |site: &Site<'_>| value(site, operands, 0);
        match self {
            Self::CumProd(axis, dtype) => {
                let x = counted(site, first(site)?, *dtype)?;
                let x = if axis.is_none() { flat(site, x)? } else { x };
                running_product(site, x, axis.unwrap_or(0))
            }
            Self::Angle => {
                let (y, x) = pair(site, operands, 0)?;
                let (y, x) = (float(site, y)?, float(site, x)?);
                angle(site, y, x)
            }
            Self::Outer => {
                let (x, y) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
                let both = common(site, &[x, y])?;
                let (x, y) = (flat(site, both[0])?, flat(site, both[1])?);
                let column = expand(site, x, &[1])?;
                site.binary(Binary::Mul, column, y)
            }
            Self::NanToNum { nan, most, least } => {
                let x = first(site)?;
                if !site.dtype(x).is_float() {
                    return Ok(x);
                }
                to_numbers(site, x, [*nan, most.unwrap_or(f64::MAX), least.unwrap_or(f64::MIN)])
            }
            Self::CountNonZero(axes) => {
                let x = site.convert(first(site)?, DType::Bool)?;
                let number = site.convert(x, DType::I32)?;
                let all: Vec<i64> = (0..site.rank(x) as i64).collect();
                sum(site, number, axes.as_deref().unwrap_or(&all))
            }
            Self::Digitize => {
                let (x, bounds) = (first(site)?, tensor_of(site, operands, 1)?);
                at_or_below(site, x, bounds)
            }
            Self::Choose => choose(site, operands),
            Self::Glu(axis) => {
                let x = float(site, first(site)?)?;
                let axis = site.axis(x, *axis)?;
                let half = site.known(x, axis)? / 2;
                let (x, gate) = (site.slice(x, axis, 0, half)?, site.slice(x, axis, half, half)?);
                let gate = site.unary(Unary::Sigmoid, gate)?;
                site.binary(Binary::Mul, x, gate)
            }
            Self::Threshold { above, otherwise } => {
                let x = float(site, first(site)?)?;
                let (bound, other) = (site.scalar_like(*above, x)?, site.scalar_like(*otherwise, x)?);
                let is_above = site.apply(Op::Compare(Compare::Gt), &[x, bound])?;
                site.apply(Op::Select, &[is_above, x, other])
            }
            Self::SparsePlus => {
                let x = float(site, first(site)?)?;
                sparse_plus(site, x)
            }
            Self::SparseMax(axis) => {
                let x = float(site, first(site)?)?;
                sparse_max(site, x, *axis)
            }
        }
    }
}

fn sum(site: &mut Site<'_>, x: ValueId, axes: &[i64]) -> Result<ValueId> {
    let mut axes = axes.iter().map(|&axis| Ok(site.axis(x, axis)? as u32)).collect::<Result<Vec<u32>>>()?;
    axes.sort_unstable();
    axes.dedup();
    site.apply(Op::Reduce { kind: ReduceKind::Sum, axes, keep: false }, &[x])
}

/// What is added or multiplied up: in the type that is stated, and truth values as whole numbers.
pub(super) fn counted(site: &mut Site<'_>, x: ValueId, stated: Option<DType>) -> Result<ValueId> {
    let own = match site.dtype(x) {
        DType::Bool => DType::I32,
        other => other,
    };
    site.convert(x, stated.filter(|&dtype| dtype != DType::Bool).unwrap_or(own))
}

/// Each element times all before it, in a logarithm of steps (Hillis and Steele, 1986).
pub(super) fn running_product(site: &mut Site<'_>, x: ValueId, axis: i64) -> Result<ValueId> {
    let axis = site.axis(x, axis)?;
    let size = site.known(x, axis)?;
    let (mut x, mut distance) = (x, 1);
    while distance < size {
        let kept = site.slice(x, axis, 0, distance)?;
        let behind = site.slice(x, axis, distance, size - distance)?;
        let before = site.slice(x, axis, 0, size - distance)?;
        let product = site.binary(Binary::Mul, behind, before)?;
        x = site.concat(axis, &[kept, product])?;
        distance = distance.saturating_mul(2);
    }
    Ok(x)
}

/// The angle of a point from its coordinates.
pub(in super::super) fn angle(site: &mut Site<'_>, y: ValueId, x: ValueId) -> Result<ValueId> {
    let (zero, one) = (site.scalar_like(0.0, x)?, site.scalar_like(1.0, x)?);
    let turn = site.scalar_like(std::f64::consts::PI, x)?;
    let quarter = site.scalar_like(std::f64::consts::FRAC_PI_2, x)?;
    // That to the nearer axis, whose slope is at most 1: of two infinities it is 1, and of two zeros 0.
    let (across, along) = (site.unary(Unary::Abs, y)?, site.unary(Unary::Abs, x)?);
    let (least, most) = (site.binary(Binary::Min, across, along)?, site.binary(Binary::Max, across, along)?);
    let none = site.apply(Op::Compare(Compare::Eq), &[most, zero])?;
    let divisor = site.apply(Op::Select, &[none, one, most])?;
    let slope = site.binary(Binary::Div, least, divisor)?;
    let infinite = site.unary(Unary::IsInf, least)?;
    let slope = site.apply(Op::Select, &[infinite, one, slope])?;
    let angle = site.unary(Unary::Atan, slope)?;
    let is_steep = site.apply(Op::Compare(Compare::Gt), &[across, along])?;
    let rest = site.binary(Binary::Sub, quarter, angle)?;
    let angle = site.apply(Op::Select, &[is_steep, rest, angle])?;
    let rest = site.binary(Binary::Sub, turn, angle)?;
    let is_left = is_negative(site, x)?;
    let angle = site.apply(Op::Select, &[is_left, rest, angle])?;
    let back = site.unary(Unary::Neg, angle)?;
    let is_below = is_negative(site, y)?;
    site.apply(Op::Select, &[is_below, back, angle])
}

/// Whether the sign of a number is minus, also that of a zero.
pub(super) fn is_negative(site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
    let (zero, one) = (site.scalar_like(0.0, x)?, site.scalar_like(1.0, x)?);
    let none = site.apply(Op::Compare(Compare::Eq), &[x, zero])?;
    let infinity = site.binary(Binary::Div, one, x)?;
    let signed = site.apply(Op::Select, &[none, infinity, x])?;
    site.apply(Op::Compare(Compare::Lt), &[signed, zero])
}

fn to_numbers(site: &mut Site<'_>, x: ValueId, [nan, most, least]: [f64; 3]) -> Result<ValueId> {
    let largest = match site.dtype(x) {
        DType::F64 => f64::MAX,
        DType::F32 => f64::from(f32::MAX),
        other => return Err(site.unsupported(&format!("numbers of {other}"))),
    };
    let missing = site.unary(Unary::IsNan, x)?;
    let nan = site.scalar_like(nan, x)?;
    let mut y = site.apply(Op::Select, &[missing, nan, x])?;
    for (infinity, number) in [(f64::INFINITY, most), (f64::NEG_INFINITY, least)] {
        // The greatest number of f64 stands for that of each type.
        let number = if number.is_finite() { number.clamp(-largest, largest) } else { number };
        let (infinity, number) = (site.scalar_like(infinity, x)?, site.scalar_like(number, x)?);
        let is_it = site.apply(Op::Compare(Compare::Eq), &[x, infinity])?;
        y = site.apply(Op::Select, &[is_it, number, y])?;
    }
    Ok(y)
}

/// How many of some bounds are at or below each element, as an i32.
pub(in super::super) fn at_or_below(site: &mut Site<'_>, x: ValueId, bounds: ValueId) -> Result<ValueId> {
    let x = float(site, x)?;
    let bounds = site.convert(bounds, site.dtype(x))?;
    let column = expand(site, x, &[-1])?;
    let below = site.apply(Op::Compare(Compare::Le), &[bounds, column])?;
    let number = site.convert(below, DType::I32)?;
    sum(site, number, &[-1])
}

fn choose(site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
    let [conditions, choices, default] = operands else {
        return Err(site.error("is not called with conditions, choices and a default"));
    };
    let (conditions, choices) = (items(site, conditions)?, items(site, choices)?);
    if choices.is_empty() || conditions.len() != choices.len() {
        return Err(site.error("has other conditions than choices"));
    }
    // All in one type, the default too.
    let mut all = choices.clone();
    match default {
        Operand::Value(value) => all.push(*value),
        Operand::Constant(number) if number.as_f64().is_some() => {
            all = common(site, &all)?;
            let (like, number) = beside(site, all[0], number)?;
            all.push(site.scalar_like(number, like)?);
        }
        Operand::Constant(other) => {
            let value = constant(site, other)?;
            all.push(value.ok_or_else(|| site.unsupported("a default that is no number"))?);
        }
        Operand::List(_) => return Err(site.unsupported("a list of defaults")),
    }
    let mut choices = common(site, &all)?;
    let Some(mut y) = choices.pop() else { return Err(site.error("has no default")) };
    for (&condition, &choice) in conditions.iter().zip(&choices).rev() {
        let condition = site.convert(condition, DType::Bool)?;
        y = site.apply(Op::Select, &[condition, choice, y])?;
    }
    Ok(y)
}

/// 0 up to -1, x from 1 on, `(x + 1)^2 / 4` between them.
fn sparse_plus(site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
    let (one, least, zero) =
        (site.scalar_like(1.0, x)?, site.scalar_like(-1.0, x)?, site.scalar_like(0.0, x)?);
    let moved = site.binary_scalar(Binary::Add, x, 1.0)?;
    let square = site.binary(Binary::Mul, moved, moved)?;
    let bend = site.binary_scalar(Binary::Mul, square, 0.25)?;
    let (below, above) = (
        site.apply(Op::Compare(Compare::Le), &[x, least])?,
        site.apply(Op::Compare(Compare::Ge), &[x, one])?,
    );
    let y = site.apply(Op::Select, &[below, zero, bend])?;
    site.apply(Op::Select, &[above, x, y])
}

/// What is above a threshold, less it: of the elements in order those whose share of the sum up to them is below them
/// (Martins and Astudillo, 2016). Keras adds up their running sums for the threshold, and so it is here.
fn sparse_max(site: &mut Site<'_>, x: ValueId, axis: i64) -> Result<ValueId> {
    let axis = site.axis(x, axis)?;
    let size = site.known(x, axis)?;
    let along = axis as u32;
    let sorted = site.push(Op::TopK(TopK { axis: along, k: size, largest: true }), &[x])?[0];
    let running = site.apply(Op::CumSum { axis: along, exclusive: false, reverse: false }, &[sorted])?;
    let less = site.binary_scalar(Binary::Sub, running, 1.0)?;
    let mut sizes = vec![Size::Known(1); site.rank(x)];
    sizes[axis] = Size::Known(size);
    let places = site.iota(&sizes, along);
    let places = site.convert(places, site.dtype(x))?;
    let places = site.binary_scalar(Binary::Add, places, 1.0)?;
    let shares = site.binary(Binary::Div, less, places)?;
    let above = site.apply(Op::Compare(Compare::Gt), &[sorted, shares])?;
    let (zero, one) = (site.scalar_like(0.0, x)?, site.scalar_like(1.0, x)?);
    let total = |site: &mut Site<'_>, x: ValueId| {
        site.apply(Op::Reduce { kind: ReduceKind::Sum, axes: vec![along], keep: true }, &[x])
    };
    let sums = site.apply(Op::Select, &[above, running, zero])?;
    let counts = site.apply(Op::Select, &[above, one, zero])?;
    let (sum, count) = (total(site, sums)?, total(site, counts)?);
    let above = site.binary(Binary::Sub, sum, one)?;
    let threshold = site.binary(Binary::Div, above, count)?;
    let y = site.binary(Binary::Sub, x, threshold)?;
    site.binary_scalar(Binary::Max, y, 0.0)
}
