//! A step as trace events, for Perfetto and `chrome://tracing` (the Trace Event Format, JSON object
//! form): a process for each device with its lanes and its memory over time, and one for the links.
//!
//! Slices on one track never overlap: where copies to one device are under way together, each has
//! a track of its own. Events are streamed in the order of their time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::io::{self, Write};

use crate::costgraph::CostGraph;
use crate::escape::quoted;
use crate::plan::{Action, Lane, Plan, Step};
use crate::schedule::{self, Accesses, BufferIx, Crossing, Schedule};
use crate::units::{Bytes, Nanos};

/// Whose clock the times are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The simulator's.
    Simulated,
    /// This machine's.
    Measured,
}

/// When bytes of a device's arena hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Position of the device.
    pub device: u32,
    /// Where they begin in its arena.
    pub offset: Bytes,
    /// How many.
    pub bytes: Bytes,
    /// From when.
    pub start: Nanos,
    /// Until when.
    pub end: Nanos,
    /// True where the step that uses them last takes no time: they outlast what begins then.
    pub outlasts: bool,
}

/// What a trace is written of.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Whose clock the times are of.
    pub clock: Clock,
    /// By step: start and end.
    pub times: &'a [(Nanos, Nanos)],
    /// When each buffer is live.
    pub lives: &'a [Life],
    /// What crosses the links; none where that is not known.
    pub crossings: &'a [Crossing],
}

/// What of a buffer's life falls on a moment, in this order.
const OVER: u8 = 0;
const BEGINS: u8 = 1;
const PASSES: u8 = 2;

/// The compute lane's track; copies have this one and those that follow.
const COMPUTE: usize = 1;
const COPIES: usize = 2;

impl Trace<'_> {
    /// Streams the events. O((steps + buffers) log (steps + buffers)); beside the plan it holds a
    /// few numbers for each step and buffer.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let clock = match self.clock {
            Clock::Simulated => "simulated",
            Clock::Measured => "measured",
        };
        let mut events = Events { out, first: true };
        write!(
            events.out,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"model\":{},\"clock\":\"{clock}\"}},\"traceEvents\":[",
            quoted(&self.plan.model.name)
        )?;
        let devices: HashMap<&str, usize> =
            self.plan.devices.iter().zip(0..).map(|(device, pid)| (device.name.as_str(), pid)).collect();
        self.steps(&mut events, &devices)?;
        self.memory(&mut events)?;
        self.links(&mut events)?;
        events.out.write_all(b"\n]}\n")
    }

    /// The lanes of every device.
    fn steps(&self, events: &mut Events<'_>, devices: &HashMap<&str, usize>) -> io::Result<()> {
        let mut by_device: Vec<[Vec<u32>; 2]> = vec![Default::default(); self.plan.devices.len()];
        for ((position, step), _) in (0..).zip(&self.plan.steps).zip(self.times) {
            if let Some(&pid) = devices.get(&*step.device) {
                by_device[pid][usize::from(step.lane == Lane::Copy)].push(position);
            }
        }
        for (pid, (device, [launches, copies])) in self.plan.devices.iter().zip(by_device).enumerate() {
            events.metadata("process_name", pid, None, &format!("{} ({})", device.name, device.target))?;
            events.sort_index(pid)?;
            self.lane(events, pid, COMPUTE, "compute", launches)?;
            self.lane(events, pid, COPIES, "copies", copies)?;
        }
        Ok(())
    }

    /// The slices of one lane, on as many tracks as run at once.
    fn lane(
        &self,
        events: &mut Events<'_>,
        pid: usize,
        first: usize,
        name: &str,
        mut steps: Vec<u32>,
    ) -> io::Result<()> {
        let time = |step: u32| self.times[step as usize];
        steps.sort_unstable_by_key(|&step| (time(step).0, step));
        let mut tracks = Tracks::default();
        for step in steps {
            let (start, end) = time(step);
            let (track, is_new) = tracks.take(start, end);
            let tid = first + track;
            if is_new {
                let number = if track == 0 { String::new() } else { format!(" {}", track + 1) };
                events.metadata("thread_name", pid, Some(tid), &format!("{name}{number}"))?;
            }
            self.slice(events, Slice { pid, tid, start, end }, &self.plan.steps[step as usize])?;
        }
        Ok(())
    }

    fn slice(&self, events: &mut Events<'_>, slice: Slice, step: &Step) -> io::Result<()> {
        let Slice { pid, tid, start, end } = slice;
        let (name, category) = match &step.action {
            Action::Launch(launch) => (launch.nodes.join(" + "), "kernel"),
            Action::Copy(copy) => (format!("copy {}", copy.bytes), "copy"),
        };
        events.begin()?;
        write!(
            events.out,
            "{{\"ph\":\"X\",\"pid\":{pid},\"tid\":{tid},\"ts\":{},\"dur\":{},\"name\":{},\"cat\":\"{category}\",\"args\":{{\"step\":{}",
            Micros(start),
            Micros(end.saturating_sub(start)),
            quoted(if name.is_empty() { "launch" } else { &name }),
            step.id
        )?;
        match &step.action {
            Action::Launch(launch) => {
                if let Some(kernel) = &launch.kernel {
                    write!(events.out, ",\"kernel\":{}", quoted(kernel))?;
                }
            }
            Action::Copy(copy) => {
                write!(
                    events.out,
                    ",\"from\":{},\"to\":{},\"bytes\":{}",
                    quoted(&copy.from),
                    quoted(&copy.to),
                    copy.bytes.get()
                )?;
            }
        }
        if let Some(why) = &step.why {
            write!(events.out, ",\"why\":{}", quoted(why))?;
        }
        write!(events.out, "}}}}")
    }

    /// A counter of live bytes for each device. Bytes that one step reads and writes in place count
    /// once.
    fn memory(&self, events: &mut Events<'_>) -> io::Result<()> {
        // At one moment first ends what began earlier, then each begins, and ends where it takes no
        // time.
        let mut changes: Vec<(u32, Nanos, u8, u32)> = Vec::with_capacity(2 * self.lives.len());
        for (number, life) in (0..).zip(self.lives) {
            if life.bytes > Bytes::ZERO {
                let end = if life.end > life.start && !life.outlasts { OVER } else { PASSES };
                changes.push((life.device, life.start, BEGINS, number));
                changes.push((life.device, life.end.max(life.start), end, number));
            }
        }
        changes.sort_unstable();
        let mut live = Live::default();
        for (position, &(device, time, phase, number)) in changes.iter().enumerate() {
            live.change(&self.lives[number as usize], phase);
            let next = changes.get(position + 1).filter(|next| next.0 == device);
            let ends = match next {
                Some(&(_, other, next, _)) => other != time || next == PASSES && phase != PASSES,
                None => true,
            };
            if ends {
                events.begin()?;
                write!(
                    events.out,
                    "{{\"ph\":\"C\",\"pid\":{device},\"tid\":0,\"ts\":{},\"name\":\"memory\",\"args\":{{\"bytes\":{}}}}}",
                    Micros(time),
                    live.bytes
                )?;
            }
            if next.is_none() {
                live = Live::default();
            }
        }
        Ok(())
    }

    /// What crosses each channel; the links are a process of their own.
    fn links(&self, events: &mut Events<'_>) -> io::Result<()> {
        if self.crossings.is_empty() {
            return Ok(());
        }
        let pid = self.plan.devices.len();
        events.metadata("process_name", pid, None, "links")?;
        events.sort_index(pid)?;
        let mut by_channel: BTreeMap<u32, Vec<&Crossing>> = BTreeMap::new();
        for crossing in self.crossings {
            by_channel.entry(crossing.channel.0).or_default().push(crossing);
        }
        let mut next = COMPUTE;
        for (channel, mut crossings) in by_channel {
            let name =
                self.plan.topology.channels.get(channel as usize).map_or("link", |channel| &channel.name);
            crossings.sort_by_key(|crossing| crossing.start);
            let mut tracks = Tracks::default();
            let mut tids = Vec::new();
            for crossing in crossings {
                let (track, is_new) = tracks.take(crossing.start, crossing.end);
                if is_new {
                    let number = if track == 0 { String::new() } else { format!(" {}", track + 1) };
                    events.metadata("thread_name", pid, Some(next), &format!("{name}{number}"))?;
                    tids.push(next);
                    next += 1;
                }
                let Some(step) = self.plan.steps.get(crossing.step.index()) else { continue };
                let (start, end) = (crossing.start, crossing.end);
                self.slice(events, Slice { pid, tid: tids[track], start, end }, step)?;
            }
        }
        Ok(())
    }
}

/// Where a step is drawn: process and thread of the trace, and the time that it takes.
#[derive(Clone, Copy)]
struct Slice {
    pid: usize,
    tid: usize,
    start: Nanos,
    end: Nanos,
}

/// Bytes that are live on one device.
#[derive(Default)]
struct Live {
    bytes: u64,
    /// By offset: the lengths of what is live there. Looked up, never iterated.
    at: HashMap<u64, Vec<u64>>,
}

impl Live {
    fn change(&mut self, life: &Life, phase: u8) {
        let lengths = self.at.entry(life.offset.get()).or_default();
        let before = lengths.iter().copied().max().unwrap_or(0);
        if phase == BEGINS {
            lengths.push(life.bytes.get());
        } else if let Some(position) = lengths.iter().position(|&length| length == life.bytes.get()) {
            lengths.swap_remove(position);
        }
        let after = lengths.iter().copied().max().unwrap_or(0);
        if lengths.is_empty() {
            self.at.remove(&life.offset.get());
        }
        self.bytes = self.bytes.saturating_sub(before).saturating_add(after);
    }
}

/// The tracks of a lane: which are free.
#[derive(Default)]
struct Tracks {
    count: usize,
    /// (end, track) of what runs.
    busy: BinaryHeap<Reverse<(Nanos, usize)>>,
    free: BinaryHeap<Reverse<usize>>,
}

impl Tracks {
    /// The least track that is free from `start`; true where it is a new one. Starts ascend.
    fn take(&mut self, start: Nanos, end: Nanos) -> (usize, bool) {
        while let Some(&Reverse((until, track))) = self.busy.peek()
            && until <= start
        {
            self.busy.pop();
            self.free.push(Reverse(track));
        }
        let (track, is_new) = match self.free.pop() {
            Some(Reverse(track)) => (track, false),
            None => {
                self.count += 1;
                (self.count - 1, true)
            }
        };
        self.busy.push(Reverse((end, track)));
        (track, is_new)
    }
}

/// The stream of events.
struct Events<'a> {
    out: &'a mut dyn Write,
    first: bool,
}

impl Events<'_> {
    /// What stands before an event.
    fn begin(&mut self) -> io::Result<()> {
        self.out.write_all(if std::mem::take(&mut self.first) { b"\n" } else { b",\n" })
    }

    fn metadata(&mut self, what: &str, pid: usize, tid: Option<usize>, name: &str) -> io::Result<()> {
        self.begin()?;
        let (tid, name) = (tid.unwrap_or(0), quoted(name));
        write!(
            self.out,
            "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"ts\":0,\"name\":\"{what}\",\"args\":{{\"name\":{name}}}}}"
        )
    }

    /// Keeps the devices in the plan's order.
    fn sort_index(&mut self, pid: usize) -> io::Result<()> {
        self.begin()?;
        write!(
            self.out,
            "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":0,\"ts\":0,\"name\":\"process_sort_index\",\"args\":{{\"sort_index\":{pid}}}}}"
        )
    }
}

/// Nanoseconds as the format's microseconds, exactly.
struct Micros(Nanos);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(Nanos(nanos)) = self;
        match nanos % 1000 {
            0 => write!(f, "{}", nanos / 1000),
            rest => write!(f, "{}.{rest:03}", nanos / 1000),
        }
    }
}

/// When each buffer of a schedule is live on the simulated timeline. What is there before the step
/// stays; results are there to its end. O((steps + edges) log buffers).
pub fn lives_of_schedule(graph: &CostGraph, schedule: &Schedule) -> Vec<Life> {
    let accesses = Accesses::new(graph, schedule);
    let mut spans = TraceSpans::new(schedule.buffers.len());
    for step in &schedule.steps {
        let mut used = |buffer: BufferIx| spans.used(buffer.index(), step.start, step.end);
        match step.action {
            schedule::Action::Launch(node) => {
                accesses.reads(node, step.device).into_iter().for_each(&mut used);
                accesses.writes(node, step.device).into_iter().for_each(&mut used);
            }
            schedule::Action::Copy { from, to, .. } => {
                used(from);
                used(to);
            }
        }
    }
    let end = schedule.cost.latency;
    let buffers = schedule.buffers.iter().zip(&spans.list);
    buffers
        .filter_map(|(buffer, &span)| {
            let (start, end, outlasts) = match buffer.kind {
                schedule::BufferKind::Input | schedule::BufferKind::Param => (Nanos::ZERO, end, true),
                schedule::BufferKind::Output => (span?.0, end, true),
                schedule::BufferKind::Temp | schedule::BufferKind::Copy | schedule::BufferKind::Workspace => {
                    span?
                }
            };
            Some(Life {
                device: buffer.device.0,
                offset: buffer.offset,
                bytes: buffer.bytes,
                start,
                end,
                outlasts,
            })
        })
        .collect()
}

/// When each buffer of a plan is live at these times of its steps; none of a plan from a cost
/// graph, which has no buffers. Views have no bytes of their own. O(steps + buffers).
pub fn lives_of_plan(plan: &Plan, times: &[(Nanos, Nanos)]) -> Vec<Life> {
    use crate::plan::BufferKind;
    let numbers: HashMap<&str, usize> =
        plan.buffers.iter().zip(0..).map(|(buffer, number)| (buffer.id.as_str(), number)).collect();
    let devices: HashMap<&str, u32> =
        plan.devices.iter().zip(0..).map(|(device, number)| (device.name.as_str(), number)).collect();
    let mut spans = TraceSpans::new(plan.buffers.len());
    for (step, &(start, end)) in plan.steps.iter().zip(times) {
        let mut used = |id: &String| {
            if let Some(&buffer) = numbers.get(id.as_str()) {
                spans.used(buffer, start, end);
            }
        };
        match &step.action {
            Action::Launch(launch) => launch.reads.iter().chain(&launch.writes).for_each(&mut used),
            Action::Copy(copy) => [&copy.from, &copy.to].into_iter().for_each(&mut used),
        }
    }
    let end = times.iter().map(|&(_, end)| end).max().unwrap_or_default();
    let buffers = plan.buffers.iter().zip(&spans.list).filter(|(buffer, _)| buffer.alias.is_none());
    buffers
        .filter_map(|(buffer, &span)| {
            let (start, end, outlasts) = match buffer.kind {
                BufferKind::Input | BufferKind::Param | BufferKind::State | BufferKind::Const => {
                    (Nanos::ZERO, end, true)
                }
                BufferKind::Output => (span?.0, end, true),
                BufferKind::Temp | BufferKind::Copy | BufferKind::Workspace => span?,
            };
            let device = *devices.get(buffer.device.as_str())?;
            Some(Life { device, offset: buffer.offset, bytes: buffer.bytes, start, end, outlasts })
        })
        .collect()
}

/// First and last use of buffers.
struct TraceSpans {
    /// Its start and end, and whether the step that uses it last takes no time.
    list: Vec<Option<(Nanos, Nanos, bool)>>,
}

impl TraceSpans {
    fn new(count: usize) -> Self {
        Self { list: vec![None; count] }
    }

    fn used(&mut self, buffer: usize, start: Nanos, end: Nanos) {
        let passes = start == end;
        let (first, last, outlasts) = self.list[buffer].get_or_insert((start, end, passes));
        *outlasts =
            end > *last && passes || end == *last && (*outlasts || passes) || end < *last && *outlasts;
        (*first, *last) = ((*first).min(start), (*last).max(end));
    }
}
