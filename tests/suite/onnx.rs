//! ONNX models: the corpus loads (what it computes is tested in `corpus`), shapes are computed,
//! damaged files are refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use partition::Result;
use partition::unstable::ir::{DType, Data, Graph, Op, Size, SourceRole};
use partition::unstable::load::{LoadOptions, Model, load_with};
use partition::unstable::run::feed::{Header, infer_dims};
use prost::Message;

use crate::{bad, shared};

fn load(bytes: &[u8], path: Option<&Path>, dims: &[(&str, i64)]) -> Result<Graph> {
    let dims: BTreeMap<String, i64> = dims.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    match partition::unstable::load::load(bytes, path, &LoadOptions { dims, ..LoadOptions::default() })? {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => panic!("an ONNX model is a network"),
    }
}

fn read(path: &Path, dims: &[(&str, i64)]) -> Result<Graph> {
    load(&std::fs::read(path).expect("the file can be read"), Some(path), dims)
}

/// ONNX files of the corpus, but those of other runtimes' own test suites.
fn corpus() -> Vec<PathBuf> {
    let Some(dir) = shared::dir() else { return Vec::new() };
    let mut files: Vec<_> = ["onnx", "wheels"]
        .iter()
        .flat_map(|folder| {
            std::fs::read_dir(dir.join("corpus").join(folder)).expect("the corpus has folders")
        })
        .map(|entry| entry.expect("a folder can be listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "onnx"))
        .filter(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("tract_")))
        .collect();
    files.sort();
    files
}

#[test]
fn the_corpus_loads() {
    let mut failures = Vec::new();
    for path in corpus() {
        match read(&path, &[]) {
            Ok(mut graph) => {
                partition::unstable::ir::verify(&graph).expect("a loaded graph is sound");
                let dims = graph.unbound_dims().into_iter().map(|name| (name, 3)).collect();
                graph.bind(&dims).expect("any size fits");
                partition::unstable::ir::verify(&graph).expect("a bound graph is sound");
                let names: std::collections::BTreeSet<&str> = graph
                    .sources()
                    .iter()
                    .filter(|source| source.role == SourceRole::Node)
                    .map(|source| source.name.as_str())
                    .collect();
                let nodes = graph.sources().iter().filter(|source| source.role == SourceRole::Node).count();
                assert_eq!(names.len(), nodes, "{}: names are unique", path.display());
            }
            // Its classifier has four coefficients for each class, and its input two features.
            Err(error) if path.ends_with("ort_logreg_iris.onnx") => {
                assert!(error.to_string().contains("node LinearClassifier"), "{error}");
            }
            Err(error) => failures.push(format!("{error}\n  {}", error.details().join("\n  "))),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

// Models made here. Only the fields that the tests set.

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OpsetProto>,
}

#[derive(Clone, PartialEq, Message)]
struct OpsetProto {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "13")]
    value_info: Vec<ValueInfoProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(string, tag = "7")]
    domain: String,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<AttributeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, tag = "3")]
    i: i64,
    #[prost(int32, tag = "20")]
    r#type: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(float, repeated, tag = "4")]
    float_data: Vec<f32>,
    #[prost(int64, repeated, tag = "7")]
    int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", tag = "9")]
    raw_data: Vec<u8>,
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<EntryProto>,
    #[prost(int32, tag = "14")]
    data_location: i32,
}

#[derive(Clone, PartialEq, Message)]
struct EntryProto {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfoProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<TypeProto>,
    #[prost(message, repeated, tag = "4")]
    metadata_props: Vec<EntryProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeProto {
    #[prost(message, optional, tag = "1")]
    tensor_type: Option<TensorTypeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    elem_type: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<ShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ShapeProto {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<DimProto>,
}

#[derive(Clone, PartialEq, Message)]
struct DimProto {
    #[prost(int64, optional, tag = "1")]
    dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    dim_param: Option<String>,
}

/// A node: `op(inputs) -> outputs`, named.
pub(crate) fn node(name: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    NodeProto {
        input: owned(inputs),
        output: owned(outputs),
        name: name.into(),
        op_type: op.into(),
        ..NodeProto::default()
    }
}

/// A float input; a size is a number or a name.
pub(crate) fn float(name: &str, sizes: &[&str]) -> ValueInfoProto {
    let dim = |size: &&str| match size.parse() {
        Ok(number) => DimProto { dim_value: Some(number), dim_param: None },
        Err(_) => DimProto { dim_value: None, dim_param: Some((*size).to_owned()) },
    };
    let shape = Some(ShapeProto { dim: sizes.iter().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: 1, shape });
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type }), ..ValueInfoProto::default() }
}

/// The same input, of another element type.
pub(crate) fn of_type(elem_type: i32, mut input: ValueInfoProto) -> ValueInfoProto {
    if let Some(tensor) = input.r#type.as_mut().and_then(|ty| ty.tensor_type.as_mut()) {
        tensor.elem_type = elem_type;
    }
    input
}

pub(crate) fn integers(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: 7,
        dims: vec![values.len() as i64],
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// A vector of floats.
pub(crate) fn floats(name: &str, values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: 1,
        dims: vec![values.len() as i64],
        float_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// A node with an attribute `axis`.
pub(crate) fn with_axis(node: NodeProto, axis: i64) -> NodeProto {
    let attribute = vec![AttributeProto { name: "axis".into(), i: axis, r#type: 2 }];
    NodeProto { attribute, ..node }
}

pub(crate) fn model(
    nodes: Vec<NodeProto>,
    inputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
    outputs: &[&str],
) -> Vec<u8> {
    stating(Vec::new(), nodes, inputs, initializers, outputs)
}

/// As [`model`], with what is stated of values.
fn stating(
    value_info: Vec<ValueInfoProto>,
    nodes: Vec<NodeProto>,
    inputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
    outputs: &[&str],
) -> Vec<u8> {
    let output = |name: &&str| ValueInfoProto { name: (*name).into(), ..ValueInfoProto::default() };
    let graph = GraphProto {
        node: nodes,
        name: "made".into(),
        initializer: initializers,
        input: inputs,
        output: outputs.iter().map(output).collect(),
        value_info,
    };
    let opset_import = vec![OpsetProto { domain: String::new(), version: 18 }];
    ModelProto { ir_version: 8, graph: Some(graph), opset_import }.encode_to_vec()
}

/// What torch's exporter states of an initialiser.
fn of_kind(name: &str, kind: &str) -> ValueInfoProto {
    let key = "pkg.torch.export.graph_signature.InputSpec.kind".to_owned();
    let metadata_props = vec![EntryProto { key, value: kind.to_owned() }];
    ValueInfoProto { name: name.into(), metadata_props, ..ValueInfoProto::default() }
}

/// Which arrays are trained: what the file says, else what they are used as.
#[test]
fn parameters_are_told_from_other_arrays() {
    let shaped = |name: &str, dims: &[i64], values: &[f32]| TensorProto {
        dims: dims.to_vec(),
        ..floats(name, values)
    };
    let made = |stated: Vec<ValueInfoProto>| {
        let nodes = vec![
            node("product", "MatMul", &["x", "w"], &["p"]),
            node("biased", "Add", &["one_bias", "p"], &["q"]),
            node("halved", "Mul", &["q", "half"], &["r"]),
            node("turned", "Transpose", &["slope"], &["shown"]),
            node("sloped", "PRelu", &["r", "shown"], &["l"]),
            node("tabled", "Add", &["l", "table"], &["s"]),
            node("masked", "Add", &["s", "mask"], &["y"]),
        ];
        let arrays = vec![
            shaped("w", &[2, 1], &[1.0, 2.0]),
            floats("one_bias", &[3.0]),
            floats("half", &[0.5]),
            floats("slope", &[0.25]),
            shaped("table", &[2, 3, 1], &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
            shaped("mask", &[2, 3, 1], &[0.0, -100.0, 0.0, 0.0, f32::NEG_INFINITY, 0.0]),
        ];
        let bytes = stating(stated, nodes, vec![float("x", &["2", "3", "2"])], arrays, &["y"]);
        load(&bytes, None, &[]).expect("loads")
    };
    let params =
        |graph: &Graph| graph.params().iter().map(|param| param.name.clone()).collect::<Vec<_>>().join(" ");
    let frozen = |graph: &Graph| graph.rules().frozen.iter().cloned().collect::<Vec<_>>().join(" ");

    let silent = made(Vec::new());
    assert_eq!((params(&silent), frozen(&silent)), ("w one_bias slope table mask".into(), "mask".into()));
    assert_eq!(
        silent.rules().unheeded,
        [
            "initialisers of one element are taken for constants, and not trained: half",
            "arrays of 0 and large negative numbers are masks, and not trained: mask",
            "the file does not tell whether these are parameters, and they are trained (--freeze leaves them): table",
        ]
    );
    let told = made(vec![
        of_kind("w", "PARAMETER"),
        of_kind("half", "PARAMETER"),
        of_kind("slope", "PARAMETER"),
        of_kind("table", "BUFFER"),
        of_kind("mask", "PARAMETER"),
    ]);
    assert_eq!((params(&told), frozen(&told)), ("w one_bias half slope table mask".into(), "table".into()));
    assert!(told.rules().unheeded.is_empty(), "{:?}", told.rules().unheeded);
}

fn message(bytes: &[u8]) -> String {
    load(bytes, Some(Path::new("m.onnx")), &[]).expect_err("it is wrong").to_string()
}

/// A shape computed from dimensions: `[batch, seq, 8]` becomes `[batch, seq, 2, 4]`.
pub(crate) fn reshaping() -> Vec<u8> {
    let nodes = vec![
        node("shape", "Shape", &["x"], &["s"]),
        node("batch", "Gather", &["s", "zero"], &["b"]),
        node("seq", "Gather", &["s", "one"], &["q"]),
        node("sizes", "Concat", &["b", "q", "rest"], &["t"]),
        node("heads", "Reshape", &["x", "t"], &["y"]),
        node("", "Relu", &["y"], &["z"]),
    ];
    let mut nodes = nodes;
    let axis = AttributeProto { name: "axis".into(), i: 0, r#type: 2 };
    nodes[3].attribute.push(axis);
    let constants = vec![integers("zero", &[0]), integers("one", &[1]), integers("rest", &[2, -1])];
    model(nodes, vec![float("x", &["batch", "seq", "8"])], constants, &["z"])
}

/// Sizes of the outputs where inputs have arrays of these sizes.
fn sizes_by(bytes: &[u8], arrays: &[&[u64]]) -> Result<Vec<Vec<Option<i64>>>> {
    let headers: Vec<Header> = arrays
        .iter()
        .enumerate()
        .map(|(input, dims)| Header { input, dtype: DType::F32, dims: dims.to_vec() })
        .collect();
    let mut find = |graph: &Graph| infer_dims(graph, &headers, &BTreeMap::new());
    let loaded = load_with(bytes, Some(Path::new("m.onnx")), &LoadOptions::default(), &mut find)?;
    let Model::Graph(graph) = loaded else { panic!("an ONNX model is a network") };
    assert_eq!(graph.unbound_dims(), Vec::<String>::new());
    let sizes = |value| graph.ty(value).shape.sizes().iter().map(Size::known).collect();
    Ok(graph.outputs().iter().map(|&(_, value)| sizes(value)).collect())
}

#[test]
fn axes_of_one_name_are_as_long_as_their_arrays_where_nothing_compares_them() {
    let inputs = || vec![float("x", &["n", "3"]), float("y", &["n", "3"]), float("z", &["n", "n"])];
    let relu = |from, to| node(to, "Relu", &[from], &[to]);
    let apart =
        model(vec![relu("x", "a"), relu("y", "b"), relu("z", "c")], inputs(), vec![], &["a", "b", "c"]);
    let of = |sizes: &[[i64; 2]]| sizes.iter().map(|sizes| sizes.map(Some).to_vec()).collect::<Vec<_>>();
    assert_eq!(sizes_by(&apart, &[&[2, 3], &[5, 3], &[4, 7]]).unwrap(), of(&[[2, 3], [5, 3], [4, 7]]));
    // What has no array is as long as what has one.
    assert_eq!(sizes_by(&apart, &[&[2, 3]]).unwrap(), of(&[[2, 3], [2, 3], [2, 2]]));
    assert_eq!(load(&apart, None, &[]).unwrap().unbound_dims(), ["n"]);
    let added =
        model(vec![node("sum", "Add", &["x", "y"], &["a"]), relu("z", "c")], inputs(), vec![], &["a", "c"]);
    assert_eq!(sizes_by(&added, &[&[2, 3], &[2, 3], &[4, 7]]).unwrap(), of(&[[2, 3], [4, 7]]));
    let error = sizes_by(&added, &[&[2, 3], &[5, 3]]).unwrap_err().to_string();
    assert!(error.contains("input y: axis 0: expected 2, found 5 (another axis is called n too)"), "{error}");
    assert!(error.contains("node sum"), "{error}");
}

#[test]
fn shapes_stay_affine_until_they_are_bound() {
    let graph = load(&reshaping(), None, &[]).expect("loads");
    partition::unstable::ir::verify(&graph).expect("a loaded graph is sound");
    let snapshots = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => snapshots, prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!("onnx_reshaping", graph.to_string());
    });
    let names: Vec<(&str, Option<&str>)> = graph
        .sources()
        .iter()
        .filter(|source| source.role == SourceRole::Node)
        .map(|source| (source.name.as_str(), source.consumer.map(|id| graph.source(id).name.as_str())))
        .collect();
    let expected = [
        ("shape", Some("batch")),
        ("batch", Some("sizes")),
        ("seq", Some("sizes")),
        ("sizes", Some("heads")),
        ("heads", Some("z")),
        ("z", None),
    ];
    assert_eq!(names, expected, "folded nodes know who reads them");

    let bound = load(&reshaping(), None, &[("batch", 3), ("seq", 5)]).expect("loads");
    assert_eq!(bound.ty(bound.outputs()[0].1).shape.dims(), Some(vec![3, 5, 2, 4]));
    let error = load(&reshaping(), None, &[("bach", 3)]).expect_err("no such dimension").to_string();
    assert!(error.contains("dimension bach: the model has no such dimension"), "{error}");
    let error = load(&reshaping(), None, &[("batch", -1)]).expect_err("too small").to_string();
    assert!(error.contains("-1 is less than 0"), "{error}");
}

#[test]
fn nodes_in_any_order_are_sorted_and_a_cycle_is_named() {
    let nodes = vec![
        node("second", "Relu", &["a"], &["b"]),
        node("first", "Relu", &["x"], &["a"]),
        node("second", "Neg", &["b"], &["c"]),
    ];
    let input = || vec![float("x", &["2"])];
    let graph = load(&model(nodes, input(), vec![], &["c"]), None, &[]).expect("loads");
    let names: Vec<&str> = graph
        .sources()
        .iter()
        .filter(|source| source.role == SourceRole::Node)
        .map(|source| source.name.as_str())
        .collect();
    assert_eq!(names, ["second", "first", "second#2"], "names are made unique");

    let nodes = vec![
        node("p", "Add", &["x", "r"], &["q"]),
        node("r", "Relu", &["q"], &["r"]),
        node("after", "Relu", &["r"], &["s"]),
    ];
    let error = message(&model(nodes, input(), vec![], &["s"]));
    assert!(error.starts_with("m.onnx: node ") && error.contains("it is on a cycle"), "{error}");
    assert!(!error.contains("node after"), "{error}");
}

#[test]
fn wrong_graphs_are_named() {
    let input = || vec![float("x", &["2"])];
    let relu = |from: &str, to: &str| node("n", "Relu", &[from], &[to]);
    let cases = [
        (model(vec![relu("w", "y")], input(), vec![], &["y"]), "node n: its input w is made by nothing"),
        (model(vec![relu("x", "y")], input(), vec![], &["z"]), "output z: it is made by nothing"),
        (model(vec![relu("x", "y")], input(), vec![], &[]), "the graph has no outputs"),
        (model(vec![relu("x", "x")], input(), vec![], &["x"]), "value x: it is made twice"),
        (model(vec![relu("x", "y"), relu("x", "y")], input(), vec![], &["y"]), "value y: it is made twice"),
        (
            model(
                vec![node("n", "Add", &["x", "i"], &["y"])],
                input(),
                vec![integers("i", &[1, 2, 3])],
                &["y"],
            ),
            "node n: ",
        ),
        (
            model(vec![relu("x", "y")], vec![float("x", &["4000000000", "4000000000"])], vec![], &["y"]),
            "input x: its size overflows",
        ),
        (
            model(
                vec![relu("x", "y")],
                input(),
                vec![TensorProto {
                    dims: vec![-2],
                    data_type: 7,
                    name: "i".into(),
                    ..TensorProto::default()
                }],
                &["y"],
            ),
            "initializer i: sizes [-2] are negative or overflow",
        ),
        (
            model(
                vec![relu("x", "y")],
                input(),
                vec![TensorProto { dims: vec![9], data_type: 7, name: "i".into(), ..TensorProto::default() }],
                &["y"],
            ),
            "initializer i: i64 data of sizes [9] does not take 0 bytes",
        ),
        (
            model(
                vec![relu("x", "y")],
                input(),
                vec![TensorProto { data_type: 8, ..integers("i", &[1, 2]) }],
                &["y"],
            ),
            "initializer i: a tensor of texts (element type STRING) must hold them in `string_data` alone",
        ),
    ];
    for (bytes, expected) in cases {
        let error = message(&bytes);
        assert!(error.starts_with("m.onnx: ") && error.contains(expected), "{error}\nexpected {expected}");
    }
}

#[test]
fn everything_unsupported_is_named_at_once() {
    let mut resize = node("r", "Relu", &["x"], &["r"]);
    resize.attribute.push(AttributeProto { name: "speed".into(), i: 1, r#type: 2 });
    let mut custom = node("c", "Fancy", &["q"], &["c"]);
    custom.domain = "my.ops".into();
    let nodes = vec![
        node("q", "ImageDecoder", &["x"], &["q"]),
        custom,
        resize,
        node("l", "StringNormalizer", &["x"], &["l"]),
    ];
    let mut bytes = model(nodes, vec![float("x", &["2"])], vec![], &["c", "r", "l"]);
    let opset = OpsetProto { domain: "my.ops".into(), version: 3 };
    bytes.extend(ModelProto { ir_version: 8, graph: None, opset_import: vec![opset] }.encode_to_vec());
    let error = load(&bytes, Some(Path::new("m.onnx")), &[]).expect_err("not supported");
    assert!(error.to_string().starts_with("m.onnx: node q: "), "{error}");
    let details = error.details();
    let named: Vec<&str> = details.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(named, ["node q", "node c", "node r", "node l"], "{details:?}");
    assert_eq!(details[1], "node c: op Fancy of domain my.ops at opset 3 is not supported yet");
    assert_eq!(details[2], "node r: attribute speed of op Relu is not supported yet");
}

#[test]
fn a_size_that_is_not_affine_names_the_dimensions_to_bind() {
    let nodes = vec![node("flat", "Reshape", &["x", "to"], &["y"])];
    let bytes = model(nodes, vec![float("x", &["batch", "seq"])], vec![integers("to", &[-1])], &["y"]);
    let error = message(&bytes);
    assert!(error.contains("node flat: Reshape: size -1 cannot be computed"), "{error}");
    assert!(error.contains("--dim batch=N --dim seq=N"), "{error}");
    let graph = load(&bytes, None, &[("seq", 7)]).expect("loads");
    assert_eq!(graph.unbound_dims(), ["batch"]);
}

#[test]
fn external_data_stays_beside_the_model() {
    let weights = |location: &str| {
        let entry = EntryProto { key: "location".into(), value: location.into() };
        let tensor = TensorProto {
            name: "w".into(),
            data_type: 1,
            dims: vec![2],
            external_data: vec![entry],
            data_location: 1,
            ..TensorProto::default()
        };
        let nodes = vec![node("n", "Add", &["x", "w"], &["y"])];
        model(nodes, vec![float("x", &["2"])], vec![tensor], &["y"])
    };
    let graph = load(&weights("sub/w.bin"), Some(Path::new("dir/m.onnx")), &[]).expect("need not be there");
    let expected = Data::File { path: PathBuf::from("dir/sub/w.bin"), offset: 0, length: 8 };
    assert_eq!(graph.params()[0].data, Some(expected));
    for outside in ["../w.bin", "/w.bin", ""] {
        let error = message(&weights(outside));
        assert!(error.contains("outside of the model's directory"), "{error}");
    }
}

#[test]
fn declarations_that_contradict_the_file_are_errors() {
    let add = || vec![node("n", "Add", &["x", "w"], &["y"])];
    let weights = |name: &str| TensorProto {
        name: name.into(),
        data_type: 1,
        dims: vec![2],
        raw_data: vec![0; 8],
        ..TensorProto::default()
    };
    let twice = model(add(), vec![float("x", &["2"]), float("x", &["2"])], vec![weights("w")], &["y"]);
    assert!(message(&twice).contains("input x: two inputs have this name"), "{}", message(&twice));
    let other = model(add(), vec![float("x", &["2"]), float("w", &["3"])], vec![weights("w")], &["y"]);
    let error = message(&other);
    assert!(error.contains("input w: the file declares a size of 3 on axis 0"), "{error}");
    let same = model(add(), vec![float("x", &["2"]), float("w", &["any"])], vec![weights("w")], &["y"]);
    load(&same, None, &[]).expect("a named size agrees with any");
    let outputs = |output: ValueInfoProto| {
        let graph = GraphProto {
            node: add(),
            name: "made".into(),
            initializer: vec![weights("w")],
            input: vec![float("x", &["2"])],
            output: vec![output],
            value_info: Vec::new(),
        };
        let opset_import = vec![OpsetProto { domain: String::new(), version: 18 }];
        ModelProto { ir_version: 8, graph: Some(graph), opset_import }.encode_to_vec()
    };
    load(&outputs(float("y", &["2"])), None, &[]).expect("what it is");
    // Other runtimes run files whose outputs are declared with another shape, so this is noted.
    for (sizes, stated) in [(&["3"][..], "[3]"), (&["2", "1"], "[2,1]")] {
        let graph = load(&outputs(float("y", sizes)), None, &[]).expect("the operations count");
        let [note] = graph.notes() else { panic!("{:?}", graph.notes()) };
        let expected = format!("output y: the file states {stated}, its operations make [2]");
        assert!(note.starts_with(&expected), "{note}");
    }
    let mut wrong = float("y", &["2"]);
    let declared = wrong.r#type.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor");
    declared.elem_type = 7;
    let error = message(&outputs(wrong));
    assert!(error.contains("output y: the file declares elements of type i64"), "{error}");
}

/// Pads in the order of another framework (last axis first, before and after side by side), turned round as its
/// exporter writes it.
#[test]
fn pads_that_are_rearranged_by_operations_are_known() {
    let nodes = vec![
        node("pairs", "Reshape", &["pads", "by_two"], &["p"]),
        node("turn", "Slice", &["p", "from", "to", "axis", "step"], &["q"]),
        node("swap", "Transpose", &["q"], &["r"]),
        node("row", "Reshape", &["r", "flat"], &["s"]),
        node("pad", "Pad", &["x", "s"], &["y"]),
    ];
    let constants = vec![
        integers("pads", &[0, 64, 1, 2]),
        integers("by_two", &[-1, 2]),
        integers("from", &[-1]),
        integers("to", &[-i64::MAX]),
        integers("axis", &[0]),
        integers("step", &[-1]),
        integers("flat", &[-1]),
    ];
    let graph = load(&model(nodes, vec![float("x", &["n", "576"])], constants, &["y"]), None, &[("n", 4)]);
    let graph = graph.expect("the pads are [1, 0, 2, 64]");
    assert_eq!(graph.ty(graph.outputs()[0].1).shape.dims(), Some(vec![7, 640]));
}

/// The largest of sizes that lie in a matrix is a size.
#[test]
fn sizes_are_reduced_over_all_axes() {
    let nodes = vec![
        node("shape", "Shape", &["x"], &["s"]),
        node("matrix", "Reshape", &["s", "by_row"], &["m"]),
        node("most", "ReduceMax", &["m"], &["l"]),
        node("row", "Reshape", &["l", "flat"], &["r"]),
        node("wide", "Expand", &["x", "r"], &["y"]),
    ];
    let constants = vec![integers("by_row", &[1, 2]), integers("flat", &[-1])];
    let graph = load(&model(nodes, vec![float("x", &["4", "1"])], constants, &["y"]), None, &[]);
    let graph = graph.expect("the largest size is 4");
    assert_eq!(graph.ty(graph.outputs()[0].1).shape.dims(), Some(vec![4, 4]));
}

/// What follows from sizes alone is computed where it is read; a long transform has tables of its factors.
#[test]
fn memory_does_not_follow_from_sizes_that_a_file_names() {
    let blocks = vec![node("blocks", "Col2Im", &["x", "image", "block"], &["y"])];
    let sizes = vec![integers("image", &[100_000_000]), integers("block", &[1000])];
    let transform = vec![node("transform", "DFT", &["x"], &["y"])];
    for (nodes, input, constants, most) in [
        (blocks, &["1", "1000", "99999001"], sizes, 1 << 16),
        (transform, &["1", "1048576", "1"], Vec::new(), 1 << 24),
    ] {
        let bytes = model(nodes, vec![float("x", input)], constants, &["y"]);
        let (graph, largest) = crate::allocations::with_largest(|| load(&bytes, None, &[]));
        graph.expect("it is supported");
        assert!(largest <= most, "{largest} bytes at once");
    }
}

/// Each makes what is longer than all before it: memory is refused that grows with the square of the file.
#[test]
fn sums_of_sizes_and_sequences_of_sequences_have_an_end() {
    let count = 6_000;
    let names: Vec<String> = (0..count).map(|at| format!("x{at}")).collect();
    let open = |name: &String| float(name, &[&format!("size_{name}")]);
    let joined = |at: usize| {
        let (last, next) = (format!("s{}", at - 1), format!("s{at}"));
        with_axis(node(&next, "Concat", &[if at == 1 { "x0" } else { &last }, &names[at]], &[&next]), 0)
    };
    let sums = (1..count).map(joined).collect();
    let sums = model(sums, names.iter().map(open).collect(), Vec::new(), &[&format!("s{}", count - 1)]);
    let mut longer = vec![node("empty", "SequenceEmpty", &[], &["s0"])];
    longer.extend((1..count).map(|at| {
        let (last, next) = (format!("s{}", at - 1), format!("s{at}"));
        node(&next, "SequenceInsert", &[&last, "x"], &[&next])
    }));
    longer.push(node("first", "SequenceAt", &[&format!("s{}", count - 1), "at"], &["y"]));
    let longer = model(longer, vec![float("x", &["1"])], vec![integers("at", &[0])], &["y"]);
    for (bytes, part) in [(sums, "s256"), (longer, "8388608")] {
        let error = load(&bytes, None, &[]).expect_err("more than is kept");
        let told = format!("{error} {:?}", error.details());
        assert!(told.contains(part), "{told}");
    }
}

/// A number of groups below 1, of channels that are open and negative.
#[test]
fn groups_are_positive() {
    let widened = node("widened", "Pad", &["x", "pads"], &["p"]);
    let mut grouped = node("grouped", "GroupNormalization", &["p", "scale", "bias"], &["y"]);
    grouped.attribute = vec![AttributeProto { name: "num_groups".into(), i: -1, r#type: 2 }];
    let pads =
        vec![integers("pads", &[0, i64::MIN, 0, 0, 0, 0]), floats("scale", &[1.0]), floats("bias", &[0.0])];
    let bytes = model(vec![widened, grouped], vec![float("x", &["n", "c", "4"])], pads, &["y"]);
    load(&bytes, None, &[]).expect_err("there are no such channels");
}

/// A declaration of integers, three of them.
/// As onnxruntime has it: an array that is an input as well stands in for what the caller does not give.
#[test]
fn an_initialiser_that_is_an_input_is_the_callers_where_it_has_one() {
    let nodes = vec![node("sum", "Add", &["x", "w"], &["s"]), node("more", "Add", &["s", "v"], &["y"])];
    let arrays = vec![floats("w", &[1.0, 2.0]), floats("v", &[3.0, 4.0])];
    let bytes = model(nodes, vec![float("x", &["2"]), float("w", &["2"])], arrays, &["y"]);
    // What is no input of the file cannot be given.
    for (given, inputs, taken) in
        [(vec![], "x", ""), (vec!["x", "v"], "x", ""), (vec!["w", "v"], "x w", "w"), (vec!["q"], "x", "")]
    {
        let inputs_given = given.iter().map(|name: &&str| (*name).to_owned()).collect();
        let options = LoadOptions { inputs: inputs_given, ..LoadOptions::default() };
        let Model::Graph(graph) = partition::unstable::load::load(&bytes, None, &options).unwrap() else {
            panic!("an ONNX model is a network");
        };
        let names: Vec<&str> = graph.inputs().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            (names.join(" ").as_str(), graph.rules().optional_inputs().join(" ").as_str()),
            (inputs, taken)
        );
    }
}

fn integer(name: &str) -> ValueInfoProto {
    let mut value = float(name, &["3"]);
    value.r#type.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor").elem_type = 7;
    value
}

/// `y = relu(x + w)`, `z = -y` with declarations of what lies between.
fn declaring(value_info: Vec<ValueInfoProto>) -> Vec<u8> {
    let nodes = vec![
        node("sum", "Add", &["x", "w"], &["s"]),
        node("act", "Relu", &["s"], &["y"]),
        node("neg", "Neg", &["y"], &["z"]),
    ];
    let weights = TensorProto {
        name: "w".into(),
        data_type: 1,
        dims: vec![3],
        raw_data: vec![0; 12],
        ..TensorProto::default()
    };
    let graph = GraphProto {
        node: nodes,
        name: "made".into(),
        initializer: vec![weights],
        input: vec![float("x", &["batch", "3"])],
        output: vec![float("z", &["batch", "3"])],
        value_info,
    };
    let opset_import = vec![OpsetProto { domain: String::new(), version: 18 }];
    ModelProto { ir_version: 8, graph: Some(graph), opset_import }.encode_to_vec()
}

#[test]
fn stale_shapes_of_values_between_are_told_and_decide_nothing() {
    let read = |declared: Vec<ValueInfoProto>, dims: &[(&str, i64)]| {
        load(&declaring(declared), None, dims).expect("the operations count")
    };
    let plain = read(Vec::new(), &[]);
    for (declared, told) in [
        (float("s", &["batch", "3"]), None),
        (float("s", &["8", "3"]), None),
        (float("s", &["unk__7", "any"]), None),
        (float("gone", &["1", "2", "5"]), None),
        // Converters leave what was true of an array before they changed it.
        (float("w", &["4"]), None),
        (integer("w"), None),
        (
            float("s", &["batch", "4"]),
            Some("value s: the file states [batch,4], its operations make [batch,3]"),
        ),
        (float("s", &["3"]), Some("value s: the file states [3], its operations make [batch,3]")),
    ] {
        let found = read(vec![declared], &[]);
        assert_eq!(found.notes().first().map(|note| note.split(": what").next().unwrap()), told);
        assert_eq!(found.to_string(), plain.to_string(), "a declaration changes nothing");
    }
    // One line, however many there are; a name that is two sizes contradicts itself.
    let many = read(vec![float("s", &["1", "3"]), float("y", &["1", "3"])], &[("batch", 8)]);
    let [note] = many.notes() else { panic!("{:?}", many.notes()) };
    assert!(
        note.contains("value s: the file states [1,3], its operations make [8,3] (and of 1 more"),
        "{note}"
    );
    let twice = read(vec![float("s", &["n", "n"])], &[("batch", 8)]);
    assert!(twice.notes()[0].contains("[n,n], its operations make [8,3]"), "{:?}", twice.notes());
    let mut wrong = float("y", &["batch", "3"]);
    wrong.r#type.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor").elem_type = 7;
    let error = message(&declaring(vec![wrong]));
    assert!(
        error.contains("value y: the file declares elements of type i64, what makes it has f32"),
        "{error}"
    );
}

#[test]
fn damaged_files_are_errors() {
    bad::nonsense(|bytes| load(bytes, None, &[]).map(|_| ()));
    bad::truncations(&reshaping(), |bytes| load(bytes, None, &[]).map(|_| ()));
    let mut deep = b"\x08\x08".to_vec();
    deep.extend(std::iter::repeat_n(b"\x3a\x7f", 100_000).flatten());
    load(&deep, None, &[]).expect_err("nested beyond reason");
    if let Some(path) = shared::file("corpus/onnx/s_lstm.onnx") {
        let whole = std::fs::read(path).expect("reads");
        // A truncation that only loses trailing fields would still be a model: this one has none.
        for end in (0..whole.len()).step_by(whole.len() / 200) {
            let error = load(&whole[..end], None, &[]).expect_err("truncated").to_string();
            assert!(!error.contains('\n'), "{error}");
        }
    }
}

/// Small files of today's exporters that showed defects, with onnxruntime's outputs.
#[test]
fn files_that_showed_defects_give_the_stored_outputs() {
    let names =
        ["batched_matmul_const_2x11x11", "moe_bmm", "llama_kv_dyn", "gelu_tail", "reduce_log_sum_exp_inf"];
    for name in names {
        let at = |ending: &str| shared::file(&format!("corpus/exports/{name}.{ending}"));
        let (Some(model), Some(arrays)) = (at("onnx"), at("io.npz")) else { return };
        let (model, arrays) = (model.display().to_string(), arrays.display().to_string());
        for devices in ["cpu", "2xcpu"] {
            let run = ["run", &model, "-d", devices, "--inputs", &arrays, "--expect", &arrays];
            crate::cli::Folder::new().ok(&run);
        }
    }
}

/// `scripts/onnx_known.py`: sizes that follow from what operators make of constants, with onnxruntime's outputs.
#[test]
fn sizes_follow_from_what_operators_make_of_constants() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/known");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let models: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|ending| ending == "onnx")).collect();
    assert_eq!(models.len(), 13);
    for model in models {
        let arrays = model.with_extension("npz").display().to_string();
        let run =
            ["run", &model.display().to_string(), "-d", "cpu", "--inputs", &arrays, "--expect", &arrays];
        crate::cli::Folder::new().ok(&run);
    }
}

#[test]
fn a_window_without_axes_is_refused() {
    let nodes = vec![node("n", "STFT", &["x", "step", "w"], &["y"])];
    let inputs = vec![float("x", &["1", "8"]), float("w", &[])];
    let found = message(&model(nodes, inputs, vec![integers("step", &[2])], &["y"]));
    assert!(found.contains("its window is no vector"), "{found}");
}

/// Elements of less than a byte in a file beside the model, an odd number of them (`scripts/onnx_cases.py`): they are
/// unpacked as onnxruntime does, and a file that is not whole is one error.
#[test]
fn few_bits_in_another_file_are_unpacked() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/four_bits_in_another_file");
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.onnx", "weights.bin", "io.npz"] {
        std::fs::copy(stored.join(name), folder.path().join(name)).unwrap();
    }
    let arrays = folder.path().join("io.npz");
    let run = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_partition"));
        command.arg("run").arg(folder.path().join("model.onnx")).arg("--inputs").arg(&arrays);
        let out = command.arg("--expect").arg(&arrays).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (equal, told) = run();
    assert!(equal, "{told}");
    let weights = folder.path().join("weights.bin");
    std::fs::write(&weights, &std::fs::read(&weights).unwrap()[..20]).unwrap();
    let (equal, told) = run();
    assert!(!equal && told.contains("it ends before byte"), "{told}");
    std::fs::remove_file(&weights).unwrap();
    let (equal, told) = run();
    assert!(!equal && told.contains("weights.bin"), "{told}");
}

/// What stands in the body of a loop is there once, however often the loop runs and however deep it is, also in training.
#[test]
fn the_initialisers_and_constants_of_loops_are_there_once() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/loop_in_a_loop");
    let graph = read(&stored.join("model.onnx"), &[]).unwrap();
    let names: Vec<&str> = graph.params().iter().map(|param| param.name.as_str()).collect();
    assert_eq!(names, ["y/0/u/body/w"]);
    let constants = graph.node_ids().filter(|&id| match graph.node(id).op {
        Op::Constant(id) => graph.constant(id).elements() > 1,
        _ => false,
    });
    assert_eq!(constants.count(), 1);
    let [model, arrays] = ["model.onnx", "io.npz"].map(|name| stored.join(name).display().to_string());
    crate::cli::Folder::new().ok(&["run", &model, "--inputs", &arrays, "--expect", &arrays]);
}

#[test]
fn a_constant_in_another_file_is_read() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/constant_in_another_file");
    let [model, arrays] = ["model.onnx", "io.npz"].map(|name| stored.join(name).display().to_string());
    crate::cli::Folder::new().ok(&["run", &model, "--inputs", &arrays, "--expect", &arrays]);
}
