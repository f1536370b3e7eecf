//! Choices at random in a plan, and what puts right whatever would give a damage away.

use partition::unstable::plan::{Action, Buffer, BufferKind, CopyAction, Launch, Plan, Step};
use partition::unstable::units::Bytes;

use super::{buffers, steps};
use crate::random_graph::Random;

/// A change to a plan; none where there is nothing to change.
pub(super) type Way = fn(&mut Plan, &mut Random) -> Option<()>;

/// Changes a plan in one way, or does nothing; says which way.
pub(super) fn damage(plan: &mut Plan, random: &mut Random) -> &'static str {
    let way = random.below(buffers::WAYS.len() + steps::WAYS.len());
    let (name, change) = match way.checked_sub(buffers::WAYS.len()) {
        None => buffers::WAYS[way],
        Some(way) => steps::WAYS[way],
    };
    let _ = change(plan, random);
    name
}

pub(super) fn buffer_of(plan: &Plan, id: &str) -> usize {
    plan.buffers.iter().position(|buffer| buffer.id == id).expect("a buffer")
}

/// Puts right what would give a damage away: sums, peaks, lists of what is launched.
pub(super) fn settle(plan: &mut Plan) {
    let ids: std::collections::BTreeSet<u64> = plan.steps.iter().map(|step| step.id).collect();
    let mut before = std::collections::BTreeSet::new();
    let mut launched = std::collections::BTreeSet::new();
    let mut moved = Bytes::ZERO;
    let mut of_kernel: std::collections::BTreeMap<String, Vec<String>> = Default::default();
    for step in &mut plan.steps {
        step.after.retain(|other| ids.contains(other) && before.contains(other));
        before.insert(step.id);
        match &step.action {
            Action::Copy(copy) => moved += copy.bytes,
            Action::Launch(launch) => {
                launched.extend(launch.nodes.iter().cloned());
                let nodes = of_kernel.entry(launch.kernel.clone().unwrap_or_default()).or_default();
                nodes.extend(launch.nodes.iter().cloned());
                for node in &launch.nodes {
                    if let Some(placed) = plan.placement.iter_mut().find(|(name, _)| name == node) {
                        placed.1 = step.device.to_string();
                    }
                }
            }
        }
    }
    let rest = plan.placement.iter().map(|(node, _)| node).filter(|node| !launched.contains(*node));
    plan.unlaunched = rest.cloned().collect();
    for kernel in &mut plan.kernels {
        let own = of_kernel.remove(&kernel.id).unwrap_or_default();
        kernel.nodes = own;
        kernel.nodes.sort();
        kernel.nodes.dedup();
    }
    let mut held: std::collections::BTreeMap<&str, std::collections::BTreeSet<&str>> = Default::default();
    let mut loaded = Bytes::ZERO;
    for buffer in plan.buffers.iter().filter(|b| matches!(b.kind, BufferKind::Param | BufferKind::Const)) {
        let devices = held.entry(&buffer.value).or_default();
        if devices.insert(&buffer.device) && devices.len() > 1 {
            loaded += buffer.bytes;
        }
    }
    (plan.cost.step_bytes, plan.cost.load_bytes) = (moved, loaded);
    plan.cost.transfer_bytes = moved + loaded;
    plan.bound = None;
    for device in &mut plan.devices {
        device.peak = device.arena;
        device.arena_bound = None;
    }
}

pub(super) fn a_buffer(plan: &Plan, random: &mut Random) -> usize {
    random.below(plan.buffers.len())
}

pub(super) fn a_step(plan: &Plan, random: &mut Random) -> usize {
    random.below(plan.steps.len())
}

pub(super) fn some_of(random: &mut Random, from: impl Iterator<Item = usize>) -> Option<usize> {
    let all: Vec<usize> = from.collect();
    (!all.is_empty()).then(|| random.pick(&all))
}

pub(super) fn a_launch(plan: &Plan, random: &mut Random) -> Option<usize> {
    some_of(random, (0..plan.steps.len()).filter(|&i| matches!(plan.steps[i].action, Action::Launch(_))))
}

pub(super) fn a_copy(plan: &Plan, random: &mut Random) -> Option<usize> {
    some_of(random, (0..plan.steps.len()).filter(|&i| matches!(plan.steps[i].action, Action::Copy(_))))
}

pub(super) fn launch(plan: &mut Plan, step: usize) -> &mut Launch {
    match &mut plan.steps[step].action {
        Action::Launch(launch) => launch,
        Action::Copy(_) => panic!("a copy"),
    }
}

pub(super) fn copy(plan: &mut Plan, step: usize) -> &mut CopyAction {
    match &mut plan.steps[step].action {
        Action::Copy(copy) => copy,
        Action::Launch(_) => panic!("a launch"),
    }
}

pub(super) fn touches(step: &Step, id: &str) -> bool {
    match &step.action {
        Action::Launch(launch) => launch.reads.iter().chain(&launch.writes).any(|other| other == id),
        Action::Copy(copy) => copy.from == id || copy.to == id,
    }
}

pub(super) fn writes(step: &Step, id: &str) -> bool {
    match &step.action {
        Action::Launch(launch) => launch.writes.iter().any(|other| other == id),
        Action::Copy(copy) => copy.to == id,
    }
}

/// A buffer that may stand for another one: of its size, with luck of its value and device.
pub(super) fn alike(plan: &Plan, id: &str, random: &mut Random) -> String {
    let own = &plan.buffers[buffer_of(plan, id)];
    let level = random.below(3);
    let fits = |other: &Buffer| {
        other.id != own.id
            && match level {
                0 => other.value == own.value,
                1 => other.bytes == own.bytes && other.device == own.device,
                _ => true,
            }
    };
    let found = some_of(random, (0..plan.buffers.len()).filter(|&i| fits(&plan.buffers[i])));
    found.map_or_else(|| id.to_owned(), |found| plan.buffers[found].id.clone())
}

/// The writers of a buffer wait for all that stands before them.
pub(super) fn in_order(plan: &mut Plan, id: &str) {
    for at in 0..plan.steps.len() {
        if writes(&plan.steps[at], id) {
            plan.steps[at].after = plan.steps[..at].iter().map(|step| step.id).collect();
        }
    }
}

/// A buffer on the bytes of another one; says which, where there are two.
pub(super) fn overlay(plan: &mut Plan, random: &mut Random) -> Option<(usize, usize)> {
    let under = a_buffer(plan, random);
    let at = plan.buffers[under].clone();
    let fits = |other: &Buffer| other.id != at.id && other.device == at.device && !other.kind.is_resident();
    let over = some_of(random, (0..plan.buffers.len()).filter(|&i| fits(&plan.buffers[i])))?;
    plan.buffers[over].offset = at.offset;
    let end = at.offset + plan.buffers[over].bytes;
    let device = plan.devices.iter_mut().find(|device| device.name == at.device)?;
    device.arena = device.arena.max(end);
    Some((under, over))
}
