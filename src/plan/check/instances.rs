//! What runs more than once in a step: for each microbatch, or again.
//!
//! A launch runs once for all microbatches or once for each, in ascending order; it touches what is of its own
//! microbatch or of none, and the sum that it adds to; a launch that computes something again does what the first one
//! did. All of them must say the same about what the batch is cut into and put together from.

use std::collections::HashMap;

use super::super::{Action, Buffer, BufferKind, CopyAction, Launch, Plan, Step};
use super::Faults;
use super::resolve::{Resolved, Touch};

/// What is launched: its group where it has one, and its nodes.
type Key<'a> = (Option<u32>, &'a [String]);

pub(super) fn check(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
    let mut launched =
        Launched { plan, resolved, keys: HashMap::new(), seen: Vec::new(), first: HashMap::new() };
    for buffer in &plan.buffers {
        known(plan, buffer.microbatch, faults, || format!("buffer {}", buffer.id));
    }
    let repeats = |step: &Step| match &step.action {
        Action::Launch(launch) => launch.again || launch.microbatch.is_some(),
        Action::Copy(_) => false,
    };
    // Millions of launches need not be told from one another where each runs once.
    let any_repeats = plan.steps.iter().any(repeats);
    for (i, step) in plan.steps.iter().enumerate() {
        match (&step.action, resolved.steps.touch(i)) {
            (Action::Launch(launch), touch) => {
                known(plan, launch.microbatch, faults, || format!("step {}", step.id));
                if any_repeats {
                    launched.launch(i, launch, faults);
                }
                if let Touch::Launch { reads, writes } = touch {
                    own(plan, step, launch, reads, writes, faults);
                }
            }
            (Action::Copy(copy), touch) => {
                known(plan, copy.microbatch, faults, || format!("step {}", step.id));
                if let &Touch::Copy { from, to, .. } = touch {
                    same(plan, step, copy, from, to, faults);
                }
            }
        }
    }
    launched.finish(faults);
    axes(plan, faults);
    asked(plan, faults);
}

/// Orders of the microbatches of a step: `forward` where none of them has a gradient.
const ORDERS: [&str; 6] = ["forward", "gpipe", "1f1b", "interleaved", "zero-bubble", "auto"];

/// What was asked for is of a known form: the order of microbatches, and one size of the batch.
fn asked(plan: &Plan, faults: &mut Faults) {
    let options = &plan.options;
    if let Some(order) = options.schedule.as_deref().filter(|order| !ORDERS.contains(order)) {
        faults.add(|| format!("options.schedule is {order:?}, an order of microbatches that is not known"));
    }
    let stated = options.dims.iter().find(|(name, _)| name == "batch");
    // A network that is divided is lowered at the size of one part.
    if let (Some(batch), Some(&(_, size)), None) = (options.batch, stated, options.microbatches)
        && u64::try_from(size) != Ok(batch)
    {
        faults.add(|| format!("options.batch is {batch}, the dimension batch is {size}"));
    }
}

/// Inputs and outputs are divided along an axis that they have, the same in all microbatches, and which all
/// of them together make as long as the batch, or a multiple of it.
fn axes(plan: &Plan, faults: &mut Faults) {
    let mut first: HashMap<&str, Option<u32>> = HashMap::new();
    let ends = |buffer: &&Buffer| matches!(buffer.kind, BufferKind::Input | BufferKind::Output);
    for buffer in plan.buffers.iter().filter(ends) {
        let Buffer { id, value, axis, .. } = buffer;
        let other = *first.entry(value).or_insert(*axis);
        if other != *axis {
            faults.add(|| format!("{id} divides {value} along another axis than a buffer before it"));
        }
        let Some(number) = *axis else { continue };
        let size = dimension(&buffer.ty, number as usize);
        let whole =
            size.zip(plan.options.microbatches).and_then(|(size, count)| size.checked_mul(count.into()));
        // A value that is seen in other shapes may have several elements for each sample.
        let fits = whole.is_some_and(|whole| {
            plan.options.batch.is_none_or(|batch| batch > 0 && whole > 0 && whole.is_multiple_of(batch))
        });
        if !fits || buffer.microbatch.is_none() {
            faults.add(|| format!("{id}, of type {}, is divided along axis {number}", buffer.ty));
        }
    }
}

/// A dimension of a type such as `f32[64,1024]`.
fn dimension(ty: &str, axis: usize) -> Option<u64> {
    let (_, sizes) = ty.strip_suffix(']')?.split_once('[')?;
    sizes.split(',').nth(axis)?.trim().parse().ok()
}

fn known(plan: &Plan, microbatch: Option<u32>, faults: &mut Faults, place: impl Fn() -> String) {
    let count = plan.options.microbatches.unwrap_or(0);
    if let Some(number) = microbatch.filter(|&number| number >= count) {
        faults.add(|| format!("{} is of microbatch {number}, there are {count}", place()));
    }
}

/// The microbatches that a key was launched for.
#[derive(Default)]
struct Seen {
    once: bool,
    count: u32,
    last: Option<u32>,
}

struct Launched<'a> {
    plan: &'a Plan,
    resolved: &'a Resolved<'a>,
    keys: HashMap<Key<'a>, u32>,
    /// By key.
    seen: Vec<Seen>,
    /// The step that launched a key first for a microbatch.
    first: HashMap<(u32, Option<u32>), usize>,
}

impl<'a> Launched<'a> {
    fn launch(&mut self, i: usize, launch: &'a Launch, faults: &mut Faults) {
        let step = &self.plan.steps[i];
        let next = self.seen.len() as u32;
        let key = *self.keys.entry((launch.group, &launch.nodes)).or_insert(next);
        if key == next {
            self.seen.push(Seen::default());
        }
        let place = (key, launch.microbatch);
        if launch.again {
            match self.first.get(&place) {
                Some(&first) => self.repeated(i, launch, first, faults),
                None => faults.add(|| {
                    let what = named(launch);
                    format!("step {} computes {what} again, and nothing has computed it before", step.id)
                }),
            }
            return;
        }
        if self.first.contains_key(&place) {
            if launch.microbatch.is_some() {
                faults.add(|| format!("step {} launches {} a second time", step.id, named(launch)));
            }
            return;
        }
        self.first.insert(place, i);
        let seen = &mut self.seen[key as usize];
        let Some(microbatch) = launch.microbatch else {
            seen.once = true;
            return;
        };
        seen.count += 1;
        if let Some(last) = seen.last.filter(|&last| last > microbatch) {
            faults.add(|| {
                format!("step {} launches {} after that of microbatch {last}", step.id, named(launch))
            });
        }
        seen.last = seen.last.max(Some(microbatch));
    }

    /// The same kernel, and the same values read and written.
    fn repeated(&self, i: usize, launch: &Launch, first: usize, faults: &mut Faults) {
        let Action::Launch(original) = &self.plan.steps[first].action else { return };
        if launch.kernel != original.kernel || !self.contents_of(i).eq(self.contents_of(first)) {
            let (step, other) = (self.plan.steps[i].id, self.plan.steps[first].id);
            faults.add(|| {
                format!("step {step} computes {} again, and not as step {other} does", named(launch))
            });
        }
    }

    /// What the buffers that a launch reads, and then writes, hold; its workspace left out.
    fn contents_of(&self, i: usize) -> impl Iterator<Item = (&'a str, Option<u32>)> {
        let (plan, none): (&'a Plan, &'a [u32]) = (self.plan, &[]);
        let (reads, writes) = match self.resolved.steps.touch(i) {
            Touch::Launch { reads, writes } => (&reads[..], &writes[..]),
            Touch::Copy { .. } => (none, none),
        };
        let buffers = reads.iter().chain(writes).map(|&id| &plan.buffers[id as usize]);
        let kept = buffers.filter(|buffer| buffer.kind != BufferKind::Workspace);
        kept.map(|buffer| (buffer.value.as_str(), buffer.microbatch))
    }

    fn finish(self, faults: &mut Faults) {
        let count = self.plan.options.microbatches.unwrap_or(0);
        let mut keys: Vec<(Key<'_>, u32)> = self.keys.into_iter().collect();
        keys.sort_unstable_by_key(|&(_, number)| number);
        for ((_, nodes), number) in keys {
            let seen = &self.seen[number as usize];
            let name = nodes.first().map_or("a launch of nothing", String::as_str);
            if seen.once && seen.count > 0 {
                faults.add(|| format!("{name} is launched for microbatches and for all of them"));
            } else if seen.count > 0 && seen.count < count {
                let missing = (0..count).find(|&m| !self.first.contains_key(&(number, Some(m))));
                faults.add(|| {
                    format!("{name} is never launched for microbatch {}", missing.unwrap_or_default())
                });
            }
        }
    }
}

/// `conv1`, `conv1 of microbatch 2`.
fn named(launch: &Launch) -> String {
    let name = launch.nodes.first().map_or("nothing", String::as_str);
    launch.microbatch.map_or_else(|| name.to_owned(), |number| format!("{name} of microbatch {number}"))
}

/// A launch touches what is of its own microbatch or of none.
fn own(plan: &Plan, step: &Step, launch: &Launch, reads: &[u32], writes: &[u32], faults: &mut Faults) {
    let buffer = |&id: &u32| -> &Buffer { &plan.buffers[id as usize] };
    let cross = |verb: &str, buffer: &Buffer, faults: &mut Faults| {
        let of = buffer.microbatch.map_or("all microbatches".into(), |m| format!("microbatch {m}"));
        let (id, what) = (step.id, named(launch));
        faults.add(|| format!("step {id} ({what}) {verb} {} of {of}", buffer.id));
    };
    for written in writes.iter().map(buffer).filter(|buffer| buffer.microbatch != launch.microbatch) {
        cross("writes", written, faults);
    }
    let Some(microbatch) = launch.microbatch else { return };
    for read in reads.iter().map(buffer) {
        let summed = || writes.iter().map(buffer).any(|written| written.value == read.value);
        let before = microbatch.checked_sub(1);
        match read.microbatch {
            None => {}
            Some(own) if own == microbatch => {}
            Some(other) if Some(other) == before && summed() => {}
            Some(_) => cross("reads", read, faults),
        }
    }
}

/// A copy brings what it is said to bring.
fn same(plan: &Plan, step: &Step, copy: &CopyAction, from: u32, to: u32, faults: &mut Faults) {
    let (from, to) = (&plan.buffers[from as usize], &plan.buffers[to as usize]);
    if from.microbatch != to.microbatch {
        faults
            .add(|| format!("step {} copies {} into {} of another microbatch", step.id, copy.from, copy.to));
    }
}
