//! Sums, means, extremes and their places along axes.

use super::super::call::Call;
use super::Lower;
use super::norm::{norm_by, root};
use super::slope::{ChosenOf, Extreme, chosen};
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "sum" => |call| reduction(call, "ReduceSum"),
        "mean" => |call| reduction(call, "ReduceMean"),
        "amax" => |call| reduction(call, "ReduceMax"),
        "amin" => |call| reduction(call, "ReduceMin"),
        "prod" => |call| reduction(call, "ReduceProd"),
        "logsumexp" => |call| reduction(call, "ReduceLogSumExp"),
        "any" => |call| truth(call, "ReduceMax"),
        "all" => |call| truth(call, "ReduceMin"),
        "max" => |call| extreme(call, Extreme::Most),
        "min" => |call| extreme(call, Extreme::Least),
        "argmax" => |call| place(call, "ArgMax"),
        "argmin" => |call| place(call, "ArgMin"),
        "dist" => distance,
        "renorm" => renorm,
        "embedding_renorm" => renorm_rows,
        "var" => |call| {
            let value = variance(call, Moment::Variance)?;
            call.result(value)
        },
        "std" => |call| {
            let value = variance(call, Moment::Deviation)?;
            call.result(value)
        },
        "var_mean" => |call| with_mean(call, Moment::Variance),
        "std_mean" => |call| with_mean(call, Moment::Deviation),
        "aminmax" => |call| {
            let x = call.tensor("self")?;
            let (least, most) = (reduced(call, "ReduceMin", &x)?, reduced(call, "ReduceMax", &x)?);
            call.results(vec![Some(least), Some(most)])
        },
        "nansum" => |call| {
            let (x, _) = of_numbers(call)?;
            let value = reduced(call, "ReduceSum", &x)?;
            call.result(value)
        },
        "nanmean" => |call| {
            let (x, counts) = of_numbers(call)?;
            let (sum, count) = (reduced(call, "ReduceSum", &x)?, reduced(call, "ReduceSum", &counts)?);
            let value = call.plain("Div", &[&sum, &count]);
            call.result(value)
        },
        "cosine_similarity" => cosine_similarity,
        "mse_loss" => |call| loss(call, "Mul"),
        "l1_loss" => |call| loss(call, "Abs"),
        "count_nonzero" => |call| {
            let x = call.operand("self", DType::Bool)?;
            let number = call.cast(&x, DType::I64);
            let value = reduced(call, "ReduceSum", &number)?;
            call.result(value)
        },
        "linalg_vector_norm" | "norm" => norm,
        "linalg_matrix_norm" => matrix_norm,
        "linalg_norm" | "frobenius_norm" | "nuclear_norm" => any_norm,
        "cumsum" => |call| {
            let (x, axis) = (call.operand("self", call.result_dtype()?)?, call.axis("dim", 0)?);
            let axis = call.scalar(DType::I64, axis as f64);
            let value = call.plain("CumSum", &[&x, &axis]);
            call.result(value)
        },
        _ => return None,
    })
}

/// The axes of an argument `dim`, all where it is left out or empty.
fn axes(call: &Call<'_, '_>) -> Result<Vec<i64>> {
    let rank = call.rank("self")?;
    let stated = call.ints("dim")?.unwrap_or_default();
    if stated.is_empty() {
        return Ok((0..rank).collect());
    }
    stated.into_iter().map(|axis| call.axis_of(axis, rank)).collect()
}

fn reduced(call: &mut Call<'_, '_>, operator: &str, x: &str) -> Result<String> {
    let (axes, keep) = (axes(call)?, call.flag("keepdim", false)?);
    if call.rank("self")? == 0 {
        return Ok(x.to_owned());
    }
    let axes = call.integers(&axes);
    Ok(call.op(operator, &[x, &axes], &[("keepdims", Attribute::Int(i64::from(keep)))]))
}

fn reduction(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    let x = call.operand("self", call.result_dtype()?)?;
    let value = reduced(call, operator, &x)?;
    call.result(value)
}

fn truth(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    let x = call.operand("self", DType::Bool)?;
    let number = call.cast(&x, DType::I32);
    let number = reduced(call, operator, &number)?;
    let value = call.cast(&number, DType::Bool);
    call.result(value)
}

/// Of two tensors, of all elements, or along an axis with its places. Of all elements, equal ones share the gradient; along
/// an axis it goes to the place.
fn extreme(call: &mut Call<'_, '_>, extreme: Extreme) -> Result<()> {
    let (of_two, of_all) = match extreme {
        Extreme::Most => ("Max", "ReduceMax"),
        Extreme::Least => ("Min", "ReduceMin"),
    };
    if call.argument("other").is_some() {
        let dtype = call.result_dtype()?;
        let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
        let value = call.plain(of_two, &[&x, &y]);
        return call.result(value);
    }
    let x = call.tensor("self")?;
    if call.argument("dim").is_none() {
        let value = reduced(call, of_all, &x)?;
        return call.result(value);
    }
    let (axis, rank, dtype) = (call.axis("dim", 0)?, call.rank("self")?, call.dtype("self")?);
    if rank == 0 {
        let first = call.scalar(DType::I64, 0.0);
        return call.results(vec![Some(x), Some(first)]);
    }
    let (value, at) = chosen(call, ChosenOf { x: &x, rank, axis, dtype }, extreme);
    let mut found = [value, at];
    if !call.flag("keepdim", false)? {
        let along = call.integers(&[axis]);
        found = found.map(|kept| call.plain("Squeeze", &[&kept, &along]));
    }
    call.results(found.map(Some).into())
}

fn place(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    let (mut x, mut axis) = (call.tensor("self")?, 0);
    let keep = call.flag("keepdim", false)?;
    if call.argument("dim").is_some() {
        axis = call.axis("dim", 0)?;
    } else {
        if keep {
            return Err(call.unsupported("of all elements with keepdim"));
        }
        let shape = call.integers(&[-1]);
        x = call.plain("Reshape", &[&x, &shape]);
    }
    let attributes = [("axis", Attribute::Int(axis)), ("keepdims", Attribute::Int(i64::from(keep)))];
    let value = call.op(operator, &[&x], &attributes);
    call.result(value)
}

enum Moment {
    Variance,
    Deviation,
}

/// Elements with 0 in place of what is no number, and 1 for each that is one.
fn of_numbers(call: &mut Call<'_, '_>) -> Result<(String, String)> {
    let dtype = call.result_dtype()?;
    let (x, zero) = (call.operand("self", dtype)?, call.scalar(dtype, 0.0));
    let missing = call.plain("IsNaN", &[&x]);
    let numbers = call.plain("Where", &[&missing, &zero, &x]);
    let counts = call.plain("Not", &[&missing]);
    Ok((numbers, call.cast(&counts, dtype)))
}

fn with_mean(call: &mut Call<'_, '_>, moment: Moment) -> Result<()> {
    let value = variance(call, moment)?;
    let x = call.tensor("self")?;
    let mean = reduced(call, "ReduceMean", &x)?;
    call.results(vec![Some(value), Some(mean)])
}

/// Mean square of the distance from the mean, divided by as many elements less `correction`.
fn variance(call: &mut Call<'_, '_>, moment: Moment) -> Result<String> {
    let (x, dtype) = (call.tensor("self")?, call.result_dtype()?);
    let default = i64::from(call.flag("unbiased", true)?);
    let correction = call.float("correction", default as f64)?;
    let (axes, keep) = (axes(call)?, call.flag("keepdim", false)?);
    let axes = call.integers(&axes);
    let mean = call.op("ReduceMean", &[&x, &axes], &[("keepdims", Attribute::Int(1))]);
    let deviation = call.plain("Sub", &[&x, &mean]);
    let square = call.plain("Mul", &[&deviation, &deviation]);
    let sum = call.op("ReduceSum", &[&square, &axes], &[("keepdims", Attribute::Int(i64::from(keep)))]);
    let shape = call.plain("Shape", &[&x]);
    let sizes = call.plain("Gather", &[&shape, &axes]);
    let count = call.op("ReduceProd", &[&sizes], &[("keepdims", Attribute::Int(0))]);
    let count = call.cast(&count, dtype);
    let less = call.scalar(dtype, correction);
    let count = call.plain("Sub", &[&count, &less]);
    let mut value = call.plain("Div", &[&sum, &count]);
    if let Moment::Deviation = moment {
        value = root(call, &value, dtype);
    }
    Ok(value)
}

/// The product of two vectors along an axis, each divided by its norm.
fn cosine_similarity(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("x1", dtype)?, call.operand("x2", dtype)?);
    let axis = call.axis_of(call.int("dim", 1)?, call.rank("x1")?.max(call.rank("x2")?))?;
    let axes = call.integers(&[axis]);
    let least = call.float("eps", 1e-8)?;
    let least = call.scalar(dtype, least);
    let none = [("keepdims", Attribute::Int(0))];
    let product = call.plain("Mul", &[&x, &y]);
    let shape = call.plain("Shape", &[&product]);
    let product = call.op("ReduceSum", &[&product, &axes], &none);
    let mut norms = Vec::new();
    for value in [&x, &y] {
        // An axis of one element counts as often as it is repeated.
        let whole = call.plain("Expand", &[value, &shape]);
        let square = call.op("ReduceSumSquare", &[&whole, &axes], &none);
        let norm = root(call, &square, dtype);
        norms.push(call.plain("Max", &[&norm, &least]));
    }
    let both = call.plain("Mul", &[&norms[0], &norms[1]]);
    let value = call.plain("Div", &[&product, &both]);
    call.result(value)
}

/// The mean or sum of the squares or sizes of differences.
fn loss(call: &mut Call<'_, '_>, of: &str) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("target", dtype)?);
    let apart = call.plain("Sub", &[&x, &y]);
    let each = if of == "Abs" { call.plain("Abs", &[&apart]) } else { call.plain("Mul", &[&apart, &apart]) };
    super::loss::left(call, each)
}

fn norm(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.operand("self", call.result_dtype()?)?;
    norm_of(call, x)
}

/// Of matrices where two axes are named or an order of matrices is, else of vectors.
/// What is left of the singular values of matrices in the last two axes.
fn of_singular_values(
    call: &mut Call<'_, '_>,
    name: &str,
    of_all: &str,
    [first, second]: [i64; 2],
) -> Result<()> {
    let rank = call.rank(name)?;
    if first.min(second) != rank - 2 || first.max(second) != rank - 1 {
        return Err(call.unsupported("by singular values, but of the last two axes"));
    }
    let values = super::singular::values_of(call, name)?;
    let last = call.integers(&[-1]);
    let keep = call.flag("keepdim", false)?;
    let mut value = call.op(of_all, &[&values, &last], &[("keepdims", Attribute::Int(i64::from(keep)))]);
    if keep {
        value = call.plain("Unsqueeze", &[&value, &last]);
    }
    call.result(value)
}

fn any_norm(call: &mut Call<'_, '_>) -> Result<()> {
    let named = call.ints("dim")?.unwrap_or_default().len();
    let has_order = call.argument("ord").is_some();
    let of_matrices = match named {
        0 => has_order && call.rank("self")? == 2,
        count => has_order && count == 2,
    };
    match call.operation() {
        "nuclear_norm" => {
            let rank = call.rank("self")?;
            let stated = call.ints("dim")?.unwrap_or_else(|| vec![0, 1]);
            let axes = stated.iter().map(|&axis| call.axis_of(axis, rank)).collect::<Result<Vec<_>>>()?;
            let [first, second] = axes[..] else { return Err(call.wrong("a matrix has two axes")) };
            of_singular_values(call, "self", "ReduceSum", [first, second])
        }
        "linalg_norm" if of_matrices => matrix_norm(call),
        _ => norm(call),
    }
}

/// Which norm of a matrix.
enum MatrixNorm {
    Frobenius,
    /// The largest singular value, the least, or the sum of all.
    Singular(&'static str),
    /// The largest of sums along its first axis, or the second; or the least.
    Sums {
        along: usize,
        of_all: &'static str,
    },
}

impl MatrixNorm {
    fn of(call: &Call<'_, '_>) -> Result<Self> {
        match call.text("ord", "fro") {
            Ok("fro") => return Ok(Self::Frobenius),
            Ok("nuc") => return Ok(Self::Singular("ReduceSum")),
            // An infinity is a text too.
            _ => {}
        }
        let order = call.float("ord", 2.0)?;
        let of_all = if order < 0.0 { "ReduceMin" } else { "ReduceMax" };
        match order.abs() {
            1.0 => Ok(Self::Sums { along: 0, of_all }),
            f64::INFINITY => Ok(Self::Sums { along: 1, of_all }),
            2.0 => Ok(Self::Singular(of_all)),
            order => Err(call.unsupported(format!("of order {order}"))),
        }
    }
}

fn matrix_norm(call: &mut Call<'_, '_>) -> Result<()> {
    let name = if call.argument("A").is_some() { "A" } else { "self" };
    let (dtype, rank, kind) = (call.result_dtype()?, call.rank(name)?, MatrixNorm::of(call)?);
    let stated = call.ints("dim")?.unwrap_or_else(|| vec![-2, -1]);
    let axes = stated.iter().map(|&axis| call.axis_of(axis, rank)).collect::<Result<Vec<_>>>()?;
    let [first, second] = axes[..] else { return Err(call.wrong("a matrix has two axes")) };
    let x = call.operand(name, dtype)?;
    let mut value = match kind {
        MatrixNorm::Frobenius => {
            let square = over(call, "ReduceSumSquare", &x, &[first, second]);
            root(call, &square, dtype)
        }
        MatrixNorm::Singular(of_all) => return of_singular_values(call, name, of_all, [first, second]),
        MatrixNorm::Sums { along, of_all } => {
            let sums = over(call, "ReduceL1", &x, &[[first, second][along]]);
            over(call, of_all, &sums, &[[second, first][along]])
        }
    };
    if !call.flag("keepdim", false)? {
        let both = call.integers(&[first, second]);
        value = call.plain("Squeeze", &[&value, &both]);
    }
    call.result(value)
}

/// Reduced over axes that stay.
fn over(call: &mut Call<'_, '_>, operator: &str, x: &str, axes: &[i64]) -> String {
    let axes = call.integers(axes);
    call.op(operator, &[x, &axes], &[("keepdims", Attribute::Int(1))])
}

/// The norm of a value in place of the operand.
pub(super) fn norm_of(call: &mut Call<'_, '_>, x: String) -> Result<()> {
    let order = if call.argument("ord").is_some() { "ord" } else { "p" };
    let order = call.float(order, 2.0)?;
    let dtype = call.result_dtype()?;
    let value = norm_by(call, &x, order, dtype, reduced)?;
    call.result(value)
}

/// The norm of a difference, of all its elements.
fn distance(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y, order) = (call.operand("self", dtype)?, call.operand("other", dtype)?, call.float("p", 2.0)?);
    let apart = call.plain("Sub", &[&x, &y]);
    let value = norm_by(call, &apart, order, dtype, |call, operator, x| {
        Ok(call.op(operator, &[x], &[("keepdims", Attribute::Int(0))]))
    })?;
    call.result(value)
}

/// Parts along an axis, each made as short as a norm allows.
fn renorm(call: &mut Call<'_, '_>) -> Result<()> {
    let (dtype, rank, axis) = (call.result_dtype()?, call.rank("self")?, call.axis("dim", 0)?);
    let (x, order, most) = (call.operand("self", dtype)?, call.float("p", 2.0)?, call.float("maxnorm", 1.0)?);
    let others: Vec<i64> = (0..rank).filter(|&other| other != axis).collect();
    let factor = shortening(call, &x, order, most, &others)?;
    let value = call.plain("Mul", &[&x, &factor]);
    call.result(value)
}

/// What makes slices no longer than `most` in a norm over axes.
fn shortening(call: &mut Call<'_, '_>, x: &str, order: f64, most: f64, axes: &[i64]) -> Result<String> {
    let dtype = call.result_dtype()?;
    let norm = norm_by(call, x, order, dtype, |call, operator, x| Ok(over(call, operator, x, axes)))?;
    let (limit, one, little) = (call.scalar(dtype, most), call.scalar(dtype, 1.0), call.scalar(dtype, 1e-7));
    // PyTorch's own addition, so that nothing is divided by 0.
    let divisor = call.plain("Add", &[&norm, &little]);
    let factor = call.plain("Div", &[&limit, &divisor]);
    let is_long = call.plain("Greater", &[&norm, &limit]);
    Ok(call.plain("Where", &[&is_long, &factor, &one]))
}

/// Of a table, the rows that are looked up are made no longer than `max_norm`.
fn renorm_rows(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, rows) = (call.operand("self", dtype)?, call.operand("indices", DType::I64)?);
    let (order, most) = (call.float("norm_type", 2.0)?, call.float("max_norm", 1.0)?);
    let factor = shortening(call, &x, order, most, &[1])?;
    let (all, zero, one) = (call.integers(&[-1]), call.scalar(DType::I64, 0.0), call.scalar(DType::I64, 1.0));
    let rows = call.plain("Reshape", &[&rows, &all]);
    let (shape, height) =
        (call.plain("Shape", &[&rows]), call.op("Shape", &[&x], &[("end", Attribute::Int(1))]));
    let (none, ones) = (call.plain("Expand", &[&zero, &height]), call.plain("Expand", &[&one, &shape]));
    let largest = [("axis", Attribute::Int(0)), ("reduction", Attribute::Text("max"))];
    let is_read = call.op("ScatterElements", &[&none, &rows, &ones], &largest);
    let is_read = call.cast(&is_read, DType::Bool);
    let is_read = call.plain("Unsqueeze", &[&is_read, &all]);
    let whole = call.scalar(dtype, 1.0);
    let factor = call.plain("Where", &[&is_read, &factor, &whole]);
    let value = call.plain("Mul", &[&x, &factor]);
    call.result(value)
}
