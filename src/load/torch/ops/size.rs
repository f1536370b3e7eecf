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

/// Arithmetic of Python on numbers that are sizes; these are not negative, so that quotients round down.
pub(super) fn arithmetic(call: &mut Call<'_, '_>) -> Result<()> {
    let operator = match call.operation() {
        "add" => "Add",
        "sub" => "Sub",
        "mul" => "Mul",
        "floordiv" => "Div",
        "mod" => "Mod",
        "sym_max" => "Max",
        "sym_min" => "Min",
        other => return Err(call.unsupported(format!("{other} of sizes"))),
    };
    let [x, y] = match call.node.inputs.as_slice() {
        [x, y] => [operand(call, &x.name)?, operand(call, &y.name)?],
        _ => return Err(call.wrong("it has two operands")),
    };
    let value = call.plain(operator, &[&x, &y]);
    call.result(value)
}

fn operand(call: &mut Call<'_, '_>, name: &str) -> Result<String> {
    match call.number(name)? {
        Some(Number::Int(value)) => Ok(call.scalar(DType::I64, value as f64)),
        Some(Number::Symbol(value)) => Ok(value),
        _ => Err(call.unsupported("sizes that are no integers")),
    }
}
