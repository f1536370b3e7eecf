//! Copies join two devices and carry values, whole or in parts, each to each device once, and back
//! to the device that made it only for a reader there; the figures under `cost` follow.

use std::collections::{HashMap, HashSet};

use super::super::{Action, Buffer, BufferKind, CopyAction, Plan, Step};
use super::Faults;
use super::resolve::{Resolved, Touch};
use crate::units::Bytes;

/// Gives the number of copies, and the bytes that they move.
pub(super) fn check(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) -> (usize, Bytes) {
    let (mut copies, mut moved) = (0, Bytes::ZERO);
    let mut buffers = BufferCopies::new(resolved);
    let mut nodes = NodeCopies::default();
    for (step, (_, touch)) in plan.steps.iter().zip(resolved.steps.touches()) {
        let Action::Copy(copy) = &step.action else {
            buffers.launch(resolved, touch);
            continue;
        };
        copies += 1;
        moved += copy.bytes;
        match *touch {
            Touch::Copy { from, to, .. } => buffers.check(plan, resolved, step, copy, (from, to), faults),
            Touch::Launch { .. } => nodes.check(resolved, step, copy, faults),
        }
    }
    nodes.finish(faults);
    buffers.finish(plan, resolved, faults);
    let cost = &plan.cost;
    if cost.step_bytes != moved {
        faults.add(|| format!("cost.step_bytes is {}, the copies move {}", cost.step_bytes.0, moved.0));
    }
    if cost.transfer_bytes != cost.step_bytes + cost.load_bytes {
        faults.add(|| {
            format!(
                "cost.transfer_bytes is {}, step and load bytes together {}",
                cost.transfer_bytes.0,
                (cost.step_bytes + cost.load_bytes).0
            )
        });
    }
    if !plan.buffers.is_empty() {
        load_bytes(plan, resolved, faults);
    }
    (copies, moved)
}

/// Where a value was made: the buffer, and whether the step wrote it in the place of the state that was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Origin {
    buffer: u32,
    is_updated: bool,
}

/// A copy between buffers.
struct BufferCopies {
    /// By buffer: where the value that it holds was made, following copies back.
    origin: Vec<Origin>,
    /// By origin and receiving device, the buffer that receives.
    seen: HashMap<(Origin, u32), u32>,
    /// State that was updated: it holds a value of another name.
    updated: HashSet<u32>,
}

impl BufferCopies {
    fn new(resolved: &Resolved<'_>) -> Self {
        Self {
            origin: (0..resolved.buffers.len() as u32)
                .map(|buffer| Origin { buffer, is_updated: false })
                .collect(),
            seen: HashMap::new(),
            updated: HashSet::new(),
        }
    }

    fn launch(&mut self, resolved: &Resolved<'_>, touch: &Touch) {
        let Touch::Launch { writes, .. } = touch else { return };
        let is_state = |&&buffer: &&u32| resolved.buffers[buffer as usize].kind == BufferKind::State;
        for &buffer in writes.iter().filter(is_state) {
            // What it holds from now on is another value, which may be sent where the old one was.
            self.updated.insert(buffer);
            self.origin[buffer as usize] = Origin { buffer, is_updated: true };
        }
    }

    fn check(
        &mut self,
        plan: &Plan,
        resolved: &Resolved<'_>,
        step: &Step,
        copy: &CopyAction,
        (from, to): (u32, u32),
        faults: &mut Faults,
    ) {
        let (source, target) = (&resolved.buffers[from as usize], &resolved.buffers[to as usize]);
        let (source_buffer, target_buffer) = (&plan.buffers[from as usize], &plan.buffers[to as usize]);
        if source.device == target.device {
            faults.add(|| format!("step {} copies within {}", step.id, source_buffer.device));
        }
        if *target_buffer.device != *step.device {
            faults.add(|| {
                format!(
                    "step {} runs on {}, and copies to {} on {}",
                    step.id, step.device, target_buffer.id, target_buffer.device
                )
            });
        }
        for buffer in [source_buffer, target_buffer] {
            let (offset, moved) = copy.part.unwrap_or((Bytes::ZERO, buffer.bytes));
            let end = offset.0.checked_add(moved.0);
            if moved != copy.bytes || end.is_none_or(|end| end > buffer.bytes.0) {
                faults.add(|| {
                    format!(
                        "step {} copies {} bytes, buffer {} has {}",
                        step.id, copy.bytes.0, buffer.id, buffer.bytes.0
                    )
                });
            }
        }
        if source_buffer.bytes != target_buffer.bytes {
            faults.add(|| {
                format!(
                    "step {} copies from {} of {} bytes to {} of {} bytes",
                    step.id, source_buffer.id, source_buffer.bytes.0, target_buffer.id, target_buffer.bytes.0
                )
            });
        }
        let same = (&source_buffer.value, &source_buffer.ty) == (&target_buffer.value, &target_buffer.ty);
        // State that was updated holds a value of another name than its buffer's.
        if !same && !self.updated.contains(&from) {
            faults.add(|| {
                format!(
                    "step {} copies {} {} into {}, which holds {} {}",
                    step.id,
                    source_buffer.ty,
                    source_buffer.value,
                    target_buffer.id,
                    target_buffer.ty,
                    target_buffer.value
                )
            });
        }
        if target.kind != BufferKind::Copy {
            faults.add(|| {
                format!("step {} copies into {}, of kind {}", step.id, target_buffer.id, target.kind.name())
            });
        }
        if source.kind == BufferKind::Workspace {
            faults.add(|| format!("step {} copies from workspace {}", step.id, source_buffer.id));
        }
        // Followed back through copies, so that what is relayed counts as the same value.
        let origin = self.origin[from as usize];
        self.origin[to as usize] = origin;
        let first = *self.seen.entry((origin, target.device)).or_insert(to);
        if first != to {
            faults.add(|| {
                format!(
                    "step {} brings {} to {} a second time",
                    step.id, source_buffer.value, target_buffer.device
                )
            });
        }
    }

    /// What comes back to the device that made it is read there: else it need not have come.
    fn finish(&self, plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
        let home = |origin: Origin| resolved.buffers[origin.buffer as usize].device;
        let mut back: Vec<u32> = self
            .seen
            .iter()
            .filter(|((origin, device), _)| home(*origin) == *device)
            .map(|(_, &buffer)| buffer)
            .collect();
        if back.is_empty() {
            return;
        }
        back.sort_unstable();
        let mut read = vec![false; plan.buffers.len()];
        for (_, touch) in resolved.steps.touches() {
            if let Touch::Launch { reads, .. } = touch {
                reads.iter().for_each(|&buffer| read[buffer as usize] = true);
            }
        }
        for buffer in back.into_iter().filter(|&buffer| !read[buffer as usize]) {
            let Buffer { id, value, device, .. } = &plan.buffers[buffer as usize];
            faults.add(|| format!("{value} comes back to {device} as {id}, and no launch reads it"));
        }
    }
}

/// Node, output, microbatch and receiver of a copy, and whether it is of what was computed again.
type Brought<'a> = (&'a str, u32, Option<u32>, &'a str, bool);

/// Copies in a plan from a cost graph: between devices, of a node's output.
#[derive(Default)]
struct NodeCopies<'a> {
    /// What is brought, in parts where it comes in parts.
    seen: HashMap<Brought<'a>, Vec<(u64, u64)>>,
}

impl<'a> NodeCopies<'a> {
    fn check(&mut self, resolved: &Resolved<'_>, step: &'a Step, copy: &'a CopyAction, faults: &mut Faults) {
        let node = copy.node.as_deref().unwrap_or_default();
        for device in [&copy.from, &copy.to] {
            if !resolved.devices.contains_key(device.as_str()) {
                faults.add(|| format!("step {} copies between devices, and {device} is none", step.id));
            }
        }
        if copy.from == copy.to {
            faults.add(|| format!("step {} copies within {}", step.id, copy.from));
        }
        if *copy.to != *step.device {
            faults.add(|| format!("step {} runs on {}, and copies to {}", step.id, step.device, copy.to));
        }
        let output = copy.output.unwrap_or_else(|| {
            faults.add(|| format!("step {} does not say which output of {node} it copies", step.id));
            0
        });
        if copy.part.is_some_and(|(_, bytes)| bytes != copy.bytes) {
            faults.add(|| format!("step {} copies {} bytes, its part has others", step.id, copy.bytes.0));
        }
        let (offset, bytes) = copy.part.map_or((0, u64::MAX), |(offset, bytes)| (offset.0, bytes.0));
        let (start, end) = (offset, offset.saturating_add(bytes));
        let parts = self.seen.entry((node, output, copy.microbatch, &copy.to, copy.again)).or_default();
        // Parts come in ascending order.
        if parts.last().is_some_and(|&(_, before)| before > start) || (copy.part.is_some() && bytes == 0) {
            faults.add(|| format!("step {} brings {node}:{output} to {} a second time", step.id, copy.to));
        }
        parts.push((start, end));
    }

    /// Parts leave no gap.
    fn finish(self, faults: &mut Faults) {
        let mut gaps: Vec<_> = self
            .seen
            .into_iter()
            .filter(|(_, parts)| parts[0].0 != 0 || parts.windows(2).any(|pair| pair[0].1 != pair[1].0))
            .map(|(key, _)| key)
            .collect();
        gaps.sort_unstable();
        for (node, output, _, to, _) in gaps {
            faults.add(|| format!("the parts of {node}:{output} that {to} receives leave a gap"));
        }
    }
}

/// A parameter costs its bytes on each device beyond the first that holds it.
fn load_bytes(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
    let mut resident: HashMap<&str, (u64, HashSet<u32>)> = HashMap::new();
    let mut load = Bytes::ZERO;
    for (buffer, at) in plan.buffers.iter().zip(&resolved.buffers) {
        let is_param = matches!(buffer.kind, BufferKind::Param | BufferKind::Const) && at.alias.is_none();
        if !is_param || buffer.value.is_empty() {
            continue;
        }
        let (bytes, devices) =
            resident.entry(&buffer.value).or_insert_with(|| (buffer.bytes.0, HashSet::new()));
        if *bytes != buffer.bytes.0 {
            faults.add(|| {
                format!("{} has {bytes} bytes, and {} in {}", buffer.value, buffer.bytes.0, buffer.id)
            });
        }
        if !devices.insert(at.device) {
            faults.add(|| format!("{} is held twice on {}", buffer.value, buffer.device));
        } else if devices.len() > 1 {
            load += buffer.bytes;
        }
    }
    if plan.cost.load_bytes != load {
        faults.add(|| {
            format!("cost.load_bytes is {}, the parameters' copies have {}", plan.cost.load_bytes.0, load.0)
        });
    }
}
