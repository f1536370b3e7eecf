//! Reads models: one submodule for each format, recognised by content and never by name.
//!
//! On exit a [`Graph`] is lowered, its types are inferred, its sources name every node of the
//! source model and know their consumers. Nothing here decides a placement.

use std::collections::BTreeMap;
use std::path::Path;

use crate::costgraph::CostGraph;
use crate::error::{Error, Result};
use crate::ir::Graph;
use crate::topology::Topology;

mod costgraph;
mod init;
mod json;
#[cfg(feature = "keras")]
pub mod keras;
pub mod native;
#[cfg(feature = "onnx")]
pub mod onnx;
mod transformers;
#[cfg(feature = "weights")]
pub mod weights;
mod workload;

pub use costgraph::{read_costgraph, write_costgraph};
pub use init::fill;
pub use workload::read_workload;

/// What is known before a model is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Values of named dimensions, applied to the inputs at once: a model whose shapes are not
    /// affine in its dimensions can be read only so. Names that the model does not have are
    /// an error.
    pub dims: BTreeMap<String, i64>,
}

/// A model that was read.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a program holds one or two")]
pub enum Model {
    /// A network of operations on tensors.
    Graph(Graph),
    /// Costs only: what other engines and placement workloads give.
    CostGraph {
        /// The costs.
        graph: CostGraph,
        /// The devices, where the file names its own.
        topology: Option<Topology>,
    },
}

/// A file format of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// An ONNX `ModelProto`.
    Onnx,
    /// The native `model.json`.
    Native,
    /// A cost graph in JSON.
    CostGraph,
    /// A workload of a placement benchmark.
    Workload,
    /// A Keras 2 or Keras 3 model in the JSON of `to_json`.
    Keras,
    /// A transformers `config.json`.
    Transformers,
}

/// The format of `bytes`. Error: they are none of the known ones.
pub fn recognise(bytes: &[u8]) -> Result<Format> {
    if bytes.is_empty() {
        return Err(Error::format("", "the file is empty"));
    }
    #[cfg(feature = "onnx")]
    if onnx::looks_like_onnx(bytes) {
        return Ok(Format::Onnx);
    }
    if let Some(format) = json::recognise(bytes)? {
        return Ok(format);
    }
    Err(Error::format("", "the file is no model of a known format")
        .with_help("known: native model.json, ONNX, Keras JSON, transformers config.json, cost graph JSON, placement workload"))
}

/// Reads the model in `bytes`. `path` is where they come from: errors name it, and files that the
/// model refers to are looked up beside it.
///
/// Errors: an unknown or malformed format, operations that are not supported (all of them at
/// once), shapes that do not fit.
pub fn load(bytes: &[u8], path: Option<&Path>, options: &LoadOptions) -> Result<Model> {
    let place = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let format = recognise(bytes).map_err(|error| error.within(&place))?;
    let model = match format {
        Format::Native => native::load(bytes, path, options).map(Model::Graph),
        Format::Transformers => transformers::load(bytes, path, options).map(Model::Graph),
        Format::CostGraph => no_dims(options)
            .and_then(|()| read_costgraph(bytes))
            .map(|graph| Model::CostGraph { graph, topology: None }),
        Format::Workload => no_dims(options).and_then(|()| {
            let stem =
                path.and_then(Path::file_stem).map_or_else(String::new, |stem| stem.to_string_lossy().into());
            let (graph, topology) = read_workload(bytes, &stem)?;
            Ok(Model::CostGraph { graph, topology: Some(topology) })
        }),
        #[cfg(feature = "keras")]
        Format::Keras => keras::load(bytes, options).map(Model::Graph),
        #[cfg(not(feature = "keras"))]
        Format::Keras => Err(Error::Unsupported(crate::error::Report::new(
            "",
            "this build does not read Keras models (feature `keras`)",
        ))),
        #[cfg(feature = "onnx")]
        Format::Onnx => onnx::load(bytes, path, options).map(Model::Graph),
        #[cfg(not(feature = "onnx"))]
        Format::Onnx => Err(Error::Unsupported(crate::error::Report::new(
            "",
            "this build does not read ONNX (feature `onnx`)",
        ))),
    };
    model.map_err(|error| error.within(&place))
}

/// Error: values are given for dimensions of a model that has none.
fn no_dims(options: &LoadOptions) -> Result<()> {
    match options.dims.keys().next() {
        None => Ok(()),
        Some(name) => Err(Error::usage(
            format!("dimension {name}"),
            "the model gives costs only and has no named dimensions",
        )),
    }
}
