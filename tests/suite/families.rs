//! Families of transformers: small random configurations with the library's own outputs, stored by
//! `scripts/transformers_families.py`; with masks or without, on one device and split over two.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sweep::Share;

fn stored() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/families");
    let mut folders: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// What a run of a stored checkpoint says that differs from the library; nothing where it is equal.
fn fault(folder: &Path, more: &[&str]) -> Option<String> {
    let io = folder.join("io.npz");
    let out = Command::new(env!("CARGO_BIN_EXE_partition"))
        .arg("run")
        .arg(folder)
        .arg("--inputs")
        .arg(&io)
        .arg("--expect")
        .arg(&io)
        .args(["--rtol", "1e-5", "--atol", "1e-5"])
        .args(more)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr);
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    if !out.status.success() {
        return Some(format!("{name}: {told}"));
    }
    // A bare encoder gives what its last layer gives; the pooler behind it is no part of that.
    let left = told.contains("does not take") && !told.contains("does not take: pooler.dense.bias");
    left.then(|| format!("{name}: arrays are left over: {told}"))
}

sweep! {
    every_family_computes_what_the_library_does: one of 3;
    families_are_the_same_on_two_devices: one of 3;
}

fn every_family_computes_what_the_library_does(share: Share) {
    let folders = stored();
    assert!(folders.len() >= 56, "{} are stored", folders.len());
    let faults: Vec<String> = share.among(&folders).filter_map(|folder| fault(folder, &[])).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn families_are_the_same_on_two_devices(share: Share) {
    let more = ["--devices", "2xcpu[2x64MB]", "--use", "all"];
    let folders = stored();
    let some = folders.iter().filter(|folder| folder.to_string_lossy().ends_with(".0"));
    let faults: Vec<String> = share.among(some).filter_map(|folder| fault(folder, &more)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
