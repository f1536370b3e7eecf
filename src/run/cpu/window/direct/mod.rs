//! Convolutions of many output channels, channels first, without unfolding.
//!
//! A tile of the result is some positions by a few vectors of output channels, whose sums lie in
//! registers; a term is one element of the input, the same for all channels of a position, times
//! vectors of packed weights. Where a term lies is the sum of two numbers: one that follows from the
//! position, and one from the channel and the element of the window. So windows are read where they
//! lie: in the input itself or, where they touch padding, in a copy of the rows that a chunk of
//! positions touches (compare Dukhan, "The Indirect Convolution Algorithm", arXiv 1907.02129, which
//! keeps pointers). A chunk's sums are position by position; when they are complete they are turned.
//!
//! Every element is the bias and chains of fused multiply-adds in ascending order of the terms, as in a
//! product of the weights and the unfolded windows: the bits are the same.

mod tile;

use tile::{Offsets, Strip, finish};

use super::super::element::Float;
use super::super::elementwise::tile::Epilogue;
use super::super::product::blocks::{AREA, PANEL, Panels, Part, Rhs, depth_of_blocks};
use super::super::product::matmul::Product;
use super::super::team::MatrixMut;
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Plain, take};
use super::grid::Grid;

/// Fewest output channels: a vector of the widest set.
const CHANNELS: usize = 16;
/// Fewest terms: turning the sums takes as long as some of them.
const TERMS: usize = 48;
/// Most terms of a block: a panel of weights of so many stays in the first cache.
const DEPTH: usize = 128;
/// About so many positions are a chunk: their sums stay in the second cache.
const CHUNK: usize = 224;
/// Positions of the tallest tile.
const TALL: usize = 12;
/// Most positions of a chunk, which may be one long row.
const LONGEST: usize = 1024;
/// Vectors' width, at most; chunks are filled up to a multiple.
const WIDEST: usize = 16;

/// How a convolution of one group is divided.
pub(crate) struct Direct<'a> {
    grid: &'a Grid,
    /// Input channels and output channels.
    inner: usize,
    outer: usize,
    /// Positions that are computed together.
    chunk: usize,
    copied: Copied,
}

/// What is copied of the input, for a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    /// Nothing: windows are in the input.
    Nothing,
    /// Windows are single elements: those that the chunk reads, side by side.
    Elements,
    /// The rows that the chunk touches, with padding, at this width.
    Rows(usize),
}

/// Where the windows' elements are.
#[derive(Clone, Copy)]
struct Padded<'a, T> {
    x: &'a [T],
    /// Elements from channel to channel, and from row to row.
    plane: usize,
    width: usize,
}

impl<'a> Direct<'a> {
    /// For windows of `inner` channels and `outer` output channels, of elements of `size` bytes. None
    /// where products do as well or better, windows have three axes, or rows are too long for the area.
    pub(crate) fn new(grid: &'a Grid, (inner, outer): (usize, usize), size: usize) -> Option<Self> {
        let one = grid.small[0] == 1 && grid.large[0] == 1 && grid.kernel[0] == 1;
        let window = grid.kernel[1].checked_mul(grid.kernel[2])?;
        let positions = grid.positions();
        // Many positions that are the input's own are multiplied in place, and need not be turned.
        let plain = grid.is_plain() && positions > CHUNK;
        let few = outer < CHANNELS || inner.checked_mul(window)? < TERMS;
        if !one || positions == 0 || grid.area() == 0 || few || plain {
            return None;
        }
        let [_, rows, across] = grid.small;
        let extent = |axis: usize| {
            let reach = (grid.kernel[axis] - 1).checked_mul(grid.dilation[axis])?.checked_add(1)?;
            (grid.small[axis] - 1).checked_mul(grid.stride[axis])?.checked_add(reach)
        };
        let (height, width) = (extent(1)?, extent(2)?);
        let padded = grid.pad != [0; 3] || height > grid.large[1] || width > grid.large[2];
        // Pieces of nearly equal size, so that the last one is not a small rest.
        let balanced = |all: usize, most: usize| all.div_ceil(all.div_ceil(most));
        let chunk = balanced(positions, CHUNK).next_multiple_of(TALL).min(positions);
        let (chunk, copied, strip) = if padded {
            let rows = balanced(rows, (CHUNK / across).clamp(1, rows));
            let height = height - (grid.small[1] - rows) * grid.stride[1];
            (rows * across, Copied::Rows(width), inner.checked_mul(height)?.checked_mul(width)?)
        } else if window == 1 && chunk < grid.area() {
            (chunk, Copied::Elements, inner.checked_mul(chunk)?)
        } else {
            (chunk, Copied::Nothing, 0)
        };
        let sums = chunk.checked_next_multiple_of(WIDEST)?.checked_mul(PANEL)?;
        // Sums as they are made, the same turned, the copied input, and a panel of weights.
        let needed = sums.checked_mul(2)?.checked_add(strip)?.checked_add(DEPTH * PANEL)?;
        let fits = chunk <= LONGEST && needed <= (AREA - RESERVE) / size;
        fits.then_some(Self { grid, inner, outer, chunk, copied })
    }

    /// Terms of an element of the result.
    pub(crate) fn depth(&self) -> usize {
        self.inner * self.grid.kernel[1] * self.grid.kernel[2]
    }

    /// Elements of an image.
    pub(crate) fn image(&self) -> usize {
        self.inner * self.grid.area()
    }

    /// Output channels and positions.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.outer, self.grid.positions())
    }

    /// Output channels and positions of the parts that the result of an image is divided in among threads.
    pub(crate) fn parts(&self, threads: usize) -> (usize, usize) {
        let (panels, chunks) = (self.outer.div_ceil(PANEL), self.grid.positions().div_ceil(self.chunk));
        // With less work for each, threads cost more than they save.
        let work = self.outer.saturating_mul(self.depth()).saturating_mul(self.grid.positions());
        let wanted = (PARTS * threads).min(work / WORK);
        let groups = if threads == 1 { 1 } else { wanted.div_ceil(chunks).clamp(1, panels) };
        (panels.div_ceil(groups) * PANEL, self.chunk)
    }

    /// Copies the rows that `count` positions from one on touch, with their padding; where the
    /// windows lie now.
    #[inline(always)]
    fn padded<'x, T: Plain + Float>(
        &self,
        x: &'x [T],
        (first, count): (usize, usize),
        strip: &'x mut [T],
    ) -> Padded<'x, T> {
        let Grid { large: [_, height, across], stride, dilation, pad, kernel, small, .. } = *self.grid;
        let area = height * across;
        let width = match self.copied {
            Copied::Nothing => return Padded { x, plane: area, width: across },
            Copied::Elements => {
                let strip = &mut strip[..self.inner * count];
                for (strip, x) in strip.chunks_exact_mut(count).zip(x.chunks_exact(area)) {
                    self.gather(x, first, strip);
                }
                return Padded { x: strip, plane: count, width: 0 };
            }
            Copied::Rows(width) => width,
        };
        let (top, bottom) = (first / small[2] * stride[1], (first + count - 1) / small[2] * stride[1]);
        let rows = bottom - top + (kernel[1] - 1) * dilation[1] + 1;
        let strip = &mut strip[..self.inner * rows * width];
        let kept = pad[2].min(width)..(pad[2] + across).min(width);
        for (channel, strip) in strip.chunks_exact_mut(rows * width).enumerate() {
            let x = &x[channel * area..][..area];
            for (row, to) in strip.chunks_exact_mut(width).enumerate() {
                match (top + row).checked_sub(pad[1]).filter(|&from| from < height) {
                    Some(from) => {
                        to[..kept.start].fill(T::ZERO);
                        to[kept.end..].fill(T::ZERO);
                        to[kept.clone()].copy_from_slice(&x[from * across..][..kept.len()]);
                    }
                    None => to.fill(T::ZERO),
                }
            }
        }
        Padded { x: strip, plane: rows * width, width }
    }

    /// Copies the elements of a plane that positions from one on read.
    #[inline(always)]
    fn gather<T: Plain>(&self, x: &[T], first: usize, to: &mut [T]) {
        let Grid { small: [.., across], large: [.., width], stride: [_, down, right], .. } = *self.grid;
        if (down, right) == (1, 1) && across == width {
            return to.copy_from_slice(&x[first..][..to.len()]);
        }
        let mut done = 0;
        while done < to.len() {
            let (y, column) = ((first + done) / across, (first + done) % across);
            let run = (across - column).min(to.len() - done);
            let from = x[y * down * width + column * right..].iter().step_by(right);
            to[done..][..run].iter_mut().zip(from).for_each(|(to, &x)| *to = x);
            done += run;
        }
    }

    /// Where the windows of positions from one on begin.
    fn places(&self, width: usize, first: usize, places: &mut [u64]) {
        let [_, _, across] = self.grid.small;
        let [_, down, right] = self.grid.stride;
        let top = match self.copied {
            Copied::Nothing => 0,
            Copied::Elements => return (0..).zip(places).for_each(|(at, place)| *place = at),
            Copied::Rows(_) => first / across,
        };
        let (mut y, mut x) = (first / across - top, first % across);
        for place in places {
            *place = (y * down * width + x * right) as u64;
            x += 1;
            if x == across {
                (y, x) = (y + 1, 0);
            }
        }
    }
}

/// Bytes of the area that hold the places of a chunk.
const RESERVE: usize = (LONGEST + WIDEST) * size_of::<u64>();
/// So many parts are enough for each thread, and each has so many multiplications where there are as many.
const PARTS: usize = 4;
const WORK: usize = 1 << 19;

/// Some positions of some output channels of one image.
pub(crate) struct Block<'a, 'c, T> {
    pub(crate) direct: &'a Direct<'a>,
    /// The image.
    pub(crate) x: &'a [T],
    /// A matrix of terms and output channels, from the first channel of this block on.
    pub(crate) weights: Rhs<'a, T>,
    /// From the first channel of this block on.
    pub(crate) bias: Option<&'a [T]>,
    /// The first position.
    pub(crate) first: usize,
    pub(crate) out: &'a mut MatrixMut<'c, T>,
    /// What follows, where the first element is in the tensor, and elements from row to row.
    pub(crate) epilogue: Option<(&'a Epilogue<'a>, usize, usize)>,
    /// Of [`AREA`] bytes, aligned to 64.
    pub(crate) area: &'a mut [u8],
}

impl<T: Plain + Float + Product + Vectorised> Task<T> for Block<'_, '_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { direct, x, weights, bias, first, out, epilogue, mut area } = self;
        let count = out.columns;
        let filled = count.next_multiple_of(WIDEST);
        let places = take::<u64>(&mut area, filled);
        let sums = take::<T>(&mut area, filled * PANEL);
        let made = take::<T>(&mut area, filled * PANEL);
        let packed = take::<T>(&mut area, DEPTH * PANEL);
        let rest = area.len() / size_of::<T>();
        let strip = take::<T>(&mut area, rest);
        let (Ok(places), Ok(sums), Ok(made), Ok(packed), Ok(strip)) = (places, sums, made, packed, strip)
        else {
            return;
        };
        let padded = direct.padded(x, (first, count), strip);
        direct.places(padded.width, first, &mut places[..count]);
        let depth = direct.depth();
        let deepest = depth_of_blocks(depth, DEPTH);
        for row in (0..out.rows).step_by(PANEL) {
            let channels = PANEL.min(out.rows - row);
            // The zero to which every sum is added unchanged.
            let mut begin = [T::from_f64(-0.0); PANEL];
            if let Some(bias) = bias {
                begin[..channels].copy_from_slice(&bias[row..][..channels]);
            }
            for inner in (0..depth).step_by(deepest) {
                let part = Part { inner, depth: deepest.min(depth - inner), column: row, columns: channels };
                let offsets = Offsets::new(direct.grid, &padded, inner, part.depth);
                let panels = Panels { k: depth, part, first: 0, from: weights, in_place: false };
                panels.pack(lanes, packed, &mut []);
                let b = panels.strided(0, channels).map_or(&*packed, |panel| panel.elements);
                let ahead = panels.beyond(channels);
                let strip = Strip { x: padded.x, places: &places[..count], offsets: &offsets, b, ahead };
                strip.multiply(lanes, sums, if inner == 0 { Some(&begin) } else { None }, channels);
            }
            let mut out = out.block((row, 0), (channels, count));
            finish(
                lanes,
                sums,
                made,
                &mut out,
                epilogue.map(|(epilogue, start, width)| (epilogue, start + row * width, width)),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Window;
    use crate::run::cpu::numbers;
    use crate::run::cpu::product::blocks::pack;
    use crate::run::cpu::product::matmul::Strides;
    use crate::run::cpu::vectors::Portable;
    use crate::run::cpu::view::bytes_of_mut;

    struct Case {
        grid: Grid,
        inner: usize,
        outer: usize,
    }

    impl Case {
        /// Large sizes, windows, strides, dilations, padding before and after, channels.
        fn new(
            large: [usize; 2],
            kernel: [usize; 2],
            stride: i64,
            dilation: i64,
            pads: [usize; 2],
            (inner, outer): (usize, usize),
        ) -> Self {
            let reach = |axis: usize| (kernel[axis] - 1) * dilation as usize + 1;
            let size = |axis: usize| (large[axis] + pads[0] + pads[1] - reach(axis)) / stride as usize + 1;
            let window = Window {
                strides: vec![stride; 2],
                dilations: vec![dilation; 2],
                pads_before: vec![pads[0] as i64; 2],
                pads_after: vec![pads[1] as i64; 2],
            };
            Self { grid: Grid::new(&window, &[size(0), size(1)], &large, &kernel).unwrap(), inner, outer }
        }

        fn inputs(&self, depth: usize) -> [Vec<f32>; 3] {
            let count = self.inner * self.grid.area();
            [numbers(count, 1), numbers(self.outer * depth, 2), numbers(self.outer, 3)]
        }

        fn with<L: Lanes<f32>>(&self, lanes: L, packed: bool) -> Vec<f32> {
            let direct = Direct::new(&self.grid, (self.inner, self.outer), 4).unwrap();
            let depth = direct.depth();
            let [x, weights, bias] = self.inputs(depth);
            let strides = Strides::rows(depth).transposed();
            let mut elements = vec![0.0; weights.len()];
            pack(&weights, strides, (depth, self.outer), &mut elements);
            let weights = match packed {
                true => Rhs::Packed { elements: &elements, columns: self.outer, from: 0 },
                false => Rhs::Strided(&weights, strides),
            };
            let (positions, mut area) = (self.grid.positions(), vec![0u64; AREA / 8]);
            let mut out = vec![0.0; self.outer * positions];
            let mut all = MatrixMut::new(&mut out, (self.outer, positions), positions);
            let (rows, columns) = direct.parts(2);
            for row in (0..self.outer).step_by(rows) {
                for first in (0..positions).step_by(columns) {
                    let size = (rows.min(self.outer - row), columns.min(positions - first));
                    let block = Block {
                        direct: &direct,
                        x: &x,
                        weights: weights.from(row),
                        bias: Some(&bias[row..]),
                        first,
                        out: &mut all.block((row, first), size),
                        epilogue: None,
                        area: bytes_of_mut(&mut area),
                    };
                    block.run(lanes);
                }
            }
            out
        }

        /// Compares with sums of f64.
        fn check(&self, found: &[f32]) {
            let (grid, window) = (&self.grid, self.grid.kernel[1] * self.grid.kernel[2]);
            let depth = self.inner * window;
            let [x, weights, bias] = self.inputs(depth);
            for (at, &found) in found.iter().enumerate() {
                let (channel, position) = (at / grid.positions(), at % grid.positions());
                let (row, column) = (position / grid.small[2], position % grid.small[2]);
                let term = |term: usize| {
                    let (from, element) = (term / window, term % window);
                    let y = grid.touch(1, row, element / grid.kernel[2]);
                    let place = y.zip(grid.touch(2, column, element % grid.kernel[2]));
                    place.map_or(0.0, |(y, x_)| {
                        let x = x[from * grid.area() + y * grid.large[2] + x_];
                        f64::from(x) * f64::from(weights[channel * depth + term])
                    })
                };
                let expected = f64::from(bias[channel]) + (0..depth).map(term).sum::<f64>();
                assert!((f64::from(found) - expected).abs() < 1e-5 * depth as f64, "{grid:?} {at}");
            }
        }
    }

    fn cases() -> [Case; 9] {
        [
            Case::new([7, 7], [3, 3], 1, 1, [1, 1], (6, 16)),
            Case::new([9, 5], [3, 3], 2, 1, [1, 1], (7, 70)),
            Case::new([14, 14], [1, 1], 1, 1, [0, 0], (50, 33)),
            Case::new([15, 13], [1, 1], 2, 1, [0, 0], (130, 17)),
            Case::new([12, 11], [3, 3], 1, 2, [2, 2], (15, 49)),
            Case::new([10, 17], [3, 5], 1, 1, [0, 0], (8, 24)),
            Case::new([23, 31], [5, 2], 3, 2, [3, 0], (5, 130)),
            Case::new([20, 30], [3, 3], 1, 1, [1, 0], (6, 64)),
            Case::new([1, 40], [1, 7], 1, 1, [3, 3], (9, 20)),
        ]
    }

    #[test]
    fn convolutions_of_every_kind_are_those_of_the_definition() {
        for case in cases() {
            let found = case.with(Portable, false);
            case.check(&found);
            assert_eq!(found, case.with(Portable, true), "packed, {:?}", case.grid);
        }
    }

    /// Without a fused operation [`Portable`] rounds twice; the sets that have it agree to the bit.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        use crate::run::cpu::vectors::{Avx2, Avx512};
        let (Some(wide), Some(narrow)) = (Avx512::find(), Avx2::find()) else { return };
        for case in cases() {
            let found = case.with(narrow, true);
            case.check(&found);
            assert_eq!(found, case.with(wide, true), "{:?}", case.grid);
        }
    }
}
