//! Convolutions of each channel for itself, channels first, whose windows have three axes: for a slice of the result, the
//! windows of each slice of the input that it touches, one behind the other, as `depthwise` has those of two axes.

use super::super::element::Float;
use super::super::elementwise::tile::Epilogue;
use super::super::product::blocks::AREA;
use super::super::product::matmul::{Product, with_area};
use super::super::team::Team;
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Plain, bytes_of_mut, take};
use super::conv::{ConvOperands, Groups};
use super::depthwise::PART;
use super::grid::Grid;
use super::phases::{Phases, SPARE, copy_row};

/// Weights `[out, 1, window]`. False where windows are large, or rows long; nothing is done then.
pub(crate) fn depthwise<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    operands: ConvOperands<'_, T>,
    out: &mut [T],
    epilogue: Option<&Epilogue<'_>>,
) -> bool {
    let Some(phases) = Phases::new(&grid.flat(), AREA / size_of::<T>()) else { return false };
    let slice = grid.small[1] * grid.small[2];
    let slices = (PART / slice).max(1);
    team.each_chunk(out, slices * slice, |part, out| {
        let first = part * slices;
        with_area(|area| {
            let out = &mut *out;
            T::dispatch(Slices { phases: &phases, grid, groups, operands, first, out, area });
        });
        if let Some(epilogue) = epilogue {
            epilogue.apply(first * slice, bytes_of_mut(out));
        }
    });
    true
}

/// Some slices of the result from one on, of windows over three axes: what each slice of the input adds, one behind the
/// other. Each term is rounded by itself.
struct Slices<'a, T> {
    /// Of a slice.
    phases: &'a Phases,
    grid: &'a Grid,
    groups: &'a Groups,
    operands: ConvOperands<'a, T>,
    first: usize,
    out: &'a mut [T],
    /// Of [`AREA`] bytes, aligned to 64.
    area: &'a mut [u8],
}

impl<T: Plain + Float> Task<T> for Slices<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { phases, grid, groups, operands: ConvOperands { x, weights, bias }, first, out, mut area } =
            self;
        let Phases { small: [rows, across], tall, width, .. } = *phases;
        let (Ok(padded), Ok(sums)) =
            (take::<T>(&mut area, phases.elements() + SPARE), take::<T>(&mut area, tall * width + SPARE))
        else {
            return;
        };
        let (window, slice) = (phases.offsets().len(), phases.plane());
        for (number, out) in (first..).zip(out.chunks_exact_mut(rows * across)) {
            let (plane, z) = (number / grid.small[0], number % grid.small[0]);
            let (image, channel) = (plane / groups.outputs(), plane % groups.outputs());
            let x = &x[(image * groups.count + channel / groups.outer) * grid.area()..];
            let weights = &weights[channel * window * grid.kernel[0]..];
            for top in (0..rows).step_by(tall) {
                let height = tall.min(rows - top);
                let count = (height - 1) * width + across;
                let sums = &mut sums[..count.next_multiple_of(L::WIDTH)];
                sums.fill(bias.map_or(T::ZERO, |bias| bias[channel]));
                for deep in 0..grid.kernel[0] {
                    let Some(z) = grid.touch(0, z, deep) else { continue };
                    phases.fill(lanes, &x[z * slice..], top, T::ZERO, padded);
                    add_apart(lanes, phases.offsets(), padded, &weights[deep * window..], sums);
                }
                for row in 0..height {
                    // What is written beyond a row is written again with the next one.
                    copy_row(lanes, &sums[row * width..], across, &mut out[(top + row) * across..]);
                }
            }
        }
    }
}

/// Adds a window's terms to each of the sums, whose number is whole vectors.
#[inline(always)]
fn add_apart<T: Plain + Float, L: Lanes<T>>(
    lanes: L,
    offsets: &[usize],
    plane: &[T],
    weights: &[T],
    sums: &mut [T],
) {
    let mut at = 0;
    while at < sums.len() {
        let (plane, sums) = (&plane[at..], &mut sums[at..]);
        at += L::WIDTH
            * match sums.len() / L::WIDTH {
                8.. => tile_apart::<T, L, 8>(lanes, offsets, plane, weights, sums),
                4.. => tile_apart::<T, L, 4>(lanes, offsets, plane, weights, sums),
                2.. => tile_apart::<T, L, 2>(lanes, offsets, plane, weights, sums),
                _ => tile_apart::<T, L, 1>(lanes, offsets, plane, weights, sums),
            };
    }
}

/// Vectors whose terms are added side by side; how many.
#[inline(always)]
fn tile_apart<T: Plain + Float, L: Lanes<T>, const V: usize>(
    lanes: L,
    offsets: &[usize],
    plane: &[T],
    weights: &[T],
    to: &mut [T],
) -> usize {
    let to = &mut to[..V * L::WIDTH];
    let mut sums = [lanes.zero(); V];
    for v in 0..V {
        sums[v] = lanes.load(&to[v * L::WIDTH..]);
    }
    for (&offset, &weight) in offsets.iter().zip(weights) {
        let weight = lanes.splat(weight);
        let plane = &plane[offset..][..V * L::WIDTH];
        for v in 0..V {
            let x = lanes.load(&plane[v * L::WIDTH..][..L::WIDTH]);
            sums[v] = lanes.add(sums[v], lanes.mul(weight, x));
        }
    }
    for (v, &sum) in sums.iter().enumerate() {
        lanes.store(sum, &mut to[v * L::WIDTH..]);
    }
    V
}

#[cfg(test)]
mod tests {
    use super::super::depthwise::by_runs;
    use super::*;
    use crate::ir::Window;
    use crate::run::cpu::numbers;
    use crate::run::cpu::vectors::Portable;

    struct Case {
        grid: Grid,
        groups: Groups,
    }

    impl Case {
        /// Input and window, stride, dilation, padding.
        fn new(large: [usize; 3], kernel: [usize; 3], stride: i64, dilation: i64, pad: i64) -> Self {
            let reach = |axis: usize| (kernel[axis] - 1) * dilation as usize + 1;
            let size = |axis: usize| (large[axis] + 2 * pad as usize - reach(axis)) / stride as usize + 1;
            let window = Window {
                strides: vec![stride; 3],
                dilations: vec![dilation; 3],
                pads_before: vec![pad; 3],
                pads_after: vec![pad; 3],
            };
            let grid = Grid::new(&window, &[size(0), size(1), size(2)], &large, &kernel).unwrap();
            Self { grid, groups: Groups { batch: 2, count: 3, inner: 1, outer: 2 } }
        }

        /// Input, weights and bias.
        fn inputs(&self) -> [Vec<f32>; 3] {
            let window: usize = self.grid.kernel.iter().product();
            let (images, planes) = (self.groups.batch * self.groups.count, self.groups.outputs());
            [numbers(images * self.grid.area(), 1), numbers(planes * window, 2), numbers(planes, 3)]
        }

        fn size(&self) -> usize {
            self.groups.batch * self.groups.outputs() * self.grid.positions()
        }

        fn expected(&self) -> Vec<f32> {
            let [x, weights, bias] = self.inputs();
            let operands = ConvOperands { x: &x, weights: &weights, bias: Some(&bias) };
            let mut out = vec![0.0; self.size()];
            for (plane, out) in out.chunks_mut(self.grid.positions()).enumerate() {
                by_runs(&self.grid, &self.groups, operands, plane, out);
            }
            out
        }

        fn with<L: Lanes<f32>>(&self, lanes: L) -> Vec<f32> {
            let [x, weights, bias] = self.inputs();
            let operands = ConvOperands { x: &x, weights: &weights, bias: Some(&bias) };
            let phases = Phases::new(&self.grid.flat(), AREA / 4).unwrap();
            let (mut out, mut area) = (vec![0.0; self.size()], vec![0u64; AREA / 8]);
            let (out_of, area) = (&mut out[..], bytes_of_mut(&mut area));
            let (grid, groups) = (&self.grid, &self.groups);
            Slices { phases: &phases, grid, groups, operands, first: 0, out: out_of, area }.run(lanes);
            out
        }
    }

    fn cases() -> [Case; 6] {
        [
            Case::new([4, 7, 19], [3, 3, 3], 1, 1, 1),
            Case::new([5, 9, 33], [3, 3, 3], 2, 1, 1),
            Case::new([6, 8, 8], [2, 3, 5], 1, 1, 2),
            Case::new([7, 9, 21], [3, 2, 3], 2, 2, 2),
            Case::new([3, 70, 90], [3, 5, 5], 1, 1, 0),
            Case::new([2, 2, 3], [2, 2, 2], 1, 1, 0),
        ]
    }

    #[test]
    fn slices_add_up_to_the_bits_of_whole_windows() {
        for case in cases() {
            assert_eq!(case.with(Portable), case.expected(), "{:?}", case.grid);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        use crate::run::cpu::vectors::{Avx2, Avx512};
        for case in cases() {
            let expected = case.with(Portable);
            if let Some(lanes) = Avx2::find() {
                assert_eq!(case.with(lanes), expected, "{:?}", case.grid);
            }
            if let Some(lanes) = Avx512::find() {
                assert_eq!(case.with(lanes), expected, "{:?}", case.grid);
            }
        }
    }
}
