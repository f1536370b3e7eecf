//! Proves that a kernel program is sound: what it names is there, types fit, every index stays within
//! its argument, and every variable that is used is bound where it is used.

mod reach;

use std::cell::RefCell;
use std::collections::HashMap;

use reach::Bounds;

use super::super::attention::HeadStrides;
use super::{
    Arg, Body, Expr, ExprId, Exprs, Heads, Layer, MAX_VARS, Order, OrderPass, Ordered, Pass, Patches,
    Program, Scatter, ScatterPass, Side, Store, Ty, Var,
};
use crate::error::{Error, Result};
use crate::ir::{Cell, DType, Direction, ScatterKind};

/// Error: what does not hold, with the program's name. O(expressions), but for what is read where a guard
/// holds: O(what its index is made of x the guard's comparisons).
pub fn verify(program: &Program) -> Result<()> {
    let by_rows = program.used_by_rows();
    let verifier = Verifier { program, by_rows, guards: RefCell::default() };
    verifier.all().map_err(|message| Error::Internal(format!("kernel {}: {message}", program.name)))
}

struct Verifier<'a> {
    program: &'a Program,
    /// By expression: what is written once for each row follows from it.
    by_rows: Vec<bool>,
    /// What the guards that were met say.
    guards: RefCell<HashMap<ExprId, Bounds<'a>>>,
}

type Check = std::result::Result<(), String>;

impl Verifier<'_> {
    fn all(&self) -> Check {
        let exprs = &self.program.exprs;
        // Free variables are kept as the bits of one word.
        if exprs.vars() > MAX_VARS {
            return Err(format!("{} variables", exprs.vars()));
        }
        if self.program.is_empty() {
            return Ok(());
        }
        for (id, used) in self.program.used().into_iter().enumerate() {
            if used {
                self.expression(ExprId(id as u32))?;
            }
        }
        self.bound()?;
        for store in self.program.stores() {
            self.store(store)?;
        }
        if let Body::Recurrent(layer) = &self.program.body {
            self.layer(layer)?;
        }
        if let Body::Attention(heads) = &self.program.body {
            self.heads(heads)?;
        }
        if let Body::Scatter(scatter) = &self.program.body {
            self.scatter(scatter)?;
        }
        if let Body::Order(order) = &self.program.body {
            self.order(order)?;
        }
        Ok(())
    }

    /// The rows are all of the argument, and what they are updated with is of its type.
    fn scatter(&self, scatter: &Scatter) -> Check {
        let (exprs, out) = (&self.program.exprs, self.arg(scatter.out)?);
        let (rows, columns) = (exprs.extent(scatter.row), exprs.extent(scatter.column));
        let typed = [scatter.start, scatter.update, scatter.made];
        let of_type = typed.map(|id| exprs.ty(id) == Ty::Value(out.dtype));
        let (low, high) = exprs.range(scatter.place);
        let placed = exprs.extent(scatter.step) == 0 || low >= 0 && high < rows;
        let size = u64::try_from(rows.saturating_mul(columns)).ok();
        let parts = scatter.ordered.is_some_and(|ordered| ordered.pass == ScatterPass::Parts);
        if out.written == parts || of_type != [true; 3] || size != Some(out.elements) || !placed {
            return Err(format!("a{} does not take {rows} x {columns} in order", scatter.out));
        }
        scatter.ordered.map_or(Ok(()), |ordered| self.ordered(scatter, &ordered))
    }

    /// Every step and every part has its place.
    fn ordered(&self, scatter: &Scatter, ordered: &Ordered) -> Check {
        let (exprs, out) = (&self.program.exprs, self.arg(scatter.out)?);
        let (columns, steps) = (exprs.extent(scatter.column), exprs.extent(scatter.step));
        let Ordered { pass, places, steps: order, parts, length } = *ordered;
        if length < 1 {
            return Err(format!("parts of {length} steps"));
        }
        [places, order].into_iter().try_for_each(|arg| self.listed(arg, steps, false))?;
        let (arg, windows) = (self.arg(parts)?, steps / length + i64::from(steps % length != 0));
        let size = u64::try_from(windows.saturating_mul(2).saturating_mul(columns)).ok();
        let dtype = if out.dtype.is_half() { DType::F32 } else { out.dtype };
        match size == Some(arg.elements) && arg.dtype == dtype && arg.written == (pass == ScatterPass::Parts)
        {
            true => Ok(()),
            false => Err(format!("a{parts} does not take the parts of {steps} steps")),
        }
    }

    /// A number for each step, or whatever else there is so many of.
    fn listed(&self, at: u32, steps: i64, written: bool) -> Check {
        let arg = self.arg(at)?;
        let alike = u64::try_from(steps).is_ok_and(|steps| steps == arg.elements);
        match alike && steps <= i64::from(i32::MAX) && arg.dtype == DType::I32 && arg.written == written {
            true => Ok(()),
            false => Err(format!("a{at} is no list of {steps} numbers")),
        }
    }

    /// Rows fit what they are listed in, and nothing that is read is written.
    fn order(&self, order: &Order) -> Check {
        let exprs = &self.program.exprs;
        let steps = exprs.extent(order.step);
        let (low, high) = exprs.range(order.place);
        let placed = steps == 0 || low >= 0 && high < order.rows;
        let digit = (1..=8).contains(&order.bits) && order.shift < 31 && order.each > 0;
        if !placed || !digit || order.rows > i64::from(i32::MAX) {
            return Err(format!("steps are not ordered by bits {} to {}", order.shift, order.bits));
        }
        let sorts = order.pass == OrderPass::Sort;
        let blocks = steps / order.each.max(1) + i64::from(steps % order.each.max(1) != 0);
        self.listed(order.counts, blocks << order.bits, !sorts)?;
        order.from.map_or(Ok(()), |from| self.listed(from, steps, false))?;
        order.to.into_iter().try_for_each(|arg| self.listed(arg, steps, sorts))
    }

    /// Every operand and result has the size that the layer's make it have.
    fn layer(&self, layer: &Layer) -> Check {
        let Layer { cell, time, batch, features, .. } = layer;
        let (time, batch, features, hidden) = (*time, *batch, *features, cell.hidden);
        let gates = match cell.cell {
            Cell::Rnn => 1,
            Cell::Lstm => 4,
            Cell::Gru | Cell::GruResetAfter => 3,
        };
        let ways = if cell.direction == Direction::Bidirectional { 2 } else { 1 };
        let (states, rows) = ([ways, batch, hidden, 1], [ways, gates, hidden]);
        let weights = |columns: i64| [rows[0], rows[1], rows[2], columns];
        let cells = usize::from(cell.cell == Cell::Lstm);
        let read =
            [[time, batch, features, 1], weights(features), weights(hidden), weights(2), states, states];
        let made = [[time, ways, batch, hidden], states, states];
        if layer.reads.len() != 5 + cells || layer.writes.len() != 2 + cells {
            return Err("operands of a recurrent layer".to_owned());
        }
        let reads = layer.reads.iter().zip(read).map(|(&arg, sizes)| (arg, sizes, false));
        let writes = layer.writes.iter().zip(made).map(|(&arg, sizes)| (arg, sizes, true));
        reads.chain(writes).try_for_each(|(at, sizes, written)| {
            let (arg, dtype) = (self.arg(at)?, self.arg(layer.reads[0])?.dtype);
            let size = sizes.iter().try_fold(1u64, |all, &size| all.checked_mul(u64::try_from(size).ok()?));
            match size == Some(arg.elements) && arg.dtype == dtype && (arg.written || !written) {
                true => Ok(()),
                false => {
                    Err(format!("a{at} is not {} of {dtype}", sizes.map(|size| size.to_string()).join(" x ")))
                }
            }
        })
    }

    /// Every row lies within its argument.
    fn heads(&self, heads: &Heads) -> Check {
        let geometry = &heads.geometry;
        let key_heads = geometry.heads / geometry.group.max(1);
        let within = |arg: u32, strides: HeadStrides, (heads, rows, size): (u64, u64, u64)| -> Check {
            let last = |count: u64, step: u64| count.saturating_sub(1).saturating_mul(step);
            let end = [
                last(geometry.batch, strides.batch),
                last(heads, strides.head),
                last(rows, strides.row),
                size,
            ]
            .into_iter()
            // Saturating: what overflows lies outside of any argument.
            .fold(strides.start, u64::saturating_add);
            let elements = self.arg(arg)?.elements;
            if end <= elements { Ok(()) } else { Err(format!("a{arg} has {elements} elements of {end}")) }
        };
        let queries = (geometry.heads, geometry.rows, geometry.size);
        let keys = (key_heads, geometry.keys, geometry.size);
        let values = (key_heads, geometry.keys, geometry.value_size);
        let results = (geometry.heads, geometry.rows, geometry.value_size);
        for ((arg, strides), sizes) in
            heads.reads.into_iter().zip(geometry.strides).zip([queries, keys, values])
        {
            within(arg, strides, sizes)?;
        }
        let parts = heads.parts.max(1);
        let in_parts = (geometry.heads, geometry.rows, parts.saturating_mul(geometry.value_size));
        let made: &[_] = match heads.pass {
            Pass::Forward => &[results],
            Pass::Parts => &[in_parts],
            Pass::Queries => &[queries],
            Pass::Keys => &[keys, values],
        };
        let is_forward = matches!(heads.pass, Pass::Forward | Pass::Parts);
        let has_rows = heads.rows.is_some() == (heads.pass != Pass::Forward);
        let has_parts = parts > 1 && heads.pass == Pass::Parts || parts == 1;
        if made.len() != heads.writes.len()
            || is_forward != heads.upstream.is_none()
            || !has_rows
            || !has_parts
        {
            return Err("operands of attention".to_owned());
        }
        for (&(arg, strides), &sizes) in heads.writes.iter().zip(made) {
            within(arg, strides, sizes)?;
            if !self.arg(arg)?.written {
                return Err(format!("a{arg} is written and not marked as such"));
            }
        }
        for arg in heads.upstream.into_iter().flatten() {
            within(arg, geometry.strides[3], results)?;
        }
        let rows = HeadStrides {
            start: 0,
            batch: geometry.heads.saturating_mul(geometry.rows).saturating_mul(parts),
            head: geometry.rows.saturating_mul(parts),
            row: parts,
        };
        for arg in heads.rows.into_iter().flatten() {
            within(arg, rows, (geometry.heads, geometry.rows, parts))?;
        }
        let [batch, head, row, key] = heads.mask_strides;
        let strides = HeadStrides { start: 0, batch, head, row };
        let size = geometry.keys.saturating_sub(1).saturating_mul(key).saturating_add(1);
        heads.mask.iter().try_for_each(|&mask| within(mask, strides, (geometry.heads, geometry.rows, size)))
    }

    fn arg(&self, arg: u32) -> std::result::Result<&Arg, String> {
        self.program.args.get(arg as usize).ok_or_else(|| format!("there is no a{arg}"))
    }

    /// Operands come before users, and have the types that the operation asks for.
    fn expression(&self, id: ExprId) -> Check {
        let exprs = &self.program.exprs;
        for operand in exprs.operands(id) {
            if operand >= id {
                return Err(format!("{id} uses {operand}, which comes after it"));
            }
        }
        let (index, value) = (|x: ExprId| exprs.ty(x) == Ty::Index, |x: ExprId| exprs.ty(x) != Ty::Index);
        let bool = |x: ExprId| exprs.ty(x) == Ty::Value(DType::Bool);
        let fits = match *exprs.get(id) {
            Expr::Sum { ref terms, .. } => terms.iter().all(|&(x, _)| index(x)),
            Expr::Div(x, d) | Expr::Mod(x, d) => index(x) && d > 0 && exprs.range(x).0 >= 0,
            Expr::Min(x, y) => index(x) && index(y),
            Expr::Wrapped(x, size) => value(x) && exprs.dtype(x).is_integer() && size > 0,
            Expr::Position(x) => index(x),
            Expr::Load { arg, index: at, guard, .. } => {
                let known = self.arg(arg)?;
                // What is a half elsewhere may have been kept in f32.
                let dtype = exprs.dtype(id);
                let wider = dtype.is_half() && known.dtype == DType::F32;
                guard.is_none_or(bool)
                    && index(at)
                    && (wider || dtype == known.dtype)
                    && (self.by_none(arg, self.by_rows[id.0 as usize])? || self.reaches(arg, at, guard)?)
            }
            Expr::Unary(_, x) | Expr::Convert(_, x) => value(x),
            Expr::Binary(_, x, y) => exprs.ty(x) == exprs.ty(y) && value(x),
            Expr::Compare(_, x, y) => exprs.ty(x) == exprs.ty(y),
            Expr::Select(c, x, y) => bool(c) && exprs.ty(x) == exprs.ty(y) && value(x),
            Expr::Fold { var, body, .. } => {
                value(body) && var.0 < exprs.vars() as u32 && !self.program.bound().contains(&var)
            }
            Expr::Reduced(position, dtype) => match &self.program.body {
                Body::Rows { reductions, .. } | Body::Product { reductions, .. } => {
                    reductions.get(position as usize).is_some_and(|reduction| {
                        let made = exprs.dtype(reduction.value);
                        // What is a half elsewhere may have been folded in f32.
                        let wider = dtype.is_half() && made == DType::F32;
                        wider || dtype == if reduction.kind.is_position() { DType::I64 } else { made }
                    })
                }
                _ => false,
            },
            Expr::Var(_) | Expr::Constant(..) | Expr::Whole(..) | Expr::Hero(_) => true,
        };
        if fits { Ok(()) } else { Err(format!("{id} = {:?} does not fit its operands", exprs.get(id))) }
    }

    /// True where rows have no elements, and what is done for each of those would be done to an argument that has none
    /// either. What is done once for each row, `by_row`, is done all the same.
    fn by_none(&self, arg: u32, by_row: bool) -> std::result::Result<bool, String> {
        let Body::Rows { column, .. } = &self.program.body else { return Ok(false) };
        let empty = self.program.exprs.extent(*column) == 0 && self.arg(arg)?.elements == 0;
        Ok(empty && !by_row)
    }

    /// True where an index is within its argument by its range, which a guard may narrow.
    fn reaches(&self, arg: u32, index: ExprId, guard: Option<ExprId>) -> std::result::Result<bool, String> {
        let exprs = &self.program.exprs;
        let elements = i64::try_from(self.arg(arg)?.elements).unwrap_or(i64::MAX);
        let within = |(low, high): (i64, i64)| low >= 0 && high < elements;
        let free = exprs.free(index);
        // A loop over nothing reads nothing.
        let never = |var: u32| free >> var & 1 == 1 && exprs.extent(Var(var)) == 0;
        let (low, high) = exprs.range(index);
        if within((low, high)) || (0..exprs.vars() as u32).any(never) {
            return Ok(true);
        }
        let Some(guard) = guard else {
            return Err(format!("a{arg} has {elements} elements, and {index} runs from {low} to {high}"));
        };
        let mut guards = self.guards.borrow_mut();
        let bounds = guards.entry(guard).or_insert_with(|| Bounds::new(exprs, guard));
        // Where the guard never holds, there is no range, and nothing is touched.
        match bounds.range(index) {
            Some((low, high)) if !within((low, high)) => Err(format!(
                "a{arg} has {elements} elements, and {index} runs from {low} to {high} where {guard} holds"
            )),
            _ => Ok(true),
        }
    }

    /// No root depends on a variable that nothing runs over there.
    fn bound(&self) -> Check {
        let exprs = &self.program.exprs;
        let mask = |vars: &[Var]| vars.iter().fold(0u64, |mask, var| mask | 1 << var.0.min(63));
        let within = |id: ExprId, vars: &[Var]| match exprs.free(id) & !mask(vars) {
            0 => Ok(()),
            _ => Err(format!("{id} uses a variable that is not bound")),
        };
        let stores = |stores: &[Store], vars: &[Var]| -> Check {
            stores.iter().try_for_each(|store| {
                within(store.index, vars)?;
                within(store.value, vars)?;
                store.guard.map_or(Ok(()), |guard| within(guard, vars))
            })
        };
        match &self.program.body {
            Body::Map { point, stores: list } => stores(list, &[*point]),
            Body::Lines { line, step, running, stores: list } => {
                running.iter().try_for_each(|running| within(running.value, &[*line, *step]))?;
                stores(list, &[*line, *step])
            }
            Body::Rows { row, column, cached, reductions, stores: list, row_stores, .. } => {
                cached.iter().try_for_each(|&id| within(id, &[*row, *column]))?;
                reductions.iter().try_for_each(|reduction| within(reduction.value, &[*row, *column]))?;
                stores(list, &[*row, *column])?;
                stores(row_stores, &[*row])
            }
            Body::Tile { batch, row, column, value, stores: list } => {
                within(*value, &[*batch, *row, *column])?;
                stores(list, &[*batch, *row, *column])
            }
            Body::Product {
                batch,
                row,
                column,
                inner,
                cached,
                reductions,
                left,
                right,
                stores: list,
                patches,
            } => {
                let values = reductions.iter().map(|reduction| reduction.value);
                cached.iter().copied().chain(values).try_for_each(|id| within(id, &[*row, *inner]))?;
                if !reductions.is_empty() {
                    self.rows_of_one_batch(*batch, *right, list)?;
                }
                within(*left, &[*batch, *row, *inner])?;
                within(*right, &[*batch, *inner, *column])?;
                if let Some(patches) = patches {
                    within(patches.value, &patches.element)?;
                    self.patches(patches, [*batch, *row, *column, *inner], [*left, *right])?;
                }
                stores(list, &[*batch, *row, *column])
            }
            Body::Order(order) => within(order.place, &[order.step]),
            Body::Scatter(scatter) => {
                within(scatter.start, &[scatter.row, scatter.column])?;
                within(scatter.place, &[scatter.step])?;
                within(scatter.update, &[scatter.step, scatter.column])?;
                within(scatter.made, &[scatter.row, scatter.column])
            }
            Body::Recurrent(_) | Body::Attention(_) => Ok(()),
        }
    }

    /// Windows are as many as the operand has rows or columns, and as large as the sums are long.
    fn patches(&self, patches: &Patches, over: [Var; 4], operands: [ExprId; 2]) -> Check {
        let exprs = &self.program.exprs;
        let [batch, row, column, inner] = over.map(|var| exprs.extent(var));
        let [images, _, _, channels] = patches.element.map(|var| exprs.extent(var));
        let (windows, operand) = match patches.side {
            Side::Left => (row, operands[0]),
            Side::Right => (column, operands[1]),
        };
        let all = |of: i64, sizes: [i64; 2]| of.checked_mul(sizes[0])?.checked_mul(sizes[1]);
        let counted = all(images, patches.places) == Some(windows) && batch == 1;
        let summed = all(channels, patches.kernel) == Some(inner);
        let steps = patches.strides.iter().chain(&patches.dilations).all(|&step| step > 0);
        let typed = exprs.ty(patches.value) == exprs.ty(operand);
        match counted && summed && steps && typed {
            true => Ok(()),
            false => Err(format!("{} is no element of the windows of {operand}", patches.value)),
        }
    }

    /// What is reduced of rows is known to the left operand alone, and there is one row of each number.
    fn rows_of_one_batch(&self, batch: Var, right: ExprId, stores: &[Store]) -> Check {
        let exprs = &self.program.exprs;
        if exprs.extent(batch) != 1 {
            return Err(format!("{} batches of rows that are reduced", exprs.extent(batch)));
        }
        let mut pending: Vec<ExprId> = stores.iter().flat_map(|store| [store.index, store.value]).collect();
        pending.push(right);
        let mut seen = vec![false; exprs.len()];
        while let Some(id) = pending.pop() {
            if matches!(exprs.get(id), Expr::Reduced(..)) {
                return Err(format!("{id} is reduced of a row, and read beside the left operand"));
            }
            if !std::mem::replace(&mut seen[id.0 as usize], true) {
                pending.extend(exprs.operands(id));
            }
        }
        Ok(())
    }

    fn store(&self, store: &Store) -> Check {
        let (exprs, arg) = (&self.program.exprs, self.arg(store.arg)?);
        if !arg.written {
            return Err(format!("a{} is written and not marked as such", store.arg));
        }
        if exprs.ty(store.value) != Ty::Value(arg.dtype) {
            return Err(format!("a{} is of {} and gets {:?}", store.arg, arg.dtype, exprs.ty(store.value)));
        }
        if store.kind != ScatterKind::Replace && !matches!(self.program.body, Body::Lines { .. }) {
            return Err(format!("a{} is combined with what is stored there, but not in order", store.arg));
        }
        let by_row = match &self.program.body {
            Body::Rows { row_stores, .. } => row_stores.iter().any(|own| std::ptr::eq(own, store)),
            _ => false,
        };
        if self.by_none(store.arg, by_row)? {
            return Ok(());
        }
        self.reaches(store.arg, store.index, store.guard).map(drop)
    }
}
