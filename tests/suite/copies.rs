//! Copies: routes in closed form, broadcast trees, parts, what is held back, what the checker says of
//! damage to them, and that no interleaving of a plan gets stuck.

use std::collections::HashMap;

use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role};
use partition::unstable::ir::SourceRole;
use partition::unstable::load::Model;
use partition::unstable::place::Placement;
use partition::unstable::plan::{
    Action as PlanAction, Buffer, CopyAction, Plan, check, check_costgraph, check_model,
};
use partition::unstable::schedule::{
    Action, BufferKind, Content, Offload, Options, Overlap, Packing, Schedule, Search, Why, critical_path,
    improve, retimed, schedule,
};
use partition::unstable::topology::{DeviceId, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::naive_plan;
use crate::random_costgraph::{Links, Rng};
use crate::random_plan::{Case, finish, labels};
use crate::schedule::{assert_sound, cpus, graph, on, text};

const NO_CAP: Bytes = Bytes(1 << 60);
const SEARCH: Search = Search { work: 2_000_000, candidates: 300, copies: true };
/// Visits of pairs of buffers.
const PACKING: usize = 1_000_000;

fn topology(toml: &str) -> Topology {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("devices.toml");
    std::fs::write(&path, toml).unwrap();
    let path = path.to_str().expect("a name");
    Topology::load(path).unwrap_or_else(|error| panic!("{error}: {:#?}", error.details()))
}

/// `count` CPUs with 1 GB/s and 50 ns from each to each, but for the links that are given.
fn machine(count: usize, links: &str) -> Topology {
    topology(&format!(
        "[[device]]\nkind = \"cpu\"\ncount = {count}\nmemory = \"1GB\"\nlink = \"1GB/s\"\nlatency = \"50ns\"\n{links}"
    ))
}

/// Two pairs of devices, each pair joined by fast links, and one slow line between the pairs.
fn two_pairs() -> Topology {
    let mut links = String::new();
    for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        links += &format!(
            "[[link]]\nbetween = [\"cpu{a}\", \"cpu{b}\"]\nbandwidth = \"100MB/s\"\nlatency = \"50ns\"\nshared = \"line\"\n"
        );
    }
    machine(4, &links)
}

/// Copies between any two but the first are staged through it.
fn staged(count: usize) -> Topology {
    machine(
        count,
        "[[link]]\nbetween = [\"cpu*\", \"cpu*\"]\nbandwidth = \"1GB/s\"\nlatency = \"50ns\"\nvia = \"cpu0\"\n",
    )
}

fn times(schedule: &Schedule) -> Vec<(u64, u64)> {
    let copies = schedule.steps.iter().filter(|step| matches!(step.action, Action::Copy { .. }));
    copies.map(|step| (step.start.0, step.end.0)).collect()
}

fn plain(graph: &CostGraph, topology: &Topology, placement: &Placement) -> Schedule {
    schedule(graph, topology, placement, &Options::default()).unwrap().pack(graph, Packing::new(PACKING))
}

fn improved(graph: &CostGraph, topology: &Topology, placement: &Placement) -> Schedule {
    let plain = plain(graph, topology, placement);
    let made = improve(graph, topology, placement, plain.clone(), &Options::default(), SEARCH).unwrap();
    let made = made.pack(graph, Packing::new(PACKING));
    assert_sound(graph, topology, placement, &vec![NO_CAP; topology.len()], &made);
    assert!(made.cost.latency <= plain.cost.latency);
    assert_eq!((made.cost.step_bytes, made.cost.load_bytes), (plain.cost.step_bytes, plain.cost.load_bytes));
    made
}

#[test]
fn copies_from_peer_to_peer_share_a_link_in_one_direction_only() {
    // Two tensors of 1000 B there, one of 500 B back; 1 B takes 1 ns, and 50 ns pass before the first.
    let nodes: [(&str, u64, u64, &[&str]); 6] = [
        ("a", 100, 1000, &[]),
        ("b", 0, 1000, &["a"]),
        ("back", 100, 500, &[]),
        ("read_a", 1, 1, &["a"]),
        ("read_b", 1, 1, &["b"]),
        ("read_back", 1, 1, &["back"]),
    ];
    let made = plain(
        &graph(&nodes),
        &cpus(2, 1, Links::Direct(partition::unstable::topology::Contention::Link)),
        &on(&[0, 0, 1, 1, 1, 0]),
    );
    let mut spans = times(&made);
    spans.sort_unstable();
    assert_eq!(spans, [(100, 650), (100, 1150), (1100, 2150)]);
}

/// Each of four sends 1000 B to each other: what waits for one that receives keeps its sender from no other.
#[test]
fn all_ports_are_busy_while_all_exchange() {
    let topology = machine(4, "port = \"1GB/s\"\n");
    let made = ["a", "b", "c", "d"];
    let mut nodes: Vec<(&str, u64, u64, &[&str])> = made.map(|name| (name, 100, 1000, &[][..])).to_vec();
    nodes.extend(["w", "x", "y", "z"].map(|name| (name, 1, 1, &made[..])));
    let placed = on(&[0, 1, 2, 3, 0, 1, 2, 3]);
    let spans = times(&plain(&graph(&nodes), &topology, &placed));
    assert_eq!(spans.len(), 12);
    assert_eq!(spans.iter().map(|&(_, end)| end).max(), Some(100 + 3 * 1000 + 50));
}

#[test]
fn copies_that_are_staged_queue_at_each_hop() {
    // Two uploads of 1000 B by two senders at once; both downloads go over the one receiver's channel.
    let nodes: [(&str, u64, u64, &[&str]); 4] =
        [("a", 100, 1000, &[]), ("b", 100, 1000, &[]), ("c", 1, 1, &["a", "b"]), ("d", 1, 1, &["c"])];
    let made = plain(&graph(&nodes), &staged(4), &on(&[1, 2, 3, 3]));
    let mut spans = times(&made);
    spans.sort_unstable();
    // Up 100..1150, then down one after the other: 1150..2200 and 2150..3200.
    assert_eq!(spans, [(100, 2200), (100, 3200)]);
}

#[test]
fn copies_between_hosts_cross_ports_and_network_at_once() {
    let file = "[[device]]\nkind = \"cuda\"\ncount = 2\nmemory = \"1GB\"\nflops = \"1TFLOP/s\"\nbandwidth = \"1TB/s\"\n\
        [[device]]\nkind = \"cuda\"\ncount = 2\nmemory = \"1GB\"\nflops = \"1TFLOP/s\"\nbandwidth = \"1TB/s\"\nhost = \"h1\"\n\
        [[link]]\nbetween = [\"h0\", \"h1\"]\nbandwidth = \"1GB/s\"\nlatency = \"10us\"\n";
    let topology = topology(file);
    let nodes = [("a", 100, 1_000_000), ("b", 100, 1_000_000), ("c", 1, 1), ("d", 1, 1)];
    let mut builder = Builder::new("hosts", vec!["cuda".into()]);
    for (name, time, bytes) in nodes {
        let (times, outputs) = ([Some(Nanos(time))], [Bytes(bytes)]);
        builder
            .add(&NodeSpec { name, op: "f", times: &times, outputs: &outputs, ..NodeSpec::default() })
            .unwrap();
    }
    let node = |name: &str, builder: &Builder| builder.find(name).unwrap();
    for (from, to) in [("a", "c"), ("b", "d")] {
        let (from, to) = (node(from, &builder), node(to, &builder));
        builder.connect(from, 0, to);
    }
    let graph = builder.finish().unwrap();
    let made = plain(&graph, &topology, &on(&[0, 1, 2, 3]));
    let route = topology.route(DeviceId(0), DeviceId(2));
    assert_eq!(route.hops.len(), 1, "data passes the hosts without a stop");
    // Different ports, one network: a megabyte takes 1 ms there, the second one waits for the first.
    let latency = route.hops[0].latency.0;
    assert!(latency >= 10_000, "the network's latency and those of the ports");
    let mut spans = times(&made);
    spans.sort_unstable();
    assert_eq!(spans, [(100, 1_000_100 + latency), (1_000_100, 2_000_100 + latency)]);
}

#[test]
fn a_tensor_crosses_a_slow_line_once() {
    let nodes: [(&str, u64, u64, &[&str]); 4] = [
        ("make", 100, 1000, &[]),
        ("a", 100, 10, &["make"]),
        ("b", 100, 10, &["make"]),
        ("c", 100, 10, &["make"]),
    ];
    let (graph, topology, placed) = (graph(&nodes), two_pairs(), on(&[0, 1, 2, 3]));
    // Twice over the line, 10 ns for each byte.
    assert_eq!(plain(&graph, &topology, &placed).cost.latency, Nanos(100 + 20_000 + 50 + 100));
    let made = improved(&graph, &topology, &placed);
    assert_eq!(made.cost.latency, Nanos(100 + 10_050 + 1050 + 100));
    assert_eq!(made.cost.max_load, Nanos(10_000));
    assert_eq!(retimed(&graph, &topology, &placed, &made, None).unwrap(), made.cost);
}

/// Five devices in a row, so that data passes three others from the first to the last: a network of
/// the corpus on the ends and the middle gives the bits that one device gives.
#[test]
fn a_network_runs_over_routes_of_four_hops() {
    use partition::unstable::place::{DeviceUse, Objective};
    let Some(path) = crate::shared::file("corpus/keras/transformer_small.k3.json") else { return };
    let network = crate::networks::Network::open(&path).unwrap();
    let mut links = String::new();
    for first in 0..4 {
        links += &format!(
            "[[link]]\nbetween = [\"cpu{first}\", \"cpu{}\"]\nbandwidth = \"1000GB/s\"\nlatency = \"10ns\"\n",
            first + 1
        );
    }
    let line = topology(&format!(
        "[[device]]\nkind = \"cpu\"\ncount = 5\nmemory = \"1GB\"\nhost_link = \"none\"\n{links}"
    ));
    assert_eq!(line.route(DeviceId(0), DeviceId(4)).hops.len(), 4);
    let nodes = network.graph.sources().iter().filter(|source| source.role == SourceRole::Node);
    let names: Vec<&str> = nodes.map(|source| source.name.as_str()).collect();
    let pin = |at: usize, device: &str| (names[at].to_owned(), device.to_owned());
    let pins = vec![pin(0, "cpu0"), pin(names.len() / 2, "cpu4"), pin(names.len() - 1, "cpu2")];
    for objective in [Objective::Transfer, Objective::Latency] {
        let place = partition::unstable::place::Options {
            objective,
            devices: DeviceUse::Count(3),
            pins: pins.clone(),
            ..partition::unstable::place::Options::default()
        };
        let options = partition::unstable::compile::Options {
            bind: network.dims.clone(),
            place,
            ..partition::unstable::compile::Options::default()
        };
        let compiled =
            partition::unstable::compile::compile(Model::Graph(network.graph.clone()), &line, &options)
                .unwrap();
        let far = |step: &partition::unstable::schedule::Step| match step.action {
            Action::Copy { from, .. } => {
                let from = compiled.schedule.buffers[from.index()].device;
                line.route(from, step.device).hops.len() > 1
            }
            Action::Launch(_) => false,
        };
        assert!(compiled.schedule.steps.iter().any(far), "{}", objective.name());
        check(&compiled.plan).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        compiled.plan.save(&path).unwrap();
        crate::shared::verify_plan(&path);
        let alone = network.plan("cpu:memory=1GB", DeviceUse::Auto).unwrap();
        assert_eq!(network.run(&compiled).unwrap(), network.run(&alone).unwrap(), "{}", objective.name());
    }
}

#[test]
fn a_broadcast_to_five_is_a_tree() {
    let nodes: [(&str, u64, u64, &[&str]); 6] = [
        ("make", 100, 1000, &[]),
        ("a", 100, 10, &["make"]),
        ("b", 100, 10, &["make"]),
        ("c", 100, 10, &["make"]),
        ("d", 100, 10, &["make"]),
        ("e", 100, 10, &["make"]),
    ];
    // All that leave the first device share its port.
    let mut links = String::new();
    for device in 1..6 {
        links += &format!(
            "[[link]]\nbetween = [\"cpu0\", \"cpu{device}\"]\nbandwidth = \"1GB/s\"\nlatency = \"50ns\"\nshared = \"port\"\n"
        );
    }
    let (graph, topology, placed) = (graph(&nodes), machine(6, &links), on(&[0, 1, 2, 3, 4, 5]));
    assert_eq!(plain(&graph, &topology, &placed).cost.latency, Nanos(100 + 5 * 1000 + 50 + 100));
    let made = improved(&graph, &topology, &placed);
    // Three rounds: one, then two, then as many as are left.
    assert!(made.cost.latency <= Nanos(100 + 3 * 1050 + 100), "{}", made.cost.latency);
    snapshot("copies_broadcast", &text(&graph, &topology, &made));
}

#[test]
fn a_diamond_over_a_slow_link_hides_one_branch() {
    let nodes: [(&str, u64, u64, &[&str]); 5] = [
        ("split", 100, 400, &[]),
        ("other", 100, 2000, &["split"]),
        ("left", 9000, 200, &["split"]),
        ("right", 700, 200, &["split"]),
        ("join", 100, 50, &["left", "right", "aside"]),
    ];
    let mut with_aside = nodes.to_vec();
    with_aside.push(("aside", 100, 10, &["other"]));
    let topology =
        machine(2, "[[link]]\nbetween = [\"cpu0\", \"cpu1\"]\nbandwidth = \"100MB/s\"\nlatency = \"50ns\"\n");
    let (graph, placed) = (graph(&with_aside), on(&[0, 0, 0, 1, 0, 1]));
    let made = improved(&graph, &topology, &placed);
    snapshot("copies_diamond", &text(&graph, &topology, &made));
    let overlap = Overlap::new(&topology, &made);
    assert!(overlap.hidden().unwrap() < 1.0);
    let path = critical_path(&topology, &made);
    let sum: Nanos = path.iter().map(|part| part.time + part.idle).sum();
    assert_eq!(sum + made.steps[path[0].step.index()].start, made.cost.latency);
}

/// Two copies over one link; the one that nobody waits for is ready first.
/// Two devices; with `first` and `second` on one of them and the others on the other, the long copy of
/// `first` is in the way of the short one of `second`.
pub(crate) fn starving() -> (CostGraph, Topology) {
    let nodes: [(&str, u64, u64, &[&str]); 5] = [
        ("first", 100, 10_000, &[]),
        ("second", 100, 1000, &["first"]),
        ("last", 5000, 10, &["second"]),
        ("idle", 10, 10, &["first"]),
        ("end", 10, 10, &["last"]),
    ];
    (graph(&nodes), machine(2, ""))
}

#[test]
fn a_copy_that_starves_another_is_held_back() {
    let ((graph, topology), placed) = (starving(), on(&[0, 0, 1, 1, 1]));
    // The long one goes first: 100..10150, then the short one.
    let before = plain(&graph, &topology, &placed);
    assert_eq!(before.cost.latency, Nanos(100 + 10_000 + 1000 + 50 + 5000 + 10));
    let made = improved(&graph, &topology, &placed);
    // The short one at 200..1250, then 5000 of compute beside the long one, which ends at 11250.
    assert_eq!(made.cost.latency, Nanos(200 + 1000 + 10_000 + 50 + 10));
    let held: Vec<_> = made.steps.iter().flat_map(|step| &step.control).collect();
    assert!(held.iter().any(|(_, why)| *why == Why::Starve), "{held:?}");
    snapshot("copies_starve", &text(&graph, &topology, &made));
}

#[test]
fn a_staged_copy_is_split() {
    let bytes = 1 << 20;
    let nodes: [(&str, u64, u64, &[&str]); 2] = [("make", 100, bytes, &[]), ("use", 100, 10, &["make"])];
    let (graph, topology, placed) = (graph(&nodes), staged(3), on(&[1, 2]));
    assert_eq!(plain(&graph, &topology, &placed).cost.latency, Nanos(100 + 2 * (bytes + 50) + 100));
    let made = improved(&graph, &topology, &placed);
    // Eight parts: the last one's download is all that follows the upload.
    assert_eq!(made.cost.latency, Nanos(100 + bytes + bytes / 8 + 2 * 50 + 100));
    assert_eq!(retimed(&graph, &topology, &placed, &made, None).unwrap(), made.cost);
    snapshot("copies_parts", &text(&graph, &topology, &made));
}

#[test]
fn throughput_keeps_every_copy_straight_from_home() {
    let nodes: [(&str, u64, u64, &[&str]); 4] = [
        ("make", 100, 1000, &[]),
        ("a", 100, 10, &["make"]),
        ("b", 100, 10, &["make"]),
        ("c", 100, 10, &["make"]),
    ];
    let (graph, topology, placed) = (graph(&nodes), two_pairs(), on(&[0, 1, 2, 3]));
    let before = plain(&graph, &topology, &placed);
    let search = Search { copies: false, ..SEARCH };
    let made = improve(&graph, &topology, &placed, before.clone(), &Options::default(), search).unwrap();
    assert_eq!(made.cost.max_load, before.cost.max_load);
    assert!(made.buffers.iter().all(|buffer| buffer.kind != BufferKind::Copy || buffer.bytes == Bytes(1000)));
}

fn snapshot(name: &str, text: &str) {
    let snapshots = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => snapshots, prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!(name, text);
    });
}

/// A random graph of the kind `cpu` with tensors of up to a megabyte.
fn heavy(rng: &mut Rng, nodes: usize) -> CostGraph {
    let mut builder = Builder::new("heavy", vec!["cpu".into()]);
    let mut sources = Vec::new();
    for number in 0..nodes {
        let bytes = [0, 64, 4096, 200_000, 600_001, 1 << 20][rng.below(6) as usize];
        let op = if number % 17 == 3 { "input" } else { "f" };
        let name = format!("n{number}");
        let (times, outputs) = ([Some(Nanos(rng.below(400_000)))], [Bytes(bytes)]);
        let spec = NodeSpec { name: &name, op, times: &times, outputs: &outputs, ..NodeSpec::default() };
        let node = builder.add(&spec).unwrap();
        if op == "f" {
            for _ in 0..rng.below(4) {
                if let Some(&from) = sources.get(rng.below(sources.len() as u64 + 1) as usize) {
                    builder.connect(from, 0, node);
                }
            }
        }
        sources.push(node);
    }
    builder.finish().unwrap()
}

/// A random graph on a machine whose copies gain by relays and parts, improved; with offloads.
fn copied_case(seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    let nodes = 8 + rng.below(40) as usize;
    let graph = heavy(&mut rng, nodes);
    let topology = match rng.below(3) {
        0 => two_pairs(),
        1 => staged(4),
        _ => cpus(3, 2, Links::Staged),
    };
    let device = |_| DeviceId(rng.below(topology.len() as u64) as u32);
    let placement = Placement { device: graph.nodes().map(device).collect(), ..Placement::default() };
    let mut offload = Vec::new();
    for tensor in graph.tensors() {
        let producer = graph.producer(tensor);
        let home = placement.device[producer.index()];
        let readers: Vec<NodeIx> = graph
            .consumers(tensor)
            .iter()
            .copied()
            .filter(|node| placement.device[node.index()] == home)
            .collect();
        let host = DeviceId(rng.below(topology.len() as u64) as u32);
        let makes = graph.role(producer) == Role::Compute && !graph.is_result(tensor);
        if makes && host != home && !readers.is_empty() && rng.below(3) == 0 {
            offload.push(Offload { tensor, host, readers });
        }
    }
    let options = Options { offload, ..Options::default() };
    let before = schedule(&graph, &topology, &placement, &options).unwrap();
    let search = Search { work: 300_000, candidates: 40, copies: true };
    let made = improve(&graph, &topology, &placement, before.clone(), &options, search).unwrap();
    assert!(made.cost.latency <= before.cost.latency && made.cost.step_bytes == before.cost.step_bytes);
    let labels = labels(&graph, &placement, &mut rng);
    finish(graph, topology, placement, made, labels)
}

fn is_relay(schedule: &Schedule, step: &partition::unstable::schedule::Step) -> bool {
    match step.action {
        Action::Copy { from, .. } => schedule.buffers[from.index()].kind == BufferKind::Copy,
        Action::Launch(_) => false,
    }
}

#[test]
fn improved_schedules_of_random_graphs_are_sound() {
    let (mut relays, mut parts, mut back, mut held) = (0, 0, 0, 0);
    for seed in 0..120 {
        let case = copied_case(seed);
        let Case { graph, topology, placement, schedule, .. } = &case;
        assert_sound(graph, topology, placement, &vec![NO_CAP; topology.len()], schedule);
        let again = retimed(graph, topology, placement, schedule, None).unwrap();
        assert_eq!(again, schedule.cost, "seed {seed}");
        relays += schedule.steps.iter().filter(|step| is_relay(schedule, step)).count();
        let part = |step: &&partition::unstable::schedule::Step| {
            matches!(step.action, Action::Copy { part: Some(_), .. })
        };
        parts += schedule.steps.iter().filter(part).count();
        back += schedule.buffers.iter().filter(|b| matches!(b.content, Content::Returned(_))).count();
        held += schedule.steps.iter().flat_map(|step| &step.control).count();
        check(&case.plan).unwrap_or_else(|error| panic!("seed {seed}: {error}: {:#?}", error.details()));
        check_model(&case.plan, &case.model).unwrap();
        check_costgraph(&case.bare, graph).unwrap_or_else(|e| panic!("seed {seed}: {e}: {:#?}", e.details()));
        assert!(naive_plan::is_sound(&case.plan));
        for plan in [&case.plan, &case.bare] {
            assert_eq!(&Plan::from_text(&plan.to_text(), "text").unwrap(), plan);
            assert_eq!(&Plan::from_json(plan.to_json().as_bytes(), "json").unwrap(), plan);
        }
    }
    assert!(relays > 100 && parts > 100 && back > 50 && held > 5, "{relays} {parts} {back} {held}");
}

/// Lanes that take their next step whenever what it waits for is done, in any order: never stuck.
#[test]
fn no_interleaving_gets_stuck() {
    for seed in 0..40 {
        let case = copied_case(1000 + seed);
        let steps = &case.plan.steps;
        let position: HashMap<u64, usize> = steps.iter().enumerate().map(|(i, step)| (step.id, i)).collect();
        let mut lanes: Vec<((&str, partition::unstable::plan::Lane), Vec<usize>)> = Vec::new();
        for (i, step) in steps.iter().enumerate() {
            let lane = (&*step.device, step.lane);
            match lanes.iter_mut().find(|(other, _)| *other == lane) {
                Some((_, list)) => list.push(i),
                None => lanes.push((lane, vec![i])),
            }
        }
        for attempt in 0..50 {
            let mut rng = Rng::new(seed * 1000 + attempt);
            let mut next = vec![0; lanes.len()];
            let mut done = vec![false; steps.len()];
            for _ in 0..steps.len() {
                let can = |&lane: &usize| {
                    let head = lanes[lane].1.get(next[lane]);
                    head.is_some_and(|&step| steps[step].after.iter().all(|other| done[position[other]]))
                };
                let ready: Vec<usize> = (0..lanes.len()).filter(can).collect();
                assert!(!ready.is_empty(), "seed {seed}, attempt {attempt}: stuck");
                let lane = ready[rng.below(ready.len() as u64) as usize];
                done[lanes[lane].1[next[lane]]] = true;
                next[lane] += 1;
            }
        }
    }
}

/// Name, whether the plan without buffers is damaged, words of the fault, and the damage.
type Damage = (&'static str, bool, &'static [&'static str], fn(&mut Plan, &mut Rng) -> bool);

fn copies_where(plan: &Plan, wanted: impl Fn(&Plan, usize, &CopyAction) -> bool) -> Vec<usize> {
    let fits = |&i: &usize| matches!(&plan.steps[i].action, PlanAction::Copy(copy) if wanted(plan, i, copy));
    (0..plan.steps.len()).filter(fits).collect()
}

fn any(list: &[usize], rng: &mut Rng) -> Option<usize> {
    list.get(rng.below(list.len().max(1) as u64) as usize).copied()
}

fn copy(plan: &mut Plan, i: usize) -> &mut CopyAction {
    match &mut plan.steps[i].action {
        PlanAction::Copy(copy) => copy,
        PlanAction::Launch(_) => panic!("step {i} is a launch"),
    }
}

fn buffer<'a>(plan: &'a Plan, id: &str) -> &'a Buffer {
    plan.buffers.iter().find(|buffer| buffer.id == id).expect("a buffer")
}

fn later_part(plan: &Plan, rng: &mut Rng) -> Option<usize> {
    let later =
        |_: &Plan, _: usize, copy: &CopyAction| copy.part.is_some_and(|(offset, _)| offset > Bytes::ZERO);
    any(&copies_where(plan, later), rng)
}

/// Removes a step, and the sums with it.
fn remove(plan: &mut Plan, i: usize) {
    let step = plan.steps.remove(i);
    plan.steps.iter_mut().for_each(|other| other.after.retain(|&after| after != step.id));
    if let PlanAction::Copy(copy) = step.action {
        plan.cost.step_bytes = Bytes(plan.cost.step_bytes.0 - copy.bytes.0);
        plan.cost.transfer_bytes = Bytes(plan.cost.transfer_bytes.0 - copy.bytes.0);
    }
}

/// The buffers that come back to where their value was made: read by a launch beside the first one.
fn returned(plan: &Plan) -> Vec<(usize, String)> {
    let home: HashMap<&str, &Buffer> = plan
        .buffers
        .iter()
        .filter(|buffer| buffer.kind == partition::unstable::plan::BufferKind::Temp)
        .map(|buffer| (buffer.value.as_str(), buffer))
        .collect();
    let back = |plan: &Plan, _: usize, copy: &CopyAction| {
        let to = buffer(plan, &copy.to);
        home.get(to.value.as_str()).is_some_and(|home| home.device == to.device)
    };
    let found = copies_where(plan, back).into_iter();
    found
        .map(|i| match &plan.steps[i].action {
            PlanAction::Copy(copy) => (i, copy.to.clone()),
            PlanAction::Launch(_) => panic!("no copy"),
        })
        .collect()
}

const DAMAGES: &[Damage] = &[
    ("a part is left out", false, &["is never written", "has written it"], |plan, rng| {
        let Some(i) = later_part(plan, rng) else { return false };
        remove(plan, i);
        true
    }),
    ("a part comes twice", false, &["a second time"], |plan, rng| {
        let Some(i) = later_part(plan, rng) else { return false };
        let before = copy(plan, i).part;
        let (to, from) = (copy(plan, i).to.clone(), copy(plan, i).from.clone());
        let first = copies_where(plan, |_, _, copy| copy.to == to && copy.from == from)[0];
        let other = copy(plan, first).part;
        let changed = other != before && other.map(|part| part.1) == before.map(|part| part.1);
        copy(plan, i).part = other;
        changed
    }),
    ("a part lies beyond its buffer", false, &["copies"], |plan, rng| {
        let Some(i) = later_part(plan, rng) else { return false };
        let part = copy(plan, i).part.as_mut().expect("a part");
        part.0 = Bytes(part.0.0 + (1 << 30));
        true
    }),
    ("parts overlap", false, &["a second time"], |plan, rng| {
        let Some(i) = later_part(plan, rng) else { return false };
        let part = copy(plan, i).part.as_mut().expect("a part");
        part.0 = Bytes(part.0.0 - 64);
        true
    }),
    ("a part has other bytes than are moved", false, &["copies"], |plan, rng| {
        let Some(i) = later_part(plan, rng) else { return false };
        let part = copy(plan, i).part.as_mut().expect("a part");
        part.1 = Bytes(part.1.0 - 1);
        true
    }),
    ("a relay does not wait for what it relays", false, &["has written it"], |plan, rng| {
        let relays = copies_where(plan, |plan, _, copy| {
            buffer(plan, &copy.from).kind == partition::unstable::plan::BufferKind::Copy
        });
        let Some(i) = any(&relays, rng) else { return false };
        plan.steps[i].after.clear();
        !naive_plan::is_sound(plan)
    }),
    ("a value comes back for nobody", false, &["no launch reads it"], |plan, rng| {
        let back = returned(plan);
        if back.is_empty() {
            return false;
        }
        let (_, id) = back[rng.below(back.len() as u64) as usize].clone();
        let value = buffer(plan, &id).value.clone();
        let home = plan
            .buffers
            .iter()
            .find(|b| b.value == value && b.kind == partition::unstable::plan::BufferKind::Temp)
            .map(|b| b.id.clone());
        let Some(home) = home else { return false };
        for step in &mut plan.steps {
            if let PlanAction::Launch(launch) = &mut step.action {
                launch.reads.iter_mut().filter(|read| **read == id).for_each(|read| read.clone_from(&home));
            }
        }
        true
    }),
    (
        "cost graph: a part is left out",
        true,
        &["leave a gap", "receive all", "is there", "before it is on"],
        |plan, rng| {
            let Some(i) = later_part(plan, rng) else { return false };
            remove(plan, i);
            true
        },
    ),
    ("cost graph: parts overlap", true, &["a second time"], |plan, rng| {
        let Some(i) = later_part(plan, rng) else { return false };
        let part = copy(plan, i).part.as_mut().expect("a part");
        part.0 = Bytes(part.0.0 - 64);
        true
    }),
    ("cost graph: a value comes back for nobody", true, &["back to"], |plan, rng| {
        let back = copies_where(plan, |_, _, copy| !copy.readers.is_empty());
        let Some(i) = any(&back, rng) else { return false };
        copy(plan, i).readers.clear();
        true
    }),
    (
        "cost graph: a value comes back for one that does not read it",
        true,
        &["does not read", "too late", "is launched before"],
        |plan, rng| {
            let back = copies_where(plan, |_, _, copy| !copy.readers.is_empty());
            let Some(i) = any(&back, rng) else { return false };
            let maker = copy(plan, i).node.clone().expect("a node");
            copy(plan, i).readers.push(maker);
            true
        },
    ),
    (
        "cost graph: a reader does not wait for what comes back",
        true,
        &["is there", "too late", "before it is on", "is launched before"],
        |plan, rng| {
            let back = copies_where(plan, |_, _, copy| !copy.readers.is_empty());
            let Some(i) = any(&back, rng) else { return false };
            let readers = copy(plan, i).readers.clone();
            let launches = |plan: &Plan, node: &String| {
                plan.steps.iter().position(
                    |step| matches!(&step.action, PlanAction::Launch(launch) if launch.nodes.contains(node)),
                )
            };
            let Some(reader) = launches(plan, &readers[0]) else { return false };
            plan.steps[reader].after.clear();
            !naive_plan::contains(&naive_plan::reachability(plan)[reader], i)
        },
    ),
];

#[test]
fn damage_to_copies_is_found() {
    let cases: Vec<Case> = (0..60).map(|seed| copied_case(2000 + seed)).collect();
    for (number, (name, bare, words, damage)) in DAMAGES.iter().enumerate() {
        let mut found = 0;
        for attempt in 0..6 * cases.len() {
            let mut rng = Rng::new((number * 10_000 + attempt) as u64);
            let case = &cases[attempt % cases.len()];
            let mut plan = if *bare { case.bare.clone() } else { case.plan.clone() };
            if !damage(&mut plan, &mut rng) {
                continue;
            }
            let judged = if *bare { check_costgraph(&plan, &case.graph) } else { check(&plan) };
            let Err(partition::Error::Check(report)) = judged else {
                panic!("{name}, attempt {attempt}: not found");
            };
            let told = report.details.iter().any(|line| words.iter().any(|word| line.contains(word)));
            assert!(told, "{name}: expected {words:?}, found {:#?}", report.details);
            found += 1;
        }
        assert!(found >= 10, "{name}: only {found} plans could be damaged so");
    }
}
