//! Functions of vectors and matrices: diagonals, and products over axes that are named or follow from ranks.

use serde_json::Value;

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, common, expand, flat, float, squeeze, tensor_of, value};
use super::tools::{pair_last, reduced};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, Pad, PadMode, Real, ReduceKind, Size, Unary, ValueId};

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Linear {
    /// The elements on a diagonal of two axes, so far above the middle one, or their sum.
    Diagonal { offset: i64, axes: [i64; 2], sums: bool },
    /// A matrix with a vector on a diagonal, or the diagonal of a matrix.
    Diag {
        offset: i64,
        /// Of all elements in a row.
        flat: bool,
    },
    /// The vector at right angles to two.
    Cross { axes: [i64; 3] },
    /// Sums of products over axes of both.
    Contract(Contracted),
    /// The first one's elements, each times all of the second one.
    Kronecker,
    /// From each row of one to each row of the other.
    Distances,
}

/// Which axes a product sums over.
#[derive(Debug)]
pub(in super::super) enum Contracted {
    /// The last so many of one and the first of the other.
    Last(i64),
    Named(Vec<i64>, Vec<i64>),
    /// The last one of both.
    Inner,
    /// The last one, and the last but one of the other.
    Dot,
    All,
}

impl Linear {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let int = |key: &str, usual: i64| Ok::<i64, crate::error::Error>(config.int(key)?.unwrap_or(usual));
        Ok(Some(match class {
            "Diagonal" | "Trace" => Self::Diagonal {
                offset: int("offset", 0)?,
                axes: [int("axis1", 0)?, int("axis2", 1)?],
                sums: class == "Trace",
            },
            "Diag" | "Diagflat" => Self::Diag { offset: int("k", 0)?, flat: class == "Diagflat" },
            "Cross" => {
                let own = [int("axisa", -1)?, int("axisb", -1)?, int("axisc", -1)?];
                Self::Cross { axes: config.int("axis")?.map_or(own, |axis| [axis; 3]) }
            }
            "Tensordot" => Self::Contract(contracted(config)?),
            "Inner" => Self::Contract(Contracted::Inner),
            "Dot" if !config.has("axes") => Self::Contract(Contracted::Dot),
            "Vdot" => Self::Contract(Contracted::All),
            "Kron" => Self::Kronecker,
            "CDist" => Self::Distances,
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        match self {
            Self::Diagonal { offset, axes, sums } => {
                let x = value(site, operands, 0)?;
                let found = diagonal(site, x, *offset, *axes)?;
                if !sums {
                    return Ok(found);
                }
                let dtype = site.dtype(found);
                let found = if dtype == DType::Bool { site.convert(found, DType::I32)? } else { found };
                reduced(site, ReduceKind::Sum, found, Some(&[-1]), false)
            }
            Self::Diag { offset, flat: is_flat } => {
                let x = value(site, operands, 0)?;
                let x = if *is_flat { flat(site, x)? } else { x };
                match site.rank(x) {
                    1 => on_diagonal(site, x, *offset),
                    2 => diagonal(site, x, *offset, [0, 1]),
                    rank => Err(site.error(&format!("expected a vector or a matrix, found rank {rank}"))),
                }
            }
            Self::Cross { axes } => {
                let both = [tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?];
                let both = common(site, &both)?;
                cross(site, both[0], both[1], *axes)
            }
            Self::Contract(over) => {
                let both = [tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?];
                let both = common(site, &both)?;
                over.lower(site, both[0], both[1])
            }
            Self::Kronecker => {
                let both = [tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?];
                let both = common(site, &both)?;
                kronecker(site, both[0], both[1])
            }
            Self::Distances => {
                let (x, y) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
                let (x, y) = (float(site, x)?, float(site, y)?);
                let (x, y) = (expand(site, x, &[-2])?, expand(site, y, &[-3])?);
                let apart = site.binary(Binary::Sub, x, y)?;
                let squares = site.binary(Binary::Mul, apart, apart)?;
                let sum = reduced(site, ReduceKind::Sum, squares, Some(&[-1]), false)?;
                site.unary(Unary::Sqrt, sum)
            }
        }
    }
}

/// The axes of `tensordot`: a number, or two lists, or two numbers.
fn contracted(config: Config<'_>) -> Result<Contracted> {
    let Some(axes) = config.get("axes") else { return Ok(Contracted::Last(2)) };
    if let Some(count) = axes.as_i64() {
        return Ok(Contracted::Last(count));
    }
    let list = |value: &Value| match value {
        Value::Array(items) => items.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>(),
        one => one.as_i64().map(|axis| vec![axis]),
    };
    let both = match axes.as_array().map(Vec::as_slice) {
        Some([left, right]) => list(left).zip(list(right)),
        _ => None,
    };
    both.map(|(left, right)| Contracted::Named(left, right))
        .ok_or_else(|| config.fault("axes", "expected a number or two lists of axes"))
}

impl Contracted {
    fn lower(&self, site: &mut Site<'_>, x: ValueId, y: ValueId) -> Result<ValueId> {
        let (of_x, of_y) = (site.rank(x) as i64, site.rank(y) as i64);
        let (left, right) = match self {
            Self::All => {
                let (x, y) = (flat(site, x)?, flat(site, y)?);
                let product = site.binary(Binary::Mul, x, y)?;
                return reduced(site, ReduceKind::Sum, product, None, false);
            }
            Self::Inner | Self::Dot if of_x == 0 || of_y == 0 => return site.binary(Binary::Mul, x, y),
            Self::Inner => (vec![of_x - 1], vec![of_y - 1]),
            Self::Dot => (vec![of_x - 1], vec![(of_y - 2).max(0)]),
            Self::Last(count) if *count < 0 || *count > of_x.min(of_y) => {
                return Err(site.error(&format!("a product over {count} axes")));
            }
            Self::Last(count) => ((of_x - count..of_x).collect(), (0..*count).collect()),
            Self::Named(left, right) => (left.clone(), right.clone()),
        };
        contract(site, x, y, &left, &right)
    }
}

/// A product of matrices whose columns and rows are these axes.
fn contract(site: &mut Site<'_>, x: ValueId, y: ValueId, left: &[i64], right: &[i64]) -> Result<ValueId> {
    let positions = |site: &Site<'_>, value: ValueId, axes: &[i64]| {
        axes.iter().map(|&axis| site.axis(value, axis)).collect::<Result<Vec<usize>>>()
    };
    let (left, right) = (positions(site, x, left)?, positions(site, y, right)?);
    let repeats = |axes: &[usize]| axes.iter().enumerate().any(|(at, axis)| axes[..at].contains(axis));
    if left.len() != right.len() || repeats(&left) || repeats(&right) {
        return Err(site.error("sums over axes that do not fit one another"));
    }
    let of_x: Vec<usize> = (0..site.rank(x)).filter(|axis| !left.contains(axis)).collect();
    let of_y: Vec<usize> = (0..site.rank(y)).filter(|axis| !right.contains(axis)).collect();
    let (own_x, own_y) = (site.sizes(x), site.sizes(y));
    let sizes_of = |own: &[Size], axes: &[usize]| axes.iter().map(|&axis| own[axis].clone()).collect();
    let kept_x: Vec<Size> = sizes_of(&own_x, &of_x);
    let kept_y: Vec<Size> = sizes_of(&own_y, &of_y);
    let summed: Vec<Size> = sizes_of(&own_x, &left);
    let inner = site.product(&summed)?;
    let (rows, columns) = (site.product(&kept_x)?, site.product(&kept_y)?);
    let perm: Vec<usize> = of_x.iter().chain(&left).copied().collect();
    let x = site.transpose(x, &perm)?;
    let x = site.reshape(x, vec![rows, inner.clone()])?;
    let perm: Vec<usize> = right.iter().chain(&of_y).copied().collect();
    let y = site.transpose(y, &perm)?;
    let y = site.reshape(y, vec![inner, columns])?;
    let product = site.matmul(x, y, false)?;
    site.reshape(product, kept_x.into_iter().chain(kept_y).collect())
}

/// The diagonal of two axes as the last one.
fn diagonal(site: &mut Site<'_>, x: ValueId, offset: i64, axes: [i64; 2]) -> Result<ValueId> {
    let x = pair_last(site, x, axes)?;
    let kept = site.rank(x) - 2;
    let (rows, columns) = (site.known(x, kept)?, site.known(x, kept + 1)?);
    let (first_row, first_column) = (offset.saturating_neg().max(0), offset.max(0));
    let count = (rows.saturating_sub(first_row)).min(columns.saturating_sub(first_column)).max(0);
    site.list(count)?;
    let places: Vec<i64> = (0..count).map(|at| (first_row + at) * columns + first_column + at).collect();
    let mut sizes = site.sizes(x)[..kept].to_vec();
    sizes.push(site.product(&site.sizes(x)[kept..])?);
    let rows = site.reshape(x, sizes)?;
    let places = site.positions(&places)?;
    site.apply(Op::Gather { axis: kept as u32 }, &[rows, places])
}

/// A square matrix with a vector on a diagonal and zeros beside it.
fn on_diagonal(site: &mut Site<'_>, x: ValueId, offset: i64) -> Result<ValueId> {
    let size = site.known(x, 0)?;
    let side = size.checked_add(offset.saturating_abs()).ok_or_else(|| site.error("a size overflows"))?;
    let pad = Pad { before: vec![0], after: vec![side - size], mode: PadMode::Constant, value: Real(0.0) };
    let padded = site.apply(Op::Pad(Box::new(pad)), &[x])?;
    // Above the middle the elements are counted by rows, below it by columns.
    let along = expand(site, padded, &[i64::from(offset >= 0)])?;
    let square = [Size::Known(side), Size::Known(side)];
    let (rows, columns) = (site.iota(&square, 0), site.iota(&square, 1));
    let columns = site.binary_scalar(Binary::Sub, columns, offset as f64)?;
    let is_on = site.apply(Op::Compare(Compare::Eq), &[rows, columns])?;
    let zero = site.scalar_like(0.0, x)?;
    site.apply(Op::Select, &[is_on, along, zero])
}

fn cross(site: &mut Site<'_>, x: ValueId, y: ValueId, axes: [i64; 3]) -> Result<ValueId> {
    let (x, of_x) = vectors(site, x, axes[0])?;
    let (y, of_y) = vectors(site, y, axes[1])?;
    let part = |site: &mut Site<'_>, value: ValueId, size: i64, at: i64| -> Result<Option<ValueId>> {
        let axis = site.rank(value) - 1;
        (at < size).then(|| site.slice(value, axis, at, 1)).transpose()
    };
    let mut parts = Vec::new();
    let both_flat = of_x == 2 && of_y == 2;
    for at in if both_flat { 2..3 } else { 0..3 } {
        let (next, after) = ((at + 1) % 3, (at + 2) % 3);
        let forth = [part(site, x, of_x, next)?, part(site, y, of_y, after)?];
        let back = [part(site, x, of_x, after)?, part(site, y, of_y, next)?];
        // A vector of two elements has none in the third direction.
        let forth = product_of(site, forth)?;
        let back = product_of(site, back)?;
        parts.push(match (forth, back) {
            (Some(forth), Some(back)) => site.binary(Binary::Sub, forth, back)?,
            (Some(forth), None) => forth,
            (None, Some(back)) => site.unary(Unary::Neg, back)?,
            (None, None) => return Err(site.error("is a product of vectors without a result")),
        });
    }
    if both_flat {
        return squeeze(site, parts[0], Some(&[-1]));
    }
    let axis = site.rank(parts[0]) - 1;
    let found = site.concat(axis, &parts)?;
    let to = site.axis(found, axes[2])?;
    let mut perm: Vec<usize> = (0..axis).collect();
    perm.insert(to, axis);
    site.transpose(found, &perm)
}

/// Vectors of two or three elements along the last axis, and how many.
fn vectors(site: &mut Site<'_>, x: ValueId, axis: i64) -> Result<(ValueId, i64)> {
    let axis = site.axis(x, axis)?;
    let size = site.known(x, axis)?;
    if !matches!(size, 2 | 3) {
        return Err(site.error(&format!("vectors of {size} elements, not of 2 or 3")));
    }
    let perm: Vec<usize> = (0..site.rank(x)).filter(|&own| own != axis).chain([axis]).collect();
    Ok((site.transpose(x, &perm)?, size))
}

fn product_of(site: &mut Site<'_>, parts: [Option<ValueId>; 2]) -> Result<Option<ValueId>> {
    match parts {
        [Some(x), Some(y)] => site.binary(Binary::Mul, x, y).map(Some),
        _ => Ok(None),
    }
}

fn kronecker(site: &mut Site<'_>, mut x: ValueId, mut y: ValueId) -> Result<ValueId> {
    let rank = site.rank(x).max(site.rank(y));
    while site.rank(x) < rank {
        x = expand(site, x, &[0])?;
    }
    while site.rank(y) < rank {
        y = expand(site, y, &[0])?;
    }
    let mut merged = Vec::new();
    for (of_x, of_y) in site.sizes(x).into_iter().zip(site.sizes(y)) {
        merged.push(site.product(&[of_x, of_y])?);
    }
    // Each axis of one before that of the other.
    let after: Vec<i64> = (0..rank as i64).map(|axis| 2 * axis + 1).collect();
    let before: Vec<i64> = (0..rank as i64).map(|axis| 2 * axis).collect();
    let (x, y) = (expand(site, x, &after)?, expand(site, y, &before)?);
    let product = site.binary(Binary::Mul, x, y)?;
    site.reshape(product, merged)
}
