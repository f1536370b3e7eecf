//! Losses and measures of `keras.ops`.

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, expand, float, squeeze, tensor_of};
use super::tools::reduced;
use crate::error::Result;
use crate::ir::{Binary, DType, Op, ReduceKind, Unary, ValueId};

/// What is added to numbers whose logarithms are taken, as in Keras.
const EPSILON: f64 = 1e-7;

/// A function of this file with its attributes; its operands are targets and outputs.
#[derive(Debug)]
pub(in super::super) enum Loss {
    Binary {
        logits: bool,
    },
    Categorical {
        logits: bool,
        axis: i64,
    },
    /// Targets are numbers of classes.
    Sparse {
        logits: bool,
        axis: i64,
    },
    /// Of a signal's greatest value to the noise between two.
    PeakToNoise(f64),
}

impl Loss {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let logits = || config.flag("from_logits", false);
        let axis = || Ok::<i64, crate::error::Error>(config.int("axis")?.unwrap_or(-1));
        Ok(Some(match class {
            "BinaryCrossentropy" => Self::Binary { logits: logits()? },
            "CategoricalCrossentropy" => Self::Categorical { logits: logits()?, axis: axis()? },
            "SparseCategoricalCrossentropy" => Self::Sparse { logits: logits()?, axis: axis()? },
            "PSNR" => Self::PeakToNoise(config.real("max_val")?.ok_or_else(|| config.missing("max_val"))?),
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        let (target, output) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
        let output = float(site, output)?;
        match self {
            Self::Binary { logits } => {
                let target = site.convert(target, site.dtype(output))?;
                binary(site, target, output, *logits)
            }
            Self::Categorical { logits, axis } => {
                let target = site.convert(target, site.dtype(output))?;
                let logarithms = logarithms(site, output, *axis, *logits)?;
                let product = site.binary(Binary::Mul, target, logarithms)?;
                let sum = reduced(site, ReduceKind::Sum, product, Some(&[*axis]), false)?;
                site.unary(Unary::Neg, sum)
            }
            Self::Sparse { logits, axis } => {
                let logarithms = logarithms(site, output, *axis, *logits)?;
                let along = site.axis(output, *axis)?;
                let target = site.convert(target, DType::I64)?;
                // The axis of the classes may stand there with size 1.
                let is_column = site.rank(target) == site.rank(output);
                let column = if is_column { target } else { expand(site, target, &[*axis])? };
                let own = site.apply(Op::GatherElements { axis: along as u32 }, &[logarithms, column])?;
                let own = squeeze(site, own, Some(&[*axis]))?;
                site.unary(Unary::Neg, own)
            }
            Self::PeakToNoise(most) => {
                let target = site.convert(target, site.dtype(output))?;
                let apart = site.binary(Binary::Sub, target, output)?;
                let squares = site.binary(Binary::Mul, apart, apart)?;
                let mean = reduced(site, ReduceKind::Mean, squares, None, false)?;
                let logarithm = site.unary(Unary::Log, mean)?;
                let per_ten = 10.0 / std::f64::consts::LN_10;
                let noise = site.binary_scalar(Binary::Mul, logarithm, per_ten)?;
                let peak = site.scalar_like(20.0 * most.log10(), noise)?;
                site.binary(Binary::Sub, peak, noise)
            }
        }
    }
}

fn cut(site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
    let x = site.binary_scalar(Binary::Max, x, EPSILON)?;
    site.binary_scalar(Binary::Min, x, 1.0 - EPSILON)
}

/// Logarithms of probabilities, or of outputs as shares of their sum.
fn logarithms(site: &mut Site<'_>, output: ValueId, axis: i64, logits: bool) -> Result<ValueId> {
    if logits {
        let axis = site.axis(output, axis)? as u32;
        return site.apply(Op::Softmax { axis, log: true }, &[output]);
    }
    let sum = reduced(site, ReduceKind::Sum, output, Some(&[axis]), true)?;
    let share = site.binary(Binary::Div, output, sum)?;
    let share = cut(site, share)?;
    site.unary(Unary::Log, share)
}

fn binary(site: &mut Site<'_>, target: ValueId, output: ValueId, logits: bool) -> Result<ValueId> {
    if logits {
        // log(1 + e^x) - t x, of which neither part overflows.
        let all = site.unary(Unary::Softplus, output)?;
        let own = site.binary(Binary::Mul, target, output)?;
        return site.binary(Binary::Sub, all, own);
    }
    let output = cut(site, output)?;
    let one = site.scalar_like(1.0, output)?;
    let (other, rest) = (site.binary(Binary::Sub, one, output)?, site.binary(Binary::Sub, one, target)?);
    let (own, other) = (site.unary(Unary::Log, output)?, site.unary(Unary::Log, other)?);
    let own = site.binary(Binary::Mul, target, own)?;
    let other = site.binary(Binary::Mul, rest, other)?;
    let sum = site.binary(Binary::Add, own, other)?;
    site.unary(Unary::Neg, sum)
}
