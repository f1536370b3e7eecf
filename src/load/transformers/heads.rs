//! What stands behind the blocks: which head a class of the library has, and its layers.

use serde_json::json;

use super::activation::{Activation, RELU};
use super::config::Config;
use super::net::{Bias, Features, Net, Norm, Order, limit};
use crate::error::Result;

/// The head of one class.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head {
    /// None: the last hidden state.
    Bare,
    /// Scores of the vocabulary at each position.
    Language,
    /// Scores of labels at each position, by this layer.
    Tokens(&'static str),
    /// Scores of each position as an answer's first and last, by this layer.
    Spans(&'static str, Spans),
    /// Scores of labels, by this layer without a bias, at the last position that is no padding.
    Last(&'static str),
    /// Scores of labels, of the first position.
    First(First),
    /// The first of two stacks alone.
    Encoder,
    /// The first or last position, projected.
    Projected,
    /// Scores of labels, by this layer of the first position.
    Image(&'static str),
}

/// How many scores a layer of spans makes; two of them are read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spans {
    Two,
    /// As many as labels, of which there must be two.
    Labels,
}

/// The layers that classify by the first position.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    /// Under the blocks' prefix where it begins with a dot.
    pub(super) pooler: &'static str,
    pub(super) activation: Pooled,
    pub(super) classifier: &'static str,
    pub(super) labels: Labels,
}

/// The function behind a pooler.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pooled {
    Tanh,
    Relu,
}

/// How many classes there are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Labels {
    Named,
    Two,
}

/// How a family scores its vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) enum Language {
    /// By one layer, or the table of embeddings.
    Plain(Plain),
    /// By a layer, its function and its norm before, and a bias of the vocabulary.
    Transformed {
        dense: &'static str,
        norm: &'static str,
        projector: &'static str,
        bias: &'static str,
        /// The function by name, where it is not that of the blocks.
        activation: Option<&'static str>,
    },
}

/// One layer that scores a vocabulary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plain {
    pub(super) layer: &'static str,
    pub(super) bias: Bias,
    /// Factor of what it reads.
    pub(super) scale: f64,
    /// Scores are held below this.
    pub(super) cap: Option<f64>,
}

impl Plain {
    /// Without a bias, a factor or a cap.
    pub(super) const fn new(layer: &'static str) -> Self {
        Self { layer, bias: Bias::Without, scale: 1.0, cap: None }
    }
}

/// What a head is built on.
pub(super) struct Body<'a> {
    pub(super) hidden: u64,
    pub(super) vocabulary: u64,
    /// The table of embeddings.
    pub(super) table: &'a str,
    pub(super) prefix: &'a str,
    pub(super) norm: Norm,
    pub(super) activation: Activation,
    pub(super) tied: bool,
    pub(super) language: Language,
}

impl Body<'_> {
    /// Writes the head behind `x`, the last hidden state, and the network's outputs. Errors: a head
    /// that its configuration contradicts.
    pub(super) fn write(&self, config: &Config, net: &mut Net, x: &str, head: Head) -> Result<()> {
        match head {
            Head::Bare => net.output("last_hidden_state", x),
            Head::Language => {
                let logits = self.language(net, x);
                net.output("logits", &logits);
            }
            Head::Tokens(layer) => {
                let logits = self.scores(net, layer, x, config.labels()?, Bias::With);
                net.output("logits", &logits);
            }
            Head::Spans(layer, count) => {
                let count = match count {
                    Spans::Two => 2,
                    Spans::Labels => config.labels()?,
                };
                if count != 2 {
                    return Err(config.refused("num_labels", "a head that answers questions has two"));
                }
                let scores = self.scores(net, layer, x, 2, Bias::With);
                for (which, name) in ["start_logits", "end_logits"].into_iter().enumerate() {
                    let attributes = json!({"starts": [0, 0, which], "sizes": ["batch", "sequence", 1]});
                    let one = net.node(&format!("{layer}.{which}"), "slice", &[&scores], attributes);
                    let shape = json!({"shape": ["batch", "sequence"]});
                    net.node(name, "reshape", &[&one], shape);
                    net.output(name, name);
                }
            }
            Head::Last(layer) => {
                let labels = config.labels()?;
                let scores = self.scores(net, layer, x, labels, Bias::Without);
                let last = last_position(config, net)?;
                let logits = net.node("logits", "gather_nd", &[&scores, &last], json!({"batch_dims": 1}));
                net.output("logits", &logits);
            }
            // Of networks that are joined from several stacks, which write them.
            Head::Encoder | Head::Projected | Head::Image(_) => {
                return Err(config.refused("architectures", "this head is not of this family"));
            }
            Head::First(first) => {
                let labels = match first.labels {
                    Labels::Named => config.labels()?,
                    Labels::Two => 2,
                };
                let pooled = self.pooled(net, first, x);
                let logits = self.scores(net, first.classifier, &pooled, labels, Bias::With);
                net.output("logits", &logits);
            }
        }
        Ok(())
    }

    fn scores(&self, net: &mut Net, layer: &str, x: &str, labels: u64, bias: Bias) -> String {
        net.linear(layer, x, Features { from: self.hidden, to: labels }, bias, Order::OutIn)
    }

    fn language(&self, net: &mut Net, x: &str) -> String {
        let Self { hidden, vocabulary, .. } = *self;
        let features = Features { from: hidden, to: vocabulary };
        let by_table = json!({"transpose_right": true});
        match self.language {
            Language::Plain(plain) => self.plain(net, x, plain),
            Language::Transformed { dense, norm, projector, bias, activation } => {
                let square = Features { from: hidden, to: hidden };
                let y = net.linear(dense, x, square, Bias::With, Order::OutIn);
                let activation = activation.and_then(Activation::of_name).unwrap_or(self.activation);
                let y = activation.write(net, &format!("{dense}.activation"), &y);
                let y = net.norm(norm, &y, hidden, self.norm);
                if !self.tied {
                    return net.linear(projector, &y, features, Bias::With, Order::OutIn);
                }
                let bias = net.param(bias, &[vocabulary], "zeros");
                net.node(projector, "dense", &[&y, self.table, &bias], by_table)
            }
        }
    }

    fn plain(&self, net: &mut Net, x: &str, plain: Plain) -> String {
        let Self { hidden: from, vocabulary: to, .. } = *self;
        let Plain { layer, bias, scale, cap } = plain;
        let x = net.scaled(&format!("{layer}.scaled"), x, scale);
        let scores = if self.tied {
            let mut inputs = vec![x, self.table.to_owned()];
            if bias == Bias::With {
                inputs.push(net.param(&format!("{layer}.bias"), &[to], "zeros"));
            }
            let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
            net.node(layer, "dense", &inputs, json!({"transpose_right": true}))
        } else {
            net.linear(layer, &x, Features { from, to }, bias, Order::OutIn)
        };
        match cap {
            Some(cap) => net.capped("logits.capped", &scores, cap),
            None => scores,
        }
    }

    /// The first position, through a layer.
    fn pooled(&self, net: &mut Net, first: First, x: &str) -> String {
        let hidden = self.hidden;
        let name = match first.pooler.strip_prefix('.') {
            Some(rest) => format!("{}{rest}", self.prefix),
            None => first.pooler.to_owned(),
        };
        let attributes = json!({"starts": [0, 0, 0], "sizes": ["batch", 1, hidden]});
        let one = net.node(&format!("{name}.first"), "slice", &[x], attributes);
        let one = net.node(&format!("{name}.row"), "reshape", &[&one], json!({"shape": ["batch", hidden]}));
        let square = Features { from: hidden, to: hidden };
        let y = net.linear(&name, &one, square, Bias::With, Order::OutIn);
        let name = format!("{name}.activation");
        match first.activation {
            Pooled::Tanh => net.node(&name, "tanh", &[&y], json!({})),
            Pooled::Relu => RELU.write(net, &name, &y),
        }
    }
}

/// The last position, in each row of the batch, whose token is no padding: `i64[batch, 1]`. Without a
/// token for padding it is the last of all, in a batch of one.
fn last_position(config: &Config, net: &mut Net) -> Result<String> {
    let positions =
        net.node("positions.all", "iota", &[], json!({"type": "i64[batch, sequence]", "axis": 1}));
    let numbered = match config.get("pad_token_id") {
        None => {
            net.at_most("batch", limit("largest batch without a pad_token_id", 1));
            positions
        }
        Some(pad) => {
            let pad =
                pad.as_i64().ok_or_else(|| config.refused("pad_token_id", &format!("{pad} is no token")))?;
            let pad = net.constant("padding", "i64[]", json!(pad));
            let other = net.node("padding.not", "ne", &["input_ids", &pad], json!({}));
            let other = net.node("padding.count", "convert", &[&other], json!({"to": "i64"}));
            net.node("positions.tokens", "mul", &[&positions, &other], json!({}))
        }
    };
    Ok(net.node("positions.last", "argmax", &[&numbered], json!({"axis": 1, "keep": true})))
}
