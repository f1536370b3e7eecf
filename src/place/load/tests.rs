//! The incremental state against the evaluation, and the search against brute force.

use super::anneal::{Best, Bounds};
use super::charges::Charges;
use super::climb::{Budget, Climb};
use super::clusters;
use super::model::{Choices, Model};
use super::state::State;
use crate::control::Control;
use crate::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use crate::place::context::Context;
use crate::place::evaluate::{Evaluation, Evaluator};
use crate::place::nets::Nets;
use crate::place::problem::{Backward, Problem};
use crate::place::{Objective, Options, infeasible};
use crate::random::Rng;
use crate::topology::{
    Communication, Contention, Description, DeviceGroup, DeviceId, LinkGroup, Role, Topology,
};
use crate::units::{Bytes, Flops, Nanos, Rate};

/// A graph of inputs (some of several tensors), parameters and nodes with up to three operands.
fn graph(rng: &mut Rng, nodes: usize, pinned: Option<&str>) -> CostGraph {
    let mut builder = Builder::new("random", vec!["cpu".into(), "cuda".into()]);
    let sizes = [0u64, 1, 400, 1000, 1777, 5000];
    let mut made: Vec<(NodeIx, u32)> = Vec::new();
    for number in 0..nodes {
        let op = match rng.below(8) {
            _ if number == 0 => "input",
            0 => "input",
            1 => "param",
            _ => "f",
        };
        let outputs: Vec<Bytes> = (0..1 + rng.below(3)).map(|_| Bytes(sizes[rng.below(6)])).collect();
        let times: Vec<_> = (0..2).map(|_| Some(Nanos(rng.below(9) as u64 * 300))).collect();
        let mark = format!("class{}", rng.below(3));
        let spec = NodeSpec {
            name: &format!("n{number}"),
            op,
            times: if op == "f" { &times } else { &[] },
            param_bytes: Bytes(if op == "param" { 256 } else { 0 }),
            outputs: &outputs,
            colocate: (rng.below(6) == 0).then_some(mark.as_str()),
            pin: pinned.filter(|_| op == "input" && rng.below(4) == 0),
            ..NodeSpec::default()
        };
        let ix = builder.add(&spec).unwrap();
        if op == "f" {
            for _ in 0..rng.below(4) {
                let (producer, output) = made[made.len() - 1 - rng.below(made.len().min(9))];
                builder.connect(producer, output, ix);
            }
        }
        made.extend((0..outputs.len() as u32).map(|output| (ix, output)));
    }
    builder.finish().unwrap()
}

/// Devices of two kinds, some cut into slices, joined directly, through the host, over one bus, or
/// by copies that the first CPU stages.
fn topology(rng: &mut Rng) -> Topology {
    let communication = [Communication::Added, Communication::Overlapped][rng.below(2)];
    let contention = [Contention::Link, Contention::None][rng.below(2)];
    let group = |kind: &str, count: u32, slices: usize| DeviceGroup {
        count: Some(count),
        memory: (slices == 0).then_some(Bytes(1 << 40)),
        slices: vec![Bytes(1 << 30); slices],
        flops: Some(Flops(1_000_000_000)),
        bandwidth: Some(Rate(3_000_000_000)),
        launch: Some(Nanos::ZERO),
        communication,
        ..DeviceGroup::new(kind)
    };
    let mut description = Description::default();
    let slices = [0, 0, 2][rng.below(3)];
    let host = DeviceGroup { role: Some(Role::Compute), ..group("cpu", 1 + rng.below(2) as u32, 0) };
    let accelerators = DeviceGroup { contention, ..group("cuda", 2 + rng.below(2) as u32, slices) };
    description.devices = vec![host, accelerators];
    let link = |from: &str, to: &str, rate| LinkGroup { contention, ..LinkGroup::new(from, to, Rate(rate)) };
    match rng.below(4) {
        0 => description.links.push(link("cuda*", "cuda*", 2_000_000_000)),
        1 => {
            let bus = LinkGroup { shared: Some("bus".into()), ..link("cpu*", "cuda*", 1_000_000_000) };
            description.links.push(bus);
        }
        2 => {
            let staged = LinkGroup { via: Some("cpu0".into()), ..link("cuda*", "cuda*", 1_000_000_000) };
            description.links.push(staged);
        }
        _ => {}
    }
    description.build().unwrap()
}

/// Hands a random problem, and how its placements are evaluated, to a test.
fn with_problem(seed: u64, nodes: usize, test: impl FnOnce(&Context<'_, '_>, &mut Rng)) {
    let mut rng = Rng::new(seed);
    let topology = topology(&mut rng);
    let pinned = seed.is_multiple_of(2).then_some(topology.devices[1].name.as_str());
    let graph = graph(&mut rng, nodes, pinned);
    let options = Options { objective: Objective::Throughput, ..Options::default() };
    let Ok(problem) = Problem::new(&graph, &topology, &options, Backward::Free) else { return };
    let limits = infeasible::limits(&problem).unwrap();
    let nets = Nets::new(&problem);
    let control = Control::new().threads(1);
    test(&Context::new(&problem, &nets, &limits, &control), &mut rng);
}

fn evaluated(context: &Context<'_, '_>, device: &[u32]) -> u64 {
    evaluation(context, device).max_load.get()
}

fn evaluation(context: &Context<'_, '_>, device: &[u32]) -> Evaluation {
    let mut evaluator = Evaluator::new(context.problem);
    let units: Vec<DeviceId> = device.iter().map(|&id| DeviceId(id)).collect();
    let nodes = evaluator.spread(&units);
    evaluator.evaluate(&nodes, &context.order)
}

/// A random device for each unit.
fn drawn(model: &Model<'_>, rng: &mut Rng) -> Vec<u32> {
    let choose = |unit| {
        let allowed = model.allowed(unit);
        allowed[rng.below(allowed.len())]
    };
    (0..model.unit_count()).map(choose).collect()
}

#[test]
fn loads_are_those_of_the_evaluation_after_every_move() {
    let mut compared = 0;
    for seed in 0..150 {
        with_problem(seed, 4 + seed as usize % 40, |context, rng| {
            let charges = Charges::new(context.problem.topology).unwrap();
            let choices = Choices::new(context.problem);
            let model = Model::new(context, &charges, &choices).unwrap();
            let mut state = State::new(&model, drawn(&model, rng));
            assert_eq!(state.max_load(), evaluated(context, &state.device), "seed {seed}");
            for _ in 0..30 {
                let device = state.device.clone();
                for _ in 0..1 + rng.below(3) {
                    let Some(last) = model.unit_count().checked_sub(1) else { return };
                    let unit = rng.below(last + 1);
                    let to = model.allowed(unit)[rng.below(model.allowed(unit).len())];
                    state.shift(unit, to);
                    assert_eq!(state.max_load(), evaluated(context, &state.device), "seed {seed}");
                    compared += 1;
                }
                if rng.below(2) == 0 {
                    state.keep();
                } else {
                    state.revert();
                    assert_eq!(state.device, device, "seed {seed}");
                }
                assert_eq!(state.levels(), State::new(&model, state.device.clone()).levels(), "seed {seed}");
            }
        });
    }
    assert!(compared > 5_000, "{compared}");
}

#[test]
fn bytes_are_those_of_the_evaluation_after_every_move() {
    let mut moved = 0;
    for seed in 0..150 {
        with_problem(seed, 4 + seed as usize % 40, |context, rng| {
            let charges = Charges::of_bytes(context.problem.topology).unwrap();
            let choices = Choices::new(context.problem);
            let model = Model::new(context, &charges, &choices).unwrap();
            let mut state = State::new(&model, drawn(&model, rng));
            for _ in 0..40 {
                let bytes = evaluation(context, &state.device).transfer_bytes().get();
                assert_eq!(state.max_load(), bytes, "seed {seed}");
                moved += usize::from(bytes > 0);
                let Some(last) = model.unit_count().checked_sub(1) else { return };
                let unit = rng.below(last + 1);
                let to = model.allowed(unit)[rng.below(model.allowed(unit).len())];
                state.shift(unit, to);
                if rng.below(2) == 0 { state.keep() } else { state.revert() }
            }
        });
    }
    assert!(moved > 2_000, "{moved}");
}

#[test]
fn clusters_that_are_placed_whole_have_the_loads_of_their_units() {
    for seed in 0..60 {
        with_problem(seed, 40, |context, rng| {
            let charges = Charges::new(context.problem.topology).unwrap();
            let choices = Choices::new(context.problem);
            let model = Model::new(context, &charges, &choices).unwrap();
            let device = drawn(&model, rng);
            let (of, count) = clusters::matched(&model, u64::MAX, &device, rng);
            let coarse = model.coarsened(&of, count);
            let placed = drawn(&coarse, rng);
            let units: Vec<u32> = of.iter().map(|&cluster| placed[cluster as usize]).collect();
            assert_eq!(
                State::new(&coarse, placed).levels(),
                State::new(&model, units).levels(),
                "seed {seed}"
            );
        });
    }
}

/// The lowest load of all placements.
fn optimum(context: &Context<'_, '_>, model: &Model<'_>) -> u64 {
    let mut device: Vec<usize> = vec![0; model.unit_count()];
    let mut best = u64::MAX;
    loop {
        let named: Vec<u32> = device.iter().enumerate().map(|(unit, &at)| model.allowed(unit)[at]).collect();
        best = best.min(evaluated(context, &named));
        let Some(next) = (0..device.len()).find(|&unit| device[unit] + 1 < model.allowed(unit).len()) else {
            return best;
        };
        device[next] += 1;
        device[..next].fill(0);
    }
}

#[test]
fn small_problems_are_solved_to_their_optimum() {
    let (mut solved, mut all) = (0, 0);
    for seed in 0..300 {
        with_problem(seed, 10, |context, rng| {
            let charges = Charges::new(context.problem.topology).unwrap();
            let choices = Choices::new(context.problem);
            let model = Model::new(context, &charges, &choices).unwrap();
            let placements: usize = (0..model.unit_count()).map(|unit| model.allowed(unit).len()).product();
            if placements > 4_000 || model.unit_count() < 3 {
                return;
            }
            let levels = vec![u64::MAX; 2 * context.problem.topology.len()];
            let bounds = Bounds { levels, keep_used: false };
            let devices = context.problem.devices.len();
            let control = context.control;
            let climb = Climb { model: &model, bounds: &bounds, devices, floor: 0, enough: 0, control };
            let start = Best { device: drawn(&model, rng), load: u64::MAX };
            let found = climb.run(start, Budget { cycles: 4, idle: 4, moves: 2_000 }, rng);
            assert_eq!(found.load, evaluated(context, &found.device), "seed {seed}");
            let least = optimum(context, &model);
            assert!(found.load >= least, "seed {seed}");
            solved += usize::from(found.load == least);
            all += 1;
        });
    }
    assert!(all >= 30 && solved * 20 >= all * 19, "{solved} of {all}");
}
