//! What must be together, found anew: where a tensor's maker and a reader cannot be on different
//! devices because the copy, with what is computed there, would load a device above the limit.

use super::facts::Facts;
use crate::costgraph::{NodeIx, Role, TensorIx};
use crate::topology::{Communication, Contention, DeviceId, Topology};
use crate::units::{Bytes, Rate};

/// Nodes that are on one device if no load is above the limit.
pub(super) struct Groups {
    /// By node that runs, its group; the number of nodes for the others.
    pub(super) of: Vec<usize>,
    /// By group and device: what the group takes there; none where it cannot be there, and for
    /// groups that are part of others.
    pub(super) time: Vec<Vec<Option<u64>>>,
}

/// What copies cost at the least.
pub(super) struct Copies {
    /// By device whose copies add to its load: the fastest rate at which one ends there.
    rate: Vec<Option<Rate>>,
    /// Over all pairs of devices, the fastest of the slowest channels between them.
    link: Rate,
}

impl Copies {
    pub(super) fn new(topology: &Topology) -> Self {
        let mut rate: Vec<Option<Rate>> = topology
            .devices
            .iter()
            .map(|device| (device.communication == Communication::Added).then_some(Rate(0)))
            .collect();
        let mut link = Rate(0);
        for from in topology.ids() {
            for to in topology.ids().filter(|&to| to != from) {
                let hops = &topology.route(from, to).hops;
                for (end, hop) in [(from, hops.first()), (to, hops.last())] {
                    if let (Some(rate), Some(hop)) = (&mut rate[end.index()], hop) {
                        *rate = (*rate).max(hop.bandwidth);
                    }
                }
                let channels =
                    hops.iter().flat_map(|hop| &hop.channels).map(|id| &topology.channels[id.index()]);
                let taken = channels.filter(|channel| channel.contention == Contention::Link);
                link = link.max(taken.map(|channel| channel.bandwidth).min().unwrap_or(Rate::INFINITE));
            }
        }
        Self { rate, link }
    }

    /// True where copies add to a device's load.
    pub(super) fn add_to(&self, device: usize) -> bool {
        self.rate[device].is_some()
    }

    /// What a copy at least adds to the load of a device that sends or receives it.
    pub(super) fn load(&self, device: usize, bytes: Bytes) -> u64 {
        self.rate[device].map_or(0, |rate| rate.time(bytes).get())
    }
}

/// Makers and readers of a tensor that run; for a parameter nobody, since those are not copied.
pub(super) fn members<'f>(facts: &'f Facts<'_>, tensor: TensorIx) -> impl Iterator<Item = NodeIx> + 'f {
    let maker = facts.graph.producer(tensor);
    let copied = facts.graph.role(maker) != Role::Param;
    let runs = |node: &NodeIx| facts.graph.role(*node) == Role::Compute;
    std::iter::once(maker)
        .chain(facts.graph.consumers(tensor).iter().copied())
        .filter(move |_| copied)
        .filter(runs)
}

impl Groups {
    /// The groups under a limit of all loads.
    pub(super) fn new(facts: &Facts<'_>, copies: &Copies, limit: u64) -> Self {
        let nodes = facts.graph.node_count();
        let mut of: Vec<usize> = vec![nodes; nodes];
        let mut time: Vec<Vec<Option<u64>>> = Vec::new();
        let mut number = vec![None; nodes];
        for node in facts.runs() {
            let group = *number[facts.class[node.index()] as usize].get_or_insert_with(|| {
                let mut none = vec![None; facts.kinds.len()];
                facts.devices(node).iter().for_each(|id| none[id.index()] = Some(0));
                time.push(none);
                time.len() - 1
            });
            of[node.index()] = group;
            for (device, sum) in time[group].iter_mut().enumerate() {
                *sum = plus(*sum, facts.time(node, DeviceId(device as u32)));
            }
        }
        let mut above: Vec<usize> = (0..time.len()).collect();
        let mut changed = true;
        while changed {
            changed = false;
            for tensor in facts.graph.tensors() {
                let bytes = facts.graph.tensor_bytes(tensor);
                let mut members = members(facts, tensor).map(|node| of[node.index()]);
                let Some(first) = members.next() else { continue };
                for other in members {
                    let (a, b) = (top(&mut above, first), top(&mut above, other));
                    if a != b && !can_part(&time[a], &time[b], copies, bytes, limit) {
                        let joined = time[a].iter().zip(&time[b]).map(|(&a, &b)| plus(a, b)).collect();
                        above[b] = a;
                        time[a] = joined;
                        changed = true;
                    }
                }
            }
        }
        for group in of.iter_mut().filter(|group| **group < nodes) {
            *group = top(&mut above, *group);
        }
        for (group, time) in time.iter_mut().enumerate() {
            let joined = above[group] != group;
            time.iter_mut().for_each(|time| *time = time.filter(|&time| time <= limit && !joined));
        }
        Self { of, time }
    }
}

fn plus(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a?.saturating_add(b?))
}

fn top(above: &mut [usize], mut group: usize) -> usize {
    while above[group] != group {
        above[group] = above[above[group]];
        group = above[group];
    }
    group
}

/// True where two groups can be on different devices with a copy between them.
fn can_part(a: &[Option<u64>], b: &[Option<u64>], copies: &Copies, bytes: Bytes, limit: u64) -> bool {
    let fits = |time: &[Option<u64>], device: usize| {
        time[device].is_some_and(|time| time.saturating_add(copies.load(device, bytes)) <= limit)
    };
    let of_a: Vec<usize> = (0..a.len()).filter(|&device| fits(a, device)).collect();
    let mut of_b = (0..b.len()).filter(|&device| fits(b, device));
    copies.link.time(bytes).get() <= limit && of_b.any(|device| of_a.iter().any(|&other| other != device))
}
