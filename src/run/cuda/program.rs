//! A plan on GPUs, ready to run: what goes in, what comes out, and what is known of its last run.
//!
//! Contains `unsafe`: what goes into and out of arenas in host memory while no stream runs.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::executor::plan::{ExecPlan, Located};
use super::super::executor::ports::{Ports, load};
use super::super::executor::{DeviceReport, RunReport};
use super::super::held::{self, Held};
use super::super::interpret::{Weights, tensor};
use super::build::{Base, build};
use super::choose::LibraryProduct;
use super::driver::{Driver, Event, Fault, Gemm, Graph};
use super::host::Host;
use super::issue::{StreamSet, Window, read_host, write_host};
use super::resources::Resources;
use super::staging::Staging;
use super::toolchain::{NvrtcToolchain, Toolchain};
use super::work::{Order, Transfer};
use crate::emit::Gives;
use crate::emit::cache::Cache;
use crate::error::{Error, Result};
use crate::ir::{Graph as Network, Tensor};
use crate::kernel::Fused;

/// What runs programs: a driver, and what compiles kernels for it.
#[derive(Clone)]
pub struct Machine {
    /// The driver.
    pub driver: Arc<dyn Driver>,
    /// The compiler.
    pub toolchain: Arc<dyn Toolchain>,
}

impl Machine {
    /// This machine's GPUs, with the cache in its usual folder.
    ///
    /// Errors: there is no driver; the cache's folder is not the user's alone.
    pub fn native() -> Result<Self> {
        let driver = super::native().map_err(|fault| fault.at(""))?;
        // Without a folder kernels are compiled each time.
        let cache = Cache::open_default()?;
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
        let toolchain = Arc::new(NvrtcToolchain { cache, threads });
        Ok(Self { driver, toolchain })
    }
}

/// What a device of a plan is on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The CPU.
    Cpu,
    /// A GPU, by the driver's number.
    Gpu(u32),
}

/// Who computes matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// Kernels of this crate.
    Own,
    /// The library, where it has the product and that is at least so large.
    Library {
        /// Rows and columns of the result.
        least: i64,
        /// Terms of each sum from which on the library's product and a kernel for what it does not do behind
        /// it are preferred to one kernel of both.
        inner: i64,
    },
}

impl Products {
    /// Whether the library is asked for a product, on GPUs that give so much. Not for one of halves where every second row
    /// of an operand begins within a word, for which it has slow kernels alone.
    pub(super) fn take(self, gemm: &Gemm, gives: Gives) -> bool {
        let splits_words =
            gemm.dtype.is_half() && [gemm.left, gemm.right].iter().any(|side| side.pitch() % 2 != 0);
        match self {
            Self::Own => false,
            Self::Library { least, .. } => {
                gemm.rows.min(gemm.columns) >= least && !(splits_words && gives.tensor_cores)
            }
        }
    }

    /// Whether it is also asked for one that something else follows.
    pub(super) fn takes_unfused(self, gemm: &Gemm, gives: Gives) -> bool {
        match self {
            Self::Own => false,
            Self::Library { inner, .. } => self.take(gemm, gives) && gemm.inner >= inner,
        }
    }
}

impl Default for Products {
    /// The library for what is more than a few rows.
    fn default() -> Self {
        Self::Library { least: 9, inner: 512 }
    }
}

/// How a program runs.
pub struct CudaOptions<'a> {
    /// Ends a run that takes longer.
    pub timeout: Option<Duration>,
    /// Every run puts the steps on streams one by one, and its report tells the time of each. Otherwise
    /// runs after the first replay one graph, and reports tell the steps of the first.
    pub timed: bool,
    /// Who computes matrix products.
    pub products: Products,
    /// Told how many kernels of how many are compiled, from any thread.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

impl Default for CudaOptions<'_> {
    fn default() -> Self {
        Self { timeout: None, timed: false, products: Products::default(), progress: &|_, _| {} }
    }
}

/// A plan that is ready to run on GPUs, and on the CPU where it has devices there.
pub struct CudaProgram {
    pub(super) streams: StreamSet,
    pub(super) orders: Vec<Order>,
    /// What is copied after each run, and on which stream.
    pub(super) updates: Vec<(usize, Transfer)>,
    /// By device.
    pub(super) bases: Vec<Base>,
    /// By GPU: the stream on which bytes are handed over, and the event of a run's beginning.
    pub(super) gpus: BTreeMap<u32, (usize, Event)>,
    pub(super) host: Arc<Host>,
    pub(super) window: Window,
    pub(super) staging: Staging,
    pub(super) ports: Ports,
    pub(super) params: Vec<Held<Vec<Located>>>,
    /// By name: its place among them. Looked up, never iterated.
    pub(super) numbers: HashMap<String, usize>,
    /// Names, and by lane the streams.
    pub(super) devices: Vec<(String, [Option<usize>; 2])>,
    pub(super) graph: Option<Graph>,
    pub(super) runs: u64,
    pub(super) timed: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) broken: bool,
    /// By step: when it began and ended in the last run that was timed.
    pub(super) spans: Vec<(Duration, Duration)>,
    /// On the first stream: before and after a graph.
    pub(super) clock: [Event; 2],
    /// How long the last run took by its GPUs' clocks.
    pub(super) busy: Option<Duration>,
    /// The library's products, how many it was asked for and does not compute, and its name and version.
    pub(super) products: Vec<LibraryProduct>,
    pub(super) declined: usize,
    pub(super) library: Option<String>,
    /// Dropped last: what the above uses.
    pub(super) resources: Resources,
}

impl CudaProgram {
    /// Allocates, compiles, loads. `groups` are the network's, in the order in which launches count them;
    /// `targets` says what each device of the plan is; `weights` gives each parameter's data once.
    ///
    /// Errors: a plan that does not fit the network or contradicts itself; parameters without data; what
    /// the compiler or the driver refuses, with the device or the kernel.
    pub fn new(
        machine: &Machine,
        network: &Network,
        groups: &[Fused<'_>],
        plan: &ExecPlan,
        targets: &[Target],
        weights: Weights<'_>,
        options: &CudaOptions<'_>,
    ) -> Result<Self> {
        let (program, data) = build(machine, network, groups, plan, targets, options)?;
        load(network, &data, weights, &mut |_, tensor, place| program.write(place, tensor.bytes()))?;
        Ok(program)
    }

    /// Runs one step: hands over the inputs, works through the plan, takes the outputs out.
    ///
    /// Errors: those of [`CudaProgram::feed`], [`CudaProgram::step`] and [`CudaProgram::outputs`].
    pub fn run(&mut self, inputs: &[(String, Tensor)]) -> Result<(Vec<(String, Tensor)>, RunReport)> {
        self.feed(inputs)?;
        let wall = self.step()?;
        Ok((self.outputs()?, self.report(wall)))
    }

    /// Hands over the inputs of the steps that follow.
    ///
    /// Errors: an input that is missing, unknown or of another type; an earlier run that failed; the
    /// driver's.
    pub fn feed(&mut self, inputs: &[(String, Tensor)]) -> Result<()> {
        self.usable()?;
        let is_staged = self.staging.holds(inputs);
        let fed = match is_staged {
            true => self.feed_staged(),
            false => self.ports.feed(inputs, &mut |place, bytes| self.write(place, bytes)),
        };
        self.staging.clear();
        fed
    }

    /// The same of what was made ready beside the step before.
    fn feed_staged(&self) -> Result<()> {
        let fault =
            |device: usize| move |fault: Fault| fault.at(&format!("data for {}", self.devices[device].0));
        let driver = &*self.streams.driver;
        for (place, staged) in self.staging.pieces() {
            match self.bases[place.device] {
                Base::Host(_) => self.write(place, &staged.read())?,
                Base::Gpu(gpu, base) => {
                    let to = base.offset(place.range.offset as u64);
                    staged.upload(driver, self.transfers(gpu)?, to).map_err(fault(place.device))?;
                }
            }
        }
        let streams = self.gpus.values().map(|&(stream, _)| self.streams.lanes[stream]);
        let mut ended = streams.map(|stream| driver.finish(stream).map_err(|fault| fault.at("the inputs")));
        ended.try_for_each(|ended| ended)
    }

    /// Makes inputs ready to be handed over, as far as that can be done beside a step: what is wrong with them shows when
    /// they are handed over.
    pub(super) fn stage(&mut self, inputs: &[(String, Tensor)]) {
        let Self { ports, staging, resources, .. } = self;
        staging.clear();
        if staging.has_room(ports.fed(), resources) {
            match ports.feed(inputs, &mut |place, bytes| staging.put(place, bytes)) {
                Ok(()) => staging.keep(inputs),
                Err(_) => staging.clear(),
            }
        }
    }

    /// Works through the plan once, on the inputs handed over last; how long it took.
    ///
    /// Errors: a step that fails, by name in the first run; a run that takes too long, naming what ran
    /// where. After either every further run is an error.
    pub fn step(&mut self) -> Result<Duration> {
        self.step_beside(&[])
    }

    /// As [`CudaProgram::step`], while the host makes ready what [`CudaProgram::feed`] is given next.
    ///
    /// Errors: those of [`CudaProgram::step`].
    pub fn step_beside(&mut self, next: &[(String, Tensor)]) -> Result<Duration> {
        self.usable()?;
        let start = Instant::now();
        let deadline = self.timeout.map(|timeout| start + timeout);
        if let Some(marks) = &self.streams.marks {
            marks.reset(self.streams.lanes.len());
        }
        let done = self.work(deadline, next);
        self.runs += 1;
        let wall = start.elapsed();
        if let Err(failure) = done {
            return Err(self.failed(failure));
        }
        self.host.failure().map_or(Ok(wall), Err)
    }

    /// How long a step takes by the GPUs' clock, on the inputs handed over last: of `count` steps one
    /// straight after the other, the mean. They are steps like others: what the plan updates is updated.
    ///
    /// Errors: as of [`CudaProgram::step`]; no step went before.
    pub fn clocked(&mut self, count: u32) -> Result<Duration> {
        self.usable()?;
        if self.runs == 0 {
            return Err(Error::run("", "a program's first step cannot be timed: it is what names a fault"));
        }
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout.saturating_mul(count + 1));
        if let Some(marks) = &self.streams.marks {
            marks.reset(self.streams.lanes.len());
        }
        let done = self.clocked_steps(count, deadline);
        self.runs += u64::from(count) + 1;
        let time = done.map_err(|failure| self.failed(failure))?;
        self.host.failure().map_or(Ok(time), Err)
    }

    /// The outputs of the last step, but for those that take a parameter's place.
    ///
    /// Errors: the last step did not end; the driver's.
    pub fn outputs(&self) -> Result<Vec<(String, Tensor)>> {
        self.reachable()?;
        self.ports.outputs(&mut |place| self.read(place).map(Cow::Owned))
    }

    /// A parameter as it is now, by its name; none where the plan holds none of that name.
    ///
    /// Errors: a step did not end; the driver's.
    pub fn param(&self, name: &str) -> Result<Option<Tensor>> {
        self.reachable()?;
        let Some(&at) = self.numbers.get(name) else { return Ok(None) };
        let param = &self.params[at];
        let Some(&place) = param.places.first() else { return Ok(None) };
        param.supplied(tensor(&param.ty, &self.read(place)?)?).map(Some)
    }

    /// Names of the parameters that the plan holds, in the order of the network.
    pub fn params(&self) -> impl Iterator<Item = &str> {
        self.params.iter().map(|param| param.name.as_str())
    }

    /// Puts a parameter's value wherever the plan holds it, for the steps that follow.
    ///
    /// Errors: no such parameter; a value of another type; an earlier run that failed; the driver's.
    pub fn set_param(&mut self, name: &str, value: &Tensor) -> Result<()> {
        self.usable()?;
        let found = self.numbers.get(name).map(|&at| &self.params[at]);
        let param = found.ok_or_else(|| held::missing(name))?;
        let value = param.laid(value)?;
        param.places.iter().try_for_each(|&at| self.write(at, value.bytes()))
    }

    /// What the last step did, by the times of the last run that was timed; `wall` is how long it took.
    pub fn report(&self, wall: Duration) -> RunReport {
        let devices = self.devices.iter().map(|(name, lanes)| {
            let busy = |lane: usize| {
                let own = |(order, _): &(&Order, &(Duration, Duration))| lanes[lane] == Some(order.lane);
                let steps = self.orders.iter().zip(&self.spans).filter(own);
                let mut total = (Duration::ZERO, 0);
                steps.for_each(|(_, &(begin, end))| {
                    total = (total.0 + end.saturating_sub(begin), total.1 + 1);
                });
                total
            };
            let ((computing, launches), (copying, copies)) = (busy(0), busy(1));
            DeviceReport { name: name.clone(), computing, copying, steps: launches + copies }
        });
        RunReport { wall, device: self.busy, devices: devices.collect(), steps: self.spans.clone() }
    }

    /// Name and version of the library of products; none where a GPU of the program has none.
    pub fn library(&self) -> Option<&str> {
        self.library.as_deref()
    }

    /// The products that the library computes in each run.
    pub fn products(&self) -> &[LibraryProduct] {
        &self.products
    }

    /// How many products it was asked for that it does not compute, so that kernels of this crate do.
    pub fn declined(&self) -> usize {
        self.declined
    }

    fn usable(&self) -> Result<()> {
        match self.broken {
            true => Err(Error::run("", "an earlier run failed; this program cannot run again")),
            false => Ok(()),
        }
    }

    /// Error: work is left that does not end, so that whoever waits for a GPU waits for ever.
    fn reachable(&self) -> Result<()> {
        match self.resources.abandoned {
            true => Err(Error::run("", "a run did not end; what its GPUs hold cannot be read")),
            false => Ok(()),
        }
    }

    fn write(&self, place: Located, bytes: &[u8]) -> Result<()> {
        let at = place.range.offset as u64;
        match self.bases[place.device] {
            Base::Host(base) => {
                // SAFETY: the range is within the arena, and no stream runs.
                unsafe { write_host(base.offset(at), bytes) };
                Ok(())
            }
            Base::Gpu(gpu, base) => {
                let stream = self.transfers(gpu)?;
                let written = self.window.write(&*self.streams.driver, stream, base.offset(at), bytes);
                written.map_err(|fault| fault.at(&format!("data for {}", self.devices[place.device].0)))
            }
        }
    }

    fn read(&self, place: Located) -> Result<Vec<u8>> {
        let (at, mut bytes) = (place.range.offset as u64, vec![0; place.range.length]);
        match self.bases[place.device] {
            // SAFETY: the range is within the arena, and no stream runs.
            Base::Host(base) => unsafe { read_host(base.offset(at), &mut bytes) },
            Base::Gpu(gpu, base) => {
                let stream = self.transfers(gpu)?;
                let read = self.window.read(&*self.streams.driver, stream, base.offset(at), &mut bytes);
                read.map_err(|fault| fault.at(&format!("data from {}", self.devices[place.device].0)))?;
            }
        }
        Ok(bytes)
    }

    /// The stream on which the host hands over what a GPU gets.
    fn transfers(&self, gpu: u32) -> Result<super::Stream> {
        let found = self.gpus.get(&gpu).map(|&(stream, _)| self.streams.lanes[stream]);
        found.ok_or_else(|| Error::Internal("a GPU that is not open".to_owned()))
    }
}
