//! What any run of consecutive blocks of an order costs: bytes in and out, memory, compute time.
//!
//! An order of units is cut into blocks at chosen positions; the tables then hold one number for
//! each window of blocks `[i, j)`. Each net adds to a few rectangles of windows (those that
//! begin after one of its readers and end after the next), so all tables are made by
//! two-dimensional prefix sums in O(readers + blocks^2). Over windows on distinct devices these
//! bytes add up to the connectivity metric exactly.

use super::nets::{NetKind, Nets};
use super::problem::{NONE, Problem};
use crate::topology::DeviceId;

/// Units in one line, ready to be cut. Units that have no choice of device are left out.
#[derive(Debug)]
pub(super) struct Line {
    /// Units in order.
    pub(super) units: Vec<u32>,
    /// Position of each unit; [`NONE`] for those left out.
    pub(super) position: Vec<u32>,
    /// Bytes of nets that span the gap before each position.
    crossing: Vec<u64>,
    /// Bytes alive while the unit at each position runs, parameters left out.
    width: Vec<u64>,
}

impl Line {
    /// Lays out an order of all units. O(readers).
    pub(super) fn new(problem: &Problem<'_>, nets: &Nets, order: &[u32]) -> Self {
        let units: Vec<u32> =
            order.iter().copied().filter(|&unit| problem.fixed(unit as usize).is_none()).collect();
        let mut position = vec![NONE; problem.unit_count()];
        for (at, &unit) in units.iter().enumerate() {
            position[unit as usize] = at as u32;
        }
        let mut crossing = vec![0u64; units.len() + 1];
        let mut width = vec![0u64; units.len() + 1];
        for net in 0..nets.len() {
            let positions =
                || nets.units.row(net).iter().map(|&unit| position[unit as usize]).filter(|&p| p != NONE);
            let (Some(first), Some(last)) = (positions().min(), positions().max()) else {
                continue;
            };
            let (first, last, weight) = (first as usize, last as usize, nets.weight[net]);
            // Differences may wrap below zero; the prefix sums below are whole again.
            crossing[first + 1] = crossing[first + 1].wrapping_add(weight);
            if last + 1 < crossing.len() {
                crossing[last + 1] = crossing[last + 1].wrapping_sub(weight);
            }
            if nets.kind[net] == NetKind::Tensor {
                width[first] = width[first].wrapping_add(weight);
                width[last + 1] = width[last + 1].wrapping_sub(weight);
            }
        }
        for at in 1..crossing.len() {
            crossing[at] = crossing[at].wrapping_add(crossing[at - 1]);
            width[at] = width[at].wrapping_add(width[at - 1]);
        }
        for (at, &unit) in units.iter().enumerate() {
            width[at] += nets.transient[unit as usize];
        }
        Self { units, position, crossing, width }
    }

    /// Number of units in the line.
    pub(super) fn len(&self) -> usize {
        self.units.len()
    }

    /// Positions at which to allow cuts: all where they are few, else of each of `most` windows of
    /// about equal weight (units, bytes, time) the one that the fewest bytes cross.
    pub(super) fn cuts(&self, problem: &Problem<'_>, nets: &Nets, most: usize) -> Vec<u32> {
        let len = self.len();
        if len <= most {
            return (0..=len as u32).collect();
        }
        // In parts of 2^40, so that units, bytes and time count alike whatever their scales.
        let share = |values: Vec<u64>| -> Vec<u64> {
            let total: u128 = values.iter().map(|&value| u128::from(value)).sum::<u128>().max(1);
            values.iter().map(|&value| (u128::from(value) * (1 << 40) / total) as u64).collect()
        };
        let device = problem.devices[0];
        let time = |&unit: &u32| problem.unit_time(unit as usize, device).unwrap_or(0);
        let times = share(self.units.iter().map(time).collect());
        let bytes = share(self.units.iter().map(|&unit| nets.resident[unit as usize]).collect());
        let even = (1u64 << 40) / len as u64;
        let total: u64 = (0..len).map(|at| even + times[at] + bytes[at]).sum();
        let window = total / most as u64 + 1;
        let (mut cuts, mut sum, mut filled) = (vec![0u32], 0u64, 0u64);
        let mut best: Option<usize> = None;
        for at in 1..len {
            sum += even + times[at - 1] + bytes[at - 1];
            if best.is_none_or(|best| self.crossing[at] < self.crossing[best]) {
                best = Some(at);
            }
            if sum / window > filled {
                filled = sum / window;
                cuts.extend(best.take().map(|at| at as u32));
            }
        }
        cuts.push(len as u32);
        cuts
    }

    /// Positions near some cuts, within `reach` of each and about `most` in all: of each small
    /// window the one that the fewest bytes cross. Gives them with the widest gap among neighbours
    /// in a window; at a gap of one they are all there.
    pub(super) fn cuts_near(&self, chosen: &[u32], reach: u32, most: usize) -> (Vec<u32>, u32) {
        let len = self.len() as u32;
        let inner: Vec<u32> = chosen.iter().copied().filter(|&cut| cut > 0 && cut < len).collect();
        let share = (most / (2 * inner.len().max(1))).max(1) as u32;
        let window = reach.div_ceil(share).max(1);
        let mut cuts = vec![0, len];
        for &cut in &inner {
            cuts.push(cut);
            let (mut at, last) = (cut.saturating_sub(reach).max(1), cut.saturating_add(reach).min(len - 1));
            while at <= last {
                let end = at.saturating_add(window - 1).min(last);
                cuts.extend((at..=end).min_by_key(|&position| self.crossing[position as usize]));
                at = end + 1;
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        // Neighbouring windows may choose positions at their far ends.
        (cuts, if window == 1 { 1 } else { 2 * window })
    }
}

/// One number for each window of blocks.
#[derive(Debug, Clone)]
pub(super) struct Grid {
    side: usize,
    cells: Vec<u64>,
}

impl Grid {
    fn new(blocks: usize) -> Self {
        let side = blocks + 2;
        Self { side, cells: vec![0; side * side] }
    }

    /// The number of window `[i, j)`.
    pub(super) fn get(&self, i: usize, j: usize) -> u64 {
        self.cells[i * self.side + j]
    }

    fn corner(&mut self, i: usize, j: usize, amount: u64) {
        let cell = &mut self.cells[i * self.side + j];
        *cell = cell.wrapping_add(amount);
    }

    /// Adds to the windows that begin in `from..=to` and end at or after `end`.
    fn add(&mut self, from: usize, to: usize, end: usize, amount: u64) {
        self.corner(from, end, amount);
        self.corner(to + 1, end, amount.wrapping_neg());
    }

    /// Turns corners into numbers.
    fn sum(&mut self) {
        for i in 0..self.side {
            let mut run = 0u64;
            for j in 0..self.side {
                let at = i * self.side + j;
                run = run.wrapping_add(self.cells[at]);
                self.cells[at] = if i == 0 { run } else { run.wrapping_add(self.cells[at - self.side]) };
            }
        }
    }
}

/// What the windows of one line and one choice of cuts cost.
#[derive(Debug)]
pub(super) struct Tables {
    /// Positions of the cuts, first and last included.
    pub(super) cuts: Vec<u32>,
    /// Bytes of tensors that arrive.
    pub(super) incoming: Grid,
    /// Bytes of parameters that an earlier window loads too.
    pub(super) loading: Grid,
    /// Bytes of tensors that leave, each once.
    pub(super) outgoing: Grid,
    /// Bytes of nets that a device touches whatever is chosen; with those of each such device.
    fixed: Option<(Grid, Vec<(DeviceId, Grid)>)>,
    /// Bytes that stay through the step.
    pub(super) resident: Grid,
    /// The most bytes alive at once beside those.
    pub(super) alive: Grid,
    /// By kind of the graph, compute time before each cut; empty for kinds that are not there.
    load: Vec<Vec<u64>>,
    /// By device, units before each cut that may not be there; empty where all may.
    banned: Vec<Vec<u32>>,
}

impl Tables {
    /// Makes the tables. O(readers + cuts^2).
    pub(super) fn new(problem: &Problem<'_>, nets: &Nets, line: &Line, cuts: Vec<u32>) -> Self {
        let blocks = cuts.len() - 1;
        let mut block_of = vec![0u32; line.len()];
        for block in 0..blocks {
            block_of[cuts[block] as usize..cuts[block + 1] as usize].fill(block as u32);
        }
        let fixed_devices = fixed_devices(problem, nets);
        let fixed = (!fixed_devices.is_empty()).then(|| {
            let on = |&id: &DeviceId| (id, Grid::new(blocks));
            (Grid::new(blocks), fixed_devices.iter().map(on).collect())
        });
        let grid = || Grid::new(blocks);
        let mut tables = Self {
            incoming: grid(),
            loading: grid(),
            outgoing: grid(),
            fixed,
            resident: grid(),
            alive: grid(),
            load: Vec::new(),
            banned: Vec::new(),
            cuts,
        };
        let mut spanning = grid();
        tables.add_nets(problem, nets, line, &block_of, &mut spanning);
        tables.incoming.sum();
        tables.loading.sum();
        tables.outgoing.sum();
        tables.resident.sum();
        spanning.sum();
        if let Some((all, on)) = &mut tables.fixed {
            all.sum();
            on.iter_mut().for_each(|(_, grid)| grid.sum());
        }
        tables.add_resident(nets, line);
        tables.find_alive(line, &spanning);
        tables.load = loads(problem, line, &tables.cuts);
        tables.banned = banned(problem, line, &tables.cuts);
        tables
    }

    /// Number of blocks.
    pub(super) fn blocks(&self) -> usize {
        self.cuts.len() - 1
    }

    /// Compute time of a window on a kind of device.
    pub(super) fn load(&self, kind: usize, i: usize, j: usize) -> u64 {
        self.load[kind][j] - self.load[kind][i]
    }

    /// Number of units in a window that may not be on a device.
    pub(super) fn banned(&self, id: DeviceId, i: usize, j: usize) -> u32 {
        self.banned.get(id.index()).map_or(0, |before| before[j] - before[i])
    }

    /// Bytes that a window on a device exchanges with devices that are fixed beforehand: the
    /// grids to add and to take off, where there are any.
    pub(super) fn fixed(&self, id: DeviceId) -> (Option<&Grid>, Option<&Grid>) {
        let Some((all, on)) = &self.fixed else { return (None, None) };
        (Some(all), on.iter().find(|(other, _)| *other == id).map(|(_, grid)| grid))
    }

    fn add_nets(
        &mut self,
        problem: &Problem<'_>,
        nets: &Nets,
        line: &Line,
        block_of: &[u32],
        spanning: &mut Grid,
    ) {
        let mut touched: Vec<u32> = Vec::new();
        let mut homes: Vec<DeviceId> = Vec::new();
        for net in 0..nets.len() {
            touched.clear();
            homes.clear();
            if nets.home[net] != NONE {
                homes.push(DeviceId(nets.home[net]));
            }
            for &unit in nets.units.row(net) {
                match line.position[unit as usize] {
                    NONE => homes.extend(problem.fixed(unit as usize)),
                    position => touched.push(block_of[position as usize]),
                }
            }
            // Not sorted yet: the first unit is the maker's, unless the maker is fixed and so not in the
            // line.
            let maker = if nets.made[net] { touched.first().copied() } else { None };
            let maker = maker.filter(|_| line.position[nets.units.row(net)[0] as usize] != NONE);
            touched.sort_unstable();
            touched.dedup();
            self.add_net(nets, net, &touched, &mut homes, maker, spanning);
        }
    }

    fn add_net(
        &mut self,
        nets: &Nets,
        net: usize,
        touched: &[u32],
        homes: &mut [DeviceId],
        maker: Option<u32>,
        spanning: &mut Grid,
    ) {
        let (weight, kind) = (nets.weight[net], nets.kind[net]);
        let (Some(&first), Some(&last)) = (touched.first(), touched.last()) else { return };
        let (first, last) = (first as usize, last as usize);
        // A parameter of one unit is among that unit's own bytes (`Nets::resident`).
        let every = kind == NetKind::Param && nets.units.row(net).len() > 1;
        let mut begin = 0;
        // A window pays for a net at the first of the blocks in it that touch it: those windows begin after
        // the block before, and end after this one.
        for &block in touched {
            let block = block as usize;
            if every {
                self.resident.add(begin, block, block + 1, weight);
            }
            match &mut self.fixed {
                Some((all, on)) if !homes.is_empty() => {
                    all.add(begin, block, block + 1, weight);
                    for (_, grid) in on.iter_mut().filter(|(id, _)| homes.contains(id)) {
                        grid.add(begin, block, block + 1, weight);
                    }
                }
                _ if begin > 0 && kind == NetKind::Param => self.loading.add(begin, block, block + 1, weight),
                _ if begin > 0 => self.incoming.add(begin, block, block + 1, weight),
                _ => {}
            }
            // Windows between two readers neither make nor read the net, and do not hold it.
            if begin > 0 && kind == NetKind::Tensor && begin < block {
                spanning.corner(begin, 0, weight);
                spanning.corner(begin, block + 1, weight.wrapping_neg());
            }
            begin = block + 1;
        }
        if let Some(maker) = maker {
            let maker = maker as usize;
            // The maker's window sends the net, unless all that touch it are inside.
            self.outgoing.add(0, maker, maker + 1, weight);
            if homes.is_empty() {
                self.outgoing.add(0, first, last + 1, weight.wrapping_neg());
            }
        }
    }

    fn add_resident(&mut self, nets: &Nets, line: &Line) {
        let own = prefix(line, &self.cuts, |unit| nets.resident[unit as usize]);
        let side = self.resident.side;
        for i in 0..self.blocks() {
            for j in i + 1..=self.blocks() {
                self.resident.cells[i * side + j] += own[j] - own[i];
            }
        }
    }

    fn find_alive(&mut self, line: &Line, spanning: &Grid) {
        let width = |block: usize| -> u64 {
            let range = self.cuts[block] as usize..self.cuts[block + 1] as usize;
            line.width[range].iter().copied().max().unwrap_or(0)
        };
        let widths: Vec<u64> = (0..self.blocks()).map(width).collect();
        let side = self.alive.side;
        for i in 0..self.blocks() {
            let mut widest = 0;
            for j in i + 1..=self.blocks() {
                widest = widest.max(widths[j - 1]);
                self.alive.cells[i * side + j] = widest.saturating_sub(spanning.get(i, j));
            }
        }
    }
}

/// Devices that some net touches whatever is chosen.
fn fixed_devices(problem: &Problem<'_>, nets: &Nets) -> Vec<DeviceId> {
    let units = (0..problem.unit_count()).filter_map(|unit| problem.fixed(unit));
    let homes = nets.home.iter().filter(|&&home| home != NONE).map(|&home| DeviceId(home));
    let mut touched = vec![false; problem.topology.len()];
    units.chain(homes).for_each(|id| touched[id.index()] = true);
    problem.topology.ids().filter(|id| touched[id.index()]).collect()
}

/// Sums of a quantity of units before each cut.
fn prefix(line: &Line, cuts: &[u32], of: impl Fn(u32) -> u64) -> Vec<u64> {
    let mut sums = Vec::with_capacity(cuts.len());
    let mut sum = 0u64;
    let mut at = 0;
    for &cut in cuts {
        while at < cut as usize {
            sum += of(line.units[at]);
            at += 1;
        }
        sums.push(sum);
    }
    sums
}

fn loads(problem: &Problem<'_>, line: &Line, cuts: &[u32]) -> Vec<Vec<u64>> {
    let limit = (1u64 << 60) / (line.len() as u64 + 1);
    let mut loads = vec![Vec::new(); problem.graph.kinds.len()];
    for &id in &problem.devices {
        let of_kind = &mut loads[problem.kinds[id.index()]];
        if of_kind.is_empty() {
            *of_kind =
                prefix(line, cuts, |unit| problem.unit_time(unit as usize, id).unwrap_or(0).min(limit));
        }
    }
    loads
}

fn banned(problem: &Problem<'_>, line: &Line, cuts: &[u32]) -> Vec<Vec<u32>> {
    let all = |&unit: &u32| problem.devices.iter().all(|&id| problem.allowed(unit as usize).contains(id));
    if line.units.iter().all(all) {
        return Vec::new();
    }
    let count = |id: DeviceId| {
        prefix(line, cuts, |unit| u64::from(!problem.allowed(unit as usize).contains(id)))
            .into_iter()
            .map(|count| count as u32)
            .collect()
    };
    problem.topology.ids().map(count).collect()
}
