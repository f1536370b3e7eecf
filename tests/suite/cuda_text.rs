//! The generated part of kernels as text: how those that are written by hand are called, and launched.

use partition::unstable::compile::{Options, prepare};
use partition::unstable::emit;
use partition::unstable::ir::text::parse;
use partition::unstable::ir::{
    Cell, Conv, DType, Direction, Graph, HeadOrder, Layout, Op, Recurrent, ScatterKind, Window,
};
use partition::unstable::kernel::program::Program;
use partition::unstable::pass::{GroupOptions, group};
use partition::unstable::train::{Loss, Recipe, training_step};

use crate::cuda_forms::{attention, product, sized};
use crate::kernels::{Case, cases, lowered};
use crate::run_ops::GENERATORS;

const F32: DType = DType::F32;
const BF16: DType = DType::Bf16;

fn snapshot(name: &str, programs: &[Program]) {
    let printed = programs.iter().map(|program| {
        let kernel = emit::kernel(program).unwrap().unwrap();
        format!("{program}\n{:?}\n{}\n", kernel.launch, kernel.text)
    });
    let printed: String = printed.collect();
    let snapshots = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => snapshots, prepend_module_to_snapshot => false, omit_expression => true}, {
        insta::assert_snapshot!(format!("kernel_{name}"), printed);
    });
}

fn programs(graph: &Graph) -> Vec<Program> {
    lowered(graph, &group(graph, &GroupOptions::default()))
}

fn case(name: &str, cases: &[Case]) {
    let all: Vec<Program> = cases.iter().flat_map(|case| programs(&case.graph())).collect();
    snapshot(name, &all);
}

/// Whatever a kernel does comes behind that line, so that it may be begun early.
#[test]
fn every_kernel_first_follows_the_one_before() {
    let cases = GENERATORS.iter().flat_map(|&generator| cases(generator)).step_by(3);
    let mut count = 0;
    for program in cases.flat_map(|case| programs(&case.graph())) {
        let Some(kernel) = emit::kernel(&program).unwrap() else { continue };
        let entry = kernel.text.split("__global__").nth(1).unwrap();
        let first = entry.split(" {\n").nth(1).unwrap().lines().next().unwrap();
        assert_eq!(first, "  follow_the_kernel_before();", "{}", kernel.text);
        count += 1;
    }
    assert!(count > 200, "{count}");
}

#[test]
fn attention_takes_a_warp_a_row_or_tiles() {
    let op = Op::Attention(Box::new(attention((2, 1), Some(0), HeadOrder::HeadsFirst)));
    let sized = |dtype: DType, rows: usize| {
        let (q, k): (&[usize], &[usize]) = (&[1, 2, rows, 16], &[1, 1, rows, 16]);
        sized(op.clone(), &[(dtype, q), (dtype, k), (dtype, k)])
    };
    case("attention", &[sized(F32, 5), sized(BF16, 40)]);
}

#[test]
fn gradients_of_attention_go_by_rows_and_by_keys() {
    let op = Op::AttentionGradient(Box::new(attention((2, 1), Some(0), HeadOrder::HeadsFirst)));
    let sized = |dtype: DType, rows: usize| {
        let (q, k): (&[usize], &[usize]) = (&[1, 2, rows, 16], &[1, 1, rows, 16]);
        sized(op.clone(), &[(dtype, q), (dtype, k), (dtype, k), (dtype, q), (dtype, q)])
    };
    case("attention_gradient", &[sized(F32, 5), sized(BF16, 40)]);
}

#[test]
fn a_convolution_is_a_product_that_unfolds_its_operand() {
    let window = Window {
        strides: vec![2, 2],
        dilations: vec![1, 1],
        pads_before: vec![1, 1],
        pads_after: vec![1, 1],
    };
    let conv = |layout| Op::Conv(Box::new(Conv { layout, window: window.clone(), groups: 1 }));
    case(
        "convolution",
        &[
            sized(conv(Layout::ChannelsFirst), &[(F32, &[2, 4, 9, 9]), (F32, &[8, 4, 3, 3])]),
            sized(conv(Layout::ChannelsLast), &[(BF16, &[2, 9, 9, 8]), (BF16, &[3, 3, 8, 16])]),
        ],
    );
}

/// The second convolution of two has a gradient of its input, both have one of their weights.
#[test]
fn gradients_of_a_convolution_are_products_too() {
    let conv = "strides=[2, 2] dilations=[1, 1] pads_before=[1, 1] pads_after=[1, 1] groups=1";
    let text = format!(
        "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n%0: f32[2, 4, 9, 9] = input \"x\" @s0
%1: f32[8, 4, 3, 3] = param \"v\" init=constant(0.1) @s0
%2: f32[2, 8, 5, 5] = conv %0, %1 {conv} @s0
%3: f32[6, 8, 3, 3] = param \"w\" init=constant(0.1) @s0
%4: f32[2, 6, 3, 3] = conv %2, %3 {conv} @s0
output \"y\" %4
"
    );
    let graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let loss = Loss::MeanSquared;
    let recipe =
        Recipe { loss, updates: "sgd".parse().unwrap(), freeze: vec![], scaling: None, outputs: false };
    let step = training_step(graph, &recipe).unwrap();
    let network = prepare(step.graph, &Options::default()).unwrap();
    let mut programs = lowered(&network.graph, &network.grouping);
    programs.retain(|program| program.hero() == "product");
    snapshot("convolution_gradient", &programs);
}

#[test]
fn rows_of_a_table_are_read_and_updated() {
    case("gather", &[sized(Op::Gather { axis: 0 }, &[(BF16, &[50, 16]), (DType::I64, &[3, 4])])]);
    let add = Op::ScatterNd { kind: ScatterKind::Add };
    case("scatter", &[sized(add, &[(F32, &[50, 16]), (DType::I64, &[12, 1]), (F32, &[12, 16])])]);
}

#[test]
fn a_recurrent_layer_takes_a_block_a_sequence() {
    let op = Recurrent { cell: Cell::Lstm, direction: Direction::Bidirectional, hidden: 5 };
    let sizes: [&[usize]; 6] = [&[3, 2, 4], &[2, 20, 4], &[2, 20, 5], &[2, 40], &[2, 2, 5], &[2, 2, 5]];
    case("recurrent", &[sized(Op::Recurrent(Box::new(op)), &sizes.map(|size| (F32, size)))]);
}

#[test]
fn products_of_halves_run_on_tensor_cores() {
    case("product_halves", &[sized(product(false, true), &[(BF16, &[40, 32]), (BF16, &[24, 32])])]);
}

#[test]
fn products_of_few_rows_read_along_what_lies_together() {
    case(
        "product_skinny",
        &[
            sized(product(false, true), &[(F32, &[3, 64]), (F32, &[40, 64])]),
            sized(product(false, false), &[(F32, &[3, 64]), (F32, &[64, 40])]),
        ],
    );
}
