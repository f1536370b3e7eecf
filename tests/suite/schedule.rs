//! The scheduler: small cases to read, and what must hold on any graph and placement.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role};
use partition::unstable::place::Placement;
use partition::unstable::schedule::{
    ALIGNMENT, Accesses, Action, BufferKind, Content, Lane, Offload, Options, Part, Schedule, SimulatedStep,
    Step, StepIx, Why, Work, predict, retimed, schedule, schedule_in_order, simulate,
};
use partition::unstable::topology::{Communication, Contention, DeviceId, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::random_costgraph::{Links, Rng, compute_nodes, cost_graph, placement, topology};
use crate::sweep::Share;

const NO_CAP: Bytes = Bytes(1 << 60);

/// Everything in a schedule, one line each.
pub(crate) fn text(graph: &CostGraph, topology: &Topology, schedule: &Schedule) -> String {
    let mut out = String::new();
    let device = |id: DeviceId| topology.device(id).name.as_str();
    let content = |content: Content| match content {
        Content::Tensor(tensor) => graph.node_name(graph.producer(tensor)).to_owned(),
        Content::Returned(tensor) => format!("{} again", graph.node_name(graph.producer(tensor))),
        Content::Param(param) => format!("param {}", graph.param_name(param)),
        Content::Owned(node) => format!("state of {}", graph.node_name(node)),
        Content::Workspace(node) => format!("workspace of {}", graph.node_name(node)),
    };
    for (number, step) in schedule.steps.iter().enumerate() {
        let what = match step.action {
            Action::Launch(node) => format!("run {}", graph.node_name(node)),
            Action::Copy { tensor, from, to, part } => {
                let name = graph.node_name(graph.producer(tensor));
                let part = part.map_or(String::new(), |part| {
                    format!(" {}..{}", part.offset.0, part.offset.0 + part.bytes.0)
                });
                format!("copy {name} b{} -> b{}{part}", from.0, to.0)
            }
        };
        let after: Vec<u32> = step.after.iter().map(|step| step.0).collect();
        let reason = |wanted: Why, words: &str| {
            let control = step.control.iter().filter(|(_, why)| *why == wanted);
            let control: Vec<u32> = control.map(|(step, _)| step.0).collect();
            if control.is_empty() { String::new() } else { format!(" {words} {control:?}") }
        };
        let times = format!("{}..{}", step.start.0, step.end.0);
        write!(out, "{number}: {times:>11} {} {what}", device(step.device)).unwrap();
        write!(out, "{}", if after.is_empty() { String::new() } else { format!(" after {after:?}") })
            .unwrap();
        writeln!(out, "{}{}", reason(Why::Memory, "for memory"), reason(Why::Starve, "held for")).unwrap();
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
pub(crate) fn happens_before(schedule: &Schedule) -> Vec<BTreeSet<usize>> {
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
pub(crate) struct Users {
    pub(crate) writers: Vec<usize>,
    pub(crate) readers: Vec<usize>,
}

pub(crate) fn users(graph: &CostGraph, schedule: &Schedule) -> Vec<Users> {
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

/// The part that a copy moves.
fn part_of(step: &Step) -> Option<Part> {
    match step.action {
        Action::Copy { part, .. } => part,
        Action::Launch(_) => None,
    }
}

/// Everything that must hold of a schedule. Panics with what does not.
pub(crate) fn assert_sound(
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
    for offload in &schedule.offload {
        let home = placement.device[graph.producer(offload.tensor).index()];
        asked.insert((offload.tensor, offload.host));
        if offload.readers.iter().any(|reader| placement.device[reader.index()] == home) {
            asked.insert((offload.tensor, home));
        }
    }
    let mut made: BTreeMap<_, Bytes> = BTreeMap::new();
    let mut moved = Bytes::ZERO;
    for step in &schedule.steps {
        if let Action::Copy { tensor, from, to, part } = step.action {
            assert_eq!(step.lane, Lane::Copy);
            let (from, to) = (&schedule.buffers[from.index()], &schedule.buffers[to.index()]);
            let home = placement.device[graph.producer(tensor).index()];
            assert_eq!((to.device, from.bytes), (step.device, to.bytes));
            assert_eq!(
                to.content,
                match step.device == home {
                    true => Content::Returned(tensor),
                    false => Content::Tensor(tensor),
                }
            );
            assert_eq!(from.content, Content::Tensor(tensor));
            let brought = made.insert((tensor, step.device), part.map_or(to.bytes, |p| p.offset + p.bytes));
            let expected = part.filter(|part| part.offset > Bytes::ZERO).map(|part| part.offset);
            assert_eq!(brought, expected, "one copy of a tensor to a device, or its parts in order");
            moved += part.map_or(to.bytes, |part| part.bytes);
        }
    }
    for (&(tensor, _), &brought) in &made {
        assert_eq!(brought, graph.tensor_bytes(tensor));
    }
    assert_eq!(asked, made.into_keys().collect());
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
        let parts = used.writers.iter().filter(|&&writer| part_of(&schedule.steps[writer]).is_some()).count();
        assert!(used.writers.len() == 1 || parts == used.writers.len() && parts > 0, "{buffer:?}");
        for &reader in &used.readers {
            for &writer in &used.writers {
                let (read, written) = (part_of(&schedule.steps[reader]), part_of(&schedule.steps[writer]));
                let apart = read.zip(written).is_some_and(|(read, written)| {
                    read.offset + read.bytes <= written.offset
                        || written.offset + written.bytes <= read.offset
                });
                assert!(apart || before[reader].contains(&writer), "{buffer:?} is read before it is written");
            }
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

/// The longest way through the graph, copies undisturbed and in as many parts as one likes.
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
            let bytes = graph.tensor_bytes(tensor);
            let copy =
                if from == device { Nanos::ZERO } else { topology.route(from, device).longest_hop(bytes) };
            end[producer.index()] + copy
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

sweep! {
    schedules_of_random_graphs_are_sound: one of 4;
    schedules_with_offloads_are_sound: one of 4;
}

fn schedules_of_random_graphs_are_sound(share: Share) {
    let (mut waits, mut reused) = (0, 0);
    for seed in share.among(0..400) {
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
            match schedule(
                &graph,
                &topology,
                &placement,
                &Options { caps: caps.clone(), ..Options::default() },
            ) {
                Ok(tight) => {
                    assert_sound(&graph, &topology, &placement, &caps, &tight);
                    waits += tight.steps.iter().map(|step| step.control.len()).sum::<usize>();
                    reused += usize::from(tight.devices != free.devices);
                }
                Err(error) => assert_eq!(error.exit_code(), 3, "{error}"),
            }
        }
    }
    let enough = share.least(100);
    assert!(waits > enough && reused > enough, "{waits} {reused}: the caps force nothing");
}

/// Offloads of some tensors that are made in the step and read by several, their last readers late.
pub(crate) fn offloads(
    rng: &mut Rng,
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
) -> Vec<Offload> {
    let mut offload = Vec::new();
    for tensor in graph.tensors() {
        let producer = graph.producer(tensor);
        let home = placement.device[producer.index()];
        let host = DeviceId(rng.below(topology.len() as u64) as u32);
        let readers = graph.consumers(tensor);
        let possible = graph.role(producer) == Role::Compute && !graph.is_result(tensor) && host != home;
        if possible && !readers.is_empty() && rng.below(2) == 0 {
            let late = rng.below(readers.len() as u64) as usize;
            offload.push(Offload { tensor, host, readers: readers[late..].to_vec() });
        }
    }
    offload
}

fn schedules_with_offloads_are_sound(share: Share) {
    let (mut back, mut smaller) = (0, 0);
    for seed in share.among(0..300) {
        let mut rng = Rng::new(7_000 + seed);
        let nodes = 2 + rng.below(50) as usize;
        let graph = cost_graph(&mut rng, nodes);
        let topology = random_topology(&mut rng);
        let placement = placement(&mut rng, &graph, &topology);
        let offload = offloads(&mut rng, &graph, &topology, &placement);
        let plain = schedule(&graph, &topology, &placement, &Options::default()).unwrap();
        let options = Options { offload, ..Options::default() };
        let made = schedule(&graph, &topology, &placement, &options).unwrap();
        let caps = vec![NO_CAP; topology.len()];
        assert_sound(&graph, &topology, &placement, &caps, &made);
        assert!(made.cost.step_bytes >= plain.cost.step_bytes);
        back += made.buffers.iter().filter(|b| matches!(b.content, Content::Returned(_))).count();
        // Tighter and tighter.
        let mut caps: Vec<Bytes> = made.devices.iter().map(|usage| usage.arena).collect();
        for _ in 0..5 {
            for (cap, usage) in caps.iter_mut().zip(&made.devices) {
                *cap = Bytes((cap.0 - usage.resident.0) * 7 / 8 + usage.resident.0);
            }
            match schedule(&graph, &topology, &placement, &Options { caps: caps.clone(), ..options.clone() })
            {
                Ok(tight) => {
                    assert_sound(&graph, &topology, &placement, &caps, &tight);
                    smaller += 1;
                }
                Err(error) => assert_eq!(error.exit_code(), 3, "{error}"),
            }
        }
        let cost = retimed(&graph, &topology, &placement, &made, None).unwrap();
        assert_eq!(cost, made.cost, "seed {seed}: timed again on the same machine");
    }
    assert!(back > share.least(100) && smaller > share.least(20), "{back} {smaller}");
}

/// A small graph of the kind `cpu`: (name, time, output bytes, inputs by name).
pub(crate) fn graph(nodes: &[(&str, u64, u64, &[&str])]) -> CostGraph {
    let mut b = Builder::new("case", vec!["cpu".into()]);
    for &(name, time, bytes, _) in nodes {
        let op = match name {
            name if name.starts_with("input") => "input",
            name if name.starts_with("weight") => "param",
            _ => "f",
        };
        let spec = NodeSpec {
            name,
            op,
            times: &[Some(Nanos(time))],
            param_bytes: Bytes(if op == "param" { bytes } else { 0 }),
            outputs: &[Bytes(bytes)],
            ..NodeSpec::default()
        };
        b.add(&spec).unwrap();
    }
    for &(name, _, _, inputs) in nodes {
        for input in inputs {
            let (from, to) = (b.find(input).unwrap(), b.find(name).unwrap());
            b.connect(from, 0, to);
        }
    }
    b.finish().unwrap()
}

pub(crate) fn on(devices: &[u32]) -> Placement {
    Placement { device: devices.iter().map(|&device| DeviceId(device)).collect(), ..Placement::default() }
}

pub(crate) fn cpus(physicals: u32, slices: u32, links: Links) -> Topology {
    topology(physicals, slices, NO_CAP, links, Nanos(50), Communication::Overlapped)
}

const SHARED: Links = Links::Direct(Contention::Link);

/// Schedules, proves the result sound, and compares it with the stored one.
pub(crate) fn case_with(
    name: &str,
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    options: Options,
) -> Schedule {
    let made = schedule(graph, topology, placement, &options).unwrap();
    let caps = if options.caps.is_empty() { vec![NO_CAP; topology.len()] } else { options.caps };
    assert_sound(graph, topology, placement, &caps, &made);
    let snapshots = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => snapshots, prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!(format!("schedule_{name}"), text(graph, topology, &made));
    });
    made
}

/// What a device makes first and reads last leaves for the host, and its bytes are used in between.
#[test]
fn an_offload_makes_room_between_early_and_late_readers() {
    let nodes: [(&str, u64, u64, &[&str]); 5] = [
        ("keep", 100, 640, &[]),
        ("early", 100, 64, &["keep"]),
        ("big", 5000, 640, &["early"]),
        ("small", 100, 64, &["big"]),
        ("late", 100, 64, &["small", "keep"]),
    ];
    let (graph, topology, placed) = (graph(&nodes), cpus(2, 1, SHARED), on(&[0; 5]));
    let tensor = graph.outputs(NodeIx(0)).next().unwrap();
    let offload = vec![Offload { tensor, host: DeviceId(1), readers: vec![NodeIx(4)] }];
    let free = schedule(&graph, &topology, &placed, &Options::default()).unwrap();
    let caps = vec![Bytes(768), Bytes(640)];
    let tight = Options { caps: caps.clone(), ..Options::default() };
    assert!(
        schedule(&graph, &topology, &placed, &tight).is_err(),
        "{} bytes are needed",
        free.devices[0].arena
    );
    let made =
        case_with("offload", &graph, &topology, &placed, Options { caps, offload, ..Options::default() });
    assert_eq!(made.cost.step_bytes, Bytes(2 * 640));
    // It leaves beside the second launch; its way back waits for the bytes of `big`.
    assert_eq!(made.cost.latency, Nanos(100 + 690 + 5000 + 100 + 690 + 100));
}

/// Where bytes are given step by step, `large` finds only the place of `small` free, which is too small, and lies above
/// all else; where all are placed at once, `kept` lies below both.
#[test]
fn no_hole_is_left_where_a_device_has_just_what_its_steps_need() {
    let nodes: [(&str, u64, u64, &[&str]); 5] = [
        ("small", 100, 64, &[]),
        ("kept", 100, 128, &["small"]),
        ("far", 100, 64, &["small"]),
        ("large", 100, 128, &["kept"]),
        ("sum", 100, 128, &["large", "kept"]),
    ];
    let (graph, topology, placed) = (graph(&nodes), cpus(2, 1, SHARED), on(&[0, 0, 1, 0, 0]));
    let order: Vec<NodeIx> = (0..5).map(NodeIx).collect();
    let planned = |bytes: u64| {
        let options = Options { caps: vec![Bytes(bytes), Bytes(1 << 20)], ..Options::default() };
        schedule_in_order(&graph, &topology, &placed, &order, &options)
    };
    let caps = vec![Bytes(384), Bytes(1 << 20)];
    let found = planned(384).unwrap();
    assert_sound(&graph, &topology, &placed, &caps, &found);
    assert_eq!(found.devices[0].arena, Bytes(384));
    // `large` waits for the copy that reads `small`.
    let large = found.steps.iter().find(|step| step.action == Action::Launch(NodeIx(3))).unwrap();
    assert!(large.control.iter().any(|(_, why)| *why == Why::Memory));
    assert!(planned(383).is_err());
}

#[test]
fn an_offload_that_makes_no_sense_is_an_error() {
    let nodes: [(&str, u64, u64, &[&str]); 4] =
        [("input", 0, 64, &[]), ("a", 1, 64, &["input"]), ("b", 1, 64, &["a"]), ("c", 1, 64, &["b"])];
    let (graph, topology, placed) = (graph(&nodes), cpus(2, 1, SHARED), on(&[0; 4]));
    let tensor = |node: u32| graph.outputs(NodeIx(node)).next().unwrap();
    let error = |offload: Offload| {
        let options = Options { offload: vec![offload.clone(), offload], ..Options::default() };
        schedule(&graph, &topology, &placed, &options).unwrap_err().to_string()
    };
    let sound = Offload { tensor: tensor(1), host: DeviceId(1), readers: vec![NodeIx(2)] };
    assert!(error(sound.clone()).contains("offloaded twice"));
    assert!(error(Offload { host: DeviceId(0), ..sound.clone() }).contains("its host is the device"));
    assert!(error(Offload { host: DeviceId(9), ..sound.clone() }).contains("does not exist"));
    assert!(error(Offload { readers: vec![NodeIx(3)], ..sound.clone() }).contains("does not read it"));
    assert!(error(Offload { tensor: tensor(0), ..sound.clone() }).contains("never free"));
    assert!(error(Offload { tensor: tensor(3), ..sound }).contains("never free"));
}

#[test]
fn a_wrong_placement_or_order_is_an_error() {
    let nodes: [(&str, u64, u64, &[&str]); 2] = [("a", 1, 1, &[]), ("b", 1, 1, &["a"])];
    let (graph, topology) = (graph(&nodes), cpus(2, 1, SHARED));
    let error = |placement: &Placement, options: &Options| {
        schedule(&graph, &topology, placement, options).unwrap_err().to_string()
    };
    let none = Options::default();
    assert!(error(&on(&[0]), &none).contains("holds 1 devices for 2 nodes"));
    assert!(error(&on(&[0, 7]), &none).contains("node b: device 7 does not exist"));
    assert!(
        error(&on(&[0, 1]), &Options { caps: vec![Bytes(9)], ..none.clone() })
            .contains("1 caps for 2 devices")
    );
    let mut foreign = topology.clone();
    foreign.devices[1].kind = "cuda".into();
    let text = schedule(&graph, &foreign, &on(&[0, 1]), &none).unwrap_err().to_string();
    assert!(text.contains("node b: the cost graph gives no times for kind cuda of cpu1"), "{text}");
    let in_order = |order: &[u32]| {
        let order: Vec<NodeIx> = order.iter().map(|&node| NodeIx(node)).collect();
        schedule_in_order(&graph, &topology, &on(&[0, 1]), &order, &none)
    };
    assert!(in_order(&[1, 0]).unwrap_err().to_string().contains("comes before node a"));
    assert!(in_order(&[0]).unwrap_err().to_string().contains("node b: is not listed"));
    assert!(in_order(&[0, 0]).is_err() && in_order(&[0, 1, 2]).is_err());
    assert_eq!(in_order(&[0, 1]).unwrap().cost, predict(&graph, &topology, &on(&[0, 1])).unwrap());
}

#[test]
fn sizes_and_times_near_the_limit_do_not_overflow() {
    let huge = u64::MAX - 10;
    let nodes: [(&str, u64, u64, &[&str]); 3] =
        [("a", huge, huge, &[]), ("b", huge, huge, &["a"]), ("c", huge, 1, &["b"])];
    for placed in [on(&[0, 0, 0]), on(&[0, 1, 0]), on(&[0, 1, 2])] {
        let made = schedule(&graph(&nodes), &cpus(3, 1, SHARED), &placed, &Options::default());
        assert!(made.unwrap_err().to_string().contains("more than 2^64 bytes"));
    }
    let nodes: [(&str, u64, u64, &[&str]); 3] =
        [("a", huge, 1, &[]), ("b", huge, 1, &["a"]), ("c", 1, 1, &["b"])];
    let made = schedule(&graph(&nodes), &cpus(3, 1, SHARED), &on(&[0, 1, 0]), &Options::default()).unwrap();
    assert_eq!(made.cost.latency, Nanos::MAX);
}

#[test]
fn a_foreign_list_of_steps_is_timed_by_the_same_clock() {
    let topology = cpus(2, 1, SHARED);
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let graph = cost_graph(&mut rng, 40);
        let placed = placement(&mut rng, &graph, &topology);
        let made = schedule(&graph, &topology, &placed, &Options::default()).unwrap();
        let steps: Vec<SimulatedStep<'_>> = made
            .steps
            .iter()
            .map(|step| SimulatedStep {
                after: &step.after,
                work: match step.action {
                    Action::Launch(node) => {
                        Work::Run { device: step.device, time: graph.time(node, 0).unwrap() }
                    }
                    Action::Copy { tensor, from, .. } => Work::Move {
                        from: made.buffers[from.index()].device,
                        to: step.device,
                        bytes: graph.tensor_bytes(tensor),
                        upload: None,
                    },
                },
            })
            .collect();
        let timeline = simulate(&topology, &steps).unwrap();
        assert_eq!(timeline.latency, made.cost.latency);
        assert!(made.steps.iter().zip(&timeline.start).all(|(step, start)| step.start == *start));
        // Without waiting for memory the list is timed as it was found.
        assert_eq!(made.cost, predict(&graph, &topology, &placed).unwrap());
    }
    let run = Work::Run { device: DeviceId(0), time: Nanos(1) };
    let late = simulate(&topology, &[SimulatedStep { work: run, after: &[StepIx(0)] }]);
    assert!(late.unwrap_err().to_string().contains("step 0: waits for step 0"));
    let nowhere = Work::Run { device: DeviceId(9), time: Nanos(1) };
    assert!(simulate(&topology, &[SimulatedStep { work: nowhere, after: &[] }]).is_err());
}
