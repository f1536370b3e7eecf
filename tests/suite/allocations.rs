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

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    /// The largest allocation of this thread, while it is measured.
    static LARGEST: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Counts this thread's allocations from here on, or no longer.
pub(crate) fn watch(on: bool) {
    WATCHED.with(|watched| watched.set(on));
}

/// What `work` gives, and the largest single allocation of this thread meanwhile.
#[allow(dead_code, reason = "benchmarks count alone")]
pub(crate) fn with_largest<T>(work: impl FnOnce() -> T) -> (T, u64) {
    LARGEST.with(|largest| largest.set(Some(0)));
    let result = work();
    (result, LARGEST.with(|largest| largest.take().unwrap_or(0)) as u64)
}

/// How often watched threads have allocated so far.
pub(crate) fn counted() -> u64 {
    COUNT.load(Ordering::SeqCst)
}

/// The most that a thread whose allocations are measured gets at once. What asks for more ends the process with how much it
/// asked for, rather than the machine's memory ending it without a word.
const MOST_AT_ONCE: usize = 4 << 30;

/// Counts an allocation, and says whether it is refused.
fn refuses(bytes: usize) -> bool {
    if WATCHED.try_with(Cell::get).unwrap_or(false) {
        COUNT.fetch_add(1, Ordering::SeqCst);
    }
    // A thread that ends may have none any more.
    let measured = LARGEST.try_with(|largest| {
        largest.set(largest.get().map(|most| most.max(bytes)));
        largest.get().is_some()
    });
    bytes > MOST_AT_ONCE && measured.unwrap_or(false)
}

// SAFETY: hands everything on to the system's allocator; counting touches no heap.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refuses(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}
