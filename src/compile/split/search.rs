//! Which nodes a team of devices divides, and how, so that a network takes the least time: a beam search
//! over the layouts of values, front to back.
//!
//! A state is where each value is that is still to be read, and the time until now: what the slowest part of
//! each node takes, and what copies take that bring parts what they read (as Alpa's operators within one stage:
//! Zheng et al. 2022; as GSPMD's reshards: Xu et al. 2021). States that hold the same are one. The time of a way
//! is an estimate by which ways are compared; what a plan takes, the simulator says.

use std::collections::BTreeMap;

use super::beam::Beam;
use super::kinds::kinds;
use super::team::Team;
use super::units::Units;
use crate::control::Control;
use crate::cost::NodeWork;
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, ValueId};
use crate::kernel::split::{Loop, Split, splits};
use crate::pass::Division;
use crate::units::Nanos;

/// A graph, and what its nodes take.
#[derive(Clone)]
pub(super) struct Work<'g> {
    pub(super) graph: &'g Graph,
    /// By node.
    pub(super) works: Vec<NodeWork>,
    /// By node: the loops that can be divided.
    pub(super) splits: Vec<Vec<Split>>,
    pub(super) units: Units,
    /// By node: a number that nodes share whose ways are the same.
    pub(super) kinds: Vec<u32>,
    /// By value: when it is read last.
    pub(super) last: Vec<Last>,
    /// By value: a parameter that the step updates.
    pub(super) is_state: Vec<bool>,
}

/// When a value is read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// Never.
    Unread,
    /// By this node.
    By(NodeId),
    /// As an output of the network, whole on the first device.
    AtEnd,
}

/// A way to split, and the time that it is expected to take.
pub(super) struct Found {
    pub(super) time: Nanos,
    /// By device of the team: bytes of the parameters that are read there, each reader's counted.
    pub(super) params: Vec<u64>,
    pub(super) divisions: BTreeMap<NodeId, Division>,
    /// By node: bytes of parameters on the device that reads most for it.
    pub(super) weights: BTreeMap<NodeId, u64>,
}

/// A parameter or constant: where it is read.
pub(super) fn is_leaf(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.maker(value).op, Op::Param(_) | Op::Constant(_))
}

impl<'g> Work<'g> {
    /// O(nodes + edges). Errors: none but internal ones.
    pub(super) fn new(graph: &'g Graph, works: Vec<NodeWork>, exact: bool) -> Result<Self> {
        let mut fixed = vec![false; graph.node_count()];
        for &(before, after) in graph.controls() {
            (fixed[before.index()], fixed[after.index()]) = (true, true);
        }
        let mut found = Vec::with_capacity(graph.node_count());
        for node in graph.node_ids() {
            let source = graph.source(graph.node(node).source);
            // What the caller has put somewhere stays whole.
            let is_whole = fixed[node.index()] || source.pin.is_some() || source.colocate.is_some();
            let mut ways = if is_whole { Vec::new() } else { splits(graph, node)? };
            ways.retain(|way| !(exact && way.is_partial()));
            found.push(ways);
        }
        let mut last = vec![Last::Unread; graph.value_count()];
        for node in graph.node_ids() {
            for value in &graph.node(node).operands {
                last[value.index()] = Last::By(node);
            }
        }
        let mut is_state = vec![false; graph.value_count()];
        for ((_, value), updated) in graph.outputs().iter().zip(graph.updates()) {
            match updated {
                // It stays where it is made, and is the parameter of the next step.
                Some(id) if graph.param(id).statistic.is_none() => {
                    is_state[graph.node(graph.param(id).node).first_result.index()] = true;
                }
                Some(_) | None => last[value.index()] = Last::AtEnd,
            }
        }
        let units = Units::new(graph, &found)?;
        let mut all = Self { graph, works, splits: found, units, kinds: Vec::new(), last, is_state };
        all.kinds = kinds(&all);
        Ok(all)
    }

    /// The same nodes, of which only the first axis can be divided: that of the batch.
    pub(super) fn by_first_axis(&self) -> Self {
        let mut only = self.clone();
        only.splits.iter_mut().for_each(|ways| ways.retain(|way| way.over == Loop::Axis(0)));
        only
    }

    /// The way that is expected to take the least time; none where the search was stopped.
    /// Parameters cost `price` units of [`PRICE_UNIT`](super::beam::PRICE_UNIT) for each byte of them on the device that
    /// has least room for its own. O(nodes x states x ways x parts) where no node is like another; what repeats is decided once.
    ///
    /// Errors: none but internal ones.
    pub(super) fn search(&self, team: &Team, price: u64, control: &Control<'_>) -> Result<Option<Found>> {
        let mut beam = Beam::new(self, team, price);
        for node in self.graph.node_ids() {
            if control.stopped() {
                return Ok(None);
            }
            beam.visit(node)?;
        }
        beam.finish().map(Some)
    }
}
