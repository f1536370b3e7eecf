//! Functions that put tensors beside one another, or divide them, by axes that follow from their ranks.

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, common, concatenate, expand, flat, floor_divide, list, tensor_of, value};
use super::tools::cut_at;
use crate::error::Result;
use crate::ir::{Binary, Shape, Size, ValueId};

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Join {
    /// Side by side, as rows, or in depth: along this axis of at least so many.
    Beside {
        axis: usize,
        rank: usize,
    },
    /// One behind the other; flattened without an axis.
    Append(Option<i64>),
    /// The coordinates of a grid.
    Grid {
        swaps: bool,
    },
    /// Into parts: so many, the first ones larger where that does not divide; or at these places.
    Divide {
        axis: Option<i64>,
        parts: Option<i64>,
        at: Vec<i64>,
    },
    Spread(Vec<i64>),
    /// Places in a row as those along axes of these sizes.
    Unravel(Vec<i64>),
    /// Powers of the elements of a vector, from the largest down or from 0 up.
    Powers {
        count: Option<i64>,
        rising: bool,
    },
    /// A quarter turn from one axis to another, so many times.
    Turn {
        times: i64,
        axes: [i64; 2],
    },
}

/// More parts are not made one by one.
const MOST_PARTS: i64 = 4096;

impl Join {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let key = "indices_or_sections";
        let divide = |axis: Option<i64>| -> Result<Self> {
            let parts = config.get(key).filter(|value| value.is_number()).map(|_| config.positive(key));
            let parts = parts.transpose()?;
            let at = if parts.is_some() { Vec::new() } else { config.ints(key)?.unwrap_or_default() };
            Ok(Self::Divide { axis, parts, at })
        };
        Ok(Some(match class {
            "Hstack" => Self::Beside { axis: 1, rank: 1 },
            "Vstack" => Self::Beside { axis: 0, rank: 2 },
            "Dstack" => Self::Beside { axis: 2, rank: 3 },
            "Append" => Self::Append(config.int("axis")?),
            "Meshgrid" => match config.text("indexing")?.unwrap_or("xy") {
                "xy" => Self::Grid { swaps: true },
                "ij" => Self::Grid { swaps: false },
                other => return Err(config.fault("indexing", format!("{other} is neither xy nor ij"))),
            },
            "ArraySplit" => divide(Some(config.int("axis")?.unwrap_or(0)))?,
            "Vsplit" => divide(Some(0))?,
            "Hsplit" => divide(None)?,
            "Dsplit" => divide(Some(2))?,
            "BroadcastTo" => Self::Spread(config.ints("shape")?.ok_or_else(|| config.missing("shape"))?),
            "UnravelIndex" => Self::Unravel(config.ints("shape")?.ok_or_else(|| config.missing("shape"))?),
            "Vander" => Self::Powers { count: config.int("N")?, rising: config.flag("increasing", false)? },
            "Rot90" => {
                let axes = config.ints("axes")?.unwrap_or_else(|| vec![0, 1]);
                let axes = axes.try_into().map_err(|_| config.fault("axes", "expected two axes"))?;
                Self::Turn { times: config.int("k")?.unwrap_or(1), axes }
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<Vec<ValueId>> {
        let one = match self {
            Self::Beside { axis, rank } => {
                let values = list(site, operands)?;
                beside(site, &values, *axis, *rank)?
            }
            Self::Append(axis) => {
                let mut both = vec![tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?];
                if axis.is_none() {
                    both = both.into_iter().map(|value| flat(site, value)).collect::<Result<_>>()?;
                }
                let both = both.into_iter().map(Operand::Value).collect();
                concatenate(site, &[Operand::List(both)], axis.unwrap_or(0))?
            }
            Self::Grid { swaps } => return grid(site, operands, *swaps),
            Self::Divide { axis, parts, at } => {
                let x = value(site, operands, 0)?;
                // A vector is divided along the axis that it has.
                let axis = axis.unwrap_or(i64::from(site.rank(x) > 1));
                let axis = site.axis(x, axis)?;
                return divided(site, x, axis, *parts, at);
            }
            Self::Spread(sizes) => {
                let x = tensor_of(site, operands, 0)?;
                let missing = sizes.len().saturating_sub(site.rank(x)) as i64;
                let x = expand(site, x, &(0..missing).collect::<Vec<i64>>())?;
                let sizes = sizes.iter().map(|&size| Size::Known(size));
                site.apply(crate::ir::Op::Broadcast { shape: Shape::new(sizes) }, &[x])?
            }
            Self::Unravel(sizes) => {
                let x = value(site, operands, 0)?;
                return unraveled(site, x, sizes);
            }
            Self::Powers { count, rising } => {
                let x = value(site, operands, 0)?;
                powers(site, x, *count, *rising)?
            }
            Self::Turn { times, axes } => {
                let x = value(site, operands, 0)?;
                turned(site, x, *times, *axes)?
            }
        };
        Ok(vec![one])
    }
}

fn beside(site: &mut Site<'_>, values: &[ValueId], axis: usize, rank: usize) -> Result<ValueId> {
    let mut values = common(site, values)?;
    for value in &mut values {
        while site.rank(*value) < rank {
            // Rows become matrices of one row, matrices of one layer.
            let new = if site.rank(*value) == 2 || site.rank(*value) == 0 { -1 } else { 0 };
            *value = expand(site, *value, &[new])?;
        }
    }
    // Vectors have one axis alone.
    let axis = axis.min(site.rank(values[0]) - 1);
    site.concat(axis, &values)
}

fn grid(site: &mut Site<'_>, operands: &[Operand], swaps: bool) -> Result<Vec<ValueId>> {
    let mut values = Vec::new();
    for at in 0..operands.len() {
        let axis = tensor_of(site, operands, at)?;
        values.push(flat(site, axis)?);
    }
    let place = |at: usize| match at {
        0 | 1 if swaps && operands.len() > 1 => 1 - at,
        other => other,
    };
    let mut all = vec![Size::Known(1); values.len()];
    for (at, &value) in values.iter().enumerate() {
        all[place(at)] = site.sizes(value)[0].clone();
    }
    let mut results = Vec::new();
    for (at, &value) in values.iter().enumerate() {
        let mut sizes = vec![Size::Known(1); all.len()];
        sizes[place(at)] = all[place(at)].clone();
        let value = site.reshape(value, sizes)?;
        results.push(site.broadcast(value, all.clone())?);
    }
    Ok(results)
}

fn divided(
    site: &mut Site<'_>,
    x: ValueId,
    axis: usize,
    parts: Option<i64>,
    at: &[i64],
) -> Result<Vec<ValueId>> {
    let size = site.known(x, axis)?;
    let mut ends = at.to_vec();
    if let Some(parts) = parts {
        if parts > MOST_PARTS {
            return Err(site.unsupported(&format!("{parts} results")));
        }
        let (each, more) = (size / parts, size % parts);
        ends = (1..parts).map(|part| part * each + part.min(more)).collect();
    }
    ends.push(size);
    cut_at(site, x, axis, &ends)
}

/// The place along each axis, the last one first found.
fn unraveled(site: &mut Site<'_>, x: ValueId, sizes: &[i64]) -> Result<Vec<ValueId>> {
    if sizes.iter().any(|&size| size < 1) {
        return Err(site.error("has an axis without elements"));
    }
    let total = sizes.iter().try_fold(1i64, |total, &size| total.checked_mul(size));
    let total = total.ok_or_else(|| site.error("a size overflows"))?;
    // Places from the end are negative.
    let total = site.scalar_like(total as f64, x)?;
    let mut rest = site.binary(Binary::Mod, x, total)?;
    let mut places = Vec::new();
    for &size in sizes.iter().rev() {
        let size = site.scalar_like(size as f64, x)?;
        places.push(site.binary(Binary::Mod, rest, size)?);
        rest = floor_divide(site, rest, size)?;
    }
    places.reverse();
    Ok(places)
}

fn powers(site: &mut Site<'_>, x: ValueId, count: Option<i64>, rising: bool) -> Result<ValueId> {
    site.expect_rank(x, 1)?;
    let count = match count {
        Some(count) => count,
        None => site.known(x, 0)?,
    };
    if count < 0 {
        return Err(site.error(&format!("{count} powers")));
    }
    let exponents = site.iota(&[Size::Known(count)], 0);
    let exponents = if rising { exponents } else { site.reverse(exponents, 0)? };
    let exponents = site.convert(exponents, site.dtype(x))?;
    let column = expand(site, x, &[1])?;
    site.binary(Binary::Pow, column, exponents)
}

fn turned(site: &mut Site<'_>, x: ValueId, times: i64, [from, to]: [i64; 2]) -> Result<ValueId> {
    let (from, to) = (site.axis(x, from)?, site.axis(x, to)?);
    if from == to {
        return Err(site.error("is turned from an axis to the same one"));
    }
    let mut swap: Vec<usize> = (0..site.rank(x)).collect();
    swap.swap(from, to);
    match times.rem_euclid(4) {
        0 => Ok(x),
        1 => {
            let back = site.reverse(x, to)?;
            site.transpose(back, &swap)
        }
        2 => {
            let back = site.reverse(x, from)?;
            site.reverse(back, to)
        }
        _ => {
            let turned = site.transpose(x, &swap)?;
            site.reverse(turned, to)
        }
    }
}
