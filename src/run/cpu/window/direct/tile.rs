//! Tiles of a convolution: their sums in registers, and how complete sums become rows of the result.
//!
//! Holds `unsafe`: where a term lies is not checked for each of them, but for the farthest one.

use super::super::super::element::Float;
use super::super::super::elementwise::tile::Epilogue;
use super::super::super::product::blocks::{CHAIN, PANEL};
use super::super::super::team::MatrixMut;
use super::super::super::vectors::{Lanes, Stores, Task, fetch_second};
use super::super::super::view::{Plain, bytes_of_mut};
use super::super::grid::Grid;
use super::{DEPTH, Padded, WIDEST};

/// Elements of a line of the cache, of the larger type.
const LINE: usize = 16;

/// Where the terms of a block are, counted from the first element of a window.
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
                // Of a form, the positions of one tile.
                macro_rules! tile {
                    ($positions:literal, $vectors:literal) => {{
                        let sums = &mut *sums;
                        let strip = self;
                        lanes.outlined(Tile::<T, $positions, $vectors> { strip, at, column, sums, begin });
                        $positions
                    }};
                }
                at += match (vectors, left) {
                    (4, 6..) if L::VECTORS >= 4 => tile!(6, 4),
                    (4, 4..) if L::VECTORS >= 4 => tile!(4, 4),
                    (4, 2..) if L::VECTORS >= 4 => tile!(2, 4),
                    (4, _) if L::VECTORS >= 4 => tile!(1, 4),
                    (3, 8..) if L::VECTORS >= 4 => tile!(8, 3),
                    (3, 4..) if L::VECTORS >= 4 => tile!(4, 3),
                    (3, 2..) if L::VECTORS >= 4 => tile!(2, 3),
                    (3, _) if L::VECTORS >= 4 => tile!(1, 3),
                    (2, 12..) if L::VECTORS >= 4 => tile!(12, 2),
                    (2, 6..) => tile!(6, 2),
                    (2, 2..) => tile!(2, 2),
                    (2, _) => tile!(1, 2),
                    (_, 12..) => tile!(12, 1),
                    (_, 6..) => tile!(6, 1),
                    (_, 2..) => tile!(2, 1),
                    _ => tile!(1, 1),
                };
            }
            column += vectors * L::WIDTH;
        }
    }
}

/// One tile of the sums: `R` positions and `V` vectors of channels.
struct Tile<'a, T, const R: usize, const V: usize> {
    strip: &'a Strip<'a, T>,
    at: usize,
    column: usize,
    sums: &'a mut [T],
    begin: Option<&'a [T; PANEL]>,
}

impl<T: Plain + Float, const R: usize, const V: usize> Task<T> for Tile<'_, T, R, V> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { strip, at, column, sums, begin } = self;
        let x: [*const T; R] = std::array::from_fn(|i| strip.x[strip.places[at + i] as usize..].as_ptr());
        let rows = &mut sums[at * PANEL..][..R * PANEL];
        let ahead = strip.ahead.get(at / R * strip.offsets.count * LINE..).unwrap_or(&[]);
        for first in (0..strip.offsets.count).step_by(CHAIN) {
            let offsets = &strip.offsets.at[first..strip.offsets.count.min(first + CHAIN)];
            let mut tile = [[lanes.zero(); V]; R];
            for (p, &offset) in offsets.iter().enumerate() {
                let b: [L::Vector; V] = std::array::from_fn(|v| {
                    lanes.load(&strip.b[(first + p) * PANEL + column + v * L::WIDTH..])
                });
                if let Some(ahead) = ahead.get((first + p) * LINE) {
                    fetch_second(std::ptr::from_ref(ahead).cast(), size_of::<T>());
                }
                for i in 0..R {
                    // SAFETY: [`Strip::multiply`] saw that the farthest term of the farthest place lies within `x`.
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
    // They are apart meanwhile: what is both read and written would be copied first.
    let (rows, columns) = (out.rows, out.columns);
    turn(lanes, sums, &mut MatrixMut::new(&mut *made, (rows, columns), columns));
    if let (true, Some(out)) = (columns == width, out.contiguous()) {
        epilogue.apply_to(
            start,
            bytes_of_mut(&mut made[..rows * columns]),
            bytes_of_mut(out),
            Stores::Cached,
        );
        return;
    }
    for (r, made) in (0..rows).zip(made.chunks_mut(columns)) {
        epilogue.apply_to(start + r * width, bytes_of_mut(made), bytes_of_mut(out.row(r)), Stores::Cached);
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
