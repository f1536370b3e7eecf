//! Work in windows of time: if a step takes no longer than some time, each node runs between its
//! head and its tail, so part of it falls into a window whatever the schedule; if the parts are
//! more than the engines can do in the window, no schedule is that short (Fernandez and Bussell,
//! "Bounds on the number of processors and time for multiprocessor optimal schedules", 1973; with
//! the engines' weights where they are unequal).

use std::ops::Range;

use serde_json::json;

use super::super::Objective;
use super::super::problem::{NONE, Problem};
use super::spans::Spans;
use super::work::Shares;
use super::{Certificate, Effort};
use crate::control::Control;
use crate::costgraph::NodeIx;

/// A window: from a point after the start of the step to a point before its end.
#[derive(Clone, Copy)]
struct TimeWindow {
    from: u64,
    before_end: u64,
}

/// A node of which some part must fall into windows.
struct Job {
    head: u64,
    tail: u64,
    /// Range of its ways.
    ways: (u32, u32),
}

/// The nodes with the ways to run each.
pub(super) struct Windows<'w> {
    shares: &'w Shares,
    spans: &'w Spans,
    jobs: Vec<Job>,
    /// (weight, time)
    ways: Vec<(u64, u64)>,
    /// Windows looked at: this many starts, and as many ends.
    grid: usize,
}

/// Rounds of looking at windows.
const ROUNDS: usize = 4;

impl<'w> Windows<'w> {
    /// O(nodes x kinds).
    pub(super) fn new(problem: &Problem<'_>, shares: &'w Shares, spans: &'w Spans) -> Self {
        let kinds = problem.sets().iter().map(|set| {
            let mut kinds: Vec<(usize, u64)> =
                set.iter().map(|id| (problem.kinds[id.index()], shares.weights[id.index()])).collect();
            kinds.sort_unstable();
            kinds.dedup_by_key(|way| way.0);
            kinds
        });
        let kinds: Vec<Vec<(usize, u64)>> = kinds.collect();
        let (mut jobs, mut ways) = (Vec::new(), Vec::new());
        for node in (0..problem.unit_of.len()).filter(|&node| problem.unit_of[node] != NONE) {
            let start = ways.len();
            for &(kind, weight) in &kinds[problem.set_of(problem.unit_of[node] as usize)] {
                let time = problem.graph.time(NodeIx(node as u32), kind);
                ways.extend(time.map(|time| (weight, time.get())));
            }
            // What takes no time somewhere need not fall into any window.
            if ways[start..].iter().any(|&(_, time)| time == 0) {
                ways.truncate(start);
            }
            if ways.len() > start {
                let ways = (start as u32, ways.len() as u32);
                jobs.push(Job { head: spans.heads[node], tail: spans.tails[node], ways });
            }
        }
        let looks: u64 = match problem.options.effort {
            Effort::Fast => 1 << 17,
            Effort::Default => 1 << 26,
            Effort::Best => 1 << 29,
        };
        // A round looks at grid^2 windows, each with all ways.
        let grid = (looks / (ROUNDS * ways.len().max(1)) as u64).isqrt().min(96) as usize;
        Self { shares, spans, jobs, ways, grid }
    }

    /// The certificate of the highest bound found above `known` and not above `incumbent`. Rounds
    /// look at windows all over the step and around the tightest one in turn.
    pub(super) fn certificate(
        &self,
        known: u64,
        incumbent: u64,
        control: &Control<'_>,
    ) -> Option<Certificate> {
        let froms = distinct(self.jobs.iter().map(|job| job.head));
        let ends = distinct(self.jobs.iter().map(|job| job.tail));
        let (mut value, mut best) = (known, None);
        let mut around = None;
        for _ in 0..ROUNDS {
            let starts = self.sampled(&froms, around.map(|window: TimeWindow| window.from));
            let stops = self.sampled(&ends, around.map(|window| window.before_end));
            let mut tightest: Option<(i128, TimeWindow)> = None;
            for &from in &starts {
                if control.stopped() {
                    return best;
                }
                for &before_end in &stops {
                    let window = TimeWindow { from, before_end };
                    if let Some(excess) = self.excess(window, value)
                        && tightest.is_none_or(|(other, _)| excess > other)
                    {
                        tightest = Some((excess, window));
                    }
                }
            }
            let Some((excess, window)) = tightest else { break };
            around = around.is_none().then_some(window);
            if excess > 0 {
                value = self.longest(window, value, incumbent - 1) + 1;
                best = Some(self.written(window, value));
            }
            if value == incumbent {
                break;
            }
        }
        best
    }

    /// Some of the ascending values: evenly all over, or evenly near one of them.
    fn sampled(&self, values: &[u64], around: Option<u64>) -> Vec<u64> {
        let stride = values.len().div_ceil(self.grid.max(1)).max(1);
        let range = match around.and_then(|value| values.binary_search(&value).ok()) {
            Some(at) => at.saturating_sub(stride)..(at + stride).min(values.len()),
            None => 0..values.len(),
        };
        let count = self.grid.min(range.len());
        (0..count).map(|i| values[range.start + i * range.len() / count]).collect()
    }

    /// The longest step up to `most` for which the window is too small; it is for `least`.
    fn longest(&self, window: TimeWindow, least: u64, most: u64) -> u64 {
        let (mut fails, mut open) = (least, most);
        while fails < open {
            let middle = fails + (open - fails).div_ceil(2);
            if self.excess(window, middle).is_some_and(|excess| excess > 0) {
                fails = middle;
            } else {
                open = middle - 1;
            }
        }
        fails
    }

    /// By how much the weighted work that must fall into the window is more than fits, if a step
    /// takes `length`; none where there is no such window.
    fn excess(&self, window: TimeWindow, length: u64) -> Option<i128> {
        let until = length.checked_sub(window.before_end).filter(|&until| until > window.from)?;
        let capacity = self.shares.total.saturating_mul((until - window.from).into());
        let mut sum = 0u128;
        for job in &self.jobs {
            let latest = length.saturating_sub(job.tail);
            if job.head >= until || latest <= window.from {
                continue;
            }
            let ways = &self.ways[job.ways.0 as usize..job.ways.1 as usize];
            let part = |&(weight, time): &(u64, u64)| {
                u128::from(weight) * u128::from(overlap(time, job.head..latest, window.from..until))
            };
            sum = sum.saturating_add(ways.iter().map(part).min().unwrap_or(0));
        }
        Some(
            i128::try_from(sum)
                .unwrap_or(i128::MAX)
                .saturating_sub(i128::try_from(capacity).unwrap_or(i128::MAX)),
        )
    }

    fn written(&self, window: TimeWindow, value: u64) -> Certificate {
        let data = self.spans.written(json!({
            "weights": self.shares.weights,
            "from": window.from,
            "until": (value - 1).saturating_sub(window.before_end),
        }));
        Certificate { objective: Objective::Latency, value, proof: "windows", data }
    }
}

/// The least part that falls into a window of what takes `time` somewhere within a span. Where
/// the span is shorter than the time, there is no such schedule, and any part is right.
fn overlap(time: u64, span: Range<u64>, window: Range<u64>) -> u64 {
    let early = span.start.saturating_add(time).saturating_sub(window.start);
    let late = window.end.saturating_sub(span.end.saturating_sub(time));
    time.min(window.end - window.start).min(early).min(late)
}

/// The distinct values, ascending.
fn distinct(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.dedup();
    values
}
