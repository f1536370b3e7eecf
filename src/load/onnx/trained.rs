//! Which initialisers of a file training leaves as they are, and what is said of those that may be constants.
//!
//! The format does not tell parameters from other arrays. Torch's exporter says it beside them; a mask is known by its
//! elements, a parameter of one element by who reads it; of the rest, a note says which are only added, multiplied or
//! compared, as tables are.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::proto::{GraphProto, NodeProto, ValueInfoProto};
use crate::ir::{Data, Family, Graph, Node, NodeId, Op, ParamId, Tensor};

/// What torch's exporter writes beside an initialiser: PARAMETER, BUFFER, ...
pub(super) const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";
/// What masks add to scores that count nothing is this or below it.
const HIDDEN: f64 = -100.0;

/// Names that are parameters even where they have one element, as numbers of operations do: what the file says to be
/// one, and what is read where layers have weights, or is added to a product. O(nodes).
pub(super) fn parameters(graph: &GraphProto) -> HashSet<String> {
    let products = graph.node.iter().filter(|node| node.op_type == "MatMul");
    let products: HashSet<&String> = products.flat_map(|node| &node.output).collect();
    let mut all: HashSet<String> = Declared::of(&graph.value_info).parameters.into_iter().collect();
    let mut shown: HashMap<&str, &str> = HashMap::new();
    for node in &graph.node {
        // Nodes stand behind those that they read.
        let own = |name: &String| shown.get(name.as_str()).map_or_else(|| name.clone(), |&of| of.to_owned());
        all.extend(weights(node).iter().map(own));
        if let ("Add", [left, right]) = (node.op_type.as_str(), node.input.as_slice()) {
            let biases = [(left, right), (right, left)].into_iter().filter(|(x, _)| products.contains(x));
            all.extend(biases.map(|(_, bias)| own(bias)));
        }
        if let ([of, ..], [as_what], true) = (&*node.input, &*node.output, shows(node)) {
            shown.insert(as_what, shown.get(of.as_str()).copied().unwrap_or(of));
        }
    }
    all
}

/// Names of what batch normalisations have kept of earlier batches. O(nodes).
pub(super) fn statistics(graph: &GraphProto) -> HashSet<String> {
    let layers = graph.node.iter().filter(|node| node.op_type == "BatchNormalization");
    layers.flat_map(|node| node.input.iter().skip(3)).cloned().collect()
}

/// Whether a node makes the same numbers of its first input, under other axes or in other types.
fn shows(node: &NodeProto) -> bool {
    matches!(
        node.op_type.as_str(),
        "Unsqueeze" | "Squeeze" | "Reshape" | "Flatten" | "Transpose" | "Identity" | "Cast"
    )
}

/// The inputs that are weights of a layer.
fn weights(node: &NodeProto) -> &[String] {
    let behind_data = &node.input[1.min(node.input.len())..];
    match node.op_type.as_str() {
        "MatMul" => &node.input,
        "PRelu" | "BatchNormalization" => behind_data,
        "Gemm"
        | "Conv"
        | "ConvTranspose"
        | "LayerNormalization"
        | "RMSNormalization"
        | "GroupNormalization"
        | "InstanceNormalization" => &behind_data[..2.min(behind_data.len())],
        _ => &[],
    }
}

/// What a file says of its initialisers.
#[derive(Default)]
pub(super) struct Declared {
    parameters: BTreeSet<String>,
    others: BTreeSet<String>,
}

impl Declared {
    pub(super) fn of(stated: &[ValueInfoProto]) -> Self {
        let mut declared = Self::default();
        for value in stated {
            let kind = value.metadata_props.iter().find(|entry| entry.key == KIND);
            match kind.map(|entry| entry.value.as_str()) {
                Some("PARAMETER") => declared.parameters.insert(value.name.clone()),
                Some(_) => declared.others.insert(value.name.clone()),
                None => continue,
            };
        }
        declared
    }

    /// Freezes what is no parameter, and notes what may be none. O(nodes + operands + elements of what may be masks).
    pub(super) fn settle(self, graph: &mut Graph) {
        let mut lines = Vec::new();
        lines.extend(listed(
            "initialisers of one element are taken for constants, and not trained",
            &constants(graph),
        ));
        let (mut masks, mut unsure) = (Vec::new(), Vec::new());
        for param in only_combined(graph) {
            let param = graph.param(param);
            let is_told = self.parameters.contains(&param.name) || self.others.contains(&param.name);
            match &param.data {
                _ if is_told => {}
                Some(Data::Inline(tensor)) if is_mask(tensor) => masks.push(param.name.clone()),
                _ if is_table(graph.ty(graph.node(param.node).first_result).shape.dims()) => {
                    unsure.push(param.name.clone());
                }
                _ => {}
            }
        }
        lines.extend(listed("arrays of 0 and large negative numbers are masks, and not trained", &masks));
        let what = "the file does not tell whether these are parameters, and they are trained (--freeze leaves them)";
        lines.extend(listed(what, &unsure));
        let rules = graph.rules_mut();
        rules.unheeded.extend(lines);
        rules.frozen.extend(self.others.into_iter().chain(masks));
    }
}

/// Names of the nodes that a file has in the form in which they train.
#[derive(Default)]
pub(super) struct AsTrained {
    pub(super) dropping: Vec<String>,
    pub(super) normalising: Vec<String>,
}

impl AsTrained {
    /// What to tell of them.
    pub(super) fn lines(&self) -> Vec<String> {
        let dropping = "these drop elements in training alone, though the file has them in training mode";
        let normalising =
            "these normalise by each batch's own mean and variance, as the file has them in training mode";
        let lines = [listed(dropping, &self.dropping), listed(normalising, &self.normalising)];
        lines.into_iter().flatten().collect()
    }
}

/// `what: first and 3 more`.
pub(super) fn listed(what: &str, names: &[String]) -> Option<String> {
    match names {
        [] => None,
        [only] => Some(format!("{what}: {only}")),
        [first, more @ ..] => Some(format!("{what}: {first} and {} more", more.len())),
    }
}

/// Initialisers of floats that are constants: files do not tell parameters of one element from numbers of an operation.
fn constants(graph: &Graph) -> Vec<String> {
    let of = |node: NodeId| {
        let node = graph.node(node);
        let source = graph.source(node.source);
        let is_own = matches!(node.op, Op::Constant(_)) && source.op == "Initializer";
        (is_own && graph.ty(node.first_result).dtype.is_float()).then(|| source.name.clone())
    };
    graph.node_ids().filter_map(of).collect()
}

/// Parameters that are nowhere a factor of a product, a kernel, a table that is looked up, ...: all that reads them
/// takes them element by element.
fn only_combined(graph: &Graph) -> Vec<ParamId> {
    let mut whole: Vec<Option<ParamId>> = vec![None; graph.value_count()];
    let mut combined = vec![true; graph.params().len()];
    for id in graph.node_ids() {
        let node = graph.node(id);
        match node.op {
            Op::Param(param) => whole[node.first_result.index()] = Some(param),
            _ if passes_on(node) => whole[node.first_result.index()] = whole[node.operands[0].index()],
            _ if node.op.is_elementwise() => {}
            _ => {
                let read = node.operands.iter().filter_map(|value| whole[value.index()]);
                read.for_each(|param| combined[param.index()] = false);
            }
        }
    }
    let ids = (0..combined.len() as u32).map(ParamId);
    ids.filter(|id| combined[id.index()]).collect()
}

/// Whether a node's result has its operand's elements.
fn passes_on(node: &Node) -> bool {
    matches!(node.op.family(), Family::Layout(_)) && node.operands.len() == 1
        || matches!(node.op, Op::Convert { .. })
}

/// Whether it adds nothing to some scores, and hides the rest.
fn is_mask(tensor: &Tensor) -> bool {
    // Most tables are none by their first bytes.
    let size = tensor.dtype().size() as usize;
    let some = tensor.bytes().len().min(64 * size);
    let first = Tensor::new(tensor.dtype(), vec![(some / size) as u64], tensor.bytes()[..some].to_vec());
    let may_be = first.is_ok_and(|first| first.to_f64().iter().all(|&x| x == 0.0 || x <= HIDDEN));
    let elements = if may_be { tensor.to_f64() } else { return false };
    elements.iter().all(|&x| x == 0.0 || x <= HIDDEN) && elements.iter().any(|&x| x <= HIDDEN)
}

/// More than a bias or a scale of channels.
fn is_table(dims: Option<Vec<i64>>) -> bool {
    dims.is_some_and(|dims| dims.iter().filter(|&&dim| dim > 1).count() > 1)
}
