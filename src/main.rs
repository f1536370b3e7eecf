//! The `partition` program.
//!
//! `unsafe` for the allocator alone, which hands every call on to the system's, and for two limits of the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;

fn main() -> std::process::ExitCode {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    keep_what_is_small();
    partition::unstable::cli::main()
}

/// Bytes from which on what is free goes back to the system at once.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const RETURNED: libc::c_int = 4 << 20;

/// Bytes that are kept of smaller ones, for what comes next.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: libc::c_int = 64 << 20;

/// Lets what takes 4 MiB or more go back to the system as soon as it is free: by default glibc keeps up to 32 MiB of each for
/// what comes next, in holes that the larger tables of a planner's next phase do not fit into. What is smaller is kept: once
/// the first limit is set, glibc would return all above 128 KiB, and the system would clear the same pages again and again.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn keep_what_is_small() {
    // SAFETY: both calls set a number of the allocator's, and no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, RETURNED);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    };
}

#[global_allocator]
static ALLOCATOR: OneLine = OneLine;

/// The system's allocator. Where it has no memory left for something small, the program ends with one line: nothing
/// can be done without memory, and a backtrace tells a user nothing. What is large is asked for by those who can do
/// without (arenas, files), so its refusal is handed back.
struct OneLine;

/// From here on a refusal is handed back, in bytes.
const LARGE: usize = 1 << 20;

/// Returns an allocation. Ends the program where there is none and it was small.
fn granted(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() && bytes < LARGE {
        // Neither of the two takes memory. A closed stderr changes nothing.
        let _ = std::io::stderr()
            .write_all(b"error: there is no memory left (a limit of the system or of `ulimit -v`)\n");
        std::process::exit(1);
    }
    memory
}

// SAFETY: every call goes to the system's allocator unchanged, and what it returns is returned.
unsafe impl GlobalAlloc for OneLine {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        granted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        granted(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}
