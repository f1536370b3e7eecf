//! A transformers `config.json`: the architectures GPT-2, Llama (and Mistral, Qwen 2, which are laid out
//! alike), BERT and DistilBERT, with or without their language-model head.
//!
//! A configuration holds sizes only; the network is written down in the native format, with the names
//! that the library gives parameters, so that `model.safetensors` fits. Inputs are `input_ids`
//! `[batch, sequence]`; nothing is padded, so no attention mask is taken, token types are all 0. In
//! evaluation there is no dropout.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::json::json_error;
use super::{LoadOptions, native};
use crate::error::{Error, Report, Result};
use crate::ir::Graph;

/// More layers, or larger sizes, are no configuration.
const MOST_LAYERS: u64 = 10_000;
const LARGEST: u64 = 1 << 31;

/// Reads a configuration. O(layers).
///
/// Errors: malformed JSON, an architecture or setting that is not supported, sizes that contradict
/// one another.
pub(super) fn load(bytes: &[u8], path: Option<&Path>, options: &LoadOptions) -> Result<Graph> {
    let config: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| json_error(&error))?;
    let config = Config(config);
    let mut net = Net::default();
    let family = config.text("model_type", "")?;
    match family {
        "gpt2" => gpt2(&config, &mut net)?,
        "llama" | "mistral" | "qwen2" => llama(&config, family, &mut net)?,
        "bert" => encoder(&config, &BERT, &mut net)?,
        "distilbert" => encoder(&config, &DISTILBERT, &mut net)?,
        other => {
            return Err(unsupported("model_type", &format!("{other} is not supported"))
                .with_help("gpt2, llama, mistral, qwen2, bert and distilbert are; others as ONNX"));
        }
    }
    let text =
        serde_json::to_vec(&net.document(family)).map_err(|error| Error::Internal(error.to_string()))?;
    native::load(&text, path, options)
}

fn unsupported(place: &str, message: &str) -> Error {
    Error::Unsupported(Report::new(place, message))
}

/// The fields of a configuration.
struct Config(Map<String, Value>);

impl Config {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A size, at least 1. Error: it is missing, no whole number, or too large.
    fn size(&self, name: &str) -> Result<u64> {
        let value = self.get(name).ok_or_else(|| Error::model(name, "is missing"))?;
        let size = value.as_u64().filter(|size| (1..=LARGEST).contains(size));
        size.ok_or_else(|| Error::model(name, format!("{value} is no size")))
    }

    fn size_or(&self, name: &str, default: u64) -> Result<u64> {
        if self.get(name).is_some() { self.size(name) } else { Ok(default) }
    }

    fn layers(&self, name: &str) -> Result<u64> {
        match self.size(name)? {
            layers if layers <= MOST_LAYERS => Ok(layers),
            layers => Err(Error::model(name, format!("{layers} layers are too many"))),
        }
    }

    fn real(&self, name: &str, default: f64) -> Result<f64> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| Error::model(name, format!("{value} is no number"))),
        }
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    fn text(&self, name: &str, default: &'static str) -> Result<&str> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => value.as_str().ok_or_else(|| Error::model(name, format!("{value} is no text"))),
        }
    }

    /// The function of the feed-forward layers.
    fn activation(&self, name: &str, default: &'static str) -> Result<&'static str> {
        Ok(match self.text(name, default)? {
            "gelu" => "gelu",
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => "gelu_tanh",
            "relu" => "relu",
            "silu" | "swish" => "silu",
            "tanh" => "tanh",
            other => return Err(unsupported(name, &format!("{other} is not supported"))),
        })
    }

    /// Whether there is a language-model head; models without one have no prefix before their names.
    fn has_head(&self) -> Result<bool> {
        let first = self.get("architectures").and_then(|all| all.as_array()?.first()?.as_str());
        match first {
            None => Ok(true),
            Some(name)
                if ["LMHeadModel", "ForCausalLM", "ForMaskedLM"].iter().any(|end| name.ends_with(end)) =>
            {
                Ok(true)
            }
            Some(name) if name.ends_with("Model") => Ok(false),
            Some(name) => Err(unsupported("architectures", &format!("{name} is not supported"))
                .with_help("language models and bare models are; others as ONNX")),
        }
    }
}

/// Sizes of attention.
struct Heads {
    heads: u64,
    /// Heads of keys and values; each serves several of queries where there are fewer.
    shared: u64,
    /// Numbers of one head.
    width: u64,
}

impl Heads {
    fn new(hidden: u64, heads: u64, shared: u64, width: Option<u64>) -> Result<Self> {
        let width = width.unwrap_or(hidden / heads);
        if !heads.is_multiple_of(shared) || width == 0 || width.saturating_mul(heads) > LARGEST {
            let message = format!("{heads} heads, {shared} of keys and values, do not divide {hidden}");
            return Err(Error::model("num_attention_heads", message));
        }
        Ok(Self { heads, shared, width })
    }
}

/// A native document that is being written.
#[derive(Default)]
struct Net {
    params: Vec<Value>,
    constants: Vec<Value>,
    nodes: Vec<Value>,
    output: Option<(&'static str, String)>,
}

impl Net {
    fn document(self, name: &str) -> Value {
        let outputs: Vec<Value> =
            self.output.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        json!({
            "partition_model": 1, "name": name, "dims": ["batch", "sequence"],
            "inputs": [{"name": "input_ids", "type": "i64[batch, sequence]"}],
            "params": self.params, "constants": self.constants, "nodes": self.nodes, "outputs": outputs,
        })
    }

    fn param(&mut self, name: &str, dims: &[u64], init: &str) -> String {
        let sizes: Vec<String> = dims.iter().map(u64::to_string).collect();
        let init = if init == "normal" { json!({"kind": "normal", "deviation": 0.02}) } else { json!(init) };
        self.params.push(json!({"name": name, "type": format!("f32[{}]", sizes.join(", ")), "init": init}));
        name.to_owned()
    }

    fn scalar(&mut self, name: &str, value: f64) -> String {
        self.constants.push(json!({"name": name, "type": "f32[]", "values": value}));
        name.to_owned()
    }

    fn node(&mut self, name: &str, op: &str, inputs: &[&str], attributes: Value) -> String {
        let mut node = json!({"name": name, "op": op, "inputs": inputs});
        if let (Some(node), Value::Object(attributes)) = (node.as_object_mut(), attributes) {
            node.extend(attributes);
        }
        self.nodes.push(node);
        name.to_owned()
    }

    /// A linear layer as PyTorch holds it, `[out, in]`, or with `turned` as `[in, out]`.
    fn linear(&mut self, name: &str, x: &str, (from, to): (u64, u64), bias: bool, turned: bool) -> String {
        let dims = if turned { [from, to] } else { [to, from] };
        let mut inputs = vec![x.to_owned(), self.param(&format!("{name}.weight"), &dims, "normal")];
        if bias {
            inputs.push(self.param(&format!("{name}.bias"), &[to], "zeros"));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        self.node(name, "dense", &inputs, json!({"transpose_right": !turned}))
    }

    fn layer_norm(&mut self, name: &str, x: &str, size: u64, epsilon: f64) -> String {
        let scale = self.param(&format!("{name}.weight"), &[size], "ones");
        let shift = self.param(&format!("{name}.bias"), &[size], "zeros");
        self.node(name, "layer_norm", &[x, &scale, &shift], json!({"epsilon": epsilon}))
    }

    fn rms_norm(&mut self, name: &str, x: &str, size: u64, epsilon: f64) -> String {
        let scale = self.param(&format!("{name}.weight"), &[size], "ones");
        self.node(name, "rms_norm", &[x, &scale], json!({"epsilon": epsilon}))
    }

    fn embedding(&mut self, name: &str, ids: &str, dims: [u64; 2]) -> String {
        let table = self.param(&format!("{name}.weight"), &dims, "normal");
        self.node(name, "gather", &[&table, ids], json!({"axis": 0}))
    }

    fn positions(&mut self) -> String {
        self.node("positions", "iota", &[], json!({"type": "i64[sequence]"}))
    }

    /// True where a position may see another: itself and those before.
    fn causal(&mut self) -> String {
        let ty = "i64[sequence, sequence]";
        let from = self.node("mask.from", "iota", &[], json!({"type": ty, "axis": 0}));
        let to = self.node("mask.to", "iota", &[], json!({"type": ty, "axis": 1}));
        self.scalar("mask.hidden", -3.0e38);
        self.node("mask", "ge", &[&from, &to], json!({}))
    }

    /// Scaled dot-product attention of projected queries, keys and values; with fewer heads of keys and
    /// values each serves several of queries. Rotated where there are tables of cosines and sines.
    fn attention(
        &mut self,
        name: &str,
        [q, k, v]: [&str; 3],
        heads: &Heads,
        mask: Option<&str>,
        rotary: Option<(&str, &str)>,
    ) -> String {
        let Heads { heads: count, shared, width, .. } = *heads;
        let group = count / shared;
        let mut split = |part: &str, x: &str, per: u64| {
            let shape = json!({"shape": ["batch", "sequence", shared, per, width]});
            let x = self.node(&format!("{name}.{part}_heads"), "reshape", &[x], shape);
            let x =
                self.node(&format!("{name}.{part}"), "transpose", &[&x], json!({"perm": [0, 2, 3, 1, 4]}));
            match rotary.filter(|_| part != "v") {
                None => x,
                Some(tables) => {
                    self.rotated(&format!("{name}.{part}_rotated"), &x, (shared, per, width), tables)
                }
            }
        };
        let (q, k, v) = (split("q", q, group), split("k", k, 1), split("v", v, 1));
        let scale = self.scalar(&format!("{name}.scale"), 1.0 / (width as f64).sqrt());
        let right = json!({"transpose_right": true});
        let scores = self.node(&format!("{name}.products"), "matmul", &[&q, &k], right);
        let mut scores = self.node(&format!("{name}.scores"), "mul", &[&scores, &scale], json!({}));
        if let Some(mask) = mask {
            let inputs = [mask, scores.as_str(), "mask.hidden"];
            scores = self.node(&format!("{name}.masked"), "select", &inputs, json!({}));
        }
        let weights = self.node(&format!("{name}.softmax"), "softmax", &[&scores], json!({"axis": -1}));
        let mixed = self.node(&format!("{name}.mixed"), "matmul", &[&weights, &v], json!({}));
        let perm = json!({"perm": [0, 3, 1, 2, 4]});
        let mixed = self.node(&format!("{name}.turned"), "transpose", &[&mixed], perm);
        let shape = json!({"shape": ["batch", "sequence", count * width]});
        self.node(&format!("{name}.merged"), "reshape", &[&mixed], shape)
    }

    /// Rotary position embedding (Su and others 2021), halves turned as in Llama.
    fn rotated(
        &mut self,
        name: &str,
        x: &str,
        (shared, per, width): (u64, u64, u64),
        (cosines, sines): (&str, &str),
    ) -> String {
        let half = width / 2;
        let mut part = |which: &str, start: u64, size: u64| {
            let attributes = json!({
                "starts": [0, 0, 0, 0, start],
                "sizes": ["batch", shared, per, "sequence", size],
            });
            self.node(&format!("{name}.{which}"), "slice", &[x], attributes)
        };
        let (low, high) = (part("low", 0, half), part("high", half, width - half));
        let high = self.node(&format!("{name}.turned"), "neg", &[&high], json!({}));
        let swapped = self.node(&format!("{name}.swapped"), "concat", &[&high, &low], json!({"axis": -1}));
        let one = self.node(&format!("{name}.cos"), "mul", &[x, cosines], json!({}));
        let other = self.node(&format!("{name}.sin"), "mul", &[&swapped, sines], json!({}));
        self.node(name, "add", &[&one, &other], json!({}))
    }

    /// Tables of cosines and sines, `[sequence, width]`.
    fn rotary(&mut self, width: u64, theta: f64) -> (String, String) {
        let half = width / 2;
        let theta = self.scalar("rotary.theta", theta);
        let step = self.scalar("rotary.step", -2.0 / width as f64);
        let ln = self.node("rotary.log", "log", &[&theta], json!({}));
        let rate = self.node("rotary.rate", "mul", &[&ln, &step], json!({}));
        let at = self.node("rotary.index", "iota", &[], json!({"type": format!("f32[{half}]")}));
        let power = self.node("rotary.power", "mul", &[&at, &rate], json!({}));
        let frequency = self.node("rotary.frequency", "exp", &[&power], json!({}));
        let position =
            self.node("rotary.position", "iota", &[], json!({"type": "f32[sequence, 1]", "axis": 0}));
        let angle = self.node("rotary.angle", "mul", &[&position, &frequency], json!({}));
        let both = self.node("rotary.angles", "concat", &[&angle, &angle], json!({"axis": -1}));
        let cosines = self.node("rotary.cos", "cos", &[&both], json!({}));
        (cosines, self.node("rotary.sin", "sin", &[&both], json!({})))
    }
}

fn gpt2(config: &Config, net: &mut Net) -> Result<()> {
    let (hidden, vocabulary) = (config.size("n_embd")?, config.size("vocab_size")?);
    let heads = Heads::new(hidden, config.size("n_head")?, config.size("n_head")?, None)?;
    let inner = config.size_or("n_inner", 4 * hidden)?;
    let epsilon = config.real("layer_norm_epsilon", 1e-5)?;
    let activation = config.activation("activation_function", "gelu_new")?;
    let refused = ["scale_attn_by_inverse_layer_idx", "add_cross_attention"].into_iter();
    if let Some(name) = refused.into_iter().find(|name| config.flag(name, false)) {
        return Err(unsupported(name, "is not supported"));
    }
    let has_head = config.has_head()?;
    let p = if has_head { "transformer." } else { "" };
    let mut x = net.embedding(&format!("{p}wte"), "input_ids", [vocabulary, hidden]);
    let positions = net.positions();
    let placed = net.embedding(&format!("{p}wpe"), &positions, [config.size("n_positions")?, hidden]);
    x = net.node(&format!("{p}embedded"), "add", &[&x, &placed], json!({}));
    let mask = net.causal();
    for layer in 0..config.layers("n_layer")? {
        let h = format!("{p}h.{layer}");
        let y = net.layer_norm(&format!("{h}.ln_1"), &x, hidden, epsilon);
        let all = net.linear(&format!("{h}.attn.c_attn"), &y, (hidden, 3 * hidden), true, true);
        let mut part = |name: &str, start: u64| {
            let attributes = json!({"starts": [0, 0, start], "sizes": ["batch", "sequence", hidden]});
            net.node(&format!("{h}.attn.{name}"), "slice", &[&all], attributes)
        };
        let (q, k, v) = (part("query", 0), part("key", hidden), part("value", 2 * hidden));
        let y = net.attention(&format!("{h}.attn"), [&q, &k, &v], &heads, Some(&mask), None);
        let y = net.linear(&format!("{h}.attn.c_proj"), &y, (hidden, hidden), true, true);
        x = net.node(&format!("{h}.attended"), "add", &[&y, &x], json!({}));
        let y = net.layer_norm(&format!("{h}.ln_2"), &x, hidden, epsilon);
        let y = net.linear(&format!("{h}.mlp.c_fc"), &y, (hidden, inner), true, true);
        let y = net.node(&format!("{h}.mlp.act"), activation, &[&y], json!({}));
        let y = net.linear(&format!("{h}.mlp.c_proj"), &y, (inner, hidden), true, true);
        x = net.node(&format!("{h}.out"), "add", &[&x, &y], json!({}));
    }
    x = net.layer_norm(&format!("{p}ln_f"), &x, hidden, epsilon);
    let table = format!("{p}wte.weight");
    finish(config, net, x, has_head, (vocabulary, hidden), &table);
    Ok(())
}

/// The head of a causal model: of its own, or the table of embeddings.
fn finish(config: &Config, net: &mut Net, x: String, has_head: bool, (to, from): (u64, u64), table: &str) {
    net.output = Some(match has_head {
        false => ("last_hidden_state", x),
        true if config.flag("tie_word_embeddings", true) => {
            ("logits", net.node("lm_head", "dense", &[&x, table], json!({"transpose_right": true})))
        }
        true => ("logits", net.linear("lm_head", &x, (from, to), false, false)),
    });
}

fn llama(config: &Config, family: &str, net: &mut Net) -> Result<()> {
    let (hidden, vocabulary) = (config.size("hidden_size")?, config.size("vocab_size")?);
    let count = config.size("num_attention_heads")?;
    let shared = config.size_or("num_key_value_heads", count)?;
    let width = config.get("head_dim").map(|_| config.size("head_dim")).transpose()?;
    let heads = Heads::new(hidden, count, shared, width)?;
    let inner = config.size("intermediate_size")?;
    let epsilon = config.real("rms_norm_eps", 1e-6)?;
    let activation = config.activation("hidden_act", "silu")?;
    let theta = rope(config)?;
    if config.get("sliding_window").is_some() && config.flag("use_sliding_window", family == "mistral") {
        return Err(unsupported("sliding_window", "attention over a window is not supported"));
    }
    let biased = config.flag("attention_bias", family == "qwen2");
    let (out_biased, mlp_biased) = (biased && family != "qwen2", config.flag("mlp_bias", false));
    let has_head = config.has_head()?;
    let p = if has_head { "model." } else { "" };
    let mut x = net.embedding(&format!("{p}embed_tokens"), "input_ids", [vocabulary, hidden]);
    let mask = net.causal();
    let (cosines, sines) = net.rotary(heads.width, theta);
    for layer in 0..config.layers("num_hidden_layers")? {
        let h = format!("{p}layers.{layer}");
        let y = net.rms_norm(&format!("{h}.input_layernorm"), &x, hidden, epsilon);
        let mut project = |part: &str, count: u64| {
            net.linear(
                &format!("{h}.self_attn.{part}_proj"),
                &y,
                (hidden, count * heads.width),
                biased,
                false,
            )
        };
        let (q, k, v) = (project("q", count), project("k", shared), project("v", shared));
        let tables = Some((cosines.as_str(), sines.as_str()));
        let y = net.attention(&format!("{h}.self_attn"), [&q, &k, &v], &heads, Some(&mask), tables);
        let sizes = (count * heads.width, hidden);
        let y = net.linear(&format!("{h}.self_attn.o_proj"), &y, sizes, out_biased, false);
        x = net.node(&format!("{h}.attended"), "add", &[&x, &y], json!({}));
        let y = net.rms_norm(&format!("{h}.post_attention_layernorm"), &x, hidden, epsilon);
        let gate = net.linear(&format!("{h}.mlp.gate_proj"), &y, (hidden, inner), mlp_biased, false);
        let gate = net.node(&format!("{h}.mlp.act_fn"), activation, &[&gate], json!({}));
        let up = net.linear(&format!("{h}.mlp.up_proj"), &y, (hidden, inner), mlp_biased, false);
        let y = net.node(&format!("{h}.mlp.gated"), "mul", &[&gate, &up], json!({}));
        let y = net.linear(&format!("{h}.mlp.down_proj"), &y, (inner, hidden), mlp_biased, false);
        x = net.node(&format!("{h}.out"), "add", &[&x, &y], json!({}));
    }
    x = net.rms_norm(&format!("{p}norm"), &x, hidden, epsilon);
    let tied = Config(Map::from_iter([(
        "tie_word_embeddings".to_owned(),
        Value::from(config.flag("tie_word_embeddings", false)),
    )]));
    finish(&tied, net, x, has_head, (vocabulary, hidden), &format!("{p}embed_tokens.weight"));
    Ok(())
}

/// The base of the rotary frequencies. Error: they are scaled.
fn rope(config: &Config) -> Result<f64> {
    let nested = ["rope_parameters", "rope_scaling"].into_iter().find_map(|name| config.get(name));
    let Some(nested) = nested.and_then(Value::as_object) else { return config.real("rope_theta", 10_000.0) };
    let nested = Config(nested.clone());
    let kind = if nested.get("rope_type").is_some() { "rope_type" } else { "type" };
    match nested.text(kind, "default")? {
        "default" => nested.real("rope_theta", config.real("rope_theta", 10_000.0)?),
        other => {
            Err(unsupported("rope_parameters", &format!("frequencies scaled as {other} are not supported")))
        }
    }
}

/// What an encoder with its norms after each part calls its fields and parameters.
struct Names {
    prefix: &'static str,
    hidden: &'static str,
    inner: &'static str,
    heads: &'static str,
    layers: &'static str,
    activation: &'static str,
    layer: &'static str,
    qkv: [&'static str; 3],
    out: &'static str,
    attended: &'static str,
    up: &'static str,
    down: &'static str,
    norm: &'static str,
    /// The head: transform, its norm, the bias of the table.
    head: [&'static str; 3],
    token_types: bool,
}

const BERT: Names = Names {
    prefix: "bert.",
    hidden: "hidden_size",
    inner: "intermediate_size",
    heads: "num_attention_heads",
    layers: "num_hidden_layers",
    activation: "hidden_act",
    layer: "encoder.layer",
    qkv: ["attention.self.query", "attention.self.key", "attention.self.value"],
    out: "attention.output.dense",
    attended: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
    head: ["cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"],
    token_types: true,
};

const DISTILBERT: Names = Names {
    prefix: "distilbert.",
    hidden: "dim",
    inner: "hidden_dim",
    heads: "n_heads",
    layers: "n_layers",
    activation: "activation",
    layer: "transformer.layer",
    qkv: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    out: "attention.out_lin",
    attended: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    norm: "output_layer_norm",
    head: ["vocab_transform", "vocab_layer_norm", "vocab_projector"],
    token_types: false,
};

fn encoder(config: &Config, names: &Names, net: &mut Net) -> Result<()> {
    let (hidden, vocabulary) = (config.size(names.hidden)?, config.size("vocab_size")?);
    let count = config.size(names.heads)?;
    let heads = Heads::new(hidden, count, count, None)?;
    let inner = config.size(names.inner)?;
    let epsilon = config.real("layer_norm_eps", 1e-12)?;
    let activation = config.activation(names.activation, "gelu")?;
    if config.flag("is_decoder", false) || config.text("position_embedding_type", "absolute")? != "absolute" {
        return Err(unsupported("is_decoder, position_embedding_type", "only plain encoders are supported"));
    }
    let has_head = config.has_head()?;
    let p = if has_head { names.prefix } else { "" };
    let e = format!("{p}embeddings");
    let mut x = net.embedding(&format!("{e}.word_embeddings"), "input_ids", [vocabulary, hidden]);
    let positions = net.positions();
    let sizes = [config.size("max_position_embeddings")?, hidden];
    let placed = net.embedding(&format!("{e}.position_embeddings"), &positions, sizes);
    x = net.node(&format!("{e}.placed"), "add", &[&x, &placed], json!({}));
    if names.token_types {
        let sizes = [config.size("type_vocab_size")?, hidden];
        let table = net.param(&format!("{e}.token_type_embeddings.weight"), &sizes, "normal");
        let first = json!({"starts": [0, 0], "sizes": [1, hidden]});
        let first = net.node(&format!("{e}.token_type_embeddings"), "slice", &[&table], first);
        x = net.node(&format!("{e}.typed"), "add", &[&x, &first], json!({}));
    }
    x = net.layer_norm(&format!("{e}.LayerNorm"), &x, hidden, epsilon);
    for layer in 0..config.layers(names.layers)? {
        let h = format!("{p}{}.{layer}", names.layer);
        let [q, k, v] =
            names.qkv.map(|part| net.linear(&format!("{h}.{part}"), &x, (hidden, hidden), true, false));
        let y = net.attention(&format!("{h}.attention"), [&q, &k, &v], &heads, None, None);
        let y = net.linear(&format!("{h}.{}", names.out), &y, (hidden, hidden), true, false);
        let y = net.node(&format!("{h}.attended"), "add", &[&y, &x], json!({}));
        x = net.layer_norm(&format!("{h}.{}", names.attended), &y, hidden, epsilon);
        let y = net.linear(&format!("{h}.{}", names.up), &x, (hidden, inner), true, false);
        let y = net.node(&format!("{h}.activation"), activation, &[&y], json!({}));
        let y = net.linear(&format!("{h}.{}", names.down), &y, (inner, hidden), true, false);
        let y = net.node(&format!("{h}.out"), "add", &[&y, &x], json!({}));
        x = net.layer_norm(&format!("{h}.{}", names.norm), &y, hidden, epsilon);
    }
    if !has_head {
        net.output = Some(("last_hidden_state", x));
        return Ok(());
    }
    let [transform, norm, projector] = names.head;
    let y = net.linear(transform, &x, (hidden, hidden), true, false);
    let y = net.node(&format!("{transform}.activation"), activation, &[&y], json!({}));
    let y = net.layer_norm(norm, &y, hidden, epsilon);
    let bias = net.param(&format!("{projector}.bias"), &[vocabulary], "zeros");
    let table = format!("{e}.word_embeddings.weight");
    let turned = json!({"transpose_right": true});
    net.output = Some(("logits", net.node(projector, "dense", &[&y, &table, &bias], turned)));
    Ok(())
}
