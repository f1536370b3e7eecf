//! What kernels reach of a processor's peaks, where nothing was measured.
//!
//! A processor's kernels are far from its peaks, and by very different factors: products keep its
//! multipliers busy, a softmax waits for exponentials, small tensors for memory. So on CPUs the time of a group is the
//! sum over its classes of operations, each by the part of the peaks that this program's kernels reach; as a
//! [profile](super::Profile) has it, with these parts in the place of measured rates. GPUs have theirs
//! (`gpu`).
//!
//! The parts were measured on a cloud machine of two cores (docs/devices.md): medians over the shapes of probes and of
//! networks, rounded. Another processor reaches others: `partition run --calibrate` measures them.

use super::class::{Class, ClassWork};
use super::rates::Rates;
use crate::units::{Flops, Nanos, Rate};

/// What the kernels of a class reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    /// Thousandths of the peak rate of operations.
    flops: u64,
    /// Thousandths of the memory's bandwidth.
    bandwidth: u64,
    /// The most that a kernel loses because it is small.
    start: Nanos,
}

/// Small kernels fill neither vectors nor threads: at most so many times the time of their share of a large one.
const SLOWEST: u64 = 25;

/// Operations for each byte up to which products do not pack: those of 16 rows in f32.
const UNPACKED: u64 = 8;

fn reach(class: Class) -> Reach {
    let of =
        |flops: u64, bandwidth: u64, start_us: u64| Reach { flops, bandwidth, start: Nanos(start_us * 1000) };
    match class {
        Class::Map => of(180, 400, 1),
        Class::Reduce => of(50, 300, 2),
        Class::Normalize => of(200, 300, 15),
        Class::Matmul => of(700, 500, 10),
        Class::Conv => of(650, 400, 50),
        Class::Depthwise => of(200, 300, 20),
        Class::ConvTranspose => of(300, 300, 50),
        Class::Pool => of(60, 250, 10),
        Class::Resize => of(2, 10, 10),
        Class::Recurrent => of(250, 300, 20),
        Class::Gather => of(50, 300, 2),
        Class::Move => of(100, 250, 2),
        Class::Sort => of(2, 5, 10),
    }
}

/// The time of a group on a processor with these rates. O(classes).
pub(super) fn time(work: &[ClassWork], rates: &Rates) -> Nanos {
    let mut time = rates.launch;
    for one in work {
        let reach = reach(one.class);
        let large = one.flops.time(Flops(part(rates.flops.0, reach.flops)));
        let lost = Nanos(large.0.saturating_mul(SLOWEST - 1)).min(reach.start);
        let moved = Rate(part(rates.bandwidth.0, reach.bandwidth)).time(one.bytes);
        // Panels are packed before they are multiplied: half of the rows take more than half of the time. Few rows are
        // multiplied by what is read as it comes.
        let is_packed = one.class == Class::Matmul && one.flops.0 > UNPACKED.saturating_mul(one.bytes.0);
        time += if is_packed { large + lost + moved } else { (large + lost).max(moved) };
    }
    time
}

/// So many thousandths of a rate; what has no limit keeps none.
fn part(peak: u64, thousandths: u64) -> u64 {
    match peak {
        u64::MAX => u64::MAX,
        peak => u64::try_from(u128::from(peak) * u128::from(thousandths) / 1000).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::Reached;
    use super::*;
    use crate::units::Bytes;

    fn rates() -> Rates {
        Rates {
            flops: Flops(200_000_000_000),
            half_flops: Flops(200_000_000_000),
            bandwidth: Rate(50_000_000_000),
            launch: Nanos(1000),
            reached: Reached::Parts,
        }
    }

    fn of(class: Class, flops: u64, bytes: u64) -> Nanos {
        time(&[ClassWork { class, flops: Flops(flops), bytes: Bytes(bytes) }], &rates())
    }

    #[test]
    fn large_kernels_reach_their_part_and_small_ones_lose_at_most_their_start() {
        // 140 GFLOP/s: 10 ms, a launch and the start.
        assert_eq!(of(Class::Matmul, 1_400_000_000, 0), Nanos(10_000_000 + 1000 + 10_000));
        // 14 kFLOP are 100 ns of a large one.
        assert_eq!(of(Class::Matmul, 14_000, 0), Nanos(1000 + 25 * 100));
        // 25 GB/s: what is moved takes longer than what is computed, which hides behind it.
        assert_eq!(of(Class::Matmul, 14_000, 25_000_000), Nanos(1000 + 1_000_000));
        // Of many rows what is moved is packed first.
        assert_eq!(
            of(Class::Matmul, 1_400_000_000, 25_000_000),
            Nanos(10_000_000 + 1000 + 10_000 + 1_000_000)
        );
        assert_eq!(time(&[], &rates()), Nanos(1000));
    }

    #[test]
    fn what_has_no_limit_takes_no_time_and_nothing_overflows() {
        let free = Rates { flops: Flops(u64::MAX), bandwidth: Rate::INFINITE, ..rates() };
        let work = ClassWork { class: Class::Conv, flops: Flops(1 << 40), bytes: Bytes(1 << 40) };
        assert_eq!(time(&[work], &free), Nanos(1000));
        for class in Class::ALL {
            assert!(of(class, u64::MAX, u64::MAX) > of(class, 1 << 30, 1 << 30), "{class:?}");
        }
    }
}
