//! Tiles of many rows, in panels of queries side by side: a key's scores are a row of the panel.
//!
//! Transposed so, neither product packs what all queries meet again and again: keys are the left operand of the first one
//! and are read where they lie, and their weights are the columns that the second one reads. Only queries are transposed,
//! once for each block of keys. Maxima and sums of the softmax run down the panel, never across a vector.
//!
//! A row's bits follow from its keys and the block's size alone: sums of weights are made over runs of [`CHAIN`] keys,
//! [`BESIDE`] side by side in the elements' own type, and then in f64.

use std::ops::Range;

use super::super::element::Float;
use super::super::halves::StorageOf;
use super::super::normalize::short::MOST;
use super::super::product::blocks::{CHAIN, DEPTH, PANEL, ROWS, copy_piece};
use super::super::product::columns::{Columns, Ending};
use super::super::product::matmul::{Beta, Lines, Matrix, Product};
use super::super::product::panels::transpose_into_panel;
use super::super::product::strip::Strip;
use super::super::team::MatrixMut;
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Plain, Typed, take};
use super::forward::{Block, HeadAt, Heads, Mask};
use crate::kernel::attention::{ABREAST, VALUES};

const _: () = assert!(ABREAST as usize == PANEL);

/// Sums that are made side by side, so that they do not wait for one another.
const BESIDE: usize = 8;

/// Exponentials that are made step by step together.
const STEPS: usize = 4;

/// Rows of values that are read together.
const TOGETHER: usize = 16;

/// A tile of some rows of a head, all of whose queries are met.
pub(super) struct Tile<'a, 'c, T, S> {
    pub(super) heads: &'a Heads<'a, T, S>,
    pub(super) q: Matrix<'a, T>,
    pub(super) at: HeadAt,
    /// The number of the first row.
    pub(super) first: usize,
    pub(super) out: &'a mut MatrixMut<'c, T>,
    /// Of [`Tiling::slot`](crate::kernel::attention::Tiling) elements.
    pub(super) slot: &'a mut [T],
    /// A thread's area for products.
    pub(super) area: &'a mut [u8],
}

/// What a thread keeps while it computes a tile.
struct Scratch<'a, T> {
    /// Queries of a panel, transposed.
    queries: &'a mut [T],
    /// Rows that are read together, where they are stored in another type.
    rows: &'a mut [T],
    /// A part of the mask: by query, and by key.
    by_query: &'a mut [T],
    by_key: &'a mut [T],
}

impl<'a, T: Plain> Scratch<'a, T> {
    /// What is left of the area; none where it is too small.
    fn new(area: &mut &'a mut [u8]) -> Option<Self> {
        let mut part = |count: usize| take::<T>(area, count).ok();
        Some(Self {
            queries: part(DEPTH * PANEL)?,
            rows: part((ROWS * DEPTH).max(TOGETHER * PANEL))?,
            by_query: part(PANEL * CHAIN)?,
            by_key: part(CHAIN * PANEL)?,
        })
    }
}

/// Queries side by side that meet a block's keys.
#[derive(Clone, Copy)]
struct Panel {
    /// The first one, among the tile's rows, and how many.
    row: usize,
    count: usize,
    block: Block,
    /// No keys follow.
    is_last: bool,
}

/// Of each query so far: the largest score, and the sum of weights less it.
struct State<'a, T> {
    largest: &'a mut [T],
    sums: &'a mut [T],
}

impl<T: Typed + Float + Vectorised + Product, S: StorageOf<T>> Task<T> for Tile<'_, '_, T, S> {
    #[inline(always)]
    fn run<L: Lanes<T>>(mut self, l: L) {
        let tiling = self.heads.tiling;
        let (scores, state) = std::mem::take(&mut self.slot).split_at_mut(PANEL * tiling.keys as usize);
        let (largest, sums) = state.split_at_mut(tiling.rows as usize);
        largest.fill(T::LOWEST);
        sums.fill(T::ZERO);
        let mut area = std::mem::take(&mut self.area);
        let mut scratch = Scratch::new(&mut area).expect("an area has room for a panel");
        let packed = take::<T>(&mut area, VALUES as usize).expect("an area has room for values");
        let rows = self.out.rows;
        // Panels of about the same width, as a narrow one takes longer for each query.
        let wide = rows.div_ceil(rows.div_ceil(PANEL)).next_multiple_of(MOST);
        // Keys that no row sees are left out.
        let end = self.seen(rows);
        let mut key = 0;
        loop {
            let keys = (tiling.keys as usize).min(end - key);
            let values = self.values(l, key..key + keys, packed, scratch.rows);
            for row in (0..rows).step_by(wide) {
                let count = wide.min(rows - row);
                let end = self.seen(row + count);
                if key > 0 && end <= key {
                    continue;
                }
                let keys = keys.min(end - key);
                let HeadAt { batch, head } = self.at;
                let block = Block { batch, head, row: self.first + row, key, keys, is_first: key == 0 };
                let panel = Panel { row, count, block, is_last: key + keys == end };
                let state = State { largest: &mut largest[row..][..count], sums: &mut sums[row..][..count] };
                self.panel(l, panel, &mut scores[..keys * PANEL], values, state, &mut scratch);
            }
            key += keys;
            if key == end {
                return;
            }
        }
    }
}

/// Values of a block's keys: panels of their columns, of as many elements, each key by key.
#[derive(Clone, Copy)]
struct Values<'a, T> {
    elements: &'a [T],
    panel: usize,
}

impl<'a, T: Typed + Float + Vectorised + Product, S: StorageOf<T>> Tile<'a, '_, T, S> {
    /// Keys that any of the tile's first rows meets.
    #[inline(always)]
    fn seen(&self, rows: usize) -> usize {
        self.heads.geometry.seen(self.heads.causal, (self.first + rows - 1) as u64) as usize
    }

    /// The head that keys and values are of.
    #[inline(always)]
    fn key_head(&self) -> HeadAt {
        let HeadAt { batch, head } = self.at;
        HeadAt { batch, head: head / self.heads.geometry.group as usize }
    }

    /// Values of some keys: where they are, if those are a panel, or packed.
    #[inline(always)]
    fn values<'v, L: Lanes<T>>(
        &self,
        l: L,
        keys: Range<usize>,
        packed: &'v mut [T],
        spare: &mut [T],
    ) -> Values<'v, T>
    where
        'a: 'v,
    {
        let size = self.heads.geometry.value_size as usize;
        let stride = self.heads.geometry.strides[2].row as usize;
        let from: &'a [S] = &self.heads.v[self.heads.at(2, self.key_head(), keys.start)..];
        let panel = keys.len() * PANEL;
        if !S::WIDENS && (size, stride) == (PANEL, PANEL) {
            return Values { elements: S::rows(from, stride, (keys.len(), size), &mut []).elements, panel };
        }
        for (column, to) in (0..size).step_by(PANEL).zip(packed.chunks_mut(panel.max(1))) {
            let width = PANEL.min(size - column);
            for (number, to) in to.chunks_mut(TOGETHER * PANEL).enumerate() {
                let from = &from[number * TOGETHER * stride + column..];
                let rows = S::rows(from, stride, (to.len() / PANEL, width), spare);
                let rows = Lines::new(rows.elements, rows.strides.row);
                for (row, to) in to.chunks_exact_mut(PANEL).enumerate() {
                    copy_piece(l, rows.line(row, width), to);
                }
            }
        }
        Values { elements: packed, panel }
    }

    /// What a block's keys add to the results of some queries.
    #[inline(always)]
    fn panel<L: Lanes<T>>(
        &mut self,
        l: L,
        panel: Panel,
        scores: &mut [T],
        values: Values<'_, T>,
        mut state: State<'_, T>,
        scratch: &mut Scratch<'_, T>,
    ) {
        let Panel { row, count, block, is_last } = panel;
        let size = self.heads.geometry.value_size as usize;
        if block.keys > 0 {
            self.scores(l, panel, scores, scratch);
            let scale = self.heads.mask_panel(l, panel, scores, scratch);
            let mut soften = Soften { scores, scale, shifts: [T::ZERO; PANEL], factors: [T::ZERO; PANEL] };
            soften.run(l, &mut state);
            if !block.is_first {
                for (at, &factor) in soften.factors[..count].iter().enumerate() {
                    scale_row(l, self.out.row(row + at), factor);
                }
            }
            let weights = soften.scores.as_chunks::<PANEL>().0;
            let mut factors = [T::ZERO; PANEL];
            for (factor, sum) in factors.iter_mut().zip(&*state.sums) {
                *factor = T::narrow(1.0 / sum.to_f64());
            }
            let ending = Ending { adds: !block.is_first, factors: is_last.then_some(&factors[..]) };
            for (column, values) in (0..size).step_by(PANEL).zip(values.elements.chunks(values.panel)) {
                let values = &values.as_chunks::<PANEL>().0[..block.keys];
                let mut c = self.out.block((row, column), (count, PANEL.min(size - column)));
                Columns { a: weights, b: values }.multiply(l, &mut c, ending);
            }
        }
        if is_last {
            self.finish(row, state.sums);
        }
    }

    /// The products of a block's keys and a panel's queries.
    #[inline(always)]
    fn scores<L: Lanes<T>>(&self, l: L, panel: Panel, scores: &mut [T], scratch: &mut Scratch<'_, T>) {
        let Panel { row, count, block, .. } = panel;
        let size = self.heads.geometry.size as usize;
        let stride = self.heads.geometry.strides[1].row as usize;
        if size == 0 {
            return scores.fill(T::ZERO);
        }
        let wide = count.next_multiple_of(L::WIDTH);
        let mut scores = MatrixMut::new(scores, (block.keys, wide), PANEL);
        let k = &self.heads.k[self.heads.at(1, self.key_head(), block.key)..];
        for inner in (0..size).step_by(DEPTH) {
            let depth = DEPTH.min(size - inner);
            let from = &self.q.elements[row * self.q.strides.row + inner..];
            transpose_into_panel(l, from, self.q.strides.row, (depth, count), scratch.queries);
            let beta = if inner == 0 { Beta::Replace } else { Beta::Add };
            let b = Lines::new(&*scratch.queries, PANEL);
            // Where keys are widened, those of a strip, which stay in the first cache until they are met.
            let tall = if S::WIDENS { ROWS } else { block.keys };
            for key in (0..block.keys).step_by(tall) {
                let tall = tall.min(block.keys - key);
                let a = S::rows(&k[key * stride + inner..], stride, (tall, depth), scratch.rows);
                let a = Lines::new(a.elements, a.strides.row);
                let mut c = scores.block((key, 0), (tall, wide));
                Strip { depth, a, b, goes_on: false }.multiply(l, &mut c, beta);
            }
        }
    }

    /// Fills rows that have met no key: the weights are 0/0, as in a softmax of nothing.
    #[inline(always)]
    fn finish(&mut self, first: usize, sums: &[T]) {
        for (row, _) in sums.iter().enumerate().filter(|(_, sum)| **sum == T::ZERO) {
            self.out.row(first + row).fill(if self.heads.op.zeros { T::ZERO } else { T::from_f64(f64::NAN) });
        }
    }
}

#[inline(always)]
fn scale_row<T: Typed, L: Lanes<T>>(l: L, row: &mut [T], factor: T) {
    let factor = l.splat(factor);
    let (whole, last) = row.split_at_mut(row.len() - row.len() % L::WIDTH);
    for x in whole.chunks_exact_mut(L::WIDTH) {
        l.store(l.mul(l.load(x), factor), x);
    }
    l.store_some(l.mul(l.load_some(last), factor), last);
}

impl<T: Typed + Float, S: StorageOf<T>> Heads<'_, T, S> {
    /// Scales the scores and applies the mask, unless the scale alone is left: what they are still to be scaled by.
    #[inline(always)]
    fn mask_panel<L: Lanes<T>>(
        &self,
        l: L,
        panel: Panel,
        scores: &mut [T],
        scratch: &mut Scratch<'_, T>,
    ) -> T {
        let scale = T::narrow(self.op.scale.0);
        // The largest product has the largest score.
        let is_plain = matches!(self.mask, Mask::None) && scale > T::ZERO;
        if !is_plain {
            let block = panel.block;
            for (number, scores) in scores.chunks_mut(CHAIN * PANEL).enumerate() {
                let key = block.key + number * CHAIN;
                let part = Block { key, keys: scores.len() / PANEL, ..block };
                self.mask_part(l, Panel { block: part, ..panel }, scores, scratch);
            }
        }
        self.hide(panel, scores);
        if is_plain { scale } else { T::ONE }
    }

    /// The same of [`CHAIN`] keys at most.
    #[inline(always)]
    fn mask_part<L: Lanes<T>>(&self, l: L, panel: Panel, scores: &mut [T], scratch: &mut Scratch<'_, T>) {
        let Panel { count, block, .. } = panel;
        let Scratch { by_query, by_key, .. } = scratch;
        let is_repeated = self.mask_repeats();
        let scale = l.splat(T::narrow(self.op.scale.0));
        let fill = l.splat(T::narrow(self.op.fill.0));
        let shows = matches!(self.mask, Mask::Shown(_));
        if is_repeated {
            self.mask_numbers(block, block.row, &mut by_query[..block.keys]);
        } else if let Some((rows, stride)) = self.mask_rows(block) {
            transpose_into_panel(l, rows, stride, (block.keys, count), by_key);
        } else {
            for (row, to) in by_query.chunks_exact_mut(CHAIN).take(count).enumerate() {
                self.mask_numbers(block, block.row + row, &mut to[..block.keys]);
            }
            transpose_into_panel(l, by_query, CHAIN, (block.keys, count), by_key);
        }
        for (key, scores) in scores.chunks_exact_mut(PANEL).enumerate() {
            for at in (0..count).step_by(L::WIDTH) {
                let number =
                    if is_repeated { l.splat(by_query[key]) } else { l.load(&by_key[key * PANEL + at..]) };
                let x = l.load(&scores[at..]);
                let made = if shows {
                    l.less(number, l.splat(T::ONE), fill, l.mul(x, scale))
                } else {
                    l.fused(x, scale, number)
                };
                l.store(made, &mut scores[at..]);
            }
        }
    }

    /// Hides the keys that rows do not meet: of a key, the first rows do not.
    #[inline(always)]
    fn hide(&self, Panel { count, block, .. }: Panel, scores: &mut [T]) {
        let seen = |row: usize| self.geometry.seen(self.causal, (block.row + row) as u64) as usize;
        let mut row = 0;
        for key in seen(0).max(block.key)..block.key + block.keys {
            while row < count && seen(row) <= key {
                row += 1;
            }
            scores[(key - block.key) * PANEL..][..row].fill(T::LOWEST);
        }
    }
}

/// Makes weights of the scores of a panel.
struct Soften<'a, T> {
    scores: &'a mut [T],
    /// What scores are still to be scaled by.
    scale: T,
    /// By query: what is taken off its scores, and what becomes of what was summed before.
    shifts: [T; PANEL],
    factors: [T; PANEL],
}

impl<T: Typed + Float> Soften<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(&mut self, l: L, state: &mut State<'_, T>) {
        self.shift(l, state.largest);
        let mut totals = [0.0; PANEL];
        for column in (0..state.largest.len()).step_by(L::WIDTH) {
            self.weights(l, column, &mut totals[column..]);
        }
        for (query, sum) in state.sums.iter_mut().enumerate() {
            *sum = T::narrow(sum.to_f64() * self.factors[query].to_f64() + totals[query]);
        }
    }

    /// Takes the scores into the largest ones so far.
    #[inline(always)]
    fn shift<L: Lanes<T>>(&mut self, l: L, largest: &mut [T]) {
        let lowest = l.splat(T::LOWEST);
        for (number, largest) in largest.chunks_mut(L::WIDTH).enumerate() {
            let at = number * L::WIDTH;
            let mut best = [lowest; 2];
            let mut pairs = self.scores.chunks_exact(2 * PANEL);
            for pair in &mut pairs {
                best[0] = l.larger(l.load(&pair[at..]), best[0]);
                best[1] = l.larger(l.load(&pair[PANEL + at..]), best[1]);
            }
            for last in pairs.remainder().chunks_exact(PANEL) {
                best[0] = l.larger(l.load(&last[at..]), best[0]);
            }
            let before = l.load_some(largest);
            let new = l.larger(l.mul(l.larger(best[0], best[1]), l.splat(self.scale)), before);
            // Where there is no key so far, nothing is taken off: its weights are zeros.
            let shift = l.less(lowest, new, new, l.zero());
            l.store(shift, &mut self.shifts[at..]);
            l.store(T::exps_below(l, l.sub(before, shift)), &mut self.factors[at..]);
            l.store_some(new, largest);
        }
    }

    /// Weights of a vector of queries, and the sums of those.
    #[inline(always)]
    fn weights<L: Lanes<T>>(&mut self, l: L, column: usize, totals: &mut [f64]) {
        let scale = l.splat(self.scale);
        let less = l.sub(l.zero(), l.load(&self.shifts[column..]));
        for run in self.scores.chunks_mut(CHAIN * PANEL) {
            let mut sums = [l.zero(); BESIDE];
            let mut groups = run.chunks_exact_mut(BESIDE * PANEL);
            for group in &mut groups {
                for first in (0..BESIDE).step_by(STEPS) {
                    let mut x = [scale; STEPS];
                    for i in 0..STEPS {
                        x[i] = l.fused(l.load(&group[(first + i) * PANEL + column..]), scale, less);
                    }
                    let made = T::all_exps_below(l, x);
                    for i in 0..STEPS {
                        l.store(made[i], &mut group[(first + i) * PANEL + column..]);
                        sums[first + i] = l.add(sums[first + i], made[i]);
                    }
                }
            }
            for (i, row) in groups.into_remainder().chunks_exact_mut(PANEL).enumerate() {
                let x = &mut row[column..][..L::WIDTH];
                let made = T::exps_below(l, l.fused(l.load(x), scale, less));
                l.store(made, x);
                sums[i % 2] = l.add(sums[i % 2], made);
            }
            let [low, high] = [0, 4].map(|i| [sums[i], sums[i + 1], sums[i + 2], sums[i + 3]]);
            let half = |s: [L::Vector; 4]| l.add(l.add(s[0], s[1]), l.add(s[2], s[3]));
            let mut all = [T::ZERO; MOST];
            l.store(l.add(half(low), half(high)), &mut all);
            for (total, sum) in totals.iter_mut().zip(&all[..L::WIDTH]) {
                *total += sum.to_f64();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{self, DType, HeadOrder, Real};
    use crate::kernel::attention::{Geometry, Tiling};
    use crate::run::cpu::product::blocks::AREA;
    use crate::run::cpu::vectors::Portable;
    use crate::run::cpu::view::{View, bytes_of, bytes_of_mut};

    /// Numbers between -2 and 2 that follow from their place.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0).collect()
    }

    #[derive(Clone, Copy, Debug)]
    struct Case {
        rows: usize,
        keys: usize,
        size: usize,
        values: usize,
        /// None, added to all rows alike, added, shown, shown of all rows alike, added to all keys alike.
        mask: usize,
        causal: Option<i64>,
        scale: f64,
    }

    fn cases() -> Vec<Case> {
        let sizes = [
            (19, 1, 1, 1),
            (17, 9, 3, 17),
            (18, 49, 32, 32),
            (17, 33, 80, 80),
            (64, 64, 64, 64),
            (65, 129, 5, 65),
            (77, 77, 20, 64),
            (150, 130, 2, 3),
            (6, 300, 400, 2),
            (70, 600, 4, 70),
        ];
        let mut cases = Vec::new();
        for (rows, keys, size, values) in sizes {
            for mask in 0..6 {
                for causal in [None, Some(-2), Some(keys as i64 - rows as i64)] {
                    let scale = if mask == 0 && causal.is_none() { -0.3 } else { 0.4 };
                    cases.push(Case { rows, keys, size, values, mask, causal, scale });
                }
            }
        }
        cases
    }

    /// Operands of a case: queries, keys, values, what is added and what is shown.
    struct Operands {
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
        added: Vec<f32>,
        shown: Vec<u8>,
        dims: [i64; 4],
    }

    impl Operands {
        fn new(case: Case) -> Self {
            let Case { rows, keys, size, values, mask, .. } = case;
            let dims = match mask {
                1 | 4 => [1, 1, 1, keys],
                5 => [1, 1, rows, 1],
                _ => [1, 1, rows, keys],
            };
            let mut q = numbers(rows * size, 1);
            // A row whose scores are no numbers, and one that is infinite.
            q[(rows - 1) * size] = f32::NAN;
            q[(rows - 2) * size] = f32::INFINITY;
            let mut added = numbers(rows * keys, 4);
            added.iter_mut().filter(|x| **x < -1.5).for_each(|x| *x = f32::NEG_INFINITY);
            let shown = (0..rows * keys).map(|i| u8::from(i % 5 != 2 && i / keys != 3)).collect();
            let (k, v) = (numbers(keys * size, 2), numbers(keys * values, 3));
            Self { q, k, v, added, shown, dims: dims.map(|dim| dim as i64) }
        }

        fn mask(&self, kind: usize) -> Option<View<'_>> {
            let count = self.dims.iter().product::<i64>() as usize;
            match kind {
                0 => None,
                3 | 4 => View::new(DType::Bool, &self.dims, &self.shown[..count]).ok(),
                _ => View::new(DType::F32, &self.dims, bytes_of(&self.added[..count])).ok(),
            }
        }
    }

    fn with_heads<R>(case: Case, run: impl FnOnce(&Heads<'_, f32, f32>) -> R) -> R {
        let Case { rows, keys, size, values, mask, causal, scale } = case;
        let op = ir::Attention {
            heads: 1,
            key_heads: 1,
            first: [0; 3],
            orders: [HeadOrder::HeadsFirst; 4],
            scale: Real(scale),
            causal,
            positioned: false,
            fill: Real(-1e9),
            zeros: false,
        };
        let operands = Operands::new(case);
        let dims = [(rows, size), (keys, size), (keys, values), (rows, values)]
            .map(|(rows, size)| [1, 1, rows as i64, size as i64]);
        let geometry = Geometry::new(&op, dims.each_ref().map(|dims| &dims[..]));
        let elements = [&operands.q, &operands.k, &operands.v];
        let views: [View<'_>; 3] =
            std::array::from_fn(|i| View::new(DType::F32, &dims[i], bytes_of(elements[i])).unwrap());
        let mask = operands.mask(mask);
        let [q, k, v] = &views;
        run(&Heads::new(&op, geometry, Tiling::new(&geometry), [q, k, v], mask.as_ref()).unwrap())
    }

    /// Results, as bits; what is not a number has no sign that means anything.
    fn attend<L: Lanes<f32>>(l: L, case: Case) -> Vec<f32> {
        with_heads(case, |heads| {
            assert!(heads.tiling.abreast, "{case:?} is computed row by row");
            let tall = heads.tiling.rows as usize;
            let mut out = vec![5.0; case.rows * case.values];
            let (mut slot, mut area) = (vec![f32::NAN; heads.tiling.slot as usize], vec![u64::MAX; AREA / 8]);
            for (number, out) in out.chunks_mut(tall * case.values).enumerate() {
                let (first, rows) = (number * tall, out.len() / case.values);
                let at = HeadAt { batch: 0, head: 0 };
                let tile = Tile {
                    heads,
                    q: heads.queries(at, first..first + rows, &mut []),
                    at,
                    first,
                    out: &mut MatrixMut::new(out, (rows, case.values), case.values),
                    slot: &mut slot,
                    area: bytes_of_mut(&mut area),
                };
                tile.run(l);
            }
            out
        })
    }

    /// The definition, in f64.
    fn expected(case: Case) -> Vec<f64> {
        with_heads(case, |heads| (0..case.rows).flat_map(|row| expected_row(case, heads, row)).collect())
    }

    fn expected_row(case: Case, heads: &Heads<'_, f32, f32>, row: usize) -> Vec<f64> {
        let Case { keys, size, values, .. } = case;
        let block = Block { batch: 0, head: 0, row, key: 0, keys, is_first: true };
        let mut mask = vec![0.0; keys];
        heads.mask_numbers(block, row, &mut mask);
        let score = |key: usize| {
            let terms =
                (0..size).map(|i| f64::from(heads.q[row * size + i]) * f64::from(heads.k[key * size + i]));
            let score = terms.sum::<f64>() * case.scale;
            match heads.mask {
                _ if case.causal.is_some_and(|offset| key as i64 > row as i64 + offset) => f64::NEG_INFINITY,
                Mask::Shown(_) if mask[key] == 0.0 => -1e9,
                Mask::Shown(_) => score,
                _ => score + f64::from(mask[key]),
            }
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let term =
            |(key, weight): (usize, &f64), column: usize| weight * f64::from(heads.v[key * values + column]);
        let sum = |column: usize| weights.iter().enumerate().map(|each| term(each, column)).sum::<f64>();
        (0..values).map(|column| sum(column) / total).collect()
    }

    /// Scores of hundreds err by more than their weights' last places.
    fn check(case: Case, found: &[f32]) {
        for (at, (found, expected)) in found.iter().zip(expected(case)).enumerate() {
            let is_near = (f64::from(*found) - expected).abs() <= 1e-4;
            assert!(is_near || found.is_nan() && expected.is_nan(), "{found} {expected} {at} {case:?}");
        }
    }

    #[test]
    fn panels_are_those_of_the_definition() {
        for case in cases() {
            check(case, &attend(Portable, case));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        use crate::run::cpu::vectors::{Avx2, Avx512};
        let (Some(wide), Some(narrow)) = (Avx512::find(), Avx2::find()) else { return };
        let bits = |found: Vec<f32>| -> Vec<u32> {
            found.into_iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
        };
        for case in cases() {
            let found = attend(wide, case);
            check(case, &found);
            assert_eq!(bits(found), bits(attend(narrow, case)), "{case:?}");
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_tile() {
        for case in
            cases().into_iter().filter(|case| case.rows > 64 && case.mask == 0 && case.causal.is_none())
        {
            let (all, few) = (attend(Portable, case), attend(Portable, Case { rows: 20, ..case }));
            // The last two rows of each are of other queries.
            assert_eq!(all[..18 * case.values], few[..18 * case.values], "{case:?}");
        }
    }
}
