//! Elements and rows at positions that are data.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

use super::super::product::blocks::packed_column;
use super::super::team::Team;
use super::super::view::{Plain, View, ViewMut, with_bits};
use super::super::walk::{PerAxis, Space, sizes, strides};
use super::named::{Axis, Named, RUN};

/// Bytes that a thread gathers at a time, about.
const PART: usize = 1 << 16;

/// Rows of one length, each at an offset that a tuple of indices names within its block.
#[derive(Clone, Copy)]
struct Rows<'a> {
    named: Named<'a>,
    length: usize,
    /// Elements of a block of the data, and how many rows come from each.
    block: usize,
    each: usize,
    /// Whether every block is read with the same indices, and not with those that come next.
    repeats: bool,
}

/// Makes a result in parts that threads share; `work` is given where a part begins, and answers `false` where an index is
/// outside its axis. Error: that.
fn in_parts<T: Plain>(
    team: &Team<'_>,
    named: &Named<'_>,
    target: &mut [T],
    work: impl Fn(usize, &mut [T]) -> bool + Sync,
) -> Result<()> {
    let fails = AtomicBool::new(false);
    let part = PART / size_of::<T>();
    team.each_chunk(target, part, |number, piece| {
        if !work(number * part, piece) {
            fails.store(true, Ordering::Relaxed);
        }
    });
    if fails.into_inner() { Err(named.outside()) } else { Ok(()) }
}

impl Rows<'_> {
    fn gather(&self, team: &Team<'_>, data: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
        with_bits!(data.dtype, T => {
            let source = data.slice::<T>()?;
            in_parts(team, &self.named, out.slice::<T>()?, |start, piece| self.piece(source, start, piece))
        })
    }

    /// The elements of the result from `start` on; `false` where an index is outside its axis.
    fn piece<T: Plain>(&self, source: &[T], start: usize, piece: &mut [T]) -> bool {
        let (mut row, mut column) = (start / self.length, start % self.length);
        let mut offsets = [0; RUN];
        let mut rest = piece;
        while !rest.is_empty() {
            let (block, within) = (row / self.each, row % self.each);
            let wanted = (column + rest.len()).div_ceil(self.length);
            let count = RUN.min(self.each - within).min(wanted);
            let first = if self.repeats { within } else { row };
            if !self.named.offsets(first, &mut offsets[..count]) {
                return false;
            }
            let elements = (count * self.length - column).min(rest.len());
            let (now, later) = rest.split_at_mut(elements);
            copy_rows(
                &source[block * self.block..][..self.block],
                &offsets[..count],
                (self.length, column),
                now,
            );
            (row, column, rest) = (row + count, 0, later);
        }
        true
    }
}

/// Copies rows that begin at `offsets`, the first from a column on; the last may end early.
#[inline(always)]
fn copy_rows<T: Plain>(
    source: &[T],
    offsets: &[usize],
    (length, mut column): (usize, usize),
    target: &mut [T],
) {
    /// Rows that are not longer are copied element by element.
    const SHORT: usize = 8;
    if length == 1 {
        target.iter_mut().zip(offsets).for_each(|(out, &offset)| *out = source[offset]);
        return;
    }
    let mut rest = target;
    for &offset in offsets {
        let width = (length - column).min(rest.len());
        let (row, later) = rest.split_at_mut(width);
        let from = &source[offset + column..][..width];
        if width <= SHORT {
            row.iter_mut().zip(from).for_each(|(out, &x)| *out = x);
        } else {
            row.copy_from_slice(from);
        }
        (column, rest) = (0, later);
    }
}

/// `Op::Gather`.
pub(crate) fn gather(
    team: &Team<'_>,
    axis: u32,
    data: &View<'_>,
    indices: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dims = sizes(data.dims)?;
    let axis = axis as usize;
    let (size, length) = (dims[axis], dims[axis + 1..].iter().product());
    let axes = [Axis { size, step: length }];
    let named = Named::new(indices, &axes)?;
    if out.bytes.is_empty() {
        return named.check();
    }
    if data.packed {
        return with_bits!(data.dtype, T => packed_rows::<T>(data, indices, out));
    }
    let rows = Rows { named, length, block: size * length, each: named.count(), repeats: true };
    rows.gather(team, data, out)
}

/// Rows of a matrix that is packed, transposed.
fn packed_rows<T: Plain>(data: &View<'_>, indices: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let dims = sizes(data.dims)?;
    let [size, length] = *dims else {
        return Err(Error::Internal("a packed tensor is no matrix".to_owned()));
    };
    let rows = [Axis { size, step: 1 }];
    let named = Named::new(indices, &rows)?;
    let (source, target) = (data.slice::<T>()?, out.slice::<T>()?);
    for (position, row) in target.chunks_exact_mut(length).enumerate() {
        let (from, width) = packed_column(named.offset(position)?, size, length);
        let column = source[from..].iter().step_by(width);
        row.iter_mut().zip(column).for_each(|(out, &x)| *out = x);
    }
    Ok(())
}

/// `Op::GatherNd`.
pub(crate) fn gather_nd(
    team: &Team<'_>,
    batch_dims: u32,
    data: &View<'_>,
    indices: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let slices = Slices::new(batch_dims as usize, data.dims, indices.dims)?;
    let named = Named::new(indices, &slices.axes)?;
    if out.bytes.is_empty() {
        return named.check();
    }
    let rows = Rows { named, length: slices.length, block: slices.block, each: slices.each, repeats: false };
    rows.gather(team, data, out)
}

/// What tuples of indices name of a tensor: slices of its last axes.
pub(super) struct Slices {
    pub(super) axes: PerAxis<Axis>,
    /// How many tuples there are.
    pub(super) count: usize,
    /// Elements of a slice.
    pub(super) length: usize,
    /// Elements of a batch of the data, and tuples of each.
    block: usize,
    each: usize,
}

impl Slices {
    pub(super) fn new(batch_dims: usize, data: &[i64], indices: &[i64]) -> Result<Self> {
        let (dims, own) = (sizes(data)?, sizes(indices)?);
        let Some((&depth, rows)) = own.split_last() else {
            return Err(Error::Internal("indices without axes".to_owned()));
        };
        let steps = strides(&dims)?;
        let named = batch_dims..batch_dims + depth;
        let axes = named.clone().map(|axis| Ok(Axis { size: dims[axis], step: steps[axis] as usize }));
        let batches: usize = dims[..batch_dims].iter().product();
        let count = rows.iter().product::<usize>();
        Ok(Self {
            axes: PerAxis::collect(axes)?,
            count,
            length: dims[named.end..].iter().product(),
            block: dims[batch_dims..].iter().product(),
            each: count.checked_div(batches).unwrap_or(0),
        })
    }
}

/// `Op::GatherElements`.
pub(crate) fn gather_elements(
    team: &Team<'_>,
    axis: u32,
    data: &View<'_>,
    indices: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let axes = [axis_of(data.dims, axis)?];
    let elements = Elements::new(axis, data.dims, Named::new(indices, &axes)?, indices.dims)?;
    with_bits!(data.dtype, T => {
        let (source, target) = (data.slice::<T>()?, out.slice::<T>()?);
        in_parts(team, &elements.named, target, |start, piece| {
            elements.each(start, piece.len(), |position, offset| piece[position - start] = source[offset])
        })
    })
}

pub(super) fn axis_of(data: &[i64], axis: u32) -> Result<Axis> {
    let dims = sizes(data)?;
    Ok(Axis { size: dims[axis as usize], step: strides(&dims)?[axis as usize] as usize })
}

/// Elements of a tensor, each at its own position except along one axis, where an index names it.
pub(super) struct Elements<'a> {
    pub(super) named: Named<'a>,
    /// Where rows of indices lie in the data, how long they are, and elements of the data from one to the next.
    rows: Space<1>,
    length: usize,
    along: usize,
}

impl<'a> Elements<'a> {
    pub(super) fn new(axis: u32, data: &[i64], named: Named<'a>, indices: &[i64]) -> Result<Self> {
        let (dims, own) = (sizes(data)?, sizes(indices)?);
        let mut steps = strides(&dims)?;
        steps[axis as usize] = 0;
        let (rows, length, [along]) = Space::new(&own, [&steps])?.split_inner();
        Ok(Self { named, rows, length, along: along as usize })
    }

    /// Calls `f` with each of `count` positions of the indices from `start` on and the data's offset that it names;
    /// `false` where an index is outside the axis.
    #[inline(always)]
    pub(super) fn each(&self, start: usize, count: usize, mut f: impl FnMut(usize, usize)) -> bool {
        let mut offsets = [0; RUN];
        let (mut position, end) = (start, start + count);
        while position < end {
            let run = &mut offsets[..RUN.min(end - position)];
            if !self.named.offsets(position, run) {
                return false;
            }
            let mut run = &run[..];
            while !run.is_empty() {
                let (row, column) = (position / self.length, position % self.length);
                let [first] = self.rows.at(row);
                let (now, later) = run.split_at(run.len().min(self.length - column));
                let mut at = first as usize + column * self.along;
                for &offset in now {
                    f(position, at + offset);
                    position += 1;
                    at += self.along;
                }
                run = later;
            }
        }
        true
    }
}
