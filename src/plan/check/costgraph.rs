//! Whether a plan without buffers is sound for the cost graph that it was made from.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::super::{Action, CopyAction, Launch, Plan, Step};
use super::certificate::{Patterns, prove};
use super::order::{Event, Past, sweep};
use super::parts::{ByteRange, Covered};
use super::resolve::{Resolved, Views, resolve};
use super::{Checked, Faults, check};
use crate::costgraph::derive::{Derived, Instance};
use crate::costgraph::microbatch::{Sizes, microbatches};
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::error::Result;
use crate::topology::DeviceId;
use crate::units::Bytes;

/// Proves a plan without buffers sound, and a plan of this cost graph: every node that runs is
/// launched once, on a device that can run it, after all that it reads has been made there or
/// copied there, whatever the interleaving (where the step is divided into microbatches, once for
/// each of them or once for all, as [`microbatches`] has it, and from what its own microbatch made);
/// copies have the tensors' sizes; the figures for
/// parameters follow from the placement; and no arena is smaller than what its device must hold at
/// once; and the certificate proves what it says. O(steps x lanes + edges), edges once for each
/// microbatch.
///
/// Errors: [`Error::Check`](crate::Error::Check), with the violations of [`check`] alone where
/// there are any.
pub fn check_costgraph(plan: &Plan, graph: &CostGraph) -> Result<Checked> {
    let checked = check(plan)?;
    let mut faults = Faults::default();
    // What `check` has passed resolves.
    if let Some(resolved) = resolve(plan, Views::Declared, &mut faults)
        && let Some((names, placement)) = placement(plan, graph, &resolved, &mut faults)
    {
        let kinds = plan.topology.kinds_in(&graph.kinds);
        let derived = match plan.options.microbatches {
            Some(count) => Some(microbatches(graph, count, Sizes::Batch)?),
            None => None,
        };
        let (run, placement) = match &derived {
            Some(derived) => (&derived.graph, Cow::Owned(derived.spread(&placement))),
            None => (graph, Cow::Borrowed(placement.as_slice())),
        };
        let mut proof = Proof {
            plan,
            graph: run,
            derived: derived.as_ref(),
            names: &names,
            devices: &resolved.devices,
            placement: &placement,
            kinds,
            faults: &mut faults,
            launched: vec![None; run.node_count()],
            recomputed: HashMap::new(),
            copied: HashMap::new(),
            late: HashSet::new(),
            awaited: HashMap::new(),
            working: vec![Bytes::ZERO; plan.devices.len()],
        };
        sweep(&resolved.steps, |i, event, past| proof.step(i, event, past));
        proof.finish();
        let (pins, colocate) = (&plan.options.pins, &plan.options.colocate);
        let patterns = Patterns { of: derived.as_ref().map(|derived| (graph, derived)), pins, colocate };
        prove(plan, run, &patterns, &mut faults);
    }
    faults.result(plan).map(|()| checked)
}

/// Nodes by name.
type Names<'a> = HashMap<&'a str, NodeIx>;

/// Each node's device; none where the plan does not place the graph's nodes.
fn placement<'a>(
    plan: &Plan,
    graph: &'a CostGraph,
    resolved: &Resolved<'_>,
    faults: &mut Faults,
) -> Option<(Names<'a>, Vec<DeviceId>)> {
    let names: Names<'a> = graph.nodes().map(|node| (graph.node_name(node), node)).collect();
    let mut placement = vec![None; graph.node_count()];
    for (name, device) in &plan.placement {
        let device = resolved.devices.get(device.as_str()).copied().map(DeviceId);
        match names.get(name.as_str()) {
            Some(node) => placement[node.index()] = device,
            None => faults.add(|| format!("the plan places {name}, which the graph does not have")),
        }
    }
    for node in graph.nodes().filter(|node| placement[node.index()].is_none()) {
        faults.add(|| format!("the plan does not place node {}", graph.node_name(node)));
    }
    let placement: Option<Vec<DeviceId>> = placement.into_iter().collect();
    placement.map(|placement| (names, placement))
}

struct Proof<'a> {
    plan: &'a Plan,
    /// What runs: the graph itself, or its instances.
    graph: &'a CostGraph,
    derived: Option<&'a Derived>,
    /// Of the graph that was given.
    names: &'a Names<'a>,
    devices: &'a HashMap<&'a str, u32>,
    placement: &'a [DeviceId],
    /// By device, its position among the graph's kinds.
    kinds: Vec<Option<usize>>,
    faults: &'a mut Faults,
    /// By node, where it was launched.
    launched: Vec<Option<Event>>,
    /// By node, where it was computed again.
    recomputed: HashMap<NodeIx, Vec<Event>>,
    /// By tensor and receiving device, and whether it was computed again, what copies brought.
    copied: HashMap<(TensorIx, DeviceId, bool), Covered>,
    /// By node and tensor: the reader waits for what comes back to its device.
    late: HashSet<(NodeIx, TensorIx)>,
    /// Readers of what comes back that ran before, and so are to run again, with the step that brings it.
    awaited: HashMap<NodeIx, u64>,
    /// By device, the most that one launch there needs beside what is never freed.
    working: Vec<Bytes>,
}

impl<'a> Proof<'a> {
    fn step(&mut self, i: usize, event: Event, past: &Past<'_>) {
        let step = &self.plan.steps[i];
        match &step.action {
            Action::Launch(launch) => self.launch(step, launch, event, past),
            Action::Copy(copy) => self.copy(step, copy, event, past),
        }
    }

    fn launch(&mut self, step: &Step, launch: &Launch, event: Event, past: &Past<'_>) {
        for name in &launch.nodes {
            let Some(node) = self.find(name, launch.microbatch) else {
                self.faults.add(|| {
                    let of = launch.microbatch.map_or(String::new(), |m| format!(" of microbatch {m}"));
                    format!("step {} launches {name}{of}, which is not there", step.id)
                });
                continue;
            };
            if self.graph.role(node) != Role::Compute {
                self.faults.add(|| format!("step {} launches {name}, which does not run", step.id));
            }
            let device = self.placement[node.index()];
            let kind = self.kinds.get(device.index()).copied().flatten();
            if kind.and_then(|kind| self.graph.time(node, kind)).is_none() {
                self.faults.add(|| format!("{} cannot run {name}", step.device));
            }
            for &tensor in self.graph.inputs(node) {
                let there = match self.late.contains(&(node, tensor)) {
                    true => self.was_brought(tensor, device, self.whole(tensor), past),
                    false => self.is_there(tensor, device, self.whole(tensor), event, past),
                };
                if !there {
                    let producer = self.graph.node_name(self.graph.producer(tensor));
                    let output = self.graph.output_index(tensor);
                    self.faults.add(|| {
                        format!("step {} launches {name} before {producer}:{output} is there", step.id)
                    });
                }
            }
            self.demand(node, device);
            self.awaited.remove(&node);
            if launch.again {
                self.recomputed.entry(node).or_default().push(event);
            } else if self.launched[node.index()].replace(event).is_some() {
                self.faults.add(|| format!("step {} launches {name} a second time", step.id));
            }
        }
    }

    /// The node with this name, or its instance in a microbatch.
    fn find(&self, name: &str, microbatch: Option<u32>) -> Option<NodeIx> {
        let node = self.names.get(name).copied()?;
        match self.derived {
            Some(derived) => derived.find(Instance { node, microbatch, again: false }),
            None => Some(node),
        }
    }

    /// All bytes of a tensor. One without bytes counts as having one.
    fn whole(&self, tensor: TensorIx) -> ByteRange {
        ByteRange { start: 0, end: self.graph.tensor_bytes(tensor).0.max(1) }
    }

    /// True where copies brought these bytes of a tensor to a device before the step begins.
    fn was_brought(&self, tensor: TensorIx, device: DeviceId, range: ByteRange, past: &Past<'_>) -> bool {
        let brought = |again| self.copied.get(&(tensor, device, again));
        [false, true].into_iter().filter_map(brought).any(|copied| copied.hold(range, past))
    }

    /// True where these bytes of a tensor lie on a device before the step begins. Nodes that one
    /// launch computes follow one another within it.
    fn is_there(
        &self,
        tensor: TensorIx,
        device: DeviceId,
        range: ByteRange,
        event: Event,
        past: &Past<'_>,
    ) -> bool {
        let over = |other: Event| past.contains(other) || other == event;
        let producer = self.graph.producer(tensor);
        let at_home = self.placement[producer.index()] == device;
        match self.graph.role(producer) {
            Role::Param => true,
            Role::Input if at_home => true,
            Role::Compute if at_home => {
                let recomputed = self.recomputed.get(&producer).into_iter().flatten();
                self.launched[producer.index()].iter().chain(recomputed).any(|&event| over(event))
            }
            Role::Input | Role::Compute => self.was_brought(tensor, device, range, past),
        }
    }

    /// Inputs, or outputs where those are more (one may be where the other was), and workspace.
    fn demand(&mut self, node: NodeIx, device: DeviceId) {
        let graph = self.graph;
        let made = |tensor: &TensorIx| graph.role(graph.producer(*tensor)) != Role::Param;
        let reads: Bytes =
            graph.inputs(node).iter().copied().filter(made).map(|tensor| graph.tensor_bytes(tensor)).sum();
        let writes: Bytes = graph.outputs(node).map(|tensor| graph.tensor_bytes(tensor)).sum();
        let demand = reads.max(writes) + graph.workspace_bytes(node);
        if let Some(most) = self.working.get_mut(device.index()) {
            *most = demand.max(*most);
        }
    }

    fn copy(&mut self, step: &Step, copy: &CopyAction, event: Event, past: &Past<'_>) {
        let (name, output) = (copy.node.as_deref().unwrap_or_default(), copy.output.unwrap_or_default());
        let node = self.find(name, copy.microbatch);
        let tensor = node.and_then(|node| self.graph.output(node, output));
        let device = |name: &str| self.devices.get(name).copied().map(DeviceId);
        let devices = (device(&copy.from), device(&copy.to));
        let (Some(tensor), (Some(from), Some(to))) = (tensor, devices) else {
            self.faults.add(|| format!("step {} copies {name}:{output}, which is not there", step.id));
            return;
        };
        if self.graph.role(self.graph.producer(tensor)) == Role::Param {
            self.faults.add(|| format!("step {} copies parameter {name}", step.id));
        }
        let whole = self.whole(tensor);
        let range = copy.part.map_or(whole, |(offset, bytes)| ByteRange {
            start: offset.0,
            end: offset.0.saturating_add(bytes.0),
        });
        if !self.is_there(tensor, from, range, event, past) {
            self.faults
                .add(|| format!("step {} copies {name}:{output} before it is on {}", step.id, copy.from));
        }
        let bytes = self.graph.tensor_bytes(tensor);
        let fits = if copy.part.is_some() { range.end <= bytes.0 } else { bytes == copy.bytes };
        if !fits {
            self.faults.add(|| {
                format!(
                    "step {} copies {} bytes of {name}:{output}, which has {}",
                    step.id, copy.bytes.0, bytes.0
                )
            });
        }
        if self.placement[self.graph.producer(tensor).index()] == to && copy.readers.is_empty() {
            self.faults.add(|| {
                format!(
                    "step {} copies {name}:{output} back to {}, and no reader waits for it",
                    step.id, copy.to
                )
            });
        }
        for reader in &copy.readers {
            self.await_return(step, reader, copy.microbatch, tensor, to);
        }
        if self.copied.entry((tensor, to, copy.again)).or_default().add(range, event) {
            self.faults
                .add(|| format!("step {} brings {name}:{output} to {} a second time", step.id, copy.to));
        }
    }

    /// Notes that a launch reads what comes back; it is yet to come. It is of the value's microbatch, of
    /// all, or, where it adds to the value, of the next.
    fn await_return(
        &mut self,
        step: &Step,
        reader: &str,
        microbatch: Option<u32>,
        tensor: TensorIx,
        to: DeviceId,
    ) {
        let next = microbatch.and_then(|microbatch| microbatch.checked_add(1));
        let reads =
            |node: &NodeIx| self.placement[node.index()] == to && self.graph.inputs(*node).contains(&tensor);
        let of = [microbatch, None, next].into_iter().filter_map(|of| self.find(reader, of));
        match of.into_iter().find(reads) {
            Some(node) => {
                self.late.insert((node, tensor));
                if self.launched[node.index()].is_some() {
                    self.awaited.insert(node, step.id);
                }
            }
            None => {
                let device = &step.device;
                self.faults.add(|| format!("step {}: {reader} does not read its value on {device}", step.id));
            }
        }
    }

    /// What comes in parts has come whole.
    fn parts(&mut self) {
        let mut short: Vec<(TensorIx, DeviceId)> = Vec::new();
        for (&(tensor, device, _), copied) in &self.copied {
            if copied.first_gap(self.whole(tensor).end).is_some() {
                short.push((tensor, device));
            }
        }
        // Sorted: faults are listed in the same order on every machine.
        short.sort_unstable();
        for (tensor, device) in short {
            let name = self.graph.node_name(self.graph.producer(tensor));
            let output = self.graph.output_index(tensor);
            let device = &self.plan.devices[device.index()].name;
            self.faults.add(|| format!("{device} does not receive all of {name}:{output}"));
        }
    }

    fn finish(mut self) {
        self.parts();
        let mut late: Vec<(NodeIx, u64)> = std::mem::take(&mut self.awaited).into_iter().collect();
        late.sort_unstable();
        for (node, step) in late {
            let reader = self.graph.node_name(node);
            self.faults.add(|| format!("step {step} comes too late for {reader}, launched before it"));
        }
        for node in self.graph.nodes() {
            if self.graph.role(node) == Role::Compute && self.launched[node.index()].is_none() {
                self.faults.add(|| format!("node {} is never launched", self.graph.node_name(node)));
            }
        }
        let (load, resident) = self.params();
        if load != self.plan.cost.load_bytes {
            self.faults.add(|| {
                let found = self.plan.cost.load_bytes.0;
                format!("cost.load_bytes is {found}, the parameters' copies have {}", load.0)
            });
        }
        for (device, (resident, working)) in
            self.plan.devices.iter().zip(resident.into_iter().zip(&self.working))
        {
            let demand = resident + *working;
            if device.peak < demand {
                self.faults.add(|| {
                    let (name, peak) = (&device.name, device.peak.0);
                    format!("device {name} holds at least {} bytes at once, its peak says {peak}", demand.0)
                });
            }
        }
    }

    /// Bytes of parameters beyond each one's first device, and by device what is never freed.
    fn params(&self) -> (Bytes, Vec<Bytes>) {
        let graph = self.graph;
        let mut holders: Vec<(u32, u32)> = Vec::new();
        let mut homes: Vec<Option<u32>> = vec![None; graph.param_count()];
        let mut resident = vec![Bytes::ZERO; self.plan.devices.len().max(self.plan.topology.len())];
        for node in graph.nodes() {
            let home = self.placement[node.index()];
            resident[home.index()] += graph.owned_bytes(node);
            let Some(param) = graph.param(node) else { continue };
            homes[param.index()].get_or_insert(home.0);
            for tensor in graph.outputs(node) {
                let readers = graph.consumers(tensor).iter();
                holders.extend(readers.map(|reader| (param.0, self.placement[reader.index()].0)));
                if graph.is_result(tensor) {
                    holders.push((param.0, home.0));
                }
            }
        }
        holders.sort_unstable();
        holders.dedup();
        let mut first = vec![true; graph.param_count()];
        let mut load = Bytes::ZERO;
        for &(param, device) in &holders {
            let bytes = graph.param_bytes(crate::costgraph::ParamIx(param));
            resident[device as usize] += bytes;
            if !std::mem::take(&mut first[param as usize]) {
                load += bytes;
            }
        }
        // What nobody reads is held at its first home.
        for (param, home) in homes.into_iter().enumerate() {
            if let (true, Some(home)) = (first[param], home) {
                resident[home as usize] += graph.param_bytes(crate::costgraph::ParamIx(param as u32));
            }
        }
        (load, resident)
    }
}
