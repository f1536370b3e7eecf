//! Recurrent layers as their steps, so that what differentiates a graph need not know them.

use super::build::{Build, Factor};
use crate::error::{Error, Report, Result};
use crate::ir::{Cell, Direction, Graph, NodeId, Op, Recurrent, Unary, ValueId};
use crate::pass::rewrite::Rewriter;

/// Steps of all layers together, at most: a file of a few bytes may name any number of them.
const MOST_STEPS: u64 = 1 << 16;

/// Replaces every recurrent layer by the products and functions of its steps: one product for the
/// inputs of all of them, then one for each. About 20 nodes a step. O(nodes made).
///
/// Errors: a dimension that is not bound; more than 65,536 steps.
pub fn unroll(graph: &mut Graph) -> Result<()> {
    unroll_some(graph, &|_| true)
}

/// As [`unroll`], of the layers that `chosen` says.
pub(crate) fn unroll_some(graph: &mut Graph, chosen: &dyn Fn(NodeId) -> bool) -> Result<()> {
    let recurrent = |node: NodeId| matches!(graph.node(node).op, Op::Recurrent(_)) && chosen(node);
    if !graph.node_ids().any(recurrent) {
        return Ok(());
    }
    let mut left = MOST_STEPS;
    for node in graph.node_ids().filter(|&node| recurrent(node)) {
        let steps = steps_of(graph, node);
        left = left.checked_sub(steps).ok_or_else(|| too_many(graph, node, steps))?;
    }
    let mut rewriter = Rewriter::new(graph);
    for node in graph.node_ids() {
        let data = graph.node(node);
        let layer = match &data.op {
            Op::Recurrent(layer) if chosen(node) => layer,
            _ => {
                rewriter.keep(node)?;
                continue;
            }
        };
        let operands = rewriter.operands(node)?;
        let mut b = Build { graph: rewriter.graph_mut(), source: data.source };
        let results = steps(&mut b, layer, &operands)?;
        rewriter.replace_each(node, &results);
    }
    *graph = rewriter.finish()?;
    Ok(())
}

/// How many steps a recurrent layer takes, both directions together; 0 where its time is not bound.
pub(crate) fn steps_of(graph: &Graph, node: NodeId) -> u64 {
    let data = graph.node(node);
    let Op::Recurrent(layer) = &data.op else { return 0 };
    let time = graph.ty(data.operands[0]).shape[0].known().map_or(0, i64::unsigned_abs);
    let directions = if layer.direction == Direction::Bidirectional { 2 } else { 1 };
    time.saturating_mul(directions)
}

fn too_many(graph: &Graph, node: NodeId, steps: u64) -> Error {
    let name = &graph.source(graph.node(node).source).name;
    let problem = format!(
        "the steps of recurrent layers would each be nodes of their own: {steps} here, at most {MOST_STEPS} in all"
    );
    Error::Unsupported(Report::new(format!("node {name}"), problem).help("take shorter sequences"))
}

/// One direction's weights.
struct Weights {
    recurrent: ValueId,
    recurrent_bias: ValueId,
}

/// What a step hands to the next.
struct State {
    hidden: ValueId,
    cell: Option<ValueId>,
}

fn steps(b: &mut Build<'_>, layer: &Recurrent, x: &[ValueId]) -> Result<Vec<ValueId>> {
    let dims = b.dims(x[0])?;
    let (time, batch, hidden) = (dims[0], dims[1], layer.hidden);
    let directions = if layer.direction == Direction::Bidirectional { 2 } else { 1 };
    let (mut all, mut last, mut cells) = (Vec::new(), Vec::new(), Vec::new());
    for direction in 0..directions {
        let reverse = layer.direction == Direction::Reverse || direction == 1;
        let of = |b: &mut Build<'_>, value: ValueId| {
            let part = b.part(value, 0, direction, 1)?;
            let dims = b.dims(part)?;
            b.reshape(part, &dims[1..])
        };
        let (input, recurrent) = (of(b, x[1])?, of(b, x[2])?);
        let bias = of(b, x[3])?;
        let rows = b.dims(bias)?[0] / 2;
        let (input_bias, recurrent_bias) = (b.part(bias, 0, 0, rows)?, b.part(bias, 0, rows, rows)?);
        let projected = b.matmul(x[0], Factor::transposed(input))?;
        let projected = b.add(projected, input_bias)?;
        let cell = match x.get(5) {
            Some(&cell) => Some(of(b, cell)?),
            None => None,
        };
        let mut state = State { hidden: of(b, x[4])?, cell };
        let weights = Weights { recurrent, recurrent_bias };
        let mut outputs = Vec::with_capacity(time as usize);
        for step in 0..time {
            let at = if reverse { time - 1 - step } else { step };
            let gates = b.part(projected, 0, at, 1)?;
            let gates = b.reshape(gates, &[batch, rows])?;
            state = advance(b, layer.cell, hidden, &weights, gates, &state)?;
            outputs.push(b.reshape(state.hidden, &[1, 1, batch, hidden])?);
        }
        if reverse {
            outputs.reverse();
        }
        if time > 0 {
            all.push(b.concat(&outputs, 0)?);
        }
        last.push(b.reshape(state.hidden, &[1, batch, hidden])?);
        if let Some(cell) = state.cell {
            cells.push(b.reshape(cell, &[1, batch, hidden])?);
        }
    }
    let all = match all.is_empty() {
        true => b.full(b.dtype(x[0]), &[0, directions, batch, hidden], 0.0)?,
        false => b.concat(&all, 1)?,
    };
    let mut results = vec![all, b.concat(&last, 0)?];
    if !cells.is_empty() {
        results.push(b.concat(&cells, 0)?);
    }
    Ok(results)
}

/// One step: its gates hold the products of the input, with its bias.
fn advance(
    b: &mut Build<'_>,
    cell: Cell,
    hidden: i64,
    weights: &Weights,
    gates: ValueId,
    state: &State,
) -> Result<State> {
    let product = |b: &mut Build<'_>, from: ValueId, first: i64, count: i64| {
        let rows = b.part(weights.recurrent, 0, first * hidden, count * hidden)?;
        let bias = b.part(weights.recurrent_bias, 0, first * hidden, count * hidden)?;
        let product = b.matmul(from, Factor::transposed(rows))?;
        b.add(product, bias)
    };
    let gate = |b: &mut Build<'_>, gates: ValueId, number: i64| b.part(gates, 1, number * hidden, hidden);
    match cell {
        Cell::Rnn => {
            let recurrent = product(b, state.hidden, 0, 1)?;
            let sum = b.add(gates, recurrent)?;
            Ok(State { hidden: b.unary(Unary::Tanh, sum)?, cell: None })
        }
        Cell::Lstm => {
            let recurrent = product(b, state.hidden, 0, 4)?;
            let gates = b.add(gates, recurrent)?;
            let sigmoid = |b: &mut Build<'_>, number| {
                let own = gate(b, gates, number)?;
                b.unary(Unary::Sigmoid, own)
            };
            let (input, output, forget) = (sigmoid(b, 0)?, sigmoid(b, 1)?, sigmoid(b, 2)?);
            let new = gate(b, gates, 3)?;
            let new = b.unary(Unary::Tanh, new)?;
            let taken = b.mul(input, new)?;
            let carried = match state.cell {
                Some(cell) => {
                    let kept = b.mul(forget, cell)?;
                    b.add(kept, taken)?
                }
                None => taken,
            };
            let shown = b.unary(Unary::Tanh, carried)?;
            Ok(State { hidden: b.mul(output, shown)?, cell: Some(carried) })
        }
        Cell::Gru | Cell::GruResetAfter => {
            let recurrent = product(b, state.hidden, 0, 2)?;
            let both = b.part(gates, 1, 0, 2 * hidden)?;
            let both = b.add(both, recurrent)?;
            let both = b.unary(Unary::Sigmoid, both)?;
            let (update, reset) = (gate(b, both, 0)?, gate(b, both, 1)?);
            let recurrent = match cell {
                Cell::GruResetAfter => {
                    let product = product(b, state.hidden, 2, 1)?;
                    b.mul(reset, product)?
                }
                Cell::Gru | Cell::Rnn | Cell::Lstm => {
                    let kept = b.mul(reset, state.hidden)?;
                    product(b, kept, 2, 1)?
                }
            };
            let new = gate(b, gates, 2)?;
            let new = b.add(new, recurrent)?;
            let new = b.unary(Unary::Tanh, new)?;
            // (1 - update) new + update h
            let difference = b.sub(state.hidden, new)?;
            let moved = b.mul(update, difference)?;
            Ok(State { hidden: b.add(new, moved)?, cell: None })
        }
    }
}
