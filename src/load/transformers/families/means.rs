//! Llama's layout with norms about the mean: OLMo, Nemotron, Cohere and Cohere 2.

use super::super::activation::Activation;
use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::{Head, Language, Plain};
use super::super::net::{Bias, Norm};
use super::super::rotary::Usual;
use super::super::settings::{Biases, Feed, InnerNorms, Norms, Positions, Residual, Settings, Wiring};
use super::llama::{self, DEFAULTS, Defaults, LLAMA, OLMO2};
use super::windows;
use crate::error::Result;

pub(super) const OLMO: Family = Family { name: "olmo", class: "Olmo", network: Network::Text(olmo), ..OLMO2 };

pub(super) const NEMOTRON: Family =
    Family { name: "nemotron", class: "Nemotron", network: Network::Text(nemotron), ..LLAMA };

pub(super) const COHERE: Family = Family {
    name: "cohere",
    class: "Cohere",
    heads: &[("Model", Head::Bare), ("ForCausalLM", Head::Language)],
    other_prefix: None,
    network: Network::Text(cohere),
    ..LLAMA
};

pub(super) const COHERE2: Family =
    Family { name: "cohere2", class: "Cohere2", network: Network::Text(cohere2), ..COHERE };

/// A llama whose norms have no parameters, and whose queries, keys and values may have limits.
fn olmo(config: &Config) -> Result<Settings> {
    let mut settings = llama::common(config, &DEFAULTS)?;
    settings.norm = Norm::LayerPlain(1e-5);
    settings.biases = llama::attention_bias(config, false)?;
    if config.get("clip_qkv").is_some() {
        settings.names.inner_norms = InnerNorms::Within(config.positive("clip_qkv")?);
    }
    Ok(settings)
}

/// A llama with plain layers, half of whose heads are turned.
fn nemotron(config: &Config) -> Result<Settings> {
    let rotary = Some(Usual { part: Some(0.5), ..Usual::WHOLE });
    let mut settings = llama::common(config, &Defaults { rotary, ..DEFAULTS })?;
    settings.norm = Norm::LayerAboveOne(config.real("norm_eps", 1e-5)?);
    settings.activation = Activation::read(config, "hidden_act", "relu2")?;
    let feed = Bias::from(config.flag("mlp_bias", false)?);
    settings.biases = Biases { feed, ..llama::attention_bias(config, false)? };
    let inner = config.size("intermediate_size")?;
    for layer in &mut settings.layers {
        layer.feed = Feed::Plain { inner, up: "mlp.up_proj", act: "mlp.act_fn", down: "mlp.down_proj" };
    }
    Ok(settings)
}

fn cohere(config: &Config) -> Result<Settings> {
    let mut settings = parallel(config, Usual { theta: 500_000.0, ..Usual::WHOLE })?;
    if config.flag("use_qk_norm", false)? {
        let epsilon = config.real("layer_norm_eps", 1e-5)?;
        let layers = ["self_attn.q_norm", "self_attn.k_norm"];
        settings.names.inner_norms = InnerNorms::HeadsTogether(layers, Norm::LayerPlain(epsilon));
    }
    Ok(settings)
}

/// As the first, where three layers of four have windows, and only these turn queries and keys.
fn cohere2(config: &Config) -> Result<Settings> {
    let mut settings = parallel(config, Usual::WHOLE)?;
    let pattern = config.optional_size("sliding_window_pattern")?.unwrap_or(4);
    let width = windows::width(config, Some(4096))?;
    let near = |layer: u64| !(layer + 1).is_multiple_of(pattern);
    let kinds = windows::kinds(config, settings.layers.len() as u64, near)?;
    for (layer, near) in settings.layers.iter_mut().zip(kinds) {
        if near {
            layer.sight = windows::everywhere(width);
        }
        // Without windows at all, nothing is turned.
        layer.rotary = usize::from(!near || width.is_none());
    }
    Ok(settings)
}

/// Parts side by side behind one norm, neighbours turned.
fn parallel(config: &Config, usual: Usual) -> Result<Settings> {
    let mut settings = llama::common(config, &Defaults { rotary: Some(usual), tied: true, ..DEFAULTS })?;
    settings.norm = Norm::LayerFactor(config.real("layer_norm_eps", 1e-5)?);
    settings.biases = llama::attention_bias(config, false)?;
    settings.names.wiring = Wiring {
        attention: Norms::before("input_layernorm"),
        feed: Norms { before: None, within: None, behind: None },
        residual: Residual::Parallel,
    };
    if let Positions::Rotary(rotaries) = &mut settings.positions {
        rotaries.iter_mut().for_each(|rotary| rotary.turns_neighbours(true));
    }
    let scale = config.real("logit_scale", 0.0625)?;
    settings.language = Language::Plain(Plain { scale, ..Plain::new("lm_head") });
    Ok(settings)
}
