//! Parameters that torch's exporters wrote once because they were equal, as those of a module that is not trained yet are:
//! biases of 0, scales of 1, copies of a layer. Each is an initialiser again, as it is in the module, so that training moves
//! them apart. Parameters that the module ties have no name of their own in such a file, and stay one.
//!
//! `dynamo=False` leaves an `Identity` called after each parameter that it took out. `dynamo=True` leaves nothing but the
//! operation's line of the program, beside the nodes that were made of it, with the parameters that it read.

use std::collections::{BTreeSet, HashMap, HashSet};

use prost::Message;

use super::proto::{GraphProto, NodeProto, StringStringEntryProto, TensorProto, ValueInfoProto};
use super::tensor;

/// Which parameter or buffer of the program an array is.
const PLACEHOLDER: &str = "pkg.torch.onnx.original_node_name";
/// The operation of the program that a node was made of.
const LINE: &str = "pkg.torch.onnx.fx_node";
/// The modules that an operation is in: `['', 'encoder', 'encoder.norm', 'layer_norm_1']`.
const SCOPES: &str = "pkg.torch.onnx.name_scopes";
/// Bytes that are given back, at most, for each byte of a file's arrays: more than any module has equal layers, and a file that
/// names one array very often fills no memory.
const COPIES: usize = 128;

/// Gives each parameter an initialiser of its own, and takes what exporters wrote beside nodes off them. Returns the names of shifts
/// that the exporter left out since they begin with 0. O(nodes + arrays that are given back).
pub(super) fn part(graph: &mut GraphProto) -> Vec<String> {
    named(graph);
    let merged = read(graph);
    let left_out = merged.left_out(&graph.node);
    graph.node.iter_mut().for_each(|node| node.metadata_props.clear());
    left_out
}

/// Bytes that may be given back.
fn affordable(graph: &GraphProto) -> usize {
    graph.initializer.iter().map(TensorProto::encoded_len).sum::<usize>().saturating_mul(COPIES)
}

/// Those that an `Identity` names.
fn named(graph: &mut GraphProto) {
    let arrays = trainable(graph);
    let results: HashSet<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
    let is_merged = |node: &NodeProto| match (&*node.input, &*node.output) {
        ([of], [name]) if node.op_type == "Identity" => {
            arrays.contains_key(of.as_str()) && is_parameters(name) && !results.contains(name.as_str())
        }
        _ => false,
    };
    let merged: Vec<bool> = graph.node.iter().map(is_merged).collect();
    let of_merged = graph.node.iter().zip(&merged).filter(|&(_, &merged)| merged);
    let pairs =
        of_merged.map(|(node, _)| (&node.output[0], &graph.initializer[arrays[node.input[0].as_str()]]));
    let pairs: Vec<(&String, &TensorProto)> = pairs.collect();
    if pairs.iter().map(|(_, array)| array.encoded_len()).sum::<usize>() > affordable(graph) {
        return;
    }
    let own = |(name, array): (&String, &TensorProto)| TensorProto { name: name.clone(), ..array.clone() };
    let own: Vec<TensorProto> = pairs.into_iter().map(own).collect();
    let mut merged = merged.into_iter();
    graph.node.retain(|_| !merged.next().unwrap_or(false));
    graph.initializer.extend(own);
}

/// Where the initialisers of floats are that a caller may not replace.
fn trainable(graph: &GraphProto) -> HashMap<&str, usize> {
    let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
    let is_trainable = |array: &TensorProto| {
        let is_of_floats = tensor::header(array).is_ok_and(|header| header.dtype.is_float());
        is_of_floats && !inputs.contains(array.name.as_str())
    };
    let arrays = graph.initializer.iter().enumerate().filter(|(_, array)| is_trainable(array));
    arrays.map(|(index, array)| (array.name.as_str(), index)).collect()
}

/// Whether a value is called as a parameter of the module, and not as the result of an operation (`/norm/Identity_output_0`, `17`)
/// or of what the exporter folded (`onnx::Conv_654`).
fn is_parameters(name: &str) -> bool {
    !name.starts_with('/') && !name.contains("::") && !name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Those that lines of the program read.
fn read(graph: &mut GraphProto) -> Merged {
    let mut merged = Merged::of(graph);
    let mut nodes = std::mem::take(&mut graph.node);
    for node in &mut nodes {
        for (input, placeholder) in merged.replaced(node) {
            node.input[input] = merged.own(&placeholder, input, node, graph);
        }
    }
    graph.node = nodes;
    merged
}

/// What the program calls the arrays of a file.
struct Merged {
    stored: HashMap<String, Stored>,
    /// The arrays of the program's parameters and buffers.
    names: HashMap<String, String>,
    given_back: HashSet<String>,
    /// Of what was given back.
    bytes: usize,
    /// The most that they may be.
    affordable: usize,
}

/// An array of the file.
struct Stored {
    placeholder: String,
    initialiser: usize,
    /// What is stated of it.
    value: usize,
}

impl Merged {
    fn of(graph: &GraphProto) -> Self {
        let initialisers = trainable(graph);
        let (stored, names) = (HashMap::new(), HashMap::new());
        let affordable = affordable(graph);
        let mut merged = Self { stored, names, given_back: HashSet::new(), bytes: 0, affordable };
        for (value, info) in graph.value_info.iter().enumerate() {
            let placeholder = stated(&info.metadata_props, PLACEHOLDER);
            let (Some(placeholder), Some(&initialiser)) = (placeholder, initialisers.get(info.name.as_str()))
            else {
                continue;
            };
            merged.names.insert(placeholder.to_owned(), info.name.clone());
            let stored = Stored { placeholder: placeholder.to_owned(), initialiser, value };
            merged.stored.insert(info.name.clone(), stored);
        }
        merged
    }

    /// The inputs of a node that stand for parameters which were taken out, and what the program calls those.
    fn replaced(&self, node: &NodeProto) -> Vec<(usize, String)> {
        let line = stated(&node.metadata_props, LINE).unwrap_or_default();
        let read = placeholders(line);
        let arrays = node.input.iter().enumerate();
        let arrays = arrays.filter_map(|(input, name)| self.stored.get(name).map(|stored| (input, stored)));
        let arrays: Vec<(usize, &Stored)> = arrays.collect();
        // These have what they read in the program's order; of others, sums have shifts behind products and before them.
        if node.op_type.ends_with("Normalization") && arrays.len() == read.len() {
            let pairs = arrays.iter().zip(&read).filter(|((_, stored), name)| stored.placeholder != **name);
            return pairs.map(|(&(input, _), &name)| (input, name.to_owned())).collect();
        }
        let missing = |name: &&&str| !self.names.contains_key(**name) || self.given_back.contains(**name);
        let mut missing: Vec<&str> = read.iter().filter(missing).copied().collect();
        let mut replaced = Vec::new();
        for (input, stored) in arrays {
            let is_its_own = read.contains(&stored.placeholder.as_str());
            let found = missing.iter().position(|name| !is_its_own && are_alike(&node.input[input], name));
            replaced.extend(found.map(|at| (input, missing.remove(at).to_owned())));
        }
        replaced
    }

    /// Shifts in lines of the program that the file has no array of. Weights without one are there in another order.
    fn left_out(&self, nodes: &[NodeProto]) -> Vec<String> {
        let mut names = BTreeSet::new();
        for node in nodes.iter().filter(|_| !self.stored.is_empty()) {
            let line = stated(&node.metadata_props, LINE).unwrap_or_default();
            let is_left_out = |name: &&str| name.ends_with("bias") && !self.names.contains_key(*name);
            names.extend(placeholders(line).into_iter().filter(is_left_out).map(|name| called(name, node)));
        }
        names.into_iter().collect()
    }

    /// The initialiser of a parameter that begins as a node's input does.
    fn own(&mut self, placeholder: &str, input: usize, node: &NodeProto, graph: &mut GraphProto) -> String {
        if let Some(known) = self.names.get(placeholder) {
            return known.clone();
        }
        let name = called(placeholder, node);
        let of = &self.stored[&node.input[input]];
        self.bytes += graph.initializer[of.initialiser].encoded_len();
        if self.bytes > self.affordable {
            return node.input[input].clone();
        }
        let array = TensorProto { name: name.clone(), ..graph.initializer[of.initialiser].clone() };
        let value = described(&graph.value_info[of.value], &name, placeholder);
        graph.initializer.push(array);
        graph.value_info.push(value);
        self.names.insert(placeholder.to_owned(), name.clone());
        self.given_back.insert(placeholder.to_owned());
        name
    }
}

/// What the file says of a parameter that it took out.
fn described(of: &ValueInfoProto, name: &str, placeholder: &str) -> ValueInfoProto {
    let mut value = ValueInfoProto { name: name.to_owned(), ..of.clone() };
    for entry in &mut value.metadata_props {
        match entry.key.as_str() {
            PLACEHOLDER => placeholder.clone_into(&mut entry.value),
            super::trained::KIND if placeholder.starts_with("p_") => "PARAMETER".clone_into(&mut entry.value),
            super::trained::KIND => "BUFFER".clone_into(&mut entry.value),
            _ => {}
        }
    }
    value
}

/// Whether a parameter of the program has the last name of an array.
fn are_alike(array: &str, placeholder: &str) -> bool {
    let last = array.rsplit('.').next().unwrap_or(array).to_ascii_lowercase();
    placeholder.to_ascii_lowercase().ends_with(&last)
}

/// Parameters and buffers in a line, in order: `args = (%linear, [8], %p_n2_weight, %p_n2_bias)`.
fn placeholders(line: &str) -> Vec<&str> {
    let operands = line.split_once("](").map_or("", |(_, operands)| operands);
    let names = operands.split('%').skip(1).map(|rest| {
        let end = rest.find(|end: char| !end.is_alphanumeric() && end != '_').unwrap_or(rest.len());
        &rest[..end]
    });
    names.filter(|name| unprefixed(name).is_some()).collect()
}

/// The name of a parameter or buffer, whose dots are `_`.
fn unprefixed(placeholder: &str) -> Option<&str> {
    placeholder.strip_prefix("p_").or_else(|| placeholder.strip_prefix("b_"))
}

/// The name in its module of a parameter that a node's line reads, as far as it is told.
fn called(placeholder: &str, node: &NodeProto) -> String {
    let path = stated(&node.metadata_props, SCOPES).and_then(|scopes| in_module(placeholder, scopes));
    path.unwrap_or_else(|| unprefixed(placeholder).unwrap_or(placeholder).to_owned())
}

/// What a parameter of the innermost module that it is in is called: `encoder.norm.weight` of `p_encoder_norm_weight`.
fn in_module(placeholder: &str, scopes: &str) -> Option<String> {
    let flat = unprefixed(placeholder)?;
    let modules = scopes.split('\'').skip(1).step_by(2);
    let own = |module: &str| {
        let head = flat.get(..module.len())?;
        let own = flat[module.len()..].strip_prefix('_')?;
        let is_in = head.eq_ignore_ascii_case(&module.replace('.', "_"));
        (is_in && !module.is_empty()).then(|| format!("{module}.{own}"))
    };
    modules.filter_map(own).max_by_key(|name| name.rfind('.'))
}

fn stated<'a>(entries: &'a [StringStringEntryProto], key: &str) -> Option<&'a str> {
    entries.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
}
