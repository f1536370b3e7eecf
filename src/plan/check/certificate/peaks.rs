//! Operations shared out over all engines at their peaks, whatever is split: in the time of a step an engine does no more
//! operations than its rate allows, in f32 and in halves together.

use std::collections::BTreeMap;

use super::super::super::{Peaks, Plan};
use super::super::Faults;
use crate::topology::{Engine, Topology};

/// What can be said without the model.
pub(super) fn check(peaks: &Peaks, reached: u64, faults: &mut Faults) {
    if peaks.value == 0 || peaks.value > reached {
        faults.add(|| format!("at all peaks a step takes {}, the plan {reached}", peaks.value));
        return;
    }
    let gap = 1.0 - peaks.value as f64 / reached as f64;
    if peaks.gap.is_nan() || (peaks.gap - gap).abs() > 1e-3 {
        faults.add(|| format!("the gap to all peaks is {}, and should be {gap:.3}", peaks.gap));
    }
}

/// Whether the model's operations take as long.
pub(super) fn prove(peaks: &Peaks, plan: &Plan, [full, half]: [u64; 2], faults: &mut Faults) {
    if plan.profile.is_some() {
        faults.add(|| "what was measured may be faster than all peaks".to_owned());
    }
    // Operations in halves count as those in f32 that the engine does meanwhile which gains least by halves.
    let (mut all, mut least) = (0u128, None);
    for [own_full, own_half] in engines(&plan.topology) {
        all += own_full;
        let meanwhile = u128::from(half) * own_full / own_half;
        least = Some(least.map_or(meanwhile, |least: u128| least.min(meanwhile)));
    }
    let operations = u128::from(full) + least.unwrap_or(0);
    let proven = operations.saturating_mul(1_000_000_000) / all.max(1);
    if u128::from(peaks.value) > proven {
        faults.add(|| format!("at all peaks a step takes {proven} ns, the certificate says {}", peaks.value));
    }
}

/// Rates in f32 and in halves of all that computes, once each.
fn engines(topology: &Topology) -> Vec<[u128; 2]> {
    let mut found = Vec::new();
    let mut shared: BTreeMap<u32, ()> = BTreeMap::new();
    for id in topology.computing() {
        let (device, physical) = (topology.device(id), topology.physical(id));
        let part = match device.cores {
            None if shared.insert(device.physical, ()).is_some() => continue,
            Some(cores) if cores < physical.cores => (cores, physical.cores),
            _ => (1, 1),
        };
        let of = |rate: u64| {
            let own = u128::from(rate) * u128::from(part.0) / u128::from(part.1.max(1));
            own.clamp(1, u128::from(u64::MAX))
        };
        let (full, half) = (of(physical.flops.0), of(physical.half_flops.0));
        // Kernels of processors compute halves in f32.
        let half = if device.engine() == Engine::Cpu { half.max(full) } else { half };
        found.push([full, half]);
    }
    found
}
