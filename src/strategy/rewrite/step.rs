//! The launches of a rewritten step in order, and what is offloaded in it.

use super::candidates::{RewriteCandidate, Round};
use super::{Choice, What};
use crate::costgraph::derive::{Derivation, Derived, Instance};
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::error::Result;
use crate::schedule::{Action, Offload, Schedule};
use crate::topology::DeviceId;
use crate::units::{Bytes, Nanos};

/// A node, and whether this is its second run.
pub(super) type Run = (NodeIx, bool);

/// A tensor that is offloaded; its number is that of the base graph, and so is it in any graph that
/// is derived here.
#[derive(Clone, Debug)]
pub(super) struct Offloaded {
    pub(super) tensor: TensorIx,
    pub(super) device: DeviceId,
    pub(super) host: DeviceId,
    pub(super) readers: Vec<Run>,
    pub(super) frees: Bytes,
    pub(super) costs: Nanos,
}

/// A node that runs again.
#[derive(Clone, Debug)]
struct Recomputed {
    node: NodeIx,
    device: DeviceId,
    frees: Bytes,
    costs: Nanos,
}

/// One choice of a step, to be taken back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Chosen {
    Recomputed(NodeIx),
    Offload(TensorIx),
}

/// See the module's documentation. What reads a value after it was computed again, on the device
/// that did, reads the new one.
#[derive(Clone, Debug)]
pub(super) struct StepOrder {
    runs: Vec<Run>,
    recomputed: Vec<Recomputed>,
    /// By node of the base graph: its position in `recomputed`.
    numbers: Vec<u32>,
    pub(super) offloads: Vec<Offloaded>,
}

const NONE: u32 = u32::MAX;

impl StepOrder {
    /// The launches of a schedule, as they are.
    pub(super) fn new(graph: &CostGraph, schedule: &Schedule) -> Self {
        let runs = schedule.steps.iter().filter_map(|step| match step.action {
            Action::Launch(node) => Some((node, false)),
            Action::Copy { .. } => None,
        });
        let numbers = vec![NONE; graph.node_count()];
        Self { runs: runs.collect(), recomputed: Vec::new(), numbers, offloads: Vec::new() }
    }

    /// Launches that are known, in order; what runs again does so on its own device.
    pub(super) fn of_runs(graph: &CostGraph, device: &[DeviceId], runs: Vec<Run>) -> Self {
        let mut step = Self {
            runs,
            recomputed: Vec::new(),
            numbers: vec![NONE; graph.node_count()],
            offloads: Vec::new(),
        };
        for &(node, _) in step.runs.iter().filter(|run| run.1) {
            let number = std::mem::replace(&mut step.numbers[node.index()], step.recomputed.len() as u32);
            if number == NONE {
                let device = device[node.index()];
                step.recomputed.push(Recomputed { node, device, frees: Bytes::ZERO, costs: Nanos::ZERO });
            } else {
                step.numbers[node.index()] = number;
            }
        }
        step
    }

    /// True where a node runs again already.
    pub(super) fn is_recomputed(&self, node: NodeIx) -> bool {
        self.numbers.get(node.index()).is_none_or(|&number| number != NONE)
    }

    /// The node of the derived graph that is a node's second run, where it has one.
    pub(super) fn renewed(&self, node: NodeIx) -> Option<NodeIx> {
        let number = self.numbers.get(node.index()).copied().filter(|&number| number != NONE)?;
        Some(NodeIx(self.numbers.len() as u32 + number))
    }

    /// True where the tensor is offloaded.
    pub(super) fn is_offloaded(&self, tensor: TensorIx) -> bool {
        self.offloads.iter().any(|offload| offload.tensor == tensor)
    }

    /// Lets nodes run again, each just before its first reader after the peak. O(launches).
    pub(super) fn recompute(&mut self, round: &Round<'_>, chosen: &[(DeviceId, RewriteCandidate)]) {
        let mut before: Vec<(u32, NodeIx)> = Vec::new();
        for &(device, candidate) in chosen {
            let node = round.producer(candidate.tensor);
            let Some(reader) = round.first_late_reader(node, device) else { continue };
            before.push((reader, node));
            self.numbers[node.index()] = self.recomputed.len() as u32;
            self.recomputed.push(Recomputed { node, device, frees: candidate.frees, costs: candidate.costs });
        }
        before.sort_by_key(|&(reader, _)| reader);
        let mut before = before.into_iter().peekable();
        let runs = std::mem::take(&mut self.runs);
        for (position, run) in runs.into_iter().enumerate() {
            while let Some((_, node)) = before.next_if(|&(reader, _)| reader == position as u32) {
                self.runs.push((node, true));
            }
            self.runs.push(run);
        }
    }

    /// A graph of the runs: the nodes as they are, then those that run again.
    pub(super) fn derive(&self, graph: &CostGraph, placement: &[DeviceId]) -> Result<Derived> {
        let mut derivation = Derivation::new(graph);
        for node in graph.nodes() {
            derivation.add(Instance::once(node))?;
        }
        for recompute in &self.recomputed {
            derivation.add(Instance { again: true, ..Instance::once(recompute.node) })?;
        }
        let mut position = vec![u32::MAX; graph.node_count()];
        for (at, &(node, _)) in self.runs.iter().enumerate().filter(|(_, run)| run.1) {
            position[node.index()] = at as u32;
        }
        for (at, &run) in self.runs.iter().enumerate() {
            let reader = self.number(run);
            for &tensor in graph.inputs(run.0) {
                let producer = graph.producer(tensor);
                // Only what comes after the second run and on its device reads it; other devices read what
                // the first run sent.
                let later = graph.role(producer) == Role::Compute && position[producer.index()] < at as u32;
                let same = placement[producer.index()] == placement[run.0.index()];
                let source = self.number((producer, later && same));
                derivation.read(reader, source, graph.output_index(tensor));
            }
        }
        derivation.finish()
    }

    /// The node of the derived graph.
    fn number(&self, (node, again): Run) -> NodeIx {
        match self.numbers[node.index()] {
            number if again && number != NONE => NodeIx(self.numbers.len() as u32 + number),
            _ => node,
        }
    }

    /// The run that a node of the derived graph is.
    pub(super) fn run(&self, node: NodeIx) -> Run {
        match node.index().checked_sub(self.numbers.len()) {
            Some(number) => (self.recomputed[number].node, true),
            None => (node, false),
        }
    }

    /// The launches of the derived graph in order.
    pub(super) fn launches(&self) -> Vec<NodeIx> {
        self.runs.iter().map(|&run| self.number(run)).collect()
    }

    /// What is offloaded, for the scheduler.
    pub(super) fn offload(&self) -> Vec<Offload> {
        let of = |offload: &Offloaded| Offload {
            tensor: offload.tensor,
            host: offload.host,
            readers: offload.readers.iter().map(|&run| self.number(run)).collect(),
        };
        self.offloads.iter().map(of).collect()
    }

    /// The choices, the most costly first.
    pub(super) fn by_cost(&self) -> Vec<Chosen> {
        let recomputed = self.recomputed.iter().map(|node| (node.costs, Chosen::Recomputed(node.node)));
        let offloads = self.offloads.iter().map(|offload| (offload.costs, Chosen::Offload(offload.tensor)));
        let mut all: Vec<(Nanos, Chosen)> = recomputed.chain(offloads).collect();
        all.sort_by_key(|&(costs, _)| std::cmp::Reverse(costs));
        all.into_iter().map(|(_, chosen)| chosen).collect()
    }

    /// The step without one of its choices.
    pub(super) fn without(&self, chosen: Chosen) -> Self {
        let mut step = self.clone();
        match chosen {
            Chosen::Recomputed(node) => {
                step.runs.retain(|&run| run != (node, true));
                step.recomputed.retain(|one| one.node != node);
                step.numbers.fill(NONE);
                for (number, recompute) in step.recomputed.iter().enumerate() {
                    step.numbers[recompute.node.index()] = number as u32;
                }
                step.offloads
                    .iter_mut()
                    .for_each(|offload| offload.readers.retain(|&run| run != (node, true)));
                step.offloads.retain(|offload| !offload.readers.is_empty());
            }
            Chosen::Offload(tensor) => step.offloads.retain(|offload| offload.tensor != tensor),
        }
        step
    }

    /// What was chosen, by the numbers of the derived graph.
    pub(super) fn choices(&self) -> Vec<Choice> {
        let recomputed = self.recomputed.iter().map(|recompute| Choice {
            what: What::Recompute(self.number((recompute.node, true))),
            device: recompute.device,
            frees: recompute.frees,
            costs: recompute.costs,
        });
        let offloads = self.offloads.iter().map(|offload| Choice {
            what: What::Offload(offload.tensor, offload.host),
            device: offload.device,
            frees: offload.frees,
            costs: offload.costs,
        });
        recomputed.chain(offloads).collect()
    }
}
