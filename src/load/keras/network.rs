//! Models as networks of layer calls: Sequential and Functional, nested to any depth.
//!
//! Nesting is recursion over the text's own nesting, which the JSON parser bounds (128 levels).

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::config::{Config, KerasVersion, Unsupported};
use super::layer::{Input, Kind, Layer, input_shape};
use super::operation::{named_operands, translated};
use crate::csr::Csr;
use crate::error::{Error, Report, Result};
use crate::order::first_ready;

/// A model: its layers and their calls in topological order.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) name: String,
    pub(super) layers: Vec<Layer>,
    pub(super) calls: Vec<Call>,
    /// The calls of the input layers, in the order of the model's inputs.
    pub(super) inputs: Vec<usize>,
    pub(super) outputs: Vec<TensorRef>,
}

/// One result of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorRef {
    /// Position in [`Network::calls`].
    pub(super) call: usize,
    pub(super) output: usize,
}

/// One application of a layer.
#[derive(Debug)]
pub(super) struct Call {
    /// Position in [`Network::layers`].
    pub(super) layer: usize,
    pub(super) arguments: Vec<Argument<TensorRef>>,
    pub(super) options: CallOptions,
    /// Of an operation: what its positional arguments are, in order.
    pub(super) slots: Vec<Slot>,
}

/// A positional argument of an operation.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    /// The next tensor of the call.
    Tensor,
    /// A list with tensors in it.
    List(Vec<Slot>),
    /// What is no tensor.
    Constant(Value),
}

/// A tensor handed to a layer, by position or by keyword.
#[derive(Clone, Debug)]
pub(super) struct Argument<T> {
    pub(super) keyword: Option<String>,
    pub(super) tensor: T,
}

/// Flags given in a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallOptions {
    pub(super) causal: bool,
    pub(super) scores: bool,
    /// From vectors back to numbers.
    pub(super) reverse: bool,
}

/// A reference as it stands in the text: layer, node, tensor.
#[derive(Clone)]
struct History {
    layer: String,
    node: u64,
    tensor: u64,
}

/// A call before its references are resolved.
#[derive(Default)]
struct RawCall {
    /// The layer does the same in training.
    never_trains: bool,
    arguments: Vec<Argument<History>>,
    options: CallOptions,
    slots: Vec<Slot>,
}

/// Reads networks and layers; collects what is not supported.
pub(super) struct Parser<'u> {
    pub(super) version: KerasVersion,
    pub(super) unsupported: &'u mut Unsupported,
    uids: usize,
}

impl<'u> Parser<'u> {
    pub(super) fn new(version: KerasVersion, unsupported: &'u mut Unsupported) -> Self {
        Self { version, unsupported, uids: 0 }
    }

    pub(super) fn next_uid(&mut self) -> usize {
        self.uids += 1;
        self.uids
    }

    pub(super) fn made_up_name(&mut self, class: &str) -> String {
        format!("{}_{}", class.to_lowercase(), self.uids)
    }

    /// The model that the whole text is.
    pub(super) fn root(&mut self, root: &Map<String, Value>) -> Result<Network> {
        match root.get("class_name").and_then(Value::as_str) {
            Some(class) if own_class(root).is_some() && !says_its_layers(root) => {
                return Err(Error::Unsupported(Report::new(
                    format!("model class {class}"),
                    "its file does not say how its layers are connected: only functional and sequential models do",
                )));
            }
            Some(_) => {}
            None => return Err(Error::format("", "not a Keras model: class_name is missing")),
        }
        self.network(root, "model")
    }

    /// A model: `{"class_name", "config"}`.
    pub(super) fn network(&mut self, object: &Map<String, Value>, place: &str) -> Result<Network> {
        let mut network = match object.get("config") {
            Some(Value::Object(config)) if config.contains_key("input_layers") => {
                self.functional(Config::new(config, place))?
            }
            Some(Value::Object(config)) => {
                let layers = list(config.get("layers"), &format!("{place}: layers"))?;
                let built = |fields: &Map<String, Value>, key: &str| {
                    Config::new(fields, place).shape(key).ok().flatten().filter(|shape| !shape.is_empty())
                };
                let shape = built(config, "build_input_shape").or_else(|| {
                    object
                        .get("build_config")
                        .and_then(Value::as_object)
                        .and_then(|b| built(b, "input_shape"))
                });
                self.sequential(layers, shape, place)?
            }
            Some(Value::Array(layers)) => self.sequential(layers, None, place)?,
            _ => return Err(Error::format(format!("{place}: config"), "is missing or no object")),
        };
        let config = object.get("config").and_then(|config| config.get("name"));
        network.name = config.and_then(Value::as_str).unwrap_or("model").to_owned();
        Ok(network)
    }

    fn sequential(
        &mut self,
        layers: &[Value],
        built: Option<Vec<Option<i64>>>,
        place: &str,
    ) -> Result<Network> {
        let Some(first) = layers.first() else {
            return Err(Error::format(format!("{place}: layers"), "the model has no layers"));
        };
        let mut parsed = Vec::with_capacity(layers.len() + 1);
        if first.get("class_name").and_then(Value::as_str) != Some("InputLayer") {
            parsed.push(self.implied_input(first, built, place)?);
        }
        for layer in layers {
            parsed.push(self.layer(layer, place)?);
        }
        if let Some(extra) = parsed.iter().skip(1).find(|layer| matches!(layer.kind, Kind::Input(_))) {
            return Err(Error::model(
                format!("layer {}", extra.name),
                "an input layer is in the middle of a sequential model",
            ));
        }
        unique(&parsed, place)?;
        let call = |layer: usize| Call {
            layer,
            arguments: match layer {
                0 => Vec::new(),
                _ => vec![Argument { keyword: None, tensor: TensorRef { call: layer - 1, output: 0 } }],
            },
            options: CallOptions::default(),
            slots: Vec::new(),
        };
        let calls: Vec<Call> = (0..parsed.len()).map(call).collect();
        let outputs = vec![TensorRef { call: calls.len() - 1, output: 0 }];
        Ok(Network { name: String::new(), layers: parsed, calls, inputs: vec![0], outputs })
    }

    /// The input of a sequential model whose first layer is not an input layer.
    fn implied_input(
        &mut self,
        first: &Value,
        built: Option<Vec<Option<i64>>>,
        place: &str,
    ) -> Result<Layer> {
        let name = first.get("config").and_then(|config| config.get("name")).and_then(Value::as_str);
        let mut shape = built;
        let mut dtype = crate::ir::DType::F32;
        // The first layer, or the first layer of the model that it is, may know; not deeper than
        // the text is nested.
        let mut candidate = Some(first);
        while let (None, Some(value)) = (&shape, candidate) {
            let fields = value.get("config").and_then(Value::as_object);
            if let Some(config) = fields.map(|fields| Config::new(fields, place)) {
                shape = input_shape(config)?;
                if shape.is_some() {
                    dtype = self.input_dtype(config)?;
                }
            }
            if shape.is_none() {
                let build = value.get("build_config").and_then(Value::as_object);
                let shape_of_build =
                    build.and_then(|b| Config::new(b, place).shape("input_shape").ok().flatten());
                shape = shape_of_build.filter(|shape| !shape.is_empty());
            }
            candidate = fields.and_then(|fields| fields.get("layers")).and_then(|layers| layers.get(0));
        }
        let name = format!("{}_input", name.unwrap_or("model"));
        let kind = Kind::Input(Input { shape, dtype, implied: true });
        let class = "InputLayer".to_owned();
        let (uid, policy, training) = (self.next_uid(), Default::default(), Default::default());
        Ok(Layer { uid, name, class, policy, trainable: true, training, kind })
    }

    fn functional(&mut self, config: Config<'_>) -> Result<Network> {
        let place = config.place();
        let values = list(config.get("layers"), &format!("{place}: layers"))?;
        let mut layers = Vec::with_capacity(values.len());
        let mut raw = Vec::with_capacity(values.len());
        for value in values {
            let layer = self.layer(value, place)?;
            raw.push(self.calls(value, &layer)?);
            layers.push(layer);
        }
        unique(&layers, place)?;
        let mut inputs = Vec::new();
        collect(config.get("input_layers").unwrap_or(&Value::Null), &mut inputs, &|_| None);
        let mut outputs = Vec::new();
        collect(config.get("output_layers").unwrap_or(&Value::Null), &mut outputs, &|_| None);
        if outputs.is_empty() {
            return Err(config.fault("output_layers", "the model has no outputs"));
        }
        Resolver::new(place, self.version, &layers, &raw, &outputs)?.network(layers, raw, &inputs, &outputs)
    }

    /// The calls of one layer of a functional model.
    fn calls(&mut self, value: &Value, layer: &Layer) -> Result<Vec<RawCall>> {
        let place = format!("layer {} ({})", layer.name, layer.class);
        let nodes = match value.get("inbound_nodes") {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(nodes)) => nodes.as_slice(),
            Some(_) => return Err(Error::format(format!("{place}: inbound_nodes"), "expected a list")),
        };
        if nodes.is_empty() {
            // An input layer, which is called once by nobody.
            let input = matches!(layer.kind, Kind::Input(_));
            return Ok(if input { vec![RawCall::default()] } else { Vec::new() });
        }
        let function = value.get("config").and_then(|config| config.get("function")).and_then(Value::as_str);
        match function.filter(|_| matches!(layer.class.as_str(), "TFOpLambda" | "SlicingOpLambda")) {
            Some(function) => nodes.iter().map(|node| self.function_call(node, function)).collect(),
            None => nodes.iter().map(|node| self.call(node, layer, &place)).collect(),
        }
    }

    /// A call of a function of TensorFlow: the first argument stands by itself, the others by their names.
    fn function_call(&mut self, node: &Value, function: &str) -> Result<RawCall> {
        let none = Map::new();
        let arguments = keras2_arguments(node).unwrap_or(&none);
        let mut call = RawCall::default();
        let mut operand = |value: &Value| {
            let mut tensors = Vec::new();
            collect(value, &mut tensors, &|_| None);
            let is_one = list_history(value).is_some();
            match (tensors.first(), constant_value(value)) {
                (_, Some(constant)) => call.slots.push(Slot::Constant(constant.clone())),
                (None, None) => call.slots.push(Slot::Constant(value.clone())),
                (Some(_), None) if is_one => call.slots.push(Slot::Tensor),
                (Some(_), None) => call.slots.push(Slot::List(vec![Slot::Tensor; tensors.len()])),
            }
            let is_constant = constant_value(value).is_some();
            let tensors = tensors.into_iter().filter(|_| !is_constant);
            call.arguments.extend(tensors.map(|tensor| Argument { keyword: None, tensor }));
        };
        // One tensor, or a list of them, each with the keywords of the call.
        match node.as_array().map(Vec::as_slice) {
            Some([first]) => operand(first),
            _ => operand(node),
        }
        if let Ok(translated) = translated(function, arguments) {
            translated.operands.iter().filter_map(|name| arguments.get(*name)).for_each(operand);
        }
        Ok(call)
    }

    fn call(&mut self, node: &Value, layer: &Layer, place: &str) -> Result<RawCall> {
        // Their calls are written with training=True, which a call of the model replaces.
        let never_trains =
            matches!(layer.kind, Kind::Rearrange(_) | Kind::Pipeline(_)) || layer.class.starts_with("Random");
        let mut call = RawCall { never_trains, ..RawCall::default() };
        let mut positional = Vec::new();
        match node.get("args") {
            Some(args) => {
                collect(args, &mut positional, &keras3_history);
                let kwargs = node.get("kwargs").and_then(Value::as_object);
                if matches!(layer.kind, Kind::Operation(_)) {
                    call.slots = slots(args);
                    if let Some(kwargs) = kwargs {
                        self.named_operands(kwargs, &layer.class, &mut call, place);
                    }
                } else {
                    if let Some(kwargs) = kwargs {
                        self.keywords(kwargs, &mut call, place, &keras3_history)?;
                    }
                    if has_constant(args) {
                        self.unsupported.add(place, "a call with constants as arguments");
                    }
                }
            }
            None => {
                collect(node, &mut positional, &|_| None);
                let mut keywords = Vec::new();
                keras2_keywords(node, &mut keywords);
                // Each tensor of the call carries the same ones.
                if let Some(kwargs) = keywords.into_iter().next() {
                    self.keywords(kwargs, &mut call, place, &|_| None)?;
                }
            }
        }
        if positional.iter().any(|history| history.layer == "_CONSTANT_VALUE") {
            self.unsupported.add(place, "a call with constants as arguments");
        }
        let positional = positional.into_iter().map(|tensor| Argument { keyword: None, tensor });
        call.arguments.splice(0..0, positional);
        if call.arguments.is_empty() {
            return Err(Error::format(format!("{place}: inbound_nodes"), "a call without arguments"));
        }
        Ok(call)
    }

    /// Operands of a function that are named in its call: each takes its place behind those that are not.
    fn named_operands(&mut self, kwargs: &Map<String, Value>, class: &str, call: &mut RawCall, place: &str) {
        let names = named_operands(class);
        for (keyword, value) in kwargs.iter().filter(|(_, value)| !value.is_null()) {
            if !names.iter().any(|&(name, at)| name == keyword && at >= call.slots.len()) {
                self.unsupported.add(place, format!("a call with {keyword} {}", short(value)));
            }
        }
        for &(name, at) in names {
            let Some(value) = kwargs.get(name).filter(|value| !value.is_null()) else { continue };
            if at < call.slots.len() {
                continue;
            }
            call.slots.resize(at, Slot::Constant(Value::Null));
            call.slots.push(slot(value));
            let mut tensors = Vec::new();
            collect(value, &mut tensors, &keras3_history);
            let bare = |tensor| Argument { keyword: None, tensor };
            call.arguments.extend(tensors.into_iter().map(bare));
        }
    }

    fn keywords(
        &mut self,
        kwargs: &Map<String, Value>,
        call: &mut RawCall,
        place: &str,
        history: &dyn Fn(&Value) -> Option<History>,
    ) -> Result<()> {
        for (keyword, value) in kwargs {
            let flag = value.as_bool().unwrap_or(false);
            let mut tensors = Vec::new();
            collect(value, &mut tensors, history);
            match keyword.as_str() {
                "use_causal_mask" => call.options.causal |= flag,
                "return_attention_scores" => call.options.scores |= flag,
                "reverse" => call.options.reverse |= flag,
                "training" if call.never_trains => {}
                "training" if flag => self.unsupported.add(place, "a call with training=True"),
                "mask" if value.as_array().is_some_and(|_| list_history(value).is_none()) => {
                    let items = value.as_array().map_or(&[][..], Vec::as_slice);
                    for (at, item) in items.iter().enumerate() {
                        let mut tensors = Vec::new();
                        collect(item, &mut tensors, history);
                        let named = |tensor| Argument { keyword: Some(format!("mask[{at}]")), tensor };
                        call.arguments.extend(tensors.into_iter().map(named));
                    }
                }
                _ if tensors.is_empty() && is_set(value) => {
                    self.unsupported.add(place, format!("a call with {keyword}"));
                }
                _ => {
                    let named = |tensor| Argument { keyword: Some(keyword.clone()), tensor };
                    call.arguments.extend(tensors.into_iter().map(named));
                }
            }
        }
        Ok(())
    }
}

/// The calls of a nested model by their numbers, as layers read them and as the outputs are named. A functional model has a
/// node of its own before those of its calls, which counts in some of these numbers. Every call is of use to one or the other.
struct NodesOf<'n> {
    calls: u64,
    read: &'n HashSet<u64>,
    given: &'n HashSet<u64>,
}

impl NodesOf<'_> {
    /// Whether the model's own node counts, in Keras 2: the same for both.
    fn counted_alike(&self) -> (u64, u64) {
        let own = u64::from(self.read.iter().chain(self.given).all(|&node| node >= 1));
        (own, own)
    }

    /// The same in Keras 3, where it counts among the outputs; where layers read it, in some versions.
    fn counted_among_outputs(&self) -> (u64, u64) {
        let all_used = |own: u64| {
            let used = |call: u64| self.read.contains(&(call + own)) || self.given.contains(&(call + 1));
            self.read.iter().all(|&node| (own..self.calls + own).contains(&node)) && (0..self.calls).all(used)
        };
        (u64::from(!all_used(0) && all_used(1)), 1)
    }
}

/// Resolves references and orders the calls.
struct Resolver<'a> {
    place: &'a str,
    by_name: HashMap<String, usize>,
    /// The index of each layer's first call where layers read it: 1 where a nested model's own first node counts.
    first: Vec<u64>,
    /// The same where the model's outputs are named.
    first_of_outputs: Vec<u64>,
    /// Position of each layer's first call among all calls, in the order of the text.
    start: Vec<usize>,
}

impl<'a> Resolver<'a> {
    fn new(
        place: &'a str,
        version: KerasVersion,
        layers: &[Layer],
        raw: &[Vec<RawCall>],
        outputs: &[History],
    ) -> Result<Self> {
        let by_name: HashMap<String, usize> =
            layers.iter().enumerate().map(|(index, layer)| (layer.name.clone(), index)).collect();
        let by_layer = |histories: &mut dyn Iterator<Item = &History>| {
            let mut nodes = vec![HashSet::new(); layers.len()];
            for history in histories {
                if let Some(&layer) = by_name.get(history.layer.as_str()) {
                    nodes[layer].insert(history.node);
                }
            }
            nodes
        };
        let read =
            by_layer(&mut raw.iter().flatten().flat_map(|call| call.arguments.iter().map(|a| &a.tensor)));
        let given = by_layer(&mut outputs.iter());
        let (mut first, mut first_of_outputs) = (vec![0; layers.len()], vec![0; layers.len()]);
        for (at, layer) in layers.iter().enumerate().filter(|(_, layer)| matches!(layer.kind, Kind::Model(_)))
        {
            let calls = raw[at].len() as u64;
            let of = NodesOf { calls, read: &read[at], given: &given[at] };
            (first[at], first_of_outputs[at]) = match version {
                KerasVersion::Two => of.counted_alike(),
                // A sequential model has no node of its own.
                KerasVersion::Three if layer.class == "Sequential" => (0, 0),
                KerasVersion::Three => of.counted_among_outputs(),
            };
        }
        let mut start = Vec::with_capacity(layers.len() + 1);
        let mut total = 0;
        for calls in raw {
            start.push(total);
            total += calls.len();
        }
        start.push(total);
        Ok(Self { place, by_name, first, first_of_outputs, start })
    }

    /// The call (in the order of the text) that a reference means.
    fn call(&self, history: &History, reader: &str) -> Result<usize> {
        self.counted(history, reader, &self.first)
    }

    fn counted(&self, history: &History, reader: &str, first: &[u64]) -> Result<usize> {
        let Some(&layer) = self.by_name.get(history.layer.as_str()) else {
            return Err(Error::model(reader, format!("reads layer {}, which does not exist", history.layer)));
        };
        let count = self.start[layer + 1] - self.start[layer];
        let node = history.node.checked_sub(first[layer]).filter(|&node| node < count as u64);
        node.map(|node| self.start[layer] + node as usize).ok_or_else(|| {
            Error::model(
                reader,
                format!("reads node {} of layer {}, which has {count} calls", history.node, history.layer),
            )
        })
    }

    fn network(
        self,
        layers: Vec<Layer>,
        raw: Vec<Vec<RawCall>>,
        inputs: &[History],
        outputs: &[History],
    ) -> Result<Network> {
        let mut calls = Vec::new();
        for (layer, raw_calls) in raw.into_iter().enumerate() {
            for raw_call in raw_calls {
                let reader = format!("layer {}", layers[layer].name);
                let mut arguments = Vec::with_capacity(raw_call.arguments.len());
                for argument in raw_call.arguments {
                    let call = self.call(&argument.tensor, &reader)?;
                    let output = usize::try_from(argument.tensor.tensor).unwrap_or(usize::MAX);
                    let tensor = TensorRef { call, output };
                    arguments.push(Argument { keyword: argument.keyword, tensor });
                }
                calls.push(Call { layer, arguments, options: raw_call.options, slots: raw_call.slots });
            }
        }
        let order = topological(&calls, &layers)?;
        let mut position = vec![0; calls.len()];
        for (new, &old) in order.iter().enumerate() {
            position[old] = new;
        }
        let mut slots: Vec<Option<Call>> = calls.into_iter().map(Some).collect();
        let mut ordered = Vec::with_capacity(slots.len());
        for &old in &order {
            if let Some(mut call) = slots[old].take() {
                for argument in &mut call.arguments {
                    argument.tensor.call = position[argument.tensor.call];
                }
                ordered.push(call);
            }
        }
        let inputs = self.inputs(&layers, &ordered, &position, inputs)?;
        let outputs = outputs
            .iter()
            .map(|history| {
                let reader = format!("{}: output_layers", self.place);
                let call = self.counted(history, &reader, &self.first_of_outputs)?;
                let output = usize::try_from(history.tensor).unwrap_or(usize::MAX);
                Ok(TensorRef { call: position[call], output })
            })
            .collect::<Result<_>>()?;
        Ok(Network { name: String::new(), layers, calls: ordered, inputs, outputs })
    }

    /// The input calls in the order of `input_layers`; every input layer must be there.
    fn inputs(
        &self,
        layers: &[Layer],
        calls: &[Call],
        position: &[usize],
        inputs: &[History],
    ) -> Result<Vec<usize>> {
        let place = format!("{}: input_layers", self.place);
        let mut listed = vec![false; calls.len()];
        let mut found = Vec::with_capacity(inputs.len());
        for history in inputs {
            let call = position[self.call(history, &place)?];
            if !matches!(layers[calls[call].layer].kind, Kind::Input(_)) {
                return Err(Error::model(place, format!("{} is not an input layer", history.layer)));
            }
            if std::mem::replace(&mut listed[call], true) {
                return Err(Error::model(place, format!("{} is there twice", history.layer)));
            }
            found.push(call);
        }
        for (call, listed) in calls.iter().zip(listed) {
            let layer = &layers[call.layer];
            if matches!(layer.kind, Kind::Input(_)) && !listed {
                return Err(Error::model(place, format!("input layer {} is not listed", layer.name)));
            }
        }
        Ok(found)
    }
}

/// A topological order of the calls: always the first in the order of the text among those ready.
/// For what Keras writes, layers are then first called in the order of the text, which is that of
/// `model.weights`. O(calls log calls).
fn topological(calls: &[Call], layers: &[Layer]) -> Result<Vec<usize>> {
    let mut makers = Csr::new();
    for call in calls {
        call.arguments.iter().for_each(|argument| makers.push(argument.tensor.call as u32));
        makers.end_row();
    }
    first_ready(&makers).map_err(|cycle| {
        let names: Vec<&str> =
            cycle.iter().take(6).map(|&call| layers[calls[call].layer].name.as_str()).collect();
        let first = names.first().copied().unwrap_or("");
        Error::model(
            format!("layer {first}"),
            format!("is on a cycle of {} calls: {}", cycle.len(), names.join(" -> ")),
        )
    })
}

/// The class of a model, where it is not Keras' own.
pub(super) fn own_class(model: &Map<String, Value>) -> Option<&str> {
    let class = model.get("class_name").and_then(Value::as_str)?;
    (!matches!(class, "Sequential" | "Functional" | "Model")).then_some(class)
}

/// Whether a model of a user's class was made of layers, as models with a training step of their own are.
fn says_its_layers(model: &Map<String, Value>) -> bool {
    model.get("config").is_some_and(|config| config.get("layers").is_some_and(Value::is_array))
}

/// Error: two layers of one model have one name.
fn unique(layers: &[Layer], place: &str) -> Result<()> {
    let mut seen = HashMap::with_capacity(layers.len());
    for layer in layers {
        if seen.insert(layer.name.as_str(), ()).is_some() {
            return Err(Error::model(place, format!("two layers have the name {}", layer.name)));
        }
    }
    Ok(())
}

fn list<'v>(value: Option<&'v Value>, place: &str) -> Result<&'v [Value]> {
    match value {
        Some(Value::Array(items)) => Ok(items),
        _ => Err(Error::format(place, "expected a list")),
    }
}

/// Collects every reference in a nested value, in order.
fn collect(value: &Value, found: &mut Vec<History>, special: &dyn Fn(&Value) -> Option<History>) {
    if let Some(history) = list_history(value).or_else(|| special(value)) {
        found.push(history);
        return;
    }
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, found, special)),
        Value::Object(fields) => fields.values().for_each(|item| collect(item, found, special)),
        _ => {}
    }
}

/// What the positional arguments of an operation are.
fn slots(args: &Value) -> Vec<Slot> {
    args.as_array().map_or_else(Vec::new, |values| values.iter().map(slot).collect())
}

/// What one argument is. Recursion is bounded by the parser of the text.
fn slot(value: &Value) -> Slot {
    if keras3_history(value).is_some() || list_history(value).is_some() {
        return Slot::Tensor;
    }
    let mut tensors = Vec::new();
    collect(value, &mut tensors, &keras3_history);
    match value {
        Value::Array(items) if !tensors.is_empty() => Slot::List(items.iter().map(slot).collect()),
        // A dictionary of tensors: what it calls them is of no use to a function.
        _ if !tensors.is_empty() => Slot::List(vec![Slot::Tensor; tensors.len()]),
        _ => Slot::Constant(value.clone()),
    }
}

/// `["layer", node, tensor]`, in Keras 2 with the call's keywords as fourth entry.
fn list_history(value: &Value) -> Option<History> {
    match value.as_array()?.as_slice() {
        [Value::String(layer), Value::Number(node), rest @ ..]
            if layer == "_CONSTANT_VALUE" && rest.len() <= 2 =>
        {
            node.as_i64()?;
            Some(History { layer: layer.clone(), node: 0, tensor: 0 })
        }
        [Value::String(layer), node, tensor] | [Value::String(layer), node, tensor, Value::Object(_)] => {
            Some(History { layer: layer.clone(), node: node.as_u64()?, tensor: tensor.as_u64()? })
        }
        _ => None,
    }
}

/// `{"class_name": "__keras_tensor__", "config": {"keras_history": [...]}}`
fn keras3_history(value: &Value) -> Option<History> {
    (value.get("class_name")?.as_str()? == "__keras_tensor__")
        .then(|| value.get("config")?.get("keras_history").and_then(list_history))
        .flatten()
}

/// The keyword objects of the references of a Keras 2 node.
fn keras2_keywords<'v>(value: &'v Value, found: &mut Vec<&'v Map<String, Value>>) {
    match value {
        Value::Array(items) => {
            if let [Value::String(_), _, _, Value::Object(kwargs)] = items.as_slice() {
                found.push(kwargs);
            } else {
                items.iter().for_each(|item| keras2_keywords(item, found));
            }
        }
        Value::Object(fields) => fields.values().for_each(|item| keras2_keywords(item, found)),
        _ => {}
    }
}

/// The keywords of a call in `inbound_nodes` of Keras 2.
pub(super) fn keras2_arguments(nodes: &Value) -> Option<&Map<String, Value>> {
    let mut found = Vec::new();
    keras2_keywords(nodes, &mut found);
    found.into_iter().next()
}

/// The value of `["_CONSTANT_VALUE", -1, value, ...]`.
fn constant_value(value: &Value) -> Option<&Value> {
    match value.as_array()?.as_slice() {
        [Value::String(name), _, constant, ..] if name == "_CONSTANT_VALUE" => Some(constant),
        _ => None,
    }
}

/// Whether an argument is something else than what it is where it is left out.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => items.iter().any(is_set),
        _ => true,
    }
}

/// A value as a message shows it.
fn short(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => String::new(),
        scalar => scalar.to_string(),
    }
}

/// True where a number or string stands among the positional arguments.
fn has_constant(args: &Value) -> bool {
    match args {
        Value::Array(items) => items.iter().any(has_constant),
        Value::Number(_) | Value::String(_) => true,
        _ => false,
    }
}
