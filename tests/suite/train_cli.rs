//! `partition train` from outside: what it refuses before it plans, what it shows, how it ends.

use std::collections::BTreeSet;
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
    fs::write(folder.path("d.csv"), "a,b,s,t\n0.3,-0.2,1,0\n0.1,0.4,1,1\n-2,0.2,0,1\n-1,-0.4,0,0\n").unwrap();
    let accuracy = |loss: &str| -> f64 {
        let data = "d.csv:input.x=a+b,target.target=s+t";
        let own = ["--data", data, "--loss", loss, "--batch", "4", "--steps", "1", "--lr", "0"];
        let text = folder.ok(&train("same.json", &[&own[..], &["--metric", "accuracy"]].concat()));
        let at = text.split("accuracy ").nth(1).unwrap_or_else(|| panic!("{text}"));
        at.split_whitespace().next().unwrap().parse().unwrap()
    };
    assert!((accuracy("binary:logits") - 1.0).abs() < 1e-6);
    // None of the scores is above one half.
    assert!((accuracy("binary") - 0.5).abs() < 1e-6);
}

/// The plan of a step says what the step is of, so that it is made anew from the network; a plan that says otherwise is
/// of another step.
#[test]
fn plans_of_training_steps_are_explained_and_checked_against_their_model() {
    let folder = folder();
    let checked = ["check", "step.json", "--model", "mlp.json"];
    fs::copy(example("mlp.json"), folder.path("mlp.json")).unwrap();
    let plan = |rest: &[&str]| {
        let own = ["-d", "2xcpu", "--loss", "mse", "--batch", "12", "--dry-run", "--plan", "step.json"];
        folder.ok(&train("mlp.json", &[&own[..], rest].concat()));
    };
    let ways: [&[&str]; 4] = [
        &[],
        &["--use", "all", "--optimizer", "adamw:weight_decay=0.1,clip_norm=1", "--metric", "accuracy"],
        &["--optimizer", "adam", "--microbatches", "3", "--freeze", "block0/*"],
        &["--precision", "bf16", "--use", "all"],
    ];
    for way in ways {
        plan(way);
        assert!(folder.ok(&checked).contains("and is of this model"), "{way:?}");
        folder.ok(&["explain", "step.json"]);
        assert!(folder.ok(&["explain", "step.json", "loss"]).contains("loss"), "{way:?}");
    }
    let text = fs::read_to_string(folder.path("step.json")).unwrap();
    let (own, other) = (r#""optimizer":"sgd""#, r#""optimizer":"adam""#);
    assert!(text.contains(own), "{text}");
    let other = text.replacen(own, other, 1);
    fs::write(folder.path("step.json"), other).unwrap();
    assert!(folder.fails(1, &checked).starts_with("error: step.json"));
}

#[test]
fn a_plan_of_replicas_or_of_a_pipeline_is_checked_and_explained_with_its_model() {
    let folder = folder();
    fs::copy("examples/mlp.json", folder.path("mlp.json")).unwrap();
    let plan = |way: &[&str]| {
        let base = ["train", "mlp.json", "--loss", "mse", "-d", "4xcpu", "--batch", "8", "--dry-run"];
        folder.ok(&[&base[..], &["--plan", "step.json"], way].concat());
    };
    let checked = ["check", "step.json", "--model", "mlp.json"];
    let ways: [&[&str]; 10] = [
        &["--replicas", "2"],
        &["--replicas", "2", "--shards", "4", "--transfer", "int8", "--freeze", "block0/*"],
        &["--replicas", "4", "--spare", "1", "--exchange", "tree", "--bucket", "1kB"],
        &["--replicas", "3", "--zero", "1", "--optimizer", "adam"],
        &["--replicas", "4", "--zero", "3", "--precision", "bf16"],
        &["--replicas", "2", "--devices-each", "2", "--zero", "2"],
        &["--replicas", "4", "--sync", "ps:round-robin"],
        &["--replicas", "3", "--sync", "async"],
        &["--parallel", "pipeline", "--microbatches", "4"],
        &["--parallel", "hybrid:2", "--schedule", "1f1b", "--microbatches", "2"],
    ];
    for way in ways {
        plan(way);
        assert!(folder.ok(&checked).contains("and is of this model"), "{way:?}");
        folder.ok(&["explain", "step.json"]);
        assert!(folder.ok(&["explain", "step.json", "block1/up_proj"]).contains("block1/up_proj"), "{way:?}");
    }
    let text = fs::read_to_string(folder.path("step.json")).unwrap();
    for (own, other, error) in [
        (r#""shards":4"#, r#""shards":2"#, "shard 2 of x, which mlp does not have"),
        (r#""shards":4"#, r#""shards":4000000000000"#, "the step has fewer nodes"),
        (r#""each":2"#, r#""each":9000000000000000000"#, "there are 4 devices"),
        (r#""exchange":"auto""#, r#""exchange":"fast""#, "there is no such way"),
        (r#""devices":[["#, r#""devices":[[],["#, "expected as many for each replica"),
        (r#""devices":[["cpu0""#, r#""devices":[["gpu0""#, "the plan has no device gpu0"),
        (r#""replicas":{"#, r#""other":{"#, "does not say which pipeline its step has"),
    ] {
        assert!(text.contains(own), "{own}: {text}");
        fs::write(folder.path("step.json"), text.replacen(own, other, 1)).unwrap();
        let ran = folder.run(&checked);
        assert!(ran.code > 0 && ran.stderr.contains(error), "{other}: {}", ran.stderr);
    }
}

/// Products of each sample with each other one: in parts of the batch it is another loss, which is told and not chosen.
#[test]
fn a_batch_whose_samples_meet_is_not_taken_in_parts_unasked() {
    let pairs = r#"{"partition_model":1,"name":"pairs","inputs":[{"name":"x","type":"f32[batch,3]"}],
        "params":[{"name":"w","type":"f32[3,3]","init":{"kind":"constant","value":0.1}}],
        "nodes":[{"name":"h","op":"matmul","inputs":["x","w"]},
         {"name":"t","op":"transpose","inputs":["h"],"perm":[1,0]},
         {"name":"scores","op":"matmul","inputs":["h","t"]},
         {"name":"out","op":"reduce","kind":"sum","inputs":["scores"],"axes":[1]}],"outputs":["out"]}"#;
    let folder = folder();
    fs::write(folder.path("pairs.json"), pairs).unwrap();
    let told = "scores is computed of several samples together";
    let loss = |model: &str, way: &[&str]| {
        let ran = folder.run(&train(model, &[ONES, &["-d", "2xcpu:flops=1MFLOP/s"], way].concat()));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let line = ran.stdout.lines().find(|line| line.starts_with("epoch")).unwrap();
        (line.split_whitespace().nth(3).unwrap().to_owned(), ran.stderr.contains(told))
    };
    let (whole, _) = loss("pairs.json", &[]);
    for way in [&["--replicas", "2"][..], &["--microbatches", "2"], &["--parallel", "pipeline"]] {
        let (other, is_told) = loss("pairs.json", way);
        assert!(is_told && other != whole, "{way:?}: {other} {whole}");
    }
    let (same, is_told) = loss("pairs.json", &["--parallel", "auto", "--exact"]);
    assert!(!is_told && same == whole, "{same} {whole}");
    assert!(!loss("line.json", &["--replicas", "2"]).1);
}

/// A loss of probabilities learns nothing of logits, and one of logits little of probabilities.
#[test]
fn an_end_that_the_loss_is_not_for_is_told() {
    let folder = folder();
    let soft = LINE.replace("\"outputs\": [\"y\"]", "\"outputs\": [\"p\"]").replace(
        "\"inputs\": [\"x\", \"w\"]}]",
        "\"inputs\": [\"x\", \"w\"]}, {\"name\": \"p\", \"op\": \"softmax\", \"inputs\": [\"y\"], \"axis\": 1}]",
    );
    fs::write(folder.path("soft.json"), soft).unwrap();
    let told = |model: &str, loss: &str| {
        let ran = folder
            .run(&train(model, &["--data", "ones:records=4", "--loss", loss, "--batch", "4", "-d", "cpu"]));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stderr
    };
    assert!(told("line.json", "sparse").contains("--loss sparse:logits"));
    assert!(told("line.json", "binary").contains("--loss binary:logits"));
    assert!(told("soft.json", "sparse:logits").contains("takes another softmax"));
    for (model, loss) in [("line.json", "sparse:logits"), ("soft.json", "sparse"), ("line.json", "mse")] {
        let text = told(model, loss);
        assert!(!text.contains("takes"), "{model} {loss}: {text}");
    }
}

/// What ends with the logarithm of a softmax has the cross-entropy of the softmax, and learns as that does.
#[test]
fn logarithms_of_probabilities_are_taken_for_what_they_are() {
    let folder = folder();
    let lines = "x,y,z,c\n0.3,-0.2,1,0\n0.1,0.4,1,1\n-2,0.2,0,1\n-1,-0.4,0.5,0\n";
    fs::write(folder.path("d.csv"), lines).unwrap();
    let node = r#"{"name": "p", "op": "softmax", "inputs": ["y"], "axis": 1, "log": true}"#;
    let end = LINE.replace("\"w\"]}]", &format!("\"w\"]}}, {node}]")).replace("[\"y\"]}", "[\"p\"]}");
    fs::write(folder.path("end.json"), end).unwrap();
    let losses = |model: &str, loss: &str| -> Vec<String> {
        let data =
            ["--data", "d.csv:input.x=x+y+z,target.target=c", "--in-order", "--batch", "4", "-d", "cpu"];
        let text =
            folder.ok(&train(model, &[&data[..], &["--loss", loss, "--epochs", "3", "--lr", "1"]].concat()));
        let lines = text.lines().filter(|line| line.starts_with("epoch"));
        lines.filter_map(|line| Some(line.split_whitespace().nth(3)?.to_owned())).collect()
    };
    let expected = losses("line.json", "sparse:logits");
    assert!(expected.len() == 3 && expected[0] != expected[2], "{expected:?}");
    assert_eq!(losses("end.json", "sparse"), expected);
}

/// Classes are along the last axis; those of a softmax along another one would be taken for something else.
#[test]
fn classes_along_another_axis_are_refused() {
    let folder = folder();
    let planes = r#"{"partition_model": 1, "name": "planes", "inputs": [{"name": "x", "type": "f32[batch,3,3]"}],
        "params": [{"name": "w", "type": "f32[3,3]", "init": {"kind": "constant", "value": 1}}],
        "nodes": [{"name": "y", "op": "mul", "inputs": ["x", "w"]},
            {"name": "p", "op": "softmax", "inputs": ["y"], "axis": 1}], "outputs": ["p"]}"#;
    fs::write(folder.path("planes.json"), planes).unwrap();
    let step = ["--data", "ones:records=4", "--loss", "sparse", "--batch", "4", "-d", "cpu"];
    let ran = folder.run(&train("planes.json", &step));
    assert!(ran.code != 0 && ran.stderr.contains("its classes are along axis 1"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--loss sparse:axis=1"), "{}", ran.stderr);
    fs::write(folder.path("last.json"), planes.replace("\"axis\": 1", "\"axis\": 2")).unwrap();
    folder.ok(&train("last.json", &step));
}

/// Nothing is learned, so that no epoch is better than the first.
#[test]
fn patience_goes_on_where_a_run_stopped() {
    let last_epoch = |stops: &[&str]| {
        let folder = folder();
        let mut last = 0;
        for epochs in stops {
            let way = [
                "--lr",
                "0",
                "--patience",
                "3",
                "--checkpoints",
                "kept",
                "--resume=auto",
                "--epochs",
                epochs,
            ];
            let out = folder.ok(&train("line.json", &[ONES, &way].concat()));
            last = out
                .lines()
                .filter(|line| line.starts_with("epoch"))
                .fold(last, |_, line| line["epoch ".len()..].split('/').next().unwrap().parse().unwrap());
        }
        last
    };
    assert_eq!(last_epoch(&["9"]), 4);
    for stops in [&["1", "9"][..], &["2", "9"], &["2", "3", "9"], &["4", "9"]] {
        assert_eq!(last_epoch(stops), 4, "{stops:?}");
    }
}

#[test]
fn what_training_cannot_heed_is_refused() {
    let folder = folder();
    for format in ["q8_0", "q4_0"] {
        let own = [ONES, &["--weights-as", format]].concat();
        let error = folder.fails(2, &train("line.json", &own));
        assert!(error.contains("--weights-as: weights are trained"), "{error}");
    }
    // What only replicas have, where there are none of the kind.
    let ways: [(&[&str], &str); 12] = [
        (&["--parallel", "data", "--zero", "3"], "cannot be used with '--zero <STAGE>'"),
        (&["--parallel", "model", "--sync", "ps"], "cannot be used with '--sync <WAY>'"),
        (&["--parallel", "data", "--devices-each", "2"], "cannot be used with '--devices-each <K>'"),
        (&["--parallel", "auto", "--spare", "1"], "cannot be used with '--spare <B>'"),
        (&["--parallel", "model", "--shards", "2"], "--shards: there are no replicas"),
        (&["--parallel", "split", "--transfer", "f16"], "--transfer: there are no replicas"),
        (&["--exchange", "ring"], "--exchange: there are no replicas"),
        (&["--replicas", "2", "--staleness", "2"], "--staleness: replicas that wait for one another"),
        (&["--replicas", "2", "--sync", "async", "--zero", "1"], "--zero: with --sync async nobody waits"),
        (&["--replicas", "2", "--sync", "async", "--bucket", "1MB"], "--bucket: with --sync async"),
        (&["--replicas", "2", "--member", "1:lr=0.1"], "cannot be used with '--member <N:KEY=VALUE>'"),
        (&["--parallel", "auto", "--microbatches", "5"], "does not divide into 5 parts"),
    ];
    for (rest, part) in ways {
        let ran = folder.run(&train("line.json", &[ONES, rest, &["-d", "2xcpu"]].concat()));
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{rest:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{rest:?}: {}", ran.stderr);
    }
}

#[test]
fn a_pipeline_has_as_many_microbatches_as_are_asked_for_or_the_best_of_several_numbers() {
    let folder = folder();
    let dry = |rest: &[&str]| {
        let own = ["--dry-run", "-d", "2xcpu", "--loss", "mse", "--parallel", "pipeline"];
        folder.ok(&train("line.json", &[&own[..], rest].concat()))
    };
    let asked = dry(&["--batch", "12", "--microbatches", "3"]);
    assert!(asked.contains("3 microbatches"), "{asked}");
    let compared = dry(&["--batch", "12"]);
    assert!(compared.contains("pipeline x4") && compared.contains("pipeline x2"), "{compared}");
    // A batch that nothing divides is cut unevenly.
    let uneven = dry(&["--batch", "7"]);
    assert!(uneven.contains("pipeline x4") && uneven.contains("pipeline x2"), "{uneven}");
}

#[test]
fn a_record_of_a_class_that_is_not_there_is_told_with_its_line_or_left_out() {
    let folder = folder();
    fs::write(folder.path("bad.csv"), "a,b,c,t\n1,2,3,0\n1,2,3,-1\n1,0,3,1\n1,2,3,2\n").unwrap();
    let data = "bad.csv:input.x=a..c,target.target=t";
    let own = ["--data", data, "--loss", "sparse:logits", "--batch", "2", "-d", "cpu"];
    let error = folder.fails(1, &train("line.json", &own));
    assert!(error.contains("bad.csv: line 3 (byte 16): target: an element is -1, outside 0..2"), "{error}");
    let skipped = folder.ok(&train("line.json", &[&own[..], &["--on-bad-record", "skip"]].concat()));
    assert!(skipped.contains("epoch 1"), "{skipped}");
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is_planned() {
    let folder = folder();
    fs::write(folder.path("file"), "kept").unwrap();
    let before = names(&folder);
    for (code, rest, part) in [
        (2, &["-o", "w.pt"][..], ".safetensors or .npz"),
        (2, &["-o", "w.h5"], "weights of Keras are read, not written"),
        (2, &["-o", "w.keras"], ".safetensors or .npz"),
        (2, &["-o", "w"], "does not say in which format"),
        (2, &["--history", "h.txt"], ".csv or .json"),
        (1, &["-o", "none/w.npz"], "none/w.npz"),
        (1, &["--plan", "none/p.json"], "none/p.json"),
        (1, &["--report", "none/r.html"], "none/r.html"),
        (1, &["--history", "none/h.csv"], "none/h.csv"),
        (2, &["--checkpoints", "file"], "--checkpoints file: file is no folder"),
        (2, &["--checkpoints", "file/below"], "is no folder"),
        (2, &["--tensorboard", "file"], "is no folder"),
        (2, &["-o", "a.npz", "--plan", "./a.npz"], "-o writes there too"),
        (2, &["--plan", "line.json"], "this file is read"),
        (2, &["--metric", "taste"], "taste"),
        (2, &["--checkpoints", "c", "--checkpoint-every", "soon"], "--checkpoint-every soon"),
    ] {
        let error = folder.fails(code, &train("line.json", &[ONES, rest].concat()));
        assert!(error.contains(part), "{rest:?}: {error}");
        assert_eq!(names(&folder), before, "{rest:?} left something behind");
    }
    assert_eq!(fs::read_to_string(folder.path("file")).unwrap(), "kept");
    // A name that a form cannot hold.
    fs::write(folder.path("meta.json"), LINE.replace("\"w\"", "\"__metadata__\"")).unwrap();
    let long = LINE.replace("\"w\"", &format!("\"{}\"", "w".repeat(70_000)));
    fs::write(folder.path("long.json"), long).unwrap();
    for (model, rest, part) in [
        ("meta.json", &["-o", "w.safetensors"][..], "is not an array's in safetensors"),
        ("meta.json", &["--checkpoints", "c"], "is not an array's in safetensors"),
        ("long.json", &["-o", "w.npz"], "is too long for npz"),
    ] {
        let error = folder.fails(2, &train(model, &[ONES, rest].concat()));
        assert!(error.contains(part), "{rest:?}: {error}");
    }
    folder.ok(&train("meta.json", &[ONES, &["-o", "w.npz"]].concat()));
    folder.ok(&train("long.json", &[ONES, &["-o", "w.safetensors"]].concat()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_without_room_is_told_before_planning() {
    let folder = folder();
    // A million numbers on a file system that has no room for any.
    let big = LINE.replace("f32[3,2]", "f32[3,350000]");
    fs::write(folder.path("big.json"), big).unwrap();
    let rest = ["--checkpoints", "/sys/kernel", "--data", "ones:records=8", "--loss", "mse"];
    let ran = folder.run(&train("big.json", &rest));
    assert!(ran.code != 0 && ran.stdout.is_empty(), "{}", ran.stderr);
    assert!(ran.stderr.contains("--checkpoints /sys/kernel"), "{}", ran.stderr);
}

#[test]
fn data_that_does_not_do_is_told_before_planning_with_the_way_out() {
    let folder = folder();
    for (name, text) in [
        ("words.csv", "a,b,c,kind\n1,2,3,cat\n4,5,6,dog\n"),
        ("classes.csv", "a,b,c,kind\n1,2,3,0\n4,5,6,1\n"),
        ("short.csv", "a,b,c,d,e\n1,2,3,4,5\n1,2,3\n"),
        ("bad.csv", "a,b,c,d,e\n1,2,3,4\n"),
    ] {
        fs::write(folder.path(name), text).unwrap();
    }
    let x = Tensor::from_f32(vec![3, 3], &[1.0; 9]).unwrap();
    let y = Tensor::from_f32(vec![3, 2], &[1.0; 6]).unwrap();
    write_npz(&folder.path("xy.npz"), &[("x".into(), x.clone()), ("y".into(), y)]).unwrap();
    write_npz(&folder.path("x.npz"), &[("x".into(), x)]).unwrap();
    for (code, rest, part) in [
        (1, &["--data", "absent.csv", "--loss", "mse"][..], "absent.csv"),
        (2, &["--data", "x.npz", "--loss", "mse"], "no array is called target"),
        (2, &["--data", "classes.csv", "--loss", "mse"], "onehot.target=2, or --loss sparse"),
        (1, &["--data", "words.csv", "--loss", "sparse"], "classes.target=FIRST+SECOND"),
        (
            1,
            &["--data", "words.csv:classes.target=cat+cow", "--loss", "sparse", "--in-order", "--batch", "1"],
            "\"dog\" is none of its classes: cat, cow",
        ),
        (1, &["--data", "bad.csv:target=d+e", "--loss", "mse"], "4 cells, not 5"),
        (2, &["--data", "xy.npz:target=z", "--loss", "mse"], "no array z"),
        (
            2,
            &["--data", "xy.npz", "--loss", "mse", "--batch", "4", "--drop-remainder"],
            "fewer records than one batch of 4",
        ),
        (2, &["--data", "xy.npz", "--loss", "mse", "-o", "./xy.npz"], "this file is read"),
        (
            2,
            &["--data", "classes.csv", "--loss", "sparse", "--lr-schedule", "cosine"],
            "steps=N in the schedule",
        ),
        (1, &["--data", "xy.npz", "--loss", "mse", "--validation-data", "none.npz"], "none.npz"),
    ] {
        let ran = folder.run(&train("line.json", rest));
        assert!(ran.code == code && ran.stderr.contains(part), "{rest:?}: {} {}", ran.code, ran.stderr);
        // What the first record shows is told before the table of layers.
        assert!(ran.stdout.is_empty() || part.contains("dog"), "{rest:?}: {}", ran.stdout);
    }
    folder.ok(&train("line.json", &["--data", "words.csv:classes.target=cat+dog", "--loss", "sparse"]));
    folder.ok(&train("line.json", &["--data", "classes.csv:onehot.target=2", "--loss", "mse"]));
}

#[test]
fn losses_and_optimizers_are_known_by_what_people_call_them() {
    let folder = folder();
    let data = &["--data", "ones:records=8", "--batch", "4"];
    for loss in ["MSE", "MSELoss", "Mean-Squared-Error", "L1", "BCEWithLogitsLoss"] {
        folder.ok(&train("line.json", &[&data[..], &["--loss", loss]].concat()));
    }
    for (rest, part) in [
        (&["--loss", "cross_entropy"][..], "sparse where targets are class numbers"),
        (&["--loss", "msee"], "did you mean `mse`?"),
        (&["--loss", "mse", "--optimizer", "adam:lr="], "the learning rate is --lr RATE"),
        (&["--loss", "mse", "--optimizer", "adam:lr=0.1"], "the learning rate is --lr RATE"),
        (&["--loss", "mse", "--optimizer", "adam:beta1="], "the value of beta1 is missing"),
        (&["--loss", "mse", "--optimizer", "adam:gamma=1"], "beta1, beta2, epsilon, weight_decay"),
    ] {
        let error = folder.fails(2, &train("line.json", &[&data[..], rest].concat()));
        assert!(error.contains(part), "{rest:?}: {error}");
    }
}

#[test]
fn going_on_needs_a_checkpoint_or_says_that_it_may_begin() {
    let folder = folder();
    fs::create_dir(folder.path("empty")).unwrap();
    for name in ["empty", "absent"] {
        let error =
            folder.fails(2, &train("line.json", &[ONES, &["--checkpoints", name, "--resume"]].concat()));
        assert!(
            error.contains(name) && error.contains("no checkpoint") && error.contains("--resume=auto"),
            "{error}"
        );
    }
    assert!(!folder.path("absent").exists());
    let auto = |epochs| [ONES, &["--checkpoints", "c", "--resume=auto", "--epochs", epochs]].concat();
    let first = folder.run(&train("line.json", &auto("1")));
    assert!(first.code == 0 && first.stderr.contains("the run begins"), "{}", first.stderr);
    let second = folder.run(&train("line.json", &auto("2")));
    assert!(
        second.stderr.contains("resumes after step 2") && second.stdout.contains("epoch 2/2"),
        "{}",
        second.stderr
    );
    let third = folder.run(&train("line.json", &auto("2")));
    assert!(third.code == 0 && third.stderr.contains("all 2 epochs were done before"), "{}", third.stderr);
    assert!(!third.stdout.contains("loss"), "{}", third.stdout);
}

/// Within an epoch the batches are those of the run that wrote the checkpoint; at its end they may be others.
#[test]
fn a_run_goes_on_within_an_epoch_with_the_same_batches_alone() {
    let folder = folder();
    let of = |batch: &'static str, rest: &[&'static str]| -> Vec<&'static str> {
        [&["--data", "ones:records=32", "--loss", "mse", "--batch", batch], rest].concat()
    };
    let begin = |steps: &'static str| {
        let _ = fs::remove_dir_all(folder.path("c"));
        folder.ok(&train("line.json", &of("4", &["--checkpoints", "c", "--steps", steps])));
    };
    let resume = ["--checkpoints", "c", "--resume", "--epochs", "2"];
    begin("3");
    for (batch, more, option) in [
        ("8", &[][..], "--batch"),
        ("4", &["--seed", "7"], "--seed"),
        ("4", &["--in-order"], "--in-order"),
        ("4", &["--shuffle-window", "5"], "--shuffle-window"),
        ("4", &["--validation-split", "0.25"], "--validation-split"),
    ] {
        let ran = folder.run(&train("line.json", &of(batch, &[&resume, more].concat())));
        let told = ran.stderr;
        assert!(ran.code == 2 && told.contains("--resume: the checkpoint is within an epoch"), "{told}");
        assert!(told.contains(&format!("with another {option}")), "{told}");
    }
    let ran = folder.run(&train("line.json", &of("4", &resume)));
    assert!(ran.code == 0 && ran.stderr.contains("resumes after step 3"), "{}", ran.stderr);
    begin("8");
    let ran = folder.run(&train("line.json", &of("8", &[&resume[..], &["--seed", "7"]].concat())));
    assert!(ran.code == 0 && ran.stderr.contains("resumes after step 8"), "{}", ran.stderr);
}

/// What is told of an epoch is of all its steps, also of those before the checkpoint that the run goes on from.
#[test]
fn an_epoch_that_a_run_goes_on_within_is_measured_whole() {
    let folder = folder();
    let run = |name: &str, rest: &[&str]| {
        let (kept, history) = (format!("of {name}"), format!("{name}.csv"));
        let own = ["--data", "random:records=32", "--loss", "mse", "--batch", "4", "--metric", "mae"];
        let files = ["--checkpoints", &kept, "--history", &history];
        folder.ok(&train("line.json", &[&own[..], &files[..], rest].concat()));
        partition::unstable::report::read_history(&folder.path(&history)).unwrap()
    };
    let whole = run("whole", &["--epochs", "2"]);
    for steps in ["3", "11"] {
        let name = format!("cut at {steps}");
        run(&name, &["--epochs", "2", "--steps", steps]);
        let rows = run(&name, &["--epochs", "2", "--resume"]);
        for wanted in ["loss", "mae"] {
            let last = |rows: &[Vec<(String, f64)>]| {
                let row = rows.last().unwrap();
                row.iter().find(|(name, _)| name == wanted).unwrap().1
            };
            assert_eq!(last(&rows), last(&whole), "{wanted}, cut at {steps}");
        }
    }
}

/// Replicas divide what they sum by a factor that is always 1 in bf16; a checkpoint is the same without them.
#[test]
fn a_run_in_bf16_goes_on_with_replicas_and_without() {
    let folder = folder();
    let of = |replicas: bool, rest: &[&'static str]| -> Vec<&'static str> {
        let devices: &[&str] = if replicas { &["-d", "2xcpu", "--replicas", "2"] } else { &[] };
        [ONES, &["--precision", "bf16", "--validation-split", "0"], devices, rest].concat()
    };
    for (name, before) in [("one", false), ("two", true)] {
        let rest = ["--checkpoints", name, "--steps", "1"];
        folder.ok(&train("line.json", &of(before, &rest)));
        let rest = ["--checkpoints", name, "--resume", "--epochs", "2"];
        let ran = folder.run(&train("line.json", &of(!before, &rest)));
        assert!(ran.code == 0 && ran.stderr.contains("resumes after step 1"), "{name}: {}", ran.stderr);
        assert!(ran.stdout.contains("epoch 2/2"), "{name}: {}", ran.stdout);
    }
}

/// A checkpoint behind the last batch of an epoch: what is left of that is nothing, and has no loss.
#[test]
fn an_epoch_without_batches_has_no_loss() {
    let folder = folder();
    let rest = [
        "--data",
        "ones:records=10",
        "--loss",
        "mse",
        "--batch",
        "4",
        "--drop-remainder",
        "--checkpoints",
        "c",
    ];
    let cut = folder.ok(&train("line.json", &[&rest[..], &["--steps", "2"]].concat()));
    assert!(cut.contains("epoch 1/1") && cut.contains("loss"), "{cut}");
    let ran = folder.run(&train("line.json", &[&rest[..], &["--resume", "--epochs", "2"]].concat()));
    assert!(ran.code == 0 && ran.stderr.contains("no batch was left of epoch 1"), "{}", ran.stderr);
    assert!(!ran.stdout.contains("0.000000") && !ran.stdout.contains("epoch 1/2"), "{}", ran.stdout);
    assert!(ran.stdout.contains("epoch 2/2"), "{}", ran.stdout);
}

#[test]
fn a_checkpoint_that_is_due_at_the_end_of_an_epoch_is_written_once() {
    let folder = folder();
    let rest = ["--checkpoints", "c", "--checkpoint-every", "1", "--epochs", "2", "--validation-split", "0"];
    folder.ok(&train("line.json", &[ONES, &rest].concat()));
    let mut names: Vec<String> = fs::read_dir(folder.path("c"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("step-"))
        .collect();
    names.sort();
    assert!(names.iter().all(|name| name.len() == "step-000000000001".len()), "{names:?}");
    assert!(names.contains(&"step-000000000004".to_owned()) && names.len() >= 3, "{names:?}");
}

/// The loss of one step, by hand: inputs of ones and weights of ones give 3, targets are 1.
#[test]
fn a_run_of_one_step_prints_its_loss_and_what_a_step_took() {
    let folder = folder();
    let out = folder.ok(&train("line.json", &[ONES, &["--steps", "1", "--epochs", "3"]].concat()));
    assert!(out.contains("epoch 1/3, cut short at step 1  loss 4.000000"), "{out}");
    let line = out.lines().find(|line| line.starts_with("a step: measured ")).expect("what a step took");
    assert!(line.contains(", predicted "), "{line}");
    let whole = folder.ok(&train("line.json", &[ONES, &["--steps", "2", "--epochs", "3"]].concat()));
    assert!(whole.contains("epoch 1/3  loss "), "{whole}");
}

#[test]
fn progress_is_a_line_every_few_seconds_where_there_is_no_terminal() {
    let folder = folder();
    let rest = [
        "--data",
        "random:records=4000000000",
        "--loss",
        "mse",
        "--batch",
        "64",
        "--in-order",
        "--run-limit",
        "4s",
    ];
    let ran = folder.run(&train("line.json", &rest));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let line = ran.stderr.lines().find(|line| line.contains("samples/s")).expect("a line of progress");
    for part in ["note: epoch 1/1  step ", "/62500000  loss ", " left"] {
        assert!(line.contains(part), "{line}");
    }
    assert!(ran.stdout.contains("cut short"), "{}", ran.stdout);
}

#[test]
fn devices_without_work_are_told_and_a_forced_way_is_the_one_that_was_compared() {
    let folder = folder();
    let mlp = example("mlp.json");
    let on = |rest: &[&str]| {
        let all = [&["-d", "4xcpu:cores=1", "--effort", "fast", "--lr", "0"], ONES, rest].concat();
        let ran = folder.run(&train(&mlp, &all));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran
    };
    let plain = on(&[]);
    assert!(
        plain.stderr.contains("one of 4 devices") && plain.stderr.contains("--parallel auto"),
        "{}",
        plain.stderr
    );
    let used = |out: &str| {
        let line =
            out.lines().find(|line| line.starts_with("a step: ") && line.contains(" devices")).unwrap();
        line.split(" of 4 devices").next().unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    let auto = on(&["--parallel", "auto"]).stdout;
    let row = auto
        .lines()
        .find(|line| line.get(2..).is_some_and(|line| line.starts_with("model ")))
        .expect("a row");
    let model = on(&["--parallel", "model"]).stdout;
    assert_eq!(
        row.split_whitespace().skip_while(|word| *word != "model").nth(1).unwrap(),
        used(&model),
        "{row}"
    );
}

/// Halves, and a batch in parts, are of each way as they are of the run.
#[test]
fn every_way_to_spread_is_planned_as_it_is_trained() {
    let folder = Folder::new();
    let table = |rest: &[&str]| {
        let spread =
            ["-d", "2xcpu:cores=1", "--dry-run", "--parallel", "auto", "--batch", "8", "--loss", "mse"];
        let ran =
            folder.run(&[&["train", &example("mlp.json"), "--optimizer", "sgd"][..], &spread, rest].concat());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let is_row = |line: &&str| line.get(2..).is_some_and(|line| line.starts_with("one device"));
        let row = ran.stdout.lines().find(is_row).expect("a row").to_owned();
        (ran.stdout, row)
    };
    for half in ["bf16", "f16"] {
        let (all, _) = table(&["--precision", half]);
        assert!(!all.contains("cannot") && all.contains("pipeline"), "{all}");
    }
    // Of the same work a part takes a quarter of the memory that a batch takes beside parameters.
    let arena = |row: &str| row.split_whitespace().rev().take(2).map(str::to_owned).collect::<Vec<_>>();
    let [whole, parts] = [&[][..], &["--microbatches", "4"]].map(|rest| arena(&table(rest).1));
    assert_ne!(whole, parts);
}

/// `y[b, s, 0] = x[b, s, 0] + x[b, s, 1]`, in sequences of any length.
const SEQUENCE: &str = r#"{"partition_model": 1, "name": "seq", "inputs": [{"name": "x", "type": "f32[batch,seq,2]"}],
    "params": [{"name": "w", "type": "f32[2,1]", "init": {"kind": "constant", "value": 1}}],
    "nodes": [{"name": "y", "op": "matmul", "inputs": ["x", "w"]}], "outputs": ["y"]}"#;

#[test]
fn open_dimensions_are_as_large_as_the_data_has_them() {
    let folder = Folder::new();
    fs::write(folder.path("seq.json"), SEQUENCE).unwrap();
    let values: Vec<f32> = (0..6 * 5 * 2).map(|at| at as f32 / 16.0 - 1.0).collect();
    let x = Tensor::from_f32(vec![6, 5, 2], &values).unwrap();
    let y = Tensor::from_f32(vec![6, 5, 1], &[0.5; 30]).unwrap();
    write_npz(&folder.path("d.npz"), &[("x".into(), x), ("y".into(), y)]).unwrap();
    let lines = values.chunks(10).map(|row| {
        let cells: Vec<String> = row.iter().map(f32::to_string).chain((0..5).map(|_| "0.5".into())).collect();
        cells.join(",") + "\n"
    });
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

/// Steps of all runs together: none are left, and what is there stays.
#[test]
fn a_run_that_goes_on_beyond_its_steps_says_so() {
    let folder = folder();
    let run = |more: &[&str]| {
        let args = ["--epochs", "9", "--checkpoints", "c", "--steps", "2", "--history", "h.csv"];
        folder.run(&train("line.json", &[ONES, &args, more].concat()))
    };
    assert_eq!(run(&[]).code, 0);
    let before = fs::read(folder.path("h.csv")).unwrap();
    let again = run(&["--resume"]);
    assert!(again.code == 0 && again.stderr.contains("more --steps go on"), "{}", again.stderr);
    assert_eq!(fs::read(folder.path("h.csv")).unwrap(), before);
    fs::remove_file(folder.path("h.csv")).unwrap();
    assert_eq!(run(&["--resume"]).code, 0);
    assert!(!folder.path("h.csv").exists());
}

/// Shards of what the optimizer keeps do not keep the last batch of an epoch, which is smaller, from being trained on.
#[test]
fn shards_of_the_state_train_on_the_last_batch_too() {
    let folder = folder();
    let history = |more: &[&str]| {
        let data =
            ["--data", "random:records=7", "--loss", "mse", "--batch", "4", "--in-order", "--epochs", "2"];
        let adam = ["--optimizer", "adam", "--lr", "0.1", "--history", "h.csv"];
        folder.ok(&train("line.json", &[&data[..], &adam, more].concat()));
        let rows = partition::unstable::report::read_history(&folder.path("h.csv")).unwrap();
        let of = |wanted: &str| -> Vec<f64> {
            rows.iter().flatten().filter(|(name, _)| name == wanted).map(|(_, value)| *value).collect()
        };
        (of("step"), of("loss"))
    };
    let (steps, losses) = history(&["-d", "cpu"]);
    assert_eq!(steps, [2.0, 4.0]);
    for stage in ["1", "2", "3"] {
        let (own, found) = history(&["-d", "2xcpu", "--replicas", "2", "--zero", stage]);
        assert_eq!(own, steps, "stage {stage}");
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
        assert!(losses.iter().zip(&found).all(near), "stage {stage}: {losses:?}, {found:?}");
    }
}

/// What the loss does not follow from is written as it was.
#[test]
fn what_is_written_has_parameters_that_nothing_trains() {
    let folder = folder();
    let model = LINE.replace(
        r#""params": ["#,
        r#""params": [{"name": "aux", "type": "f32[3,2]", "init": {"kind": "constant", "value": 7}},"#,
    );
    let model = model
        .replace(r#""nodes": ["#, r#""nodes": [{"name": "side", "op": "matmul", "inputs": ["x", "aux"]},"#);
    fs::write(folder.path("side.json"), model).unwrap();
    folder.ok(&["run", "side.json", "--init", "seed=1"]);
    folder.ok(&train("side.json", &[ONES, &["-o", "w.npz"]].concat()));
    let arrays = Arrays::open(&folder.path("w.npz")).unwrap();
    let names: BTreeSet<&str> = arrays.names().iter().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["w", "aux"]));
}

/// Data that is not finite is told of as such, and a report says that the run failed.
#[test]
fn data_that_is_not_finite_is_not_blamed_on_the_rate() {
    let folder = folder();
    fs::write(folder.path("d.csv"), "x0,x1,x2,y0,y1\n1,2,3,4,5\n1,nan,3,4,5\n").unwrap();
    for more in [&[][..], &["--check-numerics"]] {
        let args = ["--data", "d.csv:input=x0..x2,target=y0..y1", "--loss", "mse", "--report", "r.html"];
        let failed = folder.run(&train("line.json", &[&args[..], more].concat()));
        assert_eq!(failed.code, 1);
        assert!(
            failed.stderr.contains("holds NaN: element") && failed.stderr.contains("mend the data"),
            "{}",
            failed.stderr
        );
        assert!(!failed.stderr.contains("--lr"), "{}", failed.stderr);
        let page = fs::read_to_string(folder.path("r.html")).unwrap();
        assert!(page.contains("The run failed:"));
    }
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
        let data = ["--data", "random:records=4000000000", "--in-order", "--batch", "8"];
        let rest = [&data[..], &["--loss", "mse", "--checkpoints", "c"]].concat();
        let out = ["--checkpoint-every", "200", "-o", "w.npz", "--history", "h.csv", "--lr", "0"];
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
            "line 3 (byte 21): target: an element is {class}, outside 0..2 (the classes of output y; \
             --loss sparse:ignore_class=C leaves out class C)"
        );
        assert!(ran.code == 1 && ran.stderr.contains(&said), "{}", ran.stderr);
    }
}
