//! Functions of elements in their order: medians, quantiles, places among sorted numbers.

use serde_json::Value;

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, common, expand, flat, float, tensor_of, value};
use super::tools::{ascending, merged_last, reduced, with_axes};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, Unary, ValueId};

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Ranked {
    Quantile(Quantile),
    /// How many sorted numbers are below each value, or at it as well.
    Search {
        right: bool,
    },
    /// Whether the prediction of a class is among the so many largest.
    Among(i64),
    /// Places in ascending order, of all elements without an axis.
    Places(Option<i64>),
}

/// A share of the way through the sorted elements of axes.
#[derive(Debug)]
pub(in super::super) struct Quantile {
    /// The share where it is no operand.
    share: Option<f64>,
    /// What a share of one is called.
    whole: f64,
    method: Method,
    axes: Option<Vec<i64>>,
    keep: bool,
    /// Elements that are no numbers are passed over; else they are the result.
    skips: bool,
}

/// What is between two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Linear,
    Lower,
    Higher,
    Midpoint,
    Nearest,
}

impl Ranked {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let skips = class.starts_with("Nan");
        Ok(Some(match class {
            "Median" | "Nanmedian" => Self::Quantile(Quantile::read(config, Some(0.5), 1.0, skips)?),
            // Keras 3.15 takes the elements on both sides whatever the method.
            "Quantile" if config.text("method")?.is_some_and(|method| method != "linear") => return Ok(None),
            "Quantile" | "Nanquantile" => Self::Quantile(Quantile::read(config, None, 1.0, skips)?),
            "Percentile" | "Nanpercentile" => Self::Quantile(Quantile::read(config, None, 100.0, skips)?),
            "SearchSorted" => match config.text("side")?.unwrap_or("left") {
                "left" => Self::Search { right: false },
                "right" => Self::Search { right: true },
                other => return Err(config.fault("side", format!("{other} is neither left nor right"))),
            },
            "InTopK" => Self::Among(config.positive("k")?),
            "Argsort" => Self::Places(if config.has("axis") { config.int("axis")? } else { Some(-1) }),
            // Sorted ones are divided by each of them.
            "Argpartition" => {
                config.ignore(&["kth"]);
                Self::Places(Some(config.int("axis")?.unwrap_or(-1)))
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        match self {
            Self::Quantile(quantile) => quantile.lower(site, operands),
            Self::Search { right } => {
                let (sorted, values) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
                search(site, sorted, values, *right)
            }
            Self::Among(k) => among(site, operands, *k),
            Self::Places(axis) => {
                let x = value(site, operands, 0)?;
                let x = if axis.is_none() { flat(site, x)? } else { x };
                let axis = site.axis(x, axis.unwrap_or(0))?;
                let k = site.known(x, axis)?;
                let sort = crate::ir::TopK { axis: axis as u32, k, largest: false };
                let places = site.push(Op::TopK(sort), &[x])?[1];
                site.convert(places, DType::I32)
            }
        }
    }
}

impl Quantile {
    fn read(config: Config<'_>, share: Option<f64>, whole: f64, skips: bool) -> Result<Self> {
        let method = match config.text("method")?.unwrap_or("linear") {
            "linear" => Method::Linear,
            "lower" => Method::Lower,
            "higher" => Method::Higher,
            "midpoint" => Method::Midpoint,
            "nearest" => Method::Nearest,
            other => return Err(config.fault("method", format!("{other} is not supported yet"))),
        };
        let axes = config.int_or_ints("axis")?;
        Ok(Self { share, whole, method, axes, keep: config.flag("keepdims", false)?, skips })
    }

    fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        let x = float(site, value(site, operands, 0)?)?;
        let shares = match self.share {
            Some(share) => site.scalar_like(share, x)?,
            None => {
                let shares = tensor_of(site, operands, 1)?;
                let shares = site.convert(shares, site.dtype(x))?;
                site.binary_scalar(Binary::Div, shares, self.whole)?
            }
        };
        if site.rank(shares) > 1 {
            return Err(site.unsupported("a table of shares"));
        }
        let is_list = site.rank(shares) == 1;
        let shares = flat(site, shares)?;
        let axes = self.axes.as_deref();
        let rows = merged_last(site, x, axes)?;
        let found = self.of_rows(site, rows, shares)?;
        // The shares come first.
        let rank = site.rank(found);
        let perm: Vec<usize> = [rank - 1].into_iter().chain(0..rank - 1).collect();
        let found = site.transpose(found, &perm)?;
        let found = if self.keep { with_axes(site, found, x, axes, 1)? } else { found };
        if is_list {
            return Ok(found);
        }
        let sizes = site.sizes(found).split_off(1);
        site.reshape(found, sizes)
    }

    /// The quantiles of the last axis, which becomes that of the shares.
    fn of_rows(&self, site: &mut Site<'_>, rows: ValueId, shares: ValueId) -> Result<ValueId> {
        let axis = site.rank(rows) - 1;
        let size = site.known(rows, axis)?;
        if size < 1 {
            return Err(site.error("is taken of no elements"));
        }
        let missing = site.unary(Unary::IsNan, rows)?;
        // They are sorted behind all others.
        let infinity = site.scalar_like(f64::INFINITY, rows)?;
        let numbers = site.apply(Op::Select, &[missing, infinity, rows])?;
        let sorted = ascending(site, numbers)?;
        let missing = site.convert(missing, site.dtype(rows))?;
        let missing = reduced(site, ReduceKind::Sum, missing, Some(&[-1]), true)?;
        let last = site.scalar_like((size - 1) as f64, rows)?;
        let end = if self.skips { site.binary(Binary::Sub, last, missing)? } else { last };
        let end = site.binary_scalar(Binary::Max, end, 0.0)?;
        let place = site.binary(Binary::Mul, shares, end)?;
        // Each row has as many places as there are shares.
        let mut sizes = site.sizes(rows);
        sizes[axis] = site.sizes(shares)[0].clone();
        let place = site.broadcast(place, sizes)?;
        let found = self.at(site, sorted, place)?;
        let bound = site.scalar_like(if self.skips { (size - 1) as f64 } else { 0.0 }, rows)?;
        let none = site.apply(Op::Compare(Compare::Gt), &[missing, bound])?;
        let nan = site.scalar_like(f64::NAN, rows)?;
        site.apply(Op::Select, &[none, nan, found])
    }

    /// What is at places of the last axis that need not be whole.
    fn at(&self, site: &mut Site<'_>, sorted: ValueId, place: ValueId) -> Result<ValueId> {
        let axis = site.rank(sorted) as u32 - 1;
        let element = |site: &mut Site<'_>, unary: Unary| {
            let whole = site.unary(unary, place)?;
            let whole = site.convert(whole, DType::I64)?;
            site.apply(Op::GatherElements { axis }, &[sorted, whole])
        };
        match self.method {
            Method::Lower => element(site, Unary::Floor),
            Method::Higher => element(site, Unary::Ceil),
            Method::Nearest => element(site, Unary::Round),
            Method::Midpoint | Method::Linear => {
                let (low, high) = (element(site, Unary::Floor)?, element(site, Unary::Ceil)?);
                let share = match self.method {
                    Method::Midpoint => site.scalar_like(0.5, place)?,
                    _ => {
                        let floor = site.unary(Unary::Floor, place)?;
                        site.binary(Binary::Sub, place, floor)?
                    }
                };
                between(site, low, high, share)
            }
        }
    }
}

fn between(site: &mut Site<'_>, low: ValueId, high: ValueId, share: ValueId) -> Result<ValueId> {
    let apart = site.binary(Binary::Sub, high, low)?;
    let more = site.binary(Binary::Mul, apart, share)?;
    let found = site.binary(Binary::Add, low, more)?;
    // Two infinities of one sign have no distance.
    let same = site.apply(Op::Compare(Compare::Eq), &[low, high])?;
    site.apply(Op::Select, &[same, low, found])
}

fn search(site: &mut Site<'_>, sorted: ValueId, values: ValueId, right: bool) -> Result<ValueId> {
    site.expect_rank(sorted, 1)?;
    let both = common(site, &[sorted, values])?;
    let column = expand(site, both[1], &[-1])?;
    let compare = if right { Compare::Le } else { Compare::Lt };
    let below = site.apply(Op::Compare(compare), &[both[0], column])?;
    let number = site.convert(below, DType::I32)?;
    reduced(site, ReduceKind::Sum, number, Some(&[-1]), false)
}

fn among(site: &mut Site<'_>, operands: &[Operand], k: i64) -> Result<ValueId> {
    let (targets, predictions) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
    let axis = site.rank(predictions).saturating_sub(1);
    let column = expand(site, targets, &[-1])?;
    let column = site.convert(column, DType::I64)?;
    let own = site.apply(Op::GatherElements { axis: axis as u32 }, &[predictions, column])?;
    let larger = site.apply(Op::Compare(Compare::Gt), &[predictions, own])?;
    let number = site.convert(larger, DType::I32)?;
    let number = reduced(site, ReduceKind::Sum, number, Some(&[-1]), false)?;
    let bound = site.scalar_like(k as f64, number)?;
    site.apply(Op::Compare(Compare::Lt), &[number, bound])
}

/// True of a constant that is nothing.
pub(super) fn is_absent(operands: &[Operand], at: usize) -> bool {
    match operands.get(at) {
        None => true,
        Some(Operand::Constant(value)) => *value == Value::Null,
        Some(_) => false,
    }
}
