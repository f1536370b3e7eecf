//! Makes a [`Plan`] of a placement and its schedule.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::parts::Parts;
use super::waits::{BACK, OFFLOADED};
use super::{
    Action, Bound, Buffer, BufferKind, CopyAction, Cost, Kernel, Labels, Lane, Launch, NodeLabel, Plan,
    PlanDevice, PlanModel, PlanOptions, Read, Reason, SliceLabel, Step, VERSION, Wait,
};
use crate::costgraph::derive::{Derived, Instance};
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::error::{Error, Result};
use crate::place::Placement;
use crate::schedule::{self, BufferIx, Content, Schedule};
use crate::topology::{DeviceId, Topology};
use crate::units::Bytes;

/// What a plan says beside what placement and schedule say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meta {
    /// What is planned.
    pub model: PlanModel,
    /// What was asked for.
    pub options: PlanOptions,
    /// Kept free on each device.
    pub reserve: Bytes,
    /// The certificate, where there is one.
    pub bound: Option<Bound>,
    /// Remarks for people; the placement's own follow them.
    pub notes: Vec<String>,
}

/// Makes the plan. Steps keep the schedule's order and numbers, buffers theirs: `b0` is the first.
/// O(nodes + edges + steps + buffers).
///
/// A launch reads the operands that its label names (else the node's inputs in the order of the
/// cost graph), then what the node owns; it writes the node's outputs in order, then its
/// workspace.
///
/// Errors: [`Error::Internal`] where graph, placement, schedule and labels do not belong
/// together.
pub fn build(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    schedule: &Schedule,
    labels: Option<&Labels>,
    meta: Meta,
) -> Result<Plan> {
    let source = SourceNode { graph, derived: None, base: graph };
    build_of(&source, topology, placement, schedule, labels, meta)
}

/// As [`build`], for a graph of instances: placement and schedule are of `derived`, names and
/// labels of `base`, from which it was derived. Launches say which instance they are.
///
/// Errors: those of [`build`].
pub fn build_derived(
    base: &CostGraph,
    derived: &Derived,
    topology: &Topology,
    placement: &Placement,
    schedule: &Schedule,
    labels: Option<&Labels>,
    meta: Meta,
) -> Result<Plan> {
    let source = SourceNode { graph: &derived.graph, derived: Some(derived), base };
    build_of(&source, topology, placement, schedule, labels, meta)
}

/// What is planned: a graph, and the one that its nodes are instances of.
struct SourceNode<'a> {
    graph: &'a CostGraph,
    derived: Option<&'a Derived>,
    base: &'a CostGraph,
}

impl SourceNode<'_> {
    fn instance(&self, node: NodeIx) -> Instance {
        self.derived.map_or(Instance::once(node), |derived| derived.instance(node))
    }

    fn tensor(&self, tensor: TensorIx) -> TensorIx {
        self.derived.map_or(tensor, |derived| derived.base_tensor(tensor))
    }

    fn name(&self, node: NodeIx) -> &str {
        self.base.node_name(self.instance(node).node)
    }
}

fn build_of(
    source: &SourceNode<'_>,
    topology: &Topology,
    placement: &Placement,
    schedule: &Schedule,
    labels: Option<&Labels>,
    meta: Meta,
) -> Result<Plan> {
    fits(source, topology, placement, schedule, labels)?;
    // Plans of cost graphs name no buffers.
    let buffers = labels.map(|_| index_buffers(schedule)).unwrap_or_default();
    let builder = PlanBuilder { source, topology, placement, schedule, labels, buffers };
    let kernels = builder.kernels();
    let mut plan = Plan {
        version: VERSION,
        model: meta.model,
        options: meta.options,
        devices: builder.devices(meta.reserve),
        placement: builder.placement(placement),
        unlaunched: Vec::new(),
        buffers: builder.plan_buffers(),
        kernels: kernels.list,
        topology: topology.clone(),
        steps: builder.steps(&kernels.of)?,
        cost: Cost {
            transfer_bytes: schedule.cost.step_bytes + schedule.cost.load_bytes,
            step_bytes: schedule.cost.step_bytes,
            load_bytes: schedule.cost.load_bytes,
            latency_ns: schedule.cost.latency,
            max_load_ns: schedule.cost.max_load,
        },
        bound: meta.bound,
        replan: None,
        profile: None,
        notes: meta.notes.into_iter().chain(placement.notes.iter().cloned()).collect(),
    };
    plan.unlaunched = if labels.is_some() { unlaunched(&plan) } else { builder.unlaunched() };
    plan.number_parts();
    Ok(plan)
}

fn fits(
    source: &SourceNode<'_>,
    topology: &Topology,
    placement: &Placement,
    schedule: &Schedule,
    labels: Option<&Labels>,
) -> Result<()> {
    let mut sizes = vec![
        ("placed nodes", placement.device.len(), source.graph.node_count()),
        ("devices of the schedule", schedule.devices.len(), topology.len()),
    ];
    if let Some(labels) = labels {
        sizes.push(("labels of nodes", labels.nodes.len(), source.base.node_count()));
        sizes.push(("labels of tensors", labels.tensors.len(), source.base.tensor_count()));
        sizes.push(("labels of parameters", labels.params.len(), source.base.param_count()));
    }
    match sizes.into_iter().find(|(_, found, expected)| found != expected) {
        Some((what, found, expected)) => {
            Err(Error::Internal(format!("expected {expected} {what}, found {found}")))
        }
        None => Ok(()),
    }
}

/// Nodes of the placement that no step launches.
fn unlaunched(plan: &Plan) -> Vec<String> {
    let mut launched: HashSet<&str> = HashSet::with_capacity(plan.steps.len());
    for step in &plan.steps {
        if let Action::Launch(launch) = &step.action {
            launched.extend(launch.nodes.iter().map(String::as_str));
        }
    }
    let parts = Parts::new(&plan.options);
    let is_idle = |node: &str| !launched.contains(node) && !parts.is_split(node);
    let rest = plan.placement.iter().filter(|(node, _)| is_idle(node));
    rest.map(|(node, _)| node.clone()).collect()
}

/// Where to find what is read: looked up by content, never iterated.
fn index_buffers(schedule: &Schedule) -> HashMap<Key, BufferIx> {
    let numbered = schedule.buffers.iter().enumerate();
    let own = numbered.map(|(i, buffer)| (key(buffer.device, buffer.content), BufferIx(i as u32)));
    let updated = schedule.updates.iter().map(|&(tensor, buffer)| {
        (key(schedule.buffers[buffer.index()].device, Content::Tensor(tensor)), buffer)
    });
    own.chain(updated).collect()
}

/// Device, sort of content, and its number.
type Key = (DeviceId, u8, u32);

fn key(device: DeviceId, content: Content) -> Key {
    match content {
        Content::Tensor(tensor) => (device, 0, tensor.0),
        Content::Param(param) => (device, 1, param.0),
        Content::Owned(node) => (device, 2, node.0),
        Content::Workspace(node) => (device, 3, node.0),
        Content::Returned(tensor) => (device, 4, tensor.0),
    }
}

fn buffer_id(buffer: BufferIx) -> String {
    format!("b{}", buffer.0)
}

struct Kernels {
    list: Vec<Kernel>,
    /// By source node: its position in `list`.
    of: Vec<Option<u32>>,
}

struct PlanBuilder<'a> {
    source: &'a SourceNode<'a>,
    topology: &'a Topology,
    placement: &'a Placement,
    schedule: &'a Schedule,
    labels: Option<&'a Labels>,
    buffers: HashMap<Key, BufferIx>,
}

impl PlanBuilder<'_> {
    fn device_name(&self, device: DeviceId) -> String {
        self.topology.device(device).name.clone()
    }

    fn devices(&self, reserve: Bytes) -> Vec<PlanDevice> {
        let shares = self.topology.devices.iter().zip(&self.schedule.devices);
        shares
            .map(|(device, usage)| PlanDevice {
                name: device.name.clone(),
                target: device.target.to_string(),
                memory: device.memory,
                arena: usage.arena,
                peak: usage.peak,
                reserve,
                arena_bound: usage.bound,
            })
            .collect()
    }

    fn placement(&self, placement: &Placement) -> Vec<(String, String)> {
        let named = |node: &str, device: DeviceId| (node.to_owned(), self.device_name(device));
        match self.labels {
            Some(labels) => labels.placement.iter().map(|(node, device)| named(node, *device)).collect(),
            None => {
                let mut device = vec![DeviceId(0); self.source.base.node_count()];
                for (node, &here) in self.source.graph.nodes().zip(&placement.device) {
                    device[self.source.instance(node).node.index()] = here;
                }
                let nodes = self.source.base.nodes().zip(device);
                nodes.map(|(node, device)| named(self.source.base.node_name(node), device)).collect()
            }
        }
    }

    /// As [`unlaunched`], for a cost graph: launches are of its nodes.
    fn unlaunched(&self) -> Vec<String> {
        let mut launched = vec![false; self.source.base.node_count()];
        for step in &self.schedule.steps {
            if let schedule::Action::Launch(node) = step.action {
                launched[self.source.instance(node).node.index()] = true;
            }
        }
        let idle = self.source.base.nodes().filter(|node| !launched[node.index()]);
        idle.map(|node| self.source.base.node_name(node).to_owned()).collect()
    }

    /// One kernel for each digest, in the order of their first launch.
    fn kernels(&self) -> Kernels {
        let mut kernels = Kernels { list: Vec::new(), of: vec![None; self.source.base.node_count()] };
        let Some(labels) = self.labels else { return kernels };
        let mut by_hash: HashMap<u64, u32> = HashMap::new();
        for step in &self.schedule.steps {
            let schedule::Action::Launch(node) = step.action else { continue };
            let node = self.source.instance(node).node;
            let label = &labels.nodes[node.index()];
            let kernel = *by_hash.entry(label.hash).or_insert_with(|| {
                let number = kernels.list.len() as u32;
                kernels.list.push(Kernel {
                    id: format!("k{number}"),
                    hero: label.hero.clone(),
                    hash: format!("{:016x}", label.hash),
                    nodes: Vec::new(),
                });
                number
            });
            if kernels.of[node.index()].replace(kernel).is_none() {
                kernels.list[kernel as usize].nodes.extend(label.nodes.iter().cloned());
            }
        }
        kernels
    }

    fn plan_buffers(&self) -> Vec<Buffer> {
        let Some(labels) = self.labels else { return Vec::new() };
        let numbered = self.schedule.buffers.iter().enumerate();
        numbered
            .map(|(i, buffer)| {
                let (ty, value, kind) = self.describe(labels, buffer);
                let slice = self.slice(labels, buffer.content);
                Buffer {
                    id: buffer_id(BufferIx(i as u32)),
                    ty,
                    device: self.device_name(buffer.device),
                    offset: buffer.offset,
                    bytes: buffer.bytes,
                    kind,
                    alias: buffer.within.map(buffer_id),
                    value,
                    microbatch: self.microbatch(buffer.content),
                    of: slice.map(|slice| slice.of.clone()),
                    bounds: slice.map_or_else(Vec::new, |slice| slice.bounds.clone()),
                    partial: slice.and_then(|slice| slice.partial),
                    feeds: self.feeds(buffer).map(buffer_id),
                    axis: None,
                }
            })
            .collect()
    }

    /// The state on the same device whose place a buffer's content takes when the step has ended.
    fn feeds(&self, buffer: &schedule::Buffer) -> Option<BufferIx> {
        let Content::Tensor(tensor) = buffer.content else { return None };
        let is_made = buffer.kind == schedule::BufferKind::Output;
        let state = self.source.graph.updated(tensor).filter(|_| is_made)?;
        self.buffers.get(&key(buffer.device, Content::Tensor(state))).copied()
    }

    /// The part of a value that a buffer's content is.
    fn slice<'l>(&self, labels: &'l Labels, content: Content) -> Option<&'l SliceLabel> {
        match content {
            Content::Tensor(tensor) | Content::Returned(tensor) => {
                labels.tensors[self.source.tensor(tensor).index()].slice.as_ref()
            }
            Content::Param(param) => labels.params[param.index()].slice.as_ref(),
            Content::Owned(_) | Content::Workspace(_) => None,
        }
    }

    /// The microbatch that a buffer's content belongs to.
    fn microbatch(&self, content: Content) -> Option<u32> {
        match content {
            Content::Tensor(tensor) | Content::Returned(tensor) => {
                self.source.instance(self.source.graph.producer(tensor)).microbatch
            }
            Content::Workspace(node) => self.source.instance(node).microbatch,
            Content::Param(_) | Content::Owned(_) => None,
        }
    }

    /// Type, name and kind of what a buffer holds.
    fn describe(&self, labels: &Labels, buffer: &schedule::Buffer) -> (String, String, BufferKind) {
        let kind = match buffer.kind {
            schedule::BufferKind::Input => BufferKind::Input,
            schedule::BufferKind::Param => BufferKind::Param,
            schedule::BufferKind::Temp => BufferKind::Temp,
            schedule::BufferKind::Output => BufferKind::Output,
            schedule::BufferKind::Copy => BufferKind::Copy,
            schedule::BufferKind::Workspace => BufferKind::Workspace,
        };
        let raw = || format!("u8[{}]", buffer.bytes.0);
        match buffer.content {
            Content::Tensor(tensor) | Content::Returned(tensor) => {
                let label = &labels.tensors[self.source.tensor(tensor).index()];
                let kind = if label.state && kind == BufferKind::Input { BufferKind::State } else { kind };
                (label.ty.clone(), label.name.clone(), kind)
            }
            Content::Param(param) => {
                let label = &labels.params[param.index()];
                let kind = if label.constant { BufferKind::Const } else { kind };
                (label.ty.clone(), label.name.clone(), kind)
            }
            Content::Owned(node) | Content::Workspace(node) => {
                (raw(), self.source.name(node).to_owned(), kind)
            }
        }
    }

    fn steps(&self, kernels: &[Option<u32>]) -> Result<Vec<Step>> {
        let names: Vec<Arc<str>> =
            self.topology.devices.iter().map(|device| device.name.as_str().into()).collect();
        let numbered = self.schedule.steps.iter().enumerate();
        numbered
            .map(|(i, step)| {
                Ok(Step {
                    id: i as u64,
                    device: Arc::clone(&names[step.device.index()]),
                    lane: match step.lane {
                        schedule::Lane::Compute => Lane::Compute,
                        schedule::Lane::Copy => Lane::Copy,
                    },
                    after: step.after.iter().map(|step| u64::from(step.0)).collect(),
                    action: match step.action {
                        schedule::Action::Launch(node) => {
                            Action::Launch(self.launch(step.device, node, kernels)?)
                        }
                        schedule::Action::Copy { tensor, from, to, part } => {
                            Action::Copy(Box::new(self.copy(tensor, from, to, part)?))
                        }
                    },
                    why: self.why(step),
                })
            })
            .collect()
    }

    fn launch(&self, device: DeviceId, node: NodeIx, kernels: &[Option<u32>]) -> Result<Launch> {
        let Instance { node: base, microbatch, again } = self.source.instance(node);
        let Some(labels) = self.labels else {
            let nodes = vec![self.source.name(node).to_owned()];
            return Ok(Launch { nodes, microbatch, again, ..Launch::default() });
        };
        let label = &labels.nodes[base.index()];
        Ok(Launch {
            part: None,
            kernel: kernels[base.index()].map(|kernel| format!("k{kernel}")),
            nodes: label.nodes.clone(),
            reads: self.reads(device, node, label)?,
            writes: self.writes(device, node)?,
            group: Some(label.group),
            microbatch,
            again,
        })
    }

    fn reads(&self, device: DeviceId, node: NodeIx, label: &NodeLabel) -> Result<Vec<String>> {
        let inputs = self.source.graph.inputs(node);
        let content = |read: &Read| match *read {
            Read::Param(param) => Content::Param(param),
            // Of the instances of a tensor, the one that this instance reads.
            Read::Tensor(tensor) => {
                let own = inputs.iter().find(|&&input| self.source.tensor(input) == tensor);
                self.content(device, node, own.copied().unwrap_or(tensor))
            }
        };
        let mut reads = match &label.reads {
            Some(reads) => {
                reads.iter().map(|read| self.find(device, content(read))).collect::<Result<Vec<_>>>()?
            }
            None => {
                let inputs = inputs.iter();
                inputs
                    .map(|&tensor| self.find(device, self.content(device, node, tensor)))
                    .collect::<Result<Vec<_>>>()?
            }
        };
        reads.extend(self.buffers.get(&key(device, Content::Owned(node))).copied().map(buffer_id));
        Ok(reads)
    }

    fn writes(&self, device: DeviceId, node: NodeIx) -> Result<Vec<String>> {
        let outputs = self.source.graph.outputs(node);
        let mut writes =
            outputs.map(|tensor| self.find(device, Content::Tensor(tensor))).collect::<Result<Vec<_>>>()?;
        writes.extend(self.buffers.get(&key(device, Content::Workspace(node))).copied().map(buffer_id));
        Ok(writes)
    }

    /// What the bytes of a tensor are that a node reads: its own, those that came back from a host,
    /// or a parameter's.
    fn content(&self, device: DeviceId, node: NodeIx, tensor: TensorIx) -> Content {
        let graph = self.source.graph;
        let producer = graph.producer(tensor);
        let back = Content::Returned(tensor);
        match graph.role(producer) {
            Role::Param => graph.param(producer).map_or(Content::Tensor(tensor), Content::Param),
            Role::Compute
                if self.schedule.is_late(node, tensor) && self.buffers.contains_key(&key(device, back)) =>
            {
                back
            }
            Role::Input | Role::Compute => Content::Tensor(tensor),
        }
    }

    fn find(&self, device: DeviceId, content: Content) -> Result<String> {
        self.buffers.get(&key(device, content)).copied().map(buffer_id).ok_or_else(|| {
            let device = &self.topology.device(device).name;
            Error::Internal(format!("the schedule has no buffer for {content:?} on {device}"))
        })
    }

    fn copy(
        &self,
        tensor: TensorIx,
        from: BufferIx,
        to: BufferIx,
        part: Option<schedule::Part>,
    ) -> Result<CopyAction> {
        let buffer = |buffer: BufferIx| {
            let found = self.schedule.buffers.get(buffer.index());
            found.ok_or_else(|| Error::Internal(format!("the schedule has no buffer {}", buffer.0)))
        };
        let graph = self.source.graph;
        let bytes = part.map_or(graph.tensor_bytes(tensor), |part| part.bytes);
        let part = part.map(|part| (part.offset, part.bytes));
        let (source, receiver) = (buffer(from)?, buffer(to)?);
        if self.labels.is_some() {
            return Ok(CopyAction {
                from: buffer_id(from),
                to: buffer_id(to),
                bytes,
                part,
                ..CopyAction::default()
            });
        }
        let producer = graph.producer(tensor);
        let Instance { microbatch, again, .. } = self.source.instance(producer);
        let offloads = &self.schedule.offload;
        let readers = match offloads.binary_search_by_key(&tensor, |offload| offload.tensor) {
            Ok(found) if receiver.content == Content::Returned(tensor) => {
                let readers = offloads[found].readers.iter();
                let here = readers.filter(|node| self.placement.device[node.index()] == receiver.device);
                here.map(|&node| self.source.name(node).to_owned()).collect()
            }
            Ok(_) | Err(_) => Vec::new(),
        };
        Ok(CopyAction {
            node: Some(self.source.name(producer).to_owned()),
            output: Some(graph.output_index(tensor)),
            microbatch,
            again,
            from: self.device_name(source.device),
            to: self.device_name(receiver.device),
            bytes,
            part,
            readers,
        })
    }

    /// What is offloaded, and the dependencies that the data does not ask for, in words.
    fn why(&self, step: &schedule::Step) -> Option<String> {
        let mut reasons: Vec<String> = self.offloaded(step).into_iter().collect();
        for (reason, why) in
            [(Reason::Urgency, schedule::Why::Starve), (Reason::Memory, schedule::Why::Memory)]
        {
            let steps = step.control.iter().filter(|(_, found)| *found == why);
            let steps: Vec<u64> = steps.map(|(other, _)| u64::from(other.0)).collect();
            if !steps.is_empty() {
                reasons.push(Wait { reason, steps }.to_string());
            }
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// What a copy does for an offload.
    fn offloaded(&self, step: &schedule::Step) -> Option<String> {
        let schedule::Action::Copy { tensor, from, to, .. } = step.action else { return None };
        let offloads = &self.schedule.offload;
        let found = offloads.binary_search_by_key(&tensor, |offload| offload.tensor).ok()?;
        let (from, to) = (self.schedule.buffers.get(from.index())?, self.schedule.buffers.get(to.index())?);
        let host = offloads[found].host;
        if to.content == Content::Returned(tensor) {
            Some(format!("{BACK} {}, where it was offloaded", self.device_name(from.device)))
        } else if to.device == host {
            Some(format!("{OFFLOADED} on {}", self.device_name(from.device)))
        } else {
            None
        }
    }
}
