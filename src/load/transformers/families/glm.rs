//! GLM 4, with norms before its parts alone and around them.

use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::Head;
use super::super::net::Bias;
use super::super::rotary::Usual;
use super::super::settings::{Biases, Feed, Norms, Positions, Residual, Settings, Wiring};
use super::llama::{self, DEFAULTS, Defaults, LLAMA};
use crate::error::Result;

pub(super) const GLM: Family = Family {
    name: "glm",
    class: "Glm",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("score")),
    ],
    other_prefix: None,
    network: Network::Text(glm),
    ..LLAMA
};

pub(super) const GLM4: Family = Family { name: "glm4", class: "Glm4", network: Network::Text(glm4), ..GLM };

/// A llama with joined gates, half of whose heads are turned, by neighbours.
fn glm(config: &Config) -> Result<Settings> {
    let rotary = Some(Usual { part: Some(0.5), ..Usual::WHOLE });
    let defaults = Defaults { shared: Some(2), width: Some(128), epsilon: 1.5625e-7, rotary, ..DEFAULTS };
    let mut settings = llama::common(config, &defaults)?;
    let bias = Bias::from(config.flag("attention_bias", true)?);
    settings.biases = Biases { qkv: [bias; 3], ..Biases::NOWHERE };
    if let Positions::Rotary(rotaries) = &mut settings.positions {
        rotaries.iter_mut().for_each(|rotary| rotary.turns_neighbours(true));
    }
    let inner = config.size("intermediate_size")?;
    for layer in &mut settings.layers {
        layer.feed = Feed::gate_up(inner);
    }
    Ok(settings)
}

fn glm4(config: &Config) -> Result<Settings> {
    let mut settings = glm(config)?;
    let around = |before, within| Norms { before: Some(before), within: Some(within), behind: None };
    settings.names.wiring = Wiring {
        attention: around("input_layernorm", "post_self_attn_layernorm"),
        feed: around("post_attention_layernorm", "post_mlp_layernorm"),
        residual: Residual::Stream,
    };
    Ok(settings)
}
