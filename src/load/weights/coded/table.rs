//! bitsandbytes' weights of 4 bits (Dettmers and others 2023, QLoRA): places in a table of 16 numbers, times the largest of each
//! block of neighbours. These may be coded themselves: places in a table of 256 numbers, times the largest of each block of
//! them, and an offset.

use serde::Deserialize;

use super::super::Arrays;
use super::{Error, Result, whole};
use crate::ir::{DType, Tensor};

/// Longer descriptions are none.
const LONGEST: u64 = 1 << 16;

/// A matrix.
pub(super) struct Table<'a> {
    pub(super) arrays: &'a Arrays,
    /// What the names of its arrays begin with.
    pub(super) stem: &'a str,
}

/// What is said of a matrix, beside its arrays.
#[derive(Deserialize)]
struct State {
    blocksize: u64,
    shape: Vec<u64>,
    nested_blocksize: Option<u64>,
    nested_offset: Option<f64>,
}

impl Table<'_> {
    fn name(&self, end: &str) -> String {
        format!("{}weight{end}", self.stem)
    }

    /// Error: the description is not there, or is none.
    fn state(&self) -> Result<State> {
        let names = ["nf4", "fp4"].map(|kind| self.name(&format!(".quant_state.bitsandbytes__{kind}")));
        let name = names.iter().find(|name| self.arrays.holds(name)).unwrap_or(&names[0]);
        let (_, dims) = self.arrays.part_header(name)?;
        if whole(&dims)? as u64 > LONGEST {
            return Err(Error::model("", format!("its {name} is too long")));
        }
        let text = self.arrays.part(name, DType::U8)?;
        let state: State = crate::json::read(text.bytes())
            .map_err(|error| Error::format("", format!("its {name} is damaged: {error}")))?;
        if state.blocksize == 0 || state.nested_blocksize == Some(0) {
            return Err(Error::format("", format!("its {name} has blocks of no numbers")));
        }
        Ok(state)
    }

    /// Sizes, which as many bytes as they need vouch for.
    pub(super) fn dims(&self) -> Result<Vec<u64>> {
        let state = self.state()?;
        let (_, bytes) = self.arrays.part_header(&self.name(""))?;
        if whole(&state.shape)?.div_ceil(2) != whole(&bytes)? {
            let message = format!("{bytes:?} bytes for sizes {:?} of 4 bits", state.shape);
            return Err(Error::model("", message));
        }
        Ok(state.shape)
    }

    pub(super) fn numbers(&self) -> Result<Tensor> {
        let (dims, state) = (self.dims()?, self.state()?);
        let count = whole(&dims)?;
        let bytes = self.arrays.part(&self.name(""), DType::U8)?;
        let table = self.table(".quant_map", 16)?;
        let largest = self.largest(&state, (count as u64).div_ceil(state.blocksize))?;
        // The first of two numbers is in the upper half of their byte.
        let places = bytes.bytes().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let mut numbers: Vec<f32> = places.take(count).map(|place| table[usize::from(place)]).collect();
        let block = usize::try_from(state.blocksize).unwrap_or(usize::MAX);
        for (numbers, largest) in numbers.chunks_mut(block).zip(largest) {
            numbers.iter_mut().for_each(|number| *number *= largest);
        }
        Tensor::from_f32(dims, &numbers)
    }

    /// The largest number of each block. Error: there are not as many as blocks.
    fn largest(&self, state: &State, blocks: u64) -> Result<Vec<f32>> {
        const NAME: &str = ".absmax";
        let (dtype, dims) = self.arrays.part_header(&self.name(NAME))?;
        if whole(&dims)? as u64 != blocks {
            return Err(Error::model("", format!("its absmax has sizes {dims:?} for {blocks} blocks")));
        }
        if dtype != DType::U8 {
            return self.floats(NAME);
        }
        let places = self.arrays.part(&self.name(NAME), DType::U8)?;
        let table = self.table(".nested_quant_map", 256)?;
        let outer = self.floats(".nested_absmax")?;
        let block = state.nested_blocksize.ok_or_else(|| Error::model("", "it has no nested_blocksize"))?;
        let offset = state.nested_offset.unwrap_or(0.0) as f32;
        let block = usize::try_from(block).unwrap_or(usize::MAX);
        if places.bytes().len().div_ceil(block) != outer.len() {
            return Err(Error::model("", format!("its nested_absmax has {} numbers", outer.len())));
        }
        let blocks = places.bytes().chunks(block).zip(&outer);
        let number = |(places, outer)| {
            let of = |&place: &u8| table[usize::from(place)] * outer + offset;
            <[u8]>::iter(places).map(of).collect::<Vec<f32>>()
        };
        Ok(blocks.flat_map(number).collect())
    }

    /// A table of so many numbers.
    fn table(&self, end: &str, count: usize) -> Result<Vec<f32>> {
        let table = self.floats(end)?;
        if table.len() == count {
            return Ok(table);
        }
        Err(Error::model("", format!("its {} has {} numbers, expected {count}", self.name(end), table.len())))
    }

    fn floats(&self, end: &str) -> Result<Vec<f32>> {
        let found = self.arrays.part_of_floats(&self.name(end))?;
        found.to_f32().ok_or_else(|| Error::Internal("floats that were widened".into()))
    }
}
