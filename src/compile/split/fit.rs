//! What fits nowhere whole, split as far as it must be.

use std::collections::BTreeMap;

use super::choose::Choices;
use crate::error::Result;
use crate::ir::{Graph, NodeId, Param, Type};
use crate::pass::Division;
use crate::place;
use crate::topology::Topology;
use crate::units::Bytes;

/// Fractions of the largest device's memory that one part may take, tried in this order. A part has to
/// leave room for what lives beside it, and for parts of other operations.
const FRACTIONS: [u64; 6] = [1, 2, 4, 8, 16, 32];

/// Ways to split a graph, from the coarsest.
pub(in crate::compile) struct Splits<'g> {
    graph: &'g Graph,
    /// Bytes of the largest device.
    memory: u64,
    exact: bool,
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
    Splits { graph, memory, exact, next: 0, last: BTreeMap::new() }
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
                choices.cheapest(node, self.memory / fraction, self.exact)?;
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

/// Why even splitting does not help, where that is sure: all parameters have to lie somewhere.
pub(in crate::compile) fn beyond_all(
    graph: &Graph,
    topology: &Topology,
    place: &place::Options,
) -> Option<String> {
    let room = |id| place.usable(topology.device(id).memory).get();
    let all: u64 = topology.computing().map(room).fold(0, u64::saturating_add);
    let value = |param: &Param| graph.ty(graph.node(param.node).first_result);
    let held = |ty: &Type| ty.elements().map_or(0, |elements| elements.saturating_mul(ty.dtype.size()));
    let params: u64 = graph.params().iter().map(|param| held(value(param))).fold(0, u64::saturating_add);
    (params > all).then(|| {
        let (params, all) = (Bytes(params), Bytes(all));
        format!(
            "splitting operations does not help: parameters take {params}, all devices together have {all}"
        )
    })
}
