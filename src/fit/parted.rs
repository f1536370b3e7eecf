//! Sets on which a plan reaches the target that splits operations.
//!
//! Few bounds hold for parts: memory must hold all parameters, and all operations are computed by someone. What these do
//! not exclude is open unless it is planned for. Plans are sought by price, first on sets on which the work, shared out
//! evenly, is fast enough.

use std::collections::VecDeque;

use super::bounds::{Bounds, Excluded};
use super::search::{MOST_SETS, Nearest, Planner, Search};
use super::sets::{Set, Sets};
use super::target::Goal;
use super::{Cheaper, Fitted, Tried, Verdict};
use crate::compile::{Compiled, Splittable};
use crate::error::{Error, Result};
use crate::units::Nanos;

/// Open sets that are listed.
const LISTED: usize = 16;

/// What became of sets that are cheaper than one that does it with whole operations; of all, where none does.
pub(super) struct Parted<'s> {
    planner: Planner<'s>,
    /// The first on which a plan reaches the target.
    found: Option<(Tried, Compiled)>,
    /// Those that were planned for and do not do.
    planned: Vec<Tried>,
    /// How those fail that are cheaper than what is found, here or with whole operations; all, where nothing is.
    cheaper: Cheaper,
    nearest: Nearest,
}

/// What became of a set. Words are made of the few that are told of.
enum Fate {
    Excluded(Excluded),
    /// The work, shared out evenly, takes so long: no plan was sought.
    Slow(Nanos),
    /// As many as the effort affords were planned for.
    Late,
    Planned(Verdict),
}

struct Looked {
    set: Set,
    fate: Fate,
}

impl Looked {
    fn tried(self, bounds: &Bounds<'_>, goal: &Goal) -> Tried {
        let verdict = match self.fate {
            Fate::Excluded(why) => Verdict::Excluded(bounds.words(&why)),
            Fate::Slow(shared) => Verdict::Open(format!("{}, shared out evenly", goal.words(shared))),
            Fate::Late => Verdict::Open("other sets came first".to_owned()),
            Fate::Planned(verdict) => verdict,
        };
        Tried { set: self.set, verdict }
    }

    fn is_open(&self, goal: &Goal) -> bool {
        match &self.fate {
            Fate::Excluded(_) => false,
            Fate::Slow(_) | Fate::Late => true,
            Fate::Planned(verdict) => !verdict.is_proven(goal),
        }
    }
}

/// Counts the sets that were looked at, by price, and keeps the dearest.
#[derive(Default)]
struct Tally {
    looked: usize,
    /// Those of the dearest price, which may be that of what is found in the end.
    dearest: Vec<Looked>,
    count: usize,
    excluded: usize,
    open_count: usize,
    open: VecDeque<Looked>,
    /// The last one, where it is not open.
    closed: Option<Looked>,
}

impl Tally {
    fn add(&mut self, looked: Looked, goal: &Goal) {
        if self.dearest.last().is_some_and(|last| last.set.price < looked.set.price) {
            self.count_dearest(goal);
        }
        self.looked += 1;
        self.dearest.push(looked);
    }

    fn count_dearest(&mut self, goal: &Goal) {
        for looked in std::mem::take(&mut self.dearest) {
            self.count += 1;
            self.excluded += usize::from(matches!(looked.fate, Fate::Excluded(_)));
            if !looked.is_open(goal) {
                self.closed = Some(looked);
                continue;
            }
            self.open_count += 1;
            self.closed = None;
            if self.open.len() == LISTED {
                self.open.pop_front();
            }
            self.open.push_back(looked);
        }
    }

    /// How the sets fail that are cheaper than the one found.
    fn cheaper(mut self, found: Option<&Tried>, is_cut: bool, bounds: &Bounds<'_>, goal: &Goal) -> Cheaper {
        self.dearest.retain(|looked| found.is_none_or(|found| looked.set.price < found.set.price));
        self.count_dearest(goal);
        let open: Vec<Tried> = self.open.into_iter().map(|looked| looked.tried(bounds, goal)).collect();
        let next = self.closed.map(|looked| looked.tried(bounds, goal)).or_else(|| open.last().cloned());
        let Self { count, excluded, open_count, .. } = self;
        Cheaper { count, excluded, open, open_count, next, is_cut }
    }
}

impl<'s> Parted<'s> {
    /// Looks at the sets that are cheaper than `whole`, by price, until a plan on one reaches the target.
    pub(super) fn search(
        planner: Planner<'s>,
        network: Splittable,
        whole: Option<&Tried>,
        bounds: &mut Bounds<'_>,
    ) -> Result<Self> {
        let (request, goal) = (&planner.request, planner.goal);
        let sets = Sets::new(request.catalogue, request.budget);
        let (planned, cheaper, nearest) = Default::default();
        let mut parted = Self { planner, found: None, planned, cheaper, nearest };
        let (mut tally, mut is_cut) = (Tally::default(), false);
        for set in sets.take_while(|set| whole.is_none_or(|whole| set.price < whole.set.price)) {
            if tally.looked == MOST_SETS || planner.control.stopped() {
                is_cut = true;
                break;
            }
            match parted.fate(&set, network, bounds)? {
                Some(fate) => tally.add(Looked { set, fate }, goal),
                None => break,
            }
        }
        let found = parted.found.as_ref().map(|(found, _)| found);
        parted.cheaper = tally.cheaper(found, is_cut, bounds, goal);
        Ok(parted)
    }

    /// What becomes of a set, which is planned for where the effort affords it; none where a plan reaches the target.
    fn fate(&mut self, set: &Set, network: Splittable, bounds: &mut Bounds<'_>) -> Result<Option<Fate>> {
        if let Some(why) = bounds.excludes_parts(set, network) {
            if let Excluded::SlowInParts(least) = why {
                self.nearest.take(least, set);
            }
            return Ok(Some(Fate::Excluded(why)));
        }
        if let Some(shared) = bounds.discourages_parts(set) {
            self.nearest.take(shared, set);
            return Ok(Some(Fate::Slow(shared)));
        }
        let most = self.planner.most_planned();
        if self.planned.len() == most {
            return Ok(Some(Fate::Late));
        }
        self.planner.control.report("sets of devices, in parts", self.planned.len(), most);
        match self.planner.plan(set)? {
            (tried @ Tried { verdict: Verdict::Reaches(_), .. }, Some(compiled)) => {
                self.found = Some((tried, compiled));
                Ok(None)
            }
            (tried, _) => {
                self.planned.push(tried.clone());
                Ok(Some(Fate::Planned(tried.verdict)))
            }
        }
    }

    /// The cheapest of what was found here and with whole operations; `dearer` sets are on the curve, too.
    ///
    /// Error: neither is there.
    pub(super) fn fitted(
        mut self,
        whole: Option<(Tried, Compiled)>,
        search: Search<'_>,
        dearer: Vec<Tried>,
    ) -> Result<Fitted> {
        let mut curve = search.planned.clone();
        curve.extend(dearer);
        curve.extend(whole.iter().map(|(tried, _)| tried.clone()));
        let Some((found, compiled)) = self.found.take().or(whole) else {
            return Err(self.none(search)?);
        };
        curve.retain(|tried| {
            self.planned.iter().all(|parted| parted.set != tried.set) && tried.set != found.set
        });
        curve.extend(self.planned.iter().cloned().chain([found.clone()]));
        curve.sort_by(|one, other| one.set.cmp(&other.set));
        let goal = self.planner.goal.clone();
        Ok(Fitted { goal, found, compiled, cheaper: self.cheaper, curve })
    }

    /// No set does, whether operations are split or not.
    fn none(self, mut search: Search<'_>) -> Result<Error> {
        let Cheaper { count, open_count, is_cut, next, .. } = self.cheaper;
        search.planned.extend(self.planned);
        search.planned.extend(self.planner.nearest(&self.nearest)?);
        search.planned.extend(search.planner.nearest(&search.nearest)?);
        Ok(search.none_of(count, open_count, next, is_cut))
    }
}
