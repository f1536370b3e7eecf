//! A matrix and what an adapter adds to it, row by row in f32.

use super::Arrays;
use super::floats::numbers;
use crate::error::{Error, Result};
use crate::ir::LowRank;

/// A matrix of low rank as two factors in f32, the number of the adapter within the first.
#[derive(Debug)]
pub(super) struct Merge {
    rank: usize,
    columns: usize,
    /// A row of as many numbers as the rank for each row.
    left: Vec<f32>,
    /// As many rows as the rank.
    right: Vec<f32>,
}

impl Merge {
    /// Errors: an array that is gone, or of other sizes than it was.
    pub(super) fn read(arrays: &Arrays, added: &LowRank) -> Result<Self> {
        let matrix = |name: &str| -> Result<([usize; 2], Vec<f32>)> {
            let gone =
                || Error::model(arrays.path().display().to_string(), format!("there is no matrix {name}"));
            let tensor = arrays.get(name)?.ok_or_else(gone)?;
            let &[rows, columns] = tensor.dims() else { return Err(gone()) };
            Ok(([rows as usize, columns as usize], numbers(tensor)?))
        };
        let (mut left, mut right) = (matrix(&added.left)?, matrix(&added.right)?);
        if added.turned {
            // The transpose of a product is that of the transposes, in the other order.
            (left, right) = (transposed(&right), transposed(&left));
        }
        let ([_, rank], [inner, columns]) = (left.0, right.0);
        if rank != inner {
            return Err(Error::model(
                arrays.path().display().to_string(),
                "two arrays of a layer do not fit",
            ));
        }
        let factor = added.factor.0 as f32;
        let left = left.1.into_iter().map(|number| number * factor).collect();
        Ok(Self { rank, columns, left, right: right.1 })
    }

    /// Adds to whole rows of the matrix, from this one on.
    pub(super) fn add_to(&self, first: usize, numbers: &mut [f32]) {
        let mut sum = vec![0.0; self.columns];
        let lefts = self.left.chunks(self.rank.max(1)).skip(first);
        for (row, left) in numbers.chunks_mut(self.columns.max(1)).zip(lefts) {
            sum.fill(0.0);
            for (&factor, right) in left.iter().zip(self.right.chunks(self.columns.max(1))) {
                sum.iter_mut().zip(right).for_each(|(sum, number)| *sum += factor * number);
            }
            row.iter_mut().zip(&sum).for_each(|(number, sum)| *number += sum);
        }
    }
}

fn transposed(([rows, columns], numbers): &([usize; 2], Vec<f32>)) -> ([usize; 2], Vec<f32>) {
    let column = |at: usize| numbers[at..].iter().step_by((*columns).max(1)).copied();
    ([*columns, *rows], (0..*columns).flat_map(column).collect())
}
