//! Recurrent layers.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
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
    /// Whether what an LSTM gives is projected, by a last weight of each direction.
    is_projected: bool,
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
        let params = call.list("params")?;
        let mut params_of_direction = if call.flag("has_biases", true)? { 4 } else { 2 };
        let directions = if call.flag("bidirectional", false)? { 2 } else { 1 };
        let layers = call.int("num_layers", 1)?;
        let needed = |each: i64| layers.checked_mul(directions * each) == Some(params.len() as i64);
        let is_projected = cell.has_cell_state && needed(params_of_direction + 1);
        if is_projected {
            params_of_direction += 1;
        }
        if !needed(params_of_direction) || states.len() != 1 + usize::from(cell.has_cell_state) {
            return Err(call.unsupported("parameters of another number"));
        }
        Ok(Self {
            layers,
            directions,
            batch_first: call.flag("batch_first", false)?,
            hidden: hidden_size(call, cell)?,
            states,
            params,
            params_of_direction,
            is_projected,
        })
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
        weights(call, cell, &self.params_of(layer))
    }

    /// The parameters of each direction of a layer.
    fn params_of(&self, layer: i64) -> Vec<Vec<String>> {
        let each = self.params_of_direction as usize;
        let from = layer as usize * self.directions as usize * each;
        let own = &self.params[from..from + self.directions as usize * each];
        own.chunks(each).map(<[String]>::to_vec).collect()
    }

    /// A layer whose results are projected: ONNX has none, so that it is written step by step.
    fn projected(
        &self,
        call: &mut Call<'_, '_>,
        number: i64,
        x: &str,
        steps: i64,
    ) -> Result<(String, Vec<String>)> {
        let initial = self.initial_states(call, number);
        let (mut sides, mut ends) = (Vec::new(), vec![Vec::new(); initial.len()]);
        for (direction, params) in self.params_of(number).iter().enumerate() {
            let place = call.scalar(DType::I64, direction as f64);
            let first = |call: &mut Call<'_, '_>, state: &str| {
                call.op("Gather", &[state, &place], &[("axis", Attribute::Int(0))])
            };
            let states = [first(call, &initial[0]), first(call, &initial[1])];
            let run = Projected::of(call, params)?;
            let order: Vec<i64> =
                if direction == 0 { (0..steps).collect() } else { (0..steps).rev().collect() };
            let (y, last) = run.steps(call, x, states, &order);
            sides.push(y);
            let front = call.integers(&[0]);
            for (end, state) in ends.iter_mut().zip(last) {
                end.push(call.plain("Unsqueeze", &[&state, &front]));
            }
        }
        let joined = |call: &mut Call<'_, '_>, parts: &[String], axis: i64| {
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            call.op("Concat", &parts, &[("axis", Attribute::Int(axis))])
        };
        let y = joined(call, &sides, -1);
        Ok((y, ends.iter().map(|end| joined(call, end, 0)).collect()))
    }

    /// The rows of each state that are a layer's.
    fn initial_states(&self, call: &mut Call<'_, '_>, layer: i64) -> Vec<String> {
        let start = call.integers(&[layer * self.directions]);
        let end = call.integers(&[(layer + 1) * self.directions]);
        let axis = call.integers(&[0]);
        self.states.iter().map(|state| call.plain("Slice", &[state, &start, &end, &axis])).collect()
    }
}

/// The weights of one direction of an LSTM whose results are projected, each transposed.
struct Projected {
    of_input: String,
    of_state: String,
    bias: Option<String>,
    projection: String,
}

impl Projected {
    fn of(call: &mut Call<'_, '_>, params: &[String]) -> Result<Self> {
        let turned = |call: &mut Call<'_, '_>, x: &str| {
            call.op("Transpose", &[x], &[("perm", Attribute::Ints(&[1, 0]))])
        };
        let [of_input, of_state, biases @ .., projection] = params else {
            return Err(call.wrong("it has no parameters"));
        };
        let bias = match biases {
            [one, other] => Some(call.plain("Add", &[one, other])),
            _ => None,
        };
        let [of_input, of_state, projection] = [of_input, of_state, projection].map(|x| turned(call, x));
        Ok(Self { of_input, of_state, bias, projection })
    }

    /// The results of all steps, in the order of time, and the last states.
    fn steps(
        &self,
        call: &mut Call<'_, '_>,
        x: &str,
        [mut hidden, mut cell]: [String; 2],
        order: &[i64],
    ) -> (String, [String; 2]) {
        let mut inputs = call.plain("MatMul", &[x, &self.of_input]);
        if let Some(bias) = &self.bias {
            inputs = call.plain("Add", &[&inputs, bias]);
        }
        let (mut results, front) = (vec![String::new(); order.len()], call.integers(&[0]));
        for &step in order {
            let place = call.scalar(DType::I64, step as f64);
            let input = call.op("Gather", &[&inputs, &place], &[("axis", Attribute::Int(0))]);
            let state = call.plain("MatMul", &[&hidden, &self.of_state]);
            let gates = call.plain("Add", &[&input, &state]);
            let parts: [String; 4] = std::array::from_fn(|_| call.emit.fresh());
            let names = parts.each_ref().map(String::as_str);
            let attributes = [("axis", Attribute::Int(-1)), ("num_outputs", Attribute::Int(4))];
            call.emit.operation("Split", &[&gates], &names, &attributes);
            let [input, forget, new, output] = parts;
            let [input, forget, output] = [input, forget, output].map(|gate| call.plain("Sigmoid", &[&gate]));
            let new = call.plain("Tanh", &[&new]);
            let (kept, added) = (call.plain("Mul", &[&forget, &cell]), call.plain("Mul", &[&input, &new]));
            cell = call.plain("Add", &[&kept, &added]);
            let seen = call.plain("Tanh", &[&cell]);
            let seen = call.plain("Mul", &[&output, &seen]);
            hidden = call.plain("MatMul", &[&seen, &self.projection]);
            results[step as usize] = call.plain("Unsqueeze", &[&hidden, &front]);
        }
        let results: Vec<&str> = results.iter().map(String::as_str).collect();
        (call.op("Concat", &results, &[("axis", Attribute::Int(0))]), [hidden, cell])
    }
}

fn layers(call: &mut Call<'_, '_>, cell: &Cell) -> Result<()> {
    let stack = Stack::of(call, cell)?;
    let mut steps = 0;
    if stack.is_projected {
        let axis = usize::from(stack.batch_first);
        let known = call.meta("input")?.sizes.get(axis).and_then(schema::size);
        steps = known.ok_or_else(|| call.unsupported("with projections over an open number of steps"))?;
        if steps < 1 {
            return Err(call.unsupported(format!("with projections over {steps} steps")));
        }
        call.list_steps(steps.checked_mul(stack.directions * stack.layers))?;
    }
    let mut x = call.tensor("input")?;
    if stack.batch_first {
        x = swap_batch_and_steps(call, &x);
    }
    let mut last_states = vec![Vec::new(); stack.states.len()];
    for number in 0..stack.layers {
        let (y, ends) = match stack.is_projected {
            true => stack.projected(call, number, &x, steps)?,
            false => stack.layer(call, cell, number, &x),
        };
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
