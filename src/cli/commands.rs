//! What was meant by a first word that is neither a command nor a file.

use std::ffi::OsString;
use std::path::Path;

use crate::error::Error;
use crate::topology::near;

/// The error for a mistyped command: its name where one is near, and what to write for `plan`, which other
/// tools have as a command. None where the first argument is an option, a command, a path or a file.
pub(super) fn mistyped(command: &clap::Command, arguments: &[OsString]) -> Option<Error> {
    let word = arguments.get(1)?.to_str()?;
    let is_name = !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    if !is_name || word.starts_with('-') || Path::new(word).exists() {
        return None;
    }
    let names = || command.get_subcommands().map(clap::Command::get_name).chain(["help"]);
    if names().any(|name| name == word) {
        return None;
    }
    if matches!(word, "plan" | "place" | "partition" | "compile") {
        let model = arguments.get(2).and_then(|model| model.to_str()).unwrap_or("MODEL");
        return Some(
            Error::usage(word, "there is no such command: planning is what partition does with a model")
                .with_help(format!("partition {model} --devices SPEC")),
        );
    }
    let near = near::suggestion(word, names());
    (!near.is_empty())
        .then(|| Error::usage(word, "there is no such command, and no such file").with_help(near))
}
