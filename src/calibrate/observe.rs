//! From the reports of a plan's steps to the times of its kernels, copies and launches.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::merged;
use crate::cost::{CopyTime, KernelTime, Profile};
use crate::error::Result;
use crate::plan::{Action, Lane, Plan};
use crate::run::RunReport;
use crate::units::{Bytes, Nanos};

/// Puts the medians over `reports` into the profile: of each kernel the mean over its launches, of
/// copies of one size likewise, and of launches what passes from one to the next on a device that
/// does not wait. O(reports x (steps + dependencies) log reports).
///
/// Errors: none where the reports are the plan's own.
pub(super) fn observe(plan: &Plan, reports: &[RunReport], profile: &mut Profile) -> Result<()> {
    let seen = Seen::new(plan);
    let kinds = plan.topology.kind_keys();
    let devices = plan.topology.by_name();
    let mut kernels: BTreeMap<(&str, u64), (&str, Mean)> = BTreeMap::new();
    let mut copies: BTreeMap<(&str, Bytes), Mean> = BTreeMap::new();
    let mut gaps: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut cores: BTreeMap<&str, Option<u32>> = BTreeMap::new();
    for (position, step) in plan.steps.iter().enumerate() {
        let Some(&device) = devices.get(&*step.device) else { continue };
        // Copies and kernels of devices of a kind are those of its plain name: cores do not differ.
        let kind = plain(&kinds[device.index()]);
        let own = Some(plan.topology.cores(device));
        let all = cores.entry(kind).or_insert(own);
        *all = all.filter(|_| *all == own);
        match &step.action {
            Action::Launch(launch) => {
                let kernel = launch.kernel.as_deref().and_then(|id| seen.kernels.get(id));
                let Some(&(hash, hero)) = kernel else { continue };
                let time = median(reports.iter().map(|report| {
                    let (start, end) = report.steps[position];
                    length(start, end)
                }));
                kernels.entry((kind, hash)).or_insert((hero, Mean::default())).1.add(time);
                let follows = reports.iter().filter_map(|report| seen.gap(position, report));
                gaps.entry(kind).or_default().extend(follows);
            }
            Action::Copy(copy) => {
                let time = median(reports.iter().map(|report| seen.copy(position, report)));
                copies.entry((kind, copy.bytes)).or_default().add(time);
            }
        }
    }
    for ((kind, hash), (hero, mean)) in kernels {
        let known = &mut profile.kind_mut(kind).kernels;
        let time = KernelTime { hash, hero: hero.to_owned(), time_ns: mean.value() };
        match known.binary_search_by_key(&hash, |kernel| kernel.hash) {
            Ok(found) => known[found] = time,
            Err(position) => known.insert(position, time),
        }
    }
    for ((kind, bytes), mean) in copies {
        let kind = profile.kind_mut(kind);
        kind.copies = merged(&kind.copies, [CopyTime { bytes, time_ns: mean.value() }]);
    }
    for (kind, cores) in cores {
        profile.kind_mut(kind).cores = cores;
    }
    for (kind, gaps) in gaps {
        profile.kind_mut(kind).launch_ns = Nanos(median(gaps.into_iter()));
    }
    Ok(())
}

/// The kind without what tells it from others of the kind.
fn plain(key: &str) -> &str {
    key.split('@').next().unwrap_or(key)
}

/// A mean of integers.
#[derive(Default)]
struct Mean {
    sum: u64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: u64) {
        self.sum = self.sum.saturating_add(value);
        self.count += 1;
    }

    fn value(&self) -> Nanos {
        Nanos(self.sum / self.count.max(1))
    }
}

/// The middle value, the larger of two; zero of none.
pub(super) fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<u64> = values.collect();
    let middle = values.len() / 2;
    if values.is_empty() { 0 } else { *values.select_nth_unstable(middle).1 }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn length(start: Duration, end: Duration) -> u64 {
    nanos(end.saturating_sub(start))
}

/// What of a plan tells when a step could have started.
struct Seen<'a> {
    /// By id: digest and hero. Looked up, never iterated.
    kernels: HashMap<&'a str, (u64, &'a str)>,
    /// By step: the positions that it waits for.
    after: Vec<Vec<usize>>,
    /// By step: the one before it on its device, either lane.
    before: Vec<Option<usize>>,
    /// By step: the one before it on its lane, where that is the compute lane.
    launched: Vec<Option<usize>>,
}

impl<'a> Seen<'a> {
    fn new(plan: &'a Plan) -> Self {
        let kernels = plan.kernels.iter().filter_map(|kernel| {
            let hash = u64::from_str_radix(&kernel.hash, 16).ok()?;
            Some((kernel.id.as_str(), (hash, kernel.hero.as_str())))
        });
        let positions: HashMap<u64, usize> =
            plan.steps.iter().enumerate().map(|(position, step)| (step.id, position)).collect();
        let mut last: HashMap<&str, usize> = HashMap::new();
        let mut last_launch: HashMap<&str, usize> = HashMap::new();
        let mut seen =
            Self { kernels: kernels.collect(), after: Vec::new(), before: Vec::new(), launched: Vec::new() };
        for (position, step) in plan.steps.iter().enumerate() {
            seen.after.push(step.after.iter().filter_map(|id| positions.get(id).copied()).collect());
            seen.before.push(last.insert(&step.device, position));
            seen.launched.push(match step.lane {
                Lane::Compute => last_launch.insert(&step.device, position),
                Lane::Copy => None,
            });
        }
        seen
    }

    /// The end of the last step that one waits for.
    fn ready(&self, position: usize, report: &RunReport) -> Duration {
        let ends = self.after[position].iter().map(|&after| report.steps[after].1);
        ends.max().unwrap_or_default()
    }

    /// What passes between a launch and the one before it, where nothing else was waited for and
    /// no copy came between.
    fn gap(&self, position: usize, report: &RunReport) -> Option<u64> {
        let before = self.launched[position]?;
        let (start, end) = (report.steps[position].0, report.steps[before].1);
        let direct = self.before[position] == Some(before) && self.ready(position, report) <= end;
        direct.then(|| nanos(start.saturating_sub(end)))
    }

    /// The time of a copy from when it may start: what it reads is there, and its device free.
    fn copy(&self, position: usize, report: &RunReport) -> u64 {
        let (start, end) = report.steps[position];
        let free = self.before[position].map_or(Duration::ZERO, |before| report.steps[before].1);
        let ready = self.ready(position, report).max(free).min(start);
        nanos(end.saturating_sub(ready))
    }
}
