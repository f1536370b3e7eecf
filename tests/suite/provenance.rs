//! Where every byte of a plan's memory comes from: a plan is gone through with a mark in each byte in place
//! of a number, in many of the orders that `after` and the lanes allow, as the executor would run it. Knows
//! a plan's steps and offsets and a network's groups; what a plan declares beside that (`alias`, kinds of
//! what is made, values' names) it looks at only where the executor does. Shares no code with the checker.

mod memory;
mod truth;

use std::collections::{BTreeSet, HashMap};

use partition::unstable::plan::{Action, Buffer, CopyAction, Launch, Plan};

use crate::naive_plan;
use crate::random_graph::Random;
use memory::{Arena, Mark};
use truth::{Group, Leaf, value_of};

pub(crate) use truth::Truth;

/// A plan as it would be run.
pub(crate) struct Run<'a> {
    plan: &'a Plan,
    truth: &'a Truth,
    buffers: HashMap<&'a str, usize>,
    devices: HashMap<&'a str, usize>,
    /// By output and microbatch.
    outputs: Vec<Vec<usize>>,
    before: Vec<Vec<u64>>,
}

impl<'a> Run<'a> {
    /// Error: what the executor would refuse to run, in words.
    pub(crate) fn new(plan: &'a Plan, truth: &'a Truth) -> Result<Self, String> {
        let buffers: HashMap<&str, usize> =
            plan.buffers.iter().enumerate().map(|(i, buffer)| (buffer.id.as_str(), i)).collect();
        let devices: HashMap<&str, usize> =
            plan.devices.iter().enumerate().map(|(i, device)| (device.name.as_str(), i)).collect();
        if buffers.len() != plan.buffers.len() || devices.len() != plan.devices.len() {
            return Err("two buffers or devices have one name".into());
        }
        if !naive_plan::is_ordered(plan) {
            return Err("a step waits for one that does not come before it".into());
        }
        let mut run = Self { plan, truth, buffers, devices, outputs: Vec::new(), before: Vec::new() };
        run.places()?;
        run.tasks()?;
        run.outputs = run.find_outputs()?;
        run.before = naive_plan::reachability(plan);
        Ok(run)
    }

    fn find(&self, id: &str) -> Result<&'a Buffer, String> {
        let found = self.buffers.get(id).ok_or_else(|| format!("no buffer {id}"))?;
        Ok(&self.plan.buffers[*found])
    }

    fn places(&self) -> Result<(), String> {
        for buffer in &self.plan.buffers {
            let device = self.devices.get(buffer.device.as_str()).ok_or("no such device")?;
            let device = &self.plan.devices[*device];
            let end = buffer.offset.0.checked_add(buffer.bytes.0);
            if end.is_none_or(|end| end > device.arena.0) || buffer.offset.0 % 64 != 0 {
                return Err(format!("{} leaves its arena", buffer.id));
            }
            if device.arena.0 > device.memory.0 - device.reserve.0.min(device.memory.0) {
                return Err(format!("the arena of {} is over its memory", device.name));
            }
            if buffer.kind.is_resident() {
                let value = value_of(buffer).filter(|value| self.truth.leaves.contains_key(value));
                let value = value.ok_or_else(|| format!("{} holds no leaf", buffer.id))?;
                if self.truth.bytes[&value] != buffer.bytes.0 {
                    return Err(format!("{} is of another size", buffer.id));
                }
            }
        }
        Ok(())
    }

    /// What the executor proves of each step before it runs any.
    fn tasks(&self) -> Result<(), String> {
        for step in &self.plan.steps {
            let local = |id: &String, bytes: u64| {
                let buffer = self.find(id)?;
                match *buffer.device == *step.device && buffer.bytes.0 == bytes {
                    true => Ok(buffer),
                    false => Err(format!("step {}: {id} is elsewhere or of another size", step.id)),
                }
            };
            match &step.action {
                Action::Launch(launch) => self.task(launch, &local)?,
                Action::Copy(copy) => {
                    let from = self.find(&copy.from)?;
                    let to = local(&copy.to, from.bytes.0)?;
                    let (offset, bytes) = copy.part.map_or((0, from.bytes.0), |part| (part.0.0, part.1.0));
                    if offset.checked_add(bytes).is_none_or(|end| end > from.bytes.0) {
                        return Err(format!("step {}: its part leaves its buffers", step.id));
                    }
                    let part = |buffer: &Buffer| (buffer.offset.0 + offset, bytes);
                    if from.device == to.device && overlaps(part(from), part(to)) {
                        return Err(format!("step {}: it copies onto itself", step.id));
                    }
                }
            }
        }
        Ok(())
    }

    fn task(
        &self,
        launch: &Launch,
        local: &impl Fn(&String, u64) -> Result<&'a Buffer, String>,
    ) -> Result<(), String> {
        let group = self.group(launch)?;
        let sized = |ids: &[String], values: &[u32]| -> Result<Vec<(u64, u64)>, String> {
            if ids.len() != values.len() {
                return Err("another number of operands or results".into());
            }
            let pairs = ids.iter().zip(values);
            pairs.map(|(id, value)| local(id, self.truth.bytes[value]).map(range)).collect()
        };
        let reads = sized(&launch.reads, &group.reads)?;
        let writes = sized(self.results(launch)?, &group.writes)?;
        if is_cut_there(group, &reads, &writes) {
            return Ok(());
        }
        let workspace = match launch.writes.get(group.writes.len()) {
            None if group.workspace == 0 => (0, 0),
            None => return Err("no workspace".into()),
            Some(id) => {
                let bytes = self.find(id)?.bytes.0;
                if bytes < group.workspace {
                    return Err("too little workspace".into());
                }
                range(local(id, bytes)?)
            }
        };
        for (w, &write) in writes.iter().enumerate() {
            let clash = overlaps(write, workspace) || writes[..w].iter().any(|&other| overlaps(other, write));
            let over = |(r, &read): (usize, &(u64, u64))| {
                overlaps(read, write) && !(read == write && group.in_place.contains(&(r, w)))
            };
            if clash || reads.iter().enumerate().any(over) {
                return Err("what it writes overlaps something else".into());
            }
        }
        match reads.iter().any(|&read| overlaps(read, workspace)) {
            true => Err("its workspace overlaps an operand".into()),
            false => Ok(()),
        }
    }

    fn group(&self, launch: &Launch) -> Result<&'a Group, String> {
        let group = launch.group.and_then(|group| self.truth.groups.get(group as usize));
        group.ok_or_else(|| "no such group".into())
    }

    fn results<'l>(&self, launch: &'l Launch) -> Result<&'l [String], String> {
        let count = self.group(launch)?.writes.len();
        match launch.writes.len() {
            found if found == count || found == count + 1 => Ok(&launch.writes[..count]),
            _ => Err("another number of results".into()),
        }
    }

    fn instances(&self) -> Vec<Option<u32>> {
        self.plan.options.microbatches.map_or(vec![None], |count| (0..count).map(Some).collect())
    }

    fn is_of(buffer: &Buffer, microbatch: Option<u32>) -> bool {
        buffer.microbatch.is_none() || buffer.microbatch == microbatch
    }

    fn residents(&self, value: u32) -> impl Iterator<Item = (usize, &'a Buffer)> {
        let all = self.plan.buffers.iter().enumerate();
        all.filter(move |(_, buffer)| buffer.kind.is_resident() && value_of(buffer) == Some(value))
    }

    /// Where the executor looks for each output.
    fn find_outputs(&self) -> Result<Vec<Vec<usize>>, String> {
        let mut written = HashMap::new();
        for step in &self.plan.steps {
            let Action::Launch(launch) = &step.action else { continue };
            let results = self.results(launch)?;
            for (value, id) in self.group(launch)?.writes.iter().zip(results).filter(|_| !launch.again) {
                written.insert((*value, launch.microbatch), self.buffers[id.as_str()]);
            }
        }
        let place = |value: u32, microbatch: Option<u32>| {
            let made = written.get(&(value, microbatch)).or_else(|| written.get(&(value, None))).copied();
            let mut given = self.residents(value).filter(|(_, buffer)| Self::is_of(buffer, microbatch));
            made.or_else(|| given.next().map(|(i, _)| i)).ok_or("an output is not made".to_owned())
        };
        let all = self.truth.outputs.iter();
        all.map(|&value| self.instances().into_iter().map(|one| place(value, one)).collect()).collect()
    }

    /// Error: in one of the orders that the plan allows, a result or what is kept is not what the network
    /// computes.
    pub(crate) fn in_many_orders(&self, random: &mut Random, others: usize) -> Result<(), String> {
        let count = self.plan.steps.len();
        let all: Vec<usize> = (0..count).collect();
        self.in_order(&all)?;
        for one in 0..count {
            let over = |step: usize| naive_plan::contains(&self.before[one], step);
            let waits = |step: usize| naive_plan::contains(&self.before[step], one);
            let (first, rest): (Vec<usize>, Vec<usize>) =
                all.iter().partition(|&&step| over(step) || step == one);
            self.in_order(&[first, rest].concat())?;
            let (last, first): (Vec<usize>, Vec<usize>) =
                all.iter().partition(|&&step| waits(step) || step == one);
            self.in_order(&[first, last].concat())?;
        }
        (0..others).try_for_each(|_| self.in_order(&self.any_order(random)))
    }

    /// A topological order at random.
    fn any_order(&self, random: &mut Random) -> Vec<usize> {
        let mut left: Vec<usize> = (0..self.plan.steps.len()).collect();
        let mut order = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let free =
                |&at: &usize| left.iter().all(|&other| !naive_plan::contains(&self.before[left[at]], other));
            let ready: Vec<usize> = (0..left.len()).filter(free).collect();
            order.push(left.remove(random.pick(&ready)));
        }
        order
    }

    fn in_order(&self, order: &[usize]) -> Result<(), String> {
        let mut memory = vec![Arena::default(); self.plan.devices.len()];
        self.load(&mut memory);
        for &step in order {
            match &self.plan.steps[step].action {
                Action::Launch(launch) => self.launch(&mut memory, launch),
                Action::Copy(copy) => self.copy(&mut memory, copy),
            }
        }
        self.judge(&mut memory).map_err(|words| format!("{words}, in order {order:?}"))
    }

    /// The arena of a buffer, and where the buffer begins and ends.
    fn place(&self, buffer: &Buffer) -> (usize, u64, u64) {
        let (start, bytes) = range(buffer);
        (self.devices[buffer.device.as_str()], start, start + bytes)
    }

    fn fill(&self, memory: &mut [Arena], buffer: &Buffer, value: u32, microbatch: Option<u32>) {
        let (device, start, end) = self.place(buffer);
        memory[device].set(start, end, Mark { value, microbatch, origin: start.into() });
    }

    fn spoil(&self, memory: &mut [Arena], buffer: &Buffer) {
        let (device, start, end) = self.place(buffer);
        memory[device].clear(start, end);
    }

    /// Whether a buffer's bytes are a value, or the same bytes of what the value is cut from.
    fn holds(&self, memory: &[Arena], buffer: &Buffer, value: u32, microbatch: Option<u32>) -> bool {
        let (device, start, end) = self.place(buffer);
        let own = Mark { value, microbatch, origin: start.into() };
        let whole = self.truth.cuts.get(&value).map(|&(whole, first)| {
            let origin = i128::from(start) - i128::from(first);
            Mark { value: whole, microbatch: self.of(whole, microbatch), origin }
        });
        [Some(own), whole].into_iter().flatten().any(|mark| memory[device].has(start, end, mark))
    }

    /// Moves `bytes` from `offset` on from one buffer to another.
    fn move_bytes(&self, memory: &mut [Arena], from: &Buffer, to: &Buffer, (offset, bytes): (u64, u64)) {
        let (source, start, _) = self.place(from);
        let (target, to_start, _) = self.place(to);
        let shift = i128::from(to_start) - i128::from(start);
        let moved = memory[source].ranges(start + offset, start + offset + bytes);
        memory[target].clear(to_start + offset, to_start + offset + bytes);
        for (from, to, mark) in moved {
            let at = |address: u64| (i128::from(address) + shift) as u64;
            memory[target].set(at(from), at(to), Mark { origin: mark.origin + shift, ..mark });
        }
    }

    fn load(&self, memory: &mut [Arena]) {
        for (&value, &leaf) in &self.truth.leaves {
            if leaf == Leaf::Data {
                self.residents(value).for_each(|(_, buffer)| self.fill(memory, buffer, value, None));
            }
        }
        for (&value, _) in self.truth.leaves.iter().filter(|(_, leaf)| **leaf == Leaf::Input) {
            let axis = self.residents(value).next().and_then(|(_, buffer)| buffer.axis);
            for microbatch in self.instances() {
                let own = self.residents(value).filter(|(_, buffer)| Self::is_of(buffer, microbatch));
                for (_, buffer) in own {
                    // Without an axis the caller's whole batch is of another size, and refused.
                    match axis.is_none() || axis == self.truth.axis(value) {
                        true => self.fill(memory, buffer, value, self.of(value, microbatch)),
                        false => self.spoil(memory, buffer),
                    }
                }
            }
        }
    }

    /// The microbatch of a value that a launch for `microbatch` reads or makes.
    fn of(&self, value: u32, microbatch: Option<u32>) -> Option<u32> {
        let whole = self.truth.leaves.contains_key(&value) && self.truth.axis(value).is_none();
        microbatch.filter(|_| self.truth.each.contains(&value) && !whole)
    }

    fn launch(&self, memory: &mut [Arena], launch: &Launch) {
        let group = &self.truth.groups[launch.group.expect("a group") as usize];
        let ranges = |ids: &[String]| -> Vec<(u64, u64)> {
            ids.iter().map(|id| range(self.find(id).expect("found"))).collect()
        };
        if is_cut_there(group, &ranges(&launch.reads), &ranges(&launch.writes)) {
            return;
        }
        let own = |value: u32| self.of(value, launch.microbatch);
        let mut sound = group.writes.iter().all(|value| {
            // Of a divided step the launch must say which part it is.
            let divided = self.truth.microbatches.is_some() && self.truth.each.contains(value);
            divided == launch.microbatch.is_some()
        });
        for (id, &value) in launch.reads.iter().zip(&group.reads) {
            sound &= self.holds(memory, self.find(id).expect("found"), value, own(value));
        }
        for id in launch.writes.iter().rev() {
            self.spoil(memory, self.find(id).expect("found"));
        }
        for (id, &value) in launch.writes.iter().zip(&group.writes).filter(|_| sound) {
            self.fill(memory, self.find(id).expect("found"), value, own(value));
        }
    }

    fn copy(&self, memory: &mut [Arena], copy: &CopyAction) {
        let (from, to) = (self.find(&copy.from).expect("found"), self.find(&copy.to).expect("found"));
        let (offset, bytes) = copy.part.map_or((0, from.bytes.0), |part| (part.0.0, part.1.0));
        self.move_bytes(memory, from, to, (offset, bytes));
    }

    /// What the caller gets, and what the next step finds.
    fn judge(&self, memory: &mut [Arena]) -> Result<(), String> {
        let buffer = |at: usize| &self.plan.buffers[at];
        let kept: BTreeSet<u32> = self.truth.updates.iter().map(|&(state, _)| state).collect();
        for (output, places) in self.outputs.iter().enumerate() {
            let value = self.truth.outputs[output];
            for (&place, microbatch) in places.iter().zip(self.instances()) {
                if !self.holds(memory, buffer(place), value, self.of(value, microbatch)) {
                    return Err(format!("output {output} is not %{value} in {}", buffer(place).id));
                }
            }
            let axis = places.first().and_then(|&place| buffer(place).axis);
            if self.truth.microbatches != self.plan.options.microbatches
                || self.truth.microbatches.is_some() && axis != self.truth.axis(value)
            {
                return Err(format!("output {output} is put together otherwise"));
            }
        }
        for &(state, output) in &self.truth.updates {
            let from = self.outputs[output][0];
            for (_, held) in self.residents(state).filter(|(to, _)| *to != from) {
                self.move_bytes(memory, buffer(from), held, (0, held.bytes.0));
            }
            let value = self.truth.outputs[output];
            for (_, held) in self.residents(state) {
                if !self.holds(memory, held, value, None) {
                    return Err(format!("{} does not hold the next step's %{state}", held.id));
                }
            }
        }
        for (&value, &leaf) in self.truth.leaves.iter().filter(|(value, _)| !kept.contains(value)) {
            for (_, held) in self.residents(value) {
                if leaf == Leaf::Data && !self.holds(memory, held, value, None) {
                    return Err(format!("{} does not hold %{value} any more", held.id));
                }
            }
        }
        Ok(())
    }
}

/// True where nothing runs: a slice lies in what it is cut from already.
fn is_cut_there(group: &Group, reads: &[(u64, u64)], writes: &[(u64, u64)]) -> bool {
    let (Some(first), &[read], &[write]) = (group.cut, reads, writes) else { return false };
    write.0 == read.0 + first && write.0 + write.1 <= read.0 + read.1
}

fn range(buffer: &Buffer) -> (u64, u64) {
    (buffer.offset.0, buffer.bytes.0)
}

fn overlaps(one: (u64, u64), two: (u64, u64)) -> bool {
    one.1 > 0 && two.1 > 0 && one.0 < two.0 + two.1 && two.0 < one.0 + one.1
}
