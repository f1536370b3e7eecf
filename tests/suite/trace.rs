//! Traces against the rules of the Trace Event Format, and against the plan that they show.

use std::collections::BTreeMap;
use std::process::Command;

use partition::unstable::compile::{Options, compile};
use partition::unstable::ir::Graph;
use partition::unstable::load::Model;
use partition::unstable::place::{self, DeviceUse};
use partition::unstable::plan::{self, Action, Plan};
use partition::unstable::report::{Clock, Trace, lives_of_plan, lives_of_schedule};
use partition::unstable::schedule::schedule;
use partition::unstable::topology::{Communication, Contention, Topology};
use partition::unstable::units::{Bytes, Nanos};
use serde_json::Value;

use crate::random_costgraph::{self, Links, Rng};
use crate::random_graph::random_graph;

/// Names that metadata events may have, and the type of their argument.
const METADATA: [(&str, &str); 3] =
    [("process_name", "name"), ("thread_name", "name"), ("process_sort_index", "sort_index")];

/// What a trace shows, once it is known to keep the rules.
#[derive(Default)]
struct Shown {
    /// Slices by category.
    slices: BTreeMap<String, usize>,
    /// By process: the highest value of its counter.
    peaks: BTreeMap<u64, u64>,
    tracks: usize,
}

/// Fails where the format's rules are broken: the object form with a list of events; each with its
/// phase, process, thread, time and name; durations that are no less than zero; slices of one track
/// one within another or apart; tracks that are named; counters of numbers.
fn validated(text: &str) -> Shown {
    let trace: Value = serde_json::from_str(text).expect("JSON");
    assert!(matches!(trace["displayTimeUnit"].as_str(), Some("ms" | "ns")));
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let mut shown = Shown::default();
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let mut named: Vec<(u64, u64)> = Vec::new();
    for event in events {
        let pid = event["pid"].as_u64().expect("a process");
        let tid = event["tid"].as_u64().expect("a thread");
        let ts = event["ts"].as_f64().expect("a time");
        let name = event["name"].as_str().expect("a name");
        assert!(ts >= 0.0 && !name.is_empty(), "{event}");
        match event["ph"].as_str().expect("a phase") {
            "X" => {
                let dur = event["dur"].as_f64().expect("a duration");
                assert!(dur >= 0.0, "{event}");
                assert!(event["args"].is_object(), "{event}");
                tracks.entry((pid, tid)).or_default().push((ts, ts + dur));
                *shown.slices.entry(event["cat"].as_str().expect("a category").to_owned()).or_default() += 1;
            }
            "C" => {
                for value in event["args"].as_object().expect("values").values() {
                    let value = value.as_u64().expect("a count");
                    let peak = shown.peaks.entry(pid).or_default();
                    *peak = (*peak).max(value);
                }
            }
            "M" => {
                let (_, argument) = METADATA.iter().find(|(known, _)| *known == name).expect("a known name");
                let value = &event["args"][*argument];
                assert!(if *argument == "name" { value.is_string() } else { value.is_u64() }, "{event}");
                if name == "thread_name" {
                    named.push((pid, tid));
                }
            }
            other => panic!("phase {other}"),
        }
    }
    for (track, mut slices) in tracks {
        assert!(named.contains(&track), "track {track:?} has no name");
        slices.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.total_cmp(&one.1)));
        let mut open: Vec<f64> = Vec::new();
        for (start, end) in slices {
            // Times are exact to a nanosecond, a thousandth of the format's unit.
            open.retain(|&until| until > start + 1e-4);
            assert!(open.iter().all(|&until| end <= until + 1e-4), "slices of {track:?} overlap");
            open.push(end);
        }
        shown.tracks += 1;
    }
    shown
}

fn text(trace: &Trace<'_>) -> String {
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn counts(plan: &Plan) -> (usize, usize) {
    let copies = plan.steps.iter().filter(|step| matches!(step.action, Action::Copy(_))).count();
    (plan.steps.len() - copies, copies)
}

fn compiled(graph: Graph, spec: &str) -> partition::unstable::compile::Compiled {
    let place = place::Options { devices: DeviceUse::All, balance: Some(0.5), ..place::Options::default() };
    let options = Options { place, ..Options::default() };
    let topology = Topology::parse(spec).unwrap();
    compile(Model::Graph(graph.clone()), &topology, &options)
        .or_else(|_| compile(Model::Graph(graph), &topology, &Options::default()))
        .unwrap()
}

#[test]
fn simulated_steps_show_what_the_plan_says() {
    for (seed, spec) in (0..24).zip(["2xcpu", "cpu[3x100MB]", "4xa100-80g:memory=100MB"].iter().cycle()) {
        let compiled = compiled(random_graph(seed, 40), spec);
        let times: Vec<(Nanos, Nanos)> =
            compiled.schedule.steps.iter().map(|step| (step.start, step.end)).collect();
        let lives = lives_of_schedule(&compiled.cost_graph, &compiled.schedule);
        let trace = Trace {
            plan: &compiled.plan,
            clock: Clock::Simulated,
            times: &times,
            lives: &lives,
            crossings: &compiled.schedule.crossings,
        };
        let shown = validated(&text(&trace));
        let (launches, copies) = counts(&compiled.plan);
        assert_eq!(shown.slices.get("kernel").copied().unwrap_or(0), launches, "seed {seed}");
        let crossings = compiled.schedule.crossings.len();
        assert!(crossings >= copies, "seed {seed}: {crossings} crossings of {copies} copies");
        assert_eq!(shown.slices.get("copy").copied().unwrap_or(0), copies + crossings, "seed {seed}");
        for (pid, device) in (0..).zip(&compiled.plan.devices) {
            let peak = shown.peaks.get(&pid).copied().unwrap_or(0);
            assert_eq!(peak, device.peak.get(), "seed {seed}: {}", device.name);
        }
        // Buffers of the plan are as live as the schedule's.
        let trace = Trace { lives: &lives_of_plan(&compiled.plan, &times), ..trace };
        assert_eq!(validated(&text(&trace)).peaks, shown.peaks, "seed {seed}");
    }
}

#[test]
fn cost_graphs_have_traces_with_memory() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let graph = random_costgraph::cost_graph(&mut rng, 60);
        let links = match seed % 3 {
            0 => Links::Direct(Contention::Link),
            1 => Links::Direct(Contention::None),
            _ => Links::Staged,
        };
        let communication = if seed % 2 == 0 { Communication::Overlapped } else { Communication::Added };
        let (physicals, slices) = (2 + seed as u32 % 3, 1 + seed as u32 % 2);
        let topology =
            random_costgraph::topology(physicals, slices, Bytes(1 << 40), links, Nanos(100), communication);
        let placement = random_costgraph::placement(&mut rng, &graph, &topology);
        let Ok(schedule) = schedule(&graph, &topology, &placement, &Default::default()) else { continue };
        let plan = plan::build(&graph, &topology, &placement, &schedule, None, Default::default()).unwrap();
        let times: Vec<(Nanos, Nanos)> = schedule.steps.iter().map(|step| (step.start, step.end)).collect();
        let lives = lives_of_schedule(&graph, &schedule);
        let (clock, crossings) = (Clock::Simulated, &schedule.crossings[..]);
        let trace = Trace { plan: &plan, clock, times: &times, lives: &lives, crossings };
        let shown = validated(&text(&trace));
        assert_eq!(shown.slices.get("kernel").copied().unwrap_or(0), counts(&plan).0, "seed {seed}");
        for (pid, device) in (0..).zip(&plan.devices) {
            let peak = shown.peaks.get(&pid).copied().unwrap_or(0);
            assert!(peak >= device.peak.get(), "seed {seed}: {}: {peak} {}", device.name, device.peak);
        }
    }
}

#[test]
fn the_command_line_writes_traces() {
    let folder = tempfile::tempdir().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mlp.json");
    let partition = |arguments: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_partition")).args(arguments).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let spec = ["--devices", "2xcpu:cores=1", "--use", "all", "--dim", "batch=8"];
    let simulated = partition(&[&[model, "--emit", "trace"][..], &spec].concat());
    let shown = validated(&simulated);
    assert!(shown.slices["kernel"] > 0 && shown.peaks.len() == 2 && shown.tracks >= 2);
    let path = folder.path().join("trace.json");
    let path = path.to_str().unwrap();
    partition(&[&["run", model, "--init", "seed=1", "--trace", path][..], &spec].concat());
    let measured = validated(&std::fs::read_to_string(path).unwrap());
    assert_eq!(measured.slices["kernel"], shown.slices["kernel"]);
}
