//! State between two plans: which parameters lie on devices that did not hold them.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::super::{Buffer, BufferKind, MovedState, Plan};
use crate::units::Bytes;

/// State that must be loaded to go from one plan to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StateDiff {
    /// Bytes on other devices than before, although some device of the second plan has them.
    pub moved_bytes: Bytes,
    /// Bytes that no device of the second plan has any more.
    pub lost_bytes: Bytes,
    /// Bytes that the first plan did not have.
    pub new_bytes: Bytes,
    /// All of it, item by item and device by device.
    pub items: Vec<MovedState>,
}

/// The state to load; none where neither the plans' buffers nor the second plan's own account of
/// what it replaces tells it (plans of cost graphs have no buffers). O(buffers log buffers).
pub(super) fn state(before: &Plan, after: &Plan) -> Option<StateDiff> {
    if before.buffers.is_empty() || after.buffers.is_empty() {
        let replan = after.replan.as_ref()?;
        return Some(StateDiff::of(replan.state.clone()));
    }
    let order: HashMap<&str, usize> =
        after.devices.iter().enumerate().map(|(at, device)| (device.name.as_str(), at)).collect();
    let old = holders(before);
    let mut items = Vec::new();
    for (name, (bytes, mut devices)) in holders(after) {
        devices.sort_by_key(|device| order.get(device).copied());
        let had = old.get(&name).map(|(_, devices)| devices.as_slice());
        let kept: Vec<&str> =
            had.unwrap_or_default().iter().copied().filter(|d| order.contains_key(d)).collect();
        for (at, device) in devices.into_iter().enumerate() {
            let fate = match had {
                None => "new",
                Some(_) if kept.contains(&device) => continue,
                Some(_) if kept.is_empty() && at == 0 => "lost",
                Some(_) => "moved",
            };
            items.push(MovedState {
                name: name.0.to_owned(),
                bytes,
                from: kept.iter().map(|&device| device.to_owned()).collect(),
                to: device.to_owned(),
                fate: fate.to_owned(),
            });
        }
    }
    Some(StateDiff::of(items))
}

impl StateDiff {
    /// Sums up the items.
    pub(super) fn of(items: Vec<MovedState>) -> Self {
        let sum = |fate: &str| items.iter().filter(|item| item.fate == fate).map(|item| item.bytes).sum();
        Self { moved_bytes: sum("moved"), lost_bytes: sum("lost"), new_bytes: sum("new"), items }
    }
}

/// A name, and which of those that share it.
type Key<'p> = (&'p str, usize);

/// Size and devices of each item that lies there between steps. The number of its value, which a
/// change elsewhere in the model shifts, is no part of an item's name.
fn holders(plan: &Plan) -> BTreeMap<Key<'_>, (Bytes, Vec<&str>)> {
    let rests = |buffer: &&Buffer| match buffer.kind {
        BufferKind::Param | BufferKind::State | BufferKind::Const => true,
        BufferKind::Input
        | BufferKind::Temp
        | BufferKind::Output
        | BufferKind::Copy
        | BufferKind::Workspace => false,
    };
    let mut values: HashMap<&str, Key<'_>> = HashMap::new();
    let mut shared: HashMap<&str, usize> = HashMap::new();
    let mut holders: BTreeMap<Key<'_>, (Bytes, Vec<&str>)> = BTreeMap::new();
    for buffer in plan.buffers.iter().filter(rests) {
        let value = buffer.value.as_str();
        let key = *values.entry(value).or_insert_with(|| {
            let name = value.split_once(' ').map_or(value, |(_, name)| name);
            let count = shared.entry(name).or_default();
            *count += 1;
            (name, *count)
        });
        let (_, devices) = holders.entry(key).or_insert((buffer.bytes, Vec::new()));
        if !devices.contains(&buffer.device.as_str()) {
            devices.push(&buffer.device);
        }
    }
    holders
}
