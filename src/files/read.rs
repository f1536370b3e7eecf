//! Opens files to read. This is the one place where the program does so for names that it was handed:
//! only regular files are opened, so that no name makes it wait for a pipe or read a device that
//! never ends. `tests/suite/architecture.rs` fails on a file that is opened elsewhere.

use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Opens a regular file; a link is followed to what it names.
///
/// Errors, which name the file: it is not there or may not be read; it is a folder, a pipe, a device.
pub(crate) fn open(path: &Path) -> Result<File> {
    opened(path, Allowed::Regular)
}

/// The whole of a regular file. Errors: those of [`open`]; it does not fit into memory.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open(path)?.read_to_end(&mut bytes);
    read.map_err(|error| Error::io(path.display().to_string(), error))?;
    Ok(bytes)
}

/// The whole of a regular file of up to `most` bytes. Errors: those of [`open`]; it is longer.
#[cfg(feature = "run")]
pub(crate) fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>> {
    let place = || path.display().to_string();
    let mut bytes = Vec::new();
    let read = open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| Error::io(place(), error))?;
    if bytes.len() as u64 > most {
        return Err(Error::format(place(), format!("is longer than {most} bytes")));
    }
    Ok(bytes)
}

/// Opens a regular file, or a pipe as a shell's `<(command)` makes one. What a pipe carries has no
/// length: whoever reads it bounds it.
///
/// Errors: those of [`open`].
#[cfg(feature = "cli")]
pub(crate) fn open_or_pipe(path: &Path) -> Result<File> {
    opened(path, Allowed::RegularOrPipe)
}

/// What may be opened.
#[derive(Clone, Copy)]
enum Allowed {
    Regular,
    #[cfg(feature = "cli")]
    RegularOrPipe,
}

impl Allowed {
    fn covers(self, kind: FileType) -> bool {
        match self {
            Self::Regular => kind.is_file(),
            #[cfg(feature = "cli")]
            Self::RegularOrPipe => kind.is_file() || is_pipe(kind),
        }
    }
}

/// It is asked what the file is before it is opened, because to open a pipe waits for its writer, and
/// again of the open file, because the name may mean another one by then.
fn opened(path: &Path, allowed: Allowed) -> Result<File> {
    let io = |error| Error::io(path.display().to_string(), error);
    let covered = |there: io::Result<Metadata>| -> Result<()> {
        let kind = there.map_err(io)?.file_type();
        if allowed.covers(kind) { Ok(()) } else { Err(not_regular(path, kind)) }
    };
    covered(std::fs::metadata(path))?;
    let file = File::open(path).map_err(io)?;
    covered(file.metadata())?;
    Ok(file)
}

fn not_regular(path: &Path, kind: FileType) -> Error {
    let place = path.display().to_string();
    if kind.is_dir() {
        return Error::io(place, io::ErrorKind::IsADirectory.into());
    }
    let what = if is_pipe(kind) { "a pipe" } else { "a device or socket" };
    Error::format(place, format!("is {what}, not a regular file")).with_help("copy what it holds into a file")
}

#[cfg(unix)]
fn is_pipe(kind: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&kind)
}

#[cfg(not(unix))]
fn is_pipe(_: FileType) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_links_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), b"12345").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(made.success());
        assert_eq!(read(&at("link")).unwrap(), b"12345");
        #[cfg(feature = "run")]
        assert_eq!(read_at_most(&at("file"), 5).unwrap(), b"12345");
        #[cfg(feature = "run")]
        assert!(read_at_most(&at("file"), 4).unwrap_err().to_string().contains("longer than 4 bytes"));
        for name in ["pipe", "zero", "absent", ""] {
            let error = read(&at(name)).unwrap_err().to_string();
            assert!(error.starts_with(&at(name).display().to_string()), "{error}");
        }
        #[cfg(feature = "cli")]
        assert!(open_or_pipe(&at("zero")).is_err());
    }
}
