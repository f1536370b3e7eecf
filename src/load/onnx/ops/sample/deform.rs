//! Convolutions whose windows are read at moved points.

use super::super::super::node::At;
use super::super::window::conv::window;
use super::{Between, Outside, Points};
use crate::error::Result;
use crate::ir::{Binary, DType, Size, ValueId, Window};

pub(in super::super) fn deform_conv(at: &mut At<'_>) -> Result<()> {
    let (x, weights, offsets) = (at.value(0)?, at.value(1)?, at.value(2)?);
    let form = Form::of(at, [x, weights, offsets])?;
    let coordinates = form.coordinates(at, x, offsets)?;
    let mut values = form.read(at, x, coordinates)?;
    if let Some(mask) = at.optional(4)? {
        let [rows, columns] = form.result;
        let mask = at.reshape(mask, known(&[form.images(), form.taps(), rows, columns, 1]))?;
        values = at.mul(values, mask)?;
    }
    let y = form.product(at, weights, values)?;
    let y = with_bias(at, y, form.weights[0])?;
    at.set(0, y);
    Ok(())
}

fn known(sizes: &[i64]) -> Vec<Size> {
    sizes.iter().map(|&size| Size::Known(size)).collect()
}

/// The most places of taps along an axis.
const MOST: i64 = 1 << 24;

/// The sizes and attributes of one node.
struct Form {
    /// Of the input: images, channels, rows, columns.
    input: Vec<i64>,
    /// Of the weights: channels of the result, channels of a group, rows, columns.
    weights: Vec<i64>,
    /// Rows and columns of the result.
    result: [i64; 2],
    groups: i64,
    /// Groups of channels that share offsets.
    offset_groups: i64,
    window: Window,
}

impl Form {
    fn of(at: &At<'_>, operands: [ValueId; 3]) -> Result<Self> {
        let [input, weights, offsets] = operands.map(|value| at.numbers(value));
        let (input, weights, offsets) = (input?, weights?, offsets?);
        if [input.len(), weights.len(), offsets.len()] != [4; 3] {
            return Err(at.unsupported("of other than two spatial axes"));
        }
        if at.ints("kernel_shape")?.is_some_and(|stated| stated != weights[2..]) {
            return Err(at.wrong("kernel_shape is not the weights'"));
        }
        let (groups, offset_groups) = (at.int_or("group", 1)?, at.int_or("offset_group", 1)?);
        let (window, _) = window(at, 2)?;
        let result = [offsets[2], offsets[3]];
        // What follows from them is counted in i64, and a place for each tap and element of an axis is held.
        let all =
            input.iter().chain(&weights).chain(&offsets).chain(&window.strides).chain(&window.dilations);
        let all = all.copied().chain([offset_groups]);
        let product = |sizes: &[i64]| sizes.iter().try_fold(1i64, |all, &size| all.checked_mul(size));
        let places = product(&[weights[2], weights[3], result[0].max(result[1])]);
        let counted = all.clone().all(|size| size <= MOST) && places.is_some_and(|places| places <= MOST);
        if !counted || [&input, &weights, &offsets].iter().any(|sizes| product(sizes).is_none()) {
            return Err(at.unsupported("of so large an image"));
        }
        let form = Self { input, weights, result, groups, offset_groups, window };
        if !form.fits() || offsets[1] != 2 * offset_groups * form.taps() {
            return Err(at.wrong("its groups do not fit its channels"));
        }
        Ok(form)
    }

    fn fits(&self) -> bool {
        let divides = |groups: i64, channels: i64| groups > 0 && channels % groups == 0;
        divides(self.groups, self.input[1])
            && divides(self.offset_groups, self.input[1])
            && self.weights[0] % self.groups == 0
    }

    fn taps(&self) -> i64 {
        self.weights[2] * self.weights[3]
    }

    /// Images times groups of offsets: what is sampled at points of its own.
    fn images(&self) -> i64 {
        self.input[0] * self.offset_groups
    }

    /// Along each spatial axis where the input is read, `[images, taps, rows, columns]`.
    fn coordinates(&self, at: &mut At<'_>, x: ValueId, offsets: ValueId) -> Result<Vec<ValueId>> {
        let [rows, columns] = self.result;
        let offsets = at.reshape(offsets, known(&[self.images(), self.taps(), 2, rows, columns]))?;
        let wide = if at.graph().ty(x).dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let offsets = at.convert(offsets, wide)?;
        let mut coordinates = Vec::new();
        for axis in 0..2 {
            let offset = at.element(offsets, 2, axis as i64)?;
            let mut line = [1, self.taps(), 1, 1];
            line[2 + axis] = self.result[axis];
            let regular = at.real_constant(wide, &line, &self.regular(axis))?;
            coordinates.push(at.add(offset, regular)?);
        }
        Ok(coordinates)
    }

    /// Where a convolution without offsets reads along an axis, for each tap and element of the result.
    fn regular(&self, axis: usize) -> Vec<f64> {
        let Window { strides, dilations, pads_before, .. } = &self.window;
        let step = |tap: i64| [tap / self.weights[3], tap % self.weights[3]][axis];
        let place =
            |tap: i64, result: i64| result * strides[axis] - pads_before[axis] + step(tap) * dilations[axis];
        let mut places = Vec::new();
        for tap in 0..self.taps() {
            places.extend((0..self.result[axis]).map(|result| place(tap, result) as f64));
        }
        places
    }

    /// The input at these coordinates, `[images, taps, rows, columns, channels]`.
    fn read(&self, at: &mut At<'_>, x: ValueId, coordinates: Vec<ValueId>) -> Result<ValueId> {
        let image = &self.input[2..];
        let channels = self.input[1] / self.offset_groups;
        let grouped = at.reshape(x, known(&[self.images(), channels, image[0], image[1]]))?;
        let elements = super::elements_of(at, grouped)?;
        let first = super::first_elements(at, &Size::Known(self.images()), image, 4)?;
        let read = Points { elements, first: Some(first), sizes: image.to_vec(), coordinates };
        read.read(at, Between::Linear, Outside::Zeros)
    }

    /// What was read times the weights, `[batch, channels, rows, columns]`.
    fn product(&self, at: &mut At<'_>, weights: ValueId, values: ValueId) -> Result<ValueId> {
        let (batch, channels, taps) = (self.input[0], self.input[1], self.taps());
        let [rows, columns] = self.result;
        let points = rows * columns;
        // [images, taps, points, channels] as [batch, groups, channels of a group * taps, points].
        let values =
            at.reshape(values, known(&[self.images(), taps, points, channels / self.offset_groups]))?;
        let values = at.transpose(values, vec![0, 3, 1, 2])?;
        let values =
            at.reshape(values, known(&[batch, self.groups, channels / self.groups * taps, points]))?;
        let [made, each, ..] = self.weights[..] else { return Err(at.wrong("its weights have not 4 axes")) };
        let weights = at.reshape(weights, known(&[1, self.groups, made / self.groups, each * taps]))?;
        let y = at.matmul(weights, values)?;
        at.reshape(y, known(&[batch, made, rows, columns]))
    }
}

fn with_bias(at: &mut At<'_>, y: ValueId, channels: i64) -> Result<ValueId> {
    let Some(bias) = at.optional(3)? else { return Ok(y) };
    let bias = at.reshape(bias, [channels, 1, 1].map(Size::Known))?;
    at.binary(Binary::Add, y, bias)
}
