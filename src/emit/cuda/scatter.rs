//! Rows that are updated in order: the structure that `kernels/scatter.cuh` takes, and how many of them a block has.

use std::fmt::Write;

use super::map::neighbours;
use super::writer::{Writer, lane_of, scatter_join, vector};
use super::{Launch, Printed, Template, blocks, ceil, compute, head, index_type, storage, title};
use crate::error::Result;
use crate::kernel::program::{Program, Scatter};

/// Threads of a block; the kernel knows it too.
const THREADS: i64 = 256;
/// Bytes of shared memory for a block's rows.
const SHARED: i64 = 32 << 10;
/// Rows of a block, at most, where there are many: so many blocks have some.
const SPREAD: i64 = 512;
/// Bytes of one access.
const ACCESS: i64 = 16;

/// How rows are divided among blocks, and columns among threads.
struct Division {
    /// Rows of a block.
    each: i64,
    /// Columns of a block, and of a thread.
    width: i64,
    lanes: i64,
    /// Bytes of an element in shared memory.
    bytes: i64,
}

impl Division {
    fn new(program: &Program, scatter: &Scatter) -> Self {
        let [rows, columns] = [scatter.row, scatter.column].map(|var| program.exprs.extent(var));
        let dtype = program.args[scatter.out as usize].dtype;
        let most = ACCESS / dtype.size() as i64;
        let wide = |&lanes: &i64| {
            lanes <= most && neighbours(program, scatter.update, scatter.column, lanes).is_some()
        };
        let lanes = [16, 8, 4, 2].into_iter().find(wide).unwrap_or(1);
        let width = columns.min(THREADS * lanes);
        // Halves are added up in floats.
        let bytes = if dtype.is_half() { 4 } else { dtype.size() as i64 };
        let each = (SHARED / (width * bytes)).clamp(1, ceil(rows, SPREAD));
        Self { each, width, lanes, bytes }
    }
}

pub(super) fn scatter(program: &Program, scatter: &Scatter) -> Result<Printed> {
    let [rows, columns] = [scatter.row, scatter.column].map(|var| program.exprs.extent(var));
    let Division { each, width, lanes, bytes } = Division::new(program, scatter);
    let mut text = title(program, &format!("{each} rows a block, {lanes} columns a thread"));
    text.push_str(&structure(program, scatter, lanes));
    text.push_str(&head(program, THREADS as u32));
    text.push_str("  KERNEL_rows p;\n");
    for position in 0..program.args.len() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  p.a{position} = a{position};");
    }
    let _ = write!(text, "  p.out = a{};\n  scatter_rows<KERNEL_rows, {each}>(p);\n}}\n", scatter.out);
    let grid = blocks(ceil(rows, each).saturating_mul(ceil(columns, width)))?;
    let launch = Launch { grid, block: [THREADS as u32, 1], shared: (each * width * bytes) as u32 };
    Ok(Printed { text, template: Some(Template::Scatter), launch })
}

/// What `scatter_rows` takes: sizes, arguments, and how a step finds its row, begins, updates and joins it, and what becomes of it.
fn structure(program: &Program, scatter: &Scatter, lanes: i64) -> String {
    let exprs = &program.exprs;
    let [rows, columns, steps] = [scatter.row, scatter.column, scatter.step].map(|var| exprs.extent(var));
    let dtype = program.args[scatter.out as usize].dtype;
    let index = index_type(program);
    let mut text = "struct KERNEL_rows {\n".to_owned();
    let _ = writeln!(
        text,
        "  typedef {} S;\n  typedef {} T;\n  typedef {index} I;\n  static const i64 ROWS = {rows}, COLUMNS = {columns}, STEPS = {steps};\n  static const int LANES = {lanes};",
        storage(dtype),
        compute(dtype)
    );
    for (position, arg) in program.args.iter().enumerate() {
        let constant = if arg.written { "" } else { "const " };
        let _ = writeln!(text, "  {constant}{}* a{position};", storage(arg.dtype));
    }
    let _ = writeln!(text, "  {}* out;", storage(dtype));
    let mut method = |head: &str, body: &dyn Fn(&mut Writer<'_>)| {
        let mut writer = Writer::method(program, index);
        body(&mut writer);
        let _ = write!(text, "  DEVICE {head} {{\n{}  }}\n", writer.out);
    };
    method("I place(I step) const", &|writer| {
        writer.bind(scatter.step, "step");
        let place = writer.value(scatter.place);
        writer.line(&format!("return {place};"));
    });
    method("T start(I row, I column) const", &|writer| {
        writer.bind(scatter.row, "row");
        writer.bind(scatter.column, "column");
        let start = writer.value(scatter.start);
        writer.line(&format!("return {start};"));
    });
    method("void update(I step, I column, T (&to)[LANES]) const", &|writer| {
        update(writer, program, scatter, lanes);
    });
    let join =
        scatter_join(scatter.kind).map_or("update".to_owned(), |join| format!("{join}(stands, update)"));
    method("static T join(T stands, T update)", &|writer| writer.line(&format!("return {join};")));
    method("T made(I row, I column, T hero) const", &|writer| {
        writer.bind(scatter.row, "row");
        writer.bind(scatter.column, "column");
        let made = writer.value(scatter.made);
        writer.line(&format!("return {made};"));
    });
    text.push_str("};\n");
    text
}

/// A thread's columns of an update, read in one access where they are neighbours.
fn update(writer: &mut Writer<'_>, program: &Program, scatter: &Scatter, lanes: i64) {
    writer.bind(scatter.step, "step");
    writer.bind(scatter.column, "column");
    let found = (lanes > 1).then(|| neighbours(program, scatter.update, scatter.column, lanes)).flatten();
    let Some((arg, first, _)) = found else {
        let update = writer.value(scatter.update);
        return writer.line(&format!("to[0] = {update};"));
    };
    let first = writer.value(first);
    let ty = vector(lanes, program.args[arg as usize].dtype);
    writer.line(&format!("const {ty} read = *(const {ty}*)(a{arg} + {first});"));
    writer.line("#pragma unroll");
    writer.line(&format!("for (int i = 0; i < LANES; ++i) to[i] = {};", lane_of("read", "i")));
}
