//! The native model format: examples, every operation, and every kind of bad input.

use std::collections::BTreeMap;
use std::path::Path;

use partition::unstable::ir::{Data, Graph, SourceRole};
use partition::unstable::load::{Format, LoadOptions, native, recognise};
use partition::{Error, Result};
use serde_json::{Value, json};

use crate::bad;

fn load(text: &[u8]) -> Result<Graph> {
    native::load(text, Some(Path::new("models/m.json")), &LoadOptions::default())
}

fn example(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)).unwrap()
}

fn elements(graph: &Graph) -> u64 {
    let value = |param: &partition::unstable::ir::Param| graph.results(param.node).next().unwrap();
    graph.params().iter().map(|param| graph.ty(value(param)).elements().unwrap()).sum()
}

#[test]
fn the_example_is_read() {
    let text = example("mlp.json");
    assert_eq!(recognise(&text).unwrap(), Format::Native);
    let graph = load(&text).unwrap();
    assert_eq!(graph.name, "mlp");
    let expected = 64 * 256 + 256 + 3 * (2 * 256 + 2 * 256 * 1024 + 1024 + 256) + 256 * 10 + 10;
    assert_eq!(elements(&graph), expected);
    assert_eq!(graph.outputs()[0].0, "probabilities");
    let nodes = graph.sources().iter().filter(|source| source.role == SourceRole::Node).count();
    assert_eq!(nodes, 15);
}

#[cfg(feature = "keras")]
#[test]
fn the_seed_example_has_its_weights() {
    let text = example("seed_stack.json");
    assert_eq!(recognise(&text).unwrap(), Format::Keras);
    let graph = partition::unstable::load::keras::load(&text, &LoadOptions::default()).unwrap();
    assert_eq!(elements(&graph), 10_211_100);
}

/// A model of one node on inputs of these types.
pub(crate) fn model(inputs: &[&str], node: Value) -> Value {
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let entries: Vec<Value> =
        names.iter().zip(inputs).map(|(name, ty)| json!({"name": name, "type": ty})).collect();
    let mut node = node;
    node["name"] = "y".into();
    node["inputs"] = names.into();
    json!({"partition_model": 1, "inputs": entries, "nodes": [node], "outputs": ["y"]})
}

fn read(model: &Value) -> Result<Graph> {
    load(model.to_string().as_bytes())
}

/// The type of the first output, as it prints.
fn result(model: &Value) -> String {
    let graph = read(model).unwrap_or_else(|error| panic!("{error}: {model}"));
    let ty = graph.ty(graph.outputs()[0].1);
    let names = |dim| graph.dim_name(dim);
    let sizes: Vec<String> = ty.shape.sizes().iter().map(|size| size.display(&names).to_string()).collect();
    format!("{}[{}]", ty.dtype, sizes.join(", "))
}

/// Every operation: types of its inputs, the node, the type of its first result.
pub(crate) fn operations() -> Vec<(Vec<&'static str>, Value, &'static str)> {
    let x = "f32[batch, 4, 6]";
    let image = "f32[batch, 2, 8, 8]";
    vec![
        (vec![x], json!({"op": "gelu"}), "f32[batch, 4, 6]"),
        (vec![x, "f32[6]"], json!({"op": "sub"}), "f32[batch, 4, 6]"),
        (vec![x, "f32[6]"], json!({"op": "ge"}), "bool[batch, 4, 6]"),
        (vec!["bool[batch]", "f32[batch]", "f32"], json!({"op": "select"}), "f32[batch]"),
        (vec![x], json!({"op": "convert", "to": "i32"}), "i32[batch, 4, 6]"),
        (vec![x], json!({"op": "reduce", "kind": "mean", "axes": [-1], "keep": true}), "f32[batch, 4, 1]"),
        (vec![x], json!({"op": "reduce", "kind": "sum"}), "f32[]"),
        (vec![x], json!({"op": "argmax", "axis": -1}), "i64[batch, 4]"),
        (vec![x], json!({"op": "cumsum", "axis": 1}), "f32[batch, 4, 6]"),
        (vec![x], json!({"op": "softmax"}), "f32[batch, 4, 6]"),
        (vec!["f32[batch, 6]", "i64[batch]"], json!({"op": "cross_entropy"}), "f32[batch]"),
        (vec![x, x], json!({"op": "cross_entropy"}), "f32[batch, 4]"),
        (vec![x], json!({"op": "normalize", "axes": [1, 2]}), "f32[batch, 4, 6]"),
        (vec![image], json!({"op": "local_response_norm", "size": 3}), "f32[batch, 2, 8, 8]"),
        (vec![x, "f32[5, 6]"], json!({"op": "matmul", "transpose_right": true}), "f32[batch, 4, 5]"),
        (vec![image, "f32[5, 2, 3, 3]"], json!({"op": "conv"}), "f32[batch, 5, 6, 6]"),
        (
            vec![image, "f32[3, 3, 8, 5]"],
            json!({"op": "conv", "layout": "channels_last", "strides": [1, 2], "pads_before": [1, 0], "pads_after": [1, 0]}),
            "f32[batch, 2, 3, 5]",
        ),
        (
            vec![image, "f32[2, 5, 2, 2]"],
            json!({"op": "conv_transpose", "strides": [2, 2]}),
            "f32[batch, 5, 16, 16]",
        ),
        (vec![image], json!({"op": "pool", "kind": "max", "kernel": [2, 2]}), "f32[batch, 2, 4, 4]"),
        (
            vec![image],
            json!({"op": "resize", "shape": ["batch", 2, 16, 4], "interpolation": "linear"}),
            "f32[batch, 2, 16, 4]",
        ),
        (
            vec![
                "f32[7, batch, 3]",
                "f32[1, 20, 3]",
                "f32[1, 20, 5]",
                "f32[1, 40]",
                "f32[1, batch, 5]",
                "f32[1, batch, 5]",
            ],
            json!({"op": "recurrent", "cell": "lstm", "hidden": 5}),
            "f32[7, 1, batch, 5]",
        ),
        (vec![x], json!({"op": "reshape", "shape": ["batch", -1]}), "f32[batch, 24]"),
        (vec![x], json!({"op": "reshape", "shape": [-1, 6]}), "f32[4*batch, 6]"),
        (vec![x], json!({"op": "transpose", "perm": [0, -1, 1]}), "f32[batch, 6, 4]"),
        (vec!["f32[4, 1]"], json!({"op": "broadcast", "shape": [3, 4, 2]}), "f32[3, 4, 2]"),
        (
            vec![x],
            json!({"op": "slice", "starts": [0, 1, 0], "sizes": ["batch", 2, 3], "steps": [1, 1, 2]}),
            "f32[batch, 2, 3]",
        ),
        (vec![x], json!({"op": "pad", "before": [0, 1, 0], "after": [0, 0, -2]}), "f32[batch, 5, 4]"),
        (vec![x, x], json!({"op": "concat", "axis": -1}), "f32[batch, 4, 12]"),
        (vec!["f32[9, 3]", "i64[batch]"], json!({"op": "gather"}), "f32[batch, 3]"),
        (vec!["f32[9, 3]", "i64[2, 3]"], json!({"op": "gather_elements", "axis": 0}), "f32[2, 3]"),
        (vec!["f32[9, 3]", "i64[2, 1]"], json!({"op": "gather_nd"}), "f32[2, 3]"),
        (
            vec!["f32[9]", "i64[2]", "f32[2]"],
            json!({"op": "scatter_elements", "axis": 0, "kind": "add"}),
            "f32[9]",
        ),
        (vec!["f32[9]", "i64[2, 1]", "f32[2]"], json!({"op": "scatter_nd"}), "f32[9]"),
        (vec![x], json!({"op": "topk", "k": 2}), "f32[batch, 4, 2]"),
        (vec![], json!({"op": "iota", "type": "i64[3, 4]", "axis": -1}), "i64[3, 4]"),
        (vec![], json!({"op": "sizes", "sizes": [3, 4]}), "i64[2]"),
        (vec![x, "f32[6, 2]", "f32[2]"], json!({"op": "dense", "activation": "relu"}), "f32[batch, 4, 2]"),
        (vec![x, "f32[6]", "f32[6]"], json!({"op": "layer_norm"}), "f32[batch, 4, 6]"),
        (vec![x, "f32[6]"], json!({"op": "rms_norm", "epsilon": 1e-6}), "f32[batch, 4, 6]"),
    ]
}

#[test]
fn every_operation_is_there() {
    for (inputs, node, expected) in operations() {
        assert_eq!(result(&model(&inputs, node.clone())), expected, "{node}");
    }
}

fn two(nodes: Value, outputs: Value) -> Value {
    json!({"partition_model": 1, "inputs": [{"name": "x", "type": "f32[batch, 4]"}],
        "params": [{"name": "w", "type": "f32[4, 4]", "init": "orthogonal", "data": {"file": "w.npz"}}],
        "constants": [{"name": "half", "type": "f32[4]", "values": [0.5]}],
        "nodes": nodes, "outputs": outputs})
}

#[test]
fn order_ties_pins_and_marks_are_kept() {
    let nodes = json!([
        {"name": "b", "op": "matmul", "inputs": ["a", "w"], "pin": "cuda0"},
        {"name": "a", "op": "matmul", "inputs": ["x", "w"], "colocate": "tower"},
        {"name": "top", "op": "topk", "inputs": ["b"], "k": 1, "outputs": ["values", "positions"]},
        {"name": "c", "op": "mul", "inputs": ["values", "half"]}]);
    let outputs = json!(["c", {"name": "where", "value": "positions"}]);
    let graph = read(&two(nodes, outputs)).unwrap();
    assert_eq!(graph.params().len(), 1, "a tied parameter is one");
    let expected = Path::new("models").join("w.npz");
    assert_eq!(graph.params()[0].data, Some(Data::Array { path: expected, name: "w".into() }));
    let source = |name: &str| graph.sources().iter().find(|source| source.name == name).unwrap();
    assert_eq!(source("b").pin.as_deref(), Some("cuda0"));
    assert_eq!(source("a").colocate.as_deref(), Some("tower"));
    let names: Vec<&str> = graph.outputs().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["c", "where"]);
    let values = graph.constants()[0].to_f32().unwrap();
    assert_eq!(values, [0.5; 4], "one number stands for all");
}

#[test]
fn dimensions_can_be_fixed_while_reading() {
    let text = model(&["f32[batch, time, 4]"], json!({"op": "reshape", "shape": [-1, 4]})).to_string();
    let dims = |name: &str, value| LoadOptions {
        dims: BTreeMap::from([(name.to_owned(), value)]),
        ..LoadOptions::default()
    };
    assert!(load(text.as_bytes()).is_err(), "not affine");
    let graph = native::load(text.as_bytes(), None, &dims("time", 3)).unwrap();
    assert_eq!(graph.unbound_dims(), ["batch"]);
    assert!(
        native::load(text.as_bytes(), None, &dims("seq", 3))
            .unwrap_err()
            .to_string()
            .contains("no such dimension")
    );
    assert!(native::load(text.as_bytes(), None, &dims("time", -3)).is_err());
}

#[test]
fn wrong_models_are_named() {
    let a = |inputs: Value| json!({"name": "a", "op": "matmul", "inputs": inputs});
    let one = |node: Value| two(json!([node]), json!(["a"]));
    let param = |ty: &str, extra: Value| {
        let mut model = one(a(json!(["x", "w"])));
        model["params"][0] = json!({"name": "w", "type": ty});
        for (key, value) in extra.as_object().unwrap() {
            model["params"][0][key] = value.clone();
        }
        model
    };
    let constant = |ty: &str, values: Value| {
        let mut model = one(a(json!(["x", "w"])));
        model["constants"][0] = json!({"name": "half", "type": ty, "values": values});
        model
    };
    let mut version = one(a(json!(["x", "w"])));
    version["partition_model"] = 2.into();
    let mut unknown = one(a(json!(["x", "w"])));
    unknown["nodess"] = json!([]);
    let cases = [
        (version, "version 2 is not supported"),
        (unknown, "unknown field `nodess`"),
        (one(a(json!(["x", "z"]))), "node a: reads z, which does not exist"),
        (one(a(json!(["a", "w"]))), "node a: is on a cycle of 1 nodes: a"),
        (
            two(
                json!([{"name": "a", "op": "add", "inputs": ["x", "b"]}, {"name": "b", "op": "relu", "inputs": ["a"]}]),
                json!(["a"]),
            ),
            "is on a cycle of 2 nodes",
        ),
        (two(json!([a(json!(["x", "w"])), a(json!(["x", "w"]))]), json!(["a"])), "two nodes have this name"),
        (
            two(json!([{"name": "x", "op": "relu", "inputs": ["x"]}]), json!(["x"])),
            "the name x is used twice",
        ),
        (
            one(json!({"name": "a", "op": "relu", "inputs": ["x"], "outputs": ["w"]})),
            "the name w is used twice",
        ),
        (
            one(json!({"name": "a", "op": "relu", "inputs": ["x"], "outputs": ["p", "q"]})),
            "2 names for 1 results",
        ),
        (one(json!({"name": "", "op": "relu", "inputs": ["x"]})), "its name is empty"),
        (one(json!({"name": "a", "op": "relux", "inputs": ["x"]})), "there is no operation relux"),
        (
            one(json!({"name": "a", "op": "relu", "inputs": ["x"], "alpha": 1})),
            "node a: alpha: relu has no such attribute",
        ),
        (one(json!({"name": "a", "op": "softmax", "inputs": ["x"], "axs": 1})), "it has: axis, log"),
        (
            one(json!({"name": "a", "op": "softmax", "inputs": ["x"], "axis": 2})),
            "axis 2 does not exist at rank 2",
        ),
        (one(json!({"name": "a", "op": "softmax", "inputs": ["x"], "axis": i64::MIN})), "does not exist"),
        (
            one(json!({"name": "a", "op": "softmax", "inputs": ["x"], "axis": "last"})),
            "expected a whole number",
        ),
        (
            one(json!({"name": "a", "op": "reduce", "inputs": ["x"], "kind": "median"})),
            "\"median\" is not known",
        ),
        (one(json!({"name": "a", "op": "concat", "inputs": ["x"]})), "axis: concat needs this attribute"),
        (one(json!({"name": "a", "op": "dense", "inputs": ["x"]})), "dense has 2 or 3 inputs, found 1"),
        (
            one(json!({"name": "a", "op": "broadcast", "inputs": ["x"], "shape": ["n", 4]})),
            "expected a number or a dimension",
        ),
        (one(json!({"name": "a", "op": "broadcast", "inputs": ["x"], "shape": [-2, 4]})), "node a"),
        (
            one(
                json!({"name": "a", "op": "broadcast", "inputs": ["x"], "shape": [9_000_000_000_000_000_000i64, 4]}),
            ),
            "node a",
        ),
        (one(json!({"name": "a", "op": "matmul", "inputs": ["x", "half"]})), "node a"),
        (two(json!([a(json!(["x", "w"]))]), json!([])), "the model has no outputs"),
        (two(json!([a(json!(["x", "w"]))]), json!(["q"])), "output q: there is no value q"),
        (two(json!([a(json!(["x", "w"]))]), json!(["a", "a"])), "output a: the name is used twice"),
        (param("f32[-4, 4]", json!({})), "param w: type f32[-4, 4]: size -4 is negative"),
        (param("f32[9000000000000000000, 4]", json!({})), "is too large"),
        (param("f32[99999999999999999999]", json!({})), "expected an integer in range"),
        (param("f33[4]", json!({})), "expected an element type"),
        (param("f32[batch, 4]", json!({})), "a parameter's sizes must be numbers"),
        (param("f32[4, 4]", json!({"init": "magic"})), "\"magic\" is not known"),
        (param("f32[4, 4]", json!({"init": {"kind": "normal", "sigma": 1}})), "normal has no such field"),
        (param("f32[4, 4]", json!({"data": {"file": "../w.npz"}})), "outside of the model's directory"),
        (param("f32[4, 4]", json!({"data": {"file": "/etc/passwd"}})), "outside of the model's directory"),
        (constant("f32[4]", json!([1, 2])), "expected 4 numbers, found 2"),
        (constant("u8[2]", json!([1, 300])), "300 is not of type u8"),
        (constant("bool[1]", json!([1])), "1 is not of type bool"),
    ];
    for (model, expected) in cases {
        let error = read(&model).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn damaged_text_is_an_error() {
    let text = example("mlp.json");
    bad::truncations(&text, |text| load(text).map(drop));
    bad::nonsense(|text| load(text).map(drop));
}

#[test]
fn a_long_chain_in_any_order_is_read_without_recursion() {
    let count = 50_000;
    let mut nodes: Vec<Value> = (0..count)
        .map(|i| {
            let input = if i == 0 { "x".to_owned() } else { format!("n{}", i - 1) };
            json!({"name": format!("n{i}"), "op": "relu", "inputs": [input]})
        })
        .collect();
    nodes.reverse();
    let graph = read(&two(nodes.clone().into(), json!(["n49999"]))).unwrap();
    assert_eq!(graph.node_count(), count + 3);
    nodes[count - 1]["inputs"][0] = "n49999".into();
    assert!(matches!(read(&two(nodes.into(), json!(["n7"]))), Err(Error::Model(_))));
}

#[test]
fn the_schema_knows_every_operation() {
    use partition::unstable::ir::{ArgReduce, Binary, Compare, Unary};
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/model.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let ops: Vec<&str> = schema["$defs"]["node"]["properties"]["op"]["enum"]
        .as_array()
        .unwrap()
        .iter()
        .map(|op| op.as_str().unwrap())
        .collect();
    let names = Unary::ALL.iter().map(|op| op.name());
    let names =
        names.chain(Binary::ALL.iter().map(|op| op.name())).chain(Compare::ALL.iter().map(|op| op.name()));
    for name in names.chain(ArgReduce::ALL.iter().map(|op| op.name())) {
        assert!(ops.contains(&name), "the schema lacks {name}");
    }
    // Whatever the schema lists, the reader knows.
    for op in ops {
        let text = model(&["f32[2, 2]"], json!({"op": op}));
        if let Err(error) = read(&text) {
            assert!(!error.to_string().contains("there is no operation"), "{op}: {error}");
        }
    }
}
