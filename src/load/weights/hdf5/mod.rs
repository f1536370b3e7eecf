//! The part of HDF5 (format specification, version 3.0) that Keras and h5py write by default: groups by
//! symbol table or compact links; contiguous, compact and chunked datasets; deflate, shuffle and
//! Fletcher filters; attributes of strings. What lies outside of it is told as not supported.
//!
//! Addresses, sizes and counts come from the file: each is compared with the file's length before it
//! is followed, and what is read and held of structures and names in one pass is counted
//! ([`File::charge`]): where they refer to one another so that it becomes more than a few times the
//! file, the file is refused. Numbers are read when they are asked for, and only by who knows their sizes.

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
pub(super) use bytes::{SIGNATURE, Section};
use header::{Header, Kind};
use heap::Heaps;
use types::Element;

/// Deeper groups are taken for a loop.
const DEEPEST: usize = 64;

/// An open file: every group and dataset by its path, `layers/dense/vars/0`.
#[derive(Debug)]
pub(super) struct Hdf5 {
    file: File,
    heaps: Heaps,
    /// Addresses of the headers of groups, by path; the root's path is empty.
    groups: BTreeMap<String, u64>,
    datasets: BTreeMap<String, Dataset>,
}

/// What is known of a dataset without its data.
#[derive(Debug)]
struct Dataset {
    /// Address of its header.
    address: u64,
    /// Type and sizes; none where it holds no numbers, or none that a tensor can hold.
    shape: Option<(DType, Vec<u64>)>,
}

/// A group or dataset that a link names.
struct Linked {
    path: String,
    address: u64,
    depth: usize,
}

impl Hdf5 {
    /// Walks through all groups. O(bytes of their structures), which are no more than a few times those of
    /// the file. Errors: a damaged file, or one of another kind.
    pub(super) fn open(section: Section) -> Result<Self> {
        let file = File::of(section)?;
        let root = Linked { path: String::new(), address: file.root, depth: 0 };
        let mut found =
            Self { file, heaps: Heaps::default(), groups: BTreeMap::new(), datasets: BTreeMap::new() };
        let mut open = vec![root];
        let mut seen = BTreeSet::new();
        while let Some(linked) = open.pop() {
            let path = linked.path.clone();
            let members = found.visit(linked, &mut seen).map_err(|error| error.within(&path))?;
            open.extend(members);
        }
        Ok(found)
    }

    /// Notes a group or dataset. Returns what a group holds.
    fn visit(&mut self, linked: Linked, seen: &mut BTreeSet<u64>) -> Result<Vec<Linked>> {
        let Linked { path, address, depth } = linked;
        let header = Header::read(&self.file, address)?;
        if header.has(Kind::Layout) {
            let shape = self.shape(&header).ok();
            self.datasets.insert(path, Dataset { address, shape });
            return Ok(Vec::new());
        }
        // A group that is linked to twice is read where it is met first.
        if depth > DEEPEST || !seen.insert(address) {
            return Ok(Vec::new());
        }
        let mut members = Vec::new();
        for (name, address) in self.members(&header)? {
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            self.file.charge(size_of::<Linked>() + path.len())?;
            members.push(Linked { path, address, depth: depth + 1 });
        }
        self.groups.insert(path, address);
        Ok(members)
    }

    fn members(&self, header: &Header) -> Result<Vec<(String, u64)>> {
        let mut members = header.links(&self.file)?;
        for table in header.all(Kind::SymbolTable) {
            members.extend(tree::symbols(&self.file, table)?);
        }
        Ok(members)
    }

    fn shape(&self, header: &Header) -> Result<(DType, Vec<u64>)> {
        let (element, dims) = header.shape(&self.file)?;
        match element {
            Element::Number { dtype, .. } => Ok((dtype, dims)),
            Element::Text(_) | Element::VariableText => {
                Err(Error::Unsupported(Report::new("", "its elements are texts, not numbers")))
            }
        }
    }

    /// Paths of all datasets whose elements are numbers, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let arrays = self.datasets.iter().filter(|(_, dataset)| dataset.shape.is_some());
        arrays.map(|(path, _)| path.clone()).collect()
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
        let Some(dataset) = self.datasets.get(path) else { return Ok(None) };
        match &dataset.shape {
            Some(shape) => Ok(Some(shape.clone())),
            None => {
                self.renew();
                self.shape(&Header::read(&self.file, dataset.address)?).map(Some)
            }
        }
    }

    /// A dataset; none where there is none of this path.
    pub(super) fn get(&self, path: &str) -> Result<Option<Tensor>> {
        let Some(dataset) = self.datasets.get(path) else { return Ok(None) };
        self.renew();
        data::read(&self.file, &Header::read(&self.file, dataset.address)?).map(Some)
    }

    /// Begins a pass over structures: what it may read and hold of them is counted from here on.
    pub(super) fn renew(&self) {
        self.file.renew();
    }

    /// The texts of a group's attribute, which Keras divides into `NAME0`, `NAME1`, ... where it is
    /// long; none where there is no such attribute.
    pub(super) fn texts(&self, group: &str, name: &str) -> Result<Option<Vec<String>>> {
        let Some(&address) = self.groups.get(group) else { return Ok(None) };
        let header = Header::read(&self.file, address)?;
        let attributes = header.attributes(&self.file)?;
        let texts = |name: &str| match attributes.get(name.as_bytes()) {
            Some(attribute) => attribute.texts(&self.file, &self.heaps),
            None => Ok(None),
        };
        if let Some(whole) = texts(name)? {
            return Ok(Some(whole));
        }
        let mut all = Vec::new();
        for part in 0.. {
            match texts(&format!("{name}{part}"))? {
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
