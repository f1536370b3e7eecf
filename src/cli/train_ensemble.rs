//! `partition train --ensemble N`: one independent network on each device.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use super::args::Batch;
use super::planning::planning;
use super::signals;
use super::terminal::Console;
use super::train_args::TrainArgs;
use super::train_before::{Resumed, found, of_member, resume};
use super::train_data::records;
use super::train_options::{fitting, keep};
use super::train_watch::Watch;
use crate::data::Source;
use crate::error::{Error, Result};
use crate::files::write_atomically;
use crate::ir::Graph;
use crate::report::{Column, TextTable, clipped};
use crate::state::{Store, write_state};
use crate::topology::Topology;
use crate::train::{self, Event, Fit, Member, Override, Trained, Trainer};

/// Trains `count` members and prints what each came to, side by side.
pub(super) fn ensemble(
    count: usize,
    args: &TrainArgs,
    graph: &Graph,
    topology: &Topology,
    options: &train::Options,
    console: &Console,
) -> Result<()> {
    let overrides: Vec<Override> =
        args.spread.members.iter().map(|text| text.parse()).collect::<Result<_>>()?;
    let mut members = train::members(count, topology, options, &args.lr_schedule, &overrides)?;
    if args.shape.batch == Some(Batch::Max) {
        give_batch(&mut members, args, graph, topology, console)?;
    }
    // What a member lacks is reported before any of them is planned.
    members.iter().try_for_each(|member| check(args, graph, member))?;
    let store = |member: &Member| folder(args, member).map(|path| Store::open(&path, keep(args))).transpose();
    let stores = members.iter().map(store).collect::<Result<Vec<_>>>()?;
    let source =
        |trainer: &Trainer| Source::open(args.data.data.as_deref().unwrap_or_default(), &trainer.fields());
    let watches: Vec<Mutex<Watch<'_>>> =
        members.iter().map(|member| Mutex::new(Watch::member(console, args.epochs, member.number))).collect();
    let on_event = |member: &Member, event: &Event<'_>| match event {
        Event::LeftOut(_) | Event::Stopped(_) | Event::BitsForSigns | Event::Input(_) => {}
        Event::Begins { .. }
        | Event::Step { .. }
        | Event::Epoch(_)
        | Event::CutShort(_)
        | Event::NoBatches(_)
        | Event::Saved(_) => {
            watches[member.number - 1].lock().unwrap_or_else(PoisonError::into_inner).hear(event);
        }
    };
    let trained = signals::orderly(|stop| {
        let fit = |member: &Member, trainer: &mut Trainer| {
            let store = stores[member.number - 1].as_ref();
            let hash = &member.options.compile.model_hash;
            let Resumed { start, best, counters } =
                resume(args, found(args, folder(args, member).as_deref(), hash)?, trainer, console)?;
            let fitting = fitting(args, None, store, member.options.seed)?;
            Ok(Fit { start, best, counters, stop: Some(stop), ..fitting })
        };
        train::ensemble(&members, graph, topology, &source, &fit, &on_event)
    });
    write_results(args, &members, &trained)?;
    console.print(&table(&members, &trained, console.width()))?;
    for watch in watches {
        watch.into_inner().unwrap_or_else(PoisonError::into_inner).result()?;
    }
    signals::check()?;
    trained.into_iter().find_map(std::result::Result::err).map_or(Ok(()), Err)
}

/// Where a member's checkpoints are kept, if they are.
fn folder(args: &TrainArgs, member: &Member) -> Option<PathBuf> {
    args.checkpoints.as_deref().map(|folder| folder.join(format!("member{}", member.number)))
}

/// Error: records or a checkpoint that a member cannot be trained with.
fn check(args: &TrainArgs, graph: &Graph, member: &Member) -> Result<()> {
    let fitting = fitting(args, None, None, member.options.seed)?;
    records(args, graph, &member.options, &fitting)
        .map_err(|error| error.within(&format!("member {}", member.number)))?;
    found(args, folder(args, member).as_deref(), &member.options.compile.model_hash).map(drop)
}

/// Writes the weights of those that were trained, and every member's history.
fn write_results(args: &TrainArgs, members: &[Member], trained: &[Result<Trained>]) -> Result<()> {
    for (member, trained) in members.iter().zip(trained) {
        if let (Some(path), Ok(trained)) = (&args.output, trained) {
            write_state(&of_member(path, member.number), &trained.weights, &trained.complex)?;
        }
    }
    match &args.logs.history {
        Some(path) => write_atomically(path, history(members, trained).as_bytes()),
        None => Ok(()),
    }
}

/// Gives all members the largest batch that fits each of them.
fn give_batch(
    members: &mut [Member],
    args: &TrainArgs,
    graph: &Graph,
    topology: &Topology,
    console: &Console,
) -> Result<()> {
    let largest = |member: &Member| {
        planning(&args.placement, console, |control| {
            train::largest_batch(graph, topology, &member.options, false, control)
        })
    };
    let found = members.iter().map(largest).collect::<Result<Vec<_>>>()?;
    let Some(least) = found.iter().map(|found| &found.report).min_by_key(|report| report.batch) else {
        return Ok(());
    };
    console.print(&least.text())?;
    for member in members {
        member.options.compile.batch = Some(least.batch);
    }
    Ok(())
}

/// The members' last epochs, the smallest loss marked; why a member has none.
fn table(members: &[Member], trained: &[Result<Trained>], width: Option<usize>) -> String {
    let last = |one: &Result<Trained>| one.as_ref().ok().and_then(|one| one.history.last().cloned());
    let losses = trained.iter().map(|one| last(one).map(|epoch| epoch.loss));
    let best = losses.flatten().min_by(f64::total_cmp);
    let mut table = TextTable::new(&[
        Column::words("  member"),
        Column::words("device"),
        Column::figures("seed"),
        Column::figures("lr"),
        Column::words("optimizer"),
        Column::figures("loss"),
        Column::words("metrics"),
    ]);
    let mut failed = String::new();
    for (member, trained) in members.iter().zip(trained) {
        let options = &member.options;
        let epoch = last(trained);
        let loss = epoch.as_ref().map(|epoch| epoch.loss);
        let mark = if loss.is_some() && loss == best { '*' } else { ' ' };
        let metrics = epoch.iter().flat_map(|epoch| &epoch.metrics);
        let metrics: Vec<String> = metrics.map(|(name, value)| format!("{name} {value:.6}")).collect();
        table.row([
            format!("{mark} {}", member.number),
            clipped(&member.device),
            options.seed.to_string(),
            options.rate.base.to_string(),
            options.recipe.updates.to_string(),
            loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.6}")),
            metrics.join(", "),
        ]);
        if let Err(error) = trained {
            let text = Error::to_string(error);
            // Writing to a String cannot fail.
            let _ = writeln!(failed, "member {}: {}", member.number, text.lines().next().unwrap_or_default());
        }
    }
    table.text(width) + &failed
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
