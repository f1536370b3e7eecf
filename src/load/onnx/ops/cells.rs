//! Recurrent layers step by step: those whose cells are not the usual ones, or whose sequences differ in length.

use super::super::node::At;
use super::control::reversed_up_to;
use super::quantized::{Along, Integers, dynamically, product, scaled};
use crate::error::Result;
use crate::ir::{Binary, Cell, Compare, DType, Direction, Size, Unary, ValueId};

/// Steps that are computed one after another.
const MOST_STEPS: i64 = 1 << 14;

/// A function between the parts of a cell, with its factors.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Activation {
    name: String,
    alpha: Option<f64>,
    beta: Option<f64>,
}

/// What is the same for both directions.
pub(super) struct Layer {
    pub(super) cell: Cell,
    pub(super) direction: Direction,
    pub(super) hidden: i64,
    pub(super) activations: Vec<Activation>,
    pub(super) clip: Option<f64>,
    /// The forget gate is what the input gate leaves.
    pub(super) input_forget: bool,
    /// `[time, batch, in]`
    pub(super) x: ValueId,
    pub(super) lengths: Option<ValueId>,
    /// `[directions, batch, hidden]`
    pub(super) states: Vec<ValueId>,
    pub(super) matrices: Matrices,
}

/// How a node's matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matrices {
    /// Numbers, `[directions, gates * hidden, in]`.
    Plain,
    /// Integers, `[directions, in, gates * hidden]`, whose scales and zero points are inputs 8 to 11.
    Quantized,
}

/// A matrix that inputs or states are multiplied by.
#[derive(Clone, Copy)]
enum Factor {
    /// `[gates * hidden, in]`
    Plain(ValueId),
    /// `[in, gates * hidden]`; what is multiplied is quantised as it comes.
    Quantized(Integers, ValueId),
}

impl Factor {
    fn product(self, at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
        let (integers, scale) = match self {
            Self::Plain(matrix) => return at.matmul_transposed(x, matrix),
            Self::Quantized(integers, scale) => (integers, scale),
        };
        let [data, own, zero] = dynamically(at, x)?;
        let sum = product(at, Integers { data, zero: Some(zero) }, integers)?;
        let last = at.sizes_of(sum).len() - 1;
        scaled(at, sum, [own, scale], [Along::Axis(last - 1), Along::Axis(last)])
    }
}

/// The activations that a node states, or the usual ones, for each direction.
pub(super) fn activations(at: &At<'_>, usual: &[&str], directions: usize) -> Result<Vec<Activation>> {
    let names = match at.texts("activations")? {
        Some(names) if !names.is_empty() => names,
        _ => usual.iter().cycle().take(usual.len() * directions).map(|name| (*name).to_owned()).collect(),
    };
    if names.len() != usual.len() * directions {
        return Err(at.wrong(format!(
            "expected {} activations, found {}",
            usual.len() * directions,
            names.len()
        )));
    }
    let mut alphas = at.floats("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = at.floats("activation_beta")?.unwrap_or_default().into_iter();
    let mut all = Vec::new();
    for name in names {
        let name = name.to_ascii_lowercase();
        // Each factor is the next function's that has one.
        let (alpha, beta) = match name.as_str() {
            "affine" | "scaledtanh" | "hardsigmoid" => (alphas.next(), betas.next()),
            "leakyrelu" | "thresholdedrelu" | "elu" => (alphas.next(), None),
            "relu" | "tanh" | "sigmoid" | "softsign" | "softplus" => (None, None),
            _ => return Err(at.unsupported(format!("with activation {name:?}"))),
        };
        all.push(Activation { name, alpha, beta });
    }
    Ok(all)
}

impl Activation {
    /// Whether this is the function of that name, without factors of its own.
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name.to_ascii_lowercase()
    }

    fn apply(&self, at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
        let alpha = |default: f64| self.alpha.unwrap_or(default);
        match self.name.as_str() {
            "relu" => at.unary(Unary::Relu, x),
            "tanh" => at.unary(Unary::Tanh, x),
            "sigmoid" => at.unary(Unary::Sigmoid, x),
            "softplus" => at.unary(Unary::Softplus, x),
            "affine" => affine(at, x, alpha(1.0), self.beta.unwrap_or(0.0)),
            "scaledtanh" => {
                let inner = at.binary_scalar(Binary::Mul, x, self.beta.unwrap_or(1.0))?;
                let inner = at.unary(Unary::Tanh, inner)?;
                at.binary_scalar(Binary::Mul, inner, alpha(1.0))
            }
            "hardsigmoid" => {
                let y = affine(at, x, alpha(0.2), self.beta.unwrap_or(0.5))?;
                let y = at.binary_scalar(Binary::Min, y, 1.0)?;
                at.binary_scalar(Binary::Max, y, 0.0)
            }
            "softsign" => {
                let size = at.unary(Unary::Abs, x)?;
                let size = at.binary_scalar(Binary::Add, size, 1.0)?;
                at.div(x, size)
            }
            "thresholdedrelu" => {
                let above = at.compare_scalar(Compare::Gt, x, alpha(1.0))?;
                at.select_or(above, x, 0.0)
            }
            other => {
                let low = match other {
                    "elu" => {
                        let low = at.unary(Unary::Expm1, x)?;
                        at.binary_scalar(Binary::Mul, low, alpha(1.0))?
                    }
                    _ => at.binary_scalar(Binary::Mul, x, alpha(0.01))?,
                };
                let negative = at.compare_scalar(Compare::Lt, x, 0.0)?;
                at.select(negative, low, x)
            }
        }
    }
}

fn affine(at: &mut At<'_>, x: ValueId, factor: f64, summand: f64) -> Result<ValueId> {
    let y = at.binary_scalar(Binary::Mul, x, factor)?;
    at.binary_scalar(Binary::Add, y, summand)
}

/// The weights of one direction.
struct Weights {
    /// What the input gives to each gate, `[time, batch, gates * hidden]`, biases included.
    input: ValueId,
    recurrent: Factor,
    /// The biases of the recurrent part, where they are not in `input`.
    recurrent_bias: Option<ValueId>,
    /// Of the input, output and forget gate.
    peepholes: Option<ValueId>,
}

/// All states, the last hidden state, and the last cell state of an LSTM, as [`crate::ir::Op::Recurrent`] has them.
pub(super) fn unrolled(at: &mut At<'_>, layer: &Layer) -> Result<Vec<ValueId>> {
    let sizes = at.sizes_of(layer.x);
    let steps = sizes[0].known().ok_or_else(|| at.undecided("length", &sizes))?;
    if steps < 1 {
        return Err(at.unsupported("of no steps"));
    }
    let ways: &[bool] = match layer.direction {
        Direction::Forward => &[false],
        Direction::Reverse => &[true],
        Direction::Bidirectional => &[false, true],
    };
    let all = steps.saturating_mul(ways.len() as i64).saturating_add(at.lowering().steps);
    if all > MOST_STEPS {
        return Err(at.unsupported(format!("of more than {MOST_STEPS} steps with those before it")));
    }
    at.lowering().steps = all;
    let (mut all, mut last) = (Vec::new(), vec![Vec::new(); layer.states.len()]);
    for (number, &backwards) in ways.iter().enumerate() {
        let weights = weights(at, layer, number, backwards)?;
        let mut states = Vec::new();
        for &state in &layer.states {
            states.push(at.element(state, 0, number as i64)?);
        }
        let mut rows = Vec::new();
        for step in 0..steps {
            rows.push(stepped(at, layer, &weights, &mut states, [number as i64, step])?);
        }
        let rows = at.concat(&rows, 0)?;
        // Results stand where their inputs did.
        let rows = if backwards { turned(at, layer, rows)? } else { rows };
        all.push(at.with_axis(rows, 1)?);
        for (list, state) in last.iter_mut().zip(states) {
            list.push(at.with_axis(state, 0)?);
        }
    }
    let mut results = vec![at.concat(&all, 1)?];
    for list in last {
        results.push(at.concat(&list, 0)?);
    }
    Ok(results)
}

/// A sequence backwards, each up to its own length.
fn turned(at: &mut At<'_>, layer: &Layer, x: ValueId) -> Result<ValueId> {
    match layer.lengths {
        Some(lengths) => reversed_up_to(at, x, lengths, [1, 0]),
        None => at.reversed(x, 0),
    }
}

fn gates(cell: Cell) -> i64 {
    match cell {
        Cell::Rnn => 1,
        Cell::Gru | Cell::GruResetAfter => 3,
        Cell::Lstm => 4,
    }
}

fn weights(at: &mut At<'_>, layer: &Layer, number: usize, backwards: bool) -> Result<Weights> {
    let x = if backwards { turned(at, layer, layer.x)? } else { layer.x };
    let of = |at: &mut At<'_>, i: usize| -> Result<ValueId> {
        let value = at.value(i)?;
        at.element(value, 0, number as i64)
    };
    let factor = |at: &mut At<'_>, i: usize, scale: usize| -> Result<Factor> {
        let data = of(at, i)?;
        match layer.matrices {
            Matrices::Plain => Ok(Factor::Plain(data)),
            Matrices::Quantized => {
                let zero = if at.has(scale + 1) { Some(of(at, scale + 1)?) } else { None };
                Ok(Factor::Quantized(Integers { data, zero }, of(at, scale)?))
            }
        }
    };
    // One product for the inputs of all steps: only the states' part has to wait for the step before.
    let (input, recurrent) = (factor(at, 1, 8)?, factor(at, 2, 10)?);
    let mut input = input.product(at, x)?;
    let mut recurrent_bias = None;
    if at.has(3) {
        let biases = of(at, 3)?;
        let width = Size::Known(gates(layer.cell) * layer.hidden);
        let own = at.part(biases, 0, Size::Known(0), width.clone())?;
        let other = at.part(biases, 0, width.clone(), width)?;
        input = at.add(input, own)?;
        // Where the reset gate is applied to the recurrent product, this bias is inside of that.
        match layer.cell == Cell::GruResetAfter {
            true => recurrent_bias = Some(other),
            false => input = at.add(input, other)?,
        }
    }
    let peepholes = if layer.cell == Cell::Lstm && at.has(7) { Some(of(at, 7)?) } else { None };
    Ok(Weights { input, recurrent, recurrent_bias, peepholes })
}

/// One step: changes the states, and returns the row of results `[1, batch, hidden]`.
fn stepped(
    at: &mut At<'_>,
    layer: &Layer,
    weights: &Weights,
    states: &mut [ValueId],
    [number, step]: [i64; 2],
) -> Result<ValueId> {
    let input = at.element(weights.input, 0, step)?;
    let own = layer.activations.len() / if layer.direction == Direction::Bidirectional { 2 } else { 1 };
    let functions = &layer.activations[number as usize * own..][..own];
    let gates = Gates { layer, weights, functions };
    let fresh = match layer.cell {
        Cell::Rnn => gates.rnn(at, input, states)?,
        Cell::Gru | Cell::GruResetAfter => gates.gru(at, input, states)?,
        Cell::Lstm => gates.lstm(at, input, states)?,
    };
    let mut row = fresh[0];
    match layer.lengths {
        None => states.copy_from_slice(&fresh),
        Some(lengths) => {
            let lengths = at.convert(lengths, DType::I64)?;
            let going = at.compare_scalar(Compare::Gt, lengths, step as f64)?;
            let going = at.with_axis(going, 1)?;
            // A sequence that has ended keeps its last state, and gives zeros.
            for (state, &fresh) in states.iter_mut().zip(&fresh) {
                *state = at.select(going, fresh, *state)?;
            }
            row = at.select_or(going, row, 0.0)?;
        }
    }
    at.with_axis(row, 0)
}

/// The parts of a cell's step.
struct Gates<'a> {
    layer: &'a Layer,
    weights: &'a Weights,
    functions: &'a [Activation],
}

impl Gates<'_> {
    /// Columns of one gate.
    fn gate(&self, at: &mut At<'_>, x: ValueId, number: i64) -> Result<ValueId> {
        let hidden = self.layer.hidden;
        let axis = at.sizes_of(x).len() - 1;
        at.part(x, axis, Size::Known(number * hidden), Size::Known(hidden))
    }

    fn activated(&self, at: &mut At<'_>, function: usize, x: ValueId) -> Result<ValueId> {
        let x = match self.layer.clip {
            Some(clip) => {
                let x = at.binary_scalar(Binary::Min, x, clip)?;
                at.binary_scalar(Binary::Max, x, -clip)?
            }
            None => x,
        };
        self.functions[function].apply(at, x)
    }

    fn rnn(&self, at: &mut At<'_>, input: ValueId, states: &[ValueId]) -> Result<Vec<ValueId>> {
        let own = self.weights.recurrent.product(at, states[0])?;
        let sum = at.add(input, own)?;
        Ok(vec![self.activated(at, 0, sum)?])
    }

    /// Update and reset gate, then the candidate.
    fn gru(&self, at: &mut At<'_>, input: ValueId, states: &[ValueId]) -> Result<Vec<ValueId>> {
        let hidden = Size::Known(self.layer.hidden);
        let state = states[0];
        let Factor::Plain(recurrent) = self.weights.recurrent else {
            return Err(at.unsupported("with quantised weights"));
        };
        let twice = Size::Known(2 * self.layer.hidden);
        let (first, last) = (
            at.part(recurrent, 0, Size::Known(0), twice.clone())?,
            at.part(recurrent, 0, twice.clone(), hidden.clone())?,
        );
        let mut own = at.matmul_transposed(state, first)?;
        if let Some(bias) = self.weights.recurrent_bias {
            let bias = at.part(bias, 0, Size::Known(0), twice.clone())?;
            own = at.add(own, bias)?;
        }
        let both = at.part(input, 1, Size::Known(0), twice.clone())?;
        let both = at.add(both, own)?;
        let (update, reset) = (self.gate(at, both, 0)?, self.gate(at, both, 1)?);
        let (update, reset) = (self.activated(at, 0, update)?, self.activated(at, 0, reset)?);
        let candidate = self.gate(at, input, 2)?;
        let own = match self.layer.cell == Cell::GruResetAfter {
            true => {
                let mut own = at.matmul_transposed(state, last)?;
                if let Some(bias) = self.weights.recurrent_bias {
                    let bias = at.part(bias, 0, twice, hidden)?;
                    own = at.add(own, bias)?;
                }
                at.mul(reset, own)?
            }
            false => {
                let kept = at.mul(reset, state)?;
                at.matmul_transposed(kept, last)?
            }
        };
        let candidate = at.add(candidate, own)?;
        let candidate = self.activated(at, 1, candidate)?;
        let change = at.sub(state, candidate)?;
        let change = at.mul(update, change)?;
        Ok(vec![at.add(candidate, change)?])
    }

    /// Gates in the order input, output, forget, cell.
    fn lstm(&self, at: &mut At<'_>, input: ValueId, states: &[ValueId]) -> Result<Vec<ValueId>> {
        let (state, cell) = (states[0], states[1]);
        let own = self.weights.recurrent.product(at, state)?;
        let all = at.add(input, own)?;
        let parts = [0, 1, 2, 3].map(|number| self.gate(at, all, number));
        let [enter, leave, forget, candidate] = parts;
        let enter = self.peeped(at, enter?, 0, cell)?;
        let enter = self.activated(at, 0, enter)?;
        let forget = match self.layer.input_forget {
            true => {
                let negative = at.unary(Unary::Neg, enter)?;
                at.binary_scalar(Binary::Add, negative, 1.0)?
            }
            false => {
                let forget = self.peeped(at, forget?, 2, cell)?;
                self.activated(at, 0, forget)?
            }
        };
        let candidate = self.activated(at, 1, candidate?)?;
        let (kept, added) = (at.mul(forget, cell)?, at.mul(enter, candidate)?);
        let cell = at.add(kept, added)?;
        let leave = self.peeped(at, leave?, 1, cell)?;
        let leave = self.activated(at, 0, leave)?;
        let shown = self.functions[2].apply(at, cell)?;
        Ok(vec![at.mul(leave, shown)?, cell])
    }

    /// With what a gate sees of the cell.
    fn peeped(&self, at: &mut At<'_>, gate: ValueId, number: i64, cell: ValueId) -> Result<ValueId> {
        let Some(peepholes) = self.weights.peepholes else { return Ok(gate) };
        let weights = self.gate(at, peepholes, number)?;
        let seen = at.mul(weights, cell)?;
        at.add(gate, seen)
    }
}
