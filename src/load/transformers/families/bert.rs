//! BERT, RoBERTa and DistilBERT: encoders with norms behind their parts.

use super::super::activation::Activation;
use super::super::attention::{Heads, Sight};
use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::{First, Head, Labels, Language, Pooled, Spans};
use super::super::net::Norm;
use super::super::settings::{
    Biases, Counted, Embedding, Feed, Layer, Learnt, Names, Norms, Positions, Projections, Residual,
    Settings, TokenTypes, Wiring,
};
use crate::error::Result;

pub(super) const BERT: Family = Family {
    name: "bert",
    class: "Bert",
    heads: &[
        ("Model", Head::Bare),
        ("LMHeadModel", Head::Language),
        ("ForMaskedLM", Head::Language),
        (
            "ForNextSentencePrediction",
            Head::First(First { classifier: "cls.seq_relationship", labels: Labels::Two, ..POOLED }),
        ),
        ("ForSequenceClassification", Head::First(POOLED)),
        ("ForTokenClassification", Head::Tokens("classifier")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Labels)),
    ],
    usual: Head::Language,
    network: Network::Text(bert),
    prefix: "bert.",
    bare_prefix: "",
    other_prefix: None,
    copies: &[
        ("cls.predictions.decoder.weight", ".embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
    idle: &["cls.predictions.bias"],
    bare: POOLER,
    renamed: &[],
};

/// A layer behind the first token, which gives no output of ours.
pub(super) const POOLER: &[&str] = &["pooler.dense.weight", "pooler.dense.bias"];

const POOLED: First = First {
    pooler: ".pooler.dense",
    activation: Pooled::Tanh,
    classifier: "classifier",
    labels: Labels::Named,
};

const BERT_NAMES: Names = Names {
    words: "embeddings.word_embeddings",
    positions: Some("embeddings.position_embeddings"),
    token_types: TokenTypes::Table("embeddings.token_type_embeddings"),
    first_norm: Some("embeddings.LayerNorm"),
    layer: "encoder.layer",
    attention: "attention",
    projections: Projections::Apart(["attention.self.query", "attention.self.key", "attention.self.value"]),
    out: "attention.output.dense",
    wiring: Wiring {
        attention: Norms::behind("attention.output.LayerNorm"),
        feed: Norms::behind("output.LayerNorm"),
        residual: Residual::Stream,
    },
    ..Names::PLAIN
};

fn bert(config: &Config) -> Result<Settings> {
    let language = Language::Transformed {
        dense: "cls.predictions.transform.dense",
        norm: "cls.predictions.transform.LayerNorm",
        projector: "cls.predictions.decoder",
        bias: "cls.predictions.bias",
        activation: None,
    };
    encoder(config, Counted::Place, language)
}

pub(super) const ROBERTA: Family = Family {
    name: "roberta",
    class: "Roberta",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForMaskedLM", Head::Language),
        (
            "ForSequenceClassification",
            Head::First(First { pooler: "classifier.dense", classifier: "classifier.out_proj", ..POOLED }),
        ),
        ("ForTokenClassification", Head::Tokens("classifier")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Labels)),
    ],
    network: Network::Text(roberta),
    prefix: "roberta.",
    copies: &[
        ("lm_head.decoder.weight", ".embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ],
    idle: &["lm_head.bias"],
    ..BERT
};

/// The same network in other languages.
pub(super) const XLM_ROBERTA: Family = Family { name: "xlm-roberta", class: "XLMRoberta", ..ROBERTA };

pub(super) const CAMEMBERT: Family = Family { name: "camembert", class: "Camembert", ..ROBERTA };

fn roberta(config: &Config) -> Result<Settings> {
    let (padding, words) = (config.whole("pad_token_id", 1)?, config.size("vocab_size")?);
    // Positions are counted from it.
    if padding >= words {
        return Err(config.fault("pad_token_id", format!("{padding} is no token, there are {words}")));
    }
    let language = Language::Transformed {
        dense: "lm_head.dense",
        norm: "lm_head.layer_norm",
        projector: "lm_head.decoder",
        bias: "lm_head.bias",
        activation: Some("gelu"),
    };
    encoder(config, Counted::Tokens { padding: padding as i64 }, language)
}

fn encoder(config: &Config, counted: Counted, language: Language) -> Result<Settings> {
    let hidden = config.size("hidden_size")?;
    let count = config.size("num_attention_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    config.only("position_embedding_type", "absolute")?;
    let decodes = config.flag("is_decoder", false)?;
    let inner = config.size("intermediate_size")?;
    let layer = Layer {
        sight: if decodes { Sight::Before } else { Sight::Everything },
        scale: heads.usual_scale(),
        rotary: 0,
        feed: Feed::Plain { inner, up: "intermediate.dense", act: "activation", down: "output.dense" },
    };
    Ok(Settings {
        names: BERT_NAMES,
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding::default(),
        heads,
        norm: Norm::Layer(config.real("layer_norm_eps", 1e-12)?),
        activation: Activation::read(config, "hidden_act", "gelu")?,
        positions: learnt(config, counted)?,
        token_types: config.optional_size("type_vocab_size")?.unwrap_or(2),
        layers: vec![layer; config.layers("num_hidden_layers")? as usize],
        biases: Biases::EVERYWHERE,
        cap: None,
        language,
        tied: config.flag("tie_word_embeddings", true)?,
        factor_of_parts: 1.0,
    })
}

fn learnt(config: &Config, counted: Counted) -> Result<Positions> {
    let field = "max_position_embeddings";
    Ok(Positions::Learnt(Learnt { count: config.size(field)?, field, skipped: 0, counted }))
}

pub(super) const DISTILBERT: Family = Family {
    name: "distilbert",
    class: "DistilBert",
    heads: &[
        ("Model", Head::Bare),
        ("ForMaskedLM", Head::Language),
        (
            "ForSequenceClassification",
            Head::First(First { pooler: "pre_classifier", activation: Pooled::Relu, ..POOLED }),
        ),
        ("ForTokenClassification", Head::Tokens("classifier")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Labels)),
    ],
    network: Network::Text(distilbert),
    prefix: "distilbert.",
    copies: &[("vocab_projector.weight", ".embeddings.word_embeddings.weight")],
    idle: &[],
    bare: &[],
    ..BERT
};

fn distilbert(config: &Config) -> Result<Settings> {
    let hidden = config.size("dim")?;
    let count = config.size("n_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    config.only("is_decoder", false)?;
    config.only("layer_norm_eps", 1e-12)?;
    let inner = config.size("hidden_dim")?;
    let layer = Layer {
        sight: Sight::Everything,
        scale: heads.usual_scale(),
        rotary: 0,
        feed: Feed::Plain { inner, up: "ffn.lin1", act: "activation", down: "ffn.lin2" },
    };
    Ok(Settings {
        names: Names {
            token_types: TokenTypes::None,
            layer: "transformer.layer",
            projections: Projections::Apart(["attention.q_lin", "attention.k_lin", "attention.v_lin"]),
            out: "attention.out_lin",
            cross: None,
            wiring: Wiring {
                attention: Norms::behind("sa_layer_norm"),
                feed: Norms::behind("output_layer_norm"),
                residual: Residual::Stream,
            },
            ..BERT_NAMES
        },
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding::default(),
        heads,
        norm: Norm::Layer(1e-12),
        activation: Activation::read(config, "activation", "gelu")?,
        positions: learnt(config, Counted::Place)?,
        token_types: 0,
        layers: vec![layer; config.layers("n_layers")? as usize],
        biases: Biases::EVERYWHERE,
        cap: None,
        language: Language::Transformed {
            dense: "vocab_transform",
            norm: "vocab_layer_norm",
            projector: "vocab_projector",
            bias: "vocab_projector.bias",
            activation: None,
        },
        tied: config.flag("tie_word_embeddings", true)?,
        factor_of_parts: 1.0,
    })
}
