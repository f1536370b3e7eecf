//! Gradients of normalisations, with those of a factor and a summand behind them.

use crate::error::{Error, Result};
use crate::ir::{Normalization, Varies};
use crate::kernel::workspace::{NORMALIZE_PARTS, NORMALIZE_ROW};

use super::super::element::Float;
use super::super::reduce::{Parts, sum_run};
use super::super::team::{Planes, Slots, Team};
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Typed, View, ViewMut, bytes_of_mut, take, with_float};
use super::super::walk::{PerAxis, Space, broadcast_strides, sizes, strides};
use super::channels::{self, Channels};
use super::entropy::sums;
use super::rows::part_of;

/// `Op::NormalizeGradient`.
pub(crate) fn normalize_gradient(
    team: &Team<'_>,
    op: Normalization<'_>,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    with_float!(inputs[0].dtype, "normalize_gradient", T => as_type::<T>(team, op, inputs, outputs, workspace))
}

/// What the gradients of a row follow from.
#[derive(Clone, Copy, Default)]
struct Row {
    mean: f64,
    /// What deviations are multiplied with.
    r: f64,
    /// The sums over the row of `d` and of `d n`.
    sums: [f64; 2],
}

impl Row {
    #[inline(always)]
    fn normal(&self, x: f64) -> f64 {
        (x - self.mean) * self.r
    }

    fn read(from: &[f64]) -> Self {
        Self { mean: from[0], r: from[1], sums: [from[2], from[3]] }
    }

    fn write(&self, to: &mut [f64]) {
        to.copy_from_slice(&[self.mean, self.r, self.sums[0], self.sums[1]]);
    }
}

/// Operands, and how the elements of a row are stored.
struct Gradient<'a, T> {
    op: Normalization<'a>,
    x: &'a [T],
    dy: &'a [T],
    factor: Option<(&'a [T], Varies)>,
    /// Means and variances that are known.
    known: Option<[&'a [T]; 2]>,
    count: usize,
}

impl<T: Typed + Float> Gradient<'_, T> {
    /// The slope of a row where its sums are known: of `x`, and of `d` there.
    #[inline(always)]
    fn slope(&self, row: Row) -> impl Fn(f64, f64) -> f64 + use<T> {
        let count = self.count as f64;
        let along = row.sums[1] / count;
        let level = if self.op.center { row.sums[0] / count } else { 0.0 };
        move |x, d| row.r * (d - level - row.normal(x) * along)
    }

    #[inline(always)]
    fn deviation(&self, squares: f64) -> f64 {
        1.0 / (squares / self.count as f64 + self.op.epsilon).sqrt()
    }
}

fn as_type<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    op: Normalization<'_>,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    mut workspace: &mut [u8],
) -> Result<()> {
    let misfit = || Error::Internal("operands of normalize_gradient".to_owned());
    let (own, beside) = inputs.split_at(inputs.len() - if op.moments { 2 } else { 0 });
    let known = match beside {
        [means, variances] => Some([means.slice::<T>()?, variances.slice::<T>()?]),
        _ => None,
    };
    let factor = match own.get(2) {
        Some(view) => {
            Some((view.slice::<T>()?, Varies::new(op.axes, inputs[0].dims, view.dims).ok_or_else(misfit)?))
        }
        None => None,
    };
    let dims = sizes(inputs[0].dims)?;
    let parts = Parts::new(&dims, op.axes)?;
    let count = parts.reduced.len();
    let (x, dy) = (inputs[0].slice::<T>()?, inputs[1].slice::<T>()?);
    let gradient = Gradient { op, x, dy, factor, known, count };
    let are_rows = parts.are_rows() && known.is_none();
    let by_channel = !are_rows && !x.is_empty() && !matches!(factor, Some((_, Varies::Along)));
    if let Some(shape) = Channels::new(&dims, op.axes).filter(|_| by_channel) {
        let operands = ([x, dy], factor.map(|factor| factor.0), known);
        return channels::gradient(team, op, shape, operands, outputs, workspace);
    }
    let (dx, rest) = outputs.split_first_mut().ok_or_else(misfit)?;
    let mut columns = match rest {
        [factor, shift] => [factor.slice::<T>()?, shift.slice::<T>()?],
        _ => [&mut [][..], &mut []],
    };
    if gradient.x.is_empty() {
        columns.iter_mut().for_each(|sums| sums.fill(T::ZERO));
        return Ok(());
    }
    if are_rows && !matches!(factor, Some((_, Varies::Across))) {
        let epilogue = dx.take_epilogue();
        let target = dx.slice::<T>()?;
        let then = |start: usize, made: &mut [T]| {
            if let Some(epilogue) = epilogue {
                epilogue.apply(start, bytes_of_mut(made));
            }
        };
        if factor.is_some() {
            return gradient.rows_and_columns(team, target, columns, &mut workspace, &then);
        }
        let length = part_of(count);
        team.each_chunk(target, length, |part, out| {
            T::dispatch(Rows {
                gradient: &gradient,
                first: part * (length / count),
                out: &mut *out,
                columns: None,
            });
            then(part * length, out);
        });
        return Ok(());
    }
    let walks = Walks::new(&op, own)?;
    let rows = take::<f64>(&mut workspace, walks.kept.len() * NORMALIZE_ROW as usize)?;
    gradient.strided(team, &walks, rows, dx.slice::<T>()?, columns);
    Ok(())
}

impl<T: Typed + Float + Vectorised> Gradient<'_, T> {
    /// Contiguous rows, with a factor for each column, whose sums are taken part by part.
    fn rows_and_columns(
        &self,
        team: &Team<'_>,
        target: &mut [T],
        mut columns: [&mut [T]; 2],
        workspace: &mut &mut [u8],
        then: &(dyn Fn(usize, &mut [T]) + Sync),
    ) -> Result<()> {
        let count = self.count;
        let rows = target.len() / count;
        let slots = take::<T>(workspace, rows.min(NORMALIZE_PARTS as usize) * 2 * count)?;
        // Each part adds to sums of its own.
        slots.fill(T::ZERO);
        let planes = Planes { count: 1, rows, columns: count, tall: 1, wide: count };
        team.each_tile(target, planes, Slots { memory: &mut *slots, each: 2 * count }, |place, out, slot| {
            let columns = Some(slot.split_at_mut(count));
            T::dispatch(Rows { gradient: self, first: place.row, out: out.row(0), columns });
            then(place.row * count, out.row(0));
        });
        // In the order of the parts, whoever computed them.
        for (position, sums) in columns.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let parts = slots.chunks(2 * count).map(|slot| slot[position * count + column].to_f64());
                *sum = T::narrow(parts.sum());
            }
        }
        Ok(())
    }

    /// Rows that lie anyhow: first what each comes to, then every element, then columns.
    fn strided(
        &self,
        team: &Team<'_>,
        walks: &Walks,
        rows: &mut [f64],
        target: &mut [T],
        columns: [&mut [T]; 2],
    ) {
        const ROW: usize = NORMALIZE_ROW as usize;
        team.each_chunk(rows, ROW, |row, out| {
            T::dispatch(RowSums { gradient: self, walks, row, out });
        });
        let rows = &*rows;
        let length = target.len() / walks.first;
        team.each_chunk(target, length, |part, out| {
            T::dispatch(Elements { gradient: self, walks, rows, first: part, out });
        });
        let [of_factor, of_shift] = columns;
        match self.factor {
            Some((_, Varies::Across)) => {
                let own = rows.chunks_exact(ROW).map(Row::read).zip(of_factor).zip(of_shift);
                own.for_each(|((row, factor), shift)| {
                    (*shift, *factor) = (T::narrow(row.sums[0]), T::narrow(row.sums[1]));
                });
            }
            Some((_, Varies::Along)) => walks.reduced.each([0, 0], |[from, column]| {
                let (mut row, mut sums) = (0, [0.0; 2]);
                walks.kept.each([from, 0], |[at, _]| {
                    let (x, dy) = (self.x[at as usize].to_f64(), self.dy[at as usize].to_f64());
                    sums[0] += dy * Row::read(&rows[row * ROW..][..ROW]).normal(x);
                    sums[1] += dy;
                    row += 1;
                });
                of_factor[column as usize] = T::narrow(sums[0]);
                of_shift[column as usize] = T::narrow(sums[1]);
            }),
            None => {}
        }
    }
}

/// Whole contiguous rows from `first` on; what they add to the columns' sums of `g n` and of `g`.
struct Rows<'a, 'c, T> {
    gradient: &'a Gradient<'a, T>,
    first: usize,
    out: &'a mut [T],
    columns: Option<(&'c mut [T], &'c mut [T])>,
}

impl<T: Typed + Float> Task<T> for Rows<'_, '_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(mut self, _: L) {
        let (gradient, count) = (self.gradient, self.gradient.count);
        for (number, out) in (self.first..).zip(self.out.chunks_mut(count)) {
            let [x, dy] = [gradient.x, gradient.dy].map(|all| &all[number * count..][..count]);
            let mean = if gradient.op.center { sum_run(x, T::accumulate) / count as f64 } else { 0.0 };
            let squares = sum_run(x, |sum, x| sum + (x.to_f64() - mean) * (x.to_f64() - mean));
            let mut row = Row { mean, r: gradient.deviation(squares), sums: [0.0; 2] };
            match gradient.factor {
                Some((factor, _)) => {
                    let each = out.iter_mut().zip(dy).zip(factor);
                    each.for_each(|((out, &dy), &factor)| *out = dy.mul(factor));
                }
                None => out.copy_from_slice(dy),
            }
            row.sums = sums(x, out, |x, d| [d, d * row.normal(x)]);
            let slope = gradient.slope(row);
            for (out, &x) in out.iter_mut().zip(x) {
                *out = T::narrow(slope(x.to_f64(), out.to_f64()));
            }
            if let Some((factors, shifts)) = &mut self.columns {
                let each = factors.iter_mut().zip(shifts.iter_mut()).zip(x.iter().zip(dy));
                for ((factor, shift), (&x, &dy)) in each {
                    *factor = factor.add(T::narrow(dy.to_f64() * row.normal(x.to_f64())));
                    *shift = shift.add(dy);
                }
            }
        }
    }
}

/// How rows are stored that are not contiguous.
struct Walks {
    /// Over the axes that stay: of the operand, and of the factor where it varies along them.
    kept: Space<2>,
    /// Over those that go, likewise.
    reduced: Space<2>,
    /// Elements of the first axis, and over the others: of the operand, of the rows' numbers, of the factor.
    first: usize,
    others: Space<3>,
    /// How many rows, and elements of the factor, there are from one of the first axis to the next.
    steps: [isize; 2],
}

impl Walks {
    fn new(op: &Normalization<'_>, inputs: &[View<'_>]) -> Result<Self> {
        let dims = sizes(inputs[0].dims)?;
        let own = strides(&dims)?;
        let factor = match inputs.get(2) {
            Some(view) => broadcast_strides(&sizes(view.dims)?, &dims)?,
            None => broadcast_strides(&[], &dims)?,
        };
        let goes = |axis: usize| op.axes.contains(&(axis as u32));
        let (mut numbers, mut step) = (own, 1);
        // Where the numbers of a row are, from the place of an element: the axes that go do not count.
        for axis in (0..dims.len()).rev() {
            numbers[axis] = if goes(axis) { 0 } else { step };
            step *= if goes(axis) { 1 } else { dims[axis] as isize };
        }
        let over = |gone: bool| -> Result<Space<2>> {
            let mut walk = [PerAxis::new(); 2];
            let mut own_dims = PerAxis::new();
            for axis in (0..dims.len()).filter(|&axis| goes(axis) == gone) {
                own_dims.push(dims[axis])?;
                walk[0].push(own[axis])?;
                walk[1].push(factor[axis])?;
            }
            Space::new(&own_dims, [&walk[0], &walk[1]])
        };
        let others = Space::new(&dims[1..], [&own[1..], &numbers[1..], &factor[1..]])?;
        Ok(Self {
            kept: over(false)?,
            reduced: over(true)?,
            first: dims[0],
            others,
            steps: [numbers[0], factor[0]],
        })
    }
}

/// What one row comes to.
struct RowSums<'a, T> {
    gradient: &'a Gradient<'a, T>,
    walks: &'a Walks,
    row: usize,
    out: &'a mut [f64],
}

impl<T: Typed + Float> Task<T> for RowSums<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let Self { gradient, walks, row, out } = self;
        let start = walks.kept.at(row);
        let (outer, length, [step, factor_step]) = walks.reduced.split_inner();
        let count = gradient.count as f64;
        let (mean, squares) = if let Some([means, variances]) = gradient.known {
            (means[row].to_f64(), variances[row].to_f64() * count)
        } else {
            let mean = match gradient.op.center {
                true => over(&outer, start[0], (length, step), gradient.x, |sum, x| sum + x.to_f64()) / count,
                false => 0.0,
            };
            let square = |sum: f64, x: T| sum + (x.to_f64() - mean) * (x.to_f64() - mean);
            (mean, over(&outer, start[0], (length, step), gradient.x, square))
        };
        let mut row = Row { mean, r: gradient.deviation(squares), sums: [0.0; 2] };
        outer.each(start, |[at, factor_at]| {
            let found = match gradient.factor {
                Some((factor, Varies::Along)) => {
                    let mut found = [0.0; 2];
                    for i in 0..length as isize {
                        let at = (at + i * step) as usize;
                        let d = gradient.dy[at].to_f64()
                            * factor[(factor_at + i * factor_step) as usize].to_f64();
                        found = [found[0] + d, found[1] + d * row.normal(gradient.x[at].to_f64())];
                    }
                    found
                }
                _ if step == 1 => {
                    let [x, dy] = [gradient.x, gradient.dy].map(|all| &all[at as usize..][..length]);
                    sums(x, dy, |x, dy| [dy, dy * row.normal(x)])
                }
                _ => {
                    let places = (0..length as isize).map(|i| (at + i * step) as usize);
                    places.fold([0.0; 2], |found, at| {
                        let (x, dy) = (gradient.x[at].to_f64(), gradient.dy[at].to_f64());
                        [found[0] + dy, found[1] + dy * row.normal(x)]
                    })
                }
            };
            row.sums = [row.sums[0] + found[0], row.sums[1] + found[1]];
        });
        row.write(out);
    }
}

/// The sum over runs of one operand.
#[inline(always)]
fn over<T: Typed + Float>(
    outer: &Space<2>,
    start: isize,
    (length, step): (usize, isize),
    source: &[T],
    term: impl Fn(f64, T) -> f64,
) -> f64 {
    let mut total = 0.0;
    outer.each([start, 0], |[at, _]| {
        total += match step {
            1 => sum_run(&source[at as usize..][..length], &term),
            _ => (0..length as isize).fold(0.0, |sum, i| term(sum, source[(at + i * step) as usize])),
        };
    });
    total
}

/// The elements at one place of the first axis.
struct Elements<'a, T> {
    gradient: &'a Gradient<'a, T>,
    walks: &'a Walks,
    rows: &'a [f64],
    first: usize,
    out: &'a mut [T],
}

impl<T: Typed + Float> Task<T> for Elements<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let Self { gradient, walks, rows, first, out } = self;
        let base = first * out.len();
        let first = first as isize;
        let (outer, length, [_, row_step, factor_step]) = walks.others.split_inner();
        let row_at = |number: isize| {
            let mut row =
                Row::read(&rows[number as usize * NORMALIZE_ROW as usize..][..NORMALIZE_ROW as usize]);
            if let Some((factor, Varies::Across)) = gradient.factor {
                let factor = factor[number as usize].to_f64();
                row.sums = row.sums.map(|sum| sum * factor);
            }
            row
        };
        let factor_at = |at: isize| gradient.factor.map_or(1.0, |(factor, _)| factor[at as usize].to_f64());
        outer.each([0, first * walks.steps[0], first * walks.steps[1]], |[at, number, factor]| {
            let out = &mut out[at as usize..][..length];
            let [x, dy] = [gradient.x, gradient.dy].map(|all| &all[base + at as usize..][..length]);
            let each = out.iter_mut().zip(x).zip(dy);
            // One row and one factor for the whole run.
            if row_step == 0 && factor_step == 0 {
                let (slope, factor) = (gradient.slope(row_at(number)), factor_at(factor));
                each.for_each(|((out, x), dy)| {
                    *out = T::narrow(slope(x.to_f64(), dy.to_f64() * factor));
                });
                return;
            }
            each.enumerate().for_each(|(i, ((out, x), dy))| {
                let slope = gradient.slope(row_at(number + i as isize * row_step));
                let factor = factor_at(factor + i as isize * factor_step);
                *out = T::narrow(slope(x.to_f64(), dy.to_f64() * factor));
            });
        });
    }
}
