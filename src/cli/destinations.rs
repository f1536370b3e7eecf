//! Checks the files that a command will write before it begins, so that a mistyped path does not cost the work.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::args::Emit;
use crate::error::{Error, Result};
use crate::files::check_writable;
use crate::ir::{Data, Graph};
use crate::plan::is_compressed;

/// The files that a command writes, each with the option that names it.
pub(super) struct Destinations {
    written: Vec<(&'static str, PathBuf)>,
}

impl Destinations {
    /// Tried for writing, which leaves nothing behind.
    ///
    /// Errors: one cannot be written; two are one file.
    pub(super) fn new(
        written: impl IntoIterator<Item = (&'static str, Option<impl AsRef<Path>>)>,
    ) -> Result<Self> {
        let mut all: Vec<(&'static str, PathBuf)> = Vec::new();
        for (option, path) in written {
            let Some(path) = path else { continue };
            let path = path.as_ref();
            if let Some((other, _)) = all.iter().find(|(_, other)| is_same(other, path)) {
                let message = format!("{other} writes there too");
                return Err(Error::usage(format!("{option} {}", path.display()), message)
                    .with_help("give each a name of its own"));
            }
            all.push((option, path.to_owned()));
        }
        all.iter().try_for_each(|(_, path)| check_writable(path))?;
        Ok(Self { written: all })
    }

    /// The files with their options.
    #[cfg(feature = "run")]
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.written.iter().map(|(option, path)| (*option, path.as_path()))
    }

    /// Error: a file that is read would be written over. O(files read x files written).
    pub(super) fn are_not_read<'p>(&self, read: impl IntoIterator<Item = &'p Path>) -> Result<()> {
        for path in read {
            if let Some((option, output)) = self.written.iter().find(|(_, output)| is_same(output, path)) {
                let message = "this file is read: it would be written over";
                return Err(Error::usage(format!("{option} {}", output.display()), message)
                    .with_help("name another file"));
            }
        }
        Ok(())
    }
}

/// Whether two names are one file that is replaced when it is written, however it is called; neither need be there.
/// What is no regular file (a terminal, a pipe, /dev/null) is not replaced.
pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    let full = |path: &Path| {
        path.canonicalize().ok().or_else(|| {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Some(parent.unwrap_or(Path::new(".")).canonicalize().ok()?.join(path.file_name()?))
        })
    };
    let is_replaced = |path: &Path| !path.exists() || path.is_file() || path.is_dir();
    is_replaced(one) && (one == other || full(one).is_some_and(|one| full(other) == Some(one)))
}

/// The file that `--devices` names, where it names one.
pub(super) fn devices_file(spec: Option<&str>) -> Option<&Path> {
    spec.map(Path::new).filter(|path| path.is_file())
}

/// The files that a network's parameters lie in: external data, weights.
pub(super) fn files_of(graph: &Graph) -> BTreeSet<&Path> {
    graph.params().iter().filter_map(|param| param.data.as_ref()).flat_map(files_of_data).collect()
}

fn files_of_data(data: &Data) -> Vec<&Path> {
    match data {
        Data::Inline(_) => Vec::new(),
        Data::File { path, .. } | Data::Array { path, .. } => vec![path],
        Data::Sum { matrix, added } => {
            files_of_data(matrix).into_iter().chain([added.path.as_path()]).collect()
        }
    }
}

/// What a file of this name holds; none for a name that says nothing.
pub(super) fn form_of(path: &Path) -> Option<Emit> {
    let name = if is_compressed(path) { Path::new(path.file_stem()?) } else { path };
    let form = match name.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "json" => Emit::Plan,
        "html" | "htm" => Emit::Html,
        "dot" | "gv" => Emit::Dot,
        "txt" => Emit::Summary,
        BINARY => Emit::Costgraph,
        _ => return None,
    };
    Some(form).filter(|form| *form == Emit::Plan || !is_compressed(path))
}

/// The ending of cost graphs in their binary form.
const BINARY: &str = "pcg";

/// Whether a cost graph is written to `path` in its binary form.
pub(super) fn is_binary(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(BINARY))
}

/// What is written to `path`, where no `--emit` says.
///
/// Error: its name does not say either. What is there and is no file (a terminal, a pipe) takes a summary.
pub(super) fn form(path: &Path) -> Result<Emit> {
    if let Some(form) = form_of(path) {
        return Ok(form);
    }
    if path.exists() && !path.is_file() {
        return Ok(Emit::Summary);
    }
    let message = "the name does not say what to write";
    let help = "names end in .json or .json.gz (the plan), .html, .dot, .txt (the summary) or .pcg (the cost graph); or say it with --emit";
    Err(Error::usage(format!("--output {}", path.display()), message).with_help(help))
}
