//! The placement that a new one replaces, by the names of a cost graph; and what the new one takes
//! of state, recorded in the plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::score::{is_launch_order, launches, source_of, sources};
use super::{Network, Options};
use crate::control::Control;
use crate::cost::Lowered;
use crate::costgraph::{CostGraph, NodeIx};
use crate::error::{Error, Result};
use crate::ir::whole_name;
use crate::place::{self, Placement, Previous};
use crate::plan::{self, Foreign, Lookup, MovedState, Plan, Replan};
use crate::schedule::Schedule;
use crate::strategy::{self, Problem};
use crate::topology::{DeviceId, Topology};

impl From<&Plan> for Previous {
    /// The plan of a cost graph as what a new plan of it replaces.
    fn from(plan: &Plan) -> Self {
        let foreign = Foreign::from(plan);
        let first = |launch: &crate::plan::Launch| launch.nodes.first().cloned();
        Self {
            devices: plan.placement.iter().cloned().collect(),
            launches: foreign.launches().iter().filter_map(first).collect(),
            circumstances: plan.circumstances(),
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
    // A part was where the whole was, where nothing was split.
    let named = |name: &str| {
        let mut wholes = std::iter::successors(Some(name), |&part| whole_name(part));
        wholes.find_map(|name| lookup.device_name(name))
    };
    let device = |node| Some((own(node), named(name(node)?)?));
    let stability = options.place.from.as_ref().map(|from| from.stability).unwrap_or_default();
    Some(Arc::new(Previous {
        devices: graph.nodes().filter_map(device).collect(),
        launches: launches(graph, foreign, names).unwrap_or_default().into_iter().map(own).collect(),
        stability,
        circumstances: foreign.circumstances().to_owned(),
    }))
}

/// Places and schedules a cost graph; where nothing has changed since the plan that is replaced,
/// as that plan does.
pub(super) fn solve(
    graph: &CostGraph,
    topology: &Topology,
    options: &place::Options,
    meta: &plan::Meta,
    control: &Control<'_>,
) -> Result<(Placement, Schedule)> {
    if let Some(previous) = &options.from {
        let now = plan::circumstances(&meta.model.hash, &meta.options, meta.reserve, topology);
        // Nothing that decides a plan has changed, so the plan stays as it is.
        if now == previous.circumstances
            && let Some(kept) = kept(graph, topology, options, previous)?
        {
            return Ok(kept);
        }
    }
    strategy::solve(Problem::new(graph, topology, options), control)
}

/// The earlier placement as it was, where it is whole and sound.
fn kept(
    graph: &CostGraph,
    topology: &Topology,
    options: &place::Options,
    previous: &Previous,
) -> Result<Option<(Placement, Schedule)>> {
    let ids: BTreeMap<&str, DeviceId> =
        topology.ids().map(|id| (topology.device(id).name.as_str(), id)).collect();
    let device = |node| ids.get(previous.devices.get(graph.node_name(node))?.as_str()).copied();
    let devices: Vec<_> = graph.nodes().map(device).collect();
    let mut completed = place::complete(graph, topology, options, &devices)?;
    if !(completed.missing.is_empty() && completed.unable.is_empty() && completed.broken.is_empty()) {
        return Ok(None);
    }
    completed.placement.launches = by_names(graph, &previous.launches);
    let scored = strategy::score(Problem::new(graph, topology, options), &completed.placement)?;
    Ok(scored.over.is_empty().then_some((completed.placement, scored.schedule)))
}

/// The nodes that compute in the order of their names; none where those are not the same.
fn by_names(graph: &CostGraph, names: &[String]) -> Option<Vec<NodeIx>> {
    let nodes: BTreeMap<&str, NodeIx> = graph.nodes().map(|node| (graph.node_name(node), node)).collect();
    let order: Option<Vec<NodeIx>> = names.iter().map(|name| nodes.get(name.as_str()).copied()).collect();
    order.filter(|order| is_launch_order(graph, order))
}

/// The state that must be loaded to go from one plan of a cost graph to another.
///
/// Error: the second plan places a node on a device that it does not have.
pub fn state_between(graph: &CostGraph, before: &Plan, after: &Plan) -> Result<Vec<MovedState>> {
    let foreign = Foreign::from(after);
    let mut lookup = Lookup::new(&foreign, &after.topology);
    let devices: Vec<_> = graph.nodes().map(|node| lookup.find(graph.node_name(node))).collect();
    if let Some(at) = devices.iter().position(Option::is_none) {
        let name = graph.node_name(NodeIx(at as u32));
        return Err(Error::format(format!("node {name}"), "the plan gives it no device that it has")
            .with_help("the second plan is of another model: give its model"));
    }
    let placement = Placement { device: devices.into_iter().flatten().collect(), ..Placement::default() };
    Ok(items(graph, &after.topology, &Previous::from(before), &placement))
}

/// What a plan says of the state that it moves; none where it replaces nothing.
pub(super) fn summary(
    graph: &CostGraph,
    topology: &Topology,
    options: &place::Options,
    placement: &Placement,
) -> Option<Replan> {
    let previous = options.from.as_ref()?;
    let sum = place::state_moved(graph, topology, previous, placement);
    Some(Replan {
        stability: previous.stability.to_string(),
        moved_bytes: sum.moved,
        lost_bytes: sum.lost,
        new_bytes: sum.new,
        load_ns: sum.load,
        state: items(graph, topology, previous, placement),
    })
}

fn items(
    graph: &CostGraph,
    topology: &Topology,
    previous: &Previous,
    placement: &Placement,
) -> Vec<MovedState> {
    let device = |id: DeviceId| topology.device(id).name.clone();
    let moved_state = |item: place::StateMove| MovedState {
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
    place::state_moves(graph, topology, previous, placement).into_iter().map(moved_state).collect()
}
