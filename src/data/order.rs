//! The order of records: as they come, or drawn at random from a window of them.

use crate::random::first;

/// A record's elements of all fields, one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptRow {
    pub(super) bytes: Vec<u8>,
    /// The end of each field.
    pub(super) ends: Vec<usize>,
}

impl KeptRow {
    fn cost(&self) -> u64 {
        (self.bytes.len() + self.ends.len() * 8 + 64) as u64
    }
}

/// A window of records from which each next one is drawn. Once it is full, a record leaves for each
/// that comes; at the end of an epoch all leave in random order. Every record that comes leaves once.
#[derive(Debug)]
pub(super) struct ShuffleWindow {
    rows: Vec<KeptRow>,
    bytes: u64,
    most_rows: usize,
    most_bytes: u64,
    state: u64,
}

impl ShuffleWindow {
    /// An empty window for one epoch.
    pub(super) fn new(seed: u64, epoch: u64, most_rows: usize, most_bytes: u64) -> Self {
        Self {
            rows: Vec::new(),
            bytes: 0,
            most_rows: most_rows.max(1),
            most_bytes,
            state: first(seed ^ first(epoch)),
        }
    }

    /// Takes a record in, and out one where the window is full.
    pub(super) fn exchange(&mut self, row: KeptRow) -> Option<KeptRow> {
        self.bytes = self.bytes.saturating_add(row.cost());
        self.rows.push(row);
        if self.rows.len() > self.most_rows || self.bytes > self.most_bytes { self.draw() } else { None }
    }

    /// One of the records that are left.
    pub(super) fn draw(&mut self) -> Option<KeptRow> {
        if self.rows.is_empty() {
            return None;
        }
        self.state = self.state.wrapping_add(1);
        // The high half of a product is uniform below the length but for one part in 2^64 of it.
        let drawn = (u128::from(first(self.state)) * self.rows.len() as u128) >> 64;
        let row = self.rows.swap_remove(drawn as usize);
        self.bytes = self.bytes.saturating_sub(row.cost());
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shuffled(count: u8, window: usize, epoch: u64) -> Vec<u8> {
        let mut window = ShuffleWindow::new(1, epoch, window, u64::MAX);
        let row = |byte| KeptRow { bytes: vec![byte], ends: vec![1] };
        let mut out: Vec<KeptRow> = (0..count).filter_map(|byte| window.exchange(row(byte))).collect();
        out.extend(std::iter::from_fn(|| window.draw()));
        out.into_iter().map(|row| row.bytes[0]).collect()
    }

    #[test]
    fn every_record_leaves_once_and_none_early() {
        for (count, size) in [(100, 10), (10, 100), (5, 1), (0, 4)] {
            let order = shuffled(count, size, 0);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<u8>>());
            // Only records that came can leave: position p draws from the first p + size + 1.
            assert!(order.iter().enumerate().all(|(at, &byte)| usize::from(byte) <= at + size));
        }
        assert_ne!(shuffled(100, 100, 0), shuffled(100, 100, 1));
        assert_eq!(shuffled(100, 100, 3), shuffled(100, 100, 3));
    }

    #[test]
    fn a_window_over_everything_is_a_uniform_shuffle() {
        // 3 records have 6 orders; each should come up in a sixth of many epochs.
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..6000 {
            *counts.entry(shuffled(3, 3, epoch)).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|&count| (850..1150).contains(&count)), "{counts:?}");
    }

    #[test]
    fn memory_bounds_the_window() {
        let mut window = ShuffleWindow::new(0, 0, usize::MAX, 1000);
        let mut pending: i32 = 0;
        for _ in 0..100 {
            pending +=
                1 - i32::from(window.exchange(KeptRow { bytes: vec![0; 100], ends: vec![100] }).is_some());
            assert!(pending <= 6);
        }
    }
}
