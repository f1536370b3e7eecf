//! Transpositions of elements of two bytes: tiles of 64 x 64 through shared memory, read and written 16 bytes at a time.

use std::collections::HashMap;

use super::heroes::no_hero;
use super::map::is_vector;
use super::writer::{Writer, collect, collected, store_collected};
use super::{Launch, Printed, blocks, ceil, head, index_type, storage, title};
use crate::error::Result;
use crate::ir::ScatterKind;
use crate::kernel::program::{Body, Expr, ExprId, Program, Store, Var};

/// Elements of an access, and of a tile along each side.
const LANES: i64 = 8;
const SIDE: i64 = 64;

/// A transposition whose rows and columns are whole accesses.
pub(super) struct Wide {
    /// With columns as accesses and lanes.
    program: Program,
    batch: Var,
    row: Var,
    /// Accesses of a row that is written.
    access: Var,
    lane: Var,
    column: Var,
    /// What is read, and where its access begins.
    arg: u32,
    from: ExprId,
    /// Where the accesses that are written begin.
    to: Vec<ExprId>,
    stores: Vec<Store>,
}

impl Wide {
    pub(super) fn of(program: &Program) -> Option<Self> {
        let Body::Tile { batch, row, column, value, stores } = &program.body else { return None };
        let Expr::Load { arg, index, guard: None, .. } = *program.exprs.get(*value) else { return None };
        let (rows, columns) = (program.exprs.extent(*row), program.exprs.extent(*column));
        let halves = program.args[arg as usize].dtype.is_half();
        if !halves || rows % LANES != 0 || columns % LANES != 0 || rows < SIDE || columns < SIDE {
            return None;
        }
        let mut program = program.clone();
        let exprs = &mut program.exprs;
        let (chunk, access, lane) = (exprs.var(rows / LANES), exprs.var(columns / LANES), exprs.var(LANES));
        let [c, a, l] = [chunk, access, lane].map(|var| exprs.at(var));
        let (along, across) = (exprs.sum(0, &[(c, LANES), (l, 1)]), exprs.sum(0, &[(a, LANES), (l, 1)]));
        let read = exprs.substitute(index, *row, along, &mut HashMap::new());
        if !is_vector(exprs, read, l, LANES) {
            return None;
        }
        let (mut done, mut first) = (HashMap::new(), HashMap::new());
        let zero = exprs.index(0);
        let (mut to, mut moved) = (Vec::new(), Vec::new());
        for store in stores {
            let at = exprs.substitute(store.index, *column, across, &mut done);
            let fits = program.args[store.arg as usize].dtype.size() == 2;
            if !fits
                || store.guard.is_some()
                || store.kind != ScatterKind::Replace
                || !is_vector(exprs, at, l, LANES)
            {
                return None;
            }
            to.push(exprs.substitute(at, lane, zero, &mut first));
            let value = exprs.substitute(store.value, *column, across, &mut done);
            moved.push(Store { index: at, value, ..store.clone() });
        }
        let (batch, row, column) = (*batch, *row, *column);
        Some(Self { program, batch, row, access, lane, column, arg, from: index, to, stores: moved })
    }

    pub(super) fn print(&self) -> Result<Printed> {
        let exprs = &self.program.exprs;
        let (rows, columns) = (exprs.extent(self.row), exprs.extent(self.column));
        let (down, across) = (ceil(rows, SIDE), ceil(columns, SIDE));
        let index = index_type(&self.program);
        let read = self.program.args.get(self.arg as usize).ok_or_else(no_hero)?.dtype;
        let ty = storage(read);
        let mut text = title(&self.program, "tiles of 64 x 64 through shared memory, 16 bytes at a time");
        text.push_str(&head(&self.program, 256));
        let mut writer = Writer::new(&self.program, index);
        for line in [
            // Chunks of eight, exchanged within a line so that neither side meets one bank twice.
            format!("typedef vec<8, {ty}> chunk_of;"),
            "SHARED(chunk_of, tile, 64 * 8);".to_owned(),
            "const int thread = threadIdx.y * 32 + threadIdx.x;".to_owned(),
            format!("const {index} block = ({index})blockIdx.x;"),
            format!("const {index} batch = block / {};", down * across),
            format!("const {index} row0 = block / {across} % {down} * 64, column0 = block % {across} * 64;"),
        ] {
            writer.line(&line);
        }
        writer.bind(self.batch, "batch");
        writer.line("#pragma unroll");
        writer.open("for (int part = 0; part < 2; ++part)");
        writer.line("const int chunk = thread & 7, line = part * 32 + (thread >> 3);");
        writer.line(&format!("const {index} row = row0 + chunk * 8, column = column0 + line;"));
        writer.open(&format!("if (row < {rows} && column < {columns})"));
        writer.bind(self.row, "row");
        writer.bind(self.column, "column");
        let from = writer.value(self.from);
        writer.line(&format!(
            "tile[line * 8 + (chunk ^ line >> 3)] = *(const chunk_of*)(a{} + {from});",
            self.arg
        ));
        writer.close();
        writer.close();
        writer.line("__syncthreads();");
        writer.line("#pragma unroll");
        writer.open("for (int part = 0; part < 2; ++part)");
        writer.line(
            "const int within = thread & 7, group = part * 4 + (thread >> 3 & 3), chunk = thread >> 5;",
        );
        writer.line(&format!("const {index} row = row0 + chunk * 8 + within, access = column0 / 8 + group;"));
        writer.open(&format!("if (row < {rows} && access < {})", columns / LANES));
        writer.bind(self.row, "row");
        writer.bind(self.access, "access");
        let dtype = |store: &Store| self.program.args[store.arg as usize].dtype;
        for (position, store) in self.stores.iter().enumerate() {
            writer.line(&collected(LANES, dtype(store), &format!("s{position}")));
        }
        writer.line("#pragma unroll");
        writer.open("for (int lane = 0; lane < 8; ++lane)");
        writer.bind(self.lane, "lane");
        writer.line("const float hero = get(tile[(group * 8 + lane) * 8 + (chunk ^ group)].v[within]);");
        for (position, store) in self.stores.iter().enumerate() {
            let value = writer.value(store.value);
            writer.line(&collect(dtype(store), &format!("s{position}"), "lane", &value));
        }
        writer.close();
        for (position, (store, &to)) in self.stores.iter().zip(&self.to).enumerate() {
            let to = format!("a{} + {}", store.arg, writer.value(to));
            writer.line(&store_collected(LANES, dtype(store), &to, &format!("s{position}")));
        }
        writer.close();
        writer.close();
        text.push_str(&writer.out);
        text.push_str("}\n");
        let grid = blocks(exprs.extent(self.batch).saturating_mul(down).saturating_mul(across))?;
        Ok(Printed { text, template: None, launch: Launch { grid, block: [32, 8], shared: 0 } })
    }
}
