//! Attention: the structure that `kernels/attention.cuh` takes, and the form that suits the sizes.

use std::fmt::Write;

use super::{Launch, Printed, Template, blocks, ceil, compute, head, storage, title};
use crate::error::{Error, Report, Result};
use crate::ir::DType;
use crate::kernel::attention::Lie;
use crate::kernel::program::{Heads, Program};

/// Most elements of a query, a key or a value that tensor cores take.
const WIDEST: u64 = 128;
/// Fewest rows of a head for which a tile of 64 pays.
const FEW: u64 = 8;
/// Most elements of a value that a warp keeps in registers.
const LONGEST: u64 = 1024;

pub(super) fn attention(program: &Program, heads: &Heads) -> Result<Printed> {
    let geometry = &heads.geometry;
    let dtype = program.args[heads.reads[0] as usize].dtype;
    let half = matches!(dtype, DType::F16 | DType::Bf16);
    if geometry.value_size > LONGEST {
        let message = format!("attention with values of {} elements", geometry.value_size);
        return Err(Error::Unsupported(Report::new("", message)));
    }
    let tensor = half && geometry.size.max(geometry.value_size) <= WIDEST && geometry.rows > FEW;
    let lines = i64::try_from(geometry.batch.saturating_mul(geometry.heads)).unwrap_or(i64::MAX);
    let rows = i64::try_from(geometry.rows).unwrap_or(i64::MAX);
    let (how, call, grid) = if tensor {
        // Sixteen bytes at a time, where every row begins at a multiple of them.
        let even = |lie: Lie| [lie.start, lie.batch, lie.head, lie.row].iter().all(|at| at % 8 == 0);
        let wide = geometry.size.is_multiple_of(8)
            && geometry.value_size.is_multiple_of(8)
            && even(geometry.lies[1])
            && even(geometry.lies[2]);
        let tiles = lines.saturating_mul(ceil(rows, 64));
        ("tiles of 64 rows on tensor cores", format!("attention_mma<KERNEL_heads, {wide}>"), tiles)
    } else {
        let warps = lines.saturating_mul(rows);
        ("a warp a row", "attention_rows<KERNEL_heads>".to_owned(), ceil(warps, 4))
    };
    let mut text = title(program, how);
    text.push_str(&structure(program, heads, dtype));
    text.push_str(&head(program, 128));
    text.push_str("  KERNEL_heads p;\n");
    for (name, arg) in ["q", "k", "v", "mask"].iter().zip(&heads.reads) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  p.{name} = a{arg};");
    }
    let _ = writeln!(text, "  p.out = a{};\n  {call}(p);\n}}", heads.write);
    let launch = Launch { grid: blocks(grid)?, block: [128, 1], shared: 0 };
    Ok(Printed { text, template: Some(Template::Attention), launch })
}

fn structure(program: &Program, heads: &Heads, dtype: DType) -> String {
    let (geometry, op) = (&heads.geometry, &heads.op);
    let (s, t) = (storage(dtype), compute(dtype));
    let mask = heads.reads.get(3).map(|&arg| program.args[arg as usize].dtype);
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
    line(format!("const {s} *q, *k, *v;"));
    line(format!("{s}* out;"));
    if let Some(mask) = mask {
        line(format!("const {}* mask;", storage(mask)));
    }
    for (position, (name, pointer)) in
        [("query", "q"), ("key", "k"), ("value", "v"), ("result", "out")].into_iter().enumerate()
    {
        let Lie { start, batch, head, row } = geometry.lies[position];
        let constant = if position == 3 { "" } else { "const " };
        let h = if matches!(position, 1 | 2) { "h / GROUP" } else { "h" };
        line(format!(
            "DEVICE {constant}{s}* {name}(i64 b, i64 h, i64 r) const {{ return {pointer} + ({start} + b * {batch} + {h} * {head} + r * {row}); }}"
        ));
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
