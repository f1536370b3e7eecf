//! Reads model files for the commands.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::compile;
use crate::error::{Error, Result};
use crate::load::{LoadOptions, Model, load};
use crate::plan::{Plan, decompressed};

/// The bytes of a model file, and where they come from.
pub(super) struct ModelFile {
    pub(super) bytes: Vec<u8>,
    /// None for standard input.
    pub(super) path: Option<PathBuf>,
}

impl ModelFile {
    /// Reads a file, or standard input for `-`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        if path == Path::new("-") {
            let mut bytes = Vec::new();
            std::io::stdin()
                .lock()
                .read_to_end(&mut bytes)
                .map_err(|error| Error::io("standard input", error))?;
            return Ok(Self { bytes: decompressed(bytes, "standard input")?, path: None });
        }
        let bytes = fs::read(path).map_err(|error| Error::io(path.display().to_string(), error))?;
        let bytes = decompressed(bytes, &path.display().to_string())?;
        Ok(Self { bytes, path: Some(path.to_owned()) })
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
        load(&self.bytes, self.path.as_deref(), &LoadOptions { dims: dims.clone() })
    }
}

/// Where the model of a plan is: where the caller says, where the plan says, or beside the plan.
pub(super) fn model_path(plan: &Plan, file: &ModelFile, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let told = plan.model.path.as_ref().map(PathBuf::from).ok_or_else(|| {
        Error::usage(file.name(), "the plan does not tell where its model is").with_help("--model MODEL")
    })?;
    if told.exists() {
        return Ok(told);
    }
    let beside = file.path.as_deref().and_then(Path::parent).zip(told.file_name());
    match beside.map(|(folder, name)| folder.join(name)) {
        Some(path) if path.exists() => Ok(path),
        _ => {
            let message = format!("the plan's model {} is not there", told.display());
            Err(Error::usage(file.name(), message).with_help("--model MODEL"))
        }
    }
}
