//! What copies that bring a value in parts have brought so far.

use std::collections::BTreeMap;

use super::order::{Event, Past};

/// Bytes of a value from `start` up to `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRange {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Ranges of a value's bytes, each with the copy that brought it.
#[derive(Debug, Default)]
pub(super) struct Covered {
    /// By start: end and copy. Ranges do not overlap.
    ranges: BTreeMap<u64, (u64, Event)>,
}

impl Covered {
    /// Adds a range; true, and nothing is added, where a byte of it is there already or it is empty.
    pub(super) fn add(&mut self, bytes: ByteRange, event: Event) -> bool {
        let ByteRange { start, end } = bytes;
        let before = self.ranges.range(..end).next_back();
        if start >= end || before.is_some_and(|(_, &(stop, _))| stop > start) {
            return true;
        }
        self.ranges.insert(start, (end, event));
        false
    }

    /// True where every byte of a range was brought by copies that are over.
    pub(super) fn hold(&self, bytes: ByteRange, past: &Past<'_>) -> bool {
        let ByteRange { start, end } = bytes;
        let mut reached = start;
        // The range that holds `start` may begin before it.
        let from = self.ranges.range(..=start).next_back().map_or(start, |(&first, _)| first);
        for (&first, &(stop, event)) in self.ranges.range(from..end) {
            if first > reached || !past.contains(event) {
                return false;
            }
            reached = reached.max(stop);
        }
        reached >= end
    }

    /// The first byte that nothing brought of a value of so many.
    pub(super) fn first_gap(&self, bytes: u64) -> Option<u64> {
        let mut reached = 0;
        for (&start, &(end, _)) in &self.ranges {
            if start > reached {
                break;
            }
            reached = end;
        }
        (reached < bytes).then_some(reached)
    }
}
