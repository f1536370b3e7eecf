//! Lines in order, transpositions through shared memory, recurrent layers.

use super::writer::Writer;
use super::{Launch, Printed, Template, blocks, ceil, compute, head, index_type, storage, title};
use crate::error::{Error, Report, Result};
use crate::ir::{Cell, Direction};
use crate::kernel::program::{Body, Layer, Program, Running, Store, Var};

const THREADS: i64 = 128;

pub(super) fn lines(
    program: &Program,
    (line, step): (Var, Var),
    running: Option<&Running>,
    stores: &[Store],
) -> Result<Printed> {
    let (count, steps) = (program.exprs.extent(line), program.exprs.extent(step));
    let index = index_type(program);
    let mut text = title(program, "one thread a line");
    text.push_str(&head(program, THREADS as u32));
    let mut writer = Writer::new(program, index);
    writer.line(&format!("const {index} line = ({index})blockIdx.x * {THREADS} + threadIdx.x;"));
    writer.line(&format!("if (line >= {count}) return;"));
    writer.bind(line, "line");
    if let Some(running) = running {
        writer.line(&format!("{} sum = 0;", writer.type_of(running.value)));
    }
    writer.open(&format!("for ({index} step = 0; step < {steps}; ++step)"));
    writer.bind(step, "step");
    if let Some(running) = running {
        let (value, ty) = (writer.value(running.value), writer.type_of(running.value));
        let (before, after) = (format!("const {ty} hero = sum;"), format!("sum = f_add(sum, {value});"));
        let order = if running.exclusive { [before, after] } else { [after, before] };
        order.iter().for_each(|text| writer.line(text));
    }
    writer.stores(stores);
    writer.close();
    text.push_str(&writer.out);
    text.push_str("}\n");
    let grid = blocks(ceil(count, THREADS))?;
    Ok(Printed { text, template: None, launch: Launch { grid, block: [THREADS as u32, 1], shared: 0 } })
}

pub(super) fn tile(program: &Program) -> Result<Printed> {
    let Body::Tile { batch, row, column, value, stores } = &program.body else { return Err(no_hero()) };
    let extent = |var: Var| program.exprs.extent(var);
    let (rows, columns) = (extent(*row), extent(*column));
    let (down, across) = (ceil(rows, 32), ceil(columns, 32));
    let index = index_type(program);
    let mut text = title(program, "tiles of 32 x 32 through shared memory");
    text.push_str(&head(program, 256));
    let mut writer = Writer::new(program, index);
    let ty = writer.type_of(*value);
    writer.line(&format!("SHARED({ty}, tile, 32 * 33);"));
    writer.line(&format!("const {index} block = ({index})blockIdx.x;"));
    writer.line(&format!("const {index} batch = block / {};", down * across));
    writer.line(&format!(
        "const {index} row0 = block / {across} % {down} * 32, column0 = block % {across} * 32;"
    ));
    writer.bind(*batch, "batch");
    // Neighbouring threads read neighbours along the rows.
    writer.open("for (int i = threadIdx.y; i < 32; i += 8)");
    writer.line(&format!("const {index} row = row0 + threadIdx.x, column = column0 + i;"));
    writer.open(&format!("if (row < {rows} && column < {columns})"));
    writer.bind(*row, "row");
    writer.bind(*column, "column");
    let read = writer.value(*value);
    writer.line(&format!("tile[i * 33 + threadIdx.x] = {read};"));
    writer.close();
    writer.close();
    writer.line("__syncthreads();");
    writer.open("for (int i = threadIdx.y; i < 32; i += 8)");
    writer.line(&format!("const {index} row = row0 + i, column = column0 + threadIdx.x;"));
    writer.open(&format!("if (row < {rows} && column < {columns})"));
    writer.bind(*row, "row");
    writer.bind(*column, "column");
    writer.line(&format!("const {ty} hero = tile[threadIdx.x * 33 + i];"));
    writer.stores(stores);
    writer.close();
    writer.close();
    text.push_str(&writer.out);
    text.push_str("}\n");
    let grid = blocks(extent(*batch).saturating_mul(down).saturating_mul(across))?;
    Ok(Printed { text, template: None, launch: Launch { grid, block: [32, 8], shared: 0 } })
}

pub(super) fn recurrent(program: &Program, layer: &Layer, most: u32) -> Result<Printed> {
    let dtype = program.args[layer.reads[0] as usize].dtype;
    let hidden = layer.cell.hidden;
    let threads = (hidden.clamp(1, 256) as u32).next_multiple_of(32);
    let wide: i64 = if dtype == crate::ir::DType::F64 { 8 } else { 4 };
    let shared = hidden.saturating_mul(3 * wide);
    if shared > i64::from(most) {
        let message = format!("a recurrent layer of {hidden} units needs {shared} bytes of shared memory");
        return Err(Error::Unsupported(Report::new("", message)));
    }
    let cell = match layer.cell.cell {
        Cell::Rnn => 0,
        Cell::Lstm => 1,
        Cell::Gru => 2,
        Cell::GruResetAfter => 3,
    };
    let directions: i64 = if layer.cell.direction == Direction::Bidirectional { 2 } else { 1 };
    let mut text = title(program, "one block a sequence and direction");
    text.push_str(&head(program, threads));
    let arg =
        |args: &[u32], position: usize| args.get(position).map_or("0".to_owned(), |arg| format!("a{arg}"));
    let list = (0..6).map(|i| arg(&layer.reads, i)).chain((0..3).map(|i| arg(&layer.writes, i)));
    let (s, t) = (storage(dtype), compute(dtype));
    let list: Vec<String> = list.map(|arg| if arg == "0" { format!("({s}*)0") } else { arg }).collect();
    text.push_str(&format!(
        "  recurrent<{t}, {s}, {cell}, {}, {}>({}, {}, {}, {}, {hidden});\n}}\n",
        layer.cell.direction == Direction::Reverse,
        directions == 2,
        list.join(", "),
        layer.time,
        layer.batch,
        layer.features
    ));
    let grid = blocks(layer.batch.saturating_mul(directions))?;
    let launch = Launch { grid, block: [threads, 1], shared: shared as u32 };
    Ok(Printed { text, template: Some(Template::Recurrent), launch })
}

pub(super) fn no_hero() -> Error {
    Error::Internal("a program of another hero".to_owned())
}
