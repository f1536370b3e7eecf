//! The rows of an array as numbers of f32, some at a time: what is packed anew as it is read is not held whole.

use super::floats::numbers;
use super::gguf::Gguf;
use super::{Arrays, Rows, Source};
use crate::error::Result;
use crate::ir::Tensor;

/// An array of floats, or of blocks of few bits, being read from its front.
pub(super) struct NumberRows<'a> {
    dims: Vec<u64>,
    left: u64,
    of: Of<'a>,
}

enum Of<'a> {
    Floats(Box<Rows>),
    Gguf(&'a Gguf, &'a str),
}

impl Arrays {
    /// The rows of an array; none where its numbers are made of more arrays than one, it is not read in parts, or there is none
    /// of this name.
    pub(super) fn rows_of_numbers<'a>(&'a self, name: &'a str) -> Option<NumberRows<'a>> {
        if self.is_coded(name) || self.scale_of(name).is_some() {
            return None;
        }
        let (dtype, dims) = self.header(name).ok().flatten()?;
        let left = dims.first().copied().filter(|_| dtype.is_float())?;
        let of = match &self.source {
            Source::Gguf(gguf) => Of::Gguf(gguf, name),
            Source::Shards(shards) => return shards.of(name)?.rows_of_numbers(name),
            Source::Npz(_) | Source::Safetensors(_) | Source::Hdf5(_) => {
                Of::Floats(Box::new(self.rows(name).ok().flatten()?))
            }
        };
        Some(NumberRows { dims, left, of })
    }
}

impl NumberRows<'_> {
    /// Sizes of the whole array.
    pub(super) fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Rows that were not read yet.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// The next rows: so many, or as many as are left. Errors: damaged data.
    pub(super) fn read(&mut self, most: usize) -> Result<Vec<f32>> {
        let rows = self.left.min(most as u64);
        let first = self.dims[0] - self.left;
        let width: u64 = self.dims[1..].iter().product();
        self.left -= rows;
        match &mut self.of {
            Of::Floats(data) => {
                let mut bytes = Vec::new();
                data.read(rows as usize, &mut bytes)?;
                numbers(Tensor::new(data.dtype(), vec![rows, width], bytes)?)
            }
            Of::Gguf(gguf, name) => gguf.numbers(name, first * width, rows * width),
        }
    }
}
