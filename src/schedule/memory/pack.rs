//! Where each buffer is, once it is known which may be alive together: dynamic storage
//! allocation (Garey and Johnson SR2) with the lives of [`crate::schedule::memory::lifetimes`].
//!
//! Buffers are placed one by one, each in the smallest gap that holds it among those placed before
//! that it meets; the order is everything. First orders are by size (Pisarchyk and Lee, "Efficient
//! memory management for deep neural net inference", 2020), by size times length of life, and by
//! length of life. An order is then improved by squeaky wheels (Joslin and Clements, 1999): what
//! ends above the lower bound is placed earlier in the next round, and the best round is kept. Work
//! is counted: pairs that meet, times rounds.

use crate::csr::Csr;
use crate::schedule::memory::lifetimes::Life;

/// What needs bytes, for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// When it is alive.
    pub(crate) life: Life,
    /// Its bytes, rounded up to the alignment.
    pub(crate) length: u64,
}

/// Pairs of items that meet, beyond which nothing is packed.
const MOST_PAIRS: usize = 4_000_000;

/// Rounds without gain, after which the next first order is taken.
const PATIENCE: usize = 40;

/// Offsets for all items, none of which ends above `limit`; none at all where that does not succeed, or too
/// many pairs meet. Stops at `bound`, which is good enough, and where no visits of pairs are `left`. O(items
/// log items + pairs x rounds).
pub(crate) fn pack(items: &[Item], bound: u64, limit: u64, left: &mut usize) -> Option<Vec<u64>> {
    // A round costs four visits for each pair: with more pairs there would not be a single round.
    let meets = meets(items, (*left / 4).min(MOST_PAIRS))?;
    let mut best: Option<(Vec<u64>, u64)> = None;
    let mut placed = Placed::new(items, &meets);
    for order in first_orders(items) {
        let mut order = order;
        let (mut own, mut stale) = (u64::MAX, 0);
        while stale < PATIENCE {
            let Some(rest) = left.checked_sub(2 * meets.entries().len() + items.len()) else {
                return best.map(|(offsets, _)| offsets);
            };
            *left = rest;
            let Some(end) = placed.place(&order) else { break };
            stale = if end < own { 0 } else { stale + 1 };
            own = own.min(end);
            if end <= limit && best.as_ref().is_none_or(|&(_, least)| end < least) {
                best = Some((placed.offsets.clone(), end));
            }
            if end <= bound {
                return best.map(|(offsets, _)| offsets);
            }
            placed.squeak(&mut order, bound, stale);
        }
    }
    best.map(|(offsets, _)| offsets)
}

/// The items in the orders to begin with.
fn first_orders(items: &[Item]) -> Vec<Vec<u32>> {
    let span = |item: &Item| u128::from(item.life.last.saturating_sub(item.life.first)) + 1;
    let keys: [fn(u128, u128) -> u128; 3] =
        [|size, _| size, |size, span| size.saturating_mul(span), |_, span| span];
    let sorted = |key: fn(u128, u128) -> u128| {
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        let of = |at: u32| {
            let item = &items[at as usize];
            (key(u128::from(item.length), span(item)), item.length, std::cmp::Reverse(item.life.first))
        };
        order.sort_by_cached_key(|&at| std::cmp::Reverse(of(at)));
        order
    };
    keys.into_iter().map(sorted).collect()
}

/// By item: the items that may be alive when it is. None where there are more than `most` pairs.
/// O(items log items + pairs).
fn meets(items: &[Item], most: usize) -> Option<Csr> {
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    order.sort_by_key(|&at| items[at as usize].life.first);
    let mut alive: Vec<u32> = Vec::new();
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for &at in &order {
        let first = items[at as usize].life.first;
        alive.retain(|&other| items[other as usize].life.last >= first);
        if pairs.len() + alive.len() > most {
            return None;
        }
        pairs.extend(alive.iter().map(|&other| (at, other)));
        alive.push(at);
    }
    let both = pairs.iter().flat_map(|&(one, other)| [(one as usize, other), (other as usize, one)]);
    Some(Csr::from_pairs(items.len(), both))
}

const NOWHERE: u64 = u64::MAX;

struct Placed<'a> {
    items: &'a [Item],
    meets: &'a Csr,
    /// By item.
    offsets: Vec<u64>,
    /// What is placed, the lowest first; not kept where few meet.
    ascending: Vec<Extent>,
    /// Whether an item meets so much of what is placed that looking through all of that is less work than sorting.
    is_dense: bool,
    /// By item: whether the one that is being placed meets it.
    is_met: Vec<bool>,
    /// Begin and end of what an item meets, the lowest first; not kept where many meet.
    met: Vec<(u64, u64)>,
}

/// Where an item is: all that is looked at of it when another is placed.
#[derive(Clone, Copy)]
struct Extent {
    begin: u64,
    end: u64,
    item: u32,
}

/// Looks for the smallest gap that holds an item, the lowest of equals, among others that come by in order.
struct Gap {
    length: u64,
    /// End of what came by.
    reached: u64,
    /// Length of the best gap, and its begin.
    best: Option<(u64, u64)>,
}

impl Gap {
    fn new(length: u64) -> Self {
        Self { length, reached: 0, best: None }
    }

    #[inline]
    fn pass(&mut self, begin: u64, end: u64) {
        let free = begin.saturating_sub(self.reached);
        if free > 0 && free >= self.length && self.best.is_none_or(|(least, _)| free < least) {
            self.best = Some((free, self.reached));
        }
        self.reached = self.reached.max(end);
    }

    /// Above all where no gap holds it.
    fn offset(&self) -> u64 {
        self.best.map_or(self.reached, |(_, offset)| offset)
    }
}

/// Items meet many where each meets one in so many of all, on average.
const MANY: usize = 8;

impl<'a> Placed<'a> {
    fn new(items: &'a [Item], meets: &'a Csr) -> Self {
        Self {
            items,
            meets,
            offsets: vec![NOWHERE; items.len()],
            ascending: Vec::new(),
            is_dense: meets.entries().len().saturating_mul(MANY) >= items.len().saturating_mul(items.len()),
            is_met: vec![false; items.len()],
            met: Vec::new(),
        }
    }

    /// Places all items in order; gives the end of the highest, none where it overflows.
    fn place(&mut self, order: &[u32]) -> Option<u64> {
        self.offsets.fill(NOWHERE);
        self.ascending.clear();
        let mut highest = 0u64;
        for &at in order {
            let offset = if self.is_dense { self.gap_of_many(at) } else { self.gap_of_few(at) };
            self.offsets[at as usize] = offset;
            let end = offset.checked_add(self.items[at as usize].length)?;
            highest = highest.max(end);
            if self.is_dense {
                let after = self.ascending.partition_point(|other| other.begin <= offset);
                self.ascending.insert(after, Extent { begin: offset, end, item: at });
            }
        }
        Some(highest)
    }

    /// The smallest gap that holds an item, the lowest of equals; above all where none does. O(met log met).
    fn gap_of_few(&mut self, at: u32) -> u64 {
        let Self { items, meets, offsets, met, .. } = self;
        let extent = |other: u32| {
            let begin = offsets[other as usize];
            (begin, begin.saturating_add(items[other as usize].length))
        };
        let row = meets.row(at as usize);
        let placed = row.iter().filter(|&&other| offsets[other as usize] != NOWHERE);
        met.clear();
        met.extend(placed.map(|&other| extent(other)));
        met.sort_unstable();
        let mut gap = Gap::new(items[at as usize].length);
        met.iter().for_each(|&(begin, end)| gap.pass(begin, end));
        gap.offset()
    }

    /// As [`Placed::gap_of_few`]. O(placed).
    fn gap_of_many(&mut self, at: u32) -> u64 {
        let row = self.meets.row(at as usize);
        row.iter().for_each(|&other| self.is_met[other as usize] = true);
        let mut gap = Gap::new(self.items[at as usize].length);
        for other in self.ascending.iter().filter(|other| self.is_met[other.item as usize]) {
            gap.pass(other.begin, other.end);
        }
        row.iter().for_each(|&other| self.is_met[other as usize] = false);
        gap.offset()
    }

    /// Moves what ends above the bound forward in the order: the further, the longer nothing was
    /// gained.
    fn squeak(&self, order: &mut Vec<u32>, bound: u64, stale: usize) {
        let above = |at: u32| {
            let end = self.offsets[at as usize].saturating_add(self.items[at as usize].length);
            end > bound
        };
        // It varies while nothing is gained: the same step would lead to the same place again.
        let reach = (order.len() / 16).max(1) * (1 + stale % 16) + stale % 3;
        let mut keyed: Vec<(usize, u32)> = (order.iter().enumerate())
            .map(|(rank, &at)| {
                (if above(at) { (2 * rank).saturating_sub(2 * reach) } else { 2 * rank + 1 }, at)
            })
            .collect();
        // Stable: those that squeak keep their order among themselves.
        keyed.sort_by_key(|&(rank, _)| rank);
        order.clear();
        order.extend(keyed.into_iter().map(|(_, at)| at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(first: u32, last: u32, length: u64) -> Item {
        Item { life: Life { first, written: first, used: last, last }, length }
    }

    fn assert_disjoint(items: &[Item], offsets: &[u64]) {
        for (i, one) in items.iter().enumerate() {
            for (j, other) in items.iter().enumerate().skip(i + 1) {
                let meet = one.life.first <= other.life.last && other.life.first <= one.life.last;
                let disjoint =
                    offsets[i] + one.length <= offsets[j] || offsets[j] + other.length <= offsets[i];
                assert!(disjoint || !meet, "items {i} and {j}");
            }
        }
    }

    /// The least end over all orders of placing.
    fn least(items: &[Item]) -> u64 {
        let meets = meets(items, MOST_PAIRS).unwrap();
        let mut placed = Placed::new(items, &meets);
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        let mut least = u64::MAX;
        permute(&mut order, 0, &mut |order| least = least.min(placed.place(order).unwrap()));
        least
    }

    fn permute(order: &mut Vec<u32>, fixed: usize, visit: &mut impl FnMut(&[u32])) {
        if fixed == order.len() {
            return visit(order);
        }
        for next in fixed..order.len() {
            order.swap(fixed, next);
            permute(order, fixed + 1, visit);
            order.swap(fixed, next);
        }
    }

    #[test]
    fn squeaking_finds_what_the_best_order_gives() {
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut best = 0;
        for _ in 0..60 {
            let items: Vec<Item> = (0..7)
                .map(|_| {
                    let first = draw(9) as u32;
                    item(first, first + draw(5) as u32, 64 * (1 + draw(6)))
                })
                .collect();
            let least = least(&items);
            let offsets = pack(&items, least, u64::MAX, &mut 1_000_000).unwrap();
            assert_disjoint(&items, &offsets);
            let end = items.iter().zip(&offsets).map(|(item, offset)| offset + item.length).max().unwrap();
            assert!(end >= least);
            best += usize::from(end == least);
        }
        assert_eq!(best, 60, "of 60 at the best order's end");
    }

    /// Both ways to look for a gap.
    #[test]
    fn what_an_item_meets_is_found_by_looking_as_by_sorting() {
        let mut state = 3u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for lasts in [2, 60] {
            let items: Vec<Item> = (0..50)
                .map(|_| {
                    let first = draw(60) as u32;
                    item(first, first + draw(lasts) as u32, 64 * (1 + draw(6)))
                })
                .collect();
            let meets = meets(&items, MOST_PAIRS).unwrap();
            let order: Vec<u32> = (0..50).collect();
            let ends = [true, false].map(|is_dense| {
                let mut placed = Placed { is_dense, ..Placed::new(&items, &meets) };
                let end = placed.place(&order);
                (end, placed.offsets)
            });
            assert_eq!(ends[0], ends[1]);
            assert_eq!(Placed::new(&items, &meets).is_dense, lasts == 60);
        }
    }

    #[test]
    fn sizes_that_overflow_are_not_packed() {
        let items = [item(0, 3, u64::MAX), item(1, 2, u64::MAX)];
        assert_eq!(pack(&items, 0, u64::MAX, &mut 1_000), None);
        assert_eq!(pack(&[], 0, 0, &mut 1_000), Some(Vec::new()));
    }
}
