//! Walks an exported program: inputs, arrays, nodes in order, outputs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use serde_json::Value;

use super::call::Emit;
use super::core::is_core;
use super::ops;
use super::schema::{Argument, Document, InMemory, Node, StoredArray, TensorMeta, size};
use crate::error::{Error, Report, Result};
use crate::ir::{Beside, DType, Data, Graph, Limit, Tensor};
use crate::load::onnx::model_builder::{Attribute, Bytes, Dimension, ModelBuilder};

/// A program as a graph of ONNX operators.
pub(super) struct Built<'d> {
    pub(super) model: ModelBuilder,
    /// By the name of an output that a buffer becomes, the buffer's.
    pub(super) buffers: BTreeMap<String, String>,
    pub(super) arrays: Vec<OfModule<'d>>,
}

/// An array of the module.
pub(super) struct OfModule<'d> {
    /// What the graph calls it: of arrays that lie in the same bytes, the name of the first.
    own: String,
    /// What the module calls it.
    path: &'d str,
    /// Whether it is in the module's `state_dict`.
    is_state: bool,
    stored: &'d StoredArray,
}

/// Tells a graph what the module's `state_dict` has: names of parameters, and arrays that the graph does not read, which lie in
/// the archive. Error: digits that are none.
pub(super) fn name_state(graph: &mut Graph, arrays: &[OfModule<'_>], archive: Option<&Path>) -> Result<()> {
    let read: HashSet<String> = graph.params().iter().map(|param| param.name.clone()).collect();
    let names = &mut graph.rules_mut().arrays;
    for array in arrays {
        if array.is_state && array.stored.meta.is_complex() {
            names.complex.insert(array.path.to_owned());
        }
        if read.contains(&array.own) {
            let written = names.written.entry(array.own.clone()).or_default();
            written.extend(array.is_state.then(|| array.path.to_owned()));
            if array.path != array.own {
                names.aliases.entry(array.own.clone()).or_default().push(array.path.to_owned());
            }
        } else if array.is_state {
            names.beside.extend(beside(array, archive).map_err(|error| error.within(array.path))?);
        }
    }
    names.written.retain(|own, written| !matches!(&written[..], [one] if one == own));
    Ok(())
}

/// None where the array is of numbers, or in an order, that only programs read.
fn beside(array: &OfModule<'_>, archive: Option<&Path>) -> Result<Option<Beside>> {
    let OfModule { path, stored, .. } = array;
    let (Ok(dtype), Some(InMemory::Rows(dims))) = (stored.meta.dtype(), stored.meta.in_memory()) else {
        return Ok(None);
    };
    if stored.meta.small_float().is_some() {
        return Ok(None);
    }
    let parts = stored.meta.is_complex().then_some(2);
    let dims = dims.into_iter().chain(parts);
    let Some(dims) = dims.map(|dim| u64::try_from(dim).ok()).collect::<Option<Vec<u64>>>() else {
        return Ok(None);
    };
    let data = match (&stored.bytes, &stored.digits, archive) {
        (Some(bytes), ..) => Data::Inline(Tensor::new(dtype, dims.clone(), bytes.clone())?),
        (None, Some(digits), _) => Data::Inline(Tensor::new(dtype, dims.clone(), from_digits(digits)?)?),
        (None, None, Some(archive)) => {
            Data::File { path: archive.to_owned(), offset: stored.offset, length: stored.length }
        }
        (None, None, None) => return Ok(None),
    };
    Ok(Some(Beside { name: (*path).to_owned(), dtype, dims, data }))
}

/// The program as a graph of ONNX operators.
///
/// Errors: what is not supported, all at once; else the first node that is wrong.
pub(super) fn build<'d>(document: &'d Document, model: ModelBuilder, inputs: &Inputs) -> Result<Built<'d>> {
    let module = &document.program.graph_module;
    let graph = &module.graph;
    for (name, meta) in &graph.tensor_values {
        if meta.sizes.iter().any(|dim| size(dim).is_some_and(|dim| dim < 0)) {
            return Err(Error::model("", format!("{name} has a size below 0")));
        }
    }
    let Outputs { names: outputs, mutations } = outputs(&module.signature.output_specs, &graph.nodes)?;
    let mut emit = Emit::new(
        model,
        &graph.tensor_values,
        outputs.iter().chain(mutations.values()).map(ToString::to_string).collect(),
        &graph.nodes,
    );
    let mut arrays = Vec::new();
    let written = placeholders(&mut emit, document, inputs, &mutations, &mut arrays)?;
    let is_small =
        |name: &&&str| graph.tensor_values.get(**name).is_some_and(|meta| meta.small_float().is_some());
    if let Some(name) = outputs.iter().chain(written.iter().map(|buffer| &buffer.next)).find(is_small) {
        let report = Report::new(format!("output {name}"), "floats of 8 bits are not given to the caller");
        return Err(Error::Unsupported(report.help("return x.float()")));
    }
    let is_complex = |name: &&&str| graph.tensor_values.get(**name).is_some_and(TensorMeta::is_complex);
    if let Some(name) = outputs.iter().chain(written.iter().map(|buffer| &buffer.next)).find(is_complex) {
        let report = Report::new(format!("output {name}"), "complex numbers are not given to the caller");
        return Err(Error::Unsupported(
            report.help("return torch.view_as_real(x): its last axis has both parts"),
        ));
    }
    nodes(&mut emit, &graph.nodes)?;
    let mut buffers = BTreeMap::new();
    for (index, name) in outputs.iter().enumerate() {
        emit.output(name, index)?;
    }
    for (index, buffer) in written.iter().enumerate() {
        let own = emit.output(buffer.next, outputs.len() + index)?;
        buffers.extend(buffer.array.clone().map(|array| (own, array)));
    }
    Ok(Built { model: emit.model, buffers, arrays })
}

/// A buffer that the program writes over.
struct Buffer<'d> {
    /// The value that it becomes.
    next: &'d str,
    /// What the graph calls its array; none where that is another's too.
    array: Option<String>,
}

/// What the user is given, in order; and by the name of a buffer the value that it becomes, where the program says so.
struct Outputs<'d> {
    names: Vec<&'d str>,
    mutations: BTreeMap<&'d str, &'d str>,
}

/// Names of what is trained: parameters that the module has not frozen (`requires_grad=False`), or all where it has frozen all,
/// as modules that are not to be trained are exported. Buffers and constants never are.
pub(super) fn trained(document: &Document) -> HashSet<&str> {
    let module = &document.program.graph_module;
    let (mut trained, mut frozen) = (HashSet::new(), HashSet::new());
    for (_, spec) in module.signature.input_specs.iter().flatten().filter(|(kind, _)| *kind == "parameter") {
        let argument = spec.get("arg").and_then(|argument| argument.get("name")).and_then(Value::as_str);
        let path = spec.get("parameter_name").and_then(Value::as_str);
        let (Some(argument), Some(path)) = (argument, path) else { continue };
        let meta = module.graph.tensor_values.get(argument);
        let names = if meta.is_some_and(|meta| !meta.requires_grad) { &mut frozen } else { &mut trained };
        // A parameter has its argument's name where its own is taken.
        names.extend([path, argument]);
    }
    if trained.is_empty() { frozen } else { trained }
}

/// What drops in training, and is not drawn here.
pub(super) fn undrawn(document: &Document) -> Vec<String> {
    let rate = |node: &Node| {
        let named = match ops::base(&node.target) {
            "alpha_dropout" | "feature_alpha_dropout" | "feature_dropout" => "p",
            "gru" | "lstm" | "rnn_relu" | "rnn_tanh" => "dropout",
            _ => return None,
        };
        node.inputs.iter().find(|input| input.name == named)?.arg.parts().1.as_f64()
    };
    let told = |node: &Node| {
        rate(node).filter(|&rate| rate > 0.0).map(|rate| {
            let (name, kind) = (super::call::name(node), ops::base(&node.target));
            format!("{name} ({kind}): dropout of {rate} is not drawn here: training does without it")
        })
    };
    document.program.graph_module.graph.nodes.iter().filter_map(told).collect()
}

/// In one line, that elements are dropped in training, of a program that was exported where they were not; none where nothing is
/// dropped. The file does not tell dropouts of `eval()` from those that are never drawn.
pub(super) fn drawn(document: &Document) -> Option<String> {
    let argument = |node: &'_ Node, name: &str| {
        let found = node.inputs.iter().find(|input| input.name == name)?;
        Some(found.arg.parts().1.clone())
    };
    let is_drawn = |node: &&Node| {
        let rate = argument(node, "p").and_then(|rate| rate.as_f64());
        let trains = argument(node, "train").and_then(|train| train.as_bool());
        ops::base(&node.target) == "dropout" && rate.is_some_and(|rate| rate > 0.0) && trains == Some(false)
    };
    let nodes = &document.program.graph_module.graph.nodes;
    let count = nodes.iter().filter(is_drawn).count();
    let first = nodes.iter().find(is_drawn)?;
    let name = super::call::name(first);
    Some(format!("{count} dropouts ({name} the first) are drawn in training, as in a module's train()"))
}

/// Inputs that count from a first element on: by name, the fewest elements that any operation counts so. Others count from the
/// last one, too.
pub(super) fn counted(document: &Document) -> BTreeMap<String, Limit> {
    let module = &document.program.graph_module.graph;
    let mut limits: BTreeMap<String, Limit> = BTreeMap::new();
    for node in &module.nodes {
        let Some((places, limit)) = counted_by(node, &module.tensor_values) else { continue };
        let known = limits.entry(places.to_owned()).or_insert_with(|| limit.clone());
        if limit.count < known.count {
            *known = limit;
        }
    }
    limits
}

/// What an operation takes for places that count from the first element on, and how many elements there are.
fn counted_by<'d>(node: &'d Node, metas: &BTreeMap<String, TensorMeta>) -> Option<(&'d str, Limit)> {
    let argument = |name: &str| Some(&node.inputs.iter().find(|input| input.name == name)?.arg);
    let named = |name: &str| argument(name)?.name();
    let integer = |name: &str| argument(name)?.parts().1.as_i64();
    let base = ops::base(&node.target);
    let (data, places, axis) = match base.strip_suffix('_').unwrap_or(base) {
        "embedding" | "embedding_bag" => (named("weight")?, named("indices")?, 0),
        "gather" | "index_add" | "index_copy" | "index_reduce" | "index_select" | "scatter"
        | "scatter_add" | "scatter_reduce" => (named("self")?, named("index")?, integer("dim")?),
        "one_hot" => {
            let count = integer("num_classes").filter(|&count| count > 0)?;
            let field = format!("the classes of {}", super::call::name(node));
            return Some((named("self")?, Limit { count, field, ignored: None }));
        }
        _ => return None,
    };
    let sizes = &metas.get(data)?.sizes;
    let axis = if axis < 0 { axis + sizes.len() as i64 } else { axis };
    // Along an open axis only those below 0 are known to be none.
    let count = usize::try_from(axis).ok().and_then(|axis| size(sizes.get(axis)?)).unwrap_or(i64::MAX);
    let field = match axis {
        0 => format!("the rows of {data}"),
        axis => format!("axis {axis} of {data}"),
    };
    Some((places, Limit { count, field, ignored: None }))
}

/// Layers that are run as their file says, and trained in a way that it does not say or that is not known here.
pub(super) fn untrained(document: &Document) -> Vec<String> {
    let argument = |node: &Node, name: &str| -> Option<Value> {
        let input = node.inputs.iter().find(|input| input.name == name)?;
        Some(input.arg.parts().1.clone())
    };
    let told = |node: &Node| {
        let name = super::call::name(node);
        // Exported for evaluation it has a momentum of nothing.
        let momentum = argument(node, "momentum").filter(|_| node.target.contains("batch_norm"));
        if momentum.is_some_and(|momentum| momentum.as_f64() == Some(0.0)) {
            let what = "a batch normalisation whose statistics are means of all batches";
            return Some(format!("{what} ({name}, momentum=None)"));
        }
        if ops::shortens_rows(ops::base(&node.target)) {
            return Some(format!("a table whose rows are kept short ({name}, max_norm)"));
        }
        let is_scaled = argument(node, "scale_grad_by_freq").is_some_and(|is_scaled| is_scaled == true);
        is_scaled.then(|| format!("a gradient by how often a row is read ({name}, scale_grad_by_freq)"))
    };
    let module = &document.program.graph_module;
    let is_decomposed = |spec: &&BTreeMap<String, Value>| spec.keys().any(|kind| kind == "buffer_mutation");
    let decomposed = module.signature.output_specs.iter().find(is_decomposed).map(|_| {
        // `torch.no_grad` is not there any more, in which buffers are written over.
        "where gradients end in a decomposed program that writes over buffers".to_owned()
    });
    module.graph.nodes.iter().filter_map(told).chain(decomposed).collect()
}

/// Error: something else than tensors.
fn outputs<'d>(specs: &'d [BTreeMap<String, Value>], nodes: &[Node]) -> Result<Outputs<'d>> {
    let (mut names, mut mutations) = (Vec::new(), BTreeMap::new());
    for (kind, spec) in specs.iter().flatten() {
        let argument = spec.get("arg");
        if kind == "buffer_mutation" {
            // What a buffer becomes is an output too: the file's own stays as it is.
            let buffer = spec.get("buffer_name").and_then(Value::as_str);
            let buffer = buffer.ok_or_else(|| Error::format("signature", "a buffer has no name"))?;
            mutations.insert(buffer, named(argument.unwrap_or(&Value::Null))?);
            continue;
        }
        match (kind.as_str(), argument.and_then(|argument| argument.get("as_tensor"))) {
            ("user_output", Some(tensor)) => names.push(named(tensor)?),
            // The caller's array is written over too: the graph's inputs stay.
            ("user_input_mutation", _) => {}
            // Rows that are made shorter are as short in the next call, which begins with the file's.
            ("parameter_mutation", _) if is_shortened(argument, nodes) => {}
            // It keeps the order of effects, of which there are none.
            ("token", _) => {}
            ("user_output", None) if argument.is_some_and(|argument| argument.get("as_none").is_some()) => {}
            ("user_output", None) => {
                let message = "an output that is no tensor is not supported yet";
                return Err(Error::Unsupported(Report::new("output_specs", message)));
            }
            (other, _) => {
                let message = format!("an output of kind {other} is not supported yet");
                let help = "export the module in eval mode: its forward may not change its parameters";
                return Err(Error::Unsupported(Report::new("output_specs", message).help(help)));
            }
        }
    }
    Ok(Outputs { names, mutations })
}

/// Whether an argument is a table whose rows are made no longer than they may be.
fn is_shortened(argument: Option<&Value>, nodes: &[Node]) -> bool {
    let name = argument.and_then(|argument| argument.get("name")).and_then(Value::as_str);
    let makes = |node: &&Node| super::call::results(node).first().copied() == name;
    name.is_some() && nodes.iter().find(makes).is_some_and(|node| ops::shortens_rows(ops::base(&node.target)))
}

fn named(value: &Value) -> Result<&str> {
    let name = value.get("name").and_then(Value::as_str);
    name.ok_or_else(|| Error::format("signature", "an argument has no name"))
}

/// The arrays that the user gives, in order: names, and element types and sizes as the file has them.
pub(super) type Inputs = Vec<(String, DType, Vec<Dimension>)>;

/// Errors: an element type that is not supported; an input of which nothing is said.
pub(super) fn inputs(document: &Document) -> Result<Inputs> {
    let module = &document.program.graph_module;
    let given = module.signature.input_specs.iter().flatten().filter(|(kind, _)| *kind == "user_input");
    let of = |name: &str| -> Result<(String, DType, Vec<Dimension>)> {
        let meta = described(&module.graph.tensor_values, name)?;
        Ok((name.to_owned(), meta.dtype()?, meta.sizes.iter().map(dimension).collect()))
    };
    let placed = |name: &str| of(name).map_err(|error| error.within(&format!("input {name}")));
    given.filter_map(|(_, spec)| tensor_of(spec)).map(|name| name.and_then(placed)).collect()
}

/// Binds parameters, buffers, constants and inputs; gives the buffers that are written over.
fn placeholders<'d>(
    emit: &mut Emit<'d>,
    document: &'d Document,
    inputs: &Inputs,
    mutations: &BTreeMap<&'d str, &'d str>,
    arrays: &mut Vec<OfModule<'d>>,
) -> Result<Vec<Buffer<'d>>> {
    let module = &document.program.graph_module;
    let specs = module.signature.input_specs.iter().flatten();
    let is_user = |kind: &str| kind == "user_input";
    let mut taken: HashSet<String> = emit.outputs.clone();
    for (_, spec) in specs.clone().filter(|(kind, _)| is_user(kind)) {
        taken.extend(tensor_of(spec).transpose()?.map(str::to_owned));
    }
    let mut given = inputs.iter();
    let (mut written, mut ranges) = (Vec::new(), Vec::new());
    let mut shared: HashMap<(u64, DType, Option<Vec<i64>>), String> = HashMap::new();
    for (kind, spec) in specs {
        let key = match kind.as_str() {
            "user_input" => {
                user_input(emit, spec, given.next())?;
                continue;
            }
            "constant_input" | "token" => continue,
            "parameter" => "parameter_name",
            "buffer" => "buffer_name",
            "tensor_constant" => "tensor_constant_name",
            other => {
                let message = format!("an input of kind {other} is not supported yet");
                return Err(Error::Unsupported(Report::new("", message)));
            }
        };
        let argument = named(spec.get("arg").unwrap_or(&Value::Null))?;
        let path = spec.get(key).and_then(Value::as_str);
        let path = path.ok_or_else(|| Error::format("signature", format!("{argument} has no {key}")))?;
        let next = match kind.as_str() {
            "parameter" => {
                emit.keep(argument);
                None
            }
            "buffer" if emit.is_rewritten(argument) => Some(argument),
            "buffer" => mutations.get(path).copied(),
            _ => None,
        };
        let place = |error: Error| error.within(&format!("array {path}"));
        let array = document
            .arrays
            .get(path)
            .ok_or_else(|| Error::model("", "it is not in the archive"))
            .map_err(place)?;
        ranges.push((array.offset, array.offset.saturating_add(array.length), argument));
        // What is trained is no constant, however small, nor is what the next call would find changed.
        let is_trained = kind == "parameter" && array.meta.dtype().is_ok_and(DType::is_float);
        let digits = array.digits.as_deref().filter(|_| !is_trained && next.is_none());
        let is_state = match kind.as_str() {
            "buffer" => spec.get("persistent") != Some(&Value::Bool(false)),
            kind => kind == "parameter",
        };
        let mut of_module = |own: &str| {
            arrays.push(OfModule { own: own.to_owned(), path, is_state, stored: array });
        };
        // Tied parameters are one array under several names.
        let place_and_type = (array.offset, array.meta.dtype().map_err(place)?, stored_dims(&array.meta));
        if let Some(name) = shared.get(&place_and_type).filter(|_| digits.is_none()) {
            of_module(name);
            written.extend(next.map(|next| Buffer { next, array: None }));
            bind_array(emit, argument, name.clone(), &array.meta).map_err(place)?;
            continue;
        }
        let name = if taken.insert(path.to_owned()) { path.to_owned() } else { argument.to_owned() };
        of_module(&name);
        add_array(emit, &name, array, digits).map_err(place)?;
        // What does not lie row by row is read through a transpose, and has no place that its next value fits.
        let is_plain = matches!(array.meta.in_memory(), Some(InMemory::Rows(_)));
        let own = is_plain.then(|| name.clone());
        written.extend(next.map(|next| Buffer { next, array: own }));
        if digits.is_none() {
            shared.insert(place_and_type, name.clone());
        }
        bind_array(emit, argument, name, &array.meta).map_err(place)?;
    }
    hold_overlapping(emit, &mut ranges);
    emit.outputs.extend(written.iter().map(|buffer| buffer.next.to_owned()));
    Ok(written)
}

/// Binds an array that the user gives. Errors: it is none, or of a type that the graph has no inputs of.
fn user_input<'d>(
    emit: &mut Emit<'d>,
    spec: &'d Value,
    given: Option<&(String, DType, Vec<Dimension>)>,
) -> Result<()> {
    let name = tensor_of(spec).ok_or_else(|| {
        Error::Unsupported(Report::new("", "an input that is no tensor is not supported yet"))
    })??;
    let meta = emit.meta_of(name).map_err(|error| error.within(&format!("input {name}")))?;
    let refused = |message: &str| Report::new(format!("input {name}"), message);
    if meta.small_float().is_some() {
        return Err(Error::Unsupported(refused("floats of 8 bits are not read as an input")));
    }
    if meta.is_complex() {
        let help = "torch.view_as_complex(x) of an input x whose last axis has both parts";
        return Err(Error::Unsupported(refused("complex numbers are not read as an input").help(help)));
    }
    if let Some((_, dtype, sizes)) = given {
        emit.model.input(name, *dtype, sizes.clone());
    }
    emit.bind_placeholder(name, name.to_owned());
    Ok(())
}

/// Holds what lies in the same bytes as something else: what is written over one is seen in the other, which nothing here
/// knows of.
fn hold_overlapping(emit: &mut Emit<'_>, ranges: &mut [(u64, u64, &str)]) {
    ranges.sort_unstable();
    let mut end = 0;
    for (at, &(from, to, name)) in ranges.iter().enumerate() {
        let meets_next = ranges.get(at + 1).is_some_and(|&(next, ..)| next < to);
        if from < to && (from < end || meets_next) {
            emit.hold(name);
        }
        end = end.max(to);
    }
}

/// The name of the tensor that an input is; none where it is something else.
fn tensor_of(spec: &Value) -> Option<Result<&str>> {
    spec.get("arg").and_then(|arg| arg.get("as_tensor")).map(named)
}

/// The sizes of an array as it is stored: both parts of a complex number one behind the other.
fn stored_dims(meta: &TensorMeta) -> Option<Vec<i64>> {
    let parts = meta.is_complex().then_some(2);
    let dims = match meta.in_memory()? {
        InMemory::Rows(dims) | InMemory::Permuted(dims, _) => dims,
        InMemory::Apart(span, _) => vec![span],
    };
    Some(dims.into_iter().chain(parts).collect())
}

fn bind_array(emit: &mut Emit<'_>, argument: &str, name: String, meta: &TensorMeta) -> Result<()> {
    if meta.is_complex() {
        emit.model.begin(argument, "parts");
        let parts = ops::parts_of(emit, &name);
        emit.bind_parts(argument, parts);
        return Ok(());
    }
    let value = in_order(emit, argument, name, meta)?;
    emit.bind_placeholder(argument, value);
    Ok(())
}

/// An array's elements as the tensor has them, from as they lie in memory.
fn in_order(emit: &mut Emit<'_>, argument: &str, name: String, meta: &TensorMeta) -> Result<String> {
    let unknown = || Error::model("", "its elements do not lie in order");
    match meta.in_memory().ok_or_else(unknown)? {
        InMemory::Rows(_) => Ok(name),
        InMemory::Permuted(_, order) => {
            let mut perm = vec![0; order.len()];
            order.iter().enumerate().for_each(|(at, &axis)| perm[axis] = at as i64);
            emit.model.begin(argument, "permute");
            let value = emit.fresh();
            emit.operation("Transpose", &[&name], &[&value], &[("perm", Attribute::Ints(&perm))]);
            Ok(value)
        }
        InMemory::Apart(_, strides) => {
            let dims = meta.dims().ok_or_else(unknown)?;
            let places = places(emit, &dims, &strides)?;
            emit.model.begin(argument, "as_strided");
            let (list, sizes, rows, value) = (emit.fresh(), emit.fresh(), emit.fresh(), emit.fresh());
            emit.model.integers(&list, &places);
            emit.model.integers(&sizes, &dims);
            emit.operation("Gather", &[&name, &list], &[&rows], &[("axis", Attribute::Int(0))]);
            emit.operation("Reshape", &[&rows, &sizes], &[&value], &[]);
            Ok(value)
        }
    }
}

/// Where each element lies, row by row.
fn places(emit: &mut Emit<'_>, dims: &[i64], strides: &[i64]) -> Result<Vec<i64>> {
    let count = dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim));
    let count = count.ok_or_else(|| Error::model("", "its sizes are too large"))?;
    emit.list_places(count)?;
    let mut places = vec![0];
    for (&dim, &stride) in dims.iter().zip(strides) {
        places = places.iter().flat_map(|&place| (0..dim).map(move |at| place + at * stride)).collect();
    }
    Ok(places)
}

fn add_array(emit: &mut Emit<'_>, name: &str, array: &StoredArray, digits: Option<&str>) -> Result<()> {
    let dims = stored_dims(&array.meta).ok_or_else(|| Error::model("", "its sizes are no numbers"))?;
    let bytes = match (&array.bytes, digits) {
        (Some(bytes), _) => Bytes::Inline(bytes.clone()),
        (None, Some(digits)) => Bytes::Inline(from_digits(digits)?),
        (None, None) => Bytes::File { offset: array.offset, length: array.length },
    };
    match array.meta.small_float() {
        Some(of) => emit.model.small_floats(name, of, &dims, bytes),
        None => emit.model.array(name, array.meta.dtype()?, &dims, bytes),
    }
    Ok(())
}

fn from_digits(digits: &str) -> Result<Vec<u8>> {
    let wrong = || Error::format("", "its bytes are no hexadecimal digits");
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let bytes = digits.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
        _ => None,
    });
    bytes.collect::<Option<_>>().ok_or_else(wrong)
}

/// A size of an input: a number, a symbol (`Symbol('s77', ...)`), or an expression, which names nothing.
pub(super) fn dimension(argument: &Argument) -> Dimension {
    if let Some(size) = size(argument) {
        return Dimension::Known(size);
    }
    let text = argument.parts().1.get("expr_str").and_then(Value::as_str).unwrap_or_default();
    let symbol = text.strip_prefix("Symbol('").and_then(|rest| rest.split('\'').next());
    let plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    // Old files write the symbol as it is.
    let symbol = symbol.or(Some(text)).filter(|name| !name.is_empty()).filter(plain);
    Dimension::Named(symbol.unwrap_or_default().to_owned())
}

fn nodes<'d>(emit: &mut Emit<'d>, nodes: &'d [Node]) -> Result<()> {
    let mut unsupported: Vec<Report> = Vec::new();
    let (mut wrong, mut decomposes) = (None, false);
    for node in nodes {
        if ops::is_assertion(node) {
            continue;
        }
        let fault = match (emit.find(node), emit.reads_lost(node)) {
            (Some(_), true) => {
                emit.lose(node);
                continue;
            }
            (Some(lower), false) => emit.node(node, lower),
            (None, _) => {
                let of = if ops::find(&node.target).is_some() { " of complex numbers" } else { "" };
                let message = format!("operation {}{of} is not supported yet", node.target);
                Err(Error::Unsupported(Report::new("", message)))
            }
        };
        let Err(error) = fault else { continue };
        emit.lose(node);
        match error.within(&format!("node {}", super::call::name(node))) {
            Error::Unsupported(report) => {
                decomposes |= !is_core(&node.target);
                unsupported.push(report);
            }
            other => wrong = wrong.or(Some(other)),
        }
    }
    match (unsupported.first(), wrong) {
        (Some(first), _) => {
            let all = unsupported.iter().map(ToString::to_string).collect();
            let help = if decomposes { "exported.run_decompositions() leaves fewer operations" } else { "" };
            Err(Error::Unsupported(first.clone().help(help).details(all)))
        }
        (None, Some(wrong)) => Err(wrong),
        (None, None) => Ok(()),
    }
}

impl Emit<'_> {
    /// What is known of a tensor. Error: the file says nothing.
    pub(super) fn meta_of(&self, name: &str) -> Result<&TensorMeta> {
        described(self.metas, name)
    }
}

fn described<'a>(metas: &'a BTreeMap<String, TensorMeta>, name: &str) -> Result<&'a TensorMeta> {
    metas.get(name).ok_or_else(|| Error::format("tensor_values", format!("nothing is said of {name}")))
}
