//! Attention: the structure that `kernels/attention.cuh` takes, and the form that suits the sizes.

use std::fmt::Write;

use super::{
    GROUPS_SHARED, Gives, Launch, Printed, Template, blocks, bounded_head, ceil, compute, storage, title,
};
use crate::error::{Error, Report, Result};
use crate::ir::DType;
use crate::kernel::attention::HeadStrides;
use crate::kernel::program::{Heads, Pass, Program};

/// Most elements of a query, a key or a value that tensor cores take.
const WIDEST: u64 = 128;
/// Rows and keys of a head up to which a tile of 64 does not pay.
const SKINNY_ROWS: u64 = 8;
/// Bytes of the signals of a block whose groups do different things.
const SIGNALS: u32 = 256;
/// Most elements of a value that a warp keeps in registers.
const LONGEST: u64 = 1024;

/// Tiles where a GPU gives what they take.
pub(super) fn attention(program: &Program, heads: &Heads, gives: Gives) -> Result<Printed> {
    let geometry = &heads.geometry;
    let dtype = program.args[heads.reads[0] as usize].dtype;
    let longest = match heads.pass {
        Pass::Forward | Pass::Parts => geometry.value_size,
        Pass::Queries | Pass::Keys => geometry.size.max(geometry.value_size),
    };
    if longest > LONGEST {
        let message = format!("attention with {longest} elements of a head");
        return Err(Error::Unsupported(Report::new("", message)));
    }
    let form = form(heads, dtype, gives);
    let mut text = title(program, form.how);
    text.push_str(&structure(program, heads, dtype, form.template));
    // Few large blocks need their registers more than company.
    let together = form.together.or((form.threads > 256).then_some(1));
    let bounds = together.map_or(form.threads.to_string(), |blocks| format!("{}, {blocks}", form.threads));
    text.push_str(&bounded_head(program, &bounds));
    text.push_str("  KERNEL_heads p;\n");
    for (name, arg) in pointers(heads) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  p.{name} = a{arg};");
    }
    let _ = writeln!(text, "  {}(p);\n}}", form.call);
    let launch = Launch { grid: blocks(form.grid)?, block: [form.threads, 1], shared: form.shared };
    Ok(Printed { text, template: Some(form.template), launch })
}

/// What computes a pass.
struct Form {
    how: &'static str,
    call: String,
    grid: i64,
    threads: u32,
    /// Blocks that a multiprocessor must hold at once, where registers are to be shared out so.
    together: Option<u32>,
    /// Dynamic shared memory of a block, in bytes.
    shared: u32,
    template: Template,
}

fn form(heads: &Heads, dtype: DType, gives: Gives) -> Form {
    let (half, size, shared) = (dtype.is_half() && gives.tensor_cores, dtype.size(), gives.shared);
    let geometry = &heads.geometry;
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let query_lines = geometry.batch.saturating_mul(geometry.heads);
    let (name, lines, each) = match heads.pass {
        Pass::Forward | Pass::Parts => ("attention", query_lines, geometry.rows),
        Pass::Queries => ("attention_gradient_rows", query_lines, geometry.rows),
        Pass::Keys => ("attention_gradient_keys", query_lines / geometry.group.max(1), geometry.keys),
    };
    let (lines, each) = (signed(lines), signed(each));
    if heads.pass == Pass::Parts {
        return in_parts(size, lines.saturating_mul(each).saturating_mul(signed(heads.parts)));
    }
    let longest = geometry.size.max(geometry.value_size);
    if !half || longest > WIDEST || geometry.rows <= SKINNY_ROWS || geometry.keys <= SKINNY_ROWS {
        let tiles = in_tiles(heads, dtype, [lines, each])
            .or_else(|| gradients_in_tiles(heads, dtype, [lines, each], shared));
        if let Some(form) = tiles.filter(|form| form.shared <= shared) {
            return form;
        }
        if let Some(form) = shared_rows(heads, size, lines.saturating_mul(each)) {
            return form;
        }
        let (how, plain) = match heads.pass {
            Pass::Forward | Pass::Parts => ("a warp a row", "attention_rows"),
            Pass::Queries => ("a warp a row", name),
            Pass::Keys => ("a warp a key", name),
        };
        let (call, grid) = (format!("{plain}<KERNEL_heads>"), ceil(lines.saturating_mul(each), 4));
        return Form {
            how,
            call,
            grid,
            threads: 128,
            together: None,
            shared: 0,
            template: Template::Attention,
        };
    }
    by_groups(heads, name, [lines, each], gives)
        .unwrap_or_else(|| on_tensor_cores(heads, name, [lines, each]))
}

/// Whether halves of heads lie at multiples of sixteen bytes.
fn halves_are_wide(heads: &Heads) -> bool {
    let geometry = &heads.geometry;
    let even = |strides: &HeadStrides| {
        [strides.start, strides.batch, strides.head, strides.row].iter().all(|at| at % 8 == 0)
    };
    geometry.size.is_multiple_of(8)
        && geometry.value_size.is_multiple_of(8)
        && geometry.strides.iter().chain(heads.writes.iter().map(|(_, strides)| strides)).all(even)
}

/// Tiles by groups of threads, where the GPU has their products, and rows and keys are enough for them.
fn by_groups(heads: &Heads, name: &str, [lines, each]: [i64; 2], gives: Gives) -> Option<Form> {
    let geometry = &heads.geometry;
    let longest = geometry.size.max(geometry.value_size);
    let enough = geometry.rows >= 64 && geometry.keys >= 128;
    if !gives.groups || !enough || longest > 128 || !halves_are_wide(heads) {
        return None;
    }
    // Groups that multiply, lines of a block of what they meet, and blocks that are there or on their way. One more group copies: it
    // has so many registers a thread, and the others as many as that leaves.
    let (how, groups, block, staged, parameters) = match heads.pass {
        Pass::Parts => return None,
        Pass::Forward if longest <= 64 => ("tiles of 192 rows by groups", 3, 128, 3, "128, 3, 32, 160"),
        Pass::Forward => ("tiles of 128 rows by groups", 2, 128, 3, "128, 3, 40, 232"),
        Pass::Queries => ("tiles of 128 rows by groups", 2, 64, 4, "4, 40, 232"),
        Pass::Keys => ("tiles of 128 keys by groups", 2, 64, 4, "4, 24, 240"),
    };
    let panels = |size: u64| 64 * size.div_ceil(64);
    let [keys, values] = [geometry.size, geometry.value_size].map(panels);
    // Of a block's own lines, forward only the queries; of lines of queries, two numbers each.
    let own = if heads.pass == Pass::Forward { keys } else { keys + values };
    let numbers = if heads.pass == Pass::Keys { 8 * staged * block } else { 0 };
    let bytes = 2 * (64 * groups * own + staged * block * (keys + values)) + numbers;
    Some(Form {
        how,
        call: format!("{name}_groups<KERNEL_heads, {groups}, {parameters}>"),
        grid: lines.saturating_mul(ceil(each, 64 * groups as i64)),
        threads: 128 * (groups as u32 + 1),
        together: Some(1),
        // Panels begin at multiples of 1024 bytes, and signals lie behind them.
        shared: bytes as u32 + 1024 + SIGNALS,
        template: Template::AttentionGroups,
    })
    .filter(|form| form.shared <= GROUPS_SHARED)
}

/// Tiles of halves, which are multiplied on tensor cores. `each`: rows or keys of each of the `lines`.
fn on_tensor_cores(heads: &Heads, name: &str, [lines, each]: [i64; 2]) -> Form {
    let geometry = &heads.geometry;
    let longest = geometry.size.max(geometry.value_size);
    // Sixteen bytes at a time, where every row begins at a multiple of them.
    let wide = halves_are_wide(heads);
    // Two fragments of rows for one reading of keys and values, where registers hold them and blocks are enough.
    let tall = heads.pass == Pass::Forward
        && longest <= 64
        && lines.saturating_mul(ceil(each, 128)) >= 132
        && geometry.rows > 64;
    let how = match heads.pass {
        Pass::Forward if tall => "tiles of 128 rows on tensor cores",
        Pass::Forward | Pass::Parts | Pass::Queries => "tiles of 64 rows on tensor cores",
        Pass::Keys => "tiles of 64 keys on tensor cores",
    };
    // Of 64 keys and values, and twice 32 rows of queries and upstream gradients; in halves, 8 beside each row.
    let pitch = |size: u64| size.next_multiple_of(16) + 8;
    let staged = 2 * (64 + 2 * 32) * (pitch(geometry.size) + pitch(geometry.value_size));
    let shared = if heads.pass == Pass::Keys { staged as u32 } else { 0 };
    let fragments = match (heads.pass, tall) {
        (Pass::Forward, true) => ", 2",
        (Pass::Forward, false) => ", 1",
        (Pass::Parts | Pass::Queries | Pass::Keys, _) => "",
    };
    let call = format!("{name}_mma<KERNEL_heads, {wide}{fragments}>");
    let grid = lines.saturating_mul(ceil(each, if tall { 128 } else { 64 }));
    Form { how, call, grid, threads: 128, together: None, shared, template: Template::AttentionTensor }
}

/// Rows by lanes that share keys, 16 bytes at a time; none where these do not begin at multiples of that, or are too long. `size` is
/// that of an element, `rows` all there are.
fn shared_rows(heads: &Heads, size: u64, rows: i64) -> Option<Form> {
    let geometry = &heads.geometry;
    let each = 16 / size;
    if heads.pass != Pass::Forward || !geometry.reads_whole_accesses(size) {
        return None;
    }
    // As many warps share a row as keep 132 multiprocessors busy, and have keys.
    let wanted = match rows {
        ..528 => 16,
        528..4224 => 4,
        _ => 1,
    };
    let warps = if geometry.keys < 64 { 1 } else { wanted };
    let how =
        if warps == 1 { "a warp a row, 16 bytes at a time" } else { "a block a row, 16 bytes at a time" };
    let call = format!("attention_shared_rows<KERNEL_heads, {warps}, {each}>");
    let grid = if warps == 1 { ceil(rows, 4) } else { rows };
    Some(Form {
        how,
        call,
        grid,
        threads: 32 * warps.max(4),
        together: None,
        shared: 0,
        template: Template::Attention,
    })
}

/// Many rows of f32 in tiles, of two fragments of rows where these leave every multiprocessor a block.
fn in_tiles(heads: &Heads, dtype: DType, [lines, each]: [i64; 2]) -> Option<Form> {
    let geometry = &heads.geometry;
    let longest = geometry.size.max(geometry.value_size);
    let many = geometry.rows > SKINNY_ROWS && geometry.keys > SKINNY_ROWS;
    if heads.pass != Pass::Forward || dtype != DType::F32 || longest > WIDEST || !many {
        return None;
    }
    let tall = longest <= 64 && lines.saturating_mul(ceil(each, 128)) >= 132;
    // Threads beside one another, rows and keys of each, and sixty-four elements of values at a time. Where a thread has as many
    // rows as keys it multiplies most for what it reads of shared memory.
    let [right, down, across, groups]: [u64; 4] = match (longest <= 64, tall) {
        (true, true) => [8, 8, 8, 1],
        (true, false) => [16, 4, 4, 1],
        (false, _) => [16, 4, 2, 2],
    };
    let (rows, keys) = (16 * down, right * across);
    let wide = geometry.reads_whole_accesses(4) && {
        let HeadStrides { start, batch, head, row } = geometry.strides[3];
        [start, batch, head, row].iter().all(|at| at.is_multiple_of(4))
    };
    // Queries and keys element by element, values and weights key by key.
    let numbers = geometry.size * (rows + 4 + keys + 4) + keys * (64 * groups + rows + 4);
    Some(Form {
        how: if tall { "tiles of 128 rows" } else { "tiles of 64 rows" },
        call: format!("attention_tiles<KERNEL_heads, {right}, {down}, {across}, {groups}, {wide}>"),
        grid: lines.saturating_mul(ceil(each, rows as i64)),
        threads: 16 * right as u32,
        together: None,
        shared: 4 * numbers as u32,
        template: Template::Attention,
    })
}

/// The gradients of many rows and keys of f32 in tiles: the tallest that fit.
fn gradients_in_tiles(heads: &Heads, dtype: DType, [lines, each]: [i64; 2], shared: u32) -> Option<Form> {
    let geometry = &heads.geometry;
    let (size, values) = (geometry.size, geometry.value_size);
    let many = geometry.rows > SKINNY_ROWS && geometry.keys > SKINNY_ROWS;
    if dtype != DType::F32 || size.max(values) > 64 || !many {
        return None;
    }
    // Lines and others element by element, or weights; others row by row, of which there are one kind or two.
    let numbers = |down: u64, others_by_row: u64| {
        let (tile, others) = (16 * down, (size + values) * 64);
        (size + values) * tile + others.max(64 * (tile + 4)) + 64 * 64 * others_by_row
    };
    // Lines of a thread: twice as many where shared memory holds them.
    let is_tall = 4 * numbers(8, 1) <= shared.into();
    let (name, down, others_by_row, how) = match heads.pass {
        Pass::Forward | Pass::Parts => return None,
        Pass::Queries if is_tall => ("rows", 8, 1, "tiles of 128 rows"),
        Pass::Queries => ("rows", 4, 1, "tiles of 64 rows"),
        Pass::Keys => ("keys", 4, 2, "tiles of 64 keys"),
    };
    let wide = geometry.reads_whole_accesses(4)
        && heads.writes.iter().map(|(_, strides)| strides).chain([&geometry.strides[3]]).all(|strides| {
            let HeadStrides { start, batch, head, row } = strides;
            [start, batch, head, row].iter().all(|at| at.is_multiple_of(4))
        });
    Some(Form {
        how,
        call: format!("attention_gradient_{name}_tiles<KERNEL_heads, {down}, {wide}>"),
        grid: lines.saturating_mul(ceil(each, 16 * down as i64)),
        threads: 256,
        together: None,
        shared: 4 * numbers(down, others_by_row) as u32,
        template: Template::Attention,
    })
}

/// Four warps for each part of a row's keys.
fn in_parts(size: u64, grid: i64) -> Form {
    let call = format!("attention_shared_rows<KERNEL_heads, 4, {}>", 16 / size);
    let how = "a block a part of a row's keys, 16 bytes at a time";
    Form { how, call, grid, threads: 128, together: None, shared: 0, template: Template::Attention }
}

/// The structure's pointers, and the arguments that they are.
fn pointers(heads: &Heads) -> Vec<(&'static str, u32)> {
    let written: &[&str] = match heads.pass {
        Pass::Forward => &["out"],
        Pass::Parts => &["outs"],
        Pass::Queries => &["dq"],
        Pass::Keys => &["dk", "dv"],
    };
    let writes = written.iter().copied().zip(heads.writes.iter().map(|write| write.0));
    let upstream = ["out", "dout"].into_iter().zip(heads.upstream.into_iter().flatten());
    let numbers = if heads.pass == Pass::Parts { ["mosts", "sums"] } else { ["logs", "d"] };
    let rows = numbers.into_iter().zip(heads.rows.into_iter().flatten());
    let read = ["q", "k", "v"].into_iter().zip(heads.reads);
    let mask = heads.mask.map(|mask| ("mask", mask));
    let position = heads.position.map(|position| ("position", position));
    read.chain(mask).chain(position).chain(upstream).chain(rows).chain(writes).collect()
}

fn structure(program: &Program, heads: &Heads, dtype: DType, template: Template) -> String {
    let (geometry, op) = (&heads.geometry, &heads.op);
    let (s, t) = (storage(dtype), compute(dtype));
    let mask = heads.mask.map(|arg| program.args[arg as usize].dtype);
    let mut text = format!("struct KERNEL_heads {{\n  typedef {s} S;\n  typedef {t} T;\n");
    let mut line = |line: String| {
        text.push_str("  ");
        text.push_str(&line);
        text.push('\n');
    };
    line(format!(
        "static const i64 BATCH = {}, HEADS = {}, GROUP = {}, ROWS = {}, KEYS = {}, SIZE = {}, VALUES = {};",
        geometry.batch,
        geometry.heads,
        geometry.group,
        geometry.rows,
        geometry.keys,
        geometry.size,
        geometry.value_size
    ));
    line(format!("static const bool CAUSAL = {}, ZEROS = {};", op.causal.is_some(), op.zeros));
    if template == Template::AttentionGroups {
        // Scores that are in the order of the products need no numbers of their own.
        let plain = heads.mask.is_none() && op.scale.0 > 0.0 && op.scale.0.is_finite();
        line(format!("static const bool PLAIN = {plain};"));
        line(format!("static constexpr T SCALE = {};", number(if plain { op.scale.0 } else { 1.0 }, t)));
    }
    line(format!("static const i64 PARTS = {}, OFFSET = {};", heads.parts, op.causal.unwrap_or(0)));
    let first = if heads.position.is_some() { "OFFSET + *position" } else { "OFFSET" };
    line(format!("DEVICE i64 offset() const {{ return {first}; }}"));
    for (name, arg) in pointers(heads) {
        let arg = &program.args[arg as usize];
        line(format!("{}{}* {name};", if arg.written { "" } else { "const " }, storage(arg.dtype)));
    }
    let mut row = |name: &str, pointer: &str, written: bool, strides: HeadStrides, h: &str| {
        let HeadStrides { start, batch, head, row } = strides;
        let constant = if written { "" } else { "const " };
        line(format!(
            "DEVICE {constant}{s}* {name}(i64 b, i64 h, i64 r) const {{ return {pointer} + ({start} + b * {batch} + {h} * {head} + r * {row}); }}"
        ));
    };
    let [q, k, v, out] = geometry.strides;
    row("query", "q", false, q, "h");
    row("key", "k", false, k, "h / GROUP");
    row("value", "v", false, v, "h / GROUP");
    if heads.pass != Pass::Parts {
        row("result", "out", heads.pass == Pass::Forward, out, "h");
    }
    if heads.upstream.is_some() {
        row("upstream", "dout", false, out, "h");
    }
    let made: &[(&str, &str)] = match heads.pass {
        Pass::Forward | Pass::Parts => &[],
        Pass::Queries => &[("of_query", "dq")],
        Pass::Keys => &[("of_key", "dk"), ("of_value", "dv")],
    };
    for ((name, pointer), &(_, strides)) in made.iter().zip(&heads.writes) {
        row(name, pointer, true, strides, "h");
    }
    line("DEVICE T score(i64 b, i64 h, i64 r, i64 k, T dot) const {".to_owned());
    line(format!("  const T s = f_mul(dot, {});", number(op.scale.0, t)));
    let [b, h, r, k] = heads.mask_strides;
    let at = format!("mask[b * {b} + h * {h} + r * {r} + k * {k}]");
    line(match mask {
        None => "  return s;".to_owned(),
        Some(DType::Bool) => format!("  return {at} ? s : {};", number(op.fill.0, t)),
        Some(_) => format!("  return f_add(s, get({at}));"),
    });
    line("}".to_owned());
    if heads.upstream.is_some() {
        line(format!("DEVICE T scale() const {{ return {}; }}", number(op.scale.0, t)));
        let shown = if mask == Some(DType::Bool) { format!("{at} != 0") } else { "true".to_owned() };
        line(format!("DEVICE bool passes(i64 b, i64 h, i64 r, i64 k) const {{ return {shown}; }}"));
    }
    text.push_str("};\n");
    text
}

/// A number that is infinite or finite.
fn number(value: f64, ty: &str) -> String {
    match value {
        f64::INFINITY => format!("({ty})infinity_f()"),
        f64::NEG_INFINITY => format!("({ty})-infinity_f()"),
        _ => format!("({ty}){value:?}"),
    }
}
