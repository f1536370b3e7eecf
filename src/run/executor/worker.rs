//! The workers: one thread for each device that has steps.
//!
//! Contains `unsafe`: a step runs on its ranges, which nobody else uses meanwhile by the plan's order.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Report, Result};
use crate::schedule::Lane;

use super::super::arena::Arena;
use super::super::cpu::{self, Pool};
use super::super::group::{Bound, Compiled, Scratch, registers};
use super::lanes::{Lanes, Slot};
use super::plan::{ExecPlan, ExecStep, Task};
use super::{DeviceReport, Hook, RunReport};

const IDLE: u32 = u32::MAX;

/// What all workers see.
pub(super) struct Shared {
    pub(super) arenas: Arc<[Arena]>,
    groups: Vec<Compiled>,
    tasks: Vec<Task>,
    /// By device: the threads of its engine, and its worker's number among them.
    pools: Vec<(Arc<Pool>, usize)>,
    registers: usize,
    lanes: Lanes,
    control: Mutex<Control>,
    started: Condvar,
    finished: Condvar,
    current: Vec<AtomicU32>,
    spans: Vec<[AtomicU64; 2]>,
    names: Vec<String>,
    hook: Option<Hook>,
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
        arenas: Arc<[Arena]>,
        groups: Vec<Compiled>,
        tasks: Vec<Task>,
        pools: Vec<(Arc<Pool>, usize)>,
        hook: Option<Hook>,
    ) -> Self {
        Self {
            lanes: Lanes::new(arenas.len(), plan.steps.iter().map(slot)),
            current: arenas.iter().map(|_| AtomicU32::new(IDLE)).collect(),
            names: plan.devices.iter().map(|device| device.name.clone()).collect(),
            spans: plan.steps.iter().map(|_| Default::default()).collect(),
            registers: registers(&groups),
            arenas,
            groups,
            tasks,
            pools,
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
        let devices = names.iter().enumerate().map(|(device, name)| {
            let [compute, copy] = self.lanes.of(device);
            DeviceReport {
                name: name.clone(),
                computing: busy(compute),
                copying: busy(copy),
                steps: compute.len() + copy.len(),
            }
        });
        RunReport { wall, device: None, devices: devices.collect(), steps }
    }

    /// What a step is called in messages.
    fn place(&self, step: usize) -> String {
        let device = &self.names[self.lanes.device_of(step)];
        match &self.tasks[step] {
            Task::Launch { group, .. } | Task::Nothing { group } => {
                format!("step {step} on {device}: node {}", self.groups[*group].name)
            }
            Task::Copy { from, .. } => {
                format!("step {step} on {device}: copy from {}", self.names[from.device])
            }
        }
    }

    /// Records the first failure and ends the run.
    fn fail(&self, error: Error) {
        // The first one: what fails later mostly follows from it.
        lock(&self.control).failure.get_or_insert(error);
        // Workers that wait for steps of the failed one would wait for ever.
        self.lanes.halt();
    }

    fn worker(&self, device: usize) {
        let mut scratch = None;
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
            self.turn(device, start, &mut scratch);
            let mut control = lock(&self.control);
            control.running -= 1;
            if control.running == 0 {
                self.finished.notify_all();
            }
        }
    }

    /// One run of one device, on this thread, whose scratch memory is made once.
    fn turn(&self, device: usize, start: Instant, scratch: &mut Option<Scratch>) {
        // Before the first step, so that none allocates.
        cpu::prepare(self.registers);
        let scratch = scratch.get_or_insert_with(|| Scratch::of(&self.groups));
        // A panic must not end the thread: others count on it to finish its turn.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.work(device, start, scratch)));
        let step = self.current[device].swap(IDLE, Ordering::Relaxed);
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(error.within(&self.place(step as usize))),
            Err(panic) => {
                let message = format!("a kernel panicked: {}", panic_message(&*panic));
                lock(&self.control).broken = true;
                self.fail(Error::run(self.place(step as usize), message));
            }
        }
    }

    /// One run of one device. Leaves the failing step in `current`.
    fn work(&self, device: usize, start: Instant, scratch: &mut Scratch) -> Result<()> {
        self.lanes.work(device, |step| {
            self.current[device].store(step as u32, Ordering::Relaxed);
            if let Some(hook) = &self.hook {
                hook(step);
            }
            self.spans[step][0].store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            self.execute(device, step, scratch)?;
            self.spans[step][1].store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            self.current[device].store(IDLE, Ordering::Relaxed);
            Ok(())
        })
    }

    fn execute(&self, device: usize, step: usize, scratch: &mut Scratch) -> Result<()> {
        let arena = &self.arenas[device];
        match &self.tasks[step] {
            Task::Launch { group, reads, writes, workspace } => {
                let (pool, worker) = &self.pools[device];
                let bound = Bound { team: &pool.team(*worker), arena, reads, writes, workspace: *workspace };
                // SAFETY: the ranges were made from this arena with the group's sizes and checked
                // for overlap. This worker alone runs this device's steps, and a copy to another
                // device that reads these bytes is ordered before or after this step, which the
                // plan's check proved and the counters keep.
                unsafe { self.groups[*group].run(&bound, scratch) }
            }
            Task::Copy { from, to } => {
                // SAFETY: as above; and the source's writers come before this step, the next ones
                // after it. The two do not overlap.
                let (source, target) =
                    unsafe { (self.arenas[from.device].bytes(from.range), arena.bytes_mut(*to)) };
                target.copy_from_slice(source);
                Ok(())
            }
            Task::Nothing { .. } => Ok(()),
        }
    }
}

fn slot(step: &ExecStep) -> Slot<'_> {
    let lane = match step.lane {
        Lane::Compute => 0,
        Lane::Copy => 1,
    };
    Slot { device: step.device as usize, lane, after: &step.after }
}

/// What a panic says.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// The threads of a program. They end when it is dropped.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The only device with steps, and the caller's scratch memory for it: see [`Workers::run`].
    alone: Option<usize>,
    scratch: Option<Scratch>,
    /// A worker did not come back: it is left to itself.
    hung: bool,
}

impl Workers {
    /// Error: the system gives no thread.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let mut workers =
            Self { shared: Arc::clone(shared), threads: Vec::new(), alone: None, scratch: None, hung: false };
        let has_steps = |&device: &usize| shared.lanes.of(device).iter().any(|lane| !lane.is_empty());
        let busy: Vec<usize> = (0..shared.arenas.len()).filter(has_steps).collect();
        if let [device] = busy[..] {
            workers.alone = Some(device);
        }
        for device in busy {
            let name = shared.names[device].clone();
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new()
                .name(name.replace('\0', " "))
                .spawn(move || shared.worker(device))
                // The name goes to the system as a string that ends with a null character.
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

    /// One run of all workers. Where one device alone has steps, and nothing limits their time, the caller
    /// does its work: nobody need be woken.
    pub(super) fn run(
        &mut self,
        shared: &Shared,
        start: Instant,
        timeout: Option<Duration>,
        names: &[String],
    ) -> Result<()> {
        shared.lanes.reset();
        // With a timeout the caller must be free to give up, so a worker does the work.
        if let (Some(device), None) = (self.alone, timeout) {
            lock(&shared.control).failure = None;
            shared.turn(device, start, &mut self.scratch);
            return lock(&shared.control).failure.take().map_or(Ok(()), Err);
        }
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
        shared.lanes.halt();
        Error::Run(report)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.control).shut_down = true;
        self.shared.lanes.halt();
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
