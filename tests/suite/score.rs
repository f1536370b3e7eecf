//! Placements made elsewhere: read in every form, checked, and timed as our own are.

use std::collections::BTreeMap;

use partition::unstable::compile::{self, Options, ScoredPlan};
use partition::unstable::costgraph::CostGraph;
use partition::unstable::error::Error;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::place::{self, Objective, Placement};
use partition::unstable::plan::{self, Foreign, Plan};
use partition::unstable::schedule::{self, schedule};
use partition::unstable::topology::{Communication, Contention, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::cli::{Folder, example};
use crate::random_costgraph::{Links, Rng, cost_graph, placement, topology};

fn devices(count: u32, memory: u64) -> Topology {
    let links = Links::Direct(Contention::Link);
    topology(count, 1, Bytes(memory), links, Nanos(500), Communication::Overlapped)
}

fn names(graph: &CostGraph, topology: &Topology, placement: &Placement) -> String {
    let pair = |node| {
        let device = placement.device[partition::unstable::costgraph::NodeIx::index(node)];
        (graph.node_name(node).to_owned(), topology.device(device).name.clone())
    };
    let pairs: BTreeMap<String, String> = graph.nodes().map(pair).collect();
    serde_json::to_string(&pairs).expect("JSON")
}

fn score_graph(graph: &CostGraph, topology: &Topology, text: &str) -> partition::Result<ScoredPlan> {
    let foreign = Foreign::read(text.as_bytes(), "test.json")?;
    let model = Model::CostGraph { graph: graph.clone(), topology: None };
    compile::score(model, topology, &Options::default(), &foreign)
}

fn example_model(name: &str) -> Model {
    let bytes = std::fs::read(example(name)).expect("an example");
    load(&bytes, None, &LoadOptions::default()).expect("a model")
}

fn score_example(name: &str, spec: &str, text: &str) -> partition::Result<ScoredPlan> {
    let foreign = Foreign::read(text.as_bytes(), "test.json")?;
    let topology = Topology::parse(spec)?;
    compile::score(example_model(name), &topology, &Options::default(), &foreign)
}

#[test]
fn a_random_placement_costs_what_its_schedule_costs() {
    let mut rng = Rng::new(11);
    for case in 0..200 {
        let graph = cost_graph(&mut rng, 1 + case % 60);
        let topology = devices(1 + (case % 4) as u32, 10_000_000);
        let placed = placement(&mut rng, &graph, &topology);
        let scored = score_graph(&graph, &topology, &names(&graph, &topology, &placed)).expect("a score");
        assert_eq!(scored.compiled.placement.device, placed.device, "case {case}");
        let expected = schedule(&graph, &topology, &placed, &schedule::Options::default()).expect("it fits");
        let (cost, plain) = (&scored.compiled.schedule.cost, &expected.cost);
        assert_eq!((cost.step_bytes, cost.load_bytes), (plain.step_bytes, plain.load_bytes), "case {case}");
        assert!(cost.latency <= plain.latency, "case {case}");
        assert!(scored.violations.is_empty() && scored.over.is_empty());
        let plan = &scored.compiled.plan;
        plan::check_costgraph(plan, &graph).expect("sound, and of this graph");
    }
}

#[test]
fn what_does_not_fit_is_said_device_by_device() {
    let mut rng = Rng::new(12);
    let mut tight = 0;
    for case in 0..200 {
        let graph = cost_graph(&mut rng, 2 + case % 40);
        let roomy = devices(2, 10_000_000);
        let placed = placement(&mut rng, &graph, &roomy);
        let text = names(&graph, &roomy, &placed);
        let arenas: Vec<u64> = score_graph(&graph, &roomy, &text)
            .expect("a score")
            .compiled
            .schedule
            .devices
            .iter()
            .map(|usage| usage.arena.0)
            .collect();
        let cap = arenas.iter().max().copied().unwrap_or(0) * 2 / 3;
        let scored = score_graph(&graph, &devices(2, cap.max(1)), &text).expect("a score all the same");
        let over: Vec<_> = (0..2)
            .filter(|&device| scored.compiled.schedule.devices[device].arena.0 > cap.max(1))
            .map(|device| {
                (
                    partition::unstable::topology::DeviceId(device as u32),
                    Bytes(scored.compiled.schedule.devices[device].arena.0 - cap.max(1)),
                )
            })
            .collect();
        assert_eq!(scored.over, over, "case {case}");
        let fits = schedule(&graph, &devices(2, cap.max(1)), &placed, &schedule::Options::default()).is_ok();
        // What is scored is packed as a chosen schedule is, and may fit where a first look finds it too long.
        assert!(!fits || over.is_empty(), "case {case}");
        let verdict = scored.verdict("test.json");
        let code = (!over.is_empty()).then_some(3);
        assert_eq!(verdict.err().map(|error| error.exit_code()), code, "case {case}");
        tight += usize::from(!over.is_empty());
    }
    assert!(tight > 20, "only {tight} placements did not fit");
}

#[test]
fn a_plan_of_ours_scores_as_planned() {
    let mut rng = Rng::new(13);
    for case in 0..60 {
        let graph = cost_graph(&mut rng, 5 + case % 60);
        let topology = devices(3, 10_000_000);
        let objective = Objective::ALL[case % 3];
        let place = place::Options {
            objective,
            devices: place::DeviceUse::All,
            effort: place::Effort::Fast,
            ..Default::default()
        };
        let Ok(plan) = partition::unstable::compile::plan(&graph, &topology, &place) else { continue };
        let options = Options { place, ..Options::default() };
        let foreign = Foreign::read(plan.to_json().as_bytes(), "plan.json").expect("a placement");
        let model = Model::CostGraph { graph: graph.clone(), topology: None };
        let scored = compile::score(model, &topology, &options, &foreign).expect("a score");
        let again = &scored.compiled.plan;
        assert_eq!(again.placement, plan.placement, "case {case}");
        assert_eq!(again.cost.transfer_bytes, plan.cost.transfer_bytes, "case {case}");
        // The order is the plan's; the search that improves upon it begins anew.
        let measure = |plan: &Plan| match objective {
            Objective::Transfer => plan.cost.transfer_bytes.0,
            Objective::Latency => plan.cost.latency_ns.0,
            Objective::Throughput => plan.cost.max_load_ns.0,
        };
        let (again, plan) = (measure(again), measure(&plan));
        assert!(again <= plan + plan / 20, "case {case}: {again} after {plan}");
    }
}

#[test]
fn what_export_writes_scores_as_planned() {
    let folder = Folder::new();
    for (model, spec) in [("mlp.json", "3xa100-80g:memory=3MB"), ("seed_stack.json", "2xl4-24g:memory=6GB")] {
        let model = example(model);
        let base = [model.as_str(), "--devices", spec, "--use", "all", "--batch", "10"];
        folder.ok(&[&base[..], &["-o", "plan.json"]].concat());
        let plan = Plan::load(folder.path("plan.json")).expect("a plan");
        for format in ["json", "accelerate"] {
            folder.ok(&["export", "plan.json", "--format", format, "-o", "placement.json"]);
            folder.ok(&[&base[..], &["--score", "placement.json", "-o", "scored.json"]].concat());
            let scored = Plan::load(folder.path("scored.json")).expect("a plan");
            assert_eq!((&scored.placement, scored.cost), (&plan.placement, plan.cost), "{model} {format}");
            assert_eq!(scored.devices, plan.devices);
            assert!(folder.ok(&["check", "scored.json", "--model", &model]).contains("of this model"));
        }
    }
}

/// Every node apart from its neighbours: no kernel spans two devices, and the results are the same.
#[test]
fn groups_that_a_placement_splits_still_compute_the_same() {
    let folder = Folder::new();
    let model = example("mlp.json");
    folder.ok(&[&model, "--devices", "2xcpu", "--emit", "plan", "-o", "one.json"]);
    let plan = Plan::load(folder.path("one.json")).expect("a plan");
    let split: BTreeMap<&str, &str> = plan
        .placement
        .iter()
        .enumerate()
        .map(|(at, (node, _))| (node.as_str(), ["cpu0", "cpu1"][at % 2]))
        .collect();
    std::fs::write(folder.path("split.json"), serde_json::to_string(&split).expect("JSON")).expect("written");
    folder.ok(&[&model, "--devices", "2xcpu", "--score", "split.json", "-o", "two.json"]);
    let two = Plan::load(folder.path("two.json")).expect("a plan");
    assert!(two.cost.step_bytes > Bytes::ZERO);
    let computed: BTreeMap<&str, &str> = two
        .placement
        .iter()
        .filter(|(node, _)| !two.unlaunched.contains(node))
        .map(|(n, d)| (n.as_str(), d.as_str()))
        .collect();
    assert!(computed.iter().all(|(node, device)| split[node] == *device));
    assert!(folder.ok(&["check", "two.json", "--model", &model]).contains("of this model"));
    if cfg!(feature = "run") {
        folder.ok(&["run", "one.json", "--init", "seed=3", "--outputs", "one.npz"]);
        folder.ok(&["run", "two.json", "--init", "seed=3", "--expect", "one.npz"]);
    }
}

#[test]
fn devices_are_found_by_what_others_call_them() {
    let on = |text: &str, spec: &str| -> Vec<String> {
        let scored = score_example("mlp.json", spec, text).expect("a placement");
        let mut used: Vec<String> =
            scored.compiled.plan.placement.into_iter().map(|(_, device)| device).collect();
        used.dedup();
        used
    };
    assert_eq!(on(r#"{"":1}"#, "2xa100-80g"), ["cuda1"]);
    assert_eq!(on(r#"{"":"cpu"}"#, "cpu+2xa100-80g"), ["cpu0"]);
    assert_eq!(on(r#"{"":"cuda:1"}"#, "cpu+2xa100-80g"), ["cuda1"]);
    assert_eq!(on(r#"{"":"1"}"#, "2xcpu"), ["cpu1"]);
    assert_eq!(
        on(r#"{"placement":{"":"cuda0","head":1,"probabilities":1},"note":[1]}"#, "2xa100-80g"),
        ["cuda0", "cuda1"]
    );
    // The longest prefix wins, and it ends at the end of a part of the name.
    let map = r#"{"":0,"block1":1,"block1.add":0,"block2/norm":"cuda1"}"#;
    assert_eq!(on(map, "2xa100-80g"), ["cuda0", "cuda1", "cuda0", "cuda1", "cuda0"]);
}

#[test]
fn a_split_of_the_benchmark_is_read() {
    let workload = r#"{"maxFPGAs":2,"maxCPUs":1,"maxSizePerFPGA":100,"nodes":[
        {"id":1,"supportedOnFpga":1,"cpuLatency":9,"fpgaLatency":1,"size":10},
        {"id":2,"supportedOnFpga":1,"cpuLatency":9,"fpgaLatency":2,"size":10},
        {"id":3,"supportedOnFpga":0,"cpuLatency":4,"fpgaLatency":9,"size":10}],
        "edges":[{"sourceId":1,"destId":2,"cost":3},{"sourceId":2,"destId":3,"cost":0.5}]}"#;
    let Ok(Model::CostGraph { graph, topology: Some(topology) }) =
        load(workload.as_bytes(), None, &LoadOptions::default())
    else {
        panic!("a workload");
    };
    let splits = [
        r#"{"cpus":[{"nodes":[3]}],"fpgas":[{"nodes":[1]},{"nodes":[2]}]}"#,
        r#"{"1":"acc1","2":"fpga2","3":"cpu0"}"#,
        r#"{"1":0,"2":1,"3":"cpu"}"#,
    ];
    for split in splits {
        let scored = score_graph(&graph, &topology, split).expect("a score");
        // acc2 computes 2, receives 3, sends 0.5.
        assert_eq!(scored.compiled.plan.cost.max_load_ns, Nanos(5_500_000), "{split}");
    }
    let error = score_graph(&graph, &topology, r#"{"1":0,"2":1,"3":1}"#).expect_err("acc2 cannot run 3");
    assert!(error.details()[0].contains("3 (op forward) cannot run on acc2"), "{:?}", error.details());
}

#[test]
fn pins_and_colocation_that_do_not_hold_are_all_listed() {
    let folder = Folder::new();
    let model = example("mlp.json");
    std::fs::write(folder.path("all.json"), r#"{"":0,"block1":1}"#).expect("written");
    let ran = folder.run(&[
        &model,
        "--devices",
        "2xa100-80g",
        "--score",
        "all.json",
        "--pin",
        "head=cuda1",
        "--pin",
        "block1/norm=cuda0",
        "--colocate",
        "block*/up_proj",
    ]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    for part in [
        "head is pinned to cuda1 and placed on cuda0",
        "block1/norm is pinned to cuda0 and placed on cuda1",
        "is colocated with",
    ] {
        assert!(
            ran.stderr.contains(part) && ran.stdout.contains(part),
            "{part} is missing in {}",
            ran.stderr
        );
    }
    assert!(ran.stdout.contains("latency"));
}

#[test]
fn what_does_not_fit_is_shown_with_its_costs_and_no_plan_is_written() {
    let folder = Folder::new();
    let model = example("mlp.json");
    std::fs::write(folder.path("all.json"), r#"{"":0}"#).expect("written");
    let args = [model.as_str(), "--devices", "2xa100-80g:memory=4MB", "--score", "all.json"];
    let shown = folder.run(&[&args[..], &["--emit", "summary-json"]].concat());
    assert_eq!(shown.code, 3, "{}", shown.stderr);
    let summary: serde_json::Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(summary["transfer_bytes"], 0);
    assert!(summary["devices"][0]["arena"].as_u64() > Some(4_000_000));
    assert_eq!(summary["violations"].as_array().map(Vec::len), Some(1));
    folder.fails(3, &[&args[..], &["-o", "plan.json"]].concat());
    assert!(!folder.path("plan.json").exists());
}

#[test]
fn faults_of_foreign_files() {
    let graph = |text: &str| match score_example("mlp.json", "cpu+2xa100-80g", text) {
        Ok(_) => panic!("{text} is no placement"),
        Err(error) => {
            let details: String = error.details().iter().map(|line| format!("  {line}\n")).collect();
            format!("{text}\n{error}\n{details}\n")
        }
    };
    let sliced =
        score_example("mlp.json", "2xa100-80g[2x40GB]", r#"{"":1}"#).expect_err("a slice has no number");
    let texts = [
        "",
        "[]",
        "{}",
        "{\"a\":",
        r#"{"head":null,"embed":-1,"block0":0.5,"block1":[1],"block2":{"x":1},"probabilities":true}"#,
        r#"{"head":0,"head":1}"#,
        r#"{"":0,"nowhere":1,"embed/kernel":1}"#,
        r#"{"":0,"head":"cuda7","block0":9,"block1":"disk","block2":""}"#,
        r#"{"block0":0}"#,
        r#"{"version":1,"placement":{}}"#,
    ];
    let mut text: String = texts.into_iter().map(graph).collect();
    text += &format!("sliced\n{sliced}\n  {}\n", sliced.details().join("\n  "));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => path, prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!("score_faults", text);
    });
}

/// Damage by chance gives an error or a score, never a panic.
#[test]
fn damaged_files_are_errors() {
    let mut rng = Rng::new(14);
    let graph = cost_graph(&mut rng, 30);
    let topology = devices(3, 10_000_000);
    let placed = placement(&mut rng, &graph, &topology);
    let plan = partition::unstable::compile::plan(&graph, &topology, &place::Options::default())
        .expect("a plan")
        .to_json();
    let seeds = [
        names(&graph, &topology, &placed),
        plan,
        r#"{"cpus":[{"nodes":[0,1]}],"fpgas":[{"nodes":[2]},{}]}"#.to_owned(),
        r#"{"device_map":{"":0,"n1":"cpu","n2":"cuda:1","n3":"disk"}}"#.to_owned(),
    ];
    let spice: &[&[u8]] = &[
        b"\"",
        b"{",
        b"}",
        b"[",
        b",",
        b":",
        b"null",
        b"1e99",
        b"18446744073709551616",
        b"\\u0000",
        b"\xff",
        b"n1",
        b"-",
    ];
    let mut scores = 0;
    for case in 0..3000 {
        let mut bytes = seeds[case % seeds.len()].clone().into_bytes();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64 + 1) as usize;
            match rng.below(3) {
                0 => bytes.truncate(at),
                1 => drop(bytes.splice(at..(at + rng.below(9) as usize).min(bytes.len()), [])),
                _ => {
                    drop(bytes.splice(at..at, spice[rng.below(spice.len() as u64) as usize].iter().copied()))
                }
            }
            if bytes.is_empty() {
                break;
            }
        }
        let Ok(foreign) = Foreign::read(&bytes, "damaged.json") else { continue };
        let model = Model::CostGraph { graph: graph.clone(), topology: None };
        match compile::score(model, &topology, &Options::default(), &foreign) {
            Ok(scored) => {
                plan::check_costgraph(&scored.compiled.plan, &graph).expect("sound");
                scores += 1;
            }
            Err(Error::Internal(what)) => panic!("case {case}: {what}"),
            Err(_) => {}
        }
    }
    assert!(scores > 0, "no damaged file was still a placement");
}

/// A `device_map` lists modules: what is computed of positions alone, as tables of rotary embeddings and masks, is where it
/// is read, and a module that has only such tables may be listed or not.
#[test]
fn a_device_map_of_modules_needs_no_word_on_tables_of_positions() {
    let folder = Folder::new();
    let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generate/llama/config.json");
    let model = model.display().to_string();
    let modules = |rotary: &str| {
        format!(
            r#"{{"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, "model.norm": 1,
            {rotary} "lm_head": 1}}"#
        )
    };
    let costs = ["", r#""model.rotary_emb": 0,"#].map(|rotary| {
        std::fs::write(folder.path("map.json"), modules(rotary)).unwrap();
        folder.ok(&[&model, "-d", "2xl4-24g", "--score", "map.json", "-o", "plan.json"]);
        Plan::load(folder.path("plan.json")).unwrap().cost
    });
    assert_eq!(costs[0], costs[1]);
    assert!(costs[0].step_bytes.get() > 0);
    // What reads parameters has to be somewhere.
    std::fs::write(folder.path("map.json"), modules("").replace(r#""model.norm": 1,"#, "")).unwrap();
    assert!(folder.fails(1, &[&model, "-d", "2xl4-24g", "--score", "map.json"]).contains("has no device"));
}
