//! Parameters and buffers that do not lie row by row (`weight.t()`, channels last), brought in the order of their axes: so
//! that what is written of them is what PyTorch has under their names.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::schema::{InMemory, StoredArray};
use crate::error::{Error, Result};
use crate::files;

/// Reads arrays whose axes are in another order in memory, and has them lie row by row. What several arrays lie in, in
/// different orders, stays as it lies. Nothing is read where there is no archive. O(bytes of those arrays).
///
/// Errors: the archive cannot be read.
pub(super) fn in_order(arrays: &mut BTreeMap<String, StoredArray>, archive: Option<&Path>) -> Result<()> {
    let Some(path) = archive else { return Ok(()) };
    let mut orders: HashMap<u64, Option<Vec<usize>>> = HashMap::new();
    for array in arrays.values() {
        let order = permuted(array);
        orders
            .entry(array.offset)
            .and_modify(|known| *known = known.take().filter(|known| Some(known) == order.as_ref()))
            .or_insert(order);
    }
    let mut file = None;
    for array in arrays.values_mut() {
        if permuted(array).is_none() || orders.get(&array.offset).is_none_or(Option::is_none) {
            continue;
        }
        let file = match &mut file {
            Some(file) => file,
            none => none.insert(files::open(path)?),
        };
        let read = by_rows(array, file).map_err(|error| Error::io(path.display().to_string(), error))?;
        if let Some(bytes) = read {
            array.bytes = Some(bytes);
            array.meta.strides.clear();
        }
    }
    Ok(())
}

/// The axes from the one whose elements are furthest apart, where the array lies in whole rows of another order.
fn permuted(array: &StoredArray) -> Option<Vec<usize>> {
    match array.meta.in_memory()? {
        InMemory::Permuted(_, order) if !array.meta.is_complex() => Some(order),
        _ => None,
    }
}

/// The elements row by row; none where they are not as many as the file holds bytes of.
fn by_rows(array: &StoredArray, file: &mut File) -> std::io::Result<Option<Vec<u8>>> {
    let (Some(dims), Ok(dtype)) = (array.meta.dims(), array.meta.dtype()) else { return Ok(None) };
    let Some(InMemory::Permuted(_, order)) = array.meta.in_memory() else { return Ok(None) };
    let size = dtype.size() as usize;
    let mut laid = Vec::new();
    file.seek(SeekFrom::Start(array.offset))?;
    file.take(array.length).read_to_end(&mut laid)?;
    let elements = |count: usize, &dim: &i64| count.checked_mul(usize::try_from(dim).ok()?);
    let Some(count) = dims.iter().try_fold(1, elements) else { return Ok(None) };
    if count == 0 || count.checked_mul(size) != Some(laid.len()) {
        return Ok(None);
    }
    // By axis: elements from one index to the next in memory.
    let mut steps = vec![0usize; dims.len()];
    let mut step = 1;
    for &axis in order.iter().rev() {
        steps[axis] = step;
        step *= dims[axis] as usize;
    }
    let mut rows = Vec::with_capacity(laid.len());
    let (mut index, mut place) = (vec![0; dims.len()], 0);
    for _ in 0..count {
        rows.extend_from_slice(&laid[place * size..(place + 1) * size]);
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            place += steps[axis];
            if index[axis] < dims[axis] {
                break;
            }
            place -= steps[axis] * dims[axis] as usize;
            index[axis] = 0;
        }
    }
    Ok(Some(rows))
}
