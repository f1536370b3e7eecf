//! Networks in another precision: what is rounded and what is not, how far outputs are from those of
//! another runtime in f32, and what plans count.

use partition::unstable::compile::{Compiled, Options, compile};
use partition::unstable::ir::text::parse;
use partition::unstable::ir::{DType, Graph, Op, ParamId, verify};
use partition::unstable::load::Model;
use partition::unstable::pass::{Params, Precision, lower_precision};
use partition::unstable::plan::BufferKind;
use partition::unstable::run::interpret;
use partition::unstable::topology::Topology;
use partition::unstable::units::Bytes;

use crate::cli::{Folder, example};
use crate::networks::Network;
use crate::shared;

fn rounded(half: DType) -> Precision {
    Precision { half, params: Params::Rounded }
}

/// The operations of a graph with the types that they make, leaves left out.
fn listed(text: &str, precision: Precision) -> String {
    let mut graph = parse(text).unwrap_or_else(|error| panic!("{error}"));
    lower_precision(&mut graph, &precision).unwrap();
    verify(&graph).unwrap();
    assert_eq!(parse(&graph.to_string()).unwrap(), graph, "the text form says it all");
    lines(&graph)
}

fn lines(graph: &Graph) -> String {
    let nodes = graph.node_ids().map(|id| graph.node(id)).filter(|node| !matches!(node.op, Op::Input));
    let line = |node: &partition::unstable::ir::Node| {
        let reads: Vec<String> = node.operands.iter().map(ToString::to_string).collect();
        let made = node.first_result;
        let line = format!("{made} {} {} {}", graph.ty(made).dtype, node.op.name(), reads.join(" "));
        line.trim_end().to_owned()
    };
    nodes.map(line).collect::<Vec<_>>().join("\n")
}

const BLOCK: &str = r#"graph "block"

source s0 data "x" "input"
source s1 node "block" "block"

%0: i64[2, 4] = input "ids" @s0
%1: f32[8, 6] = param "table" init=constant(1.0) @s0
%2: f32[6] = param "scale" init=constant(1.0) @s0
%3: f32[6, 6] = param "kernel" init=constant(1.0) @s0
%4: f32[6] = param "bias" init=constant(1.0) @s0
%5: f32[2, 4, 6] = gather %1, %0 axis=0 @s1
%6: f32[2, 4, 6] = normalize %5 axes=[2] epsilon=1e-5 @s1
%7: f32[2, 4, 6] = mul %6, %2 @s1
%8: f32[2, 4, 6] = matmul %7, %3 @s1
%9: f32[2, 4, 6] = add %8, %4 @s1
%10: f32[2, 4, 6] = gelu %9 @s1
%11: f32[2, 4, 6] = add %10, %5 @s1
%12: f32[2, 4, 6] = softmax %10 axis=2 @s1

output "y" %11
output "p" %12
"#;

#[test]
fn products_are_of_halves_and_statistics_of_f32() {
    insta::assert_snapshot!(listed(BLOCK, rounded(DType::Bf16)), @r"
    %1 bf16 param
    %2 f32 param
    %3 bf16 param
    %4 bf16 param
    %5 bf16 gather %1 %0
    %6 f32 convert %5
    %7 f32 normalize %6
    %8 f32 mul %7 %2
    %9 bf16 convert %8
    %10 bf16 matmul %9 %3
    %11 bf16 add %10 %4
    %12 bf16 gelu %11
    %13 f32 convert %12
    %14 f32 add %13 %6
    %15 f32 softmax %13
    ");
    insta::assert_snapshot!(listed(BLOCK, Precision { half: DType::F16, params: Params::Kept }), @r"
    %1 f32 param
    %2 f32 param
    %3 f32 param
    %4 f32 param
    %5 f32 gather %1 %0
    %6 f32 normalize %5
    %7 f32 mul %6 %2
    %8 f16 convert %7
    %9 f16 convert %3
    %10 f16 matmul %8 %9
    %11 f16 convert %4
    %12 f16 add %10 %11
    %13 f16 gelu %12
    %14 f32 convert %13
    %15 f32 add %14 %5
    %16 f32 softmax %14
    ");
}

#[test]
fn a_norm_of_halves_is_scaled_in_f32_and_makes_halves() {
    let text = r#"graph "norm"

source s0 data "x" "input"
source s1 node "bn" "bn"

%0: f32[2, 4, 8] = input "x" @s0
%1: f32[8, 8] = param "kernel" init=constant(1.0) @s0
%2: f32[4, 1] = param "gamma" init=constant(1.0) @s0
%3: f32[4, 1] = param "beta" init=constant(1.0) @s0
%4: f32[2, 4, 8] = matmul %0, %1 @s1
%5: f32[2, 4, 8], %6: f32[4], %7: f32[4] = normalize %4 axes=[0, 2] epsilon=0.001 moments @s1
%8: f32[2, 4, 8] = mul %5, %2 @s1
%9: f32[2, 4, 8] = add %8, %3 @s1
%10: f32[2, 4, 8] = relu %9 @s1
%11: f32[2, 4, 8] = add %10, %4 @s1
%12: f32[2, 4, 8] = matmul %11, %1 @s1

output "y" %12
output "mean" %6
"#;
    let kept = Precision { half: DType::Bf16, params: Params::Kept };
    insta::assert_snapshot!(listed(text, kept), @r"
    %1 f32 param
    %2 f32 param
    %3 f32 param
    %4 bf16 convert %0
    %5 bf16 convert %1
    %6 bf16 matmul %4 %5
    %7 f32 convert %6
    %8 f32 normalize %7
    %11 f32 mul %8 %2
    %12 f32 add %11 %3
    %13 bf16 convert %12
    %14 bf16 relu %13
    %15 bf16 add %14 %6
    %16 bf16 matmul %15 %5
    %17 f32 convert %16
    ");
}

#[test]
fn what_follows_from_parameters_alone_claims_nothing() {
    // A batch norm of stored statistics: what scales the halves of a convolution is made in f32.
    let text = r#"graph "norm"

source s0 data "x" "input"
source s1 node "conv" "conv"

%0: f32[1, 3, 5, 5] = input "x" @s0
%1: f32[4, 3, 3, 3] = param "kernel" init=constant(1.0) @s0
%2: f32[4, 1, 1] = param "variance" init=constant(1.0) @s0
%3: f32[4, 1, 1] = sqrt %2 @s1
%4: f32[1, 4, 3, 3] = conv %0, %1 @s1
%5: f32[1, 4, 3, 3] = div %4, %3 @s1
%6: bool[1, 4, 3, 3] = gt %5, %5 @s1
%7: f32[1, 4, 3, 3] = convert %6 to=f32 @s1
%8: f32[1, 4, 3, 3] = mul %5, %7 @s1
%9: f32[1, 4, 3, 3] = matmul %8, %8 @s1

output "y" %9
"#;
    insta::assert_snapshot!(listed(text, rounded(DType::F16)), @r"
    %1 f16 param
    %2 f32 param
    %3 f32 sqrt %2
    %4 f16 conv %0 %1
    %5 f16 convert %3
    %6 f16 div %4 %5
    %7 bool gt %6 %6
    %8 f16 convert %7
    %9 f16 mul %6 %8
    %10 f16 matmul %9 %9
    ");
}

#[test]
fn a_network_without_products_stays_as_it_is() {
    let text = "graph \"g\"\n\nsource s0 data \"x\" \"input\"\n\n%0: f32[2] = input \"x\" @s0\n\
                %1: f32[2] = param \"w\" init=constant(1.0) @s0\n%2: f32[2] = add %0, %1 @s0\n\noutput \"y\" %2\n";
    let before = parse(text).unwrap();
    let mut after = before.clone();
    lower_precision(&mut after, &rounded(DType::Bf16)).unwrap();
    assert_eq!(before, after);
}

#[test]
fn masks_of_the_lowest_number_hide_as_in_f32() {
    let text = r#"graph "masked"

source s0 data "x" "input"

%0: f32[1, 1, 2, 4] = input "q" @s0
%1: f32[1, 1, 2, 2] = input "mask" @s0
%2: f32[1, 1, 2, 4] = attention %0, %0, %0, %1 heads=1 scale=1.0 fill=0.0 @s0

output "y" %2
"#;
    let graph = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let lowest = partition::unstable::ir::Tensor::from_f32(vec![1, 1, 2, 2], &[f32::MIN; 4]).unwrap();
    let q = [1.0, 2.0, -1.0, 0.5, 0.25, 3.0, 1.5, -2.0];
    let q = partition::unstable::ir::Tensor::from_f32(vec![1, 1, 2, 4], &q).unwrap();
    let inputs = [("q".to_owned(), q), ("mask".to_owned(), lowest)];
    let run = |graph: &Graph| {
        let found = interpret(graph, &inputs, &|_| unreachable!("there are no parameters")).unwrap();
        found[0].1.to_f64()
    };
    let full = run(&graph);
    for half in [DType::F16, DType::Bf16] {
        let mut rounded_graph = graph.clone();
        lower_precision(&mut rounded_graph, &rounded(half)).unwrap();
        let found = run(&rounded_graph);
        assert!(full.iter().zip(&found).all(|(full, half)| (full - half).abs() < 0.02), "{full:?} {found:?}");
    }
}

/// How far the outputs of a half may be from those in f32, in units of the largest: some dozens of roundings.
pub(crate) fn within(half: DType) -> f64 {
    if half == DType::F16 { 0.015 } else { 0.1 }
}

fn planned(network: &Network, spec: &str, precision: Option<Precision>) -> Compiled {
    let options = Options { bind: network.dims.clone(), precision, ..Options::default() };
    compile(Model::Graph(network.graph.clone()), &Topology::parse(spec).unwrap(), &options).unwrap()
}

fn held(compiled: &Compiled) -> Bytes {
    compiled.plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Param).map(|one| one.bytes).sum()
}

#[test]
fn small_models_in_halves_are_near_what_is_stored() {
    for name in ["s_bert", "s_gpt2", "s_llama", "s_lstm", "s_mixtral", "s_mobilenet_v2", "s_vit"] {
        let Some(path) = shared::file(&format!("corpus/onnx/{name}.onnx")) else { return };
        let network = Network::open(&path).unwrap();
        let full = planned(&network, "cpu", None);
        for half in [DType::F16, DType::Bf16] {
            let compiled = planned(&network, "cpu", Some(rounded(half)));
            assert_eq!(compiled.plan.options.precision.as_deref(), Some(half.name()));
            let share = held(&compiled).get() as f64 / held(&full).get() as f64;
            assert!((0.5..0.7).contains(&share), "{name}: parameters take {share} of what they took");
            let distance = network.distance(&network.run(&compiled).unwrap(), 0.0).unwrap();
            let error = distance.absolute / distance.largest;
            assert!(error < within(half), "{name} in {half}: {error}");
            // In earnest: not by way of f32.
            assert!(error > 2e-5, "{name} in {half}: {error}");
        }
    }
}

#[test]
fn every_small_model_in_halves_is_near_what_is_stored() {
    for file in crate::gpu::small_models() {
        let Some(path) = shared::file(&format!("corpus/{file}")) else { return };
        let network = Network::open(&path).unwrap();
        for half in [DType::F16, DType::Bf16] {
            let compiled = planned(&network, "cpu", Some(rounded(half)));
            let distance = network.distance(&network.run(&compiled).unwrap(), 0.0).unwrap();
            let error = distance.absolute / distance.largest;
            assert!(error < within(half), "{file} in {half}: {error}");
        }
    }
}

#[test]
fn devices_share_a_network_in_halves() {
    let Some(path) = shared::file("corpus/onnx/s_gpt2.onnx") else { return };
    let network = Network::open(&path).unwrap();
    let alone = planned(&network, "cpu", Some(rounded(DType::Bf16)));
    let cap = alone.plan.devices[0].arena.get() * 3 / 4;
    let both = planned(&network, &format!("cpu[2x{cap}B]"), Some(rounded(DType::Bf16)));
    assert_eq!(crate::networks::used(&both), 2);
    assert_eq!(network.run(&alone).unwrap(), network.run(&both).unwrap(), "the same bits");
}

#[test]
fn parameters_are_rounded_once() {
    let mut graph = parse(BLOCK).unwrap();
    lower_precision(&mut graph, &rounded(DType::Bf16)).unwrap();
    let given = |id: u32| graph.param(ParamId(id)).supplied;
    assert_eq!([0, 1, 2, 3].map(given), [Some(DType::F32), None, Some(DType::F32), Some(DType::F32)]);
}

#[test]
fn the_program_plans_checks_and_runs_in_halves() {
    let folder = Folder::new();
    let (model, plan) = (example("mlp.json"), folder.path("plan.json").display().to_string());
    let summary = folder.ok(&[&model, "-d", "cpu", "--precision", "bf16", "-o", &plan]);
    assert!(summary.contains("precision  bf16"), "{summary}");
    shared::verify_plan(&folder.path("plan.json"));
    folder.ok(&["check", &plan, "--model", &model]);
    assert!(folder.ok(&["explain", &plan]).contains("precision  bf16"));
    let kernels = folder.ok(&[&model, "-d", "h100-80g", "--precision", "f16", "--emit", "kernels"]);
    assert!(kernels.contains("product_"), "{kernels}");
    assert!(kernels.contains("f16"), "{kernels}");
    folder.ok(&["run", &plan, "--init", "seed=1", "--outputs", "half.npz"]);
    folder.ok(&["run", &plan, "--precision", "bf16", "--init", "seed=1"]);
    let full = |rtol: &str| {
        let tolerance = ["--rtol", rtol, "--atol", rtol];
        let args = [&["run", &model, "--init", "seed=1", "--expect", "half.npz"], &tolerance[..]].concat();
        folder.run(&args).code
    };
    assert_eq!((full("0.05"), full("0.000001")), (0, 1));
    let other = folder.run(&["run", &plan, "--precision", "f16", "--init", "seed=1"]);
    assert_eq!(other.code, 2);
    assert!(other.stderr.contains("the plan is of bf16"), "{}", other.stderr);
}
