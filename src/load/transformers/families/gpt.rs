//! GPT-2 and what is laid out alike, GPT BigCode and GPT-Neo; GPT-J and GPT-NeoX.

use serde_json::json;

use super::super::activation::Activation;
use super::super::attention::{Heads, Sight};
use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::{Head, Language, Plain, Spans};
use super::super::net::{Bias, Norm, Order};
use super::super::rotary::{Rotary, Usual};
use super::super::settings::{
    Biases, Counted, Embedding, Feed, Layer, Learnt, Names, Norms, Positions, Projections, Residual,
    Sections, Settings, TokenTypes, Wiring,
};
use crate::error::Result;

pub(super) const GPT2: Family = Family {
    heads: &[
        ("Model", Head::Bare),
        ("LMHeadModel", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("classifier")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Two)),
    ],
    prefix: "transformer.",
    copies: &[("lm_head.weight", ".wte.weight")],
    ..Family::new("gpt2", "GPT2", Network::Text(gpt2))
};

const GPT2_NAMES: Names = Names {
    words: "wte",
    positions: Some("wpe"),
    token_types: TokenTypes::Words,
    layer: "h",
    attention: "attn",
    projections: Projections::Joined("attn.c_attn", Sections::Kinds),
    out: "attn.c_proj",
    wiring: Wiring {
        attention: Norms::before("ln_1"),
        feed: Norms::before("ln_2"),
        residual: Residual::Stream,
    },
    last_norm: Some("ln_f"),
    order: Order::InOut,
    ..Names::PLAIN
};

fn gpt2(config: &Config) -> Result<Settings> {
    let hidden = config.either_size("n_embd", "hidden_size")?;
    let count = config.either_size("n_head", "num_attention_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    // Changes the order in which halves are scaled, and in f32 nothing.
    config.flag("reorder_and_upcast_attn", false)?;
    // This family decodes anyway.
    config.flag("is_decoder", false)?;
    let scale = if config.flag("scale_attn_weights", true)? { heads.usual_scale() } else { 1.0 };
    let by_layer = config.flag("scale_attn_by_inverse_layer_idx", false)?;
    let inner = config.optional_size("n_inner")?.unwrap_or(4 * hidden);
    let layer = |number: u64| {
        let divisor = if by_layer { (number + 1) as f64 } else { 1.0 };
        Layer {
            sight: Sight::Before,
            scale: scale / divisor,
            rotary: 0,
            feed: Feed::Plain { inner, up: "mlp.c_fc", act: "mlp.act", down: "mlp.c_proj" },
        }
    };
    Ok(Settings {
        names: GPT2_NAMES,
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding::default(),
        heads,
        norm: Norm::Layer(config.real("layer_norm_epsilon", 1e-5)?),
        activation: Activation::read(config, "activation_function", "gelu_new")?,
        positions: Positions::Learnt(Learnt {
            count: config.either_size("n_positions", "max_position_embeddings")?,
            field: "n_positions",
            skipped: 0,
            counted: Counted::Place,
        }),
        token_types: 0,
        layers: (0..config.either_layers("n_layer", "num_hidden_layers")?).map(layer).collect(),
        biases: Biases::EVERYWHERE,
        cap: None,
        language: Language::Plain(Plain::new("lm_head")),
        tied: config.flag("tie_word_embeddings", true)?,
        factor_of_parts: 1.0,
    })
}

pub(super) const GPT_BIGCODE: Family = Family {
    name: "gpt_bigcode",
    class: "GPTBigCode",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("classifier")),
    ],
    network: Network::Text(gpt_bigcode),
    ..GPT2
};

/// As GPT-2, where all heads may share one of keys.
fn gpt_bigcode(config: &Config) -> Result<Settings> {
    let mut settings = gpt2(config)?;
    let Heads { count, .. } = settings.heads;
    let joined = config.flag("multi_query", true)?;
    // Changes the order in which halves are scaled, and in f32 nothing.
    config.flag("scale_attention_softmax_in_fp32", true)?;
    config.optional_size("num_key_value_heads")?;
    settings.heads = Heads::new(settings.hidden, count, if joined { 1 } else { count }, None)?;
    settings.activation = Activation::read(config, "activation_function", "gelu_pytorch_tanh")?;
    let sections = if joined { Sections::Kinds } else { Sections::Heads };
    settings.names.projections = Projections::Joined("attn.c_attn", sections);
    settings.names.order = Order::OutIn;
    Ok(settings)
}

pub(super) const GPT_NEO: Family = Family {
    name: "gpt_neo",
    class: "GPTNeo",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("classifier")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Two)),
    ],
    network: Network::Text(gpt_neo),
    ..GPT2
};

/// As GPT-2 with projections apart, scores without a factor, and windows in some layers.
fn gpt_neo(config: &Config) -> Result<Settings> {
    let hidden = config.size("hidden_size")?;
    let count = config.either_size("num_heads", "num_attention_heads")?;
    let inner = config.optional_size("intermediate_size")?.unwrap_or(4 * hidden);
    let window = config.optional_size("window_size")?.unwrap_or(256);
    let feed = Feed::Plain { inner, up: "mlp.c_fc", act: "mlp.act", down: "mlp.c_proj" };
    let near = listed_windows(config, config.either_layers("num_layers", "num_hidden_layers")?)?;
    let layer = |near: bool| {
        let sight = if near { Sight::Window(window) } else { Sight::Before };
        Layer { sight, scale: 1.0, rotary: 0, feed }
    };
    Ok(Settings {
        names: Names {
            projections: Projections::Apart([
                "attn.attention.q_proj",
                "attn.attention.k_proj",
                "attn.attention.v_proj",
            ]),
            out: "attn.attention.out_proj",
            order: Order::OutIn,
            ..GPT2_NAMES
        },
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding::default(),
        heads: Heads::new(hidden, count, count, None)?,
        norm: Norm::Layer(config.real("layer_norm_epsilon", 1e-5)?),
        activation: Activation::read(config, "activation_function", "gelu_new")?,
        positions: Positions::Learnt(Learnt {
            count: config.size("max_position_embeddings")?,
            field: "max_position_embeddings",
            skipped: 0,
            counted: Counted::Place,
        }),
        token_types: 0,
        layers: near.into_iter().map(layer).collect(),
        biases: Biases { qkv: [Bias::Without; 3], ..Biases::EVERYWHERE },
        cap: None,
        language: Language::Plain(Plain::new("lm_head")),
        tied: config.flag("tie_word_embeddings", true)?,
        factor_of_parts: 1.0,
    })
}

/// Which layers have windows: lists of kinds, each as often as the number beside it says.
fn listed_windows(config: &Config, layers: u64) -> Result<Vec<bool>> {
    // What follows from the other field.
    config.get("attention_layers");
    let fault = || {
        config.fault("attention_types", "expected lists of global and local, and how often each is repeated")
    };
    let usual = json!([[["global", "local"], 12]]);
    let groups = config.get("attention_types").unwrap_or(&usual).as_array().ok_or_else(fault)?;
    let mut near = Vec::new();
    for group in groups {
        let (kinds, count) = match group.as_array().map(Vec::as_slice) {
            Some([kinds, count]) => (kinds.as_array().ok_or_else(fault)?, count.as_u64().ok_or_else(fault)?),
            _ => return Err(fault()),
        };
        let kinds: Vec<bool> = kinds
            .iter()
            .map(|kind| match kind.as_str() {
                Some("global") => Ok(false),
                Some("local") => Ok(true),
                _ => Err(fault()),
            })
            .collect::<Result<_>>()?;
        if kinds.is_empty() {
            return Err(fault());
        }
        if near.len() as u64 + count.saturating_mul(kinds.len() as u64) > layers {
            return Err(config.fault("attention_types", format!("lists more than {layers} layers")));
        }
        (0..count).for_each(|_| near.extend(&kinds));
    }
    if near.len() as u64 != layers {
        return Err(config.fault("attention_types", format!("lists {} of {layers} layers", near.len())));
    }
    Ok(near)
}

pub(super) const GPTJ: Family = Family {
    name: "gptj",
    class: "GPTJ",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Labels)),
    ],
    network: Network::Text(gptj),
    ..GPT2
};

fn gptj(config: &Config) -> Result<Settings> {
    let hidden = config.either_size("n_embd", "hidden_size")?;
    let count = config.either_size("n_head", "num_attention_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    let inner = config.optional_size("n_inner")?.unwrap_or(4 * hidden);
    // Its tables end there.
    let longest = config.either_size("n_positions", "max_position_embeddings")?;
    let turned = config.size("rotary_dim")?;
    if turned > heads.width {
        return Err(config.refused("rotary_dim", "a head has fewer numbers"));
    }
    let rotary = Rotary::of_neighbours(10_000.0, turned, Some(longest));
    let layer = Layer {
        sight: Sight::Before,
        scale: heads.usual_scale(),
        rotary: 0,
        feed: Feed::Plain { inner, up: "mlp.fc_in", act: "mlp.act", down: "mlp.fc_out" },
    };
    let count = config.either_layers("n_layer", "num_hidden_layers")?;
    Ok(Settings {
        names: Names {
            positions: None,
            projections: Projections::Apart(["attn.q_proj", "attn.k_proj", "attn.v_proj"]),
            out: "attn.out_proj",
            cross: None,
            wiring: Wiring {
                attention: Norms::before("ln_1"),
                feed: Norms { before: None, within: None, behind: None },
                residual: Residual::Parallel,
            },
            order: Order::OutIn,
            ..GPT2_NAMES
        },
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding::default(),
        heads,
        norm: Norm::Layer(config.real("layer_norm_epsilon", 1e-5)?),
        activation: Activation::read(config, "activation_function", "gelu_new")?,
        positions: Positions::Rotary(vec![rotary]),
        token_types: 0,
        layers: vec![layer; count as usize],
        biases: Biases { feed: Bias::With, ..Biases::NOWHERE },
        cap: None,
        language: Language::Plain(Plain { bias: Bias::With, ..Plain::new("lm_head") }),
        tied: config.flag("tie_word_embeddings", false)?,
        factor_of_parts: 1.0,
    })
}

pub(super) const GPT_NEOX: Family = Family {
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("classifier")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Labels)),
    ],
    prefix: "gpt_neox.",
    copies: &[("embed_out.weight", ".embed_in.weight"), ("lm_head.weight", ".embed_in.weight")],
    renamed: &[("embed_out.", "lm_head.")],
    ..Family::new("gpt_neox", "GPTNeoX", Network::Text(gpt_neox))
};

fn gpt_neox(config: &Config) -> Result<Settings> {
    let hidden = config.size("hidden_size")?;
    let count = config.size("num_attention_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    // This family decodes anyway.
    config.flag("is_decoder", false)?;
    let usual =
        Usual { part: Some(0.25), theta_field: "rotary_emb_base", part_field: "rotary_pct", ..Usual::WHOLE };
    let layer = Layer {
        sight: Sight::Before,
        scale: heads.usual_scale(),
        rotary: 0,
        feed: Feed::Plain {
            inner: config.size("intermediate_size")?,
            up: "mlp.dense_h_to_4h",
            act: "mlp.act",
            down: "mlp.dense_4h_to_h",
        },
    };
    let parallel = config.flag("use_parallel_residual", true)?;
    let attention = Bias::from(config.flag("attention_bias", true)?);
    Ok(Settings {
        names: Names {
            words: "embed_in",
            layer: "layers",
            attention: "attention",
            projections: Projections::Joined("attention.query_key_value", Sections::Heads),
            out: "attention.dense",
            wiring: Wiring {
                attention: Norms::before("input_layernorm"),
                feed: Norms::before("post_attention_layernorm"),
                residual: if parallel { Residual::Parallel } else { Residual::Stream },
            },
            last_norm: Some("final_layer_norm"),
            ..Names::PLAIN
        },
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding::default(),
        heads,
        norm: Norm::Layer(config.real("layer_norm_eps", 1e-5)?),
        activation: Activation::read(config, "hidden_act", "gelu")?,
        positions: Positions::Rotary(vec![Rotary::read(config, usual, heads.width)?]),
        token_types: 0,
        layers: vec![layer; config.layers("num_hidden_layers")? as usize],
        biases: Biases { qkv: [attention; 3], out: attention, feed: Bias::With },
        cap: None,
        language: Language::Plain(Plain::new("embed_out")),
        tied: config.flag("tie_word_embeddings", false)?,
        factor_of_parts: 1.0,
    })
}
