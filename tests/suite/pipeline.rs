//! The whole pipeline on random networks, devices and options: what it plans is sound by every
//! checker, respects what was asked, reads back from both its forms, is the same each time, and
//! computes the same bits as the network without a plan.

use std::collections::BTreeSet;
use std::process::Command;

use partition::Error;
use partition::unstable::compile::{Compiled, Options, check_model, compile};
use partition::unstable::ir::{DType, Graph, ParamId, SourceRole, Tensor, Type};
use partition::unstable::load::Model;
use partition::unstable::place::{self, DeviceUse, Objective};
use partition::unstable::plan::{self, Action, Plan};
use partition::unstable::run::{ExecOptions, Program, exec_plan, interpret};
use partition::unstable::topology::Topology;
use partition::unstable::units::Bytes;

use crate::random_graph::{Random, random_graph};
use crate::shared;
use crate::sweep::Share;

const NODES: usize = 25;

/// A network, and what it is planned for.
struct Case {
    graph: Graph,
    topology: Topology,
    options: Options,
    inputs: Vec<(String, Tensor)>,
    params: Vec<Tensor>,
}

fn tensor(ty: &Type, random: &mut Random) -> Tensor {
    assert_eq!(ty.dtype, DType::F32);
    let dims: Vec<u64> = ty.shape.dims().expect("bound").iter().map(|&dim| dim as u64).collect();
    let values: Vec<f32> = (0..dims.iter().product::<u64>()).map(|_| random.float()).collect();
    Tensor::from_f32(dims, &values).expect("as many")
}

impl Case {
    fn new(seed: u64) -> Self {
        let graph = random_graph(seed, NODES);
        let mut random = Random::new(seed ^ 0x5eed);
        // What one device needs, to choose caps near it.
        let alone = compile(Model::Graph(graph.clone()), &cpu(), &Options::default()).expect("fits");
        let topology = devices(alone.plan.devices[0].arena.get(), &mut random);
        let place = asked(&graph, &topology, &mut random);
        let mut options = Options { place, ..Options::default() };
        // The bits of one device are asserted, which divided sums do not keep.
        options.split.exact = true;
        let (mut inputs, mut params) = (Vec::new(), Vec::new());
        for (name, value) in graph.inputs() {
            inputs.push((name.clone(), tensor(graph.ty(*value), &mut random)));
        }
        for param in graph.params() {
            params.push(tensor(graph.ty(graph.node(param.node).first_result), &mut random));
        }
        Self { graph, topology, options, inputs, params }
    }

    fn compile(&self, topology: &Topology) -> partition::Result<Compiled> {
        compile(Model::Graph(self.graph.clone()), topology, &self.options)
    }

    /// A parameter's data, found by its name: simplification may renumber parameters.
    fn weight(&self, graph: &Graph, id: ParamId) -> Tensor {
        let param = graph.param(id);
        let number = self.graph.params().iter().position(|own| own.name == param.whole_name());
        let whole = self.params[number.expect("the source has it")].clone();
        param.own_part(graph, whole).expect("a part of it")
    }

    fn run(&self, compiled: &Compiled) -> Vec<(String, Tensor)> {
        let network = compiled.network.as_ref().expect("a network");
        let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping).expect("belongs to it");
        let weights = |id| Ok(self.weight(&network.graph, id));
        let groups = network.grouping.all_fused();
        let mut program = Program::new(&network.graph, &groups, &exec, &weights, ExecOptions::default())
            .expect("can be run");
        let (first, _) = program.run(&self.inputs).expect("runs");
        let (second, _) = program.run(&self.inputs).expect("runs again");
        assert_eq!(first, second, "a second step differs");
        first
    }

    fn interpret(&self, compiled: &Compiled) -> Vec<(String, Tensor)> {
        let graph = &compiled.network.as_ref().expect("a network").graph;
        interpret(graph, &self.inputs, &|id| Ok(self.weight(graph, id))).expect("runs")
    }
}

fn cpu() -> Topology {
    Topology::parse("cpu").expect("sound")
}

/// Devices of which some hold a network of this arena alone and some do not.
fn devices(arena: u64, random: &mut Random) -> Topology {
    let count = 1 + random.below(4) as u64;
    let share = |random: &mut Random| (arena * (80 + random.below(160) as u64) / 100 / count).max(64);
    let (a, b) = (share(random), share(random));
    let spec = match random.below(5) {
        0 => format!("cpu[{count}x{a}B]"),
        1 => format!("{count}xcpu:memory={a}B"),
        2 => format!("2xcpu[{count}x{a}B,{b}B]"),
        3 => format!("cpu:memory={a}B+{count}xcpu:memory={b}B,contention=none"),
        _ => format!("cpu[{a}B,{b}B,{}B]+cpu:memory={arena}B", a + b),
    };
    Topology::parse(&spec).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

/// Options at random that do not contradict one another.
fn asked(graph: &Graph, topology: &Topology, random: &mut Random) -> place::Options {
    let mut options = place::Options {
        objective: random.pick(&Objective::ALL),
        devices: match random.below(4) {
            0 => DeviceUse::All,
            1 => DeviceUse::Count(1 + random.below(topology.len()) as u32),
            _ => DeviceUse::Auto,
        },
        reserve: Bytes(random.pick(&[0, 0, 0, 64, 100])),
        seed: random.next(),
        ..place::Options::default()
    };
    let names: Vec<&str> = graph
        .sources()
        .iter()
        .filter(|source| source.role == SourceRole::Node)
        .map(|source| source.name.as_str())
        .collect();
    if names.is_empty() {
        return options;
    }
    match random.below(3) {
        0 => options.colocate.push(format!("{}*", random.pick(&names))),
        1 => {
            for _ in 0..1 + random.below(2) {
                let device = topology.device(topology.ids().nth(random.below(topology.len())).expect("one"));
                options.pins.push((random.pick(&names).to_owned(), device.name.clone()));
            }
        }
        _ => {}
    }
    options
}

fn respects(case: &Case, plan: &Plan, what: &str) {
    let place = &case.options.place;
    let device = |name: &str| {
        let found = plan.placement.iter().find(|(node, _)| node == name);
        found.map(|(_, device)| device.as_str()).unwrap_or_else(|| panic!("{name} is not placed"))
    };
    let mut pins: Vec<(&str, &str)> = Vec::new();
    for (name, wanted) in &place.pins {
        // Of two pins of one node the later one holds.
        pins.retain(|(other, _)| other != name);
        pins.push((name, wanted));
    }
    for (name, wanted) in pins {
        assert_eq!(device(name), wanted, "{what}: the pin of {name}");
    }
    for pattern in &place.colocate {
        let stem = pattern.trim_end_matches('*');
        let together: BTreeSet<&str> = plan
            .placement
            .iter()
            // What nothing is left of may stand beside whatever reads it.
            .filter(|(name, _)| name.starts_with(stem) && !plan.unlaunched.contains(name))
            .map(|(_, device)| device.as_str())
            .collect();
        assert!(together.len() <= 1, "{what}: {pattern} is on {together:?}");
    }
    for found in &plan.devices {
        assert!(
            found.arena.get() + place.reserve.get() <= found.memory.get(),
            "{} is over its cap",
            found.name
        );
        assert!(found.peak <= found.arena, "{}: its peak is above its arena", found.name);
    }
    let launches = plan.steps.iter().filter(|step| matches!(step.action, Action::Launch(_)));
    let used: BTreeSet<&str> = launches.map(|step| &*step.device).collect();
    match place.devices {
        DeviceUse::All => assert_eq!(used.len(), plan.devices.len(), "{what}: not all devices compute"),
        DeviceUse::Count(count) => {
            assert_eq!(used.len(), count as usize, "{what}: another number of devices")
        }
        DeviceUse::Auto => {}
    }
}

fn reads_back(plan: &Plan) {
    let json = plan.to_json();
    let back = Plan::from_json(json.as_bytes(), "plan").expect("reads");
    assert_eq!((&back, back.to_json()), (plan, json));
    let text = plan.to_text();
    let back = Plan::from_text(&text, "plan").expect("reads");
    assert_eq!((&back, back.to_text()), (plan, text));
}

sweep! {
    plans_are_sound_respect_what_was_asked_and_compute_the_same_bits: one of 8;
}

fn plans_are_sound_respect_what_was_asked_and_compute_the_same_bits(share: Share) {
    let (mut planned, mut split) = (0, 0);
    let mut verified = Vec::new();
    for seed in share.among(0..70) {
        let case = Case::new(seed);
        let compiled = match case.compile(&case.topology) {
            Ok(compiled) => compiled,
            Err(Error::Infeasible(_) | Error::Usage(_)) => continue,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        let plan = &compiled.plan;
        planned += 1;
        split += usize::from(plan.cost.step_bytes > Bytes::ZERO);
        plan::check(plan).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let lowered_again = Options::of_plan(plan).expect("its options");
        check_model(plan, Model::Graph(case.graph.clone()), &lowered_again)
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        respects(&case, plan, &format!("seed {seed}"));
        reads_back(plan);
        let again = case.compile(&case.topology).expect("once more");
        assert_eq!(again.plan.to_json(), plan.to_json(), "seed {seed}: another plan the second time");
        let outputs = case.run(&compiled);
        assert_eq!(outputs, case.interpret(&compiled), "seed {seed}: not what the network computes");
        let alone = Case { options: Options::default(), ..case };
        let single = alone.compile(&cpu()).expect("fits");
        assert_eq!(outputs, alone.run(&single), "seed {seed}: not what one device computes");
        if seed % 4 == 0 {
            verified.push((seed, plan.to_json()));
        }
    }
    assert!(planned >= share.least(60), "only {planned} were planned");
    assert!(split >= share.least(30), "only {split} of {planned} move anything");
    verify(&verified);
}

/// All plans through the independent verifier, in one process.
fn verify(plans: &[(u64, String)]) {
    const ALL: &str = "import runpy, sys
script, paths, bad = sys.argv[1], sys.argv[2:], 0
for path in paths:
    sys.argv[1:] = [path]
    try:
        runpy.run_path(script, run_name='__main__')
    except SystemExit as end:
        if end.code:
            bad += 1
            print('unsound:', path)
sys.exit(bad)";
    let Some(script) = shared::file("tools/verify_plan.py") else { return };
    if shared::python("tools/verify_plan.py").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("python3");
    command.arg("-c").arg(ALL).arg(script);
    for (seed, json) in plans {
        let path = folder.path().join(format!("{seed}.json"));
        std::fs::write(&path, json).expect("writable");
        command.arg(path);
    }
    let output = command.output().expect("python3 starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().filter(|line| line.starts_with("sound:")).count(), plans.len(), "{said}");
}
