//! What the executor needs of a plan, as plain data; and what is checked before it runs.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::ir::{Graph, Op, Shape, Size, Type, ValueId};
use crate::schedule::{ALIGNMENT, Lane};
use crate::units::Bytes;

use super::super::arena::Range;
use super::super::group::Compiled;
use super::super::interpret::bytes;

/// A device of an [`ExecPlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecDevice {
    /// Its name, for messages.
    pub name: String,
    /// Bytes to allocate.
    pub arena: Bytes,
    /// What computes: devices of the same number share its cores.
    pub engine: u32,
    /// The engine's cores, which help its devices with their kernels; the most that one of them
    /// says. Results are the same bits with any number.
    pub cores: u32,
}

/// A range of a device's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecBuffer {
    /// Position of the device.
    pub device: u32,
    /// Where it begins; a multiple of [`ALIGNMENT`].
    pub offset: Bytes,
    /// How long it is.
    pub bytes: Bytes,
}

/// What a step does. Buffers are positions in [`ExecPlan::buffers`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecAction {
    /// Runs a group.
    Launch {
        /// Position of the group.
        group: u32,
        /// One buffer for each value that the group reads, in its order.
        reads: Vec<u32>,
        /// One buffer for each value that the group writes, in its order.
        writes: Vec<u32>,
        /// The workspace, where the group needs one.
        workspace: Option<u32>,
    },
    /// Copies a buffer, or a part of it, to the step's device.
    Copy {
        /// What is read.
        from: u32,
        /// What is written.
        to: u32,
        /// Offset and length in both; none for all.
        part: Option<(Bytes, Bytes)>,
    },
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecStep {
    /// Position of the device that runs it; for a copy the one that receives.
    pub device: u32,
    /// The lane that runs it.
    pub lane: Lane,
    /// Steps that must be done before; earlier ones of the same lane are implied.
    pub after: Vec<u32>,
    /// What it does.
    pub action: ExecAction,
}

/// A batch in microbatches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// How many.
    pub count: u32,
    /// By input of the graph: the axis along which it is divided; none where each microbatch takes
    /// all of it.
    pub inputs: Vec<Option<usize>>,
    /// By output of the graph: the axis along which it is put together.
    pub outputs: Vec<Option<usize>>,
}

impl Batch {
    /// What an input or output is called in a microbatch.
    pub fn name(name: &str, microbatch: u32) -> String {
        format!("{name}@{microbatch}")
    }

    /// The type of a whole input or output, from that of a microbatch.
    pub fn whole(&self, part: &Type, axis: Option<usize>) -> Type {
        let sizes = part.shape.sizes().iter().enumerate();
        let sizes = sizes.map(|(at, size)| match size {
            Size::Known(known) if Some(at) == axis => Size::Known(known.saturating_mul(self.count.into())),
            size => size.clone(),
        });
        Type::new(part.dtype, Shape::new(sizes))
    }
}

/// A plan as the executor sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecPlan {
    /// The devices; each is one worker.
    pub devices: Vec<ExecDevice>,
    /// The buffers.
    pub buffers: Vec<ExecBuffer>,
    /// The steps in a topological order; on each lane this is the order of execution.
    pub steps: Vec<ExecStep>,
    /// How the batch is divided into microbatches, where it is. Names of inputs and outputs are
    /// then those of [`Batch::name`].
    pub batch: Option<Batch>,
    /// Names of the graph's inputs and the buffers that take them.
    pub inputs: Vec<(String, Vec<u32>)>,
    /// Parameters and constants, by the value of their node, and the buffers that hold them.
    pub data: Vec<(ValueId, Vec<u32>)>,
    /// Names of the graph's outputs and the buffers in which they lie when the step ends.
    pub outputs: Vec<(String, u32)>,
    /// What is copied when a step has ended, for the next one to read: (from, to), where an output
    /// takes a parameter's place and is not there already.
    pub updates: Vec<(u32, u32)>,
}

/// A device and a range of its arena.
#[derive(Clone, Copy, Debug)]
pub(in crate::run) struct Located {
    pub(in crate::run) device: usize,
    pub(in crate::run) range: Range,
}

/// A step whose buffers are found and checked.
#[derive(Debug)]
pub(in crate::run) enum Task {
    Launch {
        group: usize,
        reads: Box<[Range]>,
        writes: Box<[Range]>,
        workspace: Range,
    },
    Copy {
        from: Located,
        to: Range,
    },
    /// What a group would make lies in what it reads.
    Nothing {
        group: usize,
    },
}

/// Checks a plan against its arenas and groups.
pub(in crate::run) struct Checker<'a> {
    pub(in crate::run) plan: &'a ExecPlan,
    pub(in crate::run) graph: &'a Graph,
    pub(in crate::run) groups: &'a [Compiled],
}

fn wrong(place: impl Into<String>, message: impl Into<String>) -> Error {
    Error::Check(crate::error::Report::new(place, message))
}

impl Checker<'_> {
    /// Every buffer of the plan, within its arena.
    pub(in crate::run) fn buffers(&self) -> Result<Vec<Located>> {
        let locate = |(position, buffer): (usize, &ExecBuffer)| {
            let place = || format!("buffer {position}");
            let device = buffer.device as usize;
            let arena = self.plan.devices.get(device).map(|device| device.arena.get());
            let arena = arena.ok_or_else(|| wrong(place(), "its device does not exist"))?;
            if buffer.offset.get() % ALIGNMENT != 0 {
                return Err(wrong(place(), format!("it does not begin at a multiple of {ALIGNMENT}")));
            }
            let range = Range::within(arena, buffer.offset.get(), buffer.bytes.get());
            let range = range.ok_or_else(|| wrong(place(), "it leaves its device's arena"))?;
            Ok(Located { device, range })
        };
        self.plan.buffers.iter().enumerate().map(locate).collect()
    }

    /// The buffer at a position, of this many bytes.
    fn find(&self, buffers: &[Located], position: u32, bytes: u64, place: &str) -> Result<Located> {
        let found = buffers.get(position as usize).copied();
        let found = found.ok_or_else(|| wrong(place, format!("buffer {position} does not exist")))?;
        if found.range.length as u64 != bytes {
            let length = found.range.length;
            return Err(wrong(place, format!("buffer {position} has {length} bytes, expected {bytes}")));
        }
        Ok(found)
    }

    /// As [`Checker::find`], on one device.
    fn local(
        &self,
        buffers: &[Located],
        (position, bytes): (u32, u64),
        device: u32,
        place: &str,
    ) -> Result<Range> {
        let found = self.find(buffers, position, bytes, place)?;
        if found.device != device as usize {
            return Err(wrong(place, format!("buffer {position} is on another device")));
        }
        Ok(found.range)
    }

    /// Every step's task.
    pub(in crate::run) fn tasks(&self, buffers: &[Located]) -> Result<Vec<Task>> {
        let task = |(index, step): (usize, &ExecStep)| {
            let place = format!("step {index}");
            if step.device as usize >= self.plan.devices.len() {
                return Err(wrong(place, "its device does not exist"));
            }
            // Waiting only for earlier steps, no step waits for itself.
            if let Some(&late) = step.after.iter().find(|&&after| after as usize >= index) {
                return Err(wrong(place, format!("it waits for step {late}, which does not come before it")));
            }
            match &step.action {
                ExecAction::Launch { group, reads, writes, workspace } => {
                    self.launch(buffers, step.device, &place, *group, (reads, writes, *workspace))
                }
                ExecAction::Copy { from, to, part } => {
                    self.copy(buffers, step.device, &place, (*from, *to), *part)
                }
            }
        };
        self.plan.steps.iter().enumerate().map(task).collect()
    }

    fn launch(
        &self,
        buffers: &[Located],
        device: u32,
        place: &str,
        group: u32,
        (reads, writes, workspace): (&[u32], &[u32], Option<u32>),
    ) -> Result<Task> {
        let group = group as usize;
        let compiled =
            self.groups.get(group).ok_or_else(|| wrong(place, format!("group {group} does not exist")))?;
        let all = |found: &[u32], bytes: &[u64], what: &str| -> Result<Box<[Range]>> {
            if found.len() != bytes.len() {
                let (found, expected) = (found.len(), bytes.len());
                return Err(wrong(place, format!("it {what} {found} buffers, expected {expected}")));
            }
            let pairs = found.iter().copied().zip(bytes.iter().copied());
            pairs.map(|pair| self.local(buffers, pair, device, place)).collect()
        };
        let reads = all(reads, &compiled.reads, "reads")?;
        let writes = all(writes, &compiled.writes, "writes")?;
        let workspace = match workspace {
            None if compiled.workspace == 0 => Range { offset: 0, length: 0 },
            None => return Err(wrong(place, format!("it has no workspace of {} bytes", compiled.workspace))),
            Some(position) => {
                let found = buffers.get(position as usize).map_or(0, |buffer| buffer.range.length as u64);
                if found < compiled.workspace {
                    let expected = compiled.workspace;
                    return Err(wrong(
                        place,
                        format!("its workspace has {found} bytes, expected {expected}"),
                    ));
                }
                self.local(buffers, (position, found), device, place)?
            }
        };
        if let (&[read], &[write], Some(first)) = (&reads[..], &writes[..], compiled.slice)
            && read.part(first, write.length as u64) == Some(write)
        {
            return Ok(Task::Nothing { group });
        }
        disjoint(compiled, &reads, &writes, workspace).map_err(|error| error.within(place))?;
        Ok(Task::Launch { group, reads, writes, workspace })
    }

    fn copy(
        &self,
        buffers: &[Located],
        device: u32,
        place: &str,
        (from, to): (u32, u32),
        part: Option<(Bytes, Bytes)>,
    ) -> Result<Task> {
        let bytes = buffers.get(from as usize).map_or(0, |buffer| buffer.range.length as u64);
        let mut from = self.find(buffers, from, bytes, place)?;
        let mut to = self.local(buffers, (to, bytes), device, place)?;
        if let Some((offset, length)) = part {
            let of = |range: Range| {
                let part = range.part(offset.get(), length.get());
                part.ok_or_else(|| wrong(place, format!("its part leaves its buffers of {bytes} bytes")))
            };
            (from.range, to) = (of(from.range)?, of(to)?);
        }
        if from.device == device as usize && from.range.overlaps(to) {
            return Err(wrong(place, "it copies a buffer onto itself"));
        }
        Ok(Task::Copy { from, to })
    }

    /// By input of the graph: the buffers that take it.
    pub(in crate::run) fn inputs(&self, buffers: &[Located]) -> Result<Vec<Vec<Located>>> {
        let named: BTreeMap<&str, &Vec<u32>> =
            self.plan.inputs.iter().map(|(name, list)| (name.as_str(), list)).collect();
        let inputs = instances(self.graph.inputs(), self.plan.batch.as_ref());
        self.known(&named, &inputs, "input")?;
        let find = |(name, value): &(String, ValueId)| {
            let bytes = bytes(self.graph.ty(*value))?;
            // An input that nothing reads needs no buffer.
            let list = named.get(name.as_str()).map_or(&[][..], |list| list);
            list.iter().map(|&buffer| self.find(buffers, buffer, bytes, &format!("input {name}"))).collect()
        };
        inputs.iter().map(find).collect()
    }

    /// By output of the graph: the buffer in which it lies.
    pub(in crate::run) fn outputs(&self, buffers: &[Located]) -> Result<Vec<Located>> {
        let named: BTreeMap<&str, &u32> =
            self.plan.outputs.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
        let outputs = instances(self.graph.outputs(), self.plan.batch.as_ref());
        self.known(&named, &outputs, "output")?;
        let find = |(name, value): &(String, ValueId)| {
            let place = format!("output {name}");
            let buffer =
                named.get(name.as_str()).ok_or_else(|| wrong(&*place, "the plan does not make it"))?;
            self.find(buffers, **buffer, bytes(self.graph.ty(*value))?, &place)
        };
        outputs.iter().map(find).collect()
    }

    fn known<T>(&self, named: &BTreeMap<&str, T>, names: &[(String, ValueId)], what: &str) -> Result<()> {
        let names: std::collections::BTreeSet<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
        match named.keys().find(|name| !names.contains(**name)) {
            Some(name) => Err(wrong(format!("{what} {name}"), format!("the model has no such {what}"))),
            None => Ok(()),
        }
    }

    /// What is copied after each step.
    pub(in crate::run) fn updates(&self, buffers: &[Located]) -> Result<Vec<(Located, Located)>> {
        let find = |&(from, to): &(u32, u32)| {
            let bytes = self.plan.buffers.get(to as usize).map_or(0, |buffer| buffer.bytes.get());
            let place = "update of a parameter";
            Ok((self.find(buffers, from, bytes, place)?, self.find(buffers, to, bytes, place)?))
        };
        self.plan.updates.iter().map(find).collect()
    }

    /// The parameters and constants, each with the buffers that hold it.
    pub(in crate::run) fn data(&self, buffers: &[Located]) -> Result<Vec<(ValueId, Vec<Located>)>> {
        let find = |(value, list): &(ValueId, Vec<u32>)| {
            let place = value.to_string();
            if value.index() >= self.graph.value_count() {
                return Err(wrong(place, "the model has no such value"));
            }
            if !matches!(self.graph.maker(*value).op, Op::Param(_) | Op::Constant(_)) {
                return Err(wrong(place, "it is no parameter or constant"));
            }
            let bytes = bytes(self.graph.ty(*value))?;
            let found: Result<Vec<Located>> =
                list.iter().map(|&buffer| self.find(buffers, buffer, bytes, &place)).collect();
            Ok((*value, found?))
        };
        self.plan.data.iter().map(find).collect()
    }
}

/// Inputs or outputs, each for every microbatch.
fn instances(list: &[(String, ValueId)], batch: Option<&Batch>) -> Vec<(String, ValueId)> {
    let Some(batch) = batch else { return list.to_vec() };
    let all = list.iter().flat_map(|(name, value)| {
        (0..batch.count).map(move |microbatch| (Batch::name(name, microbatch), *value))
    });
    all.collect()
}

/// What a group writes overlaps nothing else that it uses, except in place.
fn disjoint(group: &Compiled, reads: &[Range], writes: &[Range], workspace: Range) -> Result<()> {
    let clash = |what: &str| Err(wrong("", format!("what it writes overlaps {what}")));
    for (position, &write) in writes.iter().enumerate() {
        if write.overlaps(workspace) {
            return clash("its workspace");
        }
        if writes[..position].iter().any(|&other| other.overlaps(write)) {
            return clash("another of its results");
        }
        for (read, &range) in reads.iter().enumerate() {
            if range.overlaps(write) && !(range == write && group.in_place(read, position)) {
                return clash("what it reads");
            }
        }
    }
    if reads.iter().any(|&read| read.overlaps(workspace)) {
        return Err(wrong("", "its workspace overlaps what it reads"));
    }
    Ok(())
}
