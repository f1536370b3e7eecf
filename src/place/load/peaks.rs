//! What a device needs for a moment: while a unit computes, what it reads and makes is there beside what stays. The unit
//! that needs most counts, in steps of a sixty-third of what any unit needs.

use crate::costgraph::Role;
use crate::place::evaluate::needed;
use crate::place::problem::Problem;

/// Sizes that are told apart, nothing included: one bit of a mask for each.
const SIZES: usize = 64;

/// What units need.
#[derive(Clone, Debug)]
pub(super) struct Needs {
    /// Bytes from one size to the next.
    step: u64,
    /// By unit, the size of what it needs, rounded up.
    size: Vec<u8>,
}

impl Needs {
    /// What the units of a problem need. O(nodes + edges).
    pub(super) fn new(problem: &Problem<'_>) -> Self {
        let mut most = vec![0u64; problem.unit_count()];
        let graph = problem.graph;
        for node in graph.nodes().filter(|&node| graph.role(node) == Role::Compute) {
            let most = &mut most[problem.unit_of[node.index()] as usize];
            *most = needed(graph, node).max(*most);
        }
        let step = most.iter().copied().max().unwrap_or(0).div_ceil(SIZES as u64 - 1).max(1);
        Self { step, size: most.into_iter().map(|bytes| bytes.div_ceil(step) as u8).collect() }
    }

    /// What clusters need: `of` gives the cluster of each unit.
    pub(super) fn coarsened(&self, of: &[u32], clusters: usize) -> Self {
        let mut size = vec![0; clusters];
        for (&cluster, &needed) in of.iter().zip(&self.size) {
            let most = &mut size[cluster as usize];
            *most = needed.max(*most);
        }
        Self { step: self.step, size }
    }
}

/// The units of each device, by what they need.
#[derive(Debug)]
pub(super) struct Peaks {
    /// By device and size.
    units: Vec<[u32; SIZES]>,
    /// By device, the sizes of which it has units.
    sizes: Vec<u64>,
}

impl Peaks {
    /// Empty devices.
    pub(super) fn new(devices: usize) -> Self {
        Self { units: vec![[0; SIZES]; devices], sizes: vec![0; devices] }
    }

    /// The most that any unit of a device needs.
    pub(super) fn of(&self, needs: &Needs, device: usize) -> u64 {
        let largest = u64::from(self.sizes[device].checked_ilog2().unwrap_or(0));
        needs.step.saturating_mul(largest)
    }

    /// A unit comes to a device.
    pub(super) fn enter(&mut self, needs: &Needs, unit: usize, device: usize) {
        let size = usize::from(needs.size[unit]);
        self.units[device][size] += 1;
        self.sizes[device] |= 1 << size;
    }

    /// A unit leaves a device.
    pub(super) fn leave(&mut self, needs: &Needs, unit: usize, device: usize) {
        let size = usize::from(needs.size[unit]);
        let units = &mut self.units[device][size];
        *units -= 1;
        if *units == 0 {
            self.sizes[device] &= !(1 << size);
        }
    }
}
