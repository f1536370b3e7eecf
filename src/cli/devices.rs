//! `partition devices`: what this machine has, as a specification.

use super::args::DevicesArgs;
use super::destinations::{Destinations, devices_file};
use super::terminal::{Console, write_stdout};
use crate::error::Result;
use crate::files::write_atomically;
use crate::report::{Column, TextTable, wrapped};
use crate::topology::{PRESETS, Topology};

pub(super) fn devices(args: &DevicesArgs, console: &Console) -> Result<()> {
    Destinations::new([("--output", args.output.as_ref())])?
        .are_not_read(devices_file(args.spec.as_deref()))?;
    // A file is as wide as what is in it.
    let width = console.width().filter(|_| args.output.is_none());
    if args.presets {
        return written(args, &presets(width));
    }
    let (topology, file) = match &args.spec {
        Some(spec) => {
            let topology = Topology::load(spec)?;
            let file = topology.description().to_toml();
            (topology, file)
        }
        None => probed(console)?,
    };
    let lines = topology.summary();
    // A specification that is asked about is explained; the machine's is a file that `--devices` takes.
    if args.table || args.spec.is_some() && args.output.is_none() {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        return written(args, &width.map_or_else(|| text.clone(), |width| wrapped(&text, width)));
    }
    if args.spec.is_none() {
        lines.iter().for_each(|line| console.note(line));
    }
    written(args, &file)
}

fn written(args: &DevicesArgs, text: &str) -> Result<()> {
    match &args.output {
        Some(path) => write_atomically(path, text.as_bytes()),
        None => write_stdout(text.as_bytes()),
    }
}

/// The machine's topology, and its device file with what was found as comments.
#[cfg(feature = "run")]
fn probed(console: &Console) -> Result<(Topology, String)> {
    let probe = crate::run::probe::probe();
    for note in &probe.notes {
        console.note(note);
    }
    Ok((probe.topology()?, probe.spec_file()))
}

#[cfg(not(feature = "run"))]
fn probed(_console: &Console) -> Result<(Topology, String)> {
    Err(crate::Error::usage("devices", "this build does not ask the hardware")
        .with_help("build with feature `run`"))
}

/// The presets with their peak rates, one line each.
fn presets(width: Option<usize>) -> String {
    let mut table = TextTable::new(&[
        Column::words("preset"),
        Column::figures("memory"),
        Column::figures("bandwidth"),
        Column::figures("f32"),
        Column::figures("bf16"),
    ]);
    for preset in &PRESETS {
        table.row([
            preset.name.to_owned(),
            preset.memory.map_or(String::new(), |memory| memory.to_string()),
            preset.bandwidth.to_string(),
            format!("{}/s", preset.flops),
            format!("{}/s", preset.half_flops),
        ]);
    }
    table.text(width)
}
