//! Which bytes of the arenas a step writes, so that inputs elsewhere need not be handed over anew.

use super::super::arena::Range;
use super::plan::{ExecPlan, Located, Task};

/// What a step writes: by device, ranges apart from one another, in order.
pub(super) struct WriteSet(Vec<Vec<std::ops::Range<usize>>>);

impl WriteSet {
    /// O(writes log writes).
    pub(super) fn of(plan: &ExecPlan, tasks: &[Task], devices: usize) -> Self {
        let mut all = vec![Vec::new(); devices];
        let end = |range: &Range| range.offset..range.offset + range.length;
        for (step, task) in plan.steps.iter().zip(tasks) {
            let own = &mut all[step.device as usize];
            match task {
                Task::Launch { writes, workspace, .. } => {
                    own.extend(writes.iter().chain([workspace]).map(end));
                }
                Task::Copy { to, .. } => own.push(end(to)),
                Task::Nothing { .. } => {}
            }
        }
        for own in &mut all {
            own.sort_unstable_by_key(|range| range.start);
            own.dedup_by(|next, last| {
                let joins = next.start <= last.end;
                last.end = if joins { last.end.max(next.end) } else { last.end };
                joins
            });
        }
        Self(all)
    }

    /// O(log writes).
    pub(super) fn touches(&self, place: Located) -> bool {
        let (start, end) = (place.range.offset, place.range.offset + place.range.length);
        let own = &self.0[place.device];
        let after = own.partition_point(|range| range.end <= start);
        own.get(after).is_some_and(|range| range.start < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_touched_where_they_share_a_byte() {
        let written = WriteSet(vec![vec![4..8, 16..24], vec![]]);
        let place = |device, offset, length| Located { device, range: Range { offset, length } };
        for (offset, length, touched) in
            [(0, 4, false), (0, 5, true), (7, 1, true), (8, 8, false), (0, 99, true)]
        {
            assert_eq!(written.touches(place(0, offset, length)), touched, "{offset} {length}");
            assert!(!written.touches(place(1, offset, length)));
        }
        assert!(!written.touches(place(0, 30, 2)));
    }
}
