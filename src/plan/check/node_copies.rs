//! The order of a plan without buffers, as far as the plan itself tells what its steps need: a copy names the node whose
//! output it moves, so that node's launch, or the copy that brought the output, is over before it; the nodes that read what
//! comes back to a device are launched behind the copy that brings it; and a device has the memory for what is copied.

use std::collections::{HashMap, HashSet};

use super::super::{Action, CopyAction, Launch, Plan, Step};
use super::Faults;
use super::order::{Event, Past, sweep};
use super::parts::{ByteRange, Covered};
use super::resolve::Resolved;

/// To be asked of plans without buffers. O(steps x lanes); memory in proportion to the copies.
pub(super) fn check(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
    let copied: HashSet<&str> = plan.steps.iter().filter_map(copied).collect();
    let is_copied = |node: &str| copied.contains(node);
    let homes = plan.placement.iter().map(|(node, device)| (node.as_str(), device.as_str()));
    let unlaunched = plan.unlaunched.iter().map(String::as_str);
    let mut order = Order {
        plan,
        resolved,
        homes: homes.filter(|(node, _)| is_copied(node)).collect(),
        unlaunched: unlaunched.filter(|node| is_copied(node)).collect(),
        launched: HashMap::new(),
        brought: HashMap::new(),
        awaited: Vec::new(),
        readers: HashMap::new(),
        largest: vec![0; plan.devices.len()],
        faults,
    };
    sweep(&resolved.steps, |i, event, past| order.step(&plan.steps[i], event, past));
    order.finish();
}

/// The node whose output a step copies.
fn copied(step: &Step) -> Option<&str> {
    match &step.action {
        Action::Copy(copy) => copy.node.as_deref(),
        Action::Launch(_) => None,
    }
}

/// A node, and the microbatch that it is launched for, or that its value is of.
type Instance<'a> = (&'a str, Option<u32>);

/// An instance's output on a device.
type Value<'a> = (Instance<'a>, u32, &'a str);

/// What a copy brings to a device for a launch there.
struct Awaited<'a> {
    step: &'a Step,
    reader: &'a str,
    value: Value<'a>,
    range: ByteRange,
    /// Of which microbatch launches of the reader follow the copy, and whether all of these wait for it.
    later: Vec<(Option<u32>, bool)>,
}

struct Order<'a, 'f> {
    plan: &'a Plan,
    resolved: &'f Resolved<'a>,
    /// The device of each node of which something is copied.
    homes: HashMap<&'a str, &'a str>,
    /// Those of them that no step launches.
    unlaunched: HashSet<&'a str>,
    /// Their launches of an instance, the first and those that compute it again.
    launched: HashMap<Instance<'a>, Vec<Event>>,
    /// What copies brought, and what they brought of a value that was computed again.
    brought: HashMap<Value<'a>, [Covered; 2]>,
    awaited: Vec<Awaited<'a>>,
    /// By reader and its device, positions of what it awaits.
    readers: HashMap<(Instance<'a>, &'a str), Vec<usize>>,
    /// By device, the most bytes of one value that lies there.
    largest: Vec<u64>,
    faults: &'f mut Faults,
}

impl<'a> Order<'a, '_> {
    fn step(&mut self, step: &'a Step, event: Event, past: &Past<'_>) {
        match &step.action {
            Action::Launch(launch) => self.launch(step, launch, event, past),
            Action::Copy(copy) => self.copy(step, copy, event, past),
        }
    }

    fn launch(&mut self, step: &'a Step, launch: &'a Launch, event: Event, past: &Past<'_>) {
        for node in &launch.nodes {
            let instance = (node.as_str(), launch.microbatch);
            if self.homes.contains_key(node.as_str()) {
                self.launched.entry(instance).or_default().push(event);
            }
            let Some(awaits) = self.readers.get(&(instance, &*step.device)) else { continue };
            for &at in awaits {
                let Awaited { value, range, later, .. } = &mut self.awaited[at];
                let waits = was_brought(&self.brought, *value, *range, past);
                match later.iter_mut().find(|(of, _)| *of == launch.microbatch) {
                    Some((_, all)) => *all &= waits,
                    None => later.push((launch.microbatch, waits)),
                }
            }
        }
    }

    fn copy(&mut self, step: &'a Step, copy: &'a CopyAction, event: Event, past: &Past<'_>) {
        let Some(name) = copy.node.as_deref() else { return };
        let (node, output) = ((name, copy.microbatch), copy.output.unwrap_or_default());
        // A value without bytes counts as having one.
        let (start, bytes) =
            copy.part.map_or((0, copy.bytes.0.max(1)), |(offset, bytes)| (offset.0, bytes.0));
        let range = ByteRange { start, end: start.saturating_add(bytes) };
        let is_there = match self.homes.get(name) {
            Some(home) if *home == copy.from && self.unlaunched.contains(name) => true,
            Some(home) if *home == copy.from => {
                self.launched.get(&node).into_iter().flatten().any(|&launch| past.contains(launch))
            }
            _ => was_brought(&self.brought, (node, output, &copy.from), range, past),
        };
        if !is_there {
            self.faults
                .add(|| format!("step {} copies {name}:{output} before it is on {}", step.id, copy.from));
        }
        for device in [&copy.from, &copy.to] {
            if let Some(&device) = self.resolved.devices.get(device.as_str()) {
                let most = &mut self.largest[device as usize];
                *most = if copy.bytes.0 == 0 { *most } else { range.end.max(*most) };
            }
        }
        let value = (node, output, copy.to.as_str());
        self.brought.entry(value).or_default()[usize::from(copy.again)].add(range, event);
        for reader in &copy.readers {
            let at = self.awaited.len();
            self.awaited.push(Awaited { step, reader, value, range, later: Vec::new() });
            for of in microbatches(copy.microbatch) {
                self.readers.entry(((reader, of), copy.to.as_str())).or_default().push(at);
            }
        }
    }

    fn finish(self) {
        let Self { plan, awaited, largest, faults, .. } = self;
        for Awaited { step, reader, later, .. } in &awaited {
            if later.is_empty() {
                faults.add(|| format!("step {} comes too late for {reader}, launched before it", step.id));
            } else if !later.iter().any(|&(_, all)| all) {
                faults.add(|| format!("{reader} is launched before step {} brings what it reads", step.id));
            }
        }
        for (device, largest) in plan.devices.iter().zip(largest) {
            if device.peak.0 < largest {
                faults.add(|| {
                    format!(
                        "device {} holds at least {largest} bytes at once, its peak says {}",
                        device.name, device.peak.0
                    )
                });
            }
        }
    }
}

/// Of which microbatches a reader of a value may be: of the value's own, of all, or, where it adds to the value, of the
/// next.
fn microbatches(of: Option<u32>) -> impl Iterator<Item = Option<u32>> {
    let own = of.map(|own| [Some(own), own.checked_add(1)]);
    std::iter::once(None).chain(own.into_iter().flatten().filter(Option::is_some))
}

/// True where copies that are over brought these bytes of a value.
fn was_brought(
    brought: &HashMap<Value<'_>, [Covered; 2]>,
    value: Value<'_>,
    range: ByteRange,
    past: &Past<'_>,
) -> bool {
    brought.get(&value).into_iter().flatten().any(|covered| covered.hold(range, past))
}
