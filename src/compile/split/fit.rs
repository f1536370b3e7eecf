//! What fits nowhere whole, split as far as it must be.

use std::collections::BTreeMap;

use super::choose::{Choices, Limits};
use crate::error::Result;
use crate::ir::{Graph, NodeId, ValueId};
use crate::pass::Division;
use crate::place;
use crate::topology::Topology;
use crate::units::Bytes;

/// Fractions of the largest device's memory that one part may take, tried in this order. A part has to
/// leave room for what lives beside it, and for parts of other operations.
const FRACTIONS: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// Parts of one node for each device, at most: finer ones find room where others leave it, more copies take it.
const PARTS: u64 = 8;

/// Parts of all nodes, at most: each is planned for like a node.
const MOST_PARTS: usize = 1 << 16;

/// Ways to split a graph, from the coarsest.
pub(in crate::compile) struct Splits<'g> {
    graph: &'g Graph,
    /// Bytes of the largest device.
    memory: u64,
    limits: Limits,
    next: usize,
    last: BTreeMap<NodeId, Division>,
}

/// Ways to split a graph that fits nowhere whole, each in smaller parts than the one before.
pub(in crate::compile) fn narrower<'g>(
    graph: &'g Graph,
    topology: &Topology,
    place: &place::Options,
    exact: bool,
) -> Splits<'g> {
    let room = |id| place.usable(topology.device(id).memory).get();
    let memory = topology.computing().map(room).max().unwrap_or(0);
    let parts = (topology.computing().count() as u64 * PARTS).max(2 * PARTS);
    let limits = Limits { bytes: memory, parts, exact };
    Splits { graph, memory, limits, next: 0, last: BTreeMap::new() }
}

impl Splits<'_> {
    /// The next way that is unlike the one before; none where there is none. O(nodes + edges x parts).
    ///
    /// Errors: none but internal ones.
    pub(in crate::compile) fn next(&mut self) -> Result<Option<BTreeMap<NodeId, Division>>> {
        while let Some(fraction) = FRACTIONS.get(self.next) {
            self.next += 1;
            let mut choices = Choices::new(self.graph);
            for node in self.graph.node_ids() {
                choices.cheapest(node, Limits { bytes: self.memory / fraction, ..self.limits })?;
                if choices.parts() > MOST_PARTS {
                    return Ok(None);
                }
            }
            let found = choices.finish();
            if found != self.last {
                self.last.clone_from(&found);
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Why even splitting does not help, where that is sure: inputs and outputs are whole on a device, and all
/// parameters have to lie somewhere. O(parameters).
pub(in crate::compile) fn beyond_all(
    graph: &Graph,
    topology: &Topology,
    place: &place::Options,
) -> Option<String> {
    let room = |id| place.usable(topology.device(id).memory).get();
    let all: u64 = topology.computing().map(room).fold(0, u64::saturating_add);
    let largest = topology.computing().map(room).max().unwrap_or(0);
    let held = |value: ValueId| {
        let ty = graph.ty(value);
        ty.elements().map_or(u64::MAX, |elements| elements.saturating_mul(ty.dtype.size()))
    };
    let ports = graph.inputs().iter().map(|port| ("input", port));
    let ports = ports.chain(graph.outputs().iter().map(|port| ("output", port)));
    for (what, (name, value)) in ports {
        if held(*value) > largest {
            let (bytes, largest) = (Bytes(held(*value)), Bytes(largest));
            return Some(format!(
                "splitting operations does not help: {what} {name} takes {bytes} and lies on one device, \
                 the largest has {largest}"
            ));
        }
    }
    let params = graph.params().iter().map(|param| held(graph.node(param.node).first_result));
    let params: u64 = params.fold(0, u64::saturating_add);
    (params > all).then(|| {
        let (params, all) = (Bytes(params), Bytes(all));
        format!(
            "splitting operations does not help: parameters take {params}, all devices together have {all}"
        )
    })
}
