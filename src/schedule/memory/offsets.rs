//! The buffers' final offsets, and how few bytes the arenas could have.
//!
//! The layout that decided what waits for what is one sound choice of offsets. With the order
//! fixed, a device's buffers are packed anew; what is better is kept. A result that may be written
//! in place of an operand that dies there takes its bytes.

use crate::schedule::memory::arena::aligned;
use crate::schedule::memory::lifetimes::{FOREVER, Life, Lives};
use crate::schedule::memory::pack::{Item, pack};
use crate::schedule::{Buffer, BufferKind};
use crate::units::Bytes;

/// What lies at the bottom of the arenas and is never written over.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    /// By device: the first aligned offset above it.
    pub(crate) base: &'a [u64],
    /// By device: its end.
    pub(crate) end: &'a [u64],
}

/// By device: end of the last buffer.
pub(crate) fn arenas(buffers: &[Buffer], devices: usize) -> Vec<Bytes> {
    let mut arenas = vec![Bytes::ZERO; devices];
    for buffer in buffers {
        let arena = &mut arenas[buffer.device.index()];
        *arena = (*arena).max(buffer.offset + buffer.bytes);
    }
    arenas
}

/// The buffer whose bytes a buffer has: itself, where it lies in no other.
pub(crate) fn storage(buffers: &[Buffer], buffer: u32) -> u32 {
    buffers[buffer as usize].within.map_or(buffer, |within| within.0)
}

/// Of each buffer that lies in another: that, and how far it begins behind it.
fn inside(buffers: &[Buffer]) -> Vec<(usize, usize, Bytes)> {
    let numbered = buffers.iter().enumerate().filter(|(_, buffer)| buffer.within.is_some());
    let of = |(number, buffer): (usize, &Buffer)| {
        let storage = storage(buffers, number as u32) as usize;
        (number, storage, buffer.offset.saturating_sub(buffers[storage].offset))
    };
    numbered.map(of).collect()
}

/// What part of the work is done where the arena cannot become as short as it should.
const HOPELESS: usize = 16;

/// Packs the buffers of the `wanted` devices anew, with at most `work` visits of pairs, until an arena has
/// as many bytes as is wanted of it, and gives for each of them the fewest bytes that its arena could
/// have, where that is known. No arena becomes longer; little is done where the wish is beyond what
/// could be. `taken` holds by buffer the one that takes its bytes in place.
pub(crate) fn settle(
    buffers: &mut [Buffer],
    ground: Ground<'_>,
    lives: &Lives,
    taken: &[u32],
    wanted: &[Option<Bytes>],
    mut work: usize,
) -> Vec<Option<Bytes>> {
    let arena = arenas(buffers, wanted.len());
    let mut bounds = vec![None; wanted.len()];
    let mut waiting = wanted.iter().flatten().count();
    let inside = inside(buffers);
    let storages = storages(buffers, wanted, lives, taken);
    for (device, storages) in storages.into_iter().enumerate() {
        let Some(goal) = wanted[device] else { continue };
        // Equal shares of what is left: what one device does not use goes to the others.
        let share = work / waiting;
        waiting -= 1;
        let (base, end) = (ground.base[device], ground.end[device]);
        let (least, padding) = least(&storages, lives.launches[device]);
        // The storage that ends highest needs no padding.
        let bound = if least == 0 { end } else { base.saturating_add(least - padding) };
        bounds[device] = lives.exact.then_some(Bytes(bound));
        let merges = storages.iter().any(|storage| storage.buffers.len() > 1);
        if arena[device].0 <= bound && !merges {
            continue;
        }
        let items: Vec<Item> = storages.iter().map(|storage| storage.item).collect();
        let now = aligned(arena[device].0).unwrap_or(u64::MAX).saturating_sub(base);
        let share = if goal > Bytes::ZERO && bound > goal.0 { share / HOPELESS } else { share };
        let mut left = share;
        let enough = least.max(goal.0.saturating_sub(base));
        let packed = pack(&items, enough, now, &mut left).unwrap_or_default();
        work -= share - left;
        // Of what ends highest the padding does not count, and another may end highest now.
        let end = |(storage, offset): (&Storage, &u64)| offset + (storage.item.length - storage.padding);
        let highest = storages.iter().zip(&packed).map(end).max().unwrap_or(0);
        if base.saturating_add(highest) > arena[device].0 {
            continue;
        }
        for (storage, offset) in storages.iter().zip(packed) {
            let offset = Bytes(base.saturating_add(offset));
            storage.buffers.iter().for_each(|&buffer| buffers[buffer as usize].offset = offset);
        }
    }
    for (number, storage, behind) in inside {
        buffers[number].offset = buffers[storage].offset + behind;
    }
    bounds
}

/// (operand, result) of what is written in place: those of `taken` that lie at the same place.
pub(crate) fn merged<'a>(buffers: &'a [Buffer], taken: &'a [u32]) -> impl Iterator<Item = (u32, u32)> + 'a {
    let same = |&(old, new): &(u32, u32)| {
        new != NONE && buffers[old as usize].offset == buffers[new as usize].offset
    };
    (0u32..).zip(taken.iter().copied()).filter(same)
}

/// One run of bytes, used by one buffer after another in place.
struct Storage {
    /// Ascending in time; at least one.
    buffers: Vec<u32>,
    item: Item,
    /// Bytes up to the alignment.
    padding: u64,
}

const NONE: u32 = u32::MAX;

/// By buffer: the one that takes its bytes in place. `in_place` holds pairs (operand, result) of which
/// the second may be where the first does, as far as the operation goes; the first pair of each is
/// taken in which the operand's last use, whatever the timing, is the launch that writes the result.
pub(crate) fn taken(buffers: &[Buffer], lives: &Lives, in_place: &[(u32, u32)]) -> Vec<u32> {
    let mut taken = vec![NONE; buffers.len()];
    let mut takes = vec![false; buffers.len()];
    for &(operand, result) in in_place {
        let (from, to) = (&buffers[operand as usize], &buffers[result as usize]);
        let (old, new) = (&lives.of[operand as usize], &lives.of[result as usize]);
        let made = matches!(from.kind, BufferKind::Temp | BufferKind::Copy);
        let dies = old.last == new.first && old.used == new.first;
        let free = taken[operand as usize] == NONE && !takes[result as usize];
        if made && dies && free && from.bytes == to.bytes && from.device == to.device {
            taken[operand as usize] = result;
            takes[result as usize] = true;
        }
    }
    taken
}

/// By device: what must be given bytes.
fn storages(buffers: &[Buffer], wanted: &[Option<Bytes>], lives: &Lives, taken: &[u32]) -> Vec<Vec<Storage>> {
    let mut follows = vec![false; buffers.len()];
    taken.iter().filter(|&&next| next != NONE).for_each(|&next| follows[next as usize] = true);
    let mut storages: Vec<Vec<Storage>> = wanted.iter().map(|_| Vec::new()).collect();
    for (number, buffer) in buffers.iter().enumerate() {
        let nothing =
            buffer.bytes == Bytes::ZERO || buffer.within.is_some() || wanted[buffer.device.index()].is_none();
        if nothing || buffer.kind.is_resident() || follows[number] {
            continue;
        }
        let mut chain = vec![number as u32];
        let mut last = number;
        while taken[last] != NONE {
            last = taken[last] as usize;
            chain.push(last as u32);
        }
        let (begin, end) = (&lives.of[number], &lives.of[last]);
        let life = Life { first: begin.first, written: begin.written, used: end.used, last: end.last };
        let length = aligned(buffer.bytes.0).unwrap_or(u64::MAX);
        let item = Item { life, length };
        let padding = length - buffer.bytes.0;
        storages[buffer.device.index()].push(Storage { buffers: chain, item, padding });
    }
    storages
}

/// The most bytes, each storage rounded up to the alignment, of storages that are alive together in
/// some interleaving; and what of it the highest one need not have. No sound choice of offsets
/// takes less. O(storages + launches).
///
/// While launch `k` runs, these meet one another: all that are written by then and used by it or
/// after it; and either all that copies are yet to read, or all that are yet to be written for a
/// later launch (of the two, one may be over before the other begins).
fn least(storages: &[Storage], launches: u32) -> (u64, u64) {
    let count = launches as usize;
    let launch = |coordinate: u32| (coordinate / 2) as usize;
    let mut sums = [vec![0i128; count + 1], vec![0i128; count + 1], vec![0i128; count + 1]];
    let mut single = (0, 0);
    let mut add = |which: usize, from: usize, until: usize, length: u64| {
        if from < until.min(count) {
            sums[which][from] += i128::from(length);
            sums[which][until.min(count)] -= i128::from(length);
        }
    };
    for Storage { item: Item { life, length }, padding, .. } in storages {
        single = single.max((*length, *padding));
        let after = if life.last == FOREVER { count } else { launch(life.last.saturating_add(1)) };
        let written = if life.written == FOREVER { count } else { launch(life.written) };
        let read = if life.used == 0 { written } else { launch(life.used) + 1 };
        add(0, written, read, *length);
        add(1, read.max(written), after, *length);
        if life.used > 0 {
            add(2, launch(life.first.saturating_add(1)), written, *length);
        }
    }
    let (mut now, mut most) = ([0i128; 3], (0i128, 0));
    for k in 0..count {
        (0..3).for_each(|which| now[which] += sums[which][k]);
        most = most.max((now[0] + now[1].max(now[2]), k));
    }
    let (sum, k) = (u64::try_from(most.0).unwrap_or(u64::MAX), most.1);
    if sum <= single.0 {
        return single;
    }
    // Any that is alive then may end highest, so the largest padding is taken off.
    let at = u32::try_from(2 * k + 1).unwrap_or(FOREVER);
    let alive = storages.iter().filter(|s| s.item.life.first <= at && at <= s.item.life.last);
    (sum, alive.map(|storage| storage.padding).max().unwrap_or(0))
}
