//! The loop over epochs and batches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::data::{self, Last, Order, Part, Position, Source};
use crate::error::{Error, Result};
use crate::ir::Tensor;
use crate::metrics::{Meter, Metric};
use crate::state::{Due, Policy, Store};
use crate::train::epochs::evaluator::{Evaluator, MeanLoss};
use crate::train::epochs::numerics::{OF_DATA, fault_of_data};
use crate::train::epochs::passes;
use crate::train::epochs::trainer::Trainer;
use crate::train::step::loss::Loss;

/// How long a network is trained, and what is kept on the way.
#[derive(Debug)]
pub struct Fit<'a> {
    /// How often all records are used.
    pub epochs: u64,
    /// Ends the run after so many steps, whatever the epoch.
    pub steps: Option<u64>,
    /// How records become batches; batch and epochs are set by the run.
    pub data: data::Options,
    /// The share of the records that is kept for validation.
    pub validation_split: f64,
    /// Records for validation of their own.
    pub validation: Option<&'a Source>,
    /// Leaves out the last batch of an epoch where it is not full, as is done anyway where the network's
    /// batch is not open; else it is trained on as it is.
    pub drop_remainder: bool,
    /// What is measured beside the loss, of the first output.
    pub metrics: Vec<Metric>,
    /// Ends the run where the watched loss has not become smaller for so many epochs.
    pub patience: Option<u64>,
    /// Where checkpoints go.
    pub store: Option<&'a Store>,
    /// How often they are written, beside the end of each epoch.
    pub policy: Policy,
    /// Where the run goes on.
    pub start: Position,
    /// The counters of the checkpoint that it goes on from: none within an epoch whose batches would be others.
    pub counters: BTreeMap<String, u64>,
    /// The least watched loss before that, and for how many epochs there was none less.
    pub best: Option<(f64, u64)>,
    /// Ends the run after this time.
    pub limit: Option<Duration>,
    /// Set by the caller to end the run after the step under way.
    pub stop: Option<&'a AtomicBool>,
}

impl Default for Fit<'_> {
    fn default() -> Self {
        Self {
            epochs: 1,
            steps: None,
            data: data::Options { order: Order::Fifo, ..data::Options::default() },
            validation_split: 0.0,
            validation: None,
            drop_remainder: false,
            metrics: Vec::new(),
            patience: None,
            store: None,
            policy: Policy::default(),
            start: Position::default(),
            counters: BTreeMap::new(),
            best: None,
            limit: None,
            stop: None,
        }
    }
}

/// What an epoch gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// Counted from 1.
    pub epoch: u64,
    /// Steps done since the start of the run, those of a run that it goes on from included.
    pub step: u64,
    /// Mean loss of its samples; of targets that a class is left out of, the mean over those that are left.
    pub loss: f64,
    /// The learning rate of its last step.
    pub rate: f64,
    /// What was measured, by name: metrics, and with validation `val_loss` and the like.
    pub metrics: Vec<(String, f64)>,
    /// How long it took, validation left out.
    pub wall: Duration,
    /// Records that it used.
    pub samples: u64,
}

/// Told to the caller as it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// The first step is about to be made.
    Begins {
        /// Steps that are done by the end, those before included; none where the data does not say.
        steps: Option<u64>,
    },
    /// A step is done.
    Step {
        /// Counted from 1.
        epoch: u64,
        /// Steps done.
        step: u64,
        /// Its loss.
        loss: f64,
        /// Its rate.
        rate: f64,
        /// How long it took, without waiting for its input.
        wall: Duration,
        /// Records that it used.
        samples: u64,
    },
    /// An epoch is done.
    Epoch(&'a Epoch),
    /// The run ends within an epoch: what it gave so far.
    CutShort(&'a Epoch),
    /// The run went on from where nothing was left of this epoch, which is counted from 1: it has no loss.
    NoBatches(u64),
    /// A checkpoint was written.
    Saved(&'a std::path::Path),
    /// The run ends before its last epoch.
    Stopped(Stop),
    /// So many records of each epoch make no full batch, and are left out; or those that make none, where the source does
    /// not know its records before it has read them.
    LeftOut(Option<u64>),
    /// The targets of the first batch are 0 and 1, and the hinge that is made small takes -1 and 1: those of 0 teach nothing.
    BitsForSigns,
    /// How the input kept up, when the run ends.
    Input(&'a data::Stats),
}

/// Why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The loss has not become smaller.
    Patience,
    /// So many steps were asked for.
    Steps,
    /// The same, and a run that this one goes on from did them all.
    StepsBefore,
    /// The time is over.
    Time,
    /// The caller said so.
    Asked,
}

/// What measures the outputs of a network that is trained by this loss.
fn meters(metrics: &[Metric], loss: Loss) -> Vec<Meter> {
    let of = |&metric: &Metric| match loss {
        Loss::BinaryCrossEntropy { logits } => {
            Meter::new(metric).apart().threshold(if logits { 0.0 } else { 0.5 })
        }
        Loss::Hinge => Meter::new(metric).apart().threshold(0.0),
        Loss::SparseCrossEntropy { ignored: Some(class), .. } => Meter::new(metric).ignoring(class),
        _ => Meter::new(metric),
    };
    let along = |meter: Meter| match loss.axis() {
        Some(axis) => meter.along(axis),
        None => meter,
    };
    metrics.iter().map(of).map(along).collect()
}

/// Trains for several epochs; what each gave. The loss of an epoch is the mean over its samples.
///
/// Errors: those of reading records and of [`Trainer::step`]; fewer records than a batch; a start within an epoch of other
/// batches.
pub fn fit(
    trainer: &mut Trainer,
    source: &Source,
    options: &Fit<'_>,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<Vec<Epoch>> {
    passes::check(options, trainer.batch())?;
    let short = trainer.takes_short() && !options.drop_remainder;
    let left = remainder(trainer, source, options)?;
    match left {
        Some(samples @ 1..) if short => trainer.prepare_short(samples as usize)?,
        Some(1..) => on_event(Event::LeftOut(left)),
        None if !short && !options.drop_remainder && trainer.batch() > 1 => on_event(Event::LeftOut(None)),
        _ => {}
    }
    let steps = all_steps(trainer, source, options)?;
    set_total_steps(trainer, steps)?;
    on_event(Event::Begins { steps });
    let mut run = FitRun {
        evaluator: validated(options).then(|| Evaluator::new(trainer)).transpose()?,
        meters: meters(&options.metrics, trainer.loss),
        due: Due::new(options.policy),
        begun: Instant::now(),
        best: options.best,
        history: Vec::new(),
        trainer,
        source,
        options,
    };
    let ended = run.all(on_event);
    let history = run.history;
    // What was handed over for steps that are not made.
    ended.and(trainer.give_up())?;
    Ok(history)
}

fn validated(options: &Fit<'_>) -> bool {
    options.validation.is_some() || options.validation_split > 0.0
}

/// Records of an epoch that are trained on, where the source knows.
pub(crate) fn trained_on(source: &Source, options: &Fit<'_>) -> Result<Option<u64>> {
    Ok(source.records()?.map(|records| {
        let kept = (records as f64 * options.validation_split) as u64;
        records - kept.min(records)
    }))
}

/// How many of them the last batch of an epoch has, where it is not full.
fn remainder(trainer: &Trainer, source: &Source, options: &Fit<'_>) -> Result<Option<u64>> {
    let batch = trainer.batch().max(1) as u64;
    Ok(trained_on(source, options)?.map(|records| records % batch))
}

/// Steps that are done by the end of the run, where the data or the caller says.
fn all_steps(trainer: &Trainer, source: &Source, options: &Fit<'_>) -> Result<Option<u64>> {
    let batch = trainer.batch().max(1) as u64;
    let short = trainer.takes_short() && !options.drop_remainder;
    let each = trained_on(source, options)?;
    let each = each.map(|records| if short { records.div_ceil(batch) } else { records / batch });
    let all = each.map(|each| each.saturating_mul(options.epochs));
    Ok(options.steps.into_iter().chain(all).min())
}

/// Tells a trainer whose rate depends on it how many steps there will be.
fn set_total_steps(trainer: &mut Trainer, steps: Option<u64>) -> Result<()> {
    if !trainer.needs_total_steps() {
        return Ok(());
    }
    trainer.set_total_steps(steps.ok_or_else(unknown_steps)?);
    Ok(())
}

/// The rate goes over all steps, and nobody says how many there are.
pub(crate) fn unknown_steps() -> Error {
    let message = "it needs to know how many steps there are, and the data does not say";
    Error::usage("--lr-schedule", message).with_help("steps=N in the schedule")
}

/// The data makes no batch.
pub(crate) fn too_few(batch: usize) -> Error {
    let message = format!("the data holds fewer records than one batch of {batch}");
    Error::usage("--data", message).with_help("a smaller --batch")
}

struct FitRun<'r, 'o> {
    trainer: &'r mut Trainer,
    source: &'r Source,
    options: &'r Fit<'o>,
    evaluator: Option<Evaluator>,
    meters: Vec<Meter>,
    due: Due,
    begun: Instant,
    /// The smallest watched loss, and how many epochs ago it was.
    best: Option<(f64, u64)>,
    history: Vec<Epoch>,
}

/// Sums over an epoch.
struct Sums {
    /// Counted from 0.
    epoch: u64,
    begun: Instant,
    /// Of batches times what they weigh.
    loss: f64,
    weight: u64,
    steps: u64,
    /// Those of them that a run did which this one goes on from.
    before: u64,
    rate: f64,
    samples: u64,
}

impl Sums {
    fn new(epoch: u64) -> Self {
        Self {
            epoch,
            begun: Instant::now(),
            loss: 0.0,
            weight: 0,
            steps: 0,
            before: 0,
            rate: 0.0,
            samples: 0,
        }
    }

    fn mean_loss(&self) -> f64 {
        self.loss / self.weight.max(1) as f64
    }
}

/// When it is asked whether the run ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Boundary {
    /// A step is done.
    Step,
    /// An epoch is done.
    Epoch,
}

impl FitRun<'_, '_> {
    fn all(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        if self.options.steps.is_some_and(|steps| self.trainer.steps() >= steps) {
            on_event(Event::Stopped(Stop::StepsBefore));
            return Ok(());
        }
        // A run that goes on from where it was ended so.
        if self.options.start.batch == 0 && self.stops(Boundary::Epoch) == Some(Stop::Patience) {
            on_event(Event::Stopped(Stop::Patience));
            return Ok(());
        }
        let part = if self.options.validation_split > 0.0 { Part::Train } else { Part::All };
        let options = data::Options {
            batch: self.trainer.batch(),
            last: if self.trainer.takes_short() && !self.options.drop_remainder {
                Last::Keep
            } else {
                Last::Drop
            },
            epochs: Some(self.options.epochs),
            start: self.options.start,
            part,
            validation: self.options.validation_split,
            ..self.options.data.clone()
        };
        let mut batches = self.source.batches(&options)?;
        let mut sums = self.resumed();
        let mut begun = VecDeque::new();
        // Where a checkpoint stands that is due.
        let mut due: Option<Position> = None;
        let stop = loop {
            let next = self.next(&mut batches, &mut begun);
            // A batch that is left out ends an epoch too, so its end shows in what comes next. Whatever is due
            // there is written with what the epoch measured, once.
            let goes_on = match &next {
                Ok(Some(batch)) => batch.at.epoch == sums.epoch,
                Ok(None) => false,
                Err(_) => true,
            };
            if let Some(at) = due.take().filter(|_| goes_on) {
                self.save(at, &sums, &[], on_event)?;
            }
            let Some(batch) = next? else {
                if self.trainer.steps() > 0 {
                    self.end_epoch(&sums, Position { epoch: sums.epoch + 1, batch: 0 }, on_event)?;
                }
                break None;
            };
            if batch.at.epoch != sums.epoch {
                let next = Position { epoch: batch.at.epoch, batch: 0 };
                if let Some(reason) = self.end_epoch(&sums, next, on_event)? {
                    break Some(reason);
                }
                sums = Sums::new(batch.at.epoch);
            }
            self.step(&batch, &mut sums, on_event)?;
            match self.stops(Boundary::Step) {
                // The last of the steps asked for may be the last of its epoch.
                Some(Stop::Steps) if batch.ends_epoch => {
                    self.end_epoch(&sums, batch.next, on_event)?;
                    break Some(Stop::Steps);
                }
                Some(reason) => {
                    self.cut_short(&sums, batch.next, on_event)?;
                    break Some(reason);
                }
                None if self.due.is_due(self.trainer.steps()) => due = Some(batch.next),
                None => {}
            }
            batches.give_back(batch);
        };
        if let Some(reason) = stop {
            on_event(Event::Stopped(reason));
        }
        on_event(Event::Input(&batches.stats()));
        if self.trainer.steps() == 0 {
            return Err(too_few(self.trainer.batch()));
        }
        Ok(())
    }

    /// The next batch to make a step of; those after it are handed over too, as far as that is of use.
    fn next(
        &mut self,
        batches: &mut impl Iterator<Item = Result<data::Batch>>,
        begun: &mut VecDeque<Result<data::Batch>>,
    ) -> Result<Option<data::Batch>> {
        let left = self.options.steps.map(|steps| steps.saturating_sub(self.trainer.steps()).max(1));
        let ahead = left.map_or(self.trainer.ahead(), |left| self.trainer.ahead().min(left as usize));
        // What cannot be read or used is reported once the steps before it are done; a short batch has a step of another
        // kind, which is not begun before those ahead of it are done.
        let full = self.trainer.batch();
        let is_full = |batch: &Result<data::Batch>| batch.as_ref().is_ok_and(|batch| batch.samples >= full);
        while begun.len() < ahead
            && begun.back().is_none_or(is_full)
            && let Some(batch) = batches.next()
        {
            let begin = |batch: data::Batch| match batch.samples >= full {
                true => self.trainer.begin(&arrays(&batch)).map(|()| batch),
                false => Ok(batch),
            };
            begun.push_back(batch.and_then(begin));
        }
        begun.pop_front().transpose()
    }

    fn is_short(&self, batch: &data::Batch) -> bool {
        batch.samples < self.trainer.batch()
    }

    fn step(
        &mut self,
        batch: &data::Batch,
        sums: &mut Sums,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let rate = self.trainer.rate();
        let outcome = match self.is_short(batch) {
            true => self.trainer.short_step(&arrays(batch), batch.samples),
            false => self.trainer.finish(),
        };
        let outcome = outcome.map_err(|error| told_of_data(error, batch))?;
        let weight = self.trainer.weight(&batch.targets, batch.samples)?;
        sums.loss += outcome.loss * weight as f64;
        sums.weight += weight;
        sums.steps += 1;
        sums.rate = rate;
        sums.samples += batch.samples as u64;
        if self.trainer.reads_signs()
            && self.history.is_empty()
            && sums.steps == 1
            && are_bits(&batch.targets)
        {
            on_event(Event::BitsForSigns);
        }
        measure(&mut self.meters, &outcome.outputs, batch)?;
        let step = self.trainer.steps();
        let (epoch, loss, wall) = (batch.at.epoch + 1, outcome.loss, outcome.wall);
        on_event(Event::Step { epoch, step, loss, rate, wall, samples: batch.samples as u64 });
        Ok(())
    }

    /// What was measured of an epoch, as counters of a checkpoint that stands within it; sums are kept to the bit.
    fn within_epoch(&self, sums: &Sums) -> Vec<(String, u64)> {
        let own = [sums.loss.to_bits(), sums.weight, sums.steps];
        let own = MEASURED.into_iter().zip(own).map(|(name, value)| (name.to_owned(), value));
        let of_meters = self.meters.iter().filter_map(|meter| {
            let (sum, count) = meter.measured()?;
            let [of_sum, of_count] = names_of_meter(meter);
            Some([(of_sum, sum.to_bits()), (of_count, count)])
        });
        own.chain(of_meters.flatten()).collect()
    }

    /// The sums of the epoch in which the run begins: those of the checkpoint that it goes on from.
    fn resumed(&mut self) -> Sums {
        let mut sums = Sums::new(self.options.start.epoch);
        let kept = |name: &str| self.options.counters.get(name).copied();
        if self.options.start.batch == 0 {
            return sums;
        }
        // Samples are counted for the speed of this run.
        if let [Some(loss), Some(weight), Some(steps)] = MEASURED.map(kept) {
            (sums.loss, sums.weight) = (f64::from_bits(loss), weight);
            (sums.steps, sums.before) = (steps, steps);
        }
        for meter in &mut self.meters {
            let [of_sum, of_count] = names_of_meter(meter);
            if let (Some(sum), Some(count)) = (kept(&of_sum), kept(&of_count)) {
                meter.resume((f64::from_bits(sum), count));
            }
        }
        sums
    }

    fn line(&self, sums: &Sums) -> Epoch {
        let metrics = self.meters.iter();
        let metrics = metrics.filter_map(|meter| Some((meter.metric().to_string(), meter.value()?)));
        Epoch {
            epoch: sums.epoch + 1,
            step: self.trainer.steps(),
            loss: sums.mean_loss(),
            rate: sums.rate,
            metrics: metrics.collect(),
            wall: sums.begun.elapsed(),
            samples: sums.samples,
        }
    }

    /// Saves and tells what there is of an epoch that the run ends in.
    fn cut_short(&mut self, sums: &Sums, next: Position, on_event: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        self.save(next, sums, &[], on_event)?;
        let line = self.line(sums);
        on_event(Event::CutShort(&line));
        self.history.push(line);
        Ok(())
    }

    /// Validates, tells, saves; whether the run ends here. An epoch without batches has no loss, and is none.
    fn end_epoch(
        &mut self,
        sums: &Sums,
        next: Position,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<Stop>> {
        if sums.steps == sums.before {
            on_event(Event::NoBatches(sums.epoch + 1));
            return Ok(None);
        }
        let mut line = self.line(sums);
        self.meters.iter_mut().for_each(Meter::reset);
        line.metrics.extend(self.validate()?);
        let watched = line.metrics.iter().find(|(name, _)| name == "val_loss");
        let watched = watched.map_or(line.loss, |(_, loss)| *loss);
        self.best = Some(match self.best {
            Some((best, since)) if watched >= best => (best, since + 1),
            _ => (watched, 0),
        });
        on_event(Event::Epoch(&line));
        self.save(next, sums, &line.metrics, on_event)?;
        self.history.push(line);
        Ok(self.stops(Boundary::Epoch))
    }

    /// Loss and metrics of the records for validation.
    fn validate(&mut self) -> Result<Vec<(String, f64)>> {
        let Some(evaluator) = &mut self.evaluator else { return Ok(Vec::new()) };
        evaluator.follow(self.trainer)?;
        let own = self.options.validation;
        let options = data::Options {
            batch: evaluator.batch(),
            last: Last::Fill,
            order: Order::Fifo,
            epochs: Some(1),
            part: if own.is_some() { Part::All } else { Part::Validation },
            validation: if own.is_some() { 0.0 } else { self.options.validation_split },
            start: Position::default(),
            ..self.options.data.clone()
        };
        let mut meters = meters(&self.options.metrics, self.trainer.loss);
        let mut mean = MeanLoss::default();
        let mut batches = own.unwrap_or(self.source).batches(&options)?;
        while let Some(batch) = batches.next() {
            let batch = batch?;
            let arrays = arrays(&batch);
            self.trainer.check_values(&arrays)?;
            let outputs = evaluator.run(arrays, batch.samples, &mut mean)?;
            measure(&mut meters, &outputs, &batch)?;
            batches.give_back(batch);
        }
        let Some(loss) = mean.value() else { return Ok(Vec::new()) };
        let mut all = vec![("val_loss".to_owned(), loss)];
        let named =
            meters.iter().filter_map(|meter| Some((format!("val_{}", meter.metric()), meter.value()?)));
        all.extend(named);
        Ok(all)
    }

    fn stops(&self, after: Boundary) -> Option<Stop> {
        let options = self.options;
        let patience = options.patience.filter(|_| after == Boundary::Epoch);
        if options.stop.is_some_and(|stop| stop.load(Ordering::SeqCst)) {
            Some(Stop::Asked)
        } else if options.limit.is_some_and(|limit| self.begun.elapsed() >= limit) {
            Some(Stop::Time)
        } else if options.steps.is_some_and(|steps| self.trainer.steps() >= steps) {
            Some(Stop::Steps)
        } else if patience.is_some_and(|most| self.best.is_some_and(|(_, since)| since >= most)) {
            Some(Stop::Patience)
        } else {
            None
        }
    }

    fn save(
        &mut self,
        next: Position,
        sums: &Sums,
        metrics: &[(String, f64)],
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let Some(store) = self.options.store else { return Ok(()) };
        let mut checkpoint = self.trainer.checkpoint(next)?;
        checkpoint.metrics.insert("loss".to_owned(), sums.mean_loss());
        checkpoint.metrics.extend(metrics.iter().cloned());
        self.best.into_iter().for_each(|best| checkpoint.set_best(best));
        passes::keep(self.options, self.trainer.batch(), &mut checkpoint.counters);
        if next.batch > 0 {
            checkpoint.counters.extend(self.within_epoch(sums));
        }
        let path = store.save(&checkpoint)?;
        self.due.written();
        on_event(Event::Saved(&path));
        Ok(())
    }
}

/// What counters of a checkpoint within an epoch are called: the sum of losses, its weight, and steps.
const MEASURED: [&str; 3] = ["epoch/loss", "epoch/weight", "epoch/steps"];

/// The same of a metric: its sum, and of how many.
fn names_of_meter(meter: &Meter) -> [String; 2] {
    ["sum", "count"].map(|what| format!("epoch/{}/{what}", meter.metric()))
}

/// The error of a step, with what of its data is not finite: a loss is not either then.
fn told_of_data(error: Error, batch: &data::Batch) -> Error {
    match (error, fault_of_data(&arrays(batch))) {
        (Error::Run(mut report), Some(fault)) => {
            report.message = format!("{}, as the data is: {fault}", report.message);
            Error::Run(report.help(OF_DATA))
        }
        (error, _) => error,
    }
}

fn arrays(batch: &data::Batch) -> Vec<(String, Tensor)> {
    batch.inputs.iter().chain(&batch.targets).cloned().collect()
}

/// Whether some array holds 0 and 1 alone, and 0.
fn are_bits(targets: &[(String, Tensor)]) -> bool {
    targets.iter().any(|(_, target)| {
        let values = target.to_f64();
        values.contains(&0.0) && values.iter().all(|&value| value == 0.0 || value == 1.0)
    })
}

/// Measures the first output against the first target.
fn measure(meters: &mut [Meter], outputs: &[(String, Tensor)], batch: &data::Batch) -> Result<()> {
    let (Some((_, output)), Some((_, target))) = (outputs.first(), batch.targets.first()) else {
        return Ok(());
    };
    meters.iter_mut().try_for_each(|meter| meter.update(output, target, batch.samples))
}
