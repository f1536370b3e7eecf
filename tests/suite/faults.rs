//! Training that is ended from outside, or by its own numbers: nothing but the steps since the last
//! checkpoint is lost, and what goes wrong is said in one clear error.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use partition::data::{Options as DataOptions, Order, Source};
use partition::load::{LoadOptions, Model, load};
use partition::state::{Keep, Store};
use partition::topology::Topology;
use partition::train::{Fit, Options, Trainer, fit};

use crate::cli::Folder;

/// Two dense layers, with `name` as one of the parameters.
fn network(name: &str) -> String {
    format!(
        r#"{{"partition_model": 1, "dims": ["batch"],
            "inputs": [{{"name": "x", "type": "f32[batch, 6]"}}],
            "params": [{{"name": "{name}", "type": "f32[6, 12]", "init": "glorot_uniform"}},
                       {{"name": "back", "type": "f32[12, 3]", "init": "glorot_uniform"}}],
            "nodes": [{{"name": "first", "op": "matmul", "inputs": ["x", "{name}"]}},
                      {{"name": "steep", "op": "exp", "inputs": ["first"]}},
                      {{"name": "second", "op": "matmul", "inputs": ["steep", "back"]}}],
            "outputs": ["second"]}}"#
    )
}

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::write(folder.path("net.json"), network("kernel")).unwrap();
    folder
}

/// Eight steps an epoch, the last one smaller; 5 steps between checkpoints, which come at each epoch's
/// end too.
const STEPS: u64 = 8;

fn arguments(checkpoints: &str, output: &str, epochs: u64) -> Vec<String> {
    let fixed = "train net.json -d 2xcpu --use all --data random:records=60,seed=5 --loss mse --optimizer adam \
                 --lr 0.003 --batch 8 --checkpoint-every 5 --resume --epochs";
    let all = format!("{fixed} {epochs} --checkpoints {checkpoints} -o {output}");
    all.split_whitespace().map(str::to_owned).collect()
}

/// A run without an end whose first epoch is over; what it prints later is read.
fn started(folder: &Folder, checkpoints: &str, output: &str) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_partition"))
        .args(arguments(checkpoints, output, 1_000_000))
        .current_dir(folder.path("."))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("epoch ")), "it ended before an epoch was over");
    std::thread::spawn(move || lines.count());
    child
}

fn steps_of(checkpoints: &Path) -> u64 {
    let store = Store::open(checkpoints, Keep::default()).unwrap();
    store.latest().unwrap().map_or(0, |found| found.checkpoint.step)
}

fn finish(folder: &Folder, checkpoints: &str, output: &str, epochs: u64) {
    let arguments = arguments(checkpoints, output, epochs);
    folder.ok(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
}

#[cfg(unix)]
#[test]
fn an_interruption_finishes_the_step_and_leaves_a_checkpoint() {
    let folder = folder();
    let mut child = started(&folder, "ckpt", "broken.safetensors");
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let ended = child.wait().unwrap();
    assert_eq!(ended.code(), Some(0));
    assert!(folder.path("broken.safetensors").exists());
    let epochs = steps_of(&folder.path("ckpt")) / STEPS + 5;
    finish(&folder, "ckpt", "broken.safetensors", epochs);
    finish(&folder, "whole", "whole.safetensors", epochs);
    let bytes = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert!(bytes("whole.safetensors") == bytes("broken.safetensors"), "other parameters");
}

#[test]
fn a_last_batch_that_is_smaller_is_checked_for_what_is_not_finite() {
    let folder = folder();
    let rows = (0..6).map(|row| format!("{},0,0,0,0,0,0,0,0\n", if row == 5 { 1e9 } else { 0.5 }));
    let names: Vec<String> =
        (0..6).map(|at| format!("x{at}")).chain((0..3).map(|at| format!("t{at}"))).collect();
    let text = format!("{}\n{}", names.join(","), rows.collect::<String>());
    std::fs::write(folder.path("data.csv"), text).unwrap();
    let Model::Graph(graph) = load(network("kernel").as_bytes(), None, &LoadOptions::default()).unwrap()
    else {
        panic!("a network");
    };
    let mut options = Options::new("mse".parse().unwrap());
    options.compile.batch = Some(4);
    options.check_numerics = true;
    let mut trainer = Trainer::new(graph, &Topology::parse("cpu").unwrap(), &options).unwrap();
    let spec = format!("{}:input=x0..x5,target=t0..t2", folder.path("data.csv").display());
    let source = Source::open(&spec, &trainer.fields()).unwrap();
    let data = DataOptions { order: Order::Fifo, ..DataOptions::default() };
    let error =
        fit(&mut trainer, &source, &Fit { data, ..Fit::default() }, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("step 2") && error.contains("node steep"), "{error}");
}

#[test]
fn a_plan_of_a_training_step_is_run_by_training_alone() {
    let folder = folder();
    let train = "train net.json -d cpu --data ones:records=4 --loss mse --batch 4 --plan plan.json";
    folder.ok(&train.split_whitespace().collect::<Vec<_>>());
    for command in ["run plan.json --model net.json --init seed=1", "explain plan.json first"] {
        let error = folder.fails(1, &command.split_whitespace().collect::<Vec<_>>());
        assert!(error.contains("a plan of a training step is run by partition train"), "{command}: {error}");
    }
}

#[test]
fn what_cannot_be_written_is_refused_before_training() {
    let folder = folder();
    let train = "train net.json -d cpu --data ones:records=4 --loss mse --batch 4 -o none/w.npz";
    let error = folder.fails(1, &train.split_whitespace().collect::<Vec<_>>());
    assert!(error.contains("none/w.npz"), "{error}");
}

#[test]
fn parameters_that_are_called_as_replicas_or_parts_are_refused() {
    for name in ["replica0/w", "part0of2/w"] {
        let folder = Folder::new();
        std::fs::write(folder.path("net.json"), network(name)).unwrap();
        let train = "train net.json -d cpu --data ones:records=4 --loss mse --batch 4";
        let error = folder.fails(2, &train.split_whitespace().collect::<Vec<_>>());
        assert!(error.contains(&format!("parameter {name}")) && error.contains("rename it"), "{error}");
    }
}
