//! GPUs as a model: what a multiprocessor issues, what its units take, what memory moves, and from these and a warp's
//! run the time of a launch, beside the least that its bytes and products take.

use super::warp::{Accesses, Latencies, Run, UNITS, Unit};

/// A GPU of sm_90. Rates are those of its data sheet; `copy` is what a large copy within its memory reaches.
pub(crate) struct Gpu {
    multiprocessors: f64,
    /// Cycles in a second under load.
    clock: f64,
    /// Bytes in a second, read and written together.
    pub(crate) bandwidth: f64,
    pub(crate) copy: f64,
    /// Bytes of the L2.
    l2: f64,
    /// Bytes in a second between the multiprocessors and the L2.
    cache: f64,
    /// Operations in a second of the dense tensor cores on halves, and of those on f32.
    pub(crate) halves: f64,
    pub(crate) floats: f64,
    /// Cycles that an instruction of a warp takes of its unit, in the order of `Unit`.
    cycles: [f64; UNITS],
    /// Operations in a cycle that `mma.sync` gets of a multiprocessor's tensor cores.
    tensor: f64,
    /// The same by `wgmma`.
    groups: f64,
    pub(crate) latencies: Latencies,
}

/// Measured copies: 3.0 TB/s on an H100 and 4.3 on an H200, by events, bytes read and written. `mma.sync` gets 62 % of
/// Hopper's tensor cores (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
/// Microbenchmarking", 2024); `wgmma` is what the data sheet counts. Latencies are of the same paper, rounded.
const H100: Gpu = Gpu {
    multiprocessors: 132.0,
    clock: 1.7e9,
    bandwidth: 3.35e12,
    copy: 3.0e12,
    l2: 50e6,
    cache: 5.5e12,
    halves: 989e12,
    floats: 67e12,
    cycles: [1.0, 2.0, 8.0, 2.0, 2.0, 4.0, 1.0, 4.0, 1.0],
    tensor: 4096.0 * 0.62,
    groups: 4096.0,
    latencies: Latencies { global: 650, shared: 30, tensor: 33, other: 24 },
};

/// An H100 and an H200.
pub(crate) const GPUS: [Gpu; 2] = [H100, Gpu { bandwidth: 4.8e12, copy: 4.3e12, l2: 60e6, ..H100 }];

/// What is known of a launch beside its code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launched {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) registers: u32,
    /// Shared memory of a block.
    pub(crate) shared: u32,
    /// Bytes of the arguments: each read or written once.
    pub(crate) bytes: u64,
    /// Of those, what is read, where every block reads rows of its own.
    pub(crate) own: Option<u64>,
    /// Operations of a product or an attention.
    pub(crate) operations: f64,
    /// Whether they are tensor cores'.
    pub(crate) is_tensor: bool,
}

/// Where a launch's time goes, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predicted {
    pub(crate) issue: f64,
    /// The busiest unit, and its time.
    pub(crate) unit: (&'static str, f64),
    /// What memory takes for the bytes.
    pub(crate) memory: f64,
    /// Warps that run one after the other.
    pub(crate) latency: f64,
    pub(crate) total: f64,
    /// How often the blocks fill all that run at once.
    pub(crate) waves: f64,
}

/// A launch out of a graph, and its last block's end: microseconds.
const LAUNCH: f64 = 1.5;

impl Gpu {
    pub(crate) fn predicted(&self, launched: &Launched, run: &Run) -> Predicted {
        let warps = launched.threads.div_ceil(32);
        let resident = resident(launched, warps);
        let slots = self.multiprocessors * f64::from(resident);
        let waves = f64::from(launched.blocks) / slots;
        // The fullest multiprocessor has so many blocks.
        let blocks = (f64::from(launched.blocks) / self.multiprocessors).ceil();
        let quarter = blocks * f64::from(warps) / 4.0;
        let seconds = |cycles: f64| cycles / self.clock * 1e6;
        let issue = seconds(quarter * run.instructions as f64);
        let unit = self.busiest(run, quarter, blocks * f64::from(warps));
        let memory = self.memory(launched, run, slots, f64::from(warps));
        let turns = (blocks / f64::from(resident)).ceil();
        let latency = seconds(turns * run.cycles as f64);
        let total = issue.max(seconds(unit.1)).max(memory).max(latency) + LAUNCH;
        let unit = (unit.0, seconds(unit.1));
        Predicted { issue, unit, memory, latency, total, waves }
    }

    /// Cycles of the unit that has most to do.
    fn busiest(&self, run: &Run, quarter: f64, warps: f64) -> (&'static str, f64) {
        let of = |unit: Unit| run.units[unit as usize] as f64 * self.cycles[unit as usize] * quarter;
        let shared = (run.shared.units as f64).max(run.shared.bytes as f64 / 128.0) * warps;
        let all = [
            ("FP32", of(Unit::Float)),
            ("integer", of(Unit::Whole)),
            ("special functions", of(Unit::Special)),
            ("conversions", of(Unit::Convert)),
            ("FP64", of(Unit::Double)),
            ("shuffles", of(Unit::Shuffle)),
            ("tensor cores", (run.tensor as f64 / self.tensor + run.groups as f64 / self.groups) * warps),
            ("shared memory", shared),
            ("L1", (run.loads.units + run.stores.units) as f64 * 32.0 / 64.0 * warps),
        ];
        all.into_iter().max_by(|x, y| x.1.total_cmp(&y.1)).unwrap_or(("", 0.0))
    }

    /// Microseconds that a copy of so many bytes, read and written together, takes.
    pub(crate) fn copied(&self, bytes: f64) -> f64 {
        bytes / self.copy * 1e6 + LAUNCH
    }

    /// Microseconds: of the memory, of the L2.
    fn memory(&self, launched: &Launched, run: &Run, slots: f64, warps: f64) -> f64 {
        let all = warps * f64::from(launched.blocks);
        let through = (run.loads.units + run.stores.units) as f64 * 32.0 * all;
        let bytes = launched.bytes as f64 + self.again(launched, run, slots, all);
        let memory = bytes * wasted(run) / self.copy;
        memory.max(through / self.cache) * 1e6
    }

    /// Bytes that blocks read again of their rows from memory: of the rows of all that run at once, the share that the L2
    /// does not hold, as if what it drops were drawn at random.
    fn again(&self, launched: &Launched, run: &Run, slots: f64, warps: f64) -> f64 {
        let Some(own) = launched.own.map(|own| own as f64) else { return 0.0 };
        let at_once = own * (slots / f64::from(launched.blocks)).min(1.0);
        let asked = run.loads.bytes as f64 * warps;
        let dropped = (1.0 - self.l2 / at_once).max(0.0);
        (asked - own).max(0.0) * dropped
    }
}

/// Sectors beyond those that hold what is asked for are asked for again by others, mostly from the L2; strided
/// accesses waste what they bring where nobody else reads it soon: a tenth of it is taken to be lost. Loads and stores
/// count by the bytes that they move.
fn wasted(run: &Run) -> f64 {
    let lost = |of: &Accesses| match of.least {
        0 => 0.0,
        least => 0.1 * (of.units as f64 / least as f64 - 1.0).min(7.0),
    };
    let bytes = |of: &Accesses| of.bytes as f64;
    let all = bytes(&run.loads) + bytes(&run.stores);
    let both = lost(&run.loads) * bytes(&run.loads) + lost(&run.stores) * bytes(&run.stores);
    if all > 0.0 { 1.0 + both / all } else { 1.0 }
}

/// Blocks that a multiprocessor holds at once.
fn resident(launched: &Launched, warps: u32) -> u32 {
    let registers = launched.registers.max(16).div_ceil(8) * 8 * 32 * warps;
    let by_registers = 65536 / registers.max(1);
    let by_shared = 227 * 1024 / (launched.shared + 1024);
    (64 / warps.max(1)).min(by_registers).min(by_shared).clamp(1, 32)
}
