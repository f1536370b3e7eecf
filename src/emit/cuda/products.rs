//! Matrix products and what is unfolded to one: the template of `kernels/product.cuh` that suits the
//! sizes, and the structure that gives it operands and takes its sums.

use super::heroes::no_hero;
use super::map::neighbours;
use super::writer::{Writer, fold_name};
use super::{Launch, Printed, Template, blocks, ceil, compute, index_type, storage, title};
use crate::error::Result;
use crate::ir::DType;
use crate::kernel::program::{Body, Expr, ExprId, Program, Var};

/// Most rows that are multiplied without tiles.
const SKINNY_ROWS: i64 = crate::kernel::SKINNY_ROWS as i64;
/// Warps of a block of which each takes a column, and where the block first normalises the rows.
const WARPS: i64 = 4;
const WARPS_NORMALIZING: i64 = 16;
/// Rows and columns of tiles on tensor cores: of the larger ones where that leaves so many blocks.
const SMALL: i64 = 64;
const LARGE: i64 = 128;
const MANY: i64 = 96;
/// Halves that are copied together.
const WIDE: i64 = 8;
/// Bytes of one access.
const ACCESS: i64 = 16;

pub(super) fn product(program: &Program) -> Result<Printed> {
    let Body::Product { batch, row, column, inner, reductions, left, right, stores, .. } = &program.body
    else {
        return Err(no_hero());
    };
    let extent = |var: Var| program.exprs.extent(var);
    let [b, m, n, k] = [*batch, *row, *column, *inner].map(extent);
    let exprs = &program.exprs;
    let index_ty = index_type(program);
    let dtype = exprs.dtype(*left);
    let ty = compute(dtype);
    // Rows that are reduced first lie in shared memory, one after the other.
    let kept = !reductions.is_empty();
    let left_along = kept || is_along(program, *left, *inner);
    let right_along = is_along(program, *right, *inner);
    let half = dtype.is_half() && dtype == exprs.dtype(*right);
    // Sixteen bytes of an operand, which is nowhere anything else.
    let lanes = ACCESS / dtype.size() as i64;
    let whole =
        |id: ExprId, along: Var| neighbours(program, id, along, lanes).is_some_and(|found| found.2.is_none());
    let thin = dtype.is_float() && dtype == exprs.dtype(*right);
    let form = if m <= SKINNY_ROWS && right_along && thin && whole(*right, *inner) {
        Form::Dots { wide: [kept || left_along && whole(*left, *inner), true] }
    } else if m <= SKINNY_ROWS && right_along {
        Form::Dots { wide: [false; 2] }
    } else if m <= SKINNY_ROWS {
        Form::Columns { wide: thin && whole(*right, *column) }
    } else if kept {
        return Err(no_hero());
    } else if half {
        let wide = [
            wide_load(program, *left, if left_along { *inner } else { *row }).is_some(),
            wide_load(program, *right, if right_along { *inner } else { *column }).is_some(),
        ];
        let side = |wide: bool, size: i64| if wide && size >= LARGE { LARGE } else { SMALL };
        let (down, across) = (side(wide[0], m), side(wide[1], n));
        let few = tiles(b, (m, down), (n, across)) < MANY;
        Form::Tensor { wide, tile: if few { [SMALL; 2] } else { [down, across] } }
    } else {
        Form::Tiled
    };
    let (call, threads, grid) = match form {
        Form::Dots { wide: [left, right] } => {
            let call = match right {
                true => {
                    let from = if kept { format!(", {ty}") } else { String::new() };
                    format!("product_dots_wide<KERNEL_operands, {m}, {}, {left}{from}>", storage(dtype))
                }
                false => format!("product_dots<KERNEL_operands, {m}>"),
            };
            let warps = if kept { WARPS_NORMALIZING } else { WARPS };
            (call, 32 * warps as u32, ceil(b.saturating_mul(n), warps))
        }
        Form::Columns { wide } => {
            let grid = b.saturating_mul(ceil(n, 32));
            match wide {
                true => {
                    (format!("product_columns_wide<KERNEL_operands, {m}, {}>", storage(dtype)), 256, grid)
                }
                false => (format!("product_columns<KERNEL_operands, {m}, 8>"), 256, grid),
            }
        }
        Form::Tensor { wide: [x, y], tile: [down, across] } => (
            format!(
                "product_mma<KERNEL_operands, {}, {down}, {across}, {left_along}, {right_along}, {x}, {y}>",
                storage(dtype)
            ),
            128,
            tiles(b, (m, down), (n, across)),
        ),
        Form::Tiled => (
            format!("product_tiled<KERNEL_operands, 64, 64, 16, 4, 4, {left_along}, {right_along}>"),
            256,
            tiles(b, (m, SMALL), (n, SMALL)),
        ),
    };
    let rows = if kept { ", of rows that each block reduces first" } else { "" };
    let mut text = title(program, &format!("{b} x ({m} x {k}) x ({k} x {n}), {}{rows}", form.name()));
    text.push_str("struct KERNEL_operands {\n");
    text.push_str(&format!("  typedef {ty} T;\n  typedef {index_ty} I;\n"));
    text.push_str(&format!("  static const i64 BATCH = {b}, M = {m}, N = {n}, K = {k};\n"));
    for (position, arg) in program.args.iter().enumerate() {
        let constant = if arg.written { "" } else { "const " };
        text.push_str(&format!("  {constant}{}* a{position};\n", storage(arg.dtype)));
    }
    if kept {
        text.push_str(&format!("  {ty}* rows;\n"));
        text.push_str(&reduced_rows(program, index_ty));
        text.push_str("  DEVICE T left(I b, I m, I k) const { return rows[m * (I)K + k]; }\n");
        text.push_str("  DEVICE const T* left_wide(I b, I m, I k, bool& inside) const { return rows + m * (I)K + k; }\n");
    }
    for (name, id, vars) in [
        ("left", *left, [(*batch, "b"), (*row, "m"), (*inner, "k")]),
        ("right", *right, [(*batch, "b"), (*inner, "k"), (*column, "n")]),
    ] {
        if kept && name == "left" {
            continue;
        }
        let [(_, x), (_, y), (_, z)] = vars;
        text.push_str(&format!("  DEVICE T {name}(I {x}, I {y}, I {z}) const {{\n"));
        let mut writer = Writer::method(program, index_ty);
        vars.iter().for_each(|&(var, name)| writer.bind(var, name));
        let value = writer.value(id);
        writer.line(&format!("return {value};"));
        text.push_str(&writer.out);
        text.push_str("  }\n");
        let (own, along, rows, lanes) = match (name, form) {
            ("left", Form::Tensor { wide, .. }) => (wide[0], left_along, *row, WIDE),
            (_, Form::Tensor { wide, .. }) => (wide[1], right_along, *column, WIDE),
            ("left", Form::Dots { wide }) => (wide[0], true, *row, lanes),
            (_, Form::Dots { wide }) => (wide[1], true, *column, lanes),
            ("right", Form::Columns { wide }) => (wide, false, *column, lanes),
            _ => continue,
        };
        let along = if along { *inner } else { rows };
        let found = neighbours(program, id, along, lanes).filter(|_| own);
        let Some((arg, index, guard)) = found else { continue };
        text.push_str(&format!(
            "  DEVICE const u16* {name}_wide(I {x}, I {y}, I {z}, bool& inside) const {{\n"
        ));
        let mut writer = Writer::method(program, index_ty);
        vars.iter().for_each(|&(var, name)| writer.bind(var, name));
        if let Some(guard) = guard {
            let guard = writer.value(guard);
            writer.line(&format!("inside = inside && {guard};"));
        }
        let index = writer.value(index);
        writer.line(&format!("return (const u16*)(inside ? a{arg} + {index} : a{arg});"));
        text.push_str(&writer.out);
        text.push_str("  }\n");
    }
    text.push_str("  DEVICE void store(I b, I m, I n, T hero) const {\n");
    let mut writer = Writer::method(program, index_ty);
    [(*batch, "b"), (*row, "m"), (*column, "n")].iter().for_each(|&(var, name)| writer.bind(var, name));
    writer.stores(stores);
    text.push_str(&writer.out);
    text.push_str("  }\n};\n");
    text.push_str(&super::head(program, threads));
    text.push_str("  KERNEL_operands p;\n");
    for position in 0..program.args.len() {
        text.push_str(&format!("  p.a{position} = a{position};\n"));
    }
    let mut shared = 0;
    if kept {
        text.push_str("  DYNAMIC_SHARED(kept);\n");
        text.push_str(&format!("  p.rows = ({ty}*)kept;\n  p.reduce_rows();\n"));
        shared = m.saturating_mul(k).saturating_mul(if dtype == DType::F64 { 8 } else { 4 });
    }
    text.push_str(&format!("  {call}(p);\n}}\n"));
    let shared = u32::try_from(shared).map_err(|_| no_hero())?;
    let launch = Launch { grid: blocks(grid)?, block: [threads, 1], shared };
    Ok(Printed { text, template: Some(Template::Product), launch })
}

/// The method with which a block reduces the rows of the left operand, one after the other, and puts what is
/// multiplied into shared memory, where what reductions read meanwhile lies. Each thread has its own elements.
fn reduced_rows(program: &Program, index_ty: &'static str) -> String {
    let Body::Product { batch, row, inner, cached, reductions, left, .. } = &program.body else {
        return String::new();
    };
    let mut writer = Writer::method(program, index_ty);
    writer.bind(*batch, "0");
    writer.open("for (I m = 0; m < (I)M; ++m)");
    writer.bind(*row, "m");
    writer.line("T* row = rows + m * (I)K;");
    // Threads of a row keep one element each time; more than one are computed again.
    let kept = cached.first().copied();
    for (position, reduction) in reductions.iter().enumerate() {
        let (ty, join) = (writer.type_of(reduction.value), fold_name(reduction.kind));
        writer.line(&format!("{ty} part{position} = {join}::start<{ty}>();"));
        open_row(&mut writer, *inner, reduction.value);
        if let Some(kept) = kept.filter(|_| position == 0) {
            let value = writer.value(kept);
            writer.line(&format!("row[k] = {value};"));
        } else if let Some(kept) = kept {
            writer.name(kept, "row[k]");
        }
        let value = writer.value(reduction.value);
        writer.line(&format!("part{position} = {join}::join(part{position}, {value});"));
        writer.close();
        writer.line(&format!("const {ty} r{position} = block_fold<{join}>(part{position});"));
    }
    open_row(&mut writer, *inner, *left);
    if let Some(kept) = kept {
        writer.name(kept, "row[k]");
    }
    let value = writer.value(*left);
    writer.line(&format!("row[k] = {value};"));
    writer.close();
    writer.close();
    writer.line("__syncthreads();");
    format!("  DEVICE void reduce_rows() const {{\n{}  }}\n", writer.out)
}

fn open_row(writer: &mut Writer<'_>, inner: Var, value: ExprId) {
    writer.hoist(value, inner);
    writer.line("#pragma unroll 4");
    writer.open("for (I k = threadIdx.x; k < (I)K; k += blockDim.x)");
    writer.bind(inner, "k");
}

/// How a product is shared out.
#[derive(Clone, Copy)]
enum Form {
    /// Whether sixteen bytes of each operand are read at once.
    Dots {
        wide: [bool; 2],
    },
    /// Whether sixteen bytes of the right operand are.
    Columns {
        wide: bool,
    },
    /// Whether each operand's neighbours are copied together, and the tile of a block.
    Tensor {
        wide: [bool; 2],
        tile: [i64; 2],
    },
    Tiled,
}

impl Form {
    fn name(self) -> String {
        match self {
            Self::Dots { .. } => "a warp a column".to_owned(),
            Self::Columns { .. } => "32 columns a block".to_owned(),
            Self::Tensor { tile: [m, n], .. } => format!("tiles of {m} x {n} on tensor cores"),
            Self::Tiled => "tiles of 64 x 64".to_owned(),
        }
    }
}

/// How many tiles there are; of rows and of columns, how many and how many in a tile.
fn tiles(b: i64, (m, down): (i64, i64), (n, across): (i64, i64)) -> i64 {
    b.saturating_mul(ceil(m, down)).saturating_mul(ceil(n, across))
}

/// Halves that are copied together, zeros where they are not: their argument, the first one's index, and where they
/// are not zeros.
fn wide_load(program: &Program, id: ExprId, along: Var) -> Option<(u32, ExprId, Option<ExprId>)> {
    let found = neighbours(program, id, along, WIDE)?;
    let Expr::Load { other, .. } = *program.exprs.get(id) else { return None };
    (program.args[found.0 as usize].dtype.is_half() && (found.2.is_none() || other.0 == 0.0)).then_some(found)
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
