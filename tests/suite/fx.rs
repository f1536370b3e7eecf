//! Graphs of `torch.fx` as cost graphs.

use std::collections::HashMap;
use std::fs;
use std::io::Read;

use flate2::read::GzDecoder;
use partition::Result;
use partition::unstable::costgraph::{CostGraph, NodeIx, Role};
use partition::unstable::load::{Format, LoadOptions, Model, load, recognise};
use partition::unstable::units::{Bytes, Nanos};
use serde_json::{Value, json};

use crate::shared;

fn read(graph: &Value) -> Result<CostGraph> {
    match load(graph.to_string().as_bytes(), None, &LoadOptions::default())? {
        Model::CostGraph { graph, topology: None } => Ok(graph),
        _ => panic!("a cost graph without devices"),
    }
}

fn f32s(shape: &[u64]) -> Value {
    json!({"shape": shape, "dtype": "float32"})
}

/// A linear layer with its weight transposed by a view, and a ReLU that overwrites its operand.
fn small() -> Value {
    json!({"format": "torch-fx-aten-json-1", "torch": "2.15.0", "name": "small", "what": "forward", "outputs": 1,
      "nodes": [
        {"name": "p_1", "op": "placeholder", "val": f32s(&[300, 200]), "role": "param", "path": "fc.weight"},
        {"name": "b_1", "op": "placeholder", "val": f32s(&[300]), "role": "buffer", "path": "fc.bias"},
        {"name": "x_1", "op": "placeholder", "val": f32s(&[100, 200]), "role": "input", "path": "x"},
        {"name": "t", "op": "call_function", "target": "aten.t.default", "args": [{"node": "p_1"}], "val": f32s(&[200, 300])},
        {"name": "addmm", "op": "call_function", "target": "aten.addmm.default",
         "args": [{"node": "b_1"}, {"node": "x_1"}, {"node": "t"}], "val": f32s(&[100, 300])},
        {"name": "relu_", "op": "call_function", "target": "aten.relu_.default", "args": [{"node": "addmm"}], "val": f32s(&[100, 300])},
        {"name": "max", "op": "call_function", "target": "aten.max.dim", "args": [{"node": "relu_"}, 1],
         "kwargs": {"keepdim": {"const": "false"}}, "val": [f32s(&[100]), {"shape": [100], "dtype": "int64"}]},
        {"name": "getitem", "op": "call_function", "target": "getitem", "args": [{"node": "max"}, 1],
         "val": {"shape": [100], "dtype": "int64"}},
        {"name": "neg", "op": "call_function", "target": "aten.neg.default", "args": [{"node": "getitem"}],
         "val": {"shape": [100], "dtype": "int64"}},
        {"name": "output", "op": "output", "args": [[{"node": "neg"}, {"node": "relu_"}]]}]})
}

fn node(graph: &CostGraph, name: &str) -> NodeIx {
    graph.nodes().find(|&node| graph.node_name(node) == name).unwrap()
}

#[test]
fn nodes_have_the_bytes_and_costs_of_their_shapes() {
    let graph = read(&small()).unwrap();
    let names: Vec<&str> = graph.nodes().map(|node| graph.node_name(node)).collect();
    assert_eq!(names, ["p_1", "b_1", "x_1", "t", "addmm", "relu_", "max", "getitem", "neg"]);
    let roles: Vec<Role> = graph.nodes().take(4).map(|node| graph.role(node)).collect();
    assert_eq!(roles, [Role::Param, Role::Param, Role::Input, Role::Compute]);
    assert_eq!(graph.param_bytes(graph.param(node(&graph, "p_1")).unwrap()), Bytes(240_000));

    let read_by = |name: &str| -> Vec<(&str, u32)> {
        let inputs = graph.inputs(node(&graph, name)).iter();
        inputs.map(|&t| (graph.node_name(graph.producer(t)), graph.output_index(t))).collect()
    };
    assert_eq!(read_by("addmm"), [("b_1", 0), ("x_1", 0), ("p_1", 0)], "a view's readers read what it views");
    assert_eq!(read_by("neg"), [("max", 1)], "and those of an item the result that it takes");
    assert_eq!(graph.outputs(node(&graph, "t")).len(), 0);
    let sizes: Vec<Bytes> = graph.outputs(node(&graph, "max")).map(|t| graph.tensor_bytes(t)).collect();
    assert_eq!(sizes, [Bytes(400), Bytes(800)]);
    assert_eq!(graph.in_place(node(&graph, "relu_")).collect::<Vec<_>>(), [(0, 0)]);
    let kept = graph.outputs(node(&graph, "relu_")).next().unwrap();
    assert!(graph.is_result(kept));

    // An A100: 19.5 TFLOP/s, 2,039 GB/s, 4 us a launch; an H100: 67 TFLOP/s, 3,350 GB/s.
    let time = |name: &str, kind: &str| graph.time(node(&graph, name), graph.kind(kind).unwrap()).unwrap();
    assert_eq!(time("addmm", "a100-80g"), Nanos(4_000 + 616), "2 * 100 * 300 * 200 operations");
    assert_eq!(time("addmm", "h100-80g"), Nanos(4_000 + 180));
    assert_eq!(time("relu_", "a100-80g"), Nanos(4_000 + 118), "240,000 bytes");
    assert_eq!(time("t", "a100-80g"), Nanos::ZERO);
}

#[test]
fn convolutions_attention_and_lookups_cost_what_they_compute() {
    let graph = json!({"format": "torch-fx-aten-json-1", "nodes": [
        {"name": "x", "op": "placeholder", "val": f32s(&[8, 64, 56, 56]), "role": "input"},
        {"name": "w", "op": "placeholder", "val": f32s(&[128, 64, 3, 3]), "role": "param"},
        {"name": "conv", "op": "call_function", "target": "aten.convolution.default", "val": f32s(&[8, 128, 28, 28]),
         "args": [{"node": "x"}, {"node": "w"}, null, [2, 2], [1, 1], [1, 1], false, [0, 0], 1]},
        {"name": "back", "op": "call_function", "target": "aten.convolution_backward.default",
         "args": [{"node": "conv"}, {"node": "x"}, {"node": "w"}, [0], [2, 2], [1, 1], [1, 1], false, [0, 0], 1, [true, true, false]],
         "val": [f32s(&[8, 64, 56, 56]), f32s(&[128, 64, 3, 3]), null]},
        {"name": "up", "op": "call_function", "target": "aten.convolution.default", "val": f32s(&[8, 64, 56, 56]),
         "args": [{"node": "conv"}, {"node": "w"}, null, [2, 2], [0, 0], [1, 1], true, [0, 0], 1]},
        {"name": "q", "op": "placeholder", "val": {"shape": [2, 8, 512, 64], "dtype": "bfloat16"}, "role": "input"},
        {"name": "k", "op": "placeholder", "val": {"shape": [2, 8, 1024, 64], "dtype": "bfloat16"}, "role": "input"},
        {"name": "attend", "op": "call_function", "target": "aten._scaled_dot_product_flash_attention.default",
         "args": [{"node": "q"}, {"node": "k"}, {"node": "k"}], "val": [{"shape": [2, 8, 512, 64], "dtype": "bfloat16"}]},
        {"name": "table", "op": "placeholder", "val": f32s(&[1_000_000, 64]), "role": "param"},
        {"name": "ids", "op": "placeholder", "val": {"shape": [1024], "dtype": "int64"}, "role": "input"},
        {"name": "rows", "op": "call_function", "target": "aten.embedding.default", "args": [{"node": "table"}, {"node": "ids"}],
         "val": f32s(&[1024, 64])}]});
    let graph = read(&graph).unwrap();
    let beyond_launch =
        |name: &str| graph.time(node(&graph, name), graph.kind("a100-80g").unwrap()).unwrap().0 - 4_000;
    let at = |operations: u64, per_second: u64| (operations * 1_000).div_ceil(per_second / 1_000_000);
    let convolution = 2 * 8 * 128 * 28 * 28 * 64 * 9;
    assert_eq!(beyond_launch("conv"), at(convolution, 19_500_000_000_000));
    assert_eq!(beyond_launch("back"), at(2 * convolution, 19_500_000_000_000), "two of its three gradients");
    assert_eq!(beyond_launch("up"), at(convolution, 19_500_000_000_000), "the filters meet the operand");
    assert_eq!(
        beyond_launch("attend"),
        at(2 * 2 * 8 * 512 * 1024 * (64 + 64), 312_000_000_000_000),
        "in 16 bits"
    );
    assert_eq!(
        beyond_launch("rows"),
        at(2 * 1024 * 64 * 4 + 1024 * 8, 2_039_000_000_000),
        "the rows, not the table"
    );
}

/// Nodes, bytes of parameters, bytes that operations make, and pairs of operation and tensor read, counted from the
/// text alone.
#[test]
fn training_steps_of_the_corpus_are_read_whole() {
    for name in ["mlp_seed_stack", "gpt2_small4", "llama_small", "resnet50", "vgg16"] {
        let Some(path) = shared::file(&format!("corpus/onnx/train_{name}.fx.json.gz")) else { return };
        let mut text = Vec::new();
        GzDecoder::new(fs::File::open(&path).unwrap()).read_to_end(&mut text).unwrap();
        assert_eq!(recognise(&text).unwrap(), Format::Fx, "{name}");
        let file: Value = serde_json::from_slice(&text).unwrap();
        let graph = read(&file).unwrap();
        let counted = Counted::of(&file);
        assert_eq!(graph.node_count(), counted.nodes, "{name}");
        assert_eq!(graph.edge_count(), counted.reads, "{name}");
        let params: u64 = graph.nodes().filter_map(|n| graph.param(n)).map(|p| graph.param_bytes(p).0).sum();
        assert_eq!(params, counted.params, "{name}");
        let computed = graph.nodes().filter(|&n| graph.role(n) == Role::Compute);
        let made: u64 = computed.flat_map(|n| graph.outputs(n)).map(|t| graph.tensor_bytes(t).0).sum();
        assert_eq!(made, counted.made, "{name}");
        let results =
            graph.tensors().filter(|&t| graph.is_result(t) && !graph.consumers(t).is_empty()).count();
        assert!(results >= 1, "{name}: the loss is read by its gradient and given back");
    }
}

#[derive(Default)]
struct Counted {
    nodes: usize,
    params: u64,
    made: u64,
    reads: usize,
}

impl Counted {
    fn of(file: &Value) -> Self {
        let mut counted = Self::default();
        // What stands for what: the tensor itself, or the one that is viewed.
        let mut stands: HashMap<&str, Vec<(String, usize)>> = HashMap::new();
        for node in file["nodes"].as_array().unwrap().iter().filter(|node| node["op"] != "output") {
            counted.nodes += 1;
            let name = node["name"].as_str().unwrap();
            let results: Vec<&Value> = match &node["val"] {
                Value::Array(list) => list.iter().collect(),
                one => vec![one],
            };
            let bytes: u64 = results.iter().map(|result| bytes(result)).sum();
            let own = (0..results.len()).map(|at| (name.to_owned(), at)).collect();
            if node["op"] == "placeholder" {
                let is_stored = node["role"] == "param" || node["role"] == "buffer";
                counted.params += if is_stored { bytes } else { 0 };
                stands.insert(name, own);
                continue;
            }
            let mut read: Vec<(String, usize)> = Vec::new();
            let text = node["args"].to_string() + &node["kwargs"].to_string();
            for mentioned in text.split("{\"node\":\"").skip(1) {
                read.extend(stands[mentioned.split('"').next().unwrap()].iter().cloned());
            }
            read.sort();
            read.dedup();
            counted.reads += read.len();
            let target = node["target"].as_str().unwrap();
            let views = ["view", "permute", "unsqueeze", "alias", "expand", "squeeze"];
            let is_view = views.iter().any(|view| target.starts_with(&format!("aten.{view}.")));
            let stand = match (target, is_view) {
                ("getitem", _) => vec![
                    stands[node["args"][0]["node"].as_str().unwrap()]
                        [node["args"][1].as_u64().unwrap() as usize]
                        .clone(),
                ],
                (_, true) => read,
                (_, false) => {
                    counted.made += bytes;
                    own
                }
            };
            if target == "getitem" {
                counted.reads -= stands[node["args"][0]["node"].as_str().unwrap()].len() - 1;
            }
            stands.insert(name, stand);
        }
        counted
    }
}

fn bytes(result: &Value) -> u64 {
    let Some(shape) = result["shape"].as_array() else { return 0 };
    let each = match result["dtype"].as_str().unwrap() {
        "float32" | "int32" => 4,
        "int64" => 8,
        "bool" => 1,
        other => panic!("{other}"),
    };
    shape.iter().fold(each, |bytes, size| bytes * size.as_u64().unwrap())
}

#[test]
fn what_is_not_known_is_named() {
    let change = |at: usize, field: &str, value: Value| {
        let mut graph = small();
        graph["nodes"][at][field] = value;
        graph
    };
    let faults = [
        (change(4, "stream", json!(1)), "unknown field `stream`"),
        (change(4, "op", json!("call_module")), "node addmm: op: the kind of node call_module is not known"),
        (change(0, "role", json!("constant")), "node p_1: role: constant is not known"),
        (change(0, "val", json!({"shape": [2], "dtype": "quint4x2"})), "the dtype quint4x2 is not known"),
        (change(0, "val", json!({"shape": [2], "dtype": "int8", "stride": [1]})), "is no shape with a dtype"),
        (change(0, "val", json!({"shape": [1u64 << 40, 1u64 << 40], "dtype": "int8"})), "is too large"),
        (change(4, "args", json!([{"node": "later"}])), "node addmm: args: there is no node later before it"),
        (change(4, "args", json!([])), "addmm lacks an operand"),
        (change(7, "args", json!([{"node": "max"}, 2])), "getitem takes a result that is not there"),
        (change(5, "name", json!("t")), "this id is used twice"),
    ];
    for (graph, message) in faults {
        refused(&graph, message);
    }
    let mut newer = small();
    newer["format"] = json!("torch-fx-aten-json-2");
    refused(&newer, "torch-fx-aten-json-2 is not supported");
    newer["format"] = json!("another");
    refused(&newer, "no model of a known format");
}

fn refused(graph: &Value, message: &str) {
    let error = read(graph).expect_err(message).to_string();
    assert!(error.contains(message), "{error}: {message}");
}

#[test]
fn the_example_of_the_page_is_read() {
    let page = include_str!("../../docs/torch.md");
    let example = page.split("```json\n").nth(1).unwrap().split("\n```").next().unwrap();
    let graph = read(&serde_json::from_str(example).unwrap()).unwrap();
    assert_eq!((graph.node_count(), graph.edge_count()), (4, 3));
}
