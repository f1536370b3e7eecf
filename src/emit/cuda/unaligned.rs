//! Wide rows that begin anywhere: a block reads and writes the aligned inside of its row 16 bytes at a time, and the few
//! elements before and behind it one by one.

use super::heroes::no_hero;
use super::map::reached;
use super::rows::{fused_softmax, needed};
use super::writer::{Writer, collect, collected, fold_name, lane_of, store_collected, vector};
use super::{Launch, Printed, blocks, head, index_type, title};
use crate::error::Result;
use crate::ir::ScatterKind;
use crate::kernel::program::{Along, Body, Expr, ExprId, Program, Reduction, Store, Var};

/// Shortest row for which the ends do not count.
const SHORTEST: i64 = 4096;

/// Threads of a block, which has one row.
const THREADS: i64 = 1024;

/// A program of such rows.
pub(super) struct Unaligned<'a> {
    program: &'a Program,
    row: Var,
    column: Var,
    /// Elements of an access.
    lanes: i64,
    /// Loads at the row's and the column's place: expression and argument.
    loads: Vec<(ExprId, u32)>,
    reductions: &'a [Reduction],
    stores: &'a [Store],
    row_stores: &'a [Store],
}

impl<'a> Unaligned<'a> {
    /// None where rows are short, or what is read and written is stored otherwise.
    pub(super) fn of(program: &'a Program) -> Option<Self> {
        let Body::Rows { row, column, along: Along::Columns, reductions, stores, row_stores, .. } =
            &program.body
        else {
            return None;
        };
        let columns = program.exprs.extent(*column);
        // Found by what it is: equal expressions are one.
        let mut exprs = program.exprs.clone();
        let (at, step) = (exprs.at(*row), exprs.at(*column));
        let place = exprs.sum(0, &[(at, columns), (step, 1)]);
        let plain = |store: &Store| {
            store.guard.is_none() && store.kind == ScatterKind::Replace && store.index == place
        };
        if columns < SHORTEST || !stores.iter().all(plain) || place.0 as usize >= program.exprs.len() {
            return None;
        }
        let roots: Vec<ExprId> =
            reductions.iter().map(|one| one.value).chain(stores.iter().map(|one| one.value)).collect();
        let loads: Vec<(ExprId, u32)> = reached(&program.exprs, &roots)
            .into_iter()
            .filter_map(|id| match *program.exprs.get(id) {
                Expr::Load { arg, index, guard: None, .. } if index == place => Some((id, arg)),
                _ => None,
            })
            .collect();
        let args = loads.iter().map(|load| load.1).chain(stores.iter().map(|store| store.arg));
        let widest = args.map(|arg| program.args[arg as usize].dtype.size()).max()? as i64;
        let lanes = 16 / widest;
        (lanes > 1 && !loads.is_empty() && reductions.iter().all(|one| !one.kind.is_position())).then_some(
            Self { program, row: *row, column: *column, lanes, loads, reductions, stores, row_stores },
        )
    }

    pub(super) fn print(&self) -> Result<Printed> {
        let exprs = &self.program.exprs;
        let (rows, columns) = (exprs.extent(self.row), exprs.extent(self.column));
        let index = index_type(self.program);
        let mut text =
            title(self.program, &format!("a block a row, its inside in accesses of {}", self.lanes));
        text.push_str(&head(self.program, THREADS as u32));
        let mut writer = Writer::new(self.program, index);
        let lanes = self.lanes;
        writer.line(&format!("const {index} row = ({index})blockIdx.x;"));
        writer.bind(self.row, "row");
        writer.line(&format!("const {index} first = row * {columns};"));
        writer.line(&format!("const i32 before = (i32)(({lanes}u - (u32)first % {lanes}u) % {lanes}u);"));
        writer.line(&format!("const i32 accesses = ({columns} - before) / {lanes};"));
        let once = fused_softmax(exprs, self.reductions).is_some();
        if once {
            self.online(&mut writer);
        }
        for position in if once { 2 } else { 0 }..self.reductions.len() {
            self.reduce(&mut writer, position);
        }
        if !self.stores.is_empty() {
            self.store(&mut writer);
        }
        if !self.row_stores.is_empty() {
            writer.open("if (threadIdx.x == 0)");
            writer.stores(self.row_stores);
            writer.close();
        }
        text.push_str(&writer.out);
        text.push_str("}\n");
        if rows < 1 {
            return Err(no_hero());
        }
        Ok(Printed {
            text,
            template: None,
            launch: Launch { grid: blocks(rows)?, block: [THREADS as u32, 1], shared: 0 },
        })
    }

    /// Runs over the row: `inside` has the neighbours of an access in lanes, `alone` one element.
    fn walk(&self, writer: &mut Writer<'_>, roots: &[ExprId], parts: &Parts<'_>) {
        let columns = self.program.exprs.extent(self.column);
        let needed = needed(&self.program.exprs, roots, &|_| false);
        let loads = || self.loads.iter().filter(|load| needed.contains(&load.0));
        roots.iter().for_each(|&id| writer.hoist(id, self.column));
        writer.open(&format!("for (i32 access = threadIdx.x; access < accesses; access += {THREADS})"));
        writer.line(&format!("const i32 begin = before + access * {};", self.lanes));
        for &(id, arg) in loads() {
            let ty = vector(self.lanes, self.program.args[arg as usize].dtype);
            writer.line(&format!("const {ty} v{} = *(const {ty}*)(a{arg} + first + begin);", id.0));
        }
        (parts.open)(writer);
        writer.line("#pragma unroll");
        writer.open(&format!("for (i32 lane = 0; lane < {}; ++lane)", self.lanes));
        writer.line("const i32 column = begin + lane;");
        writer.bind(self.column, "column");
        for &(id, _) in loads() {
            writer.name(id, lane_of(&format!("v{}", id.0), "lane"));
        }
        (parts.lane)(writer);
        writer.close();
        (parts.close)(writer);
        writer.close();
        let inside = format!("accesses * {}", self.lanes);
        writer.open(&format!("for (i32 end = threadIdx.x; end < {columns} - {inside}; end += {THREADS})"));
        writer.line(&format!("const i32 column = end < before ? end : end + {inside};"));
        writer.bind(self.column, "column");
        (parts.alone)(writer);
        writer.close();
    }

    fn online(&self, writer: &mut Writer<'_>) {
        let most = self.reductions[0].value;
        let (ty, lanes) = (writer.type_of(most), self.lanes);
        let near = self.program.exprs.dtype(most).is_half();
        writer.line(&format!("online<{ty}, {near}> so_far;"));
        self.walk(
            writer,
            &[most],
            &Parts {
                open: &|writer| writer.line(&format!("{ty} taken[{lanes}];")),
                lane: &|writer| {
                    let value = writer.value(most);
                    writer.line(&format!("taken[lane] = {value};"));
                },
                close: &|writer| writer.line("so_far.take(taken);"),
                alone: &|writer| {
                    let value = writer.value(most);
                    writer.line(&format!("const {ty} taken[1] = {{{value}}};"));
                    writer.line("so_far.take(taken);");
                },
            },
        );
        writer.line(&format!("const {ty} r0 = block_fold<fold_max>(so_far.most);"));
        writer.line(&format!("const {ty} r1 = block_fold<fold_sum>(so_far.scaled(r0));"));
    }

    fn reduce(&self, writer: &mut Writer<'_>, position: usize) {
        let reduction = &self.reductions[position];
        let (ty, join) = (writer.type_of(reduction.value), fold_name(reduction.kind));
        writer.line(&format!("{ty} part{position} = {join}::start<{ty}>();"));
        let add = |writer: &mut Writer<'_>| {
            let value = writer.value(reduction.value);
            writer.line(&format!("part{position} = {join}::join(part{position}, {value});"));
        };
        self.walk(
            writer,
            &[reduction.value],
            &Parts { open: &|_| (), lane: &add, close: &|_| (), alone: &add },
        );
        writer.line(&format!("const {ty} r{position} = block_fold<{join}>(part{position});"));
    }

    fn store(&self, writer: &mut Writer<'_>) {
        let roots: Vec<ExprId> = self.stores.iter().map(|store| store.value).collect();
        let dtype = |store: &Store| self.program.args[store.arg as usize].dtype;
        let each = || self.stores.iter().enumerate().map(|(position, store)| (format!("s{position}"), store));
        self.walk(
            writer,
            &roots,
            &Parts {
                open: &|writer| {
                    each().for_each(|(name, store)| writer.line(&collected(self.lanes, dtype(store), &name)))
                },
                lane: &|writer| {
                    for (name, store) in each() {
                        let value = writer.value(store.value);
                        writer.line(&collect(dtype(store), &name, "lane", &value));
                    }
                },
                close: &|writer| {
                    for (name, store) in each() {
                        let to = format!("a{} + first + begin", store.arg);
                        writer.line(&store_collected(self.lanes, dtype(store), &to, &name));
                    }
                },
                alone: &|writer| writer.stores(self.stores),
            },
        );
    }
}

/// What a walk over a row writes: before, in and behind the loop over an access's lanes; for one element.
struct Parts<'p> {
    open: &'p dyn Fn(&mut Writer<'_>),
    lane: &'p dyn Fn(&mut Writer<'_>),
    close: &'p dyn Fn(&mut Writer<'_>),
    alone: &'p dyn Fn(&mut Writer<'_>),
}
