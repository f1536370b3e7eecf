//! Elements at computed places, windows as rows, and images of other sizes.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use super::window::for_axes;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "grid_sampler" | "grid_sampler_2d" | "grid_sampler_3d" => grid_sampler,
        "affine_grid_generator" => affine_grid,
        "im2col" => im2col,
        "col2im" => col2im,
        "unfold" => unfold,
        _ => return None,
    })
}

fn chosen<'n>(call: &Call<'_, '_>, name: &str, names: &[&'n str]) -> Result<&'n str> {
    let number = call.int(name, 0)?;
    let found = usize::try_from(number).ok().and_then(|number| names.get(number));
    found.copied().ok_or_else(|| call.unsupported(format!("{name} {number}")))
}

fn grid_sampler(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, grid) = (call.tensor("input")?, call.tensor("grid")?);
    let attributes = [
        ("mode", Attribute::Text(chosen(call, "interpolation_mode", &["linear", "nearest", "cubic"])?)),
        ("padding_mode", Attribute::Text(chosen(call, "padding_mode", &["zeros", "border", "reflection"])?)),
        ("align_corners", Attribute::Int(i64::from(call.flag("align_corners", false)?))),
    ];
    let value = call.op("GridSample", &[&x, &grid], &attributes);
    call.result(value)
}

fn affine_grid(call: &mut Call<'_, '_>) -> Result<()> {
    let (theta, size) = (call.tensor("theta")?, call.sizes("size")?);
    let aligned = i64::from(call.flag("align_corners", false)?);
    let value = call.op("AffineGrid", &[&theta, &size], &[("align_corners", Attribute::Int(aligned))]);
    call.result(value)
}

/// Places of every element of every window along an axis of this size: a row for each element of a window, or for
/// each window.
struct Windows {
    size: i64,
    window: i64,
    dilation: i64,
    stride: i64,
}

impl Windows {
    fn count(&self, call: &Call<'_, '_>) -> Result<i64> {
        let is_sound = self.window >= 1 && self.dilation >= 1 && self.stride >= 1;
        let span = is_sound.then(|| (self.window - 1).checked_mul(self.dilation)).flatten();
        let rest = span.and_then(|span| self.size.checked_sub(span)?.checked_sub(1));
        match rest.filter(|&rest| rest >= 0) {
            Some(span) => Ok(span / self.stride + 1),
            None => Err(call.wrong(format!("windows of {} do not fit into {}", self.window, self.size))),
        }
    }

    /// `[window, count]`
    fn by_element(&self, call: &mut Call<'_, '_>) -> Result<String> {
        let count = self.count(call)?;
        self.matrix(call, [self.window, count], [self.dilation, self.stride])
    }

    /// `[count, window]`
    fn by_window(&self, call: &mut Call<'_, '_>) -> Result<String> {
        let count = self.count(call)?;
        self.matrix(call, [count, self.window], [self.stride, self.dilation])
    }

    fn matrix(&self, call: &mut Call<'_, '_>, [rows, columns]: [i64; 2], steps: [i64; 2]) -> Result<String> {
        let count = rows.checked_mul(columns);
        let count = count.ok_or_else(|| call.unsupported(format!("{rows} times {columns} places")))?;
        call.list_places(count)?;
        let places: Vec<i64> = (0..rows)
            .flat_map(|row| (0..columns).map(move |column| row * steps[0] + column * steps[1]))
            .collect();
        let (places, dims) = (call.integers(&places), call.integers(&[rows, columns]));
        Ok(call.plain("Reshape", &[&places, &dims]))
    }
}

/// The known size of an axis.
fn size(call: &Call<'_, '_>, name: &str, axis: i64) -> Result<i64> {
    let size = usize::try_from(axis).ok().and_then(|axis| call.meta(name).ok()?.sizes.get(axis));
    size.and_then(schema::size).ok_or_else(|| call.unsupported("of an open axis"))
}

/// Windows of an axis, their elements as a new last axis.
fn unfold(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let axis = call.axis("dimension", 0)?;
    let windows = Windows {
        size: size(call, "self", axis)?,
        window: call.int("size", 1)?,
        dilation: 1,
        stride: call.int("step", 1)?,
    };
    let places = windows.by_window(call)?;
    let value = call.op("Gather", &[&x, &places], &[("axis", Attribute::Int(axis))]);
    let order: Vec<i64> = (0..=rank).filter(|&at| at != axis + 1).chain([axis + 1]).collect();
    let value = call.op("Transpose", &[&value], &[("perm", Attribute::Ints(&order))]);
    call.result(value)
}

/// Windows of images `[batch, channels, height, width]` as columns.
fn im2col(call: &mut Call<'_, '_>) -> Result<()> {
    if call.rank("self")? != 4 {
        return Err(call.unsupported("without a batch"));
    }
    let x = call.tensor("self")?;
    let kernel = for_axes(call, "kernel_size", 2, 1)?;
    let (dilations, strides) = (for_axes(call, "dilation", 2, 1)?, for_axes(call, "stride", 2, 1)?);
    let sides = for_axes(call, "padding", 2, 0)?;
    let dtype = call.result_dtype()?;
    let (pads, zero) =
        (call.integers(&[0, 0, sides[0], sides[1], 0, 0, sides[0], sides[1]]), call.scalar(dtype, 0.0));
    let mut value = call.plain("Pad", &[&x, &pads, &zero]);
    for at in 0..2 {
        let windows = Windows {
            size: size(call, "self", 2 + at as i64)?.saturating_add(sides[at].saturating_mul(2)),
            window: kernel[at],
            dilation: dilations[at],
            stride: strides[at],
        };
        let places = windows.by_element(call)?;
        value = call.op("Gather", &[&value, &places], &[("axis", Attribute::Int(2 + 2 * at as i64))]);
    }
    // [batch, channels, window, down, window, across]
    let value = call.op("Transpose", &[&value], &[("perm", Attribute::Ints(&[0, 1, 2, 4, 3, 5]))]);
    let front = call.op("Shape", &[&x], &[("end", Attribute::Int(1))]);
    let channels = size(call, "self", 1)?;
    let rows = channels.checked_mul(kernel[0]).and_then(|rows| rows.checked_mul(kernel[1]));
    let rows = rows.ok_or_else(|| call.wrong("its windows are too large"))?;
    let rest = call.integers(&[rows, -1]);
    let shape = call.op("Concat", &[&front, &rest], &[("axis", Attribute::Int(0))]);
    let value = call.plain("Reshape", &[&value, &shape]);
    call.result(value)
}

fn col2im(call: &mut Call<'_, '_>) -> Result<()> {
    if call.rank("self")? != 3 {
        return Err(call.unsupported("without a batch"));
    }
    let (x, image, block) = (call.tensor("self")?, call.sizes("output_size")?, call.sizes("kernel_size")?);
    let (dilations, strides) = (for_axes(call, "dilation", 2, 1)?, for_axes(call, "stride", 2, 1)?);
    let sides = for_axes(call, "padding", 2, 0)?;
    let pads = [sides[0], sides[1], sides[0], sides[1]];
    let attributes = [
        ("dilations", Attribute::Ints(&dilations)),
        ("strides", Attribute::Ints(&strides)),
        ("pads", Attribute::Ints(&pads)),
    ];
    let value = call.op("Col2Im", &[&x, &image, &block], &attributes);
    call.result(value)
}
