//! What a step's time and bytes are spent on: the longest chain of steps, the cuts, the tensors
//! that cross and what keeps their ends apart.

use std::collections::BTreeMap;

use serde::Serialize;

use super::outcome::{Outcome, outcome};
use super::{Case, WORK};
use crate::control::Control;
use crate::costgraph::{NodeIx, TensorIx};
use crate::schedule::{Action, PathStep, Step, critical_path};
use crate::topology::DeviceId;
use crate::units::{Bytes, Nanos};

/// Lines of each list.
const LISTED: usize = 6;
/// Crossing tensors for which it is tried to bring the ends together.
const TRIED: usize = 4;

/// A part of the longest chain of steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathPart {
    /// The device that computes; the two that a copy joins; none for time spent waiting.
    pub on: String,
    /// `compute`, `copy` or `wait`.
    pub what: &'static str,
    /// Its steps.
    pub steps: usize,
    /// Their time.
    pub time_ns: Nanos,
}

/// What one device sends another in a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// Tensors copied.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: Bytes,
    /// Time that they take on the way, one after the other.
    pub time_ns: Nanos,
}

/// A device that receives a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Receiver {
    /// The device.
    pub device: String,
    /// Nodes there that read it.
    pub readers: Vec<String>,
}

/// A tensor that crosses from the device that makes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Crossing {
    /// The node that makes it.
    pub node: String,
    /// Which of its outputs.
    pub output: u32,
    /// Its bytes.
    pub bytes: Bytes,
    /// Where it is made.
    pub from: String,
    /// Where it is read.
    pub to: Vec<Receiver>,
    /// The plan with the first reader moved to where the tensor is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_moved: Option<Outcome>,
    /// The plan with the maker moved to the first receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maker_moved: Option<Outcome>,
}

/// The critical path, summed up by what its steps do and where.
pub(super) fn path(case: &Case<'_, '_>) -> Vec<PathPart> {
    let steps = &case.schedule.steps;
    let mut parts: BTreeMap<(u8, String), (usize, Nanos)> = BTreeMap::new();
    let mut add = |sort: u8, on: String, time: Nanos| {
        let part = parts.entry((sort, on)).or_default();
        part.0 += 1;
        part.1 += time;
    };
    let path = critical_path(case.subject.topology, &case.schedule);
    // What is before the first step of the path was waited for, too.
    let begins = path.first().map_or(Nanos::ZERO, |first| steps[first.step.index()].start);
    for PathStep { step, time, .. } in &path {
        let (sort, on) = place(case, &steps[step.index()]);
        add(sort, on, *time);
    }
    for idle in path.iter().map(|part| part.idle).chain([begins]).filter(|&idle| idle > Nanos::ZERO) {
        add(2, String::new(), idle);
    }
    let mut parts: Vec<PathPart> = parts
        .into_iter()
        .map(|((sort, on), (steps, time_ns))| PathPart {
            on,
            what: ["compute", "copy", "wait"][usize::from(sort)],
            steps,
            time_ns,
        })
        .collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.time_ns));
    parts
}

/// Sort and place of a step on the path.
fn place(case: &Case<'_, '_>, step: &Step) -> (u8, String) {
    match step.action {
        Action::Launch(_) => (0, case.name(step.device)),
        Action::Copy { from, .. } => {
            let from = case.schedule.buffers[from.index()].device;
            (1, format!("{} -> {}", case.name(from), case.name(step.device)))
        }
    }
}

/// Pairs of devices by the bytes copied between them.
pub(super) fn cuts(case: &Case<'_, '_>) -> Vec<Cut> {
    let graph = case.subject.graph;
    let mut pairs: BTreeMap<(DeviceId, DeviceId), (usize, Bytes, Nanos)> = BTreeMap::new();
    for step in &case.schedule.steps {
        if let Action::Copy { tensor, from, part, .. } = step.action {
            let from = case.schedule.buffers[from.index()].device;
            let bytes = part.map_or(graph.tensor_bytes(tensor), |part| part.bytes);
            let cut = pairs.entry((from, step.device)).or_default();
            // A tensor in parts is counted once, with its first part.
            cut.0 += usize::from(part.is_none_or(|part| part.offset == Bytes::ZERO));
            cut.1 += bytes;
            cut.2 += case.subject.topology.copy_time(from, step.device, bytes);
        }
    }
    let mut cuts: Vec<Cut> = pairs
        .into_iter()
        .map(|((from, to), (tensors, bytes, time_ns))| Cut {
            from: case.name(from),
            to: case.name(to),
            tensors,
            bytes,
            time_ns,
        })
        .collect();
    cuts.sort_by_key(|cut| std::cmp::Reverse(cut.bytes));
    cuts.truncate(LISTED);
    cuts
}

/// The tensors whose copies take most bytes; for the first of them it is tried what bringing their
/// ends together would cost.
pub(super) fn crossing(case: &Case<'_, '_>, control: &Control<'_>) -> Vec<Crossing> {
    let graph = case.subject.graph;
    let mut copies: BTreeMap<TensorIx, u64> = BTreeMap::new();
    for step in &case.schedule.steps {
        if let Action::Copy { tensor, part, .. } = step.action
            // Likewise by first parts.
            && part.is_none_or(|part| part.offset == Bytes::ZERO)
        {
            *copies.entry(tensor).or_default() += 1;
        }
    }
    let mut tensors: Vec<(u64, TensorIx)> = copies
        .into_iter()
        .map(|(tensor, copies)| (graph.tensor_bytes(tensor).get().saturating_mul(copies), tensor))
        .collect();
    tensors.sort_by_key(|&(bytes, tensor)| (std::cmp::Reverse(bytes), tensor));
    tensors.truncate(LISTED);
    // Each trial schedules the plan anew: fewer of them where the graph is large, so that an answer comes soon.
    let tried = TRIED.min(WORK / (graph.node_count() + 1) / 8);
    control.map(tensors.len(), |number| {
        let tensor = tensors[number].1;
        let mut crossing = described(case, tensor);
        if number < tried {
            let producer = graph.producer(tensor);
            let home = case.placement.device[producer.index()];
            let away = |node: &&NodeIx| case.placement.device[node.index()] != home;
            if let Some(reader) = graph.consumers(tensor).iter().find(away) {
                let to = case.placement.device[reader.index()];
                let moved = |node: NodeIx, to: DeviceId| {
                    let unit = case.moves.unit(node)?;
                    // What cannot be scheduled at all is no answer to why.
                    outcome(case, unit, to).ok()
                };
                crossing.reader_moved = moved(*reader, home);
                crossing.maker_moved = moved(producer, to);
            }
        }
        crossing
    })
}

/// Tensors that cross at a unit: what it makes and others read, and what it reads from elsewhere.
pub(super) fn crossings_of(case: &Case<'_, '_>, unit: usize) -> Vec<Crossing> {
    let graph = case.subject.graph;
    let mut tensors: Vec<TensorIx> = Vec::new();
    for node in case.moves.members(unit) {
        let copied = |tensor: &TensorIx| graph.param(graph.producer(*tensor)).is_none();
        tensors.extend(graph.inputs(node).iter().copied().filter(copied));
        tensors.extend(graph.outputs(node));
    }
    tensors.sort_unstable();
    tensors.dedup();
    let here = case.moves.device(unit);
    let home = |tensor: TensorIx| case.placement.device[graph.producer(tensor).index()];
    tensors.retain(|&tensor| {
        let readers = graph.consumers(tensor).iter().map(|reader| case.placement.device[reader.index()]);
        if home(tensor) == here { readers.into_iter().any(|id| id != here) } else { true }
    });
    tensors.sort_by_key(|&tensor| (std::cmp::Reverse(graph.tensor_bytes(tensor)), tensor));
    tensors.into_iter().map(|tensor| described(case, tensor)).collect()
}

/// A tensor with its ends.
fn described(case: &Case<'_, '_>, tensor: TensorIx) -> Crossing {
    let graph = case.subject.graph;
    let producer = graph.producer(tensor);
    let home = case.placement.device[producer.index()];
    let mut to: BTreeMap<DeviceId, Vec<String>> = BTreeMap::new();
    for reader in graph.consumers(tensor) {
        let id = case.placement.device[reader.index()];
        if id != home {
            let readers = to.entry(id).or_default();
            if readers.len() < LISTED {
                readers.push(graph.node_name(*reader).to_owned());
            }
        }
    }
    Crossing {
        node: graph.node_name(producer).to_owned(),
        output: graph.output_index(tensor),
        bytes: graph.tensor_bytes(tensor),
        from: case.name(home),
        to: to.into_iter().map(|(id, readers)| Receiver { device: case.name(id), readers }).collect(),
        reader_moved: None,
        maker_moved: None,
    }
}
