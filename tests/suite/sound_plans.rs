//! Any sound plan runs to the same result: random networks, each group on a random device (some
//! twice), launched in a random order; copies from whoever holds a value, copies included, whole or in
//! parts; further dependencies at random; bytes used again wherever happens-before allows it, in
//! place where the kernel does; and workers that dawdle at random.
//!
//! A deadlock ends in the executor's timeout. What the executor's core does under every
//! interleaving is walked through by the model checker, in the core's own tests.

use std::time::Duration;

use partition::unstable::ir::{Graph, Op, ParamId, Tensor, ValueId};
use partition::unstable::kernel::{group_workspace, in_place};
use partition::unstable::run::{
    ExecAction, ExecBuffer, ExecDevice, ExecOptions, ExecPlan, ExecStep, Hook, Program, interpret,
};
use partition::unstable::schedule::Lane;
use partition::unstable::units::Bytes;

use crate::executor::{Groups, tensor};
use crate::random_graph::{Random, random_graph};
use crate::sweep::Share;

/// A copy of a value: its buffer, and the step that fills it.
#[derive(Clone, Copy)]
struct Held {
    device: usize,
    buffer: u32,
    filled: Option<u32>,
}

struct Planner<'a> {
    graph: &'a Graph,
    groups: &'a Groups,
    random: &'a mut Random,
    plan: ExecPlan,
    /// By value: who holds it.
    held: Vec<Vec<Held>>,
    /// By buffer: the steps that use it; the one that fills it first, where a step does.
    uses: Vec<Vec<u32>>,
    /// By buffer: it is there before the step, or to be there at its end.
    keeps: Vec<bool>,
    /// (step, what it reads, what it writes) where the one may lie where the other does.
    in_place: Vec<(u32, u32, u32)>,
}

/// A sound plan, drawn at random.
fn draw(graph: &Graph, groups: &Groups, devices: usize, random: &mut Random) -> ExecPlan {
    let device =
        |d: usize| ExecDevice { name: format!("cpu{d}"), arena: Bytes(0), engine: d as u32 % 2, cores: 2 };
    let plan = ExecPlan { devices: (0..devices).map(device).collect(), ..ExecPlan::default() };
    let held = vec![Vec::new(); graph.value_count()];
    let (uses, keeps, in_place) = Default::default();
    let mut planner = Planner { graph, groups, random, plan, held, uses, keeps, in_place };
    planner.inputs();
    for group in planner.order() {
        planner.launch(group);
        if planner.random.one_in(5) {
            planner.launch(group);
        }
    }
    planner.outputs();
    planner.hinder();
    planner.place();
    planner.plan
}

impl Planner<'_> {
    fn device(&mut self) -> usize {
        self.random.below(self.plan.devices.len())
    }

    fn buffer(&mut self, device: usize, bytes: u64, keeps: bool) -> u32 {
        let buffer = ExecBuffer { device: device as u32, offset: Bytes(0), bytes: Bytes(bytes) };
        self.plan.buffers.push(buffer);
        self.uses.push(Vec::new());
        self.keeps.push(keeps);
        self.plan.buffers.len() as u32 - 1
    }

    fn bytes(&self, value: ValueId) -> u64 {
        self.graph.ty(value).bytes().unwrap().get()
    }

    fn inputs(&mut self) {
        for (name, value) in self.graph.inputs() {
            let device = self.device();
            let buffer = self.buffer(device, self.bytes(*value), true);
            self.held[value.index()].push(Held { device, buffer, filled: None });
            self.plan.inputs.push((name.clone(), vec![buffer]));
        }
    }

    /// The groups in a random topological order.
    fn order(&mut self) -> Vec<usize> {
        let fused = self.groups.fused();
        let mut maker = vec![None; self.graph.value_count()];
        for (group, fused) in fused.iter().enumerate() {
            fused.writes.iter().for_each(|value| maker[value.index()] = Some(group));
        }
        let mut order = Vec::new();
        let mut done = vec![false; fused.len()];
        while order.len() < fused.len() {
            let ready = |&group: &usize| {
                let mut reads = fused[group].reads.iter();
                !done[group] && reads.all(|value| maker[value.index()].is_none_or(|maker| done[maker]))
            };
            let ready: Vec<usize> = (0..fused.len()).filter(ready).collect();
            let next = self.random.pick(&ready);
            done[next] = true;
            order.push(next);
        }
        order
    }

    /// A buffer that holds a value on a device: one that does, or a new copy from anybody.
    fn hold(&mut self, value: ValueId, device: usize) -> Held {
        let local: Vec<Held> =
            self.held[value.index()].iter().copied().filter(|held| held.device == device).collect();
        if !local.is_empty() && !self.random.one_in(6) {
            return self.random.pick(&local);
        }
        let bytes = self.bytes(value);
        if matches!(self.graph.maker(value).op, Op::Param(_) | Op::Constant(_)) {
            let buffer = self.buffer(device, bytes, true);
            match self.plan.data.iter_mut().find(|(other, _)| *other == value) {
                Some((_, list)) => list.push(buffer),
                None => self.plan.data.push((value, vec![buffer])),
            }
            let held = Held { device, buffer, filled: None };
            self.held[value.index()].push(held);
            return held;
        }
        let everybody = self.held[value.index()].clone();
        let from = self.random.pick(&everybody);
        let to = self.buffer(device, bytes, false);
        let parts = if bytes > 1 && self.random.one_in(4) {
            let cut = 1 + self.random.below(bytes as usize - 1) as u64;
            vec![Some((Bytes(0), Bytes(cut))), Some((Bytes(cut), Bytes(bytes - cut)))]
        } else {
            vec![None]
        };
        let mut filled = None;
        for part in parts {
            // The lane's order makes the last part imply those before it.
            let action = ExecAction::Copy { from: from.buffer, to, part };
            let step = self.step(device, Lane::Copy, from.filled.into_iter().collect(), action);
            self.uses[from.buffer as usize].push(step);
            self.uses[to as usize].push(step);
            filled = Some(step);
        }
        let held = Held { device, buffer: to, filled };
        self.held[value.index()].push(held);
        held
    }

    fn step(&mut self, device: usize, lane: Lane, mut after: Vec<u32>, action: ExecAction) -> u32 {
        after.sort_unstable();
        after.dedup();
        self.plan.steps.push(ExecStep { device: device as u32, lane, after, action });
        self.plan.steps.len() as u32 - 1
    }

    fn launch(&mut self, group: usize) {
        let groups = self.groups;
        let all = groups.fused();
        let fused = &all[group];
        let device = self.device();
        let held: Vec<Held> = fused.reads.iter().map(|&value| self.hold(value, device)).collect();
        let reads: Vec<u32> = held.iter().map(|held| held.buffer).collect();
        let mut writes = Vec::new();
        for &value in fused.writes {
            writes.push(self.buffer(device, self.bytes(value), false));
        }
        let needed = group_workspace(self.graph, fused).get();
        let workspace = (needed > 0).then(|| self.buffer(device, needed, false));
        let after = held.iter().filter_map(|held| held.filled).collect();
        let action = ExecAction::Launch {
            group: group as u32,
            reads: reads.clone(),
            writes: writes.clone(),
            workspace,
        };
        let step = self.step(device, Lane::Compute, after, action);
        for &buffer in writes.iter().chain(&reads).chain(&workspace) {
            self.uses[buffer as usize].push(step);
        }
        for (&value, &buffer) in fused.writes.iter().zip(&writes) {
            self.held[value.index()].push(Held { device, buffer, filled: Some(step) });
        }
        for (read, write) in in_place(self.graph, fused) {
            self.in_place.push((step, reads[read as usize], writes[write as usize]));
        }
    }

    fn outputs(&mut self) {
        for (name, value) in self.graph.outputs() {
            let device = self.device();
            let held = self.hold(self.groups.base(*value), device);
            self.keeps[held.buffer as usize] = true;
            self.plan.outputs.push((name.clone(), held.buffer));
        }
    }

    /// Dependencies that nothing needs.
    fn hinder(&mut self) {
        for step in 1..self.plan.steps.len() {
            if self.random.one_in(4) {
                let before = self.random.below(step) as u32;
                let after = &mut self.plan.steps[step].after;
                if !after.contains(&before) {
                    after.push(before);
                }
            }
        }
    }

    /// Gives every buffer its offset: that of one whose uses are all over when it is first written,
    /// most of the time, else one of its own.
    fn place(&mut self) {
        struct Place {
            device: u32,
            offset: u64,
            bytes: u64,
            users: Vec<u32>,
            kept: bool,
            last: usize,
        }
        let before = happens_before(&self.plan);
        let over = |used: u32, step: u32| before[step as usize][used as usize / 64] >> (used % 64) & 1 == 1;
        let mut places: Vec<Place> = Vec::new();
        let mut order: Vec<usize> = (0..self.plan.buffers.len()).collect();
        let first = |buffer: usize| self.uses[buffer].first().copied();
        // What is there before the step has no writer, and comes first.
        order.sort_by_key(|&buffer| (!self.is_resident(buffer), first(buffer), buffer));
        for buffer in order {
            let ExecBuffer { device, bytes, .. } = self.plan.buffers[buffer];
            let writer = first(buffer).filter(|_| !self.is_resident(buffer));
            let reused = writer.and_then(|writer| {
                let overwrites = |number: usize| {
                    self.in_place.iter().any(|&(step, read, write)| {
                        step == writer
                            && write == buffer as u32
                            && places[number].last == read as usize
                            && self.plan.buffers[read as usize].bytes == bytes
                    })
                };
                let free = |&number: &usize| {
                    let place = &places[number];
                    place.device == device
                        && !place.kept
                        && place.bytes >= bytes.get()
                        && place
                            .users
                            .iter()
                            .all(|&used| over(used, writer) || used == writer && overwrites(number))
                };
                let free: Vec<usize> = (0..places.len()).filter(free).collect();
                (!free.is_empty() && !self.random.one_in(4)).then(|| self.random.pick(&free))
            });
            let number = reused.unwrap_or_else(|| {
                let arena = &mut self.plan.devices[device as usize].arena;
                let offset = arena.get();
                *arena = Bytes(offset + bytes.get().next_multiple_of(64));
                places.push(Place {
                    device,
                    offset,
                    bytes: bytes.get(),
                    users: Vec::new(),
                    kept: false,
                    last: buffer,
                });
                places.len() - 1
            });
            places[number].last = buffer;
            places[number].users.extend(&self.uses[buffer]);
            places[number].kept |= self.keeps[buffer];
            self.plan.buffers[buffer].offset = Bytes(places[number].offset);
        }
    }

    fn is_resident(&self, buffer: usize) -> bool {
        let buffer = buffer as u32;
        self.plan.inputs.iter().any(|(_, list)| list.contains(&buffer))
            || self.plan.data.iter().any(|(_, list)| list.contains(&buffer))
    }
}

/// By step, the set of those that are over when it begins.
fn happens_before(plan: &ExecPlan) -> Vec<Vec<u64>> {
    let words = plan.steps.len().div_ceil(64);
    let mut last = vec![[None; 2]; plan.devices.len()];
    let mut before: Vec<Vec<u64>> = Vec::new();
    for (number, step) in plan.steps.iter().enumerate() {
        let lane = &mut last[step.device as usize][usize::from(step.lane == Lane::Copy)];
        let mut bits = vec![0u64; words];
        for other in step.after.iter().copied().chain(lane.replace(number as u32)) {
            bits.iter_mut().zip(&before[other as usize]).for_each(|(bits, others)| *bits |= others);
            bits[other as usize / 64] |= 1 << (other % 64);
        }
        before.push(bits);
    }
    before
}

/// Workers that wait, yield or spin before some steps, otherwise in each round.
fn dawdling(seed: u64) -> Hook {
    Box::new(move |step| {
        let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(step as u64));
        match random.below(12) {
            0 => std::thread::sleep(Duration::from_micros(random.below(200) as u64)),
            1 | 2 => std::thread::yield_now(),
            3 => (0..random.below(3000)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    })
}

/// Draws, runs and compares; the number of steps, and of bytes that are used more than once.
fn run_one(seed: u64) -> (usize, u64) {
    let graph = random_graph(seed, 4 + seed as usize % 24);
    let mut random = Random::new(seed ^ 0x50_0d);
    let groups = match seed % 3 {
        0 => Groups::planned(&graph),
        _ => Groups::new(&graph, &mut random, seed % 3 == 1),
    };
    let devices = 1 + seed as usize % 4;
    let plan = draw(&graph, &groups, devices, &mut random);
    let inputs: Vec<(String, Tensor)> = graph
        .inputs()
        .iter()
        .map(|(name, value)| (name.clone(), tensor(graph.ty(*value), &mut random)))
        .collect();
    let params: Vec<Tensor> = graph
        .params()
        .iter()
        .map(|param| tensor(graph.ty(graph.node(param.node).first_result), &mut random))
        .collect();
    let weights = |param: ParamId| Ok(params[param.index()].clone());
    let expected = interpret(&graph, &inputs, &weights).unwrap();
    let options = ExecOptions {
        timeout: Some(Duration::from_secs(60)),
        before_step: Some(dawdling(seed)),
        ..ExecOptions::default()
    };
    let mut program = Program::new(&graph, &groups.fused(), &plan, &weights, options)
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    for round in 0..2 {
        let (found, _) = program
            .run(&inputs)
            .unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}: {:?}", error.details()));
        for ((name, found), (_, expected)) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "seed {seed}, round {round}: {name}");
        }
    }
    let sizes: u64 = plan.buffers.iter().map(|buffer| buffer.bytes.get()).sum();
    let arenas: u64 = plan.devices.iter().map(|device| device.arena.get()).sum();
    (plan.steps.len(), sizes.saturating_sub(arenas))
}

fn run_all(seeds: impl Iterator<Item = u64>) {
    let mut shared = 0;
    let mut steps = 0;
    let mut plans = 0;
    for seed in seeds {
        let (count, bytes) = run_one(seed);
        plans += 1;
        steps += count;
        shared += u64::from(bytes > 0);
    }
    println!("{plans} plans of {steps} steps, bytes used again in {shared}");
    assert!(shared * 2 > plans, "memory is used again in {shared} plans only");
}

sweep! {
    five_hundred_sound_plans_give_the_same_bits: one of 4;
}

fn five_hundred_sound_plans_give_the_same_bits(share: Share) {
    run_all(share.among(0..500));
}

#[test]
#[ignore = "takes a minute: cargo test --release --test suite -- --ignored five_thousand"]
fn five_thousand_sound_plans_give_the_same_bits() {
    run_all(0..5000);
}
