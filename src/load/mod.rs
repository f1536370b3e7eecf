//! Reads models: one submodule per format, recognised by content and never by name.
//!
//! On exit a [`Graph`] is lowered and its types are inferred. Its sources name every node of the source
//! model and its consumers. Nothing here decides a placement.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::de::IgnoredAny;

use crate::costgraph::CostGraph;
use crate::error::{Error, Report, Result};
use crate::files::Links;
use crate::ir::{Graph, MAX_AXES};
use crate::topology::Topology;

mod columns;
#[cfg(feature = "cli")]
mod container;
mod costgraph;
mod fx;
mod gguf;
mod init;
mod json;
#[cfg(feature = "keras")]
pub mod keras;
pub mod listing;
pub mod native;
#[cfg(feature = "onnx")]
pub mod onnx;
#[cfg(all(feature = "cli", feature = "run", feature = "tokenizer"))]
mod splits;
#[cfg(feature = "torch")]
mod torch;
mod transformers;
#[cfg(all(feature = "cli", feature = "run", feature = "tokenizer"))]
mod vocabulary;
#[cfg(feature = "weights")]
pub mod weights;
mod workload;

pub use columns::write_costgraph_binary;
#[cfg(all(feature = "cli", feature = "run", feature = "tokenizer"))]
pub(crate) use container::gguf_tokenizer;
#[cfg_attr(not(feature = "cli"), expect(unused_imports))]
#[cfg(feature = "cli")]
pub(crate) use container::{Inside, model_inside};
#[cfg(all(feature = "cli", feature = "run"))]
pub(crate) use container::{gguf_ends, gguf_longest};
pub use costgraph::{read_costgraph, write_costgraph};
pub use init::{fill, fill_param};
pub use workload::read_workload;

/// What is known before a model is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Values of named dimensions, applied to the inputs at once: a model whose shapes are not
    /// affine in its dimensions can be read only so. Names that the model does not have are
    /// an error.
    pub dims: BTreeMap<String, i64>,
    /// Which files the model may name, for weights that are beside it.
    pub links: Links,
    /// Names of arrays that the caller has for the model's inputs. A model with optional inputs
    /// (a transformer's `attention_mask`, `token_type_ids`, `position_ids`) takes those among them;
    /// other names mean nothing here.
    pub inputs: BTreeSet<String>,
    /// How many tokens a decoder's caches are planned to hold, if it is to have some: what a
    /// configuration lets depend on the length of a text follows from it.
    pub context: Option<i64>,
}

/// A model that was read.
#[derive(Clone, Debug)]
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
    /// A cost graph, in JSON or in its binary form.
    CostGraph,
    /// A workload of a placement benchmark.
    Workload,
    /// A graph of `torch.fx` with shapes, in JSON.
    Fx,
    /// A Keras 2 or Keras 3 model in the JSON of `to_json`.
    Keras,
    /// A program of `torch.export`, as its archive holds it.
    Torch,
    /// A transformers `config.json`.
    Transformers,
    /// The head of a GGUF file.
    Gguf,
}

/// The format of `bytes`. Error: they are none of the known ones.
pub fn recognise(bytes: &[u8]) -> Result<Format> {
    if bytes.is_empty() {
        return Err(Error::format("", "the file is empty"));
    }
    if bytes.starts_with(gguf::MAGIC) {
        return Ok(Format::Gguf);
    }
    if bytes.starts_with(&columns::MAGIC) {
        return Ok(Format::CostGraph);
    }
    #[cfg(feature = "onnx")]
    if onnx::looks_like_onnx(bytes) {
        return Ok(Format::Onnx);
    }
    if let Some(format) = json::recognise(bytes)? {
        return Ok(format);
    }
    if let Some(error) = weights_alone(bytes).or_else(|| other_file(bytes)) {
        return Err(error);
    }
    Err(Error::format("", "the file is no model of a known format")
        .with_help("known: native model.json, ONNX, Keras JSON, transformers config.json, GGUF, torch.export archive, cost graph, torch.fx JSON, placement workload"))
}

/// The error for another file of this program in place of a model; none for other bytes.
fn other_file(bytes: &[u8]) -> Option<Error> {
    #[derive(serde::Deserialize)]
    struct Fields {
        version: Option<IgnoredAny>,
        steps: Option<IgnoredAny>,
        placement: Option<IgnoredAny>,
        profile: Option<IgnoredAny>,
        device: Option<IgnoredAny>,
    }
    let fields: Fields = serde_json::from_slice(bytes).ok()?;
    let (what, help) = match fields {
        Fields { version: Some(_), steps: Some(_), placement: Some(_), .. } => {
            ("a plan", "partition run PLAN, explain PLAN, or check PLAN --model MODEL")
        }
        Fields { profile: Some(_), .. } => ("a profile", "partition MODEL --devices SPEC --profile FILE"),
        Fields { device: Some(_), .. } => ("a file of devices", "partition MODEL --devices FILE"),
        _ => return None,
    };
    Some(Error::format("", format!("the file is {what}, not a model")).with_help(help))
}

/// The error for weights in place of a model, which names what they are; none for other bytes.
fn weights_alone(bytes: &[u8]) -> Option<Error> {
    let what = match bytes {
        [b'P', b'K', 3, 4, ..] => "a zip archive: npz, .keras, or a pickle of PyTorch",
        [0x80, 2..=5, ..] => "a pickle of PyTorch",
        [0x89, b'H', b'D', b'F', ..] => "HDF5",
        [_, _, _, _, _, _, 0, 0, b'{', ..] => "safetensors",
        [b'{', ..] if bytes.windows(12).take(1 << 20).any(|window| window == b"\"weight_map\"") => {
            "an index of safetensors"
        }
        _ => return None,
    };
    let message = format!("these are weights ({what}), and the model is missing");
    Some(
        Error::format("", message)
            .with_help("a model is the config.json beside them, or the folder; weights: --weights"),
    )
}

/// Whether what begins with `start` may be a model of any format: what may not is neither read nor
/// decompressed further.
#[cfg_attr(not(feature = "cli"), expect(dead_code))]
pub(crate) fn may_be_model(start: &[u8]) -> bool {
    if start.starts_with(&columns::MAGIC) {
        return true;
    }
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{') | None => true,
        Some(_) => {
            #[cfg(feature = "onnx")]
            return onnx::may_begin(start);
            #[cfg(not(feature = "onnx"))]
            return false;
        }
    }
}

/// Reads the model in `bytes`. `path` is where they come from: errors name it, and files that the
/// model refers to are looked up beside it.
///
/// Errors: an unknown or malformed format, operations that are not supported (all of them at
/// once), shapes that do not fit.
pub fn load(bytes: &[u8], path: Option<&Path>, options: &LoadOptions) -> Result<Model> {
    load_with(bytes, path, options, &mut |_| Ok(BTreeMap::new()))
}

/// Values of dimensions, by name, for a graph of which at least the inputs are there.
pub type FindDims<'a> = &'a mut dyn FnMut(&Graph) -> Result<BTreeMap<String, i64>>;

/// As [`load`], with dimensions whose values are known once the inputs are: `find` is called once for a model
/// that is a graph, as early as its inputs are read, and what it says is bound.
///
/// Errors: those of [`load`], of `find` and of [`Graph::bind`].
pub fn load_with(
    bytes: &[u8],
    path: Option<&Path>,
    options: &LoadOptions,
    find: FindDims<'_>,
) -> Result<Model> {
    let place = path.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let bytes = crate::json::without_mark(bytes);
    let format = recognise(bytes).map_err(|error| error.within(&place))?;
    // Python writes numbers that JSON has no form for.
    let text = match format {
        Format::Keras => crate::json::with_special_numbers(bytes),
        _ => std::borrow::Cow::Borrowed(bytes),
    };
    let bytes = text.as_ref();
    // Their readers take fields as they need them; those of costs name every field and refuse one that stands twice.
    if matches!(format, Format::Native | Format::Keras | Format::Transformers | Format::Fx | Format::Torch) {
        crate::json::check_keys(bytes).map_err(|error| error.within(&place))?;
    }
    let model = read(format, bytes, path, options, &mut *find);
    let model = model.and_then(|model| match &model {
        Model::Graph(graph) => axes_in_bounds(graph).map(|()| model),
        Model::CostGraph { .. } => Ok(model),
    });
    let mut model = model.map_err(|error| error.within(&place))?;
    match &mut model {
        // Their inputs were asked about while they were read.
        Model::Graph(_) if matches!(format, Format::Onnx | Format::Torch | Format::Keras) => {}
        Model::Graph(graph) => {
            let found = find(graph)?;
            if !found.is_empty() {
                graph.bind(&found).map_err(|error| error.within(&place))?;
            }
        }
        Model::CostGraph { .. } => {}
    }
    Ok(model)
}

/// Reads a model of a known format. Only formats with open dimensions in their operations ask `find` as they read.
#[cfg_attr(not(any(feature = "onnx", feature = "torch", feature = "keras")), allow(unused_variables))]
fn read(
    format: Format,
    bytes: &[u8],
    path: Option<&Path>,
    options: &LoadOptions,
    find: FindDims<'_>,
) -> Result<Model> {
    match format {
        Format::Native => native::load(bytes, path, options).map(Model::Graph),
        Format::Transformers => transformers::load(bytes, path, options).map(Model::Graph),
        Format::Gguf => transformers::load_gguf(bytes, path, options).map(Model::Graph),
        Format::CostGraph => no_dims(options)
            .and_then(|()| read_costgraph(bytes))
            .map(|graph| Model::CostGraph { graph, topology: None }),
        Format::Workload => no_dims(options).and_then(|()| {
            let stem =
                path.and_then(Path::file_stem).map_or_else(String::new, |stem| stem.to_string_lossy().into());
            let (graph, topology) = read_workload(bytes, &stem)?;
            Ok(Model::CostGraph { graph, topology: Some(topology) })
        }),
        Format::Fx => no_dims(options)
            .and_then(|()| fx::read(bytes))
            .map(|graph| Model::CostGraph { graph, topology: None }),
        #[cfg(feature = "keras")]
        Format::Keras => keras::load_with(bytes, options, find).map(Model::Graph),
        #[cfg(not(feature = "keras"))]
        Format::Keras => Err(Error::Unsupported(crate::error::Report::new(
            "",
            "this build does not read Keras models (feature `keras`)",
        ))),
        #[cfg(feature = "torch")]
        Format::Torch => torch::load_with(bytes, path, options, find).map(Model::Graph),
        #[cfg(not(feature = "torch"))]
        Format::Torch => Err(Error::Unsupported(Report::new(
            "",
            "this build does not read programs of torch.export (feature `torch`)",
        ))),
        #[cfg(feature = "onnx")]
        Format::Onnx => onnx::load_with(bytes, path, options, find).map(Model::Graph),
        #[cfg(not(feature = "onnx"))]
        Format::Onnx => Err(Error::Unsupported(crate::error::Report::new(
            "",
            "this build does not read ONNX (feature `onnx`)",
        ))),
    }
}

/// Error: a tensor has more axes than can be run.
fn axes_in_bounds(graph: &Graph) -> Result<()> {
    let wide = graph.node_ids().find(|&id| {
        let rank = |value| graph.ty(value).shape.sizes().len();
        graph.results(id).any(|value| rank(value) > MAX_AXES)
    });
    let Some(id) = wide else { return Ok(()) };
    let name = &graph.source(graph.node(id).source).name;
    Err(Error::Unsupported(Report::new(
        format!("node {name}"),
        format!("a tensor of more than {MAX_AXES} axes"),
    )))
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
