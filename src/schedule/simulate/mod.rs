//! The simulator: the one clock that decides when each step starts and ends.
//!
//! A discrete-event simulation in whole nanoseconds, deterministic, O((steps + dependencies)
//! log steps). The model:
//!
//! - **Launches.** A device runs its launches one at a time. Slices of one physical device share
//!   its engine, which serves the most urgent waiting launch at full speed; a slice with cores of
//!   its own has an engine of its own.
//! - **Copies** start as soon as what they wait for is done, and pass the hops of their route one
//!   after the other. A hop holds each of its channels for bytes over that channel's bandwidth, and
//!   begins when all of them are free; copies that wait for one channel are served first come, first
//!   served, so together they take as long as sharing the bandwidth would, and one that waits for
//!   another channel too holds nobody up. Where contention is off, copies do not hinder one another.
//!   A hop ends its latency and its bytes over its least bandwidth after it began.
//! - **Arrivals.** Copies to one device may be under way together, and complete in list order: who
//!   waits for one has all before it on that lane.
//! - **Added communication.** Where copies take a device's own time, a hop also holds the engine
//!   of the device that it leaves or reaches, before the launches that are ready with it.
//! - **Staged copies** of one tensor over one upload channel share one upload.

pub(crate) mod critical_path;
pub(crate) mod machine;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Lane, StepIx};
use crate::csr::Csr;
use crate::error::{Error, Result};
use crate::schedule::simulate::machine::Machine;
use crate::topology::{ChannelId, DeviceId, Hop, Topology};
use crate::units::{Bytes, Nanos};

/// What a simulated step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Runs on a device's compute lane.
    Run {
        /// The device.
        device: DeviceId,
        /// For how long, undisturbed.
        time: Nanos,
    },
    /// Brings data from one device to another, on the receiver's copy lane.
    Move {
        /// The sender.
        from: DeviceId,
        /// The receiver.
        to: DeviceId,
        /// How much.
        bytes: Bytes,
        /// Copies with one number here leave the sender once, together.
        upload: Option<u32>,
    },
}

impl Work {
    /// The device whose lane it is on.
    pub const fn device(self) -> DeviceId {
        match self {
            Self::Run { device, .. } | Self::Move { to: device, .. } => device,
        }
    }

    /// The lane of that device.
    pub const fn lane(self) -> Lane {
        match self {
            Self::Run { .. } => Lane::Compute,
            Self::Move { .. } => Lane::Copy,
        }
    }
}

/// A step as [`simulate`] takes it.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedStep<'a> {
    /// What it does.
    pub work: Work,
    /// The steps that it waits for beside its lane; each comes before it in the list.
    pub after: &'a [StepIx],
}

/// A copy on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The copy; of several that share one upload, the first.
    pub step: StepIx,
    /// The channel.
    pub channel: ChannelId,
    /// From when.
    pub start: Nanos,
    /// Until when it keeps others from the channel, where copies hinder one another; else until
    /// its last byte is through.
    pub end: Nanos,
}

/// When each step starts and ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// By step.
    pub start: Vec<Nanos>,
    /// By step.
    pub end: Vec<Nanos>,
    /// End of the last step.
    pub latency: Nanos,
    /// What crosses the channels, in the order in which it begins.
    pub crossings: Vec<Crossing>,
}

/// Times a list of steps, whoever made it: lanes run in list order.
///
/// Errors: a step that waits for one that does not come before it, a device that does not exist,
/// a topology that refers to what it does not hold.
pub fn simulate(topology: &Topology, steps: &[SimulatedStep<'_>]) -> Result<Timeline> {
    let machine = Machine::new(topology)?;
    if steps.len() + machine.engine_count() + machine.channel_count() >= u32::MAX as usize {
        return Err(Error::model("steps", "more than 2^32 steps"));
    }
    for (position, step) in steps.iter().enumerate() {
        if let Work::Move { upload: Some(upload), .. } = step.work
            && upload as usize >= steps.len()
        {
            return Err(Error::model(format!("step {position}"), format!("upload {upload} does not exist")));
        }
        let devices = match step.work {
            Work::Run { device, .. } => [device, device],
            Work::Move { from, to, .. } => [from, to],
        };
        if let Some(id) = devices.iter().find(|id| id.index() >= topology.len()) {
            return Err(Error::model(format!("step {position}"), format!("device {} does not exist", id.0)));
        }
        if let Some(other) = step.after.iter().find(|other| other.index() >= position) {
            return Err(Error::model(
                format!("step {position}"),
                format!("waits for step {}, which does not come before it", other.0),
            ));
        }
    }
    let work: Vec<Work> = steps.iter().map(|step| step.work).collect();
    Ok(run_listed(topology, &machine, &work, |step| steps[step].after))
}

/// [`simulate`] on what is known to be sound.
pub(super) fn run_listed<'a>(
    topology: &Topology,
    machine: &Machine,
    work: &[Work],
    after: impl Fn(usize) -> &'a [StepIx],
) -> Timeline {
    // Launches of a device run in list order: each waits for the one before it.
    let mut last: Vec<Option<u32>> = vec![None; topology.len()];
    let mut before = vec![u32::MAX; work.len()];
    for (position, item) in work.iter().enumerate() {
        if let Work::Run { device, .. } = *item {
            before[position] = last[device.index()].replace(position as u32).unwrap_or(u32::MAX);
        }
    }
    let dependents = Csr::from_visits(work.len(), |visit| {
        for (position, &before) in before.iter().enumerate() {
            if before != u32::MAX {
                visit(before as usize, position as u32);
            }
            after(position).iter().for_each(|other| visit(other.0 as usize, position as u32));
        }
    });
    let moves = work.iter().enumerate().filter_map(|(position, item)| match *item {
        Work::Move { to, .. } => Some((to.index(), position as u32)),
        Work::Run { .. } => None,
    });
    let order = Csr::from_pairs(topology.len(), moves);
    let arrivals = Arrivals { order, next: vec![0; topology.len()] };
    let priority: Vec<u64> = (0..work.len() as u64).collect();
    let waits = dependents.occurrences(work.len());
    let tasks = Tasks { work, priority: &priority, dependents: &dependents, waits, record: true };
    let run = Simulation::new(topology, machine, tasks, Some(arrivals)).run();
    run.timeline
}

/// What to simulate, and in which order of urgency.
pub(super) struct Tasks<'a> {
    pub(super) work: &'a [Work],
    /// The least is the most urgent; ties go to the least number.
    pub(super) priority: &'a [u64],
    pub(super) dependents: &'a Csr,
    /// By task: how often it stands among the dependents. `u32::MAX`: never runs.
    pub(super) waits: Vec<u32>,
    /// Whether to note what crosses the channels.
    pub(super) record: bool,
}

/// A run of the simulator.
pub(super) struct Run {
    pub(super) timeline: Timeline,
    /// Launches as they start and copies as they complete: a topological order.
    pub(super) order: Vec<u32>,
}

/// Lists the tasks by greedy list scheduling: whenever an engine is free it starts the most
/// urgent launch that is ready on any of its devices.
pub(super) fn run_greedy(topology: &Topology, machine: &Machine, tasks: Tasks<'_>) -> Run {
    Simulation::new(topology, machine, tasks, None).run()
}

/// For each device the copies it receives, in the order in which they complete.
struct Arrivals {
    order: Csr,
    /// By device: how many have completed.
    next: Vec<u32>,
}

/// A copy that asks for its next hop: since which round, how urgent, which.
type Request = (u64, u64, u32);

/// What one at a time holds: an engine or a channel.
#[derive(Clone, Default)]
struct Resource {
    /// From when on nothing holds it.
    free: Nanos,
    /// Copies that wait for it.
    waiting: BinaryHeap<Reverse<Request>>,
    /// An event is due when it is free.
    is_watched: bool,
}

/// A copy to a host that others go on from.
#[derive(Clone, Default)]
enum Upload {
    #[default]
    Unasked,
    /// One copy asks for it; these go with it.
    Asked(Vec<u32>),
    /// From when until when.
    Begun(Nanos, Nanos),
}

/// Not yet begun.
const NEVER: Nanos = Nanos::MAX;

struct Simulation<'a> {
    topology: &'a Topology,
    machine: &'a Machine,
    tasks: Tasks<'a>,
    arrivals: Option<Arrivals>,
    now: Nanos,
    /// (time, task that ends a launch or a hop, or number of tasks + resource that becomes free).
    events: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// Engines, then channels.
    resources: Vec<Resource>,
    /// By engine: launches that are ready, the most urgent first.
    ready: Vec<BinaryHeap<Reverse<(u64, u32)>>>,
    uploads: Vec<Upload>,
    /// By task: hops begun; of a copy that has arrived, `ARRIVED`.
    hops: Vec<u16>,
    requests: Vec<Request>,
    /// How often copies have been served.
    round: u64,
    /// Engines that may have become free for a launch.
    touched: Vec<u32>,
    /// Resources that have become free for a copy.
    freed: Vec<u32>,
    run: Run,
}

const ARRIVED: u16 = u16::MAX;

impl<'a> Simulation<'a> {
    fn new(
        topology: &'a Topology,
        machine: &'a Machine,
        tasks: Tasks<'a>,
        arrivals: Option<Arrivals>,
    ) -> Self {
        let count = tasks.work.len();
        let uploads = tasks.work.iter().filter_map(|work| match work {
            Work::Move { upload, .. } => *upload,
            Work::Run { .. } => None,
        });
        let uploads = uploads.max().map_or(0, |last| last as usize + 1);
        let timeline = Timeline { start: vec![NEVER; count], end: vec![NEVER; count], ..Timeline::default() };
        Self {
            topology,
            machine,
            tasks,
            arrivals,
            now: Nanos::ZERO,
            events: BinaryHeap::new(),
            resources: vec![Resource::default(); machine.engine_count() + machine.channel_count()],
            ready: vec![BinaryHeap::new(); machine.engine_count()],
            uploads: vec![Upload::Unasked; uploads],
            hops: vec![0; count],
            requests: Vec::new(),
            round: 0,
            touched: Vec::new(),
            freed: Vec::new(),
            run: Run { timeline, order: Vec::with_capacity(count) },
        }
    }

    fn run(mut self) -> Run {
        for task in 0..self.tasks.work.len() {
            if self.tasks.waits[task] == 0 {
                self.make_ready(task as u32);
            }
        }
        loop {
            // Copies first: where they take a device's own time, they go before launches that are ready with
            // them.
            self.serve_copies();
            self.serve_launches();
            let Some(&Reverse((time, _))) = self.events.peek() else { return self.run };
            self.now = time;
            // All that ends now ends before anything is served: the most urgent of what is ready goes first.
            while let Some(&Reverse((at, event))) = self.events.peek()
                && at == time
            {
                self.events.pop();
                self.happen(event);
            }
        }
    }

    fn make_ready(&mut self, task: u32) {
        let priority = self.tasks.priority[task as usize];
        match self.tasks.work[task as usize] {
            Work::Run { device, .. } => {
                let engine = self.machine.engine(device);
                self.ready[engine].push(Reverse((priority, task)));
                self.touched.push(engine as u32);
            }
            Work::Move { .. } => self.requests.push((self.round, priority, task)),
        }
    }

    fn happen(&mut self, event: u32) {
        let Some(work) = self.tasks.work.get(event as usize) else {
            let resource = event - self.tasks.work.len() as u32;
            self.resources[resource as usize].is_watched = false;
            self.freed.push(resource);
            if (resource as usize) < self.ready.len() {
                self.touched.push(resource);
            }
            return;
        };
        match *work {
            Work::Run { device, .. } => {
                self.touched.push(self.machine.engine(device) as u32);
                self.complete(event);
            }
            Work::Move { from, to, .. } => {
                if usize::from(self.hops[event as usize]) < self.topology.route(from, to).hops.len() {
                    self.requests.push((self.round, self.tasks.priority[event as usize], event));
                } else {
                    self.arrive(event, to);
                }
            }
        }
    }

    fn arrive(&mut self, copy: u32, to: DeviceId) {
        self.hops[copy as usize] = ARRIVED;
        let Some(arrivals) = &mut self.arrivals else {
            self.run.order.push(copy);
            self.complete(copy);
            return;
        };
        // Completing a copy only makes others ready; none arrives by it.
        let next = arrivals.next[to.index()] as usize;
        let waiting = &arrivals.order.row(to.index())[next..];
        let count = waiting.iter().take_while(|&&copy| self.hops[copy as usize] == ARRIVED).count();
        arrivals.next[to.index()] += count as u32;
        for number in next..next + count {
            let Some(arrivals) = &self.arrivals else { return };
            let copy = arrivals.order.row(to.index())[number];
            self.run.order.push(copy);
            self.complete(copy);
        }
    }

    fn complete(&mut self, task: u32) {
        self.run.timeline.end[task as usize] = self.now;
        self.run.timeline.latency = self.run.timeline.latency.max(self.now);
        let dependents = self.tasks.dependents;
        for &dependent in dependents.row(task as usize) {
            let waits = &mut self.tasks.waits[dependent as usize];
            *waits -= 1;
            if *waits == 0 {
                self.make_ready(dependent);
            }
        }
    }

    fn serve_launches(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for &number in &touched {
            let engine = &mut self.resources[number as usize];
            while engine.free <= self.now
                && let Some(Reverse((_, task))) = self.ready[number as usize].pop()
            {
                let Work::Run { time, .. } = self.tasks.work[task as usize] else { continue };
                self.run.timeline.start[task as usize] = self.now;
                self.run.order.push(task);
                engine.free = self.now + time;
                self.events.push(Reverse((engine.free, task)));
            }
        }
        touched.clear();
        self.touched = touched;
    }

    fn serve_copies(&mut self) {
        let mut freed = std::mem::take(&mut self.freed);
        let mut requests = Vec::new();
        // Those that wait came first. Of those that wait for one resource one after the other, until one takes it.
        while !freed.is_empty() {
            freed.sort_unstable();
            freed.dedup();
            freed.retain(|&number| {
                let next = self.next_waiting(number);
                requests.extend(next);
                next.is_some()
            });
            self.begin(&mut requests);
        }
        self.freed = freed;
        let mut requests = std::mem::take(&mut self.requests);
        self.begin(&mut requests);
        self.requests = requests;
        self.round += 1;
    }

    fn begin(&mut self, requests: &mut Vec<Request>) {
        requests.sort_unstable();
        requests.drain(..).for_each(|request| self.begin_hop(request));
    }

    /// Takes the first copy that waits for a resource off its queue, where the resource is free; else watches it.
    fn next_waiting(&mut self, number: u32) -> Option<Request> {
        let resource = &mut self.resources[number as usize];
        if resource.free <= self.now {
            return resource.waiting.pop().map(|Reverse(request)| request);
        }
        if !resource.waiting.is_empty() && !std::mem::replace(&mut resource.is_watched, true) {
            self.events.push(Reverse((resource.free, self.tasks.work.len() as u32 + number)));
        }
        None
    }

    fn begin_hop(&mut self, request: Request) {
        let (_, _, task) = request;
        let Work::Move { from, to, bytes, upload } = self.tasks.work[task as usize] else { return };
        let route = self.topology.route(from, to);
        let number = usize::from(self.hops[task as usize]);
        let (first, last) = (number == 0, number + 1 == route.hops.len());
        let Some(hop) = route.hops.get(number) else {
            return self.note_hop(task, self.now, self.now);
        };
        let upload = upload.filter(|_| first).map(|upload| upload as usize);
        if let Some(upload) = upload {
            match &mut self.uploads[upload] {
                state @ Upload::Unasked => *state = Upload::Asked(vec![task]),
                Upload::Asked(all) if all.first() == Some(&task) => {}
                // Another copy uploads: this one goes on from there.
                Upload::Asked(all) => return all.push(task),
                &mut Upload::Begun(start, end) => {
                    return self.note_hop(task, start.max(self.now), end.max(self.now));
                }
            }
        }
        let crossing =
            Crossed { task, hop, bytes, engines: self.engines_of(first.then_some(from), last.then_some(to)) };
        if let Some(busy) = self.busy(&crossing) {
            self.resources[busy as usize].waiting.push(Reverse(request));
            self.next_waiting(busy);
            return;
        }
        self.cross(&crossing);
        let end = self.now + hop.latency + hop.bandwidth.time(bytes);
        let together =
            upload.map(|upload| std::mem::replace(&mut self.uploads[upload], Upload::Begun(self.now, end)));
        match together {
            Some(Upload::Asked(all)) => all.iter().for_each(|&task| self.note_hop(task, self.now, end)),
            _ => self.note_hop(task, self.now, end),
        }
    }

    /// Notes that a copy is under way over its next hop.
    fn note_hop(&mut self, task: u32, start: Nanos, end: Nanos) {
        if self.hops[task as usize] == 0 {
            self.run.timeline.start[task as usize] = start;
        }
        self.hops[task as usize] += 1;
        self.events.push(Reverse((end, task)));
    }

    /// The engines that a hop between these devices keeps busy; one engine at both ends is taken once.
    fn engines_of(&self, from: Option<DeviceId>, to: Option<DeviceId>) -> [Option<usize>; 2] {
        let sender = from.and_then(|from| self.machine.copying_engine(from));
        let receiver = to.and_then(|to| self.machine.copying_engine(to));
        [sender, receiver.filter(|_| sender != receiver)]
    }

    /// Of what a hop needs, what is taken for the longest.
    fn busy(&self, crossed: &Crossed<'_>) -> Option<u32> {
        let engines = crossed.engines.into_iter().flatten();
        let needed = crossed
            .hop
            .channels
            .iter()
            .filter(|&&channel| self.machine.occupies(channel, crossed.bytes).is_some());
        let needed = engines.chain(needed.map(|&channel| self.resource_of(channel)));
        let last = needed.max_by_key(|&number| self.resources[number].free)?;
        (self.resources[last].free > self.now).then_some(last as u32)
    }

    fn resource_of(&self, channel: ChannelId) -> usize {
        self.ready.len() + channel.index()
    }

    /// Takes a hop's channels (and engines, where copies take a device's own time).
    fn cross(&mut self, crossed: &Crossed<'_>) {
        let &Crossed { task, hop, bytes, engines } = crossed;
        let (start, time) = (self.now, hop.bandwidth.time(bytes));
        for &channel in &hop.channels {
            let occupied = self.machine.occupies(channel, bytes);
            if let Some(occupied) = occupied {
                let resource = self.resource_of(channel);
                self.resources[resource].free = start + occupied;
            }
            if self.tasks.record {
                let end = start + occupied.unwrap_or(time);
                self.run.timeline.crossings.push(Crossing { step: StepIx(task), channel, start, end });
            }
        }
        for engine in engines.into_iter().flatten() {
            self.resources[engine].free = start + time;
            // Launches may wait for it.
            self.events.push(Reverse((start + time, (self.tasks.work.len() + engine) as u32)));
        }
    }
}

/// A copy over one hop, and the engines that it keeps busy.
struct Crossed<'a> {
    task: u32,
    hop: &'a Hop,
    bytes: Bytes,
    engines: [Option<usize>; 2],
}
