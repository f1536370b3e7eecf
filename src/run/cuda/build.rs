//! A program's making: arenas, streams and events, and the plan's steps as what streams do.
//!
//! Contains `unsafe`: copies within the host, which streams come to later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::arena::Range;
use super::super::executor::plan::{Checker, ExecPlan, Located, Task};
use super::super::executor::ports::Ports;
use super::super::group::Compiled;
use super::super::held::{self, Held};
use super::super::packing::Packing;
use super::choose::Chooser;
use super::driver::{Event, Fault, GemmArgs, HostPointer, Pointer, Span};
use super::host::{self, Host};
use super::issue::{Marks, PIECE, Stage, StreamSet, Window, host_copy, numbers};
use super::kernels::{Kernels, Part};
use super::program::{CudaOptions, CudaProgram, Machine, Target};
use super::resources::Resources;
use super::staging::Staging;
use super::work::{Call, Order, Product, Transfer, Way, Work, awaited};
use crate::error::{Error, Result};
use crate::ir::{DType, Graph as Network};
use crate::kernel::Fused;
use crate::kernel::program::{Arg, At, GemmCall, Place};
use crate::kernel::workspace::PARTIAL_ALIGNMENT;
use crate::schedule::Lane;

/// Where a device's arena begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Base {
    Gpu(u32, Pointer),
    Host(HostPointer),
}

/// A GPU of a program.
struct Gpu {
    /// Its name.
    name: String,
    /// What kernels are compiled for.
    architecture: String,
    /// Whether kernels may be begun before those before them have ended.
    begins_early: bool,
    /// Position of the stream for what leaves it, and for what the host hands over.
    out: usize,
}

/// What makes a program.
struct Builder<'a> {
    machine: &'a Machine,
    plan: &'a ExecPlan,
    targets: &'a [Target],
    resources: Resources,
    gpus: BTreeMap<u32, Gpu>,
    /// By device and lane: position of the stream, where it has steps.
    lanes: Vec<[Option<usize>; 2]>,
    /// By stream: whose GPU it is of.
    streams: Vec<u32>,
    /// Receiving stream and sending GPU of what goes through the host; positions are those of stages.
    stages: Vec<(usize, u32)>,
    /// Pairs of GPUs, the receiver first, of which the receiver may read the other one's memory.
    peers: BTreeSet<(u32, u32)>,
}

/// Makes a program; see [`CudaProgram::new`].
pub(super) fn build(
    machine: &Machine,
    network: &Network,
    groups: &[Fused<'_>],
    plan: &ExecPlan,
    targets: &[Target],
    options: &CudaOptions<'_>,
) -> Result<(CudaProgram, Vec<(crate::ir::ValueId, Vec<Located>)>)> {
    let packing = Packing::none();
    // Kernels on GPUs read parameters as the plan lays them out.
    let compiled: Vec<Compiled> =
        groups.iter().map(|group| Compiled::new(network, group, &packing)).collect::<Result<_>>()?;
    let checker = Checker { plan, graph: network, groups: &compiled };
    let buffers = checker.buffers()?;
    let tasks = checker.tasks(&buffers)?;
    let ports = Ports::new(network, plan, &checker, &buffers)?;
    let (data, updates) = (checker.data(&buffers)?, checker.updates(&buffers)?);
    let compiled = Arc::new(compiled);
    let mut builder = Builder::new(machine, plan, targets)?;
    // What runs where decides about streams, arenas and kernels, in this order.
    builder.lay_out(&tasks, &updates)?;
    let bases = builder.arenas()?;
    let architectures: BTreeMap<u32, String> =
        builder.gpus.iter().map(|(&gpu, info)| (gpu, info.architecture.clone())).collect();
    let known: Vec<&str> = architectures.values().map(String::as_str).collect();
    let mut kernels = Kernels::of(network, groups, &builder.launched(&tasks), options.products, &known)?;
    kernels.load(machine, &mut builder.resources, &architectures, options.progress)?;
    let streams = builder.streams(options.timeout.is_some())?;
    let host = Arc::new(builder.host(&compiled, &bases)?);
    let maker = Maker { builder: &builder, streams: &streams, bases: &bases, kernels: &kernels, host: &host };
    let mut chooser = Chooser::new(&*machine.driver);
    let orders = maker.orders(tasks, &compiled, &mut chooser)?;
    let Chooser { used: products, declined, .. } = chooser;
    let library = builder.library();
    let updates = updates.iter().map(|&(from, to)| maker.update(from, to)).collect::<Result<_>>()?;
    let memory = builder.resources.host(2 * PIECE).map_err(|fault| fault.at("memory for transfers"))?;
    let window = Window { memory, bytes: 2 * PIECE };
    builder.number_marks(&streams, &window, orders.len())?;
    let gpus = builder.beginnings()?;
    let clock = builder.clock(streams.lanes[0].gpu)?;
    let params: Vec<Held<Vec<Located>>> =
        data.iter().filter_map(|(value, places)| Held::new(network, *value, places.clone())).collect();
    let steps = orders.len();
    let program = CudaProgram {
        streams,
        orders,
        updates,
        bases,
        gpus,
        host,
        window,
        staging: Staging::default(),
        ports,
        numbers: held::numbers(params.iter().map(|param| param.name.as_str())),
        params,
        devices: plan
            .devices
            .iter()
            .zip(builder.lanes)
            .map(|(device, lanes)| (device.name.clone(), lanes))
            .collect(),
        graph: None,
        runs: 0,
        timed: options.timed,
        timeout: options.timeout,
        broken: false,
        spans: vec![Default::default(); steps],
        clock,
        busy: None,
        products,
        declined,
        library,
        resources: builder.resources,
    };
    Ok((program, data))
}

fn lane_number(lane: Lane) -> usize {
    match lane {
        Lane::Compute => 0,
        Lane::Copy => 1,
    }
}

impl<'a> Builder<'a> {
    /// Opens the GPUs. Errors: no target is one; the driver's.
    fn new(machine: &'a Machine, plan: &'a ExecPlan, targets: &'a [Target]) -> Result<Self> {
        if targets.len() != plan.devices.len() {
            return Err(Error::Internal("not as many targets as devices".to_owned()));
        }
        let mut builder = Self {
            machine,
            plan,
            targets,
            resources: Resources::new(Arc::clone(&machine.driver)),
            gpus: BTreeMap::new(),
            lanes: vec![[None; 2]; plan.devices.len()],
            streams: Vec::new(),
            stages: Vec::new(),
            peers: BTreeSet::new(),
        };
        for (device, target) in plan.devices.iter().zip(targets) {
            let Target::Gpu(gpu) = *target else { continue };
            if builder.gpus.contains_key(&gpu) {
                continue;
            }
            let info =
                builder.resources.open(gpu).map_err(|fault| fault.at(&format!("device {}", device.name)))?;
            let (architecture, begins_early) = (info.architecture(), info.begins_early());
            builder.gpus.insert(gpu, Gpu { name: info.name, architecture, begins_early, out: 0 });
        }
        if builder.gpus.is_empty() {
            return Err(Error::usage("--backend cuda", "no device of the plan is a GPU"));
        }
        Ok(builder)
    }

    /// Name and version of the library of products; none where a GPU has none.
    fn library(&self) -> Option<String> {
        let each =
            self.gpus.keys().map(|&gpu| self.machine.driver.library(gpu)).collect::<Option<Vec<_>>>()?;
        each.into_iter().next()
    }

    /// Writes 1, 2, 3, ... to each GPU: what its streams copy to the host to say how far they are.
    fn number_marks(&self, streams: &StreamSet, window: &Window, orders: usize) -> Result<()> {
        for (&gpu, &to) in streams.marks.iter().flat_map(|marks| &marks.numbers) {
            let stream = streams.lanes[self.gpus[&gpu].out];
            let written = window.write(&*self.machine.driver, stream, to, &numbers(orders));
            written.map_err(|fault| fault.at(&format!("GPU {gpu}")))?;
        }
        Ok(())
    }

    /// By GPU: the stream on which bytes are handed over, and the event of a run's beginning.
    fn beginnings(&mut self) -> Result<BTreeMap<u32, (usize, Event)>> {
        let mut beginnings = BTreeMap::new();
        for (&gpu, info) in &self.gpus {
            let event = self.resources.event(gpu).map_err(|fault| fault.at(&format!("GPU {gpu}")))?;
            beginnings.insert(gpu, (info.out, event));
        }
        Ok(beginnings)
    }

    /// The events before and after a graph.
    fn clock(&mut self, gpu: u32) -> Result<[Event; 2]> {
        let mut event = || self.resources.event(gpu).map_err(|fault| fault.at("events"));
        Ok([event()?, event()?])
    }

    /// The GPU whose streams serve a device: its own, for the CPU the first one.
    fn gpu_of(&self, device: usize) -> u32 {
        match self.targets[device] {
            Target::Gpu(gpu) => gpu,
            Target::Cpu => self.gpus.keys().next().copied().unwrap_or(0),
        }
    }

    /// Which streams there are, which GPUs are peers, and what goes through the host.
    fn lay_out(&mut self, tasks: &[Task], updates: &[(Located, Located)]) -> Result<()> {
        for gpu in self.gpus.keys().copied().collect::<Vec<_>>() {
            let out = self.streams.len();
            self.streams.push(gpu);
            self.gpus.entry(gpu).and_modify(|info| info.out = out);
        }
        let steps = self.plan.steps.iter().map(|step| (step.device as usize, lane_number(step.lane)));
        let updated = updates.iter().map(|(_, to)| (to.device, lane_number(Lane::Copy)));
        for (device, lane) in steps.chain(updated) {
            if self.lanes[device][lane].is_none() {
                self.lanes[device][lane] = Some(self.streams.len());
                self.streams.push(self.gpu_of(device));
            }
        }
        let copies = self.plan.steps.iter().zip(tasks).filter_map(|(step, task)| match task {
            Task::Copy { from, .. } => Some((from.device, step.device as usize, lane_number(step.lane))),
            Task::Launch { .. } | Task::Nothing { .. } => None,
        });
        let updated = updates.iter().map(|(from, to)| (from.device, to.device, lane_number(Lane::Copy)));
        let mut asked = BTreeSet::new();
        for (from, to, lane) in copies.chain(updated) {
            let (Target::Gpu(sender), Target::Gpu(receiver)) = (self.targets[from], self.targets[to]) else {
                continue;
            };
            if sender == receiver {
                continue;
            }
            if asked.insert((receiver, sender)) {
                let peers = self.machine.driver.peers(receiver, sender);
                if peers.map_err(|fault| fault.at(&format!("copies from GPU {sender} to GPU {receiver}")))? {
                    self.peers.insert((receiver, sender));
                }
            }
            let stage = (self.lanes[to][lane].unwrap_or_default(), sender);
            if !self.peers.contains(&(receiver, sender)) && !self.stages.contains(&stage) {
                self.stages.push(stage);
            }
        }
        Ok(())
    }

    /// One allocation for each device, of exactly the planned bytes.
    fn arenas(&mut self) -> Result<Vec<Base>> {
        let mut bases = Vec::with_capacity(self.targets.len());
        for (device, target) in self.plan.devices.iter().zip(self.targets) {
            bases.push(match *target {
                Target::Gpu(gpu) => Base::Gpu(gpu, self.resources.arena(gpu, &device.name, device.arena)?),
                Target::Cpu => {
                    let memory = self.resources.host(device.arena.get());
                    Base::Host(memory.map_err(|fault| fault.at(&format!("device {}", device.name)))?)
                }
            });
        }
        Ok(bases)
    }

    /// The groups that run on GPUs.
    fn launched(&self, tasks: &[Task]) -> BTreeSet<usize> {
        let steps = self.plan.steps.iter().zip(tasks);
        let groups = steps.filter_map(|(step, task)| match (task, self.targets[step.device as usize]) {
            (Task::Launch { group, .. }, Target::Gpu(_)) => Some(*group),
            _ => None,
        });
        groups.collect()
    }

    fn streams(&mut self, marked: bool) -> Result<StreamSet> {
        let steps: Vec<u32> = self.plan.steps.iter().map(|step| self.gpu_of(step.device as usize)).collect();
        let made = self.made(&steps, marked).map_err(|fault| fault.at("streams and events"))?;
        Ok(made)
    }

    fn made(&mut self, steps: &[u32], marked: bool) -> Result<StreamSet, Fault> {
        let of = self.streams.clone();
        let early = of.iter().map(|gpu| self.gpus[gpu].begins_early).collect();
        let resources = &mut self.resources;
        let streams = of.iter().map(|&gpu| resources.stream(gpu)).collect::<Result<Vec<_>, _>>()?;
        let mut events =
            |gpus: &[u32]| gpus.iter().map(|&gpu| resources.event(gpu)).collect::<Result<Vec<Event>, _>>();
        let (begins, ends, joins) = (events(steps)?, events(steps)?, events(&of)?);
        let mut stages = Vec::with_capacity(self.stages.len());
        for &(lane, sender) in &self.stages {
            stages.push(Stage {
                memory: [resources.host(PIECE)?, resources.host(PIECE)?],
                filled: [resources.event(sender)?, resources.event(sender)?],
                drained: [resources.event(of[lane])?, resources.event(of[lane])?],
            });
        }
        let marks = match marked {
            true => {
                let mut numbers = BTreeMap::new();
                for &gpu in self.gpus.keys() {
                    numbers.insert(gpu, resources.words(gpu, steps.len() as u64)?);
                }
                Some(Marks { numbers, reached: resources.host(64 * of.len() as u64)? })
            }
            false => None,
        };
        let driver = Arc::clone(&resources.driver);
        Ok(StreamSet { driver, lanes: streams, early, begins, ends, joins, stages, marks })
    }

    /// What runs on the CPU.
    fn host(&self, compiled: &Arc<Vec<Compiled>>, bases: &[Base]) -> Result<Host> {
        let arenas: Vec<Option<(HostPointer, u64)>> = bases
            .iter()
            .zip(&self.plan.devices)
            .map(|(base, device)| match base {
                Base::Host(pointer) => Some((*pointer, device.arena.get())),
                Base::Gpu(..) => None,
            })
            .collect();
        let own = self.plan.devices.iter().zip(&arenas).filter(|(_, arena)| arena.is_some());
        let cores = own.map(|(device, _)| device.cores as usize).max().unwrap_or(1);
        Host::new(Arc::clone(compiled), &arenas, cores)
    }

    fn lane_of(&self, step: u32) -> usize {
        let step = &self.plan.steps[step as usize];
        self.lanes[step.device as usize][lane_number(step.lane)].unwrap_or_default()
    }
}

/// Where a group is launched on a GPU.
#[derive(Clone, Copy)]
struct Site {
    gpu: u32,
    lane: usize,
    /// What a product of the library may keep partial sums in.
    partial: Span,
    /// Bytes of the step's workspace.
    workspace: u64,
}

/// Error: kernels need more workspace than the plan's step has, which was planned for no GPU, or by an earlier version.
fn within_workspace(args: &[Arg], bytes: u64) -> Result<()> {
    let end = |arg: &Arg| match arg.place {
        Place::Workspace(offset) => offset.saturating_add(arg.elements.saturating_mul(arg.dtype.size())),
        Place::Read(_) | Place::Write(_) => 0,
    };
    match args.iter().map(end).max().filter(|&needed| needed > bytes) {
        None => Ok(()),
        Some(needed) => {
            let message = format!("the plan has {bytes} bytes of workspace, and its kernels need {needed}");
            Err(Error::run("", message).with_help("plan it again, for devices with a GPU"))
        }
    }
}

/// What a step's workspace holds behind the group's own: room for the library's partial sums. Its bytes are the same
/// wherever it begins, as the library chooses by them.
fn partial(base: Pointer, workspace: Range, own: u64) -> Span {
    let at = Pointer(base.offset(workspace.offset as u64).offset(own).0.next_multiple_of(PARTIAL_ALIGNMENT));
    let bytes = (workspace.length as u64).saturating_sub(own).saturating_sub(PARTIAL_ALIGNMENT);
    Span { at, bytes: bytes / PARTIAL_ALIGNMENT * PARTIAL_ALIGNMENT }
}

/// Where a step runs.
struct StepSite<'a> {
    device: usize,
    lane: usize,
    /// Bytes of workspace of the group's own.
    own: u64,
    /// For messages.
    place: &'a str,
}

/// Turns steps into what streams do.
struct Maker<'a> {
    builder: &'a Builder<'a>,
    streams: &'a StreamSet,
    bases: &'a [Base],
    kernels: &'a Kernels,
    host: &'a Arc<Host>,
}

impl Maker<'_> {
    fn orders(
        &self,
        tasks: Vec<Task>,
        compiled: &[Compiled],
        chooser: &mut Chooser<'_>,
    ) -> Result<Vec<Order>> {
        let steps = &self.builder.plan.steps;
        let mut orders = Vec::with_capacity(steps.len());
        let mut signals = vec![false; steps.len()];
        for (number, (step, task)) in steps.iter().zip(tasks).enumerate() {
            let lane = self.builder.lane_of(number as u32);
            let after = awaited(&step.after, lane, &|other| self.builder.lane_of(other));
            after.iter().for_each(|&before| signals[before] = true);
            let device = step.device as usize;
            let name = &self.builder.plan.devices[device].name;
            let place = match &task {
                Task::Launch { group, .. } | Task::Nothing { group } => {
                    format!("step {number} on {name}: node {}", compiled[*group].name)
                }
                Task::Copy { from, .. } => {
                    let from = &self.builder.plan.devices[from.device].name;
                    format!("step {number} on {name}: copy from {from}")
                }
            };
            let own = match &task {
                Task::Launch { group, .. } => compiled[*group].workspace,
                Task::Copy { .. } | Task::Nothing { .. } => 0,
            };
            let work = self.work(task, StepSite { device, lane, own, place: &place }, chooser)?;
            orders.push(Order { lane, after, signals: false, work, place });
        }
        orders.iter_mut().zip(signals).for_each(|(order, signals)| order.signals = signals);
        Ok(orders)
    }

    fn work(
        &self,
        task: Task,
        StepSite { device, lane, own, place }: StepSite<'_>,
        chooser: &mut Chooser<'_>,
    ) -> Result<Work> {
        match (task, self.bases[device]) {
            (Task::Copy { from, to }, _) => {
                Ok(Work::Copy(self.transfer(lane, from, Located { device, range: to })?))
            }
            // The slice lies where it is read.
            (Task::Nothing { .. }, _) => Ok(Work::Launches(vec![])),
            (Task::Launch { group, reads, writes, workspace }, Base::Host(_)) => {
                let place = place.to_owned();
                Ok(Work::Host(self.host.work(host::Task { group, device, reads, writes, workspace, place })))
            }
            (Task::Launch { group, reads, writes, workspace }, Base::Gpu(gpu, base)) => {
                let at = |place: Place| match place {
                    Place::Read(position) => base.offset(reads[position as usize].offset as u64),
                    Place::Write(position) => base.offset(writes[position as usize].offset as u64),
                    Place::Workspace(offset) => base.offset((workspace.offset as u64).saturating_add(offset)),
                };
                let partial = partial(base, workspace, own);
                let site = Site { gpu, lane, partial, workspace: workspace.length as u64 };
                let ways = self.kernels.groups.get(&group).map_or(&[][..], Vec::as_slice);
                let asks = |way: &[Part]| way.iter().any(|part| matches!(part, Part::Library(_)));
                for way in ways {
                    let calls = self.calls(site, way, &at, chooser);
                    if let Some(calls) = calls.map_err(|error| error.within(place))? {
                        chooser.declined += usize::from(!asks(way) && ways.iter().any(|way| asks(way)));
                        return Ok(Work::Launches(calls));
                    }
                }
                Ok(Work::Launches(vec![]))
            }
        }
    }

    /// What computes a group in one way; none where the library has not a product of it.
    fn calls(
        &self,
        site: Site,
        way: &[Part],
        at: &dyn Fn(Place) -> Pointer,
        chooser: &mut Chooser<'_>,
    ) -> Result<Option<Vec<Call>>> {
        let mut calls = Vec::with_capacity(way.len());
        for part in way {
            calls.push(match part {
                // What is updated in place is there already.
                Part::Own { args, is_copy: true, .. }
                    if args.iter().all(|&place| at(place) == at(args[0])) =>
                {
                    continue;
                }
                Part::Own { kernel, args, is_copy: _ } => {
                    within_workspace(&self.kernels.list[*kernel].args, site.workspace)?;
                    Call::Kernel {
                        function: self.kernels.function(site.gpu, *kernel)?,
                        launch: self.kernels.list[*kernel].launch,
                        args: args.iter().map(|&place| at(place)).collect(),
                    }
                }
                Part::Library(call) => match self.product(site, call, at, chooser)? {
                    Some(call) => call,
                    None => return Ok(None),
                },
            });
        }
        Ok(Some(calls))
    }

    fn product(
        &self,
        site: Site,
        call: &GemmCall,
        at: &dyn Fn(Place) -> Pointer,
        chooser: &mut Chooser<'_>,
    ) -> Result<Option<Call>> {
        let gemm = &call.gemm;
        let element = |of: DType, (place, element): At| at(place).offset(element.saturating_mul(of.size()));
        let address = |at: At| element(gemm.dtype, at);
        let args = GemmArgs {
            left: address(call.left),
            right: address(call.right),
            bias: call.bias.map(address),
            addend: call.addend.map(address),
            out: element(gemm.made, call.out),
            sums: call.sums.map(address),
            partial: site.partial,
        };
        let (gpu, stream) = (&self.builder.gpus[&site.gpu].name, self.streams.lanes[site.lane]);
        let algorithm = chooser.choose(gpu, stream, gemm, &args)?;
        let product = |algorithm| Product { gemm: gemm.clone(), algorithm, args };
        Ok(algorithm.map(|algorithm| Call::Product(Box::new(product(algorithm)))))
    }

    /// A copy, by what its ends are on.
    fn transfer(&self, lane: usize, from: Located, to: Located) -> Result<Transfer> {
        let offset = |place: Located| place.range.offset as u64;
        let bytes = to.range.length as u64;
        let way = match (self.bases[from.device], self.bases[to.device]) {
            (Base::Host(source), Base::Host(target)) => {
                let (to, from) = (target.offset(offset(to)), source.offset(offset(from)));
                // SAFETY: both ranges are within arenas of page-locked memory, and streams wait for one another as
                // the plan's checked order says.
                Way::Host(unsafe { host_copy(to, from, bytes) })
            }
            (Base::Host(source), Base::Gpu(_, target)) => {
                Way::Up { to: target.offset(offset(to)), from: source.offset(offset(from)) }
            }
            (Base::Gpu(gpu, source), Base::Host(target)) => Way::Down {
                out: self.builder.gpus[&gpu].out,
                to: target.offset(offset(to)),
                from: source.offset(offset(from)),
            },
            (Base::Gpu(sender, source), Base::Gpu(receiver, target)) => {
                let (to, from) = (target.offset(offset(to)), source.offset(offset(from)));
                let stage = self.builder.stages.iter().position(|&stage| stage == (lane, sender));
                match stage {
                    Some(stage) if sender != receiver => {
                        Way::Staged { out: self.builder.gpus[&sender].out, stage, to, from }
                    }
                    _ => Way::Device { to, from },
                }
            }
        };
        Ok(Transfer { way, bytes })
    }

    /// A copy after a run, for the next one to read.
    fn update(&self, from: Located, to: Located) -> Result<(usize, Transfer)> {
        let lane = self.builder.lanes[to.device][lane_number(Lane::Copy)].unwrap_or_default();
        Ok((lane, self.transfer(lane, from, to)?))
    }
}
