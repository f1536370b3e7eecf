//! Layers that merge several inputs.

use super::config::Config;
use super::lower::Site;
use super::norm::unit;
use crate::error::Result;
use crate::ir::{Binary, Size, ValueId};

/// A merging layer. Axes may be negative.
#[derive(Debug)]
pub(super) enum Merge {
    Elementwise(Binary),
    Average,
    /// The first and the second times a number (InceptionResNet).
    Scaled(f64),
    Concatenate {
        axis: i64,
    },
    /// The product of vectors along one axis of each of two inputs, for each sample.
    Dot {
        axes: (i64, i64),
        normalize: bool,
    },
}

impl Merge {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Self> {
        Ok(match class {
            "Add" => Self::Elementwise(Binary::Add),
            "Subtract" => Self::Elementwise(Binary::Sub),
            "Multiply" => Self::Elementwise(Binary::Mul),
            "Maximum" => Self::Elementwise(Binary::Max),
            "Minimum" => Self::Elementwise(Binary::Min),
            "Average" => Self::Average,
            "CustomScaleLayer" => Self::Scaled(config.real("scale")?.ok_or_else(|| config.missing("scale"))?),
            "Concatenate" => Self::Concatenate { axis: config.int("axis")?.unwrap_or(-1) },
            _ => {
                let axes = match config.int_or_ints("axes")?.as_deref() {
                    Some([both]) => (*both, *both),
                    Some([left, right]) => (*left, *right),
                    _ => return Err(config.fault("axes", "expected one or two axes")),
                };
                Self::Dot { axes, normalize: config.flag("normalize", false)? }
            }
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, inputs: &[ValueId]) -> Result<ValueId> {
        match self {
            Self::Elementwise(Binary::Sub) if inputs.len() != 2 => {
                Err(site.error(&format!("expected 2 inputs, found {}", inputs.len())))
            }
            Self::Elementwise(binary) => fold(site, *binary, inputs),
            Self::Average => {
                let sum = fold(site, Binary::Add, inputs)?;
                site.binary_scalar(Binary::Div, sum, inputs.len() as f64)
            }
            Self::Scaled(factor) => match inputs {
                [x, y] => {
                    let y = site.binary_scalar(Binary::Mul, *y, *factor)?;
                    site.binary(Binary::Add, *x, y)
                }
                _ => Err(site.error(&format!("expected 2 inputs, found {}", inputs.len()))),
            },
            Self::Concatenate { axis } => {
                let axis = site.axis(inputs[0], *axis)?;
                site.concat(axis, inputs)
            }
            Self::Dot { axes, normalize } => match inputs {
                [x, y] => dot(site, *x, *y, *axes, *normalize),
                _ => Err(site.error(&format!("expected 2 inputs, found {}", inputs.len()))),
            },
        }
    }
}

/// Inputs of a lower rank get axes of size 1 after the batch axis, as in Keras.
fn fold(site: &mut Site<'_>, binary: Binary, inputs: &[ValueId]) -> Result<ValueId> {
    let rank = inputs.iter().map(|&input| site.rank(input)).max().unwrap_or(0);
    let mut sum: Option<ValueId> = None;
    for &input in inputs {
        let mut sizes = site.sizes(input);
        let missing = rank - sizes.len();
        if missing > 0 && !sizes.is_empty() {
            sizes.splice(1..1, vec![Size::Known(1); missing]);
        }
        let input = site.reshape(input, sizes)?;
        sum = Some(match sum {
            None => input,
            Some(sum) => site.binary(binary, sum, input)?,
        });
    }
    sum.ok_or_else(|| site.error("is called without inputs"))
}

fn dot(site: &mut Site<'_>, x: ValueId, y: ValueId, axes: (i64, i64), normalize: bool) -> Result<ValueId> {
    let (left, right) = (site.axis(x, axes.0)?, site.axis(y, axes.1)?);
    if left == 0 || right == 0 || site.rank(x) < 2 || site.rank(y) < 2 {
        return Err(site.error("the product cannot go along the batch axis"));
    }
    let (x, y) = match normalize {
        true => (unit(site, x, &[left as i64])?, unit(site, y, &[right as i64])?),
        false => (x, y),
    };
    // [batch, rest..., k] and [batch, rest..., k], each as a matrix for each sample.
    let (x, rest_x) = rows(site, x, left)?;
    let (y, rest_y) = rows(site, y, right)?;
    let value = site.matmul(x, y, true)?;
    let batch = site.sizes(value).into_iter().take(1);
    let mut sizes: Vec<Size> = batch.chain(rest_x).chain(rest_y).collect();
    if sizes.len() == 1 {
        sizes.push(Size::Known(1));
    }
    site.reshape(value, sizes)
}

/// `[batch, product of the other axes, k]` with `axis` last, and the other axes' sizes.
fn rows(site: &mut Site<'_>, x: ValueId, axis: usize) -> Result<(ValueId, Vec<Size>)> {
    let rank = site.rank(x);
    let others: Vec<usize> = (1..rank).filter(|&other| other != axis).collect();
    let perm: Vec<usize> = [0].into_iter().chain(others).chain([axis]).collect();
    let x = site.transpose(x, &perm)?;
    let sizes = site.sizes(x);
    let rest = sizes[1..rank - 1].to_vec();
    let count = site.product(&rest)?;
    let x = site.reshape(x, vec![sizes[0].clone(), count, sizes[rank - 1].clone()])?;
    Ok((x, rest))
}
