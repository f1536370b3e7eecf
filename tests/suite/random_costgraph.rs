//! Random cost graphs, topologies and placements, each a pure function of a seed.
#![allow(dead_code, reason = "each test module uses its own part")]

use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role};
use partition::unstable::place::Placement;
use partition::unstable::topology::{
    Communication, Contention, Description, DeviceGroup, DeviceId, LinkGroup, Topology,
};
use partition::unstable::units::{Bytes, Flops, Nanos, Rate};

/// SplitMix64: small, seeded, the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def0)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform enough in `0..bound`; 0 where `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A random graph of the one kind `cpu`: inputs, parameters (some tied), nodes with up to three
/// inputs and two outputs, workspaces, owned state, zero sizes and zero times, extra results.
/// About a third of the edges reach far back. Node numbers need not be topological.
pub(crate) fn cost_graph(rng: &mut Rng, nodes: usize) -> CostGraph {
    let mut b = Builder::new("random", vec!["cpu".into()]);
    let sizes = [0u64, 1, 4, 63, 64, 65, 256, 1000, 4096, 10_000];
    let mut made: Vec<(NodeIx, u32)> = Vec::new();
    // Declared in a shuffled order: the builder's order is not the topological one.
    let mut ranks: Vec<usize> = (0..nodes.max(1)).collect();
    if rng.chance(50) {
        for i in (1..ranks.len()).rev() {
            ranks.swap(i, rng.below(i as u64 + 1) as usize);
        }
    }
    let mut by_rank = vec![(NodeIx(0), 0u32, Role::Compute); ranks.len()];
    for &rank in &ranks {
        let role = match rng.below(10) {
            _ if rank == 0 => Role::Input,
            0 => Role::Input,
            1 | 2 => Role::Param,
            _ => Role::Compute,
        };
        let outputs: Vec<Bytes> =
            (0..1 + rng.below(4) / 3).map(|_| Bytes(sizes[rng.below(10) as usize])).collect();
        let name = format!("n{rank}");
        let tie = (role == Role::Param && rng.chance(30)).then_some("tied");
        let spec = NodeSpec {
            name: &name,
            op: match role {
                Role::Compute => "f",
                Role::Param => "param",
                Role::Input => "input",
            },
            times: &[Some(Nanos(rng.below(6) * 100))],
            param_bytes: Bytes(match (role, tie) {
                (Role::Param, Some(_)) => 512,
                (Role::Param, None) => sizes[rng.below(10) as usize],
                _ if rng.chance(20) => 100,
                _ => 0,
            }),
            params: tie,
            workspace: Bytes(if rng.chance(20) { 300 } else { 0 }),
            outputs: &outputs,
            ..NodeSpec::default()
        };
        let ix = b.add(&spec).expect("a valid node");
        by_rank[rank] = (ix, outputs.len() as u32, role);
    }
    for (ix, outputs, role) in by_rank {
        if role == Role::Compute && !made.is_empty() {
            for _ in 0..rng.below(4) {
                let back = if rng.chance(30) { made.len() } else { made.len().min(6) };
                let (producer, output) = made[made.len() - 1 - rng.below(back as u64) as usize];
                b.connect(producer, output, ix);
            }
        }
        for output in 0..outputs {
            made.push((ix, output));
            if role == Role::Compute && rng.chance(5) {
                b.set_result(ix, output);
            }
        }
    }
    b.finish().expect("an acyclic graph")
}

/// What joins the devices of [`topology`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// A link of its own in each direction between any two physical devices.
    Direct(Contention),
    /// One upload and one download channel for each physical device, staged through the first.
    Staged,
}

/// `physicals` CPUs of `slices` devices each, all of the kind `cpu`. Links do 1 GB/s with
/// `latency`; slices of one device are joined at 4 GB/s.
pub(crate) fn topology(
    physicals: u32,
    slices: u32,
    memory: Bytes,
    links: Links,
    latency: Nanos,
    communication: Communication,
) -> Topology {
    let gigabyte = Rate(1_000_000_000);
    let mut group = DeviceGroup {
        count: Some(physicals),
        memory: Some(memory).filter(|_| slices == 1),
        slices: if slices == 1 { Vec::new() } else { vec![memory; slices as usize] },
        flops: Some(Flops(1_000_000_000)),
        bandwidth: Some(Rate(8_000_000_000)),
        launch: Some(Nanos::ZERO),
        communication,
        latency: Some(latency),
        ..DeviceGroup::new("cpu")
    };
    let mut description = Description::default();
    match links {
        Links::Direct(contention) => {
            group.link = Some(gigabyte);
            group.contention = contention;
        }
        Links::Staged if physicals > 1 => description.links.push(LinkGroup {
            latency: Some(latency),
            via: Some("cpu0".into()),
            ..LinkGroup::new("cpu*", "cpu*", gigabyte)
        }),
        Links::Staged => {}
    }
    description.devices.push(group);
    description.build().expect("a sound description")
}

/// A random placement: scattered, in runs of the builder's order, or on one device.
pub(crate) fn placement(rng: &mut Rng, graph: &CostGraph, topology: &Topology) -> Placement {
    let devices = topology.len() as u64;
    let style = rng.below(3);
    let mut current = rng.below(devices);
    let device = graph
        .nodes()
        .map(|_| {
            if style == 0 || (style == 1 && rng.chance(15)) {
                current = rng.below(devices);
            }
            DeviceId(current as u32)
        })
        .collect();
    Placement { device, ..Placement::default() }
}

/// The nodes that run in the step.
pub(crate) fn compute_nodes(graph: &CostGraph) -> Vec<NodeIx> {
    graph.nodes().filter(|&node| graph.role(node) == Role::Compute).collect()
}
