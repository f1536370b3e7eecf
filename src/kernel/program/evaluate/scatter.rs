//! Rows that are updated in order: first all that stands there before, then one update after the other; or step by step as
//! ordered steps are, part by part where a row has many.

use super::scalar::{Scalar, scattered};
use super::{Array, Machine};
use crate::kernel::program::{Order, OrderPass, Ordered, Scatter, ScatterPass};

/// What ordered steps are read from.
struct Steps<'a> {
    ordered: &'a Ordered,
    count: i64,
}

impl Steps<'_> {
    fn listed(args: &[Array], arg: u32, at: i64) -> Option<i64> {
        Some(args.get(arg as usize)?.get(usize::try_from(at).ok()?)?.whole())
    }

    fn place(&self, args: &[Array], at: i64) -> Option<i64> {
        Self::listed(args, self.ordered.places, at)
    }

    /// The first of some positions whose row is not less, as a search by halves finds it.
    fn first(&self, args: &[Array], row: i64, (mut low, mut high): (i64, i64)) -> Option<i64> {
        while low < high {
            let middle = low + (high - low) / 2;
            match self.place(args, middle)? < row {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        Some(low)
    }

    /// Whether a row whose steps begin here has more of them than a part.
    fn is_long(&self, args: &[Array], row: i64, first: i64) -> Option<bool> {
        let next = first + self.ordered.length;
        Some(next < self.count && self.place(args, next)? == row)
    }

    /// The parts that begin in a window: their place, and their positions.
    fn parts(&self, args: &[Array], window: i64) -> Option<Vec<(i64, i64, i64)>> {
        let length = self.ordered.length;
        let (begin, end) = (window * length, ((window + 1) * length).min(self.count));
        let mut parts = Vec::new();
        let row = self.place(args, begin)?;
        let first = self.first(args, row, (0, begin))?;
        if first < begin && self.is_long(args, row, first)? {
            let from = first + (begin - first + length - 1) / length * length;
            if from < end {
                let to = self.first(args, row + 1, (from, (from + length).min(self.count)))?;
                parts.extend((from < to).then_some((2 * window, from, to)));
            }
        }
        let row = self.place(args, end - 1)?;
        let first = self.first(args, row, (begin, end))?;
        let begins = first > begin || begin == 0 || self.place(args, begin - 1)? != row;
        if begins && self.is_long(args, row, first)? {
            parts.push((2 * window + 1, first, first + length));
        }
        Some(parts)
    }
}

impl Machine<'_> {
    /// Steps by a digit of their rows, or how many of each block have each digit.
    pub(super) fn order(&mut self, order: &Order, args: &mut [Array]) -> Option<()> {
        let mut listed = Vec::new();
        for position in 0..self.program.exprs.extent(order.step) {
            self.set(&[(order.step, position)]);
            let place = self.position(order.place, args)?;
            let step = order.from.map_or(Some(position), |from| Steps::listed(args, from, position))?;
            listed.push((place, step));
        }
        if order.pass == OrderPass::Count {
            for (block, positions) in listed.chunks(usize::try_from(order.each).ok()?).enumerate() {
                for digit in 0..1usize << order.bits {
                    let of_digit = |&&(place, _): &&(i64, i64)| order.digit(place) == digit as i64;
                    let count = positions.iter().filter(of_digit).count() as i64;
                    let at = (block << order.bits) + digit;
                    args.get_mut(order.counts as usize)?.set(at, Scalar::Whole(count))?;
                    self.written.push((order.counts, at));
                }
            }
            return Some(());
        }
        listed.sort_by_key(|&(place, _)| order.digit(place));
        for (position, (place, step)) in listed.into_iter().enumerate() {
            for (arg, value) in order.to.into_iter().zip([place, step]) {
                args.get_mut(arg as usize)?.set(position, Scalar::Whole(value))?;
                self.written.push((arg, position));
            }
        }
        Some(())
    }

    /// One column of every row.
    pub(super) fn scatter(&mut self, scatter: &Scatter, column: i64, args: &mut [Array]) -> Option<()> {
        let Some(ordered) = &scatter.ordered else { return self.scatter_whole(scatter, column, args) };
        let steps = Steps { ordered, count: self.program.exprs.extent(scatter.step) };
        match ordered.pass {
            ScatterPass::Parts => self.scatter_parts(scatter, &steps, column, args),
            ScatterPass::Rows => self.scatter_rows(scatter, &steps, column, args),
        }
    }

    fn scatter_parts(
        &mut self,
        scatter: &Scatter,
        steps: &Steps<'_>,
        column: i64,
        args: &mut [Array],
    ) -> Option<()> {
        let columns = self.program.exprs.extent(scatter.column);
        let length = steps.ordered.length;
        for window in 0..steps.count / length + i64::from(steps.count % length != 0) {
            for (slot, from, to) in steps.parts(args, window)? {
                let first = self.update(scatter, steps, (from, column), args)?;
                let made = self.join_updates(scatter, steps, (from + 1, to, column), first, args)?;
                let at = usize::try_from(slot * columns + column).ok()?;
                args.get_mut(steps.ordered.parts as usize)?.set(at, made)?;
                self.written.push((steps.ordered.parts, at));
            }
        }
        Some(())
    }

    fn scatter_rows(
        &mut self,
        scatter: &Scatter,
        steps: &Steps<'_>,
        column: i64,
        args: &mut [Array],
    ) -> Option<()> {
        let exprs = &self.program.exprs;
        let (rows, columns) = (exprs.extent(scatter.row), exprs.extent(scatter.column));
        let (dtype, length) = (self.program.args.get(scatter.out as usize)?.dtype, steps.ordered.length);
        for row in 0..rows {
            self.set(&[(scatter.row, row), (scatter.column, column)]);
            let mut sum = self.value(scatter.start, args)?;
            let [from, to] =
                [steps.first(args, row, (0, steps.count))?, steps.first(args, row + 1, (0, steps.count))?];
            if to - from <= length {
                sum = self.join_updates(scatter, steps, (from, to, column), sum, args)?;
            } else {
                for k in 0..(to - from + length - 1) / length {
                    let at = usize::try_from(steps.ordered.slot(from, k) * columns + column).ok()?;
                    let part = args.get(steps.ordered.parts as usize)?.get(at)?;
                    sum = scattered(scatter.kind, dtype, sum, part);
                }
            }
            self.write_row(scatter, (row, column), sum, args)?;
        }
        Some(())
    }

    /// The update of the step at a position. What is no step is taken for the last one.
    fn update(
        &mut self,
        scatter: &Scatter,
        steps: &Steps<'_>,
        (at, column): (i64, i64),
        args: &[Array],
    ) -> Option<Scalar> {
        let step = Steps::listed(args, steps.ordered.steps, at)?;
        let step = if (0..steps.count).contains(&step) { step } else { steps.count - 1 };
        self.set(&[(scatter.step, step), (scatter.column, column)]);
        self.value(scatter.update, args)
    }

    fn join_updates(
        &mut self,
        scatter: &Scatter,
        steps: &Steps<'_>,
        (from, to, column): (i64, i64, i64),
        mut sum: Scalar,
        args: &[Array],
    ) -> Option<Scalar> {
        let dtype = self.program.args.get(scatter.out as usize)?.dtype;
        for at in from..to {
            let update = self.update(scatter, steps, (at, column), args)?;
            sum = scattered(scatter.kind, dtype, sum, update);
        }
        Some(sum)
    }

    fn scatter_whole(&mut self, scatter: &Scatter, column: i64, args: &mut [Array]) -> Option<()> {
        let exprs = &self.program.exprs;
        let [rows, steps] = [scatter.row, scatter.step].map(|var| exprs.extent(var));
        let dtype = self.program.args.get(scatter.out as usize)?.dtype;
        let mut sums = Vec::with_capacity(usize::try_from(rows).ok()?);
        for row in 0..rows {
            self.set(&[(scatter.row, row), (scatter.column, column)]);
            sums.push(self.value(scatter.start, args)?);
        }
        for step in 0..steps {
            self.set(&[(scatter.step, step), (scatter.column, column)]);
            let (row, update) = (self.position(scatter.place, args)?, self.value(scatter.update, args)?);
            let sum = sums.get_mut(usize::try_from(row).ok()?)?;
            *sum = scattered(scatter.kind, dtype, *sum, update);
        }
        for (row, sum) in (0..rows).zip(sums) {
            self.write_row(scatter, (row, column), sum, args)?;
        }
        Some(())
    }

    fn write_row(
        &mut self,
        scatter: &Scatter,
        (row, column): (i64, i64),
        sum: Scalar,
        args: &mut [Array],
    ) -> Option<()> {
        self.set(&[(scatter.row, row), (scatter.column, column)]);
        self.hero = sum;
        let made = self.value(scatter.made, args)?;
        let at = usize::try_from(row * self.program.exprs.extent(scatter.column) + column).ok()?;
        args.get_mut(scatter.out as usize)?.set(at, made)?;
        self.written.push((scatter.out, at));
        Some(())
    }
}
