//! `partition train` from outside: what it refuses before it plans, what it shows, how it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use partition::unstable::ir::Tensor;
use partition::unstable::load::weights::{Arrays, write_npz};

use crate::cli::{Folder, example};

/// One layer of two numbers for each of three, all ones, its batch open.
const LINE: &str = r#"{"partition_model": 1, "name": "line", "inputs": [{"name": "x", "type": "f32[batch,3]"}],
    "params": [{"name": "w", "type": "f32[3,2]", "init": {"kind": "constant", "value": 1}}],
    "nodes": [{"name": "y", "op": "matmul", "inputs": ["x", "w"]}], "outputs": ["y"]}"#;

fn folder() -> Folder {
    let folder = Folder::new();
    fs::write(folder.path("line.json"), LINE).unwrap();
    folder
}

fn train<'a>(model: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["train", model], rest].concat()
}

const ONES: &[&str] = &["--data", "ones:records=8", "--loss", "mse", "--batch", "4"];

fn names(folder: &Folder) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder.path("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Signs of logits are what is measured, of each output for itself; probabilities say yes from one half on.
#[test]
fn accuracy_of_yes_and_no_is_by_what_the_loss_takes_outputs_for() {
    let folder = folder();
    let same = r#"{"partition_model": 1, "name": "same", "inputs": [{"name": "x", "type": "f32[batch,2]"}],
        "params": [{"name": "w", "type": "f32[2]", "init": {"kind": "constant", "value": 1}}],
        "nodes": [{"name": "y", "op": "mul", "inputs": ["x", "w"]}], "outputs": ["y"]}"#;
    fs::write(folder.path("same.json"), same).unwrap();
    fs::write(folder.path("d.csv"), lines.collect::<String>()).unwrap();
    let loss: f64 =
        values.chunks(2).map(|pair| (f64::from(pair[0]) + f64::from(pair[1]) - 0.5).powi(2)).sum::<f64>()
            / 30.0;
    for data in ["d.npz", "d.csv:header=no,input=0..9,target=10..14"] {
        let ran =
            folder.run(&train("seq.json", &["--data", data, "--loss", "mse", "--batch", "3", "--lr", "0"]));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stderr.contains("seq = 5 as the data has it"), "{}", ran.stderr);
        assert!(ran.stdout.contains("3x5x1"), "{}", ran.stdout);
        let told = ran.stdout.split("loss ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let told: f64 = told.and_then(|word| word.parse().ok()).expect("a loss");
        assert!((told - loss).abs() < 1e-5, "{told} {loss}");
    }
    // Of records of different lengths, or made-up ones, no size follows.
    fs::write(folder.path("v.csv"), "x,y\n1 2 3 4,1 2\n").unwrap();
    let data = "v.csv:list.x=space,list.target=space,target=y,pad.x=0";
    let error = folder.fails(2, &train("seq.json", &["--data", data, "--loss", "mse"]));
    assert!(error.contains("--dim seq=N"), "{error}");
    let made = folder.run(&train("seq.json", ONES));
    assert!(made.code == 0 && made.stderr.contains("planned with seq = 1"), "{}", made.stderr);
    let shaped = ["--data", "ones:records=8,shape.x=7x2", "--loss", "mse", "--batch", "4"];
    let made = folder.run(&train("seq.json", &shaped));
    assert!(made.code == 0 && made.stderr.contains("seq = 7"), "{}", made.stderr);
}

#[test]
fn a_dry_run_plans_for_devices_that_are_not_here() {
    let folder = Folder::new();
    let mlp = example("mlp.json");
    let away = ["-d", "4xa100-80g", "--loss", "mse", "--batch", "8", "--effort", "fast"];
    let error = folder.fails(1, &train(&mlp, &[&away[..], &["--data", "ones:records=8"]].concat()));
    assert!(error.contains("--dry-run") && !error.contains("--map"), "{error}");
    let out =
        folder.ok(&train(&mlp, &[&away[..], &["--dry-run", "--use", "2", "--plan", "p.json"]].concat()));
    for part in ["parameters", "total", "peak", "latency", "arena", "the plan is sound"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(folder.ok(&["check", "p.json"]).starts_with("sound: "));
    let none = ["-d", "2xa100-80g:memory=10kB", "--loss", "mse", "--dry-run"];
    let error = folder.fails(3, &train(&mlp, &none));
    assert!(error.contains("no plan exists"), "{error}");
    let parallel = ["--dry-run", "--parallel", "data", "--plan", "d.json"];
    folder.ok(&train(&mlp, &[&away[..], &parallel].concat()));
    assert!(folder.ok(&["check", "d.json"]).starts_with("sound: "));
}

#[test]
fn layers_are_told_and_not_reshapes() {
    let folder = Folder::new();
    let model = r#"{"partition_model": 1, "name": "flat", "inputs": [{"name": "x", "type": "f32[4,2,3]"}],
        "params": [{"name": "w", "type": "f32[6,2]"}],
        "nodes": [{"name": "flatten", "op": "reshape", "inputs": ["x"], "shape": [4, 6]},
                  {"name": "NAME", "op": "matmul", "inputs": ["flatten", "w"]}], "outputs": ["NAME"]}"#;
    fs::write(folder.path("flat.json"), model.replace("NAME", "dense")).unwrap();
    let rest = ["--data", "ones:records=8", "--loss", "mse"];
    let out = folder.ok(&train("flat.json", &rest));
    assert!(out.contains("dense (matmul)") && !out.contains("flatten"), "{out}");
    fs::write(folder.path("long.json"), model.replace("NAME", &"x".repeat(70_000))).unwrap();
    let out = folder.ok(&train("long.json", &rest));
    assert!(out.lines().all(|line| line.chars().count() < 200), "a line of any length");
}

#[test]
fn a_run_that_begins_does_no_harm_to_the_checkpoints_of_another() {
    let folder = folder();
    let run = |more: &[&'static str]| train("line.json", &[ONES, &["--checkpoints", "c"], more].concat());
    folder.ok(&run(&["--epochs", "3"]));
    let kept = || {
        let entries = fs::read_dir(folder.path("c")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let before = kept();
    let error = folder.fails(2, &run(&["--epochs", "1"]));
    assert!(error.contains("--checkpoints c") && error.contains("step-000000000006"), "{error}");
    assert!(error.contains("--resume"), "{error}");
    assert_eq!(kept(), before);
}

#[test]
fn a_run_that_goes_on_continues_its_history() {
    let folder = folder();
    for name in ["h.csv", "h.json"] {
        let checkpoints = format!("of {name}");
        let run = |count: &str, more: &[&str]| {
            let args = ["--epochs", count, "--checkpoints", &checkpoints, "--history", name];
            folder.ok(&train("line.json", &[ONES, &args, more].concat()))
        };
        run("2", &[]);
        run("4", &["--resume"]);
        let rows = partition::unstable::report::read_history(&folder.path(name)).unwrap();
        let of = |wanted: &str| -> Vec<f64> {
            rows.iter().flatten().filter(|(name, _)| name == wanted).map(|(_, value)| *value).collect()
        };
        assert_eq!(of("epoch"), [1.0, 2.0, 3.0, 4.0], "{name}");
        assert!(of("loss").windows(2).all(|pair| pair[1] < pair[0]), "{name}: {:?}", of("loss"));
    }
    fs::write(folder.path("h.csv"), "something else").unwrap();
    let args = ["--epochs", "5", "--checkpoints", "of h.csv", "--history", "h.csv", "--resume"];
    let failed = folder.run(&train("line.json", &[ONES, &args[..]].concat()));
    assert!(failed.code != 0 && failed.stderr.contains("no history"), "{}", failed.stderr);
    assert_eq!(fs::read_to_string(folder.path("h.csv")).unwrap(), "something else");
}

#[test]
fn a_history_of_many_epochs_is_whole_in_the_end() {
    let folder = folder();
    folder.ok(&train("line.json", &[ONES, &["--epochs", "3000", "--history", "h.csv"]].concat()));
    let text = fs::read_to_string(folder.path("h.csv")).unwrap();
    assert_eq!(text.lines().count(), 3001);
    assert!(text.lines().last().unwrap().starts_with("3000,6000,"));
}

#[test]
fn tensors_of_too_many_axes_are_refused_when_the_model_is_read() {
    let folder = Folder::new();
    let model = |axes: usize| {
        let ones = vec!["1"; axes - 1].join(", ");
        format!(
            r#"{{"partition_model": 1, "name": "wide", "inputs": [{{"name": "x", "type": "f32[4,{}]"}}],
            "params": [], "nodes": [{{"name": "y", "op": "relu", "inputs": ["x"]}}], "outputs": ["y"]}}"#,
            ones.replace(' ', "")
        )
    };
    fs::write(folder.path("wide.json"), model(33)).unwrap();
    let error = folder.fails(1, &["wide.json", "-d", "cpu"]);
    assert!(error.contains("more than 32 axes"), "{error}");
    fs::write(folder.path("wide.json"), model(32)).unwrap();
    folder.ok(&["run", "wide.json", "--init", "seed=1", "--steps", "1000"]);
}

#[test]
fn what_a_run_writes_is_tried_before_it_is_planned() {
    let folder = folder();
    fs::write(folder.path("named.json"), LINE.replace("\"y\"", &format!("\"{}\"", "y".repeat(70_000))))
        .unwrap();
    let run = ["--init", "seed=1", "--batch", "2"];
    for (code, model, rest, part) in [
        (1, "line.json", ["--outputs", "none/y.npz"], "none/y.npz"),
        (1, "line.json", ["--trace", "none/t.json"], "none/t.json"),
        (2, "named.json", ["--outputs", "y.npz"], "is too long for npz"),
    ] {
        let before = names(&folder);
        let error = folder.fails(code, &[&["run", model], &run[..], &rest[..]].concat());
        assert!(error.contains(part), "{rest:?}: {error}");
        assert_eq!(names(&folder), before);
    }
}

fn start(folder: &Folder, args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_partition"))
        .args(args)
        .current_dir(folder.path("."))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[cfg(unix)]
#[test]
fn a_signal_ends_a_training_with_all_that_it_had_and_its_own_code() {
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let folder = folder();
        let rest =
            ["--data", "random:records=4000000000", "--loss", "mse", "--batch", "8", "--checkpoints", "c"];
        let out =
            ["--checkpoint-every", "200", "-o", "w.npz", "--history", "h.csv", "--lr", "0", "--in-order"];
        let mut child = start(&folder, &train("line.json", &[&rest[..], &out].concat()));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains("checkpoint c")), "it begins");
        signal(&child, name);
        lines.for_each(drop);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        let weights = Arrays::open(&folder.path("w.npz")).unwrap().get("w").unwrap().unwrap();
        assert_eq!(weights.to_f32().unwrap(), [1.0; 6]);
        assert_eq!(fs::read_to_string(folder.path("h.csv")).unwrap().lines().count(), 2);
        let more = ["--resume", "--steps", "1"];
        let ran = folder.run(&train("line.json", &[&rest[..], &more].concat()));
        assert!(ran.code == 0 && ran.stderr.contains("resumes after step"), "{}", ran.stderr);
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_a_run_with_its_own_code() {
    let folder = folder();
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let args = [
            "run",
            "line.json",
            "--init",
            "seed=1",
            "--batch",
            "4",
            "--steps",
            "4000000000",
            "--outputs",
            "y.npz",
        ];
        let child = start(&folder, &args);
        std::thread::sleep(std::time::Duration::from_secs(2));
        signal(&child, name);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn results_that_cannot_be_printed_are_a_failure() {
    let folder = folder();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for args in [
        vec!["--help"],
        vec!["--version"],
        vec!["train", "--help"],
        train("line.json", &[ONES, &["-o", "w.npz"]].concat()),
    ] {
        let ran = Command::new(env!("CARGO_BIN_EXE_partition"))
            .args(&args)
            .current_dir(folder.path("."))
            .stdout(full())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{args:?}: {told}");
        assert!(told.contains("stdout"), "{args:?}: {told}");
    }
}

/// The values in brackets are those of keys that are not given: the same weights come of them.
#[test]
fn the_help_tells_the_defaults_of_optimizers_and_schedules() {
    let folder = folder();
    let help = folder.ok(&["train", "--help"]);
    let between =
        |from: &str, to: &str| help.split_once(from).unwrap().1.split_once(to).unwrap().0.to_owned();
    let weights = |option: &str, value: &str| {
        folder.ok(&train("line.json", &[ONES, &["--steps", "3", "-o", "w.npz", option, value]].concat()));
        fs::read(folder.path("w.npz")).unwrap()
    };
    let mut told = 0;
    for (option, text) in [
        ("--optimizer", between("Optimizers, with the values", "Schedules:")),
        ("--lr-schedule", between("Schedules:", "each also")),
    ] {
        for line in text.lines().filter(|line| line.contains('[')) {
            let spec = line.split_whitespace().next().unwrap();
            let (name, keys) = spec.trim_end_matches(']').split_once('[').unwrap();
            // What must be given is before the bracket.
            let name = name.replace('N', "2");
            let given = weights(option, &format!("{name}{keys}"));
            assert!(given == weights(option, &name), "{spec}");
            told += 1;
        }
    }
    assert_eq!(told, 9);
}

/// A transformer of a configuration, and records for it: ids, what is expected, and other inputs.
fn transformer(ids: &[i64], others: &[(&str, &[i64])]) -> Folder {
    let folder = Folder::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers");
    fs::copy(from.join("gpt2.config.json"), folder.path("config.json")).unwrap();
    let array = |values: &[i64]| Tensor::from_i64(vec![2, 3], values).unwrap();
    let expected = Tensor::from_f32(vec![2, 3, 23], &[0.5; 2 * 3 * 23]).unwrap();
    let mut arrays = vec![("input_ids".to_owned(), array(ids)), ("out_0".to_owned(), expected)];
    arrays.extend(others.iter().map(|(name, values)| ((*name).to_owned(), array(values))));
    write_npz(&folder.path("d.npz"), &arrays).unwrap();
    folder
}

const TRANSFORMER: [&str; 10] =
    ["train", "config.json", "--data", "d.npz", "--loss", "mse", "--batch", "2", "-o", "w.npz"];

#[test]
fn an_id_beyond_the_table_is_refused_in_training() {
    for (id, split) in [(-1, "0"), (23, "0"), (-1, "0.5")] {
        let folder = transformer(&[1, 2, 3, 4, id, 6], &[]);
        let batch = if split == "0" { "2" } else { "1" };
        let mut args = TRANSFORMER;
        args[7] = batch;
        let ran = folder.run(&[&args[..], &["--validation-split", split]].concat());
        let error = ran.stderr;
        assert_eq!(ran.code, 1, "{error}");
        assert!(error.contains(&format!("is {id}, outside 0..23 (vocab_size)")), "{split}: {error}");
    }
}

#[test]
fn a_mask_in_the_data_is_used_in_training() {
    let weights = |folder: &Folder, rest: &[&str]| {
        folder.ok(&[&TRANSFORMER[..], rest].concat());
        fs::read(folder.path("w.npz")).unwrap()
    };
    let ids = [1, 2, 3, 4, 5, 6];
    let mask = ("attention_mask", &[1, 1, 1, 0, 1, 1][..]);
    let masked = transformer(&ids, &[mask]);
    let used = weights(&masked, &[]);
    assert_eq!(used, weights(&masked, &["--with-input", "attention_mask"]));
    assert_ne!(used, weights(&transformer(&ids, &[]), &[]));
}

#[test]
fn another_separator_is_seen_in_the_names_of_columns() {
    let folder = folder();
    fs::write(folder.path("data.csv"), "a;b;c;target\n1;2;3;1\n4;5;6;0\n").unwrap();
    let own = ["--data", "data.csv", "--loss", "sparse:logits", "--batch", "2"];
    assert!(folder.fails(2, &train("line.json", &own)).contains("separator=semicolon"));
}

/// A class below 0 would be counted from the last one.
#[test]
fn a_class_that_there_is_not_is_named() {
    let folder = folder();
    for class in ["-1", "2"] {
        fs::write(folder.path("data.csv"), format!("a,b,c,target\n1,2,3,1\n4,5,6,{class}\n")).unwrap();
        let own = ["--data", "data.csv", "--loss", "sparse:logits", "--batch", "2", "--in-order"];
        let ran = folder.run(&train("line.json", &own));
        let said = format!(
            "line 3 (byte 21): target: an element is {class}, outside 0..2 (the classes of output y)"
        );
        assert!(ran.code == 1 && ran.stderr.contains(&said), "{}", ran.stderr);
    }
}
