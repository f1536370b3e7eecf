//! The objective `latency`: schedules against one device and against a timing of their own.

use std::path::Path;
use std::process::Command;

use partition::Control;
use partition::unstable::costgraph::{CostGraph, Role};
use partition::unstable::place::{Objective, Options, Placement};
use partition::unstable::schedule::{Action, Schedule, schedule};
use partition::unstable::strategy::{self, Problem};
use partition::unstable::topology::{Communication, Contention, DeviceId, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::random_costgraph::{Links, Rng, cost_graph, topology};

fn devices() -> Topology {
    let links = Links::Direct(Contention::None);
    topology(3, 1, Bytes(1 << 40), links, Nanos(300), Communication::Overlapped)
}

/// The end of the last launch: each waits for its device and for copies, none of which hinders
/// another; inputs are at home from the beginning.
fn timed(graph: &CostGraph, topology: &Topology, placement: &Placement, found: &Schedule) -> u64 {
    let mut end = vec![0u64; graph.node_count()];
    let mut free = vec![0u64; topology.len()];
    for step in &found.steps {
        let Action::Launch(node) = step.action else { continue };
        let to = placement.device[node.index()];
        let mut start = free[to.index()];
        for &tensor in graph.inputs(node) {
            let maker = graph.producer(tensor);
            if graph.role(maker) != Role::Param {
                let copy =
                    topology.copy_time(placement.device[maker.index()], to, graph.tensor_bytes(tensor));
                start = start.max(end[maker.index()] + copy.get());
            }
        }
        let kind = topology.kinds_in(&graph.kinds)[to.index()].unwrap();
        end[node.index()] = start + graph.time(node, kind).unwrap().get();
        free[to.index()] = end[node.index()];
    }
    free.into_iter().max().unwrap_or(0)
}

long! {
    steps_are_never_longer_than_on_one_device_and_take_the_time_they_say;
}

fn steps_are_never_longer_than_on_one_device_and_take_the_time_they_say() {
    let topology = devices();
    let options = Options { objective: Objective::Latency, ..Options::default() };
    for seed in 0..200 {
        let size = if seed % 10 == 0 { 40 } else { 14 };
        let graph = cost_graph(&mut Rng::new(seed), size);
        let (placement, found) =
            strategy::solve(Problem::new(&graph, &topology, &options), &Control::new()).unwrap();
        let one = Placement { device: vec![DeviceId(0); graph.node_count()], ..Placement::default() };
        let alone = schedule(&graph, &topology, &one, &Default::default()).unwrap();
        assert!(found.cost.latency <= alone.cost.latency, "seed {seed}");
        let copies = found.steps.iter().filter(|step| matches!(step.action, Action::Copy { .. }));
        let last = copies.map(|step| step.end.get()).max().unwrap_or(0);
        let own = timed(&graph, &topology, &placement, &found);
        assert_eq!(found.cost.latency.get(), own.max(last), "seed {seed}");
    }
}

/// Plans two instances whose optima are known and has them timed by the benchmark's own program.
#[test]
fn small_instances_reach_their_optima() {
    let Some(shared) = crate::shared::dir() else { return };
    let bench = shared.join("bench/dag");
    let folder = tempfile::tempdir().unwrap();
    let python = |script: &Path, arguments: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(script).args(arguments).current_dir(folder.path());
        command.output().ok().filter(|output| output.status.success()).map(|output| output.stdout)
    };
    if python(&bench.join("gen.py"), &["s_rand30", "s_moe"]).is_none() {
        return; // No Python with numpy here.
    }
    for name in ["s_rand30", "s_moe"] {
        let instance = format!("inst/{name}.npz");
        let text = python(&bench.join("costgraph.py"), &[&instance]).unwrap();
        let graph = folder.path().join(format!("{name}.json"));
        std::fs::write(&graph, text).unwrap();
        let status = Command::new(env!("CARGO_BIN_EXE_partition"))
            .args([graph.to_str().unwrap(), "--devices"])
            .arg("4xa100-80g:link=100GB/s,latency=5us,contention=none")
            .args(["--objective", "latency", "--quiet", "-o", "plan.json"])
            .current_dir(folder.path())
            .status()
            .unwrap();
        assert!(status.success());
        let report = python(&bench.join("makespan.py"), &[&instance, "plan.json", "hom4"]).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        let (ours, best) = (&report["makespan_us"], &report["optimum"]["best"]);
        assert!(ours.as_f64().unwrap() <= 1.003 * best.as_f64().unwrap(), "{report}");
    }
}
