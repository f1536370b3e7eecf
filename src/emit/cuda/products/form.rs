//! How a product is shared out: the form that suits its sizes, and the tiles that take the least time.

use super::super::map::{neighbours, reached};
use super::super::patches::{Runs, Tile};
use super::super::{ceil, heroes::no_hero};
use super::Product;
use crate::error::Result;
use crate::ir::DType;
use crate::kernel::program::{self, Expr, ExprId, Patches, Program, Var};

/// Most rows that are multiplied without tiles.
const SKINNY_ROWS: i64 = crate::kernel::SKINNY_ROWS as i64;
/// Rows and columns of tiles on tensor cores: of the larger ones where that leaves so many blocks.
pub(super) const SMALL: i64 = 64;
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
/// Tiles of f32 of which each thread makes 8 x 8, the largest first.
const SINGLES: [[i64; 2]; 3] = [[LARGE, LARGE], [LARGE, SMALL], [SMALL, LARGE]];
const SINGLE_EACH: i64 = 64;
/// How many products the fetching of an element takes the time of, and warps that a multiprocessor should have.
const SINGLE_FETCH: i64 = 6;
const SINGLE_WARPS: i64 = 8;
/// Multiprocessors of the largest GPUs.
const MULTIPROCESSORS: i64 = 132;
/// Of `inner`, what tiles on tensor cores take at a time, and least of these in shared memory at once of the tiles above.
pub(super) const DEPTH: i64 = 32;
const LEAST_STAGES: i64 = 3;
/// Halves that are copied together.
pub(super) const WIDE: i64 = 8;

/// How a product is shared out.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// Whether sixteen bytes of each operand are read at once.
    Dots { wide: [bool; 2] },
    /// Whether sixteen bytes of the right operand are.
    Columns { wide: bool },
    /// How each operand is read, and the tile of a block.
    Tensor { read: [Read; 2], tile: [i64; 2] },
    /// Few channels of images, on tensor cores.
    Patches(Tile),
    /// Images of f32, straight from their windows.
    Windows(Runs),
    /// By groups of 128 threads: the tile of a block.
    Groups { tile: [i64; 2] },
    /// Of f32, each thread 8 x 8: the tile of a block.
    Single { tile: [i64; 2] },
    /// Each thread 4 x 4.
    Tiled,
}

/// How an operand of tiles on tensor cores is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    Single,
    /// Eight neighbours at once, whose first lies at a multiple of eight.
    Wide,
    /// Eight neighbours that begin anywhere.
    Loose,
}

impl Read {
    /// What the template calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Single => "SINGLE",
            Self::Wide => "WIDE",
            Self::Loose => "LOOSE",
        }
    }
}

impl Form {
    pub(super) fn name(self) -> String {
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
            Self::Single { tile: [m, n] } => format!("tiles of {m} x {n}, 8 x 8 a thread"),
            Self::Tiled => "tiles of 64 x 64".to_owned(),
        }
    }
}

impl Product<'_> {
    /// Few rows read the right operand once, which takes all the time: a warp takes the sum of a column where
    /// its terms are neighbours, else a thread does. More rows are worth tiles.
    pub(super) fn suitable_form(&self) -> Result<Form> {
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
            None if self.dtype == DType::F32 => self.single_form(),
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

    /// Tiles of f32: the ones that take the least time. Where threads make 4 x 4, operands come out of shared memory twice as
    /// slowly as they are multiplied.
    fn single_form(&self) -> Form {
        let larger = SINGLES.into_iter().map(|tile| (self.single_time(tile), Form::Single { tile }));
        let small = (2 * 4 * self.made([SMALL; 2]), Form::Tiled);
        larger.chain([small]).min_by_key(|&(time, _)| time).map_or(Form::Tiled, |(_, form)| form)
    }

    /// What the multiprocessor with the most tiles takes, four for each of its products: longer where it has few warps, which then
    /// wait for memory in turn.
    fn single_time(&self, tile @ [down, across]: [i64; 2]) -> i64 {
        let blocks = ceil(self.tiles(tile), MULTIPROCESSORS);
        let each = down * across + SINGLE_FETCH * (down + across);
        let warps = blocks.saturating_mul(down * across / SINGLE_EACH / 32).clamp(1, SINGLE_WARPS);
        blocks.saturating_mul(each).saturating_mul(2 * (SINGLE_WARPS + warps)) / warps
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
    pub(super) fn group_stages(&self, tile: [i64; 2]) -> i64 {
        ((i64::from(super::super::GROUPS_SHARED) - 1024) / group_bytes(tile)).min(GROUP_STAGES)
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
    pub(super) fn stage_bytes(&self, [down, across]: [i64; 2]) -> i64 {
        let halves =
            |along: bool, side: i64| if along { side * (DEPTH + WIDE) } else { DEPTH * (side + WIDE) };
        2 * (halves(self.left_along, down) + halves(self.right_along, across))
    }
}

/// Bytes of one piece of `inner` of both operands, in panels.
pub(super) fn group_bytes([down, across]: [i64; 2]) -> i64 {
    2 * GROUP_DEPTH * (down + across)
}

/// Threads of a block that makes a tile on tensor cores.
/// Twice as many where some hold what is on its way: the sums of fewer elements leave registers for it.
pub(super) fn threads_of(read: [Read; 2], [down, across]: [i64; 2]) -> u32 {
    if read.contains(&Read::Loose) && down == LARGE {
        return 256;
    }
    if down.max(across) <= LARGE { 128 } else { (down / 64 * (across / 64) * 32) as u32 }
}

/// Threads of a block that makes a tile of f32.
pub(super) fn threads_of_single([down, across]: [i64; 2]) -> u32 {
    (down * across / SINGLE_EACH) as u32
}

/// Halves that are copied together, zeros where they are not: their argument, the first one's index, and where they
/// are not zeros.
pub(super) fn wide_load(program: &Program, id: ExprId, along: Var) -> Option<(u32, ExprId, Option<ExprId>)> {
    let found = neighbours(program, id, along, WIDE)?;
    let Expr::Load { other, .. } = *program.exprs.get(id) else { return None };
    (program.args[found.0 as usize].dtype.is_half() && (found.2.is_none() || other.0 == 0.0)).then_some(found)
}

/// Halves whose neighbours along a variable are neighbours in memory, from the first to the last, wherever they begin: their argument.
pub(super) fn loose_load(program: &Program, id: ExprId, along: Var) -> Option<u32> {
    let exprs = &program.exprs;
    let Expr::Load { arg, index, guard: None, .. } = *exprs.get(id) else { return None };
    let (_, terms) = exprs.terms(index);
    let (own, others): (Vec<_>, Vec<_>) = terms.iter().partition(|(x, _)| exprs.depends(*x, along));
    let is_next = matches!(own[..], [(x, 1)] if matches!(exprs.get(x), Expr::Var(var) if *var == along));
    // What is read again on the way to an index would be read for elements that are not there.
    let is_plain = reached(exprs, &others.iter().map(|(x, _)| *x).collect::<Vec<_>>())
        .iter()
        .all(|&id| !matches!(exprs.get(id), Expr::Load { .. }));
    (program.args[arg as usize].dtype.is_half() && is_next && is_plain).then_some(arg)
}

/// True where the first load that an operand follows from reads neighbours along a variable.
pub(super) fn is_along(program: &Program, id: ExprId, var: Var) -> bool {
    let exprs = &program.exprs;
    let loads = reached(exprs, &[id]);
    loads.into_iter().any(|id| match exprs.get(id) {
        Expr::Load { index, .. } => {
            let (_, terms) = exprs.terms(*index);
            terms.iter().any(|&(x, factor)| factor == 1 && exprs.depends(x, var))
        }
        _ => false,
    })
}
