//! Poolings. Floats, channels first, are pooled as `depthwise` sums: whole vectors of neighbouring
//! positions. The largest of large windows are those of their rows first, then of their columns.

use crate::error::Result;
use crate::ir::{DType, Layout, Pool, PoolKind};

use super::super::element::Float;
use super::super::product::blocks::AREA;
use super::super::product::matmul::with_area;
use super::super::team::Team;
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Typed, View, ViewMut, take, with_element};
use super::super::walk::sizes;
use super::grid::{Grid, channels, spatial};
use super::maxima::Maxima;
use super::phases::{Phases, SPARE, copy_row};

/// Elements of results that one part computes, about.
const PART: usize = 4096;

/// `Op::Pool`.
pub(crate) fn pool(team: &Team<'_>, pool: &Pool, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    match x.dtype {
        DType::F32 => pool_floats::<f32>(team, pool, x, out),
        DType::F64 => pool_floats::<f64>(team, pool, x, out),
        _ => with_element!(x.dtype, T => pool_as::<T>(team, pool, x, out),
            half => Err(crate::error::Error::Internal("halves are widened before".to_owned()))),
    }
}

fn pool_floats<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    pool: &Pool,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (xd, od) = (sizes(x.dims)?, sizes(out.dims)?);
    let kernel = sizes(&pool.kernel)?;
    let grid = Grid::new(&pool.window, spatial(pool.layout, &od), spatial(pool.layout, &xd), &kernel)?;
    let first = pool.layout == Layout::ChannelsFirst && grid.area() > 0;
    let steps = if first { Steps::new(&grid, pool.kind, AREA / size_of::<T>()) } else { None };
    let Some(steps) = steps else { return pool_as::<T>(team, pool, x, out) };
    let (x, target) = (x.slice::<T>()?, out.slice::<T>()?);
    let plane = grid.small[1] * grid.small[2];
    let planes = (PART / plane).max(1);
    team.each_chunk(target, planes * plane, |part, out| {
        let first = part * planes;
        with_area(|area| T::dispatch(Planes { pool, grid: &grid, steps: &steps, x, first, out, area }));
    });
    Ok(())
}

/// How planes are pooled.
struct Steps {
    /// Whole windows; or their rows alone, of every row of the input.
    first: Phases,
    /// Columns of windows, over what was made of their rows: the largest of the largest.
    down: Option<Phases>,
    /// Elements of what is made of rows.
    middle: usize,
}

impl Steps {
    /// Where so many elements are the thread's own. None where windows are too large.
    fn new(grid: &Grid, kind: PoolKind, area: usize) -> Option<Self> {
        let whole = grid.flat();
        // Beside the phases: numbers of elements, and what rounds up to whole vectors.
        let area = area.checked_sub(grid.small[2].checked_add(grid.small[1])?.checked_add(5 * SPARE)?)?;
        let [[_, rows, _], [_, high, wide]] = [grid.large, grid.kernel];
        let [_, down, across] = grid.small;
        let middle = rows.checked_mul(across)?;
        let [apart, together] =
            [wide.saturating_mul(rows).saturating_add(high.saturating_mul(down)), wide.saturating_mul(high)];
        // Two steps copy twice: few elements of a window are folded at once.
        let is_less = apart.saturating_mul(3) <= together.saturating_mul(down);
        if kind == PoolKind::Max && grid.kernel[0] == 1 && is_less && middle <= area / 4 {
            let of_rows = Grid {
                small: [1, rows, across],
                kernel: [1, 1, wide],
                stride: [1, 1, grid.stride[2]],
                dilation: [1, 1, grid.dilation[2]],
                pad: [0, 0, grid.pad[2]],
                ..whole
            };
            let of_columns = Grid {
                large: [1, rows, across],
                kernel: [1, high, 1],
                stride: [1, grid.stride[1], 1],
                dilation: [1, grid.dilation[1], 1],
                pad: [0, grid.pad[1], 0],
                ..whole
            };
            let area = area - middle;
            if let (Some(first), Some(down)) = (Phases::new(&of_rows, area), Phases::new(&of_columns, area)) {
                return Some(Self { first, down: Some(down), middle });
            }
        }
        Some(Self { first: Phases::new(&whole, area)?, down: None, middle: 0 })
    }
}

/// Some planes of the result from one on, channels first.
struct Planes<'a, T> {
    pool: &'a Pool,
    grid: &'a Grid,
    steps: &'a Steps,
    x: &'a [T],
    first: usize,
    out: &'a mut [T],
    /// Of [`AREA`] bytes, aligned to 64.
    area: &'a mut [u8],
}

impl<T: Typed + Float> Task<T> for Planes<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { pool, grid, steps, x, first, out, mut area } = self;
        let [depth, rows, across] = grid.small;
        let all = || [Some(&steps.first), steps.down.as_ref()].into_iter().flatten();
        let padded = all().map(|phases| phases.elements() + SPARE).max().unwrap_or(0);
        let made = all().map(|phases| phases.tall * phases.width + SPARE).max().unwrap_or(0);
        let (Ok(padded), Ok(made), Ok(middle), Ok(columns), Ok(heights)) = (
            take::<T>(&mut area, padded),
            take::<T>(&mut area, made),
            take::<T>(&mut area, steps.middle),
            take::<T>(&mut area, across.next_multiple_of(L::WIDTH)),
            take::<T>(&mut area, rows),
        ) else {
            return;
        };
        let maxima = if pool.kind == PoolKind::Max { Maxima::new(lanes, grid, padded.len()) } else { None };
        let mut strips = Strips { kind: pool.kind, padded, made };
        // How many elements count in each column, beyond the last one, and in each row.
        columns.fill(T::ONE);
        if pool.kind != PoolKind::Max {
            for (column, count) in columns[..across].iter_mut().enumerate() {
                *count = T::from_f64(count_along(pool, grid, 2, column) as f64);
            }
            for (row, count) in heights.iter_mut().enumerate() {
                *count = T::from_f64(count_along(pool, grid, 1, row) as f64);
            }
        }
        for (number, out) in (first..).zip(out.chunks_mut(rows * across)) {
            let (volume, z) = (number / depth, number % depth);
            let area = grid.large[1] * grid.large[2];
            let x = &x[volume * grid.area()..];
            let planes = (0..grid.kernel[0]).filter_map(|offset| grid.touch(0, z, offset));
            let planes = planes.map(|z| &x[z * area..]);
            match (&steps.down, pool.kind) {
                (Some(down), _) => {
                    strips.fold(lanes, &steps.first, planes, middle, Written::Copied);
                    strips.fold(lanes, down, [&*middle].into_iter(), out, Written::Copied);
                }
                (None, PoolKind::Max) => {
                    let mut done = false;
                    if let Some(maxima) = &maxima {
                        for (number, x) in planes.clone().enumerate() {
                            done = maxima.of_plane(lanes, x, number == 0, strips.padded, out);
                            if !done {
                                break;
                            }
                        }
                    }
                    if done {
                        continue;
                    }
                    strips.fold(lanes, &steps.first, planes, out, Written::Copied);
                }
                (None, PoolKind::Average | PoolKind::AverageWithPadding) => {
                    let deep = T::from_f64(count_along(pool, grid, 0, z) as f64);
                    strips.fold(lanes, &steps.first, planes, out, Written::Shared { deep, heights, columns });
                }
            }
        }
    }
}

/// How rows are written. No closure: one that is not made part of its caller has no vectors of the set.
#[derive(Clone, Copy)]
enum Written<'a, T> {
    Copied,
    /// Divided by the numbers of elements, which are products of those along each axis.
    Shared {
        deep: T,
        heights: &'a [T],
        columns: &'a [T],
    },
}

/// Where rows of a plane are folded.
struct Strips<'a, T> {
    kind: PoolKind,
    padded: &'a mut [T],
    made: &'a mut [T],
}

impl<T: Typed + Float> Strips<'_, T> {
    /// Folds the windows of planes, one plane behind the other. What is written beyond a row is written again with the next one.
    #[inline(always)]
    fn fold<'x, L: Lanes<T>>(
        &mut self,
        lanes: L,
        phases: &Phases,
        planes: impl Iterator<Item = &'x [T]> + Clone,
        out: &mut [T],
        written: Written<'_, T>,
    ) {
        let Phases { small: [rows, across], tall, width, .. } = *phases;
        let first = if self.kind == PoolKind::Max { T::LOWEST } else { T::ZERO };
        for top in (0..rows).step_by(tall) {
            let height = tall.min(rows - top);
            let count = (height - 1) * width + across;
            let made = &mut self.made[..count.next_multiple_of(L::WIDTH)];
            made.fill(first);
            for x in planes.clone() {
                phases.fill(lanes, x, top, first, self.padded);
                let (padded, offsets) = (&*self.padded, phases.offsets());
                match self.kind {
                    PoolKind::Max if has_nan(lanes, &padded[..phases.elements()]) => {
                        for &offset in offsets {
                            for (made, &x) in made.iter_mut().zip(&padded[offset..]) {
                                *made = made.larger(x);
                            }
                        }
                    }
                    // Of equal numbers the first, as of zeros of either sign.
                    PoolKind::Max => {
                        gather_into(lanes, offsets, padded, made, |made, x| lanes.larger(x, made))
                    }
                    PoolKind::Average | PoolKind::AverageWithPadding => {
                        gather_into(lanes, offsets, padded, made, |made, x| lanes.add(made, x));
                    }
                }
            }
            // Rows that follow one another without padding are copied as one.
            let joined = if width == across && self.kind == PoolKind::Max { height } else { 1 };
            for row in (0..height).step_by(joined) {
                let (from, to) = (&made[row * width..], &mut out[(top + row) * across..]);
                match written {
                    Written::Copied => copy_row(lanes, from, joined * across, to),
                    Written::Shared { deep, heights, columns } => {
                        share_row(lanes, from, deep.mul(heights[top + row]), columns, across, to);
                    }
                }
            }
        }
    }
}

/// Folds the elements at these distances into each of `made`, whose number is whole vectors.
#[inline(always)]
fn gather_into<T: Typed, L: Lanes<T>>(
    lanes: L,
    offsets: &[usize],
    padded: &[T],
    made: &mut [T],
    combine: impl Fn(L::Vector, L::Vector) -> L::Vector,
) {
    let mut at = 0;
    while at < made.len() {
        let (padded, made) = (&padded[at..], &mut made[at..]);
        at += L::WIDTH
            * match made.len() / L::WIDTH {
                8.. => tile::<T, L, 8>(lanes, offsets, padded, made, &combine),
                4.. => tile::<T, L, 4>(lanes, offsets, padded, made, &combine),
                2.. => tile::<T, L, 2>(lanes, offsets, padded, made, &combine),
                _ => tile::<T, L, 1>(lanes, offsets, padded, made, &combine),
            };
    }
}

/// Vectors that are folded side by side; how many.
#[inline(always)]
fn tile<T: Typed, L: Lanes<T>, const V: usize>(
    lanes: L,
    offsets: &[usize],
    padded: &[T],
    made: &mut [T],
    combine: impl Fn(L::Vector, L::Vector) -> L::Vector,
) -> usize {
    let made = &mut made[..V * L::WIDTH];
    let mut folds = [lanes.zero(); V];
    for v in 0..V {
        folds[v] = lanes.load(&made[v * L::WIDTH..]);
    }
    for &offset in offsets {
        let x = &padded[offset..][..V * L::WIDTH];
        for v in 0..V {
            folds[v] = combine(folds[v], lanes.load(&x[v * L::WIDTH..][..L::WIDTH]));
        }
    }
    for (v, &fold) in folds.iter().enumerate() {
        lanes.store(fold, &mut made[v * L::WIDTH..]);
    }
    V
}

#[inline(always)]
fn has_nan<T: Typed, L: Lanes<T>>(lanes: L, x: &[T]) -> bool {
    let (zero, one) = (lanes.zero(), lanes.splat(T::ONE));
    let mut found = zero;
    let mut vectors = x.chunks_exact(L::WIDTH);
    for x in vectors.by_ref() {
        let x = lanes.load(x);
        found = lanes.add(found, lanes.at_least(x, x, zero, one));
    }
    lanes.any_less(zero, found) || vectors.remainder().iter().any(|x| x.is_nan())
}

/// Divides sums by the numbers of elements: those of the row times those of each column. One division in the numbers' own
/// type rounds as one in f64 that is rounded to it does (Figueroa, "When is double rounding innocuous?", SIGNUM Newsletter
/// 30(3), 1995).
#[inline(always)]
fn share_row<T: Typed, L: Lanes<T>>(
    lanes: L,
    sums: &[T],
    count: T,
    columns: &[T],
    across: usize,
    to: &mut [T],
) {
    let whole = across.next_multiple_of(L::WIDTH);
    if sums.len().min(to.len()) < whole {
        for ((to, &sum), &column) in to.iter_mut().zip(sums).zip(&columns[..across]) {
            *to = T::from_f64(sum.to_f64() / (count.to_f64() * column.to_f64()).max(1.0));
        }
        return;
    }
    let (count, one) = (lanes.splat(count), lanes.splat(T::ONE));
    for at in (0..whole).step_by(L::WIDTH) {
        let counts = lanes.larger(lanes.mul(count, lanes.load(&columns[at..])), one);
        lanes.store(lanes.div(lanes.load(&sums[at..]), counts), &mut to[at..]);
    }
}

fn pool_as<T: Typed>(team: &Team<'_>, pool: &Pool, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let (xd, od) = (sizes(x.dims)?, sizes(out.dims)?);
    let kernel = sizes(&pool.kernel)?;
    let grid = Grid::new(&pool.window, spatial(pool.layout, &od), spatial(pool.layout, &xd), &kernel)?;
    // Neighbouring channels are taken together where they lie together.
    let lanes = match pool.layout {
        Layout::ChannelsFirst => 1,
        Layout::ChannelsLast => channels(pool.layout, &xd),
    };
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    if target.is_empty() || source.is_empty() {
        target.fill(T::ZERO);
        return Ok(());
    }
    team.each_chunk(target, grid.positions() * lanes, |plane, out| {
        let x = &source[plane * grid.area() * lanes..][..grid.area() * lanes];
        match pool.kind {
            PoolKind::Max => gather(&grid, lanes, x, out, T::LOWEST, T::larger),
            PoolKind::Average | PoolKind::AverageWithPadding => {
                gather(&grid, lanes, x, out, T::ZERO, T::add);
                divide(pool, &grid, lanes, out);
            }
        }
    });
    Ok(())
}

fn gather<T: Typed>(
    grid: &Grid,
    lanes: usize,
    x: &[T],
    out: &mut [T],
    first: T,
    combine: impl Fn(T, T) -> T,
) {
    out.fill(first);
    for offset in grid.offsets() {
        grid.runs(offset, 0..grid.positions(), |run| {
            let Some(from) = run.large else { return };
            if lanes == 1 {
                for (out, &x) in out[run.at].iter_mut().zip(x[from..].iter().step_by(grid.stride[2])) {
                    *out = combine(*out, x);
                }
                return;
            }
            for (i, at) in run.at.enumerate() {
                let x = &x[(from + i * grid.stride[2]) * lanes..][..lanes];
                for (out, &x) in out[at * lanes..][..lanes].iter_mut().zip(x) {
                    *out = combine(*out, x);
                }
            }
        });
    }
}

/// Divides the sums by the number of elements that count.
#[inline(always)]
fn divide<T: Typed>(pool: &Pool, grid: &Grid, lanes: usize, out: &mut [T]) {
    let [depth, height, width] = grid.small;
    let counts = |axis: usize, position: usize| count_along(pool, grid, axis, position);
    let mut x = 0;
    while x < width {
        // Neighbours for which as many count.
        let across = counts(2, x);
        let end = (x + 1..width).find(|&x| counts(2, x) != across).unwrap_or(width);
        for z in 0..depth {
            for y in 0..height {
                let count = (counts(0, z) * counts(1, y) * across).max(1) as f64;
                let row = (z * height + y) * width;
                for out in &mut out[(row + x) * lanes..(row + end) * lanes] {
                    *out = T::from_f64(out.to_f64() / count);
                }
            }
        }
        x = end;
    }
}

/// How many elements of a window count along an axis.
fn count_along(pool: &Pool, grid: &Grid, axis: usize, position: usize) -> usize {
    (0..grid.kernel[axis]).filter(|&offset| counted(pool, grid, axis, position, offset)).count()
}

fn counted(pool: &Pool, grid: &Grid, axis: usize, position: usize, offset: usize) -> bool {
    if pool.kind != PoolKind::AverageWithPadding {
        return grid.touch(axis, position, offset).is_some();
    }
    // Axes in front of the operation's own have one element and no padding.
    let Some(own) = (axis + pool.kernel.len()).checked_sub(grid.small.len()) else { return true };
    let window = &pool.window;
    let reach = position as i64 * window.strides[own] + offset as i64 * window.dilations[own];
    let end = grid.large[axis] as i64 + window.pads_before[own] + window.pads_after[own];
    reach < end - pool.extra_after[own]
}

#[cfg(test)]
mod tests {
    use super::super::super::view::{bytes_of, bytes_of_mut};
    use super::*;
    use crate::ir::Window;

    /// A case: input, kernel, strides, dilations, padding before and after, along each spatial axis.
    type Case<'a> = [&'a [i64]; 6];

    fn sizes_of([from, kernel, strides, dilations, before, after]: Case<'_>) -> Vec<i64> {
        let of = |axis: usize| {
            let reach = dilations[axis] * (kernel[axis] - 1) + 1;
            (from[axis] + before[axis] + after[axis] - reach) / strides[axis] + 1
        };
        (0..from.len()).map(of).collect()
    }

    /// Every position of these sizes, in row-major order.
    fn positions(sizes: &[i64]) -> Vec<Vec<i64>> {
        let at = |mut number: i64| {
            let mut position = vec![0; sizes.len()];
            for axis in (0..sizes.len()).rev() {
                (position[axis], number) = (number % sizes[axis], number / sizes[axis]);
            }
            position
        };
        (0..sizes.iter().product()).map(at).collect()
    }

    fn expected(kind: PoolKind, x: &[f32], case: Case<'_>) -> Vec<f32> {
        let [from, kernel, strides, dilations, before, after] = case;
        let plane = from.iter().product::<i64>() as usize;
        let of = |plane: &[f32], position: &[i64]| {
            let (mut largest, mut sum, mut count) = (f32::NEG_INFINITY, 0.0f32, 0);
            for offset in positions(kernel) {
                let place = |axis: usize| {
                    position[axis] * strides[axis] + offset[axis] * dilations[axis] - before[axis]
                };
                let place: Vec<i64> = (0..from.len()).map(place).collect();
                let within = (0..from.len()).all(|axis| (0..from[axis]).contains(&place[axis]));
                let padded = |axis: usize| (-before[axis]..from[axis] + after[axis]).contains(&place[axis]);
                if within {
                    let x = plane[place.iter().zip(from).fold(0, |at, (p, size)| at * size + p) as usize];
                    (largest, sum) = (if largest.is_nan() || largest >= x { largest } else { x }, sum + x);
                }
                count +=
                    i32::from(within || kind == PoolKind::AverageWithPadding && (0..from.len()).all(padded));
            }
            if kind == PoolKind::Max { largest } else { (f64::from(sum) / f64::from(count.max(1))) as f32 }
        };
        let small = positions(&sizes_of(case));
        x.chunks_exact(plane).flat_map(|x| small.iter().map(move |position| of(x, position))).collect()
    }

    #[test]
    fn poolings_are_those_of_the_definition() {
        let cases: [Case<'_>; 16] = [
            [&[36, 71], &[3, 3], &[2, 2], &[1, 1], &[0, 0], &[0, 0]],
            [&[7, 80], &[2, 5], &[2, 2], &[1, 1], &[1, 2], &[1, 2]],
            [&[5, 21, 50], &[3, 3, 3], &[2, 2, 2], &[1, 1, 1], &[1, 1, 1], &[1, 1, 1]],
            [&[120, 112], &[3, 2], &[1, 2], &[1, 1], &[1, 0], &[1, 0]],
            [&[20, 20], &[13, 13], &[1, 1], &[1, 1], &[6, 6], &[6, 6]],
            [&[17, 23], &[5, 5], &[1, 1], &[1, 1], &[2, 2], &[2, 2]],
            [&[31, 33], &[3, 3], &[2, 2], &[1, 1], &[1, 1], &[1, 1]],
            [&[6, 70], &[3, 3], &[1, 1], &[1, 1], &[0, 1], &[1, 0]],
            [&[40, 41], &[6, 9], &[2, 3], &[1, 2], &[1, 0], &[2, 5]],
            [&[25, 90], &[12, 14], &[1, 1], &[1, 1], &[3, 4], &[5, 6]],
            [&[9, 14, 15], &[3, 3, 3], &[2, 2, 2], &[1, 1, 1], &[1, 1, 1], &[1, 1, 1]],
            [&[5, 8, 9], &[1, 7, 7], &[1, 1, 1], &[1, 1, 1], &[0, 3, 3], &[0, 3, 3]],
            [&[6, 7, 5], &[2, 3, 1], &[1, 2, 1], &[2, 1, 1], &[1, 0, 0], &[0, 2, 0]],
            [&[50], &[7], &[1], &[1], &[3], &[3]],
            [&[26, 24], &[2, 2], &[2, 2], &[1, 1], &[0, 0], &[0, 0]],
            [&[7, 7], &[7, 7], &[1, 1], &[1, 1], &[0, 0], &[0, 0]],
        ];
        for (case, kind) in cases.into_iter().flat_map(|case| {
            [PoolKind::Max, PoolKind::Average, PoolKind::AverageWithPadding].map(|kind| (case, kind))
        }) {
            let plane = case[0].iter().product::<i64>() as usize;
            // Places that are not numbers: the first, and elements from each to the next. None; many; the last of each plane.
            for (first, step) in [(usize::MAX, 1), (11, 97), (plane - 1, plane)] {
                let [from, kernel, strides, dilations, before, after] = case.map(<[i64]>::to_vec);
                let small = sizes_of(case);
                let dims = |sizes: &[i64]| [&[2, 3], sizes].concat();
                let (xd, od) = (dims(&from), dims(&small));
                let mut x: Vec<f32> =
                    (0..xd.iter().product::<i64>()).map(|i| ((i * 37 % 113) as f32 - 80.0) / 7.0).collect();
                // Zeros of either sign are equal: the first is kept.
                x.iter_mut().step_by(3).for_each(|x| *x = if *x < -5.0 { -0.0 } else { 0.0_f32.min(*x) });
                x.iter_mut().skip(first).step_by(step).for_each(|x| *x = f32::NAN);
                let extra_after = vec![0; from.len()];
                let window = Window { strides, dilations, pads_before: before, pads_after: after };
                let pool = Pool { kind, layout: Layout::ChannelsFirst, kernel, window, extra_after };
                let mut found = vec![-1.0f32; od.iter().product::<i64>() as usize];
                let view = View::new(DType::F32, &xd, bytes_of(&x)).unwrap();
                let mut out = ViewMut::new(DType::F32, &od, bytes_of_mut(&mut found)).unwrap();
                super::pool(&Team::alone(), &pool, &view, &mut out).unwrap();
                for (place, (found, expected)) in found.iter().zip(expected(kind, &x, case)).enumerate() {
                    let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                    assert!(same, "{case:?} {kind:?} {place}: {found} for {expected}");
                }
            }
        }
    }
}
