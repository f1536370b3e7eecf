//! Buffers lie in their arenas, arenas under the caps, and the peaks are what the buffers demand
//! at least.

use super::super::{BufferKind, Plan};
use super::Faults;
use super::resolve::{Resolved, Touch};

/// Every buffer that is no view begins at a multiple of this many bytes.
const ALIGNMENT: u64 = 64;

pub(super) fn check(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
    for device in &plan.devices {
        let (memory, reserve) = (device.memory.0, device.reserve.0);
        let fits = memory.checked_sub(reserve).is_some_and(|free| device.arena.0 <= free);
        if device.peak > device.arena || !fits {
            faults.add(|| {
                format!(
                    "device {}: peak {} <= arena {} <= memory {memory} - reserve {reserve} does not hold",
                    device.name, device.peak.0, device.arena.0
                )
            });
        }
    }
    for device in plan.devices.iter().filter(|device| device.arena_bound > Some(device.arena)) {
        faults.add(|| format!("device {}: its arena is shorter than its own lower bound", device.name));
    }
    for (buffer, at) in plan.buffers.iter().zip(&resolved.buffers) {
        let device = &plan.devices[at.device as usize];
        if at.end > device.arena.0 {
            faults.add(|| {
                format!(
                    "buffer {} ends at byte {}, the arena of {} at {}",
                    buffer.id, at.end, device.name, device.arena.0
                )
            });
        }
        if at.alias.is_none() && at.start % ALIGNMENT != 0 {
            faults.add(|| {
                format!("buffer {} begins at byte {}, no multiple of {ALIGNMENT}", buffer.id, at.start)
            });
        }
        if let Some(bytes) = type_bytes(&buffer.ty).filter(|&bytes| bytes != buffer.bytes.0) {
            faults.add(|| {
                format!("buffer {} has {} bytes, its type {} {bytes}", buffer.id, buffer.bytes.0, buffer.ty)
            });
        }
    }
    peaks(plan, resolved, faults);
}

/// Bytes of a type such as `f32[64,1024]`; none where it is not known.
fn type_bytes(ty: &str) -> Option<u64> {
    let (element, rest) = ty.split_once('[')?;
    let sizes = rest.strip_suffix(']')?;
    let width = match element {
        "f64" | "i64" | "u64" => 8,
        "f32" | "i32" | "u32" => 4,
        "f16" | "bf16" | "i16" | "u16" => 2,
        "i8" | "u8" | "bool" => 1,
        _ => return None,
    };
    if sizes.is_empty() {
        return Some(width);
    }
    // A size of zero makes an empty type even where the other sizes overflow.
    let mut bytes = Some(width);
    let mut empty = false;
    for size in sizes.split(',') {
        let size: u64 = size.trim().parse().ok()?;
        empty |= size == 0;
        bytes = bytes.and_then(|bytes: u64| bytes.checked_mul(size));
    }
    if empty { Some(0) } else { bytes }
}

/// A peak is no less than what is there before the step, than what is there after it, and than
/// what is never freed together with any one step's own buffers.
fn peaks(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
    let devices = plan.devices.len();
    let (mut kept, mut before, mut after) = (vec![0u64; devices], vec![0u64; devices], vec![0u64; devices]);
    for (i, buffer) in resolved.buffers.iter().enumerate() {
        if buffer.storage as usize != i {
            // A view has no bytes of its own.
            continue;
        }
        let (device, bytes) = (buffer.device as usize, buffer.end - buffer.start);
        let add = |sum: &mut Vec<u64>| sum[device] = sum[device].saturating_add(bytes);
        match buffer.kind {
            BufferKind::Param | BufferKind::State | BufferKind::Const => {
                add(&mut kept);
                add(&mut before);
                add(&mut after);
            }
            BufferKind::Input => add(&mut before),
            BufferKind::Output => add(&mut after),
            BufferKind::Temp | BufferKind::Copy | BufferKind::Workspace => {}
        }
    }
    let mut at_once: Vec<u64> =
        before.into_iter().zip(after).map(|(before, after)| before.max(after)).collect();
    let mut ranges = Vec::new();
    for (step, touch) in resolved.steps.touches() {
        let touched: [&[u32]; 2] = match touch {
            Touch::Launch { reads, writes } => [reads, writes],
            // What a copy reads lies on another device.
            Touch::Copy { to, .. } => [std::slice::from_ref(to), &[]],
        };
        ranges.clear();
        for &id in touched.into_iter().flatten() {
            let storage = &resolved.buffers[resolved.buffers[id as usize].storage as usize];
            let kept = matches!(storage.kind, BufferKind::Param | BufferKind::State | BufferKind::Const);
            if !kept && storage.device == step.device {
                ranges.push((storage.start, storage.end));
            }
        }
        let demand = kept[step.device as usize].saturating_add(union(&mut ranges));
        let most = &mut at_once[step.device as usize];
        *most = demand.max(*most);
    }
    for (device, at_once) in plan.devices.iter().zip(at_once) {
        if device.peak.0 < at_once {
            faults.add(|| {
                format!(
                    "device {} holds {at_once} bytes at once, its peak says {}",
                    device.name, device.peak.0
                )
            });
        }
    }
}

/// Bytes that the ranges cover together.
fn union(ranges: &mut [(u64, u64)]) -> u64 {
    ranges.sort_unstable();
    let (mut covered, mut reached) = (0, 0);
    for &(start, end) in ranges.iter() {
        let start = start.max(reached);
        if end > start {
            covered += end - start;
            reached = end;
        }
    }
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_type_are_told_where_they_can_be() {
        assert_eq!(type_bytes("f32[64,1024]"), Some(262_144));
        assert_eq!(type_bytes("bool[]"), Some(1));
        assert_eq!(type_bytes("i64[99999999999999999,0]"), Some(0));
        assert_eq!(type_bytes("f32[99999999999,99999999999]"), None);
        assert_eq!(type_bytes("f32[n]"), None);
        assert_eq!(type_bytes("q4[32]"), None);
        assert_eq!(type_bytes("f32"), None);
    }

    #[test]
    fn shared_bytes_count_once() {
        assert_eq!(union(&mut [(0, 64), (32, 96), (128, 130), (128, 130)]), 98);
    }
}
