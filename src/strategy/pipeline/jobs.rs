//! What the devices of a pipeline do for one microbatch: a few jobs each, with what they wait for.
//!
//! A job is all that one device computes of one stage in one pass. A stage's level counts the
//! changes of device on the longest way to it, so any placement is a pipeline: a device whose
//! nodes stand at several levels has several stages, skip connections are edges across levels, and
//! jobs wait for one another in no circle.

use std::collections::{BTreeMap, BTreeSet};

use super::unrolled::Unrolled;
use crate::costgraph::microbatch::Runs;
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos};

/// Which part of a step a job belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pass {
    /// From inputs to results.
    Forward,
    /// What other stages' backward jobs wait for: gradients of activations.
    Backward,
    /// What only updates wait for: gradients of parameters.
    Weights,
}

/// A job, done once for each microbatch.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) device: DeviceId,
    pub(super) pass: Pass,
    pub(super) level: u32,
    /// In a topological order.
    pub(super) nodes: Vec<NodeIx>,
    pub(super) time: Nanos,
    /// The forward jobs of the device whose activations it uses.
    pub(super) links: Vec<u32>,
}

/// A job waits for another of the same microbatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) before: u32,
    pub(super) after: u32,
    /// How long what passes between them is under way.
    pub(super) delay: Nanos,
}

/// The jobs of a placed graph of one microbatch.
#[derive(Clone, Debug)]
pub(super) struct Jobs {
    pub(super) jobs: Vec<Job>,
    pub(super) waits: Vec<Wait>,
    /// Levels of the forward pass.
    pub(super) levels: u32,
    /// Pipelines of equal shape side by side, each on devices of its own.
    pub(super) replicas: u32,
    /// What runs once before, and once after, in a topological order.
    pub(super) first: Vec<NodeIx>,
    pub(super) last: Vec<NodeIx>,
}

impl Jobs {
    /// Finds the jobs. `runs` says when each node of `graph` runs, `placement` holds a device for each,
    /// one that can run it. O((nodes + edges) log nodes).
    pub(super) fn new(graph: &CostGraph, runs: &[Runs], topology: &Topology, placement: &[DeviceId]) -> Self {
        let order = graph.topological_order().unwrap_or_default();
        let computes = |node: NodeIx| graph.role(node) == Role::Compute;
        let of = |when: Runs| -> Vec<NodeIx> {
            order.iter().copied().filter(|&node| computes(node) && runs[node.index()] == when).collect()
        };
        let each = of(Runs::Each);
        let passes = passes(graph, &each, runs);
        let level = Levels { graph, placement, passes: &passes }.all(&each);
        let mut numbers: BTreeMap<(Pass, u32, DeviceId), u32> = BTreeMap::new();
        let mut job_of = vec![NONE; graph.node_count()];
        let mut jobs: Vec<Job> = Vec::new();
        let kinds = topology.kinds_in(&graph.kinds);
        for &node in &each {
            let Some(pass) = passes[node.index()] else { continue };
            let (device, level) = (placement[node.index()], level[node.index()]);
            let number = *numbers.entry((pass, level, device)).or_insert_with(|| {
                let links = Vec::new();
                jobs.push(Job { device, pass, level, nodes: Vec::new(), time: Nanos::ZERO, links });
                jobs.len() as u32 - 1
            });
            let job = &mut jobs[number as usize];
            job.nodes.push(node);
            let kind = kinds[device.index()];
            job.time += kind.and_then(|kind| graph.time(node, kind)).unwrap_or_default();
            job_of[node.index()] = number;
        }
        link(graph, &mut jobs, &job_of);
        let forward = jobs.iter().filter(|job| job.pass == Pass::Forward);
        let levels = forward.map(|job| job.level + 1).max().unwrap_or(0);
        let waits = waits(graph, topology, &jobs, &job_of);
        Self { jobs, waits, levels, replicas: 1, first: of(Runs::First), last: of(Runs::Last) }
    }

    /// As [`Jobs::new`] for a graph that holds all microbatches of all replicas side by side: what one of
    /// them takes.
    pub(super) fn side_by_side(
        graph: &CostGraph,
        runs: &[Runs],
        topology: &Topology,
        placement: &[DeviceId],
        unrolled: Unrolled,
    ) -> Self {
        let mut jobs = Self::new(graph, runs, topology, placement);
        jobs.replicas = unrolled.replicas.max(1);
        let count = u64::from(unrolled.asked.microbatches.max(1));
        let one = |time: Nanos| Nanos(time.get().div_ceil(count));
        jobs.jobs.iter_mut().for_each(|job| job.time = one(job.time));
        jobs.waits.iter_mut().for_each(|wait| wait.delay = one(wait.delay));
        jobs
    }

    /// The devices that do something, ascending.
    pub(super) fn devices(&self) -> Vec<DeviceId> {
        let devices: BTreeSet<DeviceId> = self.jobs.iter().map(|job| job.device).collect();
        devices.into_iter().collect()
    }

    /// How many devices each replica has.
    pub(super) fn devices_each(&self) -> u32 {
        (self.devices().len() as u32).div_ceil(self.replicas)
    }

    /// True where each device has one stage.
    pub(super) fn is_plain(&self) -> bool {
        let forward = self.jobs.iter().filter(|job| job.pass == Pass::Forward);
        let devices: BTreeSet<DeviceId> = forward.clone().map(|job| job.device).collect();
        devices.len() == forward.count() && devices.len() == (self.levels * self.replicas) as usize
    }

    /// True where there is a backward pass.
    pub(super) fn trains(&self) -> bool {
        self.jobs.iter().any(|job| job.pass != Pass::Forward)
    }
}

const NONE: u32 = u32::MAX;

/// By node that runs for each microbatch: its pass. Nodes are forward unless they are marked or
/// read what is not. Of the backward ones, those are of [`Pass::Weights`] that nothing waits for
/// but updates, and others of the same forward node or of a parameter.
fn passes(graph: &CostGraph, each: &[NodeIx], runs: &[Runs]) -> Vec<Option<Pass>> {
    let mut passes = vec![None; graph.node_count()];
    for &node in each {
        let after = graph
            .inputs(node)
            .iter()
            .any(|&tensor| passes[graph.producer(tensor).index()].is_some_and(|pass| pass != Pass::Forward));
        let backward = after || graph.is_backward(node);
        passes[node.index()] = Some(if backward { Pass::Backward } else { Pass::Forward });
    }
    let of_param = |node: NodeIx| graph.role(node) == Role::Param;
    // From the back: what reads a node is decided before it.
    for &node in each.iter().rev().filter(|&&node| graph.is_backward(node)) {
        let follows = |&reader: &NodeIx| {
            let forward = graph.forward(reader);
            let same = forward == graph.forward(node) || forward.is_none_or(of_param);
            runs[reader.index()] == Runs::Last || same && passes[reader.index()] == Some(Pass::Weights)
        };
        let mut readers = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor)).peekable();
        if readers.peek().is_some() && readers.all(follows) {
            passes[node.index()] = Some(Pass::Weights);
        }
    }
    passes
}

struct Levels<'a> {
    graph: &'a CostGraph,
    placement: &'a [DeviceId],
    passes: &'a [Option<Pass>],
}

impl Levels<'_> {
    /// By node: its level among the nodes of its pass. A node that may stand at several levels
    /// stands where its device does most.
    fn all(&self, each: &[NodeIx]) -> Vec<u32> {
        let mut level = vec![0; self.graph.node_count()];
        for &node in each {
            level[node.index()] = self.earliest(node, &level);
        }
        for pass in [Pass::Forward, Pass::Backward] {
            self.gather(each, pass, &mut level);
        }
        for &node in each.iter().filter(|node| self.passes[node.index()] == Some(Pass::Weights)) {
            level[node.index()] = self.earliest(node, &level);
        }
        level
    }

    /// The least level after those of its pass (and for gradients of parameters, of the backward
    /// pass) that it reads from.
    fn earliest(&self, node: NodeIx, level: &[u32]) -> u32 {
        let own = self.passes[node.index()];
        let before = self.graph.inputs(node).iter().map(|&tensor| self.graph.producer(tensor));
        let counts = |producer: &NodeIx| {
            let pass = self.passes[producer.index()];
            pass == own || own == Some(Pass::Weights) && pass == Some(Pass::Backward)
        };
        let after = |producer: NodeIx| {
            let moves = self.placement[producer.index()] != self.placement[node.index()];
            level[producer.index()] + u32::from(moves)
        };
        before.filter(counts).map(after).max().unwrap_or(0)
    }

    fn gather(&self, each: &[NodeIx], pass: Pass, level: &mut [u32]) {
        let own = |node: &&NodeIx| self.passes[node.index()] == Some(pass);
        let mut count: BTreeMap<(DeviceId, u32), u32> = BTreeMap::new();
        let mut highest = 0;
        for node in each.iter().filter(own) {
            let level = level[node.index()];
            *count.entry((self.placement[node.index()], level)).or_default() += 1;
            highest = highest.max(level);
        }
        // From the back, so that a node may follow its readers.
        for node in each.iter().rev().filter(own) {
            let device = self.placement[node.index()];
            let readers = self.graph.outputs(*node).flat_map(|tensor| self.graph.consumers(tensor));
            let readers = readers.filter(|reader| self.passes[reader.index()] == Some(pass));
            let latest = readers.map(|reader| {
                let moves = self.placement[reader.index()] != device;
                level[reader.index()].saturating_sub(u32::from(moves))
            });
            let earliest = level[node.index()];
            let latest = latest.min().unwrap_or(highest).max(earliest);
            let there = count.range((device, earliest)..=(device, latest));
            let most = there.max_by_key(|&(&(_, level), &count)| (count, std::cmp::Reverse(level)));
            if let Some((&(_, most), _)) = most {
                level[node.index()] = most;
            }
        }
    }
}

/// Finds the forward jobs that each other job belongs to: those of its nodes' forward nodes, or
/// where it has none, those of what it reads.
fn link(graph: &CostGraph, jobs: &mut [Job], job_of: &[u32]) {
    for number in 0..jobs.len() {
        if jobs[number].pass == Pass::Forward {
            continue;
        }
        let device = jobs[number].device;
        let mut links: BTreeSet<u32> = BTreeSet::new();
        let known = |job: u32| job != NONE && jobs[job as usize].device == device;
        let forward = |job: &u32| known(*job) && jobs[*job as usize].pass == Pass::Forward;
        for &node in &jobs[number].nodes {
            links.extend(graph.forward(node).map(|node| job_of[node.index()]).filter(forward));
        }
        if links.is_empty() {
            for &node in &jobs[number].nodes {
                let read = graph.inputs(node).iter().map(|&tensor| job_of[graph.producer(tensor).index()]);
                for job in read.filter(|&job| known(job)) {
                    links.extend(&jobs[job as usize].links);
                    links.extend(Some(job).filter(forward));
                }
            }
        }
        jobs[number].links = links.into_iter().collect();
    }
}

fn waits(graph: &CostGraph, topology: &Topology, jobs: &[Job], job_of: &[u32]) -> Vec<Wait> {
    let mut passed: BTreeMap<(u32, u32), Bytes> = BTreeMap::new();
    let mut readers: Vec<u32> = Vec::new();
    for tensor in graph.tensors() {
        let before = job_of[graph.producer(tensor).index()];
        if before == NONE {
            continue;
        }
        readers.clear();
        readers.extend(graph.consumers(tensor).iter().map(|node| job_of[node.index()]));
        readers.sort_unstable();
        readers.dedup();
        for &after in readers.iter().filter(|&&after| after != NONE && after != before) {
            *passed.entry((before, after)).or_default() += graph.tensor_bytes(tensor);
        }
    }
    let wait = |((before, after), bytes): ((u32, u32), Bytes)| {
        let (from, to) = (jobs[before as usize].device, jobs[after as usize].device);
        let delay = if from == to { Nanos::ZERO } else { topology.copy_time(from, to, bytes) };
        Wait { before, after, delay }
    };
    passed.into_iter().map(wait).collect()
}
