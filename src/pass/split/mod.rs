//! Splitting: one node becomes several, each of which computes a part of its results.
//!
//! A value is then held in slices that tile it, or as partial results that are folded (GSPMD: Xu et al.
//! 2021; Tofu: Wang, Huang, Li 2019). A reader that wants the slice that is held reads it as it is. Any other
//! is given exactly the elements that it asks for: they are cut where they were made, and put together where
//! they are read, once for each number of part, so that each element crosses to a device once. Partial
//! results are folded in the order of the parts, each slice of them with the part of that number
//! (reduce-scatter), and gathered where they are read (all-gather). Parameters and constants are cut into
//! parameters and constants: no device holds more of them than its parts read. So are inputs that are to be handed
//! over in slices ([`Graph::slice_input`]). A parameter that a step updates is held in the slices in which its new value
//! is made: each is a parameter of its own, whose place the slice of that number takes (of ZeRO, Rajbhandari et al. 2020,
//! the partition of parameters and optimizer state, along whichever axis).
//!
//! What is divided can be divided again, along another loop: a part is a node.
//!
//! How a node can be divided is derived in [`kernel::split`](crate::kernel::split).

mod held;
mod sources;
mod states;

use std::collections::BTreeMap;

use self::held::{Held, Holder, Pieces};
use self::sources::Sources;
use self::states::{Tiling, states};
use super::gradient::build::Build;
use super::rewrite::surviving_controls;
use crate::error::{Error, Result};
use crate::ir::{Graph, NodeId, Op, ValueId};
use crate::kernel::split::{Fold, Made, Part, Split, part};

pub(crate) use self::held::{JOINED_AT_ONCE, in_stages, scattered};
pub use self::sources::PartSource;
pub(crate) use self::sources::ranks;

/// How one node is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Which loop is divided, and what that makes.
    pub split: Split,
    /// Where parts begin along it, ascending from 0, and its extent.
    pub bounds: Vec<u64>,
    /// By part: the device that it must be on, where there is one.
    pub devices: Vec<Option<String>>,
    /// Whether the operations that one node of the source stands for need not go together: memory is so scarce that
    /// what all of them hold fits on no device. If so of one division, then of the whole graph.
    pub apart: bool,
}

impl Division {
    /// Number of parts.
    pub fn parts(&self) -> usize {
        self.bounds.len().saturating_sub(1)
    }
}

/// A graph some of whose nodes are divided.
#[derive(Clone, Debug)]
pub struct Divided {
    /// The graph. A part's source is named `name[2/4]`, counted from 0. Where operations need not go together, the
    /// third that `name` stands for is of a source `name#2`, its parts of `name#2[2/4]`, and what cuts and joins of
    /// others.
    pub graph: Graph,
    /// By source: a number for its place; nodes of different numbers share no kernel.
    pub places: Vec<u32>,
    /// The sources of parts.
    pub parts: Vec<PartSource>,
    /// What holds a part of a value of the graph that was divided.
    pub slices: BTreeMap<ValueId, SliceOf>,
}

/// A part of a value, or a part of what is folded to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceOf {
    /// The value: a parameter's name, or that of the source that makes it, and `:1` behind for its second
    /// result.
    pub of: String,
    /// By axis: the first element and the one behind the last.
    pub bounds: Vec<(u64, u64)>,
    /// The number of the partial result, and how many there are.
    pub partial: Option<(u32, u32)>,
}

/// Divides nodes of a graph whose dimensions are bound. `places` are those of the graph's sources, as in
/// [`group_placed`](super::group_placed). The graph computes the same: bit for bit, where no sum is divided.
///
/// O(nodes + edges x parts). Errors: a division that does not fit its node; a node that a control dependency
/// holds; both name the node.
pub fn split(graph: &Graph, divisions: &BTreeMap<NodeId, Division>, places: &[u32]) -> Result<Divided> {
    split_again(graph, divisions, places, Before { slices: &BTreeMap::new(), sources: 0 })
}

/// What earlier divisions of a graph have left in it.
#[derive(Clone, Copy, Debug)]
pub struct Before<'b> {
    /// Which values are parts of others.
    pub slices: &'b BTreeMap<ValueId, SliceOf>,
    /// How many sources they have added: names are numbered on from there.
    pub sources: usize,
}

/// As [`split`], of a graph that was divided before, which is heeded in what the result says of its own.
pub fn split_again(
    graph: &Graph,
    divisions: &BTreeMap<NodeId, Division>,
    places: &[u32],
    before: Before<'_>,
) -> Result<Divided> {
    let divided = up_to(graph, divisions, places, before, usize::MAX)?;
    divided.ok_or_else(|| Error::Internal("a graph of more nodes than there are numbers".to_owned()))
}

/// As [`split`]; none where more than `most` nodes would come of it, without making many more than those.
pub fn split_within(
    graph: &Graph,
    divisions: &BTreeMap<NodeId, Division>,
    places: &[u32],
    most: usize,
) -> Result<Option<Divided>> {
    up_to(graph, divisions, places, Before { slices: &BTreeMap::new(), sources: 0 }, most)
}

fn up_to(
    graph: &Graph,
    divisions: &BTreeMap<NodeId, Division>,
    places: &[u32],
    before: Before<'_>,
    most: usize,
) -> Result<Option<Divided>> {
    let apart = divisions.values().any(|division| division.apart);
    let helpers = apart.then_some(before.sources as u32);
    let mut splitter = Splitter {
        old: graph,
        holder: Holder::new(graph, Sources::new(graph, places, helpers), before.slices),
        is_read: is_read(graph),
        states: states(graph, divisions)?,
        nodes: vec![None; graph.node_count()],
        ordered: vec![false; graph.node_count()],
    };
    for &(before, after) in graph.controls() {
        (splitter.ordered[before.index()], splitter.ordered[after.index()]) = (true, true);
    }
    for node in graph.node_ids() {
        match divisions.get(&node) {
            Some(division) => splitter.divide(node, division)?,
            None => splitter.keep(node)?,
        }
        if splitter.holder.graph.node_count() > most {
            return Ok(None);
        }
    }
    let divided = splitter.finish()?;
    Ok(Some(divided).filter(|divided| divided.graph.node_count() <= most))
}

struct Splitter<'g> {
    old: &'g Graph,
    holder: Holder<'g>,
    /// By old node: the node that it is, where it is one.
    nodes: Vec<Option<NodeId>>,
    /// By old node: whether a control dependency holds it.
    ordered: Vec<bool>,
    /// By old value.
    is_read: Vec<bool>,
    /// By old value that is a parameter: the slices that take its place after each step.
    states: BTreeMap<ValueId, Tiling>,
}

/// By value: whether a node reads it.
fn is_read(graph: &Graph) -> Vec<bool> {
    let mut read = vec![false; graph.value_count()];
    for node in graph.node_ids() {
        graph.node(node).operands.iter().for_each(|value| read[value.index()] = true);
    }
    read
}

impl Splitter<'_> {
    fn divide(&mut self, node: NodeId, division: &Division) -> Result<()> {
        self.fits(node, division)?;
        let results: Vec<ValueId> = self.old.results(node).collect();
        let mut pieces: Vec<Vec<ValueId>> = vec![Vec::new(); results.len()];
        let mut starts: Vec<Vec<u64>> = vec![Vec::new(); results.len()];
        for number in 0..division.parts() {
            let (start, end) = (division.bounds[number], division.bounds[number + 1]);
            let part = part(self.old, node, &division.split, start, end)?;
            let first = self.part(node, division, number, &part)?;
            for (at, of) in pieces.iter_mut().enumerate() {
                let made = ValueId(first.0 + at as u32);
                of.push(match division.split.made[at] {
                    Made::Partial(Fold::Mean) => self.weighted(made, end - start, division.split.extent)?,
                    Made::Partial(_) | Made::Slice(_) => made,
                });
                starts[at].extend(part.results[at].map(|region| region.start));
            }
        }
        for (at, (values, mut bounds)) in pieces.into_iter().zip(starts).enumerate() {
            match division.split.made[at] {
                Made::Partial(fold) => self.holder.hold_partial(results[at], fold, values),
                Made::Slice(axis) => {
                    bounds.push(self.holder.extent(results[at], axis)?);
                    self.holder.hold_pieces(results[at], Pieces { axis, bounds, values });
                }
            }
        }
        Ok(())
    }

    /// The node of one part; its first result.
    fn part(&mut self, node: NodeId, division: &Division, number: usize, part: &Part) -> Result<ValueId> {
        let old = self.old.node(node);
        let device = division.devices.get(number).and_then(Option::as_deref);
        let reader = self.holder.part_reader(node, number, division.parts(), device);
        let mut operands = Vec::with_capacity(old.operands.len());
        for (&operand, region) in old.operands.iter().zip(&part.operands) {
            operands.push(match region {
                // A part of a concatenation does not reach all operands.
                Some(region) if region.size == 0 && matches!(part.op, Op::Concat { .. }) => continue,
                Some(region) => self.holder.region(operand, *region, reader)?,
                None => self.holder.whole(operand, reader)?,
            });
        }
        let made = self.holder.graph.push(part.op.clone(), &operands, reader.source)?;
        Ok(self.holder.graph.node(made).first_result)
    }

    /// A mean of some elements, by their share of all.
    fn weighted(&mut self, mean: ValueId, part: u64, all: u64) -> Result<ValueId> {
        let graph = &mut self.holder.graph;
        let (source, dtype) = (graph.maker(mean).source, graph.ty(mean).dtype);
        let mut build = Build { graph, source };
        let share = build.number(dtype, part as f64 / all as f64)?;
        build.mul(mean, share)
    }

    fn fits(&self, node: NodeId, division: &Division) -> Result<()> {
        let name = &self.old.source(self.old.node(node).source).name;
        let ascend = division.bounds.windows(2).all(|pair| pair[0] < pair[1]);
        let ends = (division.bounds.first(), division.bounds.last());
        if !ascend || division.parts() < 2 || ends != (Some(&0), Some(&division.split.extent)) {
            let message = format!("parts {:?} do not tile {}", division.bounds, division.split.extent);
            return Err(Error::model(name.clone(), message));
        }
        if self.ordered[node.index()] {
            let message = "a node that is ordered by a control dependency cannot be split";
            return Err(Error::model(name.clone(), message));
        }
        Ok(())
    }

    fn keep(&mut self, node: NodeId) -> Result<()> {
        let old = self.old.node(node);
        if let Some(tiling) = self.states.get(&old.first_result) {
            return self.holder.hold_state(old.first_result, tiling);
        }
        if matches!(old.op, Op::Param(_) | Op::Constant(_)) {
            self.holder.hold(old.first_result, Held::Leaf);
            return Ok(());
        }
        // One that nothing reads is still an input.
        let is_input = matches!(old.op, Op::Input);
        if is_input && self.is_read[old.first_result.index()] && self.holder.is_boxed(old.first_result)? {
            self.holder.hold(old.first_result, Held::Leaf);
            return Ok(());
        }
        let reader = self.holder.whole_reader(node);
        let first = match &old.op {
            Op::Input => self.holder.add_input(old.first_result)?,
            op => {
                let whole = |&value: &ValueId| self.holder.whole(value, reader);
                let operands: Vec<ValueId> = old.operands.iter().map(whole).collect::<Result<_>>()?;
                let types = self.old.results(node).map(|value| self.old.ty(value).clone()).collect();
                let made = self.holder.graph.append(op.clone(), &operands, types, reader.source);
                self.holder.graph.node(made).first_result
            }
        };
        self.nodes[node.index()] = Some(self.holder.graph.value(first).node);
        for (at, result) in self.old.results(node).enumerate() {
            self.holder.hold(result, Held::Whole(ValueId(first.0 + at as u32)));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Divided> {
        for ((name, value), updated) in self.old.outputs().iter().zip(self.old.updates()) {
            let own = updated.map(|id| self.old.node(self.old.param(id).node).first_result);
            if let Some(param) = own.filter(|param| self.states.contains_key(param)) {
                self.holder.update_slices(param, *value)?;
                continue;
            }
            let reader = self.holder.whole_reader(self.old.value(*value).node);
            let whole = self.holder.whole(*value, reader)?;
            match own {
                Some(param) => self.holder.update_whole(param, whole)?,
                None => self.holder.graph.add_output(name.clone(), whole),
            }
        }
        for (before, after) in surviving_controls(self.old.controls(), &self.nodes) {
            self.holder.graph.add_control(before, after)?;
        }
        self.holder.finish()
    }
}
