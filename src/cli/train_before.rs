//! What `partition train` refuses before it plans: names and folders that cannot be written, disks that are
//! full, checkpoints that are not there, devices that are not here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::destinations::{Destinations, devices_file, files_of, is_same};
use super::model::ModelFile;
use super::terminal::Console;
use super::train_args::{Resume, TrainArgs};
use crate::data::{Position, Source};
use crate::error::{Error, Report, Result};
use crate::files::check_writable;
use crate::ir::Graph;
use crate::report::is_csv;
use crate::state::{Found, Store, WeightsForm};
use crate::topology::{Target, Topology};
use crate::train::{Trainer, weight_bytes};
use crate::units::Bytes;

/// What a run writes.
pub(super) struct Outputs {
    /// By option.
    files: Destinations,
    folders: Vec<(&'static str, PathBuf)>,
    form: Option<WeightsForm>,
}

impl Outputs {
    /// What the arguments name, tried without leaving anything behind.
    ///
    /// Errors: a name that tells no form; one that is given twice; a file or folder that cannot be written.
    pub(super) fn of(args: &TrainArgs) -> Result<Self> {
        let form = args.output.as_deref().map(WeightsForm::of).transpose()?;
        args.logs.history.as_deref().map(is_csv).transpose()?;
        let named =
            [("--plan", &args.plan), ("--history", &args.logs.history), ("--report", &args.logs.report)];
        let named = named.into_iter().filter_map(|(option, path)| Some((option, path.clone()?)));
        let weights: Vec<PathBuf> = match (&args.output, args.spread.ensemble) {
            (None, _) => Vec::new(),
            (Some(path), None) => vec![path.clone()],
            (Some(path), Some(count)) => (1..=count).map(|member| of_member(path, member)).collect(),
        };
        let files = weights.into_iter().map(|path| ("-o", path)).chain(named);
        let files = Destinations::new(files.map(|(option, path)| (option, Some(path))))?;
        let folders = [("--checkpoints", &args.checkpoints), ("--tensorboard", &args.logs.tensorboard)];
        let folders: Vec<_> =
            folders.into_iter().filter_map(|(option, path)| Some((option, path.clone()?))).collect();
        let outputs = Self { files, folders, form };
        outputs.are_different()?;
        outputs.folders.iter().try_for_each(|(option, path)| check_folder(option, path))?;
        Ok(outputs)
    }

    /// Error: a folder is one of the others.
    fn are_different(&self) -> Result<()> {
        for (number, (option, path)) in self.folders.iter().enumerate() {
            let before = self.folders[..number].iter().map(|(option, path)| (*option, path.as_path()));
            if let Some((other, _)) = self.files.files().chain(before).find(|(_, other)| is_same(other, path))
            {
                let message = format!("{other} writes there too");
                return Err(Error::usage(format!("{option} {}", path.display()), message)
                    .with_help("give each a name of its own"));
            }
        }
        Ok(())
    }

    /// Error: a file that is read would be written over: one that the arguments name, of the model `file`, of the
    /// parameters of `graph`, or of the data.
    pub(super) fn are_not_read(
        &self,
        args: &TrainArgs,
        file: &ModelFile,
        graph: &Graph,
        data: &[&Source],
    ) -> Result<()> {
        let named = [Some(&args.model), args.shape.weights.as_ref(), args.placement.profile.as_ref()];
        let named = named.into_iter().flatten().map(|path| path.as_path());
        let model = file.path.as_deref().into_iter().chain(files_of(graph));
        let devices = devices_file(args.exec.devices.as_deref());
        let data = data.iter().flat_map(|source| source.files()).map(|path| path.as_path());
        self.files.are_not_read(named.chain(model).chain(devices).chain(data))
    }

    /// Errors: parameters whose names cannot be written, or that the disk has no room for.
    pub(super) fn hold(&self, graph: &Graph) -> Result<()> {
        let names = || graph.params().iter().map(|param| param.name.as_str());
        if let Some(form) = self.form {
            let arrays = &graph.rules().arrays;
            let others =
                arrays.written.values().flatten().chain(arrays.beside.iter().map(|beside| &beside.name));
            form.check_names(
                names().filter(|&name| !arrays.written.contains_key(name)).chain(others.map(String::as_str)),
            )?;
        }
        let checkpoints = self.folders.iter().find(|(option, _)| *option == "--checkpoints");
        if checkpoints.is_some() {
            WeightsForm::Safetensors.check_names(names())?;
        }
        let needed = weight_bytes(graph);
        let weights = self.files.files().filter(|(option, _)| *option == "-o");
        let checkpoints = checkpoints.map(|(option, path)| (*option, path.as_path()));
        weights.chain(checkpoints).try_for_each(|(option, path)| check_space(option, path, needed))
    }
}

/// The nearest folder above a path that is there.
fn existing(path: &Path) -> &Path {
    let nearest = path.ancestors().find(|path| path.exists());
    nearest.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Error: files cannot be made in a folder, or the folder cannot be made.
fn check_folder(option: &str, path: &Path) -> Result<()> {
    let folder = existing(path);
    if !folder.is_dir() {
        let message = format!("{} is no folder", folder.display());
        return Err(Error::usage(format!("{option} {}", path.display()), message));
    }
    check_writable(folder.join("partition")).map_err(|error| match error {
        Error::Io { source, .. } => Error::io(format!("{option} {}", path.display()), source),
        other => other,
    })
}

/// Error: a disk has less room than is needed at least.
fn check_space(option: &str, path: &Path, needed: Bytes) -> Result<()> {
    match free_space(existing(path)) {
        Some(free) if free < needed => {
            let message = format!("the weights take {needed}, and {free} are free there");
            Err(Error::run(format!("{option} {}", path.display()), message).with_help("another disk"))
        }
        Some(_) | None => Ok(()),
    }
}

/// What may still be written beside a path that is there; none where the system does not say.
#[cfg(unix)]
fn free_space(path: &Path) -> Option<Bytes> {
    // A device or a pipe has no size.
    let is_stored = path.is_dir() || path.is_file();
    let stored = rustix::fs::statvfs(path).ok().filter(|_| is_stored)?;
    stored.f_bavail.checked_mul(stored.f_frsize).map(Bytes)
}

#[cfg(not(unix))]
fn free_space(_: &Path) -> Option<Bytes> {
    None
}

/// The checkpoint that a run is to go on from; none for a run that begins.
///
/// Errors: there must be one and is none; all are damaged; it is of another model, of the hash `model`; a run that begins
/// is given the folder of another.
pub(super) fn found(args: &TrainArgs, folder: Option<&Path>, model: &str) -> Result<Option<Found>> {
    let Some(folder) = folder.filter(|_| !args.dry_run) else { return Ok(None) };
    let Some(resume) = args.resume else { return check_unused(folder).map(|()| None) };
    let found = if folder.is_dir() { Store::read(folder)?.latest()? } else { None };
    match (found, resume) {
        (Some(found), _) if found.checkpoint.model != model => {
            let place = format!("--resume: {}", found.path.display());
            Err(Error::usage(place, "the checkpoint is of another model"))
        }
        (Some(found), _) => Ok(Some(found)),
        (None, Resume::Auto) => Ok(None),
        (None, Resume::Must) => {
            let message = "there is no checkpoint in this folder";
            Err(Error::usage(format!("--resume: {}", folder.display()), message)
                .with_help("--resume=auto begins anew where there is none"))
        }
    }
}

/// Error: a folder holds checkpoints. Those of a run that begins would be mixed with them: some would be removed, and nobody
/// could say which run the newest is of.
fn check_unused(folder: &Path) -> Result<()> {
    let newest = if folder.is_dir() { Store::read(folder)?.list()?.into_iter().next() } else { None };
    let Some(newest) = newest else { return Ok(()) };
    let place = format!("--checkpoints {}", folder.display());
    let name = newest.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Err(Error::usage(place, format!("the folder holds checkpoints of a run before, the newest is {name}"))
        .with_help("--resume goes on with that run; another folder begins anew"))
}

/// What to do where a device is not here.
pub(super) const NOT_HERE: &str =
    "--dry-run plans for it; -d cpu, or -d cuda where there is a GPU, trains here";

/// Error: none of the devices is of this machine.
pub(super) fn check_here(topology: &Topology) -> Result<()> {
    let mut devices = topology.computing().map(|id| topology.device(id));
    let Some(first) = devices.next() else { return Ok(()) };
    let is_model = |target: &Target| matches!(target, Target::Model(_));
    if !is_model(&first.target) || !devices.all(|device| is_model(&device.target)) {
        return Ok(());
    }
    let message = format!("device {} is {}, which is not on this machine", first.name, first.target);
    Err(Error::Run(Report::new("", message).help(NOT_HERE)))
}

/// `net.safetensors` as `net.member2.safetensors`.
pub(super) fn of_member(path: &Path, number: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".member{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Where a run goes on.
#[derive(Default)]
pub(super) struct Resumed {
    /// At the data's start, or where the checkpoint stands that was found.
    pub(super) start: Position,
    /// The best loss until then, as [`Fit::best`](crate::train::Fit::best) has it.
    pub(super) best: Option<(f64, u64)>,
    /// The checkpoint's counters.
    pub(super) counters: BTreeMap<String, u64>,
}

/// Goes on from the checkpoint that was found.
pub(super) fn resume(
    args: &TrainArgs,
    found: Option<Found>,
    trainer: &mut Trainer,
    console: &Console,
) -> Result<Resumed> {
    let Some(found) = found else {
        if args.resume.is_some() {
            console.note("there is no checkpoint yet: the run begins");
        }
        return Ok(Resumed::default());
    };
    found.passed_over.iter().for_each(|line| console.note(line));
    trainer.restore(&found.checkpoint)?;
    console.note(&format!("resumes after step {}, from {}", found.checkpoint.step, found.path.display()));
    let best = found.checkpoint.best();
    Ok(Resumed { start: found.checkpoint.position, best, counters: found.checkpoint.counters })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_with_less_room_than_the_weights_take_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("not/there/yet.npz");
        check_space("-o", &path, Bytes(0)).unwrap();
        if cfg!(unix) {
            let error = check_space("-o", &path, Bytes(u64::MAX)).unwrap_err().to_string();
            assert!(error.contains("yet.npz") && error.contains("are free there"), "{error}");
        }
    }

    #[test]
    fn two_names_of_one_file_are_one() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, round) = (dir.path().join("a.npz"), dir.path().join("./a.npz"));
        assert!(is_same(&plain, &round) && !is_same(&plain, &dir.path().join("b.npz")));
        std::fs::create_dir(dir.path().join("d")).unwrap();
        assert!(is_same(&plain, &dir.path().join("d/../a.npz")));
    }
}
