//! The workers: one thread for each device that has steps.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Report, Result};
use crate::schedule::Lane;

use super::super::arena::Arena;
use super::super::cpu::tile::Registers;
use super::super::group::{Bound, Compiled};
use super::plan::{ExecPlan, Task};
use super::{DeviceReport, Hook, RunReport};

const IDLE: u32 = u32::MAX;

/// What all workers see.
pub(super) struct Shared {
    pub(super) arenas: Vec<Arena>,
    groups: Vec<Compiled>,
    tasks: Vec<Task>,
    /// By device and lane: its steps in order.
    lanes: Vec<[Vec<u32>; 2]>,
    device_of: Vec<u32>,
    /// The steps that wait for step `i`: `successors[first_successor[i]..first_successor[i + 1]]`.
    first_successor: Vec<usize>,
    successors: Vec<u32>,
    waits_for: Vec<u32>,
    pending: Vec<AtomicU32>,
    doors: Vec<Door>,
    stop: AtomicBool,
    control: Mutex<Control>,
    started: Condvar,
    finished: Condvar,
    current: Vec<AtomicU32>,
    spans: Vec<[AtomicU64; 2]>,
    names: Vec<String>,
    hook: Option<Hook>,
}

/// Where a worker sleeps.
#[derive(Default)]
struct Door {
    lock: Mutex<()>,
    bell: Condvar,
}

struct Control {
    run: u64,
    start: Instant,
    running: usize,
    failure: Option<Error>,
    broken: bool,
    shut_down: bool,
}

/// A poisoned lock only says that a worker panicked, which is reported by other means.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(
        plan: &ExecPlan,
        arenas: Vec<Arena>,
        groups: Vec<Compiled>,
        tasks: Vec<Task>,
        hook: Option<Hook>,
    ) -> Self {
        let count = plan.steps.len();
        let mut lanes: Vec<[Vec<u32>; 2]> = vec![Default::default(); arenas.len()];
        let mut first_successor = vec![0; count + 1];
        for (index, step) in plan.steps.iter().enumerate() {
            lanes[step.device as usize][lane(step.lane)].push(index as u32);
            step.after.iter().for_each(|&before| first_successor[before as usize + 1] += 1);
        }
        for index in 0..count {
            first_successor[index + 1] += first_successor[index];
        }
        let mut next = first_successor.clone();
        let mut successors = vec![0; first_successor[count]];
        for (index, step) in plan.steps.iter().enumerate() {
            for &before in &step.after {
                successors[next[before as usize]] = index as u32;
                next[before as usize] += 1;
            }
        }
        Self {
            doors: arenas.iter().map(|_| Door::default()).collect(),
            current: arenas.iter().map(|_| AtomicU32::new(IDLE)).collect(),
            names: plan.devices.iter().map(|device| device.name.clone()).collect(),
            device_of: plan.steps.iter().map(|step| step.device).collect(),
            waits_for: plan.steps.iter().map(|step| step.after.len() as u32).collect(),
            pending: plan.steps.iter().map(|_| AtomicU32::new(0)).collect(),
            spans: plan.steps.iter().map(|_| Default::default()).collect(),
            arenas,
            groups,
            tasks,
            lanes,
            first_successor,
            successors,
            stop: AtomicBool::new(false),
            control: Mutex::new(Control {
                run: 0,
                start: Instant::now(),
                running: 0,
                failure: None,
                broken: false,
                shut_down: false,
            }),
            started: Condvar::new(),
            finished: Condvar::new(),
            hook,
        }
    }

    /// The last run's report. No worker runs.
    pub(super) fn report(&self, wall: Duration, names: &[String]) -> RunReport {
        let at = |time: &AtomicU64| Duration::from_nanos(time.load(Ordering::Relaxed));
        let steps: Vec<(Duration, Duration)> =
            self.spans.iter().map(|[start, end]| (at(start), at(end))).collect();
        let busy = |lane: &[u32]| -> Duration {
            lane.iter().map(|&step| steps[step as usize]).map(|(start, end)| end.saturating_sub(start)).sum()
        };
        let devices = self.lanes.iter().zip(names).map(|([compute, copy], name)| DeviceReport {
            name: name.clone(),
            computing: busy(compute),
            copying: busy(copy),
            steps: compute.len() + copy.len(),
        });
        RunReport { wall, devices: devices.collect(), steps }
    }

    /// What a step is called in messages.
    fn place(&self, step: usize) -> String {
        let device = &self.names[self.device_of[step] as usize];
        match &self.tasks[step] {
            Task::Launch { group, .. } => {
                format!("step {step} on {device}: node {}", self.groups[*group].name)
            }
            Task::Copy { from, .. } => {
                format!("step {step} on {device}: copy from {}", self.names[from.device])
            }
        }
    }

    fn ready(&self, step: u32) -> bool {
        self.pending[step as usize].load(Ordering::Acquire) == 0
    }

    /// Lets every worker see that the run has ended.
    fn halt(&self) {
        self.stop.store(true, Ordering::Release);
        for door in &self.doors {
            drop(lock(&door.lock));
            door.bell.notify_all();
        }
    }

    /// Records the first failure and ends the run.
    fn fail(&self, error: Error, broken: bool) {
        let mut control = lock(&self.control);
        control.failure.get_or_insert(error);
        control.broken |= broken;
        drop(control);
        self.halt();
    }

    fn worker(&self, device: usize) {
        let mut registers = Registers::default();
        registers.reserve(self.groups.iter().map(|group| group.registers).max().unwrap_or(0));
        let mut seen = 0;
        loop {
            let start = {
                let mut control = lock(&self.control);
                while control.run == seen && !control.shut_down {
                    control = self.started.wait(control).unwrap_or_else(PoisonError::into_inner);
                }
                if control.shut_down {
                    return;
                }
                seen = control.run;
                control.start
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| self.work(device, start, &mut registers)));
            let step = self.current[device].swap(IDLE, Ordering::Relaxed);
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.fail(error.within(&self.place(step as usize)), false),
                Err(panic) => {
                    let message = format!("a kernel panicked: {}", panic_message(&*panic));
                    self.fail(Error::run(self.place(step as usize), message), true);
                }
            }
            let mut control = lock(&self.control);
            control.running -= 1;
            if control.running == 0 {
                self.finished.notify_all();
            }
        }
    }

    /// One run of one device. Leaves the failing step in `current`.
    fn work(&self, device: usize, start: Instant, registers: &mut Registers) -> Result<()> {
        let lanes = &self.lanes[device];
        let mut done = [0usize; 2];
        while let Some(lane) = self.next(device, &done) {
            let step = lanes[lane][done[lane]] as usize;
            self.current[device].store(step as u32, Ordering::Relaxed);
            if let Some(hook) = &self.hook {
                hook(step);
            }
            self.spans[step][0].store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            self.execute(device, step, registers)?;
            self.spans[step][1].store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            done[lane] += 1;
            self.complete(device, step);
            self.current[device].store(IDLE, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The lane whose head runs next; sleeps until there is one. None when both lanes are done, or
    /// the run has ended.
    fn next(&self, device: usize, done: &[usize; 2]) -> Option<usize> {
        let head = |lane: usize| self.lanes[device][lane].get(done[lane]).copied();
        let choose = || {
            let ready = |lane: usize| head(lane).filter(|&step| self.ready(step)).map(|step| (step, lane));
            ready(0).into_iter().chain(ready(1)).min().map(|(_, lane)| lane)
        };
        if head(0).is_none() && head(1).is_none() || self.stop.load(Ordering::Acquire) {
            return None;
        }
        if let Some(lane) = choose() {
            return Some(lane);
        }
        let door = &self.doors[device];
        let mut guard = lock(&door.lock);
        loop {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            if let Some(lane) = choose() {
                return Some(lane);
            }
            guard = door.bell.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn execute(&self, device: usize, step: usize, registers: &mut Registers) -> Result<()> {
        let arena = &self.arenas[device];
        match &self.tasks[step] {
            Task::Launch { group, reads, writes, workspace } => {
                let bound = Bound { arena, reads, writes, workspace: *workspace };
                // SAFETY: the ranges were made from this arena with the group's sizes and checked
                // for overlap. This worker alone runs this device's steps, and a copy to another
                // device that reads these bytes is ordered before or after this step, which the
                // plan's check proved and the counters keep.
                unsafe { self.groups[*group].run(&bound, registers) }
            }
            Task::Copy { from, to } => {
                // SAFETY: as above; and the source's writers come before this step, the next ones
                // after it. The two do not overlap.
                let (source, target) =
                    unsafe { (self.arenas[from.device].bytes(from.range), arena.bytes_mut(*to)) };
                target.copy_from_slice(source);
                Ok(())
            }
        }
    }

    /// Counts down what waits for a step, and wakes the workers that may go on.
    fn complete(&self, device: usize, step: usize) {
        for &next in &self.successors[self.first_successor[step]..self.first_successor[step + 1]] {
            let last = self.pending[next as usize].fetch_sub(1, Ordering::AcqRel) == 1;
            let other = self.device_of[next as usize] as usize;
            if last && other != device {
                // Taking the lock orders this after the sleeper's last look.
                drop(lock(&self.doors[other].lock));
                self.doors[other].bell.notify_one();
            }
        }
    }
}

fn lane(lane: Lane) -> usize {
    match lane {
        Lane::Compute => 0,
        Lane::Copy => 1,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The threads of a program. They end when it is dropped.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// A worker did not come back: it is left to itself.
    hung: bool,
}

impl Workers {
    /// Error: the system gives no thread.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let mut workers = Self { shared: Arc::clone(shared), threads: Vec::new(), hung: false };
        for (device, lanes) in shared.lanes.iter().enumerate() {
            if lanes.iter().all(Vec::is_empty) {
                continue;
            }
            let name = shared.names[device].clone();
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new()
                .name(name.replace('\0', " "))
                .spawn(move || shared.worker(device))
                .map_err(|error| {
                    Error::run(format!("device {name}"), format!("no worker thread: {error}"))
                })?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Error: an earlier run left a worker behind.
    pub(super) fn usable(&self) -> Result<()> {
        match self.hung || lock(&self.shared.control).broken {
            true => Err(Error::run("", "an earlier run did not end; this program cannot run again")),
            false => Ok(()),
        }
    }

    /// One run of all workers.
    pub(super) fn run(
        &mut self,
        shared: &Shared,
        start: Instant,
        timeout: Option<Duration>,
        names: &[String],
    ) -> Result<()> {
        for (pending, &count) in shared.pending.iter().zip(&shared.waits_for) {
            pending.store(count, Ordering::Relaxed);
        }
        shared.stop.store(false, Ordering::Release);
        let mut control = lock(&shared.control);
        (control.run, control.start, control.running) = (control.run + 1, start, self.threads.len());
        control.failure = None;
        shared.started.notify_all();
        while control.running > 0 {
            let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
            control = match left {
                None => shared.finished.wait(control).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    drop(control);
                    return Err(self.give_up(shared, timeout.unwrap_or_default(), names));
                }
                Some(left) => {
                    shared.finished.wait_timeout(control, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        control.failure.take().map_or(Ok(()), Err)
    }

    /// Ends a run that takes too long; says what runs where.
    fn give_up(&mut self, shared: &Shared, timeout: Duration, names: &[String]) -> Error {
        let details =
            shared.current.iter().zip(names).map(|(current, name)| match current.load(Ordering::Relaxed) {
                IDLE => format!("{name}: idle"),
                step => shared.place(step as usize),
            });
        let report = Report::new("", format!("the run took longer than {timeout:?}"))
            .help("--timeout gives it longer")
            .details(details.collect());
        self.hung = true;
        shared.halt();
        Error::Run(report)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.control).shut_down = true;
        self.shared.halt();
        self.shared.started.notify_all();
        if self.hung {
            // A hung worker keeps what it uses alive, and ends when it comes back.
            return;
        }
        for thread in self.threads.drain(..) {
            // A worker catches panics of kernels; there is nothing to report here.
            let _ = thread.join();
        }
    }
}
