//! Activations: functions named by layers, and the activation layers themselves.

use serde_json::Value;

use super::config::{Config, KerasVersion, Unsupported};
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Binary, Compare, Op, Unary, ValueId};

/// An activation with its parameters. Axes may be negative.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Activation {
    Linear,
    Unary(Unary),
    /// `x` between `threshold` and `max`, `slope * (x - threshold)` below.
    Relu {
        max: Option<f64>,
        slope: f64,
        threshold: f64,
    },
    /// `scale * x` above zero, `scale * alpha * (e^x - 1)` below.
    Elu {
        alpha: f64,
        scale: f64,
    },
    /// `max(x, 0) + min(0, alpha * (e^(x / alpha) - 1))`
    Celu {
        alpha: f64,
    },
    /// `slope * x + offset` cut to `low..=high`.
    Clipped {
        slope: f64,
        offset: f64,
        low: f64,
        high: f64,
    },
    /// `x` times the cut line.
    HardSilu,
    Softsign,
    Mish,
    LogSigmoid,
    TanhShrink,
    /// Zero within `threshold` of zero; `soft` moves the rest towards zero by it.
    Shrink {
        threshold: f64,
        soft: bool,
    },
    /// `(x + sqrt(x^2 + b)) / 2`
    Squareplus {
        b: f64,
    },
    /// Softmax, or its logarithm.
    Softmax {
        axis: i64,
        log: bool,
    },
    /// The same over all elements of several axes.
    SoftmaxOver {
        axes: Vec<i64>,
        log: bool,
    },
}

const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

impl Activation {
    /// The activation in field `key`; linear where there is none. `version` decides between the two
    /// definitions of `hard_sigmoid`.
    pub(super) fn read(
        config: Config<'_>,
        key: &str,
        default: &str,
        version: KerasVersion,
        unsupported: &mut Unsupported,
    ) -> Result<Self> {
        let value = config.get(key);
        let name = match value {
            None => Some(default),
            Some(Value::String(name)) => Some(name.as_str()),
            // A function wrapped in an object: its name is the configuration.
            Some(Value::Object(object)) => object.get("config").and_then(Value::as_str),
            Some(_) => return Err(config.fault(key, "expected a function's name or an object")),
        };
        if let Some(name) = name {
            if let Some(found) = Self::named(name, version) {
                return Ok(found);
            }
            unsupported.add(config.place(), format!("{key} {name}"));
            return Ok(Self::Linear);
        }
        // A layer as activation.
        let outer = Config::of(value.unwrap_or(&Value::Null), config.place())?;
        let class = outer.text("class_name")?.ok_or_else(|| config.fault(key, "has no class_name"))?;
        let inner = outer.get("config").map(|inner| Config::of(inner, config.place())).transpose()?;
        let empty = serde_json::Map::new();
        let inner = inner.unwrap_or(Config::new(&empty, config.place()));
        match Self::layer(class, inner, version, unsupported)? {
            Some(found) => Ok(found),
            None => {
                unsupported.add(config.place(), format!("{key} {class}"));
                Ok(Self::Linear)
            }
        }
    }

    /// A softmax over the axes of a configuration.
    pub(super) fn softmax(config: Config<'_>, log: bool) -> Result<Self> {
        Ok(match config.int_or_ints("axis")?.as_deref() {
            None => Self::Softmax { axis: -1, log },
            Some([axis]) => Self::Softmax { axis: *axis, log },
            Some(axes) => Self::SoftmaxOver { axes: axes.to_vec(), log },
        })
    }

    /// The activation with this name in `keras.activations`.
    pub(super) fn named(name: &str, version: KerasVersion) -> Option<Self> {
        Some(match name {
            "linear" => Self::Linear,
            "relu" => Self::Unary(Unary::Relu),
            "relu6" => Self::Relu { max: Some(6.0), slope: 0.0, threshold: 0.0 },
            "sigmoid" => Self::Unary(Unary::Sigmoid),
            "tanh" => Self::Unary(Unary::Tanh),
            "softplus" => Self::Unary(Unary::Softplus),
            "silu" | "swish" => Self::Unary(Unary::Silu),
            "gelu" => Self::Unary(Unary::Gelu),
            "exponential" => Self::Unary(Unary::Exp),
            "softmax" => Self::Softmax { axis: -1, log: false },
            "log_softmax" => Self::Softmax { axis: -1, log: true },
            "elu" => Self::Elu { alpha: 1.0, scale: 1.0 },
            "selu" => Self::Elu { alpha: SELU_ALPHA, scale: SELU_SCALE },
            "celu" => Self::Celu { alpha: 1.0 },
            "leaky_relu" => Self::Relu { max: None, slope: 0.2, threshold: 0.0 },
            "hard_sigmoid" if version == KerasVersion::Two => {
                Self::Clipped { slope: 0.2, offset: 0.5, low: 0.0, high: 1.0 }
            }
            "hard_sigmoid" => Self::Clipped { slope: 1.0 / 6.0, offset: 0.5, low: 0.0, high: 1.0 },
            "hard_silu" | "hard_swish" => Self::HardSilu,
            "hard_tanh" => Self::Clipped { slope: 1.0, offset: 0.0, low: -1.0, high: 1.0 },
            "softsign" => Self::Softsign,
            "mish" => Self::Mish,
            "log_sigmoid" => Self::LogSigmoid,
            "tanh_shrink" => Self::TanhShrink,
            "soft_shrink" => Self::Shrink { threshold: 0.5, soft: true },
            "hard_shrink" => Self::Shrink { threshold: 0.5, soft: false },
            "squareplus" => Self::Squareplus { b: 4.0 },
            _ => return None,
        })
    }

    /// The activation that a layer class is; none for other classes.
    pub(super) fn layer(
        class: &str,
        config: Config<'_>,
        version: KerasVersion,
        unsupported: &mut Unsupported,
    ) -> Result<Option<Self>> {
        Ok(Some(match class {
            "Activation" => Self::read(config, "activation", "linear", version, unsupported)?,
            "ReLU" => Self::Relu {
                max: config.real("max_value")?,
                slope: config.real_or("negative_slope", 0.0)?,
                threshold: config.real_or("threshold", 0.0)?,
            },
            "LeakyReLU" => {
                let slope = config.real("negative_slope")?.or(config.real("alpha")?).unwrap_or(0.3);
                Self::Relu { max: None, slope, threshold: 0.0 }
            }
            "ThresholdedReLU" => {
                // Zero at and below theta, x above.
                Self::Relu { max: None, slope: 0.0, threshold: config.real_or("theta", 1.0)? }
            }
            "ELU" => Self::Elu { alpha: config.real_or("alpha", 1.0)?, scale: 1.0 },
            "Softmax" => Self::softmax(config, false)?,
            _ => return Ok(None),
        }))
    }

    /// Whether the function of a whole number is one: it is only cut off.
    pub(super) fn keeps_whole(&self) -> bool {
        match self {
            Self::Unary(Unary::Relu) => true,
            Self::Relu { max, slope, threshold } => {
                *slope == 0.0 && *threshold == 0.0 && max.is_none_or(|max| max.fract() == 0.0)
            }
            Self::Clipped { slope, offset, .. } => *slope == 1.0 && *offset == 0.0,
            _ => false,
        }
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        match self {
            Self::Linear => Ok(x),
            Self::Unary(unary) => site.unary(*unary, x),
            Self::Relu { max, slope, threshold } => relu(site, x, *max, *slope, *threshold),
            Self::Elu { alpha, scale } => {
                let low = site.binary_scalar(Binary::Min, x, 0.0)?;
                let low = site.unary(Unary::Expm1, low)?;
                let low = site.binary_scalar(Binary::Mul, low, alpha * scale)?;
                let high = if *scale == 1.0 { x } else { site.binary_scalar(Binary::Mul, x, *scale)? };
                above(site, x, 0.0, high, low)
            }
            Self::Celu { alpha } => {
                let high = site.unary(Unary::Relu, x)?;
                let low = site.binary_scalar(Binary::Min, x, 0.0)?;
                let low = site.binary_scalar(Binary::Div, low, *alpha)?;
                let low = site.unary(Unary::Expm1, low)?;
                let low = site.binary_scalar(Binary::Mul, low, *alpha)?;
                site.binary(Binary::Add, high, low)
            }
            Self::Clipped { slope, offset, low, high } => clipped(site, x, *slope, *offset, *low, *high),
            Self::HardSilu => {
                let gate = clipped(site, x, 1.0 / 6.0, 0.5, 0.0, 1.0)?;
                site.binary(Binary::Mul, x, gate)
            }
            Self::Softsign => {
                let divisor = site.unary(Unary::Abs, x)?;
                let divisor = site.binary_scalar(Binary::Add, divisor, 1.0)?;
                site.binary(Binary::Div, x, divisor)
            }
            Self::Mish => {
                let gate = site.unary(Unary::Softplus, x)?;
                let gate = site.unary(Unary::Tanh, gate)?;
                site.binary(Binary::Mul, x, gate)
            }
            Self::LogSigmoid => {
                let negative = site.unary(Unary::Neg, x)?;
                let value = site.unary(Unary::Softplus, negative)?;
                site.unary(Unary::Neg, value)
            }
            Self::TanhShrink => {
                let tanh = site.unary(Unary::Tanh, x)?;
                site.binary(Binary::Sub, x, tanh)
            }
            Self::Shrink { threshold, soft } => {
                let zero = site.scalar_like(0.0, x)?;
                let shift = if *soft { *threshold } else { 0.0 };
                let high = site.binary_scalar(Binary::Sub, x, shift)?;
                let low = site.binary_scalar(Binary::Add, x, shift)?;
                let high = above(site, x, *threshold, high, zero)?;
                let negative = site.scalar_like(-threshold, x)?;
                let below = site.apply(Op::Compare(Compare::Lt), &[x, negative])?;
                site.apply(Op::Select, &[below, low, high])
            }
            Self::Squareplus { b } => {
                let root = site.binary(Binary::Mul, x, x)?;
                let root = site.binary_scalar(Binary::Add, root, *b)?;
                let root = site.unary(Unary::Sqrt, root)?;
                let sum = site.binary(Binary::Add, x, root)?;
                site.binary_scalar(Binary::Mul, sum, 0.5)
            }
            Self::Softmax { axis, log } => {
                let axis = site.axis(x, *axis)? as u32;
                site.apply(Op::Softmax { axis, log: *log }, &[x])
            }
            Self::SoftmaxOver { axes, log } => softmax_over(site, x, axes, *log),
        }
    }
}

/// The axes become one at the end, and are put back.
fn softmax_over(site: &mut Site<'_>, x: ValueId, axes: &[i64], log: bool) -> Result<ValueId> {
    let rank = site.rank(x);
    let mut over = axes.iter().map(|&axis| site.axis(x, axis)).collect::<Result<Vec<usize>>>()?;
    over.sort_unstable();
    over.dedup();
    let rest: Vec<usize> = (0..rank).filter(|axis| !over.contains(axis)).collect();
    let perm: Vec<usize> = rest.iter().chain(&over).copied().collect();
    let moved = site.transpose(x, &perm)?;
    let sizes = site.sizes(moved);
    let mut merged = sizes[..rest.len()].to_vec();
    merged.push(site.product(&sizes[rest.len()..])?);
    let rows = site.reshape(moved, merged)?;
    let shares = site.apply(Op::Softmax { axis: rest.len() as u32, log }, &[rows])?;
    let shares = site.reshape(shares, sizes)?;
    let mut back = vec![0; rank];
    perm.iter().enumerate().for_each(|(to, &from)| back[from] = to);
    site.transpose(shares, &back)
}

fn relu(site: &mut Site<'_>, x: ValueId, max: Option<f64>, slope: f64, threshold: f64) -> Result<ValueId> {
    let cut = |site: &mut Site<'_>, value: ValueId| match max {
        Some(max) => site.binary_scalar(Binary::Min, value, max),
        None => Ok(value),
    };
    if threshold == 0.0 && slope == 0.0 {
        let value = site.unary(Unary::Relu, x)?;
        return cut(site, value);
    }
    let low = match (slope == 0.0, threshold == 0.0) {
        (true, _) => site.scalar_like(0.0, x)?,
        (false, true) => site.binary_scalar(Binary::Mul, x, slope)?,
        (false, false) => {
            let low = site.binary_scalar(Binary::Sub, x, threshold)?;
            site.binary_scalar(Binary::Mul, low, slope)?
        }
    };
    let value = above(site, x, threshold, x, low)?;
    cut(site, value)
}

/// `high` where `x > threshold`, else `low`.
fn above(site: &mut Site<'_>, x: ValueId, threshold: f64, high: ValueId, low: ValueId) -> Result<ValueId> {
    let threshold = site.scalar_like(threshold, x)?;
    let condition = site.apply(Op::Compare(Compare::Gt), &[x, threshold])?;
    site.apply(Op::Select, &[condition, high, low])
}

fn clipped(site: &mut Site<'_>, x: ValueId, slope: f64, offset: f64, low: f64, high: f64) -> Result<ValueId> {
    let mut value = x;
    if slope != 1.0 {
        value = site.binary_scalar(Binary::Mul, value, slope)?;
    }
    if offset != 0.0 {
        value = site.binary_scalar(Binary::Add, value, offset)?;
    }
    let value = site.binary_scalar(Binary::Max, value, low)?;
    site.binary_scalar(Binary::Min, value, high)
}
