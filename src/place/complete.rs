//! A placement that was made elsewhere: completed, and held against what binds a placement.

use super::evaluate::Evaluator;
use super::infeasible;
use super::problem::{self, Backward, Home, NONE, Problem};
use super::{Options, Placement};
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::error::Result;
use crate::topology::{DeviceId, Topology};
use crate::units::Nanos;

/// What becomes of a placement that was made elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// The placement. Parameters and inputs that nobody placed are where [`place`](super::place())
    /// would put them.
    pub placement: Placement,
    /// Nodes that must be placed and are not.
    pub missing: Vec<NodeIx>,
    /// Nodes on a device that cannot run them.
    pub unable: Vec<NodeIx>,
    /// Pins, colocation, the number of devices and their balance that it breaks, one line each.
    pub broken: Vec<String>,
}

/// Completes a placement that says a device for some nodes, at the least for those that compute,
/// and lists all that speaks against it but memory. Nothing is moved. Near-linear in nodes and
/// edges.
///
/// Errors: those of [`place`](super::place()) that no placement can be blamed for: an unknown
/// device in a pin, a pattern that matches nothing.
pub fn complete(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    devices: &[Option<DeviceId>],
) -> Result<Completed> {
    let mut problem = Problem::new(graph, topology, options, Backward::Free)?;
    let computes = |node: &NodeIx| graph.role(*node) == Role::Compute;
    let said = |node: NodeIx| devices.get(node.index()).copied().flatten();
    let mut broken = broken(&problem, &said)?;
    broken.extend(shares(&problem, &said)?);
    // What the caller says of an input or a parameter goes before its readers' devices, so it is entered as a
    // pin.
    for node in graph.nodes().filter(|node| !computes(node)) {
        if let Some(id) = said(node) {
            problem.homes.insert(node, Home::Pinned(id));
        }
    }
    let mut device: Vec<DeviceId> =
        graph.nodes().map(|node| said(node).unwrap_or(problem.devices[0])).collect();
    let unable =
        |&node: &NodeIx| said(node).is_some_and(|id| graph.time(node, problem.kinds[id.index()]).is_none());
    let missing = graph.nodes().filter(computes).filter(|&node| said(node).is_none()).collect();
    let unable = graph.nodes().filter(computes).filter(unable).collect();
    Evaluator::new(&problem).settle(&mut device, |unit| device_of_unit(&problem, unit, &said));
    let placement = Placement { device, ..Placement::default() };
    Ok(Completed { placement, missing, unable, broken })
}

/// The device of a unit's first node.
fn device_of_unit(problem: &Problem<'_>, unit: u32, said: &impl Fn(NodeIx) -> Option<DeviceId>) -> DeviceId {
    problem.unit(unit as usize).find_map(said).unwrap_or(problem.devices[0])
}

/// Pins and colocation that do not hold.
fn broken(problem: &Problem<'_>, said: &impl Fn(NodeIx) -> Option<DeviceId>) -> Result<Vec<String>> {
    let Problem { graph, topology, options, .. } = problem;
    let name = |id: DeviceId| &topology.device(id).name;
    let mut broken = Vec::new();
    let pins = problem::pins(graph, topology, options)?;
    for node in graph.nodes().filter(|node| pins[node.index()] != NONE) {
        let pin = DeviceId(pins[node.index()]);
        let kind = problem.kinds[pin.index()];
        let runs = graph.role(node) != Role::Compute || graph.time(node, kind).is_some();
        if let Some(id) = said(node).filter(|&id| id != pin && (runs || !options.soft)) {
            let node = graph.node_name(node);
            broken.push(format!("{node} is pinned to {} and placed on {}", name(pin), name(id)));
        }
    }
    let mut classes = problem::colocation(graph, options)?;
    let mut first: Vec<u32> = vec![NONE; graph.node_count()];
    for node in graph.nodes() {
        let Some(id) = said(node) else { continue };
        let slot = &mut first[classes.find_mut(node.0) as usize];
        if *slot == NONE {
            *slot = node.0;
        }
        let other = NodeIx(*slot);
        if let Some(there) = said(other).filter(|&there| there != id) {
            let (one, two) = (graph.node_name(other), graph.node_name(node));
            broken.push(format!(
                "{two} is colocated with {one}, and is placed on {}, not {}",
                name(id),
                name(there)
            ));
        }
    }
    Ok(broken)
}

/// Where not as many devices compute as are asked for, and where one computes for longer than `--balance` allows.
fn shares(problem: &Problem<'_>, said: &impl Fn(NodeIx) -> Option<DeviceId>) -> Result<Vec<String>> {
    let Problem { graph, topology, .. } = problem;
    let limits = infeasible::limits(problem)?;
    let mut busy: Vec<Option<u64>> = vec![None; topology.len()];
    for node in graph.nodes().filter(|node| graph.role(*node) == Role::Compute) {
        let Some(id) = said(node) else { continue };
        let time = graph.time(node, problem.kinds[id.index()]).map_or(0, Nanos::get);
        let busy = &mut busy[id.index()];
        *busy = Some(busy.unwrap_or(0).saturating_add(time));
    }
    let mut broken = Vec::new();
    let computing = busy.iter().flatten().count();
    if let Some(count) = problem.count.filter(|&count| count != computing) {
        broken.push(format!("devices that compute are {computing}, and --use asks for {count}"));
    }
    for (id, (busy, limit)) in topology.ids().zip(busy.into_iter().zip(limits)) {
        if let Some(busy) = busy.filter(|&busy| busy > limit) {
            let name = &topology.device(id).name;
            let (busy, limit) = (Nanos(busy), Nanos(limit));
            broken.push(format!("{name} computes for {busy}, and --balance allows {limit}"));
        }
    }
    Ok(broken)
}
