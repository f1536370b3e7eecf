//! T5: an encoder and a decoder of text (Raffel and others 2020).

use super::super::activation::Activation;
use super::super::attention::{Heads, Masks, Sides, Sight};
use super::super::blocks::{Blocks, Context, Positioned};
use super::super::config::Config;
use super::super::family::{Family, Network, Writing};
use super::super::heads::{Body, Head, Language, Plain};
use super::super::net::Norm;
use super::super::settings::{
    Biases, Cross, Distances, Embedding, Feed, Gated, Layer, Names, Norms, Positions, Projections, Residual,
    Settings, Wiring,
};
use crate::error::Result;

pub(super) const T5: Family = Family {
    heads: &[
        ("Model", Head::Bare),
        ("ForConditionalGeneration", Head::Language),
        ("WithLMHeadModel", Head::Language),
        ("EncoderModel", Head::Encoder),
    ],
    copies: &[
        ("encoder.embed_tokens.weight", "shared.weight"),
        ("decoder.embed_tokens.weight", "shared.weight"),
        ("lm_head.weight", "shared.weight"),
    ],
    idle: &["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"],
    ..Family::new("t5", "T5", Network::Joined(t5))
};

const ENCODER: Names = Names {
    layer: "block",
    attention: "layer.0.attention",
    projections: Projections::Apart([
        "layer.0.SelfAttention.q",
        "layer.0.SelfAttention.k",
        "layer.0.SelfAttention.v",
    ]),
    out: "layer.0.SelfAttention.o",
    wiring: Wiring {
        attention: Norms::before("layer.0.layer_norm"),
        feed: Norms::before("layer.1.layer_norm"),
        residual: Residual::Stream,
    },
    last_norm: Some("final_layer_norm"),
    ..Names::PLAIN
};

const DECODER: Names = Names {
    cross: Some(Cross {
        norms: Norms::before("layer.1.layer_norm"),
        attention: "layer.1.attention",
        projections: ["layer.1.EncDecAttention.q", "layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"],
        out: "layer.1.EncDecAttention.o",
    }),
    wiring: Wiring { feed: Norms::before("layer.2.layer_norm"), ..ENCODER.wiring },
    ..ENCODER
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Encoder,
    Decoder,
}

/// What the two stacks have in common.
struct Read {
    vocabulary: u64,
    hidden: u64,
    heads: Heads,
    inner: u64,
    norm: Norm,
    activation: Activation,
    gated: bool,
    distances: Distances,
}

impl Read {
    fn new(config: &Config) -> Result<Self> {
        let hidden = config.size("d_model")?;
        let count = config.either_size("num_heads", "num_attention_heads")?;
        let (gated, activation) = activation(config)?;
        let ranges = config.optional_size("relative_attention_num_buckets")?.unwrap_or(32);
        let farthest = config.optional_size("relative_attention_max_distance")?.unwrap_or(128);
        if !(4..=1 << 16).contains(&ranges) || !(ranges..=1 << 16).contains(&farthest) {
            let message = format!("{ranges} ranges up to {farthest} are not supported");
            return Err(config.refused("relative_attention_max_distance", &message));
        }
        let table = "block.0.layer.0.SelfAttention.relative_attention_bias";
        Ok(Self {
            vocabulary: config.size("vocab_size")?,
            hidden,
            heads: Heads::new(hidden, count, count, Some(config.size("d_kv")?))?,
            inner: config.size("d_ff")?,
            norm: Norm::RootMeanSquare(config.real("layer_norm_epsilon", 1e-6)?),
            activation,
            gated,
            distances: Distances { table, ranges, farthest, both_ways: true },
        })
    }

    fn stack(&self, layers: u64, side: Side) -> Settings {
        let [gate, up, down, plain] = match side {
            Side::Encoder => [
                "layer.1.DenseReluDense.wi_0",
                "layer.1.DenseReluDense.wi_1",
                "layer.1.DenseReluDense.wo",
                "layer.1.DenseReluDense.wi",
            ],
            Side::Decoder => [
                "layer.2.DenseReluDense.wi_0",
                "layer.2.DenseReluDense.wi_1",
                "layer.2.DenseReluDense.wo",
                "layer.2.DenseReluDense.wi",
            ],
        };
        let (inner, act) = (self.inner, "activation");
        let feed = match self.gated {
            true => Feed::Gated(Gated { inner, gate, act, up, down }),
            false => Feed::Plain { inner, up: plain, act, down },
        };
        let (names, sight) = match side {
            Side::Encoder => (ENCODER, Sight::Everything),
            Side::Decoder => (DECODER, Sight::Before),
        };
        Settings {
            names,
            vocabulary: self.vocabulary,
            hidden: self.hidden,
            embedding: Embedding::default(),
            heads: self.heads,
            norm: self.norm,
            activation: self.activation,
            positions: Positions::Distances(Distances { both_ways: side == Side::Encoder, ..self.distances }),
            token_types: 0,
            layers: vec![Layer { sight, scale: 1.0, rotary: 0, feed }; layers as usize],
            biases: Biases::NOWHERE,
            cap: None,
            language: Language::Plain(Plain::new("lm_head")),
            tied: true,
            factor_of_parts: 1.0,
        }
    }
}

/// Whether feed-forward parts are gated, and by which function.
fn activation(config: &Config) -> Result<(bool, Activation)> {
    const FIELD: &str = "feed_forward_proj";
    let text = config.text(FIELD, "relu")?;
    let (gated, name) = match text.split_once('-') {
        None => (false, text),
        Some(("gated", name)) => (true, name),
        Some(_) => return Err(config.refused(FIELD, &format!("{text} is not supported"))),
    };
    // What the first files of this kind mean.
    let name = if gated && name == "gelu" { "gelu_new" } else { name };
    config.only("is_gated_act", gated)?;
    config.only("dense_act_fn", name)?;
    Ok((gated, Activation::named(config, FIELD, name)?))
}

fn t5(writing: &mut Writing<'_>) -> Result<()> {
    let Writing { config, net, head, .. } = writing;
    // The encoder's class alone says that it is none.
    config.flag("is_encoder_decoder", true)?;
    config.only("is_decoder", false)?;
    let read = Read::new(config)?;
    let layers = config.either_layers("num_layers", "num_hidden_layers")?;
    let tied = config.flag("tie_word_embeddings", true)?;
    let scaled = config.flag("scale_decoder_outputs", tied)?;
    let decoding = config
        .optional_size("num_decoder_layers")?
        .map_or(Ok(layers), |_| config.layers("num_decoder_layers"))?;
    let tokens = net.tokens("input_ids", "sequence", read.vocabulary);
    let shown = net.mask("attention_mask", "sequence");
    let words = net.embedding("shared", tokens, [read.vocabulary, read.hidden]);
    let encoder = read.stack(layers, Side::Encoder);
    let sides = Sides::same("", "sequence");
    let blocks = Blocks { settings: &encoder, prefix: "encoder.", sides };
    let context = blocks.write(net, Positioned::whole(words), shown)?;
    if matches!(head, Head::Encoder) {
        net.output("last_hidden_state", &context);
        return Ok(());
    }
    let tokens = net.tokens("decoder_input_ids", "decoder_sequence", read.vocabulary);
    let own = net.mask("decoder_attention_mask", "decoder_sequence");
    let words = net.rows("decoder.embedded", "shared.weight", tokens);
    let decoder = read.stack(decoding, Side::Decoder);
    let blocks =
        Blocks { settings: &decoder, prefix: "decoder.", sides: Sides::same("decoder.", "decoder_sequence") };
    let across = Sides { keys: "sequence".into(), ..Sides::same("cross.", "decoder_sequence") };
    let masks = Masks::new(net, across, shown);
    let context = Context { hidden: context, masks };
    let x = blocks.write_over(net, Positioned::whole(words), own, Some(context))?;
    let scale = if scaled { (read.hidden as f64).powf(-0.5) } else { 1.0 };
    let body = Body {
        hidden: read.hidden,
        vocabulary: read.vocabulary,
        table: "shared.weight",
        prefix: "",
        norm: read.norm,
        activation: read.activation,
        tied,
        language: Language::Plain(Plain { scale, ..Plain::new("lm_head") }),
    };
    body.write(config, net, &x, *head)
}
