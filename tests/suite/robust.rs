//! The planner on problems that nobody would pose: no panic, no violated cap, nothing worse than
//! one device, the same bytes for any number of threads, a sound plan when stopped at any moment.
//! `cargo bench --bench planner -- robust` does the same for 10,000 problems.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use partition::unstable::control::{Control, Progress};

use partition::unstable::place::Effort;

use crate::random_costgraph::Rng;
use crate::random_problem::{Problem, described, judged, problem};

/// A problem that a debug build plans quickly: every tenth has an effort other than the least.
fn small(seed: u64) -> Problem {
    let mut problem = problem(seed, 12);
    if !seed.is_multiple_of(10) {
        problem.options.effort = Effort::Fast;
    }
    problem
}

#[test]
fn random_problems_get_a_sound_plan_or_a_reason() {
    let mut planned = 0;
    let mut faults = Vec::new();
    for seed in 0..110 {
        match judged(&small(seed), &Control::new().threads(2)) {
            Ok(plan) => planned += usize::from(plan.is_some()),
            Err(fault) => faults.push(fault),
        }
    }
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    assert!(planned > 40, "{planned} of 110 have a plan");
}

#[test]
fn plans_are_the_same_bytes_for_any_number_of_threads() {
    let mut compared = 0;
    for seed in 1000..1022 {
        let problem = small(seed);
        let bytes = |threads: usize| {
            let plan = judged(&problem, &Control::new().threads(threads)).unwrap();
            plan.map(|plan| plan.to_json())
        };
        let one = bytes(1);
        for threads in [2, 4] {
            assert!(bytes(threads) == one, "{threads} threads: {}", described(&problem));
        }
        compared += usize::from(one.is_some());
    }
    assert!(compared > 5, "{compared} of 22 have a plan");
}

#[test]
fn a_plan_that_was_stopped_is_sound_and_says_so() {
    let (mut sound, mut truncated) = (0, 0);
    for seed in 2000..2044 {
        let problem = problem(seed, 30);
        let mut rng = Rng::new(seed);
        let limit = Duration::from_micros(rng.below(3) * rng.below(2000));
        let control = Control::new().threads(2).time_limit(limit);
        sound += usize::from(judged(&problem, &control).unwrap().is_some());
        truncated += usize::from(control.was_truncated());
    }
    assert!(sound > 10, "{sound} of 44 have a plan");
    assert!(truncated > 2, "{truncated} of 44 were stopped");
}

#[test]
fn the_caller_may_cancel_from_the_progress_it_hears() {
    let (mut heard, mut stopped) = (0, 0);
    for seed in 3000..3022 {
        let problem = problem(seed, 30);
        let cancel = AtomicBool::new(false);
        let calls = AtomicUsize::new(0);
        let last = Rng::new(seed).below(4) as usize;
        let listener = |_: Progress<'_>| {
            if calls.fetch_add(1, Ordering::Relaxed) >= last {
                cancel.store(true, Ordering::Relaxed);
            }
        };
        let control = Control::new().threads(2).cancel(&cancel).progress(&listener);
        judged(&problem, &control).unwrap();
        heard += calls.load(Ordering::Relaxed);
        stopped += usize::from(control.was_truncated());
    }
    assert!(heard > 20, "{heard} calls were heard");
    assert!(stopped > 2, "{stopped} of 22 were stopped");
}

#[test]
fn a_cancelled_plan_ends_at_once_with_a_plan_or_a_reason() {
    let cancel = AtomicBool::new(true);
    for seed in 4000..4044 {
        judged(&problem(seed, 30), &Control::new().threads(2).cancel(&cancel)).unwrap();
    }
}
