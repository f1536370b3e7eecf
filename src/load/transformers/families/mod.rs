//! The families that are read, as data, and how their configurations are.

use super::config::Config;
use super::family::Family;
use crate::error::Result;

mod bert;
mod bloom;
mod clip;
mod experts;
mod gemma;
mod glm;
mod gpt;
mod llama;
mod means;
mod opt;
mod phi;
mod t5;
mod vit;
mod whisper;
mod windows;

/// All of them, in the order in which messages list them.
pub(super) const FAMILIES: &[&Family] = &[
    &gpt::GPT2,
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::QWEN2,
    &llama::QWEN3,
    &llama::OLMO2,
    &llama::OLMO3,
    &llama::STABLELM,
    &llama::GRANITE,
    &llama::SMOLLM3,
    &llama::STARCODER2,
    &means::OLMO,
    &means::NEMOTRON,
    &means::COHERE,
    &means::COHERE2,
    &glm::GLM,
    &glm::GLM4,
    &experts::MIXTRAL,
    &experts::QWEN2_MOE,
    &experts::QWEN3_MOE,
    &experts::GPT_OSS,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &phi::PHI,
    &phi::PHI3,
    &gpt::GPT_NEOX,
    &gpt::GPTJ,
    &gpt::GPT_NEO,
    &gpt::GPT_BIGCODE,
    &opt::OPT,
    &bloom::BLOOM,
    &bloom::FALCON,
    &bert::BERT,
    &bert::ROBERTA,
    &bert::XLM_ROBERTA,
    &bert::CAMEMBERT,
    &bert::DISTILBERT,
    &t5::T5,
    &whisper::WHISPER,
    &clip::CLIP,
    &clip::CLIP_TEXT,
    &clip::CLIP_VISION,
    &vit::VIT,
];

/// The family that a configuration names.
pub(super) fn of(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().copied().find(|family| family.name == model_type)
}

/// What no family has. Error: a configuration that asks for it.
pub(super) fn check_common(config: &Config) -> Result<()> {
    config.only("add_cross_attention", false)?;
    config.unset("pruned_heads", "heads that were pruned are not supported")?;
    config.unset("per_layer_config", "layers that are configured one by one are not supported")
}
