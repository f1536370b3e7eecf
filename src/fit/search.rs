//! Sets from the cheapest on, until one does, with whole operations.

use super::bounds::{Bounds, Excluded};
use super::sets::{Set, Sets};
use super::target::Goal;
use super::{Cheaper, Request, Tried, Verdict};
use crate::compile::{self, Compiled, Costing};
use crate::control::Control;
use crate::error::{Error, Infeasible, Result};
use crate::place::Effort;
use crate::topology::Topology;
use crate::units::Nanos;

/// Sets that are looked at, at most.
pub(super) const MOST_SETS: usize = 1_000_000;

/// Sets that are planned for to show what price buys, below what was found and above.
const SHOWN: usize = 5;

/// What is shown next costs at least so many percent of what was shown last.
const STEP: u64 = 120;

/// What is shown costs at most so many percent of what was found.
const DEAREST: u64 = 1_000;

/// Plans for sets, and proofs that need none.
#[derive(Clone, Copy)]
pub(super) struct Planner<'s> {
    pub(super) request: Request<'s>,
    pub(super) options: &'s compile::Options,
    pub(super) costing: &'s Costing,
    pub(super) goal: &'s Goal,
    pub(super) control: &'s Control<'s>,
    /// Whether operations stay whole, of which certificates speak.
    pub(super) is_whole: bool,
}

impl Planner<'_> {
    /// The devices of a set, as these options time their links.
    fn topology(&self, set: &Set) -> Result<Topology> {
        let topology = self.request.catalogue.topology(&set.counts)?;
        match &self.options.profile {
            Some(profile) => profile.applied(&topology),
            None => Ok(topology),
        }
    }

    /// Why no plan on these devices reaches the goal, by a certificate: what none is below, and in words.
    fn certified(&self, topology: &Topology) -> Result<Option<(Nanos, String)>> {
        let Some(limit) = self.goal.limit() else { return Ok(None) };
        let bound = self.costing.none_below(topology, limit.get(), self.control)?;
        Ok(bound.map(|bound| {
            let least = Nanos(bound.value);
            (least, format!("{} ({})", self.goal.bound_words(least), bound.proof))
        }))
    }

    /// The plan for a set of which only a bound or an estimate is known, where one reaches anything.
    pub(super) fn nearest(&self, nearest: &Nearest) -> Result<Option<Tried>> {
        let Some((_, set)) = nearest.0.as_ref().filter(|_| !self.control.stopped()) else { return Ok(None) };
        Ok(Some(self.plan(set)?.0).filter(|tried| tried.reached().is_some()))
    }

    pub(super) fn plan(&self, set: &Set) -> Result<(Tried, Option<Compiled>)> {
        let topology = self.topology(set)?;
        let model = self.request.model.clone();
        let tried = |verdict| Tried { set: set.clone(), verdict };
        let compiled = match compile::compile_with(model, &topology, self.options, self.control) {
            Ok(compiled) => compiled,
            Err(Error::Infeasible(why)) => {
                return Ok((tried(Verdict::Refused { proven: why.proven, why: why.conflict }), None));
            }
            Err(error @ Error::Unsupported(_)) => {
                return Ok((tried(Verdict::Refused { proven: true, why: error.to_string() }), None));
            }
            Err(error) => return Err(error),
        };
        let reached = self.goal.measured(&compiled.schedule.cost);
        let speaks = self.goal.limit().is_some() && self.is_whole;
        let bound = compiled.plan.bound.as_ref().filter(|_| speaks).map(|bound| Nanos(bound.value));
        let verdict = match self.goal.is_reached_by(reached) {
            true => Verdict::Reaches(reached),
            false => Verdict::Misses { reached, bound },
        };
        Ok((tried(verdict), Some(compiled)))
    }

    /// Plans that the effort affords, and as many certificates for each.
    pub(super) fn most_planned(&self) -> usize {
        match self.options.place.effort {
            Effort::Fast => 32,
            Effort::Default => 128,
            Effort::Best => 512,
        }
    }
}

/// Of the sets that were not planned for because they are slow, the one that is so by least.
#[derive(Clone, Debug, Default)]
pub(super) struct Nearest(Option<(Nanos, Set)>);

impl Nearest {
    /// Takes a set that comes to this at best, or by an estimate; of equals the first stays.
    pub(super) fn take(&mut self, at_best: Nanos, set: &Set) {
        if self.0.as_ref().is_none_or(|(least, _)| at_best < *least) {
            self.0 = Some((at_best, set.clone()));
        }
    }
}

/// What was found so far.
pub(super) struct Search<'s> {
    pub(super) planner: Planner<'s>,
    /// Sets that do not do, and of those that are cheaper than the last of them.
    failed: Failed,
    before: Failed,
    /// Sets that were planned for and do not do.
    pub(super) planned: Vec<Tried>,
    /// Sets that are slow for sure, in steps of price.
    slow: Vec<Set>,
    /// Whether sets are left that nobody has looked at.
    pub(super) is_cut: bool,
    pub(super) nearest: Nearest,
}

/// Sets that do not do.
#[derive(Clone, Debug, Default)]
struct Failed {
    count: usize,
    /// Those that bounds exclude.
    excluded: usize,
    last: Option<Tried>,
}

impl<'s> Search<'s> {
    pub(super) fn new(planner: Planner<'s>) -> Self {
        let (failed, before) = (Failed::default(), Failed::default());
        let (planned, slow, nearest) = Default::default();
        Self { planner, failed, before, planned, slow, nearest, is_cut: false }
    }

    /// The first set that does, and its plan.
    pub(super) fn find(
        &mut self,
        sets: &mut Sets<'_>,
        bounds: &mut Bounds<'_>,
    ) -> Result<Option<(Tried, Compiled)>> {
        let most = self.planner.most_planned();
        let mut certified = 0;
        for set in sets {
            if self.failed.count == MOST_SETS || self.planned.len() == most || self.planner.control.stopped()
            {
                self.is_cut = true;
                return Ok(None);
            }
            if let Some(why) = bounds.excludes(&set) {
                if let Excluded::Slow(least) = why {
                    self.remember(&set);
                    self.nearest.take(least, &set);
                }
                self.exclude(set, bounds.words(&why));
                continue;
            }
            if certified < 8 * most {
                certified += 1;
                let topology = self.planner.topology(&set)?;
                if let Some((least, why)) = self.planner.certified(&topology)? {
                    self.remember(&set);
                    self.nearest.take(least, &set);
                    self.exclude(set, why);
                    continue;
                }
            }
            self.planner.control.report("sets of devices", self.planned.len(), most);
            match self.planner.plan(&set)? {
                (tried @ Tried { verdict: Verdict::Reaches(_), .. }, Some(compiled)) => {
                    return Ok(Some((tried, compiled)));
                }
                (tried, _) => {
                    self.planned.push(tried.clone());
                    self.fail(tried);
                }
            }
        }
        Ok(None)
    }

    fn exclude(&mut self, set: Set, why: String) {
        self.fail(Tried { set, verdict: Verdict::Excluded(why) });
    }

    fn fail(&mut self, tried: Tried) {
        if self.failed.last.as_ref().is_some_and(|last| last.set.price < tried.set.price) {
            self.before = self.failed.clone();
        }
        self.failed.count += 1;
        self.failed.excluded += usize::from(matches!(tried.verdict, Verdict::Excluded(_)));
        self.failed.last = Some(tried);
    }

    /// Keeps a set that fits and is slow where it costs enough more than the last one kept.
    fn remember(&mut self, set: &Set) {
        if self.slow.last().is_none_or(|last| set.price.is_at_least(STEP, last.price)) {
            self.slow.push(set.clone());
        }
    }

    /// How the sets cheaper than the one found fail.
    pub(super) fn cheaper(&self, found: &Tried) -> Cheaper {
        let is_cheaper = |tried: &&Tried| tried.set.price < found.set.price;
        let Failed { count, excluded, last: next } =
            match self.failed.last.as_ref().is_some_and(|last| is_cheaper(&last)) {
                true => self.failed.clone(),
                false => self.before.clone(),
            };
        let open = self.planned.iter().filter(is_cheaper).filter(|tried| !tried.is_proven(self.planner.goal));
        let open: Vec<Tried> = open.cloned().collect();
        Cheaper { count, excluded, open_count: open.len(), open, next, is_cut: false }
    }

    /// Plans for the dearest of the sets that are slow for sure.
    pub(super) fn below(&self) -> Result<Vec<Tried>> {
        let first = self.slow.len().saturating_sub(SHOWN);
        let mut shown = Vec::new();
        for set in &self.slow[first..] {
            if !self.planner.control.stopped() {
                shown.push(self.planner.plan(set)?.0);
            }
        }
        Ok(shown)
    }

    /// Plans for dearer sets, in steps of price.
    pub(super) fn beyond(
        &self,
        found: &Tried,
        sets: &mut Sets<'_>,
        bounds: &mut Bounds<'_>,
    ) -> Result<Vec<Tried>> {
        let mut shown: Vec<Tried> = Vec::new();
        for set in sets.take(MOST_SETS) {
            let last = shown.last().map_or(found.set.price, |tried| tried.set.price);
            let is_dear = set.price.is_at_least(DEAREST + 1, found.set.price);
            if shown.len() == SHOWN || is_dear || self.planner.control.stopped() {
                break;
            }
            if set.price > last && set.price.is_at_least(STEP, last) && bounds.excludes(&set).is_none() {
                shown.push(self.planner.plan(&set)?.0);
            }
        }
        Ok(shown)
    }

    /// Says that no set does, and what comes closest.
    ///
    /// Errors: those of planning for that.
    pub(super) fn none(mut self) -> Result<Error> {
        let open = self.planned.iter().filter(|tried| !tried.is_proven(self.planner.goal)).count();
        self.planned.extend(self.planner.nearest(&self.nearest)?);
        let (count, last, is_cut) = (self.failed.count, self.failed.last.clone(), self.is_cut);
        Ok(self.none_of(count, open, last, is_cut))
    }

    /// Says that none of `count` sets does, of which nothing is proven of `open`, and what comes closest: what is fastest of
    /// those that were planned for, else the `last` that was looked at.
    pub(super) fn none_of(&self, count: usize, open: usize, last: Option<Tried>, is_cut: bool) -> Error {
        let Request { catalogue, budget, .. } = self.planner.request;
        let goal = self.planner.goal;
        let line = |tried: &Tried| {
            format!(
                "{} at {}: {}",
                catalogue.name(&tried.set.counts),
                catalogue.priced(tried.set.price),
                tried.words(goal)
            )
        };
        let fastest =
            self.planned.iter().filter(|tried| tried.reached().is_some()).min_by_key(|tried| tried.reached());
        let closest = fastest.or(last.as_ref());
        let mut details: Vec<String> =
            closest.map(|tried| format!("closest: {}", line(tried))).into_iter().collect();
        if open > 0 {
            details.push(format!("for {open} of {} sets it is not proven that no plan does it", count));
        }
        if is_cut {
            details.push(format!("the search ended after {} sets: others were not looked at", count));
        }
        let conflict = match count {
            0 if !is_cut => cheaper_than_all(&self.planner.request),
            _ => conflict(&self.planner.request, goal),
        };
        let proven = open == 0 && !is_cut;
        NoSet { proven, conflict, has_budget: budget.is_some(), details }.error()
    }
}

fn cheaper_than_all(request: &Request<'_>) -> String {
    let budget = request.budget.map(|budget| request.catalogue.priced(budget)).unwrap_or_default();
    format!("every device of the catalogue costs more than {budget}")
}

fn conflict(request: &Request<'_>, goal: &Goal) -> String {
    let priced = |budget| format!(" within {}", request.catalogue.priced(budget));
    format!("no set of devices{} reaches {goal}", request.budget.map(priced).unwrap_or_default())
}

/// All that is on offer does not do.
pub(super) fn hopeless(request: &Request<'_>, goal: &Goal, why: &str) -> Error {
    let details = vec![format!("with all devices of the catalogue: {why}")];
    NoSet { proven: true, conflict: conflict(request, goal), has_budget: false, details }.error()
}

/// Why no set of devices does.
struct NoSet {
    /// There is none, in place of none that was found.
    proven: bool,
    conflict: String,
    has_budget: bool,
    details: Vec<String>,
}

impl NoSet {
    fn error(self) -> Error {
        let Self { proven, conflict, has_budget, details } = self;
        let repair = match has_budget {
            true => "a larger --budget, more devices in the catalogue, or an easier target",
            false => "more devices in the catalogue, or an easier target",
        };
        let repair = repair.to_owned();
        Error::Infeasible(Box::new(Infeasible { proven, conflict, repair, details, ..Infeasible::default() }))
    }
}
