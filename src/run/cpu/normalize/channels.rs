//! Normalisation of channels, as of a batch: rows whose elements are among those of others; and its gradients.
//! One pass over the elements finds two sums of each channel, one makes what follows from them.

use crate::error::{Error, Result};
use crate::ir::Normalization;
use crate::kernel::workspace::{CHANNEL, NORMALIZE_PARTS};

use super::super::element::Float;
use super::super::team::Team;
use super::super::vectors::{Lanes, Stores, Task, Vectorised};
use super::super::view::{Typed, View, ViewMut, take};
use super::rows::{BUFFER, each_part, map_row};

/// Elements of the whole channels that one thread takes at a time, about.
const PART: usize = 1 << 14;

/// Rows of channels whose terms are added to the sums at once.
const ABREAST: usize = 4;

/// Sums of a run that are made side by side.
const SUMS: usize = 16;

/// A tensor as `outer` times `count` channels of `inner` elements.
#[derive(Clone, Copy)]
pub(crate) struct Channels {
    outer: usize,
    count: usize,
    inner: usize,
}

impl Channels {
    /// None where axes that go lie between axes that stay.
    pub(crate) fn new(dims: &[usize], axes: &[u32]) -> Option<Self> {
        let stays = |&axis: &usize| !axes.contains(&(axis as u32)) && dims[axis] != 1;
        let first = (0..dims.len()).find(stays).unwrap_or(0);
        let end = (0..dims.len()).rfind(stays).map_or(0, |last| last + 1);
        let between = (first..end).any(|axis| dims[axis] != 1 && !stays(&axis));
        let product = |dims: &[usize]| dims.iter().product();
        (!between).then(|| Self {
            outer: product(&dims[..first]),
            count: product(&dims[first..end.max(first)]),
            inner: product(&dims[end.max(first)..]),
        })
    }

    /// Elements of a channel.
    fn each(self) -> usize {
        self.outer * self.inner
    }

    /// Elements that are in a run of the same channels.
    fn run(self) -> usize {
        if self.inner == 1 { self.count } else { self.inner }
    }

    /// Where a channel's first element is.
    fn first(self, channel: usize) -> usize {
        channel * self.inner
    }

    /// By channel, two sums of the terms that `term` makes of the channel's `base` and of the elements of both
    /// sources.
    fn sums<T: Typed + Float + Vectorised>(
        self,
        team: &Team<'_>,
        sources: [&[T]; 2],
        base: &[f64],
        (slots, sums): (&mut [f64], &mut [f64]),
        term: impl Fn(f64, T, T) -> [f64; 2] + Copy + Sync,
    ) {
        let width = 2 * self.count;
        if self.inner > 1 {
            let together = (PART / self.each()).max(1);
            team.each_chunk(sums, 2 * together, |part, sums| {
                T::dispatch(Planes { shape: self, sources, base, first: part * together, sums, term });
            });
            return;
        }
        let tall = self.outer.div_ceil(NORMALIZE_PARTS as usize).next_multiple_of(ABREAST);
        let slots = &mut slots[..self.outer.div_ceil(tall) * width];
        team.each_chunk(slots, width, |part, slot| {
            let from = part * tall * self.count;
            let length = (tall * self.count).min(sources[0].len() - from);
            let sources = sources.map(|all| &all[from..][..length]);
            T::dispatch(Columns { sources, base, slot, term });
        });
        for (channel, sums) in sums.chunks_exact_mut(2).enumerate() {
            for (which, sum) in sums.iter_mut().enumerate() {
                *sum = slots.chunks_exact(width).map(|slot| slot[which * self.count + channel]).sum();
            }
        }
    }

    /// The mean of each channel, and what its deviations are multiplied with, both in place of what `base`
    /// and `r` hold; the variances go to `each`.
    fn moments<T: Typed + Float + Vectorised>(
        self,
        team: &Team<'_>,
        op: Normalization<'_>,
        x: &[T],
        numbers: &mut Numbers<'_, T>,
        mut each: impl FnMut(usize, f64, f64),
    ) {
        let Numbers { slots, sums, means, r, .. } = numbers;
        // Distances from an element of the channel: their mean is at most so many deviations from zero as the
        // root of their number, and is subtracted from the squares without harm.
        for (channel, base) in means.iter_mut().enumerate() {
            *base = if op.center { x[self.first(channel)].to_f64() } else { 0.0 };
        }
        self.sums(team, [x, x], means, (slots, sums), distances);
        let count = self.each() as f64;
        for (channel, found) in sums.chunks_exact(2).enumerate() {
            let distance = if op.center { found[0] / count } else { 0.0 };
            let variance = found[1] / count - distance * distance;
            let variance = if variance < 0.0 { 0.0 } else { variance };
            means[channel] += distance;
            r[channel] = 1.0 / (variance + op.epsilon).sqrt();
            each(channel, means[channel], variance);
        }
    }
}

/// What is kept of the channels.
struct Numbers<'a, T> {
    /// Sums of parts.
    slots: &'a mut [f64],
    /// Two for each channel.
    sums: &'a mut [f64],
    means: &'a mut [f64],
    /// What deviations are multiplied with.
    r: &'a mut [f64],
    /// What elements are computed with.
    own: [&'a mut [T]; 4],
}

impl<'a, T: Typed> Numbers<'a, T> {
    fn new(channels: usize, mut workspace: &'a mut [u8]) -> Result<Self> {
        let all = take::<f64>(&mut workspace, CHANNEL[0] as usize * channels)?;
        let (slots, all) = all.split_at_mut(2 * NORMALIZE_PARTS as usize * channels);
        let (sums, all) = all.split_at_mut(2 * channels);
        let (means, r) = all.split_at_mut(channels);
        let mut own = take::<T>(&mut workspace, CHANNEL[1] as usize * channels)?.chunks_exact_mut(channels);
        let own = std::array::from_fn(|_| own.next().unwrap_or_default());
        Ok(Self { slots, sums, means, r, own })
    }
}

/// `Op::Normalize` of channels.
pub(crate) fn normalize<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    op: Normalization<'_>,
    shape: Channels,
    x: &View<'_>,
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    let misfit = || Error::Internal("results of normalize".to_owned());
    let source = x.slice::<T>()?;
    let (out, rest) = outputs.split_first_mut().ok_or_else(misfit)?;
    let mut results = match rest {
        [means, variances] => [means.slice::<T>()?, variances.slice::<T>()?],
        _ => [&mut [][..], &mut []],
    };
    if source.is_empty() {
        results.iter_mut().for_each(|numbers| numbers.fill(T::narrow(f64::NAN)));
        return Ok(());
    }
    let mut numbers = Numbers::<T>::new(shape.count, workspace)?;
    shape.moments(team, op, source, &mut numbers, |channel, mean, variance| {
        if op.moments {
            (results[0][channel], results[1][channel]) = (T::narrow(mean), T::narrow(variance));
        }
    });
    let Numbers { means, r, own: [mean, scale, ..], .. } = numbers;
    for (to, from) in [(&mut *mean, means), (&mut *scale, r)] {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = T::narrow(*from));
    }
    let numbers = [&*mean, scale, mean, scale];
    let epilogue = out.take_epilogue();
    each_part(team, out.slice::<T>()?, shape.run(), epilogue, |start, out, stores| {
        let sources = [source; 2];
        T::dispatch(Elements { shape, sources, numbers, start, out, stores, made: normal });
    });
    Ok(())
}

/// `Op::NormalizeGradient` of channels; a factor, where there is one, is of each channel. `known`: means and
/// variances.
pub(crate) fn gradient<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    op: Normalization<'_>,
    shape: Channels,
    (sources, factor, known): ([&[T]; 2], Option<&[T]>, Option<[&[T]; 2]>),
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    let misfit = || Error::Internal("results of normalize_gradient".to_owned());
    let (dx, rest) = outputs.split_first_mut().ok_or_else(misfit)?;
    let mut numbers = Numbers::<T>::new(shape.count, workspace)?;
    match known {
        Some([means, variances]) => {
            for channel in 0..shape.count {
                numbers.means[channel] = means[channel].to_f64();
                numbers.r[channel] = 1.0 / (variances[channel].to_f64() + op.epsilon).sqrt();
            }
        }
        None => shape.moments(team, op, sources[0], &mut numbers, |_, _, _| ()),
    }
    let Numbers { slots, sums, means, r, own: [mean, level, along, scale] } = numbers;
    shape.sums(team, sources, means, (slots, sums), weighted);
    let count = shape.each() as f64;
    for (channel, found) in sums.chunks_exact(2).enumerate() {
        let r = r[channel];
        mean[channel] = T::narrow(means[channel]);
        level[channel] = T::narrow(if op.center { found[0] / count } else { 0.0 });
        along[channel] = T::narrow(r * r * found[1] / count);
        scale[channel] = T::narrow(r * factor.map_or(1.0, |factor| factor[channel].to_f64()));
    }
    if let [of_factor, of_shift] = rest {
        let own = of_factor.slice::<T>()?.iter_mut().zip(of_shift.slice::<T>()?).zip(sums.chunks_exact(2));
        for (((factor, shift), found), r) in own.zip(r) {
            (*factor, *shift) = (T::narrow(found[1] * *r), T::narrow(found[0]));
        }
    }
    let numbers = [&*mean, level, along, scale];
    let epilogue = dx.take_epilogue();
    each_part(team, dx.slice::<T>()?, shape.run(), epilogue, |start, out, stores| {
        T::dispatch(Elements { shape, sources, numbers, start, out, stores, made: slope });
    });
    Ok(())
}

/// A distance, and its square.
#[inline(always)]
fn distances<T: Typed>(base: f64, x: T, _: T) -> [f64; 2] {
    let distance = x.to_f64() - base;
    [distance, distance * distance]
}

/// A gradient, and that times the distance of what it is of.
#[inline(always)]
fn weighted<T: Typed>(mean: f64, x: T, dy: T) -> [f64; 2] {
    let dy = dy.to_f64();
    [dy, dy * (x.to_f64() - mean)]
}

#[inline(always)]
fn normal<T: Typed>([mean, scale, ..]: [T; 4], x: T, _: T) -> T {
    x.sub(mean).mul(scale)
}

#[inline(always)]
fn slope<T: Typed>([mean, level, along, scale]: [T; 4], x: T, dy: T) -> T {
    dy.sub(level).sub(x.sub(mean).mul(along)).mul(scale)
}

/// Sums of channels that are beside one another, over some rows.
struct Columns<'a, T, F> {
    sources: [&'a [T]; 2],
    base: &'a [f64],
    slot: &'a mut [f64],
    term: F,
}

impl<T: Typed + Float, F: Fn(f64, T, T) -> [f64; 2]> Task<T> for Columns<'_, T, F> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let Self { sources, base, slot, term } = self;
        let count = base.len();
        slot.fill(0.0);
        let (first, second) = slot.split_at_mut(count);
        let (first, second) = (&mut first[..count], &mut second[..count]);
        let [x, dy] = sources.map(|all| all.chunks_exact(ABREAST * count));
        let rest = [x.remainder(), dy.remainder()].map(|rest| rest.chunks_exact(count));
        for (x, dy) in x.zip(dy) {
            let [x0, x1, x2, x3] = rows(x, count);
            let [g0, g1, g2, g3] = rows(dy, count);
            for i in 0..count {
                let base = base[i];
                let a = term(base, x0[i], g0[i]);
                let b = term(base, x1[i], g1[i]);
                let c = term(base, x2[i], g2[i]);
                let d = term(base, x3[i], g3[i]);
                first[i] += (a[0] + b[0]) + (c[0] + d[0]);
                second[i] += (a[1] + b[1]) + (c[1] + d[1]);
            }
        }
        let [x, dy] = rest;
        for (x, dy) in x.zip(dy) {
            for i in 0..count {
                let found = term(base[i], x[i], dy[i]);
                first[i] += found[0];
                second[i] += found[1];
            }
        }
    }
}

/// [`ABREAST`] rows.
#[inline(always)]
fn rows<T>(all: &[T], count: usize) -> [&[T]; ABREAST] {
    std::array::from_fn(|row| &all[row * count..][..count])
}

/// Sums of channels from `first` on whose elements are in runs.
struct Planes<'a, T, F> {
    shape: Channels,
    sources: [&'a [T]; 2],
    base: &'a [f64],
    first: usize,
    sums: &'a mut [f64],
    term: F,
}

impl<T: Typed + Float, F: Fn(f64, T, T) -> [f64; 2]> Task<T> for Planes<'_, T, F> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let Self { shape, sources, base, first, sums, term } = self;
        for (channel, sums) in (first..).zip(sums.chunks_exact_mut(2)) {
            let base = base[channel];
            let mut parts = [[0.0; SUMS]; 2];
            let mut add = |i: usize, x: T, dy: T| {
                let found = term(base, x, dy);
                parts[0][i] += found[0];
                parts[1][i] += found[1];
            };
            for image in 0..shape.outer {
                let start = (image * shape.count + channel) * shape.inner;
                let [x, dy] = sources.map(|all| all[start..][..shape.inner].chunks_exact(SUMS));
                let rest = x.remainder().iter().zip(dy.remainder());
                for (x, dy) in x.zip(dy) {
                    for i in 0..SUMS {
                        add(i, x[i], dy[i]);
                    }
                }
                rest.enumerate().for_each(|(i, (&x, &dy))| add(i, x, dy));
            }
            (sums[0], sums[1]) = (parts[0].iter().sum(), parts[1].iter().sum());
        }
    }
}

/// The elements from `start` on, from numbers of their channels and elements of both sources.
struct Elements<'a, T, F> {
    shape: Channels,
    sources: [&'a [T]; 2],
    numbers: [&'a [T]; 4],
    start: usize,
    out: &'a mut [T],
    stores: Stores,
    made: F,
}

impl<T: Typed + Float, F: Fn([T; 4], T, T) -> T> Task<T> for Elements<'_, T, F> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let piece = if self.shape.inner > 1 { BUFFER } else { BUFFER / self.shape.count * self.shape.count };
        if self.stores == Stores::Cached || piece == 0 {
            make(self.shape, self.sources, self.numbers, self.start, self.out, self.made);
            return;
        }
        let mut buffer = [T::ZERO; BUFFER];
        for (number, out) in self.out.chunks_mut(piece).enumerate() {
            let (start, buffer) = (self.start + number * piece, &mut buffer[..out.len()]);
            make(self.shape, self.sources, self.numbers, start, buffer, &self.made);
            map_row(lanes, buffer, out, [T::ZERO, T::ONE, T::narrow(-0.0)], self.stores);
        }
    }
}

#[inline(always)]
fn make<T: Typed + Float>(
    shape: Channels,
    sources: [&[T]; 2],
    numbers: [&[T]; 4],
    start: usize,
    out: &mut [T],
    made: impl Fn([T; 4], T, T) -> T,
) {
    let [x, dy] = sources.map(|all| &all[start..][..out.len()]);
    if shape.inner == 1 {
        let [a, b, c, d] = numbers.map(|numbers| &numbers[..shape.count]);
        let rows = x.chunks_exact(shape.count).zip(dy.chunks_exact(shape.count));
        for (out, (x, dy)) in out.chunks_exact_mut(shape.count).zip(rows) {
            for i in 0..shape.count {
                out[i] = made([a[i], b[i], c[i], d[i]], x[i], dy[i]);
            }
        }
        return;
    }
    let mut at = 0;
    while at < out.len() {
        let place = start + at;
        let end = out.len().min(at + shape.inner - place % shape.inner);
        let own = numbers.map(|numbers| numbers[place / shape.inner % shape.count]);
        let each = out[at..end].iter_mut().zip(&x[at..end]).zip(&dy[at..end]);
        each.for_each(|((out, &x), &dy)| *out = made(own, x, dy));
        at = end;
    }
}
