//! What can be computed again or offloaded to lower the peak of one device.

use super::step::{Offloaded, StepOrder};
use crate::costgraph::derive::Derived;
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::place::Placement;
use crate::schedule::{Action, BufferKind, Content, Schedule};
use crate::topology::{self, DeviceId, Topology};
use crate::units::{Bytes, Nanos};

/// A tensor that idles while most is alive.
#[derive(Clone, Copy, Debug)]
pub(super) struct RewriteCandidate {
    pub(super) tensor: TensorIx,
    /// Bytes that are freed at the peak.
    pub(super) frees: Bytes,
    pub(super) costs: Nanos,
}

/// A schedule that does not fit, to be looked at.
pub(super) struct Round<'a> {
    topology: &'a Topology,
    caps: &'a [Bytes],
    graph: &'a CostGraph,
    placement: &'a Placement,
    schedule: &'a Schedule,
    /// By node: its place among the launches.
    position: Vec<u32>,
    /// By device: the place of the launch at its peak.
    peak: Vec<Option<u32>>,
}

const NEVER: u32 = u32::MAX;

/// A device that is over its cap: at which of its launches, and by how much.
#[derive(Clone, Copy)]
struct Lacking {
    device: DeviceId,
    peak: u32,
    excess: Bytes,
}

impl<'a> Round<'a> {
    /// O(steps + buffers).
    pub(super) fn new(
        topology: &'a Topology,
        caps: &'a [Bytes],
        derived: &'a Derived,
        placement: &'a Placement,
        schedule: &'a Schedule,
    ) -> Self {
        let graph = &derived.graph;
        let mut position = vec![NEVER; graph.node_count()];
        let launches = schedule.steps.iter().filter_map(|step| match step.action {
            Action::Launch(node) => Some(node),
            Action::Copy { .. } => None,
        });
        for (at, node) in launches.enumerate() {
            position[node.index()] = at as u32;
        }
        let mut round = Self { topology, caps, graph, placement, schedule, position, peak: Vec::new() };
        round.peak = topology.ids().map(|device| round.peak_of(device)).collect();
        round
    }

    /// The last launch of those that made what is alive at the peak.
    fn peak_of(&self, device: DeviceId) -> Option<u32> {
        let alive = &self.schedule.at_peak[device.index()];
        let made = alive.iter().filter_map(|buffer| {
            let buffer = &self.schedule.buffers[buffer.index()];
            let node = match buffer.content {
                Content::Workspace(node) => node,
                Content::Tensor(tensor) if buffer.kind != BufferKind::Copy => self.graph.producer(tensor),
                Content::Tensor(_) | Content::Returned(_) | Content::Param(_) | Content::Owned(_) => {
                    return None;
                }
            };
            Some(self.position[node.index()])
        });
        made.max()
    }

    /// The node that makes a tensor.
    pub(super) fn producer(&self, tensor: TensorIx) -> NodeIx {
        self.graph.producer(tensor)
    }

    /// The place of the first launch on the device that reads a result of the node after the peak.
    pub(super) fn first_late_reader(&self, node: NodeIx, device: DeviceId) -> Option<u32> {
        let peak = self.peak[device.index()]?;
        let tensors = self.graph.outputs(node);
        let late =
            tensors.flat_map(|tensor| self.late(tensor, peak)).filter(|&reader| self.on(reader, device));
        late.map(|reader| self.position[reader.index()]).min()
    }

    fn late(&self, tensor: TensorIx, peak: u32) -> impl Iterator<Item = NodeIx> + '_ {
        let readers = self.graph.consumers(tensor).iter().copied();
        readers.filter(move |reader| self.position[reader.index()] > peak)
    }

    fn on(&self, node: NodeIx, device: DeviceId) -> bool {
        self.placement.device[node.index()] == device
    }

    /// Chooses what to do for each device that is over its cap, and by how much; false where there is
    /// nothing. O(what is alive at the peaks, with its readers).
    pub(super) fn choose(&self, step: &mut StepOrder, over: &[(Bytes, DeviceId)]) -> bool {
        let before = step.offloads.len();
        let mut free_memory: Vec<Bytes> =
            self.topology.ids().map(|device| self.free_memory(device)).collect();
        let mut recomputes: Vec<(DeviceId, RewriteCandidate)> = Vec::new();
        for &(excess, device) in over {
            let Some(peak) = self.peak[device.index()] else { continue };
            let mut idle: Vec<TensorIx> = self.idle(step, device, peak).collect();
            idle.sort_unstable();
            let found = self.recomputations(step, &idle, device, peak);
            let found = enough(found, excess, |one, other| self.depend(one, other));
            if found.is_empty() {
                self.offload(step, &idle, Lacking { device, peak, excess }, &mut free_memory);
            }
            recomputes.extend(found.into_iter().map(|candidate| (device, candidate)));
        }
        // All at once: positions are those of the schedule that was looked at.
        step.recompute(self, &recomputes);
        !recomputes.is_empty() || step.offloads.len() > before
    }

    /// Tensors at home that are alive at the peak, not used by the launch there, and read later.
    fn idle<'r>(
        &'r self,
        step: &'r StepOrder,
        device: DeviceId,
        peak: u32,
    ) -> impl Iterator<Item = TensorIx> + 'r {
        let alive = self.schedule.at_peak[device.index()].iter();
        let temps = alive.filter_map(move |buffer| {
            let buffer = &self.schedule.buffers[buffer.index()];
            match (buffer.kind, buffer.content) {
                (BufferKind::Temp, Content::Tensor(tensor)) => Some(tensor),
                _ => None,
            }
        });
        temps.filter(move |&tensor| {
            let producer = self.graph.producer(tensor);
            let used =
                self.graph.consumers(tensor).iter().any(|reader| self.position[reader.index()] == peak);
            // What lies in it keeps its bytes, wherever it goes itself.
            let is_cut = self.graph.has_views()
                && self.graph.consumers(tensor).iter().any(|&reader| self.graph.view(reader).is_some());
            let idles =
                self.position[producer.index()] < peak && !used && !is_cut && !self.graph.is_result(tensor);
            idles && !step.is_offloaded(tensor) && self.late(tensor, peak).next().is_some()
        })
    }

    /// What computing again frees more than it keeps alive, the most bytes for its time first.
    fn recomputations(
        &self,
        step: &StepOrder,
        idle: &[TensorIx],
        device: DeviceId,
        peak: u32,
    ) -> Vec<RewriteCandidate> {
        let kinds = self.topology.kinds_in(&self.graph.kinds);
        let mut found: Vec<RewriteCandidate> = Vec::new();
        for &tensor in idle {
            let node = self.graph.producer(tensor);
            // Readers of an offloaded result would read the second run's instead.
            let is_settled = step.is_recomputed(node)
                || self.graph.outputs(node).any(|result| step.is_offloaded(result))
                || !self.late(tensor, peak).any(|reader| self.on(reader, device));
            if is_settled || found.last().is_some_and(|last| self.graph.producer(last.tensor) == node) {
                continue;
            }
            let freed: Bytes = self
                .graph
                .outputs(node)
                .filter(|other| idle.binary_search(other).is_ok())
                .map(|t| self.graph.tensor_bytes(t))
                .sum();
            let Some(kept) = self.kept(step, node, device, peak) else { continue };
            let time = kinds[device.index()].and_then(|kind| self.graph.time(node, kind));
            if let (Some(costs), true) = (time, freed > kept) {
                found.push(RewriteCandidate { tensor, frees: freed.saturating_sub(kept), costs });
            }
        }
        sort(&mut found);
        found
    }

    /// Bytes that stay alive over the peak because a node runs again after it; none where it reads
    /// what is offloaded.
    fn kept(&self, step: &StepOrder, node: NodeIx, device: DeviceId, peak: u32) -> Option<Bytes> {
        let first = self.first_late_reader(node, device)?;
        let mut kept = Bytes::ZERO;
        for &input in self.graph.inputs(node) {
            let producer = self.graph.producer(input);
            if step.is_offloaded(input) {
                return None;
            }
            if self.graph.role(producer) != Role::Compute || self.graph.is_result(input) {
                continue;
            }
            let alive = self.late(input, peak).any(|reader| self.on(reader, device));
            // What was computed again by then is read instead.
            let renewed = step.renewed(producer).is_some_and(|copy| self.position[copy.index()] < first);
            if !alive && !renewed {
                kept += self.graph.tensor_bytes(input);
            }
        }
        Some(kept)
    }

    /// True where one candidate's node reads the other's result, so that they cannot both be judged
    /// by what is alive now.
    fn depend(&self, one: &RewriteCandidate, other: &RewriteCandidate) -> bool {
        let reads = |node: NodeIx, of: NodeIx| {
            self.graph.inputs(node).iter().any(|&input| self.graph.producer(input) == of)
        };
        let (one, other) = (self.graph.producer(one.tensor), self.graph.producer(other.tensor));
        reads(one, other) || reads(other, one)
    }

    /// Offloads what frees enough, to the host, or the neighbour, with the most room.
    fn offload(&self, step: &mut StepOrder, idle: &[TensorIx], lacking: Lacking, free_memory: &mut [Bytes]) {
        let Lacking { device, peak, excess } = lacking;
        let Some(host) = self.host(device, free_memory) else { return };
        let (there, back) = (self.topology.route(device, host), self.topology.route(host, device));
        let mut found: Vec<RewriteCandidate> = (idle.iter())
            .filter(|&&tensor| !step.is_recomputed(self.graph.producer(tensor)))
            .map(|&tensor| {
                let frees = self.graph.tensor_bytes(tensor);
                RewriteCandidate { tensor, frees, costs: there.time(frees) + back.time(frees) }
            })
            .collect();
        sort(&mut found);
        let mut fitting = free_memory[host.index()];
        found.retain(|candidate| {
            let fits = candidate.frees <= fitting;
            fitting = if fits { fitting.saturating_sub(candidate.frees) } else { fitting };
            fits
        });
        for RewriteCandidate { tensor, frees, costs } in enough(found, excess, |_, _| false) {
            let readers = self.late(tensor, peak).map(|reader| step.run(reader)).collect();
            step.offloads.push(Offloaded { tensor, device, host, readers, frees, costs });
            free_memory[host.index()] = free_memory[host.index()].saturating_sub(frees);
        }
    }

    fn free_memory(&self, device: DeviceId) -> Bytes {
        self.caps[device.index()].saturating_sub(self.schedule.devices[device.index()].arena)
    }

    /// A host before devices that compute; of those the one with the most room.
    fn host(&self, device: DeviceId, free_memory: &[Bytes]) -> Option<DeviceId> {
        let free_memory = |other: DeviceId| free_memory[other.index()];
        let others = self.topology.ids().filter(|&other| other != device && free_memory(other) > Bytes::ZERO);
        others.max_by_key(|&other| {
            let host = self.topology.device(other).role == topology::Role::Host;
            (host, free_memory(other), std::cmp::Reverse(other))
        })
    }
}

/// The most bytes for its time first; of equals the most bytes.
fn sort(candidates: &mut [RewriteCandidate]) {
    candidates.sort_by(|one, other| {
        let worth =
            |a: &RewriteCandidate, b: &RewriteCandidate| u128::from(a.frees.0) * u128::from(b.costs.0);
        let order = worth(other, one).cmp(&worth(one, other));
        order.then(other.frees.cmp(&one.frees)).then(one.tensor.cmp(&other.tensor))
    });
}

/// The first candidates that together free `excess`, without those that are not needed for it, and
/// without any that clashes with an earlier one.
fn enough(
    candidates: Vec<RewriteCandidate>,
    excess: Bytes,
    clash: impl Fn(&RewriteCandidate, &RewriteCandidate) -> bool,
) -> Vec<RewriteCandidate> {
    let mut chosen: Vec<RewriteCandidate> = Vec::new();
    let mut freed = Bytes::ZERO;
    for candidate in candidates {
        if freed >= excess || chosen.len() >= MOST {
            break;
        }
        if !chosen.iter().any(|other| clash(other, &candidate)) {
            freed += candidate.frees;
            chosen.push(candidate);
        }
    }
    // Late ones may free so much that earlier ones are no longer needed.
    let mut at = 0;
    while at < chosen.len() {
        let rest = freed.saturating_sub(chosen[at].frees);
        if rest >= excess {
            freed = rest;
            chosen.remove(at);
        } else {
            at += 1;
        }
    }
    chosen
}

/// Candidates that one round takes at most.
const MOST: usize = 256;
