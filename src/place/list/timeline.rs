//! When an engine is free: after its last job, and in the gaps between jobs.

/// Gaps that an engine remembers at most, the latest; so that a search takes bounded time.
const REMEMBERED: usize = 1024;

/// The free time of one engine.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    /// Ascending and apart.
    gaps: Vec<(u64, u64)>,
    free: u64,
}

impl Timeline {
    /// The end of the last job.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// The earliest start, from `ready` on, of a job that takes `time`.
    pub(super) fn earliest(&self, ready: u64, time: u64) -> u64 {
        if ready >= self.free {
            return ready;
        }
        let first = self.gaps.partition_point(|&(_, end)| end < ready.saturating_add(time));
        let fits = |&&(start, end): &&(u64, u64)| start.max(ready).saturating_add(time) <= end;
        let gap = self.gaps[first..].iter().find(fits);
        gap.map_or(self.free, |&(start, _)| start.max(ready))
    }

    /// Takes the time from `start` to `end`, which is free.
    pub(super) fn take(&mut self, start: u64, end: u64) {
        if start >= self.free {
            if start > self.free {
                self.gaps.push((self.free, start));
                if self.gaps.len() > REMEMBERED {
                    self.gaps.drain(..REMEMBERED / 2);
                }
            }
            self.free = end;
            return;
        }
        let at = self.gaps.partition_point(|gap| gap.1 < end);
        let Some(&(from, to)) = self.gaps.get(at) else { return };
        match (from < start, end < to) {
            (true, true) => {
                self.gaps[at] = (from, start);
                self.gaps.insert(at + 1, (end, to));
            }
            (true, false) => self.gaps[at] = (from, start),
            (false, true) => self.gaps[at] = (end, to),
            (false, false) => {
                self.gaps.remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Timeline;

    #[test]
    fn a_job_goes_into_the_first_gap_that_holds_it() {
        let mut timeline = Timeline::default();
        timeline.take(0, 10);
        timeline.take(30, 40);
        timeline.take(100, 110);
        assert_eq!(timeline.free(), 110);
        assert_eq!(timeline.earliest(0, 20), 10);
        assert_eq!(timeline.earliest(15, 20), 40);
        assert_eq!(timeline.earliest(95, 10), 110);
        timeline.take(12, 20);
        assert_eq!(timeline.earliest(0, 2), 10);
        assert_eq!(timeline.earliest(0, 3), 20);
    }
}
