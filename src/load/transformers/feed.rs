//! Feed-forward parts of blocks: plain, gated, and several of which a router chooses (Shazeer and others
//! 2017).
//!
//! Every expert is computed for every row, and those that were not chosen weigh 0: the result is the
//! library's, the arithmetic that of all experts.

use serde_json::{Value, json};

use super::attention::Sides;
use super::blocks::Blocks;
use super::net::{Bias, Features, Net};
use super::settings::{Clamp, ExpertArrays, Experts, Feed, Gated, Weighing};
use crate::ir::BlockFormat;

impl Blocks<'_> {
    pub(super) fn feed(&self, net: &mut Net, inside: &str, feed: &Feed, x: &str) -> String {
        let (settings, hidden) = (self.settings, self.settings.hidden);
        match *feed {
            Feed::Plain { inner, up, act, down } => {
                let y = self.layer(net, &format!("{inside}{up}"), x, [hidden, inner]);
                let y = settings.activation.write(net, &format!("{inside}{act}"), &y);
                self.layer(net, &format!("{inside}{down}"), &y, [inner, hidden])
            }
            Feed::Gated(gated) => self.gated(net, inside, &gated, x),
            Feed::GatedJoined { inner, both, act, down } => {
                let both = format!("{inside}{both}");
                let joined = self.layer(net, &both, x, [hidden, 2 * inner]);
                let mut half = |name: &str, start: u64| {
                    let attributes =
                        json!({"starts": [0, 0, start], "sizes": [self.sides.batch, self.sides.rows, inner]});
                    net.node(&format!("{both}.{name}"), "slice", &[&joined], attributes)
                };
                let (gate, up) = (half("gate", 0), half("up", inner));
                let gate = settings.activation.write(net, &format!("{inside}{act}"), &gate);
                let y = net.node(&format!("{both}.gated"), "mul", &[&gate, &up], json!({}));
                self.layer(net, &format!("{inside}{down}"), &y, [inner, hidden])
            }
            Feed::Experts(ref experts) => self.experts(net, inside, experts, x),
        }
    }

    fn layer(&self, net: &mut Net, name: &str, x: &str, sizes: [u64; 2]) -> String {
        let [from, to] = sizes;
        net.linear(name, x, Features { from, to }, self.settings.biases.feed, self.names().order)
    }

    fn gated(&self, net: &mut Net, inside: &str, gated: &Gated, x: &str) -> String {
        let Gated { inner, gate, act, up, down } = *gated;
        let hidden = self.settings.hidden;
        let gate = self.layer(net, &format!("{inside}{gate}"), x, [hidden, inner]);
        let gate = self.settings.activation.write(net, &format!("{inside}{act}"), &gate);
        let up = self.layer(net, &format!("{inside}{up}"), x, [hidden, inner]);
        let y = net.node(&format!("{inside}mlp.gated"), "mul", &[&gate, &up], json!({}));
        self.layer(net, &format!("{inside}{down}"), &y, [inner, hidden])
    }

    fn experts(&self, net: &mut Net, inside: &str, experts: &Experts, x: &str) -> String {
        let weights = self.weights(net, inside, experts, x);
        let y = match experts.arrays {
            ExpertArrays::Each { under, ref layers } => {
                let each: Vec<String> = (0..experts.count)
                    .map(|number| {
                        let under = format!("{inside}{under}.{number}.");
                        let y = self.gated(net, &under, layers, x);
                        let attributes =
                            json!({"starts": [0, 0, number], "sizes": [self.sides.batch, self.sides.rows, 1]});
                        let weight = net.node(&format!("{under}weight"), "slice", &[&weights], attributes);
                        net.node(&format!("{under}weighted"), "mul", &[&y, &weight], json!({}))
                    })
                    .collect();
                sum(net, &format!("{inside}{under}.sum"), &each)
            }
            ExpertArrays::Stacked { .. } if net.has_experts_in_blocks() => {
                self.apart(net, inside, experts, [x, &weights])
            }
            ExpertArrays::Stacked { .. } => self.stacked(net, inside, experts, [x, &weights]),
            ExpertArrays::Biased { .. } => self.biased(net, inside, experts, [x, &weights]),
        };
        let Some(shared) = experts.shared else { return y };
        let passed = self.gated(net, inside, &shared.layers, x);
        let name = format!("{inside}{}", shared.score);
        let features = Features { from: self.settings.hidden, to: 1 };
        let score = net.linear(&name, x, features, Bias::Without, self.names().order);
        let share = net.node(&format!("{name}.share"), "sigmoid", &[&score], json!({}));
        let passed = net.node(&format!("{name}.weighted"), "mul", &[&passed, &share], json!({}));
        net.sum(&format!("{name}.sum"), &y, &passed)
    }

    /// What each expert weighs for each row, 0 where it was not chosen: `[batch, rows, experts]`.
    fn weights(&self, net: &mut Net, inside: &str, experts: &Experts, x: &str) -> String {
        let name = format!("{inside}{}", experts.router);
        let features = Features { from: self.settings.hidden, to: experts.count };
        let mut scores = net.linear(&name, x, features, experts.router_bias, self.names().order);
        let last = json!({"axis": -1});
        if experts.weighing != Weighing::Softmax {
            scores = net.node(&format!("{name}.shares"), "softmax", &[&scores], last.clone());
        }
        let most = json!({"axis": -1, "k": experts.chosen});
        let [mut best, chosen] = net.pair(&format!("{name}.chosen"), "topk", &[&scores], most);
        match experts.weighing {
            Weighing::Shares => {}
            Weighing::SharesOfChosen => {
                let attributes = json!({"kind": "sum", "axes": [-1], "keep": true});
                let sum = net.node(&format!("{name}.sum"), "reduce", &[&best], attributes);
                best = net.node(&format!("{name}.normalised"), "div", &[&best, &sum], json!({}));
            }
            Weighing::Softmax => best = net.node(&format!("{name}.softmax"), "softmax", &[&best], last),
        }
        // Every expert computes every row, and counts with this weight: which rows an expert would have is data, and a
        // plan has fixed sizes.
        let zero = net.scalar(&format!("{name}.zero"), 0.0);
        let shape = json!({"shape": [self.sides.batch, self.sides.rows, experts.count]});
        let none = net.node(&format!("{name}.none"), "broadcast", &[&zero], shape);
        net.node(
            &format!("{name}.weights"),
            "scatter_elements",
            &[&none, &chosen, &best],
            json!({"axis": -1}),
        )
    }

    /// Experts that lie in one array; `values`: what they read, and their weights.
    fn stacked(&self, net: &mut Net, inside: &str, experts: &Experts, values: [&str; 2]) -> String {
        let ExpertArrays::Stacked { inner, both, down, clamp } = experts.arrays else {
            return values[0].to_owned();
        };
        let (hidden, count) = (self.settings.hidden, experts.count);
        let Sides { batch, rows, .. } = &self.sides;
        let [x, weights] = values;
        let both = format!("{inside}{both}");
        let shape = json!({"shape": [batch, 1, rows, hidden]});
        let x = net.node(&format!("{both}.rows"), "reshape", &[x], shape);
        let y = by_expert(net, &both, &x, [count, hidden, 2 * inner]);
        let lead = [json!(batch), json!(count), json!(rows)];
        let y = Pairs { lead: &lead, inner, clamp }.gated(net, &both, &y);
        let down = format!("{inside}{down}");
        let y = by_expert(net, &down, &y, [count, inner, hidden]);
        let perm = json!({"perm": [0, 2, 1]});
        let weights = net.node(&format!("{down}.weights_by_expert"), "transpose", &[weights], perm);
        let shape = json!({"shape": [batch, count, rows, 1]});
        let weights = net.node(&format!("{down}.weights"), "reshape", &[&weights], shape);
        let y = net.node(&format!("{down}.weighted"), "mul", &[&y, &weights], json!({}));
        net.node(&format!("{down}.sum"), "reduce", &[&y], json!({"kind": "sum", "axes": [1]}))
    }

    /// The same experts, each with its own matrices in blocks of few bits, which one product reads packed.
    fn apart(&self, net: &mut Net, inside: &str, experts: &Experts, values: [&str; 2]) -> String {
        let ExpertArrays::Stacked { inner, both, down, clamp } = experts.arrays else {
            return values[0].to_owned();
        };
        let (hidden, count) = (self.settings.hidden, experts.count);
        let Sides { batch, rows, .. } = &self.sides;
        let [x, weights] = values;
        let (both, down) = (format!("{inside}{both}"), format!("{inside}{down}"));
        let both_bias = net.param(&format!("{both}_bias"), &[count, 2 * inner], "zeros");
        let down_bias = net.param(&format!("{down}_bias"), &[count, hidden], "zeros");
        let lead = [json!(batch), json!(rows)];
        let each: Vec<String> = (0..count)
            .map(|number| {
                let matrix = format!("{both}/{number}");
                let y = of_expert(net, &matrix, [x, &both_bias], number, [hidden, 2 * inner]);
                let y = Pairs { lead: &lead, inner, clamp }.gated(net, &matrix, &y);
                let matrix = format!("{down}/{number}");
                let y = of_expert(net, &matrix, [&y, &down_bias], number, [inner, hidden]);
                self.weighted(net, &matrix, [&y, weights], number)
            })
            .collect();
        sum(net, &format!("{down}.sum"), &each)
    }

    /// Experts with layers of their own, whose biases lie in one array.
    fn biased(&self, net: &mut Net, inside: &str, experts: &Experts, values: [&str; 2]) -> String {
        let ExpertArrays::Biased { under, layers, clamp } = experts.arrays else {
            return values[0].to_owned();
        };
        let (hidden, inner, under) = (self.settings.hidden, layers.inner, format!("{inside}{under}"));
        let [x, weights] = values;
        let [gate, up, down] =
            [(layers.gate, inner), (layers.up, inner), (layers.down, hidden)].map(|(layer, to)| {
                (layer, net.param(&format!("{under}.{layer}.bias"), &[experts.count, to], "zeros"))
            });
        let each: Vec<String> = (0..experts.count)
            .map(|number| {
                let own = format!("{under}.{number}");
                let linear =
                    |net: &mut Net, x: &str, (layer, biases): &(&str, String), [from, to]: [u64; 2]| {
                        let name = format!("{own}.{layer}");
                        let y =
                            net.linear(&name, x, Features { from, to }, Bias::Without, self.names().order);
                        with_bias(net, &name, [&y, biases], number, to)
                    };
                let (gate, up) =
                    (linear(net, x, &gate, [hidden, inner]), linear(net, x, &up, [hidden, inner]));
                let y = clamp.gated(net, &own, &gate, &up);
                let y = linear(net, &y, &down, [inner, hidden]);
                self.weighted(net, &own, [&y, weights], number)
            })
            .collect();
        sum(net, &format!("{under}.sum"), &each)
    }

    /// What an expert made, times its weight for each row.
    fn weighted(&self, net: &mut Net, name: &str, [y, weights]: [&str; 2], number: u64) -> String {
        let Sides { batch, rows, .. } = &self.sides;
        let attributes = json!({"starts": [0, 0, number], "sizes": [batch, rows, 1]});
        let weight = net.node(&format!("{name}.weight"), "slice", &[weights], attributes);
        net.node(&format!("{name}.weighted"), "mul", &[y, &weight], json!({}))
    }
}

impl Clamp {
    /// `(up + 1) * gate * sigmoid(alpha gate)`, both clamped: gpt-oss' form of SwiGLU.
    fn gated(&self, net: &mut Net, name: &str, gate: &str, up: &str) -> String {
        let most = net.scalar(&format!("{name}.most"), self.limit);
        let least = net.scalar(&format!("{name}.least"), -self.limit);
        let gate = net.node(&format!("{name}.gate.clamped"), "min", &[gate, &most], json!({}));
        let up = net.node(&format!("{name}.up.below"), "min", &[up, &most], json!({}));
        let up = net.node(&format!("{name}.up.clamped"), "max", &[&up, &least], json!({}));
        let steep = net.scaled(&format!("{name}.gate.steep"), &gate, self.alpha);
        let share = net.node(&format!("{name}.gate.share"), "sigmoid", &[&steep], json!({}));
        let gate = net.node(&format!("{name}.gate.function"), "mul", &[&gate, &share], json!({}));
        let one = net.scalar(&format!("{name}.one"), 1.0);
        let up = net.sum(&format!("{name}.up.above_one"), &up, &one);
        net.node(&format!("{name}.gated"), "mul", &[&up, &gate], json!({}))
    }
}

/// Gates and what they let through, in turns in the last axis.
struct Pairs<'a> {
    /// Sizes of the axes before.
    lead: &'a [Value],
    inner: u64,
    clamp: Clamp,
}

impl Pairs<'_> {
    fn gated(&self, net: &mut Net, name: &str, y: &str) -> String {
        let pairs = json!({"shape": self.sizes(&[json!(self.inner), json!(2)])});
        let y = net.node(&format!("{name}.pairs"), "reshape", &[y], pairs);
        let (gate, up) =
            (self.one(net, &format!("{name}.gate"), &y, 0), self.one(net, &format!("{name}.up"), &y, 1));
        self.clamp.gated(net, name, &gate, &up)
    }

    /// Every second number, from the first or the second on.
    fn one(&self, net: &mut Net, name: &str, pairs: &str, which: u64) -> String {
        let mut starts = vec![0; self.lead.len() + 1];
        starts.push(which);
        let sizes = self.sizes(&[json!(self.inner), json!(1)]);
        let pair =
            net.node(&format!("{name}.pair"), "slice", &[pairs], json!({"starts": starts, "sizes": sizes}));
        net.node(name, "reshape", &[&pair], json!({"shape": self.sizes(&[json!(self.inner)])}))
    }

    fn sizes(&self, rest: &[Value]) -> Vec<Value> {
        self.lead.iter().chain(rest).cloned().collect()
    }
}

/// `x` by the matrix of one expert, `[to, from]` in blocks, with its row of all experts' biases; `sizes`: from, to.
fn of_expert(net: &mut Net, name: &str, [x, biases]: [&str; 2], number: u64, sizes: [u64; 2]) -> String {
    let [from, to] = sizes;
    let matrix = net.param_in_blocks(name, &[to, from], BlockFormat::Mxfp4);
    let y = net.node(&format!("{name}.product"), "dense", &[x, &matrix], json!({"transpose_right": true}));
    with_bias(net, name, [&y, biases], number, to)
}

/// What a layer of an expert made, with its row of all experts' biases, `[experts, to]`.
fn with_bias(net: &mut Net, name: &str, [y, biases]: [&str; 2], number: u64, to: u64) -> String {
    let attributes = json!({"starts": [number, 0], "sizes": [1, to]});
    let bias = net.node(&format!("{name}.bias_of_expert"), "slice", &[biases], attributes);
    let bias = net.node(&format!("{name}.bias"), "reshape", &[&bias], json!({"shape": [to]}));
    net.sum(&format!("{name}.biased"), y, &bias)
}

/// `x`, `[batch, experts or 1, rows, from]`, by each expert's matrix, with its bias; `sizes`: experts, from, to.
fn by_expert(net: &mut Net, name: &str, x: &str, sizes: [u64; 3]) -> String {
    let [count, from, to] = sizes;
    let matrices = net.param(name, &[count, from, to], "normal");
    let bias = net.param(&format!("{name}_bias"), &[count, to], "zeros");
    let y = net.node(&format!("{name}.product"), "matmul", &[x, &matrices], json!({}));
    let shape = json!({"shape": [count, 1, to]});
    let bias = net.node(&format!("{name}.bias_by_expert"), "reshape", &[&bias], shape);
    net.sum(&format!("{name}.biased"), &y, &bias)
}

/// The sum of several values, one after the other.
fn sum(net: &mut Net, name: &str, values: &[String]) -> String {
    let Some((first, rest)) = values.split_first() else { return String::new() };
    let last = rest.len();
    rest.iter().enumerate().fold(first.clone(), |sum, (number, value)| {
        let name = if number + 1 == last { name.to_owned() } else { format!("{name}.{number}") };
        net.sum(&name, &sum, value)
    })
}
