//! Damages to buffers and arenas: what they hold, where they lie, of what size and kind they are.

use partition::unstable::plan::{Action, BufferKind};
use partition::unstable::units::Bytes;

use super::damage::{
    Way, a_buffer, a_launch, buffer_of, in_order, launch, overlay, some_of, touches, writes,
};

/// By what they do.
pub(super) const WAYS: &[(&str, Way)] = &[
    ("kind", |plan, random| {
        let at = a_buffer(plan, random);
        plan.buffers[at].kind = random.pick(&BufferKind::ALL);
        Some(())
    }),
    ("output to temp, its bytes reused", |plan, random| {
        let is_output = |i: &usize| plan.buffers[*i].kind == BufferKind::Output;
        let at = some_of(random, (0..plan.buffers.len()).filter(is_output))?;
        plan.buffers[at].kind = BufferKind::Temp;
        let (id, device, offset) =
            (plan.buffers[at].id.clone(), plan.buffers[at].device.clone(), plan.buffers[at].offset);
        let made = plan.steps.iter().position(|step| writes(step, &id))?;
        let later: Vec<usize> = (0..plan.buffers.len())
            .filter(|&i| plan.buffers[i].device == device && !plan.buffers[i].kind.is_resident())
            .filter(|&i| plan.steps[..=made].iter().all(|step| !touches(step, &plan.buffers[i].id)))
            .collect();
        let over = some_of(random, later.into_iter())?;
        plan.buffers[over].offset = offset;
        let over = plan.buffers[over].id.clone();
        in_order(plan, &over);
        Some(())
    }),
    ("alias", |plan, random| {
        let (at, of) = (a_buffer(plan, random), a_buffer(plan, random));
        plan.buffers[at].alias = Some(plan.buffers[of].id.clone());
        Some(())
    }),
    ("overlaid", |plan, random| overlay(plan, random).map(drop)),
    ("overlaid, with an alias", |plan, random| {
        let (under, over) = overlay(plan, random)?;
        plan.buffers[over].alias = Some(plan.buffers[under].id.clone());
        Some(())
    }),
    ("overlaid, the writer waiting", |plan, random| {
        let (_, over) = overlay(plan, random)?;
        let id = plan.buffers[over].id.clone();
        in_order(plan, &id);
        Some(())
    }),
    ("overlaid, with an alias, the writer waiting", |plan, random| {
        let (under, over) = overlay(plan, random)?;
        plan.buffers[over].alias = Some(plan.buffers[under].id.clone());
        let id = plan.buffers[over].id.clone();
        in_order(plan, &id);
        Some(())
    }),
    ("in place with an alias", |plan, random| {
        let at = a_launch(plan, random)?;
        let launch = launch(plan, at).clone();
        let read = &launch.reads[some_of(random, 0..launch.reads.len())?];
        let write = launch.writes.first()?;
        let (read, write) = (buffer_of(plan, read), buffer_of(plan, write));
        plan.buffers[write].offset = plan.buffers[read].offset;
        if random.one_in(2) {
            plan.buffers[write].alias = Some(plan.buffers[read].id.clone());
        }
        let id = plan.buffers[write].id.clone();
        in_order(plan, &id);
        Some(())
    }),
    ("offset", |plan, random| {
        let at = a_buffer(plan, random);
        let step = 64 * (1 + random.below(4) as u64);
        let offset = plan.buffers[at].offset;
        let moved = if random.one_in(2) { offset + Bytes(step) } else { offset.saturating_sub(Bytes(step)) };
        plan.buffers[at].offset = moved;
        Some(())
    }),
    ("size", |plan, random| {
        let at = a_buffer(plan, random);
        let bytes = plan.buffers[at].bytes.get();
        let bytes = random.pick(&[bytes / 2, bytes * 2, bytes + 4, bytes.saturating_sub(4), 0]);
        plan.buffers[at].bytes = Bytes(bytes);
        plan.buffers[at].ty = format!("u8[{bytes}]");
        Some(())
    }),
    ("type", |plan, random| {
        let (at, of) = (a_buffer(plan, random), a_buffer(plan, random));
        plan.buffers[at].ty = plan.buffers[of].ty.clone();
        if random.one_in(2) {
            plan.buffers[at].bytes = plan.buffers[of].bytes;
        }
        Some(())
    }),
    ("value", |plan, random| {
        let (at, of) = (a_buffer(plan, random), a_buffer(plan, random));
        plan.buffers[at].value = plan.buffers[of].value.clone();
        Some(())
    }),
    ("values swapped", |plan, random| {
        let (at, of) = (a_buffer(plan, random), a_buffer(plan, random));
        let value = plan.buffers[at].value.clone();
        plan.buffers[at].value = std::mem::replace(&mut plan.buffers[of].value, value);
        Some(())
    }),
    ("microbatch of a buffer", |plan, random| {
        let at = a_buffer(plan, random);
        plan.buffers[at].microbatch = random.pick(&[None, Some(0), Some(1)]);
        Some(())
    }),
    ("axis of a buffer", |plan, random| {
        let at = a_buffer(plan, random);
        plan.buffers[at].axis = random.pick(&[None, Some(0), Some(1)]);
        Some(())
    }),
    ("axis of a value", |plan, random| {
        let at = a_buffer(plan, random);
        let (value, axis) = (plan.buffers[at].value.clone(), random.pick(&[None, Some(0), Some(1)]));
        plan.buffers.iter_mut().filter(|buffer| buffer.value == value).for_each(|buffer| buffer.axis = axis);
        Some(())
    }),
    ("device of a buffer", |plan, random| {
        let at = a_buffer(plan, random);
        let device = random.below(plan.devices.len());
        plan.buffers[at].device = plan.devices[device].name.clone();
        Some(())
    }),
    ("a buffer more", |plan, random| {
        let at = a_buffer(plan, random);
        let mut buffer = plan.buffers[at].clone();
        buffer.id = format!("more{}", plan.buffers.len());
        if random.one_in(2) {
            let device = plan.devices.iter_mut().find(|device| device.name == buffer.device)?;
            buffer.offset = Bytes(device.arena.get().next_multiple_of(64));
            device.arena = buffer.offset + buffer.bytes;
        }
        if random.one_in(3) {
            plan.buffers.insert(0, buffer);
        } else {
            plan.buffers.push(buffer);
        }
        Some(())
    }),
    ("a buffer less", |plan, random| {
        let at = a_buffer(plan, random);
        let id = plan.buffers.remove(at).id;
        for step in &mut plan.steps {
            if let Action::Launch(launch) = &mut step.action {
                launch.reads.retain(|other| *other != id);
                launch.writes.retain(|other| *other != id);
            }
        }
        plan.steps.retain(|step| !touches(step, &id));
        Some(())
    }),
    ("arena", |plan, random| {
        let at = random.below(plan.devices.len());
        let device = &mut plan.devices[at];
        device.arena = Bytes(random.pick(&[device.arena.get() / 2, device.arena.get().saturating_sub(64)]));
        Some(())
    }),
    ("memory", |plan, random| {
        let at = random.below(plan.devices.len());
        let memory = Bytes(plan.devices[at].arena.get().saturating_sub(random.below(2) as u64));
        plan.devices[at].memory = memory;
        if random.one_in(2) {
            plan.topology.devices[at].memory = memory;
        }
        Some(())
    }),
];
