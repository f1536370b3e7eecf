//! Whisper: an encoder of spectra and a decoder of text (Radford and others 2023).

use serde_json::json;

use super::super::activation::Activation;
use super::super::attention::{Heads, Masks, Sides, Sight};
use super::super::blocks::{Blocks, Context, Positioned};
use super::super::config::Config;
use super::super::family::{Family, Network, Writing};
use super::super::heads::{Body, Head, Language, Plain};
use super::super::net::{Bias, Features, Net, Norm, Windows, limit};
use super::super::settings::{
    Biases, Cross, Embedding, Feed, Layer, Names, Norms, Positions, Projections, Residual, Settings, Wiring,
};
use crate::error::Result;
use crate::ir::InputRule;

pub(super) const WHISPER: Family = Family {
    heads: &[("Model", Head::Bare), ("ForConditionalGeneration", Head::Language)],
    prefix: "model.",
    copies: &[("proj_out.weight", ".decoder.embed_tokens.weight")],
    ..Family::new("whisper", "Whisper", Network::Joined(whisper))
};

const ENCODER: Names = Names {
    words: "embed_tokens",
    layer: "layers",
    attention: "self_attn",
    projections: Projections::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    out: "self_attn.out_proj",
    wiring: Wiring {
        attention: Norms::before("self_attn_layer_norm"),
        feed: Norms::before("final_layer_norm"),
        residual: Residual::Stream,
    },
    last_norm: Some("layer_norm"),
    ..Names::PLAIN
};

const DECODER: Names = Names {
    cross: Some(Cross {
        norms: Norms::before("encoder_attn_layer_norm"),
        attention: "encoder_attn",
        projections: ["encoder_attn.q_proj", "encoder_attn.k_proj", "encoder_attn.v_proj"],
        out: "encoder_attn.out_proj",
    }),
    ..ENCODER
};

/// The fields of one stack.
struct Fields {
    layers: &'static str,
    heads: &'static str,
    inner: &'static str,
}

fn stack(config: &Config, fields: &Fields, names: Names, sight: Sight) -> Result<Settings> {
    let hidden = config.size("d_model")?;
    let count = config.size(fields.heads)?;
    let heads = Heads::new(hidden, count, count, None)?;
    let feed =
        Feed::Plain { inner: config.size(fields.inner)?, up: "fc1", act: "activation_fn", down: "fc2" };
    let layer = Layer { sight, scale: heads.usual_scale(), rotary: 0, feed };
    Ok(Settings {
        names,
        vocabulary: config.size("vocab_size")?,
        hidden,
        embedding: Embedding::default(),
        heads,
        // The library gives its norms no other.
        norm: Norm::Layer(1e-5),
        activation: Activation::read(config, "activation_function", "gelu")?,
        positions: Positions::Rotary(Vec::new()),
        token_types: 0,
        layers: vec![layer; config.layers(fields.layers)? as usize],
        biases: Biases { qkv: [Bias::With, Bias::Without, Bias::With], ..Biases::EVERYWHERE },
        cap: None,
        language: Language::Plain(Plain::new("proj_out")),
        tied: config.flag("tie_word_embeddings", true)?,
        factor_of_parts: 1.0,
    })
}

/// The spectra as rows, `[batch, positions, hidden]`.
fn heard(config: &Config, net: &mut Net, prefix: &str, hidden: u64) -> Result<(String, u64)> {
    let bands = config.size("num_mel_bins")?;
    let positions = config.size("max_source_positions")?;
    let ty = format!("f32[batch, {bands}, {}]", positions.saturating_mul(2));
    net.input("input_features", &ty, InputRule::default());
    let mut x = "input_features".to_owned();
    for (layer, from, stride) in [("conv1", bands, 1), ("conv2", hidden, 2)] {
        let window = Windows {
            features: Features { from, to: hidden },
            kernel: vec![3],
            strides: vec![stride],
            padding: 1,
            bias: Bias::With,
        };
        let name = format!("{prefix}{layer}");
        x = net.convolution(&name, &x, &window);
        x = net.node(&format!("{name}.function"), "gelu", &[&x], json!({}));
    }
    let rows = net.node(&format!("{prefix}rows"), "transpose", &[&x], json!({"perm": [0, 2, 1]}));
    let table = net.param(&format!("{prefix}embed_positions.weight"), &[positions, hidden], "normal");
    Ok((net.sum(&format!("{prefix}placed"), &rows, &table), positions))
}

fn whisper(writing: &mut Writing<'_>) -> Result<()> {
    let Writing { config, net, head, prefix } = writing;
    config.only("is_encoder_decoder", true)?;
    // Read by no class that is supported: classifiers of sounds, masks of training, sums over layers.
    for field in UNREAD {
        config.get(field);
    }
    let fields =
        Fields { layers: "encoder_layers", heads: "encoder_attention_heads", inner: "encoder_ffn_dim" };
    let encoder = stack(config, &fields, ENCODER, Sight::Everything)?;
    let under = format!("{prefix}encoder.");
    let (rows, positions) = heard(config, net, &under, encoder.hidden)?;
    let blocks = Blocks { settings: &encoder, prefix: &under, sides: Sides::same("", positions) };
    let hidden = blocks.write(net, Positioned::whole(rows), None)?;
    let fields =
        Fields { layers: "decoder_layers", heads: "decoder_attention_heads", inner: "decoder_ffn_dim" };
    let decoder = stack(config, &fields, DECODER, Sight::Before)?;
    let under = format!("{prefix}decoder.");
    let x = spoken(config, net, &under, &decoder);
    let shown = net.mask("decoder_attention_mask", "decoder_sequence");
    let sides = Sides::same("decoder.", "decoder_sequence");
    let blocks = Blocks { settings: &decoder, prefix: &under, sides };
    let across = Sides { keys: json!(positions), ..Sides::same("cross.", "decoder_sequence") };
    let masks = Masks::new(net, across, None);
    let context = Some(Context { hidden, masks });
    let x = blocks.write_over(net, Positioned::whole(x?), shown, context)?;
    let body = Body {
        hidden: decoder.hidden,
        vocabulary: decoder.vocabulary,
        table: &format!("{under}embed_tokens.weight"),
        prefix,
        norm: decoder.norm,
        activation: decoder.activation,
        tied: decoder.tied,
        language: decoder.language,
    };
    body.write(config, net, &x, *head)
}

/// The decoder's tokens as rows, with their positions.
fn spoken(config: &Config, net: &mut Net, under: &str, decoder: &Settings) -> Result<String> {
    let tokens = net.tokens("decoder_input_ids", "decoder_sequence", decoder.vocabulary);
    let words = net.embedding(&format!("{under}embed_tokens"), tokens, [decoder.vocabulary, decoder.hidden]);
    let field = "max_target_positions";
    let count = config.size(field)?;
    net.at_most("decoder_sequence", limit(field, count));
    let ids = net.node("decoder.positions", "iota", &[], json!({"type": "i64[decoder_sequence]"}));
    let places = net.embedding(&format!("{under}embed_positions"), &ids, [count, decoder.hidden]);
    Ok(net.sum(&format!("{under}placed"), &words, &places))
}

const UNREAD: [&str; 13] = [
    "apply_spec_augment",
    "classifier_proj_size",
    "forced_decoder_ids",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "median_filter_width",
    "num_hidden_layers",
    "scale_embedding",
    "use_weighted_layer_sum",
];
