//! NVIDIA's floats of 4 bits (NVFP4): two e2m1 to a byte, of which 16 neighbours share a float of 8 bits, and all of a layer one of
//! f32. compressed-tensors divides by that, ModelOpt multiplies.

use super::super::Arrays;
use super::{Error, Result, whole};
use crate::ir::{DType, E2M1, Tensor};

/// Numbers that share a float of 8 bits.
const GROUP: u64 = 16;

/// A matrix.
pub(super) struct Shared<'a> {
    pub(super) arrays: &'a Arrays,
    /// What the names of its arrays begin with.
    pub(super) stem: &'a str,
    /// Of compressed-tensors.
    pub(super) is_divided: bool,
}

impl Shared<'_> {
    fn name(&self, end: &str) -> String {
        format!("{}{end}", self.stem)
    }

    fn packed(&self) -> String {
        self.name(if self.is_divided { "weight_packed" } else { "weight" })
    }

    pub(super) fn dims(&self) -> Result<Vec<u64>> {
        let (_, bytes) = self.arrays.part_header(&self.packed())?;
        let (_, scales) = self.arrays.part_header(&self.name("weight_scale"))?;
        match (&bytes[..], &scales[..]) {
            (&[rows, half], &[of_rows, groups])
                if rows == of_rows && half.checked_mul(2) == groups.checked_mul(GROUP) =>
            {
                Ok(vec![rows, half * 2])
            }
            _ => Err(Error::model("", format!("bytes of sizes {bytes:?} beside scales of {scales:?}"))),
        }
    }

    pub(super) fn numbers(&self) -> Result<Tensor> {
        let dims = self.dims()?;
        let bytes = self.arrays.part(&self.packed(), DType::U8)?;
        let scales = self.floats("weight_scale")?;
        let own = self.floats(if self.is_divided { "weight_global_scale" } else { "weight_scale_2" })?;
        let &[own] = &own[..] else {
            return Err(Error::model("", format!("{} scales of the whole, expected one", own.len())));
        };
        let scale = |scale: f32| if self.is_divided { scale / own } else { scale * own };
        let mut numbers = Vec::with_capacity(whole(&dims)?);
        for (bytes, &group) in bytes.bytes().chunks(GROUP as usize / 2).zip(&scales) {
            let scale = scale(group);
            // The table has twice the numbers.
            let number = |place: u8| E2M1[usize::from(place)] * 0.5 * scale;
            numbers.extend(bytes.iter().flat_map(|byte| [number(byte & 15), number(byte >> 4)]));
        }
        Tensor::from_f32(dims, &numbers)
    }

    fn floats(&self, end: &str) -> Result<Vec<f32>> {
        let found = self.arrays.part_of_floats(&self.name(end))?;
        found.to_f32().ok_or_else(|| Error::Internal("floats that were widened".into()))
    }
}
