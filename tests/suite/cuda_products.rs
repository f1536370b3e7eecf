//! Products with what stands before, beside and behind them, on emulated GPUs: which of it the library computes, and
//! that products of few rows normalise these themselves.

use partition::unstable::emit::{self, Kernel};
use partition::unstable::ir::text::parse;
use partition::unstable::ir::{Graph, ParamId};
use partition::unstable::pass::{GroupOptions, group};
use partition::unstable::run::cuda::{CudaOptions, CudaProgram, Products, Target};
use partition::unstable::run::interpret;

use crate::emulator::{Build, Choice, CpuToolchain, Emulator, Library};
use crate::executor::{Groups, random_gpu_plan, tensor};
use crate::kernels::lowered;
use crate::random_graph::Random;
use crate::run_ops::tolerance;
use crate::sweep::Share;

/// A graph of these lines behind its head.
fn written(lines: &str) -> Graph {
    let text = format!("graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n{lines}");
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// As [`ran`], of a graph with one product of the library at least.
fn kernels(lines: &str, build: Build) -> Option<u64> {
    let (kernels, products) = ran(lines, build)?;
    assert!(products > 0, "{lines}");
    Some(kernels)
}

/// Runs a graph twice on an emulated GPU, compares with the interpreter, and tells how many kernels a run takes
/// beside the library's products, and how many of those ran at all.
fn ran(lines: &str, build: Build) -> Option<(u64, u64)> {
    ran_with(lines, build, Products::Library { least: 9, inner: 32 })
}

/// The same where these products are the library's.
fn ran_with(lines: &str, build: Build, products: Products) -> Option<(u64, u64)> {
    let toolchain = CpuToolchain::shared()?;
    let graph = written(lines);
    let groups = Groups::planned(&graph);
    let mut random = Random::new(3);
    let plan = random_gpu_plan(&graph, &groups, 1, &mut random);
    let inputs: Vec<_> = graph
        .inputs()
        .iter()
        .map(|(name, value)| (name.clone(), tensor(graph.ty(*value), &mut random)))
        .collect();
    let weights = |_: ParamId| unreachable!("there are no parameters");
    let expected = interpret(&graph, &inputs, &weights).unwrap();
    let emulator = Emulator::new(Build {
        library: if build.library == Library::None { Library::WHOLE } else { build.library },
        ..build
    });
    let options = CudaOptions { products, ..CudaOptions::default() };
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
    assert_eq!(kernels % runs, 0);
    drop(program);
    assert_eq!(emulator.held(), [""; 0]);
    Some((kernels / runs, products))
}

long! {
    products_of_odd_rows_are_not_the_librarys;
    a_bias_gradient_comes_with_the_product_that_reads_the_same;
    a_convolution_of_single_elements_is_a_product_of_the_library;
    long_sums_of_few_results_are_added_in_two_kernels;
}

/// Halves in rows of which every second one begins within a word: the library has slow kernels for them alone.
fn products_of_odd_rows_are_not_the_librarys() {
    let dense = |dtype: &str, k: u32, n: u32| {
        written(&format!(
            "%0: {dtype}[20, {k}] = input \"x\" @s0\n%1: {dtype}[{k}, {n}] = input \"w\" @s0\n\
             %2: {dtype}[20, {n}] = matmul %0, %1 @s0\noutput \"y\" %2\n"
        ))
    };
    let asked = |dtype: &str, k: u32, n: u32| {
        let toolchain = CpuToolchain::shared()?;
        let graph = dense(dtype, k, n);
        let groups = Groups::planned(&graph);
        let plan = random_gpu_plan(&graph, &groups, 1, &mut Random::new(3));
        let emulator = Emulator::new(Build { library: Library::WHOLE, ..Build::default() });
        let weights = |_: ParamId| unreachable!("there are no parameters");
        let machine = emulator.machine(&toolchain);
        let options = CudaOptions::default();
        let made =
            CudaProgram::new(&machine, &graph, &groups.fused(), &plan, &[Target::Gpu(0)], &weights, &options);
        Some(made.unwrap().products().len())
    };
    let Some(even) = asked("bf16", 66, 34) else { return };
    assert_eq!(even, 1);
    let found = [("bf16", 67, 34), ("f16", 66, 33), ("f32", 67, 33)].map(|(dtype, k, n)| asked(dtype, k, n));
    assert_eq!(found, [Some(0), Some(0), Some(1)]);
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
%2: {dtype}[36, 20] = reshape %0 @s0
%3: {dtype}[36, 24] = reshape %1 @s0
{sum}
%5: {dtype}[{sizes}] = {product} @s0
output \"db\" %4
output \"dw\" %5
"
    )
}

fn a_bias_gradient_comes_with_the_product_that_reads_the_same() {
    let plain = |dtype: &str| format!("%4: {dtype}[24] = reduce %1 kind=sum axes=[0, 1] @s0");
    for dtype in ["f32", "bf16", "f16"] {
        for turned in [false, true] {
            let text = dense_gradients(dtype, turned, "4, 9", &plain(dtype));
            let Some(count) = kernels(&text, Build::default()) else { return };
            assert_eq!(count, 0, "{text}");
            // A library without it: its product, and a kernel for the sum.
            assert_eq!(
                kernels(
                    &text,
                    Build { library: Library::Ways { refused: 0, sums: false }, ..Build::default() }
                ),
                Some(1),
                "{text}"
            );
        }
    }
    for (dtype, sum) in [
        // In f64 the library has no such product.
        ("f64", plain("f64")),
        // Means, and sums over other axes, are no gradients of a bias.
        ("f32", "%4: f32[24] = reduce %1 kind=mean axes=[0, 1] @s0".to_owned()),
        ("f32", "%4: f32[4, 9] = reduce %1 kind=sum axes=[2] @s0".to_owned()),
        ("f32", "%4: f32[9, 24] = reduce %1 kind=sum axes=[0] @s0".to_owned()),
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
%4: {dtype}[20, 24] = matmul %0, %1 @s0
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
    let rows = "%5: f32[20, 1] = slice %3 @s0
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

/// What [`skinny`] makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skinny {
    pub(crate) dtype: &'static str,
    /// Whether each row's mean is taken off, and a bias follows the scale.
    pub(crate) center: bool,
    /// Whether the weights lie by columns.
    pub(crate) turned: bool,
    /// Rows, columns, and what is summed over.
    pub(crate) sizes: [u64; 3],
}

/// A norm with its scale, and a product of its rows with bias, GELU and a residual sum.
pub(crate) fn skinny(Skinny { dtype, center, turned, sizes: [m, n, k] }: Skinny) -> String {
    let weights = if turned { format!("{n}, {k}") } else { format!("{k}, {n}") };
    let shifted = match center {
        true => format!("%8: {dtype}[1, {m}, {k}] = add %7, %2 @s0"),
        false => format!("%8: {dtype}[1, {m}, {k}] = reshape %7 @s0"),
    };
    format!(
        "%0: {dtype}[1, {m}, {k}] = input \"x\" @s0
%1: {dtype}[{k}] = input \"g\" @s0
%2: {dtype}[{k}] = input \"s\" @s0
%3: {dtype}[{weights}] = input \"w\" @s0
%4: {dtype}[{n}] = input \"b\" @s0
%5: {dtype}[{m}, {n}] = input \"r\" @s0
%6: {dtype}[1, {m}, {k}] = normalize %0 axes=[2] epsilon=0.00001 center={center} @s0
%7: {dtype}[1, {m}, {k}] = mul %6, %1 @s0
{shifted}
%9: {dtype}[{m}, {k}] = reshape %8 @s0
%10: {dtype}[{m}, {n}] = matmul %9, %3 transpose_right={turned} @s0
%11: {dtype}[{m}, {n}] = add %10, %4 @s0
%12: {dtype}[{m}, {n}] = gelu_tanh %11 @s0
%13: {dtype}[{m}, {n}] = add %12, %5 @s0
output \"y\" %13
"
    )
}

/// Each form of such a kernel: a warp a column, 32 columns a block, either sixteen bytes at a time or one element.
pub(crate) const SKINNY: [Skinny; 12] = [
    Skinny { dtype: "f32", center: true, turned: true, sizes: [1, 37, 136] },
    Skinny { dtype: "bf16", center: false, turned: true, sizes: [8, 18, 600] },
    Skinny { dtype: "f16", center: true, turned: true, sizes: [3, 5, 64] },
    Skinny { dtype: "f32", center: false, turned: true, sizes: [2, 20, 33] },
    Skinny { dtype: "bf16", center: true, turned: false, sizes: [1, 72, 1030] },
    Skinny { dtype: "f32", center: true, turned: false, sizes: [5, 40, 24] },
    Skinny { dtype: "f16", center: false, turned: false, sizes: [2, 33, 40] },
    Skinny { dtype: "f64", center: true, turned: false, sizes: [3, 34, 65] },
    Skinny { dtype: "f64", center: false, turned: true, sizes: [4, 17, 130] },
    Skinny { dtype: "f32", center: true, turned: true, sizes: [1, 1, 1] },
    // Norms of single elements.
    Skinny { dtype: "f32", center: true, turned: true, sizes: [8, 20, 1] },
    Skinny { dtype: "f32", center: false, turned: false, sizes: [3, 24, 1] },
];

/// The kernels of [`SKINNY`].
pub(crate) fn skinny_kernels() -> Vec<Kernel> {
    let programs = SKINNY.into_iter().flat_map(|one| {
        let graph = written(&skinny(one));
        lowered(&graph, &group(&graph, &GroupOptions::default()))
    });
    programs.map(|program| emit::kernel(&program).unwrap().unwrap()).collect()
}

sweep! {
    products_of_few_rows_normalise_them_in_every_form: one of 4;
}

fn products_of_few_rows_normalise_them_in_every_form(share: Share) {
    let kernels = skinny_kernels();
    assert_eq!(kernels.len(), SKINNY.len());
    for form in ["product_dots<", "product_dots_wide<", "product_columns<", "product_columns_wide<"] {
        assert!(kernels.iter().any(|kernel| kernel.text.contains(form)), "no {form}");
    }
    for (one, kernel) in SKINNY.into_iter().zip(&kernels) {
        let [m, _, k] = one.sizes;
        let width = if one.dtype == "f64" { 8 } else { 4 };
        assert_eq!(u64::from(kernel.launch.shared), m * k * width, "{one:?}");
        assert!(kernel.text.contains("reduce_rows();"), "{}", kernel.text);
    }
    for one in share.among(SKINNY) {
        for choice in [Choice::Random(1), Choice::Random(6)] {
            let Some(found) = ran(&skinny(one), Build { choice, ..Build::default() }) else { return };
            assert_eq!(found, (1, 0), "{one:?}");
        }
    }
}

#[test]
fn what_others_read_is_normalised_once() {
    let one = Skinny { dtype: "f32", center: true, turned: false, sizes: [4, 12, 32] };
    let twice = skinny(one) + "%14: f32[4, 12] = matmul %9, %3 @s0\noutput \"z\" %14\n";
    let Some(found) = ran(&twice, Build::default()) else { return };
    assert_eq!(found, (3, 0));
    let read = skinny(one) + "output \"z\" %8\n";
    assert_eq!(ran(&read, Build::default()), Some((2, 0)));
    // More rows are normalised by a kernel of their own.
    assert_eq!(ran(&skinny(Skinny { sizes: [9, 12, 32], ..one }), Build::default()), Some((2, 0)));
}

fn a_convolution_of_single_elements_is_a_product_of_the_library() {
    let conv = |dtype: &str, attributes: &str, made: &str| {
        format!(
            "%0: {dtype}[3, 40, 6, 7] = input \"x\" @s0
%1: {dtype}[24, 40, 1, 1] = input \"w\" @s0
%2: {dtype}[3, 24, {made}] = conv %0, %1{attributes} @s0
%3: {dtype}[3, 24, {made}] = relu %2 @s0
output \"y\" %3
"
        )
    };
    for dtype in ["f32", "bf16"] {
        let Some(count) = kernels(&conv(dtype, "", "6, 7"), Build::default()) else { return };
        assert_eq!(count, 0);
    }
    // Elements apart are gathered by a kernel.
    assert_eq!(ran(&conv("f32", " strides=[2, 1]", "3, 7"), Build::default()), Some((1, 0)));
    // Channels last a bias is one of each column, as libraries have it.
    let last = "%0: bf16[3, 6, 7, 40] = input \"x\" @s0
%1: bf16[1, 1, 40, 24] = input \"w\" @s0
%2: bf16[24] = input \"b\" @s0
%3: bf16[3, 6, 7, 24] = conv %0, %1, %2 layout=channels_last @s0
%4: bf16[3, 6, 7, 24] = relu %3 @s0
output \"y\" %4
";
    assert_eq!(kernels(last, Build::default()), Some(0));
}

/// Gradients of weights have few results and long sums, and blocks of tiles alone would leave a GPU idle.
fn long_sums_of_few_results_are_added_in_two_kernels() {
    let dense = |dtype: &str, inner: u64| {
        format!(
            "%0: {dtype}[{inner}, 20] = input \"x\" @s0
%1: {dtype}[{inner}, 24] = input \"dy\" @s0
%2: {dtype}[20, 24] = matmul %0, %1 transpose_left=true @s0
%3: {dtype}[20, 24] = tanh %2 @s0
output \"y\" %3
"
        )
    };
    let own = |lines: &str| ran_with(lines, Build::default(), Products::Own);
    let Some(two) = own(&dense("f32", 4096)) else { return };
    assert_eq!(two, (2, 0));
    for dtype in ["f64", "bf16", "f16"] {
        assert_eq!(own(&dense(dtype, 2048)), Some((2, 0)), "{dtype}");
    }
    // Few columns are no library's.
    let few = dense("f32", 2048).replace("24]", "5]");
    assert_eq!(ran(&few, Build::default()), Some((2, 0)));
    // No number of parts divides the sum, or each would be short.
    for inner in [4099, 500] {
        assert_eq!(own(&dense("f32", inner)), Some((1, 0)), "{inner}");
    }
    let several = "%0: f32[3, 1536, 9] = input \"x\" @s0
%1: f32[3, 1536, 10] = input \"dy\" @s0
%2: f32[3, 9, 10] = matmul %0, %1 transpose_left=true @s0
%3: f32[3, 9, 10] = tanh %2 @s0
output \"y\" %3
";
    assert_eq!(own(several), Some((2, 0)));
    // Windows as large as images, as the gradients of a convolution's weights are made.
    let conv = |dtype: &str, layout: &str, [x, w, made]: [&str; 3], more: &str| {
        format!(
            "%0: {dtype}[{x}] = input \"x\" @s0
%1: {dtype}[{w}] = input \"w\" @s0
%2: {dtype}[{made}] = conv %0, %1{layout}{more} @s0
%3: {dtype}[{made}] = tanh %2 @s0
output \"y\" %3
"
        )
    };
    let first = ["3, 6, 18, 19", "16, 6, 16, 17", "3, 16, 3, 3"];
    assert_eq!(own(&conv("f32", "", first, "")), Some((2, 0)));
    let grouped = ["3, 12, 18, 18", "20, 6, 16, 16", "3, 20, 3, 3"];
    assert_eq!(own(&conv("f64", "", grouped, " groups=2")), Some((2, 0)));
    let padded = ["3, 16, 16, 6", "16, 16, 6, 16", "3, 3, 3, 16"];
    let pads = " pads_before=[1, 1] pads_after=[1, 1]";
    assert_eq!(own(&conv("f32", " layout=channels_last", padded, pads)), Some((2, 0)));
    // Parts of whole rows and of none, that begin with a column and within one.
    for [rows, columns, samples] in [[14, 14, 6], [10, 9, 10], [9, 9, 8], [8, 8, 16]] {
        let all = format!("{rows}, {columns}, {samples}");
        let sizes = [format!("3, {all}"), format!("{all}, 16"), "3, 3, 3, 16".to_owned()];
        let sizes = sizes.each_ref().map(String::as_str);
        assert_eq!(own(&conv("f32", " layout=channels_last", sizes, pads)), Some((2, 0)), "{all}");
    }
    // Behind what is laid out for it.
    let halves = ["2, 32, 12, 12", "32, 32, 5, 5", "2, 32, 8, 8"];
    assert_eq!(own(&conv("bf16", "", halves, "")), Some((4, 0)));
}
