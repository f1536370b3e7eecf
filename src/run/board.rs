//! GPUs as the driver names them, and the presets whose rates those boards have.

use crate::units::{Bytes, Flops, Rate};

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The driver's name for it.
    pub name: String,
    /// All of its memory, also what other processes use.
    pub memory: Bytes,
    /// What its rates are taken from: a preset of the same name, else what the driver says.
    pub rates: GpuRates,
}

/// Peak rates of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRates {
    /// Those of the preset with this name.
    Preset(&'static str),
    /// Computed from the clocks and widths that the driver gives.
    Driver {
        /// Peak f32 rate, per second.
        flops: Flops,
        /// Bandwidth of its memory.
        bandwidth: Rate,
    },
    /// Nothing is known: those of `cuda`.
    Unknown,
}

/// The driver's names of boards, and the presets whose rates are theirs.
const BOARDS: [(&str, &str); 27] = [
    ("Tesla P100-PCIE-16GB", "p100-16g"),
    ("Tesla V100-SXM2-16GB", "v100-16g"),
    ("Tesla V100-SXM2-32GB", "v100-32g"),
    ("Tesla V100-SXM3-32GB", "v100-32g"),
    ("Tesla T4", "t4-16g"),
    ("NVIDIA A10", "a10-24g"),
    ("NVIDIA A10G", "a10-24g"),
    ("NVIDIA A30", "a30-24g"),
    ("NVIDIA A40", "a40-48g"),
    ("NVIDIA RTX A6000", "a6000-48g"),
    ("NVIDIA A100-SXM4-40GB", "a100-40g"),
    ("A100-SXM4-40GB", "a100-40g"),
    ("NVIDIA A100-SXM4-80GB", "a100-80g"),
    ("A100-SXM4-80GB", "a100-80g"),
    ("NVIDIA A100-SXM-80GB", "a100-80g"),
    ("NVIDIA L4", "l4-24g"),
    ("NVIDIA L40S", "l40s-48g"),
    ("NVIDIA H100 80GB HBM3", "h100-80g"),
    ("NVIDIA H200", "h200-141g"),
    ("NVIDIA B200", "b200-180g"),
    ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti-11g"),
    ("GeForce RTX 2080 Ti", "rtx2080ti-11g"),
    ("NVIDIA GeForce RTX 3090", "rtx3090-24g"),
    ("GeForce RTX 3090", "rtx3090-24g"),
    ("NVIDIA GeForce RTX 4090", "rtx4090-24g"),
    ("NVIDIA GeForce RTX 5090", "rtx5090-32g"),
    ("NVIDIA H100 SXM5 80GB", "h100-80g"),
];

/// The preset whose rates a board of this name has.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(super) fn preset_of_board(name: &str) -> Option<&'static str> {
    BOARDS.iter().find(|(board, _)| *board == name).map(|(_, preset)| *preset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Preset;

    #[test]
    fn boards_name_presets() {
        assert!(BOARDS.iter().all(|(_, preset)| Preset::find(preset).is_some()));
        assert_eq!(preset_of_board("NVIDIA H200"), Some("h200-141g"));
        assert_eq!(preset_of_board("NVIDIA A100-PCIE-40GB"), None);
    }
}
