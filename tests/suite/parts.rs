//! Steps whose batch has parts that are not alike, against PyTorch (`scripts/torch_steps.py`): targets of a class that is
//! left out, and statistics that each part moves. Targets of a hinge.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use partition::unstable::ir::Tensor;
use partition::unstable::load::weights::Arrays;
use partition::unstable::state::write_weights;
use serde::Deserialize;

use crate::cli::Folder;

const LOSS: &str = "sparse:logits,ignore_class=-100";
const RECORDS: &str = "input=x,target=t,list.input=space,list.target=space";

/// A network of `scripts/torch_steps.py`, and what it has become in PyTorch.
#[derive(Deserialize)]
struct Steps {
    losses: Vec<f64>,
    arrays: BTreeMap<String, Vec<f64>>,
}

fn stored() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/steps")
}

fn steps(name: &str) -> Steps {
    let text = std::fs::read_to_string(stored().join("steps.json")).unwrap();
    serde_json::from_str::<BTreeMap<String, Steps>>(&text).unwrap().remove(name).unwrap()
}

fn program(name: &str) -> String {
    stored().join(format!("{name}.pt2")).display().to_string()
}

fn numbers(count: usize, seed: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |at| (((at * 37 + seed * 11) % 29) as f32 - 14.0) / 16.0)
}

/// The targets of a step, of which every third is ignored, and in the third step half of the batch.
fn classes(step: usize) -> impl Iterator<Item = i64> {
    (0..24).map(move |at| match (at + step) % 3 {
        0 => -100,
        _ if step == 2 && at < 12 => -100,
        _ => ((at * 7 + step * 5) % 6) as i64,
    })
}

/// The records of all steps, how they are trained on, and what the loss of each step weighs.
fn records(name: &str, folder: &Folder) -> (Vec<String>, Vec<f64>) {
    let arrays = match name {
        "ignored" => {
            let x: Vec<f32> = (0..4).flat_map(|step| numbers(72, step)).collect();
            let t: Vec<i64> = (0..4).flat_map(classes).collect();
            [Tensor::from_f32(vec![24, 4, 3], &x), Tensor::from_i64(vec![24, 4], &t)]
        }
        _ => {
            let x: Vec<f32> = (0..3).flat_map(|step| numbers(24, step)).collect();
            let t: Vec<f32> = (0..3).flat_map(|step| numbers(16, step + 1)).collect();
            [Tensor::from_f32(vec![24, 3], &x), Tensor::from_f32(vec![24, 2], &t)]
        }
    };
    let [x, t] = arrays.map(Result::unwrap);
    write_weights(&folder.path("r.npz"), &[("x".to_owned(), x), ("t".to_owned(), t)]).unwrap();
    let (how, weights): (&[&str], Vec<f64>) = match name {
        "ignored" => {
            let counted = |step| classes(step).filter(|&class| class != -100).count() as f64;
            (&["6", "--loss", LOSS, "--optimizer", "sgd:momentum=0.9"], (0..4).map(counted).collect())
        }
        _ => (&["8", "--loss", "mse", "--optimizer", "sgd"], vec![1.0; 3]),
    };
    let how = [&["--data", "r.npz:input=x,target=t", "--batch"], how].concat();
    (how.into_iter().map(str::to_owned).collect(), weights)
}

/// The number behind a word in what a run tells of its epoch.
fn measured(table: &str, what: &str) -> f64 {
    let line = table.lines().find(|line| line.starts_with("epoch 1/1")).unwrap_or_else(|| panic!("{table}"));
    let mut words = line.split_whitespace().skip_while(|word| *word != what);
    words.nth(1).unwrap().parse().unwrap()
}

/// Trains as stored, and compares the loss and what all arrays have become.
fn compare(name: &str, rest: &[&str]) {
    let (folder, stored) = (Folder::new(), steps(name));
    let (how, weights) = records(name, &folder);
    let program = program(name);
    let args = ["train", &program, "--lr", "0.1", "--in-order", "--effort", "fast", "-o", "after.npz"];
    let how: Vec<&str> = how.iter().map(String::as_str).collect();
    let table = folder.ok(&[&args[..], &how, rest].concat());
    let sum: f64 = stored.losses.iter().zip(&weights).map(|(loss, weight)| loss * weight).sum();
    let (loss, torch) = (measured(&table, "loss"), sum / weights.iter().sum::<f64>());
    assert!((loss - torch).abs() < 2e-6, "{name} {rest:?}: loss {loss}, torch {torch}");
    let after = Arrays::open(&folder.path("after.npz")).unwrap();
    for (array, values) in &stored.arrays {
        let own = after.get(array).unwrap().unwrap().to_f64();
        assert_eq!(own.len(), values.len());
        for (found, torch) in own.iter().zip(values) {
            assert!((found - torch).abs() < 1e-6, "{name} {rest:?}: {array}: {found}, torch {torch}");
        }
    }
}

#[test]
fn the_mean_over_targets_of_other_classes_is_that_of_torch_however_the_batch_is_divided() {
    compare("ignored", &["-d", "cpu"]);
    for count in ["2", "3", "6"] {
        compare("ignored", &["-d", "cpu", "--microbatches", count]);
    }
    for zero in ["0", "2", "3"] {
        compare("ignored", &["-d", "2xcpu", "--replicas", "2", "--zero", zero]);
    }
    compare("ignored", &["-d", "2xcpu", "--replicas", "2", "--microbatches", "3"]);
    compare("ignored", &["-d", "2xcpu", "--schedule", "1f1b", "--microbatches", "3"]);
    compare("ignored", &["-d", "cpu", "--replicas", "1", "--sync", "async", "--staleness", "0"]);
}

#[test]
fn microbatches_move_statistics_one_after_the_other_as_in_torch() {
    compare("statistics", &["-d", "cpu", "--microbatches", "2"]);
    compare("statistics", &["-d", "2xcpu", "--microbatches", "2", "--schedule", "1f1b"]);
}

#[test]
fn a_batch_of_which_all_is_ignored_changes_nothing() {
    let folder = Folder::new();
    std::fs::write(folder.path("t.csv"), "x,t\n1 2 3 4 5 6 7 8 9 8 7 6,-100 -100 -100 -100\n").unwrap();
    let (program, data) = (program("ignored"), format!("t.csv:{RECORDS}"));
    let after = |rate: &str| {
        let args = ["train", &program, "-d", "cpu", "--data", &data, "--batch", "1", "--loss", LOSS];
        let table = folder.ok(&[&args[..], &["--lr", rate, "-o", "after.npz"]].concat());
        assert_eq!(measured(&table, "loss"), 0.0);
        Arrays::open(&folder.path("after.npz")).unwrap().get("first.weight").unwrap().unwrap()
    };
    assert!(after("0") == after("1"));
}

/// The loss and the accuracy for validation are over all targets that count, in batches of any size.
#[test]
fn validation_counts_the_targets_of_all_batches() {
    let folder = Folder::new();
    let row = |row: usize| {
        let class =
            |at: usize| if (row + at).is_multiple_of(3) || row == 6 { -100 } else { ((row + at) % 6) as i64 };
        let x: Vec<String> = (0..12).map(|at| ((row * 5 + at * 3) % 7).to_string()).collect();
        let t: Vec<String> = (0..4).map(|at| class(at).to_string()).collect();
        format!("{},{}\n", x.join(" "), t.join(" "))
    };
    std::fs::write(folder.path("v.csv"), format!("x,t\n{}", (0..7).map(row).collect::<String>())).unwrap();
    let (program, data) = (program("ignored"), format!("v.csv:{RECORDS}"));
    let tables = ["1", "2", "6"].map(|count| {
        let args =
            ["train", &program, "-d", "cpu", "--data", &data, "--validation-data", &data, "--batch", "6"];
        let rest = ["--lr", "0", "--loss", LOSS, "--metric", "accuracy", "--microbatches", count];
        folder.ok(&[&args[..], &rest].concat())
    });
    // Nothing is learned: what is trained on and what validates have the same records.
    for table in &tables {
        assert_eq!(measured(table, "val_loss"), measured(&tables[0], "loss"));
        assert_eq!(measured(table, "val_accuracy"), measured(&tables[0], "accuracy"));
    }
}

#[test]
fn a_class_that_is_not_said_to_be_ignored_is_refused_and_the_option_is_named() {
    let folder = Folder::new();
    let rows = ["0 1 2 3 4 5 6 7 8 9 8 7,0 -100 5 1", "9 8 7 6 5 4 3 2 1 0 1 2,3 2"].join("\n");
    std::fs::write(folder.path("t.csv"), format!("x,t\n{rows}\n")).unwrap();
    let (program, data) = (program("ignored"), format!("t.csv:{RECORDS},pad.target=-100"));
    let args = |loss| ["train", &program, "-d", "cpu", "--data", &data, "--batch", "2", "--loss", loss];
    let error = folder.fails(1, &args("sparse:logits"));
    assert!(error.contains("an element is -100, outside 0..6"), "{error}");
    assert!(error.contains("--loss sparse:ignore_class=C"), "{error}");
    let table = folder.ok(&args(LOSS));
    assert!(table.contains("epoch 1/1"), "{table}");
    let error = folder.fails(2, &args("mse:ignore_class=3"));
    assert!(error.contains("of sparse alone"), "{error}");
}

#[test]
fn targets_of_a_hinge_that_are_no_signs_are_told() {
    let (folder, program) = (Folder::new(), program("statistics"));
    let told = |targets: [&str; 2]| {
        let rows = targets.map(|target| format!("1,2,3,{target}")).join("\n");
        std::fs::write(folder.path("t.csv"), format!("a,b,c,s,t\n{rows}\n")).unwrap();
        let data = "t.csv:input=a..c,target=s+t";
        let ran =
            folder.run(&["train", &program, "-d", "cpu", "--data", data, "--batch", "2", "--loss", "hinge"]);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        ran.stderr.contains("targets are 0 and 1, and hinge takes -1 and 1")
    };
    assert!(told(["0,1", "1,1"]));
    assert!(!told(["-1,1", "1,1"]) && !told(["1,1", "1,1"]));
}
