//! Sources of parts: their names, devices and places.

use std::collections::HashMap;

use super::held::Reader;
use crate::ir::{Graph, Source, SourceId, SourceRole, part_name};

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

/// The sources of a graph that is being divided.
pub(super) struct Sources {
    /// By source: the place of the source that it is a part of, and the number of the part, from 1.
    lanes: Vec<(u32, u32)>,
    /// By source, number of the part and of parts. Looked up, never iterated.
    parts: HashMap<(SourceId, usize, usize), SourceId>,
    /// Every part, in the order of their sources.
    list: Vec<PartSource>,
}

impl Sources {
    pub(super) fn new(graph: &Graph, places: &[u32]) -> Self {
        let place = |at: usize| (places.get(at).copied().unwrap_or(0), 0);
        Self {
            lanes: (0..graph.sources().len()).map(place).collect(),
            parts: HashMap::new(),
            list: Vec::new(),
        }
    }

    /// The source of one of several parts, pinned where there is a device.
    pub(super) fn part(
        &mut self,
        graph: &mut Graph,
        whole: SourceId,
        number: usize,
        parts: usize,
        device: Option<&str>,
    ) -> Reader {
        let lane = number as u32 + 1;
        let key = (whole, number, parts);
        if let Some(&source) = self.parts.get(&key) {
            return Reader { source, lane };
        }
        let old = graph.source(whole).clone();
        let name = part_name(&old.name, number as u32, parts as u32);
        let pin = device.map(str::to_owned).or_else(|| old.pin.clone());
        let source = self.add(graph, Source { name, pin, role: SourceRole::Node, ..old }, whole, lane);
        self.parts.insert(key, source);
        self.list.push(PartSource { source, whole, number: number as u32, parts: parts as u32 });
        if number == 0 {
            // A source of which nothing is left is reported as being where its first part is.
            graph.source_mut(whole).consumer = Some(source);
        }
        Reader { source, lane }
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
