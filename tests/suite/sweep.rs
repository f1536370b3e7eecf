//! Tests that take long. Of many cases a share runs with all other tests, and the others as tests called `others`, which
//! are ignored, by `cargo test -- --ignored ::others`; so do single tests that take seconds. CI runs both.

/// What a test takes of many cases: one of so many, or all others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    OneOf(u64),
    OthersOf(u64),
}

impl Share {
    pub(crate) const ALL: Self = Self::OneOf(1);

    /// Whether it takes the case of this number. Neighbours have nothing to do with each other, so that no
    /// period of the cases meets one of the share.
    fn takes(self, number: u64) -> bool {
        let drawn = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        match self {
            Self::OneOf(count) => drawn.is_multiple_of(count),
            Self::OthersOf(count) => !drawn.is_multiple_of(count),
        }
    }

    pub(crate) fn among<T>(self, all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        all.into_iter().enumerate().filter(move |&(number, _)| self.takes(number as u64)).map(|(_, one)| one)
    }

    /// At least so many of what all cases have `count` of: half of its part, as shares are drawn.
    pub(crate) fn least(self, count: usize) -> usize {
        let part = match self {
            Self::OneOf(share) => count / share as usize,
            Self::OthersOf(share) => count - count / share as usize,
        };
        part / 2
    }
}

/// Tests of functions that take a [`Share`]: one of so many cases, and the others.
macro_rules! sweep {
    ($($check:ident: one of $count:literal;)+) => {$(
        mod $check {
            use crate::sweep::Share;

            #[test]
            fn some() {
                super::$check(Share::OneOf($count));
            }

            #[test]
            #[ignore = "long: cargo test -- --ignored ::others"]
            fn others() {
                super::$check(Share::OthersOf($count));
            }
        }
    )+};
}

/// Tests that take seconds each and look at one thing closely: each is one of the others.
macro_rules! long {
    ($($check:ident;)+) => {$(
        mod $check {
            #[test]
            #[ignore = "long: cargo test -- --ignored ::others"]
            fn others() {
                super::$check();
            }
        }
    )+};
}

#[test]
fn a_share_and_the_others_are_all() {
    for count in 2..8 {
        let some: Vec<u64> = Share::OneOf(count).among(0..1000).collect();
        let others: Vec<u64> = Share::OthersOf(count).among(0..1000).collect();
        let mut all = [&some[..], &others].concat();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        let part = 1000 / count as usize;
        assert!((part * 3 / 4..part * 5 / 4).contains(&some.len()), "{} of 1000, one of {count}", some.len());
    }
}
