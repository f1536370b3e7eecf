//! Functions of `keras.ops` that stand in a model as layers: `x + y`, `ops.mean(x, axis=1)`, `x[:, 0]`.
//!
//! Unlike layers they have no weights and no policy: they compute in the types of their operands, and some of their
//! operands are numbers that stand in the call.

mod arrange;
mod image;
mod item;
mod join;
mod linear;
mod loss;
mod lower;
mod make;
mod near;
mod neural;
mod numeric;
mod place;
mod ranked;
mod scalar;
mod spectrum;
mod statistics;
mod tensorflow;
mod tools;

pub(super) use lower::Operand;
pub(super) use numeric::angle;
pub(super) use numeric::at_or_below;
pub(super) use tensorflow::{Translated, translated};

use self::arrange::Arrange;
use self::image::Image;
use self::join::Join;
use self::linear::Linear;
use self::loss::Loss;
use self::make::Make;
use self::near::Near;
use self::neural::Neural;
use self::numeric::Numeric;
use self::place::Place;
use self::ranked::Ranked;
use self::scalar::Scalar;
use self::spectrum::Spectrum;
use self::statistics::{Norm, Statistics};
use super::activation::Activation;
use super::config::{Config, KerasVersion, Unsupported, dtype};
use crate::error::Result;
use crate::ir::{ArgReduce, Binary, Compare, DType, ReduceKind, Unary};

/// A function with the attributes of its configuration. Axes may be negative and count the batch.
#[derive(Debug)]
pub(super) enum Operation {
    Activation(Activation),
    Unary(Unary),
    Composed(Composed),
    Binary(Binary),
    /// To the nearest multiple of a power of ten, ties to an even one.
    Round {
        decimals: i64,
    },
    /// The quotient rounded down.
    FloorDivide,
    Compare(Compare),
    Where,
    Clip {
        low: Option<f64>,
        high: Option<f64>,
    },
    Cast(DType),
    Reduce(Reduce),
    Extreme(Extreme),
    /// Sizes, the batch included; -1 for what is left.
    Reshape(Vec<i64>),
    /// In reverse where there is no permutation.
    Transpose(Option<Vec<i64>>),
    Swap(i64, i64),
    ExpandDims(Vec<i64>),
    /// All axes of size 1 where none is named.
    Squeeze(Option<Vec<i64>>),
    Concatenate(i64),
    Stack(i64),
    Flip(Option<Vec<i64>>),
    MatMul,
    /// One side of a diagonal, with it.
    Triangle {
        upper: bool,
        diagonal: i64,
    },
    /// Sums of products by an equation between axes.
    Einsum(String),
    /// Elements of one axis by places of their own.
    TakeAlong(Option<i64>),
    /// `x[key]`
    Item,
    Arrange(Arrange),
    Numeric(Numeric),
    Scalar(Scalar),
    Neural(Neural),
    Image(Image),
    Join(Join),
    Linear(Linear),
    Loss(Loss),
    Make(Make),
    Near(Near),
    Norm(Norm),
    Place(Place),
    Ranked(Ranked),
    Spectrum(Spectrum),
    Statistics(Statistics),
}

/// Functions of one element that are several operations here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Composed {
    Square,
    /// `1 / sqrt(x)`
    ReciprocalRoot,
}

/// The position of the greatest or the least element; of all elements without an axis.
#[derive(Debug)]
pub(super) struct Extreme {
    kind: ArgReduce,
    axis: Option<i64>,
    keep: bool,
}

/// A reduction over axes; over all where none is named.
#[derive(Debug)]
pub(super) struct Reduce {
    kind: Reduction,
    axes: Option<Vec<i64>>,
    keep: bool,
    /// An extreme is this if no element is beyond it.
    initial: Option<f64>,
    /// The type of the result, where the function is told one.
    dtype: Option<DType>,
}

#[derive(Clone, Copy, Debug)]
enum Reduction {
    Plain(ReduceKind),
    Variance,
    StandardDeviation,
    LogSumExp,
}

impl Operation {
    /// The function of this class; none where it is not supported.
    pub(super) fn read(
        class: &str,
        config: Config<'_>,
        unsupported: &mut Unsupported,
    ) -> Result<Option<Self>> {
        if let Some(activation) = activation(class, config)? {
            return Ok(Some(Self::Activation(activation)));
        }
        if let Some(found) = elementwise(class) {
            return Ok(Some(found));
        }
        if let Some(scalar) = Scalar::read(class) {
            return Ok(Some(Self::Scalar(scalar)));
        }
        if let Some(kind) = reduction(class) {
            let axes = config.int_or_ints("axis")?;
            let keep = config.flag("keepdims", false)?;
            let is_extreme = matches!(kind, Reduction::Plain(ReduceKind::Max | ReduceKind::Min));
            let initial = if is_extreme { config.real("initial")? } else { None };
            let dtype = stated_type(config)?;
            return Ok(Some(Self::Reduce(Reduce { kind, axes, keep, initial, dtype })));
        }
        if let Some(arrange) = Arrange::read(class, config)? {
            return Ok(Some(Self::Arrange(arrange)));
        }
        if let Some(numeric) = Numeric::read(class, config)? {
            return Ok(Some(Self::Numeric(numeric)));
        }
        if let Some(neural) = Neural::read(class, config, unsupported)? {
            return Ok(Some(Self::Neural(neural)));
        }
        if let Some(found) = Self::of_files(class, config)? {
            return Ok(Some(found));
        }
        let one_axis = |key: &str| config.int(key)?.ok_or_else(|| config.missing(key));
        Ok(Some(match class {
            "Round" => Self::Round { decimals: config.int("decimals")?.unwrap_or(0) },
            "Where" => Self::Where,
            "Clip" => Self::Clip { low: config.real("x_min")?, high: config.real("x_max")? },
            "Cast" => match config.text("dtype")?.map(|name| (name, dtype(name))) {
                Some((_, Some(to))) => Self::Cast(to),
                Some((name, None)) => {
                    unsupported.add(config.place(), format!("a cast to {name}"));
                    return Ok(None);
                }
                None => return Err(config.missing("dtype")),
            },
            "Argmax" | "Argmin" => Self::Extreme(Extreme {
                kind: if class == "Argmax" { ArgReduce::Max } else { ArgReduce::Min },
                axis: config.int("axis")?,
                keep: config.flag("keepdims", false)?,
            }),
            "Reshape" => {
                Self::Reshape(config.int_or_ints("newshape")?.ok_or_else(|| config.missing("newshape"))?)
            }
            "Ravel" => Self::Reshape(vec![-1]),
            "Transpose" => Self::Transpose(config.ints("axes")?),
            "Swapaxes" => Self::Swap(one_axis("axis1")?, one_axis("axis2")?),
            "ExpandDims" => {
                Self::ExpandDims(config.int_or_ints("axis")?.ok_or_else(|| config.missing("axis"))?)
            }
            "Squeeze" => Self::Squeeze(config.int_or_ints("axis")?),
            "Concatenate" => Self::Concatenate(config.int("axis")?.unwrap_or(-1)),
            "Stack" => Self::Stack(config.int("axis")?.unwrap_or(0)),
            "Flip" => Self::Flip(config.int_or_ints("axis")?),
            "Fliplr" => Self::Flip(Some(vec![1])),
            "Flipud" => Self::Flip(Some(vec![0])),
            "Matmul" => Self::MatMul,
            "Tril" | "Triu" => {
                Self::Triangle { upper: class == "Triu", diagonal: config.int("k")?.unwrap_or(0) }
            }
            "Einsum" => {
                let equation = config.text("subscripts")?.ok_or_else(|| config.missing("subscripts"))?;
                Self::Einsum(equation.to_owned())
            }
            "TakeAlongAxis" => Self::TakeAlong(config.int("axis")?),
            "GetItem" => Self::Item,
            _ => return Ok(None),
        }))
    }
}

impl Operation {
    /// The functions that have files of their own and nothing that may be unsupported beside them.
    fn of_files(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        if class == "Norm" {
            return Ok(Norm::read(config)?.map(Self::Norm));
        }
        let readers: [fn(&str, Config<'_>) -> Result<Option<Self>>; 10] = [
            |class, config| Ok(Image::read(class, config)?.map(Self::Image)),
            |class, config| Ok(Join::read(class, config)?.map(Self::Join)),
            |class, config| Ok(Linear::read(class, config)?.map(Self::Linear)),
            |class, config| Ok(Loss::read(class, config)?.map(Self::Loss)),
            |class, config| Ok(Make::read(class, config)?.map(Self::Make)),
            |class, config| Ok(Near::read(class, config)?.map(Self::Near)),
            |class, config| Ok(Place::read(class, config)?.map(Self::Place)),
            |class, config| Ok(Ranked::read(class, config)?.map(Self::Ranked)),
            |class, config| Ok(Spectrum::read(class, config)?.map(Self::Spectrum)),
            |class, config| Ok(Statistics::read(class, config)?.map(Self::Statistics)),
        ];
        for reader in readers {
            if let Some(found) = reader(class, config)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Operands that a call may name, with their places among all of them.
pub(super) fn named_operands(class: &str) -> &'static [(&'static str, usize)] {
    match class {
        "Average" => &[("weights", 1)],
        "DotProductAttention" => &[("bias", 3), ("mask", 4), ("scale", 5)],
        "Isclose" | "AllClose" => &[("rtol", 2), ("atol", 3)],
        "LayerNorm" => &[("gamma", 1), ("beta", 2)],
        "BatchNorm" => &[("offset", 3), ("scale", 4)],
        "Pad" => &[("constant_values", 1)],
        "RMSNorm" => &[("scale", 1)],
        _ => &[],
    }
}

/// Activations of `keras.ops.nn`, whose parameters stand in the configuration.
fn activation(class: &str, config: Config<'_>) -> Result<Option<Activation>> {
    Ok(Some(match class {
        "LeakyRelu" => {
            Activation::Relu { max: None, slope: config.real_or("negative_slope", 0.2)?, threshold: 0.0 }
        }
        "Elu" => Activation::Elu { alpha: config.real_or("alpha", 1.0)?, scale: 1.0 },
        "Celu" => Activation::Celu { alpha: config.real_or("alpha", 1.0)? },
        "Squareplus" => Activation::Squareplus { b: config.real_or("b", 4.0)? },
        "SoftShrink" => Activation::Shrink { threshold: config.real_or("threshold", 0.5)?, soft: true },
        "HardShrink" => Activation::Shrink { threshold: config.real_or("threshold", 0.5)?, soft: false },
        "Softmax" => Activation::softmax(config, false)?,
        "LogSoftmax" => Activation::softmax(config, true)?,
        "Gelu" if config.flag("approximate", true)? => Activation::Unary(Unary::GeluTanh),
        "Gelu" => Activation::Unary(Unary::Gelu),
        "Relu" => Activation::Unary(Unary::Relu),
        "Relu6" => Activation::Relu { max: Some(6.0), slope: 0.0, threshold: 0.0 },
        "Sigmoid" => Activation::Unary(Unary::Sigmoid),
        "Silu" => Activation::Unary(Unary::Silu),
        "Softplus" => Activation::Unary(Unary::Softplus),
        _ => {
            let name = match class {
                "Selu" => "selu",
                "Softsign" => "softsign",
                "LogSigmoid" => "log_sigmoid",
                "HardSigmoid" => "hard_sigmoid",
                "HardSilu" => "hard_silu",
                "HardTanh" => "hard_tanh",
                "TanhShrink" => "tanh_shrink",
                _ => return Ok(None),
            };
            return Ok(Activation::named(name, KerasVersion::Three));
        }
    }))
}

fn elementwise(class: &str) -> Option<Operation> {
    let unary = |unary| Some(Operation::Unary(unary));
    let binary = |binary| Some(Operation::Binary(binary));
    let compare = |compare| Some(Operation::Compare(compare));
    match class {
        "Absolute" | "Abs" => unary(Unary::Abs),
        "Negative" => unary(Unary::Neg),
        "StopGradient" => unary(Unary::Detach),
        "Sign" => unary(Unary::Sign),
        "Exp" => unary(Unary::Exp),
        "Expm1" => unary(Unary::Expm1),
        "Log" => unary(Unary::Log),
        "Log1p" => unary(Unary::Log1p),
        "Sqrt" => unary(Unary::Sqrt),
        "Rsqrt" => Some(Operation::Composed(Composed::ReciprocalRoot)),
        "Square" => Some(Operation::Composed(Composed::Square)),
        "Reciprocal" => unary(Unary::Reciprocal),
        "Floor" => unary(Unary::Floor),
        "Ceil" => unary(Unary::Ceil),
        "Sin" => unary(Unary::Sin),
        "Cos" => unary(Unary::Cos),
        "Tan" => unary(Unary::Tan),
        "Arctan" => unary(Unary::Atan),
        "Sinh" => unary(Unary::Sinh),
        "Cosh" => unary(Unary::Cosh),
        "Tanh" => unary(Unary::Tanh),
        "Erf" => unary(Unary::Erf),
        "LogicalNot" => unary(Unary::Not),
        "Isnan" => unary(Unary::IsNan),
        "Isinf" => unary(Unary::IsInf),
        "Add" => binary(Binary::Add),
        "Subtract" => binary(Binary::Sub),
        "Multiply" => binary(Binary::Mul),
        "Divide" | "TrueDivide" => binary(Binary::Div),
        "FloorDivide" => Some(Operation::FloorDivide),
        "Mod" => binary(Binary::Mod),
        "Power" => binary(Binary::Pow),
        "Maximum" => binary(Binary::Max),
        "Minimum" => binary(Binary::Min),
        "LogicalAnd" => binary(Binary::And),
        "LogicalOr" => binary(Binary::Or),
        "LogicalXor" => binary(Binary::Xor),
        "Equal" => compare(Compare::Eq),
        "NotEqual" => compare(Compare::Ne),
        "Less" => compare(Compare::Lt),
        "LessEqual" => compare(Compare::Le),
        "Greater" => compare(Compare::Gt),
        "GreaterEqual" => compare(Compare::Ge),
        _ => None,
    }
}

fn reduction(class: &str) -> Option<Reduction> {
    Some(match class {
        "Sum" => Reduction::Plain(ReduceKind::Sum),
        "Mean" => Reduction::Plain(ReduceKind::Mean),
        "Max" | "Amax" => Reduction::Plain(ReduceKind::Max),
        "Min" | "Amin" => Reduction::Plain(ReduceKind::Min),
        "Prod" => Reduction::Plain(ReduceKind::Prod),
        "Var" => Reduction::Variance,
        "Std" => Reduction::StandardDeviation,
        "Logsumexp" => Reduction::LogSumExp,
        _ => return None,
    })
}

/// The type that a function is told to compute in; none where it is that of its operand.
fn stated_type(config: Config<'_>) -> Result<Option<DType>> {
    let Some(name) = config.text("dtype")? else { return Ok(None) };
    dtype(name).map(Some).ok_or_else(|| config.fault("dtype", format!("{name} is not supported yet")))
}
