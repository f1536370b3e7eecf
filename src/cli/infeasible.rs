//! What the program says where nothing fits: what would help, and the whole of it as JSON.

use serde::Serialize;

use super::model::ModelFile;
use super::terminal::write_stdout;
use crate::compile;
use crate::control::Control;
use crate::error::{Error, Infeasible, Result};
use crate::escape::to_json_pretty;
use crate::topology::Topology;

/// The error of planning a file, with the changes that would help. Other errors stay as they are. The file is read once
/// more where planning consumed the model.
pub(super) fn with_repairs(
    refused: compile::Refused,
    file: &ModelFile,
    topology: &Topology,
    options: &compile::Options,
    control: &Control<'_>,
) -> Error {
    let compile::Refused { error, model } = refused;
    let Error::Infeasible(mut found) = error else { return error };
    let repaired = |found: &mut Infeasible| -> Result<()> {
        let model = model.map_or_else(|| file.load(&options.dims), Ok)?;
        compile::repair(&model, topology, options, found, control)
    };
    match repaired(&mut found) {
        Ok(()) => Error::Infeasible(found),
        Err(error) => error,
    }
}

/// The error as JSON.
#[derive(Serialize)]
struct NoPlan<'e> {
    feasible: bool,
    #[serde(flatten)]
    why: &'e Infeasible,
}

/// Prints the error as one JSON object on stdout, where it is that nothing fits.
pub(super) fn print_json(error: &Error) -> Result<()> {
    let Error::Infeasible(why) = error else { return Ok(()) };
    let text = to_json_pretty(&NoPlan { feasible: false, why })
        .map_err(|error| Error::Internal(error.to_string()))?;
    write_stdout(format!("{text}\n").as_bytes())
}
