//! ONNX models, opsets 1 to 27 (before 7 only operators that are what they were then).
//!
//! Each ONNX node becomes one [`crate::ir::Source`] under its own name (its first output's where
//! it has none, with `#2`, `#3`, ... added to a name that is taken) and any number of operations;
//! inputs and initialisers become sources that are data. Arithmetic on shapes is evaluated while
//! the model is read, with sizes that stay affine in the model's symbolic dimensions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use prost::Message;

use super::{FindDims, LoadOptions};
use crate::error::{Error, Report, Result};
use crate::files::Folder;
use crate::ir::{Absent, Graph};

mod body;
mod build;
mod declared;
mod dimension;
mod evaluated;
mod function;
mod known;
mod limits;
mod lower;
mod merged;
#[cfg(feature = "torch")]
pub(super) mod model_builder;
mod narrow;
mod node;
mod ops;
mod parts;
mod proto;
mod sparse;
mod tensor;
mod trained;

pub use ops::{Operator, operators};
pub use parts::{Part, parts};

/// The first and the last operator set whose meaning this reader knows.
const OPSETS: std::ops::RangeInclusive<i64> = 1..=27;

/// True where the bytes begin like an ONNX model. O(top-level fields).
pub fn looks_like_onnx(bytes: &[u8]) -> bool {
    proto::looks_like_model(bytes)
}

/// True where the bytes may be the start of an ONNX model: its first field is one of a model's.
pub(crate) fn may_begin(start: &[u8]) -> bool {
    proto::may_begin_model(start)
}

/// Reads an ONNX model. External data is looked up beside `path`, when a run needs it; it need not
/// be there.
///
/// Dimensions named in `options` are bound at once. An input's unnamed dimension is called
/// `<input>_<axis>`; characters other than letters, digits and `_` in a name become `_`. A size that is written
/// in terms of other inputs' dimensions (`past + 1`) is that; dimensions that have to be equal for an operation
/// to fit are one ([`crate::ir::Dim::is`]).
///
/// Errors: a damaged file; every operation, attribute or type that is not supported, all at
/// once; the first node that is wrong; a dimension that must be bound first. Linear in the file,
/// but for the sorting of nodes.
pub fn load(bytes: &[u8], path: Option<&Path>, options: &LoadOptions) -> Result<Graph> {
    load_with(bytes, path, options, &mut |_| Ok(BTreeMap::new()))
}

/// As [`load`], with dimensions that are known once the inputs are.
pub(super) fn load_with(
    bytes: &[u8],
    path: Option<&Path>,
    options: &LoadOptions,
    more: FindDims<'_>,
) -> Result<Graph> {
    let (mut model, left_out) = decoded(bytes)?;
    let mut graph = model.graph.take().unwrap_or_default();
    let taken = take_inputs(&mut graph, &options.inputs);
    let file = beside(&model, path, options)?;
    let mut graph = lower::lower(graph, file, &options.dims, more)?;
    // What is computed of sizes is folded where they are known.
    graph.rules_mut().open_dims_matter = true;
    let what = "these are not in the file, since all their elements are 0, and are not trained (export with optimize=False)";
    graph.rules_mut().unheeded.extend(trained::listed(what, &left_out));
    for name in taken {
        graph.rules_mut().inputs.entry(name).or_default().absent = Some(Absent::Computed);
    }
    Ok(graph)
}

/// Leaves those initialisers to the caller that are inputs as well and that it has arrays for: what the file holds stands in for
/// an array that is not given.
fn take_inputs(graph: &mut proto::GraphProto, given: &BTreeSet<String>) -> BTreeSet<String> {
    let of_both = |name: &String| given.contains(name) && graph.input.iter().any(|input| input.name == *name);
    let taken: BTreeSet<String> =
        graph.initializer.iter().map(|array| &array.name).filter(|&name| of_both(name)).cloned().collect();
    graph.initializer.retain(|array| !taken.contains(&array.name));
    taken
}

/// The messages of a file, which have a graph, and the names of shifts that its exporter left out. Errors: a damaged file; an operator
/// set that is not known.
fn decoded(bytes: &[u8]) -> Result<(proto::ModelProto, Vec<String>)> {
    if let Some(what) = proto::shortest(bytes) {
        return Err(Error::format("", format!("damaged ONNX model: {what} without content")));
    }
    let mut model = proto::ModelProto::decode(bytes)
        .map_err(|error| Error::format("", format!("truncated or damaged ONNX model: {error}")))?;
    let is_of_torch = is_of_torch(&model);
    let Some(graph) = &mut model.graph else {
        return Err(Error::format("", "the ONNX model has no graph"));
    };
    let left_out = if is_of_torch { merged::part(graph) } else { Vec::new() };
    let opsets = function::opsets(&model.opset_import);
    if let Some(&opset) = opsets.get("").filter(|&opset| !OPSETS.contains(opset)) {
        let (first, last) = (OPSETS.start(), OPSETS.end());
        return Err(Error::Unsupported(
            Report::new("", format!("opset {opset} of domain ai.onnx is not supported yet"))
                .help(format!("opsets {first} to {last} are; onnx.version_converter converts a model")),
        ));
    }
    Ok((model, left_out))
}

/// What a file says beside its graph.
fn beside(model: &proto::ModelProto, path: Option<&Path>, options: &LoadOptions) -> Result<lower::File> {
    Ok(lower::File {
        opsets: function::opsets(&model.opset_import),
        functions: function::Functions::of(&model.functions)?,
        folder: Folder::of(path, options.links),
        is_of_torch: is_of_torch(model),
    })
}

fn is_of_torch(model: &proto::ModelProto) -> bool {
    model.producer_name == b"pytorch"
}
