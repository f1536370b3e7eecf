//! `partition train`: a model's parameters made to fit data, on this machine.

use std::fmt::Write;
use std::path::Path;

use super::args::Batch;
use super::machine::check_targets;
use super::model::ModelFile;
use super::options::{compile_options, duration, with_profile};
use super::planning::{interruptible, planning};
use super::run::init_seed;
use super::terminal::Console;
use super::train_args::TrainArgs;
use super::train_logs::Logs;
use crate::compile;
use crate::data::{self, OnBad, Order, Position, Source};
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::load::weights::{Arrays, match_params};
use crate::plan::write_atomically;
use crate::state::{Goal, Keep, Store, write_weights};
use crate::topology::Topology;
use crate::train::{self, Epoch, Event, Fit, Layer, Rate, Replicas, Stop, Trainer, fit};

/// Samples of a step, where neither the caller nor the model says.
const BATCH: i64 = 32;

pub(super) fn train(args: &TrainArgs, console: &Console) -> Result<()> {
    let file = ModelFile::read(&args.model)?;
    let mut options = options(args, &file)?;
    let mut graph = network(&file, &options.compile)?;
    if options.compile.batch.is_none() && compile::has_open_batch(&graph) {
        options.compile.batch = Some(BATCH);
    }
    if let Some(weights) = &args.shape.weights {
        match_params(&mut graph, &Arrays::open(weights)?)?;
    }
    let topology = Topology::load(args.devices.as_deref().unwrap_or("cpu"))?;
    let topology = with_profile(topology, &options.compile)?;
    let mut trainer = planning(&args.placement, console, |control| {
        Trainer::with(graph, &topology, &options, control).map_err(|error| error.within(&file.name()))
    })?;
    check_targets(trainer.plan(), &[])?;
    console.print(&layer_table(trainer.layers()))?;
    console.print(&plan_line(&trainer))?;
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
        let fitting = Fit { start, stop: Some(stop), ..fitting(args, validation.as_ref(), store.as_ref())? };
        let mut told = |event: Event<'_>| {
            logs.hear(&event);
            show(console, &event, args.epochs);
        };
        fit(&mut trainer, &source, &fitting, &mut told)
    })?;
    if let Some(path) = &args.output {
        write_weights(path, &trainer.weights()?)?;
    }
    logs.close(&history, &trainer)
}

fn options(args: &TrainArgs, file: &ModelFile) -> Result<train::Options> {
    if args.shape.batch == Some(Batch::Max) {
        return Err(Error::usage("--batch max", "a training step takes batches of one size")
            .with_help("partition MODEL --batch max finds the largest for running"));
    }
    if args.shape.schedule.is_some() {
        let message = "microbatches of a training step run one after the other";
        return Err(Error::usage("--schedule", message).with_help("leave it out"));
    }
    if !args.lr.is_finite() || args.lr < 0.0 {
        return Err(Error::usage(format!("--lr {}", args.lr), "expected a number of 0 or more"));
    }
    let mut options = train::Options::new(args.loss.parse()?);
    options.recipe.updates = args.optimizer.parse()?;
    options.recipe.freeze.clone_from(&args.freeze);
    options.recipe.outputs = !args.metrics.is_empty();
    options.rate = Rate::parse(args.lr, &args.lr_schedule)?;
    options.seed = args.init.as_deref().map_or(Ok(args.placement.seed), init_seed)?;
    options.replicas = match args.replicas {
        Some(count) => {
            let shards = args.shards.unwrap_or(count);
            Some(Replicas { count, shards, sync: args.sync.parse()? })
        }
        None => None,
    };
    options.timeout = args.timeout.as_deref().map(|text| duration("--timeout", text)).transpose()?;
    options.check_numerics = args.check_numerics;
    options.compile = compile_options(&args.shape, &args.placement)?;
    options.compile.pipeline = None;
    options.recipe.updates.microbatches = args.shape.microbatches.unwrap_or(1);
    options.compile.model_hash = file.hash();
    options.compile.model_path = file.path.as_ref().map(|path| path.display().to_string());
    Ok(options)
}

fn network(file: &ModelFile, options: &compile::Options) -> Result<Graph> {
    match file.load(&options.dims)? {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => {
            Err(Error::usage(file.name(), "a cost graph can be planned, but has nothing to train"))
        }
    }
}

fn keep(args: &TrainArgs) -> Keep {
    let validated = args.data.validation_data.is_some() || args.data.validation_split > 0.0;
    let watched = if validated { "val_loss" } else { "loss" };
    Keep { best: Some((watched.to_owned(), Goal::Less)), ..Keep::default() }
}

/// Where the data goes on: at its start, or where the newest checkpoint stands.
fn resume(
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

fn fitting<'a>(
    args: &TrainArgs,
    validation: Option<&'a Source>,
    store: Option<&'a Store>,
) -> Result<Fit<'a>> {
    let split = args.data.validation_split;
    if !(0.0..1.0).contains(&split) {
        return Err(Error::usage(format!("--validation-split {split}"), "expected a share from 0 to 1"));
    }
    let order = match args.data.in_order {
        true => Order::Fifo,
        false => Order::Shuffle { seed: args.placement.seed, window: args.data.shuffle_window },
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

/// The layers as a table: name, sizes, parameters, device.
fn layer_table(layers: &[Layer]) -> String {
    let mut rows: Vec<[String; 4]> =
        vec![["layer".into(), "output".into(), "parameters".into(), "device".into()]];
    for layer in layers {
        let sizes: Vec<String> = layer.shape.iter().map(ToString::to_string).collect();
        let name = format!("{} ({})", layer.name, layer.op);
        rows.push([name, sizes.join("x"), grouped(layer.parameters), layer.device.clone()]);
    }
    let total: u64 = layers.iter().map(|layer| layer.parameters).sum();
    rows.push(["total".into(), String::new(), grouped(total), String::new()]);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut out = String::new();
    for [name, sizes, parameters, device] in &rows {
        let [a, b, c] = widths;
        let line = format!("{name:<a$}  {sizes:>b$}  {parameters:>c$}  {device}");
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// `10,211,100`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn plan_line(trainer: &Trainer) -> String {
    let plan = trainer.plan();
    let mut used: Vec<&str> = plan.placement.iter().map(|(_, device)| device.as_str()).collect();
    used.sort_unstable();
    used.dedup();
    format!(
        "a step: {} launches and copies on {} of {} devices, {} moved, predicted {}\n",
        plan.steps.len(),
        used.len(),
        plan.devices.len(),
        plan.cost.step_bytes,
        plan.cost.latency_ns
    )
}

fn show(console: &Console, event: &Event<'_>, epochs: u64) {
    match event {
        Event::Step { .. } => {}
        // A closed pipe ends the output, not the training.
        Event::Epoch(epoch) => drop(console.print(&epoch_line(epoch, epochs))),
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
