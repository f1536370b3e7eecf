//! The part of HDF5 (format specification, version 3.0) that Keras and h5py write by default: groups by
//! symbol table or compact links; contiguous, compact and chunked datasets; deflate, shuffle and
//! Fletcher filters; attributes of strings. What lies outside of it is told as not supported.
//!
//! Addresses, sizes and counts come from the file: each is compared with the file's length before it
//! is followed, and no group, tree or heap is followed for longer than the file is.

mod bytes;
mod data;
mod header;
mod heap;
mod tree;
mod types;

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, Report, Result};
use crate::ir::{DType, Tensor};

use bytes::File;
pub(super) use bytes::Section;
use header::{Header, Kind};
use types::Element;

/// Deeper groups are taken for a loop.
const DEEPEST: usize = 64;

/// An open file: every group and dataset by its path, `layers/dense/vars/0`.
#[derive(Debug)]
pub(super) struct Hdf5 {
    file: File,
    /// Addresses of the headers of objects, by path; the root's path is empty.
    groups: BTreeMap<String, u64>,
    datasets: BTreeMap<String, u64>,
}

impl Hdf5 {
    /// Walks through all groups. O(objects). Errors: a damaged file, or one of another kind.
    pub(super) fn open(section: Section) -> Result<Self> {
        let file = File::open(section)?;
        let mut found = Self { file, groups: BTreeMap::new(), datasets: BTreeMap::new() };
        let mut open = vec![(String::new(), found.file.root, 0)];
        let mut seen = BTreeSet::new();
        while let Some((path, address, depth)) = open.pop() {
            let header = Header::read(&found.file, address).map_err(|error| error.within(&path))?;
            if header.has(Kind::Layout) {
                found.datasets.insert(path, address);
                continue;
            }
            // A group that is linked to twice is read where it is met first.
            if depth > DEEPEST || !seen.insert(address) {
                continue;
            }
            let members = found.members(&header).map_err(|error| error.within(&path))?;
            for (name, member) in members {
                let inner = if path.is_empty() { name } else { format!("{path}/{name}") };
                open.push((inner, member, depth + 1));
            }
            found.groups.insert(path, address);
        }
        Ok(found)
    }

    fn members(&self, header: &Header) -> Result<Vec<(String, u64)>> {
        let mut members = header.links(&self.file)?;
        for table in header.all(Kind::SymbolTable) {
            members.extend(tree::symbols(&self.file, table)?);
        }
        Ok(members)
    }

    /// Paths of all datasets whose elements are numbers, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let is_array = |path: &&String| self.header(path).is_ok_and(|header| header.is_some());
        self.datasets.keys().filter(is_array).cloned().collect()
    }

    /// Paths of all groups, sorted; the root's is empty.
    pub(super) fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// Whether there is a dataset of this path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.datasets.contains_key(path)
    }

    /// Type and sizes of a dataset; none where there is none of this path.
    pub(super) fn header(&self, path: &str) -> Result<Option<(DType, Vec<u64>)>> {
        let Some(&address) = self.datasets.get(path) else { return Ok(None) };
        let header = Header::read(&self.file, address)?;
        let (element, dims) = header.shape(&self.file)?;
        match element {
            Element::Number { dtype, .. } => Ok(Some((dtype, dims))),
            Element::Text(_) | Element::VariableText => {
                Err(Error::Unsupported(Report::new("", "its elements are texts, not numbers")))
            }
        }
    }

    /// A dataset; none where there is none of this path.
    pub(super) fn get(&self, path: &str) -> Result<Option<Tensor>> {
        let Some(&address) = self.datasets.get(path) else { return Ok(None) };
        data::read(&self.file, &Header::read(&self.file, address)?).map(Some)
    }

    /// The texts of a group's attribute, which Keras divides into `NAME0`, `NAME1`, ... where it is
    /// long; none where there is no such attribute.
    pub(super) fn texts(&self, group: &str, name: &str) -> Result<Option<Vec<String>>> {
        let Some(&address) = self.groups.get(group) else { return Ok(None) };
        let header = Header::read(&self.file, address)?;
        if let Some(texts) = header.attribute(&self.file, name)? {
            return Ok(Some(texts));
        }
        let mut all = Vec::new();
        for part in 0.. {
            match header.attribute(&self.file, &format!("{name}{part}"))? {
                Some(texts) => all.extend(texts),
                None if part == 0 => return Ok(None),
                None => break,
            }
        }
        Ok(Some(all))
    }
}

/// An error about the format, to which the caller adds the place.
fn damaged(message: impl Into<String>) -> Error {
    Error::format("", message.into())
}

fn unsupported(what: impl Into<String>) -> Error {
    Error::Unsupported(
        Report::new("", what.into()).help("save the weights anew with h5py's default settings, or as npz"),
    )
}
