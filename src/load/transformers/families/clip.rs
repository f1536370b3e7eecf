//! CLIP: a tower of text, a tower of images, and how alike their results are (Radford and others 2021).

use serde_json::json;

use super::super::attention::{Sides, Sight};
use super::super::blocks::{Blocks, Positioned};
use super::super::config::Config;
use super::super::family::{Family, Network, Writing};
use super::super::heads::Head;
use super::super::net::{Bias, Features, Net, Order};
use super::super::patches::{PatchNames, Patches};
use super::super::settings::{
    Counted, Feed, Learnt, Names, Norms, Positions, Projections, Residual, Settings, Wiring,
};
use super::vit;
use crate::error::Result;

pub(super) const CLIP: Family = Family {
    heads: &[("Model", Head::Bare)],
    usual: Head::Bare,
    ..Family::new("clip", "CLIP", Network::Joined(both))
};

pub(super) const CLIP_TEXT: Family = Family {
    name: "clip_text_model",
    class: "CLIPText",
    heads: &[("Model", Head::Bare), ("ModelWithProjection", Head::Projected)],
    network: Network::Joined(text_alone),
    renamed: &[("text_model.", "")],
    ..CLIP
};

pub(super) const CLIP_VISION: Family = Family {
    name: "clip_vision_model",
    class: "CLIPVision",
    heads: &[("Model", Head::Bare), ("ModelWithProjection", Head::Projected)],
    network: Network::Joined(images_alone),
    renamed: &[("vision_model.", "")],
    ..CLIP
};

const NAMES: Names = Names {
    words: "embeddings.token_embedding",
    positions: Some("embeddings.position_embedding"),
    layer: "encoder.layers",
    attention: "self_attn",
    projections: Projections::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    out: "self_attn.out_proj",
    wiring: Wiring {
        attention: Norms::before("layer_norm1"),
        feed: Norms::before("layer_norm2"),
        residual: Residual::Stream,
    },
    ..Names::PLAIN
};

fn tower(config: &Config, names: Names) -> Result<Settings> {
    let inner = config.size("intermediate_size")?;
    let feed = Feed::Plain { inner, up: "mlp.fc1", act: "mlp.activation_fn", down: "mlp.fc2" };
    config.text("hidden_act", "quick_gelu")?;
    config.only("attention_bias", true)?;
    let mut settings = vit::encoder(config, names, 1e-5, feed)?;
    if config.get("hidden_act").is_none() {
        settings.activation =
            super::super::activation::Activation::named(config, "hidden_act", "quick_gelu")?;
    }
    Ok(settings)
}

/// Which rows a tower's result is.
struct Tower {
    /// `[batch, rows, hidden]`.
    states: String,
    /// One row for each text or image, `[batch, hidden]`.
    pooled: String,
    hidden: u64,
}

/// The tower of text.
fn text(config: &Config, net: &mut Net) -> Result<Tower> {
    let mut settings = tower(config, Names { last_norm: Some("final_layer_norm"), ..NAMES })?;
    settings.vocabulary = config.size("vocab_size")?;
    let field = "max_position_embeddings";
    let count = config.size(field)?;
    settings.positions = Positions::Learnt(Learnt { count, field, skipped: 0, counted: Counted::Place });
    for layer in &mut settings.layers {
        layer.sight = Sight::Before;
    }
    let hidden = settings.hidden;
    net.tokens("input_ids", "sequence", settings.vocabulary);
    let shown = net.mask("attention_mask", "sequence");
    let blocks = Blocks { settings: &settings, prefix: "text_model.", sides: Sides::same("", "sequence") };
    let embedded = blocks.embedded(config, net, shown)?;
    let states = blocks.write(net, embedded, shown)?;
    let last = end(config, net)?;
    let pooled = net.node("text_model.pooled", "gather_nd", &[&states, &last], json!({"batch_dims": 1}));
    Ok(Tower { states, pooled, hidden })
}

/// The position where each text ends, `i64[batch, 1]`: of its first token of the end. Configurations of old give
/// that token a number that it does not have, and the end is the largest number.
fn end(config: &Config, net: &mut Net) -> Result<String> {
    let token = config.whole("eos_token_id", 49407)?;
    let ends = match token {
        2 => "input_ids".to_owned(),
        token => {
            let token = net.constant("end.token", "i64[]", json!(token));
            let is = net.node("end.is", "eq", &["input_ids", &token], json!({}));
            net.node("end.ones", "convert", &[&is], json!({"to": "i64"}))
        }
    };
    Ok(net.node("end", "argmax", &[&ends], json!({"axis": 1, "keep": true})))
}

/// The tower of images; `batch`: the dimension that counts them.
fn images(config: &Config, net: &mut Net, batch: &'static str) -> Result<Tower> {
    let settings = tower(config, NAMES)?;
    let hidden = settings.hidden;
    let patches = Patches::read(config)?;
    const PREFIX: &str = "vision_model.";
    let names = PatchNames {
        projection: "vision_model.embeddings.patch_embedding",
        bias: Bias::Without,
        class: "vision_model.embeddings.class_embedding",
        class_dims: &[hidden],
        places: "vision_model.embeddings.position_embedding.weight",
        batched: false,
    };
    let rows = patches.write(net, batch, hidden, &names);
    // So do published files spell it.
    let rows = net.norm("vision_model.pre_layrnorm", &rows, hidden, settings.norm);
    let sides = Sides { batch: json!(batch), ..Sides::same("images.", patches.rows()) };
    let blocks = Blocks { settings: &settings, prefix: PREFIX, sides };
    let states = blocks.write(net, Positioned::whole(rows), None)?;
    let attributes = json!({"starts": [0, 0, 0], "sizes": [batch, 1, hidden]});
    let first = net.node("vision_model.first", "slice", &[&states], attributes);
    let first = net.node("vision_model.row", "reshape", &[&first], json!({"shape": [batch, hidden]}));
    let pooled = net.norm("vision_model.post_layernorm", &first, hidden, settings.norm);
    Ok(Tower { states, pooled, hidden })
}

fn projected(net: &mut Net, layer: &str, tower: &Tower, width: u64) -> String {
    let features = Features { from: tower.hidden, to: width };
    net.linear(layer, &tower.pooled, features, Bias::Without, Order::OutIn)
}

fn width(config: &Config) -> Result<u64> {
    Ok(config.optional_size("projection_dim")?.unwrap_or(512))
}

fn text_alone(writing: &mut Writing<'_>) -> Result<()> {
    let Writing { config, net, head, .. } = writing;
    let tower = text(config, net)?;
    let width = width(config)?;
    if matches!(head, Head::Projected) {
        let embedded = projected(net, "text_projection", &tower, width);
        net.output("text_embeds", &embedded);
    } else {
        net.output("pooler_output", &tower.pooled);
    }
    net.output("last_hidden_state", &tower.states);
    Ok(())
}

fn images_alone(writing: &mut Writing<'_>) -> Result<()> {
    let Writing { config, net, head, .. } = writing;
    let tower = images(config, net, "batch")?;
    let width = width(config)?;
    if matches!(head, Head::Projected) {
        let embedded = projected(net, "visual_projection", &tower, width);
        net.output("image_embeds", &embedded);
    } else {
        net.output("pooler_output", &tower.pooled);
    }
    net.output("last_hidden_state", &tower.states);
    Ok(())
}

fn both(writing: &mut Writing<'_>) -> Result<()> {
    let Writing { config, net, .. } = writing;
    let width = width(config)?;
    config.optional_real("logit_scale_init_value")?;
    let part = |field: &'static str| {
        let part = config.object(field)?;
        part.ok_or_else(|| config.refused(field, "is missing"))
    };
    // What older files hold a second time.
    for field in ["text_config_dict", "vision_config_dict"] {
        config.unset(field, "its fields may differ from those beside: move them there")?;
    }
    let own = part("text_config")?;
    let texts = text(&own, net)?;
    own.get("projection_dim");
    own.get("model_type");
    own.get("architectures");
    own.all_read()?;
    let own = part("vision_config")?;
    let seen = images(&own, net, "images")?;
    own.get("projection_dim");
    own.get("model_type");
    own.get("architectures");
    own.all_read()?;
    let one = projected(net, "text_projection", &texts, width);
    let other = projected(net, "visual_projection", &seen, width);
    let one = unit(net, "text_embeds", &one);
    let other = unit(net, "image_embeds", &other);
    let scale = net.param("logit_scale", &[], "zeros");
    let scale = net.node("logit_scale.power", "exp", &[&scale], json!({}));
    let alike = net.node("alike", "matmul", &[&one, &other], json!({"transpose_right": true}));
    let by_text = net.node("logits_per_text", "mul", &[&alike, &scale], json!({}));
    let by_image = net.node("logits_per_image", "transpose", &[&by_text], json!({"perm": [1, 0]}));
    for (name, value) in [
        ("logits_per_image", &by_image),
        ("logits_per_text", &by_text),
        ("text_embeds", &one),
        ("image_embeds", &other),
    ] {
        net.output(name, value);
    }
    Ok(())
}

/// Rows divided by their length.
fn unit(net: &mut Net, name: &str, x: &str) -> String {
    let squares = net.node(&format!("{name}.squares"), "mul", &[x, x], json!({}));
    let attributes = json!({"kind": "sum", "axes": [1], "keep": true});
    let sum = net.node(&format!("{name}.sum"), "reduce", &[&squares], attributes);
    let length = net.node(&format!("{name}.length"), "sqrt", &[&sum], json!({}));
    net.node(name, "div", &[x, &length], json!({}))
}
