//! Systems of linear equations, inverses and roots of small matrices, by elimination.

use super::super::call::{Call, results};
use super::super::schema;
use super::Lower;
use super::slope::with_gradient_of;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// Larger matrices are not eliminated row by row.
pub(super) const MOST_ROWS: i64 = 64;

/// Larger unit matrices are not written.
const MOST_UNIT: i64 = 1024;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "inverse" => |call| inverse(call, "self"),
        "linalg_inv" | "linalg_inv_ex" => |call| inverse(call, "A"),
        "linalg_solve" | "linalg_solve_ex" | "_linalg_solve_ex" => solve,
        "linalg_solve_triangular" => solve_triangular,
        "triangular_solve" => solve_old_triangular,
        "cholesky_solve" => |call| solve_by_root(call, "input2"),
        "cholesky_inverse" => |call| solve_by_root(call, "self"),
        "cholesky" | "linalg_cholesky" | "linalg_cholesky_ex" => cholesky,
        _ => return None,
    })
}

/// Rows of the square matrices of an argument. Error: they are open, not square, or too many.
pub(super) fn rows_of(call: &Call<'_, '_>, name: &str) -> Result<i64> {
    let sizes = &call.meta(name)?.sizes;
    let known = |from_end: usize| {
        sizes.len().checked_sub(from_end).and_then(|axis| sizes.get(axis)).and_then(schema::size)
    };
    match (known(2), known(1)) {
        (Some(rows), Some(columns)) if rows == columns && (1..=MOST_ROWS).contains(&rows) => Ok(rows),
        _ => Err(call.unsupported(format!("of other than square matrices of up to {MOST_ROWS} rows"))),
    }
}

fn inverse(call: &mut Call<'_, '_>, name: &str) -> Result<()> {
    let (value, x) = (inverted(call, name)?, call.tensor(name)?);
    with_success(call, value, &x)
}

/// The inverse of each matrix of an argument.
pub(super) fn inverted(call: &mut Call<'_, '_>, name: &str) -> Result<String> {
    let (rows, x, dtype) = (rows_of(call, name)?, call.tensor(name)?, call.dtype(name)?);
    let unit = unit(call, &x, rows, dtype);
    eliminated(call, &x, &unit, rows, dtype)
}

/// A unit matrix for each matrix of an argument. Error: they are not square, or of an open size.
pub(super) fn unit_like(call: &mut Call<'_, '_>, name: &str) -> Result<String> {
    let sizes = &call.meta(name)?.sizes;
    let known: Option<Vec<i64>> = sizes.iter().rev().take(2).map(schema::size).collect();
    let rows = match known.as_deref() {
        Some(&[columns, rows]) if rows == columns && (1..=MOST_UNIT).contains(&rows) => rows,
        _ => return Err(call.unsupported(format!("of other than square matrices of up to {MOST_UNIT} rows"))),
    };
    let (x, dtype) = (call.tensor(name)?, call.dtype(name)?);
    Ok(unit(call, &x, rows, dtype))
}

/// A unit matrix for each of the matrices.
pub(super) fn unit(call: &mut Call<'_, '_>, x: &str, rows: i64, dtype: DType) -> String {
    let (zero, sizes) = (call.scalar(dtype, 0.0), call.integers(&[rows, rows]));
    let zeros = call.plain("Expand", &[&zero, &sizes]);
    let one = call.plain("EyeLike", &[&zeros]);
    let shape = call.plain("Shape", &[x]);
    call.plain("Expand", &[&one, &shape])
}

/// The result, and as the last one that nothing failed, in the shape of the batch: what is singular has infinities, as in
/// PyTorch where it does not check.
fn with_success(call: &mut Call<'_, '_>, value: String, of: &str) -> Result<()> {
    let count = results(call.node).len();
    if (1..count).any(|number| call.is_read(number) && number + 1 != count) {
        return Err(call.unsupported("with its factors"));
    }
    let mut all = vec![None; count.max(1)];
    if count > 1 && call.is_read(count - 1) {
        let zero = call.scalar(DType::I32, 0.0);
        let shape = call.op("Shape", &[of], &[("end", Attribute::Int(-2))]);
        all[count - 1] = Some(call.plain("Expand", &[&zero, &shape]));
    }
    all[0] = Some(value);
    call.results(all)
}

fn solve(call: &mut Call<'_, '_>) -> Result<()> {
    let (rows, dtype) = (rows_of(call, "A")?, call.dtype("A")?);
    let (a, b) = (call.tensor("A")?, call.tensor("B")?);
    if !call.flag("left", true)? {
        return from_the_right(call, "A", a);
    }
    // A vector where there is no axis for columns.
    let (own, other) = (call.rank("A")?, call.rank("B")?);
    let is_vector = other == 1 || (other == own - 1 && batch_fits(call));
    let column = call.integers(&[-1]);
    let b = if is_vector { call.plain("Unsqueeze", &[&b, &column]) } else { b };
    let (a, b) = broadcast(call, &a, &b);
    let mut value = eliminated(call, &a, &b, rows, dtype)?;
    if is_vector {
        value = call.plain("Squeeze", &[&value, &column]);
    }
    with_success(call, value, &a)
}

/// Whether the sizes of `B` are those of `A` without its last axis.
fn batch_fits(call: &Call<'_, '_>) -> bool {
    let dims = |name: &str| call.meta(name).ok().and_then(|meta| meta.dims());
    match (dims("A"), dims("B")) {
        (Some(a), Some(b)) => a.split_last().is_some_and(|(_, front)| front == b.as_slice()),
        _ => false,
    }
}

/// Matrices in one batch: their axes but the last two broadcast.
pub(super) fn broadcast(call: &mut Call<'_, '_>, a: &str, b: &str) -> (String, String) {
    let front = [("end", Attribute::Int(-2))];
    let ones = call.integers(&[1, 1]);
    let [of_a, of_b] = [a, b].map(|x| {
        let batch = call.op("Shape", &[x], &front);
        call.op("Concat", &[&batch, &ones], &[("axis", Attribute::Int(0))])
    });
    (call.plain("Expand", &[a, &of_b]), call.plain("Expand", &[b, &of_a]))
}

fn solve_triangular(call: &mut Call<'_, '_>) -> Result<()> {
    let (rows, dtype) = (rows_of(call, "self")?, call.dtype("self")?);
    let x = call.tensor("self")?;
    let a = triangle(call, x, false)?;
    if !call.flag("left", true)? {
        return from_the_right(call, "self", a);
    }
    let b = call.tensor("B")?;
    let (a, b) = broadcast(call, &a, &b);
    let value = eliminated(call, &a, &b, rows, dtype)?;
    call.result(value)
}

/// `b a^-1`: the transpose of `a^-T b^T`. `name` is the argument that `a` has the sizes of.
fn from_the_right(call: &mut Call<'_, '_>, name: &str, a: String) -> Result<()> {
    let (rows, dtype, own) = (rows_of(call, name)?, call.dtype(name)?, call.rank(name)?);
    let (b, other) = (call.tensor("B")?, call.rank("B")?);
    let (a, b) = (turned(call, &a, own), turned(call, &b, other));
    let (a, b) = broadcast(call, &a, &b);
    let value = eliminated(call, &a, &b, rows, dtype)?;
    let value = turned(call, &value, own.max(other));
    with_success(call, value, &a)
}

pub(super) fn turned(call: &mut Call<'_, '_>, x: &str, rank: i64) -> String {
    let order: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    call.op("Transpose", &[x], &[("perm", Attribute::Ints(&order))])
}

/// `self` is what is solved for, and its matrices may be transposed first.
fn solve_old_triangular(call: &mut Call<'_, '_>) -> Result<()> {
    if call.is_read(1) {
        return Err(call.unsupported("with a copy of its matrices"));
    }
    let (rows, dtype, rank) = (rows_of(call, "A")?, call.dtype("A")?, call.rank("A")?);
    let (x, b) = (call.tensor("A")?, call.tensor("self")?);
    let mut a = triangle(call, x, true)?;
    if call.flag("transpose", false)? {
        a = turned(call, &a, rank);
    }
    let (a, b) = broadcast(call, &a, &b);
    let value = eliminated(call, &a, &b, rows, dtype)?;
    call.results(vec![Some(value)])
}

/// `(L L^T)^-1 b` of a triangle, or of the unit matrix.
fn solve_by_root(call: &mut Call<'_, '_>, name: &str) -> Result<()> {
    let (rows, dtype, rank) = (rows_of(call, name)?, call.dtype(name)?, call.rank(name)?);
    let x = call.tensor(name)?;
    let mut lower = triangle(call, x, false)?;
    if call.flag("upper", false)? {
        lower = turned(call, &lower, rank);
    }
    let b = match name {
        "self" => unit(call, &lower, rows, dtype),
        _ => call.tensor("self")?,
    };
    let upper = turned(call, &lower, rank);
    let (lower, b) = broadcast(call, &lower, &b);
    let half = eliminated(call, &lower, &b, rows, dtype)?;
    let (upper, half) = broadcast(call, &upper, &half);
    let mut value = eliminated(call, &upper, &half, rows, dtype)?;
    if name == "self" {
        value = with_gradient_by_whole(call, &value, rank)?;
    }
    call.result(value)
}

/// An inverse `M` with the gradient of `-M x x^T M`, in which M is a constant: PyTorch's gradient reaches all of `x`, though
/// one triangle is read.
fn with_gradient_by_whole(call: &mut Call<'_, '_>, inverse: &str, rank: i64) -> Result<String> {
    let x = call.tensor("self")?;
    let across = turned(call, &x, rank);
    let square = match call.flag("upper", false)? {
        true => call.plain("MatMul", &[&across, &x]),
        false => call.plain("MatMul", &[&x, &across]),
    };
    let fixed = call.plain("StopGradient", &[inverse]);
    let value = call.plain("MatMul", &[&fixed, &square]);
    let value = call.plain("MatMul", &[&value, &fixed]);
    let value = call.plain("Neg", &[&value]);
    Ok(with_gradient_of(call, inverse, &value))
}

/// The triangle that is read, with a diagonal of ones where it is said to be so.
fn triangle(call: &mut Call<'_, '_>, x: String, is_upper: bool) -> Result<String> {
    let dtype = call.result_dtype()?;
    let upper = i64::from(call.flag("upper", is_upper)?);
    let diagonal = if call.flag("unitriangular", false)? { 1 } else { 0 };
    // Only one triangle is read; the other, and a diagonal of ones, are not those that lie there.
    let offset = call.scalar(DType::I64, if upper == 1 { diagonal as f64 } else { -diagonal as f64 });
    let mut a = call.op("Trilu", &[&x, &offset], &[("upper", Attribute::Int(upper))]);
    if diagonal == 1 {
        let name = if call.argument("A").is_some() { "A" } else { "self" };
        let rows = rows_of(call, name)?;
        let unit = unit(call, &a, rows, dtype);
        a = call.plain("Add", &[&a, &unit]);
    }
    Ok(a)
}

/// `a^-1 b` of matrices, by Gauss and Jordan, with the largest element of a column as pivot.
pub(super) fn eliminated(
    call: &mut Call<'_, '_>,
    a: &str,
    b: &str,
    rows: i64,
    dtype: DType,
) -> Result<String> {
    let mut x = call.op("Concat", &[a, b], &[("axis", Attribute::Int(-1))]);
    let (row, column, keep) = (call.integers(&[-2]), call.integers(&[-1]), Attribute::Int(1));
    let zero = call.scalar(dtype, 0.0);
    let [none, one, end] = [0, 1, i64::MAX].map(|bound| call.integers(&[bound]));
    let keep = [("keepdims", keep)];
    for done in 0..rows {
        let left = rows - done;
        let place = call.integers(&[done]);
        let rest = if done > 0 { call.plain("Slice", &[&x, &place, &end, &row]) } else { x.clone() };
        let first = call.plain("Slice", &[&rest, &none, &one, &column]);
        let height = call.plain("Abs", &[&first]);
        let largest = [("axis", Attribute::Int(-2)), ("keepdims", Attribute::Int(1))];
        let largest = call.op("ArgMax", &[&height], &largest);
        let numbers: Vec<i64> = (0..left).collect();
        let numbers = call.integers(&numbers);
        let numbers = call.plain("Unsqueeze", &[&numbers, &column]);
        let is_pivot = call.plain("Equal", &[&numbers, &largest]);
        // A gather would need an index for each matrix; a masked sum is that row exactly.
        let alone = call.plain("Where", &[&is_pivot, &rest, &zero]);
        let pivot_row = call.op("ReduceSum", &[&alone, &row], &keep);
        let pivot = call.plain("Slice", &[&pivot_row, &none, &one, &column]);
        let scaled = call.plain("Div", &[&pivot_row, &pivot]);
        let mut parts = Vec::new();
        if done > 0 {
            let solved = call.plain("Slice", &[&x, &none, &place, &row]);
            parts.push(reduced(call, &solved, &scaled, [&none, &one, &column]));
        }
        parts.push(scaled.clone());
        if left > 1 {
            // The first row takes the pivot's place.
            let head = call.plain("Slice", &[&rest, &none, &one, &row]);
            let swapped = call.plain("Where", &[&is_pivot, &head, &rest]);
            let others = call.plain("Slice", &[&swapped, &one, &end, &row]);
            parts.push(reduced(call, &others, &scaled, [&none, &one, &column]));
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let all = match parts.as_slice() {
            [one] => (*one).to_owned(),
            parts => call.op("Concat", parts, &[("axis", Attribute::Int(-2))]),
        };
        // A column of the unit matrix is not needed any more.
        x = call.plain("Slice", &[&all, &one, &end, &column]);
    }
    Ok(x)
}

/// Rows less as much of the pivot's as makes their first element 0.
fn reduced(call: &mut Call<'_, '_>, rows: &str, pivot: &str, [none, one, column]: [&str; 3]) -> String {
    let lead = call.plain("Slice", &[rows, none, one, column]);
    let share = call.plain("Mul", &[&lead, pivot]);
    call.plain("Sub", &[rows, &share])
}

/// The lower triangle whose product with its transpose is the matrix, column by column; the upper one is its transpose.
fn cholesky(call: &mut Call<'_, '_>) -> Result<()> {
    let (rows, dtype) = (rows_of(call, "self")?, call.dtype("self")?);
    let upper = call.flag("upper", false)?;
    let (matrices, rank) = (call.tensor("self")?, call.rank("self")?);
    let exchanged: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    let perm = [("perm", Attribute::Ints(&exchanged))];
    // One triangle is read, and both get its gradient.
    let across = call.op("Transpose", &[&matrices], &perm);
    let (sum, half) = (call.plain("Add", &[&matrices, &across]), call.scalar(dtype, 0.5));
    let mean = call.plain("Mul", &[&sum, &half]);
    let mut x = with_gradient_of(call, if upper { &across } else { &matrices }, &mean);
    let (row, column) = (call.integers(&[-2]), call.integers(&[-1]));
    let [none, one, end] = [0, 1, i64::MAX].map(|bound| call.integers(&[bound]));
    let zero = call.scalar(dtype, 0.0);
    let mut columns = Vec::new();
    for done in 0..rows {
        let first = call.plain("Slice", &[&x, &none, &one, &column]);
        let square = call.plain("Slice", &[&first, &none, &one, &row]);
        let root = call.plain("Sqrt", &[&square]);
        let own = call.plain("Div", &[&first, &root]);
        let mut pads = vec![0; 2 * rank as usize];
        pads[rank as usize - 2] = done;
        let pads = call.integers(&pads);
        columns.push(call.plain("Pad", &[&own, &pads, &zero]));
        if done + 1 == rows {
            break;
        }
        let below = call.plain("Slice", &[&own, &one, &end, &row]);
        let across = call.op("Transpose", &[&below], &perm);
        let product = call.plain("Mul", &[&below, &across]);
        let rest = call.plain("Slice", &[&x, &one, &end, &row]);
        let rest = call.plain("Slice", &[&rest, &one, &end, &column]);
        x = call.plain("Sub", &[&rest, &product]);
    }
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut value = call.op("Concat", &columns, &[("axis", Attribute::Int(-1))]);
    if upper {
        value = call.op("Transpose", &[&value], &perm);
    }
    with_success(call, value, &matrices)
}
