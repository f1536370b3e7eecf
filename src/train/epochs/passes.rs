//! How a run goes over its records, as checkpoints keep it: within an epoch a run goes on only where its batches are the same.

use std::collections::BTreeMap;

use super::fit::Fit;
use crate::data::Order;
use crate::error::{Error, Result};

/// What each counter is called in checkpoints, the option that sets it, and its value.
type Counter = (&'static str, &'static str, u64);

/// Of a run with batches of so many records.
fn counters(options: &Fit<'_>, batch: usize) -> [Counter; 6] {
    let (shuffles, seed, window) = match options.data.order {
        Order::Fifo => (0, 0, 0),
        Order::Shuffle { seed, window } => (1, seed, window.map_or(u64::MAX, |records| records as u64)),
    };
    [
        ("data/batch", "--batch", batch as u64),
        ("data/shuffles", "--in-order", shuffles),
        ("data/seed", "--seed", seed),
        ("data/window", "--shuffle-window", window),
        ("data/validation", "--validation-split", options.validation_split.to_bits()),
        ("data/drops", "--drop-remainder", options.drop_remainder.into()),
    ]
}

/// Keeps how the run goes over its records.
pub(super) fn keep(options: &Fit<'_>, batch: usize, kept: &mut BTreeMap<String, u64>) {
    kept.extend(counters(options, batch).map(|(name, _, value)| (name.to_owned(), value)));
}

/// Error: the run starts within an epoch whose other batches were made in another way, so that records would come twice or
/// never.
pub(super) fn check(options: &Fit<'_>, batch: usize) -> Result<()> {
    if options.start.batch == 0 {
        return Ok(());
    }
    let differs = |&(name, _, value): &Counter| options.counters.get(name).is_some_and(|&kept| kept != value);
    match counters(options, batch).into_iter().find(differs) {
        None => Ok(()),
        Some((_, option, _)) => {
            let done = options.start.batch;
            let message = format!(
                "the checkpoint is within an epoch, after {done} of its batches, and was written with another {option}: \
                 records would be trained on twice or never"
            );
            Err(Error::usage("--resume", message).with_help(format!(
                "{option} as in the run that wrote it; a checkpoint of an epoch's end goes on with any"
            )))
        }
    }
}
