//! Convolutions whose windows are read at moved points.

use super::super::super::node::At;
use super::super::window::conv::window;
use super::{Between, Outside, Points};
use crate::error::Result;
use crate::ir::{Binary, DType, Size, ValueId};

pub(in super::super) fn deform_conv(at: &mut At<'_>) -> Result<()> {
    let (x, weights, offsets) = (at.value(0)?, at.value(1)?, at.value(2)?);
    let [sizes, kernel, moved] = [x, weights, offsets].map(|value| at.numbers(value));
    let (sizes, kernel, moved) = (sizes?, kernel?, moved?);
    if [sizes.len(), kernel.len(), moved.len()] != [4; 3] {
        return Err(at.unsupported("of other than two spatial axes"));
    }
    if at.ints("kernel_shape")?.is_some_and(|stated| stated != kernel[2..]) {
        return Err(at.wrong("kernel_shape is not the weights'"));
    }
    let (groups, offset_groups) = (at.int_or("group", 1)?, at.int_or("offset_group", 1)?);
    let (window, _) = window(at, 2)?;
    let taps = kernel[2] * kernel[3];
    let fits = groups > 0 && offset_groups > 0 && sizes[1] % offset_groups == 0 && sizes[1] % groups == 0;
    if !fits || moved[1] != 2 * offset_groups * taps || kernel[0] % groups != 0 {
        return Err(at.wrong("its groups do not fit its channels"));
    }
    let (batch, points, channels) = (sizes[0], moved[2] * moved[3], sizes[1] / offset_groups);
    let known = |sizes: &[i64]| sizes.iter().map(|&size| Size::Known(size)).collect::<Vec<_>>();
    // Axes: image and group of offsets, tap, row and column of the result.
    let images = batch * offset_groups;
    let offsets = at.reshape(offsets, known(&[images, taps, 2, moved[2], moved[3]]))?;
    let dtype = at.graph().ty(x).dtype;
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let offsets = at.convert(offsets, wide)?;
    let mut coordinates = Vec::new();
    for axis in 0..2 {
        let offset = at.element(offsets, 2, axis as i64)?;
        let mut plain = Vec::new();
        for tap in 0..taps {
            let step = [tap / kernel[3], tap % kernel[3]][axis];
            for result in 0..moved[2 + axis] {
                let place =
                    result * window.strides[axis] - window.pads_before[axis] + step * window.dilations[axis];
                plain.push(place as f64);
            }
        }
        let mut line = [1, taps, 1, 1];
        line[2 + axis] = moved[2 + axis];
        let plain = at.real_constant(wide, &line, &plain)?;
        coordinates.push(at.add(offset, plain)?);
    }
    let grouped = at.reshape(x, known(&[images, channels, sizes[2], sizes[3]]))?;
    let elements = super::elements_of(at, grouped)?;
    let image = &sizes[2..];
    let first = super::first_elements(at, &Size::Known(images), image, 4)?;
    let read = Points { elements, first: Some(first), sizes: image.to_vec(), coordinates };
    let mut values = read.read(at, Between::Linear, Outside::Zeros)?;
    if let Some(mask) = at.optional(4)? {
        let mask = at.reshape(mask, known(&[images, taps, moved[2], moved[3], 1]))?;
        values = at.mul(values, mask)?;
    }
    // [images, taps, points, channels] as [batch, groups, channels of a group * taps, points].
    let values = at.reshape(values, known(&[images, taps, points, channels]))?;
    let values = at.transpose(values, vec![0, 3, 1, 2])?;
    let values = at.reshape(values, known(&[batch, groups, sizes[1] / groups * taps, points]))?;
    let weights = at.reshape(weights, known(&[1, groups, kernel[0] / groups, kernel[1] * taps]))?;
    let y = at.matmul(weights, values)?;
    let y = at.reshape(y, known(&[batch, kernel[0], moved[2], moved[3]]))?;
    let y = with_bias(at, y, kernel[0])?;
    at.set(0, y);
    Ok(())
}

fn with_bias(at: &mut At<'_>, y: ValueId, channels: i64) -> Result<ValueId> {
    let Some(bias) = at.optional(3)? else { return Ok(y) };
    let bias = at.reshape(bias, [channels, 1, 1].map(Size::Known))?;
    at.binary(Binary::Add, y, bias)
}
