//! Names become numbers. What names nothing, or is named twice, is a violation here, so that the
//! proofs that follow can index freely.

use std::collections::{HashMap, HashSet};

use super::super::{Action, Buffer, BufferKind, CopyAction, Lane, Plan, Step};
use super::Faults;
use super::parts::ByteRange;
use crate::csr::Csr;

/// What a step touches, by number.
pub(super) enum Touch {
    /// Operands and results of a launch.
    Launch { reads: Box<[u32]>, writes: Box<[u32]> },
    /// Source and target of a copy, and the bytes of both that it moves, as a start and an end.
    Copy { from: u32, to: u32, range: ByteRange },
}

/// A step with numbers for names.
pub(super) struct ResolvedStep {
    pub(super) device: u32,
    /// Position among the lanes in use.
    pub(super) lane: u32,
}

/// The steps of a plan. There are millions: what all of them lack takes no bytes of each.
pub(super) struct ResolvedSteps {
    pub(super) list: Vec<ResolvedStep>,
    /// By step: positions in the list of the steps under `after`, all before its own.
    pub(super) after: Csr,
    /// Number of lanes in use.
    pub(super) lanes: usize,
    /// By step; empty where the plan has no buffers.
    touched: Vec<Touch>,
    /// What each step of a plan without buffers touches: nothing.
    nothing: Touch,
}

impl ResolvedSteps {
    fn new() -> Self {
        let nothing = Touch::Launch { reads: Box::default(), writes: Box::default() };
        Self { list: Vec::new(), after: Csr::new(), lanes: 0, touched: Vec::new(), nothing }
    }

    /// What a step touches.
    pub(super) fn touch(&self, step: usize) -> &Touch {
        self.touched.get(step).unwrap_or(&self.nothing)
    }

    /// Steps with what they touch.
    pub(super) fn touches(&self) -> impl Iterator<Item = (&ResolvedStep, &Touch)> {
        self.list.iter().enumerate().map(|(number, step)| (step, self.touch(number)))
    }
}

/// A buffer with numbers for names.
pub(super) struct ResolvedBuffer {
    pub(super) device: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: BufferKind,
    /// The buffer at the end of its chain of aliases: itself, where it is no view.
    pub(super) storage: u32,
    /// The buffer under `alias`.
    pub(super) alias: Option<u32>,
}

/// A plan with numbers for names.
pub(super) struct Resolved<'a> {
    pub(super) devices: HashMap<&'a str, u32>,
    pub(super) buffers: Vec<ResolvedBuffer>,
    pub(super) steps: ResolvedSteps,
}

/// What is made of `alias`.
#[derive(Clone, Copy)]
pub(super) enum Views<'v> {
    /// A view has its bytes of what it names.
    Declared,
    /// A buffer has the bytes that its offset gives it, whatever it names, for kernels that write a view write bytes; but
    /// for these, by their ids, for which no kernel runs.
    Known(&'v HashSet<&'v str>),
}

/// Numbers every name; none where one of them names nothing.
pub(super) fn resolve<'a>(plan: &'a Plan, views: Views<'_>, faults: &mut Faults) -> Option<Resolved<'a>> {
    let before = faults.count;
    let too_many = |len: usize| u32::try_from(len).is_err();
    let waits = plan.steps.iter().map(|step| step.after.len()).sum();
    let lengths = [plan.steps.len(), waits, plan.placement.len(), plan.buffers.len(), plan.devices.len()];
    if lengths.into_iter().any(too_many) {
        faults.add(|| "more than 2^32 steps, entries under `after`, placed nodes, buffers or devices".into());
        return None;
    }
    let devices = devices(plan, faults);
    let ids = buffer_ids(plan, faults);
    let mut buffers = Vec::with_capacity(plan.buffers.len());
    for buffer in &plan.buffers {
        buffers.push(resolve_buffer(buffer, &devices, &ids, faults)?);
    }
    feeds(plan, &ids, faults);
    if let Views::Known(known) = views {
        let others = plan.buffers.iter().zip(&mut buffers).filter(|(of, _)| !known.contains(of.id.as_str()));
        others.for_each(|(_, buffer)| buffer.alias = None);
    }
    storages(plan, &mut buffers, faults);
    let steps = steps(plan, &devices, &ids, faults)?;
    (faults.count == before).then_some(Resolved { devices, buffers, steps })
}

/// Devices by name; the list is the topology's.
fn devices<'a>(plan: &'a Plan, faults: &mut Faults) -> HashMap<&'a str, u32> {
    let mut devices = HashMap::with_capacity(plan.devices.len());
    for (i, device) in plan.devices.iter().enumerate() {
        if devices.insert(device.name.as_str(), i as u32).is_some() {
            faults.add(|| format!("device {} appears twice", device.name));
        }
        match plan.topology.devices.get(i) {
            Some(other) if other.name == device.name => {
                if other.memory != device.memory {
                    faults.add(|| {
                        format!(
                            "device {} has {} bytes of memory, and {} in the topology",
                            device.name, device.memory.0, other.memory.0
                        )
                    });
                }
            }
            Some(_) | None => {
                faults.add(|| format!("device {} is not device {i} of the topology", device.name));
            }
        }
    }
    if plan.topology.devices.len() > plan.devices.len() {
        faults.add(|| {
            format!("{} devices, and {} in the topology", plan.devices.len(), plan.topology.devices.len())
        });
    }
    devices
}

fn buffer_ids<'a>(plan: &'a Plan, faults: &mut Faults) -> HashMap<&'a str, u32> {
    let mut ids = HashMap::with_capacity(plan.buffers.len());
    for (i, buffer) in plan.buffers.iter().enumerate() {
        if ids.insert(buffer.id.as_str(), i as u32).is_some() {
            faults.add(|| format!("buffer {} appears twice", buffer.id));
        }
    }
    ids
}

/// What takes a state's place is of its bytes and on its device.
fn feeds(plan: &Plan, ids: &HashMap<&str, u32>, faults: &mut Faults) {
    for buffer in &plan.buffers {
        let Some(state) = &buffer.feeds else { continue };
        let found = ids.get(state.as_str()).map(|&state| &plan.buffers[state as usize]);
        let fits = found.is_some_and(|state| {
            let alike = state.device == buffer.device && state.bytes == buffer.bytes;
            alike && state.kind == BufferKind::State && buffer.kind == BufferKind::Output
        });
        if !fits {
            let id = &buffer.id;
            faults.add(|| format!("{id} feeds {state}, which is no state of its bytes on its device"));
        }
    }
}

fn resolve_buffer(
    buffer: &Buffer,
    devices: &HashMap<&str, u32>,
    ids: &HashMap<&str, u32>,
    faults: &mut Faults,
) -> Option<ResolvedBuffer> {
    let Some(&device) = devices.get(buffer.device.as_str()) else {
        faults.add(|| format!("buffer {}: unknown device {}", buffer.id, buffer.device));
        return None;
    };
    let Some(end) = buffer.offset.0.checked_add(buffer.bytes.0) else {
        faults.add(|| format!("buffer {} ends beyond 2^64 bytes", buffer.id));
        return None;
    };
    let alias = match &buffer.alias {
        None => None,
        Some(alias) => match ids.get(alias.as_str()) {
            Some(&alias) => Some(alias),
            None => {
                faults.add(|| format!("buffer {} is a view of unknown buffer {alias}", buffer.id));
                return None;
            }
        },
    };
    Some(ResolvedBuffer { device, start: buffer.offset.0, end, kind: buffer.kind, storage: 0, alias })
}

/// Follows each chain of aliases to its end. O(buffers): a chain once followed is not walked again.
fn storages(plan: &Plan, buffers: &mut [ResolvedBuffer], faults: &mut Faults) {
    const UNKNOWN: u32 = u32::MAX;
    const ON_PATH: u32 = u32::MAX - 1;
    for buffer in buffers.iter_mut() {
        buffer.storage = UNKNOWN;
    }
    for i in 0..buffers.len() {
        let mut path = Vec::new();
        let mut at = i;
        let storage = loop {
            match (buffers[at].storage, buffers[at].alias) {
                (ON_PATH, _) => {
                    faults.add(|| format!("buffer {} is a view of itself", plan.buffers[at].id));
                    break at as u32;
                }
                (UNKNOWN, None) => {
                    buffers[at].storage = at as u32;
                    break at as u32;
                }
                (UNKNOWN, Some(next)) => {
                    buffers[at].storage = ON_PATH;
                    path.push(at);
                    at = next as usize;
                }
                (known, _) => break known,
            }
        };
        for at in path {
            buffers[at].storage = storage;
        }
    }
}

fn steps(
    plan: &Plan,
    devices: &HashMap<&str, u32>,
    buffers: &HashMap<&str, u32>,
    faults: &mut Faults,
) -> Option<ResolvedSteps> {
    const NO_LANE: u32 = u32::MAX;
    // Lanes are numbered as they come into use: every clock has an entry for each.
    let mut lane_of = vec![NO_LANE; plan.devices.len() * 2];
    let mut lanes = 0;
    // Whoever numbers steps by their positions, as the planner does, needs no table of them.
    let numbered = plan.steps.iter().zip(0u64..).all(|(step, at)| step.id == at);
    let mut positions: HashMap<u64, u32> = HashMap::new();
    let mut resolved = ResolvedSteps::new();
    let mut whole = true;
    for (i, step) in plan.steps.iter().enumerate() {
        // Looked up before the step itself is known: it cannot wait for itself.
        let position = |other: u64| match numbered {
            true => (other < i as u64).then_some(other as u32),
            false => positions.get(&other).copied(),
        };
        let waits = after(step, position, &mut resolved.after, faults);
        if !numbered && positions.insert(step.id, i as u32).is_some() {
            faults.add(|| format!("step {} appears twice", step.id));
            whole = false;
        }
        let touch = touch(plan, step, buffers, faults);
        let device = devices.get(&*step.device).copied();
        if device.is_none() {
            faults.add(|| format!("step {}: unknown device {}", step.id, step.device));
        }
        let (Some(()), Some(touch), Some(device)) = (waits, touch, device) else {
            whole = false;
            continue;
        };
        let lane = &mut lane_of[device as usize * 2 + usize::from(step.lane == Lane::Copy)];
        if *lane == NO_LANE {
            *lane = lanes;
            lanes += 1;
        }
        resolved.list.push(ResolvedStep { device, lane: *lane });
        resolved.touched.extend(touch);
    }
    resolved.lanes = lanes as usize;
    whole.then_some(resolved)
}

/// Adds a row with what a step waits for; none where something of it does not come before the step.
fn after(
    step: &Step,
    position: impl Fn(u64) -> Option<u32>,
    rows: &mut Csr,
    faults: &mut Faults,
) -> Option<()> {
    for &other in &step.after {
        match position(other) {
            Some(position) => rows.push(position),
            None => {
                faults.add(|| format!("step {} is after {other}, which does not come before it", step.id));
                return None;
            }
        }
    }
    rows.end_row();
    Some(())
}

/// What a step touches, none of it in a plan without buffers; none where it touches what is not there.
fn touch(
    plan: &Plan,
    step: &Step,
    buffers: &HashMap<&str, u32>,
    faults: &mut Faults,
) -> Option<Option<Touch>> {
    let mut find = |id: &str| {
        let found = buffers.get(id).copied();
        if found.is_none() {
            faults.add(|| format!("step {} uses unknown buffer {id}", step.id));
        }
        found
    };
    match &step.action {
        Action::Launch(launch) => {
            let reads = launch.reads.iter().map(|id| find(id)).collect::<Option<_>>()?;
            let writes = launch.writes.iter().map(|id| find(id)).collect::<Option<_>>()?;
            Some((!plan.buffers.is_empty()).then_some(Touch::Launch { reads, writes }))
        }
        Action::Copy(copy) if plan.buffers.is_empty() && copy.node.is_some() => Some(None),
        Action::Copy(copy) => Some(Some(Touch::Copy {
            from: find(&copy.from)?,
            to: find(&copy.to)?,
            range: range(step, copy, faults)?,
        })),
    }
}

/// The bytes that a copy moves.
fn range(step: &Step, copy: &CopyAction, faults: &mut Faults) -> Option<ByteRange> {
    let (offset, bytes) = copy.part.map_or((0, copy.bytes.0), |(offset, bytes)| (offset.0, bytes.0));
    let end = offset.checked_add(bytes);
    if end.is_none() {
        faults.add(|| format!("step {} copies bytes beyond 2^64", step.id));
    }
    Some(ByteRange { start: offset, end: end? })
}
