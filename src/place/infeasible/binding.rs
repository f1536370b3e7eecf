//! What binds on one device of a placement: its cap, and the largest things that it holds.

use std::cmp::Reverse;

use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::error::{Member, MemberKind};
use crate::topology::{DeviceId, Topology};
use crate::units::Bytes;

/// Things that are named of a device.
const NAMED: usize = 8;

/// The cap of a device, and the largest things that the nodes `here` make or keep there, each once,
/// the largest first: at most 8, and no more than together exceed the cap. O(edges there), and a
/// logarithm.
pub(crate) fn binding(
    graph: &CostGraph,
    topology: &Topology,
    here: impl Fn(NodeIx) -> bool,
    (device, cap): (DeviceId, Bytes),
) -> Vec<Member> {
    let mut resident: Vec<(Reverse<Bytes>, MemberKind, String)> = Vec::new();
    let mut add = |kind, bytes, name: &str| resident.push((Reverse(bytes), kind, name.to_owned()));
    for node in graph.nodes().filter(|&node| graph.role(node) != Role::Param && here(node)) {
        let name = graph.node_name(node);
        add(MemberKind::State, graph.owned_bytes(node), name);
        add(MemberKind::Workspace, graph.workspace_bytes(node), name);
        for tensor in graph.outputs(node) {
            let output = graph.output_index(tensor);
            let name = if output == 0 { name.to_owned() } else { format!("{name}:{output}") };
            add(MemberKind::Tensor, graph.tensor_bytes(tensor), &name);
        }
        let params = graph.inputs(node).iter().filter_map(|&tensor| graph.param(graph.producer(tensor)));
        params
            .for_each(|param| add(MemberKind::Parameter, graph.param_bytes(param), graph.param_name(param)));
    }
    resident.sort_unstable();
    resident.dedup();
    let member = |kind, name, amount: Bytes| Member { kind, name, amount: Some(amount.get()) };
    let mut members = vec![member(MemberKind::Cap, topology.device(device).name.clone(), cap)];
    let mut sum = Bytes::ZERO;
    for (Reverse(bytes), kind, name) in resident.into_iter().take(NAMED) {
        if bytes == Bytes::ZERO || sum > cap {
            break;
        }
        sum += bytes;
        members.push(member(kind, name, bytes));
    }
    members
}
