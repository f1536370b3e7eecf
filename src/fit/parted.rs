//! Sets on which a plan reaches the target that splits operations.
//!
//! Few bounds hold for parts: memory must hold all parameters, and all operations are computed by someone. What these do
//! not exclude is open unless it is planned for. Plans are sought by price, first on sets on which the work, shared out
//! evenly, is fast enough.

use super::bounds::Bounds;
use super::search::{MOST_SETS, Planner, Search};
use super::sets::{Set, Sets};
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
    /// Cheaper sets, by price, up to the number that is looked at.
    looked: Vec<Looked>,
    is_cut: bool,
}

/// A set, and what is known of it without a plan.
struct Looked {
    set: Set,
    verdict: Option<Verdict>,
}

impl<'s> Parted<'s> {
    /// Looks at all sets that are cheaper than `whole`.
    pub(super) fn search(
        planner: Planner<'s>,
        network: Splittable,
        whole: Option<&Tried>,
        bounds: &mut Bounds<'_>,
    ) -> Result<Self> {
        let request = &planner.request;
        let sets = Sets::new(request.catalogue, request.budget);
        let cheaper = sets.take_while(|set| whole.is_none_or(|whole| set.price < whole.set.price));
        let mut looked = Vec::new();
        for set in cheaper.take(MOST_SETS) {
            let excluded = bounds.excludes_parts(&set, network).map(|why| Verdict::Excluded(why.words()));
            let verdict = excluded.or_else(|| bounds.discourages_parts(&set).map(Verdict::Open));
            looked.push(Looked { set, verdict });
        }
        let is_cut = looked.len() == MOST_SETS;
        let mut parted = Self { planner, found: None, planned: Vec::new(), looked, is_cut };
        parted.plan()?;
        Ok(parted)
    }

    /// Plans by price, as many as the effort affords, until one reaches the target.
    fn plan(&mut self) -> Result<()> {
        let most = self.planner.most_planned();
        for at in 0..self.looked.len() {
            let Looked { set, verdict } = &mut self.looked[at];
            if verdict.is_some() {
                continue;
            }
            if self.planned.len() == most || self.planner.control.stopped() {
                *verdict = Some(Verdict::Open("other sets came first".to_owned()));
                continue;
            }
            self.planner.control.report("sets of devices, in parts", self.planned.len(), most);
            match self.planner.plan(set)? {
                (tried @ Tried { verdict: Verdict::Reaches(_), .. }, Some(compiled)) => {
                    self.found = Some((tried, compiled));
                    self.looked.truncate(at);
                    return Ok(());
                }
                (tried, _) => {
                    *verdict = Some(tried.verdict.clone());
                    self.planned.push(tried);
                }
            }
        }
        Ok(())
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
            return Err(self.none(search));
        };
        curve.retain(|tried| {
            self.planned.iter().all(|parted| parted.set != tried.set) && tried.set != found.set
        });
        curve.extend(self.planned.iter().cloned().chain([found.clone()]));
        curve.sort_by(|one, other| one.set.cmp(&other.set));
        let goal = self.planner.goal.clone();
        let cheaper = self.cheaper(&found);
        Ok(Fitted { goal, found, compiled, cheaper, curve })
    }

    /// How the sets that are cheaper than the one found fail.
    fn cheaper(self, found: &Tried) -> Cheaper {
        let goal = self.planner.goal;
        let mut cheaper = Cheaper::default();
        for Looked { set, verdict } in
            self.looked.into_iter().filter(|looked| looked.set.price < found.set.price)
        {
            let verdict = verdict.unwrap_or(Verdict::Open("other sets came first".to_owned()));
            let tried = Tried { set, verdict };
            cheaper.count += 1;
            cheaper.excluded += usize::from(matches!(tried.verdict, Verdict::Excluded(_)));
            if !tried.is_proven(goal) {
                cheaper.open_count += 1;
                cheaper.open.push(tried.clone());
            }
            cheaper.next = Some(tried);
        }
        let first = cheaper.open.len().saturating_sub(LISTED);
        cheaper.open.drain(..first);
        cheaper
    }

    /// No set does, whether operations are split or not.
    fn none(self, mut search: Search<'_>) -> Error {
        let goal = self.planner.goal;
        let is_open = |looked: &Looked| match &looked.verdict {
            Some(verdict) => !Tried { set: looked.set.clone(), verdict: verdict.clone() }.is_proven(goal),
            None => true,
        };
        let open = self.looked.iter().filter(|looked| is_open(looked)).count();
        let reached = |tried: &Tried| tried.reached().unwrap_or(Nanos(u64::MAX));
        search.planned.extend(self.planned);
        search.planned.sort_by_key(reached);
        search.none_of(self.looked.len(), open, self.is_cut)
    }
}
