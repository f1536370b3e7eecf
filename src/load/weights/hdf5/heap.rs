//! Texts of attributes: in place, or in the global heap.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::bytes::{Fields, File};
use super::damaged;
use super::types::Element;
use crate::error::Result;

/// Most texts of one attribute, and most bytes of one collection.
const MOST: u64 = 1 << 24;

/// What a text takes beside its own bytes.
const TEXT: usize = size_of::<String>();

/// The collections of the global heap that were met so far, by address: each is read once, however
/// many attributes have their texts in it.
#[derive(Debug, Default)]
pub(super) struct Heaps {
    read: Mutex<BTreeMap<u64, Arc<Collection>>>,
}

impl Heaps {
    /// The texts of an attribute; none where its elements are numbers.
    pub(super) fn texts(
        &self,
        file: &File,
        element: Element,
        dims: &[u64],
        data: &[u8],
    ) -> Result<Option<Vec<String>>> {
        let count = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let count =
            count.filter(|&count| count <= MOST).ok_or_else(|| damaged("an attribute is too large"))?;
        let mut fields = Fields::new(data, file);
        let mut texts = Vec::new();
        match element {
            Element::Number { .. } => return Ok(None),
            Element::Text(size) => {
                for _ in 0..count {
                    texts.push(text(file, fields.take(size)?)?);
                }
            }
            Element::VariableText => {
                for _ in 0..count {
                    let length = fields.uint(4)?;
                    let (at, index) = (fields.address()?, fields.uint(4)?);
                    if length == 0 {
                        texts.push(text(file, b"")?);
                        continue;
                    }
                    let collection = self.collection(file, at)?;
                    let object = collection.objects.get(&index);
                    let object = object.ok_or_else(|| damaged("a text is not in its heap"))?;
                    texts.push(text(file, &collection.bytes[object.clone()])?);
                }
            }
        }
        Ok(Some(texts))
    }

    fn collection(&self, file: &File, address: u64) -> Result<Arc<Collection>> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = read.get(&address) {
            return Ok(Arc::clone(known));
        }
        let new = Arc::new(Collection::read(file, address)?);
        read.insert(address, Arc::clone(&new));
        Ok(new)
    }
}

/// Up to the first zero.
fn text(file: &File, bytes: &[u8]) -> Result<String> {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    file.charge(TEXT + text.len())?;
    Ok(String::from_utf8_lossy(text).trim_end().to_owned())
}

/// A collection of the global heap: where each object is in it, by index.
#[derive(Debug)]
struct Collection {
    bytes: Vec<u8>,
    objects: BTreeMap<u64, Range<usize>>,
}

impl Collection {
    fn read(file: &File, address: u64) -> Result<Self> {
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
        file.charge(bytes.len())?;
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
            let start = bytes.len() - fields.rest().len();
            fields.skip(size)?;
            objects.insert(index, start..start + size);
            fields.align();
        }
        Ok(Self { bytes, objects })
    }
}
