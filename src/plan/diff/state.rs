//! State between two plans: which parameters lie on devices that did not hold them.

use std::collections::{BTreeMap, HashMap, HashSet};

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
/// what it replaces tells it (plans of cost graphs have no buffers). O(buffers x slices of one parameter).
pub(super) fn state(before: &Plan, after: &Plan) -> Option<StateDiff> {
    if before.buffers.is_empty() || after.buffers.is_empty() {
        let replan = after.replan.as_ref()?;
        return Some(StateDiff::of(replan.state.clone()));
    }
    let order: HashMap<&str, usize> =
        after.devices.iter().enumerate().map(|(at, device)| (device.name.as_str(), at)).collect();
    let old = held(before);
    let mut items = Vec::new();
    for (name, mut slices) in held(after) {
        slices.sort_by_key(|slice| order.get(slice.device).copied());
        let had = old.get(&name).map(Vec::as_slice);
        let mut seen = HashSet::new();
        for slice in &slices {
            let is_again = !seen.insert(slice.region);
            loaded(slice, had, is_again, |device| order.contains_key(device), &mut items);
        }
    }
    Some(StateDiff::of(items))
}

/// What must be loaded of a slice beyond what its device held. What some device of the second plan (`is_there`) held is moved,
/// as is what another has loaded already (`is_again`); the rest is lost.
fn loaded(
    slice: &Held<'_>,
    had: Option<&[Held<'_>]>,
    is_again: bool,
    is_there: impl Fn(&str) -> bool,
    items: &mut Vec<MovedState>,
) {
    let mut push = |fate: &str, bytes: u64, from: Vec<&str>| {
        if bytes > 0 {
            items.push(MovedState {
                name: slice.label.to_owned(),
                bytes: Bytes(bytes),
                from: from.into_iter().map(str::to_owned).collect(),
                to: slice.device.to_owned(),
                fate: fate.to_owned(),
            });
        }
    };
    let Some(had) = had else { return push("new", slice.bytes.get(), Vec::new()) };
    let of = |held: &mut dyn Iterator<Item = &Held<'_>>| {
        held.fold(0u64, |sum, held| sum.saturating_add(slice.common(held)))
    };
    let stays = of(&mut had.iter().filter(|held| held.device == slice.device));
    let rest = slice.bytes.get().saturating_sub(stays);
    let kept: Vec<&Held<'_>> =
        had.iter().filter(|held| is_there(held.device) && slice.common(held) > 0).collect();
    let elsewhere = of(&mut kept.iter().copied().filter(|held| held.device != slice.device));
    let moved = if is_again { rest } else { rest.min(elsewhere) };
    let mut from: Vec<&str> = kept.iter().map(|held| held.device).collect();
    from.dedup();
    push("moved", moved, from);
    push("lost", rest - moved, Vec::new());
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

/// What lies on a device between steps: a parameter or constant, or a slice of one.
struct Held<'p> {
    /// What it is called.
    label: &'p str,
    device: &'p str,
    bytes: Bytes,
    /// By axis: the first element and the one behind the last. None for a whole.
    region: Option<&'p [(u64, u64)]>,
}

impl Held<'_> {
    /// Bytes of what another holds of this one.
    fn common(&self, other: &Held<'_>) -> u64 {
        match (self.region, other.region) {
            (_, None) => self.bytes.get(),
            // All of it is a part of this.
            (None, Some(_)) => other.bytes.get(),
            (Some(own), Some(other)) => {
                let elements = |bounds: &[(u64, u64)]| -> u128 {
                    bounds.iter().fold(1, |product, &(start, end)| {
                        product.saturating_mul(end.saturating_sub(start).into())
                    })
                };
                let both: Vec<(u64, u64)> = own
                    .iter()
                    .zip(other)
                    .map(|(&(start, end), &(from, to))| (start.max(from), end.min(to)))
                    .collect();
                let all = elements(own).max(1);
                (u128::from(self.bytes.get()).saturating_mul(elements(&both)) / all) as u64
            }
        }
    }
}

/// By parameter or constant: what lies where between steps. The number of its value, which a change elsewhere in the model
/// shifts, is no part of an item's name.
fn held(plan: &Plan) -> BTreeMap<Key<'_>, Vec<Held<'_>>> {
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
    let mut held: BTreeMap<Key<'_>, Vec<Held<'_>>> = BTreeMap::new();
    for buffer in plan.buffers.iter().filter(rests) {
        let value = buffer.value.as_str();
        let label = value.split_once(' ').map_or(value, |(_, name)| name);
        let region = buffer.of.as_ref().map(|_| buffer.bounds.as_slice());
        let key = match &buffer.of {
            Some(whole) => (whole.as_str(), 1),
            None => *values.entry(value).or_insert_with(|| {
                let count = shared.entry(label).or_default();
                *count += 1;
                (label, *count)
            }),
        };
        let slices = held.entry(key).or_default();
        if !slices.iter().any(|other| other.device == buffer.device && other.region == region) {
            slices.push(Held { label, device: &buffer.device, bytes: buffer.bytes, region });
        }
    }
    held
}
