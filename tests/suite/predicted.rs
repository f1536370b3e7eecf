//! Predicted times on `cpu`, which are the same on every machine, beside what steps took on a machine of the class
//! that the defaults describe (benches/results/predicted.md).

use std::path::{Path, PathBuf};

use partition::unstable::compile::{self, Options};
use partition::unstable::load::{LoadOptions, load};
use partition::unstable::topology::Topology;

use crate::shared;

struct Measured {
    model: &'static str,
    batch: Option<i64>,
    sequence: Option<i64>,
    micros: f64,
}

const fn step(model: &'static str, batch: i64, micros: f64) -> Measured {
    Measured { model, batch: if batch > 0 { Some(batch) } else { None }, sequence: None, micros }
}

/// Medians of steps on two cores of a cloud machine, nothing else taking part of them.
const MEASURED: &[Measured] = &[
    step("examples/mlp.json", 1, 223.8),
    step("examples/mlp.json", 512, 9_316.6),
    step("examples/seed_stack.json", 10, 2_039.1),
    step("corpus/keras/mlp_small.k3.json", 32, 16.7),
    step("corpus/keras/cnn_small.k3.json", 8, 316.2),
    step("corpus/keras/transformer_small.k3.json", 8, 322.3),
    step("corpus/keras/gru_conv1d_small.k3.json", 8, 132.1),
    step("corpus/keras/lstm_text.k3.json", 8, 5_170.6),
    step("corpus/keras/siamese_multi_io.k3.json", 8, 122.2),
    step("corpus/keras/mobilenet_v2.k3.json", 1, 13_750.7),
    step("corpus/keras/resnet50.k3.json", 1, 59_213.2),
    step("corpus/keras/resnet50.k3.json", 8, 417_886.1),
    step("corpus/keras/xception.k3.json", 1, 147_532.1),
    step("corpus/onnx/s_bert.onnx", 0, 90.7),
    step("corpus/onnx/s_gpt2.onnx", 0, 969.8),
    step("corpus/onnx/s_llama.onnx", 0, 380.2),
    step("corpus/onnx/s_mobilenet_v2.onnx", 0, 1_098.2),
    step("corpus/onnx/s_vit.onnx", 0, 1_225.6),
    Measured { sequence: Some(64), ..step("corpus/hf/gpt2.config.json", 1, 118_341.3) },
    Measured { sequence: Some(32), ..step("corpus/hf/distilbert.config.json", 2, 58_441.9) },
];

impl Measured {
    /// None where the reference corpus is not here.
    fn path(&self) -> Option<PathBuf> {
        match self.model.starts_with("corpus/") {
            true => shared::file(self.model),
            false => Some(Path::new(env!("CARGO_MANIFEST_DIR")).join(self.model)),
        }
    }

    /// In microseconds.
    fn predicted(&self, path: &Path) -> f64 {
        let mut read = LoadOptions::default();
        read.dims.extend(self.sequence.map(|size| ("sequence".to_owned(), size)));
        let bytes = std::fs::read(path).expect("a file of the corpus");
        let model = load(&bytes, Some(path), &read).expect("a model of the corpus");
        let options = Options { batch: self.batch, ..Options::default() };
        let topology = Topology::parse("cpu").expect("sound");
        let compiled = compile::compile(model, &topology, &options).expect("fits");
        compiled.plan.cost.latency_ns.get() as f64 / 1e3
    }
}

#[test]
fn predictions_are_within_a_factor_of_three_of_what_was_measured() {
    let mut far = Vec::new();
    for one in MEASURED {
        let Some(path) = one.path() else { continue };
        let predicted = one.predicted(&path);
        let factor = one.micros / predicted;
        let batch = one.batch.map_or(String::new(), |batch| format!(", batch {batch}"));
        println!("| {}{batch} | {:.0} | {predicted:.0} | {factor:.2} |", one.model, one.micros);
        if !(1.0 / 3.0..=3.0).contains(&factor) {
            far.push(format!("{}{batch}: {:.1} us, predicted {predicted:.1}", one.model, one.micros));
        }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}
