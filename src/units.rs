//! Quantities with their units in the type: [`Bytes`], [`Nanos`], [`Flops`] and [`Rate`].
//!
//! All are unsigned integers, so that arithmetic on them gives the same result on every
//! machine. Both decimal (`MB`, 10^6) and binary (`MiB`, 2^20) sizes are read; decimal ones
//! are printed.

mod parse;

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// Nothing of it.
            pub const ZERO: Self = Self(0);
            /// The most that can be represented.
            pub const MAX: Self = Self(u64::MAX);

            /// The bare number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The difference, or zero where `other` is larger.
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        /// Saturates: quantities that come from a file cannot overflow.
        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        /// Panics in debug builds where `other` is larger.
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::ZERO, Add::add)
            }
        }
    };
}

quantity! {
    /// An amount of memory or of data moved, in bytes.
    Bytes
}
quantity! {
    /// A duration or a point on the simulated timeline, in nanoseconds.
    Nanos
}
quantity! {
    /// A count of floating-point operations; per second where it is a rate of compute.
    Flops
}

/// Every buffer, and every part of a workspace, begins at a multiple of this many bytes of its arena.
pub const ALIGNMENT: u64 = 64;

impl Bytes {
    /// What a buffer of these bytes takes in its arena: rounded up to [`ALIGNMENT`], the most where that overflows.
    pub(crate) fn aligned(self) -> Self {
        self.0.checked_next_multiple_of(ALIGNMENT).map_or(Self::MAX, Self)
    }
}

/// A rate of data, in bytes per second. [`Rate::INFINITE`] moves anything at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rate(pub u64);

impl Rate {
    /// No limit.
    pub const INFINITE: Self = Self(u64::MAX);

    /// Time that `bytes` take at this rate, rounded up; [`Nanos::MAX`] at a rate of zero.
    pub fn time(self, bytes: Bytes) -> Nanos {
        if self == Self::INFINITE || bytes == Bytes::ZERO {
            return Nanos::ZERO;
        }
        if self.0 == 0 {
            return Nanos::MAX;
        }
        let nanos = (u128::from(bytes.0) * 1_000_000_000).div_ceil(u128::from(self.0));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl Flops {
    /// Time that `self` operations take on a device that does `rate` operations per second,
    /// rounded up; [`Nanos::MAX`] at a rate of zero.
    pub fn time(self, rate: Flops) -> Nanos {
        Rate(rate.0).time(Bytes(self.0))
    }
}

/// Prints with three significant digits and a decimal prefix, exactly where the number is short:
/// `1 GB`, `262 kB`, `17 B`.
fn prefixed(f: &mut fmt::Formatter<'_>, value: u64, prefixes: &[&str], unit: &str) -> fmt::Result {
    let mut scale = 1u64;
    let mut step = 0;
    while step + 1 < prefixes.len() && value / scale >= 1000 {
        scale *= 1000;
        step += 1;
    }
    let whole = value / scale;
    let decimals = match whole {
        _ if scale == 1 => 0,
        0..=9 => 2,
        10..=99 => 1,
        _ => 0,
    };
    let mut fraction = (value % scale) as u128 * 10u128.pow(decimals) / scale as u128;
    let mut digits = decimals as usize;
    while digits > 0 && fraction.is_multiple_of(10) {
        fraction /= 10;
        digits -= 1;
    }
    let prefix = prefixes[step];
    if digits == 0 {
        write!(f, "{whole} {prefix}{unit}")
    } else {
        write!(f, "{whole}.{fraction:0digits$} {prefix}{unit}")
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        prefixed(f, self.0, &["", "k", "M", "G", "T", "P", "E"], "B")
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        prefixed(f, self.0, &["", "k", "M", "G", "T", "P", "E"], "FLOP")
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::INFINITE {
            return f.write_str("unlimited");
        }
        prefixed(f, self.0, &["", "k", "M", "G", "T", "P", "E"], "B/s")
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        prefixed(f, self.0, &["n", "u", "m", ""], "s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_print_with_three_digits() {
        let cases = [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (262_144, "262 kB"), (1_500_000, "1.5 MB")];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(Nanos(41_200).to_string(), "41.2 us");
        assert_eq!(Nanos(7_000_000_000_000).to_string(), "7000 s");
        assert_eq!(Rate::INFINITE.to_string(), "unlimited");
    }

    #[test]
    fn a_rate_gives_a_time_rounded_up() {
        assert_eq!(Rate(1_000_000_000).time(Bytes(1)), Nanos(1));
        assert_eq!(Rate(3).time(Bytes(1)), Nanos(333_333_334));
        assert_eq!(Rate(0).time(Bytes(1)), Nanos::MAX);
        assert_eq!(Rate(0).time(Bytes(0)), Nanos::ZERO);
        assert_eq!(Rate(1).time(Bytes(u64::MAX)), Nanos::MAX);
    }
}
