//! Sums of rows that begin with zeros, and what follows on each: the gradient of a table that is looked up in, and its
//! update, over the table itself. Sums are made apart, some elements at a time.

use crate::error::{Error, Result};
use crate::ir::DType;

use super::super::element::Float;
use super::super::elementwise::tile::Epilogue;
use super::super::product::matmul::with_strip;
use super::super::team::Team;
use super::super::vectors::Stores;
use super::super::view::{Plain, Typed, View, ViewMut, bytes_of_mut};
use super::scatter::slices;

/// Elements that are made together: every part goes through all indices, which is little beside so many.
const PART: usize = 1 << 16;

/// `out = epilogue(sums)`, where each update is added to the row that its indices name, in the order of updates: the
/// same bits as in a tensor of zeros. What is updated may be where the result is.
///
/// Error: an index outside its axis; nothing is written then.
pub(super) fn sum(
    team: &Team<'_>,
    inputs: &[View<'_>; 3],
    out: &mut ViewMut<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<()> {
    match out.dtype {
        DType::F32 => of::<f32>(team, inputs, out, epilogue),
        DType::F64 => of::<f64>(team, inputs, out, epilogue),
        _ => Err(Error::Internal("sums of rows are of f32 or f64".to_owned())),
    }
}

fn of<T: Typed + Float + Plain>(
    team: &Team<'_>,
    [data, indices, updates]: &[View<'_>; 3],
    out: &mut ViewMut<'_>,
    epilogue: &Epilogue<'_>,
) -> Result<()> {
    let (source, dims) = (updates.slice::<T>()?, data.dims);
    slices(dims, indices, |_, _, _| ())?;
    team.each_chunk(out.slice::<T>()?, PART, |part, piece| {
        let (start, end) = (part * PART, part * PART + piece.len());
        with_strip::<T>(piece.len(), |sums, _| {
            sums.fill(T::ZERO);
            let added = slices(dims, indices, |position, offset, length| {
                let (from, to) = (offset.max(start), (offset + length).min(end));
                if from < to {
                    let update = &source[position + (from - offset)..][..to - from];
                    let sums = &mut sums[from - start..to - start];
                    sums.iter_mut().zip(update).for_each(|(sum, &update)| *sum = sum.add(update));
                }
            });
            debug_assert!(added.is_ok(), "indices were looked at before");
            epilogue.apply_to(start, bytes_of_mut(sums), bytes_of_mut(piece), Stores::Cached);
        });
    });
    Ok(())
}
