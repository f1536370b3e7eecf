//! The caller's hand on a long computation: threads, memory, cancellation, a time limit, progress.
//!
//! None of it changes a result that was computed in full: jobs are numbered, and their results
//! come back by number whatever the threads did. Only a computation that was stopped (by the
//! caller or by the limit) gives less, and says so by [`Control::was_truncated`].

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::units::Bytes;

/// Bytes of tables of jobs that are done side by side where the caller sets no limit: searches of graphs of a million nodes
/// take 300 MB each and go one after the other, those of a hundred thousand take a tenth.
const SIDE_BY_SIDE: u64 = 512 << 20;

/// How far a computation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'p> {
    /// What is being done, in a word or two.
    pub stage: &'p str,
    /// Parts done.
    pub done: usize,
    /// Parts there are.
    pub total: usize,
}

/// How good the best plan was at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The time since the caller's [`Control`] was made.
    pub after: Duration,
    /// What its objective comes to: bytes, or nanoseconds.
    pub value: u64,
    /// What was proven by then: no plan has less.
    pub bound: Option<u64>,
}

impl Mark {
    /// 1 - bound/value; 1 where nothing is proven.
    pub fn gap(&self) -> f64 {
        match (self.value, self.bound) {
            (0, _) => 0.0,
            (value, Some(bound)) => 1.0 - bound as f64 / value as f64,
            (_, None) => 1.0,
        }
    }
}

/// The curve of a search.
#[derive(Debug, Default)]
struct Curve {
    /// After each effort.
    marks: Vec<Mark>,
    /// Within the effort that goes on or was the last: values that fall.
    within: Vec<Mark>,
    /// Within the efforts before, and their marks.
    earlier: Vec<Mark>,
    /// Whether values within efforts are those of other plans than the marks': they are not noted.
    is_foreign: bool,
}

impl Curve {
    /// What a value within an effort must be less than to be noted, where the last one noted was `value`.
    fn noted_below(&self, value: Option<u64>) -> u64 {
        match self.is_foreign {
            true => 0,
            false => value.map_or(u64::MAX, |value| value - value / NOTED),
        }
    }
}

/// A value within an effort is noted where it is so much less than the last one noted: a part of that.
const NOTED: u64 = 1_000;

/// When a control was made.
#[derive(Clone, Copy, Debug)]
struct Began(Instant);

impl Default for Began {
    fn default() -> Self {
        Self(Instant::now())
    }
}

/// Hears of progress; called from any thread.
type Listener<'c> = &'c (dyn Fn(Progress<'_>) + Sync);

/// What the caller allows and wants to hear.
///
/// ```
/// use partition::Control;
/// let squares = Control::new().threads(2).map(4, |job| job * job);
/// assert_eq!(squares, [0, 1, 4, 9]);
/// ```
#[derive(Default)]
pub struct Control<'c> {
    threads: Option<usize>,
    cancel: Option<&'c AtomicBool>,
    deadline: Option<Instant>,
    memory: Option<Bytes>,
    listener: Option<Listener<'c>>,
    truncated: AtomicBool,
    began: Began,
    curve: Mutex<Curve>,
    /// Values within an effort are noted only below this one.
    below: AtomicU64,
    /// Threads beside the caller's that are at work for [`Control::map`].
    helpers: AtomicUsize,
    /// How many threads are imagined, where that is asked for.
    imagined: Option<Imagined>,
}

/// Threads that there are not, by a clock of what one thread works.
#[derive(Debug)]
struct Imagined {
    threads: usize,
    clock: fn() -> Duration,
    /// What they would have saved so far.
    saved: Mutex<Duration>,
}

impl Imagined {
    /// Replaces what was saved, and gives what it was.
    fn replace(&self, saved: Duration) -> Duration {
        std::mem::replace(&mut *self.saved.lock().unwrap_or_else(PoisonError::into_inner), saved)
    }

    /// Does jobs one after the other, and adds what it would save to do so many of them `at_once`: each goes to the thread
    /// that is idle first. A job's own jobs are taken to find all threads idle, so that too much is saved and not too little.
    fn each(&self, at_once: usize, jobs: usize, job: &dyn Fn(usize)) {
        let before = self.replace(Duration::ZERO);
        let mut idle_from = vec![Duration::ZERO; at_once.min(self.threads)];
        let mut worked = Duration::ZERO;
        for number in 0..jobs {
            let start = (self.clock)();
            job(number);
            let took = (self.clock)().saturating_sub(start);
            worked += took;
            let own = took.saturating_sub(self.replace(Duration::ZERO));
            if let Some(first) = idle_from.iter_mut().min() {
                *first += own;
            }
        }
        let last = idle_from.into_iter().max().unwrap_or_default();
        self.replace(before + worked.saturating_sub(last));
    }
}

impl std::fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("threads", &self.threads)
            .field("deadline", &self.deadline)
            .field("memory", &self.memory)
            .field("truncated", &self.truncated)
            .finish_non_exhaustive()
    }
}

impl<'c> Control<'c> {
    /// As many threads as the machine has cores, no limit, nobody listening.
    pub fn new() -> Self {
        Self::default()
    }

    /// At most this many threads, at least one.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Works on the caller's thread alone, and counts what so many threads would save of the time that `clock` tells:
    /// see [`Control::saved`].
    #[must_use]
    pub fn imagine(mut self, threads: usize, clock: fn() -> Duration) -> Self {
        self.imagined = Some(Imagined { threads: threads.max(1), clock, saved: Mutex::default() });
        self
    }

    /// What the threads of [`Control::imagine`] would have saved so far, about and at most.
    pub fn saved(&self) -> Duration {
        let saved = |imagined: &Imagined| *imagined.saved.lock().unwrap_or_else(PoisonError::into_inner);
        self.imagined.as_ref().map_or(Duration::ZERO, saved)
    }

    /// Stops soon after `cancel` turns true.
    #[must_use]
    pub fn cancel(mut self, cancel: &'c AtomicBool) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Stops soon after this much time from now.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.deadline = Instant::now().checked_add(limit);
        self
    }

    /// Keeps the tables of the search, beside the graph and the plan, to about this many bytes:
    /// fewer of its parts work at once, and what would take more by itself is left out.
    #[must_use]
    pub fn memory(mut self, limit: Bytes) -> Self {
        self.memory = Some(limit);
        self
    }

    /// Tells `listener` how far the work is.
    #[must_use]
    pub fn progress(mut self, listener: Listener<'c>) -> Self {
        self.listener = Some(listener);
        self
    }

    /// True where the work is to end with what it has. To be asked only where there is work left:
    /// a yes marks the result as truncated. About 30 ns; ask once in some thousand steps.
    pub fn stopped(&self) -> bool {
        let cancelled = self.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed));
        let stopped = cancelled || self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if stopped {
            self.truncated.store(true, Ordering::Relaxed);
        }
        stopped
    }

    /// True where tables of so many bytes may be made. To be asked only where they would be: a no
    /// marks the result as truncated.
    pub fn affords(&self, tables: u64) -> bool {
        let affords = self.memory.is_none_or(|limit| tables <= limit.get());
        if !affords {
            self.truncated.store(true, Ordering::Relaxed);
        }
        affords
    }

    /// True where something was left out because of a limit or the caller.
    pub fn was_truncated(&self) -> bool {
        self.truncated.load(Ordering::Relaxed)
    }

    /// Notes how good the best plan is by now: another effort has ended.
    pub(crate) fn mark(&self, value: u64, bound: Option<u64>) {
        let mark = Mark { after: self.began.0.elapsed(), value, bound };
        let mut curve = self.curve();
        // What was found and is no plan's value in the end, was none's on the way either.
        let within = std::mem::take(&mut curve.within);
        curve.earlier.extend(within.into_iter().filter(|found| found.value >= value));
        curve.earlier.push(mark);
        curve.marks.push(mark);
        self.below.store(curve.noted_below(Some(value)), Ordering::Relaxed);
    }

    /// Notes what the objective comes to for a plan that was found, before the effort has ended. To be told of all: only
    /// what is less than before is noted.
    pub(crate) fn found(&self, value: u64) {
        if value >= self.below.load(Ordering::Relaxed) {
            return;
        }
        let mut curve = self.curve();
        // Another thread may have noted less meanwhile.
        if value < self.below.load(Ordering::Relaxed) {
            let bound = curve.marks.last().and_then(|mark| mark.bound);
            curve.within.push(Mark { after: self.began.0.elapsed(), value, bound });
            self.below.store(curve.noted_below(Some(value)), Ordering::Relaxed);
        }
    }

    /// Forgets what was found within this effort: none of it is a plan.
    pub(crate) fn refused(&self) {
        let mut curve = self.curve();
        curve.within.clear();
        let least = curve.marks.iter().map(|mark| mark.value).min();
        self.below.store(curve.noted_below(least), Ordering::Relaxed);
    }

    /// Another search begins. Values within its efforts are noted where they are `comparable` with those of its plans.
    pub(crate) fn forget(&self, comparable: bool) {
        let mut curve = self.curve();
        *curve = Curve { is_foreign: !comparable, ..Curve::default() };
        self.below.store(curve.noted_below(None), Ordering::Relaxed);
    }

    fn curve(&self) -> MutexGuard<'_, Curve> {
        self.curve.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How good the best plan of the last search was after each of its efforts.
    pub fn marks(&self) -> Vec<Mark> {
        self.curve().marks.clone()
    }

    /// How good the best plan of the last search was over time, within efforts too: values that never rise.
    pub fn progress_made(&self) -> Vec<Mark> {
        let curve = self.curve();
        curve.earlier.iter().chain(&curve.within).copied().collect()
    }

    /// Tells the listener, where there is one.
    pub fn report(&self, stage: &str, done: usize, total: usize) {
        if let Some(listener) = self.listener {
            listener(Progress { stage, done, total });
        }
    }

    /// Threads that may work at once.
    pub fn thread_count(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Results of `jobs` independent jobs, by number, computed by at most
    /// [`Control::thread_count`] threads. Jobs may call it again: all calls together have no more threads,
    /// and a call that finds none idle does its jobs itself. A job that panics panics here.
    pub fn map<T: Send>(&self, jobs: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
        self.map_each(0, jobs, job)
    }

    /// As [`Control::map`], where each job makes tables of so many bytes: no more of them at once than
    /// the memory affords (512 MiB where nothing is said), but always one.
    pub fn map_each<T: Send>(&self, tables: u64, jobs: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let limit = self.memory.map_or(SIDE_BY_SIDE, Bytes::get);
        let affordable = limit / tables.max(1);
        let at_once = usize::try_from(affordable).unwrap_or(usize::MAX).max(1).min(jobs);
        let done: Vec<Mutex<Option<T>>> = (0..jobs).map(|_| Mutex::new(None)).collect();
        self.each(at_once, jobs, &|number| {
            let result = job(number);
            *done[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        });
        let result = |slot: Mutex<Option<T>>| slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.into_iter().filter_map(result).collect()
    }

    /// Does jobs, so many of them `at_once` where threads are idle. Not generic, so that threads are compiled once.
    fn each(&self, at_once: usize, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        if let Some(imagined) = self.imagined.as_ref().filter(|_| jobs > 0) {
            return imagined.each(at_once, jobs, job);
        }
        let helpers = self.hire(at_once.saturating_sub(1));
        if helpers.is_empty() {
            return (0..jobs).for_each(job);
        }
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                match next.fetch_add(1, Ordering::Relaxed) {
                    number if number < jobs => job(number),
                    _ => break,
                }
            }
        };
        std::thread::scope(|scope| {
            for helper in helpers {
                scope.spawn(move || {
                    work();
                    drop(helper);
                });
            }
            work();
        });
    }

    /// As many helpers as are wanted and idle.
    fn hire(&self, wanted: usize) -> Vec<Helper<'_>> {
        let most = self.thread_count() - 1;
        let hire = |hired: usize| (hired < most).then_some(hired + 1);
        let one = |_| self.helpers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, hire);
        (0..wanted.min(most)).map_while(|number| one(number).ok().map(|_| Helper(&self.helpers))).collect()
    }
}

/// A thread at work, idle again when this is dropped.
struct Helper<'c>(&'c AtomicUsize);

impl Drop for Helper<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_falls_and_ends_at_the_plans() {
        let control = Control::new();
        let values =
            || control.progress_made().iter().map(|mark| (mark.value, mark.bound)).collect::<Vec<_>>();
        control.forget(true);
        for value in [9_000, 9_500, 8_999, 7_000, 5_000] {
            control.found(value);
        }
        // The last was no plan's.
        control.mark(6_000, Some(3_000));
        assert_eq!(values(), [(9_000, None), (7_000, None), (6_000, Some(3_000))]);
        [6_500, 5_500].iter().for_each(|&value| control.found(value));
        control.refused();
        control.found(5_800);
        control.mark(5_800, Some(4_000));
        let all =
            [(9_000, None), (7_000, None), (6_000, Some(3_000)), (5_800, Some(3_000)), (5_800, Some(4_000))];
        assert_eq!(values(), all);
        assert_eq!(control.marks().len(), 2);
        control.forget(false);
        control.found(1);
        assert_eq!(values(), []);
        // That holds for the whole search, not for its first effort.
        control.mark(6_000, None);
        control.found(1);
        control.refused();
        control.found(1);
        assert_eq!(values(), [(6_000, None)]);
    }

    #[test]
    fn results_come_back_by_number_on_any_number_of_threads() {
        let expected: Vec<usize> = (0..100).map(|job| job * 7).collect();
        for threads in [1, 2, 4, 200] {
            assert_eq!(Control::new().threads(threads).map(100, |job| job * 7), expected);
        }
    }

    #[test]
    fn imagined_threads_take_the_jobs_that_real_ones_would() {
        /// A clock that only jobs move.
        static NOW: AtomicU64 = AtomicU64::new(0);
        let clock = || Duration::from_secs(NOW.load(Ordering::Relaxed));
        let work = |seconds: u64| _ = NOW.fetch_add(seconds, Ordering::Relaxed);
        for (threads, last) in [(1, 34), (2, 22), (3, 20), (100, 20)] {
            NOW.store(0, Ordering::Relaxed);
            let control = Control::new().imagine(threads, clock);
            // Jobs of 10, 1 + 2 x 2 and 9 s, then 10 s that nobody shares.
            let inner = |number: usize| {
                work([10, 1, 9][number]);
                control.map(2 * usize::from(number == 1), |_| work(2));
            };
            control.map(3, inner);
            work(10);
            assert_eq!(clock() - control.saved(), Duration::from_secs(last), "{threads} threads");
        }
    }

    #[test]
    fn jobs_that_have_jobs_take_no_more_threads() {
        for threads in [1, 2, 3, 8] {
            let (control, most) = (Control::new().threads(threads), AtomicUsize::new(0));
            let working = AtomicUsize::new(0);
            let inner = |number: usize| {
                most.fetch_max(working.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(200));
                working.fetch_sub(1, Ordering::SeqCst);
                number
            };
            let outer = |number: usize| control.map(5, |part| inner(5 * number + part));
            let found: Vec<usize> = control.map(6, outer).into_iter().flatten().collect();
            assert_eq!(found, (0..30).collect::<Vec<_>>());
            assert!(most.load(Ordering::SeqCst) <= threads);
            assert_eq!(control.helpers.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn a_stop_marks_the_result_as_truncated() {
        let cancel = AtomicBool::new(false);
        let control = Control::new().cancel(&cancel);
        assert!(!control.stopped() && !control.was_truncated());
        cancel.store(true, Ordering::Relaxed);
        assert!(control.stopped() && control.was_truncated());
        let limited = Control::new().time_limit(Duration::ZERO);
        assert!(limited.stopped() && limited.was_truncated());
    }

    #[test]
    fn memory_bounds_how_much_is_done_at_once() {
        let (working, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let job = |job: usize| {
            most.fetch_max(working.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
            working.fetch_sub(1, Ordering::SeqCst);
            job
        };
        for (limit, expected) in [(1_000, 1), (2_500, 2)] {
            most.store(0, Ordering::SeqCst);
            let control = Control::new().threads(8).memory(Bytes(limit));
            assert_eq!(control.map_each(1_000, 20, job), (0..20).collect::<Vec<_>>());
            assert!(most.load(Ordering::SeqCst) <= expected);
            assert!(control.affords(limit) && !control.was_truncated());
            assert!(!control.affords(limit + 1) && control.was_truncated());
        }
    }

    #[test]
    fn progress_reaches_the_listener() {
        let heard = Mutex::new(Vec::new());
        let listener = |progress: Progress<'_>| {
            heard.lock().unwrap().push((progress.stage.to_owned(), progress.done, progress.total));
        };
        Control::new().progress(&listener).report("placing", 2, 5);
        assert_eq!(*heard.lock().unwrap(), [("placing".to_owned(), 2, 5)]);
    }
}
