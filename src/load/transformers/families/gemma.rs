//! Gemma 1 to 3: norms whose factors are above one, scaled embeddings, windows in some layers.

use super::super::activation::Activation;
use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::{Head, Language, Plain};
use super::super::net::Norm;
use super::super::rotary::{Rotary, Usual};
use super::super::settings::{InnerNorms, Norms, Positions, Residual, Settings, Wiring};
use super::llama::{self, DEFAULTS, Defaults, LLAMA};
use super::windows;
use crate::error::Result;

pub(super) const GEMMA: Family = Family {
    name: "gemma",
    class: "Gemma",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("score")),
    ],
    other_prefix: None,
    network: Network::Text(gemma),
    ..LLAMA
};

pub(super) const GEMMA2: Family =
    Family { name: "gemma2", class: "Gemma2", network: Network::Text(gemma2), ..GEMMA };

pub(super) const GEMMA3: Family = Family {
    name: "gemma3_text",
    class: "Gemma3",
    heads: &[
        ("TextModel", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("TextForSequenceClassification", Head::Last("score")),
    ],
    network: Network::Text(gemma3),
    ..GEMMA
};

/// What all three have; `shared`: heads of keys and values where the field is left out.
fn common(config: &Config, shared: u64, rotary: Option<Usual>) -> Result<Settings> {
    config.only("use_bidirectional_attention", false)?;
    let defaults = Defaults { shared: Some(shared), width: Some(256), tied: true, rotary, ..DEFAULTS };
    let mut settings = llama::common(config, &defaults)?;
    settings.biases = llama::attention_bias(config, false)?;
    let Norm::RootMeanSquare(epsilon) = settings.norm else { return Ok(settings) };
    settings.norm = Norm::RootMeanSquareAboveOne(epsilon);
    settings.embedding.scale = Some((settings.hidden as f64).sqrt());
    Ok(settings)
}

fn gemma(config: &Config) -> Result<Settings> {
    let mut settings = common(config, 16, Some(Usual::WHOLE))?;
    // Older files say this and mean the other.
    let name = match config.text("hidden_act", "gelu_pytorch_tanh")? {
        "gelu" => "gelu_pytorch_tanh",
        name => name,
    };
    settings.activation = Activation::named(config, "hidden_act", name)?;
    config.only("hidden_activation", name)?;
    Ok(settings)
}

fn gemma2(config: &Config) -> Result<Settings> {
    let mut settings = common(config, 4, Some(Usual::WHOLE))?;
    settings.cap = bounded(config, "attn_logit_softcapping", Some(50.0))?;
    later(config, &mut settings, Some(30.0))?;
    let width = windows::width(config, Some(4096))?;
    let sights = windows::by_layer(config, settings.layers.len() as u64, width, |layer| layer % 2 == 0)?;
    llama::see(&mut settings, sights);
    Ok(settings)
}

fn gemma3(config: &Config) -> Result<Settings> {
    let mut settings = common(config, 4, None)?;
    later(config, &mut settings, None)?;
    // The library's classes of this generation hold no scores below it.
    config.optional_real("attn_logit_softcapping")?;
    let layers = ["self_attn.q_norm", "self_attn.k_norm"];
    settings.names.inner_norms = InnerNorms::Head(layers, settings.norm);
    let usual = Usual { theta: 1e6, ..Usual::WHOLE };
    let rotaries = Rotary::by_sight(config, usual, 10_000.0, settings.heads.width)?;
    settings.positions = Positions::Rotary(rotaries.into());
    let width = windows::width(config, Some(4096))?;
    // Later versions write the number that they read under another name.
    let written = config.optional_size("_sliding_window_pattern")?;
    let pattern = config.optional_size("sliding_window_pattern")?.or(written).unwrap_or(6);
    let near = |layer: u64| !(layer + 1).is_multiple_of(pattern);
    let sights = windows::by_layer(config, settings.layers.len() as u64, width, near)?;
    let near = windows::everywhere(width);
    llama::see(&mut settings, sights);
    for layer in &mut settings.layers {
        layer.rotary = usize::from(layer.sight == near);
    }
    Ok(settings)
}

/// What came with the second: its activation's field, the scale of scores, norms on both sides, a cap.
fn later(config: &Config, settings: &mut Settings, cap: Option<f64>) -> Result<()> {
    settings.activation = Activation::read(config, "hidden_activation", "gelu_pytorch_tanh")?;
    let scalar = match config.get("query_pre_attn_scalar") {
        Some(_) => config.positive("query_pre_attn_scalar")?,
        None => 256.0,
    };
    for layer in &mut settings.layers {
        layer.scale = scalar.powf(-0.5);
    }
    let cap = bounded(config, "final_logit_softcapping", cap)?;
    settings.language = Language::Plain(Plain { cap, ..Plain::new("lm_head") });
    settings.names.wiring = Wiring {
        attention: Norms {
            before: Some("input_layernorm"),
            within: Some("post_attention_layernorm"),
            behind: None,
        },
        feed: Norms {
            before: Some("pre_feedforward_layernorm"),
            within: Some("post_feedforward_layernorm"),
            behind: None,
        },
        residual: Residual::Stream,
    };
    Ok(())
}

/// A bound above 0; none where the field is null, the default where it is left out.
fn bounded(config: &Config, field: &'static str, default: Option<f64>) -> Result<Option<f64>> {
    match config.get(field) {
        Some(_) => config.positive(field).map(Some),
        None if config.has(field) => Ok(None),
        None => Ok(default),
    }
}
