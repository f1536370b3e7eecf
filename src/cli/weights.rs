//! Weights for the commands: which file, whether it fits, what it holds beside.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::model::WeightFiles;
use super::terminal::Console;
use crate::error::{Error, Report, Result};
use crate::ir::{Data, Graph, NodeId, Op, ParamId, Piece, Repacked, Tensor};
use crate::load::fill_param;
use crate::load::weights::{Arrays, Loaded, ParamReader, apply_adapter, match_params, shard_of};

/// Names told of arrays that nothing takes.
const MOST_NAMES: usize = 12;

/// What becomes of parameters without an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// They are an error.
    Refused,
    /// They are made up, and that is reported.
    MadeUp,
}

/// Gives the parameters their arrays, with what an adapter adds to them, and tells of arrays that none takes. Error: they do
/// not fit, or some parameters have none and are not to be made up.
pub(super) fn take_weights(
    graph: &mut Graph,
    files: &WeightFiles,
    missing: Missing,
    console: &Console,
) -> Result<()> {
    let Some(path) = &files.weights else {
        return files.adapter.iter().try_for_each(|folder| apply_adapter(graph, folder).map(|_| ()));
    };
    let arrays = Arrays::open_weights(path)?.read_as(graph.rules().arrays.coding);
    let mut loaded = match_params(graph, &arrays)?;
    if let Some(beside) = files.adapter_beside() {
        let folder = beside.display();
        console.note(&format!("{folder}: the adapter is not applied; --adapter {folder} merges it"));
    }
    if let Some(folder) = &files.adapter {
        let whole = take_adapter(graph, &arrays, folder)?;
        loaded.missing.retain(|name| !whole.contains(name));
    }
    check_constants(graph, &arrays, &loaded)?;
    report_extra(&arrays, &loaded, console);
    if let Some(first) = loaded.kept.first().filter(|_| loaded.params > 0) {
        let (count, path) = (loaded.kept.len(), arrays.path().display());
        console.note(&format!(
            "{path}: no array for {count} parameters, which stay as the model has them, the first is {first}"
        ));
    }
    if loaded.params == 0 && !graph.params().is_empty() {
        return Err(strangers(graph, &arrays));
    }
    match (loaded.missing.first(), missing) {
        (None, _) => Ok(()),
        (Some(first), Missing::MadeUp) => {
            let count = loaded.missing.len();
            console.note(&format!("{count} parameters have no array and are made up, the first is {first}"));
            Ok(())
        }
        (Some(_), Missing::Refused) => Err(incomplete(&arrays, loaded)),
    }
}

/// Merges an adapter; the names of the parameters that it has whole.
///
/// Errors: it does not fit the network; the file has blocks of few bits.
fn take_adapter(graph: &mut Graph, arrays: &Arrays, folder: &Path) -> Result<BTreeSet<String>> {
    if arrays.is_gguf() {
        let message = format!("an adapter is not merged into the blocks of {}", arrays.path().display());
        let help = "weights in safetensors, which --weights-as packs";
        return Err(Error::Unsupported(Report::new("--adapter", message).help(help)));
    }
    apply_adapter(graph, folder)
}

/// Tells of matrices that a plan holds in blocks of a few bits because the model's file has them so, and whose numbers come
/// from another file: what that file has in more bits is lost.
///
/// Error: a file of them cannot be read.
pub(super) fn note_rounded(graph: &Graph, asked: Option<&str>, console: &Console) -> Result<()> {
    if asked.is_some() {
        return Ok(());
    }
    let mut opened: BTreeMap<&Path, Arrays> = BTreeMap::new();
    let (mut count, mut format) = (0, None);
    for param in graph.params() {
        let is_made = |held: &&Repacked| held.piece == Piece::Bytes && held.format.is_made();
        let held = param.repacked.as_ref().filter(is_made);
        let (Some(held), Some(Data::Array { path, name })) = (held, &param.data) else { continue };
        let arrays = match opened.entry(path) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Arrays::open_weights(path)?),
        };
        if arrays.blocks(name)?.is_none() {
            (count, format) = (count + 1, Some(held.format));
        }
    }
    if let Some(format) = format {
        console.note(&format!(
            "{count} matrices are rounded to {}, as the model's file has them; --weights-as f32 keeps the numbers of --weights",
            format.name()
        ));
    }
    Ok(())
}

/// Error: an array is of other floats than those that the model holds as a constant, which would stay as it is.
fn check_constants(graph: &Graph, arrays: &Arrays, loaded: &Loaded) -> Result<()> {
    let extra: BTreeSet<&str> = loaded.extra.iter().map(String::as_str).collect();
    let constant = |node: NodeId| {
        let node = graph.node(node);
        let Op::Constant(id) = node.op else { return None };
        let (name, value) = (graph.source(node.source).name.as_str(), graph.constant(id));
        (value.dtype().is_float() && extra.contains(name)).then_some((name, value))
    };
    for (name, value) in graph.node_ids().filter_map(constant) {
        if arrays.get(name)?.is_none_or(|array| array.to_f64() != value.to_f64()) {
            let place = format!("{}: array {name}", arrays.path().display());
            let message =
                "the model holds another number as a constant: an initialiser of one element is no parameter";
            return Err(Error::model(place, message));
        }
    }
    Ok(())
}

/// One line for all arrays that nothing takes.
fn report_extra(arrays: &Arrays, loaded: &Loaded, console: &Console) {
    if loaded.extra.is_empty() {
        return;
    }
    let mut names = loaded.extra.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
    if loaded.extra.len() > MOST_NAMES {
        names += &format!(" and {} more", loaded.extra.len() - MOST_NAMES);
    }
    console.note(&format!("{}: arrays that the model does not take: {names}", arrays.path().display()));
}

/// The error for a file of which nothing is the model's.
fn strangers(graph: &Graph, arrays: &Arrays) -> Error {
    let own = graph.params().first().map_or("", |param| param.name.as_str());
    let found = arrays.names().first().map_or("none", String::as_str);
    let report = Report::new(arrays.path().display().to_string(), "no array carries the name of a parameter");
    Error::Model(report.help(format!("the model's are called {own}, ...; the file's {found}, ...")))
}

/// The error for a file that lacks some parameters.
fn incomplete(arrays: &Arrays, loaded: Loaded) -> Error {
    let count = loaded.missing.len();
    let first = loaded.missing.first().map_or("", String::as_str);
    let (message, help) = match shard_of(arrays.path()) {
        Some((number, of)) => (
            format!("this is shard {number} of {of}; {count} parameters are in others, the first is {first}"),
            "--weights model.safetensors.index.json, or the folder that holds all of them",
        ),
        None => (
            format!("{count} parameters have no array, the first is {first}"),
            "--weights with a file that holds all of them; --init seed=N would make these up, and the results with them",
        ),
    };
    let report = Report::new(arrays.path().display().to_string(), message).help(help);
    Error::Model(report.first_details(loaded.missing, "parameters"))
}

/// A parameter's data, made up where it has none and there is a seed.
pub(super) fn weight(
    graph: &Graph,
    id: ParamId,
    reader: &mut ParamReader,
    seed: Option<u64>,
) -> Result<Tensor> {
    if let Some(tensor) = reader.read(graph, id)? {
        return Ok(tensor);
    }
    let param = graph.param(id);
    // A state begins as its initialiser says.
    match seed.or(param.state.map(|_| 0)) {
        Some(seed) => fill_param(graph, id, seed, param.whole_name()),
        None => Err(Error::run("", absent(param.data.as_ref()))),
    }
}

/// Why a parameter has no data, in words.
fn absent(data: Option<&Data>) -> String {
    match data {
        Some(Data::File { path, .. } | Data::Array { path, .. }) => {
            format!("{} is not there", path.display())
        }
        Some(Data::Sum { matrix, added }) => match matrix.as_ref() {
            Data::File { path, .. } | Data::Array { path, .. } if !path.exists() => {
                format!("{} is not there", path.display())
            }
            _ => format!("{} is not there", added.path.display()),
        },
        Some(Data::Inline(_)) | None => "the model has no data for it".to_owned(),
    }
}
