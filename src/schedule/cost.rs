//! What a placement and its schedule cost: loads in steady state, bytes moved, peaks of memory.

use crate::schedule::problem::Problem;
use crate::schedule::{Action, Buffer, BufferIx, BufferKind, Cost, DeviceUsage, Schedule, Step};
use crate::topology::Hop;
use crate::units::{Bytes, Nanos};

/// The highest of [`loads`].
pub(crate) fn max_load(problem: &Problem<'_>) -> Nanos {
    let (engines, channels) = loads(problem);
    engines.into_iter().map(|(own, copies)| own + copies).chain(channels).max().unwrap_or_default()
}

/// The loads of engines and channels when steps follow one another without end: for an engine the
/// time of all launches on it (all slices of one physical device together), and beside it, where
/// communication is added, the time of each tensor that leaves or reaches it; for a channel the
/// time of the bytes that cross it. A tensor whose copies share an upload leaves once.
pub(crate) fn loads(problem: &Problem<'_>) -> (Vec<(Nanos, Nanos)>, Vec<Nanos>) {
    let machine = &problem.machine;
    let mut engines = vec![(Nanos::ZERO, Nanos::ZERO); machine.engine_count()];
    let mut channels = vec![Nanos::ZERO; machine.channel_count()];
    for node in problem.graph.nodes() {
        engines[machine.engine(problem.device(node))].0 += problem.duration(node);
    }
    let mut uploaded = vec![false; problem.copies.upload_count()];
    for copy in problem.copies.iter() {
        let (from, to) = (problem.copies.target(copy).from, problem.copies.target(copy).to);
        let bytes = problem.copies.bytes(copy);
        let hops = &problem.topology.route(from, to).hops;
        let upload = problem.copies.upload(copy);
        // A shared upload leaves the sender once; the other copies begin with the second hop.
        let again = upload.is_some_and(|group| std::mem::replace(&mut uploaded[group as usize], true));
        for hop in hops.iter().skip(usize::from(again)) {
            cross(problem, hop, bytes, &mut channels);
        }
        let ends = [(from, hops.first().filter(|_| !again)), (to, hops.last())];
        // Over one hop both ends may share an engine, which the copy takes once.
        let mut sender = None;
        for (device, hop) in ends {
            if let (Some(engine), Some(hop)) = (machine.copying_engine(device), hop)
                && !(hops.len() == 1 && sender == Some(engine))
            {
                engines[engine].1 += hop.bandwidth.time(bytes);
                sender = Some(engine);
            }
        }
    }
    (engines, channels)
}

fn cross(problem: &Problem<'_>, hop: &Hop, bytes: Bytes, channels: &mut [Nanos]) {
    for &channel in &hop.channels {
        if let Some(time) = problem.machine.occupies(channel, bytes) {
            channels[channel.index()] += time;
        }
    }
}

/// Bytes that the copies move in a step.
pub(crate) fn step_bytes(problem: &Problem<'_>) -> Bytes {
    problem.copies.iter().map(|copy| problem.copies.bytes(copy)).sum()
}

/// Costs that follow from the placement alone.
pub(crate) fn of_placement(problem: &Problem<'_>, load_bytes: Bytes) -> Cost {
    Cost { step_bytes: step_bytes(problem), load_bytes, latency: Nanos::ZERO, max_load: max_load(problem) }
}

/// A point on the simulated timeline. Points at one time are ordered by the steps: first ends what began
/// earlier, then each step begins, and ends where it takes no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Nanos, u64);

impl Moment {
    pub(crate) const FIRST: Self = Self(Nanos::ZERO, 0);
    pub(crate) const LAST: Self = Self(Nanos::MAX, u64::MAX);

    /// When the step at this position begins.
    pub(crate) fn start(step: &Step, position: usize) -> Self {
        Self(step.start, 2 * position as u64 + 1)
    }

    /// When it ends.
    pub(crate) fn end(step: &Step, position: usize) -> Self {
        Self(step.end, if step.end > step.start { 0 } else { 2 * position as u64 + 2 })
    }
}

/// Adds busy times and received bytes from a schedule's times.
pub(crate) fn measure_lanes(schedule: &mut Schedule) {
    for step in &schedule.steps {
        let usage = &mut schedule.devices[step.device.index()];
        match step.action {
            Action::Launch(_) => usage.busy += step.end.saturating_sub(step.start),
            Action::Copy { to, part, .. } => {
                usage.received += part.map_or(schedule.buffers[to.index()].bytes, |part| part.bytes)
            }
        }
    }
}

/// By buffer: when it is first written and when its last use ends. `in_place` holds pairs of which
/// the second takes the first one's bytes; `touched` visits the buffers that a step uses.
pub(crate) fn users(
    steps: &[Step],
    buffers: &[Buffer],
    in_place: &[(u32, u32)],
    touched: impl Fn(&Step, &mut dyn FnMut(u32, bool)),
) -> Vec<(Moment, Moment)> {
    let mut users = vec![(Moment::LAST, Moment::FIRST); buffers.len()];
    for (position, step) in steps.iter().enumerate() {
        touched(step, &mut |buffer, _| {
            let (start, end) = &mut users[buffer as usize];
            *start = (*start).min(Moment::start(step, position));
            *end = (*end).max(Moment::end(step, position));
        });
    }
    // What is taken over in place is over when its bytes have another meaning.
    in_place.iter().for_each(|&(old, new)| users[old as usize].1 = users[new as usize].0);
    users
}

/// Sets the peaks and what is alive then, from a schedule's times and the [`users`] of its buffers.
pub(crate) fn measure_memory(schedule: &mut Schedule, users: &[(Moment, Moment)]) {
    let lives: Vec<Option<(Moment, Moment)>> =
        schedule.buffers.iter().zip(users).map(|(buffer, &users)| life(buffer, users)).collect();
    let at = peaks(schedule, &lives);
    schedule.at_peak = vec![Vec::new(); schedule.devices.len()];
    for (number, (buffer, life)) in schedule.buffers.iter().zip(&lives).enumerate() {
        let at = at[buffer.device.index()];
        if life.is_some_and(|(from, until)| from <= at && at < until) {
            schedule.at_peak[buffer.device.index()].push(BufferIx(number as u32));
        }
    }
}

/// From when until when a buffer is alive; none where it is there before the step, or never.
fn life(buffer: &Buffer, (from, until): (Moment, Moment)) -> Option<(Moment, Moment)> {
    let until = if buffer.kind == BufferKind::Output { Moment::LAST } else { until };
    let alive = !buffer.kind.is_resident() && buffer.bytes > Bytes::ZERO && from < until;
    alive.then_some((from, until))
}

/// Sets the peaks; by device, when the peak is.
fn peaks(schedule: &mut Schedule, lives: &[Option<(Moment, Moment)>]) -> Vec<Moment> {
    let mut changes: Vec<Vec<Change>> = vec![Vec::new(); schedule.devices.len()];
    for (buffer, life) in schedule.buffers.iter().zip(lives) {
        let Some((from, until)) = *life else { continue };
        let changes = &mut changes[buffer.device.index()];
        changes.push(Change { at: from, begins: true, bytes: buffer.bytes });
        if until < Moment::LAST {
            changes.push(Change { at: until, begins: false, bytes: buffer.bytes });
        }
    }
    let of_device = |(usage, changes): (&mut DeviceUsage, Vec<Change>)| {
        let (peak, at) = peak(usage.resident, changes);
        usage.peak = peak;
        at
    };
    schedule.devices.iter_mut().zip(changes).map(of_device).collect()
}

/// A buffer's bytes are taken, or given back.
#[derive(Clone, Copy)]
struct Change {
    at: Moment,
    begins: bool,
    bytes: Bytes,
}

/// The most bytes alive at once on one device, and when. O(changes log changes).
fn peak(resident: Bytes, mut changes: Vec<Change>) -> (Bytes, Moment) {
    // What ends at a moment makes room for what begins there.
    changes.sort_unstable_by_key(|change| (change.at, change.begins));
    let (mut live, mut peak) = (resident, (resident, Moment::FIRST));
    for Change { at, begins, bytes } in changes {
        live = if begins { live + bytes } else { live.saturating_sub(bytes) };
        if live > peak.0 {
            peak = (live, at);
        }
    }
    peak
}
