//! Functions of `keras.ops.nn` that are layers without weights: their kernels and statistics are operands.

use super::super::config::{Config, Unsupported};
use super::super::conv::{Padding, channels, layout, ordered};
use super::super::lower::Site;
use super::super::reshape::Rearrange;
use super::lower::{Operand, float, tensor_of, value};
use crate::error::Result;
use crate::ir::{
    Binary, Compare, Conv as ConvOp, DType, Layout, Op, Pool as PoolOp, PoolKind, ReduceKind, Size, Unary,
    ValueId,
};

/// Elements of a patch, at most: its kernel has as many times as many.
const LARGEST_WINDOW: i64 = 1 << 13;

/// A function of this file with its attributes; numbers for each spatial axis, or one for all of them.
#[derive(Debug)]
pub(in super::super) enum Neural {
    Pool {
        kind: PoolKind,
        size: Vec<i64>,
        strides: Option<Vec<i64>>,
        padding: Padding,
        layout: Layout,
    },
    Conv {
        depthwise: bool,
        strides: Vec<i64>,
        dilations: Vec<i64>,
        padding: Padding,
        layout: Layout,
    },
    /// Each window's elements as channels.
    Patches {
        size: Vec<i64>,
        strides: Vec<i64>,
        dilations: Vec<i64>,
        padding: Padding,
        layout: Layout,
    },
    BatchNorm {
        axis: i64,
        epsilon: f64,
    },
    LayerNorm {
        axes: Vec<i64>,
        epsilon: f64,
        centres: bool,
    },
    Attention {
        causal: bool,
        /// Scores are bent to stay within it.
        cap: Option<f64>,
    },
    /// Divided by the root of the mean of squares.
    RmsNorm {
        axes: Vec<i64>,
        epsilon: f64,
    },
    /// Of each channel by itself, and then of all channels of a place.
    Separable {
        strides: Vec<i64>,
        dilations: Vec<i64>,
        padding: Padding,
        layout: Layout,
    },
    Resize(Rearrange),
}

impl Neural {
    pub(super) fn read(
        class: &str,
        config: Config<'_>,
        unsupported: &mut Unsupported,
    ) -> Result<Option<Self>> {
        let positive = |key: &str, numbers: Vec<i64>| match numbers.iter().all(|&number| number > 0) {
            true if !numbers.is_empty() => Ok(numbers),
            _ => Err(config.fault(key, "expected numbers above 0")),
        };
        let numbers = |key: &'static str| -> Result<Option<Vec<i64>>> {
            config.int_or_ints(key)?.map(|numbers| positive(key, numbers)).transpose()
        };
        Ok(Some(match class {
            "AveragePool" | "MaxPool" => Self::Pool {
                kind: if class == "MaxPool" { PoolKind::Max } else { PoolKind::Average },
                size: numbers("pool_size")?.ok_or_else(|| config.missing("pool_size"))?,
                strides: numbers("strides")?,
                padding: Padding::read(config, unsupported)?,
                layout: layout(config)?,
            },
            "Conv" | "DepthwiseConv" => Self::Conv {
                depthwise: class == "DepthwiseConv",
                strides: numbers("strides")?.unwrap_or_else(|| vec![1]),
                dilations: numbers("dilation_rate")?.unwrap_or_else(|| vec![1]),
                padding: Padding::read(config, unsupported)?,
                layout: layout(config)?,
            },
            "ExtractPatches" => {
                let size = numbers("size")?.ok_or_else(|| config.missing("size"))?;
                // One number is that of both axes of an image.
                let size = if let [side] = size[..] { vec![side; 2] } else { size };
                Self::Patches {
                    strides: numbers("strides")?.unwrap_or_else(|| size.clone()),
                    dilations: numbers("dilation_rate")?.unwrap_or_else(|| vec![1]),
                    padding: Padding::read(config, unsupported)?,
                    layout: layout(config)?,
                    size,
                }
            }
            "BatchNorm" => Self::BatchNorm {
                axis: config.int("axis")?.unwrap_or(-1),
                epsilon: config.real_or("epsilon", 1e-3)?,
            },
            "LayerNorm" => Self::LayerNorm {
                axes: config.int_or_ints("axis")?.unwrap_or_else(|| vec![-1]),
                // That of the backend.
                epsilon: config.real_or("epsilon", 1e-7)?,
                centres: !config.flag("rms_scaling", false)?,
            },
            "DotProductAttention" => {
                // Another way to the same.
                config.ignore(&["flash_attention"]);
                let cap = config.real("attn_logits_soft_cap")?;
                Self::Attention { causal: config.flag("is_causal", false)?, cap }
            }
            "RMSNorm" => Self::RmsNorm {
                axes: config.int_or_ints("axis")?.unwrap_or_else(|| vec![-1]),
                epsilon: config.real_or("epsilon", 1e-7)?,
            },
            "SeparableConv" => Self::Separable {
                strides: numbers("strides")?.unwrap_or_else(|| vec![1]),
                dilations: numbers("dilation_rate")?.unwrap_or_else(|| vec![1]),
                padding: Padding::read(config, unsupported)?,
                layout: layout(config)?,
            },
            "Resize" if config.get("size").is_some() => {
                Self::Resize(Rearrange::function(config, unsupported)?)
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        let x = float(site, value(site, operands, 0)?)?;
        match self {
            Self::Pool { kind, size, strides, padding, layout } => {
                let axes = spatial_axes(site, x)?;
                let kernel = each(site, size, axes)?;
                let strides = each(site, strides.as_ref().unwrap_or(size), axes)?;
                let window = padding.window(site, x, *layout, &kernel, &strides, &vec![1; axes])?;
                let extra_after = vec![0; axes];
                let pool = PoolOp { kind: *kind, layout: *layout, kernel, window, extra_after };
                site.apply(Op::Pool(Box::new(pool)), &[x])
            }
            Self::Conv { depthwise, strides, dilations, padding, layout } => {
                let axes = spatial_axes(site, x)?;
                let kernel = tensor_of(site, operands, 1)?;
                site.expect_rank(kernel, axes + 2)?;
                let size = (0..axes).map(|axis| site.known(kernel, axis)).collect::<Result<Vec<i64>>>()?;
                let (strides, dilations) = (each(site, strides, axes)?, each(site, dilations, axes)?);
                let window = padding.window(site, x, *layout, &size, &strides, &dilations)?;
                let inputs = site.known(x, channels(*layout, axes + 2))?;
                let (inner, outer) = (site.known(kernel, axes)?, site.known(kernel, axes + 1)?);
                let (kernel, groups) = match depthwise {
                    true => {
                        let all = inner.checked_mul(outer).ok_or_else(|| site.error("too many channels"))?;
                        let sizes = size.iter().copied().chain([1, all]).map(Size::Known).collect();
                        (site.reshape(kernel, sizes)?, inner)
                    }
                    false if inner > 0 && inputs % inner == 0 => (kernel, inputs / inner),
                    false => return Err(site.error("a kernel of other channels than the input")),
                };
                let kernel = ordered(site, kernel, *layout)?;
                let conv = ConvOp { layout: *layout, window, groups };
                site.apply(Op::Conv(Box::new(conv)), &[x, kernel])
            }
            Self::Patches { size, strides, dilations, padding, layout } => {
                let axes = spatial_axes(site, x)?;
                let size = each(site, size, axes)?;
                let (strides, dilations) = (each(site, strides, axes)?, each(site, dilations, axes)?);
                let window = padding.window(site, x, *layout, &size, &strides, &dilations)?;
                let kernel = unit_kernel(site, x, &size, *layout)?;
                let kernel = ordered(site, kernel, *layout)?;
                site.apply(Op::Conv(Box::new(ConvOp { layout: *layout, window, groups: 1 })), &[x, kernel])
            }
            Self::BatchNorm { axis, epsilon } => batch_norm(site, x, operands, *axis, *epsilon),
            Self::LayerNorm { axes, epsilon, centres } => {
                let y = layer_norm(site, x, axes, *epsilon, *centres)?;
                // What is not centred is not shifted either.
                let operands = if *centres { operands } else { operands.get(..2).unwrap_or(operands) };
                scaled(site, y, operands, 1, axes)
            }
            Self::Attention { causal, cap } => attention(site, x, operands, (*causal, *cap)),
            Self::RmsNorm { axes, epsilon } => {
                let y = rms_norm(site, x, axes, *epsilon)?;
                scaled(site, y, operands.get(..2).unwrap_or(operands), 1, axes)
            }
            Self::Separable { strides, dilations, padding, layout } => {
                let depthwise = Self::Conv {
                    depthwise: true,
                    strides: strides.clone(),
                    dilations: dilations.clone(),
                    padding: *padding,
                    layout: *layout,
                };
                let y = depthwise.lower(site, operands)?;
                let pointwise = Self::Conv {
                    depthwise: false,
                    strides: vec![1],
                    dilations: vec![1],
                    padding: Padding::Valid,
                    layout: *layout,
                };
                let kernel = tensor_of(site, operands, 2)?;
                pointwise.lower(site, &[Operand::Value(y), Operand::Value(kernel)])
            }
            Self::Resize(resize) => resize.lower(site, x),
        }
    }
}

fn spatial_axes(site: &Site<'_>, x: ValueId) -> Result<usize> {
    match site.rank(x) {
        rank @ 3..=5 => Ok(rank - 2),
        rank => {
            Err(site.error(&format!("expected 1 to 3 axes beside batch and channels, found rank {rank}")))
        }
    }
}

/// A kernel whose channels are the elements of its window, one each.
pub(super) fn unit_kernel(site: &mut Site<'_>, x: ValueId, size: &[i64], layout: Layout) -> Result<ValueId> {
    let inner = site.known(x, channels(layout, size.len() + 2))?;
    let count = size.iter().try_fold(inner, |count, &size| count.checked_mul(size));
    let count = count.filter(|&count| count <= LARGEST_WINDOW);
    let count = count.ok_or_else(|| site.error("the elements of a patch are too many"))?;
    let square = [Size::Known(count), Size::Known(count)];
    let (rows, columns) = (site.iota(&square, 0), site.iota(&square, 1));
    let is_own = site.apply(Op::Compare(Compare::Eq), &[rows, columns])?;
    let (one, zero) = (site.scalar_like(1.0, x)?, site.scalar_like(0.0, x)?);
    let kernel = site.apply(Op::Select, &[is_own, one, zero])?;
    site.reshape(kernel, size.iter().copied().chain([inner, count]).map(Size::Known).collect())
}

pub(super) fn each(site: &Site<'_>, numbers: &[i64], axes: usize) -> Result<Vec<i64>> {
    match numbers {
        [one] => Ok(vec![*one; axes]),
        several if several.len() == axes => Ok(several.to_vec()),
        _ => Err(site.error(&format!("{} numbers for {axes} axes", numbers.len()))),
    }
}

/// Operand `i`, if the call has it.
fn optional(site: &mut Site<'_>, operands: &[Operand], i: usize) -> Result<Option<ValueId>> {
    match operands.get(i) {
        None => Ok(None),
        Some(Operand::Constant(nothing)) if nothing.is_null() => Ok(None),
        Some(_) => tensor_of(site, operands, i).map(Some),
    }
}

/// A vector over some axes of a tensor, in a shape that broadcasts with it.
fn along(site: &mut Site<'_>, value: ValueId, axes: &[i64], like: ValueId) -> Result<ValueId> {
    let mut sizes = vec![Size::Known(1); site.rank(like)];
    let own = site.sizes(value);
    if own.len() != axes.len() {
        return Err(site.error("factors of other axes than those that are normalised"));
    }
    for (&axis, size) in axes.iter().zip(own) {
        sizes[site.axis(like, axis)?] = size;
    }
    site.reshape(value, sizes)
}

fn batch_norm(
    site: &mut Site<'_>,
    x: ValueId,
    operands: &[Operand],
    axis: i64,
    epsilon: f64,
) -> Result<ValueId> {
    let (mean, variance) = (tensor_of(site, operands, 1)?, tensor_of(site, operands, 2)?);
    let (mean, variance) = (along(site, mean, &[axis], x)?, along(site, variance, &[axis], x)?);
    let variance = site.binary_scalar(Binary::Add, variance, epsilon)?;
    let deviation = site.unary(Unary::Sqrt, variance)?;
    let centred = site.binary(Binary::Sub, x, mean)?;
    let mut y = site.binary(Binary::Div, centred, deviation)?;
    // The shift stands before the factor.
    if let Some(scale) = optional(site, operands, 4)? {
        let scale = along(site, scale, &[axis], x)?;
        y = site.binary(Binary::Mul, y, scale)?;
    }
    if let Some(shift) = optional(site, operands, 3)? {
        let shift = along(site, shift, &[axis], x)?;
        y = site.binary(Binary::Add, y, shift)?;
    }
    Ok(y)
}

fn layer_norm(site: &mut Site<'_>, x: ValueId, axes: &[i64], epsilon: f64, centres: bool) -> Result<ValueId> {
    let mut over = axes.iter().map(|&axis| Ok(site.axis(x, axis)? as u32)).collect::<Result<Vec<u32>>>()?;
    over.sort_unstable();
    over.dedup();
    let (centred, deviation) = super::super::norm::deviation(site, x, &over, epsilon)?;
    site.binary(Binary::Div, if centres { centred } else { x }, deviation)
}

/// Times one operand and plus the next one, where they are there.
fn scaled(
    site: &mut Site<'_>,
    mut y: ValueId,
    operands: &[Operand],
    first: usize,
    axes: &[i64],
) -> Result<ValueId> {
    for (i, binary) in [(first, Binary::Mul), (first + 1, Binary::Add)] {
        if let Some(factor) = optional(site, operands, i)? {
            let factor = along(site, factor, axes, y)?;
            y = site.binary(binary, y, factor)?;
        }
    }
    Ok(y)
}

fn rms_norm(site: &mut Site<'_>, x: ValueId, axes: &[i64], epsilon: f64) -> Result<ValueId> {
    let squares = site.binary(Binary::Mul, x, x)?;
    let mean = super::tools::reduced(site, ReduceKind::Mean, squares, Some(axes), true)?;
    let mean = site.binary_scalar(Binary::Add, mean, epsilon)?;
    let root = site.unary(Unary::Sqrt, mean)?;
    site.binary(Binary::Div, x, root)
}

/// Of queries, keys and values `[batch, length, heads, width]`; behind them a bias and a mask of the scores, and what
/// these are multiplied with.
fn attention(
    site: &mut Site<'_>,
    query: ValueId,
    operands: &[Operand],
    (causal, cap): (bool, Option<f64>),
) -> Result<ValueId> {
    let (key, value) = (tensor_of(site, operands, 1)?, tensor_of(site, operands, 2)?);
    for x in [query, key, value] {
        site.expect_rank(x, 4)?;
    }
    let by_head = [0, 2, 1, 3];
    let heads = site.known(query, 2)?;
    let (key, value) = (shared(site, key, heads)?, shared(site, value, heads)?);
    let factor = factor(site, query, operands)?;
    let (query, key, value) =
        (site.transpose(query, &by_head)?, site.transpose(key, &by_head)?, site.transpose(value, &by_head)?);
    let query = site.binary_scalar(Binary::Mul, query, factor)?;
    let mut scores = site.matmul(query, key, true)?;
    if let Some(cap) = cap {
        let share = site.binary_scalar(Binary::Div, scores, cap)?;
        let share = site.unary(Unary::Tanh, share)?;
        scores = site.binary_scalar(Binary::Mul, share, cap)?;
    }
    if let Some(bias) = optional(site, operands, 3)? {
        let bias = site.convert(bias, site.dtype(scores))?;
        scores = site.binary(Binary::Add, scores, bias)?;
    }
    let scores = masked(site, scores, operands, causal)?;
    let shares =
        super::super::activation::Activation::Softmax { axis: -1, log: false }.lower(site, scores)?;
    let y = site.matmul(shares, value, false)?;
    site.transpose(y, &by_head)
}

/// What scores are multiplied with: a number in the call, or one by the root of the width.
fn factor(site: &Site<'_>, query: ValueId, operands: &[Operand]) -> Result<f64> {
    match operands.get(5) {
        Some(Operand::Constant(scale)) if !scale.is_null() => {
            scale.as_f64().ok_or_else(|| site.unsupported("a scale that is no number"))
        }
        None | Some(Operand::Constant(_)) => Ok(1.0 / (site.known(query, 3)? as f64).sqrt()),
        Some(_) => Err(site.unsupported("a scale that is computed")),
    }
}

/// Scores of what is seen; the others are as low as Keras has them, so that rows without anything seen are alike
/// everywhere.
fn masked(site: &mut Site<'_>, mut scores: ValueId, operands: &[Operand], causal: bool) -> Result<ValueId> {
    let most = match site.dtype(scores) {
        DType::F16 => 65504.0,
        DType::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    };
    let least = site.scalar_like(-0.7 * most, scores)?;
    if let Some(mask) = optional(site, operands, 4)? {
        let mask = site.convert(mask, DType::Bool)?;
        scores = site.apply(Op::Select, &[mask, scores, least])?;
    }
    if !causal {
        return Ok(scores);
    }
    let sizes = site.sizes(scores).split_off(2);
    let (rows, columns) = (site.iota(&sizes, 0), site.iota(&sizes, 1));
    let seen = site.apply(Op::Compare(Compare::Le), &[columns, rows])?;
    site.apply(Op::Select, &[seen, scores, least])
}

/// Heads of keys or values, each as often as queries share it.
fn shared(site: &mut Site<'_>, x: ValueId, heads: i64) -> Result<ValueId> {
    let own = site.known(x, 2)?;
    if own == heads {
        return Ok(x);
    }
    if own < 1 || heads % own != 0 {
        return Err(site.error(&format!("{heads} heads of queries share {own}")));
    }
    let mut sizes = site.sizes(x);
    let apart = super::lower::expand(site, x, &[3])?;
    sizes.insert(3, Size::Known(heads / own));
    let apart = site.broadcast(apart, sizes.clone())?;
    sizes.remove(3);
    sizes[2] = Size::Known(heads);
    site.reshape(apart, sizes)
}
