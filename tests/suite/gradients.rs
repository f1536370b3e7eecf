//! Gradients against central differences, both evaluated in f64 by the reference: every operation, and
//! random compositions.

use std::collections::BTreeSet;

use partition::unstable::compile::{Options, compile};
use partition::unstable::error::Error;
use partition::unstable::ir::*;
use partition::unstable::load::Model;
use partition::unstable::pass::gradient::{gradient, no_gradient, unroll};
use partition::unstable::topology::Topology;

use crate::random_graph::{Random, random_graph};
use crate::reference::{Array, evaluate};

/// A tensor as the reference has it.
fn array(tensor: &Tensor) -> Array {
    let dims: Vec<usize> = tensor.dims().iter().map(|&dim| dim as usize).collect();
    Array::new(tensor.dtype(), &dims, tensor.to_f64())
}

fn typed(ty: &Type) -> (DType, Vec<usize>) {
    (ty.dtype, ty.shape.dims().unwrap().iter().map(|&dim| dim as usize).collect())
}

/// Every value of a graph; `leaves` holds those of inputs and parameters.
pub(crate) fn evaluate_graph(graph: &Graph, leaves: &dyn Fn(ValueId) -> Array) -> Vec<Array> {
    let mut values: Vec<Array> = Vec::with_capacity(graph.value_count());
    for id in graph.node_ids() {
        let node = graph.node(id);
        match &node.op {
            Op::Input | Op::Param(_) => values.push(leaves(node.first_result)),
            Op::Constant(constant) => values.push(array(graph.constant(*constant))),
            op => {
                let operands: Vec<Array> =
                    node.operands.iter().map(|value| values[value.index()].clone()).collect();
                let results: Vec<_> = graph.results(id).map(|value| typed(graph.ty(value))).collect();
                values.extend(evaluate(op, &operands, &results));
            }
        }
    }
    values
}

/// Checks the gradients of a weighted sum of `outputs` by `of`; how many coordinates were compared.
/// Coordinates beside a kink, where differences of two widths disagree, are left out.
fn check(name: &str, mut graph: Graph, outputs: &[ValueId], of: &[ValueId], data: &[Array]) -> usize {
    let source = graph.add_source(Source::new("loss", "loss", SourceRole::Node));
    let mut random = Random::new(7);
    let mut total: Option<ValueId> = None;
    for &output in outputs {
        let ty = graph.ty(output).clone();
        let dims: Vec<u64> = ty.shape.dims().unwrap().iter().map(|&dim| dim as u64).collect();
        let count = dims.iter().product::<u64>() as usize;
        let weights: Vec<f64> = (0..count).map(|_| f64::from(random.float())).collect();
        let bytes: Vec<u8> = match ty.dtype {
            DType::F64 => weights.iter().flat_map(|value| value.to_le_bytes()).collect(),
            _ => weights.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect(),
        };
        let weights = graph.add_constant(Tensor::new(ty.dtype, dims, bytes).unwrap(), source);
        let product = graph.apply(Op::Binary(Binary::Mul), &[output, weights], source).unwrap();
        let axes: Vec<u32> = (0..ty.shape.rank() as u32).collect();
        let sum = match axes.is_empty() {
            true => product,
            false => {
                let reduce = Op::Reduce { kind: ReduceKind::Sum, axes, keep: false };
                graph.apply(reduce, &[product], source).unwrap()
            }
        };
        total = Some(match total {
            Some(total) => graph.apply(Op::Binary(Binary::Add), &[total, sum], source).unwrap(),
            None => sum,
        });
    }
    let loss = total.unwrap();
    let forward = graph.clone();
    let gradients = gradient(&mut graph, loss, of).unwrap_or_else(|error| panic!("{name}: {error}"));
    verify(&graph).unwrap_or_else(|error| panic!("{name}: {error}"));
    let leaf = |value: ValueId| data[of.iter().position(|&one| one == value).unwrap()].clone();
    let values = evaluate_graph(&graph, &leaf);
    let mut compared = 0;
    for (position, found) in gradients.iter().enumerate() {
        let count = data[position].data.len();
        let step = count.div_ceil(10).max(1);
        for at in (0..count).step_by(step) {
            let loss_at = |offset: f64| {
                let moved = |value: ValueId| {
                    let mut array = leaf(value);
                    if value == of[position] {
                        array.data[at] += offset;
                    }
                    array
                };
                evaluate_graph(&forward, &moved)[loss.index()].data[0]
            };
            let slope = |h: f64| (loss_at(h) - loss_at(-h)) / (2.0 * h);
            let (narrow, wide) = (slope(1e-5), slope(3e-5));
            let size = narrow.abs().max(1.0);
            if !narrow.is_finite() || (narrow - wide).abs() > 1e-5 * size {
                continue;
            }
            let found = found.map_or(0.0, |value| values[value.index()].data[at]);
            assert!(
                (found - narrow).abs() <= 2e-5 * size,
                "{name}: element {at} of operand {position}: found {found}, differences give {narrow}"
            );
            compared += 1;
        }
    }
    compared
}

/// A case: an operation on operands of these sizes, with constants after them.
struct Case {
    graph: Graph,
    source: SourceId,
    of: Vec<ValueId>,
    data: Vec<Array>,
    random: Random,
}

impl Case {
    fn new(sizes: &[&[i64]], (low, high): (f64, f64)) -> Self {
        let mut graph = Graph::new("case");
        let source = graph.add_source(Source::new("node", "Node", SourceRole::Node));
        let mut random = Random::new(3);
        let (mut of, mut data) = (Vec::new(), Vec::new());
        for (number, dims) in sizes.iter().enumerate() {
            let ty = Type::new(DType::F64, Shape::known(dims));
            of.push(graph.add_param(format!("p{number}"), ty, Init::zeros(), None, source));
            let count = dims.iter().product::<i64>() as usize;
            // No two are equal, so that no maximum has a tie.
            let draw =
                |at| low + (high - low) * (f64::from(random.float()) + 1.0) / 2.0 + (1 + at) as f64 * 1.7e-4;
            let dims: Vec<usize> = dims.iter().map(|&dim| dim as usize).collect();
            data.push(Array::new(DType::F64, &dims, (0..count).map(draw).collect()));
        }
        Self { graph, source, of, data, random }
    }

    fn indices(&mut self, dims: &[u64], below: i64) -> ValueId {
        let count = dims.iter().product::<u64>() as usize;
        let values: Vec<i64> = (0..count).map(|_| self.random.below(below as usize) as i64).collect();
        self.graph.add_constant(Tensor::from_i64(dims.to_vec(), &values).unwrap(), self.source)
    }

    fn run(mut self, op: &Op, more: &[ValueId], seen: &mut BTreeSet<&'static str>) {
        let operands: Vec<ValueId> = self.of.iter().chain(more).copied().collect();
        self.finish(op, &operands, seen);
    }

    fn finish(&mut self, op: &Op, operands: &[ValueId], seen: &mut BTreeSet<&'static str>) {
        let node = self.graph.push(op.clone(), operands, self.source).unwrap();
        let floats: Vec<ValueId> =
            self.graph.results(node).filter(|&value| self.graph.ty(value).dtype.is_float()).collect();
        let name = format!("{op:?}");
        let compared = check(&name, self.graph.clone(), &floats, &self.of, &self.data);
        assert!(compared > 0, "{name}: nothing was compared");
        seen.insert(op.name());
    }
}

fn window(stride: i64, dilation: i64, before: i64, after: i64) -> Window {
    Window {
        strides: vec![stride; 2],
        dilations: vec![dilation; 2],
        pads_before: vec![before; 2],
        pads_after: vec![after, 0],
    }
}

fn elementwise(seen: &mut BTreeSet<&'static str>) {
    for &unary in Unary::ALL {
        let op = Op::Unary(unary);
        if no_gradient(&op).is_none() {
            let range = match unary {
                Unary::Log | Unary::Sqrt | Unary::Reciprocal => (0.3, 2.0),
                Unary::Log1p => (-0.7, 2.0),
                Unary::Tan => (-1.0, 1.0),
                _ => (-2.0, 2.0),
            };
            Case::new(&[&[3, 4]], range).run(&op, &[], seen);
        } else if !matches!(unary, Unary::Not | Unary::IsNan | Unary::IsInf | Unary::Detach) {
            Case::new(&[&[3, 4]], (-2.0, 2.0)).run(&op, &[], seen);
        }
    }
    for &binary in Binary::ALL {
        if !binary.is_of_bits() {
            Case::new(&[&[3, 4], &[2, 1, 4]], (0.4, 2.0)).run(&Op::Binary(binary), &[], seen);
        }
    }
    let mut case = Case::new(&[&[3, 4], &[4]], (-1.0, 1.0));
    let (a, b) = (case.of[0], case.of[1]);
    let condition = case.graph.apply(Op::Compare(Compare::Gt), &[a, b], case.source).unwrap();
    case.finish(&Op::Select, &[condition, a, b], seen);
    let two = Tensor::new(DType::F64, vec![], 2.0f64.to_le_bytes().to_vec()).unwrap();
    let mut case = Case::new(&[&[3, 4]], (-1.0, 1.0));
    let (a, two) = (case.of[0], case.graph.add_constant(two, case.source));
    case.finish(&Op::Binary(Binary::Pow), &[a, two], seen);
    let mut case = Case::new(&[], (-1.0, 1.0));
    let ty = Type::new(DType::F32, Shape::known(&[3]));
    case.of.push(case.graph.add_param("narrow", ty, Init::zeros(), None, case.source));
    case.data.push(Array::new(DType::F32, &[3], vec![0.5, -0.25, 1.0]));
    case.run(&Op::Convert { to: DType::F64 }, &[], seen);
}

fn reductions(seen: &mut BTreeSet<&'static str>) {
    for &kind in ReduceKind::ALL {
        for keep in [false, true] {
            Case::new(&[&[3, 2, 4]], (-1.0, 1.0)).run(
                &Op::Reduce { kind, axes: vec![0, 2], keep },
                &[],
                seen,
            );
        }
    }
    let mut zeros = Case::new(&[&[3, 4]], (-1.0, 1.0));
    (zeros.data[0].data[1], zeros.data[0].data[4], zeros.data[0].data[6]) = (0.0, 0.0, 0.0);
    zeros.run(&Op::Reduce { kind: ReduceKind::Prod, axes: vec![1], keep: false }, &[], seen);
    for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
        Case::new(&[&[3, 4]], (-1.0, 1.0)).run(&Op::CumSum { axis: 1, exclusive, reverse }, &[], seen);
    }
    for log in [false, true] {
        Case::new(&[&[3, 4]], (-1.0, 1.0)).run(&Op::Softmax { axis: 1, log }, &[], seen);
    }
    Case::new(&[&[2, 3, 4], &[2, 3, 4]], (-1.0, 1.0)).run(&Op::CrossEntropy, &[], seen);
    let mut named = Case::new(&[&[5, 4]], (-1.0, 1.0));
    let classes = named.indices(&[5], 4);
    named.run(&Op::CrossEntropy, &[classes], seen);
    for center in [false, true] {
        let op = Op::Normalize { axes: vec![1, 2], epsilon: Real(1e-3), center, moments: false };
        Case::new(&[&[2, 3, 4]], (-1.0, 1.0)).run(&op, &[], seen);
    }
    for axes in [vec![1, 2], vec![0, 2], vec![0, 1]] {
        let op = Op::Normalize { axes, epsilon: Real(1e-3), center: true, moments: true };
        Case::new(&[&[2, 3, 4]], (-1.0, 1.0)).run(&op, &[], seen);
    }
    for size in [3, 4] {
        let op = Op::LocalResponseNorm { size, alpha: Real(0.3), beta: Real(0.75), bias: Real(1.5) };
        Case::new(&[&[2, 6, 2, 2]], (-1.0, 1.0)).run(&op, &[], seen);
    }
}

/// Of what packed weights are multiplied with; that is of f32.
fn packed_products(seen: &mut BTreeSet<&'static str>) {
    let packed = Packed { format: BlockFormat::Q8_0, columns: 64 };
    let numbers: Vec<f32> = (0..320).map(|i| ((i * 29 % 83) as f32 - 41.0) / 30.0).collect();
    let bytes = packed.format.pack(&numbers).unwrap();
    let rows = Tensor::new(DType::U8, vec![5, packed.row_bytes()], bytes).unwrap();
    let mut graph = Graph::new("case");
    let source = graph.add_source(Source::new("node", "Node", SourceRole::Node));
    let ty = Type::new(DType::F32, Shape::known(&[2, 3, 64]));
    let x = graph.add_param("p0", ty, Init::zeros(), None, source);
    let mut random = Random::new(3);
    let data = Array::new(DType::F32, &[2, 3, 64], (0..384).map(|_| f64::from(random.float())).collect());
    let rows = graph.add_constant(rows, source);
    let op = Op::PackedMatMul(packed);
    seen.insert(op.name());
    let y = graph.apply(op, &[x, rows], source).unwrap();
    assert!(check("packed_matmul", graph, &[y], &[x], &[data]) > 0);
}

fn products(seen: &mut BTreeSet<&'static str>) {
    for (transpose_left, transpose_right) in [(false, false), (false, true), (true, false), (true, true)] {
        let left: &[i64] = if transpose_left { &[2, 5, 3] } else { &[2, 3, 5] };
        let op = Op::MatMul { transpose_left, transpose_right, wide: false, rounds: false };
        for batch in [&[4i64, 2, 0, 0][..], &[1, 0, 0], &[0, 0]] {
            let mut right = batch.to_vec();
            let rank = right.len();
            (right[rank - 2], right[rank - 1]) = if transpose_right { (4, 5) } else { (5, 4) };
            Case::new(&[left, &right], (-1.0, 1.0)).run(&op, &[], seen);
        }
    }
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        for (groups, window) in [
            (1, window(1, 1, 0, 0)),
            (1, window(2, 1, 1, 1)),
            (1, window(1, 2, 2, 1)),
            (1, window(1, 1, 3, 0)),
            (2, window(2, 1, 1, 0)),
            (2, window(1, 2, 2, 1)),
            (4, window(3, 2, 1, 2)),
        ] {
            let first = layout == Layout::ChannelsFirst;
            let x: &[i64] = if first { &[2, 4, 8, 7] } else { &[2, 8, 7, 4] };
            let inner = 4 / groups;
            let w: &[i64] = if first { &[4, inner, 3, 2] } else { &[3, 2, inner, 4] };
            let op = Op::Conv(Box::new(Conv { layout, window: window.clone(), groups }));
            Case::new(&[x, w, &[4]], (-1.0, 1.0)).run(&op, &[], seen);
            let output_padding = vec![window.strides[0] - 1, 0];
            let small: &[i64] = if first { &[2, 4, 4, 5] } else { &[2, 4, 5, 4] };
            let op = Op::ConvTranspose(Box::new(ConvTranspose { layout, window, output_padding, groups }));
            Case::new(&[small, w, &[4]], (-1.0, 1.0)).run(&op, &[], seen);
        }
        // Kernels of one element are products: fewer of them than the images, or not.
        for (stride, inner) in [(1, 4), (2, 4), (3, 9)] {
            let first = layout == Layout::ChannelsFirst;
            let x: &[i64] = if first { &[2, inner, 8, 7] } else { &[2, 8, 7, inner] };
            let w: &[i64] = if first { &[5, inner, 1, 1] } else { &[1, 1, inner, 5] };
            let op = Op::Conv(Box::new(Conv { layout, window: window(stride, 1, 0, 0), groups: 1 }));
            Case::new(&[x, w, &[5]], (-1.0, 1.0)).run(&op, &[], seen);
        }
        for &kind in PoolKind::ALL {
            for (kernel, window) in
                [(2, window(2, 1, 0, 0)), (3, window(2, 1, 1, 1)), (2, window(1, 2, 1, 1))]
            {
                let x: &[i64] = if layout == Layout::ChannelsFirst { &[2, 3, 6, 7] } else { &[2, 6, 7, 3] };
                let extra_after = vec![window.pads_after[0].min(1), 0];
                let pool = Pool { kind, layout, kernel: vec![kernel; 2], window, extra_after };
                Case::new(&[x], (-1.0, 1.0)).run(&Op::Pool(Box::new(pool)), &[], seen);
            }
        }
    }
    for &interpolation in Interpolation::ALL {
        for &coordinates in ResizeCoordinates::ALL {
            let shape = Shape::known(&[1, 2, 7, 2]);
            let op = Resize { shape, interpolation, coordinates, scales: None };
            Case::new(&[&[1, 2, 4, 5]], (-1.0, 1.0)).run(&Op::Resize(Box::new(op)), &[], seen);
        }
    }
}

fn attention(seen: &mut BTreeSet<&'static str>) {
    let (heads, rows) = (HeadOrder::HeadsFirst, HeadOrder::RowsFirst);
    let plain = Attention {
        heads: 2,
        key_heads: 2,
        first: [0; 3],
        orders: [heads; 4],
        scale: Real(0.7),
        causal: None,
        positioned: false,
        fill: Real(f64::NEG_INFINITY),
        zeros: false,
    };
    let op = |op: Attention| Op::Attention(Box::new(op));
    let (q, k, v): (&[i64], &[i64], &[i64]) = (&[2, 2, 3, 4], &[2, 2, 5, 4], &[2, 2, 5, 3]);
    Case::new(&[q, k, v], (-1.0, 1.0)).run(&op(plain.clone()), &[], seen);
    let causal = Attention { causal: Some(2), ..plain.clone() };
    Case::new(&[q, k, v], (-1.0, 1.0)).run(&op(causal), &[], seen);
    Case::new(&[q, k, v, &[1, 2, 1, 5]], (-1.0, 1.0)).run(&op(plain.clone()), &[], seen);
    // Queries, keys and values in one tensor, all of it or not.
    for (first, whole) in [([0, 2, 4], 6), ([4, 0, 2], 6), ([0, 2, 4], 7), ([1, 1, 3], 6)] {
        let mut case = Case::new(&[&[2, 3, whole, 4]], (-1.0, 1.0));
        let beside = Attention { first, orders: [rows; 4], ..plain.clone() };
        let x = [case.of[0]; 3];
        case.finish(&op(beside), &x, seen);
    }
    // Heads that share keys, other orders, operands that lie beside others; a mask of bools.
    let shared = Attention {
        heads: 4,
        key_heads: 2,
        first: [1, 0, 2],
        orders: [rows, heads, rows, rows],
        fill: Real(-1.0),
        zeros: true,
        ..plain
    };
    let mut case = Case::new(&[&[1, 3, 5, 4], &[1, 3, 5, 4], &[1, 5, 4, 3]], (-1.0, 1.0));
    let shown = Tensor::new(DType::Bool, vec![1, 1, 3, 5], vec![1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1]);
    let mask = case.graph.add_constant(shown.unwrap(), case.source);
    case.run(&op(shared), &[mask], seen);
    for transposed in [false, true] {
        let op = Op::Rotary { transposed };
        Case::new(&[&[2, 3, 6], &[3, 6], &[1, 6]], (-1.0, 1.0)).run(&op, &[], seen);
    }
}

fn layouts(seen: &mut BTreeSet<&'static str>) {
    let x: &[i64] = &[3, 4, 5];
    let shape = Shape::known(&[5, 12]);
    Case::new(&[x], (-1.0, 1.0)).run(&Op::Reshape { shape }, &[], seen);
    Case::new(&[x], (-1.0, 1.0)).run(&Op::Transpose { perm: vec![2, 0, 1] }, &[], seen);
    let shape = Shape::known(&[2, 3, 4, 5]);
    Case::new(&[&[4, 1]], (-1.0, 1.0)).run(&Op::Broadcast { shape }, &[], seen);
    let known = |list: &[i64]| list.iter().map(|&size| Size::Known(size)).collect::<Vec<Size>>();
    for (starts, sizes, steps) in [
        ([1, 0, 2], [2, 4, 2], [1, 1, 1]),
        ([0, 3, 1], [2, 2, 2], [2, -3, 3]),
        ([2, 0, 4], [3, 1, 5], [-1, 1, -1]),
    ] {
        let slice = Slice { starts: known(&starts), sizes: known(&sizes), steps: steps.to_vec() };
        Case::new(&[x], (-1.0, 1.0)).run(&Op::Slice(Box::new(slice)), &[], seen);
    }
    for &mode in PadMode::ALL {
        let (before, after) = (vec![1, 0, 2], vec![2, 0, 1]);
        let pad = Pad { before, after, mode, value: Real(0.5) };
        Case::new(&[x], (-1.0, 1.0)).run(&Op::Pad(Box::new(pad)), &[], seen);
    }
    let pad =
        Pad { before: vec![-1, 2, 0], after: vec![0, -1, 0], mode: PadMode::Constant, value: Real(0.0) };
    Case::new(&[x], (-1.0, 1.0)).run(&Op::Pad(Box::new(pad)), &[], seen);
    Case::new(&[&[2, 3], &[2, 1], &[2, 2]], (-1.0, 1.0)).run(&Op::Concat { axis: 1 }, &[], seen);
}

fn indexed(seen: &mut BTreeSet<&'static str>) {
    for axis in 0..3 {
        let mut case = Case::new(&[&[3, 4, 5]], (-1.0, 1.0));
        let indices = case.indices(&[2, 3], 3);
        case.run(&Op::Gather { axis }, &[indices], seen);
        let mut case = Case::new(&[&[3, 4, 5]], (-1.0, 1.0));
        let indices = case.indices(&[2, 3, 2], 3);
        case.run(&Op::GatherElements { axis }, &[indices], seen);
    }
    for batch_dims in 0..2 {
        let mut case = Case::new(&[&[3, 4, 5]], (-1.0, 1.0));
        let indices = case.indices(&[3, 2, 2], 3);
        case.run(&Op::GatherNd { batch_dims }, &[indices], seen);
    }
    let unique = Tensor::from_i64(vec![2, 2], &[3, 0, 1, 2]).unwrap();
    let rows = Tensor::from_i64(vec![2, 1], &[2, 0]).unwrap();
    let often = Tensor::from_i64(vec![2, 2], &[3, 3, 1, 1]).unwrap();
    let [max, min] = [ScatterKind::Max, ScatterKind::Min];
    for (kind, unique) in [ScatterKind::Replace, ScatterKind::Add, max, min]
        .map(|kind| (kind, &unique))
        .into_iter()
        .chain([(ScatterKind::Add, &often), (max, &often), (min, &often)])
    {
        let mut case = Case::new(&[&[3, 4], &[2, 2]], (-1.0, 1.0));
        let (data, updates) = (case.of[0], case.of[1]);
        let indices = case.graph.add_constant(unique.clone(), case.source);
        case.finish(&Op::ScatterElements { axis: 1, kind }, &[data, indices, updates], seen);
        let mut case = Case::new(&[&[3, 4], &[2, 4]], (-1.0, 1.0));
        let (data, updates) = (case.of[0], case.of[1]);
        let indices = case.graph.add_constant(rows.clone(), case.source);
        case.finish(&Op::ScatterNd { kind }, &[data, indices, updates], seen);
    }
    let start = Tensor::from_i64(vec![], &[1]).unwrap();
    let mut case = Case::new(&[&[3, 5, 2], &[3, 2, 2]], (-1.0, 1.0));
    let (data, update) = (case.of[0], case.of[1]);
    let start = case.graph.add_constant(start, case.source);
    case.finish(&Op::UpdateSlice { axis: 1 }, &[data, start, update], seen);
    for largest in [false, true] {
        let topk = TopK { axis: 1, k: 2, largest };
        Case::new(&[&[3, 5]], (-1.0, 1.0)).run(&Op::TopK(topk), &[], seen);
    }
}

/// Every operation that exists; a new one does not compile here until it is listed.
fn all_operations() -> Vec<&'static str> {
    fn listed(op: &Op) -> bool {
        match op {
            Op::Input | Op::Param(_) | Op::Constant(_) | Op::Sizes(_) | Op::Iota { .. } => true,
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Convert { .. } => true,
            Op::Reduce { .. } | Op::ArgReduce { .. } | Op::CumSum { .. } | Op::Softmax { .. } => true,
            Op::Normalize { .. } | Op::LocalResponseNorm { .. } | Op::MatMul { .. } => true,
            Op::Unpack(_) | Op::PackedMatMul(_) => true,
            Op::Attention(_) | Op::AttentionGradient(_) | Op::Rotary { .. } => true,
            Op::SoftmaxGradient { .. } | Op::NormalizeGradient { .. } => true,
            Op::CrossEntropy | Op::CrossEntropyGradient => true,
            Op::MaxPoolGradient(_) => true,
            Op::Conv(_) | Op::ConvTranspose(_) | Op::Pool(_) | Op::Resize(_) | Op::Recurrent(_) => true,
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Broadcast { .. } | Op::Slice(_) => true,
            Op::Pad(_) | Op::Concat { .. } | Op::Gather { .. } | Op::GatherElements { .. } => true,
            Op::GatherNd { .. } | Op::ScatterElements { .. } | Op::ScatterNd { .. } | Op::TopK(_) => true,
            Op::UpdateSlice { .. } | Op::TreeLeaves { .. } => true,
        }
    }
    assert!(listed(&Op::Select));
    let differentiable = Unary::ALL.iter().map(|unary| Op::Unary(*unary));
    let differentiable = differentiable.filter(|op| no_gradient(op).is_none()).map(|op| op.name());
    let binary = Binary::ALL.iter().filter(|one| !one.is_of_bits());
    let others = [
        "select",
        "convert",
        "reduce",
        "cumsum",
        "softmax",
        "cross_entropy",
        "normalize",
        "local_response_norm",
        "matmul",
        "packed_matmul",
        "attention",
        "rotary",
        "conv",
        "conv_transpose",
        "pool",
        "resize",
        "reshape",
        "transpose",
        "broadcast",
        "slice",
        "pad",
        "concat",
        "gather",
        "gather_elements",
        "gather_nd",
        "scatter_elements",
        "scatter_nd",
        "topk",
    ];
    differentiable.chain(binary.map(|one| one.name())).chain(others).collect()
}

#[test]
fn every_operation_has_the_gradient_that_differences_give() {
    let mut seen = BTreeSet::new();
    elementwise(&mut seen);
    reductions(&mut seen);
    products(&mut seen);
    packed_products(&mut seen);
    attention(&mut seen);
    layouts(&mut seen);
    indexed(&mut seen);
    for name in all_operations() {
        assert!(seen.contains(name), "{name} has no case");
    }
}

#[test]
fn a_normalisation_with_factor_and_summand_has_its_gradients_from_one_operation() {
    let add =
        |graph: &mut Graph, op: Binary, x: [ValueId; 2], source| graph.apply(Op::Binary(op), &x, source);
    // A layer norm, a batch norm, a norm without a summand; the operands in either order.
    let cases: [(&[i64], &[u32], &[i64], Option<&[i64]>); 4] = [
        (&[3, 2, 5], &[2], &[5], Some(&[1, 5])),
        (&[3, 4, 2, 2], &[0, 2, 3], &[4, 1, 1], Some(&[4, 1, 1])),
        (&[2, 3, 4], &[1, 2], &[3, 4], None),
        (&[4, 6], &[1], &[6], None),
    ];
    for (number, (dims, axes, factor, shift)) in cases.into_iter().enumerate() {
        let sizes: Vec<&[i64]> = [dims, factor].into_iter().chain(shift).collect();
        let mut case = Case::new(&sizes, (-1.0, 1.0));
        let center = number != 3;
        let op = Op::Normalize { axes: axes.to_vec(), epsilon: Real(1e-3), center, moments: false };
        let normal = case.graph.apply(op, &[case.of[0]], case.source).unwrap();
        let pair = if number % 2 == 0 { [normal, case.of[1]] } else { [case.of[1], normal] };
        let mut y = add(&mut case.graph, Binary::Mul, pair, case.source).unwrap();
        if let Some(&shift) = case.of.get(2) {
            let pair = if number % 2 == 0 { [y, shift] } else { [shift, y] };
            y = add(&mut case.graph, Binary::Add, pair, case.source).unwrap();
        }
        let mut graph = case.graph.clone();
        let axes: Vec<u32> = (0..dims.len() as u32).collect();
        let reduce = Op::Reduce { kind: ReduceKind::Sum, axes, keep: false };
        let loss = graph.apply(reduce, &[y], case.source).unwrap();
        let before = graph.node_count();
        gradient(&mut graph, loss, &case.of).unwrap();
        let after = graph.node_ids().skip(before).map(|node| graph.node(node).op.name());
        let made: Vec<&str> =
            after.filter(|name| !["constant", "reshape", "broadcast"].contains(name)).collect();
        assert_eq!(made, ["normalize_gradient"], "case {number}");
        assert!(check(&format!("case {number}"), case.graph, &[y], &case.of, &case.data) > 12);
    }
}

#[test]
fn recurrent_layers_are_unrolled_into_the_same_values_and_have_gradients() {
    for cell in Cell::ALL {
        for direction in Direction::ALL {
            let (hidden, features) = (3i64, 2i64);
            let directions = if *direction == Direction::Bidirectional { 2 } else { 1 };
            let gates = match cell {
                Cell::Rnn => 1,
                Cell::Lstm => 4,
                Cell::Gru | Cell::GruResetAfter => 3,
            };
            let rows = gates * hidden;
            let mut sizes: Vec<Vec<i64>> = vec![
                vec![3, 2, features],
                vec![directions, rows, features],
                vec![directions, rows, hidden],
                vec![directions, 2 * rows],
                vec![directions, 2, hidden],
            ];
            if *cell == Cell::Lstm {
                sizes.push(vec![directions, 2, hidden]);
            }
            let borrowed: Vec<&[i64]> = sizes.iter().map(Vec::as_slice).collect();
            let mut case = Case::new(&borrowed, (-1.0, 1.0));
            let layer = Recurrent { cell: *cell, direction: *direction, hidden };
            let node = case.graph.push(Op::Recurrent(Box::new(layer)), &case.of, case.source).unwrap();
            let results: Vec<ValueId> = case.graph.results(node).collect();
            results.iter().enumerate().for_each(|(i, &value)| case.graph.add_output(format!("y{i}"), value));
            let leaf =
                |value: ValueId| case.data[case.of.iter().position(|&one| one == value).unwrap()].clone();
            let whole = evaluate_graph(&case.graph, &leaf);
            let mut steps = case.graph.clone();
            unroll(&mut steps).unwrap();
            verify(&steps).unwrap();
            let parts = evaluate_graph(&steps, &leaf);
            let outputs: Vec<ValueId> = steps.outputs().iter().map(|(_, value)| *value).collect();
            for (&one, &other) in results.iter().zip(&outputs) {
                for (a, b) in whole[one.index()].data.iter().zip(&parts[other.index()].data) {
                    assert!((a - b).abs() < 1e-12, "{cell} {direction}: {a} {b}");
                }
            }
            let compared = check(&format!("{cell} {direction}"), steps, &outputs, &case.of, &case.data);
            assert!(compared > 20);
        }
    }
}

/// A file may name any number of steps; none is made where there would be too many.
#[test]
fn recurrent_layers_of_very_many_steps_are_refused_and_left_whole() {
    let mut case = Case::new(&[&[1, 8, 4], &[1, 8, 8], &[1, 16], &[1, 2, 8]], (-1.0, 1.0));
    let x = Type::new(DType::F64, Shape::known(&[1 << 40, 2, 4]));
    let x = case.graph.add_input("x", x, case.source);
    let layer = Recurrent { cell: Cell::Rnn, direction: Direction::Forward, hidden: 8 };
    let operands = [&[x], case.of.as_slice()].concat();
    let node = case.graph.push(Op::Recurrent(Box::new(layer)), &operands, case.source).unwrap();
    let last = case.graph.results(node).nth(1).unwrap();
    case.graph.add_output("y", last);
    let error = unroll(&mut case.graph.clone()).unwrap_err().to_string();
    assert!(error.contains("1099511627776 here, at most 65536 in all"), "{error}");
    let devices = Topology::parse("2xcpu:memory=1GB").unwrap();
    let error = compile(Model::Graph(case.graph), &devices, &Options::default()).map(drop).unwrap_err();
    assert!(matches!(error, Error::Infeasible(_)), "{error}");
}

long! {
    random_networks_have_the_gradients_that_differences_give;
}

fn random_networks_have_the_gradients_that_differences_give() {
    let (mut compared, mut graphs) = (0, 0);
    for seed in 0..12 {
        let mut graph = random_graph(seed, 12);
        unroll(&mut graph).unwrap();
        let mut random = Random::new(seed + 100);
        let of: Vec<ValueId> = graph
            .node_ids()
            .filter(|&node| matches!(graph.node(node).op, Op::Input | Op::Param(_)))
            .map(|node| graph.node(node).first_result)
            .collect();
        let data: Vec<Array> = of
            .iter()
            .map(|&value| {
                let (dtype, dims) = typed(graph.ty(value));
                let count = dims.iter().product();
                Array::new(dtype, &dims, (0..count).map(|_| f64::from(random.float()) + 3e-4).collect())
            })
            .collect();
        let outputs: Vec<ValueId> = graph
            .outputs()
            .iter()
            .map(|(_, value)| *value)
            .filter(|&v| graph.ty(v).dtype.is_float())
            .collect();
        if graph.value_count() > 400 || outputs.is_empty() {
            continue;
        }
        graphs += 1;
        compared += check(&format!("seed {seed}"), graph, &outputs, &of, &data);
    }
    assert!(graphs >= 6 && compared > 200, "{graphs} graphs, {compared} coordinates");
}

#[test]
fn a_loss_is_one_number_and_what_does_not_reach_it_has_no_gradient() {
    let mut case = Case::new(&[&[2, 2], &[3]], (-1.0, 1.0));
    let (a, b) = (case.of[0], case.of[1]);
    let error = gradient(&mut case.graph.clone(), a, &[a]).unwrap_err();
    assert!(error.to_string().contains("a loss is one number"), "{error}");
    let reduce = Op::Reduce { kind: ReduceKind::Sum, axes: vec![0, 1], keep: false };
    let loss = case.graph.apply(reduce, &[a], case.source).unwrap();
    let found = gradient(&mut case.graph, loss, &[a, b]).unwrap();
    assert!(found[0].is_some() && found[1].is_none());
    let maker = case.graph.maker(found[0].unwrap()).source;
    assert_eq!(case.graph.source(maker).forward, Some(case.source));
}

#[test]
fn a_long_chain_is_differentiated_without_recursion_in_linear_size() {
    let mut case = Case::new(&[&[2]], (-0.1, 0.1));
    let mut value = case.of[0];
    for _ in 0..20_000 {
        value = case.graph.apply(Op::Unary(Unary::Neg), &[value], case.source).unwrap();
    }
    let reduce = Op::Reduce { kind: ReduceKind::Sum, axes: vec![0], keep: false };
    let loss = case.graph.apply(reduce, &[value], case.source).unwrap();
    let before = case.graph.node_count();
    gradient(&mut case.graph, loss, &case.of).unwrap();
    assert!(case.graph.node_count() < 2 * before + 10);
}
