//! What a node of an fx graph makes: one array, several, or nothing.

use serde_json::Value;

use crate::error::{Error, Result};

/// A tensor's shape and size.
pub(super) struct Array {
    pub(super) shape: Vec<u64>,
    pub(super) bytes: u64,
    /// Sixteen bits, which devices compute faster.
    pub(super) is_half: bool,
}

impl Array {
    /// Number of elements. The size in bytes fits, so that this does.
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The results of a node, in order; one that is absent has no bytes.
pub(super) struct Made {
    pub(super) arrays: Vec<Array>,
    is_list: bool,
}

impl Made {
    /// The one result.
    pub(super) fn one(&self) -> Option<&Array> {
        match self.arrays.as_slice() {
            [array] if !self.is_list => Some(array),
            _ => None,
        }
    }
}

/// The results that the field `val` describes.
///
/// Errors: a form or element type that is not known, a size that is too large.
pub(super) fn made(value: &Value) -> Result<Made> {
    let (values, is_list) = match value {
        Value::Array(values) => (values.as_slice(), true),
        one => (std::slice::from_ref(one), false),
    };
    let arrays = values.iter().map(array).collect::<Result<_>>()?;
    Ok(Made { arrays, is_list })
}

fn array(value: &Value) -> Result<Array> {
    let unknown = || Error::format("val", format!("{value} is no shape with a dtype"));
    if value.is_null() {
        return Ok(Array { shape: vec![0], bytes: 0, is_half: false });
    }
    let fields = value.as_object().filter(|fields| fields.len() == 2).ok_or_else(unknown)?;
    let dtype = fields.get("dtype").and_then(Value::as_str).ok_or_else(unknown)?;
    let sizes = fields.get("shape").and_then(Value::as_array).ok_or_else(unknown)?;
    let shape: Vec<u64> = sizes.iter().map(Value::as_u64).collect::<Option<_>>().ok_or_else(unknown)?;
    let mut bytes = element_bytes(dtype)?;
    // An empty tensor's other sizes may be anything.
    if shape.contains(&0) {
        return Ok(Array { shape: vec![0], bytes: 0, is_half: false });
    }
    for &size in &shape {
        bytes = bytes
            .checked_mul(size)
            .filter(|&bytes| bytes <= i64::MAX as u64)
            .ok_or_else(|| Error::model("val", format!("a tensor of {shape:?} is too large")))?;
    }
    Ok(Array { shape, bytes, is_half: matches!(dtype, "float16" | "bfloat16") })
}

/// Bytes of an element.
fn element_bytes(dtype: &str) -> Result<u64> {
    Ok(match dtype {
        "bool" | "uint8" | "int8" | "float8_e4m3fn" | "float8_e5m2" => 1,
        "float16" | "bfloat16" | "int16" | "uint16" => 2,
        "float32" | "int32" | "uint32" => 4,
        "float64" | "int64" | "uint64" | "complex64" => 8,
        "complex128" => 16,
        other => return Err(Error::format("val", format!("the dtype {other} is not known"))),
    })
}
