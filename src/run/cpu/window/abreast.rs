//! Convolutions of each channel for itself, channels first, of small planes: as many channels side by side as a vector
//! has numbers.
//!
//! Rows of such planes are shorter than vectors. The planes are turned, so that a vector holds one position of all of
//! them, with the padding around: what a window's element adds is a product of two vectors for each position of the
//! result. The sums are turned back. Every sum is of the same terms in the same order as in `depthwise`.

use super::super::element::Float;
use super::super::elementwise::tile::Epilogue;
use super::super::product::blocks::CHAIN;
use super::super::product::matmul::{Product, with_area};
use super::super::team::Team;
use super::super::vectors::{Lanes, Stores, Task, Vectorised};
use super::super::view::{Plain, bytes_of_mut, take};
use super::conv::{ConvOperands, Groups};
use super::grid::Grid;

/// Most numbers of a vector, and of planes that are computed together.
const WIDEST: usize = 16;
/// Most elements of a window.
const WINDOW: usize = 64;
/// Most positions of a plane with its padding: the first cache holds as many vectors.
const PLANE: usize = 512;
/// Longest rows of a result, which are shorter than the widest vectors.
const SHORT: usize = 14;

/// How small planes are computed.
struct Abreast {
    /// Rows and columns of positions, of a plane, and of it with its padding.
    small: [usize; 2],
    large: [usize; 2],
    padded: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    /// Where a window's elements are, counted in positions from its first.
    offsets: [usize; WINDOW],
    window: usize,
}

impl Abreast {
    /// None where windows have three axes or planes are not small.
    fn new(grid: &Grid) -> Option<Self> {
        let two = |of: &[usize; 3]| [of[1], of[2]];
        let (small, large, kernel) = (two(&grid.small), two(&grid.large), two(&grid.kernel));
        let (stride, dilation, pad) = (two(&grid.stride), two(&grid.dilation), two(&grid.pad));
        let one = grid.small[0] == 1 && grid.large[0] == 1 && grid.kernel[0] == 1 && grid.pad[0] == 0;
        let window = kernel[0].checked_mul(kernel[1])?;
        let is_small = small[1] <= SHORT && small[0] <= PLANE && large[0] <= PLANE && large[1] <= PLANE;
        if !one || !is_small || window == 0 || window > WINDOW || small.contains(&0) || large.contains(&0) {
            return None;
        }
        // What windows reach, and the plane itself.
        let size = |axis: usize| {
            let reach = (kernel[axis] - 1).checked_mul(dilation[axis])?;
            let reach = (small[axis] - 1).checked_mul(stride[axis])?.checked_add(reach)?.checked_add(1)?;
            Some(reach.max(pad[axis].checked_add(large[axis])?))
        };
        let padded = [size(0)?, size(1)?];
        let mut offsets = [0; WINDOW];
        for (element, offset) in offsets[..window].iter_mut().enumerate() {
            let at = [element / kernel[1] * dilation[0], element % kernel[1] * dilation[1]];
            *offset = at[0] * padded[1] + at[1];
        }
        let fits = padded[0].checked_mul(padded[1])? <= PLANE;
        fits.then_some(Self { small, large, padded, stride, pad, offsets, window })
    }

    fn positions(&self) -> usize {
        self.small[0] * self.small[1]
    }
}

/// Weights `[out, 1, window]`. False where planes are not small; nothing is done then.
pub(crate) fn depthwise<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    operands: ConvOperands<'_, T>,
    out: &mut [T],
    epilogue: Option<&Epilogue<'_>>,
) -> bool {
    let Some(abreast) = Abreast::new(grid).filter(|_| groups.batch * groups.outputs() >= WIDEST) else {
        return false;
    };
    // Several vectors of planes are a part.
    let planes = WIDEST * (PART / (WIDEST * abreast.positions())).max(1);
    team.each_chunk(out, planes * abreast.positions(), |part, out| {
        let first = part * planes;
        with_area(|area| {
            let out = &mut *out;
            T::dispatch(Planes { abreast: &abreast, groups, operands, first, out, epilogue, area });
        });
    });
    true
}

/// Elements of results that one part computes, about.
const PART: usize = 4096;

/// Some planes of the result from one on.
struct Planes<'a, T> {
    abreast: &'a Abreast,
    groups: &'a Groups,
    operands: ConvOperands<'a, T>,
    first: usize,
    out: &'a mut [T],
    epilogue: Option<&'a Epilogue<'a>>,
    /// Of [`blocks::AREA`](super::super::product::blocks::AREA) bytes, aligned to 64.
    area: &'a mut [u8],
}

impl<T: Plain + Float> Task<T> for Planes<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { abreast, groups, operands, first, out, epilogue, mut area } = self;
        let ConvOperands { x, weights, bias } = operands;
        let (positions, plane) = (abreast.positions(), abreast.large[0] * abreast.large[1]);
        let whole = |count: usize| count.next_multiple_of(WIDEST) * L::WIDTH;
        let (Ok(padded), Ok(turned), Ok(sums), Ok(made)) = (
            take::<T>(&mut area, abreast.padded[0] * abreast.padded[1] * L::WIDTH),
            take::<T>(&mut area, whole(abreast.window)),
            take::<T>(&mut area, whole(positions)),
            take::<T>(&mut area, L::WIDTH * positions),
        ) else {
            return;
        };
        // What is around planes stays as it is.
        padded.fill(T::ZERO);
        for (number, out) in out.chunks_mut(L::WIDTH * positions).enumerate() {
            let first = first + number * L::WIDTH;
            let count = out.len() / positions;
            let mut begin = [T::ZERO; WIDEST];
            let mut sources = [0; WIDEST];
            for lane in 0..count {
                let (image, channel) = ((first + lane) / groups.outputs(), (first + lane) % groups.outputs());
                begin[lane] = bias.map_or(T::ZERO, |bias| bias[channel]);
                sources[lane] = (image * groups.count + channel / groups.outer) * plane;
            }
            turn_planes(lanes, abreast, x, &sources[..count], padded);
            for lane in 0..count {
                sources[lane] = (first + lane) % groups.outputs() * abreast.window;
            }
            turn_rows(lanes, weights, &sources[..count], abreast.window, turned);
            add_up(lanes, abreast, padded, turned, lanes.load(&begin), sums);
            let start = first * positions;
            match epilogue {
                None => turn_back(lanes, sums, positions, out),
                Some(epilogue) => {
                    let made = &mut made[..out.len()];
                    turn_back(lanes, sums, positions, made);
                    epilogue.apply_to(start, bytes_of_mut(made), bytes_of_mut(out), Stores::Cached);
                }
            }
        }
    }
}

/// A square of elements of rows that begin at these places of `x`, from one on: the first of all rows, the second, and so
/// on. Rows are `count` elements long.
#[inline(always)]
fn square<T: Plain, L: Lanes<T>>(
    lanes: L,
    x: &[T],
    sources: &[usize],
    at: usize,
    count: usize,
) -> [L::Vector; WIDEST] {
    let mut square = [lanes.zero(); WIDEST];
    for (lane, &source) in sources.iter().enumerate() {
        let from = &x[source + at..];
        square[lane] =
            if from.len() >= L::WIDTH { lanes.load(from) } else { lanes.load_some(&from[..count - at]) };
    }
    lanes.turn(&mut square);
    square
}

/// Rows of as many elements, turned: a vector for each element.
#[inline(always)]
fn turn_rows<T: Plain, L: Lanes<T>>(lanes: L, x: &[T], sources: &[usize], count: usize, to: &mut [T]) {
    for at in (0..count).step_by(L::WIDTH) {
        let square = square(lanes, x, sources, at, count);
        for i in 0..L::WIDTH {
            lanes.store(square[i], &mut to[(at + i) * L::WIDTH..]);
        }
    }
}

/// Planes, turned: a vector for each position, within the padding.
#[inline(always)]
fn turn_planes<T: Plain, L: Lanes<T>>(lanes: L, abreast: &Abreast, x: &[T], sources: &[usize], to: &mut [T]) {
    let Abreast { large: [rows, across], padded: [_, width], pad, .. } = *abreast;
    let count = rows * across;
    let (mut column, mut place) = (0, pad[0] * width + pad[1]);
    for at in (0..count).step_by(L::WIDTH) {
        let square = square(lanes, x, sources, at, count);
        for i in 0..L::WIDTH.min(count - at) {
            lanes.store(square[i], &mut to[place * L::WIDTH..]);
            (column, place) = (column + 1, place + 1);
            if column == across {
                (column, place) = (0, place + width - across);
            }
        }
    }
}

/// Sums turned into planes, one behind the other.
#[inline(always)]
fn turn_back<T: Plain, L: Lanes<T>>(lanes: L, sums: &[T], positions: usize, out: &mut [T]) {
    for at in (0..positions).step_by(L::WIDTH) {
        let mut square = [lanes.zero(); WIDEST];
        for i in 0..L::WIDTH {
            square[i] = lanes.load(&sums[(at + i) * L::WIDTH..]);
        }
        lanes.turn(&mut square);
        for (lane, plane) in out.chunks_exact_mut(positions).enumerate() {
            match &mut plane[at..] {
                to if to.len() >= L::WIDTH => lanes.store(square[lane], to),
                to => lanes.store_some(square[lane], to),
            }
        }
    }
}

/// The sums of all positions.
#[inline(always)]
fn add_up<T: Plain + Float, L: Lanes<T>>(
    lanes: L,
    abreast: &Abreast,
    padded: &[T],
    weights: &[T],
    begin: L::Vector,
    sums: &mut [T],
) {
    let Abreast { small: [rows, across], padded: [_, width], stride: [down, right], .. } = *abreast;
    let offsets = &abreast.offsets[..abreast.window];
    for row in 0..rows {
        let mut column = 0;
        while column < across {
            let x = &padded[(row * down * width + column * right) * L::WIDTH..];
            let to = &mut sums[(row * across + column) * L::WIDTH..];
            column += match across - column {
                7.. => tile::<T, L, 7>(lanes, offsets, right, x, weights, begin, to),
                4.. => tile::<T, L, 4>(lanes, offsets, right, x, weights, begin, to),
                2.. => tile::<T, L, 2>(lanes, offsets, right, x, weights, begin, to),
                _ => tile::<T, L, 1>(lanes, offsets, right, x, weights, begin, to),
            };
        }
    }
}

/// The sums of neighbouring positions; how many.
#[inline(always)]
fn tile<T: Plain + Float, L: Lanes<T>, const R: usize>(
    lanes: L,
    offsets: &[usize],
    right: usize,
    x: &[T],
    weights: &[T],
    begin: L::Vector,
    to: &mut [T],
) -> usize {
    const { assert!(WINDOW <= CHAIN) };
    let mut sums = [begin; R];
    for (&offset, weight) in offsets.iter().zip(weights.chunks_exact(L::WIDTH)) {
        let weight = lanes.load(weight);
        let x = &x[offset * L::WIDTH..][..((R - 1) * right + 1) * L::WIDTH];
        for r in 0..R {
            sums[r] = lanes.fused(weight, lanes.load(&x[r * right * L::WIDTH..]), sums[r]);
        }
    }
    for r in 0..R {
        lanes.store(sums[r], &mut to[r * L::WIDTH..]);
    }
    R
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Window;
    use crate::run::cpu::numbers;
    use crate::run::cpu::product::blocks::AREA;
    use crate::run::cpu::vectors::Portable;

    struct Case {
        grid: Grid,
        groups: Groups,
    }

    impl Case {
        /// Plane and window, stride, dilation, padding; channels, and results of each.
        fn new(
            (large, kernel): ([usize; 2], [usize; 2]),
            (stride, dilation, pad): (i64, i64, i64),
            (count, outer): (usize, usize),
        ) -> Self {
            let reach = |axis: usize| (kernel[axis] - 1) * dilation as usize + 1;
            let size = |axis: usize| (large[axis] + 2 * pad as usize - reach(axis)) / stride as usize + 1;
            let window = Window {
                strides: vec![stride; 2],
                dilations: vec![dilation; 2],
                pads_before: vec![pad; 2],
                pads_after: vec![pad; 2],
            };
            let grid = Grid::new(&window, &[size(0), size(1)], &large, &kernel).unwrap();
            Self { grid, groups: Groups { batch: 2, count, inner: 1, outer } }
        }

        /// Input, weights and bias.
        fn inputs(&self) -> [Vec<f32>; 3] {
            let (images, planes) = (self.groups.batch * self.groups.count, self.groups.outputs());
            let window: usize = self.grid.kernel.iter().product();
            [numbers(images * self.grid.area(), 1), numbers(planes * window, 2), numbers(planes, 3)]
        }

        fn planes(&self) -> usize {
            self.groups.batch * self.groups.outputs()
        }

        /// The sums of chains of fused terms.
        fn expected(&self) -> Vec<f32> {
            let ([x, weights, bias], grid) = (self.inputs(), &self.grid);
            let window: usize = grid.kernel.iter().product();
            let mut out = Vec::new();
            for plane in 0..self.planes() {
                let (image, channel) = (plane / self.groups.outputs(), plane % self.groups.outputs());
                let x = &x[(image * self.groups.count + channel / self.groups.outer) * grid.area()..];
                for position in 0..grid.positions() {
                    let at = [position / grid.small[2], position % grid.small[2]];
                    let terms = grid.offsets().zip(&weights[channel * window..]);
                    out.push(terms.fold(bias[channel], |sum, ([_, y, z], &weight)| {
                        let place = grid.touch(1, at[0], y).zip(grid.touch(2, at[1], z));
                        let x = place.map_or(0.0, |(row, column)| x[row * grid.large[2] + column]);
                        weight.mul_add(x, sum)
                    }));
                }
            }
            out
        }

        fn with<L: Lanes<f32>>(&self, lanes: L) -> Vec<f32> {
            let [x, weights, bias] = self.inputs();
            let operands = ConvOperands { x: &x, weights: &weights, bias: Some(&bias) };
            let (abreast, groups) = (Abreast::new(&self.grid).unwrap(), &self.groups);
            let mut out = vec![0.0; self.planes() * self.grid.positions()];
            let mut area = vec![0u64; AREA / 8];
            let area = bytes_of_mut(&mut area);
            let (first, epilogue) = (0, None);
            Planes { abreast: &abreast, groups, operands, first, out: &mut out, epilogue, area }.run(lanes);
            out
        }
    }

    fn cases() -> [Case; 7] {
        [
            Case::new(([7, 7], [3, 3]), (1, 1, 1), (19, 1)),
            Case::new(([14, 14], [5, 5]), (2, 1, 2), (16, 1)),
            Case::new(([9, 13], [3, 2]), (1, 2, 1), (5, 3)),
            Case::new(([20, 20], [3, 3]), (2, 1, 1), (20, 1)),
            Case::new(([1, 1], [3, 3]), (1, 1, 1), (33, 1)),
            Case::new(([5, 5], [5, 5]), (1, 1, 0), (8, 2)),
            Case::new(([8, 30], [2, 3]), (3, 1, 0), (17, 1)),
        ]
    }

    #[test]
    fn small_planes_are_those_of_the_definition() {
        for case in cases() {
            for (found, expected) in case.with(Portable).iter().zip(&case.expected()) {
                assert!((found - expected).abs() < 1e-5, "{:?}", case.grid);
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_gives_the_bits_of_chains() {
        use crate::run::cpu::vectors::{Avx2, Avx512};
        for case in cases() {
            if let Some(lanes) = Avx2::find() {
                assert_eq!(case.with(lanes), case.expected(), "{:?}", case.grid);
            }
            if let Some(lanes) = Avx512::find() {
                assert_eq!(case.with(lanes), case.expected(), "{:?}", case.grid);
            }
        }
    }
}
