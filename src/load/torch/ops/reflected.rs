//! Matrices as products of orthogonal and triangular ones, by reflections.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// Matrices with more columns and rows are not reflected column by column.
const MOST_STEPS: i64 = 64;

/// Larger square factors are not made.
const MOST_ROWS: i64 = 1024;

pub(super) fn find(name: &str) -> Option<Lower> {
    matches!(name, "linalg_qr").then_some(factors)
}

/// Sizes of the matrices that are reflected.
struct Reflections {
    rows: i64,
    columns: i64,
    dtype: DType,
}

impl Reflections {
    fn of(call: &Call<'_, '_>) -> Result<Self> {
        let (sizes, dtype) = (&call.meta("A")?.sizes, call.dtype("A")?);
        let known: Option<Vec<i64>> = sizes.iter().rev().take(2).map(schema::size).collect();
        match known.as_deref() {
            Some(&[columns, rows]) if rows.min(columns) >= 1 && rows.min(columns) <= MOST_STEPS => {
                Ok(Self { rows, columns, dtype })
            }
            _ => Err(call.unsupported(format!("of other than matrices with a side of up to {MOST_STEPS}"))),
        }
    }

    /// The direction in which a column is reflected onto its element in row `at`, as a column, and 2 by its square: 0 where
    /// nothing lies below, as in LAPACK (`larfg`), whose signs these are.
    fn direction(&self, call: &mut Call<'_, '_>, x: &str, at: i64) -> [String; 2] {
        let [place, next, end, row, column] =
            [at, at + 1, i64::MAX, -2, -1].map(|number| call.integers(&[number]));
        let [zero, one, two] = [0.0, 1.0, 2.0].map(|number| call.scalar(self.dtype, number));
        let own = call.plain("Slice", &[x, &place, &next, &column]);
        let head = call.plain("Slice", &[&own, &place, &next, &row]);
        let below = call.plain("Slice", &[&own, &next, &end, &row]);
        let keep = [("keepdims", Attribute::Int(1))];
        let tail = call.op("ReduceL2", &[&below, &row], &keep);
        let whole = call.plain("Slice", &[&own, &place, &end, &row]);
        let length = call.op("ReduceL2", &[&whole, &row], &keep);
        let is_below = call.plain("Less", &[&head, &zero]);
        let opposite = call.plain("Neg", &[&length]);
        let length = call.plain("Where", &[&is_below, &opposite, &length]);
        let first = call.plain("Add", &[&head, &length]);
        let direction = call.op("Concat", &[&first, &below], &[("axis", Attribute::Int(-2))]);
        let square = call.plain("Mul", &[&direction, &direction]);
        let square = call.op("ReduceSum", &[&square, &row], &keep);
        let is_done = call.plain("Equal", &[&tail, &zero]);
        let safe = call.plain("Where", &[&is_done, &one, &square]);
        let share = call.plain("Div", &[&two, &safe]);
        let share = call.plain("Where", &[&is_done, &zero, &share]);
        [direction, share]
    }
}

/// `x - share direction (direction^T x)`, of the rows from `at` on.
fn reflected(
    call: &mut Call<'_, '_>,
    x: &str,
    [direction, share]: &[String; 2],
    at: i64,
    rank: i64,
) -> String {
    let [first, place, end, row] = [0, at, i64::MAX, -2].map(|number| call.integers(&[number]));
    let below = if at > 0 { call.plain("Slice", &[x, &place, &end, &row]) } else { x.to_owned() };
    let across = turned(call, direction, rank);
    let length = call.plain("MatMul", &[&across, &below]);
    let length = call.plain("Mul", &[&length, share]);
    let part = call.plain("MatMul", &[direction, &length]);
    let below = call.plain("Sub", &[&below, &part]);
    if at == 0 {
        return below;
    }
    let above = call.plain("Slice", &[x, &first, &place, &row]);
    call.op("Concat", &[&above, &below], &[("axis", Attribute::Int(-2))])
}

fn turned(call: &mut Call<'_, '_>, x: &str, rank: i64) -> String {
    let order: Vec<i64> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
    call.op("Transpose", &[x], &[("perm", Attribute::Ints(&order))])
}

/// `Q` and `R` of Householder (1958). Signs are those of LAPACK.
fn factors(call: &mut Call<'_, '_>) -> Result<()> {
    let (of, rank, mode) = (Reflections::of(call)?, call.rank("A")?, call.text("mode", "reduced")?);
    if mode == "r" && call.is_read(0) {
        return Err(call.unsupported("whose orthogonal factor is not made"));
    }
    if mode == "complete" && of.rows > MOST_ROWS {
        return Err(call.unsupported(format!("with an orthogonal factor of more than {MOST_ROWS} rows")));
    }
    call.list_steps(Some(of.columns.min(of.rows)))?;
    let x = call.tensor("A")?;
    let batch = call.op("Shape", &[&x], &[("end", Attribute::Int(-2))]);
    // Squares of large elements would be too large.
    let (mut x, scale) = super::singular::by_largest(call, &x, of.dtype);
    let mut reflections = Vec::new();
    // Nothing lies below the last row.
    for at in 0..of.columns.min(of.rows - 1) {
        let direction = of.direction(call, &x, at);
        x = reflected(call, &x, &direction, at, rank);
        reflections.push(direction);
    }
    let width = if mode == "complete" { of.rows } else { of.rows.min(of.columns) };
    let zero = call.scalar(DType::I64, 0.0);
    let [first, kept, row] = [0, width, -2].map(|number| call.integers(&[number]));
    let upper = call.plain("Slice", &[&x, &first, &kept, &row]);
    let upper = call.op("Trilu", &[&upper, &zero], &[("upper", Attribute::Int(1))]);
    let upper = call.plain("Mul", &[&upper, &scale]);
    let mut all = vec![None, Some(upper)];
    if mode != "r" && call.is_read(0) {
        let none = call.scalar(of.dtype, 0.0);
        let sizes = call.integers(&[of.rows, width]);
        let zeros = call.plain("Expand", &[&none, &sizes]);
        let unit = call.plain("EyeLike", &[&zeros]);
        let shape = call.op("Concat", &[&batch, &sizes], &[("axis", Attribute::Int(0))]);
        let mut value = call.plain("Expand", &[&unit, &shape]);
        for (at, direction) in reflections.iter().enumerate().rev() {
            value = reflected(call, &value, direction, at as i64, rank);
        }
        all[0] = Some(value);
    }
    call.results(all)
}
