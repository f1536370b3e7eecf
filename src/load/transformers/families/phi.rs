//! Phi 1 to 2, and Phi 3.

use super::super::activation::Activation;
use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::{Language, Plain};
use super::super::net::{Bias, Norm};
use super::super::rotary::Usual;
use super::super::settings::{
    Biases, Feed, InnerNorms, Norms, Projections, Residual, Sections, Settings, Wiring,
};
use super::gemma::GEMMA;
use super::llama::{self, DEFAULTS, Defaults};
use super::windows;
use crate::error::Result;

pub(super) const PHI: Family = Family { name: "phi", class: "Phi", network: Network::Text(phi), ..GEMMA };

pub(super) const PHI3: Family = Family { name: "phi3", class: "Phi3", network: Network::Text(phi3), ..GEMMA };

fn phi(config: &Config) -> Result<Settings> {
    let rotary = Some(Usual { part: Some(0.5), ..Usual::WHOLE });
    let mut settings = llama::common(config, &Defaults { rotary, ..DEFAULTS })?;
    let epsilon = config.real("layer_norm_eps", 1e-5)?;
    settings.norm = Norm::Layer(epsilon);
    settings.activation = Activation::read(config, "hidden_act", "gelu_new")?;
    settings.biases = Biases::EVERYWHERE;
    settings.language = Language::Plain(Plain { bias: Bias::With, ..Plain::new("lm_head") });
    let names = &mut settings.names;
    names.out = "self_attn.dense";
    names.last_norm = Some("final_layernorm");
    names.wiring = Wiring {
        attention: Norms::before("input_layernorm"),
        feed: Norms { before: None, within: None, behind: None },
        residual: Residual::Parallel,
    };
    if config.flag("qk_layernorm", false)? {
        let layers = ["self_attn.q_layernorm", "self_attn.k_layernorm"];
        names.inner_norms = InnerNorms::Head(layers, settings.norm);
    }
    let inner = config.size("intermediate_size")?;
    for layer in &mut settings.layers {
        layer.feed = Feed::Plain { inner, up: "mlp.fc1", act: "mlp.activation_fn", down: "mlp.fc2" };
    }
    Ok(settings)
}

fn phi3(config: &Config) -> Result<Settings> {
    config.only("attention_bias", false)?;
    let rotary = Some(Usual { part: Some(1.0), ..Usual::WHOLE });
    let mut settings = llama::common(config, &Defaults { epsilon: 1e-5, rotary, ..DEFAULTS })?;
    settings.names.projections = Projections::Joined("self_attn.qkv_proj", Sections::Kinds);
    let inner = config.size("intermediate_size")?;
    let sight = windows::everywhere(windows::width(config, None)?);
    for layer in &mut settings.layers {
        layer.sight = sight;
        layer.feed = Feed::gate_up(inner);
    }
    Ok(settings)
}
