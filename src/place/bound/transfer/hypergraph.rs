//! The hypergraph that bounds are sought on, and what its units weigh.

use crate::csr::Csr;

/// Units and the nets that connect them, both ways in flat arrays.
#[derive(Debug)]
pub(super) struct Hypergraph {
    /// By net, its units.
    pins: Csr,
    /// By unit, its nets.
    incident: Csr,
    /// By net, the bytes that each part beyond the first costs.
    pub(super) cost: Vec<u64>,
}

impl Hypergraph {
    /// From rows of distinct units, at least two in each. O(pins).
    pub(super) fn new<'r>(units: usize, rows: impl Iterator<Item = (u64, &'r [u32])>) -> Self {
        let (mut pins, mut cost) = (Csr::new(), Vec::new());
        for (bytes, row) in rows {
            row.iter().for_each(|&unit| pins.push(unit));
            pins.end_row();
            cost.push(bytes);
        }
        let incident = pins.transposed(units);
        Self { pins, incident, cost }
    }

    /// Number of units.
    pub(super) fn units(&self) -> usize {
        self.incident.len()
    }

    /// Number of pairs of a net and one of its units.
    pub(super) fn pin_count(&self) -> usize {
        self.pins.entries().len()
    }

    /// Number of nets.
    pub(super) fn nets(&self) -> usize {
        self.cost.len()
    }

    /// The units of a net.
    pub(super) fn pins(&self, net: usize) -> &[u32] {
        self.pins.row(net)
    }

    /// The nets of a unit, ascending.
    pub(super) fn nets_of(&self, unit: usize) -> &[u32] {
        self.incident.row(unit)
    }

    /// The share of a net's cost that falls to each of its pins: as equal as integers allow, the
    /// larger ones first.
    pub(super) fn shares(&self, net: usize) -> impl Iterator<Item = (u32, u64)> + '_ {
        let pins = self.pins(net);
        let (each, more) = (self.cost[net] / pins.len() as u64, self.cost[net] % pins.len() as u64);
        pins.iter().enumerate().map(move |(i, &unit)| (unit, each + u64::from((i as u64) < more)))
    }
}
