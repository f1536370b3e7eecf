use super::super::*;
use super::infer;
use crate::error::Result;

const N: DimId = DimId(0);
const M: DimId = DimId(1);

fn n() -> Size {
    Size::dim(N)
}

/// A type from its text: sizes are sums of numbers and of `n`, `m` with an optional factor
/// (`2n+3`).
fn ty(text: &str) -> Type {
    let (dtype, sizes) = text.split_once('[').unwrap();
    let term = |text: &str| -> Size {
        match text.strip_suffix(['n', 'm']) {
            None => Size::Known(text.parse().unwrap()),
            Some(factor) => {
                let dim = if text.ends_with('n') { N } else { M };
                Size::dim(dim).scale(if factor.is_empty() { 1 } else { factor.parse().unwrap() }).unwrap()
            }
        }
    };
    let size = |text: &str| text.split('+').map(term).reduce(|a, b| a.add(&b).unwrap()).unwrap();
    let sizes = sizes.trim_end_matches(']').split(',').filter(|text| !text.is_empty());
    Type::new(dtype.parse().unwrap(), sizes.map(size).collect())
}

fn try_infer(op: &Op, operands: &[&str]) -> Result<Vec<Type>> {
    let types: Vec<Type> = operands.iter().map(|text| ty(text)).collect();
    let types: Vec<&Type> = types.iter().collect();
    infer(op, &types, &|dim| if dim == N { "n".to_owned() } else { "m".to_owned() })
}

fn ok(op: Op, operands: &[&str], results: &[&str]) {
    let expected: Vec<Type> = results.iter().map(|text| ty(text)).collect();
    assert_eq!(try_infer(&op, operands).unwrap(), expected, "{op:?} of {operands:?}");
}

fn bad(op: Op, operands: &[&str], message: &str) {
    let error = try_infer(&op, operands).unwrap_err().to_string();
    assert!(error.contains(message), "{op:?} of {operands:?}: {error}");
}

#[test]
fn elementwise_operations_broadcast() {
    let add = || Op::Binary(Binary::Add);
    ok(add(), &["f32[2,3]", "f32[3]"], &["f32[2,3]"]);
    ok(add(), &["f32[2,1]", "f32[1,3]"], &["f32[2,3]"]);
    ok(add(), &["f32[]", "f32[n,3]"], &["f32[n,3]"]);
    ok(add(), &["f32[1,3]", "f32[n,1]"], &["f32[n,3]"]);
    ok(add(), &["f32[0]", "f32[1]"], &["f32[0]"]);
    bad(add(), &["f32[2]", "f32[3]"], "expected shapes that broadcast together, found [2] and [3]");
    bad(add(), &["f32[n]", "f32[4]"], "--dim n=4");
    bad(add(), &["f32[n]", "f32[m]"], "--dim n=N");
    bad(add(), &["f32[2n]", "f32[5]"], "--dim n=N");
    bad(add(), &["f32[2]", "i32[2]"], "expected a right operand of type f32, found i32");
    bad(add(), &["bool[2]", "bool[2]"], "a type of numbers, found bool");
    bad(add(), &["f32[2]"], "expected 2 operands, found 1");
    ok(Op::Binary(Binary::And), &["bool[2]", "bool[2]"], &["bool[2]"]);
    ok(Op::Binary(Binary::And), &["i8[2]", "i8[2]"], &["i8[2]"]);
    bad(Op::Binary(Binary::Xor), &["f32[2]", "f32[2]"], "an integer type");
    ok(Op::Unary(Unary::IsNan), &["f16[n]"], &["bool[n]"]);
    ok(Op::Unary(Unary::Neg), &["i64[]"], &["i64[]"]);
    bad(Op::Unary(Unary::Not), &["i64[]"], "type bool");
    bad(Op::Unary(Unary::Exp), &["i64[]"], "a float type");
    ok(Op::Compare(Compare::Eq), &["bool[3]", "bool[3]"], &["bool[3]"]);
    ok(Op::Compare(Compare::Lt), &["i64[3]", "i64[]"], &["bool[3]"]);
    bad(Op::Compare(Compare::Lt), &["bool[3]", "bool[3]"], "found bool");
    ok(Op::Select, &["bool[2,1]", "f32[3]", "f32[]"], &["f32[2,3]"]);
    bad(Op::Select, &["f32[2]", "f32[2]", "f32[2]"], "a condition of type bool");
    ok(Op::Convert { to: DType::Bool }, &["f32[n]"], &["bool[n]"]);
}

#[test]
fn reductions_drop_or_keep_axes() {
    let sum = |axes: &[u32], keep| Op::Reduce { kind: ReduceKind::Sum, axes: axes.to_vec(), keep };
    ok(sum(&[0, 2], false), &["f32[n,3,4]"], &["f32[3]"]);
    ok(sum(&[0, 2], true), &["f32[n,3,4]"], &["f32[1,3,1]"]);
    ok(sum(&[], false), &["i64[3]"], &["i64[3]"]);
    bad(sum(&[2, 0], false), &["f32[2,3,4]"], "ascending");
    bad(sum(&[3], false), &["f32[2,3,4]"], "expected an axis below 3, found 3");
    ok(sum(&[0], false), &["f32[0,3]"], &["f32[3]"]);
    let max = Op::Reduce { kind: ReduceKind::Max, axes: vec![0], keep: false };
    bad(max, &["f32[0,3]"], "at least one element");
    let arg = |axis| Op::ArgReduce { kind: ArgReduce::Max, axis, keep: false, last: false };
    ok(arg(1), &["f32[n,3]"], &["i64[n]"]);
    bad(arg(0), &["f32[]"], "expected an axis below 0");
    ok(Op::CumSum { axis: 0, exclusive: false, reverse: false }, &["i64[n]"], &["i64[n]"]);
    ok(Op::Softmax { axis: 1, log: true }, &["f32[n,3]"], &["f32[n,3]"]);
    bad(Op::Softmax { axis: 1, log: true }, &["i64[n,3]"], "a float type");
    let norm = |axes: Vec<u32>, e| Op::Normalize { axes, epsilon: Real(e), center: true, moments: false };
    ok(norm(vec![1], 1e-5), &["f32[n,3]"], &["f32[n,3]"]);
    bad(norm(vec![], 1e-5), &["f32[n,3]"], "at least one axis");
    bad(norm(vec![1], f64::NAN), &["f32[n,3]"], "epsilon");
    let lrn = |size| Op::LocalResponseNorm { size, alpha: Real(1.0), beta: Real(1.0), bias: Real(1.0) };
    ok(lrn(5), &["f32[n,3]"], &["f32[n,3]"]);
    bad(lrn(0), &["f32[n,3]"], "1 or more channels");
}

#[test]
fn matrix_products_contract_and_broadcast() {
    let matmul = |l, r| Op::MatMul { transpose_left: l, transpose_right: r, wide: false, rounds: false };
    ok(matmul(false, false), &["f32[n,4,5]", "f32[5,6]"], &["f32[n,4,6]"]);
    ok(matmul(true, true), &["f32[5,4]", "f32[7,6,5]"], &["f32[7,4,6]"]);
    ok(matmul(false, false), &["f32[2,n]", "f32[n,3]"], &["f32[2,3]"]);
    bad(matmul(false, false), &["f32[2,n]", "f32[4,3]"], "--dim n=4");
    bad(matmul(false, false), &["f32[2,3]", "f32[4,3]"], "expected an inner size of 3, found 4");
    bad(matmul(false, false), &["f32[2]", "f32[2,3]"], "rank 2 or more");
}

#[test]
fn recurrent_layers_check_every_operand() {
    let layer = |cell, direction| Op::Recurrent(Box::new(Recurrent { cell, direction, hidden: 5 }));
    let lstm = ["f32[7,n,3]", "f32[1,20,3]", "f32[1,20,5]", "f32[1,40]", "f32[1,n,5]", "f32[1,n,5]"];
    ok(layer(Cell::Lstm, Direction::Forward), &lstm, &["f32[7,1,n,5]", "f32[1,n,5]", "f32[1,n,5]"]);
    let gru = ["f32[7,n,3]", "f32[2,15,3]", "f32[2,15,5]", "f32[2,30]", "f32[2,n,5]"];
    ok(layer(Cell::Gru, Direction::Bidirectional), &gru, &["f32[7,2,n,5]", "f32[2,n,5]"]);
    bad(layer(Cell::Gru, Direction::Forward), &gru, "expected weights of shape [1, 15, 3]");
    bad(layer(Cell::Rnn, Direction::Forward), &gru[..4], "expected 5 operands, found 4");
}

fn window(stride: i64, pad: i64, dilation: i64) -> Window {
    Window {
        strides: vec![stride; 2],
        dilations: vec![dilation; 2],
        pads_before: vec![pad; 2],
        pads_after: vec![pad; 2],
    }
}

#[test]
fn convolutions_count_their_windows() {
    let conv = |layout, window, groups| Op::Conv(Box::new(Conv { layout, window, groups }));
    let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
    ok(
        conv(first, window(2, 3, 1), 1),
        &["f32[n,3,224,224]", "f32[64,3,7,7]", "f32[64]"],
        &["f32[n,64,112,112]"],
    );
    ok(conv(last, window(1, 0, 2), 1), &["f32[n,9,9,4]", "f32[3,3,4,8]"], &["f32[n,5,5,8]"]);
    ok(conv(first, window(1, 1, 1), 4), &["f32[2,4,5,5]", "f32[8,1,3,3]"], &["f32[2,8,5,5]"]);
    ok(conv(first, window(1, 1, 1), 1), &["f32[2,4,n,m]", "f32[8,4,3,3]"], &["f32[2,8,n,m]"]);
    ok(conv(first, window(2, 1, 1), 1), &["f32[2,4,2n,8]", "f32[8,4,3,3]"], &["f32[2,8,n,4]"]);
    bad(conv(first, window(2, 1, 1), 1), &["f32[2,4,n,8]", "f32[8,4,3,3]"], "bind with --dim n=N");
    bad(conv(first, window(1, 0, 1), 1), &["f32[2,4,2,2]", "f32[8,4,3,3]"], "within the padded input");
    bad(conv(first, window(1, 0, 1), 1), &["f32[2,5,4,4]", "f32[8,4,3,3]"], "input channels of 4, found 5");
    bad(conv(first, window(1, 0, 1), 3), &["f32[2,3,4,4]", "f32[8,1,3,3]"], "divisible into 3 groups");
    bad(conv(first, window(0, 0, 1), 1), &["f32[2,4,4,4]", "f32[8,4,3,3]"], "strides of 1 or more");
    bad(conv(first, window(1, 0, 1), 0), &["f32[2,4,4,4]", "f32[8,4,3,3]"], "1 or more groups");
    bad(conv(first, window(1, i64::MAX, 1), 1), &["f32[2,4,4,4]", "f32[8,4,3,3]"], "overflows");
    bad(conv(first, window(1, 0, 1), 1), &["f32[2,4,4]", "f32[8,4,3]"], "1 entries of strides, found 2");
}

#[test]
fn transposed_convolutions_spread() {
    let conv = |layout, window, padding| {
        Op::ConvTranspose(Box::new(ConvTranspose {
            layout,
            window,
            output_padding: vec![padding; 2],
            groups: 1,
        }))
    };
    let (first, last) = (Layout::ChannelsFirst, Layout::ChannelsLast);
    ok(conv(first, window(2, 1, 1), 1), &["f32[n,4,7,7]", "f32[4,8,3,3]"], &["f32[n,8,14,14]"]);
    ok(conv(last, window(2, 0, 1), 0), &["f32[1,n,7,4]", "f32[2,2,8,4]"], &["f32[1,2n,14,8]"]);
    bad(conv(first, window(2, 9, 1), 0), &["f32[1,4,2,2]", "f32[4,8,3,3]"], "negative");
    bad(conv(first, window(2, 0, 1), 0), &["f32[1,5,2,2]", "f32[4,8,3,3]"], "input channels of 4, found 5");
}

#[test]
fn poolings_and_resizes_keep_channels() {
    let pool = |kind, kernel, extra| {
        Op::Pool(Box::new(Pool {
            kind,
            layout: Layout::ChannelsFirst,
            kernel: vec![kernel; 2],
            window: window(2, 1, 1),
            extra_after: vec![extra; 2],
        }))
    };
    ok(pool(PoolKind::Max, 3, 0), &["f32[n,64,112,112]"], &["f32[n,64,56,56]"]);
    bad(pool(PoolKind::Average, 3, 0), &["i64[1,1,8,8]"], "a float type");
    bad(pool(PoolKind::Max, 0, 0), &["f32[1,1,8,8]"], "kernel of 1 or more");
    bad(pool(PoolKind::Max, 3, 2), &["f32[1,1,8,8]"], "rounding up");
    let resize = |sizes: &[i64], scales: Option<Vec<Real>>| {
        Op::Resize(Box::new(Resize {
            shape: Shape::known(sizes),
            interpolation: Interpolation::Linear,
            coordinates: ResizeCoordinates::HalfPixel,
            scales,
        }))
    };
    ok(resize(&[1, 6], None), &["f32[1,3]"], &["f32[1,6]"]);
    bad(resize(&[1, 6], Some(vec![Real(2.0)])), &["f32[1,3]"], "expected 2 scales, found 1");
    bad(resize(&[1, 6], Some(vec![Real(2.0), Real(-1.0)])), &["f32[1,3]"], "positive scales");
    bad(resize(&[1, 6], None), &["f32[1,0]"], "empty axis");
    bad(resize(&[1, -6], None), &["f32[1,3]"], "negative");
}

#[test]
fn reshapes_keep_the_number_of_elements() {
    let reshape = |shape: Shape| Op::Reshape { shape };
    let known = |sizes: &[i64]| reshape(Shape::known(sizes));
    ok(known(&[6]), &["f32[2,3]"], &["f32[6]"]);
    ok(known(&[]), &["f32[1,1]"], &["f32[]"]);
    ok(reshape(Shape::new([n(), Size::Known(12)])), &["f32[n,3,4]"], &["f32[n,12]"]);
    ok(reshape(Shape::new([n().scale(12).unwrap()])), &["f32[n,3,4]"], &["f32[12n]"]);
    ok(reshape(Shape::new([n(), n()])), &["f32[m,3,4]"], &["f32[n,n]"]);
    bad(known(&[7]), &["f32[2,3]"], "expected 7 elements for [7], found 6 in [2, 3]");
    bad(known(&[24]), &["f32[n,3,4]"], "--dim n=2");
    bad(known(&[-2, -3]), &["f32[2,3]"], "negative");
    bad(known(&[1 << 40, 1 << 40]), &["f32[2,3]"], "overflows");
    ok(known(&[0]), &["f32[1099511627776,1099511627776,0]"], &["f32[0]"]);
}

#[test]
fn layouts_change_with_their_attributes() {
    let transpose = |perm: &[u32]| Op::Transpose { perm: perm.to_vec() };
    ok(transpose(&[2, 0, 1]), &["f32[n,3,4]"], &["f32[4,n,3]"]);
    bad(transpose(&[0, 0, 1]), &["f32[2,3,4]"], "a permutation of 3 axes");
    bad(transpose(&[0, 1]), &["f32[2,3,4]"], "a permutation of 3 axes");
    let broadcast = |shape| Op::Broadcast { shape };
    ok(broadcast(Shape::new([n(), Size::Known(3)])), &["f32[3]"], &["f32[n,3]"]);
    bad(broadcast(Shape::known(&[4])), &["f32[3]"], "broadcasts to [4], found [3]");
    bad(broadcast(Shape::known(&[4])), &["f32[n]"], "--dim n=4");
    bad(broadcast(Shape::known(&[4])), &["f32[1,4]"], "broadcasts to [4]");
    ok(Op::Concat { axis: 1 }, &["f32[n,2]", "f32[n,m]", "f32[n,2m]"], &["f32[n,3m+2]"]);
    bad(Op::Concat { axis: 0 }, &["f32[2,2]", "f32[2,3]"], "expected axis 1 of 2, found 3");
    bad(Op::Concat { axis: 0 }, &[], "at least 1 operands, found 0");
}

#[test]
fn slices_stay_within() {
    let slice = |start: i64, size: Size, step: i64| {
        Op::Slice(Box::new(Slice { starts: vec![Size::Known(start)], sizes: vec![size], steps: vec![step] }))
    };
    ok(slice(1, Size::Known(2), 3), &["f32[5]"], &["f32[2]"]);
    ok(slice(4, Size::Known(5), -1), &["f32[5]"], &["f32[5]"]);
    ok(slice(9, Size::Known(0), 1), &["f32[5]"], &["f32[0]"]);
    ok(slice(0, n(), 1), &["f32[n]"], &["f32[n]"]);
    ok(slice(3, Size::Known(2), 1), &["f32[n]"], &["f32[2]"]);
    bad(slice(1, n(), 1), &["f32[n]"], "expected positions below n, found n");
    bad(slice(1, Size::Known(3), 2), &["f32[5]"], "expected positions below 5, found 5");
    bad(slice(1, Size::Known(3), -1), &["f32[5]"], "found -1");
    bad(slice(0, Size::Known(3), 0), &["f32[5]"], "a step other than 0");
    bad(slice(0, Size::Known(i64::MAX), i64::MAX), &["f32[5]"], "overflows");
}

#[test]
fn padding_adds_or_crops() {
    let pad = |before, after, mode| {
        Op::Pad(Box::new(Pad { before: vec![before], after: vec![after], mode, value: Real(0.0) }))
    };
    ok(pad(1, 2, PadMode::Constant), &["f32[n]"], &["f32[n+3]"]);
    ok(pad(-1, 2, PadMode::Constant), &["f32[5]"], &["f32[6]"]);
    bad(pad(-3, -3, PadMode::Constant), &["f32[5]"], "negative");
    bad(pad(-6, 6, PadMode::Constant), &["f32[5]"], "negative");
    ok(pad(4, 0, PadMode::Reflect), &["f32[5]"], &["f32[9]"]);
    bad(pad(5, 0, PadMode::Reflect), &["f32[5]"], "enough elements for 5 of padding");
    bad(pad(1, 0, PadMode::Edge), &["f32[0]"], "enough elements");
    bad(pad(i64::MAX, 1, PadMode::Constant), &["f32[5]"], "overflows");
}

#[test]
fn indices_select_and_write() {
    ok(Op::Gather { axis: 1 }, &["f32[2,9,4]", "i64[n,3]"], &["f32[2,n,3,4]"]);
    ok(Op::Gather { axis: 0 }, &["f32[9]", "i32[]"], &["f32[]"]);
    bad(Op::Gather { axis: 0 }, &["f32[9]", "f32[]"], "indices of an integer type");
    ok(Op::GatherElements { axis: 1 }, &["f32[2,9]", "i64[1,n]"], &["f32[1,n]"]);
    bad(Op::GatherElements { axis: 1 }, &["f32[2,9]", "i64[3,1]"], "indices within [2, 9]");
    ok(Op::GatherNd { batch_dims: 1 }, &["f32[n,3,4,5]", "i64[n,7,2]"], &["f32[n,7,5]"]);
    bad(Op::GatherNd { batch_dims: 0 }, &["f32[2,3]", "i64[7,3]"], "1 to 2 elements");
    bad(Op::GatherNd { batch_dims: 0 }, &["f32[2,3]", "i64[7,n]"], "1 to 2 elements");
    let elements = |kind| Op::ScatterElements { axis: 0, kind };
    ok(elements(ScatterKind::Add), &["f32[5,2]", "i64[3,2]", "f32[3,2]"], &["f32[5,2]"]);
    bad(elements(ScatterKind::Add), &["bool[5]", "i64[3]", "bool[3]"], "found bool");
    bad(elements(ScatterKind::Replace), &["f32[5]", "i64[3]", "f32[2]"], "updates of shape [3], found [2]");
    let nd = Op::ScatterNd { kind: ScatterKind::Replace };
    ok(nd.clone(), &["f32[5,2]", "i64[3,1]", "f32[3,2]"], &["f32[5,2]"]);
    bad(nd, &["f32[5,2]", "i64[3,1]", "f32[3,3]"], "updates of shape [3, 2], found [3, 3]");
    let topk = |k| Op::TopK(TopK { axis: 1, k, largest: true });
    ok(topk(3), &["f32[n,9]"], &["f32[n,3]", "i64[n,3]"]);
    bad(topk(10), &["f32[n,9]"], "expected k from 0 to 9, found 10");
    let leaves = |depth| Op::TreeLeaves { depth };
    let nodes = |rows, splits| [rows, "i32[3]", "i32[7]", splits, "i32[7]"];
    ok(leaves(2), &nodes("f32[n,9]", "f32[7]"), &["i32[n,3]"]);
    ok(leaves(0), &nodes("f64[5,9]", "f64[7]"), &["i32[5,3]"]);
    bad(leaves(257), &nodes("f32[n,9]", "f32[7]"), "a depth of at most 256, found 257");
    bad(leaves(2), &nodes("f16[n,9]", "f16[7]"), "rows of f32 or f64, found f16");
    bad(leaves(2), &nodes("f32[n,9]", "f64[7]"), "splits of type f32, found f64");
    bad(leaves(2), &nodes("f32[n,9]", "f32[8]"), "splits of shape [7], found [8]");
    bad(leaves(2), &nodes("f32[9]", "f32[7]"), "rows of rank 2");
}

#[test]
fn operations_without_operands_have_no_rule() {
    bad(Op::Iota { axis: 0 }, &[], "cannot be inferred");
}

#[test]
fn binding_a_dimension_infers_anew() {
    let mut graph = Graph::new("g");
    let dim = graph.dim("n");
    let source = graph.add_source(Source::new("f", "Flatten", SourceRole::Node));
    let shape = Shape::new([Size::dim(dim), Size::Known(4)]);
    let x = graph.add_input("x", Type::new(DType::F32, shape), source);
    let flat = Shape::new([Size::dim(dim).scale(4).unwrap()]);
    let y = graph.apply(Op::Reshape { shape: flat }, &[x], source).unwrap();
    graph.add_sizes(vec![Size::dim(dim)], true, source);
    graph.add_output("y", y);
    graph.bind(&[("n".to_owned(), 3)].into()).unwrap();
    assert_eq!(*graph.ty(y), ty("f32[12]"));
    assert_eq!(graph.constants()[0].to_i64(), Some(vec![3]));
    assert!(graph.unbound_dims().is_empty());
}

#[test]
fn binding_finds_sizes_that_do_not_fit() {
    let mut graph = Graph::new("g");
    let dim = graph.dim("n");
    let source = graph.add_source(Source::new("s", "Slice", SourceRole::Node));
    let x = graph.add_input("x", Type::new(DType::F32, Shape::new([Size::dim(dim)])), source);
    let slice = Slice { starts: vec![Size::Known(0)], sizes: vec![Size::Known(4)], steps: vec![1] };
    graph.apply(Op::Slice(Box::new(slice)), &[x], source).unwrap();
    let error = graph.bind(&[("n".to_owned(), 3)].into()).unwrap_err().to_string();
    assert_eq!(error, "node s: slice: expected positions below 3, found 3");
}
