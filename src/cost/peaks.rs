//! The time that operations take at the peak rates of all devices together, however they are shared out.

use std::collections::BTreeSet;

use super::rates::{Rates, Reached};
use crate::topology::Topology;
use crate::units::{Flops, Nanos};

/// The time that so many engines of these rates take together for operations in f32 and in halves.
///
/// An engine of rates f and h that does F operations in f32 and H in halves is busy for F/f + H/h at least. With f of
/// each engine as its weight, the sum over the engines is no less than F + H x (the smallest f/h), and no more than
/// their time times the sum of all f. O(engines).
pub(crate) fn least_time<'r>(
    engines: impl Iterator<Item = (&'r Rates, usize)>,
    [full, half]: [Flops; 2],
) -> Nanos {
    let (mut rate, mut weighted) = (0u128, u128::MAX);
    for (rates, count) in engines {
        let [f, h] = [rates.flops, best_half(rates)].map(|rate| u128::from(rate.0.max(1)));
        rate += f * count as u128;
        // The product of two numbers below 2^64 each.
        weighted = weighted.min(u128::from(half.0) * f / h);
    }
    let work = u128::from(full.0) + if half.0 == 0 { 0 } else { weighted };
    Nanos(u64::try_from(work.saturating_mul(1_000_000_000) / rate.max(1)).unwrap_or(u64::MAX))
}

/// As [`least_time`], on all that a topology computes with. O(devices log devices).
pub(crate) fn least_time_on(topology: &Topology, operations: [Flops; 2]) -> Nanos {
    // Devices without cores of their own share those of the physical one.
    let mut shared = BTreeSet::new();
    let is_engine = |&id: &crate::topology::DeviceId| {
        let device = topology.device(id);
        device.cores.is_some() || shared.insert(device.physical)
    };
    let engines: Vec<Rates> =
        topology.computing().filter(is_engine).map(|id| Rates::of(topology, id)).collect();
    least_time(engines.iter().map(|rates| (rates, 1)), operations)
}

/// The most operations in halves that plans are timed at: kernels of processors compute halves in f32.
fn best_half(rates: &Rates) -> Flops {
    match rates.reached {
        Reached::Peaks | Reached::Gpu => rates.half_flops,
        Reached::Parts => rates.half_flops.max(rates.flops),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rate;

    fn rates(flops: u64, half_flops: u64, reached: Reached) -> Rates {
        let [flops, half_flops] = [flops, half_flops].map(Flops);
        Rates { flops, half_flops, bandwidth: Rate::INFINITE, launch: Nanos::ZERO, reached }
    }

    #[test]
    fn halves_are_charged_at_the_rate_that_plans_are_timed_at() {
        let halves = [Flops(0), Flops(1_000)];
        let time = |rates: &[Rates]| least_time(rates.iter().map(|rates| (rates, 1)), halves).get();
        // A second each 100 operations in f32, and 50 or 200 in halves.
        assert_eq!(time(&[rates(100, 50, Reached::Peaks)]), 20_000_000_000);
        assert_eq!(time(&[rates(100, 50, Reached::Parts)]), 10_000_000_000);
        assert_eq!(time(&[rates(100, 200, Reached::Parts)]), 5_000_000_000);
        assert_eq!(time(&[rates(100, 50, Reached::Parts); 2]), 5_000_000_000);
    }
}
