//! Weights of scores: what is between the two products of an attention, block by block.
//!
//! Rows are taken as many at once as a vector has numbers. Their maxima and sums across vectors are those of all of them
//! together (`normalize::short`); the bits are those of one row at a time.

use super::super::element::Float;
use super::super::halves::StorageOf;
use super::super::normalize::rows::{RUN, SUMS, exponentials_of, largest};
use super::super::normalize::short::{Ends, MOST, VECTORS, largest_of_each, put_sums, totals_of_each};
use super::super::team::MatrixMut;
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::Typed;
use super::forward::{Block, Heads, Mask};

/// Fewer rows are taken one by one.
const FEWEST: usize = 4;

/// Makes weights of scores, and scales what was summed before.
pub(super) struct Soften<'a, 'c, T, S> {
    pub(super) heads: &'a Heads<'a, T, S>,
    pub(super) block: Block,
    pub(super) scores: &'a mut [T],
    /// Of each row so far: the largest score, and the sum of weights less it.
    pub(super) largest: &'a mut [T],
    pub(super) sums: &'a mut [T],
    pub(super) out: &'a mut MatrixMut<'c, T>,
}

impl<T: Typed + Float + Vectorised, S: StorageOf<T>> Task<T> for Soften<'_, '_, T, S> {
    #[inline(always)]
    fn run<L: Lanes<T>>(mut self, l: L) {
        let rows = self.out.rows;
        let zeros = [l.zero(); MOST];
        let mut held = Held { most: zeros, sums: [zeros; VECTORS] };
        let mut first = 0;
        while first < rows {
            let count = L::WIDTH.min(rows - first);
            if count < FEWEST {
                for row in first..first + count {
                    self.row(l, row);
                }
            } else {
                self.rows(l, first, count, &mut held);
            }
            first += count;
        }
    }
}

/// What is made of each of some rows. Whatever was there before is left in place of rows that there are not.
struct Held<V> {
    most: [V; MOST],
    sums: [[V; MOST]; VECTORS],
}

impl<T: Typed + Float + Vectorised, S: StorageOf<T>> Soften<'_, '_, T, S> {
    #[inline(always)]
    fn row<L: Lanes<T>>(&mut self, l: L, row: usize) {
        let block = self.block;
        let scores = &mut self.scores[row * block.keys..][..block.keys];
        self.heads.masked(block, block.row + row, scores);
        let new = self.largest[row].larger(largest(scores));
        if new == T::LOWEST {
            // No key so far: nothing is to be scaled, and nothing added.
            return scores.fill(T::ZERO);
        }
        let sum = exponentials_of(l, scores, new);
        let scale = self.largest[row].sub(new).exp_below(l);
        self.sums[row] = T::narrow(self.sums[row].to_f64() * scale.to_f64() + sum);
        self.largest[row] = new;
        self.scale(row, scale);
    }

    /// Scales what was summed up before of a row.
    #[inline(always)]
    fn scale(&mut self, row: usize, scale: T) {
        if !self.block.is_first && scale != T::ONE {
            self.out.row(row).iter_mut().for_each(|x| *x = x.mul(scale));
        }
    }

    #[inline(always)]
    fn rows<L: Lanes<T>>(&mut self, l: L, first: usize, count: usize, held: &mut Held<L::Vector>) {
        let keys = self.block.keys;
        for row in 0..count {
            held.most[row] = self.masked(l, first + row);
        }
        let mut new = largest_of_each(l, &mut held.most);
        let mut scales = [T::LOWEST; MOST];
        scales[..count].copy_from_slice(&self.largest[first..][..count]);
        for row in 0..count {
            new[row] = if scales[row] > new[row] { scales[row] } else { new[row] };
            if new[row] == T::LOWEST || scales[row].is_nan() {
                // Among scores of which none is a number above the lowest may be some that are not numbers.
                let scores = &self.scores[(first + row) * keys..][..self.seen(first + row)];
                new[row] = scales[row].larger(largest(scores));
            }
        }
        l.store(T::exps_below(l, l.sub(l.load(&scales), l.load(&new))), &mut scales);
        let mut totals = [0.0; MOST];
        for start in (0..keys).step_by(RUN) {
            for row in 0..count {
                let seen = self.seen(first + row);
                let scores = &mut self.scores[(first + row) * keys..][..keys];
                let run = start.min(seen)..(start + RUN).min(seen);
                let sums = exponentials(l, &mut scores[run], new[row]);
                put_sums(l, &sums, row, &mut held.sums);
            }
            let sums = totals_of_each(l, &mut held.sums);
            for row in 0..MOST {
                totals[row] += sums[row];
            }
        }
        for row in 0..count {
            let at = first + row;
            let seen = self.seen(at);
            if new[row] == T::LOWEST {
                // No key so far: nothing is to be scaled, and nothing added.
                self.scores[at * keys..][..keys].fill(T::ZERO);
                continue;
            }
            self.scores[at * keys + seen..][..keys - seen].fill(T::ZERO);
            self.sums[at] = T::narrow(self.sums[at].to_f64() * scales[row].to_f64() + totals[row]);
            self.largest[at] = new[row];
            self.scale(at, scales[row]);
        }
    }

    /// The block's keys that a row meets: the first ones.
    #[inline(always)]
    fn seen(&self, row: usize) -> usize {
        let Block { row: first, key, keys, .. } = self.block;
        let seen = self.heads.geometry.seen(self.heads.causal, (first + row) as u64) as usize;
        seen.saturating_sub(key).min(keys)
    }

    /// Scales the scores of a row that it sees, and applies the mask. The largest ones of those that are numbers.
    #[inline(always)]
    fn masked<L: Lanes<T>>(&mut self, l: L, row: usize) -> L::Vector {
        let (block, heads, seen) = (self.block, self.heads, self.seen(row));
        let scores = &mut self.scores[row * block.keys..][..block.keys];
        let (start, along) = heads.mask_at(block, block.row + row);
        let scale = l.splat(T::narrow(heads.op.scale.0));
        match &heads.mask {
            Mask::None => scaled(l, &mut scores[..seen], scale, None),
            Mask::Added(mask) if along == 1 => {
                scaled(l, &mut scores[..seen], scale, Some(&mask[start..][..seen]))
            }
            _ => {
                heads.masked(block, block.row + row, scores);
                scaled(l, &mut scores[..seen], l.splat(T::ONE), None)
            }
        }
    }
}

/// Scales the numbers of a row and adds a mask, and finds the largest ones of those that are numbers.
#[inline(always)]
fn scaled<T: Typed, L: Lanes<T>>(l: L, x: &mut [T], scale: L::Vector, mask: Option<&[T]>) -> L::Vector {
    let lowest = l.splat(T::LOWEST);
    let mut best = [lowest; 2];
    let whole = x.len() - x.len() % L::WIDTH;
    let (x, last) = x.split_at_mut(whole);
    for (number, x) in x.chunks_exact_mut(L::WIDTH).enumerate() {
        let mut made = l.mul(l.load(x), scale);
        if let Some(mask) = mask {
            made = l.add(made, l.load(&mask[number * L::WIDTH..]));
        }
        l.store(made, x);
        best[number % 2] = l.larger(made, best[number % 2]);
    }
    if !last.is_empty() {
        let mut made = l.mul(l.load_some(last), scale);
        if let Some(mask) = mask {
            made = l.add(made, l.load_some(&mask[whole..]));
        }
        l.store_some(made, last);
        best[0] = l.larger(Ends::new(l, last.len()).within(l, made, lowest), best[0]);
    }
    l.larger(best[0], best[1])
}

/// Exponentials of some numbers, [`RUN`] at most, less one that none of them is above, in their place: their sums.
#[inline(always)]
fn exponentials<T: Typed + Float, L: Lanes<T>>(l: L, x: &mut [T], shift: T) -> [L::Vector; SUMS / 4] {
    let shift = l.splat(shift);
    let mut sums = [l.zero(); SUMS / 4];
    let mut chunks = x.chunks_exact_mut(SUMS);
    for chunk in &mut chunks {
        for i in 0..SUMS / L::WIDTH {
            let x = &mut chunk[i * L::WIDTH..][..L::WIDTH];
            let made = T::exps_below(l, l.sub(l.load(x), shift));
            l.store(made, x);
            sums[i] = l.add(sums[i], made);
        }
    }
    let rest = chunks.into_remainder();
    for i in 0..SUMS / L::WIDTH {
        let at = i * L::WIDTH;
        if at >= rest.len() {
            break;
        }
        let x = &mut rest[at..];
        let own = x.len().min(L::WIDTH);
        let some = Ends::new(l, own).within(l, l.load_some(x), l.splat(T::LOWEST));
        let made = T::exps_below(l, l.sub(some, shift));
        l.store_some(made, x);
        sums[i] = l.add(sums[i], made);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{self, DType, HeadOrder, Real};
    use crate::kernel::attention::{Geometry, Tiling};
    use crate::run::cpu::vectors::Portable;
    use crate::run::cpu::view::{View, bytes_of};

    /// Numbers between -4 and 4 that follow from their place.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 250.0 - 4.0).collect()
    }

    #[derive(Clone, Copy, Debug)]
    struct Case {
        rows: usize,
        keys: usize,
        /// None, added to all rows alike, added, shown.
        mask: usize,
        causal: Option<i64>,
        /// Scores of a first block, or of a later one.
        is_first: bool,
    }

    fn cases() -> impl Iterator<Item = Case> {
        let sizes = [(1, 9), (4, 1), (5, 7), (16, 49), (17, 33), (40, 64), (7, 512), (6, 700), (19, 130)];
        sizes.into_iter().flat_map(|(rows, keys)| {
            (0..8).flat_map(move |kind| {
                let causal = [None, Some(-1), Some(keys as i64 / 2)];
                let cases =
                    causal.map(|causal| Case { rows, keys, mask: kind % 4, causal, is_first: kind < 4 });
                cases.into_iter()
            })
        })
    }

    /// Scores, largest ones, sums and results, as bits; what is not a number has no sign that means anything.
    fn soften<L: Lanes<f32>>(l: L, case: Case, together: bool) -> Vec<u32> {
        let Case { rows, keys, mask: kind, causal, is_first } = case;
        let op = ir::Attention {
            heads: 1,
            key_heads: 1,
            first: [0; 3],
            orders: [HeadOrder::HeadsFirst; 4],
            scale: Real(0.3),
            causal,
            positioned: false,
            fill: Real(-1e9),
            zeros: false,
        };
        let [q, k] = [[1, 1, rows as i64, 1], [1, 1, keys as i64, 1]];
        let (zeros, added) = (vec![0.0f32; rows.max(keys)], numbers(rows * keys, 2));
        let shown: Vec<u8> = (0..rows * keys).map(|i| u8::from(i % 5 != 2 && i / keys != 3)).collect();
        let geometry = Geometry::new(&op, [&q[..], &k[..], &k[..], &q[..]]);
        let [q, k] = [&q, &k]
            .map(|dims| View::new(DType::F32, dims, &bytes_of(&zeros)[..dims[2] as usize * 4]).unwrap());
        let (each, all) = ([1, 1, rows as i64, keys as i64], [1, 1, 1, keys as i64]);
        let mask = match kind {
            0 => None,
            1 => View::new(DType::F32, &all, bytes_of(&added[..keys])).ok(),
            2 => View::new(DType::F32, &each, bytes_of(&added)).ok(),
            _ => View::new(DType::Bool, &each, &shown).ok(),
        };
        assert_eq!(mask.is_some(), kind > 0);
        let heads =
            Heads::<f32, f32>::new(&op, geometry, Tiling::new(&geometry), [&q, &k, &k], mask.as_ref())
                .unwrap();
        let mut scores = numbers(rows * keys, 1);
        for (row, scores) in scores.chunks_mut(keys).enumerate() {
            match row % 9 {
                1 => scores.fill(f32::NEG_INFINITY),
                2 => scores[keys / 2] = f32::NAN,
                5 => scores[keys - 1] = f32::INFINITY,
                6 => scores.fill(f32::NAN),
                _ => {}
            }
        }
        let (mut largest, mut sums) = (vec![f32::NEG_INFINITY; rows], vec![0.0; rows]);
        if !is_first {
            (largest, sums) = (numbers(rows, 4), numbers(rows, 5).iter().map(|x| x.abs() + 1.0).collect());
            largest[rows / 2] = f32::NEG_INFINITY;
        }
        let mut out = numbers(rows * 3, 6);
        let mut of_rows = MatrixMut::new(&mut out, (rows, 3), 3);
        let block = Block { batch: 0, head: 0, row: 0, key: 0, keys, is_first };
        let mut task = Soften {
            heads: &heads,
            block,
            scores: &mut scores,
            largest: &mut largest,
            sums: &mut sums,
            out: &mut of_rows,
        };
        if together {
            task.run(l)
        } else {
            (0..rows).for_each(|row| task.row(l, row))
        }
        // A row that is not a number is that whatever its scores are.
        for (sum, scores) in sums.iter().zip(scores.chunks_mut(keys)).filter(|(sum, _)| sum.is_nan()) {
            assert!(scores.iter().any(|x| x.is_nan()), "{sum} {case:?}");
            scores.fill(f32::NAN);
        }
        for (sum, largest) in sums.iter().zip(&mut largest).filter(|(sum, _)| sum.is_nan()) {
            *largest = *sum;
        }
        for (row, out) in out.chunks_mut(3).enumerate().filter(|(row, _)| sums[*row].is_nan()) {
            out.fill(sums[row]);
        }
        let all = [scores, largest, sums, out].concat();
        all.into_iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
    }

    #[test]
    fn rows_together_have_the_bits_of_one_row_at_a_time() {
        for case in cases() {
            assert_eq!(soften(Portable, case, true), soften(Portable, case, false), "{case:?}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        use crate::run::cpu::vectors::{Avx2, Avx512};
        let (Some(wide), Some(narrow)) = (Avx512::find(), Avx2::find()) else { return };
        for case in cases() {
            let found = soften(wide, case, true);
            assert_eq!(found, soften(narrow, case, true), "{case:?}");
            assert_eq!(found, soften(narrow, case, false), "{case:?}");
        }
    }
}
