//! Matrix products and the recurrent layers made of them.

use super::super::{Cell, Direction, Recurrent, Shape, Size, Type};
use super::context::Context;
use super::elementwise::broadcast;
use crate::error::Result;

pub(super) fn matmul(context: &Context<'_>, transpose_left: bool, transpose_right: bool) -> Result<Type> {
    let [x, y] = context.operands()?;
    context.number("operands", x.dtype)?;
    context.same_dtype("a right operand", x.dtype, y.dtype)?;
    context.least_rank("a left operand", x, 2)?;
    context.least_rank("a right operand", y, 2)?;
    let (outer_x, rows_x, columns_x) = matrix(&x.shape);
    let (outer_y, rows_y, columns_y) = matrix(&y.shape);
    let (m, k) = if transpose_left { (columns_x, rows_x) } else { (rows_x, columns_x) };
    let (inner, n) = if transpose_right { (columns_y, rows_y) } else { (rows_y, columns_y) };
    context.same("an inner size", k, inner)?;
    let outer = broadcast(context, &outer_x, &outer_y)?;
    let sizes = outer.sizes().iter().chain([m, n]).cloned();
    Ok(Type::new(x.dtype, sizes.collect()))
}

/// The outer axes, and the last two sizes, of a shape of rank 2 or more.
fn matrix(shape: &Shape) -> (Shape, &Size, &Size) {
    let outer = shape.rank() - 2;
    (Shape::new(shape.sizes()[..outer].iter().cloned()), &shape[outer], &shape[outer + 1])
}

pub(super) fn recurrent(context: &Context<'_>, layer: &Recurrent) -> Result<Vec<Type>> {
    let gates = match layer.cell {
        Cell::Rnn => 1,
        Cell::Lstm => 4,
        Cell::Gru | Cell::GruResetAfter => 3,
    };
    let directions = match layer.direction {
        Direction::Forward | Direction::Reverse => 1,
        Direction::Bidirectional => 2,
    };
    let count = if layer.cell == Cell::Lstm { 6 } else { 5 };
    let operands = context.between(count, count)?;
    let x = operands[0];
    context.float("an input", x.dtype)?;
    context.rank("an input", x, 3)?;
    for operand in &operands[1..] {
        context.same_dtype("every operand", x.dtype, operand.dtype)?;
    }
    if layer.hidden < 1 {
        return Err(context.fail(format!("expected a hidden size of 1 or more, found {}", layer.hidden)));
    }
    let known = |value: i64| Size::Known(value);
    let (time, batch, features) = (&x.shape[0], &x.shape[1], &x.shape[2]);
    let rows = layer.hidden.checked_mul(gates).ok_or_else(|| context.overflow())?;
    let biases = rows.checked_mul(2).ok_or_else(|| context.overflow())?;
    let (directions, hidden) = (known(directions), known(layer.hidden));
    let state = Shape::new([directions.clone(), batch.clone(), hidden.clone()]);
    let expected = [
        ("weights", Shape::new([directions.clone(), known(rows), features.clone()])),
        ("recurrent weights", Shape::new([directions.clone(), known(rows), hidden.clone()])),
        ("a bias", Shape::new([directions.clone(), known(biases)])),
        ("an initial hidden state", state.clone()),
        ("an initial cell state", state.clone()),
    ];
    for ((what, shape), operand) in expected.iter().zip(&operands[1..]) {
        context.same_shape(what, shape, &operand.shape)?;
    }
    let all = Shape::new([time.clone(), directions, batch.clone(), hidden]);
    let mut results = vec![Type::new(x.dtype, all), Type::new(x.dtype, state.clone())];
    if layer.cell == Cell::Lstm {
        results.push(Type::new(x.dtype, state));
    }
    Ok(results)
}
