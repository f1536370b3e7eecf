//! Rows that are updated in order: first all that stands there before, then one update after the other.

use super::scalar::scattered;
use super::{Array, Machine};
use crate::kernel::program::Scatter;

impl Machine<'_> {
    /// One column of every row.
    pub(super) fn scatter(&mut self, scatter: &Scatter, column: i64, args: &mut [Array]) -> Option<()> {
        let exprs = &self.program.exprs;
        let [rows, columns, steps] = [scatter.row, scatter.column, scatter.step].map(|var| exprs.extent(var));
        let dtype = self.program.args.get(scatter.out as usize)?.dtype;
        let out = |row: i64| usize::try_from(row * columns + column).ok();
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
            self.set(&[(scatter.row, row), (scatter.column, column)]);
            self.hero = sum;
            let made = self.value(scatter.made, args)?;
            args.get_mut(scatter.out as usize)?.set(out(row)?, made)?;
            self.written.push((scatter.out, out(row)?));
        }
        Some(())
    }
}
