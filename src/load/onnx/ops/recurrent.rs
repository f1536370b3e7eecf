//! Recurrent layers.

use super::super::node::At;
use super::cells::{Layer, Matrices, activations, unrolled};
use crate::error::Result;
use crate::ir::{Cell, Direction, Op, Recurrent, Shape, Size, ValueId};

pub(super) fn rnn(at: &mut At<'_>) -> Result<()> {
    recurrent(at, Cell::Rnn, &["Tanh"], Matrices::Plain)
}

pub(super) fn gru(at: &mut At<'_>) -> Result<()> {
    let after = at.flag("linear_before_reset", false)?;
    recurrent(at, if after { Cell::GruResetAfter } else { Cell::Gru }, &["Sigmoid", "Tanh"], Matrices::Plain)
}

pub(super) fn lstm(at: &mut At<'_>) -> Result<()> {
    recurrent(at, Cell::Lstm, &["Sigmoid", "Tanh", "Tanh"], Matrices::Plain)
}

/// onnxruntime's LSTM of quantised weights.
pub(super) fn dynamic_quantize_lstm(at: &mut At<'_>) -> Result<()> {
    recurrent(at, Cell::Lstm, &["Sigmoid", "Tanh", "Tanh"], Matrices::Quantized)
}

fn recurrent(at: &mut At<'_>, cell: Cell, usual: &[&str], matrices: Matrices) -> Result<()> {
    let direction = direction(at)?;
    let directions: i64 = if direction == Direction::Bidirectional { 2 } else { 1 };
    let activations = activations(at, usual, directions as usize)?;
    let input_forget = cell == Cell::Lstm && at.flag("input_forget", false)?;
    let clip = at.float("clip")?.filter(|&clip| clip > 0.0);
    // The other layout has the batch first.
    let batch_first = at.flag("layout", false)?;
    let mut x = at.value(0)?;
    let hidden = hidden_size(at, x, matrices)?;
    if batch_first {
        x = at.transpose(x, vec![1, 0, 2])?;
    }
    let shape = at.type_of(x).shape;
    let lengths = if is_whole(at, &shape[0]) { None } else { at.optional(4)? };
    let state = Shape::new([Size::Known(directions), shape[1].clone(), Size::Known(hidden)]);
    let biases = hidden.checked_mul(2 * gates(cell)).ok_or_else(|| at.wrong("its hidden size overflows"))?;
    let mut states = vec![initial(at, 5, &state, batch_first)?];
    if cell == Cell::Lstm {
        states.push(initial(at, 6, &state, batch_first)?);
    }
    let is_usual = activations.iter().zip(usual.iter().cycle()).all(|(own, usual)| own.is(usual));
    let peepholes = cell == Cell::Lstm && at.has(7);
    let is_plain = matrices == Matrices::Plain && is_usual && !input_forget && !peepholes;
    // The IR's layer is the plain one over whole sequences. What it has no attribute for is spelled out step by step.
    let results = match is_plain && clip.is_none() && lengths.is_none() {
        true => {
            let mut operands = vec![x, at.value(1)?, at.value(2)?];
            operands.push(or_zeros(at, 3, Shape::known(&[directions, biases]))?);
            operands.extend(states);
            at.apply_all(Op::Recurrent(Box::new(Recurrent { cell, direction, hidden })), &operands)?
        }
        false => unrolled(
            at,
            &Layer { cell, direction, hidden, activations, clip, input_forget, x, lengths, states, matrices },
        )?,
    };
    for (i, value) in results.into_iter().enumerate() {
        let perm = if i == 0 { vec![2, 0, 1, 3] } else { vec![1, 0, 2] };
        let value = if batch_first && at.wants(i) { at.transpose(value, perm)? } else { value };
        at.set(i, value);
    }
    Ok(())
}

fn direction(at: &At<'_>) -> Result<Direction> {
    match at.text("direction", "forward")?.as_str() {
        "forward" => Ok(Direction::Forward),
        "reverse" => Ok(Direction::Reverse),
        "bidirectional" => Ok(Direction::Bidirectional),
        other => Err(at.wrong(format!("{other:?} is no direction"))),
    }
}

const fn gates(cell: Cell) -> i64 {
    match cell {
        Cell::Rnn => 1,
        Cell::Gru | Cell::GruResetAfter => 3,
        Cell::Lstm => 4,
    }
}

/// The hidden size, as the recurrent weights have it; quantised ones are stored transposed.
fn hidden_size(at: &At<'_>, x: ValueId, matrices: Matrices) -> Result<i64> {
    let (shape, weights) = (at.type_of(x).shape, at.ty(2)?.shape);
    if shape.rank() != 3 || weights.rank() != 3 {
        return Err(at.wrong("its input or weights have not 3 axes"));
    }
    let hidden = weights[if matrices == Matrices::Plain { 2 } else { 1 }]
        .known()
        .ok_or_else(|| at.undecided("hidden size", weights.sizes()))?;
    if at.int("hidden_size")?.is_some_and(|stated| stated != hidden) {
        return Err(at.wrong(format!("hidden_size differs from the weights' {hidden}")));
    }
    Ok(hidden)
}

/// Whether input 4, the length of each sequence, says that all are whole.
fn is_whole(at: &At<'_>, time: &Size) -> bool {
    let lengths = at.known(4).and_then(|lengths| lengths.sizes());
    lengths.is_some_and(|lengths| lengths.iter().all(|length| length == time))
}

fn or_zeros(at: &mut At<'_>, i: usize, shape: Shape) -> Result<ValueId> {
    if let Some(value) = at.optional(i)? {
        return Ok(value);
    }
    let zero = at.scalar(at.ty(0)?.dtype, 0.0)?;
    at.broadcast(zero, shape)
}

/// An initial state `[directions, batch, hidden]`; zeros where it is not given.
fn initial(at: &mut At<'_>, i: usize, shape: &Shape, batch_first: bool) -> Result<ValueId> {
    let transposed = batch_first && at.has(i);
    let state = or_zeros(at, i, shape.clone())?;
    if transposed { at.transpose(state, vec![1, 0, 2]) } else { Ok(state) }
}
