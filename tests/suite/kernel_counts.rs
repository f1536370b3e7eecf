//! How many kernels the models of the corpus take, and how many bytes those move: counted, listed in a
//! snapshot, and so noticed where either grows. What the main patterns come to is derived by hand.

use std::fmt::Write as _;
use std::path::Path;

use partition::unstable::compile::{Network, Options, prepare};
use partition::unstable::ir::text::parse;
use partition::unstable::ir::{DType, Graph};
use partition::unstable::kernel::GroupId;
use partition::unstable::kernel::program::lower;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::pass::{CONTEXT, Params, Precision, cached};
use partition::unstable::train::{Loss, Recipe, training_step};

use crate::corpus::{REAL, REAL_HALVES, SMALL, SMALL_HALVES};
use crate::kernels::lowered;
use crate::shared;

/// The network of a model of the corpus; none, which is told, where the corpus is absent.
fn network(relative: &str) -> Option<Network> {
    network_with(relative, &Options::default())
}

fn network_with(relative: &str, options: &Options) -> Option<Network> {
    let path = shared::file(relative)?;
    let bytes = std::fs::read(&path).unwrap();
    match load(&bytes, Some(&path), &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => Some(prepare(graph, options).unwrap()),
        Model::CostGraph { .. } => panic!("{relative} is a cost graph"),
    }
}

/// Launches: a group may take several, one after the other.
fn launches(network: &Network) -> usize {
    let programs = lowered(&network.graph, &network.grouping);
    programs.iter().filter(|program| !program.is_empty()).count()
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
    let ops = |nodes: &[partition::unstable::ir::NodeId]| {
        nodes.iter().map(|&node| network.graph.node(node).op.name()).collect::<Vec<_>>().join(" ")
    };
    network.grouping.groups.iter().map(|group| ops(&group.nodes)).collect()
}

fn snapshot(name: &str, models: &[&str], halves: &[(&str, DType)]) {
    let whole = models.iter().map(|model| (*model, None));
    let halves = halves.iter().map(|(model, half)| (*model, Some(*half)));
    let mut text = String::new();
    for (model, half) in whole.chain(halves) {
        let precision = half.map(|half| Precision { half, params: Params::Rounded });
        let options = Options { precision, ..Options::default() };
        let Some(network) = network_with(&format!("corpus/{model}"), &options) else { return };
        let ((groups, bytes), launches) = (counts(&network), launches(&network));
        let half = half.map_or(String::new(), |half| format!(" in {half}"));
        writeln!(text, "{model}{half}: {groups} groups, {launches} launches, {bytes} bytes").unwrap();
    }
    let snapshots = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => snapshots, prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn kernels_and_bytes_of_the_small_models() {
    snapshot("kernel_counts_small", SMALL, SMALL_HALVES);
}

#[test]
fn kernels_and_bytes_of_the_real_models() {
    snapshot("kernel_counts_real", REAL, REAL_HALVES);
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
        // Lookups of words and positions, last norm, head.
        ("corpus/onnx/gpt2.onnx", 12, 4, 4),
        // Words, positions, kinds of sentence, their norm; three for the mask; what the first word is taken for.
        ("corpus/onnx/bert_base.onnx", 12, 6, 8),
        // Queries, keys and values by one product, read where they lie; beside them as in s_vit, but that the
        // class token is there at once and is taken out at the end.
        ("corpus/onnx/vit_b_16.onnx", 12, 4, 6),
        // Seven products and two rotary embeddings; words, last norm, head.
        ("corpus/onnx/llama_small.onnx", 8, 9, 3),
    ] {
        let Some(network) = network(model) else { return };
        let expected = layers * (2 + products + 1) + beside;
        assert_eq!(counts(&network).0, expected, "{model}:\n{}", heroes(&network).join("\n"));
    }
}

/// A step that decodes one token: products normalise the row that they read.
#[test]
fn a_decoding_step_takes_the_kernels_that_it_must() {
    for half in [None, Some(Precision { half: DType::Bf16, params: Params::Rounded })] {
        let options = Options { precision: half, ..Options::default() };
        let Some(network) = network_with("corpus/hf/gpt2.config.json", &options) else { return };
        decodes_by_few_kernels(&network);
    }
}

fn decodes_by_few_kernels(network: &Network) {
    let heroes = heroes(network);
    // The row of the token, that of its position, and the head with the last norm.
    let beside = 3;
    // Queries, keys and values with the norm, the attention, which reads them where they lie, its product with the residual
    // sum, two products with GELU between, the first with the norm, the second with the sum.
    let layer = 1 + 1 + 1 + 2;
    assert_eq!(heroes.len(), beside + 12 * layer, "{}", heroes.join("\n"));
    let joined = |hero: &&String| hero.starts_with("normalize mul add") && hero.contains(" matmul");
    let normalising = heroes.iter().filter(joined).count();
    assert_eq!(normalising, 12 * 2 + 1);
    assert_eq!(heroes.iter().filter(|hero| hero.contains("normalize")).count(), normalising);
}

/// The same with caches of earlier tokens: keys and values are written to them, and read where they are; what they are cut from is
/// not moved.
#[test]
fn a_token_with_caches_takes_the_launches_that_it_must() {
    let Some(path) = shared::file("corpus/hf/gpt2.config.json") else { return };
    let Model::Graph(graph) =
        load(&std::fs::read(&path).unwrap(), Some(&path), &LoadOptions::default()).unwrap()
    else {
        panic!("a network")
    };
    let mut cached = cached(&graph).unwrap();
    let bound = cached.dims().iter().map(|dim| (dim.name.clone(), if dim.name == CONTEXT { 64 } else { 1 }));
    cached.bind(&bound.collect()).unwrap();
    let precision = Some(Precision { half: DType::Bf16, params: Params::Rounded });
    let network = prepare(cached, &Options { precision, ..Options::default() }).unwrap();
    let groups = (0..network.grouping.groups.len() as u32).map(GroupId);
    let run = groups.filter(|&group| network.grouping.slice(group).is_none());
    let programs = run.flat_map(|group| lower(&network.graph, &network.grouping.fused(group)).unwrap());
    let names: Vec<String> =
        programs.filter(|program| !program.is_copy()).map(|program| program.name).collect();
    // Two rows more than above: the position is added to.
    assert_eq!(names.len(), 4 + 12 * (5 + 2), "{}", names.join("\n"));
}

/// Whatever heads share their keys: attention is one kernel of each layer, over whole sequences and token by token, where its
/// scores are those of rows and keys alone.
#[test]
fn attention_of_heads_that_share_keys_is_one_kernel() {
    let families = ["llama", "mistral_window", "qwen2", "llama_scaled"];
    for family in families {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers");
        let path = [format!("{family}.config.json"), format!("{family}/config.json")]
            .iter()
            .map(|name| folder.join(name))
            .find(|path| path.exists())
            .unwrap_or_else(|| panic!("{family}"));
        let Model::Graph(graph) =
            load(&std::fs::read(&path).unwrap(), Some(&path), &LoadOptions::default()).unwrap()
        else {
            panic!("a network")
        };
        for mut graph in [cached(&graph).unwrap(), graph] {
            let size = |name: &str| if name == CONTEXT { 12 } else { 1 };
            let bound = graph.dims().iter().map(|dim| (dim.name.clone(), size(&dim.name)));
            graph.bind(&bound.collect()).unwrap();
            let network = prepare(graph, &Options::default()).unwrap();
            let heroes = heroes(&network);
            let found = heroes.iter().filter(|hero| hero.split(' ').any(|op| op == "attention")).count();
            let left = heroes.iter().filter(|hero| hero.contains("softmax")).count();
            assert_eq!((found, left), (2, 0), "{family}:\n{}", heroes.join("\n"));
        }
    }
}

/// Convolutional networks by hand: a kernel for each convolution with bias, activation and residual sum.
#[test]
fn convolutions_take_along_what_follows_them() {
    for (model, convolutions, beside) in [
        // Pooling, mean, head.
        ("corpus/onnx/resnet50.onnx", 53, 3),
        // Two convolutions in each of eight gates, whose mean and product stand beside them; mean, and two
        // products for the head.
        ("corpus/onnx/mobilenet_v3_large.onnx", 62, 8 * 2 + 3),
    ] {
        let Some(network) = network(model) else { return };
        let heroes = heroes(&network);
        let found = heroes.iter().filter(|hero| hero.split(' ').next() == Some("conv")).count();
        assert_eq!(
            (found, heroes.len()),
            (convolutions, convolutions + beside),
            "{model}:\n{}",
            heroes.join("\n")
        );
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
%4: f32[4, 4] = slice %0 @s0
%5: f32[4, 4] = slice %0 starts=[0, 4] @s0
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

/// A block of a transformer with its head, of `batch` sequences of 4 rows of 8 elements.
fn block() -> Graph {
    let norm = |x: u32, first: u32, name: &str| {
        let [normal, g, b, scaled, y] = [0, 1, 2, 3, 4].map(|at| first + at);
        format!(
            "%{normal}: f32[2, 4, 8] = normalize %{x} axes=[2] epsilon=0.00001 @s0
%{g}: f32[8] = param \"{name}.g\" init=constant(1.0) @s0
%{b}: f32[8] = param \"{name}.b\" init=constant(0.0) @s0
%{scaled}: f32[2, 4, 8] = mul %{normal}, %{g} @s0
%{y}: f32[2, 4, 8] = add %{scaled}, %{b} @s0
"
        )
    };
    let dense = |x: u32, first: u32, name: &str, [from, to]: [u32; 2]| {
        let [w, b, product, y] = [0, 1, 2, 3].map(|at| first + at);
        format!(
            "%{w}: f32[{from}, {to}] = param \"{name}.w\" init=constant(0.1) @s0
%{b}: f32[{to}] = param \"{name}.b\" init=constant(0.0) @s0
%{product}: f32[2, 4, {to}] = matmul %{x}, %{w} @s0
%{y}: f32[2, 4, {to}] = add %{product}, %{b} @s0
"
        )
    };
    let text = [
        "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n%0: f32[2, 4, 8] = input \"x\" @s0\n".to_owned(),
        dense(0, 1, "in", [8, 8]),
        norm(4, 5, "first"),
        dense(9, 10, "qkv", [8, 24]),
        "%14: f32[2, 4, 6, 4] = reshape %13 @s0
%15: f32[2, 4, 2, 4] = attention %14, %14, %14 heads=2 first=[0, 2, 4] orders=[rows_first, rows_first, rows_first, rows_first] scale=0.5 causal=0 @s0
%16: f32[2, 4, 8] = reshape %15 @s0
"
        .to_owned(),
        dense(16, 17, "out", [8, 8]),
        "%21: f32[2, 4, 8] = add %20, %4 @s0\n".to_owned(),
        norm(21, 22, "second"),
        dense(26, 27, "up", [8, 32]),
        "%31: f32[2, 4, 32] = gelu %30 @s0\n".to_owned(),
        dense(31, 32, "down", [32, 8]),
        "%36: f32[2, 4, 8] = add %35, %21 @s0\n".to_owned(),
        dense(36, 37, "head", [8, 12]),
        "output \"y\" %40\n".to_owned(),
    ]
    .concat();
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The training step of the block.
pub(crate) fn block_step() -> Network {
    let loss = Loss::SparseCrossEntropy { logits: true, ignored: None, axis: -1 };
    let recipe =
        Recipe { loss, updates: "sgd".parse().unwrap(), freeze: vec![], scaling: None, outputs: false };
    let step = training_step(block(), &recipe).unwrap();
    prepare(step.graph, &Options::default()).unwrap()
}

/// The graph of a step as it is grouped.
pub(crate) fn prepare_step(graph: Graph) -> Graph {
    prepare(graph, &Options::default()).unwrap().graph
}

#[test]
fn a_training_step_of_a_transformer_block_takes_the_kernels_that_it_must() {
    let network = block_step();
    let heroes = heroes(&network);
    // Six products with what follows, two norms, the attention, GELU; cross-entropy and two means.
    let forward = 6 + 2 + 1 + 1 + 3;
    // For each product the gradients of weights (with their update) and bias, and, but for the first, of input.
    let products = 6 * 2 - 1;
    // The attention's with its parts put together, each norm's with the residual sum, the loss's. GELU's
    // stands behind the product that makes what it reads.
    let others = 2 + 2 + 1;
    // Biases, and the norms' factors and summands.
    let updates = 6 + 2 * 2;
    let expected = forward + products + others + updates;
    assert_eq!(heroes.len(), expected, "{}", heroes.join("\n"));
    // Bytes of activations of `d` elements for each of 8 rows, and of vectors.
    let (whole, vector) = (|d: u64| 8 * d * 4, |d: u64| d * 4);
    for (hero, bytes) in [
        // x, the gradient, that of the residual and the factor; three gradients.
        ("normalize_gradient add", 4 * whole(8) + 3 * vector(8)),
        // Queries, keys and values in one tensor, result, its gradient; three gradients.
        ("attention_gradient", 2 * whole(24) + 2 * whole(8)),
        // Logits, classes, the gradient of each row's loss; that of the logits.
        ("cross_entropy_gradient", 2 * whole(12) + 8 * 8 + vector(8)),
        // Logits, classes; each row's loss.
        ("cross_entropy", whole(12) + 8 * 8 + vector(8)),
        // The gradient behind the product, its weights, x; the gradient of x, and some constants.
        ("matmul mul erf", whole(8) + 8 * vector(32) + 2 * whole(32) + 5 * 4),
    ] {
        let mut found = 0;
        for (group, ops) in network.grouping.groups.iter().zip(&heroes) {
            if ops == hero || ops.starts_with(&format!("{hero} ")) {
                let values = group.reads.iter().chain(&group.writes);
                let moved: u64 = values.map(|&value| network.graph.ty(value).bytes().unwrap().get()).sum();
                assert_eq!(moved, bytes, "{ops}");
                found += 1;
            }
        }
        assert_eq!(found, if hero == "normalize_gradient add" { 2 } else { 1 }, "{hero}");
    }
}
