//! A tensor in host memory: constants, weights, inputs and results.

use std::sync::Arc;

use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::{DType, Size, Type, integers};
use crate::error::{Error, Result};

/// Element type, sizes and little-endian row-major bytes. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    dtype: DType,
    dims: Vec<u64>,
    bytes: Arc<Vec<u8>>,
}

impl Tensor {
    /// A tensor of these parts. Error: the number of bytes is not that of the type.
    pub fn new(dtype: DType, dims: Vec<u64>, bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = Arc::new(bytes.into());
        let expected = dims.iter().try_fold(dtype.size(), |product, &dim| product.checked_mul(dim));
        // A zero anywhere makes the tensor empty, however large the other sizes.
        let expected = if dims.contains(&0) { Some(0) } else { expected };
        if expected != Some(bytes.len() as u64) {
            return Err(Error::format(
                "",
                format!("{dtype} data of sizes {dims:?} does not take {} bytes", bytes.len()),
            ));
        }
        Ok(Self { dtype, dims, bytes })
    }

    /// A tensor of f32 values. Error: their number is not the product of `dims`.
    pub fn from_f32(dims: Vec<u64>, values: &[f32]) -> Result<Self> {
        let mut bytes = vec![0; size_of_val(values)];
        for (bytes, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
        Self::new(DType::F32, dims, bytes)
    }

    /// A tensor of i64 values. Error: their number is not the product of `dims`.
    pub fn from_i64(dims: Vec<u64>, values: &[i64]) -> Result<Self> {
        let mut bytes = Vec::with_capacity(size_of_val(values));
        values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
        Self::new(DType::I64, dims, bytes)
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the axes.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Whether this is a tensor of that type; not where a size of the type is not known.
    pub fn is_of(&self, ty: &Type) -> bool {
        let sizes = ty.shape.sizes();
        let same =
            |(size, &dim): (&Size, &u64)| size.known().and_then(|size| u64::try_from(size).ok()) == Some(dim);
        self.dtype == ty.dtype && sizes.len() == self.dims.len() && sizes.iter().zip(&self.dims).all(same)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether another tensor is of the same bytes in memory.
    #[cfg(feature = "cuda")]
    pub(crate) fn shares_bytes(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes)
    }

    /// The bytes, where no other tensor shares them.
    #[cfg(feature = "run")]
    pub(crate) fn into_bytes(self) -> Option<Vec<u8>> {
        Arc::into_inner(self.bytes)
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size() as usize
    }

    /// Whether it has elements and all have the same bits. O(bytes), less where two differ.
    pub(crate) fn is_uniform(&self) -> bool {
        let mut elements = self.bytes.chunks_exact(self.dtype.size() as usize);
        elements.next().is_some_and(|first| elements.all(|element| element == first))
    }

    /// The elements as f32, where that is their type.
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let value = |c: &[u8]| f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
        (self.dtype == DType::F32).then(|| self.bytes.chunks_exact(4).map(value).collect())
    }

    /// The same elements, of f32, as the nearest halves; those beyond the largest half as that, so that what
    /// is finite stays so. Error: none but internal ones.
    pub(crate) fn rounded(&self, half: DType) -> Result<Self> {
        let (round, largest): (fn(f32) -> u16, f32) = match half {
            DType::F16 => (f32_to_f16, f16_to_f32(0x7bff)),
            DType::Bf16 => (f32_to_bf16, bf16_to_f32(0x7f7f)),
            other => return Err(Error::Internal(format!("{other} is no half"))),
        };
        let within = |value: f32| if value.is_finite() { value.clamp(-largest, largest) } else { value };
        let values = self.bytes.as_chunks::<4>().0.iter().map(|&bytes| within(f32::from_le_bytes(bytes)));
        let bytes: Vec<u8> = values.flat_map(|value| round(value).to_le_bytes()).collect();
        Self::new(half, self.dims.clone(), bytes)
    }

    /// The same elements, of halves, as f32. Error: none but internal ones.
    #[cfg(feature = "weights")]
    pub(crate) fn widened(&self) -> Result<Self> {
        let widen: fn(u16) -> f32 = match self.dtype {
            DType::F16 => f16_to_f32,
            DType::Bf16 => bf16_to_f32,
            other => return Err(Error::Internal(format!("{other} is no half"))),
        };
        let mut bytes = vec![0; 2 * self.bytes.len()];
        for (wide, half) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.bytes.as_chunks::<2>().0) {
            *wide = widen(u16::from_le_bytes(*half)).to_le_bytes();
        }
        Self::new(DType::F32, self.dims.clone(), bytes)
    }

    /// The elements from `start` on, `size` of them, along an axis. Error: they are not within it.
    pub fn sliced(&self, axis: usize, start: u64, size: u64) -> Result<Self> {
        let outside = || Error::Internal(format!("{size} from {start} on axis {axis} of {:?}", self.dims));
        let extent = *self.dims.get(axis).ok_or_else(outside)?;
        if start.checked_add(size).is_none_or(|end| end > extent) {
            return Err(outside());
        }
        let mut dims = self.dims.clone();
        dims[axis] = size;
        // Bytes of one element along the axis, and of all of them.
        let inner = self.dims[axis + 1..].iter().product::<u64>() * self.dtype.size();
        let row = (inner * extent) as usize;
        let mut bytes = Vec::with_capacity(self.bytes.len() / (extent.max(1) as usize) * size as usize);
        if row > 0 {
            let cut = (start * inner) as usize..((start + size) * inner) as usize;
            self.bytes.chunks_exact(row).for_each(|row| bytes.extend_from_slice(&row[cut.clone()]));
        }
        Self::new(self.dtype, dims, bytes)
    }

    /// The elements with the axes in another order, as a transposition. Error: it is no order of the axes.
    pub fn permuted(&self, order: &[u32]) -> Result<Self> {
        let rank = self.dims.len();
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..rank as u32) {
            return Err(Error::Internal(format!("axes {order:?} of {:?}", self.dims)));
        }
        let mut strides = vec![1usize; rank];
        for axis in (1..rank).rev() {
            strides[axis - 1] = strides[axis] * self.dims[axis] as usize;
        }
        let dims: Vec<u64> = order.iter().map(|&axis| self.dims[axis as usize]).collect();
        let steps: Vec<usize> = order.iter().map(|&axis| strides[axis as usize]).collect();
        let size = self.dtype.size() as usize;
        let mut bytes = Vec::with_capacity(self.bytes.len());
        let (mut at, mut from) = (vec![0u64; rank], 0usize);
        for _ in 0..self.elements() {
            bytes.extend_from_slice(&self.bytes[from * size..][..size]);
            for axis in (0..rank).rev() {
                at[axis] += 1;
                from += steps[axis];
                if at[axis] < dims[axis] {
                    break;
                }
                from -= steps[axis] * dims[axis] as usize;
                at[axis] = 0;
            }
        }
        Self::new(self.dtype, dims, bytes)
    }

    /// The elements as i64, where their type is an integer or `bool` and all fit.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        let b = &self.bytes;
        Some(match self.dtype {
            DType::I64 => each_element(b, i64::from_le_bytes),
            DType::I32 => each_element(b, |c| i32::from_le_bytes(c).into()),
            DType::I16 => each_element(b, |c| i16::from_le_bytes(c).into()),
            DType::I8 => each_element(b, |c| i8::from_le_bytes(c).into()),
            DType::U8 | DType::Bool => each_element(b, |c| u8::from_le_bytes(c).into()),
            DType::U16 => each_element(b, |c| u16::from_le_bytes(c).into()),
            DType::U32 => each_element(b, |c| u32::from_le_bytes(c).into()),
            DType::U64 => {
                let all = each_element(b, |c| i64::try_from(u64::from_le_bytes(c)).ok());
                return all.into_iter().collect();
            }
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => return None,
        })
    }

    /// The elements as f64, whatever their type; integers beyond 2^53 are rounded.
    pub fn to_f64(&self) -> Vec<f64> {
        let b = &self.bytes;
        match self.dtype {
            DType::F32 => each_element(b, |c| f32::from_le_bytes(c).into()),
            DType::F64 => each_element(b, f64::from_le_bytes),
            DType::F16 => each_element(b, |c| f16_to_f32(u16::from_le_bytes(c)).into()),
            DType::Bf16 => each_element(b, |c| bf16_to_f32(u16::from_le_bytes(c)).into()),
            DType::U64 => each_element(b, |c| u64::from_le_bytes(c) as f64),
            DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::Bool => {
                self.to_i64().unwrap_or_default().into_iter().map(|value| value as f64).collect()
            }
        }
    }
}

/// What is read of each of the elements that some bytes are, which have `N` bytes each.
pub(crate) fn each_element<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&element| read(element)).collect()
}

/// The value of one element of a type of floats; none of other types.
pub(crate) fn float_element(dtype: DType, bytes: &[u8]) -> Option<f64> {
    Some(match dtype {
        DType::F32 => f32::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::F64 => f64::from_le_bytes(bytes.try_into().ok()?),
        DType::F16 => f16_to_f32(u16::from_le_bytes(bytes.try_into().ok()?)).into(),
        DType::Bf16 => bf16_to_f32(u16::from_le_bytes(bytes.try_into().ok()?)).into(),
        integers!() | DType::Bool => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_read() {
        let bits = [0x3c00u16, 0xc000, 0x0001, 0x7c00, 0x0400];
        let bytes: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let tensor = Tensor::new(DType::F16, vec![5], bytes).unwrap();
        assert_eq!(tensor.to_f64(), [1.0, -2.0, 5.960_464_477_539_063e-8, f64::INFINITY, 6.103_515_625e-5]);
    }

    #[test]
    fn bytes_must_fill_the_sizes() {
        assert!(Tensor::new(DType::F32, vec![2], vec![0; 7]).is_err());
        assert!(Tensor::new(DType::F32, vec![u64::MAX, u64::MAX], vec![]).is_err());
        assert!(Tensor::new(DType::F32, vec![u64::MAX, u64::MAX, 0], vec![]).is_ok());
    }
}
