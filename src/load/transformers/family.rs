//! The families of architectures that are read, as data: what their classes and parameters are called.

use super::heads::{First, Head, Labels, Language, Pooled, Spans};
use super::net::Order;

/// What a family calls its classes and parameters.
#[derive(Debug)]
pub(super) struct Family {
    /// The field `model_type`.
    pub(super) name: &'static str,
    /// What its classes begin with.
    pub(super) class: &'static str,
    /// What follows that, and the head that it means.
    pub(super) heads: &'static [(&'static str, Head)],
    /// The head of a configuration without a class.
    pub(super) usual: Head,
    /// Stands before the blocks' parameters where there is a head.
    pub(super) prefix: &'static str,
    /// The same in one class of older files: its ending, and the prefix.
    pub(super) other_prefix: Option<(&'static str, &'static str)>,
    pub(super) names: Names,
    pub(super) language: Language,
    /// Arrays that hold the table of embeddings, or the bias of the vocabulary, a second time where
    /// layers are tied: the array, and the parameter behind the prefix where it begins with a dot.
    pub(super) copies: &'static [(&'static str, &'static str)],
    /// Arrays that a model whose layers are not tied holds and does not read.
    pub(super) idle: &'static [&'static str],
}

/// Parameters of the blocks. Those of a layer stand behind its number.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) words: &'static str,
    /// Of positions that are learnt.
    pub(super) positions: Option<&'static str>,
    pub(super) token_types: TokenTypes,
    /// Behind the embeddings.
    pub(super) first_norm: Option<&'static str>,
    pub(super) layer: &'static str,
    pub(super) attention: &'static str,
    pub(super) projections: Projections,
    pub(super) out: &'static str,
    /// Of attention and of the feed-forward part.
    pub(super) norms: [&'static str; 2],
    pub(super) placed: NormPlace,
    pub(super) feed: Feed,
    /// Behind the blocks.
    pub(super) last_norm: Option<&'static str>,
    pub(super) order: Order,
}

/// What becomes of `token_type_ids`.
#[derive(Clone, Copy, Debug)]
pub(super) enum TokenTypes {
    /// They are no input.
    None,
    /// Rows of a table, the first where they are absent.
    Table(&'static str),
    /// Rows of the words' table, none where they are absent.
    Words,
}

/// How queries, keys and values are projected.
#[derive(Clone, Copy, Debug)]
pub(super) enum Projections {
    /// By one layer, one after the other.
    Joined(&'static str),
    Apart([&'static str; 3]),
}

/// Where the norms stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NormPlace {
    /// Before what is added to the residual stream.
    Before,
    /// Behind the sum.
    Behind,
}

/// The feed-forward part.
#[derive(Clone, Copy, Debug)]
pub(super) enum Feed {
    Plain {
        up: &'static str,
        act: &'static str,
        down: &'static str,
    },
    /// The function of one layer's result times another's.
    Gated {
        gate: &'static str,
        act: &'static str,
        up: &'static str,
        down: &'static str,
    },
}

/// The family that a configuration names.
pub(super) fn of(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == model_type)
}

pub(super) const FAMILIES: &[Family] = &[GPT2, LLAMA, MISTRAL, QWEN2, BERT, DISTILBERT];

const GPT2: Family = Family {
    name: "gpt2",
    class: "GPT2",
    heads: &[
        ("Model", Head::Bare),
        ("LMHeadModel", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("classifier")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Two)),
    ],
    usual: Head::Language,
    prefix: "transformer.",
    other_prefix: None,
    names: Names {
        words: "wte",
        positions: Some("wpe"),
        token_types: TokenTypes::Words,
        first_norm: None,
        layer: "h",
        attention: "attn",
        projections: Projections::Joined("attn.c_attn"),
        out: "attn.c_proj",
        norms: ["ln_1", "ln_2"],
        placed: NormPlace::Before,
        feed: Feed::Plain { up: "mlp.c_fc", act: "mlp.act", down: "mlp.c_proj" },
        last_norm: Some("ln_f"),
        order: Order::InOut,
    },
    language: Language::Plain { layer: "lm_head" },
    copies: &[("lm_head.weight", ".wte.weight")],
    idle: &[],
};

const LLAMA: Family = Family {
    name: "llama",
    class: "Llama",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("score")),
        ("ForQuestionAnswering", Head::Spans("qa_outputs", Spans::Two)),
    ],
    usual: Head::Language,
    prefix: "model.",
    other_prefix: Some(("ForQuestionAnswering", "transformer.")),
    names: Names {
        words: "embed_tokens",
        positions: None,
        token_types: TokenTypes::None,
        first_norm: None,
        layer: "layers",
        attention: "self_attn",
        projections: Projections::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        out: "self_attn.o_proj",
        norms: ["input_layernorm", "post_attention_layernorm"],
        placed: NormPlace::Before,
        feed: Feed::Gated {
            gate: "mlp.gate_proj",
            act: "mlp.act_fn",
            up: "mlp.up_proj",
            down: "mlp.down_proj",
        },
        last_norm: Some("norm"),
        order: Order::OutIn,
    },
    language: Language::Plain { layer: "lm_head" },
    copies: &[("lm_head.weight", ".embed_tokens.weight")],
    idle: &[],
};

const MISTRAL: Family = Family { name: "mistral", class: "Mistral", other_prefix: None, ..LLAMA };

const QWEN2: Family = Family { name: "qwen2", class: "Qwen2", ..LLAMA };

const BERT: Family = Family {
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
    prefix: "bert.",
    other_prefix: None,
    names: Names {
        words: "embeddings.word_embeddings",
        positions: Some("embeddings.position_embeddings"),
        token_types: TokenTypes::Table("embeddings.token_type_embeddings"),
        first_norm: Some("embeddings.LayerNorm"),
        layer: "encoder.layer",
        attention: "attention",
        projections: Projections::Apart([
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
        ]),
        out: "attention.output.dense",
        norms: ["attention.output.LayerNorm", "output.LayerNorm"],
        placed: NormPlace::Behind,
        feed: Feed::Plain { up: "intermediate.dense", act: "activation", down: "output.dense" },
        last_norm: None,
        order: Order::OutIn,
    },
    language: Language::Transformed {
        dense: "cls.predictions.transform.dense",
        norm: "cls.predictions.transform.LayerNorm",
        projector: "cls.predictions.decoder",
        bias: "cls.predictions.bias",
    },
    copies: &[
        ("cls.predictions.decoder.weight", ".embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
    idle: &["cls.predictions.bias"],
};

const POOLED: First = First {
    pooler: ".pooler.dense",
    activation: Pooled::Tanh,
    classifier: "classifier",
    labels: Labels::Named,
};

const DISTILBERT: Family = Family {
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
    prefix: "distilbert.",
    names: Names {
        token_types: TokenTypes::None,
        layer: "transformer.layer",
        projections: Projections::Apart(["attention.q_lin", "attention.k_lin", "attention.v_lin"]),
        out: "attention.out_lin",
        norms: ["sa_layer_norm", "output_layer_norm"],
        feed: Feed::Plain { up: "ffn.lin1", act: "activation", down: "ffn.lin2" },
        ..BERT.names
    },
    language: Language::Transformed {
        dense: "vocab_transform",
        norm: "vocab_layer_norm",
        projector: "vocab_projector",
        bias: "vocab_projector.bias",
    },
    copies: &[("vocab_projector.weight", ".embeddings.word_embeddings.weight")],
    idle: &[],
    ..BERT
};
