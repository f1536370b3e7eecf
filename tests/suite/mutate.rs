//! Damaged plans: every kind of damage is found, on ten plans at least, and for the right reason.

use std::collections::BTreeSet;

use partition::Error;
use partition::unstable::plan::{
    Action, Bound, Buffer, BufferKind, CopyAction, Lane, Launch, Plan, Step, check, check_costgraph,
    check_model,
};
use partition::unstable::units::Bytes;

use crate::naive_plan;
use crate::random_costgraph::Rng;
use crate::random_plan::{Case, case, library_case};

/// Changes a plan; says whether it did harm.
type Damage = fn(&mut Plan, &mut Rng) -> bool;

/// What is given to the checker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The plan alone.
    Plan,
    /// The plan and its model.
    Model,
    /// The plan without buffers, and its cost graph.
    Graph,
}

/// Plans that each kind of damage is to be found on.
const ENOUGH: usize = 10;

fn cases() -> Vec<Case> {
    (0..40).map(|i| if i % 2 == 0 { case(1000 + i, 36) } else { library_case(1000 + i, 36) }).collect()
}

fn judge(case: &Case, plan: &Plan, by: By) -> Result<(), Error> {
    match by {
        By::Plan => check(plan).map(drop),
        By::Model => check_model(plan, &case.model).map(drop),
        By::Graph => check_costgraph(plan, &case.graph).map(drop),
    }
}

#[test]
fn every_damage_is_found() {
    let cases = cases();
    let mut missed = Vec::new();
    for (number, (name, by, words, damage)) in DAMAGES.iter().enumerate() {
        let mut found = BTreeSet::new();
        for attempt in 0..8 * cases.len() {
            let mut rng = Rng::new((number * 10_000 + attempt) as u64);
            let case = &cases[attempt % cases.len()];
            let whole = if *by == By::Graph { &case.bare } else { &case.plan };
            let mut plan = whole.clone();
            if !damage(&mut plan, &mut rng) {
                continue;
            }
            assert_ne!(&plan, whole, "{name} changes nothing");
            match judge(case, &plan, *by) {
                Err(Error::Check(report)) => {
                    let told = report.details.iter().any(|line| words.iter().any(|word| line.contains(word)));
                    assert!(told, "{name}: expected {words:?}, found {:#?}", report.details);
                    found.insert(attempt % cases.len());
                }
                Err(other) => panic!("{name}: {other}"),
                Ok(()) => missed.push(format!("{name} (attempt {attempt})")),
            }
            if found.len() >= 2 * ENOUGH {
                break;
            }
        }
        assert!(found.len() >= ENOUGH, "{name}: only {} plans could be damaged so", found.len());
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
    assert!(DAMAGES.len() >= 60);
}

#[test]
fn undamaged_plans_pass() {
    for case in cases() {
        for (plan, by) in [(&case.plan, By::Plan), (&case.plan, By::Model), (&case.bare, By::Graph)] {
            judge(&case, plan, by).unwrap_or_else(|error| panic!("{error}: {:#?}", error.details()));
        }
        assert!(naive_plan::is_sound(&case.plan));
    }
}

/// Dependencies and offsets changed at random: the checker says what the pairwise rules say.
#[test]
fn the_checker_agrees_with_the_pairwise_rules() {
    let (mut sound, mut unsound) = (0, 0);
    for (number, case) in cases().iter().enumerate() {
        for attempt in 0..40 {
            let mut rng = Rng::new((number * 100 + attempt) as u64);
            let mut plan = case.plan.clone();
            let changed = match attempt % 3 {
                0 => drop_dependency(&mut plan, &mut rng),
                1 => move_buffer(&mut plan, &mut rng),
                _ => swap_steps(&mut plan, &mut rng) && naive_plan::is_ordered(&plan),
            };
            if !changed {
                continue;
            }
            // Peaks are not among the pairwise rules.
            plan.devices.iter_mut().for_each(|device| device.peak = device.arena);
            let expected = naive_plan::is_sound(&plan);
            let found = check(&plan);
            assert_eq!(found.is_ok(), expected, "case {number}, attempt {attempt}: {found:#?}");
            *if expected { &mut sound } else { &mut unsound } += 1;
        }
    }
    assert!(sound >= 50 && unsound >= 50, "{sound} sound, {unsound} unsound");
}

fn pick<T: Clone>(items: impl Iterator<Item = T>, rng: &mut Rng) -> Option<T> {
    let items: Vec<T> = items.collect();
    items.get(rng.below(items.len() as u64) as usize).cloned()
}

fn is_copy(step: &Step) -> bool {
    matches!(step.action, Action::Copy(_))
}

fn a_copy(plan: &Plan, rng: &mut Rng) -> Option<usize> {
    pick((0..plan.steps.len()).filter(|&i| is_copy(&plan.steps[i])), rng)
}

fn a_launch(plan: &Plan, rng: &mut Rng) -> Option<usize> {
    pick((0..plan.steps.len()).filter(|&i| !is_copy(&plan.steps[i])), rng)
}

/// A launch that is as the caller wants it.
fn launch_where(plan: &Plan, rng: &mut Rng, wanted: impl Fn(&Launch) -> bool) -> Option<usize> {
    let fits = |step: &Step| matches!(&step.action, Action::Launch(launch) if wanted(launch));
    pick((0..plan.steps.len()).filter(|&i| fits(&plan.steps[i])), rng)
}

fn launch(plan: &mut Plan, i: usize) -> &mut Launch {
    match &mut plan.steps[i].action {
        Action::Launch(launch) => launch,
        Action::Copy(_) => panic!("step {i} is a copy"),
    }
}

fn copy(plan: &mut Plan, i: usize) -> &mut CopyAction {
    match &mut plan.steps[i].action {
        Action::Copy(copy) => copy,
        Action::Launch(_) => panic!("step {i} is a launch"),
    }
}

fn buffer_of(plan: &Plan, id: &str) -> usize {
    plan.buffers.iter().position(|buffer| buffer.id == id).expect("a buffer")
}

fn a_buffer(plan: &Plan, rng: &mut Rng, wanted: impl Fn(&Buffer) -> bool) -> Option<usize> {
    pick((0..plan.buffers.len()).filter(|&i| wanted(&plan.buffers[i])), rng)
}

fn other_device(plan: &Plan, device: &str, rng: &mut Rng) -> Option<String> {
    pick(plan.devices.iter().map(|device| device.name.clone()).filter(|name| name != device), rng)
}

fn remove_step(plan: &mut Plan, i: usize) -> Step {
    let step = plan.steps.remove(i);
    for other in &mut plan.steps {
        other.after.retain(|after| *after != step.id);
    }
    step
}

/// Makes the sums agree with the copies, so that they do not give the damage away.
fn settle(plan: &mut Plan) {
    let moved = plan.steps.iter().map(|step| match &step.action {
        Action::Copy(copy) => copy.bytes,
        Action::Launch(_) => Bytes::ZERO,
    });
    plan.cost.step_bytes = moved.sum();
    plan.cost.transfer_bytes = plan.cost.step_bytes + plan.cost.load_bytes;
}

/// Removes a random dependency, harmful or not.
fn drop_dependency(plan: &mut Plan, rng: &mut Rng) -> bool {
    let waits = (0..plan.steps.len()).filter(|&i| !plan.steps[i].after.is_empty());
    let Some(i) = pick(waits, rng) else { return false };
    let after = &mut plan.steps[i].after;
    after.remove(rng.below(after.len() as u64) as usize);
    true
}

/// Moves a buffer to where another one begins, harmful or not.
fn move_buffer(plan: &mut Plan, rng: &mut Rng) -> bool {
    let Some(i) = a_buffer(plan, rng, |buffer| buffer.bytes.0 > 0 && !buffer.kind.is_resident()) else {
        return false;
    };
    let (bytes, old) = (plan.buffers[i].bytes, plan.buffers[i].offset);
    let device = plan.devices.iter().find(|device| device.name == plan.buffers[i].device).unwrap();
    let fits = |other: &&Buffer| {
        other.device == device.name && other.offset != old && other.offset + bytes <= device.arena
    };
    let offsets: Vec<Bytes> = plan.buffers.iter().filter(fits).map(|other| other.offset).collect();
    let Some(offset) = pick(offsets.into_iter(), rng) else { return false };
    plan.buffers[i].offset = offset;
    true
}

/// Swaps two steps of one lane, harmful or not.
fn swap_steps(plan: &mut Plan, rng: &mut Rng) -> bool {
    let Some(i) = pick(0..plan.steps.len(), rng) else { return false };
    let (device, lane) = (plan.steps[i].device.clone(), plan.steps[i].lane);
    let on_lane = |j: &usize| plan.steps[*j].device == device && plan.steps[*j].lane == lane;
    let Some(j) = (i + 1..plan.steps.len()).find(on_lane) else { return false };
    plan.steps.swap(i, j);
    true
}

/// Adds a buffer like another one, behind everything on a device.
fn add_buffer(plan: &mut Plan, like: usize, device: &str, kind: BufferKind) -> String {
    let id = format!("new{}", plan.buffers.len());
    let at = plan.devices.iter_mut().find(|other| other.name == device).expect("a device");
    let offset = Bytes(at.arena.0.div_ceil(64) * 64);
    at.arena = offset + plan.buffers[like].bytes;
    at.peak = at.arena;
    let (id_copy, device) = (id.clone(), device.to_owned());
    plan.buffers.push(Buffer {
        id: id_copy,
        device,
        offset,
        kind,
        alias: None,
        ..plan.buffers[like].clone()
    });
    id
}

fn add_copy(plan: &mut Plan, after: usize, device: &str, copy: CopyAction) {
    let id = plan.steps.iter().map(|step| step.id).max().unwrap_or(0) + 1;
    let after = vec![plan.steps[after].id];
    let action = Action::Copy(Box::new(copy));
    plan.steps.push(Step { id, device: device.into(), lane: Lane::Copy, after, action, why: None });
    settle(plan);
}

const ORDER: &[&str] =
    &["before anything", "alive together", "has overwritten", "overwrites output", "does not come before"];

macro_rules! some {
    ($value:expr) => {
        match $value {
            Some(value) => value,
            None => return false,
        }
    };
}

/// (name, what is given to the checker, what it must say at least one of, what is done)
const DAMAGES: &[(&str, By, &[&str], Damage)] = &[
    ("dropped copy", By::Plan, &["is never written"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        remove_step(plan, i);
        settle(plan);
        true
    }),
    ("dropped launch", By::Plan, &["is never launched"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        remove_step(plan, i);
        true
    }),
    ("dropped launch, hushed up", By::Plan, &["is never written"], |plan, rng| {
        let i = some!(launch_where(plan, rng, |launch| !launch.writes.is_empty()));
        let Action::Launch(launch) = remove_step(plan, i).action else { return false };
        plan.kernels.iter_mut().for_each(|kernel| kernel.nodes.retain(|node| !launch.nodes.contains(node)));
        plan.unlaunched.extend(launch.nodes);
        true
    }),
    ("removed dependency", By::Plan, ORDER, |plan, rng| {
        drop_dependency(plan, rng) && !naive_plan::is_sound(plan)
    }),
    ("all dependencies of a step removed", By::Plan, ORDER, |plan, rng| {
        let i = some!(pick((0..plan.steps.len()).filter(|&i| !plan.steps[i].after.is_empty()), rng));
        plan.steps[i].after.clear();
        !naive_plan::is_sound(plan)
    }),
    ("reordered steps on a lane", By::Plan, ORDER, |plan, rng| {
        swap_steps(plan, rng) && (!naive_plan::is_ordered(plan) || !naive_plan::is_sound(plan))
    }),
    ("shifted offset", By::Plan, &["alive together", "has overwritten", "overwrites output"], |plan, rng| {
        move_buffer(plan, rng) && !naive_plan::is_sound(plan)
    }),
    (
        "buffer on top of a parameter",
        By::Plan,
        &["alive together", "has overwritten", "overwrites output"],
        |plan, rng| {
            let param = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Param && b.bytes.0 > 0));
            let (device, offset) = (plan.buffers[param].device.clone(), plan.buffers[param].offset);
            let arena = plan.devices.iter().find(|other| other.name == device).unwrap().arena;
            let i = some!(a_buffer(plan, rng, |b| b.device == device
                && b.kind == BufferKind::Temp
                && b.bytes.0 > 0
                && offset + b.bytes <= arena));
            plan.buffers[i].offset = offset;
            true
        },
    ),
    ("parameters on top of each other", By::Plan, &["share bytes before the step"], |plan, rng| {
        let one = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Param && b.bytes.0 > 0));
        let (id, device, offset) =
            (plan.buffers[one].id.clone(), plan.buffers[one].device.clone(), plan.buffers[one].offset);
        let i = some!(a_buffer(plan, rng, |b| b.device == device
            && b.kind.is_resident()
            && b.bytes.0 > 0
            && b.id != id));
        plan.buffers[i].offset = offset;
        true
    }),
    ("unaligned offset", By::Plan, &["no multiple of"], |plan, rng| {
        let i = some!(pick(0..plan.buffers.len(), rng));
        plan.buffers[i].offset = Bytes(plan.buffers[i].offset.0 + 1);
        true
    }),
    ("buffer beyond its arena", By::Plan, &["the arena of"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |buffer| buffer.bytes.0 > 0));
        plan.buffers[i].offset = Bytes(1 << 50);
        true
    }),
    ("offset that overflows", By::Plan, &["beyond 2^64"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |buffer| buffer.bytes.0 > 0));
        plan.buffers[i].offset = Bytes(u64::MAX);
        true
    }),
    ("stale size", By::Plan, &["its type"], |plan, rng| {
        let i = some!(pick(0..plan.buffers.len(), rng));
        plan.buffers[i].bytes = Bytes(plan.buffers[i].bytes.0 + 1);
        true
    }),
    ("stale size and type", By::Model, &["bytes, not"], |plan, rng| {
        let copied = |id: &str| {
            let uses = |step: &Step| matches!(&step.action, Action::Copy(copy) if copy.from == id);
            plan.steps.iter().any(uses)
        };
        let i = some!(a_buffer(plan, rng, |b| b.bytes.0 > 0
            && matches!(b.kind, BufferKind::Temp | BufferKind::Output)
            && !copied(&b.id)));
        let buffer = &mut plan.buffers[i];
        buffer.bytes = Bytes(buffer.bytes.0 - 1);
        buffer.ty = format!("u8[{}]", buffer.bytes.0);
        true
    }),
    ("launch on the wrong device", By::Plan, &["where it is not placed"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        plan.steps[i].device = some!(other_device(plan, &plan.steps[i].device, rng)).into();
        true
    }),
    ("copy run by the wrong device", By::Plan, &["and copies to"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        plan.steps[i].device = some!(other_device(plan, &plan.steps[i].device, rng)).into();
        true
    }),
    ("step on an unknown device", By::Plan, &["unknown device"], |plan, rng| {
        let i = some!(pick(0..plan.steps.len(), rng));
        plan.steps[i].device = "cuda99".into();
        true
    }),
    ("buffer on the wrong device", By::Plan, &["touches", "copies within", "and copies to"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |buffer| buffer.kind != BufferKind::Param));
        let id = plan.buffers[i].id.clone();
        plan.buffers[i].device = some!(other_device(plan, &plan.buffers[i].device, rng));
        plan.steps.iter().any(|step| match &step.action {
            Action::Launch(launch) => launch.reads.contains(&id) || launch.writes.contains(&id),
            Action::Copy(copy) => copy.to == id,
        })
    }),
    ("buffer on an unknown device", By::Plan, &["unknown device"], |plan, rng| {
        let i = some!(pick(0..plan.buffers.len(), rng));
        plan.buffers[i].device = "cuda99".into();
        true
    }),
    ("duplicated step id", By::Plan, &["appears twice"], |plan, rng| {
        let i = some!(pick(1..plan.steps.len().max(1), rng));
        plan.steps[i].id = plan.steps[i - 1].id;
        true
    }),
    ("duplicated step", By::Plan, &["both write"], |plan, rng| {
        let i = some!(launch_where(plan, rng, |launch| !launch.writes.is_empty()));
        let step = Step { id: 1 << 40, ..plan.steps[i].clone() };
        plan.steps.insert(i + 1, step);
        true
    }),
    ("duplicated buffer id", By::Plan, &["appears twice"], |plan, rng| {
        let i = some!(pick(1..plan.buffers.len().max(1), rng));
        plan.buffers[i].id = plan.buffers[i - 1].id.clone();
        true
    }),
    ("duplicated device", By::Plan, &["appears twice"], |plan, _| {
        let device = plan.devices[0].clone();
        plan.devices.push(device);
        true
    }),
    ("dropped device", By::Plan, &["in the topology", "unknown device"], |plan, _| {
        plan.devices.pop();
        true
    }),
    ("cap lowered", By::Plan, &["does not hold"], |plan, rng| {
        let i = some!(pick((0..plan.devices.len()).filter(|&i| plan.devices[i].arena.0 > 0), rng));
        let cap = Bytes(plan.devices[i].arena.0 - 1);
        plan.devices[i].memory = cap;
        plan.topology.devices[i].memory = cap;
        true
    }),
    ("cap that is not the topology's", By::Plan, &["in the topology"], |plan, rng| {
        let i = some!(pick(0..plan.devices.len(), rng));
        plan.devices[i].memory = Bytes(plan.devices[i].memory.0 + 1);
        true
    }),
    ("reserve raised", By::Plan, &["does not hold"], |plan, rng| {
        let i = some!(pick((0..plan.devices.len()).filter(|&i| plan.devices[i].arena.0 > 0), rng));
        plan.devices[i].reserve = plan.devices[i].memory;
        true
    }),
    ("arena lowered", By::Plan, &["the arena of"], |plan, rng| {
        let i = some!(pick((0..plan.devices.len()).filter(|&i| plan.devices[i].arena.0 > 0), rng));
        let name = &plan.devices[i].name;
        let ends = plan.buffers.iter().filter(|buffer| buffer.device == *name && buffer.bytes.0 > 0);
        let end = some!(ends.map(|buffer| buffer.offset + buffer.bytes).max());
        plan.devices[i].arena = Bytes(end.0 - 1);
        plan.devices[i].peak = plan.devices[i].peak.min(plan.devices[i].arena);
        true
    }),
    ("peak above the arena", By::Plan, &["does not hold"], |plan, rng| {
        let i = some!(pick(0..plan.devices.len(), rng));
        plan.devices[i].peak = Bytes(plan.devices[i].arena.0 + 1);
        true
    }),
    ("peak understated", By::Plan, &["at once"], |plan, rng| {
        let used = |name: &String| plan.buffers.iter().any(|b| b.device == *name && b.bytes.0 > 0);
        let i = some!(pick((0..plan.devices.len()).filter(|&i| used(&plan.devices[i].name)), rng));
        plan.devices[i].peak = Bytes::ZERO;
        true
    }),
    ("wrong byte count of a copy", By::Plan, &["bytes, buffer"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        let copy = copy(plan, i);
        copy.bytes = Bytes(copy.bytes.0 + 64);
        settle(plan);
        true
    }),
    ("wrong step_bytes", By::Plan, &["cost.step_bytes"], |plan, _| {
        plan.cost.step_bytes += Bytes(4);
        plan.cost.transfer_bytes += Bytes(4);
        true
    }),
    ("wrong load_bytes", By::Plan, &["cost.load_bytes"], |plan, _| {
        plan.cost.load_bytes += Bytes(4);
        plan.cost.transfer_bytes += Bytes(4);
        true
    }),
    ("wrong transfer_bytes", By::Plan, &["cost.transfer_bytes"], |plan, _| {
        plan.cost.transfer_bytes += Bytes(4);
        true
    }),
    ("missing placement entry", By::Plan, &["which is not placed", "and is not placed"], |plan, rng| {
        let i = some!(pick(0..plan.placement.len(), rng));
        plan.placement.remove(i);
        plan.model.nodes -= 1;
        true
    }),
    ("wrong number of nodes", By::Plan, &["the model has"], |plan, _| {
        plan.model.nodes += 1;
        true
    }),
    ("placement on an unknown device", By::Plan, &["unknown device"], |plan, rng| {
        let i = some!(pick(0..plan.placement.len(), rng));
        plan.placement[i].1 = "cuda99".into();
        true
    }),
    ("placement elsewhere", By::Plan, &["where it is not placed"], |plan, rng| {
        let launched = |i: &usize| !plan.unlaunched.contains(&plan.placement[*i].0);
        let i = some!(pick((0..plan.placement.len()).filter(launched), rng));
        plan.placement[i].1 = some!(other_device(plan, &plan.placement[i].1, rng));
        true
    }),
    ("node placed twice", By::Plan, &["is placed twice"], |plan, rng| {
        let i = some!(pick(0..plan.placement.len(), rng));
        plan.placement.push(plan.placement[i].clone());
        plan.model.nodes += 1;
        true
    }),
    ("launched node said not to be", By::Plan, &["and is"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        let node = launch(plan, i).nodes[0].clone();
        plan.unlaunched.push(node);
        true
    }),
    ("read of a buffer never written", By::Plan, &["before anything", "is never written"], |plan, rng| {
        let i = some!(launch_where(plan, rng, |launch| !launch.writes.is_empty()));
        launch(plan, i).writes.remove(0);
        true
    }),
    ("double write", By::Plan, &["both write"], |plan, rng| {
        let i = some!(launch_where(plan, rng, |launch| !launch.writes.is_empty()));
        let (id, device) = (launch(plan, i).writes[0].clone(), plan.steps[i].device.clone());
        let others = (0..plan.steps.len()).filter(|&j| j != i && plan.steps[j].device == device);
        let j = some!(pick(others.filter(|&j| !is_copy(&plan.steps[j])), rng));
        launch(plan, j).writes.push(id);
        true
    }),
    ("parameter overwritten", By::Plan, &["of kind param", "of kind const"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |b| matches!(b.kind, BufferKind::Param | BufferKind::Const)));
        let (id, device) = (plan.buffers[i].id.clone(), plan.buffers[i].device.clone());
        let on_device = (0..plan.steps.len()).filter(|&j| *plan.steps[j].device == *device);
        let j = some!(pick(on_device.filter(|&j| !is_copy(&plan.steps[j])), rng));
        launch(plan, j).writes.push(id);
        true
    }),
    ("copy into a parameter", By::Plan, &["of kind param"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        let device = plan.steps[i].device.clone();
        let to = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Param && *b.device == *device));
        copy(plan, i).to = plan.buffers[to].id.clone();
        true
    }),
    ("copy within one device", By::Plan, &["copies within"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        let (device, to) = (plan.steps[i].device.clone(), copy(plan, i).to.clone());
        let from = some!(a_buffer(plan, rng, |b| *b.device == *device && b.id != to));
        copy(plan, i).from = plan.buffers[from].id.clone();
        true
    }),
    ("copy of the wrong value", By::Plan, &["which holds"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        let id = copy(plan, i).from.clone();
        let from = buffer_of(plan, &id);
        let (device, value) = (plan.buffers[from].device.clone(), plan.buffers[from].value.clone());
        let other = some!(a_buffer(plan, rng, |b| b.device == device && b.value != value));
        copy(plan, i).from = plan.buffers[other].id.clone();
        true
    }),
    ("second copy of the same value", By::Plan, &["a second time"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        let (device, again) = (plan.steps[i].device.clone(), copy(plan, i).clone());
        let to = add_buffer(plan, buffer_of(plan, &again.to), &device, BufferKind::Copy);
        add_copy(plan, i, &device, CopyAction { to, ..again });
        true
    }),
    ("copy back to where the value is", By::Plan, &["back to"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        let there = copy(plan, i).clone();
        let from = buffer_of(plan, &there.from);
        let device = plan.buffers[from].device.clone();
        let to = add_buffer(plan, from, &device, BufferKind::Copy);
        let back = CopyAction { from: there.to, to, ..there };
        // The source must still be alive when it is read again.
        add_copy(plan, i, &device, back);
        true
    }),
    ("kind changed to param", By::Plan, &["of kind param"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Temp));
        plan.buffers[i].kind = BufferKind::Param;
        true
    }),
    ("kind changed to input", By::Plan, &["of kind input"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Temp));
        plan.buffers[i].kind = BufferKind::Input;
        true
    }),
    ("kind changed to copy", By::Plan, &["of kind copy"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Temp));
        plan.buffers[i].kind = BufferKind::Copy;
        true
    }),
    ("kind of a copy changed", By::Plan, &["copies into"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Copy));
        plan.buffers[i].kind = BufferKind::Temp;
        true
    }),
    ("input said to be made", By::Plan, &["is never written"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Input));
        plan.buffers[i].kind = BufferKind::Temp;
        true
    }),
    ("workspace read", By::Plan, &["reads workspace"], |plan, rng| {
        let i = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Workspace));
        let (id, device) = (plan.buffers[i].id.clone(), plan.buffers[i].device.clone());
        let on_device = (0..plan.steps.len()).filter(|&j| *plan.steps[j].device == *device);
        let j = some!(pick(on_device.filter(|&j| !is_copy(&plan.steps[j])), rng));
        launch(plan, j).reads.push(id);
        true
    }),
    ("alias that is a lie", By::Plan, &["without reading it"], |plan, rng| {
        let i = some!(launch_where(plan, rng, |launch| !launch.writes.is_empty()));
        let (reads, id) = (launch(plan, i).reads.clone(), launch(plan, i).writes[0].clone());
        let view = buffer_of(plan, &id);
        let (device, bytes) = (plan.buffers[view].device.clone(), plan.buffers[view].bytes);
        let of = some!(a_buffer(plan, rng, |b| b.device == device
            && b.bytes >= bytes
            && b.id != id
            && !reads.contains(&b.id)));
        plan.buffers[view].offset = plan.buffers[of].offset;
        plan.buffers[view].alias = Some(plan.buffers[of].id.clone());
        true
    }),
    ("alias outside its storage", By::Plan, &["leaves its bytes"], |plan, rng| {
        let view = some!(a_buffer(plan, rng, |b| b.bytes.0 > 0));
        let (offset, device) = (plan.buffers[view].offset, plan.buffers[view].device.clone());
        let of = some!(a_buffer(plan, rng, |b| b.device != device || b.offset != offset));
        let apart = {
            let (one, two) = (&plan.buffers[view], &plan.buffers[of]);
            one.device != two.device || one.offset < two.offset || one.offset >= two.offset + two.bytes
        };
        plan.buffers[view].alias = Some(plan.buffers[of].id.clone());
        apart
    }),
    ("alias of itself", By::Plan, &["is a view of itself"], |plan, rng| {
        let (i, j) = (some!(pick(0..plan.buffers.len(), rng)), some!(pick(0..plan.buffers.len(), rng)));
        plan.buffers[i].alias = Some(plan.buffers[j].id.clone());
        plan.buffers[j].alias = Some(plan.buffers[i].id.clone());
        true
    }),
    ("alias of an unknown buffer", By::Plan, &["unknown buffer"], |plan, rng| {
        let i = some!(pick(0..plan.buffers.len(), rng));
        plan.buffers[i].alias = Some("b999999".into());
        true
    }),
    ("cycle in after", By::Plan, &["does not come before"], |plan, rng| {
        let i = some!(pick((0..plan.steps.len()).filter(|&i| !plan.steps[i].after.is_empty()), rng));
        let (id, first) = (plan.steps[i].id, plan.steps[i].after[0]);
        let j = plan.steps.iter().position(|step| step.id == first).unwrap();
        plan.steps[j].after.push(id);
        true
    }),
    ("step after itself", By::Plan, &["does not come before"], |plan, rng| {
        let i = some!(pick(0..plan.steps.len(), rng));
        let id = plan.steps[i].id;
        plan.steps[i].after.push(id);
        true
    }),
    ("step after an unknown one", By::Plan, &["does not come before"], |plan, rng| {
        let i = some!(pick(0..plan.steps.len(), rng));
        plan.steps[i].after.push(1 << 50);
        true
    }),
    ("read of an unknown buffer", By::Plan, &["unknown buffer"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        launch(plan, i).reads.push("b999999".into());
        true
    }),
    ("copy on the compute lane", By::Plan, &["a copy on the compute lane"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        plan.steps[i].lane = Lane::Compute;
        true
    }),
    ("launch on the copy lane", By::Plan, &["a launch on the copy lane"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        plan.steps[i].lane = Lane::Copy;
        true
    }),
    (
        "read of overwritten bytes",
        By::Plan,
        &["alive together", "has overwritten", "overwrites output"],
        |plan, rng| {
            let last = |device: &str| {
                (0..plan.steps.len())
                    .rev()
                    .find(|&i| *plan.steps[i].device == *device && !is_copy(&plan.steps[i]))
            };
            let i = some!(a_buffer(plan, rng, |b| matches!(b.kind, BufferKind::Temp | BufferKind::Copy)
                && b.bytes.0 > 0));
            let (id, device) = (plan.buffers[i].id.clone(), plan.buffers[i].device.clone());
            let j = some!(last(&device));
            let writes = |step: &Step| match &step.action {
                Action::Launch(launch) => launch.writes.contains(&id),
                Action::Copy(copy) => copy.to == id,
            };
            if !plan.steps[..j].iter().any(writes) {
                return false;
            }
            // The reader waits for everything, so that the order is not what is wrong.
            plan.steps[j].after = plan.steps[..j].iter().map(|step| step.id).collect();
            launch(plan, j).reads.push(id);
            !naive_plan::is_sound(plan)
        },
    ),
    ("bound above the plan", By::Plan, &["the bound on"], |plan, _| {
        let (objective, proof) = ("transfer".into(), "wish".into());
        let value = plan.cost.transfer_bytes.0 + 1;
        plan.bound =
            Some(Bound { objective, value, gap: 0.0, proof, data: serde_json::Value::Null, peaks: None });
        true
    }),
    ("gap that does not follow", By::Plan, &["gap"], |plan, _| {
        let (objective, proof) = ("transfer".into(), "wish".into());
        let value = plan.cost.transfer_bytes.0;
        plan.bound =
            Some(Bound { objective, value, gap: 0.5, proof, data: serde_json::Value::Null, peaks: None });
        value > 0
    }),
    ("dropped kernel", By::Plan, &["unknown kernel", "launches no kernel"], |plan, rng| {
        let i = some!(pick(0..plan.kernels.len(), rng));
        let kernel = plan.kernels.remove(i);
        !plan.kernels.is_empty() || !kernel.nodes.is_empty()
    }),
    ("launch of another kernel", By::Plan, &["which lacks it"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        let kernel = launch(plan, i).kernel.clone();
        let ids = plan.kernels.iter().map(|kernel| Some(kernel.id.clone()));
        launch(plan, i).kernel =
            some!(pick(ids.filter(|id| *id != kernel).collect::<Vec<_>>().into_iter(), rng));
        true
    }),
    ("another digest of a kernel", By::Model, &["launches kernel"], |plan, rng| {
        let i = some!(pick(0..plan.kernels.len(), rng));
        plan.kernels[i].hash = "ffffffffffffffff".into();
        true
    }),
    ("swapped operands", By::Model, &["where the model has"], |plan, rng| {
        let i = some!(launch_where(plan, rng, |launch| launch.reads.len() > 1));
        let reads = &mut launch(plan, i).reads;
        let (first, second) = (reads[0].clone(), reads[1].clone());
        reads.swap(0, 1);
        plan.buffers[buffer_of(plan, &first)].value != plan.buffers[buffer_of(plan, &second)].value
    }),
    ("swapped results", By::Model, &["where the model has", "of workspace"], |plan, rng| {
        let i = some!(launch_where(plan, rng, |launch| launch.writes.len() > 1));
        let writes = &mut launch(plan, i).writes;
        writes.swap(0, 1);
        let first = writes[0].clone();
        let second = writes[1].clone();
        let kind = |id: &str| plan.buffers[buffer_of(plan, id)].kind;
        kind(&first) != BufferKind::Workspace && kind(&second) != BufferKind::Workspace
    }),
    ("dropped operand", By::Model, &["values, not"], |plan, rng| {
        let i = some!(launch_where(plan, rng, |launch| !launch.reads.is_empty()));
        launch(plan, i).reads.pop();
        true
    }),
    ("operand read twice", By::Model, &["values, not"], |plan, rng| {
        let i = some!(launch_where(plan, rng, |launch| !launch.reads.is_empty()));
        let launch = launch(plan, i);
        launch.reads.push(launch.reads[0].clone());
        true
    }),
    ("written in place where it may not be", By::Model, &["which its kernel does not allow"], |plan, rng| {
        // Sound for all that the plan alone says.
        let reads = |launch: &Launch| !launch.reads.is_empty() && !launch.writes.is_empty();
        let i = some!(launch_where(plan, rng, reads));
        let read = some!(pick(launch(plan, i).reads.clone().into_iter(), rng));
        let write = some!(pick(launch(plan, i).writes.clone().into_iter(), rng));
        let (read, write) = (buffer_of(plan, &read), buffer_of(plan, &write));
        let kinds = (plan.buffers[read].kind, plan.buffers[write].kind);
        let made = matches!(kinds.0, BufferKind::Temp | BufferKind::Copy);
        let held = plan.buffers[read].bytes.0 > 0 && plan.buffers[write].bytes.0 > 0;
        let already = plan.buffers[read].offset == plan.buffers[write].offset;
        if !made || !held || already || kinds.1 == BufferKind::Workspace {
            return false;
        }
        plan.buffers[write].offset = plan.buffers[read].offset;
        plan.devices.iter_mut().for_each(|device| device.arena_bound = None);
        check(plan).is_ok()
    }),
    ("arena bound above the arena", By::Plan, &["shorter than its own lower bound"], |plan, rng| {
        let i = some!(pick(0..plan.devices.len(), rng));
        plan.devices[i].arena_bound = Some(Bytes(plan.devices[i].arena.0 + 1));
        true
    }),
    ("dropped workspace", By::Model, &["of workspace"], |plan, rng| {
        let b = some!(a_buffer(plan, rng, |b| b.kind == BufferKind::Workspace));
        let id = plan.buffers.remove(b).id;
        let i = some!(launch_where(plan, rng, |launch| launch.writes.contains(&id)));
        launch(plan, i).writes.retain(|other| *other != id);
        true
    }),
    ("another group", By::Model, &["launches other nodes", "does not have"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        let launch = launch(plan, i);
        launch.group = launch.group.map(|group| group + 1);
        true
    }),
    ("another model", By::Model, &["this is"], |plan, _| {
        plan.model.hash = "def".into();
        true
    }),
    ("another node's name", By::Model, &["where the model has"], |plan, rng| {
        let i = some!(pick(0..plan.placement.len(), rng));
        let old = std::mem::replace(&mut plan.placement[i].0, "renamed".into());
        let renamed = |node: &mut String| {
            if *node == old {
                "renamed".clone_into(node);
            }
        };
        plan.unlaunched.iter_mut().for_each(renamed);
        plan.kernels.iter_mut().flat_map(|kernel| &mut kernel.nodes).for_each(renamed);
        for i in 0..plan.steps.len() {
            if !is_copy(&plan.steps[i]) {
                launch(plan, i).nodes.iter_mut().for_each(renamed);
            }
        }
        true
    }),
    ("cost graph: dropped copy", By::Graph, &["is there"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        remove_step(plan, i);
        settle(plan);
        true
    }),
    ("cost graph: removed dependencies", By::Graph, &["is there", "before it is on"], |plan, rng| {
        // Of a launch that waits for a copy, or of a copy that waits for a launch, and for no
        // other step: nothing else can make up for them.
        let before = naive_plan::reachability(plan);
        let i = some!(a_copy(plan, rng));
        let node = copy(plan, i).node.clone().unwrap_or_default();
        plan.steps[i].after.clear();
        let makes =
            |step: &Step| matches!(&step.action, Action::Launch(launch) if launch.nodes.contains(&node));
        let Some(maker) = plan.steps.iter().position(makes) else { return false };
        naive_plan::contains(&before[i], maker)
            && !naive_plan::contains(&naive_plan::reachability(plan)[i], maker)
    }),
    ("cost graph: dropped launch", By::Graph, &["is never launched"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        let Action::Launch(launch) = remove_step(plan, i).action else { return false };
        plan.unlaunched.extend(launch.nodes);
        true
    }),
    ("cost graph: doubled launch", By::Graph, &["a second time"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        let step = Step { id: 1 << 40, ..plan.steps[i].clone() };
        plan.steps.push(step);
        true
    }),
    ("cost graph: wrong byte count", By::Graph, &["which has"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        let copy = copy(plan, i);
        copy.bytes = Bytes(copy.bytes.0 + 1);
        settle(plan);
        true
    }),
    ("cost graph: copy from the wrong device", By::Graph, &["before it is on"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        let (from, to) = (copy(plan, i).from.clone(), copy(plan, i).to.clone());
        let names = plan.devices.iter().map(|device| device.name.clone());
        let others: Vec<String> = names.filter(|name| *name != from && *name != to).collect();
        let other = some!(pick(others.into_iter(), rng));
        // Where the value has been copied before, it is no lie.
        let node = copy(plan, i).node.clone();
        let there = |step: &Step| matches!(&step.action, Action::Copy(c) if c.to == other && c.node == node);
        let lie = !plan.steps.iter().any(there);
        copy(plan, i).from = other;
        lie
    }),
    ("cost graph: second copy", By::Graph, &["a second time"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        let (device, again) = (plan.steps[i].device.clone(), copy(plan, i).clone());
        add_copy(plan, i, &device, again);
        true
    }),
    ("cost graph: copy of an unknown output", By::Graph, &["which is not there"], |plan, rng| {
        let i = some!(a_copy(plan, rng));
        copy(plan, i).output = Some(99);
        true
    }),
    ("cost graph: wrong load_bytes", By::Graph, &["cost.load_bytes"], |plan, _| {
        plan.cost.load_bytes += Bytes(4);
        plan.cost.transfer_bytes += Bytes(4);
        true
    }),
    ("cost graph: peak understated", By::Graph, &["holds at least"], |plan, rng| {
        let i = some!(pick((0..plan.devices.len()).filter(|&i| plan.devices[i].peak.0 > 0), rng));
        plan.devices[i].peak = Bytes::ZERO;
        true
    }),
    ("cost graph: launch before its operand arrives", By::Graph, &["is there"], |plan, rng| {
        let waits = |i: &usize| {
            let step = &plan.steps[*i];
            !is_copy(step) && step.why.is_none() && step.after.len() == 1
        };
        let j = some!(pick((0..plan.steps.len()).filter(waits), rng));
        let first = plan.steps[j].after[0];
        let i = plan.steps.iter().position(|step| step.id == first).unwrap();
        let step = plan.steps.remove(j);
        plan.steps.insert(i, Step { after: Vec::new(), ..step });
        true
    }),
    ("cost graph: launch elsewhere", By::Graph, &["is there", "before it is on"], |plan, rng| {
        let i = some!(a_launch(plan, rng));
        let node = launch(plan, i).nodes[0].clone();
        let device = some!(other_device(plan, &plan.steps[i].device, rng));
        plan.steps[i].device = device.as_str().into();
        let entry = plan.placement.iter_mut().find(|(name, _)| *name == node).unwrap();
        entry.1 = device;
        // Harm is done where the node's output was copied from where it was.
        plan.steps
            .iter()
            .any(|step| matches!(&step.action, Action::Copy(c) if c.node.as_ref() == Some(&node)))
    }),
    (
        "cost graph: unknown node",
        By::Graph,
        &["does not have", "is not there", "before it is on"],
        |plan, rng| {
            let i = some!(a_launch(plan, rng));
            let nodes = &mut launch(plan, i).nodes;
            let old = std::mem::replace(&mut nodes[0], "renamed".into());
            plan.placement.iter_mut().find(|(name, _)| *name == old).unwrap().0 = "renamed".into();
            true
        },
    ),
];
