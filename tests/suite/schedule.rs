//! The scheduler: small cases to read, and what must hold on any graph and placement.

use std::collections::BTreeSet;
use std::fmt::Write;

use partition::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role};
use partition::place::Placement;
use partition::schedule::{
    ALIGNMENT, Accesses, Action, BufferIx, BufferKind, Content, Lane, Options, Schedule, SimulatedStep,
    StepIx, Work, predict, schedule, schedule_in_order, simulate,
};
use partition::topology::{Communication, Contention, DeviceId, Topology};
use partition::units::{Bytes, Nanos};

use crate::random_costgraph::{Links, Rng, compute_nodes, cost_graph, placement, topology};

const NO_CAP: Bytes = Bytes(1 << 60);

/// Everything in a schedule, one line each.
fn text(graph: &CostGraph, topology: &Topology, schedule: &Schedule) -> String {
    let mut out = String::new();
    let device = |id: DeviceId| topology.device(id).name.as_str();
    let content = |content: Content| match content {
        Content::Tensor(tensor) => graph.node_name(graph.producer(tensor)).to_owned(),
        Content::Param(param) => format!("param {}", graph.param_name(param)),
        Content::Owned(node) => format!("state of {}", graph.node_name(node)),
        Content::Workspace(node) => format!("workspace of {}", graph.node_name(node)),
    };
    for (number, step) in schedule.steps.iter().enumerate() {
        let what = match step.action {
            Action::Launch(node) => format!("run {}", graph.node_name(node)),
            Action::Copy { tensor, from, to } => {
                let name = graph.node_name(graph.producer(tensor));
                format!("copy {name} b{} -> b{}", from.0, to.0)
            }
        };
        let after: Vec<u32> = step.after.iter().map(|step| step.0).collect();
        let control: Vec<u32> = step.control.iter().map(|(step, _)| step.0).collect();
        let times = format!("{}..{}", step.start.0, step.end.0);
        write!(out, "{number}: {times:>11} {} {what}", device(step.device)).unwrap();
        write!(out, "{}", if after.is_empty() { String::new() } else { format!(" after {after:?}") })
            .unwrap();
        let reason = if control.is_empty() { String::new() } else { format!(" for memory {control:?}") };
        writeln!(out, "{reason}").unwrap();
    }
    for (number, b) in schedule.buffers.iter().enumerate() {
        let (kind, end) = (format!("{:?}", b.kind).to_lowercase(), b.offset.0 + b.bytes.0);
        writeln!(out, "b{number}: {} {}..{end} {kind} {}", device(b.device), b.offset.0, content(b.content))
            .unwrap();
    }
    for (id, d) in topology.ids().zip(&schedule.devices) {
        writeln!(
            out,
            "{}: peak {} arena {} resident {} busy {} received {}",
            device(id),
            d.peak.0,
            d.arena.0,
            d.resident.0,
            d.busy.0,
            d.received.0
        )
        .unwrap();
    }
    let cost = schedule.cost;
    writeln!(
        out,
        "step bytes {} load bytes {} latency {} max load {}",
        cost.step_bytes.0, cost.load_bytes.0, cost.latency.0, cost.max_load.0
    )
    .unwrap();
    out
}

/// Positions of the steps that happen before each step, by `after` and by lane order; quadratic,
/// sharing nothing with the scheduler's clocks.
fn happens_before(schedule: &Schedule) -> Vec<BTreeSet<usize>> {
    let mut before: Vec<BTreeSet<usize>> = Vec::new();
    for (position, step) in schedule.steps.iter().enumerate() {
        let lane = |other: &usize| {
            let other = &schedule.steps[*other];
            (other.device, other.lane) == (step.device, step.lane)
        };
        let mut set = BTreeSet::new();
        for other in step.after.iter().map(|step| step.index()).chain((0..position).rev().find(lane)) {
            set.insert(other);
            set.extend(before[other].iter().copied());
        }
        before.push(set);
    }
    before
}

#[derive(Clone, Default)]
struct Users {
    writers: Vec<usize>,
    readers: Vec<usize>,
}

fn users(graph: &CostGraph, schedule: &Schedule) -> Vec<Users> {
    let accesses = Accesses::new(graph, schedule);
    let mut users = vec![Users::default(); schedule.buffers.len()];
    for (position, step) in schedule.steps.iter().enumerate() {
        let (reads, writes) = match step.action {
            Action::Launch(node) => (accesses.reads(node, step.device), accesses.writes(node, step.device)),
            Action::Copy { from, to, .. } => (vec![from], vec![to]),
        };
        reads.iter().for_each(|b| users[b.index()].readers.push(position));
        writes.iter().for_each(|b| users[b.index()].writers.push(position));
    }
    users
}

fn resident(kind: BufferKind) -> bool {
    match kind {
        BufferKind::Input | BufferKind::Param => true,
        BufferKind::Temp | BufferKind::Output | BufferKind::Copy | BufferKind::Workspace => false,
    }
}

/// Everything that must hold of a schedule. Panics with what does not.
fn assert_sound(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    caps: &[Bytes],
    schedule: &Schedule,
) {
    let accesses = Accesses::new(graph, schedule);
    let launched: Vec<NodeIx> = schedule
        .steps
        .iter()
        .filter_map(|step| match step.action {
            Action::Launch(node) => Some(node),
            Action::Copy { .. } => None,
        })
        .collect();
    let mut sorted = launched.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, compute_nodes(graph), "each node runs once");

    // Copies: exactly those that cross-device reads ask for, each once.
    let mut asked = BTreeSet::new();
    for node in graph.nodes() {
        let device = placement.device[node.index()];
        for &tensor in graph.inputs(node) {
            let producer = graph.producer(tensor);
            if graph.role(producer) != Role::Param && placement.device[producer.index()] != device {
                asked.insert((tensor, device));
            }
        }
        if graph.role(node) == Role::Compute {
            assert_eq!(accesses.reads(node, device).len(), {
                let params: Vec<_> =
                    graph.inputs(node).iter().map(|&t| (graph.param(graph.producer(t)), t)).collect();
                params.len() + usize::from(graph.owned_bytes(node) > Bytes::ZERO)
            });
        }
    }
    let mut made = BTreeSet::new();
    let mut moved = Bytes::ZERO;
    for step in &schedule.steps {
        if let Action::Copy { tensor, from, to } = step.action {
            assert_eq!(step.lane, Lane::Copy);
            assert!(made.insert((tensor, step.device)), "a second copy of one tensor to one device");
            let (from, to) = (&schedule.buffers[from.index()], &schedule.buffers[to.index()]);
            assert_eq!(
                (to.device, from.device),
                (step.device, placement.device[graph.producer(tensor).index()])
            );
            assert_eq!((from.content, to.content), (Content::Tensor(tensor), Content::Tensor(tensor)));
            moved += to.bytes;
        }
    }
    assert_eq!(asked, made);
    assert_eq!(schedule.cost.step_bytes, moved);

    let before = happens_before(schedule);
    let users = users(graph, schedule);
    for (position, step) in schedule.steps.iter().enumerate() {
        assert!(step.after.is_sorted() && step.after.iter().all(|other| other.index() < position));
        for (other, _) in &step.control {
            assert!(step.after.contains(other));
        }
        for &other in &before[position] {
            let (other, lanes) = (&schedule.steps[other], step.lane == Lane::Copy);
            // Copies of one lane may be under way together.
            assert!(other.end <= step.start || (lanes && other.end <= step.end), "step {position}");
        }
        for other in &step.after {
            assert!(schedule.steps[other.index()].end <= step.start);
        }
    }
    for (buffer, used) in schedule.buffers.iter().zip(&users) {
        if resident(buffer.kind) {
            assert!(used.writers.is_empty());
            continue;
        }
        assert_eq!(used.writers.len(), 1, "{buffer:?}");
        for &reader in &used.readers {
            assert!(before[reader].contains(&used.writers[0]), "{buffer:?} is read before it is written");
        }
    }
    let bytes = |b: usize| &schedule.buffers[b];
    for a in 0..schedule.buffers.len() {
        assert_eq!(bytes(a).offset.0 % ALIGNMENT, 0);
        for b in 0..a {
            let (x, y) = (bytes(a), bytes(b));
            let apart = x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset;
            if x.device != y.device || apart || x.bytes == Bytes::ZERO || y.bytes == Bytes::ZERO {
                continue;
            }
            let clear = |first: usize, second: usize| {
                let (x, y) = (bytes(first), bytes(second));
                let uses = || users[first].writers.iter().chain(&users[first].readers);
                let over = uses().all(|use_| users[second].writers.iter().all(|w| before[*w].contains(use_)));
                over && !resident(x.kind) && !resident(y.kind) && x.kind != BufferKind::Output
            };
            assert!(clear(a, b) || clear(b, a), "{x:?} and {y:?} may be alive together");
        }
    }
    let total_time: Nanos = schedule
        .steps
        .iter()
        .filter(|step| step.lane == Lane::Compute)
        .map(|step| step.end - step.start)
        .max()
        .unwrap_or_default();
    assert!(schedule.cost.latency >= total_time);
    for (id, usage) in topology.ids().zip(&schedule.devices) {
        assert!(usage.peak <= usage.arena, "peak {} arena {}", usage.peak, usage.arena);
        assert!(usage.arena <= caps[id.index()]);
        assert!(usage.resident <= usage.peak);
        assert!(schedule.cost.latency >= usage.busy);
        let own = schedule.buffers.iter().filter(|b| b.device == id);
        let end = own.clone().map(|b| b.offset + b.bytes).max().unwrap_or_default();
        assert_eq!(end, usage.arena);
        let sum: u64 = own.map(|b| b.bytes.0.next_multiple_of(ALIGNMENT)).sum();
        assert!(usage.arena.0 <= sum);
    }
    assert!(schedule.cost.latency >= critical_path(graph, topology, placement));
    assert_eq!(schedule.cost.latency, schedule.steps.iter().map(|step| step.end).max().unwrap_or_default());
}

/// The longest way through the graph, copies undisturbed.
fn critical_path(graph: &CostGraph, topology: &Topology, placement: &Placement) -> Nanos {
    let mut end = vec![Nanos::ZERO; graph.node_count()];
    for node in graph.topological_order().unwrap() {
        let device = placement.device[node.index()];
        let arrival = |&tensor: &_| {
            let producer = graph.producer(tensor);
            if graph.role(producer) == Role::Param {
                return Nanos::ZERO;
            }
            let from = placement.device[producer.index()];
            end[producer.index()] + topology.copy_time(from, device, graph.tensor_bytes(tensor))
        };
        let start = graph.inputs(node).iter().map(arrival).max().unwrap_or_default();
        end[node.index()] = start + graph.time(node, 0).unwrap();
    }
    end.into_iter().max().unwrap_or_default()
}

fn random_topology(rng: &mut Rng) -> Topology {
    let links = [Links::Direct(Contention::Link), Links::Direct(Contention::None), Links::Staged];
    let added = [Communication::Overlapped, Communication::Added];
    let latency = Nanos(rng.below(3) * 500);
    let (physicals, slices) = (1 + rng.below(4) as u32, 1 + rng.below(3) as u32);
    let (links, added) = (links[rng.below(3) as usize], added[rng.below(2) as usize]);
    topology(physicals, slices, NO_CAP, links, latency, added)
}

#[test]
fn schedules_of_random_graphs_are_sound() {
    let (mut waits, mut reused) = (0, 0);
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let nodes = 1 + rng.below(60) as usize;
        let graph = cost_graph(&mut rng, nodes);
        let topology = random_topology(&mut rng);
        let placement = placement(&mut rng, &graph, &topology);
        let caps = vec![NO_CAP; topology.len()];
        let free = schedule(&graph, &topology, &placement, &Options::default()).unwrap();
        assert_sound(&graph, &topology, &placement, &caps, &free);
        assert_eq!(
            free,
            schedule(&graph, &topology, &placement, &Options::default()).unwrap(),
            "seed {seed}"
        );
        // Tighter and tighter caps, to the point where nothing fits.
        let mut caps: Vec<Bytes> = free.devices.iter().map(|usage| usage.arena).collect();
        for _ in 0..6 {
            for (cap, usage) in caps.iter_mut().zip(&free.devices) {
                *cap = Bytes((cap.0 - usage.resident.0) * 7 / 8 + usage.resident.0);
            }
            match schedule(&graph, &topology, &placement, &Options { caps: caps.clone() }) {
                Ok(tight) => {
                    assert_sound(&graph, &topology, &placement, &caps, &tight);
                    waits += tight.steps.iter().map(|step| step.control.len()).sum::<usize>();
                    reused += usize::from(tight.devices != free.devices);
                }
                Err(error) => assert_eq!(error.exit_code(), 3, "{error}"),
            }
        }
    }
    assert!(waits > 100 && reused > 100, "{waits} {reused}: the caps force nothing");
}
