//! Executes a plan on virtual devices of the CPU.
//!
//! Each device has one worker thread and one arena of exactly the planned bytes; where one device alone
//! has steps, and no time limit, the caller's thread does the worker's part. A worker runs
//! its compute lane and its copy lane: of the two steps at their heads, whichever has seen all
//! that it waits for, the earlier one first. Counters count down what a step waits for; a worker
//! without a ready step sleeps until another one wakes it.
//!
//! A [`Program`] trusts that the plan passed `plan::check`: that every pair of steps that touch
//! the same bytes, one of them writing, is ordered by `after` and the lanes. All else (bounds,
//! sizes, indices, what one step may overlap) it checks itself.
//!
//! Contains `unsafe`: what goes into and out of arenas while no worker runs.

mod batch;
mod lanes;
pub(super) mod plan;
pub(super) mod ports;
mod worker;
mod write_set;

#[cfg(all(feature = "cli", feature = "tokenizer"))]
pub(crate) use worker::panic_message;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::ir::{Graph, Op, Tensor, ValueId};
use crate::kernel::Fused;
use crate::units::Bytes;

use super::arena::Arena;
use super::cpu::{self, Pool};
use super::group::{Compiled, registers};
use super::held::{self, Held};
use super::interpret::Weights;
use super::packing::{Form, Packing};
use super::probe;

pub use plan::{Batch, ExecAction, ExecBuffer, ExecDevice, ExecPlan, ExecStep};
use plan::{Checker, Located};
use ports::{Ports, load};
use worker::{Shared, Workers};
use write_set::WriteSet;

/// Called by a device's worker before each step with the step's position. For tests and tracing.
pub type Hook = Box<dyn Fn(usize) + Send + Sync>;

/// How a program runs.
#[derive(Default)]
pub struct ExecOptions {
    /// Ends a run that takes longer.
    pub timeout: Option<Duration>,
    /// Called before each step.
    pub before_step: Option<Hook>,
    /// Those of other programs that run at the same time: they leave one another their cores.
    pub engines: Engines,
    /// Parameters whose elements are not to be put in another order, by name.
    pub plain: BTreeSet<String>,
}

/// Physical devices on which several programs may run at once.
#[derive(Clone, Debug, Default)]
pub struct Engines(Arc<Mutex<BTreeMap<u32, Arc<AtomicUsize>>>>);

impl Engines {
    /// Threads that work on a device, of all programs.
    fn busy(&self, engine: u32) -> Arc<AtomicUsize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(engine).or_default())
    }
}

/// What a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunReport {
    /// From the first step's start to the last one's end, as the caller saw it.
    pub wall: Duration,
    /// Likewise by the clocks of the GPUs that ran it; none without one.
    pub device: Option<Duration>,
    /// By device.
    pub devices: Vec<DeviceReport>,
    /// By step: when it started and ended, counted from the start of the run.
    pub steps: Vec<(Duration, Duration)>,
}

/// What a device did in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// Time in kernels.
    pub computing: Duration,
    /// Time in copies that it received.
    pub copying: Duration,
    /// Number of steps.
    pub steps: usize,
}

impl RunReport {
    /// The share of the run in which a device's worker was busy, from 0 to 1.
    pub fn utilisation(&self, device: usize) -> f64 {
        let Some(report) = self.devices.get(device) else { return 0.0 };
        let wall = self.wall.as_secs_f64();
        if wall > 0.0 { ((report.computing + report.copying).as_secs_f64() / wall).min(1.0) } else { 0.0 }
    }
}

/// A plan that is ready to run: arenas allocated, parameters and constants loaded, workers
/// waiting.
pub struct Program {
    shared: Arc<Shared>,
    workers: Workers,
    ports: Ports,
    /// What is copied after each step.
    updates: Vec<(Located, Located)>,
    written: WriteSet,
    /// Each parameter with its form.
    params: Vec<(Held<Vec<Located>>, Form)>,
    /// By name: its place among them. Looked up, never iterated.
    numbers: HashMap<String, usize>,
    /// Constants and their places.
    constants: Vec<(ValueId, Vec<Located>)>,
    names: Vec<String>,
    timeout: Option<Duration>,
}

/// What is put into arenas before the first step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loaded {
    All,
    /// The parameters are there already.
    Constants,
}

/// What a program runs.
#[derive(Clone, Copy)]
struct GroupedPlan<'a> {
    graph: &'a Graph,
    groups: &'a [Fused<'a>],
    plan: &'a ExecPlan,
}

impl Program {
    /// Allocates, loads and starts. `groups` are the graph's, in the order that
    /// [`ExecAction::Launch`] counts them in; `weights` gives each parameter's data once.
    ///
    /// Errors: a plan that does not fit the graph or contradicts itself; parameters without data,
    /// all of them in the details; memory that the system does not give.
    pub fn new(
        graph: &Graph,
        groups: &[Fused<'_>],
        plan: &ExecPlan,
        weights: Weights<'_>,
        options: ExecOptions,
    ) -> Result<Self> {
        let arenas = allocated(plan)?;
        Self::on(arenas, Loaded::All, GroupedPlan { graph, groups, plan }, weights, options)
    }

    /// As [`Program::new`], on the arenas of a program that holds the same parameters at the same places: they
    /// and the states are those of both. Only one of the two may run at a time, and what the other one has of
    /// constants and inputs is overwritten by it ([`Program::load_constants`]).
    pub(in crate::run) fn beside(
        &self,
        graph: &Graph,
        groups: &[Fused<'_>],
        plan: &ExecPlan,
        options: ExecOptions,
    ) -> Result<Self> {
        let none = |_| Err(Error::Internal("a parameter is loaded twice".to_owned()));
        let arenas = Arc::clone(&self.shared.arenas);
        Self::on(arenas, Loaded::Constants, GroupedPlan { graph, groups, plan }, &none, options)
    }

    fn on(
        arenas: Arc<[Arena]>,
        loaded: Loaded,
        GroupedPlan { graph, groups, plan }: GroupedPlan<'_>,
        weights: Weights<'_>,
        options: ExecOptions,
    ) -> Result<Self> {
        let packing = Packing::of(graph).without(graph, &options.plain);
        let compiled: Vec<Compiled> =
            groups.iter().map(|group| Compiled::new(graph, group, &packing)).collect::<Result<_>>()?;
        let checker = Checker { plan, graph, groups: &compiled };
        let buffers = checker.buffers()?;
        let tasks = checker.tasks(&buffers)?;
        let ports = Ports::new(graph, plan, &checker, &buffers)?;
        let data = checker.data(&buffers)?;
        let is_loaded =
            |(value, _): &&(ValueId, Vec<Located>)| loaded == Loaded::All || is_constant(graph, *value);
        let loaded: Vec<(ValueId, Vec<Located>)> = data.iter().filter(is_loaded).cloned().collect();
        load(graph, &loaded, weights, &mut |value, tensor, place| {
            // SAFETY: no worker runs yet, so nobody else uses the arena.
            packing.form(value).write(tensor, unsafe { arenas[place.device].bytes_mut(place.range) })
        })?;
        let updates = checker.updates(&buffers)?;
        let written = WriteSet::of(plan, &tasks, arenas.len());
        let pools = pools(plan, &compiled, &options.engines)?;
        let shared = Arc::new(Shared::new(plan, arenas, compiled, tasks, pools, options.before_step));
        let workers = Workers::start(&shared)?;
        let constants = data.iter().filter(|(value, _)| is_constant(graph, *value)).cloned().collect();
        let params = parameters(graph, &packing, data);
        Ok(Self {
            shared,
            workers,
            ports,
            updates,
            written,
            constants,
            numbers: held::numbers(params.iter().map(|(param, _)| param.name.as_str())),
            params,
            names: plan.devices.iter().map(|device| device.name.clone()).collect(),
            timeout: options.timeout,
        })
    }

    /// Puts the constants where they lie, after a program on the same arenas has run.
    ///
    /// Errors: none but internal ones.
    pub(in crate::run) fn load_constants(&mut self, graph: &Graph) -> Result<()> {
        self.workers.usable()?;
        let none = |_| Err(Error::Internal("a constant is a parameter".to_owned()));
        load(graph, &self.constants, &none, &mut |_, tensor, place| {
            write(&self.shared.arenas, place, tensor.bytes());
            Ok(())
        })
    }

    /// Runs one step: hands over the inputs, works through the plan, takes the outputs out.
    ///
    /// Errors: those of [`Program::feed`] and [`Program::step`].
    pub fn run(&mut self, inputs: &[(String, Tensor)]) -> Result<(Vec<(String, Tensor)>, RunReport)> {
        self.feed(inputs)?;
        let wall = self.step()?;
        Ok((self.outputs()?, self.report(wall)))
    }

    /// Hands over the inputs of the steps that follow.
    ///
    /// Errors: an input that is missing, unknown or of another type; an earlier run that did not
    /// end.
    pub fn feed(&mut self, inputs: &[(String, Tensor)]) -> Result<()> {
        self.workers.usable()?;
        self.ports.feed(inputs, &mut |place, bytes| {
            write(&self.shared.arenas, place, bytes);
            Ok(())
        })
    }

    /// Hands over the same inputs for another step: those alone whose bytes the last step wrote over.
    ///
    /// Errors: those of [`Program::feed`].
    pub fn feed_again(&mut self, inputs: &[(String, Tensor)]) -> Result<()> {
        self.workers.usable()?;
        self.ports.feed(inputs, &mut |place, bytes| {
            if self.written.touches(place) {
                write(&self.shared.arenas, place, bytes);
            }
            Ok(())
        })
    }

    /// Works through the plan once, on the inputs handed over last; how long it took. Where the
    /// plan gives an input's bytes to something else, they are to be handed over anew each time
    /// ([`Program::feed_again`]).
    /// After the first step it allocates nothing.
    ///
    /// Errors: a step that fails, with its place; a run that takes too long, naming what ran
    /// where. After the last one, or a panic in a kernel, every further run is an error.
    pub fn step(&mut self) -> Result<Duration> {
        self.workers.usable()?;
        let start = Instant::now();
        self.workers.run(&self.shared, start, self.timeout, &self.names)?;
        for &(from, to) in &self.updates {
            // SAFETY: no worker runs, so nobody else uses the arenas; the two are buffers apart.
            let bytes = unsafe { self.shared.arenas[from.device].bytes(from.range) };
            write(&self.shared.arenas, to, bytes);
        }
        Ok(start.elapsed())
    }

    /// A parameter as it is now, by its name; none where the plan holds none of that name.
    ///
    /// Errors: none but internal ones.
    pub fn param(&self, name: &str) -> Result<Option<Tensor>> {
        let Some((param, form)) = self.numbers.get(name).map(|&at| &self.params[at]) else {
            return Ok(None);
        };
        let Some(&place) = param.places.first() else { return Ok(None) };
        // SAFETY: no worker runs, so nobody writes.
        let bytes = unsafe { self.shared.arenas[place.device].bytes(place.range) };
        param.supplied(form.read(&param.ty, bytes)?).map(Some)
    }

    /// Names of the parameters that the plan holds, in the order of the graph.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.params.iter().map(|(param, _)| param.name.as_str())
    }

    /// Puts a parameter's value wherever the plan holds it, for the steps that follow.
    ///
    /// Errors: no such parameter; a value of another type; an earlier run that did not end.
    pub fn set_param(&mut self, name: &str, value: &Tensor) -> Result<()> {
        self.workers.usable()?;
        let found = self.numbers.get(name).map(|&at| &self.params[at]);
        let (param, form) = found.ok_or_else(|| held::missing(name))?;
        let value = param.laid(value)?;
        for &at in &param.places {
            // SAFETY: no worker runs, and the program is borrowed exclusively.
            form.write(&value, unsafe { self.shared.arenas[at.device].bytes_mut(at.range) })?;
        }
        Ok(())
    }

    /// The outputs of the last step, but for those that take a parameter's place: see
    /// [`Program::param`].
    ///
    /// Errors: none but internal ones.
    pub fn outputs(&self) -> Result<Vec<(String, Tensor)>> {
        self.ports.outputs(&mut |place| {
            // SAFETY: no worker runs, so nobody writes.
            Ok(Cow::Borrowed(unsafe { self.shared.arenas[place.device].bytes(place.range) }))
        })
    }

    /// What the last step did; `wall` is how long it took.
    pub fn report(&self, wall: Duration) -> RunReport {
        self.shared.report(wall, &self.names)
    }
}

/// Arenas of exactly the planned size. Error: memory that the system does not give.
fn allocated(plan: &ExecPlan) -> Result<Arc<[Arena]>> {
    within_memory(plan)?;
    let allocate = |device: &ExecDevice| {
        Arena::new(device.arena.get()).map_err(|error| error.within(&format!("device {}", device.name)))
    };
    plan.devices.iter().map(allocate).collect()
}

fn is_constant(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.maker(value).op, Op::Constant(_))
}

/// The parameters among the data, with their forms.
fn parameters(
    graph: &Graph,
    packing: &Packing,
    data: Vec<(ValueId, Vec<Located>)>,
) -> Vec<(Held<Vec<Located>>, Form)> {
    let held = |(value, places)| Some((Held::new(graph, value, places)?, packing.form(value)));
    data.into_iter().filter_map(held).collect()
}

/// The threads of each engine. Error: the system gives none.
fn pools(plan: &ExecPlan, groups: &[Compiled], shared: &Engines) -> Result<Vec<(Arc<Pool>, usize)>> {
    let registers = registers(groups);
    let mut engines: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (number, device) in plan.devices.iter().enumerate() {
        engines.entry(device.engine).or_default().push(number);
    }
    let mut pools = vec![None; plan.devices.len()];
    for (engine, devices) in engines {
        let cores = devices.iter().map(|&device| plan.devices[device].cores).max().unwrap_or(1);
        let begin = move || cpu::prepare(registers);
        let pool =
            Pool::beside(shared.busy(engine), devices.len(), cores as usize, begin).map_err(|error| {
                let name = &plan.devices[devices[0]].name;
                Error::run(format!("device {name}"), format!("no thread to help its worker: {error}"))
            })?;
        let pool = Arc::new(pool);
        devices
            .iter()
            .enumerate()
            .for_each(|(worker, &device)| pools[device] = Some((Arc::clone(&pool), worker)));
    }
    Ok(pools.into_iter().flatten().collect())
}

/// Error: the arenas together are more than this machine's memory. The system may grant each of
/// them and end the program when they are filled.
fn within_memory(plan: &ExecPlan) -> Result<()> {
    let Some(memory) = probe::memory() else { return Ok(()) };
    let mut total = 0u64;
    for device in &plan.devices {
        total = total.saturating_add(device.arena.get());
        if total > memory.get() {
            let message = format!(
                "cannot allocate an arena of {}: all arenas up to it take {}, this machine has {memory}",
                device.arena,
                Bytes(total)
            );
            return Err(Error::run(format!("device {}", device.name), message));
        }
    }
    Ok(())
}

fn write(arenas: &[Arena], place: Located, bytes: &[u8]) {
    // SAFETY: only while no worker runs (before they start, or between two runs, which need the
    // program exclusively), so nobody else uses the arena.
    unsafe { arenas[place.device].bytes_mut(place.range) }.copy_from_slice(bytes);
}
