//! Rows walk down trees, some at a time: a step waits for the one before it, but not for those of other rows or trees.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

use super::super::team::Team;
use super::super::view::{Plain, View, ViewMut, with_float};
use super::super::walk::sizes;

/// Walks side by side.
const WALKS: usize = 16;
/// Rows that walk down a tree before the next one is looked at: a tree and that many rows stay in the first cache.
const ROWS: usize = 64;
/// Parts of many rows that threads share.
const PARTS: usize = 16;

/// `Op::TreeLeaves`. Error: a node looks at a column, or goes on at a node, that there is not.
pub(crate) fn tree_leaves(
    team: &Team<'_>,
    depth: u32,
    [x, roots, columns, splits, next]: &[View<'_>; 5],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let width = sizes(x.dims)?[1];
    with_float!(x.dtype, "tree_leaves", T => {
        let nodes = columns.slice::<i32>()?.len();
        let forest = Forest {
            rows: x.slice::<T>()?,
            width,
            roots: roots.slice()?,
            columns: columns.slice()?,
            splits: &splits.slice::<T>()?[..nodes],
            next: &next.slice()?[..nodes],
            depth,
        };
        forest.leaves(team, out.slice()?)
    })
}

/// Trees, and the rows that walk down them.
struct Forest<'a, T> {
    rows: &'a [T],
    width: usize,
    roots: &'a [i32],
    columns: &'a [i32],
    splits: &'a [T],
    next: &'a [i32],
    depth: u32,
}

impl<T: Plain + PartialOrd> Forest<'_, T> {
    fn leaves(&self, team: &Team<'_>, out: &mut [i32]) -> Result<()> {
        let trees = self.roots.len();
        let fails = AtomicBool::new(false);
        let rows = out.len().checked_div(trees).unwrap_or(0);
        let part = (rows / PARTS).next_multiple_of(WALKS).max(WALKS) * trees;
        team.each_chunk(out, part, |number, piece| {
            if self.piece(number * part, piece).is_none() {
                fails.store(true, Ordering::Relaxed);
            }
        });
        match fails.into_inner() {
            false => Ok(()),
            true => {
                let message = "a node looks at a column, or goes on at a node, that there is not";
                Err(Error::run("tree_leaves", message))
            }
        }
    }

    /// Whole rows of the result, from an element on.
    fn piece(&self, start: usize, piece: &mut [i32]) -> Option<()> {
        let trees = self.roots.len();
        let mut first = start / trees;
        for block in piece.chunks_mut(ROWS * trees) {
            let count = block.len() / trees;
            let (many, few) = block.split_at_mut(count / WALKS * WALKS * trees);
            self.side_by_side(first, many)?;
            for (row, leaves) in few.chunks_mut(trees).enumerate() {
                self.one_row(self.row(first + count / WALKS * WALKS + row)?, leaves)?;
            }
            first += count;
        }
        Some(())
    }

    fn row(&self, number: usize) -> Option<&[T]> {
        self.rows.get(number * self.width..)?.get(..self.width)
    }

    /// Rows from `first` on, as many as walk side by side once or more often, tree by tree.
    fn side_by_side(&self, first: usize, block: &mut [i32]) -> Option<()> {
        let trees = self.roots.len();
        for (tree, &root) in self.roots.iter().enumerate() {
            for (group, leaves) in block.chunks_exact_mut(WALKS * trees).enumerate() {
                let mut rows = [&self.rows[..0]; WALKS];
                for (walk, row) in rows.iter_mut().enumerate() {
                    *row = self.row(first + group * WALKS + walk)?;
                }
                let mut places = [root; WALKS];
                self.walk(&rows, &mut places)?;
                for (walk, place) in places.into_iter().enumerate() {
                    leaves[walk * trees + tree] = place;
                }
            }
        }
        Some(())
    }

    /// One row, down some trees at a time.
    fn one_row(&self, row: &[T], leaves: &mut [i32]) -> Option<()> {
        leaves.copy_from_slice(self.roots);
        let (many, few) = leaves.as_chunks_mut::<WALKS>();
        many.iter_mut().try_for_each(|places| self.walk(&[row; WALKS], places))?;
        few.iter_mut().try_for_each(|place| self.walk(&[row], std::array::from_mut(place)))
    }

    #[inline(always)]
    fn walk<const N: usize>(&self, rows: &[&[T]; N], places: &mut [i32; N]) -> Option<()> {
        for _ in 0..self.depth {
            let mut moved = 0;
            for (walk, place) in places.iter_mut().enumerate() {
                let next = self.step(rows[walk], *place)?;
                moved |= next ^ *place;
                *place = next;
            }
            // All have come to leaves.
            if moved == 0 {
                break;
            }
        }
        Some(())
    }

    #[inline(always)]
    fn step(&self, row: &[T], place: i32) -> Option<i32> {
        // What is negative is beyond all lists.
        let place = place as u32 as usize;
        let value = *row.get(*self.columns.get(place)? as u32 as usize)?;
        let holds = value <= *self.splits.get(place)?;
        Some(self.next.get(place)?.wrapping_add(i32::from(holds)))
    }
}
