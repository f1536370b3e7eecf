//! What ends the program from outside: SIGINT (Ctrl-C) and SIGTERM.
//!
//! While there is work that can end in an orderly way, the first signal asks it to end, and the second one ends the
//! program; at any other time the first signal ends it. A program that a signal ended exits with 128 plus the signal's
//! number, as shells count.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

#[cfg(feature = "run")]
use crate::error::{Error, Result};

/// True while something is at work that [`orderly`] was asked for.
static WORKING: AtomicBool = AtomicBool::new(false);
/// Set by the first signal.
static STOP: AtomicBool = AtomicBool::new(false);
/// The number of the first signal; 0 before.
static SIGNAL: AtomicU8 = AtomicU8::new(0);

/// Does something that a signal ends in an orderly way, by the flag that `work` is given. The flag stays
/// set: what is begun after it ends soon.
pub(super) fn orderly<T>(work: impl FnOnce(&'static AtomicBool) -> T) -> T {
    WORKING.store(true, Ordering::SeqCst);
    let result = work(&STOP);
    WORKING.store(false, Ordering::SeqCst);
    result
}

/// The exit code of a program that a signal ended; none where there was none.
pub(super) fn exit_code() -> Option<u8> {
    match SIGNAL.load(Ordering::SeqCst) {
        0 => None,
        signal => Some(128u8.saturating_add(signal)),
    }
}

/// Error: [`Error::Cancelled`], where a signal came.
#[cfg(feature = "run")]
pub(super) fn check() -> Result<()> {
    if exit_code().is_some() { Err(Error::Cancelled) } else { Ok(()) }
}

/// A signal came.
fn heard(signal: u8) {
    let first = SIGNAL.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    STOP.store(true, Ordering::SeqCst);
    if !first || !WORKING.load(Ordering::SeqCst) {
        crate::files::remove_unfinished();
        std::process::exit(i32::from(exit_code().unwrap_or(1)));
    }
}

/// Hears signals from now on. Without a listener one ends the program at once, and what it was writing aside
/// is left. That a file would be larger than the system lets it be is then an error of the write.
#[cfg(unix)]
pub(super) fn listen() {
    use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGXFSZ]) else { return };
    let (is_up, started) = std::sync::mpsc::channel();
    let wait = move || {
        let _ = is_up.send(());
        signals
            .forever()
            .filter(|&signal| signal != SIGXFSZ)
            .for_each(|signal| heard(u8::try_from(signal).unwrap_or(1)));
    };
    // A thread of its own, so that ending the program may clean up. It has its stacks before anything else may take what
    // memory there is.
    if std::thread::Builder::new().name("signals".into()).spawn(wait).is_ok() {
        let _ = started.recv();
    }
}

#[cfg(not(unix))]
pub(super) fn listen() {
    const SIGINT: u8 = 2;
    let _ = ctrlc::set_handler(|| heard(SIGINT));
}
