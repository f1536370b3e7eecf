//! The largest or smallest elements along an axis. Of few among many, only those are compared by their positions that are
//! better than as many before them: most are passed over some at a time.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::ir::TopK;

use super::super::vectors::{Compiled, compiled_of_floats};
use super::super::view::{Typed, View, ViewMut, take, with_element};
use super::super::walk::sizes;

/// `Op::TopK`. Not-a-number counts as largest, as in PyTorch.
pub(crate) fn topk(
    topk: &TopK,
    x: &View<'_>,
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    with_element!(x.dtype, T => topk_as::<T>(topk, x, outputs, workspace),
        half => Err(Error::Internal("halves are widened before".to_owned())))
}

fn topk_as<T: Typed>(
    topk: &TopK,
    x: &View<'_>,
    outputs: &mut [ViewMut<'_>],
    mut workspace: &mut [u8],
) -> Result<()> {
    let [values, positions] = outputs else { return Err(Error::Internal("results of topk".to_owned())) };
    let dims = sizes(x.dims)?;
    let axis = topk.axis as usize;
    let (size, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let k = usize::try_from(topk.k).unwrap_or(0).min(size);
    let order = take::<i64>(&mut workspace, size)?;
    let (source, values, positions) = (x.slice::<T>()?, values.slice::<T>()?, positions.slice::<i64>()?);
    if k == 0 || source.is_empty() {
        return Ok(());
    }
    let few = (k.saturating_mul(4)).max(FEWEST);
    for (block, start) in (0..source.len()).step_by(size * inner).enumerate() {
        for column in 0..inner {
            let value = |position: i64| source[start + position as usize * inner + column];
            let compare = |&a: &i64, &b: &i64| {
                let natural = ascending(value(a), value(b));
                let natural = if topk.largest { natural.reverse() } else { natural };
                natural.then(a.cmp(&b))
            };
            if k <= SORTED && inner == 1 {
                let run = &source[start..start + size];
                let to = (&mut values[block * k..][..k], &mut positions[block * k..][..k]);
                compiled_of_floats::<T>(Sorted { run, largest: topk.largest, values: to.0, positions: to.1 });
                continue;
            }
            let found = if few > size || inner > 1 {
                for (position, slot) in order.iter_mut().enumerate() {
                    *slot = position as i64;
                }
                size
            } else {
                let mut count = few;
                (0..few).for_each(|position| order[position] = position as i64);
                let run = &source[start..start + size];
                let mut at = few;
                while at < size {
                    // What comes later is kept where it is better, not where it is equal.
                    order[..count].select_nth_unstable_by(k - 1, compare);
                    count = k;
                    let least = value(order[k - 1]);
                    let candidates = &mut order[..few];
                    let largest = topk.largest;
                    compiled_of_floats::<T>(Better {
                        run,
                        least,
                        largest,
                        candidates,
                        count: &mut count,
                        at: &mut at,
                    });
                }
                count
            };
            let order = &mut order[..found];
            if k < order.len() {
                order.select_nth_unstable_by(k - 1, compare);
            }
            order[..k].sort_unstable_by(compare);
            for (rank, &position) in order[..k].iter().enumerate() {
                let at = (block * k + rank) * inner + column;
                (values[at], positions[at]) = (value(position), position);
            }
        }
    }
    Ok(())
}

/// Candidates that are kept before the best of them are sought, at least.
const FEWEST: usize = 64;
/// Elements that are passed over together where none is better.
const TOGETHER: usize = 16;

/// Most elements that are kept in order while all others are passed over: each that is better than the last of them is put
/// where it belongs.
const SORTED: usize = 16;

/// The best elements of a run, as many as there is place for, and where they are.
struct Sorted<'a, T> {
    run: &'a [T],
    largest: bool,
    values: &'a mut [T],
    positions: &'a mut [i64],
}

impl<T: Typed> Compiled for Sorted<'_, T> {
    #[inline(always)]
    fn run(self) {
        // As `ascending` has it: not-a-number is above all others.
        if self.largest {
            self.keep(|x, than| x > than || x.is_nan() && !than.is_nan(), |x, least| x > least || x.is_nan());
        } else {
            self.keep(
                |x, than| x < than || than.is_nan() && !x.is_nan(),
                |x, least| x < least || least.is_nan(),
            );
        }
    }
}

impl<T: Typed> Sorted<'_, T> {
    /// `may_be` of all that are better, and of few others.
    #[inline(always)]
    fn keep(self, is_better: impl Fn(T, T) -> bool, may_be: impl Fn(T, T) -> bool) {
        let Self { run, values, positions, .. } = self;
        let k = values.len();
        // Puts an element before those that it is better than, of so many that are in order.
        let mut put = |x: T, position: usize, count: usize| {
            let mut at = count.min(k - 1);
            while at > 0 && is_better(x, values[at - 1]) {
                (values[at], positions[at]) = (values[at - 1], positions[at - 1]);
                at -= 1;
            }
            (values[at], positions[at]) = (x, position as i64);
            values[k - 1]
        };
        let mut least = T::ZERO;
        for (count, &x) in run[..k].iter().enumerate() {
            least = put(x, count, count);
        }
        let (chunks, rest) = run[k..].as_chunks::<TOGETHER>();
        for (number, chunk) in chunks.iter().enumerate() {
            if !chunk.iter().fold(false, |any, &x| any | may_be(x, least)) {
                continue;
            }
            for (within, &x) in chunk.iter().enumerate() {
                if is_better(x, least) {
                    least = put(x, k + number * TOGETHER + within, k);
                }
            }
        }
        for (within, &x) in rest.iter().enumerate() {
            if is_better(x, least) {
                least = put(x, run.len() - rest.len() + within, k);
            }
        }
    }
}

/// Adds the positions of elements that are better than `least` to the `count` candidates, from `at` on, until there are as many
/// as have room.
struct Better<'a, T> {
    run: &'a [T],
    least: T,
    largest: bool,
    candidates: &'a mut [i64],
    count: &'a mut usize,
    at: &'a mut usize,
}

impl<T: Typed> Compiled for Better<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { run, least, largest, candidates, count, at } = self;
        // As `ascending` has it: not-a-number is above all others.
        match (largest, least.is_nan()) {
            (true, true) => *at = run.len(),
            (true, false) => collect(run, candidates, count, at, |x| x > least || x.is_nan()),
            (false, true) => collect(run, candidates, count, at, |x| !x.is_nan()),
            (false, false) => collect(run, candidates, count, at, |x| x < least),
        }
    }
}

#[inline(always)]
fn collect<T: Typed>(
    run: &[T],
    candidates: &mut [i64],
    count: &mut usize,
    at: &mut usize,
    is_better: impl Fn(T) -> bool,
) {
    while *at < run.len() {
        let some = &run[*at..run.len().min(*at + TOGETHER)];
        let any = match <&[T; TOGETHER]>::try_from(some) {
            Ok(some) => some.iter().fold(false, |any, &x| any | is_better(x)),
            Err(_) => true,
        };
        if any {
            for &x in some {
                if is_better(x) {
                    if *count == candidates.len() {
                        return;
                    }
                    candidates[*count] = *at as i64;
                    *count += 1;
                }
                *at += 1;
            }
        } else {
            *at += TOGETHER;
        }
    }
}

fn ascending<T: Typed>(a: T, b: T) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::super::super::view::{bytes_of, bytes_of_mut};
    use super::*;
    use crate::ir::DType;

    #[test]
    fn elements_are_those_of_a_sort() {
        let cases: [(&[i64], u32, i64); 11] = [
            (&[3, 2001], 1, 16),
            (&[3, 8], 1, 8),
            (&[4, 77], 1, 17),
            (&[3, 2000], 1, 8),
            (&[2, 5000], 1, 1),
            (&[1, 3001], 1, 500),
            (&[2, 300], 1, 299),
            (&[2, 70], 1, 70),
            (&[2, 900, 3], 1, 5),
            (&[257, 4], 0, 3),
            (&[5, 1024], 1, 64),
        ];
        for ((dims, axis, k), largest) in cases.into_iter().flat_map(|case| [(case, true), (case, false)]) {
            for nan in [0, 700, 3] {
                let size = dims[axis as usize] as usize;
                let inner = dims[axis as usize + 1..].iter().product::<i64>() as usize;
                let count = dims.iter().product::<i64>() as usize;
                // Many are equal, and they grow so that most are candidates once.
                let number = |i: usize| ((i * 7919 % 1009) / 3 + i / 64) as f32;
                let of = |i: usize| if nan > 0 && i % nan == 1 { f32::NAN } else { number(i) };
                let x: Vec<f32> = (0..count).map(of).collect();
                let mut to = dims.to_vec();
                to[axis as usize] = k;
                let results = to.iter().product::<i64>() as usize;
                let (mut values, mut positions) = (vec![0.0f32; results], vec![0i64; results]);
                let mut workspace = vec![0u64; size + 16];
                let workspace = bytes_of_mut(&mut workspace);
                let skipped = workspace.as_ptr().align_offset(64);
                let view = View::new(DType::F32, dims, bytes_of(&x)).unwrap();
                let outputs = &mut [
                    ViewMut::new(DType::F32, &to, bytes_of_mut(&mut values)).unwrap(),
                    ViewMut::new(DType::I64, &to, bytes_of_mut(&mut positions)).unwrap(),
                ];
                topk(&TopK { axis, k, largest }, &view, outputs, &mut workspace[skipped..]).unwrap();
                for column in 0..count / size {
                    let (block, within) = (column / inner, column % inner);
                    let value = |at: usize| x[(block * size + at) * inner + within];
                    let mut sorted: Vec<usize> = (0..size).collect();
                    sorted.sort_by(|&a, &b| {
                        let natural = ascending(value(a), value(b));
                        if largest { natural.reverse() } else { natural }
                    });
                    for (rank, &at) in sorted[..k as usize].iter().enumerate() {
                        let found = (block * k as usize + rank) * inner + within;
                        assert_eq!(positions[found], at as i64, "{dims:?} {k} {largest} {nan}");
                        assert_eq!(values[found].to_bits(), value(at).to_bits());
                    }
                }
            }
        }
    }
}
