//! Devices of the CPU in a plan with GPUs: their groups run where a stream comes to them, on arenas of
//! page-locked memory.
//!
//! Contains `unsafe`: arenas in the driver's memory, and the groups that run on them.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::arena::{Arena, Range};
use super::super::cpu::{self, Pool};
use super::super::group::{Bound, Compiled, Scratch, registers};
use super::driver::{HostPointer, HostWork};
use crate::error::{Error, Result};

/// What the host runs of a plan.
pub(super) struct Host {
    groups: Arc<Vec<Compiled>>,
    /// By device: its arena, where it is one of the CPU.
    arenas: Vec<Option<Arena>>,
    pool: Pool,
    registers: usize,
    failure: Mutex<Option<Error>>,
}

/// A group on a device of the CPU.
pub(super) struct Task {
    pub(super) group: usize,
    pub(super) device: usize,
    pub(super) reads: Box<[Range]>,
    pub(super) writes: Box<[Range]>,
    pub(super) workspace: Range,
    /// What the step is called in messages.
    pub(super) place: String,
}

impl Host {
    /// `arenas`: by device, the driver's page-locked memory and its length where the device is one of the
    /// CPU. It is given back after the last stream has ended.
    ///
    /// Error: the system gives no threads.
    pub(super) fn new(
        groups: Arc<Vec<Compiled>>,
        arenas: &[Option<(HostPointer, u64)>],
        cores: usize,
    ) -> Result<Self> {
        let registers = registers(&groups);
        let pool = Pool::new(arenas.len().max(1), cores, move || cpu::prepare(registers))
            .map_err(|error| Error::run("", format!("no threads for devices of the CPU: {error}")))?;
        let arena = |place: &Option<(HostPointer, u64)>| {
            let (pointer, length) = (*place)?;
            let pointer = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(pointer.0 as usize))?;
            // SAFETY: the driver gave so many zeroed bytes, page by page; the steps of a checked plan are all
            // that uses them.
            Some(unsafe { Arena::lent(pointer, length as usize) })
        };
        Ok(Self {
            arenas: arenas.iter().map(arena).collect(),
            groups,
            pool,
            registers,
            failure: Mutex::new(None),
        })
    }

    /// What a stream does to run a group.
    pub(super) fn work(self: &Arc<Self>, task: Task) -> HostWork {
        let host = Arc::clone(self);
        Arc::new(move || {
            if let Err(error) = host.run(&task) {
                host.lock_failure().get_or_insert(error.within(&task.place));
            }
        })
    }

    fn run(&self, task: &Task) -> Result<()> {
        let arena = self.arenas.get(task.device).and_then(Option::as_ref);
        let arena = arena.ok_or_else(|| Error::Internal("a device of the CPU has no arena".to_owned()))?;
        // The driver's own threads come here.
        cpu::prepare(self.registers);
        let team = self.pool.team(task.device);
        let bound =
            Bound { team: &team, arena, reads: &task.reads, writes: &task.writes, workspace: task.workspace };
        let mut scratch = Scratch::default();
        // SAFETY: the ranges were made for this arena with the group's sizes and checked for overlap, and
        // streams and events keep the order that the plan's check proved. One stream runs the device's
        // groups, one after the other.
        let run = || unsafe { self.groups[task.group].run(&bound, &mut scratch) };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err(Error::run("", "a kernel panicked")))
    }

    /// The first failure since the last call.
    pub(super) fn failure(&self) -> Option<Error> {
        self.lock_failure().take()
    }

    fn lock_failure(&self) -> std::sync::MutexGuard<'_, Option<Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
