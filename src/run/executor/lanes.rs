//! The executor's core: which step runs next on which device, and who wakes whom.
//!
//! Each device has one worker, who runs the steps of two lanes, each in its order. Counters count
//! down what a step still waits for on other lanes; of the two steps at the heads of its lanes a
//! worker runs the earlier one that is ready, and where none is, sleeps at the device's door until
//! the worker that counts a step down to zero rings.
//!
//! A step sees all that the steps before it wrote: counting down releases, reading a counter
//! acquires. Built with `--cfg loom` the primitives are those of the `loom` model checker, which
//! walks through the interleavings of small plans: `tests/lanes` is a package that holds this file
//! and its rows alone, so that the model checker compiles and runs no more than it has to.

#[cfg(loom)]
use loom::sync::{
    Condvar, Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering},
};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use crate::csr::Csr;

/// What the core knows of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot<'a> {
    /// Position of its device.
    pub(super) device: usize,
    /// Which of the device's two lanes runs it.
    pub(super) lane: usize,
    /// Steps that must be done before; each comes before it.
    pub(super) after: &'a [u32],
}

/// See the module's documentation.
pub(super) struct Lanes {
    /// By device and lane: its steps in order.
    lanes: Vec<[Vec<u32>; 2]>,
    device_of: Vec<u32>,
    /// By step: the steps that wait for it.
    successors: Csr,
    waits_for: Vec<u32>,
    pending: Vec<AtomicU32>,
    doors: Vec<Door>,
    stop: AtomicBool,
}

/// Where a worker sleeps.
struct Door {
    lock: Mutex<()>,
    bell: Condvar,
}

impl Lanes {
    /// The lanes of these steps. Every device is below `devices`, every lane below two.
    pub(super) fn new<'a>(devices: usize, steps: impl ExactSizeIterator<Item = Slot<'a>> + Clone) -> Self {
        let count = steps.len();
        let mut lanes: Vec<[Vec<u32>; 2]> = vec![Default::default(); devices];
        for (index, step) in steps.clone().enumerate() {
            lanes[step.device][step.lane].push(index as u32);
        }
        let waits = steps
            .clone()
            .enumerate()
            .flat_map(|(index, step)| step.after.iter().map(move |&before| (before as usize, index as u32)));
        let successors = Csr::from_pairs(count, waits);
        let waits_for: Vec<u32> = steps.clone().map(|step| step.after.len() as u32).collect();
        Self {
            lanes,
            device_of: steps.map(|step| step.device as u32).collect(),
            successors,
            pending: waits_for.iter().map(|&count| AtomicU32::new(count)).collect(),
            waits_for,
            doors: (0..devices).map(|_| Door { lock: Mutex::new(()), bell: Condvar::new() }).collect(),
            stop: AtomicBool::new(false),
        }
    }

    /// By lane: a device's steps in order.
    pub(super) fn of(&self, device: usize) -> &[Vec<u32>; 2] {
        &self.lanes[device]
    }

    /// The device of a step.
    pub(super) fn device_of(&self, step: usize) -> usize {
        self.device_of[step] as usize
    }

    /// Makes ready for the next run. No worker runs.
    pub(super) fn reset(&self) {
        for (pending, &count) in self.pending.iter().zip(&self.waits_for) {
            pending.store(count, Ordering::Relaxed);
        }
        self.stop.store(false, Ordering::Release);
    }

    /// Lets every worker see that the run has ended.
    pub(super) fn halt(&self) {
        self.stop.store(true, Ordering::Release);
        for door in &self.doors {
            drop(door.lock.lock().unwrap_or_else(PoisonError::into_inner));
            door.bell.notify_all();
        }
    }

    /// One run of one device: calls `run` with each of its steps, as they become ready. Returns
    /// where all are done, or the run has ended.
    ///
    /// Error: that of `run`, at once.
    pub(super) fn work<E>(
        &self,
        device: usize,
        mut run: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = [0usize; 2];
        while let Some(lane) = self.next(device, &done) {
            let step = self.lanes[device][lane][done[lane]] as usize;
            run(step)?;
            done[lane] += 1;
            self.complete(device, step);
        }
        Ok(())
    }

    fn ready(&self, step: u32) -> bool {
        self.pending[step as usize].load(Ordering::Acquire) == 0
    }

    /// The lane whose head runs next; sleeps until there is one. None when both lanes are done, or
    /// the run has ended.
    fn next(&self, device: usize, done: &[usize; 2]) -> Option<usize> {
        let head = |lane: usize| self.lanes[device][lane].get(done[lane]).copied();
        let choose = || {
            let ready = |lane: usize| head(lane).filter(|&step| self.ready(step)).map(|step| (step, lane));
            // The earlier of two ready heads: list order is the order that the plan was timed in.
            ready(0).into_iter().chain(ready(1)).min().map(|(_, lane)| lane)
        };
        if head(0).is_none() && head(1).is_none() || self.stop.load(Ordering::Acquire) {
            return None;
        }
        if let Some(lane) = choose() {
            return Some(lane);
        }
        let door = &self.doors[device];
        let mut guard = door.lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            // Again under the lock: what has become ready since the first look has rung already.
            if let Some(lane) = choose() {
                return Some(lane);
            }
            guard = door.bell.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts down what waits for a step, and wakes the workers that may go on.
    fn complete(&self, device: usize, step: usize) {
        for &next in self.successors.row(step) {
            // Who finds zero acquires; the counts of others before it do not end what they released.
            let last = self.pending[next as usize].fetch_sub(1, Ordering::Release) == 1;
            let other = self.device_of[next as usize] as usize;
            // A worker that is here itself looks at its own lanes next.
            if last && other != device {
                let door = &self.doors[other];
                // Taking the lock orders this after the sleeper's last look.
                drop(door.lock.lock().unwrap_or_else(PoisonError::into_inner));
                door.bell.notify_one();
            }
        }
    }
}
