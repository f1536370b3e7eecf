//! Lists of numbers, one list for each position, in two flat arrays.

/// Compressed rows. 4 bytes a row and 4 bytes an entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Csr {
    start: Vec<u32>,
    entries: Vec<u32>,
}

impl Csr {
    /// Rows `0..rows` from (row, entry) pairs, which `pairs` must give twice in the same order;
    /// each row keeps their order. O(rows + pairs).
    pub(super) fn new(rows: usize, pairs: impl Fn(&mut dyn FnMut(u32, u32))) -> Self {
        let mut start = vec![0u32; rows + 1];
        pairs(&mut |row, _| start[row as usize + 1] += 1);
        for row in 0..rows {
            start[row + 1] += start[row];
        }
        let mut entries = vec![0u32; start[rows] as usize];
        let mut fill = start.clone();
        pairs(&mut |row, entry| {
            let slot = &mut fill[row as usize];
            entries[*slot as usize] = entry;
            *slot += 1;
        });
        Self { start, entries }
    }

    /// One row.
    pub(super) fn row(&self, row: u32) -> &[u32] {
        &self.entries[self.start[row as usize] as usize..self.start[row as usize + 1] as usize]
    }

    /// How often each of `0..count` stands in the rows.
    pub(super) fn occurrences(&self, count: usize) -> Vec<u32> {
        let mut times = vec![0u32; count];
        for &entry in &self.entries {
            times[entry as usize] += 1;
        }
        times
    }
}
