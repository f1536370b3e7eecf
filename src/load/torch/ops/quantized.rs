//! Integers that stand for numbers: `torch.ao`'s own operations (`quantized_decomposed`), those of torchao, and ATen's.
//!
//! `q = clamp(round(x / scale) + zero)`, `x = (q - zero) * scale`, each operation with its own order of rounding.

use super::super::call::{Call, Number};
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "quantize_per_tensor" => |call| quantize(call, &Form::of_tensor(call)?),
        "quantize_per_channel" => |call| quantize(call, &Form::of_channels(call, "input")?),
        "quantize_per_token" => |call| quantize(call, &Form::of_rows()),
        "quantize_affine" => |call| quantize(call, &Form::of_blocks(call)?),
        "dequantize_per_tensor" => |call| dequantize(call, &Form::of_tensor(call)?),
        "dequantize_per_channel" => |call| dequantize(call, &Form::of_channels(call, "input")?),
        "dequantize_per_token" => |call| dequantize(call, &Form::of_rows()),
        "dequantize_per_channel_group" => |call| dequantize(call, &Form::of_groups(call)?),
        "dequantize_affine" => |call| dequantize(call, &Form::of_blocks(call)?),
        "choose_qparams" => |call| choose_for_all(call, false),
        "choose_qparams_symmetric" => |call| choose_for_all(call, true),
        "choose_qparams_per_token_asymmetric" => choose_for_rows,
        "choose_qparams_affine" => choose_for_blocks,
        "fake_quantize_per_tensor_affine" => |call| fake(call, None),
        "fake_quantize_per_tensor_affine_cachemask" => |call| fake(call, None),
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams" => |call| fake(call, None),
        "fake_quantize_per_channel_affine" | "fake_quantize_per_channel_affine_cachemask" => |call| {
            let axis = call.axis("axis", 0)?;
            fake(call, Some(axis))
        },
        "_int_mm" => |call| {
            let (x, y) = (call.tensor("self")?, call.tensor("mat2")?);
            let value = call.plain("MatMulInteger", &[&x, &y]);
            call.result(value)
        },
        _ => return None,
    })
}

/// Which numbers share a scale, and what the arguments are called.
struct Form {
    scale: &'static str,
    zero: &'static str,
    /// The shape in which scales stand beside the numbers; none where they are broadcast as they are.
    scales: Option<Vec<i64>>,
    /// The shape in which the numbers stand meanwhile; none where that is their own.
    numbers: Option<Vec<i64>>,
    /// Zero points are added before what they are added to is rounded.
    rounds_sum: bool,
}

impl Form {
    fn of_tensor(call: &Call<'_, '_>) -> Result<Self> {
        let is_number = call.rank("scale").is_err();
        let scales = (!is_number).then(Vec::new);
        Ok(Self { scale: "scale", zero: "zero_point", scales, numbers: None, rounds_sum: false })
    }

    fn of_rows() -> Self {
        Self { scale: "scales", zero: "zero_points", scales: None, numbers: None, rounds_sum: true }
    }

    fn of_channels(call: &Call<'_, '_>, input: &str) -> Result<Self> {
        let rank = call.rank(input)?;
        let axis = call.axis_of(call.int("axis", 0)?, rank)?;
        let scales = Some(along(axis, rank));
        Ok(Self { scale: "scales", zero: "zero_points", scales, numbers: None, rounds_sum: false })
    }

    /// Each row in groups of so many.
    fn of_groups(call: &Call<'_, '_>) -> Result<Self> {
        let (size, dims) = (call.int("group_size", 128)?, call.meta("input").or(call.meta("w_int8"))?.dims());
        let Some([_, columns]) = dims.as_deref() else {
            return Err(call.unsupported("of other than two known axes"));
        };
        let size = size.min(*columns);
        if size < 1 || columns % size != 0 {
            return Err(call.wrong(format!("{columns} columns cannot be divided into groups of {size}")));
        }
        let (scales, numbers) = (Some(vec![-1, 1]), Some(vec![-1, size]));
        Ok(Self { scale: "scales", zero: "zero_points", scales, numbers, rounds_sum: false })
    }

    fn of_blocks(call: &Call<'_, '_>) -> Result<Self> {
        let blocks = Blocks::of(call)?;
        let (scales, numbers) = (Some(blocks.scales()), Some(blocks.numbers));
        Ok(Self { scale: "scale", zero: "zero_point", scales, numbers, rounds_sum: false })
    }

    /// Numbers, or tensors of them as they stand beside what they scale.
    fn operand(&self, call: &mut Call<'_, '_>, name: &str, dtype: DType) -> Result<String> {
        let value = call.operand(name, dtype)?;
        let is_tensor = call.rank(name).is_ok();
        Ok(match &self.scales {
            Some(shape) if is_tensor => reshaped(call, &value, shape),
            _ => value,
        })
    }

    /// None where all are 0.
    fn zero(&self, call: &mut Call<'_, '_>) -> Result<Option<String>> {
        let is_none = call.argument(self.zero).is_none();
        let is_empty =
            || call.meta(self.zero).is_ok_and(|meta| meta.dims().is_some_and(|dims| dims.contains(&0)));
        if is_none || is_empty() || matches!(call.number(self.zero), Ok(Some(Number::Int(0)))) {
            return Ok(None);
        }
        self.operand(call, self.zero, DType::F32).map(Some)
    }
}

/// Numbers of a tensor in blocks, as torchao divides it: each axis that a block divides is two.
struct Blocks {
    numbers: Vec<i64>,
    /// Axes of these along which a block extends.
    within: Vec<i64>,
}

impl Blocks {
    fn of(call: &Call<'_, '_>) -> Result<Self> {
        let sizes: Vec<Option<i64>> = call.meta("input")?.sizes.iter().map(schema::size).collect();
        let blocks = call.ints("block_size")?.unwrap_or_default();
        if blocks.len() != sizes.len() {
            return Err(call.wrong(format!("{} sizes of blocks for {} axes", blocks.len(), sizes.len())));
        }
        if sizes.iter().filter(|size| size.is_none()).count() > 1 {
            return Err(call.unsupported("of several open axes"));
        }
        let (mut numbers, mut within) = (Vec::new(), Vec::new());
        for (size, block) in sizes.into_iter().zip(blocks) {
            let at = numbers.len() as i64;
            match size {
                Some(size) if block > 1 && block != size => {
                    if size % block != 0 {
                        return Err(call.wrong(format!("blocks of {block} do not divide {size}")));
                    }
                    numbers.extend([size / block, block]);
                    within.push(at + 1);
                }
                _ if block < 1 => return Err(call.wrong("a block has no elements")),
                _ => {
                    numbers.push(size.unwrap_or(-1));
                    within.extend((block != 1).then_some(at));
                }
            }
        }
        Ok(Self { numbers, within })
    }

    fn scales(&self) -> Vec<i64> {
        let is_within = |axis: usize| self.within.contains(&(axis as i64));
        (0..self.numbers.len()).map(|axis| if is_within(axis) { 1 } else { self.numbers[axis] }).collect()
    }
}

fn along(axis: i64, rank: i64) -> Vec<i64> {
    (0..rank).map(|other| if other == axis { -1 } else { 1 }).collect()
}

fn reshaped(call: &mut Call<'_, '_>, value: &str, shape: &[i64]) -> String {
    let shape = call.integers(shape);
    call.plain("Reshape", &[value, &shape])
}

/// The value in the shape of another.
fn shaped_as(call: &mut Call<'_, '_>, value: &str, like: &str) -> String {
    let shape = call.plain("Shape", &[like]);
    call.plain("Reshape", &[value, &shape])
}

/// One by a scale, rounded as PyTorch does: of a number in f64, of a tensor in its own type.
fn inverse(call: &mut Call<'_, '_>, form: &Form) -> Result<String> {
    if let Ok(Some(Number::Float(scale))) = call.number(form.scale) {
        return Ok(call.scalar(DType::F32, 1.0 / scale));
    }
    let scale = form.operand(call, form.scale, DType::F64)?;
    let one = call.scalar(DType::F64, 1.0);
    let is_f32 = call.dtype(form.scale).is_ok_and(|dtype| dtype == DType::F32);
    // Per tensor the scale is taken as a number, of f64.
    let (scale, one) = match is_f32 && form.scale == "scales" {
        true => (call.cast(&scale, DType::F32), call.cast(&one, DType::F32)),
        false => (scale, one),
    };
    let inverse = call.plain("Div", &[&one, &scale]);
    Ok(call.cast(&inverse, DType::F32))
}

/// The least and the largest integer; those of the type where they are left out.
fn range(call: &Call<'_, '_>, dtype: DType) -> Result<[f64; 2]> {
    let [least, most] = match dtype {
        DType::U8 => [0.0, 255.0],
        DType::I8 => [-128.0, 127.0],
        DType::I16 => [-32768.0, 32767.0],
        DType::U16 => [0.0, 65535.0],
        DType::I32 => [f64::from(i32::MIN), f64::from(i32::MAX)],
        _ => return Err(call.unsupported("to such a type")),
    };
    Ok([call.float("quant_min", least)?, call.float("quant_max", most)?])
}

fn clamped(call: &mut Call<'_, '_>, value: &str, [least, most]: [f64; 2]) -> String {
    let (least, most) = (call.scalar(DType::F32, least), call.scalar(DType::F32, most));
    let value = call.plain("Max", &[value, &least]);
    call.plain("Min", &[&value, &most])
}

fn quantize(call: &mut Call<'_, '_>, form: &Form) -> Result<()> {
    let to = call.result_dtype()?;
    let bounds = range(call, to)?;
    let x = call.operand("input", DType::F32)?;
    let own = x.clone();
    let x = match &form.numbers {
        Some(shape) => reshaped(call, &x, shape),
        None => x,
    };
    let (inverse, zero) = (inverse(call, form)?, form.zero(call)?);
    let mut value = call.plain("Mul", &[&x, &inverse]);
    if !form.rounds_sum {
        value = call.plain("Round", &[&value]);
    }
    if let Some(zero) = zero {
        value = call.plain("Add", &[&value, &zero]);
    }
    if form.rounds_sum {
        value = call.plain("Round", &[&value]);
    }
    value = clamped(call, &value, bounds);
    if form.numbers.is_some() {
        value = shaped_as(call, &value, &own);
    }
    let value = call.cast(&value, to);
    call.result(value)
}

fn dequantize(call: &mut Call<'_, '_>, form: &Form) -> Result<()> {
    let (to, input) =
        (call.result_dtype()?, if call.argument("input").is_some() { "input" } else { "w_int8" });
    let own = call.tensor(input)?;
    let mut value = call.cast(&own, DType::F32);
    if let Some(shape) = &form.numbers {
        value = reshaped(call, &value, shape);
    }
    if let Some(zero) = form.zero(call)? {
        value = call.plain("Sub", &[&value, &zero]);
    }
    let scale = form.operand(call, form.scale, DType::F32)?;
    value = call.plain("Mul", &[&value, &scale]);
    if form.numbers.is_some() {
        value = shaped_as(call, &value, &own);
    }
    let value = call.cast(&value, to);
    call.result(value)
}

/// The least and the largest of numbers along axes, of all where none are named; 0 is among them.
struct Extremes {
    least: String,
    most: String,
}

impl Extremes {
    fn of(call: &mut Call<'_, '_>, x: &str, axes: &[i64], keeps: bool) -> Self {
        let (axes, zero) = (call.integers(axes), call.scalar(DType::F32, 0.0));
        let keeps = [("keepdims", Attribute::Int(i64::from(keeps)))];
        let [least, most] = ["ReduceMin", "ReduceMax"].map(|kind| call.op(kind, &[x, &axes], &keeps));
        Self { least: call.plain("Min", &[&least, &zero]), most: call.plain("Max", &[&most, &zero]) }
    }

    /// The scale at which the larger of both sides fills half the range.
    fn symmetric(&self, call: &mut Call<'_, '_>, half: f64) -> String {
        let (other, half) = (call.plain("Neg", &[&self.least]), call.scalar(DType::F32, half));
        let most = call.plain("Max", &[&self.most, &other]);
        call.plain("Div", &[&most, &half])
    }

    /// The scale at which what is between them fills the range.
    fn between(&self, call: &mut Call<'_, '_>, range: f64) -> String {
        let (span, range) = (call.plain("Sub", &[&self.most, &self.least]), call.scalar(DType::F32, range));
        call.plain("Div", &[&span, &range])
    }

    /// The integer that stands for 0 where the least one stands for the least number.
    fn zero(&self, call: &mut Call<'_, '_>, scale: &str, bounds: [f64; 2]) -> String {
        let (low, first) = (call.plain("Div", &[&self.least, scale]), call.scalar(DType::F32, bounds[0]));
        let low = call.plain("Round", &[&low]);
        let zero = call.plain("Sub", &[&first, &low]);
        clamped(call, &zero, bounds)
    }
}

fn at_least(call: &mut Call<'_, '_>, scale: &str, least: f64) -> String {
    let least = call.scalar(DType::F32, least);
    call.plain("Max", &[scale, &least])
}

/// A value whose type is that of the result of this number.
fn typed(call: &mut Call<'_, '_>, value: &str, number: usize) -> Result<Option<String>> {
    let dtype = call.meta_of(call.result_name(number)?)?.dtype()?;
    Ok(Some(call.cast(value, dtype)))
}

/// One scale and zero point for all of a tensor.
fn choose_for_all(call: &mut Call<'_, '_>, is_symmetric: bool) -> Result<()> {
    let x = call.operand("input", DType::F32)?;
    let bounds = [call.float("quant_min", -128.0)?, call.float("quant_max", 127.0)?];
    let flat = reshaped(call, &x, &[-1]);
    let extremes = Extremes::of(call, &flat, &[0], true);
    let range = bounds[1] - bounds[0];
    let scale = match is_symmetric {
        true => extremes.symmetric(call, range / 2.0),
        false => extremes.between(call, range),
    };
    let least = call.float("eps", f64::from(f32::EPSILON))?;
    let scale = at_least(call, &scale, least);
    let zero = match is_symmetric {
        true => {
            let middle = if bounds[0] == 0.0 { 128.0 } else { 0.0 };
            call.numbers(DType::F32, &[middle])
        }
        false => extremes.zero(call, &scale, bounds),
    };
    let results = vec![typed(call, &scale, 0)?, typed(call, &zero, 1)?];
    call.results(results)
}

/// A scale and zero point for each row, the zero point from the side where it errs less.
fn choose_for_rows(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, bounds) = (call.operand("input", DType::F32)?, [-128.0, 127.0]);
    let extremes = Extremes::of(call, &x, &[-1], true);
    let scale = extremes.between(call, bounds[1] - bounds[0]);
    let scale = at_least(call, &scale, f64::from(f32::EPSILON));
    let (first, last) = (call.scalar(DType::F32, bounds[0]), call.scalar(DType::F32, bounds[1]));
    let (low, high) =
        (call.plain("Div", &[&extremes.least, &scale]), call.plain("Div", &[&extremes.most, &scale]));
    let (from_low, from_high) = (call.plain("Add", &[&first, &low]), call.plain("Add", &[&last, &high]));
    let (sum, none) = (call.plain("Add", &[&from_low, &from_high]), call.scalar(DType::F32, 0.0));
    let is_low = call.plain("Greater", &[&sum, &none]);
    let (by_low, by_high) = (call.plain("Sub", &[&first, &low]), call.plain("Sub", &[&last, &high]));
    let zero = call.plain("Where", &[&is_low, &by_low, &by_high]);
    let zero = clamped(call, &zero, bounds);
    let zero = call.plain("Round", &[&zero]);
    let results = vec![typed(call, &scale, 0)?, typed(call, &zero, 1)?];
    call.results(results)
}

/// A scale and zero point for each block.
fn choose_for_blocks(call: &mut Call<'_, '_>) -> Result<()> {
    let least = match call.dtype("input")? {
        DType::F16 => 2f64.powi(-14),
        _ => f64::from(f32::MIN_POSITIVE),
    };
    let least = call.float("eps", least)?;
    let (low, high) = (call.argument("quant_min").is_some(), call.argument("quant_max").is_some());
    if !(low && high) {
        return Err(call.unsupported("without quant_min and quant_max"));
    }
    let bounds = [call.float("quant_min", 0.0)?, call.float("quant_max", 0.0)?];
    let (x, blocks, keeps) =
        (call.operand("input", DType::F32)?, Blocks::of(call)?, call.flag("keepdim", false)?);
    let numbers = reshaped(call, &x, &blocks.numbers);
    let extremes = Extremes::of(call, &numbers, &blocks.within, keeps);
    let range = bounds[1] - bounds[0];
    let is_symmetric = match call.text("mapping_type", "")? {
        "SYMMETRIC" => true,
        "ASYMMETRIC" => false,
        other => return Err(call.unsupported(format!("with mapping_type {other:?}"))),
    };
    let scale = match is_symmetric {
        true => extremes.symmetric(call, range / 2.0),
        false => extremes.between(call, range),
    };
    let mut scale = at_least(call, &scale, least);
    let mut zero = match is_symmetric {
        true => {
            let (none, middle) = (
                call.scalar(DType::F32, 0.0),
                call.scalar(DType::F32, ((bounds[0] + bounds[1] + 1.0) / 2.0).trunc()),
            );
            let nothing = call.plain("Mul", &[&scale, &none]);
            call.plain("Add", &[&nothing, &middle])
        }
        false => extremes.zero(call, &scale, bounds),
    };
    if keeps {
        // An axis that blocks divide was two.
        let shape: Vec<i64> =
            call.meta_of(call.result_name(0)?)?.dims().ok_or_else(|| call.unsupported("of open sizes"))?;
        scale = reshaped(call, &scale, &shape);
        zero = reshaped(call, &zero, &shape);
    }
    let results = vec![typed(call, &scale, 0)?, typed(call, &zero, 1)?];
    call.results(results)
}

/// Numbers as the integers that stand for them would be read; and which were within the range.
fn fake(call: &mut Call<'_, '_>, axis: Option<i64>) -> Result<()> {
    if call.argument("fake_quant_enabled").is_some() {
        return Err(call.unsupported("that data turns on: convert the module, or disable its observers"));
    }
    let dtype = call.result_dtype()?;
    let bounds = [call.float("quant_min", 0.0)?, call.float("quant_max", 255.0)?];
    let x = call.operand("self", DType::F32)?;
    let scales = axis.map(|axis| Ok(along(axis, call.rank("self")?))).transpose()?.or(Some(Vec::new()));
    let form = Form { scale: "scale", zero: "zero_point", scales, numbers: None, rounds_sum: true };
    let scale = form.operand(call, form.scale, DType::F32)?;
    let one = call.scalar(DType::F32, 1.0);
    let inverse = call.plain("Div", &[&one, &scale]);
    let zero = form.zero(call)?;
    let mut value = call.plain("Mul", &[&x, &inverse]);
    if let Some(zero) = &zero {
        value = call.plain("Add", &[&value, zero]);
    }
    let rounded = call.plain("Round", &[&value]);
    let mut value = clamped(call, &rounded, bounds);
    let within = call.plain("Equal", &[&value, &rounded]);
    if let Some(zero) = &zero {
        value = call.plain("Sub", &[&value, zero]);
    }
    let value = call.plain("Mul", &[&value, &scale]);
    let value = call.cast(&value, dtype);
    call.results(vec![Some(value), Some(within)])
}
