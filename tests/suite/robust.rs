//! The planner on problems that nobody would pose: no panic, no violated cap, nothing worse than
//! one device, the same bytes for any number of threads, a sound plan when stopped at any moment.
//! `cargo bench --bench planner -- robust` does the same for 10,000 problems.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use partition::control::{Control, Progress};

use crate::random_costgraph::Rng;
use crate::random_problem::{described, judged, problem};

#[test]
fn random_problems_get_a_sound_plan_or_a_reason() {
    let mut planned = 0;
    let mut faults = Vec::new();
    for seed in 0..330 {
        match judged(&problem(seed, 30), &Control::new().threads(2)) {
            Ok(plan) => planned += usize::from(plan.is_some()),
            Err(fault) => faults.push(fault),
        }
    }
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    assert!(planned > 150, "{planned} of 330 have a plan");
}

#[test]
fn plans_are_the_same_bytes_for_any_number_of_threads() {
    let mut compared = 0;
    for seed in 1000..1060 {
        let problem = problem(seed, 40);
        let bytes = |threads: usize| {
            let plan = judged(&problem, &Control::new().threads(threads)).unwrap();
            plan.map(|plan| plan.to_json())
        };
        let one = bytes(1);
        for threads in [1, 2, 4] {
            assert!(bytes(threads) == one, "{threads} threads: {}", described(&problem));
        }
        compared += usize::from(one.is_some());
    }
    assert!(compared > 25, "{compared} of 60 have a plan");
}

#[test]
fn a_plan_that_was_stopped_is_sound_and_says_so() {
    let (mut sound, mut truncated) = (0, 0);
    for seed in 2000..2060 {
        let problem = problem(seed, 60);
        let mut rng = Rng::new(seed);
        let limit = Duration::from_micros(rng.below(3) * rng.below(2000));
        let control = Control::new().threads(2).time_limit(limit);
        sound += usize::from(judged(&problem, &control).unwrap().is_some());
        truncated += usize::from(control.was_truncated());
    }
    assert!(sound > 20, "{sound} of 60 have a plan");
    assert!(truncated > 5, "{truncated} of 60 were stopped");
}

#[test]
fn the_caller_may_cancel_from_the_progress_it_hears() {
    let mut heard = 0;
    for seed in 3000..3040 {
        let problem = problem(seed, 60);
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
    }
    println!("{heard} calls heard");
}

#[test]
fn a_cancelled_plan_ends_at_once_with_a_plan_or_a_reason() {
    let cancel = AtomicBool::new(true);
    for seed in 4000..4060 {
        judged(&problem(seed, 60), &Control::new().threads(2).cancel(&cancel)).unwrap();
    }
}
