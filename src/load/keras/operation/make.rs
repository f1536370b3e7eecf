//! Functions that make tensors: filled ones, numbers at equal distances, other types.

use super::super::config::{Config, dtype};
use super::super::lower::Site;
use super::lower::{Operand, common, expand, float, tensor_of, value};
use super::place::many_hot;
use crate::error::Result;
use crate::ir::{Binary, DType, Op, Shape, Size, Unary, ValueId};

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Make {
    /// As many of one number, which is an operand.
    FullLike(Option<DType>),
    /// The same in these sizes.
    Full(Vec<i64>, Option<DType>),
    /// The same as a tensor, in a type.
    Tensor(Option<DType>),
    /// Cut off at the ends of a type.
    Saturated(DType),
    Line(Line),
    /// Which classes are among whole numbers.
    ManyHot {
        classes: i64,
        axis: i64,
        dtype: Option<DType>,
    },
}

/// Numbers at equal distances from one operand to another.
#[derive(Debug)]
pub(in super::super) struct Line {
    count: i64,
    /// The last one is the second operand.
    closed: bool,
    with_step: bool,
    dtype: Option<DType>,
    axis: i64,
    /// They are exponents of this number.
    base: Option<f64>,
    /// They are logarithms, and so are the operands.
    geometric: bool,
}

impl Make {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let stated = || super::stated_type(config);
        Ok(Some(match class {
            "FullLike" => Self::FullLike(stated()?),
            "Full" => {
                Self::Full(config.int_or_ints("shape")?.ok_or_else(|| config.missing("shape"))?, stated()?)
            }
            "Array" | "ConvertToTensor" => Self::Tensor(stated()?),
            "SaturateCast" => match config.text("dtype")?.and_then(dtype) {
                Some(to) => Self::Saturated(to),
                None => return Ok(None),
            },
            "Linspace" | "Logspace" | "Geomspace" => Self::Line(Line {
                count: config.get("num").map_or(Ok(50), |_| config.positive("num"))?,
                closed: config.flag("endpoint", true)?,
                with_step: config.flag("retstep", false)?,
                dtype: stated()?,
                axis: config.int("axis")?.unwrap_or(0),
                base: match class {
                    "Logspace" => Some(config.real_or("base", 10.0)?),
                    _ => None,
                },
                geometric: class == "Geomspace",
            }),
            "MultiHot" => Self::ManyHot {
                classes: config.positive("num_classes")?,
                axis: config.int("axis")?.unwrap_or(-1),
                dtype: stated()?,
            },
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<Vec<ValueId>> {
        let one = match self {
            Self::FullLike(to) => {
                let (x, number) = (value(site, operands, 0)?, tensor_of(site, operands, 1)?);
                let number = site.convert(number, to.unwrap_or(site.dtype(x)))?;
                site.broadcast(number, site.sizes(x))?
            }
            Self::Full(sizes, to) => {
                let number = tensor_of(site, operands, 0)?;
                let number = site.convert(number, to.unwrap_or(site.dtype(number)))?;
                let sizes = sizes.iter().map(|&size| Size::Known(size));
                site.apply(Op::Broadcast { shape: Shape::new(sizes) }, &[number])?
            }
            Self::Tensor(to) => {
                let x = tensor_of(site, operands, 0)?;
                site.convert(x, to.unwrap_or(site.dtype(x)))?
            }
            Self::Saturated(to) => {
                let x = value(site, operands, 0)?;
                saturated(site, x, *to)?
            }
            Self::Line(line) => return line.lower(site, operands),
            Self::ManyHot { classes, axis, dtype } => {
                let x = value(site, operands, 0)?;
                let marks = super::arrange::one_hot(site, x, *classes, *axis)?;
                let marks = many_hot(site, marks)?;
                site.convert(marks, dtype.unwrap_or(DType::F32))?
            }
        };
        Ok(vec![one])
    }
}

/// The least and the greatest whole number of a type; none of one of floats, or of 64 bits.
fn ends(dtype: DType) -> Option<[f64; 2]> {
    Some(match dtype {
        DType::I8 => [i8::MIN.into(), i8::MAX.into()],
        DType::I16 => [i16::MIN.into(), i16::MAX.into()],
        DType::I32 => [i32::MIN.into(), i32::MAX.into()],
        DType::U8 => [0.0, u8::MAX.into()],
        DType::U16 => [0.0, u16::MAX.into()],
        DType::U32 => [0.0, u32::MAX.into()],
        _ => return None,
    })
}

fn saturated(site: &mut Site<'_>, x: ValueId, to: DType) -> Result<ValueId> {
    if to == site.dtype(x) {
        return Ok(x);
    }
    let Some([low, high]) = ends(to) else {
        return Err(site.unsupported(&format!("what is cut off at the ends of {to}")));
    };
    // Whole numbers of 64 bits and of f64 hold the ends of all of these.
    let wide = if site.dtype(x).is_float() { DType::F64 } else { DType::I64 };
    let x = site.convert(x, wide)?;
    let x = site.binary_scalar(Binary::Max, x, low)?;
    let x = site.binary_scalar(Binary::Min, x, high)?;
    site.convert(x, to)
}

impl Line {
    fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<Vec<ValueId>> {
        let (start, stop) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
        let (start, stop) = (float(site, start)?, float(site, stop)?);
        let both = common(site, &[start, stop])?;
        let (mut start, mut stop) = (both[0], both[1]);
        if self.geometric {
            (start, stop) = (site.unary(Unary::Log, start)?, site.unary(Unary::Log, stop)?);
        }
        let steps = if self.closed { self.count - 1 } else { self.count };
        let apart = site.binary(Binary::Sub, stop, start)?;
        let step = site.binary_scalar(Binary::Div, apart, steps.max(1) as f64)?;
        let rank = site.rank(apart);
        let axis = if self.axis < 0 { self.axis + rank as i64 + 1 } else { self.axis };
        let axis = usize::try_from(axis).ok().filter(|&axis| axis <= rank);
        let axis = axis.ok_or_else(|| site.error(&format!("axis {} does not exist", self.axis)))?;
        let mut sizes = vec![Size::Known(1); rank + 1];
        sizes[axis] = Size::Known(self.count);
        let place = site.iota(&sizes, axis as u32);
        let place = site.convert(place, site.dtype(step))?;
        // The operands may have other axes than one another.
        let own = site.sizes(apart);
        let start = site.broadcast(start, own)?;
        let (start, along) = (expand(site, start, &[axis as i64])?, expand(site, step, &[axis as i64])?);
        let way = site.binary(Binary::Mul, place, along)?;
        let mut y = site.binary(Binary::Add, start, way)?;
        if self.geometric {
            y = site.unary(Unary::Exp, y)?;
        }
        if let Some(base) = self.base {
            let base = site.scalar_like(base, y)?;
            y = site.binary(Binary::Pow, base, y)?;
        }
        if let Some(to) = self.dtype {
            y = site.convert(y, to)?;
        }
        Ok(if self.with_step { vec![y, step] } else { vec![y] })
    }
}
