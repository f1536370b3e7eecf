//! Functions of feed-forward layers, by the names of the library (its `ACT2FN`), as steps of
//! elementwise operations.

use serde_json::json;

use super::config::Config;
use super::net::Net;
use crate::error::Result;

/// One elementwise step from `y`, which begins as the function's argument `x`.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// An operation on `y`.
    Apply(&'static str),
    /// `y` and a number.
    With(&'static str, f64),
    /// `y` and `x`.
    WithArgument(&'static str),
}

use Step::{Apply, With, WithArgument};

/// A function of one element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activation(&'static [Step]);

pub(super) const RELU: Activation = Activation(&[Apply("relu")]);

/// What BLOOM's class computes, whatever its configuration says.
pub(super) const BLOOM_GELU: Activation = Activation(&[Apply("gelu_tanh")]);

const FUNCTIONS: &[(&[&str], Activation)] = &[
    (&["gelu", "gelu_python"], Activation(&[Apply("gelu")])),
    (
        &["gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"],
        Activation(&[Apply("gelu_tanh")]),
    ),
    (&["gelu_10"], Activation(&[Apply("gelu"), With("max", -10.0), With("min", 10.0)])),
    (&["quick_gelu"], Activation(&[With("mul", 1.702), Apply("sigmoid"), WithArgument("mul")])),
    (&["relu"], RELU),
    (&["relu2"], Activation(&[Apply("relu"), WithArgument("mul")])),
    (&["relu6"], Activation(&[Apply("relu"), With("min", 6.0)])),
    (&["leaky_relu"], Activation(&[With("mul", 0.01), WithArgument("max")])),
    (&["silu", "swish"], Activation(&[Apply("silu")])),
    (&["mish"], Activation(&[Apply("softplus"), Apply("tanh"), WithArgument("mul")])),
    (&["sigmoid"], Activation(&[Apply("sigmoid")])),
    (&["tanh"], Activation(&[Apply("tanh")])),
    (&["linear"], Activation(&[])),
];

impl Activation {
    /// The function that a field names. Error: it is none of those known.
    pub(super) fn read(config: &Config, field: &'static str, default: &'static str) -> Result<Self> {
        Self::named(config, field, config.text(field, default)?)
    }

    /// The function of a name, which a field gives. Error: it is none of those known.
    pub(super) fn named(config: &Config, field: &str, name: &str) -> Result<Self> {
        Self::of_name(name).ok_or_else(|| {
            let known: Vec<&str> = FUNCTIONS.iter().flat_map(|(names, _)| *names).copied().collect();
            let message = format!("{name} is not supported");
            config.refused(field, &message).with_help(format!("{} are", known.join(", ")))
        })
    }

    /// The function of a name, where it is known.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        FUNCTIONS.iter().find(|(names, _)| names.contains(&name)).map(|(_, function)| *function)
    }

    /// Writes the function of `x`; the last node has this name.
    pub(super) fn write(self, net: &mut Net, name: &str, x: &str) -> String {
        let mut y = x.to_owned();
        for (number, step) in self.0.iter().enumerate() {
            let last = number + 1 == self.0.len();
            let node = if last { name.to_owned() } else { format!("{name}.{number}") };
            y = match *step {
                Apply(op) => net.node(&node, op, &[&y], json!({})),
                WithArgument(op) => net.node(&node, op, &[&y, x], json!({})),
                With(op, number) => {
                    let number = net.scalar(&format!("{node}.number"), number);
                    net.node(&node, op, &[&y, &number], json!({}))
                }
            };
        }
        y
    }
}
