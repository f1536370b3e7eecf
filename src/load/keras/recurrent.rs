//! Recurrent layers.
//!
//! Keras holds a kernel `[in, gates * units]`, a recurrent kernel `[units, gates * units]` and a
//! bias; gates are in the order input, forget, cell, output (LSTM) or update, reset, hidden
//! (GRU). The operation wants them transposed, an LSTM's gates in the order input, output, forget,
//! cell, and a bias for each of the two products. The nodes that rearrange read parameters only.

use serde_json::Value;

use super::activation::Activation;
use super::config::{Config, KerasVersion, Unsupported};
use super::conv_lstm::ConvLstm;
use super::init::initialiser;
use super::layer::{Kind, no_layer};
use super::lower::Site;
use super::mask::{Compacted, Masked};
use super::network::Parser;
use super::noise::dropout;
use super::steps::{Gates, Sequence, Stepwise, together};
use crate::error::Result;
use crate::ir::{Binary, Cell, DType, Direction, Init, Op, Real, Recurrent, Size, Slice, Unary, ValueId};

/// LSTM, GRU or SimpleRNN.
#[derive(Clone, Debug)]
pub(super) struct Rnn {
    cell: Cell,
    units: i64,
    pub(super) sequences: bool,
    state: bool,
    backwards: bool,
    /// What a step that does not count gives: 0, or what the last one before it gave.
    zero_masked: bool,
    activation: Activation,
    recurrent_activation: Activation,
    kernel: Init,
    recurrent: Init,
    bias: Option<Init>,
    /// What a batch leaves is what the next one begins with.
    stateful: bool,
    /// Of what it reads, while the network trains: the same features at each step.
    dropout: f64,
    trainable: bool,
}

/// What a run over a sequence gives.
struct Ran {
    /// `[batch, time, units]` in the order of time, or the last `[batch, units]`.
    output: ValueId,
    /// Last states, each `[batch, units]`: all where the layer returns them.
    states: Vec<ValueId>,
}

/// How the biases of an LSTM begin: those of its forget gate at 1, unless the layer says otherwise.
pub(super) fn lstm_bias(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Init> {
    let bias = initialiser(config, "bias_initializer", Init::zeros(), unsupported)?;
    let is_usual = config.flag("unit_forget_bias", true)? && bias == Init::zeros();
    Ok(if is_usual { Init::UnitForgetBias } else { bias })
}

impl Rnn {
    pub(super) fn read(
        class: &str,
        config: Config<'_>,
        version: KerasVersion,
        unsupported: &mut Unsupported,
    ) -> Result<Self> {
        if config.flag("time_major", false)? {
            unsupported.add(config.place(), "time_major");
        }
        let cell = match class {
            "LSTM" => Cell::Lstm,
            "GRU" if config.flag("reset_after", true)? => Cell::GruResetAfter,
            "GRU" => Cell::Gru,
            _ => Cell::Rnn,
        };
        let bias = match cell {
            Cell::Lstm => lstm_bias(config, unsupported)?,
            _ => initialiser(config, "bias_initializer", Init::zeros(), unsupported)?,
        };
        let orthogonal = Init::Orthogonal { gain: Real(1.0) };
        Ok(Self {
            cell,
            units: config.positive("units")?,
            sequences: config.flag("return_sequences", false)?,
            state: config.flag("return_state", false)?,
            backwards: config.flag("go_backwards", false)?,
            zero_masked: config.flag("zero_output_for_mask", false)?,
            activation: Activation::read(config, "activation", "tanh", version, unsupported)?,
            recurrent_activation: Activation::read(
                config,
                "recurrent_activation",
                "sigmoid",
                version,
                unsupported,
            )?,
            kernel: initialiser(config, "kernel_initializer", Init::glorot_uniform(), unsupported)?,
            recurrent: initialiser(config, "recurrent_initializer", orthogonal, unsupported)?,
            bias: config.flag("use_bias", true)?.then_some(bias),
            stateful: config.flag("stateful", false)?,
            dropout: dropout(config)?,
            trainable: config.flag("trainable", true)?,
        })
    }

    /// The layer on a sequence and, where `states` has any, its initial states.
    pub(super) fn lower(
        &self,
        site: &mut Site<'_>,
        x: Masked,
        states: &[ValueId],
        prefix: &str,
    ) -> Result<Vec<ValueId>> {
        let ran = self.run(site, x, states, prefix)?;
        let mut output = ran.output;
        if self.sequences && self.backwards {
            // Keras gives the states in the order in which they were computed.
            output = site.reverse(output, 1)?;
        }
        let mut results = vec![output];
        if self.state {
            results.extend(ran.states);
        }
        Ok(results)
    }

    fn gates(&self) -> i64 {
        match self.cell {
            Cell::Rnn => 1,
            Cell::Lstm => 4,
            Cell::Gru | Cell::GruResetAfter => 3,
        }
    }

    fn state_count(&self) -> usize {
        if self.cell == Cell::Lstm { 2 } else { 1 }
    }

    fn cell_name(&self) -> &'static str {
        match self.cell {
            Cell::Rnn => "simple_rnn_cell",
            Cell::Lstm => "lstm_cell",
            Cell::Gru | Cell::GruResetAfter => "gru_cell",
        }
    }

    /// Whether the recurrent operation has the cell's activations.
    fn is_operation(&self) -> bool {
        self.activation == Activation::Unary(Unary::Tanh)
            && (self.cell == Cell::Rnn || self.recurrent_activation == Activation::Unary(Unary::Sigmoid))
    }

    fn run(&self, site: &mut Site<'_>, x: Masked, states: &[ValueId], prefix: &str) -> Result<Ran> {
        // A cell or a direction may be frozen where the layer around it is not.
        let trainable = site.trainable;
        site.trainable &= self.trainable;
        let ran = match self.stateful && states.is_empty() {
            true => self.ran_on(site, x, prefix),
            false => self.ran(site, x, states, prefix),
        };
        site.trainable = trainable;
        ran
    }

    /// A run that begins with what the one before left, and leaves what the next one begins with.
    fn ran_on(&self, site: &mut Site<'_>, x: Masked, prefix: &str) -> Result<Ran> {
        site.expect_rank(x.value, 3)?;
        let sizes = vec![site.sizes(x.value)[0].clone(), Size::Known(self.units)];
        let names = (0..self.state_count()).map(|at| format!("{prefix}{}/states/{at}", self.cell_name()));
        let begun = names.map(|name| site.state(&name, sizes.clone())).collect::<Result<Vec<_>>>()?;
        let ran = self.ran(site, x, &begun, prefix)?;
        for (&state, &next) in begun.iter().zip(&ran.states) {
            site.leave(state, next);
        }
        Ok(ran)
    }

    /// Whether a run gives all of its last states.
    fn gives_states(&self) -> bool {
        self.state || self.stateful
    }

    fn ran(&self, site: &mut Site<'_>, x: Masked, states: &[ValueId], prefix: &str) -> Result<Ran> {
        site.expect_rank(x.value, 3)?;
        let x = Masked { value: site.dropped(x.value, self.dropout, &[1])?, mask: x.mask };
        if !self.is_operation() {
            return self.stepwise(site, x, states, prefix);
        }
        let (mask, mut x) = (x.mask, x.value);
        let inputs = site.known(x, 2)?;
        let sizes = site.sizes(x);
        let (batch, time) = (sizes[0].clone(), sizes[1].clone());
        let units = self.units;
        let wide = units.checked_mul(self.gates()).ok_or_else(|| site.error("units is too large"))?;
        let name = |weight: &str| format!("{prefix}{}/{weight}", self.cell_name());
        let mut kernel = site.weight(&name("kernel"), &[inputs, wide], &self.kernel)?;
        let recurrent = site.weight(&name("recurrent_kernel"), &[units, wide], &self.recurrent)?;
        let bias = match &self.bias {
            Some(init) => self.bias(site, &name("bias"), init, wide)?,
            None => site.zeros(vec![Size::Known(1), Size::Known(2 * wide)])?,
        };
        let mut compacted = None;
        if let Some(mut mask) = mask {
            if self.backwards {
                (x, mask) = (site.reverse(x, 1)?, site.reverse(mask, 1)?);
            }
            let steps = Compacted::new(site, mask)?;
            x = steps.front(site, x)?;
            if self.cell == Cell::Lstm {
                (x, kernel) = self.keeping_cells(site, x, kernel, &steps)?;
            }
            compacted = Some(steps);
        }
        let kernel = self.matrix(site, kernel)?;
        let recurrent = self.matrix(site, recurrent)?;
        let sequence = site.transpose(x, &[1, 0, 2])?;
        let mut operands = vec![sequence, kernel, recurrent, bias];
        let count = self.state_count();
        if !states.is_empty() && states.len() != count {
            return Err(site.error(&format!("expected {count} initial states, found {}", states.len())));
        }
        let state_sizes = vec![Size::Known(1), batch.clone(), Size::Known(units)];
        for index in 0..count {
            operands.push(match states.get(index) {
                Some(&state) => site.reshape(state, state_sizes.clone())?,
                None => site.zeros(state_sizes.clone())?,
            });
        }
        let before = operands[4];
        // What is masked is in the order of computation already.
        let reverse = self.backwards && compacted.is_none();
        let direction = if reverse { Direction::Reverse } else { Direction::Forward };
        let op = Recurrent { cell: self.cell, direction, hidden: units };
        let results = site.push(Op::Recurrent(Box::new(op)), &operands)?;
        if let Some(steps) = compacted {
            return self.masked(site, &steps, &results, before);
        }
        let flat = vec![batch.clone(), Size::Known(units)];
        let wanted = match (self.gives_states(), self.sequences) {
            (true, _) => count,
            (false, true) => 0,
            (false, false) => 1,
        };
        let mut last = Vec::with_capacity(wanted);
        for &state in results.iter().skip(1).take(wanted) {
            last.push(site.reshape(state, flat.clone())?);
        }
        let output = if self.sequences {
            let all = site.reshape(results[0], vec![time, batch, Size::Known(units)])?;
            site.transpose(all, &[1, 0, 2])?
        } else {
            last[0]
        };
        Ok(Ran { output, states: last })
    }

    /// The layer's steps written out.
    fn stepwise(&self, site: &mut Site<'_>, x: Masked, states: &[ValueId], prefix: &str) -> Result<Ran> {
        let (inputs, units) = (site.known(x.value, 2)?, self.units);
        let wide = units.checked_mul(self.gates()).ok_or_else(|| site.error("units is too large"))?;
        let name = |weight: &str| format!("{prefix}{}/{weight}", self.cell_name());
        let kernel = site.weight(&name("kernel"), &[inputs, wide], &self.kernel)?;
        let recurrent = site.weight(&name("recurrent_kernel"), &[units, wide], &self.recurrent)?;
        let [bias, inner] = match (&self.bias, self.cell) {
            (None, _) => [None, None],
            (Some(init), Cell::GruResetAfter) => {
                let both = site.weight(&name("bias"), &[2, wide], init)?;
                [Some(site.slice(both, 0, 0, 1)?), Some(site.slice(both, 0, 1, 1)?)]
            }
            (Some(init), _) => [Some(site.weight(&name("bias"), &[wide], init)?), None],
        };
        let mut gates = site.matmul(x.value, kernel, false)?;
        if let Some(bias) = bias {
            gates = site.binary(Binary::Add, gates, bias)?;
        }
        let count = self.state_count();
        if !states.is_empty() && states.len() != count {
            return Err(site.error(&format!("expected {count} initial states, found {}", states.len())));
        }
        let initial = match states {
            [] => {
                let sizes = vec![site.sizes(x.value)[0].clone(), Size::Known(units)];
                vec![site.zeros(sizes)?; count]
            }
            states => states.to_vec(),
        };
        let product = |site: &mut Site<'_>, h: ValueId, of: Gates| {
            let weights = site.slice(recurrent, 1, of.first * units, of.count * units)?;
            let value = site.matmul(h, weights, false)?;
            match inner {
                Some(inner) => site.binary(Binary::Add, value, inner),
                None => Ok(value),
            }
        };
        let stepwise = Stepwise {
            cell: self.cell,
            units,
            axis: 1,
            activation: &self.activation,
            recurrent_activation: &self.recurrent_activation,
            product: &product,
        };
        let sequence =
            Sequence { gates, mask: x.mask, is_backwards: self.backwards, zero_masked: self.zero_masked };
        let stepped = stepwise.run(site, &sequence, initial)?;
        let output = match self.sequences {
            true => together(site, &stepped.outputs)?,
            false => stepped.last,
        };
        Ok(Ran { output, states: stepped.states })
    }

    /// An input more, which is 1 behind all steps that count: there an LSTM's cells stay as they are.
    fn keeping_cells(
        &self,
        site: &mut Site<'_>,
        x: ValueId,
        kernel: ValueId,
        steps: &Compacted,
    ) -> Result<(ValueId, ValueId)> {
        let behind = steps.behind(site)?;
        let x = site.concat(2, &[x, behind])?;
        // Input gate 0, forget gate 1.
        let far = if site.policy.compute == DType::F16 { 3e4 } else { 1e9 };
        let row: Vec<f64> =
            [-far, far, 0.0, 0.0].iter().flat_map(|&value| vec![value; self.units as usize]).collect();
        let row = site.vector(&row)?;
        let sizes = [Size::Known(1)].into_iter().chain(site.sizes(row)).collect();
        let row = site.reshape(row, sizes)?;
        Ok((x, site.concat(0, &[kernel, row])?))
    }

    /// What a run over the steps that count gives for all steps.
    fn masked(
        &self,
        site: &mut Site<'_>,
        steps: &Compacted,
        results: &[ValueId],
        before: ValueId,
    ) -> Result<Ran> {
        let sizes = site.sizes(results[0]);
        let (time, batch, units) = (sizes[0].clone(), sizes[2].clone(), sizes[3].clone());
        let all = site.reshape(results[0], vec![time.clone(), batch.clone(), units.clone()])?;
        let all = site.transpose(all, &[1, 0, 2])?;
        let all = steps.spread(site, all)?;
        let end = time.sub(&Size::Known(1)).ok_or_else(|| site.error("a size overflows"))?;
        let last = Op::Slice(Box::new(Slice {
            starts: vec![Size::Known(0), end, Size::Known(0)],
            sizes: vec![batch.clone(), Size::Known(1), units.clone()],
            steps: vec![1; 3],
        }));
        let flat = vec![batch, units];
        let shown = if self.zero_masked { steps.zeroed(site, all)? } else { all };
        let output = match (self.sequences, self.backwards) {
            (false, _) => {
                let last = site.apply(last.clone(), &[shown])?;
                site.reshape(last, flat.clone())?
            }
            (true, false) => shown,
            (true, true) => site.reverse(shown, 1)?,
        };
        let last = site.apply(last, &[all])?;
        let last = site.reshape(last, flat.clone())?;
        let mut states = Vec::new();
        if self.gives_states() {
            states.push(steps.state(site, last, before)?);
            for &cells in results.iter().skip(2) {
                states.push(site.reshape(cells, flat.clone())?);
            }
        }
        Ok(Ran { output, states })
    }

    /// `[rows, gates * units]` with Keras' gates to `[1, gates * units, rows]` with the operation's.
    fn matrix(&self, site: &mut Site<'_>, kernel: ValueId) -> Result<ValueId> {
        let kernel = self.reorder(site, kernel, 1)?;
        let kernel = site.transpose(kernel, &[1, 0])?;
        let sizes = [Size::Known(1)].into_iter().chain(site.sizes(kernel)).collect();
        site.reshape(kernel, sizes)
    }

    /// An LSTM's gates from input, forget, cell, output to input, output, forget, cell.
    fn reorder(&self, site: &mut Site<'_>, value: ValueId, axis: usize) -> Result<ValueId> {
        if self.cell != Cell::Lstm {
            return Ok(value);
        }
        let units = self.units;
        let input = site.slice(value, axis, 0, units)?;
        let output = site.slice(value, axis, 3 * units, units)?;
        let middle = site.slice(value, axis, units, 2 * units)?;
        site.concat(axis, &[input, output, middle])
    }

    /// Biases of both products: `[1, 2 * gates * units]`.
    fn bias(&self, site: &mut Site<'_>, name: &str, init: &Init, wide: i64) -> Result<ValueId> {
        let flat = vec![Size::Known(1), Size::Known(2 * wide)];
        if self.cell == Cell::GruResetAfter {
            let bias = site.weight(name, &[2, wide], init)?;
            return site.reshape(bias, flat);
        }
        let bias = site.weight(name, &[wide], init)?;
        let bias = self.reorder(site, bias, 0)?;
        let zeros = site.zeros(vec![Size::Known(wide)])?;
        let both = site.concat(0, &[bias, zeros])?;
        site.reshape(both, flat)
    }
}

/// How the two directions are merged.
#[derive(Debug)]
enum MergeMode {
    Concat,
    Sum,
    Mul,
    Average,
    Separate,
}

impl Parser<'_> {
    /// `RNN` around a cell: the layer that is called after the cell, or one for each of those in a stack.
    pub(super) fn around_cell(&mut self, config: Config<'_>) -> Result<Kind> {
        let cell = config.get("cell").ok_or_else(|| config.missing("cell"))?;
        let stack = match cell.get("class_name").and_then(Value::as_str) {
            Some("StackedRNNCells") => {
                let own = cell.get("config").and_then(Value::as_object);
                // Of tf.keras: the states of the highest cell come first.
                if let Some(own) = own
                    && Config::new(own, config.place()).flag("reverse_state_order", false)?
                {
                    self.unsupported.add(config.place(), "reverse_state_order");
                }
                own.and_then(|own| own.get("cells"))
            }
            _ => {
                return Ok(self.of_cell(config, cell)?.map_or(Kind::Unknown, |rnn| Kind::Rnn(Box::new(rnn))));
            }
        };
        let Some(Value::Array(cells)) = stack else {
            return Err(config.fault("cell", "a stack without a list of cells"));
        };
        let mut layers = Vec::new();
        for cell in cells {
            let Some(rnn) = self.of_cell(config, cell)? else { return Ok(Kind::Unknown) };
            layers.push(rnn);
        }
        match layers.is_empty() {
            true => Err(config.fault("cell", "a stack of no cells")),
            false => Ok(Kind::StackedRnn(layers)),
        }
    }

    /// A recurrent layer of one cell, with the options of the layer around it; none where it is not supported.
    fn of_cell(&mut self, config: Config<'_>, cell: &Value) -> Result<Option<Rnn>> {
        let class = cell.get("class_name").and_then(Value::as_str).unwrap_or("a cell without a class");
        let layer = match class {
            "LSTMCell" => "LSTM",
            "GRUCell" => "GRU",
            "SimpleRNNCell" => "SimpleRNN",
            _ => {
                self.unsupported.add(config.place(), format!("a recurrent layer around {class}"));
                return Ok(None);
            }
        };
        let mut fields = config.fields().clone();
        if let Some(Value::Object(own)) = cell.get("config") {
            let own = own.iter().filter(|(key, _)| !matches!(key.as_str(), "name" | "trainable" | "dtype"));
            fields.extend(own.map(|(key, value)| (key.clone(), value.clone())));
        }
        if cell["config"]["trainable"] == false {
            fields.insert("trainable".to_owned(), Value::Bool(false));
        }
        let rnn = Rnn::read(layer, config.with(&fields), self.version, self.unsupported)?;
        config.with(&fields).unasked().iter().for_each(|field| self.unsupported.add(config.place(), field));
        Ok(Some(rnn))
    }
}

/// Cells on top of each other: each reads all steps of the one below.
///
/// With return_state the states of all, from the lowest up; `states` are in that order too.
pub(super) fn stacked(
    site: &mut Site<'_>,
    layers: &[Rnn],
    x: Masked,
    states: &[ValueId],
) -> Result<Vec<ValueId>> {
    let ran = run_stacked(site, layers, x, states, "")?;
    let top = layers.last().ok_or_else(|| site.error("is a stack of no cells"))?;
    let output = match top.sequences && top.backwards {
        true => site.reverse(ran.output, 1)?,
        false => ran.output,
    };
    let mut results = vec![output];
    if top.state {
        results.extend(ran.states);
    }
    Ok(results)
}

fn run_stacked(
    site: &mut Site<'_>,
    layers: &[Rnn],
    x: Masked,
    states: &[ValueId],
    prefix: &str,
) -> Result<Ran> {
    let total: usize = layers.iter().map(Rnn::state_count).sum();
    if !states.is_empty() && states.len() != total {
        return Err(site.error(&format!("expected {total} initial states, found {}", states.len())));
    }
    let mut rest = states;
    let mut below = Ran { output: x.value, states: Vec::new() };
    for (at, layer) in layers.iter().enumerate() {
        let (own, others) = rest.split_at(if states.is_empty() { 0 } else { layer.state_count() });
        rest = others;
        let is_top = at + 1 == layers.len();
        let layer = Rnn { sequences: layer.sequences || !is_top, ..layer.clone() };
        let x = Masked { value: below.output, mask: x.mask };
        let ran = layer.run(site, x, own, &format!("{prefix}cells/{at}/"))?;
        below.output = ran.output;
        below.states.extend(ran.states);
    }
    Ok(below)
}

/// One direction of a layer that runs in both.
#[derive(Debug)]
struct Way {
    body: Body,
    name: String,
}

/// What runs in a direction.
#[derive(Debug)]
enum Body {
    Layer(Box<Rnn>),
    /// Cells on top of each other, from the lowest up, all of which have the options of the whole.
    Stack(Vec<Rnn>),
    Conv(Box<ConvLstm>),
}

/// What a direction is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asked {
    sequences: bool,
    state: bool,
}

impl Way {
    /// None where the layer is of another kind.
    fn of(kind: Kind, name: String) -> Option<Self> {
        let body = match kind {
            Kind::Rnn(rnn) => Body::Layer(rnn),
            Kind::StackedRnn(layers) => Body::Stack(layers),
            Kind::ConvLstm(layer) => Body::Conv(layer),
            _ => return None,
        };
        Some(Self { body, name })
    }

    fn asked(&self) -> Asked {
        let of = |rnn: &Rnn| Asked { sequences: rnn.sequences, state: rnn.state };
        match &self.body {
            Body::Layer(rnn) => of(rnn),
            Body::Stack(layers) => layers.last().map_or(Asked { sequences: false, state: false }, of),
            Body::Conv(layer) => Asked { sequences: layer.sequences, state: layer.state },
        }
    }

    fn is_backwards(&self) -> bool {
        match &self.body {
            Body::Layer(rnn) => rnn.backwards,
            Body::Stack(layers) => layers.last().is_some_and(|rnn| rnn.backwards),
            Body::Conv(layer) => layer.is_backwards,
        }
    }

    fn set_backwards(&mut self, backwards: bool) {
        match &mut self.body {
            Body::Layer(rnn) => rnn.backwards = backwards,
            Body::Stack(layers) => layers.iter_mut().for_each(|rnn| rnn.backwards = backwards),
            Body::Conv(layer) => layer.is_backwards = backwards,
        }
    }

    fn set_zero_masked(&mut self) {
        match &mut self.body {
            Body::Layer(rnn) => rnn.zero_masked = rnn.sequences,
            Body::Stack(layers) => layers.iter_mut().for_each(|rnn| rnn.zero_masked = rnn.sequences),
            Body::Conv(layer) => layer.zero_masked = layer.sequences,
        }
    }

    fn state_count(&self) -> usize {
        match &self.body {
            Body::Layer(rnn) => rnn.state_count(),
            Body::Stack(layers) => layers.iter().map(Rnn::state_count).sum(),
            Body::Conv(_) => 2,
        }
    }

    fn run(&self, site: &mut Site<'_>, x: Masked, states: &[ValueId]) -> Result<Ran> {
        let prefix = format!("{}/", self.name);
        match &self.body {
            Body::Layer(rnn) => rnn.run(site, x, states, &prefix),
            Body::Stack(layers) => run_stacked(site, layers, x, states, &prefix),
            Body::Conv(layer) => {
                let stepped = layer.run(site, x, states, &prefix)?;
                Ok(Ran { output: layer.output(site, &stepped)?, states: stepped.states })
            }
        }
    }
}

/// A recurrent layer in both directions.
#[derive(Debug)]
pub(super) struct Bidirectional {
    forward: Way,
    backward: Way,
    merge: MergeMode,
}

impl Parser<'_> {
    /// None where a wrapped layer is of a kind that is not supported, which is told.
    pub(super) fn bidirectional(&mut self, config: Config<'_>) -> Result<Option<Bidirectional>> {
        let layer = config.get("layer").ok_or_else(|| no_layer(config.place()))?;
        let forward = self.layer(layer, config.place())?;
        let backward = match config.get("backward_layer") {
            Some(layer) => self.layer(layer, config.place())?,
            None => self.layer(layer, config.place())?,
        };
        let has_backward = config.get("backward_layer").is_some();
        let plain = |name: &str| -> String {
            let name = name.strip_prefix("forward_").or(name.strip_prefix("backward_")).unwrap_or(name);
            name.to_owned()
        };
        let (forward_name, backward_name) =
            (format!("forward_{}", plain(&forward.name)), format!("backward_{}", plain(&backward.name)));
        let (Some(mut forward), Some(mut backward)) =
            (Way::of(forward.kind, forward_name), Way::of(backward.kind, backward_name))
        else {
            self.unsupported.add(
                config.place(),
                "a wrapped layer other than LSTM, GRU, SimpleRNN, their cells and ConvLSTM",
            );
            return Ok(None);
        };
        if !has_backward {
            backward.set_backwards(!forward.is_backwards());
        }
        forward.set_zero_masked();
        backward.set_zero_masked();
        if forward.asked() != backward.asked() {
            return Err(config.fault("backward_layer", "returns other things than the forward layer"));
        }
        let merge = match config.get("merge_mode") {
            None => MergeMode::Separate,
            Some(_) => match config.text("merge_mode")?.unwrap_or("concat") {
                "concat" => MergeMode::Concat,
                "sum" => MergeMode::Sum,
                "mul" => MergeMode::Mul,
                "ave" => MergeMode::Average,
                other => return Err(config.fault("merge_mode", format!("{other} is not known"))),
            },
        };
        Ok(Some(Bidirectional { forward, backward, merge }))
    }
}

impl Bidirectional {
    pub(super) fn returns_sequences(&self) -> bool {
        self.forward.asked().sequences
    }

    /// Whether both directions are results of their own.
    pub(super) fn is_separate(&self) -> bool {
        matches!(self.merge, MergeMode::Separate)
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: Masked, states: &[ValueId]) -> Result<Vec<ValueId>> {
        let (first, second) = states.split_at(states.len().min(self.forward.state_count()));
        let forward = self.forward.run(site, x, first)?;
        let backward = self.backward.run(site, x, second)?;
        let (y, z) = (forward.output, backward.output);
        let mut results = match self.merge {
            // Along the last axis, whatever the order of the axes.
            MergeMode::Concat => vec![site.concat(site.rank(y) - 1, &[y, z])?],
            MergeMode::Sum => vec![site.binary(Binary::Add, y, z)?],
            MergeMode::Mul => vec![site.binary(Binary::Mul, y, z)?],
            MergeMode::Average => {
                let sum = site.binary(Binary::Add, y, z)?;
                vec![site.binary_scalar(Binary::Mul, sum, 0.5)?]
            }
            MergeMode::Separate => vec![y, z],
        };
        if self.forward.asked().state {
            results.extend(forward.states);
            results.extend(backward.states);
        }
        Ok(results)
    }
}
