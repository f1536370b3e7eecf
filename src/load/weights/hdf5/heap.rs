//! Texts of attributes: in place, or in the global heap.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::bytes::{Fields, File};
use super::damaged;
use super::types::Element;
use crate::error::Result;

/// Most texts of one attribute, and most bytes of one collection.
const MOST: u64 = 1 << 24;

/// The texts of an attribute; none where its elements are numbers.
pub(super) fn texts(file: &File, element: Element, dims: &[u64], data: &[u8]) -> Result<Option<Vec<String>>> {
    let count = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
    let count = count.filter(|&count| count <= MOST).ok_or_else(|| damaged("an attribute is too large"))?;
    let mut fields = Fields::new(data, file);
    let mut texts = Vec::new();
    match element {
        Element::Number { .. } => return Ok(None),
        Element::Text(size) => {
            for _ in 0..count {
                texts.push(text(fields.take(size)?));
            }
        }
        Element::VariableText => {
            let mut collections = BTreeMap::new();
            for _ in 0..count {
                let length = fields.uint(4)?;
                let (at, index) = (fields.address()?, fields.uint(4)?);
                if length == 0 {
                    texts.push(String::new());
                    continue;
                }
                let objects = match collections.entry(at) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(collection(file, at)?),
                };
                let object = objects.get(&index);
                texts.push(text(object.ok_or_else(|| damaged("a text is not in its heap"))?));
            }
        }
    }
    Ok(Some(texts))
}

/// Up to the first zero.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim_end().to_owned()
}

/// The objects of a collection of the global heap, by index.
fn collection(file: &File, address: u64) -> Result<BTreeMap<u64, Vec<u8>>> {
    let start = file.bytes(address, 16)?;
    let mut fields = Fields::new(&start, file);
    if fields.take(4)? != b"GCOL" {
        return Err(damaged(format!("no heap at {address}")));
    }
    fields.skip(4)?;
    let size = fields.length()?;
    if size > MOST {
        return Err(damaged("a heap is too large"));
    }
    let bytes = file.bytes(address, size as usize)?;
    let mut fields = Fields::new(&bytes, file);
    fields.skip(16)?;
    let mut objects = BTreeMap::new();
    while fields.rest().len() >= 16 {
        let index = fields.uint(2)?;
        fields.skip(6)?;
        let size = fields.length()?;
        if index == 0 {
            break;
        }
        let size = usize::try_from(size).map_err(|_| damaged("a text is too long"))?;
        objects.insert(index, fields.take(size)?.to_vec());
        fields.align();
    }
    Ok(objects)
}
