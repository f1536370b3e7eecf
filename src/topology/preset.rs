//! Known kinds of device and their published peak rates.
//!
//! The numbers are the vendors' peaks without structured sparsity; what a kernel reaches of them
//! is the cost model's business. Memory is the size in the product's name, in decimal gigabytes,
//! which is never more than the device has.

use crate::units::{Bytes, Flops, Nanos, Rate};

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// The kind's name in specs and cost graphs.
    pub name: &'static str,
    /// What it is, in the vendor's words.
    pub title: &'static str,
    /// Its memory; none where the kind says nothing about it (`cuda`).
    pub memory: Option<Bytes>,
    /// Peak rate in f32 without tensor cores, per second.
    pub flops: Flops,
    /// Peak rate in bf16 (f16 where the device has no bf16) with f32 accumulation, dense.
    pub half_flops: Flops,
    /// Bandwidth of its memory.
    pub bandwidth: Rate,
    /// Time to start one kernel.
    pub launch: Nanos,
    /// Rate of its link to the host in each direction.
    pub host_link: Rate,
    /// Rate of its direct links to others of its kind in one host, in each direction; none where
    /// they are joined through the host.
    pub peer_link: Option<Rate>,
    /// What it sends, or receives, over all those links at once: they meet in a switch, or are so many in all. None
    /// where each pair has a link of its own at that rate.
    pub peer_port: Option<Rate>,
}

/// Cores of `cpu` where the spec does not say.
pub const CPU_CORES: u32 = 2;
/// Peak f32 rate of one core of `cpu`: two 256-bit fused multiply-adds a cycle at 3 GHz.
pub const CPU_CORE_FLOPS: Flops = Flops(96_000_000_000);
/// Memory of `cpu` where the spec does not say.
pub const CPU_MEMORY: Bytes = Bytes(16_000_000_000);
/// Time before the first byte crosses between a CPU and its host's memory.
pub const CPU_LATENCY: Nanos = Nanos(500);
/// Time before the first byte crosses a PCIe link, start of the copy included.
pub const HOST_LATENCY: Nanos = Nanos(5_000);
/// Time before the first byte crosses a direct link between accelerators.
pub const PEER_LATENCY: Nanos = Nanos(3_000);
/// Rate of a host's network port in each direction: 100 Gbit/s.
pub const NETWORK_RATE: Rate = Rate(12_500_000_000);
/// Time before the first byte crosses one host's network port; a copy between hosts crosses two.
pub const NETWORK_LATENCY: Nanos = Nanos(5_000);

/// Usable rates of PCIe x16 in one direction, in GB/s: 16, 32 and 64 GB/s (PCI-SIG, "PCI Express
/// Base Specification" 3.0, 4.0, 5.0) less a fifth for packet headers and flow control.
const PCIE3: u64 = 12_500;
const PCIE4: u64 = 25_000;
const PCIE5: u64 = 50_000;

/// Time to start one kernel on a GPU from a recorded graph; measured figures lie at 2 to 5 us.
const GPU_LAUNCH: Nanos = Nanos(4_000);

/// A GPU from its data sheet: memory in GB, rates in GFLOP/s, bandwidth and links in MB/s.
const fn gpu(
    name: &'static str,
    title: &'static str,
    [memory_gb, flops, half_flops, bandwidth, pcie, peer]: [u64; 6],
) -> Preset {
    let peer = if peer == 0 { None } else { Some(Rate(peer * 1_000_000)) };
    Preset {
        name,
        title,
        memory: Some(Bytes(memory_gb * 1_000_000_000)),
        flops: Flops(flops * 1_000_000_000),
        half_flops: Flops(half_flops * 1_000_000_000),
        bandwidth: Rate(bandwidth * 1_000_000),
        launch: GPU_LAUNCH,
        host_link: Rate(pcie * 1_000_000),
        peer_link: peer,
        peer_port: peer,
    }
}

/// As [`gpu`], of which each two are joined by a link of their own.
const fn meshed(name: &'static str, title: &'static str, figures: [u64; 6]) -> Preset {
    Preset { peer_port: None, ..gpu(name, title, figures) }
}

/// What most people run a CPU plan on: a small cloud machine of [`CPU_CORES`] cores, with as much of its host's memory
/// bandwidth as two channels of DDR4-3200 have (51.2 GB/s, JEDEC JESD79-4). What kernels reach of both is in
/// `cost/reach.rs`. Planning is the same on every machine, so these do not depend on this one.
const CPU: Preset = Preset {
    name: "cpu",
    title: "CPU of 2 cores, two channels of DDR4-3200",
    memory: Some(CPU_MEMORY),
    flops: Flops(CPU_CORE_FLOPS.0 * CPU_CORES as u64),
    half_flops: Flops(CPU_CORE_FLOPS.0 * CPU_CORES as u64),
    bandwidth: Rate(51_200_000_000),
    launch: Nanos(1_000),
    host_link: Rate(51_200_000_000),
    peer_link: None,
    peer_port: None,
};

/// A GPU that nothing is known about but that it runs CUDA: about a mid-range one of 2020.
const CUDA: Preset = Preset {
    name: "cuda",
    title: "any CUDA GPU; give its memory",
    memory: None,
    flops: Flops(20_000_000_000_000),
    half_flops: Flops(80_000_000_000_000),
    bandwidth: Rate(500_000_000_000),
    launch: GPU_LAUNCH,
    host_link: Rate(PCIE4 * 1_000_000),
    peer_link: None,
    peer_port: None,
};

/// Every kind that a spec can name, `cpu` and `cuda` first.
pub const PRESETS: [Preset; 25] = [
    CPU,
    CUDA,
    // NVIDIA Tesla P100 PCIe data sheet (2016): f32 9.3, f16 18.7 TFLOPS, 732 GB/s.
    gpu("p100-16g", "NVIDIA P100 PCIe 16 GB", [16, 9_300, 18_700, 732_000, PCIE3, 0]),
    // NVIDIA Tesla V100 data sheet (2020), SXM2: f32 15.7, tensor f16 125 TFLOPS, 900 GB/s,
    // NVLink 300 GB/s in both directions together.
    gpu("v100-16g", "NVIDIA V100 SXM2 16 GB", [16, 15_700, 125_000, 900_000, PCIE3, 150_000]),
    // The same data sheet.
    gpu("v100-32g", "NVIDIA V100 SXM2 32 GB", [32, 15_700, 125_000, 900_000, PCIE3, 150_000]),
    // NVIDIA T4 data sheet (2019): f32 8.1, mixed f16 65 TFLOPS, 320 GB/s (the sheet's "320+").
    gpu("t4-16g", "NVIDIA T4 16 GB", [16, 8_100, 65_000, 320_000, PCIE3, 0]),
    // NVIDIA A10 data sheet (2021): f32 31.2, bf16 125 TFLOPS, 600 GB/s.
    gpu("a10-24g", "NVIDIA A10 24 GB", [24, 31_200, 125_000, 600_000, PCIE4, 0]),
    // NVIDIA A30 data sheet (2021): f32 10.3, bf16 165 TFLOPS, 933 GB/s.
    gpu("a30-24g", "NVIDIA A30 24 GB", [24, 10_300, 165_000, 933_000, PCIE4, 0]),
    // NVIDIA A40 data sheet (2021): f32 37.4, bf16 149.7 TFLOPS, 696 GB/s.
    gpu("a40-48g", "NVIDIA A40 48 GB", [48, 37_400, 149_700, 696_000, PCIE4, 0]),
    // NVIDIA RTX A6000 data sheet (2021): f32 38.7 TFLOPS, 768 GB/s; bf16 dense 154.8 TFLOPS (GA102
    // whitepaper, appendix: tensor f16 with f32 accumulation, which is not halved on this card).
    gpu("a6000-48g", "NVIDIA RTX A6000 48 GB", [48, 38_700, 154_800, 768_000, PCIE4, 0]),
    // NVIDIA A100 data sheet (2021), 40GB PCIe and SXM: f32 19.5, bf16 312 TFLOPS, 1,555 GB/s,
    // NVLink 600 GB/s in both directions together.
    gpu("a100-40g", "NVIDIA A100 SXM4 40 GB", [40, 19_500, 312_000, 1_555_000, PCIE4, 300_000]),
    // NVIDIA A100 data sheet (2021), 80GB SXM: 2,039 GB/s, else the same.
    gpu("a100-80g", "NVIDIA A100 SXM4 80 GB", [80, 19_500, 312_000, 2_039_000, PCIE4, 300_000]),
    // NVIDIA L4 data sheet (2023): f32 30.3, bf16 121 TFLOPS (242 with sparsity), 300 GB/s.
    gpu("l4-24g", "NVIDIA L4 24 GB", [24, 30_300, 121_000, 300_000, PCIE4, 0]),
    // NVIDIA L40S data sheet (2023): f32 91.6, bf16 362.05 TFLOPS, 864 GB/s.
    gpu("l40s-48g", "NVIDIA L40S 48 GB", [48, 91_600, 362_050, 864_000, PCIE4, 0]),
    // NVIDIA H100 data sheet (2023), SXM: f32 67, bf16 989.4 TFLOPS (half of the sparse figure),
    // 3.35 TB/s, NVLink 900 GB/s in both directions together.
    gpu("h100-80g", "NVIDIA H100 SXM5 80 GB", [80, 67_000, 989_400, 3_350_000, PCIE5, 450_000]),
    // NVIDIA H200 data sheet (2024), SXM: as H100 with 141 GB at 4.8 TB/s.
    gpu("h200-141g", "NVIDIA H200 SXM 141 GB", [141, 67_000, 989_400, 4_800_000, PCIE5, 450_000]),
    // NVIDIA DGX B200 data sheet (2024), an eighth of the system: bf16 2,250 TFLOPS dense, 180 GB
    // at 8 TB/s, NVLink 1.8 TB/s; f32 75 TFLOPS (HGX B200 data sheet).
    gpu("b200-180g", "NVIDIA B200 SXM 180 GB", [180, 75_000, 2_250_000, 8_000_000, PCIE5, 900_000]),
    // NVIDIA Turing GPU architecture whitepaper (2018), RTX 2080 Ti: f32 13.4, tensor f16 with f32
    // accumulation 53.8 TFLOPS, 616 GB/s.
    gpu("rtx2080ti-11g", "NVIDIA GeForce RTX 2080 Ti 11 GB", [11, 13_400, 53_800, 616_000, PCIE3, 0]),
    // NVIDIA Ampere GA102 whitepaper (2021), RTX 3090: f32 35.6, bf16 71, 936 GB/s.
    gpu("rtx3090-24g", "NVIDIA GeForce RTX 3090 24 GB", [24, 35_600, 71_000, 936_000, PCIE4, 0]),
    // NVIDIA Ada GPU architecture whitepaper (2023), RTX 4090: f32 82.6, bf16 165.2 TFLOPS with
    // f32 accumulation, 1,008 GB/s.
    gpu("rtx4090-24g", "NVIDIA GeForce RTX 4090 24 GB", [24, 82_600, 165_200, 1_008_000, PCIE4, 0]),
    // NVIDIA RTX Blackwell GPU architecture whitepaper (2025), RTX 5090: f32 104.8, bf16 209.5
    // TFLOPS with f32 accumulation, 1,792 GB/s.
    gpu("rtx5090-32g", "NVIDIA GeForce RTX 5090 32 GB", [32, 104_800, 209_500, 1_792_000, PCIE5, 0]),
    // AMD Instinct MI210 data sheet (2022): f32 vector 22.6, bf16 181 TFLOPS, 1,638.4 GB/s,
    // three Infinity Fabric links of 100 GB/s in both directions together.
    meshed("mi210-64g", "AMD Instinct MI210 64 GB", [64, 22_600, 181_000, 1_638_400, PCIE4, 50_000]),
    // AMD Instinct MI250 data sheet (2021), both dies: f32 vector 45.3, bf16 362.1 TFLOPS,
    // 3,276.8 GB/s; 100 GB/s for each Infinity Fabric link in both directions together.
    meshed("mi250-128g", "AMD Instinct MI250 128 GB", [128, 45_300, 362_100, 3_276_800, PCIE4, 50_000]),
    // AMD Instinct MI300X data sheet (2023): f32 vector 163.4, bf16 1,307.4 TFLOPS, 5.3 TB/s;
    // 128 GB/s for each Infinity Fabric link in both directions together.
    meshed("mi300x-192g", "AMD Instinct MI300X 192 GB", [192, 163_400, 1_307_400, 5_300_000, PCIE5, 64_000]),
    // AMD Instinct MI325X data sheet (2024): as MI300X with 256 GB at 6 TB/s.
    meshed("mi325x-256g", "AMD Instinct MI325X 256 GB", [256, 163_400, 1_307_400, 6_000_000, PCIE5, 64_000]),
];

impl Preset {
    /// The preset with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// What NVRTC calls the GPU's architecture (NVIDIA, CUDA GPU Compute Capability); none of what is no GPU of NVIDIA's, or any.
    pub fn architecture(&self) -> Option<&'static str> {
        let (chip, _) = self.name.split_once('-')?;
        Some(match chip {
            "p100" => "sm_60",
            "v100" => "sm_70",
            "t4" | "rtx2080ti" => "sm_75",
            "a30" | "a100" => "sm_80",
            "a10" | "a40" | "a6000" | "rtx3090" => "sm_86",
            "l4" | "l40s" | "rtx4090" => "sm_89",
            "h100" | "h200" => "sm_90",
            "b200" => "sm_100",
            "rtx5090" => "sm_120",
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_the_memory() {
        for (index, preset) in PRESETS.iter().enumerate() {
            assert!(PRESETS[..index].iter().all(|other| other.name != preset.name));
            assert!(preset.half_flops >= preset.flops);
            let Some((_, size)) = preset.name.rsplit_once('-') else { continue };
            assert_eq!(size.parse().ok(), preset.memory, "{}", preset.name);
            let is_nvidia = preset.title.starts_with("NVIDIA");
            assert_eq!(preset.architecture().is_some(), is_nvidia, "{}", preset.name);
        }
    }
}
