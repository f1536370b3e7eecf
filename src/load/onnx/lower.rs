//! From an ONNX graph to a [`Graph`]: inputs, initialisers, nodes in order, outputs.
//!
//! Each name of the ONNX graph has a [`Binding`]: its type, and what is known of it. A value of
//! the graph is made for it only when something reads it as data, so initialisers and shape
//! arithmetic that serve only as attributes leave no node behind.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use prost::Message;

use super::body::Scope;
use super::declared::agrees;
use super::dimension::{Apart, Repeats, Stated, dimension_name};
use super::function::Functions;
use super::known::{Items, Known};
use super::narrow::{self, Narrow, Texts};
use super::node::At;
use super::proto::{DimensionProto, GraphProto, NodeProto, TensorProto, TensorShapeProto, ValueInfoProto};
use super::trained::{AsTrained, Declared};
use super::{ops, sparse, tensor, trained};
use crate::csr::Csr;
use crate::error::{Error, Report, Result};
use crate::files::Folder;
use crate::ir::{
    Compare, Counted, DType, Data, DimId, Graph, Op, Shape, Size, Source, SourceId, SourceRole, Type, ValueId,
};
use crate::load::FindDims;
use crate::order::first_ready;

/// What a name of the ONNX graph stands for, where it is no tensor.
#[derive(Clone, Debug)]
pub(super) enum Form {
    Tensor,
    /// A list of bindings.
    Sequence(Rc<[usize]>),
    /// One binding, or nothing.
    Optional(Option<usize>),
}

/// What a name of the ONNX graph stands for.
pub(super) struct Binding {
    /// The source that makes it.
    pub(super) source: SourceId,
    pub(super) ty: Type,
    /// Its value in the graph, once something read it.
    pub(super) value: Option<ValueId>,
    /// Its elements, where it is small and they are known.
    pub(super) known: Option<Known>,
    /// Whether it is computed from parameters: its known elements serve those who need them as numbers, its value is
    /// computed, as parameters may change.
    pub(super) of_weights: bool,
    /// An initialiser that nothing has read yet.
    initializer: Option<Box<TensorProto>>,
    /// Whether it is a tensor at all; else type, value and elements say nothing.
    pub(super) form: Form,
    /// Where only the first elements of an axis count.
    pub(super) ragged: Option<Ragged>,
    /// What its bytes hold, where that is not what their type says.
    pub(super) narrow: Option<Narrow>,
}

/// How many elements of an axis count, where that depends on data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ragged {
    pub(super) axis: usize,
    /// One i64.
    pub(super) count: ValueId,
    /// The tensor is a vector of sizes: its element `axis` is the size that is planned, not the count.
    pub(super) is_size: bool,
}

impl Ragged {
    /// Only the first elements of an axis count.
    pub(super) fn along(axis: usize, count: ValueId) -> Self {
        Self { axis, count, is_size: false }
    }
}

/// What a file says beside its graph.
pub(super) struct File {
    /// The version of each domain's operators.
    pub(super) opsets: BTreeMap<String, i64>,
    /// Operators that the file defines.
    pub(super) functions: Functions,
    /// Where external data lies.
    pub(super) folder: Folder,
    /// One of torch's exporters wrote it.
    pub(super) is_of_torch: bool,
}

/// The state of a lowering.
pub(super) struct Lowering {
    pub(super) graph: Graph,
    bindings: Vec<Binding>,
    /// The names of the graph, then those of the body that is lowered, of the body in that, and so on.
    pub(super) scopes: Vec<Scope>,
    pub(super) file: File,
    /// Nodes of bodies that were lowered, each as often as it was.
    pub(super) inlined: usize,
    /// Entries of all sequences so far.
    pub(super) listed: usize,
    /// How often a dimension was replaced because an operation fits only so.
    pub(super) equations: usize,
    /// Steps of recurrent layers that were spelled out.
    pub(super) steps: i64,
    /// Tables of transforms, and how many elements they have together.
    pub(super) tables: HashMap<TableKey, ValueId>,
    pub(super) table_elements: i64,
    /// Texts that values are numbers of.
    pub(super) texts: Texts,
    /// Parameters that begin as others do, by their names.
    pub(super) untied: HashMap<String, ValueId>,
    /// Names of initialisers that are parameters, also where they have one element.
    parameters: HashSet<String>,
    /// What was exported as it trains.
    pub(super) trained: AsTrained,
}

/// What a table of a transform is, and its type and sizes.
pub(super) type TableKey = (&'static str, DType, Vec<i64>);

/// Lowers the graph of a file. `dims` binds dimensions at once, `more` those that it finds once it sees the inputs.
///
/// Errors: everything that is not supported, at once; else the first node that is wrong.
pub(super) fn lower(
    proto: GraphProto,
    file: File,
    dims: &BTreeMap<String, i64>,
    more: FindDims<'_>,
) -> Result<Graph> {
    let declared = Declared::of(&proto.value_info);
    let mut graph = lower_named(proto, file, dims, more, None)?;
    declared.settle(&mut graph);
    Ok(graph)
}

/// Names of sources with their operations, and which of them each node is of.
pub(super) type Naming<'a> = (&'a [(String, String)], &'a [usize]);

/// As [`lower`], of a graph whose nodes are parts of what another format calls nodes.
pub(super) fn lower_named(
    proto: GraphProto,
    file: File,
    dims: &BTreeMap<String, i64>,
    more: FindDims<'_>,
    naming: Option<Naming<'_>>,
) -> Result<Graph> {
    let is_of_torch = file.is_of_torch;
    let mut graph = lowered(proto, file, dims, more, naming)?.graph;
    if is_of_torch {
        // An operator has no field for which variance is kept.
        graph.follow_sample_variances();
    }
    Ok(graph)
}

/// The types of some values of a file, in its own terms; none of optional values and of sequences of nothing. A size that
/// depends on data is left open.
pub(super) fn types(
    proto: GraphProto,
    file: File,
    dims: &BTreeMap<String, i64>,
    names: &BTreeSet<String>,
) -> Result<Vec<Option<ValueInfoProto>>> {
    let lowering = lowered(proto, file, dims, &mut |_| Ok(BTreeMap::new()), None)?;
    let dim = |size: &Size| match (size.known(), size.terms()) {
        (Some(size), _) => DimensionProto { dim_value: Some(size), dim_param: None },
        (None, &[(dim, 1)]) if size.constant() == 0 => {
            let name = lowering.graph.dims()[dim.index()].name.clone();
            DimensionProto { dim_value: None, dim_param: Some(name) }
        }
        _ => DimensionProto::default(),
    };
    let of = |name: &String| {
        let binding = &lowering.bindings[lowering.find(name)?];
        match &binding.form {
            Form::Tensor => {
                let mut dim: Vec<DimensionProto> = binding.ty.shape.sizes().iter().map(dim).collect();
                let counted = binding.ragged.filter(|of| !of.is_size);
                if let Some(size) = counted.and_then(|of| dim.get_mut(of.axis)) {
                    *size = DimensionProto::default();
                }
                Some(super::parts::value_info(name, binding.element_number(), TensorShapeProto { dim }))
            }
            Form::Sequence(items) => {
                let first = &lowering.bindings[*items.first()?];
                Some(super::parts::sequence_info(name, first.element_number()))
            }
            Form::Optional(_) => None,
        }
    };
    Ok(names.iter().map(of).collect())
}

fn lowered(
    mut proto: GraphProto,
    file: File,
    dims: &BTreeMap<String, i64>,
    more: FindDims<'_>,
    naming: Option<Naming<'_>>,
) -> Result<Lowering> {
    let mut lowering = Lowering {
        graph: Graph::new(proto.name.as_str()),
        bindings: Vec::new(),
        scopes: vec![Scope::default()],
        file,
        inlined: 0,
        listed: 0,
        equations: 0,
        steps: 0,
        tables: HashMap::new(),
        table_elements: 0,
        texts: Texts::default(),
        untied: HashMap::new(),
        // Who builds a model of another form says himself what of it is trained.
        parameters: match naming {
            None => trained::parameters(&proto),
            Some(_) => trained::statistics(&proto),
        },
        trained: AsTrained::default(),
    };
    let initializers = sparse::initializers(&mut proto)?;
    // What is stated of arrays beside them, as converters leave it, says nothing.
    let arrays: HashSet<String> = initializers.iter().map(|array| array.name.clone()).collect();
    proto.value_info.retain(|value| !arrays.contains(&value.name));
    lowering.initializers(initializers, "")?;
    // A program that another format exports has proven that axes of one name are equally long.
    let repeats = if naming.is_some() { Repeats::Equal } else { Repeats::Apart(Apart::default()) };
    let repeats = lowering.inputs(&proto.input, &Stated::of(&proto), dims, repeats)?;
    let found = more(&lowering.graph)?;
    let contradiction = lowering.settle(&repeats, &found)?;
    let lowered = lowering.all(&proto, naming);
    // Files may call axes alike that the network never compares. Where it does, the arrays are at fault.
    match (lowered, contradiction) {
        (Err(error), Some(contradiction)) if !matches!(error, Error::Unsupported(_)) => {
            Err(contradiction.with_help(error.to_string()))
        }
        (lowered, _) => lowered,
    }
}

impl Lowering {
    /// Everything behind the inputs.
    fn all(mut self, proto: &GraphProto, naming: Option<Naming<'_>>) -> Result<Self> {
        let order = order(&proto.node, |name| self.has(name))?;
        let sources = match naming {
            Some((names, of_node)) => {
                let source =
                    |(name, op): &(String, String)| Source::new(name.as_str(), op.as_str(), SourceRole::Node);
                let sources: Vec<SourceId> =
                    names.iter().map(|name| self.graph.add_source(source(name))).collect();
                of_node.iter().map(|&index| sources[index]).collect()
            }
            None => self.sources(&proto.node, ""),
        };
        self.nodes(&proto.node, &sources, &order)?;
        self.outputs(&proto.output)?;
        self.compare_declared(&proto.output, &proto.value_info)?;
        self.trained.lines().into_iter().for_each(|line| self.graph.note(line));
        self.graph.record_consumers();
        Ok(self)
    }
}

impl Lowering {
    /// Binds initialisers, whose sources have names that begin with `prefix`.
    pub(super) fn initializers(&mut self, initializers: Vec<TensorProto>, prefix: &str) -> Result<()> {
        for mut proto in initializers {
            let name = std::mem::take(&mut proto.name);
            let place = |error: Error| error.within(&format!("initializer {name}"));
            let mut texts = None;
            if proto.data_type == narrow::STRING {
                let (numbers, table) = self.texts.numbered(proto).map_err(place)?;
                (proto, texts) = (numbers, Some(Narrow::Text(table)));
            }
            let header = tensor::header(&proto).map_err(place)?;
            let source = Source::new(format!("{prefix}{name}"), "Initializer", SourceRole::Data);
            let source = self.graph.add_source(source);
            let narrow = texts.or_else(|| Narrow::from_number(proto.data_type));
            let small = header.elements <= super::known::LIMIT && !tensor::is_external(&proto);
            let known = match small {
                true if !matches!(narrow, Some(Narrow::Float(_))) => {
                    Known::of_tensor(&tensor::inline(proto.clone(), &header).map_err(place)?)
                }
                _ => None,
            };
            let ty =
                Type::new(header.dtype, header.dims.iter().map(|&dim| Size::Known(dim as i64)).collect());
            let initializer = Some(Box::new(proto));
            let form = Form::Tensor;
            let of_weights = self.is_weight(&name, &ty);
            let binding = Binding {
                source,
                ty,
                value: None,
                known,
                of_weights,
                initializer,
                form,
                ragged: None,
                narrow,
            };
            self.bind(name, binding)?;
        }
        Ok(())
    }

    /// Inputs that are not initialisers too (those only give a default to what nobody hands over).
    fn inputs(
        &mut self,
        inputs: &[ValueInfoProto],
        stated: &Stated,
        dims: &BTreeMap<String, i64>,
        mut repeats: Repeats,
    ) -> Result<Repeats> {
        let mut unknown: Vec<&String> = dims.keys().collect();
        let mut seen = HashSet::new();
        for input in inputs {
            let place = || format!("input {}", input.name);
            if !seen.insert(input.name.as_str()) {
                return Err(Error::model(place(), "two inputs have this name"));
            }
            if let Some(default) = self.find(&input.name) {
                let ty = self.bindings[default].ty.clone();
                agrees(input, &ty, "its initialiser").map_err(|error| error.within(&place()))?;
                continue;
            }
            let ty =
                self.input_type(input, stated, dims, &mut unknown).map_err(|error| error.within(&place()))?;
            let ty = self.with_repeats(input, ty, &mut repeats);
            let source = Source::new(input.name.as_str(), "Input", SourceRole::Data);
            let source = self.graph.add_source(source);
            let value = self.graph.add_input(input.name.as_str(), ty.clone(), source);
            let known = nothing(&ty);
            let tensor = input.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref());
            let narrow = tensor.and_then(|tensor| Narrow::from_number(tensor.elem_type));
            let binding = Binding { known, narrow, ..Binding::of_value(&self.graph, source, value) };
            self.bind(input.name.clone(), binding)?;
        }
        match unknown.first() {
            None => Ok(repeats),
            Some(name) => {
                let known: Vec<&str> = self.graph.dims().iter().map(|dim| dim.name.as_str()).collect();
                let help = match known.as_slice() {
                    [] => "the model has no other named dimensions".to_owned(),
                    known => format!("its other dimensions are: {}", known.join(", ")),
                };
                Err(Error::usage(format!("dimension {name}"), "the model has no such dimension")
                    .with_help(help))
            }
        }
    }

    fn input_type(
        &mut self,
        input: &ValueInfoProto,
        named: &Stated,
        dims: &BTreeMap<String, i64>,
        unknown: &mut Vec<&String>,
    ) -> Result<Type> {
        let unsupported = |message: &str| Error::Unsupported(Report::new("", message));
        let Some(tensor) = input.r#type.as_ref().and_then(|ty| ty.tensor_type.as_ref()) else {
            return Err(unsupported("inputs that are not tensors are not supported yet"));
        };
        let dtype = tensor::held(tensor.elem_type)?;
        let Some(shape) = &tensor.shape else {
            return Err(unsupported("inputs without a shape are not supported yet"));
        };
        let mut sizes = Vec::with_capacity(shape.dim.len());
        for (axis, dim) in shape.dim.iter().enumerate() {
            // A size of -1 is how some exporters say that any size will do.
            if let Some(size) = dim.dim_value.filter(|&size| size >= 0) {
                sizes.push(Size::Known(size));
                continue;
            }
            let stated = dim.dim_param.as_deref().unwrap_or_default();
            let name = dimension_name(stated).unwrap_or_else(|| {
                format!("{}_{axis}", dimension_name(&input.name).unwrap_or_else(|| "input".to_owned()))
            });
            let bound = dims.get_key_value(&name).or_else(|| dims.get_key_value(stated));
            match bound {
                Some((_, &value)) if value < 0 => {
                    return Err(Error::usage(format!("dimension {name}"), format!("{value} is less than 0")));
                }
                Some((key, &value)) => {
                    unknown.retain(|other| *other != key);
                    sizes.push(Size::Known(value));
                }
                None => {
                    let mut of = |name: &str| match dims.get(name) {
                        Some(&value) => Size::Known(value),
                        None => Size::dim(self.graph.dim(name)),
                    };
                    let size = named.size(stated, &mut of);
                    sizes.push(size.unwrap_or_else(|| Size::dim(self.graph.dim(&name))));
                }
            }
        }
        let ty = Type::new(dtype, Shape::new(sizes));
        match ty.shape.dims().is_some() && ty.bytes().is_none() {
            true => Err(Error::model("", "its size overflows")),
            false => Ok(ty),
        }
    }

    /// One source for each node, under its name, or its first output's where it has none. A name
    /// that is taken gets `#2`, `#3`, ... added, so that names stay unique.
    pub(super) fn sources(&mut self, nodes: &[NodeProto], prefix: &str) -> Vec<SourceId> {
        let mut taken: HashMap<String, u32> = HashMap::new();
        let mut sources = Vec::with_capacity(nodes.len());
        for node in nodes {
            let output = node.output.iter().find(|name| !name.is_empty());
            let base = match (&node.name, output) {
                (name, _) if !name.is_empty() => name,
                (_, Some(output)) => output,
                (_, None) => &node.op_type,
            };
            let mut name = base.clone();
            while taken.contains_key(&name) {
                let count = taken.entry(base.clone()).or_insert(1);
                *count += 1;
                name = format!("{base}#{count}");
            }
            taken.insert(name.clone(), 1);
            let source = Source::new(format!("{prefix}{name}"), node.op_type.as_str(), SourceRole::Node);
            sources.push(self.graph.add_source(source));
        }
        sources
    }

    pub(super) fn nodes(&mut self, nodes: &[NodeProto], sources: &[SourceId], order: &[usize]) -> Result<()> {
        let mut unsupported: Vec<Report> = Vec::new();
        let mut wrong: Option<Error> = None;
        for &index in order {
            let (node, source) = (&nodes[index], sources[index]);
            // What reads a lost result is looked up all the same, to report it if it is not
            // supported either.
            let result = match node.input.iter().any(|name| self.is_lost(name)) {
                true => ops::find(self, node).map(|_| self.lose(node)),
                false => self.fitted(node, source)?,
            };
            let Err(error) = result else { continue };
            self.lose(node);
            let error = error.within(&format!("node {}", self.graph.source(source).name));
            match error {
                Error::Unsupported(report) => unsupported.push(report),
                other => wrong = wrong.or(Some(other)),
            }
        }
        match (unsupported.first(), wrong) {
            // One is told once.
            (Some(first), _) if unsupported.len() == 1 => Err(Error::Unsupported(first.clone())),
            (Some(first), _) => Err(Error::Unsupported(
                first.clone().details(unsupported.iter().map(ToString::to_string).collect()),
            )),
            (None, Some(wrong)) => Err(wrong),
            (None, None) => Ok(()),
        }
    }

    /// Lowers a node, where it fits only so with dimensions replaced. The outer error ends the reading.
    fn fitted(&mut self, node: &NodeProto, source: SourceId) -> Result<Result<()>> {
        loop {
            let result = self.node(node, source);
            if result.is_ok() || !self.equate()? {
                return Ok(result);
            }
        }
    }

    fn node(&mut self, node: &NodeProto, source: SourceId) -> Result<()> {
        let found = ops::find(self, node)?;
        let inputs: Result<Vec<Option<usize>>> = node
            .input
            .iter()
            .map(|name| match name.as_str() {
                "" => Ok(None),
                name => match self.find(name) {
                    Some(binding) => Ok(Some(binding)),
                    None => Err(Error::model("", format!("its input {name} is made by nothing"))),
                },
            })
            .collect();
        let inputs = inputs?;
        for &input in inputs.iter().flatten() {
            let maker = self.bindings[input].source;
            if maker == source {
                continue;
            }
            let consumer = &mut self.graph.source_mut(maker).consumer;
            *consumer = consumer.or(Some(source));
        }
        let outputs = match found {
            ops::Found::Operator(entry, opset) => {
                let mut at = At::new(self, node, source, opset, inputs);
                ops::lower(entry, &mut at)?;
                at.finish()?
            }
            ops::Found::Function(index) => self.call(index, node, source, &inputs)?,
        };
        for (name, output) in node.output.iter().zip(outputs) {
            if name.is_empty() {
                continue;
            }
            let Some(binding) = output else {
                return Err(Error::Unsupported(Report::new(
                    "",
                    format!("output {name} of op {} is not supported yet", node.op_type),
                )));
            };
            self.bind(name.clone(), binding)?;
        }
        Ok(())
    }

    /// The tensors of a sequence as outputs of their own, `NAME/0` and so on.
    fn sequence_output(&mut self, name: &str, items: &[usize]) -> Result<()> {
        for (number, &item) in items.iter().enumerate() {
            let (value, ragged) = (self.value(item)?, self.bindings[item].ragged);
            if ragged.is_some() {
                return Err(not_counted(name));
            }
            self.graph.add_output(format!("{name}/{number}"), value);
        }
        self.graph.note(format!(
            "output {name}: a sequence is given as {} outputs, {name}/0 and so on",
            items.len()
        ));
        Ok(())
    }

    /// Sizes that are planned, with the one that data has in its place.
    fn real_sizes(&mut self, planned: ValueId, of: Ragged) -> Result<ValueId> {
        let (ty, source) = (self.graph.ty(planned).clone(), self.graph.maker(of.count).source);
        let count = self.graph.push_inferred(Op::Convert { to: ty.dtype }, &[of.count], source)?;
        let count = self.graph.node(count).first_result;
        if ty.shape.rank() == 0 {
            return Ok(count);
        }
        let place = self.graph.add_constant(tensor::scalar(DType::I64, of.axis as f64)?, source);
        let places = self.graph.add_iota(Type::new(DType::I64, ty.shape), 0, source);
        let is_it = self.graph.push_inferred(Op::Compare(Compare::Eq), &[places, place], source)?;
        let is_it = self.graph.node(is_it).first_result;
        let sizes = self.graph.push_inferred(Op::Select, &[is_it, count, planned], source)?;
        Ok(self.graph.node(sizes).first_result)
    }

    fn outputs(&mut self, outputs: &[ValueInfoProto]) -> Result<()> {
        let mut seen = HashSet::new();
        let mut counts = Vec::new();
        for output in outputs {
            let place = || format!("output {}", output.name);
            let Some(binding) = self.find(&output.name) else {
                return Err(Error::model(place(), "it is made by nothing"));
            };
            if !seen.insert(output.name.as_str()) {
                // Exporters list a tensor once for each time that it is returned.
                self.graph.note(format!("output {}: the file lists it twice, it is given once", output.name));
                continue;
            }
            if let Form::Sequence(items) = &self.bindings[binding].form {
                let items = items.clone();
                self.sequence_output(&output.name, &items).map_err(|error| error.within(&place()))?;
                continue;
            }
            let mut value = self.value(binding).map_err(|error| error.within(&place()))?;
            let mut ragged = self.bindings[binding].ragged;
            if let Some(of) = ragged.take_if(|of| of.is_size) {
                value = self.real_sizes(value, of).map_err(|error| error.within(&place()))?;
            }
            if let Some(Narrow::Text(table)) = self.bindings[binding].narrow {
                let texts = self.texts.shown(table);
                self.graph.note(format!("output {}: texts are given as numbers: {texts}", output.name));
            }
            self.graph.add_output(output.name.as_str(), value);
            if let Some(Ragged { axis, count, .. }) = ragged {
                counts.push((output.name.clone(), axis as u32, count));
            }
        }
        if outputs.is_empty() {
            return Err(Error::model("", "the graph has no outputs"));
        }
        let mut named: BTreeMap<ValueId, String> = BTreeMap::new();
        for (name, axis, count) in counts {
            let by = match named.get(&count) {
                Some(by) => by.clone(),
                None => {
                    let mut by = format!("{name}#count");
                    while seen.contains(by.as_str()) {
                        by.push('#');
                    }
                    self.graph.add_output(by.as_str(), count);
                    named.insert(count, by.clone());
                    by
                }
            };
            self.graph.count_output(&name, Counted { axis, by });
        }
        Ok(())
    }

    fn bind(&mut self, name: String, binding: Binding) -> Result<()> {
        let index = self.add_binding(binding);
        self.name(name, index)
    }

    pub(super) fn add_binding(&mut self, binding: Binding) -> usize {
        self.bindings.push(binding);
        self.bindings.len() - 1
    }

    /// The version of the operators of a domain that the model, or the function that is lowered, asks for.
    pub(super) fn opset(&self, domain: &str) -> Option<i64> {
        self.opsets().get(if domain == "ai.onnx" { "" } else { domain }).copied()
    }

    pub(super) fn bindings_mut(&mut self) -> &mut [Binding] {
        &mut self.bindings
    }

    /// The type of what has this name; none where nothing has.
    pub(super) fn type_of(&self, name: &str) -> Option<&Type> {
        self.find(name).map(|binding| &self.bindings[binding].ty)
    }

    pub(super) fn binding(&self, index: usize) -> &Binding {
        &self.bindings[index]
    }

    /// The value of a binding in the graph, made when first asked for.
    pub(super) fn value(&mut self, index: usize) -> Result<ValueId> {
        if let Some(value) = self.bindings[index].value {
            return Ok(value);
        }
        let binding = &mut self.bindings[index];
        let source = binding.source;
        match &binding.form {
            Form::Tensor => {}
            Form::Sequence(_) => return Err(not_a_tensor("a sequence")),
            Form::Optional(_) => return Err(not_a_tensor("an optional value")),
        }
        let value = match (binding.initializer.take(), binding.known.clone()) {
            (Some(proto), _) => self.initializer(*proto, source)?,
            (None, Some(known)) => make(&mut self.graph, &known, source)?,
            (None, None) => return Err(Error::Internal("a binding without a value".to_owned())),
        };
        self.bindings[index].value = Some(value);
        Ok(value)
    }

    /// Whether an initialiser of this type is a parameter rather than a constant.
    fn is_weight(&self, name: &str, ty: &Type) -> bool {
        let more_than_a_number = match ty.elements() {
            Some(0) | None => false,
            Some(1) => self.parameters.contains(name),
            Some(_) => true,
        };
        ty.dtype.is_float() && more_than_a_number
    }

    /// Floats of more than one element, parameters of one, bytes that are too many to be arithmetic on sizes, and data in
    /// other files become parameters; the rest constants.
    fn initializer(&mut self, mut proto: TensorProto, source: SourceId) -> Result<ValueId> {
        let name = self.graph.source(source).name.clone();
        let place = |error: Error| error.within(&format!("initializer {name}"));
        let header = tensor::header(&proto).map_err(place)?;
        let init = tensor::initialiser(&name, &header);
        let ty = Type::new(header.dtype, header.dims.iter().map(|&dim| Size::Known(dim as i64)).collect());
        if tensor::is_external(&proto) {
            tensor::read_packed(&mut proto, &header, &self.file.folder).map_err(place)?;
        }
        if tensor::is_external(&proto) {
            let data = tensor::external(&proto, &header, &self.file.folder).map_err(place)?;
            return Ok(self.graph.add_param(name.as_str(), ty, init, Some(data), source));
        }
        let data = tensor::inline(proto, &header).map_err(place)?;
        let bytes = header.dtype.size() == 1 && header.dtype.is_integer();
        Ok(match self.is_weight(&name, &ty) || bytes && header.elements > super::known::LIMIT {
            true => self.graph.add_param(name.as_str(), ty, init, Some(Data::Inline(data)), source),
            false => self.graph.add_constant(data, source),
        })
    }
}

impl Binding {
    /// A binding of a value.
    pub(super) fn of_value(graph: &Graph, source: SourceId, value: ValueId) -> Self {
        let ty = graph.ty(value).clone();
        Self { source, ty, value: Some(value), ..Self::of_form(source, Form::Tensor) }
    }

    /// ONNX's number of its elements' type.
    fn element_number(&self) -> i32 {
        self.narrow.map_or_else(|| tensor::number(self.ty.dtype), Narrow::number)
    }

    /// A binding of known elements.
    pub(super) fn of_known(source: SourceId, known: Known) -> Self {
        let ty = known.ty();
        Self { source, ty, known: Some(known), ..Self::of_form(source, Form::Tensor) }
    }

    /// A binding of what is no tensor.
    pub(super) fn of_form(source: SourceId, form: Form) -> Self {
        let ty = Type::new(DType::Bool, Shape::new([]));
        let of_weights = false;
        Self {
            source,
            ty,
            value: None,
            known: None,
            of_weights,
            initializer: None,
            form,
            ragged: None,
            narrow: None,
        }
    }

    /// Another name for a binding that is no initialiser.
    pub(super) fn same(&self) -> Self {
        Self {
            source: self.source,
            ty: self.ty.clone(),
            value: self.value,
            known: self.known.clone(),
            of_weights: self.of_weights,
            initializer: None,
            form: self.form.clone(),
            ragged: self.ragged,
            narrow: self.narrow,
        }
    }

    /// True where the binding is an initialiser that nothing has read yet.
    pub(super) fn is_pending(&self) -> bool {
        self.initializer.is_some()
    }
}

fn not_counted(name: &str) -> Error {
    let message = "a size that depends on data as an output is not supported yet";
    Error::Unsupported(Report::new(format!("output {name}"), message))
}

fn not_a_tensor(what: &str) -> Error {
    Error::Unsupported(Report::new("", format!("{what} where a tensor is expected is not supported yet")))
}

/// The elements of a tensor that has none, which need no data to be known.
fn nothing(ty: &Type) -> Option<Known> {
    let empty = ty.elements() == Some(0) && !ty.dtype.is_float();
    let dims = ty.shape.dims()?.into_iter().map(|dim| u64::try_from(dim).ok()).collect::<Option<_>>()?;
    empty.then_some(Known { dtype: ty.dtype, dims, items: Items::Sizes(Vec::new()) })
}

/// Known elements as a value of the graph.
pub(super) fn make(graph: &mut Graph, known: &Known, source: SourceId) -> Result<ValueId> {
    if let Some(tensor) = known.to_tensor()? {
        return Ok(graph.add_constant(tensor, source));
    }
    let sizes = known.sizes().unwrap_or_default().to_vec();
    let mut value = graph.add_sizes(sizes, known.rank() == 0, source);
    if known.rank() > 1 {
        value = graph.apply(Op::Reshape { shape: known.ty().shape }, &[value], source)?;
    }
    if known.dtype != graph.ty(value).dtype {
        value = graph.apply(Op::Convert { to: known.dtype }, &[value], source)?;
    }
    Ok(value)
}

/// What a node reads, also within graphs that are its attributes.
pub(super) fn uses<'g>(node: &'g NodeProto, inner: &'g [GraphProto]) -> impl Iterator<Item = &'g str> {
    let nodes = std::iter::once(node).chain(inner.iter().flat_map(|graph| &graph.node));
    let of_nodes = nodes.flat_map(|node| node.input.iter().map(String::as_str));
    let of_graphs = inner.iter().flat_map(|graph| graph.output.iter().map(|output| output.name.as_str()));
    of_nodes.chain(of_graphs).filter(|name| !name.is_empty())
}

/// The graphs that are attributes of a node, and those of their nodes, without recursion.
pub(super) fn inner(node: &NodeProto) -> Result<Vec<GraphProto>> {
    let graphs = |node: &NodeProto| -> Vec<Vec<u8>> {
        node.attribute.iter().filter_map(|attribute| attribute.g.clone()).collect()
    };
    let mut left = graphs(node);
    let mut found = Vec::new();
    while let Some(bytes) = left.pop() {
        let graph = GraphProto::decode(&bytes[..])
            .map_err(|error| Error::format("", format!("damaged graph of node {}: {error}", node.name)))?;
        left.extend(graph.node.iter().flat_map(graphs));
        found.push(graph);
    }
    Ok(found)
}

/// What graphs make themselves or are given, which may have the name of something outside.
fn made_within(inner: &[GraphProto]) -> HashSet<&str> {
    let given = inner.iter().flat_map(|graph| &graph.input).map(|input| input.name.as_str());
    let stored = inner.iter().flat_map(|graph| &graph.initializer).map(|array| array.name.as_str());
    let made = inner.iter().flat_map(|graph| &graph.node).flat_map(|node| &node.output).map(String::as_str);
    given.chain(stored).chain(made).collect()
}

/// An order in which each node stands after the makers of what it and the graphs in it read: the file's own where that
/// is one, as ONNX demands, else the first in file order that is ready goes first.
///
/// Errors: a result made twice, a cycle, a damaged graph. O(nodes log nodes + inputs).
pub(super) fn order(nodes: &[NodeProto], is_known: impl Fn(&str) -> bool) -> Result<Vec<usize>> {
    let mut maker: HashMap<&str, u32> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            if is_known(output) || maker.insert(output, index as u32).is_some() {
                return Err(Error::model(format!("value {output}"), "it is made twice"));
            }
        }
    }
    let mut makers = Csr::new();
    for node in nodes {
        let within = inner(node)?;
        let own = made_within(&within);
        let made = uses(node, &within).filter(|name| !own.contains(name)).filter_map(|name| maker.get(name));
        made.for_each(|&maker| makers.push(maker));
        makers.end_row();
    }
    first_ready(&makers).map_err(|cycle| {
        let name = cycle.last().map_or("", |&index| {
            let node = &nodes[index];
            if node.name.is_empty() { node.output.first().map_or("", String::as_str) } else { &node.name }
        });
        Error::model(format!("node {name}"), "it is on a cycle: it reads what is made of its own results")
    })
}

/// The dimensions' names, for messages.
pub(super) fn show(graph: &Graph, size: &Size) -> String {
    let name = |dim: DimId| graph.dim_name(dim);
    size.display(&name).to_string()
}
