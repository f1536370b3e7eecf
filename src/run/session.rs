//! A plan and its network made ready to run.
//!
//! [`exec_plan`] turns the serialised plan into what the executor takes, and says what in it does
//! not belong to the network. The plan is to have passed `plan::check` before.

use std::collections::HashMap;

use super::{Batch, ExecAction, ExecBuffer, ExecDevice, ExecPlan, ExecStep};
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, Op, Type, ValueId};
use crate::kernel::Grouping;
use crate::plan::{Action, Buffer, BufferKind, Lane, Launch, Plan, Step};
use crate::schedule;

/// What the executor needs of a plan for this network. O(steps + buffers).
///
/// Errors: [`Error::Check`] where the plan names a group, buffer, device or value that is not there.
pub fn exec_plan(plan: &Plan, graph: &Graph, grouping: &Grouping) -> Result<ExecPlan> {
    let converter = Converter::new(plan, graph, grouping)?;
    let mut exec = ExecPlan {
        devices: devices(plan),
        buffers: converter.buffers()?,
        steps: Vec::with_capacity(plan.steps.len()),
        ..ExecPlan::default()
    };
    for step in &plan.steps {
        exec.steps.push(converter.step(step)?);
    }
    let residents = converter.residents()?;
    exec.batch = batch(plan, graph, &converter, &residents)?;
    exec.inputs = converter.inputs(&residents, exec.batch.as_ref());
    let data = graph.node_ids().filter(|&node| matches!(graph.node(node).op, Op::Param(_) | Op::Constant(_)));
    exec.data = data
        .map(|node| graph.node(node).first_result)
        .filter_map(|value| residents.get(&value).map(|buffers| (value, buffers.clone())))
        .collect();
    exec.outputs = converter.outputs(&residents, exec.batch.as_ref())?;
    exec.updates = updates(graph, &residents, &exec.outputs);
    Ok(exec)
}

/// Where an output takes a parameter's place and is elsewhere: its buffer, and each that holds the
/// parameter.
fn updates(graph: &Graph, residents: &Residents, outputs: &[(String, u32)]) -> Vec<(u32, u32)> {
    let written: HashMap<&str, u32> = outputs.iter().map(|(name, buffer)| (name.as_str(), *buffer)).collect();
    let mut updates = Vec::new();
    for param in graph.params() {
        let output = param.update.and_then(|output| graph.outputs().get(output as usize));
        let Some(&from) = output.and_then(|(name, _)| written.get(name.as_str())) else { continue };
        let resident = residents.get(&graph.node(param.node).first_result);
        let others = resident.into_iter().flatten().filter(|&&to| to != from);
        updates.extend(others.map(|&to| (from, to)));
    }
    updates
}

/// The devices of a plan. Those without cores of their own share all that this machine has.
fn devices(plan: &Plan) -> Vec<ExecDevice> {
    let machine = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let ids = plan.topology.by_name();
    let device = |(number, device): (usize, &crate::plan::PlanDevice)| {
        let id = ids.get(device.name.as_str()).copied();
        let own = id.and_then(|id| plan.topology.device(id).cores);
        let shared = id.map_or(number as u32, |id| plan.topology.device(id).physical);
        ExecDevice {
            name: device.name.clone(),
            arena: device.arena,
            engine: if own.is_some() { SHARED + number as u32 } else { shared },
            cores: own.map_or(machine, |cores| cores.min(machine)),
        }
    };
    plan.devices.iter().enumerate().map(device).collect()
}

/// Engines below are physical devices.
const SHARED: u32 = 1 << 31;

/// The type that an input of a plan's network has for the whole batch; `number` counts the inputs.
pub fn input_type(plan: &Plan, graph: &Graph, number: usize) -> Type {
    let (_, value) = &graph.inputs()[number];
    let part = graph.input_type(number);
    let name = value.to_string();
    let is_input = |buffer: &&Buffer| {
        buffer.kind == BufferKind::Input && buffer.value.split(' ').next() == Some(name.as_str())
    };
    let axis = plan.buffers.iter().find(is_input).and_then(|buffer| buffer.axis);
    match plan.options.microbatches {
        Some(count) => Batch { count, ..Batch::default() }.whole(&part, axis.map(|axis| axis as usize)),
        None => part,
    }
}

/// Along which axes inputs and outputs are divided, where the plan has microbatches.
fn batch(
    plan: &Plan,
    graph: &Graph,
    converter: &Converter<'_>,
    residents: &Residents,
) -> Result<Option<Batch>> {
    let Some(count) = plan.options.microbatches else { return Ok(None) };
    let axis = |buffer: u32| plan.buffers[buffer as usize].axis.map(|axis| axis as usize);
    let first_buffer = |value: &ValueId| residents.get(value).and_then(|buffers| buffers.first().copied());
    let inputs = graph.inputs().iter().map(|(_, value)| first_buffer(value).and_then(axis)).collect();
    let written = converter.outputs(residents, Some(&Batch { count, ..Batch::default() }))?;
    let outputs = written.chunks(count.max(1) as usize);
    let outputs = outputs.map(|parts| parts.first().and_then(|&(_, buffer)| axis(buffer))).collect();
    Ok(Some(Batch { count, inputs, outputs }))
}

/// By value of an input, parameter or constant: the buffers that hold it when a step begins.
type Residents = HashMap<ValueId, Vec<u32>>;

fn wrong(place: impl Into<String>, message: impl Into<String>) -> Error {
    Error::Check(Report::new(place, message).help("plan the model anew"))
}

struct Converter<'a> {
    plan: &'a Plan,
    graph: &'a Graph,
    grouping: &'a Grouping,
    devices: HashMap<&'a str, u32>,
    buffers: HashMap<&'a str, u32>,
    steps: HashMap<u64, u32>,
}

impl<'a> Converter<'a> {
    fn new(plan: &'a Plan, graph: &'a Graph, grouping: &'a Grouping) -> Result<Self> {
        if plan.buffers.is_empty() && plan.steps.iter().any(|step| matches!(step.action, Action::Launch(_))) {
            return Err(wrong("", "a plan of a cost graph has no kernels to run"));
        }
        let numbered = |count: usize| 0..u32::try_from(count).unwrap_or(u32::MAX);
        let devices = plan.devices.iter().zip(numbered(plan.devices.len()));
        let buffers = plan.buffers.iter().zip(numbered(plan.buffers.len()));
        let steps = plan.steps.iter().zip(numbered(plan.steps.len()));
        Ok(Self {
            plan,
            graph,
            grouping,
            devices: devices.map(|(device, number)| (device.name.as_str(), number)).collect(),
            buffers: buffers.map(|(buffer, number)| (buffer.id.as_str(), number)).collect(),
            steps: steps.map(|(step, number)| (step.id, number)).collect(),
        })
    }

    fn device(&self, name: &str) -> Result<u32> {
        self.devices.get(name).copied().ok_or_else(|| wrong(format!("device {name}"), "it does not exist"))
    }

    fn buffer(&self, id: &str) -> Result<u32> {
        self.buffers.get(id).copied().ok_or_else(|| wrong(format!("buffer {id}"), "it does not exist"))
    }

    fn buffers(&self) -> Result<Vec<ExecBuffer>> {
        let convert = |buffer: &crate::plan::Buffer| {
            let device = self.device(&buffer.device)?;
            Ok(ExecBuffer { device, offset: buffer.offset, bytes: buffer.bytes })
        };
        self.plan.buffers.iter().map(convert).collect()
    }

    fn step(&self, step: &Step) -> Result<ExecStep> {
        let place = || format!("step {}", step.id);
        let after = step.after.iter().map(|id| {
            self.steps.get(id).copied().ok_or_else(|| wrong(place(), format!("step {id} does not exist")))
        });
        let action = match &step.action {
            Action::Launch(launch) => self.launch(launch).map_err(|error| error.within(&place()))?,
            Action::Copy(copy) => ExecAction::Copy {
                from: self.buffer(&copy.from)?,
                to: self.buffer(&copy.to)?,
                part: copy.part,
            },
        };
        Ok(ExecStep {
            device: self.device(&step.device)?,
            lane: match step.lane {
                Lane::Compute => schedule::Lane::Compute,
                Lane::Copy => schedule::Lane::Copy,
            },
            after: after.collect::<Result<_>>()?,
            action,
        })
    }

    /// The group of a launch.
    fn group(&self, launch: &Launch) -> Result<u32> {
        let group = launch.group.ok_or_else(|| wrong("launch", "it names no group"))?;
        if (group as usize) < self.grouping.groups.len() {
            return Ok(group);
        }
        Err(wrong("launch", format!("the model has no group {group}")))
    }

    fn launch(&self, launch: &Launch) -> Result<ExecAction> {
        let group = self.group(launch)?;
        let results = self.grouping.groups[group as usize].writes.len();
        let mut writes = launch.writes.iter().map(|id| self.buffer(id)).collect::<Result<Vec<u32>>>()?;
        let workspace = match writes.len().checked_sub(results) {
            Some(0) => None,
            Some(1) => writes.pop(),
            _ => {
                let message = format!("it writes {} buffers, its group makes {results}", writes.len());
                return Err(wrong("launch", message));
            }
        };
        let reads = launch.reads.iter().map(|id| self.buffer(id)).collect::<Result<_>>()?;
        Ok(ExecAction::Launch { group, reads, writes, workspace })
    }

    /// By value of an input, parameter or constant: the buffers that hold it when a step begins.
    fn residents(&self) -> Result<Residents> {
        let mut residents = Residents::new();
        for (number, buffer) in self.plan.buffers.iter().enumerate() {
            match buffer.kind {
                BufferKind::Input | BufferKind::Param | BufferKind::State | BufferKind::Const => {}
                BufferKind::Temp | BufferKind::Output | BufferKind::Copy | BufferKind::Workspace => continue,
            }
            let value = self.leaf(&buffer.value).ok_or_else(|| {
                let message =
                    format!("it holds `{}`, which is no input, parameter or constant", buffer.value);
                wrong(format!("buffer {}", buffer.id), message)
            })?;
            residents.entry(value).or_default().push(number as u32);
        }
        Ok(residents)
    }

    /// The leaf that a buffer's `%7 name` stands for.
    fn leaf(&self, text: &str) -> Option<ValueId> {
        let number = text.strip_prefix('%')?.split(' ').next()?.parse().ok()?;
        let value = ValueId(number);
        (value.index() < self.graph.value_count() && self.graph.maker(value).op.is_leaf()).then_some(value)
    }

    /// True where a buffer is of a microbatch, or of all.
    fn is_of(&self, buffer: u32, microbatch: Option<u32>) -> bool {
        let own = self.plan.buffers[buffer as usize].microbatch;
        own.is_none() || own == microbatch
    }

    /// The microbatches and what an input or output is called in each.
    fn instances(name: &str, batch: Option<&Batch>) -> Vec<(Option<u32>, String)> {
        match batch {
            Some(batch) => (0..batch.count).map(|m| (Some(m), Batch::name(name, m))).collect(),
            None => vec![(None, name.to_owned())],
        }
    }

    /// The buffers that take each input, in each microbatch.
    fn inputs(&self, residents: &Residents, batch: Option<&Batch>) -> Vec<(String, Vec<u32>)> {
        let mut inputs = Vec::new();
        for (name, value) in self.graph.inputs() {
            let buffers = residents.get(value).map_or(&[][..], Vec::as_slice);
            for (microbatch, name) in Self::instances(name, batch) {
                let own = buffers.iter().copied().filter(|&buffer| self.is_of(buffer, microbatch));
                inputs.push((name, own.collect()));
            }
        }
        inputs
    }

    /// The buffer in which each output of the graph lies, in each microbatch: a leaf's, or the one
    /// that its group writes.
    fn outputs(&self, residents: &Residents, batch: Option<&Batch>) -> Result<Vec<(String, u32)>> {
        let mut written: HashMap<(ValueId, Option<u32>), u32> = HashMap::new();
        for step in &self.plan.steps {
            let Action::Launch(launch) = &step.action else { continue };
            let group = &self.grouping.groups[self.group(launch)? as usize];
            for (value, id) in group.writes.iter().zip(&launch.writes).filter(|_| !launch.again) {
                written.insert((*value, launch.microbatch), self.buffer(id)?);
            }
        }
        let mut outputs = Vec::new();
        for (name, value) in self.graph.outputs() {
            let base = self.grouping.base[value.index()];
            for (microbatch, name) in Self::instances(name, batch) {
                let resident = residents.get(&base).into_iter().flatten().copied();
                let resident = || resident.clone().find(|&buffer| self.is_of(buffer, microbatch));
                let made = written.get(&(base, microbatch)).or_else(|| written.get(&(base, None)));
                let buffer = made.copied().or_else(resident);
                let buffer =
                    buffer.ok_or_else(|| wrong(format!("output {name}"), "the plan does not make it"))?;
                outputs.push((name, buffer));
            }
        }
        Ok(outputs)
    }
}
