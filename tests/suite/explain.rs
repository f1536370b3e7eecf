//! Explanations of plans: every figure is that of a placement that is scheduled here once more.

use partition::Control;
use partition::unstable::compile::{explain_node, explain_plan};
use partition::unstable::costgraph::{CostGraph, NodeIx};
use partition::unstable::explain::{NodeReport, Overview};
use partition::unstable::load::Model;
use partition::unstable::place::{DeviceUse, Effort, Objective, Options};
use partition::unstable::plan::{Action, Plan};
use partition::unstable::schedule::{self, Cost, Faster, retimed, schedule, schedule_in_order};
use partition::unstable::strategy::{Problem, solve};
use partition::unstable::topology::{Communication, Contention, DeviceId, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::cli::{Folder, example};
use crate::random_costgraph::{
    Links, Rng, compute_nodes, cost_graph, placement as random_placement, topology,
};
use crate::sweep::Share;

fn devices(count: u32, memory: Bytes) -> Topology {
    let links = Links::Direct(Contention::Link);
    topology(count, 1, memory, links, Nanos(100), Communication::Overlapped)
}

fn model(graph: &CostGraph) -> Model {
    Model::CostGraph { graph: graph.clone(), topology: None }
}

/// What suits a test of many plans: explanations plan again with the plan's own effort.
fn quick(objective: Objective) -> Options {
    Options { objective, effort: Effort::Fast, ..Options::default() }
}

/// A random graph on three devices, each with a bit more than its share of memory.
fn planned(seed: u64, objective: Objective) -> Option<(CostGraph, Topology, Plan)> {
    planned_with(seed, &quick(objective))
}

/// As [`planned`], with options of its own.
fn planned_with(seed: u64, options: &Options) -> Option<(CostGraph, Topology, Plan)> {
    let mut rng = Rng::new(seed);
    let graph = cost_graph(&mut rng, 8 + seed as usize % 30);
    let roomy = devices(3, Bytes(1 << 40));
    let (_, whole) =
        solve(Problem::new(&graph, &devices(1, Bytes(1 << 40)), options), &Control::new()).ok()?;
    let cap = Bytes(whole.devices[0].arena.get() * 7 / 10);
    let tight = if rng.chance(50) { devices(3, Bytes(cap.get().max(64))) } else { roomy };
    let plan = partition::unstable::compile::plan(&graph, &tight, options).ok()?;
    // What was rewritten is not the graph's own step.
    let rewritten = plan.steps.iter().any(|step| step.why.as_ref().is_some_and(|why| why.contains("frees")));
    (!rewritten).then_some((graph, tight, plan))
}

/// Where a plan has each node, and in which order it launches them.
fn read(plan: &Plan, graph: &CostGraph, topology: &Topology) -> (Vec<DeviceId>, Vec<NodeIx>) {
    let find = |name: &str| graph.nodes().find(|&node| graph.node_name(node) == name).expect("a node");
    let device = plan.placement.iter().map(|(_, device)| topology.find(device).expect("a device")).collect();
    let launched = plan.steps.iter().filter_map(|step| match &step.action {
        Action::Launch(launch) => Some(find(&launch.nodes[0])),
        Action::Copy(_) => None,
    });
    (device, launched.collect())
}

fn key(objective: Objective, cost: &Cost) -> [u64; 3] {
    let bytes = (cost.step_bytes + cost.load_bytes).get();
    let (latency, load) = (cost.latency.get(), cost.max_load.get());
    match objective {
        Objective::Transfer => [bytes, latency, load],
        Objective::Latency => [latency, bytes, load],
        Objective::Throughput => [load, bytes, latency],
    }
}

/// The better of the two schedules that a placement has.
fn simulated(
    graph: &CostGraph,
    topology: &Topology,
    objective: Objective,
    device: &[DeviceId],
    launches: &[NodeIx],
    caps: &schedule::Options,
) -> Option<Cost> {
    let placement = crate::place::spread(graph, device);
    let own = schedule(graph, topology, &placement, caps);
    let meant = schedule_in_order(graph, topology, &placement, launches, caps);
    let costs = own.into_iter().chain(meant).map(|schedule| schedule.cost);
    costs.min_by_key(|cost| key(objective, cost))
}

#[test]
fn each_other_device_costs_what_the_simulator_says_of_the_moved_plan() {
    let (mut moved, mut forbidden, mut better) = (0, 0, 0);
    for seed in 0..60 {
        let objective = Objective::ALL[seed as usize % 3];
        let Some((graph, topology, plan)) = planned(seed, objective) else { continue };
        let (device, launches) = read(&plan, &graph, &topology);
        let free = schedule::Options { caps: vec![Bytes::MAX; topology.len()], ..Default::default() };
        for node in compute_nodes(&graph).into_iter().take(6) {
            let name = graph.node_name(node);
            let report = explain_node(&plan, model(&graph), name, &Control::new()).unwrap();
            assert_eq!(report.device, topology.device(device[node.index()]).name, "seed {seed}");
            assert_eq!(report.others.len(), topology.len() - 1);
            for other in &report.others {
                let mut elsewhere = device.clone();
                elsewhere[node.index()] = topology.find(&other.device).expect("a device");
                let find = |caps: &schedule::Options| {
                    simulated(&graph, &topology, objective, &elsewhere, &launches, caps)
                };
                let expected = match find(&schedule::Options::default()) {
                    Some(cost) => {
                        assert_eq!(other.binds, None, "seed {seed}: {name}");
                        moved += 1;
                        better += usize::from(key(objective, &cost)[0] < report.value);
                        cost
                    }
                    None => {
                        let binds = other.binds.as_deref().expect("it does not fit");
                        assert!(binds.starts_with("memory of cpu"), "seed {seed}: {binds}");
                        forbidden += 1;
                        find(&free).expect("it fits without caps")
                    }
                };
                assert_eq!(other.value, Some(key(objective, &expected)[0]), "seed {seed}: {name}");
                assert_eq!(other.latency_ns, Some(expected.latency), "seed {seed}: {name}");
                assert_eq!(other.max_load_ns, Some(expected.max_load), "seed {seed}: {name}");
                assert_eq!(other.transfer_bytes, Some(expected.step_bytes + expected.load_bytes));
            }
        }
    }
    assert!(moved >= 200 && forbidden >= 20, "{moved} moved, {forbidden} forbidden, {better} better");
}

fn overview(plan: &Plan, graph: &CostGraph) -> Overview {
    explain_plan(plan, model(graph), &Control::new()).unwrap()
}

/// Plans in which something is computed again or offloaded are explained by their own steps.
#[test]
fn rewritten_plans_are_explained_by_their_own_steps() {
    let cases = [(64, "cpu:memory=1600B"), (704, "cpu[1600B,4000B]")];
    for (input, spec) in cases {
        let graph = crate::memory::chain(100, input);
        let topology = Topology::parse(spec).unwrap();
        let pins = vec![("*".to_owned(), topology.devices[0].name.clone())];
        let options = Options { pins, ..quick(Objective::Latency) };
        let plan = partition::unstable::compile::plan(&graph, &topology, &options).unwrap();
        assert!(plan.steps.iter().any(|step| step.why.is_some()), "{spec}");
        let told = overview(&plan, &graph);
        assert_eq!(told.latency_ns, plan.cost.latency_ns, "{spec}");
        assert!(!told.notes.iter().any(|note| note.contains("figures differ")), "{spec}: {:?}", told.notes);
        let report = explain_node(&plan, model(&graph), "a", &Control::new()).unwrap();
        assert_eq!(report.value, plan.cost.latency_ns.get(), "{spec}");
        for other in &report.others {
            assert!(other.binds.is_some(), "{spec}: a is pinned: {other:?}");
        }
    }
}

sweep! {
    control_dependencies_are_told_with_their_reasons: one of 10;
}

/// Each dependency that the data does not ask for is told with its reason, and no other one.
fn control_dependencies_are_told_with_their_reasons(share: Share) {
    use partition::unstable::plan::Reason;
    let (mut memory, mut urgent) = (0, 0);
    let (graph, topology) = crate::copies::starving();
    let device = |id: usize| topology.devices[id].name.clone();
    let pins = [("first", 0), ("second", 0), ("last", 1), ("idle", 1), ("end", 1)];
    let pins = pins.into_iter().map(|(node, id)| (node.to_owned(), device(id))).collect();
    let options = Options { pins, objective: Objective::Latency, ..Options::default() };
    let starving = partition::unstable::compile::plan(&graph, &topology, &options).unwrap();
    let quick = Options {
        objective: Objective::Latency,
        effort: partition::unstable::place::Effort::Fast,
        ..Options::default()
    };
    let random = share.among(0..60).filter_map(|seed| planned_with(seed, &quick));
    let random = random.map(|(graph, _, plan)| (graph, plan));
    for (case, (graph, plan)) in std::iter::once((graph, starving)).chain(random).enumerate() {
        let text = partition::unstable::report::overview_text(&overview(&plan, &graph), &plan);
        let waits = plan.waits();
        let listed = text.lines().filter(|line| line.starts_with("  step ") && line.contains(" waits for "));
        assert_eq!(listed.count(), waits.len().min(20), "case {case}: {text}");
        for (step, wait) in waits {
            let ids = |id: &u64| step.after.contains(id);
            assert!(!wait.steps.is_empty() && wait.steps.iter().all(ids), "case {case}: {wait}");
            match wait.reason {
                Reason::Memory => memory += 1,
                Reason::Urgency => urgent += 1,
            }
        }
    }
    assert!(memory >= share.least(8) && urgent >= 1, "{memory} for memory, {urgent} for urgency");
}

long! {
    the_longest_chain_adds_up_to_the_step;
    fewer_devices_are_said_to_be_as_good_only_where_they_are;
    prices_of_memory_are_plans_that_exist;
}

fn the_longest_chain_adds_up_to_the_step() {
    let mut chains = 0;
    for seed in 100..160 {
        let Some((graph, _, plan)) = planned(seed, Objective::ALL[seed as usize % 3]) else { continue };
        let overview = overview(&plan, &graph);
        let parts: Nanos = overview.path.iter().map(|part| part.time_ns).sum();
        assert_eq!(parts, overview.latency_ns, "seed {seed}: {:?}", overview.path);
        assert_eq!(overview.latency_ns, plan.cost.latency_ns, "seed {seed}");
        assert_eq!(overview.max_load_ns, plan.cost.max_load_ns, "seed {seed}");
        let highest = overview.loads.first().map_or(Nanos::ZERO, |load| load.own_ns + load.copies_ns);
        assert_eq!(highest, overview.max_load_ns, "seed {seed}");
        let copied: Bytes = overview.cuts.iter().map(|cut| cut.bytes).sum();
        assert_eq!(copied, plan.cost.step_bytes, "seed {seed}");
        chains += 1;
    }
    assert!(chains >= 40, "{chains}");
}

fn fewer_devices_are_said_to_be_as_good_only_where_they_are() {
    let (mut as_good, mut helping) = (0, 0);
    for seed in 200..260 {
        let objective = Objective::ALL[1 + seed as usize % 2];
        let Some((graph, topology, plan)) = planned(seed, objective) else { continue };
        let overview = overview(&plan, &graph);
        let Some(fewer) = overview.fewer else { continue };
        for &(count, value) in &fewer.tried {
            let devices = DeviceUse::Count(count as u32);
            let options = Options { devices, ..quick(objective) };
            let found = solve(Problem::new(&graph, &topology, &options), &Control::new()).ok();
            assert_eq!(value, found.map(|(_, schedule)| key(objective, &schedule.cost)[0]), "seed {seed}");
        }
        let best = fewer.tried.iter().filter(|(_, value)| value.is_some_and(|value| value <= overview.value));
        assert_eq!(fewer.as_good, best.map(|&(count, _)| count).min(), "seed {seed}");
        as_good += usize::from(fewer.as_good.is_some());
        helping += usize::from(fewer.as_good.is_none());
    }
    assert!(helping >= 5, "{as_good} as good, {helping} not");
}

#[test]
fn a_faster_device_shortens_the_same_plan_by_what_it_says() {
    // One chain on one device: a tenth more speed takes a tenth of its time in eleven.
    let graph = cost_graph(&mut Rng::new(5), 20);
    let one = devices(1, Bytes(1 << 40));
    let (placement, made) =
        solve(Problem::new(&graph, &one, &quick(Objective::Transfer)), &Control::new()).unwrap();
    let again = retimed(&graph, &one, &placement, &made, None).unwrap();
    assert_eq!(again, made.cost);
    let faster =
        retimed(&graph, &one, &placement, &made, Some(Faster { device: DeviceId(0), part: 10, whole: 11 }))
            .unwrap();
    let times = compute_nodes(&graph).into_iter().map(|node| graph.time(node, 0).expect("a time").get());
    assert_eq!(faster.latency.get(), times.map(|time| time * 10 / 11).sum::<u64>());
}

#[test]
fn a_schedule_timed_again_on_its_own_machine_costs_the_same() {
    let all = [Links::Direct(Contention::Link), Links::Direct(Contention::None), Links::Staged];
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let graph = cost_graph(&mut rng, 30);
        let added = if rng.chance(50) { Communication::Added } else { Communication::Overlapped };
        let links = all[seed as usize % 3];
        let machine = topology(3, 1 + seed as u32 % 2, Bytes(1 << 40), links, Nanos(50), added);
        let placement = random_placement(&mut rng, &graph, &machine);
        let made = schedule(&graph, &machine, &placement, &schedule::Options::default()).unwrap();
        let again = retimed(&graph, &machine, &placement, &made, None).unwrap();
        assert_eq!(again, made.cost, "seed {seed}");
        let loads = schedule::loads(&graph, &machine, &placement).unwrap();
        let highest = loads.first().map_or(Nanos::ZERO, |load| load.total());
        assert_eq!(highest, made.cost.max_load, "seed {seed}");
    }
}

fn prices_of_memory_are_plans_that_exist() {
    let mut priced = 0;
    for seed in 300..340 {
        let objective = Objective::ALL[seed as usize % 3];
        let Some((graph, topology, plan)) = planned(seed, objective) else { continue };
        for price in overview(&plan, &graph).prices.iter().filter(|price| price.more == "memory") {
            let mut caps: Vec<Bytes> = topology.devices.iter().map(|device| device.memory).collect();
            let own = topology.find(&price.device).expect("a device");
            caps[own.index()] = Bytes(caps[own.index()].get() + caps[own.index()].get() / 10);
            let options = Options { caps: Some(caps), ..quick(objective) };
            let (_, schedule) = solve(Problem::new(&graph, &topology, &options), &Control::new()).unwrap();
            let now = key(objective, &schedule.cost)[0];
            let had = match objective {
                Objective::Transfer => plan.cost.transfer_bytes.get(),
                Objective::Latency => plan.cost.latency_ns.get(),
                Objective::Throughput => plan.cost.max_load_ns.get(),
            };
            assert_eq!(price.saves, had.saturating_sub(now), "seed {seed}");
            priced += usize::from(price.saves > 0);
        }
    }
    assert!(priced >= 1, "{priced}");
}

/// Places everything by pins, so that the text does not follow the search.
const PINS: &[&str] = &["--pin", "*=cpu1", "--pin", "embed*=cpu0", "--pin", "block0*=cpu0"];

fn snapshot(name: &str, text: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => path, prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!(format!("explain_{name}"), text);
    });
}

fn pinned_plan(folder: &Folder) {
    let model = example("mlp.json");
    let plan = ["--devices", "2xcpu:memory=5MB", "--objective", "latency", "--quiet", "-o", "plan.json"];
    folder.ok(&[&[model.as_str()], &plan[..], PINS].concat());
}

#[test]
fn a_plan_and_a_node_are_explained_in_words() {
    let folder = Folder::new();
    pinned_plan(&folder);
    // The first line holds the certificate, which may become better.
    let text = folder.ok(&["explain", "plan.json"]);
    let rest: Vec<&str> = text.lines().skip(1).collect();
    snapshot("plan", &rest.join("\n"));
    snapshot("node", &folder.ok(&["explain", "plan.json", "block1/add"]));
}

/// Also operations that have numbers of their own, which go by the same name.
#[test]
fn whatever_is_launched_is_explained() {
    let folder = Folder::new();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch/training/trained.pt2");
    folder.ok(&[model, "-d", "2xcpu", "--use", "all", "-q", "-o", "plan.json"]);
    let plan: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path("plan.json")).unwrap()).unwrap();
    let unlaunched = plan["unlaunched"].as_array().unwrap();
    let launched = plan["placement"]
        .as_object()
        .unwrap()
        .keys()
        .filter(|&name| !unlaunched.iter().any(|other| other.as_str() == Some(name)));
    let mut explained = 0;
    for name in launched {
        assert!(folder.ok(&["explain", "plan.json", name]).starts_with(name.as_str()), "{name}");
        explained += 1;
    }
    assert!(explained >= 8, "{explained}");
}

#[test]
fn explanations_are_json_too() {
    let folder = Folder::new();
    pinned_plan(&folder);
    let whole: serde_json::Value =
        serde_json::from_str(&folder.ok(&["explain", "plan.json", "--json"])).expect("JSON");
    assert_eq!(whole["objective"], "latency");
    assert_eq!(whole["devices"].as_array().map(Vec::len), Some(2));
    assert!(whole.get("bound").is_some());
    let text = folder.ok(&["explain", "plan.json", "block1/add", "--json"]);
    let node: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&node["device"], &node["others"][0]["device"]), (&"cpu1".into(), &"cpu0".into()));
    assert!(node["held_by"].is_string(), "{node}");
}

#[test]
fn names_are_found_by_their_beginning_and_near_ones_are_listed() {
    let folder = Folder::new();
    pinned_plan(&folder);
    assert!(folder.ok(&["explain", "plan.json", "block1/up_"]).starts_with("block1/up_proj"));
    let several = folder.fails(2, &["explain", "plan.json", "block1/"]);
    assert!(several.contains("nodes match") && several.contains("block1/add"), "{several}");
    let none = folder.fails(2, &["explain", "plan.json", "block1/ad_"]);
    assert!(none.contains("near: block1/add"), "{none}");
    let input = folder.fails(2, &["explain", "plan.json", "x"]);
    assert!(input.contains("computes nothing") && input.contains("read by embed"), "{input}");
}

#[test]
fn without_its_model_a_plan_still_says_something() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let bytes = std::fs::read(&model).expect("the example is there");
    std::fs::write(folder.path("copy.json"), bytes).expect("writable");
    folder.ok(&["copy.json", "--devices", "cpu", "--quiet", "-o", "plan.json"]);
    std::fs::remove_file(folder.path("copy.json")).expect("it is there");
    let ran = folder.run(&["explain", "plan.json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("cpu0") && ran.stderr.contains("--model"), "{}{}", ran.stdout, ran.stderr);
    assert!(folder.fails(2, &["explain", "plan.json", "embed"]).contains("--model"));
    let whole = folder.ok(&["explain", "plan.json", "--model", &model]);
    assert!(whole.contains("longest chain"), "{whole}");
}

#[test]
fn a_pin_and_a_kind_are_named_as_what_binds() {
    let graph = cost_graph(&mut Rng::new(11), 12);
    let topology = devices(2, Bytes(1 << 40));
    let node = compute_nodes(&graph)[0];
    let name = graph.node_name(node);
    let options = Options { pins: vec![(name.to_owned(), "cpu1".to_owned())], ..Options::default() };
    let plan = partition::unstable::compile::plan(&graph, &topology, &options).unwrap();
    let report: NodeReport = explain_node(&plan, model(&graph), name, &Control::new()).unwrap();
    assert_eq!((report.device.as_str(), report.others.len()), ("cpu1", 1));
    assert!(report.held_by.is_some_and(|by| by.contains("pinned")));
    assert!(report.others[0].binds.as_deref().is_some_and(|binds| binds.contains("pin")));
    assert!(report.others[0].value.is_some());
}

/// One product whose weights fit on no device.
const LARGE: &str = r#"{"partition_model":1,"name":"large","inputs":[{"name":"x","type":"f32[8,64]"}],
    "params":[{"name":"w","type":"f32[64,256]"}],"nodes":[{"name":"fc","op":"matmul","inputs":["x","w"]}],"outputs":["fc"]}"#;

/// The product of the first layer divides into fewer parts along the batch than what follows it does.
#[test]
fn of_every_split_node_of_a_plan_each_other_way_is_planned() {
    let folder = Folder::new();
    std::fs::copy("examples/seed_stack.json", folder.path("net.json")).unwrap();
    let asked =
        ["--batch", "12", "--objective", "latency", "-d", "4xcpu", "--effort", "fast", "-o", "plan.json"];
    folder.ok(&[&["net.json"], &asked[..]].concat());
    for node in ["first", "hidden_0", "last"] {
        let text = folder.ok(&["explain", "plan.json", node]);
        assert!(text.contains("planned anew with this node otherwise"), "{node}: {text}");
    }
}

#[test]
fn of_a_split_node_each_other_way_is_planned() {
    let folder = Folder::new();
    std::fs::write(folder.path("large.json"), LARGE).unwrap();
    let devices = "3xcpu:memory=48kB";
    folder.ok(&["large.json", "-d", devices, "-o", "plan.json"]);
    let report: serde_json::Value =
        serde_json::from_str(&folder.ok(&["explain", "plan.json", "fc", "--json"])).unwrap();
    let plan: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path("plan.json")).unwrap()).unwrap();
    assert_eq!(report["value"], plan["cost"]["transfer_bytes"]);
    let own = &report["operations"][0];
    let over = own["over"].as_str().unwrap();
    let elements = own["devices"].as_array().unwrap().iter().map(|share| share["elements"].as_u64().unwrap());
    assert_eq!(elements.sum::<u64>(), own["extent"].as_u64().unwrap());
    let otherwise = report["otherwise"].as_array().unwrap();
    let ways: Vec<Option<&str>> = otherwise.iter().map(|way| way["over"].as_str()).collect();
    // Eight rows are too few to be divided.
    let mut all = vec![None, Some("axis 1"), Some("sum 1")];
    all.retain(|&way| way != Some(over));
    assert_eq!(ways, all, "every way but its own");
    for way in otherwise {
        let Some(over) = way["over"].as_str() else {
            assert!(way["refused"].as_str().unwrap().contains("memory") || way["value"].is_null(), "{way}");
            continue;
        };
        let (kind, axis) = over.split_once(' ').unwrap();
        let rule = format!("fc={}:{}", if kind == "sum" { "sum" } else { axis }, way["parts"]);
        let asked = folder.run(&["large.json", "-d", devices, "--split", &rule, "-o", "asked.json"]);
        match way["value"].as_u64() {
            None => assert_eq!(asked.code, 3, "{rule}: {}", asked.stderr),
            // Rules put the parts of what one node stands for together, plans need not.
            Some(_) if asked.code == 3 => assert_eq!(plan["options"]["splits"][0]["apart"], true, "{rule}"),
            Some(value) => {
                let text = std::fs::read_to_string(folder.path("asked.json")).unwrap();
                let asked: serde_json::Value = serde_json::from_str(&text).unwrap();
                assert_eq!(asked["cost"]["transfer_bytes"].as_u64(), Some(value), "{rule}");
            }
        }
        assert_eq!(way["other_bits"].as_bool(), Some(kind == "sum"));
    }
    let text = folder.ok(&["explain", "plan.json", "fc"]);
    assert!(text.starts_with("fc is split\n  fc#0 along ") && text.contains("\n  whole: "), "{text}");
    let parts = plan["options"]["splits"][0]["bounds"].as_array().unwrap().len() - 1;
    let part = folder.ok(&["explain", "plan.json", &format!("fc[0/{parts}]")]);
    assert!(part.contains("is on"), "{part}");
}
