//! Every operation with each of its operands as an input of the network, a parameter, a constant and
//! another node's result, through the whole pipeline, against the f64 reference. What a program does
//! with an operand depends on what that is: parameters lie packed, constants fold, results fuse.

use std::collections::BTreeMap;

use partition::unstable::compile::{Options, compile};
use partition::unstable::ir::{DType, Graph, Init, Op, Source, SourceId, SourceRole, Tensor, Unary, ValueId};
use partition::unstable::load::Model;
use partition::unstable::place::DeviceUse;
use partition::unstable::run::{ExecOptions, Program, exec_plan};
use partition::unstable::topology::Topology;

use crate::kernels::{Case, cases};
use crate::networks::Network;
use crate::reference::{Array, evaluate};
use crate::run_ops::{self, GENERATORS, decode, encode, tolerance, ty};
use crate::shared;
use crate::sweep::Share;

/// What an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Input,
    Param,
    Constant,
    /// The result of an operation of elements, which may join the group of its reader.
    Computed,
    /// The result of a lookup, which lies in a buffer.
    Moved,
}

const ROLES: [Role; 5] = [Role::Input, Role::Param, Role::Constant, Role::Computed, Role::Moved];

/// Roles of an operation's operands: all combinations of two, of more each operand in each role beside
/// inputs, and all of them in one role.
fn combinations(count: usize) -> Vec<Vec<Role>> {
    match count {
        0 => vec![],
        1 => ROLES.map(|role| vec![role]).to_vec(),
        2 => ROLES.iter().flat_map(|&x| ROLES.map(|y| vec![x, y])).collect(),
        _ => {
            let mut all: Vec<Vec<Role>> = ROLES.map(|role| vec![role; count]).to_vec();
            for position in 0..count {
                for role in &ROLES[1..] {
                    let mut roles = vec![Role::Input; count];
                    roles[position] = *role;
                    all.push(roles);
                }
            }
            all
        }
    }
}

fn tensor(array: &Array) -> Tensor {
    let dims = array.dims.iter().map(|&dim| dim as u64).collect();
    Tensor::new(array.dtype, dims, encode(array)).unwrap()
}

/// Operations in one network, each in several combinations of roles.
struct Bundle {
    graph: Graph,
    source: SourceId,
    inputs: Vec<(String, Tensor)>,
    params: BTreeMap<String, Tensor>,
    /// By output of the graph: what it is expected to be, and of what.
    expected: Vec<(Array, String)>,
}

impl Bundle {
    fn new() -> Self {
        let mut graph = Graph::new("roles");
        let source = graph.add_source(Source::new("case", "Case", SourceRole::Node));
        Self { graph, source, inputs: vec![], params: BTreeMap::new(), expected: vec![] }
    }

    fn input(&mut self, array: &Array) -> ValueId {
        let name = format!("x{}", self.inputs.len());
        self.inputs.push((name.clone(), tensor(array)));
        self.graph.add_input(name, ty(array), self.source)
    }

    fn apply(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        self.graph.apply(op, operands, self.source).unwrap()
    }

    fn computed(&mut self, array: &Array) -> ValueId {
        let other = |dtype, change: &dyn Fn(f64) -> f64| {
            Array::new(dtype, &array.dims, array.data.iter().map(|&x| change(x)).collect())
        };
        match array.dtype {
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => {
                let wide = self.input(&other(DType::I64, &|x| x));
                self.apply(Op::Convert { to: array.dtype }, &[wide])
            }
            DType::Bool => {
                let opposite = self.input(&other(DType::Bool, &|x| 1.0 - x));
                self.apply(Op::Unary(Unary::Not), &[opposite])
            }
            dtype => {
                let opposite = self.input(&other(dtype, &|x| -x));
                self.apply(Op::Unary(Unary::Neg), &[opposite])
            }
        }
    }

    fn operand(&mut self, array: &Array, role: Role) -> ValueId {
        match role {
            Role::Input => self.input(array),
            Role::Param => {
                let name = format!("w{}", self.params.len());
                self.params.insert(name.clone(), tensor(array));
                self.graph.add_param(name, ty(array), Init::ones(), None, self.source)
            }
            Role::Constant => self.graph.add_constant(tensor(array), self.source),
            Role::Moved if !array.dims.is_empty() => {
                let rows =
                    Array::new(DType::I64, &array.dims[..1], (0..array.dims[0]).map(|i| i as f64).collect());
                let (data, rows) = (self.input(array), self.input(&rows));
                self.apply(Op::Gather { axis: 0 }, &[data, rows])
            }
            Role::Moved | Role::Computed => self.computed(array),
        }
    }

    fn add(&mut self, case: &Case) {
        let expected = evaluate(&case.op, &case.operands, &case.shapes());
        for roles in combinations(case.operands.len()) {
            let operands: Vec<ValueId> =
                case.operands.iter().zip(&roles).map(|(array, &role)| self.operand(array, role)).collect();
            let node = self.graph.push(case.op.clone(), &operands, self.source).unwrap();
            let results: Vec<ValueId> = self.graph.results(node).collect();
            for (value, expected) in results.into_iter().zip(&expected) {
                self.graph.add_output(format!("y{}", self.expected.len()), value);
                let sizes: Vec<_> = case.operands.iter().map(|array| (&array.dims, array.dtype)).collect();
                self.expected.push((expected.clone(), format!("{:?} on {sizes:?} as {roles:?}", case.op)));
            }
        }
    }

    /// Plans, runs and compares; how many results.
    fn check(mut self) -> usize {
        self.graph.record_consumers();
        let topology = Topology::parse("cpu").unwrap();
        let compiled = compile(Model::Graph(self.graph), &topology, &Options::default()).unwrap();
        let network = compiled.network.as_ref().unwrap();
        let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping).unwrap();
        let weights = |id| Ok(self.params[&network.graph.param(id).name].clone());
        let groups = network.grouping.all_fused();
        let mut program =
            Program::new(&network.graph, &groups, &exec, &weights, ExecOptions::default()).unwrap();
        let inputs: Vec<(String, Tensor)> = self
            .inputs
            .into_iter()
            .filter(|(name, _)| network.graph.inputs().iter().any(|(own, _)| own == name))
            .collect();
        let (found, _) = program.run(&inputs).unwrap();
        assert_eq!(found.len(), self.expected.len());
        for ((_, found), (expected, what)) in found.iter().zip(&self.expected) {
            compare(found, expected, what);
        }
        // What lies packed is the parameter that it was.
        for (name, expected) in &self.params {
            let found = program.param(name).unwrap();
            assert!(found.is_none_or(|found| found == *expected), "{name}");
        }
        found.len()
    }
}

fn compare(found: &Tensor, expected: &Array, what: &str) {
    assert_eq!(found.dtype(), expected.dtype, "{what}");
    let found = decode(found.dtype(), found.bytes());
    assert_eq!(found.len(), expected.data.len(), "{what}");
    let (relative, absolute) = tolerance(expected.dtype);
    for (i, (&a, &b)) in found.iter().zip(&expected.data).enumerate() {
        let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= absolute + relative * b.abs();
        assert!(same, "{what}: element {i} is {a}, expected {b}");
    }
}

/// Results in one network, about.
const MANY: usize = 400;

/// Checks cases of each of these generators.
fn check(generators: impl Iterator<Item = fn()>, share: Share) {
    let mut checked = 0;
    for generator in generators {
        let mut bundle = Bundle::new();
        for case in share.among(cases(generator)) {
            bundle.add(&case);
            if bundle.expected.len() >= MANY {
                checked += std::mem::replace(&mut bundle, Bundle::new()).check();
            }
        }
        if !bundle.expected.is_empty() {
            checked += bundle.check();
        }
    }
    assert!(checked > share.least(1000), "{checked}");
}

/// Every third generator of operations from one on.
fn third(first: usize) -> impl Iterator<Item = fn()> {
    let more: [fn(); 3] = [
        run_ops::convolutions_of_many_channels,
        run_ops::reductions_of_several_parts,
        run_ops::products_of_many_columns,
    ];
    GENERATORS.iter().copied().chain(more).skip(first).step_by(3)
}

sweep! {
    operands_of_a_first_third_of_operations_in_every_role: one of 15;
    operands_of_a_second_third_of_operations_in_every_role: one of 15;
    operands_of_the_last_third_of_operations_in_every_role: one of 15;
}

fn operands_of_a_first_third_of_operations_in_every_role(share: Share) {
    check(third(0), share);
}

fn operands_of_a_second_third_of_operations_in_every_role(share: Share) {
    check(third(1), share);
}

fn operands_of_the_last_third_of_operations_in_every_role(share: Share) {
    check(third(2), share);
}

/// Files that exporters wrote, with onnxruntime's outputs.
#[test]
fn batches_of_constant_matrices_are_multiplied_each() {
    for name in ["batched_matmul_const_2x11x11", "moe_bmm"] {
        let Some(path) = shared::file(&format!("corpus/exports/{name}.onnx")) else { return };
        let network = Network::open(&path).unwrap();
        for spec in ["cpu", "2xcpu"] {
            let outputs = network.run(&network.plan(spec, DeviceUse::Auto).unwrap()).unwrap();
            let distance = network.distance(&outputs, 0.0).unwrap();
            assert!(distance.values > 20 && distance.relative <= 1.0, "{name} on {spec}: {distance:?}");
        }
    }
}
