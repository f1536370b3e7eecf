//! A model in parts: a file of its own for the nodes that one device computes between what it waits for.
//!
//! A node belongs to the stage behind the last value that it takes from another device, so that no two parts wait for one
//! another; parts are the stages of each device. What a part reads of another is one of its inputs, by the value's own name.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use prost::Message;

use super::lower::{self, inner, uses};
use super::proto::{
    DimensionProto, GraphProto, ModelProto, SequenceTypeProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeProto, ValueInfoProto,
};
use super::tensor;
use crate::error::{Error, Report, Result};
use crate::files::Folder;
use crate::load::LoadOptions;

/// Before this version of the format initialisers were listed among the inputs.
const WITHOUT_INITIALIZERS: i64 = 4;

/// What one device computes at a time, as a model of its own.
#[derive(Debug)]
pub struct Part {
    /// The device's name.
    pub device: String,
    /// Names of its inputs, which are inputs of the model or outputs of earlier parts.
    pub inputs: Vec<String>,
    /// Names of what it makes for later parts, or for the model.
    pub outputs: Vec<String>,
    /// The file.
    pub bytes: Vec<u8>,
}

/// The parts of a model, each behind those whose outputs it reads. `device_of` says where the node of a name is; a node
/// without a name has that of its first output. Weights in files beside the model are in the parts.
///
/// Errors: those of [`load`](super::load()); a node without a device; a value whose type a file cannot state; a part of more
/// than 2 GiB. Nodes whose results no other part and no output reads are left out. Linear in the file, but for sorting.
pub fn parts<'d>(
    bytes: &[u8],
    path: Option<&Path>,
    options: &LoadOptions,
    device_of: &dyn Fn(&str) -> Option<&'d str>,
) -> Result<Vec<Part>> {
    let (model, _) = super::decoded(bytes)?;
    let file = super::beside(&model, path, options)?;
    let folder = file.folder.clone();
    let graph = model.graph.as_ref().ok_or_else(|| Error::format("", "the ONNX model has no graph"))?;
    let cut = Cut::new(graph, device_of)?;
    let between: BTreeSet<String> = cut.between().into_iter().map(str::to_owned).collect();
    let types = lower::types(graph.clone(), file, &options.dims, &between)?;
    let context =
        Context { model: &model, folder, types: between.iter().map(String::as_str).zip(types).collect() };
    let parts = (0..cut.stages.len()).map(|part| cut.part(part, &context));
    // What nothing reads makes no part: no runtime takes a file without outputs.
    parts.filter(|part| part.as_ref().is_ok_and(|part| !part.outputs.is_empty()) || part.is_err()).collect()
}

/// What parts are made of beside their nodes.
struct Context<'a> {
    model: &'a ModelProto,
    folder: Folder,
    /// Of each value that parts give to one another, or the model's user: its type, where a file can state it.
    types: HashMap<&'a str, Option<ValueInfoProto>>,
}

/// Which node is in which part.
struct Cut<'g> {
    graph: &'g GraphProto,
    inner: Vec<Vec<GraphProto>>,
    /// Places of initialisers, the sparse ones behind the others, by name.
    initial: HashMap<&'g str, usize>,
    /// The model's inputs.
    given: HashSet<&'g str>,
    /// What the file states of values.
    stated: HashMap<&'g str, &'g ValueInfoProto>,
    /// By value, the node that makes it.
    makers: HashMap<&'g str, usize>,
    /// By node, its part; none of constants, which each part has of its own.
    part_of: Vec<Option<usize>>,
    /// Each part's device and nodes.
    stages: Vec<(String, Vec<usize>)>,
    /// Each node's place in an order in which values are there before they are read.
    place: Vec<usize>,
}

impl<'g> Cut<'g> {
    fn new<'d>(graph: &'g GraphProto, device_of: &dyn Fn(&str) -> Option<&'d str>) -> Result<Self> {
        let sparse = graph.sparse_initializer.iter();
        let sparse = sparse.map(|sparse| sparse.values.as_ref().map_or("", |values| values.name.as_str()));
        let arrays = graph.initializer.iter().map(|tensor| tensor.name.as_str()).chain(sparse);
        let initial: HashMap<&str, usize> = arrays.enumerate().map(|(place, name)| (name, place)).collect();
        let given: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        let order = lower::order(&graph.node, |name| initial.contains_key(name) || given.contains(name))?;
        let mut stated = HashMap::new();
        for value in graph.value_info.iter().chain(&graph.output).chain(&graph.input) {
            if value.r#type.as_ref().is_some_and(|ty| *ty != TypeProto::default()) {
                stated.insert(value.name.as_str(), value);
            }
        }
        let inner: Vec<Vec<GraphProto>> = graph.node.iter().map(inner).collect::<Result<_>>()?;
        let mut makers = HashMap::new();
        for (index, node) in graph.node.iter().enumerate() {
            makers.extend(node.output.iter().map(|output| (output.as_str(), index)));
        }
        let mut cut = Self {
            graph,
            inner,
            initial,
            given,
            stated,
            makers,
            part_of: vec![None; graph.node.len()],
            stages: Vec::new(),
            place: vec![0; graph.node.len()],
        };
        cut.divide(&order, device_of)?;
        Ok(cut)
    }

    /// Gives each node to its part.
    fn divide<'d>(&mut self, order: &[usize], device_of: &dyn Fn(&str) -> Option<&'d str>) -> Result<()> {
        // By node, its stage and its device's number.
        let mut at: Vec<Option<(usize, usize)>> = vec![None; self.graph.node.len()];
        let mut stages: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        let (mut devices, mut numbers): (Vec<&str>, HashMap<&str, usize>) = Default::default();
        for (place, &index) in order.iter().enumerate() {
            self.place[index] = place;
            let node = &self.graph.node[index];
            if node.op_type == "Constant" {
                continue;
            }
            let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
            let name = name.map_or("", String::as_str);
            let before: Vec<(usize, usize)> =
                self.uses(index).filter_map(|name| at[*self.makers.get(name)?]).collect();
            let stated = device_of(name).map(|device| {
                *numbers.entry(device).or_insert_with(|| {
                    devices.push(device);
                    devices.len() - 1
                })
            });
            // What was folded away when the plan was made is where its operands are.
            let device = stated.or(before.last().map(|&(_, device)| device));
            let device = device.or((!devices.is_empty()).then_some(0)).ok_or_else(|| {
                Error::format(format!("node {name}"), "the plan does not say where it is")
                    .with_help("plan the model again")
            })?;
            let behind = |&(stage, other): &(usize, usize)| stage + usize::from(other != device);
            let stage = before.iter().map(behind).max().unwrap_or(0);
            at[index] = Some((stage, device));
            stages.entry((stage, device)).or_default().push(index);
        }
        for (number, ((_, device), nodes)) in stages.into_iter().enumerate() {
            nodes.iter().for_each(|&node| self.part_of[node] = Some(number));
            self.stages.push((devices[device].to_owned(), nodes));
        }
        Ok(())
    }

    fn uses(&self, node: usize) -> impl Iterator<Item = &str> {
        uses(&self.graph.node[node], &self.inner[node])
    }

    /// Values that a part makes and another, or the model's user, reads.
    fn between(&self) -> BTreeSet<&str> {
        let results = self.graph.output.iter().map(|output| output.name.as_str());
        let made = results.filter(|name| self.part_that_makes(name).is_some());
        let read = (0..self.graph.node.len()).flat_map(|node| {
            let part = self.part_of[node];
            let elsewhere =
                move |name: &&str| self.part_that_makes(name).is_some_and(|maker| Some(maker) != part);
            self.uses(node).filter(elsewhere)
        });
        made.chain(read).collect()
    }

    fn part_that_makes(&self, name: &str) -> Option<usize> {
        self.makers.get(name).and_then(|&node| self.part_of[node])
    }

    /// The nodes of a part in an order in which they can run, with the constants that they read; and of those that are the
    /// model's results, which the first part is to have.
    fn nodes(&self, number: usize, results: &[&str]) -> Vec<usize> {
        let own = &self.stages[number].1;
        let read = own.iter().flat_map(|&node| self.uses(node)).chain(results.iter().copied());
        let constants = read.filter_map(|name| self.makers.get(name)).copied();
        let constants = constants.filter(|&node| self.part_of[node].is_none());
        let all = own.iter().copied().chain(constants);
        let placed: BTreeSet<(usize, usize)> = all.map(|node| (self.place[node], node)).collect();
        placed.into_iter().map(|(_, node)| node).collect()
    }

    /// Results of the model that nothing computes.
    fn fixed(&self) -> Vec<&'g str> {
        let results = self.graph.output.iter().map(|output| output.name.as_str());
        let is_constant =
            |name: &str| self.makers.get(name).is_some_and(|&node| self.part_of[node].is_none());
        results.filter(|name| is_constant(name) || self.initial.contains_key(name)).collect()
    }

    fn part(&self, number: usize, context: &Context<'_>) -> Result<Part> {
        let (device, own) = &self.stages[number];
        let fixed = if number == 0 { self.fixed() } else { Vec::new() };
        let nodes = self.nodes(number, &fixed);
        let results = |node: usize| self.graph.node[node].output.iter().map(String::as_str);
        let made: HashSet<&str> = nodes.iter().flat_map(|&node| results(node)).collect();
        let fixed_arrays = fixed.iter().copied().filter(|name| self.initial.contains_key(name));
        let mut held: BTreeSet<usize> = fixed_arrays.map(|name| self.initial[name]).collect();
        let (mut inputs, mut seen) = (Vec::new(), HashSet::new());
        for name in nodes.iter().flat_map(|&node| self.uses(node)).filter(|name| !made.contains(name)) {
            if let Some(&place) = self.initial.get(name) {
                held.insert(place);
            } else if (self.given.contains(name) || self.makers.contains_key(name)) && seen.insert(name) {
                inputs.push(name.to_owned());
            }
        }
        let outputs = own.iter().flat_map(|&node| results(node));
        let outputs = outputs.filter(|name| context.types.contains_key(name)).chain(fixed);
        let outputs: Vec<String> = outputs.map(str::to_owned).collect();
        let model = self.model(number, &nodes, &held, [&inputs, &outputs], context)?;
        if i32::try_from(model.encoded_len()).is_err() {
            let message =
                format!("part {number}, on {device}, has more than the 2 GiB that an ONNX file can hold");
            return Err(Error::Unsupported(Report::new("", message)));
        }
        Ok(Part { device: device.clone(), inputs, outputs, bytes: model.encode_to_vec() })
    }

    fn model(
        &self,
        number: usize,
        nodes: &[usize],
        held: &BTreeSet<usize>,
        [inputs, outputs]: [&[String]; 2],
        context: &Context<'_>,
    ) -> Result<ModelProto> {
        let ModelProto { ir_version, producer_name, opset_import, functions, .. } = context.model;
        let dense = self.graph.initializer.len();
        let mut initializer: Vec<TensorProto> =
            held.range(..dense).map(|&place| self.graph.initializer[place].clone()).collect();
        for tensor in &mut initializer {
            let place = format!("initializer {}", tensor.name);
            tensor::embed(tensor, &context.folder).map_err(|error| error.within(&place))?;
        }
        let sparse = held.range(dense..).map(|&place| self.graph.sparse_initializer[place - dense].clone());
        let stated = |name: &String| self.stated(name, context);
        let mut input: Vec<ValueInfoProto> = inputs.iter().map(stated).collect::<Result<_>>()?;
        if *ir_version < WITHOUT_INITIALIZERS {
            let names = initializer.iter().map(|tensor| tensor.name.as_str());
            input.extend(names.filter_map(|name| self.stated.get(name).copied()).cloned());
        }
        let graph = GraphProto {
            node: nodes.iter().map(|&node| self.graph.node[node].clone()).collect(),
            name: format!("{}.{number}", self.graph.name),
            initializer,
            input,
            output: outputs.iter().map(stated).collect::<Result<_>>()?,
            value_info: Vec::new(),
            sparse_initializer: sparse.collect(),
        };
        Ok(ModelProto {
            ir_version: *ir_version,
            producer_name: producer_name.clone(),
            graph: Some(graph),
            opset_import: opset_import.clone(),
            functions: functions.clone(),
        })
    }

    /// Name and type of a value: an input's as the file states it, others' as their operations make them, as what files state
    /// of those may be of another batch.
    fn stated(&self, name: &str, context: &Context<'_>) -> Result<ValueInfoProto> {
        let made = context.types.get(name).and_then(Option::as_ref);
        let stated = self.stated.get(name).copied();
        let is_tensor =
            |value: &&ValueInfoProto| value.r#type.as_ref().is_some_and(|ty| ty.tensor_type.is_some());
        // What is no tensor in the file may be computed with as one.
        let other = stated.filter(|value| !is_tensor(value));
        if let Some(value) = other.or(made).or(stated) {
            return Ok(value.clone());
        }
        let array = self.initial.get(name).and_then(|&place| self.graph.initializer.get(place));
        if let Some(tensor) = array {
            return Ok(of_tensor(tensor));
        }
        let message = "it is no tensor, and the file does not state its type";
        let report = Report::new(format!("value {name}"), message);
        Err(Error::Unsupported(report.help("onnx.shape_inference states it")))
    }
}

fn of_tensor(tensor: &TensorProto) -> ValueInfoProto {
    let dim =
        tensor.dims.iter().map(|&dim| DimensionProto { dim_value: Some(dim), dim_param: None }).collect();
    value_info(&tensor.name, tensor.data_type, TensorShapeProto { dim })
}

/// A value's name with the number of its type, and its sizes.
pub(super) fn value_info(name: &str, elem_type: i32, shape: TensorShapeProto) -> ValueInfoProto {
    let tensor_type = TensorTypeProto { elem_type, shape: Some(shape) };
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { tensor_type: Some(tensor_type), ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}

/// A value's name, of a sequence of tensors of the type of this number.
pub(super) fn sequence_info(name: &str, elem_type: i32) -> ValueInfoProto {
    let tensor_type = Some(TensorTypeProto { elem_type, shape: None });
    let elem_type = Some(TypeProto { tensor_type, ..TypeProto::default() });
    let sequence_type = Some(SequenceTypeProto { elem_type }.encode_to_vec());
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { sequence_type, ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}
