//! The bytes of an HDF5 file, and its superblock.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::super::damaged as failed;
use super::{damaged, unsupported};
use crate::error::Result;

/// What every file begins with.
pub(in super::super) const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// Where the bytes are: a part of a file, or in memory.
#[derive(Debug)]
pub(in super::super) enum Section {
    /// `length` bytes from `start` on.
    File {
        /// The open file; the lock is held while one piece is read.
        file: Mutex<fs::File>,
        start: u64,
        length: u64,
    },
    /// What was decompressed.
    Memory(Vec<u8>),
}

impl Section {
    fn length(&self) -> u64 {
        match self {
            Self::File { length, .. } => *length,
            Self::Memory(bytes) => bytes.len() as u64,
        }
    }
}

/// An open file and what its superblock says.
#[derive(Debug)]
pub(super) struct File {
    section: Section,
    /// Bytes of an address and of a length.
    address: usize,
    length: usize,
    /// Added to every address.
    base: u64,
    /// Address of the root group's header.
    pub(super) root: u64,
    /// What may still be read of structures and held of names; see [`File::charge`].
    allowance: AtomicU64,
}

/// How often the bytes of a file may be read as structures. Structures do not overlap in a file that a
/// library wrote, so each is read once or twice.
const READINGS: u64 = 16;

/// Allowed beyond that, so that a file of a few bytes is not refused for its names.
const SPARE: u64 = 1 << 20;

impl File {
    pub(super) fn of(section: Section) -> Result<Self> {
        let mut file =
            Self { section, address: 8, length: 8, base: 0, root: 0, allowance: AtomicU64::new(0) };
        file.renew();
        let start = file.bytes(0, 16)?;
        if !start.starts_with(SIGNATURE) {
            return Err(damaged("not in the HDF5 format"));
        }
        let version = start[8];
        let widths = if version < 2 { (start[13], start[14]) } else { (start[9], start[10]) };
        if !matches!(widths, (4 | 8, 4 | 8)) {
            return Err(unsupported(format!("addresses of {} bytes", widths.0)));
        }
        (file.address, file.length) = (widths.0.into(), widths.1.into());
        // Before the addresses: versions, sizes and the ranks of trees.
        let at = match version {
            0 => 24,
            1 => 28,
            2 | 3 => 12,
            other => return Err(unsupported(format!("version {other} of the superblock"))),
        };
        let width = file.address;
        let addresses = file.bytes(at, 6 * width)?;
        let mut fields = Fields::new(&addresses, &file);
        let base = fields.address()?;
        let root = match version {
            // Free space, end, driver; then the root's entry: the place of its name, its header.
            0 | 1 => {
                fields.skip(4 * width)?;
                fields.address()?
            }
            // Extension, end.
            _ => {
                fields.skip(2 * width)?;
                fields.address()?
            }
        };
        (file.base, file.root) = (base, root);
        Ok(file)
    }

    /// How long the file is: nothing in it is longer, and there is no more of anything.
    pub(super) fn size(&self) -> u64 {
        self.section.length()
    }

    /// Bytes of a length.
    pub(super) fn length_width(&self) -> usize {
        self.length
    }

    /// Bytes of an address.
    pub(super) fn address_width(&self) -> usize {
        self.address
    }

    /// Allows for one more pass over all structures.
    pub(super) fn renew(&self) {
        self.allowance.store(self.size().saturating_mul(READINGS).saturating_add(SPARE), Ordering::Relaxed);
    }

    /// Counts bytes of structures that were read, and of names that are held. What is held stays a small
    /// multiple of the file by that, however its structures refer to one another.
    ///
    /// Error: far more than the file has; groups share headers, tables or heaps.
    pub(super) fn charge(&self, bytes: usize) -> Result<()> {
        let less = |left: u64| left.checked_sub(bytes as u64);
        let left = self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        left.map(|_| ()).map_err(|_| damaged("its structures overlap: they are larger than the file"))
    }

    /// `count` bytes at an address. Error: they are beyond the end.
    pub(super) fn bytes(&self, address: u64, count: usize) -> Result<Vec<u8>> {
        let at = address.checked_add(self.base);
        let end = at.and_then(|at| at.checked_add(count as u64)).filter(|&end| end <= self.size());
        let (Some(at), Some(end)) = (at, end) else {
            return Err(damaged(format!("{count} bytes at {address} are beyond its end")));
        };
        match &self.section {
            Section::Memory(bytes) => Ok(bytes[at as usize..end as usize].to_vec()),
            Section::File { file, start, .. } => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.seek(SeekFrom::Start(start + at)).map_err(failed)?;
                let mut bytes = Vec::new();
                (&mut *file).take(count as u64).read_to_end(&mut bytes).map_err(failed)?;
                if bytes.len() == count { Ok(bytes) } else { Err(damaged("it is cut off")) }
            }
        }
    }
}

/// Reads fields one after another.
pub(super) struct Fields<'b> {
    bytes: &'b [u8],
    at: usize,
    address: usize,
    length: usize,
}

impl<'b> Fields<'b> {
    pub(super) fn new(bytes: &'b [u8], file: &File) -> Self {
        Self { bytes, at: 0, address: file.address, length: file.length }
    }

    /// The next bytes. Error: there are not so many.
    pub(super) fn take(&mut self, count: usize) -> Result<&'b [u8]> {
        let taken = self.at.checked_add(count).and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| damaged("a structure is cut off"))?;
        self.at += count;
        Ok(taken)
    }

    pub(super) fn skip(&mut self, count: usize) -> Result<()> {
        self.take(count).map(|_| ())
    }

    /// Goes on at the next multiple of eight bytes from the start.
    pub(super) fn align(&mut self) {
        self.at = self.at.next_multiple_of(8).min(self.bytes.len());
    }

    /// An unsigned number of up to eight bytes.
    pub(super) fn uint(&mut self, width: usize) -> Result<u64> {
        Ok(self.take(width)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        Ok(self.uint(1)? as u8)
    }

    /// An address; all bits set where there is none.
    pub(super) fn address(&mut self) -> Result<u64> {
        let value = self.uint(self.address)?;
        Ok(if self.address == 4 && value == u64::from(u32::MAX) { u64::MAX } else { value })
    }

    pub(super) fn length(&mut self) -> Result<u64> {
        self.uint(self.length)
    }

    /// What is left.
    pub(super) fn rest(&self) -> &'b [u8] {
        &self.bytes[self.at..]
    }
}
