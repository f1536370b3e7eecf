//! Recurrent layers.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::load::onnx::written::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "lstm" => |call| layers(call, &LSTM),
        "gru" => |call| layers(call, &GRU),
        _ => return None,
    })
}

/// A kind of layer, with the order of PyTorch's gates in ONNX's.
struct Cell {
    operator: &'static str,
    gates: &'static [i64],
    has_cell_state: bool,
}

/// PyTorch has input, forget, cell, output; ONNX input, output, forget, cell.
const LSTM: Cell = Cell { operator: "LSTM", gates: &[0, 3, 1, 2], has_cell_state: true };
/// PyTorch has reset, update, new; ONNX update, reset, new.
const GRU: Cell = Cell { operator: "GRU", gates: &[1, 0, 2], has_cell_state: false };

fn layers(call: &mut Call<'_, '_>, cell: &Cell) -> Result<()> {
    if call.argument("input").is_none() || call.argument("batch_first").is_none() {
        return Err(call.unsupported("of packed sequences"));
    }
    if call.rank("input")? != 3 {
        return Err(call.unsupported("without a batch"));
    }
    let mut x = call.tensor("input")?;
    let batch_first = call.flag("batch_first", false)?;
    let (biases, directions) = (call.flag("has_biases", true)?, 1 + call.int("bidirectional", 0)?);
    let count = call.int("num_layers", 1)?;
    if call.flag("train", false)? && call.float("dropout", 0.0)? != 0.0 {
        return Err(call.unsupported("dropout in training"));
    }
    let states = match call.argument("hx").map(|argument| argument.parts().0) {
        Some("as_tensors") => call.list("hx")?,
        _ => vec![call.tensor("hx")?],
    };
    let params = call.list("params")?;
    let each = if biases { 4 } else { 2 };
    let fits = usize::try_from(count * directions * each).is_ok_and(|needed| params.len() == needed);
    if !fits || states.len() != 1 + usize::from(cell.has_cell_state) {
        return Err(call.unsupported("projections, or parameters of another number"));
    }
    if batch_first {
        x = call.op("Transpose", &[&x], &[("perm", Attribute::Ints(&[1, 0, 2]))]);
    }
    let mut last = vec![Vec::new(); states.len()];
    for layer in 0..count {
        let from = (layer * directions * each) as usize;
        let own = &params[from..from + (directions * each) as usize];
        let own: Vec<Vec<String>> = own.chunks(each as usize).map(<[String]>::to_vec).collect();
        let weights = weights(call, cell, &own);
        let [start, end, along] =
            [layer * directions, (layer + 1) * directions, 0].map(|at| call.integers(&[at]));
        let initial: Vec<String> =
            states.iter().map(|state| call.plain("Slice", &[state, &start, &end, &along])).collect();
        let (y, ends) = (call.emit.fresh(), states.iter().map(|_| call.emit.fresh()).collect::<Vec<_>>());
        let mut inputs: Vec<&str> =
            vec![&x, &weights[0], &weights[1], weights.get(2).map_or("", String::as_str), ""];
        inputs.extend(initial.iter().map(String::as_str));
        let mut outputs: Vec<&str> = vec![&y];
        outputs.extend(ends.iter().map(String::as_str));
        let hidden = hidden_size(call, cell)?;
        let mut attributes = vec![
            ("hidden_size", Attribute::Int(hidden)),
            ("direction", Attribute::Text(if directions == 2 { "bidirectional" } else { "forward" })),
        ];
        if !cell.has_cell_state {
            attributes.push(("linear_before_reset", Attribute::Int(1)));
        }
        call.emit.operation(cell.operator, &inputs, &outputs, &attributes);
        // [steps, directions, batch, hidden] becomes [steps, batch, directions * hidden].
        let turned = call.op("Transpose", &[&y], &[("perm", Attribute::Ints(&[0, 2, 1, 3]))]);
        let shape = call.integers(&[0, 0, directions * hidden]);
        x = call.plain("Reshape", &[&turned, &shape]);
        last.iter_mut().zip(ends).for_each(|(all, end)| all.push(end));
    }
    if batch_first {
        x = call.op("Transpose", &[&x], &[("perm", Attribute::Ints(&[1, 0, 2]))]);
    }
    let mut results = vec![Some(x)];
    for ends in last {
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        results.push(Some(call.op("Concat", &ends, &[("axis", Attribute::Int(0))])));
    }
    call.results(results)
}

/// Rows of the recurrent weights of one gate.
fn hidden_size(call: &Call<'_, '_>, cell: &Cell) -> Result<i64> {
    let names = call.list_names("params")?;
    let dims = names.get(1).and_then(|name| call.meta_of(name).ok()?.dims());
    let rows = dims.and_then(|dims| dims.first().copied());
    rows.map(|rows| rows / cell.gates.len() as i64)
        .ok_or_else(|| call.wrong("its weights have no known sizes"))
}

/// Weights of the input, of the state, and both biases, with ONNX's order of gates, one direction behind the other.
fn weights(call: &mut Call<'_, '_>, cell: &Cell, directions: &[Vec<String>]) -> Vec<String> {
    let mut kinds: Vec<Vec<String>> = Vec::new();
    for params in directions {
        let ordered: Vec<String> = params.iter().map(|param| reordered(call, cell, param)).collect();
        let mut own = ordered[..2].to_vec();
        if let [_, _, input, state] = ordered.as_slice() {
            own.push(call.op("Concat", &[input, state], &[("axis", Attribute::Int(0))]));
        }
        kinds.resize(own.len(), Vec::new());
        kinds.iter_mut().zip(own).for_each(|(kind, value)| kind.push(value));
    }
    let front = call.integers(&[0]);
    let mut joined = Vec::new();
    for kind in kinds {
        let parts: Vec<String> = kind.iter().map(|value| call.plain("Unsqueeze", &[value, &front])).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        joined.push(call.op("Concat", &parts, &[("axis", Attribute::Int(0))]));
    }
    joined
}

fn reordered(call: &mut Call<'_, '_>, cell: &Cell, param: &str) -> String {
    let parts: Vec<String> = cell.gates.iter().map(|_| call.emit.fresh()).collect();
    let names: Vec<&str> = parts.iter().map(String::as_str).collect();
    let count = Attribute::Int(cell.gates.len() as i64);
    call.emit.operation("Split", &[param], &names, &[("axis", Attribute::Int(0)), ("num_outputs", count)]);
    let ordered: Vec<&str> = cell.gates.iter().map(|&gate| names[gate as usize]).collect();
    call.op("Concat", &ordered, &[("axis", Attribute::Int(0))])
}
