//! `partition export --format onnx-parts`: a folder of ONNX files that each run on one device, and a manifest of them.

use super::args::ExportArgs;
use super::terminal::Console;
#[cfg(feature = "onnx")]
use crate::error::Report;
use crate::error::{Error, Result};

/// The format's name.
pub(super) const ONNX_PARTS: &str = "onnx-parts";

#[cfg(not(feature = "onnx"))]
pub(super) fn export(_: &ExportArgs, _: &Console) -> Result<()> {
    Err(Error::usage("--format onnx-parts", "this build reads no ONNX")
        .with_help("build with feature `onnx`"))
}

#[cfg(feature = "onnx")]
pub(super) use writing::export;

#[cfg(feature = "onnx")]
mod writing {
    use std::collections::{BTreeSet, HashMap};
    use std::fs;
    use std::path::Path;

    use serde::{Deserialize, Serialize};

    use super::super::model::{ModelFile, model_path};
    use super::*;
    use crate::compile;
    use crate::escape::to_json_pretty;
    use crate::files;
    use crate::load::{LoadOptions, onnx};
    use crate::plan::{self, Plan};

    /// What lists the parts.
    const MANIFEST: &str = "manifest.json";

    #[derive(Serialize, Deserialize)]
    struct Manifest {
        /// The model's name.
        model: String,
        /// In the order in which they run.
        parts: Vec<Entry>,
    }

    #[derive(Serialize, Deserialize)]
    struct Entry {
        file: String,
        device: String,
        inputs: Vec<String>,
        outputs: Vec<String>,
    }

    pub(in super::super) fn export(args: &ExportArgs, console: &Console) -> Result<()> {
        let Some(folder) = &args.output else {
            return Err(
                Error::usage("--format onnx-parts", "no folder is named").with_help("--output FOLDER")
            );
        };
        let replaced = replaced(folder)?;
        let file = ModelFile::read(&args.plan, args.trust.links())?;
        let name = file.name();
        let plan = Plan::from_json(&file.bytes, &name)?;
        plan::check(&plan).map_err(|error| error.within(&name))?;
        if !plan.options.splits.is_empty() {
            let message = "the plan splits operations over devices, and ONNX files hold whole ones";
            return Err(Error::usage("--format onnx-parts", message).with_help("plan with --split none"));
        }
        let path = model_path(&plan, &file, args.model.as_deref())?;
        let model =
            ModelFile::of_plan(&plan, &path, args.trust.links()).map_err(|error| error.within(&name))?;
        if !onnx::looks_like_onnx(&model.bytes) {
            let message = format!("{} is no ONNX file", model.name());
            return Err(Error::usage("--format onnx-parts", message).with_help("plan an ONNX file"));
        }
        let dims = compile::Options::of_plan(&plan)?.dims;
        let options = LoadOptions { dims, links: args.trust.links(), ..LoadOptions::default() };
        let devices: HashMap<&str, &str> =
            plan.placement.iter().map(|(node, device)| (node.as_str(), device.as_str())).collect();
        let device_of = |node: &str| devices.get(node).copied();
        let parts = {
            let _working = console.working("cutting the model");
            onnx::parts(&model.bytes, model.path.as_deref(), &options, &device_of)
                .map_err(|error| error.within(&model.name()))?
        };
        write(folder, &plan.model.name, &parts, &replaced)
    }

    /// Files of an earlier export into a folder. Error: other files lie there.
    fn replaced(folder: &Path) -> Result<BTreeSet<String>> {
        let place = || folder.display().to_string();
        let failed = |source| Error::io(place(), source);
        if !folder.exists() {
            return Ok(BTreeSet::new());
        }
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            found.insert(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
        }
        if found.is_empty() {
            return Ok(found);
        }
        let read = files::read(&folder.join(MANIFEST)).ok();
        let manifest: Option<Manifest> = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let own: BTreeSet<String> = manifest
            .map(|manifest| manifest.parts.into_iter().map(|part| part.file))
            .map(|files| files.filter(|file| found.contains(file)).collect())
            .unwrap_or_default();
        match found.iter().find(|name| *name != MANIFEST && !own.contains(*name)) {
            None if !own.is_empty() => Ok(own),
            other => {
                let other = other.map_or(MANIFEST, String::as_str);
                let report = Report::new(place(), format!("holds {other}, which no export wrote"));
                Err(Error::Run(report.help("name a folder that is empty or not there")))
            }
        }
    }

    /// Writes the parts, the manifest last, and removes what an earlier export left.
    fn write(folder: &Path, model: &str, parts: &[onnx::Part], replaced: &BTreeSet<String>) -> Result<()> {
        let entry = |(number, part): (usize, &onnx::Part)| Entry {
            file: format!("part{number}.onnx"),
            device: part.device.clone(),
            inputs: part.inputs.clone(),
            outputs: part.outputs.clone(),
        };
        let manifest =
            Manifest { model: model.to_owned(), parts: parts.iter().enumerate().map(entry).collect() };
        let mut text =
            to_json_pretty(&manifest).map_err(|error| Error::Internal(format!("a manifest: {error}")))?;
        text.push('\n');
        let names = manifest.parts.iter().map(|entry| entry.file.as_str());
        let mut written: Vec<(&str, &[u8])> =
            names.clone().zip(parts.iter().map(|part| &part.bytes[..])).collect();
        written.push((MANIFEST, text.as_bytes()));
        files::write_into_folder(folder, &written)?;
        let own: BTreeSet<&str> = names.collect();
        for old in replaced.iter().filter(|old| !own.contains(old.as_str())) {
            let path = folder.join(old);
            fs::remove_file(&path).map_err(|source| Error::io(path.display().to_string(), source))?;
        }
        Ok(())
    }
}
