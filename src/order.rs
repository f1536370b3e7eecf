//! Topological orders of what stands in a text, and the cycle where there is none.
//!
//! petgraph's `toposort` promises no order among what is ready, and names one node of a cycle. Here the text's
//! order is kept, and a cycle is named whole.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::csr::Csr;

/// An order in which each item stands after its makers: always the first by number among those that are ready.
/// `makers` holds for each item the makers of what it reads, once for each read.
///
/// Error: a cycle, as [`cycle`] gives it. O(items log items + reads).
pub(crate) fn first_ready(makers: &Csr) -> Result<Vec<usize>, Vec<usize>> {
    let readers = makers.transposed(makers.len());
    let mut unmet: Vec<usize> = (0..makers.len()).map(|item| makers.row(item).len()).collect();
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..unmet.len()).filter(|&item| unmet[item] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(unmet.len());
    while let Some(Reverse(item)) = ready.pop() {
        order.push(item);
        for &reader in readers.row(item) {
            let reader = reader as usize;
            unmet[reader] -= 1;
            if unmet[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    if order.len() == unmet.len() {
        return Ok(order);
    }
    // Each that waits reads another that waits, so a walk backwards closes a cycle.
    let reads = |item: usize| makers.row(item).iter().map(|&maker| maker as usize);
    Err(cycle(&unmet, |item| reads(item).find(|&maker| unmet[maker] > 0)))
}

/// The items of one cycle in the order of the data, the last of them the one that a walk finds first: backwards from
/// the first item with something unmet, always along `maker`, a maker that is itself waiting. O(items).
pub(crate) fn cycle<T: Copy + Default + PartialOrd>(
    unmet: &[T],
    maker: impl Fn(usize) -> Option<usize>,
) -> Vec<usize> {
    let mut place: Vec<Option<usize>> = vec![None; unmet.len()];
    let mut walk = Vec::new();
    let mut next = unmet.iter().position(|&unmet| unmet > T::default());
    while let Some(item) = next {
        if let Some(begin) = place[item] {
            walk.drain(..begin);
            break;
        }
        place[item] = Some(walk.len());
        walk.push(item);
        next = maker(item);
    }
    walk.reverse();
    walk
}

#[cfg(test)]
mod tests {
    use super::*;

    fn makers(rows: &[&[u32]]) -> Csr {
        let mut table = Csr::new();
        for row in rows {
            row.iter().for_each(|&maker| table.push(maker));
            table.end_row();
        }
        table
    }

    #[test]
    fn the_first_in_the_text_that_is_ready_is_next() {
        // 0 reads 3 twice; 2 and 3 read nothing; 1 reads 2.
        let order = first_ready(&makers(&[&[3, 3], &[2], &[], &[]]));
        assert_eq!(order, Ok(vec![2, 1, 3, 0]));
        assert_eq!(first_ready(&makers(&[])), Ok(vec![]));
    }

    #[test]
    fn a_cycle_is_named_without_what_waits_for_it() {
        // 0 waits for 1, which is on the cycle 1 -> 3 -> 2 -> 1.
        let found = first_ready(&makers(&[&[4, 1], &[2], &[3], &[1], &[]]));
        assert_eq!(found, Err(vec![3, 2, 1]));
        assert_eq!(first_ready(&makers(&[&[0]])), Err(vec![0]));
    }

    #[test]
    fn a_chain_of_a_million_is_no_recursion() {
        let items = 1_000_000u32;
        let mut table = Csr::new();
        for item in 0..items {
            table.push((item + 1) % items);
            table.end_row();
        }
        assert_eq!(first_ready(&table).unwrap_err().len(), items as usize);
    }
}
