//! Products that the library computes together with what stands beside and behind them, on emulated GPUs.

use partition::ir::text::parse;
use partition::ir::{Graph, ParamId};
use partition::run::cuda::{CudaOptions, CudaProgram, Products, Target};
use partition::run::interpret;

use crate::emulator::{Build, CpuToolchain, Emulator};
use crate::executor::{Groups, random_plan, tensor};
use crate::random_graph::Random;
use crate::run_ops::tolerance;

/// A graph of these lines behind its head.
fn written(lines: &str) -> Graph {
    let text = format!("graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n{lines}");
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs a graph twice on an emulated GPU, compares with the interpreter, and tells how many kernels a run takes
/// beside the library's products, of which there is one at least.
fn kernels(lines: &str, build: Build) -> Option<u64> {
    let toolchain = CpuToolchain::shared()?;
    let graph = written(lines);
    let groups = Groups::planned(&graph);
    let mut random = Random::new(3);
    let plan = random_plan(&graph, &groups, 1, &mut random);
    let inputs: Vec<_> = graph
        .inputs()
        .iter()
        .map(|(name, value)| (name.clone(), tensor(graph.ty(*value), &mut random)))
        .collect();
    let weights = |_: ParamId| unreachable!("there are no parameters");
    let expected = interpret(&graph, &inputs, &weights).unwrap();
    let emulator = Emulator::new(Build { products: true, ..build });
    let options =
        CudaOptions { products: Products::Library { least: 9, apart: 32 }, ..CudaOptions::default() };
    let machine = emulator.machine(&toolchain);
    let targets = [Target::Gpu(0)];
    let mut program =
        CudaProgram::new(&machine, &graph, &groups.fused(), &plan, &targets, &weights, &options).unwrap();
    let runs = 2;
    for run in 0..runs {
        let (outputs, _) = program.run(&inputs).unwrap();
        for ((name, found), (_, expected)) in outputs.iter().zip(&expected) {
            let (relative, absolute) = tolerance(found.dtype());
            for (i, (a, b)) in found.to_f64().into_iter().zip(expected.to_f64()).enumerate() {
                let same = (a - b).abs() <= absolute + 4.0 * relative * b.abs();
                assert!(same, "run {run}: {name}[{i}] is {a}, expected {b}\n{lines}");
            }
        }
    }
    let (_, kernels, products) = emulator.counts();
    assert!(products > 0, "{lines}");
    assert_eq!(kernels % runs, 0);
    drop(program);
    assert_eq!(emulator.held(), [""; 0]);
    Some(kernels / runs)
}

/// The gradients of a dense layer's weights, of either order, and bias.
fn dense_gradients(dtype: &str, turned: bool, rows: &str, sum: &str) -> String {
    let (product, sizes) = match turned {
        false => ("matmul %2, %3 transpose_left=true transpose_right=false", "20, 24"),
        true => ("matmul %3, %2 transpose_left=true transpose_right=false", "24, 20"),
    };
    format!(
        "%0: {dtype}[{rows}, 20] = input \"x\" @s0
%1: {dtype}[{rows}, 24] = input \"dy\" @s0
%2: {dtype}[36, 20] = reshape %0 shape=[36, 20] @s0
%3: {dtype}[36, 24] = reshape %1 shape=[36, 24] @s0
{sum}
%5: {dtype}[{sizes}] = {product} @s0
output \"db\" %4
output \"dw\" %5
"
    )
}

#[test]
fn a_bias_gradient_comes_with_the_product_that_reads_the_same() {
    let plain = |dtype: &str| format!("%4: {dtype}[24] = reduce %1 kind=sum axes=[0, 1] keep=false @s0");
    for dtype in ["f32", "bf16", "f16"] {
        for turned in [false, true] {
            let text = dense_gradients(dtype, turned, "4, 9", &plain(dtype));
            let Some(count) = kernels(&text, Build::default()) else { return };
            assert_eq!(count, 0, "{text}");
            // A library without it: its product, and a kernel for the sum.
            assert_eq!(kernels(&text, Build { sums: false, ..Build::default() }), Some(1), "{text}");
        }
    }
    for (dtype, sum) in [
        // In f64 the library has no such product.
        ("f64", plain("f64")),
        // Means, and sums over other axes, are no gradients of a bias.
        ("f32", "%4: f32[24] = reduce %1 kind=mean axes=[0, 1] keep=false @s0".to_owned()),
        ("f32", "%4: f32[4, 9] = reduce %1 kind=sum axes=[2] keep=false @s0".to_owned()),
        ("f32", "%4: f32[9, 24] = reduce %1 kind=sum axes=[0] keep=false @s0".to_owned()),
    ] {
        assert_eq!(kernels(&dense_gradients(dtype, false, "4, 9", &sum), Build::default()), Some(1), "{sum}");
    }
}

/// A product of `[20, 40]` and `[40, 24]`, and what follows.
fn product(dtype: &str, lines: &str) -> String {
    format!(
        "%0: {dtype}[20, 40] = input \"x\" @s0
%1: {dtype}[40, 24] = input \"w\" @s0
%2: {dtype}[24] = input \"b\" @s0
%3: {dtype}[20, 24] = input \"r\" @s0
%4: {dtype}[20, 24] = matmul %0, %1 transpose_left=false transpose_right=false @s0
{lines}"
    )
}

#[test]
fn the_library_adds_a_bias_and_a_matrix_behind_a_product() {
    for dtype in ["f32", "bf16"] {
        let sum = format!(
            "%5: {dtype}[20, 24] = add %4, %2 @s0\n%6: {dtype}[20, 24] = add %3, %5 @s0\noutput \"y\" %6\n"
        );
        let Some(count) = kernels(&product(dtype, &sum), Build::default()) else { return };
        assert_eq!(count, 0);
        let relu = format!(
            "%5: {dtype}[20, 24] = add %4, %3 @s0\n%6: {dtype}[20, 24] = relu %5 @s0\noutput \"y\" %6\n"
        );
        assert_eq!(kernels(&product(dtype, &relu), Build::default()), Some(0));
    }
    let rows = "%5: f32[20, 1] = slice %3 starts=[0, 0] sizes=[20, 1] steps=[1, 1] @s0
%6: f32[20, 24] = add %4, %5 @s0
output \"y\" %6
";
    // A column of numbers is neither; the slice is a kernel, and so is what follows the product.
    assert_eq!(kernels(&product("f32", rows), Build::default()), Some(2));
}

#[test]
fn what_the_library_does_not_do_runs_behind_its_product() {
    for dtype in ["f32", "f16"] {
        let gelu = format!(
            "%5: {dtype}[20, 24] = add %4, %2 @s0\n%6: {dtype}[20, 24] = gelu %5 @s0\noutput \"y\" %6\n"
        );
        let Some(count) = kernels(&product(dtype, &gelu), Build::default()) else { return };
        assert_eq!(count, 1);
    }
}
