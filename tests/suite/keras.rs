//! Keras models: the corpus, structure, and every kind of bad input.

use std::collections::BTreeMap;
use std::fs;

#[cfg(feature = "weights")]
use partition::unstable::ir::{DType, Tensor};
use partition::unstable::ir::{Graph, Init, SourceRole, ValueId};
use partition::unstable::load::{Format, LoadOptions, keras, recognise};
use partition::{Error, Result};
use serde_json::{Value, json};

use crate::{bad, npz, shared};

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

fn shape(graph: &Graph, value: partition::unstable::ir::ValueId) -> Value {
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
    let named = npz::arrays(npz).into_iter().filter(|(name, _)| name.starts_with(prefix));
    let read = |(name, array): (String, npz::Array)| {
        let dtype = match array.descr.as_str() {
            "<f4" => DType::F32,
            "<i4" => DType::I32,
            other => panic!("{name}: {other}"),
        };
        let tensor = Tensor::new(dtype, array.dims, array.bytes).unwrap();
        (name, tensor)
    };
    named.map(read).collect()
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
            let outputs = partition::unstable::run::interpret(&graph, &inputs, &|param| {
                Ok(weights[param.index()].1.clone())
            })
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
        assert_eq!(output(&sequential(input.clone(), std::slice::from_ref(&layer))), expected, "{layer}");
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

/// A model of Keras 3 with inputs `a`, `b` and `c`, for each of which a nested model of that class is called; the second dense
/// layer reads call `read`, the outputs are that layer and call `given`, as the text numbers them. The inputs that they come from.
fn nested(class: &str, read: u64, given: u64) -> Vec<String> {
    let reference = |name: &str, node: u64| {
        let history = json!([name, node, 0]);
        json!({"class_name": "__keras_tensor__", "config": {"shape": [null, 4], "dtype": "float32", "keras_history": history}})
    };
    let called = |reads: &[Value]| {
        let nodes: Vec<Value> = reads.iter().map(|read| json!({"args": [read], "kwargs": {}})).collect();
        Value::from(nodes)
    };
    let input = |name: &str| node("InputLayer", name, json!({"batch_shape": [null, 4]}), json!([]));
    let dense =
        |name: &str, reads: Value| node("Dense", name, json!({"units": 4, "activation": "linear"}), reads);
    let inner = match class {
        "Sequential" => json!({"layers": [input("i"), layer("Dense", json!({"name": "d", "units": 4}))]}),
        _ => json!({
            "layers": [input("i"), dense("d", called(&[reference("i", 0)]))],
            "input_layers": [["i", 0, 0]], "output_layers": [["d", 0, 0]],
        }),
    };
    let reads = called(&["a", "b", "c"].map(|name| reference(name, 0)));
    let layers = vec![
        input("a"),
        input("b"),
        input("c"),
        node(class, "inner", inner, reads),
        dense("reader", called(&[reference("inner", read)])),
    ];
    let config = json!({
        "name": "f", "layers": layers, "input_layers": [["a", 0, 0], ["b", 0, 0], ["c", 0, 0]],
        "output_layers": [["reader", 0, 0], ["inner", given, 0], ["inner", given + 1, 0]],
    });
    let text = json!({"class_name": "Functional", "config": config, "keras_version": "3.9.0"}).to_string();
    let graph = load(text.as_bytes()).unwrap();
    let origin = |value: ValueId| {
        let mut value = value;
        while let Some(&operand) = graph.maker(value).operands.first() {
            value = operand;
        }
        graph.inputs().iter().find(|(_, input)| *input == value).unwrap().0.clone()
    };
    graph.outputs().iter().map(|(_, value)| origin(*value)).collect()
}

#[test]
fn outputs_are_those_of_the_calls_of_a_nested_model_that_they_name() {
    // A sequential model counts its calls alone.
    assert_eq!(nested("Sequential", 0, 1), ["a", "b", "c"]);
    assert_eq!(nested("Sequential", 2, 0), ["c", "a", "b"]);
    // A functional one has a node of its own, which counts among the outputs; of old, where layers read it.
    assert_eq!(nested("Functional", 0, 2), ["a", "b", "c"]);
    assert_eq!(nested("Functional", 2, 1), ["c", "a", "b"]);
    assert_eq!(nested("Functional", 3, 1), ["c", "a", "b"]);
    assert_eq!(nested("Functional", 1, 2), ["a", "b", "c"]);
}

#[test]
fn layers_without_nodes_know_who_reads_them() {
    let text = sequential(
        json!([null, 4]),
        &[
            layer("Dropout", json!({"name": "first", "rate": 0.5})),
            layer("Dense", json!({"name": "d", "units": 2})),
            layer("Dropout", json!({"name": "last", "rate": 0.5})),
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
    let dims = |name: &str, value| LoadOptions {
        dims: BTreeMap::from([(name.to_owned(), value)]),
        ..LoadOptions::default()
    };
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
fn fields_that_nothing_reads_are_refused() {
    let unit = || json!({"name": "one", "units": 3});
    let cases = [
        ("Dense", "foo_scale", unit()),
        ("LSTM", "foo_gate", unit()),
        ("BatchNormalization", "foo_axis", json!({"name": "one"})),
    ];
    for (class, field, mut config) in cases {
        let read = |config: &Value| {
            load(sequential(json!([null, 5, 4]), &[layer(class, config.clone())]).as_bytes())
        };
        read(&config).expect("loads");
        config[field] = json!(2.0);
        let error = read(&config).unwrap_err();
        assert!(error.to_string().contains(&format!("layer one ({class}): {field} 2.0")), "{error}");
    }
}

#[test]
fn everything_unsupported_is_named_at_once() {
    let text = sequential(
        json!([null, 4]),
        &[
            layer("Lambda", json!({"name": "one"})),
            layer("Dense", json!({"name": "two", "units": 3, "activation": "my_own"})),
            layer("Hashing", json!({"name": "three", "num_bins": 3})),
        ],
    );
    let error = load(text.as_bytes()).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    let details = error.details().join("\n");
    for part in ["layer one (Lambda)", "layer two (Dense): activation my_own", "layer three (Hashing)"] {
        assert!(details.contains(part), "{details}");
    }
}

/// Models with a training step of their own are of a class of their own.
#[test]
fn a_model_of_a_class_of_its_own_is_taken_as_its_layers_are_connected() {
    let text = functional(
        vec![input("x"), node("Dense", "d", json!({"units": 2}), json!([[["x", 0, 0, {}]]]))],
        json!([["x", 0, 0]]),
        json!([["d", 0, 0]]),
    );
    let own = text.replacen("\"Functional\"", "\"MyModel\"", 1);
    assert!(own != text);
    let graph = load(own.as_bytes()).unwrap();
    assert_eq!(graph.params().len(), 2);
    assert!(graph.notes().iter().any(|note| note.contains("model class MyModel")), "{:?}", graph.notes());
    let without = json!({"class_name": "MyModel", "config": {"units": 2}}).to_string();
    let error = load(without.as_bytes()).unwrap_err().to_string();
    assert!(
        error.contains("model class MyModel: its file does not say how its layers are connected"),
        "{error}"
    );
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
            sequential(json!([null, 4]), &[layer("Dropout", json!({"name": "s", "rate": 0.5})), layer("Dropout", json!({"name": "s", "rate": 0.5}))]),
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
            "is on a cycle of 2 calls",
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
    let mut inner = layer("Dropout", json!({"name": "l0", "rate": 0.5}));
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

/// Values that a direct evaluation in f64 and the lowered layer agree on.
#[cfg(feature = "run")]
mod values {
    use super::*;

    fn run(
        text: &str,
        inputs: &[f32],
        dims: Vec<u64>,
        weights: &dyn Fn(&str, &[u64]) -> Vec<f32>,
    ) -> Vec<f32> {
        let mut graph = load(text.as_bytes()).unwrap();
        graph.bind(&BTreeMap::from([("batch".to_owned(), dims[0] as i64)])).unwrap();
        let input = vec![("x".to_owned(), Tensor::from_f32(dims, inputs).unwrap())];
        let outputs = partition::unstable::run::interpret(&graph, &input, &|id| {
            let param = graph.param(id);
            let ty = graph.ty(graph.results(param.node).next().unwrap());
            let dims: Vec<u64> = ty.shape.dims().unwrap().iter().map(|&size| size as u64).collect();
            let values = weights(&param.name, &dims);
            Tensor::from_f32(dims, &values)
        });
        outputs.unwrap()[0].1.to_f32().unwrap()
    }

    fn near(found: &[f32], expected: &[f64], what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 2e-6 * expected.abs().max(1.0),
                "{what}: {found}, expected {expected}"
            );
        }
    }

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn activations_are_those_of_the_documentation() {
        type Function = fn(f64) -> f64;
        let cases: [(&str, Function); 16] = [
            ("elu", |x| if x > 0.0 { x } else { x.exp_m1() }),
            ("selu", |x| 1.0507009873554805 * if x > 0.0 { x } else { 1.6732632423543772 * x.exp_m1() }),
            ("hard_sigmoid", |x| (x / 6.0 + 0.5).clamp(0.0, 1.0)),
            ("hard_silu", |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
            ("softsign", |x| x / (1.0 + x.abs())),
            ("leaky_relu", |x| if x > 0.0 { x } else { 0.2 * x }),
            ("relu6", |x| x.clamp(0.0, 6.0)),
            ("mish", |x| x * x.exp().ln_1p().tanh()),
            ("celu", |x| x.max(0.0) + x.min(0.0).exp_m1()),
            ("hard_tanh", |x| x.clamp(-1.0, 1.0)),
            ("log_sigmoid", |x| -(-x).exp().ln_1p()),
            ("tanh_shrink", |x| x - x.tanh()),
            ("soft_shrink", |x| {
                if x > 0.5 {
                    x - 0.5
                } else if x < -0.5 {
                    x + 0.5
                } else {
                    0.0
                }
            }),
            ("hard_shrink", |x| if x.abs() > 0.5 { x } else { 0.0 }),
            ("squareplus", |x| (x + (x * x + 4.0).sqrt()) / 2.0),
            ("silu", |x| x * sigmoid(x)),
        ];
        let inputs = [-7.0f32, -2.5, -0.75, -0.25, 0.0, 0.25, 0.75, 2.5, 6.5];
        for (name, function) in cases {
            let text = sequential(
                json!([null, 9]),
                &[layer("Activation", json!({"name": "l", "activation": name}))],
            );
            let expected: Vec<f64> = inputs.iter().map(|&x| function(f64::from(x))).collect();
            near(&run(&text, &inputs, vec![1, 9], &|_, _| Vec::new()), &expected, name);
        }
        let keras2 = sequential(
            json!([null, 9]),
            &[layer("Activation", json!({"name": "l", "activation": "hard_sigmoid"}))],
        );
        let keras2 = keras2.replacen('{', "{\"keras_version\":\"2.15.0\",", 1);
        let expected: Vec<f64> = inputs.iter().map(|&x| (0.2 * f64::from(x) + 0.5).clamp(0.0, 1.0)).collect();
        near(&run(&keras2, &inputs, vec![1, 9], &|_, _| Vec::new()), &expected, "Keras 2's hard_sigmoid");
        let relu = json!({"name": "l", "max_value": 3, "negative_slope": 0.5, "threshold": 1});
        let expected: Vec<f64> = inputs
            .iter()
            .map(|&x| f64::from(x))
            .map(|x| if x > 1.0 { x.min(3.0) } else { 0.5 * (x - 1.0) })
            .collect();
        let text = sequential(json!([null, 9]), &[layer("ReLU", relu)]);
        near(&run(&text, &inputs, vec![1, 9], &|_, _| Vec::new()), &expected, "ReLU");
    }

    /// A weight that depends on its name and position.
    fn weight(name: &str, count: usize) -> Vec<f32> {
        let key = name.bytes().fold(0u32, |key, byte| key.wrapping_mul(31).wrapping_add(byte.into()));
        (0..count as u32).map(|i| ((key.wrapping_add(i * 7919) % 1009) as f32 / 1009.0 - 0.5) * 0.8).collect()
    }

    /// One LSTM of Keras on `steps`, each a vector: the hidden state after each.
    fn lstm(prefix: &str, steps: &[Vec<f64>], units: usize) -> Vec<Vec<f64>> {
        let wide = 4 * units;
        let matrix = |name: &str, rows: usize| weight(&format!("{prefix}/{name}"), rows * wide);
        let (kernel, recurrent) = (matrix("kernel", steps[0].len()), matrix("recurrent_kernel", units));
        let bias = matrix("bias", 1);
        let (mut h, mut c) = (vec![0.0; units], vec![0.0; units]);
        let mut all = Vec::new();
        for step in steps {
            let z: Vec<f64> = (0..wide)
                .map(|j| {
                    let x: f64 =
                        step.iter().enumerate().map(|(i, x)| x * f64::from(kernel[i * wide + j])).sum();
                    let r: f64 =
                        h.iter().enumerate().map(|(i, h)| h * f64::from(recurrent[i * wide + j])).sum();
                    x + r + f64::from(bias[j])
                })
                .collect();
            for u in 0..units {
                let (i, f) = (sigmoid(z[u]), sigmoid(z[units + u]));
                let (g, o) = (z[2 * units + u].tanh(), sigmoid(z[3 * units + u]));
                c[u] = f * c[u] + i * g;
                h[u] = o * c[u].tanh();
            }
            all.push(h.clone());
        }
        all
    }

    #[test]
    fn lstm_layers_have_the_gates_of_keras() {
        let inputs: Vec<f32> = weight("input", 5 * 3);
        let steps: Vec<Vec<f64>> =
            inputs.chunks(3).map(|step| step.iter().map(|&x| f64::from(x)).collect()).collect();
        let back: Vec<Vec<f64>> = steps.iter().rev().cloned().collect();
        let weights = |name: &str, dims: &[u64]| weight(name, dims.iter().product::<u64>() as usize);
        let config = |extra: Value| {
            let mut config = json!({"name": "l", "units": 2, "return_sequences": true});
            for (key, value) in extra.as_object().unwrap() {
                config[key] = value.clone();
            }
            config
        };
        let forward = lstm("l/lstm_cell", &steps, 2);
        let text = sequential(json!([null, 5, 3]), &[layer("LSTM", config(json!({})))]);
        near(&run(&text, &inputs, vec![1, 5, 3], &weights), &forward.concat(), "LSTM");
        let backward = lstm("l/lstm_cell", &back, 2);
        let text = sequential(json!([null, 5, 3]), &[layer("LSTM", config(json!({"go_backwards": true})))]);
        near(&run(&text, &inputs, vec![1, 5, 3], &weights), &backward.concat(), "go_backwards");
        let text = sequential(
            json!([null, 5, 3]),
            &[layer("LSTM", config(json!({"go_backwards": true, "return_sequences": false})))],
        );
        near(&run(&text, &inputs, vec![1, 5, 3], &weights), &backward[4], "the last state");

        let both = json!({"name": "b", "merge_mode": "concat", "layer": layer("LSTM", config(json!({})))});
        let text = sequential(json!([null, 5, 3]), &[layer("Bidirectional", both)]);
        let forward = lstm("b/forward_l/lstm_cell", &steps, 2);
        let backward = lstm("b/backward_l/lstm_cell", &back, 2);
        let expected: Vec<f64> =
            (0..5).flat_map(|t| [forward[t].clone(), backward[4 - t].clone()].concat()).collect();
        near(&run(&text, &inputs, vec![1, 5, 3], &weights), &expected, "Bidirectional");
    }
}

#[test]
fn the_lowered_form_of_a_small_model() {
    let text = sequential(
        json!([null, 4]),
        &[
            layer("Dense", json!({"name": "hidden", "units": 3, "activation": "relu"})),
            layer("BatchNormalization", json!({"name": "norm"})),
            layer("Dropout", json!({"name": "drop", "rate": 0.5})),
            layer("LSTM", json!({"name": "unused", "units": 1})),
        ],
    );
    // An LSTM reads sequences: the error names the layer.
    let error = load(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "layer unused: expected an input of rank 3, found rank 2");
    let text = sequential(
        json!([null, 5, 4]),
        &[
            layer("Dense", json!({"name": "hidden", "units": 3, "activation": "relu"})),
            layer("BatchNormalization", json!({"name": "norm"})),
            layer("Dropout", json!({"name": "drop", "rate": 0.5})),
            layer("LSTM", json!({"name": "memory", "units": 2})),
            layer("Dense", json!({"name": "out", "units": 2, "activation": "softmax"})),
        ],
    );
    let graph = load(text.as_bytes()).unwrap();
    insta::with_settings!({
        snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots"),
        prepend_module_to_snapshot => false,
    }, {
        insta::assert_snapshot!("keras_small", graph.to_string());
    });
}

/// A model of Keras 3 that calls one function of `keras.ops`; inputs are by name, sizes and type.
fn call(class: &str, config: Value, inputs: &[(&str, Value, &str)], args: Value) -> String {
    let mut layers: Vec<Value> = inputs
        .iter()
        .map(|(name, sizes, dtype)| {
            node("InputLayer", name, json!({"batch_shape": sizes, "dtype": dtype}), json!([]))
        })
        .collect();
    layers.push(node(class, "call", config, json!([{"args": args, "kwargs": {}}])));
    let heads: Vec<Value> = inputs.iter().map(|(name, ..)| json!([name, 0, 0])).collect();
    let config = json!({
        "name": "f", "layers": layers, "input_layers": heads, "output_layers": [["call", 0, 0]]
    });
    json!({"class_name": "Functional", "config": config, "keras_version": "3.9.0"}).to_string()
}

fn tensor(name: &str) -> Value {
    json!({"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, 0]}})
}

fn constant(value: Value, dtype: &str) -> Value {
    json!({"class_name": "__tensor__", "config": {"value": value, "dtype": dtype}})
}

#[test]
fn elements_are_taken_along_one_axis_and_for_all_of_the_others() {
    let along = |of_places: Value| {
        let inputs = [("x", json!([2, 4, 5]), "float32"), ("i", of_places, "int32")];
        call("TakeAlongAxis", json!({"axis": 2}), &inputs, json!([tensor("x"), tensor("i")]))
    };
    assert_eq!(output(&along(json!([2, 1, 3]))), json!([2, 4, 3]));
    assert_eq!(output(&along(json!([1, 4, 3]))), json!([2, 4, 3]));
    for (sizes, told) in [(json!([2, 3, 3]), "size of axis 1"), (json!([2, 3]), "places of rank 2")] {
        let error = load(along(sizes).as_bytes()).unwrap_err().to_string();
        assert!(error.contains("layer call") && error.contains(told), "{error}");
    }
}

/// By hand: NumPy's `take_along_axis` of `x[b, r, c] = 20 b + 5 r + c` and one row of places for all rows.
#[cfg(feature = "run")]
#[test]
fn one_row_of_places_is_that_of_all_rows() {
    let inputs = [("x", json!([2, 4, 5]), "float32"), ("i", json!([2, 1, 2]), "int32")];
    let text = call("TakeAlongAxis", json!({"axis": -1}), &inputs, json!([tensor("x"), tensor("i")]));
    let graph = load(text.as_bytes()).unwrap();
    let numbers: Vec<f32> = (0..40).map(|at| at as f32).collect();
    let places: Vec<u8> = [4i32, 0, 1, 3].into_iter().flat_map(i32::to_le_bytes).collect();
    let inputs = vec![
        ("x".to_owned(), Tensor::from_f32(vec![2, 4, 5], &numbers).unwrap()),
        ("i".to_owned(), Tensor::new(DType::I32, vec![2, 1, 2], places).unwrap()),
    ];
    let none = |_| Err(Error::usage("", "it has no parameters"));
    let found = partition::unstable::run::interpret(&graph, &inputs, &none).unwrap().remove(0).1;
    let expected =
        [4.0, 0.0, 9.0, 5.0, 14.0, 10.0, 19.0, 15.0, 21.0, 23.0, 26.0, 28.0, 31.0, 33.0, 36.0, 38.0];
    assert_eq!((found.dims(), found.to_f32().unwrap()), (&[2, 4, 2][..], expected.to_vec()));
}

/// Numbers that neither f32 nor, of integers, f64 holds.
#[cfg(feature = "run")]
#[test]
fn constants_are_what_their_type_holds() {
    let run = |dtype: &str, zero: Tensor, constant: Value| {
        let inputs = [("x", json!([1]), dtype)];
        let text = call("Add", json!({}), &inputs, json!([tensor("x"), constant]));
        let graph = load(text.as_bytes()).unwrap();
        let input = vec![("x".to_owned(), zero)];
        let none = |_| Err(Error::usage("", "it has no parameters"));
        partition::unstable::run::interpret(&graph, &input, &none).unwrap().remove(0).1
    };
    let zero = || Tensor::new(DType::F64, vec![1], vec![0; 8]).unwrap();
    assert_eq!(run("float64", zero(), constant(json!([0.1]), "float64")).bytes(), 0.1f64.to_le_bytes());
    let zero = || Tensor::from_i64(vec![1], &[0]).unwrap();
    let large = (1i64 << 53) + 1;
    assert_eq!(run("int64", zero(), constant(json!([large]), "int64")).bytes(), large.to_le_bytes());
    let large = (1i64 << 24) + 1;
    assert_eq!(run("int64", zero(), json!(large)).bytes(), large.to_le_bytes());

    let inputs = [("x", json!([1]), "int32")];
    let text = call("Add", json!({}), &inputs, json!([tensor("x"), constant(json!([1.5]), "int32")]));
    let error = load(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("something else than numbers of i32"), "{error}");
}

/// What Python writes and JSON has not, and what is refused by name.
#[cfg(feature = "run")]
#[test]
fn special_numbers_stand_in_calls() {
    let inputs = [("x", json!([2, 2]), "float32")];
    let text = call("Add", json!({}), &inputs, json!([tensor("x"), constant(json!([0.0, 7.0]), "float32")]));
    let text = text.replace("7.0", "-Infinity");
    let graph = load(text.as_bytes()).unwrap();
    let x = vec![("x".to_owned(), Tensor::from_f32(vec![2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap())];
    let none = |_| Err(Error::usage("", "it has no parameters"));
    let found = partition::unstable::run::interpret(&graph, &x, &none).unwrap().remove(0).1;
    assert_eq!(found.to_f32().unwrap(), [1.0, f32::NEG_INFINITY, 3.0, f32::NEG_INFINITY]);
}

#[test]
fn what_a_function_does_not_read_is_refused() {
    let inputs = [("x", json!([4, 4, 4]), "float32")];
    for (class, config, told) in [
        ("Norm", json!({"ord": 2, "axis": [1, 2]}), "a norm by singular values"),
        ("Norm", json!({"ord": "nuc", "axis": [1, 2]}), "Norm"),
        ("Trapezoid", json!({"x": [1.0, 2.0, 3.0, 4.0]}), "x [1.0,2.0,3.0,4.0]"),
        ("SegmentSum", json!({"num_segments": 1u64 << 62}), "num_segments"),
        ("Vander", json!({"N": -1}), "rank"),
        ("Diagonal", json!({"axis1": 1, "axis2": 1}), "axis 1 is there twice"),
        ("BroadcastTo", json!({"shape": [2, 4]}), "broadcast"),
        ("AdaptiveMaxPool", json!({"output_size": [0]}), "0 windows"),
    ] {
        let text = call(class, config, &inputs, json!([tensor("x"), tensor("x")]));
        let error = load(text.as_bytes()).unwrap_err();
        let all = format!("{error} {}", error.details().join(" "));
        assert!(all.contains(told), "{class}: {all}");
    }
}

#[test]
fn a_stack_of_cells_gives_states_from_the_lowest_up_or_is_refused() {
    let text = |reversed: bool| {
        let cells = [layer("GRUCell", json!({"units": 2})), layer("GRUCell", json!({"units": 3}))];
        let stack = layer("StackedRNNCells", json!({"cells": cells, "reverse_state_order": reversed}));
        sequential(json!([null, 5, 3]), &[layer("RNN", json!({"name": "l", "cell": stack}))])
    };
    assert_eq!(output(&text(false)), json!([null, 3]));
    let error = load(text(true).as_bytes()).unwrap_err();
    assert!(
        error.details().join(" ").contains("layer l (RNN): reverse_state_order"),
        "{error} {:?}",
        error.details()
    );
}

/// As Keras' own documentation has it, with what is masked and what stands for others in the table or beside it.
#[cfg(feature = "run")]
#[test]
fn whole_numbers_are_looked_up_with_special_numbers_in_the_table_or_beside_it() {
    let bytes = |numbers: &[i64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let given = Tensor::new(DType::I64, vec![1, 4], bytes(&[12, 0, 42, 7])).unwrap();
    let table = json!([12, 36, 1138, 42]);
    let whole = json!([0, -1, 12, 36, 1138, 42]);
    let cases: [(Value, &str, Value, &[i64]); 5] = [
        (table.clone(), "int", Value::Null, &[1, 0, 4, 0]),
        (table.clone(), "int", json!(0), &[2, 0, 5, 1]),
        (whole, "int", json!(0), &[2, 0, 5, 1]),
        // In a vector there is no place for what is masked.
        (table.clone(), "multi_hot", json!(0), &[1, 1, 0, 0, 1]),
        (table, "count", Value::Null, &[2, 1, 0, 0, 1]),
    ];
    for (vocabulary, mode, mask, expected) in cases {
        let config = json!({"name": "l", "vocabulary": vocabulary, "output_mode": mode, "mask_token": mask,
            "num_oov_indices": 1, "oov_token": -1, "dtype": "int64", "oov_method": "floormod", "salt": null,
            "vocabulary_dtype": "int64", "vocabulary_size": 5});
        let input = layer("InputLayer", json!({"name": "x", "batch_shape": [1, 4], "dtype": "int64"}));
        let layers = [input, layer("IntegerLookup", config)];
        let text = json!({"class_name": "Sequential", "config": {"name": "m", "layers": layers}}).to_string();
        let graph = load(text.as_bytes()).unwrap();
        let inputs = [("x".to_owned(), given.clone())];
        let outputs =
            partition::unstable::run::interpret(&graph, &inputs, &|_| panic!("it has no parameters"))
                .unwrap();
        assert_eq!(outputs[0].1.bytes(), bytes(expected), "{mode} with mask {mask}");
    }
}

#[test]
fn what_a_model_was_compiled_with_is_told_to_who_trains_it() {
    let input = layer("InputLayer", json!({"name": "x", "batch_shape": [null, 4], "dtype": "float32"}));
    let dense = layer("Dense", json!({"name": "d", "units": 2, "activation": "linear", "use_bias": true}));
    let model = json!({"class_name": "Sequential", "config": {"name": "m", "layers": [input, dense]},
        "compile_config": {"loss": "mae", "optimizer": {"class_name": "RMSprop",
            "config": {"learning_rate": 0.019999999552965164, "rho": 0.8}}}});
    let told = load(model.to_string().as_bytes()).unwrap().rules().unheeded.clone();
    let line =
        "the model was compiled with RMSprop of the rate 0.02: training takes what --optimizer and --lr say";
    assert_eq!(told, [line]);
}
