//! Puts a plan's steps on streams, and moves bytes between the host and devices.
//!
//! Contains `unsafe`: addresses that the driver uses later. All of them are of ranges that
//! `executor::plan::Checker` found within their arenas, and streams wait for one another as the plan's
//! checked order says.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::driver::{Begin, Driver, Event, HostPointer, HostWork, Outcome, Pointer, Stream};
use super::work::{Call, Order, Transfer, Way, Work};

/// Bytes that go through page-locked memory at once.
pub(super) const PIECE: u64 = 4 << 20;

/// Page-locked memory through which what one GPU sends to a device goes: two pieces in turn.
pub(super) struct Stage {
    pub(super) memory: [HostPointer; 2],
    /// Of the sender: the piece is there.
    pub(super) filled: [Event; 2],
    /// Of the receiver: the piece may be overwritten.
    pub(super) drained: [Event; 2],
}

/// Page-locked words that say how far each stream is. The numbers come from GPUs: a copy from the host to the
/// host would make whoever puts it on a stream wait for the stream, and a kernel that does not end would
/// never be told.
#[derive(Clone)]
pub(super) struct Marks {
    /// By GPU: the numbers 1, 2, 3, ... of the steps.
    pub(super) numbers: BTreeMap<u32, Pointer>,
    /// By stream: the number of the last step that is done.
    pub(super) reached: HostPointer,
}

/// What steps are put on.
pub(super) struct StreamSet {
    pub(super) driver: Arc<dyn Driver>,
    /// By lane.
    pub(super) lanes: Vec<Stream>,
    /// By lane: whether kernels on it may be begun before those before them have ended.
    pub(super) early: Vec<bool>,
    /// By step, on its stream: that it begins, that it is done.
    pub(super) begins: Vec<Event>,
    pub(super) ends: Vec<Event>,
    /// By stream: all so far.
    pub(super) joins: Vec<Event>,
    pub(super) stages: Vec<Stage>,
    pub(super) marks: Option<Marks>,
}

/// One putting of steps on streams: eagerly, or into a graph.
pub(super) struct Session<'a> {
    on: &'a StreamSet,
    /// By stage and piece: whether it was used, so that its event means something.
    used: Vec<[bool; 2]>,
    /// By stage: how many pieces went through.
    turns: Vec<usize>,
    timed: bool,
    /// By lane: whether the last that was put on it is a kernel, behind which the next one may be begun early.
    behind_kernel: Vec<bool>,
    overlaps: bool,
}

impl<'a> Session<'a> {
    pub(super) fn new(on: &'a StreamSet) -> Self {
        let stages = on.stages.len();
        Self {
            on,
            used: vec![[false; 2]; stages],
            turns: vec![0; stages],
            timed: false,
            behind_kernel: vec![false; on.lanes.len()],
            overlaps: false,
        }
    }

    /// The same; kernels are begun before those just before them have ended, where GPUs can.
    pub(super) fn overlapping(on: &'a StreamSet) -> Self {
        Self { overlaps: true, ..Self::new(on) }
    }

    /// The same; events say when each step begins and ends.
    pub(super) fn timed(on: &'a StreamSet) -> Self {
        Self { timed: true, ..Self::new(on) }
    }

    pub(super) fn step(&mut self, number: usize, order: &Order) -> Outcome<()> {
        let on = self.on;
        let (driver, stream) = (&*on.driver, on.lanes[order.lane]);
        for &before in &order.after {
            self.behind_kernel[order.lane] = false;
            driver.wait(stream, on.ends[before])?;
        }
        if self.timed {
            driver.record(on.begins[number], stream)?;
        }
        match &order.work {
            Work::Launches(calls) => calls.iter().try_for_each(|call| self.launch(order.lane, call))?,
            Work::Host(work) => {
                self.behind_kernel[order.lane] = false;
                driver.host(stream, Arc::clone(work))?;
            }
            Work::Copy(transfer) => self.transfer(order.lane, transfer)?,
        }
        // Behind the step on its stream, so it counts only what is done.
        if let Some(marks) = &on.marks
            && let Some(numbers) = marks.numbers.get(&stream.gpu)
        {
            let (from, to) = (numbers.offset(4 * number as u64), reached(marks, order.lane));
            self.behind_kernel[order.lane] = false;
            // SAFETY: both are words of the marks, which live as long as the streams.
            unsafe { driver.download(stream, to, from, 4)? };
        }
        if self.timed || order.signals {
            driver.record(on.ends[number], stream)?;
        }
        Ok(())
    }

    fn launch(&mut self, lane: usize, call: &Call) -> Outcome<()> {
        let on = self.on;
        let early = self.overlaps && on.early[lane] && self.behind_kernel[lane];
        // What the library launches does not wait for what is before it.
        self.behind_kernel[lane] = matches!(call, Call::Kernel { .. });
        put(&*on.driver, on.lanes[lane], call, if early { Begin::Early } else { Begin::Behind })
    }

    /// A copy on the receiver's stream.
    pub(super) fn transfer(&mut self, lane: usize, transfer: &Transfer) -> Outcome<()> {
        let (on, bytes) = (self.on, transfer.bytes);
        let (driver, stream) = (&*on.driver, on.lanes[lane]);
        if bytes == 0 {
            return Ok(());
        }
        // Copies are no kernels: what follows on any stream waits for them.
        self.behind_kernel.fill(false);
        // SAFETY: as the module's documentation says.
        unsafe {
            match transfer.way {
                Way::Device { to, from } => driver.copy(stream, to, from, bytes),
                Way::Up { to, from } => driver.upload(stream, to, from, bytes),
                Way::Host(ref copy) => driver.host(stream, Arc::clone(copy)),
                Way::Down { out, to, from } => {
                    // Nothing else orders the two streams: the sender waits for this lane, and this lane for the sender.
                    self.follow(out, lane)?;
                    driver.download(on.lanes[out], to, from, bytes)?;
                    self.follow(lane, out)
                }
                Way::Staged { out, stage, to, from } => self.staged(lane, out, stage, (to, from), bytes),
            }
        }
    }

    /// # Safety
    ///
    /// As the module's documentation says.
    unsafe fn staged(
        &mut self,
        lane: usize,
        out: usize,
        stage: usize,
        (to, from): (Pointer, Pointer),
        bytes: u64,
    ) -> Outcome<()> {
        let on = self.on;
        let (driver, receiver, sender) = (&*on.driver, on.lanes[lane], on.lanes[out]);
        let own = &on.stages[stage];
        self.follow(out, lane)?;
        let mut done = 0;
        while done < bytes {
            let piece = self.turns[stage] % 2;
            self.turns[stage] += 1;
            let length = PIECE.min(bytes - done);
            // Its event means nothing before it was recorded once.
            if std::mem::replace(&mut self.used[stage][piece], true) {
                driver.wait(sender, own.drained[piece])?;
            }
            // SAFETY: as the caller promises; the piece was drained, and is filled before it is read.
            unsafe {
                driver.download(sender, own.memory[piece], from.offset(done), length)?;
                driver.record(own.filled[piece], sender)?;
                driver.wait(receiver, own.filled[piece])?;
                driver.upload(receiver, to.offset(done), own.memory[piece], length)?;
            }
            driver.record(own.drained[piece], receiver)?;
            done += length;
        }
        Ok(())
    }

    /// What is put on `later` from now on waits for what was put on `earlier` so far.
    fn follow(&self, later: usize, earlier: usize) -> Outcome<()> {
        let (on, event) = (self.on, self.on.joins[earlier]);
        on.driver.record(event, on.lanes[earlier])?;
        on.driver.wait(on.lanes[later], event)
    }

    /// What is put on any stream from now on waits for what was put on the first so far.
    pub(super) fn fork(&self) -> Outcome<()> {
        let (on, event) = (self.on, self.on.joins[0]);
        on.driver.record(event, on.lanes[0])?;
        on.lanes[1..].iter().try_for_each(|&stream| on.driver.wait(stream, event))
    }

    /// What is put on the first stream from now on waits for what was put on any so far.
    pub(super) fn join(&self) -> Outcome<()> {
        (1..self.on.lanes.len()).try_for_each(|other| self.follow(0, other))
    }
}

/// Puts a call on a stream, behind all that is before it.
pub(super) fn launch(driver: &dyn Driver, stream: Stream, call: &Call) -> Outcome<()> {
    put(driver, stream, call, Begin::Behind)
}

fn put(driver: &dyn Driver, stream: Stream, call: &Call, begin: Begin) -> Outcome<()> {
    // SAFETY: as the module's documentation says; kernels keep to their arguments, which the verifier of
    // their programs proved.
    unsafe {
        match call {
            Call::Kernel { function, launch, args } => driver.launch(stream, *function, *launch, args, begin),
            Call::Product(product) => {
                driver.multiply(stream, &product.gemm, &product.algorithm, &product.args)
            }
        }
    }
}

fn reached(marks: &Marks, stream: usize) -> HostPointer {
    // A line of its own, so that streams do not write one line in turn.
    marks.reached.offset(64 * stream as u64)
}

/// Page-locked memory through which the host hands bytes over and takes them back.
pub(super) struct Window {
    pub(super) memory: HostPointer,
    pub(super) bytes: u64,
}

impl Window {
    /// Copies to a device and waits for it.
    pub(super) fn write(
        &self,
        driver: &dyn Driver,
        stream: Stream,
        to: Pointer,
        bytes: &[u8],
    ) -> Outcome<()> {
        let half = (self.bytes / 2).max(1);
        for (number, piece) in bytes.chunks(half as usize).enumerate() {
            // Two halves in turn: the host fills one while the other is copied.
            if number >= 2 && number % 2 == 0 {
                driver.finish(stream)?;
            }
            let from = self.memory.offset(half * (number as u64 % 2));
            let at = half * number as u64;
            // SAFETY: the half is long enough, and what was copied from it before is done.
            unsafe {
                write_host(from, piece);
                driver.upload(stream, to.offset(at), from, piece.len() as u64)?;
            }
        }
        driver.finish(stream)
    }

    /// Copies from a device.
    pub(super) fn read(
        &self,
        driver: &dyn Driver,
        stream: Stream,
        from: Pointer,
        bytes: &mut [u8],
    ) -> Outcome<()> {
        for (number, piece) in bytes.chunks_mut(self.bytes.max(1) as usize).enumerate() {
            let at = self.bytes * number as u64;
            // SAFETY: the window is long enough, and the copy is done when it is read.
            unsafe {
                driver.download(stream, self.memory, from.offset(at), piece.len() as u64)?;
                driver.finish(stream)?;
                read_host(self.memory, piece);
            }
        }
        Ok(())
    }
}

/// # Safety
///
/// So many bytes of page-locked memory, which nobody else uses.
pub(super) unsafe fn write_host(to: HostPointer, bytes: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to.0 as usize);
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
}

/// # Safety
///
/// So many bytes of page-locked memory, which nobody writes.
pub(super) unsafe fn read_host(from: HostPointer, bytes: &mut [u8]) {
    let from = std::ptr::with_exposed_provenance::<u8>(from.0 as usize);
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
}

impl Marks {
    /// No step is done.
    pub(super) fn reset(&self, streams: usize) {
        for stream in 0..streams {
            // SAFETY: the memory has a word for each stream, and none runs.
            unsafe { write_host(reached(self, stream), &[0; 4]) };
        }
    }

    /// The last step that a stream has done in this run; none where it has done none.
    pub(super) fn last(&self, stream: usize) -> Option<usize> {
        let word = std::ptr::with_exposed_provenance::<u32>(reached(self, stream).0 as usize);
        // SAFETY: a word of page-locked memory that a device may write at any time.
        let number = unsafe { std::ptr::read_volatile(word) };
        (number as usize).checked_sub(1)
    }
}

/// The numbers of `steps` steps, as they lie on a GPU.
pub(super) fn numbers(steps: usize) -> Vec<u8> {
    (1..=steps as u32).flat_map(u32::to_ne_bytes).collect()
}

/// A copy within the host, as work that a stream comes to.
///
/// # Safety
///
/// Whenever the stream comes to it, both have so many bytes of page-locked memory that do not overlap, and nobody else
/// writes them.
pub(super) unsafe fn host_copy(to: HostPointer, from: HostPointer, bytes: u64) -> HostWork {
    Arc::new(move || {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(to.0 as usize);
        let from = std::ptr::with_exposed_provenance::<u8>(from.0 as usize);
        // SAFETY: as the maker promises.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes as usize) }
    })
}
