//! Lowers a network of layers to the intermediate representation.

mod wrapped;

use std::collections::{BTreeMap, HashMap, HashSet};

use super::activation::Activation;
use super::config::{KerasVersion, Policy};
use super::layer::{Encoding, Input, Kind, Layer};
use super::mask::{self, Masked};
use super::network::{Argument, Call, CallOptions, Network, Slot, TensorRef};
use super::operation::Operand;
use super::penalty::Training;
use crate::error::{Error, Report, Result};
use crate::ir::{
    Binary, Compare, DType, Graph, Init, Noise, NoiseKind, Op, ReduceKind, Shape, Size, Slice, Source,
    SourceId, SourceRole, State, Statistic, Tensor, Type, Unary, ValueId,
};
use crate::load::{FindDims, LoadOptions};

/// Calls of layers in all; models that share models that share models can have any number.
const MOST_CALLS: usize = 1_000_000;

/// Lowers the model. Names of inputs are those of the input layers, names of outputs those of the
/// layers that make them. `find` gives values of dimensions once the inputs are there.
pub(super) fn lower(
    name: &str,
    network: &Network,
    version: KerasVersion,
    options: &LoadOptions,
    find: FindDims<'_>,
) -> Result<Graph> {
    let (mut lowering, mut inputs) = Lowering::begun(name, network, version, options.dims.clone())?;
    let found = find(&lowering.graph)?;
    if !found.is_empty() {
        let fixed = options.dims.clone().into_iter().chain(found).collect();
        (lowering, inputs) = Lowering::begun(name, network, version, fixed)?;
    }
    let outputs = lowering.run(network, &inputs, "")?;
    let mut names: HashSet<String> = HashSet::new();
    for (reference, value) in network.outputs.iter().zip(outputs) {
        let layer = &network.layers[network.calls[reference.call].layer].name;
        let mut name = layer.clone();
        let mut number = 0;
        while !names.insert(name.clone()) {
            number += 1;
            name = format!("{layer}_{number}");
        }
        let value = lowering.counted_output(&name, value)?;
        lowering.graph.add_output(name, value);
    }
    lowering.finish()
}

/// Tables of all layers have at most as many elements.
const MOST_LISTED: i64 = 1 << 25;

/// The graph so far, and what belongs to which layer.
struct Lowering {
    graph: Graph,
    version: KerasVersion,
    /// Values that the caller gives to open dimensions.
    fixed: BTreeMap<String, i64>,
    /// Names of the open dimensions, also of those that the options fix.
    dims: Vec<String>,
    sources: HashMap<usize, SourceId>,
    paths: HashSet<String>,
    weights: HashMap<(usize, String), ValueId>,
    weight_names: HashSet<String>,
    /// Elements of tables that layers have.
    table_elements: i64,
    /// Sources of layers that handed on what they read, and what that is.
    passed: Vec<(SourceId, ValueId)>,
    /// States of layers, and what takes their places.
    left: Vec<(ValueId, ValueId)>,
    calls: usize,
}

impl Lowering {
    /// A graph of the network's inputs, with values for some of its open dimensions.
    fn begun(
        name: &str,
        network: &Network,
        version: KerasVersion,
        fixed: BTreeMap<String, i64>,
    ) -> Result<(Self, Vec<Masked>)> {
        let mut lowering = Self {
            graph: Graph::new(name),
            version,
            fixed,
            dims: Vec::new(),
            sources: HashMap::new(),
            paths: HashSet::new(),
            weights: HashMap::new(),
            weight_names: HashSet::new(),
            table_elements: 0,
            passed: Vec::new(),
            left: Vec::new(),
            calls: 0,
        };
        let mut inputs = Vec::with_capacity(network.inputs.len());
        for &call in &network.inputs {
            let layer = &network.layers[network.calls[call].layer];
            inputs.push(Masked::bare(lowering.graph_input(layer)?));
        }
        lowering.check_dims()?;
        Ok((lowering, inputs))
    }

    fn graph_input(&mut self, layer: &Layer) -> Result<ValueId> {
        let Kind::Input(Input { shape, dtype, .. }) = &layer.kind else {
            return Err(Error::Internal("an input that is no input layer".into()));
        };
        let place = format!("layer {} (InputLayer)", layer.name);
        let Some(shape) = shape else {
            return Err(Error::model(place, "the model does not say what shape its input has")
                .with_help("build the model, or begin it with an Input, before writing it"));
        };
        let sizes = shape.iter().enumerate().map(|(axis, size)| match size {
            Some(size) => Ok(Size::Known(*size)),
            None if axis == 0 => self.dim("batch".into()),
            None => self.dim(format!("{}_{axis}", layer.name)),
        });
        let ty = Type::new(*dtype, sizes.collect::<Result<Shape>>()?);
        let source = self.source(layer, "")?;
        Ok(self.graph.add_input(&layer.name, ty, source))
    }

    /// The size of an open dimension: its name, or the value that the options give it.
    fn dim(&mut self, name: String) -> Result<Size> {
        let size = match self.fixed.get(&name) {
            Some(value) if *value < 1 => {
                return Err(Error::usage(format!("dimension {name}"), format!("{value} is less than 1")));
            }
            Some(value) => Size::Known(*value),
            None => Size::dim(self.graph.dim(&name)),
        };
        self.dims.push(name);
        Ok(size)
    }

    /// Error: the options fix a dimension that the model does not have.
    fn check_dims(&self) -> Result<()> {
        match self.fixed.keys().find(|name| !self.dims.contains(name)) {
            None => Ok(()),
            Some(name) => {
                let mut known = self.dims.clone();
                known.dedup();
                Err(Error::usage(format!("dimension {name}"), "the model has no such dimension")
                    .with_help(format!("its dimensions are: {}", known.join(", "))))
            }
        }
    }

    fn source(&mut self, layer: &Layer, prefix: &str) -> Result<SourceId> {
        if let Some(&source) = self.sources.get(&layer.uid) {
            return Ok(source);
        }
        let path = format!("{prefix}{}", layer.name);
        if !self.paths.insert(path.clone()) {
            return Err(Error::model(format!("layer {path}"), "two layers have this name"));
        }
        let source = self.graph.add_source(Source::new(path, &layer.class, SourceRole::Node));
        self.sources.insert(layer.uid, source);
        Ok(source)
    }

    /// Runs a model on `inputs`. Recurses into nested models, as deep as the text is nested.
    fn run(&mut self, network: &Network, inputs: &[Masked], prefix: &str) -> Result<Vec<Masked>> {
        if inputs.len() != network.inputs.len() {
            return Err(Error::model(
                format!("model {prefix}{}", network.name),
                format!("has {} inputs and is given {}", network.inputs.len(), inputs.len()),
            ));
        }
        let mut values: HashMap<usize, Masked> = HashMap::new();
        values.extend(network.inputs.iter().copied().zip(inputs.iter().copied()));
        let mut results: Vec<Vec<Masked>> = Vec::with_capacity(network.calls.len());
        for (index, call) in network.calls.iter().enumerate() {
            self.calls += 1;
            if self.calls > MOST_CALLS {
                return Err(Error::model("model", format!("its layers are called over {MOST_CALLS} times")));
            }
            let layer = &network.layers[call.layer];
            if let Some(&value) = values.get(&index) {
                if !matches!(&layer.kind, Kind::Input(Input { implied: true, .. })) {
                    let source = self.source(layer, prefix)?;
                    self.passed.push((source, value.value));
                }
                results.push(vec![value]);
                continue;
            }
            let mut arguments = Vec::with_capacity(call.arguments.len());
            for argument in &call.arguments {
                let tensor = fetch(&results, argument.tensor, network)?;
                arguments.push(Argument { keyword: argument.keyword.clone(), tensor });
            }
            results.push(self.call(layer, &arguments, call, prefix)?);
            if layer.class == "MultiHeadAttention" && self.version == KerasVersion::Three {
                forget_masks(&mut results, call);
            }
        }
        network.outputs.iter().map(|&reference| fetch(&results, reference, network)).collect()
    }

    fn call(
        &mut self,
        layer: &Layer,
        arguments: &[Argument<Masked>],
        call: &Call,
        prefix: &str,
    ) -> Result<Vec<Masked>> {
        if let Kind::Model(inner) = &layer.kind {
            let is_plain = arguments.iter().all(|argument| argument.keyword.is_none());
            let arguments = match is_plain {
                true => arguments.to_vec(),
                // Keras hands masks to a model as arguments of their own.
                false => {
                    let source = self.source(layer, prefix)?;
                    mask::with_given(&mut self.site(layer, source, prefix), arguments)?
                }
            };
            let inputs: Vec<Masked> = arguments.iter().map(|argument| argument.tensor).collect();
            return self.run(inner, &inputs, &format!("{prefix}{}/", layer.name));
        }
        let source = self.source(layer, prefix)?;
        let mut site = self.site(layer, source, prefix);
        let unknown = layer.training.unknown.iter().filter(|_| layer.trainable);
        let rules = site.lowering.graph.rules_mut();
        rules.untrained.extend(unknown.cloned());
        rules.unheeded.extend(layer.training.unheeded.iter().cloned());
        let results = match &layer.kind {
            Kind::Operation(operation) => {
                let mut operands = operands(arguments, &call.slots);
                for operand in &mut operands {
                    operand.settle(&mut site)?;
                }
                let results = operation.lower(&mut site, &operands)?;
                results.into_iter().map(Masked::bare).collect()
            }
            _ => site.layer(layer, arguments, call.options)?,
        };
        for &result in &results {
            if arguments.iter().any(|argument| argument.tensor.value == result.value) {
                self.passed.push((source, result.value));
            }
        }
        Ok(results)
    }

    fn site<'l>(&'l mut self, layer: &'l Layer, source: SourceId, prefix: &str) -> Site<'l> {
        Site {
            lowering: self,
            source,
            path: format!("{prefix}{}", layer.name),
            uid: layer.uid,
            policy: layer.policy,
            trainable: layer.trainable,
            training: &layer.training,
        }
    }

    /// An output, of which a loss counts the steps of its mask alone: vectors of steps, as Keras has them.
    fn counted_output(&mut self, name: &str, output: Masked) -> Result<ValueId> {
        let Some(mask) = output.mask else { return Ok(output.value) };
        let rank = |value: ValueId| self.graph.ty(value).shape.rank();
        if rank(mask) == 2 && rank(output.value) == 3 {
            let source = self.graph.maker(output.value).source;
            return self.graph.mark_counted(output.value, mask, source);
        }
        let line = format!(
            "output {name}: its loss counts all steps here, those too that the network's mask leaves out"
        );
        self.graph.rules_mut().unheeded.push(line);
        Ok(output.value)
    }

    /// Records consumers, also of layers that left no node behind: they are where the first reader
    /// of what they handed on is, or else where its maker is.
    fn finish(mut self) -> Result<Graph> {
        let graph = &mut self.graph;
        for (state, next) in self.left {
            if let Op::Param(id) = graph.maker(state).op {
                graph.update_param(id, next)?;
            }
        }
        graph.record_consumers();
        let mut reader: HashMap<ValueId, SourceId> = HashMap::new();
        let mut present = vec![false; graph.sources().len()];
        for id in graph.node_ids() {
            let node = graph.node(id);
            present[node.source.index()] = true;
            for &operand in &node.operands {
                if graph.maker(operand).source != node.source {
                    reader.entry(operand).or_insert(node.source);
                }
            }
        }
        for (source, value) in self.passed {
            if !present[source.index()] && graph.source(source).consumer.is_none() {
                let maker = graph.maker(value).source;
                graph.source_mut(source).consumer = Some(reader.get(&value).copied().unwrap_or(maker));
            }
        }
        Ok(self.graph)
    }
}

/// The operands of an operation: tensors and what is between them.
fn operands(arguments: &[Argument<Masked>], slots: &[Slot]) -> Vec<Operand> {
    let mut tensors = arguments.iter().filter(|argument| argument.keyword.is_none()).map(|a| a.tensor.value);
    slots.iter().filter_map(|slot| operand(slot, &mut tensors)).collect()
}

fn operand(slot: &Slot, tensors: &mut dyn Iterator<Item = ValueId>) -> Option<Operand> {
    match slot {
        Slot::Tensor => tensors.next().map(Operand::Value),
        Slot::List(items) => {
            let items = items.iter().filter_map(|item| operand(item, tensors));
            Some(Operand::List(items.collect()))
        }
        Slot::Constant(value) => Some(Operand::Constant(value.clone())),
    }
}

/// Takes the masks off what a call reads: so Keras 3's attention does, and what reads the same later finds none.
fn forget_masks(results: &mut [Vec<Masked>], call: &Call) {
    for argument in &call.arguments {
        let TensorRef { call, output } = argument.tensor;
        if let Some(read) = results.get_mut(call).and_then(|results| results.get_mut(output)) {
            read.mask = None;
        }
    }
}

fn fetch(results: &[Vec<Masked>], reference: TensorRef, network: &Network) -> Result<Masked> {
    let call = results.get(reference.call);
    call.and_then(|call| call.get(reference.output)).copied().ok_or_else(|| {
        let layer = network.calls.get(reference.call).map_or("", |call| &network.layers[call.layer].name);
        Error::model(
            format!("layer {layer}"),
            format!("has {} results; number {} is read", call.map_or(0, Vec::len), reference.output),
        )
    })
}

/// One call of one layer: what its lowering works with.
pub(super) struct Site<'l> {
    lowering: &'l mut Lowering,
    source: SourceId,
    path: String,
    uid: usize,
    pub(super) policy: Policy,
    pub(super) trainable: bool,
    training: &'l Training,
}

impl Site<'_> {
    /// The results of a layer, with their masks.
    fn layer(
        &mut self,
        layer: &Layer,
        arguments: &[Argument<Masked>],
        options: CallOptions,
    ) -> Result<Vec<Masked>> {
        let arguments = mask::with_given(self, arguments)?;
        let results = self.results(layer, &arguments, options)?;
        mask::with_masks(self, layer, &arguments, options, &results)
    }

    fn results(
        &mut self,
        layer: &Layer,
        arguments: &[Argument<Masked>],
        options: CallOptions,
    ) -> Result<Vec<ValueId>> {
        let given: Vec<Masked> = arguments.iter().map(|argument| argument.tensor).collect();
        if given.is_empty() {
            return Err(self.error("is called without arguments"));
        }
        let inputs = if layer.kind.takes_any_type() { given } else { self.all_computed(&given)? };
        let others = || inputs[1..].iter().map(|input| input.value).collect::<Vec<_>>();
        match &layer.kind {
            Kind::DotAttention(attention) => attention.lower(self, &inputs, options),
            Kind::Attention(attention) => attention.lower(self, arguments, options),
            Kind::Rnn(rnn) => rnn.lower(self, inputs[0], &others(), ""),
            Kind::StackedRnn(layers) => super::recurrent::stacked(self, layers, inputs[0], &others()),
            Kind::ConvLstm(layer) => layer.lower(self, inputs[0], &others()),
            Kind::Bidirectional(both) => both.lower(self, inputs[0], &others()),
            _ => Ok(vec![self.result(layer, &inputs, options)?]),
        }
    }

    /// Floating-point inputs taken over to the type that the layer computes in.
    fn all_computed(&mut self, given: &[Masked]) -> Result<Vec<Masked>> {
        let computed = |&Masked { value, mask }| Ok(Masked { value: self.computed(value)?, mask });
        given.iter().map(computed).collect()
    }

    /// What a layer of one result makes.
    fn result(&mut self, layer: &Layer, inputs: &[Masked], options: CallOptions) -> Result<ValueId> {
        let Masked { value: x, mask } = inputs[0];
        match &layer.kind {
            Kind::Identity => Ok(x),
            Kind::Masking(value) => mask::cleared(self, x, *value),
            Kind::Noise(disturb) => disturb.lower(self, x),
            Kind::Dense(dense) => dense.lower(self, x),
            Kind::Embedding(embedding) => embedding.lower(self, x, options),
            Kind::Activation(activation @ Activation::Softmax { .. }) => {
                mask::softmax(self, activation, inputs[0])
            }
            Kind::Activation(Activation::SoftmaxOver { .. }) if mask.is_some() => {
                Err(self.unsupported("a softmax over several axes of which some steps are masked"))
            }
            Kind::Activation(activation) => activation.lower(self, x),
            Kind::Prelu { init, shared_axes } => self.prelu(x, init, shared_axes),
            Kind::BatchNorm(norm) => {
                norm.lower(self, Masked { value: x, mask: mask.filter(|_| self.trainable) })
            }
            Kind::LayerNorm(norm) => norm.lower(self, x),
            Kind::GroupNorm(norm) => norm.lower(self, x),
            Kind::UnitNorm(axes) => super::norm::unit(self, x, axes),
            Kind::AdaptedNorm(norm) => norm.lower(self, x),
            Kind::Einsum(dense) => dense.lower(self, x),
            Kind::Categories { .. } if inputs.len() > 1 => Err(self.unsupported("a weight for each count")),
            Kind::Categories { count, mode } => self.categories(x, *count, *mode),
            Kind::LayerScale { init, channels } => {
                let gamma = self.weight("gamma", &[*channels], init)?;
                self.binary(Binary::Mul, x, gamma)
            }
            Kind::Affine(affine) => affine.lower(self, x),
            Kind::Conv(conv) => conv.lower(self, x),
            Kind::Pool(pool) => pool.lower(self, x),
            Kind::AdaptivePool(pool) => pool.lower(self, x),
            Kind::GlobalPool(pool) => pool.lower(self, x, mask),
            Kind::Rearrange(rearrange) => rearrange.lower(self, x),
            Kind::Merge(merge) => {
                let values: Vec<ValueId> = inputs.iter().map(|input| input.value).collect();
                merge.lower(self, &values)
            }
            Kind::TimeDistributed(inner) => self.time_distributed(inner, x),
            Kind::Pipeline(layers) => layers.iter().try_fold(x, |value, inner| self.wrapped(inner, value)),
            Kind::Spectral(inner) => self.spectral(inner, x),
            Kind::Buckets(buckets) => buckets.lower(self, x),
            Kind::Mel(mel) => mel.lower(self, x),
            Kind::Stft(stft) => stft.lower(self, x),
            // Those of several results are lowered by the caller.
            Kind::DotAttention(_)
            | Kind::Attention(_)
            | Kind::Rnn(_)
            | Kind::StackedRnn(_)
            | Kind::ConvLstm(_)
            | Kind::Bidirectional(_)
            | Kind::Input(_)
            | Kind::Operation(_)
            | Kind::Model(_)
            | Kind::Unknown => {
                Err(self.error(&format!("a layer of class {} is not supported here", layer.class)))
            }
        }
    }

    /// A layer whose file holds its kernel twice, and a vector that training goes on from.
    fn spectral(&mut self, inner: &Layer, x: ValueId) -> Result<ValueId> {
        let value = self.wrapped(inner, x)?;
        let own = |name: &str| (self.uid, format!("{}/{}/{name}", self.path, inner.name));
        let held =
            ["kernel", "embeddings"].iter().find_map(|name| self.lowering.weights.get(&own(name)).copied());
        let kernel = held.ok_or_else(|| self.unsupported("a layer without a kernel"))?;
        let dims = self.sizes(kernel).iter().map(Size::known).collect::<Option<Vec<i64>>>();
        let dims = dims.ok_or_else(|| self.unsupported("a layer without a kernel"))?;
        let last = dims.last().copied().unwrap_or(1);
        self.fixed_weight("kernel", &dims, &crate::ir::Init::zeros())?;
        self.fixed_weight("vector_u", &[1, last], &crate::ir::Init::zeros())?;
        Ok(value)
    }

    /// Notes what the layer would do in training and does not do here.
    fn unheeded(&mut self, what: &str) {
        let line = format!("layer {}: {what}", self.path);
        self.lowering.graph.rules_mut().unheeded.push(line);
    }

    /// Whole numbers below `count` as vectors: of rows, or of single numbers.
    pub(super) fn categories(&mut self, x: ValueId, count: i64, mode: Encoding) -> Result<ValueId> {
        let mut sizes = self.sizes(x);
        let is_single = sizes.last() == Some(&Size::Known(1)) && sizes.len() > 1;
        sizes.push(Size::Known(1));
        let numbers = self.convert(x, DType::I64)?;
        let numbers = self.reshape(numbers, sizes)?;
        let all = self.iota(&[Size::Known(count)], 0);
        let equal = self.apply(Op::Compare(Compare::Eq), &[numbers, all])?;
        let equal = self.computed(equal)?;
        let axis = (self.rank(equal) - 2) as u32;
        let kind = match mode {
            Encoding::OneHot if !is_single => return Ok(equal),
            Encoding::OneHot | Encoding::Any => ReduceKind::Max,
            Encoding::Count => ReduceKind::Sum,
        };
        self.apply(Op::Reduce { kind, axes: vec![axis], keep: false }, &[equal])
    }

    fn prelu(&mut self, x: ValueId, init: &Init, shared: &[i64]) -> Result<ValueId> {
        let rank = self.rank(x);
        let mut dims = Vec::with_capacity(rank);
        for axis in 1..rank {
            dims.push(if shared.contains(&(axis as i64)) { 1 } else { self.known(x, axis)? });
        }
        let alpha = self.weight("alpha", &dims, init)?;
        let high = self.unary(Unary::Relu, x)?;
        let low = self.binary_scalar(Binary::Min, x, 0.0)?;
        let low = self.binary(Binary::Mul, low, alpha)?;
        self.binary(Binary::Add, high, low)
    }

    /// Which Keras wrote the model.
    pub(super) fn version(&self) -> KerasVersion {
        self.lowering.version
    }

    /// An error at this layer.
    pub(super) fn error(&self, message: &str) -> Error {
        Error::model(format!("layer {}", self.path), message)
    }

    /// Something at this layer that is not supported.
    pub(super) fn unsupported(&self, what: &str) -> Error {
        Error::Unsupported(Report::new(
            format!("layer {}", self.path),
            format!("{what} is not supported yet"),
        ))
    }

    pub(super) fn sizes(&self, value: ValueId) -> Vec<Size> {
        self.lowering.graph.ty(value).shape.sizes().to_vec()
    }

    pub(super) fn dtype(&self, value: ValueId) -> DType {
        self.lowering.graph.ty(value).dtype
    }

    pub(super) fn rank(&self, value: ValueId) -> usize {
        self.lowering.graph.ty(value).shape.rank()
    }

    /// The axis as a position, from the end where it is negative.
    pub(super) fn axis(&self, value: ValueId, axis: i64) -> Result<usize> {
        let rank = self.rank(value);
        let position = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(position)
            .ok()
            .filter(|&position| position < rank)
            .ok_or_else(|| self.error(&format!("axis {axis} does not exist in an input of rank {rank}")))
    }

    /// The size of an axis, which must be known.
    pub(super) fn known(&self, value: ValueId, axis: usize) -> Result<i64> {
        let sizes = self.lowering.graph.ty(value).shape.sizes();
        let Some(size) = sizes.get(axis) else {
            return Err(
                self.error(&format!("expected an input of rank over {axis}, found rank {}", sizes.len()))
            );
        };
        size.known().ok_or_else(|| self.open(axis))
    }

    /// The error for an axis whose size must be known and is not.
    pub(super) fn open(&self, axis: usize) -> Error {
        self.error(&format!("the size of axis {axis} must be known"))
            .with_help("fix the model's open dimensions: --dim NAME=N")
    }

    /// Error: the input has another rank.
    pub(super) fn expect_rank(&self, value: ValueId, rank: usize) -> Result<()> {
        let found = self.rank(value);
        if found == rank {
            return Ok(());
        }
        Err(self.error(&format!("expected an input of rank {rank}, found rank {found}")))
    }

    /// The product of sizes. Error: it overflows, or two factors are open.
    pub(super) fn product(&self, sizes: &[Size]) -> Result<Size> {
        let product = sizes.iter().try_fold(Size::Known(1), |product, size| product.mul(size));
        product.ok_or_else(|| {
            self.error("the product of the input's sizes overflows or has two open factors")
                .with_help("fix the model's open dimensions: --dim NAME=N")
        })
    }

    /// A value as a layer that disturbs it leaves it at inference.
    pub(super) fn disturbed(&mut self, x: ValueId, noise: Noise) -> Result<ValueId> {
        self.lowering.graph.disturbed(x, noise, self.source)
    }

    /// As a layer that drops elements within itself leaves what is dropped: of a probability of nothing, as it is. One draw
    /// stands for all elements along `shared`.
    pub(super) fn dropped(&mut self, x: ValueId, rate: f64, shared: &[u32]) -> Result<ValueId> {
        let Some(noise) = Noise::new(NoiseKind::Dropout, rate).filter(|_| rate > 0.0) else { return Ok(x) };
        let noise = Noise { shared: shared.to_vec(), ..noise };
        // The layer's own reshapes are none that drop, and a layer may drop with several probabilities.
        let source = Source::new(format!("{}/dropout", self.path), "Dropout", SourceRole::Data);
        let source = Source { consumer: Some(self.source), ..source };
        let source = self.lowering.graph.add_source(source);
        self.lowering.graph.disturbed(x, noise, source)
    }

    /// Says that a weight follows the batches and not a gradient.
    ///
    /// Not of a layer that is not trained: that normalises by what is stored, in training too.
    pub(super) fn statistic(&mut self, weight: ValueId, statistic: Statistic) {
        if !self.trainable {
            return;
        }
        self.lowering.graph.set_statistic(weight, statistic);
    }

    /// A state that begins with zeros, and that each batch leaves to the next one ([`Self::leave`]). Error: the layer is
    /// called twice.
    pub(super) fn state(&mut self, name: &str, sizes: Vec<Size>) -> Result<ValueId> {
        let path = format!("{}/{name}", self.path);
        if !self.lowering.weight_names.insert(path.clone()) {
            return Err(self.unsupported("a layer that keeps states and is called several times"));
        }
        let ty = Type::new(self.policy.compute, Shape::new(sizes));
        let graph = &mut self.lowering.graph;
        let line = format!("layer {}: states that are kept from batch to batch", self.path);
        if !graph.rules().untrained.contains(&line) {
            graph.rules_mut().untrained.push(line);
        }
        let source = graph.add_source(Source::new(&path, "state", SourceRole::Data));
        let value = graph.add_param(&path, ty, Init::zeros(), None, source);
        graph.set_state(value, State { grows: None });
        Ok(value)
    }

    /// Says what takes a state's place.
    pub(super) fn leave(&mut self, state: ValueId, next: ValueId) {
        self.lowering.left.push((state, next));
    }

    /// A weight that training never changes.
    pub(super) fn fixed_weight(&mut self, name: &str, dims: &[i64], init: &Init) -> Result<ValueId> {
        let trainable = std::mem::replace(&mut self.trainable, false);
        let weight = self.weight(name, dims, init);
        self.trainable = trainable;
        weight
    }

    /// A weight of the layer, in the type that the layer computes in. Made at the first call.
    pub(super) fn weight(&mut self, name: &str, dims: &[i64], init: &Init) -> Result<ValueId> {
        let ty = Type::new(self.policy.variable, Shape::known(dims));
        if ty.bytes().is_none() {
            return Err(self.error(&format!("weight {name} of sizes {dims:?} is too large")));
        }
        let path = format!("{}/{name}", self.path);
        let key = (self.uid, path);
        let value = match self.lowering.weights.get(&key) {
            Some(&value) => {
                if *self.lowering.graph.ty(value) != ty {
                    return Err(self.error(&format!(
                        "is called again with an input that needs sizes {dims:?} of weight {name}"
                    )));
                }
                value
            }
            None => {
                let (uid, path) = key;
                if !self.lowering.weight_names.insert(path.clone()) {
                    return Err(self.error(&format!("two weights have the name {path}")));
                }
                let graph = &mut self.lowering.graph;
                if !self.trainable || self.training.keeps(name) {
                    graph.rules_mut().frozen.insert(path.clone());
                }
                if let Some(penalty) = self.training.of(name) {
                    graph.rules_mut().penalties.insert(path.clone(), penalty);
                }
                let source = graph.add_source(Source::new(&path, "weight", SourceRole::Data));
                let value = graph.add_param(&path, ty, init.clone(), None, source);
                self.lowering.weights.insert((uid, path), value);
                value
            }
        };
        self.convert(value, self.policy.compute)
    }

    pub(super) fn convert(&mut self, value: ValueId, to: DType) -> Result<ValueId> {
        if self.dtype(value) == to { Ok(value) } else { self.apply(Op::Convert { to }, &[value]) }
    }

    /// The value in the type that the layer computes in.
    pub(super) fn computed(&mut self, value: ValueId) -> Result<ValueId> {
        self.convert(value, self.policy.compute)
    }

    pub(super) fn apply(&mut self, op: Op, operands: &[ValueId]) -> Result<ValueId> {
        self.lowering.graph.apply(op, operands, self.source)
    }

    /// All results of a node.
    pub(super) fn push(&mut self, op: Op, operands: &[ValueId]) -> Result<Vec<ValueId>> {
        let node = self.lowering.graph.push(op, operands, self.source)?;
        Ok(self.lowering.graph.results(node).collect())
    }

    /// A value of which training counts the steps of a mask alone.
    pub(super) fn counted(&mut self, x: ValueId, mask: ValueId) -> Result<ValueId> {
        if self.rank(mask) + 1 != self.rank(x) {
            return Err(self.error("is given a mask that has not one axis less than its input"));
        }
        self.lowering.graph.mark_counted(x, mask, self.source)
    }

    pub(super) fn unary(&mut self, unary: Unary, x: ValueId) -> Result<ValueId> {
        self.apply(Op::Unary(unary), &[x])
    }

    pub(super) fn binary(&mut self, binary: Binary, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.apply(Op::Binary(binary), &[x, y])
    }

    /// A constant scalar of the type of `like`.
    pub(super) fn scalar_like(&mut self, value: f64, like: ValueId) -> Result<ValueId> {
        let dtype = self.dtype(like);
        let tensor = match dtype {
            DType::F64 => Tensor::new(DType::F64, Vec::new(), value.to_le_bytes().to_vec())?,
            dtype if dtype.is_integer() && f64::from(value as f32) != value => {
                Tensor::from_i64(Vec::new(), &[value as i64])?
            }
            _ => Tensor::from_f32(Vec::new(), &[value as f32])?,
        };
        let constant = self.lowering.graph.add_constant(tensor, self.source);
        self.convert(constant, dtype)
    }

    pub(super) fn binary_scalar(&mut self, binary: Binary, x: ValueId, value: f64) -> Result<ValueId> {
        let scalar = self.scalar_like(value, x)?;
        self.binary(binary, x, scalar)
    }

    /// Makes room for a table. Error: with those before it the model's have too many elements.
    pub(super) fn list(&mut self, elements: i64) -> Result<()> {
        let all = self.lowering.table_elements.saturating_add(elements);
        if all > MOST_LISTED {
            return Err(self
                .unsupported(&format!("a model whose tables have more than {MOST_LISTED} elements in all")));
        }
        self.lowering.table_elements = all;
        Ok(())
    }

    /// A constant vector in the type that the layer computes in.
    pub(super) fn vector(&mut self, values: &[f64]) -> Result<ValueId> {
        self.vector_of(values.len(), values.iter().copied())
    }

    /// As [`Self::vector`], of so many numbers that are computed one after another.
    pub(super) fn vector_of(&mut self, count: usize, values: impl Iterator<Item = f64>) -> Result<ValueId> {
        let dtype = if self.policy.compute == DType::F64 { DType::F64 } else { DType::F32 };
        let mut bytes = Vec::with_capacity(count * dtype.size() as usize);
        for value in values {
            match dtype {
                DType::F64 => bytes.extend(value.to_le_bytes()),
                _ => bytes.extend((value as f32).to_le_bytes()),
            }
        }
        let tensor = Tensor::new(dtype, vec![count as u64], bytes)?;
        let constant = self.lowering.graph.add_constant(tensor, self.source);
        self.computed(constant)
    }

    /// Whole numbers, as positions are.
    pub(super) fn positions(&mut self, positions: &[i64]) -> Result<ValueId> {
        let tensor = Tensor::from_i64(vec![positions.len() as u64], positions)?;
        Ok(self.lowering.graph.add_constant(tensor, self.source))
    }

    pub(super) fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.lowering.graph.add_constant(tensor, self.source)
    }

    /// A tensor of zeros in the type that the layer computes in.
    pub(super) fn zeros(&mut self, sizes: Vec<Size>) -> Result<ValueId> {
        let tensor = Tensor::from_f32(Vec::new(), &[0.0])?;
        let zero = self.lowering.graph.add_constant(tensor, self.source);
        let zero = self.computed(zero)?;
        self.apply(Op::Broadcast { shape: Shape::new(sizes) }, &[zero])
    }

    /// Positions along an axis of a tensor of these sizes.
    pub(super) fn iota(&mut self, sizes: &[Size], axis: u32) -> ValueId {
        let ty = Type::new(DType::I64, Shape::new(sizes.iter().cloned()));
        self.lowering.graph.add_iota(ty, axis, self.source)
    }

    pub(super) fn reshape(&mut self, x: ValueId, sizes: Vec<Size>) -> Result<ValueId> {
        if self.lowering.graph.ty(x).shape.sizes() == sizes.as_slice() {
            return Ok(x);
        }
        self.apply(Op::Reshape { shape: Shape::new(sizes) }, &[x])
    }

    /// The value in these sizes, where axes of size 1 are as large as is asked for.
    pub(super) fn broadcast(&mut self, x: ValueId, sizes: Vec<Size>) -> Result<ValueId> {
        if self.lowering.graph.ty(x).shape.sizes() == sizes.as_slice() {
            return Ok(x);
        }
        self.apply(Op::Broadcast { shape: Shape::new(sizes) }, &[x])
    }

    pub(super) fn transpose(&mut self, x: ValueId, perm: &[usize]) -> Result<ValueId> {
        if perm.iter().enumerate().all(|(axis, &from)| axis == from) {
            return Ok(x);
        }
        self.apply(Op::Transpose { perm: perm.iter().map(|&axis| axis as u32).collect() }, &[x])
    }

    /// `size` elements from `start` along an axis.
    pub(super) fn slice(&mut self, x: ValueId, axis: usize, start: i64, size: i64) -> Result<ValueId> {
        let mut sizes = self.sizes(x);
        let mut starts = vec![Size::Known(0); sizes.len()];
        let steps = vec![1; sizes.len()];
        if let (Some(at), Some(count)) = (starts.get_mut(axis), sizes.get_mut(axis)) {
            *at = Size::Known(start);
            *count = Size::Known(size);
        }
        self.apply(Op::Slice(Box::new(Slice { starts, sizes, steps })), &[x])
    }

    /// The elements along an axis in reverse order.
    pub(super) fn reverse(&mut self, x: ValueId, axis: usize) -> Result<ValueId> {
        let sizes = self.sizes(x);
        let mut starts = vec![Size::Known(0); sizes.len()];
        let mut steps = vec![1; sizes.len()];
        let last = sizes.get(axis).and_then(|size| size.sub(&Size::Known(1)));
        starts[axis] = last.ok_or_else(|| self.error("a size overflows"))?;
        steps[axis] = -1;
        self.apply(Op::Slice(Box::new(Slice { starts, sizes, steps })), &[x])
    }

    pub(super) fn concat(&mut self, axis: usize, values: &[ValueId]) -> Result<ValueId> {
        match values {
            [single] => Ok(*single),
            _ => self.apply(Op::Concat { axis: axis as u32 }, values),
        }
    }

    /// The product of matrices.
    pub(super) fn matmul(&mut self, x: ValueId, y: ValueId, transpose_right: bool) -> Result<ValueId> {
        self.apply(Op::MatMul { transpose_left: false, transpose_right, wide: false, rounds: false }, &[x, y])
    }
}
