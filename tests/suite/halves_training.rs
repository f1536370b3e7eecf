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

/// Networks that are above the limit.
const ABOVE: [(&str, Why); 24] = [
    ("llama_small.onnx", Why::Other(0.81, COPY)),
    ("lstm_text.k2.json", Why::Halved),
    ("lstm_text.k3.json", Why::Halved),
    ("mlp_small.k2.json", Why::Other(1.08, SMALL)),
    ("mlp_small.k3.json", Why::Other(1.08, SMALL)),
    ("gpt2.onnx", Why::Other(0.91, TIED)),
    ("resnet50_ts13.onnx", Why::Halved),
    ("s_llama.onnx", Why::Halved),
    ("s_t5_encoder.onnx", Why::Halved),
    ("sd_unet_small.onnx", Why::Halved),
    ("shufflenet_v2_x1_0.onnx", Why::Other(0.82, CONVOLUTION)),
    ("tract_deconv_group.onnx", Why::Other(1.14, SMALL)),
    ("vgg16.onnx", Why::Halved),
    ("vit_b_16.onnx", Why::Halved),
    ("bert_base.config.json", Why::Other(1.0, TIED)),
    ("distilbert.config.json", Why::Other(1.0, TIED)),
    ("gpt2.config.json", Why::Other(1.0, TIED)),
    ("opt_default.config.json", Why::Other(1.0, TIED)),
    ("t5_small.config.json", Why::Other(1.0, TIED)),
    ("batched_matmul_const_2x11x11.onnx", Why::Other(1.02, SMALL)),
    ("llama_op23.onnx", Why::Halved),
    ("moe_bmm.onnx", Why::Halved),
    ("q_whisper_nbits.onnx", Why::Other(0.93, PACKED)),
    ("stft.onnx", Why::Other(0.88, FULL)),
];

/// Why a network is above the limit.
#[derive(Clone, Copy)]
enum Why {
    /// Beside the weights, which cannot be, all but a little is halved: the peak in f32 with all else halved is the bound,
    /// and at most [`SLACK`] of the whole is beyond it.
    Halved,
    /// So much of the peak in f32 at most.
    Other(f64, &'static str),
}

/// The bound is the weights and one table in f32: no product writes over what lookups read, too.
const TIED: &str = "a table is a product's weight, too: two gradients are summed, of which one lies whole";
const COPY: &str =
    "weights that a product of many rows reads are rounded as a whole, as libraries multiply halves";
const CONVOLUTION: &str = "weights of convolutions are rounded as a whole for the kernels that read them";
const PACKED: &str = "weights of few bits, and what is made of them, are as large in either type";
const SMALL: &str = "scratch memory of a kernel, and what lies in both types, is most of it";
const FULL: &str =
    "most of it is computed in f32 in either precision: inputs, the loss, and powers of a spectrum";

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
    let above = ABOVE.iter().find(|(other, _)| *other == name).map(|&(_, why)| why);
    let mut wrong = Vec::new();
    for devices in ["cpu", "a100-80g"] {
        let (full, half) = (trained(&graph, devices, None), trained(&graph, devices, Some(DType::Bf16)));
        let (Some(full), Some(half)) = (full, half) else { continue };
        let whole = peak(&full) as f64;
        let weights = state(&full) as f64 / whole;
        let best = (weights + 1.0) / 2.0;
        let (limit, why) = match above {
            None => (LIMIT.max(weights + SLACK), "it is not in the list"),
            Some(Why::Halved) => (best + SLACK, "all but the weights is to be halved"),
            Some(Why::Other(share, why)) => (share, why),
        };
        let share = peak(&half) as f64 / whole;
        let lowered = peak(&half) != peak(&full);
        if lowered && share > limit {
            wrong.push(format!(
                "{name} on {devices}: {share:.3}, {limit:.3} allowed ({why}); at best {best:.3}"
            ));
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
