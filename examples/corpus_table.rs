//! A table of what becomes of every model in a folder of them, in Markdown: nodes, groups, the
//! split over two devices, the error against stored outputs, or what is not supported.
//!
//! `cargo run --release --example corpus_table -- CORPUS`: CORPUS holds `onnx/`, `keras/` and
//! `wheels/`, with arrays in `NAME.io.npz` beside the models. Networks with neither are run with
//! made-up weights, and their two-device results compared with those of one device.

#![allow(missing_docs, unreachable_pub)]

#[path = "../tests/suite/networks.rs"]
#[allow(dead_code)]
mod networks;
#[path = "../tests/suite/rule.rs"]
mod rule;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use networks::{Network, TOLERANCE, used};
use partition::unstable::error::{Error, Result};
use partition::unstable::place::DeviceUse;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(corpus) = arguments.next() else {
        eprintln!("usage: corpus_table CORPUS [NAME...]");
        return ExitCode::from(2);
    };
    let names: Vec<String> = arguments.collect();
    println!("| model | nodes | groups | split (devices, cap, moved per step) | max error |");
    println!("|---|---:|---:|---|---|");
    for path in models(Path::new(&corpus)) {
        let name = path.strip_prefix(&corpus).unwrap_or(&path).display().to_string();
        if !names.is_empty() && !names.iter().any(|wanted| name.contains(wanted)) {
            continue;
        }
        match row(&path) {
            Ok(row) => println!("| {name} | {row} |"),
            Err(error) => println!("| {name} | | | {} | |", told(&error)),
        }
    }
    ExitCode::SUCCESS
}

/// Model files, sorted; fixtures of another engine and files without operations are left out.
fn models(corpus: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["keras", "onnx", "wheels"] {
        let Ok(entries) = std::fs::read_dir(corpus.join(folder)) else { continue };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        found.extend(paths.filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let kind = name.ends_with(".onnx") || (folder == "keras" && name.ends_with(".json"));
            kind && !name.starts_with("tract_")
        }));
    }
    found.sort();
    found
}

/// The cells after the name.
fn row(path: &Path) -> Result<String> {
    let network = Network::open(path)?;
    let single = network.plan("cpu:memory=64GB", DeviceUse::Auto)?;
    let groups = single.network.as_ref().map_or(0, |network| network.grouping.groups.len());
    let nodes = single.plan.model.nodes;
    let arena = single.plan.devices[0].arena.get();
    let needed = partition::unstable::units::Bytes(arena);
    let (how, split) = match network.split(arena, 2) {
        Ok((cap, split)) => (format!("{} of {needed} needed", partition::unstable::units::Bytes(cap)), split),
        Err(Error::Infeasible(_)) => match network.balanced(arena) {
            Ok(split) => ("no cap forces a cut, `--balance 0.5` does".to_owned(), split),
            Err(_) => {
                let error = error_cell(&network, &single)?;
                return Ok(format!("{nodes} | {groups} | 1, {needed}: nothing to cut | {error}"));
            }
        },
        Err(error) => return Err(error),
    };
    let (count, moved) = (used(&split), split.plan.cost.step_bytes);
    let error = error_cell(&network, &split)?;
    Ok(format!("{nodes} | {groups} | {count}, {how}, {moved} | {error}"))
}

/// How far a plan's results are from the stored ones, or from those of one device.
fn error_cell(network: &Network, compiled: &partition::unstable::compile::Compiled) -> Result<String> {
    let outputs = network.run(compiled)?;
    if let Some(distance) = network.distance(&outputs, 0.0) {
        let (rtol, atol) = TOLERANCE;
        let verdict = if distance.relative <= 1.0 {
            String::new()
        } else {
            format!(" (beyond rtol {rtol:e} atol {atol:e}; outputs reach {:.0})", distance.largest)
        };
        return Ok(format!("{:.1e}{verdict}", distance.absolute));
    }
    let single = network.plan("cpu:memory=64GB", DeviceUse::Auto)?;
    let same = network.run(&single)? == outputs;
    Ok(if same { "no outputs stored; same bits as one device" } else { "other bits than one device" }
        .to_owned())
}

/// An error on one line, with its details.
fn told(error: &Error) -> String {
    let details = error.details().join("; ");
    let line = if details.is_empty() { error.to_string() } else { details };
    line.replace('|', "\\|").replace('\n', " ")
}
