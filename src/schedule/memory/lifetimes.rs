//! When each buffer may be alive, as its device sees it: between which of the device's launches.
//!
//! The launches of one device follow one another, whatever the timing. A buffer is possibly alive
//! while launch `k` runs unless all its uses are over before `k` begins, or its first write waits
//! for `k`; so it is between two launches. That makes an interval of each buffer, and two buffers
//! whose intervals are apart may share bytes. Coordinates: launch `k` stands at `2k + 1`, what
//! lies between it and the next at `2k + 2`.

use std::collections::VecDeque;

use crate::schedule::clocks::{Clocks, LaneNumber};
use crate::schedule::{Action, Buffer, BufferKind, Lane, Step};

/// Where a buffer is alive until the step ends.
pub(crate) const FOREVER: u32 = u32::MAX;

/// One buffer's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// The first coordinate at which it may be alive.
    pub(crate) first: u32,
    /// The first launch of its device that surely comes after its first write, or does it.
    pub(crate) written: u32,
    /// The last launch of its device that uses it; 0 where none does.
    pub(crate) used: u32,
    /// The last coordinate at which it may be alive.
    pub(crate) last: u32,
}

impl Life {
    /// Of a buffer that nothing has used so far.
    pub(crate) const NONE: Self = Self { first: FOREVER, written: FOREVER, used: 0, last: 0 };
}

/// The lives of all buffers that are made in the step.
#[derive(Debug)]
pub(crate) struct Lives {
    /// By buffer.
    pub(crate) of: Vec<Life>,
    /// By device: its launches.
    pub(crate) launches: Vec<u32>,
    /// True where nothing that `after` implies was missed, so that no life is too long.
    pub(crate) exact: bool,
}

/// Finds the lives. `touched` visits the buffers that a step uses, and tells whether it writes them.
/// O((steps + dependencies) x lanes + uses log steps).
pub(crate) fn lives(
    steps: &[Step],
    buffers: &[Buffer],
    devices: usize,
    touched: impl Fn(&Step, &mut dyn FnMut(u32, bool)),
) -> Lives {
    let mut waiters = vec![0u32; steps.len()];
    steps.iter().flat_map(|step| &step.after).for_each(|other| waiters[other.index()] += 1);
    let mut sweep = Sweep {
        clocks: Clocks::new(waiters, devices * 2),
        buffers,
        of: vec![Life::NONE; buffers.len()],
        writer: vec![FOREVER; buffers.len()],
        launches: vec![Vec::new(); devices],
        pending: vec![Vec::new(); devices],
    };
    for (position, step) in steps.iter().enumerate() {
        sweep.step(steps, position as u32, step, &touched);
    }
    sweep.finish()
}

/// A lane as the clocks number it.
pub(crate) fn lane(step: &Step) -> LaneNumber {
    step.device.0 * 2 + LaneNumber::from(step.lane == Lane::Copy)
}

/// Uses of a device's buffers by copies of one lane that none of its launches knows to be over;
/// (list position, buffer), ascending.
type Pending = (LaneNumber, VecDeque<(u32, u32)>);

struct Sweep<'a> {
    clocks: Clocks,
    buffers: &'a [Buffer],
    of: Vec<Life>,
    /// By buffer: the list position of the step that writes it first.
    writer: Vec<u32>,
    /// By device: list positions of its launches.
    launches: Vec<Vec<u32>>,
    /// By device.
    pending: Vec<Vec<Pending>>,
}

impl Sweep<'_> {
    fn step(
        &mut self,
        steps: &[Step],
        position: u32,
        step: &Step,
        touched: &impl Fn(&Step, &mut dyn FnMut(u32, bool)),
    ) {
        let own = lane(step);
        match step.action {
            Action::Launch(_) => self.clocks.begin_launch(own, position),
            Action::Copy { .. } => self.clocks.begin_copy(),
        }
        for other in &step.after {
            self.clocks.wait(lane(&steps[other.index()]), other.0);
        }
        match step.action {
            Action::Launch(_) => {
                let device = step.device.index();
                let at = at_launch(self.launches[device].len());
                // Before its own uses: what the launch knows to be over was over before it began.
                self.learn(device, at);
                touched(step, &mut |buffer, writes| self.launch_uses(buffer, writes, position, at));
                self.launches[device].push(position);
            }
            Action::Copy { .. } => {
                touched(step, &mut |buffer, writes| self.copy_uses(buffer, writes, position, own));
            }
        }
        self.clocks.end(own, position);
    }

    /// Notes which copies are over before the launch that was begun last, at `at`.
    fn learn(&mut self, device: usize, at: u32) {
        let Self { clocks, of, writer, pending, .. } = self;
        for (lane, queue) in &mut pending[device] {
            while let Some(&(position, buffer)) = queue.front()
                && clocks.knows(*lane, position)
            {
                queue.pop_front();
                let life = &mut of[buffer as usize];
                life.last = life.last.max(at - 1);
                if writer[buffer as usize] == position {
                    life.written = life.written.min(at);
                }
            }
        }
    }

    fn launch_uses(&mut self, buffer: u32, writes: bool, position: u32, at: u32) {
        let life = &mut self.of[buffer as usize];
        if writes && self.writer[buffer as usize] == FOREVER {
            self.writer[buffer as usize] = position;
            (life.first, life.written) = (at, at);
        }
        life.used = at;
        life.last = life.last.max(at);
    }

    fn copy_uses(&mut self, buffer: u32, writes: bool, position: u32, own: LaneNumber) {
        let home = self.buffers[buffer as usize].device;
        if writes {
            if self.writer[buffer as usize] == FOREVER {
                self.writer[buffer as usize] = position;
            }
            // A part that comes later in the list may start before the first one.
            let launches = &self.launches[home.index()];
            let known = launches.partition_point(|&launch| self.clocks.knows(home.0 * 2, launch));
            let life = &mut self.of[buffer as usize];
            life.first = life.first.min(between(known));
        }
        let pending = &mut self.pending[home.index()];
        match pending.iter_mut().find(|(lane, _)| *lane == own) {
            Some((_, queue)) => queue.push_back((position, buffer)),
            None => pending.push((own, VecDeque::from([(position, buffer)]))),
        }
    }

    fn finish(mut self) -> Lives {
        for (_, queue) in self.pending.iter().flatten() {
            // No launch of the device ever learns that these uses are over.
            for &(_, buffer) in queue {
                self.of[buffer as usize].last = FOREVER;
            }
        }
        for (life, buffer) in self.of.iter_mut().zip(self.buffers) {
            if buffer.kind == BufferKind::Output {
                life.last = FOREVER;
            }
        }
        Lives {
            of: self.of,
            launches: self.launches.iter().map(|launches| launches.len() as u32).collect(),
            exact: self.clocks.tracks_all(),
        }
    }
}

/// The coordinate of launch `k`.
fn at_launch(k: usize) -> u32 {
    u32::try_from(2 * k + 1).unwrap_or(FOREVER - 1)
}

/// The coordinate of what is between launch `k - 1` and launch `k`.
fn between(k: usize) -> u32 {
    u32::try_from(2 * k).unwrap_or(FOREVER - 1)
}
