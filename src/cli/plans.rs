//! `partition diff` and `partition export`: commands that need nothing but plans.

use std::collections::BTreeMap;

use super::args::{DiffArgs, ExportArgs};
use super::destinations::Destinations;
use super::model::ModelFile;
use super::onnx_parts::{self, ONNX_PARTS};
use super::terminal::{Console, write_stdout};
use crate::compile;
use crate::error::{Error, Result};
use crate::files::write_atomically;
use crate::load::Model;
use crate::plan::{self, Plan};

pub(super) fn diff(args: &DiffArgs, console: &Console) -> Result<()> {
    let (old, new) = (Plan::load(&args.old)?, Plan::load(&args.new)?);
    let diff = match &args.model {
        None => plan::diff(&old, &new),
        Some(model) => {
            let file = ModelFile::read(model, args.trust.links())?;
            match file.load(&BTreeMap::new())? {
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
    if args.model.is_some() {
        let message = format!("{} is the plan's placement, without its model", args.format);
        return Err(Error::usage("--model", message).with_help("leave it out, or --format onnx-parts"));
    }
    Destinations::new([("--output", args.output.as_ref())])?.are_not_read([args.plan.as_path()])?;
    let plan = Plan::load(&args.plan)?;
    let text = plan::export(&plan, &args.format)?;
    if args.format == "accelerate"
        && let [first, others @ ..] = &plan::cut_blocks(&plan)[..]
    {
        let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
        let kept = first.rsplit_once('.').map_or("*", |(parent, _)| parent);
        console.note(&format!(
            "{first}{more} would lie on several devices, which Accelerate runs only where nothing is added up between \
             its modules: plan with --keep-whole '{kept}.*'"
        ));
    }
    match &args.output {
        Some(path) => write_atomically(path, text.as_bytes()),
        None => write_stdout(text.as_bytes()),
    }
}
