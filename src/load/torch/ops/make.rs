//! Tensors that are made of numbers.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "full" | "new_full" => |call| {
            let shape = call.sizes("size")?;
            filled(call, &shape, Fill::Argument("fill_value"))
        },
        "zeros" | "new_zeros" => |call| {
            let shape = call.sizes("size")?;
            filled(call, &shape, Fill::Number(0.0))
        },
        // What is not written anywhere may be anything.
        "empty" | "new_empty" | "empty_permuted" | "empty_strided" | "new_empty_strided" => |call| {
            let shape = call.sizes("size")?;
            filled(call, &shape, Fill::Number(0.0))
        },
        "empty_like" => |call| alike(call, Fill::Number(0.0)),
        "eye" => |call| {
            let rows = call.size("n", 1)?;
            let columns = if call.argument("m").is_some() { call.size("m", 1)? } else { rows.clone() };
            let shape = call.op("Concat", &[&rows, &columns], &[("axis", Attribute::Int(0))]);
            let zero = call.scalar(call.result_dtype()?, 0.0);
            let zeros = call.plain("Expand", &[&zero, &shape]);
            let value = call.plain("EyeLike", &[&zeros]);
            call.result(value)
        },
        "linspace" => |call| {
            let dtype = call.result_dtype()?;
            let (value, computed) = linspace(call)?;
            let value = if computed == dtype { value } else { call.cast(&value, dtype) };
            call.result(value)
        },
        "logspace" => |call| {
            let (dtype, base) = (call.result_dtype()?, call.float("base", 10.0)?);
            let (places, computed) = linspace(call)?;
            let base = call.scalar(computed, base);
            let value = call.plain("Pow", &[&base, &places]);
            let value = if computed == dtype { value } else { call.cast(&value, dtype) };
            call.result(value)
        },
        "hann_window" => |call| window(call, 0.5, 0.5),
        "hamming_window" => |call| {
            let (alpha, beta) = (call.float("alpha", 0.54)?, call.float("beta", 0.46)?);
            window(call, alpha, beta)
        },
        "ones" | "new_ones" => |call| {
            let shape = call.sizes("size")?;
            filled(call, &shape, Fill::Number(1.0))
        },
        "zero" => |call| alike(call, Fill::Number(0.0)),
        "full_like" => |call| alike(call, Fill::Argument("fill_value")),
        "zeros_like" => |call| alike(call, Fill::Number(0.0)),
        "ones_like" => |call| alike(call, Fill::Number(1.0)),
        "fill" => |call| alike(call, Fill::Argument("value")),
        "scalar_tensor" => |call| {
            let value = call.operand("s", call.result_dtype()?)?;
            call.result(value)
        },
        "arange" => arange,
        _ => return None,
    })
}

/// More elements of a window are not written one by one.
const LONGEST_WINDOW: i64 = 1 << 20;

enum Fill {
    Argument(&'static str),
    Number(f64),
}

fn alike(call: &mut Call<'_, '_>, fill: Fill) -> Result<()> {
    let x = call.tensor("self")?;
    let shape = call.plain("Shape", &[&x]);
    filled(call, &shape, fill)
}

fn filled(call: &mut Call<'_, '_>, shape: &str, fill: Fill) -> Result<()> {
    let dtype = call.result_dtype()?;
    let number = match fill {
        Fill::Argument(name) => call.operand(name, dtype)?,
        Fill::Number(_) if call.is_imaginary() => call.scalar(dtype, 0.0),
        Fill::Number(number) => call.scalar(dtype, number),
    };
    let value = call.plain("Expand", &[&number, shape]);
    call.result(value)
}

/// So many numbers from one to another, at equal distances, and the type in which they are computed: whole numbers
/// from and to whole ones are cut off at the end.
fn linspace(call: &mut Call<'_, '_>) -> Result<(String, DType)> {
    let (dtype, steps) = (call.result_dtype()?, call.int("steps", 1)?);
    let (mut start, mut end) = (call.float("start", 0.0)?, call.float("end", 0.0)?);
    let is_whole = !dtype.is_float();
    let dtype = if is_whole { DType::F64 } else { dtype };
    if is_whole {
        (start, end) = (start.trunc(), end.trunc());
    }
    let apart = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
    let bounds = [0, steps, 1].map(|bound| call.scalar(DType::I64, bound as f64));
    let places = call.plain("Range", &[&bounds[0], &bounds[1], &bounds[2]]);
    let places = call.cast(&places, dtype);
    let (apart, start) = (call.scalar(dtype, apart), call.scalar(dtype, start));
    let value = call.plain("Mul", &[&places, &apart]);
    let value = call.plain("Add", &[&value, &start]);
    if !is_whole || steps < 2 {
        return Ok((value, dtype));
    }
    // The second half counts from the end: what is cut off depends on it.
    let [last, half, end] =
        [(steps - 1) as f64, (steps / 2) as f64, end].map(|number| call.scalar(dtype, number));
    let rest = call.plain("Sub", &[&last, &places]);
    let rest = call.plain("Mul", &[&rest, &apart]);
    let rest = call.plain("Sub", &[&end, &rest]);
    let is_first = call.plain("Less", &[&places, &half]);
    Ok((call.plain("Where", &[&is_first, &value, &rest]), dtype))
}

/// `alpha - beta cos(2 pi i / n)`, of a period or symmetric.
fn window(call: &mut Call<'_, '_>, alpha: f64, beta: f64) -> Result<()> {
    let (dtype, length) = (call.result_dtype()?, call.int("window_length", 0)?);
    if !(1..=LONGEST_WINDOW).contains(&length) {
        return Err(call.unsupported(format!("of {length} elements")));
    }
    call.list_places(length)?;
    let period = if call.flag("periodic", true)? { length } else { length - 1 };
    let number = |at: i64| alpha - beta * libm::cos(std::f64::consts::TAU * at as f64 / period as f64);
    let numbers: Vec<f64> = if length == 1 { vec![1.0] } else { (0..length).map(number).collect() };
    let value = call.numbers(dtype, &numbers);
    call.result(value)
}

fn arange(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    // Whole numbers count exactly, and sizes that are open are known as such.
    let counted = if dtype.is_float() { dtype } else { DType::I64 };
    let start = if call.argument("start").is_some() {
        call.operand("start", counted)?
    } else {
        call.scalar(counted, 0.0)
    };
    let end = call.operand("end", counted)?;
    let step = if call.argument("step").is_some() {
        call.operand("step", counted)?
    } else {
        call.scalar(counted, 1.0)
    };
    let mut value = call.plain("Range", &[&start, &end, &step]);
    if counted != dtype {
        value = call.cast(&value, dtype);
    }
    call.result(value)
}
