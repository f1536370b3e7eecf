//! Products of matrices.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use super::norm::row_norm;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "linear" => linear,
        "matmul" | "mm" | "bmm" => |call| matmul(call, second(call)),
        "mv" => |call| matmul(call, "vec"),
        "dot" => |call| matmul(call, "tensor"),
        "vdot" => |call| matmul(call, "other"),
        "addmm" => |call| with_summand(call, ["mat1", "mat2"]),
        "addmv" => |call| with_summand(call, ["mat", "vec"]),
        "baddbmm" => |call| with_summand(call, ["batch1", "batch2"]),
        "addbmm" => summed_batch,
        "addr" => |call| {
            let product = outer_product(call, "vec1", "vec2")?;
            plus(call, product)
        },
        "outer" => |call| {
            let product = outer_product(call, "self", "vec2")?;
            call.result(product)
        },
        "linalg_multi_dot" => |call| chain(call, "tensors"),
        "chain_matmul" => |call| chain(call, "matrices"),
        "matrix_power" | "linalg_matrix_power" => matrix_power,
        "tensordot" => |call| {
            let (left, right) = (call.ints("dims_self")?, call.ints("dims_other")?);
            contracted(call, &left.unwrap_or_default(), &right.unwrap_or_default())
        },
        "inner" => inner,
        "einsum" => einsum,
        "bilinear" => bilinear,
        "_trilinear" => trilinear,
        "linalg_vecdot" => sum_of_products,
        "pairwise_distance" => pairwise_distance,
        "cdist" | "_cdist_forward" => distances,
        "pdist" | "_pdist_forward" => distances_of_pairs,
        "det" | "linalg_det" | "_linalg_det" => |call| {
            let value = determinant(call)?;
            call.result(value)
        },
        "logdet" => |call| {
            let determinant = determinant(call)?;
            let value = call.plain("Log", &[&determinant]);
            call.result(value)
        },
        "slogdet" | "linalg_slogdet" | "_linalg_slogdet" => |call| {
            let determinant = determinant(call)?;
            let (sign, size) = (call.plain("Sign", &[&determinant]), call.plain("Abs", &[&determinant]));
            let size = call.plain("Log", &[&size]);
            call.results(vec![Some(sign), Some(size)])
        },
        _ => return None,
    })
}

fn matmul(call: &mut Call<'_, '_>, right: &str) -> Result<()> {
    let (x, y) = (call.tensor("self")?, call.tensor(right)?);
    let value = call.plain("MatMul", &[&x, &y]);
    call.result(value)
}

/// `self` and the sum of the products of two batches of matrices.
fn summed_batch(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, y) = (call.tensor("batch1")?, call.tensor("batch2")?);
    let product = call.plain("MatMul", &[&x, &y]);
    let axes = call.integers(&[0]);
    let product = call.op("ReduceSum", &[&product, &axes], &[("keepdims", Attribute::Int(0))]);
    plus(call, product)
}

/// A column times a row.
fn outer_product(call: &mut Call<'_, '_>, column: &str, row: &str) -> Result<String> {
    let dtype = call.result_dtype()?;
    let (x, y, axes) = (call.operand(column, dtype)?, call.operand(row, dtype)?, call.integers(&[1]));
    let column = call.plain("Unsqueeze", &[&x, &axes]);
    Ok(call.plain("Mul", &[&column, &y]))
}

/// Sums of products along the last axes; of a scalar, products.
fn inner(call: &mut Call<'_, '_>) -> Result<()> {
    if call.rank("self")? > 0 && call.rank("other")? > 0 {
        return contracted(call, &[-1], &[-1]);
    }
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    let value = call.plain("Mul", &[&x, &y]);
    call.result(value)
}

/// `input1 weight[o] input2 + bias`
fn bilinear(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, weight, y) = (call.tensor("input1")?, call.tensor("weight")?, call.tensor("input2")?);
    let equation = Attribute::Text("...i,oij,...j->...o");
    let mut value = call.op("Einsum", &[&x, &weight, &y], &[("equation", equation)]);
    if let Some(bias) = call.optional("bias")? {
        value = call.plain("Add", &[&value, &bias]);
    }
    call.result(value)
}

/// Sums of products along an axis.
fn sum_of_products(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let axis = call.axis_of(call.int("dim", -1)?, call.rank("x")?.max(call.rank("y")?))?;
    let (x, y) = (call.operand("x", dtype)?, call.operand("y", dtype)?);
    let (product, axes) = (call.plain("Mul", &[&x, &y]), call.integers(&[axis]));
    let value = call.op("ReduceSum", &[&product, &axes], &[("keepdims", Attribute::Int(0))]);
    call.result(value)
}

fn determinant(call: &mut Call<'_, '_>) -> Result<String> {
    let name = if call.argument("A").is_some() { "A" } else { "self" };
    let x = call.tensor(name)?;
    Ok(call.plain("Det", &[&x]))
}

/// Norms of the differences of rows, to each element of which a little is added.
fn pairwise_distance(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("x1", dtype)?, call.operand("x2", dtype)?);
    let epsilon = call.float("eps", 1e-6)?;
    let epsilon = call.scalar(dtype, epsilon);
    let apart = call.plain("Sub", &[&x, &y]);
    let apart = call.plain("Add", &[&apart, &epsilon]);
    let (order, keep) = (call.float("p", 2.0)?, call.flag("keepdim", false)?);
    let value = row_norm(call, &apart, order, dtype, keep)?;
    call.result(value)
}

/// Norms of the differences of all pairs of rows of a matrix.
fn distances_of_pairs(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, dtype, order) = (call.tensor("self")?, call.result_dtype()?, call.float("p", 2.0)?);
    let rows = call.meta("self")?.sizes.first().and_then(schema::size);
    let pairs = super::stacked::chosen(call, rows, 2, false)?;
    let [one, other] = [0, 1].map(|number| {
        let rows: Vec<i64> = pairs.iter().map(|pair| pair[number]).collect();
        let rows = call.integers(&rows);
        call.op("Gather", &[&x, &rows], &[("axis", Attribute::Int(0))])
    });
    let apart = call.plain("Sub", &[&one, &other]);
    let value = row_norm(call, &apart, order, dtype, false)?;
    call.result(value)
}

/// Norms of the differences of each row of one matrix and each of another.
fn distances(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, y, dtype) = (call.tensor("x1")?, call.tensor("x2")?, call.result_dtype()?);
    let order = call.float("p", 2.0)?;
    let (row, column) = (call.integers(&[-2]), call.integers(&[-3]));
    let (x, y) = (call.plain("Unsqueeze", &[&x, &row]), call.plain("Unsqueeze", &[&y, &column]));
    let apart = call.plain("Sub", &[&x, &y]);
    let value = row_norm(call, &apart, order, dtype, false)?;
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
    let (x, y) = (call.tensor(left)?, call.tensor(right)?);
    let product = call.plain("MatMul", &[&x, &y]);
    plus(call, product)
}

/// `beta self + alpha product`
fn plus(call: &mut Call<'_, '_>, product: String) -> Result<()> {
    let (summand, dtype) = (call.tensor("self")?, call.result_dtype()?);
    // What is not taken at all is not read: it may hold anything.
    let [is_no_product, is_no_summand] = [call.float("alpha", 1.0)? == 0.0, call.float("beta", 1.0)? == 0.0];
    let value = match (is_no_product, is_no_summand) {
        (false, false) => {
            let product = scaled(call, product, dtype, "alpha")?;
            let summand = scaled(call, summand, dtype, "beta")?;
            call.plain("Add", &[&product, &summand])
        }
        (false, true) => scaled(call, product, dtype, "alpha")?,
        (true, _) => {
            let left = match is_no_summand {
                true => call.scalar(dtype, 0.0),
                false => scaled(call, summand, dtype, "beta")?,
            };
            let shape = call.plain("Shape", &[&product]);
            call.plain("Expand", &[&left, &shape])
        }
    };
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

/// The product of several matrices, from left to right.
fn chain(call: &mut Call<'_, '_>, name: &str) -> Result<()> {
    let values = call.list(name)?;
    let Some((first, others)) = values.split_first() else { return Err(call.wrong("it multiplies nothing")) };
    let mut value = first.clone();
    for other in others {
        value = call.plain("MatMul", &[&value, other]);
    }
    call.result(value)
}

/// By squares: a matrix for each bit of the exponent.
fn matrix_power(call: &mut Call<'_, '_>) -> Result<()> {
    let name = if call.argument("A").is_some() { "A" } else { "self" };
    let (x, exponent) = (call.tensor(name)?, call.int("n", 1)?);
    let x = match exponent {
        0 => {
            let value = super::solve::unit_like(call, name)?;
            return call.result(value);
        }
        1.. => x,
        _ => super::solve::inverted(call, name)?,
    };
    let (mut square, mut rest, mut value) = (x, exponent.unsigned_abs(), None::<String>);
    loop {
        if rest % 2 == 1 {
            value = Some(match value {
                Some(value) => call.plain("MatMul", &[&value, &square]),
                None => square.clone(),
            });
        }
        rest /= 2;
        if rest == 0 {
            return call.result(value.unwrap_or(square));
        }
        square = call.plain("MatMul", &[&square, &square]);
    }
}

/// Sums of products along axes of one and of the other; the axes that are left, those of the first before.
fn contracted(call: &mut Call<'_, '_>, left: &[i64], right: &[i64]) -> Result<()> {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    let (rank, other) = (call.rank("self")?, call.rank("other")?);
    if left.len() != right.len() || rank + other > 26 {
        return Err(call.wrong("axes that do not fit one another"));
    }
    let letter = |number: i64| char::from(b'a' + number as u8);
    let own: Vec<char> = (0..rank).map(letter).collect();
    let mut others: Vec<char> = (rank..rank + other).map(letter).collect();
    let mut summed = Vec::new();
    for (&from, &to) in left.iter().zip(right) {
        let (from, to) = (call.axis_of(from, rank)? as usize, call.axis_of(to, other)? as usize);
        others[to] = own[from];
        summed.push(own[from]);
    }
    let text = |letters: &[char]| letters.iter().collect::<String>();
    let kept: String = own.iter().chain(&others).filter(|letter| !summed.contains(letter)).collect();
    let equation = format!("{},{}->{kept}", text(&own), text(&others));
    let value = call.op("Einsum", &[&x, &y], &[("equation", Attribute::Text(&equation))]);
    call.result(value)
}

/// The product of three tensors, each with axes of size 1 added, summed along some axes.
fn trilinear(call: &mut Call<'_, '_>) -> Result<()> {
    let mut product: Option<String> = None;
    for (name, axes) in [("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")] {
        let (x, axes) = (call.tensor(name)?, call.ints(axes)?.unwrap_or_default());
        let axes = call.integers(&axes);
        let x = call.plain("Unsqueeze", &[&x, &axes]);
        product = Some(match product {
            Some(product) => call.plain("Mul", &[&product, &x]),
            None => x,
        });
    }
    let axes = call.ints("sumdim")?.unwrap_or_default();
    let axes = call.integers(&axes);
    let product = product.unwrap_or_default();
    let value = call.op("ReduceSum", &[&product, &axes], &[("keepdims", Attribute::Int(0))]);
    call.result(value)
}
