//! What lies between two ideals, for the device that takes it: sums are differences, and only what
//! is still open at the smaller ideal is looked at one by one.

use fixedbitset::FixedBitSet;

use super::lattice::Lattice;
use crate::csr::Csr;
use crate::place::context::Context;
use crate::place::nets::NetKind;
use crate::topology::DeviceId;

/// A net that some units of an ideal touch and others outside it.
struct Net {
    weight: u64,
    kind: NetKind,
    /// The block that makes it, where one does.
    maker: Option<u32>,
    /// The blocks that touch it.
    blocks: FixedBitSet,
    /// How many they are.
    count: usize,
}

/// A net at an ideal some blocks of which touch it, and others outside.
#[derive(Clone, Copy)]
struct OpenNet {
    net: u32,
    /// Blocks of the ideal that touch it.
    held: u32,
}

/// What a device takes between two ideals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Bytes that stay on the device, parameters included.
    pub(super) resident: u64,
    /// Bytes of tensors that are made elsewhere.
    pub(super) incoming: u64,
    /// Bytes of parameters that are held before, too.
    pub(super) loading: u64,
    /// Bytes of tensors made there that are read elsewhere.
    pub(super) outgoing: u64,
}

/// Sums by ideal.
pub(super) struct Costs {
    kinds: usize,
    /// By ideal and kind.
    time: Vec<u64>,
    /// By ideal: bytes of units' own, and of parameters that are touched.
    resident: Vec<u64>,
    /// By ideal and device: units that may not be on the device.
    banned: Vec<u32>,
    devices: usize,
    nets: Vec<Net>,
    /// By ideal: the nets that are open there, ascending.
    open: Csr<OpenNet>,
}

impl Costs {
    /// O(ideals x (units + nets)).
    pub(super) fn new(context: &Context<'_, '_>, lattice: &Lattice) -> Self {
        let problem = context.problem;
        let mut kinds = problem.kinds.clone();
        kinds.sort_unstable();
        kinds.dedup();
        let mut costs = Self {
            kinds: kinds.last().map_or(0, |&kind| kind + 1),
            time: Vec::new(),
            resident: Vec::new(),
            banned: Vec::new(),
            devices: problem.topology.len(),
            nets: nets(context, lattice),
            open: Csr::new(),
        };
        let of_block: Vec<Block> =
            lattice.blocks.iter().map(|units| Block::new(context, units, &kinds, costs.kinds)).collect();
        for ideal in 0..lattice.len() {
            costs.add(lattice.ideal(ideal), &of_block);
        }
        costs
    }

    fn add(&mut self, ideal: &FixedBitSet, of_block: &[Block]) {
        let mut sum = Block { time: vec![0; self.kinds], resident: 0, banned: vec![0; self.devices] };
        ideal.ones().for_each(|number| sum.add(&of_block[number]));
        for (number, net) in self.nets.iter().enumerate() {
            let held = net.blocks.intersection_count(ideal);
            if held > 0 && net.kind == NetKind::Param {
                sum.resident = sum.resident.saturating_add(net.weight);
            }
            if held > 0 && held < net.count {
                self.open.push(OpenNet { net: number as u32, held: held as u32 });
            }
        }
        self.open.end_row();
        self.time.extend(sum.time);
        self.resident.push(sum.resident);
        self.banned.extend(sum.banned);
    }

    /// Time between two ideals on a kind of device.
    pub(super) fn time(&self, kind: usize, inner: usize, outer: usize) -> u64 {
        self.time[outer * self.kinds + kind].saturating_sub(self.time[inner * self.kinds + kind])
    }

    /// True where all between two ideals may be on a device.
    pub(super) fn may_be_on(&self, id: DeviceId, inner: usize, outer: usize) -> bool {
        let at = |ideal: usize| self.banned[ideal * self.devices + id.index()];
        at(inner) == at(outer)
    }

    /// The least that a device holds between two ideals.
    pub(super) fn least_held(&self, inner: usize, outer: usize) -> u64 {
        self.resident[outer].saturating_sub(self.resident[inner])
    }

    /// What a device takes between two ideals, of which the outer one holds the inner one. Gradients come from what is
    /// after, and go to what is before. O(open nets).
    pub(super) fn share(&self, lattice: &Lattice, inner: usize, outer: usize) -> Share {
        let mut share = Share { resident: self.least_held(inner, outer), ..Share::default() };
        let (small, large) = (lattice.ideal(inner), lattice.ideal(outer));
        let is_between = |block: u32| large.contains(block as usize) && !small.contains(block as usize);
        let mut add = |number: u32| {
            let net = &self.nets[number as usize];
            let to = match net.maker {
                Some(block) if is_between(block) => &mut share.outgoing,
                _ => &mut share.incoming,
            };
            *to = to.saturating_add(net.weight);
        };
        let (mut loading, mut outer_nets) = (0u64, self.open.row(outer).iter().peekable());
        for open in self.open.row(inner) {
            // What is touched here for the first time, and after.
            while let Some(first) = outer_nets.next_if(|other| other.net < open.net) {
                if self.nets[first.net as usize].maker.is_some() {
                    add(first.net);
                }
            }
            // What is not open there any more is complete.
            let grows =
                outer_nets.next_if(|other| other.net == open.net).is_none_or(|at| at.held > open.held);
            let net = &self.nets[open.net as usize];
            if grows && net.kind == NetKind::Param {
                loading = loading.saturating_add(net.weight);
            } else if grows {
                add(open.net);
            }
        }
        for first in outer_nets.filter(|first| self.nets[first.net as usize].maker.is_some()) {
            add(first.net);
        }
        share.resident = share.resident.saturating_add(loading);
        share.loading = loading;
        share
    }
}

/// What one block takes.
struct Block {
    time: Vec<u64>,
    resident: u64,
    banned: Vec<u32>,
}

impl Block {
    fn new(context: &Context<'_, '_>, units: &[u32], kinds: &[usize], width: usize) -> Self {
        let problem = context.problem;
        let mut block = Self { time: vec![0; width], resident: 0, banned: vec![0; problem.topology.len()] };
        let of_kind = |kind: usize| problem.topology.ids().find(|id| problem.kinds[id.index()] == kind);
        for &unit in units {
            let unit = unit as usize;
            for &kind in kinds {
                let time = of_kind(kind).and_then(|id| problem.unit_time(unit, id));
                block.time[kind] = block.time[kind].saturating_add(time.unwrap_or(0));
            }
            block.resident = block.resident.saturating_add(context.nets.resident[unit]);
            // A unit without a choice stays where it is, whoever takes its block.
            if problem.fixed(unit).is_none() {
                for id in problem.topology.ids().filter(|&id| !problem.allowed(unit).contains(id)) {
                    block.banned[id.index()] += 1;
                }
            }
        }
        block
    }

    fn add(&mut self, other: &Self) {
        self.time.iter_mut().zip(&other.time).for_each(|(sum, &time)| *sum = sum.saturating_add(time));
        self.banned.iter_mut().zip(&other.banned).for_each(|(sum, &banned)| *sum += banned);
        self.resident = self.resident.saturating_add(other.resident);
    }
}

/// The nets that several blocks touch.
fn nets(context: &Context<'_, '_>, lattice: &Lattice) -> Vec<Net> {
    let nets = context.nets;
    let net = |number: usize| {
        let units = nets.units.row(number);
        let mut blocks = FixedBitSet::with_capacity(lattice.blocks.len());
        units.iter().for_each(|&unit| blocks.insert(lattice.block_of[unit as usize] as usize));
        let maker = units.first().filter(|_| nets.made[number]).map(|&unit| lattice.block_of[unit as usize]);
        let count = blocks.count_ones(..);
        Net { weight: nets.weight[number], kind: nets.kind[number], maker, blocks, count }
    };
    (0..nets.len()).map(net).collect()
}
