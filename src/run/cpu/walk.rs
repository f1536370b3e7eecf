//! Walking strided tensors: strides, an odometer over axes, and copies between strided regions.

use crate::error::{Error, Result};
use crate::ir::MAX_AXES;

use super::vectors::{Lanes, Task, Vectorised};
use super::view::Plain;

/// Most axes of a tensor that kernels walk.
pub(crate) const MAX_RANK: usize = MAX_AXES;

/// One entry for each axis of a tensor, without memory from the heap: kernels allocate nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerAxis<T> {
    length: usize,
    entries: [T; MAX_AXES],
}

impl<T: Copy + Default> PerAxis<T> {
    /// No entries.
    pub(crate) fn new() -> Self {
        Self { length: 0, entries: [T::default(); MAX_AXES] }
    }

    /// The default for each of `count` axes. Error: more axes than there may be.
    pub(crate) fn filled(count: usize) -> Result<Self> {
        if count > MAX_AXES {
            return Err(too_many(MAX_AXES));
        }
        Ok(Self { length: count, ..Self::new() })
    }

    /// Error: more axes than there may be.
    pub(crate) fn push(&mut self, entry: T) -> Result<()> {
        let slot = self.entries.get_mut(self.length).ok_or_else(|| too_many(MAX_AXES))?;
        *slot = entry;
        self.length += 1;
        Ok(())
    }

    /// Error: more axes than there may be, or what an entry's is.
    pub(crate) fn collect(entries: impl IntoIterator<Item = Result<T>>) -> Result<Self> {
        let mut list = Self::new();
        for entry in entries {
            list.push(entry?)?;
        }
        Ok(list)
    }
}

impl<T> std::ops::Deref for PerAxis<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.entries[..self.length]
    }
}

impl<T> std::ops::DerefMut for PerAxis<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.entries[..self.length]
    }
}

#[cold]
fn too_many(most: usize) -> Error {
    Error::Unsupported(crate::error::Report::new("", format!("a tensor of more than {most} axes")))
}

/// Sizes as indices. Errors: one is negative; more axes than there may be.
pub(crate) fn sizes(dims: &[i64]) -> Result<PerAxis<usize>> {
    PerAxis::collect(
        dims.iter().map(|&dim| usize::try_from(dim).map_err(|_| Error::Internal(format!("a size of {dim}")))),
    )
}

/// Row-major strides, in elements. Error: more axes than there may be.
pub(crate) fn strides(dims: &[usize]) -> Result<PerAxis<isize>> {
    let mut strides = PerAxis::filled(dims.len())?;
    let mut step = 1isize;
    for (stride, &dim) in strides.iter_mut().zip(dims).rev() {
        *stride = step;
        step = step.wrapping_mul(dim as isize);
    }
    Ok(strides)
}

/// Strides with which a tensor of `dims` is read as one of `to`, axes aligned from the last:
/// 0 where it repeats. Error: it does not broadcast to that.
pub(crate) fn broadcast_strides(dims: &[usize], to: &[usize]) -> Result<PerAxis<isize>> {
    let misfit = || Error::Internal(format!("{dims:?} does not broadcast to {to:?}"));
    let added = to.len().checked_sub(dims.len()).ok_or_else(misfit)?;
    let own = strides(dims)?;
    let mut result = PerAxis::filled(to.len())?;
    for (axis, (&dim, &stride)) in dims.iter().zip(&*own).enumerate() {
        if dim == to[added + axis] {
            result[added + axis] = if dim == 1 { 0 } else { stride };
        } else if dim != 1 {
            return Err(misfit());
        }
    }
    Ok(result)
}

/// A space of axes and `N` walks through it, each with its strides; axes of size 1 left out and
/// axes merged where every walk allows it. Nothing is allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space<const N: usize> {
    pub(crate) rank: usize,
    pub(crate) dims: [usize; MAX_RANK],
    pub(crate) strides: [[isize; MAX_RANK]; N],
}

impl<const N: usize> Space<N> {
    /// Error: more than [`MAX_RANK`] axes remain.
    pub(crate) fn new(dims: &[usize], strides: [&[isize]; N]) -> Result<Self> {
        let mut space = Self { rank: 0, dims: [1; MAX_RANK], strides: [[0; MAX_RANK]; N] };
        for (axis, &dim) in dims.iter().enumerate() {
            if dim == 1 {
                continue;
            }
            if let Some(last) = space.rank.checked_sub(1) {
                let merges =
                    (0..N).all(|walk| space.strides[walk][last] == strides[walk][axis] * dim as isize);
                if merges {
                    space.dims[last] *= dim;
                    (0..N).for_each(|walk| space.strides[walk][last] = strides[walk][axis]);
                    continue;
                }
            }
            if space.rank == MAX_RANK {
                return Err(too_many(MAX_RANK));
            }
            space.dims[space.rank] = dim;
            (0..N).for_each(|walk| space.strides[walk][space.rank] = strides[walk][axis]);
            space.rank += 1;
        }
        Ok(space)
    }

    /// Splits off the last axis: its size and strides (1 and 0 where there is none).
    pub(crate) fn split_inner(&self) -> (Self, usize, [isize; N]) {
        let mut outer = self.clone();
        let Some(last) = self.rank.checked_sub(1) else { return (outer, 1, [0; N]) };
        outer.rank = last;
        outer.dims[last] = 1;
        (outer, self.dims[last], std::array::from_fn(|walk| self.strides[walk][last]))
    }

    /// Number of positions.
    pub(crate) fn len(&self) -> usize {
        self.dims[..self.rank].iter().product()
    }

    /// The offsets of each walk at a position, counted in row-major order.
    pub(crate) fn at(&self, mut position: usize) -> [isize; N] {
        let mut offsets = [0; N];
        for axis in (0..self.rank).rev() {
            let along = (position % self.dims[axis]) as isize;
            position /= self.dims[axis];
            (0..N).for_each(|walk| offsets[walk] += along * self.strides[walk][axis]);
        }
        offsets
    }

    /// Calls `f` with the offsets of each walk at each position, in row-major order.
    #[inline(always)]
    pub(crate) fn each(&self, start: [isize; N], mut f: impl FnMut([isize; N])) {
        let mut rest = self.len();
        let mut position = [0usize; MAX_RANK];
        let mut offsets = start;
        while rest > 0 {
            f(offsets);
            rest -= 1;
            for axis in (0..self.rank).rev() {
                position[axis] += 1;
                if position[axis] < self.dims[axis] {
                    (0..N).for_each(|walk| offsets[walk] += self.strides[walk][axis]);
                    break;
                }
                position[axis] = 0;
                let back = self.dims[axis] as isize - 1;
                (0..N).for_each(|walk| offsets[walk] -= self.strides[walk][axis] * back);
            }
        }
    }
}

/// Moves on to the next position in row-major order, and from the last to the first; the first axis that has changed.
#[inline(always)]
pub(crate) fn advance(position: &mut [usize], dims: &[usize]) -> usize {
    for axis in (0..position.len()).rev() {
        position[axis] += 1;
        if position[axis] < dims[axis] {
            return axis;
        }
        position[axis] = 0;
    }
    0
}

/// Side of the squares in which a transposition is copied.
const BLOCK: usize = 16;

/// Copies a space of elements from `source` to `target`, each from its offset and by its strides
/// (walk 0 reads, walk 1 writes). Panics where an element is outside, which a caller's check of
/// sizes rules out.
pub(crate) fn copy<T: Plain>(
    source: &[T],
    from: isize,
    target: &mut [T],
    to: isize,
    dims: &[usize],
    strides: [&[isize]; 2],
) -> Result<()> {
    let space = Space::new(dims, strides)?;
    if space.len() == 0 {
        return Ok(());
    }
    let (outer, inner, [read, write]) = space.split_inner();
    let crossing = outer.rank.checked_sub(1).filter(|&axis| {
        read != 1 && outer.strides[0][axis] == 1 && inner >= BLOCK && outer.dims[axis] >= BLOCK
    });
    if let Some(axis) = crossing {
        let mut rest = outer.clone();
        rest.rank -= 1;
        let columns = outer.dims[axis];
        let across = outer.strides[1][axis];
        rest.each([from, to], |[from, to]| {
            if size_of::<T>() == size_of::<f32>()
                && write == 1
                && let (Ok(source), Ok(target)) =
                    (bytemuck::try_cast_slice(source), bytemuck::try_cast_slice_mut(target))
            {
                // Vectors only move them: whatever their type, bits stay.
                let matrix = Matrix { source, from, read, target, to, across, columns, rows: inner };
                return f32::dispatch(matrix);
            }
            transpose_blocks((source, from, read), (target, to, across, write), columns, inner);
        });
        return Ok(());
    }
    outer.each([from, to], |[from, to]| match (read, write) {
        (1, 1) => target[to as usize..][..inner].copy_from_slice(&source[from as usize..][..inner]),
        (0, 1) => target[to as usize..][..inner].fill(source[from as usize]),
        _ => {
            for i in 0..inner as isize {
                target[(to + i * write) as usize] = source[(from + i * read) as usize];
            }
        }
    });
    Ok(())
}

/// A matrix whose source is contiguous along `columns` and whose target is along `rows`.
struct Matrix<'a> {
    source: &'a [f32],
    from: isize,
    read: isize,
    target: &'a mut [f32],
    to: isize,
    across: isize,
    columns: usize,
    rows: usize,
}

impl Task<f32> for Matrix<'_> {
    /// Copies it, square by square: a side is a vector.
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, lanes: L) {
        let Self { source, from, read, target, to, across, columns, rows } = self;
        let (whole_columns, whole_rows) = (columns - columns % L::WIDTH, rows - rows % L::WIDTH);
        let mut square = [lanes.zero(); 16];
        for column in (0..whole_columns).step_by(L::WIDTH) {
            for row in (0..whole_rows).step_by(L::WIDTH) {
                for r in 0..L::WIDTH {
                    let at = from + column as isize + (row + r) as isize * read;
                    square[r] = lanes.load(&source[at as usize..]);
                }
                lanes.turn(&mut square);
                for c in 0..L::WIDTH {
                    let at = to + (column + c) as isize * across + row as isize;
                    lanes.store(square[c], &mut target[at as usize..]);
                }
            }
        }
        // What no square holds: the last columns, and the last rows of the others.
        let (right, below) = (columns - whole_columns, rows - whole_rows);
        let place = |column: usize, row: usize| {
            [from + column as isize + row as isize * read, to + column as isize * across + row as isize]
        };
        let [x, y] = place(whole_columns, 0);
        transpose_blocks((source, x, read), (target, y, across, 1), right, rows);
        let [x, y] = place(0, whole_rows);
        transpose_blocks((source, x, read), (target, y, across, 1), whole_columns, below);
    }
}

/// Copies a matrix whose source is contiguous along `columns` and whose target has `write` along
/// `rows`, square by square.
fn transpose_blocks<T: Copy>(
    (source, from, read): (&[T], isize, isize),
    (target, to, across, write): (&mut [T], isize, isize, isize),
    columns: usize,
    rows: usize,
) {
    for column in (0..columns).step_by(BLOCK) {
        for row in (0..rows).step_by(BLOCK) {
            for c in column..(column + BLOCK).min(columns) {
                for r in row..(row + BLOCK).min(rows) {
                    let (r, c) = (r as isize, c as isize);
                    target[(to + c * across + r * write) as usize] = source[(from + c + r * read) as usize];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_merge_where_both_walks_allow_it() {
        let space = Space::new(&[2, 1, 3, 4], [&[12, 5, 4, 1], &[0, 5, 4, 1]]).unwrap();
        assert_eq!(space.rank, 2);
        assert_eq!(space.dims[..2], [2, 12]);
        let mut seen = Vec::new();
        space.each([100, 0], |offsets| seen.push(offsets));
        assert_eq!(seen.len(), 24);
        assert_eq!(seen[0], [100, 0]);
        assert_eq!(seen[23], [123, 11]);
    }

    fn check_transposition<T: Plain + PartialEq + std::fmt::Debug>(
        rows: usize,
        columns: usize,
        number: impl Fn(usize) -> T,
    ) {
        let source: Vec<T> = (0..rows * columns).map(&number).collect();
        let mut target = vec![number(0); rows * columns];
        let (read, write) = ([1, columns as isize], [rows as isize, 1]);
        copy(&source, 0, &mut target, 0, &[columns, rows], [&read, &write]).unwrap();
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            assert_eq!(target[column * rows + row], source[row * columns + column], "{rows} {columns}");
        }
    }

    #[test]
    fn a_transposition_in_blocks_is_exact() {
        for (rows, columns) in [(37, 41), (16, 16), (64, 33), (17, 100), (48, 15), (130, 31)] {
            // Bits of every kind of number, those that are none among them.
            check_transposition(rows, columns, |i| (i as u32).wrapping_mul(0x9e37_79b9));
            check_transposition(rows, columns, |i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            check_transposition(rows, columns, |i| (i * 7919) as u16);
            check_transposition(rows, columns, |i| (i * 31) as u8);
        }
    }
}
