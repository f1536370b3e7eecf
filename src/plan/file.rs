//! Files are written aside and renamed, so that nothing half-written is left behind.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// Writes a whole file, or leaves what was there before. See [`write_atomically_with`].
pub fn write_atomically(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    write_atomically_with(path, |out| out.write_all(bytes))
}

/// Streams a whole file through `fill`, or leaves what was there before: writes beside `path`,
/// then renames. What is there and is no regular file (a pipe, a terminal) is written directly.
///
/// Errors: [`Error::Io`] with the path.
pub fn write_atomically_with(
    path: impl AsRef<Path>,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let path = path.as_ref();
    let written = destination(path).and_then(|destination| match destination {
        Destination::Renamed(target) => write_aside(&target, fill),
        Destination::Direct => fill_file(OpenOptions::new().write(true).open(path), fill),
    });
    written.map_err(|source| Error::io(path.display().to_string(), source))
}

/// Whether [`write_atomically`] could begin: for what is written after long work. What is there stays.
///
/// Errors: [`Error::Io`] with the path.
pub fn check_writable(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let tried = destination(path).and_then(|destination| match destination {
        Destination::Renamed(target) => try_aside(&target),
        Destination::Direct => Ok(()),
    });
    tried.map_err(|source| Error::io(path.display().to_string(), source))
}

/// How a path is written.
enum Destination {
    /// Beside this path, then renamed to it.
    Renamed(PathBuf),
    /// As it is.
    Direct,
}

fn destination(path: &Path) -> io::Result<Destination> {
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        Ok(there) if !there.is_file() => Ok(Destination::Direct),
        Ok(_) => fs::canonicalize(path).map(Destination::Renamed),
        Err(_) => Ok(Destination::Renamed(path.to_owned())),
    }
}

fn try_aside(path: &Path) -> io::Result<()> {
    let aside = aside(path)?;
    OpenOptions::new().write(true).create_new(true).open(&aside)?;
    fs::remove_file(&aside)
}

fn write_aside(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let aside = aside(path)?;
    let written = fill_file(OpenOptions::new().write(true).create_new(true).open(&aside), fill)
        .and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&aside);
    }
    written
}

fn fill_file(file: io::Result<File>, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, file?);
    fill(&mut out)?;
    out.flush()
}

/// A name in the same directory that no other writer uses.
fn aside(path: &Path) -> io::Result<PathBuf> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut aside = OsString::from(".");
    aside.push(name);
    aside.push(format!(".{}.{}.part", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(aside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_written_is_known_before() {
        let dir = tempfile::tempdir().unwrap();
        check_writable(dir.path().join("new")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        for path in [dir.path().to_owned(), dir.path().join("none/new")] {
            let error = check_writable(&path).unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_failed_write_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plan.json");
        write_atomically(&path, b"first").unwrap();
        write_atomically(&path, b"second").unwrap();
        let failed = write_atomically_with(&path, |out| {
            out.write_all(b"half")?;
            Err(io::Error::other("full"))
        });
        assert!(failed.unwrap_err().to_string().contains("plan.json: full"));
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = write_atomically("/nowhere/at/all/plan.json", b"").unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/at/all/plan.json: "), "{error}");
    }
}
