//! What is known to be done when a step starts: vector clocks over lanes.
//!
//! For each lane a clock holds one more than the last list position known to be done there; a
//! lane's steps complete in list order, so all before it are done too. A launch knows what the one
//! before it on its lane knew; a copy starts by its dependencies alone, but completes after the
//! one before it.
//!
//! At most [`BUDGET`] bytes are spent: past that, lanes with the highest numbers are not tracked,
//! and what happened there counts as unknown unless it is waited for directly. Clocks are kept
//! only of steps that others still wait for. O(steps x lanes tracked).

/// A lane as a number.
pub(crate) type LaneNumber = u32;

/// Bytes for all clocks where every step keeps one.
const BUDGET: usize = 256 << 20;

/// Lanes that are tracked at most, whatever the budget allows.
const MOST_LANES: usize = 256;

/// Clocks, moved on step by step in list order.
pub(crate) struct Clocks {
    width: usize,
    /// By lane: the clock of its last step when done.
    running: Vec<u32>,
    current: Vec<u32>,
    /// Done clocks of steps that are still waited for.
    slots: Vec<u32>,
    vacant: Vec<u32>,
    /// By step: its slot.
    slot: Vec<u32>,
    /// By step: how many are yet to wait for it.
    waiters: Vec<u32>,
    /// (lane, position + 1) known directly.
    direct: Vec<(LaneNumber, u32)>,
}

const NONE: u32 = u32::MAX;

impl Clocks {
    /// Clocks for steps of which each is waited for by so many others, over so many lanes.
    pub(crate) fn new(waiters: Vec<u32>, lanes: usize) -> Self {
        // Four bytes an entry. At least 16 lanes are tracked, however many steps there are.
        let affordable = BUDGET / 4 / waiters.len().max(1);
        let width = lanes.min(affordable.clamp(16, MOST_LANES));
        Self {
            width,
            running: vec![0; lanes * width],
            current: vec![0; width],
            slots: Vec::new(),
            vacant: Vec::new(),
            slot: vec![NONE; waiters.len()],
            waiters,
            direct: Vec::new(),
        }
    }

    /// Begins a launch on a lane: all before it there is done.
    pub(crate) fn begin_launch(&mut self, lane: LaneNumber, position: u32) {
        let start = lane as usize * self.width;
        self.current.copy_from_slice(&self.running[start..start + self.width]);
        self.direct.clear();
        self.learn(lane, position);
    }

    /// Begins a copy.
    pub(crate) fn begin_copy(&mut self) {
        self.current.fill(0);
        self.direct.clear();
    }

    /// Joins all that is known once the step at `position` of `lane` is done, and counts one
    /// waiter off it.
    pub(crate) fn wait(&mut self, lane: LaneNumber, position: u32) {
        let slot = self.slot[position as usize];
        if slot != NONE {
            let start = slot as usize * self.width;
            for (known, other) in self.current.iter_mut().zip(&self.slots[start..start + self.width]) {
                *known = (*known).max(*other);
            }
        }
        self.learn(lane, position + 1);
        self.forget(position);
    }

    /// Counts one waiter off a step without waiting for it.
    pub(crate) fn forget(&mut self, position: u32) {
        let waiters = &mut self.waiters[position as usize];
        *waiters = waiters.saturating_sub(1);
        if *waiters == 0 && self.slot[position as usize] != NONE {
            self.vacant.push(std::mem::replace(&mut self.slot[position as usize], NONE));
        }
    }

    /// Notes that the steps before `until` on a lane are done.
    pub(crate) fn learn(&mut self, lane: LaneNumber, until: u32) {
        match self.current.get_mut(lane as usize) {
            Some(known) => *known = (*known).max(until),
            None => self.direct.push((lane, until)),
        }
    }

    /// True where the step at `position` of `lane` is known to be done.
    pub(crate) fn knows(&self, lane: LaneNumber, position: u32) -> bool {
        match self.current.get(lane as usize) {
            Some(&known) => known > position,
            None => self.direct.iter().any(|&(other, until)| other == lane && until > position),
        }
    }

    /// True where every lane is tracked, so that nothing is forgotten.
    pub(crate) fn tracks_all(&self) -> bool {
        self.width * self.width == self.running.len()
    }

    /// Ends the step that was begun last.
    pub(crate) fn end(&mut self, lane: LaneNumber, position: u32) {
        self.learn(lane, position + 1);
        // It completes after the one before it on its lane, and with all that one knew.
        let start = lane as usize * self.width;
        for (running, known) in self.running[start..start + self.width].iter_mut().zip(&self.current) {
            *running = (*running).max(*known);
        }
        if self.waiters[position as usize] > 0 {
            let done = start..start + self.width;
            let slot = self.vacant.pop().unwrap_or_else(|| {
                self.slots.resize(self.slots.len() + self.width, 0);
                (self.slots.len() / self.width) as u32 - 1
            });
            let at = slot as usize * self.width;
            self.slots[at..at + self.width].copy_from_slice(&self.running[done]);
            self.slot[position as usize] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LaneNumber = 0;
    const A_COPIES: LaneNumber = 1;
    const B: LaneNumber = 2;

    #[test]
    fn what_is_waited_for_brings_what_it_knew() {
        // 0: launch on a, 1: copy to a, which waits for it, 2: launch on b, which waits for the copy.
        let mut clocks = Clocks::new(vec![1, 1, 0, 0], 4);
        clocks.begin_launch(A, 0);
        assert!(!clocks.knows(A, 0));
        clocks.end(A, 0);
        clocks.begin_copy();
        clocks.wait(A, 0);
        clocks.end(A_COPIES, 1);
        clocks.begin_launch(B, 2);
        assert!(!clocks.knows(A, 0));
        clocks.wait(A_COPIES, 1);
        assert!(clocks.knows(A, 0) && clocks.knows(A_COPIES, 1));
        clocks.end(B, 2);
        assert_eq!(clocks.slots.len(), 4, "a clock that nobody waits for is used again");
        clocks.begin_launch(B, 3);
        assert!(clocks.knows(A, 0) && clocks.knows(B, 2) && !clocks.knows(B, 3));
    }

    #[test]
    fn a_copy_starts_without_the_one_before_it_but_ends_after_it() {
        let mut clocks = Clocks::new(vec![0, 1, 0], 4);
        clocks.begin_copy();
        clocks.end(A_COPIES, 0);
        clocks.begin_copy();
        assert!(!clocks.knows(A_COPIES, 0));
        clocks.end(A_COPIES, 1);
        clocks.begin_launch(A, 2);
        clocks.wait(A_COPIES, 1);
        assert!(clocks.knows(A_COPIES, 0));
    }

    #[test]
    fn lanes_that_are_not_tracked_are_known_where_waited_for() {
        let lanes = MOST_LANES + 2;
        let far = MOST_LANES as LaneNumber + 1;
        let mut clocks = Clocks::new(vec![1, 0, 0], lanes);
        clocks.begin_launch(far, 0);
        clocks.end(far, 0);
        clocks.begin_launch(A, 1);
        assert!(!clocks.knows(far, 0));
        clocks.wait(far, 0);
        assert!(clocks.knows(far, 0));
        clocks.end(A, 1);
        clocks.begin_launch(A, 2);
        assert!(!clocks.knows(far, 0), "forgotten, which is safe");
    }
}
