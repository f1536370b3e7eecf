//! `partition convert`: a cost graph from one of its forms into the other.

use std::collections::BTreeMap;

use super::args::ConvertArgs;
use super::destinations::{Destinations, is_binary};
use super::model::ModelFile;
use super::terminal::Console;
use crate::error::{Error, Result};
use crate::files::{Links, write_atomically};
use crate::load::{Model, write_costgraph, write_costgraph_binary};

/// Errors: the file gives no costs; the name of the other one says no form.
pub(super) fn convert(args: &ConvertArgs, console: &Console) -> Result<()> {
    let output = &args.output;
    Destinations::new([("--output", Some(output))])?.are_not_read([args.graph.as_path()])?;
    let is_json = output.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if !is_json && !is_binary(output) {
        let place = format!("--output {}", output.display());
        return Err(Error::usage(place, "the name does not say what to write")
            .with_help("names end in .json, or in .pcg for the binary form"));
    }
    let file = ModelFile::read(&args.graph, Links::Inside)?;
    let Model::CostGraph { graph, topology } = file.load(&BTreeMap::new())? else {
        let message = "a network has no costs before it is known on which devices";
        return Err(Error::usage(file.name(), message)
            .with_help("partition MODEL --devices SPEC --emit costgraph -o NAME.pcg"));
    };
    if topology.is_some() {
        console.note("a cost graph has no devices: those of the workload are left out");
    }
    let bytes = if is_json { write_costgraph(&graph).into_bytes() } else { write_costgraph_binary(graph) };
    write_atomically(output, &bytes)
}
