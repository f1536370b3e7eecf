//! Whether numbers are close to others, or among them.

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, common, expand, flat, float, pair, tensor_of};
use super::ranked::is_absent;
use super::tools::reduced;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, Unary, ValueId};

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Near {
    /// Each by itself, or all of them; the tolerances are operands or attributes.
    Close {
        all: bool,
        nan: bool,
        tolerances: [f64; 2],
    },
    Among {
        inverted: bool,
    },
}

impl Near {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        Ok(Some(match class {
            "Isclose" | "AllClose" => Self::Close {
                all: class == "AllClose",
                nan: config.flag("equal_nan", false)?,
                tolerances: [config.real_or("rtol", 1e-5)?, config.real_or("atol", 1e-8)?],
            },
            "IsIn" => {
                // Each once or not, they are compared alike.
                config.ignore(&["assume_unique"]);
                Self::Among { inverted: config.flag("invert", false)? }
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        match self {
            Self::Close { all, nan, tolerances } => {
                let (x, y) = pair(site, operands, 0)?;
                let (x, y) = (float(site, x)?, float(site, y)?);
                let mut bounds = Vec::new();
                for (at, &usual) in tolerances.iter().enumerate() {
                    bounds.push(match is_absent(operands, at + 2) {
                        true => site.scalar_like(usual, x)?,
                        false => {
                            let bound = tensor_of(site, operands, at + 2)?;
                            site.convert(bound, site.dtype(x))?
                        }
                    });
                }
                let is_close = close(site, [x, y], [bounds[0], bounds[1]], *nan)?;
                if !all {
                    return Ok(is_close);
                }
                let number = site.convert(is_close, DType::I32)?;
                let least = reduced(site, ReduceKind::Min, number, None, false)?;
                site.convert(least, DType::Bool)
            }
            Self::Among { inverted } => {
                let both = [tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?];
                let both = common(site, &both)?;
                let others = flat(site, both[1])?;
                let column = expand(site, both[0], &[-1])?;
                let equal = site.apply(Op::Compare(Compare::Eq), &[column, others])?;
                let number = site.convert(equal, DType::I32)?;
                let any = reduced(site, ReduceKind::Max, number, Some(&[-1]), false)?;
                let any = site.convert(any, DType::Bool)?;
                if *inverted { site.unary(Unary::Not, any) } else { Ok(any) }
            }
        }
    }
}

/// Whether two numbers are no further apart than a share of the second one and a distance; equal infinities are close.
fn close(
    site: &mut Site<'_>,
    [x, y]: [ValueId; 2],
    [share, distance]: [ValueId; 2],
    nan: bool,
) -> Result<ValueId> {
    let apart = site.binary(Binary::Sub, x, y)?;
    let apart = site.unary(Unary::Abs, apart)?;
    let size = site.unary(Unary::Abs, y)?;
    let bound = site.binary(Binary::Mul, share, size)?;
    let bound = site.binary(Binary::Add, bound, distance)?;
    let within = site.apply(Op::Compare(Compare::Le), &[apart, bound])?;
    // Everything is within an infinite bound.
    let infinity = site.scalar_like(f64::INFINITY, y)?;
    let finite = site.apply(Op::Compare(Compare::Lt), &[size, infinity])?;
    let within = site.binary(Binary::And, within, finite)?;
    let equal = site.apply(Op::Compare(Compare::Eq), &[x, y])?;
    let is_close = site.binary(Binary::Or, within, equal)?;
    if !nan {
        return Ok(is_close);
    }
    let (no_x, no_y) = (site.unary(Unary::IsNan, x)?, site.unary(Unary::IsNan, y)?);
    let neither = site.binary(Binary::And, no_x, no_y)?;
    site.binary(Binary::Or, is_close, neither)
}
