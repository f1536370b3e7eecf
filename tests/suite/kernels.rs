//! Kernel programs: every operation is lowered, and the programs, evaluated, give what the reference
//! gives.

use std::cell::RefCell;
use std::collections::BTreeMap;

use partition::unstable::compile::{Options, prepare};
use partition::unstable::emit;
use partition::unstable::ir::{DType, Graph, Op, Source, SourceRole, Type, ValueId};
use partition::unstable::kernel::Grouping;
use partition::unstable::kernel::program::{self, Place, Program};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::pass::{GroupOptions, Params, Precision, group};

use crate::reference::{self, Array};
use crate::run_ops::{GENERATORS, tolerance, ty};
use crate::shared;

/// An operation on operands, as the tests of the CPU's kernels make them up.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) op: Op,
    pub(crate) operands: Vec<Array>,
    pub(crate) results: Vec<Type>,
}

thread_local! {
    static CASES: RefCell<Option<Vec<Case>>> = const { RefCell::new(None) };
}

/// True where cases are collected rather than run.
pub(crate) fn collects(op: &Op, operands: &[Array], results: &[Type]) -> bool {
    CASES.with_borrow_mut(|cases| {
        let Some(cases) = cases else { return false };
        cases.push(Case { op: op.clone(), operands: operands.to_vec(), results: results.to_vec() });
        true
    })
}

/// The cases of one test of the CPU's kernels.
pub(crate) fn cases(generator: fn()) -> Vec<Case> {
    CASES.set(Some(Vec::new()));
    generator();
    CASES.take().unwrap_or_default()
}

impl Case {
    /// The graph of the operation alone.
    pub(crate) fn graph(&self) -> Graph {
        let mut graph = Graph::new("case");
        self.add_to(&mut graph, "");
        graph
    }

    /// Adds the operation to a graph: inputs `x0` and on, outputs `y0` and on, behind the prefix.
    pub(crate) fn add_to(&self, graph: &mut Graph, prefix: &str) {
        let source = graph.add_source(Source::new(format!("{prefix}case"), self.op.name(), SourceRole::Node));
        let operands: Vec<ValueId> = self
            .operands
            .iter()
            .enumerate()
            .map(|(position, array)| graph.add_input(format!("{prefix}x{position}"), ty(array), source))
            .collect();
        match &self.op {
            Op::Iota { axis } => {
                let value = graph.add_iota(self.results[0].clone(), *axis, source);
                graph.add_output(format!("{prefix}y0"), value);
            }
            Op::Sizes(sizes) => {
                let value = graph.add_sizes(sizes.to_vec(), self.results[0].shape.rank() == 0, source);
                graph.add_output(format!("{prefix}y0"), value);
            }
            op => {
                let node = graph.push(op.clone(), &operands, source).unwrap();
                for (position, value) in graph.results(node).collect::<Vec<_>>().into_iter().enumerate() {
                    graph.add_output(format!("{prefix}y{position}"), value);
                }
            }
        }
    }

    pub(crate) fn shapes(&self) -> Vec<(DType, Vec<usize>)> {
        let dims = |ty: &Type| ty.shape.dims().unwrap().iter().map(|&dim| dim as usize).collect();
        self.results.iter().map(|ty| (ty.dtype, dims(ty))).collect()
    }

    /// About how much work the evaluation of the programs is.
    pub(crate) fn work(&self) -> usize {
        let most = self.operands.iter().map(|array| array.data.len()).max().unwrap_or(1);
        let results: usize = self.shapes().iter().map(|(_, dims)| dims.iter().product::<usize>()).sum();
        match self.op {
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Convert { .. } => results,
            _ => most.max(results),
        }
    }
}

fn array(dtype: DType, data: &[f64]) -> program::Array {
    match dtype.is_float() {
        true => program::Array::Real(data.to_vec()),
        false => program::Array::Whole(data.iter().map(|&x| x as i64).collect()),
    }
}

/// What lies in the places of a group, as programs run one after the other.
#[derive(Default)]
pub(crate) struct Memory(BTreeMap<(Place, bool), program::Array>);

impl Memory {
    pub(crate) fn set(&mut self, place: Place, array: program::Array) {
        self.0.insert((place, matches!(array, program::Array::Real(_))), array);
    }

    pub(crate) fn get(&self, place: Place, dtype: DType) -> Option<&program::Array> {
        self.0.get(&(place, dtype.is_float()))
    }

    /// Evaluates a program.
    pub(crate) fn run(&mut self, program: &Program) {
        let mut args: Vec<program::Array> = program
            .args
            .iter()
            .map(|arg| match self.get(arg.place, arg.dtype) {
                Some(array) => array.clone(),
                None => program::Array::zeros(arg.dtype, arg.elements as usize),
            })
            .collect();
        program::evaluate(program, &mut args).unwrap_or_else(|error| panic!("{error}\n{program}"));
        for (arg, array) in program.args.iter().zip(args) {
            if arg.written {
                self.set(arg.place, array);
            }
        }
    }
}

/// The programs of the only group of a graph of one node; none where it is a view.
pub(crate) fn lowered(graph: &Graph, grouping: &Grouping) -> Vec<Program> {
    grouping.all_fused().iter().flat_map(|fused| program::lower(graph, fused).unwrap()).collect()
}

/// The models of the corpus that GPUs, and the emulated driver, run as plans.
pub(crate) const SMALL_MODELS: [&str; 12] = [
    "s_autoencoder_convt",
    "s_bert",
    "s_gpt2",
    "s_llama",
    "s_lstm",
    "s_mixtral",
    "s_mobilenet_v2",
    "s_resnet_hf",
    "s_sd_unet",
    "s_t5_encoder",
    "s_vit",
    "tract_deconv_group",
];

/// Small networks of Keras in the corpus that have stored outputs, each as Keras 2 and 3 write it.
pub(crate) const SMALL_KERAS: [&str; 5] =
    ["cnn_small", "gru_conv1d_small", "mlp_small", "siamese_multi_io", "transformer_small"];

/// The programs of a model of the corpus; none where it is not there.
pub(crate) fn model_programs(relative: &str) -> Vec<Program> {
    shared::file(relative).map_or_else(Vec::new, |path| file_programs(&path))
}

/// The programs of a training step of a transformer block.
pub(crate) fn step_programs() -> Vec<Program> {
    let network = crate::kernel_counts::block_step();
    lowered(&network.graph, &network.grouping)
}

/// The programs of a model of the corpus that is computed in halves.
pub(crate) fn half_programs(relative: &str, half: DType) -> Vec<Program> {
    let precision = Some(Precision { half, params: Params::Rounded });
    let options = Options { precision, ..Options::default() };
    shared::file(relative).map_or_else(Vec::new, |path| programs_with(&path, &options))
}

/// The programs of a model.
pub(crate) fn file_programs(path: &std::path::Path) -> Vec<Program> {
    programs_with(path, &Options::default())
}

fn programs_with(path: &std::path::Path, options: &Options) -> Vec<Program> {
    let bytes = std::fs::read(path).unwrap();
    let Model::Graph(graph) = load(&bytes, Some(path), &LoadOptions::default()).unwrap() else {
        panic!("{} is a cost graph", path.display())
    };
    let network = prepare(graph, options).unwrap();
    lowered(&network.graph, &network.grouping)
}

fn evaluated(case: &Case) -> Option<Vec<Vec<f64>>> {
    let graph = case.graph();
    let grouping = group(&graph, &GroupOptions::default());
    let one = grouping.groups.first()?;
    let mut memory = Memory::default();
    for (position, &read) in one.reads.iter().enumerate() {
        let operand = graph.inputs().iter().position(|(_, value)| *value == read).unwrap();
        let operand = &case.operands[operand];
        memory.set(Place::Read(position as u32), array(operand.dtype, &operand.data));
    }
    for program in lowered(&graph, &grouping) {
        memory.run(&program);
    }
    let results = graph.outputs().iter().map(|(_, value)| {
        let position = one.writes.iter().position(|write| write == value).unwrap();
        match memory.get(Place::Write(position as u32), graph.ty(*value).dtype) {
            Some(program::Array::Real(list)) => list.clone(),
            Some(program::Array::Whole(list)) => list.iter().map(|&x| x as f64).collect(),
            None => vec![],
        }
    });
    Some(results.collect())
}

#[test]
fn programs_of_every_operation_give_what_the_reference_gives() {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    for &generator in GENERATORS {
        for case in cases(generator).into_iter().filter(|case| case.work() <= 1500) {
            let count = seen.entry(case.op.name()).or_default();
            *count += 1;
            if *count % 8 != 1 {
                continue;
            }
            let Some(found) = evaluated(&case) else { continue };
            let expected = reference::evaluate(&case.op, &case.operands, &case.shapes());
            for (found, expected) in found.iter().zip(&expected) {
                // Intermediate results are not rounded: only integers and f32 conversions differ.
                let (relative, absolute) = match case.op {
                    Op::Convert { .. } => tolerance(expected.dtype),
                    _ => (1e-9, 1e-9),
                };
                for (i, (&a, &b)) in found.iter().zip(&expected.data).enumerate() {
                    let same =
                        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= absolute + relative * b.abs();
                    let programs = || {
                        let graph = case.graph();
                        let grouping = group(&graph, &GroupOptions::default());
                        lowered(&graph, &grouping).iter().map(ToString::to_string).collect::<String>()
                    };
                    assert!(same, "{:?}: element {i} is {a}, expected {b}\n{}", case.op, programs());
                }
                assert_eq!(found.len(), expected.data.len());
            }
        }
    }
    assert!(seen.len() > 65, "{seen:?}");
}

/// A graph's groups as programs and as CUDA C.
pub(crate) fn printed(graph: &Graph) -> String {
    let grouping = group(graph, &GroupOptions::default());
    let kernels = lowered(graph, &grouping).into_iter().map(|program| {
        let kernel = emit::kernel(&program).unwrap().unwrap();
        format!("{program}\n{:?}\n{}\n", kernel.launch, kernel.text)
    });
    kernels.collect()
}
