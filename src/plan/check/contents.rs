//! What a plan says of one value is the same wherever it says it: its type and size, and what makes
//! it. That much of a model the plan alone shows; `values` proves the rest.

use std::collections::HashMap;

use super::super::{Action, Buffer, BufferKind, Launch, Plan, Step};
use super::Faults;
use super::resolve::{Resolved, Touch};

/// What is said of the values. O(buffers + accesses).
pub(super) fn check(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
    let mut first: HashMap<&str, &Buffer> = HashMap::with_capacity(plan.buffers.len());
    for buffer in plan.buffers.iter().filter(|buffer| is_named(buffer)) {
        let other = *first.entry(&buffer.value).or_insert(buffer);
        if (&other.ty, other.bytes) != (&buffer.ty, buffer.bytes) {
            faults.add(|| {
                let (value, one, two) = (&buffer.value, &other.id, &buffer.id);
                format!("{value} is {} in {one}, and {} in {two}", other.ty, buffer.ty)
            });
        }
    }
    let mut makers: HashMap<(&str, Option<u32>), Maker> = HashMap::new();
    for buffer in plan.buffers.iter().filter(|buffer| is_named(buffer) && buffer.kind.is_resident()) {
        makers.insert((&buffer.value, buffer.microbatch), Maker::BeforeStep);
    }
    for (step, (_, touch)) in plan.steps.iter().zip(resolved.steps.touches()) {
        let (Action::Launch(launch), Touch::Launch { writes, .. }) = (&step.action, touch) else {
            continue;
        };
        let written: Vec<&Buffer> = writes.iter().map(|&buffer| &plan.buffers[buffer as usize]).collect();
        workspace_is_last(step, &written, faults);
        for buffer in written.into_iter().filter(|buffer| is_named(buffer) && !buffer.kind.is_resident()) {
            let made = Maker::of(launch);
            let maker = *makers.entry((&buffer.value, buffer.microbatch)).or_insert(made);
            if maker != made {
                let (id, value) = (step.id, &buffer.value);
                faults.add(|| format!("step {id} makes {value}, which is there or made by another group"));
            }
        }
    }
}

/// What gives a value its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// It is there before the step.
    BeforeStep,
    /// A launch of this group, or of none.
    Group(Option<u32>),
}

impl Maker {
    fn of(launch: &Launch) -> Self {
        Self::Group(launch.group)
    }
}

fn is_named(buffer: &Buffer) -> bool {
    buffer.kind != BufferKind::Workspace && !buffer.value.is_empty()
}

/// A launch writes results, and then its one workspace.
fn workspace_is_last(step: &Step, written: &[&Buffer], faults: &mut Faults) {
    let is_workspace = |buffer: &&Buffer| buffer.kind == BufferKind::Workspace;
    let before = written.split_last().map_or(&[][..], |(_, before)| before);
    if let Some(workspace) = before.iter().find(|buffer| is_workspace(buffer)) {
        faults
            .add(|| format!("step {} writes {}, a workspace, before something else", step.id, workspace.id));
    }
}
