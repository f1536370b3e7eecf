//! Sizes that stay affine in named dimensions until they are bound; shapes and types made of them.

use std::fmt;

use super::DType;
use crate::units::Bytes;

/// A named dimension of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DimId(pub u32);

/// The size of one axis: a number, or `constant + sum of coefficient * dimension`.
///
/// Canonical: an affine size has at least one term, no zero coefficient, and its terms are in
/// ascending order of dimension, so equal sizes compare equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// A number. Negative only in the middle of a computation, never in a shape.
    Known(i64),
    /// An affine form.
    Affine(Box<Affine>),
}

/// `constant + sum of coefficient * dimension`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Affine {
    /// The constant term.
    pub constant: i64,
    /// (dimension, coefficient), in ascending order of dimension, no coefficient zero.
    pub terms: Vec<(DimId, i64)>,
}

/// Dimensions that one size may depend on: sums of sums of open sizes take no more memory than their file does.
const MOST_TERMS: usize = 256;

impl From<i64> for Size {
    fn from(value: i64) -> Self {
        Self::Known(value)
    }
}

impl Size {
    /// The size that is `dim`.
    pub fn dim(dim: DimId) -> Self {
        Self::Affine(Box::new(Affine { constant: 0, terms: vec![(dim, 1)] }))
    }

    /// The canonical size of these parts; none where a sum overflows or has too many terms.
    pub fn new(constant: i64, terms: impl IntoIterator<Item = (DimId, i64)>) -> Option<Self> {
        let mut sorted: Vec<(DimId, i64)> = terms.into_iter().collect();
        sorted.sort_by_key(|term| term.0);
        let mut merged: Vec<(DimId, i64)> = Vec::with_capacity(sorted.len());
        for (dim, coefficient) in sorted {
            match merged.last_mut() {
                Some(last) if last.0 == dim => last.1 = last.1.checked_add(coefficient)?,
                _ => merged.push((dim, coefficient)),
            }
        }
        merged.retain(|term| term.1 != 0);
        if merged.len() > MOST_TERMS {
            return None;
        }
        Some(if merged.is_empty() {
            Self::Known(constant)
        } else {
            Self::Affine(Box::new(Affine { constant, terms: merged }))
        })
    }

    /// The number, where it is one.
    pub fn known(&self) -> Option<i64> {
        match self {
            Self::Known(value) => Some(*value),
            Self::Affine(_) => None,
        }
    }

    /// The constant term.
    pub fn constant(&self) -> i64 {
        match self {
            Self::Known(value) => *value,
            Self::Affine(affine) => affine.constant,
        }
    }

    /// The terms; empty for a number.
    pub fn terms(&self) -> &[(DimId, i64)] {
        match self {
            Self::Known(_) => &[],
            Self::Affine(affine) => &affine.terms,
        }
    }

    /// The sum; none where it overflows or has too many terms.
    pub fn add(&self, other: &Self) -> Option<Self> {
        if let (Some(one), Some(other)) = (self.known(), other.known()) {
            return one.checked_add(other).map(Self::Known);
        }
        let constant = self.constant().checked_add(other.constant())?;
        Self::new(constant, self.terms().iter().chain(other.terms()).copied())
    }

    /// The difference; none where it overflows.
    pub fn sub(&self, other: &Self) -> Option<Self> {
        self.add(&other.scale(-1)?)
    }

    /// The product with a number; none where it overflows.
    pub fn scale(&self, factor: i64) -> Option<Self> {
        if let Some(size) = self.known() {
            return size.checked_mul(factor).map(Self::Known);
        }
        let constant = self.constant().checked_mul(factor)?;
        let terms: Option<Vec<_>> =
            self.terms().iter().map(|&(dim, c)| Some((dim, c.checked_mul(factor)?))).collect();
        Self::new(constant, terms?)
    }

    /// The product; none where it overflows or is not affine.
    pub fn mul(&self, other: &Self) -> Option<Self> {
        match (self.known(), other.known()) {
            (Some(factor), _) => other.scale(factor),
            (_, Some(factor)) => self.scale(factor),
            (None, None) => None,
        }
    }

    /// The quotient where it is exact for every value of the dimensions; none otherwise.
    pub fn div_exact(&self, divisor: i64) -> Option<Self> {
        let constant = quotient(self.constant(), divisor)?;
        let terms = self.terms().iter().map(|&(dim, c)| Some((dim, quotient(c, divisor)?)));
        Self::new(constant, terms.collect::<Option<Vec<_>>>()?)
    }

    /// The quotient by another size where it is a number for every value of the dimensions.
    pub fn ratio(&self, divisor: &Self) -> Option<i64> {
        if let Some(divisor) = divisor.known() {
            return self.div_exact(divisor)?.known();
        }
        let (lead, unit) = (*self.terms().first()?, *divisor.terms().first()?);
        let factor = quotient(lead.1, unit.1)?;
        (divisor.scale(factor)? == *self).then_some(factor)
    }

    /// The value under `value_of`; none where it overflows or a dimension has no value.
    pub fn eval(&self, value_of: &dyn Fn(DimId) -> Option<i64>) -> Option<i64> {
        let mut sum = self.constant();
        for &(dim, coefficient) in self.terms() {
            sum = sum.checked_add(coefficient.checked_mul(value_of(dim)?)?)?;
        }
        Some(sum)
    }

    /// The size with dimensions replaced by sizes; none where it overflows.
    pub fn substituted(&self, of: &dyn Fn(DimId) -> Option<Self>) -> Option<Self> {
        let mut constant = self.constant();
        let mut terms = Vec::new();
        for &(dim, coefficient) in self.terms() {
            match of(dim) {
                Some(size) => {
                    let part = size.scale(coefficient)?;
                    constant = constant.checked_add(part.constant())?;
                    terms.extend_from_slice(part.terms());
                }
                None => terms.push((dim, coefficient)),
            }
        }
        Self::new(constant, terms)
    }

    /// The dimension that this size, being zero, fixes, and what it is then: of those whose value is whole
    /// for every value of the others the last one. None where no dimension is, or its value is a number
    /// below 1.
    #[cfg_attr(not(feature = "onnx"), allow(dead_code))]
    pub(crate) fn zero_at(&self) -> Option<(DimId, Self)> {
        let solved = self.terms().iter().rev().find_map(|&(dim, coefficient)| {
            let rest = self.sub(&Self::new(0, [(dim, coefficient)])?)?;
            Some((dim, rest.div_exact(coefficient.checked_neg()?)?))
        });
        // What is never 1 or more is no size.
        solved.filter(|(_, size)| size.constant() >= 1 || size.terms().iter().any(|term| term.1 > 0))
    }

    /// Prints with the dimensions' names: `2*batch+1`.
    pub fn display<'a>(&'a self, names: &'a dyn Fn(DimId) -> &'a str) -> impl fmt::Display + 'a {
        DisplaySize { size: self, names }
    }
}

/// The quotient where it is exact; none where it is not, or does not fit.
fn quotient(number: i64, divisor: i64) -> Option<i64> {
    (number.checked_rem(divisor)? == 0).then(|| number / divisor)
}

struct DisplaySize<'a> {
    size: &'a Size,
    names: &'a dyn Fn(DimId) -> &'a str,
}

impl fmt::Display for DisplaySize<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for &(dim, coefficient) in self.size.terms() {
            if !first && coefficient >= 0 {
                f.write_str("+")?;
            }
            match coefficient {
                1 => {}
                -1 => f.write_str("-")?,
                _ => write!(f, "{coefficient}*")?,
            }
            f.write_str((self.names)(dim))?;
            first = false;
        }
        match self.size.constant() {
            0 if !first => Ok(()),
            constant if first || constant < 0 => write!(f, "{constant}"),
            constant => write!(f, "+{constant}"),
        }
    }
}

/// Most axes of a tensor that can be run.
pub const MAX_AXES: usize = 32;

/// The sizes of a tensor's axes, outermost first; empty for a scalar.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(Box<[Size]>);

impl Shape {
    /// A shape of these sizes.
    pub fn new(sizes: impl IntoIterator<Item = Size>) -> Self {
        Self(sizes.into_iter().collect())
    }

    /// A shape of known sizes.
    pub fn known(sizes: &[i64]) -> Self {
        Self(sizes.iter().map(|&size| Size::Known(size)).collect())
    }

    /// The shape of a single number.
    pub fn scalar() -> Self {
        Self::default()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The sizes.
    pub fn sizes(&self) -> &[Size] {
        &self.0
    }

    /// The sizes as numbers; none where one is not bound.
    pub fn dims(&self) -> Option<Vec<i64>> {
        self.0.iter().map(Size::known).collect()
    }

    /// Number of elements; none where it overflows or is not affine.
    pub fn elements(&self) -> Option<Size> {
        self.0.iter().try_fold(Size::Known(1), |product, size| product.mul(size))
    }
}

impl std::ops::Index<usize> for Shape {
    type Output = Size;
    fn index(&self, axis: usize) -> &Size {
        &self.0[axis]
    }
}

impl FromIterator<Size> for Shape {
    fn from_iter<I: IntoIterator<Item = Size>>(sizes: I) -> Self {
        Self(sizes.into_iter().collect())
    }
}

/// Element type and shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the axes.
    pub shape: Shape,
}

impl Type {
    /// A type of these parts.
    pub fn new(dtype: DType, shape: Shape) -> Self {
        Self { dtype, shape }
    }

    /// Number of elements once every dimension is bound; none where one is not, or where the
    /// number of bytes overflows an `i64`.
    pub fn elements(&self) -> Option<u64> {
        let mut elements = 1i64;
        let mut empty = false;
        for size in self.shape.sizes() {
            match size.known()? {
                0 => empty = true,
                size => elements = elements.checked_mul(size)?,
            }
        }
        elements.checked_mul(self.dtype.size() as i64)?;
        u64::try_from(if empty { 0 } else { elements }).ok()
    }

    /// Number of bytes once every dimension is bound; none where one is not, or it overflows.
    pub fn bytes(&self) -> Option<Bytes> {
        Some(Bytes(self.elements()? * self.dtype.size()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Size {
        Size::dim(DimId(0))
    }

    #[test]
    fn equal_sizes_are_equal_however_they_were_made() {
        let twice = batch().add(&batch()).unwrap();
        assert_eq!(twice, batch().scale(2).unwrap());
        assert_eq!(twice.sub(&batch()).unwrap(), batch());
        assert_eq!(batch().sub(&batch()).unwrap(), Size::Known(0));
    }

    #[test]
    fn products_of_dimensions_are_not_affine() {
        assert_eq!(batch().mul(&Size::dim(DimId(1))), None);
        assert_eq!(batch().scale(6).unwrap().div_exact(4), None);
        assert_eq!(batch().scale(6).unwrap().ratio(&batch()), Some(6));
        assert_eq!(Size::Known(i64::MAX).add(&Size::Known(1)), None);
    }

    #[test]
    fn sizes_print_with_names() {
        let names = |_| "n";
        let size = batch().scale(-2).unwrap().add(&Size::Known(3)).unwrap();
        assert_eq!(size.display(&names).to_string(), "-2*n+3");
        let less = batch().add(&Size::Known(-1)).unwrap();
        assert_eq!(less.display(&names).to_string(), "n-1");
        assert_eq!(Size::Known(0).display(&names).to_string(), "0");
    }

    #[test]
    fn a_size_that_is_zero_fixes_its_last_dimension() {
        let [n, m] = [DimId(0), DimId(1)];
        let size = |constant, terms: &[(DimId, i64)]| Size::new(constant, terms.iter().copied()).unwrap();
        assert_eq!(size(-6, &[(n, 2)]).zero_at(), Some((n, Size::Known(3))));
        assert_eq!(size(1, &[(n, 1), (m, -1)]).zero_at(), Some((m, size(1, &[(n, 1)]))));
        assert_eq!(size(0, &[(n, 1), (m, -2)]).zero_at(), Some((n, size(0, &[(m, 2)]))));
        assert_eq!(size(0, &[(n, 1), (m, 2)]).zero_at(), None);
        assert_eq!(size(0, &[(n, 3), (m, 2)]).zero_at(), None);
        assert_eq!(size(6, &[(n, 2)]).zero_at(), None);
        assert_eq!(Size::Known(0).zero_at(), None);
    }

    #[test]
    fn an_overflowing_shape_has_no_bytes() {
        let ty = Type::new(DType::F32, Shape::known(&[1 << 40, 1 << 40]));
        assert_eq!(ty.bytes(), None);
        let empty = Type::new(DType::F32, Shape::known(&[0, 3]));
        assert_eq!(empty.bytes(), Some(Bytes(0)));
    }
}
