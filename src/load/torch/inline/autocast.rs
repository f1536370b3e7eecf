//! Conversions that `torch.autocast` makes around operations, which the program does not write down.
//!
//! What it does write down is the type of each result: a product that is narrow has narrow operands, and where a result is wide
//! all operands are.

use std::collections::BTreeSet;

use serde_json::json;

use super::super::call::{operands, results};
use super::super::ops::base;
use super::super::schema::{Argument, Graph, Node};
use super::{argument, calls_graph, made};
use crate::ir::DType;

/// Operations whose operands are made narrow; each of the others of mixed operands takes them as they are, or made wide
/// (PyTorch, "Automatic Mixed Precision", lists of op-specific behaviour).
const PRODUCTS: [&str; 26] = [
    "addbmm",
    "addmm",
    "addmv",
    "addr",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "gru",
    "linalg_multi_dot",
    "linalg_vecdot",
    "linear",
    "lstm",
    "matmul",
    "mm",
    "mv",
    "prelu",
    "rnn_tanh",
    "scaled_dot_product_attention",
];

/// Norms take narrow values beside wide factors: they are computed in the wide type, and their results made narrow.
const NORMS: [&str; 5] = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"];

/// The number of f32.
const WIDE: u64 = 7;

/// Puts the conversions before the nodes of a graph that stands in such a mode. O(nodes + operands, sorted).
pub(super) fn cast(graph: &mut Graph) {
    let mut converted: BTreeSet<String> = BTreeSet::new();
    for mut node in std::mem::take(&mut graph.nodes) {
        let Some(operands) = operand_type(graph, &node) else {
            graph.nodes.push(node);
            continue;
        };
        let result = results(&node).first().copied().unwrap_or_default().to_owned();
        convert_operands(graph, &mut node, operands, &mut converted);
        let own = graph.tensor_values[&result].type_number();
        if operands == own {
            graph.nodes.push(node);
            continue;
        }
        let wide = converted_name(&result, operands);
        let meta = graph.tensor_values[&result].converted(operands);
        graph.tensor_values.insert(wide.clone(), meta);
        let renamed = |name: &str| if name == result { wide.clone() } else { name.to_owned() };
        node.outputs.iter_mut().for_each(|output| rename_all(output, &renamed));
        graph.nodes.extend([node, conversion(&wide, &result, own)]);
    }
}

/// Lets a node read its floats in the type of a number.
fn convert_operands(graph: &mut Graph, node: &mut Node, number: u64, converted: &mut BTreeSet<String>) {
    let differs = |name: &&str| {
        let meta = graph.tensor_values.get(*name);
        meta.is_some_and(|meta| meta.dtype().is_ok_and(DType::is_float) && meta.type_number() != number)
    };
    let differing: BTreeSet<String> = operands(node).filter(differs).map(str::to_owned).collect();
    for name in &differing {
        let own = converted_name(name, number);
        if converted.insert(own.clone()) {
            let meta = graph.tensor_values[name].converted(number);
            graph.tensor_values.insert(own.clone(), meta);
            graph.nodes.push(conversion(name, &own, number));
        }
    }
    let renamed = |name: &str| match differing.contains(name) {
        true => converted_name(name, number),
        false => name.to_owned(),
    };
    node.inputs.iter_mut().for_each(|input| rename_all(&mut input.arg, &renamed));
}

fn rename_all(Argument(parts): &mut Argument, renamed: &dyn Fn(&str) -> String) {
    parts.iter_mut().for_each(|(kind, value)| super::rename(kind, value, renamed));
}

fn conversion(from: &str, result: &str, number: u64) -> Node {
    let mut to = made("torch.ops.aten.to.dtype", &[("self", from)], result);
    to.inputs.push(argument("dtype", "as_scalar_type", json!(number)));
    to.name = Some(converted_name(from, number));
    to
}

fn converted_name(name: &str, type_number: u64) -> String {
    format!("{name}/as{type_number}")
}

/// The number of the type that a node's floats are converted to; none where it takes them as they are.
fn operand_type(graph: &Graph, node: &Node) -> Option<u64> {
    let target = base(&node.target);
    if calls_graph(node) || matches!(target, "to" | "_to_copy" | "type_as" | "copy_") {
        return None;
    }
    let meta = graph.tensor_values.get(*results(node).first()?)?;
    let dtype = meta.dtype().ok()?;
    match () {
        () if dtype.is_half() && NORMS.contains(&target) => Some(WIDE),
        () if dtype.is_half() && PRODUCTS.contains(&target) || dtype == DType::F32 => {
            Some(meta.type_number())
        }
        () => None,
    }
}
