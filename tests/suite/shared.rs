//! Where the shared test material lies, and what can be done with it. Tests that need it are
//! skipped where it is absent, unless `PARTITION_REQUIRE_SHARED=1`.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The shared folder: `PARTITION_SHARED`, else `../shared` beside the manifest. None, with a line
/// on standard output, where there is none.
pub(crate) fn dir() -> Option<PathBuf> {
    let dir = std::env::var_os("PARTITION_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    if dir.is_dir() {
        return Some(dir);
    }
    assert!(!required(), "PARTITION_REQUIRE_SHARED=1, and there is no {}", dir.display());
    println!("skipped: no ../shared");
    None
}

/// A file of the shared folder; none, with a line on standard output, where it is absent.
pub(crate) fn file(relative: &str) -> Option<PathBuf> {
    let path = dir()?.join(relative);
    if path.exists() {
        return Some(path);
    }
    assert!(!required(), "PARTITION_REQUIRE_SHARED=1, and there is no {}", path.display());
    println!("skipped: no ../shared/{relative}");
    None
}

/// A file of the shared folder; none where it is absent, whatever is required.
pub(crate) fn present(relative: &str) -> Option<PathBuf> {
    dir().map(|dir| dir.join(relative)).filter(|path| path.exists())
}

/// A command that runs a Python script of the shared folder; none where the script or python3
/// is absent.
pub(crate) fn python(script: &str) -> Option<Command> {
    let script = file(script)?;
    let found = Command::new("python3").arg("--version").output().is_ok_and(|out| out.status.success());
    if !found {
        assert!(!required(), "PARTITION_REQUIRE_SHARED=1, and there is no python3");
        println!("skipped: no python3");
        return None;
    }
    let mut command = Command::new("python3");
    command.arg(script);
    Some(command)
}

/// Asserts that the independent verifier finds a plan sound. Gives its line of figures; none
/// where the verifier cannot be run.
pub(crate) fn verify_plan(path: &Path) -> Option<String> {
    match try_verify_plan(path)? {
        Ok(figures) => Some(figures),
        Err(violations) => panic!("verify_plan.py finds {} unsound:\n{violations}", path.display()),
    }
}

/// What the independent verifier says: its line of figures, or the violations.
pub(crate) fn try_verify_plan(path: &Path) -> Option<Result<String, String>> {
    let out = python("tools/verify_plan.py")?.arg(path).output().expect("python3 starts");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    Some(if out.status.success() { Ok(text) } else { Err(format!("{text}{errors}")) })
}

fn required() -> bool {
    std::env::var_os("PARTITION_REQUIRE_SHARED").is_some_and(|value| value == "1")
}
