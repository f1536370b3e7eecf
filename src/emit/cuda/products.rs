//! Matrix products and what is unfolded to one: the template of `kernels/product.cuh` that suits the
//! sizes, and the structure that gives it operands and takes its sums.

use super::heroes::no_hero;
use super::writer::Writer;
use super::{Launch, Printed, Template, blocks, compute, index_type, storage, title};
use crate::error::Result;
use crate::kernel::program::{Body, Expr, ExprId, Program, Var};

/// Most rows that are multiplied without tiles.
const FEW: i64 = 8;

pub(super) fn product(program: &Program) -> Result<Printed> {
    let Body::Product { batch, row, column, inner, left, right, stores } = &program.body else {
        return Err(no_hero());
    };
    let extent = |var: Var| program.exprs.extent(var);
    let [b, m, n, k] = [*batch, *row, *column, *inner].map(extent);
    let exprs = &program.exprs;
    let index = index_type(program);
    let dtype = exprs.dtype(*left);
    let ty = compute(dtype);
    let left_along = is_along(program, *left, *inner);
    let right_along = is_along(program, *right, *inner);
    let half = dtype.is_half() && dtype == exprs.dtype(*right);
    let form = if m <= FEW && right_along {
        Form::Dots
    } else if m <= FEW {
        Form::Columns
    } else if half {
        Form::Tensor
    } else {
        Form::Tiled
    };
    let (call, threads, grid) = match form {
        Form::Dots => (
            format!("product_dots<KERNEL_operands, {m}>"),
            [128, 1],
            b.saturating_mul(n).saturating_add(3) / 4,
        ),
        Form::Columns => {
            let blocks = n.saturating_add(31) / 32;
            (format!("product_columns<KERNEL_operands, {m}, 8>"), [32, 8], b.saturating_mul(blocks))
        }
        Form::Tensor => (
            format!("product_mma<KERNEL_operands, {}, {left_along}, {right_along}>", storage(dtype)),
            [128, 1],
            tiles(b, m, n),
        ),
        Form::Tiled => (
            format!("product_tiled<KERNEL_operands, 64, 64, 16, 4, 4, {left_along}, {right_along}>"),
            [256, 1],
            tiles(b, m, n),
        ),
    };
    let mut text = title(program, &format!("{b} x ({m} x {k}) x ({k} x {n}), {}", form.name()));
    text.push_str("struct KERNEL_operands {\n");
    text.push_str(&format!("  typedef {ty} T;\n  typedef {index} I;\n"));
    text.push_str(&format!("  static const i64 BATCH = {b}, M = {m}, N = {n}, K = {k};\n"));
    for (position, arg) in program.args.iter().enumerate() {
        let constant = if arg.written { "" } else { "const " };
        text.push_str(&format!("  {constant}{}* a{position};\n", storage(arg.dtype)));
    }
    for (name, id, vars) in [
        ("left", *left, [(*batch, "b"), (*row, "m"), (*inner, "k")]),
        ("right", *right, [(*batch, "b"), (*inner, "k"), (*column, "n")]),
    ] {
        let [(_, x), (_, y), (_, z)] = vars;
        text.push_str(&format!("  DEVICE T {name}(I {x}, I {y}, I {z}) const {{\n"));
        let mut writer = Writer::method(program, index);
        vars.iter().for_each(|&(var, name)| writer.bind(var, name));
        let value = writer.value(id);
        writer.line(&format!("return {value};"));
        text.push_str(&writer.out);
        text.push_str("  }\n");
    }
    text.push_str("  DEVICE void store(I b, I m, I n, T hero) const {\n");
    let mut writer = Writer::method(program, index);
    [(*batch, "b"), (*row, "m"), (*column, "n")].iter().for_each(|&(var, name)| writer.bind(var, name));
    writer.stores(stores);
    text.push_str(&writer.out);
    text.push_str("  }\n};\n");
    text.push_str(&super::head(program, threads[0] * threads[1]));
    text.push_str("  KERNEL_operands p;\n");
    for position in 0..program.args.len() {
        text.push_str(&format!("  p.a{position} = a{position};\n"));
    }
    text.push_str(&format!("  {call}(p);\n}}\n"));
    let launch = Launch { grid: blocks(grid)?, block: threads, shared: 0 };
    Ok(Printed { text, template: Some(Template::Product), launch })
}

enum Form {
    Dots,
    Columns,
    Tensor,
    Tiled,
}

impl Form {
    fn name(&self) -> &'static str {
        match self {
            Self::Dots => "a warp a column",
            Self::Columns => "32 columns a block",
            Self::Tensor => "tiles of 64 x 64 on tensor cores",
            Self::Tiled => "tiles of 64 x 64",
        }
    }
}

fn tiles(b: i64, m: i64, n: i64) -> i64 {
    let down = m.saturating_add(63) / 64;
    b.saturating_mul(down).saturating_mul(n.saturating_add(63) / 64)
}

/// True where the first load that an operand follows from reads neighbours along a variable.
fn is_along(program: &Program, id: ExprId, var: Var) -> bool {
    let exprs = &program.exprs;
    let loads = super::map::reached(exprs, &[id]);
    loads.into_iter().any(|id| match exprs.get(id) {
        Expr::Load { index, .. } => {
            let (_, terms) = exprs.terms(*index);
            terms.iter().any(|&(x, factor)| factor == 1 && exprs.depends(x, var))
        }
        _ => false,
    })
}
