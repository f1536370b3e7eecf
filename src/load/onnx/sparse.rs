//! Sparse tensors of an ONNX file: the numbers that are not zero, and where they are. They are read as tensors that hold all
//! of their numbers, which is what operators take.

use super::proto::{GraphProto, SparseTensorProto, TensorProto};
use super::tensor;
use crate::error::{Error, Report, Result};

/// A tensor may have so many zeros for each number that is there, and so many in any case: memory is bounded by the file.
const ZEROS: u64 = 1 << 10;
const FREE: u64 = 1 << 20;

/// The initialisers of a graph, sparse ones included, which it has no more.
pub(super) fn initializers(graph: &mut GraphProto) -> Result<Vec<TensorProto>> {
    let mut all = std::mem::take(&mut graph.initializer);
    for sparse in std::mem::take(&mut graph.sparse_initializer) {
        let name = sparse.values.as_ref().map_or(String::new(), |values| values.name.clone());
        let dense = dense(sparse).map_err(|error| error.within(&format!("sparse initializer {name}")))?;
        all.push(TensorProto { name, ..dense });
    }
    Ok(all)
}

/// All numbers of a sparse tensor. Errors: indices beyond its sizes, far more zeros than numbers, types of less than
/// eight bits.
pub(super) fn dense(sparse: SparseTensorProto) -> Result<TensorProto> {
    let missing = || Error::model("", "a sparse tensor without values or indices");
    let values = sparse.values.ok_or_else(missing)?;
    let indices = sparse.indices.ok_or_else(missing)?;
    let data_type = values.data_type;
    tensor::dtype(data_type)?;
    let whole = TensorProto { dims: sparse.dims, data_type, ..TensorProto::default() };
    let header = tensor::header(&whole)?;
    let places = places(&indices, &header.dims)?;
    let own = tensor::inline(values.clone(), &tensor::header(&values)?)?;
    let width = header.dtype.size() as usize;
    if own.bytes().len() != places.len() * width {
        return Err(Error::model(
            "",
            format!("{} places for values of sizes {:?}", places.len(), values.dims),
        ));
    }
    if header.elements > FREE.saturating_add(ZEROS.saturating_mul(places.len() as u64)) {
        let message = format!(
            "{} elements, of which {} are not zero, are not supported",
            header.elements,
            places.len()
        );
        return Err(Error::Unsupported(Report::new("", message)));
    }
    let mut bytes = vec![0; header.elements as usize * width];
    for (place, value) in places.into_iter().zip(own.bytes().chunks_exact(width)) {
        let Some(to) = bytes.get_mut(place as usize * width..).and_then(|to| to.get_mut(..width)) else {
            return Err(Error::model(
                "",
                format!("index {place} is beyond its {} elements", header.elements),
            ));
        };
        to.copy_from_slice(value);
    }
    Ok(TensorProto { raw_data: Some(bytes), ..whole })
}

/// Where the numbers are among all elements: each by one index, or by one for each axis.
fn places(indices: &TensorProto, dims: &[u64]) -> Result<Vec<u64>> {
    let header = tensor::header(indices)?;
    let read = tensor::inline(indices.clone(), &header)?;
    let numbers = read.to_i64().ok_or_else(|| Error::model("", "indices that are no whole numbers"))?;
    let by_axis = match header.dims.as_slice() {
        [_] => return numbers.into_iter().map(|index| checked(index, u64::MAX)).collect(),
        [_, axes] if *axes == dims.len() as u64 && !dims.is_empty() => dims.len(),
        other => return Err(Error::model("", format!("indices of sizes {other:?} for {} axes", dims.len()))),
    };
    let place = |index: &[i64]| {
        index.iter().zip(dims).try_fold(0u64, |place, (&index, &dim)| {
            // Beyond 2^64 only where a further axis has no elements.
            let next = place.checked_mul(dim).and_then(|first| first.checked_add(checked(index, dim).ok()?));
            next.ok_or_else(|| out_of_range(index))
        })
    };
    numbers.chunks_exact(by_axis).map(place).collect()
}

fn checked(index: i64, size: u64) -> Result<u64> {
    let found = u64::try_from(index).ok().filter(|&index| index < size);
    found.ok_or_else(|| out_of_range(index))
}

fn out_of_range(index: i64) -> Error {
    Error::model("", format!("index {index} is out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sparse(dims: &[i64], places: (&[i64], &[i64]), values: &[f32]) -> SparseTensorProto {
        let count = values.len() as i64;
        let float_data = values.to_vec();
        let values = TensorProto { dims: vec![count], data_type: 1, float_data, ..TensorProto::default() };
        let int64_data = places.1.to_vec();
        let indices =
            TensorProto { dims: places.0.to_vec(), data_type: 7, int64_data, ..TensorProto::default() };
        SparseTensorProto { values: Some(values), indices: Some(indices), dims: dims.to_vec() }
    }

    fn floats(sparse: SparseTensorProto) -> Result<Vec<f32>> {
        let raw = dense(sparse)?.raw_data.unwrap_or_default();
        Ok(raw.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    #[test]
    fn numbers_are_where_indices_say() {
        let expected = [0.0, 1.5, 0.0, 0.0, 0.0, -2.0];
        assert_eq!(floats(sparse(&[2, 3], (&[2], &[1, 5]), &[1.5, -2.0])).unwrap(), expected);
        assert_eq!(floats(sparse(&[2, 3], (&[2, 2], &[0, 1, 1, 2]), &[1.5, -2.0])).unwrap(), expected);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        for (dims, places) in [
            (&[2, 3][..], (&[1][..], &[6][..])),
            (&[2, 3], (&[1], &[-1])),
            (&[2, 3], (&[1, 2], &[1, 3])),
            (&[2, 3], (&[1, 3], &[0, 0, 0])),
            (&[2, 3], (&[2], &[0, 1])),
            (&[1 << 30, 1 << 30], (&[1], &[0])),
            (&[1 << 62, 1 << 62, 0], (&[1, 3], &[1 << 61, 0, 0])),
            (&[1 << 20, 1 << 10], (&[1], &[0])),
        ] {
            assert!(floats(sparse(dims, places, &[1.0])).is_err(), "{dims:?} {places:?}");
        }
    }
}
