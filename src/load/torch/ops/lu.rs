//! Matrices as products of a permutation and two triangles, by elimination with the largest element of a column as pivot,
//! and systems of equations that such factors solve.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use super::solve::{MOST_ROWS, broadcast, eliminated, rows_of, turned, unit};
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "linalg_lu_factor" | "linalg_lu_factor_ex" => |call| packed(call, "A"),
        "_lu_with_info" => |call| packed(call, "self"),
        "linalg_lu" => factors,
        "lu_unpack" => unpacked,
        "linalg_lu_solve" => solve,
        "lu_solve" => solve_old,
        _ => return None,
    })
}

/// What elimination leaves: both triangles in one matrix, by step the row that was exchanged with the first one left, and
/// the rows of another matrix in the order in which they were used.
struct Eliminated {
    triangles: String,
    exchanged: Vec<String>,
    along: Option<String>,
}

/// A matrix of a batch, and its sizes.
struct Matrix {
    x: String,
    rows: i64,
    columns: i64,
    dtype: DType,
}

impl Matrix {
    /// Error: sizes are open, or there are too many rows.
    fn of(call: &mut Call<'_, '_>, name: &str) -> Result<Self> {
        let sizes = &call.meta(name)?.sizes;
        let known: Option<Vec<i64>> = sizes.iter().rev().take(2).map(schema::size).collect();
        match known.as_deref() {
            Some(&[columns, rows]) if (1..=MOST_ROWS).contains(&rows) && columns >= 1 => {
                Ok(Self { x: call.tensor(name)?, rows, columns, dtype: call.dtype(name)? })
            }
            _ => Err(call.unsupported(format!("of other than matrices of up to {MOST_ROWS} rows"))),
        }
    }

    /// Eliminates below the diagonal; the factors of each row stay where it has become 0.
    fn eliminated(&self, call: &mut Call<'_, '_>, along: Option<String>) -> Eliminated {
        let column = call.integers(&[-1]);
        let [none, end] = [0, i64::MAX].map(|bound| call.integers(&[bound]));
        let mut rest = self.x.clone();
        let mut left = along;
        let (mut done, mut used, mut exchanged) = (Vec::new(), Vec::new(), Vec::new());
        for step in 0..self.rows.min(self.columns) {
            let [from, to] = [step, step + 1].map(|bound| call.integers(&[bound]));
            let lead = call.plain("Slice", &[&rest, &from, &to, &column]);
            let size = call.plain("Abs", &[&lead]);
            let largest = [("axis", Attribute::Int(-2)), ("keepdims", Attribute::Int(1))];
            let place = call.op("ArgMax", &[&size], &largest);
            let Exchanged { first, others } = exchange(call, &rest, &place, self.rows - step, self.dtype);
            if let Some(matrix) = left {
                let own = exchange(call, &matrix, &place, self.rows - step, self.dtype);
                used.push(own.first);
                left = own.others;
            }
            exchanged.push(place);
            done.push(first.clone());
            let Some(others) = others else { break };
            let [before, lead, after] = [[&none, &from], [&from, &to], [&to, &end]]
                .map(|[a, b]| call.plain("Slice", &[&others, a, b, &column]));
            let pivot = call.plain("Slice", &[&first, &from, &to, &column]);
            let factor = call.plain("Div", &[&lead, &pivot]);
            let along = call.plain("Slice", &[&first, &to, &end, &column]);
            let share = call.plain("Mul", &[&factor, &along]);
            let after = call.plain("Sub", &[&after, &share]);
            rest = call.op("Concat", &[&before, &factor, &after], &[("axis", Attribute::Int(-1))]);
        }
        if self.rows > self.columns {
            done.push(rest);
            used.extend(left);
        }
        let triangles = joined(call, &done, -2);
        let along = (!used.is_empty()).then(|| joined(call, &used, -2));
        Eliminated { triangles, exchanged, along }
    }

    /// The lower triangle with ones on its diagonal, and the upper one, of both in one matrix.
    fn triangles(&self, call: &mut Call<'_, '_>, packed: &str) -> [String; 2] {
        let least = self.rows.min(self.columns);
        let [none, edge, row, column] = [0, least, -2, -1].map(|number| call.integers(&[number]));
        let left = call.plain("Slice", &[packed, &none, &edge, &column]);
        let below = call.scalar(DType::I64, -1.0);
        let lower = call.op("Trilu", &[&left, &below], &[("upper", Attribute::Int(0))]);
        let diagonal: Vec<f64> =
            (0..self.rows * least).map(|at| f64::from(u8::from(at / least == at % least))).collect();
        let (ones, sizes) = (call.numbers(self.dtype, &diagonal), call.integers(&[self.rows, least]));
        let ones = call.plain("Reshape", &[&ones, &sizes]);
        let lower = call.plain("Add", &[&lower, &ones]);
        let top = call.plain("Slice", &[packed, &none, &edge, &row]);
        [lower, call.op("Trilu", &[&top], &[("upper", Attribute::Int(1))])]
    }
}

/// Rows of which one was exchanged with the first.
struct Exchanged {
    first: String,
    /// None where there was one row.
    others: Option<String>,
}

/// Takes the row at `place` among `count` to the front. A gather would need an index for each matrix; a masked sum is that
/// row exactly.
fn exchange(call: &mut Call<'_, '_>, rows: &str, place: &str, count: i64, dtype: DType) -> Exchanged {
    let [none, one, end, axis] = [0, 1, i64::MAX, -2].map(|number| call.integers(&[number]));
    let numbers: Vec<i64> = (0..count).collect();
    let (numbers, column) = (call.integers(&numbers), call.integers(&[-1]));
    let numbers = call.plain("Unsqueeze", &[&numbers, &column]);
    let is_it = call.plain("Equal", &[&numbers, place]);
    let zero = call.scalar(dtype, 0.0);
    let alone = call.plain("Where", &[&is_it, rows, &zero]);
    let first = call.op("ReduceSum", &[&alone, &axis], &[("keepdims", Attribute::Int(1))]);
    let others = (count > 1).then(|| {
        let head = call.plain("Slice", &[rows, &none, &one, &axis]);
        let all = call.plain("Where", &[&is_it, &head, rows]);
        call.plain("Slice", &[&all, &one, &end, &axis])
    });
    Exchanged { first, others }
}

fn joined(call: &mut Call<'_, '_>, parts: &[String], axis: i64) -> String {
    match parts {
        [one] => one.clone(),
        parts => {
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            call.op("Concat", &parts, &[("axis", Attribute::Int(axis))])
        }
    }
}

/// Error: rows are to stay in their order.
fn check_pivots(call: &Call<'_, '_>) -> Result<()> {
    match call.flag("pivot", true)? {
        true => Ok(()),
        false => Err(call.unsupported("without an exchange of rows")),
    }
}

fn packed(call: &mut Call<'_, '_>, name: &str) -> Result<()> {
    check_pivots(call)?;
    let matrix = Matrix::of(call, name)?;
    let made = matrix.eliminated(call, None);
    // Rows are counted from 1, and from the first of the matrix.
    let mut pivots = Vec::new();
    for (step, place) in made.exchanged.iter().enumerate() {
        let before = call.scalar(DType::I64, (step + 1) as f64);
        pivots.push(call.plain("Add", &[place, &before]));
    }
    let (all, row) = (joined(call, &pivots, -1), call.integers(&[-2]));
    let pivots = call.plain("Squeeze", &[&all, &row]);
    let pivots = call.cast(&pivots, DType::I32);
    let mut results = vec![Some(made.triangles), Some(pivots)];
    if call.is_read(2) {
        let zero = call.scalar(DType::I32, 0.0);
        let shape = call.op("Shape", &[&matrix.x], &[("end", Attribute::Int(-2))]);
        results.push(Some(call.plain("Expand", &[&zero, &shape])));
    }
    call.results(results)
}

/// The permutation, the lower triangle and the upper one.
fn factors(call: &mut Call<'_, '_>) -> Result<()> {
    check_pivots(call)?;
    let (matrix, rank) = (Matrix::of(call, "A")?, call.rank("A")?);
    let unit = square_unit(call, &matrix);
    let made = matrix.eliminated(call, Some(unit));
    let [lower, upper] = matrix.triangles(call, &made.triangles);
    let permutation = made.along.map(|along| turned(call, &along, rank));
    call.results(vec![permutation, Some(lower), Some(upper)])
}

/// A unit matrix of as many rows for each matrix.
fn square_unit(call: &mut Call<'_, '_>, matrix: &Matrix) -> String {
    let front = call.op("Shape", &[&matrix.x], &[("end", Attribute::Int(-2))]);
    let sizes = call.integers(&[matrix.rows, matrix.rows]);
    let shape = call.op("Concat", &[&front, &sizes], &[("axis", Attribute::Int(0))]);
    let zero = call.scalar(matrix.dtype, 0.0);
    let like = call.plain("Expand", &[&zero, &shape]);
    unit(call, &like, matrix.rows, matrix.dtype)
}

/// The same of what was packed.
fn unpacked(call: &mut Call<'_, '_>) -> Result<()> {
    let (matrix, rank) = (Matrix::of(call, "LU_data")?, call.rank("LU_data")?);
    let packed = matrix.x.clone();
    let [lower, upper] = match call.flag("unpack_data", true)? {
        true => matrix.triangles(call, &packed).map(Some),
        false => [None, None],
    };
    let permutation = match call.flag("unpack_pivots", true)? {
        true => {
            let steps = matrix.rows.min(matrix.columns);
            let unit = square_unit(call, &matrix);
            let pivots = call.operand("LU_pivots", DType::I64)?;
            let used = in_order(call, &unit, &pivots, (matrix.rows, steps), matrix.dtype);
            Some(turned(call, &used, rank))
        }
        false => None,
    };
    call.results(vec![permutation, lower, upper])
}

/// Where the row is that a step exchanges, counted from the step's own.
fn place_of(call: &mut Call<'_, '_>, pivots: &str, step: i64) -> String {
    let [from, to, axis, column] = [step, step + 1, -1, -1].map(|number| call.integers(&[number]));
    let own = call.plain("Slice", &[pivots, &from, &to, &axis]);
    let own = call.plain("Unsqueeze", &[&own, &column]);
    let before = call.scalar(DType::I64, (step + 1) as f64);
    call.plain("Sub", &[&own, &before])
}

/// Rows in the order in which elimination used them.
fn in_order(
    call: &mut Call<'_, '_>,
    x: &str,
    pivots: &str,
    (rows, steps): (i64, i64),
    dtype: DType,
) -> String {
    let mut rest = Some(x.to_owned());
    let mut used = Vec::new();
    for step in 0..steps {
        let Some(left) = rest else { break };
        let place = place_of(call, pivots, step);
        let Exchanged { first, others } = exchange(call, &left, &place, rows - step, dtype);
        used.push(first);
        rest = others;
    }
    used.extend(rest);
    joined(call, &used, -2)
}

fn solve(call: &mut Call<'_, '_>) -> Result<()> {
    let (left, adjoint) = (call.flag("left", true)?, call.flag("adjoint", false)?);
    let (own, b, rank) = (call.rank("LU")?, call.tensor("B")?, call.rank("B")?);
    // `x a = b` is `a^T x^T = b^T`.
    let b = if left { b } else { turned(call, &b, rank) };
    let value = solved(call, ["LU", "pivots"], &b, left == adjoint)?;
    let value = if left { value } else { turned(call, &value, own.max(rank)) };
    call.result(value)
}

fn solve_old(call: &mut Call<'_, '_>) -> Result<()> {
    let b = call.tensor("self")?;
    let value = solved(call, ["LU_data", "LU_pivots"], &b, false)?;
    call.result(value)
}

/// The solution for a matrix of these factors, or for its transpose.
fn solved(call: &mut Call<'_, '_>, [packed, pivots]: [&str; 2], b: &str, is_turned: bool) -> Result<String> {
    let (rows, rank, dtype) = (rows_of(call, packed)?, call.rank(packed)?, call.dtype(packed)?);
    let matrix = Matrix::of(call, packed)?;
    let pivots = call.operand(pivots, DType::I64)?;
    let [lower, upper] = matrix.triangles(call, &matrix.x);
    let unit = square_unit(call, &matrix);
    let order = in_order(call, &unit, &pivots, (rows, rows), dtype);
    let [first, second, third] = match is_turned {
        // a = order^T lower upper
        false => [None, Some(lower), Some(upper)],
        true => [Some(turned(call, &upper, rank)), Some(turned(call, &lower, rank)), None],
    };
    let mut value = match is_turned {
        false => call.plain("MatMul", &[&order, b]),
        true => b.to_owned(),
    };
    for triangle in [first, second, third].into_iter().flatten() {
        let (triangle, other) = broadcast(call, &triangle, &value);
        value = eliminated(call, &triangle, &other, rows, dtype)?;
    }
    if is_turned {
        let back = turned(call, &order, rank);
        value = call.plain("MatMul", &[&back, &value]);
    }
    Ok(value)
}
