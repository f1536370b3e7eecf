//! The placement that a new one replaces, by the names of a cost graph; and what the new one takes
//! of state, for the plan to tell.

use std::sync::Arc;

use super::score::{launches, source_of, sources};
use super::{Network, Options};
use crate::cost::Lowered;
use crate::costgraph::{CostGraph, NodeIx};
use crate::place::{self, Placement, Previous};
use crate::plan::{Foreign, Lookup, MovedState, Plan, Replan};
use crate::topology::{DeviceId, Topology};

impl From<&Plan> for Previous {
    /// The plan of a cost graph as what a new plan of it replaces.
    fn from(plan: &Plan) -> Self {
        let foreign = Foreign::from(plan);
        let first = |launch: &crate::plan::Launch| launch.nodes.first().cloned();
        Self {
            devices: plan.placement.iter().cloned().collect(),
            launches: foreign.launches().iter().filter_map(first).collect(),
            ..Self::default()
        }
    }
}

/// What a plan of a cost graph replaces.
pub(super) fn of_cost_graph(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
) -> Option<Arc<Previous>> {
    let name = |node| graph.node_name(node);
    resolved(graph, topology, options, |node| Some(name(node)), |node| vec![name(node)])
}

/// What a plan of a network replaces: a group was where the source of its last node was.
pub(super) fn of_network(
    network: &Network,
    lowered: &Lowered,
    topology: &Topology,
    options: &Options,
) -> Option<Arc<Previous>> {
    let source = |node: NodeIx| {
        let id = source_of(network, lowered.origins[node.index()])?;
        Some(network.graph.source(id).name.as_str())
    };
    resolved(&lowered.graph, topology, options, source, |node| sources(network, lowered, node))
}

fn resolved<'n>(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    name: impl Fn(NodeIx) -> Option<&'n str>,
    names: impl Fn(NodeIx) -> Vec<&'n str>,
) -> Option<Arc<Previous>> {
    let Some(foreign) = &options.from else { return options.place.from.clone() };
    let lookup = Lookup::new(foreign, topology);
    let own = |node| graph.node_name(node).to_owned();
    let device = |node| Some((own(node), lookup.device_name(name(node)?)?));
    let stability = options.place.from.as_ref().map(|from| from.stability).unwrap_or_default();
    Some(Arc::new(Previous {
        devices: graph.nodes().filter_map(device).collect(),
        launches: launches(graph, foreign, names).unwrap_or_default().into_iter().map(own).collect(),
        stability,
    }))
}

/// What a plan says of the state that it moves; none where it replaces nothing.
pub(super) fn told(
    graph: &CostGraph,
    topology: &Topology,
    options: &place::Options,
    placement: &Placement,
) -> Option<Replan> {
    let previous = options.from.as_ref()?;
    let sum = place::state_moved(graph, topology, previous, placement);
    let device = |id: DeviceId| topology.device(id).name.clone();
    let told = |item: place::StateMove| MovedState {
        fate: match (item.known, item.moved) {
            (false, _) => "new",
            (true, true) => "moved",
            (true, false) => "lost",
        }
        .to_owned(),
        name: item.name,
        bytes: item.bytes,
        from: item.from.into_iter().map(device).collect(),
        to: device(item.to),
    };
    Some(Replan {
        stability: previous.stability.to_string(),
        moved_bytes: sum.moved,
        lost_bytes: sum.lost,
        new_bytes: sum.new,
        load_ns: sum.load,
        state: place::state_moves(graph, topology, previous, placement).into_iter().map(told).collect(),
    })
}
