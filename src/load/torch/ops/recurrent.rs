//! Recurrent layers.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "lstm" => |call| layers(call, &LSTM),
        "gru" => |call| layers(call, &GRU),
        "rnn_tanh" => |call| layers(call, &RNN_TANH),
        "rnn_relu" => |call| layers(call, &RNN_RELU),
        _ => return None,
    })
}

/// A kind of layer, with the order of PyTorch's gates in ONNX's.
struct Cell {
    operator: &'static str,
    gates: &'static [i64],
    has_cell_state: bool,
    /// Where it is not that of ONNX.
    activation: Option<&'static str>,
}

/// PyTorch has input, forget, cell, output; ONNX input, output, forget, cell.
const LSTM: Cell = Cell { operator: "LSTM", gates: &[0, 3, 1, 2], has_cell_state: true, activation: None };
/// PyTorch has reset, update, new; ONNX update, reset, new.
const GRU: Cell = Cell { operator: "GRU", gates: &[1, 0, 2], has_cell_state: false, activation: None };
const RNN_TANH: Cell = Cell { operator: "RNN", gates: &[0], has_cell_state: false, activation: None };
const RNN_RELU: Cell = Cell { operator: "RNN", gates: &[0], has_cell_state: false, activation: Some("Relu") };

/// The arguments of a stack of layers.
struct Stack {
    layers: i64,
    directions: i64,
    batch_first: bool,
    hidden: i64,
    /// The states that the layers begin with, `[layers * directions, batch, hidden]`: the hidden one, and an LSTM's cell.
    states: Vec<String>,
    /// Two weights and, where there are biases, two of them, for each direction of each layer.
    params: Vec<String>,
    params_of_direction: i64,
}

impl Stack {
    /// Errors: forms that have no equivalent in ONNX.
    fn of(call: &mut Call<'_, '_>, cell: &Cell) -> Result<Self> {
        if call.argument("input").is_none() || call.argument("batch_first").is_none() {
            return Err(call.unsupported("of packed sequences"));
        }
        if call.rank("input")? != 3 {
            return Err(call.unsupported("without a batch"));
        }
        if call.flag("train", false)? && call.float("dropout", 0.0)? != 0.0 {
            return Err(call.unsupported("dropout in training"));
        }
        let states = match call.argument("hx").map(|argument| argument.parts().0) {
            Some("as_tensors") => call.list("hx")?,
            _ => vec![call.tensor("hx")?],
        };
        let stack = Self {
            layers: call.int("num_layers", 1)?,
            directions: if call.flag("bidirectional", false)? { 2 } else { 1 },
            batch_first: call.flag("batch_first", false)?,
            hidden: hidden_size(call, cell)?,
            states,
            params: call.list("params")?,
            params_of_direction: if call.flag("has_biases", true)? { 4 } else { 2 },
        };
        let needed = stack.layers.checked_mul(stack.directions * stack.params_of_direction);
        let fits = needed.is_some_and(|needed| stack.params.len() as i64 == needed);
        if !fits || stack.states.len() != 1 + usize::from(cell.has_cell_state) {
            return Err(call.unsupported("projections, or parameters of another number"));
        }
        Ok(stack)
    }

    /// One layer on `x`, `[steps, batch, features]`: its results, `[steps, batch, directions * hidden]`, and its last states.
    fn layer(&self, call: &mut Call<'_, '_>, cell: &Cell, number: i64, x: &str) -> (String, Vec<String>) {
        let weights = self.weights(call, cell, number);
        let bias = weights.get(2).map_or("", String::as_str);
        let initial = self.initial_states(call, number);
        let y = call.emit.fresh();
        let ends: Vec<String> = self.states.iter().map(|_| call.emit.fresh()).collect();

        let no_lengths = "";
        let mut inputs = vec![x, &weights[0], &weights[1], bias, no_lengths];
        inputs.extend(initial.iter().map(String::as_str));
        let mut outputs: Vec<&str> = vec![&y];
        outputs.extend(ends.iter().map(String::as_str));
        let direction = if self.directions == 2 { "bidirectional" } else { "forward" };
        let mut attributes =
            vec![("hidden_size", Attribute::Int(self.hidden)), ("direction", Attribute::Text(direction))];
        let activations = vec![cell.activation.unwrap_or_default(); self.directions as usize];
        if cell.activation.is_some() {
            attributes.push(("activations", Attribute::Texts(&activations)));
        }
        if cell.operator == "GRU" {
            attributes.push(("linear_before_reset", Attribute::Int(1)));
        }
        call.emit.operation(cell.operator, &inputs, &outputs, &attributes);

        // ONNX has [steps, directions, batch, hidden].
        let turned = call.op("Transpose", &[&y], &[("perm", Attribute::Ints(&[0, 2, 1, 3]))]);
        let shape = call.integers(&[0, 0, self.directions * self.hidden]);
        (call.plain("Reshape", &[&turned, &shape]), ends)
    }

    fn weights(&self, call: &mut Call<'_, '_>, cell: &Cell, layer: i64) -> Vec<String> {
        let each = self.params_of_direction as usize;
        let from = layer as usize * self.directions as usize * each;
        let own = &self.params[from..from + self.directions as usize * each];
        let directions: Vec<Vec<String>> = own.chunks(each).map(<[String]>::to_vec).collect();
        weights(call, cell, &directions)
    }

    /// The rows of each state that are a layer's.
    fn initial_states(&self, call: &mut Call<'_, '_>, layer: i64) -> Vec<String> {
        let start = call.integers(&[layer * self.directions]);
        let end = call.integers(&[(layer + 1) * self.directions]);
        let axis = call.integers(&[0]);
        self.states.iter().map(|state| call.plain("Slice", &[state, &start, &end, &axis])).collect()
    }
}

fn layers(call: &mut Call<'_, '_>, cell: &Cell) -> Result<()> {
    let stack = Stack::of(call, cell)?;
    let mut x = call.tensor("input")?;
    if stack.batch_first {
        x = swap_batch_and_steps(call, &x);
    }
    let mut last_states = vec![Vec::new(); stack.states.len()];
    for number in 0..stack.layers {
        let (y, ends) = stack.layer(call, cell, number, &x);
        x = y;
        last_states.iter_mut().zip(ends).for_each(|(all, end)| all.push(end));
    }
    if stack.batch_first {
        x = swap_batch_and_steps(call, &x);
    }
    let mut results = vec![Some(x)];
    for ends in last_states {
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        results.push(Some(call.op("Concat", &ends, &[("axis", Attribute::Int(0))])));
    }
    call.results(results)
}

fn swap_batch_and_steps(call: &mut Call<'_, '_>, x: &str) -> String {
    call.op("Transpose", &[x], &[("perm", Attribute::Ints(&[1, 0, 2]))])
}

/// Rows of the recurrent weights of one gate.
fn hidden_size(call: &Call<'_, '_>, cell: &Cell) -> Result<i64> {
    let names = call.list_names("params")?;
    let dims = names.get(1).and_then(|name| call.meta_of(name).ok()?.dims());
    let rows = dims.and_then(|dims| dims.first().copied());
    // Both directions together have twice as many.
    rows.filter(|&rows| rows <= i64::MAX / 2)
        .map(|rows| rows / cell.gates.len() as i64)
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
