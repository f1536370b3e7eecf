//! The threads of a pipeline and the bounded queues between them.
//!
//! One thread reads and cuts files into chunks of records, several parse chunks, one puts records in
//! order and together to batches, the consumer takes batches. Each chunk carries the place where its
//! result is to go, and these places stand in a queue of their own in the order of the files: so the
//! records' order does not depend on which thread is done first. Every queue is bounded, so whoever
//! is ahead waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::assemble::{Assembly, BatchPlace};
use super::chunk::{Chunk, FAULTS_KEPT, Raw};
use super::order::{KeptRow, ShuffleWindow};
use super::source::Source;
use super::spares::Spares;
use super::{Batch, Last, OnBad, Options, Order, Part, Position, Stats};
use crate::error::{Error, Result};

/// What comes out of the files, in order.
enum Piece {
    /// Where the records of a chunk will be.
    Chunk(Receiver<Result<Chunk>>),
    /// What follows in a file is lost, in words; only where that is no failure.
    Lost(String),
    /// Nothing follows in this epoch.
    End,
    /// Reading has failed.
    Failed(Error),
}

/// A chunk to be parsed: which file, the number of its first record in the epoch, where to.
struct ParseTask {
    file: usize,
    number: u64,
    raw: Raw,
    to: SyncSender<Result<Chunk>>,
}

/// What the consumer reads of the others' counts.
#[derive(Debug, Default)]
struct Skipped {
    count: AtomicU64,
    faults: Mutex<Vec<String>>,
}

/// Batches as they come; ends its threads when dropped. After an error there are no more batches.
#[derive(Debug)]
pub struct Batches {
    receiver: Option<Receiver<Result<Batch>>>,
    threads: Vec<JoinHandle<()>>,
    skipped: Arc<Skipped>,
    stats: Stats,
    spares: Pools,
}

/// Memory that is filled again.
#[derive(Clone, Debug, Default)]
struct Pools {
    chunks: Spares,
    batches: Spares,
}

impl Source {
    /// Starts to read. Threads run until the batches end or are dropped.
    ///
    /// Error: [`Error::Usage`] for impossible options.
    pub fn batches(&self, options: &Options) -> Result<Batches> {
        start(self, options)
    }
}

fn start(source: &Source, options: &Options) -> Result<Batches> {
    check(options)?;
    let threads = options.threads.max(1);
    let (pieces_to, pieces) = sync_channel::<Piece>(2 * threads + 2);
    let (tasks_to, tasks) = sync_channel::<ParseTask>(threads);
    let (batches_to, receiver) = sync_channel(options.prefetch.max(1));
    let skipped = Arc::new(Skipped::default());
    let mut batches = Batches {
        receiver: Some(receiver),
        threads: Vec::with_capacity(threads + 2),
        skipped: skipped.clone(),
        stats: Stats::default(),
        spares: Pools::default(),
    };
    let spares = batches.spares.clone();
    let mut spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let thread = Builder::new().name(format!("data-{name}")).spawn(work);
        batches.threads.push(thread.map_err(|error| Error::io("a thread for input", error))?);
        Ok::<(), Error>(())
    };
    let (of, with) = (source.clone(), options.clone());
    spawn("read", Box::new(move || read(&of, &with, &pieces_to, &tasks_to)))?;
    let tasks = Arc::new(Mutex::new(tasks));
    for _ in 0..threads {
        let (of, with, tasks, spares) =
            (source.clone(), options.clone(), tasks.clone(), spares.chunks.clone());
        spawn("parse", Box::new(move || parse(&of, &with, &tasks, &spares)))?;
    }
    let (of, with) = (source.clone(), options.clone());
    let batch = move || Batcher::new(&of, &with, &pieces, &batches_to, &skipped, &spares).work();
    spawn("batch", Box::new(batch))?;
    Ok(batches)
}

fn check(options: &Options) -> Result<()> {
    if options.batch == 0 {
        return Err(Error::usage("--batch 0", "a batch has a record at least"));
    }
    if !(0.0..1.0).contains(&options.validation) {
        let place = format!("--validation-split {}", options.validation);
        return Err(Error::usage(place, "expected a share from 0 to below 1"));
    }
    if options.validation == 0.0 && options.part == Part::Validation {
        return Err(Error::usage("--validation-split 0", "no records are for validation"));
    }
    Ok(())
}

/// Reads the files of each epoch, in order, until nobody listens.
fn read(source: &Source, options: &Options, pieces: &SyncSender<Piece>, tasks: &SyncSender<ParseTask>) {
    let mut epoch = options.start.epoch;
    while options.epochs.is_none_or(|epochs| epoch < epochs) {
        let mut number = 0;
        for (file, path) in source.files.iter().enumerate() {
            let mut heard = true;
            let outcome = source.reader.split(path, &mut |raw| {
                let (to, from) = sync_channel(1);
                let task = ParseTask { file, number, raw, to };
                number += task.raw.rows as u64;
                heard = pieces.send(Piece::Chunk(from)).is_ok() && tasks.send(task).is_ok();
                heard
            });
            let sent = match outcome {
                Ok(()) => Ok(()),
                Err(error @ Error::Format(_)) if options.on_bad == OnBad::Skip => {
                    pieces.send(Piece::Lost(format!("{error}; what follows in the file is left out")))
                }
                Err(error) => {
                    // A consumer that is gone needs no error.
                    let _ = pieces.send(Piece::Failed(error));
                    return;
                }
            };
            if !heard || sent.is_err() {
                return;
            }
        }
        if pieces.send(Piece::End).is_err() {
            return;
        }
        epoch += 1;
    }
}

/// Parses chunks until there are no more.
fn parse(source: &Source, options: &Options, tasks: &Mutex<Receiver<ParseTask>>, spares: &Spares) {
    loop {
        let next: Result<ParseTask, RecvError> = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(ParseTask { file, number, raw, to }) = next else { return };
        // Where nobody waits for the result, the end is near.
        let _ = to.send(parsed(source, options, (file, number), &raw, spares));
    }
}

/// The records of a chunk that belong to the part asked for; where it begins: file, and number of the record in the epoch.
fn parsed(
    source: &Source,
    options: &Options,
    (file, number): (usize, u64),
    raw: &Raw,
    spares: &Spares,
) -> Result<Chunk> {
    let mut chunk = Chunk::new(&source.bound, raw.rows, spares);
    for row in 0..raw.rows {
        if !belongs(number + row as u64, options) {
            continue;
        }
        let parsed = source.reader.parse(raw, row, &source.bound, &mut chunk);
        let Err(fault) = parsed.and_then(|()| chunk.end_row(&source.bound)) else { continue };
        chunk.take_back(&source.bound);
        let path = source.files[file].display();
        let place = format!("{path}: {}", source.reader.place(raw, row));
        match options.on_bad {
            OnBad::Fail => {
                return Err(Error::format(place, fault).with_help("--on-bad-record skip leaves it out"));
            }
            OnBad::Skip => chunk.skip(format!("{place}: {fault}")),
        }
    }
    Ok(chunk)
}

/// Whether a record belongs to the part: see [`Part`].
fn belongs(record: u64, options: &Options) -> bool {
    // Whole millionths, so that no rounding depends on the number of records.
    let millionths = u128::from((options.validation * 1e6).round() as u64);
    let passed = |record: u128| record * millionths / 1_000_000;
    let validation = passed(u128::from(record) + 1) > passed(u128::from(record));
    match options.part {
        Part::All => true,
        Part::Train => !validation,
        Part::Validation => validation,
    }
}

/// Whether other batches of the epoch follow one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InEpoch {
    Earlier,
    Last,
}

/// Puts records in order and together.
struct Batcher<'b> {
    source: &'b Source,
    options: &'b Options,
    pieces: &'b Receiver<Piece>,
    batches: &'b SyncSender<Result<Batch>>,
    skipped: &'b Skipped,
    spares: &'b Pools,
    /// Batches of this epoch that are done.
    at: Position,
    /// The batch that is being filled, and a full one that waits to know whether another follows.
    assembly: Assembly,
    full: Option<Assembly>,
    /// Records of this epoch.
    rows: u64,
}

/// Nobody listens any more, or an error was reported.
struct Over;

impl<'b> Batcher<'b> {
    fn new(
        source: &'b Source,
        options: &'b Options,
        pieces: &'b Receiver<Piece>,
        batches: &'b SyncSender<Result<Batch>>,
        skipped: &'b Skipped,
        spares: &'b Pools,
    ) -> Self {
        let at = Position { epoch: options.start.epoch, batch: 0 };
        let assembly = Assembly::new(source.bound.len(), options.batch, &spares.batches);
        Self { source, options, pieces, batches, skipped, spares, at, assembly, full: None, rows: 0 }
    }

    /// The batch that was being filled, in whose place a new one is.
    fn taken(&mut self) -> Assembly {
        let next = Assembly::new(self.source.bound.len(), self.options.batch, &self.spares.batches);
        std::mem::replace(&mut self.assembly, next)
    }

    fn work(mut self) {
        while self.options.epochs.is_none_or(|epochs| self.at.epoch < epochs) {
            if self.epoch().is_err() {
                return;
            }
        }
    }

    /// Makes the batches of one epoch.
    fn epoch(&mut self) -> Result<(), Over> {
        let mut window = match self.options.order {
            Order::Fifo => None,
            Order::Shuffle { seed, window } => {
                let rows = window.unwrap_or(usize::MAX);
                Some(ShuffleWindow::new(seed, self.at.epoch, rows, self.options.memory.get()))
            }
        };
        while let Some(chunk) = self.chunk()? {
            for row in 0..chunk.rows {
                match &mut window {
                    None => {
                        self.assembly.push(&chunk, row, &self.source.bound);
                        self.added()?;
                    }
                    Some(window) => {
                        if let Some(drawn) = window.exchange(self.row(&chunk, row)) {
                            self.assembly.push_row(&drawn, &self.source.bound);
                            self.added()?;
                        }
                    }
                }
            }
            chunk.spare(&self.spares.chunks);
        }
        while let Some(drawn) = window.as_mut().and_then(ShuffleWindow::draw) {
            self.assembly.push_row(&drawn, &self.source.bound);
            self.added()?;
        }
        self.end()
    }

    /// The next chunk of this epoch.
    fn chunk(&self) -> Result<Option<Chunk>, Over> {
        loop {
            let chunk = match self.pieces.recv() {
                Ok(Piece::Chunk(from)) => from.recv(),
                Ok(Piece::End) => return Ok(None),
                Ok(Piece::Lost(fault)) => {
                    self.skip(1, vec![fault]);
                    continue;
                }
                Ok(Piece::Failed(error)) => return self.fail(error),
                Err(_) => return self.fail(Error::Internal("a thread of the input has ended".into())),
            };
            match chunk {
                Ok(Ok(mut chunk)) => {
                    self.skip(chunk.skipped, std::mem::take(&mut chunk.faults));
                    return Ok(Some(chunk));
                }
                Ok(Err(error)) => return self.fail(error),
                Err(_) => return self.fail(Error::Internal("a thread of the input has ended".into())),
            }
        }
    }

    fn fail<T>(&self, error: Error) -> Result<T, Over> {
        // A consumer that is gone needs no error.
        let _ = self.batches.send(Err(error));
        Err(Over)
    }

    fn skip(&self, count: u64, faults: Vec<String>) {
        self.skipped.count.fetch_add(count, Ordering::Relaxed);
        let mut kept = self.skipped.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let left = FAULTS_KEPT.saturating_sub(kept.len());
        kept.extend(faults.into_iter().take(left));
    }

    fn row(&self, chunk: &Chunk, row: usize) -> KeptRow {
        let mut out = KeptRow::default();
        for (field, bound) in self.source.bound.iter().enumerate() {
            out.bytes.extend_from_slice(chunk.row(field, row, bound));
            out.ends.push(out.bytes.len());
        }
        out
    }

    /// A record was added: a batch that is full waits until another record comes.
    fn added(&mut self) -> Result<(), Over> {
        self.rows += 1;
        if let Some(full) = self.full.take() {
            self.send(full, InEpoch::Earlier)?;
        }
        if self.assembly.rows == self.options.batch {
            self.full = Some(self.taken());
        }
        Ok(())
    }

    /// The epoch has ended.
    fn end(&mut self) -> Result<(), Over> {
        let rest = self.taken();
        let rest = (rest.rows > 0 && self.options.last != Last::Drop).then_some(rest);
        match (self.full.take(), rest) {
            (Some(full), Some(rest)) => {
                self.send(full, InEpoch::Earlier)?;
                self.send(rest, InEpoch::Last)?;
            }
            (Some(one), None) | (None, Some(one)) => self.send(one, InEpoch::Last)?,
            (None, None) if self.at.batch == 0 => return self.fail(self.nothing()),
            (None, None) => {}
        }
        self.rows = 0;
        self.at = Position { epoch: self.at.epoch + 1, batch: 0 };
        Ok(())
    }

    /// Why an epoch has no batch.
    fn nothing(&self) -> Error {
        let place = self.source.files.first().map_or_else(String::new, |file| file.display().to_string());
        let message = match self.rows {
            0 => "there are no records to read".to_owned(),
            rows => format!("{rows} records do not fill a batch of {}", self.options.batch),
        };
        Error::run(place, message)
    }

    fn send(&mut self, assembly: Assembly, place: InEpoch) -> Result<(), Over> {
        let ends_epoch = place == InEpoch::Last;
        let at = self.at;
        self.at.batch += 1;
        let start = self.options.start;
        if at < start {
            return Ok(());
        }
        let next = if ends_epoch { Position { epoch: at.epoch + 1, batch: 0 } } else { self.at };
        let batch = assembly.finish(&self.source.bound, BatchPlace { at, next, ends_epoch }, self.options);
        let failed = batch.is_err();
        let sent = self.batches.send(batch);
        if failed || sent.is_err() { Err(Over) } else { Ok(()) }
    }
}

impl Batches {
    /// What has been done so far.
    pub fn stats(&self) -> Stats {
        let faults = self.skipped.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Stats { skipped: self.skipped.count.load(Ordering::Relaxed), faults, ..self.stats.clone() }
    }

    /// Takes back the memory of a batch that was used up, as far as nobody else holds its arrays: the next ones are put
    /// there.
    pub fn give_back(&mut self, batch: Batch) {
        for (_, tensor) in batch.inputs.into_iter().chain(batch.targets) {
            if let Some(bytes) = tensor.into_bytes() {
                self.spares.batches.give(bytes);
            }
        }
    }

    /// Takes the next batch, and counts whether and how long it was waited for.
    fn take(&mut self) -> Option<Result<Batch>> {
        let receiver = self.receiver.as_ref()?;
        let (taken, waited) = match receiver.try_recv() {
            Ok(batch) => (Some(batch), None),
            Err(TryRecvError::Disconnected) => (None, None),
            Err(TryRecvError::Empty) => {
                let start = Instant::now();
                (receiver.recv().ok(), Some(start.elapsed()))
            }
        };
        if let Some(Ok(batch)) = &taken {
            self.count(batch.samples, waited);
        }
        taken
    }

    fn count(&mut self, samples: usize, waited: Option<Duration>) {
        let first = self.stats.batches == 0;
        self.stats.batches += 1;
        self.stats.samples += samples as u64;
        match waited {
            None => {}
            Some(waited) if first => self.stats.first_wait = waited,
            Some(waited) => {
                self.stats.waits += 1;
                self.stats.waited += waited;
            }
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        let taken = self.take();
        if !matches!(taken, Some(Ok(_))) {
            self.receiver = None;
        }
        taken
    }
}

impl Drop for Batches {
    /// Hangs up, which ends the threads one after another.
    fn drop(&mut self) {
        self.receiver = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it already.
            let _ = thread.join();
        }
    }
}
