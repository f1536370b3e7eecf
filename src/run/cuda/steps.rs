//! How a step of a program on GPUs goes: the first puts every step of the plan on its stream and waits for it, so that
//! what fails has a name; those after replay one graph. An error names the step that failed or did not end, and its
//! device.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::driver::{Event, Fault, FaultKind, Graph, Outcome};
use super::issue::{Session, StreamSet};
use super::program::CudaProgram;
use crate::error::Error;
use crate::ir::Tensor;

/// A fault, and where it showed.
pub(super) struct Failure {
    /// None where several steps were at work.
    place: Option<String>,
    /// How many steps were on their streams.
    issued: usize,
    fault: Fault,
}

type Done<T = ()> = std::result::Result<T, Failure>;

const BEGINNING: &str = "the run's beginning";
const UPDATE: &str = "the update of the parameters";
const GRAPH: &str = "the plan's graph";

/// Where nothing else is at work.
fn at(place: &str, issued: usize) -> impl FnOnce(Fault) -> Failure {
    move |fault| Failure { place: Some(place.to_owned()), issued, fault }
}

/// Where any step may be at work.
fn among(issued: usize) -> impl FnOnce(Fault) -> Failure {
    move |fault| Failure { place: None, issued, fault }
}

/// A step of several that are put on streams at once: that an earlier one failed may show here.
fn putting(place: &str, number: usize) -> impl FnOnce(Fault) -> Failure {
    move |fault| match fault.kind {
        FaultKind::Kernel | FaultKind::Lost => among(number)(fault),
        _ => at(place, number)(fault),
    }
}

impl CudaProgram {
    /// Works through the plan once, and beside a graph makes the inputs of the next step ready.
    pub(super) fn work(&mut self, deadline: Option<Instant>, next: &[(String, Tensor)]) -> Done {
        match (self.runs, self.timed) {
            (0, _) => self.first(deadline),
            (_, true) => self.eager(deadline),
            (_, false) => self.replay(deadline, next),
        }
    }

    /// Step by step, each waited for.
    fn first(&mut self, deadline: Option<Instant>) -> Done {
        let mut session = Session::timed(&self.streams);
        begin(&self.streams, &self.gpus, deadline).map_err(at(BEGINNING, 0))?;
        for (number, order) in self.orders.iter().enumerate() {
            // Waited for at once, so that a failure is this step's.
            let done = session.step(number, order).and_then(|()| wait(&self.streams, order.lane, deadline));
            done.map_err(at(&order.place, number + 1))?;
        }
        self.update(deadline)?;
        self.measure()
    }

    /// All steps at once, each timed.
    fn eager(&mut self, deadline: Option<Instant>) -> Done {
        let mut session = Session::timed(&self.streams);
        begin(&self.streams, &self.gpus, deadline).map_err(at(BEGINNING, 0))?;
        for (number, order) in self.orders.iter().enumerate() {
            session.step(number, order).map_err(putting(&order.place, number))?;
        }
        for stream in 0..self.streams.lanes.len() {
            wait(&self.streams, stream, deadline).map_err(among(self.orders.len()))?;
        }
        self.update(deadline)?;
        self.measure()
    }

    /// The captured plan.
    fn replay(&mut self, deadline: Option<Instant>, next: &[(String, Tensor)]) -> Done {
        let graph = self.graph()?;
        let all = self.orders.len();
        self.streams.driver.launch_graph(graph, self.streams.lanes[0]).map_err(at(GRAPH, all))?;
        if !next.is_empty() {
            self.stage(next);
        }
        wait(&self.streams, 0, deadline).map_err(among(all))
    }

    /// Replays the graph once, and then as often as is asked, one straight after the other; how long one of the latter
    /// took by the GPU's clock. The first keeps the GPU at work while the others are handed over, so that the host's
    /// part does not count.
    pub(super) fn clocked_steps(&mut self, count: u32, deadline: Option<Instant>) -> Done<Duration> {
        let graph = self.graph()?;
        let (driver, stream, [begin, end]) = (&self.streams.driver, self.streams.lanes[0], self.clock);
        let replay = || driver.launch_graph(graph, stream);
        let launched = replay()
            .and_then(|()| driver.record(begin, stream))
            .and_then(|()| (0..count).try_for_each(|_| replay()))
            .and_then(|()| driver.record(end, stream));
        let all = self.orders.len();
        launched.map_err(at(GRAPH, all))?;
        wait(&self.streams, 0, deadline).map_err(among(all))?;
        let busy = self.streams.driver.elapsed(begin, end).map_err(at(GRAPH, all))?;
        Ok(busy / count.max(1))
    }

    fn graph(&mut self) -> Done<Graph> {
        match self.graph {
            Some(graph) => Ok(graph),
            None => {
                let made = self.capture()?;
                Ok(*self.graph.insert(made))
            }
        }
    }

    /// Captures the plan: with kernels that are begun early where GPUs can, else, or where a driver has no graphs of
    /// such, without.
    fn capture(&mut self) -> Done<Graph> {
        let early = self.streams.early.contains(&true);
        match self.captured_so(early) {
            Err(Failure { fault: Fault { kind: FaultKind::Unsupported | FaultKind::Other, .. }, .. })
                if early =>
            {
                self.captured_so(false)
            }
            done => done,
        }
    }

    /// A capture that fails is ended, so that its streams can be used and given back.
    fn captured_so(&mut self, early: bool) -> Done<Graph> {
        let origin = self.streams.lanes[0];
        // From here on what streams are given becomes the graph, up to the end or an error.
        self.streams.driver.begin_capture(origin).map_err(at(GRAPH, 0))?;
        if let Err(failure) = self.captured(early) {
            self.streams.driver.drop_capture(origin);
            return Err(failure);
        }
        self.resources.end_capture(origin).map_err(at(GRAPH, 0))
    }

    /// Puts all steps on streams that capture.
    fn captured(&self, early: bool) -> Done {
        let mut session =
            if early { Session::overlapping(&self.streams) } else { Session::new(&self.streams) };
        session.fork().map_err(at(GRAPH, 0))?;
        for (number, order) in self.orders.iter().enumerate() {
            session.step(number, order).map_err(at(&order.place, 0))?;
        }
        session.join().map_err(at(GRAPH, 0))?;
        if self.updates.is_empty() {
            return Ok(());
        }
        session.fork().map_err(at(GRAPH, 0))?;
        let mut copies = self.updates.iter();
        copies.try_for_each(|(lane, transfer)| session.transfer(*lane, transfer)).map_err(at(UPDATE, 0))?;
        session.join().map_err(at(GRAPH, 0))
    }

    /// What is copied when all steps are done.
    fn update(&self, deadline: Option<Instant>) -> Done {
        let mut session = Session::new(&self.streams);
        let copied = self.updates.iter().try_for_each(|(lane, transfer)| {
            session.transfer(*lane, transfer)?;
            wait(&self.streams, *lane, deadline)
        });
        copied.map_err(at(UPDATE, self.orders.len()))
    }

    /// Reads the times of all steps.
    fn measure(&mut self) -> Done {
        let streams = &self.streams;
        let mut spans = Vec::with_capacity(self.orders.len());
        for (number, order) in self.orders.iter().enumerate() {
            // Each stream is of a GPU of the program.
            let Some(&(_, start)) = self.gpus.get(&streams.lanes[order.lane].gpu) else { continue };
            let since =
                |event| streams.driver.elapsed(start, event).map_err(at(&order.place, self.orders.len()));
            spans.push((since(streams.begins[number])?, since(streams.ends[number])?));
        }
        // From the first begin to the last end: lanes overlap, so their times are not added up.
        let first = spans.iter().map(|&(begin, _)| begin).min().unwrap_or_default();
        let last = spans.iter().map(|&(_, end)| end).max().unwrap_or_default();
        self.busy = Some(last.saturating_sub(first));
        self.spans = spans;
        Ok(())
    }

    /// A failure after which the GPU is of no use to this program, as an error: with the step where it showed,
    /// or with what each stream was at.
    pub(super) fn failed(&mut self, failure: Failure) -> Error {
        self.broken = true;
        let Failure { place, issued, fault } = failure;
        let hung = fault.kind == FaultKind::Hung;
        self.resources.abandoned |= hung;
        let (named, details) = match place.is_none() || hung {
            true => self.running(issued),
            false => (None, Vec::new()),
        };
        let mut error = fault.at(&place.or(named).unwrap_or_else(|| "the run".to_owned()));
        if let Error::Device { report, .. } = &mut error {
            *report = std::mem::take(report).details(details);
        }
        error
    }

    /// The step that is at work, where it is but one; and by stream with steps: what it is at, or waits for.
    /// `issued` steps are on their streams.
    fn running(&self, issued: usize) -> (Option<String>, Vec<String>) {
        let Some(marks) = &self.streams.marks else {
            return (
                None,
                vec!["with a --timeout steps are marked, and the one that failed is known".to_owned()],
            );
        };
        let last: Vec<Option<usize>> = (0..self.streams.lanes.len()).map(|at| marks.last(at)).collect();
        // The marks of a stream grow in the order of its steps.
        let is_done = |step: usize| last[self.orders[step].lane].is_some_and(|last| last >= step);
        let (mut working, mut lines) = (Vec::new(), Vec::new());
        for (name, lanes) in &self.devices {
            for (lane, what) in lanes.iter().zip(["kernels", "copies"]) {
                let Some(stream) = *lane else { continue };
                let mut own = self.orders.iter().enumerate().filter(|(_, order)| order.lane == stream);
                let left = own.find(|&(number, _)| !is_done(number));
                lines.push(match left {
                    None => format!("{name}: {what} done"),
                    Some((number, order)) if number >= issued => format!("{} has not begun", order.place),
                    Some((_, order)) => match order.after.iter().find(|&&before| !is_done(before)) {
                        Some(before) => format!("{} waits for step {before}", order.place),
                        None => {
                            working.push(order.place.clone());
                            format!("{} is at work", order.place)
                        }
                    },
                });
            }
        }
        let all_done = (0..self.orders.len()).all(is_done);
        let named = match all_done && !self.updates.is_empty() {
            true => Some(UPDATE.to_owned()),
            false => working.pop().filter(|_| working.is_empty()),
        };
        (named, lines)
    }
}

/// Records a run's beginning on each GPU, on which nothing runs.
fn begin(
    streams: &StreamSet,
    gpus: &BTreeMap<u32, (usize, Event)>,
    deadline: Option<Instant>,
) -> Outcome<()> {
    gpus.values().try_for_each(|&(stream, event)| {
        streams.driver.record(event, streams.lanes[stream])?;
        wait(streams, stream, deadline)
    })
}

/// Waits for a stream. Error: it failed, or took longer.
fn wait(streams: &StreamSet, stream: usize, deadline: Option<Instant>) -> Outcome<()> {
    let stream = streams.lanes[stream];
    let Some(deadline) = deadline else { return streams.driver.finish(stream) };
    let mut pause = Duration::ZERO;
    while !streams.driver.is_done(stream)? {
        if Instant::now() >= deadline {
            return Err(Fault::new(FaultKind::Hung, "the time given with --timeout is over"));
        }
        // Short pauses first, as most steps are done soon; then longer ones, to leave the host's cores alone.
        std::thread::sleep(pause);
        pause = (pause + Duration::from_micros(5)).min(Duration::from_micros(200));
    }
    Ok(())
}
