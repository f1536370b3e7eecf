//! BLOOM and Falcon: joined projections, scores that grow with positions.

use super::super::activation::{Activation, BLOOM_GELU};
use super::super::attention::{Heads, Sight};
use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::{Head, Language, Plain, Spans};
use super::super::net::{Bias, Norm};
use super::super::rotary::{Rotary, Usual};
use super::super::settings::{
    Biases, Embedding, Feed, Layer, Names, Norms, Positions, Projections, Residual, Sections, Settings,
    Slopes, Wiring,
};
use crate::error::Result;

pub(super) const BLOOM: Family = Family {
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("classifier")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Two)),
    ],
    prefix: "transformer.",
    copies: &[("lm_head.weight", ".word_embeddings.weight")],
    ..Family::new("bloom", "Bloom", Network::Text(bloom))
};

pub(super) const FALCON: Family =
    Family { name: "falcon", class: "Falcon", network: Network::Text(falcon), ..BLOOM };

const NAMES: Names = Names {
    words: "word_embeddings",
    first_norm: Some("word_embeddings_layernorm"),
    layer: "h",
    attention: "self_attention",
    projections: Projections::Joined("self_attention.query_key_value", Sections::Heads),
    out: "self_attention.dense",
    wiring: Wiring {
        attention: Norms::before("input_layernorm"),
        feed: Norms::before("post_attention_layernorm"),
        residual: Residual::Stream,
    },
    last_norm: Some("ln_f"),
    ..Names::PLAIN
};

const fn feed(inner: u64) -> Feed {
    Feed::Plain { inner, up: "mlp.dense_h_to_4h", act: "mlp.act", down: "mlp.dense_4h_to_h" }
}

fn bloom(config: &Config) -> Result<Settings> {
    let hidden = config.either_size("n_embed", "hidden_size")?;
    let count = config.either_size("n_head", "num_attention_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    config.unset("n_inner", "the library's class has four times the hidden size")?;
    // Adds the same products in another order.
    config.flag("slow_but_exact", false)?;
    let normed = config.flag("apply_residual_connection_post_layernorm", false)?;
    let layer = Layer { sight: Sight::Before, scale: heads.usual_scale(), rotary: 0, feed: feed(4 * hidden) };
    let mut names = NAMES;
    if normed {
        names.wiring.residual = Residual::Normed;
    }
    Ok(Settings {
        names,
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding::default(),
        heads,
        norm: Norm::Layer(config.real("layer_norm_epsilon", 1e-5)?),
        activation: BLOOM_GELU,
        positions: Positions::Slopes(Slopes { rounded: false, scaled: false }),
        token_types: 0,
        layers: vec![layer; config.either_layers("n_layer", "num_hidden_layers")? as usize],
        biases: Biases::EVERYWHERE,
        cap: None,
        language: Language::Plain(Plain::new("lm_head")),
        tied: config.flag("tie_word_embeddings", true)?,
        factor_of_parts: 1.0,
    })
}

fn falcon(config: &Config) -> Result<Settings> {
    let hidden = config.either_size("n_embed", "hidden_size")?;
    let count = config.size("num_attention_heads")?;
    let kind = Kind::read(config)?;
    let shared = match (kind.newer, kind.multi_query) {
        (true, _) => config.optional_size("num_kv_heads")?.unwrap_or(count),
        (false, true) => 1,
        (false, false) => count,
    };
    // Classes of the older kind do not read it.
    config.optional_size("num_kv_heads")?;
    let heads = Heads::new(hidden, count, shared, None)?;
    let bias = Bias::from(config.flag("bias", false)?);
    let inner = config.optional_size("ffn_hidden_size")?.unwrap_or(4 * hidden);
    let layer = Layer { sight: Sight::Before, scale: heads.usual_scale(), rotary: 0, feed: feed(inner) };
    let rotary = Rotary::read(config, Usual::WHOLE, heads.width)?;
    Ok(Settings {
        names: Names { first_norm: None, wiring: kind.wiring(), ..NAMES },
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding::default(),
        heads,
        norm: Norm::Layer(config.real("layer_norm_epsilon", 1e-5)?),
        activation: Activation::read(config, "activation", "gelu")?,
        positions: match config.flag("alibi", false)? {
            true => Positions::Slopes(Slopes { rounded: true, scaled: true }),
            false => Positions::Rotary(vec![rotary]),
        },
        token_types: 0,
        layers: vec![layer; config.layers("num_hidden_layers")? as usize],
        biases: Biases { qkv: [bias; 3], out: bias, feed: bias },
        cap: None,
        language: Language::Plain(Plain::new("lm_head")),
        tied: config.flag("tie_word_embeddings", true)?,
        factor_of_parts: 1.0,
    })
}

/// Which of Falcon's layouts a configuration has.
struct Kind {
    newer: bool,
    multi_query: bool,
    parallel: bool,
    /// Each part has a norm of its own.
    two_norms: bool,
}

impl Kind {
    fn read(config: &Config) -> Result<Self> {
        let newer = config.flag("new_decoder_architecture", false)?;
        let multi_query = config.flag("multi_query", true)?;
        let parallel = config.flag("parallel_attn", true)?;
        let norms = config.optional_size("num_ln_in_parallel_attn")?;
        if newer && !parallel {
            return Err(config.refused("parallel_attn", "the newer layout always has parallel parts"));
        }
        if !newer && parallel && norms == Some(2) {
            let message = "two norms are of the newer layout";
            return Err(config.refused("num_ln_in_parallel_attn", message));
        }
        Ok(Self { newer, multi_query, parallel, two_norms: newer && norms.unwrap_or(2) == 2 })
    }

    fn wiring(&self) -> Wiring {
        let Self { newer, parallel, two_norms, .. } = *self;
        let before = |name: Option<&'static str>| Norms { before: name, within: None, behind: None };
        match (newer || parallel, two_norms) {
            (true, true) => Wiring {
                attention: before(Some("ln_attn")),
                feed: before(Some("ln_mlp")),
                residual: Residual::Parallel,
            },
            (true, false) => Wiring {
                attention: before(Some("input_layernorm")),
                feed: before(None),
                residual: Residual::Parallel,
            },
            (false, _) => NAMES.wiring,
        }
    }
}
