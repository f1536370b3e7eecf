//! Arenas against their lower bounds and against brute force; results in place of operands; steps
//! that fit only where something is computed again or offloaded; the largest batch.

use std::collections::BTreeSet;
use std::fmt::Write;

use partition::unstable::compile::{self, Compiled, compile, largest_batch};
use partition::unstable::control::Control;
use partition::unstable::costgraph::{Builder, CostGraph, NodeSpec};
use partition::unstable::ir::Tensor;
use partition::unstable::load::Model;
use partition::unstable::place::{self, DeviceUse, Placement};
use partition::unstable::schedule::{Action, BufferKind, Options, Packing, Schedule, schedule};
use partition::unstable::strategy::{self, Problem, What};
use partition::unstable::topology::{DeviceId, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::networks::Network;
use crate::random_costgraph::Rng;
use crate::schedule::{happens_before, text, users};
use crate::shared;

/// Nodes of which each reads up to two earlier ones; some may write in place.
fn graph(rng: &mut Rng, nodes: usize) -> CostGraph {
    let mut builder = Builder::new("random", vec!["cpu".into()]);
    let mut sizes = Vec::new();
    let mut ids = Vec::new();
    for number in 0..nodes {
        let first = number.checked_sub(1 + rng.below(number.clamp(1, 4) as u64) as usize);
        let second = number.checked_sub(1 + rng.below(number.clamp(1, 6) as u64) as usize);
        let inputs: BTreeSet<usize> = first.into_iter().chain(second).collect();
        let bytes = match (inputs.first(), rng.below(2)) {
            (Some(&input), 0) => sizes[input],
            _ => Bytes(64 * (1 + rng.below(8)) - rng.below(2) * 20),
        };
        let pairs: Vec<(u32, u32)> = (inputs.iter().enumerate())
            .filter(|(_, input)| sizes[**input] == bytes && rng.below(3) > 0)
            .map(|(position, _)| (position as u32, 0))
            .collect();
        let node = builder
            .add(&NodeSpec {
                name: &format!("n{number}"),
                op: "f",
                times: &[Some(Nanos(100 + rng.below(400)))],
                workspace: Bytes(rng.below(3) * 96),
                outputs: &[bytes],
                in_place: &pairs,
                ..NodeSpec::default()
            })
            .unwrap();
        inputs.iter().for_each(|&input| builder.connect(ids[input], 0, node));
        ids.push(node);
        sizes.push(bytes);
    }
    builder.finish().unwrap()
}

/// Pairs of buffers that one launch reads and writes, of which the second lies where the first did.
fn in_place(graph: &CostGraph, schedule: &Schedule) -> BTreeSet<(usize, usize)> {
    let accesses = partition::unstable::schedule::Accesses::new(graph, schedule);
    let mut pairs = BTreeSet::new();
    for step in &schedule.steps {
        let Action::Launch(node) = step.action else { continue };
        let (reads, writes) = (accesses.reads(node, step.device), accesses.writes(node, step.device));
        for (input, output) in graph.in_place(node) {
            let (read, write) = (reads[input as usize].index(), writes[output as usize].index());
            if schedule.buffers[read].offset == schedule.buffers[write].offset {
                pairs.insert((read, write));
            }
        }
    }
    pairs
}

fn heaviest(weights: &[u64], meets: &[u32]) -> u64 {
    let sets = 0u32..1 << weights.len();
    let together = |set: u32| (0..weights.len()).all(|i| set >> i & 1 == 0 || set & !meets[i] == 0);
    let weight = |set: u32| (0..weights.len()).filter(|i| set >> i & 1 == 1).map(|i| weights[i]).sum();
    sets.filter(|&set| together(set)).map(weight).max().unwrap_or(0)
}

/// By brute force over all sets of buffers of a device: none of which two are ordered is heavier than
/// the arena, and the bound is never above the heaviest.
#[test]
fn bounds_are_what_must_be_alive_at_once() {
    let (mut exact, mut alone, mut all, mut taken) = (0, 0, 0, 0);
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let graph = graph(&mut rng, 12);
        let devices = 1 + rng.below(2) as usize;
        let topology = Topology::parse(&format!("cpu[{devices}x1MB]")).unwrap();
        let device = graph.nodes().map(|_| DeviceId(rng.below(devices as u64) as u32)).collect();
        let placement = Placement { device, ..Placement::default() };
        let schedule = schedule(&graph, &topology, &placement, &Options::default()).unwrap();
        let arenas = |schedule: &Schedule| -> Vec<Bytes> {
            schedule.devices.iter().map(|usage| usage.arena).collect()
        };
        let before = arenas(&schedule);
        let schedule = schedule.pack(&graph, Packing::new(1_000_000));
        let longer = arenas(&schedule).iter().zip(&before).any(|(after, before)| after > before);
        assert!(!longer, "seed {seed}: {before:?} became {:?}", arenas(&schedule));
        let (before, users) = (happens_before(&schedule), users(&graph, &schedule));
        let pairs = in_place(&graph, &schedule);
        taken += pairs.len();
        // a is over before b is written.
        let over = |a: usize, b: usize| {
            let uses = users[a].writers.iter().chain(&users[a].readers);
            uses.clone().all(|&at| {
                users[b]
                    .writers
                    .iter()
                    .all(|&write| before[write].contains(&at) || at == write && pairs.contains(&(a, b)))
            }) && schedule.buffers[a].kind != BufferKind::Output
        };
        for id in topology.ids() {
            let made: Vec<usize> = (0..schedule.buffers.len())
                .filter(|&b| schedule.buffers[b].device == id && !schedule.buffers[b].kind.is_resident())
                .filter(|&b| schedule.buffers[b].bytes.0 > 0)
                .collect();
            if made.is_empty() || made.len() > 18 {
                continue;
            }
            let meets: Vec<u32> = made
                .iter()
                .map(|&a| {
                    let with =
                        made.iter().enumerate().filter(|&(_, &b)| a == b || !over(a, b) && !over(b, a));
                    with.fold(0, |set, (at, _)| set | 1 << at)
                })
                .collect();
            for (i, &a) in made.iter().enumerate() {
                for (j, &b) in made.iter().enumerate().filter(|&(j, _)| j != i && meets[i] >> j & 1 == 1) {
                    let (one, other) = (&schedule.buffers[a], &schedule.buffers[b]);
                    let apart =
                        one.offset + one.bytes <= other.offset || other.offset + other.bytes <= one.offset;
                    assert!(apart, "seed {seed}: buffers {a} and {b} ({i}, {j}) share bytes");
                }
            }
            let rounded: Vec<u64> =
                made.iter().map(|&b| schedule.buffers[b].bytes.0.div_ceil(64) * 64).collect();
            let usage = &schedule.devices[id.index()];
            let (bound, heaviest) = (usage.bound.unwrap().0, heaviest(&rounded, &meets));
            assert!(bound <= usage.arena.0 && usage.peak <= usage.arena, "seed {seed}");
            assert!(bound <= heaviest, "seed {seed}: bound {bound}, heaviest set {heaviest}");
            all += 1;
            if devices == 1 {
                (alone, exact) = (alone + 1, exact + usize::from(usage.arena.0 <= bound + 63));
            }
        }
    }
    assert!(all > 150 && taken > 100, "{all} arenas, {taken} in place");
    assert!(exact * 10 >= alone * 8, "{exact} of {alone} arenas of one device at their bound");
}

/// A chain of 100-byte tensors whose last node also reads the first, on a device that holds `cap`.
pub(crate) fn chain(first_time: u64, input: u64) -> CostGraph {
    let mut builder = Builder::new("chain", vec!["cpu".into()]);
    let mut add = |name: &str, op: &str, time: u64, bytes: u64| {
        let (times, outputs) = ([Some(Nanos(time))], [Bytes(bytes)]);
        builder.add(&NodeSpec { name, op, times: &times, outputs: &outputs, ..NodeSpec::default() }).unwrap()
    };
    let given = add("given", "input", 0, 64);
    let source = add("source", "f", 50, input);
    let ids =
        [("a", first_time), ("b", 100), ("c", 100), ("d", 100)].map(|(name, time)| add(name, "f", time, 640));
    let last = add("last", "f", 100, 64);
    for (from, to) in
        [(given, source), (source, ids[0]), (ids[0], ids[1]), (ids[1], ids[2]), (ids[2], ids[3])]
    {
        builder.connect(from, 0, to);
    }
    builder.connect(ids[3], 0, last);
    builder.connect(ids[0], 0, last);
    builder.finish().unwrap()
}

fn rewritten(name: &str, graph: &CostGraph, spec: &str) {
    let topology = Topology::parse(spec).unwrap();
    let pins = vec![("*".to_owned(), topology.devices[0].name.clone())];
    let options = place::Options { pins, ..place::Options::default() };
    let control = Control::new();
    assert!(
        strategy::solve(Problem::new(graph, &topology, &options), &control).is_err(),
        "{name} fits as it is"
    );
    let found = strategy::rewrite(Problem::new(graph, &topology, &options), &control)
        .unwrap()
        .expect("a way to make room");
    let mut out = text(&found.derived.graph, &topology, &found.schedule);
    for choice in &found.choices {
        let node = match choice.what {
            What::Recompute(node) => format!("recompute {}", found.derived.graph.node_name(node)),
            What::Offload(tensor, host) => {
                let name = found.derived.graph.node_name(found.derived.graph.producer(tensor));
                format!("offload {name} to {}", topology.device(host).name)
            }
        };
        writeln!(out, "{node}: frees {}, costs {}", choice.frees, choice.costs).unwrap();
    }
    insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "../../snapshots", omit_expression => true }, {
        insta::assert_snapshot!(name, out);
    });
    let model = Model::CostGraph { graph: graph.clone(), topology: None };
    let asked = compile::Options { place: options, ..compile::Options::default() };
    let compiled = compile(model, &topology, &asked).unwrap();
    assert!(compiled.is_rewritten());
    partition::unstable::plan::check_costgraph(&compiled.plan, graph).unwrap();
    let whys = compiled.plan.steps.iter().filter_map(|step| step.why.as_deref());
    assert!(
        whys.clone().any(|why| why.contains("frees") && why.contains("costs")),
        "{:?}",
        whys.collect::<Vec<_>>()
    );
}

/// The library's plan is the program's: rewritten, with a certificate, and with less state moved
/// where it replaces another.
#[test]
fn a_plan_for_another_engine_is_rewritten_too() {
    let graph = chain(100, 64);
    let topology = Topology::parse("cpu:memory=1600B").unwrap();
    let plan = partition::unstable::compile::plan(&graph, &topology, &place::Options::default()).unwrap();
    let again = |step: &&partition::unstable::plan::Step| {
        step.why.as_ref().is_some_and(|why| why.contains("recompute"))
    };
    assert_eq!(plan.steps.iter().filter(again).count(), 1);
    partition::unstable::plan::check_costgraph(&plan, &graph).unwrap();
    let latency = place::Options { objective: place::Objective::Latency, ..place::Options::default() };
    let plan = partition::unstable::compile::plan(&graph, &topology, &latency).unwrap();
    let bound = plan.bound.as_ref().expect("what the step takes as it is");
    assert_eq!((bound.value, plan.cost.latency_ns), (550, Nanos(650)));
    partition::unstable::plan::check_costgraph(&plan, &graph).unwrap();
    let previous = place::Previous::from(&plan);
    let options = place::Options { from: Some(std::sync::Arc::new(previous)), ..latency };
    let kept = partition::unstable::compile::plan(&graph, &topology, &options).unwrap();
    assert!(kept.replan.is_some_and(|replan| replan.moved_bytes == Bytes::ZERO));
}

#[test]
fn a_chain_that_must_compute_again() {
    rewritten("rewrite_recompute", &chain(100, 64), "cpu:memory=1600B");
}

/// What the first node reads is larger than what it makes: computing it again frees nothing.
#[test]
fn a_chain_that_must_offload() {
    rewritten("rewrite_offload", &chain(100, 704), "cpu[1600B,4000B]");
}

/// A chain of products whose last one is added to the first, which is made of a small input.
const LATE_READER: &str = r#"{
  "partition_model": 1, "name": "late_reader", "dims": ["batch"],
  "inputs": [{"name": "x", "type": "f32[batch, 16]"}],
  "params": [
    {"name": "w0", "type": "f32[16, 512]", "init": "glorot_uniform"},
    {"name": "w1", "type": "f32[512, 1024]", "init": "glorot_uniform"},
    {"name": "w2", "type": "f32[1024, 1024]", "init": "glorot_uniform"},
    {"name": "w3", "type": "f32[1024, 512]", "init": "glorot_uniform"}
  ],
  "nodes": [
    {"name": "a", "op": "matmul", "inputs": ["x", "w0"]},
    {"name": "b", "op": "matmul", "inputs": ["a", "w1"]},
    {"name": "c", "op": "matmul", "inputs": ["b", "w2"]},
    {"name": "d", "op": "matmul", "inputs": ["c", "w3"]},
    {"name": "out", "op": "add", "inputs": ["d", "a"]}
  ],
  "outputs": ["out"]
}"#;

/// Runs a network without caps, and pinned to one device that holds less, beside one that holds
/// `host`; gives the plan that was rewritten, which is checked and gives the same bits.
fn with_caps_of(network: &Network, thousandths: u64, host: u64) -> Option<Compiled> {
    let pins = || vec![("*".to_owned(), "cpu0.0".to_owned())];
    let place = || place::Options { pins: pins(), ..place::Options::default() };
    let whole = network.plan_with("cpu[64GB,64GB]", place()).unwrap();
    let usage = &whole.schedule.devices[0];
    let cap = usage.resident.0 + (usage.arena.0 - usage.resident.0) / 1000 * thousandths;
    let tight = network.plan_with(&format!("cpu[{cap}B,{host}B]"), place()).ok()?;
    assert!(tight.schedule.devices[0].arena.0 <= cap);
    partition::unstable::plan::check(&tight.plan).unwrap();
    assert_eq!(network.run(&tight).unwrap(), network.run(&whole).unwrap(), "under {cap} bytes");
    Some(tight)
}

fn runs_again(compiled: &Compiled) -> bool {
    let again = |step: &partition::unstable::plan::Step| match &step.action {
        partition::unstable::plan::Action::Launch(launch) => launch.again,
        partition::unstable::plan::Action::Copy(_) => false,
    };
    compiled.plan.steps.iter().any(again)
}

/// The network of [`LATE_READER`], or one whose first product is made of a larger tensor, so that
/// computing it again frees nothing.
fn late_reader(folder: &std::path::Path, large: bool) -> Network {
    let text = if large {
        let params = r#""params": [{"name": "w", "type": "f32[16, 1024]", "init": "glorot_uniform"},"#;
        let nodes = r#""nodes": [{"name": "s", "op": "matmul", "inputs": ["x", "w"]},"#;
        let text = LATE_READER.replace(r#""params": ["#, params).replace(r#""nodes": ["#, nodes);
        text.replace(r#"["x", "w0"]"#, r#"["s", "w0"]"#).replace("f32[16, 512]", "f32[1024, 512]")
    } else {
        LATE_READER.to_owned()
    };
    let path = folder.join("late_reader.json");
    std::fs::write(&path, text).unwrap();
    Network::open(&path).unwrap()
}

#[test]
fn what_runs_again_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let network = late_reader(folder.path(), false);
    let again = with_caps_of(&network, 875, 1).expect("a is computed again");
    assert!(runs_again(&again) && again.schedule.offload.is_empty());
    assert!(again.plan.notes.iter().any(|note| note.contains("run again")), "{:?}", again.plan.notes);
}

#[test]
fn what_is_offloaded_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let network = late_reader(folder.path(), true);
    assert!(with_caps_of(&network, 875, 1).is_none(), "there is no host with room");
    let offloaded = with_caps_of(&network, 875, 1 << 20).expect("a is offloaded");
    assert!(!runs_again(&offloaded) && offloaded.schedule.offload.len() == 1);
}

/// A network of the corpus under a cap below its peak.
#[test]
fn a_corpus_network_that_runs_kernels_again_gives_the_same_bits() {
    let Some(path) = shared::file("corpus/onnx/s_sd_unet.onnx") else { return };
    let network = Network::open(&path).unwrap();
    let found = with_caps_of(&network, 980, 1 << 30).expect("kernels run again");
    assert!(runs_again(&found));
}

/// The largest batch by trying every one.
#[test]
fn the_largest_batch_is_that_of_brute_force() {
    for name in ["mlp_small.k3.json", "cnn_small.k3.json", "transformer_small.k3.json"] {
        let Some(path) = shared::file(&format!("corpus/keras/{name}")) else { return };
        let network = Network::open(&path).unwrap();
        let one = network.plan("cpu:memory=64GB", DeviceUse::Auto).unwrap();
        let usage = &one.schedule.devices[0];
        let cap = usage.resident.0 + (usage.arena.0 - usage.resident.0) * 9 + 77;
        let topology = Topology::parse(&format!("cpu:memory={cap}B")).unwrap();
        let options = compile::Options::default();
        let model = Model::Graph(network.graph.clone());
        let found = largest_batch(&model, &topology, &options, &Control::new()).unwrap();
        let fits = |batch: i64| {
            let split = compile::SplitOptions { auto: false, ..compile::SplitOptions::default() };
            let options = compile::Options { batch: Some(batch), split, ..compile::Options::default() };
            compile(Model::Graph(network.graph.clone()), &topology, &options).is_ok()
        };
        let most = (1..found.batch * 2 + 4).filter(|&batch| fits(batch)).max();
        assert_eq!(Some(found.batch), most, "{name}");
        assert!(found.batch > 1 && found.refused.is_some(), "{name}: {}", found.batch);
        for line in &found.memory {
            assert!(line.total <= line.cap);
            let samples = line.per_sample.0 as i64 * line.batch + line.fixed;
            let rest = line.parameters + line.state + line.workspace + line.unused + line.reserve;
            assert_eq!(samples as u64 + rest.0, line.total.0, "{name}: {line:?}");
        }
    }
}

long! {
    the_largest_batch_of_a_pipeline_is_that_of_brute_force;
}

/// In microbatches the sizes are their multiples, and the equation speaks of one of them.
fn the_largest_batch_of_a_pipeline_is_that_of_brute_force() {
    let Some(path) = shared::file("corpus/keras/mlp_small.k3.json") else { return };
    let network = Network::open(&path).unwrap();
    let one = network.plan("cpu:memory=64GB", DeviceUse::Auto).unwrap();
    let usage = &one.schedule.devices[0];
    let cap = usage.resident.0 + (usage.arena.0 - usage.resident.0) * 9 + 77;
    let topology = Topology::parse(&format!("2xcpu:cores=1,use=compute,memory={cap}B")).unwrap();
    let order = strategy::pipeline::Order::Auto;
    let pipeline = Some(strategy::pipeline::Options { microbatches: 3, order });
    let fast = place::Options { effort: place::Effort::Fast, ..place::Options::default() };
    let options = compile::Options { pipeline, place: fast, ..compile::Options::default() };
    let found =
        largest_batch(&Model::Graph(network.graph.clone()), &topology, &options, &Control::new()).unwrap();
    let fits = |units: i64| {
        let options = compile::Options { batch: Some(3 * units), ..options.clone() };
        compile(Model::Graph(network.graph.clone()), &topology, &options).is_ok()
    };
    let most = (1..found.batch).filter(|&units| fits(units)).max();
    assert_eq!(Some(found.batch), most.map(|units| 3 * units));
    assert!(found.batch > 6 && found.refused.is_some(), "{}", found.batch);
    for line in &found.memory {
        assert_eq!(line.batch, found.batch / 3);
        assert!(line.per_sample > Bytes::ZERO && line.total <= line.cap, "{line:?}");
    }
}

#[test]
fn in_place_pairs_are_written_and_read() {
    let graph = graph(&mut Rng::new(3), 12);

    let text = partition::unstable::load::write_costgraph(&graph);
    let Model::CostGraph { graph: again, .. } = partition::unstable::load::load(
        text.as_bytes(),
        None,
        &partition::unstable::load::LoadOptions::default(),
    )
    .unwrap() else {
        panic!("a cost graph")
    };
    assert_eq!(graph, again, "in-place pairs are written and read");
    assert!(graph.nodes().any(|node| graph.in_place(node).next().is_some()));
}

/// Bytes of a device's arena that some buffer covers.
fn covered(schedule: &Schedule, device: DeviceId) -> u64 {
    let own = schedule.buffers.iter().filter(|buffer| buffer.device == device);
    let mut ranges: Vec<(u64, u64)> = own.map(|b| (b.offset.0, (b.offset + b.bytes).0)).collect();
    ranges.sort_unstable();
    ranges
        .iter()
        .fold((0, 0), |(sum, end), &(from, to)| (sum + to.saturating_sub(from.max(end)), end.max(to)))
        .0
}

/// `wide` needs all of its workspace while `late` is still being made on the other device: what is
/// copied from there comes after `wide` on the timeline, and waits for it, so that it lies where the
/// workspace was.
#[test]
fn a_copy_that_comes_late_anyway_waits_for_what_is_over_by_then() {
    let mut builder = Builder::new("late", vec!["cpu".into()]);
    let mut add = |name: &str, time: u64, workspace: u64, bytes: u64, reads: &[_]| {
        let (times, outputs) = ([Some(Nanos(time))], [Bytes(bytes)]);
        let workspace = Bytes(workspace);
        let node =
            NodeSpec { name, op: "f", times: &times, workspace, outputs: &outputs, ..NodeSpec::default() };
        let node = builder.add(&node).unwrap();
        reads.iter().for_each(|&read| builder.connect(read, 0, node));
        node
    };
    let wide = add("wide", 1_000, 64_000, 64, &[]);
    let late = add("late", 9_000, 0, 640, &[]);
    add("join", 1_000, 0, 64, &[wide, late]);
    let graph = builder.finish().unwrap();
    let topology = Topology::parse("2xcpu:cores=1,memory=1MB").unwrap();
    let device = vec![DeviceId(0), DeviceId(1), DeviceId(0)];
    let placement = Placement { device, ..Placement::default() };
    let loose = schedule(&graph, &topology, &placement, &Options::default()).unwrap();
    let packed = loose.clone().pack(&graph, Packing::new(1_000_000));
    let copy = packed.steps.iter().position(|step| matches!(step.action, Action::Copy { .. })).unwrap();
    assert_eq!(packed.steps[copy].control.len(), 1, "{:?}", packed.steps[copy]);
    assert_eq!(packed.cost, loose.cost);
    assert_eq!(packed.devices[0].peak, Bytes(64_000 + 64));
    assert_eq!(covered(&packed, DeviceId(0)), packed.devices[0].peak.0);
    let ends = |schedule: &Schedule| schedule.steps.iter().map(|step| step.end).collect::<Vec<_>>();
    assert_eq!(ends(&packed), ends(&loose));
}

/// Of the corpus the plans whose arenas used more bytes than their peaks before late copies waited, up to what
/// buffers of different lengths cover that take turns at an aligned place.
#[test]
fn no_more_bytes_are_used_than_at_the_peak() {
    for name in ["keras/siamese_multi_io.k2.json", "onnx/s_vit.onnx"] {
        let Some(path) = shared::file(&format!("corpus/{name}")) else { return };
        let network = Network::open(&path).unwrap();
        let compiled = network.plan("2xcpu:cores=1", DeviceUse::All).unwrap();
        for (device, usage) in compiled.schedule.devices.iter().enumerate() {
            let covered = covered(&compiled.schedule, DeviceId(device as u32));
            assert!(
                covered <= usage.peak.0 + 64,
                "{name}: {covered} bytes of {}, peak {}",
                usage.arena,
                usage.peak
            );
        }
    }
}

/// Of what a kernel reads, one operand lies in another: neither is written over before both are read.
#[test]
fn no_result_takes_the_place_of_an_operand_in_which_another_lies() {
    const MODEL: &str = r#"{"partition_model": 1, "name": "shares",
      "inputs": [{"name": "x", "type": "f32[2, 64]"}],
      "nodes": [{"name": "r", "op": "relu", "inputs": ["x"]},
        {"name": "first", "op": "slice", "inputs": ["r"], "starts": [0, 0], "sizes": [1, 64], "steps": [1, 1]},
        {"name": "y", "op": "sub", "inputs": ["r", "first"]}],
      "outputs": ["y"]}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shares.json");
    std::fs::write(&path, MODEL).unwrap();
    let mut network = Network::open(&path).unwrap();
    let values: Vec<f32> = (0..128).map(|at| (at * 7 % 31) as f32).collect();
    network.inputs = vec![("x".to_owned(), Tensor::from_f32(vec![2, 64], &values).unwrap())];
    let compiled = network.plan("cpu", DeviceUse::Auto).unwrap();
    let found = network.run(&compiled).unwrap();
    let expected: Vec<f32> = (0..128).map(|at| values[at] - values[at % 64]).collect();
    assert_eq!(found[0].1.to_f32().unwrap(), expected);
}
