//! Parts of nodes, put together, are the nodes: on real networks whose nodes are divided at random, and of
//! what each part is said not to read.

use std::collections::{BTreeMap, HashSet};

use partition::unstable::compile::{Options, prepare};
use partition::unstable::ir::text::parse;
use partition::unstable::ir::{
    Attention, ConvTranspose, DType, Graph, HeadOrder, Layout, NodeId, Op, ParamId, Real, ReduceKind, Shape,
    Source, SourceRole, Tensor, Type, Unary, ValueId, Window, verify,
};
use partition::unstable::kernel::split::{Split, splits};
use partition::unstable::pass::{self, Division};
use partition::unstable::run::{interpret, watch};

use crate::networks::Network;
use crate::random_costgraph::Rng;
use crate::shared;
use crate::sweep::Share;

/// Networks that are computed within a second or two in the profile of tests, and have every family.
const NETWORKS: [&str; 12] = [
    "exports/lstm.onnx",
    "exports/mha.onnx",
    "exports/moe_bmm.onnx",
    "exports/unfold.onnx",
    "keras/cnn_small.k3.json",
    "keras/gru_conv1d_small.k3.json",
    "keras/siamese_multi_io.k3.json",
    "keras/transformer_small.k3.json",
    "onnx/s_gpt2.onnx",
    "onnx/s_llama.onnx",
    "onnx/s_sd_unet.onnx",
    "onnx/s_vit.onnx",
];

fn open(file: &str) -> Option<(Network, Graph)> {
    let path = shared::file(&format!("corpus/{file}"))?;
    let network = Network::open(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let options = Options { bind: network.dims.clone(), ..Options::default() };
    let graph =
        prepare(network.graph.clone(), &options).unwrap_or_else(|error| panic!("{file}: {error}")).graph;
    Some((network, graph))
}

/// Where two to four parts begin, in no order that a planner would choose.
fn bounds(rng: &mut Rng, split: &Split) -> Vec<u64> {
    let units = split.extent / split.unit;
    let cuts = 1 + rng.next() % 3;
    let mut bounds: Vec<u64> =
        (0..cuts).map(|_| 1 + rng.next() % (units - 1)).map(|at| at * split.unit).collect();
    bounds.extend([0, split.extent]);
    bounds.sort_unstable();
    bounds.dedup();
    // No part is shorter than the least.
    let mut kept = vec![0];
    for bound in bounds {
        let last = kept[kept.len() - 1];
        if bound - last >= split.least && (split.extent - bound >= split.least || bound == split.extent) {
            kept.push(bound);
        }
    }
    match kept[..] {
        // The middle is always far enough from both ends.
        [0, _] => vec![0, split.extent / 2 / split.unit * split.unit, split.extent],
        _ => kept,
    }
}

/// A division of most nodes; without sums where `exact`.
fn divisions(graph: &Graph, rng: &mut Rng, exact: bool) -> BTreeMap<NodeId, Division> {
    let mut found = BTreeMap::new();
    for node in graph.node_ids() {
        let mut ways = splits(graph, node).unwrap();
        ways.retain(|way| !exact || !way.is_partial());
        if ways.is_empty() || rng.next().is_multiple_of(4) {
            continue;
        }
        let split = ways.swap_remove(rng.next() as usize % ways.len());
        let bounds = bounds(rng, &split);
        found.insert(node, Division { split, bounds, devices: Vec::new(), apart: false });
    }
    found
}

/// A node by itself, whose operands are inputs, and what they are in a run of the network.
struct Alone {
    graph: Graph,
    node: NodeId,
    inputs: Vec<(String, Tensor)>,
}

/// The nodes of a network that can be divided, each of one operation and types once.
fn alone(network: &Network, graph: &Graph) -> Vec<Alone> {
    let mut values: BTreeMap<ValueId, Tensor> = BTreeMap::new();
    let weight = |id: ParamId| network.weight_of(graph, id);
    watch(graph, &network.inputs, &weight, &mut |value, tensor| {
        values.insert(value, tensor);
        true
    })
    .unwrap();
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    for id in graph.node_ids() {
        let node = graph.node(id);
        let types: Vec<Type> = node.operands.iter().map(|&value| graph.ty(value).clone()).collect();
        if splits(graph, id).unwrap().is_empty() || !seen.insert(format!("{:?} {types:?}", node.op)) {
            continue;
        }
        let mut alone = Graph::new("alone");
        let source = alone.add_source(Source::new("node", node.op.name(), SourceRole::Node));
        let mut inputs = Vec::new();
        let mut operands = Vec::new();
        for (at, (&value, ty)) in node.operands.iter().zip(types).enumerate() {
            let name = format!("x{at}");
            let data = alone.add_source(Source::new(&name, "input", SourceRole::Data));
            operands.push(alone.add_input(&name, ty, data));
            inputs.push((name, values[&value].clone()));
        }
        let node = alone.push(node.op.clone(), &operands, source).unwrap();
        for (at, value) in alone.results(node).collect::<Vec<_>>().into_iter().enumerate() {
            alone.add_output(format!("y{at}"), value);
        }
        found.push(Alone { graph: alone, node, inputs });
    }
    found
}

fn no_params(_: ParamId) -> partition::unstable::error::Result<Tensor> {
    unreachable!("a node alone has none")
}

/// A sum over some axes of few elements, or what a sum is part of, at random.
fn sum_of_few(rng: &mut Rng) -> Alone {
    let dims: Vec<i64> =
        (0..1 + rng.next() % 4).map(|_| [1, 2, 3, 4, 5, 40][rng.next() as usize % 6]).collect();
    let rank = dims.len() as u64;
    let axis = (rng.next() % rank) as u32;
    let axes: Vec<u32> =
        (0..rank as u32).filter(|&other| other == axis || rng.next().is_multiple_of(3)).collect();
    let op = match rng.next() % 6 {
        0 => Op::Softmax { axis, log: false },
        1 => Op::Softmax { axis, log: true },
        2 => {
            Op::Normalize { axes, epsilon: Real(1e-3), center: rng.next().is_multiple_of(2), moments: false }
        }
        3 => Op::Normalize { axes, epsilon: Real(1e-3), center: true, moments: true },
        4 => Op::Reduce { kind: ReduceKind::Sum, axes, keep: rng.next().is_multiple_of(2) },
        _ => Op::Reduce { kind: ReduceKind::Mean, axes, keep: rng.next().is_multiple_of(2) },
    };
    let mut graph = Graph::new("few");
    let data = graph.add_source(Source::new("x", "input", SourceRole::Data));
    let x = graph.add_input("x", Type::new(DType::F32, Shape::known(&dims)), data);
    let source = graph.add_source(Source::new("node", op.name(), SourceRole::Node));
    let node = graph.push(op, &[x], source).unwrap();
    for (at, value) in graph.results(node).collect::<Vec<_>>().into_iter().enumerate() {
        graph.add_output(format!("y{at}"), value);
    }
    let elements = dims.iter().product::<i64>();
    let values: Vec<f32> = (0..elements).map(|_| (rng.next() % 4096) as f32 / 999.0 - 2.0).collect();
    let x = Tensor::from_f32(dims.iter().map(|&dim| dim as u64).collect(), &values).unwrap();
    Alone { graph, node, inputs: vec![("x".to_owned(), x)] }
}

/// A gradient by itself that gives the gradients of several operands: of a normalisation with a factor, of rows or of
/// channels, or of an attention.
fn gradient_alone(rng: &mut Rng) -> Alone {
    let mut any = |most: u64| 1 + rng.next() % most;
    let (op, dims): (Op, Vec<Vec<u64>>) = match any(3) {
        1 => {
            let heads = [(4, 4), (4, 2), (6, 2)][any(3) as usize - 1];
            let (batch, rows, keys, size) = (any(3), 8 * any(40), 4 + any(60), 4 * any(4));
            let order = [HeadOrder::HeadsFirst, HeadOrder::RowsFirst][any(2) as usize - 1];
            let of = |heads: i64, rows: u64| match order {
                HeadOrder::HeadsFirst => vec![batch, heads as u64, rows, size],
                HeadOrder::RowsFirst => vec![batch, rows, heads as u64, size],
            };
            let attention = Attention {
                heads: heads.0,
                key_heads: heads.1,
                first: [0; 3],
                orders: [order; 4],
                scale: Real(0.5),
                causal: (any(2) == 1).then_some(keys as i64 - rows as i64),
                positioned: false,
                fill: Real(-1e9),
                zeros: false,
            };
            let (q, k) = (of(heads.0, rows), of(heads.1, keys));
            (Op::AttentionGradient(Box::new(attention)), vec![q.clone(), k.clone(), k, q.clone(), q])
        }
        kind => {
            let dims = vec![2 + any(5), 2 + any(6), 2 + any(40)];
            // Rows of a layer's norm share a factor, channels of a batch's have one each.
            let (axes, factor, each) = match kind {
                2 => (vec![2], vec![dims[2]], vec![dims[0], dims[1]]),
                _ => (vec![0, 1], vec![dims[2]], vec![dims[2]]),
            };
            let (center, moments) = [(true, true), (true, false), (false, false)][any(3) as usize - 1];
            let op = Op::NormalizeGradient { axes, epsilon: Real(1e-3), center, scaled: true, moments };
            let mut operands = vec![dims.clone(), dims, factor];
            operands.extend(moments.then_some([each.clone(), each]).into_iter().flatten());
            (op, operands)
        }
    };
    of_operands(op, dims, rng)
}

/// An operation by itself on operands of these sizes, of positive numbers: some may be variances.
fn of_operands(op: Op, dims: Vec<Vec<u64>>, rng: &mut Rng) -> Alone {
    let mut graph = Graph::new("alone");
    let source = graph.add_source(Source::new("node", op.name(), SourceRole::Node));
    let (mut operands, mut inputs) = (Vec::new(), Vec::new());
    for (at, dims) in dims.iter().enumerate() {
        let name = format!("x{at}");
        let data = graph.add_source(Source::new(&name, "input", SourceRole::Data));
        let sizes: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
        operands.push(graph.add_input(&name, Type::new(DType::F32, Shape::known(&sizes)), data));
        let values: Vec<f32> =
            (0..dims.iter().product()).map(|_| (1 + rng.next() % 4096) as f32 / 2048.0).collect();
        inputs.push((name, Tensor::from_f32(dims.clone(), &values).unwrap()));
    }
    let node = graph.push(op, &operands, source).unwrap();
    for (at, value) in graph.results(node).collect::<Vec<_>>().into_iter().enumerate() {
        graph.add_output(format!("y{at}"), value);
    }
    Alone { graph, node, inputs }
}

/// Of gradients by several operands some are slices and others partial sums.
#[test]
fn each_way_to_divide_gradients_gives_them() {
    let mut rng = Rng::new(23);
    let (mut exact, mut partial) = (0, 0);
    for _ in 0..300 {
        let alone = gradient_alone(&mut rng);
        for split in splits(&alone.graph, alone.node).unwrap() {
            *if split.is_partial() { &mut partial } else { &mut exact } += 1;
            gives_its_results("gradient", &alone, split, &mut rng);
        }
    }
    assert!(exact > 200 && partial > 150, "{exact} exact ways, {partial} with sums");
}

/// A product of bytes by itself, with zero points of rows and columns, or of all.
fn product_of_bytes(rng: &mut Rng) -> Alone {
    let mut any = |least: u64, most: u64| least + rng.next() % (most - least + 1);
    let (m, n, k) = (any(1, 40), any(1, 90), any(1, 40));
    let (transpose_left, transpose_right) = (any(0, 1) == 1, any(0, 1) == 1);
    let batch: Vec<u64> = if any(0, 1) == 1 { vec![any(1, 4)] } else { vec![] };
    let left = if transpose_left { [k, m] } else { [m, k] };
    let right = if transpose_right { [n, k] } else { [k, n] };
    let mut dims = vec![[&batch[..], &left].concat(), right.to_vec()];
    if any(0, 2) > 0 {
        dims.push(if any(0, 1) == 1 { vec![m, 1] } else { vec![] });
        dims.push(if any(0, 1) == 1 { vec![n] } else { vec![] });
    }
    let dtypes = [0, 1].map(|_| if any(0, 1) == 1 { DType::I8 } else { DType::U8 });
    let op = Op::MatMul { transpose_left, transpose_right, wide: true, rounds: false };
    let mut graph = Graph::new("alone");
    let source = graph.add_source(Source::new("node", op.name(), SourceRole::Node));
    let (mut operands, mut inputs) = (Vec::new(), Vec::new());
    for (at, dims) in dims.into_iter().enumerate() {
        let (name, dtype) = (format!("x{at}"), dtypes[at % 2]);
        let data = graph.add_source(Source::new(&name, "input", SourceRole::Data));
        let sizes: Vec<i64> = dims.iter().map(|&dim| dim as i64).collect();
        operands.push(graph.add_input(&name, Type::new(dtype, Shape::known(&sizes)), data));
        let bytes: Vec<u8> = (0..dims.iter().product()).map(|_| rng.next() as u8).collect();
        inputs.push((name, Tensor::new(dtype, dims, bytes).unwrap()));
    }
    let node = graph.push(op, &operands, source).unwrap();
    let made = graph.node(node).first_result;
    graph.add_output("y", made);
    Alone { graph, node, inputs }
}

/// Sums of whole numbers are exact in whatever parts they are made.
#[test]
fn each_way_to_divide_products_of_bytes_gives_them() {
    let mut rng = Rng::new(37);
    let (mut exact, mut partial) = (0, 0);
    for _ in 0..80 {
        let alone = product_of_bytes(&mut rng);
        for split in splits(&alone.graph, alone.node).unwrap() {
            *if split.is_partial() { &mut partial } else { &mut exact } += 1;
            gives_its_results("product of bytes", &alone, split, &mut rng);
        }
    }
    assert!(exact > 60 && partial > 60, "{exact} exact ways, {partial} with sums");
}

/// A transposed convolution by itself: of windows with gaps and overlaps, some of more positions than are unfolded at once.
fn transposed_convolution(rng: &mut Rng) -> Alone {
    let mut any = |least: u64, most: u64| least + rng.next() % (most - least + 1);
    let spatial = any(1, 3) as usize;
    let layout = [Layout::ChannelsFirst, Layout::ChannelsLast][any(0, 1) as usize];
    let (groups, most) = (any(1, 2), if spatial == 1 { 30_000 } else { 9 });
    let (batch, inner, outer) = (any(1, 2), groups * any(1, 5), any(1, 4));
    let sizes: Vec<u64> = (0..spatial).map(|_| any(1, most)).collect();
    let kernel: Vec<u64> = (0..spatial).map(|_| any(1, 5)).collect();
    let strides: Vec<i64> = (0..spatial).map(|_| any(1, 4) as i64).collect();
    let dilations: Vec<i64> = (0..spatial).map(|_| any(1, 2) as i64).collect();
    let pads = |axis: usize, any: &mut dyn FnMut(u64, u64) -> u64| any(0, kernel[axis] / 2) as i64;
    let pads_before = (0..spatial).map(|axis| pads(axis, &mut any)).collect();
    let pads_after = (0..spatial).map(|axis| pads(axis, &mut any)).collect();
    let output_padding = (0..spatial).map(|_| any(2, 6) as i64).collect();
    let has_bias = any(0, 1) == 1;
    let window = Window { strides, dilations, pads_before, pads_after };
    let op = ConvTranspose { layout, window, output_padding, groups: groups as i64 };
    let (x, weights) = match layout {
        Layout::ChannelsFirst => {
            ([&[batch, inner], &sizes[..]].concat(), [&[inner, outer], &kernel[..]].concat())
        }
        Layout::ChannelsLast => {
            ([&[batch], &sizes[..], &[inner]].concat(), [&kernel[..], &[outer, inner]].concat())
        }
    };
    let mut dims = vec![x, weights];
    dims.extend(has_bias.then(|| vec![outer * groups]));
    of_operands(Op::ConvTranspose(op.into()), dims, rng)
}

sweep! {
    each_way_to_divide_transposed_convolutions_gives_them: one of 3;
}

fn each_way_to_divide_transposed_convolutions_gives_them(share: Share) {
    let (mut exact, mut partial) = (0, 0);
    for case in share.among(0..300) {
        let mut rng = Rng::new(31 << 32 | case);
        let alone = transposed_convolution(&mut rng);
        for split in splits(&alone.graph, alone.node).unwrap() {
            *if split.is_partial() { &mut partial } else { &mut exact } += 1;
            gives_its_results("transposed convolution", &alone, split, &mut rng);
        }
    }
    assert!(
        exact > share.least(1_200) && partial > share.least(80),
        "{exact} exact ways, {partial} with sums"
    );
}

/// What parts of a node are named where each may lie by itself, also of a graph that was divided before.
#[test]
fn sources_have_names_of_their_own_however_often_a_graph_is_divided() {
    for file in NETWORKS {
        let Some((_, mut graph)) = open(file) else { return };
        let mut rng = Rng::new(3);
        let mut slices = BTreeMap::new();
        let whole = graph.sources().len();
        for round in 0..3 {
            let mut divisions = divisions(&graph, &mut rng, false);
            divisions.values_mut().for_each(|division| division.apart = true);
            let before = pass::Before { slices: &slices, sources: graph.sources().len() - whole };
            let divided = pass::split_again(&graph, &divisions, &[], before).unwrap();
            (graph, slices) = (divided.graph, divided.slices);
            let mut names = HashSet::new();
            for source in graph.sources() {
                assert!(names.insert(&source.name), "{file}, round {round}: {} is there twice", source.name);
            }
        }
    }
}

/// A weight that is divided along one loop and then along another is held in boxes, by which the product is the same.
#[test]
fn weights_are_held_in_boxes_where_they_are_divided_along_two_axes() {
    let (rows, inner, columns) = (4, 48, 64);
    let text = format!(
        "graph \"product\"\n\nsource s0 data \"x\" \"input\"\nsource s1 node \"y\" \"matmul\"\n\n\
         %0: f32[{rows}, {inner}] = input \"x\" @s0\n\
         %1: f32[{inner}, {columns}] = param \"w\" init=constant(0.0) @s0\n\
         %2: f32[{rows}, {columns}] = matmul %0, %1 @s1\n\noutput \"y\" %2\n"
    );
    let mut graph = parse(&text).unwrap();
    let mut rng = Rng::new(5);
    let mut numbers = |count: u64| (0..count).map(|_| rng.below(17) as f32 - 8.0).collect::<Vec<f32>>();
    let x = Tensor::from_f32(vec![rows, inner], &numbers(rows * inner)).unwrap();
    let weight = Tensor::from_f32(vec![inner, columns], &numbers(inner * columns)).unwrap();
    let inputs = [("x".to_owned(), x)];
    let run = |graph: &Graph| {
        let own = |id: ParamId| graph.param(id).own_part(graph, weight.clone());
        interpret(graph, &inputs, &own).unwrap()
    };
    let expected = run(&graph);

    let mut slices = BTreeMap::new();
    let sources = graph.sources().len();
    // The loop over columns, then the one over what is summed.
    for is_sum in [false, true] {
        let products = graph.node_ids().filter(|&node| matches!(graph.node(node).op, Op::MatMul { .. }));
        let division = |node| {
            let ways = splits(&graph, node).unwrap();
            let extent = if is_sum { inner } else { columns };
            let split =
                ways.into_iter().find(|way| way.is_partial() == is_sum && way.extent == extent).unwrap();
            Division { split, bounds: vec![0, 16, 31, extent], devices: Vec::new(), apart: true }
        };
        let divisions: BTreeMap<_, _> = products.map(|node| (node, division(node))).collect();
        let before = pass::Before { slices: &slices, sources: graph.sources().len() - sources };
        let divided = pass::split_again(&graph, &divisions, &[], before).unwrap();
        verify(&divided.graph).unwrap();
        (graph, slices) = (divided.graph, divided.slices);
    }
    let sizes = graph.params().iter().map(|param| graph.ty(graph.node(param.node).first_result).elements());
    let sizes: Vec<u64> = sizes.map(Option::unwrap).collect();
    assert_eq!((sizes.len(), sizes.iter().sum()), (9, inner * columns), "{sizes:?}");
    assert_eq!(run(&graph), expected);
    assert_eq!(parse(&graph.to_string()).unwrap(), graph);
}

/// The order of a sum does not depend on how far the axes go that it leaves.
#[test]
fn sums_of_few_elements_keep_their_bits_in_the_least_of_parts() {
    let mut rng = Rng::new(11);
    let mut ways = 0;
    for _ in 0..1500 {
        let Alone { graph, node, inputs } = sum_of_few(&mut rng);
        let whole = interpret(&graph, &inputs, &no_params).unwrap();
        for split in splits(&graph, node).unwrap() {
            if split.is_partial() {
                continue;
            }
            ways += 1;
            let bounds = vec![0, split.least.max(split.unit), split.extent];
            let what = format!("{:?} of {:?} by {split:?}", graph.node(node).op, inputs[0].1.dims());
            let division = Division { split, bounds, devices: Vec::new(), apart: false };
            let divided = pass::split(&graph, &BTreeMap::from([(node, division)]), &[]).unwrap();
            let found = interpret(&divided.graph, &inputs, &no_params).unwrap();
            assert!(found == whole, "{what}: other bits");
        }
    }
    assert!(ways > 800, "{ways}");
}

/// A node divided one way gives what it gives whole: the same bits, or nearly where sums are divided.
fn gives_its_results(file: &str, alone: &Alone, split: Split, rng: &mut Rng) {
    let Alone { graph, node, inputs } = alone;
    let whole = interpret(graph, inputs, &no_params).unwrap();
    let bounds = bounds(rng, &split);
    let what = format!("{file}: {:?} by {split:?} at {bounds:?}", graph.node(*node).op);
    let exact = !split.is_partial();
    let division = Division { split, bounds, devices: Vec::new(), apart: false };
    let divided = pass::split(graph, &BTreeMap::from([(*node, division)]), &[])
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    verify(&divided.graph).unwrap_or_else(|error| panic!("{what}: {error}"));
    let found =
        interpret(&divided.graph, inputs, &no_params).unwrap_or_else(|error| panic!("{what}: {error}"));
    for ((_, found), (_, whole)) in found.iter().zip(&whole) {
        if exact {
            assert!(found == whole, "{what}: other bits");
            continue;
        }
        let (found, whole) = (found.to_f64(), whole.to_f64());
        let largest = whole.iter().fold(1e-6_f64, |most, value| most.max(value.abs()));
        let apart = found.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart <= 1e-5 * largest, "{what}: {apart} of {largest} apart");
    }
}

/// Every way to divide every node, one node at a time.
#[test]
fn each_way_to_divide_each_node_gives_its_results() {
    for file in NETWORKS {
        let Some((network, graph)) = open(file) else { return };
        let mut rng = Rng::new(5);
        let mut ways = 0;
        for alone in alone(&network, &graph) {
            for split in splits(&alone.graph, alone.node).unwrap() {
                ways += 1;
                gives_its_results(file, &alone, split, &mut rng);
            }
        }
        assert!(ways > 0, "{file}: nothing can be divided");
        println!("{file}: {ways} ways");
    }
}

#[test]
fn parts_put_together_are_the_whole() {
    for file in NETWORKS {
        let Some((network, graph)) = open(file) else { return };
        let weight = |id: ParamId| network.weight_of(&graph, id);
        let expected = interpret(&graph, &network.inputs, &weight).unwrap();
        let mut divided = 0;
        for seed in 0..4 {
            let exact = seed % 2 == 0;
            let mut rng = Rng::new(seed);
            let divisions = divisions(&graph, &mut rng, exact);
            divided += divisions.len();
            let split =
                pass::split(&graph, &divisions, &[]).unwrap_or_else(|error| panic!("{file}: {error}"));
            verify(&split.graph).unwrap_or_else(|error| panic!("{file}, seed {seed}: {error}"));
            let weight = |id: ParamId| network.weight_of(&split.graph, id);
            let found = interpret(&split.graph, &network.inputs, &weight)
                .unwrap_or_else(|error| panic!("{file}, seed {seed}: {error}"));
            for ((name, found), (_, whole)) in found.iter().zip(&expected) {
                if exact {
                    assert!(found == whole, "{file}, seed {seed}: {name} has other bits");
                    continue;
                }
                let (found, whole) = (found.to_f64(), whole.to_f64());
                let largest = whole.iter().fold(1e-6_f64, |most, value| most.max(value.abs()));
                let apart = found.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(apart <= 2e-5 * largest, "{file}, seed {seed}: {name} is {apart} of {largest} apart");
            }
        }
        assert!(divided > 0, "{file}: nothing was divided");
    }
}

/// What was divided is divided again, and inputs are handed over in the slices that are read.
#[test]
fn parts_of_parts_put_together_are_the_whole() {
    for file in
        ["keras/cnn_small.k3.json", "keras/gru_conv1d_small.k3.json", "onnx/s_gpt2.onnx", "onnx/s_vit.onnx"]
    {
        let Some((network, graph)) = open(file) else { return };
        let weight = |id: ParamId| network.weight_of(&graph, id);
        let expected = interpret(&graph, &network.inputs, &weight).unwrap();
        for seed in 0..3 {
            let mut rng = Rng::new(seed);
            let first = divisions(&graph, &mut rng, true);
            let once = pass::split(&graph, &first, &[]).unwrap_or_else(|error| panic!("{file}: {error}"));
            let second = divisions(&once.graph, &mut rng, true);
            assert!(!second.is_empty(), "{file}: no part was divided again");
            let twice = pass::split_again(&once.graph, &second, &once.places, left_by(&once, &graph))
                .unwrap_or_else(|error| panic!("{file}: {error}"));
            verify(&twice.graph).unwrap_or_else(|error| panic!("{file}, seed {seed}: {error}"));
            let weight = |id: ParamId| network.weight_of(&twice.graph, id);
            let found = interpret(&twice.graph, &network.inputs, &weight)
                .unwrap_or_else(|error| panic!("{file}, seed {seed}: {error}"));
            assert!(found == expected, "{file}, seed {seed}: other bits");
            within_their_values(file, &graph, &twice.slices);
        }
    }
}

/// What parts are said to be lies within the values that they are of.
fn within_their_values(
    file: &str,
    graph: &Graph,
    slices: &std::collections::BTreeMap<ValueId, pass::SliceOf>,
) {
    let names: HashSet<&str> = graph.sources().iter().map(|source| source.name.as_str()).collect();
    let params: HashSet<&str> = graph.params().iter().map(|param| param.name.as_str()).collect();
    for slice in slices.values() {
        // What was put together from parts has the name of who reads it.
        let name = slice.of.split('[').next().unwrap_or_default();
        let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
        assert!(names.contains(name) || params.contains(name), "{file}: a part of {}", slice.of);
        assert!(slice.bounds.iter().all(|&(start, end)| start <= end), "{file}: {slice:?}");
    }
}

/// What the division of a graph has left in it.
fn left_by<'d>(divided: &'d pass::Divided, whole: &Graph) -> pass::Before<'d> {
    pass::Before { slices: &divided.slices, sources: divided.graph.sources().len() - whole.sources().len() }
}

/// A box of an input that was cut along two axes, in the text form and as it is fed.
#[test]
fn inputs_are_handed_over_in_boxes() {
    let mut graph = Graph::new("boxes");
    let data = graph.add_source(Source::new("x", "input", SourceRole::Data));
    let x = graph.add_input("x", Type::new(DType::F32, Shape::known(&[4, 6])), data);
    let source = graph.add_source(Source::new("neg", "neg", SourceRole::Node));
    let y = graph.apply(Op::Unary(partition::unstable::ir::Unary::Neg), &[x], source).unwrap();
    graph.add_output("y", y);
    let values: Vec<f32> = (0..24).map(|value| value as f32).collect();
    let inputs = vec![("x".to_owned(), Tensor::from_f32(vec![4, 6], &values).unwrap())];
    let expected = interpret(&graph, &inputs, &no_params).unwrap();
    graph.slice_input("x");
    let by = |graph: &Graph, axis: u32| -> BTreeMap<NodeId, Division> {
        let is_neg = |&node: &NodeId| matches!(graph.node(node).op, Op::Unary(_));
        let of = |node: NodeId| {
            let split = splits(graph, node).unwrap().swap_remove(axis as usize);
            let bounds = vec![0, split.extent / 2, split.extent];
            (node, Division { split, bounds, devices: Vec::new(), apart: false })
        };
        graph.node_ids().filter(is_neg).map(of).collect()
    };
    let once = pass::split(&graph, &by(&graph, 0), &[]).unwrap();
    let twice =
        pass::split_again(&once.graph, &by(&once.graph, 1), &once.places, left_by(&once, &graph)).unwrap();
    let names: Vec<&str> = twice.graph.inputs().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["x[0..2, 0..3]", "x[0..2, 3..6]", "x[2..4, 0..3]", "x[2..4, 3..6]"]);
    assert_eq!(interpret(&twice.graph, &inputs, &no_params).unwrap(), expected);
    let read = partition::unstable::ir::text::parse(&twice.graph.to_string()).unwrap();
    assert_eq!(interpret(&read, &inputs, &no_params).unwrap(), expected);
    let seen = twice.graph.callers_ports().unwrap();
    assert_eq!((seen.inputs().len(), seen.input_type(0)), (1, graph.input_type(0)));
}

/// Sixteen slices of eight bytes, each with a buffer as long as the alignment: four at a time where memory is scarce.
#[test]
fn short_slices_are_put_together_in_stages_where_memory_is_scarce() {
    let mut graph = Graph::new("short");
    let data = graph.add_source(Source::new("x", "input", SourceRole::Data));
    let x = graph.add_input("x", Type::new(DType::F32, Shape::known(&[16, 2])), data);
    let source = graph.add_source(Source::new("node", "relu", SourceRole::Node));
    let node = graph.push(Op::Unary(Unary::Relu), &[x], source).unwrap();
    let y = graph.results(node).next().unwrap();
    graph.add_output("y", y);
    let split = splits(&graph, node).unwrap().swap_remove(0);
    for (apart, widest) in [(false, 16), (true, 4)] {
        let division =
            Division { split: split.clone(), bounds: (0..=16).collect(), devices: Vec::new(), apart };
        let divided = pass::split(&graph, &BTreeMap::from([(node, division)]), &[0, 0]).unwrap().graph;
        verify(&divided).unwrap();
        let joins = divided.node_ids().map(|id| divided.node(id));
        let joins = joins.filter(|node| matches!(node.op, Op::Concat { .. }));
        assert_eq!(joins.map(|node| node.operands.len()).max(), Some(widest));
    }
}
