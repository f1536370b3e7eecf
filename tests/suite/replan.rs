//! Plans that replace others: caps hold, little state moves, and what moves is told truly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use partition::unstable::compile::{self, Compiled, Options};
use partition::unstable::control::Control;
use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, Role};
use partition::unstable::error::Error;
use partition::unstable::load::{LoadOptions, load};
use partition::unstable::place::{self, Effort, Objective, Previous, Stability};
use partition::unstable::plan::{self, BufferKind, Foreign, Plan};
use partition::unstable::topology::{Communication, Contention, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::cli::{Folder, example};
use crate::random_costgraph::{Links, Rng, topology};
use crate::random_problem::{Sizes, problem};
use crate::shared;

/// A chain with branches and state: `nodes` layers of `param` bytes, some weights tied.
fn layers(rng: &mut Rng, nodes: usize) -> CostGraph {
    let mut b = Builder::new("layers", vec!["cpu".into()]);
    let mut made: Vec<NodeIx> = Vec::new();
    for at in 0..nodes {
        let shared = rng.chance(20);
        let weight = b
            .add(&NodeSpec {
                name: &format!("w{at}"),
                op: "param",
                times: &[Some(Nanos(0))],
                param_bytes: if shared { Bytes(700) } else { Bytes(100 + rng.below(900)) },
                params: shared.then_some("shared"),
                outputs: &[Bytes(64)],
                ..NodeSpec::default()
            })
            .expect("a parameter");
        let layer = b
            .add(&NodeSpec {
                name: &format!("n{at}"),
                op: "layer",
                times: &[Some(Nanos(100 + rng.below(300)))],
                param_bytes: Bytes(if rng.chance(30) { 300 } else { 0 }),
                outputs: &[Bytes(64 * (1 + rng.below(8)))],
                ..NodeSpec::default()
            })
            .expect("a layer");
        b.connect(weight, 0, layer);
        if let Some(&last) = made.last() {
            b.connect(last, 0, layer);
            if rng.chance(30) {
                b.connect(made[rng.below(made.len() as u64) as usize], 0, layer);
            }
        }
        made.push(layer);
    }
    b.finish().expect("acyclic")
}

/// Little work: what is tested does not depend on how good plans are.
fn quick() -> place::Options {
    place::Options { effort: Effort::Fast, ..place::Options::default() }
}

fn devices(count: u32, memory: u64) -> Topology {
    let links = Links::Direct(Contention::Link);
    topology(count, 1, Bytes(memory), links, Nanos(50), Communication::Overlapped)
}

/// Holders of each item of state: a parameter's readers' devices, a node's own.
fn holders(graph: &CostGraph, of: &BTreeMap<String, String>) -> BTreeMap<String, (u64, BTreeSet<String>)> {
    let mut holders: BTreeMap<String, (u64, BTreeSet<String>)> = BTreeMap::new();
    let device = |node: NodeIx| of.get(graph.node_name(node)).cloned();
    for node in graph.nodes() {
        if let Some(param) = graph.param(node) {
            let name = format!("param {}", graph.param_name(param));
            let entry = holders.entry(name).or_insert((graph.param_bytes(param).0, BTreeSet::new()));
            for tensor in graph.outputs(node) {
                entry.1.extend(graph.consumers(tensor).iter().filter_map(|&reader| device(reader)));
                if graph.is_result(tensor) {
                    entry.1.extend(device(node));
                }
            }
        } else if graph.role(node) == Role::Compute && graph.owned_bytes(node) > Bytes::ZERO {
            let own = device(node).into_iter().collect();
            holders.insert(format!("own {}", graph.node_name(node)), (graph.owned_bytes(node).0, own));
        }
    }
    // What nobody reads is at home.
    for node in graph.nodes() {
        let Some(param) = graph.param(node) else { continue };
        let unread = holders.get_mut(&format!("param {}", graph.param_name(param)));
        if let Some((_, devices)) = unread.filter(|(_, devices)| devices.is_empty()) {
            devices.extend(device(node));
        }
    }
    holders.retain(|_, (bytes, _)| *bytes > 0);
    holders
}

/// (moved, lost, new), from the names alone.
fn state(
    graph: &CostGraph,
    old: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
    topology: &Topology,
) -> (u64, u64, u64) {
    let there: BTreeSet<&str> = topology.devices.iter().map(|device| device.name.as_str()).collect();
    let (before, after) = (holders(graph, old), holders(graph, new));
    let (mut moved, mut lost, mut fresh) = (0, 0, 0);
    for (name, (bytes, now)) in after {
        let had = &before[&name].1;
        let kept: BTreeSet<&String> = had.iter().filter(|device| there.contains(device.as_str())).collect();
        let arriving = now.iter().filter(|device| !kept.contains(device)).count() as u64;
        match (had.is_empty(), kept.is_empty()) {
            (true, _) => fresh += bytes * arriving,
            (false, true) => {
                lost += bytes;
                moved += bytes * arriving.saturating_sub(1);
            }
            (false, false) => moved += bytes * arriving,
        }
    }
    (moved, lost, fresh)
}

fn by_name(plan: &Plan) -> BTreeMap<String, String> {
    plan.placement.iter().cloned().collect()
}

fn from(plan: &Plan, stability: Stability) -> Option<Arc<Previous>> {
    Some(Arc::new(Previous { stability, ..Previous::from(plan) }))
}

fn replan(
    graph: &CostGraph,
    topology: &Topology,
    old: &Plan,
    stability: Stability,
    objective: Objective,
) -> partition::Result<Plan> {
    let options = place::Options { objective, from: from(old, stability), ..quick() };
    partition::unstable::compile::plan(graph, topology, &options)
}

/// What a plan says of its state is what the two placements say.
fn told_truly(graph: &CostGraph, topology: &Topology, old: &Plan, new: &Plan, what: &str) -> (u64, u64, u64) {
    plan::check(new).unwrap_or_else(|error| panic!("{what}: {error}"));
    let expected = state(graph, &by_name(old), &by_name(new), topology);
    let told = new.replan.as_ref().expect("a plan that replaces another says so");
    assert_eq!((told.moved_bytes.0, told.lost_bytes.0, told.new_bytes.0), expected, "{what}");
    let sum: u64 = told.state.iter().map(|item| item.bytes.0).sum();
    assert_eq!(sum, expected.0 + expected.1 + expected.2, "{what}");
    expected
}

#[test]
fn without_a_change_nothing_moves() {
    let mut rng = Rng::new(1);
    for case in 0..24 {
        let graph = layers(&mut rng, 4 + case % 20);
        let total: u64 = holders(&graph, &BTreeMap::new()).values().map(|(bytes, _)| bytes).sum();
        let topology = devices(3, total / 2 + 4000);
        let objective = Objective::ALL[case % 3];
        let options = place::Options { objective, ..quick() };
        let Ok(old) = partition::unstable::compile::plan(&graph, &topology, &options) else { continue };
        for stability in [Stability::default(), Stability::Limit(Bytes(0)), Stability::Weight(3.0)] {
            let new = replan(&graph, &topology, &old, stability, objective).expect("what fitted fits");
            assert_eq!(new.placement, old.placement, "case {case} {stability:?}");
            assert_eq!(new.cost.transfer_bytes, old.cost.transfer_bytes, "case {case} {stability:?}");
            if objective == Objective::Latency {
                // The order is the old plan's; the search that improves upon it begins anew.
                let (new, old) = (new.cost.latency_ns.0, old.cost.latency_ns.0);
                assert!(new <= old + old / 20, "case {case} {stability:?}: {new} after {old}");
            }
            assert_eq!(told_truly(&graph, &topology, &old, &new, "same"), (0, 0, 0));
        }
    }
}

#[test]
fn lost_added_and_resized_devices() {
    let mut rng = Rng::new(2);
    let (mut lost, mut moved, mut kept) = (0, 0, 0);
    for case in 0..45 {
        let graph = layers(&mut rng, 4 + case % 24);
        let total: u64 = holders(&graph, &BTreeMap::new()).values().map(|(bytes, _)| bytes).sum();
        let objective = Objective::ALL[case % 3];
        let options = place::Options { objective, devices: place::DeviceUse::All, ..quick() };
        let Ok(old) = partition::unstable::compile::plan(&graph, &devices(3, total / 2 + 5000), &options)
        else {
            continue;
        };
        let topology = match case / 3 % 3 {
            0 => devices(2, total * 2 / 3 + 6000),
            1 => devices(5, total / 2 + 5000),
            _ => devices(3, total * 2 / 5 + 4500),
        };
        let free = replan(&graph, &topology, &old, Stability::Weight(0.0), objective);
        let Ok(free) = free else { continue };
        let (most, _, _) = told_truly(&graph, &topology, &old, &free, "free");
        for limit in [0, most / 3, most] {
            let what = format!("case {case} limit {limit}");
            let new =
                replan(&graph, &topology, &old, Stability::Limit(Bytes(limit)), objective).expect("fits");
            let sums = told_truly(&graph, &topology, &old, &new, &what);
            // A smaller cap may force more; a device lost or added forces nothing.
            if case / 3 % 3 == 1 || limit == most {
                assert!(sums.0 <= limit, "{what}: {sums:?}");
            }
            kept += usize::from(sums.0 <= limit);
            moved += usize::from(sums.0 > 0);
            lost += usize::from(sums.1 > 0);
        }
    }
    assert!(lost > 5 && moved > 5 && kept > 40, "{lost} lost, {moved} moved, {kept} within the limit");
}

#[test]
fn more_weight_moves_no_more_and_costs_what_it_says() {
    let mut rng = Rng::new(3);
    for case in 0..10 {
        let graph = layers(&mut rng, 10 + case % 10);
        let total: u64 = holders(&graph, &BTreeMap::new()).values().map(|(bytes, _)| bytes).sum();
        let Ok(old) = partition::unstable::compile::plan(&graph, &devices(3, total / 2 + 5000), &quick())
        else {
            continue;
        };
        let topology = devices(2, total + 20_000);
        let value = |weight: f64, plan: &Plan| {
            let moved = plan.replan.as_ref().expect("told").moved_bytes.0 as f64;
            plan.cost.transfer_bytes.0 as f64 + weight * moved
        };
        let plans: Vec<(f64, Plan)> = [0.0, 0.1, 10.0]
            .into_iter()
            .map(|weight| {
                (
                    weight,
                    replan(&graph, &topology, &old, Stability::Weight(weight), Objective::Transfer)
                        .expect("fits"),
                )
            })
            .collect();
        // All fits on one device: without a price that is best, and nothing is then moved in a step.
        assert_eq!(plans[0].1.cost.transfer_bytes, Bytes(0), "case {case}");
        for (weight, plan) in &plans {
            told_truly(&graph, &topology, &old, plan, "weight");
            assert!(value(*weight, plan) <= value(*weight, &plans[0].1) + 1.0, "case {case} weight {weight}");
        }
    }
}

/// Whatever the graph, the devices, the options and what has become of them.
#[test]
fn random_problems_are_planned_again_soundly() {
    let (mut replanned, mut moved) = (0, 0);
    for seed in 0..110 {
        let mut first = problem(seed, 30);
        first.options.effort = Effort::Fast;
        let control = Control::new().threads(2);
        let Ok(old) =
            partition::unstable::compile::plan_with(&first.graph, &first.topology, &first.options, &control)
        else {
            continue;
        };
        let topology = problem(seed + 1, 30).topology;
        let stability = [
            Stability::default(),
            Stability::Limit(Bytes(0)),
            Stability::Limit(Bytes(5000)),
            Stability::Weight(0.0),
            Stability::Weight(1e300),
        ][seed as usize % 5];
        let options = place::Options { from: from(&old, stability), ..first.options.clone() };
        let plan = |threads| {
            partition::unstable::compile::plan_with(
                &first.graph,
                &topology,
                &options,
                &Control::new().threads(threads),
            )
        };
        let new = match plan(2) {
            Ok(new) => new,
            Err(Error::Internal(what)) => panic!("seed {seed}: {what}"),
            Err(_) => continue,
        };
        plan::check_costgraph(&new, &first.graph).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(plan(1).is_ok_and(|one| one.to_json() == new.to_json()), "seed {seed}");
        replanned += 1;
        if first.sizes != Sizes::Enormous {
            let sums = told_truly(&first.graph, &topology, &old, &new, &format!("seed {seed}"));
            moved += usize::from(sums.0 > 0);
        }
    }
    assert!(replanned > 25 && moved > 1, "{replanned} planned again, {moved} with moves");
}

/// No exchange of equal devices of the new plan would move less.
#[test]
fn equal_devices_are_relabelled_as_well_as_can_be() {
    let mut rng = Rng::new(4);
    for case in 0..16 {
        let graph = layers(&mut rng, 8 + case % 12);
        let total: u64 = holders(&graph, &BTreeMap::new()).values().map(|(bytes, _)| bytes).sum();
        let topology = devices(4, total / 3 + 6000);
        let options = place::Options { devices: place::DeviceUse::All, ..quick() };
        let Ok(mut old) = partition::unstable::compile::plan(&graph, &topology, &options) else { continue };
        // The devices of the old plan, exchanged, and some nodes elsewhere.
        for (_, device) in &mut old.placement {
            let number: u32 = device[3..].parse().expect("cpuN");
            let other = if rng.chance(15) { rng.below(4) as u32 } else { (number + 1 + case as u32 % 3) % 4 };
            *device = format!("cpu{other}");
        }
        let from = from(&old, Stability::Weight(0.0));
        let options = place::Options { from, ..options };
        let new = partition::unstable::compile::plan(&graph, &topology, &options).expect("a plan");
        let names = by_name(&new);
        let moved = state(&graph, &by_name(&old), &names, &topology).0;
        for permutation in permutations(4) {
            let exchanged = names
                .iter()
                .map(|(node, device)| {
                    let number: usize = device[3..].parse().expect("cpuN");
                    (node.clone(), format!("cpu{}", permutation[number]))
                })
                .collect();
            let other = state(&graph, &by_name(&old), &exchanged, &topology).0;
            assert!(moved <= other, "case {case}: {moved} moved, {other} with {permutation:?}");
        }
    }
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let smaller = permutations(n - 1);
    let insert = |at: usize, rest: &Vec<usize>| {
        let mut longer = rest.clone();
        longer.insert(at, n - 1);
        longer
    };
    (0..n).flat_map(|at| smaller.iter().map(move |rest| insert(at, rest))).collect()
}

fn network(
    bytes: &[u8],
    spec: &str,
    old: Option<&Plan>,
    stability: Stability,
) -> partition::Result<Compiled> {
    let model = load(bytes, None, &LoadOptions::default())?;
    let from = old.map(|_| Arc::new(Previous { stability, ..Previous::default() }));
    let options = Options {
        from: old.map(Foreign::from),
        place: place::Options { from, ..quick() },
        // What a plan that splits nothing moves is what is told here.
        split: compile::SplitOptions { auto: false, ..compile::SplitOptions::default() },
        ..Options::default()
    };
    compile::compile(model, &Topology::parse(spec)?, &options)
}

/// (moved, lost, new), from the buffers of two plans of networks.
fn of_buffers(old: &Plan, new: &Plan) -> (u64, u64, u64) {
    let holders = |plan: &Plan| -> BTreeMap<String, (u64, BTreeSet<String>)> {
        let mut holders: BTreeMap<String, (u64, BTreeSet<String>)> = BTreeMap::new();
        for buffer in
            plan.buffers.iter().filter(|buffer| matches!(buffer.kind, BufferKind::Param | BufferKind::Const))
        {
            let name = buffer.value.split_once(' ').map_or(buffer.value.as_str(), |(_, name)| name);
            let entry = holders.entry(name.to_owned()).or_insert((buffer.bytes.0, BTreeSet::new()));
            entry.1.insert(buffer.device.clone());
        }
        holders
    };
    let there: BTreeSet<&String> = new.devices.iter().map(|device| &device.name).collect();
    let before = holders(old);
    let mut sums = (0, 0, 0);
    for (name, (bytes, now)) in holders(new) {
        let Some((_, had)) = before.get(&name) else {
            sums.2 += bytes * now.len() as u64;
            continue;
        };
        let kept: BTreeSet<&String> = had.iter().filter(|device| there.contains(device)).collect();
        let arriving = now.iter().filter(|device| !kept.contains(device)).count() as u64;
        if kept.is_empty() {
            sums.1 += bytes;
            sums.0 += bytes * (arriving - 1);
        } else {
            sums.0 += bytes * arriving;
        }
    }
    sums
}

fn network_told_truly(old: &Plan, new: &Plan, what: &str) -> (u64, u64, u64) {
    plan::check(new).unwrap_or_else(|error| panic!("{what}: {error}"));
    let expected = of_buffers(old, new);
    let told = new.replan.as_ref().expect("told");
    assert_eq!((told.moved_bytes.0, told.lost_bytes.0, told.new_bytes.0), expected, "{what}");
    let diff = plan::diff(old, new).state.expect("networks have buffers");
    assert_eq!((diff.moved_bytes.0, diff.lost_bytes.0, diff.new_bytes.0), expected, "{what}");
    expected
}

#[test]
fn a_network_loses_a_device_gains_one_and_is_edited() {
    let bytes = std::fs::read(example("mlp.json")).expect("an example");
    let old = network(&bytes, "3xa100-80g:memory=3MB", None, Stability::default()).expect("a plan").plan;
    let same =
        network(&bytes, "3xa100-80g:memory=3MB", Some(&old), Stability::default()).expect("a plan").plan;
    assert_eq!((&same.placement, same.cost), (&old.placement, old.cost));
    assert_eq!(network_told_truly(&old, &same, "same"), (0, 0, 0));

    let less = network(&bytes, "2xa100-80g:memory=5MB", Some(&old), Stability::Limit(Bytes(0)))
        .expect("a plan")
        .plan;
    let sums = network_told_truly(&old, &less, "lost");
    assert!(sums.0 == 0 && sums.1 > 2_000_000, "{sums:?}");

    let more =
        network(&bytes, "4xa100-80g:memory=3MB", Some(&old), Stability::default()).expect("a plan").plan;
    assert_eq!(network_told_truly(&old, &more, "added"), (0, 0, 0));

    // The middle block is left out: its neighbours stay.
    let mut model: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
    let nodes = model["nodes"].as_array_mut().expect("nodes");
    nodes.retain(|node| !node["name"].as_str().is_some_and(|name| name.starts_with("block1/")));
    let text = model.to_string().replace("\"block1/add\"", "\"block0/add\"");
    let edited = network(text.as_bytes(), "3xa100-80g:memory=3MB", Some(&old), Stability::Limit(Bytes(0)));
    let edited = edited.expect("a plan").plan;
    let sums = network_told_truly(&old, &edited, "edited");
    assert_eq!(sums, (0, 0, 0));
    let diff = plan::diff(&old, &edited);
    assert!(diff.moved.is_empty() && diff.new.is_empty(), "{diff}");
    assert!(diff.gone.iter().all(|node| node.node.starts_with("block1/")), "{diff}");
    // And back in: only what was not there is new.
    let back = network(&bytes, "3xa100-80g:memory=3MB", Some(&edited), Stability::Limit(Bytes(0)))
        .expect("a plan")
        .plan;
    let sums = network_told_truly(&edited, &back, "back in");
    assert!(sums.0 == 0 && sums.1 == 0 && sums.2 > 2_000_000, "{sums:?}");
}

#[test]
fn a_real_network_loses_a_device() {
    let Some(path) = shared::file("corpus/onnx/s_gpt2.onnx") else { return };
    let bytes = std::fs::read(path).expect("a model");
    let on = |count: u32, cap: u64, old: Option<&Plan>| {
        network(&bytes, &format!("{count}xl4-24g:memory={cap}B"), old, Stability::default())
            .map(|compiled| compiled.plan)
    };
    let arena = on(1, 24_000_000_000, None).expect("it fits on one").devices[0].arena.0;
    let old = [45, 55, 65].iter().find_map(|part| on(3, arena * part / 100, None).ok()).expect("a plan");
    let cap = arena * 9 / 10;
    let new = on(2, cap, Some(&old)).expect("a plan");
    let sums = network_told_truly(&old, &new, "s_gpt2");
    let used = old.placement.iter().any(|(_, device)| device == "cuda2");
    assert_eq!(sums.1 > 0, used, "{sums:?}");
    let fresh = on(2, cap, None).expect("a plan");
    assert!(sums.0 <= of_buffers(&old, &fresh).0, "keeping to a plan moves no more than not looking at it");
}

#[test]
fn the_program_replans_and_compares() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let plan = |spec: &str, rest: &[&str]| folder.ok(&[&[model.as_str(), "--devices", spec], rest].concat());
    plan("3xa100-80g:memory=3MB", &["-o", "old.json"]);
    let summary = plan("2xa100-80g:memory=5MB", &["--from", "old.json", "-o", "new.json"]);
    assert!(summary.contains("state      0 B moved, 2.1"), "{summary}");
    assert!(folder.ok(&["check", "new.json", "--model", &model]).contains("of this model"));
    let diff = folder.ok(&["diff", "old.json", "new.json"]);
    for part in ["devices gone: cuda2", "state to load: 0 B moved", "cuda2 -> "] {
        assert!(diff.contains(part), "{part} is missing in\n{diff}");
    }
    let diff = folder.ok(&["diff", "old.json", "new.json", "--json"]);
    let diff: serde_json::Value = serde_json::from_str(&diff).expect("JSON");
    assert_eq!(diff["went"][0], "cuda2");
    // A name-to-device file does as well as a plan.
    folder.ok(&["export", "old.json", "--format", "json", "-o", "names.json"]);
    let again = plan("2xa100-80g:memory=5MB", &["--from", "names.json", "--emit", "plan"]);
    let new = Plan::load(folder.path("new.json")).expect("a plan");
    assert_eq!(Plan::from_json(again.as_bytes(), "again").expect("a plan").placement, new.placement);
    let wrong = folder.fails(2, &[&model, "--devices", "cpu", "--from", "old.json", "--stability", "much"]);
    assert!(wrong.contains("--stability much"), "{wrong}");
    let alone = folder.run(&[&model, "--devices", "cpu", "--stability", "1"]);
    assert_eq!(alone.code, 2);
}

/// By device and parameter: which elements lie there, marked one by one.
fn elements_on(plan: &Plan, whole: &Plan) -> BTreeMap<(String, String), Vec<bool>> {
    let name = |value: &str| value.split_once(' ').map_or(value, |(_, name)| name).to_owned();
    let params = |plan: &Plan| -> Vec<plan::Buffer> {
        plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Param).cloned().collect()
    };
    let sizes = |buffer: &plan::Buffer| -> Vec<u64> {
        let (_, list) = buffer.ty.trim_end_matches(']').split_once('[').expect("a shape");
        list.split(',').map(|size| size.parse().expect("a size")).collect()
    };
    let dims: BTreeMap<String, Vec<u64>> =
        params(whole).iter().map(|buffer| (name(&buffer.value), sizes(buffer))).collect();
    let mut on: BTreeMap<(String, String), Vec<bool>> = BTreeMap::new();
    for buffer in params(plan) {
        let param = buffer.of.clone().unwrap_or_else(|| name(&buffer.value));
        let dims = &dims[&param];
        let marks = on.entry((buffer.device.clone(), param)).or_default();
        marks.resize(dims.iter().product::<u64>() as usize, false);
        for (at, mark) in marks.iter_mut().enumerate() {
            let mut rest = at as u64;
            let mut inside = true;
            for axis in (0..dims.len()).rev() {
                let (start, end) = buffer.bounds.get(axis).copied().unwrap_or((0, dims[axis]));
                inside &= (start..end).contains(&(rest % dims[axis]));
                rest /= dims[axis];
            }
            *mark |= inside;
        }
    }
    on
}

#[test]
fn slices_that_lie_there_already_are_not_loaded() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let plan = |rest: &[&str], to: &str| {
        folder.ok(&[&[model.as_str(), "--devices", "cpu[3x8MB]", "-o", to], rest].concat());
        Plan::load(folder.path(to)).expect("a plan")
    };
    let split = |parts: &str| format!("*=-1:{parts}");
    let whole = plan(&["--split", "none", "--pin", "*=cpu0.1"], "whole.json");
    let two = plan(&["--split", &split("2@cpu0.0,cpu0.1")], "two.json");
    let three = plan(&["--split", &split("3@cpu0.0,cpu0.1,cpu0.2")], "three.json");
    let plans = [("whole.json", &whole), ("two.json", &two), ("three.json", &three)];
    for ((old_name, old), (new_name, new)) in plans.iter().flat_map(|old| plans.map(|new| (*old, new))) {
        let (before, after) = (elements_on(old, &whole), elements_on(new, &whole));
        let missing = |(at, marks): (&(String, String), &Vec<bool>)| {
            let had = before.get(at);
            marks.iter().enumerate().filter(|&(i, &here)| here && !had.is_some_and(|had| had[i])).count()
        };
        let expected = 4 * after.iter().map(missing).sum::<usize>();
        let diff = folder.ok(&["diff", old_name, new_name, "--json"]);
        let diff: serde_json::Value = serde_json::from_str(&diff).expect("JSON");
        let told = ["moved_bytes", "lost_bytes", "new_bytes"].map(|key| diff["state"][key].as_u64());
        assert_eq!(told, [Some(expected as u64), Some(0), Some(0)], "{old_name} {new_name}");
        assert_eq!(expected == 0, old_name == new_name);
    }
}

#[test]
fn parts_of_what_was_whole_are_told_from_where_it_was() {
    let folder = Folder::new();
    let model = example("seed_stack.json");
    folder.ok(&[&model, "--devices", "cpu[12x6MB]", "-o", "old.json"]);
    folder.ok(&[&model, "--devices", "cpu[12x3900kB]", "--from", "old.json", "-o", "new.json"]);
    let plan = |name: &str| Plan::load(folder.path(name)).expect("a plan");
    let (old, new) = (plan("old.json"), plan("new.json"));
    let replan = new.replan.as_ref().expect("what it replaces");
    let (before, after) = (elements_on(&old, &old), elements_on(&new, &old));
    let here = |marks: &Vec<bool>| marks.iter().filter(|&&here| here).count();
    let stays =
        |(at, marks): (&(String, String), &Vec<bool>)| if before.contains_key(at) { here(marks) } else { 0 };
    let (all, stays) = (after.values().map(here).sum::<usize>(), after.iter().map(stays).sum::<usize>());
    assert_eq!((replan.new_bytes, replan.lost_bytes), (Bytes::ZERO, Bytes::ZERO));
    assert_eq!(replan.moved_bytes.get(), 4 * (all - stays) as u64);
}

#[test]
fn nodes_of_another_model_came_and_went_and_none_moved() {
    let folder = Folder::new();
    let graph = |name: &str, nodes: [&str; 2]| {
        let node =
            |name: &str| serde_json::json!({"id": name, "op": "matmul", "time_ns": [5000], "outputs": [64]});
        let edge = serde_json::json!([nodes[0], 0, nodes[1]]);
        let graph = serde_json::json!({
            "costgraph": 1, "name": name, "kinds": ["cpu"], "nodes": nodes.map(node), "edges": [edge],
        });
        std::fs::write(folder.path(&format!("{name}.json")), graph.to_string()).expect("written");
        let plan = format!("{name}.plan.json");
        folder.ok(&[&format!("{name}.json"), "-d", "cpu", "-o", &plan]);
        plan
    };
    let (old, new) = (graph("first", ["a", "b"]), graph("second", ["c", "d"]));
    let text = folder.ok(&["diff", &old, &new]);
    assert!(text.contains("0 nodes moved, 2 gone, 2 new, 0 kept"), "{text}");
    for line in ["  a: cpu0 -> (none)", "  d: (none) -> cpu0"] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    let json = folder.ok(&["diff", &old, &new, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let nodes = |list: &str| -> Vec<&str> {
        json[list].as_array().into_iter().flatten().filter_map(|node| node["node"].as_str()).collect()
    };
    assert_eq!(["moved", "gone", "new"].map(nodes), [vec![], vec!["a", "b"], vec!["c", "d"]]);
    // The model is the second plan's.
    folder.ok(&["diff", &old, &new, "--model", "second.json"]);
    let error = folder.fails(1, &["diff", &new, &new, "--model", "first.json"]);
    assert!(error.contains("the plan is of another model"), "{error}");
}
