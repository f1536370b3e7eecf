//! The models of the corpus whose kernels are looked at: counted, compiled, and those of small ones run.

use std::collections::BTreeSet;

use partition::unstable::ir::DType;
use partition::unstable::load::{LoadOptions, Model, load};

use crate::shared;

/// Those whose kernels a CPU runs.
pub(crate) const SMALL: &[&str] = &[
    "onnx/s_autoencoder_convt.onnx",
    "onnx/s_bert.onnx",
    "onnx/s_gpt2.onnx",
    "onnx/s_llama.onnx",
    "onnx/s_lstm.onnx",
    "onnx/s_mixtral.onnx",
    "onnx/s_mobilenet_v2.onnx",
    "onnx/s_resnet_hf.onnx",
    "onnx/s_sd_unet.onnx",
    "onnx/s_t5_encoder.onnx",
    "onnx/s_vit.onnx",
    "onnx/tract_averagepool_count_include_pad.onnx",
    "onnx/tract_deconv_group.onnx",
    "onnx/tract_lgbm_classifier_tensor.onnx",
    "onnx/tract_qrelu_1.onnx",
    "onnx/tract_qrelu_2.onnx",
    "onnx/tract_qsigmoid_2.onnx",
    "onnx/tract_qtanh_1.onnx",
    "onnx/tract_xgboost_classifier_tree.onnx",
    "keras/cnn_small.k2.json",
    "keras/cnn_small.k3.json",
    "keras/gru_conv1d_small.k2.json",
    "keras/gru_conv1d_small.k3.json",
    "keras/lstm_text.k2.json",
    "keras/lstm_text.k3.json",
    "keras/mlp_small.k2.json",
    "keras/mlp_small.k3.json",
    "keras/seed_stack.k2.json",
    "keras/seed_stack.k3.json",
    "keras/siamese_multi_io.k2.json",
    "keras/siamese_multi_io.k3.json",
    "keras/transformer_small.k2.json",
    "keras/transformer_small.k3.json",
];

/// The others.
pub(crate) const REAL: &[&str] = &[
    "onnx/bert_base.onnx",
    "onnx/gpt2.onnx",
    "onnx/llama_small.onnx",
    "onnx/lstm_text_full.onnx",
    "onnx/mixtral_small.onnx",
    "onnx/mobilenet_v3_large.onnx",
    "onnx/resnet50.onnx",
    "onnx/resnet50_ts13.onnx",
    "onnx/sd_unet_small.onnx",
    "onnx/shufflenet_v2_x1_0.onnx",
    "onnx/vgg16.onnx",
    "onnx/vit_b_16.onnx",
    "onnx/light_bvlc_alexnet.onnx",
    "onnx/light_densenet121.onnx",
    "onnx/light_inception_v1.onnx",
    "onnx/light_resnet50.onnx",
    "onnx/light_squeezenet.onnx",
    "onnx/light_vgg19.onnx",
    "hf/bert_base.config.json",
    "hf/distilbert.config.json",
    "hf/gpt2.config.json",
    "hf/llama3_8b_shape.config.json",
    "hf/llama_default_7b.config.json",
    "keras/mobilenet_v2.k2.json",
    "keras/mobilenet_v2.k3.json",
    "keras/pyramid_8000.k2.json",
    "keras/pyramid_8000.k3.json",
    "keras/resnet50.k2.json",
    "keras/resnet50.k3.json",
    "keras/xception.k3.json",
];

/// Small ones that are computed in halves, too.
pub(crate) const SMALL_HALVES: &[(&str, DType)] = &[
    ("onnx/s_gpt2.onnx", DType::Bf16),
    ("onnx/s_llama.onnx", DType::F16),
    ("onnx/s_lstm.onnx", DType::Bf16),
    ("onnx/s_mobilenet_v2.onnx", DType::F16),
    ("keras/cnn_small.k3.json", DType::F16),
    ("keras/transformer_small.k3.json", DType::Bf16),
];

/// Others that are computed in halves, too.
pub(crate) const REAL_HALVES: &[(&str, DType)] = &[
    ("onnx/gpt2.onnx", DType::Bf16),
    ("onnx/llama_small.onnx", DType::Bf16),
    ("onnx/resnet50.onnx", DType::Bf16),
    ("onnx/vit_b_16.onnx", DType::Bf16),
];

/// Configurations of families that `families` compares on small draws: too large to be computed here.
const LARGE: [&str; 6] = [
    "hf/gpt_neox_default.config.json",
    "hf/opt_default.config.json",
    "hf/t5_small.config.json",
    "hf/vit_base.config.json",
    "hf/whisper_default.config.json",
    "hf/mixtral_default_8x7b.config.json",
];

#[test]
fn every_model_of_the_corpus_stands_in_a_list() {
    let Some(corpus) = shared::file("corpus") else { return };
    let listed: BTreeSet<&str> = SMALL.iter().chain(REAL).copied().collect();
    let mut seen = BTreeSet::new();
    for folder in ["onnx", "keras", "hf"] {
        for entry in std::fs::read_dir(corpus.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let file = format!("{folder}/{}", path.file_name().unwrap().to_string_lossy());
            let ends = [".onnx", ".k2.json", ".k3.json", ".config.json"];
            if !ends.iter().any(|end| file.ends_with(end)) {
                continue;
            }
            if LARGE.contains(&file.as_str()) {
                continue;
            }
            // Two of ONNX have no stored results to compare with.
            let stored = corpus.join(file.replace(".onnx", ".io.npz"));
            if file.ends_with(".onnx") && !stored.exists() && !listed.contains(file.as_str()) {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let loaded = load(&bytes, Some(&path), &LoadOptions::default());
            match loaded {
                Ok(Model::Graph(_)) => assert!(listed.contains(&file[..]), "{file} stands in no list"),
                _ => println!("{file} is no network that is read"),
            }
            seen.insert(file);
        }
    }
    for file in listed {
        assert!(seen.contains(file), "{file} is not there");
    }
}
