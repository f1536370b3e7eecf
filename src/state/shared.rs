//! State that outlives runs and is shared by name: a folder of containers, each a [`Store`] of its
//! own, as sessions of other systems share variables in resource containers.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Found, Keep, Store};
use crate::error::{Error, Result};

/// A folder of named states.
#[derive(Clone, Debug)]
pub struct Shared {
    root: PathBuf,
}

impl Shared {
    /// The states under `root`, which need not be there yet.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Opens a state to write it; one process at a time does. Reading goes on meanwhile.
    ///
    /// Errors: a name that is none; as [`Store::open`].
    pub fn write(&self, name: &str, keep: Keep) -> Result<Store> {
        Store::open(&self.folder(name)?, keep)
    }

    /// The newest whole content of a state; none where nobody has written it.
    ///
    /// Errors: a name that is none; as [`Store::latest`].
    pub fn read(&self, name: &str) -> Result<Option<Found>> {
        let folder = self.folder(name)?;
        if folder.is_dir() { Store::read(&folder)?.latest() } else { Ok(None) }
    }

    /// The names of all states, sorted. Error: the folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        if !self.root.is_dir() {
            return Ok(Vec::new());
        }
        let io = |error| Error::io(self.root.display().to_string(), error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.path().is_dir() {
                names.extend(entry.file_name().into_string().ok().filter(|name| is_name(name)));
            }
        }
        names.sort();
        Ok(names)
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        if is_name(name) {
            return Ok(self.root.join(name));
        }
        Err(Error::usage(format!("state {name:?}"), "is no name")
            .with_help("letters, digits, `_`, `-` and `.`, the last not in front"))
    }
}

/// Whether a name stays in its folder and is not hidden.
fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.chars().all(fits)
}
