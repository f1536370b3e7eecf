//! Random numbers with an explicit seed: the same on every machine, one after another or by position.
//!
//! Source: SplitMix64 (Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators, 2014);
//! ranges by the multiplication of Lemire, Fast Random Integer Generation in an Interval, 2019.

/// What the state grows by from one number to the next: 2^64 over the golden ratio, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser: a bijection of 64 bits in which each bit of `z` changes half of the result's.
#[inline]
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The number at a position of the sequence of a seed, in O(1).
#[inline]
pub(crate) const fn bits(seed: u64, position: u64) -> u64 {
    mix(seed.wrapping_add(position.wrapping_add(1).wrapping_mul(STEP)))
}

/// The first number of the sequence of a seed: a seed made of another, or of several.
#[cfg(feature = "run")]
#[inline]
pub(crate) const fn first(seed: u64) -> u64 {
    bits(seed, 0)
}

/// Items that [`Rng::chunks`] keeps together: what they touch fits into a cache.
const CHUNK: usize = 4096;

/// A generator. Two of one seed give the same numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// A generator of its own for each seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Any number.
    pub(crate) fn next_u64(&mut self) -> u64 {
        let number = bits(self.state, 0);
        self.state = self.state.wrapping_add(STEP);
        number
    }

    /// A number below `end`, uniform but for a bias of at most `end` in 2^64; 0 where `end` is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next_u64()) * end as u128) >> 64) as usize
    }

    /// Puts items in a random order (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }

    /// Items in a random order that stays near: chunks in any order, and each in any order inside.
    pub(crate) fn chunks(&mut self, items: &[u32]) -> Vec<Vec<u32>> {
        let mut chunks: Vec<Vec<u32>> = items.chunks(CHUNK).map(<[u32]>::to_vec).collect();
        chunks.iter_mut().for_each(|chunk| self.shuffle(chunk));
        self.shuffle(&mut chunks);
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::{Rng, bits};

    /// The first numbers of the published reference implementation for seed 1234567.
    #[test]
    fn numbers_are_those_of_the_reference() {
        let mut rng = Rng::new(1_234_567);
        let found: Vec<u64> = (0..5).map(|_| rng.next_u64()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(found, expected);
        let found: Vec<u64> = (0..5).map(|position| bits(1_234_567, position)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn chunks_hold_all_items_and_what_was_near() {
        let items: Vec<u32> = (0..10_000).collect();
        let chunks = Rng::new(3).chunks(&items);
        for chunk in &chunks {
            let (least, most) = (chunk.iter().min().unwrap(), chunk.iter().max().unwrap());
            assert_eq!((most - least + 1) as usize, chunk.len());
        }
        let mut all = chunks.concat();
        assert_ne!(all, items);
        all.sort_unstable();
        assert_eq!(all, items);
    }

    #[test]
    fn shuffling_keeps_all_items_and_ranges_hold() {
        let mut rng = Rng::new(7);
        let mut items: Vec<usize> = (0..100).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        assert!((0..1000).all(|_| rng.below(3) < 3));
        assert_eq!(rng.below(0), 0);
    }
}
