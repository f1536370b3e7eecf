//! Operations that are split because a step is faster so: never slower than whole, the best of what is written by
//! hand, sound, and with the bits of one device.

use partition::unstable::compile::{Compiled, Options, SplitOptions, SplitRule, compile};
use partition::unstable::load::Model;
use partition::unstable::place::{Effort, Objective};
use partition::unstable::topology::Topology;

use crate::networks::Network;
use crate::shared;
use crate::split::{same_results, sound};
use crate::sweep::Share;

fn planned(network: &Network, devices: &str, split: SplitOptions) -> Compiled {
    planned_for(Objective::Latency, network, devices, split)
}

fn planned_for(objective: Objective, network: &Network, devices: &str, split: SplitOptions) -> Compiled {
    let mut options = Options { bind: network.dims.clone(), split, ..Options::default() };
    options.place.objective = objective;
    options.place.effort = Effort::Default;
    let topology = Topology::parse(devices).unwrap();
    compile(Model::Graph(network.graph.clone()), &topology, &options)
        .unwrap_or_else(|error| panic!("{devices}: {error}: {:?}", error.details()))
}

fn none() -> SplitOptions {
    SplitOptions { auto: false, ..SplitOptions::default() }
}

fn latency(compiled: &Compiled) -> u64 {
    compiled.plan.cost.latency_ns.get()
}

sweep! {
    a_step_is_never_slower_for_what_is_split: one of 15;
}

/// Networks of every kind, on equal devices, unequal ones and ones that are far apart.
fn a_step_is_never_slower_for_what_is_split(share: Share) {
    let files = ["s_gpt2.onnx", "s_vit.onnx", "s_resnet_hf.onnx", "s_mixtral.onnx", "s_t5_encoder.onnx"];
    let topologies = ["2xcpu:cores=1", "cpu:cores=1+cpu:cores=3", "3xcpu:cores=1"];
    let mut split = 0;
    for (file, devices) in share.among(files.iter().flat_map(|file| topologies.map(|one| (file, one)))) {
        let Some(path) = shared::file(&format!("corpus/onnx/{file}")) else { return };
        let network = Network::open(&path).unwrap();
        let what = format!("{file} on {devices}");
        let whole = planned(&network, devices, none());
        let exact = SplitOptions { exact: true, ..SplitOptions::default() };
        for options in [SplitOptions::default(), exact] {
            let compiled = planned(&network, devices, options);
            assert!(latency(&compiled) <= latency(&whole), "{what}: slower than whole");
            if compiled.plan.options.splits.is_empty() {
                continue;
            }
            split += 1;
            sound(&what, &network, &compiled);
            same_results(&what, &network, &compiled);
        }
    }
    assert!(split >= share.least(4), "only {split} were split");
}

/// What no plan is below, whatever it splits, is the model's operations over all rates; a plan that claims more is refused.
#[test]
fn no_plan_is_below_all_peaks() {
    let mut network = Network::open(std::path::Path::new("examples/mlp.json")).unwrap();
    network.dims.insert("batch".to_owned(), 512);
    // Products alone: 2 operations for each weight and sample.
    let products = 2 * 512 * (64 * 256 + 3 * 2 * 256 * 1024 + 256 * 10);
    for (devices, rate) in [
        ("3xcpu:flops=50GFLOP/s", 150.0),
        ("cpu[3x1GB]:flops=80GFLOP/s", 80.0),
        ("cpu:flops=50GFLOP/s+cpu:flops=100GFLOP/s", 150.0),
    ] {
        for split in [none(), SplitOptions::default()] {
            let compiled = planned(&network, devices, split);
            let peaks = compiled.plan.bound.clone().unwrap().peaks.unwrap();
            let least = f64::from(products) / rate;
            let value = peaks.value as f64;
            assert!((least..1.02 * least).contains(&value), "{devices}: {value} ns, products alone {least}");
            assert!(peaks.value <= latency(&compiled), "{devices}");
            sound(devices, &network, &compiled);
            let mut forged = compiled.plan.clone();
            let (claimed, reached) = (peaks.value + 1, latency(&compiled));
            let gap = 1.0 - claimed as f64 / reached as f64;
            forged.bound.as_mut().unwrap().peaks =
                Some(partition::unstable::plan::Peaks { value: claimed, gap });
            partition::unstable::plan::check(&forged).unwrap();
            let options = Options { bind: network.dims.clone(), ..Options::of_plan(&forged).unwrap() };
            let model = Model::Graph(network.graph.clone());
            let error = partition::unstable::compile::check_model(&forged, model, &options).unwrap_err();
            assert!(error.details().iter().any(|line| line.contains("at all peaks")), "{error}");
        }
    }
}

/// Nodes under one prefix go together, and none of them is split.
#[test]
fn blocks_are_kept_whole() {
    let mut network = Network::open(std::path::Path::new("examples/mlp.json")).unwrap();
    network.dims.insert("batch".to_owned(), 512);
    let devices = "3xcpu:cores=1";
    assert!(!planned(&network, devices, SplitOptions::default()).plan.options.splits.is_empty());
    let keep = SplitOptions { keep_whole: vec!["block*".to_owned()], ..SplitOptions::default() };
    let compiled = planned(&network, devices, keep);
    sound("mlp", &network, &compiled);
    let split = compiled.plan.options.splits.iter().flat_map(|split| &split.nodes);
    assert!(split.clone().all(|node| !node.starts_with("block")), "{:?}", split.collect::<Vec<_>>());
    let mut blocks: std::collections::BTreeMap<&str, &str> = std::collections::BTreeMap::new();
    for (node, device) in compiled.plan.placement.iter().filter(|(node, _)| node.starts_with("block")) {
        let block = node.split('/').next().unwrap();
        assert_eq!(*blocks.entry(block).or_insert(device), device, "{node}");
    }
    assert!(!blocks.is_empty());
}

/// A device that is three times as fast is given about three times as much.
#[test]
fn unequal_devices_get_unequal_slices() {
    let mut network = Network::open(std::path::Path::new("examples/seed_stack.json")).unwrap();
    network.dims.insert("batch".to_owned(), 4096);
    let compiled = planned(&network, "cpu:cores=6+cpu:cores=2", SplitOptions::default());
    let splits = &compiled.plan.options.splits;
    assert!(!splits.is_empty(), "nothing is split");
    for split in splits {
        let [0, bound, extent] = split.bounds[..] else { panic!("{:?}", split.bounds) };
        let first = if split.devices[0] == "cpu0" { bound } else { extent - bound };
        let share = first as f64 / extent as f64;
        assert!((0.65..0.85).contains(&share), "{:?}: {share} on the faster", split.bounds);
    }
    sound("seed_stack", &network, &compiled);
}

/// Three layers of these widths.
fn layers(widths: [u64; 4]) -> Network {
    layers_of(&widths)
}

/// A layer from each of these widths to the next.
fn layers_of(widths: &[u64]) -> Network {
    let mut params = Vec::new();
    let mut nodes = Vec::new();
    let mut before = "x".to_owned();
    for (at, pair) in widths.windows(2).enumerate() {
        let name = format!("fc{at}");
        params.push(format!(
            r#"{{"name": "{name}/kernel", "type": "f32[{}, {}]", "init": "he_normal"}}"#,
            pair[0], pair[1]
        ));
        nodes.push(format!(
            r#"{{"name": "{name}", "op": "dense", "inputs": ["{before}", "{name}/kernel"], "activation": "relu"}}"#
        ));
        before = name;
    }
    let text = format!(
        r#"{{"partition_model": 1, "name": "layers", "dims": ["batch"],
        "inputs": [{{"name": "x", "type": "f32[batch, {}]"}}],
        "params": [{}], "nodes": [{}], "outputs": ["{before}"]}}"#,
        widths[0],
        params.join(", "),
        nodes.join(", ")
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layers.json");
    std::fs::write(&path, text).unwrap();
    Network::open(&path).unwrap()
}

long! {
    the_busiest_device_is_less_busy_for_what_is_split;
}

/// The largest of three layers takes most of the time: whole, it keeps one device busy and the others waiting.
fn the_busiest_device_is_less_busy_for_what_is_split() {
    let network = layers([512, 4096, 512, 64]).with_batch(256).unwrap();
    let devices = "3xcpu:cores=1";
    let load = |split| {
        let compiled = planned_for(Objective::Throughput, &network, devices, split);
        sound("layers", &network, &compiled);
        same_results("layers", &network, &compiled);
        compiled.plan.cost.max_load_ns.get()
    };
    let (split, whole) = (load(SplitOptions::default()), load(none()));
    assert!(split * 4 <= whole * 3, "{split} ns of load where {whole} ns are there with nothing split");
}

/// Blocks that are alike are split alike: what is decided for one is decided for all.
#[test]
fn equal_blocks_are_split_alike() {
    let mut network = layers_of(&[1024; 13]);
    network.dims.insert("batch".to_owned(), 64);
    let compiled = planned(&network, "2xcpu:cores=1", SplitOptions::default());
    sound("blocks", &network, &compiled);
    let mut ways: std::collections::BTreeMap<&str, &str> = std::collections::BTreeMap::new();
    for split in &compiled.plan.options.splits {
        for node in split.nodes.iter().filter(|node| node.ends_with("#0")) {
            ways.insert(node.as_str(), split.over.as_str());
        }
    }
    let middle: Vec<Option<&&str>> = (3..9).map(|at| ways.get(format!("fc{at}#0").as_str())).collect();
    assert!(middle[0].is_some(), "nothing is split");
    assert!(middle.chunks(2).all(|pair| pair == &middle[..2]), "{middle:?}");
}

/// What neither machine has room for is computed by both in turn, each of its devices a part of every layer: nothing but
/// the network is between the machines.
#[test]
fn machines_take_over_from_one_another() {
    let mut network = layers_of(&[1024; 25]);
    network.dims.insert("batch".to_owned(), 4096);
    let devices = "2xh100-80g:memory=100MB+2xh100-80g:host=h1,memory=100MB";
    let compiled = planned(&network, devices, SplitOptions::default());
    let splits = &compiled.plan.options.splits;
    assert!(!splits.is_empty(), "nothing is split");
    for split in splits {
        let hosts: std::collections::BTreeSet<bool> =
            split.devices.iter().map(|device| device.starts_with("h1/")).collect();
        assert_eq!(hosts.len(), 1, "{:?} are parts of {:?}", split.devices, split.nodes);
    }
    let whole = planned(&network, devices, none());
    assert!(latency(&compiled) * 3 < latency(&whole) * 2, "{} {}", latency(&compiled), latency(&whole));
    sound("layers", &network, &compiled);
}

/// Where the output is put together less room is left for parameters: that device takes less of the layers.
#[test]
fn what_is_put_together_leaves_less_to_a_device() {
    let mut widths = [1024; 14];
    widths[13] = 8192;
    let mut network = layers_of(&widths);
    network.dims.insert("batch".to_owned(), 1024);
    let devices = "4xh100-80g:memory=90MB";
    let compiled = planned(&network, devices, SplitOptions::default());
    let whole = planned(&network, devices, none());
    assert!(latency(&compiled) * 3 < latency(&whole) * 2, "{} {}", latency(&compiled), latency(&whole));
    sound("layers", &network, &compiled);
}

/// Every way to split each of three layers in two by hand: none is much faster than what is found.
#[test]
fn the_way_that_is_found_is_near_the_best_of_all_by_hand() {
    let axes = [None, Some("0"), Some("1"), Some("sum")];
    for (widths, batch) in [([512, 2048, 512, 64], 256), ([4096, 1024, 1024, 4096], 4), ([64, 64, 64, 8], 4)]
    {
        let mut network = layers(widths);
        network.dims.insert("batch".to_owned(), batch);
        let devices = "2xcpu:cores=1";
        let found = latency(&planned(&network, devices, SplitOptions::default()));
        let mut best = (u64::MAX, Vec::new());
        for number in 0..axes.len().pow(3) {
            let mut rest = number;
            let mut rules: Vec<SplitRule> = Vec::new();
            for layer in 0..3 {
                if let Some(axis) = axes[rest % axes.len()] {
                    rules.push(format!("fc{layer}={axis}:2@cpu0,cpu1").parse().unwrap());
                }
                rest /= axes.len();
            }
            let options = SplitOptions { rules: rules.clone(), ..none() };
            let latency = latency(&planned(&network, devices, options));
            if latency < best.0 {
                best = (latency, rules);
            }
        }
        let (best, rules) = best;
        let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
        let ratio = found as f64 / best as f64;
        println!("{widths:?}, batch {batch}: {found} ns, by hand {best} ns with {rules:?}, {ratio:.3}");
        assert!(ratio <= 1.05, "{widths:?}, batch {batch}: {found} ns where {best} ns is there: {rules:?}");
    }
}
