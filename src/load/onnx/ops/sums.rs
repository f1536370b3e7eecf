//! Convolutions of bytes as products of bytes: each window's elements as a column.

use super::super::node::At;
use super::product::multiply_bytes;
use super::quantized::{Along, Integers, spread};
use super::window::conv::Windows;
use crate::error::Result;
use crate::ir::{Op, Pad, PadMode, Real, Shape, Size, Slice, ValueId};

/// Windows are unfolded where what they show is at most so many times what there is.
const MOST: i64 = 16;

/// The sums of a convolution of bytes, channels first: integers of 32 bits. `zero` is the images' zero point as a number,
/// where it is known. None where the convolution is in groups, of other integers, or not to be unfolded.
pub(super) fn of_bytes(
    at: &mut At<'_>,
    images: Integers,
    weights: Integers,
    zero: Option<i64>,
) -> Result<Option<ValueId>> {
    let (x, filters) = (at.type_of(images.data), at.type_of(weights.data));
    let windows = Windows::of(at, images.data, weights.data)?;
    if !x.dtype.is_byte() || !filters.dtype.is_byte() || windows.groups != 1 {
        return Ok(None);
    }
    let Some(columns) = columns(at, images.data, &windows, zero)? else { return Ok(None) };
    let Some(terms) = Shape::new(filters.shape.sizes()[1..].iter().cloned()).elements() else {
        return Ok(None);
    };
    let sizes = [filters.shape[0].clone(), terms];
    let matrix = at.reshape(weights.data, sizes.clone())?;
    let (rows, all) = (Shape::new(sizes), Shape::new([]));
    let of_rows = weights.zero.map(|zero| spread(at, zero, &rows, Along::Axis(0))).transpose()?;
    let of_all = images.zero.map(|zero| spread(at, zero, &all, Along::Axis(0))).transpose()?;
    let sums = multiply_bytes(at, [matrix, columns.value], [of_rows, of_all])?;
    let sizes = [x.shape[0].clone(), filters.shape[0].clone()];
    Ok(Some(at.reshape(sums, sizes.into_iter().chain(columns.positions))?))
}

/// By image: a column for each position of a window.
struct Columns {
    value: ValueId,
    /// By axis.
    positions: Vec<Size>,
}

fn columns(at: &mut At<'_>, x: ValueId, windows: &Windows, zero: Option<i64>) -> Result<Option<Columns>> {
    let shape = at.type_of(x).shape;
    let (batch, channels, spatial) = (shape[0].clone(), shape[1].clone(), &shape.sizes()[2..]);
    if windows.are_elements() {
        let Some(count) = Shape::new(spatial.iter().cloned()).elements() else { return Ok(None) };
        let value = at.reshape(x, [batch, channels, count])?;
        return Ok(Some(Columns { value, positions: spatial.to_vec() }));
    }
    let known: Option<Vec<i64>> = spatial.iter().map(Size::known).collect();
    let Some(positions) = known.and_then(|sizes| windows.positions(&sizes)) else { return Ok(None) };
    let places: i64 = windows.kernel.iter().product();
    let steps: i64 = windows.window.strides.iter().product();
    if places > MOST.saturating_mul(steps) {
        return Ok(None);
    }
    let x = match (windows.has_pads(), zero) {
        (false, _) => x,
        (true, Some(zero)) => at.apply(Op::Pad(Box::new(windows.pad(zero))), &[x])?,
        (true, None) => return Ok(None),
    };
    let count: i64 = positions.iter().product();
    let sizes = |middle: i64| [batch.clone(), channels.clone(), Size::Known(middle), Size::Known(count)];
    let mut shown = Vec::new();
    for place in windows.places() {
        let starts = [0, 0].into_iter().chain(place).map(Size::Known).collect();
        let sized = positions.iter().map(|&size| Size::Known(size));
        let slice = Slice {
            starts,
            sizes: [batch.clone(), channels.clone()].into_iter().chain(sized).collect(),
            steps: [1, 1].into_iter().chain(windows.window.strides.iter().copied()).collect(),
        };
        let elements = at.apply(Op::Slice(Box::new(slice)), &[x])?;
        shown.push(at.reshape(elements, sizes(1))?);
    }
    let all = at.apply(Op::Concat { axis: 2 }, &shown)?;
    let Some(terms) = channels.scale(places) else { return Ok(None) };
    let value = at.reshape(all, [batch, terms, Size::Known(count)])?;
    Ok(Some(Columns { value, positions: positions.into_iter().map(Size::Known).collect() }))
}

impl Windows {
    fn has_pads(&self) -> bool {
        self.window.pads_before.iter().chain(&self.window.pads_after).any(|&pad| pad != 0)
    }

    /// Each is one element, and has a result.
    fn are_elements(&self) -> bool {
        let of_ones = |sizes: &[i64]| sizes.iter().all(|&size| size == 1);
        !self.has_pads() && of_ones(&self.window.strides) && of_ones(&self.kernel)
    }

    /// Their padding, by a number.
    fn pad(&self, by: i64) -> Pad {
        let around = |pads: &[i64]| [0, 0].into_iter().chain(pads.iter().copied()).collect();
        Pad {
            before: around(&self.window.pads_before),
            after: around(&self.window.pads_after),
            mode: PadMode::Constant,
            value: Real(by as f64),
        }
    }

    /// Windows along each axis. None where there is none, or too many.
    fn positions(&self, sizes: &[i64]) -> Option<Vec<i64>> {
        let along = |axis: usize| {
            let reach = (self.kernel[axis] - 1).checked_mul(self.window.dilations[axis])?;
            let all = sizes[axis].checked_add(self.window.pads_before[axis])?;
            let steps = all.checked_add(self.window.pads_after[axis])?.checked_sub(reach)?.checked_sub(1)?;
            (steps >= 0).then(|| steps / self.window.strides[axis] + 1)
        };
        let found: Vec<i64> = (0..sizes.len()).map(along).collect::<Option<_>>()?;
        found.iter().try_fold(1i64, |all, &size| all.checked_mul(size))?;
        Some(found)
    }

    /// Where each element of a window lies from its first one, the last axis fastest.
    fn places(&self) -> Vec<Vec<i64>> {
        let mut all: Vec<Vec<i64>> = vec![vec![]];
        for (&size, &dilation) in self.kernel.iter().zip(&self.window.dilations) {
            let longer = |head: &Vec<i64>| {
                let head = head.clone();
                (0..size).map(move |at| head.iter().copied().chain([at * dilation]).collect())
            };
            all = all.iter().flat_map(longer).collect();
        }
        all
    }
}
