//! The hypergraph that bounds are sought on, and what its units weigh.

/// Units and the nets that connect them, both ways in flat arrays.
#[derive(Debug)]
pub(super) struct Hypergraph {
    net_start: Vec<u32>,
    pins: Vec<u32>,
    unit_start: Vec<u32>,
    incident: Vec<u32>,
    /// By net, the bytes that each part beyond the first costs.
    pub(super) cost: Vec<u64>,
}

impl Hypergraph {
    /// From rows of distinct units, at least two in each. O(pins).
    pub(super) fn new<'r>(units: usize, rows: impl Iterator<Item = (u64, &'r [u32])>) -> Self {
        let (mut net_start, mut pins, mut cost) = (vec![0], Vec::new(), Vec::new());
        let mut unit_start = vec![0u32; units + 1];
        for (bytes, row) in rows {
            row.iter().for_each(|&unit| unit_start[unit as usize + 1] += 1);
            pins.extend_from_slice(row);
            net_start.push(pins.len() as u32);
            cost.push(bytes);
        }
        for unit in 0..units {
            unit_start[unit + 1] += unit_start[unit];
        }
        let mut fill = unit_start.clone();
        let mut incident = vec![0; pins.len()];
        for net in 0..cost.len() {
            for &unit in &pins[net_start[net] as usize..net_start[net + 1] as usize] {
                incident[fill[unit as usize] as usize] = net as u32;
                fill[unit as usize] += 1;
            }
        }
        Self { net_start, pins, unit_start, incident, cost }
    }

    /// Number of units.
    pub(super) fn units(&self) -> usize {
        self.unit_start.len() - 1
    }

    /// Number of pairs of a net and one of its units.
    pub(super) fn pin_count(&self) -> usize {
        self.pins.len()
    }

    /// Number of nets.
    pub(super) fn nets(&self) -> usize {
        self.cost.len()
    }

    /// The units of a net.
    pub(super) fn pins(&self, net: usize) -> &[u32] {
        &self.pins[self.net_start[net] as usize..self.net_start[net + 1] as usize]
    }

    /// The nets of a unit, ascending.
    pub(super) fn nets_of(&self, unit: usize) -> &[u32] {
        &self.incident[self.unit_start[unit] as usize..self.unit_start[unit + 1] as usize]
    }

    /// The share of a net's cost that falls to each of its pins: as equal as integers allow, the
    /// larger ones first.
    pub(super) fn shares(&self, net: usize) -> impl Iterator<Item = (u32, u64)> + '_ {
        let pins = self.pins(net);
        let (each, more) = (self.cost[net] / pins.len() as u64, self.cost[net] % pins.len() as u64);
        pins.iter().enumerate().map(move |(i, &unit)| (unit, each + u64::from((i as u64) < more)))
    }
}
