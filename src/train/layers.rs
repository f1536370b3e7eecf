//! A network's layers for people: sizes, parameters, devices.

use std::collections::BTreeMap;

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
    /// Where it is computed.
    pub device: String,
}

/// The layers of a network under a plan, in the source's order; what computes nothing (a reshape is another
/// view of the same bytes) is left out. O(nodes + operands).
pub fn layers(graph: &Graph, plan: &Plan) -> Vec<Layer> {
    let devices: BTreeMap<&str, &str> =
        plan.placement.iter().map(|(name, device)| (name.as_str(), device.as_str())).collect();
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
            device: devices.get(source.name.as_str()).map_or_else(String::new, |one| (*one).to_owned()),
        })
    });
    layers.collect()
}
