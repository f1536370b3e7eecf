//! The JSON Schemas of `docs`: what the program writes is valid, what its readers refuse is not, and the pages show
//! nothing that is not so.

mod validate;

use std::path::{Path, PathBuf};

use partition::unstable::load::{Format, LoadOptions, recognise};
use partition::unstable::load::{native, read_costgraph, read_workload, write_costgraph};
use partition::{Error, Plan};
use serde_json::{Value, json};

use crate::cli::{Folder, example};
use crate::{native as native_cases, shared};
use validate::{Schema, check_keywords};

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn read(path: impl AsRef<Path>) -> Value {
    parse(&std::fs::read_to_string(path).unwrap())
}

fn schema(name: &str) -> Value {
    let schema = read(docs(name));
    check_keywords(&schema);
    schema
}

fn assert_valid(schema: &Value, document: &Value, what: &str) {
    if let Err(fault) = Schema::new(schema).validate(document) {
        panic!("{what}{fault}");
    }
}

/// Every field of a plan, of every kind of step.
const PLAN: &str = r#"{"version":1,
 "model":{"name":"two","hash":"00ff","nodes":2,"path":"two.json"},
 "options":{"objective":"latency","seed":7,"use":"all","effort":"best","pins":["a*=npu0"],"colocate":["b*"],
  "balance":0.5,"soft":true,"batch":8,"dims":{"batch":8},"open_dims":["batch"],"inputs":["mask"],"truncated":true,"microbatches":2,
  "schedule":"1f1b","precision":"bf16","weights_as":"q8_0","layout":"channels_last",
  "splits":[{"nodes":["a#0"],"over":"axis 0","bounds":[0,4,8],"devices":["npu0.0","npu0.1"],"apart":true}],
  "training":{"loss":"mse","optimizer":"adam","freeze":["b*"],"loss_scale":"dynamic","outputs":true,"microbatches":2,
   "together":"layers","spread":"replicas","replicas":{"devices":[["npu0.0"],["npu0.1"]],"each":1,"batch":"batch",
   "shards":2,"spare":1,"sync":"allreduce","exchange":"ring","transfer":"bf16","zero":"1","bucket":4096}},"other":{"replicas":"2"}},
 "devices":[{"name":"npu0.0","target":"npu:0","memory":500,"arena":256,"peak":192,"reserve":16,"arena_bound":256}],
 "placement":{"a":[{"device":"npu0.0","axis":"axis 0","from":0,"to":4},{"device":"npu0.1","axis":"axis 0","from":4,"to":8}],
  "b":"npu0.1"},
 "unlaunched":["x"],
 "buffers":[{"id":"b0","type":"f32[8]","device":"npu0.0","offset":0,"bytes":32,"kind":"input","alias":"b1",
  "value":"%0 x","microbatch":0,"of":"a","box":[[0,4]],"partial":[0,2],"axis":0,"feeds":"b0"}],
 "kernels":[{"id":"k0","hero":"map","hash":"9f2c","nodes":["a"]}],
 "topology":{"device":[
   {"name":"npu","kind":"npu","count":2,"memory":"1000B","slices":"2x500B","flops":"1TFLOP/s","half_flops":"2TFLOP/s",
    "bandwidth":"100GB/s","launch":"1us","use":"compute","host":"h0","communication":"added","link":"50GB/s",
    "latency":"5us","port":"300GB/s","contention":"none","host_link":"25GB/s","host_latency":"5us"},
   {"kind":"cpu","cores":4,"memory":"1GB","use":"host"}],
  "link":[{"between":["npu0","npu1"],"bandwidth":"10GB/s","latency":"1us","contention":"none","shared":"bus"},
   {"between":["npu*","npu*"],"bandwidth":"12GB/s","via":"cpu0"}]},
 "steps":[{"id":0,"device":"npu0.0","lane":"compute","after":[],"why":"recompute",
   "launch":{"kernel":"k0","nodes":["a"],"part":0,"reads":["b0"],"writes":["b1"],"group":0,"microbatch":1,"again":true}},
  {"id":1,"device":"npu0.1","lane":"copy","after":[0],
   "copy":{"node":"a","output":0,"microbatch":1,"again":true,"from":"npu0.0","to":"npu0.1","bytes":16,"part":[0,16],
    "readers":["b"]}}],
 "cost":{"transfer_bytes":16,"step_bytes":16,"load_bytes":0,"latency_ns":10,"max_load_ns":9},
 "bound":{"objective":"latency","value":5,"gap":0.5,"proof":"work","data":{"weights":[1,1]},"peaks":{"value":4,"gap":0.6}},
 "replan":{"stability":"0.01","moved_bytes":1,"lost_bytes":2,"new_bytes":3,"load_ns":4,
  "state":[{"name":"w","bytes":1,"from":["npu0.0"],"to":"npu0.1","fate":"moved"}]},
 "profile":{"profile":1,"machine":"m","kinds":[{"kind":"npu","cores":2,"launch_ns":10,
  "classes":[{"class":"conv-transpose","flops":1,"bandwidth":2}],
  "kernels":[{"hash":"00000000000000ff","hero":"map","time_ns":3}],"copies":[{"bytes":4,"time_ns":5}]}]},
 "notes":["a remark"]}"#;

/// Every field of a cost graph.
const COST_GRAPH: &str = r#"{"costgraph":1,"name":"complete","kinds":["fast","cpu"],
"nodes":[
 {"id":"w","op":"param","time_ns":[],"param_bytes":64,"params":"tied","outputs":[64]},
 {"id":"x","op":"input","outputs":[16]},
 {"id":"a","op":"matmul","time_ns":[10,null],"param_bytes":0,"workspace_bytes":8,"outputs":[16,32.5],
  "colocate":"here","forward":null,"backward":false,"pin":"fast0","in_place":[[1,0]]},
 {"id":"v","op":"slice","time_ns":[0,0],"outputs":[8],"view":0},
 {"id":"b","op":"bwd","time_ns":[7.6,9],"outputs":[4],"colocate":"here","forward":"a","backward":true}],
"edges":[["w",0,"a"],["x",0,"a"],["a",0,"b"],["a",0,"v"]],
"results":[["a",0]],
"updates":[["a",0,"x",0]]}"#;

/// Every part of a model, and attributes of several kinds.
const MODEL: &str = r#"{"partition_model":1,"name":"complete","description":"d","dims":["batch"],
"inputs":[{"name":"x","type":"f32[batch, 8]"}],
"params":[
 {"name":"w","type":"f32[8, 4]","init":{"kind":"normal","mean":0,"deviation":0.1,"truncated":true}},
 {"name":"b","type":"f32[4]","init":"ones","data":{"file":"w.npz","array":"b"}},
 {"name":"c","type":"f32[4]","init":0.5}],
"constants":[{"name":"k","type":"f32[4]","values":[1,2,3,4]}],
"nodes":[
 {"name":"h","op":"dense","inputs":["x","w","b"],"activation":"relu","transpose_right":false,"pin":"cuda0",
  "colocate":"m"},
 {"name":"n","op":"layer_norm","inputs":["h","c","k"],"axes":[-1],"epsilon":1e-5},
 {"name":"t","op":"topk","inputs":["n"],"outputs":["v","i"],"axis":-1,"k":2,"largest":true},
 {"name":"r","op":"reduce","inputs":["v"],"kind":"sum","axes":[1],"keep":true},
 {"name":"s","op":"slice","inputs":["h"],"starts":[0,1],"sizes":["batch",2],"steps":[1,1]},
 {"name":"p","op":"pad","inputs":["s"],"before":[0,1],"after":[0,1],"mode":"constant","value":0}],
"outputs":["r",{"name":"out","value":"p"}]}"#;

fn read_plan(document: &Value) -> Result<Plan, Error> {
    Plan::from_json(document.to_string().as_bytes(), "plan.json")
}

fn read_model(document: &Value) -> Result<(), Error> {
    native::load(document.to_string().as_bytes(), None, &LoadOptions::default()).map(drop)
}

/// A document with one thing changed: what, and the document.
struct Damaged {
    what: String,
    under: String,
    document: Value,
}

/// `document` with each of its parts in turn taken away, or replaced by a value of each JSON type.
fn damages(document: &Value) -> Vec<Damaged> {
    let others = [json!(null), json!(true), json!(-1), json!(1.5), json!("unknown"), json!([]), json!({})];
    let mut damages = Vec::new();
    for pointer in pointers(document) {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let mut shorter = document.clone();
        match shorter.pointer_mut(parent).unwrap() {
            Value::Object(fields) => drop(fields.remove(key)),
            Value::Array(items) => drop(items.remove(key.parse().unwrap())),
            _ => unreachable!("a pointer goes through objects and arrays"),
        }
        let what = format!("{pointer} removed");
        damages.push(Damaged { what, under: pointer.clone(), document: shorter });
        for other in &others {
            let mut changed = document.clone();
            let part = changed.pointer_mut(&pointer).unwrap();
            if part != other {
                *part = other.clone();
                let what = format!("{pointer} = {other}");
                damages.push(Damaged { what, under: pointer.clone(), document: changed });
            }
        }
    }
    damages
}

/// JSON pointers to every part of a document but itself. No key here holds `/` or `~`.
fn pointers(document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), document)];
    while let Some((pointer, value)) = open.pop() {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), value)).collect(),
            Value::Array(items) => items.iter().enumerate().map(|(i, item)| (i.to_string(), item)).collect(),
            _ => Vec::new(),
        };
        for (key, child) in children {
            let pointer = format!("{pointer}/{key}");
            found.push(pointer.clone());
            open.push((pointer, child));
        }
    }
    found
}

/// Every name under `properties` anywhere in a schema.
fn properties(schema: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    let mut open = vec![schema];
    while let Some(at) = open.pop() {
        match at {
            Value::Object(keywords) => {
                let names = keywords.get("properties").and_then(Value::as_object);
                found.extend(names.into_iter().flat_map(|names| names.keys().map(String::as_str)));
                open.extend(keywords.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    found
}

#[test]
fn a_keyword_that_the_validator_does_not_know_is_refused() {
    for unknown in [json!({"maxLength": 3}), json!({"type": "date"}), json!({"items": {"pattern": "^a$"}})] {
        assert!(std::panic::catch_unwind(|| check_keywords(&unknown)).is_err(), "{unknown}");
    }
}

#[test]
fn the_validator_applies_each_keyword() {
    let schema = json!({
        "type": ["object", "null"], "required": ["a"], "additionalProperties": {"enum": ["x", 2]},
        "properties": {"a": {"$ref": "#/$defs/pair"}, "b": {"type": "integer", "minimum": 0, "maximum": 7}},
        "$defs": {"pair": {"prefixItems": [{"const": 1}, {"minLength": 2}], "items": false, "minItems": 2},
                  "few": {"items": {"type": "number"}, "maxItems": 2, "uniqueItems": true},
                  "one": {"oneOf": [{"type": "integer"}, {"minimum": 3}]},
                  "any": {"anyOf": [{"type": "integer"}, {"minimum": 3}]}}
    });
    let whole = Schema::new(&schema);
    for valid in [json!(null), json!({"a": [1, "ab"]}), json!({"a": [1, "ab"], "b": 7.0, "c": "x", "d": 2})] {
        assert_eq!(whole.validate(&valid), Ok(()));
    }
    for invalid in [
        json!(3),
        json!({}),
        json!({"a": [2, "ab"]}),
        json!({"a": [1, "b"]}),
        json!({"a": [1]}),
        json!({"a": [1, "ab", 0]}),
        json!({"a": [1, "ab"], "b": 8}),
        json!({"a": [1, "ab"], "b": -1}),
        json!({"a": [1, "ab"], "b": 0.5}),
        json!({"a": [1, "ab"], "c": "y"}),
    ] {
        assert!(whole.validate(&invalid).is_err(), "{invalid}");
    }
    let fits = |name: &str, value: Value| whole.definition(name).validate(&value).is_ok();
    assert!(fits("few", json!([1, 2.5])) && !fits("few", json!([1, 1])) && !fits("few", json!([1, 2, 3])));
    assert!(
        fits("one", json!(1))
            && fits("one", json!(3.5))
            && !fits("one", json!(4))
            && !fits("one", json!(0.5))
    );
    assert!(fits("any", json!(4)) && !fits("any", json!(0.5)));
}

#[test]
fn plans_of_every_kind_are_valid() {
    let schema = schema("plan.schema.json");
    let folder = Folder::new();
    let (mlp, stack) = (example("mlp.json"), example("seed_stack.json"));
    let small = "2xl4-24g:memory=4MB";
    let data = ["--data", "ones:records=256", "--loss", "mse", "--batch", "256", "--dry-run"];
    let recompute =
        [&["train", &mlp, "-d", "cpu:memory=12MB", "--plan", "recompute.json"][..], &data].concat();
    let replicas =
        [&["train", &mlp, "-d", "2xcpu", "--replicas", "2", "--plan", "train.json"][..], &data].concat();
    let profile =
        ["run", &mlp, "-d", "cpu", "--batch", "4", "--init", "seed=1", "--calibrate", "-o", "profile.json"];
    let commands: [&[&str]; 11] = [
        &[&mlp, "-d", small, "--batch", "8", "-o", "plain.json"],
        &[&mlp, "-d", "3xl4-24g:memory=4MB", "--batch", "8", "--from", "plain.json", "-o", "replan.json"],
        &[
            &mlp,
            "-d",
            "2xl4-24g",
            "--batch",
            "8",
            "--microbatches",
            "4",
            "--schedule",
            "1f1b",
            "-o",
            "pipeline.json",
        ],
        &[
            &mlp,
            "-d",
            "cpu+2xl4-24g[2x1GB]",
            "--batch",
            "8",
            "--objective",
            "latency",
            "--reserve",
            "1MB",
            "-o",
            "slices.json",
        ],
        &[
            &mlp,
            "-d",
            "2xcpu",
            "--batch",
            "8",
            "--precision",
            "bf16",
            "--pin",
            "head=cpu1",
            "-o",
            "pinned.json",
        ],
        &[&stack, "-d", "2xcpu[6x6MB]", "--batch", "10", "-o", "stack.json"],
        &[&mlp, "-d", "2xcpu", "--batch", "64", "--objective", "latency", "-o", "latency.json"],
        &recompute,
        &replicas,
        &profile,
        &[&mlp, "-d", "cpu", "--batch", "4", "--profile", "profile.json", "-o", "profiled.json"],
    ];
    let mut fields = Vec::new();
    for command in commands {
        let effort: &[&str] = if command[0] == "run" { &[] } else { &["--effort", "fast"] };
        let ran = folder.run(&[command, effort].concat());
        assert_eq!(ran.code, 0, "{command:?}: {}", ran.stderr);
        let name = command[command.iter().position(|&word| word == "-o" || word == "--plan").unwrap() + 1];
        let document = read(folder.path(name));
        if name != "profile.json" {
            assert_valid(&schema, &document, name);
            fields.extend(pointers(&document));
        }
    }
    for field in [
        "/bound/proof",
        "/bound/peaks/gap",
        "/replan/state/0/fate",
        "/profile/kinds/0/launch_ns",
        "/options/microbatches",
    ] {
        assert!(fields.iter().any(|found| found == field), "no plan has {field}");
    }
    for field in ["/microbatch", "/again", "/why", "/reserve"] {
        assert!(fields.iter().any(|found| found.ends_with(field)), "no plan has {field}");
    }
    assert_valid(&schema, &parse(&cost_graph_plan(&folder)), "a plan from a cost graph");
}

/// The plan of a hand-written cost graph.
fn cost_graph_plan(folder: &Folder) -> String {
    let graph = COST_GRAPH.replace("\"fast\"", "\"l4-24g\"").replace(",\"pin\":\"fast0\"", "");
    std::fs::write(folder.path("graph.json"), graph).unwrap();
    folder.ok(&["graph.json", "-d", "cpu+2xl4-24g", "--emit", "plan"])
}

#[test]
fn the_schema_of_plans_knows_every_field() {
    let schema = schema("plan.schema.json");
    let document = parse(PLAN);
    assert_valid(&schema, &document, "the plan with every field");
    // The reader keeps what it knows, and the writer writes it: nothing of the document is lost on the way.
    let mut written = parse(&read_plan(&document).unwrap().to_json());
    for pointer in pointers(&document) {
        assert!(written.pointer(&pointer).is_some(), "{pointer} is lost");
    }
    // A topology is written with its defaults.
    written["topology"] = document["topology"].clone();
    assert_eq!(written, document);
    for name in properties(&schema) {
        assert!(PLAN.contains(&format!("\"{name}\"")), "the plan lacks {name}");
    }
}

#[test]
fn damaged_plans_are_refused_by_schema_and_reader_alike() {
    let schema = schema("plan.schema.json");
    let document = parse(PLAN);
    let mut refused = 0;
    for Damaged { what, under, document } in damages(&document) {
        let (valid, reader) = (Schema::new(&schema).validate(&document), read_plan(&document));
        // A topology is built when it is read, so its reader refuses names and quantities, too. What a placement shows of
        // parts is compared with the options.
        let compared = ["/topology", "/placement", "/options/splits"];
        let is_read = compared.iter().any(|place| under.starts_with(place));
        assert!(
            (is_read && valid.is_ok()) || valid.is_ok() == reader.is_ok(),
            "{what}: {valid:?}, {:?}",
            reader.err()
        );
        refused += usize::from(valid.is_err());
    }
    assert!(refused > 1000, "{refused}");
    let mut both = document.clone();
    both["steps"][0]["copy"] = document["steps"][1]["copy"].clone();
    let mut neither = document;
    neither["steps"][0]["launch"] = Value::Null;
    for damaged in [both, neither] {
        assert!(Schema::new(&schema).validate(&damaged).is_err() && read_plan(&damaged).is_err());
    }
}

#[test]
fn cost_graphs_are_valid() {
    let schema = schema("cost-graph.schema.json");
    assert_valid(&schema, &parse(COST_GRAPH), "the cost graph with every field");
    for name in properties(&schema) {
        assert!(COST_GRAPH.contains(&format!("\"{name}\"")), "the cost graph lacks {name}");
    }
    let written = write_costgraph(&read_costgraph(COST_GRAPH.as_bytes()).unwrap());
    assert_valid(&schema, &parse(&written), "what is written");
    let folder = Folder::new();
    for (model, batch) in [("mlp.json", "8"), ("seed_stack.json", "10")] {
        let devices = "cpu+2xl4-24g";
        let text = folder.ok(&[&example(model), "-d", devices, "--batch", batch, "--emit", "costgraph"]);
        assert_valid(&schema, &parse(&text), model);
    }
    let Some(workloads) = shared::file("bench/msr") else { return };
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(workloads).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        path.extension().is_some_and(|end| end == "json") && !path.ends_with("reference.json")
    });
    paths.sort();
    assert!(paths.len() >= 9);
    for path in paths {
        let (graph, _) = read_workload(&std::fs::read(&path).unwrap(), "workload").unwrap();
        assert_valid(&schema, &parse(&write_costgraph(&graph)), &path.display().to_string());
    }
}

#[test]
fn damaged_cost_graphs_are_refused_by_schema_and_reader_alike() {
    let schema = schema("cost-graph.schema.json");
    let mut refused = 0;
    for Damaged { what, document, .. } in damages(&parse(COST_GRAPH)) {
        let valid = Schema::new(&schema).validate(&document);
        let reader = read_costgraph(document.to_string().as_bytes());
        match (&valid, &reader) {
            // Names that are not there and numbers of times are beyond a schema.
            (Ok(()), Ok(_) | Err(Error::Model(_))) => {}
            (Err(_), Err(_)) => refused += 1,
            _ => panic!("{what}: {valid:?}, {:?}", reader.err()),
        }
    }
    assert!(refused > 350, "{refused}");
}

#[test]
fn native_models_are_valid() {
    let schema = schema("model.schema.json");
    assert_valid(&schema, &parse(MODEL), "the model with every part");
    let mut native_examples = 0;
    for entry in std::fs::read_dir(docs("../examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "json") {
            let bytes = std::fs::read(&path).unwrap();
            if recognise(&bytes).unwrap() == Format::Native {
                assert_valid(&schema, &read(&path), &path.display().to_string());
                native_examples += 1;
            }
        }
    }
    assert!(native_examples > 0);
    for (inputs, node, _) in native_cases::operations() {
        let model = native_cases::model(&inputs, node);
        assert_valid(&schema, &model, &model.to_string());
    }
}

#[test]
fn damaged_models_are_refused_by_schema_and_reader_alike() {
    let schema = schema("model.schema.json");
    let mut refused = 0;
    for Damaged { what, document, .. } in damages(&parse(MODEL)) {
        // The reader takes null for an optional field that is absent; the schema has one way to say so.
        if what.ends_with("= null") {
            continue;
        }
        let (valid, reader) = (Schema::new(&schema).validate(&document), read_model(&document));
        match (&valid, &reader) {
            (Err(_), Err(_)) => refused += 1,
            // Names that are not there and sizes that do not fit are beyond a schema.
            (Ok(()), Ok(()) | Err(Error::Model(_) | Error::Unsupported(_))) => {}
            (Ok(()), Err(Error::Format(_))) if what.ends_with("= \"unknown\"") => {}
            _ => panic!("{what}: {valid:?}, {reader:?}"),
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn the_json_of_the_pages_is_valid() {
    let pages = [
        ("plan.md", "plan.schema.json"),
        ("cost-graph.md", "cost-graph.schema.json"),
        ("model-json.md", "model.schema.json"),
    ];
    for (page, name) in pages {
        let schema = schema(name);
        let text = std::fs::read_to_string(docs(page)).unwrap();
        let mut blocks = 0;
        for (definition, block) in json_blocks(&text) {
            let document = parse(block);
            let part = Schema::new(&schema);
            let part = if definition.is_empty() { part } else { part.definition(definition) };
            part.validate(&document).unwrap_or_else(|fault| panic!("{page}, block {blocks}{fault}"));
            blocks += 1;
        }
        assert!(blocks > 0, "{page} shows nothing");
    }
}

/// Fenced blocks of JSON: what stands behind `json` (a definition of the schema, or nothing), and the text.
fn json_blocks(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split("\n```json").skip(1).map(|rest| {
        let (definition, rest) = rest.split_once('\n').unwrap();
        (definition.trim(), rest.split("\n```").next().unwrap())
    })
}

#[test]
fn the_cost_graph_of_its_page_gives_the_plan_of_the_other() {
    let page = |name: &str| std::fs::read_to_string(docs(name)).unwrap();
    let (graphs, plans) = (page("cost-graph.md"), page("plan.md"));
    let (_, graph) = json_blocks(&graphs).find(|(definition, _)| definition.is_empty()).unwrap();
    let (_, plan) = json_blocks(&plans).find(|(definition, _)| definition.is_empty()).unwrap();
    let folder = Folder::new();
    std::fs::write(folder.path("engine.json"), format!("{graph}\n")).unwrap();
    let printed = folder.ok(&["engine.json", "-d", "2xa100-80g:memory=16GB", "--emit", "plan"]);
    assert_eq!(parse(&printed), parse(plan), "{printed}");
    folder.ok(&["engine.json", "-d", "2xa100-80g:memory=16GB", "-o", "plan.json", "-q"]);
    folder.ok(&["check", "plan.json", "--model", "engine.json"]);
}
