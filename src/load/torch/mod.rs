//! Programs of `torch.export`: `.pt2` archives, read without PyTorch.
//!
//! An archive is a zip of the program as JSON and the bytes of every array. [`archive`] makes one text of the program
//! and of where the arrays lie; here that text becomes a graph of ONNX operators, which the ONNX reader lowers: each
//! node of the program is one source, under its own name. Sizes stay symbolic where the program was exported so.

use std::collections::BTreeMap;
use std::path::Path;

use super::onnx::model_builder::ModelBuilder;
use super::{FindDims, LoadOptions};
use crate::error::{Error, Report, Result};
use crate::ir::{Graph, Limit};
use crate::json::json_error;

#[cfg(feature = "weights")]
pub(super) mod archive;
mod bound;
mod call;
mod core;
mod inline;
mod laid;
mod memory;
mod ops;
mod program;
mod schema;

/// The first field of the text that [`archive`] makes of an archive.
pub(super) const FIELD: &str = "torch_export";

/// Versions of the schema whose meaning is known.
const SCHEMAS: std::ops::RangeInclusive<u64> = 8..=8;

/// Reads a program. `path` is the archive, in which the arrays lie.
///
/// Errors: a damaged text, a version of the schema that is not known; every operation that is not supported, all at
/// once; those of the ONNX reader.
pub(super) fn load_with(
    bytes: &[u8],
    path: Option<&Path>,
    options: &LoadOptions,
    find: FindDims<'_>,
) -> Result<Graph> {
    let mut document: schema::Document = serde_json::from_slice(bytes).map_err(|error| json_error(&error))?;
    let version = &document.program.schema_version;
    if !SCHEMAS.contains(&version.major) {
        let message =
            format!("version {}.{} of torch.export's schema is not supported", version.major, version.minor);
        let help = format!("version {} is: torch 2.8 and later write it", SCHEMAS.end());
        return Err(Error::Unsupported(Report::new("", message).help(help)));
    }
    inline::inline(&mut document.program.graph_module.graph)?;
    laid::in_order(&mut document.arrays, path)?;
    let inputs = program::inputs(&document)?;
    let found = asked(&document.name, &inputs, options, find)?;
    let symbols = options.dims.clone().into_iter().chain(found.clone()).collect();
    may_be_empty(&document, &symbols)?;
    bound::bind(&mut document.program.graph_module.graph, &symbols);
    let model = ModelBuilder::new(&document.name, path);
    let built = program::build(&document, model, &inputs)?;
    let mut graph = built.model.lower(path, options, &mut |_| Ok(found.clone()))?;
    program::name_state(&mut graph, &built.arrays, path)?;
    let trained = program::trained(&document);
    let is_other = |name: &String| !trained.contains(name.as_str());
    let others: Vec<String> =
        graph.params().iter().map(|param| param.name.clone()).filter(is_other).collect();
    let counted = program::counted(&document);
    let counting: Vec<(String, Limit)> = graph
        .inputs()
        .iter()
        .filter_map(|(name, _)| Some((name.clone(), counted.get(name)?.clone())))
        .collect();
    let rules = graph.rules_mut();
    for (name, limit) in counting {
        rules.inputs.entry(name).or_default().below = Some(limit);
    }
    rules.frozen.extend(others);
    rules.untrained.extend(program::untrained(&document));
    rules.unheeded.extend(program::undrawn(&document));
    rules.unheeded.extend(program::drawn(&document));
    rules.buffers = built.buffers;
    // What is computed of sizes is folded where they are known.
    rules.open_dims_matter = true;
    Ok(graph)
}

/// Error: a symbol is 0 where the program was exported for more. What the exporter decided of such a size may not hold.
fn may_be_empty(document: &schema::Document, symbols: &BTreeMap<String, i64>) -> Result<()> {
    for (name, _) in symbols.iter().filter(|(_, value)| **value == 0) {
        let range = document.program.range_constraints.get(name);
        if let Some(least) = range.and_then(|range| range.min_val.as_i64()).filter(|&least| least > 0) {
            let message = format!("it is 0, and the program was exported for {least} and more");
            return Err(Error::usage(format!("dimension {name}"), message)
                .with_help("a program that is exported for the size of the input"));
        }
    }
    Ok(())
}

/// What `find` says of the inputs, before the program that reads them is there.
fn asked(
    name: &str,
    inputs: &program::Inputs,
    options: &LoadOptions,
    find: FindDims<'_>,
) -> Result<BTreeMap<String, i64>> {
    let mut alone = ModelBuilder::new(name, None);
    for (name, dtype, sizes) in inputs {
        alone.input(name, *dtype, sizes.clone());
    }
    let mut found = None;
    let ended = alone.lower(None, options, &mut |graph| {
        let said = find(graph)?;
        found = Some(said.clone());
        Ok(said)
    });
    match (found, ended) {
        (Some(found), _) => Ok(found),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => Ok(BTreeMap::new()),
    }
}
