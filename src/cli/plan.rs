//! `partition MODEL --devices SPEC`: plans, and prints or writes what was asked for.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::args::{Batch, Emit, PlanArgs};
use super::destinations::{self, Destinations, devices_file, files_of};
use super::infeasible;
use super::model::ModelFile;
use super::modes::Explicit;
use super::options::{compile_options, with_profile};
use super::planning::planning;
use super::score::{read_placement, score};
use super::shared_cores::{shared_cores, used};
use super::terminal::Console;
use crate::compile::{self, Alternative, Compiled};
use crate::error::{Error, Result};
use crate::escape::to_json_pretty;
use crate::files::{write_atomically, write_atomically_with};
use crate::ir::{DimId, Graph};
use crate::load::Model;
use crate::place::{Objective, Previous};
use crate::report::{self, AlternativeLine, BatchLine, Summary};
use crate::topology::Topology;
use crate::units::Nanos;

pub(super) fn plan(args: &PlanArgs, explicit: &Explicit, console: &Console) -> Result<()> {
    let Some(path) = &args.model else {
        return Err(Error::usage("MODEL", "no model is given").with_help("partition --help"));
    };
    let emit = emitted(args)?;
    let output = Destinations::new([("--output", args.output.as_ref())])?;
    let read = [Some(path), args.shape.weights.as_ref(), args.from.as_ref(), args.score.as_ref()];
    let read = read.into_iter().chain([args.placement.profile.as_ref()]).flatten().map(|path| path.as_path());
    output.are_not_read(read.chain(devices_file(args.devices.as_deref())))?;
    let mut options = compile_options(&args.shape, &args.placement)?;
    let file = ModelFile::read(path, args.shape.trust.links())?
        .taking_all(&args.shape.with_inputs, &options.dims)?;
    // A folder's model, too.
    output.are_not_read(file.path.as_deref())?;
    let mut model = {
        let _working = console.working("reading the model");
        file.load(&options.dims)?
    };
    if let Model::CostGraph { .. } = &model {
        let message = "a cost graph has its sizes and no weights";
        explicit.without(&["batch", "weights"], message, "leave it out; the costs are those of the graph")?;
    }
    if let Model::Graph(graph) = &model {
        tell_network(graph, &options.dims, console);
    }
    if let Some(weights) = &args.shape.weights {
        check_weights(&mut model, weights, console)?;
    }
    if let Model::Graph(graph) = &model {
        output.are_not_read(files_of(graph))?;
    }
    let topology = with_profile(topology_for(args.devices.as_deref(), &model)?, &options)?;
    options.model_hash = file.hash();
    options.model_path = file.path.as_ref().map(|path| path.display().to_string());
    if let Some(old) = &args.from {
        replaced(args, old, &mut options)?;
    }
    if let Some(placement) = &args.score {
        return score(args, (model, &file.name()), &topology, &options, placement, console);
    }
    let summarised = is_summarised(args, emit, console);
    let mut largest = None;
    let planned = planning(&args.placement, console, |control| {
        let compiled = match args.shape.batch {
            Some(Batch::Max) => compile::largest_batch(&model, &topology, &options, control).map(|found| {
                let refused = found.refused.as_ref().map(ToString::to_string);
                let (batch, tried) = (found.batch, found.tried.len());
                largest = Some(BatchLine { batch, tried, refused, memory: found.memory });
                found.compiled
            }),
            Some(Batch::Samples(_)) | None => compile::compile_with(model, &topology, &options, control),
        };
        let compiled = compiled.map_err(|error| {
            infeasible::with_repairs(error, &file, &topology, &options, control).within(&file.name())
        })?;
        let alternatives =
            if summarised { compile::alternatives(&compiled, &options.place, control)? } else { Vec::new() };
        let fewer = if summarised { compile::fewer(&compiled, &options.place, control) } else { None };
        Ok((compiled, alternatives, fewer))
    });
    if let (Err(error), Emit::SummaryJson) = (&planned, emit) {
        infeasible::print_json(error)?;
    }
    let (compiled, alternatives, fewer) = planned?;
    tell_assumptions(&compiled, console);
    if let Some(line) = shared_cores(&compiled.topology, used(&compiled.plan)) {
        console.note(&line);
    }
    let summary = Summary { fewer, largest, ..summary(&compiled, &options, alternatives) };
    let outcome = deliver(args, &compiled, &summary, console);
    // The process ends: there is no need to free millions of names one by one.
    std::mem::forget(compiled);
    outcome
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

/// Notes the dimensions that nobody bound.
pub(super) fn tell_assumptions(compiled: &Compiled, console: &Console) {
    let assumed = compiled.network.as_ref().map_or(&[][..], |network| &network.assumed);
    if !assumed.is_empty() {
        let names = assumed.join(", ");
        console.note(&format!("planned with {names} = 1; --dim NAME=N plans for another size"));
    }
}

/// Notes what should be known of a model's file, and the dimensions that are others because the model's operations fit
/// only so; not those of `known`.
pub(super) fn tell_network(graph: &Graph, known: &BTreeMap<String, i64>, console: &Console) {
    graph.notes().iter().for_each(|line| console.note(line));
    let names = |dim: DimId| graph.dim_name(dim);
    let equal = graph.dims().iter().filter(|dim| !known.contains_key(&dim.name)).filter_map(|dim| {
        let size = dim.is.as_ref()?;
        Some(format!("{} = {}", dim.name, size.display(&names)))
    });
    let equal: Vec<String> = equal.collect();
    if !equal.is_empty() {
        console.note(&format!("as the model's operations need, {}", equal.join(", ")));
    }
}

/// Weights do not change a plan, but those that do not fit the model are found now.
fn check_weights(model: &mut Model, path: &Path, console: &Console) -> Result<()> {
    #[cfg(feature = "run")]
    if let Model::Graph(graph) = model {
        use super::weights::{Missing, take_weights};
        return take_weights(graph, Some(path), Missing::Refused, console);
    }
    let _ = (model, path, console);
    Ok(())
}

/// What is asked for: by name, or by the ending of the file.
///
/// Error: the file's name says nothing.
pub(super) fn emitted(args: &PlanArgs) -> Result<Emit> {
    match (args.emit, &args.output) {
        (Some(emit), _) => Ok(emit),
        (None, Some(path)) => destinations::form(path),
        (None, None) => Ok(Emit::Summary),
    }
}

/// True where a summary is printed: of itself, or because the plan goes to a file.
fn is_summarised(args: &PlanArgs, emit: Emit, console: &Console) -> bool {
    match emit {
        Emit::Summary | Emit::SummaryJson => true,
        Emit::Plan => args.output.is_some() && !console.is_quiet(),
        Emit::Text
        | Emit::Ir
        | Emit::Groups
        | Emit::Kernels
        | Emit::Costgraph
        | Emit::Dot
        | Emit::Trace
        | Emit::Html
        | Emit::Timeline => false,
    }
}

/// Prints or writes what is asked for.
pub(super) fn deliver(
    args: &PlanArgs,
    compiled: &Compiled,
    summary: &Summary,
    console: &Console,
) -> Result<()> {
    let emit = emitted(args)?;
    if let (Emit::Plan, Some(path)) = (emit, &args.output) {
        compiled.plan.save(path)?;
        if console.is_quiet() {
            return Ok(());
        }
        // The file has the plan; the terminal still gets its summary.
        return console.print(&summary.text_within(console.width()));
    }
    if emit == Emit::Trace {
        let (lives, times) = simulated(compiled);
        let trace = trace(compiled, &lives, &times);
        return match &args.output {
            Some(path) => write_atomically_with(path, |out| trace.write(out)),
            None => super::terminal::stream_stdout(|out| trace.write(out)),
        };
    }
    if emit == Emit::Html {
        let (lives, times) = simulated(compiled);
        let clock = report::Clock::Simulated;
        let page = report::Html { plan: &compiled.plan, clock, times: &times, lives: &lives, history: &[] };
        return match &args.output {
            Some(path) => write_atomically_with(path, |out| page.write(out)),
            None => super::terminal::stream_stdout(|out| page.write(out)),
        };
    }
    let text = rendered(emit, compiled, summary)?;
    match &args.output {
        Some(path) => write_atomically(path, text.as_bytes()),
        None if emit == Emit::Summary => console.print(&summary.text_within(console.width())),
        None => super::terminal::write_stdout(text.as_bytes()),
    }
}

/// When each buffer is live and each step runs on the simulated timeline.
fn simulated(compiled: &Compiled) -> (Vec<report::Life>, Vec<(Nanos, Nanos)>) {
    let lives = report::lives_of_schedule(&compiled.cost_graph, &compiled.schedule);
    (lives, compiled.schedule.steps.iter().map(|step| (step.start, step.end)).collect())
}

fn trace<'a>(
    compiled: &'a Compiled,
    lives: &'a [report::Life],
    times: &'a [(Nanos, Nanos)],
) -> report::Trace<'a> {
    report::Trace {
        plan: &compiled.plan,
        clock: report::Clock::Simulated,
        times,
        lives,
        crossings: &compiled.schedule.crossings,
    }
}

pub(super) fn summary(
    compiled: &Compiled,
    options: &compile::Options,
    alternatives: Vec<Alternative>,
) -> Summary {
    let asked = |one: &Objective| one.name() == compiled.plan.options.objective;
    let objective = Objective::ALL.into_iter().find(asked).unwrap_or(options.place.objective);
    let mut summary = Summary::new(
        &compiled.cost_graph,
        &compiled.topology,
        &compiled.placement,
        &compiled.schedule,
        objective,
        compiled.plan.placement.len(),
    )
    .with_bound(compiled.plan.bound.as_ref());
    summary.replan.clone_from(&compiled.plan.replan);
    summary.pipeline.clone_from(&compiled.pipeline);
    summary.precision.clone_from(&compiled.plan.options.precision);
    summary.alternatives = alternatives
        .into_iter()
        .map(|alternative| AlternativeLine {
            objective: alternative.objective.name(),
            latency: alternative.cost.latency,
            max_load: alternative.cost.max_load,
            transfer_bytes: alternative.cost.step_bytes + alternative.cost.load_bytes,
            devices: alternative.devices,
        })
        .collect();
    summary
}

fn rendered(emit: Emit, compiled: &Compiled, summary: &Summary) -> Result<String> {
    let network = || {
        compiled.network.as_ref().ok_or_else(|| {
            Error::usage("--emit", "a cost graph has neither operations nor groups")
                .with_help("--emit costgraph, dot, text, plan or summary")
        })
    };
    Ok(match emit {
        Emit::Summary => summary.text(),
        Emit::SummaryJson => {
            let mut text = to_json_pretty(summary).map_err(|error| Error::Internal(error.to_string()))?;
            text.push('\n');
            text
        }
        Emit::Plan => compiled.plan.to_json(),
        Emit::Text => compiled.plan.to_text(),
        Emit::Ir => network()?.graph.to_string(),
        Emit::Groups => {
            let network = network()?;
            network.grouping.dump(&network.graph)
        }
        Emit::Kernels => super::kernels::kernels(network()?, &compiled.plan)?,
        Emit::Costgraph => crate::load::write_costgraph(&compiled.cost_graph),
        Emit::Trace | Emit::Html => return Err(Error::Internal("this is streamed".into())),
        Emit::Timeline => {
            let weights = compiled.pipeline.as_ref().map_or(&[][..], |figures| &figures.weights);
            let Compiled { cost_graph, topology, plan, schedule, .. } = compiled;
            report::timeline(cost_graph, topology, plan, schedule, weights)
        }
        Emit::Dot => report::dot(&compiled.cost_graph, &compiled.topology, &compiled.placement),
    })
}
