//! What an engine that embeds the planner relies on: types that cross threads, a search that can
//! be stopped, and a plan that is sound however early that was.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use partition::{
    Bytes, Communication, Control, CostGraph, Effort, Error, Nanos, Objective, Options, Pipeline,
    PipelineOrder, Plan, Previous, Stability, Topology, check, plan, plan_with,
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
