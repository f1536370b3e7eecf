//! Placement against brute force, its constraints on random graphs, its errors.

use partition::Error;
use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role};
use partition::unstable::place::{DeviceUse, Objective, Options, Placement, evaluate, place};
use partition::unstable::schedule::predict;
use partition::unstable::topology::{Communication, Contention, DeviceId, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::random_costgraph::{Links, Rng, compute_nodes, cost_graph, topology};
use crate::sweep::Share;

const ROOMY: Bytes = Bytes(1 << 40);

fn devices(count: u32, memory: Bytes) -> Topology {
    topology(count, 1, memory, Links::Direct(Contention::Link), Nanos(100), Communication::Overlapped)
}

/// A chain `c0 -> c1 -> ...` whose nodes own `owned` bytes and hand on `sizes`.
fn chain(owned: &[u64], sizes: &[u64], times: &[u64]) -> CostGraph {
    let mut b = Builder::new("chain", vec!["cpu".into()]);
    for (i, &owned) in owned.iter().enumerate() {
        b.add(&NodeSpec {
            name: &format!("c{i}"),
            op: "f",
            times: &[Some(Nanos(times[i]))],
            param_bytes: Bytes(owned),
            outputs: &[Bytes(sizes[i])],
            ..NodeSpec::default()
        })
        .unwrap();
        if i > 0 {
            b.connect(NodeIx(i as u32 - 1), 0, NodeIx(i as u32));
        }
    }
    b.finish().unwrap()
}

/// Devices of parameters and inputs, found independently: a parameter is with its lowest-numbered
/// reader, an input where fewest bytes are copied.
pub(crate) fn spread(graph: &CostGraph, chosen: &[DeviceId]) -> Placement {
    let mut device = chosen.to_vec();
    let readers = |node: NodeIx| -> Vec<NodeIx> {
        graph.outputs(node).flat_map(|tensor| graph.consumers(tensor).to_vec()).collect()
    };
    for node in graph.nodes() {
        match graph.role(node) {
            Role::Compute => {}
            Role::Param => {
                let tied = graph.nodes().filter(|&other| graph.param(other) == graph.param(node));
                let all = tied.flat_map(readers).map(|reader| chosen[reader.index()]);
                // What nobody reads stays where it is.
                device[node.index()] = all.min().unwrap_or(chosen[node.index()]);
            }
            Role::Input => {
                let mut here: Vec<DeviceId> = readers(node).iter().map(|r| chosen[r.index()]).collect();
                here.sort();
                here.dedup();
                let copied = |home: DeviceId| -> u64 {
                    let one = |tensor| {
                        let mut to: Vec<DeviceId> =
                            graph.consumers(tensor).iter().map(|r| chosen[r.index()]).collect();
                        to.sort();
                        to.dedup();
                        to.iter().filter(|&&id| id != home).count() as u64 * graph.tensor_bytes(tensor).get()
                    };
                    graph.outputs(node).map(one).sum()
                };
                device[node.index()] =
                    here.into_iter().min_by_key(|&home| (copied(home), home)).unwrap_or(chosen[node.index()]);
            }
        }
    }
    Placement { device, ..Placement::default() }
}

/// Bytes moved, counted from the definition.
fn moved(graph: &CostGraph, placement: &Placement) -> u64 {
    let at = |node: NodeIx| placement.device[node.index()];
    let mut bytes = 0;
    for tensor in graph.tensors().filter(|&tensor| graph.role(graph.producer(tensor)) != Role::Param) {
        let mut to: Vec<DeviceId> = graph.consumers(tensor).iter().map(|&reader| at(reader)).collect();
        to.sort();
        to.dedup();
        let away = to.iter().filter(|&&id| id != at(graph.producer(tensor))).count() as u64;
        bytes += away * graph.tensor_bytes(tensor).get();
    }
    for param in 0..graph.param_count() as u32 {
        let param = partition::unstable::costgraph::ParamIx(param);
        let mut holders = Vec::new();
        for node in graph.nodes().filter(|&node| graph.param(node) == Some(param)) {
            for tensor in graph.outputs(node) {
                holders.extend(graph.is_result(tensor).then(|| at(node)));
                holders.extend(graph.consumers(tensor).iter().map(|&reader| at(reader)));
            }
        }
        holders.sort();
        holders.dedup();
        bytes += holders.len().saturating_sub(1) as u64 * graph.param_bytes(param).get();
    }
    bytes
}

/// Every placement of the compute nodes on `count` devices.
fn all_placements(graph: &CostGraph, count: u32) -> Vec<Placement> {
    let nodes = compute_nodes(graph);
    let total = u64::from(count).pow(nodes.len() as u32);
    (0..total)
        .map(|mut code| {
            let mut chosen = vec![DeviceId(0); graph.node_count()];
            for node in &nodes {
                chosen[node.index()] = DeviceId((code % u64::from(count)) as u32);
                code /= u64::from(count);
            }
            spread(graph, &chosen)
        })
        .collect()
}

fn used(graph: &CostGraph, placement: &Placement) -> usize {
    let mut ids: Vec<DeviceId> =
        compute_nodes(graph).iter().map(|node| placement.device[node.index()]).collect();
    ids.sort();
    ids.dedup();
    ids.len()
}

#[test]
fn bytes_are_counted_by_the_definition() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let graph = cost_graph(&mut rng, 3 + seed as usize % 30);
        let topology = devices(3, ROOMY);
        let placement = crate::random_costgraph::placement(&mut rng, &graph, &topology);
        let evaluation = evaluate(&graph, &topology, &placement).unwrap();
        assert_eq!(evaluation.transfer_bytes().get(), moved(&graph, &placement), "seed {seed}");
    }
}

#[test]
fn loads_and_bytes_are_those_of_the_scheduler() {
    let links = [Links::Direct(Contention::Link), Links::Direct(Contention::None), Links::Staged];
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let graph = cost_graph(&mut rng, 3 + seed as usize % 30);
        let added = if rng.chance(50) { Communication::Added } else { Communication::Overlapped };
        let slices = 1 + rng.below(2) as u32;
        let topology = topology(3, slices, ROOMY, links[rng.below(3) as usize], Nanos(100), added);
        let placement = crate::random_costgraph::placement(&mut rng, &graph, &topology);
        let evaluation = evaluate(&graph, &topology, &placement).unwrap();
        let cost = predict(&graph, &topology, &placement).unwrap();
        assert_eq!(evaluation.step_bytes, cost.step_bytes, "seed {seed}");
        assert_eq!(evaluation.load_bytes, cost.load_bytes, "seed {seed}");
        assert_eq!(evaluation.max_load, cost.max_load, "seed {seed}");
    }
}

sweep! {
    chains_are_cut_as_by_brute_force: one of 24;
    no_objective_is_worse_than_one_device: one of 24;
    the_same_input_gives_the_same_placement: one of 24;
    constraints_hold: one of 12;
}

fn chains_are_cut_as_by_brute_force(share: Share) {
    for seed in share.among(0..60) {
        let mut rng = Rng::new(seed);
        let length = 3 + rng.below(6) as usize;
        let draw = |rng: &mut Rng, scale: u64| -> Vec<u64> {
            (0..length).map(|_| 64 * (1 + rng.below(scale))).collect()
        };
        let (owned, sizes, times) = (draw(&mut rng, 40), draw(&mut rng, 10), draw(&mut rng, 9));
        let graph = chain(&owned, &sizes, &times);
        let topology = devices(3, ROOMY);
        for objective in [Objective::Transfer, Objective::Throughput] {
            let options = Options { objective, devices: DeviceUse::All, ..Options::default() };
            let placement = place(&graph, &topology, &options).unwrap();
            let value = |placement: &Placement| {
                let evaluation = evaluate(&graph, &topology, placement).unwrap();
                match objective {
                    Objective::Transfer => evaluation.transfer_bytes().get(),
                    _ => evaluation.max_load.get(),
                }
            };
            assert_eq!(used(&graph, &placement), 3);
            let contiguous = |placement: &Placement| {
                objective == Objective::Transfer
                    || placement.device.windows(2).filter(|pair| pair[0] != pair[1]).count() == 2
            };
            let best = all_placements(&graph, 3)
                .into_iter()
                .filter(|other| used(&graph, other) == 3 && contiguous(other))
                .map(|other| value(&other))
                .min()
                .unwrap();
            assert!(
                value(&placement) <= best,
                "seed {seed}, {objective:?}: {} above {best}",
                value(&placement)
            );
        }
    }
}

#[test]
fn a_tight_cap_is_met_with_the_fewest_bytes_on_chains() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let length = 4 + rng.below(5) as usize;
        let owned: Vec<u64> = (0..length).map(|_| 640 * (1 + rng.below(20))).collect();
        let sizes: Vec<u64> = (0..length).map(|_| 64 * (1 + rng.below(10))).collect();
        let graph = chain(&owned, &sizes, &vec![100; length]);
        let cap = owned.iter().sum::<u64>() * 2 / 3 + 1500;
        let topology = devices(2, Bytes(cap));
        let fits = |placement: &Placement| {
            evaluate(&graph, &topology, placement).unwrap().memory.iter().all(|held| held.get() <= cap)
        };
        let placement = match place(&graph, &topology, &Options::default()) {
            Ok(placement) => placement,
            Err(error) => {
                assert!(!all_placements(&graph, 2).iter().any(fits), "seed {seed}: {error}");
                continue;
            }
        };
        let evaluation = evaluate(&graph, &topology, &placement).unwrap();
        assert!(fits(&placement));
        let one_cut =
            |other: &Placement| other.device.windows(2).filter(|pair| pair[0] != pair[1]).count() <= 1;
        let contiguous = all_placements(&graph, 2).into_iter().filter(|other| one_cut(other) && fits(other));
        let best = contiguous.map(|other| moved(&graph, &other)).min().unwrap_or(u64::MAX);
        let found = evaluation.transfer_bytes().get();
        assert!(found <= best, "seed {seed}: {found} bytes where {best} would do");
    }
}

#[test]
fn small_random_graphs_stay_near_brute_force() {
    let (mut ours, mut theirs) = (0, 0);
    for seed in 0..80 {
        let mut rng = Rng::new(1000 + seed);
        let graph = cost_graph(&mut rng, 10);
        if compute_nodes(&graph).len() > 8 || compute_nodes(&graph).len() < 2 {
            continue;
        }
        let topology = devices(2, ROOMY);
        let options = Options { devices: DeviceUse::All, ..Options::default() };
        let placement = place(&graph, &topology, &options).unwrap();
        assert_eq!(used(&graph, &placement), 2);
        let best = all_placements(&graph, 2)
            .into_iter()
            .filter(|other| used(&graph, other) == 2)
            .map(|other| moved(&graph, &other))
            .min()
            .unwrap();
        let found = moved(&graph, &placement);
        assert!(found >= best);
        ours += found;
        theirs += best;
    }
    assert!(ours * 100 <= theirs * 110, "{ours} bytes where {theirs} would do");
}

fn no_objective_is_worse_than_one_device(share: Share) {
    for seed in share.among(0..60) {
        let mut rng = Rng::new(seed);
        let graph = cost_graph(&mut rng, 40);
        let topology = devices(3, ROOMY);
        let one = spread(&graph, &vec![DeviceId(0); graph.node_count()]);
        let alone = evaluate(&graph, &topology, &one).unwrap();
        for objective in Objective::ALL {
            let options = Options { objective, ..Options::default() };
            let placement = place(&graph, &topology, &options).unwrap();
            let found = evaluate(&graph, &topology, &placement).unwrap();
            match objective {
                Objective::Transfer => assert_eq!(found.transfer_bytes(), Bytes::ZERO),
                Objective::Latency => assert!(found.latency <= alone.latency),
                Objective::Throughput => assert!(found.max_load <= alone.max_load),
            }
        }
    }
}

fn the_same_input_gives_the_same_placement(share: Share) {
    for seed in share.among(0..20) {
        let graph = cost_graph(&mut Rng::new(seed), 60);
        let topology = devices(4, ROOMY);
        for objective in Objective::ALL {
            let options = Options { objective, devices: DeviceUse::Count(3), ..Options::default() };
            let first = place(&graph, &topology, &options);
            let again = place(&graph, &topology, &options);
            match (first, again) {
                (Ok(first), Ok(again)) => assert_eq!(first, again),
                (Err(first), Err(again)) => assert_eq!(first.to_string(), again.to_string()),
                (first, again) => panic!("{first:?} and {again:?}"),
            }
        }
    }
}

/// Pins, colocation, counts and caps hold on whatever is returned.
fn constraints_hold(share: Share) {
    for number in share.among(0..150) {
        let mut rng = Rng::new(31_000 + number);
        let (size, count, percent) =
            (2 + rng.below(48) as usize, 1 + rng.below(4) as u32, 20 + rng.below(100));
        let graph = cost_graph(&mut rng, size);
        let all = spread(&graph, &vec![DeviceId(0); graph.node_count()]);
        let whole = evaluate(&graph, &devices(1, ROOMY), &all).unwrap().memory[0].get();
        let cap = whole * percent / 100 + 64;
        let topology = devices(count, Bytes(cap));
        let objective = Objective::ALL[rng.below(3) as usize];
        let pinned = NodeIx(rng.below(graph.node_count() as u64) as u32);
        let target = DeviceId(rng.below(u64::from(count)) as u32);
        let pin = (graph.node_name(pinned).to_owned(), topology.device(target).name.clone());
        let colocate = format!("n{}*", rng.below(9));
        let with_group = graph.nodes().any(|node| graph.node_name(node).starts_with(&colocate[..2]));
        let options = Options {
            objective,
            pins: vec![pin],
            colocate: if with_group { vec![colocate.clone()] } else { Vec::new() },
            reserve: Bytes(64),
            devices: if rng.chance(30) { DeviceUse::Count(count.min(2)) } else { DeviceUse::Auto },
            ..Options::default()
        };
        match place(&graph, &topology, &options) {
            Ok(placement) => {
                assert_eq!(placement.device.len(), graph.node_count());
                let mut group: Vec<DeviceId> = compute_nodes(&graph)
                    .into_iter()
                    .filter(|&node| with_group && graph.node_name(node).starts_with(&colocate[..2]))
                    .map(|node| placement.device[node.index()])
                    .collect();
                group.dedup();
                assert!(group.len() <= 1);
                assert_eq!(placement.device[pinned.index()], target);
                if let DeviceUse::Count(count) = options.devices {
                    assert_eq!(used(&graph, &placement), count as usize);
                }
                let held = |node: NodeIx| graph.owned_bytes(node).get();
                for id in topology.ids() {
                    let owned: u64 =
                        graph.nodes().filter(|n| placement.device[n.index()] == id).map(held).sum();
                    assert!(owned <= cap - 64);
                }
            }
            Err(Error::Infeasible(_) | Error::Usage(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn enormous_costs_do_not_overflow() {
    let huge = u64::MAX - 1;
    let graph = chain(&[huge / 2; 4], &[huge; 4], &[huge; 4]);
    for objective in Objective::ALL {
        let options = Options { objective, devices: DeviceUse::All, ..Options::default() };
        let result = place(&graph, &devices(2, ROOMY), &options);
        assert!(matches!(result, Err(Error::Infeasible(_))), "{result:?}");
        let caps = Some(vec![Bytes(u64::MAX); 2]);
        let placement = place(&graph, &devices(2, ROOMY), &Options { caps, ..options }).unwrap();
        assert_eq!(used(&graph, &placement), 2);
    }
}

fn pinned(pins: &[(&str, &str)]) -> Options {
    let owned = |&(pattern, device): &(&str, &str)| (pattern.to_owned(), device.to_owned());
    Options { pins: pins.iter().map(owned).collect(), ..Options::default() }
}

fn message(graph: &CostGraph, topology: &Topology, options: &Options) -> String {
    place(graph, topology, options).unwrap_err().to_string()
}

#[test]
fn wrong_options_are_named() {
    let graph = chain(&[64; 4], &[64; 4], &[10; 4]);
    let two = devices(2, ROOMY);
    let count = |count| Options { devices: DeviceUse::Count(count), ..Options::default() };
    let colocated = Options { colocate: vec!["c*".into()], ..pinned(&[("c0", "cpu0"), ("c3", "cpu1")]) };
    let lines = [
        message(&graph, &two, &pinned(&[("x*", "cpu0")])),
        message(&graph, &two, &pinned(&[("c*", "cuda0")])),
        message(&graph, &two, &Options { colocate: vec!["dense*".into()], ..Options::default() }),
        message(&graph, &two, &colocated),
        message(&graph, &two, &count(3)),
        message(&graph, &two, &count(0)),
        message(&graph, &devices(6, ROOMY), &Options { devices: DeviceUse::All, ..Options::default() }),
        message(&graph, &two, &Options { balance: Some(f64::NAN), ..Options::default() }),
        message(
            &graph,
            &two,
            &Options { balance: Some(0.01), colocate: vec!["c*".into()], ..Options::default() },
        ),
        message(&graph, &devices(2, Bytes(150)), &Options::default()),
        message(&graph, &devices(2, Bytes(130)), &Options::default()),
        message(&chain(&[640; 4], &[64; 4], &[1; 4]), &devices(2, Bytes(1200)), &Options::default()),
        message(&chain(&[640; 4], &[640; 4], &[1; 4]), &devices(2, Bytes(1950)), &Options::default()),
    ];
    snapshot("errors", &lines.join("\n"));
}

fn snapshot(name: &str, text: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => path, prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!(format!("place_{name}"), text);
    });
}

/// One line for each node: its device.
fn lines(graph: &CostGraph, topology: &Topology, placement: &Placement) -> String {
    let line = |node: NodeIx| {
        let device = &topology.device(placement.device[node.index()]).name;
        format!("{} -> {device}\n", graph.node_name(node))
    };
    graph.nodes().map(line).chain(placement.notes.iter().map(|note| format!("note: {note}\n"))).collect()
}

/// Two towers that read one tied embedding, and a head.
fn towers() -> CostGraph {
    let mut b = Builder::new("towers", vec!["cpu".into(), "cuda".into()]);
    let mut add =
        |name: &str, op: &str, times: &[Option<Nanos>], params: u64, out: u64, tie: Option<&str>| {
            let spec = NodeSpec {
                name,
                op,
                times,
                param_bytes: Bytes(params),
                params: tie,
                outputs: &[Bytes(out)],
                ..NodeSpec::default()
            };
            b.add(&spec).unwrap()
        };
    let both = [Some(Nanos(900)), Some(Nanos(100))];
    let ids_a = add("ids_a", "input", &[], 0, 256, None);
    let ids_b = add("ids_b", "input", &[], 0, 256, None);
    let table_a = add("table_a", "param", &[], 10_000, 10_000, Some("table"));
    let table_b = add("table_b", "param", &[], 10_000, 10_000, Some("table"));
    let embed_a = add("embed_a", "gather", &both, 0, 2048, None);
    let embed_b = add("embed_b", "gather", &both, 0, 2048, None);
    let dense_a = add("dense_a", "matmul", &both, 20_000, 512, None);
    let dense_b = add("dense_b", "matmul", &both, 20_000, 512, None);
    let string = add("lookup", "string", &[Some(Nanos(50)), None], 0, 128, None);
    let head = add("head", "matmul", &both, 1000, 64, None);
    for (from, to) in [(ids_a, embed_a), (table_a, embed_a), (ids_b, embed_b), (table_b, embed_b)] {
        b.connect(from, 0, to);
    }
    for (from, to) in
        [(embed_a, dense_a), (embed_b, dense_b), (dense_a, head), (dense_b, head), (string, head)]
    {
        b.connect(from, 0, to);
    }
    b.finish().unwrap()
}

#[test]
fn small_cases_are_placed_sensibly() {
    let graph = towers();
    let roomy = Topology::parse("cpu+2xcuda:memory=1MB").unwrap();
    let tight = Topology::parse("cpu+2xcuda:memory=40kB").unwrap();
    let mut text = String::new();
    let mut show = |title: &str, topology: &Topology, options: &Options| {
        let result = place(&graph, topology, options);
        let body = match result {
            Ok(placement) => lines(&graph, topology, &placement),
            Err(error) => format!("error: {error}\n"),
        };
        text.push_str(&format!("# {title}\n{body}\n"));
    };
    show("fits on one GPU; the CPU takes what it alone supports", &roomy, &Options::default());
    show("two GPUs are needed", &tight, &Options::default());
    show("pinned", &roomy, &pinned(&[("*_b", "cuda1")]));
    show("pinned where it cannot run", &roomy, &pinned(&[("lookup", "cuda1")]));
    show(
        "pinned where it cannot run, soft",
        &roomy,
        &Options { soft: true, ..pinned(&[("lookup", "cuda1")]) },
    );
    snapshot("towers", &text);
}

/// A parameter that the first and the last node of a chain read, and one for each node between.
fn tied_ends(between: u64) -> CostGraph {
    let mut b = Builder::new("tied", vec!["cpu".into()]);
    let param = |b: &mut Builder, name: &str, bytes: u64| {
        let outputs = [Bytes(bytes)];
        let spec = NodeSpec {
            name,
            op: "param",
            param_bytes: Bytes(bytes),
            outputs: &outputs,
            ..NodeSpec::default()
        };
        b.add(&spec).unwrap()
    };
    let table = param(&mut b, "table", 6400);
    let mut last: Option<NodeIx> = None;
    for i in 0..between + 2 {
        let own = if i == 0 || i == between + 1 { table } else { param(&mut b, &format!("w{i}"), 640) };
        let spec = NodeSpec {
            name: &format!("c{i}"),
            op: "f",
            times: &[Some(Nanos(100))],
            outputs: &[Bytes(64)],
            ..NodeSpec::default()
        };
        let node = b.add(&spec).unwrap();
        b.connect(own, 0, node);
        last.into_iter().for_each(|last| b.connect(last, 0, node));
        last = Some(node);
    }
    b.finish().unwrap()
}

#[test]
fn what_both_ends_of_a_network_share_is_held_once_where_caps_are_tight() {
    let graph = tied_ends(10);
    // 12,800 bytes of parameters; two copies of the table leave no room for the rest.
    let topology = devices(2, Bytes(6720));
    let found = place(&graph, &topology, &Options::default()).unwrap();
    let evaluation = evaluate(&graph, &topology, &found).unwrap();
    assert_eq!(evaluation.transfer_bytes(), Bytes(2 * 64));
}

/// A node with these outputs, its input written over where `over`, and a time for each kind.
fn add(
    builder: &mut Builder,
    name: &str,
    op: &str,
    outputs: &[Bytes],
    over: bool,
    times: &[Option<Nanos>],
) -> NodeIx {
    let in_place: &[(u32, u32)] = if over { &[(0, 0)] } else { &[] };
    builder.add(&NodeSpec { name, op, outputs, in_place, times, ..NodeSpec::default() }).unwrap()
}

#[test]
fn what_is_written_in_place_is_counted_once() {
    let megabytes = |count: u64| [Bytes(count * 1_000_000)];
    let time = [Some(Nanos(1_000_000))];
    let mut builder = Builder::new("in place", vec!["a100-80g".into()]);
    let first = add(&mut builder, "first", "f", &megabytes(600), false, &time);
    let second = add(&mut builder, "second", "f", &megabytes(600), true, &time);
    builder.connect(first, 0, second);
    add(&mut builder, "other", "f", &megabytes(500), false, &time);
    let graph = builder.finish().unwrap();
    let topology = Topology::parse("2xa100-80g:memory=1GB").unwrap();
    for objective in Objective::ALL {
        let options = Options { objective, ..Options::default() };
        let placement = place(&graph, &topology, &options).unwrap();
        let held = evaluate(&graph, &topology, &placement).unwrap().memory;
        assert_eq!(placement.device[0], placement.device[1], "{objective:?}");
        assert!(held.contains(&Bytes(600_000_000)) && held.contains(&Bytes(500_000_000)), "{held:?}");
    }
}

/// A hundred times as fast is where the work belongs, whatever lies there unread.
#[test]
fn what_nobody_reads_makes_room_for_what_is_read() {
    let mut builder = Builder::new("unread", vec!["a100-80g".into(), "h100-80g".into()]);
    let input = add(&mut builder, "x", "input", &[Bytes(500_000_000)], false, &[]);
    add(&mut builder, "unread", "input", &[Bytes(480_000_000)], false, &[]);
    let times = [Some(Nanos(100_000_000)), Some(Nanos(1_000_000))];
    let work = add(&mut builder, "work", "f", &[Bytes(100_000_000)], false, &times);
    builder.connect(input, 0, work);
    let graph = builder.finish().unwrap();
    for spec in ["h100-80g:memory=1GB+a100-80g:memory=1GB", "a100-80g:memory=1GB+h100-80g:memory=1GB"] {
        let topology = Topology::parse(spec).unwrap();
        let options = Options { objective: Objective::Latency, ..Options::default() };
        let placement = place(&graph, &topology, &options).unwrap();
        assert_eq!(topology.device(placement.device[work.index()]).kind, "h100-80g", "{spec}");
    }
}
