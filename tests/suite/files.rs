//! The user's own files: what is written through links and modes, what an interruption leaves, which folders of a
//! checkpoint store are ours, and which files a model may name.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use partition::unstable::files::{check_writable, write_atomically};
use partition::unstable::ir::Tensor;
use partition::unstable::load::weights::write_npz;
use partition::unstable::state::{Checkpoint, Keep, Store};

use crate::cli::Folder;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Both writers: of bytes, and of a format that seeks.
fn each_writer(test: impl Fn(&dyn Fn(&Path), &Path)) {
    let array = vec![("x".to_owned(), Tensor::from_f32(vec![1], &[1.0]).unwrap())];
    let writers: [&dyn Fn(&Path); 2] =
        [&|path| write_atomically(path, b"new").unwrap(), &|path| write_npz(path, &array).unwrap()];
    for write in writers {
        let dir = tempfile::tempdir().unwrap();
        test(write, dir.path());
    }
}

#[test]
fn a_file_that_is_replaced_keeps_its_mode_and_a_new_one_has_the_users() {
    each_writer(|write, dir| {
        let (private, new, touched) = (dir.join("private"), dir.join("new"), dir.join("touched"));
        fs::write(&private, "old").unwrap();
        fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&touched, "").unwrap();
        write(&private);
        write(&new);
        assert_eq!(mode(&private), 0o600);
        assert_eq!(mode(&new), mode(&touched), "the mode that the umask gives");
        assert_ne!(fs::read(&private).unwrap(), b"old");
    });
}

#[test]
fn links_are_written_through_whether_or_not_something_is_there() {
    each_writer(|write, dir| {
        fs::create_dir(dir.join("far")).unwrap();
        fs::write(dir.join("far/there"), "old").unwrap();
        for name in ["there", "missing"] {
            let (link, target) = (dir.join(format!("to_{name}")), dir.join("far").join(name));
            symlink(Path::new("far").join(name), &link).unwrap();
            check_writable(&link).unwrap();
            write(&link);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "{name}: the link stays");
            assert_ne!(fs::read(&target).unwrap(), b"old", "{name}");
        }
        assert_eq!(names(&dir.join("far")), ["missing", "there"]);
        symlink("circle", dir.join("circle")).unwrap();
        check_writable(dir.join("circle")).expect_err("a link to itself");
    });
}

#[test]
fn names_of_the_greatest_length_work() {
    each_writer(|write, dir| {
        let name = "n".repeat(250);
        write(&dir.join(&name));
        assert_eq!(names(dir), [name]);
        let error = check_writable(dir.join("n".repeat(256))).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
    });
}

/// 256 MB of output, so that an interruption falls into its writing.
const LARGE: &str = r#"{"partition_model": 1, "inputs": [{"name": "x", "type": "f32[1]"}], "params": [],
    "nodes": [{"name": "y", "op": "broadcast", "inputs": ["x"], "shape": [64, 1048576]}], "outputs": ["y"]}"#;

#[test]
fn an_interruption_leaves_no_half_written_file() {
    let folder = Folder::new();
    fs::write(folder.path("large.json"), LARGE).unwrap();
    let dir = folder.path(".");
    let is_unfinished = || names(&dir).iter().any(|name| name.ends_with(".part"));
    for signal in ["-INT", "-TERM"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_partition"))
            .args(["run", "large.json", "--init", "seed=1", "--outputs", "out.npz", "--quiet"])
            .current_dir(&dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !is_unfinished() {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it wrote");
            assert!(begun.elapsed() < Duration::from_secs(120), "it writes nothing");
        }
        let kill = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let code = child.wait().unwrap().code();
        assert!(matches!(code, Some(130 | 143)), "{signal}: {code:?}");
        // Where the signal came late, all of it is there.
        let mut left = names(&dir);
        if left.iter().any(|name| name == "out.npz") {
            let written = fs::metadata(dir.join("out.npz")).unwrap().len();
            assert!(written > 64 * 1_048_576 * 4, "{signal}: {written} bytes");
            fs::remove_file(dir.join("out.npz")).unwrap();
            left.retain(|name| name != "out.npz");
        }
        assert_eq!(left, ["large.json"], "{signal}");
    }
}

#[test]
fn an_array_whose_name_leads_out_of_an_archive_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let array = Tensor::from_f32(vec![1], &[1.0]).unwrap();
    let refused = |names: &[&str]| {
        let arrays: Vec<(String, Tensor)> =
            names.iter().map(|name| ((*name).to_owned(), array.clone())).collect();
        write_npz(&dir.path().join("x.npz"), &arrays).unwrap_err().to_string()
    };
    let long = "n".repeat(65_536);
    for (names, part) in [
        (&["../../evil"][..], "leads out of an archive's folder"),
        (&["a/../../b"], "leads out of an archive's folder"),
        (&["a\\..\\b"], "leads out of an archive's folder"),
        (&["x", "x"], "two arrays have this name"),
        (&[&long], "of 65536 bytes"),
    ] {
        let error = refused(names);
        assert!(error.contains(part) && error.len() < 300, "{error}");
    }
    // Names as exporters give them are no such names.
    write_npz(&dir.path().join("x.npz"), &[("/model/Add_output_0".into(), array)]).unwrap();
}

fn checkpoint(step: u64) -> Checkpoint {
    let weights = vec![("w".to_owned(), Tensor::from_f32(vec![1], &[step as f32]).unwrap())];
    Checkpoint { step, weights, ..Checkpoint::default() }
}

#[test]
fn only_what_is_ours_is_removed_from_a_folder_of_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // A stranger's folders and files under names such as ours.
    for name in ["step-1", ".part-thesis", "step-000000000002"] {
        fs::create_dir(at(name)).unwrap();
        fs::write(at(name).join("results.txt"), "years of work").unwrap();
    }
    fs::write(at("step-3"), "a file").unwrap();
    fs::create_dir(at("far")).unwrap();
    fs::write(at("far/precious.txt"), "elsewhere").unwrap();
    symlink("far", at("step-4")).unwrap();
    let keep = Keep { last: 1, best: None };
    let store = Store::open(dir.path(), keep.clone()).unwrap();
    for step in [10, 11, 12] {
        store.save(&checkpoint(step)).unwrap();
        // What a user lays into a checkpoint is the user's.
        if step == 11 {
            fs::write(at("step-000000000011").join("notes.txt"), "the good one").unwrap();
        }
    }
    store.save(&checkpoint(13)).unwrap();
    drop(store);
    let store = Store::open(dir.path(), keep).unwrap();
    assert_eq!(store.latest().unwrap().unwrap().checkpoint, checkpoint(13));
    assert_eq!(
        names(dir.path()),
        [
            ".lock",
            ".part-thesis",
            "far",
            "step-000000000002",
            "step-000000000011",
            "step-000000000013",
            "step-1",
            "step-3",
            "step-4"
        ]
    );
    assert!(at("far/precious.txt").exists() && at(".part-thesis/results.txt").exists());
    assert_eq!(names(&at("step-000000000011")).len(), 4);
}

#[test]
fn what_was_being_written_or_removed_is_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let path = Store::open(dir.path(), Keep::default()).unwrap().save(&checkpoint(1)).unwrap();
    // As a process leaves it that is killed in the middle.
    fs::write(path.join("unfinished"), "partition checkpoint, being written or removed\n").unwrap();
    fs::rename(&path, dir.path().join(".part-step-000000000001")).unwrap();
    Store::open(dir.path(), Keep::default()).unwrap();
    assert_eq!(names(dir.path()), [".lock"]);
}

/// A pipe that nobody writes would be waited for without end.
#[test]
fn a_pipe_within_a_checkpoint_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), Keep::default()).unwrap();
    let paths = [1, 2, 3].map(|step| store.save(&checkpoint(step)).unwrap());
    for (path, file) in [(&paths[1], "weights.safetensors"), (&paths[2], "manifest.json")] {
        fs::remove_file(path.join(file)).unwrap();
        assert!(Command::new("mkfifo").arg(path.join(file)).status().unwrap().success());
    }
    let found = store.latest().unwrap().unwrap();
    assert_eq!((found.checkpoint, found.passed_over.len()), (checkpoint(1), 2));
    assert!(found.passed_over.iter().all(|line| line.contains("is a pipe")), "{:?}", found.passed_over);
}

#[test]
fn a_lock_that_is_a_link_makes_no_file_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("ckpt")).unwrap();
    symlink("../elsewhere", dir.path().join("ckpt/.lock")).unwrap();
    let error = Store::open(&dir.path().join("ckpt"), Keep::default()).unwrap_err().to_string();
    assert!(error.contains(".lock: is no regular file"), "{error}");
    assert_eq!(names(dir.path()), ["ckpt"]);
}

/// A matrix product with weights that lie in a file of their own.
fn model(weights: &str) -> String {
    format!(
        r#"{{"partition_model": 1, "inputs": [{{"name": "x", "type": "f32[1, 2]"}}],
            "params": [{{"name": "w", "type": "f32[2, 1]", "data": {{"file": "{weights}"}}}}],
            "nodes": [{{"name": "y", "op": "matmul", "inputs": ["x", "w"]}}], "outputs": ["y"]}}"#
    )
}

#[test]
fn a_model_names_files_of_its_own_folder_alone() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("model/sub")).unwrap();
    let arrays = [("w".to_owned(), Tensor::from_f32(vec![2, 1], &[1.0, 2.0]).unwrap())];
    write_npz(&folder.path("w.npz"), &arrays).unwrap();
    write_npz(&folder.path("model/sub/w.npz"), &arrays).unwrap();
    symlink("../w.npz", folder.path("model/link.npz")).unwrap();
    symlink("..", folder.path("model/up")).unwrap();
    symlink("sub/w.npz", folder.path("model/near.npz")).unwrap();
    for (weights, is_inside) in [
        ("sub/w.npz", true),
        ("near.npz", true),
        ("link.npz", false),
        ("up/w.npz", false),
        ("../w.npz", false),
    ] {
        fs::write(folder.path("model/m.json"), model(weights)).unwrap();
        let run = ["run", "model/m.json", "--init", "seed=1", "--quiet"];
        let with = |flag: &'static str| [&run[..], &[flag]].concat();
        if is_inside {
            folder.ok(&run);
        } else {
            let error = folder.fails(1, &run);
            assert!(error.contains(weights) && error.contains("--allow-outside"), "{error}");
        }
        folder.ok(&with("--allow-outside"));
    }
}

/// A model with its weights in another file, for devices in a file.
fn with_files() -> Folder {
    let folder = Folder::new();
    let text = r#"{"partition_model": 1, "inputs": [{"name": "x", "type": "f32[1, 2]"}],
        "params": [{"name": "w", "type": "f32[2, 2]", "data": {"file": "w.npz"}}],
        "nodes": [{"name": "y", "op": "matmul", "inputs": ["x", "w"]}], "outputs": ["y"]}"#;
    fs::write(folder.path("m.json"), text).unwrap();
    let weights = Tensor::from_f32(vec![2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    write_npz(&folder.path("w.npz"), &[("w".to_owned(), weights)]).unwrap();
    fs::write(folder.path("d.json"), r#"{"device": [{"name": "a", "kind": "cpu", "memory": "1GB"}]}"#)
        .unwrap();
    folder
}

#[test]
fn no_file_that_is_read_is_written_over() {
    let folder = with_files();
    folder.ok(&["m.json", "-d", "d.json", "-o", "p.json", "--quiet"]);
    folder.ok(&["run", "m.json", "-d", "cpu", "--init", "seed=1", "--calibrate", "-o", "profile.json"]);
    let before: Vec<Vec<u8>> =
        names(&folder.path("")).iter().map(|name| fs::read(folder.path(name)).unwrap()).collect();
    let init = ["--init", "seed=1"];
    let train = ["train", "m.json", "-d", "d.json", "--data", "random:records=8", "--loss", "mse"];
    let run = ["run", "m.json", "-d", "d.json"];
    let cases: [(&[&str], &[&str]); 13] = [
        (&run, &["--trace", "d.json"]),
        (&run, &["--outputs", "w.npz"]),
        (&run, &["--outputs", "./w.npz"]),
        (&["run", "m.json", "--profile", "profile.json"], &["--trace", "profile.json"]),
        (&["run", "p.json"], &["--trace", "m.json"]),
        (&["run", "p.json"], &["--trace", "p.json"]),
        (&["run", "p.json"], &["--outputs", "w.npz"]),
        (&["m.json", "-d", "d.json"], &["-o", "d.json"]),
        (&["m.json", "-d", "cpu", "--profile", "profile.json"], &["-o", "profile.json"]),
        (&["export", "p.json", "--format", "json"], &["-o", "p.json"]),
        (&["devices", "--spec", "d.json"], &["-o", "d.json"]),
        (&train, &["--plan", "d.json"]),
        (&train, &["-o", "w.npz"]),
    ];
    for (command, written) in cases {
        let seed = if command[0] == "run" { &init[..] } else { &[] };
        let error = folder.fails(2, &[command, seed, written].concat());
        assert!(error.contains(written[1]) && error.contains("this file is read"), "{command:?}: {error}");
    }
    let after: Vec<Vec<u8>> =
        names(&folder.path("")).iter().map(|name| fs::read(folder.path(name)).unwrap()).collect();
    assert_eq!(after, before);
}

#[test]
fn weights_beside_a_configuration_are_not_written_over() {
    let folder = Folder::new();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers");
    fs::copy(from.join("gpt2.config.json"), folder.path("config.json")).unwrap();
    fs::copy(from.join("gpt2.safetensors"), folder.path("model.safetensors")).unwrap();
    for args in [
        &["run", ".", "--init", "seed=1", "--outputs", "model.safetensors"][..],
        &["run", ".", "--init", "seed=1", "--trace", "config.json"],
        &["train", ".", "--data", "random:records=8", "--loss", "mse", "-o", "model.safetensors"],
    ] {
        let error = folder.fails(2, args);
        assert!(error.contains("this file is read"), "{args:?}: {error}");
    }
}

#[test]
fn the_name_of_the_outputs_says_their_form() {
    let folder = with_files();
    folder.ok(&["run", "m.json", "--init", "seed=1", "--outputs", "y.npz"]);
    folder.ok(&["run", "m.json", "--init", "seed=1", "--outputs", "y.safetensors"]);
    let arrays = |name: &str| partition::unstable::state::read_weights(&folder.path(name)).unwrap();
    assert_eq!(arrays("y.npz"), arrays("y.safetensors"));
    assert!(fs::read(folder.path("y.safetensors")).unwrap()[8..].starts_with(b"{"));
    let error = folder.fails(2, &["run", "m.json", "--init", "seed=1", "--outputs", "y.txt"]);
    assert!(error.contains("--outputs: y.txt") && error.contains(".safetensors or .npz"), "{error}");
    // A planted link is written through, never followed on the way.
    symlink(folder.path("target.npz"), folder.path("link.npz")).unwrap();
    folder.ok(&["run", "m.json", "--init", "seed=1", "--outputs", "link.npz"]);
    assert_eq!(arrays("target.npz"), arrays("y.npz"));
}

#[test]
fn an_output_that_leads_out_of_an_archive_is_refused_before_planning() {
    let folder = with_files();
    let text = fs::read_to_string(folder.path("m.json")).unwrap();
    fs::write(folder.path("m.json"), text.replace("\"y\"", "\"../../y\"")).unwrap();
    // These devices hold nothing: planning would end with 3.
    let run = ["run", "m.json", "-d", "cpu:memory=1B", "--init", "seed=1", "--outputs"];
    let error = folder.fails(2, &[&run[..], &["y.npz"]].concat());
    assert!(error.contains("leads out of an archive"), "{error}");
    let error = folder.fails(1, &["run", "--calibrate", "-o", "none/profile.json"]);
    assert!(error.contains("none/profile.json"), "{error}");
}
