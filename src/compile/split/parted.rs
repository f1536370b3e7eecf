//! A network whose operations are divided round by round: what is a part after one can be divided in the next, along
//! another loop.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{self, IN_SLICES, IN_STEPS};
use crate::compile::{Network, grouped, verified};
use crate::cost;
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, Phase, SourceId, ValueId};
use crate::pass::{self, Before, Divided, Division, SliceOf};
use crate::plan::PlanSplit;
use crate::units::Flops;

/// A graph that was divided so far.
#[derive(Clone)]
pub(in crate::compile) struct Parted {
    pub(in crate::compile) graph: Graph,
    /// By source: its place, as in [`pass::group_placed`].
    places: Vec<u32>,
    history: History,
}

/// What was divided, and into what.
#[derive(Clone)]
struct History {
    /// Sources that are parts of others, and those that they are parts of.
    parts: Vec<SourceId>,
    wholes: BTreeSet<SourceId>,
    slices: BTreeMap<ValueId, SliceOf>,
    /// What was done, as a plan records it.
    splits: Vec<PlanSplit>,
    /// Sources of the network as it was.
    sources: usize,
    /// Its operations.
    operations: [Flops; 2],
}

impl History {
    fn new(graph: &Graph) -> Self {
        Self {
            parts: Vec::new(),
            wholes: BTreeSet::new(),
            slices: BTreeMap::new(),
            splits: Vec::new(),
            sources: graph.sources().len(),
            operations: cost::operations(graph),
        }
    }
}

impl Parted {
    /// A graph of which nothing is divided.
    pub(in crate::compile) fn whole(graph: Graph, places: Vec<u32>) -> Self {
        let history = History::new(&graph);
        Self { graph, places, history }
    }

    /// A graph, divided once into `most` nodes at most; none where it would be more. The graph itself is not copied.
    pub(in crate::compile) fn within(
        graph: &Graph,
        places: &[u32],
        divisions: &BTreeMap<NodeId, Division>,
        most: usize,
    ) -> Result<Option<Self>> {
        let divided = pass::split_within(graph, divisions, places, most)?;
        divided.map(|divided| Self::new(graph, &History::new(graph), divisions, divided)).transpose()
    }

    /// What a graph of that history is once nodes of it are divided.
    fn new(
        graph: &Graph,
        history: &History,
        divisions: &BTreeMap<NodeId, Division>,
        divided: Divided,
    ) -> Result<Self> {
        verified(&divided.graph)?;
        let (mut parts, mut wholes) = (history.parts.clone(), history.wholes.clone());
        parts.extend(divided.parts.iter().map(|part| part.source));
        wholes.extend(divided.parts.iter().map(|part| part.whole));
        let splits = [history.splits.clone(), record::record(graph, divisions)].concat();
        let History { sources, operations, .. } = *history;
        let history = History { parts, wholes, slices: divided.slices, splits, sources, operations };
        Ok(Self { graph: divided.graph, places: divided.places, history })
    }

    /// A graph divided as a plan records it. Errors: the plan is of another graph.
    pub(super) fn planned(graph: Graph, places: Vec<u32>, planned: &[PlanSplit]) -> Result<Self> {
        let mut parted = Self::whole(graph, places);
        let of_kind = |kind: &str| {
            let entries = planned.iter().filter(|entry| entry.over == kind);
            entries.flat_map(|entry| entry.nodes.iter().map(String::as_str)).collect::<Vec<_>>()
        };
        let stepped = record::nodes(&parted.graph, &of_kind(IN_STEPS))?;
        parted = parted.in_steps(&stepped)?;
        for name in of_kind(IN_SLICES) {
            record::input(&parted.graph, name)?;
            parted.slice_input(name);
        }
        let is_division = |entry: &&PlanSplit| entry.over != IN_STEPS && entry.over != IN_SLICES;
        let mut left: Vec<PlanSplit> = planned.iter().filter(is_division).cloned().collect();
        while !left.is_empty() {
            let (divisions, later) = record::divisions(&parted.graph, left)?;
            parted = parted.divided(&divisions)?;
            left = later;
        }
        Ok(parted)
    }

    /// Replaces recurrent layers by their steps.
    pub(in crate::compile) fn in_steps(mut self, nodes: &BTreeSet<NodeId>) -> Result<Self> {
        if nodes.is_empty() {
            return Ok(self);
        }
        let names = record::Names::new(&self.graph);
        let named = nodes.iter().map(|&node| names.of(&self.graph, node)).collect();
        self.history.splits.push(record::entry(IN_STEPS, named));
        pass::gradient::unroll_some(&mut self.graph, &|node| nodes.contains(&node))?;
        // All steps begin with the same slices of the weights.
        pass::simplify(&mut self.graph)?;
        pass::cse(&mut self.graph)?;
        pass::dce(&mut self.graph)?;
        verified(&self.graph)?;
        Ok(self)
    }

    /// Lets devices be handed the slices of an input that they read, and no more.
    pub(in crate::compile) fn slice_input(&mut self, name: &str) {
        self.history.splits.push(record::entry(IN_SLICES, vec![name.to_owned()]));
        self.graph.slice_input(name);
    }

    /// The graph with nodes divided, those that are parts as well.
    pub(in crate::compile) fn divided(&self, divisions: &BTreeMap<NodeId, Division>) -> Result<Self> {
        if divisions.is_empty() {
            return Ok(self.clone());
        }
        let Self { graph, places, history } = self;
        let before = Before { slices: &history.slices, sources: graph.sources().len() - history.sources };
        let divided = pass::split_again(graph, divisions, places, before)?;
        Self::new(graph, history, divisions, divided)
    }

    /// Whether a node is a part, or cuts, joins or folds parts, and none of its source was divided: the parts of one
    /// source are numbered once.
    pub(super) fn may_be_divided_again(&self, node: NodeId) -> bool {
        let source = self.graph.node(node).source;
        source.index() >= self.history.sources && !self.history.wholes.contains(&source)
    }

    /// Names of what are parts of others.
    pub(super) fn parts(&self) -> impl Iterator<Item = &str> {
        self.history.parts.iter().map(|&source| self.graph.source(source).name.as_str())
    }

    /// The network, grouped.
    pub(in crate::compile) fn network(
        self,
        assumed: Vec<String>,
        dims: BTreeMap<String, i64>,
    ) -> Result<Network> {
        let Self { graph, places, history } = self;
        let History { parts, slices, splits, sources, operations, .. } = history;
        let mut grouping = grouped(&graph, &places)?;
        // What is cut for other devices is sent from where it lies; what is mostly cut stays where it is. A training step
        // reads most of what it makes again later: there a slice would keep the whole alive, which could then neither be
        // made again nor offloaded.
        let trains = graph.sources().iter().any(|source| source.phase != Phase::Forward);
        match (splits.is_empty(), trains) {
            (true, false) => grouping.find_shares(&graph),
            (true, true) => {}
            (false, _) => grouping.find_slices(&graph),
        }
        let added = graph.sources().len() - sources;
        Ok(Network { graph, grouping, assumed, dims, splits, added, parts, slices, operations })
    }
}

/// Steps that recurrent layers are computed in, at most: each is a dozen nodes and more, planned for one by one.
const MOST_STEPS: u64 = 1 << 12;

/// Recurrent layers of which even the smallest part takes more than `bytes`: only their steps can be divided further.
/// None where those are too many.
pub(super) fn unsplittable_layers(graph: &Graph, bytes: u64) -> Result<BTreeSet<NodeId>> {
    let (mut found, mut steps) = (BTreeSet::new(), 0_u64);
    for node in graph.node_ids().filter(|&node| matches!(graph.node(node).op, Op::Recurrent(_))) {
        if super::footprint::smallest_part(graph, node)? > bytes {
            found.insert(node);
            steps = steps.saturating_add(pass::gradient::steps_of(graph, node));
        }
    }
    Ok(if steps <= MOST_STEPS { found } else { BTreeSet::new() })
}
