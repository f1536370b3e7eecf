//! `partition diff` and `partition export`: commands that need nothing but plans.

use super::args::{DiffArgs, ExportArgs};
use super::destinations::Destinations;
use super::model::{ModelFile, model_path};
use super::onnx_parts::{self, ONNX_PARTS};
use super::terminal::{Console, write_stdout};
use crate::compile;
use crate::error::{Error, Result};
use crate::files::write_atomically;
use crate::load::Model;
use crate::plan::{self, Plan};

/// The format that also needs what checkpoints call the model's parameters.
const ACCELERATE: &str = "accelerate";

pub(super) fn diff(args: &DiffArgs, console: &Console) -> Result<()> {
    let (old, new) = (Plan::load(&args.old)?, Plan::load(&args.new)?);
    let diff = match &args.model {
        None => plan::diff(&old, &new),
        Some(model) => {
            let file = ModelFile::of_plan(&new, model, args.trust.links())
                .map_err(|error| error.within(&args.new.display().to_string()))?;
            match file.load(&compile::Options::of_plan(&new)?.dims)? {
                Model::CostGraph { graph, .. } => {
                    let state = compile::state_between(&graph, &old, &new)
                        .map_err(|error| error.within(&args.new.display().to_string()))?;
                    plan::diff_with_state(&old, &new, state)
                }
                Model::Graph(_) => plan::diff(&old, &new),
            }
        }
    };
    if args.json {
        return write_stdout(diff.to_json().as_bytes());
    }
    console.print(&diff.to_string())
}

pub(super) fn export(args: &ExportArgs, console: &Console) -> Result<()> {
    if args.format == ONNX_PARTS {
        return onnx_parts::export(args, console);
    }
    let known: Vec<&str> = plan::FORMATS.iter().map(|(name, _)| *name).chain([ONNX_PARTS]).collect();
    if !known.contains(&args.format.as_str()) {
        let help = format!("known are {}", known.join(", "));
        return Err(Error::usage(format!("--format {}", args.format), "is not known").with_help(help));
    }
    let is_device_map = args.format == ACCELERATE;
    if args.model.is_some() && !is_device_map {
        let message = format!("{} is the plan's placement, without its model", args.format);
        return Err(
            Error::usage("--model", message).with_help("leave it out, or --format accelerate or onnx-parts")
        );
    }
    Destinations::new([("--output", args.output.as_ref())])?.are_not_read([args.plan.as_path()])?;
    let file = ModelFile::read(&args.plan, args.trust.links())?;
    let plan = Plan::from_json(&file.bytes, &file.name())?;
    let text = match is_device_map {
        true => plan::device_map(&plan, &held(&plan, &file, args, console)?)?,
        false => plan::export(&plan, &args.format)?,
    };
    if is_device_map {
        note_cuts(&plan, console);
    }
    match &args.output {
        Some(path) => write_atomically(path, text.as_bytes()),
        None => write_stdout(text.as_bytes()),
    }
}

/// Says what lies on several devices that should not.
fn note_cuts(plan: &Plan, console: &Console) {
    let more = |others: &[String]| match others.len() {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    if let [first, others @ ..] = &plan::cut_blocks(plan)[..] {
        let kept = first.rsplit_once('.').map_or("*", |(parent, _)| parent);
        console.note(&format!(
            "{first}{} would lie on several devices, which Accelerate runs only where nothing is added up between \
             its modules: plan with --keep-whole '{kept}.*'",
            more(others)
        ));
    }
    if let [first, others @ ..] = &plan::cut_experts(plan)[..] {
        console.note(&format!(
            "{first}{} would lie on several devices: where transformers holds them in one array (since version 5), that \
             array has no device: plan with --keep-whole '{first}'",
            more(others)
        ));
    }
}

/// What checkpoints hold of a plan's model. Where no `--model` is named and none is found, a note says what may then be
/// without a device.
fn held(
    plan: &Plan,
    file: &ModelFile,
    args: &ExportArgs,
    console: &Console,
) -> Result<Vec<(String, Option<String>)>> {
    let read = || {
        let path = model_path(plan, file, args.model.as_deref())?;
        let model = ModelFile::of_plan(plan, &path, args.trust.links())
            .map_err(|error| error.within(&file.name()))?;
        model.load(&compile::Options::of_plan(plan)?.dims)
    };
    match read() {
        Ok(Model::Graph(graph)) => {
            let own = graph.params().iter().map(|param| (param.name.clone(), Some(param.name.clone())));
            Ok(own.chain(graph.rules().arrays.held.iter().cloned()).collect())
        }
        Ok(Model::CostGraph { .. }) => Ok(Vec::new()),
        Err(error) if args.model.is_some() => Err(error),
        Err(error) => {
            console.note(&format!(
                "only the plan's own names have a device, and no arrays of tied layers or of other versions of a \
                 library (--model MODEL): {error}"
            ));
            Ok(Vec::new())
        }
    }
}
