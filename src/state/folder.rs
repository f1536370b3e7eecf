//! Folders of one checkpoint each: which files are ours in them, and how they are removed. Nothing is removed but the
//! files that a checkpoint has, and a folder only when it is empty then: what a user laid there stays.

use std::fs;
use std::io;
use std::path::Path;

use crate::files::read_at_most;

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const WEIGHTS: &str = "weights.safetensors";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";

/// The files of a checkpoint.
pub(super) const FILES: [&str; 3] = [WEIGHTS, OPTIMIZER, MANIFEST];

/// A file that says of a folder that it is being written or removed, and by whom: it is there before any file of the
/// checkpoint and goes after all of them, so a folder that has it is ours, whatever ended the program.
const MARK: &str = "unfinished";
const MARK_TEXT: &str = "partition checkpoint, being written or removed\n";

/// Whether `path` is a folder itself, not a link to one.
pub(super) fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| there.is_dir())
}

/// Whether nothing lies in a folder but files of a checkpoint.
pub(super) fn holds_only_files(path: &Path) -> bool {
    let Ok(entries) = fs::read_dir(path) else { return false };
    entries.into_iter().all(|entry| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name();
            let is_ours = name == MARK || FILES.iter().any(|file| name == *file);
            is_ours && entry.file_type().is_ok_and(|kind| kind.is_file())
        })
    })
}

/// Makes a folder for a checkpoint. Error: something has that name.
pub(super) fn begin(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::write(path.join(MARK), MARK_TEXT)
}

/// Gives a folder that is complete its name.
pub(super) fn finish(unfinished: &Path, path: &Path) -> io::Result<()> {
    fs::rename(unfinished, path)?;
    fs::remove_file(path.join(MARK))
}

/// Removes a checkpoint, under the name `unfinished` first, so that it is never there in part.
pub(super) fn discard(path: &Path, unfinished: &Path) -> io::Result<()> {
    fs::write(path.join(MARK), MARK_TEXT)?;
    fs::rename(path, unfinished)?;
    remove_unfinished(unfinished)
}

/// Removes the files of a checkpoint from a folder that is marked as unfinished, and the folder where nothing else is
/// in it. Any other folder is left alone.
pub(super) fn remove_unfinished(path: &Path) -> io::Result<()> {
    let mark = || read_at_most(&path.join(MARK), MARK_TEXT.len() as u64);
    let is_marked = || mark().is_ok_and(|text| text == MARK_TEXT.as_bytes());
    if !is_folder(path) || !holds_only_files(path) || !is_marked() {
        return Ok(());
    }
    for file in FILES {
        match fs::remove_file(path.join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::remove_file(path.join(MARK))?;
    fs::remove_dir(path)
}
