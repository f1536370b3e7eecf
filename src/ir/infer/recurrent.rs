//! Recurrent layers.

use super::super::{Cell, Direction, Recurrent, Shape, Size, Type};
use super::context::Context;
use crate::error::Result;

pub(super) fn results(context: &Context<'_>, layer: &Recurrent) -> Result<Vec<Type>> {
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
