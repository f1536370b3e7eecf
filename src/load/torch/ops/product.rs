//! Products of matrices.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "linear" => linear,
        "matmul" | "mm" | "bmm" => |call| {
            let (x, y) = (call.tensor("self")?, call.tensor(second(call))?);
            let value = call.plain("MatMul", &[&x, &y]);
            call.result(value)
        },
        "mv" => |call| {
            let (x, y) = (call.tensor("self")?, call.tensor("vec")?);
            let value = call.plain("MatMul", &[&x, &y]);
            call.result(value)
        },
        "dot" => |call| {
            let (x, y) = (call.tensor("self")?, call.tensor("tensor")?);
            let value = call.plain("MatMul", &[&x, &y]);
            call.result(value)
        },
        "addmm" => |call| with_summand(call, ["mat1", "mat2"]),
        "baddbmm" => |call| with_summand(call, ["batch1", "batch2"]),
        "vdot" => |call| {
            let (x, y) = (call.tensor("self")?, call.tensor("other")?);
            let value = call.plain("MatMul", &[&x, &y]);
            call.result(value)
        },
        "bilinear" => |call| {
            let names = ["input1", "weight", "input2"].map(|name| call.tensor(name));
            let [x, weight, y] = names;
            let equation = Attribute::Text("...i,oij,...j->...o");
            let mut value = call.op("Einsum", &[&x?, &weight?, &y?], &[("equation", equation)]);
            if let Some(bias) = call.optional("bias")? {
                value = call.plain("Add", &[&value, &bias]);
            }
            call.result(value)
        },
        "det" | "linalg_det" | "_linalg_det" => |call| {
            let name = if call.argument("A").is_some() { "A" } else { "self" };
            let x = call.tensor(name)?;
            let value = call.plain("Det", &[&x]);
            call.result(value)
        },
        "logdet" => |call| {
            let x = call.tensor("self")?;
            let det = call.plain("Det", &[&x]);
            let value = call.plain("Log", &[&det]);
            call.result(value)
        },
        "slogdet" | "linalg_slogdet" | "_linalg_slogdet" => |call| {
            let name = if call.argument("A").is_some() { "A" } else { "self" };
            let x = call.tensor(name)?;
            let det = call.plain("Det", &[&x]);
            let (sign, size) = (call.plain("Sign", &[&det]), call.plain("Abs", &[&det]));
            let size = call.plain("Log", &[&size]);
            call.results(vec![Some(sign), Some(size)])
        },
        "cdist" | "_cdist_forward" => distances,
        "einsum" => einsum,
        "outer" => |call| {
            let (x, y) = (call.tensor("self")?, call.tensor("vec2")?);
            let axes = call.integers(&[1]);
            let column = call.plain("Unsqueeze", &[&x, &axes]);
            let value = call.plain("Mul", &[&column, &y]);
            call.result(value)
        },
        _ => return None,
    })
}

/// Norms of the differences of each row of one matrix and each of another.
fn distances(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, y, dtype) = (call.tensor("x1")?, call.tensor("x2")?, call.result_dtype()?);
    let order = call.float("p", 2.0)?;
    let (row, column, last) = (call.integers(&[-2]), call.integers(&[-3]), call.integers(&[-1]));
    let (x, y) = (call.plain("Unsqueeze", &[&x, &row]), call.plain("Unsqueeze", &[&y, &column]));
    let apart = call.plain("Sub", &[&x, &y]);
    let none = [("keepdims", Attribute::Int(0))];
    let value = match order {
        1.0 => call.op("ReduceL1", &[&apart, &last], &none),
        2.0 => call.op("ReduceL2", &[&apart, &last], &none),
        _ => {
            let size = call.plain("Abs", &[&apart]);
            if order.is_infinite() {
                call.op("ReduceMax", &[&size, &last], &none)
            } else {
                let (power, root) = (call.scalar(dtype, order), call.scalar(dtype, 1.0 / order));
                let powers = call.plain("Pow", &[&size, &power]);
                let sum = call.op("ReduceSum", &[&powers, &last], &none);
                call.plain("Pow", &[&sum, &root])
            }
        }
    };
    call.result(value)
}

fn second(call: &Call<'_, '_>) -> &'static str {
    if call.argument("mat2").is_some() { "mat2" } else { "other" }
}

/// `input weight^T + bias`
fn linear(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, weight, bias) = (call.tensor("input")?, call.tensor("weight")?, call.optional("bias")?);
    let rank = call.rank("input")?;
    if call.rank("weight")? != 2 {
        return Err(call.unsupported("a weight that is no matrix"));
    }
    let transposed = ("transB", Attribute::Int(1));
    let value = match (rank, &bias) {
        (2, Some(bias)) => call.op("Gemm", &[&x, &weight, bias], &[transposed]),
        (2, None) => call.op("Gemm", &[&x, &weight], &[transposed]),
        _ => {
            let weight = call.op("Transpose", &[&weight], &[("perm", Attribute::Ints(&[1, 0]))]);
            let product = call.plain("MatMul", &[&x, &weight]);
            match &bias {
                Some(bias) => call.plain("Add", &[&product, bias]),
                None => product,
            }
        }
    };
    call.result(value)
}

/// `beta self + alpha (x y)`
fn with_summand(call: &mut Call<'_, '_>, [left, right]: [&str; 2]) -> Result<()> {
    let (summand, x, y) = (call.tensor("self")?, call.tensor(left)?, call.tensor(right)?);
    let dtype = call.result_dtype()?;
    let product = call.plain("MatMul", &[&x, &y]);
    let product = scaled(call, product, dtype, "alpha")?;
    let summand = scaled(call, summand, dtype, "beta")?;
    let value = call.plain("Add", &[&product, &summand]);
    call.result(value)
}

fn scaled(call: &mut Call<'_, '_>, value: String, dtype: crate::ir::DType, factor: &str) -> Result<String> {
    let factor = call.float(factor, 1.0)?;
    if factor == 1.0 {
        return Ok(value);
    }
    let factor = call.scalar(dtype, factor);
    Ok(call.plain("Mul", &[&value, &factor]))
}

fn einsum(call: &mut Call<'_, '_>) -> Result<()> {
    let (equation, values) = (call.text("equation", "")?, call.list("tensors")?);
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let value = call.op("Einsum", &values, &[("equation", Attribute::Text(equation))]);
    call.result(value)
}
