//! Bad files given to the program itself: one line that names the file and the place, the right
//! exit code, nothing on standard output, nothing written, and little memory used.
//!
//! What each reader says of each fault stands in the tests of the readers.

use std::fs;
use std::process::Command;

use partition::unstable::ir::{DType, Tensor};
use partition::unstable::load::weights::{Arrays, write_npz};
use partition::unstable::load::{LoadOptions, load};
use partition::unstable::plan::Plan;
use partition::unstable::topology::{Description, Topology};
use serde_json::{Value, json};

use crate::cli::{Folder, Ran, example};
use crate::onnx::reshaping;
use crate::sweep::Share;

/// Virtual memory of the program, in KiB, for inputs that ask for more.
const MEMORY: u32 = 1_000_000;

/// Runs the program with little memory to be had.
fn confined(folder: &Folder, args: &[&str]) -> Ran {
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -v {MEMORY} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_partition")])
        .args(args)
        .current_dir(folder.path(""))
        .env_remove("RUST_BACKTRACE")
        .output()
        .expect("there is a shell");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let stderr = text(output.stderr);
    let code = output.status.code();
    let code = code.unwrap_or_else(|| panic!("{args:?}: ended by {}: {stderr}", output.status));
    Ran { code, stdout: text(output.stdout), stderr }
}

/// The error of a run that must fail cleanly: with this code, one line, details that are indented,
/// nothing on standard output, no file more or less than before. All of `parts` are in it.
fn refused(folder: &Folder, code: i32, args: &[&str], parts: &[&str]) {
    let before = listing(folder);
    let ran = confined(folder, args);
    let stderr = &ran.stderr;
    assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
    assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{args:?}: {stderr}");
    let mut lines = stderr.lines().filter(|line| !line.starts_with("note: "));
    let first = lines.next().unwrap_or_default();
    assert!(first.starts_with("error: ") && first.len() < 2000, "{args:?}: {stderr}");
    assert!(lines.all(|line| line.starts_with("  ")), "{args:?}: {stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{args:?}: {part} is missing in {stderr}");
    }
    assert_eq!(listing(folder), before, "{args:?}: something was left behind");
}

fn listing(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path("")).expect("readable");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The ways in which the program reads a file; `FILE` and the example model `MODEL` are put in.
const WAYS: &[&str] = &[
    "FILE --devices cpu -o out.json",
    "run FILE --init seed=1 --outputs out.npz",
    "check FILE",
    "export FILE --format json -o out.json",
    "diff FILE FILE",
    "run MODEL --init seed=1 --weights FILE --outputs out.npz",
    "run MODEL --init seed=1 --inputs FILE",
    "run MODEL --init seed=1 --expect FILE",
];

/// As [`WAYS`], for devices.
const DEVICE_WAYS: &[&str] = &["MODEL --devices FILE -o out.json", "run MODEL --init seed=1 --devices FILE"];

fn every_way(folder: &Folder, ways: &[&str], code: i32, file: &str) {
    let model = example("mlp.json");
    for way in ways {
        let args: Vec<&str> = way
            .split(' ')
            .map(|word| match word {
                "FILE" => file,
                "MODEL" => model.as_str(),
                other => other,
            })
            .collect();
        refused(folder, code, &args, &[file]);
    }
}

#[test]
fn files_that_are_nothing() {
    let folder = Folder::new();
    let most = 1_000_000;
    let files: &[(&str, Vec<u8>)] = &[
        ("empty", Vec::new()),
        ("magic", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0>\0".to_vec()),
        ("brackets", vec![b'['; most]),
        ("zeros", vec![0; most]),
        ("braces", b"{\"a\":".repeat(most / 5)),
    ];
    for (name, bytes) in files {
        fs::write(folder.path(name), bytes).expect("writable");
        every_way(&folder, WAYS, 1, name);
        for end in ["toml", "json"] {
            let name = format!("{name}.{end}");
            fs::write(folder.path(&name), bytes).expect("writable");
            every_way(&folder, DEVICE_WAYS, 2, &name);
            fs::remove_file(folder.path(&name)).expect("there");
        }
        fs::remove_file(folder.path(name)).expect("there");
    }
}

#[test]
fn a_folder_where_a_file_should_be() {
    let folder = Folder::new();
    fs::create_dir(folder.path("folder.json")).expect("writable");
    every_way(&folder, WAYS, 1, "folder.json");
    every_way(&folder, DEVICE_WAYS, 1, "folder.json");
    let model = example("mlp.json");
    refused(&folder, 1, &[&model, "--devices", "cpu", "-o", "folder.json"], &["folder.json"]);
    refused(&folder, 1, &["run", &model, "--init", "seed=1", "--outputs", "folder.json"], &["folder.json"]);
    refused(&folder, 1, &[&model, "--devices", "cpu", "-o", "absent/plan.json"], &["absent/plan.json"]);
}

/// A native model of one node that reads `x`.
fn native(ty: &str, node: &Value) -> Value {
    json!({"partition_model": 1, "inputs": [{"name": "x", "type": ty}], "nodes": [node], "outputs": ["y"]})
}

fn keras(units: &Value, shape: &Value) -> Value {
    json!({"class_name": "Sequential", "keras_version": "2.15.0", "backend": "tensorflow", "config": {"name": "s",
        "layers": [{"class_name": "Dense", "config": {"name": "d", "units": units, "batch_input_shape": shape}}]}})
}

fn costs(nodes: &Value, edges: &Value) -> Value {
    json!({"costgraph": 1, "kinds": ["cpu"], "nodes": nodes, "edges": edges})
}

fn workload(memory: &Value, latency: &Value, edges: &Value) -> Value {
    let node = |id: u32| {
        json!({"id": id, "supportedOnFpga": 1, "cpuLatency": latency, "fpgaLatency": 1, "size": 1,
            "isBackwardNode": 0, "colorClass": null})
    };
    json!({"maxFPGAs": 1, "maxCPUs": 1, "maxSizePerFPGA": memory, "nodes": [node(1), node(2)], "edges": edges})
}

/// Models that are JSON and wrong, with the place that the error names.
fn wrong_models() -> Vec<(&'static str, Value, &'static str)> {
    let relu = json!({"name": "y", "op": "relu", "inputs": ["x"]});
    let node = |id: &str, bytes: Value| json!({"id": id, "op": "f", "time_ns": [1], "outputs": [bytes]});
    let (a, b) = (node("a", json!(1)), node("b", json!(1)));
    let ab = json!([a.clone(), b]);
    let edges = |from: i64, to: i64| json!([{"sourceId": from, "destId": to, "cost": 1}]);
    vec![
        ("native", native("f32[-3]", &relu), "x"),
        ("native", native("f32[9223372036854775807, 9223372036854775807]", &relu), "y"),
        ("native", native("f32[4294967296, 4294967296]", &relu), "y"),
        ("native", native("f32[9223372036854775808]", &relu), "x"),
        ("native", native("f32[3]", &json!({"name": "y", "op": "relu", "inputs": ["y"]})), "cycle"),
        ("native", native("f32[3]", &json!({"name": "y", "op": "relu", "inputs": ["z"]})), "z"),
        (
            "native",
            native("f32[3]", &json!({"name": "y", "op": "reshape", "inputs": ["x"], "shape": [-1, -1]})),
            "y",
        ),
        (
            "native",
            native(
                "f32[1, 1]",
                &json!({"name": "y", "op": "pad", "inputs": ["x"],
                "before": [i64::MAX, 0], "after": [i64::MAX, 0]}),
            ),
            "y",
        ),
        ("keras", keras(&json!(-4), &json!([null, 3])), "d"),
        ("keras", keras(&json!(4), &json!([null, -3])), "d"),
        ("keras", keras(&json!(i64::MAX), &json!([null, i64::MAX])), "d"),
        ("keras", keras(&json!("many"), &json!([null, 3])), "d"),
        ("costs", costs(&json!([a.clone(), a.clone()]), &json!([])), "a"),
        ("costs", costs(&ab, &json!([["a", 0, "b"], ["b", 0, "a"]])), "cycle"),
        ("costs", costs(&ab, &json!([["a", 0, "c"]])), "c"),
        ("costs", costs(&ab, &json!([["a", 1, "b"]])), "a"),
        ("costs", costs(&json!([node("a", json!(-1))]), &json!([])), "a"),
        ("costs", costs(&json!([node("a", json!(u64::MAX))]), &json!([])), "a"),
        ("workload", workload(&json!(-1), &json!(1), &json!([])), "maxSizePerFPGA"),
        ("workload", workload(&json!(9), &json!(-1), &json!([])), "cpuLatency"),
        ("workload", workload(&json!(9), &json!(1), &edges(1, 7)), "7"),
        ("workload", workload(&json!(9), &json!(1e300), &json!([])), "cpuLatency"),
        ("workload", workload(&json!(9), &json!(1), &json!([edges(1, 2)[0], edges(2, 1)[0]])), "cycle"),
    ]
}

#[test]
fn models_that_are_wrong() {
    let folder = Folder::new();
    for (format, model, place) in wrong_models() {
        let name = format!("{format}.json");
        fs::write(folder.path(&name), model.to_string()).expect("writable");
        refused(&folder, 1, &[&name, "--devices", "cpu", "-o", "out.json"], &[&name, place]);
    }
}

/// Numbers that JSON has no words for.
#[test]
fn numbers_that_are_none() {
    let folder = Folder::new();
    for number in ["NaN", "Infinity", "-Infinity", "1e999", "-1", "\"1\""] {
        let costs = costs(&json!([{"id": "a", "op": "f", "time_ns": ["#"], "outputs": [1]}]), &json!([]));
        fs::write(folder.path("costs.json"), costs.to_string().replace("\"#\"", number)).expect("writable");
        refused(&folder, 1, &["costs.json", "--devices", "cpu"], &["costs.json"]);
        let workload = workload(&json!(9), &json!("#"), &json!([]));
        fs::write(folder.path("work.json"), workload.to_string().replace("\"#\"", number)).expect("writable");
        refused(&folder, 1, &["work.json"], &["work.json"]);
        let sound = example("mlp.json");
        for key in ["memory", "flops", "latency"] {
            let table = format!("[[device]]\nkind = \"cpu\"\n{key} = {number}\n");
            fs::write(folder.path("devices.toml"), table).expect("writable");
            refused(&folder, 2, &[&sound, "--devices", "devices.toml"], &["devices.toml"]);
        }
    }
}

/// Values nested in each format's own fields.
#[test]
fn values_nested_too_deeply() {
    let folder = Folder::new();
    let nest = |open: &str, close: &str| open.repeat(200_000) + &close.repeat(200_000);
    let deep = [nest("[", "]"), nest("{\"a\":", "}").replace(":}", ":1}")];
    for head in [
        "{\"partition_model\":1,\"nodes\":",
        "{\"class_name\":\"Sequential\",\"config\":{\"name\":\"s\",\"layers\":",
        "{\"costgraph\":1,\"kinds\":",
        "{\"maxFPGAs\":1,\"nodes\":",
        "{\"version\":1,\"model\":",
        "{\"version\":1,\"unknown\":",
        "{\"$schema\":",
    ] {
        for deep in &deep {
            fs::write(folder.path("deep.json"), format!("{head}{deep}}}}}")).expect("writable");
            refused(&folder, 1, &["check", "deep.json"], &["deep.json"]);
            refused(&folder, 1, &["run", "deep.json", "--init", "seed=1"], &["deep.json"]);
        }
    }
    let deep = format!("{{\"device\":{}}}", deep[0]);
    fs::write(folder.path("deep.json"), deep).expect("writable");
    refused(&folder, 2, &[&example("mlp.json"), "--devices", "deep.json"], &["deep.json"]);
    fs::write(folder.path("deep.toml"), format!("device = {}", nest("[", "]"))).expect("writable");
    refused(&folder, 2, &[&example("mlp.json"), "--devices", "deep.toml"], &["deep.toml"]);
}

#[test]
fn devices_that_cannot_be() {
    let folder = Folder::new();
    let model = example("mlp.json");
    for spec in [
        "0xcpu",
        "",
        "+",
        "cpu[0x1GB]",
        "cpu[]",
        "cpu:memory=0B",
        "cpu:memory=99999999999P",
        "cpu:cores=0",
        "99999999999999999999xcpu",
        "cpu[99999999x1B]",
        "cpu:memory=-1GB",
        "cpu:memory=NaN",
        "2000xcpu",
    ] {
        refused(&folder, 2, &[&model, "--devices", spec], &[]);
    }
    for (text, part) in [
        ("", "device"),
        ("device = []\n", "device"),
        ("[[device]]\nkind = \"cpu\"\ncount = 0\n", "count"),
        ("[[device]]\nkind = \"cpu\"\ncount = -1\n", "count"),
        ("[[device]]\nkind = \"cpu\"\nname = \"a\"\n[[device]]\nkind = \"cpu\"\nname = \"a\"\n", "a"),
        (
            "[[device]]\nkind = \"cpu\"\n[[link]]\nbetween = [\"cpu0\", \"cpu9\"]\nbandwidth = \"1GB/s\"\n",
            "cpu9",
        ),
        ("[[device]]\nkind = \"cpu\"\nkind = \"cpu\"\n", "line 3"),
    ] {
        fs::write(folder.path("devices.toml"), text).expect("writable");
        refused(&folder, 2, &[&model, "--devices", "devices.toml"], &["devices.toml", part]);
    }
}

#[test]
fn caps_below_one_tensor() {
    let folder = Folder::new();
    fs::write(folder.path("onnx"), reshaping()).expect("writable");
    let node = json!([{"id": "a", "op": "f", "time_ns": [1], "outputs": [1000]}]);
    fs::write(folder.path("costs.json"), costs(&node, &json!([])).to_string()).expect("writable");
    let (mlp, seed) = (example("mlp.json"), example("seed_stack.json"));
    for model in [mlp.as_str(), &seed, "onnx", "costs.json"] {
        for devices in ["cpu:memory=1B", "2xcpu:memory=16B", "cpu[3x1B]"] {
            refused(&folder, 3, &[model, "--devices", devices, "-o", "out.json"], &["cap"]);
        }
        let args = [model, "--devices", "cpu:memory=1GB", "--reserve", "1GB", "-o", "out.json"];
        refused(&folder, 3, &args, &["cap"]);
    }
}

/// What cannot be held is planned where there is a device for it, and is an error where it runs.
#[test]
fn sizes_that_no_machine_has() {
    let folder = Folder::new();
    let model = example("mlp.json");
    for batch in ["1000000000", "1000000000000", "100000000000000000", "9223372036854775807"] {
        for way in [&["--batch", batch][..], &["--dim", &format!("batch={batch}")]] {
            let run =
                [&["run", &model, "--init", "seed=1", "--devices", "cpu:memory=900PB"][..], way].concat();
            refused(&folder, 1, &run, &[]);
        }
    }
    let args = [&model, "--devices", "cpu:memory=1GB", "--batch", "1000000000", "-o", "out.json"];
    refused(&folder, 3, &args, &["cap"]);
    for number in ["-1", "9223372036854775808", "1e3", ""] {
        refused(&folder, 2, &[&model, "--devices", "cpu", "--dim", &format!("batch={number}")], &["--dim"]);
    }
    for init in ["zeros", "glorot_uniform", "orthogonal", "identity"] {
        for size in [1u64 << 20, 1 << 28] {
            let model = json!({"partition_model": 1, "inputs": [{"name": "x", "type": "f32[1, 1]"}],
                "params": [{"name": "w", "type": format!("f32[{size}, {size}]"), "init": init}],
                "nodes": [{"name": "y", "op": "add", "inputs": ["x", "w"]}], "outputs": ["y"]});
            fs::write(folder.path("wide.json"), model.to_string()).expect("writable");
            let args = ["run", "wide.json", "--init", "seed=1", "--devices", "cpu:memory=900PB"];
            refused(&folder, 1, &args, &[]);
        }
    }
    for ty in ["i64", "bool"] {
        let node = json!({"name": "y", "op": "reduce", "kind": "max", "inputs": ["x"]});
        let model = native(&format!("{ty}[100000, 100000]"), &node);
        fs::write(folder.path("long.json"), model.to_string()).expect("writable");
        let args = ["run", "long.json", "--init", "seed=1", "--devices", "cpu:memory=900PB"];
        refused(&folder, 1, &args, &[]);
    }
    for op in [json!({"op": "iota", "axis": 0}), json!({"op": "broadcast"})] {
        let mut node = op;
        node["name"] = "y".into();
        node["inputs"] = if node["op"] == "iota" { json!([]) } else { json!(["x"]) };
        node["shape"] = json!([1_000_000, 1_000_000]);
        node["type"] = json!("i64[1000000, 1000000]");
        fs::write(folder.path("made.json"), native("f32[1, 1]", &node).to_string()).expect("writable");
        let ran = confined(&folder, &["made.json", "--devices", "cpu:memory=900PB"]);
        assert!(ran.code < 2 && !ran.stderr.contains("panicked"), "{}", ran.stderr);
    }
}

/// Each tenth byte is an end: an error of one line, or what stands before it is whole.
fn truncated<T>(what: &str, bytes: &[u8], read: impl Fn(&[u8]) -> partition::Result<T>) {
    read(bytes).unwrap_or_else(|error| panic!("{what} is sound: {error}"));
    let mut errors = 0;
    for end in (0..bytes.len()).step_by((bytes.len() / 2000).max(10)) {
        if let Err(error) = read(&bytes[..end]) {
            let error = error.to_string();
            assert!(!error.is_empty() && !error.contains('\n'), "{what} cut at {end}: {error}");
            errors += 1;
        }
    }
    assert!(errors > 0, "{what}: every beginning was accepted");
}

#[test]
fn files_that_are_cut_off() {
    let folder = Folder::new();
    folder.ok(&[&example("mlp.json"), "--devices", "cpu[3x3MB]", "-o", "plan.json"]);
    truncated("a plan", &fs::read(folder.path("plan.json")).expect("there"), |bytes| {
        Plan::from_json(bytes, "plan.json")
    });
    for name in ["mlp.json", "seed_stack.json"] {
        let bytes = fs::read(example(name)).expect("there");
        truncated(name, &bytes, |bytes| load(bytes, None, &LoadOptions::default()));
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let devices = Topology::parse("cpu+2xcuda[2x1GB]:link=10GB/s").expect("sound").description().clone();
    let toml = devices.to_toml();
    truncated("devices in TOML", toml.as_bytes(), |bytes| Description::from_toml(&text(bytes))?.build());
    let json = serde_json::to_string(&devices).expect("JSON");
    truncated("devices in JSON", json.as_bytes(), |bytes| Description::from_json(&text(bytes))?.build());
}

/// Everything in a file of arrays.
fn read_arrays(folder: &Folder, bytes: &[u8]) -> partition::Result<()> {
    let path = folder.path("arrays");
    fs::write(&path, bytes).expect("writable");
    let arrays = Arrays::open(&path)?;
    arrays.names().iter().try_for_each(|name| {
        arrays.header(name)?;
        arrays.get(name).map(drop)
    })
}

sweep! {
    arrays_that_are_damaged: one of 6;
}

fn arrays_that_are_damaged(share: Share) {
    let folder = Folder::new();
    let tensor = partition::unstable::ir::Tensor::from_f32(vec![3, 4], &[1.5; 12]).expect("12 elements");
    let path = folder.path("sound.npz");
    write_npz(&path, &[("a".into(), tensor.clone()), ("b".into(), tensor)]).expect("writable");
    let npz = fs::read(&path).expect("there");
    let header = r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"I64","shape":[],"data_offsets":[24,32]}}"#;
    let mut safe = (header.len() as u64).to_le_bytes().to_vec();
    safe.extend(header.as_bytes());
    safe.extend([0; 32]);
    for (what, bytes) in [("npz", npz), ("safetensors", safe)] {
        truncated(what, &bytes, |bytes| read_arrays(&folder, bytes));
        for at in share.among(0..bytes.len()) {
            for value in [0, 1, 0x7f, 0xff, b'9', bytes[at] ^ 0x20] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                if let Err(error) = read_arrays(&folder, &bytes) {
                    let error = error.to_string();
                    assert!(error.contains("arrays") && !error.contains('\n'), "{what} at {at}: {error}");
                }
            }
        }
    }
    let most = u64::MAX.to_le_bytes();
    fs::write(folder.path("long.safetensors"), [&most[..], b"{}"].concat()).expect("writable");
    let model = example("mlp.json");
    let args = ["run", &model, "--init", "seed=1", "--weights", "long.safetensors"];
    refused(&folder, 1, &args, &["long.safetensors"]);
}

#[test]
fn onnx_files_that_are_wrong() {
    let folder = Folder::new();
    let sound = reshaping();
    for (name, bytes) in [
        ("half.onnx", sound[..sound.len() / 2].to_vec()),
        ("prefixed.onnx", [&[0u8][..], &sound].concat()),
        // A field that claims more bytes than there are.
        ("long.onnx", vec![0x08, 0x08, 0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        // Groups in groups, which protobuf skips by recursion.
        ("groups.onnx", [&[0x08, 0x08][..], &vec![0x0b; 10_000_000]].concat()),
    ] {
        fs::write(folder.path(name), bytes).expect("writable");
        refused(&folder, 1, &[name, "--devices", "cpu", "-o", "out.json"], &[name]);
    }
}

/// Names with line breaks and commands for terminals, in everything that is printed for people.
#[test]
fn names_that_are_no_text() {
    let folder = Folder::new();
    let name = "a\n\u{1b}[31m\r";
    let model = |op: &str| {
        json!({"partition_model": 1, "name": name, "dims": [name], "inputs": [{"name": "x\n", "type": "f32[3]"}],
            "nodes": [{"name": name, "op": op, "inputs": ["x\n"]}], "outputs": [name]})
    };
    let mut sound = model("relu");
    sound.as_object_mut().expect("an object").remove("dims");
    fs::write(folder.path("sound.json"), sound.to_string()).expect("writable");
    let written = ["sound.json", "--devices", "cpu", "-o", "a.json", "--quiet"];
    folder.ok(&written);
    folder.ok(&["sound.json", "--devices", "2xcpu", "--pin", "*=cpu1", "-o", "b.json", "--quiet"]);
    for args in [
        &["sound.json", "--devices", "cpu"][..],
        &["sound.json", "--devices", "cpu", "--emit", "dot"],
        &["sound.json", "--devices", "cpu", "--emit", "ir"],
        &["sound.json", "--devices", "cpu", "--emit", "groups"],
        &["sound.json", "--devices", "cpu", "--emit", "text"],
        &["check", "sound.json"],
        &["diff", "a.json", "b.json"],
        &["run", "a.json", "--init", "seed=1"],
    ] {
        let out = folder.ok(args);
        let odd = out.chars().find(|&c| c.is_control() && c != '\n');
        assert!(odd.is_none() && !out.contains("a\n"), "{args:?}: {odd:?} in {out}");
    }
    for op in ["wombat", "matmul"] {
        fs::write(folder.path("bad.json"), model(op).to_string()).expect("writable");
        refused(&folder, 1, &["bad.json", "--devices", "cpu"], &["bad.json"]);
        refused(&folder, 1, &["check", "bad.json"], &["bad.json"]);
    }
    let layers = json!([{"class_name": "Wombat", "config": {"name": name, "batch_input_shape": [null, 4]}}]);
    let keras = json!({"class_name": "Sequential", "config": {"name": name, "layers": layers},
        "keras_version": "2.15.0", "backend": "tensorflow"});
    fs::write(folder.path("keras.json"), keras.to_string()).expect("writable");
    refused(&folder, 1, &["check", "keras.json"], &["keras.json", "a\\n"]);
}

/// A model of one operation, with `fields` in place of its own.
fn small(fields: &str) -> String {
    format!(
        r#"{{"partition_model": 1, "inputs": [{{"name": "x", "type": "f32[2]"}}], "params": [],
            "nodes": [{{"name": "y", "op": "exp", "inputs": ["x"]}}], "outputs": ["y"], {fields}}}"#
    )
}

#[test]
fn what_stands_twice() {
    let folder = Folder::new();
    for (file, text, key) in [
        ("top.json", small(r#""name": "one", "name": "two""#), "name"),
        (
            "deep.json",
            small(r#""constants": [{"name": "c", "type": "f32[1]", "values": 1, "values": 2}]"#),
            "values",
        ),
        (
            "keras.json",
            r#"{"class_name": "Sequential", "config": {"name": "a", "name": "b", "layers": []}}"#.to_owned(),
            "name",
        ),
        ("config.json", r#"{"model_type": "gpt2", "n_layer": 1, "n_layer": 2}"#.to_owned(), "n_layer"),
    ] {
        fs::write(folder.path(file), text).unwrap();
        refused(&folder, 1, &[file, "-d", "cpu"], &[file, &format!("\"{key}\" occurs twice")]);
    }
    fs::write(folder.path("m.json"), small(r#""name": "m""#)).unwrap();
    fs::write(folder.path("d.json"), r#"{"device": [{"name": "a", "kind": "cpu", "kind": "cpu"}]}"#).unwrap();
    refused(&folder, 2, &["m.json", "-d", "d.json"], &["d.json", "\"kind\" occurs twice"]);
    let index = r#"{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}"#;
    fs::write(folder.path("w.safetensors.index.json"), index).unwrap();
    let header = r#"{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8]].concat();
    fs::write(folder.path("w.safetensors"), bytes).unwrap();
    for weights in ["w.safetensors.index.json", "w.safetensors"] {
        refused(&folder, 1, &["run", "m.json", "--weights", weights], &[weights, "\"w\" occurs twice"]);
    }
}

/// Archives are read by a map of names, in which the second of two entries takes the place of the first.
#[test]
fn arrays_that_stand_twice_in_an_archive() {
    let folder = Folder::new();
    fs::write(folder.path("m.json"), small(r#""name": "m""#)).unwrap();
    let array = |value: f32| Tensor::new(DType::F32, vec![2], [value.to_le_bytes(); 2].concat()).unwrap();
    let arrays = [("x".to_owned(), array(1.0)), ("z".to_owned(), array(2.0))];
    write_npz(&folder.path("i.npz"), &arrays).unwrap();
    let mut bytes = fs::read(folder.path("i.npz")).unwrap();
    for at in 0..bytes.len() - 5 {
        if bytes[at..].starts_with(b"z.npy") {
            bytes[at] = b'x';
        }
    }
    fs::write(folder.path("i.npz"), bytes).unwrap();
    for option in ["--inputs", "--weights"] {
        refused(&folder, 1, &["run", "m.json", option, "i.npz"], &["i.npz", "two entries of one name"]);
    }
}

#[test]
fn numbers_that_their_type_does_not_hold() {
    let folder = Folder::new();
    for (ty, value, fits) in [
        ("f32", "1e39", false),
        ("f32", "3.4e38", true),
        ("f16", "70000", false),
        ("f16", "65504", true),
        ("bf16", "-3.38e38", true),
        ("bf16", "3.4e39", false),
        ("f64", "1e300", true),
    ] {
        let text =
            small(&format!(r#""constants": [{{"name": "c", "type": "{ty}[1]", "values": [{value}]}}]"#));
        fs::write(folder.path("m.json"), text).unwrap();
        if fits {
            folder.ok(&["m.json", "-d", "cpu", "--quiet"]);
        } else {
            refused(&folder, 1, &["m.json", "-d", "cpu"], &["m.json", "constant c", "is not of type"]);
        }
    }
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let folder = Folder::new();
    let text = small(r#""name": "marked""#);
    fs::write(folder.path("m.json"), [b"\xef\xbb\xbf", text.as_bytes()].concat()).unwrap();
    assert!(folder.ok(&["m.json", "-d", "cpu"]).starts_with("marked: "));
}

#[test]
fn arrays_that_cannot_be_written_are_one_line() {
    let folder = Folder::new();
    fs::write(folder.path("m.json"), small(r#""name": "m""#)).unwrap();
    let ran = folder.run(&["run", "m.json", "--init", "seed=1", "--outputs", "/dev/full"]);
    assert_eq!(
        (ran.code, ran.stderr.lines().filter(|line| !line.starts_with("note: ")).count()),
        (1, 1),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("/dev/full: No space left"), "{}", ran.stderr);
}

#[test]
fn no_memory_is_one_line() {
    let folder = Folder::new();
    fs::write(folder.path("m.json"), small(r#""name": "m""#)).unwrap();
    let mut refused = 0;
    for kilobytes in (8_000..80_000).step_by(2_000) {
        let output = Command::new("sh")
            .args([
                "-c",
                &format!("ulimit -v {kilobytes} && exec \"$0\" \"$@\""),
                env!("CARGO_BIN_EXE_partition"),
            ])
            .args(["m.json", "-d", "cpu", "--threads", "1"])
            .current_dir(folder.path(""))
            .env("RUST_BACKTRACE", "1")
            .output()
            .expect("there is a shell");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        // Where little more than the program itself fits, Rust's runtime fails before `main`.
        if stderr.contains("thread 'main'") && stderr.contains("failed to allocate an alternative stack") {
            continue;
        }
        if stderr.contains("there is no memory left") {
            assert_eq!(
                (output.status.code(), stderr.lines().count()),
                (Some(1), 1),
                "{kilobytes} kB: {stderr}"
            );
            refused += 1;
        }
        assert!(
            !stderr.contains("backtrace") && !stderr.contains("memory allocation of"),
            "{kilobytes} kB: {stderr}"
        );
    }
    println!("{refused} of 36 limits were met by a refused allocation");
}

#[test]
fn a_file_of_another_kind_is_named() {
    let folder = Folder::new();
    fs::write(folder.path("m.json"), small(r#""name": "m""#)).unwrap();
    fs::write(folder.path("d.json"), r#"{"device": [{"name": "a", "kind": "cpu"}]}"#).unwrap();
    folder.ok(&["m.json", "-d", "cpu", "-o", "p.json", "--quiet"]);
    let model = "m.json: the file is a model, not a plan";
    refused(&folder, 1, &["explain", "m.json"], &[model, "partition MODEL --devices SPEC -o plan.json"]);
    refused(&folder, 1, &["diff", "p.json", "m.json"], &[model]);
    refused(
        &folder,
        1,
        &["p.json", "-d", "cpu"],
        &["p.json: the file is a plan, not a model", "partition run"],
    );
    refused(&folder, 1, &["d.json", "-d", "cpu"], &["is a file of devices, not a model"]);
    folder.ok(&["m.json", "-d", "2xcpu", "-o", "q.json", "--quiet"]);
    for command in ["run", "check", "explain"] {
        for (given, kind) in [("p.json", "a plan"), ("q.json", "a plan"), ("d.json", "a file of devices")] {
            let said = format!("{given}: the file is {kind}, not a model");
            refused(&folder, 1, &[command, "p.json", "--model", given], &[&said]);
        }
    }
}

#[test]
fn parameters_without_weights_are_eight_and_a_count() {
    let folder = Folder::new();
    let params = |name: &dyn Fn(usize) -> String| -> Vec<String> { (0..20).map(name).collect() };
    let list = params(&|at| format!(r#"{{"name": "w{at}", "type": "f32[2]"}}"#)).join(", ");
    let first = r#"{"name": "n0", "op": "mul", "inputs": ["x", "w0"]}"#.to_owned();
    let rest =
        (1..20).map(|at| format!(r#"{{"name": "n{at}", "op": "mul", "inputs": ["n{}", "w{at}"]}}"#, at - 1));
    let nodes: Vec<String> = std::iter::once(first).chain(rest).collect();
    let text = format!(
        r#"{{"partition_model": 1, "inputs": [{{"name": "x", "type": "f32[2]"}}], "params": [{list}],
            "nodes": [{}], "outputs": ["n19"]}}"#,
        nodes.join(", ")
    );
    fs::write(folder.path("m.json"), text).unwrap();
    let array = Tensor::new(DType::F32, vec![2], vec![0; 8]).unwrap();
    write_npz(&folder.path("x.npz"), &[("x".to_owned(), array.clone())]).unwrap();
    write_npz(&folder.path("w.npz"), &[("w3".to_owned(), array)]).unwrap();
    let none = ["run", "m.json", "--inputs", "x.npz"];
    refused(&folder, 1, &none, &["20 parameters have no data", "w7", "and 12 more parameters"]);
    let some = [&none[..], &["--weights", "w.npz"]].concat();
    refused(
        &folder,
        1,
        &some,
        &["19 parameters have no array", "and 11 more parameters", "would make these up"],
    );
    assert!(!folder.fails(1, &none).contains("w8"));
}
