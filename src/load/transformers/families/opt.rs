//! OPT: positions that are learnt and counted by the mask, norms before or behind.

use super::super::activation::Activation;
use super::super::attention::{Heads, Sight};
use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::{Head, Language, Plain, Spans};
use super::super::net::{Bias, Norm};
use super::super::settings::{
    Biases, Counted, Embedding, Feed, Layer, Learnt, Names, Norms, Positions, Projections, Residual,
    Settings, Wiring,
};
use crate::error::Result;

pub(super) const OPT: Family = Family {
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Labels)),
    ],
    prefix: "model.decoder.",
    bare_prefix: "decoder.",
    copies: &[("lm_head.weight", ".embed_tokens.weight")],
    ..Family::new("opt", "OPT", Network::Text(opt))
};

fn opt(config: &Config) -> Result<Settings> {
    let hidden = config.size("hidden_size")?;
    let count = config.size("num_attention_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    let before = config.flag("do_layer_norm_before", true)?;
    let removed = config.flag("_remove_final_layer_norm", false)?;
    let norms = |name: &'static str| match before {
        true => Norms { before: Some(name), within: None, behind: None },
        false => Norms { before: None, within: None, behind: Some(name) },
    };
    let inner = config.size("ffn_dim")?;
    let layer = Layer {
        sight: Sight::Before,
        scale: heads.usual_scale(),
        rotary: 0,
        feed: Feed::Plain { inner, up: "fc1", act: "activation_fn", down: "fc2" },
    };
    let bias = Bias::from(config.flag("enable_bias", true)?);
    // The library gives its norms no other.
    const EPSILON: f64 = 1e-5;
    let affine = config.flag("layer_norm_elementwise_affine", true)?;
    Ok(Settings {
        names: Names {
            words: "embed_tokens",
            positions: Some("embed_positions"),
            layer: "layers",
            attention: "self_attn",
            projections: Projections::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            out: "self_attn.out_proj",
            wiring: Wiring {
                attention: norms("self_attn_layer_norm"),
                feed: norms("final_layer_norm"),
                residual: Residual::Stream,
            },
            last_norm: (before && !removed).then_some("final_layer_norm"),
            ..Names::PLAIN
        },
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding { width: config.optional_size("word_embed_proj_dim")?, scale: None },
        heads,
        norm: if affine { Norm::Layer(EPSILON) } else { Norm::LayerPlain(EPSILON) },
        activation: Activation::read(config, "activation_function", "relu")?,
        positions: Positions::Learnt(Learnt {
            count: config.size("max_position_embeddings")?,
            field: "max_position_embeddings",
            skipped: 2,
            counted: Counted::Shown,
        }),
        token_types: 0,
        layers: vec![layer; config.layers("num_hidden_layers")? as usize],
        biases: Biases { qkv: [bias; 3], out: bias, feed: bias },
        cap: None,
        language: Language::Plain(Plain::new("lm_head")),
        tied: config.flag("tie_word_embeddings", true)?,
        factor_of_parts: 1.0,
    })
}
