//! Plans of every kind, damaged in every way that we could think of, alone and together, and with whatever
//! would give the damage away put right: what the checker accepts, the interpreter of `provenance` finds
//! nothing wrong with.

mod buffers;
mod cases;
mod damage;
mod steps;

use partition::unstable::plan::{self, Action, BufferKind, Launch, Plan};

use crate::random_graph::Random;
use cases::{Case, cases, inference};
use damage::{buffer_of, damage, settle};

long! {
    sound_plans_of_every_kind_are_accepted;
    no_plan_that_is_proven_wrong_is_accepted;
}

fn sound_plans_of_every_kind_are_accepted() {
    let cases = cases();
    let has = |wanted: &dyn Fn(&Plan) -> bool| cases.iter().filter(|case| wanted(&case.plan)).count();
    for case in cases {
        let told = |error: partition::Error| panic!("{}: {error}: {:#?}", case.name, error.details());
        plan::check_model(&case.plan, &case.expected).unwrap_or_else(told);
        case.interpreted(&case.plan, 1).unwrap_or_else(|words| panic!("{}: {words}", case.name));
    }
    let any_launch = |plan: &Plan, wanted: fn(&Launch) -> bool| {
        plan.steps.iter().any(|step| matches!(&step.action, Action::Launch(launch) if wanted(launch)))
    };
    let in_state = |plan: &Plan| {
        let state = |id: &String| plan.buffers[buffer_of(plan, id)].kind == BufferKind::State;
        plan.steps.iter().any(|step| match &step.action {
            Action::Launch(launch) => launch.writes.iter().any(state),
            Action::Copy(_) => false,
        })
    };
    let copies = |plan: &Plan| plan.steps.iter().any(|step| matches!(step.action, Action::Copy(_)));
    let says = |plan: &Plan, what: &str| {
        plan.steps.iter().any(|step| step.why.as_deref().is_some_and(|why| why.contains(what)))
    };
    let offloaded = |plan: &Plan| says(plan, "offloaded to make room");
    let again = |plan: &Plan| any_launch(plan, |launch| launch.again);
    let divided = |plan: &Plan| any_launch(plan, |launch| launch.microbatch.is_some());
    let trained = |plan: &Plan| plan.buffers.iter().any(|buffer| buffer.kind == BufferKind::State);
    let pipelined = |case: &&Case| case.name.contains("pipeline");
    for (kind, count) in [
        ("copies", has(&copies)),
        ("something computed again", has(&again)),
        ("something offloaded", has(&offloaded)),
        ("microbatches", has(&divided)),
        ("microbatches, something computed again", has(&|plan| divided(plan) && again(plan))),
        ("state", has(&trained)),
        ("results in the place of state", has(&in_state)),
        ("training, something computed again", has(&|plan| trained(plan) && again(plan))),
        ("training, something offloaded", has(&|plan| trained(plan) && offloaded(plan))),
        ("training as a pipeline", cases.iter().filter(pipelined).count()),
    ] {
        println!("{count} of {} with {kind}", cases.len());
        assert!(count > 0, "none with {kind}");
    }
}

/// Damages plans at random and compares; the numbers of damaged plans, of those accepted, and of those
/// that are refused and that the interpreter finds wrong, of a few.
fn compare(cases: &[Case], seeds: impl Iterator<Item = u64>) -> (usize, usize, usize) {
    let (mut damaged, mut accepted, mut proven) = (0, 0, 0);
    let mut missed = Vec::new();
    for seed in seeds {
        let mut random = Random::new(seed);
        let case = &cases[random.below(cases.len())];
        let mut plan = case.plan.clone();
        let mut done = Vec::new();
        for _ in 0..1 + random.below(3) {
            done.push(damage(&mut plan, &mut random));
        }
        if !random.one_in(8) {
            settle(&mut plan);
        }
        if plan == case.plan {
            continue;
        }
        damaged += 1;
        if case.accepts(&plan) {
            accepted += 1;
            if let Err(words) = case.interpreted(&plan, seed) {
                missed.push(format!("{seed}: {done:?} of {}: {words}", case.name));
            }
        } else if seed % 16 == 0 {
            proven += usize::from(case.interpreted(&plan, seed).is_err());
        }
    }
    assert!(
        missed.is_empty(),
        "{} are accepted and wrong:\n{}",
        missed.len(),
        missed[..missed.len().min(40)].join("\n")
    );
    (damaged, accepted, proven)
}

fn no_plan_that_is_proven_wrong_is_accepted() {
    let (damaged, accepted, proven) = compare(cases(), 0..3000);
    println!("{damaged} damaged, {accepted} accepted; {proven} of a few refused ones proven wrong");
    assert!(damaged > 1500 && accepted > 25 && proven > 50, "{damaged}, {accepted}, {proven}");
}

#[test]
#[ignore = "ten minutes; PARTITION_SEED=N begins elsewhere: cargo test -- --ignored no_plan_of_a_million"]
fn no_plan_of_a_million_that_is_proven_wrong_is_accepted() {
    let start = std::env::var("PARTITION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1 << 32);
    println!("{:?}", compare(cases(), start..start + 1_000_000));
}

#[test]
fn what_the_interpreter_says_is_wrong_is_wrong() {
    // A network of one result: its buffer is taken by another launch, or its wait is lost.
    let case = inference(1).expect("fits");
    let mut plan = case.plan.clone();
    let made = plan.steps.iter().position(|step| matches!(step.action, Action::Copy(_)));
    plan.steps.remove(made.expect("a copy"));
    settle(&mut plan);
    assert!(case.interpreted(&plan, 0).is_err() && !case.accepts(&plan));
}
