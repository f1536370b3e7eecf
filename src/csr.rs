//! Compressed sparse rows: a list of small items for each position, all of them in two flat arrays.
//!
//! petgraph's own type (`petgraph::csr`) sorts each row and keeps an entry once; the rows of plans keep the order
//! in which their entries come, and how often.

use std::ops::Range;

/// What stands for no row in [`Csr::grouped`].
const NONE: u32 = u32::MAX;

/// Lists of items, flat. 4 bytes a row, beside the entries, of which there are fewer than 2^32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Csr<T = u32> {
    start: Vec<u32>,
    entries: Vec<T>,
}

impl<T> Default for Csr<T> {
    fn default() -> Self {
        Self { start: vec![0], entries: Vec::new() }
    }
}

impl<T: Copy> Csr<T> {
    /// No rows, to push some onto.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Rows `0..rows` from (row, entry) pairs; each row keeps their order. O(rows + pairs).
    pub(crate) fn from_pairs(rows: usize, pairs: impl Iterator<Item = (usize, T)> + Clone) -> Self {
        Self::from_visits(rows, |visit| pairs.clone().for_each(|(row, entry)| visit(row, entry)))
    }

    /// As [`Csr::from_pairs`], of the pairs that `visits` shows: twice, and the same ones.
    pub(crate) fn from_visits(rows: usize, visits: impl Fn(&mut dyn FnMut(usize, T))) -> Self {
        let mut start = vec![0u32; rows + 1];
        let mut any = None;
        visits(&mut |row, entry| {
            start[row + 1] += 1;
            any = Some(entry);
        });
        for row in 0..rows {
            start[row + 1] += start[row];
        }
        let mut fill = start.clone();
        let mut entries = any.map_or_else(Vec::new, |any| vec![any; start[rows] as usize]);
        visits(&mut |row, entry| {
            entries[fill[row] as usize] = entry;
            fill[row] += 1;
        });
        Self { start, entries }
    }

    /// Rows of `entries`, of which row `r` is `start[r]..start[r + 1]`. Holds on entry: `start` begins with 0, never falls
    /// and ends with the number of entries.
    pub(crate) fn from_parts(start: Vec<u32>, entries: Vec<T>) -> Self {
        debug_assert_eq!(start.last().map(|&end| end as usize), Some(entries.len()));
        Self { start, entries }
    }

    /// What [`Csr::from_parts`] makes the same rows of.
    pub(crate) fn into_parts(self) -> (Vec<u32>, Vec<T>) {
        (self.start, self.entries)
    }

    /// Keeps the entries for which `keeps` says so of their row and themselves, in their order. O(rows + entries).
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(usize, T) -> bool) {
        let (mut from, mut kept) = (0, 0);
        for row in 0..self.len() {
            let end = self.start[row + 1] as usize;
            for at in from..end {
                let entry = self.entries[at];
                if keeps(row, entry) {
                    self.entries[kept] = entry;
                    kept += 1;
                }
            }
            from = end;
            self.start[row + 1] = kept as u32;
        }
        self.entries.truncate(kept);
    }

    /// Adds an item to the open row, the one after the last.
    pub(crate) fn push(&mut self, item: T) {
        self.entries.push(item);
    }

    /// Makes the open row the last one.
    pub(crate) fn end_row(&mut self) {
        self.start.push(self.entries.len() as u32);
    }

    /// The items of the open row.
    pub(crate) fn open(&self) -> &[T] {
        &self.entries[self.start[self.len()] as usize..]
    }

    /// Drops the items of the open row.
    pub(crate) fn clear_open(&mut self) {
        self.entries.truncate(self.start[self.len()] as usize);
    }

    /// Number of rows.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.start.len() - 1
    }

    /// One row.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &[T] {
        &self.entries[self.range(row)]
    }

    /// Where a row is in the entries.
    #[inline]
    pub(crate) fn range(&self, row: usize) -> Range<usize> {
        self.start[row] as usize..self.start[row + 1] as usize
    }

    /// The entries of all rows, one row after another.
    pub(crate) fn entries(&self) -> &[T] {
        &self.entries
    }

    /// Where each row starts in the entries, and the end of the last one.
    pub(crate) fn starts(&self) -> &[u32] {
        &self.start
    }
}

impl Csr {
    /// Groups `0..of.len()` by value; items with [`u32::MAX`] are left out. Each row ascends.
    pub(crate) fn grouped(of: &[u32], rows: usize) -> Self {
        let items = of.iter().enumerate().filter(|&(_, &row)| row != NONE);
        Self::from_pairs(rows, items.map(|(item, &row)| (row as usize, item as u32)))
    }

    /// For each of `items` the rows that hold it, ascending. O(rows + items + entries).
    pub(crate) fn transposed(&self, items: usize) -> Self {
        let pairs = |row: usize| self.row(row).iter().map(move |&item| (item as usize, row as u32));
        Self::from_pairs(items, (0..self.len()).flat_map(pairs))
    }

    /// How often each of `0..count` stands in the rows.
    pub(crate) fn occurrences(&self, count: usize) -> Vec<u32> {
        let mut times = vec![0u32; count];
        for &entry in &self.entries {
            times[entry as usize] += 1;
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows<T: Copy + std::fmt::Debug>(table: &Csr<T>) -> Vec<Vec<T>> {
        (0..table.len()).map(|row| table.row(row).to_vec()).collect()
    }

    #[test]
    fn rows_keep_the_order_and_the_repeats_of_their_pairs() {
        let pairs = [(2, 'c'), (0, 'a'), (2, 'b'), (0, 'a'), (2, 'a')];
        let table = Csr::from_pairs(4, pairs.into_iter());
        assert_eq!(rows(&table), [vec!['a', 'a'], vec![], vec!['c', 'b', 'a'], vec![]]);
        assert_eq!(table.range(2), 2..5);
        assert_eq!(rows(&Csr::<u32>::from_pairs(2, std::iter::empty())), vec![Vec::<u32>::new(); 2]);
        assert_eq!(Csr::<u32>::default().len(), 0);
    }

    #[test]
    fn what_is_not_kept_leaves_no_hole() {
        let pairs = [(2, 5), (0, 1), (2, 5), (0, 2), (2, 8)];
        let mut table = Csr::from_pairs(4, pairs.into_iter());
        table.retain(|row, entry| row != 0 && entry != 8 || entry == 2);
        assert_eq!(rows(&table), [vec![2], vec![], vec![5, 5], vec![]]);
        assert_eq!(table, Csr::from_parts(vec![0, 1, 1, 3, 3], vec![2, 5, 5]));
    }

    #[test]
    fn transposing_twice_sorts_the_rows() {
        let mut table = Csr::new();
        for row in [&[3, 1][..], &[], &[0, 1, 2]] {
            row.iter().for_each(|&item| table.push(item));
            table.end_row();
        }
        table.push(7);
        assert_eq!(table.open(), [7]);
        table.clear_open();
        let transposed = table.transposed(4);
        assert_eq!(rows(&transposed), [vec![2], vec![0, 2], vec![2], vec![0]]);
        assert_eq!(rows(&transposed.transposed(3)), [vec![1, 3], vec![], vec![0, 1, 2]]);
        assert_eq!(table.occurrences(4), [1, 2, 1, 1]);
    }

    #[test]
    fn what_belongs_to_no_row_is_left_out() {
        assert_eq!(rows(&Csr::grouped(&[1, NONE, 0, 1], 3)), [vec![2], vec![0, 3], vec![]]);
    }
}
