//! Training steps in halves need at most four fifths of what they need in f32, or little more than what weights, which
//! stay f32, make of the whole (`benches/results/halves.md`).

use partition::unstable::compile::Compiled;
use partition::unstable::control::Control;
use partition::unstable::ir::{DType, Graph};
use partition::unstable::pass::{Params, Precision};
use partition::unstable::plan::BufferKind;
use partition::unstable::topology::Topology;
use partition::unstable::train::{Loss, Options, dry_run};

use crate::halves::{graph, peak};
use crate::shared;
use crate::sweep::Share;

/// A training step in halves has at most so much of the peak in f32 ...
const LIMIT: f64 = 0.8;
/// ... or so much of it beside its state, where that is more.
const SLACK: f64 = 0.05;

/// Networks that are above the limit: so much of their peak in f32 at most, and why.
const ABOVE: [(&str, f64, &str); 33] = [
    ("llama_small.onnx", 0.81, COPY),
    ("lstm_text.k2.json", 1.01, TABLE),
    ("lstm_text.k3.json", 1.01, TABLE),
    ("mlp_small.k2.json", 1.08, SMALL),
    ("mlp_small.k3.json", 1.08, SMALL),
    ("pyramid_8000.k2.json", 1.39, OVER),
    ("pyramid_8000.k3.json", 1.39, OVER),
    ("seed_stack.k2.json", 1.05, OVER),
    ("seed_stack.k3.json", 1.05, OVER),
    ("bert_base.onnx", 1.01, TABLE),
    ("gpt2.onnx", 0.92, TABLE),
    ("resnet50_ts13.onnx", 0.83, OVER),
    ("s_bert.onnx", 1.03, TABLE),
    ("s_llama.onnx", 0.94, COPY),
    ("s_t5_encoder.onnx", 0.96, TABLE),
    ("sd_unet_small.onnx", 0.82, OVER),
    ("shufflenet_v2_x1_0.onnx", 0.87, COPY),
    ("tract_deconv_group.onnx", 1.18, SMALL),
    ("vgg16.onnx", 1.26, OVER),
    ("vit_b_16.onnx", 0.89, OVER),
    ("bert_base.config.json", 0.94, TABLE),
    ("distilbert.config.json", 0.91, TABLE),
    ("gpt2.config.json", 0.92, TABLE),
    ("llama3_8b_shape.config.json", 1.01, TABLE),
    ("batched_matmul_const_2x11x11.onnx", 0.84, COPY),
    ("llama_kv_dyn.onnx", 1.01, TABLE),
    ("mha.onnx", 0.86, COPY),
    ("moe_bmm.onnx", 0.96, COPY),
    ("llama_op23.onnx", 0.99, COPY),
    ("q_whisper_nbits.onnx", 0.93, PACKED),
    ("stft.onnx", 0.89, COPY),
    ("opt_default.config.json", 0.92, TABLE),
    ("t5_small.config.json", 1.01, TABLE),
];

const TABLE: &str = "the gradient of a table that is looked up in is of f32";
const OVER: &str =
    "in f32 a product writes its update over the weight; in halves its gradient lies beside it";
const COPY: &str = "weights are rounded as a whole for the products that read them";
const PACKED: &str = "weights of few bits, and what is made of them, are as large in either type";
const SMALL: &str = "scratch memory of a kernel, and what lies in both types, is most of it";

/// A training step of plain descent. None where it cannot be planned.
fn trained(graph: &Graph, devices: &str, half: Option<DType>) -> Option<Compiled> {
    let mut options = Options::new(Loss::MeanSquared);
    options.compile.batch = (!graph.unbound_dims().is_empty()).then_some(8);
    options.compile.precision = half.map(|half| Precision { half, params: Params::Kept });
    let topology = Topology::parse(devices).unwrap();
    dry_run(graph.clone(), &topology, &options, &Control::default()).ok().map(|planned| planned.compiled)
}

/// Bytes that outlive a step, in f32 whatever the precision.
fn state(compiled: &Compiled) -> u64 {
    let buffers = compiled.plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::State);
    buffers.map(|buffer| buffer.bytes.get()).sum()
}

/// What is wrong with a network's peaks.
fn excess(file: &str) -> Vec<String> {
    let Some(graph) = shared::file(&format!("corpus/{file}")).and_then(|path| graph(&path)) else {
        return Vec::new();
    };
    let name = file.rsplit('/').next().unwrap_or(file);
    let above = ABOVE.iter().find(|(other, ..)| *other == name).map(|(_, share, _)| *share);
    let mut wrong = Vec::new();
    for devices in ["cpu", "a100-80g"] {
        let (full, half) = (trained(&graph, devices, None), trained(&graph, devices, Some(DType::Bf16)));
        let (Some(full), Some(half)) = (full, half) else { continue };
        let whole = peak(&full) as f64;
        let limit = above.unwrap_or(LIMIT.max(state(&full) as f64 / whole + SLACK));
        let share = peak(&half) as f64 / whole;
        let lowered = peak(&half) != peak(&full);
        if lowered && share > limit {
            wrong.push(format!("(\"{name}\", {share:.3}, \"\"), // {devices}: {limit:.3} allowed"));
        }
    }
    wrong
}

sweep! {
    training_in_halves_takes_four_fifths_or_what_weights_make_of_the_whole: one of 16;
}

fn training_in_halves_takes_four_fifths_or_what_weights_make_of_the_whole(share: Share) {
    let Some(corpus) = shared::file("corpus") else { return };
    let mut files = Vec::new();
    for folder in ["keras", "onnx", "hf", "exports"] {
        for file in std::fs::read_dir(corpus.join(folder)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".onnx") || name.ends_with(".json") && !name.ends_with(".params.json") {
                files.push(format!("{folder}/{name}"));
            }
        }
    }
    files.sort();
    let wrong: Vec<String> = share.among(&files).flat_map(|file| excess(file)).collect();
    assert!(wrong.is_empty(), "above the limit:\n{}", wrong.join("\n"));
}
