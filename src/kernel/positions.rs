//! Where values are in a list, without looking through it for each.

use crate::ir::ValueId;

/// Values and where each stands first in a list; lookups by binary search.
#[derive(Clone, Debug, Default)]
pub(crate) struct Positions(Vec<(ValueId, u32)>);

impl Positions {
    /// Of a list's values. O(n log n).
    pub(crate) fn of(values: &[ValueId]) -> Self {
        let mut sorted: Vec<(ValueId, u32)> =
            values.iter().enumerate().map(|(position, &value)| (value, position as u32)).collect();
        sorted.sort_unstable();
        sorted.dedup_by_key(|(value, _)| *value);
        Self(sorted)
    }

    /// Where a value stands first. O(log n).
    pub(crate) fn get(&self, value: ValueId) -> Option<usize> {
        let found = self.0.binary_search_by_key(&value, |(value, _)| *value).ok()?;
        Some(self.0[found].1 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_values_is_found() {
        let positions = Positions::of(&[ValueId(7), ValueId(3), ValueId(7), ValueId(0)]);
        let found = [0, 3, 7, 8].map(|value| positions.get(ValueId(value)));
        assert_eq!(found, [Some(3), Some(1), Some(0), None]);
    }
}
