//! Attention as exporters spell it out becomes one operation that computes the same; what only looks
//! like it stays.

use partition::unstable::ir::text::parse;
use partition::unstable::ir::{Attention, Graph, HeadOrder, Op, Tensor, verify};
use partition::unstable::pass::{dce, fuse};

/// A graph of `q`, `k`, `v`, of these types, and these lines.
fn graph(types: [&str; 3], lines: &str) -> Graph {
    let mut text = "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n".to_owned();
    for (position, (name, ty)) in ["q", "k", "v"].iter().zip(types).enumerate() {
        text += &format!("%{position}: {ty} = input \"{name}\" @s0\n");
    }
    for line in lines.lines() {
        text += &if line.starts_with('%') { format!("{line} @s0\n") } else { format!("{line}\n") };
    }
    let graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&graph).unwrap();
    graph
}

fn fused(before: &Graph) -> (Graph, Vec<Attention>) {
    let mut graph = before.clone();
    fuse(&mut graph, &[]).unwrap();
    dce(&mut graph).unwrap();
    verify(&graph).unwrap();
    let found = graph.node_ids().filter_map(|id| match &graph.node(id).op {
        Op::Attention(op) => Some((**op).clone()),
        _ => None,
    });
    let found = found.collect();
    (graph, found)
}

#[cfg(feature = "run")]
fn outputs(graph: &Graph) -> Vec<f32> {
    let mut inputs = Vec::new();
    for (seed, (name, value)) in graph.inputs().iter().enumerate() {
        let dims: Vec<u64> = graph.ty(*value).shape.dims().unwrap().iter().map(|&dim| dim as u64).collect();
        let count = dims.iter().product::<u64>() as usize;
        let values: Vec<f32> = (0..count).map(|i| ((i * 37 + seed * 11) % 29) as f32 * 0.1 - 1.4).collect();
        inputs.push((name.clone(), Tensor::from_f32(dims, &values).unwrap()));
    }
    let found =
        partition::unstable::run::interpret(graph, &inputs, &|_| unreachable!("no parameters")).unwrap();
    found[0].1.bytes().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The one attention that the pattern becomes, and nothing but views beside it.
fn becomes(types: [&str; 3], lines: &str) -> Attention {
    let before = graph(types, lines);
    let (after, found) = fused(&before);
    let [op] = &found[..] else { panic!("{} attentions in\n{after}", found.len()) };
    let work = |op: &Op| !op.is_leaf() && !matches!(op, Op::Reshape { .. } | Op::Attention(_));
    let rest: Vec<&str> =
        after.node_ids().map(|id| &after.node(id).op).filter(|op| work(op)).map(Op::name).collect();
    assert!(rest.is_empty(), "{rest:?} in\n{after}");
    #[cfg(feature = "run")]
    for (found, exact) in outputs(&after).into_iter().zip(outputs(&before)) {
        let same = (found - exact).abs() <= 2e-6 * exact.abs().max(1.0) || found.is_nan() && exact.is_nan();
        assert!(same, "{found} for {exact} in\n{before}\n{after}");
    }
    op.clone()
}

const APART: [&str; 3] = ["f32[2, 3, 5, 4]", "f32[2, 3, 7, 4]", "f32[2, 3, 7, 6]"];

#[test]
fn two_products_and_a_softmax() {
    let op = becomes(
        APART,
        "%3: f32[] = constant {0.5}
%4: f32[2, 3, 5, 7] = matmul %0, %1 transpose_right=true
%5: f32[2, 3, 5, 7] = mul %4, %3
%6: f32[2, 3, 5, 7] = softmax %5 axis=3
%7: f32[2, 3, 5, 6] = matmul %6, %2
output \"y\" %7",
    );
    assert_eq!((op.heads, op.key_heads, op.scale.0), (3, 3, 0.5));
    assert_eq!(op.orders, [HeadOrder::HeadsFirst; 4]);
}

#[test]
fn one_tensor_of_queries_keys_and_values() {
    // As torch exports it: all in one tensor, split, by heads; both factors scaled; the keys turned by way
    // of rank 3; weights that are not numbers replaced; heads put side by side again.
    let lines = "%3: f32[2, 5, 8] = slice %0
%4: f32[2, 5, 8] = slice %0 starts=[0, 0, 8]
%5: f32[2, 5, 8] = slice %0 starts=[0, 0, 16]
%6: f32[2, 5, 2, 4] = reshape %3
%7: f32[2, 2, 5, 4] = transpose %6 perm=[0, 2, 1, 3]
%8: f32[2, 5, 2, 4] = reshape %4
%9: f32[2, 2, 5, 4] = transpose %8 perm=[0, 2, 1, 3]
%10: f32[2, 5, 2, 4] = reshape %5
%11: f32[2, 2, 5, 4] = transpose %10 perm=[0, 2, 1, 3]
%12: f32[4, 5, 4] = reshape %9
%13: f32[4, 4, 5] = transpose %12 perm=[0, 2, 1]
%14: f32[2, 2, 4, 5] = reshape %13
%15: f32[] = constant {0.5}
%16: f32[2, 2, 5, 4] = mul %7, %15
%17: f32[2, 2, 4, 5] = mul %14, %15
%18: f32[2, 2, 5, 5] = matmul %16, %17
%19: f32[2, 2, 5, 5] = add %18, %1
%20: f32[2, 2, 5, 5] = softmax %19 axis=3
%21: bool[2, 2, 5, 5] = is_nan %20
%22: f32[] = constant {0.0}
%23: f32[2, 2, 5, 5] = select %21, %22, %20
%24: f32[2, 2, 5, 4] = matmul %23, %11
%25: f32[2, 5, 2, 4] = transpose %24 perm=[0, 2, 1, 3]
%26: f32[2, 5, 8] = reshape %25
output \"y\" %26";
    let op = becomes(["f32[2, 5, 24]", "f32[2, 1, 5, 5]", "f32[1]"], lines);
    assert_eq!((op.first, op.orders), ([0, 2, 4], [HeadOrder::RowsFirst; 4]));
    assert!(op.zeros && op.scale.0 == 0.25);
}

#[test]
fn what_a_larger_pattern_reads_is_not_dropped_by_a_smaller_one_in_it() {
    // Attention ends at its product, and at the transposition behind that: then it reads the values in another place.
    let lines = "%3: f32[2, 6, 3, 2, 8] = reshape %0
%4: f32[3, 2, 2, 6, 8] = transpose %3 perm=[2, 0, 3, 1, 4]
%5: f32[1, 2, 2, 6, 8] = slice %4
%6: f32[1, 2, 2, 6, 8] = slice %4 starts=[1, 0, 0, 0, 0]
%7: f32[1, 2, 2, 6, 8] = slice %4 starts=[2, 0, 0, 0, 0]
%8: f32[2, 2, 6, 8] = reshape %5
%9: f32[2, 2, 6, 8] = reshape %6
%10: f32[2, 2, 6, 8] = reshape %7
%11: f32[2, 2, 6, 8] = tanh %8
%12: f32[2, 2, 6, 8] = tanh %9
%13: f32[2, 2, 8, 6] = transpose %12 perm=[0, 1, 3, 2]
%14: f32[2, 2, 6, 6] = matmul %11, %13
%15: f32[2, 2, 6, 6] = softmax %14 axis=3
%16: f32[2, 2, 6, 8] = matmul %15, %10
%17: f32[2, 6, 2, 8] = transpose %16 perm=[0, 2, 1, 3]
output \"y\" %17";
    let before = graph(["f32[2, 6, 48]", "f32[1]", "f32[1]"], lines);
    let (after, found) = fused(&before);
    assert_eq!(found.len(), 1, "{after}");
    #[cfg(feature = "run")]
    for (found, exact) in outputs(&after).into_iter().zip(outputs(&before)) {
        assert!((found - exact).abs() <= 2e-6 * exact.abs().max(1.0), "{found} beside {exact}");
    }
}

#[test]
fn heads_that_share_keys() {
    let lines = "%3: f32[1, 2, 1, 7, 4] = reshape %1
%4: f32[1, 2, 3, 7, 4] = broadcast %3
%5: f32[1, 6, 7, 4] = reshape %4
%6: f32[1, 2, 1, 7, 4] = reshape %2
%7: f32[1, 2, 3, 7, 4] = broadcast %6
%8: f32[1, 6, 7, 4] = reshape %7
%9: f32[1, 6, 5, 7] = matmul %0, %5 transpose_right=true
%10: f32[1, 6, 5, 7] = softmax %9 axis=3
%11: f32[1, 6, 5, 4] = matmul %10, %8
output \"y\" %11";
    let op = becomes(["f32[1, 6, 5, 4]", "f32[1, 2, 7, 4]", "f32[1, 2, 7, 4]"], lines);
    assert_eq!((op.heads, op.key_heads), (6, 2));
}

/// Keys of fewer heads that the products themselves repeat: an axis of one, and axes that are not there.
#[test]
fn heads_that_share_keys_along_an_axis_of_one() {
    let op = becomes(
        ["f32[1, 1, 24]", "f32[1, 7, 8]", "f32[1, 2, 1, 7, 4]"],
        "%3: f32[1, 2, 3, 1, 4] = reshape %0
%4: f32[1, 7, 2, 1, 4] = reshape %1
%5: f32[1, 2, 1, 7, 4] = transpose %4 perm=[0, 2, 3, 1, 4]
%6: f32[1, 2, 3, 1, 7] = matmul %3, %5 transpose_right=true
%7: f32[1, 2, 3, 1, 7] = softmax %6 axis=4
%8: f32[1, 2, 3, 1, 4] = matmul %7, %2
output \"y\" %8",
    );
    assert_eq!((op.heads, op.key_heads), (6, 2));
    assert_eq!(op.orders[1..3], [HeadOrder::RowsFirst, HeadOrder::HeadsFirst]);
    let op = becomes(
        ["f32[5, 3, 6, 4]", "f32[7, 4]", "f32[7, 4]"],
        "%3: f32[5, 3, 6, 7] = matmul %0, %1 transpose_right=true
%4: f32[5, 3, 6, 7] = softmax %3 axis=3
%5: f32[5, 3, 6, 4] = matmul %4, %2
output \"y\" %5",
    );
    assert_eq!((op.heads, op.key_heads), (15, 1));
}

#[test]
fn masks_of_bools_and_causal_ones() {
    let masked = |mask: &str, fill: &str| {
        format!(
            "%3: bool[1, 1, 3, 4] = constant {{{mask}}}
%4: f32[] = constant {{{fill}}}
%5: f32[2, 3, 3, 4] = matmul %0, %1 transpose_right=true
%6: f32[2, 3, 3, 4] = select %3, %5, %4
%7: f32[2, 3, 3, 4] = softmax %6 axis=3
%8: f32[2, 3, 3, 6] = matmul %7, %2
output \"y\" %8"
        )
    };
    let types = ["f32[2, 3, 3, 4]", "f32[2, 3, 4, 4]", "f32[2, 3, 4, 6]"];
    let causal = "true, true, false, false, true, true, true, false, true, true, true, true";
    let other = "true, true, false, false, true, false, true, false, true, true, true, true";
    assert_eq!(becomes(types, &masked(causal, "-inf")).causal, Some(1));
    assert_eq!(becomes(types, &masked(causal, "-1.0")).causal, None);
    // As models write it: -1e9 and -1e4, and these as the nearest bf16.
    for fill in ["-1e9", "-998244352.0", "-1e4", "-9984.0"] {
        assert_eq!(becomes(types, &masked(causal, fill)).causal, Some(1), "{fill}");
    }
    assert_eq!(becomes(types, &masked(causal, "-5e3")).causal, None);
    // By positions: the first row meets no key where it must be behind it, and then its weights are equal.
    let counted = |compare: &str, fill: &str| {
        format!(
            "%3: i64[3, 4] = iota axis=0
%4: i64[3, 4] = iota axis=1
%5: bool[3, 4] = {compare} %3, %4
%6: f32[] = constant {{{fill}}}
%7: f32[2, 3, 3, 4] = matmul %0, %1 transpose_right=true
%8: f32[2, 3, 3, 4] = select %5, %7, %6
%9: f32[2, 3, 3, 4] = softmax %8 axis=3
%10: f32[2, 3, 3, 6] = matmul %9, %2
output \"y\" %10"
        )
    };
    assert_eq!(becomes(types, &counted("ge", "-1e4")).causal, Some(0));
    assert_eq!(becomes(types, &counted("gt", "-inf")).causal, Some(-1));
    let (_, found) = fused(&graph(types, &counted("gt", "-1e4")));
    assert_eq!((found.len(), found[0].causal), (1, None));
    let op = becomes(types, &masked(other, "-2.0"));
    assert_eq!((op.causal, op.fill.0), (None, -2.0));
}

#[test]
fn what_is_read_elsewhere_or_along_another_axis_stays() {
    let lines = |axis: u32| {
        format!(
            "%3: f32[2, 3, 5, 7] = matmul %0, %1 transpose_right=true
%4: f32[2, 3, 5, 7] = softmax %3 axis={axis}
%5: f32[2, 3, 5, 6] = matmul %4, %2
output \"y\" %5"
        )
    };
    assert_eq!(fused(&graph(APART, &lines(3))).1.len(), 1);
    assert_eq!(fused(&graph(APART, &lines(2))).1, []);
    let weights = format!("{}\noutput \"w\" %4", lines(3));
    assert_eq!(fused(&graph(APART, &weights)).1, []);
}

#[test]
fn a_rotary_embedding_of_transposed_heads() {
    // The transposition moves behind it, and into the attention.
    let lines = "%3: f32[1, 3, 5, 4] = transpose %0 perm=[0, 2, 1, 3]
%4: f32[1, 1, 5, 4] = constant {0.5, 0.4, 0.3, 0.2, 0.1, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.9, 0.8, 0.7, 0.6, 0.1, 0.2, 0.3, 0.4, 0.5}
%5: f32[1, 3, 5, 4] = mul %3, %4
%6: f32[1, 3, 5, 2] = slice %3
%7: f32[1, 3, 5, 2] = slice %3 starts=[0, 0, 0, 2]
%8: f32[1, 3, 5, 2] = neg %7
%9: f32[1, 3, 5, 4] = concat %8, %6 axis=3
%10: f32[1, 3, 5, 4] = mul %9, %4
%11: f32[1, 3, 5, 4] = add %5, %10
%12: f32[1, 3, 5, 7] = matmul %11, %1 transpose_right=true
%13: f32[1, 3, 5, 7] = softmax %12 axis=3
%14: f32[1, 3, 5, 6] = matmul %13, %2
output \"y\" %14";
    let before = graph(["f32[1, 5, 3, 4]", "f32[1, 3, 7, 4]", "f32[1, 3, 7, 6]"], lines);
    let (after, found) = fused(&before);
    let names: Vec<&str> = after.node_ids().map(|id| after.node(id).op.name()).collect();
    assert_eq!(found[0].orders[0], HeadOrder::RowsFirst, "{after}");
    assert!(names.contains(&"rotary") && !names.contains(&"transpose"), "{after}");
    #[cfg(feature = "run")]
    for (found, exact) in outputs(&after).into_iter().zip(outputs(&before)) {
        assert!((found - exact).abs() <= 2e-6 * exact.abs().max(1.0), "{found} for {exact}");
    }
}

/// A row of a token and the keys of those before it, as caches store them: heads within each row.
#[test]
fn one_row_reads_keys_where_they_are_cached() {
    let op = becomes(
        ["f32[1, 1, 12]", "f32[1, 7, 12]", "f32[1, 7, 12]"],
        "%3: f32[1, 3, 1, 1, 4] = reshape %0
%4: f32[1, 7, 3, 1, 4] = reshape %1
%5: f32[1, 3, 1, 7, 4] = transpose %4 perm=[0, 2, 3, 1, 4]
%6: f32[1, 7, 3, 1, 4] = reshape %2
%7: f32[1, 3, 1, 7, 4] = transpose %6 perm=[0, 2, 3, 1, 4]
%8: f32[1, 3, 1, 1, 7] = matmul %3, %5 transpose_right=true
%9: f32[1, 3, 1, 1, 7] = softmax %8 axis=4
%10: f32[1, 3, 1, 1, 4] = matmul %9, %7
output \"y\" %10",
    );
    assert_eq!((op.heads, &op.orders[1..3]), (3, &[HeadOrder::RowsFirst; 2][..]));
}

#[test]
fn layers_share_the_mask_of_later_keys() {
    let layer = |query: u32, next: u32| {
        let [scores, masked, weights, made] = [next, next + 1, next + 2, next + 3];
        format!(
            "%{scores}: f32[2, 3, 1, 7] = matmul %{query}, %1 transpose_right=true
%{masked}: f32[2, 3, 1, 7] = select %6, %{scores}, %7
%{weights}: f32[2, 3, 1, 7] = softmax %{masked} axis=3
%{made}: f32[2, 3, 1, 4] = matmul %{weights}, %2\n"
        )
    };
    let lines = format!(
        "%3: f32[] = reduce %0 kind=max axes=[0, 1, 2, 3]
%4: i64[] = convert %3 to=i64
%5: i64[1, 7] = iota axis=1
%6: bool[1, 7] = ge %4, %5
%7: f32[] = constant {{-inf}}
{}{}output \"y\" %15",
        layer(0, 8),
        layer(11, 12)
    );
    let before = graph(["f32[2, 3, 1, 4]", "f32[2, 3, 7, 4]", "f32[2, 3, 7, 4]"], &lines);
    let (after, found) = fused(&before);
    assert!(found.len() == 2 && found.iter().all(|op| op.causal == Some(0) && op.positioned), "{after}");
    assert!(!after.to_string().contains(" ge "), "{after}");
    #[cfg(feature = "run")]
    for (found, exact) in outputs(&after).into_iter().zip(outputs(&before)) {
        assert!((found - exact).abs() <= 2e-6 * exact.abs().max(1.0), "{found} for {exact}");
    }
}
