//! Plans: their forms, their checker, and what is made of them.

use partition::plan::{self, Plan, check, check_costgraph, check_model};

use crate::random_plan::{case, library_case};
use crate::shared;

#[test]
fn plans_of_random_graphs_are_sound() {
    for seed in 0..150 {
        let nodes = 3 + seed as usize % 60;
        let case = if seed % 2 == 0 { case(seed, nodes) } else { library_case(seed, nodes) };
        let told = |error: partition::Error| {
            panic!("seed {seed}: {error}\n{}\n{}", error.details().join("\n"), case.plan.to_text())
        };
        let checked = check_model(&case.plan, &case.model).unwrap_or_else(told);
        assert_eq!(checked.buffers, case.plan.buffers.len());
        assert_eq!(checked.moved, case.plan.cost.step_bytes);
        check_costgraph(&case.bare, &case.graph).unwrap_or_else(told);
    }
}

#[test]
fn the_independent_verifier_agrees() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..20 {
        let case = if seed % 2 == 0 { case(seed, 40) } else { library_case(seed, 40) };
        for (name, plan) in [("plan", &case.plan), ("bare", &case.bare)] {
            let path = dir.path().join(format!("{name}{seed}.json"));
            plan.save(&path).unwrap();
            if shared::verify_plan(&path).is_none() {
                return;
            }
        }
    }
}

#[test]
fn both_forms_round_trip() {
    for seed in 0..60 {
        let case = case(seed, 30);
        for plan in [case.plan, case.bare] {
            let json = plan.to_json();
            let read = Plan::from_json(json.as_bytes(), "plan.json").unwrap();
            assert_eq!(read, plan);
            assert_eq!(read.to_json(), json);
            let text = plan.to_text();
            let parsed = Plan::from_text(&text, "plan.txt").unwrap();
            assert_eq!(parsed, plan);
            assert_eq!(parsed.to_text(), text);
        }
    }
    let _ = plan::VERSION;
    let _ = check;
}
