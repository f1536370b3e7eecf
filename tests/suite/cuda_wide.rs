//! Kernels of more than 2^31 elements: their indices have 64 bits, and NVRTC compiles them.

use std::collections::BTreeMap;

use partition::unstable::emit::{self, Kernel};
use partition::unstable::ir::{
    Conv, DType, Graph, HeadOrder, Layout, Op, ReduceKind, ScatterKind, Shape, Source, SourceRole, Type,
    Unary, Window,
};
use partition::unstable::pass::{GroupOptions, group};

use crate::cuda_forms::{attention, product};
use crate::kernels::lowered;
use crate::nvrtc::compile_for;
use crate::sweep::Share;

const F32: DType = DType::F32;
const BF16: DType = DType::Bf16;

/// The kernels of an operation on operands of these types and sizes.
fn kernels(op: Op, operands: &[(DType, &[i64])]) -> Vec<Kernel> {
    let mut graph = Graph::new("wide");
    let source = graph.add_source(Source::new("wide".to_owned(), op.name(), SourceRole::Node));
    let operands: Vec<_> = operands
        .iter()
        .enumerate()
        .map(|(at, (dtype, dims))| {
            graph.add_input(format!("x{at}"), Type::new(*dtype, Shape::known(dims)), source)
        })
        .collect();
    let node = graph.push(op, &operands, source).unwrap();
    for (at, value) in graph.results(node).collect::<Vec<_>>().into_iter().enumerate() {
        graph.add_output(format!("y{at}"), value);
    }
    let programs = lowered(&graph, &group(&graph, &GroupOptions::default()));
    programs.iter().filter_map(|program| emit::kernel(program).unwrap()).collect()
}

/// Every hero but recurrent layers, whose hand-written part alone makes indices, of 64 bits.
fn wide() -> Vec<(&'static str, Vec<Kernel>)> {
    let window = Window {
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_before: vec![1, 1],
        pads_after: vec![1, 1],
    };
    let conv = Conv { layout: Layout::ChannelsFirst, window, groups: 1 };
    let sum = Op::Reduce { kind: ReduceKind::Sum, axes: vec![0], keep: false };
    let attend = attention((2, 2), Some(0), HeadOrder::HeadsFirst);
    let heads: &[i64] = &[64, 2, 300_000, 64];
    let square: &[i64] = &[50_000, 50_000];
    let attended = |dtype| kernels(Op::Attention(Box::new(attend.clone())), &[(dtype, heads); 3]);
    let gradient = |dtype| kernels(Op::AttentionGradient(Box::new(attend.clone())), &[(dtype, heads); 5]);
    vec![
        ("map", kernels(Op::Unary(Unary::Neg), &[(F32, square)])),
        ("row", kernels(Op::Softmax { axis: 1, log: false }, &[(F32, square)])),
        ("column", kernels(sum, &[(F32, square)])),
        ("transpose", kernels(Op::Transpose { perm: vec![1, 0] }, &[(F32, square)])),
        ("lines", kernels(Op::CumSum { axis: 1, exclusive: false, reverse: false }, &[(F32, square)])),
        ("product", kernels(product(false, false), &[(F32, &[50_000, 9]), (F32, &[9, 50_000])])),
        ("product", kernels(product(false, true), &[(BF16, &[50_000, 16]), (BF16, &[50_000, 16])])),
        ("product", kernels(product(false, true), &[(F32, &[3, 50_000]), (F32, square)])),
        ("product", kernels(product(false, false), &[(F32, &[3, 50_000]), (F32, square)])),
        ("product", kernels(Op::Conv(Box::new(conv)), &[(F32, &[900, 3, 1000, 1000]), (F32, &[8, 3, 3, 3])])),
        ("map", kernels(Op::Gather { axis: 0 }, &[(BF16, square), (DType::I64, &[60_000])])),
        (
            "scatter",
            kernels(
                Op::ScatterNd { kind: ScatterKind::Add },
                &[(F32, square), (DType::I64, &[7, 1]), (F32, &[7, 50_000])],
            ),
        ),
        ("attention", attended(F32)),
        ("attention", attended(BF16)),
        ("attention_gradient", gradient(F32)),
        ("attention_gradient", gradient(BF16)),
    ]
}

long! {
    more_than_two_to_the_31_elements_have_indices_of_64_bits;
}

fn more_than_two_to_the_31_elements_have_indices_of_64_bits() {
    let mut all: BTreeMap<String, Kernel> = BTreeMap::new();
    for (hero, kernels) in wide() {
        assert!(!kernels.is_empty(), "{hero}");
        for kernel in kernels {
            assert!(kernel.args.iter().any(|arg| arg.elements > 1 << 31), "{}", kernel.text);
            assert!(kernel.text.starts_with(&format!("// {hero}")), "{hero}:\n{}", kernel.text);
            assert!(kernel.text.contains("i64"), "{}", kernel.text);
            for narrow in ["const i32 ", "i32 p", "i32 e", "typedef i32 I", "(i32)", "(int)("] {
                assert!(!kernel.text.contains(narrow), "{narrow}:\n{}", kernel.text);
            }
            all.insert(kernel.name.clone(), kernel);
        }
    }
    compile_for(&all, &["sm_90"], Share::ALL);
}
