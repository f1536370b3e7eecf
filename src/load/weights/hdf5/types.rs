//! Types of elements, and sizes.

use super::bytes::Fields;
use super::{damaged, unsupported};
use crate::error::Result;
use crate::ir::DType;

/// What an element is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// A number that a tensor can hold.
    Number { dtype: DType, big_endian: bool },
    /// A text of so many bytes, padded.
    Text(usize),
    /// A text in the global heap.
    VariableText,
}

/// Reads a datatype message.
pub(super) fn element(fields: &mut Fields<'_>) -> Result<Element> {
    let class = fields.byte()? & 15;
    let bits = fields.uint(3)?;
    let size = fields.uint(4)?;
    let big_endian = bits & 1 != 0;
    let number = |dtype| Ok(Element::Number { dtype, big_endian });
    match (class, size) {
        (0, 1) if bits & 8 == 0 => number(DType::U8),
        (0, 1) => number(DType::I8),
        (0, 2) if bits & 8 != 0 => number(DType::I16),
        (0, 2) => number(DType::U16),
        (0, 4) if bits & 8 != 0 => number(DType::I32),
        (0, 4) => number(DType::U32),
        (0, 8) if bits & 8 != 0 => number(DType::I64),
        (0, 8) => number(DType::U64),
        (1, 2) => {
            // Where the exponent begins, and how long it is.
            fields.skip(4)?;
            match (fields.byte()?, fields.byte()?) {
                (10, 5) => number(DType::F16),
                (7, 8) => number(DType::Bf16),
                _ => Err(unsupported("a float of 16 bits that is neither half nor bfloat")),
            }
        }
        (1, 4) => number(DType::F32),
        (1, 8) => number(DType::F64),
        // Opaque bytes: numpy hands bfloat16 on so, and has no other two of them that HDF5 does not know.
        (5, 2) => Ok(Element::Number { dtype: DType::Bf16, big_endian: false }),
        (3, size) => Ok(Element::Text(usize::try_from(size).unwrap_or(usize::MAX))),
        // An enumeration of one byte is how h5py writes bools.
        (8, 1) => number(DType::Bool),
        (9, _) if bits & 15 == 1 => Ok(Element::VariableText),
        _ => Err(unsupported(format!("elements of class {class} and {size} bytes"))),
    }
}

/// Reads a dataspace message; a scalar has no sizes.
pub(super) fn dims(fields: &mut Fields<'_>) -> Result<Vec<u64>> {
    let version = fields.byte()?;
    let rank = fields.byte()?;
    fields.skip(1)?;
    match version {
        1 => fields.skip(5)?,
        2 if fields.byte()? == 2 => return Ok(vec![0]),
        2 => {}
        other => return Err(damaged(format!("version {other} of sizes"))),
    }
    if rank > 32 {
        return Err(damaged(format!("an array of {rank} axes")));
    }
    (0..rank).map(|_| fields.length()).collect()
}
