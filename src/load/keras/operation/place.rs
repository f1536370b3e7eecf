//! Functions that put elements at places: into slices, by indices, into segments.

use serde_json::Value;

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, expand, tensor_of};
use crate::error::Result;
use crate::ir::{
    Binary, Compare, DType, Op, Pad, PadMode, Real, ReduceKind, ScatterKind, Shape, Size, ValueId,
};

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Place {
    /// A part as large as an update becomes it.
    UpdateSlice,
    /// A part of these sizes, from places that may be computed.
    Slice(Vec<i64>),
    /// Elements by indices become updates, or are joined with them.
    Scatter(ScatterKind),
    /// The same into zeros of these sizes.
    New(Vec<i64>),
    /// Rows by the numbers of the segments that they belong to.
    Segments { kind: ScatterKind, count: Option<i64> },
}

impl Place {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let segments = |kind: ScatterKind| -> Result<Self> {
            // Sorted or not, they are added up alike.
            config.ignore(&["sorted"]);
            let count = config.get("num_segments").map(|_| config.positive("num_segments"));
            Ok(Self::Segments { kind, count: count.transpose()? })
        };
        Ok(Some(match class {
            "SliceUpdate" => Self::UpdateSlice,
            "Slice" => Self::Slice(config.ints("shape")?.ok_or_else(|| config.missing("shape"))?),
            "ScatterUpdate" => Self::Scatter(match config.text("reduction")? {
                None => ScatterKind::Replace,
                Some("add") => ScatterKind::Add,
                Some("mul") => ScatterKind::Mul,
                Some("max") => ScatterKind::Max,
                Some("min") => ScatterKind::Min,
                Some(other) => return Err(config.fault("reduction", format!("{other} is not known"))),
            }),
            "Scatter" => Self::New(config.ints("shape")?.ok_or_else(|| config.missing("shape"))?),
            "SegmentSum" => segments(ScatterKind::Add)?,
            "SegmentMax" => segments(ScatterKind::Max)?,
            "SegmentMin" => segments(ScatterKind::Min)?,
            "SegmentProd" => segments(ScatterKind::Mul)?,
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        match self {
            Self::Slice(sizes) => {
                let x = tensor_of(site, operands, 0)?;
                let starts = Starts::of(site, operands, x)?;
                starts.slice(site, x, sizes)
            }
            Self::UpdateSlice => {
                let x = tensor_of(site, operands, 0)?;
                let starts = Starts::of(site, operands, x)?;
                let update = tensor_of(site, operands, 2)?;
                let update = site.convert(update, site.dtype(x))?;
                starts.update(site, x, update)
            }
            Self::Scatter(kind) => {
                let x = tensor_of(site, operands, 0)?;
                let (indices, updates) = (tensor_of(site, operands, 1)?, tensor_of(site, operands, 2)?);
                scattered(site, x, indices, updates, *kind)
            }
            Self::New(sizes) => {
                let (indices, updates) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
                let zero = site.scalar_like(0.0, updates)?;
                let sizes = sizes.iter().map(|&size| Size::Known(size));
                let zeros = site.apply(Op::Broadcast { shape: Shape::new(sizes) }, &[zero])?;
                // What meets at a place is added up.
                scattered(site, zeros, indices, updates, ScatterKind::Add)
            }
            Self::Segments { kind, count } => {
                let (rows, segments) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
                let count = count.ok_or_else(|| site.unsupported("a number of segments that is computed"))?;
                joined(site, rows, segments, *kind, count)
            }
        }
    }
}

fn scattered(
    site: &mut Site<'_>,
    x: ValueId,
    indices: ValueId,
    updates: ValueId,
    kind: ScatterKind,
) -> Result<ValueId> {
    let updates = site.convert(updates, site.dtype(x))?;
    let indices = site.convert(indices, DType::I64)?;
    site.apply(Op::ScatterNd { kind }, &[x, indices, updates])
}

/// Rows that belong to no segment are in one more, which is left out.
fn joined(
    site: &mut Site<'_>,
    rows: ValueId,
    segments: ValueId,
    kind: ScatterKind,
    count: i64,
) -> Result<ValueId> {
    let own = site.dtype(rows);
    let neutral = match kind {
        ScatterKind::Mul => 1.0,
        ScatterKind::Max => lowest(own),
        ScatterKind::Min => -lowest(own),
        ScatterKind::Add | ScatterKind::Replace => 0.0,
    };
    let mut sizes = site.sizes(rows);
    if sizes.is_empty() {
        return Err(site.error("has segments of a single number"));
    }
    let all = count.checked_add(1).ok_or_else(|| site.error("a size overflows"))?;
    sizes[0] = Size::Known(all);
    let neutral = site.scalar_like(neutral, rows)?;
    let empty = site.apply(Op::Broadcast { shape: Shape::new(sizes) }, &[neutral])?;
    let segments = site.convert(segments, DType::I64)?;
    let (zero, rest) = (site.scalar_like(0.0, segments)?, site.scalar_like(count as f64, segments)?);
    let is_below = site.apply(Op::Compare(Compare::Lt), &[segments, zero])?;
    let segments = site.apply(Op::Select, &[is_below, rest, segments])?;
    let segments = site.binary(Binary::Min, segments, rest)?;
    let column = expand(site, segments, &[-1])?;
    let found = site.apply(Op::ScatterNd { kind }, &[empty, column, rows])?;
    site.slice(found, 0, 0, count)
}

/// What is no more than any other number of a type.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::I8 => i8::MIN.into(),
        DType::I16 => i16::MIN.into(),
        DType::I32 => i32::MIN.into(),
        DType::I64 => i64::MIN as f64,
        _ => f64::NEG_INFINITY,
    }
}

/// Where a part begins along each axis.
enum Starts {
    Known(Vec<i64>),
    /// A vector of them.
    Computed(ValueId),
}

impl Starts {
    /// The second operand of a call on `x`.
    fn of(site: &mut Site<'_>, operands: &[Operand], x: ValueId) -> Result<Self> {
        let whole: Option<Vec<i64>> = match operands.get(1) {
            Some(Operand::Constant(Value::Array(items))) => items.iter().map(Value::as_i64).collect(),
            _ => None,
        };
        match whole {
            Some(starts) if starts.len() == site.rank(x) => Ok(Self::Known(starts)),
            Some(_) => Err(site.error("has other places than axes")),
            None => {
                let starts = tensor_of(site, operands, 1)?;
                site.expect_rank(starts, 1)?;
                if site.known(starts, 0)? != site.rank(x) as i64 {
                    return Err(site.error("has other places than axes"));
                }
                Ok(Self::Computed(site.convert(starts, DType::I64)?))
            }
        }
    }

    fn slice(&self, site: &mut Site<'_>, mut x: ValueId, sizes: &[i64]) -> Result<ValueId> {
        if sizes.len() != site.rank(x) {
            return Err(site.error("has other sizes than axes"));
        }
        for (axis, &size) in sizes.iter().enumerate() {
            x = match self {
                Self::Known(starts) => part(site, x, axis, starts[axis], size)?,
                Self::Computed(starts) => {
                    let first = first(site, *starts, axis, (x, size))?;
                    let places = site.iota(&[Size::Known(size)], 0);
                    let places = site.binary(Binary::Add, places, first)?;
                    site.apply(Op::Gather { axis: axis as u32 }, &[x, places])?
                }
            };
        }
        Ok(x)
    }

    fn update(&self, site: &mut Site<'_>, x: ValueId, update: ValueId) -> Result<ValueId> {
        let (of_x, of_update) = (site.sizes(x), site.sizes(update));
        if of_x.len() != of_update.len() {
            return Err(site.error("is updated by a part of another rank"));
        }
        match self {
            Self::Known(starts) => padded_in(site, x, update, starts),
            Self::Computed(starts) => placed_in(site, x, update, *starts),
        }
    }
}

/// Elements of an axis; -1 for all behind the first.
fn part(site: &mut Site<'_>, x: ValueId, axis: usize, start: i64, size: i64) -> Result<ValueId> {
    let own = site.sizes(x)[axis].clone();
    if start == 0 && (own == Size::Known(size) || size == -1) {
        return Ok(x);
    }
    let Some(own) = own.known() else {
        if start != 0 || size < 1 {
            return Err(site.open(axis));
        }
        return site.slice(x, axis, start, size);
    };
    let size = if size == -1 { own.saturating_sub(start) } else { size };
    if start < 0 || size < 0 || start.checked_add(size).is_none_or(|end| end > own) {
        return Err(site.error(&format!("{size} elements from {start} on, of {own}")));
    }
    site.slice(x, axis, start, size)
}

/// Where a part of an axis begins, so that it is within it.
fn first(site: &mut Site<'_>, starts: ValueId, axis: usize, (x, size): (ValueId, i64)) -> Result<ValueId> {
    let own = site.known(x, axis)?;
    if size < 0 || size > own {
        return Err(site.error(&format!("{size} of {own} elements")));
    }
    let start = site.slice(starts, 0, axis as i64, 1)?;
    let start = site.binary_scalar(Binary::Max, start, 0.0)?;
    site.binary_scalar(Binary::Min, start, (own - size) as f64)
}

/// The update where it is, with room around it.
fn padded_in(site: &mut Site<'_>, x: ValueId, update: ValueId, starts: &[i64]) -> Result<ValueId> {
    let (of_x, of_update) = (site.sizes(x), site.sizes(update));
    let mut after = Vec::new();
    for (axis, (own, other)) in of_x.iter().zip(&of_update).enumerate() {
        let left = match (own.known(), other.known()) {
            (Some(own), Some(other)) => {
                own.checked_sub(other).and_then(|left| left.checked_sub(starts[axis]))
            }
            _ if own == other => Some(starts[axis].saturating_neg()),
            _ => return Err(site.open(axis)),
        };
        match left {
            Some(left) if left >= 0 && starts[axis] >= 0 => after.push(left),
            _ => return Err(site.error(&format!("the update is not within axis {axis}"))),
        }
    }
    let before = starts.to_vec();
    let pad = Op::Pad(Box::new(Pad { before, after, mode: PadMode::Constant, value: Real(0.0) }));
    let one = site.positions(&[1])?;
    let ones = site.apply(Op::Broadcast { shape: Shape::new(of_update) }, &[one])?;
    let is_new = site.apply(pad.clone(), &[ones])?;
    let is_new = site.convert(is_new, DType::Bool)?;
    let update = site.apply(pad, &[update])?;
    site.apply(Op::Select, &[is_new, update, x])
}

/// For each element that of the update which would be there, and whether there is one.
fn placed_in(site: &mut Site<'_>, x: ValueId, update: ValueId, starts: ValueId) -> Result<ValueId> {
    let rank = site.rank(x);
    let (mut spread, mut is_new) = (update, None);
    for axis in 0..rank {
        let size = site.known(update, axis)?;
        let own = site.known(x, axis)?;
        let start = first(site, starts, axis, (x, size))?;
        let places = site.iota(&[Size::Known(own)], 0);
        let places = site.binary(Binary::Sub, places, start)?;
        let (zero, end) = (site.scalar_like(0.0, places)?, site.scalar_like(size as f64, places)?);
        let from = site.apply(Op::Compare(Compare::Ge), &[places, zero])?;
        let to = site.apply(Op::Compare(Compare::Lt), &[places, end])?;
        let within = site.binary(Binary::And, from, to)?;
        let mut sizes = vec![Size::Known(1); rank];
        sizes[axis] = Size::Known(own);
        let within = site.reshape(within, sizes)?;
        is_new = Some(match is_new {
            None => within,
            Some(others) => site.binary(Binary::And, others, within)?,
        });
        let near = site.binary(Binary::Max, places, zero)?;
        let near = site.binary_scalar(Binary::Min, near, (size - 1).max(0) as f64)?;
        spread = site.apply(Op::Gather { axis: axis as u32 }, &[spread, near])?;
    }
    match is_new {
        Some(is_new) => site.apply(Op::Select, &[is_new, spread, x]),
        None => Ok(update),
    }
}

/// Which classes are among the numbers of an axis.
pub(super) fn many_hot(site: &mut Site<'_>, marks: ValueId) -> Result<ValueId> {
    let axis = u32::from(site.rank(marks) > 2);
    site.apply(Op::Reduce { kind: ReduceKind::Max, axes: vec![axis], keep: false }, &[marks])
}
