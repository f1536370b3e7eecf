//! Real networks, planned by the planner, cut over devices and run, against the stored outputs of
//! another runtime.

use partition::unstable::compile::Compiled;
use partition::unstable::place::DeviceUse;
use partition::unstable::plan;
use partition::unstable::run::interpret;

use crate::networks::{Network, Outputs, used};
use crate::shared;

/// None where the corpus is absent.
fn open(file: &str) -> Option<Network> {
    let path = shared::file(&format!("corpus/{file}"))?;
    Some(Network::open(&path).unwrap_or_else(|error| panic!("{file}: {error}: {:?}", error.details())))
}

/// The plan is sound by both verifiers, and no arena exceeds its cap.
fn sound(what: &str, compiled: &Compiled) {
    let plan = &compiled.plan;
    assert_eq!(plan.placement.len() as u64, plan.model.nodes, "{what}: every node has its place");
    plan::check(plan).unwrap_or_else(|error| panic!("{what}: {error}: {:?}", error.details()));
    for device in &plan.devices {
        assert!(device.arena <= device.memory && device.peak <= device.arena, "{what}: {}", device.name);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, plan.to_json()).unwrap();
    shared::verify_plan(&path);
}

/// A plan under caps that force it onto several devices, with bytes moved.
fn split(file: &str, network: &Network, arena: u64, devices: u64) -> Compiled {
    let (cap, compiled) =
        network.split(arena, devices).unwrap_or_else(|error| panic!("{file} on {devices}: {error}"));
    println!("{file}: {devices} devices of {cap} B, one needs {arena} B");
    assert!(cap < arena, "{file}: the cap forces nothing");
    cut(file, &compiled);
    compiled
}

/// The plan uses two devices at least, moves bytes between them, and is sound.
fn cut(file: &str, compiled: &Compiled) {
    let (count, moved) = (used(compiled), compiled.plan.cost.step_bytes.get());
    println!("{file}: {count} devices, {moved} B moved");
    assert!(count >= 2 && moved > 0, "{file}: {count} devices, {moved} bytes moved");
    sound(file, compiled);
}

/// The plan on one device that is large enough, and its arena.
fn single(file: &str, network: &Network) -> (Compiled, u64) {
    let compiled = network
        .plan("cpu:memory=64GB", DeviceUse::Auto)
        .unwrap_or_else(|error| panic!("{file}: {error}: {:?}", error.details()));
    let arena = compiled.plan.devices[0].arena.get();
    (compiled, arena)
}

fn run(file: &str, network: &Network, compiled: &Compiled) -> Outputs {
    network.run(compiled).unwrap_or_else(|error| panic!("{file}: {error}: {:?}", error.details()))
}

/// The outputs are the stored ones within the tolerance, to which `noise` times the largest value
/// is added.
fn near(file: &str, network: &Network, outputs: &Outputs, noise: f64) {
    let distance = network.distance(outputs, noise).unwrap_or_else(|| panic!("{file}: nothing is stored"));
    println!("{file}: {} values within {:.1e}", distance.values, distance.absolute);
    assert!(distance.relative <= 1.0, "{file}: {distance:?}");
}

/// One, two, three and five devices give the stored outputs, all with the same bits, and so does
/// the graph run node by node without a plan.
fn on_many(file: &str) {
    let Some(network) = open(file) else { return };
    let (compiled, arena) = single(file, &network);
    sound(file, &compiled);
    let expected = run(file, &network, &compiled);
    near(file, &network, &expected, 0.0);
    let graph = &compiled.network.as_ref().unwrap().graph;
    let nodes = interpret(graph, &network.inputs, &|id| network.weight(id)).unwrap();
    assert!(nodes == expected, "{file}: node by node gives other bits");
    for devices in [2, 3, 5] {
        let compiled = split(file, &network, arena, devices);
        assert!(run(file, &network, &compiled) == expected, "{file} on {devices} devices: other bits");
    }
}

/// A network of full size, cut over two devices, gives the stored outputs.
fn on_two(file: &str, noise: f64) {
    let Some(network) = open(file) else { return };
    let (_, arena) = single(file, &network);
    let compiled = split(file, &network, arena, 2);
    near(file, &network, &run(file, &network, &compiled), noise);
}

/// A network that makes its weights in the step gives the stored outputs, which are those of the
/// framework's own tests; a balance forces the cut.
fn balanced(file: &str) {
    let Some(network) = open(file) else { return };
    let (_, arena) = single(file, &network);
    let compiled = network.balanced(arena).unwrap_or_else(|error| panic!("{file}: {error}"));
    cut(file, &compiled);
    near(file, &network, &run(file, &network, &compiled), 0.0);
}

/// A network of a node or two, which nothing can cut, gives the stored outputs.
fn on_one(file: &str) {
    let Some(network) = open(file) else { return };
    let (compiled, _) = single(file, &network);
    sound(file, &compiled);
    near(file, &network, &run(file, &network, &compiled), 0.0);
}

macro_rules! networks {
    ($($test:ident: $check:ident($($argument:expr),+);)+) => {
        $(#[test] fn $test() { $check($($argument),+); })+
    };
}

/// As `networks`, of those that take seconds, where others of their kind are in it.
macro_rules! long_networks {
    ($($test:ident: $check:ident($($argument:expr),+);)+) => {
        $(mod $test {
            #[test]
            #[ignore = "long: cargo test -- --ignored ::others"]
            fn others() {
                super::$check($($argument),+);
            }
        })+
    };
}

networks! {
    autoencoder: on_many("onnx/s_autoencoder_convt.onnx");
    bert: on_many("onnx/s_bert.onnx");
    gpt2: on_many("onnx/s_gpt2.onnx");
    llama: on_many("onnx/s_llama.onnx");
    keras2_mlp: on_many("keras/mlp_small.k2.json");
    keras3_siamese: on_many("keras/siamese_multi_io.k3.json");
    fixture_average_pool: on_one("onnx/tract_averagepool_count_include_pad.onnx");
    fixture_grouped_deconvolution: on_one("onnx/tract_deconv_group.onnx");
    fixture_product: on_one("wheels/ort_mul_1.onnx");
    fixture_sigmoid: on_one("wheels/ort_sigmoid.onnx");
    light_alexnet: balanced("onnx/light_bvlc_alexnet.onnx");
    light_squeezenet: balanced("onnx/light_squeezenet.onnx");
}

long_networks! {
    lstm: on_many("onnx/s_lstm.onnx");
    mixtral: on_many("onnx/s_mixtral.onnx");
    diffusion: on_many("onnx/s_sd_unet.onnx");
    vit: on_many("onnx/s_vit.onnx");
    light_inception: balanced("onnx/light_inception_v1.onnx");
    mobilenet: on_many("onnx/s_mobilenet_v2.onnx");
    t5_encoder: on_many("onnx/s_t5_encoder.onnx");
    keras2_cnn: on_many("keras/cnn_small.k2.json");
    keras2_gru: on_many("keras/gru_conv1d_small.k2.json");
    keras2_transformer: on_many("keras/transformer_small.k2.json");
    resnet: on_many("onnx/s_resnet_hf.onnx");
    keras2_siamese: on_many("keras/siamese_multi_io.k2.json");
    keras3_cnn: on_many("keras/cnn_small.k3.json");
    keras3_gru: on_many("keras/gru_conv1d_small.k3.json");
    keras3_mlp: on_many("keras/mlp_small.k3.json");
    keras3_transformer: on_many("keras/transformer_small.k3.json");
    full_lstm: on_two("onnx/lstm_text_full.onnx", 0.0);
    full_llama: on_two("onnx/llama_small.onnx", 0.0);
    full_mixtral: on_two("onnx/mixtral_small.onnx", 0.0);
    full_mobilenet: on_two("onnx/mobilenet_v3_large.onnx", 0.0);
    full_shufflenet: on_two("onnx/shufflenet_v2_x1_0.onnx", 0.0);
    light_densenet: balanced("onnx/light_densenet121.onnx");
    // Their outputs reach 3402 and are sums that cancel: a millionth of that is the last digits of f32. The runtime
    // that made the stored outputs (onnxruntime 1.31) is 7.7 times the default tolerance away from them itself when
    // its graph optimisations are turned off.
    full_resnet: on_two("onnx/resnet50.onnx", 1e-6);
    full_bert: on_two("onnx/bert_base.onnx", 0.0);
    full_diffusion: on_two("onnx/sd_unet_small.onnx", 0.0);
    full_gpt2: on_two("onnx/gpt2.onnx", 0.0);
    full_vgg: on_two("onnx/vgg16.onnx", 0.0);
    full_vit: on_two("onnx/vit_b_16.onnx", 0.0);
    light_vgg: balanced("onnx/light_vgg19.onnx");
    full_resnet_of_opset_13: on_two("onnx/resnet50_ts13.onnx", 1e-6);
    light_resnet: balanced("onnx/light_resnet50.onnx");
}

/// Twelve slices: each computes something where all are asked for, and slices too small for two of
/// the twelve layers are planned without asking.
fn twelve(file: &str, network: &Network) {
    let (compiled, _) = single(file, network);
    let expected = run(file, network, &compiled);
    assert!(expected.iter().all(|(_, tensor)| tensor.to_f64().iter().any(|&value| value != 0.0)));
    for (spec, devices) in [("2xcpu[6x1000MB]", DeviceUse::All), ("2xcpu[6x4200kB]", DeviceUse::Auto)] {
        let compiled =
            network.plan(spec, devices).unwrap_or_else(|error| panic!("{file} on {spec}: {error}"));
        sound(&format!("{file} on {spec}"), &compiled);
        // Ten layers of 4 MB need a slice each; only the first and the last, of 0.4 MB, can share one.
        let least = if devices == DeviceUse::All { 12 } else { 11 };
        assert!(used(&compiled) >= least, "{file} on {spec}: {} devices", used(&compiled));
        assert!(compiled.plan.cost.step_bytes.get() > 0, "{file} on {spec}");
        assert!(run(file, network, &compiled) == expected, "{file} on {spec}: other bits");
    }
}

#[test]
fn the_seed_example_fills_twelve_slices() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/seed_stack.json");
    twelve("examples/seed_stack.json", &Network::open(&path).unwrap());
}

long! {
    the_seed_stacks_of_the_corpus_fill_twelve_slices;
}

fn the_seed_stacks_of_the_corpus_fill_twelve_slices() {
    for file in ["keras/seed_stack.k2.json", "keras/seed_stack.k3.json"] {
        let Some(network) = open(file) else { return };
        twelve(file, &network);
    }
}
