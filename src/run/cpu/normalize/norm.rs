//! Softmax, normalisation over axes, and local response normalisation. Of rows that are stored one after the other:
//! `rows`.

use crate::error::{Error, Result};
use crate::ir::{LocalResponse, Normalization, Softmax};

use super::super::element::Float;
use super::super::reduce::{Parts, sum_space};
use super::super::team::Team;
use super::super::vectors::Vectorised;
use super::super::view::{Typed, View, ViewMut, with_float};
use super::super::walk::{Space, sizes, strides};
use super::channels::{self, Channels};
use super::columns;
use super::rows::{NormalizeRows, SoftmaxRows, each_part};

/// `Op::Softmax`.
pub(crate) fn softmax(team: &Team<'_>, op: Softmax, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    with_float!(x.dtype, "softmax", T => softmax_as::<T>(team, op, x, out))
}

fn softmax_as<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    Softmax { axis, log }: Softmax,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dims = sizes(x.dims)?;
    let size = dims[axis as usize];
    let inner: usize = dims[axis as usize + 1..].iter().product();
    let epilogue = out.take_epilogue();
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    if source.is_empty() {
        return Ok(());
    }
    if inner == 1 {
        each_part(team, target, size, epilogue, |start, out, stores| {
            let x = &source[start..][..out.len()];
            T::dispatch(SoftmaxRows { x, out, size, log, stores });
        });
        return Ok(());
    }
    columns::softmax(team, source, (size, inner), log, target, epilogue);
    Ok(())
}

/// `Op::Normalize`.
pub(crate) fn normalize(
    team: &Team<'_>,
    op: Normalization<'_>,
    x: &View<'_>,
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    with_float!(x.dtype, "normalize", T => normalize_as::<T>(team, op, x, outputs, workspace))
}

fn normalize_as<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    op: Normalization<'_>,
    x: &View<'_>,
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    let Normalization { axes, epsilon, center, moments } = op;
    let dims = sizes(x.dims)?;
    let parts = Parts::new(&dims, axes)?;
    let count = parts.reduced.len();
    if let Some(shape) = Channels::new(&dims, axes).filter(|_| moments || !parts.are_rows()) {
        return channels::normalize::<T>(team, op, shape, x, outputs, workspace);
    }
    let misfit = || Error::Internal("results of normalize".to_owned());
    let (out, rest) = outputs.split_first_mut().ok_or_else(misfit)?;
    let mut results = match rest {
        [means, variances] => [means.slice::<T>()?, variances.slice::<T>()?],
        _ => [&mut [][..], &mut []],
    };
    let epilogue = if parts.are_rows() { out.take_epilogue() } else { None };
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    if source.is_empty() {
        results.iter_mut().for_each(|numbers| numbers.fill(T::narrow(f64::NAN)));
        return Ok(());
    }
    if parts.are_rows() {
        each_part(team, target, count, epilogue, |start, out, stores| {
            let x = &source[start..][..out.len()];
            T::dispatch(NormalizeRows { x, out, size: count, epsilon, center, stores });
        });
        return Ok(());
    }
    parts.kept.each([0, 0], |[from, row]| {
        let mean = match center {
            true => sum_space(source, from, &parts.reduced, T::accumulate) / count as f64,
            false => 0.0,
        };
        let squares = sum_space(source, from, &parts.reduced, |sum, x| {
            let distance = x.to_f64() - mean;
            sum + distance * distance
        });
        let scale = 1.0 / (squares / count as f64 + epsilon).sqrt();
        if moments {
            let row = row as usize;
            (results[0][row], results[1][row]) = (T::narrow(mean), T::narrow(squares / count as f64));
        }
        apply(source, target, from, &parts.reduced, |x| T::narrow((x.to_f64() - mean) * scale));
    });
    Ok(())
}

#[inline(always)]
fn apply<T: Typed>(source: &[T], target: &mut [T], start: isize, space: &Space<1>, f: impl Fn(T) -> T) {
    let (outer, inner, [step]) = space.split_inner();
    outer.each([start], |[offset]| {
        if step == 1 {
            let run = offset as usize..offset as usize + inner;
            for (out, &x) in target[run.clone()].iter_mut().zip(&source[run]) {
                *out = f(x);
            }
        } else {
            for i in 0..inner as isize {
                let at = (offset + i * step) as usize;
                target[at] = f(source[at]);
            }
        }
    });
}

/// `Op::LocalResponseNorm`: the window of channel `c` is `c - (size-1)/2 ..= c + size/2`
/// (rounded down and up as ONNX does).
pub(crate) fn local_response_norm(
    response: LocalResponse,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_float!(x.dtype, "local_response_norm", T => response_as::<T>(response, x, out))
}

fn response_as<T: Typed + Float>(response: LocalResponse, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let dims = sizes(x.dims)?;
    let (channels, walk) = (dims[1], strides(&dims)?);
    let inner: usize = dims[2..].iter().product();
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    if source.is_empty() {
        return Ok(());
    }
    let before = usize::try_from((response.size - 1) / 2).unwrap_or(0);
    let after = usize::try_from(response.size - 1 - (response.size - 1) / 2).unwrap_or(0);
    let factor = response.alpha / response.size as f64;
    for image in 0..dims[0] {
        let start = image * walk[0] as usize;
        for channel in 0..channels {
            let window = channel.saturating_sub(before)..channel.saturating_add(after).min(channels - 1) + 1;
            for i in 0..inner {
                let square = |c: usize| {
                    let x = source[start + c * inner + i].to_f64();
                    x * x
                };
                let squares: f64 = window.clone().map(square).sum();
                let at = start + channel * inner + i;
                let scale = (response.bias + factor * squares).powf(response.beta);
                target[at] = T::narrow(source[at].to_f64() / scale);
            }
        }
    }
    Ok(())
}
