//! Rows of small lists in two flat arrays.

use super::NONE;

/// Rows of small lists in two flat arrays.
#[derive(Clone, Debug, Default)]
pub(in crate::place) struct Rows {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Rows {
    /// Groups `0..of.len()` by value; items with [`NONE`] are left out. Each row ascends.
    pub(in crate::place) fn group(of: &[u32], rows: usize) -> Self {
        let mut start = vec![0u32; rows + 1];
        for &row in of.iter().filter(|&&row| row != NONE) {
            start[row as usize + 1] += 1;
        }
        for row in 0..rows {
            start[row + 1] += start[row];
        }
        let mut fill = start.clone();
        let mut items = vec![0; start[rows] as usize];
        for (item, &row) in of.iter().enumerate().filter(|&(_, &row)| row != NONE) {
            items[fill[row as usize] as usize] = item as u32;
            fill[row as usize] += 1;
        }
        Self { start, items }
    }

    /// An empty table, to push rows onto.
    pub(in crate::place) fn new() -> Self {
        Self { start: vec![0], items: Vec::new() }
    }

    /// Ends the row that [`Rows::push`] was filling.
    pub(in crate::place) fn end_row(&mut self) {
        self.start.push(self.items.len() as u32);
    }

    /// Adds an item to the row being filled.
    pub(in crate::place) fn push(&mut self, item: u32) {
        self.items.push(item);
    }

    /// Items of the row being filled.
    pub(in crate::place) fn open_len(&self) -> usize {
        self.items.len() - self.start[self.start.len() - 1] as usize
    }

    /// Drops the row being filled.
    pub(in crate::place) fn drop_open(&mut self) {
        self.items.truncate(self.start[self.start.len() - 1] as usize);
    }

    /// The items of the row being filled.
    pub(in crate::place) fn open(&self) -> &[u32] {
        &self.items[self.start[self.start.len() - 1] as usize..]
    }

    /// Number of rows.
    pub(in crate::place) fn len(&self) -> usize {
        self.start.len() - 1
    }

    /// One row.
    pub(in crate::place) fn row(&self, row: usize) -> &[u32] {
        &self.items[self.start[row] as usize..self.start[row + 1] as usize]
    }

    /// For each of `items` the rows that hold it, ascending. O(rows + items + entries).
    pub(in crate::place) fn transposed(&self, items: usize) -> Self {
        let mut start = vec![0u32; items + 1];
        self.items.iter().for_each(|&item| start[item as usize + 1] += 1);
        for item in 0..items {
            start[item + 1] += start[item];
        }
        let mut fill = start.clone();
        let mut of_item = vec![0; start[items] as usize];
        for row in 0..self.len() {
            for &item in self.row(row) {
                of_item[fill[item as usize] as usize] = row as u32;
                fill[item as usize] += 1;
            }
        }
        Self { start, items: of_item }
    }
}
