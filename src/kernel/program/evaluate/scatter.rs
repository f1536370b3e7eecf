//! Rows that are updated in order: first all that stands there before, then one update after the other.

use super::{Array, Machine, scattered};
use crate::kernel::program::Scatter;

impl Machine<'_> {
    pub(super) fn scatter(&mut self, scatter: &Scatter, args: &mut [Array]) -> Option<()> {
        let exprs = &self.program.exprs;
        let columns = exprs.extent(scatter.column);
        let dtype = self.program.args.get(scatter.out as usize)?.dtype;
        let out = |row: i64, column: i64| usize::try_from(row * columns + column).ok();
        self.grid(&[scatter.row, scatter.column], args, |machine, args| {
            let [row, column] = [scatter.row, scatter.column].map(|var| machine.vars[var.0 as usize]);
            let value = machine.value(scatter.start, args)?;
            args.get_mut(scatter.out as usize)?.set(out(row, column)?, value)
        })?;
        self.grid(&[scatter.step, scatter.column], args, |machine, args| {
            let column = machine.vars[scatter.column.0 as usize];
            let (row, update) =
                (machine.position(scatter.place, args)?, machine.value(scatter.update, args)?);
            let array = args.get_mut(scatter.out as usize)?;
            let at = out(row, column)?;
            let old = array.get(at)?;
            array.set(at, scattered(scatter.kind, dtype, old, update))
        })
    }
}
