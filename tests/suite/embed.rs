//! What an engine that embeds the planner relies on: types that cross threads, a search that can
//! be stopped, and a plan that is sound however early that was.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use partition::{
    Builder, Bytes, Communication, Control, CostGraph, Effort, Error, Nanos, NodeIx, NodeSpec, Objective,
    Options, Pipeline, PipelineOrder, Plan, Previous, Stability, Topology, check, check_costgraph, plan,
    plan_with,
};

use crate::cli::{Folder, example};
use crate::random_costgraph::{Links, Rng, cost_graph, topology};

#[test]
fn everything_public_crosses_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<CostGraph>();
    crosses::<Topology>();
    crosses::<Options>();
    crosses::<Control<'_>>();
    crosses::<Plan>();
    crosses::<Error>();
}

/// What the one type of options asks for is what is planned.
#[test]
fn all_that_a_caller_asks_for_is_heeded() {
    let mut rng = Rng::new(3);
    let devices = topology(2, 1, Bytes(1 << 30), Links::Staged, Nanos(100), Communication::Overlapped);
    let graph = cost_graph(&mut rng, 12);
    let pipeline = Some(Pipeline { microbatches: 4, order: PipelineOrder::Auto });
    let asked =
        Options { objective: Objective::Throughput, reserve: Bytes(4096), seed: 5, ..Options::default() };
    let whole = plan(&graph, &devices, &asked).expect("room enough");
    assert_eq!(whole.options.seed, 5);
    assert_eq!(whole.options.objective, Objective::Throughput.to_string());
    assert_eq!(whole.model.name, graph.name);
    let divided = plan(&graph, &devices, &Options { pipeline, ..asked }).expect("room enough");
    assert!(divided.options != whole.options);
}

#[test]
fn what_a_caller_may_set_wrong_is_an_error() {
    let graph = cost_graph(&mut Rng::new(3), 12);
    let devices = topology(2, 1, Bytes(1 << 30), Links::Staged, Nanos(100), Communication::Overlapped);
    let mut nowhere = devices.clone();
    nowhere.devices[1].physical = 99;
    assert!(matches!(plan(&graph, &nowhere, &Options::default()), Err(Error::Format(_))));
    let old = plan(&graph, &devices, &Options::default()).expect("room enough");
    for weight in [f64::NAN, f64::INFINITY, -1.0] {
        let previous = Previous { stability: Stability::Weight(weight), ..Previous::from(&old) };
        let asked = Options { from: Some(Arc::new(previous)), ..Options::default() };
        assert!(matches!(plan(&graph, &devices, &asked), Err(Error::Usage(_))), "{weight}");
    }
    let pipeline = Some(Pipeline { microbatches: u32::MAX, order: PipelineOrder::Auto });
    let asked = Options { pipeline, ..Options::default() };
    assert!(matches!(plan(&graph, &devices, &asked), Err(Error::Usage(_))));
}

/// A chain over two devices, as a plan for few bytes has it, with one copy.
fn chain() -> (CostGraph, Plan) {
    let mut builder = Builder::new("chain", vec!["l4-24g".into()]);
    let mut last: Option<NodeIx> = None;
    for name in ["a", "b", "c"] {
        let spec = NodeSpec {
            name,
            op: "layer",
            times: &[Some(Nanos(4_000_000))],
            param_bytes: Bytes(2_000_000_000),
            outputs: &[Bytes(8_000_000)],
            ..NodeSpec::default()
        };
        let node = builder.add(&spec).expect("a node");
        if let Some(last) = last {
            builder.connect(last, 0, node);
        }
        last = Some(node);
    }
    let graph = builder.finish().expect("a graph");
    let devices = Topology::parse("2xl4-24g:memory=5GB").expect("a specification");
    let plan = plan(&graph, &devices, &Options::default()).expect("room enough");
    (graph, plan)
}

/// What a plan's own file shows to be wrong is found without its graph.
#[test]
fn a_copy_that_does_not_wait_for_its_value_is_refused_from_the_file_alone() {
    let (_, sound) = chain();
    check(&sound).expect("sound");
    let refused = |plan: &Plan, why: &str| {
        let error = check(plan).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    };
    let mut unordered = sound.clone();
    unordered.steps.iter_mut().for_each(|step| step.after.clear());
    refused(&unordered, "before it is on cuda");
    let mut small = sound;
    small.devices.iter_mut().for_each(|device| device.peak = Bytes(1));
    refused(&small, "holds at least 8000000 bytes at once");
}

/// The graph says what each node takes, so that times are proven with it.
#[test]
fn times_that_the_steps_do_not_take_are_refused_with_the_graph() {
    let (graph, sound) = chain();
    check_costgraph(&sound, &graph).expect("sound");
    let changes: [(&str, fn(&mut Plan)); 2] = [
        ("cost.latency_ns", |plan| plan.cost.latency_ns = Nanos(1)),
        ("cost.max_load_ns", |plan| plan.cost.max_load_ns = Nanos(1)),
    ];
    for (name, change) in changes {
        let mut plan = sound.clone();
        change(&mut plan);
        check(&plan).expect("the file alone does not say what its nodes take");
        let error = check_costgraph(&plan, &graph).expect_err(name).to_string();
        assert!(error.contains(name), "{error}");
    }
    let mut rng = Rng::new(19);
    let devices = topology(3, 1, Bytes(1 << 30), Links::Staged, Nanos(100), Communication::Overlapped);
    for case in 0..12 {
        let graph = cost_graph(&mut rng, 20);
        for objective in Objective::ALL {
            let pipeline = Some(Pipeline { microbatches: 3, order: PipelineOrder::Auto });
            for pipeline in [None, pipeline] {
                let options = Options { objective, pipeline, effort: Effort::Fast, ..Options::default() };
                let plan = plan(&graph, &devices, &options).expect("room enough");
                let told = |error: Error| panic!("case {case}, {objective}: {error}");
                check_costgraph(&plan, &graph).unwrap_or_else(told);
            }
        }
    }
}

/// Each of them a kind of its own: their orders are not counted.
#[test]
fn many_devices_that_all_differ_are_planned_for() {
    let graph = cost_graph(&mut Rng::new(3), 12);
    let all: Vec<String> = (1..=70).map(|size| format!("cpu:memory={size}GB")).collect();
    let devices = Topology::parse(&all.join("+")).expect("a specification");
    for objective in Objective::ALL {
        let asked = Options { objective, effort: Effort::Fast, ..Options::default() };
        check(&plan(&graph, &devices, &asked).expect("room enough")).expect("a sound plan");
    }
}

#[test]
fn a_search_that_is_stopped_at_once_still_gives_a_sound_plan() {
    let mut rng = Rng::new(7);
    let (room, latency) = (Bytes(1 << 30), Nanos(100));
    let devices = topology(3, 1, room, Links::Staged, latency, Communication::Overlapped);
    let mut stopped = 0;
    for case in 0..40 {
        let graph = cost_graph(&mut rng, 40);
        for objective in Objective::ALL {
            let options = Options { objective, effort: Effort::Best, ..Options::default() };
            let cancel = AtomicBool::new(true);
            let control = Control::new().cancel(&cancel);
            let plan = plan_with(&graph, &devices, &options, &control)
                .unwrap_or_else(|error| panic!("case {case}: {error}"));
            assert_eq!(plan.options.truncated, control.was_truncated());
            stopped += usize::from(plan.options.truncated);
            check(&plan).unwrap_or_else(|error| panic!("case {case}: {error}"));
        }
    }
    assert!(stopped > 40, "{stopped} searches had work left");
}

long! {
    a_limit_of_memory_that_suffices_changes_nothing_and_one_that_does_not_is_told;
}

fn a_limit_of_memory_that_suffices_changes_nothing_and_one_that_does_not_is_told() {
    let mut rng = Rng::new(11);
    let devices = topology(4, 1, Bytes(1 << 34), Links::Staged, Nanos(100), Communication::Overlapped);
    let graph = cost_graph(&mut rng, 600);
    let mut told = 0;
    for objective in Objective::ALL {
        let options = Options { objective, ..Options::default() };
        let plan = |limit: Option<u64>| {
            let control = Control::new().threads(4);
            let control = limit.into_iter().fold(control, |control, limit| control.memory(Bytes(limit)));
            let plan = plan_with(&graph, &devices, &options, &control).expect("room enough");
            assert_eq!(plan.options.truncated, control.was_truncated());
            check(&plan).expect("sound");
            plan
        };
        let free = plan(None);
        assert!(plan(Some(1 << 20)) == free, "one thing after another fits into a megabyte");
        told += usize::from(plan(Some(1 << 10)).options.truncated);
    }
    // For bytes alone all of it stays on one device, and nothing is searched.
    assert_eq!(told, Objective::ALL.len() - 1);
}

#[test]
fn a_time_limit_ends_the_search_and_the_plan_says_so() {
    let folder = Folder::new();
    let model = example("seed_stack.json");
    let args = [model.as_str(), "-d", "4xa100-80g", "--objective", "throughput", "--effort", "best"];
    let limited = [&args[..], &["--time-limit", "0ms", "-o", "plan.json"]].concat();
    let begun = Instant::now();
    let ran = folder.run(&limited);
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("cut short"), "{}", ran.stderr);
    let text = std::fs::read_to_string(folder.path("plan.json")).unwrap();
    assert!(text.contains("\"truncated\":true"), "{text}");
    folder.ok(&["check", "plan.json"]);
    let message = folder.fails(2, &[&args[..], &["--time-limit", "soon"]].concat());
    assert!(message.contains("--time-limit soon"), "{message}");
}
