//! What a training run shows while it goes on: epochs on stdout; on stderr a bar, or a line every few seconds.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::predicted::Predicted;
use super::sample::Sample;
use super::terminal::{Console, Live};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::train::{Epoch, Event, Stop};

/// Between two lines.
const LINES: Duration = Duration::from_secs(3);
/// Between two drawings of a bar.
const BAR: Duration = Duration::from_millis(100);
/// So many steps say how long one takes.
const ENOUGH: u64 = 10;
/// Times of steps that are kept for their median.
const KEPT: usize = 4096;

/// Shows what happens to one trainer.
pub(super) struct Watch<'a> {
    console: &'a Console,
    /// Stands before every line: which member of an ensemble it is of.
    who: String,
    epochs: u64,
    live: Live,
    pace: Pace,
    bar: Option<ProgressBar>,
    walls: Sample<Duration>,
    /// Why a result could not be printed; training goes on, and the program fails in the end.
    failed: Option<Error>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(console: &'a Console, epochs: u64) -> Self {
        let live = console.live();
        let pace = Pace::new(epochs, if live == Live::Bar { BAR } else { LINES }, Instant::now());
        let (bar, walls) = (None, Sample::new(KEPT));
        Self { console, who: String::new(), epochs, live, pace, bar, walls, failed: None }
    }

    /// One of several, which share the terminal: lines, and what is reported of it begins with its name.
    pub(super) fn member(console: &'a Console, epochs: u64, number: usize) -> Self {
        let live = if console.live() == Live::Nothing { Live::Nothing } else { Live::Lines };
        let pace = Pace::new(epochs, LINES, Instant::now());
        Self { who: format!("member {number}  "), live, pace, ..Self::new(console, epochs) }
    }

    /// Shows what happens.
    pub(super) fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Begins { steps } => self.pace.begin(*steps, Instant::now()),
            Event::Step { epoch, step, loss, wall, samples, .. } => {
                self.walls.push(*wall);
                let at = At { epoch: *epoch, step: *step, loss: *loss };
                if self.pace.counts(*step, *samples, Instant::now()) && self.live != Live::Nothing {
                    self.show(&at);
                }
            }
            Event::Epoch(epoch) => {
                self.pace.epoch(epoch);
                self.print(&format!("{}{}", self.who, epoch_line(epoch, self.epochs, "")));
            }
            Event::CutShort(epoch) => {
                let line = epoch_line(epoch, self.epochs, &format!(", cut short at step {}", epoch.step));
                self.print(&format!("{}{line}", self.who));
            }
            Event::NoBatches(epoch) if *epoch > self.epochs => {
                self.note(&format!("all {} epochs were done before; more --epochs go on", self.epochs));
            }
            Event::NoBatches(epoch) => {
                self.note(&format!("no batch was left of epoch {epoch}: it has no loss"));
            }
            Event::Saved(path) => self.note(&format!("checkpoint {}", Path::display(path))),
            Event::Stopped(reason) => self.note(match reason {
                Stop::Patience => "ended early: the loss falls no more",
                Stop::Steps => "ended after the steps asked for",
                Stop::StepsBefore => "all steps asked for were done before; more --steps go on",
                Stop::Time => "ended: the time is over",
                Stop::Asked => "ended after the step under way",
            }),
            Event::LeftOut(Some(records)) => {
                self.note(&format!(
                    "the last {records} records of each epoch make no batch and are left out"
                ));
            }
            Event::LeftOut(None) => {
                self.note("records at the end of an epoch that make no full batch are left out");
            }
            Event::BitsForSigns => self.note(
                "targets are 0 and 1, and hinge takes -1 and 1: those of 0 teach nothing; --loss binary:logits takes 0 and 1",
            ),
            Event::Input(stats) => self.note(&stats.line()),
        }
    }

    /// Ends the bar.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Says how long a step took beside what its plan predicts, and what to do where that is far off; a step
    /// runs the plan `parts` times.
    ///
    /// Errors: stdout cannot be written, or could not before.
    pub(super) fn close(mut self, plan: &Plan, parts: u32) -> Result<()> {
        self.end();
        if let Some(median) = self.walls.median() {
            let predicted = Predicted::of(plan, median / parts.max(1));
            let what = if parts > 1 { "a microbatch" } else { "a step" };
            self.print(&format!("{what}: {}\n", predicted.text()));
            // The first steps also warm up.
            if let Some(advice) = predicted.advice().filter(|_| self.walls.seen() >= ENOUGH) {
                self.note(&advice);
            }
        }
        self.result()
    }

    /// Errors: stdout could not be written.
    pub(super) fn result(self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Prints a result, above the bar where there is one.
    fn print(&mut self, text: &str) {
        let print = || self.console.print(text);
        let printed = match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        };
        if let Err(error) = printed {
            self.failed.get_or_insert(error);
        }
    }

    fn note(&self, line: &str) {
        let note = || self.console.note(&format!("{}{line}", self.who));
        match &self.bar {
            Some(bar) => bar.suspend(note),
            None => note(),
        }
    }

    fn show(&mut self, at: &At) {
        let line = self.pace.line(at, Instant::now());
        if self.live == Live::Lines {
            return self.note(&line);
        }
        let bar = self.bar.get_or_insert_with(|| bar(self.pace.steps));
        if let Some(steps) = self.pace.steps {
            bar.set_length(steps);
        }
        bar.set_position(at.step);
        bar.set_message(line);
    }
}

fn bar(steps: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(steps, ProgressDrawTarget::stderr());
    let template = if steps.is_some() { "{bar:20} {wide_msg}" } else { "{spinner} {wide_msg}" };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Where a run is.
struct At {
    /// Counted from 1.
    epoch: u64,
    step: u64,
    loss: f64,
}

/// When it is time to show something, how fast the run is, and how long it still takes.
struct Pace {
    epochs: u64,
    /// Of the whole run, where that is known.
    steps: Option<u64>,
    /// Whether the data tells the number of steps.
    steps_known: bool,
    every: Duration,
    begun: Instant,
    /// Steps before this run, and at the end of the last epoch; none before the first step.
    before: Option<u64>,
    epoch_before: Option<u64>,
    step: u64,
    shown: Instant,
    /// Since something was shown.
    samples: u64,
}

impl Pace {
    fn new(epochs: u64, every: Duration, now: Instant) -> Self {
        Self {
            epochs,
            steps: None,
            steps_known: false,
            every,
            begun: now,
            before: None,
            epoch_before: None,
            step: 0,
            shown: now,
            samples: 0,
        }
    }

    fn begin(&mut self, steps: Option<u64>, now: Instant) {
        (self.steps, self.steps_known, self.begun, self.shown) = (steps, steps.is_some(), now, now);
    }

    /// Counts a step; whether it is time to show something.
    fn counts(&mut self, step: u64, samples: u64, now: Instant) -> bool {
        self.before.get_or_insert(step.saturating_sub(1));
        self.epoch_before.get_or_insert(step.saturating_sub(1));
        self.step = step;
        self.samples += samples;
        now.saturating_duration_since(self.shown) >= self.every
    }

    /// An epoch is done: where the data does not say how many steps there are, the others will have as many.
    fn epoch(&mut self, epoch: &Epoch) {
        let before = self.epoch_before.replace(epoch.step).unwrap_or(0);
        if !self.steps_known {
            let left = self.epochs.saturating_sub(epoch.epoch);
            let each = epoch.step.saturating_sub(before);
            self.steps = Some(epoch.step.saturating_add(left.saturating_mul(each)));
        }
    }

    /// `epoch 3/10  step 1200/4000  loss 0.123456  800 samples/s  5 min left`; begins to count anew.
    fn line(&mut self, at: &At, now: Instant) -> String {
        let seconds = now.saturating_duration_since(self.shown).as_secs_f64();
        let rate = if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 };
        (self.shown, self.samples) = (now, 0);
        let of = self.steps.map_or(String::new(), |steps| format!("/{steps}"));
        let mut line = format!(
            "epoch {}/{}  step {}{of}  loss {:.6}  {rate:.0} samples/s",
            at.epoch, self.epochs, at.step, at.loss
        );
        let done = self.step.saturating_sub(self.before.unwrap_or(0));
        if let Some(steps) = self.steps.filter(|_| done > 0) {
            let each = now.saturating_duration_since(self.begun).as_secs_f64() / done as f64;
            let left = each * steps.saturating_sub(self.step) as f64;
            // Writing to a String cannot fail.
            let _ = write!(line, "  {} left", span(left));
        }
        line
    }
}

/// `45 s`, `5 min`, `2.3 h`, `4.0 days`.
fn span(seconds: f64) -> String {
    match seconds {
        _ if seconds < 100.0 => format!("{seconds:.0} s"),
        _ if seconds < 6_000.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 172_800.0 => format!("{:.1} h", seconds / 3_600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

fn epoch_line(epoch: &Epoch, epochs: u64, end: &str) -> String {
    let seconds = epoch.wall.as_secs_f64();
    let speed = if seconds > 0.0 { epoch.samples as f64 / seconds } else { 0.0 };
    let mut line = format!("epoch {}/{epochs}{end}  loss {:.6}", epoch.epoch, epoch.loss);
    for (name, value) in &epoch.metrics {
        // Writing to a String cannot fail.
        let _ = write!(line, "  {name} {value:.6}");
    }
    let _ = writeln!(line, "  {:.0} ms  {speed:.0} samples/s", seconds * 1e3);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_loss_speed_and_what_is_left() {
        let start = Instant::now();
        let second = |seconds: u64| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(10, LINES, start);
        pace.begin(Some(400), start);
        assert!(!pace.counts(1, 32, second(1)), "too early");
        assert!(pace.counts(2, 32, second(4)));
        let at = |step: u64| At { epoch: 1, step, loss: 0.25 };
        let line = pace.line(&at(2), second(4));
        assert_eq!(line, "epoch 1/10  step 2/400  loss 0.250000  16 samples/s  13 min left");
        assert!(!pace.counts(3, 32, second(5)), "just shown");
    }

    #[test]
    fn what_the_data_does_not_tell_is_known_after_an_epoch() {
        let start = Instant::now();
        let mut pace = Pace::new(3, LINES, start);
        pace.begin(None, start);
        // Gone on from step 100.
        for step in 101..=110 {
            pace.counts(step, 1, start);
        }
        let now = start + Duration::from_secs(10);
        let at = At { epoch: 1, step: 110, loss: 1.0 };
        assert_eq!(pace.line(&at, now), "epoch 1/3  step 110  loss 1.000000  1 samples/s");
        let wall = Duration::from_secs(10);
        pace.epoch(&Epoch {
            epoch: 1,
            step: 110,
            loss: 1.0,
            rate: 0.1,
            metrics: Vec::new(),
            wall,
            samples: 10,
        });
        let line = pace.line(&at, now);
        assert!(line.contains("step 110/130") && line.ends_with("20 s left"), "{line}");
    }
}
