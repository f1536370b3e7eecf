//! Matrix products and what is unfolded to one: the template of `kernels/product.cuh` that suits the
//! sizes, how it is launched, and the structure that gives it operands and takes its sums.

mod form;
mod operands;
mod reduced;

use self::form::{DEPTH, Form, Read, SMALL, group_bytes, is_along, threads_of, threads_of_single};
use super::heroes::no_hero;
use super::map::neighbours;
use super::patches::{Runs, Tile};
use super::writer::Writer;
use super::{Gives, Launch, Printed, Template, blocks, ceil, compute, index_type, storage, title};
use crate::error::Result;
use crate::ir::DType;
use crate::kernel::program::{Body, ExprId, Patches, Program, Store, Var};

/// Warps of a block of which each takes a column, and where the block first normalises the rows.
const WARPS: i64 = 4;
const WARPS_NORMALIZING: i64 = 16;
/// Bytes of one access, and of the least that memory moves.
const ACCESS: i64 = 16;
const SECTOR: i64 = 32;
/// Columns of a block that has few rows, where so many blocks are enough for every multiprocessor.
const ACROSS: i64 = 32;
const ENOUGH: i64 = 264;
/// Most pieces of `inner` that are in shared memory at once.
const STAGES: i64 = 4;

/// Prints a product: the structure of its operands, and a kernel that hands this to the template.
/// In tiles where a GPU gives what they take.
pub(super) fn product(program: &Program, gives: Gives) -> Result<Printed> {
    let product = Product::new(program, gives)?;
    let call = product.call();
    let mut listing = Listing::new(product.title());
    product.operands(&mut listing);
    listing.text.push_str(&super::bounded_head(program, &product.bounds(call.threads)));
    listing.line("  KERNEL_operands p;");
    for position in 0..program.args.len() {
        listing.line(&format!("  p.a{position} = a{position};"));
    }
    if product.reduces {
        listing.line("  DYNAMIC_SHARED(kept);");
        listing.line(&format!("  p.rows = ({}*)kept;", product.ty));
        listing.line("  p.reduce_rows();");
    }
    listing.line(&format!("  {}(p);", call.template));
    listing.line("}");
    let shared = u32::try_from(product.shared_bytes()).map_err(|_| no_hero())?;
    let launch = Launch { grid: blocks(call.grid)?, block: [call.threads, 1], shared };
    let template = match product.form {
        Form::Patches(_) => Template::Patches,
        Form::Windows(_) => Template::Windows,
        Form::Groups { .. } => Template::ProductGroups,
        _ => Template::Product,
    };
    Ok(Printed { text: listing.text, template: Some(template), launch })
}

/// Text that grows line by line.
struct Listing {
    text: String,
}

impl Listing {
    fn new(text: String) -> Self {
        Self { text }
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// A method of the structure, whose lines have been written.
    fn method(&mut self, head: &str, body: &Writer<'_>) {
        self.line(&format!("  DEVICE {head} const {{"));
        self.text.push_str(&body.out);
        self.line("  }");
    }
}

/// The template's instance, and how it is launched.
struct Call {
    template: String,
    threads: u32,
    grid: i64,
}

/// One of the two operands, as the template reads it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// A product's variables, sizes and types, and the form that suits them.
struct Product<'a> {
    program: &'a Program,
    batch: Var,
    row: Var,
    column: Var,
    inner: Var,
    left: ExprId,
    right: ExprId,
    stores: &'a [Store],
    patches: Option<&'a Patches>,
    /// Extents of batch, row, column and inner.
    b: i64,
    m: i64,
    n: i64,
    k: i64,
    dtype: DType,
    /// The types that are computed in and that positions have, in C.
    ty: &'static str,
    index_ty: &'static str,
    /// Rows are reduced first; they are in shared memory then, one after the other.
    reduces: bool,
    /// Whether neighbours along `inner` are neighbours in memory.
    left_along: bool,
    right_along: bool,
    form: Form,
    gives: Gives,
}

impl<'a> Product<'a> {
    /// Error: no product, or one whose rows are to be reduced first and that has too many.
    fn new(program: &'a Program, gives: Gives) -> Result<Self> {
        let Body::Product { batch, row, column, inner, reductions, left, right, stores, patches, .. } =
            &program.body
        else {
            return Err(no_hero());
        };
        let extent = |var: Var| program.exprs.extent(var);
        let dtype = program.exprs.dtype(*left);
        let reduces = !reductions.is_empty();
        let mut product = Self {
            program,
            batch: *batch,
            row: *row,
            column: *column,
            inner: *inner,
            left: *left,
            right: *right,
            stores,
            patches: patches.as_deref(),
            b: extent(*batch),
            m: extent(*row),
            n: extent(*column),
            k: extent(*inner),
            dtype,
            ty: compute(dtype),
            index_ty: index_type(program),
            reduces,
            left_along: reduces || is_along(program, *left, *inner),
            right_along: is_along(program, *right, *inner),
            form: Form::Tiled,
            gives,
        };
        product.form = product.suitable_form()?;
        Ok(product)
    }

    /// What a launch is bound by: threads, and for some forms how many blocks a multiprocessor is to hold.
    fn bounds(&self, threads: u32) -> String {
        match self.form {
            Form::Patches(tile) => format!("{threads}, {}", tile.resident()),
            Form::Windows(_) => format!("{threads}, 2"),
            Form::Groups { .. } => format!("{threads}, 1"),
            _ => threads.to_string(),
        }
    }

    /// Elements in one access.
    fn lanes(&self) -> i64 {
        ACCESS / self.dtype.size() as i64
    }

    /// Whether one access reads neighbours along a variable, which are nowhere anything else.
    fn is_whole(&self, id: ExprId, along: Var) -> bool {
        neighbours(self.program, id, along, self.lanes()).is_some_and(|found| found.2.is_none())
    }

    /// How many tiles of so many rows and columns there are.
    fn tiles(&self, [down, across]: [i64; 2]) -> i64 {
        self.b.saturating_mul(ceil(self.m, down)).saturating_mul(ceil(self.n, across))
    }

    fn title(&self) -> String {
        let Self { b, m, n, k, .. } = self;
        let rows = if self.reduces { ", of rows that each block reduces first" } else { "" };
        title(self.program, &format!("{b} x ({m} x {k}) x ({k} x {n}), {}{rows}", self.form.name()))
    }

    fn call(&self) -> Call {
        let Self { b, m, n, ty, left_along, right_along, .. } = self;
        let stored = storage(self.dtype);
        match self.form {
            Form::Dots { wide: [left, right] } => {
                let warps = if self.reduces { WARPS_NORMALIZING } else { WARPS };
                let from = if self.reduces { format!(", {ty}") } else { String::new() };
                let template = match right {
                    true => format!("product_dots_wide<KERNEL_operands, {m}, {stored}, {left}{from}>"),
                    false => format!("product_dots<KERNEL_operands, {m}>"),
                };
                // A block that reduces rows first does so for the columns of several others.
                let blocks = ceil(b.saturating_mul(*n), warps);
                let grid = if self.reduces { blocks.min(2 * ENOUGH) } else { blocks };
                Call { template, threads: 32 * warps as u32, grid }
            }
            Form::Columns { wide: false } => {
                let template = format!("product_columns<KERNEL_operands, {m}, 8>");
                Call { template, threads: 256, grid: b.saturating_mul(ceil(*n, 32)) }
            }
            Form::Columns { wide: true } => {
                let [width, threads] = self.columns_of_a_block();
                let across = width / self.lanes();
                let template =
                    format!("product_columns_wide<KERNEL_operands, {m}, {stored}, {across}, {threads}>");
                Call { template, threads: threads as u32, grid: b.saturating_mul(ceil(*n, width)) }
            }
            Form::Tensor { read, tile: [down, across] } => {
                let threads = threads_of(read, [down, across]);
                let sizes = format!("{stored}, {down}, {across}, {threads}, {}", self.stages());
                let [x, y] = read.map(Read::name);
                let template =
                    format!("product_mma<KERNEL_operands, {sizes}, {left_along}, {right_along}, {x}, {y}>");
                Call { template, threads, grid: self.tiles([down, across]) }
            }
            Form::Groups { tile: [down, across] } => {
                let sizes = format!("{stored}, {down}, {across}, {}", self.group_stages([down, across]));
                let template = format!("product_groups<KERNEL_operands, {sizes}, {right_along}>");
                Call { template, threads: 2 * down as u32, grid: self.tiles([down, across]) }
            }
            Form::Patches(Tile { tall, wide, outer, each, grid, .. }) => {
                let sizes = format!("{stored}, {tall}, {wide}, {outer}, {each}");
                Call {
                    template: format!("convolution_patches<KERNEL_operands, {sizes}>"),
                    threads: 256,
                    grid,
                }
            }
            Form::Windows(Runs { across, tall, outer, channels, grid, .. }) => {
                let sizes = format!("{across}, {tall}, {outer}, {channels}");
                Call {
                    template: format!("convolution_windows<KERNEL_operands, {sizes}>"),
                    threads: 256,
                    grid,
                }
            }
            Form::Single { tile: [down, across] } => {
                let sizes = format!("{down}, {across}, {left_along}, {right_along}");
                let template = format!("product_tiled_large<KERNEL_operands, {sizes}>");
                Call {
                    template,
                    threads: threads_of_single([down, across]),
                    grid: self.tiles([down, across]),
                }
            }
            Form::Tiled => {
                let sizes = "64, 64, 16, 4, 4";
                let template =
                    format!("product_tiled<KERNEL_operands, {sizes}, {left_along}, {right_along}>");
                Call { template, threads: 256, grid: self.tiles([SMALL; 2]) }
            }
        }
    }

    /// Columns and threads of a block. Where blocks would be few, they are as narrow as memory allows, and as many threads
    /// share the sums as have registers and terms for it.
    fn columns_of_a_block(&self) -> [i64; 2] {
        let blocks = |width: i64| self.b.saturating_mul(ceil(self.n, width));
        if blocks(ACROSS) >= ENOUGH {
            return [ACROSS, 256];
        }
        let width = SECTOR / self.dtype.size() as i64;
        // Each warp has a share of the rows that are reduced first, and many would do little else.
        let most = match self.m {
            _ if self.reduces => 256,
            1 => 1024,
            2..=3 => 512,
            _ => 256,
        };
        let terms = |threads: i64| threads * self.lanes() / width;
        let fits = |threads: &i64| blocks(width) < ENOUGH && *threads <= most && terms(*threads) <= self.k;
        [width, [1024, 512].into_iter().find(fits).unwrap_or(256)]
    }

    /// Of the rows that a block keeps, or of the stages that are on their way to tensor cores.
    fn shared_bytes(&self) -> i64 {
        let size = if self.dtype == DType::F64 { 8 } else { 4 };
        match self.form {
            Form::Tensor { tile, .. } => self.stages() * self.stage_bytes(tile),
            Form::Patches(tile) => tile.shared,
            Form::Windows(runs) => runs.shared,
            // Panels begin at multiples of 1024 bytes.
            Form::Groups { tile } => self.group_stages(tile) * group_bytes(tile) + 1024,
            _ if self.reduces => self.m.saturating_mul(self.k).saturating_mul(size),
            _ => 0,
        }
    }

    /// Pieces of `inner` in shared memory at once. What threads hold in registers on its way there gains nothing by more than two.
    fn stages(&self) -> i64 {
        let most = match self.form {
            Form::Tensor { read: [Read::Wide, Read::Wide], tile } => {
                STAGES.min(i64::from(self.gives.shared) / self.stage_bytes(tile))
            }
            _ => 2,
        };
        ceil(self.k, DEPTH).clamp(2, most.max(2))
    }
}
