//! One plan after the other, with ever more effort; the best of them is kept.
//!
//! [`Until::efforts`] says which: with the most effort the usual one comes first, so that more work never gives a worse
//! plan, and a search that ends at some gap begins with the least. The gap that ends it is that to all plans which more
//! effort may find: where these may split other operations, a bound of plans with the same splits ends nothing.

use super::problem::may_split_freely;
use super::step::Step;
use super::{Compiled, Options};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::place::Effort;
use crate::plan::Plan;
use crate::strategy::Until;
use crate::units::Bytes;

/// What has a plan.
pub(super) trait Planned {
    fn plan(&self) -> &Plan;
    fn plan_mut(&mut self) -> &mut Plan;

    /// Whether plans that more effort may find split other operations than this one, or split them otherwise.
    fn may_be_split_otherwise(&self, options: &Options) -> bool;
}

impl Planned for Compiled {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn plan_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }

    fn may_be_split_otherwise(&self, options: &Options) -> bool {
        let is_split = !self.plan.options.splits.is_empty();
        // Rules say all that is split, and a cost graph has nothing to split.
        let is_free = options.split.rules.is_empty() && may_split_freely(options) && self.network.is_some();
        is_free && (is_split || self.topology.computing().count() > 1)
    }
}

impl Planned for (Step, Plan) {
    fn plan(&self) -> &Plan {
        &self.1
    }

    fn plan_mut(&mut self) -> &mut Plan {
        &mut self.1
    }

    fn may_be_split_otherwise(&self, _: &Options) -> bool {
        false
    }
}

/// The best of the plans that `plan` makes with one effort after the other, up to that of `options`. It ends
/// before where the gap is small enough, or `control` says stop. A plan that replaces another is made once:
/// where nothing has changed, it is that one.
///
/// Errors: those of `plan`; that nothing fits only where that holds for all efforts.
pub(super) fn anytime<T: Planned>(
    options: &Options,
    control: &Control<'_>,
    mut plan: impl FnMut(&Options, Turn) -> Result<T>,
) -> Result<T> {
    // In microbatches, placements are of a part of the step; one that replaces another is chosen by what it moves, too.
    let is_replaced = options.from.is_some() || options.place.from.is_some();
    let is_comparable = options.pipeline.is_none() && options.unrolled.is_none() && !is_replaced;
    control.forget(is_comparable);
    let asked = options.place.effort;
    let efforts = if is_replaced { &[asked][..] } else { Until::efforts(options.until, asked) };
    let mut best: Option<T> = None;
    let mut refused = None;
    for (number, &effort) in efforts.iter().enumerate() {
        if best.is_some() && control.stopped() {
            break;
        }
        let mut options = options.clone();
        options.place.effort = effort;
        let speaks = |best: &&T| is_comparable && !best.may_be_split_otherwise(&options);
        let bound = best.as_ref().filter(speaks).and_then(|best| best.plan().bound.as_ref());
        options.place.enough =
            options.until.zip(bound).map(|(until, bound)| Bytes(until.enough(bound.value)));
        let turn = if number + 1 == efforts.len() { Turn::Last } else { Turn::Earlier };
        match plan(&options, turn) {
            Ok(found) => best = Some(better(best, found)),
            Err(error @ Error::Infeasible(_)) => refused = Some(error),
            Err(error) => return Err(error),
        }
        let gap = best.as_ref().map(|best| {
            mark(best.plan(), control);
            gap_to_all(best, &options)
        });
        if options.until.zip(gap).is_some_and(|(until, gap)| until.is_met_by(gap)) {
            break;
        }
    }
    let Some(mut best) = best else {
        return Err(refused.unwrap_or_else(|| Error::Internal("no effort was spent".into())));
    };
    let plan = best.plan_mut();
    // The plan names the effort that was asked for, not the last one that was spent.
    plan.options.effort = (asked != Effort::Default).then(|| asked.name().to_owned());
    plan.options.truncated = control.was_truncated();
    Ok(best)
}

/// Whether a plan is made with the last of the efforts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Earlier,
    Last,
}

/// What an objective compares: as [`crate::strategy`] does among placements.
fn key(plan: &Plan) -> [u64; 3] {
    let cost = &plan.cost;
    let [bytes, latency, load] = [cost.transfer_bytes.get(), cost.latency_ns.get(), cost.max_load_ns.get()];
    match plan.options.objective.as_str() {
        "latency" => [latency, bytes, load],
        "throughput" => [load, bytes, latency],
        _ => [bytes, latency, load],
    }
}

/// The better of two plans, the earlier of equals, with the higher of their bounds.
fn better<T: Planned>(earlier: Option<T>, later: T) -> T {
    let Some(earlier) = earlier else { return later };
    let (mut kept, other) =
        if key(later.plan()) < key(earlier.plan()) { (later, earlier) } else { (earlier, later) };
    raise(kept.plan_mut(), other.plan());
    kept
}

/// Gives a plan the bound of another one where it is higher and speaks of the same graph: a certificate holds whatever
/// the plan. Plans that are split differently are of different graphs, and so may pipelines be.
fn raise(plan: &mut Plan, other: &Plan) {
    let value = |plan: &Plan| plan.bound.as_ref().map_or(0, |bound| bound.value);
    let [reached, ..] = key(plan);
    let is_same = plan.options.splits == other.options.splits && plan.options.microbatches.is_none();
    if let Some(bound) = &other.bound
        && is_same
        && (value(plan) + 1..=reached).contains(&bound.value)
    {
        plan.bound = Some(bound.beside(reached));
    }
}

/// Notes how good the best plan is by now.
fn mark(plan: &Plan, control: &Control<'_>) {
    let [reached, ..] = key(plan);
    control.mark(reached, plan.bound.as_ref().map(|bound| bound.value));
}

/// How far a plan is at most from the best that more effort may find; 1 where nothing is proven.
fn gap_to_all<T: Planned>(found: &T, options: &Options) -> f64 {
    let plan = found.plan();
    let [reached, ..] = key(plan);
    let gap = match &plan.bound {
        Some(bound) if found.may_be_split_otherwise(options) => bound.peaks.as_ref().map(|peaks| peaks.gap),
        bound => bound.as_ref().map(|bound| bound.gap),
    };
    gap.unwrap_or(f64::from(u8::from(reached > 0)))
}

/// The gap of a plan among those that split the same, and the gap among all, where the one would have ended the search
/// and the other did not: none for 1.
pub fn gap_passed_over(compiled: &Compiled, options: &Options) -> Option<(f64, Option<f64>)> {
    let until = options.until?;
    let own = compiled.plan.bound.as_ref().map(|bound| bound.gap)?;
    let all = gap_to_all(compiled, options);
    (until.is_met_by(own) && !until.is_met_by(all)).then(|| (own, Some(all).filter(|&all| all < 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Objective;
    use crate::plan::Bound;
    use crate::units::Nanos;

    impl Planned for Plan {
        fn plan(&self) -> &Plan {
            self
        }

        fn plan_mut(&mut self) -> &mut Plan {
            self
        }

        fn may_be_split_otherwise(&self, options: &Options) -> bool {
            options.split.auto
        }
    }

    fn options(effort: Effort, until: Option<&str>) -> Options {
        let mut options = Options { until: until.map(|text| text.parse().unwrap()), ..Options::default() };
        (options.place.objective, options.place.effort) = (Objective::Latency, effort);
        options.split.auto = false;
        options
    }

    /// The plan of one node that takes 100 ns. It is read, not made: a search would be compiled into every unit test.
    fn one_node() -> Plan {
        Plan::from_json(include_bytes!("../../tests/plans/one_node.json"), "one_node.json").unwrap()
    }

    /// What is kept where each effort comes to a latency, or to nothing; and the efforts that were spent.
    fn kept(options: &Options, latencies: [Option<u64>; 3]) -> (Result<Plan>, Vec<Effort>) {
        let (plan, mut spent) = (one_node(), Vec::new());
        let found = anytime(options, &Control::new(), |options, _| {
            let effort = options.place.effort;
            spent.push(effort);
            let Some(latency) = latencies[effort as usize] else {
                return Err(Error::Infeasible(Box::default()));
            };
            let mut plan = plan.clone();
            plan.cost.latency_ns = Nanos(latency);
            plan.bound = plan.bound.map(|bound| bound.beside(latency));
            Ok(plan)
        });
        (found, spent)
    }

    #[test]
    fn the_best_of_all_efforts_is_kept() {
        for (latencies, best) in [
            ([Some(130), Some(120), Some(110)], 110),
            ([Some(130), Some(110), Some(120)], 110),
            ([Some(130), None, Some(120)], 120),
            ([Some(130), Some(120), None], 120),
        ] {
            let (found, spent) = kept(&options(Effort::Best, None), latencies);
            let found = found.unwrap();
            assert_eq!((found.cost.latency_ns, found.options.effort.as_deref()), (Nanos(best), Some("best")));
            assert_eq!(spent, [Effort::Default, Effort::Best]);
        }
        let (found, _) = kept(&options(Effort::Best, None), [Some(1), None, None]);
        assert!(matches!(found, Err(Error::Infeasible(_))));
        let (found, spent) = kept(&options(Effort::Default, None), [Some(100), Some(120), Some(100)]);
        assert_eq!((found.unwrap().cost.latency_ns, spent.as_slice()), (Nanos(120), &[Effort::Default][..]));
    }

    #[test]
    fn the_search_ends_at_the_gap() {
        let latencies = [Some(150), Some(120), Some(101)];
        for (until, count) in [("gap<50%", 1), ("gap<20%", 2), ("gap<1%", 3), ("gap<=0", 3)] {
            let (found, spent) = kept(&options(Effort::Best, Some(until)), latencies);
            assert_eq!(spent, Effort::ALL[..count], "{until}");
            assert_eq!(found.unwrap().cost.latency_ns, Nanos(latencies[count - 1].unwrap()));
        }
    }

    #[test]
    fn a_bound_of_plans_that_split_the_same_ends_nothing() {
        let latencies = [Some(101), Some(100), Some(90)];
        let mut options = options(Effort::Best, Some("gap<10%"));
        assert_eq!(kept(&options, latencies).1, [Effort::Fast]);
        options.split.auto = true;
        assert_eq!(kept(&options, latencies).1, Effort::ALL);
    }

    #[test]
    fn the_higher_bound_is_kept_where_it_speaks_of_the_same_graph() {
        let (whole, mut less) = (one_node(), one_node());
        less.bound = less.bound.map(|bound| Bound { value: 40, gap: 0.6, ..bound });
        let lower = less.clone();
        raise(&mut less, &whole);
        assert_eq!(less.bound, whole.bound);
        let mut divided = lower.clone();
        divided.options.microbatches = Some(2);
        raise(&mut divided, &whole);
        assert_eq!(divided.bound, lower.bound);
        let mut best = whole.clone();
        raise(&mut best, &lower);
        assert_eq!(best.bound, whole.bound);
    }
}
