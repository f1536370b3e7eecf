//! An evenly spread sample of many values in bounded memory, for the medians of long runs.

/// The things of which the number is a multiple of a stride, which doubles whenever there would be more of
/// them than asked for. Which ones are kept follows from how many there were alone.
#[derive(Debug)]
pub(super) struct Sample<T> {
    most: usize,
    stride: u64,
    seen: u64,
    kept: Vec<T>,
}

impl<T> Sample<T> {
    /// Keeps at most `most` of them, at least two.
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(2), stride: 1, seen: 0, kept: Vec::new() }
    }

    /// One more.
    pub(super) fn push(&mut self, one: T) {
        if self.seen.is_multiple_of(self.stride) {
            if self.kept.len() == self.most {
                let mut number = 0;
                self.kept.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.stride = self.stride.saturating_mul(2);
            }
            if self.seen.is_multiple_of(self.stride) {
                self.kept.push(one);
            }
        }
        self.seen += 1;
    }

    /// How many there were.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Those that were kept, in their order; the first is always among them.
    pub(super) fn kept(&self) -> &[T] {
        &self.kept
    }
}

impl<T: Ord + Copy> Sample<T> {
    /// The median of those that were kept; of an even number the larger of the two in the middle.
    pub(super) fn median(&self) -> Option<T> {
        let mut sorted = self.kept.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_is_sampled_evenly_in_bounded_memory() {
        for most in [2, 3, 64, 65] {
            let mut sample = Sample::new(most);
            for number in 0..100_000u64 {
                sample.push(number);
                assert!(sample.kept().len() <= most);
                assert_eq!(sample.kept()[0], 0);
            }
            let gaps: Vec<u64> = sample.kept().windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(gaps.iter().all(|gap| *gap == sample.stride), "{gaps:?}");
            assert!(sample.kept().len() >= most / 2 && sample.seen() == 100_000);
        }
    }

    #[test]
    fn the_median_of_few_is_exact() {
        let mut sample = Sample::new(8);
        assert_eq!(sample.median(), None);
        [5, 1, 9].into_iter().for_each(|one| sample.push(one));
        assert_eq!(sample.median(), Some(5));
    }
}
