//! Sets of devices by price.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::catalogue::Catalogue;
use super::price::Price;

/// How many devices of each kind; ordered by price, then by the number of devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Set {
    /// What they cost together.
    pub price: Price,
    devices: usize,
    /// By offer of the catalogue.
    pub counts: Vec<usize>,
}

impl Set {
    /// So many devices of each kind.
    pub(super) fn new(catalogue: &Catalogue, counts: Vec<usize>) -> Self {
        Self { price: catalogue.price(&counts), devices: counts.iter().sum(), counts }
    }
}

/// All sets within a budget, the cheapest first; of equals those of fewer devices. Each costs O(kinds log sets).
pub(super) struct Sets<'c> {
    catalogue: &'c Catalogue,
    budget: Option<Price>,
    /// What comes next, each set once: a set is reached from the one that has a lot less of its last kind.
    open: BinaryHeap<Reverse<Set>>,
}

impl<'c> Sets<'c> {
    pub(super) fn new(catalogue: &'c Catalogue, budget: Option<Price>) -> Self {
        let mut sets = Self { catalogue, budget, open: BinaryHeap::new() };
        sets.open_beyond(&vec![0; catalogue.offers().len()], 0);
        sets
    }

    /// Opens the sets that have one lot more of one kind, from the kind `first` on.
    fn open_beyond(&mut self, counts: &[usize], first: usize) {
        for (kind, offer) in self.catalogue.offers().iter().enumerate().skip(first) {
            let mut counts = counts.to_vec();
            counts[kind] += offer.lot;
            let set = Set::new(self.catalogue, counts);
            if set.counts[kind] <= offer.available && self.budget.is_none_or(|budget| set.price <= budget) {
                self.open.push(Reverse(set));
            }
        }
    }
}

impl Iterator for Sets<'_> {
    type Item = Set;

    fn next(&mut self) -> Option<Set> {
        let Reverse(set) = self.open.pop()?;
        let last = set.counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        self.open_beyond(&set.counts, last);
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CATALOGUE: &str = "[[device]]\nkind = \"l4-24g\"\nprice = 0.7\navailable = 3\n\
         [[device]]\nkind = \"h100-80g\"\nprice = 2.5\navailable = 4\nlot = 2\n\
         [[device]]\nkind = \"t4-16g\"\nprice = 0\navailable = 2\n";

    #[test]
    fn every_set_within_the_budget_comes_once_by_price() {
        let catalogue = Catalogue::parse(CATALOGUE).unwrap();
        let all: Vec<Set> = Sets::new(&catalogue, None).collect();
        assert_eq!(all.len(), 4 * 3 * 3 - 1);
        assert!(all.is_sorted() && all.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(all[0].counts, [0, 0, 1]);
        let (budget, _) = Price::parse("5.7").unwrap();
        let within: Vec<Set> = Sets::new(&catalogue, Some(budget)).collect();
        let expected: Vec<Set> = all.into_iter().filter(|set| set.price <= budget).collect();
        assert_eq!(within, expected);
        assert_eq!(within.last().map(|set| set.counts.as_slice()), Some(&[1, 2, 2][..]));
    }
}
