//! What a training run writes beside its result: a history, event files of TensorBoard, a report.

use std::path::Path;
use std::time::{Duration, Instant};

use super::train_args::LogArgs;
use crate::error::{Error, Result};
use crate::files::write_atomically_with;
use crate::report::{Clock, Events, Html, lives_of_plan, read_history, write_history};
use crate::train::{Epoch, Event, Trainer};
use crate::units::Nanos;

/// Open logs of a run.
pub(super) struct Logs<'a> {
    args: &'a LogArgs,
    events: Option<Events>,
    /// The epochs so far.
    rows: Vec<Vec<(String, f64)>>,
    /// When the history was written last, and how long that took.
    written: Option<(Instant, Duration)>,
    /// How long the last step took.
    last: Duration,
    /// What could not be written: told when the run has ended, which it does not stop for.
    failed: Option<Error>,
}

impl<'a> Logs<'a> {
    /// Makes the event file, with the plan as its graph. The history of a run that `goes_on` is continued.
    ///
    /// Errors: the event file cannot be made; what is there under the history's name is none.
    pub(super) fn open(args: &'a LogArgs, trainer: &Trainer, goes_on: bool) -> Result<Self> {
        let mut events = args.tensorboard.as_deref().map(Events::create).transpose()?;
        if let Some(events) = &mut events {
            events.graph(trainer.plan())?;
        }
        let before = args.history.as_deref().filter(|path| goes_on && path.exists());
        let rows = before.map(read_history).transpose()?.unwrap_or_default();
        Ok(Self { args, events, rows, written: None, last: Duration::ZERO, failed: None })
    }

    /// Takes in what happens. The history is written anew after an epoch, but not so often that it takes more
    /// than a small part of the time.
    pub(super) fn hear(&mut self, event: &Event<'_>) {
        let written = match event {
            Event::Step { step, loss, rate, wall, .. } => {
                self.last = *wall;
                self.scalars(*step, "step", &[("loss".into(), *loss), ("learning_rate".into(), *rate)])
            }
            Event::Epoch(epoch) => {
                let row = row(epoch);
                let shown = self.scalars(epoch.step, "epoch", &row[2..]);
                self.add(row);
                let due = self.written.is_none_or(|(when, took)| when.elapsed() >= pause(took));
                if due { shown.and_then(|()| self.history()) } else { shown }
            }
            Event::CutShort(epoch) => {
                self.add(row(epoch));
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = written {
            self.failed.get_or_insert(error);
        }
    }

    /// Adds an epoch, in place of what a run that went on before had of it and those behind it.
    fn add(&mut self, row: Vec<(String, f64)>) {
        let own = epoch_of(&row);
        while self.rows.last().is_some_and(|last| epoch_of(last) >= own) {
            self.rows.pop();
        }
        self.rows.push(row);
    }

    /// Writes values under a group, unless that has failed before.
    fn scalars(&mut self, step: u64, group: &str, values: &[(String, f64)]) -> Result<()> {
        let Some(events) = self.events.as_mut().filter(|_| self.failed.is_none()) else { return Ok(()) };
        let named: Vec<(String, f64)> =
            values.iter().map(|(name, value)| (format!("{group}/{name}"), *value)).collect();
        let named: Vec<(&str, f64)> = named.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        events.scalars(step, &named)
    }

    /// Writes the history as far as it goes; one without epochs leaves what is there.
    fn history(&mut self) -> Result<()> {
        let Some(path) = self.args.history.as_ref().filter(|_| !self.rows.is_empty()) else { return Ok(()) };
        let begun = Instant::now();
        write_history(path, &self.rows)?;
        self.written = Some((Instant::now(), begun.elapsed()));
        Ok(())
    }

    /// Writes the whole history, and what is known only at the end, which may be a failure. Error: a file cannot be written,
    /// or could not before.
    pub(super) fn close(mut self, trainer: &Trainer, failure: Option<&Error>) -> Result<()> {
        self.history()?;
        if let Some(path) = &self.args.report {
            self.report(path, trainer, failure)?;
        }
        self.failed.map_or(Ok(()), Err)
    }

    fn report(&self, path: &Path, trainer: &Trainer, failure: Option<&Error>) -> Result<()> {
        let nanos = |time: &Duration| Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let report = trainer.report(self.last);
        let times: Vec<(Nanos, Nanos)> =
            report.steps.iter().map(|(start, end)| (nanos(start), nanos(end))).collect();
        let failure = failure.map(Error::to_string);
        let lives = lives_of_plan(trainer.plan(), &times);
        let page = Html {
            plan: trainer.plan(),
            clock: Clock::Measured,
            times: &times,
            lives: &lives,
            search: &[],
            history: &self.rows,
            failure: failure.as_deref(),
        };
        write_atomically_with(path, |out| page.write(out))
    }
}

/// How long a history that took so long to write is not written again.
fn pause(took: Duration) -> Duration {
    const LEAST: Duration = Duration::from_millis(500);
    took.saturating_mul(20).max(LEAST)
}

/// Which epoch a row is of.
fn epoch_of(row: &[(String, f64)]) -> f64 {
    row.iter().find(|(name, _)| name == "epoch").map_or(f64::INFINITY, |(_, number)| *number)
}

/// An epoch as named numbers.
fn row(epoch: &Epoch) -> Vec<(String, f64)> {
    let seconds = epoch.wall.as_secs_f64();
    let speed = if seconds > 0.0 { epoch.samples as f64 / seconds } else { 0.0 };
    let named = |name: &str, value: f64| (name.to_owned(), value);
    let mut row =
        vec![named("epoch", epoch.epoch as f64), named("step", epoch.step as f64), named("loss", epoch.loss)];
    row.extend(epoch.metrics.iter().cloned());
    row.extend([
        named("learning_rate", epoch.rate),
        named("seconds", seconds),
        named("samples_per_second", speed),
    ]);
    row
}
