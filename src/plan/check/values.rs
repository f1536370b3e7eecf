//! Which value of the model each buffer holds, followed from step to step.
//!
//! Nothing here is taken from what a plan says of its buffers: what is there before the step is the
//! value of its name, a launch makes what its group makes of what its group reads, and a copy brings
//! what its source holds. The steps are gone through in list order: `memory` has proven that all that
//! touches the same bytes, one of them writing, is ordered, so that every interleaving gives the same.

use std::collections::{HashMap, HashSet};

use super::super::{Action, Buffer, BufferKind, CopyAction, Launch, Plan, Step};
use super::Faults;
use super::expected::{ExpectedLaunch, ExpectedModel, ExpectedValue, InPlace, Origin};
use super::resolve::{Resolved, Touch};
use crate::units::Bytes;

/// What a buffer holds: a value of the model, and the microbatch that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    value: u32,
    microbatch: Option<u32>,
}

/// Where to find the values of a model by name.
pub(super) struct Names<'m> {
    pub(super) model: &'m ExpectedModel,
    values: HashMap<&'m str, u32>,
}

impl<'m> Names<'m> {
    pub(super) fn new(model: &'m ExpectedModel) -> Self {
        let named = (0u32..).zip(&model.values).map(|(number, value)| (value.name.as_str(), number));
        Self { model, values: named.collect() }
    }

    pub(super) fn find(&self, buffer: &Buffer) -> Option<u32> {
        self.values.get(buffer.value.as_str()).copied()
    }

    pub(super) fn value(&self, number: u32) -> &'m ExpectedValue {
        &self.model.values[number as usize]
    }

    /// True for a buffer that holds a result of the model before the step begins.
    pub(super) fn is_declared_result(&self, buffer: &Buffer) -> bool {
        buffer.kind.is_resident() && self.find(buffer).is_some_and(|value| self.value(value).is_result)
    }
}

/// Buffers that lie in another as the model has it: each is the slice of what a launch reads at which nothing runs.
pub(super) fn views<'a>(plan: &'a Plan, names: &Names<'_>) -> HashSet<&'a str> {
    let launches = names.model.launches.iter().filter(|launch| launch.view.is_some());
    let groups: HashMap<u32, &ExpectedLaunch> = launches.map(|launch| (launch.group, launch)).collect();
    if groups.is_empty() {
        return HashSet::new();
    }
    let buffers: HashMap<&str, &'a Buffer> =
        plan.buffers.iter().map(|buffer| (buffer.id.as_str(), buffer)).collect();
    let of_step = |step: &'a Step| {
        let Action::Launch(launch) = &step.action else { return None };
        let expected = groups.get(&launch.group?)?;
        let ([read], [write]) = (&launch.reads[..], &launch.writes[..]) else { return None };
        let (read, write) = (buffers.get(read.as_str())?, buffers.get(write.as_str())?);
        let is_named = write.alias.as_ref() == Some(&read.id);
        (is_named && is_slice(read, write, expected.view)).then_some(write.id.as_str())
    };
    plan.steps.iter().filter_map(of_step).collect()
}

/// Whether a buffer is the bytes of another from `first` on.
fn is_slice(whole: &Buffer, part: &Buffer, first: Option<u64>) -> bool {
    let begins = first.and_then(|first| whole.offset.0.checked_add(first));
    let ends = part.offset.0.checked_add(part.bytes.0);
    part.device == whole.device
        && begins == Some(part.offset.0)
        && ends.is_some_and(|end| end <= whole.offset.0.saturating_add(whole.bytes.0))
}

/// Follows the values; plan and names are to have passed all that is checked without the model.
/// O(buffers + accesses).
pub(super) fn check(plan: &Plan, resolved: &Resolved<'_>, names: &Names<'_>, faults: &mut Faults) {
    let groups = (0..).zip(&names.model.launches).map(|(number, launch)| (launch.group, number));
    let mut flow = Flow {
        plan,
        names,
        faults,
        groups: groups.collect(),
        holds: vec![None; plan.buffers.len()],
        launched: HashSet::new(),
    };
    flow.residents();
    for (step, (_, touch)) in plan.steps.iter().zip(resolved.steps.touches()) {
        match (&step.action, touch) {
            (Action::Launch(launch), Touch::Launch { reads, writes }) => {
                flow.launch(step, launch, reads, writes);
            }
            (Action::Copy(copy), &Touch::Copy { from, to, .. }) => flow.copy(step, copy, from, to),
            (Action::Launch(_) | Action::Copy(_), _) => {}
        }
    }
    flow.finish();
}

struct Flow<'a, 'b> {
    plan: &'a Plan,
    names: &'a Names<'a>,
    faults: &'b mut Faults,
    /// By number of a group: its position among the model's launches.
    groups: HashMap<u32, usize>,
    /// By buffer.
    holds: Vec<Option<Content>>,
    /// Position among the model's launches, and microbatch.
    launched: HashSet<(usize, Option<u32>)>,
}

impl<'a> Flow<'a, '_> {
    fn buffer(&self, buffer: u32) -> &'a Buffer {
        &self.plan.buffers[buffer as usize]
    }

    fn value(&self, content: Content) -> &'a ExpectedValue {
        self.names.value(content.value)
    }

    /// The value that a launch for `microbatch` reads or makes.
    fn of(&self, value: u32, microbatch: Option<u32>) -> Content {
        Content { value, microbatch: microbatch.filter(|_| self.names.value(value).each) }
    }

    /// What is there before the step is what the model is given, under its own name.
    fn residents(&mut self) {
        let divided = self.plan.options.microbatches.is_some();
        for (number, buffer) in self.plan.buffers.iter().enumerate().filter(|(_, b)| b.kind.is_resident()) {
            let Buffer { id, value: name, .. } = buffer;
            let Some(value) = self.names.find(buffer) else {
                self.faults.add(|| format!("buffer {id} holds {name}, which the model does not have"));
                continue;
            };
            let expected = self.names.value(value);
            let kind = match expected.origin {
                Origin::Input => Some(BufferKind::Input),
                Origin::Param => Some(BufferKind::Param),
                Origin::Const => Some(BufferKind::Const),
                Origin::State => Some(BufferKind::State),
                Origin::Launch => None,
            };
            if kind != Some(buffer.kind) {
                let (found, wanted) = (buffer.kind.name(), kind.map_or("made in the step", BufferKind::name));
                self.faults.add(|| format!("buffer {id} holds {name} as {found}, which is {wanted}"));
            }
            if buffer.microbatch.is_some() != (divided && expected.each) {
                let of = if expected.each { "one microbatch" } else { "all microbatches" };
                self.faults.add(|| format!("buffer {id} holds {name}, which is of {of}"));
            }
            self.fits(buffer, expected);
            self.holds[number] = Some(Content { value, microbatch: buffer.microbatch });
        }
    }

    /// A buffer has its value's type and size.
    fn fits(&mut self, buffer: &Buffer, expected: &ExpectedValue) {
        let Buffer { id, ty, bytes, .. } = buffer;
        if *bytes != expected.bytes {
            let (found, wanted) = (bytes.0, expected.bytes.0);
            self.faults.add(|| format!("{id} holds {} with {found} bytes, not {wanted}", expected.name));
        } else if *ty != expected.ty {
            self.faults.add(|| format!("{id} holds {} as {ty}, not {}", expected.name, expected.ty));
        }
    }

    fn launch(&mut self, step: &Step, launch: &Launch, reads: &[u32], writes: &[u32]) {
        let Some(&group) = launch.group.as_ref().and_then(|group| self.groups.get(group)) else {
            self.faults.add(|| format!("step {} launches a group that the model does not have", step.id));
            return;
        };
        let expected: &'a ExpectedLaunch = &self.names.model.launches[group];
        if !launch.again && !self.launched.insert((group, launch.microbatch)) {
            self.faults.add(|| format!("step {} launches group {} a second time", step.id, expected.group));
        }
        self.reads(step, launch, reads, expected);
        let is_workspace = |&&buffer: &&u32| self.buffer(buffer).kind == BufferKind::Workspace;
        let workspaces = writes.iter().rev().take_while(is_workspace).count();
        let (results, workspace) = writes.split_at(writes.len() - workspaces);
        self.writes(step, launch, results, expected);
        self.workspace(step, workspace, expected.workspace);
        self.in_place(step, reads, results, expected);
    }

    fn reads(&mut self, step: &Step, launch: &Launch, reads: &[u32], expected: &ExpectedLaunch) {
        self.counts(step, "reads", reads.len(), expected.reads.len());
        for (&buffer, &value) in reads.iter().zip(&expected.reads) {
            let wanted = self.of(value, launch.microbatch);
            // What nothing wrote is a fault of its own.
            let Some(found) = self.holds[buffer as usize] else { continue };
            if found != wanted {
                let (id, found, wanted) = (step.id, self.words(found), self.words(wanted));
                self.faults.add(|| format!("step {id} reads {found} where the model has {wanted}"));
            }
        }
    }

    fn counts(&mut self, step: &Step, verb: &str, found: usize, wanted: usize) {
        if found != wanted {
            self.faults.add(|| format!("step {} {verb} {found} values, not {wanted}", step.id));
        }
    }

    fn writes(&mut self, step: &Step, launch: &Launch, results: &[u32], expected: &ExpectedLaunch) {
        self.counts(step, "writes", results.len(), expected.writes.len());
        for (&number, &value) in results.iter().zip(&expected.writes) {
            let (buffer, made) = (self.buffer(number), self.of(value, launch.microbatch));
            let expected = self.value(made);
            let declared = self.names.find(buffer);
            let in_state = buffer.kind == BufferKind::State && declared == expected.updates;
            if declared != Some(value) && !in_state {
                let (id, found, wanted) = (step.id, &buffer.value, &expected.name);
                self.faults.add(|| format!("step {id} writes {found} where the model has {wanted}"));
            }
            let (id, made_in) = (step.id, &buffer.id);
            if launch.again && in_state {
                self.faults.add(|| format!("step {id} updates {made_in} again"));
            }
            if expected.is_result && !launch.again && !in_state && buffer.kind != BufferKind::Output {
                let (name, kind) = (&expected.name, buffer.kind.name());
                self.faults.add(|| {
                    format!("step {id} writes {name}, a result of the model, to {made_in}, of kind {kind}")
                });
            }
            if expected.is_output && made.microbatch.is_some() && !launch.again && buffer.axis.is_none() {
                let name = &expected.name;
                self.faults.add(|| format!("{made_in} does not say along which axis {name} is put together"));
            }
            // A state keeps its type: what takes its place may be a view of it.
            let typed_as =
                expected.updates.filter(|_| in_state).map_or(expected, |state| self.names.value(state));
            self.fits(buffer, typed_as);
            self.holds[number as usize] = Some(made);
        }
    }

    /// The workspace stands behind the results, in one buffer.
    fn workspace(&mut self, step: &Step, workspace: &[u32], needed: Bytes) {
        let found: Bytes = workspace.iter().map(|&buffer| self.buffer(buffer).bytes).sum();
        if found != needed || workspace.len() > 1 {
            let (found, needed) = (found.0, needed.0);
            self.faults
                .add(|| format!("step {} has {found} bytes of workspace, and needs {needed}", step.id));
        }
    }

    /// What a launch writes where something lies that it reads, it may write there. O(reads x writes).
    fn in_place(&mut self, step: &Step, reads: &[u32], results: &[u32], expected: &ExpectedLaunch) {
        for (&read, &operand) in reads.iter().zip(&expected.reads) {
            for (&write, &result) in results.iter().zip(&expected.writes) {
                let (old, new) = (self.buffer(read), self.buffer(write));
                let same = (old.offset, old.bytes) == (new.offset, new.bytes);
                let allowed = same && expected.in_place.contains(&InPlace { operand, result })
                    || is_slice(old, new, expected.view);
                if share(old, new) && !allowed {
                    let (old, new) = (&self.names.value(operand).name, &self.names.value(result).name);
                    let id = step.id;
                    self.faults.add(|| {
                        format!("step {id} writes {new} in place of {old}, which its kernel does not allow")
                    });
                }
            }
        }
    }

    fn copy(&mut self, step: &Step, copy: &CopyAction, from: u32, to: u32) {
        let Some(brought) = self.holds[from as usize] else { return };
        let (id, target) = (step.id, self.buffer(to));
        if self.names.find(target) != Some(brought.value) || target.microbatch != brought.microbatch {
            let (found, said) = (self.words(brought), &target.value);
            self.faults.add(|| format!("step {id} copies {found} into {}, which holds {said}", copy.to));
        }
        self.fits(target, self.value(brought));
        self.holds[to as usize] = Some(brought);
    }

    /// Everything was launched, and what is kept from step to step is what the model keeps.
    fn finish(mut self) {
        let divided = self.plan.options.microbatches;
        for (number, expected) in self.names.model.launches.iter().enumerate() {
            let group = expected.group;
            match divided.filter(|_| expected.each) {
                None if !self.launched.contains(&(number, None)) => {
                    self.faults.add(|| format!("group {group} is never launched"));
                }
                Some(count) if (0..count).any(|m| !self.launched.contains(&(number, Some(m)))) => {
                    self.faults.add(|| format!("group {group} is not launched for each microbatch"));
                }
                None | Some(_) => {}
            }
        }
        self.fed();
        for (buffer, content) in self.plan.buffers.iter().zip(&self.holds) {
            let (BufferKind::State, Some(content)) = (buffer.kind, *content) else { continue };
            let old = self.names.find(buffer);
            if old != Some(content.value) && old.is_some_and(|old| self.names.value(old).is_result) {
                let Buffer { id, value, .. } = buffer;
                self.faults.add(|| format!("{value} is a result of the model, and {id} is updated"));
            }
        }
    }

    /// What feeds a state is what the model keeps there. O(buffers).
    fn fed(&mut self) {
        let plan = self.plan;
        let of_states = plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::State);
        let states: HashMap<&str, &Buffer> = of_states.map(|state| (state.id.as_str(), state)).collect();
        for (number, buffer) in plan.buffers.iter().enumerate() {
            let Some(state) = &buffer.feeds else { continue };
            let state = states.get(state.as_str()).and_then(|state| self.names.find(state));
            let kept = self.holds[number].and_then(|content| self.value(content).updates);
            if state.is_none() || state != kept {
                let Buffer { id, value, .. } = buffer;
                self.faults.add(|| format!("{id} feeds a state of which {value} is not the next one"));
            }
        }
    }

    /// A value in words.
    fn words(&self, content: Content) -> String {
        let name = &self.value(content).name;
        content.microbatch.map_or_else(|| name.clone(), |number| format!("{name} of microbatch {number}"))
    }
}

/// True where two buffers of one device have a byte in common.
fn share(one: &Buffer, other: &Buffer) -> bool {
    let ends_after = |a: &Buffer, b: &Buffer| a.offset.0.saturating_add(a.bytes.0) > b.offset.0;
    let both = one.bytes > Bytes::ZERO && other.bytes > Bytes::ZERO;
    both && one.device == other.device && ends_after(one, other) && ends_after(other, one)
}
