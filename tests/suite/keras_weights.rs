//! Weights in files of Keras and h5py: what `scripts/keras_weights.py` makes is read to the bit, and
//! no damage makes the reader panic.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use partition::unstable::ir::{DType, Tensor};
use partition::unstable::load::weights::Arrays;
use proptest::prelude::*;

use crate::shared;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/weights").join(name)
}

/// Runs a model with weights and compares its outputs with stored ones.
fn run(model: &Path, weights: &Path, arrays: &Path) {
    let out = Command::new(env!("CARGO_BIN_EXE_partition"))
        .arg("run")
        .arg(model)
        .arg("--weights")
        .arg(weights)
        .arg("--inputs")
        .arg(arrays)
        .arg("--expect")
        .arg(arrays)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{} with {}: {told}", model.display(), weights.display());
}

#[test]
fn weights_of_keras_are_found_by_name_and_by_order() {
    for weights in ["net.keras", "net.h5", "net.weights.h5"] {
        for model in ["net.json", "renamed.json"] {
            run(&file(model), &file(weights), &file("net.io.npz"));
        }
    }
}

/// What `scripts/keras_layers.py` makes: functions of `keras.ops`, and layers whose weights are stored with them.
#[test]
fn functions_and_layers_give_the_outputs_of_keras() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keras");
    for (name, weights) in [("functions", None), ("layers", Some("layers.weights.h5"))] {
        for devices in ["cpu", "2xcpu"] {
            let arrays = folder.join(format!("{name}.io.npz"));
            let mut command = Command::new(env!("CARGO_BIN_EXE_partition"));
            command.arg("run").arg(folder.join(format!("{name}.json"))).args(["-d", devices, "--use", "all"]);
            command.arg("--inputs").arg(&arrays).arg("--expect").arg(&arrays);
            command.args(["--rtol", "1e-4", "--atol", "1e-5"]);
            if let Some(weights) = weights {
                command.arg("--weights").arg(folder.join(weights));
            }
            let out = command.output().unwrap();
            let message = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.success(), "{name} on {devices}: {message}");
        }
    }
}

/// Of `scripts/keras_layers.py` and `keras_tensorflow.py`: masks, recurrent layers that are written out, functions
/// that a `.h5` file names by their class alone, and functions of TensorFlow in a model of Keras 2.
#[test]
fn whole_files_give_the_outputs_of_keras() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keras");
    for name in [
        "masks.keras",
        "steps.keras",
        "numbered.keras",
        "filtered.keras",
        "tuned.keras",
        "patches.keras",
        "scalars.keras",
        "extremes.keras",
        "products.keras",
        "ranks.keras",
        "arranged.h5",
        "divided.h5",
        "tensorflow.h5",
    ] {
        let arrays = folder.join(name.split('.').next().unwrap().to_owned() + ".io.npz");
        for devices in ["cpu", "2xcpu"] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_partition"));
            command.arg("run").arg(folder.join(name)).args(["-d", devices, "--use", "all"]);
            command.arg("--inputs").arg(&arrays).arg("--expect").arg(&arrays);
            let out = command.args(["--rtol", "1e-4", "--atol", "1e-5"]).output().unwrap();
            let message = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.success(), "{name} on {devices}: {message}");
        }
    }
}

/// Weights of bfloat16 are opaque bytes to HDF5; its numbers have eight bits, and half's eleven.
#[test]
fn networks_of_sixteen_bits_give_the_outputs_of_keras() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keras");
    for (name, tolerance) in [("bfloat16.keras", "2e-2"), ("bfloat16.h5", "2e-2"), ("float16.keras", "2e-3")]
    {
        let arrays = folder.join(name.split('.').next().unwrap().to_owned() + ".io.npz");
        let mut command = Command::new(env!("CARGO_BIN_EXE_partition"));
        command.arg("run").arg(folder.join(name)).arg("--inputs").arg(&arrays).arg("--expect").arg(&arrays);
        let out = command.args(["--rtol", tolerance, "--atol", tolerance]).output().unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn a_file_that_holds_its_model_needs_no_other() {
    let arrays = file("net.io.npz");
    for name in ["net.keras", "net.h5"] {
        let out = Command::new(env!("CARGO_BIN_EXE_partition"))
            .arg("run")
            .arg(file(name))
            .arg("--inputs")
            .arg(&arrays)
            .arg("--expect")
            .arg(&arrays)
            .output()
            .unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
    // Weights alone are still none.
    let out = Command::new(env!("CARGO_BIN_EXE_partition")).arg(file("net.weights.h5")).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(told.contains("these are weights (HDF5), and the model is missing"), "{told}");
}

#[test]
fn saved_models_of_both_versions_give_their_outputs() {
    let Some(folder) = shared::file("corpus/keras") else { return };
    for name in ["cnn_small", "gru_conv1d_small", "mlp_small", "siamese_multi_io", "transformer_small"] {
        for (version, ending) in [("k2", "h5"), ("k3", "keras")] {
            let part = |rest: &str| folder.join(format!("{name}.{version}.{rest}"));
            run(&part("json"), &part(ending), &part("io.npz"));
        }
    }
}

#[test]
fn datasets_of_every_kind_are_read() {
    let values: Vec<f64> = (0..35).map(|at| f64::from(at) / 4.0).collect();
    let plain = Arrays::open(&file("plain.h5")).unwrap();
    let get = |arrays: &Arrays, name: &str| arrays.get(&format!("deep/er/{name}")).unwrap().unwrap();
    for arrays in [&plain, &Arrays::open(&file("latest.h5")).unwrap()] {
        let whole: Vec<f64> = values.iter().map(|value| value.trunc()).collect();
        let yes: Vec<f64> = values.iter().map(|&value| f64::from(u8::from(value > 4.0))).collect();
        for (name, dtype, expected) in [
            ("f32", DType::F32, &values),
            ("big", DType::F32, &values),
            ("f16", DType::F16, &values),
            ("i64", DType::I64, &whole),
            ("bool", DType::Bool, &yes),
        ] {
            let tensor = get(arrays, name);
            assert_eq!(
                (tensor.dtype(), tensor.dims(), &tensor.to_f64()),
                (dtype, &[5, 7][..], expected),
                "{name}"
            );
        }
        assert_eq!(get(arrays, "scalar"), Tensor::from_f32(vec![], &[1.5]).unwrap());
        assert_eq!(get(arrays, "empty").dims(), [0, 3]);
        assert!(!arrays.names().contains(&"deep/er/text".to_owned()));
    }
    for name in ["chunked", "packed"] {
        assert_eq!(get(&plain, name).to_f64(), values, "{name}");
    }
    assert_eq!((get(&plain, "f64").dtype(), get(&plain, "f64").to_f64()), (DType::F64, values));
    assert_eq!(get(&plain, "u8").bytes()[..5], [0, 0, 0, 0, 1]);
    assert_eq!(get(&plain, "unwritten").to_f64(), [0.0; 6]);
    assert_eq!(get(&plain, "many/39").to_f64(), [39.0]);
    assert_eq!(plain.names().iter().filter(|name| name.contains("many")).count(), 40);
}

#[test]
fn weights_of_another_model_are_told() {
    let out = Command::new(env!("CARGO_BIN_EXE_partition"))
        .args(["run", "--weights"])
        .args([file("plain.h5"), file("net.json")])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(told.contains("no array carries the name of a parameter"), "{told}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn damaged_files_never_panic(
        which in 0usize..4,
        changes in prop::collection::vec((0.0..1.0f64, prop::sample::select(&[0u8, 1, 2, 8, 0x7f, 0x80, 0xff][..])), 1..6),
        cut in prop::option::of(0.0..1.0f64),
    ) {
        let name = ["plain.h5", "latest.h5", "net.weights.h5", "net.keras"][which];
        let mut bytes = fs::read(file(name)).unwrap();
        for (at, byte) in changes {
            // Structures stand in front.
            let at = (at * at * bytes.len() as f64) as usize;
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate((cut * bytes.len() as f64) as usize);
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, &bytes).unwrap();
        if let Ok(arrays) = Arrays::open(&path) {
            for name in arrays.names() {
                if let Ok(Some(tensor)) = arrays.get(name) {
                    prop_assert!(tensor.bytes().len() <= bytes.len() * 1040);
                }
            }
        }
    }
}

/// Trains what `scripts/keras_training.py` makes; the loss that is told of the epoch.
fn trained(name: &str, inputs: &[&str], rest: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keras/training");
    let arrays = folder.join(format!("{name}.npz"));
    let inputs: String = inputs.iter().map(|input| format!("input.{input}={input},")).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_partition"));
    command.arg("train").arg(folder.join(format!("{name}.keras"))).args(["-d", "cpu", "--batch", "4"]);
    command.arg("--data").arg(format!("{}:{inputs}target=y", arrays.display()));
    let loss = match name {
        // The files say which class is left out.
        "ignored" | "ignored_steps" => "sparse:logits",
        "signs" => "hinge",
        _ => "mse",
    };
    command.args(["--loss", loss, "--optimizer", "sgd:momentum=0.9", "--in-order"]).args(rest);
    let out = command.output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{name}: {told}");
    told
}

#[test]
fn a_network_is_after_three_steps_what_it_is_in_keras() {
    let folder = tempfile::tempdir().unwrap();
    for (name, inputs, count) in [
        ("batches", &["a", "b", "t"][..], 18),
        ("masked", &["i"], 8),
        ("counted", &["i"], 13),
        ("cleared", &["x"], 10),
        ("attended", &["i"], 13),
        ("turned", &["x"], 14),
        ("factors", &["x"], 4),
        ("ignored", &["x"], 2),
        ("ignored_steps", &["i"], 3),
        ("signs", &["x"], 2),
    ] {
        let to = folder.path().join(format!("{name}.npz"));
        trained(name, inputs, &["--lr", "0.1", "-o", to.to_str().unwrap()]);
        let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/keras/training/{name}.npz"));
        let (own, keras) = (Arrays::open(&to).unwrap(), Arrays::open(&stored).unwrap());
        let after: Vec<&str> = keras.names().iter().filter_map(|name| name.strip_prefix("after.")).collect();
        assert_eq!(after.len(), count);
        for weight in after {
            let values = |arrays: &Arrays, name: &str| arrays.get(name).unwrap().unwrap().to_f64();
            let (own, keras) = (values(&own, weight), values(&keras, &format!("after.{weight}")));
            let apart = own.iter().zip(&keras).map(|(own, keras)| (own - keras).abs()).fold(0.0, f64::max);
            assert!(apart < 1e-5, "{weight}: {own:?}, keras {keras:?}");
        }
    }
}

#[test]
fn layers_drop_within_themselves_while_they_train() {
    let loss = |told: &str| -> String {
        let from = told.find("loss ").unwrap() + 5;
        told[from..].split_whitespace().next().unwrap().to_owned()
    };
    // Of a rate of nothing the weights stay: what differs is what is drawn.
    let still = ["--lr", "0", "--seed"];
    let of = |seed: &str| trained("dropped", &["x"], &[&still[..], &[seed]].concat());
    let (first, second) = (of("1"), of("2"));
    assert_ne!(loss(&first), loss(&second));
    assert!(first.contains("lstm (LSTM): recurrent_dropout is not drawn here"), "{first}");
    assert_eq!(first.matches("is not drawn here").count(), 1, "{first}");
}

/// Each call begins with what the one before left, and the first with zeros, as a layer that keeps nothing does.
#[test]
fn layers_keep_states_from_batch_to_batch() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/keras/states");
    for (calls, devices) in [(1, "cpu"), (2, "cpu"), (3, "cpu"), (3, "2xcpu")] {
        let io = folder.join(format!("kept.{calls}.npz"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_partition"));
        command.arg("run").arg(folder.join("kept.keras")).arg("--inputs").arg(&io);
        command.arg("--expect").arg(&io).args(["--steps", &calls.to_string(), "-d", devices, "--use", "all"]);
        let out = command.output().unwrap();
        assert!(out.status.success(), "{calls} on {devices}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let refused = Command::new(env!("CARGO_BIN_EXE_partition"))
        .arg("train")
        .arg(folder.join("kept.keras"))
        .args(["-d", "cpu", "--batch", "2", "--loss", "mse", "--data"])
        .arg(format!(
            "{}:input.x=in_x,input.i=in_i,target.both=out_both,target.flat=out_flat",
            folder.join("kept.1.npz").display()
        ))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("states that are kept from batch to batch"), "{told}");
}
