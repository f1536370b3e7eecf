//! Builds a model of ONNX operators for another reader: what a front-end need not lower itself.
//!
//! Each node of the other format becomes one source, of any number of operators.

use std::path::Path;

use prost::Message;

use super::function::{Functions, opsets};
use super::lower::{self, File};
use super::ops::{OWN, STOP_GRADIENT};
use super::proto::{
    AttributeProto, DimensionProto, EXTERNAL, GraphProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
    attribute_type,
};
use super::tensor;
pub(in crate::load) use super::tensor::number;
use crate::error::{Error, Result};
use crate::files::{Folder, Links};
use crate::ir::{DType, Graph};
use crate::load::{FindDims, LoadOptions};

/// The operator set that models are of.
const OPSET: i64 = 24;

/// An attribute of an operator.
pub(in crate::load) enum Attribute<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f64),
    Text(&'a str),
    Texts(&'a [&'a str]),
}

/// Floats of 8 bits, by their number in ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::load) enum SmallFloat {
    E4M3Fn = 17,
    E4M3FnUz = 18,
    E5M2 = 19,
    E5M2FnUz = 20,
}

/// A size of an input: a number, or the name of a dimension; an empty name where it has none.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::load) enum Dimension {
    Known(i64),
    Named(String),
}

/// Where the bytes of an array lie.
pub(in crate::load) enum Bytes {
    Inline(Vec<u8>),
    /// In the model's own file.
    File {
        offset: u64,
        length: u64,
    },
}

/// An operator with its operands, results and attributes; the name of an operand that is left out is empty.
pub(in crate::load) struct Operation<'a> {
    pub(in crate::load) name: &'a str,
    pub(in crate::load) inputs: &'a [&'a str],
    pub(in crate::load) outputs: &'a [&'a str],
    pub(in crate::load) attributes: &'a [(&'a str, Attribute<'a>)],
}

/// The model so far.
pub(in crate::load) struct ModelBuilder {
    graph: GraphProto,
    /// Names of sources and their operations.
    names: Vec<(String, String)>,
    /// The source of each node.
    of_node: Vec<usize>,
    file: String,
    /// Loops whose bodies are being written, the innermost last.
    loops: Vec<OpenLoop>,
}

/// What is known of a loop before its body.
struct OpenLoop {
    /// Whether it runs at all, and what it begins with.
    inputs: Vec<String>,
    /// What an iteration reads.
    body_inputs: Vec<ValueInfoProto>,
    /// The nodes around it so far, with their sources.
    outer: Vec<NodeProto>,
    of_outer: Vec<usize>,
}

impl ModelBuilder {
    /// A graph without anything, read from a file.
    pub(in crate::load) fn new(name: &str, path: Option<&Path>) -> Self {
        let file = path.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        Self {
            graph: GraphProto { name: name.to_owned(), ..GraphProto::default() },
            names: Vec::new(),
            of_node: Vec::new(),
            // Without a file it can be planned, and what is to run it says that there is none.
            file: file.unwrap_or_else(|| "standard input".to_owned()),
            loops: Vec::new(),
        }
    }

    pub(in crate::load) fn input(&mut self, name: &str, dtype: DType, sizes: Vec<Dimension>) {
        let dim = sizes.into_iter().map(|size| match size {
            Dimension::Known(size) => DimensionProto { dim_value: Some(size), dim_param: None },
            Dimension::Named(name) => DimensionProto { dim_value: None, dim_param: Some(name) },
        });
        let shape = Some(TensorShapeProto { dim: dim.collect() });
        let tensor = TensorTypeProto { elem_type: number(dtype), shape };
        let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
        self.graph.input.push(ValueInfoProto {
            name: name.to_owned(),
            r#type: Some(ty),
            ..ValueInfoProto::default()
        });
    }

    pub(in crate::load) fn output(&mut self, name: &str) {
        self.graph.output.push(untyped(name));
    }

    pub(in crate::load) fn array(&mut self, name: &str, dtype: DType, dims: &[i64], bytes: Bytes) {
        self.array_of(name, number(dtype), dims, bytes);
    }

    /// An array of floats of 8 bits.
    pub(in crate::load) fn small_floats(&mut self, name: &str, of: SmallFloat, dims: &[i64], bytes: Bytes) {
        self.array_of(name, of as i32, dims, bytes);
    }

    fn array_of(&mut self, name: &str, data_type: i32, dims: &[i64], bytes: Bytes) {
        let mut tensor =
            TensorProto { name: name.to_owned(), dims: dims.to_vec(), data_type, ..TensorProto::default() };
        match bytes {
            Bytes::Inline(bytes) => tensor.raw_data = Some(bytes),
            Bytes::File { offset, length } => {
                let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
                tensor.data_location = EXTERNAL;
                tensor.external_data = vec![
                    entry("location", self.file.clone()),
                    entry("offset", offset.to_string()),
                    entry("length", length.to_string()),
                ];
            }
        }
        self.graph.initializer.push(tensor);
    }

    /// A number as an array without axes.
    pub(in crate::load) fn scalar(&mut self, name: &str, dtype: DType, value: f64) {
        self.array(name, dtype, &[], Bytes::Inline(tensor::encode(dtype, value)));
    }

    /// A vector of numbers of a type.
    pub(in crate::load) fn numbers(&mut self, name: &str, dtype: DType, values: &[f64]) {
        let bytes = values.iter().flat_map(|&value| tensor::encode(dtype, value)).collect();
        self.array(name, dtype, &[values.len() as i64], Bytes::Inline(bytes));
    }

    /// A vector of i64.
    pub(in crate::load) fn integers(&mut self, name: &str, values: &[i64]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(name, DType::I64, &[values.len() as i64], Bytes::Inline(bytes));
    }

    /// Begins a node of the other format: the operators that follow are its.
    pub(in crate::load) fn begin(&mut self, name: &str, operation: &str) {
        self.names.push((name.to_owned(), operation.to_owned()));
    }

    pub(in crate::load) fn operation(&mut self, operation: &Operation<'_>) {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        self.of_node.push(self.names.len().saturating_sub(1));
        // Nodes of a body are no parts of others: each has the name of what it is made for.
        let inside = self.names.last().filter(|_| !self.loops.is_empty());
        let domain = if operation.name == STOP_GRADIENT { OWN } else { "" };
        self.graph.node.push(NodeProto {
            name: inside.map(|(name, _)| name.clone()).unwrap_or_default(),
            op_type: operation.name.to_owned(),
            domain: domain.to_owned(),
            input: owned(operation.inputs),
            output: owned(operation.outputs),
            attribute: operation.attributes.iter().map(|(name, value)| attribute(name, value)).collect(),
            ..NodeProto::default()
        });
    }

    /// Begins the body of a loop: the operators that follow are its, until it is closed. An iteration reads what is `carried`.
    pub(in crate::load) fn open_loop(&mut self, condition: &str, first: &[String], carried: &[String]) {
        let own = format!("{condition}#loop{}", self.names.len());
        let read = [format!("{own}/number"), format!("{own}/condition")];
        self.loops.push(OpenLoop {
            inputs: ["", condition].map(str::to_owned).into_iter().chain(first.iter().cloned()).collect(),
            body_inputs: read.iter().chain(carried).map(|name| untyped(name)).collect(),
            outer: std::mem::take(&mut self.graph.node),
            of_outer: std::mem::take(&mut self.of_node),
        });
    }

    /// Ends the body of the loop that was opened last, which hands `next` on while the condition holds. None: none is open.
    pub(in crate::load) fn close_loop(
        &mut self,
        condition: &str,
        next: &[String],
        results: &[String],
    ) -> Option<()> {
        let OpenLoop { inputs, body_inputs, outer, of_outer } = self.loops.pop()?;
        let body = GraphProto {
            node: std::mem::replace(&mut self.graph.node, outer),
            input: body_inputs,
            output: [condition].into_iter().chain(next.iter().map(String::as_str)).map(untyped).collect(),
            ..GraphProto::default()
        };
        self.of_node = of_outer;
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let outputs: Vec<&str> = results.iter().map(String::as_str).collect();
        self.operation(&Operation { name: "Loop", inputs: &inputs, outputs: &outputs, attributes: &[] });
        let body = AttributeProto {
            name: "body".to_owned(),
            r#type: attribute_type::GRAPH,
            g: Some(body.encode_to_vec()),
            ..AttributeProto::default()
        };
        self.graph.node.last_mut()?.attribute.push(body);
        Some(())
    }

    /// The graph lowered. Errors: those of [`super::load`].
    pub(in crate::load) fn lower(
        self,
        path: Option<&Path>,
        options: &LoadOptions,
        find: FindDims<'_>,
    ) -> Result<Graph> {
        if !self.loops.is_empty() {
            return Err(Error::model("", "a loop begins and does not end"));
        }
        let of = |domain: &str, version| OperatorSetIdProto { domain: domain.to_owned(), version };
        let versions = [of("", OPSET), of(OWN, 1)];
        // It names no file but itself.
        let folder = Folder::of(path, Links::Outside);
        let file =
            File { opsets: opsets(&versions), functions: Functions::default(), folder, is_of_torch: true };
        lower::lower_named(self.graph, file, &options.dims, find, Some((&self.names, &self.of_node)))
    }
}

fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.to_owned(), ..ValueInfoProto::default() }
}

fn attribute(name: &str, value: &Attribute<'_>) -> AttributeProto {
    let mut attribute = AttributeProto { name: name.to_owned(), ..AttributeProto::default() };
    match value {
        Attribute::Int(value) => (attribute.r#type, attribute.i) = (attribute_type::INT, *value),
        Attribute::Ints(values) => {
            (attribute.r#type, attribute.ints) = (attribute_type::INTS, values.to_vec());
        }
        Attribute::Float(value) => (attribute.r#type, attribute.f) = (attribute_type::FLOAT, *value as f32),
        Attribute::Text(text) => {
            (attribute.r#type, attribute.s) = (attribute_type::STRING, text.as_bytes().to_vec());
        }
        Attribute::Texts(texts) => {
            attribute.r#type = attribute_type::STRINGS;
            attribute.strings = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
        }
    }
    attribute
}
