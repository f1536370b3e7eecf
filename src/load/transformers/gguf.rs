//! A GGUF file as a model: its metadata as the fields of a configuration, and what it calls the arrays of the
//! family's parameters.
//!
//! llama.cpp stores some weights otherwise than the library: queries and keys of Llama and its like lie so that a rotation
//! turns neighbours, norms of Gemma hold the whole factor, and GPT-2's matrices are transposed.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::config::Config;
use super::net::{Bias, Net, Norm, Order};
use super::settings::{ExpertArrays, Experts, Feed, Gated, InnerNorms, Positions, Settings};
use super::unsupported;
use crate::error::{Error, Report, Result};
use crate::load::gguf::{Head, Kind, Meta, part_of_experts, whole_of_experts};

/// What the library calls layers of a block, and the file.
type Layers = &'static [(&'static str, &'static str)];

/// One of llama.cpp's architectures.
#[derive(Debug)]
pub(super) struct Dialect {
    /// `general.architecture`, which stands before its keys.
    name: &'static str,
    /// The library's name of the family.
    family: &'static str,
    /// Fields: the key, behind the architecture, and what the family's configuration calls it.
    fields: &'static [(&'static str, &'static str)],
    /// More of them, beside those of another architecture.
    more: &'static [(&'static str, &'static str)],
    /// Whether its feed-forward parts are experts.
    has_experts: bool,
    /// Layers of a block: what the library calls them, and the file. The number of an expert is `*`: the matrices of all are
    /// one array.
    layers: &'static [Layers],
    /// The same outside blocks.
    others: &'static [(&'static str, &'static str)],
    /// What comes before the number of a block, in the library's names.
    blocks: &'static str,
    /// The class of the library.
    class: &'static str,
}

const LLAMA_FIELDS: &[(&str, &str)] = &[
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("block_count", "num_hidden_layers"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("rope.freq_base", "rope_theta"),
];

const PROJECTIONS: Layers = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
];

const HEAD_NORMS: Layers = &[("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm")];

const NORMS: Layers = &[("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")];

const GATED: Layers =
    &[("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")];

const LLAMA_OTHERS: &[(&str, &str)] =
    &[("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

const LLAMA: Dialect = Dialect {
    name: "llama",
    family: "llama",
    fields: LLAMA_FIELDS,
    more: &[],
    has_experts: false,
    layers: &[PROJECTIONS, HEAD_NORMS, NORMS, GATED],
    others: LLAMA_OTHERS,
    blocks: "model.layers.",
    class: "LlamaForCausalLM",
};

const QWEN2: Dialect = Dialect { name: "qwen2", family: "qwen2", class: "Qwen2ForCausalLM", ..LLAMA };

const QWEN3: Dialect = Dialect { name: "qwen3", family: "qwen3", class: "Qwen3ForCausalLM", ..LLAMA };

/// Llamas with experts.
const MIXTRAL: Dialect = Dialect {
    family: "mixtral",
    more: &[(EXPERTS, "num_local_experts"), ("expert_used_count", "num_experts_per_tok")],
    has_experts: true,
    layers: &[
        PROJECTIONS,
        NORMS,
        &[
            ("block_sparse_moe.gate", "ffn_gate_inp"),
            ("block_sparse_moe.experts.*.w1", "ffn_gate_exps"),
            ("block_sparse_moe.experts.*.w2", "ffn_down_exps"),
            ("block_sparse_moe.experts.*.w3", "ffn_up_exps"),
        ],
    ],
    class: "MixtralForCausalLM",
    ..LLAMA
};

const QWEN3_MOE: Dialect = Dialect {
    name: "qwen3moe",
    family: "qwen3_moe",
    more: &[
        (EXPERTS, "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ],
    has_experts: true,
    layers: &[
        PROJECTIONS,
        HEAD_NORMS,
        NORMS,
        &[
            ("mlp.gate", "ffn_gate_inp"),
            ("mlp.experts.*.gate_proj", "ffn_gate_exps"),
            ("mlp.experts.*.up_proj", "ffn_up_exps"),
            ("mlp.experts.*.down_proj", "ffn_down_exps"),
            ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
            ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
            ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ],
    ],
    class: "Qwen3MoeForCausalLM",
    ..LLAMA
};

const QWEN2_MOE: Dialect =
    Dialect { name: "qwen2moe", family: "qwen2_moe", class: "Qwen2MoeForCausalLM", ..QWEN3_MOE };

const GPT_OSS: Dialect = Dialect {
    name: "gpt-oss",
    family: "gpt_oss",
    more: &[
        ("attention.sliding_window", "sliding_window"),
        (EXPERTS, "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "intermediate_size"),
    ],
    has_experts: true,
    layers: &[
        PROJECTIONS,
        &[
            ("self_attn.sinks", "attn_sinks"),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "post_attention_norm"),
            ("mlp.router", "ffn_gate_inp"),
            ("mlp.experts.gate_proj", "ffn_gate_exps"),
            ("mlp.experts.up_proj", "ffn_up_exps"),
            ("mlp.experts.down_proj", "ffn_down_exps"),
            ("mlp.experts.*.gate_proj", "ffn_gate_exps"),
            ("mlp.experts.*.up_proj", "ffn_up_exps"),
            ("mlp.experts.*.down_proj", "ffn_down_exps"),
        ],
    ],
    class: "GptOssForCausalLM",
    ..LLAMA
};

const GEMMA: Dialect = Dialect { name: "gemma", family: "gemma", class: "GemmaForCausalLM", ..LLAMA };

const GEMMA2: Dialect = Dialect {
    name: "gemma2",
    family: "gemma2",
    more: &[
        ("attention.sliding_window", "sliding_window"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ],
    layers: &[
        PROJECTIONS,
        HEAD_NORMS,
        GATED,
        &[
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ],
    ],
    class: "Gemma2ForCausalLM",
    ..LLAMA
};

const GEMMA3: Dialect = Dialect {
    name: "gemma3",
    family: "gemma3_text",
    more: &[
        ("attention.sliding_window", "sliding_window"),
        ("attention.sliding_window_pattern", "sliding_window_pattern"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("rope.freq_base_swa", "rope_local_base_freq"),
    ],
    class: "Gemma3ForCausalLM",
    ..GEMMA2
};

const PHI3: Dialect = Dialect {
    name: "phi3",
    family: "phi3",
    // Without a window it is 0.
    more: &[("attention.sliding_window", "sliding_window")],
    layers: &[
        NORMS,
        &[
            ("self_attn.qkv_proj", "attn_qkv"),
            ("self_attn.o_proj", "attn_output"),
            ("mlp.gate_up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ],
    ],
    class: "Phi3ForCausalLM",
    ..LLAMA
};

const OLMO2: Dialect = Dialect {
    name: "olmo2",
    family: "olmo2",
    layers: &[
        PROJECTIONS,
        HEAD_NORMS,
        GATED,
        &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ],
    ],
    class: "Olmo2ForCausalLM",
    ..LLAMA
};

const GRANITE: Dialect = Dialect {
    name: "granite",
    family: "granite",
    fields: &[
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("rope.freq_base", "rope_theta"),
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ],
    class: "GraniteForCausalLM",
    ..LLAMA
};

/// Which layers do not turn is not in its files: every fourth, as the library has it.
const SMOLLM3: Dialect = Dialect { name: "smollm3", family: "smollm3", class: "SmolLM3ForCausalLM", ..LLAMA };

const STARCODER2: Dialect = Dialect {
    name: "starcoder2",
    family: "starcoder2",
    fields: &[
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.layer_norm_epsilon", "norm_epsilon"),
        ("rope.freq_base", "rope_theta"),
    ],
    layers: &[PROJECTIONS, NORMS, &[("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")]],
    class: "Starcoder2ForCausalLM",
    ..LLAMA
};

const GPT2: Dialect = Dialect {
    name: "gpt2",
    family: "gpt2",
    fields: &[
        ("context_length", "n_positions"),
        ("embedding_length", "n_embd"),
        ("block_count", "n_layer"),
        ("feed_forward_length", "n_inner"),
        ("attention.head_count", "n_head"),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
    ],
    more: &[],
    has_experts: false,
    layers: &[&[
        ("attn.c_attn", "attn_qkv"),
        ("attn.c_proj", "attn_output"),
        ("ln_1", "attn_norm"),
        ("ln_2", "ffn_norm"),
        ("mlp.c_fc", "ffn_up"),
        ("mlp.c_proj", "ffn_down"),
    ]],
    others: &[
        ("transformer.wte", "token_embd"),
        ("transformer.wpe", "position_embd"),
        ("transformer.ln_f", "output_norm"),
        ("lm_head", "output"),
    ],
    blocks: "transformer.h.",
    class: "GPT2LMHeadModel",
};

const DIALECTS: &[&Dialect] = &[
    &LLAMA,
    &MIXTRAL,
    &QWEN2,
    &QWEN2_MOE,
    &QWEN3,
    &QWEN3_MOE,
    &GEMMA,
    &GEMMA2,
    &GEMMA3,
    &PHI3,
    &OLMO2,
    &GRANITE,
    &SMOLLM3,
    &STARCODER2,
    &GPT2,
    &GPT_OSS,
];

/// What files call the architectures of a family.
pub(super) fn dialects_of(family: &str) -> Vec<&'static str> {
    DIALECTS.iter().filter(|dialect| dialect.family == family).map(|dialect| dialect.name).collect()
}

/// Keys of an architecture that change nothing here, or follow from others.
const WITHOUT_EFFECT: &[&str] = &[
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attention.head_count_kv",
    "context_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scale_linear",
    "tensor_data_layout",
    "use_parallel_residual",
    "vocab_size",
];

/// How many experts a layer has.
const EXPERTS: &str = "expert_count";

/// Keys of an architecture, and the only number with which they change nothing.
const NEUTRAL: &[(&str, f64)] = &[(EXPERTS, 0.0), ("expert_used_count", 0.0), (ATTENTION_FACTOR, 1.0)];

/// The dialect of a file. Error: its architecture is none that is read.
pub(super) fn of(head: &Head) -> Result<&'static Dialect> {
    const KEY: &str = "general.architecture";
    let name = match head.metadata.get(KEY) {
        Some(Meta::Text(name)) => name.as_str(),
        _ => return Err(Error::format(KEY, "is missing: the file names no architecture")),
    };
    let has_experts = head.whole(&format!("{name}.{EXPERTS}")).is_some_and(|count| count > 0);
    let is_of = |dialect: &&Dialect| dialect.name == name && dialect.has_experts == has_experts;
    DIALECTS.iter().copied().find(is_of).ok_or_else(|| {
        let mut known: Vec<&str> = DIALECTS.iter().map(|dialect| dialect.name).collect();
        known.dedup();
        if known.contains(&name) {
            let message =
                format!("{name} {} experts is not supported", if has_experts { "with" } else { "without" });
            return unsupported(KEY, &message).with_help("the safetensors of the same model may be read");
        }
        unsupported(KEY, &format!("{name} is not supported"))
            .with_help(format!("{} are; others as safetensors with their config.json", known.join(", ")))
    })
}

/// Factors of rotations up to the context that a model was trained with, and beyond.
const SHORT_FACTORS: &str = "rope_factors_short.weight";
const LONG_FACTORS: &str = "rope_factors_long.weight";
/// By what cosines and sines are multiplied beside them.
const ATTENTION_FACTOR: &str = "rope.scaling.attn_factor";

/// Whether frequencies have factors of their own.
fn is_long(head: &Head) -> bool {
    head.tensors.iter().any(|tensor| tensor.name == SHORT_FACTORS)
}

/// Experts whose gates and what they let through are apart, with the biases of all in one array.
fn halved(feed: Feed) -> Feed {
    match feed {
        Feed::Experts(experts @ Experts { arrays: ExpertArrays::Stacked { inner, clamp, .. }, .. }) => {
            let layers = Gated { inner, gate: "gate_proj", act: "act_fn", up: "up_proj", down: "down_proj" };
            let arrays = ExpertArrays::Biased { under: "mlp.experts", layers, clamp };
            Feed::Experts(Experts { arrays, ..experts })
        }
        other => other,
    }
}

/// A layer's name with `*` for the number of an expert, and that number, where it is of one.
fn of_expert(layer: &str) -> (String, Option<u64>) {
    let named = layer.split_once(".experts.").and_then(|(before, rest)| {
        let (number, after) = rest.split_once('.')?;
        Some((format!("{before}.experts.*.{after}"), number.parse().ok()?))
    });
    named.map_or((layer.to_owned(), None), |(name, number)| (name, Some(number)))
}

impl Dialect {
    /// The configuration that the metadata is. Errors: a key that is missing, or that may change what is computed
    /// and is not read.
    pub(super) fn config(&self, head: &Head) -> Result<Config> {
        let mut fields = Map::new();
        let mut known: Vec<String> = Vec::new();
        for (key, field) in self.fields.iter().chain(self.more) {
            let key = self.key(key);
            match head.metadata.get(&key) {
                Some(Meta::Whole(value)) => fields.insert((*field).to_owned(), json!(value)),
                Some(Meta::Real(value)) => fields.insert((*field).to_owned(), json!(value)),
                Some(Meta::Wholes(values)) if values.windows(2).all(|pair| pair[0] == pair[1]) => {
                    fields.insert((*field).to_owned(), json!(values.first()))
                }
                Some(_) => return Err(self.refused(&key, "differs from layer to layer, or is no number")),
                None => None,
            };
            known.push(key);
        }
        self.heads_alike(&mut fields);
        let words = self.shape(head, "token_embd.weight")?;
        fields.insert("vocab_size".to_owned(), json!(words.first()));
        fields.insert("model_type".to_owned(), json!(self.family));
        fields.insert("architectures".to_owned(), json!([self.class]));
        let tied = !head.tensors.iter().any(|tensor| tensor.name == "output.weight");
        fields.insert("tie_word_embeddings".to_owned(), json!(tied));
        if let Some(scalar) = self.scalar_of_scores(&fields) {
            fields.insert("query_pre_attn_scalar".to_owned(), json!(scalar));
        }
        self.scaling(head, &mut fields)?;
        self.as_meant(&mut fields);
        self.turned(head, &mut fields)?;
        let prefix = format!("{}.", self.name);
        for key in head.metadata.keys() {
            let Some(rest) = key.strip_prefix(&prefix) else { continue };
            let is_neutral =
                || NEUTRAL.iter().any(|&(name, only)| name == rest && self.number(head, name) == Some(only));
            let is_factor = || rest == ATTENTION_FACTOR && is_long(head);
            if !known.contains(key) && !WITHOUT_EFFECT.contains(&rest) && !is_neutral() && !is_factor() {
                return Err(self.refused(key, "this key is not known; it may change what is computed"));
            }
        }
        Ok(Config::new(fields))
    }

    /// What an architecture says without its files.
    fn as_meant(&self, fields: &mut Map<String, Value>) {
        match self.family {
            "gpt_oss" => {
                let scaling = fields.entry("rope_scaling").or_insert(json!({"rope_type": "default"}));
                // Between the frequencies that are scaled and those that are not it goes over anywhere.
                if let Some(scaling) = scaling.as_object_mut().filter(|own| own["rope_type"] == "yarn") {
                    scaling.insert("truncate".to_owned(), json!(false));
                }
            }
            "mixtral" => drop(fields.entry("rope_theta").or_insert(json!(10_000.0))),
            "qwen3_moe" => drop(fields.insert("norm_topk_prob".to_owned(), json!(true))),
            _ => {}
        }
    }

    /// Each head has keys and values of its own, where the file does not say how many have.
    fn heads_alike(&self, fields: &mut Map<String, Value>) {
        const SHARED: &str = "num_key_value_heads";
        let may_share = self.fields.iter().any(|&(_, field)| field == SHARED);
        if let (true, Some(heads)) = (may_share, fields.get("num_attention_heads").cloned()) {
            fields.entry(SHARED).or_insert(heads);
        }
    }

    /// By whose root the scores of the later Gemmas are divided, which their files do not say: as many numbers as a
    /// head has, or in the largest of each generation, which is known by its blocks, as its share of the hidden ones.
    fn scalar_of_scores(&self, fields: &Map<String, Value>) -> Option<u64> {
        let size = |name: &str| fields.get(name).and_then(Value::as_u64);
        let share = || Some(size("hidden_size")? / size("num_attention_heads")?.max(1));
        match (self.name, size("num_hidden_layers")) {
            ("gemma2", Some(46)) | ("gemma3", Some(62)) => share(),
            ("gemma2" | "gemma3", _) => size("head_dim").or_else(share),
            _ => None,
        }
    }

    /// A number of the metadata; none where it is missing, or is none.
    fn number(&self, head: &Head, rest: &str) -> Option<f64> {
        match head.metadata.get(&self.key(rest)) {
            Some(Meta::Real(value)) => Some(*value),
            Some(Meta::Whole(value)) => Some(*value as f64),
            _ => None,
        }
    }

    fn key(&self, rest: &str) -> String {
        format!("{}.{rest}", self.name)
    }

    fn refused(&self, key: &str, message: &str) -> Error {
        Error::Unsupported(Report::new(key, message).help("the safetensors of the same model may be read"))
    }

    fn shape<'h>(&self, head: &'h Head, name: &str) -> Result<&'h [u64]> {
        let found = head.tensors.iter().find(|tensor| tensor.name == name);
        found.map(|tensor| tensor.dims.as_slice()).ok_or_else(|| Error::format(name, "is not in the file"))
    }

    /// How frequencies are scaled. Error: in a way that is not read.
    fn scaling(&self, head: &Head, fields: &mut Map<String, Value>) -> Result<()> {
        let number = |rest: &str| self.number(head, rest);
        let key = self.key("rope.scaling.type");
        let factor = number("rope.scaling.factor").or_else(|| number("rope.scale_linear"));
        let kind = match head.metadata.get(&key) {
            Some(Meta::Text(kind)) => kind.as_str(),
            _ if factor.is_some_and(|factor| factor != 1.0) => "linear",
            _ => "none",
        };
        let context = number("rope.scaling.original_context_length").map(|context| context as u64);
        let scaling = match kind {
            "none" => return Ok(()),
            "linear" => json!({"rope_type": "linear", "factor": factor}),
            "yarn" => json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": context,
                "beta_fast": number("rope.scaling.yarn_beta_fast"), "beta_slow": number("rope.scaling.yarn_beta_slow"),
            }),
            // Its factors are in tensors.
            "longrope" => return Ok(()),
            other => return Err(self.refused(&key, &format!("{other} is not supported"))),
        };
        fields.insert("rope_scaling".to_owned(), scaling);
        Ok(())
    }

    /// The share of a head that is turned, where it is not all. Error: the family turns all.
    fn turned(&self, head: &Head, fields: &mut Map<String, Value>) -> Result<()> {
        let key = self.key("rope.dimension_count");
        let Some(Meta::Whole(turned)) = head.metadata.get(&key) else { return Ok(()) };
        let size = |name: &str| fields.get(name).and_then(Value::as_u64);
        let usual =
            size("hidden_size").zip(size("num_attention_heads")).map(|(all, heads)| all / heads.max(1));
        match size("head_dim").or(usual) {
            Some(width) if *turned as u64 != width && self.name == "phi3" && width > 0 => {
                let part = *turned as f64 / width as f64;
                fields.insert("partial_rotary_factor".to_owned(), json!(part));
                Ok(())
            }
            Some(width) if *turned as u64 != width => {
                Err(self.refused(&key, &format!("only part of a head's {width} numbers is turned")))
            }
            _ => Ok(()),
        }
    }

    /// What llama.cpp stores otherwise, in the settings that the family reads.
    pub(super) fn adapt(&self, head: &Head, settings: &mut Settings) {
        let has = |name: &str| head.tensors.iter().any(|tensor| tensor.name == name);
        let bias = |name: &str| Bias::from(has(&format!("blk.0.{name}.bias")));
        match self.family {
            "gpt2" => settings.names.order = Order::OutIn,
            "llama" | "granite" | "smollm3" | "starcoder2" => {
                settings.biases.qkv = [bias("attn_q"), bias("attn_k"), bias("attn_v")];
                settings.biases.out = bias("attn_output");
                settings.biases.feed = bias("ffn_up");
            }
            "gpt_oss" => {
                for layer in &mut settings.layers {
                    layer.feed = halved(layer.feed);
                }
            }
            _ => {}
        }
        let whole = |norm: Norm| match norm {
            Norm::RootMeanSquareAboveOne(epsilon) => Norm::RootMeanSquare(epsilon),
            other => other,
        };
        settings.norm = whole(settings.norm);
        if let InnerNorms::Head(layers, norm) = settings.names.inner_norms {
            settings.names.inner_norms = InnerNorms::Head(layers, whole(norm));
        }
        let Positions::Rotary(rotaries) = &mut settings.positions else { return };
        for rotary in rotaries {
            rotary.turns_neighbours(matches!(self.name, "llama" | "granite" | "smollm3"));
            for divisors in ["rope_freqs.weight", SHORT_FACTORS] {
                if has(divisors) {
                    rotary.divided_by(divisors);
                }
            }
        }
        if is_long(head) {
            self.long(head, settings);
        }
    }

    /// Short factors up to the context before it was extended, long ones beyond.
    fn long(&self, head: &Head, settings: &mut Settings) {
        let context = match head.metadata.get(&self.key("rope.scaling.original_context_length")) {
            Some(Meta::Whole(context)) => u64::try_from(*context).ok(),
            _ => None,
        };
        let magnitude = self.number(head, ATTENTION_FACTOR).unwrap_or(1.0);
        if let Positions::Rotary(rotaries) = &mut settings.positions {
            for rotary in rotaries {
                rotary.extended_by(LONG_FACTORS, context, magnitude);
            }
        }
    }

    /// Adds what the file calls the arrays of the parameters that were written, and in which blocks it has them. Error: a
    /// type that is not read.
    pub(super) fn collect(&self, head: &Head, net: &mut Net) -> Result<()> {
        let params: Vec<String> = net.param_names().map(str::to_owned).collect();
        let kinds: BTreeMap<&str, u32> =
            head.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.kind)).collect();
        let arrays = net.array_names();
        for param in params {
            let Some(array) = self.array(&param) else { continue };
            if let Some(&kind) = kinds.get(whole_of_experts(&array))
                && let Kind::Blocks(format) = Kind::of(kind).map_err(|error| error.within(&array))?
            {
                arrays.blocks.insert(param.clone(), format);
            }
            arrays.aliases.entry(param).or_default().push(array);
        }
        arrays.unread.extend([SHORT_FACTORS.to_owned(), LONG_FACTORS.to_owned()]);
        Ok(())
    }

    /// What the file calls a parameter's array.
    fn array(&self, param: &str) -> Option<String> {
        let (layer, end) = param.rsplit_once('.')?;
        if let Some(inside) = layer.strip_prefix(self.blocks) {
            let (number, layer) = inside.split_once('.')?;
            // Sinks are an array without a layer.
            let (layer, end) = if end == "sinks" { ("self_attn.sinks", "weight") } else { (layer, end) };
            let (layer, expert) = of_expert(layer);
            let (_, name) = self.layers.iter().copied().flatten().find(|(own, _)| *own == layer)?;
            let array = format!("blk.{number}.{name}.{end}");
            return Some(expert.map_or(array.clone(), |expert| part_of_experts(&array, expert)));
        }
        let (_, name) = self.others.iter().find(|(own, _)| *own == layer)?;
        Some(format!("{name}.{end}"))
    }
}
