//! `partition MODEL --fit CATALOGUE --target T`: which devices to buy, and the plan for them.

mod html;
mod json;
mod text;

use super::args::{Batch, Emit, PlanArgs};
use super::deliver::{deliver, is_summarised, summary};
use super::infeasible;
use super::notes::note_assumptions;
use super::planning::planning;
use super::terminal::{Console, write_stdout};
use crate::compile;
use crate::error::{Error, Result};
use crate::files::write_atomically;
use crate::fit::{Catalogue, Fitted, Price, Request, Target, cheapest};
use crate::load::Model;

/// What the options of `--fit` say.
pub(super) struct Wanted {
    catalogue: Catalogue,
    target: Target,
    budget: Option<Price>,
}

impl Wanted {
    /// What is asked for; none where it is another mode's command.
    ///
    /// Errors: a catalogue, target or price that is none; a target that says of the batch what another option says.
    pub(super) fn of(args: &PlanArgs) -> Result<Option<Self>> {
        let Some(path) = &args.fit else { return Ok(None) };
        let text = args.target.as_deref().unwrap_or_default();
        let target: Target =
            text.parse().map_err(|message: String| Error::usage(format!("--target {text}"), message))?;
        if let (Some(_), Some(_)) = (target.batch(), args.shape.batch) {
            return Err(Error::usage("--batch", format!("--target {target} says the batch"))
                .with_help("leave one of them out"));
        }
        if args.shape.batch == Some(Batch::Max) {
            return Err(Error::usage("--batch max", "the devices are not known yet")
                .with_help("--target 'batch>=64', or a number"));
        }
        let catalogue = Catalogue::load(path)?;
        let price = |text: &str| {
            catalogue.budget(text).map_err(|message| Error::usage(format!("--budget {text}"), message))
        };
        let budget = args.budget.as_deref().map(price).transpose()?;
        Ok(Some(Self { catalogue, target, budget }))
    }
}

/// Finds the cheapest devices, and prints or writes what is asked for.
///
/// Errors: those of the search; a target that the model cannot have.
pub(super) fn fit(
    args: &PlanArgs,
    wanted: &Wanted,
    model: &Model,
    options: &compile::Options,
    emit: Emit,
    console: &Console,
) -> Result<()> {
    let Wanted { catalogue, target, budget } = wanted;
    if let (Model::CostGraph { .. }, Some(_)) = (model, target.batch()) {
        return Err(Error::usage(format!("--target {target}"), "a cost graph is of one batch")
            .with_help("--target 'latency<TIME' or 'throughput>RATE/s'"));
    }
    if let (Model::Graph(graph), Some(_)) = (model, target.batch())
        && compile::batch_dim(graph).is_none()
    {
        return Err(Error::usage(format!("--target {target}"), compile::fixed_batch(graph))
            .with_help("--target 'latency<TIME>' or 'throughput>RATE/s'; a model that is exported with an open batch takes any"));
    }
    if let (Model::Graph(graph), Some(batch)) = (model, options.batch) {
        let place = options.model_path.as_deref().unwrap_or_default();
        compile::check_batch(graph, batch).map_err(|error| error.within(place))?;
    }
    if !options.split.rules.is_empty() {
        return Err(Error::usage("--split", "devices have no names before they are found")
            .with_help("--split auto, or none; or plan for the devices that --fit finds"));
    }
    let has_curve = emit == Emit::Html || is_summarised(args, emit, console);
    let request = Request { model, catalogue, target, budget: *budget, options, has_curve };
    let found = planning(&args.placement, console, |control| {
        let place = args.fit.as_ref().map_or(String::new(), |path| path.display().to_string());
        cheapest(request, control).map_err(|error| error.within(&place))
    });
    if let (Err(error), Emit::SummaryJson) = (&found, emit) {
        infeasible::print_json(error)?;
    }
    let found = found?;
    note_assumptions(&found.compiled, console);
    deliver_found(args, wanted, &found, options, emit, console)
}

fn deliver_found(
    args: &PlanArgs,
    wanted: &Wanted,
    found: &Fitted,
    options: &compile::Options,
    emit: Emit,
    console: &Console,
) -> Result<()> {
    let summary = summary(&found.compiled, options, Vec::new());
    let page = match emit {
        Emit::Summary => format!("{}\n{}", text::text(wanted, found, None), summary.text()),
        Emit::SummaryJson => json::json(wanted, found)?,
        Emit::Html => html::html(wanted, found),
        Emit::Plan
        | Emit::Text
        | Emit::Ir
        | Emit::Groups
        | Emit::Kernels
        | Emit::Costgraph
        | Emit::Dot
        | Emit::Trace
        | Emit::Timeline => {
            if emit == Emit::Plan && args.output.is_some() {
                console.print(&format!("{}\n", text::text(wanted, found, console.width())))?;
            }
            return deliver(args, &found.compiled, &summary, console);
        }
    };
    match &args.output {
        Some(path) => write_atomically(path, page.as_bytes()),
        None if emit == Emit::Summary => {
            console.print(&text::text(wanted, found, console.width()))?;
            console.print(&format!("\n{}", summary.text_within(console.width())))
        }
        None => write_stdout(page.as_bytes()),
    }
}
