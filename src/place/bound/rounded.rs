//! Weights of few whole numbers, which show that items do not fit into bins where the sum of their times does not: three
//! that each take a little more than a third of a bin are too many for it.
//!
//! An item weighs as many of so many equal parts of a bin as it takes, rounded down. Then one item after the other, the
//! longest first, becomes as heavy as it can be without any filling of the bin getting heavier than the heaviest was.
//!
//! Source: the rounding of Fekete and Schepers, New classes of fast lower bounds for bin packing problems, 2001; the
//! lifting of Balas, Facets of the knapsack polytope, 1975.

/// A bin's time, and the items that may be in it.
pub(super) struct Rounding {
    /// Time that a bin has.
    most: u64,
    /// Time and number of each item, the longest first.
    items: Vec<(u64, usize)>,
}

impl Rounding {
    /// Of the items that have a time those that take at least `least`, and no more than the bin has.
    pub(super) fn new(times: &[Option<u64>], least: u64, most: u64) -> Self {
        let timed = times.iter().enumerate().filter_map(|(item, time)| Some(((*time)?, item)));
        let mut items: Vec<(u64, usize)> = timed.filter(|(time, _)| (least..=most).contains(time)).collect();
        items.sort_unstable_by_key(|&(time, item)| (std::cmp::Reverse(time), item));
        Self { most, items }
    }

    /// How many items are weighed.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// Weights of `count` items, zero for those that are not weighed. O(items^2 x parts).
    pub(super) fn weights(&self, parts: u32, count: usize) -> Vec<u32> {
        let pieces = |time: u64| (u128::from(time) * u128::from(parts) / u128::from(self.most.max(1))) as u32;
        let mut weights: Vec<u32> = self.items.iter().map(|&(time, _)| pieces(time)).collect();
        let whole = self.heaviest(&weights, None, parts);
        for at in 0..weights.len() {
            weights[at] = weights[at].max(whole - self.heaviest(&weights, Some(at), whole));
        }
        let mut of_all = vec![0; count];
        self.items.iter().zip(weights).for_each(|(&(_, item), weight)| of_all[item] = weight);
        of_all
    }

    /// The most weight of a filling, at most `top`; with an item in the bin, of what is beside it.
    fn heaviest(&self, weights: &[u32], with: Option<usize>, top: u32) -> u32 {
        let room = self.most - with.map_or(0, |at| self.items[at].0);
        let mut quickest = vec![u64::MAX; top as usize + 1];
        quickest[0] = 0;
        let others = self.items.iter().zip(weights).enumerate().filter(|&(at, _)| Some(at) != with);
        for (_, (&(time, _), &weight)) in others.filter(|(_, (_, weight))| **weight > 0) {
            // Downwards, so that each item is taken once.
            for sum in (weight as usize..=top as usize).rev() {
                let together = quickest[sum - weight as usize].saturating_add(time);
                if together <= room {
                    quickest[sum] = quickest[sum].min(together);
                }
            }
        }
        quickest.iter().rposition(|&time| time <= room).unwrap_or(0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::Rounding;
    use crate::random::Rng;

    /// The heaviest of all fillings of a bin, by trying all.
    fn heaviest(times: &[Option<u64>], weights: &[u32], most: u64) -> u32 {
        let filling = |set: u32| {
            let taken = (0..times.len()).filter(move |item| set >> item & 1 == 1);
            let time: Option<u64> = taken.clone().map(|item| times[item]).sum();
            time.filter(|&time| time <= most).map(|_| taken.map(|item| weights[item]).sum())
        };
        (0..1u32 << times.len()).filter_map(filling).max().unwrap_or(0)
    }

    #[test]
    fn no_filling_weighs_more_than_before_items_became_heavier() {
        let mut rng = Rng::new(5);
        for _ in 0..200 {
            let most = 40 + rng.below(40) as u64;
            let time = |rng: &mut Rng| (rng.below(6) > 0).then(|| 1 + rng.below(most as usize) as u64);
            let times: Vec<Option<u64>> = (0..9).map(|_| time(&mut rng)).collect();
            for parts in 2..8 {
                let rounded: Vec<u32> = times
                    .iter()
                    .map(|time| time.map_or(0, |time| time * u64::from(parts) / most) as u32)
                    .collect();
                let weights = Rounding::new(&times, 1, most).weights(parts, times.len());
                assert!(weights.iter().zip(&rounded).all(|(weight, before)| weight >= before));
                assert_eq!(heaviest(&times, &weights, most), heaviest(&times, &rounded, most));
            }
        }
    }

    #[test]
    fn what_fits_into_no_bin_beside_anything_weighs_as_much_as_a_full_one() {
        let times = [Some(24_782), Some(10_600), Some(10_601), Some(10_602), Some(6_887)];
        assert_eq!(Rounding::new(&times, 1, 31_666).weights(6, 5), [5, 2, 2, 2, 1]);
    }
}
