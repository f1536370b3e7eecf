//! Patterns that frameworks spell out become one operation that computes the same, up to rounding;
//! what only looks like one stays.

use partition::unstable::ir::text::parse;
use partition::unstable::ir::{Graph, Op, Tensor, verify};
use partition::unstable::pass::{dce, fuse};

/// A graph of `x: f32[3, 8]`, `y: f32[3, 8]` and these nodes, the last of which is the output.
fn graph(nodes: &[&str]) -> Graph {
    let mut text = String::from(
        "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n%0: f32[3, 8] = input \"x\" @s0\n%1: f32[3, 8] = input \"y\" @s0\n",
    );
    for (position, node) in nodes.iter().enumerate() {
        let (ty, op) = node.split_once(' ').expect("a type and an operation");
        let ty = match ty {
            "." => "f32[3, 8]",
            "c" => "f32[]",
            "r" => "f32[3, 1]",
            "k" => "f32[1, 8]",
            other => panic!("{other}"),
        };
        text += &format!("%{}: {ty} = {op} @s0\n", position + 2);
    }
    text += &format!("output \"z\" %{}\n", nodes.len() + 1);
    let graph = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&graph).unwrap();
    graph
}

fn fused(before: &Graph) -> Graph {
    let mut graph = before.clone();
    fuse(&mut graph, &[]).unwrap();
    dce(&mut graph).unwrap();
    verify(&graph).unwrap();
    graph
}

fn names(graph: &Graph) -> Vec<&'static str> {
    let ops = graph.node_ids().map(|id| &graph.node(id).op);
    ops.filter(|op| !op.is_leaf()).map(Op::name).collect()
}

#[cfg(feature = "run")]
fn outputs(graph: &Graph) -> Vec<f32> {
    let values: Vec<f32> = (0..24).map(|i| (i * 37 % 24) as f32 * 0.37 - 4.0).collect();
    let inputs = ["x", "y"].map(|name| (name.to_owned(), Tensor::from_f32(vec![3, 8], &values).unwrap()));
    let found =
        partition::unstable::run::interpret(graph, &inputs, &|_| unreachable!("no parameters")).unwrap();
    found[0].1.bytes().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The pattern becomes these operations, and computes the same.
fn becomes(nodes: &[&str], expected: &[&str]) {
    let before = graph(nodes);
    let after = fused(&before);
    assert_eq!(names(&after), expected, "{before}\n{after}");
    #[cfg(feature = "run")]
    for (found, exact) in outputs(&after).into_iter().zip(outputs(&before)) {
        assert!((found - exact).abs() <= 2e-6 * exact.abs().max(1.0), "{found} for {exact} in {before}");
    }
}

#[test]
fn gelu_in_every_form() {
    let erf = ["c constant {1.4142135}", ". div %0, %2", ". erf %3", "c constant {1.0}", ". add %4, %5"];
    let half = "c constant {0.5}";
    becomes(&[&erf[..], &[half, ". mul %0, %7", ". mul %8, %6"]].concat(), &["gelu"]);
    becomes(&[&erf[..], &[half, ". mul %0, %6", ". mul %8, %7"]].concat(), &["gelu"]);
    becomes(&[&erf[..], &[half, ". mul %7, %6", ". mul %8, %0"]].concat(), &["gelu"]);
    let times = ["c constant {0.70710677}", ". mul %2, %0", ". erf %3", "c constant {1.0}", ". add %5, %4"];
    becomes(&[&times[..], &[half, ". mul %7, %0", ". mul %6, %8"]].concat(), &["gelu"]);
}

#[test]
fn gelu_by_the_hyperbolic_tangent() {
    let rest = |cube: &str| {
        let cube = cube.to_owned();
        [
            "c constant {3.0}".to_owned(),
            cube,
            "c constant {0.044715}".to_owned(),
            ". mul %3, %4".to_owned(),
            ". add %0, %5".to_owned(),
            "c constant {0.7978846}".to_owned(),
            ". mul %6, %7".to_owned(),
            ". tanh %8".to_owned(),
            "c constant {1.0}".to_owned(),
            ". add %9, %10".to_owned(),
            "c constant {0.5}".to_owned(),
            ". mul %0, %12".to_owned(),
            ". mul %13, %11".to_owned(),
        ]
    };
    let nodes = rest(". pow %0, %2");
    becomes(&nodes.each_ref().map(String::as_str), &["gelu_tanh"]);
    // Another power is another function.
    let nodes = rest(". pow %0, %0");
    assert!(!names(&fused(&graph(&nodes.each_ref().map(String::as_str)))).contains(&"gelu_tanh"));
}

#[test]
fn silu_on_either_side() {
    becomes(&[". sigmoid %0", ". mul %0, %2"], &["silu"]);
    becomes(&[". sigmoid %0", ". mul %2, %0"], &["silu"]);
    becomes(&[". sigmoid %1", ". mul %0, %2"], &["sigmoid", "mul"]);
}

#[test]
fn norms_as_quotients_and_products() {
    let layer = [
        "r reduce %0 kind=mean axes=[1] keep=true",
        ". sub %0, %2",
        "c constant {2.0}",
        ". pow %3, %4",
        "r reduce %5 kind=mean axes=[1] keep=true",
        "c constant {0.001}",
        "r add %6, %7",
        "r sqrt %8",
        ". div %3, %9",
    ];
    becomes(&layer, &["normalize"]);
    let root = [
        ". mul %0, %0",
        "r reduce %2 kind=mean axes=[1] keep=true",
        "c constant {0.001}",
        "r add %4, %3",
        "r sqrt %5",
        "r reciprocal %6",
    ];
    becomes(&[&root[..], &[". mul %0, %7"]].concat(), &["normalize"]);
    becomes(&[&root[..], &[". mul %7, %0"]].concat(), &["normalize"]);
    // Of something else than what is scaled.
    let other = fused(&graph(&[&root[..], &[". mul %1, %7"]].concat()));
    assert!(!names(&other).contains(&"normalize"));
}

#[test]
fn softmax_over_one_axis() {
    let nodes = [
        "r reduce %0 kind=max axes=[1] keep=true",
        ". sub %0, %2",
        ". exp %3",
        "r reduce %4 kind=sum axes=[1] keep=true",
        ". div %4, %5",
    ];
    becomes(&nodes, &["softmax"]);
}

#[test]
fn small_powers_are_products() {
    becomes(&["c constant {2.0}", ". pow %0, %2"], &["mul"]);
    becomes(&["c constant {-1.0}", ". pow %0, %2"], &["reciprocal"]);
    becomes(&["c constant {0.5}", ". abs %0", ". pow %3, %2"], &["abs", "sqrt"]);
    becomes(&["c constant {2.5}", ". abs %0", ". pow %3, %2"], &["abs", "pow"]);
}

#[test]
fn sigmoids_as_quotients() {
    let decay = [". neg %0", ". exp %2", "c constant {1.0}", ". add %3, %4"];
    becomes(&[&decay[..], &[". div %4, %5"]].concat(), &["sigmoid"]);
    becomes(&[&decay[..], &[". reciprocal %5"]].concat(), &["sigmoid"]);
    becomes(&[&decay[..], &[". div %0, %5"]].concat(), &["silu"]);
    // A pattern of a pattern.
    becomes(&[&decay[..], &[". div %4, %5", ". mul %0, %6"]].concat(), &["silu"]);
    becomes(&[&decay[..], &[". div %1, %5"]].concat(), &["neg", "exp", "add", "div"]);
}

#[test]
fn the_logarithm_of_a_softmax() {
    let rows = ["r reduce %0 kind=max axes=[1] keep=true", ". sub %0, %2", ". exp %3"];
    let sum = "r reduce %4 kind=sum axes=[1] keep=true";
    becomes(&[&rows[..], &[sum, "r log %5", ". sub %3, %6"]].concat(), &["softmax"]);
    becomes(&[&rows[..], &[sum, ". div %4, %5", ". log %6"]].concat(), &["softmax"]);
    // Along another axis, the sum is not that of the row.
    let columns = fused(&graph(&[
        "r reduce %0 kind=max axes=[1] keep=true",
        ". sub %0, %2",
        ". exp %3",
        "k reduce %4 kind=sum axes=[0] keep=true",
        ". div %4, %5",
    ]));
    assert!(!names(&columns).contains(&"softmax"));
}

#[test]
fn what_is_read_elsewhere_stays() {
    becomes(&[". sigmoid %0", ". mul %0, %2", ". add %3, %2"], &["sigmoid", "mul", "add"]);
    let text = graph(&[". sigmoid %0", ". mul %0, %2"]).to_string();
    let with_output = parse(&text.replace("output", "output \"s\" %2\noutput")).unwrap();
    assert_eq!(names(&fused(&with_output)), ["sigmoid", "mul"]);
}

#[test]
fn pins_marks_and_places_hold_a_pattern_apart() {
    let text = graph(&[". sigmoid %0", ". mul %0, %2"]).to_string();
    let apart = |mark: &str| {
        let text = text.replace("source s0", &format!("source s0 node \"a\" \"A\"{mark}\nsource s1"));
        let text = text.replacen("sigmoid %0 @s0", "sigmoid %0 @s1", 1);
        parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    };
    assert_eq!(names(&fused(&apart(""))), ["silu"]);
    for mark in [" pin=\"cuda0\"", " colocate=\"c\""] {
        assert_eq!(names(&fused(&apart(mark))), ["sigmoid", "mul"], "{mark}");
    }
    let mut placed = apart("");
    fuse(&mut placed, &[0, 1]).unwrap();
    assert_eq!(names(&placed), ["sigmoid", "mul"]);
    fuse(&mut placed, &[1, 1]).unwrap();
    assert_eq!(names(&placed), ["silu"]);
}

#[test]
fn sums_of_squares() {
    let sum = "r reduce %2 kind=sum axes=[1] keep=true";
    becomes(&[". mul %0, %0", sum, ". mul %1, %3"], &["reduce", "mul"]);
    becomes(&["c constant {2.0}", ". pow %0, %2", "r reduce %3 kind=sum axes=[1] keep=true"], &["reduce"]);
    // Other factors, and squares that are read elsewhere.
    becomes(&[". mul %0, %1", sum, ". mul %1, %3"], &["mul", "reduce", "mul"]);
    becomes(&[". mul %0, %0", sum, ". mul %2, %3"], &["mul", "reduce", "mul"]);
}

#[test]
fn squares_that_are_repeated_are_not_those_of_what_they_are_of() {
    let twos = format!(". constant {{{}}}", ["2.0"; 24].join(", "));
    let (row, powers) = ("k reduce %0 kind=max axes=[0] keep=true", ". pow %2, %3");
    let all = "c reduce %4 kind=sum axes=[0, 1]";
    becomes(&[row, &twos, powers, all], &["reduce", "pow", "reduce"]);
    assert!(!fused(&graph(&[row, &twos, powers, all])).to_string().contains("sum_squares"));
    let columns = "k reduce %4 kind=sum axes=[0] keep=true";
    becomes(&[row, &twos, powers, columns], &["reduce", "pow", "reduce"]);
}

#[test]
fn squares_of_widened_halves() {
    let halves = |widened: &str, behind: &str| {
        let text = format!(
            "graph \"g\"\n\nsource s0 node \"a\" \"A\"\n\n%0: bf16[3, 8] = input \"x\" @s0
%1: {widened}[3, 8] = convert %0 to={widened} @s0\n%2: {widened}[3, 8] = mul %1, %1 @s0
%3: {widened}[] = reduce %2 kind=sum axes=[0, 1] @s0\noutput \"z\" %3\n{behind}"
        );
        names(&fused(&parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))))
    };
    assert_eq!(halves("f32", ""), ["reduce"]);
    // What is widened is read elsewhere, or squared in f64.
    assert_eq!(halves("f32", "output \"w\" %1\n"), ["convert", "reduce"]);
    assert_eq!(halves("f64", ""), ["convert", "reduce"]);
}
