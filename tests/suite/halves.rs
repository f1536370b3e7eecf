//! Networks in halves take little more than half of the memory, on every kind of device; and operations on halves that
//! are computed block by block, or piece by piece, are right where blocks and pieces meet.

use std::path::Path;

use partition::unstable::compile::{Compiled, Options, compile, largest_batch};
use partition::unstable::control::Control;
use partition::unstable::error::Result;
use partition::unstable::ir::text::parse;
use partition::unstable::ir::{
    Binary, Cell, Conv, ConvTranspose, DType, Direction, Graph, Init, Layout, NodeId, Op, ParamId, Pool,
    PoolKind, Real, Recurrent, ReduceKind, Shape, Source, SourceRole, Tensor, TopK, Type, Unary, ValueId,
    Window,
};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::pass::{Params, Precision};
use partition::unstable::place::Effort;
use partition::unstable::run::{Gpus, GroupedGraph, Runner, interpret};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Loss, dry_run};

use crate::cli::Folder;
use crate::run_ops::{Random, array, check, representable};
use crate::shared;

/// A plan in halves has at most so much of the peak in f32.
const LIMIT: f64 = 0.6;

/// Networks that are planned within a second or two in the profile of tests, of each kind one.
const FAST: [&str; 10] = [
    "keras/mlp_small.k3.json",
    "keras/cnn_small.k3.json",
    "keras/gru_conv1d_small.k3.json",
    "keras/lstm_text.k3.json",
    "onnx/s_bert.onnx",
    "onnx/s_gpt2.onnx",
    "onnx/s_vit.onnx",
    "onnx/s_sd_unet.onnx",
    "onnx/s_autoencoder_convt.onnx",
    "hf/gpt2.config.json",
];

/// Networks that are above the limit: so much of their peak in f32 at most, and why.
const ABOVE: [(&str, f64, &str); 4] = [
    ("tract_lgbm_classifier_tensor.onnx", 0.9, "trees, whose thresholds stay f32"),
    ("tract_linear_classifier.onnx", 0.76, "labels of 64 bits, and a norm that stays f32"),
    ("skl_logreg.onnx", 0.83, "labels of 64 bits, and an input that is scaled in f32"),
    ("q_whisper_nbits.onnx", 0.79, "weights of 4 bits, which are what they were"),
];

pub(crate) fn graph(path: &Path) -> Option<Graph> {
    let bytes = std::fs::read(path).unwrap();
    match load(&bytes, Some(path), &LoadOptions::default()) {
        Ok(Model::Graph(graph)) => Some(graph),
        _ => None,
    }
}

fn planned(graph: &Graph, devices: &str, half: Option<DType>) -> Result<Compiled> {
    let mut options = Options::default();
    options.place.effort = Effort::Fast;
    options.batch = Some(8);
    options.precision = half.map(|half| Precision { half, params: Params::Rounded });
    let topology = Topology::parse(devices).unwrap();
    compile(Model::Graph(graph.clone()), &topology, &options).or_else(|_| {
        // A network of one batch.
        options.batch = None;
        compile(Model::Graph(graph.clone()), &topology, &options)
    })
}

pub(crate) fn peak(compiled: &Compiled) -> u64 {
    compiled.plan.devices.iter().map(|device| device.peak.get()).max().unwrap_or(0)
}

/// Whether a network has anything that is computed in halves.
fn is_lowered(compiled: &Compiled) -> bool {
    let graph = &compiled.network.as_ref().unwrap().graph;
    graph.node_ids().any(|id| graph.ty(graph.node(id).first_result).dtype == DType::Bf16)
}

/// The share of its peak in f32 that a network has in halves; none where it cannot be planned or has none.
fn share(graph: &Graph, devices: &str) -> Option<f64> {
    let full = planned(graph, devices, None).ok()?;
    let half = planned(graph, devices, Some(DType::Bf16)).unwrap();
    is_lowered(&half).then(|| peak(&half) as f64 / peak(&full) as f64)
}

fn within_its_limit(file: &str) {
    let Some(path) = shared::file(&format!("corpus/{file}")) else { return };
    let Some(graph) = graph(&path) else { return };
    let name = file.rsplit('/').next().unwrap();
    let limit = ABOVE.iter().find(|(other, ..)| *other == name).map_or(LIMIT, |(_, limit, _)| *limit);
    for devices in ["cpu", "a100-80g"] {
        if let Some(share) = share(&graph, devices) {
            assert!(share <= limit, "{file} on {devices}: {share:.3} of its peak in f32, {limit} allowed");
        }
    }
}

#[test]
fn halves_take_little_more_than_half() {
    FAST.iter().for_each(|file| within_its_limit(file));
}

/// A language model of 50,257 words as its configuration has it, at eight sequences of 512: the logits are most of it.
#[test]
fn logits_of_a_language_model_lie_in_halves() {
    let Some(path) = shared::file("corpus/hf/gpt2.config.json") else { return };
    let graph = graph(&path).unwrap();
    let options = |half: Option<DType>| {
        let mut options = Options::default();
        options.place.effort = Effort::Fast;
        options.dims.insert("sequence".to_owned(), 512);
        options.precision = half.map(|half| Precision { half, params: Params::Rounded });
        options
    };
    for devices in ["a100-80g", "cpu:memory=80GB"] {
        let topology = Topology::parse(devices).unwrap();
        let peak_of = |half| {
            let options = Options { batch: Some(8), ..options(half) };
            peak(&compile(Model::Graph(graph.clone()), &topology, &options).unwrap())
        };
        let (full, half) = (peak_of(None), peak_of(Some(DType::Bf16)));
        assert!((half as f64) < LIMIT * full as f64, "{devices}: {half} of {full} bytes");
    }
    let topology = Topology::parse("a100-80g:memory=4GB").unwrap();
    let largest = |half| {
        let model = Model::Graph(graph.clone());
        largest_batch(&model, &topology, &options(half), &Control::default()).unwrap().batch
    };
    let (full, half) = (largest(None), largest(Some(DType::Bf16)));
    assert!(half as f64 >= 1.6 * full as f64, "{half} samples in halves, {full} in f32");
}

/// What callers hand over and take stays of f32, whatever it lies in: with what a network that rounds it itself makes.
#[test]
fn inputs_and_outputs_in_halves_are_of_f32_to_callers() {
    let whole = parse(DENSE).unwrap();
    let values: Vec<f32> = (0..8 * 1024).map(|at| (at % 97) as f32 / 31.0 - 1.5).collect();
    let x = Tensor::from_f32(vec![8, 1024], &values).unwrap();
    for half in HALVES {
        let compiled = planned(&whole, "cpu", Some(half)).unwrap();
        let network = compiled.network.unwrap();
        let held = |value: ValueId| network.graph.ty(value).dtype;
        assert_eq!((held(network.graph.inputs()[0].1), held(network.graph.outputs()[0].1)), (half, half));
        let text = network.graph.to_string();
        assert!(text.contains("input \"x\" supplied=f32") && text.ends_with("supplied=f32\n"), "{text}");
        assert_eq!(parse(&text).unwrap().to_string(), text);
        let weight =
            |_: ParamId| Ok(Tensor::from_f32(vec![1024, 1024], &vec![1.0 / 512.0; 1 << 20]).unwrap());
        let grouped = GroupedGraph { graph: &network.graph, grouping: &network.grouping };
        let mut program = Runner::new(grouped, &compiled.plan, &weight, None, &Gpus::default()).unwrap();
        let inputs = [("x".to_owned(), x.clone())];
        program.feed(&inputs).unwrap();
        program.step().unwrap();
        let outputs = program.outputs().unwrap();
        assert_eq!((outputs[0].1.dtype(), outputs[0].1.dims()), (DType::F32, &[8, 1024][..]));
        // Means of each row, doubled by each of three layers.
        for (row, found) in values.chunks(1024).zip(outputs[0].1.to_f32().unwrap().chunks(1024)) {
            let exact = row.iter().map(|&x| f64::from(x)).sum::<f64>() / 512.0 * 4.0;
            let close = |&found: &f32| (f64::from(found) - exact).abs() <= 0.02 * exact.abs().max(0.1);
            assert!(found.iter().all(close), "{half}: {} for {exact}", found[0]);
        }
        let interpreted = interpret(&network.graph, &inputs, &weight).unwrap();
        assert_eq!(interpreted[0].1.dtype(), DType::F32);
        let wrong = Tensor::new(half, vec![8, 1024], vec![0; 8 * 1024 * 2]).unwrap();
        let refused = program.feed(&[("x".to_owned(), wrong)]).unwrap_err().to_string();
        assert!(refused.contains("expected f32"), "{refused}");
    }
}

/// The loss of the last of so many steps of a small Llama.
fn loss(precision: &str) -> f64 {
    let folder = Folder::new();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/llama.config.json");
    let (config, history) = (config.display().to_string(), folder.path("h.csv").display().to_string());
    let sizes =
        ["--loss", "mse", "--dim", "sequence=16", "--batch", "8", "--data", "random:records=64,seed=3"];
    let how =
        ["--optimizer", "adam", "--lr", "0.003", "--epochs", "4", "--init", "seed=1", "--effort", "fast"];
    let rest = ["-d", "cpu", "--precision", precision, "--history", &history];
    folder.ok(&[&["train", &config][..], &sizes, &how, &rest].concat());
    let lines = std::fs::read_to_string(&history).unwrap();
    lines.lines().last().unwrap().split(',').nth(2).unwrap().parse().unwrap()
}

#[test]
fn a_residual_stream_in_bf16_trains_as_in_f32() {
    let full = loss("f32");
    for half in ["bf16", "f16"] {
        let found = loss(half);
        assert!((found - full).abs() <= 0.005 * full, "{half}: {found} and {full} in f32");
    }
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/llama.config.json");
    for (half, stream) in [(DType::Bf16, DType::Bf16), (DType::F16, DType::F32)] {
        let mut options = partition::unstable::train::Options::new(Loss::MeanSquared);
        options.compile.batch = Some(8);
        options.compile.dims.insert("sequence".to_owned(), 16);
        options.compile.precision = Some(Precision { half, params: Params::Kept });
        let topology = Topology::parse("cpu").unwrap();
        let made = dry_run(graph(&config).unwrap(), &topology, &options, &Control::default()).unwrap();
        let network = made.compiled.network.unwrap().graph;
        let attended = |id: &NodeId| {
            let name = &network.source(network.node(*id).source).name;
            name == "model.layers.0.attended" && matches!(network.node(*id).op, Op::Binary(Binary::Add))
        };
        let sums: Vec<NodeId> = network.node_ids().filter(attended).collect();
        assert!(!sums.is_empty());
        for id in sums {
            assert_eq!(network.ty(network.node(id).first_result).dtype, stream, "{half}");
        }
    }
}

/// So many dense layers one behind the other, of 256 by 256 and 4 samples.
fn stack(layers: usize) -> Graph {
    let mut graph = Graph::new("stack");
    let data = graph.add_source(Source::new("x", "Input", SourceRole::Data));
    let ty = |dims: &[i64]| Type::new(DType::F32, Shape::known(dims));
    let mut h = graph.add_input("x", ty(&[4, 256]), data);
    for number in 0..layers {
        let layer = graph.add_source(Source::new(format!("d{number}"), "Dense", SourceRole::Node));
        let kernel = ty(&[256, 256]);
        let kernel =
            graph.add_param(format!("d{number}/kernel"), kernel, Init::glorot_uniform(), None, layer);
        let product =
            Op::MatMul { transpose_left: false, transpose_right: false, wide: false, rounds: false };
        h = graph.apply(product, &[h, kernel], layer).unwrap();
        h = graph.apply(Op::Unary(Unary::Tanh), &[h], layer).unwrap();
    }
    graph.add_output("y", h);
    graph.record_consumers();
    graph
}

#[test]
fn a_gradient_lives_until_its_update_and_a_rounded_weight_until_its_product() {
    let layer = 256 * 256 * 4;
    for half in [None, Some(DType::Bf16)] {
        // Weights and their momenta stay; beside them what two layers have, and activations, whatever the layers' number.
        let mut options = partition::unstable::train::Options::new(Loss::MeanSquared);
        options.recipe.updates = "sgd:momentum=0.9".parse().unwrap();
        options.compile.precision = half.map(|half| Precision { half, params: Params::Kept });
        let topology = Topology::parse("cpu").unwrap();
        for layers in [4, 16] {
            let made = dry_run(stack(layers), &topology, &options, &Control::default()).unwrap();
            let beside = peak(&made.compiled) - 2 * layers as u64 * layer;
            assert!(
                beside < 2 * layer + layer / 2,
                "{layers} layers in {half:?}: {beside} bytes beside weights"
            );
        }
    }
}

#[test]
#[ignore = "minutes: cargo test --release --test suite every_network_of_the_corpus_in_halves -- --ignored"]
fn every_network_of_the_corpus_in_halves() {
    let Some(corpus) = shared::file("corpus") else { return };
    for folder in ["keras", "onnx", "hf", "exports"] {
        let mut files: Vec<_> =
            std::fs::read_dir(corpus.join(folder)).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        for file in files {
            let name = file.file_name().unwrap().to_str().unwrap();
            if name.ends_with(".onnx") || name.ends_with(".json") && !name.ends_with(".params.json") {
                within_its_limit(&format!("{folder}/{name}"));
            }
        }
    }
}

/// Three dense layers of 1024 by 1024: 12.6 MB of parameters in f32, half of it in halves.
const DENSE: &str = r#"graph "dense"

source s0 node "a" "dense"

%0: f32[8, 1024] = input "x" @s0
%1: f32[1024, 1024] = param "k1" init=constant(1.0) @s0
%2: f32[1024, 1024] = param "k2" init=constant(1.0) @s0
%3: f32[1024, 1024] = param "k3" init=constant(1.0) @s0
%4: f32[8, 1024] = matmul %0, %1 @s0
%5: f32[8, 1024] = matmul %4, %2 @s0
%6: f32[8, 1024] = matmul %5, %3 @s0

output "y" %6
"#;

#[test]
fn what_halves_need_is_what_they_are_refused_for() {
    let graph = parse(DENSE).unwrap();
    let parameters = 3 * 1024 * 1024 * 4;
    for kind in ["cpu", "a100-80g"] {
        let half = peak(&planned(&graph, kind, Some(DType::Bf16)).unwrap());
        let full = peak(&planned(&graph, kind, None).unwrap());
        assert!(half < parameters * 6 / 10 && full >= parameters, "{kind}: {half} of {full} bytes");
        let between = format!("{kind}:memory={}B", half.midpoint(full));
        planned(&graph, &between, Some(DType::Bf16)).unwrap_or_else(|error| panic!("{between}: {error}"));
        // In f32 the parameters alone are more than there is.
        let refused = planned(&graph, &between, None).unwrap_err().to_string();
        assert!(refused.contains("no plan exists") && half.midpoint(full) < parameters, "{refused}");
        // What halves themselves need is refused as well, and no sooner.
        planned(&graph, &format!("{kind}:memory={}B", parameters / 2 - 1), Some(DType::Bf16)).unwrap_err();
    }
}

const HALVES: [DType; 2] = [DType::Bf16, DType::F16];

long! {
    products_of_several_blocks;
    products_round_an_operand_of_f32_as_a_conversion_does;
    operations_of_several_pieces;
}

fn products_of_several_blocks() {
    let mut random = Random::new(71);
    for dtype in HALVES {
        for [m, n, k] in [[3, 70, 1100], [130, 4, 1030], [16, 9, 2100]] {
            for (left, right) in [(false, false), (true, true), (false, true)] {
                // One of the two may be of f32. Programs are evaluated without rounding, so it has numbers of halves here.
                for [one, other] in [[dtype, dtype], [DType::F32, dtype], [dtype, DType::F32]] {
                    let x = array(&mut random, one, &if left { [k, m] } else { [m, k] });
                    let y = array(&mut random, other, &if right { [n, k] } else { [k, n] });
                    // Sums of a thousand terms stay within what tolerances are for.
                    let scale = |mut all: crate::reference::Array| {
                        all.data.iter_mut().for_each(|x| *x /= 32.0);
                        all
                    };
                    let (operands, rounds) =
                        ([x, y].map(|all| representable(dtype, scale(all))), one != other);
                    for wide in [false, true] {
                        let op = Op::MatMul { transpose_left: left, transpose_right: right, wide, rounds };
                        check(&op, &operands);
                    }
                }
            }
        }
    }
}

/// A weight of f32 is rounded on the way to the bit as before it.
fn products_round_an_operand_of_f32_as_a_conversion_does() {
    for (half, [m, n, k]) in
        [(DType::Bf16, [8, 200, 300]), (DType::F16, [140, 70, 1100]), (DType::Bf16, [3, 5, 7])]
    {
        for (transposed, weight_first) in [(false, false), (true, false), (false, true)] {
            let step = |before: bool| {
                let mut graph = Graph::new("product");
                let source = graph.add_source(Source::new("product", "Node", SourceRole::Node));
                let mut input = |name: &str, dims: [i64; 2]| {
                    graph.add_input(name, Type::new(DType::F32, Shape::known(&dims)), source)
                };
                let x = input("x", if weight_first { [k, n] } else { [m, k] });
                let w = input(
                    "w",
                    if weight_first {
                        [m, k]
                    } else if transposed {
                        [n, k]
                    } else {
                        [k, n]
                    },
                );
                let to_half = Op::Convert { to: half };
                let x = graph.apply(to_half.clone(), &[x], source).unwrap();
                let w = if before { graph.apply(to_half, &[w], source).unwrap() } else { w };
                let operands = if weight_first { [w, x] } else { [x, w] };
                let product = Op::MatMul {
                    transpose_left: false,
                    transpose_right: transposed,
                    wide: true,
                    rounds: !before,
                };
                let y = graph.apply(product, &operands, source).unwrap();
                graph.add_output("y", y);
                graph.record_consumers();
                graph
            };
            let tensor = |rows: i64, columns: i64, seed: i64| {
                let number = |i: i64| ((i * 7919 + seed) % 2003) as f32 / 32000.0 - 0.03;
                let numbers: Vec<f32> = (0..rows * columns).map(number).collect();
                Tensor::from_f32(vec![rows as u64, columns as u64], &numbers).unwrap()
            };
            let graph = step(false);
            let inputs: Vec<(String, Tensor)> = graph
                .inputs()
                .iter()
                .map(|(name, value)| {
                    let dims = graph.ty(*value).shape.dims().unwrap();
                    (name.clone(), tensor(dims[0], dims[1], name.len() as i64 + dims[0]))
                })
                .collect();
            let what = format!("{half} {m} {n} {k} {transposed} {weight_first}");
            let expected = interpret(&step(true), &inputs, &|_| unreachable!("no parameters")).unwrap();
            // With room for what a GPU keeps beside; it runs on both.
            let topology = Topology::parse("cuda:memory=1GB").unwrap();
            let compiled = compile(Model::Graph(graph), &topology, &Options::default()).unwrap();
            assert!(crate::updates::ran(&compiled, &inputs, &what) == expected, "{what}: other bits");
        }
    }
}

fn window(stride: i64) -> Window {
    Window {
        strides: vec![stride; 2],
        dilations: vec![1; 2],
        pads_before: vec![1; 2],
        pads_after: vec![1; 2],
    }
}

#[test]
fn convolutions_of_several_blocks() {
    let mut random = Random::new(72);
    for dtype in HALVES {
        for (layout, groups, stride) in [
            (Layout::ChannelsFirst, 1, 1),
            (Layout::ChannelsFirst, 6, 2),
            (Layout::ChannelsLast, 1, 2),
            (Layout::ChannelsLast, 6, 1),
        ] {
            let (inputs, outputs, side) = (6usize, 12usize, 24usize);
            let own = inputs / groups;
            let (x, weights) = match layout {
                Layout::ChannelsFirst => ([2, inputs, side, side], [outputs, own, 3, 3]),
                Layout::ChannelsLast => ([2, side, side, inputs], [3, 3, own, outputs]),
            };
            let op = Conv { layout, window: window(stride), groups: groups as i64 };
            let operands = [&x[..], &weights[..], &[outputs]].map(|dims| array(&mut random, dtype, dims));
            check(&Op::Conv(Box::new(op)), &operands);
        }
    }
}

#[test]
fn transposed_convolutions_of_several_planes() {
    let mut random = Random::new(73);
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        // 64 x 64 results: 32 channels at a time.
        let (inputs, outputs, side) = (3usize, 34usize, 32usize);
        let (x, weights) = match layout {
            Layout::ChannelsFirst => ([1, inputs, side, side], [inputs, outputs, 2, 2]),
            Layout::ChannelsLast => ([1, side, side, inputs], [2, 2, outputs, inputs]),
        };
        let window = Window { pads_before: vec![0; 2], pads_after: vec![0; 2], ..window(2) };
        let op = ConvTranspose { layout, window, output_padding: vec![0; 2], groups: 1 };
        let operands = [&x[..], &weights[..], &[outputs]].map(|dims| array(&mut random, DType::Bf16, dims));
        check(&Op::ConvTranspose(Box::new(op)), &operands);
    }
}

/// Operands of several hundred kilobytes, which are computed in several pieces.
fn operations_of_several_pieces() {
    let mut random = Random::new(74);
    for (number, dtype) in HALVES.into_iter().enumerate() {
        let x = array(&mut random, dtype, &[70, 33, 30]);
        for axis in [0, 1 + number as u32] {
            check(&Op::Softmax { axis, log: axis == 1 }, std::slice::from_ref(&x));
            check(&Op::CumSum { axis, exclusive: true, reverse: false }, std::slice::from_ref(&x));
            let (kind, axes, keep) = (ReduceKind::Max, vec![axis], number == 0);
            check(&Op::Reduce { kind, axes, keep }, std::slice::from_ref(&x));
            let normalize =
                Op::Normalize { axes: vec![axis], epsilon: Real(1e-3), center: true, moments: true };
            check(&normalize, std::slice::from_ref(&x));
            check(&Op::TopK(TopK { axis, k: 2, largest: true }), std::slice::from_ref(&x));
        }
        check(
            &Op::Reduce { kind: ReduceKind::Mean, axes: vec![0, 1, 2], keep: false },
            std::slice::from_ref(&x),
        );
        for axes in [vec![0, 1, 2], vec![1]] {
            let op = Op::Reduce { kind: ReduceKind::SumSquares, axes, keep: false };
            check(&op, std::slice::from_ref(&x));
        }
        let image = array(&mut random, dtype, &[3, 7, 50, 50]);
        for kind in [PoolKind::Max, PoolKind::Average] {
            let (layout, extra_after) = (Layout::ChannelsFirst, vec![0; 2]);
            let pool = Pool { kind, layout, kernel: vec![3; 2], window: window(2), extra_after };
            check(&Op::Pool(Box::new(pool)), std::slice::from_ref(&image));
        }
    }
}

/// More steps than their gates are made of at once.
#[test]
fn recurrent_layers_of_several_runs_of_steps() {
    let mut random = Random::new(75);
    let (time, batch, features, hidden) = (30, 16, 3, 80);
    for (cell, gates) in [(Cell::Lstm, 4), (Cell::GruResetAfter, 3)] {
        let mut operands: Vec<_> = [
            vec![time, batch, features],
            vec![2, gates * hidden, features],
            vec![2, gates * hidden, hidden],
            vec![2, 2 * gates * hidden],
            vec![2, batch, hidden],
        ]
        .iter()
        .map(|dims| array(&mut random, DType::F16, dims))
        .collect();
        // Weights as a trained layer has them: errors of states do not grow from step to step.
        operands[2].data.iter_mut().for_each(|x| *x /= 40.0);
        if cell == Cell::Lstm {
            operands.push(array(&mut random, DType::F16, &[2, batch, hidden]));
        }
        let direction = Direction::Bidirectional;
        check(&Op::Recurrent(Box::new(Recurrent { cell, direction, hidden: hidden as i64 })), &operands);
    }
}
