//! Training steps that are unrolled in microbatches: when their parts run, and stages for them.

#[cfg(feature = "run")]
use std::collections::BTreeMap;

use super::Network;
#[cfg(feature = "run")]
use super::{Options, labels, pipeline, prepare};
#[cfg(feature = "run")]
use crate::control::Control;
use crate::cost::{Lowered, Origin};
#[cfg(feature = "run")]
use crate::error::Result;
use crate::ir::Phase;
#[cfg(feature = "run")]
use crate::strategy::Problem;
use crate::strategy::pipeline::Turn;
#[cfg(feature = "run")]
use crate::strategy::pipeline::UnrolledStep;

/// By cost node: when it runs. Nodes of sources without a microbatch run at `other`. O(nodes).
pub(super) fn turns(network: &Network, lowered: &Lowered, other: Turn) -> Vec<Turn> {
    let Network { graph, grouping, .. } = network;
    let turn = |origin: &Origin| match origin {
        Origin::Input(_) | Origin::Data(_) => Turn::First,
        Origin::Group(group) => {
            let nodes = grouping.groups[group.index()].nodes.iter().rev();
            let mut sources = nodes.map(|&node| graph.source(graph.node(node).source));
            if sources.clone().all(|source| source.phase == Phase::Update) {
                return Turn::Update;
            }
            sources.find_map(|source| source.microbatch).map_or(other, Turn::Microbatch)
        }
    };
    lowered.origins.iter().map(turn).collect()
}

/// Stages for the training step of one microbatch: by source, the device; the fastest in play first.
///
/// Errors: those of preparing the network and of [`crate::strategy::pipeline::stages`].
#[cfg(feature = "run")]
pub(crate) fn stages(
    graph: crate::ir::Graph,
    topology: &crate::topology::Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<Vec<BTreeMap<String, String>>> {
    let options = &pipeline::settled(options.clone().on(topology))?;
    let Some(unrolled) = options.unrolled else { return Ok(Vec::new()) };
    let network = prepare(graph, options)?;
    let profile = options.profile.as_deref();
    let lowered = crate::cost::lower(&network.graph, &network.grouping, topology, profile)?;
    let turns = turns(&network, &lowered, Turn::Microbatch(0));
    let place = options.place.without_patterns();
    let problem = Problem::new(&lowered.graph, topology, &place);
    let step = UnrolledStep { problem, turns: &turns, unrolled };
    let found = crate::strategy::pipeline::stages(step, control)?;
    let names = found.iter().map(|placement| {
        let devices = labels::source_devices(&network, &lowered, topology, placement);
        devices.into_iter().map(|(source, id)| (source, topology.device(id).name.clone())).collect()
    });
    Ok(names.collect())
}
