//! Recurrent layers: one product for the inputs of every time step, then step by step.

use crate::error::{Error, Result};
use crate::ir::{Cell, Direction, Recurrent, Unary};

use super::blocks::Right;
use super::element::Float;
use super::index::sizes;
use super::product::{Extent, Into, Product, Strides, product};
use super::team::Team;
use super::view::{View, ViewMut, take, with_float};

/// `Op::Recurrent`.
pub(super) fn recurrent(
    layer: &Recurrent,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    let [x, ..] = inputs else { return Err(misfit()) };
    with_float!(x.dtype, "recurrent layer", T => recurrent_as::<T>(layer, inputs, outputs, workspace))
}

fn misfit() -> Error {
    Error::Internal("operands of a recurrent layer".to_owned())
}

/// Sizes of a layer.
#[derive(Clone, Copy)]
struct Sizes {
    time: usize,
    batch: usize,
    features: usize,
    hidden: usize,
    gates: usize,
    directions: usize,
}

/// One direction's operands.
struct Weights<'a, T> {
    input: &'a [T],
    recurrent: &'a [T],
    bias: &'a [T],
    hidden: &'a [T],
}

fn recurrent_as<T: Product + Float>(
    layer: &Recurrent,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    mut workspace: &mut [u8],
) -> Result<()> {
    let [x, w, r, b, h, rest @ ..] = inputs else { return Err(misfit()) };
    let [all, last, last_cell @ ..] = outputs else { return Err(misfit()) };
    let gates = match layer.cell {
        Cell::Rnn => 1,
        Cell::Lstm => 4,
        Cell::Gru | Cell::GruResetAfter => 3,
    };
    let dims = sizes(x.dims)?;
    let hidden = usize::try_from(layer.hidden).map_err(|_| misfit())?;
    let directions = if layer.direction == Direction::Bidirectional { 2 } else { 1 };
    let [time, batch, features] = dims[..] else { return Err(misfit()) };
    let s = Sizes { time, batch, features, hidden, gates, directions };
    let rows = gates * hidden;
    let state = batch * hidden;
    let all_gates = take::<T>(&mut workspace, time * batch * rows)?;
    let spare = match layer.cell {
        Cell::Gru | Cell::GruResetAfter => take::<T>(&mut workspace, state)?,
        Cell::Rnn | Cell::Lstm => &mut [],
    };
    let (x, w, r, b, h) =
        (x.slice::<T>()?, w.slice::<T>()?, r.slice::<T>()?, b.slice::<T>()?, h.slice::<T>()?);
    let first_cell = rest.first().map(|view| view.slice::<T>()).transpose()?;
    let (all, last) = (all.slice::<T>()?, last.slice::<T>()?);
    let mut cell: &mut [T] = match last_cell.first_mut() {
        Some(view) => view.slice::<T>()?,
        None => &mut [],
    };
    if layer.cell == Cell::Lstm {
        let first = first_cell.ok_or_else(misfit)?;
        cell.copy_from_slice(first);
    }
    for direction in 0..directions {
        let weights = Weights {
            input: &w[direction * rows * features..][..rows * features],
            recurrent: &r[direction * rows * hidden..][..rows * hidden],
            bias: &b[direction * 2 * rows..][..2 * rows],
            hidden: &h[direction * state..][..state],
        };
        project(s, layer.cell, x, &weights, all_gates);
        let reverse = layer.direction == Direction::Reverse || direction == 1;
        let (own, others) = std::mem::take(&mut cell).split_at_mut(state.min(cell_len(layer, state)));
        cell = others;
        for step in 0..time {
            let at = if reverse { time - 1 - step } else { step };
            let place = |t: usize| (t * s.directions + direction) * state;
            let gates = &mut all_gates[at * batch * rows..][..batch * rows];
            let (previous, next) = match step {
                0 => (weights.hidden, &mut all[place(at)..][..state]),
                _ => {
                    let before = if reverse { at + 1 } else { at - 1 };
                    two(all, place(before), place(at), state)
                }
            };
            advance(s, layer.cell, &weights, gates, spare, previous, next, own);
        }
        let out = &mut last[direction * state..][..state];
        match time {
            0 => out.copy_from_slice(weights.hidden),
            _ => {
                let end = if reverse { 0 } else { time - 1 };
                out.copy_from_slice(&all[(end * s.directions + direction) * state..][..state]);
            }
        }
    }
    Ok(())
}

fn cell_len(layer: &Recurrent, state: usize) -> usize {
    if layer.cell == Cell::Lstm { state } else { 0 }
}

/// One block to read and another to write.
fn two<T>(all: &mut [T], read: usize, write: usize, length: usize) -> (&[T], &mut [T]) {
    if read < write {
        let (low, high) = all.split_at_mut(write);
        (&low[read..read + length], &mut high[..length])
    } else {
        let (low, high) = all.split_at_mut(read);
        (&high[..length], &mut low[write..write + length])
    }
}

/// The gates' inputs and biases, for every time step.
fn project<T: Product + Float>(s: Sizes, cell: Cell, x: &[T], weights: &Weights<'_, T>, gates: &mut [T]) {
    let rows = s.gates * s.hidden;
    let (inputs, recurrents) = weights.bias.split_at(rows);
    for row in gates.chunks_mut(rows.max(1)) {
        for (i, out) in row.iter_mut().enumerate() {
            // This gate's recurrent bias belongs inside the product with the reset gate.
            let apart = cell == Cell::GruResetAfter && i >= 2 * s.hidden;
            *out = if apart { inputs[i] } else { inputs[i].add(recurrents[i]) };
        }
    }
    product(
        &Team::alone(),
        Extent { m: s.time * s.batch, n: rows, k: s.features },
        (x, Strides::rows(s.features)),
        Right::Lying(weights.input, Strides::rows(s.features).transposed()),
        (gates, Strides::rows(rows)),
        Into::Add,
    );
}

/// Adds the product of a state with the recurrent weights of gates `from..from + count`.
fn recur<T: Product>(
    s: Sizes,
    (from, count): (usize, usize),
    state: &[T],
    recurrent: &[T],
    out: (&mut [T], Strides),
) {
    product(
        &Team::alone(),
        Extent { m: s.batch, n: count * s.hidden, k: s.hidden },
        (state, Strides::rows(s.hidden)),
        Right::Lying(&recurrent[from * s.hidden * s.hidden..], Strides::rows(s.hidden).transposed()),
        out,
        Into::Add,
    );
}

#[allow(clippy::too_many_arguments)]
fn advance<T: Product + Float>(
    s: Sizes,
    cell: Cell,
    weights: &Weights<'_, T>,
    gates: &mut [T],
    spare: &mut [T],
    previous: &[T],
    next: &mut [T],
    carry: &mut [T],
) {
    let h = s.hidden;
    let rows = s.gates * h;
    let wide = Strides::rows(rows);
    match cell {
        Cell::Rnn => {
            recur(s, (0, 1), previous, weights.recurrent, (gates, wide));
            next.copy_from_slice(&gates[..next.len()]);
            T::elementary(Unary::Tanh, next);
        }
        Cell::Lstm => {
            recur(s, (0, 4), previous, weights.recurrent, (gates, wide));
            for ((gates, next), carry) in
                gates.chunks_mut(rows).zip(next.chunks_mut(h)).zip(carry.chunks_mut(h))
            {
                T::elementary(Unary::Sigmoid, &mut gates[..3 * h]);
                T::elementary(Unary::Tanh, &mut gates[3 * h..]);
                for i in 0..h {
                    carry[i] = gates[2 * h + i].mul(carry[i]).add(gates[i].mul(gates[3 * h + i]));
                }
                next.copy_from_slice(carry);
                T::elementary(Unary::Tanh, next);
                for i in 0..h {
                    next[i] = gates[h + i].mul(next[i]);
                }
            }
        }
        Cell::Gru => {
            recur(s, (0, 2), previous, weights.recurrent, (gates, wide));
            for ((gates, previous), spare) in
                gates.chunks_mut(rows).zip(previous.chunks(h)).zip(spare.chunks_mut(h))
            {
                T::elementary(Unary::Sigmoid, &mut gates[..2 * h]);
                for i in 0..h {
                    spare[i] = gates[h + i].mul(previous[i]);
                }
            }
            let (hidden, end) = (2 * h, gates.len());
            recur(s, (2, 1), spare, weights.recurrent, (&mut gates[hidden.min(end)..], wide));
            mix(s, gates, previous, next);
        }
        Cell::GruResetAfter => {
            recur(s, (0, 2), previous, weights.recurrent, (gates, wide));
            for row in spare.chunks_mut(h) {
                row.copy_from_slice(&weights.bias[rows + 2 * h..]);
            }
            recur(s, (2, 1), previous, weights.recurrent, (spare, Strides::rows(h)));
            for (gates, spare) in gates.chunks_mut(rows).zip(spare.chunks(h)) {
                T::elementary(Unary::Sigmoid, &mut gates[..2 * h]);
                for i in 0..h {
                    gates[2 * h + i] = gates[2 * h + i].add(gates[h + i].mul(spare[i]));
                }
            }
            mix(s, gates, previous, next);
        }
    }
}

/// `(1 - update) * tanh(new) + update * previous`. The update's gates are what they are to be, the new ones not yet.
fn mix<T: Product + Float>(s: Sizes, gates: &mut [T], previous: &[T], next: &mut [T]) {
    let h = s.hidden;
    for ((gates, previous), next) in
        gates.chunks_mut(s.gates * h).zip(previous.chunks(h)).zip(next.chunks_mut(h))
    {
        T::elementary(Unary::Tanh, &mut gates[2 * h..]);
        for i in 0..h {
            let (update, new) = (gates[i], gates[2 * h + i]);
            next[i] = T::ONE.sub(update).mul(new).add(update.mul(previous[i]));
        }
    }
}
