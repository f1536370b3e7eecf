//! The sizes of an attention, where its operands' heads lie, and the tiles that a CPU takes it in.

use super::sizes::Sizes;
use crate::ir::{Attention, HeadOrder};

/// Rows of queries in a tile, at most.
pub(crate) const TILE_ROWS: u64 = 128;
/// Scores of a tile, at most, and keys of one, at least, where there are as many.
const TILE_SCORES: u64 = 1 << 15;
const TILE_KEYS: u64 = 256;
/// Up to so many rows, as for tokens that are generated, operands are read as they are, by the rows together.
const FEW_ROWS: u64 = 4;
/// Up to so many rows that meet so many keys are read so too: panels would be mostly empty, and take the memory all the same.
const SMALL: [u64; 2] = [16, 64];
/// Rows of a tile of more, at most: the more there are, the fewer times values are packed.
const TALLEST: u64 = 512;
/// Tiles that are as good as any number, where they need not be lower than [`TILE_ROWS`] for it: two for each part.
const TILES: u64 = 2 * PARTS;
/// Queries that are side by side, where there are more.
pub(crate) const ABREAST: u64 = 64;
/// Keys that those meet at a time: with their values, keys and scores of the usual sizes they stay in the second cache.
const BLOCK_KEYS: u64 = 512;
/// Fewest keys of a block; blocks are multiples of it.
const CHAIN: u64 = 128;
/// Elements of a block's values, at most, with what fills up the last of each.
pub(crate) const VALUES: u64 = 1 << 17;
/// Parts that the tiles are divided in, at most: enough for the threads of a team.
pub(crate) const PARTS: u64 = 16;
/// Blocks that keep the largest GPUs busy: two for each of 132 multiprocessors.
const ENOUGH_BLOCKS: u64 = 264;
/// Fewest keys that are worth parts, and fewest of a part.
const LONG: u64 = 2048;
const FEWEST_KEYS: u64 = 128;
/// The scratch memory of a part is a multiple of so many elements, so that each begins aligned.
const SLOT: u64 = 16;

/// Where a head's rows are among a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadStrides {
    /// The first element that is used.
    pub start: u64,
    /// Elements from batch to batch.
    pub batch: u64,
    /// Elements from head to head.
    pub head: u64,
    /// Elements from row to row.
    pub row: u64,
}

impl HeadStrides {
    pub(crate) fn new<S: Sizes + ?Sized>(order: HeadOrder, dims: &S, first: i64) -> Self {
        let (heads, rows) = order.axes();
        let size = dims.size(3);
        let batch = dims.size(heads).saturating_mul(dims.size(rows)).saturating_mul(size);
        let (head, row) = match order {
            HeadOrder::HeadsFirst => (dims.size(rows).saturating_mul(size), size),
            HeadOrder::RowsFirst => (size, dims.size(heads).saturating_mul(size)),
        };
        Self { start: first.max(0).unsigned_abs().saturating_mul(head), batch, head, row }
    }
}

/// An attention's sizes, and where its operands lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Sequences.
    pub batch: u64,
    /// Heads of queries and result.
    pub heads: u64,
    /// Query heads that share a head of keys.
    pub group: u64,
    /// Rows of queries of one head.
    pub rows: u64,
    /// Keys of one head.
    pub keys: u64,
    /// Elements of a query and of a key.
    pub size: u64,
    /// Elements of a value.
    pub value_size: u64,
    /// Of queries, keys, values and result.
    pub strides: [HeadStrides; 4],
}

impl Geometry {
    /// The geometry for operands and result of these sizes, of rank 4.
    pub(crate) fn new<S: Sizes + ?Sized>(op: &Attention, [q, k, v, out]: [&S; 4]) -> Self {
        let strides =
            |position: usize, dims: &S| HeadStrides::new(op.orders[position], dims, op.first[position]);
        Self {
            batch: q.size(0),
            heads: op.heads.unsigned_abs(),
            group: (op.heads / op.key_heads.max(1)).unsigned_abs(),
            rows: q.size(op.orders[0].axes().1),
            keys: k.size(op.orders[1].axes().1),
            size: q.size(3),
            value_size: v.size(3),
            strides: [strides(0, q), strides(1, k), strides(2, v), HeadStrides::new(op.orders[3], out, 0)],
        }
    }

    /// Whether 16 bytes of a key and of a value, of elements of `size` bytes, can be read at once wherever they lie, and
    /// a warp's lanes hold one.
    pub(crate) fn reads_whole_accesses(&self, size: u64) -> bool {
        let each = 16 / size.max(1);
        let even = |strides: &HeadStrides| {
            [strides.start, strides.batch, strides.head, strides.row].iter().all(|at| at.is_multiple_of(each))
        };
        let fits = |size: u64| size.is_multiple_of(each) && size / each <= 32;
        [self.size, self.value_size].into_iter().all(fits) && self.strides[..3].iter().all(even)
    }

    /// In how many parts a GPU takes the keys of each row: several where the rows are too few to keep it busy and the keys
    /// so many that a second kernel, which puts the parts together, pays (Dao et al., "Flash-Decoding for long-context
    /// inference", 2023). It follows from the sizes alone.
    pub(crate) fn key_parts(&self, size: u64) -> u64 {
        let rows = self.batch.saturating_mul(self.heads).saturating_mul(self.rows);
        if rows == 0 || rows >= ENOUGH_BLOCKS || self.keys < LONG || !self.reads_whole_accesses(size) {
            return 1;
        }
        // As many as the warps that put them together share evenly.
        ENOUGH_BLOCKS.div_ceil(rows).next_multiple_of(8).min(self.keys / FEWEST_KEYS / 8 * 8)
    }

    /// The keys that a row may meet, of those that there are.
    pub fn seen(&self, causal: Option<i64>, row: u64) -> u64 {
        match causal {
            None => self.keys,
            Some(offset) => {
                let seen = i128::from(row) + i128::from(offset) + 1;
                u64::try_from(seen.clamp(0, self.keys.into())).unwrap_or(0)
            }
        }
    }
}

/// Tiles of rows of one head, in parts that each have scratch memory of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiling {
    /// Rows of a tile.
    pub(crate) rows: u64,
    /// Keys that a tile meets at a time.
    pub(crate) keys: u64,
    /// Parts of the work.
    pub(crate) parts: u64,
    /// Elements of scratch memory of a part.
    pub(crate) slot: u64,
    /// Whether scores are key by key, those of [`ABREAST`] queries side by side.
    pub(crate) abreast: bool,
}

impl Tiling {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let values = aligned_to(geometry.value_size.max(1), ABREAST);
        let most = VALUES / values / CHAIN * CHAIN;
        let is_small = geometry.rows <= SMALL[0] && geometry.keys <= SMALL[1];
        if geometry.rows <= FEW_ROWS || is_small || most == 0 {
            return Self::of_rows(geometry);
        }
        // Tiles of about the same height, of whole panels.
        let heads = geometry.batch.saturating_mul(geometry.heads);
        let enough = TILES.div_ceil(heads.max(1)).min(geometry.rows.div_ceil(TILE_ROWS));
        let down = geometry.rows.div_ceil(TALLEST).max(enough);
        let rows = geometry.rows.div_ceil(down).next_multiple_of(ABREAST);
        let keys = geometry.keys.clamp(1, most.min(BLOCK_KEYS));
        let tiles = heads.saturating_mul(geometry.rows.div_ceil(rows));
        let slot = (ABREAST * keys + 2 * rows).next_multiple_of(SLOT);
        Self { rows, keys, parts: tiles.clamp(1, PARTS), slot, abreast: true }
    }

    /// Those whose scores are row by row.
    fn of_rows(geometry: &Geometry) -> Self {
        let rows = geometry.rows.clamp(1, TILE_ROWS);
        // Few rows leave room for more keys at a time.
        let keys = geometry.keys.clamp(1, (TILE_SCORES / rows).max(TILE_KEYS));
        let down = geometry.rows.div_ceil(rows);
        let tiles = geometry.batch.saturating_mul(geometry.heads).saturating_mul(down);
        let slot = (rows * keys + 2 * rows).next_multiple_of(SLOT);
        Self { rows, keys, parts: tiles.clamp(1, PARTS), slot, abreast: false }
    }

    /// Those of gradients: a part has heads of keys, with all the queries that meet them, tile by tile.
    /// Its scratch memory holds two matrices of scores, and three numbers for each row.
    pub(crate) fn of_gradients(geometry: &Geometry) -> Self {
        let Self { rows, keys, abreast, .. } = Self::of_rows(geometry);
        let heads = geometry.batch.saturating_mul(geometry.heads / geometry.group.max(1));
        let slot = (2 * rows * keys + 3 * rows).next_multiple_of(SLOT);
        Self { rows, keys, parts: heads.clamp(1, PARTS), slot, abreast }
    }

    /// Numbers of f32 that a part needs where operands are halves: its scratch memory, and a tile's queries
    /// and results.
    pub(crate) fn of_halves(&self, geometry: &Geometry) -> u64 {
        let tile = self.rows.saturating_mul(geometry.size.saturating_add(geometry.value_size));
        aligned(self.slot.saturating_add(tile))
    }

    /// The same of a part of the gradients: its scratch memory, the sums of one head of keys, and of a tile
    /// the queries, their gradients, the results' gradients, and a row of results.
    pub(crate) fn of_gradients_of_halves(&self, geometry: &Geometry) -> u64 {
        let Geometry { keys, size, value_size, .. } = *geometry;
        let sums = keys.saturating_mul(size.saturating_add(value_size));
        let tile = self.rows.saturating_mul(size.saturating_mul(2).saturating_add(value_size));
        aligned(self.slot.saturating_add(sums).saturating_add(tile).saturating_add(value_size))
    }
}

fn aligned(elements: u64) -> u64 {
    aligned_to(elements, SLOT)
}

fn aligned_to(elements: u64, step: u64) -> u64 {
    elements.checked_next_multiple_of(step).unwrap_or(u64::MAX)
}
