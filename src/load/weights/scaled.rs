//! Weights of 8 bits beside their scales, as checkpoints have them: `weight` in floats of 8 bits, and `weight_scale`
//! (compressed-tensors, FBGEMM, ModelOpt) or `weight_scale_inv` (blocks, as DeepSeek's), which it is multiplied by.

use super::{Arrays, Source};
use crate::error::{Error, Result};
use crate::ir::Tensor;

/// Scales of a weight, by what its name is followed by.
const OF_WEIGHT: [&str; 2] = ["_scale_inv", "_scale"];

/// Scales of what a layer reads or keeps: they only matter where that is rounded to 8 bits too.
const OF_LAYER: [&str; 4] = ["input_scale", "output_scale", "k_scale", "v_scale"];

impl Arrays {
    /// Whether an array is a scale that another one is given with, or that is not needed beside one.
    pub(super) fn is_scale(&self, name: &str) -> bool {
        let before = |end: &str| name.strip_suffix(end);
        let of_weight = |end: &str| before(end).is_some_and(|weight| self.is_eight(weight));
        let of_layer = |end: &str| before(end).is_some_and(|layer| layer.is_empty() || layer.ends_with('.'));
        OF_WEIGHT.into_iter().any(of_weight) || self.holds_eight() && OF_LAYER.into_iter().any(of_layer)
    }

    /// Whether any array holds floats of 8 bits. O(files).
    fn holds_eight(&self) -> bool {
        match &self.source {
            Source::Safetensors(safetensors) => safetensors.holds_eight(),
            Source::Shards(shards) => shards.files().any(Self::holds_eight),
            Source::Npz(_) | Source::Hdf5(_) | Source::Gguf(_) => false,
        }
    }

    fn is_eight(&self, name: &str) -> bool {
        match &self.source {
            Source::Safetensors(safetensors) => safetensors.is_eight(name),
            Source::Shards(shards) => shards.of(name).is_some_and(|arrays| arrays.is_eight(name)),
            Source::Npz(_) | Source::Hdf5(_) | Source::Gguf(_) => false,
        }
    }

    /// The name of the scale that an array is given with; none where it has none.
    pub(super) fn scale_of(&self, name: &str) -> Option<String> {
        if !self.is_eight(name) {
            return None;
        }
        let beside = OF_WEIGHT.iter().map(|end| format!("{name}{end}"));
        beside.into_iter().find(|scale| self.holds(scale))
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        match &self.source {
            Source::Safetensors(safetensors) => safetensors.holds(name),
            Source::Shards(shards) => shards.of(name).is_some(),
            Source::Npz(_) | Source::Hdf5(_) | Source::Gguf(_) => false,
        }
    }

    /// An array times its scale.
    pub(super) fn scaled(&self, weight: &Tensor, scale: &str) -> Result<Tensor> {
        if self.is_eight(scale) {
            // It would have a scale of its own to be read with.
            return Err(Error::model("", format!("its scale {scale} is of floats of 8 bits")));
        }
        let found = self.raw(scale)?.ok_or_else(|| Error::Internal("a scale that was found".into()))?;
        let found = if found.dtype().is_half() { found.widened()? } else { found };
        let Some(scales) = found.to_f32() else {
            return Err(Error::model("", format!("its scale {scale} is {}", found.dtype())));
        };
        let dims = weight.dims().to_vec();
        let blocks = Blocks::of(&dims, found.dims()).ok_or_else(|| {
            Error::model("", format!("a scale {scale} of sizes {:?} for {dims:?}", found.dims()))
        })?;
        let numbers = weight.to_f32();
        let mut numbers =
            numbers.ok_or_else(|| Error::Internal("floats of 8 bits are read as f32".into()))?;
        for (row, numbers) in numbers.chunks_mut(blocks.columns.max(1)).enumerate() {
            let scales = blocks.of_row(row, &scales);
            let scales = scales.ok_or_else(|| Error::Internal("fewer scales than blocks".into()))?;
            for (numbers, scale) in numbers.chunks_mut(blocks.columns_of_block).zip(scales) {
                // Multiplied in f32, as the library does it.
                numbers.iter_mut().for_each(|number| *number *= scale);
            }
        }
        Tensor::from_f32(dims, &numbers)
    }
}

/// Which scale is that of which elements: each matrix of the last two axes has its own, or all have one.
struct Blocks {
    /// Rows of a matrix.
    rows: usize,
    columns: usize,
    rows_of_block: usize,
    columns_of_block: usize,
    /// Blocks of a matrix, one below the other.
    down: usize,
    /// Blocks of a row.
    across: usize,
}

impl Blocks {
    /// None where the sizes do not fit one another. One scale is that of all, a column of them that of rows.
    fn of(dims: &[u64], scales: &[u64]) -> Option<Self> {
        let mut leading = dims.to_vec();
        let (columns, mut rows) = (leading.pop().unwrap_or(1), leading.pop().unwrap_or(1));
        let (down, across) = match scales {
            _ if scales.iter().all(|&size| size == 1) => {
                rows = leading.iter().try_fold(rows, |rows, &size| rows.checked_mul(size))?;
                (1, 1)
            }
            [down] if leading.is_empty() && *down == rows => (*down, 1),
            [before @ .., down, across] if before == leading => (*down, *across),
            _ => return None,
        };
        let block = |size: u64, parts: u64| match parts {
            1 => Some(size.max(1)),
            _ if parts == size => Some(1),
            // Blocks are of a power of two; the last may be shorter.
            _ => (0..63).map(|power| 1u64 << power).find(|&block| size.div_ceil(block) == parts),
        };
        let whole = |size: u64| usize::try_from(size).ok();
        Some(Self {
            rows: whole(rows)?,
            columns: whole(columns)?,
            rows_of_block: whole(block(rows, down)?)?,
            columns_of_block: whole(block(columns, across)?)?,
            down: whole(down)?,
            across: whole(across)?,
        })
    }

    /// The scales of a row of all matrices, one for each block.
    fn of_row<'s>(&self, row: usize, scales: &'s [f32]) -> Option<&'s [f32]> {
        let (matrix, row) = (row / self.rows.max(1), row % self.rows.max(1));
        let first = (matrix * self.down + row / self.rows_of_block) * self.across;
        scales.get(first..first + self.across)
    }
}

#[cfg(test)]
mod tests {
    use super::Blocks;

    /// The number of the scale of each element.
    fn places(dims: &[u64], scales: &[u64]) -> Option<Vec<usize>> {
        let blocks = Blocks::of(dims, scales)?;
        let numbers: Vec<f32> = (0..scales.iter().product::<u64>()).map(|at| at as f32).collect();
        let elements = dims.iter().product::<u64>() as usize;
        let place = |at: usize| {
            let of_row = blocks.of_row(at / blocks.columns, &numbers).unwrap();
            of_row[at % blocks.columns / blocks.columns_of_block] as usize
        };
        Some((0..elements).map(place).collect())
    }

    #[test]
    fn each_matrix_has_its_own_scales_or_all_have_one() {
        let of_matrix: Vec<usize> = (0..3 * 5 * 4).map(|at| at / 20).collect();
        assert_eq!(places(&[3, 5, 4], &[3, 1, 1]), Some(of_matrix));
        let of_row: Vec<usize> = (0..3 * 5 * 4).map(|at| at / 4).collect();
        assert_eq!(places(&[3, 5, 4], &[3, 5, 1]), Some(of_row));
        // Blocks of two rows, of which the last of a matrix has one.
        let of_block: Vec<usize> = (0..3 * 5 * 4).map(|at| at / 20 * 3 + at % 20 / 8).collect();
        assert_eq!(places(&[3, 5, 4], &[3, 3, 1]), Some(of_block));
        assert_eq!(places(&[3, 5, 4], &[1]), Some(vec![0; 60]));
        assert_eq!(places(&[3, 5, 4], &[]), Some(vec![0; 60]));
    }

    #[test]
    fn scales_that_do_not_fit_are_refused() {
        let wrong: [(&[u64], &[u64]); 7] = [
            (&[3, 100, 64], &[3, 1]),
            (&[3, 100, 64], &[300]),
            (&[3, 100, 64], &[2, 1, 1]),
            (&[8, 4], &[0, 4]),
            (&[8, 4], &[0, 0]),
            (&[8, 4], &[8, 0]),
            (&[8, 4], &[3, 1]),
        ];
        for (dims, scales) in wrong {
            assert!(Blocks::of(dims, scales).is_none(), "{scales:?} for {dims:?}");
        }
    }
}
