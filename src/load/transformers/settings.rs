//! What a configuration says of its blocks, family by family: the fields that the forward pass
//! depends on, with the defaults of the library's classes.

use super::activation::Activation;
use super::attention::{Heads, Sight};
use super::config::Config;
use super::net::{Bias, Norm};
use super::rotary::Rotary;
use crate::error::Result;

/// How a family's blocks are set.
pub(super) struct Settings {
    pub(super) vocabulary: u64,
    pub(super) hidden: u64,
    pub(super) inner: u64,
    pub(super) heads: Heads,
    pub(super) norm: Norm,
    pub(super) activation: Activation,
    pub(super) positions: Positions,
    /// Rows of a table of token types.
    pub(super) token_types: u64,
    /// One for each layer.
    pub(super) layers: Vec<Layer>,
    pub(super) biases: Biases,
    /// The vocabulary is scored by the table of embeddings.
    pub(super) tied: bool,
}

/// What differs from layer to layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layer {
    pub(super) sight: Sight,
    /// Factor of the scores.
    pub(super) scale: f64,
}

/// Which linear layers add a bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Biases {
    pub(super) qkv: Bias,
    pub(super) out: Bias,
    pub(super) feed: Bias,
}

/// How positions enter.
pub(super) enum Positions {
    Learnt {
        /// Rows of the table.
        count: u64,
        /// The field that says so.
        field: &'static str,
    },
    Rotary(Rotary),
}

impl Settings {
    /// Reads a configuration of a family that is known. Errors: fields that are missing, contradict one
    /// another, or ask for what is not supported.
    pub(super) fn read(config: &Config, family: &str) -> Result<Self> {
        config.only("is_encoder_decoder", false)?;
        config.only("add_cross_attention", false)?;
        config.unset("pruned_heads", "heads that were pruned are not supported")?;
        config.unset(
            "quantization_config",
            "weights of few bits are not supported yet; only those in f32, f16 and bf16 are",
        )?;
        config.unset("per_layer_config", "layers that are configured one by one are not supported")?;
        match family {
            "gpt2" => gpt2(config),
            "bert" => bert(config),
            "distilbert" => distilbert(config),
            _ => llama(config, family),
        }
    }
}

const EVERYWHERE: Biases = Biases { qkv: Bias::With, out: Bias::With, feed: Bias::With };

fn gpt2(config: &Config) -> Result<Settings> {
    let hidden = config.size("n_embd")?;
    let count = config.size("n_head")?;
    let heads = Heads::new(hidden, count, count, None)?;
    // Changes the order in which halves are scaled, and in f32 nothing.
    config.flag("reorder_and_upcast_attn", false)?;
    // This family decodes anyway.
    config.flag("is_decoder", false)?;
    let scale =
        if config.flag("scale_attn_weights", true)? { 1.0 / (heads.width as f64).sqrt() } else { 1.0 };
    let by_layer = config.flag("scale_attn_by_inverse_layer_idx", false)?;
    let layer = |number: u64| {
        let divisor = if by_layer { (number + 1) as f64 } else { 1.0 };
        Layer { sight: Sight::Before, scale: scale / divisor }
    };
    Ok(Settings {
        vocabulary: config.size("vocab_size")?,
        hidden,
        inner: config.optional_size("n_inner")?.unwrap_or(4 * hidden),
        heads,
        norm: Norm::Layer(config.real("layer_norm_epsilon", 1e-5)?),
        activation: Activation::read(config, "activation_function", "gelu_new")?,
        positions: Positions::Learnt { count: config.size("n_positions")?, field: "n_positions" },
        token_types: 0,
        layers: (0..config.layers("n_layer")?).map(layer).collect(),
        biases: EVERYWHERE,
        tied: config.flag("tie_word_embeddings", true)?,
    })
}

fn llama(config: &Config, family: &str) -> Result<Settings> {
    let hidden = config.size("hidden_size")?;
    let count = config.size("num_attention_heads")?;
    // Left out is not null: the classes' own defaults differ.
    let usual = match family {
        "mistral" if !config.has("num_key_value_heads") => 8,
        "qwen2" if !config.has("num_key_value_heads") => 32,
        _ => count,
    };
    let shared = config.optional_size("num_key_value_heads")?.unwrap_or(usual);
    let heads = Heads::new(hidden, count, shared, config.optional_size("head_dim")?)?;
    // This family decodes anyway.
    config.flag("is_decoder", false)?;
    let scale = 1.0 / (heads.width as f64).sqrt();
    let layers = config.layers("num_hidden_layers")?;
    let sights = sights(config, family, layers)?;
    Ok(Settings {
        vocabulary: config.size("vocab_size")?,
        hidden,
        inner: config.size("intermediate_size")?,
        heads,
        norm: Norm::RootMeanSquare(config.real("rms_norm_eps", 1e-6)?),
        activation: Activation::read(config, "hidden_act", "silu")?,
        positions: Positions::Rotary(Rotary::read(config)?),
        token_types: 0,
        layers: sights.into_iter().map(|sight| Layer { sight, scale }).collect(),
        biases: biases(config, family)?,
        tied: config.flag("tie_word_embeddings", false)?,
    })
}

/// Llama says which layers have biases; the others of its kind are fixed.
fn biases(config: &Config, family: &str) -> Result<Biases> {
    if family == "llama" {
        let attention = Bias::from(config.flag("attention_bias", false)?);
        let feed = Bias::from(config.flag("mlp_bias", false)?);
        return Ok(Biases { qkv: attention, out: attention, feed });
    }
    let qkv = family == "qwen2";
    config.only("attention_bias", qkv)?;
    config.only("mlp_bias", false)?;
    Ok(Biases { qkv: Bias::from(qkv), out: Bias::Without, feed: Bias::Without })
}

/// Which keys each layer's rows meet.
fn sights(config: &Config, family: &str, layers: u64) -> Result<Vec<Sight>> {
    let window = match config.optional_size("sliding_window")? {
        None if !config.has("sliding_window") => Some(4096),
        window => window,
    };
    let all = |sight: Sight| (0..layers).map(|_| sight).collect();
    match (family, window) {
        ("mistral", Some(window)) => return Ok(all(Sight::Window(window))),
        ("qwen2", _) => {}
        // Llama has no windows; a field that asks for one is not passed over.
        ("llama", Some(_)) if config.get("sliding_window").is_some() => {
            return Err(config.refused("sliding_window", "this family attends to everything before"));
        }
        _ => return Ok(all(Sight::Before)),
    }
    let used = config.flag("use_sliding_window", false)?;
    let from = config.whole("max_window_layers", 28)?;
    let near = window.filter(|_| used).map_or(Sight::Before, Sight::Window);
    let Some(types) = config.get("layer_types") else {
        return Ok((0..layers).map(|layer| if layer >= from { near } else { Sight::Before }).collect());
    };
    let types = types.as_array().filter(|types| types.len() as u64 == layers);
    let types = types.ok_or_else(|| config.refused("layer_types", "expected one for each layer"))?;
    let sight = |name: &serde_json::Value| match name.as_str() {
        Some("full_attention") => Ok(Sight::Before),
        Some("sliding_attention") if near != Sight::Before => Ok(near),
        Some("sliding_attention") => {
            Err(config.refused("layer_types", "a layer has a window, which sliding_window does not give"))
        }
        _ => Err(config.refused("layer_types", &format!("{name} is not supported"))),
    };
    types.iter().map(sight).collect()
}

fn bert(config: &Config) -> Result<Settings> {
    let hidden = config.size("hidden_size")?;
    let count = config.size("num_attention_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    config.only("position_embedding_type", "absolute")?;
    let decodes = config.flag("is_decoder", false)?;
    let sight = if decodes { Sight::Before } else { Sight::Everything };
    let scale = 1.0 / (heads.width as f64).sqrt();
    let layers = config.layers("num_hidden_layers")?;
    Ok(Settings {
        vocabulary: config.size("vocab_size")?,
        hidden,
        inner: config.size("intermediate_size")?,
        heads,
        norm: Norm::Layer(config.real("layer_norm_eps", 1e-12)?),
        activation: Activation::read(config, "hidden_act", "gelu")?,
        positions: learnt(config)?,
        token_types: config.optional_size("type_vocab_size")?.unwrap_or(2),
        layers: (0..layers).map(|_| Layer { sight, scale }).collect(),
        biases: EVERYWHERE,
        tied: config.flag("tie_word_embeddings", true)?,
    })
}

fn distilbert(config: &Config) -> Result<Settings> {
    let hidden = config.size("dim")?;
    let count = config.size("n_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    config.only("is_decoder", false)?;
    config.only("layer_norm_eps", 1e-12)?;
    let layer = Layer { sight: Sight::Everything, scale: 1.0 / (heads.width as f64).sqrt() };
    let layers = config.layers("n_layers")?;
    Ok(Settings {
        vocabulary: config.size("vocab_size")?,
        hidden,
        inner: config.size("hidden_dim")?,
        heads,
        norm: Norm::Layer(1e-12),
        activation: Activation::read(config, "activation", "gelu")?,
        positions: learnt(config)?,
        token_types: 0,
        layers: (0..layers).map(|_| layer).collect(),
        biases: EVERYWHERE,
        tied: config.flag("tie_word_embeddings", true)?,
    })
}

fn learnt(config: &Config) -> Result<Positions> {
    let field = "max_position_embeddings";
    Ok(Positions::Learnt { count: config.size(field)?, field })
}
