//! Arenas whose bytes are used again in the order of the list: what is written waits for all that had its bytes before.
//!
//! Where steps wait for nothing but their data, buffers may be alive together that no list has alive together; and where
//! bytes are given one step after another, holes are left that later buffers do not fill. Here each buffer lives from the
//! list position of its first write to that of its last use, all of a device are packed at once, and only then it is
//! known what must wait for what. Such dependencies point backwards in the list, as all others do, so they close no cycle.

use crate::schedule::clocks::LaneNumber;
use crate::schedule::memory::arena::{History, aligned};
use crate::schedule::memory::lifetimes::{FOREVER, Life, Lives, lane};
use crate::schedule::{Action, Buffer, BufferKind, Step};

/// The lives that buffers have where every step runs after those before it in the list; of the steps that use a device's
/// buffers, the `k`th stands at `2k + 1`. `touched` visits the buffers that a step uses, and tells whether it writes them.
/// O(uses).
pub(crate) fn lives(
    steps: &[Step],
    buffers: &[Buffer],
    devices: usize,
    touched: impl Fn(&Step, &mut dyn FnMut(u32, bool)),
) -> Lives {
    let mut of = vec![Life::NONE; buffers.len()];
    // By device: steps so far that use its buffers, and the last one of them.
    let mut counted = vec![(0u32, usize::MAX); devices];
    for (position, step) in steps.iter().enumerate() {
        touched(step, &mut |buffer, _| {
            let (count, last) = &mut counted[buffers[buffer as usize].device.index()];
            if std::mem::replace(last, position) != position {
                *count += 1;
            }
            let at = (*count).saturating_mul(2) - 1;
            let life = &mut of[buffer as usize];
            life.first = life.first.min(at);
            (life.written, life.used, life.last) = (life.first, at, at);
        });
    }
    for (life, buffer) in of.iter_mut().zip(buffers) {
        if buffer.kind == BufferKind::Output {
            life.last = FOREVER;
        }
    }
    // Steps take the place of launches; other lists have other lives.
    Lives { of, launches: counted.into_iter().map(|(count, _)| count).collect(), exact: false }
}

/// The last use of a buffer on each lane.
type Users = Vec<(LaneNumber, u32)>;

/// (step, step that it must wait for) so that the buffers of the devices `listed` may lie where they do: whatever writes
/// a buffer comes after all uses of those that had its bytes before it in the list. Ascending.
/// O(uses + buffers log buffers + pairs that follow one another).
pub(crate) fn waits(
    steps: &[Step],
    buffers: &[Buffer],
    listed: &[bool],
    touched: impl Fn(&Step, &mut dyn FnMut(u32, bool)),
) -> Vec<(u32, u32)> {
    let mut users: Vec<Users> = vec![Vec::new(); buffers.len()];
    let mut history: Vec<History<u32>> = listed.iter().map(|_| History::new()).collect();
    // By buffer that copies write, part by part: what the first of them waits for.
    let mut before: Vec<Vec<u32>> = vec![Vec::new(); buffers.len()];
    let mut waits = Vec::new();
    for (position, step) in steps.iter().enumerate() {
        let position = position as u32;
        let mut written = Vec::new();
        touched(step, &mut |buffer, writes| {
            if writes && listed[buffers[buffer as usize].device.index()] {
                written.push((buffer, users[buffer as usize].is_empty()));
            }
            note(&mut users[buffer as usize], lane(step), position);
        });
        for (buffer, first) in written {
            if first {
                let history = &mut history[buffers[buffer as usize].device.index()];
                let had = take(history, &buffers[buffer as usize], buffer, &users);
                before[buffer as usize] = had.into_iter().filter(|&other| other != position).collect();
            }
            waits.extend(before[buffer as usize].iter().map(|&other| (position, other)));
            if matches!(step.action, Action::Launch(_)) {
                before[buffer as usize].clear();
            }
        }
    }
    waits.sort_unstable();
    waits.dedup();
    waits
}

/// Gives a buffer its bytes; the last uses of those that had them.
fn take(history: &mut History<u32>, buffer: &Buffer, number: u32, users: &[Users]) -> Vec<u32> {
    let (start, length) = (buffer.offset.get(), aligned(buffer.bytes.get()).unwrap_or(u64::MAX));
    let end = start.saturating_add(length);
    if start == end {
        return Vec::new();
    }
    let mut last = Users::new();
    for (_, other) in history.of(start, end) {
        users[other as usize].iter().for_each(|&(lane, position)| note(&mut last, lane, position));
    }
    history.put(start, end, number);
    last.into_iter().map(|(_, position)| position).collect()
}

/// Puts a use in place of earlier ones of its lane.
fn note(users: &mut Users, lane: LaneNumber, position: u32) {
    match users.iter_mut().find(|(other, _)| *other == lane) {
        Some((_, last)) => *last = (*last).max(position),
        None => users.push((lane, position)),
    }
}
