//! What a model demands of its plan, as plain data that the caller derives from the model.

use crate::costgraph::microbatch::{self, Runs};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role, TensorIx};
use crate::units::Bytes;

use super::super::{Labels, Read, SliceLabel};

/// What a model demands of its plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedModel {
    /// Digest of the model.
    pub hash: String,
    /// The source's nodes, in its order.
    pub nodes: Vec<String>,
    /// What buffers hold, other than workspace.
    pub values: Vec<ExpectedValue>,
    /// What must be launched, each at least once.
    pub launches: Vec<ExpectedLaunch>,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Handed over before the step.
    Input,
    /// Loaded before the step, and never written in it.
    Param,
    /// A constant of the model, likewise.
    Const,
    /// What is kept from step to step, as it is when the step begins.
    State,
    /// Made by a launch.
    Launch,
}

/// A value of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedValue {
    /// Its name, unique among values.
    pub name: String,
    /// Its type: `f32[64,1024]`.
    pub ty: String,
    /// Its size.
    pub bytes: Bytes,
    /// Where it comes from.
    pub origin: Origin,
    /// True where it must be there when the step ends.
    pub is_result: bool,
    /// True where it is an output of the model, which the values of all microbatches make up.
    pub is_output: bool,
    /// The state whose place it takes in the next step, by its position among the values.
    pub updates: Option<u32>,
    /// True where there is one for each microbatch of a step that is divided.
    pub each: bool,
    /// What it is a part of.
    pub slice: Option<SliceLabel>,
}

/// One group of the model. Values are positions in [`ExpectedModel::values`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedLaunch {
    /// The group's number.
    pub group: u32,
    /// Digest of its kernel, in hexadecimal.
    pub kernel: String,
    /// The source's nodes, in execution order.
    pub nodes: Vec<String>,
    /// The operands in order.
    pub reads: Vec<u32>,
    /// The results in order.
    pub writes: Vec<u32>,
    /// Bytes of the workspace; zero where there is none.
    pub workspace: Bytes,
    /// Which results may be where an operand does.
    pub in_place: Vec<InPlace>,
    /// Where in its only operand its only result lies, where nothing runs.
    pub view: Option<u64>,
    /// True where it runs for each microbatch of a step that is divided.
    pub each: bool,
}

/// A result that may be written where an operand is, both positions in [`ExpectedModel::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// What is read.
    pub operand: u32,
    /// What is written.
    pub result: u32,
}

impl ExpectedModel {
    /// What a labelled cost graph demands. O(nodes + edges).
    pub fn new(graph: &CostGraph, labels: &Labels, hash: impl Into<String>) -> Self {
        let runs = microbatch::runs(graph);
        let mut values = Values { list: Vec::new(), tensors: Vec::new(), owned: Vec::new() };
        values.add(graph, labels, &runs);
        let launches = graph.nodes().zip(&labels.nodes);
        let launches = launches.filter(|(node, _)| graph.role(*node) == Role::Compute);
        let launches = launches.map(|(node, label)| ExpectedLaunch {
            group: label.group,
            kernel: format!("{:016x}", label.hash),
            nodes: label.nodes.clone(),
            reads: values.reads(graph, node, label.reads.as_deref()),
            writes: graph.outputs(node).map(|tensor| values.tensors[tensor.index()]).collect(),
            workspace: graph.workspace_bytes(node),
            in_place: values.in_place(graph, node),
            view: graph.view(node),
            each: runs[node.index()] == Runs::Each,
        });
        Self {
            hash: hash.into(),
            nodes: labels.placement.iter().map(|(node, _)| node.clone()).collect(),
            launches: launches.collect(),
            values: values.list,
        }
    }
}

/// The values so far, and where to find them.
struct Values {
    /// Parameters by number, then what is made or handed over, then what nodes own.
    list: Vec<ExpectedValue>,
    /// By tensor; a parameter's where it is one.
    tensors: Vec<u32>,
    /// By node that owns something.
    owned: Vec<Option<u32>>,
}

impl Values {
    fn add(&mut self, graph: &CostGraph, labels: &Labels, runs: &[Runs]) {
        for number in 0..graph.param_count() {
            let label = labels.params.get(number).cloned().unwrap_or_default();
            self.list.push(ExpectedValue {
                name: label.name,
                ty: label.ty,
                bytes: graph.param_bytes(ParamIx(number as u32)),
                origin: if label.constant { Origin::Const } else { Origin::Param },
                is_result: false,
                is_output: false,
                updates: None,
                each: false,
                slice: label.slice,
            });
        }
        for tensor in graph.tensors() {
            let label = labels.tensors.get(tensor.index()).cloned().unwrap_or_default();
            let producer = graph.producer(tensor);
            let origin = match (graph.role(producer), graph.param(producer)) {
                (_, Some(param)) => {
                    self.list[param.index()].is_result |= graph.is_result(tensor);
                    self.tensors.push(param.0);
                    continue;
                }
                (Role::Input, None) if label.state => Origin::State,
                (Role::Input, None) => Origin::Input,
                (Role::Param, None) => Origin::Param,
                (Role::Compute, None) => Origin::Launch,
            };
            self.tensors.push(self.list.len() as u32);
            self.list.push(ExpectedValue {
                name: label.name,
                ty: label.ty,
                bytes: graph.tensor_bytes(tensor),
                origin,
                is_result: graph.is_result(tensor),
                is_output: label.output,
                updates: None,
                each: runs[producer.index()] == Runs::Each,
                slice: label.slice,
            });
        }
        for &(new, state) in graph.updates() {
            let (new, state) = (self.tensors[new.index()], self.tensors[state.index()]);
            self.list[new as usize].updates = Some(state);
        }
        for node in graph.nodes() {
            let bytes = graph.owned_bytes(node);
            let owned = (bytes > Bytes::ZERO).then_some(self.list.len() as u32);
            self.owned.push(owned);
            if owned.is_some() {
                self.list.push(ExpectedValue {
                    name: graph.node_name(node).to_owned(),
                    ty: format!("u8[{}]", bytes.0),
                    bytes,
                    origin: Origin::Param,
                    is_result: false,
                    is_output: false,
                    updates: None,
                    each: false,
                    slice: None,
                });
            }
        }
    }

    /// The operands in order: those that are named, else the node's inputs; then what it owns.
    fn reads(&self, graph: &CostGraph, node: NodeIx, named: Option<&[Read]>) -> Vec<u32> {
        let tensor = |tensor: TensorIx| self.tensors[tensor.index()];
        let read = |read: &Read| match *read {
            Read::Tensor(found) => tensor(found),
            Read::Param(param) => param.0,
        };
        let mut reads: Vec<u32> = match named {
            Some(named) => named.iter().map(read).collect(),
            None => graph.inputs(node).iter().copied().map(tensor).collect(),
        };
        reads.extend(self.owned[node.index()]);
        reads
    }

    fn in_place(&self, graph: &CostGraph, node: NodeIx) -> Vec<InPlace> {
        let pairs = graph.in_place(node).filter_map(|(input, output)| {
            let read = graph.inputs(node).get(input as usize)?;
            let written = graph.output(node, output)?;
            Some(InPlace { operand: self.tensors[read.index()], result: self.tensors[written.index()] })
        });
        pairs.collect()
    }
}
