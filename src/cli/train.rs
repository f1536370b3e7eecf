//! `partition train`: a model's parameters made to fit data, on this machine.

use std::fmt::Write;
use std::path::Path;

use super::args::Batch;
use super::machine::{check_targets, gpus};
use super::model::ModelFile;
use super::options::{compile_options, duration, size, with_profile};
use super::planning::{interruptible, planning};
use super::run::init_seed;
use super::terminal::Console;
use super::train_args::{SpreadArgs, TrainArgs};
use super::train_ensemble::ensemble;
use super::train_logs::Logs;
use super::train_table::{layer_table, memory_table, plan_line};
use crate::compile;
use crate::data::{self, OnBad, Order, Position, Source};
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::load::weights::{Arrays, match_params};
use crate::place::Objective;
use crate::plan::{check_writable, write_atomically};
use crate::report::pipelined;
use crate::state::{Goal, Keep, Store, write_weights};
use crate::topology::Topology;
use crate::train::{self, Async, Epoch, Event, Fit, Parallel, Rate, Replicas, Stop, Trainer, fit};

/// Samples of a step, where neither the caller nor the model says.
const BATCH: i64 = 32;

pub(super) fn train(args: &TrainArgs, console: &Console) -> Result<()> {
    if let Some(path) = &args.output {
        check_writable(path)?;
    }
    let file = ModelFile::read(&args.model)?;
    let mut options = options(args, &file)?;
    let mut graph = network(&file, &options.compile)?;
    let largest = args.shape.batch == Some(Batch::Max);
    if options.compile.batch.is_none() && compile::has_open_batch(&graph) && !largest {
        options.compile.batch = Some(BATCH);
    }
    if let Some(weights) = &args.shape.weights {
        match_params(&mut graph, &Arrays::open(weights)?)?;
    }
    let topology = Topology::load(args.exec.devices.as_deref().unwrap_or("cpu"))?;
    let topology = with_profile(topology, &options.compile)?;
    if largest && args.spread.parallel.as_deref() == Some("auto") {
        return Err(Error::usage("--batch max", "ways of spreading a step are compared for one batch")
            .with_help("a --batch of your own, or --parallel with one way"));
    }
    options.gpus = gpus(&topology)?;
    if let Some(count) = args.spread.ensemble {
        return ensemble(count, args, (&graph, &topology), &options, console);
    }
    if let Some(way) = &args.spread.parallel {
        options = parallel(way, args, (&graph, &topology), options, console)?;
    }
    if largest {
        let found = planning(&args.placement, console, |control| {
            train::largest_batch(&graph, &topology, &options, validated(args), control)
                .map_err(|error| error.within(&file.name()))
        })?;
        console.print(&found.report.text())?;
        options = found.options;
    }
    let mut trainer = planning(&args.placement, console, |control| {
        Trainer::with(graph, &topology, &options, control).map_err(|error| error.within(&file.name()))
    })?;
    check_targets(trainer.plan(), &[], &options.gpus)?;
    console.print(&layer_table(trainer.layers()))?;
    console.print(&plan_line(&trainer))?;
    trainer.plan().notes.iter().for_each(|line| console.note(line));
    if let Some(figures) = trainer.pipeline() {
        console.print(&pipelined(figures))?;
    }
    if args.spread.replicas.is_some() || args.spread.parallel.is_some() {
        console.print(&memory_table(trainer.plan()))?;
    }
    if let Some(path) = &args.plan {
        write_atomically(path, trainer.plan().to_json().as_bytes())?;
    }
    let store = args.checkpoints.as_deref().map(|path| Store::open(path, keep(args))).transpose()?;
    let start = resume(args, store.as_ref(), &mut trainer, console)?;
    let source = Source::open(&args.data.data, &trainer.fields())?;
    let validation = args.data.validation_data.as_deref();
    let validation = validation.map(|spec| Source::open(spec, &trainer.fields())).transpose()?;
    let mut logs = Logs::open(&args.logs, &trainer)?;
    let history = interruptible(|stop| {
        let fitting = Fit {
            start,
            stop: Some(stop),
            ..fitting(args, validation.as_ref(), store.as_ref(), args.placement.seed)?
        };
        let mut told = |event: Event<'_>| {
            logs.hear(&event);
            show(console, &event, args.epochs, "");
        };
        fit(&mut trainer, &source, &fitting, &mut told)
    })?;
    if let Some((factor, skipped)) =
        trainer.loss_scale()?.filter(|&(factor, skipped)| factor > 1 || skipped > 0)
    {
        console.print(&format!("loss scale {factor}, {skipped} steps left out\n"))?;
    }
    if let Some(path) = &args.output {
        write_weights(path, &trainer.weights()?)?;
    }
    logs.close(&history, &trainer)
}

fn options(args: &TrainArgs, file: &ModelFile) -> Result<train::Options> {
    if !args.lr.is_finite() || args.lr < 0.0 {
        return Err(Error::usage(format!("--lr {}", args.lr), "expected a number of 0 or more"));
    }
    let mut options = train::Options::new(args.loss.parse()?);
    options.recipe.updates = args.optimizer.parse()?;
    options.recipe.freeze.clone_from(&args.freeze);
    options.recipe.scaling = args.loss_scale.as_deref().map(str::parse).transpose()?;
    options.recipe.outputs = !args.metrics.is_empty();
    options.rate = Rate::parse(args.lr, &args.lr_schedule)?;
    options.seed = args.exec.init.as_deref().map_or(Ok(args.placement.seed), init_seed)?;
    match args.spread.replicas {
        Some(workers) if args.spread.sync == "async" => {
            let SpreadArgs { staleness, warm_up, .. } = args.spread;
            if args.spread.spare > 0 {
                let place = format!("--spare {}", args.spread.spare);
                let message = "with --sync async nobody waits for anybody";
                return Err(Error::usage(place, message).with_help("--sync allreduce"));
            }
            let stale = args.spread.stale.parse()?;
            options.asynchronous = Some(Async { workers, staleness, stale, warm_up });
        }
        Some(count) => options.replicas = Some(replicas(&args.spread, count)?),
        None => {}
    }
    options.timeout = args.exec.timeout.as_deref().map(|text| duration("--timeout", text)).transpose()?;
    options.check_numerics = args.check_numerics;
    options.compile = compile_options(&args.shape, &args.placement)?;
    let pipeline = options.compile.pipeline.take();
    match args.shape.schedule {
        Some(_) => options.pipeline = pipeline,
        None => options.recipe.updates.microbatches = args.shape.microbatches.unwrap_or(1),
    }
    options.compile.model_hash = file.hash();
    options.compile.model_path = file.path.as_ref().map(|path| path.display().to_string());
    Ok(options)
}

/// The options with the way of spreading the step that is asked for, or the best of all.
fn parallel(
    way: &str,
    args: &TrainArgs,
    (graph, topology): (&Graph, &Topology),
    mut options: train::Options,
    console: &Console,
) -> Result<train::Options> {
    let way: Parallel = way.parse()?;
    options.replicas = Some(replicas(&args.spread, 1)?);
    if let Some(strategy) = way.strategy(topology, &options) {
        return Ok(train::spread(&options, strategy));
    }
    let candidates = planning(&args.placement, console, |control| {
        Ok(train::candidates(graph, topology, &options, control))
    })?;
    let best = train::best(&candidates);
    console.print(&super::train_table::candidates(&candidates, best))?;
    let Some(strategy) = best else {
        // All of them failed: what the first one lacks is what to tell.
        let first = candidates.into_iter().find_map(|candidate| candidate.estimate.err());
        return Err(first.unwrap_or_else(|| Error::Internal("no way was planned for".into())));
    };
    options.compile.place.objective = Objective::Latency;
    Ok(train::spread(&options, strategy))
}

/// Replicas as the arguments ask for them.
pub(super) fn replicas(args: &SpreadArgs, count: usize) -> Result<Replicas> {
    Ok(Replicas {
        count,
        each: args.devices_each,
        spare: args.spare,
        shards: args.shards.unwrap_or(count),
        sync: args.sync.parse()?,
        exchange: args.exchange.parse()?,
        transfer: args.transfer.parse()?,
        zero: args.zero.parse()?,
        bucket: args.bucket.as_deref().map(|text| size("--bucket", text)).transpose()?.map(|size| size.get()),
    })
}

fn network(file: &ModelFile, options: &compile::Options) -> Result<Graph> {
    match file.load(&options.dims)? {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => {
            Err(Error::usage(file.name(), "a cost graph can be planned, but has nothing to train"))
        }
    }
}

fn validated(args: &TrainArgs) -> bool {
    args.data.validation_data.is_some() || args.data.validation_split > 0.0
}

/// Which checkpoints are kept.
pub(super) fn keep(args: &TrainArgs) -> Keep {
    let watched = if validated(args) { "val_loss" } else { "loss" };
    Keep { best: Some((watched.to_owned(), Goal::Less)), ..Keep::default() }
}

/// Where the data goes on: at its start, or where the newest checkpoint stands.
pub(super) fn resume(
    args: &TrainArgs,
    store: Option<&Store>,
    trainer: &mut Trainer,
    console: &Console,
) -> Result<Position> {
    let Some(store) = store.filter(|_| args.resume) else { return Ok(Position::default()) };
    let Some(found) = store.latest()? else {
        console.note("there is no checkpoint yet: the run begins");
        return Ok(Position::default());
    };
    found.passed_over.iter().for_each(|line| console.note(line));
    trainer.restore(&found.checkpoint)?;
    console.note(&format!("goes on after step {}, from {}", found.checkpoint.step, found.path.display()));
    Ok(found.checkpoint.position)
}

/// How the arguments ask to train; `seed` draws the order of the records.
pub(super) fn fitting<'a>(
    args: &TrainArgs,
    validation: Option<&'a Source>,
    store: Option<&'a Store>,
    seed: u64,
) -> Result<Fit<'a>> {
    let split = args.data.validation_split;
    if !(0.0..1.0).contains(&split) {
        return Err(Error::usage(format!("--validation-split {split}"), "expected a share from 0 to 1"));
    }
    let order = match args.data.in_order {
        true => Order::Fifo,
        false => Order::Shuffle { seed, window: args.data.shuffle_window },
    };
    let on_bad = if args.data.on_bad_record == "skip" { OnBad::Skip } else { OnBad::Fail };
    let data = data::Options { order, on_bad, threads: args.data.readers, ..data::Options::default() };
    Ok(Fit {
        epochs: args.epochs,
        steps: args.steps,
        data,
        validation_split: split,
        validation,
        drop_remainder: args.data.drop_remainder,
        metrics: args.metrics.iter().map(|metric| metric.parse()).collect::<Result<_>>()?,
        patience: args.patience,
        store,
        policy: args.checkpoint_every.as_deref().map(str::parse).transpose()?.unwrap_or_default(),
        limit: args.run_limit.as_deref().map(|text| duration("--run-limit", text)).transpose()?,
        ..Fit::default()
    })
}

/// Tells what happens; `who` stands before the line of an epoch.
pub(super) fn show(console: &Console, event: &Event<'_>, epochs: u64, who: &str) {
    match event {
        Event::Step { .. } => {}
        // A closed pipe ends the output, not the training.
        Event::Epoch(epoch) => drop(console.print(&format!("{who}{}", epoch_line(epoch, epochs)))),
        Event::Saved(path) => console.note(&format!("checkpoint {}", Path::display(path))),
        Event::Stopped(reason) => console.note(match reason {
            Stop::Patience => "ended early: the loss falls no more",
            Stop::Steps => "ended after the steps asked for",
            Stop::Time => "ended: the time is over",
            Stop::Asked => "ended after the step under way",
        }),
        Event::LeftOut(records) => {
            console.note(&format!("the last {records} records of each epoch make no batch and are left out"));
        }
        Event::Input(stats) => console.note(&stats.line()),
    }
}

fn epoch_line(epoch: &Epoch, epochs: u64) -> String {
    let seconds = epoch.wall.as_secs_f64();
    let speed = if seconds > 0.0 { epoch.samples as f64 / seconds } else { 0.0 };
    let mut line = format!("epoch {}/{epochs}  loss {:.6}", epoch.epoch, epoch.loss);
    for (name, value) in &epoch.metrics {
        // Writing to a String cannot fail.
        let _ = write!(line, "  {name} {value:.6}");
    }
    let _ = writeln!(line, "  {:.0} ms  {speed:.0} samples/s", seconds * 1e3);
    line
}
