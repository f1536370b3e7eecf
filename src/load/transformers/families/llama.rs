//! Llama and what is laid out alike: Mistral, Qwen 2 and 3, OLMo 2 and 3, StableLM, Granite, SmolLM 3, StarCoder 2.

use super::super::activation::Activation;
use super::super::attention::{Heads, Sight};
use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::{Head, Language, Plain, Spans};
use super::super::net::{Bias, Norm};
use super::super::rotary::{Rotary, Usual};
use super::super::settings::{
    Biases, Embedding, Feed, Gated, InnerNorms, Layer, Names, Norms, Positions, Projections, Residual,
    Settings, Wiring,
};
use super::windows;
use crate::error::Result;

pub(super) const LLAMA: Family = Family {
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("score")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Two)),
    ],
    prefix: "model.",
    other_prefix: Some(("ForQuestionAnswering", "transformer.")),
    copies: &[("lm_head.weight", ".embed_tokens.weight")],
    ..Family::new("llama", "Llama", Network::Text(llama))
};

pub(super) const MISTRAL: Family = Family {
    name: "mistral",
    class: "Mistral",
    other_prefix: None,
    network: Network::Text(mistral),
    ..LLAMA
};

pub(super) const QWEN2: Family =
    Family { name: "qwen2", class: "Qwen2", network: Network::Text(qwen2), ..LLAMA };

pub(super) const QWEN3: Family =
    Family { name: "qwen3", class: "Qwen3", network: Network::Text(qwen3), ..LLAMA };

pub(super) const OLMO2: Family = Family {
    name: "olmo2",
    class: "Olmo2",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
    ],
    network: Network::Text(|config| olmo2(config, Some(Usual::WHOLE))),
    ..LLAMA
};

pub(super) const OLMO3: Family =
    Family { name: "olmo3", class: "Olmo3", network: Network::Text(olmo3), ..OLMO2 };

pub(super) const GRANITE: Family = Family {
    name: "granite",
    class: "Granite",
    heads: &[("Model", Head::Bare), ("ForCausalLM", Head::Language)],
    other_prefix: None,
    network: Network::Text(granite),
    ..LLAMA
};

pub(super) const SMOLLM3: Family =
    Family { name: "smollm3", class: "SmolLM3", network: Network::Text(smollm3), ..LLAMA };

pub(super) const STARCODER2: Family = Family {
    name: "starcoder2",
    class: "Starcoder2",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("score")),
    ],
    network: Network::Text(starcoder2),
    ..LLAMA
};

pub(super) const STABLELM: Family = Family {
    name: "stablelm",
    class: "StableLm",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("score")),
    ],
    network: Network::Text(stablelm),
    ..LLAMA
};

pub(super) const NAMES: Names = Names {
    words: "embed_tokens",
    layer: "layers",
    attention: "self_attn",
    projections: Projections::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    out: "self_attn.o_proj",
    wiring: Wiring {
        attention: Norms::before("input_layernorm"),
        feed: Norms::before("post_attention_layernorm"),
        residual: Residual::Stream,
    },
    last_norm: Some("norm"),
    ..Names::PLAIN
};

/// The gated layers, this wide inside.
pub(super) const fn gated(inner: u64) -> Gated {
    Gated { inner, gate: "mlp.gate_proj", act: "mlp.act_fn", up: "mlp.up_proj", down: "mlp.down_proj" }
}

/// Where families of this kind differ before anything else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// Heads of keys and values where the field is left out; null is as many as of queries.
    pub(super) shared: Option<u64>,
    /// Numbers of a head where the field is left out.
    pub(super) width: Option<u64>,
    pub(super) epsilon: f64,
    /// None: the family reads its rotations itself.
    pub(super) rotary: Option<Usual>,
    pub(super) tied: bool,
}

pub(super) const DEFAULTS: Defaults =
    Defaults { shared: None, width: None, epsilon: 1e-6, rotary: Some(Usual::WHOLE), tied: false };

/// Heads as `num_attention_heads`, `num_key_value_heads` and `head_dim` say.
pub(super) fn heads(config: &Config, defaults: &Defaults) -> Result<Heads> {
    let count = config.size("num_attention_heads")?;
    // Left out is not null: the classes' own defaults differ.
    let usual = match defaults.shared {
        Some(shared) if !config.has("num_key_value_heads") => shared,
        _ => count,
    };
    let shared = config.optional_size("num_key_value_heads")?.unwrap_or(usual);
    let width = config.optional_size("head_dim")?;
    let width = if config.has("head_dim") { width } else { defaults.width };
    Heads::new(config.size("hidden_size")?, count, shared, width)
}

/// What the kind has in common: rotations, gated layers, no biases, every layer as the first.
pub(super) fn common(config: &Config, defaults: &Defaults) -> Result<Settings> {
    let heads = heads(config, defaults)?;
    // Such a family decodes anyway.
    config.flag("is_decoder", false)?;
    let layer = Layer {
        sight: Sight::Before,
        scale: heads.usual_scale(),
        rotary: 0,
        feed: Feed::Gated(gated(config.size("intermediate_size")?)),
    };
    Ok(Settings {
        names: NAMES,
        vocabulary: config.size("vocab_size")?,
        hidden: config.size("hidden_size")?,
        embedding: Embedding::default(),
        heads,
        norm: Norm::RootMeanSquare(config.real("rms_norm_eps", defaults.epsilon)?),
        activation: Activation::read(config, "hidden_act", "silu")?,
        positions: Positions::Rotary(match defaults.rotary {
            Some(usual) => vec![Rotary::read(config, usual, heads.width)?],
            None => Vec::new(),
        }),
        token_types: 0,
        layers: vec![layer; config.layers("num_hidden_layers")? as usize],
        biases: Biases::NOWHERE,
        cap: None,
        language: Language::Plain(Plain::new("lm_head")),
        tied: config.flag("tie_word_embeddings", defaults.tied)?,
        factor_of_parts: 1.0,
    })
}

/// One bias for queries, keys and values and what comes of them.
pub(super) fn attention_bias(config: &Config, usual: bool) -> Result<Biases> {
    let bias = Bias::from(config.flag("attention_bias", usual)?);
    Ok(Biases { qkv: [bias; 3], out: bias, feed: Bias::Without })
}

/// Gives each layer its sight.
pub(super) fn see(settings: &mut Settings, sights: Vec<Sight>) {
    for (layer, sight) in settings.layers.iter_mut().zip(sights) {
        layer.sight = sight;
    }
}

fn llama(config: &Config) -> Result<Settings> {
    // It has no windows; a field that asks for one is not passed over.
    if config.get("sliding_window").is_some() {
        return Err(config.refused("sliding_window", "this family attends to everything before"));
    }
    let feed = Bias::from(config.flag("mlp_bias", false)?);
    let biases = Biases { feed, ..attention_bias(config, false)? };
    Ok(Settings { biases, ..common(config, &DEFAULTS)? })
}

fn mistral(config: &Config) -> Result<Settings> {
    config.only("attention_bias", false)?;
    config.only("mlp_bias", false)?;
    let mut settings = common(config, &Defaults { shared: Some(8), ..DEFAULTS })?;
    let sight = windows::everywhere(windows::width(config, Some(4096))?);
    let all = vec![sight; settings.layers.len()];
    see(&mut settings, all);
    Ok(settings)
}

/// Layers from `max_window_layers` on have windows, where any do.
pub(super) fn late_windows(config: &Config, settings: &mut Settings) -> Result<()> {
    let used = config.flag("use_sliding_window", false)?;
    let width = windows::width(config, Some(4096))?.filter(|_| used);
    let from = config.whole("max_window_layers", 28)?;
    let sights = windows::by_layer(config, settings.layers.len() as u64, width, |layer| layer >= from)?;
    see(settings, sights);
    Ok(())
}

fn qwen2(config: &Config) -> Result<Settings> {
    config.only("attention_bias", true)?;
    config.only("mlp_bias", false)?;
    let mut settings = common(config, &Defaults { shared: Some(32), ..DEFAULTS })?;
    settings.biases.qkv = [Bias::With; 3];
    late_windows(config, &mut settings)?;
    Ok(settings)
}

fn qwen3(config: &Config) -> Result<Settings> {
    let mut settings = common(config, &Defaults { shared: Some(32), width: Some(128), ..DEFAULTS })?;
    settings.biases = attention_bias(config, false)?;
    settings.names.inner_norms = InnerNorms::Head(["self_attn.q_norm", "self_attn.k_norm"], settings.norm);
    late_windows(config, &mut settings)?;
    Ok(settings)
}

fn olmo2(config: &Config, rotary: Option<Usual>) -> Result<Settings> {
    let mut settings = common(config, &Defaults { epsilon: 1e-5, rotary, ..DEFAULTS })?;
    settings.biases = attention_bias(config, false)?;
    settings.names.inner_norms = InnerNorms::Joint(["self_attn.q_norm", "self_attn.k_norm"]);
    settings.names.wiring = Wiring {
        attention: Norms { before: None, within: Some("post_attention_layernorm"), behind: None },
        feed: Norms { before: None, within: Some("post_feedforward_layernorm"), behind: None },
        residual: Residual::Stream,
    };
    Ok(settings)
}

/// As the second, where three layers of four have windows, whose rotations are never scaled.
fn olmo3(config: &Config) -> Result<Settings> {
    let mut settings = olmo2(config, None)?;
    let usual = Usual { theta: 500_000.0, ..Usual::WHOLE };
    let theta = if config.get("rope_theta").is_some() { config.positive("rope_theta")? } else { usual.theta };
    let rotaries = Rotary::by_sight(config, usual, theta, settings.heads.width)?;
    settings.positions = Positions::Rotary(rotaries.into());
    let width = windows::width(config, Some(4096))?;
    let near = |layer: u64| !(layer + 1).is_multiple_of(4);
    let sights = windows::by_layer(config, settings.layers.len() as u64, width, near)?;
    let near = windows::everywhere(width);
    see(&mut settings, sights);
    for layer in &mut settings.layers {
        layer.rotary = usize::from(layer.sight == near);
    }
    Ok(settings)
}

/// A llama with factors of embeddings, scores, parts and logits.
fn granite(config: &Config) -> Result<Settings> {
    let feed = Bias::from(config.flag("mlp_bias", false)?);
    let biases = Biases { feed, ..attention_bias(config, false)? };
    let mut settings = Settings { biases, ..common(config, &DEFAULTS)? };
    settings.embedding.scale = Some(factor(config, "embedding_multiplier")?);
    settings.factor_of_parts = factor(config, "residual_multiplier")?;
    let scale = factor(config, "attention_multiplier")?;
    settings.layers.iter_mut().for_each(|layer| layer.scale = scale);
    let divisor = factor(config, "logits_scaling")?;
    settings.language = Language::Plain(Plain { scale: 1.0 / divisor, ..Plain::new("lm_head") });
    Ok(settings)
}

/// A number above 0; 1 where it is left out.
fn factor(config: &Config, field: &'static str) -> Result<f64> {
    if config.get(field).is_some() { config.positive(field) } else { Ok(1.0) }
}

/// A llama some of whose layers do not turn queries and keys.
fn smollm3(config: &Config) -> Result<Settings> {
    let rotary = Some(Usual { theta: 2e6, ..Usual::WHOLE });
    let feed = Bias::from(config.flag("mlp_bias", false)?);
    let biases = Biases { feed, ..attention_bias(config, false)? };
    let defaults = Defaults { shared: Some(4), rotary, tied: true, ..DEFAULTS };
    let mut settings = Settings { biases, ..common(config, &defaults)? };
    let turned = config.wholes("no_rope_layers")?;
    let interval = config.optional_size("no_rope_layer_interval")?.unwrap_or(4);
    if !turned.is_empty() && turned.len() != settings.layers.len() {
        return Err(config.refused("no_rope_layers", "expected one for each layer"));
    }
    // Despite its name it lists 1 for layers that turn.
    let turns = |layer: u64| match turned.get(layer as usize) {
        Some(&turns) => turns != 0,
        None => !(layer + 1).is_multiple_of(interval),
    };
    let used = config.flag("use_sliding_window", false)?;
    let width = windows::width(config, None)?.filter(|_| used);
    let sights = match used {
        true => windows::by_layer(config, settings.layers.len() as u64, width, |layer| !turns(layer))?,
        // Layers that are listed with windows have none then.
        false => config.get("layer_types").map_or_else(Vec::new, |_| Vec::new()),
    };
    see(&mut settings, sights);
    for (number, layer) in (0u64..).zip(&mut settings.layers) {
        layer.rotary = usize::from(!turns(number));
    }
    Ok(settings)
}

/// A llama with plain layers, norms about the mean, and biases.
fn starcoder2(config: &Config) -> Result<Settings> {
    let mut settings = common(config, &Defaults { shared: Some(2), tied: true, ..DEFAULTS })?;
    settings.norm = Norm::Layer(config.real("norm_epsilon", 1e-5)?);
    settings.activation = Activation::read(config, "hidden_act", "gelu_pytorch_tanh")?;
    if config.flag("use_bias", true)? {
        settings.biases = Biases::EVERYWHERE;
    }
    let inner = config.size("intermediate_size")?;
    let sight = windows::everywhere(windows::width(config, None)?);
    for layer in &mut settings.layers {
        layer.feed = Feed::Plain { inner, up: "mlp.c_fc", act: "mlp.act", down: "mlp.c_proj" };
        layer.sight = sight;
    }
    Ok(settings)
}

fn stablelm(config: &Config) -> Result<Settings> {
    config.only("attention_bias", false)?;
    let rotary = Some(Usual { part: Some(0.25), ..Usual::WHOLE });
    let mut settings = common(config, &Defaults { shared: Some(32), rotary, ..DEFAULTS })?;
    let epsilon = config.real("layer_norm_eps", 1e-5)?;
    settings.norm = Norm::Layer(epsilon);
    settings.biases.qkv = [Bias::from(config.flag("use_qkv_bias", false)?); 3];
    if config.flag("qk_layernorm", false)? {
        // Each head has an array of its own.
        if settings.heads.count > 1024 {
            return Err(config.refused("qk_layernorm", "norms of so many heads are not supported"));
        }
        let layers = ["self_attn.q_layernorm", "self_attn.k_layernorm"];
        settings.names.inner_norms = InnerNorms::Heads(layers, Norm::LayerPlain(epsilon));
    }
    if config.flag("use_parallel_residual", false)? {
        settings.names.wiring.residual = Residual::Parallel;
        settings.names.wiring.feed.before = None;
    }
    Ok(settings)
}
