//! Rows that are updated in order, and the steps of many updates brought into the order of their rows: the structures that
//! `kernels/scatter.cuh` takes, and how rows and steps are divided among blocks.

use std::fmt::Write;

use super::map::neighbours;
use super::writer::{Writer, lane_of, scatter_join, vector};
use super::{
    Launch, Printed, Template, blocks, bounded_head, ceil, compute, head, index_type, storage, title,
};
use crate::error::Result;
use crate::kernel::program::{ExprId, Order, OrderPass, Ordered, Program, Scatter, ScatterPass, Var};

/// Threads of a block; the kernel knows it too.
const THREADS: i64 = 256;
/// Bytes of shared memory for a block's rows.
const SHARED: i64 = 32 << 10;
/// Rows of a block, at most, where there are many: so many blocks have some.
const SPREAD: i64 = 512;
/// Bytes of one access.
const ACCESS: i64 = 16;

/// Threads of a block that orders steps; the kernel knows it too.
const SORTING_THREADS: u32 = 512;

/// Rows that a block takes one after the other where their steps are ordered, and so many blocks at least where there are rows.
const ROUNDS: i64 = 16;
const ORDERED_SPREAD: i64 = 1056;

/// Blocks that a multiprocessor must hold.
const AT_ONCE: i64 = 4;

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

    /// Rows of a block that its threads take at once.
    fn groups(&self) -> i64 {
        THREADS / (self.width / self.lanes)
    }
}

pub(super) fn scatter(program: &Program, scatter: &Scatter) -> Result<Printed> {
    let [rows, columns, steps] =
        [scatter.row, scatter.column, scatter.step].map(|var| program.exprs.extent(var));
    let division = Division::new(program, scatter);
    let Division { width, lanes, .. } = division;
    let across = ceil(columns, width);
    match scatter.ordered {
        None => {
            let Division { each, bytes, .. } = division;
            let how = format!("{each} rows a block, {lanes} columns a thread");
            let grid = blocks(ceil(rows, each).saturating_mul(across))?;
            let launch = Launch { grid, block: [THREADS as u32, 1], shared: (each * width * bytes) as u32 };
            let call = format!("scatter_rows<KERNEL_rows, {each}>");
            Ok(printed(program, scatter, lanes, &how, &call, launch))
        }
        Some(Ordered { pass: ScatterPass::Parts, length, .. }) => {
            let how = format!("parts of {length} steps, {lanes} columns a thread");
            let windows = ceil(steps, length);
            let grid = blocks(ceil(windows, division.groups()).saturating_mul(across))?;
            let launch = Launch { grid, block: [THREADS as u32, 1], shared: 0 };
            Ok(printed(program, scatter, lanes, &how, "scatter_parts", launch))
        }
        Some(Ordered { pass: ScatterPass::Rows, .. }) => {
            let groups = division.groups();
            let rounds = (rows / (groups * ORDERED_SPREAD)).clamp(1, (ROUNDS / groups).max(1));
            let each = groups * rounds;
            let how = format!("{each} rows a block, {lanes} columns a thread");
            let grid = blocks(ceil(rows, each).saturating_mul(across))?;
            let launch = Launch { grid, block: [THREADS as u32, 1], shared: 0 };
            let call = format!("scatter_ordered<KERNEL_rows, {each}>");
            Ok(printed(program, scatter, lanes, &how, &call, launch))
        }
    }
}

fn printed(
    program: &Program,
    scatter: &Scatter,
    lanes: i64,
    how: &str,
    call: &str,
    launch: Launch,
) -> Printed {
    let mut text = title(program, how);
    text.push_str(&structure(program, scatter, lanes));
    // Reads wait for memory: so many blocks of a multiprocessor do so at once.
    let bounds =
        if scatter.ordered.is_some() { format!("{THREADS}, {AT_ONCE}") } else { THREADS.to_string() };
    text.push_str(&bounded_head(program, &bounds));
    text.push_str("  KERNEL_rows p;\n");
    assign(&mut text, program);
    let pass = scatter.ordered.map(|ordered| ordered.pass);
    if pass != Some(ScatterPass::Parts) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  p.out = a{};", scatter.out);
    }
    if let Some(Ordered { places, steps, parts, .. }) = scatter.ordered {
        let _ = writeln!(text, "  p.places = a{places};\n  p.steps = a{steps};\n  p.parts = a{parts};");
    }
    let _ = write!(text, "  {call}(p);\n}}\n");
    Printed { text, template: Some(Template::Scatter), launch }
}

/// The structure's own arguments.
fn assign(text: &mut String, program: &Program) {
    for position in 0..program.args.len() {
        let _ = writeln!(text, "  p.a{position} = a{position};");
    }
}

fn members(text: &mut String, program: &Program) {
    for (position, arg) in program.args.iter().enumerate() {
        let constant = if arg.written { "" } else { "const " };
        let _ = writeln!(text, "  {constant}{}* a{position};", storage(arg.dtype));
    }
}

/// What `scatter_rows` and its like take: sizes, arguments, and how a step finds its row, begins, updates and joins it, and what
/// becomes of it; each where the kernel asks for it.
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
    members(&mut text, program);
    let pass = scatter.ordered.map(|ordered| ordered.pass);
    if pass != Some(ScatterPass::Parts) {
        let _ = writeln!(text, "  {}* out;", storage(dtype));
    }
    if let Some(ordered) = &scatter.ordered {
        let constant = if ordered.pass == ScatterPass::Parts { "" } else { "const " };
        let length = ordered.length;
        let _ = writeln!(
            text,
            "  static const int LENGTH = {length};\n  const i32 *places, *steps;\n  {constant}T* parts;"
        );
    }
    let mut method = |head: &str, body: &dyn Fn(&mut Writer<'_>)| {
        let mut writer = Writer::method(program, index);
        body(&mut writer);
        let _ = write!(text, "  DEVICE {head} {{\n{}  }}\n", writer.out);
    };
    if pass.is_none() {
        method("I place(I step) const", &|writer| {
            writer.bind(scatter.step, "step");
            let place = writer.value(scatter.place);
            writer.line(&format!("return {place};"));
        });
    }
    method("void update(I step, I column, T (&to)[LANES]) const", &|writer| {
        neighbouring(writer, program, (scatter.step, "step"), scatter.column, scatter.update, lanes);
    });
    let join =
        scatter_join(scatter.kind).map_or("update".to_owned(), |join| format!("{join}(stands, update)"));
    method("static T join(T stands, T update)", &|writer| writer.line(&format!("return {join};")));
    if pass != Some(ScatterPass::Parts) {
        method("void start(I row, I column, T (&to)[LANES]) const", &|writer| {
            neighbouring(writer, program, (scatter.row, "row"), scatter.column, scatter.start, lanes);
        });
        method("T made(I row, I column, T hero) const", &|writer| {
            writer.bind(scatter.row, "row");
            writer.bind(scatter.column, "column");
            let made = writer.value(scatter.made);
            writer.line(&format!("return {made};"));
        });
    }
    text.push_str("};\n");
    text
}

/// A thread's columns of a row of updates, or of what is updated: read in one access where they are neighbours.
fn neighbouring(
    writer: &mut Writer<'_>,
    program: &Program,
    (line, name): (Var, &str),
    column: Var,
    value: ExprId,
    lanes: i64,
) {
    writer.bind(line, name);
    let found = (lanes > 1).then(|| neighbours(program, value, column, lanes)).flatten();
    if let Some((arg, first, None)) = found {
        writer.bind(column, "column");
        let first = writer.value(first);
        let ty = vector(lanes, program.args[arg as usize].dtype);
        writer.line(&format!("const {ty} read = *(const {ty}*)(a{arg} + {first});"));
        writer.line("#pragma unroll");
        return writer.line(&format!("for (int i = 0; i < LANES; ++i) to[i] = {};", lane_of("read", "i")));
    }
    writer.line("#pragma unroll");
    writer.open("for (int lane = 0; lane < LANES; ++lane)");
    writer.bind(column, "(column + lane)");
    let value = writer.value(value);
    writer.line(&format!("to[lane] = {value};"));
    writer.close();
}

pub(super) fn order(program: &Program, order: &Order) -> Result<Printed> {
    let (steps, each) = (program.exprs.extent(order.step), order.each);
    let mut text = title(program, &format!("{each} steps a block"));
    text.push_str(&order_structure(program, order));
    text.push_str(&head(program, SORTING_THREADS));
    text.push_str("  KERNEL_steps p;\n");
    assign(&mut text, program);
    let _ = writeln!(text, "  p.counts = a{};", order.counts);
    let call = match order.pass {
        OrderPass::Count => "count_digits",
        OrderPass::Sort => {
            let [places, steps] = order.to;
            let _ = writeln!(text, "  p.places = a{places};\n  p.steps = a{steps};");
            "order_steps"
        }
    };
    let _ = write!(text, "  {call}<KERNEL_steps, {each}>(p);\n}}\n");
    let launch = Launch { grid: blocks(ceil(steps, each))?, block: [SORTING_THREADS, 1], shared: 0 };
    Ok(Printed { text, template: Some(Template::Scatter), launch })
}

/// What `count_digits` and `order_steps` take.
fn order_structure(program: &Program, order: &Order) -> String {
    let (index, steps) = (index_type(program), program.exprs.extent(order.step));
    let Order { shift, bits, .. } = order;
    let lists = match order.pass {
        OrderPass::Count => "i32* counts;",
        OrderPass::Sort => "const i32* counts;\n  i32 *places, *steps;",
    };
    let mut text = format!(
        "struct KERNEL_steps {{\n  typedef {index} I;\n  static const i64 STEPS = {steps};\n  static const int SHIFT = {shift}, BITS = {bits};\n  {lists}\n"
    );
    members(&mut text, program);
    let mut writer = Writer::method(program, index);
    writer.bind(order.step, "at");
    let place = writer.value(order.place);
    writer.line(&format!("return {place};"));
    let _ = write!(text, "  DEVICE I place(I at) const {{\n{}  }}\n", writer.out);
    let step = order.from.map_or("(i32)at".to_owned(), |from| format!("a{from}[at]"));
    let _ = writeln!(text, "  DEVICE i32 step(I at) const {{ return {step}; }}\n}};");
    text
}
