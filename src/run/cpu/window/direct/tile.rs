//! Tiles of a convolution: their sums in registers, and how complete sums become rows of the result.
//!
//! Holds `unsafe`: where a term lies is not checked for each of them, but for the farthest one.

use super::super::super::element::Float;
use super::super::super::elementwise::tile::Epilogue;
use super::super::super::product::blocks::{CHAIN, PANEL};
use super::super::super::team::MatrixMut;
use super::super::super::vectors::{Lanes, fetch_second};
use super::super::super::view::{Plain, bytes_of_mut};
use super::super::grid::Grid;
use super::{DEPTH, Padded, WIDEST};

/// Elements of a line of the cache, of the larger type.
const LINE: usize = 16;

/// Where the terms of a block lie, counted from the first element of a window.
pub(crate) struct Offsets {
    at: [usize; DEPTH],
    count: usize,
    /// The largest.
    reach: usize,
}

impl Offsets {
    #[inline(always)]
    pub(crate) fn new<T>(grid: &Grid, padded: &Padded<'_, T>, first: usize, count: usize) -> Self {
        let mut at = [0; DEPTH];
        let [_, height, width] = grid.kernel;
        let window = height * width;
        let (mut channel, mut element) = (first / window, first % window);
        for at in &mut at[..count] {
            let (y, x) = (element / width * grid.dilation[1], element % width * grid.dilation[2]);
            *at = channel * padded.plane + y * padded.width + x;
            element += 1;
            if element == window {
                (channel, element) = (channel + 1, 0);
            }
        }
        let reach = at[..count].iter().copied().max().unwrap_or(0);
        Self { at, count, reach }
    }
}

/// Positions and a block of weights.
pub(crate) struct Strip<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) places: &'a [u64],
    pub(crate) offsets: &'a Offsets,
    /// [`PANEL`] elements from term to term.
    pub(crate) b: &'a [T],
    /// What is read after them, fetched meanwhile.
    pub(crate) ahead: &'a [T],
}

impl<T: Plain + Float> Strip<'_, T> {
    /// Adds the block's terms to the sums, [`PANEL`] for each position, or begins with some.
    #[inline(always)]
    pub(crate) fn multiply<L: Lanes<T>>(
        &self,
        lanes: L,
        sums: &mut [T],
        begin: Option<&[T; PANEL]>,
        channels: usize,
    ) {
        let last = self.places.iter().copied().max().unwrap_or(0) as usize;
        assert!(last + self.offsets.reach < self.x.len());
        assert!((self.offsets.count - 1) * PANEL + PANEL <= self.b.len());
        let mut column = 0;
        while column < channels {
            let vectors = (channels - column).div_ceil(L::WIDTH).min(L::VECTORS);
            let mut at = 0;
            while at < self.places.len() {
                let left = self.places.len() - at;
                let place = (at, column);
                at += match (vectors, left) {
                    (4, 6..) if L::VECTORS >= 4 => self.tile::<L, 6, 4>(lanes, place, sums, begin),
                    (4, 4..) if L::VECTORS >= 4 => self.tile::<L, 4, 4>(lanes, place, sums, begin),
                    (4, 2..) if L::VECTORS >= 4 => self.tile::<L, 2, 4>(lanes, place, sums, begin),
                    (4, _) if L::VECTORS >= 4 => self.tile::<L, 1, 4>(lanes, place, sums, begin),
                    (3, 8..) if L::VECTORS >= 4 => self.tile::<L, 8, 3>(lanes, place, sums, begin),
                    (3, 4..) if L::VECTORS >= 4 => self.tile::<L, 4, 3>(lanes, place, sums, begin),
                    (3, 2..) if L::VECTORS >= 4 => self.tile::<L, 2, 3>(lanes, place, sums, begin),
                    (3, _) if L::VECTORS >= 4 => self.tile::<L, 1, 3>(lanes, place, sums, begin),
                    (2, 12..) if L::VECTORS >= 4 => self.tile::<L, 12, 2>(lanes, place, sums, begin),
                    (2, 6..) => self.tile::<L, 6, 2>(lanes, place, sums, begin),
                    (2, 2..) => self.tile::<L, 2, 2>(lanes, place, sums, begin),
                    (2, _) => self.tile::<L, 1, 2>(lanes, place, sums, begin),
                    (_, 12..) => self.tile::<L, 12, 1>(lanes, place, sums, begin),
                    (_, 6..) => self.tile::<L, 6, 1>(lanes, place, sums, begin),
                    (_, 2..) => self.tile::<L, 2, 1>(lanes, place, sums, begin),
                    _ => self.tile::<L, 1, 1>(lanes, place, sums, begin),
                };
            }
            column += vectors * L::WIDTH;
        }
    }

    /// One tile; its positions.
    #[inline(always)]
    fn tile<L: Lanes<T>, const R: usize, const V: usize>(
        &self,
        lanes: L,
        (at, column): (usize, usize),
        sums: &mut [T],
        begin: Option<&[T; PANEL]>,
    ) -> usize {
        let x: [*const T; R] = std::array::from_fn(|i| self.x[self.places[at + i] as usize..].as_ptr());
        let rows = &mut sums[at * PANEL..][..R * PANEL];
        let ahead = self.ahead.get(at / R * self.offsets.count * LINE..).unwrap_or(&[]);
        for first in (0..self.offsets.count).step_by(CHAIN) {
            let offsets = &self.offsets.at[first..self.offsets.count.min(first + CHAIN)];
            let mut tile = [[lanes.zero(); V]; R];
            for (p, &offset) in offsets.iter().enumerate() {
                let b: [L::Vector; V] = std::array::from_fn(|v| {
                    lanes.load(&self.b[(first + p) * PANEL + column + v * L::WIDTH..])
                });
                if let Some(ahead) = ahead.get((first + p) * LINE) {
                    fetch_second(std::ptr::from_ref(ahead).cast(), size_of::<T>());
                }
                for i in 0..R {
                    // SAFETY: `multiply` saw that the farthest term of the farthest place lies within `x`.
                    let x = lanes.splat(unsafe { *x[i].add(offset) });
                    for v in 0..V {
                        tile[i][v] = lanes.fused(x, b[v], tile[i][v]);
                    }
                }
            }
            let begin = begin.filter(|_| first == 0);
            for (row, tile) in rows.chunks_exact_mut(PANEL).zip(&tile) {
                for (v, &sum) in tile.iter().enumerate() {
                    let own = &mut row[column + v * L::WIDTH..][..L::WIDTH];
                    let from = lanes.load(begin.map_or(&*own, |begin| &begin[column + v * L::WIDTH..]));
                    lanes.store(lanes.add(from, sum), own);
                }
            }
        }
        R
    }
}

/// Turns the sums into rows of the result, and does what follows.
#[inline(always)]
pub(crate) fn finish<T: Plain + Float, L: Lanes<T>>(
    lanes: L,
    sums: &[T],
    made: &mut [T],
    out: &mut MatrixMut<'_, T>,
    epilogue: Option<(&Epilogue<'_>, usize, usize)>,
) {
    let Some((epilogue, start, width)) = epilogue else { return turn(lanes, sums, out) };
    // They lie apart meanwhile: what is both read and written would be copied first.
    let (rows, columns) = (out.rows, out.columns);
    turn(lanes, sums, &mut MatrixMut::new(&mut *made, (rows, columns), columns));
    if let (true, Some(out)) = (columns == width, out.contiguous()) {
        epilogue.apply_to(start, bytes_of_mut(&mut made[..rows * columns]), bytes_of_mut(out), false);
        return;
    }
    for (r, made) in (0..rows).zip(made.chunks_mut(columns)) {
        epilogue.apply_to(start + r * width, bytes_of_mut(made), bytes_of_mut(out.row(r)), false);
    }
}

/// Turns sums, [`PANEL`] for each column of the result.
#[inline(always)]
fn turn<T: Plain + Float, L: Lanes<T>>(lanes: L, sums: &[T], out: &mut MatrixMut<'_, T>) {
    for row in (0..out.rows).step_by(L::WIDTH) {
        for column in (0..out.columns).step_by(L::WIDTH) {
            let mut square = [lanes.zero(); WIDEST];
            for (i, vector) in square[..L::WIDTH].iter_mut().enumerate() {
                *vector = lanes.load(&sums[(column + i) * PANEL + row..]);
            }
            lanes.turn(&mut square);
            let (height, width) = (L::WIDTH.min(out.rows - row), L::WIDTH.min(out.columns - column));
            for (i, &vector) in square[..height].iter().enumerate() {
                let to = &mut out.row(row + i)[column..];
                if width == L::WIDTH {
                    lanes.store(vector, to);
                } else {
                    let mut spare = [T::ZERO; WIDEST];
                    lanes.store(vector, &mut spare);
                    to[..width].copy_from_slice(&spare[..width]);
                }
            }
        }
    }
}
