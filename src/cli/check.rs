//! `partition check`: proves a plan, or lists what a model needs that is not supported.

use std::path::Path;

use serde::Serialize;

use super::args::CheckArgs;
use super::model::ModelFile;
use super::modes::Explicit;
use super::options;
use super::terminal::{Console, write_stdout};
use crate::compile;
use crate::error::{Error, Result};
use crate::escape::{escaped, to_json_pretty};
use crate::files::Links;
use crate::load::Model;
use crate::plan::{self, Plan};
use crate::report::counted;

pub(super) fn check(args: &CheckArgs, explicit: &Explicit, console: &Console) -> Result<()> {
    let file = ModelFile::read(&args.file, args.trust.links())?;
    if Plan::is_json(&file.bytes) {
        let message = "a plan says which dimensions it is for";
        explicit.only(&[&["file", "model", "json"]], message, "leave it out")?;
        check_plan(&file, args, console)
    } else {
        let message = "this is a model, which is checked on its own";
        explicit.only(&[&["file", "dims", "json"]], message, "partition check PLAN --model MODEL")?;
        check_model(&file, args, console)
    }
}

/// What a sound plan is said to hold.
#[derive(Serialize)]
struct Sound {
    sound: bool,
    steps: usize,
    buffers: usize,
    devices: usize,
    step_bytes: u64,
    model_checked: bool,
}

fn check_plan(file: &ModelFile, args: &CheckArgs, console: &Console) -> Result<()> {
    let name = file.name();
    let _working = console.working("checking the plan");
    let plan = Plan::from_json(&file.bytes, &name)?;
    plan::check(&plan).map_err(|error| error.within(&name))?;
    if let Some(model) = &args.model {
        check_against_model(&plan, model, args.trust.links()).map_err(|error| error.within(&name))?;
    }
    let sound = Sound {
        sound: true,
        steps: plan.steps.len(),
        buffers: plan.buffers.len(),
        devices: plan.devices.len(),
        step_bytes: plan.cost.step_bytes.get(),
        model_checked: args.model.is_some(),
    };
    if args.json {
        return print_json(&sound);
    }
    let with = match (sound.model_checked, &plan.model.path) {
        (true, _) => ", and is of this model\n".to_owned(),
        (false, path) => {
            let model = escaped(path.as_deref().unwrap_or("MODEL"));
            format!(
                "\nnot proven without the model: what launches read, and which values are results (--model {model})\n"
            )
        }
    };
    console.print(&format!(
        "sound: {} on {}, {}, {} moved in a step{with}",
        counted(sound.steps, "step"),
        counted(sound.devices, "device"),
        counted(sound.buffers, "buffer"),
        plan.cost.step_bytes
    ))
}

/// The model's hash is the plan's, the sizes derived from it anew are those of the plan, and its steps take the time that
/// it says.
fn check_against_model(plan: &Plan, path: &Path, links: Links) -> Result<()> {
    let file = ModelFile::of_plan(plan, path, links)?;
    let options = compile::Options::of_plan(plan)?;
    let model = || file.planned(plan, &options.dims);
    compile::check_model(plan, model()?, &options)?;
    compile::check_times(plan, model()?)
}

/// What a supported model is said to hold.
#[derive(Serialize)]
struct Supported {
    supported: bool,
    name: String,
    nodes: usize,
    params: usize,
    param_elements: Option<u64>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    unbound_dims: Vec<String>,
}

/// Names in one line.
fn names(names: &[String]) -> String {
    escaped(&names.join(", "))
}

fn check_model(file: &ModelFile, args: &CheckArgs, console: &Console) -> Result<()> {
    let _working = console.working("reading the model");
    let supported = match file.load(&options::dims(&args.dims)?)? {
        Model::Graph(graph) => {
            graph.notes().iter().for_each(|line| console.note(line));
            let mut elements = graph.params().iter().map(|param| {
                let value = graph.node(param.node).first_result;
                graph.ty(value).elements()
            });
            Supported {
                supported: true,
                name: graph.name.clone(),
                nodes: graph
                    .sources()
                    .iter()
                    .filter(|source| source.role == crate::ir::SourceRole::Node)
                    .count(),
                params: graph.params().len(),
                param_elements: elements.try_fold(0u64, |sum, count| sum.checked_add(count?)),
                inputs: graph.inputs().iter().map(|(name, _)| name.clone()).collect(),
                outputs: graph.outputs().iter().map(|(name, _)| name.clone()).collect(),
                unbound_dims: graph.unbound_dims(),
            }
        }
        Model::CostGraph { graph, .. } => Supported {
            supported: true,
            name: graph.name.clone(),
            nodes: graph.node_count(),
            params: graph.param_count(),
            param_elements: None,
            inputs: Vec::new(),
            outputs: Vec::new(),
            unbound_dims: Vec::new(),
        },
    };
    if args.json {
        return print_json(&supported);
    }
    let elements = supported.param_elements.map_or(String::new(), |n| format!(" of {n} weights"));
    let mut text = format!(
        "supported: {} has {} nodes, {} parameters{elements}\n",
        escaped(&supported.name),
        supported.nodes,
        supported.params
    );
    if !supported.inputs.is_empty() {
        text += &format!("inputs:  {}\noutputs: {}\n", names(&supported.inputs), names(&supported.outputs));
    }
    if !supported.unbound_dims.is_empty() {
        text += &format!("bind with --dim NAME=N: {}\n", names(&supported.unbound_dims));
    }
    console.print(&text)
}

fn print_json<T: Serialize>(value: &T) -> Result<()> {
    let text = to_json_pretty(value).map_err(|error| Error::Internal(error.to_string()))?;
    write_stdout(format!("{text}\n").as_bytes())
}
