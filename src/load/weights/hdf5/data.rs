//! The elements of datasets: in the header, in one piece, or in chunks that may be filtered.

use std::collections::BTreeSet;
use std::io::Read;

use super::super::{byte_count, normalise};
use super::bytes::{Fields, File};
use super::header::{Header, Kind};
use super::types::Element;
use super::{damaged, tree, unsupported};
use crate::error::Result;
use crate::ir::{DType, Tensor};

/// Deflate cannot shrink data by more than about this factor.
const GREATEST_RATIO: u64 = 1040;

/// Arrays up to this size may be there without data.
const SMALL: u64 = 1 << 20;

/// Chunks together are at most this many times as large as their array, or [`LARGE`].
const OVERHANG: u64 = 16;
const LARGE: u64 = 1 << 26;

/// The most filters that the format allows.
const MOST_FILTERS: u8 = 32;

/// Reads a dataset of numbers.
pub(super) fn read(file: &File, header: &Header) -> Result<Tensor> {
    let (Element::Number { dtype, big_endian }, dims) = header.shape(file)? else {
        return Err(unsupported("its elements are texts, not numbers"));
    };
    let expected = byte_count(dtype, &dims)?;
    let mut fields = Fields::new(header.one(Kind::Layout)?, file);
    let (version, class) = (fields.byte()?, fields.byte()?);
    if !matches!((version, class), (3, 0..=2) | (4, 0..=1)) {
        return Err(unsupported(format!("layout {class} of version {version}")));
    }
    let mut bytes = match class {
        0 => {
            let size = fields.uint(2)? as usize;
            fields.take(size)?.to_vec()
        }
        1 => {
            let address = fields.address()?;
            let size = fields.length()?;
            contiguous(file, address, size.min(expected), expected)?
        }
        _ => chunked(file, header, &mut fields, dtype, &dims)?,
    };
    if bytes.len() as u64 != expected {
        return Err(damaged(format!("it has {} bytes of data, not {expected}", bytes.len())));
    }
    let size = dtype.size() as usize;
    if big_endian && size > 1 {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    normalise(dtype, &mut bytes);
    Tensor::new(dtype, dims, bytes)
}

fn contiguous(file: &File, address: u64, size: u64, expected: u64) -> Result<Vec<u8>> {
    if address == u64::MAX {
        return zeros(file, expected, 1);
    }
    file.bytes(address, usize::try_from(size).map_err(|_| damaged("it does not fit into memory"))?)
}

/// Elements that were never written, or will be put in place. Error: far more than a file of this
/// length can fill, where each of its bytes becomes `ratio` at most.
fn zeros(file: &File, bytes: u64, ratio: u64) -> Result<Vec<u8>> {
    if bytes > file.size().saturating_mul(ratio).max(SMALL) {
        return Err(damaged(format!("{bytes} bytes of data, of which none are in the file")));
    }
    Ok(vec![0; bytes as usize])
}

/// What was done to chunks when they were written, in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    Deflate,
    Shuffle,
    Fletcher,
}

fn filters(file: &File, header: &Header) -> Result<Vec<Filter>> {
    let Some(message) = header.all(Kind::Filters).next() else { return Ok(Vec::new()) };
    let mut fields = Fields::new(message, file);
    let (version, count) = (fields.byte()?, fields.byte()?);
    if version == 1 {
        fields.skip(6)?;
    }
    if count > MOST_FILTERS {
        return Err(damaged(format!("{count} filters")));
    }
    let mut filters = Vec::new();
    for _ in 0..count {
        let id = fields.uint(2)?;
        let name = if version == 1 || id >= 256 { fields.uint(2)? as usize } else { 0 };
        fields.skip(2)?;
        let values = fields.uint(2)? as usize;
        fields.skip(if version == 1 { name.next_multiple_of(8) } else { name })?;
        fields.skip(4 * values)?;
        if version == 1 && values % 2 == 1 {
            fields.skip(4)?;
        }
        filters.push(match id {
            1 => Filter::Deflate,
            2 => Filter::Shuffle,
            3 => Filter::Fletcher,
            other => return Err(unsupported(format!("filter {other}"))),
        });
    }
    Ok(filters)
}

/// Puts the chunks of a dataset in their places.
fn chunked(
    file: &File,
    header: &Header,
    fields: &mut Fields<'_>,
    dtype: DType,
    dims: &[u64],
) -> Result<Vec<u8>> {
    let axes = fields.byte()? as usize;
    let root = fields.address()?;
    if axes != dims.len() + 1 || dims.is_empty() {
        return Err(damaged(format!("chunks of {axes} axes for sizes {dims:?}")));
    }
    let chunk: Vec<u64> = (0..dims.len()).map(|_| fields.uint(4)).collect::<Result<_>>()?;
    let filters = filters(file, header)?;
    let expected = byte_count(dtype, &chunk)?;
    let ratio = if filters.contains(&Filter::Deflate) { GREATEST_RATIO } else { 1 };
    if expected == 0 || expected > file.size().saturating_mul(ratio).max(SMALL) {
        return Err(damaged(format!("chunks of sizes {chunk:?}")));
    }
    let mut out = zeros(file, byte_count(dtype, dims)?, ratio)?;
    let leaves = tree::leaves(file, root, 1, 8 + 8 * axes)?;
    // Chunks at the edges of an array stand over it.
    let inflated = expected.saturating_mul(leaves.len() as u64);
    if inflated > (out.len() as u64).saturating_mul(OVERHANG).max(LARGE) {
        return Err(damaged(format!("{} chunks of {expected} bytes", leaves.len())));
    }
    let mut stored = file.size();
    let mut filled = BTreeSet::new();
    for leaf in leaves {
        let mut key = Fields::new(&leaf.key, file);
        let (size, mask) = (key.uint(4)?, key.uint(4)?);
        let at: Vec<u64> = (0..dims.len()).map(|_| key.uint(8)).collect::<Result<_>>()?;
        stored = stored.checked_sub(size).ok_or_else(|| damaged("its chunks overlap"))?;
        if !filled.insert(at.clone()) {
            return Err(damaged(format!("two chunks at {at:?}")));
        }
        let mut bytes = file.bytes(leaf.child, size as usize)?;
        for (number, filter) in filters.iter().enumerate().rev() {
            if mask >> number & 1 == 0 {
                bytes = undo(*filter, bytes, dtype.size() as usize, expected)?;
            }
        }
        if bytes.len() as u64 != expected {
            return Err(damaged(format!("a chunk of {} bytes, not {expected}", bytes.len())));
        }
        place(&bytes, &chunk, &at, dims, dtype.size(), &mut out)?;
    }
    Ok(out)
}

fn undo(filter: Filter, bytes: Vec<u8>, size: usize, expected: u64) -> Result<Vec<u8>> {
    match filter {
        Filter::Fletcher => {
            // The sum is of no use beyond finding damage, which weights' users check by results.
            let end = bytes.len().checked_sub(4).ok_or_else(|| damaged("a chunk is cut off"))?;
            Ok(bytes[..end].to_vec())
        }
        Filter::Deflate => {
            let mut out = Vec::new();
            // A sum of four bytes may stand behind the elements.
            let mut data = flate2::read::ZlibDecoder::new(&bytes[..]).take(expected + 5);
            data.read_to_end(&mut out).map_err(|error| damaged(format!("a chunk is damaged: {error}")))?;
            Ok(out)
        }
        Filter::Shuffle => {
            // First bytes of all elements, then all second ones, ...
            let count = bytes.len() / size;
            let mut out = bytes.clone();
            for (at, &byte) in bytes[..count * size].iter().enumerate() {
                out[at % count * size + at / count] = byte;
            }
            Ok(out)
        }
    }
}

/// Copies a chunk to where it belongs, as far as it is inside the array. O(rows of the chunk).
fn place(bytes: &[u8], chunk: &[u64], at: &[u64], dims: &[u64], size: u64, out: &mut [u8]) -> Result<()> {
    if at.iter().zip(dims).any(|(at, dim)| at >= dim) {
        return Err(damaged("a chunk is outside of its array"));
    }
    let inner = dims.len() - 1;
    let row = chunk[inner].min(dims[inner] - at[inner]) * size;
    let rows: u64 = chunk[..inner].iter().product();
    for number in 0..rows {
        let (mut rest, mut to, mut stride) = (number, at[inner], dims[inner]);
        let mut inside = true;
        for axis in (0..inner).rev() {
            let position = at[axis].saturating_add(rest % chunk[axis]);
            rest /= chunk[axis];
            inside &= position < dims[axis];
            // What is not inside may be anywhere.
            to = to.wrapping_add(position.wrapping_mul(stride));
            stride = stride.wrapping_mul(dims[axis]);
        }
        if inside {
            let (from, to) = ((number * chunk[inner] * size) as usize, (to * size) as usize);
            out[to..to + row as usize].copy_from_slice(&bytes[from..from + row as usize]);
        }
    }
    Ok(())
}
