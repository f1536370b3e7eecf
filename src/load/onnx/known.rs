//! What is known of small tensors while a model is read: sizes that are affine in the model's
//! dimensions, and real numbers. Shape arithmetic is evaluated on these, so that reshapes and
//! slices get their sizes.
//!
//! Every dimension is at least 1 (binding ensures it), which decides many comparisons of sizes
//! that are not numbers.

use std::cmp::Ordering;

use super::tensor::{encode, encode_integer};
use crate::error::Result;
use crate::ir::{DType, Shape, Size, Slice, Tensor, Type};

/// Tensors with more elements than this are data, not shape arithmetic.
pub(super) const LIMIT: u64 = 1024;

/// A small tensor whose elements are known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    pub(super) dtype: DType,
    pub(super) dims: Vec<u64>,
    pub(super) items: Items,
}

/// The elements, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Items {
    /// Integers and bools.
    Sizes(Vec<Size>),
    /// Floats.
    Reals(Vec<f64>),
}

impl Known {
    /// A vector of i64 sizes.
    pub(super) fn vector(sizes: Vec<Size>) -> Self {
        Self { dtype: DType::I64, dims: vec![sizes.len() as u64], items: Items::Sizes(sizes) }
    }

    /// A scalar i64 size.
    pub(super) fn scalar(size: Size) -> Self {
        Self { dtype: DType::I64, dims: Vec::new(), items: Items::Sizes(vec![size]) }
    }

    /// What is known of a tensor: all of it where it is small.
    pub(super) fn of_tensor(tensor: &Tensor) -> Option<Self> {
        if tensor.elements() as u64 > LIMIT {
            return None;
        }
        let items = match tensor.dtype() {
            DType::F32 => Items::Reals(tensor.to_f32()?.into_iter().map(f64::from).collect()),
            DType::F64 | DType::F16 | DType::Bf16 => Items::Reals(tensor.to_f64()),
            _ => Items::Sizes(tensor.to_i64()?.into_iter().map(Size::Known).collect()),
        };
        Some(Self { dtype: tensor.dtype(), dims: tensor.dims().to_vec(), items })
    }

    /// The tensor; none where a size is not a number.
    pub(super) fn to_tensor(&self) -> Result<Option<Tensor>> {
        let bytes: Option<Vec<u8>> = match &self.items {
            Items::Reals(reals) => Some(reals.iter().flat_map(|&v| encode(self.dtype, v)).collect()),
            Items::Sizes(sizes) => sizes
                .iter()
                .map(|size| size.known().map(|v| encode_integer(self.dtype, v)))
                .collect::<Option<Vec<_>>>()
                .map(|parts| parts.concat()),
        };
        bytes.map(|bytes| Tensor::new(self.dtype, self.dims.clone(), bytes)).transpose()
    }

    pub(super) fn ty(&self) -> Type {
        Type::new(self.dtype, Shape::new(self.dims.iter().map(|&dim| Size::Known(dim as i64))))
    }

    pub(super) fn sizes(&self) -> Option<&[Size]> {
        match &self.items {
            Items::Sizes(sizes) => Some(sizes),
            Items::Reals(_) => None,
        }
    }

    pub(super) fn reals(&self) -> Option<&[f64]> {
        match &self.items {
            Items::Reals(reals) => Some(reals),
            Items::Sizes(_) => None,
        }
    }

    /// Which elements are other than zero. None: one is a size that is no number.
    pub(super) fn truths(&self) -> Option<Vec<bool>> {
        match &self.items {
            Items::Sizes(sizes) => sizes.iter().map(|size| Some(size.known()? != 0)).collect(),
            Items::Reals(reals) => Some(reals.iter().map(|&real| real != 0.0).collect()),
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.dims.len()
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        match &self.items {
            Items::Sizes(sizes) => sizes.len(),
            Items::Reals(reals) => reals.len(),
        }
    }

    /// The same elements under other dimensions. None: their number differs.
    pub(super) fn with_dims(&self, dims: Vec<u64>) -> Option<Self> {
        (elements(&dims)? == self.len() as u64).then(|| Self { dims, ..self.clone() })
    }

    /// The elements at these positions, under these dimensions.
    pub(super) fn pick(&self, positions: &[usize], dims: Vec<u64>) -> Option<Self> {
        let items = match &self.items {
            Items::Sizes(sizes) => {
                Items::Sizes(positions.iter().map(|&p| sizes.get(p).cloned()).collect::<Option<_>>()?)
            }
            Items::Reals(reals) => {
                Items::Reals(positions.iter().map(|&p| reals.get(p).copied()).collect::<Option<_>>()?)
            }
        };
        Some(Self { dtype: self.dtype, dims, items })
    }

    /// The elements that a slice takes. None: where they are depends on sizes that are open.
    pub(super) fn slice(&self, plan: &Slice) -> Option<Self> {
        let starts = plan.starts.iter().map(Size::known).collect::<Option<Vec<i64>>>()?;
        let sizes = plan.sizes.iter().map(Size::known).collect::<Option<Vec<i64>>>()?;
        let dims = sizes.iter().map(|&size| u64::try_from(size).ok()).collect::<Option<Vec<u64>>>()?;
        let mut positions = vec![0i64];
        for axis in 0..dims.len() {
            let size = self.dims[axis] as i64;
            positions = positions
                .iter()
                .flat_map(|&outer| (0..sizes[axis]).map(move |i| (outer, i)))
                .map(|(outer, i)| outer * size + starts[axis] + i * plan.steps[axis])
                .collect();
        }
        let positions: Option<Vec<usize>> = positions.iter().map(|&p| usize::try_from(p).ok()).collect();
        self.pick(&positions?, dims)
    }

    /// Repeated to these dimensions as NumPy's `broadcast_to`. None: does not fit, or too large.
    pub(super) fn broadcast(&self, dims: &[u64]) -> Option<Self> {
        let count = elements(dims).filter(|&n| n <= LIMIT)?;
        let lead = dims.len().checked_sub(self.rank())?;
        let fits = self.dims.iter().zip(&dims[lead..]).all(|(&from, &to)| from == to || from == 1);
        if !fits {
            return None;
        }
        let positions: Vec<usize> = (0..count)
            .map(|flat| {
                let (mut rest, mut stride, mut position) = (flat, 1, 0);
                for axis in (0..dims.len()).rev() {
                    let coordinate = rest % dims[axis];
                    rest /= dims[axis];
                    if axis >= lead {
                        let size = self.dims[axis - lead];
                        position += if size == 1 { 0 } else { coordinate * stride };
                        stride *= size;
                    }
                }
                position as usize
            })
            .collect();
        self.pick(&positions, dims.to_vec())
    }
}

/// Number of elements; none where it overflows.
pub(super) fn elements(dims: &[u64]) -> Option<u64> {
    dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))
}

/// The dimensions that both broadcast to.
pub(super) fn broadcast_dims(left: &[u64], right: &[u64]) -> Option<Vec<u64>> {
    let rank = left.len().max(right.len());
    let size = |dims: &[u64], axis: usize| match (axis + dims.len()).checked_sub(rank) {
        Some(own) => dims[own],
        None => 1,
    };
    (0..rank)
        .map(|axis| match (size(left, axis), size(right, axis)) {
            (1, other) | (other, 1) => Some(other),
            (one, other) if one == other => Some(one),
            _ => None,
        })
        .collect()
}

/// The least value, where there is one: every dimension is at least 1.
pub(super) fn least(size: &Size) -> Option<i64> {
    size.terms()
        .iter()
        .try_fold(size.constant(), |sum, &(_, c)| if c > 0 { sum.checked_add(c) } else { None })
}

/// The greatest value, where there is one.
pub(super) fn greatest(size: &Size) -> Option<i64> {
    size.terms()
        .iter()
        .try_fold(size.constant(), |sum, &(_, c)| if c < 0 { sum.checked_add(c) } else { None })
}

/// True or false where `left >= right` is decided for all dimensions.
pub(super) fn at_least(left: &Size, right: &Size) -> Option<bool> {
    let difference = left.sub(right)?;
    match (least(&difference), greatest(&difference)) {
        (Some(low), _) if low >= 0 => Some(true),
        (_, Some(high)) if high < 0 => Some(false),
        _ => None,
    }
}

/// How two sizes compare where that is decided for all dimensions.
pub(super) fn compare(left: &Size, right: &Size) -> Option<Ordering> {
    let difference = left.sub(right)?;
    if let Some(difference) = difference.known() {
        return Some(difference.cmp(&0));
    }
    match (least(&difference), greatest(&difference)) {
        (Some(low), _) if low > 0 => Some(Ordering::Greater),
        (_, Some(high)) if high < 0 => Some(Ordering::Less),
        _ => None,
    }
}

/// The larger of two, where it is decided which.
pub(super) fn larger(left: &Size, right: &Size) -> Option<Size> {
    if at_least(left, right) == Some(true) {
        return Some(left.clone());
    }
    (at_least(right, left) == Some(true)).then(|| right.clone())
}

/// The smaller of two, where it is decided which.
pub(super) fn smaller(left: &Size, right: &Size) -> Option<Size> {
    if at_least(left, right) == Some(true) {
        return Some(right.clone());
    }
    (at_least(right, left) == Some(true)).then(|| left.clone())
}

/// The quotient rounded up, of a size by a positive number: where every coefficient divides.
pub(super) fn div_ceil(size: &Size, divisor: i64) -> Option<Size> {
    if divisor < 1 || size.terms().iter().any(|term| term.1 % divisor != 0) {
        return None;
    }
    let constant = size.constant();
    let quotient = constant.div_euclid(divisor) + i64::from(constant.rem_euclid(divisor) != 0);
    Size::new(quotient, size.terms().iter().map(|&(dim, c)| (dim, c / divisor)))
}

/// Integer division towards zero: of numbers, or where it is exact.
pub(super) fn divide(left: &Size, right: &Size) -> Option<Size> {
    if let (Some(left), Some(right)) = (left.known(), right.known()) {
        return left.checked_div(right).map(Size::Known);
    }
    // The least integer has no opposite, so nothing of it is divided by less than 1.
    let divisible = right.constant() >= 0 && right.terms().iter().all(|term| term.1 > 0);
    if !divisible {
        return None;
    }
    match right.known() {
        Some(divisor) => left.div_exact(divisor),
        None => left.ratio(right).map(Size::Known),
    }
}

/// The size that makes a tensor of sizes `from` have as many elements as one of sizes `others`
/// and itself. None: not affine, or not whole.
pub(super) fn remaining(from: &[Size], others: &[Size]) -> Option<Size> {
    let (mut up, mut down) = (1i64, 1i64);
    let mut above: Vec<&Size> = Vec::new();
    for size in from {
        match size.known() {
            Some(number) => up = up.checked_mul(number)?,
            None => above.push(size),
        }
    }
    let mut below: Vec<&Size> = Vec::new();
    for size in others {
        match (size.known(), above.iter().position(|other| *other == size)) {
            (Some(number), _) => down = down.checked_mul(number)?,
            (None, Some(same)) => {
                above.swap_remove(same);
            }
            (None, None) => below.push(size),
        }
    }
    match (above.as_slice(), below.as_slice()) {
        ([], []) => Size::Known(up).div_exact(down),
        ([one], []) => one.scale(up)?.div_exact(down),
        ([one], [other]) => one.scale(up)?.ratio(&other.scale(down)?).map(Size::Known),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::DimId;

    fn n() -> Size {
        Size::dim(DimId(0))
    }

    #[test]
    fn dimensions_are_at_least_one() {
        assert_eq!(compare(&n(), &Size::Known(-1)), Some(Ordering::Greater));
        assert_eq!(compare(&n(), &Size::Known(1)), None);
        assert_eq!(at_least(&n(), &Size::Known(1)), Some(true));
        assert_eq!(smaller(&Size::Known(i64::MAX), &n()), None, "n may be as large");
        assert_eq!(larger(&n(), &Size::Known(0)), Some(n()));
    }

    #[test]
    fn the_remaining_size_cancels_dimensions() {
        let m = Size::dim(DimId(1));
        let from = [n(), m.clone(), Size::Known(768)];
        assert_eq!(remaining(&from, &[n(), Size::Known(12), Size::Known(64)]), Some(m));
        assert_eq!(remaining(&from, &[Size::Known(768)]), None);
        assert_eq!(remaining(&[Size::Known(6)], &[Size::Known(4)]), None);
        assert_eq!(remaining(&[Size::Known(6)], &[Size::Known(0)]), None);
    }

    #[test]
    fn known_tensors_broadcast() {
        let row = Known::vector(vec![Size::Known(1), Size::Known(2)]);
        let wide = row.broadcast(&[2, 2]).unwrap();
        assert_eq!(wide.sizes().unwrap().iter().filter_map(Size::known).collect::<Vec<_>>(), [1, 2, 1, 2]);
        assert_eq!(row.broadcast(&[3]), None);
    }
}
