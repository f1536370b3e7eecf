//! Checks on a real GPU, which `scripts/gpu_check` runs where there is one: every operation against f64, the
//! small models of the corpus against what is stored; and that script itself without a GPU.

use std::process::Command;

use partition::error::Error;
use partition::ir::{ParamId, Tensor};
use partition::pass::{GroupOptions, group};
use partition::place::DeviceUse;
use partition::run::cuda::{CudaOptions, CudaProgram, Machine, Target};
use partition::run::exec_plan;

use crate::emulator::{Build, CpuToolchain, Emulator};
use crate::kernels::{Case, SMALL_MODELS, cases};
use crate::networks::Network;
use crate::random_graph::Random;
use crate::run_ops::{GENERATORS, encode, tolerance};
use crate::{executor, reference, shared};

/// Runs a model of the corpus, cut over devices, and compares its outputs with what is stored.
pub(crate) fn model(machine: &Machine, name: &str, spec: &str, targets: &[Target]) {
    let Some(path) = shared::file(&format!("corpus/onnx/{name}.onnx")) else { return };
    let network = Network::open(&path).unwrap();
    let devices = DeviceUse::Count(targets.len() as u32);
    let compiled = match network.plan(spec, devices) {
        Ok(compiled) => compiled,
        // A model of one kernel is not cut.
        Err(Error::Usage(report)) if report.message.contains("there are only 1 nodes") => return,
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
        assert!(distance.relative <= 1.0, "{name} on {spec}, run {run}: {distance:?}");
    }
}

/// Runs an operation alone and compares it with its reference in f64.
pub(crate) fn operation(machine: &Machine, case: &Case) {
    let graph = case.graph();
    let groups = executor::Groups::planned(&graph);
    if group(&graph, &GroupOptions::default()).groups.is_empty() {
        return;
    }
    let plan = executor::random_plan(&graph, &groups, 1, &mut Random::new(1));
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
    let options = CudaOptions::default();
    let made =
        CudaProgram::new(machine, &graph, &groups.fused(), &plan, &[Target::Gpu(0)], &weights, &options);
    let mut program = made.unwrap_or_else(|error| panic!("{:?}: {error}", case.op));
    let (outputs, _) = program.run(&inputs).unwrap_or_else(|error| panic!("{:?}: {error}", case.op));
    let shapes: Vec<_> = case.results.iter().map(|ty| (ty.dtype, dims(ty))).collect();
    let expected = reference::evaluate(&case.op, &case.operands, &shapes);
    for ((_, found), expected) in outputs.iter().zip(&expected) {
        let (relative, absolute) = tolerance(expected.dtype);
        for (i, (a, &b)) in found.to_f64().into_iter().zip(&expected.data).enumerate() {
            let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= absolute + relative * b.abs();
            assert!(same, "{:?}: element {i} is {a}, expected {b}", case.op);
        }
    }
}

fn dims(ty: &partition::ir::Type) -> Vec<usize> {
    ty.shape.dims().unwrap().iter().map(|&dim| dim as usize).collect()
}

#[test]
#[ignore = "needs a GPU: scripts/gpu_check"]
fn every_operation() {
    let machine = Machine::native().unwrap_or_else(|error| panic!("{error}"));
    let mut count = 0;
    for &generator in GENERATORS {
        for case in cases(generator).iter().filter(|case| case.work() <= 100_000) {
            operation(&machine, case);
            count += 1;
        }
    }
    println!("gpu: {count} operations within the tolerance of their types");
}

#[test]
#[ignore = "needs a GPU: scripts/gpu_check"]
fn every_small_model() {
    let machine = Machine::native().unwrap_or_else(|error| panic!("{error}"));
    for name in SMALL_MODELS {
        model(&machine, name, "h200-141g", &[Target::Gpu(0)]);
        model(&machine, name, "h200-141g[2x4GB]", &[Target::Gpu(0); 2]);
        println!("gpu: {name} on one device and on two slices");
    }
}

#[test]
fn operations_run_on_an_emulated_gpu() {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    let emulator = Emulator::new(Build { products: true, ..Build::default() });
    let machine = emulator.machine(&toolchain);
    for case in some_products() {
        operation(&machine, &case);
    }
    assert!(emulator.counts().2 >= 3, "{:?}", emulator.counts());
    assert_eq!(emulator.held(), [""; 0]);
}

/// Products that the library takes, and those beside them that it does not.
fn some_products() -> Vec<Case> {
    let products = cases(crate::run_ops::matrix_products);
    let wide = |case: &&Case| case.results.iter().all(|ty| ty.elements().is_some_and(|count| count >= 81));
    let (mut some, rest): (Vec<Case>, Vec<Case>) = products.into_iter().partition(|case| wide(&case));
    some.truncate(16);
    some.extend(rest.into_iter().take(4));
    some
}

#[test]
fn the_check_says_how_far_it_goes_without_a_gpu() {
    if Command::new("nvidia-smi").output().is_ok_and(|out| out.status.success()) {
        println!("skipped: there is a GPU");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/gpu_check");
    let own = ["--small", "--partition", env!("CARGO_BIN_EXE_partition")];
    let out = match Command::new("python3").arg("-B").arg(script).args(own).output() {
        Ok(out) => out,
        Err(error) => return println!("skipped: python3: {error}"),
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(3), "{text}{}", String::from_utf8_lossy(&out.stderr));
    assert!(
        text.starts_with("no GPU: ")
            && text.contains("suite: built")
            && text.contains("6 cases of the table")
            && text.contains("plans 6 of them"),
        "{text}"
    );
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
        if bytes.len() > 50_000 {
            // The thousand tiny kernels: planned by the program itself.
            continue;
        }
        let programs = crate::kernels::file_programs(&path);
        assert!(!programs.is_empty());
        for program in programs {
            assert!(partition::emit::kernel(&program).unwrap().is_some());
        }
        count += 1;
    }
    assert!(count >= 20, "{count}");
}
