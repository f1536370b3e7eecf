//! m-ETF against its definition, m-SCT against what holds of any schedule.

use super::{Grouping, Groups, Scarce, Timetable, ranks, within};
use crate::control::Control;
use crate::costgraph::{Builder, CostGraph, NodeSpec};
use crate::place::context::Context;
use crate::place::infeasible;
use crate::place::jobs::Jobs;
use crate::place::nets::Nets;
use crate::place::problem::{Backward, NONE, Problem};
use crate::place::{Objective, Options};
use crate::random::Rng;
use crate::topology::Topology;
use crate::units::{Bytes, Nanos};

const DEVICES: usize = 3;

/// Nodes that own bytes, each with up to three operands.
fn random_graph(seed: u64, nodes: usize) -> CostGraph {
    let mut rng = Rng::new(seed);
    let mut builder = Builder::new("random", vec!["a100-80g".into(), "l4-24g".into()]);
    let mut made = Vec::new();
    for number in 0..nodes {
        let time = 1_000 * (1 + rng.below(40)) as u64;
        let node = builder
            .add(&NodeSpec {
                name: &format!("n{number}"),
                op: "f",
                times: &[Some(Nanos(time)), Some(Nanos(2 * time + 700))],
                param_bytes: Bytes(64 * rng.below(10) as u64),
                outputs: &[Bytes(100_000 * (1 + rng.below(20)) as u64)],
                ..NodeSpec::default()
            })
            .unwrap();
        (0..rng.below(4).min(number)).for_each(|_| builder.connect(made[rng.below(number)], 0, node));
        made.push(node);
    }
    builder.finish().unwrap()
}

fn with_context(seed: u64, work: impl FnOnce(&Context<'_, '_>, &Jobs)) {
    let graph = random_graph(seed, 5 + seed as usize % 30);
    let topology = Topology::parse("2xa100-80g:link=100GB/s,latency=5us+1xl4-24g").unwrap();
    let options = Options { objective: Objective::Latency, ..Options::default() };
    let problem = Problem::new(&graph, &topology, &options, Backward::Free).unwrap();
    let limits = infeasible::limits(&problem).unwrap();
    let nets = Nets::new(&problem);
    let control = Control::new().threads(1);
    let jobs = Jobs::new(&problem).unwrap();
    work(&Context::new(&problem, &nets, &limits, &control), &jobs);
}

/// What a job keeps on its device, results left out.
fn kept(context: &Context<'_, '_>, jobs: &Jobs, job: usize) -> u64 {
    let (unit, graph) = (jobs.unit[job] as usize, context.problem.graph);
    let made = context.problem.unit(unit).flat_map(|node| graph.outputs(node));
    let results = made.filter(|&tensor| graph.is_result(tensor));
    let results: u64 = results.map(|tensor| graph.tensor_bytes(tensor).get()).sum();
    context.nets.resident[unit] - results
}

/// Of all ready jobs and devices with room the pair that can start first, looked at one by one; none
/// where a job finds no room.
fn earliest_task_first(context: &Context<'_, '_>, jobs: &Jobs, budget: u64) -> Option<Vec<u32>> {
    let (mut end, mut device) = (vec![None; jobs.len()], vec![NONE; jobs.len()]);
    let (mut free, mut used) = ([0; DEVICES], [0; DEVICES]);
    for _ in 0..jobs.len() {
        let mut best = None;
        for job in (0..jobs.len()).filter(|&job| end[job].is_none()) {
            let ends: Option<Vec<u64>> = jobs.before(job).iter().map(|link| end[link.job as usize]).collect();
            let Some(ends) = ends else { continue };
            for to in (0..DEVICES).filter(|&to| used[to] + kept(context, jobs, job) <= budget) {
                let delay = |link| jobs.delay(link, device[link.job as usize] as usize, to);
                let arrivals = jobs.before(job).iter().zip(&ends).map(|(&link, end)| end + delay(link));
                let start: u64 = arrivals.max().unwrap_or(0).max(free[to]);
                best = best.into_iter().chain([(start, job, to)]).min();
            }
        }
        let (start, job, to) = best?;
        device[job] = to as u32;
        used[to] += kept(context, jobs, job);
        free[to] = start + jobs.time(job, to);
        end[job] = Some(free[to]);
    }
    Some(device)
}

/// Each job runs once, after what it reads has arrived, and no device runs two at a time.
fn assert_sound(jobs: &Jobs, found: &Timetable) {
    let start = |job: usize| found.end[job] - jobs.time(job, found.device[job] as usize);
    let mut seen = vec![false; jobs.len()];
    let mut free = [0; DEVICES];
    for &job in &found.sequence {
        let job = job as usize;
        let to = found.device[job] as usize;
        assert!(!std::mem::replace(&mut seen[job], true));
        for &link in jobs.before(job) {
            let maker = link.job as usize;
            assert!(found.end[maker] + jobs.delay(link, found.device[maker] as usize, to) <= start(job));
        }
        assert!(free[to] <= start(job));
        free[to] = found.end[job];
    }
    assert!(seen.into_iter().all(|seen| seen));
}

#[test]
fn m_etf_takes_the_pair_that_can_start_first() {
    let mut compared = 0;
    for seed in 0..200 {
        with_context(seed, |context, jobs| {
            let groups = Groups::new(context.problem, jobs, Grouping::Units);
            let total: u64 = (0..jobs.len()).map(|job| kept(context, jobs, job)).sum();
            let budget = total * (4 + seed % 7) / 10;
            let found = within(context, jobs, &groups, &[budget; DEVICES], Scarce::EarliestTask);
            assert_sound(jobs, &found);
            if let Some(expected) = earliest_task_first(context, jobs, budget) {
                assert_eq!(found.device, expected, "seed {seed}");
                compared += 1;
            }
        });
    }
    assert!(compared > 100, "{compared} were within their budgets");
}

#[test]
fn all_make_sound_schedules_within_budgets() {
    for seed in 0..200 {
        with_context(seed, |context, jobs| {
            let groups = Groups::new(context.problem, jobs, Grouping::Units);
            let total: u64 = (0..jobs.len()).map(|job| kept(context, jobs, job)).sum();
            for scheduler in Scarce::ALL {
                let found = within(context, jobs, &groups, &[total; DEVICES], scheduler);
                assert_sound(jobs, &found);
            }
        });
    }
}

#[test]
fn no_job_is_the_favourite_of_two() {
    for seed in 0..50 {
        with_context(seed, |_, jobs| {
            let mut taken = vec![false; jobs.len()];
            for (job, &reader) in
                ranks::favourites(jobs).iter().enumerate().filter(|(_, reader)| **reader != NONE)
            {
                assert!(jobs.after(job).iter().any(|link| link.job == reader));
                assert!(!std::mem::replace(&mut taken[reader as usize], true));
            }
        });
    }
}
