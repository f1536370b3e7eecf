//! Recurrent layers: one product for the inputs of every time step, then step by step.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::ir::{Cell, Direction, Recurrent, Unary};
use crate::kernel::pieces::PIECE;
use crate::kernel::workspace::{Steps, planned};

use super::attention::forward::with_scratch;
use super::element::Float;
use super::halves::{RowsMut, StorageOf, with_storage};
use super::product::matmul::{Extent, Matrix, Product, Strides};
use super::view::{View, ViewMut, take};
use super::walk::sizes;

/// `Op::Recurrent`.
pub(super) fn recurrent(
    layer: &Recurrent,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    let [x, ..] = inputs else { return Err(misfit()) };
    with_storage!(x.dtype, "recurrent layer", (T, S) => recurrent_as::<T, S>(layer, inputs, outputs, workspace))
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
}

/// One direction's operands.
struct Weights<'a, S> {
    input: &'a [S],
    recurrent: &'a [S],
    bias: &'a [S],
}

fn recurrent_as<T: Product + Float, S: StorageOf<T>>(
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
    let [time, batch, features] = dims[..] else { return Err(misfit()) };
    let s = Sizes { time, batch, features, hidden, gates };
    let rows = gates * hidden;
    let operands = Operands {
        x: x.slice::<S>()?,
        w: w.slice()?,
        r: r.slice()?,
        b: b.slice()?,
        h: h.slice()?,
        cell: rest.first().map(|view| view.slice()).transpose()?,
    };
    let mut results = Results {
        all: all.slice::<S>()?,
        last: last.slice()?,
        cell: last_cell.first_mut().map(|view| view.slice()).transpose()?,
    };
    if layer.cell == Cell::Lstm && (operands.cell.is_none() || results.cell.is_none()) {
        return Err(misfit());
    }
    let steps = Steps::new(layer, x.dims);
    if S::WIDENS && planned(steps.elements) == 0 {
        with_scratch(steps.elements as usize, |scratch| {
            let (gates, states) = scratch.split_at_mut((steps.gates * steps.count) as usize);
            run(layer, s, &operands, &mut results, gates, states);
        });
    } else if S::WIDENS {
        let scratch = take::<T>(&mut workspace, steps.elements as usize)?;
        let (gates, states) = scratch.split_at_mut((steps.gates * steps.count) as usize);
        run(layer, s, &operands, &mut results, gates, states);
    } else {
        let gates = take::<T>(&mut workspace, time * batch * rows)?;
        let states = (steps.state * Steps::STATES) as usize;
        if states * size_of::<T>() <= PIECE as usize {
            with_scratch(states, |states| run(layer, s, &operands, &mut results, gates, states));
        } else {
            let states = take::<T>(&mut workspace, states)?;
            run(layer, s, &operands, &mut results, gates, states);
        }
    }
    Ok(())
}

/// A layer's operands.
struct Operands<'a, S> {
    x: &'a [S],
    w: &'a [S],
    r: &'a [S],
    b: &'a [S],
    h: &'a [S],
    cell: Option<&'a [S]>,
}

/// A layer's results.
struct Results<'a, S> {
    all: &'a mut [S],
    last: &'a mut [S],
    cell: Option<&'a mut [S]>,
}

/// Makes the results; `gates` are those of some whole steps, `states` as [`Steps::STATES`].
fn run<T: Product + Float, S: StorageOf<T>>(
    layer: &Recurrent,
    s: Sizes,
    operands: &Operands<'_, S>,
    results: &mut Results<'_, S>,
    gates: &mut [T],
    states: &mut [T],
) {
    let Sizes { time, batch, features, hidden, .. } = s;
    let (rows, state) = (s.gates * hidden, batch * hidden);
    let (mut previous, rest) = states.split_at_mut(state);
    let (mut next, rest) = rest.split_at_mut(state);
    let (carry, spare) = rest.split_at_mut(state);
    let bidirectional = layer.direction == Direction::Bidirectional;
    let directions = if bidirectional { 2 } else { 1 };
    let together = gates.len().checked_div(batch * rows).unwrap_or(time).clamp(1, time.max(1));
    for direction in 0..directions {
        let own = direction * state..(direction + 1) * state;
        let weights = Weights {
            input: &operands.w[direction * rows * features..][..rows * features],
            recurrent: &operands.r[direction * rows * hidden..][..rows * hidden],
            bias: &operands.b[direction * 2 * rows..][..2 * rows],
        };
        S::read_all(&operands.h[own.clone()], previous);
        if let Some(first) = operands.cell {
            S::read_all(&first[own.clone()], carry);
        }
        let reverse = layer.direction == Direction::Reverse || direction == 1;
        for begin in (0..time).step_by(together) {
            let count = together.min(time - begin);
            // The first of them in time.
            let low = if reverse { time - begin - count } else { begin };
            let x = &operands.x[low * batch * features..][..count * batch * features];
            project(s, layer.cell, x, &weights, &mut gates[..count * batch * rows]);
            for step in 0..count {
                let at = if reverse { count - 1 - step } else { step };
                let gates = &mut gates[at * batch * rows..][..batch * rows];
                let states = Advance {
                    previous: &*previous,
                    next: &mut *next,
                    carry: &mut *carry,
                    spare: &mut *spare,
                };
                advance(s, layer.cell, &weights, gates, states);
                let place = ((low + at) * directions + direction) * state;
                S::write_all(next, &mut results.all[place..][..state]);
                (previous, next) = (next, previous);
            }
        }
        S::write_all(previous, &mut results.last[own.clone()]);
        if let Some(cell) = &mut results.cell {
            S::write_all(carry, &mut cell[own]);
        }
    }
}

/// The gates' inputs and biases, for every time step.
fn project<T: Product + Float, S: StorageOf<T>>(
    s: Sizes,
    cell: Cell,
    x: &[S],
    weights: &Weights<'_, S>,
    gates: &mut [T],
) {
    let rows = s.gates * s.hidden;
    let (inputs, recurrents) = weights.bias.split_at(rows);
    for row in gates.chunks_mut(rows.max(1)) {
        for (i, out) in row.iter_mut().enumerate() {
            // This gate's recurrent bias belongs inside the product with the reset gate.
            let separate = cell == Cell::GruResetAfter && i >= 2 * s.hidden;
            let input = inputs[i].read();
            *out = if separate { input } else { input.add(recurrents[i].read()) };
        }
    }
    S::add_stored(
        Extent { m: gates.len().checked_div(rows).unwrap_or(0), n: rows, k: s.features },
        Matrix::new(x, Strides::rows(s.features)),
        Matrix::new(weights.input, Strides::rows(s.features).transposed()),
        RowsMut { elements: gates, stride: rows },
    );
}

/// Adds the product of a state with the recurrent weights of some gates.
fn recur<T: Product, S: StorageOf<T>>(
    s: Sizes,
    gates: Range<usize>,
    state: &[T],
    recurrent: &[S],
    out: RowsMut<'_, T>,
) {
    S::add_product(
        Extent { m: s.batch, n: gates.len() * s.hidden, k: s.hidden },
        Matrix::new(state, Strides::rows(s.hidden)),
        Matrix::new(&recurrent[gates.start * s.hidden * s.hidden..], Strides::rows(s.hidden).transposed()),
        out,
    );
}

/// The states of one step: those before it, those that it makes, an LSTM's cells, and room for as many.
struct Advance<'a, T> {
    previous: &'a [T],
    next: &'a mut [T],
    carry: &'a mut [T],
    spare: &'a mut [T],
}

/// One step of a cell, of gates that have their inputs already.
fn advance<T: Product + Float, S: StorageOf<T>>(
    s: Sizes,
    cell: Cell,
    weights: &Weights<'_, S>,
    gates: &mut [T],
    states: Advance<'_, T>,
) {
    let stride = s.gates * s.hidden;
    let mut add = |own: Range<usize>| {
        recur(s, own, states.previous, weights.recurrent, RowsMut { elements: &mut *gates, stride });
    };
    match cell {
        Cell::Rnn => {
            add(0..1);
            states.next.copy_from_slice(&gates[..states.next.len()]);
            T::elementary(Unary::Tanh, states.next);
        }
        Cell::Lstm => {
            add(0..4);
            advance_lstm(s, gates, states);
        }
        Cell::Gru => {
            add(0..2);
            advance_gru(s, weights, gates, states);
        }
        Cell::GruResetAfter => {
            add(0..2);
            advance_gru_reset_after(s, weights, gates, states);
        }
    }
}

/// Gates input, output, forget and cell: `c = f c + i g`, `h = o tanh(c)`.
fn advance_lstm<T: Product + Float>(s: Sizes, gates: &mut [T], states: Advance<'_, T>) {
    let h = s.hidden;
    let rows = gates.chunks_mut(s.gates * h);
    for ((gates, next), carry) in rows.zip(states.next.chunks_mut(h)).zip(states.carry.chunks_mut(h)) {
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

/// The reset gate is applied to the state, before its product with the new gate's weights.
fn advance_gru<T: Product + Float, S: StorageOf<T>>(
    s: Sizes,
    weights: &Weights<'_, S>,
    gates: &mut [T],
    Advance { previous, next, spare, .. }: Advance<'_, T>,
) {
    let (h, stride) = (s.hidden, s.gates * s.hidden);
    for ((gates, previous), spare) in
        gates.chunks_mut(stride).zip(previous.chunks(h)).zip(spare.chunks_mut(h))
    {
        T::elementary(Unary::Sigmoid, &mut gates[..2 * h]);
        for i in 0..h {
            spare[i] = gates[h + i].mul(previous[i]);
        }
    }
    let new = (2 * h).min(gates.len());
    recur(s, 2..3, spare, weights.recurrent, RowsMut { elements: &mut gates[new..], stride });
    mix(s, gates, previous, next);
}

/// The reset gate is applied to the product of the state with the new gate's weights, recurrent bias included.
fn advance_gru_reset_after<T: Product + Float, S: StorageOf<T>>(
    s: Sizes,
    weights: &Weights<'_, S>,
    gates: &mut [T],
    Advance { previous, next, spare, .. }: Advance<'_, T>,
) {
    let (h, stride) = (s.hidden, s.gates * s.hidden);
    for row in spare.chunks_mut(h) {
        S::read_all(&weights.bias[stride + 2 * h..], row);
    }
    recur(s, 2..3, previous, weights.recurrent, RowsMut { elements: &mut *spare, stride: h });
    for (gates, spare) in gates.chunks_mut(stride).zip(spare.chunks(h)) {
        T::elementary(Unary::Sigmoid, &mut gates[..2 * h]);
        for i in 0..h {
            gates[2 * h + i] = gates[2 * h + i].add(gates[h + i].mul(spare[i]));
        }
    }
    mix(s, gates, previous, next);
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
