//! Keras models: the corpus, structure, and every kind of bad input.

use std::collections::BTreeMap;
use std::fs;

#[cfg(feature = "weights")]
use partition::ir::{DType, Tensor};
use partition::ir::{Graph, Init, SourceRole};
use partition::load::{Format, LoadOptions, keras, recognise};
use partition::{Error, Result};
use serde_json::{Value, json};

use crate::{bad, shared};

fn load(text: &[u8]) -> Result<Graph> {
    keras::load(text, &LoadOptions::default())
}

fn elements(graph: &Graph) -> u64 {
    graph
        .params()
        .iter()
        .map(|param| graph.ty(graph.results(param.node).next().unwrap()).elements().unwrap())
        .sum()
}

fn shape(graph: &Graph, value: partition::ir::ValueId) -> Value {
    let sizes = graph.ty(value).shape.sizes();
    Value::Array(sizes.iter().map(|size| size.known().map_or(Value::Null, Value::from)).collect())
}

#[test]
fn the_corpus_has_the_parameters_and_shapes_of_its_index() {
    let Some(path) = shared::file("corpus/index.json") else { return };
    let index: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let mut count = 0;
    for model in index["models"].as_array().unwrap() {
        let file = model["file"].as_str().unwrap();
        if model["kind"] != "keras-json" {
            continue;
        }
        let Some(path) = shared::file(&format!("corpus/{file}")) else { return };
        let text = fs::read(path).unwrap();
        assert_eq!(recognise(&text).unwrap(), Format::Keras, "{file}");
        let graph = load(&text).unwrap_or_else(|error| panic!("{file}: {error} {:?}", error.details()));
        assert_eq!(elements(&graph), model["params"].as_u64().unwrap(), "{file}: parameters");
        let inputs: Vec<Value> = graph.inputs().iter().map(|(_, value)| shape(&graph, *value)).collect();
        let expected: Vec<Value> = model["inputs"].as_array().unwrap().iter().map(|i| i[1].clone()).collect();
        assert_eq!(inputs, expected, "{file}: inputs");
        let outputs: Vec<Value> = graph.outputs().iter().map(|(_, value)| shape(&graph, *value)).collect();
        assert_eq!(Value::Array(outputs), model["outputs"], "{file}: outputs");
        // The index counts containers and wrapped layers too; sources are neither.
        let count_of = |class: &str| model["op_histogram"][class].as_u64().unwrap_or(0);
        let others = count_of("Sequential") + count_of("TimeDistributed") + count_of("Bidirectional");
        let nodes = graph.sources().iter().filter(|source| source.role == SourceRole::Node).count() as u64;
        assert_eq!(nodes, model["nodes"].as_u64().unwrap() - others, "{file}: sources");
        count += 1;
    }
    assert!(count >= 19, "only {count} Keras models in the corpus");
}

#[cfg(feature = "weights")]
#[test]
fn parameters_stand_in_the_order_of_the_stored_weights() {
    for name in ["mlp_small", "cnn_small", "siamese_multi_io", "transformer_small", "gru_conv1d_small"] {
        for version in ["k2", "k3"] {
            let Some(path) = shared::file(&format!("corpus/keras/{name}.{version}.json")) else { return };
            let Some(npz) = shared::file(&format!("corpus/keras/{name}.{version}.io.npz")) else { return };
            let graph = load(&fs::read(path).unwrap()).unwrap();
            let stored = arrays(&fs::read(npz).unwrap(), "w");
            assert_eq!(stored.len(), graph.params().len(), "{name}.{version}");
            for ((key, tensor), param) in stored.iter().zip(graph.params()) {
                let value = graph.results(param.node).next().unwrap();
                let dims: Vec<u64> =
                    graph.ty(value).shape.dims().unwrap().iter().map(|&size| size as u64).collect();
                assert_eq!(dims, tensor.dims(), "{key} and {}", param.name);
                // The last part of a name is Keras' own in both.
                let last = key.rsplit('|').next().unwrap().trim_end_matches(":0");
                assert!(param.name.ends_with(last), "{key} and {}", param.name);
            }
        }
    }
}

/// Names and tensors of the arrays whose names begin with `prefix`, in order of their names.
#[cfg(feature = "weights")]
fn arrays(npz: &[u8], prefix: &str) -> Vec<(String, Tensor)> {
    let mut archive = npyz::npz::NpzArchive::new(std::io::Cursor::new(npz)).unwrap();
    let mut names: Vec<String> =
        archive.array_names().filter(|name| name.starts_with(prefix)).map(Into::into).collect();
    names.sort();
    let mut read = |name: String| {
        let array = archive.by_name(&name).unwrap().unwrap();
        let dims = array.shape().to_vec();
        assert_eq!(array.order(), npyz::Order::C, "{name}");
        let tensor = match array.dtype().descr().as_str() {
            "'<f4'" => Tensor::from_f32(dims, &array.into_vec::<f32>().unwrap()).unwrap(),
            "'<i4'" => {
                let bytes = array.into_vec::<i32>().unwrap().into_iter().flat_map(i32::to_le_bytes);
                Tensor::new(DType::I32, dims, bytes.collect::<Vec<u8>>()).unwrap()
            }
            other => panic!("{name}: {other}"),
        };
        (name, tensor)
    };
    names.into_iter().map(&mut read).collect()
}

#[cfg(feature = "run")]
#[test]
fn stored_inputs_give_the_stored_outputs() {
    for name in ["mlp_small", "cnn_small", "siamese_multi_io", "transformer_small", "gru_conv1d_small"] {
        for version in ["k2", "k3"] {
            let Some(path) = shared::file(&format!("corpus/keras/{name}.{version}.json")) else { return };
            let Some(npz) = shared::file(&format!("corpus/keras/{name}.{version}.io.npz")) else { return };
            let npz = fs::read(npz).unwrap();
            let mut graph = load(&fs::read(path).unwrap()).unwrap();
            let weights = arrays(&npz, "w");
            let given = arrays(&npz, "in_");
            let batch = given[0].1.dims()[0] as i64;
            graph.bind(&BTreeMap::from([("batch".to_owned(), batch)])).unwrap();
            let names = graph.inputs().iter().map(|(name, _)| name.clone());
            let inputs: Vec<(String, Tensor)> =
                names.zip(given.into_iter().map(|(_, tensor)| tensor)).collect();
            let outputs =
                partition::run::interpret(&graph, &inputs, &|param| Ok(weights[param.index()].1.clone()))
                    .unwrap();
            let expected = arrays(&npz, "out_");
            assert_eq!(outputs.len(), expected.len(), "{name}.{version}");
            for ((output, found), (_, stored)) in outputs.iter().zip(&expected) {
                assert_eq!(found.dims(), stored.dims(), "{name}.{version}: {output}");
                let pairs = found.to_f32().unwrap().into_iter().zip(stored.to_f32().unwrap());
                for (position, (found, stored)) in pairs.enumerate() {
                    let near = (found - stored).abs() <= 1e-5 + 1e-4 * stored.abs();
                    assert!(near, "{name}.{version}: {output}[{position}]: {found}, expected {stored}");
                }
            }
        }
    }
}

fn layer(class: &str, config: Value) -> Value {
    json!({"class_name": class, "config": config})
}

/// A sequential model on inputs of this shape.
fn sequential(shape: Value, layers: &[Value]) -> String {
    let mut all = vec![layer("InputLayer", json!({"name": "x", "batch_shape": shape}))];
    all.extend_from_slice(layers);
    json!({"class_name": "Sequential", "config": {"name": "m", "layers": all}}).to_string()
}

fn output(text: &str) -> Value {
    let graph = load(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"));
    shape(&graph, graph.outputs()[0].1)
}

#[test]
fn layers_give_the_shapes_that_keras_gives() {
    let image = json!([null, 8, 9, 3]);
    let sequence = json!([null, 10, 4]);
    let cases = [
        (
            &image,
            layer("Conv2D", json!({"name": "l", "filters": 5, "kernel_size": 3})),
            json!([null, 6, 7, 5]),
        ),
        (
            &image,
            layer(
                "Conv2D",
                json!({"name": "l", "filters": 5, "kernel_size": [3, 3], "strides": 2, "padding": "same"}),
            ),
            json!([null, 4, 5, 5]),
        ),
        (
            &image,
            layer(
                "Conv2D",
                json!({"name": "l", "filters": 6, "kernel_size": [3, 2], "dilation_rate": 2, "groups": 3}),
            ),
            json!([null, 4, 7, 6]),
        ),
        (
            &image,
            layer(
                "DepthwiseConv2D",
                json!({"name": "l", "kernel_size": 3, "depth_multiplier": 2, "padding": "same"}),
            ),
            json!([null, 8, 9, 6]),
        ),
        (
            &image,
            layer("SeparableConv2D", json!({"name": "l", "filters": 7, "kernel_size": 3})),
            json!([null, 6, 7, 7]),
        ),
        (
            &image,
            layer(
                "Conv2DTranspose",
                json!({"name": "l", "filters": 2, "kernel_size": 3, "strides": 2, "padding": "same"}),
            ),
            json!([null, 16, 18, 2]),
        ),
        (
            &image,
            layer("Conv2DTranspose", json!({"name": "l", "filters": 2, "kernel_size": 3, "strides": 2})),
            json!([null, 17, 19, 2]),
        ),
        (
            &image,
            layer("Conv2DTranspose", json!({"name": "l", "filters": 2, "kernel_size": 2, "strides": 3})),
            json!([null, 24, 27, 2]),
        ),
        (&image, layer("MaxPooling2D", json!({"name": "l", "padding": "same"})), json!([null, 4, 5, 3])),
        (&image, layer("AveragePooling2D", json!({"name": "l", "pool_size": 3})), json!([null, 2, 3, 3])),
        (&image, layer("GlobalAveragePooling2D", json!({"name": "l"})), json!([null, 3])),
        (&image, layer("GlobalMaxPooling2D", json!({"name": "l", "keepdims": true})), json!([null, 1, 1, 3])),
        (
            &image,
            layer("ZeroPadding2D", json!({"name": "l", "padding": [[0, 1], [2, 3]]})),
            json!([null, 9, 14, 3]),
        ),
        (&image, layer("Cropping2D", json!({"name": "l", "cropping": [1, 2]})), json!([null, 6, 5, 3])),
        (&image, layer("UpSampling2D", json!({"name": "l", "size": [2, 3]})), json!([null, 16, 27, 3])),
        (&image, layer("Flatten", json!({"name": "l"})), json!([null, 216])),
        (&image, layer("Permute", json!({"name": "l", "dims": [3, 1, 2]})), json!([null, 3, 8, 9])),
        (&image, layer("Reshape", json!({"name": "l", "target_shape": [-1, 9]})), json!([null, 24, 9])),
        (&image, layer("BatchNormalization", json!({"name": "l", "axis": 1})), json!([null, 8, 9, 3])),
        (&image, layer("LayerNormalization", json!({"name": "l", "axis": [1, 3]})), json!([null, 8, 9, 3])),
        (&image, layer("PReLU", json!({"name": "l", "shared_axes": [1, 2]})), json!([null, 8, 9, 3])),
        (
            &sequence,
            layer("Conv1D", json!({"name": "l", "filters": 2, "kernel_size": 3, "padding": "causal"})),
            json!([null, 10, 2]),
        ),
        (&sequence, layer("LSTM", json!({"name": "l", "units": 5})), json!([null, 5])),
        (
            &sequence,
            layer("GRU", json!({"name": "l", "units": 5, "return_sequences": true})),
            json!([null, 10, 5]),
        ),
        (
            &sequence,
            layer("SimpleRNN", json!({"name": "l", "units": 5, "go_backwards": true})),
            json!([null, 5]),
        ),
        (
            &sequence,
            layer(
                "Bidirectional",
                json!({"name": "l", "layer": layer("GRU", json!({"name": "g", "units": 5, "reset_after": false}))}),
            ),
            json!([null, 5]),
        ),
        (
            &sequence,
            layer(
                "TimeDistributed",
                json!({"name": "l", "layer": layer("Dense", json!({"name": "d", "units": 7}))}),
            ),
            json!([null, 10, 7]),
        ),
        (
            &sequence,
            layer("Dense", json!({"name": "l", "units": 7, "activation": "gelu"})),
            json!([null, 10, 7]),
        ),
        (
            &sequence,
            layer("Rescaling", json!({"name": "l", "scale": 0.5, "offset": [1, 2, 3, 4]})),
            json!([null, 10, 4]),
        ),
        (&json!([null, 6]), layer("RepeatVector", json!({"name": "l", "n": 4})), json!([null, 4, 6])),
        (
            &json!([null, 6]),
            layer("Embedding", json!({"name": "l", "input_dim": 9, "output_dim": 4})),
            json!([null, 6, 4]),
        ),
    ];
    for (input, layer, expected) in cases {
        // Without merge_mode a Bidirectional layer gives both directions; the first is looked at.
        assert_eq!(output(&sequential(input.clone(), &[layer.clone()])), expected, "{layer}");
    }
}

#[test]
fn every_activation_is_lowered() {
    let names = [
        "linear",
        "relu",
        "relu6",
        "sigmoid",
        "tanh",
        "softmax",
        "softplus",
        "gelu",
        "silu",
        "swish",
        "elu",
        "selu",
        "exponential",
        "hard_sigmoid",
        "softsign",
        "leaky_relu",
        "log_softmax",
        "mish",
        "celu",
        "hard_silu",
        "hard_tanh",
        "log_sigmoid",
        "tanh_shrink",
        "soft_shrink",
        "hard_shrink",
        "squareplus",
    ];
    for name in names {
        let text =
            sequential(json!([null, 6]), &[layer("Activation", json!({"name": "l", "activation": name}))]);
        assert_eq!(output(&text), json!([null, 6]), "{name}");
    }
}

#[test]
fn the_first_keras_form_is_read() {
    let text = json!({"class_name": "Sequential", "keras_version": "2.1.0", "config": [
        layer("Dense", json!({"name": "a", "units": 3, "batch_input_shape": [null, 4]})),
        layer("Dense", json!({"name": "b", "units": 2})),
    ]});
    let graph = load(text.to_string().as_bytes()).unwrap();
    assert_eq!(graph.inputs()[0].0, "a_input");
    assert_eq!(graph.outputs()[0].0, "b");
    let names: Vec<&str> = graph.params().iter().map(|param| param.name.as_str()).collect();
    assert_eq!(names, ["a/kernel", "a/bias", "b/kernel", "b/bias"]);
}

fn functional(layers: Vec<Value>, inputs: Value, outputs: Value) -> String {
    let config = json!({"name": "f", "layers": layers, "input_layers": inputs, "output_layers": outputs});
    json!({"class_name": "Functional", "config": config, "keras_version": "2.15.0"}).to_string()
}

fn node(class: &str, name: &str, config: Value, inbound: Value) -> Value {
    let mut config = config;
    config["name"] = name.into();
    json!({"class_name": class, "name": name, "config": config, "inbound_nodes": inbound})
}

fn input(name: &str) -> Value {
    node("InputLayer", name, json!({"batch_input_shape": [null, 4]}), json!([]))
}

#[test]
fn a_shared_layer_has_one_source_and_one_set_of_weights() {
    let text = functional(
        vec![
            input("x"),
            node("Dense", "d", json!({"units": 4}), json!([[["x", 0, 0, {}]], [["d", 0, 0, {}]]])),
        ],
        json!([["x", 0, 0]]),
        json!([["d", 1, 0], ["d", 0, 0]]),
    );
    let graph = load(text.as_bytes()).unwrap();
    assert_eq!(graph.params().len(), 2);
    assert_eq!(graph.sources().iter().filter(|source| source.name == "d").count(), 1);
    let names: Vec<&str> = graph.outputs().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["d", "d_1"]);
}

#[test]
fn layers_without_nodes_know_who_reads_them() {
    let text = sequential(
        json!([null, 4]),
        &[
            layer("Dropout", json!({"name": "first"})),
            layer("Dense", json!({"name": "d", "units": 2})),
            layer("Dropout", json!({"name": "last"})),
        ],
    );
    let graph = load(text.as_bytes()).unwrap();
    let consumer = |name: &str| {
        let source = graph.sources().iter().find(|source| source.name == name).unwrap();
        source.consumer.map(|consumer| graph.source(consumer).name.as_str())
    };
    assert_eq!(consumer("first"), Some("d"));
    assert_eq!(consumer("last"), Some("d"), "with no reader it is where its maker is");
}

#[test]
fn initialisers_are_the_layers_own() {
    let initialiser = json!({"class_name": "HeNormal", "config": {"seed": null}});
    let text = sequential(
        json!([null, 4]),
        &[layer(
            "Dense",
            json!({"name": "d", "units": 2, "kernel_initializer": initialiser, "bias_initializer": "ones"}),
        )],
    );
    let graph = load(text.as_bytes()).unwrap();
    assert!(matches!(graph.params()[0].init, Init::VarianceScaling { .. }));
    assert_eq!(graph.params()[1].init, Init::ones());
}

#[test]
fn dimensions_can_be_fixed_while_reading() {
    let text = sequential(json!([null, null, 4]), &[layer("Flatten", json!({"name": "l"}))]);
    let dims = |name: &str, value| LoadOptions { dims: BTreeMap::from([(name.to_owned(), value)]) };
    assert_eq!(output(&text), json!([null, null]));
    let graph = keras::load(text.as_bytes(), &dims("x_1", 5)).unwrap();
    assert_eq!(shape(&graph, graph.outputs()[0].1), json!([null, 20]));
    let graph = keras::load(text.as_bytes(), &dims("batch", 2)).unwrap();
    assert_eq!(shape(&graph, graph.inputs()[0].1), json!([2, null, 4]));
    let error = keras::load(text.as_bytes(), &dims("time", 5)).unwrap_err();
    assert!(error.to_string().contains("its dimensions are: batch, x_1"), "{error}");
    assert!(keras::load(text.as_bytes(), &dims("batch", 0)).is_err());
}

#[test]
fn everything_unsupported_is_named_at_once() {
    let text = sequential(
        json!([null, 4]),
        &[
            layer("Lambda", json!({"name": "one"})),
            layer("Dense", json!({"name": "two", "units": 3, "activation": "my_own"})),
            layer("ConvLSTM2D", json!({"name": "three"})),
        ],
    );
    let error = load(text.as_bytes()).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    let details = error.details().join("\n");
    for part in ["layer one (Lambda)", "layer two (Dense): activation my_own", "layer three (ConvLSTM2D)"] {
        assert!(details.contains(part), "{details}");
    }
}

#[test]
fn wrong_models_are_named() {
    let dense = |config: Value| sequential(json!([null, 4]), &[layer("Dense", config)]);
    let x = json!([["x", 0, 0]]);
    let d = |name: &str, inbound: Value| node("Dense", name, json!({"units": 4}), inbound);
    let cases = [
        (dense(json!({"name": "d", "units": -3})), "layer d (Dense): units: -3 is not between 1"),
        (dense(json!({"name": "d", "units": 0})), "units: 0 is not between 1"),
        (dense(json!({"name": "d", "units": 1e30})), "units: expected a whole number"),
        (dense(json!({"name": "d", "units": "many"})), "units: expected a whole number, found \"many\""),
        (dense(json!({"name": "d"})), "layer d (Dense): output_dim: is missing"),
        (dense(json!({"name": "d", "units": 3, "use_bias": "no"})), "use_bias: expected true or false"),
        (sequential(json!([null, -4]), &[]), "-4 is not between 0"),
        (sequential(json!([null, 5_000_000_000i64]), &[]), "5000000000 is not between 0"),
        (
            sequential(json!([null, 4_000_000_000i64]), &[layer("Dense", json!({"name": "d", "units": 4_000_000_000i64}))]),
            "is too large",
        ),
        (
            sequential(json!([null, 4]), &[layer("Conv2D", json!({"name": "c", "filters": 1, "kernel_size": 3}))]),
            "layer c: expected an input of rank 4, found rank 2",
        ),
        (
            sequential(json!([null, 2, 2, 1]), &[layer("Conv2D", json!({"name": "c", "filters": 1, "kernel_size": 3}))]),
            "c",
        ),
        (
            sequential(json!([null, 4]), &[layer("Reshape", json!({"name": "r", "target_shape": [3]}))]),
            "does not fit the target shape [3]",
        ),
        (
            sequential(json!([null, 4]), &[layer("Dropout", json!({"name": "s"})), layer("Dropout", json!({"name": "s"}))]),
            "two layers have the name s",
        ),
        (functional(vec![input("x"), d("d", json!([[["y", 0, 0, {}]]]))], x.clone(), json!([["d", 0, 0]])), "reads layer y, which does not exist"),
        (functional(vec![input("x"), d("d", json!([[["x", 3, 0, {}]]]))], x.clone(), json!([["d", 0, 0]])), "reads node 3 of layer x, which has 1 calls"),
        (functional(vec![input("x"), d("d", json!([[["x", 0, 5, {}]]]))], x.clone(), json!([["d", 0, 0]])), "has 1 results; number 5 is read"),
        (
            functional(
                vec![input("x"), d("a", json!([[["b", 0, 0, {}]]])), d("b", json!([[["a", 0, 0, {}]]]))],
                x.clone(),
                json!([["b", 0, 0]]),
            ),
            "stands on a cycle of 2 calls",
        ),
        (functional(vec![input("x"), input("z")], x.clone(), json!([["z", 0, 0]])), "input layer z is not listed"),
        (functional(vec![input("x")], x.clone(), json!([])), "the model has no outputs"),
        (functional(vec![input("x")], json!([["q", 0, 0]]), json!([["x", 0, 0]])), "reads layer q"),
        (json!({"class_name": "Sequential", "config": {"layers": []}}).to_string(), "the model has no layers"),
        (json!({"class_name": "Sequential", "config": {"layers": [layer("Dense", json!({"name": "d", "units": 1}))]}}).to_string(), "does not say what shape"),
        (json!({"class_name": "Sequential"}).to_string(), "model: config"),
        (json!({"class_name": 7, "config": {}}).to_string(), "class_name is missing"),
    ];
    for (text, expected) in cases {
        let error = load(text.as_bytes()).expect_err(&text).to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn models_that_call_models_again_and_again_are_refused() {
    // Each level calls the one below ten times; 10^7 calls of a dropout.
    let mut inner = layer("Dropout", json!({"name": "l0"}));
    for level in 0..7 {
        let name = format!("l{level}");
        let calls: Vec<Value> = (0..10)
            .map(|call| match call {
                0 => json!([["x", 0, 0, {}]]),
                _ => json!([[name.clone(), call - 1, 0, {}]]),
            })
            .collect();
        let mut called = inner;
        called["name"] = name.clone().into();
        called["inbound_nodes"] = calls.into();
        let config = json!({"name": format!("l{}", level + 1), "layers": [input("x"), called],
            "input_layers": [["x", 0, 0]], "output_layers": [[name, 9, 0]]});
        inner = json!({"class_name": "Functional", "config": config});
    }
    let error = load(inner.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("layers are called over"), "{error}");
}

#[test]
fn damaged_text_is_an_error() {
    let text = functional(
        vec![input("x"), node("Dense", "d", json!({"units": 4}), json!([[["x", 0, 0, {}]]]))],
        json!([["x", 0, 0]]),
        json!([["d", 0, 0]]),
    );
    assert!(load(text.as_bytes()).is_ok());
    bad::truncations(text.as_bytes(), |text| load(text).map(drop));
    bad::nonsense(|text| load(text).map(drop));
}
