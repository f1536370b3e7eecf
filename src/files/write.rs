//! Writes files whole or not at all: into a new file in the same folder, which is renamed when it is complete.
//!
//! The new file has a random name, is created exclusively (a planted link is never followed), takes the mode of the
//! file that it replaces, and is removed when writing fails or the program is interrupted ([`remove_unfinished`]).

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Cursor, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{Builder, NamedTempFile, TempDir};

use crate::error::{Error, Result};

/// What a file is filled through where its format goes back to fill in sizes.
pub trait Sink: Write + Seek {}

impl<T: Write + Seek> Sink for T {}

/// Bytes that are gathered before the system is asked to write them.
const BUFFER: usize = 1 << 16;

/// How many links one path may lead through, as in Linux.
const MOST_LINKS: usize = 40;

/// Writes a whole file, or leaves what was there before. See [`write_atomically_with`].
pub fn write_atomically(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    write_atomically_with(path, |out| out.write_all(bytes))
}

/// Streams a whole file through `fill`, or leaves what was there before: writes beside the file that `path` leads to
/// (through links, whether or not something is there yet), then renames. What is there and is no regular file
/// (a pipe, a terminal) is written directly.
///
/// Errors: [`Error::Io`] with the path.
pub fn write_atomically_with(
    path: impl AsRef<Path>,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let path = path.as_ref();
    let written = destination(path).and_then(|destination| match destination {
        Destination::Renamed(target) => write_aside(&target, |mut out| fill(&mut out)),
        Destination::Direct => {
            let mut out = BufWriter::with_capacity(BUFFER, OpenOptions::new().write(true).open(path)?);
            fill(&mut out)?;
            out.flush()
        }
    });
    written.map_err(|source| Error::io(path.display().to_string(), source))
}

/// As [`write_atomically_with`], for formats that seek. A pipe cannot: what goes there is made in memory first.
///
/// Errors: [`Error::Io`] with the path.
pub fn write_seekable(
    path: impl AsRef<Path>,
    fill: impl FnOnce(&mut dyn Sink) -> io::Result<()>,
) -> Result<()> {
    let path = path.as_ref();
    let written = destination(path).and_then(|destination| match destination {
        Destination::Renamed(target) => write_aside(&target, |mut out| fill(&mut out)),
        Destination::Direct => {
            let mut whole = Cursor::new(Vec::new());
            fill(&mut whole)?;
            let mut out = OpenOptions::new().write(true).open(path)?;
            out.write_all(&whole.into_inner())?;
            out.flush()
        }
    });
    written.map_err(|source| Error::io(path.display().to_string(), source))
}

/// Whether [`write_atomically`] could begin: for what is written after long work. What is there stays.
///
/// Errors: [`Error::Io`] with the path.
pub fn check_writable(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let tried = destination(path).and_then(|destination| match destination {
        Destination::Renamed(target) => Unfinished::beside(&target).map(drop),
        Destination::Direct => Ok(()),
    });
    tried.map_err(|source| Error::io(path.display().to_string(), source))
}

/// Removes the files that are being written at this moment: for a program that is about to end in their midst.
/// Writers that go on fail when they rename; none begins after this.
pub fn remove_unfinished() {
    let mut unfinished = unfinished();
    for path in std::mem::take(&mut *unfinished) {
        // Nobody is left to hear of what could not be removed.
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
    }
    // A writer that is about to make a file waits for the end.
    std::mem::forget(unfinished);
}

/// How a path is written.
enum Destination {
    /// Beside this path, then renamed to it.
    Renamed(PathBuf),
    /// As it is.
    Direct,
}

/// The name that stands for the standard input where a file is read.
const STANDARD: &str = "-";

fn destination(path: &Path) -> io::Result<Destination> {
    if path == Path::new(STANDARD) {
        return Err(io::Error::other("this is no file's name; /dev/stdout prints, ./- is a file called so"));
    }
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(there) if !there.is_file() => Ok(Destination::Direct),
        Ok(_) => fs::canonicalize(path).map(Destination::Renamed),
        Err(_) => end_of_links(path).map(Destination::Renamed),
    }
}

/// Where the links at `path` end: at a file that is not there yet.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut end = path.to_owned();
    for _ in 0..MOST_LINKS {
        let is_link = fs::symlink_metadata(&end).is_ok_and(|there| there.is_symlink());
        if !is_link {
            return Ok(end);
        }
        let target = fs::read_link(&end)?;
        end = folder_of(&end).join(target);
    }
    Err(io::Error::other("its links lead in a circle"))
}

/// The folder of a file, `.` for a bare name.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn existing_folder_of(path: &Path) -> io::Result<&Path> {
    let folder = folder_of(path);
    match folder.is_dir() {
        true => Ok(folder),
        false => {
            let message = format!("there is no folder {}", folder.display());
            Err(io::Error::new(io::ErrorKind::NotFound, message))
        }
    }
}

/// Writes files of these names into a folder, which is made where it is not there: all of them aside, then each to its place in
/// their order.
///
/// Errors: [`Error::Io`] with the path.
pub fn write_into_folder(folder: &Path, files: &[(&str, &[u8])]) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| Error::io(path, source)
    };
    let aside = UnfinishedFolder::beside(folder).map_err(failed(folder))?;
    for (name, bytes) in files {
        fs::write(aside.0.path().join(name), bytes).map_err(failed(&folder.join(name)))?;
    }
    fs::create_dir_all(folder).map_err(failed(folder))?;
    for (name, _) in files {
        let path = folder.join(name);
        fs::rename(aside.0.path().join(name), &path).map_err(failed(&path))?;
    }
    Ok(())
}

/// A new folder that is removed with what is in it.
struct UnfinishedFolder(TempDir);

impl UnfinishedFolder {
    fn beside(target: &Path) -> io::Result<Self> {
        let parent = existing_folder_of(target)?;
        let mut unfinished = unfinished();
        let folder = Builder::new().prefix(".partition-").suffix(".part").tempdir_in(parent)?;
        unfinished.insert(folder.path().to_owned());
        Ok(Self(folder))
    }
}

impl Drop for UnfinishedFolder {
    fn drop(&mut self) {
        unfinished().remove(self.0.path());
    }
}

fn write_aside(
    target: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = Unfinished::beside(target)?;
    let mut out = BufWriter::with_capacity(BUFFER, file.0.as_file_mut());
    fill(&mut out)?;
    out.flush()?;
    drop(out);
    file.finish(target)
}

/// A new file that is removed unless it is finished.
struct Unfinished(NamedTempFile);

impl Unfinished {
    /// A new file in the folder of `target`. Errors: there is no such folder, it cannot be written to, `target` is no
    /// file name or one that is too long.
    fn beside(target: &Path) -> io::Result<Self> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        if name.len() > LONGEST_NAME {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "File name too long"));
        }
        let folder = existing_folder_of(target)?;
        let mut builder = Builder::new();
        builder.prefix(".partition-").suffix(".part");
        #[cfg(unix)]
        builder.permissions(permissions_of_new_files());
        // Held while the file is made: who is about to end the program finds it in the list or not on disk.
        let mut unfinished = unfinished();
        let file = builder.tempfile_in(folder)?;
        unfinished.insert(file.path().to_owned());
        Ok(Self(file))
    }

    /// Renames to `target`, whose mode is kept where it is there.
    fn finish(self, target: &Path) -> io::Result<()> {
        if let Ok(there) = fs::metadata(target) {
            self.0.as_file().set_permissions(there.permissions())?;
        }
        let mut file = self;
        let path = file.0.path().to_owned();
        let renamed = fs::rename(&path, target);
        if renamed.is_ok() {
            file.0.disable_cleanup(true);
        }
        renamed
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        unfinished().remove(self.0.path());
    }
}

/// The longest name of a file that file systems take, in bytes.
const LONGEST_NAME: usize = 255;

/// A new file has the mode that the user's umask leaves of this.
#[cfg(unix)]
fn permissions_of_new_files() -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(0o666)
}

/// The files that are being written.
fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
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
