//! Attention of projected queries, keys and values: which keys a row meets, and the products.

use serde_json::json;

use super::config::LARGEST;
use super::net::Net;
use super::rotary::Tables;
use crate::error::{Error, Result};
use crate::ir::Absent;

/// Sizes of attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) count: u64,
    /// Heads of keys and values; each serves several of queries where there are fewer.
    pub(super) shared: u64,
    /// Numbers of one head.
    pub(super) width: u64,
}

impl Heads {
    /// Error: heads that do not divide what they share.
    pub(super) fn new(hidden: u64, count: u64, shared: u64, width: Option<u64>) -> Result<Self> {
        let fits = width.is_some() || hidden.is_multiple_of(count);
        let width = width.unwrap_or(hidden / count);
        if !fits || !count.is_multiple_of(shared) || width == 0 || width.saturating_mul(count) > LARGEST {
            let message = format!("{count} heads, {shared} of keys and values, do not divide {hidden}");
            return Err(Error::model("num_attention_heads", message));
        }
        Ok(Self { count, shared, width })
    }
}

/// Which keys a row may meet, padding aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// All.
    Everything,
    /// Itself and those before.
    Before,
    /// Itself and those before, this many in all.
    Window(u64),
}

/// The masks of a network, made where a layer first needs one.
#[derive(Default)]
pub(super) struct Masks {
    /// True at `[batch, 1, 1, 1, sequence]` for keys that are no padding.
    padding: Option<String>,
    /// The score of a hidden key.
    hidden: Option<String>,
    made: Vec<(Sight, String)>,
}

impl Masks {
    /// Takes `attention_mask` where the caller has it: 0 hides a key.
    pub(super) fn new(net: &mut Net) -> Self {
        let padding = net.optional("attention_mask", Absent::Filled(1), None).map(|mask| {
            let seen = net.node("mask.seen", "convert", &[mask], json!({"to": "bool"}));
            let shape = json!({"shape": ["batch", 1, 1, 1, "sequence"]});
            net.node("mask.keys", "reshape", &[&seen], shape)
        });
        Self { padding, ..Self::default() }
    }

    /// The mask, true where a row meets a key; none where all rows meet all keys.
    fn of(&mut self, net: &mut Net, sight: Sight) -> Option<String> {
        if let Some((_, mask)) = self.made.iter().find(|(made, _)| *made == sight) {
            return Some(mask.clone());
        }
        let order = Self::order(net, sight);
        let name = match sight {
            Sight::Window(_) => "mask.window.keys_seen",
            Sight::Everything | Sight::Before => "mask.keys_seen",
        };
        let mask = match (order, &self.padding) {
            (None, padding) => padding.clone()?,
            (Some(order), None) => order,
            (Some(order), Some(padding)) => net.node(name, "and", &[&order, padding], json!({})),
        };
        self.made.push((sight, mask.clone()));
        Some(mask)
    }

    /// The part of a mask that follows from positions.
    fn order(net: &mut Net, sight: Sight) -> Option<String> {
        let (prefix, window) = match sight {
            Sight::Everything => return None,
            Sight::Before => ("mask", None),
            Sight::Window(window) => ("mask.window", Some(window)),
        };
        let ty = "i64[sequence, sequence]";
        let from = net.node(&format!("{prefix}.from"), "iota", &[], json!({"type": ty, "axis": 0}));
        let to = net.node(&format!("{prefix}.to"), "iota", &[], json!({"type": ty, "axis": 1}));
        let Some(window) = window else { return Some(net.node(prefix, "ge", &[&from, &to], json!({}))) };
        let before = net.node(&format!("{prefix}.before"), "ge", &[&from, &to], json!({}));
        let distance = net.node(&format!("{prefix}.distance"), "sub", &[&from, &to], json!({}));
        let width = net.constant(&format!("{prefix}.width"), "i64[]", json!(window));
        let near = net.node(&format!("{prefix}.near"), "lt", &[&distance, &width], json!({}));
        Some(net.node(prefix, "and", &[&before, &near], json!({})))
    }

    fn hidden(&mut self, net: &mut Net) -> String {
        let padded = self.padding.is_some();
        let make = || match padded {
            false => net.scalar("mask.hidden", -3.0e38),
            // The logarithm of nothing: JSON has no infinity.
            true => {
                let zero = net.scalar("mask.nothing", 0.0);
                net.node("mask.hidden", "log", &[&zero], json!({}))
            }
        };
        self.hidden.get_or_insert_with(make).clone()
    }

    /// Weights of scores: their softmax over the keys that a row meets. A row that meets none, which
    /// only padding causes, weighs nothing, as scaled dot product attention does in PyTorch.
    fn weights(&mut self, net: &mut Net, name: &str, scores: &str, sight: Sight) -> String {
        let mut scores = scores.to_owned();
        let padded = self.padding.is_some();
        if let Some(mask) = self.of(net, sight) {
            let hidden = self.hidden(net);
            let inputs = [mask.as_str(), &scores, &hidden];
            scores = net.node(&format!("{name}.masked"), "select", &inputs, json!({}));
        }
        let weights = net.node(&format!("{name}.softmax"), "softmax", &[&scores], json!({"axis": -1}));
        if !padded {
            return weights;
        }
        let blind = net.node(&format!("{name}.blind"), "is_nan", &[&weights], json!({}));
        let zero = net.scalar(&format!("{name}.zero"), 0.0);
        net.node(&format!("{name}.weights"), "select", &[&blind, &zero, &weights], json!({}))
    }
}

/// What one layer's attention needs beside queries, keys and values.
pub(super) struct Attending<'a> {
    pub(super) name: &'a str,
    pub(super) heads: Heads,
    /// Factor of the scores.
    pub(super) scale: f64,
    pub(super) sight: Sight,
    /// Rotates queries and keys.
    pub(super) rotary: Option<&'a Tables>,
}

impl Attending<'_> {
    /// Scaled dot-product attention; with fewer heads of keys and values each serves several of
    /// queries. `[batch, sequence, heads * width]`.
    pub(super) fn write(&self, net: &mut Net, masks: &mut Masks, qkv: [&str; 3]) -> String {
        let Self { name, heads, scale, sight, .. } = *self;
        let Heads { count, shared, width } = heads;
        let [q, k, v] = qkv;
        let q = self.split(net, "q", q, count / shared);
        let (k, v) = (self.split(net, "k", k, 1), self.split(net, "v", v, 1));
        let right = json!({"transpose_right": true});
        let mut scores = net.node(&format!("{name}.products"), "matmul", &[&q, &k], right);
        if scale != 1.0 {
            let scale = net.scalar(&format!("{name}.scale"), scale);
            scores = net.node(&format!("{name}.scores"), "mul", &[&scores, &scale], json!({}));
        }
        let weights = masks.weights(net, name, &scores, sight);
        let mixed = net.node(&format!("{name}.mixed"), "matmul", &[&weights, &v], json!({}));
        let perm = json!({"perm": [0, 3, 1, 2, 4]});
        let mixed = net.node(&format!("{name}.turned"), "transpose", &[&mixed], perm);
        let shape = json!({"shape": ["batch", "sequence", count * width]});
        net.node(&format!("{name}.merged"), "reshape", &[&mixed], shape)
    }

    /// Heads before rows: `[batch, shared, per, sequence, width]`.
    fn split(&self, net: &mut Net, part: &str, x: &str, per: u64) -> String {
        let Self { name, heads: Heads { shared, width, .. }, .. } = *self;
        let shape = json!({"shape": ["batch", "sequence", shared, per, width]});
        let x = net.node(&format!("{name}.{part}_heads"), "reshape", &[x], shape);
        let perm = json!({"perm": [0, 2, 3, 1, 4]});
        let x = net.node(&format!("{name}.{part}"), "transpose", &[&x], perm);
        match self.rotary.filter(|_| part != "v") {
            None => x,
            Some(tables) => tables.rotate(net, &format!("{name}.{part}_rotated"), &x, [shared, per, width]),
        }
    }
}
