//! Recurrent layers: one product for the inputs of every time step, then step by step.
//!
//! The recurrent weights meet the state of every step: they are packed once for each direction, where the thread's own area
//! holds them. Products would pack them each time; those of one or a few sequences would add up along short rows, whose sums
//! take longer to be put together than to be made.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::ir::{Cell, Direction, Recurrent, Unary};
use crate::kernel::pieces::PIECE;
use crate::kernel::workspace::{Steps, planned};

use super::attention::forward::with_scratch;
use super::element::Float;
use super::halves::{RowsMut, StorageOf, with_storage};
use super::product::blocks::Rhs;
use super::product::matmul::{Beta, Extent, Gemm, Matrix, Product, Strides};
use super::product::panels::PackColumns;
use super::team::Team;
use super::vectors::{Compiled, Vectorised, compiled};
use super::view::{View, ViewMut, take};
use super::walk::sizes;

/// Fewest steps for which weights are packed in the thread's own area.
const FEWEST_STEPS: usize = 4;

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

impl Sizes {
    /// Elements of a direction's recurrent weights.
    fn matrix(self) -> usize {
        self.gates * self.hidden * self.hidden
    }
}

/// One direction's operands.
struct Weights<'a, T, S> {
    input: &'a [S],
    recurrent: &'a [S],
    bias: &'a [S],
    /// The recurrent ones packed ([`pack`]), or nothing.
    packed: &'a [T],
}

fn recurrent_as<T: Product + Float + Vectorised, S: StorageOf<T>>(
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
            run(layer, s, &operands, &mut results, Room { packed: &mut [], gates, states });
        });
    } else if S::WIDENS {
        let scratch = take::<T>(&mut workspace, steps.elements as usize)?;
        let (gates, states) = scratch.split_at_mut((steps.gates * steps.count) as usize);
        run(layer, s, &operands, &mut results, Room { packed: &mut [], gates, states });
    } else {
        let gates = take::<T>(&mut workspace, time * batch * rows)?;
        let states = (steps.state * Steps::STATES) as usize;
        let is_own = |count: usize| count * size_of::<T>() <= PIECE as usize;
        if time >= FEWEST_STEPS && is_own(s.matrix() + states) {
            with_scratch(s.matrix() + states, |scratch| {
                let (packed, states) = scratch.split_at_mut(s.matrix());
                run(layer, s, &operands, &mut results, Room { packed, gates, states });
            });
        } else if is_own(states) {
            with_scratch(states, |states| {
                run(layer, s, &operands, &mut results, Room { packed: &mut [], gates, states });
            });
        } else {
            let states = take::<T>(&mut workspace, states)?;
            run(layer, s, &operands, &mut results, Room { packed: &mut [], gates, states });
        }
    }
    Ok(())
}

/// What a layer is worked out in.
struct Room<'a, T> {
    /// For a direction's recurrent weights, or nothing.
    packed: &'a mut [T],
    /// Of one step at least.
    gates: &'a mut [T],
    /// As [`Steps::STATES`].
    states: &'a mut [T],
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

/// Makes the results.
fn run<T: Product + Float + Vectorised, S: StorageOf<T>>(
    layer: &Recurrent,
    s: Sizes,
    operands: &Operands<'_, S>,
    results: &mut Results<'_, S>,
    Room { packed, gates, states }: Room<'_, T>,
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
        let recurrent = &operands.r[direction * rows * hidden..][..rows * hidden];
        if !packed.is_empty() {
            pack(s, layer.cell, recurrent, packed);
        }
        let weights = Weights {
            input: &operands.w[direction * rows * features..][..rows * features],
            recurrent,
            bias: &operands.b[direction * 2 * rows..][..2 * rows],
            packed: &*packed,
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

/// Packs recurrent weights: those of the gates that meet a state together, one after the other.
fn pack<T: Vectorised + Float, S: StorageOf<T>>(s: Sizes, cell: Cell, recurrent: &[S], to: &mut [T]) {
    let h = s.hidden;
    let first = match cell {
        Cell::Rnn | Cell::Lstm => s.gates,
        Cell::Gru | Cell::GruResetAfter => 2,
    };
    let at = first * h * h;
    // Of the numbers themselves: halves are widened by each product.
    let of_gates = |elements| S::rows(elements, h, (0, h), &mut []).elements;
    let (first, second) = (of_gates(&recurrent[..at]), of_gates(&recurrent[at..]));
    T::dispatch(PackColumns { from: first, k: h, to: &mut to[..at] });
    T::dispatch(PackColumns { from: second, k: h, to: &mut to[at..] });
}

/// The gates' inputs and biases, for every time step.
fn project<T: Product + Float, S: StorageOf<T>>(
    s: Sizes,
    cell: Cell,
    x: &[S],
    weights: &Weights<'_, T, S>,
    gates: &mut [T],
) {
    let rows = s.gates * s.hidden;
    let (inputs, recurrents) = weights.bias.split_at(rows);
    let (first, rest) = gates.split_at_mut(rows.min(gates.len()));
    for (i, out) in first.iter_mut().enumerate() {
        // This gate's recurrent bias belongs inside the product with the reset gate.
        let separate = cell == Cell::GruResetAfter && i >= 2 * s.hidden;
        let input = inputs[i].read();
        *out = if separate { input } else { input.add(recurrents[i].read()) };
    }
    for row in rest.chunks_mut(rows.max(1)) {
        row.copy_from_slice(first);
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
    weights: &Weights<'_, T, S>,
    out: RowsMut<'_, T>,
) {
    let extent = Extent { m: s.batch, n: gates.len() * s.hidden, k: s.hidden };
    let (a, first) = (Matrix::new(state, Strides::rows(s.hidden)), gates.start * s.hidden * s.hidden);
    if weights.packed.is_empty() {
        let b = Matrix::new(&weights.recurrent[first..], Strides::rows(s.hidden).transposed());
        return S::add_product(extent, a, b, out);
    }
    let elements = &weights.packed[first..][..extent.n * extent.k];
    let gemm = Gemm {
        extent,
        a,
        b: Rhs::Packed { elements, columns: extent.n, from: 0 },
        c: out.elements,
        c_strides: Strides::rows(out.stride),
        beta: Beta::Add,
        epilogue: None,
    };
    gemm.run(&Team::alone());
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
    weights: &Weights<'_, T, S>,
    gates: &mut [T],
    states: Advance<'_, T>,
) {
    let stride = s.gates * s.hidden;
    let mut add = |own: Range<usize>| {
        recur(s, own, states.previous, weights, RowsMut { elements: &mut *gates, stride });
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
    let Advance { next, carry, .. } = states;
    for gates in gates.chunks_mut(s.gates * s.hidden) {
        let (sigmoids, new) = gates.split_at_mut(3 * s.hidden);
        T::elementary(Unary::Sigmoid, sigmoids);
        T::elementary(Unary::Tanh, new);
    }
    compiled(Carry { hidden: s.hidden, gates, carry });
    next.copy_from_slice(carry);
    T::elementary(Unary::Tanh, next);
    compiled(Gate { hidden: s.hidden, gates, at: 1, states: next });
}

/// The cells of an LSTM.
struct Carry<'a, T> {
    hidden: usize,
    gates: &'a [T],
    carry: &'a mut [T],
}

impl<T: Float> Compiled for Carry<'_, T> {
    #[inline(always)]
    fn run(self) {
        let h = self.hidden;
        for (gates, carry) in self.gates.chunks_exact(4 * h).zip(self.carry.chunks_exact_mut(h)) {
            let (input, forget, new) = (&gates[..h], &gates[2 * h..3 * h], &gates[3 * h..4 * h]);
            for i in 0..h {
                carry[i] = forget[i].mul(carry[i]).add(input[i].mul(new[i]));
            }
        }
    }
}

/// States times one of the gates.
struct Gate<'a, T> {
    hidden: usize,
    gates: &'a [T],
    at: usize,
    states: &'a mut [T],
}

impl<T: Float> Compiled for Gate<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { hidden: h, gates, at, states } = self;
        let stride = gates.len().checked_div(states.len()).unwrap_or(1) * h;
        for (gates, states) in gates.chunks_exact(stride).zip(states.chunks_exact_mut(h)) {
            for (state, &gate) in states.iter_mut().zip(&gates[at * h..][..h]) {
                *state = gate.mul(*state);
            }
        }
    }
}

/// The reset gate is applied to the state, before its product with the new gate's weights.
fn advance_gru<T: Product + Float, S: StorageOf<T>>(
    s: Sizes,
    weights: &Weights<'_, T, S>,
    gates: &mut [T],
    Advance { previous, next, spare, .. }: Advance<'_, T>,
) {
    let (h, stride) = (s.hidden, s.gates * s.hidden);
    for gates in gates.chunks_mut(stride) {
        T::elementary(Unary::Sigmoid, &mut gates[..2 * h]);
    }
    spare.copy_from_slice(previous);
    compiled(Gate { hidden: h, gates, at: 1, states: spare });
    let new = (2 * h).min(gates.len());
    recur(s, 2..3, spare, weights, RowsMut { elements: &mut gates[new..], stride });
    mix(s, gates, previous, next);
}

/// The reset gate is applied to the product of the state with the new gate's weights, recurrent bias included.
fn advance_gru_reset_after<T: Product + Float, S: StorageOf<T>>(
    s: Sizes,
    weights: &Weights<'_, T, S>,
    gates: &mut [T],
    Advance { previous, next, spare, .. }: Advance<'_, T>,
) {
    let (h, stride) = (s.hidden, s.gates * s.hidden);
    for row in spare.chunks_mut(h) {
        S::read_all(&weights.bias[stride + 2 * h..], row);
    }
    recur(s, 2..3, previous, weights, RowsMut { elements: &mut *spare, stride: h });
    for gates in gates.chunks_mut(stride) {
        T::elementary(Unary::Sigmoid, &mut gates[..2 * h]);
    }
    compiled(Gate { hidden: h, gates, at: 1, states: spare });
    for (gates, spare) in gates.chunks_mut(stride).zip(spare.chunks(h)) {
        for (new, &spare) in gates[2 * h..].iter_mut().zip(spare) {
            *new = new.add(spare);
        }
    }
    mix(s, gates, previous, next);
}

/// `(1 - update) * tanh(new) + update * previous`. The update's gates are what they are to be, the new ones not yet.
fn mix<T: Product + Float>(s: Sizes, gates: &mut [T], previous: &[T], next: &mut [T]) {
    for gates in gates.chunks_mut(s.gates * s.hidden) {
        T::elementary(Unary::Tanh, &mut gates[2 * s.hidden..]);
    }
    compiled(Mix { hidden: s.hidden, gates, previous, next });
}

/// The states of a GRU.
struct Mix<'a, T> {
    hidden: usize,
    gates: &'a [T],
    previous: &'a [T],
    next: &'a mut [T],
}

impl<T: Float> Compiled for Mix<'_, T> {
    #[inline(always)]
    fn run(self) {
        let h = self.hidden;
        let states = self.previous.chunks_exact(h).zip(self.next.chunks_exact_mut(h));
        for (gates, (previous, next)) in self.gates.chunks_exact(3 * h).zip(states) {
            let (update, new) = (&gates[..h], &gates[2 * h..3 * h]);
            for i in 0..h {
                next[i] = T::ONE.sub(update[i]).mul(new[i]).add(update[i].mul(previous[i]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::{bytes_of, bytes_of_mut};
    use super::*;
    use crate::ir::DType;

    /// Numbers between -0.5 and 0.5 that follow from their place.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 2002.0 - 0.5).collect()
    }

    #[derive(Clone, Copy, Debug)]
    struct Case {
        cell: Cell,
        direction: Direction,
        time: usize,
        batch: usize,
        features: usize,
        hidden: usize,
    }

    impl Case {
        fn gates(self) -> usize {
            match self.cell {
                Cell::Rnn => 1,
                Cell::Lstm => 4,
                Cell::Gru | Cell::GruResetAfter => 3,
            }
        }

        fn directions(self) -> usize {
            if self.direction == Direction::Bidirectional { 2 } else { 1 }
        }

        /// Operands: inputs, weights, recurrent weights, biases, the first states, and an LSTM's first cells.
        fn operands(self) -> Vec<(Vec<i64>, Vec<f32>)> {
            let Self { cell, time, batch, features, hidden, .. } = self;
            let (d, rows) = (self.directions(), self.gates() * hidden);
            let mut dims = vec![
                vec![time, batch, features],
                vec![d, rows, features],
                vec![d, rows, hidden],
                vec![d, 2 * rows],
                vec![d, batch, hidden],
            ];
            if cell == Cell::Lstm {
                dims.push(vec![d, batch, hidden]);
            }
            let of = |(seed, dims): (usize, Vec<usize>)| {
                let numbers = numbers(dims.iter().product(), seed);
                (dims.into_iter().map(|dim| dim as i64).collect(), numbers)
            };
            dims.into_iter().enumerate().map(of).collect()
        }

        /// All hidden states, in f64.
        fn expected(self) -> Vec<f64> {
            let Self { cell, time, batch, features, hidden: h, .. } = self;
            let (d, rows, operands) = (self.directions(), self.gates() * h, self.operands());
            let of = |operand: usize, at: usize| f64::from(operands[operand].1[at]);
            let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
            let mut all = vec![0.0; time * d * batch * h];
            for (direction, b) in (0..d).flat_map(|direction| (0..batch).map(move |b| (direction, b))) {
                let own = |i: usize| (direction * batch + b) * h + i;
                let mut state: Vec<f64> = (0..h).map(|i| of(4, own(i))).collect();
                let mut carry: Vec<f64> =
                    (0..h).map(|i| if cell == Cell::Lstm { of(5, own(i)) } else { 0.0 }).collect();
                let is_reverse = self.direction == Direction::Reverse || direction == 1;
                for step in 0..time {
                    let t = if is_reverse { time - 1 - step } else { step };
                    let input = |row: usize| {
                        let from = direction * rows + row;
                        let x = |f: usize| of(0, (t * batch + b) * features + f) * of(1, from * features + f);
                        (0..features).map(x).sum::<f64>() + of(3, direction * 2 * rows + row)
                    };
                    let recurrent = |row: usize, state: &[f64]| {
                        let from = direction * rows + row;
                        let r = |i: usize| state[i] * of(2, from * h + i);
                        (0..h).map(r).sum::<f64>() + of(3, (direction * 2 + 1) * rows + row)
                    };
                    let gate = |gate: usize, i: usize, state: &[f64]| {
                        input(gate * h + i) + recurrent(gate * h + i, state)
                    };
                    let next: Vec<f64> = match cell {
                        Cell::Rnn => (0..h).map(|i| gate(0, i, &state).tanh()).collect(),
                        Cell::Lstm => (0..h)
                            .map(|i| {
                                let [input, output, forget] = [0, 1, 2].map(|g| sigmoid(gate(g, i, &state)));
                                carry[i] = forget * carry[i] + input * gate(3, i, &state).tanh();
                                output * carry[i].tanh()
                            })
                            .collect(),
                        Cell::Gru | Cell::GruResetAfter => {
                            let reset: Vec<f64> =
                                (0..h).map(|i| sigmoid(gate(1, i, &state)) * state[i]).collect();
                            (0..h)
                                .map(|i| {
                                    let update = sigmoid(gate(0, i, &state));
                                    let row = 2 * h + i;
                                    let new = if cell == Cell::Gru {
                                        input(row) + recurrent(row, &reset)
                                    } else {
                                        input(row) + sigmoid(gate(1, i, &state)) * recurrent(row, &state)
                                    };
                                    (1.0 - update) * new.tanh() + update * state[i]
                                })
                                .collect()
                        }
                    };
                    state = next;
                    let at = ((t * d + direction) * batch + b) * h;
                    all[at..at + h].copy_from_slice(&state);
                }
            }
            all
        }

        fn found(self) -> Vec<f32> {
            let Self { cell, direction, time, batch, hidden, .. } = self;
            let layer = Recurrent { cell, direction, hidden: hidden as i64 };
            let operands = self.operands();
            let inputs: Vec<View<'_>> = operands
                .iter()
                .map(|(dims, numbers)| View::new(DType::F32, dims, bytes_of(numbers)).unwrap())
                .collect();
            let (d, b, h) = (self.directions() as i64, batch as i64, hidden as i64);
            let dims = [vec![time as i64, d, b, h], vec![d, b, h], vec![d, b, h]];
            let mut results = dims.clone().map(|dims| vec![9.0f32; dims.iter().product::<i64>() as usize]);
            let mut outputs: Vec<ViewMut<'_>> = results
                .iter_mut()
                .zip(&dims)
                .take(if cell == Cell::Lstm { 3 } else { 2 })
                .map(|(result, dims)| ViewMut::new(DType::F32, dims, bytes_of_mut(result)).unwrap())
                .collect();
            let mut workspace = vec![0u64; 1 << 16];
            let workspace = bytes_of_mut(&mut workspace);
            let skipped = workspace.as_ptr().align_offset(64);
            recurrent(&layer, &inputs, &mut outputs, &mut workspace[skipped..]).unwrap();
            let [all, ..] = results;
            all
        }
    }

    #[test]
    fn layers_are_those_of_the_definition() {
        let sizes =
            [(1, 1, 3, 2), (7, 1, 5, 33), (9, 3, 6, 20), (5, 7, 4, 48), (4, 20, 3, 65), (3, 8, 8, 16)];
        for (time, batch, features, hidden) in sizes {
            for cell in [Cell::Rnn, Cell::Lstm, Cell::Gru, Cell::GruResetAfter] {
                for direction in [Direction::Forward, Direction::Reverse, Direction::Bidirectional] {
                    let case = Case { cell, direction, time, batch, features, hidden };
                    for (place, (found, expected)) in case.found().iter().zip(case.expected()).enumerate() {
                        assert!((f64::from(*found) - expected).abs() < 1e-5, "{case:?} {place}: {found}");
                    }
                }
            }
        }
    }
}
