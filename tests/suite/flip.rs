//! Damage by chance: bytes, numbers and stretches of sound inputs are changed, and what comes of it
//! goes through the whole program. Everything is an error of one line or a result that holds,
//! never a panic, and no size is trusted with memory.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use partition::unstable::compile::{Compiled, Options, check_model, compile};
use partition::unstable::ir::{self, Graph};
use partition::unstable::load::{LoadOptions, Model, load, read_costgraph};
use partition::unstable::place::Objective;
use partition::unstable::plan::{self, Plan};
use partition::unstable::report::{Summary, dot};
use partition::unstable::run::{exec_plan, feed, interpret};
use partition::unstable::topology::{Description, Topology};
use partition::{Error, Result};

use crate::cli::example;
use crate::native::{self, operations};
use crate::onnx::reshaping;
use crate::random_graph::{Random, random_graph};
use crate::sweep::Share;

/// Numbers that stand at edges.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "2",
    "3",
    "255",
    "65536",
    "2147483648",
    "4294967296",
    "1000000000000",
    "4611686018427387904",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "99999999999999999999",
    "0.5",
    "-0.0",
    "1e308",
    "1e999",
    "null",
    "\"\"",
];

/// `bytes` with a random change, sometimes two or three.
fn changed(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let changes = if random.one_in(3) { 1 + random.below(3) } else { 1 };
    for _ in 0..changes {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        match random.below(12) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 | 3 => bytes[at] = random.pick(b"0123456789\"{}[](),:-. en%@="),
            4 => {
                let end = (at + 1 + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => {
                let end = (at + 1 + random.below(40)).min(bytes.len());
                let stretch = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, stretch);
            }
            _ => number(&mut bytes, at, random),
        }
    }
    bytes
}

/// Replaces the first number after `at`.
fn number(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|from| at + from) else { return };
    let end = bytes[start..].iter().position(|b| !b.is_ascii_digit()).map_or(bytes.len(), |n| start + n);
    let from = if random.one_in(2) { &NUMBERS[..5] } else { NUMBERS };
    bytes.splice(start..end, random.pick(from).bytes());
}

/// Puts `times` changed copies of `bytes` through `attempt`, which says whether it got to the end.
/// Enough must, so that not only the parser is tested.
fn survives(what: &str, bytes: &[u8], times: u64, least: usize, attempt: impl Fn(&[u8]) -> Result<()>) {
    attempt(bytes).unwrap_or_else(|error| panic!("{what} is sound: {error}"));
    let mut through = 0;
    for seed in 0..times {
        let bytes = changed(bytes, &mut Random::new(seed * 0x1_0001 + bytes.len() as u64));
        match catch_unwind(AssertUnwindSafe(|| attempt(&bytes))) {
            Ok(Ok(())) => through += 1,
            Ok(Err(error)) => one_line(what, &error),
            Err(_) => panic!("{what}, change {seed}: panicked at\n{}", String::from_utf8_lossy(&bytes)),
        }
    }
    assert!(through >= least, "{what}: only {through} of {times} got through");
}

fn one_line(what: &str, error: &Error) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains('\n') && text.len() < 2000, "{what}: {text}");
    assert!(!matches!(error, Error::Internal(_)), "{what}: {text}");
}

fn topology() -> Topology {
    Topology::parse("cpu[2x40MB]+a100-80g").expect("sound")
}

/// Everything that is done with a model but running it.
fn through(model: Model, topology: &Topology) -> Result<Compiled> {
    if let Model::Graph(graph) = &model {
        ir::verify(graph).expect("what was read is well-formed");
    }
    let compiled = compile(model, topology, &Options::default())?;
    let plan = &compiled.plan;
    let json = plan.to_json();
    assert_eq!(Plan::from_json(json.as_bytes(), "plan").expect("what is written reads back"), *plan);
    plan::check(plan).expect("a plan that is returned is sound");
    let _ = dot(&compiled.cost_graph, &compiled.topology, &compiled.placement);
    let (objective, devices) = (Objective::Transfer, &compiled.topology);
    let summary =
        Summary::new(&compiled.cost_graph, devices, &compiled.placement, &compiled.schedule, objective, 1);
    assert!(!summary.text().is_empty() && !summary.conclusions().contains('\u{0}'));
    Ok(compiled)
}

fn model(bytes: &[u8], topology: &Topology) -> Result<Compiled> {
    through(load(bytes, None, &LoadOptions::default())?, topology)
}

/// Runs a network whose tensors are all small; larger ones are planned only.
fn run_small(graph: &Graph) -> Result<()> {
    let values = (0..graph.value_count()).map(|value| graph.ty(ir::ValueId(value as u32)).bytes());
    let total = values.flatten().try_fold(0u64, |sum, bytes| sum.checked_add(bytes.get()));
    if total.is_none_or(|total| total > 1 << 20) || !graph.unbound_dims().is_empty() {
        return Ok(());
    }
    let weights = |id| {
        let param = graph.param(id);
        feed::made_up(graph.ty(graph.node(param.node).first_result), 1, &param.name)
    };
    let inputs: Result<Vec<_>> = graph
        .inputs()
        .iter()
        .map(|(name, value)| Ok((name.clone(), feed::made_up(graph.ty(*value), 2, name)?)))
        .collect();
    interpret(graph, &inputs?, &weights).map(drop)
}

#[test]
fn a_changed_native_model() {
    let bytes = std::fs::read(example("mlp.json")).expect("the example is there");
    let topology = topology();
    survives("mlp.json", &bytes, 500, 15, |bytes| model(bytes, &topology).map(drop));
}

#[test]
fn a_changed_keras_model() {
    let bytes = std::fs::read(example("seed_stack.json")).expect("the example is there");
    let topology = Topology::parse("2xcpu[6x1000MB]").expect("sound");
    survives("seed_stack.json", &bytes, 800, 30, |bytes| model(bytes, &topology).map(drop));
}

#[test]
fn a_changed_onnx_model() {
    let topology = topology();
    survives("an ONNX model", &reshaping(), 5000, 100, |bytes| model(bytes, &topology).map(drop));
}

#[test]
fn a_changed_operation() {
    let topology = topology();
    for (inputs, node, _) in operations() {
        let (what, text) = (node["op"].to_string(), native::model(&inputs, node).to_string());
        survives(&what, text.as_bytes(), 120, 1, |bytes| {
            let compiled = model(bytes, &topology)?;
            let network = compiled.network.expect("a network");
            run_small(&network.graph)?;
            exec_plan(&compiled.plan, &network.graph, &network.grouping).map(drop)
        });
    }
}

sweep! {
    operations_on_nothing_and_too_much: one of 3;
}

/// Each size or attribute as zero beside each other one as large as can be: an empty tensor has
/// products that overflow.
fn operations_on_nothing_and_too_much(share: Share) {
    let topology = topology();
    for (inputs, node, _) in share.among(operations()) {
        let text = native::model(&inputs, node).to_string().replace("batch", "3");
        let spots = numbers(text.as_bytes());
        for zero in 0..spots.len() {
            for large in (0..spots.len()).filter(|&large| large != zero) {
                for number in ["4294967296", "9223372036854775807"] {
                    let mut text = text.clone();
                    for at in [zero.max(large), zero.min(large)] {
                        text.replace_range(spots[at].clone(), if at == zero { "0" } else { number });
                    }
                    let attempt = || -> Result<()> {
                        let compiled = model(text.as_bytes(), &topology)?;
                        run_small(&compiled.network.expect("a network").graph)
                    };
                    match catch_unwind(AssertUnwindSafe(attempt)) {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => one_line(&text, &error),
                        Err(_) => panic!("panicked at {text}"),
                    }
                }
            }
        }
    }
}

/// Where numbers stand that are no part of a name.
fn numbers(text: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let end = at + text[at..].iter().take_while(|b| b.is_ascii_digit()).count();
        if end > at && !text[at - 1].is_ascii_alphanumeric() && text[at - 1] != b'_' {
            found.push(at..end);
        }
        at = end + 1;
    }
    found
}

#[test]
fn a_changed_network_in_text() {
    let topology = topology();
    for seed in 0..8 {
        let text = random_graph(seed, 12).to_string();
        survives("a network in text", text.as_bytes(), 100, 1, |bytes| {
            let text = std::str::from_utf8(bytes).map_err(|_| Error::format("", "not UTF-8"))?;
            let graph = ir::text::parse(text)?;
            // The text form says what it is told; only what verifies goes further.
            ir::verify(&graph)?;
            run_small(&graph)?;
            let compiled = through(Model::Graph(graph), &topology)?;
            let network = compiled.network.expect("a network");
            run_small(&network.graph)?;
            exec_plan(&compiled.plan, &network.graph, &network.grouping).map(drop)
        });
    }
}

const COSTS: &str = r#"{"costgraph":1,"name":"c","kinds":["cpu","a100-80g"],"nodes":[
 {"id":"x","op":"input","time_ns":[0,0],"outputs":[4096]},
 {"id":"w","op":"param","time_ns":[0,0],"param_bytes":30000000,"outputs":[30000000]},
 {"id":"a","op":"matmul","time_ns":[1200,null],"workspace_bytes":64,"outputs":[4194304,16],"colocate":"g"},
 {"id":"b","op":"relu","time_ns":[1200,4100],"outputs":[4194304],"colocate":"g"},
 {"id":"c","op":"matmul","time_ns":[9999,410],"param_bytes":20000000,"outputs":[64],"forward":"a","backward":true}],
 "edges":[["x",0,"a"],["w",0,"a"],["a",0,"b"],["a",1,"c"],["b",0,"c"]]}"#;

long! {
    a_changed_cost_graph;
    immense_dimensions_are_counted_or_refused;
}

fn a_changed_cost_graph() {
    let topology = topology();
    survives("a cost graph", COSTS.as_bytes(), 4000, 100, |bytes| model(bytes, &topology).map(drop));
}

const WORKLOAD: &str = r#"{"maxFPGAs":2,"maxCPUs":1,"maxSizePerFPGA":100.5,"nodes":[
 {"id":1,"supportedOnFpga":1,"cpuLatency":10.5,"fpgaLatency":1.25,"size":40,"isBackwardNode":0,"colorClass":3},
 {"id":2,"supportedOnFpga":1,"cpuLatency":10.5,"fpgaLatency":1.25,"size":40,"isBackwardNode":0,"colorClass":4},
 {"id":3,"supportedOnFpga":0,"cpuLatency":2,"fpgaLatency":0,"size":9,"isBackwardNode":1,"colorClass":3}],
 "edges":[{"sourceId":1,"destId":2,"cost":2.5},{"sourceId":2,"destId":3,"cost":1}]}"#;

#[test]
fn a_changed_workload() {
    let attempt = |bytes: &[u8]| match load(bytes, None, &LoadOptions::default())? {
        Model::CostGraph { graph, topology: Some(topology) } => {
            through(Model::CostGraph { graph, topology: None }, &topology).map(drop)
        }
        other => through(other, &topology()).map(drop),
    };
    survives("a workload", WORKLOAD.as_bytes(), 2000, 50, attempt);
}

#[test]
fn a_changed_plan() {
    let (bytes, costs) = (std::fs::read(example("mlp.json")).expect("the example"), COSTS.as_bytes());
    let tight = Topology::parse("cpu[4x3MB]").expect("sound");
    let two = Options {
        place: partition::unstable::place::Options {
            devices: partition::unstable::place::DeviceUse::All,
            ..partition::unstable::place::Options::default()
        },
        ..Options::default()
    };
    let loaded = load(&bytes, None, &LoadOptions::default()).expect("sound");
    let network = compile(loaded.clone(), &tight, &two).expect("fits");
    let graph = read_costgraph(costs).expect("sound");
    let model = Model::CostGraph { graph, topology: None };
    let bare = compile(model.clone(), &topology(), &Options::default()).expect("fits");
    for (what, compiled, model, least) in
        [("a plan of mlp.json", network, loaded, 2), ("a plan of a cost graph", bare, model, 2)]
    {
        survives(what, compiled.plan.to_json().as_bytes(), 300, least, |bytes| {
            let plan = Plan::from_json(bytes, "plan.json")?;
            let _ = plan::diff(&plan, &compiled.plan).to_string();
            for format in ["json", "accelerate"] {
                let _ = plan::export(&plan, format);
            }
            plan::check(&plan)?;
            let options = Options::of_plan(&plan)?;
            check_model(&plan, model.clone(), &options)?;
            let Some(network) = &compiled.network else { return Ok(()) };
            exec_plan(&plan, &network.graph, &network.grouping).map(drop)
        });
    }
}

const DEVICES: &str = r#"
[[device]]
name = "big"
kind = "cuda"
count = 2
slices = "2x30MB,5MB"
flops = "10TFLOP/s"
bandwidth = "1TB/s"

[[device]]
kind = "cpu"
memory = "100MB"
cores = 4

[[link]]
between = ["big*", "cpu0"]
bandwidth = "16GB/s"
latency = "5us"
shared = "bus"
"#;

#[test]
fn changed_devices() {
    let graph = read_costgraph(br#"{"costgraph":1,"kinds":["cpu","cuda"],"nodes":[{"id":"a","op":"f","time_ns":[1,1],"outputs":[8]}],"edges":[]}"#)
        .expect("sound");
    let plan = |topology: Topology| {
        let json = serde_json::to_string(&topology).expect("a topology is JSON");
        let back: Topology = serde_json::from_str(&json).expect("and reads back");
        assert_eq!(back, topology);
        if topology.len() > 100 {
            return Ok(());
        }
        let model = Model::CostGraph { graph: graph.clone(), topology: None };
        compile(model, &topology, &Options::default()).map(drop)
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    survives("devices in TOML", DEVICES.as_bytes(), 2000, 20, |bytes| {
        Description::from_toml(&text(bytes))?.build().and_then(plan)
    });
    let json = serde_json::to_string(&Description::from_toml(DEVICES).expect("sound")).expect("JSON");
    survives("devices in JSON", json.as_bytes(), 2000, 20, |bytes| {
        Description::from_json(&text(bytes))?.build().and_then(plan)
    });
    let spec = "cpu:memory=1GB,cores=2+2xcuda[6x1000MB]:link=100GB/s,latency=5us";
    survives("a specification", spec.as_bytes(), 5000, 50, |bytes| {
        Topology::parse(&text(bytes)).and_then(plan)
    });
}

/// Sizes that nobody has memory for are planned where they can be counted, and refused where they
/// cannot.
fn immense_dimensions_are_counted_or_refused() {
    let bytes = std::fs::read(example("mlp.json")).expect("the example is there");
    let topology = Topology::parse("cpu:memory=900PB").expect("sound");
    for exponent in 0..63 {
        let size = 1i64 << exponent;
        let dims =
            LoadOptions { dims: BTreeMap::from([("batch".to_owned(), size)]), ..LoadOptions::default() };
        let bound =
            load(&bytes, None, &dims).and_then(|model| compile(model, &topology, &Options::default()));
        let open = load(&bytes, None, &LoadOptions::default()).and_then(|model| {
            compile(model, &topology, &Options { batch: Some(size), ..Options::default() })
        });
        for result in [bound, open] {
            match result {
                Ok(compiled) => {
                    assert!(compiled.plan.devices[0].arena.get() >= 64 * 4 * size as u64);
                }
                Err(error) => {
                    one_line("an immense batch", &error);
                    assert!(exponent > 30, "{error}");
                }
            }
        }
    }
}
