//! Schedules of random small problems, against the definition and against brute force.

use super::super::Options;
use super::super::context::Context;
use super::super::infeasible;
use super::super::jobs::{Jobs, NEVER};
use super::super::list::{self, Timetable};
use super::super::nets::Nets;
use super::super::problem::{Backward, Problem};
use super::{exact, improved, optimal};
use crate::control::Control;
use crate::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use crate::random::Rng;
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos};

const EQUAL: &str = "2xa100-80g:link=100GB/s,latency=5us,contention=none";
const UNEQUAL: &str = "2xa100-80g:link=100GB/s,latency=1us,contention=none+1xl4-24g";

/// A graph in which every node computes; times of the second kind are not a multiple of the first's,
/// and some nodes do not run there.
fn random_graph(seed: u64, nodes: usize) -> CostGraph {
    let mut rng = Rng::new(seed);
    let mut builder = Builder::new("random", vec!["a100-80g".into(), "l4-24g".into()]);
    for number in 0..nodes {
        let time = 1_000 * rng.below(40) as u64;
        let other = (rng.below(8) > 0).then(|| Nanos(time * 2 + 500));
        let spec = NodeSpec {
            name: &format!("n{number}"),
            op: "f",
            times: &[Some(Nanos(time)), other],
            outputs: &[Bytes(100_000 * rng.below(20) as u64)],
            ..NodeSpec::default()
        };
        let node = builder.add(&spec).unwrap();
        for _ in 0..rng.below(3).min(number) {
            builder.connect(NodeIx(rng.below(number) as u32), 0, node);
        }
    }
    builder.finish().unwrap()
}

fn with_context<T>(graph: &CostGraph, spec: &str, work: impl FnOnce(&Context<'_, '_>, &Jobs) -> T) -> T {
    let topology = Topology::parse(spec).unwrap();
    let options = Options { objective: super::super::Objective::Latency, ..Options::default() };
    let problem = Problem::new(graph, &topology, &options, Backward::Free).unwrap();
    let limits = infeasible::limits(&problem).unwrap();
    let nets = Nets::new(&problem);
    let control = Control::new().threads(1);
    let jobs = Jobs::new(&problem).unwrap();
    work(&Context::new(&problem, &nets, &limits, &control), &jobs)
}

/// The makespan of nodes that run in this order, by the graph and the topology alone.
fn timed(context: &Context<'_, '_>, order: &[NodeIx], device: &[DeviceId]) -> u64 {
    let (graph, topology) = (context.problem.graph, context.problem.topology);
    let mut end = vec![None; graph.node_count()];
    let mut free = vec![0; topology.len()];
    for &node in order {
        let to = device[node.index()];
        let arrivals = graph.inputs(node).iter().map(|&tensor| {
            let maker = graph.producer(tensor);
            let made: u64 = end[maker.index()].expect("what is read is made before");
            made + topology.copy_time(device[maker.index()], to, graph.tensor_bytes(tensor)).get()
        });
        let start = arrivals.max().unwrap_or(0).max(free[to.index()]);
        let time = graph.time(node, context.problem.kinds[to.index()]).expect("the device can run it");
        free[to.index()] = start + time.get();
        assert_eq!(end[node.index()].replace(free[to.index()]), None, "each runs once");
    }
    assert!(end.iter().all(Option::is_some), "each runs");
    free.into_iter().max().unwrap_or(0)
}

fn check(context: &Context<'_, '_>, jobs: &Jobs, found: &Timetable) {
    let mut device = vec![DeviceId(0); jobs.len()];
    for (job, node) in jobs.node.iter().enumerate() {
        device[node.index()] = DeviceId(found.device[job]);
    }
    let order: Vec<NodeIx> = found.sequence.iter().map(|&job| jobs.node[job as usize]).collect();
    assert_eq!(timed(context, &order, &device), found.makespan());
}

#[test]
fn schedules_take_the_time_they_say() {
    for seed in 0..8 {
        let graph = random_graph(seed, 30);
        for spec in [EQUAL, UNEQUAL] {
            with_context(&graph, spec, |context, jobs| {
                let schedules = list::schedules(context, jobs, &context.problem.caps);
                schedules.iter().for_each(|found| check(context, jobs, found));
                let better = improved(context, jobs, &schedules, None);
                better.iter().for_each(|found| check(context, jobs, found));
                assert!(better.iter().all(|found| found.makespan() <= schedules[0].makespan()));
            });
        }
    }
}

/// The least makespan over all orders and devices.
fn brute_force(context: &Context<'_, '_>, jobs: &Jobs) -> u64 {
    fn extend(
        context: &Context<'_, '_>,
        jobs: &Jobs,
        order: &mut Vec<NodeIx>,
        device: &mut Vec<DeviceId>,
        least: &mut u64,
    ) {
        let graph = context.problem.graph;
        if order.len() == jobs.len() {
            *least = (*least).min(timed(context, order, device));
        }
        for job in 0..jobs.len() {
            let node = jobs.node[job];
            let ready = graph.inputs(node).iter().all(|&tensor| order.contains(&graph.producer(tensor)));
            if order.contains(&node) || !ready {
                continue;
            }
            order.push(node);
            for d in (0..jobs.devices()).filter(|&d| jobs.time(job, d) != NEVER) {
                device[node.index()] = DeviceId(d as u32);
                extend(context, jobs, order, device, least);
            }
            order.pop();
        }
    }
    let mut least = u64::MAX;
    extend(context, jobs, &mut Vec::new(), &mut vec![DeviceId(0); jobs.len()], &mut least);
    least
}

#[test]
fn branch_and_bound_finds_what_brute_force_does() {
    for seed in 0..60 {
        let graph = random_graph(seed, 5);
        for spec in [EQUAL, UNEQUAL] {
            with_context(&graph, spec, |context, jobs| {
                let least = brute_force(context, jobs);
                let exact = exact::search(context.problem, jobs, u64::MAX, 1_000_000, &Control::new());
                let found = exact.found.expect("there is a schedule");
                check(context, jobs, &found);
                assert!(exact.proven);
                assert_eq!(found.makespan(), least);
                assert!(
                    exact::search(context.problem, jobs, least, 1_000_000, &Control::new()).found.is_none()
                );
            });
        }
    }
}

#[test]
fn windows_find_the_optimum_of_small_problems() {
    let (mut ours, mut least) = (0, 0);
    for seed in 100..120 {
        let graph = random_graph(seed, 10);
        with_context(&graph, EQUAL, |context, jobs| {
            let schedules = list::schedules(context, jobs, &context.problem.caps);
            let known = schedules[0].makespan();
            let best = optimal(context, jobs, &schedules).expect("few jobs");
            least += best.first().map_or(known, Timetable::makespan);
            ours += improved(context, jobs, &schedules, None).first().map_or(known, Timetable::makespan);
        });
    }
    assert!(ours * 100 <= least * 101, "{ours} where {least} would do");
}
