//! How the command line plans: on how many threads, for how long. A signal while a plan is made ends the
//! search with the best plan so far.

use super::args::PlacementArgs;
use super::options::{duration, size};
use super::signals::orderly;
use super::terminal::Console;
use crate::control::{Control, Progress};
use crate::error::{Error, Result};

/// Whether a search may be cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// By the time limit and by a signal.
    Limited,
    /// Not at all: it finds again what was found before the search for it was cut short. A second signal ends the program.
    #[cfg(feature = "run")]
    Again,
}

/// Plans with what the arguments say of threads, time and memory.
///
/// Errors: a time limit that is no time, a memory limit that is no size; those of `plan`.
pub(super) fn planning<T>(
    args: &PlacementArgs,
    console: &Console,
    plan: impl FnOnce(&Control<'_>) -> Result<T>,
) -> Result<T> {
    searching(Search::Limited, args, console, plan)
}

/// As [`planning`].
pub(super) fn searching<T>(
    search: Search,
    args: &PlacementArgs,
    console: &Console,
    plan: impl FnOnce(&Control<'_>) -> Result<T>,
) -> Result<T> {
    let limit = args.time_limit.as_deref().map(|text| duration("--time-limit", text)).transpose()?;
    let memory = args.memory_limit.as_deref().map(|text| size("--memory-limit", text)).transpose()?;
    let working = console.working("planning");
    let (result, truncated) = orderly(|stop| {
        let on_progress = |progress: Progress<'_>| {
            working.show(&format!("{} {}/{}", progress.stage, progress.done, progress.total));
        };
        let mut control = Control::new().progress(&on_progress);
        if search == Search::Limited {
            control = control.cancel(stop);
        }
        if let Some(threads) = args.threads {
            control = control.threads(threads);
        }
        if let Some(limit) = limit.filter(|_| search == Search::Limited) {
            control = control.time_limit(limit);
        }
        if let Some(memory) = memory {
            control = control.memory(memory);
        }
        let result = plan(&control);
        (result, control.was_truncated())
    });
    drop(working);
    match (truncated, &result) {
        (true, Ok(_)) => console.note("the search was cut short: the plan is sound, a better one may exist"),
        (true, Err(Error::Infeasible(why))) if why.proven => {
            console.note("the search was cut short: what would help was not looked for to the end")
        }
        (true, Err(Error::Infeasible(_))) => {
            console.note("the search was cut short: with more time or memory it may find a plan")
        }
        _ => {}
    }
    result
}
