//! Open sizes and arithmetic on them.

use super::super::call::{Call, Number};
use super::Lower;
use crate::error::Result;
use crate::ir::DType;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "sym_size" => sym_size,
        "sym_numel" => |call| {
            let x = call.tensor("self")?;
            let value = call.plain("Size", &[&x]);
            call.result(value)
        },
        "floordiv" | "mod" | "sym_max" | "sym_min" => arithmetic,
        _ => return None,
    })
}

fn sym_size(call: &mut Call<'_, '_>) -> Result<()> {
    // What only an assertion reads may depend on data.
    if !call.is_read(0) {
        return Ok(());
    }
    let (x, axis) = (call.tensor("self")?, call.axis("dim", 0)?);
    let shape = call.plain("Shape", &[&x]);
    let index = call.scalar(DType::I64, axis as f64);
    let value = call.plain("Gather", &[&shape, &index]);
    call.result(value)
}

/// Arithmetic of Python on numbers that are sizes.
pub(super) fn arithmetic(call: &mut Call<'_, '_>) -> Result<()> {
    let operator = match call.operation() {
        "add" => "Add",
        "sub" => "Sub",
        "mul" => "Mul",
        "floordiv" => "Div",
        "mod" => "Mod",
        "neg" => "Neg",
        "sym_max" => "Max",
        "sym_min" => "Min",
        other => return Err(call.unsupported(format!("{other} of sizes"))),
    };
    let (value, is_below) = match (operator, call.node.inputs.as_slice()) {
        ("Neg", [x]) => {
            let (x, _) = operand(call, &x.name)?;
            (call.plain("Neg", &[&x]), true)
        }
        (_, [x, y]) => {
            let (x, y) = (operand(call, &x.name)?, operand(call, &y.name)?);
            // One less than a size is taken for a size.
            let is_below = |(_, below): &(String, Below)| match below {
                Below::Never => false,
                Below::Number => operator == "Mul",
                Below::Size => true,
            };
            let is_below = is_below(&x) || is_below(&y);
            let value = match (operator, is_below) {
                ("Div", true) => rounded_down(call, &x.0, &y.0),
                _ => call.plain(operator, &[&x.0, &y.0]),
            };
            (value, is_below)
        }
        _ => return Err(call.wrong("it has one or two operands")),
    };
    if is_below {
        call.note_below_zero(&value);
    }
    call.result(value)
}

/// A quotient of numbers that may be negative, where those of ONNX are cut. Sizes themselves are not, and what they are divided by
/// exactly is known while they are open.
fn rounded_down(call: &mut Call<'_, '_>, x: &str, y: &str) -> String {
    let rest = call.plain("Mod", &[x, y]);
    let whole = call.plain("Sub", &[x, &rest]);
    call.plain("Div", &[&whole, y])
}

/// What of an operand may be below 0, though sizes are not.
enum Below {
    Never,
    Number,
    Size,
}

fn operand(call: &mut Call<'_, '_>, name: &str) -> Result<(String, Below)> {
    match call.number(name)? {
        Some(Number::Int(value)) => {
            let below = if value < 0 { Below::Number } else { Below::Never };
            Ok((call.scalar(DType::I64, value as f64), below))
        }
        Some(Number::Symbol(value)) => {
            let below = if call.may_be_below_zero(&value) { Below::Size } else { Below::Never };
            Ok((value, below))
        }
        _ => Err(call.unsupported("sizes that are no integers")),
    }
}
