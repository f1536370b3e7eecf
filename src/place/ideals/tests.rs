//! Ideals counted by definition, and splits against all contiguous placements of small problems.

use super::lattice::Lattice;
use super::split::{self, Request};
use super::{Costs, Find, Goal, kinds};
use crate::control::Control;
use crate::costgraph::{Builder, CostGraph, NodeIx, NodeSpec, TensorIx};
use crate::place::context::Context;
use crate::place::evaluate::Evaluator;
use crate::place::infeasible;
use crate::place::nets::Nets;
use crate::place::problem::{Backward, Problem};
use crate::place::{Objective, Options};
use crate::random::Rng;
use crate::topology::{Communication, DeviceId, Topology};
use crate::units::{Bytes, Nanos};

/// Two devices that are alike, and one that is not.
fn unequal() -> Topology {
    Topology::parse("2xa100-80g:link=100GB/s,latency=1us+1xl4-24g").unwrap()
}

/// Three whose copies take of their own time, 100 bytes a nanosecond.
fn copying() -> Topology {
    let mut topology = Topology::parse("3xa100-80g:link=100GB/s,latency=1us").unwrap();
    topology.devices.iter_mut().for_each(|device| device.communication = Communication::Added);
    topology
}

/// Nodes with parameters of their own and outputs of up to `largest` bytes; two of them tied.
fn random_graph(seed: u64, nodes: usize, largest: usize) -> CostGraph {
    let mut rng = Rng::new(seed);
    let mut builder = Builder::new("random", vec!["a100-80g".into(), "l4-24g".into()]);
    let mut made = Vec::new();
    for number in 0..nodes {
        let param = builder
            .add(&NodeSpec {
                name: &format!("w{number}"),
                op: "param",
                param_bytes: Bytes(64 * (1 + rng.below(10)) as u64),
                outputs: &[Bytes(0)],
                ..NodeSpec::default()
            })
            .unwrap();
        let time = 1_000 * (1 + rng.below(40)) as u64;
        let node = builder
            .add(&NodeSpec {
                name: &format!("n{number}"),
                op: "f",
                times: &[Some(Nanos(time)), (rng.below(6) > 0).then_some(Nanos(3 * time))],
                outputs: &[Bytes(rng.below(largest + 1) as u64)],
                ..NodeSpec::default()
            })
            .unwrap();
        builder.connect(param, 0, node);
        for _ in 0..rng.below(3).min(number) {
            builder.connect(made[rng.below(number)], 0, node);
        }
        if number > 2 && rng.below(3) == 0 {
            builder.connect(NodeIx(0), 0, node);
        }
        made.push(node);
    }
    builder.finish().unwrap()
}

/// A training step whose tensors take up to 100 x `largest` bytes: each node's gradient is with it, sums of several gradients are apart.
fn random_step(seed: u64, nodes: usize, largest: usize) -> CostGraph {
    let mut rng = Rng::new(seed);
    let mut builder = Builder::new("step", vec!["a100-80g".into(), "l4-24g".into()]);
    let read: Vec<Vec<usize>> =
        (0..nodes).map(|number| (0..rng.below(3).min(number)).map(|_| rng.below(number)).collect()).collect();
    let mut bytes = || Bytes(100 * rng.below(largest + 1) as u64);
    let (forward, gradients): (Vec<Bytes>, Vec<[Bytes; 2]>) =
        (0..nodes).map(|_| (bytes(), [bytes(), bytes()])).unzip();
    let times = |number: usize| {
        let time = 1_000 * (1 + number * 7 % 40) as u64;
        [Some(Nanos(time)), Some(Nanos(3 * time))]
    };
    let mut add = |name: &str, number: usize, colocate: Option<&str>, outputs: &[Bytes]| {
        let backward = !name.starts_with('n');
        let times = times(number);
        let spec =
            NodeSpec { name, op: "f", times: &times, outputs, colocate, backward, ..NodeSpec::default() };
        builder.add(&spec).unwrap()
    };
    let class = |number: usize| format!("layer{number}");
    let made: Vec<NodeIx> =
        (0..nodes).map(|at| add(&format!("n{at}"), at, Some(&class(at)), &forward[at..=at])).collect();
    let back: Vec<NodeIx> =
        (0..nodes).map(|at| add(&format!("g{at}"), at, Some(&class(at)), &gradients[at])).collect();
    let readers = |at: usize| {
        let of =
            |reader: usize| read[reader].iter().enumerate().map(move |(slot, &from)| (reader, slot, from));
        (0..nodes)
            .flat_map(of)
            .filter(|&(.., from)| from == at)
            .map(|(reader, slot, _)| (reader, slot))
            .collect()
    };
    let sums: Vec<(Vec<(usize, usize)>, Option<NodeIx>)> = (0..nodes)
        .map(|at| {
            let readers: Vec<(usize, usize)> = readers(at);
            let sum = (readers.len() > 1).then(|| add(&format!("s{at}"), at, None, &forward[at..=at]));
            (readers, sum)
        })
        .collect();
    for at in 0..nodes {
        read[at].iter().for_each(|&from| builder.connect(made[from], 0, made[at]));
        builder.connect(made[at], 0, back[at]);
        let (readers, sum) = &sums[at];
        readers.iter().for_each(|&(reader, slot)| {
            builder.connect(back[reader], slot as u32, sum.unwrap_or(back[at]));
        });
        sum.iter().for_each(|&sum| builder.connect(sum, 0, back[at]));
    }
    builder.finish().unwrap()
}

fn with_context(
    graph: &CostGraph,
    topology: &Topology,
    objective: Objective,
    work: impl FnOnce(&Context<'_, '_>),
) {
    let options = Options { objective, ..Options::default() };
    let problem = Problem::new(graph, topology, &options, Backward::Free).unwrap();
    let limits = infeasible::limits(&problem).unwrap();
    let nets = Nets::new(&problem);
    let control = Control::new().threads(1);
    work(&Context::new(&problem, &nets, &limits, &control));
}

/// Bytes that stay on each device, by the graph alone: parameters, results, and what is kept for the backward pass.
fn lasting(graph: &CostGraph, device: &[DeviceId], devices: usize) -> Vec<u64> {
    let mut resident = vec![0; devices];
    for (node, param) in graph.nodes().filter_map(|node| Some((node, graph.param(node)?))) {
        let readers = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor));
        let mut on: Vec<usize> = readers.map(|reader| device[reader.index()].index()).collect();
        on.sort_unstable();
        on.dedup();
        on.into_iter().for_each(|id| resident[id] += graph.param_bytes(param).get());
    }
    let is_kept = |tensor: &TensorIx| {
        let maker = graph.producer(*tensor);
        let is_stash = || {
            !graph.is_backward(maker)
                && graph.consumers(*tensor).iter().any(|&reader| graph.is_backward(reader))
        };
        graph.param(maker).is_none() && (graph.is_result(*tensor) || is_stash())
    };
    for tensor in graph.tensors().filter(is_kept) {
        resident[device[graph.producer(tensor).index()].index()] += graph.tensor_bytes(tensor).get();
    }
    resident
}

/// The least of all placements in which no node stands before what it reads in an order of the devices;
/// `value` of a placement.
fn brute_force(
    context: &Context<'_, '_>,
    caps: &[u64],
    order: &[DeviceId],
    value: impl Fn(&[DeviceId]) -> u64,
) -> Option<u64> {
    let rank = |id: DeviceId| order.iter().position(|&other| other == id);
    let problem = context.problem;
    let (units, devices) = (problem.unit_count(), problem.topology.len());
    let mut evaluator = Evaluator::new(problem);
    let mut best = None;
    for code in 0..devices.pow(units as u32) {
        let unit = |unit: usize| DeviceId((code / devices.pow(unit as u32) % devices) as u32);
        let of_unit: Vec<DeviceId> = (0..units).map(unit).collect();
        let device = evaluator.spread(&of_unit);
        let may = (0..units).all(|unit| problem.allowed(unit).contains(of_unit[unit]));
        let ordered = problem.graph.tensors().all(|tensor| {
            let maker = problem.graph.producer(tensor);
            let before = |reader: &NodeIx| {
                let (maker_at, reader_at) = (rank(device[maker.index()]), rank(device[reader.index()]));
                if problem.graph.is_backward(maker) { reader_at <= maker_at } else { maker_at <= reader_at }
            };
            problem.graph.param(maker).is_some() || problem.graph.consumers(tensor).iter().all(before)
        });
        let fits =
            lasting(problem.graph, &device, devices).iter().zip(caps).all(|(resident, cap)| resident <= cap);
        if may && ordered && fits {
            let value = value(&device);
            best = Some(best.map_or(value, |best: u64| best.min(value)));
        }
    }
    best
}

/// The orders of three devices.
const ORDERS: [[u32; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Splits a random problem under random caps, and holds it against all contiguous placements in the first of some orders of
/// the devices, or in any of them.
fn compared(
    (graph, topology): (&CostGraph, &Topology),
    seed: u64,
    objective: Objective,
    find: Find,
    orders: &[[u32; 3]],
) {
    let goal = if objective == Objective::Transfer { Goal::Bytes } else { Goal::Load };
    with_context(graph, topology, objective, |context| {
        let total = lasting(graph, &vec![DeviceId(0); graph.node_count()], 3)[0];
        let cap = total * (4 + Rng::new(seed).below(7) as u64) / 10;
        let caps = [cap, cap, cap / 2];
        let problem = context.problem;
        let lattice = Lattice::new(problem, 10_000).unwrap();
        let costs = Costs::new(context, &lattice);
        let request = Request { sequence: &problem.devices, caps: &caps, goal };
        let value = |device: &[DeviceId]| {
            let found = Evaluator::new(problem).evaluate(device, &problem.order);
            if goal == Goal::Bytes { found.transfer_bytes().get() } else { found.max_load.get() }
        };
        let of_order = |order: &[u32; 3]| brute_force(context, &caps, &order.map(DeviceId), value);
        let expected = orders.iter().filter_map(of_order).min();
        let found = find(context, &lattice, &costs, &request);
        let found = found.map(|units| Evaluator::new(problem).spread(&units));
        if let Some(device) = &found {
            let resident = lasting(graph, device, 3);
            assert!(
                resident.iter().zip(&caps).all(|(resident, cap)| resident <= cap),
                "seed {seed}: over its cap"
            );
        }
        assert_eq!(found.map(|device| value(&device)), expected, "seed {seed}");
    });
}

/// Of inference, with outputs of up to `largest` bytes.
fn compared_inference(seeds: u64, objective: Objective, largest: usize, find: Find, orders: &[[u32; 3]]) {
    for seed in 0..seeds {
        let graph = random_graph(seed, 4 + seed as usize % 4, largest);
        compared((&graph, &unequal()), seed, objective, find, orders);
    }
}

/// Of training.
fn compared_training(seeds: u64, objective: Objective, largest: usize, find: Find, orders: &[[u32; 3]]) {
    for seed in 0..seeds {
        let graph = random_step(seed, 3 + seed as usize % 3, largest);
        compared((&graph, &unequal()), seed, objective, find, orders);
    }
}

#[test]
fn splits_move_as_few_bytes_as_any_contiguous_placement() {
    compared_inference(150, Objective::Transfer, 5_000, split::best, &ORDERS[..1]);
    compared_training(60, Objective::Transfer, 5_000, split::best, &ORDERS[..1]);
}

#[test]
fn splits_load_devices_as_little_as_any_contiguous_placement() {
    compared_inference(150, Objective::Throughput, 0, split::best, &ORDERS[..1]);
    compared_training(60, Objective::Throughput, 0, split::best, &ORDERS[..1]);
}

#[test]
fn splits_load_devices_that_copy_as_little_as_any_contiguous_placement() {
    for seed in 0..60 {
        let graph = random_step(seed, 3 + seed as usize % 3, 20_000);
        compared((&graph, &copying()), seed, Objective::Throughput, split::best, &ORDERS[..1]);
    }
}

#[test]
fn splits_over_kinds_are_the_best_in_any_order_of_the_devices() {
    compared_inference(60, Objective::Transfer, 5_000, kinds::best, &ORDERS);
    compared_inference(60, Objective::Throughput, 0, kinds::best, &ORDERS);
    compared_training(60, Objective::Transfer, 5_000, kinds::best, &ORDERS);
}

/// Every set of units is looked at: the ideals are those that hold what their members read.
#[test]
fn ideals_are_the_sets_that_hold_what_they_depend_on() {
    for seed in 0..40 {
        let graph = random_graph(seed, 8, 100);
        with_context(&graph, &unequal(), Objective::Transfer, |context| {
            let problem = context.problem;
            let holds = |set: usize, node: NodeIx| set & (1 << problem.unit_of[node.index()]) != 0;
            let closed = |set: &usize| {
                graph.tensors().all(|tensor| {
                    let maker = graph.producer(tensor);
                    graph.param(maker).is_some()
                        || holds(*set, maker)
                        || graph.consumers(tensor).iter().all(|&reader| !holds(*set, reader))
                })
            };
            let expected = (0..1usize << problem.unit_count()).filter(closed).count();
            assert_eq!(Lattice::new(problem, 10_000).unwrap().len(), expected, "seed {seed}");
            assert!(Lattice::new(problem, expected - 1).is_none());
        });
    }
}
