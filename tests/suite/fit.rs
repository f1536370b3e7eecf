//! `--fit`: the cheapest set of devices for a target, against all sets planned for one by one; what it prints; what it
//! refuses.

use std::fs;
use std::path::Path;

use partition::Control;
use partition::unstable::compile::{self, Compiled};
use partition::unstable::costgraph::{Builder, CostGraph, NodeIx, NodeSpec};
use partition::unstable::fit::{Catalogue, Request, Target, cheapest};
use partition::unstable::load::Model;
use partition::unstable::place::{self, Objective};
use partition::unstable::topology::Topology;
use partition::unstable::units::{Bytes, Nanos};

use crate::cli::{Folder, example};
use crate::heeded;
use crate::random_costgraph::Rng;

/// The kinds on offer: name, price in cents, how many.
const OFFERS: [(&str, u64, u64); 3] = [("t4-16g", 40, 2), ("l4-24g", 70, 1), ("h100-80g", 150, 1)];

fn catalogue() -> String {
    let offer = |(kind, cents, available): (&str, u64, u64)| {
        format!(
            "[[device]]\nkind = \"{kind}\"\nprice = {}.{:02}\navailable = {available}\n",
            cents / 100,
            cents % 100
        )
    };
    OFFERS.map(offer).concat()
}

/// A random graph with times on the three kinds, some of which cannot run some nodes, and parameters of gigabytes.
fn graph(rng: &mut Rng) -> CostGraph {
    let mut builder = Builder::new("random", OFFERS.map(|(kind, ..)| kind.to_owned()).to_vec());
    let mut made: Vec<NodeIx> = Vec::new();
    for number in 0..3 + rng.below(3) {
        let base = 1_000_000 * (1 + rng.below(5));
        let times = [4, 3, 1].map(|factor| (!rng.chance(4)).then(|| Nanos(base * factor + rng.below(1000))));
        let node = NodeSpec {
            name: &format!("n{number}"),
            op: "f",
            times: if times == [None; 3] { &[None, None, Some(Nanos(1))] } else { &times },
            param_bytes: Bytes(rng.below(6) * 3_000_000_000),
            outputs: &[Bytes(1_000 + rng.below(4_000_000))],
            ..NodeSpec::default()
        };
        let node = builder.add(&node).unwrap();
        for &earlier in &made {
            if rng.chance(35) {
                builder.connect(earlier, 0, node);
            }
        }
        made.push(node);
    }
    builder.finish().unwrap()
}

/// Every set: its price, how many devices, how many of each kind.
fn sets() -> Vec<(u64, u64, [u64; 3])> {
    let [(_, a, most_a), (_, b, most_b), (_, c, most_c)] = OFFERS;
    let mut sets = Vec::new();
    for counts in
        (0..=most_a).flat_map(|x| (0..=most_b).flat_map(move |y| (0..=most_c).map(move |z| [x, y, z])))
    {
        let [x, y, z] = counts;
        if x + y + z > 0 {
            sets.push((a * x + b * y + c * z, x + y + z, counts));
        }
    }
    sets.sort_unstable();
    sets
}

/// The devices of a set, written as a user would.
fn devices(counts: [u64; 3]) -> Topology {
    let used = OFFERS.iter().zip(counts).filter(|(_, count)| *count > 0).enumerate();
    let groups: Vec<String> =
        used.map(|(host, ((kind, ..), count))| format!("{count}x{kind}:host=h{host}")).collect();
    Topology::parse(&groups.join("+")).unwrap()
}

fn options(objective: Objective) -> compile::Options {
    let place = place::Options { objective, ..place::Options::default() };
    compile::Options { place, ..compile::Options::default() }
}

fn value(objective: Objective, compiled: &Compiled) -> u64 {
    match objective {
        Objective::Throughput => compiled.schedule.cost.max_load.get(),
        Objective::Transfer | Objective::Latency => compiled.schedule.cost.latency.get(),
    }
}

/// What the best plan found for every set comes to, and whether it is proven to be the best; none where there is none.
fn planned(graph: &CostGraph, objective: Objective) -> Vec<(u64, [u64; 3], Option<(u64, bool)>)> {
    let plan = |(price, _, counts): (u64, u64, [u64; 3])| {
        let model = Model::CostGraph { graph: graph.clone(), topology: None };
        let found = compile::compile(model, &devices(counts), &options(objective)).ok().map(|compiled| {
            let is_best = compiled.plan.bound.as_ref().is_some_and(|bound| bound.gap <= 0.0);
            (value(objective, &compiled), is_best)
        });
        (price, counts, found)
    };
    sets().into_iter().map(plan).collect()
}

long! {
    the_set_found_is_the_cheapest_of_all;
    devices_none_of_which_holds_a_parameter_are_found;
}

fn the_set_found_is_the_cheapest_of_all() {
    let catalogue = Catalogue::parse(&catalogue()).unwrap();
    let (mut found, mut refused, mut proven) = (0, 0, 0);
    for seed in 0..8 {
        let graph = graph(&mut Rng::new(seed));
        let objective = [Objective::Latency, Objective::Throughput][seed as usize % 2];
        let all = planned(&graph, objective);
        let mut reached: Vec<u64> =
            all.iter().filter_map(|(_, _, found)| found.map(|(value, _)| value)).collect();
        reached.sort_unstable();
        // Targets that the slowest set reaches, that some do, that none does.
        for limit in
            [reached.last().map_or(1_000, |slowest| slowest + 1), reached[reached.len() / 3], reached[0]]
        {
            let target: Target = match objective {
                Objective::Throughput => format!("throughput>{}/s", 1e9 / limit as f64).parse().unwrap(),
                Objective::Transfer | Objective::Latency => format!("latency<{limit}ns").parse().unwrap(),
            };
            // Rates are rounded to millionths: what the target asks is what it says.
            let limit = target.of_steps(None).limit().unwrap().get();
            let model = Model::CostGraph { graph: graph.clone(), topology: None };
            let request = Request {
                model: &model,
                catalogue: &catalogue,
                target: &target,
                budget: None,
                options: &compile::Options::default(),
                has_curve: false,
            };
            let first = all.iter().position(|(_, _, found)| found.is_some_and(|(value, _)| value < limit));
            match (cheapest(request, &Control::new()), first) {
                (Ok(fitted), Some(first)) => {
                    let (price, counts, _) = all[first];
                    let own: Vec<u64> = fitted.found.set.counts.iter().map(|&count| count as u64).collect();
                    assert_eq!((own.as_slice(), price), (&counts[..], price), "{seed} {target}");
                    let below = all.iter().filter(|(other, _, _)| *other < price).count();
                    assert_eq!(fitted.cheaper.count, below, "{seed} {target}");
                    // A set that is not open is one on which no plan is better than the best.
                    proven += usize::from(fitted.cheaper.open.is_empty() && below > 0);
                    assert_eq!(fitted.cheaper.next.is_some(), below > 0);
                    found += 1;
                }
                (Err(partition::Error::Infeasible(_)), None) => refused += 1,
                (outcome, first) => {
                    panic!("{seed} {target}: {:?} and {first:?}", outcome.map(|fitted| fitted.found))
                }
            }
        }
    }
    assert!(found >= 12 && refused >= 4 && proven >= 6, "{found} {refused} {proven}");
}

/// A chain of layers that one device of the cheaper kind does not hold.
fn layers(folder: &Folder) {
    let node = |number: u32| {
        format!(
            "{{\"id\":\"layer{number}\",\"op\":\"matmul\",\"time_ns\":[4000000,1000000],\"param_bytes\":6000000000,\
             \"outputs\":[1000000]}}"
        )
    };
    let nodes: Vec<String> = (0..8).map(node).collect();
    let edges: Vec<String> = (1..8).map(|at| format!("[\"layer{}\",0,\"layer{at}\"]", at - 1)).collect();
    let text = format!(
        "{{\"costgraph\":1,\"name\":\"layers\",\"kinds\":[\"l4-24g\",\"h100-80g\"],\"nodes\":[{}],\"edges\":[{}]}}",
        nodes.join(","),
        edges.join(",")
    );
    fs::write(folder.path("layers.json"), text).unwrap();
    let catalogue = "[[device]]\nkind = \"l4-24g\"\nprice = 0.70\navailable = 4\n\
                     [[device]]\nkind = \"h100-80g\"\nprice = 3.00\navailable = 2\n[network]\nbandwidth = \"50GB/s\"\n";
    fs::write(folder.path("offer.toml"), catalogue).unwrap();
}

const FIT: [&str; 5] = ["layers.json", "--fit", "offer.toml", "--target", "latency<20ms"];

#[test]
fn the_answer_is_the_set_its_plan_and_why_no_cheaper_one_does() {
    let folder = Folder::new();
    layers(&folder);
    let text = folder.ok(&FIT);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots");
    insta::with_settings!({snapshot_path => path, prepend_module_to_snapshot => false}, {
        insta::assert_snapshot!("fit", text);
    });
    for threads in ["1", "3"] {
        assert_eq!(folder.ok(&[&FIT[..], &["--threads", threads]].concat()), text);
    }
}

#[test]
fn the_curve_is_drawn_and_listed_and_the_plan_is_written() {
    let folder = Folder::new();
    layers(&folder);
    let json = folder.ok(&[&FIT[..], &["--emit", "summary-json"]].concat());
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&answer["cheapest"]["set"], &answer["proven"]),
        (&"1xh100-80g".into(), &true.into()),
        "{json}"
    );
    assert_eq!(answer["cheapest"]["price_per_hour"], 3.0);
    let curve = answer["curve"].as_array().unwrap();
    let prices: Vec<f64> = curve.iter().map(|line| line["price_per_hour"].as_f64().unwrap()).collect();
    assert!(prices.is_sorted() && prices.contains(&3.0) && prices.len() > 2, "{prices:?}");
    let page = folder.ok(&[&FIT[..], &["--emit", "html"]].concat());
    let drawn = curve.iter().filter(|line| line.get("reached_ns").is_some()).count();
    assert_eq!(page.matches("<circle").count(), drawn);
    assert!(
        page.starts_with("<!doctype html>") && page.contains("<polyline") && page.contains("latency&lt;20ms")
    );
    folder.ok(&[&FIT[..], &["-o", "page.html"]].concat());
    assert_eq!(fs::read_to_string(folder.path("page.html")).unwrap(), page);
    // The devices found are a file for --devices, and give the same plan.
    fs::write(folder.path("devices.json"), answer["devices"].to_string()).unwrap();
    folder.ok(&[&FIT[..], &["-o", "plan.json"]].concat());
    folder.ok(&["check", "plan.json", "--model", "layers.json"]);
    folder.ok(&["layers.json", "-d", "devices.json", "--objective", "latency", "-o", "again.json"]);
    assert_eq!(fs::read(folder.path("again.json")).unwrap(), fs::read(folder.path("plan.json")).unwrap());
}

#[test]
fn what_no_set_reaches_is_told_with_what_comes_closest() {
    let folder = Folder::new();
    layers(&folder);
    let fails = |target: &str, rest: &[&str]| {
        folder.fails(3, &[&["layers.json", "--fit", "offer.toml", "--target", target], rest].concat())
    };
    let error = fails("latency<2ms", &[]);
    assert!(error.contains("no plan exists") && error.contains("with all devices"), "{error}");
    let error = fails("latency<20ms", &["--budget", "$2.5/h"]);
    assert!(
        error.contains("no plan exists") && error.contains("within $2.50/h") && error.contains("closest: "),
        "{error}"
    );
    let error = fails("latency<20ms", &["--budget", "0.5"]);
    assert!(error.contains("every device of the catalogue costs more than $0.50/h"), "{error}");
    let ran = folder.run(&[
        "layers.json",
        "--fit",
        "offer.toml",
        "--target",
        "latency<2ms",
        "--emit",
        "summary-json",
    ]);
    assert!(ran.code == 3 && ran.stdout.contains("\"feasible\": false"), "{}", ran.stdout);
}

#[test]
fn a_batch_is_reached_where_it_fits() {
    let folder = Folder::new();
    let offer = "[[device]]\nkind = \"cuda\"\nmemory = \"6.5MB\"\nprice = 1\n\
                 [[device]]\nkind = \"l4-24g\"\nmemory = \"40MB\"\nprice = 2\n";
    fs::write(folder.path("offer.toml"), offer).unwrap();
    let text = folder.ok(&[&example("mlp.json"), "--fit", "offer.toml", "--target", "batch>=64"]);
    assert!(text.contains("cheapest   1xl4-24g at $2.00/h: a step of "), "{text}");
    assert!(text.contains("cheaper    1xcuda at $1.00/h fails: "), "{text}");
    let text = folder.ok(&[
        &example("mlp.json"),
        "--fit",
        "offer.toml",
        "--target",
        "throughput>1/s",
        "--batch",
        "4",
    ]);
    assert!(text.contains(" samples/s"), "{text}");
}

#[test]
fn the_example_catalogue_is_one() {
    let folder = Folder::new();
    let text =
        folder.ok(&[&example("mlp.json"), "--fit", &example("catalogue.toml"), "--target", "latency<1s"]);
    assert!(text.contains("cheapest   1xt4-16g at $0.35/h") && text.contains("no set is cheaper"), "{text}");
}

#[test]
fn mistakes_are_named() {
    let folder = Folder::new();
    layers(&folder);
    fs::write(folder.path("other.toml"), "[[device]]\nkind = \"a100-80g\"\nprice = 1\n").unwrap();
    fs::write(folder.path("bad.toml"), "[[device]]\nkind = \"l4-24g\"\nprice = 1\nlonk = 3\n").unwrap();
    for (code, args, parts) in [
        (2, &["--fit", "offer.toml"][..], &["--target"][..]),
        (2, &["--target", "latency<1s", "-d", "cpu"], &["--fit"]),
        (2, &["--budget", "3", "-d", "cpu"], &["--fit"]),
        (
            2,
            &["--fit", "offer.toml", "--target", "latency>3ms"],
            &["--target latency>3ms: ", "expected 'latency<30ms'"],
        ),
        (
            2,
            &["--fit", "offer.toml", "--target", "latency<1s", "--budget", "€3"],
            &["--budget €3: ", "in $, not in €"],
        ),
        (
            2,
            &["--fit", "offer.toml", "--target", "latency<1s", "--budget", "much"],
            &["--budget much: expected a price"],
        ),
        (2, &["--fit", "bad.toml", "--target", "latency<1s"], &["bad.toml: device 1 (l4-24g): ", "`lonk`"]),
        (1, &["--fit", "absent.toml", "--target", "latency<1s"], &["absent.toml"]),
        (
            2,
            &["--fit", "other.toml", "--target", "latency<1s"],
            &["other.toml: device 1 (a100-80g): ", "l4-24g, h100-80g"],
        ),
        (2, &["--fit", "offer.toml", "--target", "batch>=2"], &["--target batch>=2: a cost graph"]),
        (
            2,
            &["--fit", "offer.toml", "--target", "latency<1s", "--emit", "text", "-o", "offer.toml"],
            &["this file is read"],
        ),
    ] {
        let ran = folder.run(&[&["layers.json"], args].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{args:?}: {}", ran.stderr);
        assert!(parts.iter().all(|part| ran.stderr.contains(part)), "{args:?}: {}", ran.stderr);
    }
    let mlp = example("mlp.json");
    for (args, part) in [
        (&["--target", "batch>=64", "--batch", "3"][..], "--batch: --target batch>=64 says the batch"),
        (&["--target", "latency<1s", "--batch", "max"], "--batch max: the devices are not known yet"),
    ] {
        let error = folder.fails(2, &[&[mlp.as_str(), "--fit", &example("catalogue.toml")], args].concat());
        assert!(error.contains(part), "{error}");
    }
    // What the model cannot is said of the model.
    let text = std::fs::read_to_string(&mlp).unwrap().replace("[\"batch\"]", "[]").replace("batch", "3");
    std::fs::write(folder.path("fixed.json"), text).unwrap();
    for (args, part) in [
        (&["--target", "batch>=64"][..], "error: --target batch>=64: the model's batch is fixed"),
        (
            &["--target", "latency<1s", "--batch", "4"],
            "error: fixed.json: --batch 4: the model's batch is fixed",
        ),
    ] {
        let error = folder.fails(2, &[&["fixed.json", "--fit", &example("catalogue.toml")], args].concat());
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn every_option_is_heeded_or_refused() {
    // What a search for devices heeds; a new option is to be here, or to be refused.
    let heeded = [
        "--fit",
        "--target",
        "--budget",
        "--batch",
        "--dim",
        "--context",
        "--precision",
        "--weights-as",
        "--weights",
        "--adapter",
        "--with-input",
        "--allow-outside",
        "--colocate",
        "--split",
        "--keep-whole",
        "--exact",
        "--balance",
        "--soft",
        "--reserve",
        "--effort",
        "--time-limit",
        "--memory-limit",
        "--profile",
        "--seed",
        "--threads",
        "--emit",
        "--output",
        "--quiet",
        "--progress",
        "--color",
        "--help",
        "--version",
    ];
    let folder = Folder::new();
    let (mlp, catalogue) = (example("mlp.json"), example("catalogue.toml"));
    let options = heeded::options(&folder.ok(&["--help"]));
    let mut refused = 0;
    for (option, value) in options.iter().filter(|(option, _)| !heeded.contains(&option.as_str())) {
        let mut args: Vec<String> =
            [&mlp, "--fit", &catalogue, "--target", "latency<1s", option].map(ToString::to_string).to_vec();
        args.extend(value.as_ref().map(|value| heeded::sample(option, value)));
        match option.as_str() {
            "--schedule" => args.extend(["--microbatches".into(), "2".into()]),
            "--stability" => args.extend(["--from".into(), "plan.json".into()]),
            _ => {}
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let error = folder.fails(2, &args);
        assert!(error.contains("--fit seeks the devices"), "{option}: {error}");
        refused += 1;
    }
    assert!(refused >= 9, "{refused} of {options:?}");
}

/// Three products of square weights, one after the other.
fn products(folder: &Folder, width: u64) {
    let param = |at: u64| format!("{{\"name\":\"w{at}\",\"type\":\"f32[{width},{width}]\"}}");
    let node = |at: u64| {
        let input = if at == 0 { "x".to_owned() } else { format!("p{}", at - 1) };
        format!("{{\"name\":\"p{at}\",\"op\":\"matmul\",\"inputs\":[\"{input}\",\"w{at}\"]}}")
    };
    let all = |one: &dyn Fn(u64) -> String| (0..3).map(one).collect::<Vec<_>>().join(",");
    let text = format!(
        "{{\"partition_model\":1,\"name\":\"products\",\"dims\":[\"batch\"],\"inputs\":[{{\"name\":\"x\",\"type\":\
         \"f32[batch,{width}]\"}}],\"params\":[{}],\"nodes\":[{}],\"outputs\":[\"p2\"]}}",
        all(&param),
        all(&node)
    );
    fs::write(folder.path("products.json"), text).unwrap();
}

/// The answer for the products and an offer.
fn answer(folder: &Folder, offer: &str, rest: &[&str]) -> serde_json::Value {
    fs::write(folder.path("parts.toml"), offer).unwrap();
    let args = ["products.json", "--fit", "parts.toml", "--emit", "summary-json"];
    serde_json::from_str(&folder.ok(&[&args[..], rest].concat())).unwrap()
}

fn devices_none_of_which_holds_a_parameter_are_found() {
    let folder = Folder::new();
    // Weights of 4 MB each.
    products(&folder, 1024);
    let offer = "[[device]]\nkind = \"cuda\"\nmemory = \"3MB\"\nprice = 1\navailable = 8\n\
                 [[device]]\nkind = \"l4-24g\"\nprice = 20\n";
    let target = ["--target", "batch>=8"];
    let found = answer(&folder, offer, &target);
    let set = found["cheapest"]["set"].as_str().unwrap();
    let count: u64 = set.strip_suffix("xcuda").unwrap_or_else(|| panic!("{found}")).parse().unwrap();
    // What fits is for planning to say, set by set.
    let plans = |count: u64| {
        let devices = format!("{count}xcuda:memory=3MB");
        folder.run(&["products.json", "-d", &devices, "--batch", "8", "--emit", "summary"]).code == 0
    };
    assert!((1..=8).map(plans).eq((1..=8).map(|other| other >= count)), "{set}");
    // Three weights of 4 MB are more than 3 MB for each of four devices: of those, and of no others, that is proven.
    assert_eq!(found["cheaper_sets"], count - 1);
    let proven = found["excluded_by_bounds"].as_u64().unwrap();
    assert!(proven >= 4 && found["open_sets"].as_u64().unwrap() == count - 1 - proven, "{found}");
    assert_eq!(found["proven"], count - 1 == proven);
    let whole = answer(&folder, offer, &[&target[..], &["--split", "none"]].concat());
    assert_eq!((&whole["cheapest"]["set"], &whole["proven"]), (&"1xl4-24g".into(), &true.into()), "{whole}");
    // The devices found are a file for --devices, and the plan is sound.
    fs::write(folder.path("found.json"), found["devices"].to_string()).unwrap();
    folder.ok(&["products.json", "-d", "found.json", "--batch", "8", "-o", "plan.json"]);
    folder.ok(&["check", "plan.json", "--model", "products.json"]);
}

#[test]
fn two_devices_that_share_each_operation_are_cheaper_than_a_faster_one() {
    let folder = Folder::new();
    products(&folder, 8192);
    let latency = |devices: &str, rest: &[&str]| -> u64 {
        let args = ["products.json", "-d", devices, "--objective", "latency", "--batch", "4096"];
        let text = folder.ok(&[&args[..], &["--emit", "summary-json"], rest].concat());
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["latency"].as_u64().unwrap()
    };
    let split = latency("2xl4-24g", &[]);
    assert!(split < latency("2xl4-24g", &["--split", "none"]) * 9 / 10);
    let offer = "[[device]]\nkind = \"l4-24g\"\nprice = 1\navailable = 2\n[[device]]\nkind = \"h100-80g\"\nprice = 5\n";
    let target = format!("latency<={split}ns");
    let args = ["--target", &target, "--batch", "4096"];
    let found = answer(&folder, offer, &args);
    assert_eq!(found["cheapest"]["set"], "2xl4-24g", "{found}");
    assert!(found["cheapest"]["reached_ns"].as_u64().unwrap() <= split);
    // Half the devices compute half as fast: that one of them is too slow is proven.
    assert_eq!((&found["cheaper_sets"], &found["open_sets"]), (&1.into(), &0.into()), "{found}");
    let whole = answer(&folder, offer, &[&args[..], &["--split", "none"]].concat());
    assert_eq!(whole["cheapest"]["set"], "1xh100-80g", "{whole}");
    let error = folder
        .fails(2, &["products.json", "--fit", "parts.toml", "--target", "latency<1s", "--split", "p0=0:2"]);
    assert!(error.contains("--split: devices have no names before they are found"), "{error}");
}
