//! Inputs of the next step, in page-locked memory while the step before it is at work.
//!
//! Contains `unsafe`: what the host puts there, and GPUs and the host's own arenas take from there.

use super::super::executor::plan::Located;
use super::driver::{HostPointer, Outcome};
use super::issue::{read_host, write_host};
use super::resources::Resources;
use super::{Driver, Pointer, Stream};
use crate::error::{Error, Result};
use crate::ir::Tensor;

/// Most bytes of page-locked memory that is kept for it: the system cannot use them for anything else.
const MOST: u64 = 1 << 30;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Staging {
    /// None before the first use.
    memory: Option<HostPointer>,
    bytes: u64,
    /// Whose bytes lie there.
    inputs: Vec<(String, Tensor)>,
    /// What lies there: where it goes, and where it begins.
    pieces: Vec<(Located, u64)>,
}

impl Staging {
    /// Whether there is memory for so many bytes; it is allocated the first time.
    pub(super) fn has_room(&mut self, bytes: u64, resources: &mut Resources) -> bool {
        if self.memory.is_none() && (1..=MOST).contains(&bytes) {
            // Without it steps take their inputs when they begin.
            self.memory = resources.host(bytes).ok();
            self.bytes = bytes;
        }
        self.memory.is_some() && bytes <= self.bytes
    }

    /// Whether these inputs lie there, whole.
    pub(super) fn holds(&self, inputs: &[(String, Tensor)]) -> bool {
        let same = |(one, other): (&(String, Tensor), &(String, Tensor))| {
            one.0 == other.0 && one.1.dims() == other.1.dims() && one.1.shares_bytes(&other.1)
        };
        !inputs.is_empty() && self.inputs.len() == inputs.len() && self.inputs.iter().zip(inputs).all(same)
    }

    /// Forgets what lies there.
    pub(super) fn clear(&mut self) {
        self.inputs.clear();
        self.pieces.clear();
    }

    /// Adds what goes to a place. Error: there is no room.
    pub(super) fn put(&mut self, place: Located, bytes: &[u8]) -> Result<()> {
        let end = |&(place, at): &(Located, u64)| at + place.range.length as u64;
        let at = self.pieces.last().map_or(0, end);
        let memory = self.memory.filter(|_| at + bytes.len() as u64 <= self.bytes);
        let memory = memory.filter(|_| bytes.len() == place.range.length);
        let memory = memory.ok_or_else(|| Error::Internal("no room for the inputs of a step".to_owned()))?;
        // SAFETY: the bytes end within the memory, which nothing reads: what was there before has been taken.
        unsafe { write_host(memory.offset(at), bytes) };
        self.pieces.push((place, at));
        Ok(())
    }

    /// All that was put lies there: it is what comes of these inputs.
    pub(super) fn keep(&mut self, inputs: &[(String, Tensor)]) {
        self.inputs = inputs.to_vec();
    }

    /// What lies there: where it goes, and where it is.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (Located, Staged)> {
        let memory = self.memory;
        let staged = move |&(place, at): &(Located, u64)| {
            Some((place, Staged { from: memory?.offset(at), bytes: place.range.length }))
        };
        self.pieces.iter().filter_map(staged)
    }
}

/// Bytes that lie in page-locked memory.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    from: HostPointer,
    bytes: usize,
}

impl Staged {
    /// Begins to copy them to a GPU: they stay until the stream has ended.
    pub(super) fn upload(self, driver: &dyn Driver, stream: Stream, to: Pointer) -> Outcome<()> {
        // SAFETY: so many bytes were put there, and none are until the stream has ended; the place is in a plan's arena.
        unsafe { driver.upload(stream, to, self.from, self.bytes as u64) }
    }

    /// A copy of them.
    pub(super) fn read(self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        // SAFETY: so many bytes were put there, and nobody writes them now.
        unsafe { read_host(self.from, &mut bytes) };
        bytes
    }
}
