//! Recurrent layers, step by step.

use super::Array;
use super::scalar::Scalar;
use crate::ir::{Cell, Direction};
use crate::kernel::program::Layer;

/// A recurrent layer, as [`crate::ir::Recurrent`] defines it.
pub(super) fn recurrent(layer: &Layer, args: &mut [Array]) -> Option<()> {
    let operands = LayerOperands::new(layer, args)?;
    for direction in 0..operands.directions {
        for sequence in 0..operands.batch {
            run(layer, &operands, direction, sequence, args)?;
        }
    }
    Some(())
}

/// LayerOperands and sizes of a layer.
struct LayerOperands {
    x: Vec<f64>,
    weights: Vec<f64>,
    recurrent: Vec<f64>,
    bias: Vec<f64>,
    initial: Vec<f64>,
    initial_cells: Option<Vec<f64>>,
    time: usize,
    batch: usize,
    features: usize,
    hidden: usize,
    gates: usize,
    directions: usize,
}

impl LayerOperands {
    fn new(layer: &Layer, args: &[Array]) -> Option<Self> {
        let read = |position: usize| -> Option<Vec<f64>> {
            let Array::Real(list) = args.get(*layer.reads.get(position)? as usize)? else { return None };
            Some(list.clone())
        };
        let size = |size: i64| usize::try_from(size).ok();
        Some(Self {
            x: read(0)?,
            weights: read(1)?,
            recurrent: read(2)?,
            bias: read(3)?,
            initial: read(4)?,
            initial_cells: if layer.reads.len() > 5 { Some(read(5)?) } else { None },
            time: size(layer.time)?,
            batch: size(layer.batch)?,
            features: size(layer.features)?,
            hidden: size(layer.cell.hidden)?,
            gates: match layer.cell.cell {
                Cell::Rnn => 1,
                Cell::Lstm => 4,
                Cell::Gru | Cell::GruResetAfter => 3,
            },
            directions: if layer.cell.direction == Direction::Bidirectional { 2 } else { 1 },
        })
    }
}

/// One step of one sequence in one direction.
struct TimeStep<'a> {
    operands: &'a LayerOperands,
    direction: usize,
    input: &'a [f64],
}

impl TimeStep<'_> {
    fn row(&self, gate: usize, unit: usize) -> usize {
        let LayerOperands { gates, hidden, .. } = *self.operands;
        self.direction * gates * hidden + gate * hidden + unit
    }

    /// The first of the two biases belongs to the input, the second to the state.
    fn bias(&self, gate: usize, unit: usize, which: usize) -> f64 {
        let LayerOperands { gates, hidden, .. } = *self.operands;
        self.operands.bias[(2 * self.direction + which) * gates * hidden + gate * hidden + unit]
    }

    fn of_input(&self, gate: usize, unit: usize) -> f64 {
        let size = self.operands.features;
        let weights = &self.operands.weights[self.row(gate, unit) * size..][..size];
        dot(weights, self.input) + self.bias(gate, unit, 0)
    }

    fn of_state(&self, gate: usize, unit: usize, state: &[f64]) -> f64 {
        let size = self.operands.hidden;
        let weights = &self.operands.recurrent[self.row(gate, unit) * size..][..size];
        dot(weights, state) + self.bias(gate, unit, 1)
    }

    /// The next hidden state; an LSTM's cells change too.
    fn next(&self, kind: Cell, state: &[f64], cells: &mut [f64]) -> Vec<f64> {
        let units = 0..self.operands.hidden;
        let gate = |gate, unit| self.of_input(gate, unit) + self.of_state(gate, unit, state);
        match kind {
            Cell::Rnn => units.map(|j| gate(0, j).tanh()).collect(),
            Cell::Lstm => units
                .map(|j| {
                    let (i, o, f, c) = (gate(0, j), gate(1, j), gate(2, j), gate(3, j));
                    cells[j] = sigmoid(f) * cells[j] + sigmoid(i) * c.tanh();
                    sigmoid(o) * cells[j].tanh()
                })
                .collect(),
            Cell::Gru | Cell::GruResetAfter => {
                let reset: Vec<f64> = units.clone().map(|j| sigmoid(gate(1, j))).collect();
                let damped: Vec<f64> = reset.iter().zip(state).map(|(r, h)| r * h).collect();
                units
                    .map(|j| {
                        let update = sigmoid(gate(0, j));
                        let inner = match kind {
                            Cell::Gru => self.of_state(2, j, &damped),
                            _ => reset[j] * self.of_state(2, j, state),
                        };
                        (1.0 - update) * (self.of_input(2, j) + inner).tanh() + update * state[j]
                    })
                    .collect()
            }
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// A whole sequence in one direction: every hidden state, and the last state and cells.
fn run(
    layer: &Layer,
    operands: &LayerOperands,
    direction: usize,
    sequence: usize,
    args: &mut [Array],
) -> Option<()> {
    let LayerOperands { time, batch, features, hidden, directions, .. } = *operands;
    let backwards = layer.cell.direction == Direction::Reverse || direction == 1;
    let start = (direction * batch + sequence) * hidden;
    let mut state = operands.initial.get(start..start + hidden)?.to_vec();
    let mut cells = match &operands.initial_cells {
        Some(cells) => cells.get(start..start + hidden)?.to_vec(),
        None => vec![0.0; hidden],
    };
    for step in 0..time {
        let t = if backwards { time - 1 - step } else { step };
        let input = &operands.x[(t * batch + sequence) * features..][..features];
        state = TimeStep { operands, direction, input }.next(layer.cell.cell, &state, &mut cells);
        for (j, &value) in state.iter().enumerate() {
            let at = ((t * directions + direction) * batch + sequence) * hidden + j;
            args.get_mut(layer.writes[0] as usize)?.set(at, Scalar::Real(value))?;
        }
    }
    for j in 0..hidden {
        args.get_mut(*layer.writes.get(1)? as usize)?.set(start + j, Scalar::Real(state[j]))?;
        if let Some(&last) = layer.writes.get(2) {
            args.get_mut(last as usize)?.set(start + j, Scalar::Real(cells[j]))?;
        }
    }
    Some(())
}
