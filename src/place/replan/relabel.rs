//! Which of several equal devices takes which part: the parts go where most of their state lies
//! already.
//!
//! Devices are equal where exchanging them changes nothing that a placement can cost: same kind,
//! cap and rates, same routes to all others. Slices are exchanged within their physical device,
//! physical devices as a whole. What is kept is a sum over (part, device), so the best exchange is
//! an assignment problem, solved exactly.

use super::super::context::Context;
use super::super::problem::NONE;
use super::assignment::largest;
use super::state::{Before, State};
use crate::topology::{DeviceId, Route, Topology};

/// Devices beyond which nothing is relabelled: the assignment is cubic.
const MOST: usize = 512;

/// What tells slices of one physical device apart: caps and, where the problem ties work to it,
/// the slice itself.
type Signature<'t> = (&'t str, u64, Option<u32>, bool, u32);

/// The device that takes over each device's part, for the most state kept, and the most nodes
/// among equals. O(nodes + items + physicals^3 + slices^3).
pub(super) fn relabelled(
    context: &Context<'_, '_>,
    state: &State,
    before: &[Before],
    nodes: &[DeviceId],
) -> Vec<DeviceId> {
    let topology = context.problem.topology;
    let identity: Vec<DeviceId> = topology.ids().collect();
    if topology.len() > MOST {
        return identity;
    }
    let kept = Kept::new(topology, state, before, nodes);
    let slices = slices(topology);
    let signatures: Vec<Signature<'_>> = topology.ids().map(|id| signature(context, id)).collect();
    let mut to = identity;
    for class in classes(topology, &slices, &signatures) {
        // By (part, place): the slices' own assignment, and what it keeps.
        let inner: Vec<Vec<(i128, Vec<(DeviceId, DeviceId)>)>> = class
            .iter()
            .map(|&p| class.iter().map(|&q| inner(&slices[p], &slices[q], &signatures, &kept)).collect())
            .collect();
        let weights: Vec<Vec<i128>> =
            inner.iter().map(|row| row.iter().map(|(weight, _)| *weight).collect()).collect();
        for (row, column) in largest(&weights).into_iter().enumerate() {
            for &(from, target) in &inner[row][column].1 {
                to[from.index()] = target;
            }
        }
    }
    to
}

/// By part and device: the state and the nodes of the part that were on the device.
struct Kept {
    devices: usize,
    bytes: Vec<i128>,
    nodes: Vec<i128>,
}

impl Kept {
    fn new(topology: &Topology, state: &State, before: &[Before], nodes: &[DeviceId]) -> Self {
        let devices = topology.len();
        let mut kept = Self { devices, bytes: vec![0; devices * devices], nodes: vec![0; devices * devices] };
        for (node, now) in nodes.iter().enumerate() {
            if let Before::On(then) = before[node] {
                kept.nodes[now.index() * devices + then.index()] += 1;
            }
        }
        let mut holders = Vec::new();
        for item in 0..state.len() {
            state.devices(item, nodes, &mut holders);
            for holder in &holders {
                for &then in state.kept.row(item) {
                    // Bounded, so that sums that are shifted by 32 bits stay far below 2^127.
                    kept.bytes[holder.index() * devices + then as usize] +=
                        i128::from(state.bytes[item].min(1 << 60));
                }
            }
        }
        kept
    }

    /// Bytes first, then nodes: there are fewer than 2^32.
    fn weight(&self, now: DeviceId, then: DeviceId) -> i128 {
        let at = now.index() * self.devices + then.index();
        (self.bytes[at] << 32) + self.nodes[at]
    }
}

/// Slices of each physical device.
fn slices(topology: &Topology) -> Vec<Vec<DeviceId>> {
    let mut slices = vec![Vec::new(); topology.physicals.len()];
    for id in topology.ids() {
        slices[topology.device(id).physical as usize].push(id);
    }
    slices
}

fn signature<'t>(context: &Context<'t, '_>, id: DeviceId) -> Signature<'t> {
    let device = context.problem.topology.device(id);
    let tied = context.base.computes[id.index()] || context.nets.home.contains(&id.0);
    let takes_work = context.problem.devices.contains(&id);
    let own = if tied { id.0 } else { NONE };
    (device.kind.as_str(), context.problem.caps[id.index()], device.cores, takes_work, own)
}

/// The best exchange of the slices of `part` with those of `place`, signature by signature.
fn inner(
    part: &[DeviceId],
    place: &[DeviceId],
    signatures: &[Signature<'_>],
    kept: &Kept,
) -> (i128, Vec<(DeviceId, DeviceId)>) {
    let mut distinct: Vec<&Signature<'_>> = part.iter().map(|id| &signatures[id.index()]).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let mut sum = 0;
    let mut pairs = Vec::with_capacity(part.len());
    for wanted in distinct {
        let alike = |ids: &[DeviceId]| -> Vec<DeviceId> {
            ids.iter().copied().filter(|id| signatures[id.index()] == *wanted).collect()
        };
        let (rows, columns) = (alike(part), alike(place));
        let weights: Vec<Vec<i128>> = rows
            .iter()
            .map(|&row| columns.iter().map(|&column| kept.weight(row, column)).collect())
            .collect();
        for (row, column) in largest(&weights).into_iter().enumerate() {
            sum += weights[row][column];
            pairs.push((rows[row], columns[column]));
        }
    }
    (sum, pairs)
}

/// Physical devices that can be exchanged, class by class.
fn classes(topology: &Topology, slices: &[Vec<DeviceId>], signatures: &[Signature<'_>]) -> Vec<Vec<usize>> {
    let mut classes: Vec<Vec<usize>> = Vec::new();
    for physical in (0..slices.len()).filter(|&physical| !slices[physical].is_empty()) {
        let found = classes.iter_mut().find(|class| alike(topology, slices, signatures, class[0], physical));
        match found {
            Some(class) => class.push(physical),
            None => classes.push(vec![physical]),
        }
    }
    classes
}

/// Whether exchanging two physical devices changes nothing. O(physicals + slices log slices).
fn alike(
    topology: &Topology,
    slices: &[Vec<DeviceId>],
    signatures: &[Signature<'_>],
    p: usize,
    q: usize,
) -> bool {
    let sorted = |physical: usize| {
        let mut all: Vec<&Signature<'_>> =
            slices[physical].iter().map(|id| &signatures[id.index()]).collect();
        all.sort_unstable();
        all
    };
    let rates = |physical: usize| {
        let physical = &topology.physicals[physical];
        (physical.flops, physical.half_flops, physical.bandwidth, physical.launch, physical.cores)
    };
    let n = topology.physicals.len();
    let same = |a: (usize, usize), b: (usize, usize)| {
        alike_routes(topology, &topology.routes[a.0 * n + a.1], &topology.routes[b.0 * n + b.1])
    };
    let communicates =
        |physical: usize| slices[physical].first().map(|&id| topology.device(id).communication);
    sorted(p) == sorted(q)
        && rates(p) == rates(q)
        && communicates(p) == communicates(q)
        && same((p, q), (q, p))
        && same((p, p), (q, q))
        && (0..n).filter(|&r| r != p && r != q).all(|r| same((p, r), (q, r)) && same((r, p), (r, q)))
}

/// Whether two routes take the same time under the same contention.
fn alike_routes(topology: &Topology, one: &Route, other: &Route) -> bool {
    one.via.is_some() == other.via.is_some()
        && one.hops.len() == other.hops.len()
        && one.hops.iter().zip(&other.hops).all(|(a, b)| {
            let channels = |hop: &crate::topology::Hop| -> Vec<_> {
                hop.channels.iter().map(|id| &topology.channels[id.index()]).collect::<Vec<_>>()
            };
            a.latency == b.latency
                && a.bandwidth == b.bandwidth
                && a.channels.len() == b.channels.len()
                && channels(a)
                    .iter()
                    .zip(channels(b))
                    .all(|(x, y)| x.bandwidth == y.bandwidth && x.contention == y.contention)
        })
}
