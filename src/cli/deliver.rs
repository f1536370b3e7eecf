//! What a plan is delivered as: which form is asked for, rendered, and printed or written to a file.

use super::args::{Emit, PlanArgs};
use super::destinations::{self, is_binary};
use super::terminal::Console;
use crate::compile::{self, Alternative, Compiled};
use crate::error::{Error, Result};
use crate::escape::to_json_pretty;
use crate::files::{write_atomically, write_atomically_with};
use crate::load;
use crate::place::Objective;
use crate::report::{self, AlternativeLine, Summary};
use crate::units::Nanos;

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
        let (plan, times, lives) = (&compiled.plan, &times[..], &lives[..]);
        let page =
            report::Html { plan, clock, times, lives, search: &summary.curve, history: &[], failure: None };
        return match &args.output {
            Some(path) => write_atomically_with(path, |out| page.write(out)),
            None => super::terminal::stream_stdout(|out| page.write(out)),
        };
    }
    if let (Emit::Costgraph, Some(path)) = (emit, args.output.as_ref().filter(|path| is_binary(path))) {
        return write_atomically(path, &load::write_costgraph_binary(compiled.cost_graph.clone()));
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

/// The figures of a plan, beside those that other objectives come to.
pub(super) fn summary(
    compiled: &Compiled,
    options: &compile::Options,
    alternatives: Vec<Alternative>,
) -> Summary {
    let asked = |one: &Objective| one.name() == compiled.plan.options.objective;
    let objective = Objective::ALL.into_iter().find(asked).unwrap_or(options.place.objective);
    let summary = Summary::new(
        &compiled.cost_graph,
        &compiled.topology,
        &compiled.placement,
        &compiled.schedule,
        objective,
        compiled.plan.placement.len(),
    )
    .with_bound(compiled.plan.bound.as_ref());
    let mut summary = match &compiled.network {
        Some(network) => summary.with_splits(network.splits.iter().map(|split| split.nodes.len()).sum()),
        None => summary,
    };
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
        Emit::Costgraph => load::write_costgraph(&compiled.cost_graph),
        Emit::Trace | Emit::Html => return Err(Error::Internal("this is streamed".into())),
        Emit::Timeline => {
            let weights = compiled.pipeline.as_ref().map_or(&[][..], |figures| &figures.weights);
            let Compiled { cost_graph, topology, plan, schedule, .. } = compiled;
            report::timeline(cost_graph, topology, plan, schedule, weights)
        }
        Emit::Dot => report::dot(&compiled.cost_graph, &compiled.topology, &compiled.placement),
    })
}

/// True where a summary is printed: of itself, or because the plan goes to a file.
pub(super) fn is_summarised(args: &PlanArgs, emit: Emit, console: &Console) -> bool {
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
