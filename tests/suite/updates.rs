//! Operations that update elements of what they read: where nothing else reads that, the result lies in its place, on
//! the CPU and on GPUs, with the same bits.

use partition::Control;
use partition::unstable::compile::{Compiled, Options, compile};
use partition::unstable::ir::{
    Binary, DType, Graph, Init, Op, ParamId, Phase, ScatterKind, Shape, Source, SourceId, SourceRole, Tensor,
    Type, Unary, ValueId,
};
use partition::unstable::load::Model;
use partition::unstable::pass::{Params, Precision};
use partition::unstable::plan::{Action, Buffer, BufferKind, Plan};
use partition::unstable::run::cuda::{CudaOptions, CudaProgram, Target};
use partition::unstable::run::{ExecOptions, Program, exec_plan, interpret};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Loss, dry_run};

use crate::emulator::{Build, CpuToolchain, Emulator};

const ROWS: i64 = 40;
const COLUMNS: i64 = 24;

fn ty(dtype: DType, dims: &[i64]) -> Type {
    Type::new(dtype, Shape::known(dims))
}

/// Rows that an operation of elements makes, and an update of some of them; whether both are results.
fn updated(op: &Op, both: bool) -> Graph {
    let mut graph = Graph::new("updated");
    let source =
        |graph: &mut Graph, name: &str| graph.add_source(Source::new(name, "Node", SourceRole::Node));
    let [data, update] = ["data", "update"].map(|name| source(&mut graph, name));
    let x = graph.add_input("x", ty(DType::F32, &[ROWS, COLUMNS]), data);
    let dims: &[i64] = if matches!(op, Op::ScatterNd { .. }) { &[7, 1] } else { &[7, COLUMNS] };
    let rows = graph.add_input("rows", ty(DType::I64, dims), data);
    let updates = graph.add_input("updates", ty(DType::F32, &[7, COLUMNS]), data);
    let made = graph.apply(Op::Unary(Unary::Tanh), &[x], data).unwrap();
    let result = graph.apply(op.clone(), &[made, rows, updates], update).unwrap();
    graph.add_output("y", result);
    if both {
        graph.add_output("made", made);
    }
    graph.record_consumers();
    graph
}

/// Rows that are named twice, from the end, and not at all.
fn inputs(graph: &Graph) -> Vec<(String, Tensor)> {
    let tensor = |(name, value): &(String, _)| {
        let ty = graph.ty(*value);
        let dims: Vec<u64> = ty.shape.dims().unwrap().iter().map(|&dim| dim as u64).collect();
        let count = dims.iter().product::<u64>();
        let bytes: Vec<u8> = match ty.dtype {
            DType::I64 => {
                let row = |i: u64| (i / (count / 7) * 5 % 13) as i64 - 3;
                (0..count).flat_map(|i| row(i).to_ne_bytes()).collect()
            }
            _ => (0..count).flat_map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0).to_ne_bytes()).collect(),
        };
        (name.clone(), Tensor::new(ty.dtype, dims, bytes).unwrap())
    };
    graph.inputs().iter().map(tensor).collect()
}

/// Whether the launch of this node writes where it reads.
fn in_place(plan: &Plan, node: &str) -> bool {
    let offset = |id: &String| plan.buffers.iter().find(|buffer| buffer.id == *id).unwrap().offset;
    let launch = plan.steps.iter().find_map(|step| match &step.action {
        Action::Launch(launch) if launch.nodes.iter().any(|name| name == node) => Some(launch),
        _ => None,
    });
    let launch = launch.unwrap_or_else(|| panic!("{node} is not launched"));
    let writes: Vec<_> = launch.writes.iter().map(offset).collect();
    launch.reads.iter().any(|read| writes.contains(&offset(read)))
}

pub(crate) fn ran(compiled: &Compiled, inputs: &[(String, Tensor)], what: &str) -> Vec<(String, Tensor)> {
    let network = compiled.network.as_ref().unwrap();
    let (graph, groups) = (&network.graph, network.grouping.all_fused());
    let exec = exec_plan(&compiled.plan, graph, &network.grouping).unwrap();
    let weights = |_: ParamId| unreachable!("there are no parameters");
    let mut program = Program::new(graph, &groups, &exec, &weights, ExecOptions::default()).unwrap();
    let (first, _) = program.run(inputs).unwrap();
    assert_eq!(program.run(inputs).unwrap().0, first, "{what}: another step gives other bits");
    let Some(toolchain) = CpuToolchain::shared() else { return first };
    let emulator = Emulator::new(Build::default());
    let machine = emulator.machine(&toolchain);
    let (targets, options) = ([Target::Gpu(0)], CudaOptions::default());
    let mut program =
        CudaProgram::new(&machine, graph, &groups, &exec, &targets, &weights, &options).unwrap();
    for _ in 0..2 {
        for ((name, on_gpu), (_, on_cpu)) in program.run(inputs).unwrap().0.iter().zip(&first) {
            for (a, b) in on_gpu.to_f64().into_iter().zip(on_cpu.to_f64()) {
                assert!((a - b).abs() <= 1e-5, "{what}: {name} is {a} on a GPU, {b} on the CPU");
            }
        }
    }
    first
}

#[test]
fn updates_are_made_where_what_they_update_lies() {
    for kind in [ScatterKind::Add, ScatterKind::Max, ScatterKind::Replace] {
        for op in [Op::ScatterNd { kind }, Op::ScatterElements { axis: 0, kind }] {
            for both in [false, true] {
                let what = format!("{op:?}, what it updates is a result: {both}");
                let graph = updated(&op, both);
                let inputs = inputs(&graph);
                let expected = interpret(&graph, &inputs, &|_| unreachable!("no parameters")).unwrap();
                let topology = Topology::parse("cpu").unwrap();
                let compiled = compile(Model::Graph(graph), &topology, &Options::default()).unwrap();
                assert_eq!(in_place(&compiled.plan, "update"), !both, "{what}");
                assert!(ran(&compiled, &inputs, &what) == expected, "{what}: other bits");
            }
        }
    }
}

/// A step of descent by this gradient, which `gradient` makes of inputs that it adds.
fn descent(dims: &[i64], gradient: impl FnOnce(&mut Graph, SourceId) -> ValueId) -> Graph {
    let mut graph = Graph::new("descent");
    let data = graph.add_source(Source::new("weight", "Node", SourceRole::Data));
    let layer = Source { phase: Phase::Backward, ..Source::new("layer", "Node", SourceRole::Node) };
    let layer = graph.add_source(layer);
    let weight = graph.add_param("weight", ty(DType::F32, dims), Init::ones(), None, data);
    let rate = graph.add_param("rate", ty(DType::F32, &[]), Init::ones(), None, data);
    let gradient = gradient(&mut graph, layer);
    let update = Source { phase: Phase::Update, ..Source::new("update", "Node", SourceRole::Node) };
    let update = graph.add_source(update);
    let step = graph.apply(Op::Binary(Binary::Mul), &[gradient, rate], update).unwrap();
    let new = graph.apply(Op::Binary(Binary::Sub), &[weight, step], update).unwrap();
    let Op::Param(id) = graph.maker(weight).op else { unreachable!() };
    graph.update_param(id, new).unwrap();
    graph.record_consumers();
    graph
}

/// The gradient of a table of which rows were looked up.
fn of_table(graph: &mut Graph, layer: SourceId) -> ValueId {
    let rows = graph.add_input("rows", ty(DType::I64, &[7, 1]), layer);
    let updates = graph.add_input("updates", ty(DType::F32, &[7, COLUMNS]), layer);
    let zero = graph.add_constant(Tensor::from_f32(vec![], &[0.0]).unwrap(), layer);
    let shape = Shape::known(&[ROWS, COLUMNS]);
    let zeros = graph.apply(Op::Broadcast { shape }, &[zero], layer).unwrap();
    graph.apply(Op::ScatterNd { kind: ScatterKind::Add }, &[zeros, rows, updates], layer).unwrap()
}

/// The gradient of a matrix that halves were multiplied with.
fn of_product(graph: &mut Graph, layer: SourceId, half: DType, samples: i64) -> ValueId {
    let halves = [("x", ROWS), ("dy", COLUMNS)].map(|(name, size)| {
        let input = graph.add_input(name, ty(DType::F32, &[samples, size]), layer);
        graph.apply(Op::Convert { to: half }, &[input], layer).unwrap()
    });
    let product = Op::MatMul { transpose_left: true, transpose_right: false, wide: true, rounds: false };
    graph.apply(product, &halves, layer).unwrap()
}

long! {
    a_weight_is_updated_where_it_lies_and_its_gradient_is_nowhere;
}

fn a_weight_is_updated_where_it_lies_and_its_gradient_is_nowhere() {
    let dims = [ROWS, COLUMNS];
    let products = [DType::Bf16, DType::F16].into_iter().flat_map(|half| {
        let of = move |samples| descent(&dims, |graph, layer| of_product(graph, layer, half, samples));
        [1, 9, 300].into_iter().map(move |samples| (format!("{half}, {samples} samples"), of(samples)))
    });
    for (what, graph) in products.chain([("a table".to_owned(), descent(&dims, of_table))]) {
        let inputs = inputs(&graph);
        let weights = |id: ParamId| {
            let ty = graph.ty(graph.node(graph.param(id).node).first_result);
            let count = ty.elements().unwrap();
            let numbers: Vec<f32> = (0..count).map(|i| (i * 29 % 83) as f32 / 40.0 - 0.7).collect();
            let dims = ty.shape.dims().unwrap().iter().map(|&dim| dim as u64).collect();
            Ok(Tensor::from_f32(dims, &numbers).unwrap())
        };
        let expected = interpret(&graph, &inputs, &weights).unwrap().remove(0).1;
        let topology = Topology::parse("cpu").unwrap();
        let compiled = compile(Model::Graph(graph.clone()), &topology, &Options::default()).unwrap();
        assert!(in_place(&compiled.plan, "update"), "{what}");
        let made = (ROWS * COLUMNS) as u64;
        let as_many = |buffer: &&Buffer| buffer.kind == BufferKind::Temp && buffer.bytes.get() >= 2 * made;
        let whole = compiled.plan.buffers.iter().find(as_many);
        assert!(what.contains("300") || whole.is_none(), "{what}: {whole:?}");

        let network = compiled.network.as_ref().unwrap();
        let (graph, groups) = (&network.graph, network.grouping.all_fused());
        let exec = exec_plan(&compiled.plan, graph, &network.grouping).unwrap();
        let mut program = Program::new(graph, &groups, &exec, &weights, ExecOptions::default()).unwrap();
        program.run(&inputs).unwrap();
        assert!(program.param("weight").unwrap() == Some(expected.clone()), "{what}: other bits");
        let Some(toolchain) = CpuToolchain::shared() else { continue };
        let emulator = Emulator::new(Build::default());
        let machine = emulator.machine(&toolchain);
        let (targets, options) = ([Target::Gpu(0)], CudaOptions::default());
        let mut program =
            CudaProgram::new(&machine, graph, &groups, &exec, &targets, &weights, &options).unwrap();
        program.run(&inputs).unwrap();
        let found = program.param("weight").unwrap().unwrap();
        for (a, b) in found.to_f64().into_iter().zip(expected.to_f64()) {
            assert!((a - b).abs() <= 1e-4, "{what}: {a} on a GPU, {b} on the CPU");
        }
    }
}

/// A network that looks up rows of a table trains with the table and little beside it.
#[test]
fn the_gradient_of_a_table_is_nowhere_as_a_whole() {
    for precision in [None, Some(Precision { half: DType::Bf16, params: Params::Kept })] {
        let mut graph = Graph::new("table");
        let [data, layer] = [("ids", SourceRole::Data), ("table", SourceRole::Node)]
            .map(|(name, role)| graph.add_source(Source::new(name, "Embedding", role)));
        let ids = graph.add_input("ids", ty(DType::I64, &[8]), data);
        let table = graph.add_param("table", ty(DType::F32, &[1000, 64]), Init::ones(), None, layer);
        let rows = graph.apply(Op::Gather { axis: 0 }, &[table, ids], layer).unwrap();
        graph.add_output("y", rows);
        graph.record_consumers();
        let mut options = partition::unstable::train::Options::new(Loss::MeanSquared);
        options.compile.precision = precision;
        let made = dry_run(graph, &Topology::parse("cpu").unwrap(), &options, &Control::default()).unwrap();
        let (peak, table) = (made.compiled.plan.devices[0].peak.get(), 1000 * 64 * 4);
        assert!((table..table + table / 8).contains(&peak), "{peak} bytes, {precision:?}");
    }
}
