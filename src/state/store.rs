//! A folder of checkpoints: `step-000000000100/` with `weights.safetensors`, `optimizer.safetensors`
//! and `manifest.json`.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use super::folder::{self, FILES, MANIFEST, OPTIMIZER, WEIGHTS};
use super::manifest::{FileEntry, Manifest, hex};
use super::weights::read_safetensors;
use super::{Checkpoint, safetensors};
use crate::error::{Error, Report, Result};
use crate::files;
use crate::ir::Tensor;

const LOCK: &str = ".lock";

/// How often a lock that another holds is tried, and the time between.
const TRIES: usize = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
/// What the names of folders begin with that are being written or removed.
const UNFINISHED: &str = ".part-";

/// A larger manifest is none.
const LONGEST_MANIFEST: u64 = 1 << 26;

/// Whether less of a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A loss.
    Less,
    /// An accuracy.
    More,
}

impl Goal {
    /// Whether `one` is better than `other`; not-a-number is never better, and worse than any number.
    pub fn is_better(self, one: f64, other: f64) -> bool {
        match self {
            Self::Less => one < other || (!one.is_nan() && other.is_nan()),
            Self::More => one > other || (!one.is_nan() && other.is_nan()),
        }
    }
}

/// Which checkpoints are kept when another is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The newest ones; at least one.
    pub last: usize,
    /// And the one that is best by a metric.
    pub best: Option<(String, Goal)>,
}

impl Default for Keep {
    fn default() -> Self {
        Self { last: 3, best: None }
    }
}

/// A checkpoint that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its content, verified.
    pub checkpoint: Checkpoint,
    /// Its folder.
    pub path: PathBuf,
    /// Newer ones that are damaged, in words: they were passed over.
    pub passed_over: Vec<String>,
}

/// An open folder of checkpoints. While it is open to write, no other process writes there.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    keep: Keep,
    /// Held as long as this is open; none for reading only.
    _lock: Option<File>,
}

/// Locks a file, and says whether it could. One that is locked is tried for a while: who held it may be about to end, and
/// what this process starts holds it from its fork until it runs.
fn soon_locked(lock: &File) -> io::Result<bool> {
    for _ in 0..TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN_TRIES),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

impl Store {
    /// Opens a folder to write checkpoints, makes it where it is not there, and clears away what a
    /// process that was killed left half-written.
    ///
    /// Errors: it cannot be made or written to; another process writes there.
    pub fn open(path: &Path, keep: Keep) -> Result<Self> {
        let io = |error| Error::io(path.display().to_string(), error);
        fs::create_dir_all(path).map_err(io)?;
        let lock = open_lock(&path.join(LOCK))?;
        let taken = soon_locked(&lock).map_err(io)?;
        if !taken {
            let message = "another process writes checkpoints there";
            return Err(
                Error::run(path.display().to_string(), message).with_help("give each run its own folder")
            );
        }
        let store = Self { path: path.to_owned(), keep, _lock: Some(lock) };
        store.clear().map_err(io)?;
        Ok(store)
    }

    /// Opens a folder to read checkpoints from, which may be written to meanwhile. Error: there is none.
    pub fn read(path: &Path) -> Result<Self> {
        fs::read_dir(path).map_err(|error| Error::io(path.display().to_string(), error))?;
        Ok(Self { path: path.to_owned(), keep: Keep::default(), _lock: None })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what is half-written or half-removed.
    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                folder::remove_unfinished(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Writes a checkpoint, then removes those that are not to be kept. When this returns, the
    /// checkpoint survives a loss of power. Returns its folder.
    ///
    /// Errors: the disk is full or fails, a name is there twice; the checkpoints before are untouched.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf> {
        let name = self.free_name(checkpoint.step);
        let aside = self.path.join(format!("{UNFINISHED}{name}"));
        let path = self.path.join(&name);
        let io = |error| Error::io(path.display().to_string(), error);
        folder::begin(&aside).map_err(io)?;
        let written = write_into(&aside, checkpoint, &path)
            .and_then(|()| folder::finish(&aside, &path).map_err(io))
            .and_then(|()| sync_folder(&self.path).map_err(io));
        if written.is_err() {
            // The first error is the one to report.
            let _ = folder::remove_unfinished(&aside);
        }
        written?;
        self.prune(&path).map_err(|error| Error::io(self.path.display().to_string(), error))?;
        Ok(path)
    }

    /// The name of a new checkpoint: one that is there is never written over.
    fn free_name(&self, step: u64) -> String {
        let base = format!("step-{step:012}");
        let again = (1u32..).map(|again| format!("{base}-{again}"));
        let mut names = std::iter::once(base.clone()).chain(again);
        let is_free = |name: &str| {
            [self.path.join(name), self.path.join(format!("{UNFINISHED}{name}"))]
                .iter()
                .all(|path| fs::symlink_metadata(path).is_err())
        };
        names.find(|name| is_free(name)).unwrap_or(base)
    }

    /// Folders of checkpoints, the newest first.
    pub fn list(&self) -> Result<Vec<PathBuf>> {
        let io = |error| Error::io(self.path.display().to_string(), error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(io)? {
            let entry = entry.map_err(io)?;
            if let Some(key) = key(&entry.file_name().to_string_lossy())
                && entry.path().is_dir()
            {
                found.push((key, entry.path()));
            }
        }
        found.sort_by_key(|(key, _)| Reverse(*key));
        Ok(found.into_iter().map(|(_, path)| path).collect())
    }

    /// The newest checkpoint that is whole; none where there are none at all.
    ///
    /// Errors: the folder cannot be read; all checkpoints are damaged.
    pub fn latest(&self) -> Result<Option<Found>> {
        self.first_whole(&self.list()?)
    }

    /// The checkpoint that is best by a metric and whole; none where none has the metric.
    ///
    /// Errors: as [`Store::latest`].
    pub fn best(&self, metric: &str, goal: Goal) -> Result<Option<Found>> {
        let mut rated: Vec<(f64, PathBuf)> = Vec::new();
        for path in self.list()? {
            let rating = read_manifest(&path).ok().and_then(|manifest| manifest.metrics.get(metric).copied());
            rated.extend(rating.map(|rating| (rating.0, path)));
        }
        let mut order: Vec<PathBuf> = Vec::new();
        while let Some(best) = best_of(&rated, goal) {
            order.push(rated.remove(best).1);
        }
        self.first_whole(&order)
    }

    fn first_whole(&self, candidates: &[PathBuf]) -> Result<Option<Found>> {
        let mut passed_over = Vec::new();
        for path in candidates {
            match load(path) {
                Ok(checkpoint) => {
                    return Ok(Some(Found { checkpoint, path: path.clone(), passed_over }));
                }
                Err(error) => passed_over.push(error.to_string()),
            }
        }
        if passed_over.is_empty() {
            return Ok(None);
        }
        let message = format!("none of {} checkpoints can be read", passed_over.len());
        Err(Error::Format(Report::new(self.path.display().to_string(), message).details(passed_over)))
    }

    /// Removes what is not to be kept, each under another name first, so that none is ever there in part. A folder that
    /// is no checkpoint, or in which something else lies, is the user's: it is neither removed nor counted. What was just
    /// `written` stays, whatever else is there.
    fn prune(&self, written: &Path) -> io::Result<()> {
        let all = self.list().map_err(|error| io::Error::other(error.to_string()))?;
        let all: Vec<PathBuf> = all.into_iter().filter(|path| is_own(path)).collect();
        let best = self.keep.best.as_ref().and_then(|(metric, goal)| {
            let rated: Vec<(f64, PathBuf)> = all
                .iter()
                .filter_map(|path| Some((read_manifest(path).ok()?.metrics.get(metric)?.0, path.clone())))
                .collect();
            best_of(&rated, *goal).map(|index| rated[index].1.clone())
        });
        let stays = |path: &PathBuf| Some(path) == best.as_ref() || path == written;
        for path in all.iter().skip(self.keep.last.max(1)).filter(|path| !stays(path)) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            folder::discard(path, &self.path.join(format!("{UNFINISHED}{name}")))?;
        }
        Ok(())
    }
}

/// The best rating, the newest of equal ones; they stand newest first.
fn best_of(rated: &[(f64, PathBuf)], goal: Goal) -> Option<usize> {
    let mut best = None;
    for (index, (rating, _)) in rated.iter().enumerate() {
        if best.is_none_or(|best: usize| goal.is_better(*rating, rated[best].0)) {
            best = Some(index);
        }
    }
    best
}

/// Step and repetition of a checkpoint's name; none for other names.
fn key(name: &str) -> Option<(u64, u32)> {
    let rest = name.strip_prefix("step-")?;
    match rest.split_once('-') {
        None => Some((rest.parse().ok()?, 0)),
        Some((step, again)) => Some((step.parse().ok()?, again.parse().ok()?)),
    }
}

/// Opens the file whose lock says who writes. A link could lead out of the folder: it is refused.
fn open_lock(path: &Path) -> Result<File> {
    let io = |error| Error::io(path.display().to_string(), error);
    if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        let message = "is no regular file, so it cannot lock the folder";
        return Err(
            Error::run(path.display().to_string(), message).with_help("remove it, or name another folder")
        );
    }
    OpenOptions::new().create(true).append(true).open(path).map_err(io)
}

/// Whether a folder is a checkpoint of ours, and nothing else lies in it.
fn is_own(path: &Path) -> bool {
    folder::is_folder(path)
        && read_manifest(path).is_ok_and(|manifest| {
            manifest.files.iter().all(|file| FILES.contains(&file.name.as_str()))
                && folder::holds_only_files(path)
        })
}

/// Writes all files of a checkpoint into a folder, and has the disk keep them. `place` is the
/// folder that errors name.
fn write_into(folder: &Path, checkpoint: &Checkpoint, place: &Path) -> Result<()> {
    let io = |error| Error::io(place.display().to_string(), error);
    let mut files = Vec::new();
    for (name, arrays) in [(WEIGHTS, &checkpoint.weights), (OPTIMIZER, &checkpoint.optimizer)] {
        files.push(write_arrays(folder, name, arrays, place)?);
    }
    let manifest = Manifest::new(checkpoint, files).to_json()?;
    let mut file = File::create_new(folder.join(MANIFEST)).map_err(io)?;
    file.write_all(manifest.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
    sync_folder(folder).map_err(io)
}

fn write_arrays(folder: &Path, name: &str, arrays: &[(String, Tensor)], place: &Path) -> Result<FileEntry> {
    let place = place.join(name).display().to_string();
    let header = safetensors::header(arrays, &BTreeSet::new(), &place)?;
    let io = |error| Error::io(place.as_str(), error);
    let file = File::create_new(folder.join(name)).map_err(io)?;
    let mut out = BufWriter::with_capacity(1 << 18, file);
    let sum = safetensors::write(&mut out, &header, arrays).map_err(io)?;
    let file = out.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)?;
    Ok(FileEntry::new(name, sum))
}

/// Has the disk keep a folder's names. Where folders cannot be opened, the system keeps them itself.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

fn read_manifest(folder: &Path) -> Result<Manifest> {
    let path = folder.join(MANIFEST);
    let place = path.display().to_string();
    let bytes = files::read_at_most(&path, LONGEST_MANIFEST)?;
    Manifest::from_json(&bytes).map_err(|error| error.within(&place))
}

/// Reads a checkpoint and verifies every checksum.
fn load(folder: &Path) -> Result<Checkpoint> {
    let manifest = read_manifest(folder)?;
    for name in [WEIGHTS, OPTIMIZER] {
        let entry = manifest.files.iter().find(|entry| entry.name == name).ok_or_else(|| {
            Error::format(folder.join(MANIFEST).display().to_string(), format!("does not name {name}"))
        })?;
        verify(&folder.join(name), entry)?;
    }
    let mut checkpoint = manifest.checkpoint();
    checkpoint.weights = read_safetensors(&folder.join(WEIGHTS))?;
    checkpoint.optimizer = read_safetensors(&folder.join(OPTIMIZER))?;
    Ok(checkpoint)
}

fn verify(path: &Path, entry: &FileEntry) -> Result<()> {
    let place = path.display().to_string();
    let io = |error| Error::io(place.as_str(), error);
    let mut file = files::open(path)?;
    let (mut sum, mut bytes) = (Xxh3::new(), 0u64);
    let mut buffer = vec![0; 1 << 18];
    loop {
        let read = file.read(&mut buffer).map_err(io)?;
        if read == 0 {
            break;
        }
        sum.update(&buffer[..read]);
        bytes += read as u64;
    }
    if bytes != entry.bytes {
        return Err(Error::format(place, format!("has {bytes} bytes, not {}", entry.bytes)));
    }
    if hex(sum.digest()) != entry.xxh3 {
        return Err(Error::format(place, "its checksum is wrong: the file is damaged"));
    }
    Ok(())
}

impl Found {
    /// Reads one checkpoint by its folder, or the newest of a folder of checkpoints: what
    /// `--resume PATH` names.
    ///
    /// Errors: neither is there; it is damaged, and so are all before it.
    pub fn open(path: &Path) -> Result<Self> {
        if path.join(MANIFEST).is_file() {
            let checkpoint = load(path)?;
            return Ok(Self { checkpoint, path: path.to_owned(), passed_over: Vec::new() });
        }
        Store::read(path)?
            .latest()?
            .ok_or_else(|| Error::usage(path.display().to_string(), "there is no checkpoint in this folder"))
    }
}
