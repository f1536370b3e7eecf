//! The native model format: JSON that people and programs write by hand, described in
//! `docs/model-json.md` and `docs/model.schema.json`.
//!
//! Nodes may be in any order. Inputs, parameters, constants and results share one namespace.
//! On exit each node is one source node, inputs and parameters are in the order of the text.

mod attributes;
mod init;
mod ops;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use self::attributes::Attributes;
use super::LoadOptions;
use crate::csr::Csr;
use crate::error::{Error, Result};
use crate::files::Folder;
use crate::ir::text::parse_type;
use crate::ir::{
    DType, Data, DimId, Graph, Init, Op, Shape, Size, Source, SourceId, SourceRole, State, Tensor, Type,
    ValueId, half,
};
use crate::json::json_error;
use crate::order::first_ready;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    partition_model: u64,
    #[serde(default, rename = "$schema")]
    _schema: Option<Value>,
    #[serde(default)]
    name: String,
    #[serde(default, rename = "description")]
    _description: Option<Value>,
    #[serde(default)]
    dims: Vec<String>,
    #[serde(default)]
    inputs: Vec<RawInput>,
    #[serde(default)]
    params: Vec<RawParam>,
    #[serde(default)]
    constants: Vec<RawConstant>,
    #[serde(default)]
    states: Vec<RawState>,
    nodes: Vec<RawNode>,
    outputs: Vec<RawOutput>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawInput {
    name: String,
    r#type: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawParam {
    name: String,
    r#type: String,
    #[serde(default)]
    init: Option<Value>,
    #[serde(default)]
    data: Option<RawData>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawData {
    file: String,
    #[serde(default)]
    array: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConstant {
    name: String,
    r#type: String,
    values: Value,
}

/// A state: what a step reads of it is what the step before made of it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawState {
    name: String,
    r#type: String,
    #[serde(default)]
    init: Option<Value>,
    /// The value that takes its place.
    next: String,
}

#[derive(Deserialize)]
struct RawNode {
    name: String,
    op: String,
    #[serde(default)]
    inputs: Vec<String>,
    #[serde(default)]
    outputs: Option<Vec<String>>,
    #[serde(default)]
    pin: Option<String>,
    #[serde(default)]
    colocate: Option<String>,
    /// Everything else: the operation's attributes.
    #[serde(flatten)]
    attributes: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawOutput {
    Value(String),
    Named { name: String, value: String },
}

/// Reads a native model. `path` is where the text comes from: data is looked up beside it.
/// O(text log nodes).
///
/// Errors: malformed JSON (with line and column), a version other than 1, names used twice or not
/// there, a cycle, unknown operations or attributes, types that do not fit.
pub fn load(text: &[u8], path: Option<&Path>, options: &LoadOptions) -> Result<Graph> {
    let document: Document = serde_json::from_slice(text).map_err(|error| json_error(&error))?;
    if document.partition_model != 1 {
        let message = format!("version {} is not supported", document.partition_model);
        return Err(Error::format("partition_model", message).with_help("this program reads version 1"));
    }
    let mut builder = Builder {
        graph: Graph::new(&document.name),
        dims: HashMap::new(),
        fixed: options.dims.clone(),
        values: HashMap::new(),
    };
    builder.declare_dims(&document)?;
    for input in &document.inputs {
        builder.input(input)?;
    }
    let folder = Folder::of(path, options.links);
    for param in &document.params {
        builder.param(param, &folder)?;
    }
    for constant in &document.constants {
        builder.constant(constant)?;
    }
    for state in &document.states {
        builder.state(state)?;
    }
    let order = order(&document, &builder.values)?;
    for &node in &order {
        builder.node(&document.nodes[node])?;
    }
    builder.outputs(&document.outputs)?;
    for state in &document.states {
        builder.next(state)?;
    }
    builder.graph.record_consumers();
    Ok(builder.graph)
}

/// The graph so far, and what its names mean.
struct Builder {
    graph: Graph,
    dims: HashMap<String, DimId>,
    /// Values that the caller gives to dimensions.
    fixed: BTreeMap<String, i64>,
    values: HashMap<String, ValueId>,
}

impl Builder {
    /// Declares the dimensions under `dims`, then those that the inputs' types mention.
    fn declare_dims(&mut self, document: &Document) -> Result<()> {
        for name in &document.dims {
            let identifier = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !identifier {
                return Err(Error::model("dims", format!("\"{name}\" is no name of a dimension"))
                    .with_help("letters, digits and _, not beginning with a digit"));
            }
            if self.dims.contains_key(name) {
                return Err(Error::model("dims", format!("{name} is there twice")));
            }
            self.declare(name);
        }
        for input in &document.inputs {
            let sizes = input.r#type.split_once('[').map_or("", |(_, sizes)| sizes);
            let words = sizes.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            for word in words.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')) {
                self.declare(word);
            }
        }
        for (name, value) in &self.fixed {
            if *value < 0 {
                return Err(Error::usage(format!("dimension {name}"), format!("{value} is less than 0")));
            }
            if !self.dims.contains_key(name) {
                let known: Vec<&str> = self.graph.dims().iter().map(|dim| dim.name.as_str()).collect();
                return Err(Error::usage(format!("dimension {name}"), "the model has no such dimension")
                    .with_help(format!("its dimensions are: {}", known.join(", "))));
            }
        }
        Ok(())
    }

    fn declare(&mut self, name: &str) {
        if !self.dims.contains_key(name) {
            let dim = self.graph.dim(name);
            self.dims.insert(name.to_owned(), dim);
        }
    }

    /// The size with the caller's values put in. Error: it overflows or is negative.
    fn fix(&self, size: &Size) -> Result<Size> {
        let value_of = |dim: DimId| self.fixed.get(self.graph.dim_name(dim)).copied();
        let mut fixed = Size::Known(size.constant());
        for &(dim, coefficient) in size.terms() {
            let term = match value_of(dim) {
                Some(value) => value.checked_mul(coefficient).map(Size::Known),
                None => Size::dim(dim).scale(coefficient),
            };
            let sum = term.and_then(|term| fixed.add(&term));
            fixed = sum.ok_or_else(|| Error::model("", "a size overflows"))?;
        }
        Ok(fixed)
    }

    fn ty(&self, text: &str) -> Result<Type> {
        let ty = parse_type(text, &self.dims).map_err(|error| error.within(&format!("type {text}")))?;
        let sizes = ty.shape.sizes().iter().map(|size| self.fix(size)).collect::<Result<Vec<Size>>>()?;
        if let Some(size) = sizes.iter().find(|size| size.known().is_some_and(|size| size < 0)) {
            return Err(Error::model(
                format!("type {text}"),
                format!("size {} is negative", size.constant()),
            ));
        }
        let ty = Type::new(ty.dtype, Shape::new(sizes));
        if ty.shape.dims().is_some() && ty.bytes().is_none() {
            return Err(Error::model(format!("type {text}"), "is too large"));
        }
        Ok(ty)
    }

    /// Adds a name. Error: it is taken, or empty.
    fn define(&mut self, name: &str, value: ValueId) -> Result<()> {
        if name.is_empty() {
            return Err(Error::model("", "an empty name"));
        }
        match self.values.insert(name.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(Error::model("", format!("the name {name} is used twice"))),
        }
    }

    fn data_source(&mut self, name: &str, op: &str) -> SourceId {
        self.graph.add_source(Source::new(name, op, SourceRole::Data))
    }

    fn input(&mut self, input: &RawInput) -> Result<()> {
        let place = |error: Error| error.within(&format!("input {}", input.name));
        let ty = self.ty(&input.r#type).map_err(place)?;
        let source = self.data_source(&input.name, "input");
        let value = self.graph.add_input(&input.name, ty, source);
        self.define(&input.name, value).map_err(place)
    }

    fn param(&mut self, param: &RawParam, folder: &Folder) -> Result<()> {
        let place = |error: Error| error.within(&format!("param {}", param.name));
        let ty = self.ty(&param.r#type).map_err(place)?;
        if ty.shape.dims().is_none() {
            return Err(place(Error::model(param.r#type.as_str(), "a parameter's sizes must be numbers")));
        }
        let init = param.init.as_ref().map_or(Ok(Init::zeros()), init::initialiser).map_err(place)?;
        let data = param.data.as_ref().map(|data| data_of(data, &param.name, folder)).transpose();
        let source = self.data_source(&param.name, "param");
        let value = self.graph.add_param(&param.name, ty, init, data.map_err(place)?, source);
        self.define(&param.name, value).map_err(place)
    }

    fn state(&mut self, state: &RawState) -> Result<()> {
        let place = |error: Error| error.within(&format!("state {}", state.name));
        let ty = self.ty(&state.r#type).map_err(place)?;
        let init = state.init.as_ref().map_or(Ok(Init::zeros()), init::initialiser).map_err(place)?;
        let source = self.data_source(&state.name, "state");
        let value = self.graph.add_param(&state.name, ty, init, None, source);
        self.graph.set_state(value, State { grows: None });
        self.define(&state.name, value).map_err(place)
    }

    /// What takes a state's place. Error: there is no such value, or it is of another type.
    fn next(&mut self, state: &RawState) -> Result<()> {
        let place = |error: Error| error.within(&format!("state {}", state.name));
        let missing = || place(Error::model("next", format!("there is no value {}", state.next)));
        let value = self.values.get(&state.next).copied().ok_or_else(missing)?;
        match self.values.get(&state.name).map(|own| self.graph.maker(*own).op.clone()) {
            Some(Op::Param(id)) => self.graph.update_param(id, value).map_err(place),
            _ => Err(missing()),
        }
    }

    fn constant(&mut self, constant: &RawConstant) -> Result<()> {
        let place = |error: Error| error.within(&format!("constant {}", constant.name));
        let ty = self.ty(&constant.r#type).map_err(place)?;
        let tensor = literal(&ty, &constant.values).map_err(place)?;
        let is_whole = tensor.dims().len() == ty.shape.sizes().len();
        let source = match is_whole {
            true => self.data_source(&constant.name, "constant"),
            // What spreads the number is computed somewhere, so it is placed as nodes are.
            false => self.graph.add_source(Source::new(&constant.name, "constant", SourceRole::Node)),
        };
        let stored = self.graph.add_constant(tensor, source);
        let value = match is_whole {
            true => stored,
            false => self.graph.apply(Op::Broadcast { shape: ty.shape }, &[stored], source).map_err(place)?,
        };
        self.define(&constant.name, value).map_err(place)
    }

    fn node(&mut self, node: &RawNode) -> Result<()> {
        let place = |error: Error| error.within(&format!("node {}", node.name));
        let mut source = Source::new(&node.name, &node.op, SourceRole::Node);
        source.pin.clone_from(&node.pin);
        source.colocate.clone_from(&node.colocate);
        let source = self.graph.add_source(source);
        let mut operands = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            let missing = || place(Error::model("", format!("reads {input}, which does not exist")));
            operands.push(self.values.get(input).copied().ok_or_else(missing)?);
        }
        let attributes = Attributes::new(&node.op, &node.attributes);
        let results = self.operation(&attributes, &operands, source);
        // Errors from the graph name the node themselves.
        let results = results.map_err(|error| match &error {
            Error::Model(report) if report.place.starts_with(&format!("node {}", node.name)) => error,
            _ => place(error),
        })?;
        attributes.all_used().map_err(place)?;
        let names = result_names(node, results.len()).map_err(place)?;
        for (name, value) in names.iter().zip(results) {
            self.define(name, value).map_err(place)?;
        }
        Ok(())
    }

    fn outputs(&mut self, outputs: &[RawOutput]) -> Result<()> {
        if outputs.is_empty() {
            return Err(Error::model("outputs", "the model has no outputs"));
        }
        let mut seen = HashMap::new();
        for output in outputs {
            let (name, value) = match output {
                RawOutput::Value(value) => (value, value),
                RawOutput::Named { name, value } => (name, value),
            };
            let Some(&found) = self.values.get(value) else {
                return Err(Error::model(format!("output {name}"), format!("there is no value {value}")));
            };
            if seen.insert(name.clone(), ()).is_some() {
                return Err(Error::model(format!("output {name}"), "the name is used twice"));
            }
            self.graph.add_output(name, found);
        }
        Ok(())
    }
}

/// The names of a node's results: those it gives, or its own, then `name:1`, `name:2`.
fn result_names(node: &RawNode, count: usize) -> Result<Vec<String>> {
    match &node.outputs {
        Some(names) if names.len() > count => {
            Err(Error::model("outputs", format!("{} names for {count} results", names.len())))
        }
        Some(names) => Ok(names.clone()),
        None => Ok((0..count)
            .map(|result| if result == 0 { node.name.clone() } else { format!("{}:{result}", node.name) })
            .collect()),
    }
}

/// The most results that any operation has.
const MOST_RESULTS: usize = 3;

/// A topological order of the nodes, the first in the text among those ready. Names that nothing
/// makes are reported here, with the node that reads them.
fn order(document: &Document, known: &HashMap<String, ValueId>) -> Result<Vec<usize>> {
    let nodes = &document.nodes;
    let mut makers: HashMap<String, u32> = HashMap::with_capacity(nodes.len());
    let mut names: HashMap<&str, ()> = HashMap::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        let place = format!("node {}", node.name);
        if node.name.is_empty() {
            return Err(Error::model(format!("node number {}", index + 1), "its name is empty"));
        }
        if names.insert(&node.name, ()).is_some() {
            return Err(Error::model(place, "two nodes have this name"));
        }
        for name in result_names(node, node.outputs.as_ref().map_or(MOST_RESULTS, Vec::len))? {
            if known.contains_key(&name) || makers.insert(name.clone(), index as u32).is_some() {
                return Err(Error::model(place, format!("the name {name} is used twice")));
            }
        }
    }
    let mut read = Csr::new();
    for node in nodes {
        for input in &node.inputs {
            match makers.get(input) {
                Some(&maker) => read.push(maker),
                None if known.contains_key(input) => {}
                None => {
                    let message = format!("reads {input}, which does not exist");
                    return Err(Error::model(format!("node {}", node.name), message));
                }
            }
        }
        read.end_row();
    }
    first_ready(&read).map_err(|cycle| {
        let names: Vec<&str> = cycle.iter().take(6).map(|&node| nodes[node].name.as_str()).collect();
        let more = if cycle.len() > names.len() { " -> ..." } else { "" };
        Error::model(
            format!("node {}", names.first().copied().unwrap_or("")),
            format!("is on a cycle of {} nodes: {}{more}", cycle.len(), names.join(" -> ")),
        )
    })
}

/// Where a parameter's data is. Error: a path that leaves the model's folder.
fn data_of(data: &RawData, name: &str, folder: &Folder) -> Result<Data> {
    let path = folder.path(&data.file).map_err(|error| error.within("data"))?;
    Ok(Data::Array { path, name: data.array.clone().unwrap_or_else(|| name.to_owned()) })
}

/// The most elements of a constant of which all are one number and are held nevertheless.
const SPREAD: u64 = 1 << 16;

/// A tensor of numbers (or truth values) in row-major order; one stands for all. Where there would be more than
/// [`SPREAD`] of those, the tensor is that number alone, without axes.
fn literal(ty: &Type, values: &Value) -> Result<Tensor> {
    let Some(elements) = ty.elements() else {
        return Err(Error::model("type", "a constant's sizes must be numbers"));
    };
    let mut flat = Vec::new();
    flatten(values, &mut flat)?;
    let spread = flat.len() == 1 && elements != 1;
    if !spread && flat.len() as u64 != elements {
        return Err(Error::model("values", format!("expected {elements} numbers, found {}", flat.len())));
    }
    let mut bytes = Vec::new();
    if spread && elements > SPREAD {
        encode(ty.dtype, flat[0], &mut bytes)?;
        return Tensor::new(ty.dtype, Vec::new(), bytes);
    }
    for index in 0..elements as usize {
        encode(ty.dtype, flat[if spread { 0 } else { index }], &mut bytes)?;
    }
    let dims = ty.shape.sizes().iter().map(|size| size.constant() as u64).collect();
    Tensor::new(ty.dtype, dims, bytes)
}

/// Nested lists, flattened. Recursion is bounded by the JSON parser (128 levels).
fn flatten<'v>(value: &'v Value, flat: &mut Vec<&'v Value>) -> Result<()> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| flatten(item, flat)),
        Value::Number(_) | Value::Bool(_) => {
            flat.push(value);
            Ok(())
        }
        _ => Err(Error::model("values", "expected numbers")),
    }
}

/// Adds the little-endian bytes of one element. Error: it does not fit the type.
fn encode(dtype: DType, value: &Value, bytes: &mut Vec<u8>) -> Result<()> {
    let wrong = || Error::model("values", format!("{value} is not of type {dtype}"));
    if dtype == DType::Bool {
        bytes.push(u8::from(value.as_bool().ok_or_else(wrong)?));
        return Ok(());
    }
    if dtype.is_integer() {
        let whole = value.as_i64().ok_or_else(wrong)?;
        match dtype {
            DType::I8 => bytes.extend(i8::try_from(whole).map_err(|_| wrong())?.to_le_bytes()),
            DType::I16 => bytes.extend(i16::try_from(whole).map_err(|_| wrong())?.to_le_bytes()),
            DType::I32 => bytes.extend(i32::try_from(whole).map_err(|_| wrong())?.to_le_bytes()),
            DType::U8 => bytes.push(u8::try_from(whole).map_err(|_| wrong())?),
            DType::U16 => bytes.extend(u16::try_from(whole).map_err(|_| wrong())?.to_le_bytes()),
            DType::U32 => bytes.extend(u32::try_from(whole).map_err(|_| wrong())?.to_le_bytes()),
            DType::U64 => bytes.extend(u64::try_from(whole).map_err(|_| wrong())?.to_le_bytes()),
            _ => bytes.extend(whole.to_le_bytes()),
        }
        return Ok(());
    }
    let real = value.as_f64().ok_or_else(wrong)?;
    let fits = |is_finite: bool| if is_finite { Ok(()) } else { Err(wrong()) };
    match dtype {
        DType::F64 => bytes.extend(real.to_le_bytes()),
        DType::F16 => {
            let half = half::f32_to_f16(real as f32);
            fits(half::f16_to_f32(half).is_finite())?;
            bytes.extend(half.to_le_bytes());
        }
        DType::Bf16 => {
            let half = half::f32_to_bf16(real as f32);
            fits(half::bf16_to_f32(half).is_finite())?;
            bytes.extend(half.to_le_bytes());
        }
        _ => {
            fits((real as f32).is_finite())?;
            bytes.extend((real as f32).to_le_bytes());
        }
    }
    Ok(())
}
