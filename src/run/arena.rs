//! Memory of a device: one allocation, as long as the plan says, handed out in ranges.
//!
//! All pointers into arenas are made here. A range is checked against the arena when it is made;
//! who may use it when is the caller's promise (see each function), which the plan's
//! happens-before order keeps.
//!
//! Contains `unsafe`: the allocation, and slices of its ranges.

use std::alloc::Layout;
use std::ptr::NonNull;

use crate::error::{Error, Result};

/// Arenas begin at a multiple of this many bytes, so that their buffers do.
pub(super) const ALIGNMENT: usize = crate::units::ALIGNMENT as usize;

/// Arenas from twice this on begin at a multiple of it: the size of a huge page.
const HUGE: usize = 1 << 21;

/// One allocation of zeroed bytes.
#[derive(Debug)]
pub(super) struct Arena {
    /// What was allocated; none where another one gives the bytes back.
    whole: Option<(NonNull<u8>, Layout)>,
    /// Where the arena begins.
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: an arena owns its bytes as a `Box<[u8]>` does; its methods that reach them are unsafe or
// need exclusive access.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// Bytes of an arena, known to be within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: usize,
    pub(super) length: usize,
}

impl Range {
    /// The range of `length` bytes from `offset` of an arena; none where it leaves it.
    pub(super) fn within(arena: u64, offset: u64, length: u64) -> Option<Self> {
        offset.checked_add(length).filter(|&end| end <= arena)?;
        Some(Self { offset: usize::try_from(offset).ok()?, length: usize::try_from(length).ok()? })
    }

    /// A part of it; none where it is not within.
    pub(super) fn part(self, offset: u64, length: u64) -> Option<Self> {
        offset.checked_add(length).filter(|&end| end <= self.length as u64)?;
        Some(Self { offset: self.offset + offset as usize, length: length as usize })
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.length > 0
            && other.length > 0
            && self.offset < other.offset + other.length
            && other.offset < self.offset + self.length
    }
}

impl Arena {
    /// Error: the system does not give that much.
    pub(super) fn new(length: u64) -> Result<Self> {
        let refuse = || {
            let bytes = crate::units::Bytes(length);
            Error::run("", format!("cannot allocate an arena of {bytes}"))
        };
        let length = usize::try_from(length).map_err(|_| refuse())?;
        let alignment = if length >= 2 * HUGE { HUGE } else { ALIGNMENT };
        // Aligned here: the allocator hands out zeroed pages untouched only where it need not align.
        let size = length.checked_add(alignment).ok_or_else(refuse)?;
        let layout = Layout::from_size_align(size, 1).map_err(|_| refuse())?;
        // SAFETY: the layout's size is not zero.
        let whole = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).ok_or_else(refuse)?;
        // SAFETY: at most `alignment - 1` bytes on, within what was allocated.
        let pointer = unsafe { whole.add(whole.align_offset(alignment)) };
        if alignment == HUGE {
            ask_for_huge_pages(pointer, length);
        }
        Ok(Self { whole: Some((whole, layout)), pointer, length })
    }

    /// An arena in bytes that another one gives back.
    ///
    /// # Safety
    ///
    /// So many initialised bytes, at a multiple of [`ALIGNMENT`], that live as long as the arena and that
    /// nobody else uses but as the users of an arena do.
    #[cfg(feature = "cuda")]
    pub(super) unsafe fn lent(pointer: NonNull<u8>, length: usize) -> Self {
        Self { whole: None, pointer, length }
    }

    /// Where a range begins.
    pub(super) fn pointer(&self, range: Range) -> *mut u8 {
        debug_assert!(range.offset + range.length <= self.length);
        // SAFETY: a range lies within the arena it was made from, and so does its end.
        unsafe { self.pointer.as_ptr().add(range.offset) }
    }

    /// A range's bytes.
    ///
    /// # Safety
    ///
    /// The range was made from this arena; for the lifetime, nobody writes it.
    pub(super) unsafe fn bytes(&self, range: Range) -> &[u8] {
        // SAFETY: within the arena, initialised since it was allocated, and not written meanwhile.
        unsafe { std::slice::from_raw_parts(self.pointer(range), range.length) }
    }

    /// A range's bytes, to write.
    ///
    /// # Safety
    ///
    /// The range was made from this arena; for the lifetime, nobody else reads or writes it.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn bytes_mut(&self, range: Range) -> &mut [u8] {
        // SAFETY: within the arena, initialised since it was allocated, and not used by others.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(range), range.length) }
    }
}

/// Tells the system that large pages suit these bytes, which begin at a multiple of [`HUGE`]: fewer
/// pages are looked up. A hint, which it may ignore.
fn ask_for_huge_pages(pointer: NonNull<u8>, length: usize) {
    #[cfg(target_os = "linux")]
    {
        let whole = length - length % HUGE;
        // SAFETY: pages of this allocation alone; the advice changes none of their bytes.
        unsafe { libc::madvise(pointer.as_ptr().cast(), whole, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (pointer, length);
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some((whole, layout)) = self.whole {
            // SAFETY: allocated in `new` with this layout.
            unsafe { std::alloc::dealloc(whole.as_ptr(), layout) }
        }
    }
}

/// A plain buffer: an arena that one owner uses as a whole.
#[derive(Debug)]
pub(super) struct Buffer(Arena);

impl Buffer {
    /// Error: the system does not give that much.
    pub(super) fn new(length: u64) -> Result<Self> {
        Arena::new(length).map(Self)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        let Self(arena) = self;
        // SAFETY: nobody else has the arena, and writing needs an exclusive borrow of `self`.
        unsafe { arena.bytes(Range { offset: 0, length: arena.length }) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let Self(arena) = self;
        // SAFETY: borrowed exclusively.
        unsafe { arena.bytes_mut(Range { offset: 0, length: arena.length }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_within_their_arena() {
        let arena = Arena::new(128).unwrap();
        assert_eq!(Range::within(128, 64, 64), Some(Range { offset: 64, length: 64 }));
        assert_eq!(Range::within(128, 65, 64), None);
        assert_eq!(Range::within(128, u64::MAX, 2), None);
        assert_eq!(arena.pointer(Range { offset: 0, length: 0 }) as usize % ALIGNMENT, 0);
        assert!(Arena::new(u64::MAX).is_err());
        assert!(Buffer::new(0).unwrap().bytes().is_empty());
    }
}
