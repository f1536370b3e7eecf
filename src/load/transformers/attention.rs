//! Attention of projected queries, keys and values: which keys a row meets, and the products.

use serde_json::{Value, json};

use super::config::LARGEST;
use super::net::Net;
use super::rotary::Tables;
use crate::error::{Error, Result};

/// Sizes of attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) count: u64,
    /// Heads of keys and values; each serves several of queries where there are fewer.
    pub(super) shared: u64,
    /// Numbers of one head.
    pub(super) width: u64,
}

/// More heads, or more numbers of one, are none: tables are made for each.
const MOST_HEADS: u64 = 1 << 16;
const WIDEST: u64 = 1 << 20;

impl Heads {
    /// Error: heads that do not divide what they share, or are too many or too wide.
    pub(super) fn new(hidden: u64, count: u64, shared: u64, width: Option<u64>) -> Result<Self> {
        let fits = width.is_some() || hidden.is_multiple_of(count);
        let width = width.unwrap_or(hidden / count);
        if !fits || !count.is_multiple_of(shared) || width == 0 || width.saturating_mul(count) > LARGEST {
            let message = format!("{count} heads, {shared} of keys and values, do not divide {hidden}");
            return Err(Error::model("num_attention_heads", message));
        }
        if count > MOST_HEADS || width > WIDEST {
            let message = format!("{count} heads of {width} numbers are too many");
            return Err(Error::model("num_attention_heads", message));
        }
        Ok(Self { count, shared, width })
    }

    /// The factor of scores that most families have.
    pub(super) fn usual_scale(&self) -> f64 {
        1.0 / (self.width as f64).sqrt()
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

impl Sight {
    /// True where a row meets none behind it.
    pub(super) fn looks_back(self) -> bool {
        match self {
            Self::Everything => false,
            Self::Before | Self::Window(_) => true,
        }
    }
}

/// What rows meet: how long both sides are, and which keys are padding.
#[derive(Clone, Debug)]
pub(super) struct Sides {
    /// Stands before the names of nodes.
    pub(super) label: &'static str,
    /// Sizes: a dimension's name or a number.
    pub(super) batch: Value,
    pub(super) rows: Value,
    pub(super) keys: Value,
}

impl Sides {
    /// A sequence that meets itself.
    pub(super) fn same(label: &'static str, size: impl Into<Value>) -> Self {
        let rows = size.into();
        Self { label, batch: json!("batch"), keys: rows.clone(), rows }
    }
}

/// The masks of a stack, made where a layer first needs one.
pub(super) struct Masks {
    pub(super) sides: Sides,
    /// The caller's mask, where it has one.
    pub(super) shown: Option<&'static str>,
    /// True at `[batch, 1, 1, 1, keys]` for keys that are no padding.
    padding: Option<String>,
    /// The score of a hidden key.
    hidden: Option<String>,
    made: Vec<(Sight, String)>,
}

impl Masks {
    /// Masks with the caller's, an input `[batch, keys]`: 0 hides a key.
    pub(super) fn new(net: &mut Net, sides: Sides, shown: Option<&'static str>) -> Self {
        let label = sides.label;
        let padding = shown.map(|mask| {
            let seen = net.node(&format!("{label}mask.seen"), "convert", &[mask], json!({"to": "bool"}));
            let shape = json!({"shape": [sides.batch, 1, 1, 1, sides.keys]});
            net.node(&format!("{label}mask.keys"), "reshape", &[&seen], shape)
        });
        Self { sides, shown, padding, hidden: None, made: Vec::new() }
    }

    fn name(&self, end: &str) -> String {
        format!("{}mask{end}", self.sides.label)
    }

    /// The mask, true where a row meets a key; none where all rows meet all keys.
    fn of(&mut self, net: &mut Net, sight: Sight) -> Option<String> {
        if let Some((_, mask)) = self.made.iter().find(|(made, _)| *made == sight) {
            return Some(mask.clone());
        }
        let order = self.order(net, sight);
        let name = match sight {
            Sight::Window(_) => ".window.keys_seen",
            Sight::Everything | Sight::Before => ".keys_seen",
        };
        let mask = match (order, &self.padding) {
            (None, padding) => padding.clone()?,
            (Some(order), None) => order,
            (Some(order), Some(padding)) => net.node(&self.name(name), "and", &[&order, padding], json!({})),
        };
        self.made.push((sight, mask.clone()));
        Some(mask)
    }

    /// The part of a mask that follows from positions.
    fn order(&self, net: &mut Net, sight: Sight) -> Option<String> {
        let (prefix, window) = match sight {
            Sight::Everything => return None,
            Sight::Before => (self.name(""), None),
            Sight::Window(window) => (self.name(".window"), Some(window)),
        };
        let mut places = |name: &str, axis: u64| self.places(net, &format!("{prefix}.{name}"), "i64", axis);
        let (from, to) = (places("from", 0), places("to", 1));
        let Some(window) = window else { return Some(net.node(&prefix, "ge", &[&from, &to], json!({}))) };
        let before = net.node(&format!("{prefix}.before"), "ge", &[&from, &to], json!({}));
        let distance = net.node(&format!("{prefix}.distance"), "sub", &[&from, &to], json!({}));
        let width = net.constant(&format!("{prefix}.width"), "i64[]", json!(window));
        let near = net.node(&format!("{prefix}.near"), "lt", &[&distance, &width], json!({}));
        Some(net.node(&prefix, "and", &[&before, &near], json!({})))
    }

    /// Of each row and key the place of one of them: `[rows, keys]`.
    pub(super) fn places(&self, net: &mut Net, name: &str, element: &str, axis: u64) -> String {
        let size = |size: &Value| size.as_str().map_or_else(|| size.to_string(), str::to_owned);
        let ty = format!("{element}[{}, {}]", size(&self.sides.rows), size(&self.sides.keys));
        net.node(name, "iota", &[], json!({"type": ty, "axis": axis}))
    }

    fn hidden(&mut self, net: &mut Net) -> String {
        let padded = self.padding.is_some();
        let label = self.sides.label;
        let make = || match padded {
            false => net.scalar(&format!("{label}mask.hidden"), -3.0e38),
            // The logarithm of nothing: JSON has no infinity.
            true => {
                let zero = net.scalar(&format!("{label}mask.nothing"), 0.0);
                net.node(&format!("{label}mask.hidden"), "log", &[&zero], json!({}))
            }
        };
        self.hidden.get_or_insert_with(make).clone()
    }

    /// Weights of scores: their softmax over the keys that a row meets. A row that meets none, which
    /// only padding causes, weighs nothing, as scaled dot product attention does in PyTorch. `sinks`: scores
    /// that take part in it and weigh nothing, `[shared, per, 1, 1]`.
    fn weights(&mut self, net: &mut Net, attending: &Attending<'_>, scores: &str) -> String {
        let Attending { name, sight, .. } = *attending;
        let mut scores = scores.to_owned();
        if let Some(mask) = self.of(net, sight) {
            let hidden = self.hidden(net);
            scores = net.node(&format!("{name}.masked"), "select", &[&mask, &scores, &hidden], json!({}));
        }
        if let Some(sinks) = attending.sinks {
            return beside_sinks(net, name, &scores, sinks);
        }
        let weights = net.node(&format!("{name}.softmax"), "softmax", &[&scores], json!({"axis": -1}));
        if self.padding.is_none() {
            return weights;
        }
        // The softmax of a row whose scores are all minus infinity is 0/0.
        let blind = net.node(&format!("{name}.blind"), "is_nan", &[&weights], json!({}));
        let zero = net.scalar(&format!("{name}.zero"), 0.0);
        net.node(&format!("{name}.weights"), "select", &[&blind, &zero, &weights], json!({}))
    }
}

/// The softmax of scores and sinks, of which those of the sinks are left out. The keys stay an axis by themselves,
/// so that those of earlier tokens can be kept.
fn beside_sinks(net: &mut Net, name: &str, scores: &str, sinks: &str) -> String {
    let last = |kind: &str| json!({"kind": kind, "axes": [-1], "keep": true});
    // Less the greatest of keys and sink, no exponential overflows.
    let greatest = net.node(&format!("{name}.greatest_key"), "reduce", &[scores], last("max"));
    let greatest = net.node(&format!("{name}.greatest"), "max", &[&greatest, sinks], json!({}));
    let below = net.node(&format!("{name}.below"), "sub", &[scores, &greatest], json!({}));
    let powers = net.node(&format!("{name}.powers"), "exp", &[&below], json!({}));
    let sum = net.node(&format!("{name}.sum_of_keys"), "reduce", &[&powers], last("sum"));
    let sink = net.node(&format!("{name}.sink_below"), "sub", &[sinks, &greatest], json!({}));
    let sink = net.node(&format!("{name}.sink_power"), "exp", &[&sink], json!({}));
    let sum = net.node(&format!("{name}.sum"), "add", &[&sum, &sink], json!({}));
    net.node(&format!("{name}.weights"), "div", &[&powers, &sum], json!({}))
}

/// What one layer's attention needs beside queries, keys and values.
pub(super) struct Attending<'a> {
    pub(super) name: &'a str,
    pub(super) heads: Heads,
    /// Factor of the scores.
    pub(super) scale: f64,
    /// Scores are held below this.
    pub(super) cap: Option<f64>,
    /// Added to the scores: what broadcasts to `[batch, shared, per, rows, keys]`.
    pub(super) added: Option<&'a str>,
    pub(super) sinks: Option<&'a str>,
    pub(super) sight: Sight,
    /// Rotates queries and keys.
    pub(super) rotary: Option<&'a Tables>,
}

impl Attending<'_> {
    /// Scaled dot-product attention of queries, keys and values, `[batch, length, shared, per, width]`; with
    /// fewer heads of keys and values each serves several of queries. `[batch, rows, heads * width]`.
    pub(super) fn write(&self, net: &mut Net, masks: &mut Masks, qkv: [&str; 3]) -> String {
        let Self { name, heads, .. } = *self;
        let Heads { count, shared, width } = heads;
        let Sides { batch, rows, keys, .. } = masks.sides.clone();
        let [q, k, v] = qkv;
        let q = self.turned(net, "q", q, [&batch, &json!(count / shared), &rows]);
        let [k, v] =
            [("k", k), ("v", v)].map(|(part, x)| self.turned(net, part, x, [&batch, &json!(1), &keys]));
        let scores = self.scores(net, &q, &k);
        let weights = masks.weights(net, self, &scores);
        let mixed = net.node(&format!("{name}.mixed"), "matmul", &[&weights, &v], json!({}));
        let perm = json!({"perm": [0, 3, 1, 2, 4]});
        let mixed = net.node(&format!("{name}.turned"), "transpose", &[&mixed], perm);
        let shape = json!({"shape": [batch, rows, count * width]});
        net.node(&format!("{name}.merged"), "reshape", &[&mixed], shape)
    }

    /// Of each row and key, before any is hidden.
    fn scores(&self, net: &mut Net, q: &str, k: &str) -> String {
        let name = self.name;
        let right = json!({"transpose_right": true});
        let scores = net.node(&format!("{name}.products"), "matmul", &[q, k], right);
        let mut scores = net.scaled(&format!("{name}.scores"), &scores, self.scale);
        if let Some(cap) = self.cap {
            scores = net.capped(&format!("{name}.capped"), &scores, cap);
        }
        match self.added {
            Some(added) => net.sum(&format!("{name}.placed"), &scores, added),
            None => scores,
        }
    }

    /// Heads before rows, `[batch, shared, per, length, width]`, and rotated.
    fn turned(&self, net: &mut Net, part: &str, x: &str, sizes: [&Value; 3]) -> String {
        let Self { name, heads: Heads { shared, width, .. }, .. } = *self;
        let perm = json!({"perm": [0, 2, 3, 1, 4]});
        let x = net.node(&format!("{name}.{part}"), "transpose", &[x], perm);
        let [batch, per, length] = sizes;
        match self.rotary.filter(|_| part != "v") {
            None => x,
            Some(tables) => {
                let sizes = [batch.clone(), json!(shared), per.clone(), length.clone(), json!(width)];
                tables.rotate(net, &format!("{name}.{part}_rotated"), &x, &sizes)
            }
        }
    }
}
