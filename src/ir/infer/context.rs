//! What the rules share: operands, messages, and checks that appear in many rules.

use std::cell::RefCell;

use super::super::{DType, DimId, Shape, Size, Type};
use crate::error::{Error, Result};

/// The operands of one operation, and how to name it and them in messages.
pub(super) struct Context<'a> {
    op: &'static str,
    operands: &'a [&'a Type],
    names: &'a dyn Fn(DimId) -> String,
    /// The sizes that were to be equal and are not.
    unequal: RefCell<Option<(Size, Size)>>,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        op: &'static str,
        operands: &'a [&'a Type],
        names: &'a dyn Fn(DimId) -> String,
    ) -> Self {
        Self { op, operands, names, unequal: RefCell::new(None) }
    }

    /// An error at this operation.
    pub(super) fn fail(&self, message: impl Into<String>) -> Error {
        Error::model(self.op, message)
    }

    pub(super) fn overflow(&self) -> Error {
        self.fail("a size overflows")
    }

    /// All operands; at least `least` and at most `most`.
    pub(super) fn between(&self, least: usize, most: usize) -> Result<&'a [&'a Type]> {
        let found = self.operands.len();
        if (least..=most).contains(&found) {
            return Ok(self.operands);
        }
        let expected = match most {
            _ if least == most => format!("{least}"),
            usize::MAX => format!("at least {least}"),
            _ => format!("{least} to {most}"),
        };
        Err(self.fail(format!("expected {expected} operands, found {found}")))
    }

    /// Exactly `N` operands.
    pub(super) fn operands<const N: usize>(&self) -> Result<[&'a Type; N]> {
        let operands = self.between(N, N)?;
        operands.try_into().map_err(|_| Error::Internal("number of operands".to_owned()))
    }

    /// An axis as an index into a shape of this rank.
    pub(super) fn axis(&self, axis: u32, rank: usize) -> Result<usize> {
        let index = axis as usize;
        if index < rank {
            return Ok(index);
        }
        Err(self.fail(format!("expected an axis below {rank}, found {axis}")))
    }

    /// Axes are in range, ascending, and each there once.
    pub(super) fn axes(&self, axes: &[u32], rank: usize) -> Result<()> {
        for &axis in axes {
            self.axis(axis, rank)?;
        }
        if axes.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(self.fail(format!("expected ascending axes, found {axes:?}")));
        }
        Ok(())
    }

    pub(super) fn rank(&self, what: &str, ty: &Type, expected: usize) -> Result<()> {
        if ty.shape.rank() == expected {
            return Ok(());
        }
        Err(self.fail(format!("expected {what} of rank {expected}, found {}", self.show(&ty.shape))))
    }

    pub(super) fn least_rank(&self, what: &str, ty: &Type, least: usize) -> Result<()> {
        if ty.shape.rank() >= least {
            return Ok(());
        }
        Err(self.fail(format!("expected {what} of rank {least} or more, found {}", self.show(&ty.shape))))
    }

    /// Sizes are equal for every value of the dimensions.
    pub(super) fn same(&self, what: &str, expected: &Size, found: &Size) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        let message =
            format!("expected {what} of {}, found {}", self.show_size(expected), self.show_size(found));
        let error = self.fail(message);
        Err(match self.hint(expected, found) {
            Some(help) => error.with_help(help),
            None => error,
        })
    }

    pub(super) fn same_shape(&self, what: &str, expected: &Shape, found: &Shape) -> Result<()> {
        let mismatch = || {
            self.fail(format!("expected {what} of shape {}, found {}", self.show(expected), self.show(found)))
        };
        if expected.rank() != found.rank() {
            return Err(mismatch());
        }
        for (a, b) in expected.sizes().iter().zip(found.sizes()) {
            if a != b {
                let error = mismatch();
                return Err(match self.hint(a, b) {
                    Some(help) => error.with_help(help),
                    None => error,
                });
            }
        }
        Ok(())
    }

    /// The two sizes that were to be equal and are not, where that is what was wrong.
    pub(super) fn unequal(self) -> Option<(Size, Size)> {
        self.unequal.into_inner()
    }

    /// The way out where two sizes cannot be compared before a dimension is bound.
    pub(super) fn hint(&self, a: &Size, b: &Size) -> Option<String> {
        self.unequal.replace(Some((a.clone(), b.clone())));
        let difference = a.sub(b)?;
        let &(dim, coefficient) = difference.terms().first()?;
        let name = (self.names)(dim);
        let fits = (difference.terms().len() == 1 && difference.constant() % coefficient == 0)
            .then(|| difference.constant().checked_div(coefficient)?.checked_neg())
            .flatten()
            .filter(|&value| value >= 1);
        match fits {
            Some(value) => Some(format!("bind the dimension with --dim {name}={value}")),
            None => Some(format!("bind the dimension with --dim {name}=N")),
        }
    }

    /// The way out where a size is not affine: which dimensions to bind.
    pub(super) fn bind_help(&self, size: &Size) -> String {
        let names: Vec<String> =
            size.terms().iter().map(|&(dim, _)| format!("--dim {}=N", (self.names)(dim))).collect();
        format!("bind with {}", names.join(" "))
    }

    pub(super) fn same_dtype(&self, what: &str, expected: DType, found: DType) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        Err(self.fail(format!("expected {what} of type {expected}, found {found}")))
    }

    pub(super) fn float(&self, what: &str, dtype: DType) -> Result<()> {
        self.require(dtype.is_float(), what, "a float type", dtype)
    }

    pub(super) fn integer(&self, what: &str, dtype: DType) -> Result<()> {
        self.require(dtype.is_integer(), what, "an integer type", dtype)
    }

    pub(super) fn bool(&self, what: &str, dtype: DType) -> Result<()> {
        self.require(dtype == DType::Bool, what, "type bool", dtype)
    }

    /// A float or an integer.
    pub(super) fn number(&self, what: &str, dtype: DType) -> Result<()> {
        self.require(dtype.is_float() || dtype.is_integer(), what, "a type of numbers", dtype)
    }

    fn require(&self, holds: bool, what: &str, expected: &str, found: DType) -> Result<()> {
        if holds {
            return Ok(());
        }
        Err(self.fail(format!("expected {what} of {expected}, found {found}")))
    }

    /// A size of an axis is not negative where it is known.
    pub(super) fn not_negative(&self, size: Size) -> Result<Size> {
        match size.known() {
            Some(negative) if negative < 0 => {
                Err(self.fail(format!("the size of the result becomes negative: {negative}")))
            }
            _ => Ok(size),
        }
    }

    /// Every size is known and the bytes fit, or one is not known; none is negative.
    pub(super) fn representable(&self, ty: &Type) -> Result<()> {
        for size in ty.shape.sizes() {
            self.not_negative(size.clone())?;
        }
        if ty.shape.dims().is_some() && ty.bytes().is_none() {
            return Err(self.fail(format!("the size of {}{} overflows", ty.dtype, self.show(&ty.shape))));
        }
        Ok(())
    }

    pub(super) fn show_size(&self, size: &Size) -> String {
        let names: Vec<(DimId, String)> =
            size.terms().iter().map(|&(dim, _)| (dim, (self.names)(dim))).collect();
        let find = |dim| names.iter().find(|named| named.0 == dim).map_or("?", |named| named.1.as_str());
        size.display(&find).to_string()
    }

    pub(super) fn show(&self, shape: &Shape) -> String {
        let sizes: Vec<String> = shape.sizes().iter().map(|size| self.show_size(size)).collect();
        format!("[{}]", sizes.join(", "))
    }
}

/// `size / divisor` rounded down, for a positive divisor; none where that is not affine.
pub(super) fn floor_div(size: &Size, divisor: i64) -> Option<Size> {
    if divisor < 1 || size.terms().iter().any(|term| term.1 % divisor != 0) {
        return None;
    }
    let terms = size.terms().iter().map(|&(dim, coefficient)| (dim, coefficient / divisor));
    Size::new(size.constant().div_euclid(divisor), terms)
}

/// Number of elements: 0 where an axis is known to be empty, none where the product overflows or
/// is not affine.
pub(super) fn elements(shape: &Shape) -> Option<Size> {
    if shape.sizes().contains(&Size::Known(0)) {
        return Some(Size::Known(0));
    }
    shape.elements()
}
