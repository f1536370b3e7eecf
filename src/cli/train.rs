//! `partition train`: trains a model on data, on this machine.

use std::collections::BTreeMap;

use super::args::{Backend, Batch};
use super::machine::{check_hosts, check_targets, gpus, topology};
use super::model::ModelFile;
use super::options::with_profile;
use super::planning::{Search, planning, searching};
use super::signals;
use super::terminal::Console;
use super::train_args::TrainArgs;
use super::train_before::{NOT_HERE, Outputs, Resumed, check_here, found, resume};
use super::train_data::{Records, input_names, note_sizes, open_dims, records, sizes_of_inputs};
use super::train_ensemble::ensemble;
use super::train_logs::Logs;
use super::train_options::{fitting, keep, options, replicas, validated};
use super::train_table::{candidates, layer_table, memory_table, report_plan};
use super::train_watch::Watch;
use super::weights::{Missing, take_weights};
use crate::compile;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::load::Model;
use crate::place::{Effort, Objective};
use crate::report::pipelined;
use crate::state::{Found, Store, write_state};
use crate::topology::{Engine, Topology};
use crate::train::{self, Event, Fit, Parallel, Trainer, check_trained, fit};

/// Samples of a step, where neither the caller nor the model says.
const BATCH: i64 = 32;

/// What is to be trained, as far as it is known before planning.
struct Asked {
    file: ModelFile,
    graph: Graph,
    topology: Topology,
    options: train::Options,
    /// None where nothing is trained.
    records: Option<Records>,
}

pub(super) fn train(args: &TrainArgs, console: &Console) -> Result<()> {
    // Whatever can be refused is refused before anything takes long.
    let outputs = Outputs::of(args)?;
    let asked = asked(args, &outputs, console)?;
    let goes_on = match args.spread.ensemble {
        Some(_) => None,
        None => found(args, args.checkpoints.as_deref(), &asked.options.compile.model_hash)?,
    };
    let Asked { file, graph, topology, mut options, records } = asked;
    if !args.dry_run {
        check_here(&topology)?;
        options.gpus = gpus(&topology).map_err(|error| error.with_help(NOT_HERE))?;
    }
    if let Some(count) = args.spread.ensemble {
        return ensemble(count, args, &graph, &topology, &options, console);
    }
    let mut search = Search::Limited;
    if let Some(way) = &args.spread.parallel {
        (options, search) = parallel(way, args, &graph, &topology, options, console)?;
    }
    if args.shape.batch == Some(Batch::Max) {
        let found = planning(&args.placement, console, |control| {
            train::largest_batch(&graph, &topology, &options, validated(args), control)
                .map_err(|error| error.within(&file.name()))
        })?;
        console.print(&found.report.text())?;
        options = found.options;
    }
    let told = [train::of_parts(&graph, &options)?, train::of_ends(&graph, &options.recipe.loss)];
    told.iter().flatten().for_each(|line| console.note(line));
    if args.dry_run {
        return super::train_dry::dry_run((args, search), graph, &topology, &options, &file, console);
    }
    let trainer = searching(search, &args.placement, console, |control| {
        Trainer::with(graph, &topology, &options, control).map_err(|error| error.within(&file.name()))
    })?;
    // A search that was interrupted has a plan, but it is not trained by.
    signals::check()?;
    check_targets(trainer.plan(), &[], &options.gpus).map_err(|error| error.with_help(NOT_HERE))?;
    console.print(&layer_table(trainer.layers(), console.width()))?;
    report_plan(args, trainer.plan(), console)?;
    if let Some(figures) = trainer.pipeline() {
        console.print(&pipelined(figures))?;
    }
    if args.spread.replicas.is_some() || args.spread.parallel.is_some() {
        console.print(&memory_table(trainer.plan(), console.width()))?;
    }
    let records = records.ok_or_else(|| Error::Internal("training without data".into()))?;
    trained(args, trainer, &records, goes_on, console)
}

/// Reads the arguments, the model and the first record of the data, and refuses what does not go together.
fn asked(args: &TrainArgs, outputs: &Outputs, console: &Console) -> Result<Asked> {
    let file = ModelFile::read(&args.model, args.shape.trust.links())?;
    let mut options = options(args, &file)?;
    let fitting = fitting(args, None, None, args.placement.seed)?;
    let topology = match (args.dry_run, args.exec.devices.as_deref()) {
        // What is only planned may be anywhere.
        (true, spec) => Topology::load(spec.unwrap_or(Engine::CPU))?,
        (false, spec) => topology(spec, Backend::Auto)?,
    };
    check_hosts(&topology, args.exec.simulate_hosts || args.dry_run)?;
    let topology = with_profile(topology, &options.compile, console)?;
    let file = file.taking_all(&args.shape.with_inputs, &options.compile.dims)?;
    // A mask that the data holds is not passed over.
    let file = file.taking(input_names(args)?);
    let mut graph = network(&file, args, &mut options.compile, console)?;
    graph.notes().iter().chain(&graph.rules().unheeded).for_each(|line| console.note(line));
    check_trained(&graph)?;
    train::check_classes(&graph, &options.recipe.loss).map_err(|error| error.within(&file.name()))?;
    let loss = options.recipe.loss.of_model(&graph);
    if loss != options.recipe.loss {
        console.note(&format!("the model was compiled to leave a class out: --loss {loss}"));
        options.recipe.loss = loss;
    }
    let largest = args.shape.batch == Some(Batch::Max);
    if options.compile.batch.is_none() && compile::has_open_batch(&graph) && !largest {
        options.compile.batch = Some(BATCH);
    }
    if largest && args.spread.parallel.as_deref() == Some("auto") {
        return Err(Error::usage("--batch max", "ways of spreading a step are compared for one batch")
            .with_help("a --batch of your own, or --parallel with one way"));
    }
    let weights = file.weights(&args.shape)?;
    take_weights(&mut graph, &weights, Missing::MadeUp, console)?;
    outputs.hold(&graph)?;
    open_dims(args, &graph, &mut options, console)?;
    let records = records(args, &graph, &options, &fitting)?;
    outputs.are_not_read(args, &file, &graph, &records.as_ref().map(Records::all).unwrap_or_default())?;
    Ok(Asked { file, graph, topology, options, records })
}

/// Goes over the records, and writes what is asked for.
fn trained(
    args: &TrainArgs,
    mut trainer: Trainer,
    records: &Records,
    goes_on: Option<Found>,
    console: &Console,
) -> Result<()> {
    let store = args.checkpoints.as_deref().map(|path| Store::open(path, keep(args))).transpose()?;
    let resumed = goes_on.is_some();
    let Resumed { start, best, counters } = resume(args, goes_on, &mut trainer, console)?;
    let mut logs = Logs::open(&args.logs, &trainer, resumed)?;
    let mut watch = Watch::new(console, args.epochs);
    let ended = signals::orderly(|stop| {
        let validation = records.validation.as_ref();
        let fitting = fitting(args, validation, store.as_ref(), args.placement.seed)?;
        let fitting = Fit { start, best, counters, stop: Some(stop), ..fitting };
        let mut observe = |event: Event<'_>| {
            logs.hear(&event);
            watch.hear(&event);
        };
        fit(&mut trainer, &records.source, &fitting, &mut observe)
    });
    watch.end();
    if let Err(error) = ended {
        // The first error is the one to report.
        let _ = logs.close(&trainer, Some(&error));
        return Err(error);
    }
    if let Some(path) = &args.output {
        write_state(path, &trainer.state()?, trainer.complex())?;
    }
    logs.close(&trainer, None)?;
    if let Some((factor, skipped)) =
        trainer.loss_scale()?.filter(|&(factor, skipped)| factor > 1 || skipped > 0)
    {
        console.print(&format!("loss scale {factor}, {skipped} steps left out\n"))?;
    }
    watch.close(trainer.plan(), trainer.parts())?;
    signals::check()
}

/// The options with the way of spreading the step that is asked for, or the best of all; where the search for that was cut
/// short, the step is to be planned as it was for the comparison.
fn parallel(
    way: &str,
    args: &TrainArgs,
    graph: &Graph,
    topology: &Topology,
    mut options: train::Options,
    console: &Console,
) -> Result<(train::Options, Search)> {
    let way: Parallel = way.parse()?;
    let split = &options.compile.split;
    if way == Parallel::Split && !split.auto && split.rules.is_empty() {
        return Err(Error::usage("--parallel split", "with --split none nothing is divided")
            .with_help("leave one of them out"));
    }
    let devices = topology.computing().count();
    if let Parallel::Hybrid(each) = way
        && each > devices
    {
        let message = format!("a replica takes {each} devices, and there are {devices}");
        return Err(Error::usage(format!("--parallel hybrid:{each}"), message)
            .with_help(format!("--devices with at least {each}, or a smaller hybrid:K")));
    }
    options.replicas = Some(replicas(&args.spread, 1)?);
    // As the ways are compared.
    options.compile.place.objective = Objective::Latency;
    if let [strategy] = way.strategies(topology, &options)[..]
        && way != Parallel::Auto
    {
        return Ok((train::spread(&options, strategy), Search::Limited));
    }
    let mut search = Search::Limited;
    let compared = planning(&args.placement, console, |control| {
        let compared = train::candidates(graph, topology, &options, way, control);
        if control.stopped() {
            search = Search::Again;
        }
        compared
    })?;
    let best = train::best(&compared);
    console.print(&candidates(&compared, best, console.width()))?;
    let Some(strategy) = best else {
        // All of them failed: report what the first one lacks.
        let first = compared.into_iter().find_map(|candidate| candidate.estimate.err());
        return Err(first.unwrap_or_else(|| Error::Internal("no way was planned for".into())));
    };
    if search == Search::Again {
        options.compile.place.effort = Effort::Fast;
    }
    Ok((train::spread(&options, strategy), search))
}

/// Reads the network, with the sizes of the records where it has to know them.
fn network(
    file: &ModelFile,
    args: &TrainArgs,
    options: &mut compile::Options,
    console: &Console,
) -> Result<Graph> {
    let mut found = BTreeMap::new();
    let mut find = |graph: &Graph| {
        found = sizes_of_inputs(args, graph)?;
        Ok(found.clone())
    };
    let batch = Some(options.batch.unwrap_or(BATCH));
    match file.load_sized(&mut options.dims, batch, &mut find)? {
        Model::Graph(graph) => {
            note_sizes(&found, console);
            Ok(graph)
        }
        Model::CostGraph { .. } => {
            Err(Error::usage(file.name(), "a cost graph can be planned, but has nothing to train"))
        }
    }
}
