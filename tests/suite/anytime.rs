//! Efforts one after the other: more work is never worse, `--until` ends the search at a gap, and the curve of the gap.

use partition::unstable::compile::{self, Compiled, Options};
use partition::unstable::load::Model;
use partition::unstable::place::{self, Effort, Objective};
use partition::unstable::plan::check;
use partition::unstable::topology::{Communication, Contention, Topology};
use partition::unstable::units::{Bytes, Nanos};
use partition::{Control, Error, Plan};

use crate::cli::{Folder, example};
use crate::random_costgraph::{Links, Rng, cost_graph, topology};

/// The figures of a plan, the one that its objective makes small first.
fn figures(plan: &Plan, objective: Objective) -> [u64; 3] {
    let cost = &plan.cost;
    let (bytes, latency, load) = (cost.transfer_bytes.get(), cost.latency_ns.get(), cost.max_load_ns.get());
    match objective {
        Objective::Transfer => [bytes, latency, load],
        Objective::Latency => [latency, bytes, load],
        Objective::Throughput => [load, bytes, latency],
    }
}

fn options(objective: Objective, effort: Effort, until: Option<&str>) -> Options {
    let place = place::Options { objective, effort, ..place::Options::default() };
    Options { place, until: until.map(|text| text.parse().unwrap()), ..Options::default() }
}

fn planned(model: &Model, devices: &Topology, options: &Options) -> Option<Compiled> {
    match compile::compile(model.clone(), devices, options) {
        Ok(compiled) => Some(compiled),
        Err(Error::Infeasible(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A random graph and devices of which one may be too small for it.
fn random(seed: u64, nodes: usize) -> (Model, Topology) {
    let mut rng = Rng::new(seed);
    let graph = cost_graph(&mut rng, nodes);
    let memory = Bytes(40_000 + rng.below(60_000));
    let links = Links::Direct(Contention::Link);
    let devices = topology(3, 1, memory, links, Nanos(200), Communication::Overlapped);
    (Model::CostGraph { graph, topology: None }, devices)
}

#[test]
fn the_most_effort_is_never_worse_than_the_usual() {
    for (name, objective, spec) in [
        ("tract_deconv_group.onnx", Objective::Latency, "2xl4-24g"),
        ("tract_linear_classifier.onnx", Objective::Latency, "l4-24g+t4-16g"),
    ] {
        let Some(path) = crate::shared::file(&format!("corpus/onnx/{name}")) else { return };
        let bytes = std::fs::read(path).unwrap();
        let loading = partition::unstable::load::LoadOptions::default();
        let model = partition::unstable::load::load(&bytes, None, &loading).unwrap();
        let devices = Topology::parse(spec).unwrap();
        let usual = planned(&model, &devices, &options(objective, Effort::Default, None));
        let most = planned(&model, &devices, &options(objective, Effort::Best, None));
        let (Some(usual), Some(most)) = (usual, most) else { panic!("{name} fits") };
        assert!(figures(&most.plan, objective) <= figures(&usual.plan, objective), "{name}");
    }
}

/// As the test above, of graphs that are searched through for longer.
mod the_most_effort_is_never_worse_on_random_graphs {
    use super::*;

    #[test]
    #[ignore = "long: cargo test -- --ignored ::others"]
    fn others() {
        let mut compared = 0;
        for seed in 100..109 {
            let (model, devices) = random(seed, 4 + seed as usize % 4);
            let objective = Objective::ALL[seed as usize % 3];
            let usual = planned(&model, &devices, &options(objective, Effort::Default, None));
            let most = planned(&model, &devices, &options(objective, Effort::Best, None));
            let Some(usual) = usual else { continue };
            let most = most.unwrap_or_else(|| panic!("seed {seed}: more effort found nothing"));
            assert!(figures(&most.plan, objective) <= figures(&usual.plan, objective), "seed {seed}");
            let bound = |plan: &Plan| plan.bound.as_ref().map_or(0, |bound| bound.value);
            assert!(
                bound(&most.plan) >= bound(&usual.plan) || figures(&most.plan, objective)[0] == 0,
                "seed {seed}"
            );
            compared += 1;
        }
        assert!(compared >= 5, "{compared}");
    }
}

#[test]
fn a_search_ends_at_its_gap() {
    let mut later = 0;
    for seed in 0..12 {
        let (model, devices) = random(seed, 15 + seed as usize % 4);
        let objective = Objective::ALL[seed as usize % 3];
        let Some(least) = planned(&model, &devices, &options(objective, Effort::Fast, None)) else {
            continue;
        };
        let gap = |plan: &Plan| {
            plan.bound.as_ref().map_or(f64::from(figures(plan, objective)[0] > 0), |bound| bound.gap)
        };
        let ended =
            planned(&model, &devices, &options(objective, Effort::Default, Some("gap<=100%"))).unwrap();
        assert_eq!(
            (&ended.plan.steps, &ended.plan.placement),
            (&least.plan.steps, &least.plan.placement),
            "seed {seed}"
        );
        let control = Control::new();
        let full = options(objective, Effort::Default, Some("gap<=0"));
        let full = compile::compile_with(model.clone(), &devices, &full, &control).unwrap();
        check(&full.plan).unwrap();
        let usual = planned(&model, &devices, &options(objective, Effort::Default, None)).unwrap();
        let first = |plan: &Plan| figures(plan, objective)[0];
        assert!(first(&full.plan) <= first(&usual.plan).min(first(&least.plan)), "seed {seed}");
        let marks = control.marks();
        assert_eq!(marks.len(), if gap(&least.plan) <= 0.0 { 1 } else { 2 }, "seed {seed}");
        assert!(marks.is_sorted_by_key(|mark| mark.after) && marks.is_sorted_by_key(|mark| mark.bound));
        assert!(
            marks.windows(2).all(|pair| pair[1].gap() <= pair[0].gap() && pair[1].value <= pair[0].value)
        );
        assert!((marks[marks.len() - 1].gap() - gap(&full.plan)).abs() < 1e-12);
        later += usize::from(marks.len() == 2);
    }
    assert!(later >= 3, "{later}");
}

/// Where a bound is known from before, the search for the fewest bytes ends once it has come close enough: at the same
/// place whatever the threads did, with no more than was asked for where that can be found, and sooner than else.
#[test]
fn a_search_for_bytes_ends_within_an_effort() {
    let mut sooner = 0;
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let graph = cost_graph(&mut rng, 120);
        let links = Links::Direct(Contention::Link);
        let devices = topology(3, 1, Bytes(100_000_000), links, Nanos(200), Communication::Overlapped);
        let found = |enough: Option<u64>, threads: usize| {
            let options = place::Options {
                balance: Some(0.2),
                devices: place::DeviceUse::All,
                enough: enough.map(Bytes),
                ..place::Options::default()
            };
            let control = Control::new().threads(threads);
            let placed = place::candidates(&graph, &devices, &options, &control).unwrap().swap_remove(0);
            let bytes = place::evaluate(&graph, &devices, &placed).unwrap().transfer_bytes().get();
            (bytes, placed.device)
        };
        let (fewest, _) = found(None, 2);
        let (any, _) = found(Some(u64::MAX), 2);
        let middle = fewest + (any - fewest) / 2;
        let (enough, devices_of_two) = found(Some(middle), 2);
        assert!((fewest..=middle).contains(&enough), "seed {seed}: {fewest} <= {enough} <= {middle}");
        assert_eq!((enough, devices_of_two), found(Some(middle), 1), "seed {seed}");
        sooner += usize::from(enough > fewest);
        assert_eq!(found(Some(fewest), 2).0, fewest, "seed {seed}");
    }
    assert!(sooner >= 1, "{sooner} of 6 searches ended before the last find");
}

#[test]
fn the_curve_of_the_gap_is_told_where_the_end_is_asked_for() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let plan =
        [&model, "-d", "2xl4-24g", "--use", "all", "--objective", "latency", "--emit"].map(|arg: &str| arg);
    let json = |rest: &[&str]| -> serde_json::Value {
        serde_json::from_str(&folder.ok(&[&plan[..], &["summary-json"], rest].concat())).unwrap()
    };
    assert!(json(&[]).get("search").is_none());
    for rest in [&["--until", "gap<0.1%"][..], &["--time-limit", "60s"], &["--time-limit", "1ns"]] {
        let answer = json(rest);
        let search = answer["search"].as_array().unwrap();
        assert_eq!(search.last().unwrap()["value"], answer["latency"], "{rest:?}");
        assert!(
            search.iter().all(|line| line["after_ns"].as_u64() > Some(0) && line["gap"].is_f64()),
            "{search:?}"
        );
    }
    let text = folder.ok(&[&plan[..], &["summary", "--until", "gap<99%", "--split", "none"]].concat());
    let line = text.lines().find(|line| line.starts_with("search     ")).unwrap();
    assert!(line.contains(" with gap ") && line.contains("% after ") && !line.contains(", "), "{line}");
    for wrong in ["gap", "gap<200%", "1%"] {
        let error = folder.fails(2, &[&plan[..], &["summary", "--until", wrong]].concat());
        assert!(error.contains(&format!("--until {wrong}: expected 'gap<1%'")), "{error}");
    }
}

/// Plans that split other operations may be far below the bound of the first that is found.
#[test]
fn a_gap_among_plans_with_the_same_splits_does_not_end_a_search() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let run = |spec: &str, rest: &[&str]| -> (serde_json::Value, String) {
        let plan = [&model, "-d", spec, "--emit", "summary-json"].map(|arg: &str| arg);
        let ran = folder.run(&[&plan[..], rest].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        (serde_json::from_str(&ran.stdout).unwrap(), ran.stderr)
    };
    let latency = ["--objective", "latency"];
    let spec = "4xcpu[2x1300kB]";
    let (full, _) = run(spec, &latency);
    let (ended, told) = run(spec, &[&latency[..], &["--until", "gap<10%"]].concat());
    assert!(
        ended["latency"].as_u64() <= full["latency"].as_u64(),
        "{} {}",
        ended["latency"],
        full["latency"]
    );
    assert_eq!(ended["search"].as_array().unwrap().len(), 2, "{}", ended["search"]);
    assert!(told.contains("that among plans with these splits, among all it is 9"), "{told}");
    // Where nothing may be split, the gap is that to all plans.
    let (whole, told) = run("2xl4-24g", &[&latency[..], &["--until", "gap<10%", "--split", "none"]].concat());
    assert_eq!(whole["search"].as_array().unwrap().len(), 1, "{}", whole["search"]);
    assert!(!told.contains("--until"), "{told}");
    // Of bytes no bound is known whatever is split.
    let bytes = ["--use", "all", "--until", "gap<100%"];
    let (all, told) = run("2xl4-24g", &bytes);
    assert_eq!(all["search"].as_array().unwrap().len(), 2, "{}", all["search"]);
    assert!(told.contains("of whole operations, of all plans no bound is known"), "{told}");
}

/// Weights that no device holds, and that no split makes smaller, need no search: no more time would help.
#[test]
fn what_is_certain_at_once_is_not_said_to_be_a_matter_of_time() {
    let folder = Folder::new();
    let model = example("mlp.json");
    let plan = [&model, "-d", "2xl4-24g:memory=30B", "--objective", "latency", "--time-limit", "1ns"];
    let ran = folder.run(&plan.map(|arg: &str| arg));
    let certain = ran.stderr;
    assert_eq!(ran.code, 3, "{certain}");
    assert!(certain.contains("error: no plan exists under the given caps"), "{certain}");
    assert!(certain.contains("splitting operations does not help"), "{certain}");
    assert!(!certain.contains("may find a plan") && !certain.contains("computing again"), "{certain}");
    assert!(certain.contains("what would help was not looked for to the end"), "{certain}");
}

#[test]
fn the_curve_has_what_is_found_within_an_effort() {
    let folder = Folder::new();
    let (mut within, mut drawn) = (0, 0);
    for seed in 0..4 {
        let graph = cost_graph(&mut Rng::new(seed), 40);
        std::fs::write(folder.path("graph.json"), partition::unstable::load::write_costgraph(&graph))
            .unwrap();
        let objective = ["transfer", "latency", "throughput"][seed as usize % 3];
        let plan = ["graph.json", "-d", "3xcpu:memory=120kB", "--objective", objective, "--emit"];
        let run = |rest: &[&str]| folder.run(&[&plan[..], rest].concat());
        let told = run(&["summary-json", "--until", "gap<0.01%"]);
        if told.code != 0 {
            continue;
        }
        let answer: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
        let lines = |key: &str, field: &str| -> Vec<f64> {
            let lines = answer[key].as_array().unwrap();
            lines.iter().map(|line| line[field].as_f64().unwrap()).collect()
        };
        let (times, values, gaps) =
            (lines("curve", "after_ns"), lines("curve", "value"), lines("curve", "gap"));
        assert!(times.is_sorted() && values.is_sorted_by(|one, other| one >= other), "{seed}: {answer}");
        assert!(
            gaps.is_sorted_by(|one, other| one >= other) && gaps.iter().all(|gap| (0.0..=1.0).contains(gap))
        );
        let efforts = lines("search", "value");
        assert_eq!((values.last(), gaps.last()), (efforts.last(), lines("search", "gap").last()), "{seed}");
        assert!(efforts.iter().all(|value| values.contains(value)));
        within += usize::from(values.len() > efforts.len());
        // Times differ from run to run; what is drawn is there.
        let page = run(&["html", "--until", "gap<99.9%"]).stdout;
        assert!(page.contains("<h2>Search</h2>") && page.contains("gap over time"), "{seed}");
        drawn += 1;
    }
    assert!(within >= 1 && drawn >= 2, "{within} {drawn}");
    let plain = folder.ok(&["graph.json", "-d", "3xcpu", "--emit", "html", "--effort", "fast"]);
    assert!(!plain.contains("<h2>Search</h2>"));
}
