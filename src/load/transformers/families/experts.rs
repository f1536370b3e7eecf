//! Families whose feed-forward parts are experts: Mixtral, Qwen 2 and 3 MoE, gpt-oss.

use super::super::config::Config;
use super::super::family::{Family, Network};
use super::super::heads::Head;
use super::super::net::Bias;
use super::super::rotary::{Rotary, Usual};
use super::super::settings::{
    Clamp, ExpertArrays, Experts, Feed, Gated, InnerNorms, Positions, Settings, SharedExpert, Weighing,
};
use super::llama::{self, DEFAULTS, Defaults, LLAMA};
use super::windows;
use crate::error::Result;

pub(super) const MIXTRAL: Family = Family {
    name: "mixtral",
    class: "Mixtral",
    other_prefix: None,
    network: Network::Text(mixtral),
    // Later versions of the library call their modules so, and adapters name these.
    renamed: &[("block_sparse_moe.", "mlp.")],
    ..LLAMA
};

pub(super) const QWEN2_MOE: Family = Family {
    name: "qwen2_moe",
    class: "Qwen2Moe",
    other_prefix: None,
    network: Network::Text(qwen2_moe),
    ..LLAMA
};

pub(super) const QWEN3_MOE: Family =
    Family { name: "qwen3_moe", class: "Qwen3Moe", network: Network::Text(qwen3_moe), ..LLAMA };

pub(super) const GPT_OSS: Family = Family {
    name: "gpt_oss",
    class: "GptOss",
    heads: &[
        ("Model", Head::Bare),
        ("ForCausalLM", Head::Language),
        ("ForSequenceClassification", Head::Last("score")),
        ("ForTokenClassification", Head::Tokens("score")),
    ],
    network: Network::Text(gpt_oss),
    ..LLAMA
};

/// More experts, of all layers together, are no configuration.
const MOST_EXPERTS: u64 = 100_000;

/// How many experts there are, and how many of them are chosen.
fn counts(config: &Config, field: &'static str, usual: [u64; 2]) -> Result<[u64; 2]> {
    const CHOSEN: &str = "num_experts_per_tok";
    let count = config.optional_size(field)?.unwrap_or(usual[0]);
    let chosen = config.optional_size(CHOSEN)?.unwrap_or(usual[1]);
    if chosen > count {
        return Err(config.refused(CHOSEN, &format!("{chosen} of {count} experts cannot be chosen")));
    }
    let layers = config.layers("num_hidden_layers")?;
    if count.saturating_mul(layers) > MOST_EXPERTS {
        return Err(config.refused(field, &format!("{count} experts in {layers} layers are too many")));
    }
    Ok([count, chosen])
}

fn mixtral(config: &Config) -> Result<Settings> {
    let rotary = Some(Usual { theta: 1e6, ..Usual::WHOLE });
    let mut settings =
        llama::common(config, &Defaults { shared: Some(8), epsilon: 1e-5, rotary, ..DEFAULTS })?;
    let [count, chosen] = counts(config, "num_local_experts", [8, 2])?;
    let inner = config.size("intermediate_size")?;
    let experts = Experts {
        count,
        chosen,
        router: "block_sparse_moe.gate",
        router_bias: Bias::Without,
        weighing: Weighing::SharesOfChosen,
        arrays: ExpertArrays::Each {
            under: "block_sparse_moe.experts",
            layers: Gated { inner, gate: "w1", act: "act_fn", up: "w3", down: "w2" },
        },
        shared: None,
    };
    let sight = windows::everywhere(windows::width(config, None)?);
    for layer in &mut settings.layers {
        layer.feed = Feed::Experts(experts);
        layer.sight = sight;
    }
    Ok(settings)
}

fn qwen2_moe(config: &Config) -> Result<Settings> {
    let mut settings = llama::common(config, &Defaults { shared: Some(16), ..DEFAULTS })?;
    settings.biases.qkv = [Bias::from(config.flag("qkv_bias", true)?); 3];
    let shared = Gated {
        inner: config.optional_size("shared_expert_intermediate_size")?.unwrap_or(5632),
        gate: "mlp.shared_expert.gate_proj",
        act: "mlp.shared_expert.act_fn",
        up: "mlp.shared_expert.up_proj",
        down: "mlp.shared_expert.down_proj",
    };
    let shared = Some(SharedExpert { layers: shared, score: "mlp.shared_expert_gate" });
    let experts = experts_of_qwen(config, [60, 4], 1408)?;
    sparse(config, &mut settings, Experts { shared, ..experts })?;
    let used = config.flag("use_sliding_window", false)?;
    let width = windows::width(config, Some(4096))?.filter(|_| used);
    let before = config.whole("max_window_layers", 28)?;
    let near = |layer: u64| (layer + 1) % 2 == 1 && layer < before;
    let sights = windows::by_layer(config, settings.layers.len() as u64, width, near)?;
    llama::see(&mut settings, sights);
    Ok(settings)
}

/// Experts that are chosen, by default so many and so many of them, so wide inside.
fn experts_of_qwen(config: &Config, usual: [u64; 2], inner: u64) -> Result<Experts> {
    // Later versions write the number of the third under another name.
    let other = config.get("num_experts").is_none() && config.get("num_local_experts").is_some();
    let [count, chosen] = counts(config, if other { "num_local_experts" } else { "num_experts" }, usual)?;
    let inner = config.optional_size("moe_intermediate_size")?.unwrap_or(inner);
    let layers = Gated { gate: "gate_proj", act: "act_fn", up: "up_proj", down: "down_proj", inner };
    let normalised = config.flag("norm_topk_prob", false)?;
    Ok(Experts {
        count,
        chosen,
        router: "mlp.gate",
        router_bias: Bias::Without,
        weighing: if normalised { Weighing::SharesOfChosen } else { Weighing::Shares },
        arrays: ExpertArrays::Each { under: "mlp.experts", layers },
        shared: None,
    })
}

/// Gives experts to the layers that are to have them.
fn sparse(config: &Config, settings: &mut Settings, experts: Experts) -> Result<()> {
    let step = config.optional_size("decoder_sparse_step")?.unwrap_or(1);
    let dense = config.wholes("mlp_only_layers")?;
    for (number, layer) in (0u64..).zip(&mut settings.layers) {
        if !dense.contains(&number) && (number + 1).is_multiple_of(step) {
            layer.feed = Feed::Experts(experts);
        }
    }
    Ok(())
}

fn qwen3_moe(config: &Config) -> Result<Settings> {
    let mut settings = llama::common(config, &Defaults { shared: Some(4), ..DEFAULTS })?;
    settings.biases = llama::attention_bias(config, false)?;
    let layers = ["self_attn.q_norm", "self_attn.k_norm"];
    settings.names.inner_norms = InnerNorms::Head(layers, settings.norm);
    let experts = experts_of_qwen(config, [128, 8], 768)?;
    sparse(config, &mut settings, experts)?;
    let used = config.flag("use_sliding_window", false)?;
    // Windows are in all layers; where others begin is written and not read.
    config.whole("max_window_layers", 0)?;
    let sight = windows::everywhere(windows::width(config, Some(4096))?.filter(|_| used));
    let all = vec![sight; settings.layers.len()];
    llama::see(&mut settings, all);
    Ok(settings)
}

fn gpt_oss(config: &Config) -> Result<Settings> {
    let rotary = Usual { theta: 150_000.0, ..Usual::WHOLE };
    let defaults = Defaults { shared: Some(8), width: Some(64), epsilon: 1e-5, rotary: None, tied: false };
    let mut settings = llama::common(config, &defaults)?;
    let width = settings.heads.width;
    let scaled = config.get("rope_parameters").is_some() || config.get("rope_scaling").is_some();
    settings.positions = Positions::Rotary(vec![match scaled {
        true => Rotary::read(config, rotary, width)?,
        false => Rotary::of_gpt_oss(config, rotary, width)?,
    }]);
    settings.biases = llama::attention_bias(config, true)?;
    settings.names.sinks = Some("self_attn.sinks");
    let [count, chosen] = counts(config, "num_local_experts", [128, 4])?;
    // The same by the name of another tool.
    if let Some(other) = config.optional_size("experts_per_token")?
        && other != chosen
    {
        return Err(config.refused("experts_per_token", "num_experts_per_tok says something else"));
    }
    // Its experts have a function of their own.
    config.only("hidden_act", "silu")?;
    let experts = Experts {
        count,
        chosen,
        router: "mlp.router",
        router_bias: Bias::With,
        weighing: Weighing::Softmax,
        arrays: ExpertArrays::Stacked {
            inner: config.size("intermediate_size")?,
            both: "mlp.experts.gate_up_proj",
            down: "mlp.experts.down_proj",
            clamp: Clamp {
                alpha: config.real("swiglu_alpha", 1.702)?,
                limit: config.real("swiglu_limit", 7.0)?,
            },
        },
        shared: None,
    };
    for layer in &mut settings.layers {
        layer.feed = Feed::Experts(experts);
    }
    let width = windows::width(config, Some(128))?;
    let sights = windows::by_layer(config, settings.layers.len() as u64, width, |layer| layer % 2 == 0)?;
    llama::see(&mut settings, sights);
    Ok(settings)
}
