//! Checks on a real GPU, which `scripts/gpu_check` runs where there is one: every operation against f64, the
//! small models of the corpus against what is stored; and that script itself without a GPU.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use partition::unstable::compile::{Compiled, Options, compile};
use partition::unstable::error::Error;
use partition::unstable::ir::{DType, NodeId, Op, ParamId, Tensor, Type};
use partition::unstable::kernel::workspace::partial_folds;
use partition::unstable::load::Model;
use partition::unstable::pass::{GroupOptions, Params, Precision, group};
use partition::unstable::place::{self, DeviceUse};
use partition::unstable::run::cuda::{CudaOptions, CudaProgram, Machine, Target};
use partition::unstable::run::exec_plan;
use partition::unstable::topology::Topology;
use partition::unstable::units::Bytes;

use crate::cuda_forms::hero_cases;
use crate::emulator::{Build, CpuToolchain, Emulator, Library};
use crate::kernels::{Case, SMALL_KERAS, SMALL_MODELS, cases};
use crate::networks::Network;
use crate::random_graph::Random;
use crate::reference::Array;
use crate::run_ops::{encode, tolerance};
use crate::{executor, gpu_child, precision, reference, shared};

/// What became of a model of the corpus on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ran, and its outputs are as near what is stored as they are to be.
    Near,
    /// It has fewer kernels than there are devices.
    Whole,
    /// Its file is not there.
    Absent,
}

/// The plan of a model of the corpus on so many devices; none where it has fewer kernels.
pub(crate) fn compiled(
    network: &Network,
    spec: &str,
    devices: usize,
    half: Option<DType>,
) -> Result<Option<Compiled>, Error> {
    let options = Options {
        bind: network.dims.clone(),
        precision: half.map(|half| Precision { half, params: Params::Rounded }),
        place: place::Options { devices: DeviceUse::Count(devices as u32), ..<_>::default() },
        ..Options::default()
    };
    match compile(Model::Graph(network.graph.clone()), &Topology::parse(spec)?, &options) {
        Ok(compiled) => Ok(Some(compiled)),
        Err(Error::Usage(report)) if report.message.contains("devices asked for, but there are only") => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Runs a model of the corpus, cut over devices, in f32 or a half, and compares its outputs with what is
/// stored.
pub(crate) fn model(
    machine: &Machine,
    file: &str,
    spec: &str,
    targets: &[Target],
    half: Option<DType>,
) -> Outcome {
    let Some(path) = shared::present(&format!("corpus/{file}")) else { return Outcome::Absent };
    let name = format!("{file} in {}", half.unwrap_or(DType::F32));
    let network = Network::open(&path).unwrap();
    let compiled = match compiled(&network, spec, targets.len(), half) {
        Ok(Some(compiled)) => compiled,
        Ok(None) => return Outcome::Whole,
        Err(error) => panic!("{name} on {spec}: {error}"),
    };
    let lowered = compiled.network.as_ref().unwrap();
    let exec = exec_plan(&compiled.plan, &lowered.graph, &lowered.grouping).unwrap();
    let weights = |id: ParamId| network.weight(network.same(&lowered.graph, id));
    let groups = lowered.grouping.all_fused();
    let made =
        CudaProgram::new(machine, &lowered.graph, &groups, &exec, targets, &weights, &CudaOptions::default());
    let mut program = made.unwrap_or_else(|error| panic!("{name} on {spec}: {error}"));
    for run in 0..2 {
        let (outputs, _) = program.run(&network.inputs).unwrap_or_else(|error| panic!("{name}: {error}"));
        let distance = network.distance(&outputs, 1e-4);
        let distance = distance.unwrap_or_else(|| panic!("{name} has no stored outputs"));
        let near = match half {
            None => distance.relative <= 1.0,
            Some(half) => distance.absolute <= precision::within(half) * distance.largest,
        };
        assert!(near, "{name} on {spec}, run {run}: {distance:?}");
    }
    Outcome::Near
}

/// What is wrong with an operation on a machine.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) message: String,
    /// Whether the GPU is of no use to this process any more.
    pub(crate) is_fatal: bool,
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Self {
        use partition::unstable::error::FaultKind as Kind;
        let is_fatal =
            matches!(error, Error::Device { kind: Kind::Kernel | Kind::Lost | Kind::Hung | Kind::Other, .. });
        Self { message: error.to_string(), is_fatal }
    }
}

/// Runs an operation alone and compares it with its reference in f64.
pub(crate) fn operation(machine: &Machine, case: &Case) -> Result<(), Wrong> {
    let graph = case.graph();
    let groups = executor::Groups::planned(&graph);
    if group(&graph, &GroupOptions::default()).groups.is_empty() {
        return Ok(());
    }
    let plan = executor::random_gpu_plan(&graph, &groups, 1, &mut Random::new(1));
    let inputs: Vec<(String, Tensor)> = graph
        .inputs()
        .iter()
        .zip(&case.operands)
        .map(|((name, _), array)| {
            let dims = array.dims.iter().map(|&dim| dim as u64).collect();
            (name.clone(), Tensor::new(array.dtype, dims, encode(array)).unwrap())
        })
        .collect();
    let weights = |_: ParamId| unreachable!("an operation alone has no parameters");
    let options = CudaOptions { timeout: Some(LONGEST), ..CudaOptions::default() };
    let targets = [Target::Gpu(0)];
    let mut program =
        CudaProgram::new(machine, &graph, &groups.fused(), &plan, &targets, &weights, &options)?;
    let (outputs, _) = program.run(&inputs)?;
    let shapes: Vec<_> =
        graph.outputs().iter().map(|(_, value)| graph.ty(*value)).map(|ty| (ty.dtype, dims(ty))).collect();
    let expected = reference::evaluate(&case.op, &case.operands, &shapes);
    for ((_, found), expected) in outputs.iter().zip(&expected) {
        let (relative, absolute) = tolerance(expected.dtype);
        for (i, (a, &b)) in found.to_f64().into_iter().zip(&expected.data).enumerate() {
            let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= absolute + relative * b.abs();
            if !same {
                let message = format!("element {i} is {a}, expected {b}");
                return Err(Wrong { message, is_fatal: false });
            }
        }
    }
    Ok(())
}

fn dims(ty: &Type) -> Vec<usize> {
    ty.shape.dims().unwrap().iter().map(|&dim| dim as usize).collect()
}

/// After which an operation counts as hanging.
const LONGEST: Duration = Duration::from_secs(20);

#[test]
#[ignore = "needs a GPU: scripts/gpu_check"]
fn every_operation() {
    let told = gpu_child::all("gpu_child::operations", &[]);
    println!(
        "gpu: {} operations within the tolerance of their types, {} not",
        told.good.len(),
        told.wrong.len()
    );
    told.wrong.iter().for_each(|line| println!("gpu: WRONG {line}"));
    let least = 100 / gpu_child::part().1;
    assert!(told.wrong.is_empty() && told.good.len() > least, "{:#?}", told.wrong);
}

#[test]
#[ignore = "needs a GPU: scripts/gpu_check"]
fn every_small_model() {
    let told = gpu_child::all("gpu_child::models", &[]);
    let absent = told.good.iter().filter(|line| line.contains("ABSENT")).count();
    told.good.iter().for_each(|line| println!("gpu: {line}"));
    told.wrong.iter().for_each(|line| println!("gpu: WRONG {line}"));
    assert!(told.wrong.is_empty(), "{:#?}", told.wrong);
    assert!(absent == 0 && !told.good.is_empty(), "absent from the corpus, and not checked: {absent}");
}

/// What happened on one device and on two slices, in words.
pub(crate) fn told(found: [Outcome; 2]) -> &'static str {
    match found {
        [Outcome::Near, Outcome::Near] => "as stored, on one device and on two slices",
        [Outcome::Near, Outcome::Whole] => "as stored, on one device; it is not cut",
        _ => "ABSENT",
    }
}

/// Files of the corpus with stored outputs that are small.
pub(crate) fn small_models() -> Vec<String> {
    let keras =
        SMALL_KERAS.iter().flat_map(|name| ["k2", "k3"].map(|made| format!("keras/{name}.{made}.json")));
    SMALL_MODELS.iter().map(|name| format!("onnx/{name}.onnx")).chain(keras).collect()
}

#[test]
fn the_small_models_of_the_check_are_in_the_corpus() {
    let Some(folder) = shared::dir() else { return };
    let files = small_models();
    assert_eq!(files.len(), 22);
    for file in files {
        let stored = folder.join("corpus").join(&file).with_extension("io.npz");
        assert!(stored.exists(), "{}", stored.display());
    }
    // One that is not there is told as such, and does not count as checked.
    let Some(toolchain) = CpuToolchain::shared() else { return };
    let machine = Emulator::new(Build::default()).machine(&toolchain);
    let outcome = model(&machine, "onnx/no_such_model.onnx", "h200-141g", &[Target::Gpu(0)], None);
    assert_eq!((outcome, told([outcome; 2])), (Outcome::Absent, "ABSENT"));
}

#[test]
fn operations_run_on_an_emulated_gpu() {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    let emulator = Emulator::new(Build { library: Library::WHOLE, ..Build::default() });
    let machine = emulator.machine(&toolchain);
    // A compiler of C++ takes seconds for each.
    for case in some_products().into_iter().step_by(2) {
        operation(&machine, &case).unwrap();
    }
    assert!(emulator.counts().2 >= 2, "{:?}", emulator.counts());
    assert_eq!(emulator.held(), [""; 0]);
}

/// Most elements of results times those of the largest operand: what the definition in f64 may take of operations that are none of
/// reductions, each of whose operands it reads once.
const DEFINED: usize = 30_000_000;

/// Operations that kernels compute in stages, which small cases of operations hardly are.
pub(crate) fn staged_cases() -> Vec<Case> {
    let is_staged = |case: &Case| {
        let graph = case.graph();
        let kept = |node: NodeId| {
            let operands: Vec<&Type> =
                graph.node(node).operands.iter().map(|&value| graph.ty(value)).collect();
            let results: Vec<&Type> = graph.results(node).map(|value| graph.ty(value)).collect();
            partial_folds(&graph.node(node).op, &operands, &results)
        };
        graph.node_ids().any(|node| kept(node) > Bytes(0))
    };
    let is_quick = |case: &Case| match case.op {
        Op::Reduce { .. } => case.work() <= 200_000,
        _ => case.work().saturating_mul(case.work()) <= DEFINED,
    };
    hero_cases().into_iter().filter(|case| is_quick(case) && is_staged(case)).collect()
}

long! {
    operations_in_stages_run_on_an_emulated_gpu;
    what_fails_on_a_gpu_ends_its_process_alone;
}

/// Operations that kernels compute in stages, whose parts lie in the workspace of the plan.
fn operations_in_stages_run_on_an_emulated_gpu() {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    let emulator = Emulator::new(Build { library: Library::WHOLE, ..Build::default() });
    let machine = emulator.machine(&toolchain);
    // Each fiber of the emulator takes its time: the smallest of the kinds that have the fewest blocks.
    for kind in ["reduce", "scatter_nd"] {
        let mut all: Vec<Case> = staged_cases().into_iter().filter(|case| case.op.name() == kind).collect();
        all.sort_by_key(Case::work);
        operation(&machine, &all[0]).unwrap_or_else(|wrong| panic!("{kind}: {wrong:?}"));
    }
    assert_eq!(emulator.held(), [""; 0]);
}

/// Products that the library takes, and those beside them that it does not.
pub(crate) fn some_products() -> Vec<Case> {
    let products = cases(crate::run_ops::matrix_products);
    // More than a few rows and columns, and no rows of halves that begin between words.
    let taken = |case: &&Case| {
        let sides = |ty: &Type| {
            let dims = dims(ty);
            dims.len() >= 2 && dims[dims.len() - 2..].iter().all(|&dim| dim >= 9)
        };
        let even = |array: &Array| !array.dtype.is_half() || array.dims.iter().all(|dim| dim % 2 == 0);
        case.results.iter().all(sides) && case.operands.iter().all(even)
    };
    let (mut some, rest): (Vec<Case>, Vec<Case>) = products.into_iter().partition(|case| taken(&case));
    some.truncate(16);
    some.extend(rest.into_iter().take(4));
    some
}

/// A kernel that fails takes its process with it, and nothing else: each case has its verdict.
fn what_fails_on_a_gpu_ends_its_process_alone() {
    if CpuToolchain::shared().is_none() {
        return;
    }
    let told = gpu_child::all("gpu_child::operations", &[(gpu_child::EMULATED, "3"), (gpu_child::MOST, "7")]);
    assert_eq!(told.good.len() + told.wrong.len(), 7, "{told:#?}");
    assert!(told.wrong.len() >= 2 && told.good.len() >= 3, "{told:#?}");
    assert!(told.wrong.iter().all(|line| line.contains("an illegal address")), "{told:#?}");
    // A process that ends without a word is the case's that it was at.
    let told = gpu_child::all(
        "gpu_child::operations",
        &[(gpu_child::EMULATED, "0"), (gpu_child::MOST, "4"), (gpu_child::DIES, "2")],
    );
    assert_eq!((told.good.len(), told.wrong.len()), (3, 1), "{told:#?}");
    assert!(told.wrong[0].contains("its process ended"), "{told:#?}");
}

#[test]
fn the_check_says_how_far_it_goes_without_a_gpu() {
    if Command::new("nvidia-smi").output().is_ok_and(|out| out.status.success()) {
        println!("skipped: there is a GPU");
        return;
    }
    let suite = std::env::current_exe().expect("this program");
    let suite = suite.to_str().expect("a name in UTF-8");
    let own = ["--small", "--partition", env!("CARGO_BIN_EXE_partition"), "--suite", suite];
    let Some(out) = script(&own) else { return };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(3), "{text}{}", String::from_utf8_lossy(&out.stderr));
    assert!(
        text.starts_with("no GPU: ")
            && text.contains("suite: built")
            && text.contains("19 cases of the table")
            && text.contains("plans 19 of them"),
        "{text}"
    );
}

/// Rows of several slices have as many kernels as slices at least: those of full size have plans.
#[test]
fn every_row_of_slices_has_a_plan() {
    if Command::new("nvidia-smi").output().is_ok_and(|out| out.status.success()) {
        println!("skipped: there is a GPU");
        return;
    }
    let own = ["--match", "MLP", "--partition", env!("CARGO_BIN_EXE_partition")];
    let Some(out) = script(&own) else { return };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let told = text.contains("4 cases of the table") && text.contains("plans 4 of them");
    assert!(told, "{text}{}", String::from_utf8_lossy(&out.stderr));
}

/// What cargo was told to build elsewhere is found there.
#[test]
fn the_check_finds_what_was_built_elsewhere() {
    if Command::new("nvidia-smi").output().is_ok_and(|out| out.status.success()) {
        println!("skipped: there is a GPU");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gpu_check");
    let says = || {
        let asked =
            Command::new("python3").args(["-B", script]).env("CARGO_TARGET_DIR", folder.path()).output();
        asked.map(|out| String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let Ok(before) = says() else { return println!("skipped: no python3") };
    assert!(before.contains("suite: not built") && before.contains("partition: not built"), "{before}");
    let built = folder.path().join("debug/deps");
    std::fs::create_dir_all(&built).unwrap();
    std::fs::write(built.join("suite-0123456789abcdef"), "").unwrap();
    let after = says().unwrap();
    assert!(after.contains("suite: built"), "{after}");
}

/// The script, without what it would leave behind.
fn script(args: &[&str]) -> Option<std::process::Output> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gpu_check");
    let out = Command::new("python3").arg("-B").arg(script).args(args).output();
    out.map_err(|error| println!("skipped: python3: {error}")).ok()
}

/// What would be measured where every small case runs at 0.5 ms and everybody else, and a copy, is as fast as it must be.
fn measured() -> Value {
    let rows = ["elementwise chain", "softmax", "layer norm", "RMS norm", "cross-entropy"];
    let mut names: Vec<String> = rows.iter().map(|kind| format!("{kind}, 64 x 256 f32")).collect();
    let others = [
        "reduction, sum over [0] of 64 x 512 bf16",
        "transpose, 128 x 128 by [1, 0] bf16",
        "gather, 30 of 20 rows of 16 bf16",
        "scatter, 30 rows added to 20 of 16 f32",
        "batch norm, 2 x 4 x 28 x 28 f32",
        "convolution, 3 x 3, 8 to 8 channels, 1 images of 6 bf16",
        "GEMM + bias + GELU, 64 x 48 x 40 f32",
        "attention, 2 heads of 8, 32 long, bf16",
        "8 tiny kernels",
        "GPT-2 block, 1 x 16, 2 heads, 32 wide, bf16",
        "decode, batch 1, 1 blocks 32 wide after 16 tokens, bf16",
        "ResNet-50, 1 images of 32, bf16",
        "MLP of 2 layers of 64, 8 rows, cuda",
        "MLP of 2 layers of 64, 8 rows, cuda[2x1MB]",
    ];
    names.extend(others.map(Into::into));
    let own = |name: &str| match name {
        "8 tiny kernels" => json!([{"device": 0.02, "wall": 0.03, "declined": 0}]),
        _ => {
            json!([{"device": 0.4, "wall": 0.6}, {"device": 0.5, "wall": 0.6}, {"device": 0.9, "wall": 0.9}])
        }
    };
    let cases = names.iter().map(|name| {
        (name.clone(), json!({"ours": own(name), "torch": [{"device": 0.6, "wall": 0.7}], "JAX jit": [{"device": 0.7, "wall": 0.8}]}))
    });
    json!({
        // The rows of 64 x 256 move 65536 bytes for the cross-entropy, twice as many else; a reduction and a transposition as many.
        "copy": 0.14, "contenders": ["torch", "JAX jit"], "absent": ["torch.compile"],
        "cases": cases.collect::<serde_json::Map<_, _>>(),
        "outputs": {"MLP of 2 layers of 64, 8 rows, cuda": "a", "MLP of 2 layers of 64, 8 rows, cuda[2x1MB]": "a"},
        "library": "cuBLASLt 130100", "training": [[[[0.1, 0.5]], [[0.2, 0.5]]], [[[0.1, 0.5]], [[0.2, 0.5]]]],
    })
}

#[test]
fn the_check_fails_where_a_case_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("measured.json");
    let judged = |measured: &Value| {
        std::fs::write(&path, measured.to_string()).unwrap();
        let out = script(&["--small", "--from", path.to_str().unwrap()])?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
        Some((out.status.code().unwrap(), text))
    };
    let Some((code, text)) = judged(&measured()) else { return };
    assert_eq!(code, 0, "{text}");
    // Medians, clocks, the library and who is absent.
    for part in [
        "19 rows, 0 faults, 0 without",
        "| softmax, 64 x 256 f32 | 0.5000 | 0.6000 |",
        "events of the GPU around the plan's graph",
        "wall clock over calls put in the queue",
        "Absent: torch.compile.",
        "The library of products: cuBLASLt 130100",
        "| 0.5000 | 0.6000 | 0.6000 | 0.7000 |",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let mlp = "MLP of 2 layers of 64, 8 rows, cuda[2x1MB]";
    let product = "GEMM + bias + GELU, 64 x 48 x 40 f32";
    let slow = |time: f64| json!([{"device": time, "wall": time}]);
    let faulty: [(&str, Value, &str); 12] = [
        ("/cases/softmax, 64 x 256 f32/ours", json!([]), "softmax, 64 x 256 f32: ours did not run"),
        (
            "/cases/softmax, 64 x 256 f32/ours",
            slow(1.1),
            "softmax, 64 x 256 f32: 0.85, and must be 0.92 of a copy",
        ),
        (&format!("/cases/{product}/ours"), slow(0.75), "0.80, and must be 1.00 of cuBLASLt through torch"),
        (
            &format!("/cases/{product}/ours"),
            json!([{"device": 0.5, "wall": 0.5, "declined": 2}]),
            "2 products that the library was asked for and does not compute",
        ),
        ("/library", Value::Null, "cuBLASLt was not found"),
        (
            "/cases/attention, 2 heads of 8, 32 long, bf16/ours",
            slow(1.0),
            "0.60, and must be 1.00 of torch's flash",
        ),
        ("/cases/8 tiny kernels/ours", slow(0.03), "3.75, and must be 3.00 us a kernel"),
        (
            "/cases/GPT-2 block, 1 x 16, 2 heads, 32 wide, bf16/ours",
            slow(0.7),
            "0.86, and must be 1.00 of torch eager",
        ),
        (&format!("/cases/{mlp}/ours"), slow(0.6), "1.20, and must be 1.03 of one device's time"),
        (&format!("/outputs/{mlp}"), json!("b"), "ANOTHER output than one device"),
        (&format!("/outputs/{mlp}"), Value::Null, "no output to compare with one device's"),
        ("/training/0/0", json!([]), "seed_stack on cuda: ours did not run"),
    ];
    for (place, value, fault) in faulty {
        let mut measured = measured();
        // A pointer of JSON has its slashes between keys; none of the names has one.
        *measured.pointer_mut(place).unwrap_or_else(|| panic!("{place}")) = value.clone();
        let (code, text) = judged(&measured).unwrap();
        assert_eq!(code, 1, "{place}: {text}");
        assert!(text.contains(fault), "{fault}: {text}");
        // What did not come is not another one.
        assert!(!value.is_null() || !text.contains("ANOTHER"), "{text}");
    }
    // What nobody is there to be compared with is told, and is no fault.
    let mut measured = measured();
    measured["contenders"] = json!([]);
    measured["copy"] = Value::Null;
    let (code, text) = judged(&measured).unwrap();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("0 faults, 17 without"), "{text}");
    assert!(text.contains("softmax, 64 x 256 f32: no rate of a copy"), "{text}");
}

#[test]
fn the_check_fails_where_a_test_of_the_suite_does_or_is_skipped() {
    let suite = |code: i32, out: &str| {
        let lines = "import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1])\n\
                     from gpu_table import suite_verdict\n\
                     good, text = suite_verdict(int(sys.argv[2]), sys.argv[3], '')\n\
                     print(text)\nsys.exit(0 if good else 1)";
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");
        let mut command = Command::new("python3");
        let out = command.args(["-c", lines, folder, &code.to_string(), out]).output().ok()?;
        Some((out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned()))
    };
    let ran = "gpu: onnx/s_bert.onnx in f32: as stored, on one device and on two slices\n\
               test result: ok. 2 passed; 0 failed; 0 ignored\n";
    let Some((good, text)) = suite(0, ran) else { return println!("skipped: no python3") };
    assert!(good && text.contains("s_bert.onnx"), "{text}");
    for (code, out) in [
        (1, ran.to_owned()),
        (0, "test result: ok. 0 passed; 0 failed; 2 ignored\n".to_owned()),
        (0, format!("skipped: no ../shared\n{ran}")),
        (0, format!("gpu: onnx/s_vit.onnx in f32: ABSENT\n{ran}")),
    ] {
        let (good, text) = suite(code, &out).unwrap();
        assert!(!good, "{out}: {text}");
    }
}

/// Jobs of a budget: what fails or does not end is a line, and ends none behind it; what was done is not done again.
#[test]
fn a_budget_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "import sys, time; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1])\n\
                 from gpu_budget import Job, Journal, output, work\n\
                 def breaks(deadline): raise ValueError('broken')\n\
                 def hangs(deadline): output([sys.executable, '-c', 'import time; time.sleep(60)'], deadline)\n\
                 def good(deadline): return 'good', output([sys.executable, '-c', 'print(7)'], deadline).strip(), 7\n\
                 jobs = [Job('breaks', breaks), Job('hangs', hangs, 1), Job('good', good), Job('late', good)]\n\
                 journal = Journal(sys.argv[2])\n\
                 work(jobs[:3], journal, 30)\n\
                 work(jobs, journal, float(sys.argv[3]))\n\
                 again = Journal(sys.argv[2])\n\
                 print({name: (line['state'], line['value']) for name, line in again.lines.items()})";
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts");
    let run = |seconds: &str| {
        let mut command = Command::new("python3");
        let out = command.args(["-c", lines, scripts]).arg(folder.path()).arg(seconds).output().ok()?;
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Some(String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let Some(first) = run("1") else { return println!("skipped: no python3") };
    let last = |text: &str| text.lines().last().unwrap_or_default().to_owned();
    let states =
        "{'breaks': ('left', None), 'hangs': ('left', None), 'good': ('good', 7), 'late': ('left', None)}";
    assert_eq!(last(&first), states, "{first}");
    assert!(first.contains("ValueError: broken") && first.contains("hung"), "{first}");
    let second = run("30").unwrap();
    let states =
        "{'breaks': ('failed', None), 'hangs': ('hung', None), 'good': ('good', 7), 'late': ('good', 7)}";
    assert_eq!(last(&second), states, "{second}");
    // What was good is not done again.
    assert_eq!(second.matches("]  good").count() + second.matches("] good").count(), 1, "{second}");
}

/// Every model of the table, as a plan for a GPU, is one that kernels are printed for.
#[test]
fn the_models_of_the_check_become_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gpu_check");
    let made = Command::new("python3").args([script, "--models"]).arg(folder.path()).status();
    let Ok(made) = made else { return println!("skipped: no python3") };
    assert!(made.success());
    let mut count = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        // Devices that a model is planned for lie beside it.
        if path.extension().is_some_and(|extension| extension == "devices") {
            continue;
        }
        if bytes.len() > 50_000 {
            // The thousand tiny kernels: planned by the program itself.
            continue;
        }
        let programs = crate::kernels::file_programs(&path);
        assert!(!programs.is_empty());
        for program in programs {
            assert!(partition::unstable::emit::kernel(&program).unwrap().is_some());
        }
        count += 1;
    }
    assert!(count >= 20, "{count}");
}
