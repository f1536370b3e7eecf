//! What is wrong with the placement that came closest, where it is not proven that there is none:
//! the devices that hold too much, and what takes most on the tightest.

use super::super::pool::Candidate;
use super::super::problem::Problem;
use super::{binding, words};
use crate::costgraph::{NodeIx, Role};
use crate::error::{Error, Infeasible};
use crate::topology::DeviceId;
use crate::units::{Bytes, Nanos};

/// Says what is wrong with the placement that came closest.
pub(in crate::place) fn not_found(problem: &Problem<'_>, closest: Option<&Candidate>) -> Error {
    let mut report = Infeasible::default();
    let Some(closest) = closest else {
        report.conflict = "no candidate could be made".into();
        return Error::Infeasible(Box::new(report));
    };
    short(problem, closest, &mut report);
    if report.conflict.is_empty() && closest.excess.time > 0 {
        let busiest = problem.devices.iter().max_by_key(|id| closest.evaluation.compute[id.index()]);
        let busiest = busiest.map_or(Nanos::ZERO, |id| closest.evaluation.compute[id.index()]);
        report.conflict = format!("the busiest device computes for {busiest} in the closest placement");
        report.repair = "a larger --balance".into();
    }
    if report.conflict.is_empty() {
        report.conflict = "no placement found uses the number of devices asked for".into();
        report.repair = "another --use".into();
    }
    Error::Infeasible(Box::new(report))
}

/// Devices whose need is told one by one.
const WANTED: usize = 3;

/// Devices over their caps, the first in words, and what binds on the one that lacks most.
fn short(problem: &Problem<'_>, closest: &Candidate, report: &mut Infeasible) {
    let name = |id: DeviceId| &problem.topology.device(id).name;
    let resident = |id: DeviceId| closest.evaluation.memory[id.index()];
    let cap = |id: DeviceId| Bytes(problem.caps[id.index()]);
    let mut wanted = Vec::new();
    for id in problem.topology.ids().filter(|&id| resident(id) > cap(id)) {
        let (resident, cap) = (resident(id), cap(id));
        report
            .details
            .push(format!("device {}: needs {resident} in the closest placement, has {cap}", name(id)));
        report.short.push((name(id).clone(), resident.saturating_sub(cap)));
        if report.conflict.is_empty() {
            let largest = largest_node(problem, closest, id);
            report.conflict = format!("device {} needs {resident} and has {cap}; {largest}", name(id));
        }
        let needed = resident.get().saturating_add(problem.options.reserve.get());
        wanted.push(format!("{needed} bytes on {}", name(id)));
    }
    if wanted.len() > WANTED {
        let more = wanted.len() - WANTED;
        wanted.truncate(WANTED);
        wanted.push(format!("more on {more} others"));
    }
    if !wanted.is_empty() {
        report.repair = format!("the closest placement needs {}, reserve included", wanted.join(", "));
    }
    let lacking = |id: &DeviceId| (resident(*id).saturating_sub(cap(*id)), std::cmp::Reverse(*id));
    let tightest = problem.topology.ids().max_by_key(lacking).filter(|&id| resident(id) > cap(id));
    if let Some(id) = tightest {
        let here = |node: NodeIx| closest.nodes[node.index()] == id;
        report.members = binding(problem.graph, problem.topology, here, (id, cap(id)));
        report.details.extend(words::lines(&report.members));
    }
}

/// The largest node of a device, in words.
fn largest_node(problem: &Problem<'_>, closest: &Candidate, id: DeviceId) -> String {
    let graph = problem.graph;
    let here = graph.nodes().filter(|&node| closest.nodes[node.index()] == id);
    let size = |node: NodeIx| {
        let outputs: Bytes = match graph.role(node) {
            Role::Param => Bytes::ZERO,
            Role::Compute | Role::Input => graph.outputs(node).map(|tensor| graph.tensor_bytes(tensor)).sum(),
        };
        let param = graph.param(node).map_or(Bytes::ZERO, |param| graph.param_bytes(param));
        outputs + param + graph.owned_bytes(node) + graph.workspace_bytes(node)
    };
    let top = here.max_by_key(|&node| (size(node), std::cmp::Reverse(node)));
    top.map_or(String::new(), |node| {
        format!("its largest node is {} with {}", graph.node_name(node), size(node))
    })
}
