//! Checkpoints: whole whatever ends the process that writes them, verified when read, exact to the bit.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::sweep::Share;
use partition::unstable::data::Position;
use partition::unstable::ir::{DType, Tensor};
use partition::unstable::load::weights::Arrays;
use partition::unstable::state::{Checkpoint, Found, Goal, Keep, Shared, Store, read_weights, write_weights};

fn numbers(step: u64, count: u64) -> Tensor {
    let values: Vec<f32> = (0..count).map(|at| (step * 31 + at) as f32 * 0.5).collect();
    Tensor::from_f32(vec![count / 4, 4], &values).unwrap()
}

/// A checkpoint whose content follows from its step.
fn checkpoint(step: u64) -> Checkpoint {
    let mut one = Checkpoint {
        step,
        position: Position { epoch: step / 10, batch: step % 10 },
        seed: u64::MAX - step,
        model: format!("{step:x}"),
        weights: vec![("b/kernel".into(), numbers(step, 4096)), ("a/bias".into(), numbers(step + 1, 8))],
        optimizer: vec![("b/kernel/momentum".into(), numbers(step + 2, 4096))],
        ..Checkpoint::default()
    };
    one.counters.insert("optimizer".into(), step);
    one.scalars.insert("scale".into(), 0.1 + step as f64);
    one.metrics.insert("loss".into(), 1.0 / (step + 1) as f64);
    one
}

/// Files keep arrays in an order of their own.
fn sorted(mut one: Checkpoint) -> Checkpoint {
    one.weights.sort_by(|a, b| a.0.cmp(&b.0));
    one.optimizer.sort_by(|a, b| a.0.cmp(&b.0));
    one
}

fn latest(path: &Path) -> Found {
    Store::read(path).unwrap().latest().unwrap().unwrap()
}

#[test]
fn a_checkpoint_reads_back_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = checkpoint(12);
    for (name, value) in [("inf", f64::INFINITY), ("zero", -0.0), ("third", 1.0 / 3.0), ("tiny", 5e-324)] {
        one.scalars.insert(name.into(), value);
    }
    for dtype in DType::ALL {
        let tensor = Tensor::new(dtype, vec![3], vec![1; 3 * dtype.size() as usize]).unwrap();
        one.optimizer.push((format!("of type {dtype}"), tensor));
    }
    one.optimizer.push(("scalar \"é\"".into(), Tensor::from_f32(vec![], &[f32::NAN]).unwrap()));
    let path = Store::open(dir.path(), Keep::default()).unwrap().save(&one).unwrap();
    let found = Found::open(&path).unwrap().checkpoint;
    assert_eq!(sorted(found.clone()), sorted(one));
    assert_eq!(found.scalars["zero"].to_bits(), (-0.0f64).to_bits());
}

#[test]
fn the_newest_and_the_best_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let keep = Keep { last: 2, best: Some(("loss".into(), Goal::Less)) };
    let store = Store::open(dir.path(), keep).unwrap();
    for (step, loss) in [(1, 0.5), (2, 0.1), (3, f64::NAN), (4, 0.3), (5, 0.2)] {
        let mut one = checkpoint(step);
        one.metrics.insert("loss".into(), loss);
        store.save(&one).unwrap();
    }
    let steps = |store: &Store| {
        let found = store.list().unwrap().into_iter().map(|path| Found::open(&path).unwrap().checkpoint.step);
        found.collect::<Vec<u64>>()
    };
    assert_eq!(steps(&store), [5, 4, 2]);
    assert_eq!(store.best("loss", Goal::Less).unwrap().unwrap().checkpoint.step, 2);
    assert_eq!(store.best("loss", Goal::More).unwrap().unwrap().checkpoint.step, 4);
    assert!(store.best("accuracy", Goal::More).unwrap().is_none());
    // A step that is written again is another checkpoint, and newer.
    let path = store.save(&checkpoint(5)).unwrap();
    assert!(path.ends_with("step-000000000005-1"));
    assert_eq!(store.latest().unwrap().unwrap().path, path);
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Keep { last: 10, best: None }).unwrap();
    let paths: Vec<PathBuf> = (1..=5).map(|step| store.save(&checkpoint(step)).unwrap()).collect();
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    flip(&paths[4].join("weights.safetensors"));
    flip(&paths[3].join("manifest.json"));
    let short = paths[2].join("optimizer.safetensors");
    let bytes = fs::read(&short).unwrap();
    fs::write(&short, &bytes[..bytes.len() - 1]).unwrap();
    let found = latest(dir.path());
    assert_eq!(sorted(found.checkpoint), sorted(checkpoint(2)));
    let told = found.passed_over.join("\n");
    assert!(told.contains("weights.safetensors: its checksum is wrong"), "{told}");
    assert!(told.contains("manifest.json: "), "{told}");
    assert!(told.contains("optimizer.safetensors: has "), "{told}");
    for path in &paths[..2] {
        fs::remove_file(path.join("manifest.json")).unwrap();
    }
    let error = Store::read(dir.path()).unwrap().latest().unwrap_err();
    assert!(error.to_string().contains("none of 5 checkpoints can be read"), "{error}");
    assert_eq!(error.details().len(), 5);
}

#[test]
fn one_process_writes_and_others_read() {
    let dir = tempfile::tempdir().unwrap();
    let shared = Shared::new(dir.path());
    assert!(shared.read("embeddings").unwrap().is_none());
    let store = shared.write("embeddings", Keep::default()).unwrap();
    store.save(&checkpoint(1)).unwrap();
    let second = shared.write("embeddings", Keep::default()).unwrap_err();
    assert!(second.to_string().contains("another process writes"), "{second}");
    assert_eq!(shared.read("embeddings").unwrap().unwrap().checkpoint.step, 1);
    drop(store);
    shared.write("embeddings", Keep::default()).unwrap().save(&checkpoint(2)).unwrap();
    shared.write("other", Keep::default()).unwrap();
    assert_eq!(shared.names().unwrap(), ["embeddings", "other"]);
    for name in ["", "..", "a/b", ".hidden", "a\0"] {
        assert!(shared.write(name, Keep::default()).is_err(), "{name}");
    }
}

#[test]
fn weights_are_written_for_other_programs() {
    let dir = tempfile::tempdir().unwrap();
    let weights = checkpoint(3).weights;
    for name in ["w.safetensors", "w.npz"] {
        let path = dir.path().join(name);
        write_weights(&path, &weights).unwrap();
        let mut found = read_weights(&path).unwrap();
        found.sort_by(|a, b| b.0.cmp(&a.0));
        assert_eq!(found, weights, "{name}");
        assert_eq!(Arrays::open(&path).unwrap().header("a/bias").unwrap(), Some((DType::F32, vec![2, 4])));
    }
    let error = write_weights(&dir.path().join("w.pt"), &weights).unwrap_err();
    assert!(error.to_string().contains(".safetensors or .npz"), "{error}");
}

/// Where the process that is to be killed writes; see [`kill_minus_nine_at_any_moment`].
const KILLED: &str = "PARTITION_TEST_CHECKPOINTS";

/// Not a test of its own: what [`kill_minus_nine_at_any_moment`] starts and kills.
#[test]
fn write_checkpoints_until_killed() {
    let Some(path) = std::env::var_os(KILLED) else { return };
    let store = Store::open(Path::new(&path), Keep { last: 2, best: None }).unwrap();
    let start = store.latest().unwrap().map_or(0, |found| found.checkpoint.step);
    for step in start + 1.. {
        store.save(&checkpoint(step)).unwrap();
        // Straight to the pipe: the test harness holds back what `println` says.
        std::io::Write::write_all(&mut std::io::stderr(), format!("saved {step}\n").as_bytes()).unwrap();
    }
}

sweep! {
    kill_minus_nine_at_any_moment: one of 5;
}

fn kill_minus_nine_at_any_moment(share: Share) {
    let dir = tempfile::tempdir().unwrap();
    let mut saved = 0;
    let mut moment = 0x9e37_79b9_7f4a_7c15u64;
    let (mut interrupted, mut written) = (0, 0);
    let mut kills = 0;
    for kill in share.among(0..200) {
        kills += 1;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "state::write_checkpoints_until_killed", "--nocapture", "--test-threads=1"])
            .env(KILLED, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut told = |line: std::io::Result<String>| {
            let line = line.unwrap();
            let step = line.strip_prefix("saved ").and_then(|step| step.parse().ok());
            saved = step.unwrap_or_else(|| panic!("the writer says: {line}"));
            written += 1;
        };
        told(lines.next().unwrap());
        moment = (moment ^ kill).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(23);
        std::thread::sleep(Duration::from_micros(moment % 6000));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.for_each(told);
        interrupted += u32::from(
            fs::read_dir(dir.path())
                .unwrap()
                .any(|entry| entry.unwrap().file_name().to_string_lossy().starts_with(".part-")),
        );
        let found = latest(dir.path());
        // What was said to be saved is there, and at most what was being saved is lost.
        assert!((saved..=saved + 1).contains(&found.checkpoint.step), "kill {kill}: {saved}");
        assert_eq!(found.passed_over, Vec::<String>::new());
        assert_eq!(sorted(found.checkpoint.clone()), sorted(checkpoint(found.checkpoint.step)));
    }
    println!("{kills} kills, {interrupted} in the middle of a checkpoint, {written} checkpoints written");
    assert!(interrupted > kills / 10, "only {interrupted} kills hit a checkpoint being written");
}
