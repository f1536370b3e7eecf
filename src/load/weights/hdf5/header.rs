//! Object headers: the messages that say what a group or dataset is.

use std::collections::BTreeMap;

use super::bytes::{Fields, File};
use super::heap::Heaps;
use super::types::{self, Element};
use super::{damaged, unsupported};
use crate::error::Result;

/// A larger header is none.
const LARGEST: u64 = 1 << 26;

/// The messages that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Dataspace = 0x01,
    LinkInfo = 0x02,
    Datatype = 0x03,
    Link = 0x06,
    Layout = 0x08,
    Filters = 0x0b,
    Attribute = 0x0c,
    Continuation = 0x10,
    SymbolTable = 0x11,
    AttributeInfo = 0x15,
}

/// The messages of an object.
#[derive(Debug)]
pub(super) struct Header {
    messages: Vec<(u8, Vec<u8>)>,
}

impl Header {
    /// Reads the messages of both versions of headers.
    pub(super) fn read(file: &File, address: u64) -> Result<Self> {
        let start = file.bytes(address, 4)?;
        match &start[..] {
            b"OHDR" => Self::second(file, address),
            [1, ..] => Self::first(file, address),
            _ => Err(damaged(format!("no object at {address}"))),
        }
    }

    fn first(file: &File, address: u64) -> Result<Self> {
        let prefix = file.bytes(address, 12)?;
        let size = Fields::new(&prefix[8..], file).uint(4)?;
        let mut blocks = vec![(address.saturating_add(16), size)];
        let mut header = Self { messages: Vec::new() };
        let mut total = 0u64;
        while let Some((at, size)) = blocks.pop() {
            total = total.saturating_add(size.max(16));
            let bytes = block(file, at, size, total)?;
            let mut fields = Fields::new(&bytes, file);
            while fields.rest().len() >= 8 {
                let (kind, size, flags) = (fields.uint(2)?, fields.uint(2)? as usize, fields.byte()?);
                fields.skip(3)?;
                header.add(file, kind, flags, fields.take(size)?, &mut blocks)?;
            }
        }
        Ok(header)
    }

    fn second(file: &File, address: u64) -> Result<Self> {
        let prefix = file.bytes(address, 6)?;
        let flags = prefix[5];
        let times = if flags & 0x20 != 0 { 16 } else { 0 };
        let limits = if flags & 0x10 != 0 { 4 } else { 0 };
        let width = 1usize << (flags & 3);
        let at = address.saturating_add(6 + times + limits);
        let size = Fields::new(&file.bytes(at, width)?, file).uint(width)?;
        let mut blocks = vec![(at.saturating_add(width as u64), size, false)];
        let mut header = Self { messages: Vec::new() };
        let mut total = 0u64;
        while let Some((at, size, is_continued)) = blocks.pop() {
            total = total.saturating_add(size.max(16));
            let bytes = block(file, at, size, total)?;
            let bytes = match is_continued {
                false => &bytes[..],
                true => bytes
                    .strip_prefix(b"OCHK")
                    .and_then(|rest| rest.len().checked_sub(4).map(|end| &rest[..end]))
                    .ok_or_else(|| damaged("a header's continuation is damaged"))?,
            };
            let mut fields = Fields::new(bytes, file);
            let ordered = if flags & 4 != 0 { 2 } else { 0 };
            let mut more = Vec::new();
            while fields.rest().len() >= 4 + ordered {
                let (kind, size, flags) = (fields.uint(1)?, fields.uint(2)? as usize, fields.byte()?);
                fields.skip(ordered)?;
                header.add(file, kind, flags, fields.take(size)?, &mut more)?;
            }
            blocks.extend(more.into_iter().map(|(at, size)| (at, size, true)));
        }
        Ok(header)
    }

    fn add(
        &mut self,
        file: &File,
        kind: u64,
        flags: u8,
        data: &[u8],
        blocks: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        if kind == Kind::Continuation as u64 {
            let mut fields = Fields::new(data, file);
            blocks.push((fields.address()?, fields.length()?));
            return Ok(());
        }
        let wanted = [Kind::Dataspace, Kind::Datatype, Kind::Layout, Kind::Filters];
        if flags & 2 != 0 && wanted.iter().any(|&wanted| wanted as u64 == kind) {
            return Err(unsupported("a type that several objects share"));
        }
        if flags & 2 == 0 && kind <= 0xff {
            file.charge(size_of::<(u8, Vec<u8>)>() + data.len())?;
            self.messages.push((kind as u8, data.to_vec()));
        }
        Ok(())
    }

    pub(super) fn has(&self, kind: Kind) -> bool {
        self.all(kind).next().is_some()
    }

    /// The data of all messages of a kind.
    pub(super) fn all(&self, kind: Kind) -> impl Iterator<Item = &[u8]> {
        self.messages.iter().filter(move |(one, _)| *one == kind as u8).map(|(_, data)| &data[..])
    }

    pub(super) fn one(&self, kind: Kind) -> Result<&[u8]> {
        self.all(kind).next().ok_or_else(|| damaged(format!("a dataset has no {kind:?} message")))
    }

    /// Type and sizes of a dataset.
    pub(super) fn shape(&self, file: &File) -> Result<(Element, Vec<u64>)> {
        let element = types::element(&mut Fields::new(self.one(Kind::Datatype)?, file))?;
        let dims = types::dims(&mut Fields::new(self.one(Kind::Dataspace)?, file))?;
        Ok((element, dims))
    }

    /// Members of a group whose links stand in its header.
    pub(super) fn links(&self, file: &File) -> Result<Vec<(String, u64)>> {
        for info in self.all(Kind::LinkInfo) {
            let mut fields = Fields::new(info, file);
            fields.skip(1)?;
            let ordered = if fields.byte()? & 1 != 0 { 8 } else { 0 };
            fields.skip(ordered)?;
            if fields.address()? != u64::MAX {
                return Err(unsupported("a group with its links in a fractal heap"));
            }
        }
        let mut links = Vec::new();
        for link in self.all(Kind::Link) {
            let mut fields = Fields::new(link, file);
            fields.skip(1)?;
            let flags = fields.byte()?;
            let kind = if flags & 8 != 0 { fields.byte()? } else { 0 };
            fields.skip(if flags & 4 != 0 { 8 } else { 0 } + usize::from(flags >> 4 & 1))?;
            let length = fields.uint(1 << (flags & 3))?;
            let length = usize::try_from(length).map_err(|_| damaged("a name is too long"))?;
            let name = String::from_utf8_lossy(fields.take(length)?).into_owned();
            // Soft and external links name what may not be there.
            if kind == 0 {
                links.push((name, fields.address()?));
            }
        }
        Ok(links)
    }

    /// The attributes by name: of each the message from its types on. Error: they are not in the header.
    pub(super) fn attributes(&self, file: &File) -> Result<BTreeMap<&[u8], Attribute<'_>>> {
        for info in self.all(Kind::AttributeInfo) {
            let mut fields = Fields::new(info, file);
            fields.skip(1)?;
            let ordered = if fields.byte()? & 1 != 0 { 2 } else { 0 };
            fields.skip(ordered)?;
            if fields.address()? != u64::MAX {
                return Err(unsupported("attributes in a fractal heap"));
            }
        }
        let mut attributes = BTreeMap::new();
        for message in self.all(Kind::Attribute) {
            let (name, attribute) = Attribute::split(file, message)?;
            attributes.entry(name).or_insert(attribute);
        }
        Ok(attributes)
    }
}

/// The parts of an attribute's message.
pub(super) struct Attribute<'h> {
    ty: &'h [u8],
    space: &'h [u8],
    data: &'h [u8],
}

impl<'h> Attribute<'h> {
    /// The name, up to its first zero, and the parts.
    fn split(file: &File, message: &'h [u8]) -> Result<(&'h [u8], Self)> {
        let mut fields = Fields::new(message, file);
        let version = fields.byte()?;
        fields.skip(1)?;
        let sizes = [fields.uint(2)? as usize, fields.uint(2)? as usize, fields.uint(2)? as usize];
        fields.skip(usize::from(version == 3))?;
        let mut part = |size: usize| -> Result<&'h [u8]> {
            let part = fields.take(size)?;
            if version == 1 {
                fields.align();
            }
            Ok(part)
        };
        let name = part(sizes[0])?.split(|&byte| byte == 0).next().unwrap_or_default();
        let (ty, space) = (part(sizes[1])?, part(sizes[2])?);
        Ok((name, Self { ty, space, data: fields.rest() }))
    }

    /// Its texts; none where it holds none.
    pub(super) fn texts(&self, file: &File, heaps: &Heaps) -> Result<Option<Vec<String>>> {
        let element = types::element(&mut Fields::new(self.ty, file))?;
        let dims = types::dims(&mut Fields::new(self.space, file))?;
        heaps.texts(file, element, &dims, self.data)
    }
}

/// A block of messages; `total` counts the bytes of all blocks so far.
fn block(file: &File, at: u64, size: u64, total: u64) -> Result<Vec<u8>> {
    if size > LARGEST || total > LARGEST.min(file.size().saturating_mul(2)) {
        return Err(damaged("an object's header is too large"));
    }
    file.charge(size as usize)?;
    file.bytes(at, size as usize)
}
