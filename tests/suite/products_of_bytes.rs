//! Products of bytes, signed or not, with and without zero points: sums of 32 bits, exact.

use std::collections::BTreeMap;

use partition::unstable::compile::{Options, compile, prepare};
use partition::unstable::ir::{
    Binary, DType, Graph, Init, Op, ParamId, Source, SourceId, SourceRole, Tensor, ValueId, infer,
};
use partition::unstable::load::Model;
use partition::unstable::place::{self, DeviceUse};
use partition::unstable::run::{ExecOptions, Program, exec_plan, interpret};
use partition::unstable::topology::Topology;

use crate::reference::{Array, evaluate};
use crate::run_ops::{Random, broadcasting, check, encode, ty};

const BYTES: [DType; 2] = [DType::I8, DType::U8];

/// Bytes over all of their range.
fn bytes(random: &mut Random, dtype: DType, dims: &[usize]) -> Array {
    // Negative ones are made of their opposites, too.
    let (low, high) = if dtype == DType::I8 { (-127, 127) } else { (0, 255) };
    let data = (0..dims.iter().product::<usize>()).map(|_| random.range(low, high) as f64).collect();
    Array::new(dtype, dims, data)
}

/// A product and its operands, of sizes up to these.
fn product(random: &mut Random, most: [usize; 3]) -> (Op, Vec<Array>) {
    let batch = if random.flag() { vec![vec![]; 2] } else { broadcasting(random, 2, 2) };
    let size = |random: &mut Random, most| if random.range(0, 30) == 0 { 0 } else { random.size(1, most) };
    let [m, n, k] = most.map(|most| size(random, most));
    let (transpose_left, transpose_right) = (random.flag(), random.flag());
    let a = if transpose_left { [k, m] } else { [m, k] };
    let b = if transpose_right { [n, k] } else { [k, n] };
    let dtypes = [0, 1].map(|_| *random.pick(&BYTES));
    let mut operands = vec![
        bytes(random, dtypes[0], &[&batch[0][..], &a].concat()),
        bytes(random, dtypes[1], &[&batch[1][..], &b].concat()),
    ];
    if random.flag() {
        for (dtype, each) in dtypes.into_iter().zip([&[m, 1][..], &[n]]) {
            let dims = if random.flag() { each } else { &[] };
            operands.push(bytes(random, dtype, dims));
        }
    }
    (Op::MatMul { transpose_left, transpose_right, wide: true, rounds: false }, operands)
}

/// Sizes at which most that is done differently begins and ends.
const MOST: [[usize; 3]; 3] = [[8, 9, 9], [3, 70, 21], [70, 11, 13]];

#[test]
pub(crate) fn products_of_bytes() {
    let mut random = Random::new(47);
    for most in MOST.into_iter().flat_map(|most| [most; 30]) {
        let (op, operands) = product(&mut random, most);
        check(&op, &operands);
    }
}

#[test]
fn products_of_bytes_of_many_terms() {
    let mut random = Random::new(53);
    for most in [[70, 140, 70], [7, 140, 700], [60, 70, 1100]].into_iter().flat_map(|most| [most; 4]) {
        let (op, operands) = product(&mut random, most);
        check(&op, &operands);
    }
}

#[test]
fn only_wide_products_of_bytes_have_zero_points() {
    let of = |wide| Op::MatMul { transpose_left: false, transpose_right: false, wide, rounds: false };
    let array = |dtype, dims: &[usize]| ty(&Array::new(dtype, dims, vec![0.0; dims.iter().product()]));
    let message = |op: &Op, types: &[_]| {
        let types: Vec<_> = types.iter().collect();
        infer(op, &types, &|_| String::new()).map(|_| ()).unwrap_err().to_string()
    };
    let (x, y) = (array(DType::U8, &[2, 3]), array(DType::I8, &[3, 4]));
    let (zero, columns) = (array(DType::U8, &[]), array(DType::I8, &[4]));
    let wide = [x.clone(), y.clone(), zero.clone(), columns.clone()];
    let made = infer(&of(true), &wide.iter().collect::<Vec<_>>(), &|_| String::new()).unwrap();
    assert_eq!(made, [array(DType::I32, &[2, 4])]);
    let bytes = [x.clone(), array(DType::U8, &[3, 4]), zero.clone(), zero.clone()];
    assert!(message(&of(false), &bytes).contains("no zero points but in a wide product of bytes"));
    assert!(message(&of(false), &[x.clone(), y.clone()]).contains("expected a right operand of type u8"));
    assert!(message(&of(true), &[x.clone(), y.clone(), zero.clone()]).contains("of both operands"));
    assert!(message(&of(true), &[x.clone(), y.clone(), columns.clone(), columns]).contains("of type u8"));
    let rows = array(DType::U8, &[2]);
    assert!(message(&of(true), &[x, y, rows, array(DType::I8, &[])]).contains("shape [2, 1]"));
}

fn tensor(array: &Array) -> Tensor {
    Tensor::new(array.dtype, array.dims.iter().map(|&dim| dim as u64).collect(), encode(array)).unwrap()
}

/// Through the pipeline, with the right operand a parameter: on one device, on two that share the work, and by several
/// threads.
#[test]
fn products_of_bytes_are_the_same_wherever_they_run() {
    let mut random = Random::new(59);
    for [m, n, k] in [[1, 200, 130], [5, 70, 67], [70, 129, 40], [64, 64, 64], [2, 1, 9]] {
        let mut graph = Graph::new("products");
        let source = |graph: &mut Graph, name: &str| {
            graph.add_source(Source::new(name, "MatMulInteger", SourceRole::Node))
        };
        let op = Op::MatMul { transpose_left: false, transpose_right: false, wide: true, rounds: false };
        let (mut inputs, mut params, mut expected) = (Vec::new(), BTreeMap::new(), Vec::new());
        for number in 0..4 {
            let at = source(&mut graph, &format!("product{number}"));
            let dtypes = [BYTES[number % 2], BYTES[number / 2]];
            let operands = [
                bytes(&mut random, dtypes[0], &[m, k]),
                bytes(&mut random, dtypes[1], &[k, n]),
                bytes(&mut random, dtypes[0], &[]),
                bytes(&mut random, dtypes[1], &[n]),
            ];
            let name = |at: usize| format!("x{number}.{at}");
            let values: Vec<_> = operands
                .iter()
                .enumerate()
                .map(|(position, array)| match position {
                    1 => {
                        params.insert(name(position), tensor(array));
                        graph.add_param(name(position), ty(array), Init::ones(), None, at)
                    }
                    _ => {
                        inputs.push((name(position), tensor(array)));
                        graph.add_input(name(position), ty(array), at)
                    }
                })
                .collect();
            let made = graph.apply(op.clone(), &values, at).unwrap();
            graph.add_output(format!("y{number}"), made);
            expected.push(evaluate(&op, &operands, &[(DType::I32, vec![m, n])])[0].clone());
        }
        for devices in ["cpu", "2xcpu"] {
            let topology = Topology::parse(devices).unwrap();
            let place = place::Options { devices: DeviceUse::All, ..place::Options::default() };
            let options = Options { place, ..Options::default() };
            let compiled = compile(Model::Graph(graph.clone()), &topology, &options).unwrap();
            let network = compiled.network.as_ref().unwrap();
            let exec = exec_plan(&compiled.plan, &network.graph, &network.grouping).unwrap();
            let weight = |id: ParamId| Ok(params[network.graph.param(id).whole_name()].clone());
            let groups = network.grouping.all_fused();
            let mut program =
                Program::new(&network.graph, &groups, &exec, &weight, ExecOptions::default()).unwrap();
            let (found, _) = program.run(&inputs).unwrap();
            for (name, packed) in &params {
                assert!(program.param(name).unwrap().is_none_or(|found| found == *packed), "{name}");
            }
            for (array, (name, found)) in expected.iter().zip(&found) {
                assert_eq!(found, &tensor(array), "{name} of {m} x {n}, {k} terms");
            }
        }
    }
}

/// Operands of a product of numbers that bytes stand for.
struct Spelled {
    graph: Graph,
    source: SourceId,
    inputs: Vec<(String, Tensor)>,
}

impl Spelled {
    fn new() -> Self {
        let mut graph = Graph::new("spelled");
        let source = graph.add_source(Source::new("node", "MatMul", SourceRole::Node));
        Self { graph, source, inputs: vec![] }
    }

    fn input(&mut self, array: &Array) -> ValueId {
        let name = format!("x{}", self.inputs.len());
        self.inputs.push((name.clone(), tensor(array)));
        self.graph.add_input(name, ty(array), self.source)
    }

    fn apply(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        self.graph.apply(op, operands, self.source).unwrap()
    }

    /// `(x - zero) * scale`, of a zero point and a scale of these sizes.
    fn numbers(
        &mut self,
        random: &mut Random,
        x: &Array,
        zero: Option<&[usize]>,
        scale: &[usize],
    ) -> ValueId {
        let to = Op::Convert { to: DType::F32 };
        let bytes_of_x = self.input(x);
        let mut made = self.apply(to.clone(), &[bytes_of_x]);
        if let Some(dims) = zero {
            let zeros = bytes(random, x.dtype, dims);
            let zeros = match random.flag() {
                true => {
                    let zeros = self.input(&zeros);
                    self.apply(to, &[zeros])
                }
                // As folding leaves them.
                false => {
                    let zeros = Array::new(DType::F32, dims, zeros.data);
                    self.graph.add_constant(tensor(&zeros), self.source)
                }
            };
            made = self.apply(Op::Binary(Binary::Sub), &[made, zeros]);
        }
        let scales =
            (0..scale.iter().product::<usize>()).map(|_| random.range(1, 64) as f64 / 4096.0).collect();
        let scales = self.input(&Array::new(DType::F32, scale, scales));
        self.apply(Op::Binary(Binary::Mul), &[made, scales])
    }

    /// Whether the product becomes one of bytes, whose results are as near as those of floats.
    fn check(mut self, op: Op, operands: [ValueId; 2]) -> bool {
        let made = self.apply(op, &operands);
        self.graph.add_output("y", made);
        let prepared = prepare(self.graph.clone(), &Options::default()).unwrap().graph;
        let none = |_: ParamId| unreachable!("it has no parameters");
        let inputs = |graph: &Graph| -> Vec<(String, Tensor)> {
            let is_read = |name: &str| graph.inputs().iter().any(|(own, _)| own == name);
            self.inputs.iter().filter(|(name, _)| is_read(name)).cloned().collect()
        };
        let run = |graph: &Graph| interpret(graph, &inputs(graph), &none).unwrap()[0].1.to_f64();
        let (found, expected) = (run(&prepared), run(&self.graph));
        let largest = expected.iter().fold(0.0f64, |most, y| most.max(y.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 2e-6 * largest, "{found} for {expected}");
        }
        prepared.node_ids().any(|id| matches!(prepared.node(id).op, Op::MatMul { wide: true, .. }))
    }
}

#[test]
fn products_of_numbers_that_bytes_stand_for_are_products_of_bytes() {
    let mut random = Random::new(61);
    let (m, n, k) = (5, 9, 40);
    for (scale, zero, is_exact) in [
        (&[][..], None, true),
        (&[n][..], Some(&[n][..]), true),
        (&[1, n], Some(&[]), true),
        (&[n, 1], Some(&[n, 1]), true),
        // Scales that differ along what is summed up stay floats.
        (&[k, 1], None, false),
        (&[n], Some(&[k, 1]), false),
    ] {
        for transpose_left in [false, true] {
            let mut spelled = Spelled::new();
            let dtypes = [0, 1].map(|_| *random.pick(&BYTES));
            let transpose_right = scale.first() == Some(&n) && scale.len() == 2;
            let x = bytes(&mut random, dtypes[0], &if transpose_left { [k, m] } else { [m, k] });
            let y = bytes(&mut random, dtypes[1], &if transpose_right { [n, k] } else { [k, n] });
            let of_rows = if transpose_left { &[][..] } else { &[m, 1] };
            let left_zero = random.flag().then_some(&[][..]);
            let x = spelled.numbers(&mut random, &x, left_zero, of_rows);
            let y = spelled.numbers(&mut random, &y, zero, scale);
            let op = Op::MatMul { transpose_left, transpose_right, wide: false, rounds: false };
            assert_eq!(spelled.check(op, [x, y]), is_exact, "{scale:?} {zero:?}");
        }
    }
}
