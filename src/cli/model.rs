//! Reads model files for the commands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[cfg(feature = "run")]
use super::args::ModelArgs;
use crate::compile;
use crate::error::{Error, Report, Result};
use crate::files::{self, Links};
use crate::ir::Graph;
#[cfg(feature = "run")]
use crate::load::Format;
#[cfg(feature = "run")]
use crate::load::weights::ADAPTER;
use crate::load::{
    FindDims, Inside, LoadOptions, Model, load, load_with, may_be_model, model_inside, recognise,
};
use crate::pass::{self, CONTEXT};
use crate::plan::{Plan, Sense, read_decompressed};
#[cfg(feature = "run")]
use crate::train::step_of_plan;

/// The step that a plan is of, where it trains its network: this build makes none.
#[cfg(not(feature = "run"))]
fn step_of_plan(network: Graph, plan: &Plan) -> Result<Graph> {
    match plan.options.training {
        None => Ok(network),
        Some(_) => Err(Error::usage("plan", "this build knows no training steps")
            .with_help("explain and check the plan without its model")),
    }
}

/// The bytes of a model file, and where they come from.
pub(super) struct ModelFile {
    pub(super) bytes: Vec<u8>,
    /// None for standard input.
    pub(super) path: Option<PathBuf>,
    /// Which files the model may name.
    links: Links,
    /// Names of arrays that there are for the model's inputs.
    inputs: BTreeSet<String>,
    /// The file holds the weights, too.
    #[cfg_attr(not(feature = "run"), expect(dead_code))]
    holds_weights: bool,
}

/// The weights of a network, and what is merged into them.
#[cfg(feature = "run")]
#[derive(Default)]
pub(super) struct WeightFiles {
    /// None where the model holds its own, if any.
    pub(super) weights: Option<PathBuf>,
    /// The folder of an adapter.
    pub(super) adapter: Option<PathBuf>,
}

#[cfg(feature = "run")]
impl WeightFiles {
    /// The folder of weights that lie beside an adapter which is not merged.
    pub(super) fn adapter_beside(&self) -> Option<&Path> {
        let weights = self.weights.as_deref().filter(|_| self.adapter.is_none())?;
        let folder = if weights.is_dir() { weights } else { weights.parent()? };
        folder.join(ADAPTER).is_file().then_some(folder)
    }

    /// Both.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.weights.iter().chain(&self.adapter).map(PathBuf::as_path)
    }
}

impl ModelFile {
    /// Reads a file, the `config.json` of a folder, a pipe, or standard input for `-`: to its end, or as far as it
    /// takes to see that it is neither a model nor a plan.
    pub(super) fn read(path: &Path, links: Links) -> Result<Self> {
        let inputs = BTreeSet::new();
        if path == Path::new("-") {
            let bytes = read_decompressed(&mut std::io::stdin().lock(), "standard input", judge)?;
            if bytes.starts_with(b"PK\x03\x04") {
                let message =
                    "archives (.pt2, .keras) are read where they lie, and standard input lies nowhere";
                return Err(Error::format("standard input", message).with_help("save it and name the file"));
            }
            return Ok(Self { bytes, path: None, links, inputs, holds_weights: false });
        }
        let path = &in_folder(path)?;
        if let Some(Inside { bytes, is_weights }) = model_inside(path)? {
            return Ok(Self { bytes, path: Some(path.clone()), links, inputs, holds_weights: is_weights });
        }
        let mut file = files::open_or_pipe(path).map_err(|error| match error {
            Error::Io { source, .. } => unreadable(path, source),
            other => other,
        })?;
        let bytes = read_decompressed(&mut file, &path.display().to_string(), judge)?;
        Ok(Self { bytes, path: Some(path.clone()), links, inputs, holds_weights: false })
    }

    /// Reads the model of a plan. Errors: the file holds no model; it holds another one.
    pub(super) fn of_plan(plan: &Plan, path: &Path, links: Links) -> Result<Self> {
        let file = Self::read(path, links)?.taking(plan.options.inputs.iter().cloned());
        if file.hash() != plan.model.hash {
            // That a plan, or weights, are no model says more than that their hash is another one.
            recognise(&file.bytes).map_err(|error| error.within(&file.name()))?;
        }
        compile::check_hash(plan, &file.hash(), &file.name())?;
        Ok(file)
    }

    /// What a plan is of: this network, or the step that trains it.
    ///
    /// Errors: those of reading it, and of making the step.
    pub(super) fn planned(&self, plan: &Plan, dims: &BTreeMap<String, i64>) -> Result<Model> {
        // Each replica has its part of the batch.
        let replicas = plan.options.training.as_ref().and_then(|training| training.replicas.as_ref());
        let divided = replicas.and_then(|replicas| replicas.batch.as_ref());
        let mut dims = dims.clone();
        if let Some(name) = divided {
            dims.remove(name);
        }
        match self.load(&dims)? {
            Model::Graph(network) => Ok(Model::Graph(step_of_plan(network, plan)?)),
            graph @ Model::CostGraph { .. } => Ok(graph),
        }
    }

    /// Takes those of the model's optional inputs that are among these names.
    pub(super) fn taking(mut self, inputs: impl IntoIterator<Item = String>) -> Self {
        self.inputs.extend(inputs);
        self
    }

    /// The same, of names that the caller chose. Error: one is no input of the model.
    pub(super) fn taking_all(self, inputs: &[String], dims: &BTreeMap<String, i64>) -> Result<Self> {
        if inputs.is_empty() {
            return Ok(self);
        }
        let file = self.taking(inputs.iter().cloned());
        let known: Vec<String> = match file.load(dims)? {
            Model::Graph(graph) => graph.inputs().iter().map(|(name, _)| name.clone()).collect(),
            Model::CostGraph { .. } => Vec::new(),
        };
        match inputs.iter().find(|name| !known.contains(name)) {
            None => Ok(file),
            Some(name) => Err(Error::usage(format!("--with-input {name}"), "the model has no such input")
                .with_help(format!("its inputs are: {}", known.join(", ")))),
        }
    }

    /// An optional input that the model has as it is read now, and `graph`, the same model, lacks; none
    /// where there is none.
    #[cfg(feature = "run")]
    pub(super) fn input_beyond(&self, graph: &Graph, dims: &BTreeMap<String, i64>) -> Result<Option<String>> {
        match recognise(&self.bytes)? {
            Format::Transformers | Format::Gguf => {}
            Format::Onnx
            | Format::Native
            | Format::CostGraph
            | Format::Fx
            | Format::Workload
            | Format::Keras
            | Format::Torch => {
                return Ok(None);
            }
        }
        let Model::Graph(all) = self.load(dims)? else { return Ok(None) };
        let is_beyond = |name: &String| graph.inputs().iter().all(|(own, _)| own != name);
        Ok(all.inputs().iter().map(|(name, _)| name.clone()).find(is_beyond))
    }

    /// The weights: those that the caller names, those of the file itself, or those beside a transformers `config.json`, where
    /// an adapter may lie too; the one that the caller names comes before it.
    ///
    /// Errors: there are weights beside it in a form that is not read; an adapter of a model of another kind.
    #[cfg(feature = "run")]
    pub(super) fn weights(&self, args: &ModelArgs) -> Result<WeightFiles> {
        let adapter = args.adapter.clone();
        if adapter.is_some() {
            self.expect_adaptable()?;
        }
        if args.weights.is_some() {
            return Ok(WeightFiles { weights: args.weights.clone(), adapter });
        }
        if self.holds_weights {
            return Ok(WeightFiles { weights: self.path.clone(), adapter });
        }
        let Some(folder) = self.folder() else { return Ok(WeightFiles { weights: None, adapter }) };
        let beside = || folder.join(ADAPTER).is_file().then(|| folder.to_owned());
        let weights = crate::load::weights::weights_in(folder)?;
        Ok(WeightFiles { weights, adapter: adapter.or_else(beside) })
    }

    /// The folder of a transformers model.
    #[cfg(feature = "run")]
    fn folder(&self) -> Option<&Path> {
        let path = self.path.as_deref().filter(|path| path.file_name() == Some(CONFIG.as_ref()))?;
        let is_one = recognise(&self.bytes).is_ok_and(|format| format == Format::Transformers);
        let folder = path.parent().filter(|_| is_one)?;
        Some(if folder == Path::new("") { Path::new(".") } else { folder })
    }

    /// Error: parameters of this model have names that no adapter knows, or blocks of few bits.
    #[cfg(feature = "run")]
    fn expect_adaptable(&self) -> Result<()> {
        if recognise(&self.bytes).is_ok_and(|format| format == Format::Transformers) {
            return Ok(());
        }
        let message = format!(
            "an adapter is merged into weights of a transformers folder, which {} is not",
            self.name()
        );
        let help = "the folder that the adapter was trained with, or weights into which it is merged (merge_and_unload)";
        Err(Error::Unsupported(Report::new("--adapter", message).help(help)))
    }

    /// The name for messages.
    pub(super) fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "standard input".to_owned(), |path| path.display().to_string())
    }

    /// The hash that plans carry.
    pub(super) fn hash(&self) -> String {
        compile::model_hash(&self.bytes)
    }

    /// Reads the model with these dimensions bound.
    pub(super) fn load(&self, dims: &BTreeMap<String, i64>) -> Result<Model> {
        self.load_with(dims, &mut |_| Ok(BTreeMap::new()))
    }

    fn options(&self, dims: BTreeMap<String, i64>, context: Option<i64>) -> LoadOptions {
        LoadOptions { dims, links: self.links, inputs: self.inputs.clone(), context }
    }

    /// The model as a decoder with caches of so many tokens. How many tokens a step takes is open until the caches are
    /// there; other sizes the network may have to know. Errors: it is none; more positions than it has.
    fn load_cached(&self, dims: BTreeMap<String, i64>, context: i64, find: FindDims<'_>) -> Result<Model> {
        let (open, known) = self.read_open(&dims, context, find)?;
        let Model::Graph(mut graph) = open else {
            return self.read_with(dims, context);
        };
        if pass::has_pairs(&graph) {
            let Model::Graph(graph) = self.read_with(dims, context)? else {
                return self.read_with(BTreeMap::new(), context);
            };
            return pass::paired(&graph, context).map(Model::Graph);
        }
        let sequence = pass::sequence(&graph)?;
        graph.rules().check_dim(graph.dim_name(sequence), context)?;
        pass::positions(&mut graph)?;
        let mut cached = pass::cached(&graph)?;
        cached.rules().check_dim(CONTEXT, context)?;
        let left = dims.into_iter().filter(|(name, _)| !known.contains_key(name));
        let bound = left.chain([(CONTEXT.to_owned(), context)]).collect();
        cached.bind(&bound)?;
        Ok(Model::Graph(cached))
    }

    fn read_with(&self, dims: BTreeMap<String, i64>, context: i64) -> Result<Model> {
        load(&self.bytes, self.path.as_deref(), &self.options(dims, Some(context)))
    }

    /// The model with as few sizes bound as it can be read with, and which these are: none, all that the caller names but
    /// that of the tokens, or what `find` says.
    fn read_open(
        &self,
        dims: &BTreeMap<String, i64>,
        context: i64,
        find: FindDims<'_>,
    ) -> Result<(Model, BTreeMap<String, i64>)> {
        let is_open = |model: &Model| matches!(model, Model::Graph(graph) if pass::sequence(graph).is_ok());
        let error = match self.read_with(BTreeMap::new(), context) {
            Ok(open) => return Ok((open, BTreeMap::new())),
            Err(error) => error,
        };
        let others = dims.keys().map(|name| {
            let mut some = dims.clone();
            some.remove(name);
            some
        });
        for some in std::iter::once(dims.clone()).chain(others) {
            if let Some(model) = self.read_with(some.clone(), context).ok().filter(is_open) {
                return Ok((model, some));
            }
        }
        let mut known = BTreeMap::new();
        let mut noted = |graph: &Graph| {
            known = find(graph)?;
            Ok(known.clone())
        };
        let options = self.options(BTreeMap::new(), Some(context));
        let found = load_with(&self.bytes, self.path.as_deref(), &options, &mut noted);
        // Where sizes are not what is missing, the first error says more.
        found.ok().filter(is_open).map(|model| (model, known)).ok_or(error)
    }

    /// As [`ModelFile::load`]; a model that has to know its sizes to be read is read with this batch, and with what `find`
    /// says of others. What they are is then among the dimensions.
    pub(super) fn load_sized(
        &self,
        dims: &mut BTreeMap<String, i64>,
        batch: Option<i64>,
        find: FindDims<'_>,
    ) -> Result<Model> {
        let open = self.load(dims);
        if open.is_ok() {
            return open;
        }
        // The batch stays open where it can: it may be divided, and the last one may be smaller.
        for batch in [None, batch] {
            let mut found = BTreeMap::new();
            let mut bound = |graph: &Graph| {
                found = find(graph)?;
                found.extend(compile::batch_dim(graph).zip(batch));
                if found.is_empty() {
                    // As open as before: nothing is read twice.
                    return Err(Error::Internal("no size is known".into()));
                }
                Ok(found.clone())
            };
            if let Ok(model) = self.load_with(dims, &mut bound) {
                dims.extend(found);
                return Ok(model);
            }
        }
        // Where sizes are not what is missing, the first error says more.
        open
    }

    /// Why the model cannot be read for a step in `microbatches`, whose batch stays open: where it can be read with the
    /// sizes that `find` says, batch and all, that is the cause, and else `error`.
    pub(super) fn closed_batch(
        &self,
        error: Error,
        microbatches: u32,
        dims: &BTreeMap<String, i64>,
        find: FindDims<'_>,
    ) -> Error {
        if self.load_with(dims, find).is_err() {
            return error;
        }
        let place = format!("{}: --microbatches {microbatches}", self.name());
        let message =
            "a batch that is divided stays open, and the model can be read only where its batch is bound";
        // A batch that is bound is not divided: how to bind it is no way out.
        let cause = error.with_help("").to_string();
        let report = Report::new(place, message).help("leave --microbatches out");
        Error::Usage(report.details(vec![cause]))
    }

    /// As [`ModelFile::load`], with dimensions that are known once the inputs are.
    pub(super) fn load_with(&self, dims: &BTreeMap<String, i64>, find: FindDims<'_>) -> Result<Model> {
        let (own, context) = apart(dims);
        let Some(context) = context else {
            return load_with(&self.bytes, self.path.as_deref(), &self.options(own, None), find);
        };
        let mut is_asked = false;
        let mut noted = |graph: &Graph| {
            is_asked = true;
            find(graph)
        };
        let model = self.load_cached(own, context, &mut noted);
        let mut model = model.map_err(|error| error.within(&format!("--context {context}")))?;
        if let (Model::Graph(graph), false) = (&mut model, is_asked) {
            let found = find(graph)?;
            graph.bind(&found)?;
        }
        Ok(model)
    }
}

/// The dimensions of the model itself, and how many tokens its caches are to hold.
fn apart(dims: &BTreeMap<String, i64>) -> (BTreeMap<String, i64>, Option<i64>) {
    let mut dims = dims.clone();
    let context = dims.remove(CONTEXT);
    (dims, context)
}

/// What a folder's model is called.
const CONFIG: &str = "config.json";

/// The model in a folder; other paths as they are. Error: a folder without one.
fn in_folder(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let config = path.join(CONFIG);
    if config.is_file() {
        return Ok(config);
    }
    let report = Report::new(path.display().to_string(), "the folder holds no config.json");
    let help = match path.join("adapter_config.json").is_file() {
        true => "it holds an adapter: partition BASE --adapter FOLDER, of the model that it was trained with",
        false => "as a folder, a model is one of transformers: config.json beside its weights",
    };
    Err(Error::Format(report.help(help)))
}

/// A model that cannot be opened, with the way out where it is the name of one that the hub has.
fn unreadable(path: &Path, error: std::io::Error) -> Error {
    let parts = path.components().count();
    let hub = error.kind() == std::io::ErrorKind::NotFound && path.extension().is_none() && parts <= 2;
    if !hub || path.is_absolute() {
        return Error::io(path.display().to_string(), error);
    }
    let name = path.display();
    let report = Report::new(name.to_string(), format!("there is no such file: {error}"));
    let help = format!(
        "a model of the hub is downloaded first: hf download {name} --local-dir DIR, then DIR as MODEL"
    );
    Error::Usage(report.help(help))
}

/// Plans begin as models in JSON do.
fn judge(start: &[u8]) -> Sense {
    if may_be_model(start) { Sense::ReadOn } else { Sense::Stop }
}

/// Where the model of a plan is: where the caller says, where the plan says, or beside the plan.
pub(super) fn model_path(plan: &Plan, file: &ModelFile, path: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = path {
        return Ok(path.to_owned());
    }
    let named = plan.model.path.as_ref().map(PathBuf::from).ok_or_else(|| {
        Error::usage(file.name(), "the plan does not say where its model is").with_help("--model MODEL")
    })?;
    if named.exists() {
        // The plan chose the name, not the user: it may not make the program wait for a pipe.
        if !named.is_dir() {
            files::open(&named).map_err(|error| error.within(&file.name()))?;
        }
        return Ok(named);
    }
    let beside = file.path.as_deref().and_then(Path::parent).zip(named.file_name());
    match beside.map(|(folder, name)| folder.join(name)) {
        Some(path) if path.is_file() => Ok(path),
        _ => {
            let message = format!("the plan's model {} is not there", named.display());
            Err(Error::usage(file.name(), message).with_help("--model MODEL"))
        }
    }
}
