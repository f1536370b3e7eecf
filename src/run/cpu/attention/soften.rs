//! Weights of scores that are row by row: what is between the two products of an attention, block by block.

use super::super::element::Float;
use super::super::halves::StorageOf;
use super::super::normalize::rows::{exponentials_of, largest};
use super::super::team::MatrixMut;
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::Typed;
use super::forward::{Block, Heads};

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
        for row in 0..self.out.rows {
            self.row(l, row);
        }
    }
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
}
