//! Damages to steps: their order, what they wait for, what is launched and copied.

use partition::unstable::plan::{Action, BufferKind, Lane};
use partition::unstable::units::Bytes;

use super::damage::{Way, a_copy, a_launch, a_step, alike, buffer_of, copy, in_order, launch, some_of};

/// By what they do.
pub(super) const WAYS: &[(&str, Way)] = &[
    ("a wait less", |plan, random| {
        let at = some_of(random, (0..plan.steps.len()).filter(|&i| !plan.steps[i].after.is_empty()))?;
        let wait = random.below(plan.steps[at].after.len());
        plan.steps[at].after.remove(wait);
        Some(())
    }),
    ("no waits", |plan, random| {
        let at = a_step(plan, random);
        plan.steps[at].after.clear();
        Some(())
    }),
    ("another wait", |plan, random| {
        let at =
            some_of(random, (0..plan.steps.len()).filter(|&i| i > 0 && !plan.steps[i].after.is_empty()))?;
        let (wait, other) = (random.below(plan.steps[at].after.len()), random.below(at));
        plan.steps[at].after[wait] = plan.steps[other].id;
        Some(())
    }),
    ("a step earlier", |plan, random| {
        let at = a_step(plan, random);
        let to = random.below(at + 1);
        let step = plan.steps.remove(at);
        plan.steps.insert(to, step);
        Some(())
    }),
    ("a step later, with its waits", |plan, random| {
        let at = a_step(plan, random);
        let to = at + random.below(plan.steps.len() - at);
        let step = plan.steps.remove(at);
        plan.steps.insert(to, step);
        Some(())
    }),
    ("neighbours swapped", |plan, random| {
        let at = random.below(plan.steps.len().max(2) - 1);
        (at + 1 < plan.steps.len()).then(|| plan.steps.swap(at, at + 1))
    }),
    ("a step less", |plan, random| {
        let at = a_step(plan, random);
        plan.steps.remove(at);
        Some(())
    }),
    ("a step twice", |plan, random| {
        let at = a_step(plan, random);
        let mut step = plan.steps[at].clone();
        step.id = 1_000_000 + plan.steps.len() as u64;
        step.after.push(plan.steps[at].id);
        if let Action::Launch(launch) = &mut step.action {
            launch.again = random.one_in(2);
        }
        let to = at + 1 + random.below(plan.steps.len() - at);
        plan.steps.insert(to, step);
        Some(())
    }),
    ("a launch again, into buffers of its own", |plan, random| {
        let at = a_launch(plan, random)?;
        let mut step = plan.steps[at].clone();
        step.id = 1_000_000 + plan.steps.len() as u64;
        step.after.push(plan.steps[at].id);
        let again = random.one_in(2);
        let Action::Launch(launch) = &mut step.action else { return None };
        launch.again = again;
        for id in &mut launch.writes {
            let mut buffer = plan.buffers[buffer_of(plan, id)].clone();
            *id = format!("again{}", plan.buffers.len());
            buffer.id.clone_from(id);
            let device = plan.devices.iter_mut().find(|device| device.name == buffer.device)?;
            buffer.offset = Bytes(device.arena.get().next_multiple_of(64));
            device.arena = buffer.offset + buffer.bytes;
            plan.buffers.push(buffer);
        }
        let to = at + 1 + random.below(plan.steps.len() - at);
        plan.steps.insert(to, step);
        Some(())
    }),
    ("a step elsewhere", |plan, random| {
        let (at, device) = (a_step(plan, random), random.below(plan.devices.len()));
        plan.steps[at].device = plan.devices[device].name.as_str().into();
        Some(())
    }),
    ("lane", |plan, random| {
        let at = a_step(plan, random);
        plan.steps[at].lane = if plan.steps[at].lane == Lane::Copy { Lane::Compute } else { Lane::Copy };
        Some(())
    }),
    ("copy's source", |plan, random| {
        let at = a_copy(plan, random)?;
        let id = copy(plan, at).from.clone();
        let other = alike(plan, &id, random);
        copy(plan, at).from = other;
        Some(())
    }),
    ("copy's target", |plan, random| {
        let at = a_copy(plan, random)?;
        let id = copy(plan, at).to.clone();
        let other = alike(plan, &id, random);
        copy(plan, at).to = other;
        Some(())
    }),
    ("copy turned round", |plan, random| {
        let at = a_copy(plan, random)?;
        let copy = copy(plan, at);
        std::mem::swap(&mut copy.from, &mut copy.to);
        Some(())
    }),
    ("copy's bytes", |plan, random| {
        let at = a_copy(plan, random)?;
        let copy = copy(plan, at);
        copy.bytes = Bytes(random.pick(&[copy.bytes.get() / 2, copy.bytes.get() + 4, 0]));
        Some(())
    }),
    ("copy's part", |plan, random| {
        let at = a_copy(plan, random)?;
        let copy = copy(plan, at);
        let bytes = copy.bytes.get();
        let part = random.pick(&[(0, bytes / 2), (bytes / 2, bytes - bytes / 2), (0, bytes), (4, bytes)]);
        copy.part = Some((Bytes(part.0), Bytes(part.1)));
        copy.bytes = Bytes(part.1);
        Some(())
    }),
    ("copy in two parts", |plan, random| {
        let at = a_copy(plan, random)?;
        let mut second = plan.steps[at].clone();
        second.id = 1_000_000 + plan.steps.len() as u64;
        let bytes = copy(plan, at).bytes.get();
        let cut = random.below(bytes.max(1) as usize) as u64;
        let first = copy(plan, at);
        (first.bytes, first.part) = (Bytes(cut), Some((Bytes(0), Bytes(cut))));
        let Action::Copy(rest) = &mut second.action else { return None };
        (rest.bytes, rest.part) = (Bytes(bytes - cut), Some((Bytes(cut), Bytes(bytes - cut))));
        let to = at + 1 + random.below(plan.steps.len() - at);
        plan.steps.insert(to, second);
        Some(())
    }),
    ("reads swapped", |plan, random| {
        let at = a_launch(plan, random)?;
        let reads = &mut launch(plan, at).reads;
        let (a, b) = (random.below(reads.len()), random.below(reads.len()));
        (reads.len() > 1).then(|| reads.swap(a, b))
    }),
    ("writes swapped", |plan, random| {
        let at = a_launch(plan, random)?;
        let writes = &mut launch(plan, at).writes;
        let (a, b) = (random.below(writes.len()), random.below(writes.len()));
        (writes.len() > 1).then(|| writes.swap(a, b))
    }),
    ("another read", |plan, random| {
        let at = a_launch(plan, random)?;
        let reads = launch(plan, at).reads.clone();
        let number = some_of(random, 0..reads.len())?;
        let other = alike(plan, &reads[number], random);
        launch(plan, at).reads[number] = other;
        Some(())
    }),
    ("another write", |plan, random| {
        let at = a_launch(plan, random)?;
        let writes = launch(plan, at).writes.clone();
        let number = some_of(random, 0..writes.len())?;
        let other = alike(plan, &writes[number], random);
        launch(plan, at).writes[number] = other;
        Some(())
    }),
    ("written to state", |plan, random| {
        let at = a_launch(plan, random)?;
        let is_state = |i: &usize| plan.buffers[*i].kind == BufferKind::State;
        let state = some_of(random, (0..plan.buffers.len()).filter(is_state))?;
        let id = plan.buffers[state].id.clone();
        let old = std::mem::replace(launch(plan, at).writes.first_mut()?, id.clone());
        if random.one_in(2) {
            for step in &mut plan.steps[at + 1..] {
                match &mut step.action {
                    Action::Launch(launch) => {
                        launch
                            .reads
                            .iter_mut()
                            .filter(|read| **read == old)
                            .for_each(|read| read.clone_from(&id));
                    }
                    Action::Copy(copy) if copy.from == old => copy.from.clone_from(&id),
                    Action::Copy(_) => {}
                }
            }
            plan.buffers.retain(|buffer| buffer.id != old);
        }
        in_order(plan, &id);
        Some(())
    }),
    ("a read less", |plan, random| {
        let at = a_launch(plan, random)?;
        launch(plan, at).reads.pop().map(drop)
    }),
    ("a write less", |plan, random| {
        let at = a_launch(plan, random)?;
        launch(plan, at).writes.pop().map(drop)
    }),
    ("a read twice", |plan, random| {
        let at = a_launch(plan, random)?;
        let first = launch(plan, at).reads.first()?.clone();
        launch(plan, at).reads.push(first);
        Some(())
    }),
    ("launch of another group", |plan, random| {
        let (at, of) = (a_launch(plan, random)?, a_launch(plan, random)?);
        let other = launch(plan, of).clone();
        let own = launch(plan, at);
        own.group = other.group;
        if random.one_in(2) {
            (own.nodes, own.kernel) = (other.nodes, other.kernel);
        }
        Some(())
    }),
    ("two launches swapped", |plan, random| {
        let (at, of) = (a_launch(plan, random)?, a_launch(plan, random)?);
        let action = plan.steps[at].action.clone();
        plan.steps[at].action = std::mem::replace(&mut plan.steps[of].action, action);
        Some(())
    }),
    ("again", |plan, random| {
        let at = a_launch(plan, random)?;
        let launch = launch(plan, at);
        launch.again = !launch.again;
        Some(())
    }),
    ("microbatch of a launch", |plan, random| {
        let at = a_launch(plan, random)?;
        launch(plan, at).microbatch = random.pick(&[None, Some(0), Some(1)]);
        Some(())
    }),
    ("microbatches", |plan, random| {
        plan.options.microbatches = random.pick(&[None, Some(1), Some(2), Some(3)]);
        Some(())
    }),
    ("a kernel's digest", |plan, random| {
        let (at, of) = (random.below(plan.kernels.len()), random.below(plan.kernels.len()));
        plan.kernels[at].hash = plan.kernels[of].hash.clone();
        Some(())
    }),
];
