//! Loss curves against those that PyTorch gave for the same networks, weights and batches
//! (`scripts/torch_curves.py`).

use std::collections::BTreeMap;

use partition::unstable::ir::*;
use partition::unstable::pass::{Params, Precision};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Loss, Options, Scaling, Trainer};

/// The generator of the script.
struct Stream(u64);

impl Stream {
    fn draw(&mut self, count: usize, scale: f64) -> Vec<f32> {
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (((*state >> 40) as f64 / f64::from(1 << 24) - 0.5) * scale) as f32
        };
        (0..count).map(|_| next(&mut self.0)).collect()
    }

    fn integers(&mut self, below: i64, count: usize) -> Vec<i64> {
        self.draw(count, 1.0).iter().map(|value| ((value + 0.5) * below as f32) as i64).collect()
    }
}

struct Net {
    graph: Graph,
    source: SourceId,
    stream: Stream,
}

impl Net {
    fn new() -> Self {
        let mut graph = Graph::new("net");
        let source = graph.add_source(Source::new("net", "net", SourceRole::Node));
        Self { graph, source, stream: Stream(7) }
    }

    fn input(&mut self, dtype: DType, dims: &[i64]) -> ValueId {
        self.graph.add_input("x", Type::new(dtype, Shape::known(dims)), self.source)
    }

    fn param(&mut self, dims: &[i64]) -> ValueId {
        let values = self.stream.draw(dims.iter().product::<i64>() as usize, 0.5);
        let sizes = dims.iter().map(|&dim| dim as u64).collect();
        let data = Data::Inline(Tensor::from_f32(sizes, &values).unwrap());
        let name = format!("p{}", self.graph.params().len());
        let ty = Type::new(DType::F32, Shape::known(dims));
        self.graph.add_param(name, ty, Init::zeros(), Some(data), self.source)
    }

    fn apply(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        self.graph.apply(op, operands, self.source).unwrap()
    }

    fn matmul(&mut self, x: ValueId, y: ValueId, transpose_right: bool) -> ValueId {
        self.apply(Op::MatMul { transpose_left: false, transpose_right, wide: false, rounds: false }, &[x, y])
    }

    fn binary(&mut self, op: Binary, x: ValueId, y: ValueId) -> ValueId {
        self.apply(Op::Binary(op), &[x, y])
    }
}

/// A network with what it is trained with.
struct Run {
    net: Net,
    /// Of the stored losses.
    name: &'static str,
    optimizer: &'static str,
    rate: f64,
    batch: fn(&mut Stream) -> Vec<Tensor>,
}

/// The stored losses.
fn expected(name: &str) -> Vec<f64> {
    let text = include_str!("../data/torch_curves.json");
    let mut curves: BTreeMap<String, Vec<f64>> = serde_json::from_str(text).unwrap();
    let curve = curves.remove(name).unwrap();
    assert_eq!(curve.len(), 100);
    curve
}

/// The losses of a run, as many as are stored.
fn losses(run: Run, half: Option<DType>) -> Vec<f64> {
    let Run { net, name, optimizer, rate, batch } = run;
    let Net { graph, mut stream, .. } = net;
    let mut options = Options::new(Loss::SparseCrossEntropy { logits: true, ignored: None, axis: -1 });
    options.recipe.updates = optimizer.parse().unwrap();
    options.rate.base = rate;
    options.compile.precision = half.map(|half| Precision { half, params: Params::Rounded });
    options.recipe.scaling = (half == Some(DType::F16)).then_some(Scaling::Fixed(128));
    let mut trainer = Trainer::new(graph, &Topology::parse("cpu").unwrap(), &options).unwrap();
    let step = |_: &f64| {
        let names = ["x".to_owned(), "target".to_owned()];
        let arrays: Vec<(String, Tensor)> = names.into_iter().zip(batch(&mut stream)).collect();
        trainer.step(&arrays).unwrap().loss
    };
    expected(name).iter().map(step).collect()
}

/// The largest relative distance of losses from the stored ones.
fn distance(name: &str, losses: &[f64]) -> f64 {
    let expected = expected(name);
    let distances = losses.iter().zip(&expected).map(|(found, expected)| (found - expected).abs() / expected);
    distances.fold(0.0, f64::max)
}

fn perceptron() -> Run {
    let mut net = Net::new();
    let x = net.input(DType::F32, &[16, 64]);
    let params: Vec<ValueId> =
        [&[64i64, 32][..], &[32], &[32, 10], &[10]].iter().map(|dims| net.param(dims)).collect();
    let h = net.matmul(x, params[0], false);
    let h = net.binary(Binary::Add, h, params[1]);
    let h = net.apply(Op::Unary(Unary::Relu), &[h]);
    let y = net.matmul(h, params[2], false);
    let y = net.binary(Binary::Add, y, params[3]);
    net.graph.add_output("y", y);
    let batch = |stream: &mut Stream| {
        let x = Tensor::from_f32(vec![16, 64], &stream.draw(16 * 64, 2.0)).unwrap();
        vec![x, Tensor::from_i64(vec![16], &stream.integers(10, 16)).unwrap()]
    };
    Run { net, name: "digits", optimizer: "sgd:momentum=0.9", rate: 0.05, batch }
}

fn transformer() -> Run {
    let (d, vocabulary) = (8i64, 12i64);
    let mut net = Net::new();
    let x = net.input(DType::I64, &[4, 6]);
    let shapes = [&[vocabulary, d][..], &[d, d], &[d, d], &[d, d], &[d], &[d], &[d, vocabulary]];
    let params: Vec<ValueId> = shapes.iter().map(|dims| net.param(dims)).collect();
    let e = net.apply(Op::Gather { axis: 0 }, &[params[0], x]);
    let (q, k) = (net.matmul(e, params[1], false), net.matmul(e, params[2], false));
    let v = net.matmul(e, params[3], false);
    let scores = net.matmul(q, k, true);
    let root = Tensor::from_f32(vec![], &[(8.0f64.sqrt().recip()) as f32]).unwrap();
    let root = net.graph.add_constant(root, net.source);
    let scores = net.binary(Binary::Mul, scores, root);
    let share = net.apply(Op::Softmax { axis: 2, log: false }, &[scores]);
    let a = net.matmul(share, v, false);
    let h = net.binary(Binary::Add, e, a);
    let h =
        net.apply(Op::Normalize { axes: vec![2], epsilon: Real(1e-5), center: true, moments: false }, &[h]);
    let h = net.binary(Binary::Mul, h, params[4]);
    let h = net.binary(Binary::Add, h, params[5]);
    let y = net.matmul(h, params[6], false);
    net.graph.add_output("y", y);
    let batch = |stream: &mut Stream| {
        let x = Tensor::from_i64(vec![4, 6], &stream.integers(12, 24)).unwrap();
        vec![x, Tensor::from_i64(vec![4, 6], &stream.integers(12, 24)).unwrap()]
    };
    Run { net, name: "transformer", optimizer: "adam", rate: 0.01, batch }
}

#[test]
fn networks_learn_as_in_torch_for_a_hundred_steps() {
    for run in [perceptron, transformer] {
        let name = run().name;
        let worst = distance(name, &losses(run(), None));
        assert!(worst < 1e-4, "{name}: {worst}");
    }
}

#[test]
fn networks_learn_in_halves_as_torch_does_in_f32() {
    for run in [perceptron, transformer] {
        let (name, full) = (run().name, losses(run(), None));
        for (half, most) in [(DType::Bf16, 0.01), (DType::F16, 0.002)] {
            let found = losses(run(), Some(half));
            let worst = distance(name, &found);
            assert!(worst < most, "{name} in {half}: {worst}");
            assert_ne!(found, full, "{name} in {half}: in earnest");
        }
    }
}
