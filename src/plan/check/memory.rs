//! Each value is written before it is read, and no two buffers that share bytes are alive at
//! once, whatever the interleaving.
//!
//! The steps are visited in list order. An ordered map holds, for each range of each arena, the
//! storage that its bytes belong to. A write of another storage takes the range over, which is
//! sound where every use of the storage that it takes from is in the writer's past; from then on
//! that storage is dead, and any further use of it is a violation. Past takeovers need not be
//! looked at again, for "is in the past of" is transitive.

use std::collections::BTreeMap;

use super::super::{Action, Buffer, BufferKind, Plan};
use super::Faults;
use super::order::{Event, Past, sweep};
use super::parts::{ByteRange, Covered};
use super::resolve::{Resolved, Touch};

/// `kept` says which buffers are to hold their value when the step ends.
pub(super) fn check(
    plan: &Plan,
    resolved: &Resolved<'_>,
    kept: impl Fn(&Buffer) -> bool,
    faults: &mut Faults,
) {
    if plan.buffers.is_empty() {
        return;
    }
    views(plan, resolved, faults);
    let mut memory = Memory::new(plan, resolved, faults);
    memory.hold_residents();
    sweep(&resolved.steps, |i, event, past| match resolved.steps.touch(i) {
        Touch::Launch { reads, writes } => memory.launch(i, event, past, reads, writes),
        Touch::Copy { from, to, range } => memory.copy(i, event, past, *from, *to, *range),
    });
    memory.finish(kept);
}

/// A view lies on its storage's device, within its bytes.
fn views(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
    for (buffer, at) in plan.buffers.iter().zip(&resolved.buffers) {
        let storage = &resolved.buffers[at.storage as usize];
        if at.device != storage.device || at.start < storage.start || at.end > storage.end {
            let storage = &plan.buffers[at.storage as usize].id;
            faults.add(|| format!("buffer {} is a view of {storage}, and leaves its bytes", buffer.id));
        }
    }
}

/// Uses of one storage so far.
#[derive(Clone, Default)]
struct Uses {
    /// The last use on each lane that used it, with its step; the earlier ones are in its past.
    last: Vec<(Event, u32)>,
    /// The step that took bytes of it over.
    taken_by: Option<u32>,
}

struct Memory<'a, 'b> {
    plan: &'a Plan,
    resolved: &'a Resolved<'a>,
    faults: &'b mut Faults,
    /// By buffer: the step that wrote it first.
    writers: Vec<Option<(u32, Event)>>,
    /// By buffer that copies fill in parts: what each of them wrote.
    parts: BTreeMap<u32, Covered>,
    /// By storage.
    uses: Vec<Uses>,
    /// By device: start of a range, its end, and whose it is.
    owners: Vec<BTreeMap<u64, (u64, u32)>>,
}

impl<'a, 'b> Memory<'a, 'b> {
    fn new(plan: &'a Plan, resolved: &'a Resolved<'a>, faults: &'b mut Faults) -> Self {
        Self {
            plan,
            resolved,
            faults,
            writers: vec![None; plan.buffers.len()],
            parts: BTreeMap::new(),
            uses: vec![Uses::default(); plan.buffers.len()],
            owners: vec![BTreeMap::new(); plan.devices.len()],
        }
    }

    fn id(&self, buffer: u32) -> &'a str {
        &self.plan.buffers[buffer as usize].id
    }

    fn kind(&self, buffer: u32) -> BufferKind {
        self.plan.buffers[buffer as usize].kind
    }

    fn storage(&self, buffer: u32) -> u32 {
        self.resolved.buffers[buffer as usize].storage
    }

    /// What is there before the step shares no bytes.
    fn hold_residents(&mut self) {
        for (i, buffer) in self.resolved.buffers.iter().enumerate() {
            if buffer.kind.is_resident() && buffer.storage as usize == i {
                for other in self.take(i as u32) {
                    let (mine, theirs) = (self.id(i as u32), self.id(other));
                    self.faults.add(|| format!("{theirs} and {mine} share bytes before the step begins"));
                }
            }
        }
    }

    fn launch(&mut self, i: usize, event: Event, past: &Past<'_>, reads: &[u32], writes: &[u32]) {
        let step = &self.plan.steps[i];
        for &buffer in reads.iter().chain(writes) {
            if self.resolved.buffers[buffer as usize].device != self.resolved.steps.list[i].device {
                let there = &self.plan.buffers[buffer as usize].device;
                let id = self.id(buffer);
                self.faults.add(|| format!("step {} on {} touches {id} on {there}", step.id, step.device));
            }
        }
        for &buffer in reads {
            self.read(i, event, past, buffer);
        }
        for &buffer in writes {
            let kind = self.kind(buffer);
            let made_here = match kind {
                BufferKind::Temp | BufferKind::Output | BufferKind::Workspace | BufferKind::State => true,
                BufferKind::Input | BufferKind::Param | BufferKind::Const | BufferKind::Copy => false,
            };
            if !made_here {
                let id = self.id(buffer);
                self.faults.add(|| format!("step {} writes {id}, of kind {}", step.id, kind.name()));
            }
            if let Some(alias) = self.resolved.buffers[buffer as usize].alias
                && !reads.iter().any(|&read| self.storage(read) == self.storage(buffer))
            {
                let (view, of) = (self.id(buffer), self.id(alias));
                self.faults
                    .add(|| format!("step {} makes {view}, a view of {of}, without reading it", step.id));
            }
            self.write(i, event, past, buffer);
        }
    }

    fn copy(&mut self, i: usize, event: Event, past: &Past<'_>, from: u32, to: u32, range: ByteRange) {
        self.read_range(i, event, past, from, range);
        let Action::Copy(copy) = &self.plan.steps[i].action else { return };
        if copy.part.is_none() {
            self.write(i, event, past, to);
        } else {
            self.write_part(i, event, past, to, range);
        }
    }

    /// Writes some bytes of a buffer; the first of its parts takes its bytes over, and the others,
    /// which follow on the same lane, have in their past what that one had.
    fn write_part(&mut self, i: usize, event: Event, past: &Past<'_>, to: u32, range: ByteRange) {
        let (step, id) = (self.plan.steps[i].id, self.id(to));
        // A buffer that was written whole takes no parts.
        let whole = self.writers[to as usize].is_some() && !self.parts.contains_key(&to);
        let parts = self.parts.entry(to).or_default();
        let clash = parts.add(range, event);
        if whole || clash {
            let ByteRange { start, end } = range;
            self.faults.add(|| format!("step {step} writes bytes {start}..{end} of {id} a second time"));
        } else if self.writers[to as usize].is_none() {
            self.writers[to as usize] = Some((i as u32, event));
            self.take_over(i, event, past, to);
        }
        self.use_storage(i, event, self.storage(to));
    }

    fn read(&mut self, i: usize, event: Event, past: &Past<'_>, buffer: u32) {
        let at = &self.resolved.buffers[buffer as usize];
        let whole = ByteRange { start: 0, end: at.end - at.start };
        self.read_range(i, event, past, buffer, whole);
    }

    fn read_range(&mut self, i: usize, event: Event, past: &Past<'_>, buffer: u32, range: ByteRange) {
        let step = self.plan.steps[i].id;
        let id = self.id(buffer);
        let kind = self.kind(buffer);
        if kind == BufferKind::Workspace {
            self.faults.add(|| format!("step {step} reads workspace {id}"));
        }
        let storage = self.resolved.buffers[buffer as usize].storage;
        let written = self.writers[buffer as usize].map(|(_, event)| event);
        let sound = match kind {
            BufferKind::State => written.is_none_or(|write| past.contains(write)),
            BufferKind::Input | BufferKind::Param | BufferKind::Const => true,
            BufferKind::Temp | BufferKind::Output | BufferKind::Copy | BufferKind::Workspace => {
                match self.parts.get(&buffer) {
                    Some(parts) => parts.hold(range, past),
                    None => written.is_some_and(|write| past.contains(write)),
                }
            }
        };
        if !sound {
            self.faults
                .add(|| format!("step {step} reads {id} before anything that it waits for has written it"));
        }
        self.use_storage(i, event, storage);
    }

    fn write(&mut self, i: usize, event: Event, past: &Past<'_>, buffer: u32) {
        let step = self.plan.steps[i].id;
        let at = &self.resolved.buffers[buffer as usize];
        let id = self.id(buffer);
        let earlier = self.writers[buffer as usize].replace((i as u32, event));
        // An update writes over what others may still read.
        if at.kind == BufferKind::State {
            if let Some(other) = self.unordered(at.storage, event, past) {
                self.faults.add(|| format!("step {step} updates {id} while step {other} may use it"));
            }
        } else if let Some((other, _)) = earlier {
            let other = self.plan.steps[other as usize].id;
            self.faults.add(|| format!("steps {other} and {step} both write {id}"));
        }
        if at.alias.is_none() && !at.kind.is_resident() && earlier.is_none() {
            self.take_over(i, event, past, buffer);
        }
        self.use_storage(i, event, at.storage);
    }

    /// Hands the buffer's bytes to it; everything that used them before is to be over.
    fn take_over(&mut self, i: usize, event: Event, past: &Past<'_>, buffer: u32) {
        let start = self.resolved.buffers[buffer as usize].start;
        for other in self.take(buffer) {
            // One step may read the one and write the other at the same offset; it cannot write both.
            let in_place = self.resolved.buffers[other as usize].start == start
                && self.kind(buffer) != BufferKind::Workspace
                && self.writers[other as usize].is_none_or(|(writer, _)| writer != i as u32);
            // What is there in every step is never freed.
            let kept = matches!(self.kind(other), BufferKind::Param | BufferKind::State | BufferKind::Const);
            let uses = self.uses[other as usize].last.iter();
            let unfinished = uses
                .copied()
                .find(|&(used, _)| !(past.contains(used) || (used == event && in_place)))
                .map(|(_, step)| self.plan.steps[step as usize].id);
            if kept || unfinished.is_some() {
                let (mine, theirs) = (self.id(buffer), self.id(other));
                let device = &self.plan.buffers[buffer as usize].device;
                let step = self.plan.steps[i].id;
                self.faults.add(|| {
                    let reason = match unfinished {
                        Some(user) => format!("step {step} writes {mine}, step {user} uses {theirs}"),
                        None => format!("step {step} writes {mine}, and {theirs} is never freed"),
                    };
                    format!("{theirs} and {mine} share bytes on {device} and may be alive together: {reason}")
                });
            }
            self.uses[other as usize].taken_by.get_or_insert(i as u32);
        }
    }

    /// Makes the bytes of a storage its own; gives those they belonged to, each once, in order of
    /// number. O((ranges taken + 1) log ranges).
    fn take(&mut self, storage: u32) -> Vec<u32> {
        let at = &self.resolved.buffers[storage as usize];
        let (start, end) = (at.start, at.end);
        if start == end {
            return Vec::new();
        }
        let owners = &mut self.owners[at.device as usize];
        let mut others = Vec::new();
        // A range that begins before is cut in two; its second half is taken below.
        if let Some((&first, &(first_end, owner))) = owners.range(..start).next_back()
            && first_end > start
        {
            owners.insert(first, (start, owner));
            owners.insert(start, (first_end, owner));
        }
        while let Some((&next, &(next_end, owner))) = owners.range(start..end).next() {
            owners.remove(&next);
            if next_end > end {
                owners.insert(end, (next_end, owner));
            }
            others.push(owner);
        }
        owners.insert(start, (end, storage));
        others.sort_unstable();
        others.dedup();
        others
    }

    /// Records a use; a storage whose bytes were taken over can be used no more.
    fn use_storage(&mut self, i: usize, event: Event, storage: u32) {
        let id = self.id(storage);
        let uses = &mut self.uses[storage as usize];
        // The step that took the bytes over may itself use them: in place.
        if let Some(taker) = uses.taken_by.filter(|&taker| taker != i as u32) {
            let (step, taker) = (self.plan.steps[i].id, self.plan.steps[taker as usize].id);
            self.faults.add(|| format!("step {step} uses {id}, whose bytes step {taker} has overwritten"));
        }
        match uses.last.iter_mut().find(|(used, _)| used.lane == event.lane) {
            Some(used) => *used = (event, i as u32),
            None => uses.last.push((event, i as u32)),
        }
    }

    /// A step that may use a storage at the same time as `event`.
    fn unordered(&self, storage: u32, event: Event, past: &Past<'_>) -> Option<u64> {
        let mut uses = self.uses[storage as usize].last.iter();
        let (_, step) = uses.find(|&&(used, _)| used != event && !past.contains(used))?;
        Some(self.plan.steps[*step as usize].id)
    }

    /// What is made in the step has been made, and its results are still there.
    fn finish(self, kept: impl Fn(&Buffer) -> bool) {
        for (i, buffer) in self.resolved.buffers.iter().enumerate() {
            let id = &self.plan.buffers[i].id;
            if !buffer.kind.is_resident() && self.writers[i].is_none() {
                self.faults.add(|| format!("buffer {id} is never written"));
            }
            if let Some(parts) = self.parts.get(&(i as u32))
                && let Some(missing) = parts.first_gap(buffer.end - buffer.start)
            {
                self.faults.add(|| format!("byte {missing} of buffer {id} is never written"));
            }
            let taken = self.uses[buffer.storage as usize].taken_by;
            if let (true, Some(taker)) = (kept(&self.plan.buffers[i]), taken) {
                let taker = self.plan.steps[taker as usize].id;
                self.faults.add(|| format!("step {taker} overwrites output {id}"));
            }
        }
    }
}
