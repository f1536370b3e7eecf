//! Exponentials of square matrices.

use super::super::call::Call;
use super::Lower;
use super::solve::unit_like;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

/// Terms of the series: those left out are below the rounding of f64 where the norm is at most [`LONGEST`].
const TERMS: i64 = 14;

/// Longer matrices are halved, and their exponentials squared.
const LONGEST: f64 = 0.5;

/// How often a matrix is halved at most: norms up to 32,768.
const MOST_HALVINGS: i64 = 16;

pub(super) fn find(name: &str) -> Option<Lower> {
    matches!(name, "matrix_exp" | "linalg_matrix_exp").then_some(matrix_exponential)
}

/// The series of a matrix that was halved until it is short, squared as often (scaling and squaring; Moler and Van Loan,
/// 2003).
fn matrix_exponential(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, unit) = (call.operand("self", dtype)?, unit_like(call, "self")?);
    let halvings = halvings(call, &x)?;
    let two = call.scalar(dtype, 2.0);
    let scale = call.plain("Pow", &[&two, &halvings]);
    let short = call.plain("Div", &[&x, &scale]);
    // 1 + x (1 + x/2 (1 + x/3 ..)), from the inside.
    let mut value = unit.clone();
    for term in (1..=TERMS).rev() {
        let term = call.scalar(dtype, term as f64);
        let product = call.plain("MatMul", &[&short, &value]);
        let product = call.plain("Div", &[&product, &term]);
        value = call.plain("Add", &[&product, &unit]);
    }
    for done in 0..MOST_HALVINGS {
        let done = call.scalar(dtype, done as f64);
        let is_left = call.plain("Greater", &[&halvings, &done]);
        let square = call.plain("MatMul", &[&value, &value]);
        value = call.plain("Where", &[&is_left, &square, &value]);
    }
    call.result(value)
}

/// How often each matrix is halved, by the largest sum of a column.
fn halvings(call: &mut Call<'_, '_>, x: &str) -> Result<String> {
    let dtype = call.result_dtype()?;
    let keep = [("keepdims", Attribute::Int(1))];
    let (row, column) = (call.integers(&[-2]), call.integers(&[-1]));
    let sums = call.op("ReduceL1", &[x, &row], &keep);
    let norm = call.op("ReduceMax", &[&sums, &column], &keep);
    let [longest, none, most, two] =
        [LONGEST, 0.0, MOST_HALVINGS as f64, 2.0].map(|number| call.scalar(dtype, number));
    let times = call.plain("Div", &[&norm, &longest]);
    // A matrix of zeros is as short as one of the longest that are not halved.
    let one = call.scalar(dtype, 1.0);
    let times = call.plain("Max", &[&times, &one]);
    let (times, two) = (call.plain("Log", &[&times]), call.plain("Log", &[&two]));
    let halvings = call.plain("Div", &[&times, &two]);
    let halvings = call.plain("Ceil", &[&halvings]);
    let halvings = call.plain("Max", &[&halvings, &none]);
    Ok(call.plain("Min", &[&halvings, &most]))
}
