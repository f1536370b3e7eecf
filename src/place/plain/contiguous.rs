//! A line of units cut into runs, one for each device in turn, without a look at what is cut.

use crate::place::context::Context;
use crate::place::nets::NetKind;
use crate::place::problem::NONE;
use crate::topology::DeviceId;

/// Of what each device gets an equal share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Time on the first device.
    Time,
    /// Bytes that stay.
    Bytes,
    /// Units.
    Count,
}

impl Share {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Time, Self::Bytes, Self::Count];
}

/// A device for each unit: a device that `budgets` leaves no room for the next unit is left for
/// good, the last one takes the rest (the first fit of Accelerate's device maps).
/// O(units + nets of units).
pub(super) fn first_fit(context: &Context<'_, '_>, units: &[u32], budgets: &[u64]) -> Vec<DeviceId> {
    let devices = &context.problem.devices;
    let mut chosen = vec![devices[0]; context.problem.unit_count()];
    let (mut at, mut resident) = (0, 0u64);
    let mut on = vec![NONE; context.nets.len()];
    for &unit in units {
        let mut new = bytes(context, unit, |net| on[net] != at as u32);
        while at + 1 < devices.len() && resident.saturating_add(new) > budgets[devices[at].index()] {
            at += 1;
            resident = 0;
            new = bytes(context, unit, |_| true);
        }
        resident = resident.saturating_add(new);
        context.nets.of_unit.row(unit as usize).iter().for_each(|&net| on[net as usize] = at as u32);
        chosen[unit as usize] = devices[at];
    }
    chosen
}

/// A device for each unit: runs with equal shares. O(units + nets of units).
pub(super) fn equal(context: &Context<'_, '_>, units: &[u32], share: Share) -> Vec<DeviceId> {
    let problem = context.problem;
    let devices = &problem.devices;
    let mut seen = vec![false; context.nets.len()];
    let mut size = |&unit: &u32| match share {
        Share::Time => problem.unit_time(unit as usize, devices[0]).unwrap_or(0),
        Share::Bytes => {
            let size = bytes(context, unit, |net| !seen[net]);
            context.nets.of_unit.row(unit as usize).iter().for_each(|&net| seen[net as usize] = true);
            size
        }
        Share::Count => 1,
    };
    let sizes: Vec<u64> = units.iter().map(&mut size).collect();
    let total = sizes.iter().fold(0u128, |sum, &size| sum + u128::from(size)).max(1);
    let mut chosen = vec![devices[0]; problem.unit_count()];
    let mut before = 0u128;
    for (&unit, &size) in units.iter().zip(&sizes) {
        // Doubled: the middle of a unit decides where it goes.
        let middle = 2 * before + u128::from(size);
        let at = (devices.len() as u128 * middle / (2 * total)) as usize;
        chosen[unit as usize] = devices[at.min(devices.len() - 1)];
        before += u128::from(size);
    }
    chosen
}

/// What a unit holds through the step, with those of its parameters that are `new`.
fn bytes(context: &Context<'_, '_>, unit: u32, new: impl Fn(usize) -> bool) -> u64 {
    let nets = context.nets;
    let params = nets.of_unit.row(unit as usize).iter().map(|&net| net as usize);
    let params = params.filter(|&net| nets.kind[net] == NetKind::Param && new(net));
    params.map(|net| nets.weight[net]).fold(nets.resident[unit as usize], u64::saturating_add)
}
