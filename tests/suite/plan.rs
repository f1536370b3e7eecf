//! Plans: their forms, their checker, and what is made of them.

use std::fmt::Write;

use insta::assert_snapshot;
use partition::unstable::plan::{self, Plan, check, check_costgraph, check_model};
use partition::unstable::topology::Topology;
use partition::{Bytes, Error};

use crate::random_costgraph::Rng;
use crate::random_plan::{Case, case, large_case, library_case};
use crate::shared;
use crate::sweep::Share;

/// Keeps snapshots in the top-level folder.
fn with_snapshots(assert: impl FnOnce()) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots");
    insta::with_settings!({snapshot_path => path, prepend_module_to_snapshot => false}, { assert() });
}

fn any_case(seed: u64, nodes: usize) -> Case {
    if seed.is_multiple_of(2) { case(seed, nodes) } else { library_case(seed, nodes) }
}

#[test]
fn plans_of_random_graphs_are_sound() {
    for seed in 0..150 {
        let case = any_case(seed, 3 + seed as usize % 60);
        let told = |error: Error| panic!("seed {seed}: {error}\n{:#?}", error.details());
        let checked = check_model(&case.plan, &case.model).unwrap_or_else(told);
        assert_eq!(checked.buffers, case.plan.buffers.len());
        assert_eq!(checked.moved, case.plan.cost.step_bytes);
        check_costgraph(&case.bare, &case.graph).unwrap_or_else(told);
    }
}

sweep! {
    the_independent_verifier_agrees: one of 8;
}

fn the_independent_verifier_agrees(share: Share) {
    let dir = tempfile::tempdir().unwrap();
    for seed in share.among(0..40) {
        let case = any_case(seed, 40);
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
        let case = any_case(seed, 30);
        for mut plan in [case.plan, case.bare] {
            plan.options.balance = (seed % 3 == 0).then_some(0.1 * seed as f64);
            plan.options.dims = vec![("batch size".into(), -3), ("".into(), seed as i64)];
            plan.model.path = (seed % 2 == 0).then(|| "a \"b\"\n(c)".into());
            plan.notes = vec!["x".into(), "".into(), "two\u{2028}lines".into()];
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
}

#[test]
fn forms_look_as_documented() {
    let plan = small(COPIED).unwrap();
    with_snapshots(|| {
        assert_snapshot!("plan_form_json", plan.to_json());
        assert_snapshot!("plan_form_text", plan.to_text());
    });
    assert!(Plan::is_json(plan.to_json().as_bytes()) && !Plan::is_json(b"{\"costgraph\":1}"));
}

/// Two devices of 1 kB; `body` gives the rest in the text form.
pub(crate) fn small(body: &str) -> partition::Result<Plan> {
    let topology = serde_json::to_string(&Topology::parse("cpu[2x1000B]").unwrap()).unwrap();
    let mut text = String::from("plan 1\nmodel small hash 0 nodes NODES\n");
    text.push_str("options {\"objective\":\"transfer\",\"seed\":0}\n");
    for device in ["cpu0.0", "cpu0.1"] {
        writeln!(text, "device {device} target cpu:0 memory 1000 arena 1000 peak 1000").unwrap();
    }
    writeln!(text, "topology {topology}").unwrap();
    let launched = body.lines().filter(|line| line.contains(" launch "));
    let mut nodes = 0;
    for line in launched {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "launch").unwrap();
        writeln!(text, "node {} on {}", words[at + 1].trim_matches(['(', ')']), words[2]).unwrap();
        nodes += 1;
    }
    text.push_str(body);
    let moved: u64 = body
        .lines()
        .filter(|line| line.contains(" copy b"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    writeln!(text, "cost transfer {moved} step {moved} load 0 latency 9 max-load 9").unwrap();
    Plan::from_text(&text.replace("NODES", &nodes.to_string()), "small.txt")
}

const COPIED: &str = "\
buffer b0 f32[4] on cpu0.0 at 0 bytes 16 kind input value x
buffer b1 f32[4] on cpu0.0 at 64 bytes 16 kind temp value y
buffer b2 f32[4] on cpu0.1 at 0 bytes 16 kind copy value y
buffer b3 f32[4] on cpu0.1 at 64 bytes 16 kind output value z
step 0 cpu0.0 compute after () launch (f) reads (b0) writes (b1)
step 1 cpu0.1 copy after (0) copy b1 -> b2 bytes 16
step 2 cpu0.1 compute after (1) launch (g) reads (b2) writes (b3)
";

/// (what it shows, the plan)
#[test]
fn of_many_violations_twenty_are_told() {
    let mut plan = small(COPIED).unwrap();
    for i in 0..1000 {
        let buffer = plan::Buffer { id: format!("more{i}"), ..plan.buffers[1].clone() };
        plan.buffers.push(buffer);
    }
    let error = check(&plan).unwrap_err();
    assert!(error.to_string().contains("1000 violations"), "{error}");
    assert_eq!(error.details().len(), 21);
    assert_eq!(error.details()[20], "and 980 more");
}

#[test]
fn malformed_json_is_one_clear_error() {
    let json = small(COPIED).unwrap().to_json();
    let whole = Plan::from_json(json.as_bytes(), "p").unwrap();
    let fault = |bytes: &[u8]| -> String {
        let error = Plan::from_json(bytes, "plan.json").unwrap_err();
        assert!(matches!(error, Error::Format(_)), "{error:?}");
        let line = error.to_string();
        assert!(line.starts_with("plan.json") && !line.contains('\n'), "{line}");
        line
    };
    for end in (0..json.trim_end().len()).step_by(10) {
        fault(&json.as_bytes()[..end]);
    }
    fault("[".repeat(10_000_000).as_bytes());
    fault(&[0xff, 0xfe]);
    let changed = |from: &str, to: &str| {
        let text = json.replacen(from, to, 1);
        assert_ne!(text, json, "{from} is not there");
        fault(text.as_bytes())
    };
    let told = [
        changed("\"version\":1", "\"version\":7"),
        changed("\"version\":1", "\"version\":\"1\""),
        changed("\"f\":", "\"g\":"),
        changed("\"kind\":\"temp\"", "\"kind\":\"gift\""),
        changed("\"offset\":0", "\"offset\":-64"),
        changed("\"bytes\":16", "\"bytes\":1e99"),
        changed("\"launch\":{", "\"lunch\":{"),
        changed("\"launch\":{", "\"copy\":{\"from\":\"a\",\"to\":\"b\",\"bytes\":1},\"launch\":{"),
        changed("\"lane\":\"copy\"", "\"lane\":\"fast\""),
        changed("\"steps\"", "\"stairs\""),
        fault(b""),
        fault(b"{}"),
    ];
    with_snapshots(|| assert_snapshot!("plan_json_errors", told.join("\n")));
    let extended = json.replacen("\"steps\"", "\"future\":{\"deep\":[1,2]},\"steps\"", 1);
    assert_eq!(Plan::from_json(extended.as_bytes(), "p").unwrap(), whole, "unknown fields are skipped");
}

/// Bytes of a plan changed at random: an error or another plan, never a panic, also when checked.
#[test]
fn noise_in_a_plan_is_survived() {
    let case = case(7, 20);
    let mut read = 0;
    for (plan, attempts) in [(&case.plan, 600), (&case.bare, 300)] {
        let json = plan.to_json().into_bytes();
        let text = plan.to_text().into_bytes();
        for attempt in 0..attempts {
            let mut rng = Rng::new(attempt);
            for (form, bytes) in [("json", &json), ("text", &text)] {
                let mut bytes = bytes.clone();
                for _ in 0..1 + rng.below(3) {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] = b"0123456789\"{}[](),: abn"[rng.below(23) as usize];
                }
                let parsed = match form {
                    "json" => Plan::from_json(&bytes, "noise"),
                    _ => Plan::from_text(&String::from_utf8_lossy(&bytes), "noise"),
                };
                if let Ok(plan) = parsed {
                    read += 1;
                    let _ =
                        (check(&plan), check_model(&plan, &case.model), check_costgraph(&plan, &case.graph));
                    let _ = (plan::export(&plan, "accelerate"), plan::diff(&plan, &case.plan));
                }
            }
        }
    }
    assert!(read > 100, "only {read} changed plans could be read");
}

#[test]
fn a_diff_tells_what_moved_and_what_it_costs() {
    let before = small(COPIED).unwrap();
    let mut after = before.clone();
    assert!(plan::diff(&before, &after).is_empty());
    after.placement[1].1 = "cpu0.0".into();
    after.placement.push(("new".into(), "cpu0.1".into()));
    after.cost.step_bytes = Bytes(0);
    after.cost.transfer_bytes = Bytes(0);
    after.devices[0].arena = Bytes(900);
    let diff = plan::diff(&before, &after);
    with_snapshots(|| assert_snapshot!("plan_diff", format!("{diff}\n{}", diff.to_json())));
}

#[test]
fn placements_are_exported() {
    let mut plan = small(COPIED).unwrap();
    plan.devices[0].target = "cuda:3".into();
    let placed = |node: &str, device: &str| (node.to_owned(), format!("cpu0.{device}"));
    plan.placement = vec![
        placed("/wte/Gather", "0"),
        placed("/h.0/attn/MatMul", "0"),
        placed("/h.0/mlp/Gelu", "0"),
        placed("/h.1/attn/MatMul", "0"),
        placed("/h.1/mlp/Gelu", "1"),
        placed("/lm_head/MatMul", "1"),
    ];
    let mut out = String::new();
    for (name, what) in plan::FORMATS {
        writeln!(out, "{name}: {what}\n{}", plan::export(&plan, name).unwrap()).unwrap();
    }
    writeln!(out, "{}", plan::export(&plan, "poem").unwrap_err()).unwrap();
    plan.placement.push(placed("h.1.mlp.Gelu", "0"));
    writeln!(out, "{}", plan::export(&plan, "accelerate").unwrap_err()).unwrap();
    with_snapshots(|| assert_snapshot!("plan_export", out));
}

/// The sizes that the checker and the forms are made for. Prints its figures.
#[test]
#[ignore = "takes minutes without optimisation: cargo test --release -- --ignored a_million_steps"]
fn a_million_steps_are_checked_in_ten_seconds() {
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let start = std::time::Instant::now();
        work();
        let seconds = start.elapsed().as_secs_f64();
        println!("{what}: {seconds:.2} s");
        seconds
    };
    let mut made = None;
    timed("graph, schedule, labels and two plans", &mut || made = Some(large_case(1_000_000)));
    let Case { plan, bare, graph, model, .. } = made.unwrap();
    let (steps, devices) = (plan.steps.len(), plan.devices.len());
    println!("{steps} steps, {} buffers, {devices} devices", plan.buffers.len());
    assert!(steps >= 1_000_000 && devices >= 4);
    let mut json = String::new();
    let mut text = String::new();
    let seconds = timed("check", &mut || assert!(check(&plan).is_ok()));
    timed("check against the model", &mut || assert!(check_model(&plan, &model).is_ok()));
    timed("check against the cost graph", &mut || assert!(check_costgraph(&bare, &graph).is_ok()));
    timed("write JSON", &mut || json = plan.to_json());
    timed("read JSON", &mut || drop(Plan::from_json(json.as_bytes(), "plan.json").unwrap()));
    timed("write text", &mut || text = plan.to_text());
    timed("read text", &mut || drop(Plan::from_text(&text, "plan.txt").unwrap()));
    println!("{} bytes of JSON, {} of text", json.len(), text.len());
    assert!(cfg!(debug_assertions) || seconds < 10.0, "checked in {seconds} s");
}
