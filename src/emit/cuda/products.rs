//! Matrix products and what is unfolded to one: the template of `kernels/product.cuh` that suits the
//! sizes, and the structure that gives it operands and takes its sums.

use super::heroes::no_hero;
use super::map::{neighbours, stored_beside};
use super::patches::{Runs, Tile};
use super::writer::{Writer, fold_name};
use super::{Gives, Launch, Printed, Template, blocks, ceil, compute, index_type, storage, title};
use crate::error::Result;
use crate::ir::DType;
use crate::kernel::program::{self, Body, Expr, ExprId, Patches, Program, Store, Var};

/// Most rows that are multiplied without tiles.
const SKINNY_ROWS: i64 = crate::kernel::SKINNY_ROWS as i64;
/// Warps of a block of which each takes a column, and where the block first normalises the rows.
const WARPS: i64 = 4;
const WARPS_NORMALIZING: i64 = 16;
/// Rows and columns of tiles on tensor cores: of the larger ones where that leaves so many blocks.
const SMALL: i64 = 64;
const LARGE: i64 = 128;
const MANY: i64 = 96;
/// Tiles that read less of memory for what they make, each warp of them 64 x 64.
const HUGE: [[i64; 2]; 4] = [[128, 256], [256, 128], [192, 256], [256, 192]];
/// Tiles of groups of threads, each of which makes 64 rows; of `inner`, what they take at a time, most of these in shared memory at
/// once, and products that tensor cores make a cycle so.
const GROUPS: [[i64; 2]; 7] =
    [[128, 256], [192, 256], [256, 128], [192, 128], [128, 128], [256, 64], [128, 64]];
const GROUP_DEPTH: i64 = 64;
const GROUP_STAGES: i64 = 4;
const GROUP_RATE: i64 = 1750;
/// Bytes that a multiprocessor reads a cycle so, as measured on an H100: however many others read meanwhile.
const GROUP_READS: i64 = 25;
/// Fewest of these tiles: of fewer, smaller ones are made at once.
const GROUP_TILES: i64 = 32;
/// Multiprocessors of the largest GPUs.
const MULTIPROCESSORS: i64 = 132;
/// Of `inner`, what tiles on tensor cores take at a time, and most of these in shared memory at once; of the tiles above, least.
const DEPTH: i64 = 32;
const STAGES: i64 = 4;
const LEAST_STAGES: i64 = 3;
/// Halves that are copied together.
const WIDE: i64 = 8;
/// Bytes of one access, and of the least that memory moves.
const ACCESS: i64 = 16;
const SECTOR: i64 = 32;
/// Columns of a block that has few rows, where so many blocks are enough for every multiprocessor.
const ACROSS: i64 = 32;
const ENOUGH: i64 = 264;

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

    /// Few rows read the right operand once, which takes all the time: a warp takes the sum of a column where
    /// its terms are neighbours, else a thread does. More rows are worth tiles.
    fn suitable_form(&self) -> Result<Form> {
        let same = self.dtype == self.program.exprs.dtype(self.right);
        let (wide, skinny) = (self.dtype.is_float() && same, self.m <= SKINNY_ROWS);
        if skinny && self.right_along && wide && self.is_whole(self.right, self.inner) {
            let left = self.reduces || self.left_along && self.is_whole(self.left, self.inner);
            return Ok(Form::Dots { wide: [left, true] });
        }
        if skinny && self.right_along {
            return Ok(Form::Dots { wide: [false; 2] });
        }
        if skinny {
            return Ok(Form::Columns { wide: wide && self.is_whole(self.right, self.column) });
        }
        if self.reduces {
            // A block keeps the rows that it reduces: shared memory has no room for many.
            return Err(no_hero());
        }
        let is_tensor = self.dtype.is_half() && same && self.gives.tensor_cores;
        let tile = self.patches.filter(|_| is_tensor).and_then(|patches| self.patch_tile(patches));
        if let Some(tile) = tile {
            return Ok(Form::Patches(tile));
        }
        let is_single = self.dtype == DType::F32 && same;
        let runs = self.patches.filter(|_| is_single).and_then(|patches| self.runs(patches));
        Ok(match runs {
            Some(runs) => Form::Windows(runs),
            None if is_tensor => self.tensor_form(),
            None => Form::Tiled,
        })
    }

    fn patch_tile(&self, patches: &Patches) -> Option<Tile> {
        Tile::of(self.program, patches, self.channels_made(patches), self.gives)
    }

    fn runs(&self, patches: &Patches) -> Option<Runs> {
        Runs::of(self.program, patches, self.channels_made(patches), self.gives)
    }

    /// Channels of a convolution's result.
    fn channels_made(&self, patches: &Patches) -> i64 {
        if patches.side == program::Side::Left { self.n } else { self.m }
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

    /// Tiles on tensor cores: large ones where both sides fill them and enough blocks are left for every
    /// multiprocessor.
    fn tensor_form(&self) -> Form {
        let along = |along: bool, other: Var| if along { self.inner } else { other };
        let read = |id: ExprId, var: Var| match wide_load(self.program, id, var) {
            Some(_) => Read::Wide,
            None if loose_load(self.program, id, var).is_some() => Read::Loose,
            None => Read::Single,
        };
        let read = [
            read(self.left, along(self.left_along, self.row)),
            read(self.right, along(self.right_along, self.column)),
        ];
        if let Some(form) = self.by_groups(&read) {
            return form;
        }
        let side = |read: Read, size: i64| if read != Read::Single && size >= LARGE { LARGE } else { SMALL };
        let mut tile = [side(read[0], self.m), side(read[1], self.n)];
        if read.contains(&Read::Loose) {
            // What is held on its way leaves no registers for the sums of more.
            tile[1] = SMALL;
        }
        if self.tiles(tile) < MANY {
            return Form::Tensor { read, tile: [SMALL; 2] };
        }
        let larger = HUGE.into_iter().filter(|&tile| read == [Read::Wide; 2] && self.holds(tile));
        let tiles = std::iter::once(tile).chain(larger);
        Form::Tensor { read, tile: tiles.min_by_key(|&tile| self.time_of(tile)).unwrap_or(tile) }
    }

    /// By groups of threads, where a GPU has them and there is enough to do: the tile that takes the least time.
    fn by_groups(&self, read: &[Read; 2]) -> Option<Form> {
        let fits = *read == [Read::Wide; 2] && self.left_along && self.gives.groups;
        let filled =
            |&tile: &[i64; 2]| self.m >= tile[0] && self.n >= tile[1] && self.tiles(tile) >= GROUP_TILES;
        let tiles = GROUPS.into_iter().filter(|tile| fits && self.k >= 2 * GROUP_DEPTH && filled(tile));
        // Where what is read takes the time, less is made in vain by smaller tiles.
        let tile =
            tiles.min_by_key(|&tile| (self.time_by(tile, GROUP_RATE, GROUP_READS), self.made(tile)))?;
        Some(Form::Groups { tile })
    }

    /// Pieces of `inner` in shared memory at once: two of them are being multiplied.
    fn group_stages(&self, tile: [i64; 2]) -> i64 {
        ((i64::from(super::GROUPS_SHARED) - 1024) / group_bytes(tile)).min(GROUP_STAGES)
    }

    /// Whether the product fills a tile, and shared memory has room for what is on its way to it.
    fn holds(&self, tile: [i64; 2]) -> bool {
        self.m >= tile[0]
            && self.n >= tile[1]
            && LEAST_STAGES * self.stage_bytes(tile) <= self.gives.shared.into()
    }

    /// Cycles that a multiprocessor of a large GPU takes for each term of the sums, times 4096: of its tensor cores, which make
    /// whole tiles, or of the cache that all share, from which each tile is read.
    fn time_of(&self, tile: [i64; 2]) -> i64 {
        // By sm_90's mma.sync.
        self.time_by(tile, 1270, 64)
    }

    /// What the multiprocessor with the most tiles makes.
    fn made(&self, tile @ [down, across]: [i64; 2]) -> i64 {
        ceil(self.tiles(tile), MULTIPROCESSORS).saturating_mul(down * across)
    }

    /// The same where tensor cores make so many products a cycle, and one multiprocessor reads so many bytes.
    fn time_by(&self, tile @ [down, across]: [i64; 2], rate: i64, reads: i64) -> i64 {
        // 25 bytes a cycle of the L2 for each of 132 multiprocessors.
        let tiles = self.tiles(tile);
        let most = ceil(tiles, MULTIPROCESSORS);
        let each = self.made(tile);
        let bytes = 2 * (down + across);
        let own = most.saturating_mul(bytes).saturating_mul(25) / reads;
        let read = (tiles.saturating_mul(bytes) / MULTIPROCESSORS).max(own);
        (each.saturating_mul(4096) / rate).max(read.saturating_mul(4096) / 25)
    }

    /// Bytes of one piece of `inner` of both operands, as `Operand` lays them out: eight halves beside each row, along k or
    /// across it.
    fn stage_bytes(&self, [down, across]: [i64; 2]) -> i64 {
        let halves =
            |along: bool, side: i64| if along { side * (DEPTH + WIDE) } else { DEPTH * (side + WIDE) };
        2 * (halves(self.left_along, down) + halves(self.right_along, across))
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
            Form::Tiled if self.dtype == DType::F32 && self.tiles([LARGE; 2]) >= MANY => {
                let template = format!("product_tiled_large<KERNEL_operands, {left_along}, {right_along}>");
                Call { template, threads: 256, grid: self.tiles([LARGE; 2]) }
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

    /// The structure through which the template reads operands and hands over sums.
    fn operands(&self, listing: &mut Listing) {
        let Self { b, m, n, k, ty, index_ty, .. } = self;
        listing.line("struct KERNEL_operands {");
        listing.line(&format!("  typedef {ty} T;"));
        listing.line(&format!("  typedef {index_ty} I;"));
        listing.line(&format!("  static const i64 BATCH = {b}, M = {m}, N = {n}, K = {k};"));
        for (position, arg) in self.program.args.iter().enumerate() {
            let constant = if arg.written { "" } else { "const " };
            listing.line(&format!("  {constant}{}* a{position};", storage(arg.dtype)));
        }
        if let (Form::Patches(_) | Form::Windows(_), Some(patches)) = (self.form, self.patches) {
            self.patch_operands(listing, patches);
            return;
        }
        if self.reduces {
            listing.line(&format!("  {ty}* rows;"));
            listing.text.push_str(&reduced_rows(self.program, index_ty, self.call().threads.into()));
            listing.line("  DEVICE T left(I b, I m, I k) const { return rows[m * (I)K + k]; }");
            listing.line(
                "  DEVICE const T* left_wide(I b, I m, I k, bool& inside) const { return rows + m * (I)K + k; }",
            );
        } else {
            self.operand(listing, Side::Left);
        }
        self.operand(listing, Side::Right);
        if matches!(self.form, Form::Dots { .. } | Form::Columns { .. }) {
            self.early_stores(listing);
        } else {
            if matches!(self.form, Form::Tensor { .. } | Form::Groups { .. }) {
                self.stores_beside(listing, Some(WIDE));
            }
            let mut writer = self.method_of_results();
            writer.stores(self.stores);
            listing.method("void store(I b, I m, I n, T hero)", &writer);
        }
        listing.line("};");
    }

    /// The rest of the structure for images, windows and weights.
    fn patch_operands(&self, listing: &mut Listing, patches: &Patches) {
        let [images, rows, columns, channels] = patches.element.map(|var| self.program.exprs.extent(var));
        let is_last = patches.side == program::Side::Left;
        let (outer, weights) = if is_last { (self.n, self.right) } else { (self.m, self.left) };
        let [made_rows, made_columns] = patches.places;
        listing.line(&format!(
            "  static const int IMAGES = {images}, ROWS = {rows}, COLUMNS = {columns}, CHANNELS = {channels};"
        ));
        listing.line(&format!(
            "  static const int MADE_ROWS = {made_rows}, MADE_COLUMNS = {made_columns}, OUTER = {outer};"
        ));
        let of_window = [
            ("WINDOW", patches.kernel),
            ("STRIDE", patches.strides),
            ("DILATION", patches.dilations),
            ("PAD", patches.pads),
        ];
        for (name, [rows, columns]) in of_window {
            listing.line(&format!("  static const int {name}_ROWS = {rows}, {name}_COLUMNS = {columns};"));
        }
        listing.line(&format!("  static const bool CHANNELS_INSIDE = {};", patches.channels_inside));
        let names = ["image", "row", "column", "channel"];
        let vars: Vec<(Var, &str)> = patches.element.into_iter().zip(names).collect();
        let mut writer = self.method(&vars);
        let value = writer.value(patches.value);
        writer.line(&format!("return {value};"));
        listing.method("T element(I image, I row, I column, I channel)", &writer);
        let of_result = if is_last { self.column } else { self.row };
        let mut writer = self.method(&[(self.batch, "0"), (self.inner, "k"), (of_result, "n")]);
        let value = writer.value(weights);
        writer.line(&format!("return {value};"));
        listing.method("T weight(I k, I n)", &writer);
        let single = matches!(self.form, Form::Windows(_));
        match (single, is_last) {
            (true, true) => self.stores_beside(listing, Some(4)),
            (true, false) => self.stores_beside(listing, Some(8)),
            (false, true) => self.stores_beside(listing, Some(WIDE)),
            (false, false) => self.stores_beside(listing, None),
        }
        let mut writer = self.method_of_results();
        writer.stores(self.stores);
        listing.method("void store(I b, I m, I n, T hero)", &writer);
        listing.line("};");
    }

    /// What is done with so many neighbours of a row's sums at once, and whether it is.
    fn stores_beside(&self, listing: &mut Listing, lanes: Option<i64>) {
        let others = [self.batch, self.row];
        let beside = |lanes| stored_beside(self.program, self.column, &others, self.stores, lanes);
        let found = lanes.and_then(beside).filter(|_| self.runs_are_whole());
        listing.line(&format!("  static const bool BESIDE = {};", found.is_some()));
        let (Some(vectors), Some(lanes)) = (found, lanes) else { return };
        let mut writer = Writer::method(&vectors.program, self.index_ty);
        writer.bind(self.batch, "b");
        writer.bind(self.row, "m");
        vectors.write(&mut writer, "part", Some("const T hero = sums[lane];"));
        listing.method(&format!("void store_beside(I b, I m, I part, const T (&sums)[{lanes}])"), &writer);
    }

    /// Whether runs of positions are all of one row, where a form has such.
    fn runs_are_whole(&self) -> bool {
        let Some(patches) = self.patches.filter(|_| matches!(self.form, Form::Windows(_))) else {
            return true;
        };
        patches.side == program::Side::Left || patches.places[1] % WIDE == 0
    }

    fn method_of_results(&self) -> Writer<'a> {
        self.method(&[(self.batch, "b"), (self.row, "m"), (self.column, "n")])
    }

    /// Stores in two steps: what is read beside the sums, as biases are, is read before these are made.
    fn early_stores(&self, listing: &mut Listing) {
        let known = [self.batch, self.row, self.column];
        let roots: Vec<ExprId> =
            self.stores.iter().flat_map(|store| store.guard.into_iter().chain([store.value])).collect();
        let loads = early_loads(self.program, &roots, &known);
        let mut writer = self.method_of_results();
        let mut last = self.method_of_results();
        listing.line("  struct Beside {");
        for (position, &load) in loads.iter().enumerate() {
            listing.line(&format!("    {} v{position};", writer.type_of(load)));
            let value = writer.value(load);
            writer.line(&format!("to.v{position} = {value};"));
            last.name(load, format!("beside.v{position}"));
        }
        listing.line("  };");
        listing.method("void read(I b, I m, I n, Beside& to)", &writer);
        last.stores(self.stores);
        listing.method("void store(I b, I m, I n, T hero, const Beside& beside)", &last);
    }

    /// The methods that give an element of an operand, and neighbours where the form reads these at once.
    fn operand(&self, listing: &mut Listing, side: Side) {
        let (name, id, vars) = match side {
            Side::Left => ("left", self.left, [(self.batch, "b"), (self.row, "m"), (self.inner, "k")]),
            Side::Right => ("right", self.right, [(self.batch, "b"), (self.inner, "k"), (self.column, "n")]),
        };
        let [x, y, z] = vars.map(|(_, name)| name);
        let mut writer = self.method(&vars);
        let value = writer.value(id);
        writer.line(&format!("return {value};"));
        listing.method(&format!("T {name}(I {x}, I {y}, I {z})"), &writer);

        if let Form::Tensor { read, .. } = self.form
            && read[usize::from(side == Side::Right)] == Read::Loose
            && let Expr::Load { arg, index, .. } = *self.program.exprs.get(id)
        {
            let mut writer = self.method(&vars);
            let index = writer.value(index);
            writer.line(&format!("return (const u16*)(a{arg} + {index});"));
            listing.method(&format!("const u16* {name}_loose(I {x}, I {y}, I {z})"), &writer);
        }
        let Some((along, lanes)) = self.read_at_once(side) else { return };
        let Some((arg, index, guard)) = neighbours(self.program, id, along, lanes) else { return };
        let mut writer = self.method(&vars);
        if let Some(guard) = guard {
            let guard = writer.value(guard);
            writer.line(&format!("inside = inside && {guard};"));
        }
        let index = writer.value(index);
        writer.line(&format!("return (const u16*)(inside ? a{arg} + {index} : a{arg});"));
        listing.method(&format!("const u16* {name}_wide(I {x}, I {y}, I {z}, bool& inside)"), &writer);
    }

    /// Along which variable the form reads how many elements of an operand at once, if it does.
    fn read_at_once(&self, side: Side) -> Option<(Var, i64)> {
        let (position, own, along) = match side {
            Side::Left => (0, self.row, self.left_along),
            Side::Right => (1, self.column, self.right_along),
        };
        match self.form {
            Form::Tensor { read, .. } => {
                (read[position] == Read::Wide).then_some((if along { self.inner } else { own }, WIDE))
            }
            Form::Dots { wide } => wide[position].then_some((self.inner, self.lanes())),
            Form::Columns { wide } => (wide && side == Side::Right).then_some((own, self.lanes())),
            Form::Groups { .. } => Some((if along { self.inner } else { own }, WIDE)),
            Form::Patches(_) | Form::Windows(_) | Form::Tiled => None,
        }
    }

    fn method(&self, vars: &[(Var, &str)]) -> Writer<'a> {
        let mut writer = Writer::method(self.program, self.index_ty);
        vars.iter().for_each(|&(var, name)| writer.bind(var, name));
        writer
    }
}

/// Bytes of one piece of `inner` of both operands, in panels.
fn group_bytes([down, across]: [i64; 2]) -> i64 {
    2 * GROUP_DEPTH * (down + across)
}

/// Threads of a block that makes a tile on tensor cores.
/// Twice as many where some hold what is on its way: the sums of fewer elements leave registers for it.
fn threads_of(read: [Read; 2], [down, across]: [i64; 2]) -> u32 {
    if read.contains(&Read::Loose) && down == LARGE {
        return 256;
    }
    if down.max(across) <= LARGE { 128 } else { (down / 64 * (across / 64) * 32) as u32 }
}

/// What roots load that follows from these variables alone, and from no sum or fold.
fn early_loads(program: &Program, roots: &[ExprId], known: &[Var]) -> Vec<ExprId> {
    let exprs = &program.exprs;
    let bits = known.iter().fold(0u64, |bits, var| bits | 1 << var.0.min(63));
    let is_known = |id: ExprId| {
        let all = super::map::reached(exprs, &[id]);
        exprs.free(id) & !bits == 0
            && !all.iter().any(|&id| matches!(exprs.get(id), Expr::Hero(_) | Expr::Reduced(..)))
    };
    let loads = super::map::reached(exprs, roots).into_iter();
    loads.filter(|&id| matches!(exprs.get(id), Expr::Load { .. }) && is_known(id)).collect()
}

/// Most numbers that a thread holds of the rows that its block reduces.
const HELD: i64 = 24;

/// The method with which a block reduces the rows of the left operand, one after the other, and puts what is
/// multiplied into shared memory. Each thread has its own elements; it loads all that these follow from at once, where it can
/// hold them.
fn reduced_rows(program: &Program, index_ty: &'static str, threads: i64) -> String {
    let Body::Product { batch, row, inner, reductions, left, .. } = &program.body else {
        return String::new();
    };
    // An array has one element at least.
    let each = ceil(program.exprs.extent(*inner), threads).max(1);
    let roots: Vec<ExprId> = reductions.iter().map(|reduction| reduction.value).chain([*left]).collect();
    let loads = early_loads(program, &roots, &[*batch, *row, *inner]);
    if each * loads.len() as i64 > HELD {
        return reduced_rows_in_memory(program, index_ty);
    }
    let mut writer = Writer::method(program, index_ty);
    writer.bind(*batch, "0");
    writer.open("for (I m = 0; m < (I)M; ++m)");
    writer.bind(*row, "m");
    let steps = Steps { inner: *inner, each, threads, loads: &loads };
    for (position, &load) in loads.iter().enumerate() {
        writer.line(&format!("{} held{position}[{each}];", writer.type_of(load)));
    }
    steps.open(&mut writer);
    for (position, &load) in loads.iter().enumerate() {
        let value = writer.value(load);
        writer.line(&format!("held{position}[j] = {value};"));
    }
    steps.close(&mut writer);
    for (position, reduction) in reductions.iter().enumerate() {
        let (ty, join) = (writer.type_of(reduction.value), fold_name(reduction.kind));
        writer.line(&format!("{ty} part{position} = {join}::start<{ty}>();"));
        let value = steps.value(&mut writer, reduction.value);
        writer.line(&format!("part{position} = {join}::join(part{position}, {value});"));
        steps.close(&mut writer);
        writer.line(&format!("const {ty} r{position} = block_fold<{join}>(part{position});"));
    }
    let value = steps.value(&mut writer, *left);
    writer.line(&format!("rows[m * (I)K + k] = {value};"));
    steps.close(&mut writer);
    writer.close();
    writer.line("__syncthreads();");
    format!("  DEVICE void reduce_rows() const {{\n{}  }}\n", writer.out)
}

/// The elements of a row that a thread has: `each`, so many apart as there are threads.
struct Steps<'a> {
    inner: Var,
    each: i64,
    threads: i64,
    /// What was loaded for each, in the order in which it is held.
    loads: &'a [ExprId],
}

impl Steps<'_> {
    fn open(&self, writer: &mut Writer<'_>) {
        let Self { each, threads, .. } = self;
        writer.line("#pragma unroll");
        writer.open(&format!("for (int j = 0; j < {each}; ++j)"));
        writer.line(&format!("const I k = (I)(j * {threads} + threadIdx.x);"));
        writer.open("if (k < (I)K)");
        writer.bind(self.inner, "k");
    }

    fn close(&self, writer: &mut Writer<'_>) {
        writer.close();
        writer.close();
    }

    /// Opens the loop over the elements, and what follows of each from what is held.
    fn value(&self, writer: &mut Writer<'_>, of: ExprId) -> String {
        writer.hoist(of, self.inner);
        self.open(writer);
        for (position, &load) in self.loads.iter().enumerate() {
            writer.name(load, format!("held{position}[j]"));
        }
        writer.value(of)
    }
}

/// The same of long rows: what is read several times lies in shared memory meanwhile.
fn reduced_rows_in_memory(program: &Program, index_ty: &'static str) -> String {
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
    /// How each operand is read, and the tile of a block.
    Tensor {
        read: [Read; 2],
        tile: [i64; 2],
    },
    /// Few channels of images, on tensor cores.
    Patches(Tile),
    /// Images of f32, straight from their windows.
    Windows(Runs),
    /// By groups of 128 threads: the tile of a block.
    Groups {
        tile: [i64; 2],
    },
    Tiled,
}

/// How an operand of tiles on tensor cores is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    Single,
    /// Eight neighbours at once, whose first lies at a multiple of eight.
    Wide,
    /// Eight neighbours that begin anywhere.
    Loose,
}

impl Read {
    /// What the template calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Single => "SINGLE",
            Self::Wide => "WIDE",
            Self::Loose => "LOOSE",
        }
    }
}

impl Form {
    fn name(self) -> String {
        match self {
            Self::Dots { .. } => "a warp a column".to_owned(),
            Self::Columns { .. } => "some columns a block".to_owned(),
            Self::Tensor { tile: [m, n], .. } => format!("tiles of {m} x {n} on tensor cores"),
            Self::Windows(Runs { across, tall, outer, .. }) => {
                format!("{tall} x {} positions and {outer} channels from their windows", 8 * across)
            }
            Self::Groups { tile: [m, n] } => format!("tiles of {m} x {n} by groups on tensor cores"),
            Self::Patches(Tile { tall, wide, outer, .. }) => {
                format!("{tall} x {wide} positions and {outer} channels on tensor cores")
            }
            Self::Tiled => "tiles of 64 x 64".to_owned(),
        }
    }
}

/// Halves that are copied together, zeros where they are not: their argument, the first one's index, and where they
/// are not zeros.
fn wide_load(program: &Program, id: ExprId, along: Var) -> Option<(u32, ExprId, Option<ExprId>)> {
    let found = neighbours(program, id, along, WIDE)?;
    let Expr::Load { other, .. } = *program.exprs.get(id) else { return None };
    (program.args[found.0 as usize].dtype.is_half() && (found.2.is_none() || other.0 == 0.0)).then_some(found)
}

/// Halves whose neighbours along a variable are neighbours in memory, from the first to the last, wherever they begin: their argument.
fn loose_load(program: &Program, id: ExprId, along: Var) -> Option<u32> {
    let exprs = &program.exprs;
    let Expr::Load { arg, index, guard: None, .. } = *exprs.get(id) else { return None };
    let (_, terms) = exprs.terms(index);
    let (own, others): (Vec<_>, Vec<_>) = terms.iter().partition(|(x, _)| exprs.depends(*x, along));
    let is_next = matches!(own[..], [(x, 1)] if matches!(exprs.get(x), Expr::Var(var) if *var == along));
    // What is read again on the way to an index would be read for elements that are not there.
    let is_plain = super::map::reached(exprs, &others.iter().map(|(x, _)| *x).collect::<Vec<_>>())
        .iter()
        .all(|&id| !matches!(exprs.get(id), Expr::Load { .. }));
    (program.args[arg as usize].dtype.is_half() && is_next && is_plain).then_some(arg)
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
