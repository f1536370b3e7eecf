//! Convolutions of few channels on tensor cores (`kernels/patches.cuh`), and of f32 straight from their images
//! (`kernels/convolution.cuh`): how a block tiles them.

use super::{Gives, ceil};
use crate::kernel::program::{Patches, Program};

/// Most channels: of more, each element of a window is an access of its own.
const MOST_CHANNELS: i64 = 16;
/// Halves of a row of eight by eight, which tensor cores read.
const CHUNK: i64 = 8;
/// Most chunks of a window, and the longest side of anything.
const MOST_CHUNKS: i64 = 128;
const LONGEST: i64 = 1 << 20;
/// Positions that a block has at a time, and blocks that keep the largest GPUs busy.
const POSITIONS: i64 = 256;
const ENOUGH: i64 = 264;

/// What a block makes: positions down and across, channels; and how many channels an element of the image takes in shared
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) tall: i64,
    pub(super) wide: i64,
    pub(super) outer: i64,
    pub(super) each: i64,
    /// Blocks.
    pub(super) grid: i64,
    /// Bytes of shared memory.
    pub(super) shared: i64,
}

impl Tile {
    /// Of a convolution with `outer` channels in its result; none where its images have many channels, or its windows are
    /// too large.
    pub(super) fn of(program: &Program, patches: &Patches, outer: i64, gives: Gives) -> Option<Self> {
        let [images, rows, columns, channels] = patches.element.map(|var| program.exprs.extent(var));
        let each = element(patches, channels)?;
        let sides = [patches.kernel, patches.places, patches.strides, patches.dilations, [rows, columns]];
        if sides.iter().flatten().any(|&side| side > LONGEST) || images == 0 || outer == 0 {
            return None;
        }
        let chunks = chunks(patches, each);
        let sizes = [64, 32, 16].into_iter().filter(|&size| size == 16 || size / 2 < outer);
        let all = sizes.flat_map(|outer| [16, 8, 32].map(|wide| (outer, wide)));
        let tiles = all.map(|(own, wide)| {
            let tall = POSITIONS / wide;
            let [down, across] = [ceil(patches.places[0], tall), ceil(patches.places[1], wide)];
            let (tiles, blocks) = (images.saturating_mul(down).saturating_mul(across), ceil(outer, own));
            let grid = blocks.saturating_mul(tiles.min(ceil(ENOUGH, blocks)));
            let weights = 2 * own * (ceil(chunks, 2) * 2 * CHUNK + CHUNK);
            let shared = weights.saturating_add(shown_bytes(patches, [tall, wide], each));
            (tiles.saturating_mul(blocks), Self { tall, wide, outer: own, each, grid, shared })
        });
        let fits = tiles.filter(|(_, tile)| chunks <= MOST_CHUNKS && tile.shared <= gives.shared.into());
        fits.min_by_key(|(tiles, tile)| (*tiles, tile.shared)).map(|(_, tile)| tile)
    }

    /// How many blocks a multiprocessor is to hold at least.
    pub(super) fn resident(&self) -> u32 {
        if self.shared <= 100 << 10 { 2 } else { 1 }
    }
}

/// Terms of a sum before a new one is begun, and most elements of a window that is unrolled.
const CHAIN: i64 = 128;
const LONGEST_WINDOW: i64 = 25;
/// Threads of a block, positions of a run, and channels that a thread makes of each.
const THREADS: i64 = 256;
const RUN: i64 = 8;
const FOUR: i64 = 4;
/// Positions and channels of a block from which a GPU has enough of them.
const FEWEST: i64 = 96;

/// What a block makes of f32: runs across and rows of them, channels; and how many channels of the image it sums at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) across: i64,
    pub(super) tall: i64,
    pub(super) outer: i64,
    pub(super) channels: i64,
    /// Blocks.
    pub(super) grid: i64,
    /// Bytes of shared memory.
    pub(super) shared: i64,
}

impl Runs {
    /// None where a window is one element or of many, or where there is little to do.
    pub(super) fn of(program: &Program, patches: &Patches, outer: i64, gives: Gives) -> Option<Self> {
        let [images, rows, columns, channels] = patches.element.map(|var| program.exprs.extent(var));
        let sides = [patches.kernel, patches.places, patches.strides, patches.dilations, [rows, columns]];
        let window = patches.kernel[0].saturating_mul(patches.kernel[1]);
        let is_small = sides.iter().flatten().all(|&side| side <= LONGEST);
        if !is_small || !(2..=LONGEST_WINDOW).contains(&window) || channels < 1 || outer < 1 {
            return None;
        }
        let own = if outer <= 32 { 32 } else { 64 };
        let slots = THREADS / (own / FOUR);
        let all = (1..=slots).map(|across| {
            let tall = slots / across;
            let [down, along] = [ceil(patches.places[0], tall), ceil(patches.places[1], across * RUN)];
            let grid = images.saturating_mul(down).saturating_mul(along).saturating_mul(ceil(outer, own));
            let summed = (CHAIN / window).clamp(1, RUN).min(channels);
            let plane = plane(patches, [tall, across * RUN]);
            let weights = summed * window * (own + FOUR);
            let shared = summed.saturating_mul(plane).saturating_add(weights).saturating_mul(4);
            Self { across, tall, outer: own, channels: summed, grid, shared }
        });
        let fits = all.filter(|runs| runs.shared <= gives.shared.into() && runs.grid >= FEWEST);
        fits.min_by_key(|runs| (runs.grid, runs.shared))
    }
}

/// Elements that the windows of so many positions show of a channel, as `Windows` lays them out.
fn plane(patches: &Patches, [tall, wide]: [i64; 2]) -> i64 {
    let [rows, columns] = [reach(patches, tall, 0), reach(patches, wide, 1)];
    rows.saturating_mul(ceil(columns, FOUR).saturating_mul(FOUR))
}

/// How many elements along an axis the windows of so many positions show.
fn reach(patches: &Patches, count: i64, axis: usize) -> i64 {
    let last = (patches.kernel[axis] - 1).saturating_mul(patches.dilations[axis]);
    (count - 1).saturating_mul(patches.strides[axis]).saturating_add(last).saturating_add(1)
}

/// Channels of an element in shared memory: chunks begin on a boundary of 16 bytes wherever a window begins.
fn element(patches: &Patches, channels: i64) -> Option<i64> {
    let (stride, dilation) = (patches.strides[1], patches.dilations[1]);
    let aligned = |each: i64| each >= CHUNK || dilation == 1 && stride.saturating_mul(each) % CHUNK == 0;
    (1..=MOST_CHANNELS).contains(&channels).then_some(())?;
    [2, 4, 8, 16].into_iter().find(|&each| each >= channels && aligned(each))
}

/// Chunks of a window.
fn chunks(patches: &Patches, each: i64) -> i64 {
    let [rows, columns] = patches.kernel;
    let (elements, parts) = ((CHUNK / each).max(1), (each / CHUNK).max(1));
    rows.saturating_mul(ceil(columns, elements)).saturating_mul(parts)
}

/// Bytes of what the windows of so many positions show, as `Shown` lays it out.
fn shown_bytes(patches: &Patches, [tall, wide]: [i64; 2], each: i64) -> i64 {
    let elements = (CHUNK / each).max(1);
    let whole = ceil(patches.kernel[1], elements) * elements;
    let last = (wide - 1).saturating_mul(patches.strides[1]).saturating_add(whole);
    let pitch = ceil(reach(patches, wide, 1).max(last).saturating_mul(each), CHUNK).saturating_mul(CHUNK);
    reach(patches, tall, 0).saturating_mul(pitch).saturating_mul(2)
}
