//! Why nothing fits: conflicts against brute force over their members, repairs against planning.

use std::time::Instant;

use partition::Control;
use partition::Error;
use partition::unstable::compile::{self, repair};
use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use partition::unstable::error::{Infeasible, Member, MemberKind, Repair};
use partition::unstable::load::Model;
use partition::unstable::place::{Effort, Options, Placement, place};
use partition::unstable::schedule::{self, schedule};
use partition::unstable::strategy::{Problem, solve};
use partition::unstable::topology::{Communication, Contention, DeviceId, Role, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::cli::{Folder, example};
use crate::random_costgraph::{Links, Rng, compute_nodes, cost_graph, topology};
use crate::sweep::Share;

fn devices(count: u32) -> Topology {
    let links = Links::Direct(Contention::Link);
    topology(count, 1, Bytes(1 << 40), links, Nanos(100), Communication::Overlapped)
}

fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(64)
}

/// Members as the caller knows them, asked for by name.
struct Holding<'m>(Vec<&'m Member>);

impl Holding<'_> {
    fn has(&self, kind: MemberKind, name: &str) -> bool {
        self.0.iter().any(|member| member.kind == kind && member.name == name)
    }

    fn cap(&self, device: &str) -> Option<u64> {
        let cap = self.0.iter().find(|member| member.kind == MemberKind::Cap && member.name == device);
        cap.and_then(|member| member.amount)
    }
}

/// The most that a device must hold: all that is kept, with the results, or with what one node
/// needs while it runs. Counts only what is a member.
fn least_memory(graph: &CostGraph, here: &[NodeIx], holding: &Holding<'_>) -> u64 {
    let tensor = |tensor| {
        let (producer, output) = (graph.producer(tensor), graph.output_index(tensor));
        let name = graph.node_name(producer).to_owned();
        let name = if output == 0 { name } else { format!("{name}:{output}") };
        let counts = holding.has(MemberKind::Tensor, &name);
        if counts { aligned(graph.tensor_bytes(tensor).get()) } else { 0 }
    };
    let (mut kept, mut results, mut most) = (0, 0, 0);
    let mut params = Vec::new();
    for &node in here {
        let name = graph.node_name(node);
        if holding.has(MemberKind::State, name) {
            kept += aligned(graph.owned_bytes(node).get());
        }
        let mut working = 0;
        if holding.has(MemberKind::Workspace, name) {
            working += aligned(graph.workspace_bytes(node).get());
        }
        for &read in graph.inputs(node) {
            match graph.param(graph.producer(read)) {
                Some(param) => params.push(param),
                None => working += tensor(read),
            }
        }
        for made in graph.outputs(node) {
            working += tensor(made);
            if graph.is_result(made) {
                results += tensor(made);
            }
        }
        most = most.max(working);
    }
    params.sort();
    params.dedup();
    let held = params.iter().filter(|&&param| holding.has(MemberKind::Parameter, graph.param_name(param)));
    let params: u64 = held.map(|&param| aligned(graph.param_bytes(param).get())).sum();
    kept + params + results.max(most)
}

/// Every way to lay the nodes that compute on the devices; true where `accept` takes one.
fn any_placement(nodes: &[NodeIx], count: u32, mut accept: impl FnMut(&[DeviceId]) -> bool) -> bool {
    let total = u64::from(count).pow(nodes.len() as u32);
    (0..total).any(|mut number| {
        let mut chosen = Vec::new();
        for _ in nodes {
            chosen.push(DeviceId((number % u64::from(count)) as u32));
            number /= u64::from(count);
        }
        accept(&chosen)
    })
}

/// True where some placement holds every one of these members.
fn can_hold(graph: &CostGraph, topology: &Topology, colocated: &[NodeIx], members: Vec<&Member>) -> bool {
    let holding = Holding(members);
    let nodes = compute_nodes(graph);
    let together = holding.0.iter().any(|member| member.kind == MemberKind::Colocation);
    let pins: Vec<(&str, &str)> = holding
        .0
        .iter()
        .filter(|member| member.kind == MemberKind::Pin)
        .filter_map(|member| member.name.rsplit_once('='))
        .collect();
    any_placement(&nodes, topology.len() as u32, |chosen| {
        let at = |node: NodeIx| chosen[nodes.iter().position(|&one| one == node).expect("it computes")];
        let pinned = pins.iter().all(|&(name, device)| {
            let node = nodes.iter().find(|&&node| graph.node_name(node) == name).expect("a node");
            topology.device(at(*node)).name == device
        });
        let one = !together || colocated.windows(2).all(|pair| at(pair[0]) == at(pair[1]));
        pinned
            && one
            && topology.ids().all(|id| {
                let here: Vec<NodeIx> = nodes.iter().copied().filter(|&node| at(node) == id).collect();
                let cap = holding.cap(&topology.device(id).name);
                cap.is_none_or(|cap| least_memory(graph, &here, &holding) <= cap)
            })
    })
}

/// A problem that is tight: few nodes, small devices, a pin or two, perhaps some that go together.
fn tight(seed: u64) -> (CostGraph, Topology, Options, Vec<NodeIx>) {
    let mut rng = Rng::new(seed);
    let graph = cost_graph(&mut rng, 7);
    let count = 2 + rng.below(2) as u32;
    let caps = Some((0..count).map(|_| Bytes(64 * (1 + rng.below(120)))).collect());
    let nodes = compute_nodes(&graph);
    let mut options = Options { caps, ..Options::default() };
    for &node in &nodes {
        if rng.chance(30) {
            let device = format!("cpu{}", rng.below(count.into()));
            options.pins.push((graph.node_name(node).to_owned(), device));
        }
    }
    let mut colocated = Vec::new();
    if rng.chance(30) && nodes.len() > 2 {
        // All names begin with n.
        options.pins.clear();
        options.colocate.push("n*".into());
        colocated = nodes;
    }
    (graph, devices(count), options, colocated)
}

fn refused(graph: &CostGraph, topology: &Topology, options: &Options) -> Option<Infeasible> {
    match place(graph, topology, options) {
        Err(Error::Infeasible(found)) => Some(*found),
        Err(Error::Usage(_)) | Ok(_) => None,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn no_member_of_a_conflict_can_be_left_out() {
    let (mut conflicts, mut pinned, mut several) = (0, 0, 0);
    for seed in 0..600 {
        let (graph, topology, options, colocated) = tight(seed);
        if compute_nodes(&graph).is_empty() {
            continue;
        }
        let Some(found) = refused(&graph, &topology, &options).filter(|found| found.proven) else { continue };
        let members: Vec<&Member> = found.members.iter().collect();
        assert!(!members.is_empty(), "seed {seed}: {}", found.conflict);
        if found.conflict.contains("all are live while") {
            continue;
        }
        assert!(
            !can_hold(&graph, &topology, &colocated, members.clone()),
            "seed {seed}: {:?} is no conflict",
            found.members
        );
        for left_out in 0..members.len() {
            let mut rest = members.clone();
            rest.remove(left_out);
            assert!(
                can_hold(&graph, &topology, &colocated, rest),
                "seed {seed}: {:?} is not needed in {:?}",
                members[left_out],
                found.members
            );
        }
        conflicts += 1;
        pinned += usize::from(members.iter().any(|member| member.kind == MemberKind::Pin));
        several += usize::from(members.iter().filter(|member| member.kind == MemberKind::Cap).count() > 1);
    }
    assert!(conflicts >= 150 && pinned >= 20 && several >= 20, "{conflicts}, {pinned}, {several}");
}

/// No search is made where the sizes of results rule all plans out.
#[test]
fn more_results_than_all_devices_hold_are_a_conflict() {
    let mut builder = Builder::new("star", vec!["cpu".into()]);
    let add = |builder: &mut Builder, name: &str, outputs: &[Bytes]| {
        let spec = NodeSpec { name, op: "f", times: &[Some(Nanos(1))], outputs, ..NodeSpec::default() };
        builder.add(&spec).unwrap()
    };
    let root = add(&mut builder, "root", &[Bytes(64)]);
    for leaf in 0..20_000 {
        let node = add(&mut builder, &format!("leaf{leaf}"), &[Bytes(128)]);
        builder.connect(root, 0, node);
    }
    let graph = builder.finish().unwrap();
    let topology = Topology::parse("2xcpu:memory=1279KB").unwrap();
    let searched = Instant::now();
    let found = refused(&graph, &topology, &Options::default()).unwrap();
    let refusing = searched.elapsed();
    assert!(found.proven, "{}", found.conflict);
    let searched = Instant::now();
    assert!(plans(&graph, &Topology::parse("2xcpu:memory=1281KB").unwrap(), &Options::default()));
    assert!(refusing < searched.elapsed(), "{refusing:?}");
}

/// Devices of parameters and inputs for chosen ones of the nodes that compute.
#[test]
fn what_binds_is_named_where_nothing_is_proven() {
    let (mut seen, mut named) = (0, 0);
    for seed in 0..600 {
        let (graph, topology, options, _) = tight(seed);
        let Err(Error::Infeasible(found)) = solve(Problem::new(&graph, &topology, &options), &Control::new())
        else {
            continue;
        };
        if found.proven {
            continue;
        }
        let Some(most) = found.short.iter().map(|(_, lacking)| *lacking).max() else { continue };
        let (cap, things) = found.members.split_first().expect("the tightest device is named");
        assert_eq!(cap.kind, MemberKind::Cap, "seed {seed}");
        assert!(
            found.short.iter().any(|(name, lacking)| *name == cap.name && *lacking == most),
            "seed {seed}"
        );
        let amounts: Vec<u64> = things.iter().filter_map(|thing| thing.amount).collect();
        assert_eq!(amounts.len(), things.len(), "seed {seed}");
        assert!(amounts.is_sorted_by(|a, b| a >= b), "seed {seed}: {amounts:?}");
        named += usize::from(!amounts.is_empty());
        seen += 1;
    }
    assert!(named > 0 && 2 * named > seen, "of {seen} that are not proven {named} name what binds");
}

fn spread(graph: &CostGraph, nodes: &[NodeIx], chosen: &[DeviceId]) -> Placement {
    let mut device = vec![DeviceId(0); graph.node_count()];
    for (node, &id) in nodes.iter().zip(chosen) {
        device[node.index()] = id;
    }
    crate::place::spread(graph, &device)
}

#[test]
fn what_is_proven_not_to_fit_fits_nowhere() {
    let mut proven = 0;
    for seed in 1000..1150 {
        let (graph, topology, options, _) = tight(seed);
        let nodes = compute_nodes(&graph);
        let found = refused(&graph, &topology, &options).filter(|found| found.proven);
        if found.is_none() || nodes.is_empty() || nodes.len() > 5 || !options.pins.is_empty() {
            continue;
        }
        let together = !options.colocate.is_empty();
        let caps = schedule::Options { caps: options.caps.clone().expect("given"), ..Default::default() };
        let fits = any_placement(&nodes, topology.len() as u32, |chosen| {
            (!together || chosen.windows(2).all(|pair| pair[0] == pair[1]))
                && schedule(&graph, &topology, &spread(&graph, &nodes, chosen), &caps).is_ok()
        });
        assert!(!fits, "seed {seed}");
        proven += 1;
    }
    assert!(proven >= 20, "{proven}");
}

/// Nodes `c0`, `c1`, ... in a row that own these bytes.
fn chain(owned: &[u64]) -> CostGraph {
    let mut b = Builder::new("chain", vec!["cpu".into()]);
    for (i, &owned) in owned.iter().enumerate() {
        let name = format!("c{i}");
        let spec = NodeSpec {
            name: &name,
            op: "f",
            times: &[Some(Nanos(100))],
            param_bytes: Bytes(owned),
            outputs: &[Bytes(64)],
            ..NodeSpec::default()
        };
        b.add(&spec).unwrap();
        if i > 0 {
            b.connect(NodeIx(i as u32 - 1), 0, NodeIx(i as u32));
        }
    }
    b.finish().unwrap()
}

#[test]
fn more_large_nodes_than_devices_are_a_conflict_although_the_sum_fits() {
    let graph = chain(&[640, 6400, 6400, 64, 6400]);
    let options = Options { caps: Some(vec![Bytes(10_000); 2]), ..Options::default() };
    let found = refused(&graph, &devices(2), &options).expect("nothing fits");
    assert!(found.proven, "{}", found.conflict);
    let names = |kind| -> Vec<&str> {
        found.members.iter().filter(|member| member.kind == kind).map(|member| member.name.as_str()).collect()
    };
    assert_eq!(names(MemberKind::State), ["c1", "c2", "c4"]);
    assert_eq!(names(MemberKind::Cap), ["cpu0", "cpu1"]);
}

/// What would help where nothing fits.
fn repaired(graph: &CostGraph, topology: &Topology, options: &Options) -> Option<Infeasible> {
    let Err(Error::Infeasible(mut found)) = partition::unstable::compile::plan(graph, topology, options)
    else {
        return None;
    };
    let model = Model::CostGraph { graph: graph.clone(), topology: None };
    let asked = compile::Options { place: options.clone(), ..compile::Options::default() };
    repair(&model, topology, &asked, &mut found, &Control::new()).unwrap();
    Some(*found)
}

fn plans(graph: &CostGraph, topology: &Topology, options: &Options) -> bool {
    match solve(Problem::new(graph, topology, options), &Control::new()) {
        Ok(_) => true,
        Err(Error::Infeasible(_) | Error::Usage(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

/// As [`plans`], but what does not fit as it is may be computed again or offloaded.
fn rewrites(graph: &CostGraph, topology: &Topology, options: &Options) -> bool {
    match partition::unstable::compile::plan(graph, topology, options) {
        Ok(_) => true,
        Err(Error::Infeasible(_) | Error::Usage(_)) => false,
        Err(other) => panic!("{other}"),
    }
}

sweep! {
    repairs_do_what_they_promise: one of 4;
}

fn repairs_do_what_they_promise(share: Share) {
    let (mut memory, mut other) = (0, 0);
    for seed in share.among(0..120) {
        let (graph, topology, options, _) = tight(seed);
        let Some(found) = repaired(&graph, &topology, &options) else { continue };
        assert!(!found.repairs.is_empty(), "seed {seed}: {}", found.conflict);
        assert!(!found.repair.is_empty());
        for repair in &found.repairs {
            let mut changed = options.clone();
            match repair {
                Repair::Memory { device, more, fails, recomputed, offloaded, .. } => {
                    let grown = |by: Bytes| {
                        let mut caps = options.caps.clone().expect("given");
                        for id in topology.ids() {
                            let own = &topology.device(id).name;
                            if device.as_ref().is_none_or(|name| name == own) {
                                caps[id.index()] += by;
                            }
                        }
                        Options { caps: Some(caps), ..options.clone() }
                    };
                    assert!(fails < more && more.get() - fails.get() <= (more.get() / 64).max(64));
                    let quick = Options { effort: Effort::Fast, ..grown(*fails) };
                    let fits = if recomputed + offloaded > 0 { rewrites } else { plans };
                    assert!(!fits(&graph, &topology, &quick), "seed {seed}: {repair}");
                    changed = grown(*more);
                    memory += 1;
                }
                Repair::Unpin { pins } => {
                    for pin in pins {
                        let (pattern, device) = pin.rsplit_once('=').expect("PATTERN=DEVICE");
                        changed.pins.retain(|one| *one != (pattern.to_owned(), device.to_owned()));
                    }
                    assert_eq!(changed.pins.len(), options.pins.len() - pins.len());
                    other += 1;
                }
                Repair::Uncolocate { .. } => {
                    changed.colocate.clear();
                    other += 1;
                }
                _ => panic!("seed {seed}: {repair} was not asked for"),
            }
            assert!(rewrites(&graph, &topology, &changed), "seed {seed}: {repair}");
        }
    }
    assert!(memory >= share.least(200) && other >= 1, "{memory}, {other}");
}

#[test]
fn any_pin_too_many_can_be_dropped() {
    let graph = chain(&[640; 4]);
    let pin = |node: &str| (node.to_owned(), "cpu0".to_owned());
    let pins = vec![pin("c0"), pin("c1"), pin("c3")];
    let options = Options { caps: Some(vec![Bytes(1500); 2]), pins, ..Options::default() };
    let found = repaired(&graph, &devices(2), &options).expect("three do not fit on one");
    let pinned: Vec<&str> = found
        .members
        .iter()
        .filter(|member| member.kind == MemberKind::Pin)
        .map(|member| member.name.as_str())
        .collect();
    assert_eq!(pinned, ["c0=cpu0", "c1=cpu0", "c3=cpu0"]);
    let unpin = |repair: &&Repair| matches!(repair, Repair::Unpin { .. });
    let texts: Vec<String> = found.repairs.iter().filter(unpin).map(ToString::to_string).collect();
    assert_eq!(texts, ["unpin c0=cpu0", "unpin c1=cpu0", "unpin c3=cpu0"]);
    // With less room no single one is enough, and together they are.
    let less = Options { caps: Some(vec![Bytes(1500), Bytes(3000)]), ..options.clone() };
    let pins = ["c0", "c1", "c2", "c3"].map(pin).to_vec();
    let found = repaired(&graph, &devices(2), &Options { pins, ..less }).expect("four do not fit on one");
    let texts: Vec<String> = found.repairs.iter().filter(unpin).map(ToString::to_string).collect();
    assert_eq!(texts, ["unpin c0=cpu0 and c1=cpu0"]);
}

#[test]
fn balance_use_and_reserve_are_repaired_too() {
    let graph = chain(&[640; 6]);
    let two = devices(2);
    let asked = |options: Options| {
        let found = repaired(&graph, &two, &options).expect("nothing fits");
        let texts: Vec<String> = found.repairs.iter().map(ToString::to_string).collect();
        (found, texts)
    };
    let caps = Some(vec![Bytes(2400); 2]);
    let (found, texts) = asked(Options { caps: caps.clone(), reserve: Bytes(500), ..Options::default() });
    let reserve = found.repairs.iter().find_map(|repair| match repair {
        Repair::Reserve { reserve } => Some(*reserve),
        _ => None,
    });
    let reserve = reserve.unwrap_or_else(|| panic!("{texts:?}"));
    assert!(plans(&graph, &two, &Options { caps, reserve, ..Options::default() }));
    let uneven = chain(&[64; 3]);
    let options = Options { balance: Some(0.1), ..Options::default() };
    let found = repaired(&uneven, &two, &options).expect("three equal nodes on two devices");
    assert!(found.repairs.iter().any(|repair| matches!(repair, Repair::Balance { .. })), "{found:?}");
}

/// A chain whose last node reads the first one's result, too: less memory does where that is made
/// twice, and both sizes are told, with what is done.
#[test]
fn recomputing_is_part_of_a_repair() {
    let graph = crate::memory::chain(100, 64);
    let one = devices(1);
    let options = Options { caps: Some(vec![Bytes(1000)]), ..Options::default() };
    let found = repaired(&graph, &one, &options).expect("two tensors of 640 bytes do not fit");
    let sizes: Vec<(u64, usize)> = found
        .repairs
        .iter()
        .filter_map(|repair| match repair {
            Repair::Memory { memory, recomputed, .. } => Some((memory.get(), *recomputed)),
            _ => None,
        })
        .collect();
    let [(again, 1), (whole, 0)] = sizes[..] else { panic!("{sizes:?}: {:?}", found.repairs) };
    assert!((1408..1500).contains(&again) && (1984..2100).contains(&whole), "{sizes:?}");
    assert!(found.repairs[0].to_string().ends_with(", recompute 1 kernel"), "{}", found.repairs[0]);
    assert!(found.repair.contains(&format!("{again} bytes")), "{}", found.repair);
}

#[test]
fn the_program_says_what_would_help_and_exits_with_three() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let tight = ["--devices", "2xcpu:memory=4MB", "--batch", "4000", "--split", "none"];
    let error = folder.fails(3, &[&[model.as_str()], &tight[..]].concat());
    for part in ["no plan exists", "smallest cap that would do", "on each device", "a batch of "] {
        assert!(error.contains(part), "{part} is missing in\n{error}");
    }
    let ran = folder.run(&[&[model.as_str()], &tight[..], &["--emit", "summary-json"]].concat());
    assert_eq!(ran.code, 3);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).expect("one object");
    assert_eq!((json["feasible"].as_bool(), json["proven"].as_bool()), (Some(false), Some(true)));
    let batch = json["repairs"].as_array().expect("repairs").iter().find(|one| one["change"] == "batch");
    let (batch, fails) =
        (batch.expect("a batch")["batch"].to_string(), batch.expect("it")["fails"].to_string());
    folder.ok(&[&model, "--devices", "2xcpu:memory=4MB", "--batch", &batch, "--effort", "fast", "--quiet"]);
    let quick = ["--devices", "2xcpu:memory=4MB", "--effort", "fast", "--split", "none", "--batch", &fails];
    folder.fails(3, &[&[model.as_str()], &quick[..]].concat());
    let each = json["repairs"].as_array().expect("repairs").iter().find(|one| one["device"].is_null());
    let memory = format!("2xcpu:memory={}B", each.expect("memory")["memory"]);
    folder.ok(&[&model, "--devices", &memory, "--batch", "4000", "--effort", "fast", "--quiet"]);
}

/// A CPU beside accelerators takes only what nothing else can: that it would take all of it is told.
#[test]
fn a_host_that_would_hold_it_is_named() {
    let graph = chain(&[640; 4]);
    let mut topology = Topology::parse("cpu:memory=1MB,use=host+2xcpu:memory=700B").unwrap();
    let found = repaired(&graph, &topology, &Options::default()).expect("it fits on no device");
    let host = Repair::Host { device: topology.devices[0].name.clone() };
    assert!(found.repairs.contains(&host), "{:?}", found.repairs);
    assert!(found.details.iter().any(|line| line.contains("use=compute")), "{:?}", found.details);
    topology.devices[0].role = Role::Compute;
    assert!(plans(&graph, &topology, &Options::default()));
}
