//! Memory with a mark in each byte in place of a number.

use std::collections::BTreeMap;

/// Which value of which microbatch bytes are of, and at which address its first byte would lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) value: u32,
    pub(super) microbatch: Option<u32>,
    pub(super) origin: i128,
}

/// An arena: by start of a range its end and what its bytes are; what is in no range is nothing that the
/// network knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena(BTreeMap<u64, (u64, Mark)>);

impl Arena {
    /// Ranges with a byte in common with this one, cut to it.
    pub(super) fn ranges(&self, start: u64, end: u64) -> Vec<(u64, u64, Mark)> {
        let before = self.0.range(..start).next_back().filter(|(_, (stop, _))| *stop > start);
        let all = before.into_iter().chain(self.0.range(start..end.max(start)));
        all.map(|(&from, &(to, mark))| (from.max(start), to.min(end), mark)).collect()
    }

    pub(super) fn clear(&mut self, start: u64, end: u64) {
        if start == end {
            return;
        }
        if let Some((&from, &(to, mark))) = self.0.range(..start).next_back()
            && to > start
        {
            self.0.insert(from, (start, mark));
            self.0.insert(start, (to, mark));
        }
        while let Some((&from, &(to, mark))) = self.0.range(start..end).next() {
            self.0.remove(&from);
            if to > end {
                self.0.insert(end, (to, mark));
            }
        }
    }

    pub(super) fn set(&mut self, start: u64, end: u64, mark: Mark) {
        self.clear(start, end);
        if start < end {
            self.0.insert(start, (end, mark));
        }
    }

    /// True where every byte has this mark.
    pub(super) fn has(&self, start: u64, end: u64, mark: Mark) -> bool {
        let mut reached = start;
        for (from, to, found) in self.ranges(start, end) {
            if from != reached || found != mark {
                return false;
            }
            reached = to;
        }
        reached == end
    }
}
