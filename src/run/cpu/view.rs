//! Tensors as kernels see them: borrowed bytes with a type, and typed slices of them.

use crate::error::{Error, Result};
use crate::ir::DType;
use bytemuck::{Pod, Zeroable};

use super::element::Element;
use super::elementwise::tile::Epilogue;

/// A tensor that is read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the axes.
    pub dims: &'a [i64],
    /// Row-major elements in the machine's byte order, but where they are packed.
    pub bytes: &'a [u8],
    /// Matrices that lie as the right operands of products are read best (see `blocks`), each for itself.
    pub packed: bool,
    /// All elements are zero, and have no bytes.
    pub(in crate::run) zeros: bool,
}

/// A tensor that is written.
pub struct ViewMut<'a> {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes of the axes.
    pub dims: &'a [i64],
    /// Row-major elements in the machine's byte order.
    pub bytes: &'a mut [u8],
    /// What follows on each element. Kernels that do it say so.
    pub(in crate::run) epilogue: Option<&'a Epilogue<'a>>,
}

/// Number of elements of these sizes; none where one is negative or their product overflows.
pub fn elements(dims: &[i64]) -> Option<usize> {
    if dims.contains(&0) {
        return dims.iter().all(|&dim| dim >= 0).then_some(0);
    }
    dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?))
}

fn fits(dtype: DType, dims: &[i64], bytes: &[u8]) -> Result<()> {
    let expected = elements(dims).and_then(|count| count.checked_mul(dtype.size() as usize));
    if expected != Some(bytes.len()) {
        return Err(Error::Internal(format!("{} bytes for {dtype} of sizes {dims:?}", bytes.len())));
    }
    // Of none the address may be any.
    if !bytes.is_empty() && bytes.as_ptr().align_offset(dtype.size() as usize) != 0 {
        return Err(Error::Internal(format!("misaligned elements of type {dtype}")));
    }
    Ok(())
}

impl<'a> View<'a> {
    /// A view of these parts. Error: the bytes are not those of the type, or not aligned to it.
    pub fn new(dtype: DType, dims: &'a [i64], bytes: &'a [u8]) -> Result<Self> {
        fits(dtype, dims, bytes)?;
        Ok(Self { dtype, dims, bytes, packed: false, zeros: false })
    }

    /// An operand that lies where the result is made, for kernels that update it there: it has no bytes of its own.
    pub(in crate::run) fn updated(dtype: DType, dims: &'a [i64]) -> Self {
        Self { dtype, dims, bytes: &[], packed: false, zeros: false }
    }

    /// An operand whose elements are all zero, for kernels that need not read them.
    pub(in crate::run) fn zeros(dtype: DType, dims: &'a [i64]) -> Self {
        Self { zeros: true, ..Self::updated(dtype, dims) }
    }

    /// The elements; halves as `u16`, bools as `u8`.
    pub(super) fn slice<T: Plain>(&self) -> Result<&'a [T]> {
        from_bytes(self.bytes)
    }

    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size() as usize
    }
}

impl<'a> ViewMut<'a> {
    /// A view of these parts. Error: the bytes are not those of the type, or not aligned to it.
    pub fn new(dtype: DType, dims: &'a [i64], bytes: &'a mut [u8]) -> Result<Self> {
        fits(dtype, dims, bytes)?;
        Ok(Self { dtype, dims, bytes, epilogue: None })
    }

    /// What follows on each element, which the caller does from now on.
    pub(super) fn take_epilogue(&mut self) -> Option<&'a Epilogue<'a>> {
        self.epilogue.take().map(Epilogue::take)
    }

    /// The elements; halves as `u16`, bools as `u8`.
    pub(super) fn slice<T: Plain>(&mut self) -> Result<&mut [T]> {
        from_bytes_mut(self.bytes)
    }
}

/// Types without padding for which every pattern of bits is a value, and which threads may share.
pub(super) trait Plain: Pod + Send + Sync {}
impl<T: Pod + Send + Sync> Plain for T {}

/// The bits of a bfloat16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct Bf16(pub(super) u16);

/// The bits of an IEEE binary16.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct F16(pub(super) u16);

/// Bytes as elements. Error: their number or address does not fit.
pub(super) fn from_bytes<T: Plain>(bytes: &[u8]) -> Result<&[T]> {
    match bytes {
        // Its address may be any.
        [] => Ok(&[]),
        _ => bytemuck::try_cast_slice(bytes).map_err(|_| misfit::<T>(bytes.len())),
    }
}

/// Bytes as elements to write. Error: their number or address does not fit.
pub(super) fn from_bytes_mut<T: Plain>(bytes: &mut [u8]) -> Result<&mut [T]> {
    let length = bytes.len();
    match bytes {
        [] => Ok(&mut []),
        _ => bytemuck::try_cast_slice_mut(bytes).map_err(|_| misfit::<T>(length)),
    }
}

/// Elements as bytes.
pub(super) fn bytes_of<T: Plain>(elements: &[T]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

/// Elements as bytes to write.
pub(super) fn bytes_of_mut<T: Plain>(elements: &mut [T]) -> &mut [u8] {
    bytemuck::cast_slice_mut(elements)
}

fn misfit<T>(bytes: usize) -> Error {
    Error::Internal(format!("{bytes} bytes are not aligned elements of {} bytes", size_of::<T>()))
}

/// Takes `count` elements from the front of a workspace, and leaves the rest, aligned to 64
/// bytes. Error: it is too small.
pub(super) fn take<'a, T: Plain>(workspace: &mut &'a mut [u8], count: usize) -> Result<&'a mut [T]> {
    let bytes = count.saturating_mul(size_of::<T>());
    let padded = bytes.next_multiple_of(64);
    let whole = std::mem::take(workspace);
    if padded > whole.len() {
        return Err(Error::Internal(format!("a workspace of {} bytes for {padded}", whole.len())));
    }
    let (front, rest) = whole.split_at_mut(padded);
    *workspace = rest;
    from_bytes_mut(&mut front[..bytes])
}

/// Runs `$body` with `$T` as the type that elements of `$dtype` are computed in; `$half` for the
/// two halves.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr, half => $half:expr) => {
        match $dtype {
            $crate::ir::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::ir::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::ir::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::ir::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::ir::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::ir::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::ir::DType::U8 | $crate::ir::DType::Bool => {
                type $T = u8;
                $body
            }
            $crate::ir::DType::U16 => {
                type $T = u16;
                $body
            }
            $crate::ir::DType::U32 => {
                type $T = u32;
                $body
            }
            $crate::ir::DType::U64 => {
                type $T = u64;
                $body
            }
            $crate::ir::DType::F16 | $crate::ir::DType::Bf16 => $half,
        }
    };
}

/// Runs `$body` with `$T` as an unsigned integer of the size of `$dtype`'s elements.
macro_rules! with_bits {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::ir::DType::I8 | $crate::ir::DType::U8 | $crate::ir::DType::Bool => {
                type $T = u8;
                $body
            }
            $crate::ir::DType::F16
            | $crate::ir::DType::Bf16
            | $crate::ir::DType::I16
            | $crate::ir::DType::U16 => {
                type $T = u16;
                $body
            }
            $crate::ir::DType::F32 | $crate::ir::DType::I32 | $crate::ir::DType::U32 => {
                type $T = u32;
                $body
            }
            $crate::ir::DType::F64 | $crate::ir::DType::I64 | $crate::ir::DType::U64 => {
                type $T = u64;
                $body
            }
        }
    };
}

/// Runs `$body` with `$T` as f32 or f64; other types are an error of the operation `$op`.
macro_rules! with_float {
    ($dtype:expr, $op:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::ir::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::ir::DType::F64 => {
                type $T = f64;
                $body
            }
            other => Err($crate::error::Error::Internal(format!("{} of {other}", $op))),
        }
    };
}

pub(super) use {with_bits, with_element, with_float};

/// The elements of a view whose type is computed in `T`.
pub(super) trait Typed: Element + Plain {}
impl<T: Element + Plain> Typed for T {}
