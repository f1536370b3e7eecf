//! Divisions chosen front to back, and what each comes to: bytes of a part, bytes that move.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::alike::Alike;
use super::layout::{Layout, aligned_unit, bytes, own_bytes, region_bytes, scaled, share};
use super::rule::{by_share, even_by, parts};
use super::side_by_side::SideBySide;
use crate::error::Result;
use crate::ir::{Family, Graph, NodeId, Op, Type, ValueId};
use crate::kernel::split::{Made, Part, Region, Split, part, splits};
use crate::kernel::workspace::workspace;
use crate::pass::{Division, scattered};
use crate::units::Bytes;

/// Divisions of the nodes that were visited so far, in the arena's order.
pub(super) struct Choices<'g> {
    pub(super) graph: &'g Graph,
    divisions: BTreeMap<NodeId, Division>,
    /// Parts of all of them.
    parts: usize,
    /// By value; of what is not divided, whole.
    pub(super) layouts: Vec<Option<Layout>>,
    /// By value: an input that is handed over in slices, as parameters are.
    pub(super) boxed: Vec<bool>,
    /// By value: a parameter that the step updates and that may be held in slices.
    is_state: Vec<bool>,
    alike: Alike,
    /// By value: an output of the graph, which is put together on one device.
    pub(super) is_output: Vec<bool>,
    /// By node: a leaf, or held by a control dependency.
    fixed: Vec<bool>,
    /// By source: how many parts its nodes have, where some are divided. All of one source have as many, unless they
    /// need not go together.
    parts_of: Vec<Option<usize>>,
    pub(super) apart: bool,
    /// How much workspace an operation has.
    pub(super) workspace: Workspace,
    /// Devices that compute one part each of whatever is divided.
    side_by_side: Option<Rc<SideBySide>>,
}

/// Bytes of workspace of an operation on operands and with results of these types.
pub(super) type Workspace = fn(&Op, &[&Type], &[&Type]) -> Bytes;

/// What parts may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes of one part: what it reads and makes.
    pub(super) bytes: u64,
    /// What takes no more stays whole, where nothing that it reads is in slices.
    pub(super) whole: u64,
    /// Parts of one node.
    pub(super) parts: u64,
    /// No sum is divided.
    pub(super) exact: bool,
    /// What is still too large may be divided again, along another loop.
    pub(super) may_go_on: bool,
}

/// What a way to compute one node comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    /// Bytes beyond what a part may take.
    over: u64,
    /// Bytes that reach a part and were not made by the part of its number.
    moved: u64,
    /// Number of parts.
    parts: u64,
}

impl<'g> Choices<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        let mut fixed: Vec<bool> = graph.node_ids().map(|id| graph.node(id).op.is_leaf()).collect();
        for &(before, after) in graph.controls() {
            (fixed[before.index()], fixed[after.index()]) = (true, true);
        }
        let none = vec![false; graph.value_count()];
        let (mut boxed, mut is_state, mut is_output) = (none.clone(), none.clone(), none);
        for param in graph.params().iter().filter(|param| param.update.is_some() && param.statistic.is_none())
        {
            is_state[graph.node(param.node).first_result.index()] = true;
        }
        for (name, value) in graph.inputs() {
            boxed[value.index()] = graph.input_box(name).is_some();
        }
        for ((_, value), updated) in graph.outputs().iter().zip(graph.updates()) {
            // What takes the place of a parameter stays in slices.
            is_output[value.index()] |= updated.is_none_or(|id| graph.param(id).statistic.is_some());
        }
        Self {
            graph,
            divisions: BTreeMap::new(),
            parts: 0,
            layouts: vec![None; graph.value_count()],
            boxed,
            alike: Alike::new(graph, &is_state),
            is_state,
            is_output,
            fixed,
            parts_of: vec![None; graph.sources().len()],
            apart: false,
            workspace,
            side_by_side: None,
        }
    }

    /// As [`Self::new`], where what one source stands for need not go together.
    pub(super) fn apart(graph: &'g Graph) -> Self {
        Self { apart: true, ..Self::new(graph) }
    }

    /// With what operations have of workspace.
    pub(super) fn with_workspace(self, workspace: Workspace) -> Self {
        Self { workspace, ..self }
    }

    /// With devices that compute one part each.
    pub(super) fn on(self, devices: Rc<SideBySide>) -> Self {
        Self { side_by_side: Some(devices), ..self }
    }

    /// Parts of all nodes that are divided. O(1).
    pub(super) fn parts(&self) -> usize {
        self.parts
    }

    pub(super) fn finish(self) -> BTreeMap<NodeId, Division> {
        self.divisions
    }

    /// Divides a node.
    ///
    /// Errors: none but internal ones.
    pub(super) fn divide(&mut self, node: NodeId, division: Division) -> Result<()> {
        self.hold_states(node, &division)?;
        self.parts_of[self.graph.node(node).source.index()] = Some(division.parts());
        for (at, result) in self.graph.results(node).enumerate() {
            self.layouts[result.index()] = match division.split.made[at] {
                Made::Partial(_) => scattered(self.graph.ty(result), division.parts() as u64)
                    .map(|(axis, bounds)| Layout { axis, bounds }),
                Made::Slice(axis) => {
                    Some(Layout { axis, bounds: self.result_bounds(result, axis, &division) })
                }
            };
            if let Some(layout) = self.layouts[result.index()].clone() {
                self.hold_alike(result, &layout);
            }
        }
        self.parts += division.parts();
        let replaced = self.divisions.insert(node, division);
        self.parts -= replaced.map_or(0, |replaced| replaced.parts());
        Ok(())
    }

    /// A parameter that the step updates is held as it, or what is like it, is first read or made in slices; whoever
    /// reads it otherwise is sent the rest.
    fn hold_states(&mut self, node: NodeId, division: &Division) -> Result<()> {
        let operands = self.graph.node(node).operands.iter().copied().enumerate();
        let open = operands.filter(|&(_, value)| self.is_open(value));
        for (at, value) in open.collect::<Vec<_>>() {
            let mut regions = Vec::with_capacity(division.parts());
            for pair in division.bounds.windows(2) {
                regions.push(part(self.graph, node, &division.split, pair[0], pair[1])?.operands[at]);
            }
            if let Some(layout) = Layout::of_regions(self.graph.ty(value), regions.into_iter()) {
                self.hold_alike(value, &layout);
            }
        }
        Ok(())
    }

    /// Holds the parameters that are like a value as the value is held.
    fn hold_alike(&mut self, value: ValueId, layout: &Layout) {
        for &state in self.alike.states(value) {
            self.layouts[state.index()].get_or_insert_with(|| layout.clone());
        }
    }

    /// Whether a value is a parameter that the step updates, and no slices of it are chosen yet.
    fn is_open(&self, value: ValueId) -> bool {
        self.is_state[value.index()] && self.layouts[value.index()].is_none()
    }

    /// Divides an elementwise node or one that moves elements about as all that it reads is divided, if it
    /// is, so that nothing of that moves.
    ///
    /// Errors: none but internal ones.
    pub(super) fn follow(&mut self, node: NodeId) -> Result<()> {
        match self.following(node)? {
            Some(division) => self.divide(node, division),
            None => Ok(()),
        }
    }

    /// How a node is divided so that nothing of what it reads in slices moves, where there is such a way.
    pub(super) fn following(&self, node: NodeId) -> Result<Option<Division>> {
        if self.fixed[node.index()] || !self.reads_slices(node) {
            return Ok(None);
        }
        for split in splits(self.graph, node)? {
            if split.is_partial() {
                continue;
            }
            for bounds in self.bounds_of_operands(node, &split)? {
                let devices = self.devices_of_operands(node);
                let division = Division { split: split.clone(), bounds, devices, apart: self.apart };
                if self.may_have(node, division.parts()) && self.moved(node, &division)? == 0 {
                    return Ok(Some(division));
                }
            }
        }
        Ok(None)
    }

    /// Whether a node is neither a leaf nor put somewhere by the caller.
    pub(super) fn may_divide(&self, node: NodeId) -> bool {
        let source = self.graph.source(self.graph.node(node).source);
        !self.fixed[node.index()] && source.pin.is_none() && source.colocate.is_none()
    }

    /// Divides a node at the least cost, in the order of [`Cost`]; where one part costs least, not at all.
    ///
    /// Errors: none but internal ones.
    pub(super) fn cheapest(&mut self, node: NodeId, limits: Limits) -> Result<()> {
        if !self.may_divide(node) {
            return Ok(());
        }
        let whole = self.footprint(node)?;
        let mut best: Option<(Cost, Option<Division>)> = None;
        let limit = limits.bytes;
        let alone = Cost { over: whole.saturating_sub(limit), moved: self.gathered(node)?, parts: 1 };
        // Nothing is better than what is small enough and moves nothing.
        if whole <= limits.whole && alone.moved == 0 {
            return Ok(());
        }
        let mut take = |cost: Cost, division: Option<Division>| {
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, division));
            }
        };
        take(alone, None);
        for split in splits(self.graph, node)? {
            if limits.exact && split.is_partial() {
                continue;
            }
            for bounds in self.candidates(node, &split, whole, limits)? {
                if !self.may_have(node, bounds.len() - 1) {
                    continue;
                }
                let devices = self.side_by_side.as_ref().map_or_else(Vec::new, |own| own.devices());
                let division = Division { split: split.clone(), bounds, devices, apart: self.apart };
                let over = self.largest_part(node, &division)?.saturating_sub(limit);
                let cost = Cost { over, moved: self.moved(node, &division)?, parts: division.parts() as u64 };
                take(cost, Some(division));
            }
        }
        let Some((cost, mut chosen)) = best else { return Ok(()) };
        if cost.over > 0 && limits.may_go_on && self.side_by_side.is_none() {
            chosen = self.first_of_two(node, limits)?.or(chosen);
        }
        match chosen {
            Some(division) => self.divide(node, division),
            None => Ok(()),
        }
    }

    /// The first of two divisions along two loops that together make parts small enough, of as few parts as there can be;
    /// the second is for the next round. O(loops^2 x counts^2 x operands).
    fn first_of_two(&self, node: NodeId, limits: Limits) -> Result<Option<Division>> {
        let mut ways = splits(self.graph, node)?;
        ways.retain(|split| !(limits.exact && split.is_partial()));
        let mut cuts = Vec::new();
        for split in &ways {
            for number in COUNTS.into_iter().take_while(|&number| number <= parts(split).min(limits.parts)) {
                let bounds = even_by(split, number, aligned_unit(self.graph, node, split)?);
                if !self.may_have(node, bounds.len() - 1) {
                    continue;
                }
                let division =
                    Division { split: split.clone(), bounds, devices: Vec::new(), apart: self.apart };
                let left = self.left_of_each(node, &division)?;
                cuts.push((division, left));
            }
        }
        let mut best: Option<(usize, &Division)> = None;
        for (first, left) in &cuts {
            for (second, then) in cuts.iter().filter(|(second, _)| second.split.over != first.split.over) {
                let number = first.parts() * second.parts();
                let is_fewer = best.is_none_or(|(least, _)| number < least);
                if is_fewer && self.bytes_left(node, left, then)? <= limits.bytes {
                    best = Some((number, first));
                }
            }
        }
        Ok(best.map(|(_, division)| division.clone()))
    }

    /// Of each operand and result: which share the longest part reads or makes, of [`ALL`].
    fn left_of_each(&self, node: NodeId, division: &Division) -> Result<Vec<u64>> {
        let longest = division.bounds.windows(2).max_by_key(|pair| pair[1] - pair[0]);
        let Some(pair) = longest else { return Ok(Vec::new()) };
        let part = part(self.graph, node, &division.split, pair[0], pair[1])?;
        let operands = self.graph.node(node).operands.iter().copied().zip(part.operands);
        let results = self.graph.results(node).zip(part.results);
        let of_one = |(value, region): (ValueId, Option<Region>)| {
            let ty = self.graph.ty(value);
            Ok(share(ALL, region_bytes(ty, region)?, bytes(ty)?).saturating_add(1).min(ALL))
        };
        operands.chain(results).map(of_one).collect()
    }

    /// About the bytes of a part of a part.
    fn bytes_left(&self, node: NodeId, left: &[u64], then: &[u64]) -> Result<u64> {
        let values = self.graph.node(node).operands.iter().copied().chain(self.graph.results(node));
        total(values.zip(left.iter().zip(then)).map(|(value, (&left, &then))| {
            let whole = bytes(self.graph.ty(value))?;
            Ok(share(share(whole, left, ALL), then, ALL).next_multiple_of(crate::units::ALIGNMENT))
        }))
    }

    /// Whether a node may be divided into so many parts beside the others of its source.
    pub(super) fn may_have(&self, node: NodeId, parts: usize) -> bool {
        self.apart || self.parts_of[self.graph.node(node).source.index()].is_none_or(|others| others == parts)
    }

    pub(super) fn reads_slices(&self, node: NodeId) -> bool {
        let operands = &self.graph.node(node).operands;
        operands.iter().any(|value| self.layouts[value.index()].is_some())
    }

    /// Whether a node works element by element, or moves elements about, and reads nothing but slices and single numbers.
    pub(super) fn reads_slices_alone(&self, node: NodeId) -> bool {
        let data = self.graph.node(node);
        let follows = matches!(data.op.family(), Family::Elementwise(_) | Family::Layout(_));
        let is_slice = |value: ValueId| {
            self.layouts[value.index()].is_some() || self.graph.ty(value).elements() == Some(1)
        };
        follows && data.operands.iter().all(|&value| is_slice(value))
    }

    /// Bounds worth trying: those of what is read; the fewest parts that may be small enough, and twice
    /// as many until one is.
    fn candidates(&self, node: NodeId, split: &Split, whole: u64, limits: Limits) -> Result<Vec<Vec<u64>>> {
        if let Some(devices) = &self.side_by_side {
            return self.side_by_side(node, split, devices);
        }
        let mut found = self.bounds_of_operands(node, split)?;
        let most = parts(split).min(limits.parts);
        let others = self.parts_of[self.graph.node(node).source.index()].map(|parts| parts as u64);
        let others = others.filter(|_| !self.apart);
        // With fewer parts, one would be too large even without what it shares with others.
        let fewest = whole.div_ceil(limits.bytes.max(1)).clamp(2, most.max(2));
        let mut number = others.unwrap_or(fewest);
        while number <= most {
            // What begins at a multiple of the alignment wastes nothing where it is put together.
            let mut is_last = others.is_some();
            for unit in [aligned_unit(self.graph, node, split)?, split.unit.max(1)] {
                let bounds = even_by(split, number, unit);
                let division =
                    Division { split: split.clone(), bounds, devices: Vec::new(), apart: self.apart };
                is_last |= self.largest_part(node, &division)? <= limits.bytes;
                found.push(division.bounds);
            }
            if is_last || found.len() > 2 * MOST_CANDIDATES {
                break;
            }
            number = match number * 2 > most && number < most {
                true => most,
                false => number * 2,
            };
        }
        found.dedup();
        Ok(found)
    }

    /// Bounds of one part for each device: as operands are held, and by the devices' shares.
    fn side_by_side(&self, node: NodeId, split: &Split, devices: &SideBySide) -> Result<Vec<Vec<u64>>> {
        let mut found = self.bounds_of_operands(node, split)?;
        for unit in [aligned_unit(self.graph, node, split)?, split.unit.max(1)] {
            found.push(by_share(split, unit, devices.shares()));
        }
        let is_sound = |bounds: &Vec<u64>| {
            let long = |pair: &[u64]| pair[1] > pair[0] && pair[1] - pair[0] >= split.least;
            bounds.len() == devices.len() + 1 && bounds.windows(2).all(long)
        };
        found.retain(is_sound);
        found.dedup();
        Ok(found)
    }

    /// Bounds by which an operand that is held in slices is read as it is.
    fn bounds_of_operands(&self, node: NodeId, split: &Split) -> Result<Vec<Vec<u64>>> {
        let mut found = Vec::new();
        for (at, value) in self.graph.node(node).operands.iter().enumerate() {
            let Some(Layout { axis, bounds }) = &self.layouts[value.index()] else { continue };
            // Where an operand's slice begins is taken to follow the loop in proportion.
            let whole = part(self.graph, node, split, 0, split.extent)?;
            let same_axis = |region: &Region| region.axis == *axis;
            if whole.operands[at].as_ref().is_none_or(same_axis)
                && let Some(own) = scaled(bounds, split)
                && !found.contains(&own)
            {
                found.push(own);
            }
        }
        Ok(found)
    }

    fn devices_of_operands(&self, node: NodeId) -> Vec<Option<String>> {
        let operands = self.graph.node(node).operands.iter();
        let mut divisions = operands.filter_map(|&value| self.divisions.get(&self.graph.value(value).node));
        divisions.next().map_or_else(Vec::new, |division| division.devices.clone())
    }

    pub(super) fn result_bounds(&self, result: ValueId, axis: u32, division: &Division) -> Vec<u64> {
        let extent = division.split.extent;
        let size = self.graph.ty(result).shape.sizes()[axis as usize].known().unwrap_or(0).unsigned_abs();
        division.bounds.iter().map(|&bound| share(size, bound, extent)).collect()
    }

    /// Bytes that reach an undivided node: all but the first part of what is held in slices.
    fn gathered(&self, node: NodeId) -> Result<u64> {
        let mut sum = 0u64;
        for &value in &self.graph.node(node).operands {
            if let Some(Layout { bounds, .. }) = &self.layouts[value.index()] {
                let all = bytes(self.graph.ty(value))?;
                let own = share(all, bounds[1] - bounds[0], bounds.last().copied().unwrap_or(1));
                sum = sum.saturating_add(all - own);
            }
        }
        Ok(sum)
    }

    /// Bytes that reach a part and were not made by the part of its number. Parameters and constants are
    /// where they are read.
    fn moved(&self, node: NodeId, division: &Division) -> Result<u64> {
        let mut sum = 0;
        for (number, pair) in division.bounds.windows(2).enumerate() {
            let part = part(self.graph, node, &division.split, pair[0], pair[1])?;
            sum = self.moved_to(node, number, &part)?.saturating_add(sum);
        }
        let results = self.graph.results(node).zip(&division.split.made);
        let partial = results.filter(|(_, made)| made.axis().is_none());
        // All but what each part keeps of its own is sent to be folded.
        let folded = total(partial.map(|(value, _)| bytes(self.graph.ty(value))))?;
        Ok(folded.saturating_mul(division.parts() as u64 - 1).saturating_add(sum))
    }

    fn moved_to(&self, node: NodeId, number: usize, part: &Part) -> Result<u64> {
        let mut sum = 0;
        for (&value, &region) in self.graph.node(node).operands.iter().zip(&part.operands) {
            if self.is_stored(value) {
                continue;
            }
            let asked = region_bytes(self.graph.ty(value), region)?;
            let own = match &self.layouts[value.index()] {
                // What is whole is where the first part is.
                None if number == 0 => asked,
                None => 0,
                Some(Layout { axis, bounds }) => own_bytes(asked, region, *axis, bounds, number),
            };
            sum = asked.saturating_sub(own).saturating_add(sum);
        }
        Ok(sum)
    }

    /// What is cut before it is on a device: a parameter or constant, or an input that is handed over in slices. Of a
    /// parameter that the step updates there is one copy, in the slices that were chosen.
    pub(super) fn is_stored(&self, value: ValueId) -> bool {
        let is_leaf = matches!(self.graph.maker(value).op, Op::Param(_) | Op::Constant(_));
        (is_leaf && self.layouts[value.index()].is_none()) || self.boxed[value.index()]
    }
}

/// The sum, or the most that there is.
pub(super) fn total(mut bytes: impl Iterator<Item = Result<u64>>) -> Result<u64> {
    bytes.try_fold(0, |sum: u64, bytes| Ok(sum.saturating_add(bytes?)))
}

/// Most numbers of parts that are tried for one way to split.
const MOST_CANDIDATES: usize = 8;

/// Numbers of parts along each of two loops.
const COUNTS: [u64; 9] = [2, 3, 4, 6, 8, 12, 16, 32, 64];

/// What shares of a value add up to.
const ALL: u64 = 1 << 20;
