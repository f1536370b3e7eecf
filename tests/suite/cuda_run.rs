//! Plans on emulated GPUs: the runtime for NVIDIA GPUs with its real kernels, behind a driver that runs
//! them on the CPU, as late as it may and in any order that events allow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use partition::unstable::error::{Error, FaultKind};
use partition::unstable::ir::{DType, Graph, ParamId, Tensor};
use partition::unstable::run::cuda::{CudaOptions, CudaProgram, Target};
use partition::unstable::run::{ExecBuffer, interpret};
use partition::unstable::units::Bytes;

use crate::emulator::{Build, Choice, CpuToolchain, Emulator, Faults, Library};
use crate::executor::{Groups, random_gpu_plan, tensor};
use crate::gpu::{Outcome, model};
use crate::kernels::cases;
use crate::random_graph::{Random, random_graph};
use crate::reference::{Array, evaluate};
use crate::run_ops::{GENERATORS, encode, tolerance};
use crate::shared;
use crate::sweep::Share;

fn same(found: &[(String, Tensor)], expected: &[(String, Tensor)], what: &str) {
    assert_eq!(found.len(), expected.len());
    for ((name, found), (_, expected)) in found.iter().zip(expected) {
        assert_eq!(found.dims(), expected.dims());
        for (i, (a, b)) in found.to_f64().into_iter().zip(expected.to_f64()).enumerate() {
            let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-4 + 1e-4 * b.abs();
            assert!(same, "{what}: {name}[{i}] is {a}, expected {b}");
        }
    }
}

/// A random network, cut at random over devices.
struct Setup {
    graph: partition::unstable::ir::Graph,
    groups: Groups,
    plan: partition::unstable::run::ExecPlan,
    inputs: Vec<(String, Tensor)>,
    params: Vec<Tensor>,
    expected: Vec<(String, Tensor)>,
}

impl Setup {
    fn new(seed: u64, devices: usize) -> Self {
        let graph = random_graph(seed, 16);
        let mut random = Random::new(seed ^ 0x77);
        // As the planner groups, or one node each.
        let groups = match seed % 2 {
            0 => Groups::planned(&graph),
            _ => Groups::new(&graph, &mut random, false),
        };
        let plan = random_gpu_plan(&graph, &groups, devices, &mut random);
        let inputs: Vec<(String, Tensor)> = graph
            .inputs()
            .iter()
            .map(|(name, value)| (name.clone(), tensor(graph.ty(*value), &mut random)))
            .collect();
        let params: Vec<Tensor> = graph
            .params()
            .iter()
            .map(|param| tensor(graph.ty(graph.node(param.node).first_result), &mut random))
            .collect();
        let expected =
            interpret(&graph, &inputs, &|param: ParamId| Ok(params[param.index()].clone())).unwrap();
        Self { graph, groups, plan, inputs, params, expected }
    }

    /// Other inputs, and what comes of them.
    fn with_inputs(&self, seed: u64) -> (Vec<(String, Tensor)>, Vec<(String, Tensor)>) {
        let mut random = Random::new(seed);
        let of = |(name, value): &(String, _)| (name.clone(), tensor(self.graph.ty(*value), &mut random));
        let inputs: Vec<(String, Tensor)> = self.graph.inputs().iter().map(of).collect();
        let params = |param: ParamId| Ok(self.params[param.index()].clone());
        let expected = interpret(&self.graph, &inputs, &params).unwrap();
        (inputs, expected)
    }

    fn program(
        &self,
        emulator: &Arc<Emulator>,
        toolchain: &Arc<CpuToolchain>,
        targets: &[Target],
        options: &CudaOptions<'_>,
    ) -> partition::Result<CudaProgram> {
        let weights = |param: ParamId| Ok(self.params[param.index()].clone());
        let machine = emulator.machine(toolchain);
        CudaProgram::new(&machine, &self.graph, &self.groups.fused(), &self.plan, targets, &weights, options)
    }
}

/// Three runs, the first step by step, the others from the graph.
fn runs(program: &mut CudaProgram, setup: &Setup, what: &str) {
    for run in 0..3 {
        let (outputs, report) = program.run(&setup.inputs).unwrap_or_else(|error| panic!("{what}: {error}"));
        same(&outputs, &setup.expected, &format!("{what}, run {run}"));
        assert_eq!(report.steps.len(), setup.plan.steps.len());
        assert!(report.steps.iter().all(|(begin, end)| begin <= end));
    }
}

long! {
    random_cuts_over_slices_and_gpus_give_what_the_interpreter_gives;
    small_models_in_halves_on_slices_and_gpus_are_near_what_is_stored;
    small_models_of_more_kinds_on_slices_and_gpus_give_what_is_stored;
}

fn random_cuts_over_slices_and_gpus_give_what_the_interpreter_gives() {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    for seed in 0..8 {
        let devices = 1 + seed as usize % 4;
        let setup = Setup::new(seed, devices);
        for (gpus, peers, choice) in [
            (1, true, Choice::Last),
            (2, true, Choice::Random(seed)),
            (2, false, Choice::First),
            (2, false, Choice::Random(seed + 50)),
        ] {
            let emulator = Emulator::new(Build { gpus, peers, choice, ..Build::default() });
            let targets: Vec<Target> = (0..devices as u32).map(|device| Target::Gpu(device % gpus)).collect();
            let timed = seed % 3 == 2;
            let options = CudaOptions { timed, ..CudaOptions::default() };
            let what = format!("seed {seed}, {devices} devices on {gpus} GPUs, peers {peers}, {choice:?}");
            let mut program = setup.program(&emulator, &toolchain, &targets, &options).unwrap();
            let arenas: u64 = setup.plan.devices.iter().map(|device| device.arena.get()).sum();
            assert_eq!(emulator.allocations().iter().map(|(_, bytes)| bytes).sum::<u64>(), arenas);
            runs(&mut program, &setup, &what);
            assert_eq!(emulator.counts().0, if timed { 0 } else { 2 });
            drop(program);
            assert_eq!(emulator.held(), [""; 0], "{what}");
        }
    }
}

sweep! {
    devices_of_the_cpu_run_beside_gpus: one of 3;
}

fn devices_of_the_cpu_run_beside_gpus(share: Share) {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    for seed in share.among(20..26) {
        let setup = Setup::new(seed, 4);
        let emulator =
            Emulator::new(Build { gpus: 2, peers: false, choice: Choice::Random(seed), ..Build::default() });
        let targets = [Target::Gpu(0), Target::Cpu, Target::Gpu(1), Target::Cpu];
        let options = CudaOptions { timeout: Some(Duration::from_secs(60)), ..CudaOptions::default() };
        let mut program = setup.program(&emulator, &toolchain, &targets, &options).unwrap();
        runs(&mut program, &setup, &format!("seed {seed}"));
        drop(program);
        assert_eq!(emulator.held(), [""; 0]);
    }
}

/// One graph of operations of every kind, as the tests of kernels make them up: inputs, and what each
/// output is in f64.
fn operations() -> (Graph, Vec<(String, Tensor)>, Vec<Array>) {
    let mut graph = Graph::new("operations");
    let (mut inputs, mut expected) = (Vec::new(), Vec::new());
    let mut seen = Vec::new();
    for case in GENERATORS.iter().flat_map(|&generator| cases(generator)) {
        let kind = std::mem::discriminant(&case.op);
        let elements: usize = case.shapes().iter().map(|(_, dims)| dims.iter().product::<usize>()).sum();
        if seen.contains(&kind) || !(2..=1500).contains(&elements) || case.work() > 1500 {
            continue;
        }
        let prefix = format!("{}.", seen.len());
        seen.push(kind);
        case.add_to(&mut graph, &prefix);
        for (position, array) in case.operands.iter().enumerate() {
            let dims = array.dims.iter().map(|&dim| dim as u64).collect();
            let tensor = Tensor::new(array.dtype, dims, encode(array)).unwrap();
            inputs.push((format!("{prefix}x{position}"), tensor));
        }
        expected.extend(evaluate(&case.op, &case.operands, &case.shapes()));
    }
    assert!(seen.len() > 30, "{} kinds", seen.len());
    (graph, inputs, expected)
}

sweep! {
    operations_of_every_kind_on_slices_and_gpus_give_what_the_reference_gives: one of 4;
}

fn operations_of_every_kind_on_slices_and_gpus_give_what_the_reference_gives(share: Share) {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    let (graph, inputs, expected) = operations();
    let groups = Groups::planned(&graph);
    for (devices, gpus, choice) in share.among([(3, 2, Choice::Random(5)), (1, 1, Choice::Last)]) {
        let plan = random_gpu_plan(&graph, &groups, devices, &mut Random::new(9));
        let emulator = Emulator::new(Build { gpus, choice, ..Build::default() });
        let machine = emulator.machine(&toolchain);
        let targets: Vec<Target> = (0..devices as u32).map(|device| Target::Gpu(device % gpus)).collect();
        let weights = |_: ParamId| unreachable!("there are no parameters");
        let options = CudaOptions::default();
        let mut program =
            CudaProgram::new(&machine, &graph, &groups.fused(), &plan, &targets, &weights, &options).unwrap();
        // Step by step, then from the graph.
        for run in 0..2 {
            let (outputs, _) = program.run(&inputs).unwrap();
            assert_eq!(outputs.len(), expected.len());
            for ((name, found), expected) in outputs.iter().zip(&expected) {
                let (relative, absolute) = tolerance(found.dtype());
                for (i, (a, &b)) in found.to_f64().into_iter().zip(&expected.data).enumerate() {
                    let same =
                        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= absolute + relative * b.abs();
                    let number = name.split('.').next().unwrap();
                    let op = graph.sources().iter().find(|source| source.name == format!("{number}.case"));
                    assert!(same, "{devices} devices, run {run}: {name}[{i}] of {op:?} is {a}, expected {b}");
                }
            }
        }
        drop(program);
        assert_eq!(emulator.held(), [""; 0]);
    }
}

const PRODUCT: &str = r#"graph "product"

source s0 data "x" "input"
source s1 node "y" "matmul"

%0: f32[16, 24] = input "x" @s0
%1: f32[24, 12] = input "w" @s0
%2: f32[16, 12] = matmul %0, %1 @s1

output "y" %2
"#;

/// A program of one product on an emulated GPU, and what its plan is fed.
fn product_program(
    lines: &str,
    emulator: &Arc<Emulator>,
    arrange: impl FnOnce(&mut partition::unstable::run::ExecPlan),
) -> Option<(CudaProgram, Vec<(String, Tensor)>)> {
    let toolchain = CpuToolchain::shared()?;
    let graph = partition::unstable::ir::text::parse(lines).unwrap();
    let groups = Groups::planned(&graph);
    let mut plan = random_gpu_plan(&graph, &groups, 1, &mut Random::new(1));
    arrange(&mut plan);
    let input = |(name, value): &(String, _)| (name.clone(), tensor(graph.ty(*value), &mut Random::new(2)));
    let inputs: Vec<(String, Tensor)> = graph.inputs().iter().map(input).collect();
    let weights = |_: ParamId| unreachable!("there are no parameters");
    let (machine, groups) = (emulator.machine(&toolchain), groups.fused());
    let targets = [Target::Gpu(0)];
    let options = CudaOptions::default();
    let program = CudaProgram::new(&machine, &graph, &groups, &plan, &targets, &weights, &options);
    Some((program.unwrap(), inputs))
}

#[test]
fn a_way_that_the_library_refuses_is_passed_over_and_what_it_does_not_compute_is_counted() {
    let three = |refused| Library::Ways { refused, sums: true };
    for (library, taken) in [
        (Library::WHOLE, Some(0)),
        (three(1), Some(1)),
        (three(2), Some(2)),
        (three(3), None),
        (Library::Empty, None),
        (Library::None, None),
    ] {
        let emulator = Emulator::new(Build { library, ..Build::default() });
        let Some((mut program, inputs)) = product_program(PRODUCT, &emulator, |_| {}) else { return };
        for _ in 0..2 {
            program.run(&inputs).unwrap();
        }
        assert_eq!(program.library(), (library != Library::None).then_some("emulated"));
        match taken {
            Some(refused) => {
                let [product] = program.products() else { panic!("{:?}", program.products()) };
                assert_eq!(
                    (product.calls, product.refused, product.gemm.flops()),
                    (1, refused, 2 * 16 * 24 * 12)
                );
                assert_eq!(product.gemm.to_string(), "16 x 12 x 24 f32");
                // Tried once, and run twice.
                assert_eq!((program.declined(), emulator.counts()), (0, (1, 0, 3)), "{library:?}");
            }
            None => {
                assert!(program.products().is_empty());
                assert_eq!((program.declined(), emulator.counts()), (1, (1, 2, 0)), "{library:?}");
            }
        }
    }
}

/// Where a plan puts buffers decides neither how a product is computed nor a bit of it.
#[test]
fn a_product_has_the_same_bits_wherever_its_operands_lie() {
    let run = |shift: u64| {
        let emulator = Emulator::new(Build { library: Library::WHOLE, ..Build::default() });
        let (mut program, inputs) = product_program(PRODUCT, &emulator, |plan| {
            for (number, buffer) in (0..).zip(&mut plan.buffers) {
                buffer.offset = Bytes(buffer.offset.get() + shift * number);
            }
            let arena = &mut plan.devices[0].arena;
            *arena = Bytes(arena.get() + shift * 8);
        })?;
        Some(program.run(&inputs).unwrap().0)
    };
    let Some(first) = run(0) else { return };
    for shift in [64, 128, 192] {
        assert_eq!(run(shift).unwrap()[0].1.bytes(), first[0].1.bytes(), "{shift}");
    }
}

const FEW_TILES: &str = r#"graph "few tiles"

source s0 data "x" "input"
source s1 node "h" "matmul"
source s2 node "y" "matmul"

%0: f32[16, 512] = input "x" @s0
%1: f32[512, 16] = input "w" @s0
%2: f32[16, 24] = input "v" @s0
%3: f32[16, 16] = matmul %0, %1 @s1
%4: f32[16, 24] = matmul %3, %2 @s2

output "y" %4
"#;

/// Room for the library's partial sums is planned, within the caps, and the same on a slice as on the whole GPU: so are
/// the bytes of the results.
#[test]
fn partial_sums_have_planned_room_and_slices_give_the_bytes_of_the_whole() {
    use partition::unstable::compile::{self, compile};
    use partition::unstable::plan::BufferKind;
    let Some(toolchain) = CpuToolchain::shared() else { return };
    let graph = || partition::unstable::ir::text::parse(FEW_TILES).unwrap();
    // Four parts of 128 terms, of 16 x 16 numbers, and where they may begin.
    let room = 4 * 16 * 16 * 4;
    let run = |spec: &str, count: u32| {
        let options = compile::Options {
            place: partition::unstable::place::Options {
                devices: partition::unstable::place::DeviceUse::Count(count),
                ..<_>::default()
            },
            ..<_>::default()
        };
        let topology = partition::unstable::topology::Topology::parse(spec).unwrap();
        let made = compile(partition::unstable::load::Model::Graph(graph()), &topology, &options).unwrap();
        let network = made.network.as_ref().unwrap();
        let planned: Vec<u64> = made
            .plan
            .buffers
            .iter()
            .filter(|buffer| buffer.kind == BufferKind::Workspace)
            .map(|buffer| buffer.bytes.get())
            .collect();
        assert!(made.plan.devices.iter().all(|device| device.arena <= device.memory), "{spec}");
        let exec =
            partition::unstable::run::exec_plan(&made.plan, &network.graph, &network.grouping).unwrap();
        let emulator = Emulator::new(Build { library: Library::WHOLE, ..Build::default() });
        let weights = |_: ParamId| unreachable!("there are no parameters");
        let (machine, groups) = (emulator.machine(&toolchain), network.grouping.all_fused());
        let targets = vec![Target::Gpu(0); exec.devices.len()];
        let options = CudaOptions::default();
        let mut program =
            CudaProgram::new(&machine, &network.graph, &groups, &exec, &targets, &weights, &options).unwrap();
        let arenas: u64 = exec.devices.iter().map(|device| device.arena.get()).sum();
        assert_eq!(emulator.allocations().iter().map(|(_, bytes)| bytes).sum::<u64>(), arenas);
        let input =
            |(name, value): &(String, _)| (name.clone(), tensor(graph().ty(*value), &mut Random::new(2)));
        let inputs: Vec<(String, Tensor)> = graph().inputs().iter().map(input).collect();
        let (outputs, _) = program.run(&inputs).unwrap();
        (planned, emulator.room(), outputs[0].1.bytes().to_vec())
    };
    let whole = run("cuda:memory=1MB", 1);
    assert_eq!((&whole.0[..], whole.1), (&[room + 256][..], room));
    for spec in ["cuda[2x200KB]", "cuda[2x80KB]"] {
        let cut = run(spec, 2);
        assert_eq!(cut.0, whole.0, "{spec}");
        assert_eq!((cut.1, &cut.2), (whole.1, &whole.2), "{spec}");
    }
    // Processors have no such library: no plan for them alone has room for it.
    let topology = partition::unstable::topology::Topology::parse("cpu").unwrap();
    let made = compile(partition::unstable::load::Model::Graph(graph()), &topology, &<_>::default()).unwrap();
    assert!(made.plan.buffers.iter().all(|buffer| buffer.kind != BufferKind::Workspace));
}

/// Steps that are timed go straight one after the other, behind one that is not timed: the GPU's clock counts as many
/// replays as were asked for, and not what the host does before the first.
#[test]
fn the_time_of_a_step_is_that_of_replays_in_a_row() {
    let emulator = Emulator::new(Build { library: Library::WHOLE, ..Build::default() });
    let Some((mut program, inputs)) = product_program(PRODUCT, &emulator, |_| {}) else { return };
    let early = program.clocked(3).unwrap_err().to_string();
    assert!(early.contains("first step"), "{early}");
    program.run(&inputs).unwrap();
    let before = emulator.order().len();
    let time = program.clocked(5).unwrap();
    assert_eq!(&emulator.order()[before..], "GRGGGGGR");
    assert!(time > Duration::ZERO && program.clocked(5).unwrap() == time, "{time:?}");
}

/// Kernels of the graph are begun early behind kernels of their stream; where a driver has no such graphs, or a GPU no such
/// launches, they follow one another as they always did, to the same bytes.
#[test]
fn kernels_of_the_graph_begin_early_where_gpus_and_drivers_can() {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    let setup = Setup::new(5, 1);
    let run = |build: Build| {
        let emulator = Emulator::new(build);
        let options = CudaOptions::default();
        let mut program = setup.program(&emulator, &toolchain, &[Target::Gpu(0)], &options).unwrap();
        runs(&mut program, &setup, "early");
        let early = emulator.early();
        drop(program);
        assert_eq!(emulator.held(), [""; 0]);
        (early, emulator.counts().0)
    };
    let (early, replays) = run(Build::default());
    assert!(early >= 2 && replays == 2, "{early} {replays}");
    let faults = Faults { no_early_graphs: true, ..Faults::default() };
    assert_eq!(run(Build { faults, ..Build::default() }), (early, replays));
    assert_eq!(run(Build { capability: (8, 9), ..Build::default() }).0, 0);
    // Steps that are marked for a timeout have copies between them.
    let emulator = Emulator::new(Build::default());
    let options = CudaOptions { timeout: Some(Duration::from_secs(60)), ..CudaOptions::default() };
    let mut program = setup.program(&emulator, &toolchain, &[Target::Gpu(0)], &options).unwrap();
    runs(&mut program, &setup, "marked");
    assert!(emulator.early() < early);
}

/// How programs under faults run.
#[derive(Clone, Copy)]
struct Way {
    timeout: bool,
    timed: bool,
    /// Whether something is copied after each run.
    update: bool,
}

const FIRST: Way = Way { timeout: true, timed: false, update: false };

impl Way {
    fn setup(self) -> Setup {
        let mut setup = Setup::new(4, 2);
        if self.update {
            // From where the first output lies to the other device, where nobody reads it.
            let from = setup.plan.outputs[0].1;
            let buffer = setup.plan.buffers[from as usize];
            let device = 1 - buffer.device;
            let arena = &mut setup.plan.devices[device as usize].arena;
            let offset = Bytes(arena.get().next_multiple_of(256));
            *arena = Bytes(offset.get() + buffer.bytes.get());
            setup.plan.updates.push((from, setup.plan.buffers.len() as u32));
            setup.plan.buffers.push(ExecBuffer { device, offset, ..buffer });
        }
        setup
    }

    fn program(self, setup: &Setup, emulator: &Arc<Emulator>) -> partition::Result<CudaProgram> {
        let toolchain = CpuToolchain::shared().expect("a C++ compiler");
        let timeout = self.timeout.then(|| Duration::from_millis(400));
        let options = CudaOptions { timeout, timed: self.timed, ..CudaOptions::default() };
        setup.program(emulator, &toolchain, &[Target::Gpu(0), Target::Gpu(1)], &options)
    }

    /// Kernels, launches and copies until the end of that run's steps, where nothing fails.
    fn counts(self, runs: usize) -> (u64, u64, u64) {
        let emulator = Emulator::new(Build { gpus: 2, ..Build::default() });
        let setup = self.setup();
        let mut program = self.program(&setup, &emulator).unwrap();
        for _ in 1..runs {
            program.run(&setup.inputs).unwrap();
        }
        program.feed(&setup.inputs).unwrap();
        program.step().unwrap();
        let (launches, copies) = emulator.asked_and_copied();
        (emulator.counts().1, launches, copies)
    }

    /// The error of a program's making, or of that run, under faults. None without a C++ compiler.
    fn failure(self, faults: Faults, run: usize) -> Option<(Error, Arc<Emulator>)> {
        CpuToolchain::shared()?;
        let began = Instant::now();
        let setup = self.setup();
        let emulator = Emulator::new(Build { gpus: 2, faults, ..Build::default() });
        let mut program = match self.program(&setup, &emulator) {
            Ok(program) => program,
            Err(error) => return Some((error, emulator)),
        };
        for _ in 1..run {
            program.run(&setup.inputs).unwrap();
        }
        let error = program.run(&setup.inputs).expect_err("nothing failed");
        // What failed once is not run again, and what does not end is not waited for.
        let again = program.run(&setup.inputs).unwrap_err().to_string();
        assert!(again.contains("cannot run again"), "{again}");
        if matches!(error, Error::Device { kind: FaultKind::Hung, .. }) {
            let outputs = program.outputs().unwrap_err().to_string();
            assert!(outputs.contains("cannot be read"), "{outputs}");
        }
        drop(program);
        assert_eq!(emulator.waits(), 0, "{error}");
        assert!(began.elapsed() < Duration::from_secs(60));
        Some((error, emulator))
    }
}

fn failure(faults: Faults) -> Option<(Error, Arc<Emulator>)> {
    FIRST.failure(faults, 1)
}

fn kind(error: &Error) -> FaultKind {
    match error {
        Error::Device { kind, .. } => *kind,
        other => panic!("{other}"),
    }
}

#[test]
fn a_gpu_without_memory_is_told_apart_from_a_cap() {
    let Some((error, emulator)) = failure(Faults { memory: 600, ..Faults::default() }) else { return };
    assert_eq!(kind(&error), FaultKind::OutOfMemory);
    let text = error.to_string();
    for part in
        ["device cuda0.", "for the arena, which is within the plan's cap", "of 600 B are free", "--reserve"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(emulator.held(), [""; 0]);
    let (error, emulator) = failure(Faults { host_memory: 100, ..Faults::default() }).unwrap();
    assert_eq!(kind(&error), FaultKind::OutOfHostMemory);
    assert_eq!(emulator.held(), [""; 0]);
}

#[test]
fn a_refused_launch_and_a_kernel_that_fails_name_their_step() {
    for (faults, expected) in [
        (Faults { refuse: 3, ..Faults::default() }, FaultKind::Launch),
        (Faults { fail: 3, ..Faults::default() }, FaultKind::Kernel),
    ] {
        let Some((error, emulator)) = failure(faults) else { return };
        assert_eq!(kind(&error), expected);
        let text = error.to_string();
        assert!(
            text.starts_with("step ") && text.contains(": node ") && text.contains(" on cuda0."),
            "{text}"
        );
        if expected == FaultKind::Launch {
            assert_eq!(emulator.held(), [""; 0]);
        }
    }
}

#[test]
fn code_that_cannot_be_loaded_names_the_kernel() {
    let Some((error, emulator)) = failure(Faults { image: true, ..Faults::default() }) else { return };
    assert_eq!(kind(&error), FaultKind::Image);
    let text = error.to_string();
    assert!(
        text.starts_with("kernel ") && text.contains(" on GPU ") && text.contains("PARTITION_CACHE"),
        "{text}"
    );
    assert_eq!(emulator.held(), [""; 0]);
}

/// A step by its number, node and device.
fn names_a_step(text: &str) -> bool {
    text.starts_with("step ") && text.contains(" on cuda0.") && text.contains(": node ")
}

#[test]
fn a_step_that_hangs_ends_in_time_and_is_named() {
    let Some((error, _)) = failure(Faults { hang: 3, ..Faults::default() }) else { return };
    assert_eq!(kind(&error), FaultKind::Hung);
    let text = error.to_string();
    assert!(names_a_step(&text) && text.contains("--timeout"), "{text}");
    let details = error.details();
    assert!(details.iter().any(|line| names_a_step(line) && line.ends_with(" is at work")), "{details:?}");
    assert!(details.iter().any(|line| line.ends_with(" has not begun")), "{details:?}");
}

#[test]
fn a_step_of_the_graph_that_hangs_ends_in_time_and_is_named() {
    if CpuToolchain::shared().is_none() {
        return;
    }
    let kernels = FIRST.counts(1).0;
    assert!(kernels >= 6, "{kernels}");
    for way in [FIRST, Way { timed: true, ..FIRST }] {
        for number in [1, 3, kernels] {
            let faults = Faults { hang: kernels + number, ..Faults::default() };
            let (error, emulator) = way.failure(faults, 2).unwrap();
            assert_eq!(emulator.counts().0, u64::from(!way.timed), "the graph was replayed");
            assert_eq!(kind(&error), FaultKind::Hung);
            let (text, details) = (error.to_string(), error.details());
            // Everything else went as far as it could: one step is at work.
            assert!(names_a_step(&text), "{text}");
            let working: Vec<&String> = details.iter().filter(|line| line.ends_with(" is at work")).collect();
            assert_eq!(working.len(), 1, "{details:?}");
            assert!(text.starts_with(working[0].trim_end_matches(" is at work")), "{text}: {working:?}");
        }
    }
}

#[test]
fn a_kernel_of_the_graph_that_fails_is_told_with_what_was_at_work() {
    if CpuToolchain::shared().is_none() {
        return;
    }
    let kernels = FIRST.counts(1).0;
    for timed in [false, true] {
        let faults = Faults { fail: kernels + 3, ..Faults::default() };
        let (error, _) = Way { timed, ..FIRST }.failure(faults, 2).unwrap();
        assert_eq!(kind(&error), FaultKind::Kernel);
        let (text, details) = (error.to_string(), error.details());
        assert!(text.contains("compute-sanitizer"), "{text}");
        assert!(
            details.iter().any(|line| names_a_step(line) && line.ends_with(" is at work")),
            "{details:?}"
        );
        // Steps that are not marked are not guessed.
        let (error, _) = Way { timed, timeout: false, ..FIRST }.failure(faults, 2).unwrap();
        assert_eq!(kind(&error), FaultKind::Kernel);
        assert!(error.to_string().starts_with("the run: "), "{error}");
        assert!(error.details().iter().any(|line| line.contains("--timeout")), "{:?}", error.details());
    }
}

#[test]
fn a_launch_that_is_refused_while_the_plan_is_captured_names_its_step() {
    if CpuToolchain::shared().is_none() {
        return;
    }
    let launches = FIRST.counts(1).1;
    for number in [1, 3] {
        let faults = Faults { refuse: launches + number, ..Faults::default() };
        let (error, emulator) = FIRST.failure(faults, 2).unwrap();
        assert_eq!(kind(&error), FaultKind::Launch);
        assert!(names_a_step(&error.to_string()), "{error}");
        // The capture is ended, and all is given back.
        assert_eq!(emulator.held(), [""; 0]);
    }
}

#[test]
fn an_update_and_a_beginning_that_hang_end_in_time() {
    if CpuToolchain::shared().is_none() {
        return;
    }
    let update = Way { update: true, ..FIRST };
    for (way, run) in [(update, 1), (update, 2), (Way { timed: true, ..update }, 2)] {
        // What is updated is copied last.
        let faults = Faults { hang_copy: way.counts(run).2, ..Faults::default() };
        let (error, _) = way.failure(faults, run).unwrap();
        assert_eq!(kind(&error), FaultKind::Hung);
        assert!(error.to_string().starts_with("the update of the parameters: "), "run {run}: {error}");
        assert!(error.details().iter().all(|line| line.ends_with(" done")), "{:?}", error.details());
    }
    let (error, _) = failure(Faults { hang_record: 1, ..Faults::default() }).unwrap();
    assert_eq!(kind(&error), FaultKind::Hung);
    assert!(error.to_string().starts_with("the run's beginning: "), "{error}");
    assert!(error.details().iter().all(|line| line.ends_with(" has not begun")), "{:?}", error.details());
}

#[test]
fn inputs_that_are_made_ready_beside_a_step_are_those_of_the_next() {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    for (seed, targets) in
        [(30, vec![Target::Gpu(0); 2]), (31, vec![Target::Gpu(0), Target::Cpu, Target::Gpu(1)])]
    {
        let setup = Setup::new(seed, targets.len());
        let all: Vec<_> = (0..3).map(|other| setup.with_inputs(seed + 100 * other)).collect();
        let emulator =
            Emulator::new(Build { gpus: 2, peers: false, choice: Choice::Last, ..Build::default() });
        let mut program = setup.program(&emulator, &toolchain, &targets, &CudaOptions::default()).unwrap();
        // The second of each pair is what is made ready, which the fourth step does not take.
        for (step, (now, next)) in [(0, 1), (1, 2), (2, 0), (1, 2), (2, 2), (2, 1)].into_iter().enumerate() {
            program.feed(&all[now].0).unwrap();
            program.step_beside(&all[next].0).unwrap();
            same(&program.outputs().unwrap(), &all[now].1, &format!("seed {seed}, step {step}"));
        }
        // What cannot be made ready says so when it is handed over, and does no harm to what is.
        program.step_beside(&[("nobody".to_owned(), all[0].0[0].1.clone())]).unwrap();
        program.feed(&[("nobody".to_owned(), all[0].0[0].1.clone())]).unwrap_err();
        program.feed(&all[0].0).unwrap();
        program.step().unwrap();
        same(&program.outputs().unwrap(), &all[0].1, &format!("seed {seed}, at the end"));
        drop(program);
        assert_eq!(emulator.held(), [""; 0]);
    }
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    let setup = Setup::new(4, 2);
    let emulator = Emulator::new(Build::default());
    let error = setup
        .program(&emulator, &toolchain, &[Target::Gpu(0), Target::Gpu(7)], &CudaOptions::default())
        .err()
        .unwrap();
    assert_eq!(kind(&error), FaultKind::NoDevice);
    assert!(error.to_string().contains("device cuda0.1"), "{error}");
    assert_eq!(emulator.held(), [""; 0]);
}

/// Files of the corpus on one device, on slices, on two GPUs with and without peers.
fn models(files: &[String], half: Option<DType>) {
    let Some(toolchain) = CpuToolchain::shared() else { return };
    for file in files {
        if shared::file(&format!("corpus/{file}")).is_none() {
            return;
        }
        for (spec, targets, peers) in [
            ("h200-141g", &[0][..], true),
            ("h200-141g[2x4GB]", &[0, 0], true),
            ("h200-141g[4x4GB]", &[0, 0, 0, 0], true),
            ("2xh200-141g", &[0, 1], true),
            ("2xh200-141g", &[0, 1], false),
        ] {
            let choice = Choice::Random(targets.len() as u64);
            let emulator = Emulator::new(Build { gpus: 2, peers, choice, ..Build::default() });
            let targets: Vec<Target> = targets.iter().map(|&gpu| Target::Gpu(gpu)).collect();
            let outcome = model(&emulator.machine(&toolchain), file, spec, &targets, half);
            let ran = outcome == Outcome::Near;
            assert!(ran || targets.len() > 1 && outcome == Outcome::Whole, "{file} on {spec}: {outcome:?}");
            assert_eq!(emulator.counts().0, u64::from(ran), "{file} on {spec}: the second run is the graph");
            assert_eq!(emulator.held(), [""; 0], "{file} on {spec}");
        }
    }
}

/// A network in training on one GPU, on slices of one, and on two; after a checkpoint it goes on, on the CPU.
#[test]
fn training_on_slices_and_gpus_gives_what_the_cpu_gives() {
    use partition::unstable::run::Gpus;
    use partition::unstable::train::{Loss, Options, Trainer};
    let Some(toolchain) = CpuToolchain::shared() else { return };
    let network = || crate::train::network(4);
    let trainer = |spec: &str, gpus: Gpus| {
        let mut options = Options::new(Loss::MeanSquared);
        options.recipe.updates = "adam".parse().unwrap();
        options.rate.base = 0.05;
        options.seed = 7;
        options.gpus = gpus;
        options.compile.place.devices = partition::unstable::place::DeviceUse::All;
        Trainer::new(network(), &partition::unstable::topology::Topology::parse(spec).unwrap(), &options)
            .unwrap()
    };
    let mut reference = trainer("cpu", Gpus::default());
    let losses: Vec<f64> =
        (0..4).map(|step| reference.step(&crate::train::batch(step)).unwrap().loss).collect();
    for (spec, gpus) in [("cuda:memory=1MB", 1), ("cuda[3x1MB]", 1), ("2xcuda:memory=1MB", 2)] {
        let emulator = Emulator::new(Build {
            gpus,
            library: if gpus == 1 { Library::WHOLE } else { Library::None },
            ..Build::default()
        });
        let mut own = trainer(spec, Gpus::of(emulator.machine(&toolchain)));
        // The batch after the one that is under way is made ready beside it.
        assert_eq!(own.ahead(), 2);
        own.begin(&crate::train::batch(0)).unwrap();
        for (step, expected) in losses.iter().enumerate() {
            own.begin(&crate::train::batch(step as u64 + 1)).unwrap();
            let loss = own.finish().unwrap().loss;
            assert!((loss - expected).abs() <= 1e-5 * expected.abs(), "{spec}: {loss}, {expected}");
        }
        assert!(emulator.counts().0 >= 3 && emulator.counts().1 > 0, "{spec}: {:?}", emulator.counts());
        let (found, expected) = (own.weights().unwrap(), reference.weights().unwrap());
        same(&found, &expected, spec);
        drop(own);
        assert_eq!(emulator.held(), [""; 0], "{spec}");
    }
}

#[test]
fn some_small_models_on_slices_and_gpus_give_what_is_stored() {
    models(&["onnx/tract_deconv_group.onnx", "keras/mlp_small.k2.json"].map(Into::into), None);
}

fn small_models_of_more_kinds_on_slices_and_gpus_give_what_is_stored() {
    models(&["onnx/s_lstm.onnx", "keras/siamese_multi_io.k3.json"].map(Into::into), None);
}

fn small_models_in_halves_on_slices_and_gpus_are_near_what_is_stored() {
    models(&["onnx/s_lstm.onnx".into()], Some(DType::F16));
    models(&["keras/mlp_small.k3.json".into()], Some(DType::Bf16));
}

#[test]
#[ignore = "minutes: cargo test --test suite cuda_run::every_small_model -- --ignored"]
fn every_small_model_on_slices_and_gpus_gives_what_is_stored() {
    for half in [None, Some(DType::Bf16), Some(DType::F16)] {
        models(&crate::gpu::small_models(), half);
    }
}
