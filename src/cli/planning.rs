//! How the command line plans: on how many threads, for how long, and what Ctrl-C does.
//!
//! The first Ctrl-C while a plan is made ends the search with the best plan so far; the next one,
//! or one at any other time, ends the program.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use super::args::PlacementArgs;
use super::options::{duration, size};
use super::terminal::Console;
use crate::control::{Control, Progress};
use crate::error::Result;

/// True while a plan is made: an interruption then stops the search, not the program.
static PLANNING: AtomicBool = AtomicBool::new(false);
/// Set by the first interruption.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static HANDLER: Once = Once::new();

/// The exit code of a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;

/// Plans with what the arguments say of threads, time and memory.
///
/// Errors: a time limit that is no time, a memory limit that is no size; those of `plan`.
pub(super) fn planning<T>(
    args: &PlacementArgs,
    console: &Console,
    plan: impl FnOnce(&Control<'_>) -> Result<T>,
) -> Result<T> {
    let limit = args.time_limit.as_deref().map(|text| duration("--time-limit", text)).transpose()?;
    let memory = args.memory_limit.as_deref().map(|text| size("--memory-limit", text)).transpose()?;
    catch_interruptions();
    let working = console.working("planning");
    let (result, truncated) = {
        let tell = |progress: Progress<'_>| {
            working.tell(&format!("{} {}/{}", progress.stage, progress.done, progress.total));
        };
        let mut control = Control::new().cancel(&INTERRUPTED).progress(&tell);
        if let Some(threads) = args.threads {
            control = control.threads(threads);
        }
        if let Some(limit) = limit {
            control = control.time_limit(limit);
        }
        if let Some(memory) = memory {
            control = control.memory(memory);
        }
        PLANNING.store(true, Ordering::SeqCst);
        let result = plan(&control);
        PLANNING.store(false, Ordering::SeqCst);
        (result, control.was_truncated())
    };
    drop(working);
    match (truncated, &result) {
        (true, Ok(_)) => console.note("the search was cut short: the plan is sound, a better one may exist"),
        (true, Err(_)) => {
            console.note("the search was cut short: with more time or memory it may find a plan")
        }
        (false, _) => {}
    }
    result
}

/// Does something that an interruption ends in an orderly way: the first Ctrl-C sets the flag that
/// `work` is given, the next one ends the program.
#[cfg(feature = "run")]
pub(super) fn interruptible<T>(work: impl FnOnce(&AtomicBool) -> T) -> T {
    catch_interruptions();
    INTERRUPTED.store(false, Ordering::SeqCst);
    PLANNING.store(true, Ordering::SeqCst);
    let result = work(&INTERRUPTED);
    PLANNING.store(false, Ordering::SeqCst);
    result
}

fn catch_interruptions() {
    HANDLER.call_once(|| {
        let handler = || {
            if !PLANNING.load(Ordering::SeqCst) || INTERRUPTED.swap(true, Ordering::SeqCst) {
                std::process::exit(EXIT_INTERRUPTED);
            }
        };
        // Without a handler Ctrl-C ends the program, which is no worse than before.
        let _ = ctrlc::set_handler(handler);
    });
}
