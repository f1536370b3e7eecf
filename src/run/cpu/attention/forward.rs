//! Attention in tiles, without the matrix of all scores, and rotary embeddings.
//!
//! A tile is some rows of one head; it meets the keys block by block, with the largest score and the
//! sum of its rows so far, by which what was summed before is scaled anew (Dao, "FlashAttention-2",
//! 2023). Tiles are divided by the sizes alone, so the bits do not follow from the number of threads. Those of more than a
//! few rows are in `abreast`.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::ir::{self, DType};
use crate::kernel::attention::{Geometry, PARTS, Tiling};
use crate::kernel::workspace::planned;

use super::super::element::Float;
use super::super::halves::{StorageOf, with_storage, with_wide};
use super::super::product::blocks::{self, Multiply, Rhs};
use super::super::product::matmul::{Beta, Extent, Matrix, Product, Strides, with_area};
use super::super::team::{Corner, MatrixMut, Planes, Slots, Team};
use super::super::vectors::Vectorised;
use super::super::view::{Plain, Typed, View, ViewMut, from_bytes_mut, take, with_float};
use super::abreast;
use super::soften::Soften;

/// `Op::Attention`.
pub(crate) fn attention(
    team: &Team<'_>,
    op: &ir::Attention,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) -> Result<()> {
    with_storage!(inputs[0].dtype, "attention", (T, S) => attention_as::<T, S>(team, op, inputs, out, workspace))
}

/// What is done to the scores before the softmax.
pub(crate) enum Mask<'a, T, S> {
    None,
    Added(&'a [T]),
    /// As the operands are.
    Halves(&'a [S]),
    /// Scores where it is false are `fill`.
    Shown(&'a [u8]),
}

/// An attention's operands, and how they are stored.
pub(crate) struct Heads<'a, T, S> {
    pub(crate) op: &'a ir::Attention,
    pub(crate) geometry: Geometry,
    pub(crate) tiling: Tiling,
    pub(crate) q: &'a [S],
    pub(crate) k: &'a [S],
    pub(crate) v: &'a [S],
    pub(crate) mask: Mask<'a, T, S>,
    /// By axis of batch, head, row and key; 0 where the mask is repeated.
    mask_strides: [usize; 4],
    /// How far beyond its own number a row meets keys.
    pub(super) causal: Option<i64>,
}

fn attention_as<T: Typed + Float + Vectorised + Product, S: StorageOf<T>>(
    team: &Team<'_>,
    op: &ir::Attention,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
    mut workspace: &mut [u8],
) -> Result<()> {
    let [q, k, v] = [&inputs[0], &inputs[1], &inputs[2]];
    let geometry = Geometry::new(op, [q.dims, k.dims, v.dims, out.dims]);
    let tiling = Tiling::new(&geometry);
    let mut heads = Heads::<T, S>::new(op, geometry, tiling, [q, k, v], op.mask(inputs))?;
    if let Some(position) = op.position(inputs) {
        let first = position.slice::<i64>()?.first().copied().unwrap_or(0);
        heads.causal = op.causal.map(|offset| offset.saturating_add(first));
    }
    let Geometry { batch, heads: count, rows, value_size, .. } = geometry;
    let (planes, across) = match op.orders[3] {
        ir::HeadOrder::HeadsFirst => (batch * count, 1),
        ir::HeadOrder::RowsFirst => (batch, count),
    };
    let target = out.slice::<S>()?;
    if target.is_empty() {
        return Ok(());
    }
    let planes = Planes {
        count: planes as usize,
        rows: rows as usize,
        columns: (across * value_size) as usize,
        tall: tiling.rows as usize,
        wide: value_size as usize,
    };
    let tile = |place: Corner, out: &mut MatrixMut<'_, S>, memory: &mut [T]| {
        // Planes are heads, or a plane has all heads side by side.
        let head = place.plane * across as usize + place.column / value_size as usize;
        let (batch, head) = (head / count as usize, head % count as usize);
        let (slot, scratch) = memory.split_at_mut(tiling.slot as usize);
        heads.tile(HeadAt { batch, head }, place.row, out, slot, scratch);
    };
    let memory = if S::WIDENS { tiling.of_halves(&geometry) } else { tiling.slot };
    if S::WIDENS && planned(memory) == 0 {
        let parts = &mut [(); PARTS as usize][..tiling.parts as usize];
        team.each_tile(target, planes, Slots { memory: parts, each: 1 }, |place, out, _| {
            with_scratch(memory as usize, |scratch| tile(place, out, scratch));
        });
    } else {
        let slots = take::<T>(&mut workspace, (tiling.parts * memory) as usize)?;
        team.each_tile(target, planes, Slots { memory: slots, each: memory as usize }, tile);
    }
    Ok(())
}

/// Calls `run` with so many elements of the thread's own area, which has place for them.
pub(crate) fn with_scratch<T: Plain>(count: usize, run: impl FnOnce(&mut [T])) {
    with_wide(|wide| run(&mut from_bytes_mut(wide).unwrap_or_default()[..count]));
}

/// Strides of a tensor of rank 4 that is repeated along axes of size 1.
fn repeated(dims: &[i64]) -> [usize; 4] {
    let mut strides = [0; 4];
    let mut step = 1;
    for (stride, &dim) in strides.iter_mut().zip(dims).rev() {
        *stride = if dim == 1 { 0 } else { step };
        step *= dim.max(1) as usize;
    }
    strides
}

/// One head of one element of the batch.
#[derive(Clone, Copy)]
pub(crate) struct HeadAt {
    pub(crate) batch: usize,
    pub(crate) head: usize,
}

impl<'a, T: Typed, S: StorageOf<T>> Heads<'a, T, S> {
    pub(crate) fn new(
        op: &'a ir::Attention,
        geometry: Geometry,
        tiling: Tiling,
        [q, k, v]: [&View<'a>; 3],
        mask: Option<&View<'a>>,
    ) -> Result<Self> {
        let (mask, mask_strides) = match mask {
            None => (Mask::None, [0; 4]),
            Some(mask) if mask.dtype == DType::Bool => (Mask::Shown(mask.slice()?), repeated(mask.dims)),
            Some(mask) if mask.dtype.is_half() => (Mask::Halves(mask.slice()?), repeated(mask.dims)),
            Some(mask) => (Mask::Added(mask.slice()?), repeated(mask.dims)),
        };
        let (q, k, v) = (q.slice()?, k.slice()?, v.slice()?);
        Ok(Self { op, geometry, tiling, q, k, v, mask, mask_strides, causal: op.causal })
    }

    /// Where a row of queries (0), keys (1), values (2) or results (3) begins.
    pub(crate) fn at(&self, position: usize, HeadAt { batch, head }: HeadAt, row: usize) -> usize {
        let strides = self.geometry.strides[position];
        strides.start as usize
            + batch * strides.batch as usize
            + head * strides.head as usize
            + row * strides.row as usize
    }

    /// Where the mask of a row of a block begins, and how far its elements are apart.
    pub(crate) fn mask_at(&self, block: Block, row: usize) -> (usize, usize) {
        let [batch, head, down, along] = self.mask_strides;
        (block.batch * batch + block.head * head + row * down + block.key * along, along)
    }
}

impl<T: Typed + Float + Vectorised + Product, S: StorageOf<T>> Heads<'_, T, S> {
    /// The queries of some rows: where they lie, or widened in `scratch`.
    pub(crate) fn queries<'q>(
        &'q self,
        head: HeadAt,
        rows: Range<usize>,
        scratch: &'q mut [T],
    ) -> Matrix<'q, T> {
        let from = &self.q[self.at(0, head, rows.start)..];
        let Geometry { size, strides, .. } = self.geometry;
        match size as usize {
            0 => Matrix::new(&[], Strides::rows(0)),
            size => S::rows(from, strides[0].row as usize, (rows.len(), size), scratch),
        }
    }

    /// The products of a block's queries and keys.
    pub(crate) fn scores(
        &self,
        q: Matrix<'_, T>,
        key_head: usize,
        block: Block,
        rows: usize,
        scores: &mut [T],
    ) {
        let Block { batch, key, keys, .. } = block;
        let k = &self.k[self.at(1, HeadAt { batch, head: key_head }, key)..];
        let k = Matrix::new(k, Strides::rows(self.geometry.strides[1].row as usize).transposed());
        match self.geometry.size as usize {
            0 => scores.fill(T::ZERO),
            size => S::multiply(q, k, size, &mut MatrixMut::new(scores, (rows, keys), keys), Beta::Replace),
        }
    }

    /// The rows of one head from `first` on, as many as `out` has.
    fn tile(
        &self,
        head: HeadAt,
        first: usize,
        out: &mut MatrixMut<'_, S>,
        slot: &mut [T],
        scratch: &mut [T],
    ) {
        let size = self.geometry.size as usize;
        let rows = out.rows;
        let (queries, made) = scratch.split_at_mut(if S::WIDENS { rows * size } else { 0 });
        let q = self.queries(head, first..first + rows, queries);
        S::make(out, made, |out| match self.tiling.abreast {
            true => with_area(|area| {
                T::dispatch(abreast::Tile { heads: self, q, at: head, first, out, slot, area });
            }),
            false => self.tile_of(q, head, first, out, slot),
        });
    }

    /// The same, of queries that are given.
    fn tile_of(
        &self,
        q: Matrix<'_, T>,
        HeadAt { batch, head }: HeadAt,
        first: usize,
        out: &mut MatrixMut<'_, T>,
        slot: &mut [T],
    ) {
        let Geometry { keys, group, strides, .. } = self.geometry;
        let rows = out.rows;
        let (scores, state) = slot.split_at_mut((self.tiling.rows * self.tiling.keys) as usize);
        let (largest, sums) = state.split_at_mut(self.tiling.rows as usize);
        largest.fill(T::LOWEST);
        sums.fill(T::ZERO);
        // Keys that no row of the tile sees are left out.
        let end = (0..rows).map(|row| self.geometry.seen(self.causal, (first + row) as u64)).max();
        let end = end.unwrap_or(keys) as usize;
        let key_head = head / group as usize;
        for begin in (0..end).step_by(self.tiling.keys as usize) {
            let n = (self.tiling.keys as usize).min(end - begin);
            let scores = &mut scores[..rows * n];
            let block = Block { batch, head, row: first, key: begin, keys: n, is_first: begin == 0 };
            self.scores(q, key_head, block, rows, scores);
            T::dispatch(Soften { heads: self, block, scores, largest, sums, out });
            let v = &self.v[self.at(2, HeadAt { batch, head: key_head }, begin)..];
            let v = Matrix::new(v, Strides::rows(strides[2].row as usize));
            // The first block replaces what is there; `Soften` has scaled what later blocks add to.
            let beta = if begin == 0 { Beta::Replace } else { Beta::Add };
            S::multiply(Matrix::new(scores, Strides::rows(n)), v, n, out, beta);
        }
        for row in 0..rows {
            let sum = sums[row].to_f64();
            if sum > 0.0 {
                let scale = T::narrow(1.0 / sum);
                out.row(row).iter_mut().for_each(|x| *x = x.mul(scale));
            } else {
                // No key at all: the weights are 0/0, as in a softmax of nothing.
                out.row(row).fill(if self.op.zeros { T::ZERO } else { T::from_f64(f64::NAN) });
            }
        }
    }
}

/// A product of one block, by this thread.
pub(crate) fn multiply_block<T: Typed + Float + Vectorised>(
    a: Matrix<'_, T>,
    b: Rhs<'_, T>,
    k: usize,
    c: &mut MatrixMut<'_, T>,
    beta: Beta<'_, T>,
) {
    let dots = blocks::takes_dots(Extent { m: c.rows, n: c.columns, k });
    with_area(|area| T::dispatch(Multiply { k, dots, a, b, first: 0, c, beta, area }));
}

/// Which scores a tile looks at.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) batch: usize,
    pub(crate) head: usize,
    pub(crate) row: usize,
    pub(crate) key: usize,
    pub(crate) keys: usize,
    pub(crate) is_first: bool,
}

impl<T: Typed + Float, S: StorageOf<T>> Heads<'_, T, S> {
    /// True where all rows have the same mask.
    pub(super) fn mask_repeats(&self) -> bool {
        self.mask_strides[2] == 0
    }

    /// What is added to a block's rows, and how far these are apart, where that is stored row by row.
    pub(super) fn mask_rows(&self, block: Block) -> Option<(&[T], usize)> {
        let Mask::Added(mask) = &self.mask else { return None };
        let (start, along) = self.mask_at(block, block.row);
        (along == 1).then(|| (&mask[start..], self.mask_strides[2]))
    }

    /// A row's mask of a block's keys, as numbers: what is added, or 0 and 1 for what is hidden and shown.
    #[inline(always)]
    pub(super) fn mask_numbers(&self, block: Block, row: usize, to: &mut [T]) {
        let (start, along) = self.mask_at(block, row);
        match &self.mask {
            Mask::None => to.fill(T::ZERO),
            Mask::Added(mask) if along == 1 => to.copy_from_slice(&mask[start..][..to.len()]),
            Mask::Added(mask) => to.fill(mask[start]),
            Mask::Halves(mask) if along == 1 => S::read_all(&mask[start..][..to.len()], to),
            Mask::Halves(mask) => to.fill(mask[start].read()),
            Mask::Shown(mask) if along == 1 => {
                for (to, &shown) in to.iter_mut().zip(&mask[start..]) {
                    *to = if shown == 0 { T::ZERO } else { T::ONE };
                }
            }
            Mask::Shown(mask) => to.fill(if mask[start] == 0 { T::ZERO } else { T::ONE }),
        }
    }

    /// Scales the scores of a row, and applies the mask.
    #[inline(always)]
    pub(crate) fn masked(&self, block: Block, row: usize, scores: &mut [T]) {
        let scale = T::narrow(self.op.scale.0);
        if scale != T::ONE {
            scores.iter_mut().for_each(|x| *x = x.mul(scale));
        }
        let (start, along) = self.mask_at(block, row);
        match &self.mask {
            Mask::None => {}
            Mask::Added(mask) if along == 1 => {
                scores.iter_mut().zip(&mask[start..]).for_each(|(x, &mask)| *x = x.add(mask));
            }
            Mask::Added(mask) => {
                scores.iter_mut().for_each(|x| *x = x.add(mask[start]));
            }
            Mask::Halves(mask) => {
                for (i, x) in scores.iter_mut().enumerate() {
                    *x = x.add(mask[start + i * along].read());
                }
            }
            Mask::Shown(mask) if along == 1 => {
                let fill = T::narrow(self.op.fill.0);
                for (x, &shown) in scores.iter_mut().zip(&mask[start..]) {
                    *x = if shown == 0 { fill } else { *x };
                }
            }
            Mask::Shown(mask) => {
                let fill = T::narrow(self.op.fill.0);
                for (i, x) in scores.iter_mut().enumerate() {
                    if mask[start + i * along] == 0 {
                        *x = fill;
                    }
                }
            }
        }
        let seen = self.geometry.seen(self.causal, row as u64) as usize;
        let hidden = seen.saturating_sub(block.key).min(scores.len());
        scores[hidden..].fill(T::LOWEST);
    }
}

/// `Op::Rotary`.
pub(crate) fn rotary(
    team: &Team<'_>,
    transposed: bool,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_float!(inputs[0].dtype, "rotary", T => rotary_as::<T>(team, transposed, inputs, out))
}

/// Elements of what one thread takes at a time, about.
const PART: usize = 1 << 14;

fn rotary_as<T: Typed + Float>(
    team: &Team<'_>,
    transposed: bool,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let [x, cos, sin] = inputs else { return Err(Error::Internal("operands of rotary".to_owned())) };
    let size = x.dims.last().map_or(0, |&size| size.max(0) as usize);
    let outer = &x.dims[..x.dims.len() - 1];
    let (cos_at, sin_at) = (Repeated::new(outer, cos), Repeated::new(outer, sin));
    let (x, cos, sin) = (x.slice::<T>()?, cos.slice::<T>()?, sin.slice::<T>()?);
    let target = out.slice::<T>()?;
    if target.is_empty() {
        return Ok(());
    }
    let rows = (PART / size).max(1);
    team.each_chunk(target, rows * size, |part, out| {
        for (r, out) in out.chunks_mut(size).enumerate() {
            let row = part * rows + r;
            let x = &x[row * size..][..size];
            turn(x, cos_at.row(cos, row), sin_at.row(sin, row), transposed, out);
        }
    });
    Ok(())
}

/// One row.
#[inline(always)]
fn turn<T: Typed>(x: &[T], cos: RowOf<'_, T>, sin: RowOf<'_, T>, transposed: bool, out: &mut [T]) {
    let (RowOf { elements: cos, along: c }, RowOf { elements: sin, along: s }) = (cos, sin);
    let half = x.len() / 2;
    for i in 0..half {
        let (low, high) = (x[i], x[half + i]);
        let (own, other) = (low.mul(cos[i * c]), high.mul(cos[(half + i) * c]));
        let (first, second) = (sin[i * s], sin[(half + i) * s]);
        (out[i], out[half + i]) = match transposed {
            false => (own.sub(high.mul(first)), other.add(low.mul(second))),
            true => (own.add(high.mul(second)), other.sub(low.mul(first))),
        };
    }
}

/// A row of a table, whose elements are `along` apart: 0 where one stands for all.
#[derive(Clone, Copy)]
struct RowOf<'a, T> {
    elements: &'a [T],
    along: usize,
}

/// Where rows of a tensor begin that is repeated along axes of another.
struct Repeated<'a> {
    outer: &'a [i64],
    dims: &'a [i64],
    /// Elements between neighbours of the last axis: 0 where it is repeated.
    along: usize,
}

impl<'a> Repeated<'a> {
    fn new(outer: &'a [i64], view: &View<'a>) -> Self {
        let along = usize::from(view.dims.last().is_some_and(|&dim| dim != 1));
        Self { outer, dims: view.dims, along }
    }

    /// What the tensor has for a row of the other.
    #[inline(always)]
    fn row<'t, T>(&self, elements: &'t [T], row: usize) -> RowOf<'t, T> {
        RowOf { elements: &elements[self.start(row)..], along: self.along }
    }

    fn start(&self, mut row: usize) -> usize {
        let Some((&last, dims)) = self.dims.split_last() else { return 0 };
        let (mut start, mut step) = (0, last.max(1) as usize);
        for (axis, &size) in self.outer.iter().enumerate().rev() {
            let at = row % size.max(1) as usize;
            row /= size.max(1) as usize;
            let own = (axis + dims.len()).checked_sub(self.outer.len()).map(|own| dims[own]);
            if let Some(own) = own {
                start += if own == 1 { 0 } else { at * step };
                step *= own.max(1) as usize;
            }
        }
        start
    }
}
