//! Sources of parts: their names, devices and places.

use std::collections::HashMap;

use super::held::Reader;
use crate::ir::{Graph, NodeId, Source, SourceId, SourceRole, part_name};

/// The source of one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSource {
    /// The source.
    pub source: SourceId,
    /// The source that it is a part of.
    pub whole: SourceId,
    /// Its number, from 0.
    pub number: u32,
    /// How many there are.
    pub parts: u32,
}

/// Which part of a node.
#[derive(Clone, Copy)]
pub(super) struct PartOf<'a> {
    pub(super) number: usize,
    pub(super) parts: usize,
    /// Where it must be.
    pub(super) device: Option<&'a str>,
}

/// The sources of a graph that is being divided.
pub(super) struct Sources {
    /// By source: the place of the source that it is a part of, and the number of the part, from 1.
    lanes: Vec<(u32, u32)>,
    /// By old node: its source, and which one it is of those of its source.
    wholes: Vec<SourceId>,
    ranks: Vec<u32>,
    /// By source and number of the node: the source of its own. Looked up, never iterated.
    named: HashMap<(SourceId, u32), SourceId>,
    /// By source, number of the part and of parts. Looked up, never iterated.
    parts: HashMap<(SourceId, usize, usize), SourceId>,
    /// Every part, in the order of their sources.
    list: Vec<PartSource>,
    /// Where what one source stands for need not go together: the number of the next source that cuts, joins or folds.
    helpers: Option<u32>,
}

impl Sources {
    pub(super) fn new(graph: &Graph, places: &[u32], helpers: Option<u32>) -> Self {
        let place = |at: usize| (places.get(at).copied().unwrap_or(0), 0);
        let (wholes, ranks) = (graph.node_ids().map(|id| graph.node(id).source).collect(), ranks(graph));
        Self {
            lanes: (0..graph.sources().len()).map(place).collect(),
            wholes,
            ranks,
            named: HashMap::new(),
            parts: HashMap::new(),
            list: Vec::new(),
            helpers,
        }
    }

    /// Whether what one source stands for need not go together.
    pub(super) fn are_apart(&self) -> bool {
        self.helpers.is_some()
    }

    /// The source of a node that is not divided.
    pub(super) fn whole(&mut self, graph: &mut Graph, node: NodeId) -> SourceId {
        let (whole, rank) = (self.wholes[node.index()], self.ranks[node.index()]);
        if self.helpers.is_none() || rank == 0 {
            return whole;
        }
        if let Some(&source) = self.named.get(&(whole, rank)) {
            return source;
        }
        let old = graph.source(whole).clone();
        let name = rank_name(&old.name, rank);
        let source = self.add(graph, Source { name, role: SourceRole::Node, ..old }, whole, 0);
        self.named.insert((whole, rank), source);
        source
    }

    /// The source of one of several parts of a node, pinned where there is a device.
    pub(super) fn part(&mut self, graph: &mut Graph, node: NodeId, part: PartOf<'_>) -> Reader {
        let PartOf { number, parts, device } = part;
        let whole = self.whole(graph, node);
        let lane = number as u32 + 1;
        let key = (whole, number, parts);
        if let Some(&source) = self.parts.get(&key) {
            return Reader { source, lane };
        }
        let old = graph.source(whole).clone();
        let name = part_name(&old.name, number as u32, parts as u32);
        let pin = device.map(str::to_owned).or_else(|| old.pin.clone());
        // What belongs to a layer that is divided alike belongs to its part.
        let forward = old.forward.map(|of| self.parts.get(&(of, number, parts)).copied().unwrap_or(of));
        let part = Source { name, pin, forward, role: SourceRole::Node, ..old };
        let source = self.add(graph, part, whole, lane);
        self.parts.insert(key, source);
        self.list.push(PartSource { source, whole, number: number as u32, parts: parts as u32 });
        if number == 0 {
            // A source of which nothing is left is reported as being where its first part is.
            graph.source_mut(whole).consumer = Some(source);
        }
        Reader { source, lane }
    }

    /// The source of what cuts, joins or folds for another: the same one, unless what one source stands for need not go
    /// together. Then it is placed, and computed, by itself.
    pub(super) fn helper(&mut self, graph: &mut Graph, reader: SourceId, what: &str) -> SourceId {
        let Some(number) = self.helpers else { return reader };
        self.helpers = Some(number + 1);
        let old = graph.source(reader).clone();
        let name = format!("{}[{what} {number}]", old.name);
        self.add(graph, Source { name, pin: None, role: SourceRole::Node, ..old }, reader, u32::MAX - number)
    }

    fn add(&mut self, graph: &mut Graph, source: Source, whole: SourceId, lane: u32) -> SourceId {
        let id = graph.add_source(source);
        self.lanes.push((self.lanes[whole.index()].0, lane));
        id
    }

    /// Every part.
    pub(super) fn into_parts(self) -> Vec<PartSource> {
        self.list
    }

    /// By source: a number for its place and lane.
    pub(super) fn places(&self) -> Vec<u32> {
        let mut numbers: HashMap<(u32, u32), u32> = HashMap::new();
        let number = |&lane: &(u32, u32)| {
            let next = numbers.len() as u32;
            *numbers.entry(lane).or_insert(next)
        };
        self.lanes.iter().map(number).collect()
    }
}

/// By node: how many nodes of its source that compute something come before it. O(nodes).
pub(crate) fn ranks(graph: &Graph) -> Vec<u32> {
    let mut counts = vec![0u32; graph.sources().len()];
    let rank = |id: NodeId| {
        let node = graph.node(id);
        let count = &mut counts[node.source.index()];
        let rank = *count;
        *count += u32::from(!node.op.is_leaf());
        if node.op.is_leaf() { 0 } else { rank }
    };
    graph.node_ids().map(rank).collect()
}

/// The name of a node of a source that stands for several, counted from 0, where they need not go together.
fn rank_name(source: &str, rank: u32) -> String {
    if rank == 0 { source.to_owned() } else { format!("{source}#{rank}") }
}
