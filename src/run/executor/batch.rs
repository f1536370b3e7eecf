//! Inputs divided among microbatches, and outputs put together from theirs.

use std::borrow::Cow;

use super::plan::Batch;
use crate::ir::{Graph, Tensor, Type};

impl Batch {
    /// All of the batch at once.
    pub(in crate::run) fn whole_of(graph: &Graph) -> Self {
        let (inputs, outputs) = (vec![None; graph.inputs().len()], vec![None; graph.outputs().len()]);
        Self { count: 1, inputs, outputs }
    }

    /// The bytes of an input that microbatch `number` takes. O(bytes).
    pub(in crate::run) fn part<'t>(
        &self,
        whole: &'t Tensor,
        axis: Option<usize>,
        number: usize,
    ) -> Cow<'t, [u8]> {
        let (Some(axis), count @ 2..) = (axis, self.count as usize) else {
            return Cow::Borrowed(whole.bytes());
        };
        let row = row(whole.dims(), axis, whole.bytes().len());
        let part = row / count;
        let rows = whole.bytes().chunks(row.max(1));
        Cow::Owned(rows.flat_map(|row| row[number * part..(number + 1) * part].iter().copied()).collect())
    }

    /// The bytes of an output of type `whole`, from those of all microbatches. O(bytes).
    pub(in crate::run) fn join<'b>(
        &self,
        whole: &Type,
        axis: Option<usize>,
        parts: &[&'b [u8]],
    ) -> Cow<'b, [u8]> {
        let (Some(axis), [_, _, ..]) = (axis, parts) else {
            return Cow::Borrowed(parts.first().copied().unwrap_or_default());
        };
        let dims: Vec<u64> =
            whole.shape.dims().unwrap_or_default().iter().map(|dim| dim.unsigned_abs()).collect();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let part = (row(&dims, axis, bytes) / parts.len()).max(1);
        let rows = parts.first().map_or(0, |first| first.len() / part);
        let mut joined = Vec::with_capacity(bytes);
        for at in 0..rows {
            parts.iter().for_each(|bytes| joined.extend_from_slice(&bytes[at * part..(at + 1) * part]));
        }
        Cow::Owned(joined)
    }
}

/// Bytes of all that lies along an axis and those after it.
fn row(dims: &[u64], axis: usize, bytes: usize) -> usize {
    let before: u64 = dims[..axis.min(dims.len())].iter().product();
    bytes.checked_div(usize::try_from(before).unwrap_or(usize::MAX)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{DType, Shape, Size};

    #[test]
    fn parts_along_any_axis_make_the_whole_again() {
        let values: Vec<f32> = (0..24).map(|value| value as f32).collect();
        let whole = Tensor::from_f32(vec![2, 6, 2], &values).unwrap();
        let ty = Type::new(DType::F32, Shape::new([2, 6, 2].map(Size::Known)));
        for (axis, count) in [(0, 2), (1, 3), (1, 6), (2, 2), (1, 1)] {
            let batch = Batch { count, inputs: vec![Some(axis)], outputs: vec![Some(axis)] };
            let parts: Vec<Cow<'_, [u8]>> =
                (0..count as usize).map(|number| batch.part(&whole, Some(axis), number)).collect();
            assert!(parts.iter().all(|part| part.len() == 96 / count as usize));
            let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
            assert_eq!(&*batch.join(&ty, Some(axis), &parts), whole.bytes(), "axis {axis}, {count} parts");
        }
        let batch = Batch { count: 3, inputs: vec![Some(1)], outputs: Vec::new() };
        let middle = batch.part(&whole, Some(1), 1);
        let expected: Vec<u8> = [4.0f32, 5.0, 6.0, 7.0, 16.0, 17.0, 18.0, 19.0]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        assert_eq!(&*middle, expected.as_slice());
    }
}
