//! Sound plans: inference, state, microbatches, training, pipelines, and what is rewritten to fit.

use std::sync::OnceLock;

use partition::Control;
use partition::unstable::compile::{self, Compiled, Options};
use partition::unstable::ir::Graph;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::place::{self, DeviceUse, Objective};
use partition::unstable::plan::{self, ExpectedModel, Plan};
use partition::unstable::strategy::pipeline::{self, Order};
use partition::unstable::topology::Topology;
use partition::unstable::train::{self, Loss, Recipe, training_step};

use crate::provenance::{Run, Truth};
use crate::random_graph::{Random, random_graph};

/// A sound plan, and what its network demands.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) plan: Plan,
    pub(super) expected: ExpectedModel,
    pub(super) truth: Truth,
}

impl Case {
    fn new(name: String, compiled: &Compiled) -> Self {
        let network = compiled.network.as_ref().expect("a network");
        let plan = compiled.plan.clone();
        let (expected, _) = compile::expected(network, &plan, &Options::default()).expect("lowers");
        let truth = Truth::new(network, &plan);
        Self { name, plan, expected, truth }
    }

    pub(super) fn accepts(&self, plan: &Plan) -> bool {
        plan::check_model(plan, &self.expected).is_ok()
    }

    /// Error: what is wrong with it.
    pub(super) fn interpreted(&self, plan: &Plan, seed: u64) -> Result<(), String> {
        Run::new(plan, &self.truth)?.in_many_orders(&mut Random::new(seed), 12)
    }
}

fn spread(objective: Objective) -> Options {
    let place = place::Options { objective, devices: DeviceUse::All, ..place::Options::default() };
    Options { place, ..Options::default() }
}

/// As [`compile::compile`]; none where it does not fit so.
fn compiled(graph: &Graph, devices: &str, options: &Options) -> Option<Compiled> {
    let topology = Topology::parse(devices).expect("sound");
    compile::compile(Model::Graph(graph.clone()), &topology, options).ok()
}

/// Inference of random networks, on one device and on several, with memory to spare and without.
pub(super) fn inference(seed: u64) -> Option<Case> {
    let graph = random_graph(seed, 14);
    let alone = compiled(&graph, "cpu", &Options::default()).expect("fits");
    let arena = alone.plan.devices[0].arena.get();
    let devices = match seed % 4 {
        0 => format!("cpu:memory={arena}B"),
        1 => format!("cpu[3x{arena}B]"),
        2 => format!("2xcpu:memory={}B", arena * 3 / 4),
        _ => format!("cpu[2x{arena}B]+cpu:memory={arena}B"),
    };
    let objective = Objective::ALL[seed as usize % 3];
    let found = compiled(&graph, &devices, &spread(objective))?;
    Some(Case::new(format!("inference {seed} on {devices}"), &found))
}

/// As [`inference`], and what some operations make takes the place of parameters.
fn stateful(seed: u64) -> Option<Case> {
    let mut graph = random_graph(seed, 16);
    let mut random = Random::new(seed);
    let params: Vec<_> = graph.params().iter().map(|param| param.node).collect();
    let mut updated = 0;
    for (number, node) in params.into_iter().enumerate() {
        let own = graph.node(node).first_result;
        let alike = graph.node_ids().filter(|&other| !graph.node(other).op.is_leaf());
        let alike = alike.map(|other| graph.node(other).first_result);
        let alike: Vec<_> = alike.filter(|&value| graph.ty(value) == graph.ty(own)).collect();
        if alike.is_empty() || random.one_in(4) {
            continue;
        }
        graph
            .update_param(partition::unstable::ir::ParamId(number as u32), random.pick(&alike))
            .expect("alike");
        updated += 1;
    }
    let devices = ["cpu", "cpu[2x1GB]", "2xcpu"][seed as usize % 3];
    let found = compiled(&graph, devices, &spread(Objective::ALL[seed as usize % 2 + 1]))?;
    (updated > 0).then(|| Case::new(format!("stateful {seed} on {devices}"), &found))
}

fn native(text: &str) -> Graph {
    match load(text.as_bytes(), None, &LoadOptions::default()).expect("sound") {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    }
}

/// Layers, of which the first one's result is read again at the end.
const LAYERS: &str = r#"{"partition_model": 1, "name": "layers", DIMS
  "inputs": [{"name": "x", "type": "f32[batch, 16]"}],
  "params": [{"name": "s", "type": "f32[16, WIDE]"}, {"name": "w0", "type": "f32[WIDE, 96]"},
    {"name": "w1", "type": "f32[96, 128]"}, {"name": "w2", "type": "f32[128, 128]"},
    {"name": "w3", "type": "f32[128, 96]"}, {"name": "w4", "type": "f32[96, 8]"}],
  "nodes": [{"name": "first", "op": "matmul", "inputs": ["x", "s"]}, {"name": "a", "op": "matmul", "inputs": ["first", "w0"]},
    {"name": "b", "op": "matmul", "inputs": ["a", "w1"]}, {"name": "c", "op": "matmul", "inputs": ["b", "w2"]},
    {"name": "d", "op": "matmul", "inputs": ["c", "w3"]}, {"name": "sum", "op": "add", "inputs": ["d", "a"]},
    {"name": "t", "op": "relu", "inputs": ["sum"]}, {"name": "out", "op": "matmul", "inputs": ["t", "w4"]}],
  "outputs": ["out", "t"]}"#;

fn layers(wide: u32) -> Graph {
    native(&LAYERS.replace("DIMS", "\"dims\": [\"batch\"],").replace("WIDE", &wide.to_string()))
}

/// The first plan in less and less memory that runs something again or offloads it.
fn tight(graph: &Graph, options: &Options, devices: impl Fn(u64) -> String) -> Option<Compiled> {
    let whole = compiled(graph, &devices(1 << 30), options)?;
    let usage = whole.schedule.devices.iter().max_by_key(|usage| usage.arena).expect("a device");
    let (resident, rest) = (usage.resident.get(), usage.arena.get() - usage.resident.get());
    let caps = (1..12).rev().map(|parts| resident + rest * parts / 12);
    caps.filter_map(|cap| compiled(graph, &devices(cap), options)).find(Compiled::is_rewritten)
}

/// Steps in microbatches, as they are and rewritten to fit; inference that is rewritten.
fn divided() -> Vec<Case> {
    let first = ["first", "a", "b", "c", "d", "sum", "t"].map(|node| (node.to_owned(), "cpu0.0".to_owned()));
    let pins = first.into_iter().chain([("out".to_owned(), "cpu0.1".to_owned())]).collect();
    let pipelined = |count| Options {
        batch: Some(8),
        pipeline: Some(pipeline::Options { microbatches: count, order: Order::Auto }),
        place: place::Options { pins, ..Default::default() },
        ..Options::default()
    };
    let mut cases = Vec::new();
    let options = pipelined(2);
    for (wide, room) in [(4, 1), (256, 1 << 20)] {
        let graph = layers(wide);
        let devices = |cap: u64| format!("cpu[{cap}B,{}B,{room}B]", 1 << 20);
        let whole = compiled(&graph, &devices(1 << 30), &options).expect("fits");
        cases.push(Case::new(format!("microbatches {wide}"), &whole));
        if let Some(found) = tight(&graph, &options, devices) {
            cases.push(Case::new(format!("rewritten microbatches {wide}"), &found));
        }
    }
    let options = Options { batch: Some(32), ..Options::default() };
    for (wide, host) in [(4, ""), (256, "cpu:use=host+")] {
        let devices = |cap: u64| format!("{host}cpu:memory={cap}B");
        if let Some(found) = tight(&layers(wide), &options, devices) {
            cases.push(Case::new(format!("rewritten {wide} {host}"), &found));
        }
    }
    cases
}

/// A step of training [`LAYERS`] on so many samples.
fn step(optimizer: &str, samples: u32) -> Graph {
    let text = LAYERS.replace("\"out\", \"t\"", "\"out\"").replace("WIDE", "8").replace("DIMS", "");
    let recipe = Recipe {
        loss: Loss::MeanSquared,
        updates: optimizer.parse().expect("an optimizer"),
        freeze: Vec::new(),
        scaling: None,
        outputs: true,
    };
    training_step(native(&text.replace("batch", &samples.to_string())), &recipe).expect("a step").graph
}

/// Training steps, on one device and on two.
fn training() -> Vec<Case> {
    let mut cases = Vec::new();
    for (optimizer, devices) in [("sgd", "cpu"), ("sgd:momentum=0.9", "cpu[2x1GB]"), ("adam", "2xcpu")] {
        let found = compiled(&step(optimizer, 4), devices, &spread(Objective::Latency)).expect("fits");
        cases.push(Case::new(format!("training with {optimizer} on {devices}"), &found));
    }
    cases
}

/// Steps that fit only where something of them is computed again, or waits in the host's memory.
fn rewritten_training() -> Vec<Case> {
    let graph = step("adam", 256);
    let host = |cap: u64| format!("cpu:use=host+cpu:memory={cap}B");
    let alone = |cap: u64| format!("cpu:memory={cap}B");
    let found = [
        ("beside a host", tight(&graph, &Options::default(), host)),
        ("alone", tight(&graph, &Options::default(), alone)),
    ];
    let case = |(name, found): (&str, Option<Compiled>)| {
        found.map(|found| Case::new(format!("rewritten training {name}"), &found))
    };
    found.into_iter().filter_map(case).collect()
}

/// Steps of training as pipelines of two stages, in every order, with memory to spare and with less.
fn pipelined_training() -> Vec<Case> {
    let mut cases = Vec::new();
    for order in [Order::Gpipe, Order::OneForwardOneBackward, Order::Interleaved, Order::ZeroBubble] {
        let planned = |devices: &str| {
            let mut options = train::Options::new(Loss::MeanSquared);
            options.recipe.updates = "adam".parse().expect("an optimizer");
            options.compile.batch = Some(64);
            options.pipeline = Some(pipeline::Options { microbatches: 4, order });
            let topology = Topology::parse(devices).expect("sound");
            let planned = train::dry_run(crate::pipelined::network(), &topology, &options, &Control::new());
            planned.ok().map(|planned| planned.compiled)
        };
        let whole = planned("cpu[2x1GB]").expect("fits");
        let arena = whole.schedule.devices.iter().map(|usage| usage.arena.get()).max().expect("a device");
        cases.push(Case::new(format!("pipeline {order:?}"), &whole));
        if matches!(order, Order::Gpipe | Order::Interleaved) {
            // Their memory is that of the other two in another order; each cap is a plan of seconds.
            continue;
        }
        let caps = (8..23).rev().map(|parts| format!("cpu[2x{}B]+cpu:use=host", arena * parts / 24));
        // Of one of the two, what is offloaded: less memory is needed for that than for computing again.
        let is_wanted = |found: &Compiled| match order {
            Order::ZeroBubble => !found.schedule.offload.is_empty(),
            _ => found.is_rewritten(),
        };
        if let Some(found) = caps.filter_map(|devices| planned(&devices)).find(is_wanted) {
            cases.push(Case::new(format!("rewritten pipeline {order:?}"), &found));
        }
    }
    cases
}

/// Each is planned once for all tests.
pub(super) fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(planned)
}

fn planned() -> Vec<Case> {
    let kinds: [fn() -> Vec<Case>; 6] = [
        || (0..16).filter_map(inference).collect(),
        || (0..12).filter_map(stateful).collect(),
        divided,
        training,
        rewritten_training,
        pipelined_training,
    ];
    std::thread::scope(|scope| {
        let running = kinds.map(|kind| scope.spawn(kind));
        running.into_iter().flat_map(|kind| kind.join().expect("planned")).collect()
    })
}
