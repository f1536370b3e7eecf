//! Files that another file names: they lie in its folder, links followed, unless the caller allows more.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// Which files a model may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Those in the model's folder.
    #[default]
    Inside,
    /// Any: the caller trusts the model.
    Outside,
}

/// The folder of a model, and which files the model may name.
#[derive(Clone, Debug, Default)]
pub struct Folder {
    path: PathBuf,
    links: Links,
}

impl Folder {
    /// The folder that the model at `path` lies in; the current one for a model from standard input.
    pub fn of(path: Option<&Path>, links: Links) -> Self {
        let path = path.and_then(Path::parent).unwrap_or(Path::new("")).to_owned();
        Self { path, links }
    }

    /// The path of the file that the model calls `name`. Nothing need be there yet.
    ///
    /// Errors ([`Error::Model`]): `name` is empty; unless more is allowed, `name` is absolute or has `..`, or leads out
    /// of the folder by a link.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        let refused = |message: &str| {
            let message = format!("the file {name:?} that it names {message} the model's directory");
            Err(Error::model("", message)
                .with_help("a relative path without `..` or links to elsewhere, or --allow-outside for a model that you trust"))
        };
        let path = self.path.join(name);
        if name.is_empty() {
            return refused("is empty, so it is outside of");
        }
        if self.links == Links::Outside {
            return Ok(path);
        }
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !Path::new(name).components().all(is_plain) {
            return refused("is outside of");
        }
        // What is not there leads nowhere: opening it is an error of its own.
        match (fs::canonicalize(&path), fs::canonicalize(self.or_current())) {
            (Ok(file), Ok(folder)) if !file.starts_with(&folder) => refused("is by a link outside of"),
            _ => Ok(path),
        }
    }

    fn or_current(&self) -> &Path {
        if self.path.as_os_str().is_empty() { Path::new(".") } else { &self.path }
    }
}
