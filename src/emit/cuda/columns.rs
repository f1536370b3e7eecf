//! Rows whose neighbours in memory belong to different rows: each thread of a warp takes some neighbouring rows, and the
//! warps of a block share their columns.

use std::ops::Range;

use super::heroes::no_hero;
use super::rows::{Accesses, needed};
use super::writer::{Writer, collect, collected, fold_name, lane_of, store_collected, vector};
use super::{Launch, Printed, blocks, ceil, head, index_type, title};
use crate::error::Result;
use crate::kernel::program::{Along, Body, Expr, ExprId, Program, Reduction, Store, Var};

/// Fewest blocks for which a thread takes several rows.
const ENOUGH: i64 = 132;

pub(super) fn columns(program: &Program) -> Result<Printed> {
    let Body::Rows { row, along: Along::Rows, .. } = program.body else { return Err(no_hero()) };
    let view = chosen(program, row);
    let Body::Rows { row, column, reductions, stores, row_stores, .. } = &view.program.body else {
        return Err(no_hero());
    };
    let (groups, columns) = (view.program.exprs.extent(*row), view.program.exprs.extent(*column));
    let warps = match columns {
        ..=3 => 1,
        4..=15 => 4,
        16..=255 => 8,
        _ if view.lanes > 1 => 8,
        _ => 16,
    };
    let index = index_type(&view.program);
    let rows = 32 * view.lanes;
    let mut text =
        title(program, &format!("{rows} rows a block, {warps} threads for {} of them", view.lanes));
    text.push_str(&head(program, 32 * warps as u32));
    let mut writer = Writer::new(&view.program, index);
    writer.line(&format!("const {index} row = ({index})blockIdx.x * 32 + threadIdx.x;"));
    writer.line(&format!("const bool inside = row < {groups};"));
    writer.bind(*row, "row");
    let printer = Columns { view: &view, column: *column, columns, warps, reductions };
    for together in independent(&view.program, reductions) {
        printer.reduce(&mut writer, together);
    }
    writer.line("if (!inside) return;");
    if !stores.is_empty() {
        printer.open(&mut writer);
        printer.store(&mut writer, stores, &view.vectors);
        writer.close();
    }
    if !row_stores.is_empty() {
        writer.open("if (threadIdx.y == 0)");
        printer.store(&mut writer, row_stores, &view.row_vectors);
        writer.close();
    }
    text.push_str(&writer.out);
    text.push_str("}\n");
    let grid = blocks(ceil(groups, 32))?;
    Ok(Printed { text, template: None, launch: Launch { grid, block: [32, warps as u32], shared: 0 } })
}

/// As many rows a thread as fill an access, where enough blocks are left.
fn chosen(program: &Program, row: Var) -> Accesses {
    let rows = program.exprs.extent(row);
    let mut best = Accesses::new(program, row, 1);
    for lanes in [2, 4, 8] {
        if rows % lanes != 0 || rows / (32 * lanes) < ENOUGH {
            break;
        }
        let wider = Accesses::new(program, row, lanes);
        if !wider.loads.is_empty() && wider.widest() <= 16 {
            best = wider;
        }
    }
    best
}

/// Reductions in a row of which none needs another's result, and so one run over the columns makes all.
fn independent(program: &Program, reductions: &[Reduction]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (position, reduction) in reductions.iter().enumerate() {
        let reached = needed(&program.exprs, &[reduction.value], &|_| false);
        let reads = |run: &Range<usize>| {
            let is_of_run = |id: &ExprId| match program.exprs.get(*id) {
                Expr::Reduced(other, _) => run.contains(&(*other as usize)),
                _ => false,
            };
            reached.iter().any(is_of_run)
        };
        match runs.last_mut() {
            Some(run) if !reads(run) => run.end = position + 1,
            _ => runs.push(position..position + 1),
        }
    }
    runs
}

struct Columns<'a> {
    view: &'a Accesses,
    column: Var,
    columns: i64,
    /// Of a block.
    warps: i64,
    reductions: &'a [Reduction],
}

impl Columns<'_> {
    /// Opens the loop over a thread's columns.
    fn open(&self, writer: &mut Writer<'_>) {
        let (index, warps, columns) = (writer.index, self.warps, self.columns);
        if columns > 0 && columns % warps == 0 {
            writer.line("#pragma unroll 8");
            writer.open(&format!("for ({index} j = 0; j < {}; ++j)", columns / warps));
            writer.line(&format!("const {index} column = j * {warps} + threadIdx.y;"));
        } else {
            writer.line("#pragma unroll 4");
            writer
                .open(&format!("for ({index} column = threadIdx.y; column < {columns}; column += {warps})"));
        }
        writer.bind(self.column, "column");
    }

    /// Reads neighbours, opens the loop over them, and says what is reduced so far.
    fn open_lanes(&self, writer: &mut Writer<'_>, roots: &[ExprId], known: usize) {
        let view = self.view;
        let needed = needed(&view.program.exprs, roots, &|_| false);
        let loads = || view.loads.iter().filter(|load| needed.contains(&load.0));
        for &(id, arg, base) in loads() {
            let base = writer.value(base);
            let ty = vector(view.lanes, view.program.args[arg as usize].dtype);
            writer.line(&format!("const {ty} v{} = *(const {ty}*)(a{arg} + {base});", id.0));
        }
        self.each_lane(writer);
        for &(id, ..) in loads() {
            writer.name(id, lane_of(&format!("v{}", id.0), "lane"));
        }
        for position in 0..known {
            let ty = writer.type_of(self.reductions[position].value);
            writer.line(&match self.reductions[position].kind.is_position() {
                true => format!(
                    "const i64 r{position} = part{position}[lane].place < 0 ? 0 : part{position}[lane].place;"
                ),
                false => format!("const {ty} r{position} = part{position}[lane];"),
            });
        }
    }

    fn each_lane(&self, writer: &mut Writer<'_>) {
        writer.line("#pragma unroll");
        writer.open(&format!("for (int lane = 0; lane < {}; ++lane)", self.view.lanes));
        writer.bind(self.view.lane, "lane");
    }

    /// The type that a reduction is kept in.
    fn kept_in(&self, writer: &Writer<'_>, position: usize) -> String {
        let ty = writer.type_of(self.reductions[position].value);
        if self.reductions[position].kind.is_position() { format!("spot<{ty}>") } else { ty.to_owned() }
    }

    /// Reductions that one run over the columns makes.
    fn reduce(&self, writer: &mut Writer<'_>, together: Range<usize>) {
        for position in together.clone() {
            let (made, join) = (self.kept_in(writer, position), fold_name(self.reductions[position].kind));
            writer.line(&format!("{made} part{position}[{}];", self.view.lanes));
            self.each_lane(writer);
            writer.line(&format!("part{position}[lane] = {join}::start<{made}>();"));
            writer.close();
        }
        writer.open("if (inside)");
        self.open(writer);
        let roots: Vec<ExprId> = together.clone().map(|position| self.reductions[position].value).collect();
        self.open_lanes(writer, &roots, together.start);
        for position in together.clone() {
            self.join(writer, position);
        }
        writer.close();
        writer.close();
        writer.close();
        if self.warps > 1 {
            for position in together {
                let join = fold_name(self.reductions[position].kind);
                self.each_lane(writer);
                writer.line(&format!("part{position}[lane] = column_fold<{join} >(part{position}[lane]);"));
                writer.close();
            }
        }
    }

    /// Takes in an element.
    fn join(&self, writer: &mut Writer<'_>, position: usize) {
        let reduction = &self.reductions[position];
        let (made, join) = (self.kept_in(writer, position), fold_name(reduction.kind));
        let value = writer.value(reduction.value);
        if reduction.kind.is_position() {
            let here = format!("here{position}");
            writer.line(&format!("{made} {here}; {here}.value = {value}; {here}.place = (i64)column;"));
            writer.line(&format!("part{position}[lane] = {join}::join(part{position}[lane], {here});"));
        } else {
            writer.line(&format!("part{position}[lane] = {join}::join(part{position}[lane], {value});"));
        }
    }

    /// Stores of each of the neighbouring rows, at once where `vectors` says where the first is.
    fn store(&self, writer: &mut Writer<'_>, stores: &[Store], vectors: &[Option<ExprId>]) {
        let view = self.view;
        let roots: Vec<ExprId> = stores.iter().flat_map(|store| [store.value, store.index]).collect();
        let base = |position: usize| vectors.get(position).copied().flatten();
        let dtype = |store: &Store| view.program.args[store.arg as usize].dtype;
        let together = || stores.iter().enumerate().filter_map(|(at, store)| Some((at, store, base(at)?)));
        for (position, store, _) in together() {
            writer.line(&collected(view.lanes, dtype(store), &format!("s{position}")));
        }
        self.open_lanes(writer, &roots, self.reductions.len());
        for (position, store, _) in together() {
            let value = writer.value(store.value);
            writer.line(&collect(dtype(store), &format!("s{position}"), "lane", &value));
        }
        let alone = stores.iter().enumerate().filter(|(position, _)| base(*position).is_none());
        let alone: Vec<Store> = alone.map(|(_, store)| store.clone()).collect();
        writer.stores(&alone);
        writer.close();
        for (position, store, base) in together() {
            let to = format!("a{} + {}", store.arg, writer.value(base));
            writer.line(&store_collected(view.lanes, dtype(store), &to, &format!("s{position}")));
        }
    }
}
