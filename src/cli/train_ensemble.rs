//! `partition train --ensemble N`: one independent network on each device.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::terminal::Console;
use super::train::{fitting, show};
use super::train_args::TrainArgs;
use crate::data::Source;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::plan::write_atomically;
use crate::state::write_weights;
use crate::topology::Topology;
use crate::train::{self, Event, Member, Override, Trained};

/// Trains `count` members and prints what each came to, side by side.
pub(super) fn ensemble(
    count: usize,
    args: &TrainArgs,
    (graph, topology): (&Graph, &Topology),
    options: &train::Options,
    console: &Console,
) -> Result<()> {
    let overrides: Vec<Override> =
        args.spread.members.iter().map(|text| text.parse()).collect::<Result<_>>()?;
    let members = train::members(count, topology, options, &args.lr_schedule, &overrides)?;
    let source = |trainer: &train::Trainer| Source::open(&args.data.data, &trainer.fields());
    let fit = |member: &Member| fitting(args, None, None, member.options.seed);
    let tell = |member: &Member, event: &Event<'_>| {
        if let Event::Epoch(_) = event {
            show(console, event, args.epochs, &format!("member {}  ", member.number));
        }
    };
    let trained = train::ensemble(&members, graph, topology, &source, &fit, &tell);
    console.print(&table(&members, &trained))?;
    for (member, trained) in members.iter().zip(&trained) {
        if let (Some(path), Ok(trained)) = (&args.output, trained) {
            write_weights(&of_member(path, member.number), &trained.weights)?;
        }
    }
    if let Some(path) = &args.logs.history {
        write_atomically(path, history(&members, &trained).as_bytes())?;
    }
    trained.into_iter().find_map(std::result::Result::err).map_or(Ok(()), Err)
}

/// `net.safetensors` as `net.member2.safetensors`.
fn of_member(path: &Path, number: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".member{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// The members' last epochs, the smallest loss marked.
fn table(members: &[Member], trained: &[Result<Trained>]) -> String {
    let last = |one: &Result<Trained>| one.as_ref().ok().and_then(|one| one.history.last().cloned());
    let losses = trained.iter().map(|one| last(one).map(|epoch| epoch.loss));
    let best = losses.flatten().min_by(f64::total_cmp);
    let mut out = format!(
        "  {:<7} {:<10} {:>6} {:>10} {:<22} {:>12}\n",
        "member", "device", "seed", "lr", "optimizer", "loss"
    );
    for (member, trained) in members.iter().zip(trained) {
        let options = &member.options;
        let epoch = last(trained);
        let loss = epoch.as_ref().map(|epoch| epoch.loss);
        let mark = if loss.is_some() && loss == best { '*' } else { ' ' };
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "{mark} {:<7} {:<10} {:>6} {:>10} {:<22} ",
            member.number,
            member.device,
            options.seed,
            options.rate.base,
            options.recipe.updates.to_string()
        );
        let _ = match (trained, epoch) {
            (Err(error), _) => {
                writeln!(out, "{}", Error::to_string(error).lines().next().unwrap_or_default())
            }
            (Ok(_), None) => writeln!(out, "{:>12}", "-"),
            (Ok(_), Some(epoch)) => {
                let metrics = epoch.metrics.iter().map(|(name, value)| format!("  {name} {value:.6}"));
                writeln!(out, "{:>12.6}{}", epoch.loss, metrics.collect::<String>())
            }
        };
    }
    out
}

/// Every epoch of every member, as CSV.
fn history(members: &[Member], trained: &[Result<Trained>]) -> String {
    let mut out = "member,device,seed,epoch,step,loss,rate\n".to_owned();
    for (member, trained) in members.iter().zip(trained) {
        let epochs = trained.iter().flat_map(|trained| &trained.history);
        for epoch in epochs {
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "{},{},{},{},{},{},{}",
                member.number,
                member.device,
                member.options.seed,
                epoch.epoch,
                epoch.step,
                epoch.loss,
                epoch.rate
            );
        }
    }
    out
}
