//! Pipelines: bubbles against closed forms, memory in flight, odd shapes, plans and their check.

use std::collections::BTreeMap;
use std::fmt::Write;

use partition::unstable::compile::{self, Compiled};
use partition::unstable::costgraph::derive::Instance;
use partition::unstable::costgraph::microbatch::{Sizes, microbatches};
use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use partition::unstable::load::Model;
use partition::unstable::place;
use partition::unstable::plan::{Action, CopyAction, Launch, Plan, check, check_costgraph};
use partition::unstable::schedule;
use partition::unstable::strategy::pipeline::{Options, Order};
use partition::unstable::topology::Topology;
use partition::unstable::units::{Bytes, Nanos};
use partition::{Control, Error};

/// What a chain of layers is made of; times and activations are those of one microbatch.
#[derive(Clone, Copy)]
pub(crate) struct Layer {
    pub(crate) forward: u64,
    pub(crate) backward: u64,
    pub(crate) weights: u64,
    pub(crate) activation: u64,
    pub(crate) param: u64,
    /// Bytes of what the forward pass makes of its input first, and reads alone; 0: nothing.
    pub(crate) wide: u64,
}

/// Time 1 us for each pass, no bytes: what theory speaks of.
pub(crate) const EQUAL: Layer =
    Layer { forward: 1000, backward: 1000, weights: 1000, activation: 0, param: 0, wide: 0 };

/// A chain of layers with their backward nodes, given at the size of `batch` microbatches. Extra
/// forward edges (from, to) skip layers, with their gradients; a tied parameter is read by the
/// first and the last layer.
pub(crate) fn training(layers: &[Layer], batch: u64, skips: &[(usize, usize)], tied: bool) -> CostGraph {
    let mut b = Builder::new("chain", vec!["cpu".into()]);
    let mut forward: BTreeMap<NodeIx, NodeIx> = BTreeMap::new();
    let mut add = |name: String, op: &str, time: u64, bytes: u64, owned: u64, of: Option<NodeIx>| {
        let (times, outputs) = ([Some(Nanos(time))], [Bytes(bytes)]);
        let spec = NodeSpec {
            name: &name,
            op,
            times: &times,
            outputs: &outputs,
            param_bytes: Bytes(owned),
            params: (tied && op == "param" && (name == "w0" || name == format!("w{}", layers.len() - 1)))
                .then_some("tied"),
            backward: of.is_some(),
            ..NodeSpec::default()
        };
        let node = b.add(&spec).unwrap();
        forward.extend(of.map(|of| (node, of)));
        node
    };
    let mut edges: Vec<(NodeIx, NodeIx)> = Vec::new();
    let x = add("x".into(), "input", 0, layers[0].activation * batch, 0, None);
    let (mut params, mut made) = (Vec::new(), Vec::new());
    for (number, layer) in layers.iter().enumerate() {
        let param = add(format!("w{number}"), "param", 0, layer.param, layer.param, None);
        let bytes = layer.activation * batch;
        let mut read = made.last().copied().unwrap_or(x);
        if layer.wide > 0 {
            let wide =
                add(format!("e{number}"), "expand", layer.forward * batch, layer.wide * batch, 0, None);
            edges.push((read, wide));
            read = wide;
        }
        let node = add(format!("f{number}"), "matmul", layer.forward * batch, bytes, 0, None);
        edges.extend([(read, node), (param, node)]);
        edges.extend(skips.iter().filter(|skip| skip.1 == number).map(|skip| (made[skip.0], node)));
        params.push(param);
        made.push(node);
    }
    let mut gradient = vec![None; layers.len()];
    for (number, layer) in layers.iter().enumerate().rev() {
        // Nobody asks for the gradient of the inputs; what nobody reads is a result, and stays.
        let (own, bytes) = (made[number], if number == 0 { 0 } else { layer.activation * batch });
        let back = add(format!("b{number}"), "bwd", layer.backward * batch, bytes, 0, Some(own));
        let weights = add(format!("g{number}"), "wgrad", layer.weights * batch, layer.param, 0, Some(own));
        let update = add(format!("u{number}"), "update", 0, layer.param, layer.param, Some(params[number]));
        let before = if number == 0 { x } else { made[number - 1] };
        let after = gradient.get(number + 1).copied().flatten().unwrap_or(own);
        edges.extend([(after, back), (own, back), (params[number], back)]);
        edges.extend([(after, weights), (before, weights), (weights, update), (params[number], update)]);
        for skip in skips.iter().filter(|skip| skip.0 == number) {
            edges.extend(gradient[skip.1].map(|later| (later, back)));
        }
        gradient[number] = Some(back);
    }
    for (producer, reader) in edges {
        b.connect(producer, 0, reader);
    }
    for (node, of) in forward {
        b.set_forward(node, of);
    }
    b.finish().unwrap()
}

/// CPUs with links that take no time but what the bytes need.
pub(crate) fn devices(spec: &str) -> Topology {
    Topology::parse(spec).unwrap()
}

fn free(count: u64) -> Topology {
    devices(&format!("{count}xcpu:cores=1,use=compute,memory=1GB,link=1000GB/s,latency=0ns,contention=none"))
}

fn plan(graph: &CostGraph, topology: &Topology, order: Order, microbatches: u32) -> Compiled {
    try_plan(graph, topology, order, microbatches).unwrap_or_else(|error| panic!("{}: {error}", order.name()))
}

pub(crate) fn try_plan(
    graph: &CostGraph,
    topology: &Topology,
    order: Order,
    microbatches: u32,
) -> Result<Compiled, Error> {
    let options = compile::Options {
        pipeline: Some(Options { microbatches, order }),
        place: place::Options {
            devices: place::DeviceUse::All,
            effort: place::Effort::Fast,
            ..place::Options::default()
        },
        ..compile::Options::default()
    };
    let model = Model::CostGraph { graph: graph.clone(), topology: None };
    let compiled = compile::compile_with(model, topology, &options, &Control::new())?;
    check_costgraph(&compiled.plan, graph).unwrap_or_else(|error| panic!("{error}: {:#?}", error.details()));
    Ok(compiled)
}

fn latency(compiled: &Compiled) -> u64 {
    compiled.schedule.cost.latency.get()
}

/// With fewer microbatches than stages the idle time of a device is more than (s-1)(f+b+w)/v: by hand, for
/// eight devices and four microbatches. Interleaved, two turns: one microbatch crosses 16 stages, the
/// last stage then does the other three, 19 passes of 1.5 us each way and back. Zero bubble: seven stages
/// forward, four times forward and backward on the last, seven back, and one weight pass.
#[test]
fn bubbles_of_few_microbatches_are_the_least_there_are() {
    let passes = |turns: usize| training(&vec![EQUAL; 8 * turns], 4, &[], false);
    let bubble = |compiled: &Compiled| {
        let figures = compiled.pipeline.as_ref().unwrap();
        (figures.bubble, figures.theoretical_bubble)
    };
    let compiled = plan(&passes(2), &free(8), Order::Interleaved, 4);
    let theory = 1.0 - 8.0 / 19.0;
    assert_eq!(latency(&compiled), 19 * 3000);
    assert!([bubble(&compiled).0, bubble(&compiled).1].iter().all(|found| (found - theory).abs() < 1e-9));
    let compiled = plan(&passes(1), &free(8), Order::ZeroBubble, 4);
    let theory = 1.0 - 12.0 / 23.0;
    assert_eq!(latency(&compiled), 23 * 1000);
    assert!([bubble(&compiled).0, bubble(&compiled).1].iter().all(|found| (found - theory).abs() < 1e-9));
}

/// (s-1)(f+b+w)/v beside m(f+b+w): the sources give the idle time of a device.
#[test]
fn bubbles_of_equal_stages_are_those_of_theory() {
    for (stages, turns) in [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (4, 3)] {
        for microbatches in [stages, 2 * stages, 4 * stages] {
            let graph = training(&vec![EQUAL; (stages * turns) as usize], microbatches, &[], false);
            let orders = if turns == 1 {
                vec![Order::Gpipe, Order::OneForwardOneBackward]
            } else {
                vec![Order::Interleaved]
            };
            for order in orders {
                let compiled = plan(&graph, &free(stages), order, microbatches as u32);
                let expected = 3000 * (microbatches * turns + stages - 1);
                let name = format!("{} s={stages} m={microbatches} v={turns}", order.name());
                assert_eq!(latency(&compiled), expected, "{name}");
                let figures = compiled.pipeline.as_ref().unwrap();
                let theory = (stages - 1) as f64 / (microbatches * turns + stages - 1) as f64;
                assert!((figures.bubble - theory).abs() < 1e-9, "{name}: {}", figures.bubble);
                assert!((figures.theoretical_bubble - theory).abs() < 1e-9, "{name}");
                assert_eq!(figures.stages.len() as u64, stages * turns, "{name}");
            }
        }
    }
}

#[test]
fn zero_bubble_leaves_a_third_of_the_bubble_of_1f1b() {
    for stages in [2, 4, 8] {
        for microbatches in [stages, 2 * stages, 4 * stages] {
            let graph = training(&vec![EQUAL; stages as usize], microbatches, &[], false);
            let compiled = plan(&graph, &free(stages), Order::ZeroBubble, microbatches as u32);
            let bubble = latency(&compiled) - 3000 * microbatches;
            assert!(bubble <= (stages - 1) * 1000, "s={stages} m={microbatches}: {bubble} ns");
        }
    }
}

#[test]
fn auto_is_as_fast_as_any_order() {
    let layer = |n: u64| Layer { forward: 500 + 170 * (n % 4), activation: 1 << 12, param: 1 << 10, ..EQUAL };
    let layers: Vec<Layer> = (0..10).map(layer).collect();
    let graph = training(&layers, 8, &[], false);
    let auto = latency(&plan(&graph, &free(4), Order::Auto, 8));
    for order in [Order::Gpipe, Order::OneForwardOneBackward, Order::Interleaved, Order::ZeroBubble] {
        let one = latency(&plan(&graph, &free(4), order, 8));
        assert!(auto <= one, "auto {auto}, {} {one}", order.name());
    }
}

/// The first device holds the activations of at most as many microbatches as there are stages,
/// under GPipe those of all.
#[test]
fn one_forward_one_backward_holds_few_microbatches() {
    let (stages, microbatches, bytes) = (4, 16, 1 << 16);
    let layer = Layer { activation: bytes, ..EQUAL };
    let graph = training(&vec![layer; stages as usize], microbatches, &[], false);
    // Inputs of all microbatches are there before the step, whatever the order.
    let held = |order: Order| {
        let compiled = plan(&graph, &free(stages), order, microbatches as u32);
        let usage = compiled.schedule.devices[0];
        (usage.peak.get() - usage.resident.get()) / bytes
    };
    let (few, all) = (held(Order::OneForwardOneBackward), held(Order::Gpipe));
    // One more: the gradient that the backward pass makes while it holds its activation, and one
    // that has arrived.
    assert!(few <= stages + 3, "{few} activations in flight");
    assert!(all >= microbatches, "{all} activations in flight");
}

#[test]
fn a_cap_that_gpipe_does_not_meet_leaves_1f1b() {
    let layer = Layer { activation: 1 << 16, ..EQUAL };
    let graph = training(&[layer; 4], 16, &[], false);
    let spec = |memory: &str| {
        devices(&format!(
            "4xcpu:cores=1,use=compute,memory={memory},link=1000GB/s,latency=0ns,contention=none"
        ))
    };
    // Sixteen inputs and a dozen activations.
    let auto = plan(&graph, &spec("1900KB"), Order::Auto, 16);
    assert!(auto.schedule.devices.iter().all(|usage| usage.arena <= Bytes(1_900_000)));
    assert!(!auto.is_rewritten());
    // All forward passes first: a dozen fit where others run again.
    let gpipe = plan(&graph, &spec("1900KB"), Order::Gpipe, 16);
    assert!(gpipe.is_rewritten());
    assert!(gpipe.schedule.devices.iter().all(|usage| usage.arena <= Bytes(1_900_000)));
    // What a stage has received stays.
    let Err(error) = try_plan(&graph, &spec("1100KB"), Order::Gpipe, 16) else {
        panic!("gpipe does not fit")
    };
    assert!(matches!(error, Error::Infeasible(_)), "{error}");
}

/// No order of equal stages is faster than its work shared out, and the plan says so; a bound that
/// claims more is found.
#[test]
fn pipelines_carry_certificates() {
    let layer = Layer { activation: 256, param: 64, ..EQUAL };
    let graph = training(&[layer; 6], 8, &[(1, 4)], false);
    for objective in [place::Objective::Latency, place::Objective::Throughput] {
        let asked = compile::Options {
            pipeline: Some(Options { microbatches: 8, order: Order::Auto }),
            place: place::Options { objective, ..place::Options::default() },
            ..compile::Options::default()
        };
        let plan = partition::unstable::compile::plan(&graph, &free(3), &asked).unwrap();
        let bound = plan.bound.clone().expect("a certificate");
        // Six layers, three passes of 1 us each, eight microbatches, three devices.
        assert!(bound.value >= 6 * 3 * 8 * 1000 / 3, "{}: {}", bound.proof, bound.value);
        assert!(bound.gap < 0.2, "{}: {}", bound.proof, bound.gap);
        check_costgraph(&plan, &graph).unwrap();
        let reached = plan.cost.of(objective.name()).unwrap();
        let mut wrong = plan.clone();
        let claimed = bound.value + (reached - bound.value) / 2 + 1;
        if claimed <= reached {
            let gap = 1.0 - claimed as f64 / reached as f64;
            wrong.bound = Some(partition::unstable::plan::Bound { value: claimed, gap, ..bound });
            check_costgraph(&wrong, &graph).unwrap_err();
        }
    }
}

/// Patterns of a plan's options speak of nodes, not of their instances.
#[test]
fn a_pinned_pipeline_carries_a_certificate() {
    let graph = training(&[EQUAL; 4], 4, &[], false);
    let pins = vec![("f0".to_owned(), "cpu2".to_owned())];
    let asked = compile::Options {
        pipeline: Some(Options { microbatches: 4, order: Order::Auto }),
        place: place::Options { pins, ..place::Options::default() },
        ..compile::Options::default()
    };
    let plan = partition::unstable::compile::plan(&graph, &free(3), &asked).unwrap();
    assert_eq!(plan.placement.iter().find(|(node, _)| node == "f0").unwrap().1, "cpu2");
    assert!(plan.bound.is_some());
    check_costgraph(&plan, &graph).unwrap();
}

/// The first stage holds the most microbatches: where that is too much, it takes fewer layers.
#[test]
fn stages_are_sought_anew_where_they_hold_too_much() {
    // As much time in the first six layers as in the next three.
    let light =
        Layer { forward: 500, backward: 500, weights: 500, activation: 1 << 16, param: 1 << 16, ..EQUAL };
    let heavy = Layer { forward: 1000, backward: 1000, weights: 1000, ..light };
    let graph = training(&[[light; 6], [heavy; 6]].concat(), 8, &[], false);
    let spec = |memory: u64| {
        devices(&format!(
            "3xcpu:cores=1,use=compute,memory={memory}B,link=1000GB/s,latency=0ns,contention=none"
        ))
    };
    let wide = plan(&graph, &spec(1 << 30), Order::Gpipe, 8);
    let most = wide.schedule.devices.iter().map(|usage| usage.arena.0).max().unwrap();
    // As far down as something fits, some caps leave the first stages as they are.
    let caps = (1..24).map(|less| most - less * (1 << 16));
    let moved = caps.filter_map(|cap| {
        let tight = try_plan(&graph, &spec(cap), Order::Gpipe, 8).ok()?;
        assert!(tight.schedule.devices.iter().all(|usage| usage.arena.0 <= cap));
        Some(tight.plan.placement != wide.plan.placement)
    });
    assert!(moved.filter(|&moved| moved).count() > 0);
}

/// What does not go with microbatches says so, and what to do.
/// A pipeline is explained by its own steps, and what moving a node costs is what the simulator says of
/// all its instances elsewhere.
#[test]
fn pipelines_are_explained() {
    let layer = Layer { activation: 4000, param: 100_000, ..EQUAL };
    let graph = training(&[layer; 4], 4, &[], false);
    let topology = devices("2xcpu:cores=1,use=compute,memory=1GB,link=10GB/s,latency=100ns,contention=none");
    for order in [Order::Gpipe, Order::OneForwardOneBackward] {
        let plan = plan(&graph, &topology, order, 4).plan;
        let model = || Model::CostGraph { graph: graph.clone(), topology: None };
        let overview = compile::explain_plan(&plan, model(), &Control::new()).unwrap();
        assert_eq!(overview.latency_ns, plan.cost.latency_ns);
        assert!(!overview.notes.iter().any(|note| note.contains("figures differ")), "{:?}", overview.notes);
        assert!(overview.notes.iter().any(|note| note.contains("microbatches")), "{:?}", overview.notes);
        assert_eq!(overview.path.iter().map(|part| part.time_ns).sum::<Nanos>(), overview.latency_ns);

        let report = compile::explain_node(&plan, model(), "f1", &Control::new()).unwrap();
        let here = &plan.placement.iter().find(|(name, _)| name == "f1").expect("it is placed").1;
        assert_eq!((report.node.as_str(), &report.device), ("f1", here));
        let derived = microbatches(&graph, 4, Sizes::Batch).unwrap();
        let launched = |step: &partition::unstable::plan::Step| match &step.action {
            Action::Launch(launch) => {
                let node = graph.nodes().find(|&node| graph.node_name(node) == launch.nodes[0])?;
                derived.find(Instance { microbatch: launch.microbatch, ..Instance::once(node) })
            }
            Action::Copy(_) => None,
        };
        let launches: Vec<NodeIx> = plan.steps.iter().filter_map(launched).collect();
        let unit: Vec<&str> = report.unit.iter().map(String::as_str).collect();
        let [other] = report.others.as_slice() else { panic!("one other device: {:?}", report.others) };
        let device = derived.instances().iter().map(|instance| {
            let name = graph.node_name(instance.node);
            let named = plan.placement.iter().find(|(node, _)| node == name).map(|(_, device)| device);
            let device = if unit.contains(&name) { Some(&other.device) } else { named };
            topology.find(device.expect("all nodes are placed")).expect("a device")
        });
        let placement = crate::place::spread(&derived.graph, &device.collect::<Vec<_>>());
        let caps = schedule::Options::default();
        let own = schedule::schedule(&derived.graph, &topology, &placement, &caps).unwrap();
        let meant =
            schedule::schedule_in_order(&derived.graph, &topology, &placement, &launches, &caps).unwrap();
        let best = own.cost.latency.min(meant.cost.latency);
        assert_eq!(other.latency_ns, Some(best), "{}", order.name());
        assert!(best > plan.cost.latency_ns, "stages are no longer even");
    }
}

/// So are pipelines of networks, pinned nodes of cost graphs, and names that are not in them.
#[test]
fn pipelines_are_explained_on_the_command_line() {
    let folder = crate::cli::Folder::new();
    let graph = training(&[EQUAL; 4], 4, &[], false);
    std::fs::write(folder.path("net.json"), partition::unstable::load::write_costgraph(&graph)).unwrap();
    let devices = ["--devices", "2xcpu:cores=1,use=compute", "--microbatches", "4", "--quiet"];
    let pin = ["--pin", "f2=cpu1", "-o", "plan.json"];
    folder.ok(&[&["net.json"], &devices[..], &pin].concat());
    assert!(folder.ok(&["explain", "plan.json"]).contains("microbatches"));
    let text = folder.ok(&["explain", "plan.json", "f2"]);
    assert!(text.contains("pin to cpu1") || text.contains("pinned"), "{text}");
    assert!(folder.fails(2, &["explain", "plan.json", "f9"]).contains("no node of this name"));

    let model = crate::cli::example("mlp.json");
    let network = [model.as_str(), "--batch", "4", "--use", "all", "-o", "mlp.plan.json"];
    folder.ok(&[&network[..], &devices].concat());
    let plan = Plan::load(folder.path("mlp.plan.json")).unwrap();
    let text = folder.ok(&["explain", "mlp.plan.json", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["latency_ns"].as_u64(), Some(plan.cost.latency_ns.get()), "{text}");
    assert!(!text.contains("figures differ"), "{text}");
}

#[test]
fn what_does_not_go_with_microbatches_says_so() {
    let folder = crate::cli::Folder::new();
    let graph = training(&[EQUAL; 4], 4, &[], false);
    std::fs::write(folder.path("net.json"), partition::unstable::load::write_costgraph(&graph)).unwrap();
    let planning = ["net.json", "--devices", "2xcpu:cores=1,use=compute"];
    folder.ok(&[&planning[..], &["-o", "plain.json", "--quiet"]].concat());
    let divided = [&planning[..], &["--microbatches", "4"]].concat();
    folder.ok(&[&divided[..], &["-o", "plan.json", "--quiet"]].concat());
    let fails = |more: &[&str], parts: &[&str]| {
        let error = folder.fails(2, &[&divided[..], more].concat());
        for part in parts {
            assert!(error.contains(part), "{part} is missing in\n{error}");
        }
    };
    fails(&["--from", "plain.json"], &["--from", "leave out --from or --microbatches"]);
    fails(&["--score", "plain.json"], &["--score", "leave out --score or --microbatches"]);
    fails(&["--batch", "max"], &["--batch", "a cost graph has its sizes"]);
    let model = crate::cli::example("mlp.json");
    let measured = ["run", &model, "--calibrate", "--microbatches", "2", "--batch", "4"];
    let error = folder.fails(2, &measured);
    assert!(error.contains("--calibrate") && error.contains("without --microbatches"), "{error}");
    let indivisible = [model.as_str(), "--devices", "2xcpu", "--microbatches", "3", "--batch", "4"];
    assert!(folder.fails(2, &indivisible).contains("does not divide into 3 parts"));
    let max = [model.as_str(), "--devices", "2xcpu:cores=1,use=compute,memory=9MB", "--microbatches", "2"];
    let text = folder.ok(&[&max[..], &["--batch", "max", "--effort", "fast"]].concat());
    assert!(text.contains("is the largest that fits") && text.contains("pipeline "), "{text}");
}

long! {
    repairs_of_a_pipeline_are_pipelines;
}

/// What would help a pipeline that does not fit: memory, with kernels that run again or as it is, or more
/// microbatches.
fn repairs_of_a_pipeline_are_pipelines() {
    use partition::unstable::error::Repair;
    let layer = Layer { activation: 1 << 16, ..EQUAL };
    let graph = training(&[layer; 4], 8, &[], false);
    let small = devices("4xcpu:cores=1,use=compute,memory=625KB,link=1000GB/s,latency=0ns,contention=none");
    let with = |asked: Options| compile::Options {
        pipeline: Some(asked),
        place: place::Options { devices: place::DeviceUse::All, ..place::Options::default() },
        ..compile::Options::default()
    };
    let asked = Options { microbatches: 8, order: Order::Gpipe };
    let model = Model::CostGraph { graph: graph.clone(), topology: None };
    let Err(Error::Infeasible(mut found)) = partition::unstable::compile::plan(&graph, &small, with(asked))
    else {
        panic!("gpipe does not fit")
    };
    compile::repair(&model, &small, &with(asked), &mut found, &Control::new()).unwrap();
    // Nine inputs and activations on the first device: a little more, and kernels run again.
    let again = |repair: &Repair| matches!(repair, Repair::Memory { device: None, recomputed: 1.., .. });
    let more = |repair: &Repair| matches!(repair, Repair::Microbatches { microbatches: Some(9..), .. });
    assert!(found.repairs.iter().any(again) && found.repairs.iter().any(more), "{:?}", found.repairs);
    let each = found.repairs.iter().find_map(|repair| match repair {
        Repair::Memory { device: None, memory, .. } => Some(*memory),
        _ => None,
    });
    let memory = each.unwrap_or_else(|| panic!("{:?}", found.repairs)).get();
    let spec =
        format!("4xcpu:cores=1,use=compute,memory={memory}B,link=1000GB/s,latency=0ns,contention=none");
    partition::unstable::compile::plan(&graph, &devices(&spec), with(asked)).unwrap();
}

#[test]
fn skips_unequal_stages_and_tied_weights_are_pipelines_too() {
    let layer = |n: u64| Layer {
        forward: 300 + 400 * (n % 3),
        activation: 1000 + 64 * n,
        param: if n == 0 || n == 11 { 4096 } else { 64 * n },
        ..EQUAL
    };
    let layers: Vec<Layer> = (0..12).map(layer).collect();
    let graph = training(&layers, 6, &[(0, 7), (1, 10), (4, 5), (4, 6)], true);
    let slow = "3xcpu:cores=1,use=compute,memory=1GB,link=1GB/s,latency=200ns";
    for order in Order::ALL {
        let compiled = plan(&graph, &devices(slow), order, 6);
        assert!(compiled.schedule.devices.iter().all(|usage| usage.busy > Nanos::ZERO), "{}", order.name());
        // The tied parameter is held by the first and by the last device.
        assert!(compiled.schedule.cost.load_bytes >= Bytes(4096), "{}", order.name());
    }
}

#[test]
fn a_pipeline_without_a_backward_pass_is_one_of_forward_passes() {
    let mut b = Builder::new("forward", vec!["cpu".into()]);
    let times = [Some(Nanos(4000))];
    let x = b.add(&NodeSpec { name: "x", op: "input", outputs: &[Bytes(0)], ..NodeSpec::default() }).unwrap();
    let mut last = x;
    for name in ["a", "b", "c", "d"] {
        let spec = NodeSpec { name, op: "f", times: &times, outputs: &[Bytes(0)], ..NodeSpec::default() };
        let node = b.add(&spec).unwrap();
        b.connect(last, 0, node);
        last = node;
    }
    let graph = b.finish().unwrap();
    let compiled = plan(&graph, &free(4), Order::Auto, 4);
    // Four nodes of 1 us for each microbatch: 4 + 3 of them one after the other.
    assert_eq!(latency(&compiled), 7000);
    assert_eq!(compiled.plan.options.schedule.as_deref(), Some("forward"));
}

#[test]
fn instances_survive_both_forms_of_a_plan() {
    let graph = training(&[EQUAL; 4], 3, &[], false);
    let whole = plan(&graph, &free(2), Order::OneForwardOneBackward, 3).plan;
    let json = Plan::from_json(whole.to_json().as_bytes(), "plan").unwrap();
    let text = Plan::from_text(&whole.to_text(), "plan").unwrap();
    assert_eq!((&json, &text), (&whole, &whole));
    assert!(whole.to_json().contains("\"microbatch\":2"));
}

/// Where each node of a plan is launched for each microbatch.
pub(crate) fn launches(plan: &Plan) -> Vec<usize> {
    let launch = |i: &usize| matches!(plan.steps[*i].action, Action::Launch(_));
    (0..plan.steps.len()).filter(launch).collect()
}

pub(crate) fn launch(plan: &mut Plan, i: usize) -> &mut Launch {
    match &mut plan.steps[i].action {
        Action::Launch(launch) => launch,
        Action::Copy(_) => panic!("step {i} is a copy"),
    }
}

fn copy(plan: &mut Plan, i: usize) -> &mut CopyAction {
    match &mut plan.steps[i].action {
        Action::Copy(copy) => copy,
        Action::Launch(_) => panic!("step {i} is a launch"),
    }
}

/// Damage to the `n`-th step that it can be done to; what the check says then.
type Damage = (&'static str, &'static [&'static str], fn(&mut Plan, usize) -> bool);

const DAMAGES: &[Damage] = &[
    ("a microbatch is left out", &["never launched for microbatch"], |plan, i| {
        if !matches!(&plan.steps[i].action, Action::Launch(launch) if launch.microbatch.is_some()) {
            return false;
        }
        let id = plan.steps.remove(i).id;
        plan.steps.iter_mut().for_each(|step| step.after.retain(|&other| other != id));
        true
    }),
    ("a microbatch twice", &["a second time"], |plan, i| {
        let Action::Launch(launch) = &mut plan.steps[i].action else { return false };
        let Some(number @ 1..) = launch.microbatch else { return false };
        launch.microbatch = Some(number - 1);
        true
    }),
    ("two microbatches in the wrong order", &["after that of microbatch"], |plan, i| {
        let Action::Launch(one) = &plan.steps[i].action else { return false };
        let (nodes, Some(number)) = (one.nodes.clone(), one.microbatch) else { return false };
        let next = plan.steps.iter().position(|step| {
            matches!(&step.action, Action::Launch(other) if other.nodes == nodes && other.microbatch == Some(number + 1))
        });
        let Some(next) = next else { return false };
        launch(plan, i).microbatch = Some(number + 1);
        launch(plan, next).microbatch = Some(number);
        true
    }),
    ("a microbatch that is not there", &["there are"], |plan, i| {
        let count = plan.options.microbatches;
        let Action::Launch(launch) = &mut plan.steps[i].action else { return false };
        launch.microbatch.is_some() && std::mem::replace(&mut launch.microbatch, count).is_some()
    }),
    ("one for all microbatches", &["for microbatches and for all"], |plan, i| {
        let Action::Launch(launch) = &mut plan.steps[i].action else { return false };
        launch.microbatch.take().is_some()
    }),
    ("a copy of another microbatch", &["before", "a second time"], |plan, i| {
        let Action::Copy(copy) = &mut plan.steps[i].action else { return false };
        let Some(number @ 1..) = copy.microbatch else { return false };
        copy.microbatch = Some(number - 1);
        true
    }),
    ("a copy of no microbatch", &["which is not there", "before it is on"], |plan, i| {
        let Action::Copy(copy) = &mut plan.steps[i].action else { return false };
        copy.microbatch.take().is_some()
    }),
    ("an update before the last microbatch", &["before", "does not come before"], |plan, i| {
        if !matches!(&plan.steps[i].action, Action::Launch(launch) if launch.nodes[0].starts_with('u')) {
            return false;
        }
        let step = plan.steps.remove(i);
        plan.steps.insert(0, step);
        true
    }),
    ("again, and nothing before", &["nothing has computed it before", "never launched"], |plan, i| {
        let Action::Launch(launch) = &mut plan.steps[i].action else { return false };
        !std::mem::replace(&mut launch.again, true)
    }),
    ("no microbatches", &["there are 0"], |plan, i| i == 0 && plan.options.microbatches.take().is_some()),
];

#[test]
fn damaged_pipelines_are_found() {
    let layer = Layer { activation: 256, param: 64, ..EQUAL };
    let graph = training(&[layer; 5], 4, &[(0, 3)], false);
    let wholes: Vec<Plan> =
        Order::ALL.into_iter().map(|order| plan(&graph, &free(2), order, 4).plan).collect();
    for (name, words, damage) in DAMAGES {
        let mut found = 0;
        for whole in &wholes {
            for i in 0..whole.steps.len() {
                let mut plan = whole.clone();
                if !damage(&mut plan, i) {
                    continue;
                }
                match check_costgraph(&plan, &graph) {
                    Err(Error::Check(report)) => {
                        let told =
                            report.details.iter().any(|line| words.iter().any(|word| line.contains(word)));
                        assert!(told, "{name}: expected {words:?}, found {:#?}", report.details);
                        found += 1;
                    }
                    other => panic!("{name}, step {i}: {other:?}"),
                }
            }
        }
        assert!(found >= 5, "{name}: found {found} times");
    }
}

/// A launch that is computed again is none too many; one that reads what is not there is found.
#[test]
fn what_is_computed_again_may_stand_beside_the_first() {
    let graph = training(&[EQUAL; 3], 2, &[], false);
    let whole = plan(&graph, &free(1), Order::Gpipe, 2).plan;
    let i = *launches(&whole).last().unwrap();
    let mut again = whole.clone();
    let first = launches(&whole)[0];
    let mut step = whole.steps[first].clone();
    step.id = 1_000_000;
    again.steps.insert(i, step);
    launch(&mut again, i).again = true;
    check(&again).unwrap();
    check_costgraph(&again, &graph).unwrap();
    launch(&mut again, i).again = false;
    assert!(check_costgraph(&again, &graph).is_err());
}

#[test]
fn a_copy_says_of_which_microbatch() {
    let layer = Layer { activation: 64, ..EQUAL };
    let graph = training(&[layer; 2], 2, &[], false);
    let mut whole = plan(&graph, &free(2), Order::Gpipe, 2).plan;
    let i = (0..whole.steps.len()).find(|&i| matches!(whole.steps[i].action, Action::Copy(_))).unwrap();
    assert!(copy(&mut whole, i).microbatch.is_some());
}

/// Four stages and four microbatches under each order, to be read.
#[test]
fn four_stages_under_each_order() {
    let layer = Layer { activation: 64, param: 64, ..EQUAL };
    let mut text = String::new();
    for order in Order::ALL {
        let layers = if order == Order::Interleaved { 8 } else { 4 };
        let graph = training(&vec![layer; layers], 4, &[], false);
        let compiled = plan(&graph, &free(4), order, 4);
        let figures = compiled.pipeline.as_ref().unwrap();
        writeln!(
            text,
            "{}: {} stages, bubble {:.1}%, in theory {:.1}%",
            order.name(),
            figures.stages.len(),
            figures.bubble * 100.0,
            figures.theoretical_bubble * 100.0
        )
        .unwrap();
        let Compiled { cost_graph, topology, plan, schedule, .. } = &compiled;
        text +=
            &partition::unstable::report::timeline(cost_graph, topology, plan, schedule, &figures.weights);
        let memory = |usage: &partition::unstable::schedule::DeviceUsage| {
            (usage.peak.get() - usage.resident.get()) / 64
        };
        let held: Vec<u64> = schedule.devices.iter().map(memory).collect();
        writeln!(text, "tensors live at most {held:?}\n").unwrap();
    }
    insta::with_settings!({ snapshot_path => "../../snapshots", prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("pipeline_orders", text);
    });
}

#[test]
fn a_small_pipeline_as_text() {
    let layer = Layer { activation: 64, param: 64, ..EQUAL };
    let graph = training(&[layer; 2], 2, &[], false);
    let compiled = plan(&graph, &free(2), Order::OneForwardOneBackward, 2);
    let lines = compiled.plan.to_text();
    let steps: Vec<&str> = lines.lines().filter(|line| line.starts_with("step")).collect();
    insta::with_settings!({ snapshot_path => "../../snapshots", prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!("pipeline_text", steps.join("\n"));
    });
}

#[test]
fn plans_are_the_same_whatever_the_threads() {
    let layer = Layer { activation: 256, param: 64, ..EQUAL };
    let graph = training(&[layer; 6], 4, &[(1, 4)], false);
    let planned = |threads| {
        let options = compile::Options {
            pipeline: Some(Options { microbatches: 4, order: Order::Auto }),
            ..compile::Options::default()
        };
        let model = Model::CostGraph { graph: graph.clone(), topology: None };
        compile::compile_with(model, &free(3), &options, &Control::new().threads(threads))
            .unwrap()
            .plan
            .to_json()
    };
    assert_eq!(planned(1), planned(4));
}

/// A network of the corpus in microbatches gives what it gives at once, bit for bit.
#[test]
fn models_run_in_microbatches() {
    use crate::networks::Network;
    use partition::unstable::ir::Tensor;
    for (file, microbatches) in [("keras/cnn_small.k3.json", 2), ("keras/mlp_small.k2.json", 3)] {
        let Some(path) = crate::shared::file(&format!("corpus/{file}")) else { return };
        let mut network = Network::open(&path).unwrap();
        let batch = 6u64;
        let [dim] = &network.graph.unbound_dims()[..] else { panic!("{file}: one open dimension") };
        network.dims.insert(dim.clone(), batch as i64);
        for (_, input) in &mut network.inputs {
            let dims = [&[batch][..], &input.dims()[1..]].concat();
            let size = input.bytes().len() / input.dims()[0] as usize;
            let bytes: Vec<u8> = input.bytes().iter().copied().cycle().take(size * batch as usize).collect();
            // Samples differ, whatever the file holds.
            let mut values =
                Tensor::new(input.dtype(), dims.clone(), bytes).unwrap().to_f32().expect("floats");
            values.iter_mut().enumerate().for_each(|(at, value)| *value += (at % 17) as f32 / 64.0);
            *input = Tensor::from_f32(dims, &values).unwrap();
        }
        let plain = network.plan("2xcpu:cores=1", place::DeviceUse::All).unwrap();
        let expected = network.run(&plain).unwrap();
        let options = compile::Options {
            bind: network.dims.clone(),
            pipeline: Some(Options { microbatches, order: Order::Auto }),
            place: place::Options { devices: place::DeviceUse::All, ..place::Options::default() },
            ..compile::Options::default()
        };
        let topology = devices("2xcpu:cores=1");
        let model = || Model::Graph(network.graph.clone());
        let compiled = compile::compile_with(model(), &topology, &options, &Control::new()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let plan_path = folder.path().join("plan.json");
        std::fs::write(&plan_path, compiled.plan.to_json()).unwrap();
        crate::shared::verify_plan(&plan_path);
        let text = Plan::from_text(&compiled.plan.to_text(), "plan").unwrap();
        assert_eq!(text, compiled.plan, "{file}");
        let found = network.run(&compiled).unwrap();
        for ((name, one), (_, other)) in found.iter().zip(&expected) {
            assert_eq!((one.dims(), one.bytes()), (other.dims(), other.bytes()), "{file}: {name}");
        }
        // What the plan says of its model holds, and a launch for all microbatches is found.
        let again = compile::Options { model_hash: compiled.plan.model.hash.clone(), ..options.clone() };
        let size = network.dims[dim] / i64::from(microbatches);
        let again = compile::Options { bind: BTreeMap::from([(dim.clone(), size)]), pipeline: None, ..again };
        compile::check_model(&compiled.plan, model(), &again).unwrap();
        damaged_buffers(&compiled.plan);
        let indivisible =
            compile::Options { pipeline: Some(Options { microbatches: 4, order: Order::Auto }), ..options };
        let error = compile::compile_with(model(), &topology, &indivisible, &Control::new()).unwrap_err();
        let help = error.to_string();
        assert!(help.contains("does not divide into 4 parts") && help.contains("1, 2, 3, 6"), "{help}");
    }
}

/// Launches that read or write what is of another microbatch.
fn damaged_buffers(whole: &Plan) {
    let mut found = 0;
    for i in launches(whole) {
        let Action::Launch(own) = &whole.steps[i].action else { continue };
        let Some(microbatch) = own.microbatch else { continue };
        for (at, id) in own.reads.iter().enumerate() {
            let buffer = whole.buffers.iter().find(|buffer| buffer.id == *id).unwrap();
            let other = whole.buffers.iter().find(|other| {
                other.value == buffer.value
                    && other.device == buffer.device
                    && other.microbatch != buffer.microbatch
            });
            let Some(other) = other else { continue };
            let mut plan = whole.clone();
            launch(&mut plan, i).reads[at] = other.id.clone();
            let error = check(&plan).unwrap_err();
            let of = format!("of microbatch {}", other.microbatch.unwrap());
            assert!(
                error.details().iter().any(|line| line.contains(&of)),
                "{microbatch}: {:#?}",
                error.details()
            );
            found += 1;
        }
    }
    assert!(found > 0, "nothing is read of several microbatches");
}
