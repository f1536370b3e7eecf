//! A network's layers for people: sizes, parameters, devices.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::{Graph, Op, SourceRole};
use crate::plan::Plan;

/// A layer of the source model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// What it is in the source.
    pub op: String,
    /// Sizes of its last result.
    pub shape: Vec<i64>,
    /// Elements of the parameters that it reads first.
    pub parameters: u64,
    /// Where it is computed: several, in the order of its parts, where it is divided.
    pub device: String,
}

/// The layers of a network under a plan, in the source's order; what computes nothing (a reshape is another
/// view of the same bytes) is left out. O(nodes + operands).
pub fn layers(graph: &Graph, plan: &Plan) -> Vec<Layer> {
    let devices = devices(plan);
    // Sizes, parameters, and whether anything is computed.
    let mut found: Vec<Option<(Vec<i64>, u64, bool)>> = vec![None; graph.sources().len()];
    let mut counted = vec![false; graph.params().len()];
    for id in graph.node_ids() {
        let node = graph.node(id);
        if node.op.is_leaf() {
            continue;
        }
        let layer = found[node.source.index()].get_or_insert_with(Default::default);
        layer.0 = graph.ty(node.first_result).shape.dims().unwrap_or_default();
        layer.2 |= !matches!(node.op, Op::Reshape { .. });
        for &operand in &node.operands {
            let Op::Param(param) = graph.maker(operand).op else { continue };
            if !std::mem::replace(&mut counted[param.index()], true) {
                layer.1 += graph.ty(operand).elements().unwrap_or(0);
            }
        }
    }
    let layers = graph.sources().iter().zip(found).filter_map(|(source, layer)| {
        let (shape, parameters, _) = layer.filter(|layer| layer.2 && source.role == SourceRole::Node)?;
        Some(Layer {
            name: source.name.clone(),
            op: source.op.clone(),
            shape,
            parameters,
            device: devices.get(source.name.as_str()).map_or_else(String::new, |all| all.join(", ")),
        })
    });
    layers.collect()
}

/// By node of the network: its device, or those of its parts, each once.
fn devices(plan: &Plan) -> BTreeMap<&str, Vec<&str>> {
    let wholes: BTreeSet<&str> = plan
        .options
        .splits
        .iter()
        .flat_map(|split| &split.nodes)
        .filter_map(|node| source_of(node))
        .collect();
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, device) in &plan.placement {
        // `fc1[0/2]`, where `fc1` is divided.
        let whole = name.rsplit_once('[').map(|(whole, _)| whole).filter(|whole| wholes.contains(whole));
        let all = found.entry(whole.unwrap_or(name)).or_default();
        if !all.contains(&device.as_str()) {
            all.push(device);
        }
    }
    found
}

/// The source of a node as plans name what they divide: `fc1#0` is the first node of `fc1`.
fn source_of(node: &str) -> Option<&str> {
    node.rsplit_once('#').map(|(source, _)| source)
}
