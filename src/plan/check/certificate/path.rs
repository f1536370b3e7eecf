//! A chain of nodes: each runs after the one before it, at best on its fastest device, and where
//! two that follow one another have no device in common, a copy lies between them.

use serde::Deserialize;

use super::Proof;
use super::facts::Facts;
use crate::costgraph::{NodeIx, TensorIx};
use crate::topology::{DeviceId, Legs};

/// `{"nodes":[0,4,7]}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CriticalPath {
    /// The chain, by the nodes' positions in the cost graph.
    nodes: Vec<u32>,
}

impl Proof for CriticalPath {
    fn proven(&self, facts: &Facts<'_>, _claimed: u64) -> Result<u64, String> {
        let nodes = self.nodes.iter().map(|&number| facts.running(number));
        let nodes = nodes.collect::<Result<Vec<NodeIx>, String>>()?;
        let mut time = nodes.iter().map(|&node| facts.fastest(node)).fold(0, u64::saturating_add);
        let legs = facts.topology.legs();
        for pair in nodes.windows(2) {
            let read = |tensor: &TensorIx| facts.graph.consumers(*tensor).binary_search(&pair[1]).is_ok();
            let between = facts.graph.outputs(pair[0]).filter(read);
            let Some(copy) = between.map(|tensor| forced_copy(facts, &legs, tensor, pair[1])).max() else {
                return Err(format!("node {} reads nothing of node {}", pair[1].0, pair[0].0));
            };
            time = time.saturating_add(copy);
        }
        Ok(time)
    }
}

/// The least time in which a tensor gets from where it may be made to where a reader may be.
fn forced_copy(facts: &Facts<'_>, legs: &Legs, tensor: TensorIx, reader: NodeIx) -> u64 {
    let (from, to) = (facts.devices(facts.graph.producer(tensor)), facts.devices(reader));
    if from.iter().any(|id| to.contains(id)) {
        return 0;
    }
    let bytes = facts.graph.tensor_bytes(tensor);
    let physical = |&id: &DeviceId| facts.topology.device(id).physical;
    legs.least(from.iter().map(physical), to.iter().map(physical), bytes).get()
}
