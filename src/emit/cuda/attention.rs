//! Attention: the structure that `kernels/attention.cuh` takes, and the form that suits the sizes.

use std::fmt::Write;

use super::{Launch, Printed, Template, blocks, ceil, compute, head, storage, title};
use crate::error::{Error, Report, Result};
use crate::ir::DType;
use crate::kernel::attention::Lie;
use crate::kernel::program::{Heads, Pass, Program};

/// Most elements of a query, a key or a value that tensor cores take.
const WIDEST: u64 = 128;
/// Fewest rows of a head for which a tile of 64 pays.
const FEW: u64 = 8;
/// Most elements of a value that a warp keeps in registers.
const LONGEST: u64 = 1024;

pub(super) fn attention(program: &Program, heads: &Heads) -> Result<Printed> {
    let geometry = &heads.geometry;
    let dtype = program.args[heads.reads[0] as usize].dtype;
    let half = dtype.is_half();
    let longest = if heads.pass == Pass::Forward { 0 } else { geometry.size }.max(geometry.value_size);
    if longest > LONGEST {
        let message = format!("attention with {longest} elements of a head");
        return Err(Error::Unsupported(Report::new("", message)));
    }
    let threads = |warps: i64| ceil(warps, 4);
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let lines = signed(geometry.batch.saturating_mul(geometry.heads));
    let (how, call, grid) = match heads.pass {
        Pass::Forward => forward(heads, half, lines),
        Pass::Queries => {
            let warps = lines.saturating_mul(signed(geometry.rows));
            ("a warp a row", "attention_gradient_rows<KERNEL_heads>(p)".to_owned(), threads(warps))
        }
        Pass::Keys => {
            let warps = lines.saturating_mul(signed(geometry.keys)) / signed(geometry.group.max(1));
            ("a warp a key", "attention_gradient_keys<KERNEL_heads>(p)".to_owned(), threads(warps))
        }
    };
    let mut text = title(program, how);
    text.push_str(&structure(program, heads, dtype));
    text.push_str(&head(program, 128));
    text.push_str("  KERNEL_heads p;\n");
    for (name, arg) in pointers(heads) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  p.{name} = a{arg};");
    }
    let _ = writeln!(text, "  {call};\n}}");
    let launch = Launch { grid: blocks(grid)?, block: [128, 1], shared: 0 };
    Ok(Printed { text, template: Some(Template::Attention), launch })
}

fn forward(heads: &Heads, half: bool, lines: i64) -> (&'static str, String, i64) {
    let geometry = &heads.geometry;
    let rows = i64::try_from(geometry.rows).unwrap_or(i64::MAX);
    if !half || geometry.size.max(geometry.value_size) > WIDEST || geometry.rows <= FEW {
        return (
            "a warp a row",
            "attention_rows<KERNEL_heads>(p)".to_owned(),
            ceil(lines.saturating_mul(rows), 4),
        );
    }
    // Sixteen bytes at a time, where every row begins at a multiple of them.
    let even = |lie: Lie| [lie.start, lie.batch, lie.head, lie.row].iter().all(|at| at % 8 == 0);
    let wide = geometry.size.is_multiple_of(8)
        && geometry.value_size.is_multiple_of(8)
        && even(geometry.lies[1])
        && even(geometry.lies[2]);
    let tiles = lines.saturating_mul(ceil(rows, 64));
    ("tiles of 64 rows on tensor cores", format!("attention_mma<KERNEL_heads, {wide}>(p)"), tiles)
}

/// The structure's pointers, and the arguments that they are.
fn pointers(heads: &Heads) -> Vec<(&'static str, u32)> {
    let written: &[&str] = match heads.pass {
        Pass::Forward => &["out"],
        Pass::Queries => &["dq"],
        Pass::Keys => &["dk", "dv"],
    };
    let writes = written.iter().copied().zip(heads.writes.iter().map(|write| write.0));
    let given = ["out", "dout"].into_iter().zip(heads.given.into_iter().flatten());
    let rows = ["logs", "levels"].into_iter().zip(heads.rows.into_iter().flatten());
    let read = ["q", "k", "v"].into_iter().zip(heads.reads);
    read.chain(heads.mask.map(|mask| ("mask", mask))).chain(given).chain(rows).chain(writes).collect()
}

fn structure(program: &Program, heads: &Heads, dtype: DType) -> String {
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
    line(format!("static const i64 OFFSET = {};", op.causal.unwrap_or(0)));
    for (name, arg) in pointers(heads) {
        let arg = &program.args[arg as usize];
        line(format!("{}{}* {name};", if arg.written { "" } else { "const " }, storage(arg.dtype)));
    }
    let mut row = |name: &str, pointer: &str, written: bool, lie: Lie, h: &str| {
        let Lie { start, batch, head, row } = lie;
        let constant = if written { "" } else { "const " };
        line(format!(
            "DEVICE {constant}{s}* {name}(i64 b, i64 h, i64 r) const {{ return {pointer} + ({start} + b * {batch} + {h} * {head} + r * {row}); }}"
        ));
    };
    let [q, k, v, out] = geometry.lies;
    row("query", "q", false, q, "h");
    row("key", "k", false, k, "h / GROUP");
    row("value", "v", false, v, "h / GROUP");
    row("result", "out", heads.pass == Pass::Forward, out, "h");
    if heads.given.is_some() {
        row("given", "dout", false, out, "h");
    }
    let made: &[(&str, &str)] = match heads.pass {
        Pass::Forward => &[],
        Pass::Queries => &[("of_query", "dq")],
        Pass::Keys => &[("of_key", "dk"), ("of_value", "dv")],
    };
    for ((name, pointer), &(_, lie)) in made.iter().zip(&heads.writes) {
        row(name, pointer, true, lie, "h");
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
    if heads.given.is_some() {
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
