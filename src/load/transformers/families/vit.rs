//! ViT: an encoder of images.

use serde_json::json;

use super::super::activation::Activation;
use super::super::attention::{Heads, Sides, Sight};
use super::super::blocks::{Blocks, Positioned};
use super::super::config::Config;
use super::super::family::{Family, Network, Writing};
use super::super::heads::{Head, Language, Plain};
use super::super::net::{Bias, Features, Norm, Order};
use super::super::patches::{PatchNames, Patches};
use super::super::settings::{
    Biases, Embedding, Feed, Layer, Names, Norms, Positions, Projections, Residual, Settings, Wiring,
};
use crate::error::Result;

pub(super) const VIT: Family = Family {
    heads: &[("Model", Head::Bare), ("ForImageClassification", Head::Image("classifier"))],
    usual: Head::Bare,
    prefix: "vit.",
    bare: super::bert::POOLER,
    // As later versions of the library name them.
    renamed: &[
        ("encoder.layer.", "layers."),
        ("attention.attention.query", "attention.q_proj"),
        ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"),
        ("attention.output.dense", "attention.o_proj"),
        ("intermediate.dense", "mlp.fc1"),
        (".output.dense", ".mlp.fc2"),
    ],
    ..Family::new("vit", "ViT", Network::Joined(vit))
};

const NAMES: Names = Names {
    layer: "encoder.layer",
    attention: "attention.attention",
    projections: Projections::Apart([
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    ]),
    out: "attention.output.dense",
    wiring: Wiring {
        attention: Norms::before("layernorm_before"),
        feed: Norms::before("layernorm_after"),
        residual: Residual::Stream,
    },
    last_norm: Some("layernorm"),
    ..Names::PLAIN
};

/// What the blocks of an encoder of images have in common; `norm`: of what is added under roots.
pub(super) fn encoder(config: &Config, names: Names, epsilon: f64, feed: Feed) -> Result<Settings> {
    let hidden = config.size("hidden_size")?;
    let count = config.size("num_attention_heads")?;
    let heads = Heads::new(hidden, count, count, None)?;
    let layer = Layer { sight: Sight::Everything, scale: heads.usual_scale(), rotary: 0, feed };
    Ok(Settings {
        names,
        vocabulary: 1,
        hidden,
        embedding: Embedding::default(),
        heads,
        norm: Norm::Layer(config.real("layer_norm_eps", epsilon)?),
        activation: Activation::read(config, "hidden_act", "gelu")?,
        positions: Positions::Rotary(Vec::new()),
        token_types: 0,
        layers: vec![layer; config.layers("num_hidden_layers")? as usize],
        biases: Biases::EVERYWHERE,
        cap: None,
        language: Language::Plain(Plain::new("")),
        tied: false,
        factor_of_parts: 1.0,
    })
}

fn vit(writing: &mut Writing<'_>) -> Result<()> {
    let Writing { config, net, head, prefix } = writing;
    let inner = config.size("intermediate_size")?;
    let feed = Feed::Plain { inner, up: "intermediate.dense", act: "activation", down: "output.dense" };
    let mut settings = encoder(config, NAMES, 1e-12, feed)?;
    settings.biases.qkv = [Bias::from(config.flag("qkv_bias", true)?); 3];
    let hidden = settings.hidden;
    // Of the decoder of images, and of the pooler, which is not read.
    for field in ["encoder_stride", "pooler_output_size", "pooler_act"] {
        config.get(field);
    }
    let patches = Patches::read(config)?;
    let under = |name: &str| format!("{prefix}embeddings.{name}");
    let names = PatchNames {
        projection: &under("patch_embeddings.projection"),
        bias: Bias::With,
        class: &under("cls_token"),
        class_dims: &[1, 1, hidden],
        places: &under("position_embeddings"),
        batched: true,
    };
    let rows = patches.write(net, "batch", hidden, &names);
    net.ignore(&["*embeddings.mask_token", "*pooler.dense.*"]);
    let sides = Sides::same("", patches.rows());
    let blocks = Blocks { settings: &settings, prefix, sides };
    let x = blocks.write(net, Positioned::whole(rows), None)?;
    let Head::Image(layer) = *head else {
        net.output("last_hidden_state", &x);
        return Ok(());
    };
    let attributes = json!({"starts": [0, 0, 0], "sizes": ["batch", 1, hidden]});
    let first = net.node("first", "slice", &[&x], attributes);
    let first = net.node("first.row", "reshape", &[&first], json!({"shape": ["batch", hidden]}));
    let features = Features { from: hidden, to: config.labels()? };
    let logits = net.linear(layer, &first, features, Bias::With, Order::OutIn);
    net.output("logits", &logits);
    Ok(())
}
