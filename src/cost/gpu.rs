//! What kernels reach of a GPU's peaks, where nothing was measured.
//!
//! A kernel takes what its operations or its bytes take, whichever is more, at a part of the peaks, and a launch. The parts were measured on an H200 and an H100
//! (benches/results/gpu-predicted.md has the table, `scripts/gpu_predicted` makes it again) and are rounded; GPUs of other
//! data sheets are taken to reach the same parts.

use super::rates::Rates;
use crate::ir::{AttentionOp, Family, Graph, NodeId, WindowOp};
use crate::units::{Flops, Nanos, Rate};

/// What paces an operation: its class, as GPUs know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pace {
    /// Matrix products, which a library makes.
    Product,
    /// Convolutions.
    Convolution,
    /// Attention and its gradients.
    Attention,
    /// All others, which memory paces.
    Memory,
}

/// Thousandths of the memory's bandwidth.
const BANDWIDTH: u64 = 880;
/// Of a launch, thousandths that every kernel of a recorded graph takes, as many tiny ones behind one another do; and that others
/// take in the end, until their blocks run at full rate: one that does little loses no more of that than so many times what it does.
const TINY: u64 = 275;
const WHOLE: u64 = 750;
const SLOWEST: u64 = 25;

impl Pace {
    pub(super) fn of(graph: &Graph, node: NodeId) -> Self {
        match graph.node(node).op.family() {
            Family::Product(_) | Family::Packed(_) => Self::Product,
            Family::Window(WindowOp::Conv(_) | WindowOp::ConvTranspose(_)) => Self::Convolution,
            Family::Attention(AttentionOp::Attention(_) | AttentionOp::AttentionGradient(_)) => {
                Self::Attention
            }
            Family::Leaf
            | Family::Generator(_)
            | Family::Elementwise(_)
            | Family::Layout(_)
            | Family::Index(_)
            | Family::Window(_)
            | Family::Reduce(_)
            | Family::Normalize(_)
            | Family::Attention(_)
            | Family::Recurrent(_) => Self::Memory,
        }
    }

    /// Thousandths of the peaks in f32 and in halves.
    fn parts(self) -> [u64; 2] {
        match self {
            Self::Product => [700, 820],
            Self::Convolution => [400, 330],
            Self::Attention => [300, 540],
            Self::Memory => [1000; 2],
        }
    }
}

/// Operations in f32 and in halves as many as a GPU at its peaks would do meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Paced {
    operations: [Flops; 2],
}

impl Paced {
    pub(super) fn new(pace: Pace, is_half: bool, flops: Flops) -> Self {
        let mut paced = Self::default();
        paced.add(pace, is_half, flops);
        paced
    }

    pub(super) fn add(&mut self, pace: Pace, is_half: bool, flops: Flops) {
        let reached = pace.parts()[usize::from(is_half)];
        let peaks = u128::from(flops.0) * 1000 / u128::from(reached);
        self.operations[usize::from(is_half)] += Flops(u64::try_from(peaks).unwrap_or(u64::MAX));
    }

    /// The time of a kernel that moves so many bytes.
    pub(super) fn time(&self, bytes: crate::units::Bytes, rates: &Rates) -> Nanos {
        let [full, half] = self.operations;
        let computed = full.time(rates.flops) + half.time(rates.half_flops);
        let large = computed.max(bandwidth(rates.bandwidth).time(bytes));
        let tiny = Nanos(part(rates.launch.0, TINY));
        let most = Nanos(part(rates.launch.0, WHOLE - TINY));
        let lost = Nanos(large.0.saturating_mul(SLOWEST - 1)).min(most);
        tiny + large + lost
    }
}

/// What kernels reach of it; what has no limit keeps none.
fn bandwidth(peak: Rate) -> Rate {
    match peak {
        Rate::INFINITE => peak,
        Rate(peak) => Rate(part(peak, BANDWIDTH)),
    }
}

fn part(whole: u64, thousandths: u64) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(thousandths) / 1000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::rates::Reached;
    use super::*;
    use crate::units::Bytes;

    fn rates() -> Rates {
        Rates {
            flops: Flops(70_000_000_000_000),
            half_flops: Flops(1_000_000_000_000_000),
            bandwidth: Rate(5_000_000_000_000),
            launch: Nanos(4000),
            reached: Reached::Gpu,
        }
    }

    #[test]
    fn large_kernels_reach_their_part_and_small_ones_lose_at_most_their_launch() {
        let time = |pace, is_half, flops, bytes| {
            Paced::new(pace, is_half, Flops(flops)).time(Bytes(bytes), &rates())
        };
        // 820 TFLOP/s: 1 ms, and a launch.
        assert_eq!(time(Pace::Product, true, 820_000_000_000, 0), Nanos(1_000_000 + 3000));
        // 49 TFLOP/s.
        assert_eq!(time(Pace::Product, false, 49_000_000_000, 0), Nanos(1_000_000 + 3000));
        // 4.4 TB/s.
        assert_eq!(time(Pace::Memory, false, 0, 4_400_000_000), Nanos(1_000_000 + 3000));
        // A nanosecond's work takes 25.
        assert_eq!(time(Pace::Memory, false, 0, 4_400), Nanos(25 + 1100));
        assert_eq!(time(Pace::Memory, false, 0, 0), Nanos(1100));
    }

    #[test]
    fn what_has_no_limit_takes_no_time_and_nothing_overflows() {
        let free = Rates { flops: Flops(u64::MAX), bandwidth: Rate::INFINITE, ..rates() };
        assert_eq!(Paced::new(Pace::Memory, false, Flops(1 << 40)).time(Bytes(1 << 40), &free), Nanos(1100));
        let most = Paced::new(Pace::Attention, true, Flops(u64::MAX)).time(Bytes(u64::MAX), &rates());
        assert!(most > Paced::new(Pace::Attention, true, Flops(1 << 30)).time(Bytes(1 << 30), &rates()));
    }
}
