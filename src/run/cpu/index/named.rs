//! Where indices point: each is checked where it is used, and one outside its axis is an error of the run.

use crate::error::{Error, Result};
use crate::ir::DType;

use super::super::view::View;

/// Integer indices of any type.
#[derive(Clone, Copy)]
enum Indices<'a> {
    I8(&'a [i8]),
    I16(&'a [i16]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
}

/// Evaluates an expression with `list` bound to the slice, whatever its type.
macro_rules! with_list {
    ($indices:expr, $list:ident => $body:expr) => {
        match $indices {
            Indices::I8($list) => $body,
            Indices::I16($list) => $body,
            Indices::I32($list) => $body,
            Indices::I64($list) => $body,
            Indices::U8($list) => $body,
            Indices::U16($list) => $body,
            Indices::U32($list) => $body,
            Indices::U64($list) => $body,
        }
    };
}

impl<'a> Indices<'a> {
    fn new(view: &View<'a>) -> Result<Self> {
        Ok(match view.dtype {
            DType::I8 => Self::I8(view.slice()?),
            DType::I16 => Self::I16(view.slice()?),
            DType::I32 => Self::I32(view.slice()?),
            DType::I64 => Self::I64(view.slice()?),
            DType::U8 => Self::U8(view.slice()?),
            DType::U16 => Self::U16(view.slice()?),
            DType::U32 => Self::U32(view.slice()?),
            DType::U64 => Self::U64(view.slice()?),
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::Bool => {
                return Err(Error::Internal(format!("indices of type {}", view.dtype)));
            }
        })
    }

    fn len(self) -> usize {
        with_list!(self, list => list.len())
    }
}

/// An integer that may be an index.
trait Index: Copy {
    /// As i64; one that is larger stays outside every axis.
    fn wide(self) -> i64;
}

macro_rules! is_index {
    ($($integer:ty),*) => {
        $(impl Index for $integer {
            #[inline(always)]
            fn wide(self) -> i64 {
                self.into()
            }
        })*
    };
}

is_index!(i8, i16, i32, i64, u8, u16, u32);

impl Index for u64 {
    #[inline(always)]
    fn wide(self) -> i64 {
        self.min(i64::MAX as u64) as i64
    }
}

/// An index within an axis of `size`, where one below 0 counts from the end; too large a number where it is not.
#[inline(always)]
fn wrapped(index: i64, size: usize) -> u64 {
    (index + if index < 0 { size as i64 } else { 0 }) as u64
}

/// An axis that indices name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Axis {
    pub(super) size: usize,
    /// Elements from one to the next.
    pub(super) step: usize,
}

/// Tuples of indices, one for each of some axes.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    indices: Indices<'a>,
    axes: &'a [Axis],
}

impl<'a> Named<'a> {
    pub(super) fn new(view: &View<'a>, axes: &'a [Axis]) -> Result<Self> {
        Ok(Self { indices: Indices::new(view)?, axes })
    }

    /// How many tuples there are. Where they are of no axis, that is not known.
    pub(super) fn count(&self) -> usize {
        self.indices.len().checked_div(self.axes.len()).unwrap_or(0)
    }

    /// The offsets that the tuples from `first` on name, in elements; `false` where one is outside its axis.
    pub(super) fn offsets(&self, first: usize, offsets: &mut [usize]) -> bool {
        let (start, count) = (first * self.axes.len(), offsets.len() * self.axes.len());
        with_list!(self.indices, list => within(&list[start..][..count], self.axes, offsets))
    }

    /// The offset that one tuple names. Error: it is outside.
    pub(super) fn offset(&self, tuple: usize) -> Result<usize> {
        let mut offset = [0];
        if self.offsets(tuple, &mut offset) { Ok(offset[0]) } else { Err(self.outside()) }
    }

    /// Error: some index is outside its axis.
    pub(super) fn check(&self) -> Result<()> {
        let mut offsets = [0; RUN];
        let count = self.count();
        for first in (0..count).step_by(RUN) {
            if !self.offsets(first, &mut offsets[..RUN.min(count - first)]) {
                return Err(self.outside());
            }
        }
        Ok(())
    }

    /// Tells the first index that is outside its axis.
    #[cold]
    pub(super) fn outside(&self) -> Error {
        let axes = self.axes.iter().cycle();
        let first = with_list!(self.indices, list => {
            let mut named = list.iter().map(|&index| index.wide()).zip(axes);
            named.find(|&(index, axis)| wrapped(index, axis.size) >= axis.size as u64)
        });
        let Some((index, axis)) = first else { return Error::Internal("all indices are inside".to_owned()) };
        Error::run("", format!("index {index} is outside an axis of {} elements", axis.size))
    }
}

/// The integer at a position, within an axis of `size`. Error: it is not.
pub(in crate::run::cpu) fn position(view: &View<'_>, at: usize, size: usize) -> Result<usize> {
    Named::new(view, &[Axis { size, step: 1 }])?.offset(at)
}

/// Offsets that are found together.
pub(super) const RUN: usize = 256;

#[inline(always)]
fn within<T: Index>(list: &[T], axes: &[Axis], offsets: &mut [usize]) -> bool {
    let mut outside = false;
    // Most indices are of one axis.
    if let [Axis { size, step }] = *axes {
        for (offset, &index) in offsets.iter_mut().zip(list) {
            let place = wrapped(index.wide(), size);
            outside |= place >= size as u64;
            *offset = (place as usize).wrapping_mul(step);
        }
        return !outside;
    }
    offsets.fill(0);
    if axes.is_empty() {
        return true;
    }
    for (offset, tuple) in offsets.iter_mut().zip(list.chunks_exact(axes.len())) {
        for (&index, axis) in tuple.iter().zip(axes) {
            let place = wrapped(index.wide(), axis.size);
            outside |= place >= axis.size as u64;
            *offset = offset.wrapping_add((place as usize).wrapping_mul(axis.step));
        }
    }
    !outside
}
