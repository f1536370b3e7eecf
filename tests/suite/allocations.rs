//! An allocator that counts what threads that are watched take from the heap.
//!
//! Shared by the test suite and the benchmarks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of watched threads so far.
static COUNT: AtomicU64 = AtomicU64::new(0);
static LARGEST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Counts this thread's allocations from here on, or no longer.
pub(crate) fn watch(on: bool) {
    WATCHED.with(|watched| watched.set(on));
}

/// How often watched threads have allocated so far.
pub(crate) fn counted() -> u64 {
    COUNT.load(Ordering::SeqCst)
}

/// The largest allocation of a watched thread since [`forget`], in bytes.
#[allow(dead_code, reason = "the benchmarks count alone")]
pub(crate) fn largest() -> u64 {
    LARGEST.load(Ordering::SeqCst)
}

/// Begins anew with the largest.
#[allow(dead_code, reason = "the benchmarks count alone")]
pub(crate) fn forget() {
    LARGEST.store(0, Ordering::SeqCst);
}

fn count(size: usize) {
    if WATCHED.try_with(Cell::get).unwrap_or(false) {
        COUNT.fetch_add(1, Ordering::SeqCst);
        LARGEST.fetch_max(size as u64, Ordering::SeqCst);
    }
}

// SAFETY: hands everything on to the system's allocator; counting touches no heap.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}
