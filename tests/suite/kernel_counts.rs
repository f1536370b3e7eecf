//! How many kernels the models of the corpus take, and how many bytes those move: counted, listed in a
//! snapshot, and so noticed where either grows. What the main patterns come to is derived by hand.

use std::fmt::Write as _;

use partition::compile::{Network, Options, prepare};
use partition::ir::Graph;
use partition::ir::text::parse;
use partition::load::{LoadOptions, Model, load};

use crate::shared;

/// The network of a model of the corpus, and none where that is a cost graph.
fn network(relative: &str) -> Option<Network> {
    let path = shared::file(relative)?;
    let bytes = std::fs::read(&path).unwrap();
    match load(&bytes, Some(&path), &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => Some(prepare(graph, &Options::default()).unwrap()),
        Model::CostGraph { .. } => None,
    }
}

/// Kernels, and bytes of all that they read and write.
fn counts(network: &Network) -> (usize, u64) {
    let graph = &network.graph;
    let values = network.grouping.groups.iter().flat_map(|group| group.reads.iter().chain(&group.writes));
    let bytes = values.map(|&value| graph.ty(value).bytes().unwrap().get()).sum();
    (network.grouping.groups.len(), bytes)
}

/// The operations of a network's groups, one line for each.
fn heroes(network: &Network) -> Vec<String> {
    let ops = |nodes: &[partition::ir::NodeId]| {
        nodes.iter().map(|&node| network.graph.node(node).op.name()).collect::<Vec<_>>().join(" ")
    };
    network.grouping.groups.iter().map(|group| ops(&group.nodes)).collect()
}

fn snapshot(name: &str, models: &[&str]) {
    let mut text = String::new();
    for model in models {
        let Some(network) = network(model) else { return };
        let (kernels, bytes) = counts(&network);
        let file = model.rsplit('/').next().unwrap();
        writeln!(text, "{file}: {kernels} kernels, {bytes} bytes").unwrap();
    }
    let snapshots = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => snapshots, prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn kernels_and_bytes_of_the_small_models() {
    snapshot(
        "kernel_counts_small",
        &[
            "corpus/onnx/s_autoencoder_convt.onnx",
            "corpus/onnx/s_bert.onnx",
            "corpus/onnx/s_gpt2.onnx",
            "corpus/onnx/s_llama.onnx",
            "corpus/onnx/s_lstm.onnx",
            "corpus/onnx/s_mixtral.onnx",
            "corpus/onnx/s_mobilenet_v2.onnx",
            "corpus/onnx/s_resnet_hf.onnx",
            "corpus/onnx/s_sd_unet.onnx",
            "corpus/onnx/s_t5_encoder.onnx",
            "corpus/onnx/s_vit.onnx",
            "corpus/keras/cnn_small.k3.json",
            "corpus/keras/gru_conv1d_small.k3.json",
            "corpus/keras/lstm_text.k3.json",
            "corpus/keras/mlp_small.k3.json",
            "corpus/keras/siamese_multi_io.k3.json",
            "corpus/keras/transformer_small.k3.json",
        ],
    );
}

#[test]
fn kernels_and_bytes_of_the_real_models() {
    snapshot(
        "kernel_counts_real",
        &[
            "corpus/onnx/bert_base.onnx",
            "corpus/onnx/gpt2.onnx",
            "corpus/onnx/llama_small.onnx",
            "corpus/onnx/lstm_text_full.onnx",
            "corpus/onnx/mixtral_small.onnx",
            "corpus/onnx/mobilenet_v3_large.onnx",
            "corpus/onnx/resnet50.onnx",
            "corpus/onnx/resnet50_ts13.onnx",
            "corpus/onnx/sd_unet_small.onnx",
            "corpus/onnx/shufflenet_v2_x1_0.onnx",
            "corpus/onnx/vgg16.onnx",
            "corpus/onnx/vit_b_16.onnx",
            "corpus/onnx/light_bvlc_alexnet.onnx",
            "corpus/onnx/light_densenet121.onnx",
            "corpus/onnx/light_inception_v1.onnx",
            "corpus/onnx/light_resnet50.onnx",
            "corpus/onnx/light_squeezenet.onnx",
            "corpus/onnx/light_vgg19.onnx",
            "corpus/hf/bert_base.config.json",
            "corpus/hf/gpt2.config.json",
            "corpus/hf/llama_default_7b.config.json",
            "corpus/keras/mobilenet_v2.k3.json",
            "corpus/keras/resnet50.k3.json",
            "corpus/keras/xception.k3.json",
        ],
    );
}

/// Attention is found in every model that has it: one for each layer that the model's name promises.
#[test]
fn attention_is_one_kernel_in_every_model_that_has_it() {
    for (model, layers) in [
        ("corpus/onnx/s_bert.onnx", 2),
        ("corpus/onnx/s_gpt2.onnx", 3),
        ("corpus/onnx/s_llama.onnx", 3),
        ("corpus/onnx/s_mixtral.onnx", 2),
        ("corpus/onnx/s_t5_encoder.onnx", 3),
        ("corpus/onnx/s_vit.onnx", 4),
        ("corpus/onnx/s_sd_unet.onnx", 8),
        ("corpus/keras/transformer_small.k3.json", 2),
    ] {
        let Some(network) = network(model) else { return };
        let heroes = heroes(&network);
        let found = heroes.iter().filter(|hero| hero.split(' ').any(|op| op == "attention")).count();
        assert_eq!(found, layers, "{model}:\n{}", heroes.join("\n"));
        let left = heroes.iter().filter(|hero| hero.starts_with("softmax")).count();
        // What is left chooses experts, or is the output.
        let other = if model.contains("mixtral") { layers } else { usize::from(model.contains("keras")) };
        assert_eq!(left, other, "{model}");
    }
}

/// A layer of a transformer by hand: a kernel for each norm with its scale and shift, each product with
/// bias, activation and residual sum, and the attention. Beside the layers stand embeddings and the head.
#[test]
fn layers_take_the_kernels_that_they_must() {
    for (model, layers, products, beside) in [
        // Queries, keys and values by one product; embedding, last norm, head.
        ("corpus/onnx/s_gpt2.onnx", 3, 4, 3),
        // One for each; embedding and last norm.
        ("corpus/onnx/s_t5_encoder.onnx", 3, 6, 2),
        // Patches, their transposition, class token, positions, last norm, head.
        ("corpus/onnx/s_vit.onnx", 4, 6, 6),
    ] {
        let Some(network) = network(model) else { return };
        let expected = layers * (2 + products + 1) + beside;
        assert_eq!(counts(&network).0, expected, "{model}:\n{}", heroes(&network).join("\n"));
    }
}

/// A network of `x: f32[4, 8]` and these lines.
fn written(lines: &str) -> Network {
    let head = "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n%0: f32[4, 8] = input \"x\" @s0\n";
    let text = format!("{head}{lines}");
    let graph: Graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    prepare(graph, &Options::default()).unwrap()
}

const ROW: u64 = 8 * 4;
const WHOLE: u64 = 4 * ROW;

#[test]
fn the_main_patterns_are_one_kernel_each() {
    // Softmax: reads x, writes y.
    let softmax = "%1: f32[4, 1] = reduce %0 kind=max axes=[1] keep=true @s0
%2: f32[4, 8] = sub %0, %1 @s0
%3: f32[4, 8] = exp %2 @s0
%4: f32[4, 1] = reduce %3 kind=sum axes=[1] keep=true @s0
%5: f32[4, 8] = div %3, %4 @s0
output \"y\" %5
";
    // Layer norm with scale and bias: reads x and both rows, writes y.
    let layer_norm = "%1: f32[4, 1] = reduce %0 kind=mean axes=[1] keep=true @s0
%2: f32[4, 8] = sub %0, %1 @s0
%3: f32[4, 8] = mul %2, %2 @s0
%4: f32[4, 1] = reduce %3 kind=mean axes=[1] keep=true @s0
%5: f32[] = constant {0.00001} @s0
%6: f32[4, 1] = add %4, %5 @s0
%7: f32[4, 1] = sqrt %6 @s0
%8: f32[4, 8] = div %2, %7 @s0
%9: f32[8] = param \"g\" init=constant(1.0) @s0
%10: f32[8] = param \"b\" init=constant(0.0) @s0
%11: f32[4, 8] = mul %8, %9 @s0
%12: f32[4, 8] = add %11, %10 @s0
output \"y\" %12
";
    // RMS norm with a scale: reads x and a row, writes y.
    let rms_norm = "%1: f32[4, 8] = mul %0, %0 @s0
%2: f32[4, 1] = reduce %1 kind=mean axes=[1] keep=true @s0
%3: f32[] = constant {0.00001} @s0
%4: f32[4, 1] = add %2, %3 @s0
%5: f32[4, 1] = sqrt %4 @s0
%6: f32[4, 1] = reciprocal %5 @s0
%7: f32[4, 8] = mul %0, %6 @s0
%8: f32[8] = param \"g\" init=constant(1.0) @s0
%9: f32[4, 8] = mul %8, %7 @s0
output \"y\" %9
";
    // SiLU of x times x again: reads x, writes y.
    let gated = "%1: f32[4, 8] = sigmoid %0 @s0
%2: f32[4, 8] = mul %0, %1 @s0
%3: f32[4, 8] = mul %2, %0 @s0
output \"y\" %3
";
    // Rotary embedding: reads x, cosines and sines, writes y.
    let rotary = "%1: f32[8] = param \"c\" init=constant(1.0) @s0
%2: f32[8] = param \"s\" init=constant(0.0) @s0
%3: f32[4, 8] = mul %0, %1 @s0
%4: f32[4, 4] = slice %0 starts=[0, 0] sizes=[4, 4] steps=[1, 1] @s0
%5: f32[4, 4] = slice %0 starts=[0, 4] sizes=[4, 4] steps=[1, 1] @s0
%6: f32[4, 4] = neg %5 @s0
%7: f32[4, 8] = concat %6, %4 axis=1 @s0
%8: f32[4, 8] = mul %7, %2 @s0
%9: f32[4, 8] = add %3, %8 @s0
output \"y\" %9
";
    for (name, text, bytes) in [
        ("softmax", softmax, 2 * WHOLE),
        ("layer norm", layer_norm, 2 * WHOLE + 2 * ROW),
        ("RMS norm", rms_norm, 2 * WHOLE + ROW),
        ("gated", gated, 2 * WHOLE),
        ("rotary", rotary, 2 * WHOLE + 2 * ROW),
    ] {
        let network = written(text);
        let (kernels, moved) = counts(&network);
        let heroes = heroes(&network).join("\n");
        assert_eq!(kernels, 1, "{name}:\n{heroes}");
        // Constants of one number are read, too.
        assert!((bytes..=bytes + 16).contains(&moved), "{name}: {moved} bytes, expected {bytes}");
    }
}
