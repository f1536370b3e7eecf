//! Random plans: cost graphs, topologies and placements of `random_costgraph`, scheduled by a plain
//! scheduler of our own that shares no code with the library's: one node after the other, bytes
//! used again as soon as a dependency can be drawn from their last uses.
#![allow(dead_code, reason = "each test module uses its own part")]

use std::collections::{BTreeMap, BTreeSet};

use partition::unstable::costgraph::{CostGraph, NodeIx, ParamIx, Role, TensorIx};
use partition::unstable::place::{self, Placement};
use partition::unstable::plan::{
    self, ExpectedModel, InPlace, Labels, Meta, NodeLabel, ParamLabel, Plan, Read, ValueLabel,
};
use partition::unstable::schedule::{
    Action, Buffer, BufferIx, BufferKind, Content, DeviceUsage, Lane, Schedule, Step, StepIx, Why,
};
use partition::unstable::topology::{Communication, Contention, DeviceId, Topology};
use partition::unstable::units::{Bytes, Nanos};

use crate::random_costgraph::{self as random, Links, Rng};

/// A plan and all that it was made from.
pub(crate) struct Case {
    pub(crate) graph: CostGraph,
    pub(crate) topology: Topology,
    pub(crate) placement: Placement,
    pub(crate) schedule: Schedule,
    pub(crate) labels: Labels,
    /// With buffers and kernels.
    pub(crate) plan: Plan,
    /// As an engine gets it that hands a cost graph in.
    pub(crate) bare: Plan,
    pub(crate) model: ExpectedModel,
}

/// A random case; a pure function of the seed.
pub(crate) fn case(seed: u64, nodes: usize) -> Case {
    let (mut rng, graph, topology, placement) = placed(seed, nodes);
    let schedule = Scheduler::run(&graph, &topology, &placement, &mut rng);
    let labels = labels(&graph, &placement, &mut rng);
    finish(graph, topology, placement, schedule, labels)
}

/// A random case scheduled by the library.
pub(crate) fn library_case(seed: u64, nodes: usize) -> Case {
    let (rng, graph, topology, placement) = placed(seed, nodes);
    scheduled(rng, graph, topology, placement)
}

/// A case of any size on eight devices, which share the nodes in equal runs.
pub(crate) fn large_case(nodes: usize) -> Case {
    let mut rng = Rng::new(1);
    let graph = random::cost_graph(&mut rng, nodes);
    let links = Links::Direct(Contention::Link);
    let topology = random::topology(4, 2, Bytes(1 << 40), links, Nanos(10), Communication::Overlapped);
    let device = graph.nodes().map(|node| node.index() * topology.len() / graph.node_count());
    let device = device.map(|device| DeviceId(device as u32));
    let placement = Placement { device: device.collect(), ..Placement::default() };
    scheduled(rng, graph, topology, placement)
}

fn scheduled(mut rng: Rng, graph: CostGraph, topology: Topology, placement: Placement) -> Case {
    let options = partition::unstable::schedule::Options::default();
    let schedule = partition::unstable::schedule::schedule(&graph, &topology, &placement, &options)
        .expect("room enough");
    let labels = labels(&graph, &placement, &mut rng);
    finish(graph, topology, placement, schedule, labels)
}

fn placed(seed: u64, nodes: usize) -> (Rng, CostGraph, Topology, Placement) {
    let mut rng = Rng::new(seed);
    let graph = random::cost_graph(&mut rng, nodes);
    let (physicals, slices) = [(1, 1), (2, 1), (1, 3), (3, 1), (2, 2), (5, 1)][rng.below(6) as usize];
    let links = [Links::Direct(Contention::Link), Links::Staged][rng.below(2) as usize];
    let memory = Bytes(1 << 40);
    let topology = random::topology(physicals, slices, memory, links, Nanos(10), Communication::Overlapped);
    let placement = random::placement(&mut rng, &graph, &topology);
    (rng, graph, topology, placement)
}

/// Makes both plans of a schedule.
pub(crate) fn finish(
    graph: CostGraph,
    topology: Topology,
    placement: Placement,
    schedule: Schedule,
    labels: Labels,
) -> Case {
    let build = |labels: Option<&Labels>| {
        let nodes = labels.map_or(graph.node_count(), |labels| labels.placement.len());
        let options = plan::PlanOptions::from(&place::Options::default());
        let model =
            plan::PlanModel { name: "random".into(), hash: "abc".into(), nodes: nodes as u64, path: None };
        let meta = Meta { model, options, ..Meta::default() };
        plan::build(&graph, &topology, &placement, &schedule, labels, meta).expect("a plan")
    };
    let (plan, bare) = (build(Some(&labels)), build(None));
    let mut model = ExpectedModel::new(&graph, &labels, "abc");
    allow_in_place(&plan, &mut model);
    Case { graph, topology, placement, schedule, labels, plan, bare, model }
}

/// Lets every kernel write in place what the plan does: these plans are made without asking.
fn allow_in_place(plan: &Plan, model: &mut ExpectedModel) {
    let buffer = |id: &String| plan.buffers.iter().find(|buffer| buffer.id == *id).expect("a buffer");
    for step in &plan.steps {
        let plan::Action::Launch(launch) = &step.action else { continue };
        let values = &model.values;
        let named = |name: &str| values.iter().position(|value| value.name == name).expect("a value") as u32;
        let pairs = launch.reads.iter().flat_map(|read| launch.writes.iter().map(move |write| (read, write)));
        let pairs: Vec<InPlace> = pairs
            .map(|(read, write)| (buffer(read), buffer(write)))
            .filter(|(read, write)| (read.offset, &read.device) == (write.offset, &write.device))
            .filter(|(_, write)| write.kind != plan::BufferKind::Workspace)
            .map(|(read, write)| InPlace { operand: named(&read.value), result: named(&write.value) })
            .collect();
        let expected = model.launches.iter_mut().find(|expected| Some(expected.group) == launch.group);
        expected.expect("its group").in_place.extend(pairs);
    }
}

/// Labels as a model would give them: most groups hold one node, some two; kernels are shared.
pub(crate) fn labels(graph: &CostGraph, placement: &Placement, rng: &mut Rng) -> Labels {
    let mut labels = Labels::default();
    let raw = |bytes: Bytes| format!("u8[{}]", bytes.0);
    for tensor in graph.tensors() {
        let name = format!("{}:{}", graph.node_name(graph.producer(tensor)), graph.output_index(tensor));
        labels.tensors.push(ValueLabel {
            ty: raw(graph.tensor_bytes(tensor)),
            name,
            ..ValueLabel::default()
        });
    }
    for i in 0..graph.param_count() as u32 {
        let (bytes, name) = (graph.param_bytes(ParamIx(i)), graph.param_name(ParamIx(i)));
        labels.params.push(ParamLabel {
            ty: raw(bytes),
            name: name.to_owned(),
            constant: rng.chance(20),
            slice: None,
        });
    }
    for node in graph.nodes() {
        let device = placement.device[node.index()];
        let name = graph.node_name(node).to_owned();
        labels.placement.push((name.clone(), device));
        let mut label = NodeLabel { group: node.0, ..NodeLabel::default() };
        if graph.role(node) == Role::Compute {
            label.nodes.push(name.clone());
            if rng.chance(30) {
                let fused = format!("{name} (fused)");
                labels.placement.push((fused.clone(), device));
                label.nodes.push(fused);
            }
            label.hero = ["map", "row", "matmul"][rng.below(3) as usize].into();
            label.hash = rng.below(graph.node_count() as u64);
            if rng.chance(50) {
                let mut reads: Vec<Read> = graph.inputs(node).iter().map(|&t| read(graph, t)).collect();
                reads.reverse();
                label.reads = Some(reads);
            }
        }
        labels.nodes.push(label);
    }
    labels
}

fn read(graph: &CostGraph, tensor: TensorIx) -> Read {
    graph.param(graph.producer(tensor)).map_or(Read::Tensor(tensor), Read::Param)
}

/// A range of an arena, and who uses it.
struct Slot {
    offset: u64,
    size: u64,
    free: bool,
    uses: Vec<StepIx>,
}

struct Scheduler<'a> {
    graph: &'a CostGraph,
    placement: &'a [DeviceId],
    out: Schedule,
    slots: Vec<Vec<Slot>>,
    /// By (tensor, device): its buffer, and the step that writes it.
    held: BTreeMap<(TensorIx, DeviceId), (BufferIx, Option<StepIx>)>,
    params: BTreeMap<(ParamIx, DeviceId), BufferIx>,
    /// By buffer: its device's slot.
    slot_of: Vec<usize>,
    /// By (tensor, device): reads still to come.
    left: BTreeMap<(TensorIx, DeviceId), usize>,
}

impl Scheduler<'_> {
    fn run(graph: &CostGraph, topology: &Topology, placement: &Placement, rng: &mut Rng) -> Schedule {
        let placement = &placement.device;
        let mut this = Scheduler {
            graph,
            placement,
            out: Schedule { devices: vec![DeviceUsage::default(); topology.len()], ..Schedule::default() },
            slots: topology.ids().map(|_| Vec::new()).collect(),
            held: BTreeMap::new(),
            params: BTreeMap::new(),
            slot_of: Vec::new(),
            left: BTreeMap::new(),
        };
        this.count_reads();
        this.residents();
        for node in graph.topological_order().expect("acyclic") {
            if graph.role(node) == Role::Compute {
                this.launch(node, rng);
            }
        }
        for (device, slots) in this.slots.iter().enumerate() {
            let arena = slots.iter().map(|slot| slot.offset + slot.size).max().unwrap_or(0);
            this.out.devices[device].arena = Bytes(arena);
            this.out.devices[device].peak = Bytes(arena);
        }
        this.out
    }

    fn count_reads(&mut self) {
        for tensor in self.graph.tensors() {
            let home = self.placement[self.graph.producer(tensor).index()];
            for consumer in self.graph.consumers(tensor) {
                let device = self.placement[consumer.index()];
                *self.left.entry((tensor, device)).or_default() += 1;
            }
            let receivers: BTreeSet<_> =
                self.graph.consumers(tensor).iter().map(|c| self.placement[c.index()]).collect();
            let copies = receivers.iter().filter(|&&device| device != home).count();
            *self.left.entry((tensor, home)).or_default() += copies;
            if self.graph.is_result(tensor) {
                *self.left.entry((tensor, home)).or_default() += 1;
            }
        }
    }

    fn residents(&mut self) {
        let mut load = BTreeMap::new();
        for node in self.graph.nodes() {
            let home = self.placement[node.index()];
            let owned = self.graph.owned_bytes(node);
            if owned > Bytes::ZERO {
                self.make(home, Content::Owned(node), BufferKind::Param, owned, &mut BTreeSet::new());
            }
            match self.graph.role(node) {
                Role::Compute => {}
                Role::Input => {
                    for tensor in self.graph.outputs(node) {
                        let bytes = self.graph.tensor_bytes(tensor);
                        let content = Content::Tensor(tensor);
                        let buffer = self.make(home, content, BufferKind::Input, bytes, &mut BTreeSet::new());
                        self.held.insert((tensor, home), (buffer, None));
                    }
                }
                Role::Param => {
                    let param = self.graph.param(node).expect("a parameter");
                    let devices: BTreeSet<DeviceId> = self
                        .graph
                        .outputs(node)
                        .flat_map(|tensor| self.graph.consumers(tensor))
                        .map(|consumer| self.placement[consumer.index()])
                        .chain(self.graph.outputs(node).any(|t| self.graph.is_result(t)).then_some(home))
                        .collect();
                    for device in devices {
                        if !self.params.contains_key(&(param, device)) {
                            let bytes = self.graph.param_bytes(param);
                            let content = Content::Param(param);
                            let kind = BufferKind::Param;
                            let buffer = self.make(device, content, kind, bytes, &mut BTreeSet::new());
                            self.params.insert((param, device), buffer);
                            *load.entry(param).or_insert(0u64) += 1;
                        }
                    }
                }
            }
        }
        for node in self.graph.nodes() {
            let Some(param) = self.graph.param(node) else { continue };
            if load.insert(param, 1).map(|devices| load.insert(param, devices)).is_none() {
                let (home, bytes) = (self.placement[node.index()], self.graph.param_bytes(param));
                self.make(home, Content::Param(param), BufferKind::Param, bytes, &mut BTreeSet::new());
            }
        }
        for (param, devices) in load {
            self.out.cost.load_bytes += Bytes(self.graph.param_bytes(param).0 * (devices - 1));
        }
    }

    /// Finds bytes for a buffer; what used them before goes to `after`.
    fn make(
        &mut self,
        device: DeviceId,
        content: Content,
        kind: BufferKind,
        bytes: Bytes,
        after: &mut BTreeSet<StepIx>,
    ) -> BufferIx {
        let slots = &mut self.slots[device.index()];
        let size = bytes.0.div_ceil(64) * 64;
        let found = slots.iter().position(|slot| slot.free && slot.size >= size);
        let slot = found.unwrap_or_else(|| {
            let offset = slots.last().map_or(0, |slot| slot.offset + slot.size);
            slots.push(Slot { offset, size, free: true, uses: Vec::new() });
            slots.len() - 1
        });
        slots[slot].free = false;
        after.append(&mut slots[slot].uses.drain(..).collect());
        let offset = Bytes(slots[slot].offset);
        self.out.buffers.push(Buffer { device, content, kind, offset, bytes, within: None });
        self.slot_of.push(slot);
        BufferIx(self.out.buffers.len() as u32 - 1)
    }

    fn slot(&mut self, buffer: BufferIx) -> &mut Slot {
        let device = self.out.buffers[buffer.index()].device;
        &mut self.slots[device.index()][self.slot_of[buffer.index()]]
    }

    fn push(
        &mut self,
        device: DeviceId,
        lane: Lane,
        after: BTreeSet<StepIx>,
        memory: &BTreeSet<StepIx>,
        action: Action,
    ) {
        let on_lane = |step: &StepIx| {
            let step = &self.out.steps[step.index()];
            (step.device, step.lane) == (device, lane)
        };
        let control = memory.difference(&after).filter(|step| !on_lane(step));
        let control: Vec<_> = control.map(|&step| (step, Why::Memory)).collect();
        let after = after.union(memory).copied().filter(|step| !on_lane(step)).collect();
        self.out.steps.push(Step {
            device,
            lane,
            after,
            control,
            action,
            start: Nanos::ZERO,
            end: Nanos::ZERO,
        });
    }

    /// Says that a tensor was read on a device; frees it after its last read.
    fn was_read(&mut self, tensor: TensorIx, device: DeviceId, step: StepIx) {
        let (buffer, _) = self.held[&(tensor, device)];
        self.slot(buffer).uses.push(step);
        let left = self.left.get_mut(&(tensor, device)).expect("counted");
        *left -= 1;
        if *left == 0 {
            self.slot(buffer).free = true;
        }
    }

    fn copy(&mut self, tensor: TensorIx, to: DeviceId) {
        let home = self.placement[self.graph.producer(tensor).index()];
        let (from, written) = self.held[&(tensor, home)];
        let bytes = self.graph.tensor_bytes(tensor);
        let mut memory = BTreeSet::new();
        let buffer = self.make(to, Content::Tensor(tensor), BufferKind::Copy, bytes, &mut memory);
        let step = StepIx(self.out.steps.len() as u32);
        let action = Action::Copy { tensor, from, to: buffer, part: None };
        self.push(to, Lane::Copy, written.into_iter().collect(), &memory, action);
        self.out.cost.step_bytes += bytes;
        self.held.insert((tensor, to), (buffer, Some(step)));
        self.slot(buffer).uses.push(step);
        self.was_read(tensor, home, step);
    }

    fn launch(&mut self, node: NodeIx, rng: &mut Rng) {
        let device = self.placement[node.index()];
        let inputs: Vec<TensorIx> = self.graph.inputs(node).to_vec();
        let made: Vec<TensorIx> =
            inputs.into_iter().filter(|&t| self.graph.role(self.graph.producer(t)) != Role::Param).collect();
        for &tensor in &made {
            if !self.held.contains_key(&(tensor, device)) {
                self.copy(tensor, device);
            }
        }
        let step = StepIx(self.out.steps.len() as u32);
        let after: BTreeSet<StepIx> =
            made.iter().filter_map(|&tensor| self.held[&(tensor, device)].1).collect();
        let mut memory = BTreeSet::new();
        // In place: the output takes the bytes of an input that is read here for the last time.
        let mut in_place = made.iter().copied().filter(|&t| self.left[&(t, device)] == 1 && rng.chance(50));
        let mut reused = in_place.next();
        let outputs: Vec<TensorIx> = self.graph.outputs(node).collect();
        let mut written = Vec::new();
        for tensor in outputs {
            let bytes = self.graph.tensor_bytes(tensor);
            let kind = if self.graph.is_result(tensor) { BufferKind::Output } else { BufferKind::Temp };
            let content = Content::Tensor(tensor);
            let fits = |s: &mut Self, input: TensorIx| {
                let (buffer, _) = s.held[&(input, device)];
                bytes.0 > 0 && s.out.buffers[buffer.index()].bytes == bytes
            };
            let buffer = match reused.take() {
                Some(input) if fits(self, input) => {
                    let (buffer, _) = self.held[&(input, device)];
                    memory.extend(self.slot(buffer).uses.drain(..));
                    let slot = self.slot_of[buffer.index()];
                    let offset = self.out.buffers[buffer.index()].offset;
                    self.out.buffers.push(Buffer { device, content, kind, offset, bytes, within: None });
                    self.slot_of.push(slot);
                    BufferIx(self.out.buffers.len() as u32 - 1)
                }
                _ => self.make(device, content, kind, bytes, &mut memory),
            };
            written.push((tensor, buffer));
        }
        let workspace = self.graph.workspace_bytes(node);
        let workspace = (workspace > Bytes::ZERO).then(|| {
            self.make(device, Content::Workspace(node), BufferKind::Workspace, workspace, &mut memory)
        });
        self.push(device, Lane::Compute, after, &memory, Action::Launch(node));
        for tensor in made {
            self.was_read(tensor, device, step);
        }
        for (tensor, buffer) in written {
            self.held.insert((tensor, device), (buffer, Some(step)));
            let unread = self.left.get(&(tensor, device)).is_none_or(|&left| left == 0);
            let slot = self.slot(buffer);
            slot.uses.push(step);
            // A slot that an input left in place belongs to the output now.
            slot.free = unread;
        }
        if let Some(buffer) = workspace {
            let slot = self.slot(buffer);
            slot.uses.push(step);
            slot.free = true;
        }
    }
}
