//! `partition MODEL --devices SPEC`: plans, and prints or writes what was asked for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::args::{Batch, Emit, ModelArgs, PlanArgs};
use super::deliver::{deliver, emitted, is_summarised, summary};
use super::destinations::{Destinations, devices_file, files_of};
use super::fit::{Wanted, fit};
use super::infeasible;
use super::model::ModelFile;
use super::modes::{Explicit, check_cost_graph, check_fit};
use super::notes::{note_assumptions, note_gap, note_network, note_shares};
use super::options::{check_pipeline, compile_options, replicas, split_options, with_profile};
use super::planning::planning;
use super::score::{read_placement, score};
use super::shared_cores::{shared_cores, used};
use super::terminal::Console;
use crate::compile;
use crate::error::{Error, Result};
use crate::explain::Fewer;
use crate::ir::Graph;
use crate::load::Model;
use crate::place::Previous;
use crate::report::{self, BatchLine, CurveLine, SearchLine, Summary};
use crate::topology::Topology;

pub(super) fn plan(args: &PlanArgs, explicit: &Explicit, console: &Console) -> Result<()> {
    let Some(path) = &args.model else {
        return Err(Error::usage("MODEL", "no model is given").with_help("partition --help"));
    };
    if args.fit.is_some() {
        check_fit(explicit)?;
    }
    let emit = emitted(args)?;
    let output = Destinations::new([("--output", args.output.as_ref())])?;
    let read = [
        Some(path),
        args.shape.weights.as_ref(),
        args.shape.adapter.as_ref(),
        args.from.as_ref(),
        args.score.as_ref(),
    ];
    let others = [args.placement.profile.as_ref(), args.fit.as_ref()];
    let read = read.into_iter().chain(others).flatten().map(|path| path.as_path());
    output.are_not_read(read.chain(devices_file(args.devices.as_deref())))?;
    let mut options = compile_options(&args.shape, &args.placement)?;
    check_pipeline(options.pipeline.as_ref(), &args.placement)?;
    options.split = split_options(&args.split)?;
    let wanted = Wanted::of(args)?;
    let mut file = ModelFile::read(path, args.shape.trust.links())?
        .taking_all(&args.shape.with_inputs, &options.dims)?;
    // A folder's model, too.
    output.are_not_read(file.path.as_deref())?;
    let model = read_model(args, &file, &mut options, explicit, console)?;
    if let Model::Graph(graph) = &model {
        output.are_not_read(files_of(graph))?;
    }
    options.model_hash = file.hash();
    options.model_path = file.path.as_ref().map(|path| path.display().to_string());
    if let Model::CostGraph { .. } = &model {
        // It may be larger than the graph.
        file.bytes = Vec::new();
    }
    if let Some(wanted) = &wanted {
        return fit(args, wanted, &model, &options, emit, console);
    }
    let topology = with_profile(topology_for(args.devices.as_deref(), &model)?, &options, console)?;
    if let Some(rule) = args.replicas.map(|count| replicas(count, &topology)).transpose()?.flatten() {
        (options.split.auto, options.split.rules) = (false, vec![rule]);
    }
    if let Some(old) = &args.from {
        replaced(args, old, &mut options)?;
    }
    if let Some(placement) = &args.score {
        return score(args, model, &file.name(), &topology, &options, placement, console);
    }
    let found = find_plan(args, &file, model, &topology, &options, console);
    if let (Err(error), Emit::SummaryJson) = (&found, emit) {
        infeasible::print_json(error)?;
    }
    let Found { compiled, largest, search, curve, alternatives, fewer } = found?;
    note_assumptions(&compiled, console);
    note_gap(&compiled, &options, console);
    note_shares(&compiled, &options, console);
    if let Some(line) = shared_cores(&compiled.topology, used(&compiled.plan)) {
        console.note(&line);
    }
    let summary = Summary { fewer, largest, search, curve, ..summary(&compiled, &options, alternatives) };
    let outcome = deliver(args, &compiled, &summary, console);
    // The process ends: there is no need to free millions of names one by one.
    std::mem::forget(compiled);
    outcome
}

/// Loads the model, says what was assumed of it, and checks the weights that are given with it.
fn read_model(
    args: &PlanArgs,
    file: &ModelFile,
    options: &mut compile::Options,
    explicit: &Explicit,
    console: &Console,
) -> Result<Model> {
    let mut model = {
        let _working = console.working("reading the model");
        read_sized(file, options)?
    };
    if let Model::CostGraph { .. } = &model {
        check_cost_graph(explicit, &args.split.rules)?;
    }
    if let Model::Graph(graph) = &model {
        note_network(graph, &options.dims, console);
    }
    if args.shape.weights.is_some() || args.shape.adapter.is_some() {
        check_weights(&mut model, file, &args.shape, console)?;
    }
    Ok(model)
}

/// The model, with its batch bound only where it cannot be read otherwise and is not divided.
fn read_sized(file: &ModelFile, options: &mut compile::Options) -> Result<Model> {
    let Some(microbatches) = options.pipeline.map(|pipeline| pipeline.microbatches) else {
        return file.load_sized(&mut options.dims, options.batch, &mut |_| Ok(BTreeMap::new()));
    };
    let batch = options.batch.unwrap_or(i64::from(microbatches));
    let mut find =
        |graph: &Graph| Ok(compile::batch_dim(graph).map(|dim| (dim, batch)).into_iter().collect());
    let open = file.load(&options.dims);
    open.map_err(|error| file.closed_batch(error, microbatches, &options.dims, &mut find))
}

/// A plan, and what its summary says beside it.
struct Found {
    compiled: compile::Compiled,
    largest: Option<BatchLine>,
    search: Vec<SearchLine>,
    curve: Vec<CurveLine>,
    alternatives: Vec<compile::Alternative>,
    fewer: Option<Fewer>,
}

fn find_plan(
    args: &PlanArgs,
    file: &ModelFile,
    model: Model,
    topology: &Topology,
    options: &compile::Options,
    console: &Console,
) -> Result<Found> {
    let summarised = is_summarised(args, emitted(args)?, console);
    planning(&args.placement, console, |control| {
        let mut largest = None;
        let compiled = match args.shape.batch {
            Some(Batch::Max) => match compile::largest_batch(&model, topology, options, control) {
                Ok(found) => {
                    let is_rewritten = found.compiled.is_rewritten();
                    let refused = found.refused.as_ref();
                    let refused =
                        refused.map(|(size, error)| report::Refusal::new(*size, error, is_rewritten));
                    let (batch, unit, tried) = (found.batch, found.unit, found.tried.len());
                    let whole = options.split.auto && found.compiled.plan.options.splits.is_empty();
                    largest = Some(BatchLine { batch, unit, tried, whole, refused, memory: found.memory });
                    Ok(found.compiled)
                }
                Err(error) => Err(error.into()),
            },
            Some(Batch::Samples(_)) | None => compile::compile_or_return(model, topology, options, control),
        };
        let is_told =
            options.until.is_some() || args.placement.time_limit.is_some() || control.was_truncated();
        let (marks, made) = match is_told && largest.is_none() {
            true => (control.marks(), control.progress_made()),
            false => Default::default(),
        };
        let (search, curve) = (marks.iter().map(SearchLine::from).collect(), report::curve(&made));
        let compiled = compiled.map_err(|refused| {
            infeasible::with_repairs(*refused, file, topology, options, control).within(&file.name())
        })?;
        let alternatives =
            if summarised { compile::alternatives(&compiled, &options.place, control)? } else { Vec::new() };
        let fewer = if summarised { compile::fewer(&compiled, &options.place, control) } else { None };
        Ok(Found { compiled, largest, search, curve, alternatives, fewer })
    })
}

/// Reads the placement that the new one replaces, and what it is worth to keep to it.
fn replaced(args: &PlanArgs, old: &Path, options: &mut compile::Options) -> Result<()> {
    let stability = args.stability.as_deref().map(str::parse).transpose()?.unwrap_or_default();
    options.from = Some(read_placement(old)?);
    options.place.from = Some(Arc::new(Previous { stability, ..Previous::default() }));
    Ok(())
}

/// The devices given, or those that a placement workload names.
fn topology_for(spec: Option<&str>, model: &Model) -> Result<Topology> {
    match (spec, model) {
        (Some(spec), _) => Topology::load(spec),
        (None, Model::CostGraph { topology: Some(topology), .. }) => Ok(topology.clone()),
        (None, _) => Err(Error::usage("--devices", "no devices are given")
            .with_help("for example --devices 2xa100-80g, or what `partition devices` writes")),
    }
}

/// Weights do not change a plan, but those that do not fit the model are found now.
fn check_weights(model: &mut Model, file: &ModelFile, args: &ModelArgs, console: &Console) -> Result<()> {
    #[cfg(feature = "run")]
    if let Model::Graph(graph) = model {
        use super::weights::{Missing, take_weights};
        return take_weights(graph, &file.weights(args)?, Missing::Refused, console);
    }
    let _ = (model, file, args, console);
    Ok(())
}
