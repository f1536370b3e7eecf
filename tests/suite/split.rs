//! Operations that are split: what fits nowhere whole, and what a caller asks for; planned, checked, run, with
//! the bits of one device, in every form of a plan.

use partition::unstable::compile::{self, Compiled, Options, SplitOptions, compile};
use partition::unstable::control::Control;
use partition::unstable::error::{Error, Repair};
use partition::unstable::ir::Param;
use partition::unstable::load::{LoadOptions, Model};
use partition::unstable::place::{DeviceUse, Effort};
use partition::unstable::plan::{Action, Plan, check, export};
use partition::unstable::topology::Topology;

use serde_json::json;

use crate::cli::{Folder, example};
use crate::networks::Network;
use crate::shared;
use crate::sweep::Share;

fn open(file: &str) -> Option<Network> {
    let path = shared::file(&format!("corpus/{file}"))?;
    Some(Network::open(&path).unwrap_or_else(|error| panic!("{file}: {error}")))
}

fn options(network: &Network, split: SplitOptions) -> Options {
    let mut options = Options { bind: network.dims.clone(), split, ..Options::default() };
    options.place.effort = Effort::Fast;
    options
}

fn planned(network: &Network, devices: &str, split: SplitOptions) -> Result<Compiled, Error> {
    with_effort(network, devices, options(network, split))
}

fn with_effort(network: &Network, devices: &str, options: Options) -> Result<Compiled, Error> {
    compile(Model::Graph(network.graph.clone()), &Topology::parse(devices)?, &options)
}

/// With the least effort, and where that finds no plan, with more.
fn planned_with_more(network: &Network, devices: &str) -> Result<Compiled, Error> {
    let mut options = options(network, SplitOptions::default());
    with_effort(network, devices, options.clone()).or_else(|_| {
        options.place.effort = Effort::Default;
        with_effort(network, devices, options)
    })
}

/// The plan is sound, alone and beside its model, in all forms, and is made again from itself.
pub(crate) fn sound(what: &str, network: &Network, compiled: &Compiled) {
    let plan = &compiled.plan;
    let fail = |error: Error| -> ! { panic!("{what}: {error}: {:?}", error.details()) };
    check(plan).unwrap_or_else(|error| fail(error));
    let read = Plan::from_json(plan.to_json().as_bytes(), what).unwrap_or_else(|error| fail(error));
    assert!(read == *plan, "{what}: the JSON form is another plan");
    let read = Plan::from_text(&plan.to_text(), what).unwrap_or_else(|error| fail(error));
    assert!(read == *plan, "{what}: the text form is another plan");
    let options = Options { bind: network.dims.clone(), ..Options::of_plan(plan).unwrap() };
    compile::check_model(plan, Model::Graph(network.graph.clone()), &options)
        .unwrap_or_else(|error| fail(error));
    verified(plan);
}

/// The independent verifier finds a plan sound.
fn verified(plan: &Plan) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, plan.to_json()).unwrap();
    shared::verify_plan(&path);
}

/// The results of a split network are those of one device: bit for bit, where no sum is split.
pub(crate) fn same_results(what: &str, network: &Network, compiled: &Compiled) {
    let whole = network.plan("cpu:memory=64GB", DeviceUse::Auto).unwrap();
    let expected = network.run(&whole).unwrap();
    let found = network.run(compiled).unwrap_or_else(|error| panic!("{what}: {error}"));
    let keeps_bits = |over: &str| over.starts_with("axis") || over == "slices";
    let exact = compiled.plan.options.splits.iter().all(|split| keeps_bits(&split.over));
    for ((name, found), (_, whole)) in found.iter().zip(&expected) {
        if exact {
            assert!(found == whole, "{what}: {name} has other bits");
            continue;
        }
        let (found, whole) = (found.to_f64(), whole.to_f64());
        let largest = whole.iter().fold(1e-6_f64, |most, value| most.max(value.abs()));
        let apart = found.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart <= 1e-4 * largest, "{what}: {name} is {apart} of {largest} apart");
    }
}

/// Devices of one topology in these tests.
const MOST_DEVICES: u64 = 1024;

/// A network on devices of half the size of its largest parameter, more than enough of them: whether there is a plan,
/// where there can be a question.
fn forced(file: &str) -> Option<bool> {
    let network = open(file)?;
    let whole = network.plan("cpu:memory=64GB", DeviceUse::Auto).unwrap();
    let graph = &whole.network.as_ref().unwrap().graph;
    let bytes = |param: &Param| {
        let ty = graph.ty(graph.node(param.node).first_result);
        ty.elements().unwrap() * ty.dtype.size()
    };
    let largest = graph.params().iter().map(bytes).max()?;
    let cap = largest / 2;
    let devices = (6 * whole.plan.devices[0].arena.get()).div_ceil(cap) + 16;
    if devices > MOST_DEVICES {
        println!(
            "{file}: its parameters are so small beside all else that {devices} devices would be needed"
        );
        return None;
    }
    let spec = format!("cpu[{devices}x{cap}B]");
    let compiled = match planned_with_more(&network, &spec) {
        Ok(compiled) => compiled,
        Err(error) => {
            // Only what cannot be split at all stands in the way, and is named.
            let why = error.details().join("\n");
            assert!(why.contains("splitting operations does not help"), "{file} on {spec}: {error}: {why}");
            println!("{file} on {spec}: {why}");
            return Some(false);
        }
    };
    println!("{file} on {spec}: {} nodes split", compiled.plan.options.splits.len());
    assert!(!compiled.plan.options.splits.is_empty(), "{file}: nothing was split");
    assert!(compiled.plan.devices.iter().all(|device| device.arena <= device.memory), "{file}");
    sound(file, &network, &compiled);
    same_results(file, &network, &compiled);
    Some(true)
}

/// Ever smaller devices: a plan is split where it must be, and sound; or none is found.
#[test]
fn what_fits_nowhere_whole_is_split() {
    let network = Network::open(std::path::Path::new("examples/mlp.json")).unwrap();
    let mut split = 0;
    for cap in [40_000, 80_000, 150_000, 300_000, 600_000] {
        let spec = format!("cpu[48x{cap}B]");
        match planned(&network, &spec, SplitOptions::default()) {
            Ok(compiled) => {
                split += usize::from(!compiled.plan.options.splits.is_empty());
                sound(&spec, &network, &compiled);
                same_results(&spec, &network, &compiled);
            }
            Err(error) => assert!(matches!(error, Error::Infeasible(_)), "{spec}: {error}"),
        }
    }
    assert!(split > 0, "nothing was split");
}

long! {
    networks_of_the_corpus_are_split_where_they_must_be;
}

/// Small ones, of which each is split.
fn networks_of_the_corpus_are_split_where_they_must_be() {
    for file in [
        "exports/batched_matmul_const_2x11x11.onnx",
        "exports/mha.onnx",
        "exports/moe_bmm.onnx",
        "exports/llama_kv_dyn.onnx",
        "exports/lstm.onnx",
        "keras/cnn_small.k3.json",
        "keras/mlp_small.k3.json",
        "onnx/s_bert.onnx",
        "onnx/s_llama.onnx",
    ] {
        assert!(forced(file).is_none_or(|planned| planned), "{file}: no plan");
    }
}

#[test]
fn a_share_of_the_corpus_is_split_where_it_must_be() {
    every_network_of_the_corpus_is_split_where_it_must_be(Share::OneOf(12));
}

#[test]
#[ignore = "minutes: cargo test --test suite -- --ignored the_whole_corpus_is_split"]
fn the_whole_corpus_is_split_where_it_must_be() {
    every_network_of_the_corpus_is_split_where_it_must_be(Share::ALL);
}

/// All of them; where no split helps, the error names what stands in the way.
fn every_network_of_the_corpus_is_split_where_it_must_be(share: Share) {
    let mut failed = Vec::new();
    for file in share.among(corpus()) {
        let Some(path) = shared::file(&format!("corpus/{file}")) else { continue };
        if Network::open(&path).is_err() {
            continue;
        }
        if std::panic::catch_unwind(|| forced(&file)).is_err() {
            failed.push(file);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// Every file of a network.
fn corpus() -> Vec<String> {
    let mut all = Vec::new();
    for folder in ["exports", "keras", "onnx"] {
        let Some(path) = shared::file(&format!("corpus/{folder}")) else { return Vec::new() };
        let files = std::fs::read_dir(path).unwrap();
        let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let models = names.filter(|name| name.ends_with(".onnx") || name.ends_with(".json"));
        all.extend(models.map(|name| format!("{folder}/{name}")));
    }
    all.sort();
    all
}

/// Rows of which few fit on one device: their mean is that of parts, each by its share, and no part of it is whole.
#[test]
fn a_mean_of_more_rows_than_fit_is_divided() {
    let layers = vec![
        json!({"module": "keras.layers", "class_name": "InputLayer",
               "config": {"name": "rows", "batch_shape": [null, 16, 5], "dtype": "float32"}}),
        json!({"module": "keras.layers", "class_name": "GlobalAveragePooling1D", "config": {"name": "mean"}}),
    ];
    let model =
        json!({"module": "keras", "class_name": "Sequential", "config": {"name": "mean", "layers": layers}});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mean.json");
    std::fs::write(&path, model.to_string()).unwrap();
    let network = Network::open(&path).unwrap().with_batch(2).unwrap();
    let spec = "cpu[16x384B]";
    let compiled = planned(&network, spec, SplitOptions::default()).unwrap();
    assert!(
        compiled.plan.options.splits.iter().any(|split| split.over.starts_with("sum")),
        "no sum is divided"
    );
    sound(spec, &network, &compiled);
    same_results(spec, &network, &compiled);
}

/// Convolutions of large images with small weights, and dense layers with large ones.
fn images() -> Network {
    let layer = |class: &str, name: &str, mut config: serde_json::Value| {
        config["name"] = name.into();
        json!({"module": "keras.layers", "class_name": class, "config": config})
    };
    let convolution = |name: &str, filters: u64, stride: u64| {
        layer(
            "Conv2D",
            name,
            json!({"filters": filters, "kernel_size": [3, 3], "strides": [stride, stride], "padding": "same",
                   "activation": "relu", "use_bias": true}),
        )
    };
    let dense = |name: &str, units: u64| {
        layer("Dense", name, json!({"units": units, "activation": "relu", "use_bias": true}))
    };
    let layers = vec![
        layer("InputLayer", "image", json!({"batch_shape": [null, 48, 48, 3], "dtype": "float32"})),
        convolution("wide", 24, 1),
        convolution("wider", 24, 1),
        convolution("down", 48, 2),
        convolution("narrow", 48, 1),
        convolution("low", 96, 2),
        layer("GlobalAveragePooling2D", "mean", json!({})),
        dense("first", 1000),
        dense("last", 400),
    ];
    let model = json!({"module": "keras", "class_name": "Sequential", "config": {"name": "images", "layers": layers}});
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("images.json");
    std::fs::write(&path, model.to_string()).unwrap();
    Network::open(&path).unwrap().with_batch(8).unwrap()
}

/// With more memory never much more moves.
#[test]
fn a_batch_is_computed_in_parts_where_less_moves_then() {
    let network = images();
    let mut least = u64::MAX;
    for (kilobytes, most) in [(1500, 40_000), (1700, 40_000), (2000, 40_000), (2500, 4_000), (4000, 0)] {
        let what = format!("3 devices of {kilobytes} kB");
        let topology = Topology::parse(&format!("cpu[3x{kilobytes}kB]")).unwrap();
        let options = Options { bind: network.dims.clone(), ..Options::default() };
        let compiled = compile(Model::Graph(network.graph.clone()), &topology, &options).unwrap();
        let moved = compiled.plan.cost.step_bytes.get();
        assert!(moved <= most, "{what}: {moved} bytes move");
        assert!(moved / 10 <= least / 9, "{what}: {moved} bytes move, {least} with less memory");
        least = least.min(moved);
        sound(&what, &network, &compiled);
        same_results(&what, &network, &compiled);
    }
}

#[test]
fn the_smallest_cap_that_is_named_counts_on_splits() {
    let bytes = std::fs::read(example("seed_stack.json")).unwrap();
    let model = || partition::unstable::load::load(&bytes, None, &LoadOptions::default()).unwrap();
    let options = Options { batch: Some(10), ..Options::default() };
    let on = |bytes: u64| Topology::parse(&format!("cpu[3x{bytes}B]")).unwrap();
    let named = |split: SplitOptions| {
        let topology = on(1_000_000);
        let Err(Error::Infeasible(mut found)) = compile(model(), &topology, &options) else {
            panic!("it fits")
        };
        let options = Options { split, ..options.clone() };
        compile::repair(&model(), &topology, &options, &mut found, &Control::new()).unwrap();
        match &found.repairs[0] {
            Repair::Memory { device: None, memory, split, .. } => (memory.get(), *split),
            other => panic!("{other:?}"),
        }
    };
    let (whole, is_split) = named(SplitOptions { auto: false, ..SplitOptions::default() });
    assert!(!is_split);
    let (split, is_split) = named(SplitOptions::default());
    // 40,120,000 bytes of parameters on three devices, and what a layer makes.
    assert!(is_split && split < whole && (13_373_334..14_300_000).contains(&split), "{split}, whole {whole}");
    compile(model(), &on(split), &options).unwrap();
}

#[test]
fn a_stack_of_layers_that_are_larger_than_each_device() {
    let path = std::path::Path::new("examples/seed_stack.json");
    let mut network = Network::open(path).unwrap();
    network.dims.insert("batch".to_owned(), 2);
    let compiled = planned(&network, "2xcpu[6x3900kB]", SplitOptions::default()).unwrap();
    sound("seed_stack", &network, &compiled);
    same_results("seed_stack", &network, &compiled);
    let none = SplitOptions { auto: false, ..SplitOptions::default() };
    let error = planned(&network, "2xcpu[6x3900kB]", none).unwrap_err();
    assert!(matches!(error, Error::Infeasible(_)), "{error}");
    let error = planned(&network, "2xcpu[6x3MB]", SplitOptions::default()).unwrap_err();
    let why = error.details().join("\n");
    assert!(why.contains("splitting operations does not help: parameters take 40.8 MB"), "{error}: {why}");
}

/// A reader of the JSON form may rely on what the placement shows of parts: it is what the options list.
#[test]
fn parts_that_are_shown_otherwise_than_listed_are_refused() {
    let network = Network::open(std::path::Path::new("examples/seed_stack.json")).unwrap();
    let json = planned(&network, "12xcpu:memory=4MB", SplitOptions::default()).unwrap().plan.to_json();
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let is_split = |(_, entry): &(&String, &serde_json::Value)| entry.is_array();
    let (node, parts) = value["placement"].as_object().unwrap().iter().find(is_split).unwrap();
    let last = parts.as_array().unwrap().len() - 1;
    for (part, field, other) in
        [(0, "axis", json!("axis 7")), (0, "from", json!(1)), (last, "to", json!(1 << 20))]
    {
        let mut changed = value.clone();
        changed["placement"][node][part][field] = other;
        let error = Plan::from_json(changed.to_string().as_bytes(), "plan.json").unwrap_err().to_string();
        assert!(error.contains("shows other parts than options.splits lists"), "{field}: {error}");
    }
}

#[test]
fn what_a_caller_asks_for_is_split_so() {
    let network = Network::open(std::path::Path::new("examples/seed_stack.json")).unwrap();
    let ask = |rules: &[&str], exact: bool| {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let asked = SplitOptions { auto: false, exact, rules, ..SplitOptions::default() };
        planned(&network, "2xcpu", asked)
    };
    let compiled = ask(&["hidden_*=1:2@cpu0,cpu1", "hidden_3=-1:4"], false).unwrap();
    sound("columns", &network, &compiled);
    same_results("columns", &network, &compiled);
    let placed = |name: &str| {
        let entry = compiled.plan.placement.iter().find(|(node, _)| node == name);
        entry.map(|(_, device)| device.clone())
    };
    assert_eq!(placed("hidden_0[1/2]").as_deref(), Some("cpu1"));
    assert!(placed("hidden_3[3/4]").is_some() && placed("hidden_3[1/2]").is_none());
    let exported = export(&compiled.plan, "dtensor").unwrap_err();
    assert!(exported.to_string().contains("has several slices on one device"), "{exported}");
    let even = ask(&["hidden_*=1:2@cpu0,cpu1"], false).unwrap();
    let exported = export(&even.plan, "dtensor").unwrap();
    let line = r#"{"mesh": ["cpu0", "cpu1"], "placements": ["Shard(1)"]}"#;
    assert!(exported.lines().any(|of| of.contains("hidden_0") && of.contains(line)), "{exported}");
    let exported = export(&even.plan, "gspmd").unwrap();
    assert!(exported.contains(r#""mesh": ["cpu0", "cpu1"]"#), "{exported}");
    let line = r#""hidden_0/kernel": "{devices=[1,2]0,1}""#;
    assert!(exported.contains(line), "{exported}");
    // What is whole is on one of the two, as a sharding has it, or on both.
    let shardings: serde_json::Value = serde_json::from_str(&exported).unwrap();
    for (name, sharding) in shardings["shardings"].as_object().unwrap() {
        let known = [
            "{devices=[1,2]0,1}",
            "{devices=[2]0,1}",
            "{maximal device=0}",
            "{maximal device=1}",
            "{replicated}",
        ];
        assert!(known.contains(&sharding.as_str().unwrap()), "{name}: {sharding}");
    }
    let exported = export(&even.plan, "accelerate").unwrap_err();
    assert!(exported.to_string().contains("splits"), "{exported}");
    let sums = ask(&["hidden_0=sum:2@cpu0,cpu1"], false).unwrap();
    sound("sums", &network, &sums);
    assert!(sums.plan.buffers.iter().any(|buffer| buffer.partial == Some((1, 2))));
    let (found, whole) = (network.run(&sums).unwrap(), network.plan("cpu", DeviceUse::Auto).unwrap());
    let whole = network.run(&whole).unwrap();
    for (a, b) in found[0].1.to_f64().iter().zip(whole[0].1.to_f64()) {
        assert!((a - b).abs() <= 1e-6, "{a} and {b}");
    }
    let told = |rules: &[&str], exact: bool| {
        let error = ask(rules, exact).unwrap_err();
        format!("{error} {}", error.details().join("; "))
    };
    assert!(told(&["hiden_0=1:2"], false).contains("hidden_0"), "the nearest name");
    assert!(told(&["hidden_0=5:2"], false).contains("hidden_0: axis 1, at most 1000 parts"));
    let pinned = |rules: &[&str], pins: &[(&str, &str)]| {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let split = SplitOptions { auto: false, rules, ..SplitOptions::default() };
        let mut asked = options(&network, split);
        asked.place.pins = pins.iter().map(|&(part, device)| (part.to_owned(), device.to_owned())).collect();
        compile(Model::Graph(network.graph.clone()), &Topology::parse("2xcpu").unwrap(), &asked)
    };
    let compiled =
        pinned(&["hidden_3=1:3"], &[("hidden_3[1/3]", "cpu1"), ("hidden_3[0/*]", "cpu0")]).unwrap();
    sound("a part that is pinned", &network, &compiled);
    let at = |name: &str| compiled.plan.placement.iter().find(|(node, _)| node == name).unwrap().1.clone();
    assert_eq!((at("hidden_3[1/3]"), at("hidden_3[0/3]")), ("cpu1".to_owned(), "cpu0".to_owned()));
    let error = pinned(&["hidden_3=1:3"], &[("hidden_3[3/3]", "cpu1")]).unwrap_err().to_string();
    assert!(error.contains("hidden_3[2/3]"), "the nearest part: {error}");
    let error = pinned(&[], &[("hidden_3[0/3]", "cpu1")]).unwrap_err().to_string();
    assert!(error.contains("nothing is split that was asked for"), "{error}");
    assert!(told(&["hidden_0=sum:2"], true).contains("can be split so"), "an exact plan has no partial sums");
    assert!(told(&["hidden_0=1:2@cpu0,cpu9"], false).contains("cpu9"));
}

/// Rows of slices by columns lie one behind the other in each: they are read, and sent, from where they were made, by no
/// kernel and no copy. A plan that has them elsewhere is refused.
#[test]
fn contiguous_slices_lie_in_what_they_are_cut_from() {
    let mut network = Network::open(std::path::Path::new("examples/seed_stack.json")).unwrap();
    network = network.with_batch(128).unwrap();
    let ask = |rules: &[&str]| {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        planned(&network, "2xcpu:cores=1", SplitOptions { auto: false, rules, ..SplitOptions::default() })
            .unwrap()
    };
    let cut = ask(&["hidden_0=1:2@cpu0,cpu1", "hidden_1=0:2@cpu0,cpu1", "hidden_2=1:2@cpu0,cpu1"]);
    sound("rows of columns", &network, &cut);
    same_results("rows of columns", &network, &cut);
    let within = |plan: &Plan| -> Vec<usize> {
        let numbered = plan.buffers.iter().enumerate();
        numbered.filter(|(_, buffer)| buffer.alias.is_some()).map(|(number, _)| number).collect()
    };
    let views = within(&cut.plan);
    assert!(views.len() >= 4, "{} slices lie in others", views.len());
    let ids: Vec<&str> = views.iter().map(|&at| cut.plan.buffers[at].id.as_str()).collect();
    let mut sent = 0;
    for step in &cut.plan.steps {
        match &step.action {
            Action::Copy(copy) => sent += usize::from(ids.contains(&copy.from.as_str())),
            Action::Launch(launch) if launch.writes.iter().any(|write| ids.contains(&write.as_str())) => {
                let at = |id: &String| cut.plan.buffers.iter().find(|buffer| buffer.id == *id).unwrap();
                let (read, write) = (at(&launch.reads[0]), at(&launch.writes[0]));
                assert_eq!(write.alias.as_deref(), Some(read.id.as_str()));
                assert!(write.offset >= read.offset && write.bytes < read.bytes);
            }
            Action::Launch(_) => {}
        }
    }
    assert!(sent > 0, "no slice is sent from where it lies");
    let model = || Model::Graph(network.graph.clone());
    let options = Options { bind: network.dims.clone(), ..Options::of_plan(&cut.plan).unwrap() };
    for change in [64, 128] {
        let mut forged = cut.plan.clone();
        let at = *views.iter().find(|&&at| forged.buffers[at].offset.0 >= 64 * change).unwrap();
        forged.buffers[at].offset.0 -= change;
        let error = compile::check_model(&forged, model(), &options).unwrap_err();
        assert!(matches!(error, Error::Check(_)), "{error}");
    }
}

fn kinds(compiled: &Compiled) -> Vec<&str> {
    compiled.plan.options.splits.iter().map(|split| split.over.as_str()).collect()
}

/// Neither rows nor columns alone make a layer small enough, and its input is larger than each device: parts are divided
/// again, and devices are handed the boxes of the input that they read.
#[test]
fn a_layer_that_needs_two_loops_divided() {
    let text = r#"{"partition_model": 1, "name": "two", "inputs": [{"name": "x", "type": "f32[128, 64]"}],
        "params": [{"name": "w", "type": "f32[64, 128]", "init": "he_normal"},
                   {"name": "v", "type": "f32[128, 4]", "init": "he_normal"}],
        "nodes": [{"name": "fc1", "op": "dense", "inputs": ["x", "w"], "activation": "relu"},
                  {"name": "fc2", "op": "matmul", "inputs": ["fc1", "v"]}], "outputs": ["fc2"]}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.json");
    std::fs::write(&path, text).unwrap();
    let network = Network::open(&path).unwrap();
    let compiled = planned(&network, "cpu[80x24000B]", SplitOptions::default()).unwrap();
    sound("two", &network, &compiled);
    same_results("two", &network, &compiled);
    assert!(kinds(&compiled).contains(&"slices"), "{:?}", kinds(&compiled));
    let again = compiled.plan.options.splits.iter().flat_map(|split| &split.nodes);
    assert!(again.clone().any(|node| node.starts_with("fc1[")), "{:?}", again.collect::<Vec<_>>());
    assert!(compiled.plan.devices.iter().all(|device| device.arena <= device.memory));
    let exact = SplitOptions { exact: true, ..SplitOptions::default() };
    if let Ok(compiled) = planned(&network, "cpu[80x24000B]", exact) {
        assert!(kinds(&compiled).iter().all(|over| !over.starts_with("sum")), "{:?}", kinds(&compiled));
    }
}

/// A layer whose weights are larger than each device is computed step by step, but not where bits are to stay.
#[test]
fn a_recurrent_layer_that_is_larger_than_each_device() {
    let Some(network) = open("exports/lstm.onnx") else { return };
    let compiled = planned(&network, "cpu[60x2000B]", SplitOptions::default()).unwrap();
    assert!(kinds(&compiled).contains(&"steps"), "{:?}", kinds(&compiled));
    sound("lstm", &network, &compiled);
    same_results("lstm", &network, &compiled);
    let exact = SplitOptions { exact: true, ..SplitOptions::default() };
    let error = planned(&network, "cpu[60x2000B]", exact).unwrap_err();
    assert!(error.details().join("\n").contains("splitting operations does not help"), "{error}");
}

/// A plan that splits operations is scored as what it is, and replaced by plans that split them too, on its devices and on
/// others.
#[test]
fn a_plan_that_splits_is_scored_and_replaced() {
    let folder = Folder::new();
    let model = example("seed_stack.json");
    let own = |devices| [model.as_str(), "-d", devices, "--batch", "10", "--effort", "fast"];
    let devices = "2xcpu[6x3900kB]";
    folder.ok(&[&own(devices)[..], &["-o", "split.json"]].concat());
    folder.ok(&[&own(devices)[..], &["--score", "split.json", "-o", "scored.json"]].concat());
    folder.ok(&[&own(devices)[..], &["--from", "split.json", "-o", "again.json"]].concat());
    folder.ok(&[&own("3xcpu[6x3900kB]")[..], &["--from", "split.json", "-o", "more.json"]].concat());
    folder.ok(&[&own("2xcpu[6x6MB]")[..], &["-o", "whole.json"]].concat());
    folder.ok(&[&own(devices)[..], &["--from", "whole.json", "-o", "anew.json"]].concat());
    let plan = |name| Plan::load(folder.path(name)).unwrap();
    let split = plan("split.json");
    assert_eq!(plan("scored.json").cost, split.cost);
    assert_eq!(plan("again.json").placement, split.placement);
    assert!(plan("whole.json").options.splits.is_empty());
    for name in ["more.json", "anew.json"] {
        assert!(!plan(name).options.splits.is_empty(), "{name}");
    }
    let replaced = plan("again.json").replan.unwrap();
    assert_eq!((replaced.moved_bytes.get(), replaced.new_bytes.get()), (0, 0));
}

/// A product whose weights fit on no device, of what a state becomes or not: of ways that fit, the one that moves least is
/// found however many devices there are.
#[test]
fn more_devices_move_no_more() {
    let folder = Folder::new();
    let large = |states: &str, add: &str| {
        format!(
            r#"{{"partition_model":1,"name":"large","inputs":[{{"name":"x","type":"f32[8,64]"}}],"params":[{{"name":"w",
                "type":"f32[64,256]"}}],"states":[{states}],"nodes":[{{"name":"h","op":"add","inputs":["x","{add}"]}},
                {{"name":"fc","op":"matmul","inputs":["h","w"]}}],"outputs":["fc"]}}"#
        )
    };
    for model in [large("", "x"), large(r#"{"name":"c","type":"f32[8,64]","next":"h"}"#, "c")] {
        std::fs::write(folder.path("large.json"), &model).unwrap();
        let moved = |devices: u32| {
            let spec = format!("{devices}xcpu:memory=48kB");
            folder.ok(&["large.json", "-d", &spec, "-o", "plan.json"]);
            Plan::load(folder.path("plan.json")).unwrap().cost.transfer_bytes
        };
        let least = moved(2);
        for devices in [3, 5, 16] {
            assert!(
                moved(devices).get() * 10 <= least.get() * 11,
                "{devices} devices, {least} on two: {model}"
            );
        }
    }
}
