//! Pipelines under caps that no order of them meets: what runs again, what is offloaded, what that costs,
//! the check, and the bits.

use std::fmt::Write;

use partition::unstable::compile::{self, Compiled};
use partition::unstable::load::Model;
use partition::unstable::place;
use partition::unstable::plan::{Action, Launch, Plan, check, check_costgraph};
use partition::unstable::strategy::pipeline::{Options, Order};
use partition::unstable::topology::Topology;
use partition::{Control, Error};

use crate::networks::Network;
use crate::pipelines::{EQUAL, Layer, devices, training, try_plan};

/// Four stages, each with a device that holds `memory`, and a host that holds `host`.
fn stages(memory: u64, host: u64) -> Topology {
    devices(&format!(
        "4xcpu:cores=1,use=compute,memory={memory}B,link=1000GB/s,latency=0ns,contention=none\
         +cpu:use=host,memory={host}B,link=1000GB/s,latency=0ns,contention=none"
    ))
}

fn again(launch: &Launch) -> bool {
    launch.again
}

/// How many launches run again, and how many tensors are offloaded.
fn counts(compiled: &Compiled) -> (usize, usize) {
    let launched = compiled.plan.steps.iter().filter(|step| match &step.action {
        Action::Launch(launch) => again(launch),
        Action::Copy(_) => false,
    });
    (launched.count(), compiled.schedule.offload.len())
}

/// A pipeline to be read: when its devices work, what was done to it and why it waits.
fn snapshot(name: &str, compiled: &Compiled) {
    let Compiled { cost_graph, topology, plan, schedule, pipeline, .. } = compiled;
    let figures = pipeline.as_ref().expect("a pipeline");
    let mut text =
        partition::unstable::report::timeline(cost_graph, topology, plan, schedule, &figures.weights);
    for device in &plan.devices {
        writeln!(text, "{}: peak {} of {}", device.name, device.peak, device.memory).unwrap();
    }
    plan.notes.iter().for_each(|note| writeln!(text, "{note}").unwrap());
    let steps = plan.to_text();
    let told = |line: &&str| line.starts_with("step") && (line.contains("frees") || line.contains("again"));
    steps.lines().filter(told).for_each(|line| writeln!(text, "{line}").unwrap());
    insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "../../snapshots", omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}

fn explained(compiled: &Compiled, graph: &partition::unstable::costgraph::CostGraph, node: &str) {
    let model = || Model::CostGraph { graph: graph.clone(), topology: None };
    let overview = compile::explain_plan(&compiled.plan, model(), &Control::new()).unwrap();
    assert_eq!(overview.latency_ns, compiled.plan.cost.latency_ns);
    assert!(!overview.notes.iter().any(|note| note.contains("figures differ")), "{:?}", overview.notes);
    let report = compile::explain_node(&compiled.plan, model(), node, &Control::new()).unwrap();
    assert_eq!(report.node, node);
    let json = Plan::from_json(compiled.plan.to_json().as_bytes(), "plan").unwrap();
    let text = Plan::from_text(&compiled.plan.to_text(), "plan").unwrap();
    assert_eq!((&json, &text), (&compiled.plan, &compiled.plan));
}

#[test]
fn four_stages_that_must_compute_again() {
    let layer = Layer { activation: 640, param: 64, ..EQUAL };
    let graph = training(&[layer; 8], 4, &[], false);
    let order = Order::OneForwardOneBackward;
    let free = try_plan(&graph, &stages(1 << 20, 1), order, 4).unwrap();
    let most = free.schedule.devices.iter().map(|usage| usage.arena.0).max().unwrap();
    // As long as another order, or other stages, fit as they are, nothing runs again.
    let caps = (1..16).map(|less| most - less * 640);
    let tight = caps.map(|cap| try_plan(&graph, &stages(cap, 1), order, 4).unwrap());
    let tight = tight.into_iter().find(Compiled::is_rewritten).expect("a cap that no order meets");
    let (again, offloaded) = counts(&tight);
    assert!(again > 0 && offloaded == 0, "{again} and {offloaded}");
    assert!(tight.schedule.cost.latency >= free.schedule.cost.latency);
    snapshot("pipeline_recompute", &tight);
    explained(&tight, &graph, "f1");
    damaged(&tight.plan, &graph);
}

/// What a layer is computed of is larger than what it makes, and is gone by the backward pass.
#[test]
fn four_stages_that_must_offload() {
    let layer = Layer { activation: 640, param: 64, wide: 1280, ..EQUAL };
    let graph = training(&[layer; 4], 4, &[], false);
    let order = Order::Gpipe;
    let free = try_plan(&graph, &stages(1 << 20, 1), order, 4).unwrap();
    let most = free.schedule.devices.iter().map(|usage| usage.arena.0).max().unwrap();
    let cap = most - 640;
    let Err(Error::Infeasible(why)) = try_plan(&graph, &stages(cap, 1), order, 4) else {
        panic!("there is no host with room")
    };
    assert!(
        why.details.iter().any(|line| line.contains("computing again and offloading")),
        "{:?}",
        why.details
    );
    let tight = try_plan(&graph, &stages(cap, 1 << 20), order, 4).unwrap();
    let (again, offloaded) = counts(&tight);
    assert!(again == 0 && offloaded > 0, "{again} and {offloaded}");
    snapshot("pipeline_offload", &tight);
    explained(&tight, &graph, "f1");
    damaged(&tight.plan, &graph);
}

/// Damage to a rewritten pipeline is found.
fn damaged(whole: &Plan, graph: &partition::unstable::costgraph::CostGraph) {
    let mut found = [0; 4];
    for i in 0..whole.steps.len() {
        let mut fails = |damage: usize, plan: &Plan, words: &str| {
            let error = check_costgraph(plan, graph).expect_err(words);
            let told = error.details().iter().any(|line| line.contains(words));
            assert!(told, "step {i}: expected {words:?}, found {:#?}", error.details());
            found[damage] += 1;
        };
        let mut plan = whole.clone();
        match &mut plan.steps[i].action {
            // The second run is said to be the first.
            Action::Launch(launch) if launch.again => {
                launch.again = false;
                fails(0, &plan, "a second time");
                // It is of a microbatch that has not come so far.
                let mut plan = whole.clone();
                let Action::Launch(launch) = &mut plan.steps[i].action else { continue };
                launch.microbatch = Some(7);
                fails(1, &plan, "there are 4");
            }
            // Nobody reads what comes back; what does comes before.
            Action::Copy(copy) if !copy.readers.is_empty() => {
                let reader = copy.readers[0].clone();
                copy.readers.clear();
                fails(2, &plan, "no reader waits for it");
                let mut plan = whole.clone();
                let Action::Copy(copy) = &whole.steps[i].action else { continue };
                let late = (i..whole.steps.len()).find(|&at| match &whole.steps[at].action {
                    Action::Launch(launch) => {
                        launch.nodes[0] == reader && launch.microbatch == copy.microbatch
                    }
                    Action::Copy(_) => false,
                });
                let late = plan.steps.remove(late.expect("it is launched later"));
                plan.steps.insert(i, late);
                let error = check_costgraph(&plan, graph).expect_err("too early");
                assert!(!error.details().is_empty());
                found[3] += 1;
            }
            Action::Launch(_) | Action::Copy(_) => {}
        }
    }
    assert!(found[0] + found[2] > 0, "{found:?}");
}

/// A late reader in the first stage; the second turns what comes out.
const LATE_READER: &str = r#"{
  "partition_model": 1, "name": "late_reader", "dims": ["batch"],
  "inputs": [{"name": "x", "type": "f32[batch, 16]"}],
  "params": [
    {"name": "s0", "type": "f32[16, 4]", "init": "glorot_uniform"},
    {"name": "w0", "type": "f32[4, 512]", "init": "glorot_uniform"},
    {"name": "w1", "type": "f32[512, 1024]", "init": "glorot_uniform"},
    {"name": "w2", "type": "f32[1024, 1024]", "init": "glorot_uniform"},
    {"name": "w3", "type": "f32[1024, 512]", "init": "glorot_uniform"},
    {"name": "w4", "type": "f32[512, 32]", "init": "glorot_uniform"}
  ],
  "nodes": [
    {"name": "s", "op": "matmul", "inputs": ["x", "s0"]},
    {"name": "a", "op": "matmul", "inputs": ["s", "w0"]},
    {"name": "b", "op": "matmul", "inputs": ["a", "w1"]},
    {"name": "c", "op": "matmul", "inputs": ["b", "w2"]},
    {"name": "d", "op": "matmul", "inputs": ["c", "w3"]},
    {"name": "sum", "op": "add", "inputs": ["d", "a"]},
    {"name": "out", "op": "matmul", "inputs": ["sum", "w4"]}
  ],
  "outputs": ["out"]
}"#;

/// The network; eight samples.
fn network(folder: &std::path::Path) -> Network {
    let path = folder.join("late_reader.json");
    std::fs::write(&path, LATE_READER).unwrap();
    let mut network = Network::open(&path).unwrap();
    network.dims.insert("batch".into(), 8);
    let values: Vec<f32> = (0..8 * 16).map(|at| (at % 23) as f32 / 16.0 - 0.5).collect();
    for (_, input) in &mut network.inputs {
        *input = partition::unstable::ir::Tensor::from_f32(vec![8, 16], &values).unwrap();
    }
    network
}

fn in_microbatches(network: &Network, spec: &str) -> partition::Result<Compiled> {
    let first = ["s", "a", "b", "c", "d", "sum"].map(|node| (node.to_owned(), "cpu0.0".to_owned()));
    let pins = first.into_iter().chain([("out".to_owned(), "cpu0.1".to_owned())]).collect();
    let options = compile::Options {
        bind: network.dims.clone(),
        pipeline: Some(Options { microbatches: 4, order: Order::Auto }),
        place: place::Options { pins, ..Default::default() },
        ..compile::Options::default()
    };
    let model = Model::Graph(network.graph.clone());
    compile::compile_with(model, &Topology::parse(spec).unwrap(), &options, &Control::new())
}

/// Kernels that run again for a microbatch leave the bits as they are.
#[test]
fn microbatches_that_run_again_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let network = network(folder.path());
    let whole = in_microbatches(&network, "cpu[64GB,64GB,1GB]").unwrap();
    let usage = &whole.schedule.devices[0];
    let (resident, rest) = (usage.resident.0, usage.arena.0 - usage.resident.0);
    let caps = (1..16).rev().map(|parts| resident + rest / 16 * parts);
    let under = |cap| in_microbatches(&network, &format!("cpu[{cap}B,{}B,1B]", 1 << 20)).ok();
    let tight = caps.map_while(under).find(Compiled::is_rewritten).expect("a cap that no order meets");
    let (again, offloaded) = counts(&tight);
    assert!(again > 0 && offloaded == 0, "{again} and {offloaded}");
    check(&tight.plan).unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, tight.plan.to_json()).unwrap();
    crate::shared::verify_plan(&path);
    assert_eq!(network.run(&tight).unwrap(), network.run(&whole).unwrap());
    other_microbatch(&tight.plan);
    let model = Model::Graph(network.graph.clone());
    let overview = compile::explain_plan(&tight.plan, model, &Control::new()).unwrap();
    assert!(overview.notes.iter().any(|note| note.contains("microbatches")), "{:?}", overview.notes);
    let report =
        compile::explain_node(&tight.plan, Model::Graph(network.graph.clone()), "a", &Control::new());
    assert_eq!(report.unwrap().device, "cpu0.0");
}

/// So do tensors of a microbatch that a host keeps for a while.
#[test]
fn microbatches_that_a_host_keeps_give_the_same_bits() {
    use crate::pipelined::{Way, batch, dense, run};
    let data = |seed| batch(seed, 64);
    let of = |devices: &str| dense(devices, (64, 4), Way::Pipeline(Order::OneForwardOneBackward));
    let expected = run(of("cpu[2x1GB]"), &data);
    let tight = of("cpu[2x57000B]+cpu:use=host");
    let plan = tight.plan();
    check(plan).unwrap();
    assert!(plan.to_text().contains("offloaded to make room"), "{:?}", plan.notes);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, plan.to_json()).unwrap();
    crate::shared::verify_plan(&path);
    assert_eq!(run(tight, &data), expected);
}

/// A second run that is said to be of another microbatch touches what is not its own.
fn other_microbatch(whole: &Plan) {
    for i in 0..whole.steps.len() {
        let mut plan = whole.clone();
        let Action::Launch(launch) = &mut plan.steps[i].action else { continue };
        if !launch.again {
            continue;
        }
        launch.microbatch = launch.microbatch.map(|number| (number + 1) % 4);
        let error = check(&plan).unwrap_err();
        assert!(error.details().iter().any(|line| line.contains("of microbatch")), "{:#?}", error.details());
    }
}

/// A training step over two stages, in less and less memory: the bits stay.
#[test]
fn training_steps_that_run_layers_again_give_the_same_bits() {
    use crate::pipelined::{Way, batch, dense, run};
    let data = |seed| batch(seed, 256);
    let way = || Way::Pipeline(Order::Gpipe);
    let whole = dense("2xcpu", (256, 4), way());
    let most = whole.plan().devices.iter().map(|device| device.arena.0).max().unwrap();
    let expected = run(whole, &data);
    let tight = dense(&format!("2xcpu:memory={}B", most / 8 * 7), (256, 4), way());
    let plan = tight.plan();
    check(plan).unwrap();
    let launched = plan.steps.iter().filter(|step| match &step.action {
        Action::Launch(launch) => again(launch),
        Action::Copy(_) => false,
    });
    assert!(launched.count() > 0, "{:?}", plan.notes);
    assert!(plan.notes.iter().any(|note| note.contains("run again")), "{:?}", plan.notes);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, plan.to_json()).unwrap();
    crate::shared::verify_plan(&path);
    assert_eq!(run(tight, &data), expected);
}

#[test]
fn training_steps_compute_again_and_offload_with_the_same_bits() {
    use crate::pipelined::{Way, batch, dense, run};
    let data = |seed| batch(seed, 256);
    let of = |devices: &str| dense(devices, (256, 1), Way::OneAfterTheOther);
    let whole = of("cpu");
    let most = whole.plan().devices.iter().map(|device| device.arena.0).max().unwrap();
    let expected = run(whole, &data);
    // Three quarters of it take kernels that run again, nine sixteenths a host too.
    for (host, sixteenths, words) in
        [("", 12, &["run again"][..]), ("cpu:use=host+", 9, &["run again", "are offloaded"])]
    {
        let tight = of(&format!("{host}cpu:memory={}B", most / 16 * sixteenths));
        let plan = tight.plan();
        check(plan).unwrap();
        let told = |word: &&str| plan.notes.iter().any(|note| note.contains(word));
        assert!(words.iter().all(told), "{:?}", plan.notes);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        std::fs::write(&path, plan.to_json()).unwrap();
        crate::shared::verify_plan(&path);
        assert!(run(tight, &data) == expected, "{host}{sixteenths}/16");
    }
}
