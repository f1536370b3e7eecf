//! The passes: same outputs bit for bit on random graphs, and what each does to small graphs.

use partition::ir::text::parse;
use partition::ir::*;
use partition::pass::{cse, dce, fold, simplify};
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
        partition::load::fill(&param.init, &dims(ty), ty.dtype, 1, &param.name)
    };
    partition::run::interpret(graph, &inputs, &weights).unwrap()
}

/// How many operands are read transposed by the products themselves: their sums may then be in
/// another order, so that a pass which lets a product do a transposition may change bits.
#[cfg(feature = "run")]
fn transposed_operands(graph: &Graph) -> usize {
    let ops = graph.node_ids().map(|id| match graph.node(id).op {
        Op::MatMul { transpose_left, transpose_right } => {
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

fn snapshot(name: &str, pass: Pass, text: &str) {
    let before = graph(text);
    let shown = format!("{before}\n# after\n\n{}", after(pass, &before));
    insta::with_settings!({
        snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots"),
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, { insta::assert_snapshot!(name, shown) });
}

#[test]
fn dce_removes_what_nothing_reads() {
    snapshot(
        "pass_dce",
        dce,
        r#"graph "g"
source s0 node "a" "A"
source s1 node "dead" "Dead"
%0: f32[2] = input "x" @s0
%1: f32[2] = input "unread" @s0
%2: f32[2] = param "dead" init=constant(0.0) @s1
%3: f32[2] = param "w" init=constant(1.0) @s0
%4: f32[2] = constant {1.0, 2.0} @s1
%5: f32[2] = constant {3.0, 4.0} @s0
%6: f32[2] = neg %0 @s0
%7: f32[2] = add %2, %4 @s1
%8: f32[2] = mul %6, %3 @s0
%9: f32[2] = add %8, %5 @s0
%10: f32[1], %11: i64[1] = topk %9 axis=0 k=1 largest=true @s0
output "y" %11
control %6 -> %7
control %7 -> %9
"#,
    );
}

#[test]
fn cse_merges_equal_nodes_of_one_place() {
    snapshot(
        "pass_cse",
        cse,
        r#"graph "g"
source s0 node "first" "A"
source s1 node "second" "A"
source s2 node "pinned" "A" pin="cuda1"
source s3 node "marked" "A" colocate="tower"
%0: f32[2] = input "x" @s0
%1: f32[2] = constant {0.0, 2.0} @s0
%2: f32[2] = constant {0.0, 2.0} @s1
%3: f32[2] = constant {-0.0, 2.0} @s1
%4: f32[2] = add %0, %1 @s0
%5: f32[2] = add %0, %2 @s1
%6: f32[2] = add %0, %3 @s1
%7: f32[2] = tanh %4 @s0
%8: f32[2] = tanh %5 @s1
%9: f32[2] = tanh %5 @s2
%10: f32[2] = tanh %5 @s3
%11: f32[2] = tanh %5 @s1
%12: i64[2] = iota axis=0 @s0
%13: i32[2] = iota axis=0 @s0
%14: i64[2] = iota axis=0 @s1
output "a" %6
output "b" %7
output "c" %8
output "d" %9
output "e" %10
output "f" %11
output "g" %12
output "h" %13
output "i" %14
control %7 -> %11
"#,
    );
}

#[test]
fn a_matrix_product_reads_a_transposed_operand_as_it_lies() {
    snapshot(
        "pass_simplify_product",
        simplify,
        r#"graph "g"
source s0 node "a" "A"
%0: f32[2, 3] = input "x" @s0
%1: f32[5, 3] = input "w" @s0
%2: f32[4, 2, 3] = input "batched" @s0
%3: f32[3, 5] = transpose %1 perm=[1, 0] @s0
%4: f32[2, 5] = matmul %0, %3 transpose_left=false transpose_right=false @s0
%5: f32[2, 2] = matmul %4, %4 transpose_left=false transpose_right=true @s0
%6: f32[4, 3, 2] = transpose %2 perm=[0, 2, 1] @s0
%7: f32[4, 5, 2] = matmul %1, %6 transpose_left=false transpose_right=false @s0
%8: f32[3, 2] = transpose %0 perm=[1, 0] @s0
%9: f32[2, 5] = matmul %8, %3 transpose_left=true transpose_right=false @s0
%10: f32[2, 4, 3] = transpose %2 perm=[1, 0, 2] @s0
%11: f32[2, 4, 5] = matmul %10, %3 transpose_left=false transpose_right=false @s0
output "right" %5
output "batched" %7
output "twice" %9
output "other axes" %11
"#,
    );
}

#[test]
fn simplify_reads_slices_where_they_lie() {
    snapshot(
        "pass_simplify_slices",
        simplify,
        r#"graph "g"
source s0 node "a" "A"
%0: f32[5, 6] = input "x" @s0
%1: i64[] = constant {1} @s0
%2: i64[2] = constant {-2, -1} @s0
%3: i64[2] = constant {3, 1} @s0
%4: i64[] = constant {3} @s0
%5: f32[5, 1, 3, 2] = reshape %0 shape=[5, 1, 3, 2] @s0
%6: f32[3, 5, 1, 2] = transpose %5 perm=[2, 0, 1, 3] @s0
%7: f32[3, 5, 2] = reshape %6 shape=[3, 5, 2] @s0
%8: f32[5, 2] = gather %7, %1 axis=0 @s0
%9: f32[2, 6] = gather %0, %2 axis=0 @s0
%10: f32[2, 6] = gather %0, %3 axis=0 @s0
%11: f32[3, 2, 2] = slice %7 starts=[0, 1, 0] sizes=[3, 2, 2] steps=[1, 2, 1] @s0
%12: f32[5, 2] = gather %7, %4 axis=0 @s0
%13: f32[15, 2] = reshape %7 shape=[15, 2] @s0
%14: f32[1, 2] = slice %13 starts=[4, 0] sizes=[1, 2] steps=[1, 1] @s0
output "one of three" %8
output "neighbours" %9
output "not neighbours" %10
output "moved axes" %11
output "no such index" %12
output "merged axes" %14
"#,
    );
}

#[test]
fn simplify_keeps_to_exact_identities() {
    snapshot(
        "pass_simplify",
        simplify,
        r#"graph "g"
source s0 node "a" "A"
%0: f32[2, 1, 3] = input "x" @s0
%1: bool[3] = input "b" @s0
%2: f32[] = constant {1.0} @s0
%3: f32[3] = constant {0.0, 0.0, 0.0} @s0
%4: f32[] = constant {-0.0} @s0
%5: bool[] = constant {true} @s0
%6: f32[6] = reshape %0 shape=[6] @s0
%7: f32[3, 2] = reshape %6 shape=[3, 2] @s0
%8: f32[2, 1, 3] = reshape %7 shape=[2, 1, 3] @s0
%9: f32[3, 1, 2] = transpose %0 perm=[2, 1, 0] @s0
%10: f32[2, 3, 1] = transpose %9 perm=[2, 0, 1] @s0
%11: f32[2, 1, 3] = broadcast %2 shape=[2, 1, 3] @s0
%12: f32[2, 1, 3] = mul %11, %0 @s0
%13: f32[2, 1, 3] = div %12, %2 @s0
%14: f32[2, 1, 3] = sub %13, %3 @s0
%15: f32[2, 1, 3] = add %14, %3 @s0
%16: f32[2, 1, 3] = add %14, %4 @s0
%17: f32[2, 1, 3] = sub %14, %4 @s0
%18: bool[3] = not %1 @s0
%19: bool[3] = not %18 @s0
%20: f32[2, 1, 3] = select %5, %4, %0 @s0
%21: f32[2, 1, 3] = select %5, %0, %4 @s0
%22: f32[2, 1, 3] = slice %0 starts=[0, 0, 0] sizes=[2, 1, 3] steps=[1, 5, 1] @s0
%23: f32[2, 1, 3] = slice %0 starts=[1, 0, 0] sizes=[2, 1, 3] steps=[-1, 1, 1] @s0
%24: f32[2, 1, 3] = convert %22 to=f32 @s0
%25: f32[2, 1, 3] = concat %24 axis=1 @s0
%26: f32[1, 3] = broadcast %3 shape=[1, 3] @s0
%27: f32[2, 3] = broadcast %3 shape=[2, 3] @s0
%28: f32[2, 2, 3] = mul %0, %27 @s0
output "reshapes" %8
output "transposes" %10
output "neutral" %15
output "negative zero" %16
output "not exact" %17
output "not not" %19
output "selected" %20
output "selected itself" %21
output "views" %25
output "reversed" %23
output "leading axis" %26
output "needed broadcast" %28
"#,
    );
}

#[test]
fn fold_evaluates_what_is_exact() {
    snapshot(
        "pass_fold",
        fold,
        r#"graph "g"
source s0 node "a" "A"
%0: f32[2] = param "w" init=constant(1.0) @s0
%1: i64[3] = constant {2, 3, 4} @s0
%2: i64[] = constant {-1} @s0
%3: i64[] = gather %1, %2 axis=0 @s0
%4: i64[1] = constant {7} @s0
%5: i64[1] = gather %1, %4 axis=0 @s0
%6: i64[1] = reshape %3 shape=[1] @s0
%7: i64[4] = concat %1, %6 axis=0 @s0
%8: i64[] = reduce %7 kind=prod axes=[0] keep=false @s0
%9: i32[2, 3] = iota axis=1 @s0
%10: i32[3, 2] = transpose %9 perm=[1, 0] @s0
%11: u8[3] = constant {200, 100, 1} @s0
%12: u8[3] = add %11, %11 @s0
%13: i64[3] = sub %2, %1 @s0
%14: i64[3] = mod %13, %1 @s0
%15: i64[] = constant {0} @s0
%16: i64[3] = div %1, %15 @s0
%17: f32[2] = constant {2.0, -0.0} @s0
%18: f32[2] = sqrt %17 @s0
%19: f32[2] = exp %17 @s0
%20: f32[2] = neg %0 @s0
%21: f32[2] = div %17, %17 @s0
%22: bool[2] = lt %17, %18 @s0
%23: f32[2] = select %22, %17, %18 @s0
%24: i32[2] = convert %17 to=i32 @s0
%25: f16[2] = convert %17 to=f16 @s0
%26: f32[1] = slice %17 starts=[1] sizes=[1] steps=[-1] @s0
%27: f32[4] = broadcast %26 shape=[4] @s0
%28: f32[5] = broadcast %26 shape=[5] @s0
%29: i64[5] = pad %1 before=[1] after=[1] mode=reflect value=0.0 @s0
%30: i64[3] = pad %1 before=[-1] after=[1] mode=constant value=9.0 @s0
%31: i64[3] = cumsum %1 axis=0 exclusive=true reverse=true @s0
%32: f32[2] = max %17, %18 @s0
output "last" %3
output "index out of range" %5
output "product" %8
output "turned" %10
output "wraps" %12
output "modulus" %14
output "division by zero" %16
output "root" %18
output "exp" %19
output "parameter" %20
output "not a number" %21
output "selected" %23
output "whole" %24
output "half" %25
output "four times" %27
output "five times" %28
output "reflected" %29
output "cropped" %30
output "running" %31
output "larger" %32
"#,
    );
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
