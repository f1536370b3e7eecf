//! The rules of order and memory of a plan with buffers, spelt out pair by pair over bit sets of
//! reachability: quadratic, and sharing nothing with the library's checker.

use std::collections::HashMap;

use partition::unstable::plan::{Action, BufferKind, Plan};

/// One set of step positions.
type Bits = Vec<u64>;

pub(crate) struct Naive<'a> {
    plan: &'a Plan,
    /// By step: the steps that are over before it begins.
    before: Vec<Bits>,
    /// By buffer.
    reads: Vec<Vec<usize>>,
    writes: Vec<Vec<usize>>,
}

/// True where all rules hold. The plan's names must resolve.
pub(crate) fn is_sound(plan: &Plan) -> bool {
    let naive = Naive::new(plan);
    naive.reads_follow_writes() && naive.nothing_overlaps()
}

/// True where `after` names earlier steps only.
pub(crate) fn is_ordered(plan: &Plan) -> bool {
    let position: HashMap<u64, usize> = plan.steps.iter().enumerate().map(|(i, step)| (step.id, i)).collect();
    let earlier = |i: usize, other: &u64| position.get(other).is_some_and(|&at| at < i);
    plan.steps.iter().enumerate().all(|(i, step)| step.after.iter().all(|other| earlier(i, other)))
}

/// By step, the set of the steps that are over before it begins.
pub(crate) fn reachability(plan: &Plan) -> Vec<Bits> {
    let position: HashMap<u64, usize> = plan.steps.iter().enumerate().map(|(i, step)| (step.id, i)).collect();
    let mut last = HashMap::new();
    let mut before: Vec<Bits> = Vec::new();
    for (i, step) in plan.steps.iter().enumerate() {
        let mut bits = vec![0u64; plan.steps.len().div_ceil(64)];
        let on_lane = last.insert((&*step.device, step.lane), i);
        for other in step.after.iter().map(|other| position[other]).chain(on_lane) {
            for (mine, theirs) in bits.iter_mut().zip(&before[other]) {
                *mine |= theirs;
            }
            bits[other / 64] |= 1 << (other % 64);
        }
        before.push(bits);
    }
    before
}

pub(crate) fn contains(bits: &Bits, step: usize) -> bool {
    bits[step / 64] >> (step % 64) & 1 == 1
}

impl<'a> Naive<'a> {
    fn new(plan: &'a Plan) -> Self {
        let ids: HashMap<&str, usize> =
            plan.buffers.iter().enumerate().map(|(i, buffer)| (buffer.id.as_str(), i)).collect();
        let mut reads = vec![Vec::new(); plan.buffers.len()];
        let mut writes = vec![Vec::new(); plan.buffers.len()];
        for (i, step) in plan.steps.iter().enumerate() {
            let (read, written) = match &step.action {
                Action::Launch(launch) => (launch.reads.clone(), launch.writes.clone()),
                Action::Copy(copy) => (vec![copy.from.clone()], vec![copy.to.clone()]),
            };
            read.iter().for_each(|id| reads[ids[id.as_str()]].push(i));
            written.iter().for_each(|id| writes[ids[id.as_str()]].push(i));
        }
        Self { plan, before: reachability(plan), reads, writes }
    }

    fn happens(&self, first: usize, second: usize) -> bool {
        contains(&self.before[second], first)
    }

    fn reads_follow_writes(&self) -> bool {
        self.plan.buffers.iter().enumerate().filter(|(_, buffer)| !buffer.kind.is_resident()).all(|(b, _)| {
            let written = |&read: &usize| {
                let needed = |&&write: &&usize| self.meet(write, read);
                let mut writes = self.writes[b].iter().filter(needed).peekable();
                writes.peek().is_some() && writes.all(|&write| self.happens(write, read))
            };
            self.reads[b].iter().all(written)
        })
    }

    /// True where two steps touch some byte of one buffer both: copies may move parts.
    fn meet(&self, one: usize, two: usize) -> bool {
        let part = |step: usize| match &self.plan.steps[step].action {
            Action::Copy(copy) => copy.part.map(|(offset, bytes)| (offset.0, offset.0 + bytes.0)),
            Action::Launch(_) => None,
        };
        match (part(one), part(two)) {
            (Some(one), Some(two)) => one.0 < two.1 && two.0 < one.1,
            _ => true,
        }
    }

    fn nothing_overlaps(&self) -> bool {
        let buffers = &self.plan.buffers;
        (0..buffers.len()).all(|a| {
            (a + 1..buffers.len()).all(|z| {
                let (one, two) = (&buffers[a], &buffers[z]);
                let apart = one.device != two.device
                    || one.offset + one.bytes <= two.offset
                    || two.offset + two.bytes <= one.offset
                    || one.bytes.0 == 0
                    || two.bytes.0 == 0;
                apart || self.is_over(a, z) || self.is_over(z, a)
            })
        })
    }

    /// True where every use of `first` is over when `second` is first written.
    fn is_over(&self, first: usize, second: usize) -> bool {
        let (one, two) = (&self.plan.buffers[first], &self.plan.buffers[second]);
        let kept = match one.kind {
            BufferKind::Param | BufferKind::State | BufferKind::Const | BufferKind::Output => true,
            BufferKind::Input | BufferKind::Temp | BufferKind::Copy | BufferKind::Workspace => false,
        };
        if kept || two.kind.is_resident() {
            return false;
        }
        let in_place = one.offset == two.offset && two.kind != BufferKind::Workspace;
        self.writes[second].iter().all(|&write| {
            self.reads[first].iter().all(|&read| self.happens(read, write) || (read == write && in_place))
                && self.writes[first].iter().all(|&earlier| self.happens(earlier, write))
        })
    }
}
