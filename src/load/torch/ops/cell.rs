//! Recurrent cells: one step.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "lstm_cell" => lstm,
        "gru_cell" => gru,
        "rnn_tanh_cell" => |call| plain(call, "Tanh"),
        "rnn_relu_cell" => |call| plain(call, "Relu"),
        _ => return None,
    })
}

/// The product of an operand with a weight, and its bias.
fn product(call: &mut Call<'_, '_>, x: &str, weight: &str, bias: &str) -> Result<String> {
    let weight = call.tensor(weight)?;
    let transposed = [("transB", Attribute::Int(1))];
    Ok(match call.optional(bias)? {
        Some(bias) => call.op("Gemm", &[x, &weight, &bias], &transposed),
        None => call.op("Gemm", &[x, &weight], &transposed),
    })
}

/// Results of as many gates, side by side, of one size each.
fn gates(call: &mut Call<'_, '_>, all: &str, count: i64) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|_| call.emit.fresh()).collect();
    let results: Vec<&str> = names.iter().map(String::as_str).collect();
    let attributes = [("axis", Attribute::Int(-1)), ("num_outputs", Attribute::Int(count))];
    call.emit.operation("Split", &[all], &results, &attributes);
    names
}

fn check_batch(call: &Call<'_, '_>) -> Result<()> {
    match call.rank("input")? {
        2 => Ok(()),
        _ => Err(call.unsupported("without a batch")),
    }
}

fn plain(call: &mut Call<'_, '_>, activation: &str) -> Result<()> {
    check_batch(call)?;
    let (x, h) = (call.tensor("input")?, call.tensor("hx")?);
    let x = product(call, &x, "w_ih", "b_ih")?;
    let h = product(call, &h, "w_hh", "b_hh")?;
    let sum = call.plain("Add", &[&x, &h]);
    let value = call.plain(activation, &[&sum]);
    call.result(value)
}

/// Gates are input, forget, cell, output.
fn lstm(call: &mut Call<'_, '_>) -> Result<()> {
    check_batch(call)?;
    let x = call.tensor("input")?;
    let [h, c] =
        <[String; 2]>::try_from(call.list("hx")?).map_err(|_| call.wrong("it has not two states"))?;
    let x = product(call, &x, "w_ih", "b_ih")?;
    let h = product(call, &h, "w_hh", "b_hh")?;
    let sum = call.plain("Add", &[&x, &h]);
    let gates = gates(call, &sum, 4);
    let input = call.plain("Sigmoid", &[&gates[0]]);
    let forget = call.plain("Sigmoid", &[&gates[1]]);
    let new = call.plain("Tanh", &[&gates[2]]);
    let output = call.plain("Sigmoid", &[&gates[3]]);
    let kept = call.plain("Mul", &[&forget, &c]);
    let new = call.plain("Mul", &[&input, &new]);
    let cell = call.plain("Add", &[&kept, &new]);
    let shown = call.plain("Tanh", &[&cell]);
    let hidden = call.plain("Mul", &[&output, &shown]);
    call.results(vec![Some(hidden), Some(cell)])
}

/// Gates are reset, update, new.
fn gru(call: &mut Call<'_, '_>) -> Result<()> {
    check_batch(call)?;
    let (x, h, dtype) = (call.tensor("input")?, call.tensor("hx")?, call.result_dtype()?);
    let own = product(call, &x, "w_ih", "b_ih")?;
    let other = product(call, &h, "w_hh", "b_hh")?;
    let (own, other) = (gates(call, &own, 3), gates(call, &other, 3));
    let mut open = Vec::new();
    for (own, other) in own.iter().zip(&other).take(2) {
        let sum = call.plain("Add", &[own, other]);
        open.push(call.plain("Sigmoid", &[&sum]));
    }
    let before = call.plain("Mul", &[&open[0], &other[2]]);
    let new = call.plain("Add", &[&own[2], &before]);
    let new = call.plain("Tanh", &[&new]);
    let one = call.scalar(dtype, 1.0);
    let rest = call.plain("Sub", &[&one, &open[1]]);
    let new = call.plain("Mul", &[&rest, &new]);
    let kept = call.plain("Mul", &[&open[1], &h]);
    let value = call.plain("Add", &[&new, &kept]);
    call.result(value)
}
