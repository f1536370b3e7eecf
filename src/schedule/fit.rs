//! From an order to a draft whose arenas stay under their caps.

use std::cmp::Reverse;

use super::assemble::Draft;
use super::memory::{Reuse, lay_out};
use super::problem::Problem;
use super::residents::Residents;
use crate::costgraph::{NodeIx, Role};
use crate::error::{Error, Member, MemberKind, Result};
use crate::topology::DeviceId;
use crate::units::Bytes;

/// Lays out an order so that every device stays under its cap: at first with no step waiting for
/// memory, then, where that is too much even when packed anew, with waiting.
///
/// Errors with the first device whose arena is still over its cap.
pub(super) fn fit(
    problem: &Problem<'_>,
    residents: &Residents,
    order: &[u32],
    caps: &[Bytes],
) -> Result<Result<Draft, Shortage>> {
    let draft = closest(problem, residents, order, caps)?;
    Ok(match (0..caps.len()).find(|&device| draft.arena()[device] > caps[device]) {
        Some(first) => Err(Shortage { device: DeviceId(first as u32), arena: draft.arena()[first] }),
        None => Ok(draft),
    })
}

/// As [`fit`], but where no waiting helps, the draft whose arenas are over their caps.
pub(super) fn closest(
    problem: &Problem<'_>,
    residents: &Residents,
    order: &[u32],
    caps: &[Bytes],
) -> Result<Draft> {
    let mut reuse = vec![Reuse::Implied; caps.len()];
    loop {
        let layout = lay_out(problem, residents, order, &reuse)?;
        let mut draft = Draft::new(problem, residents, order, &layout);
        draft.press(problem, residents, caps);
        let mut changed = false;
        for device in (0..caps.len()).filter(|&device| draft.arena()[device] > caps[device]) {
            changed |= std::mem::replace(&mut reuse[device], Reuse::Waiting) == Reuse::Implied;
        }
        if !changed {
            return Ok(draft);
        }
    }
}

/// Things that are named of a device that is too small.
const NAMED: usize = 8;

/// A device whose arena does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) device: DeviceId,
    pub(super) arena: Bytes,
}

impl Shortage {
    /// As an error, with what the device holds in any case.
    pub(super) fn error(self, problem: &Problem<'_>, residents: &Residents, caps: &[Bytes]) -> Error {
        let name = &problem.topology.device(self.device).name;
        let cap = caps[self.device.index()];
        Error::Infeasible(Box::new(crate::error::Infeasible {
            proven: false,
            conflict: format!(
                "with this placement {name} needs {} ({} bytes), {} of it for parameters, state and inputs, and has {} ({} bytes)",
                self.arena,
                self.arena.0,
                residents.bytes[self.device.index()],
                cap,
                cap.0
            ),
            repair: format!("give {name} {} bytes", self.arena.0),
            short: vec![(name.clone(), self.arena.saturating_sub(cap))],
            members: self.binding(problem, cap),
            ..crate::error::Infeasible::default()
        }))
    }

    /// The device's cap, and the largest things on it.
    fn binding(self, problem: &Problem<'_>, cap: Bytes) -> Vec<Member> {
        let graph = problem.graph;
        let here = |&node: &NodeIx| graph.role(node) != Role::Param && problem.device(node) == self.device;
        let mut held: Vec<(Reverse<Bytes>, MemberKind, String)> = Vec::new();
        let mut add = |kind, bytes, name: &str| held.push((Reverse(bytes), kind, name.to_owned()));
        for node in graph.nodes().filter(here) {
            let name = graph.node_name(node);
            add(MemberKind::State, graph.owned_bytes(node), name);
            add(MemberKind::Workspace, graph.workspace_bytes(node), name);
            for tensor in graph.outputs(node) {
                let output = graph.output_index(tensor);
                let name = if output == 0 { name.to_owned() } else { format!("{name}:{output}") };
                add(MemberKind::Tensor, graph.tensor_bytes(tensor), &name);
            }
            let params = graph.inputs(node).iter().filter_map(|&tensor| graph.param(graph.producer(tensor)));
            params.for_each(|param| {
                add(MemberKind::Parameter, graph.param_bytes(param), graph.param_name(param))
            });
        }
        held.sort_unstable();
        held.dedup();
        let largest = held.into_iter().filter(|held| held.0.0 > Bytes::ZERO).take(NAMED);
        let member = |kind, name, amount: Bytes| Member { kind, name, amount: Some(amount.get()) };
        let cap = member(MemberKind::Cap, problem.topology.device(self.device).name.clone(), cap);
        std::iter::once(cap).chain(largest.map(|(bytes, kind, name)| member(kind, name, bytes.0))).collect()
    }
}
