//! The passes: same outputs bit for bit on random graphs, and what each does to small graphs.

use partition::unstable::ir::text::parse;
use partition::unstable::ir::*;
use partition::unstable::pass::{cse, dce, fold, simplify};
use proptest::prelude::*;

use crate::random_graph::{Random, random_graph};

type Pass = fn(&mut Graph) -> partition::Result<()>;

const PASSES: [(&str, Pass); 4] = [("fold", fold), ("simplify", simplify), ("cse", cse), ("dce", dce)];

fn graph(text: &str) -> Graph {
    let graph = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&graph).unwrap();
    graph
}

/// The graph after a pass, which verifies and has the same inputs and outputs.
fn after(pass: Pass, before: &Graph) -> Graph {
    let mut graph = before.clone();
    pass(&mut graph).unwrap();
    verify(&graph).unwrap_or_else(|error| panic!("{error}\n{before}\n{graph}"));
    let ports = |graph: &Graph, ports: &[(String, ValueId)]| -> Vec<(String, Type)> {
        ports.iter().map(|(name, value)| (name.clone(), graph.ty(*value).clone())).collect()
    };
    assert_eq!(ports(&graph, graph.inputs()), ports(before, before.inputs()));
    assert_eq!(ports(&graph, graph.outputs()), ports(before, before.outputs()));
    assert_eq!(graph.sources(), before.sources());
    graph
}

fn operations(graph: &Graph) -> usize {
    graph.node_ids().filter(|&id| !graph.node(id).op.is_leaf()).count()
}

/// Pins, marks, control dependencies, and constants that invite rewriting.
fn dressed(seed: u64, nodes: usize) -> Graph {
    let mut graph = random_graph(seed, nodes);
    let mut random = Random::new(seed ^ 3);
    for id in 0..graph.sources().len() as u32 {
        let source = graph.source_mut(SourceId(id));
        if random.one_in(3) {
            source.pin = Some(random.pick(&["cuda0", "cpu"]).to_owned());
        }
        if random.one_in(5) {
            source.colocate = Some("tower".to_owned());
        }
    }
    let source = SourceId(0);
    for step in 0..8 {
        let outputs: Vec<ValueId> = graph.outputs().iter().map(|(_, value)| *value).collect();
        let x = random.pick(&outputs);
        let ty = graph.ty(x).clone();
        let dims: Vec<u64> = ty.shape.dims().unwrap().into_iter().map(|dim| dim as u64).collect();
        let value = random.pick(&[0.0f32, -0.0, 1.0]);
        let c = graph.add_constant(Tensor::from_f32(vec![], &[value]).unwrap(), source);
        let full = graph.apply(Op::Broadcast { shape: ty.shape.clone() }, &[c], source).unwrap();
        let binary = random.pick(&[Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Div]);
        let (left, right) = if random.one_in(4) { (full, x) } else { (x, full) };
        let y = graph.apply(Op::Binary(binary), &[left, right], source).unwrap();
        let flipped: Vec<u32> = (0..dims.len() as u32).rev().collect();
        let turned = graph.apply(Op::Transpose { perm: flipped.clone() }, &[y], source).unwrap();
        let back = graph.apply(Op::Transpose { perm: flipped }, &[turned], source).unwrap();
        let flat = Op::Reshape { shape: Shape::known(&[dims.iter().product::<u64>() as i64]) };
        let flat = graph.apply(flat, &[back], source).unwrap();
        let again = graph.apply(Op::Reshape { shape: ty.shape }, &[flat], source).unwrap();
        graph.add_output(format!("dressed{step}"), if random.one_in(3) { turned } else { again });
    }
    for _ in 0..random.below(4) {
        let nodes = graph.node_count();
        let (a, b) = (random.below(nodes) as u32, random.below(nodes) as u32);
        if a != b {
            graph.add_control(NodeId(a.min(b)), NodeId(a.max(b))).unwrap();
        }
    }
    graph
}

#[cfg(feature = "run")]
fn run(graph: &Graph, seed: u64) -> Vec<(String, Tensor)> {
    let mut random = Random::new(seed ^ 2);
    let dims = |ty: &Type| -> Vec<u64> {
        ty.shape.dims().unwrap().into_iter().map(|dim| u64::try_from(dim).unwrap()).collect()
    };
    let inputs: Vec<(String, Tensor)> = graph
        .inputs()
        .iter()
        .map(|(name, value)| {
            let dims = dims(graph.ty(*value));
            let count: u64 = dims.iter().product();
            let special = [0.0, -0.0, f32::INFINITY, 1e-40];
            let values: Vec<f32> = (0..count)
                .map(|_| if random.one_in(40) { random.pick(&special) } else { random.float() })
                .collect();
            (name.clone(), Tensor::from_f32(dims, &values).unwrap())
        })
        .collect();
    let weights = |id: ParamId| {
        let param = graph.param(id);
        let ty = graph.ty(graph.node(param.node).first_result);
        partition::unstable::load::fill(&param.init, &dims(ty), ty.dtype, 1, &param.name)
    };
    partition::unstable::run::interpret(graph, &inputs, &weights).unwrap()
}

/// How many operands are read transposed by the products themselves: their sums may then be in
/// another order, so that a pass which lets a product do a transposition may change bits.
#[cfg(feature = "run")]
fn transposed_operands(graph: &Graph) -> usize {
    let ops = graph.node_ids().map(|id| match graph.node(id).op {
        Op::MatMul { transpose_left, transpose_right, .. } => {
            usize::from(transpose_left) + usize::from(transpose_right)
        }
        _ => 0,
    });
    ops.sum()
}

#[cfg(feature = "run")]
fn same_bits(found: &[(String, Tensor)], expected: &[(String, Tensor)], what: &dyn Fn() -> String) {
    assert_eq!(found.len(), expected.len());
    for ((name, found), (other, expected)) in found.iter().zip(expected) {
        assert_eq!(name, other);
        assert!(found == expected, "output {name} differs: {}", what());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[cfg(feature = "run")]
    #[test]
    fn passes_change_no_bit_of_the_outputs(seed in any::<u64>(), nodes in 0usize..40) {
        let before = dressed(seed, nodes);
        verify(&before).unwrap();
        let expected = run(&before, seed);
        let comparable = |graph: &Graph| transposed_operands(graph) == transposed_operands(&before);
        let mut all = before.clone();
        for (name, pass) in PASSES {
            let one = after(pass, &before);
            if comparable(&one) {
                same_bits(&run(&one, seed), &expected, &|| format!("{name} of\n{before}\n{one}"));
            }
            all = after(pass, &all);
        }
        if comparable(&all) {
            same_bits(&run(&all, seed), &expected, &|| format!("all of\n{before}\n{all}"));
        }
        prop_assert!(operations(&all) <= operations(&before));
    }

    #[test]
    fn a_second_time_changes_nothing(seed in any::<u64>(), nodes in 0usize..40) {
        let mut graph = dressed(seed, nodes);
        for _ in 0..3 {
            for (_, pass) in PASSES {
                graph = after(pass, &graph);
            }
        }
        for (name, pass) in PASSES {
            prop_assert!(after(pass, &graph) == graph, "{}", name);
        }
    }
}

/// Bytes of elements of every sort: extremes, zeros of both signs, infinities, not-a-number.
#[cfg(feature = "run")]
fn bytes(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    let reals =
        [0.0, -0.0, 1.0, -1.0, 0.1, 3.7, -2.5, 255.9, 1e30, 1e-42, 9.3e18, f64::NAN, f64::INFINITY, -1e300];
    let mut element = || -> Vec<u8> {
        match dtype {
            DType::F32 => (random.pick(&reals) as f32).to_le_bytes().to_vec(),
            DType::F64 => random.pick(&reals).to_le_bytes().to_vec(),
            DType::Bool => vec![random.below(2) as u8],
            _ if random.one_in(3) => {
                (random.below(5) as i64 - 2).to_le_bytes()[..dtype.size() as usize].to_vec()
            }
            _ => random.next().to_le_bytes()[..dtype.size() as usize].to_vec(),
        }
    };
    (0..count).flat_map(|_| element()).collect()
}

/// Every operation that folds, of constants of one type; each result is an output.
#[cfg(feature = "run")]
fn of_constants(seed: u64, dtype: DType) -> Graph {
    let mut random = Random::new(seed);
    let mut graph = Graph::new("constants");
    let source = graph.add_source(Source::new("a", "A", SourceRole::Node));
    let mut constant = |graph: &mut Graph, dtype: DType, dims: &[u64]| {
        let data = bytes(&mut random, dtype, dims.iter().product::<u64>() as usize);
        graph.add_constant(Tensor::new(dtype, dims.to_vec(), data).unwrap(), source)
    };
    let x = constant(&mut graph, dtype, &[2, 3, 4]);
    let y = constant(&mut graph, dtype, &[3, 1]);
    let condition = constant(&mut graph, DType::Bool, &[2, 1, 1]);
    let indices = graph.add_constant(Tensor::from_i64(vec![2, 2], &[1, 0, -1, 1]).unwrap(), source);
    let pairs = [vec![1, 0], vec![0, 1], vec![-1, 1], vec![2, 0]].concat();
    let pairs = graph.add_constant(Tensor::from_i64(vec![2, 2, 2], &pairs).unwrap(), source);
    let column = graph.add_constant(Tensor::from_i64(vec![2, 1], &[2, -3]).unwrap(), source);
    let deep =
        graph.add_constant(Tensor::from_i64(vec![2, 2, 2], &[3, 0, -4, 1, 2, 2, -1, 0]).unwrap(), source);
    let size = |size: i64| Size::Known(size);
    let mut applied: Vec<(Op, Vec<ValueId>)> = vec![
        (Op::Select, vec![condition, x, y]),
        (Op::Select, vec![condition, y, x]),
        (Op::Reshape { shape: Shape::known(&[6, 4]) }, vec![x]),
        (Op::Transpose { perm: vec![2, 0, 1] }, vec![x]),
        (Op::Broadcast { shape: Shape::known(&[2, 3, 2]) }, vec![y]),
        (Op::Concat { axis: 1 }, vec![x, x]),
        (Op::Gather { axis: 1 }, vec![x, indices]),
        (Op::Gather { axis: 0 }, vec![y, indices]),
        (Op::GatherElements { axis: 0 }, vec![y, column]),
        (Op::GatherElements { axis: 2 }, vec![x, deep]),
        (Op::GatherNd { batch_dims: 0 }, vec![x, indices]),
        (Op::GatherNd { batch_dims: 1 }, vec![x, pairs]),
    ];
    applied.extend(Unary::ALL.iter().map(|&unary| (Op::Unary(unary), vec![x])));
    applied.extend(Binary::ALL.iter().map(|&binary| (Op::Binary(binary), vec![x, y])));
    applied.extend(Binary::ALL.iter().map(|&binary| (Op::Binary(binary), vec![y, y])));
    applied.extend(Compare::ALL.iter().map(|&compare| (Op::Compare(compare), vec![x, y])));
    applied.extend(DType::ALL.iter().map(|&to| (Op::Convert { to }, vec![x])));
    for axes in [vec![], vec![1], vec![0, 2], vec![0, 1, 2]] {
        for &kind in ReduceKind::ALL {
            for keep in [false, true] {
                applied.push((Op::Reduce { kind, axes: axes.clone(), keep }, vec![x]));
            }
        }
    }
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        applied.push((Op::CumSum { axis: 1, exclusive, reverse }, vec![x]));
    }
    let slice = Slice {
        starts: vec![size(1), size(2), size(0)],
        sizes: vec![size(2), size(2), size(0)],
        steps: vec![-1, -2, 1],
    };
    applied.push((Op::Slice(Box::new(slice.clone())), vec![x]));
    let slice = Slice { sizes: vec![size(2), size(2), size(3)], ..slice };
    applied.push((Op::Slice(Box::new(slice)), vec![x]));
    for &mode in PadMode::ALL {
        for (before, after) in [([1, -1, 2], [0, 1, -1]), ([-1, 1, 0], [0, -1, 3])] {
            let (before, after) = (before.to_vec(), after.to_vec());
            applied.push((Op::Pad(Box::new(Pad { before, after, mode, value: Real(2.5) })), vec![x]));
        }
    }
    for (op, operands) in applied {
        // Inference says which operations are of this type.
        if let Ok(value) = graph.apply(op, &operands, source) {
            graph.add_output(format!("y{}", graph.outputs().len()), value);
        }
    }
    for axis in 0..2 {
        if dtype != DType::Bool {
            let value = graph.add_iota(Type::new(dtype, Shape::known(&[300, 2])), axis, source);
            graph.add_output(format!("iota{axis}"), value);
        }
    }
    graph
}

#[cfg(feature = "run")]
#[test]
fn folding_agrees_with_the_kernels() {
    for (dtype, least) in DType::ALL.into_iter().zip([8, 8, 8, 8, 60, 60, 60, 60, 60, 30]) {
        let mut most = 0;
        for seed in 0..20 {
            let before = of_constants(seed, dtype);
            let folded = after(fold, &before);
            most = most.max(operations(&before) - operations(&folded));
            let (found, expected) = (run(&folded, seed), run(&before, seed));
            for (position, ((name, found), (_, expected))) in found.iter().zip(&expected).enumerate() {
                let op = &before.maker(before.outputs()[position].1).op;
                assert!(found == expected, "{dtype} {op:?} {name}: {found:?} for {expected:?}");
            }
        }
        assert!(most >= least, "{dtype}: only {most} nodes folded");
    }
}

#[test]
fn large_results_are_not_folded() {
    let text = |size: usize| {
        format!(
            "graph \"g\"\nsource s0 node \"a\" \"A\"\n%0: i64[{size}] = iota axis=0 @s0\n\
             output \"y\" %0\n"
        )
    };
    assert_eq!(operations(&after(fold, &graph(&text(65536)))), 0);
    assert_eq!(operations(&after(fold, &graph(&text(65537)))), 1);
}

/// Chains and combs of `nodes` nodes: nothing recurses, nothing is quadratic.
#[test]
fn a_hundred_thousand_nodes_take_seconds() {
    let mut big = Graph::new("big");
    let source = big.add_source(Source::new("a", "A", SourceRole::Node));
    let x = big.add_input("x", Type::new(DType::F32, Shape::known(&[2, 3])), source);
    let one = big.add_constant(Tensor::from_f32(vec![], &[1.0]).unwrap(), source);
    let (mut chain, mut size) = (x, big.add_constant(Tensor::from_i64(vec![], &[1]).unwrap(), source));
    for _ in 0..20_000 {
        chain = big.apply(Op::Transpose { perm: vec![1, 0] }, &[chain], source).unwrap();
        chain = big.apply(Op::Binary(Binary::Mul), &[chain, one], source).unwrap();
        size = big.apply(Op::Binary(Binary::Add), &[size, size], source).unwrap();
        big.apply(Op::Unary(Unary::Tanh), &[x], source).unwrap();
        big.apply(Op::Unary(Unary::Exp), &[chain], source).unwrap();
    }
    big.add_output("chain", chain);
    big.add_output("size", size);
    let started = std::time::Instant::now();
    for (_, pass) in PASSES {
        big = after(pass, &big);
    }
    assert_eq!(operations(&big), 0, "{big}");
    assert_eq!(big.outputs()[0].1, x);
    assert!(started.elapsed() < std::time::Duration::from_secs(30));
}
