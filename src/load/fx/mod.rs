//! Graphs of `torch.fx` in ATen operations, with the shape of every value, as a cost graph: a training step that was
//! traced and written as JSON (`"format": "torch-fx-aten-json-1"`).
//!
//! Every node of the graph but `output` is a node of the cost graph. Parameters and buffers are `param`, inputs and
//! targets `input`. An operation takes a launch and the longer of its arithmetic and its bytes at the published peak
//! rates of each kind of device. A view of the whole tensor takes nothing and makes nothing: its readers read the
//! tensor that it views.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use crate::error::{Error, Result};
use crate::json::json_error;
use crate::topology::PRESETS;
use crate::units::{Bytes, Nanos};

mod value;
mod work;

use value::{Made, made};
use work::Work;

/// What the field `format` begins with.
pub(super) const FORMAT: &str = "torch-fx-aten-json-";
/// The version that is read.
const VERSION: &str = "torch-fx-aten-json-1";
/// The most that all times, or all bytes, may add up to.
const MOST: u128 = i64::MAX as u128;

/// Operations whose result is all of their operand, in other axes.
const VIEWS: [&str; 15] = [
    "_reshape_alias",
    "_unsafe_view",
    "alias",
    "detach",
    "expand",
    "flatten",
    "lift_fresh",
    "permute",
    "reshape",
    "squeeze",
    "t",
    "transpose",
    "unflatten",
    "unsqueeze",
    "view",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    #[serde(default)]
    name: String,
    nodes: Vec<RawNode>,
    /// For people: who wrote the file, and what it holds.
    #[serde(default, rename = "torch")]
    _torch: Option<String>,
    #[serde(default, rename = "what")]
    _what: Option<String>,
    #[serde(default, rename = "outputs")]
    _outputs: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    name: String,
    op: String,
    #[serde(default)]
    target: Option<String>,
    #[serde(default)]
    args: Vec<Value>,
    #[serde(default)]
    kwargs: Map<String, Value>,
    #[serde(default)]
    val: Value,
    #[serde(default)]
    role: Option<String>,
    /// The parameter's name in its module.
    #[serde(default, rename = "path")]
    _path: Option<String>,
}

/// Reads such a graph. O(text).
///
/// Errors: malformed JSON (with line and column), a field, role, kind of node or element type that is not known, a
/// name used twice or not there, sizes that are too large.
pub(super) fn read(text: &[u8]) -> Result<CostGraph> {
    let file: File = serde_json::from_slice(text).map_err(|error| json_error(&error))?;
    if file.format != VERSION {
        return Err(Error::format("format", format!("{} is not supported", file.format))
            .with_help(format!("this program reads {VERSION}")));
    }
    let mut reader = Reader::new(&file.name);
    for node in &file.nodes {
        reader.node(node).map_err(|error| error.within(&format!("node {}", node.name)))?;
    }
    let graph = reader.builder.finish()?;
    if graph.node_count() == 0 {
        return Err(Error::model("nodes", "the graph has no nodes"));
    }
    Ok(graph)
}

/// An output of a node, and whether an operation makes it in the step.
#[derive(Clone, Copy)]
struct Tensor {
    node: NodeIx,
    output: u32,
    bytes: u64,
    is_computed: bool,
}

/// A name of the graph: the tensors that it stands for, and the shapes in which it shows them.
struct Known {
    tensors: Vec<Tensor>,
    made: Made,
}

struct Reader {
    builder: Builder,
    known: HashMap<String, Known>,
    time: u128,
    bytes: u128,
}

impl Reader {
    fn new(name: &str) -> Self {
        let kinds = PRESETS.iter().map(|preset| preset.name.to_owned()).collect();
        Self { builder: Builder::new(name, kinds), known: HashMap::new(), time: 0, bytes: 0 }
    }

    fn node(&mut self, node: &RawNode) -> Result<()> {
        match node.op.as_str() {
            "placeholder" => self.placeholder(node),
            "call_function" => self.call(node),
            "output" => self.output(node),
            other => Err(Error::format("op", format!("the kind of node {other} is not known"))),
        }
    }

    fn placeholder(&mut self, node: &RawNode) -> Result<()> {
        let made = made(&node.val)?;
        let bytes = made.one().ok_or_else(|| Error::model("val", "a placeholder is one tensor"))?.bytes;
        self.charge(0, bytes)?;
        let outputs = [Bytes(bytes)];
        let mut spec = NodeSpec { name: &node.name, outputs: &outputs, ..NodeSpec::default() };
        match node.role.as_deref() {
            Some("param" | "buffer") => (spec.op, spec.param_bytes) = ("param", Bytes(bytes)),
            Some("input" | "target") => spec.op = "input",
            Some(other) => return Err(Error::format("role", format!("{other} is not known"))),
            None => return Err(Error::format("role", "the role of the placeholder is missing")),
        }
        let ix = self.builder.add(&spec)?;
        let tensor = Tensor { node: ix, output: 0, bytes, is_computed: false };
        self.known.insert(node.name.clone(), Known { tensors: vec![tensor], made });
        Ok(())
    }

    fn call(&mut self, node: &RawNode) -> Result<()> {
        let target =
            node.target.as_deref().ok_or_else(|| Error::format("target", "the operation is missing"))?;
        let mut made = made(&node.val)?;
        let mut names = Vec::new();
        references(&node.args, &mut names);
        node.kwargs.values().for_each(|value| reference(value, &mut names));
        let read = names.iter().map(|name| self.find(name)).collect::<Result<Vec<_>>>()?;
        let tensors = match viewed(target, &node.args, &read)? {
            Some(viewed) => {
                self.view(node, target, viewed)?;
                // Readers of a broadcast tensor load what is broadcast.
                made.arrays.iter_mut().for_each(|array| array.bytes = array.bytes.min(viewed.bytes));
                vec![viewed]
            }
            None => {
                let arrays: Vec<_> = read.iter().flat_map(|known| &known.made.arrays).collect();
                let work = Work::of(target, &node.args, &arrays, &made)?;
                let tensors: Vec<Tensor> =
                    read.iter().flat_map(|known| known.tensors.iter().copied()).collect();
                self.operation(node, target, &Operation { work, reads: tensors, made: &made })?
            }
        };
        self.known.insert(node.name.clone(), Known { tensors, made });
        Ok(())
    }

    fn find(&self, name: &str) -> Result<&Known> {
        self.known.get(name).ok_or_else(|| Error::model("args", format!("there is no node {name} before it")))
    }

    /// Adds a node that makes nothing.
    fn view(&mut self, node: &RawNode, target: &str, viewed: Tensor) -> Result<()> {
        let times = vec![Some(Nanos::ZERO); PRESETS.len()];
        let spec = NodeSpec { name: &node.name, op: target, times: &times, ..NodeSpec::default() };
        let ix = self.builder.add(&spec)?;
        self.builder.connect(viewed.node, viewed.output, ix);
        Ok(())
    }

    /// Adds a node that computes, and returns what it makes.
    fn operation(&mut self, node: &RawNode, target: &str, operation: &Operation<'_>) -> Result<Vec<Tensor>> {
        let Operation { work, reads, made } = operation;
        let times: Vec<Option<Nanos>> = PRESETS.iter().map(|preset| Some(work.time(preset))).collect();
        let outputs: Vec<Bytes> = made.arrays.iter().map(|array| Bytes(array.bytes)).collect();
        let longest = times.iter().flatten().map(|time| time.0).max().unwrap_or(0);
        self.charge(longest, outputs.iter().fold(0, |sum, bytes| sum.saturating_add(bytes.0)))?;
        let overwrites = base(target).ends_with('_')
            && reads.first().is_some_and(|first| first.is_computed && outputs == [Bytes(first.bytes)]);
        let ix = self.builder.add(&NodeSpec {
            name: &node.name,
            op: target,
            times: &times,
            outputs: &outputs,
            in_place: if overwrites { &[(0, 0)] } else { &[] },
            ..NodeSpec::default()
        })?;
        for tensor in reads {
            self.builder.connect(tensor.node, tensor.output, ix);
        }
        let tensor =
            |(bytes, output): (&Bytes, u32)| Tensor { node: ix, output, bytes: bytes.0, is_computed: true };
        Ok(outputs.iter().zip(0..).map(tensor).collect())
    }

    /// What the graph gives back stays to the end.
    fn output(&mut self, node: &RawNode) -> Result<()> {
        let mut names = Vec::new();
        references(&node.args, &mut names);
        for name in names {
            let tensors = self.find(name)?.tensors.clone();
            for tensor in tensors {
                self.builder.set_result(tensor.node, tensor.output);
            }
        }
        Ok(())
    }

    /// Error: all times, or all bytes, come to more than can be added.
    fn charge(&mut self, time: u64, bytes: u64) -> Result<()> {
        self.time += u128::from(time);
        self.bytes += u128::from(bytes);
        if self.time > MOST || self.bytes > MOST {
            return Err(Error::model("", "the costs up to here add up to more than 2^63 - 1"));
        }
        Ok(())
    }
}

/// A node that computes: its cost, what it reads and what it makes.
struct Operation<'a> {
    work: Work,
    reads: Vec<Tensor>,
    made: &'a Made,
}

/// The tensor that a node is a view of; none where it makes one of its own.
fn viewed(target: &str, args: &[Value], read: &[&Known]) -> Result<Option<Tensor>> {
    let [operand] = read else { return Ok(None) };
    if target == "getitem" {
        let index = args.get(1).and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
        let tensor = index.and_then(|index| operand.tensors.get(index).copied());
        return tensor
            .map(Some)
            .ok_or_else(|| Error::model("args", "getitem takes a result that is not there"));
    }
    let [whole] = operand.tensors.as_slice() else { return Ok(None) };
    Ok(VIEWS.contains(&base(target)).then_some(*whole))
}

/// The name of an operation without its library and overload: `add` of `aten.add.Tensor`.
fn base(target: &str) -> &str {
    let name = target.strip_prefix("aten.").unwrap_or(target);
    name.split('.').next().unwrap_or(name)
}

/// Names of nodes that arguments mention, in order.
fn references<'v>(values: &'v [Value], found: &mut Vec<&'v str>) {
    values.iter().for_each(|value| reference(value, found));
}

/// Recursion is bounded by the parser (128 levels).
fn reference<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
    match value {
        Value::Object(fields) => match fields.get("node").and_then(Value::as_str) {
            Some(name) => found.push(name),
            None => fields.values().for_each(|value| reference(value, found)),
        },
        Value::Array(values) => references(values, found),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
