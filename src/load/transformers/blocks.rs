//! The network up to its last hidden state: embeddings, blocks, norms. One description of a block
//! serves all families; what differs is data ([`Names`], [`Settings`]).

use serde_json::json;

use super::attention::{Attending, Masks, Sight};
use super::config::Config;
use super::family::{Feed, Names, NormPlace, Projections, TokenTypes};
use super::net::{Features, Net, limit};
use super::rotary::Tables;
use super::settings::{Layer, Positions, Settings};
use crate::error::Result;
use crate::ir::Absent;

/// What a network's layers are written from.
pub(super) struct Blocks<'a> {
    pub(super) names: &'a Names,
    pub(super) settings: &'a Settings,
    /// Stands before all names.
    pub(super) prefix: &'a str,
}

/// What the layers are written to, and read in common.
struct Shared<'n> {
    net: &'n mut Net,
    masks: Masks,
    /// Of rotations.
    tables: Option<Tables>,
}

impl Blocks<'_> {
    /// Writes the blocks; the last hidden state, `[batch, sequence, hidden]`. Errors: positions that
    /// its configuration does not have.
    pub(super) fn write(&self, config: &Config, net: &mut Net) -> Result<String> {
        let masks = Masks::new(net);
        let positions = self.positions(config, net)?;
        let mut x = self.embedded(net, positions.as_deref());
        let tables = match &self.settings.positions {
            Positions::Learnt { .. } => None,
            Positions::Rotary(rotary) => {
                Some(rotary.tables(net, self.settings.heads.width, positions.as_deref())?)
            }
        };
        let mut shared = Shared { net, masks, tables };
        for (number, layer) in self.settings.layers.iter().enumerate() {
            let name = format!("{}{}.{number}", self.prefix, self.names.layer);
            x = self.block(&mut shared, &name, *layer, &x);
        }
        Ok(self.norm(shared.net, self.prefix, self.names.last_norm, &x))
    }

    /// The caller's positions, where it has any. Bounds the sequence where they are counted.
    fn positions(&self, config: &Config, net: &mut Net) -> Result<Option<String>> {
        let below = match &self.settings.positions {
            Positions::Learnt { count, field } => Some(limit(field, *count)),
            Positions::Rotary(rotary) => rotary.fixed_to.map(|count| limit("max_position_embeddings", count)),
        };
        if let Some(ids) = net.optional("position_ids", Absent::Computed, below.clone()) {
            let decodes = self.settings.layers.iter().any(|layer| layer.sight != Sight::Everything);
            if decodes && !config.flag("use_cache", true)? && !net.takes("attention_mask") {
                let message = "without a cache, positions that begin anew mean packed sequences, which are not supported";
                return Err(config
                    .refused("use_cache", message)
                    .with_help("give attention_mask beside position_ids"));
            }
            return Ok(Some(ids.to_owned()));
        }
        if let Some(below) = below {
            net.at_most("sequence", below);
        }
        Ok(None)
    }

    fn embedded(&self, net: &mut Net, positions: Option<&str>) -> String {
        let Self { names, settings, prefix: p } = *self;
        let hidden = settings.hidden;
        let words = format!("{p}{}", names.words);
        let mut x = net.embedding(&words, "input_ids", [settings.vocabulary, hidden]);
        if let (Some(table), Positions::Learnt { count, .. }) = (names.positions, &settings.positions) {
            let ids = match positions {
                Some(ids) => ids.to_owned(),
                None => net.node("positions", "iota", &[], json!({"type": "i64[sequence]"})),
            };
            let placed = net.embedding(&format!("{p}{table}"), &ids, [*count, hidden]);
            x = net.sum(&format!("{p}embedded"), &x, &placed);
        }
        if let Some(typed) = self.typed(net, &words) {
            x = net.sum(&format!("{p}typed"), &x, &typed);
        }
        self.norm(net, p, names.first_norm, &x)
    }

    /// What token types add.
    fn typed(&self, net: &mut Net, words: &str) -> Option<String> {
        let Self { names, settings, prefix: p } = *self;
        match names.token_types {
            TokenTypes::None => None,
            TokenTypes::Words => {
                let below = Some(limit("vocab_size", settings.vocabulary));
                let ids = net.optional("token_type_ids", Absent::Computed, below)?;
                Some(net.rows(&format!("{words}.types"), &format!("{words}.weight"), ids))
            }
            TokenTypes::Table(table) => {
                let below = Some(limit("type_vocab_size", settings.token_types));
                let name = format!("{p}{table}");
                let sizes = [settings.token_types, settings.hidden];
                if let Some(ids) = net.optional("token_type_ids", Absent::Filled(0), below) {
                    return Some(net.embedding(&name, ids, sizes));
                }
                let rows = net.param(&format!("{name}.weight"), &sizes, "normal");
                let first = json!({"starts": [0, 0], "sizes": [1, settings.hidden]});
                Some(net.node(&name, "slice", &[&rows], first))
            }
        }
    }

    fn norm(&self, net: &mut Net, prefix: &str, name: Option<&str>, x: &str) -> String {
        match name {
            Some(name) => net.norm(&format!("{prefix}{name}"), x, self.settings.hidden, self.settings.norm),
            None => x.to_owned(),
        }
    }

    fn block(&self, shared: &mut Shared<'_>, name: &str, layer: Layer, x: &str) -> String {
        let inside = format!("{name}.");
        let [first, second] = self.names.norms.map(Some);
        match self.names.placed {
            NormPlace::Before => {
                let y = self.norm(shared.net, &inside, first, x);
                let y = self.attended(shared, &inside, layer, &y);
                let net = &mut *shared.net;
                let x = net.sum(&format!("{name}.attended"), x, &y);
                let y = self.norm(net, &inside, second, &x);
                let y = self.feed(net, &inside, &y);
                net.sum(&format!("{name}.out"), &x, &y)
            }
            NormPlace::Behind => {
                let y = self.attended(shared, &inside, layer, x);
                let net = &mut *shared.net;
                let y = net.sum(&format!("{name}.attended"), &y, x);
                let x = self.norm(net, &inside, first, &y);
                let y = self.feed(net, &inside, &x);
                let y = net.sum(&format!("{name}.out"), &y, &x);
                self.norm(net, &inside, second, &y)
            }
        }
    }

    fn attended(&self, shared: &mut Shared<'_>, inside: &str, layer: Layer, x: &str) -> String {
        let Self { names, settings, .. } = *self;
        let Shared { net, masks, tables } = shared;
        let qkv = self.projected(net, inside, x);
        let attending = Attending {
            name: &format!("{inside}{}", names.attention),
            heads: settings.heads,
            scale: layer.scale,
            sight: layer.sight,
            rotary: tables.as_ref(),
        };
        let y = attending.write(net, masks, qkv.each_ref().map(String::as_str));
        let features = Features { from: settings.heads.count * settings.heads.width, to: settings.hidden };
        net.linear(&format!("{inside}{}", names.out), &y, features, settings.biases.out, names.order)
    }

    fn projected(&self, net: &mut Net, inside: &str, x: &str) -> [String; 3] {
        let Self { names, settings, .. } = *self;
        let (heads, bias) = (settings.heads, settings.biases.qkv);
        let hidden = settings.hidden;
        match names.projections {
            Projections::Apart(layers) => {
                let counts = [heads.count, heads.shared, heads.shared];
                std::array::from_fn(|part| {
                    let features = Features { from: hidden, to: counts[part] * heads.width };
                    net.linear(&format!("{inside}{}", layers[part]), x, features, bias, names.order)
                })
            }
            Projections::Joined(layer) => {
                let features = Features { from: hidden, to: 3 * hidden };
                let joined = net.linear(&format!("{inside}{layer}"), x, features, bias, names.order);
                std::array::from_fn(|part| {
                    let attributes = json!({
                        "starts": [0, 0, part as u64 * hidden],
                        "sizes": ["batch", "sequence", hidden],
                    });
                    let name = format!("{inside}{}.{}", names.attention, ["query", "key", "value"][part]);
                    net.node(&name, "slice", &[&joined], attributes)
                })
            }
        }
    }

    fn feed(&self, net: &mut Net, inside: &str, x: &str) -> String {
        let settings = self.settings;
        let linear = |net: &mut Net, layer: &str, x: &str, from: u64, to: u64| {
            let name = format!("{inside}{layer}");
            net.linear(&name, x, Features { from, to }, settings.biases.feed, self.names.order)
        };
        let (hidden, inner) = (settings.hidden, settings.inner);
        match self.names.feed {
            Feed::Plain { up, act, down } => {
                let y = linear(net, up, x, hidden, inner);
                let y = settings.activation.write(net, &format!("{inside}{act}"), &y);
                linear(net, down, &y, inner, hidden)
            }
            Feed::Gated { gate, act, up, down } => {
                let gate = linear(net, gate, x, hidden, inner);
                let gate = settings.activation.write(net, &format!("{inside}{act}"), &gate);
                let up = linear(net, up, x, hidden, inner);
                let y = net.node(&format!("{inside}mlp.gated"), "mul", &[&gate, &up], json!({}));
                linear(net, down, &y, inner, hidden)
            }
        }
    }
}
