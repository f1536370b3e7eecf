//! `partition explain PLAN [NODE]`: why here, what another device would cost, what bounds the plan.

use serde::Serialize;

use super::args::ExplainArgs;
use super::model::{ModelFile, model_path};
use super::terminal::{Console, write_stdout};
use crate::compile;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::escape::to_json_pretty;
use crate::explain::{NodeReport, Overview};
use crate::load::Model;
use crate::plan::{self, Bound, Plan, Step, Wait};
use crate::report;

pub(super) fn explain(args: &ExplainArgs, console: &Console) -> Result<()> {
    let file = ModelFile::read(&args.plan, args.trust.links())?;
    let name = file.name();
    let plan = Plan::from_json(&file.bytes, &name)?;
    plan::check(&plan).map_err(|error| error.within(&name))?;
    let path = match (model_path(&plan, &file, args.model.as_deref()), &args.node) {
        (Ok(path), _) => path,
        // Without the model only the plan's own figures can be told.
        (Err(error), None) if args.model.is_none() => {
            console.note(&format!("{error}: only what the plan itself says"));
            let json = || to_json_pretty(&Bare::of(&plan));
            return print(args, console, &report::plan_text(&plan), json);
        }
        (Err(error), _) => return Err(error),
    };
    let model = ModelFile::of_plan(&plan, &path, args.trust.links()).map_err(|error| error.within(&name))?;
    let loaded = model.planned(&plan, &compile::Options::of_plan(&plan)?.dims)?;
    let working = console.working("explaining");
    let control = Control::new();
    match &args.node {
        Some(node) if compile::is_split(&plan, node) => {
            let Model::Graph(graph) = loaded else {
                return Err(Error::Internal("a cost graph has no operations to split".to_owned()));
            };
            let report = compile::explain_split(&plan, graph, node, &control)?;
            drop(working);
            print(args, console, &report::split_text(&report), || to_json_pretty(&report))
        }
        Some(node) => {
            let report = compile::explain_node(&plan, loaded, node, &control)?;
            drop(working);
            let waits = waits(&plan, |step| step.is_about(&report.node));
            let json = || to_json_pretty(&Node { report: &report, waits });
            print(args, console, &report::node_text(&report, &plan), json)
        }
        None => {
            let overview = compile::explain_plan(&plan, loaded, &control)?;
            drop(working);
            let (bound, waits) = (plan.bound.as_ref(), waits(&plan, |_| true));
            let json = || to_json_pretty(&WholeReport { bound, overview: &overview, waits });
            print(args, console, &report::overview_text(&overview, &plan), json)
        }
    }
}

/// An overview with the plan's certificate.
#[derive(Serialize)]
struct WholeReport<'p> {
    bound: Option<&'p Bound>,
    #[serde(flatten)]
    overview: &'p Overview,
    waits: Vec<WaitLine<'p>>,
}

/// A node with what its steps wait for.
#[derive(Serialize)]
struct Node<'p> {
    #[serde(flatten)]
    report: &'p NodeReport,
    waits: Vec<WaitLine<'p>>,
}

/// A dependency that the data does not ask for.
#[derive(Serialize)]
struct WaitLine<'p> {
    step: u64,
    device: &'p str,
    what: String,
    #[serde(flatten)]
    wait: Wait,
}

fn waits(plan: &Plan, which: impl Fn(&Step) -> bool) -> Vec<WaitLine<'_>> {
    let found = plan.waits().into_iter().filter(|(step, _)| which(step));
    found
        .map(|(step, wait)| WaitLine { step: step.id, device: &step.device, what: step.subject(), wait })
        .collect()
}

/// What a plan tells without its model.
#[derive(Serialize)]
struct Bare<'p> {
    bound: Option<&'p Bound>,
    objective: &'p str,
    cost: &'p plan::Cost,
    devices: &'p [plan::PlanDevice],
    waits: Vec<WaitLine<'p>>,
}

impl<'p> Bare<'p> {
    fn of(plan: &'p Plan) -> Self {
        Self {
            bound: plan.bound.as_ref(),
            objective: &plan.options.objective,
            cost: &plan.cost,
            devices: &plan.devices,
            waits: waits(plan, |_| true),
        }
    }
}

fn print(
    args: &ExplainArgs,
    console: &Console,
    text: &str,
    json: impl FnOnce() -> serde_json::Result<String>,
) -> Result<()> {
    if args.json {
        let text = json().map_err(|error| Error::Internal(error.to_string()))?;
        return write_stdout(format!("{text}\n").as_bytes());
    }
    console.print(text)
}
