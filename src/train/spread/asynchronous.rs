//! Replicas that do not wait for one another: each computes a gradient with the parameters that it
//! took last, while others have updated them (Downpour: Dean et al. 2012; stale-synchronous: Ho et al.
//! 2013).
//!
//! Who is done next is decided by a logical clock: a worker's turn takes the planned time of its step, more
//! or less by up to a half, drawn from the seed. So a run is the same on every machine and for any number
//! of threads, and a checkpoint needs to know no more of the clock than how many turns there were. Turns
//! of different workers are computed at once (see `turns`).

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::random::first;

/// What becomes of a gradient that is staler than the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stale {
    /// Nothing.
    #[default]
    Drop,
    /// It counts less: by the bound over how stale it is, each counted from 1.
    Scale,
}

impl FromStr for Stale {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "drop" => Ok(Self::Drop),
            "scale" => Ok(Self::Scale),
            _ => {
                Err(Error::usage(format!("--stale {text}"), "there is no such way").with_help("drop, scale"))
            }
        }
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drop => "drop",
            Self::Scale => "scale",
        })
    }
}

/// How workers train without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Async {
    /// Workers, each on a device of its own.
    pub workers: usize,
    /// Updates that others may make between a worker's taking the parameters and its gradient.
    pub staleness: u64,
    /// What becomes of gradients that are staler.
    pub stale: Stale,
    /// So many steps at the start are done by the first worker alone.
    pub warm_up: u64,
}

/// A worker's turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Turn {
    pub(crate) worker: usize,
    /// What its gradient counts; none where it is dropped.
    pub(crate) factor: Option<f64>,
    /// Warm-up ends with this turn: all workers take the parameters.
    pub(crate) starts_all: bool,
}

/// Who is done when, and with which parameters.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    options: Async,
    seed: u64,
    /// Turns so far.
    turns: u64,
    /// Updates so far.
    version: u64,
    /// By worker: when its turn is over, and of which version its parameters are.
    workers: Vec<(u64, u64)>,
}

/// Units of logical time that a turn takes, about.
const TURN: u64 = 1 << 16;

impl Clock {
    pub(crate) fn new(options: Async, seed: u64) -> Self {
        let mut clock = Self { options, seed, turns: 0, version: 0, workers: vec![(0, 0); options.workers] };
        (0..options.workers).for_each(|worker| clock.begin(worker, 0));
        clock
    }

    /// As it stands after so many turns. O(turns).
    pub(crate) fn after(options: Async, seed: u64, turns: u64) -> Self {
        let mut clock = Self::new(options, seed);
        (0..turns).for_each(|_| {
            clock.next();
        });
        clock
    }

    /// A worker's next turn begins at a time.
    fn begin(&mut self, worker: usize, at: u64) {
        let drawn = first(self.seed ^ first(worker as u64 ^ first(self.turns))) % TURN;
        self.workers[worker] = (at + TURN / 2 + drawn, self.version);
    }

    /// The turn that is over next, and what its gradient counts.
    pub(crate) fn next(&mut self) -> Turn {
        let warm = self.turns < self.options.warm_up;
        let count = if warm { 1 } else { self.workers.len() };
        let worker = (0..count).min_by_key(|&worker| self.workers[worker].0).unwrap_or(0);
        let (now, version) = self.workers[worker];
        let late = self.version - version;
        let factor = match self.options.stale {
            _ if late <= self.options.staleness => Some(1.0),
            Stale::Drop => None,
            Stale::Scale => Some((self.options.staleness + 1) as f64 / (late + 1) as f64),
        };
        self.version += u64::from(factor.is_some());
        self.turns += 1;
        let starts_all = warm && self.turns == self.options.warm_up;
        match starts_all {
            true => (0..self.workers.len()).for_each(|worker| self.begin(worker, now)),
            false => self.begin(worker, now),
        }
        Turn { worker, factor, starts_all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(options: Async, seed: u64) -> Vec<Turn> {
        let mut clock = Clock::new(options, seed);
        (0..200).map(|_| clock.next()).collect()
    }

    #[test]
    fn the_clock_is_that_of_its_seed_and_goes_on_from_any_turn() {
        let options = Async { workers: 4, staleness: 3, stale: Stale::Scale, warm_up: 10 };
        let all = turns(options, 7);
        assert_eq!(all, turns(options, 7));
        assert_ne!(all, turns(options, 8));
        let mut later = Clock::after(options, 7, 90);
        assert!(all[90..].iter().all(|turn| *turn == later.next()));
        assert!(all[..10].iter().all(|turn| turn.worker == 0 && turn.factor == Some(1.0)));
        assert!(all[9].starts_all && all.iter().filter(|turn| turn.starts_all).count() == 1);
        // Nobody takes more than three turns, of half a unit, while another takes one of one and a half.
        assert!((0..4).all(|worker| all[10..].iter().filter(|turn| turn.worker == worker).count() > 30));
    }

    #[test]
    fn gradients_that_are_too_stale_are_dropped_or_count_less() {
        let strict = Async { workers: 4, staleness: 1, stale: Stale::Drop, warm_up: 0 };
        let dropped = turns(strict, 1).iter().filter(|turn| turn.factor.is_none()).count();
        assert!(dropped > 20 && dropped < 180, "{dropped}");
        let scaled = turns(Async { stale: Stale::Scale, ..strict }, 1);
        assert!(scaled.iter().any(|turn| turn.factor == Some(0.5)));
        assert!(scaled.iter().all(|turn| turn.factor.is_some_and(|factor| factor > 0.0 && factor <= 1.0)));
        let loose = turns(Async { staleness: 100, ..strict }, 1);
        assert!(loose.iter().all(|turn| turn.factor == Some(1.0)));
        let alone = turns(Async { workers: 1, staleness: 0, ..strict }, 1);
        assert!(alone.iter().all(|turn| turn.factor == Some(1.0)));
    }
}
