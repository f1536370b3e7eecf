//! Training that is ended from outside, or by its own numbers: nothing but the steps since the last
//! checkpoint is lost, and what goes wrong is said in one clear error.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use partition::unstable::data::{Options as DataOptions, Order, Source};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::state::{Keep, Store};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Fit, Options, Trainer, fit};

use crate::cli::Folder;
use crate::random_graph::Random;

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
const BETWEEN: u64 = 5;

fn arguments(checkpoints: &str, output: &str, epochs: u64) -> Vec<String> {
    let fixed = "train net.json -d 2xcpu --use all --data random:records=60,seed=5 --loss mse --optimizer adam \
                 --lr 0.003 --batch 8 --checkpoint-every 5 --resume=auto --epochs";
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

/// Steps of the newest checkpoint, by the names of the files: the run that writes them may be alive.
fn newest(checkpoints: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(checkpoints) else { return 0 };
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.strip_prefix("step-")?.split('-').next()?.parse().ok()).max().unwrap_or(0)
}

/// When a run is killed.
enum Moment {
    /// So long after its start.
    Start(Duration),
    /// So long after its first checkpoint.
    Saved(Duration),
}

/// What a run had told when it was killed.
#[derive(Default)]
struct Told {
    /// Steps of the checkpoint that it went on from.
    from: Option<u64>,
    /// Steps of the last checkpoint that it wrote.
    saved: u64,
    /// Epochs that were over.
    epochs: u64,
}

/// Starts a run without an end and kills it.
fn killed(folder: &Folder, moment: &Moment) -> Told {
    let before = newest(&folder.path("ckpt"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_partition"))
        .args(arguments("ckpt", "broken.safetensors", 1_000_000))
        .current_dir(folder.path("."))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).last());
    let err = std::thread::spawn(move || {
        BufReader::new(err).lines().map_while(Result::ok).collect::<Vec<String>>()
    });
    match *moment {
        Moment::Start(after) => std::thread::sleep(after),
        Moment::Saved(after) => {
            while newest(&folder.path("ckpt")) <= before {
                assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(after);
        }
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "it ended by itself");
    let number = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
    let mut told = Told::default();
    for line in err.join().unwrap() {
        let of = |mark: &str| number(line.split_once(mark)?.1);
        told.from = told.from.or(of("resumes after step "));
        told.saved = told.saved.max(of("ckpt/step-").unwrap_or(0));
    }
    let last = out.join().unwrap().unwrap_or_default();
    told.epochs = last.strip_prefix("epoch ").and_then(number).unwrap_or(0);
    told
}

/// Kills one run after the other, each going on where the one before was, and compares what the last
/// one comes to with a run that nothing ended.
fn kill_training(kills: u64) {
    let folder = folder();
    let begun = Instant::now();
    killed(&folder, &Moment::Saved(Duration::ZERO));
    let until_saved = begun.elapsed();
    let (mut random, mut resumed, mut under_way, mut aside) = (Random::new(11), 0, 0, 0);
    for number in 0..kills {
        let before = newest(&folder.path("ckpt"));
        let share = |of: Duration, random: &mut Random| of * random.below(1000) as u32 / 1000;
        let moment = match number % 2 {
            0 => Moment::Start(share(until_saved * 2, &mut random)),
            _ => Moment::Saved(share(Duration::from_millis(20), &mut random)),
        };
        let told = killed(&folder, &moment);
        let after = newest(&folder.path("ckpt"));
        let context = format!("kill {number}: {before} steps, then {after}");
        // A run goes on from the newest checkpoint; what it said to have saved is there; of an epoch that
        // was over no more steps are lost than lie between checkpoints.
        assert!(told.from.is_none_or(|from| from == before), "{context}");
        assert!(after >= before.max(told.saved), "{context}, {} saved", told.saved);
        assert!(after + BETWEEN >= told.epochs * STEPS, "{context}, {} epochs", told.epochs);
        resumed += u64::from(told.from.is_some());
        under_way += u64::from(!after.is_multiple_of(STEPS));
        let entries = std::fs::read_dir(folder.path("ckpt")).unwrap();
        let half = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".part-");
        aside += u64::from(entries.map(Result::unwrap).any(half));
    }
    println!(
        "{kills} kills: {resumed} runs went on, {aside} were writing, {under_way} ended within an epoch"
    );
    assert!(resumed >= kills / 2 && under_way > 0, "{resumed} went on, {under_way} ended within an epoch");
    let epochs = newest(&folder.path("ckpt")) / STEPS + 3;
    finish(&folder, "ckpt", "broken.safetensors", epochs);
    finish(&folder, "whole", "whole.safetensors", epochs);
    let bytes = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert!(bytes("whole.safetensors") == bytes("broken.safetensors"), "other parameters");
    let last = |name: &str| Store::read(&folder.path(name)).unwrap().latest().unwrap().unwrap().checkpoint;
    let (whole, broken) = (last("whole"), last("ckpt"));
    assert_eq!((whole.step, broken.step), (STEPS * epochs, STEPS * epochs));
    assert!(whole.optimizer == broken.optimizer, "other state of the optimizer");
}

#[test]
fn training_that_is_killed_at_any_moment_goes_on_to_the_same_bits() {
    kill_training(24);
}

#[test]
#[ignore = "takes minutes: cargo test --test suite -- --ignored --nocapture killed_at_two_hundred"]
fn training_that_is_killed_at_two_hundred_moments_goes_on_to_the_same_bits() {
    kill_training(200);
}

#[test]
fn members_of_an_ensemble_go_on_from_checkpoints_of_their_own() {
    let folder = folder();
    let train = |checkpoints: &str, epochs: u64| {
        let members = "--ensemble 2 --member 2:lr=0.001 --member 2:optimizer=rmsprop";
        let data =
            "--data random:records=60,seed=5 --loss mse --optimizer adam --batch 8 --checkpoint-every 5";
        let all = format!(
            "train net.json -d 2xcpu {members} {data} --resume=auto --epochs {epochs} --checkpoints {checkpoints} \
             -o {checkpoints}.safetensors"
        );
        folder.ok(&all.split_whitespace().collect::<Vec<_>>())
    };
    train("whole", 4);
    train("broken", 2);
    for member in ["member1", "member2"] {
        assert_eq!(newest(&folder.path("broken").join(member)), 2 * STEPS);
    }
    // As if the second member had been ended earlier than the first.
    let store = Store::read(&folder.path("broken/member2")).unwrap();
    std::fs::remove_dir_all(&store.list().unwrap()[0]).unwrap();
    assert!(train("broken", 4).contains("member 2  epoch 2/4"));
    for member in ["member1", "member2"] {
        let bytes = |name: &str| std::fs::read(folder.path(&format!("{name}.{member}.safetensors"))).unwrap();
        assert!(bytes("whole") == bytes("broken"), "{member}: other parameters");
    }
}

#[cfg(unix)]
#[test]
fn an_interruption_finishes_the_step_and_leaves_a_checkpoint() {
    let folder = folder();
    let mut child = started(&folder, "ckpt", "broken.safetensors");
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let ended = child.wait().unwrap();
    assert_eq!(ended.code(), Some(130));
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
    let run = "run plan.json --model net.json --init seed=1";
    let error = folder.fails(1, &run.split_whitespace().collect::<Vec<_>>());
    assert!(error.contains("a plan of a training step is run by partition train"), "{error}");
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
