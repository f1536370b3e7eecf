//! Recurrent layers, step by step.

use super::Array;
use super::scalar::Scalar;
use crate::ir::{Cell, Direction};
use crate::kernel::program::Layer;

/// A recurrent layer, as [`crate::ir::Recurrent`] defines it.
pub(super) fn recurrent(layer: &Layer, args: &mut [Array]) -> Option<()> {
    let read = |position: usize| -> Option<Vec<f64>> {
        let Array::Real(list) = args.get(*layer.reads.get(position)? as usize)? else { return None };
        Some(list.clone())
    };
    let (x, w, r, b, initial) = (read(0)?, read(1)?, read(2)?, read(3)?, read(4)?);
    let cells = if layer.reads.len() > 5 { Some(read(5)?) } else { None };
    let size = |size: i64| usize::try_from(size).ok();
    let (time, batch, features) = (size(layer.time)?, size(layer.batch)?, size(layer.features)?);
    let hidden = size(layer.cell.hidden)?;
    let gates = match layer.cell.cell {
        Cell::Rnn => 1,
        Cell::Lstm => 4,
        Cell::Gru | Cell::GruResetAfter => 3,
    };
    let directions = if layer.cell.direction == Direction::Bidirectional { 2 } else { 1 };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    for d in 0..directions {
        let backwards = layer.cell.direction == Direction::Reverse || d == 1;
        for n in 0..batch {
            let start = (d * batch + n) * hidden;
            let mut state = initial.get(start..start + hidden)?.to_vec();
            let mut cell = match &cells {
                Some(cells) => cells.get(start..start + hidden)?.to_vec(),
                None => vec![0.0; hidden],
            };
            for step in 0..time {
                let t = if backwards { time - 1 - step } else { step };
                let input = &x[(t * batch + n) * features..][..features];
                let row = |gate: usize, j: usize| d * gates * hidden + gate * hidden + j;
                let bias =
                    |gate: usize, j: usize, of: usize| b[(2 * d + of) * gates * hidden + gate * hidden + j];
                let from_input =
                    |gate, j| dot(&w[row(gate, j) * features..][..features], input) + bias(gate, j, 0);
                let from_state = |gate, j, state: &[f64]| {
                    dot(&r[row(gate, j) * hidden..][..hidden], state) + bias(gate, j, 1)
                };
                let gate = |gate, j| from_input(gate, j) + from_state(gate, j, &state);
                let next: Vec<f64> = match layer.cell.cell {
                    Cell::Rnn => (0..hidden).map(|j| gate(0, j).tanh()).collect(),
                    Cell::Lstm => (0..hidden)
                        .map(|j| {
                            let (i, o, f, c) = (gate(0, j), gate(1, j), gate(2, j), gate(3, j));
                            cell[j] = sigmoid(f) * cell[j] + sigmoid(i) * c.tanh();
                            sigmoid(o) * cell[j].tanh()
                        })
                        .collect(),
                    kind => {
                        let reset: Vec<f64> = (0..hidden).map(|j| sigmoid(gate(1, j))).collect();
                        let damped: Vec<f64> = reset.iter().zip(&state).map(|(r, h)| r * h).collect();
                        (0..hidden)
                            .map(|j| {
                                let update = sigmoid(gate(0, j));
                                let inner = match kind {
                                    Cell::Gru => from_state(2, j, &damped),
                                    _ => reset[j] * from_state(2, j, &state),
                                };
                                (1.0 - update) * (from_input(2, j) + inner).tanh() + update * state[j]
                            })
                            .collect()
                    }
                };
                state = next;
                for (j, &value) in state.iter().enumerate() {
                    let at = ((t * directions + d) * batch + n) * hidden + j;
                    args.get_mut(layer.writes[0] as usize)?.set(at, Scalar::Real(value))?;
                }
            }
            for j in 0..hidden {
                args.get_mut(*layer.writes.get(1)? as usize)?.set(start + j, Scalar::Real(state[j]))?;
                if let Some(&last) = layer.writes.get(2) {
                    args.get_mut(last as usize)?.set(start + j, Scalar::Real(cell[j]))?;
                }
            }
        }
    }
    Some(())
}
