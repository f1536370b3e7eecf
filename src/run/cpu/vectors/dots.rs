//! Sums of products of bytes, 16 side by side, and what makes floats of them.
//!
//! Holds `unsafe`: calls of what is compiled for a set that was found.

use super::{Lanes, Portable};
use crate::ir::packed::{Arrays, Lines};

/// Sums that are made side by side.
pub(in super::super) const SUMS: usize = 16;

/// Operations on 16 whole numbers of 32 bits, which wrap around, and on 16 floats.
pub(in super::super) trait Dots: Lines {
    type Sums: Copy;
    /// True where registers hold the sums of several rows.
    const HOLDS_ROWS: bool;

    fn no_sums(self) -> Self::Sums;
    /// The same four bytes 16 times.
    fn repeated(self, four: [u8; 4]) -> Self::Line;
    /// Into the first 16 numbers. Panics where there are fewer.
    fn put_sums(self, sums: Self::Sums, to: &mut [i32]);
    /// To each sum the products of its four bytes are added. `SMALL`: all bytes of the line are below 64. Panics where there
    /// are fewer than 64.
    fn dot<const SMALL: bool>(self, sums: Self::Sums, line: Self::Line, with: &[i8]) -> Self::Sums;
    /// 256 times as much.
    fn raised(self, sums: Self::Sums) -> Self::Sums;
    fn plus(self, sums: Self::Sums, more: &[i32; SUMS]) -> Self::Sums;
    /// The nearest floats.
    fn floats(self, sums: Self::Sums) -> Self::Floats;
    fn no_floats(self) -> Self::Floats;
    /// The first half and the second are added, and so on with the sums.
    fn total(self, floats: Self::Floats) -> f32;
    fn load(self, from: &[f32; SUMS]) -> Self::Floats;
    /// `a * b + c`, rounded once.
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// For each the one at a place, less than 16.
    fn picked(self, floats: Self::Floats, places: &[i32; SUMS]) -> Self::Floats;
}

/// What is compiled for each instruction set. Implementations are marked `#[inline(always)]`.
pub(in super::super) trait DotTask {
    fn run<D: Dots>(self, set: D);
}

/// Runs a task with the best set that this processor has.
pub(in super::super) fn dispatch<W: DotTask>(task: W) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::{Avx2, AvxVnni, Vnni};
        #[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
        fn vnni<W: DotTask>(set: Vnni, task: W) {
            task.run(set);
        }
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn avx_vnni<W: DotTask>(set: AvxVnni, task: W) {
            task.run(set);
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2<W: DotTask>(set: Avx2, task: W) {
            task.run(set);
        }
        if let Some(set) = Vnni::find() {
            // SAFETY: the processor has the set, which holds the others.
            return unsafe { vnni(set, task) };
        }
        if let Some(set) = AvxVnni::find() {
            // SAFETY: the processor has the sets.
            return unsafe { avx_vnni(set, task) };
        }
        if let Some(set) = Avx2::find() {
            // SAFETY: the processor has the sets.
            return unsafe { avx2(set, task) };
        }
    }
    task.run(Arrays);
}

/// Without a fused operation products and sums are rounded each, as [`super::Portable`] does.
impl Dots for Arrays {
    type Sums = [i32; SUMS];
    const HOLDS_ROWS: bool = false;

    #[inline(always)]
    fn no_sums(self) -> [i32; SUMS] {
        [0; SUMS]
    }
    #[inline(always)]
    fn repeated(self, four: [u8; 4]) -> [u8; 64] {
        let mut line = [0; 64];
        for at in 0..64 {
            line[at] = four[at % 4];
        }
        line
    }
    #[inline(always)]
    fn put_sums(self, sums: [i32; SUMS], to: &mut [i32]) {
        to[..SUMS].copy_from_slice(&sums);
    }
    #[inline(always)]
    fn dot<const SMALL: bool>(self, mut sums: [i32; SUMS], line: [u8; 64], with: &[i8]) -> [i32; SUMS] {
        let with = &with[..64];
        for sum in 0..SUMS {
            for at in sum * 4..sum * 4 + 4 {
                sums[sum] = sums[sum].wrapping_add(i32::from(line[at]) * i32::from(with[at]));
            }
        }
        sums
    }
    #[inline(always)]
    fn raised(self, mut sums: [i32; SUMS]) -> [i32; SUMS] {
        for sum in &mut sums {
            *sum <<= 8;
        }
        sums
    }
    #[inline(always)]
    fn plus(self, mut sums: [i32; SUMS], more: &[i32; SUMS]) -> [i32; SUMS] {
        for at in 0..SUMS {
            sums[at] = sums[at].wrapping_add(more[at]);
        }
        sums
    }
    #[inline(always)]
    fn floats(self, sums: [i32; SUMS]) -> [f32; SUMS] {
        let mut floats = [0.0; SUMS];
        for at in 0..SUMS {
            floats[at] = sums[at] as f32;
        }
        floats
    }
    #[inline(always)]
    fn no_floats(self) -> [f32; SUMS] {
        [0.0; SUMS]
    }
    #[inline(always)]
    fn total(self, mut floats: [f32; SUMS]) -> f32 {
        let mut half = SUMS / 2;
        while half > 0 {
            for at in 0..half {
                floats[at] += floats[at + half];
            }
            half /= 2;
        }
        floats[0]
    }
    #[inline(always)]
    fn load(self, from: &[f32; SUMS]) -> [f32; SUMS] {
        *from
    }
    #[inline(always)]
    fn fused(self, a: [f32; SUMS], b: [f32; SUMS], mut c: [f32; SUMS]) -> [f32; SUMS] {
        for at in 0..SUMS {
            c[at] = Lanes::<f32>::number(Portable, a[at], b[at], c[at]);
        }
        c
    }
    #[inline(always)]
    fn picked(self, floats: [f32; SUMS], places: &[i32; SUMS]) -> [f32; SUMS] {
        let mut picked = [0.0; SUMS];
        for at in 0..SUMS {
            picked[at] = floats[(places[at] & 15) as usize];
        }
        picked
    }
}
