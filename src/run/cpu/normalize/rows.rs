//! Softmax and normalisation of rows that are stored one after the other.
//!
//! A row stays in the first cache from its first pass to its last. Rows that are stored one after the other are fetched
//! by the processor itself, faster than with prefetch instructions. Sums are made in the elements' own type over runs
//! of 512, 32 side by side, and then in f64: each number is one of at most 32 that are added before they are widened.

use super::super::element::{Float, map};
use super::super::elementwise::tile::Epilogue;
use super::super::product::matmul::{STRIP_BYTES, with_strip};
use super::super::reduce::{fold_run, sum_run};
use super::super::team::Team;
use super::super::vectors::{Lanes, Stores, Task, streamed};
use super::super::view::{Typed, bytes_of_mut};
use super::{abreast, short};

/// Elements of what one thread takes at a time, about.
const PART: usize = 1 << 14;

/// Elements of whole rows that are followed at once by what comes of them, about. The first cache would hold more,
/// but memory that is read for long, and then written for long, is slower than the two in quick turns.
const FOLLOWED: usize = 1 << 10;

/// Most elements of a row that is held in the first cache until it is written.
pub(crate) const BUFFER: usize = 2048;

/// Sums that are made side by side, so that they do not wait for one another.
pub(crate) const SUMS: usize = 32;

/// Elements that are added up in their own type.
pub(crate) const RUN: usize = 512;

/// Vectors of so many sums, at most: four numbers are the least that a vector has.
const VECTORS: usize = SUMS / 4;

/// Elements at the beginning of a row whose mean is taken for one near that of all.
pub(super) const SAMPLE: usize = 128;

/// Elements of the whole rows that one thread takes at a time.
pub(crate) fn part_of(row: usize) -> usize {
    (PART / row.max(1)).max(1) * row
}

/// Makes rows, some whole ones at a time, and what follows from them. `make` is given the first element of
/// some, where they go, and how they are written there.
pub(crate) fn each_part<T: Typed>(
    team: &Team<'_>,
    target: &mut [T],
    size: usize,
    epilogue: Option<&Epilogue<'_>>,
    make: impl Fn(usize, &mut [T], Stores) + Sync,
) {
    let stores = Stores::of_bytes(size_of_val(target) as u64);
    let length = part_of(size);
    let few = (FOLLOWED / size).max(if size <= FOLLOWED / 4 { short::MOST } else { 1 }) * size;
    team.each_chunk(target, length, |part, out| {
        let start = part * length;
        let Some(epilogue) = epilogue else {
            make(start, out, stores);
            return streamed();
        };
        for (number, out) in out.chunks_mut(few).enumerate() {
            let start = start + number * few;
            if stores == Stores::Streaming && size_of_val(out) <= STRIP_BYTES {
                // What follows is written around the caches: what it follows from is apart.
                with_strip::<T>(out.len(), |made, _| {
                    make(start, made, Stores::Cached);
                    epilogue.apply_to(start, bytes_of_mut(made), bytes_of_mut(out), Stores::Streaming);
                });
            } else {
                make(start, out, Stores::Cached);
                epilogue.apply(start, bytes_of_mut(out));
            }
        }
        streamed();
    });
}

/// The largest element; not a number where one is not.
#[inline(always)]
pub(crate) fn largest<T: Typed>(x: &[T]) -> T {
    fold_run(x, T::LOWEST, T::larger)
}

/// The largest element that is a number; the lowest where none is.
#[inline(always)]
fn highest<T: Typed + Float, L: Lanes<T>>(l: L, x: &[T]) -> T {
    let mut best = [l.splat(T::LOWEST); 4];
    let chunks = x.chunks_exact(4 * L::WIDTH);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..4 {
            best[i] = l.larger(l.load(&chunk[i * L::WIDTH..][..L::WIDTH]), best[i]);
        }
    }
    let vectors = rest.chunks_exact(L::WIDTH);
    let last = vectors.remainder();
    for (best, x) in best.iter_mut().zip(vectors) {
        *best = l.larger(l.load(x), *best);
    }
    if !last.is_empty() {
        let mut padded = [T::LOWEST; SUMS];
        padded[..last.len()].copy_from_slice(last);
        best[3] = l.larger(l.load(&padded), best[3]);
    }
    let mut all = [T::LOWEST; SUMS];
    l.store(l.larger(l.larger(best[0], best[1]), l.larger(best[2], best[3])), &mut all);
    fold_run(&all[..L::WIDTH], T::LOWEST, |best, x| if x > best { x } else { best })
}

/// What is done with each vector of a row. A trait, as closures are not always inlined into what is compiled for
/// an instruction set.
trait Pass<T, L: Lanes<T>, const S: usize> {
    /// Takes the vector from a position on, and adds to sums.
    fn step(&mut self, l: L, at: usize, x: L::Vector, sums: &mut [L::Vector; S]);
}

/// Sums over a row, which goes on with elements `beyond` until its vectors are whole. O(elements).
#[inline(always)]
fn totals<T: Typed + Float, L: Lanes<T>, const S: usize>(
    l: L,
    x: &[T],
    beyond: T,
    mut pass: impl Pass<T, L, S>,
) -> [f64; S] {
    let mut totals = [0.0; S];
    for (number, run) in x.chunks(RUN).enumerate() {
        let mut sums = [[l.zero(); S]; VECTORS];
        let chunks = run.chunks_exact(SUMS);
        let rest = chunks.remainder();
        for (chunk, x) in chunks.enumerate() {
            for i in 0..SUMS / L::WIDTH {
                let x = l.load(&x[i * L::WIDTH..][..L::WIDTH]);
                pass.step(l, number * RUN + chunk * SUMS + i * L::WIDTH, x, &mut sums[i]);
            }
        }
        if !rest.is_empty() {
            let mut padded = [beyond; SUMS];
            padded[..rest.len()].copy_from_slice(rest);
            for i in 0..SUMS / L::WIDTH {
                if i * L::WIDTH < rest.len() {
                    let x = l.load(&padded[i * L::WIDTH..][..L::WIDTH]);
                    pass.step(l, number * RUN + run.len() - rest.len() + i * L::WIDTH, x, &mut sums[i]);
                }
            }
        }
        for s in 0..S {
            let mut of_one = [l.zero(); VECTORS];
            for i in 0..VECTORS {
                of_one[i] = sums[i][s];
            }
            totals[s] += widened(l, &of_one);
        }
    }
    totals
}

/// The sum of vectors of sums.
#[inline(always)]
fn widened<T: Typed + Float, L: Lanes<T>>(l: L, sums: &[L::Vector; VECTORS]) -> f64 {
    let mut all = [T::ZERO; SUMS];
    for i in 0..SUMS / L::WIDTH {
        l.store(sums[i], &mut all[i * L::WIDTH..]);
    }
    // Half as many are left to be widened.
    let (low, high) = all.split_at_mut(SUMS / 2);
    low.iter_mut().zip(high).for_each(|(low, high)| *low = low.add(*high));
    sum_run(low, T::accumulate)
}

/// Makes each vector of a row from that of another, `(x - shift) * factor + summand`.
#[inline(always)]
pub(crate) fn map_row<T: Typed + Float, L: Lanes<T>>(
    l: L,
    x: &[T],
    out: &mut [T],
    [shift, factor, summand]: [T; 3],
    stores: Stores,
) {
    let (shift, factor, summand) = (l.splat(shift), l.splat(factor), l.splat(summand));
    let whole = x.len() - x.len() % L::WIDTH;
    let (wide, last) = out.split_at_mut(whole);
    for (some, out) in x.chunks_exact(L::WIDTH).zip(wide.chunks_exact_mut(L::WIDTH)) {
        let made = l.fused(l.sub(l.load(some), shift), factor, summand);
        l.write(made, out, stores);
    }
    if !last.is_empty() {
        let mut padded = [T::ZERO; SUMS];
        padded[..last.len()].copy_from_slice(&x[whole..]);
        l.store(l.fused(l.sub(l.load(&padded), shift), factor, summand), &mut padded);
        last.copy_from_slice(&padded[..last.len()]);
    }
}

/// Exponentials of numbers less one that none of them is above; where they go, if anywhere: a place for whole
/// vectors.
struct Exponentials<'a, T> {
    shift: T,
    to: Option<&'a mut [T]>,
}

impl<T: Typed + Float, L: Lanes<T>> Pass<T, L, 1> for Exponentials<'_, T> {
    #[inline(always)]
    fn step(&mut self, l: L, at: usize, x: L::Vector, sums: &mut [L::Vector; 1]) {
        let made = T::exps_below(l, l.sub(x, l.splat(self.shift)));
        sums[0] = l.add(sums[0], made);
        if let Some(to) = &mut self.to {
            l.store(made, &mut to[at..][..L::WIDTH]);
        }
    }
}

/// The same of a whole row, to one as long, and their sum.
#[inline(always)]
fn exponentials<T: Typed + Float, L: Lanes<T>>(l: L, x: &[T], shift: T, to: &mut [T]) -> f64 {
    let (wide, last) = x.split_at(x.len() - x.len() % SUMS);
    let (to, to_last) = to.split_at_mut(wide.len());
    let [sum] = totals(l, wide, T::LOWEST, Exponentials { shift, to: Some(to) });
    let mut padded = [T::ZERO; SUMS];
    let [rest] = totals(l, last, T::LOWEST, Exponentials { shift, to: Some(&mut padded) });
    to_last.copy_from_slice(&padded[..last.len()]);
    sum + rest
}

/// Exponentials of numbers less one that none of them is above, in their place, and their sum.
#[inline(always)]
pub(crate) fn exponentials_of<T: Typed + Float, L: Lanes<T>>(l: L, x: &mut [T], shift: T) -> f64 {
    let shift = l.splat(shift);
    let mut total = 0.0;
    for run in x.chunks_mut(RUN) {
        let mut sums = [l.zero(); VECTORS];
        let mut chunks = run.chunks_exact_mut(SUMS);
        for chunk in &mut chunks {
            for (x, sum) in chunk.chunks_exact_mut(L::WIDTH).zip(&mut sums) {
                exponentials_of_vector(l, x, shift, sum);
            }
        }
        let rest = chunks.into_remainder();
        if !rest.is_empty() {
            let mut padded = [T::LOWEST; SUMS];
            padded[..rest.len()].copy_from_slice(rest);
            let vectors = rest.len().div_ceil(L::WIDTH);
            for (x, sum) in padded.chunks_exact_mut(L::WIDTH).zip(&mut sums).take(vectors) {
                exponentials_of_vector(l, x, shift, sum);
            }
            rest.copy_from_slice(&padded[..rest.len()]);
        }
        total += widened(l, &sums);
    }
    total
}

#[inline(always)]
fn exponentials_of_vector<T: Typed + Float, L: Lanes<T>>(
    l: L,
    x: &mut [T],
    shift: L::Vector,
    sum: &mut L::Vector,
) {
    let made = T::exps_below(l, l.sub(l.load(x), shift));
    l.store(made, x);
    *sum = l.add(*sum, made);
}

/// Whole rows.
pub(crate) struct SoftmaxRows<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) out: &'a mut [T],
    pub(crate) size: usize,
    pub(crate) log: bool,
    pub(crate) stores: Stores,
}

impl<T: Typed + Float> Task<T> for SoftmaxRows<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, l: L) {
        if self.size > short::SHORT {
            return self.one_by_one(l);
        }
        let Self { x, out, size, log, stores } = self;
        short::softmax(l, x, out, size, log, stores);
    }
}

impl<T: Typed + Float> SoftmaxRows<'_, T> {
    #[inline(always)]
    fn one_by_one<L: Lanes<T>>(self, l: L) {
        let Self { x, out, size, log, stores } = self;
        let mut buffer = [T::ZERO; BUFFER];
        // Added to a product, it changes no bit.
        let nothing = T::narrow(-0.0);
        for (x, out) in x.chunks(size).zip(out.chunks_mut(size)) {
            let shift = highest(l, x);
            if log {
                let [sum] = totals(l, x, T::LOWEST, Exponentials { shift, to: None });
                let total = T::narrow(sum.ln());
                map_row(l, x, out, [shift, T::ONE, T::ZERO.sub(total)], stores);
            } else if stores == Stores::Streaming && size <= BUFFER {
                let buffer = &mut buffer[..size];
                let sum = exponentials(l, x, shift, buffer);
                map_row(l, buffer, out, [T::ZERO, T::narrow(1.0 / sum), nothing], stores);
            } else {
                let factor = T::narrow(1.0 / exponentials(l, x, shift, out));
                out.iter_mut().for_each(|out| *out = out.mul(factor));
            }
        }
    }
}

/// The sum of a row.
struct Sum;

impl<T: Typed + Float, L: Lanes<T>> Pass<T, L, 1> for Sum {
    #[inline(always)]
    fn step(&mut self, l: L, _: usize, x: L::Vector, sums: &mut [L::Vector; 1]) {
        sums[0] = l.add(sums[0], x);
    }
}

/// The sums of a row's distances from a number, and of their squares.
struct Distances<T> {
    from: T,
}

impl<T: Typed + Float, L: Lanes<T>> Pass<T, L, 2> for Distances<T> {
    #[inline(always)]
    fn step(&mut self, l: L, _: usize, x: L::Vector, sums: &mut [L::Vector; 2]) {
        let distance = l.sub(x, l.splat(self.from));
        sums[0] = l.add(sums[0], distance);
        sums[1] = l.fused(distance, distance, sums[1]);
    }
}

/// How far the mean of a row is from a number, and the variance: of distances from 0 where rows are not
/// centered.
#[inline(always)]
fn moments<T: Typed + Float, L: Lanes<T>>(l: L, x: &[T], near: T, center: bool) -> (f64, f64) {
    let count = x.len() as f64;
    let [sum, squares] = totals(l, x, near, Distances { from: near });
    let off = if center { sum / count } else { 0.0 };
    (off, squares / count - off * off)
}

/// Whole rows.
pub(crate) struct NormalizeRows<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) out: &'a mut [T],
    pub(crate) size: usize,
    pub(crate) epsilon: f64,
    pub(crate) center: bool,
    pub(crate) stores: Stores,
}

impl<T: Typed + Float> Task<T> for NormalizeRows<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(mut self, l: L) {
        let size = self.size;
        if size <= abreast::SHORT {
            let done = abreast::normalize(l, &mut self) * size;
            (self.x, self.out) = (&self.x[done..], &mut self.out[done..]);
        }
        self.one_by_one(l);
    }
}

impl<T: Typed + Float> NormalizeRows<'_, T> {
    #[inline(always)]
    pub(super) fn one_by_one<L: Lanes<T>>(self, l: L) {
        let Self { x, out, size, epsilon, center, stores } = self;
        for (x, out) in x.chunks(size).zip(out.chunks_mut(size)) {
            // Distances from a number near the mean, whose own mean corrects what that is off (Chan, Golub and
            // LeVeque, "Algorithms for Computing the Sample Variance", 1983): from the mean of the first ones,
            // and from that of all where this turns out to be further off than numbers are apart.
            let first = &x[..size.min(SAMPLE)];
            let mean_of =
                |sum: f64, count: usize| if center { T::narrow(sum / count as f64) } else { T::ZERO };
            let mut near = mean_of(if center { totals(l, first, T::ZERO, Sum)[0] } else { 0.0 }, first.len());
            let (mut off, mut variance) = moments(l, x, near, center);
            if off * off > variance {
                near = mean_of(totals(l, x, T::ZERO, Sum)[0], size);
                (off, variance) = moments(l, x, near, center);
            }
            // Squares that leave the range of T on either side.
            if !(1e-30..1e30).contains(&variance) {
                let (mean, scale) = normal(x, epsilon, center);
                map(x, out, |x: T| T::narrow((x.to_f64() - mean) * scale));
                continue;
            }
            let scale = 1.0 / (variance + epsilon).sqrt();
            map_row(l, x, out, [near, T::narrow(scale), T::narrow(-off * scale)], stores);
        }
    }
}

/// What is subtracted from a row's elements, and what they are multiplied with then, computed in f64.
#[inline(always)]
fn normal<T: Typed>(x: &[T], epsilon: f64, center: bool) -> (f64, f64) {
    let count = x.len() as f64;
    let mean = if center { x.iter().map(|x| x.to_f64()).sum::<f64>() / count } else { 0.0 };
    let square = |x: &T| (x.to_f64() - mean) * (x.to_f64() - mean);
    let variance = x.iter().map(square).sum::<f64>() / count;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::vectors::Portable;

    /// Rows of numbers between -8 and 8, some of them of equals, infinities and what is not a number.
    fn rows(count: usize, size: usize) -> Vec<f32> {
        let mut x: Vec<f32> =
            (0..count * size).map(|i| ((i * 7919 + size) % 2003) as f32 / 125.0 - 8.0).collect();
        for (row, x) in x.chunks_mut(size).enumerate() {
            match row % 11 {
                3 => x.fill(-2.5),
                5 => x.fill(f32::NEG_INFINITY),
                6 => x[size / 2] = f32::NAN,
                7 => x[size - 1] = f32::INFINITY,
                8 => x[0] = f32::NEG_INFINITY,
                9 => x[size / 2] = -300.0,
                _ => {}
            }
        }
        x
    }

    fn bits(x: &[f32]) -> Vec<u32> {
        // What is not a number has no sign that means anything.
        x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
    }

    fn compare<L: Lanes<f32>>(l: L) -> Vec<Vec<u32>> {
        let mut all = Vec::new();
        for size in (1..=70).chain([97, 100, 127, 128, 129, 197, 256, 302, 511, 512]) {
            for count in [1, 2, 7, 16, 45] {
                let x = rows(count, size);
                for (log, stores) in
                    [(false, Stores::Cached), (true, Stores::Cached), (false, Stores::Streaming)]
                {
                    let [mut found, mut expected] = [vec![9.0; x.len()], vec![9.0; x.len()]];
                    SoftmaxRows { x: &x, out: &mut found, size, log, stores }.run(l);
                    SoftmaxRows { x: &x, out: &mut expected, size, log, stores }.one_by_one(l);
                    assert_eq!(bits(&found), bits(&expected), "{count} {size} {log}");
                    all.push(bits(&found));
                }
            }
        }
        all
    }

    #[test]
    fn short_rows_have_the_bits_of_one_row_at_a_time() {
        compare(Portable);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        use crate::run::cpu::vectors::{Avx2, Avx512};
        let (Some(wide), Some(narrow)) = (Avx512::find(), Avx2::find()) else { return };
        assert_eq!(compare(wide), compare(narrow));
    }

    fn normalized<L: Lanes<f32>>(l: L) -> Vec<Vec<u32>> {
        let mut all = Vec::new();
        for size in (1..=70).chain([97, 127, 128, 129, 192, 300, 511, 512]) {
            for count in [1, 3, 7, 16, 45] {
                let mut x = rows(count, size);
                // Numbers whose mean is far from that of the first ones, and which are far from zero.
                if let Some(row) = x.chunks_mut(size).nth(1) {
                    row.iter_mut().enumerate().for_each(|(i, x)| *x = if i < 128 { 1e4 } else { -3e4 + *x });
                }
                for (center, stores) in
                    [(true, Stores::Cached), (false, Stores::Cached), (true, Stores::Streaming)]
                {
                    let [mut found, mut expected] = [vec![9.0; x.len()], vec![9.0; x.len()]];
                    let epsilon = 1e-5;
                    NormalizeRows { x: &x, out: &mut found, size, epsilon, center, stores }.run(l);
                    NormalizeRows { x: &x, out: &mut expected, size, epsilon, center, stores }.one_by_one(l);
                    assert_eq!(bits(&found), bits(&expected), "{count} {size} {center}");
                    all.push(bits(&found));
                }
            }
        }
        all
    }

    #[test]
    fn rows_abreast_have_the_bits_of_one_row_at_a_time() {
        let _portable = normalized(Portable);
        #[cfg(target_arch = "x86_64")]
        {
            use crate::run::cpu::vectors::{Avx2, Avx512};
            let (Some(wide), Some(narrow)) = (Avx512::find(), Avx2::find()) else { return };
            assert_eq!(normalized(wide), normalized(narrow));
        }
    }

    #[test]
    fn softmax_is_that_of_the_definition() {
        for size in [1, 3, 16, 49, 197, 600] {
            let x: Vec<f32> = (0..20 * size).map(|i| ((i * 7919) % 2003) as f32 / 250.0 - 4.0).collect();
            for log in [false, true] {
                let mut found = vec![0.0; x.len()];
                SoftmaxRows { x: &x, out: &mut found, size, log, stores: Stores::Cached }.run(Portable);
                for (x, found) in x.chunks(size).zip(found.chunks(size)) {
                    let sum: f64 = x.iter().map(|&x| f64::from(x).exp()).sum();
                    for (&x, &found) in x.iter().zip(found) {
                        let expected = if log { f64::from(x) - sum.ln() } else { f64::from(x).exp() / sum };
                        assert!(
                            (f64::from(found) - expected).abs() <= 2e-6 * expected.abs().max(1e-3),
                            "{size}"
                        );
                    }
                }
            }
        }
    }
}
