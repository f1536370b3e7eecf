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
        for row in 0..rows {
            self.set(&[(scatter.row, row), (scatter.column, column)]);
            let value = self.value(scatter.start, args)?;
            args.get_mut(scatter.out as usize)?.set(out(row)?, value)?;
            self.written.push((scatter.out, out(row)?));
        }
        for step in 0..steps {
            self.set(&[(scatter.step, step), (scatter.column, column)]);
            let (row, update) = (self.position(scatter.place, args)?, self.value(scatter.update, args)?);
            let array = args.get_mut(scatter.out as usize)?;
            let at = out(row)?;
            let old = array.get(at)?;
            array.set(at, scattered(scatter.kind, dtype, old, update))?;
        }
        Some(())
    }
}
