//! The native document that a network is written as, with the layers that families share.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::LoadOptions;
use super::quantised::Quantised;
use super::unsupported;
use crate::error::Result;
use crate::ir::{Absent, ArrayNames, BlockFormat, Coding, InputRule, Limit, Rules};

/// Input and output features of a linear layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Features {
    pub(super) from: u64,
    pub(super) to: u64,
}

/// How a linear layer's weights lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// `[out, in]`, as PyTorch holds them.
    OutIn,
    /// `[in, out]`.
    InOut,
}

/// Whether a linear layer adds a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bias {
    With,
    Without,
}

impl From<bool> for Bias {
    fn from(with: bool) -> Self {
        if with { Self::With } else { Self::Without }
    }
}

/// What a convolution reads and gives.
pub(super) struct Windows {
    pub(super) features: Features,
    /// Sizes along the axes, as many as there are.
    pub(super) kernel: Vec<u64>,
    pub(super) strides: Vec<u64>,
    /// On both sides of each axis.
    pub(super) padding: u64,
    pub(super) bias: Bias,
}

/// A normalisation of rows, with what is added under the root.
#[derive(Clone, Copy, Debug)]
pub(super) enum Norm {
    Layer(f64),
    /// Without parameters.
    LayerPlain(f64),
    /// With a factor alone.
    LayerFactor(f64),
    /// Whose factor is 1 and what the array holds.
    LayerAboveOne(f64),
    RootMeanSquare(f64),
    /// Whose factor is 1 and what the array holds.
    RootMeanSquareAboveOne(f64),
}

/// A native document that is being written.
pub(super) struct Net {
    /// Names of optional inputs that the caller has.
    taken: BTreeSet<String>,
    /// Tokens that caches are planned to hold.
    context: Option<u64>,
    inputs: Vec<Value>,
    params: Vec<Value>,
    constants: Vec<Value>,
    nodes: Vec<Value>,
    outputs: Vec<Value>,
    rules: Rules,
    /// In which few bits files have the weights of layers.
    quantised: Option<Quantised>,
    /// A layer whose weights lie otherwise than all that are quantised.
    turned: Option<String>,
}

impl Net {
    /// A document without inputs. Names of optional inputs that the network does not know are passed over.
    pub(super) fn new(options: &LoadOptions, quantised: Option<Quantised>) -> Self {
        let coding = quantised.as_ref().and_then(|quantised| quantised.coding);
        let arrays = ArrayNames { coding, ..ArrayNames::default() };
        Self {
            taken: options.inputs.clone(),
            context: options.context.map(|context| u64::try_from(context).unwrap_or(0)),
            inputs: Vec::new(),
            params: Vec::new(),
            constants: Vec::new(),
            nodes: Vec::new(),
            outputs: Vec::new(),
            rules: Rules { arrays, ..Rules::default() },
            quantised,
            turned: None,
        }
    }

    /// An input of this type.
    pub(super) fn input(&mut self, name: &str, ty: &str, rule: InputRule) {
        self.inputs.push(json!({"name": name, "type": ty}));
        self.rules.inputs.insert(name.to_owned(), rule);
    }

    /// The input of token ids, `[batch, length]`, of a vocabulary.
    pub(super) fn tokens(&mut self, name: &'static str, length: &str, vocabulary: u64) -> &'static str {
        let rule = InputRule { below: Some(limit("vocab_size", vocabulary)), absent: None };
        self.input(name, &format!("i64[batch, {length}]"), rule);
        name
    }

    /// The name of an optional input `[batch, sequence]`; none where the caller does not have it.
    pub(super) fn optional(
        &mut self,
        name: &'static str,
        absent: Absent,
        below: Option<Limit>,
    ) -> Option<&'static str> {
        self.optional_of(name, "sequence", InputRule { below, absent: Some(absent) })
    }

    /// The same, `[batch, length]`.
    pub(super) fn optional_of(
        &mut self,
        name: &'static str,
        length: &str,
        rule: InputRule,
    ) -> Option<&'static str> {
        self.taken.contains(name).then(|| {
            self.input(name, &format!("i64[batch, {length}]"), rule);
            name
        })
    }

    /// The caller's mask of a sequence, where it has one: 0 hides a key.
    pub(super) fn mask(&mut self, name: &'static str, length: &str) -> Option<&'static str> {
        self.optional_of(name, length, InputRule { below: None, absent: Some(Absent::Filled(1)) })
    }

    /// How many tokens the caches of a decoder are planned to hold; none of a network over whole sequences.
    pub(super) fn context(&self) -> Option<u64> {
        self.context
    }

    /// Texts of up to so many tokens have another network than this one.
    pub(super) fn is_another_up_to(&mut self, tokens: u64) {
        self.rules.short_context = Some(limit("", tokens).count);
    }

    /// True where the caller has an input of this name.
    pub(super) fn takes(&self, name: &str) -> bool {
        self.taken.contains(name)
    }

    /// Bounds a dimension.
    pub(super) fn at_most(&mut self, dim: &str, limit: Limit) {
        self.rules.dims.insert(dim.to_owned(), limit);
    }

    /// The document, and what it cannot say: what the network expects of its inputs and weights. Error: layers are
    /// quantised that are not so here.
    pub(super) fn finish(self, name: &str) -> Result<(Value, Rules)> {
        if let (Some(layer), Some(_)) = (&self.turned, self.rules.arrays.coding) {
            let message = format!("weights of few bits that lie as those of {layer} are not supported");
            return Err(unsupported("quantization_config", &message));
        }
        let document = json!({
            "partition_model": 1, "name": name,
            "inputs": self.inputs, "params": self.params, "constants": self.constants,
            "nodes": self.nodes, "outputs": self.outputs,
        });
        Ok((document, self.rules))
    }

    pub(super) fn output(&mut self, name: &str, value: &str) {
        self.outputs.push(json!({"name": name, "value": value}));
    }

    /// Names of the parameters so far.
    pub(super) fn param_names(&self) -> impl Iterator<Item = &str> {
        self.params.iter().filter_map(|param| param["name"].as_str())
    }

    /// What files call the arrays of this network's parameters.
    pub(super) fn array_names(&mut self) -> &mut ArrayNames {
        &mut self.rules.arrays
    }

    /// How many ones there are up to each one, itself included; 0 where there is none: `[batch, sequence]`.
    pub(super) fn counted(&mut self, ones: &str) -> String {
        let sum = self.node("positions.sum", "cumsum", &[ones], json!({"axis": 1}));
        self.node("positions.shown", "mul", &[&sum, ones], json!({}))
    }

    /// Patterns of arrays that files hold and this network does not read.
    pub(super) fn ignore(&mut self, patterns: &[&str]) {
        self.rules.arrays.unread.extend(patterns.iter().map(ToString::to_string));
    }

    pub(super) fn param(&mut self, name: &str, dims: &[u64], init: &str) -> String {
        let sizes: Vec<String> = dims.iter().map(u64::to_string).collect();
        let init = if init == "normal" { json!({"kind": "normal", "deviation": 0.02}) } else { json!(init) };
        self.params.push(json!({"name": name, "type": format!("f32[{}]", sizes.join(", ")), "init": init}));
        name.to_owned()
    }

    /// A matrix of parameters whose rows files have in blocks.
    pub(super) fn param_in_blocks(&mut self, name: &str, dims: &[u64], format: BlockFormat) -> String {
        self.rules.arrays.blocks.insert(name.to_owned(), format);
        self.param(name, dims, "normal")
    }

    /// Whether files have the matrices of experts in blocks of few bits, one matrix for each.
    pub(super) fn has_experts_in_blocks(&self) -> bool {
        self.rules.arrays.coding == Some(Coding::Mxfp4)
    }

    /// A parameter that there may be already.
    pub(super) fn shared_param(&mut self, name: &str, dims: &[u64], init: &str) -> String {
        if self.param_names().any(|known| known == name) {
            return name.to_owned();
        }
        self.param(name, dims, init)
    }

    pub(super) fn scalar(&mut self, name: &str, value: f64) -> String {
        self.constant(name, "f32[]", json!(value))
    }

    pub(super) fn constant(&mut self, name: &str, ty: &str, values: Value) -> String {
        self.constants.push(json!({"name": name, "type": ty, "values": values}));
        name.to_owned()
    }

    /// A node of two results, which are called after it.
    pub(super) fn pair(&mut self, name: &str, op: &str, inputs: &[&str], attributes: Value) -> [String; 2] {
        let results = [format!("{name}.0"), format!("{name}.1")];
        self.node(name, op, inputs, attributes);
        if let Some(node) = self.nodes.last_mut().and_then(Value::as_object_mut) {
            node.insert("outputs".to_owned(), json!(results));
        }
        results
    }

    /// `x` times a number; `x` itself where that is 1.
    pub(super) fn scaled(&mut self, name: &str, x: &str, factor: f64) -> String {
        if factor == 1.0 {
            return x.to_owned();
        }
        let factor = self.scalar(&format!("{name}.factor"), factor);
        self.node(name, "mul", &[x, &factor], json!({}))
    }

    /// `x`, held between a number and its negative.
    pub(super) fn within(&mut self, name: &str, x: &str, limit: f64) -> String {
        let (most, least) =
            (self.scalar(&format!("{name}.most"), limit), self.scalar(&format!("{name}.least"), -limit));
        let below = self.node(&format!("{name}.below"), "min", &[x, &most], json!({}));
        self.node(name, "max", &[&below, &least], json!({}))
    }

    /// `cap * tanh(x / cap)`.
    pub(super) fn capped(&mut self, name: &str, x: &str, cap: f64) -> String {
        let cap = self.scalar(&format!("{name}.cap"), cap);
        let share = self.node(&format!("{name}.share"), "div", &[x, &cap], json!({}));
        let bent = self.node(&format!("{name}.bent"), "tanh", &[&share], json!({}));
        self.node(name, "mul", &[&bent, &cap], json!({}))
    }

    pub(super) fn node(&mut self, name: &str, op: &str, inputs: &[&str], attributes: Value) -> String {
        let mut node = json!({"name": name, "op": op, "inputs": inputs});
        if let (Some(node), Value::Object(attributes)) = (node.as_object_mut(), attributes) {
            node.extend(attributes);
        }
        self.nodes.push(node);
        name.to_owned()
    }

    pub(super) fn linear(
        &mut self,
        name: &str,
        x: &str,
        features: Features,
        bias: Bias,
        order: Order,
    ) -> String {
        let Features { from, to } = features;
        let dims = if order == Order::InOut { [from, to] } else { [to, from] };
        let x = self.as_quantised(name, x, from, order);
        let mut inputs = vec![x, self.param(&format!("{name}.weight"), &dims, "normal")];
        if bias == Bias::With {
            inputs.push(self.param(&format!("{name}.bias"), &[to], "zeros"));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.node(name, "dense", &inputs, json!({"transpose_right": order == Order::OutIn}))
    }

    /// Notes in which blocks files have a layer's weights; what it reads, rounded where it is to be.
    fn as_quantised(&mut self, name: &str, x: &str, from: u64, order: Order) -> String {
        if order == Order::InOut {
            self.turned.get_or_insert_with(|| name.to_owned());
        }
        let Some(quantised) = &self.quantised else { return x.to_owned() };
        let rounds = quantised.rounds_for(name);
        if let Some(format) = quantised.blocks(name, from) {
            self.rules.arrays.blocks.insert(format!("{name}.weight"), format);
        }
        if rounds { self.rounded(&format!("{name}.rounded"), x) } else { x.to_owned() }
    }

    /// Each row as signed whole numbers of 8 bits times one, as compressed-tensors rounds what a layer reads: the largest of a
    /// row is 127.5 steps.
    fn rounded(&mut self, name: &str, x: &str) -> String {
        let sizes = self.node(&format!("{name}.sizes"), "abs", &[x], json!({}));
        let largest = json!({"kind": "max", "axes": [-1], "keep": true});
        let largest = self.node(&format!("{name}.largest"), "reduce", &[&sizes], largest);
        let half = self.scalar(&format!("{name}.half"), 127.5);
        let step = self.node(&format!("{name}.quotient"), "div", &[&largest, &half], json!({}));
        // A row of zeros has a step all the same: the distance of f32 from 1 to what is next.
        let least = self.scalar(&format!("{name}.least_step"), f64::from(f32::EPSILON));
        let zero = self.scalar(&format!("{name}.zero"), 0.0);
        let is_none = self.node(&format!("{name}.is_none"), "eq", &[&step, &zero], json!({}));
        let step = self.node(&format!("{name}.step"), "select", &[&is_none, &least, &step], json!({}));
        let steps = self.node(&format!("{name}.steps"), "div", &[x, &step], json!({}));
        let steps = self.node(&format!("{name}.round"), "round", &[&steps], json!({}));
        let [most, least] =
            [127.0, -128.0].map(|end| (end, format!("{name}.{end}"))).map(|(end, at)| self.scalar(&at, end));
        let steps = self.node(&format!("{name}.below"), "min", &[&steps, &most], json!({}));
        let steps = self.node(&format!("{name}.within"), "max", &[&steps, &least], json!({}));
        self.node(name, "mul", &[&steps, &step], json!({}))
    }

    pub(super) fn norm(&mut self, name: &str, x: &str, size: u64, norm: Norm) -> String {
        let factor = format!("{name}.weight");
        match norm {
            Norm::LayerPlain(epsilon) => self.node(name, "layer_norm", &[x], json!({"epsilon": epsilon})),
            Norm::Layer(epsilon) => {
                let factor = self.param(&factor, &[size], "ones");
                let summand = self.param(&format!("{name}.bias"), &[size], "zeros");
                self.node(name, "layer_norm", &[x, &factor, &summand], json!({"epsilon": epsilon}))
            }
            Norm::LayerFactor(epsilon) => {
                let factor = self.param(&factor, &[size], "ones");
                self.node(name, "layer_norm", &[x, &factor], json!({"epsilon": epsilon}))
            }
            Norm::LayerAboveOne(epsilon) => {
                let factor = self.above_one(name, size);
                let summand = self.param(&format!("{name}.bias"), &[size], "zeros");
                self.node(name, "layer_norm", &[x, &factor, &summand], json!({"epsilon": epsilon}))
            }
            Norm::RootMeanSquare(epsilon) => {
                let factor = self.param(&factor, &[size], "ones");
                self.node(name, "rms_norm", &[x, &factor], json!({"epsilon": epsilon}))
            }
            Norm::RootMeanSquareAboveOne(epsilon) => {
                let factor = self.above_one(name, size);
                self.node(name, "rms_norm", &[x, &factor], json!({"epsilon": epsilon}))
            }
        }
    }

    /// The factor of a norm: 1 and what its array holds.
    fn above_one(&mut self, name: &str, size: u64) -> String {
        let above = self.param(&format!("{name}.weight"), &[size], "zeros");
        let one = self.scalar(&format!("{name}.one"), 1.0);
        self.sum(&format!("{name}.factor"), &one, &above)
    }

    /// A convolution of `x`, `[batch, channels, ...]`, with its bias if it has one.
    pub(super) fn convolution(&mut self, name: &str, x: &str, window: &Windows) -> String {
        let axes = window.kernel.len();
        let mut dims = vec![window.features.to, window.features.from];
        dims.extend(&window.kernel);
        let weights = self.param(&format!("{name}.weight"), &dims, "normal");
        let padding = vec![window.padding; axes];
        let attributes = json!({"strides": window.strides, "pads_before": padding, "pads_after": padding});
        let y = self.node(&format!("{name}.windows"), "conv", &[x, &weights], attributes);
        if window.bias == Bias::Without {
            return y;
        }
        let bias = self.param(&format!("{name}.bias"), &[window.features.to], "zeros");
        let mut shape = vec![window.features.to];
        shape.extend(vec![1; axes]);
        let bias =
            self.node(&format!("{name}.bias_by_channel"), "reshape", &[&bias], json!({"shape": shape}));
        self.sum(name, &y, &bias)
    }

    /// The rows of a table that the integers `ids` name.
    pub(super) fn embedding(&mut self, name: &str, ids: &str, dims: [u64; 2]) -> String {
        let table = self.param(&format!("{name}.weight"), &dims, "normal");
        self.rows(name, &table, ids)
    }

    pub(super) fn rows(&mut self, name: &str, table: &str, ids: &str) -> String {
        self.node(name, "gather", &[table, ids], json!({"axis": 0}))
    }

    pub(super) fn sum(&mut self, name: &str, x: &str, y: &str) -> String {
        self.node(name, "add", &[x, y], json!({}))
    }
}

/// A count that a field sets.
pub(super) fn limit(field: &str, count: u64) -> Limit {
    Limit { count: i64::try_from(count).unwrap_or(i64::MAX), field: field.to_owned(), ignored: None }
}
