//! Files that a command is to write, looked at before it begins: a mistake is not to cost the work.

use std::path::{Path, PathBuf};

use super::args::Emit;
use crate::error::{Error, Result};
use crate::files::check_writable;
use crate::plan::is_compressed;

/// Every file that is written can be, is no file that is read, and no other that is written. `written` has the
/// option that names each.
///
/// Errors: [`Error::Io`] where a file cannot be written.
pub(super) fn check(written: &[(&str, Option<&Path>)], read: &[Option<&Path>]) -> Result<()> {
    let mut others: Vec<PathBuf> =
        read.iter().flatten().filter_map(|path| path.canonicalize().ok()).collect();
    for (option, path) in written {
        let Some(path) = path else { continue };
        check_writable(path)?;
        // What is no regular file (a terminal, a pipe, /dev/null) is not replaced.
        let Ok(there) = std::path::absolute(path) else { continue };
        let there = there.canonicalize().unwrap_or(there);
        if there.exists() && !there.is_file() {
            continue;
        }
        if others.contains(&there) {
            let message = "this file is read, or written under another option, by the same command";
            return Err(
                Error::usage(format!("{option} {}", path.display()), message).with_help("name another file")
            );
        }
        others.push(there);
    }
    Ok(())
}

/// What a file of this name holds; none for a name that says nothing.
pub(super) fn form_of(path: &Path) -> Option<Emit> {
    let name = if is_compressed(path) { Path::new(path.file_stem()?) } else { path };
    let form = match name.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "json" => Emit::Plan,
        "html" | "htm" => Emit::Html,
        "dot" | "gv" => Emit::Dot,
        "txt" => Emit::Summary,
        _ => return None,
    };
    Some(form).filter(|form| *form == Emit::Plan || !is_compressed(path))
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
    let help =
        "names end in .json or .json.gz (the plan), .html, .dot or .txt (the summary); or say it with --emit";
    Err(Error::usage(format!("--output {}", path.display()), message).with_help(help))
}
