//! Threads that share the work of one kernel.
//!
//! A [`Pool`] holds the threads of one physical device: its workers (one for each virtual device
//! on it) and helpers, as many as it has cores, less one. A kernel hands its work out in parts
//! ([`Team::each`]), on whose number no bit of the results depends; the worker takes parts one after
//! the other, and so do helpers while fewer threads work than there are cores: two virtual
//! devices that are both busy on two cores get no help, one alone gets it. Who takes a part
//! changes no bit of what it makes.
//!
//! A worker that waits for no part spins; a helper that finds none for a while sleeps.
//!
//! Holds `unsafe`: parts borrow from the worker's stack, and write disjoint parts of one slice.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// How often a helper looks for work before it sleeps: some tens of microseconds.
const LOOKS: usize = 20_000;

/// How often a worker looks whether its helpers are done before it lets others run.
const PATIENCE: usize = 2_000;

/// The work of one part. Its lifetime is that of the call that opened the job.
type Work = *const (dyn Fn(usize) + Sync);

/// What one worker offers to helpers.
struct Job {
    /// A team has it: one thread alone opens it.
    taken: AtomicBool,
    open: AtomicBool,
    /// Helpers that may be looking at the work.
    inside: AtomicUsize,
    next: AtomicUsize,
    parts: AtomicUsize,
    panicked: AtomicBool,
    work: UnsafeCell<Option<Work>>,
}

// SAFETY: `work` is written by the job's worker alone, while the job is closed and nobody is
// inside; helpers read it only while they are inside an open job. What it points to is `Sync`.
unsafe impl Sync for Job {}
// SAFETY: as above.
unsafe impl Send for Job {}

impl Job {
    fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            open: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            parts: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            work: UnsafeCell::new(None),
        }
    }

    /// The next part that nobody has taken.
    fn claim(&self) -> Option<usize> {
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        (part < self.parts.load(Ordering::Relaxed)).then_some(part)
    }
}

struct Shared {
    cores: usize,
    /// Threads that work, those of other pools on the device included.
    busy: Arc<AtomicUsize>,
    jobs: Vec<Job>,
    sleepers: AtomicUsize,
    shut_down: AtomicBool,
    lock: Mutex<()>,
    bell: Condvar,
}

impl Shared {
    fn has_idle_cores(&self) -> bool {
        self.busy.load(Ordering::Relaxed) < self.cores
    }

    /// What a helper does until the pool goes.
    fn help(&self) {
        let mut looks = 0;
        while !self.shut_down.load(Ordering::Acquire) {
            let mut worked = false;
            for job in &self.jobs {
                worked |= self.join(job);
            }
            looks = if worked { 0 } else { looks + 1 };
            // Spins for a while: the next kernel mostly follows soon, and waking a thread takes longer than many
            // kernels.
            if looks < LOOKS && self.has_idle_cores() {
                std::hint::spin_loop();
                continue;
            }
            looks = 0;
            self.sleep();
        }
    }

    /// Takes parts of a job, where it is open and a core is free. True where it took any.
    fn join(&self, job: &Job) -> bool {
        // A first look without ordering: helpers that find nothing are not to slow down those that work.
        if !job.open.load(Ordering::Relaxed) || !self.has_idle_cores() {
            return false;
        }
        let mut worked = false;
        // In this order, with `Opened::drop` in the opposite one: either this look sees the job closed, or the worker
        // waits.
        job.inside.fetch_add(1, Ordering::SeqCst);
        if job.open.load(Ordering::SeqCst) {
            // Two helpers may both have seen the last free core: only one of them takes it.
            if self.busy.fetch_add(1, Ordering::Relaxed) < self.cores {
                // SAFETY: the job is open and counts this thread as inside, so its worker waits in
                // `Opened::drop` before it writes `work` again or ends the closure's life.
                let work = unsafe { *job.work.get() };
                while let (Some(part), Some(work)) = (job.claim(), work) {
                    worked = true;
                    // SAFETY: as above.
                    let run = AssertUnwindSafe(|| unsafe { (*work)(part) });
                    if catch_unwind(run).is_err() {
                        job.panicked.store(true, Ordering::Relaxed);
                    }
                    // A worker has begun meanwhile: cores are not to be shared.
                    if self.busy.load(Ordering::Relaxed) > self.cores {
                        break;
                    }
                }
            }
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
        job.inside.fetch_sub(1, Ordering::Release);
        worked
    }

    fn sleep(&self) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // Counted before the look at the jobs: a worker that opens one later sees a sleeper and rings.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let open = self.jobs.iter().any(|job| job.open.load(Ordering::SeqCst));
        if !(open && self.has_idle_cores() || self.shut_down.load(Ordering::Acquire)) {
            drop(self.bell.wait(guard).unwrap_or_else(PoisonError::into_inner));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake(&self) {
        // Through the lock, so that no helper is between its last look and its sleep.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_all();
    }
}

/// The threads of one physical device. They end when it is dropped.
pub(in crate::run) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool for `workers` workers on `cores` cores. `begin` is called on each helper first.
    ///
    /// Error: the system gives no thread.
    #[cfg(any(feature = "cuda", test))]
    pub(in crate::run) fn new(
        workers: usize,
        cores: usize,
        begin: impl Fn() + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        Self::beside(Arc::default(), workers, cores, begin)
    }

    /// The same, beside other pools of the device: `busy` counts the threads of all of them that work.
    ///
    /// Error: the system gives no thread.
    pub(in crate::run) fn beside(
        busy: Arc<AtomicUsize>,
        workers: usize,
        cores: usize,
        begin: impl Fn() + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            cores: cores.max(1),
            busy,
            jobs: (0..workers).map(|_| Job::new()).collect(),
            sleepers: AtomicUsize::new(0),
            shut_down: AtomicBool::new(false),
            lock: Mutex::new(()),
            bell: Condvar::new(),
        });
        let mut pool = Self { shared, helpers: Vec::new() };
        for number in 1..cores {
            let (shared, begin) = (Arc::clone(&pool.shared), begin.clone());
            let run = move || {
                begin();
                shared.help();
            };
            let thread = std::thread::Builder::new().name(format!("helper {number}")).spawn(run)?;
            pool.helpers.push(thread);
        }
        Ok(pool)
    }

    /// The team of one worker, who works from now on, until it is dropped. Panics where there is
    /// no such worker, or it has a team already.
    pub(in crate::run) fn team(&self, worker: usize) -> Team<'_> {
        let job = &self.shared.jobs[worker];
        assert!(!job.taken.swap(true, Ordering::Acquire), "a worker has one team at a time");
        self.shared.busy.fetch_add(1, Ordering::Relaxed);
        Team { pool: Some((&*self.shared, job)), notes: None, one_worker: PhantomData }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shut_down.store(true, Ordering::Release);
        self.shared.wake();
        for thread in self.helpers.drain(..) {
            // Helpers catch panics of parts; there is nothing to report here.
            let _ = thread.join();
        }
    }
}

/// What a kernel hands out to threads, noted and not done.
pub(in crate::run) struct Notes {
    threads: usize,
    parts: Mutex<Vec<usize>>,
}

impl Notes {
    /// Of a kernel that so many threads share.
    pub(in crate::run) fn of(threads: usize) -> Self {
        Self { threads: threads.max(1), parts: Mutex::default() }
    }

    /// By call: how many parts it handed out since this was asked before.
    pub(in crate::run) fn take(&self) -> Vec<usize> {
        std::mem::take(&mut *self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A worker and the helpers that are free. Not shared between threads.
pub struct Team<'a> {
    pool: Option<(&'a Shared, &'a Job)>,
    /// Where parts are noted and not done.
    notes: Option<&'a Notes>,
    /// Keeps a team with one worker.
    one_worker: PhantomData<UnsafeCell<()>>,
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        if let Some((shared, job)) = self.pool {
            shared.busy.fetch_sub(1, Ordering::Relaxed);
            job.taken.store(false, Ordering::Release);
        }
    }
}

/// An open job, closed when it goes: no helper is inside any more.
struct Opened<'a>(&'a Job);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // Nobody takes a further part, where the worker ends early.
        self.0.next.fetch_add(usize::MAX / 2, Ordering::Relaxed);
        self.0.open.store(false, Ordering::SeqCst);
        let mut looks = 0;
        while self.0.inside.load(Ordering::SeqCst) > 0 {
            looks += 1;
            if looks < PATIENCE { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Team<'_> {
    /// Threads that may work on a kernel.
    pub(super) fn threads(&self) -> usize {
        self.pool.map_or(self.notes.map_or(1, |notes| notes.threads), |(shared, _)| shared.cores)
    }

    /// A worker without helpers.
    pub fn alone() -> Self {
        Self { pool: None, notes: None, one_worker: PhantomData }
    }

    /// A team that does nothing: what it is given is noted.
    pub(in crate::run) fn noting<'a>(notes: &'a Notes) -> Team<'a> {
        Team { pool: None, notes: Some(notes), one_worker: PhantomData }
    }

    /// Calls `work` once with each number below `parts`, in any order and on any thread of the
    /// team. Panics where a part does, when all are done.
    pub(super) fn each(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) {
        if let Some(notes) = self.notes {
            return notes.parts.lock().unwrap_or_else(PoisonError::into_inner).push(parts);
        }
        let (shared, job) = match self.pool {
            Some(pool) if parts > 1 && pool.0.cores > 1 => pool,
            _ => return (0..parts).for_each(work),
        };
        // SAFETY: only the lifetime changes. `opened` closes the job before this call ends, and
        // a closed job that nobody is inside is looked at by nobody.
        let unbound =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        // SAFETY: the job is closed and nobody is inside, and this worker alone opens it.
        unsafe { *job.work.get() = Some(unbound) };
        // Relaxed: helpers read them only after they have seen the job open.
        job.parts.store(parts, Ordering::Relaxed);
        job.next.store(0, Ordering::Relaxed);
        job.open.store(true, Ordering::SeqCst);
        let opened = Opened(job);
        if shared.sleepers.load(Ordering::SeqCst) > 0 && shared.has_idle_cores() {
            shared.wake();
        }
        while let Some(part) = job.claim() {
            work(part);
        }
        drop(opened);
        assert!(!job.panicked.swap(false, Ordering::Relaxed), "a part of a kernel panicked");
    }

    /// As [`Team::each`], with each run of `length` elements of a slice (the last may be shorter)
    /// and its number.
    pub(super) fn each_chunk<T: Send>(
        &self,
        slice: &mut [T],
        length: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        if slice.is_empty() {
            return;
        }
        let length = length.clamp(1, slice.len());
        let whole = Whole { pointer: slice.as_mut_ptr(), life: PhantomData };
        let count = slice.len();
        self.each(count.div_ceil(length), &|part| {
            let start = part * length;
            // SAFETY: `each` gives each number once, so these runs are disjoint, and they lie
            // within the slice, which is borrowed exclusively meanwhile.
            let run = unsafe { std::slice::from_raw_parts_mut(whole.at(start), length.min(count - start)) };
            work(part, run);
        });
    }

    /// As [`Team::each`], with each block of `rows` by `columns` elements of a matrix (those at
    /// the ends may be smaller), its first row and its first column.
    pub(super) fn each_block<T: Send>(
        &self,
        matrix: &mut MatrixMut<'_, T>,
        (rows, columns): (usize, usize),
        work: impl Fn(usize, usize, &mut MatrixMut<'_, T>) + Sync,
    ) {
        if matrix.rows == 0 || matrix.columns == 0 {
            return;
        }
        let (rows, columns) = (rows.clamp(1, matrix.rows), columns.clamp(1, matrix.columns));
        let down = matrix.rows.div_ceil(rows);
        let across = matrix.columns.div_ceil(columns);
        let whole = Whole { pointer: matrix.pointer, life: PhantomData };
        let (all, stride) = ((matrix.rows, matrix.columns), matrix.stride);
        self.each(down * across, &|part| {
            let (row, column) = (part % down * rows, part / down * columns);
            let mut block = MatrixMut {
                // SAFETY: the block's first element lies within the matrix.
                pointer: unsafe { whole.at(row * stride + column) },
                rows: rows.min(all.0 - row),
                columns: columns.min(all.1 - column),
                stride,
                life: PhantomData,
            };
            // Blocks of different parts are disjoint, and the matrix is borrowed exclusively.
            work(row, column, &mut block);
        });
    }

    /// As [`Team::each`], with each tile of some planes, and a slot of scratch memory that no
    /// other thread has meanwhile. There are as many parts as slots, each of neighbouring tiles.
    /// Panics where the planes are not as long as the slice.
    pub(super) fn each_tile<T: Send, U: Send>(
        &self,
        slice: &mut [T],
        planes: Planes,
        slots: Slots<'_, U>,
        work: impl Fn(Corner, &mut MatrixMut<'_, T>, &mut [U]) + Sync,
    ) {
        let Planes { count, rows, columns, tall, wide } = planes;
        let plane = rows.checked_mul(columns);
        assert!(plane.and_then(|plane| plane.checked_mul(count)) == Some(slice.len()));
        if slice.is_empty() {
            return;
        }
        let (down, across) = (rows.div_ceil(tall), columns.div_ceil(wide));
        let tiles = count * down * across;
        let parts = slots.count();
        assert!(parts > 0 || tiles == 0);
        let whole = Whole { pointer: slice.as_mut_ptr(), life: PhantomData };
        self.each_chunk(slots.memory, slots.each, |part, slot| {
            for tile in tiles * part / parts..tiles * (part + 1) / parts {
                let (plane, tile) = (tile / (down * across), tile % (down * across));
                let (row, column) = (tile % down * tall, tile / down * wide);
                let mut matrix = MatrixMut {
                    // SAFETY: the tile's first element lies within the slice.
                    pointer: unsafe { whole.at((plane * rows + row) * columns + column) },
                    rows: tall.min(rows - row),
                    columns: wide.min(columns - column),
                    stride: columns,
                    life: PhantomData,
                };
                // Tiles are disjoint, each is in one part, and the slice is borrowed exclusively.
                work(Corner { plane, row, column }, &mut matrix, slot);
            }
        });
    }

    /// As [`Team::each`], with the matrices of one number of several slices, that number, and a slot of
    /// scratch memory that no other thread has meanwhile. There are as many parts as slots.
    /// Panics where a slice does not hold its matrices, or has not as many as the others.
    pub(super) fn each_matrix<T: Send, U: Send, const N: usize>(
        &self,
        slices: [(&mut [T], Matrices); N],
        slots: Slots<'_, U>,
        work: impl Fn(usize, &mut [MatrixMut<'_, T>; N], &mut [U]) + Sync,
    ) {
        let Some(count) = slices.first().map(|(_, matrices)| matrices.count()) else { return };
        let wholes = slices.map(|(slice, matrices)| {
            let size = matrices.rows.checked_mul(matrices.columns);
            let all = size.and_then(|size| size.checked_mul(matrices.count()));
            assert!(all == Some(slice.len()) && matrices.count() == count);
            (Whole { pointer: slice.as_mut_ptr(), life: PhantomData }, matrices)
        });
        let parts = slots.count();
        assert!(parts > 0 || count == 0);
        self.each_chunk(slots.memory, slots.each, |part, slot| {
            for number in count * part / parts..count * (part + 1) / parts {
                let mut made = wholes.each_ref().map(|(whole, matrices)| {
                    let (start, stride) = matrices.start(number);
                    let empty = matrices.rows == 0 || matrices.columns == 0;
                    MatrixMut {
                        // SAFETY: the matrix' first element lies within the slice.
                        pointer: unsafe { whole.at(if empty { 0 } else { start }) },
                        rows: matrices.rows,
                        columns: matrices.columns,
                        stride,
                        life: PhantomData,
                    }
                });
                // Matrices of different numbers are disjoint, each number is in one part, and the slices
                // are borrowed exclusively.
                work(number, &mut made, slot);
            }
        });
    }
}

/// Scratch memory, a slot for each part of the work.
pub(super) struct Slots<'a, U> {
    pub(super) memory: &'a mut [U],
    /// Elements of a slot, by which the memory divides.
    pub(super) each: usize,
}

impl<U> Slots<'_, U> {
    fn count(&self) -> usize {
        assert!(
            self.memory.len().is_multiple_of(self.each),
            "a part of a slot would have a part of the work"
        );
        self.memory.len() / self.each
    }
}

/// Matrices of `rows` by `columns` elements in one slice, `inner` of them `outer` times: one after the
/// other, or `abreast`, so that the `inner` ones have their rows side by side.
#[derive(Clone, Copy)]
pub(super) struct Matrices {
    pub(super) outer: usize,
    pub(super) inner: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) abreast: bool,
}

impl Matrices {
    fn count(&self) -> usize {
        self.outer * self.inner
    }

    /// The first element of a matrix, and the elements from row to row.
    fn start(&self, number: usize) -> (usize, usize) {
        let size = self.rows * self.columns;
        match self.abreast {
            false => (number * size, self.columns),
            true => {
                let (outer, inner) = (number / self.inner, number % self.inner);
                (outer * self.inner * size + inner * self.columns, self.inner * self.columns)
            }
        }
    }
}

/// Planes of `rows` by `columns` elements, one after the other, in tiles of `tall` by `wide` (those at
/// the ends may be smaller).
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) count: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) tall: usize,
    pub(super) wide: usize,
}

/// The first element of a tile.
#[derive(Clone, Copy)]
pub(super) struct Corner {
    pub(super) plane: usize,
    pub(super) row: usize,
    pub(super) column: usize,
}

/// The first element of what parts write.
struct Whole<'a, T> {
    pointer: *mut T,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: threads reach through it disjoint parts alone, as its users see to.
unsafe impl<T: Send> Sync for Whole<'_, T> {}

impl<T> Whole<'_, T> {
    /// # Safety
    ///
    /// The element lies within what the pointer is of.
    unsafe fn at(&self, position: usize) -> *mut T {
        // SAFETY: as the caller promises.
        unsafe { self.pointer.add(position) }
    }
}

/// A matrix that is written: rows of contiguous elements, the same number from each to the next.
pub(super) struct MatrixMut<'a, T> {
    pointer: *mut T,
    pub(super) rows: usize,
    pub(super) columns: usize,
    stride: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<'a, T> MatrixMut<'a, T> {
    /// Panics where the matrix is not within the slice, or rows overlap.
    pub(super) fn new(slice: &'a mut [T], (rows, columns): (usize, usize), stride: usize) -> Self {
        if rows > 0 && columns > 0 {
            assert!(rows == 1 || stride >= columns);
            let last = (rows - 1).checked_mul(stride).and_then(|row| row.checked_add(columns));
            assert!(last.is_some_and(|last| last <= slice.len()));
        }
        Self { pointer: slice.as_mut_ptr(), rows, columns, stride, life: PhantomData }
    }

    /// All elements, where rows follow one another.
    pub(super) fn contiguous(&mut self) -> Option<&mut [T]> {
        let follow = self.stride == self.columns || self.rows <= 1;
        // SAFETY: the rows lie within what the matrix was made of, one after the other, and are this
        // matrix' alone.
        follow.then(|| unsafe { std::slice::from_raw_parts_mut(self.pointer, self.rows * self.columns) })
    }

    /// A row. Panics where there is none.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows);
        // SAFETY: the row lies within what the matrix was made of, and is this matrix' alone.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(row * self.stride), self.columns) }
    }

    /// Rows from one on. Panics where there are fewer.
    pub(super) fn rows_from<const N: usize>(&mut self, first: usize) -> [&mut [T]; N] {
        assert!(first + N <= self.rows);
        // SAFETY: rows of the matrix, as was just checked, which do not overlap.
        std::array::from_fn(|at| unsafe {
            std::slice::from_raw_parts_mut(self.pointer.add((first + at) * self.stride), self.columns)
        })
    }

    /// The block of `rows` by `columns` elements from a place on. Panics where it is not within.
    #[inline(always)]
    pub(super) fn block(
        &mut self,
        (row, column): (usize, usize),
        (rows, columns): (usize, usize),
    ) -> MatrixMut<'_, T> {
        assert!(row + rows <= self.rows && column + columns <= self.columns);
        let first = if rows == 0 || columns == 0 { 0 } else { row * self.stride + column };
        // SAFETY: within the matrix, whose exclusive borrow the block keeps.
        let pointer = unsafe { self.pointer.add(first) };
        MatrixMut { pointer, rows, columns, stride: self.stride, life: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_once_by_several_workers_at_a_time() {
        let pool = Pool::new(2, 4, || ()).unwrap();
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 1..200usize {
                        let team = pool.team(worker);
                        let mut found = vec![0usize; round * 7];
                        team.each_chunk(&mut found, 5, |part, run| {
                            run.iter_mut().enumerate().for_each(|(i, out)| *out += part * 5 + i + 1);
                        });
                        assert!(found.iter().enumerate().all(|(i, &x)| x == i + 1));
                    }
                });
            }
        });
        assert_eq!(pool.shared.busy.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn blocks_cover_a_matrix() {
        let pool = Pool::new(1, 3, || ()).unwrap();
        let team = pool.team(0);
        let mut elements = vec![0u32; 9 * 20];
        let mut matrix = MatrixMut::new(&mut elements, (9, 17), 20);
        team.each_block(&mut matrix, (4, 5), |row, column, block| {
            for r in 0..block.rows {
                for (c, out) in block.row(r).iter_mut().enumerate() {
                    *out += (100 * (row + r) + column + c + 1) as u32;
                }
            }
        });
        for (at, &x) in elements.iter().enumerate() {
            let (row, column) = (at / 20, at % 20);
            assert_eq!(x as usize, if column < 17 { 100 * row + column + 1 } else { 0 });
        }
    }

    #[test]
    fn a_part_that_panics_ends_the_call_and_not_the_pool() {
        let pool = Pool::new(1, 2, || ()).unwrap();
        let team = pool.team(0);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            team.each(64, &|part| assert!(part != 40));
        }));
        assert!(failed.is_err());
        let sum = AtomicUsize::new(0);
        team.each(10, &|part| {
            sum.fetch_add(part, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}
