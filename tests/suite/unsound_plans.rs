//! Plans of every kind, damaged in every way that we could think of, alone and together, and with whatever
//! would give the damage away put right: what the checker accepts, the interpreter of `provenance` finds
//! nothing wrong with.

use partition::compile::{self, Compiled, Options};
use partition::ir::Graph;
use partition::load::{LoadOptions, Model, load};
use partition::place::{self, DeviceUse, Objective};
use partition::plan::{self, Action, Buffer, BufferKind, Copy, ExpectedModel, Lane, Launch, Plan, Step};
use partition::strategy::pipeline::{self, Order};
use partition::topology::Topology;
use partition::train::{Loss, Recipe, training_step};
use partition::units::Bytes;

use crate::provenance::{Run, Truth};
use crate::random_graph::{Random, random_graph};

/// A sound plan, and what its network demands.
struct Case {
    name: String,
    plan: Plan,
    expected: ExpectedModel,
    truth: Truth,
}

impl Case {
    fn new(name: String, compiled: &Compiled) -> Self {
        let network = compiled.network.as_ref().expect("a network");
        let plan = compiled.plan.clone();
        let (expected, _) = compile::expected(network, &plan, &Options::default()).expect("lowers");
        let truth = Truth::new(network, &plan);
        Self { name, plan, expected, truth }
    }

    fn accepts(&self, plan: &Plan) -> bool {
        plan::check_model(plan, &self.expected).is_ok()
    }

    /// Error: what is wrong with it.
    fn interpreted(&self, plan: &Plan, seed: u64) -> Result<(), String> {
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
fn inference(seed: u64) -> Option<Case> {
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
        graph.update_param(partition::ir::ParamId(number as u32), random.pick(&alike)).expect("alike");
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
    let caps = (1..24).rev().map(|parts| resident + rest * parts / 24);
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

/// Training steps, on one device and on two.
fn training() -> Vec<Case> {
    let recipe = |optimizer: &str| Recipe {
        loss: Loss::MeanSquared,
        updates: optimizer.parse().expect("an optimizer"),
        freeze: Vec::new(),
        scaling: None,
        outputs: true,
    };
    let mut cases = Vec::new();
    for (optimizer, devices) in [("sgd", "cpu"), ("sgd:momentum=0.9", "cpu[2x1GB]"), ("adam", "2xcpu")] {
        let graph = native(
            &LAYERS
                .replace("\"out\", \"t\"", "\"out\"")
                .replace("WIDE", "8")
                .replace("batch", "4")
                .replace("DIMS", ""),
        );
        let step = training_step(graph, &recipe(optimizer)).expect("a step");
        let found = compiled(&step.graph, devices, &spread(Objective::Latency)).expect("fits");
        cases.push(Case::new(format!("training with {optimizer} on {devices}"), &found));
    }
    cases
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = (0..16).filter_map(inference).collect();
    cases.extend((0..12).filter_map(stateful));
    cases.extend(divided());
    cases.extend(training());
    cases
}

#[test]
fn sound_plans_of_every_kind_are_accepted() {
    let cases = cases();
    let has = |wanted: &dyn Fn(&Plan) -> bool| cases.iter().filter(|case| wanted(&case.plan)).count();
    for case in &cases {
        let told = |error: partition::Error| panic!("{}: {error}: {:#?}", case.name, error.details());
        plan::check_model(&case.plan, &case.expected).unwrap_or_else(told);
        case.interpreted(&case.plan, 1).unwrap_or_else(|words| panic!("{}: {words}", case.name));
    }
    let any_launch = |plan: &Plan, wanted: fn(&Launch) -> bool| {
        plan.steps.iter().any(|step| matches!(&step.action, Action::Launch(launch) if wanted(launch)))
    };
    let in_state = |plan: &Plan| {
        let state = |id: &String| plan.buffers[buffer_of(plan, id)].kind == BufferKind::State;
        plan.steps.iter().any(|step| match &step.action {
            Action::Launch(launch) => launch.writes.iter().any(state),
            Action::Copy(_) => false,
        })
    };
    let copies = |plan: &Plan| plan.steps.iter().any(|step| matches!(step.action, Action::Copy(_)));
    let counts = [
        has(&copies),
        has(&|plan| any_launch(plan, |launch| launch.again)),
        has(&|plan| any_launch(plan, |launch| launch.microbatch.is_some())),
        has(&|plan| plan.buffers.iter().any(|buffer| buffer.kind == BufferKind::State)),
        has(&in_state),
    ];
    assert!(counts.iter().all(|&count| count > 0) && cases.len() > 15, "{counts:?} of {}", cases.len());
}

fn buffer_of(plan: &Plan, id: &str) -> usize {
    plan.buffers.iter().position(|buffer| buffer.id == id).expect("a buffer")
}

/// Damages plans at random and compares; the numbers of damaged plans, of those accepted, and of those
/// that are refused and that the interpreter finds wrong, of a few.
fn compare(cases: &[Case], seeds: std::ops::Range<u64>) -> (usize, usize, usize) {
    let (mut damaged, mut accepted, mut proven) = (0, 0, 0);
    let mut missed = Vec::new();
    for seed in seeds {
        let mut random = Random::new(seed);
        let case = &cases[random.below(cases.len())];
        let mut plan = case.plan.clone();
        let mut done = Vec::new();
        for _ in 0..1 + random.below(3) {
            done.push(damage(&mut plan, &mut random));
        }
        if !random.one_in(8) {
            settle(&mut plan);
        }
        if plan == case.plan {
            continue;
        }
        damaged += 1;
        if case.accepts(&plan) {
            accepted += 1;
            if let Err(words) = case.interpreted(&plan, seed) {
                missed.push(format!("{seed}: {done:?} of {}: {words}", case.name));
            }
        } else if seed % 16 == 0 {
            proven += usize::from(case.interpreted(&plan, seed).is_err());
        }
    }
    assert!(
        missed.is_empty(),
        "{} are accepted and wrong:\n{}",
        missed.len(),
        missed[..missed.len().min(40)].join("\n")
    );
    (damaged, accepted, proven)
}

#[test]
fn no_plan_that_is_proven_wrong_is_accepted() {
    let (damaged, accepted, proven) = compare(&cases(), 0..6000);
    println!("{damaged} damaged, {accepted} accepted; {proven} of a few refused ones proven wrong");
    assert!(damaged > 5000 && accepted > 100 && proven > 200, "{damaged}, {accepted}, {proven}");
}

#[test]
#[ignore = "ten minutes; PARTITION_SEED=N begins elsewhere: cargo test -- --ignored no_plan_of_a_million"]
fn no_plan_of_a_million_that_is_proven_wrong_is_accepted() {
    let start = std::env::var("PARTITION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1 << 32);
    println!("{:?}", compare(&cases(), start..start + 1_000_000));
}

/// Puts right what would give a damage away: sums, peaks, lists of what is launched.
fn settle(plan: &mut Plan) {
    let ids: std::collections::BTreeSet<u64> = plan.steps.iter().map(|step| step.id).collect();
    let mut before = std::collections::BTreeSet::new();
    let mut launched = std::collections::BTreeSet::new();
    let mut moved = Bytes::ZERO;
    let mut of_kernel: std::collections::BTreeMap<String, Vec<String>> = Default::default();
    for step in &mut plan.steps {
        step.after.retain(|other| ids.contains(other) && before.contains(other));
        before.insert(step.id);
        match &step.action {
            Action::Copy(copy) => moved += copy.bytes,
            Action::Launch(launch) => {
                launched.extend(launch.nodes.iter().cloned());
                let nodes = of_kernel.entry(launch.kernel.clone().unwrap_or_default()).or_default();
                nodes.extend(launch.nodes.iter().cloned());
                for node in &launch.nodes {
                    if let Some(placed) = plan.placement.iter_mut().find(|(name, _)| name == node) {
                        placed.1.clone_from(&step.device);
                    }
                }
            }
        }
    }
    let rest = plan.placement.iter().map(|(node, _)| node).filter(|node| !launched.contains(*node));
    plan.unlaunched = rest.cloned().collect();
    for kernel in &mut plan.kernels {
        let own = of_kernel.remove(&kernel.id).unwrap_or_default();
        kernel.nodes = own;
        kernel.nodes.sort();
        kernel.nodes.dedup();
    }
    let mut held: std::collections::BTreeMap<&str, std::collections::BTreeSet<&str>> = Default::default();
    let mut loaded = Bytes::ZERO;
    for buffer in plan.buffers.iter().filter(|b| matches!(b.kind, BufferKind::Param | BufferKind::Const)) {
        let devices = held.entry(&buffer.value).or_default();
        if devices.insert(&buffer.device) && devices.len() > 1 {
            loaded += buffer.bytes;
        }
    }
    (plan.cost.step_bytes, plan.cost.load_bytes) = (moved, loaded);
    plan.cost.transfer_bytes = moved + loaded;
    plan.bound = None;
    for device in &mut plan.devices {
        device.peak = device.arena;
        device.arena_bound = None;
    }
}

fn a_buffer(plan: &Plan, random: &mut Random) -> usize {
    random.below(plan.buffers.len())
}

fn a_step(plan: &Plan, random: &mut Random) -> usize {
    random.below(plan.steps.len())
}

fn some_of(random: &mut Random, from: impl Iterator<Item = usize>) -> Option<usize> {
    let all: Vec<usize> = from.collect();
    (!all.is_empty()).then(|| random.pick(&all))
}

fn a_launch(plan: &Plan, random: &mut Random) -> Option<usize> {
    some_of(random, (0..plan.steps.len()).filter(|&i| matches!(plan.steps[i].action, Action::Launch(_))))
}

fn a_copy(plan: &Plan, random: &mut Random) -> Option<usize> {
    some_of(random, (0..plan.steps.len()).filter(|&i| matches!(plan.steps[i].action, Action::Copy(_))))
}

fn launch(plan: &mut Plan, step: usize) -> &mut Launch {
    match &mut plan.steps[step].action {
        Action::Launch(launch) => launch,
        Action::Copy(_) => panic!("a copy"),
    }
}

fn copy(plan: &mut Plan, step: usize) -> &mut Copy {
    match &mut plan.steps[step].action {
        Action::Copy(copy) => copy,
        Action::Launch(_) => panic!("a launch"),
    }
}

fn touches(step: &Step, id: &str) -> bool {
    match &step.action {
        Action::Launch(launch) => launch.reads.iter().chain(&launch.writes).any(|other| other == id),
        Action::Copy(copy) => copy.from == id || copy.to == id,
    }
}

fn writes(step: &Step, id: &str) -> bool {
    match &step.action {
        Action::Launch(launch) => launch.writes.iter().any(|other| other == id),
        Action::Copy(copy) => copy.to == id,
    }
}

/// A buffer that may stand for another one: of its size, with luck of its value and device.
fn alike(plan: &Plan, id: &str, random: &mut Random) -> String {
    let own = &plan.buffers[buffer_of(plan, id)];
    let level = random.below(3);
    let fits = |other: &Buffer| {
        other.id != own.id
            && match level {
                0 => other.value == own.value,
                1 => other.bytes == own.bytes && other.device == own.device,
                _ => true,
            }
    };
    let found = some_of(random, (0..plan.buffers.len()).filter(|&i| fits(&plan.buffers[i])));
    found.map_or_else(|| id.to_owned(), |found| plan.buffers[found].id.clone())
}

/// The writers of a buffer wait for all that stands before them.
fn in_order(plan: &mut Plan, id: &str) {
    for at in 0..plan.steps.len() {
        if writes(&plan.steps[at], id) {
            plan.steps[at].after = plan.steps[..at].iter().map(|step| step.id).collect();
        }
    }
}

/// A buffer on the bytes of another one; says which, where there are two.
fn overlay(plan: &mut Plan, random: &mut Random) -> Option<(usize, usize)> {
    let under = a_buffer(plan, random);
    let at = plan.buffers[under].clone();
    let fits = |other: &Buffer| other.id != at.id && other.device == at.device && !other.kind.is_resident();
    let over = some_of(random, (0..plan.buffers.len()).filter(|&i| fits(&plan.buffers[i])))?;
    plan.buffers[over].offset = at.offset;
    let end = at.offset + plan.buffers[over].bytes;
    let device = plan.devices.iter_mut().find(|device| device.name == at.device)?;
    device.arena = device.arena.max(end);
    Some((under, over))
}

/// Changes a plan in one way, or does nothing; says which way.
fn damage(plan: &mut Plan, random: &mut Random) -> &'static str {
    let way = random.below(WAYS.len());
    let (name, change) = WAYS[way];
    let _ = change(plan, random);
    name
}

type Way = fn(&mut Plan, &mut Random) -> Option<()>;

const WAYS: &[(&str, Way)] = &[
    ("kind", |plan, random| {
        let at = a_buffer(plan, random);
        plan.buffers[at].kind = random.pick(&BufferKind::ALL);
        Some(())
    }),
    ("output to temp, its bytes reused", |plan, random| {
        let is_output = |i: &usize| plan.buffers[*i].kind == BufferKind::Output;
        let at = some_of(random, (0..plan.buffers.len()).filter(is_output))?;
        plan.buffers[at].kind = BufferKind::Temp;
        let (id, device, offset) =
            (plan.buffers[at].id.clone(), plan.buffers[at].device.clone(), plan.buffers[at].offset);
        let made = plan.steps.iter().position(|step| writes(step, &id))?;
        let later: Vec<usize> = (0..plan.buffers.len())
            .filter(|&i| plan.buffers[i].device == device && !plan.buffers[i].kind.is_resident())
            .filter(|&i| plan.steps[..=made].iter().all(|step| !touches(step, &plan.buffers[i].id)))
            .collect();
        let over = some_of(random, later.into_iter())?;
        plan.buffers[over].offset = offset;
        let over = plan.buffers[over].id.clone();
        in_order(plan, &over);
        Some(())
    }),
    ("alias", |plan, random| {
        let (at, of) = (a_buffer(plan, random), a_buffer(plan, random));
        plan.buffers[at].alias = Some(plan.buffers[of].id.clone());
        Some(())
    }),
    ("overlaid", |plan, random| overlay(plan, random).map(drop)),
    ("overlaid, with an alias", |plan, random| {
        let (under, over) = overlay(plan, random)?;
        plan.buffers[over].alias = Some(plan.buffers[under].id.clone());
        Some(())
    }),
    ("overlaid, the writer waiting", |plan, random| {
        let (_, over) = overlay(plan, random)?;
        let id = plan.buffers[over].id.clone();
        in_order(plan, &id);
        Some(())
    }),
    ("overlaid, with an alias, the writer waiting", |plan, random| {
        let (under, over) = overlay(plan, random)?;
        plan.buffers[over].alias = Some(plan.buffers[under].id.clone());
        let id = plan.buffers[over].id.clone();
        in_order(plan, &id);
        Some(())
    }),
    ("in place with an alias", |plan, random| {
        let at = a_launch(plan, random)?;
        let launch = launch(plan, at).clone();
        let read = &launch.reads[some_of(random, 0..launch.reads.len())?];
        let write = launch.writes.first()?;
        let (read, write) = (buffer_of(plan, read), buffer_of(plan, write));
        plan.buffers[write].offset = plan.buffers[read].offset;
        if random.one_in(2) {
            plan.buffers[write].alias = Some(plan.buffers[read].id.clone());
        }
        let id = plan.buffers[write].id.clone();
        in_order(plan, &id);
        Some(())
    }),
    ("offset", |plan, random| {
        let at = a_buffer(plan, random);
        let step = 64 * (1 + random.below(4) as u64);
        let offset = plan.buffers[at].offset;
        let moved = if random.one_in(2) { offset + Bytes(step) } else { offset.saturating_sub(Bytes(step)) };
        plan.buffers[at].offset = moved;
        Some(())
    }),
    ("size", |plan, random| {
        let at = a_buffer(plan, random);
        let bytes = plan.buffers[at].bytes.get();
        let bytes = random.pick(&[bytes / 2, bytes * 2, bytes + 4, bytes.saturating_sub(4), 0]);
        plan.buffers[at].bytes = Bytes(bytes);
        plan.buffers[at].ty = format!("u8[{bytes}]");
        Some(())
    }),
    ("type", |plan, random| {
        let (at, of) = (a_buffer(plan, random), a_buffer(plan, random));
        plan.buffers[at].ty = plan.buffers[of].ty.clone();
        if random.one_in(2) {
            plan.buffers[at].bytes = plan.buffers[of].bytes;
        }
        Some(())
    }),
    ("value", |plan, random| {
        let (at, of) = (a_buffer(plan, random), a_buffer(plan, random));
        plan.buffers[at].value = plan.buffers[of].value.clone();
        Some(())
    }),
    ("values swapped", |plan, random| {
        let (at, of) = (a_buffer(plan, random), a_buffer(plan, random));
        let value = plan.buffers[at].value.clone();
        plan.buffers[at].value = std::mem::replace(&mut plan.buffers[of].value, value);
        Some(())
    }),
    ("microbatch of a buffer", |plan, random| {
        let at = a_buffer(plan, random);
        plan.buffers[at].microbatch = random.pick(&[None, Some(0), Some(1)]);
        Some(())
    }),
    ("axis of a buffer", |plan, random| {
        let at = a_buffer(plan, random);
        plan.buffers[at].axis = random.pick(&[None, Some(0), Some(1)]);
        Some(())
    }),
    ("axis of a value", |plan, random| {
        let at = a_buffer(plan, random);
        let (value, axis) = (plan.buffers[at].value.clone(), random.pick(&[None, Some(0), Some(1)]));
        plan.buffers.iter_mut().filter(|buffer| buffer.value == value).for_each(|buffer| buffer.axis = axis);
        Some(())
    }),
    ("device of a buffer", |plan, random| {
        let at = a_buffer(plan, random);
        let device = random.below(plan.devices.len());
        plan.buffers[at].device = plan.devices[device].name.clone();
        Some(())
    }),
    ("a buffer more", |plan, random| {
        let at = a_buffer(plan, random);
        let mut buffer = plan.buffers[at].clone();
        buffer.id = format!("more{}", plan.buffers.len());
        if random.one_in(2) {
            let device = plan.devices.iter_mut().find(|device| device.name == buffer.device)?;
            buffer.offset = Bytes(device.arena.get().next_multiple_of(64));
            device.arena = buffer.offset + buffer.bytes;
        }
        if random.one_in(3) {
            plan.buffers.insert(0, buffer);
        } else {
            plan.buffers.push(buffer);
        }
        Some(())
    }),
    ("a buffer less", |plan, random| {
        let at = a_buffer(plan, random);
        let id = plan.buffers.remove(at).id;
        for step in &mut plan.steps {
            if let Action::Launch(launch) = &mut step.action {
                launch.reads.retain(|other| *other != id);
                launch.writes.retain(|other| *other != id);
            }
        }
        plan.steps.retain(|step| !touches(step, &id));
        Some(())
    }),
    ("a wait less", |plan, random| {
        let at = some_of(random, (0..plan.steps.len()).filter(|&i| !plan.steps[i].after.is_empty()))?;
        let wait = random.below(plan.steps[at].after.len());
        plan.steps[at].after.remove(wait);
        Some(())
    }),
    ("no waits", |plan, random| {
        let at = a_step(plan, random);
        plan.steps[at].after.clear();
        Some(())
    }),
    ("another wait", |plan, random| {
        let at =
            some_of(random, (0..plan.steps.len()).filter(|&i| i > 0 && !plan.steps[i].after.is_empty()))?;
        let (wait, other) = (random.below(plan.steps[at].after.len()), random.below(at));
        plan.steps[at].after[wait] = plan.steps[other].id;
        Some(())
    }),
    ("a step earlier", |plan, random| {
        let at = a_step(plan, random);
        let to = random.below(at + 1);
        let step = plan.steps.remove(at);
        plan.steps.insert(to, step);
        Some(())
    }),
    ("a step later, with its waits", |plan, random| {
        let at = a_step(plan, random);
        let to = at + random.below(plan.steps.len() - at);
        let step = plan.steps.remove(at);
        plan.steps.insert(to, step);
        Some(())
    }),
    ("neighbours swapped", |plan, random| {
        let at = random.below(plan.steps.len().max(2) - 1);
        (at + 1 < plan.steps.len()).then(|| plan.steps.swap(at, at + 1))
    }),
    ("a step less", |plan, random| {
        let at = a_step(plan, random);
        plan.steps.remove(at);
        Some(())
    }),
    ("a step twice", |plan, random| {
        let at = a_step(plan, random);
        let mut step = plan.steps[at].clone();
        step.id = 1_000_000 + plan.steps.len() as u64;
        step.after.push(plan.steps[at].id);
        if let Action::Launch(launch) = &mut step.action {
            launch.again = random.one_in(2);
        }
        let to = at + 1 + random.below(plan.steps.len() - at);
        plan.steps.insert(to, step);
        Some(())
    }),
    ("a launch again, into buffers of its own", |plan, random| {
        let at = a_launch(plan, random)?;
        let mut step = plan.steps[at].clone();
        step.id = 1_000_000 + plan.steps.len() as u64;
        step.after.push(plan.steps[at].id);
        let again = random.one_in(2);
        let Action::Launch(launch) = &mut step.action else { return None };
        launch.again = again;
        for id in &mut launch.writes {
            let mut buffer = plan.buffers[buffer_of(plan, id)].clone();
            *id = format!("again{}", plan.buffers.len());
            buffer.id.clone_from(id);
            let device = plan.devices.iter_mut().find(|device| device.name == buffer.device)?;
            buffer.offset = Bytes(device.arena.get().next_multiple_of(64));
            device.arena = buffer.offset + buffer.bytes;
            plan.buffers.push(buffer);
        }
        let to = at + 1 + random.below(plan.steps.len() - at);
        plan.steps.insert(to, step);
        Some(())
    }),
    ("a step elsewhere", |plan, random| {
        let (at, device) = (a_step(plan, random), random.below(plan.devices.len()));
        plan.steps[at].device = plan.devices[device].name.clone();
        Some(())
    }),
    ("lane", |plan, random| {
        let at = a_step(plan, random);
        plan.steps[at].lane = if plan.steps[at].lane == Lane::Copy { Lane::Compute } else { Lane::Copy };
        Some(())
    }),
    ("copy's source", |plan, random| {
        let at = a_copy(plan, random)?;
        let id = copy(plan, at).from.clone();
        let other = alike(plan, &id, random);
        copy(plan, at).from = other;
        Some(())
    }),
    ("copy's target", |plan, random| {
        let at = a_copy(plan, random)?;
        let id = copy(plan, at).to.clone();
        let other = alike(plan, &id, random);
        copy(plan, at).to = other;
        Some(())
    }),
    ("copy turned round", |plan, random| {
        let at = a_copy(plan, random)?;
        let copy = copy(plan, at);
        std::mem::swap(&mut copy.from, &mut copy.to);
        Some(())
    }),
    ("copy's bytes", |plan, random| {
        let at = a_copy(plan, random)?;
        let copy = copy(plan, at);
        copy.bytes = Bytes(random.pick(&[copy.bytes.get() / 2, copy.bytes.get() + 4, 0]));
        Some(())
    }),
    ("copy's part", |plan, random| {
        let at = a_copy(plan, random)?;
        let copy = copy(plan, at);
        let bytes = copy.bytes.get();
        let part = random.pick(&[(0, bytes / 2), (bytes / 2, bytes - bytes / 2), (0, bytes), (4, bytes)]);
        copy.part = Some((Bytes(part.0), Bytes(part.1)));
        copy.bytes = Bytes(part.1);
        Some(())
    }),
    ("copy in two parts", |plan, random| {
        let at = a_copy(plan, random)?;
        let mut second = plan.steps[at].clone();
        second.id = 1_000_000 + plan.steps.len() as u64;
        let bytes = copy(plan, at).bytes.get();
        let cut = random.below(bytes.max(1) as usize) as u64;
        let first = copy(plan, at);
        (first.bytes, first.part) = (Bytes(cut), Some((Bytes(0), Bytes(cut))));
        let Action::Copy(rest) = &mut second.action else { return None };
        (rest.bytes, rest.part) = (Bytes(bytes - cut), Some((Bytes(cut), Bytes(bytes - cut))));
        let to = at + 1 + random.below(plan.steps.len() - at);
        plan.steps.insert(to, second);
        Some(())
    }),
    ("reads swapped", |plan, random| {
        let at = a_launch(plan, random)?;
        let reads = &mut launch(plan, at).reads;
        let (a, b) = (random.below(reads.len()), random.below(reads.len()));
        (reads.len() > 1).then(|| reads.swap(a, b))
    }),
    ("writes swapped", |plan, random| {
        let at = a_launch(plan, random)?;
        let writes = &mut launch(plan, at).writes;
        let (a, b) = (random.below(writes.len()), random.below(writes.len()));
        (writes.len() > 1).then(|| writes.swap(a, b))
    }),
    ("another read", |plan, random| {
        let at = a_launch(plan, random)?;
        let reads = launch(plan, at).reads.clone();
        let number = some_of(random, 0..reads.len())?;
        let other = alike(plan, &reads[number], random);
        launch(plan, at).reads[number] = other;
        Some(())
    }),
    ("another write", |plan, random| {
        let at = a_launch(plan, random)?;
        let writes = launch(plan, at).writes.clone();
        let number = some_of(random, 0..writes.len())?;
        let other = alike(plan, &writes[number], random);
        launch(plan, at).writes[number] = other;
        Some(())
    }),
    ("written to state", |plan, random| {
        let at = a_launch(plan, random)?;
        let is_state = |i: &usize| plan.buffers[*i].kind == BufferKind::State;
        let state = some_of(random, (0..plan.buffers.len()).filter(is_state))?;
        let id = plan.buffers[state].id.clone();
        let old = std::mem::replace(launch(plan, at).writes.first_mut()?, id.clone());
        if random.one_in(2) {
            for step in &mut plan.steps[at + 1..] {
                match &mut step.action {
                    Action::Launch(launch) => {
                        launch
                            .reads
                            .iter_mut()
                            .filter(|read| **read == old)
                            .for_each(|read| read.clone_from(&id));
                    }
                    Action::Copy(copy) if copy.from == old => copy.from.clone_from(&id),
                    Action::Copy(_) => {}
                }
            }
            plan.buffers.retain(|buffer| buffer.id != old);
        }
        in_order(plan, &id);
        Some(())
    }),
    ("a read less", |plan, random| {
        let at = a_launch(plan, random)?;
        launch(plan, at).reads.pop().map(drop)
    }),
    ("a write less", |plan, random| {
        let at = a_launch(plan, random)?;
        launch(plan, at).writes.pop().map(drop)
    }),
    ("a read twice", |plan, random| {
        let at = a_launch(plan, random)?;
        let first = launch(plan, at).reads.first()?.clone();
        launch(plan, at).reads.push(first);
        Some(())
    }),
    ("launch of another group", |plan, random| {
        let (at, of) = (a_launch(plan, random)?, a_launch(plan, random)?);
        let other = launch(plan, of).clone();
        let own = launch(plan, at);
        own.group = other.group;
        if random.one_in(2) {
            (own.nodes, own.kernel) = (other.nodes, other.kernel);
        }
        Some(())
    }),
    ("two launches swapped", |plan, random| {
        let (at, of) = (a_launch(plan, random)?, a_launch(plan, random)?);
        let action = plan.steps[at].action.clone();
        plan.steps[at].action = std::mem::replace(&mut plan.steps[of].action, action);
        Some(())
    }),
    ("again", |plan, random| {
        let at = a_launch(plan, random)?;
        let launch = launch(plan, at);
        launch.again = !launch.again;
        Some(())
    }),
    ("microbatch of a launch", |plan, random| {
        let at = a_launch(plan, random)?;
        launch(plan, at).microbatch = random.pick(&[None, Some(0), Some(1)]);
        Some(())
    }),
    ("microbatches", |plan, random| {
        plan.options.microbatches = random.pick(&[None, Some(1), Some(2), Some(3)]);
        Some(())
    }),
    ("arena", |plan, random| {
        let at = random.below(plan.devices.len());
        let device = &mut plan.devices[at];
        device.arena = Bytes(random.pick(&[device.arena.get() / 2, device.arena.get().saturating_sub(64)]));
        Some(())
    }),
    ("memory", |plan, random| {
        let at = random.below(plan.devices.len());
        let memory = Bytes(plan.devices[at].arena.get().saturating_sub(random.below(2) as u64));
        plan.devices[at].memory = memory;
        if random.one_in(2) {
            plan.topology.devices[at].memory = memory;
        }
        Some(())
    }),
    ("a kernel's digest", |plan, random| {
        let (at, of) = (random.below(plan.kernels.len()), random.below(plan.kernels.len()));
        plan.kernels[at].hash = plan.kernels[of].hash.clone();
        Some(())
    }),
];

#[test]
fn what_the_interpreter_says_is_wrong_is_wrong() {
    // A network of one result: its buffer is taken by another launch, or its wait is lost.
    let case = inference(1).expect("fits");
    let mut plan = case.plan.clone();
    let made = plan.steps.iter().position(|step| matches!(step.action, Action::Copy(_)));
    plan.steps.remove(made.expect("a copy"));
    settle(&mut plan);
    assert!(case.interpreted(&plan, 0).is_err() && !case.accepts(&plan));
}
