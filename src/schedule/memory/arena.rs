//! One device's arena: which bytes are free, and who had them last.
//!
//! Best fit with coalescing: free ranges are kept by offset and by size in ordered maps, so each
//! operation is O(log ranges). Who had a range last is kept apart, so that neighbours merge
//! although they become usable at different times.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::schedule::ALIGNMENT;

/// What had a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupant {
    /// A tensor on the device that made it.
    Tensor(u32),
    /// An arrival, on its receiver.
    Arrival(u32),
    /// What only the launch of this node used, or whose users it knew to be done.
    Launch(u32),
}

/// Free and taken ranges above a fixed base. All offsets and lengths are multiples of
/// [`ALIGNMENT`].
#[derive(Debug)]
pub(crate) struct Arena {
    top: u64,
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    /// Who had the free ranges, as they were given back.
    last: History<Occupant>,
}

/// Who had each byte last.
#[derive(Debug)]
pub(crate) struct History<T> {
    /// End and occupant by offset.
    last: BTreeMap<u64, (u64, T)>,
}

impl<T: Copy> History<T> {
    /// Nobody had anything.
    pub(crate) fn new() -> Self {
        Self { last: BTreeMap::new() }
    }

    /// Who had the bytes of a range, from its start on; each with its end.
    pub(crate) fn of(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, T)> {
        let first = self.last.range(..=start).next_back();
        let first = first.filter(|&(&offset, &(stop, _))| offset < end && stop > start);
        let first = first.map(|(_, &entry)| entry);
        // As a rule one had all of it: nothing more is looked for then.
        let has_more = start < end && first.is_none_or(|(stop, _)| stop < end);
        let others = has_more.then(|| self.last.range((Bound::Excluded(start), Bound::Excluded(end))));
        first.into_iter().chain(others.into_iter().flatten().map(|(_, &entry)| entry))
    }

    /// Puts an occupant where nobody had anything, as in what was taken.
    fn add(&mut self, start: u64, end: u64, occupant: T) {
        debug_assert!(self.of(start, end).next().is_none());
        self.last.insert(start, (end, occupant));
    }

    /// Puts one occupant in place of all that had a range.
    pub(crate) fn put(&mut self, start: u64, end: u64, occupant: T) {
        self.forget(start, end);
        self.last.insert(start, (end, occupant));
    }

    /// Cuts a range out.
    fn forget(&mut self, start: u64, end: u64) {
        // As a rule it begins where what somebody had begins.
        if let Some(entry) = self.last.remove(&start) {
            if self.keep_behind(end, entry) {
                return;
            }
        } else if let Some((_, entry)) = self.last.range_mut(..start).next_back()
            && entry.0 > start
        {
            let whole = *entry;
            entry.0 = start;
            if self.keep_behind(end, whole) {
                return;
            }
        }
        while let Some((&offset, _)) = self.last.range(start..end).next() {
            if let Some(entry) = self.last.remove(&offset) {
                self.keep_behind(end, entry);
            }
        }
    }

    /// Keeps what an entry has behind `end`; true where it reaches that far.
    fn keep_behind(&mut self, end: u64, (stop, occupant): (u64, T)) -> bool {
        if stop > end {
            self.last.insert(end, (stop, occupant));
        }
        stop >= end
    }
}

/// `bytes` rounded up to the alignment; none where that overflows.
pub(crate) fn aligned(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

impl Arena {
    /// All free from `base` (aligned) on.
    pub(crate) fn new(base: u64) -> Self {
        Self { top: base, by_offset: BTreeMap::new(), by_size: BTreeSet::new(), last: History::new() }
    }

    /// Offsets of free ranges that hold `length`, the smallest first.
    pub(crate) fn fits(&self, length: u64) -> impl Iterator<Item = u64> {
        self.by_size.range((length, 0)..).map(|&(_, offset)| offset)
    }

    /// Where nothing was ever put.
    pub(crate) fn top(&self) -> u64 {
        self.top
    }

    /// Begin of the free range that touches the top.
    pub(crate) fn last_free(&self) -> Option<u64> {
        let (&offset, &length) = self.by_offset.last_key_value()?;
        (offset + length == self.top).then_some(offset)
    }

    /// Who had the bytes of a range before, from its start on; each with its end.
    pub(crate) fn history(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Occupant)> {
        self.last.of(start, end)
    }

    /// Puts one occupant in place of all that had a free range before.
    pub(crate) fn merge(&mut self, start: u64, end: u64, occupant: Occupant) {
        self.last.put(start, end, occupant);
    }

    /// Takes a free range, or one that begins in a free range (or at the top) and leaves over the
    /// top. False, and nothing is changed, where its end overflows.
    pub(crate) fn take(&mut self, start: u64, length: u64) -> bool {
        let Some(end) = start.checked_add(length) else { return false };
        if let Some((&offset, &free)) = self.by_offset.range(..=start).next_back()
            && offset + free > start
        {
            self.by_offset.remove(&offset);
            self.by_size.remove(&(free, offset));
            self.add(offset, start);
            self.add(end, offset + free);
        }
        self.top = self.top.max(end);
        self.last.forget(start, end);
        true
    }

    /// Gives a range back.
    pub(crate) fn release(&mut self, start: u64, length: u64, occupant: Occupant) {
        if length == 0 {
            return;
        }
        self.last.add(start, start + length, occupant);
        let mut end = start + length;
        if let Some(free) = self.by_offset.remove(&end) {
            self.by_size.remove(&(free, end));
            end += free;
        }
        // A free range before it grows where it is.
        if let Some((&offset, free)) = self.by_offset.range_mut(..start).next_back()
            && offset + *free == start
        {
            self.by_size.remove(&(*free, offset));
            *free = end - offset;
            self.by_size.insert((*free, offset));
            return;
        }
        self.add(start, end);
    }

    fn add(&mut self, start: u64, end: u64) {
        if start < end {
            self.by_offset.insert(start, end - start);
            self.by_size.insert((end - start, start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(arena: &Arena, start: u64, end: u64) -> Vec<(u64, Occupant)> {
        arena.history(start, end).collect()
    }

    #[test]
    fn neighbours_merge_and_keep_their_history() {
        let mut arena = Arena::new(64);
        for offset in [64, 128, 192, 256] {
            assert_eq!(arena.top(), offset);
            assert!(arena.take(offset, 64));
        }
        arena.release(128, 64, Occupant::Tensor(1));
        assert_eq!(arena.last_free(), None);
        arena.release(64, 64, Occupant::Tensor(0));
        assert_eq!(arena.fits(128).collect::<Vec<_>>(), [64]);
        arena.release(256, 64, Occupant::Arrival(3));
        assert_eq!(arena.fits(64).collect::<Vec<_>>(), [256, 64]);
        assert_eq!(arena.last_free(), Some(256));
        arena.release(192, 64, Occupant::Launch(2));
        assert_eq!(arena.fits(65).collect::<Vec<_>>(), [64]);
        let all = [
            (128, Occupant::Tensor(0)),
            (192, Occupant::Tensor(1)),
            (256, Occupant::Launch(2)),
            (320, Occupant::Arrival(3)),
        ];
        assert_eq!(history(&arena, 64, 320), all);
        assert_eq!(history(&arena, 130, 193), all[1..3]);
        arena.merge(64, 256, Occupant::Launch(9));
        assert_eq!(history(&arena, 64, 320), [(256, Occupant::Launch(9)), all[3]]);
    }

    #[test]
    fn what_is_taken_has_no_history_and_its_neighbours_keep_theirs() {
        let mut arena = Arena::new(0);
        assert!(arena.take(0, 640));
        arena.release(0, 640, Occupant::Tensor(7));
        assert!(arena.take(128, 64));
        assert_eq!(history(&arena, 0, 640), [(128, Occupant::Tensor(7)), (640, Occupant::Tensor(7))]);
        assert_eq!(arena.fits(64).collect::<Vec<_>>(), [0, 192]);
        assert!(arena.take(192, 1024), "leaves over the top");
        assert_eq!((arena.top(), arena.last_free()), (1216, None));
        assert_eq!(history(&arena, 128, 1216), []);
    }

    #[test]
    fn an_end_past_the_last_byte_is_refused() {
        let mut arena = Arena::new(64);
        assert!(!arena.take(64, u64::MAX - 63));
        assert_eq!((arena.top(), aligned(u64::MAX)), (64, None));
    }
}
