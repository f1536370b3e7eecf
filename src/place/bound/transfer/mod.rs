//! Bounds on the bytes that any placement moves.
//!
//! Sets of units that fit one device are cheap to cut off only where nets are; `rooted` bounds
//! what the part pays that holds a given unit. Two counts follow. A net that a part shares costs
//! at least once: what one part pays in full bounds the whole (`cut`). Or each part pays its
//! share, and parts add up: at least as many parts pay a sum or more as it takes devices to hold
//! the units for which that is the least (`cuts`). `forest` is for graphs of any size.

mod capacity;
mod flow;
mod forest;
mod hypergraph;
mod rooted;
mod split;

use serde_json::{Value, json};

use super::super::Objective;
use super::super::problem::Problem;
use super::Certificate;
use crate::control::Control;
use crate::error::Result;
use capacity::{Capacity, Resource};
use flow::Pay;
use hypergraph::Hypergraph;
use rooted::{Case, Effort, PRICES, Rooted, Search};
pub(in crate::place) use split::split;

/// What may be spent: arcs looked at, and cases for each cut.
struct Budget {
    work: u64,
    cases: usize,
}

/// Work of the first round at default effort, beside that for each pin.
const FIRST: u64 = 500_000;

/// Work of the first round for each pair of a net and one of its units.
const EACH_PIN: u64 = 20;

/// By how much less work is spent where only a balance is asked for: much closes little of the gap there.
const BALANCED: u64 = 8;

/// How much more work each round may do than the one before.
const MORE: u64 = 4;

/// A round that closes less than one part in this many of the gap is the last, but for small graphs under caps.
const WORTHWHILE: u64 = 8;

/// Units up to which rounds go on that close nothing yet: cases of a tree close a gap all at once, when the last of
/// them does.
const PATIENT: usize = 2_000;

/// Prices tried for a part at first: the best one for the part before is near.
const FEW_PRICES: usize = 3;

/// Units for which no whole part is sought.
const ROOTS: usize = 4;

/// Certificates of several kinds, the simplest first.
///
/// Errors: those of [`super::super::place`].
pub(super) fn bounds(
    problem: &Problem<'_>,
    control: &Control<'_>,
    incumbent: u64,
) -> Result<Vec<Certificate>> {
    let graph = capacity::hypergraph(problem);
    let mut found = Vec::new();
    for resource in Resource::ALL {
        let Some(capacity) = Capacity::new(problem, resource)? else { continue };
        let (value, costs) = forest::bound(&graph, &capacity, forests(problem, &graph));
        let data = json!({ "of": resource.name(), "costs": costs });
        found.push(certificate(value, "forest", data));
        // Where anything is bounded already, no cuts are spent on counting units.
        let bounded =
            capacity.resource == Resource::Units && found.iter().any(|one: &Certificate| one.value > 0);
        if bounded || !is_split(problem, &capacity) {
            continue;
        }
        let target = Target { problem, control, graph: &graph, capacity: &capacity, incumbent };
        found.extend(target.rounds(value));
    }
    Ok(found)
}

/// True where one device may not do: for what units weigh and need, or where they may be.
fn is_split(problem: &Problem<'_>, capacity: &Capacity) -> bool {
    let need = capacity.weights.need.iter().max().copied().unwrap_or(0);
    capacity.parts(capacity.weights.total.saturating_add(need)) > 1 || problem.sets().len() > 1
}

/// How many forests are packed.
fn forests(problem: &Problem<'_>, graph: &Hypergraph) -> usize {
    use super::super::Effort;
    match problem.options.effort {
        Effort::Default if graph.nets() < 50_000 => 16,
        Effort::Best => 64,
        Effort::Fast | Effort::Default => 1,
    }
}

fn certificate(value: u64, proof: &'static str, data: Value) -> Certificate {
    Certificate { objective: Objective::Transfer, value, proof, data }
}

/// What the part with one unit pays at least.
struct Share {
    value: u64,
    root: u32,
    /// Units that are in the part whatever is chosen.
    members: Vec<u32>,
    cases: Vec<Case>,
}

/// One resource's bounds.
struct Target<'t, 'a> {
    problem: &'t Problem<'a>,
    control: &'t Control<'t>,
    graph: &'t Hypergraph,
    capacity: &'t Capacity,
    incumbent: u64,
}

impl Target<'_, '_> {
    /// What the first round may spend, and the last; none where the effort allows only what is
    /// near-linear.
    fn budgets(&self) -> Option<[Budget; 2]> {
        use super::super::Effort;
        let first = FIRST + EACH_PIN * self.graph.pin_count() as u64;
        let budgets = match self.problem.options.effort {
            Effort::Fast => return None,
            Effort::Default if self.is_patient() => {
                [first, 12_000_000].map(|work| Budget { work, cases: 256 })
            }
            Effort::Default if self.problem.options.balance.is_some() => {
                [first, 3_000_000].map(|work| Budget { work: work / BALANCED, cases: 64 })
            }
            Effort::Default => [first, 3_000_000].map(|work| Budget { work, cases: 64 }),
            Effort::Best => [first * 16, 400_000_000].map(|work| Budget { work, cases: 512 }),
        };
        (self.graph.units() <= 20_000).then_some(budgets)
    }

    /// Whether rounds go on that close nothing yet. Where only a balance is asked for, much work closes little of the gap.
    fn is_patient(&self) -> bool {
        self.graph.units() <= PATIENT && self.problem.options.balance.is_none()
    }

    /// Bounds by cuts in rounds of ever more work; but for small graphs as long as each closes a part of the gap between
    /// `best` and what is reached.
    fn rounds(&self, mut best: u64) -> Vec<Certificate> {
        let mut found = Vec::new();
        let Some([mut budget, last]) = self.budgets() else { return found };
        loop {
            found.extend(self.cut(&budget));
            if found.iter().all(|one| one.value < self.incumbent) {
                found.extend(self.cuts(&budget));
            }
            let value = found.iter().map(|one| one.value).max().unwrap_or(0);
            let left = self.incumbent.saturating_sub(value);
            let is_poor = value <= best || value - best < left / WORTHWHILE;
            let is_last = is_poor && !self.is_patient();
            if left == 0 || is_last || budget.work >= last.work || self.control.stopped() {
                return found;
            }
            best = best.max(value);
            budget.work = budget.work.saturating_mul(MORE).min(last.work);
        }
    }

    /// Units that weigh something, the heaviest first; those without a choice before.
    fn roots(&self) -> Vec<u32> {
        let weight = |unit: u32| self.capacity.weights.of[unit as usize];
        let fixed = |unit: u32| self.problem.fixed(unit as usize).is_some();
        let mut roots: Vec<u32> =
            (0..self.graph.units() as u32).filter(|&unit| weight(unit) > 0 || fixed(unit)).collect();
        roots.sort_by_key(|&unit| (!fixed(unit), std::cmp::Reverse(weight(unit))));
        let mut seen = vec![false; self.problem.sets().len()];
        roots.retain(|&unit| {
            let set = self.problem.set_of(unit as usize);
            !fixed(unit) || !std::mem::replace(&mut seen[set], true)
        });
        roots
    }

    /// The units whose parts are bounded in full: the heaviest and the neediest.
    fn leaders(&self) -> Vec<u32> {
        let mut leaders = self.roots();
        leaders.truncate(ROOTS / 2);
        let mut needy: Vec<u32> = (0..self.graph.units() as u32).collect();
        needy.sort_by_key(|&unit| std::cmp::Reverse(self.capacity.weights.need[unit as usize]));
        leaders.extend(needy.iter().take(ROOTS / 2));
        leaders
    }

    /// The part of one unit that pays most, each net in full.
    fn cut(&self, budget: &Budget) -> Option<Certificate> {
        let mut search = Search::new(self.graph, &self.capacity.weights, Pay::Whole);
        let mut best: Option<Certificate> = None;
        for (i, &root) in self.leaders().iter().enumerate() {
            let Some(part) = self.capacity.part(self.problem, root as usize) else { continue };
            // The network's work is counted through: each root may raise it by a quarter of half the budget.
            let work = budget.work / 2 * (i as u64 + 1) / ROOTS as u64;
            let effort =
                Effort { cases: budget.cases, work, target: self.incumbent, prices: PRICES, hint: 0 };
            let found = search.bound(&part, effort);
            if best.as_ref().is_none_or(|best| found.value > best.value) {
                let part = json!({ "node": self.node(root), "cases": self.cases(&found.cases) });
                let data = json!({ "of": self.capacity.resource.name(), "part": part });
                best = Some(certificate(found.value, "cut", data));
            }
            let reached = best.as_ref().is_some_and(|best| best.value >= self.incumbent);
            if reached || self.control.stopped() {
                break;
            }
        }
        best
    }

    /// What all parts pay together, each its share.
    fn cuts(&self, budget: &Budget) -> Option<Certificate> {
        let mut search = Search::new(self.graph, &self.capacity.weights, Pay::Shares);
        let mut found: Vec<Share> = Vec::new();
        let mut hint = 0;
        for root in self.roots() {
            let Some(part) = self.capacity.part(self.problem, root as usize) else { continue };
            let effort =
                Effort { cases: 1, work: budget.work, target: self.incumbent, prices: FEW_PRICES, hint };
            let Rooted { value, cases, .. } = search.bound(&part, effort);
            if let Some(&Case::Price(price)) = cases.last() {
                hint = price;
            }
            let all = 0..part.inside.len() as u32;
            let members = all.filter(|&unit| part.inside[unit as usize]).collect();
            found.push(Share { value, root, members, cases });
            if search.network.work > budget.work || self.control.stopped() {
                break;
            }
        }
        // What is left goes to all in equal parts, for more prices and for cases.
        let each = budget.work.saturating_sub(search.network.work) / found.len().max(1) as u64;
        for share in &mut found {
            let Some(part) = self.capacity.part(self.problem, share.root as usize) else { continue };
            let work = search.network.work + each;
            let effort =
                Effort { cases: budget.cases, work, target: self.incumbent, prices: PRICES, hint: 0 };
            let Rooted { value, cases, .. } = search.bound(&part, effort);
            if value > share.value {
                (share.value, share.cases) = (value, cases);
            }
            if search.network.work > budget.work || self.control.stopped() {
                break;
            }
        }
        found.sort_by_key(|share| (std::cmp::Reverse(share.value), share.root));
        let part =
            |share: &Share| json!({ "node": self.node(share.root), "cases": self.cases(&share.cases) });
        let parts: Vec<Value> = found.iter().map(part).collect();
        let data = json!({ "of": self.capacity.resource.name(), "parts": parts });
        Some(certificate(self.layers(&found), "cuts", data))
    }

    /// Sums what parts pay, those first that pay most at least: as many parts pay a sum as it
    /// takes devices to hold the units whose parts pay it.
    fn layers(&self, shares: &[Share]) -> u64 {
        let (mut weight, mut missing, mut fixed, mut sum) = (0u64, self.graph.units(), 0, 0u128);
        for (i, share) in shares.iter().enumerate() {
            weight += share.members.iter().map(|&unit| self.capacity.weights.of[unit as usize]).sum::<u64>();
            missing -= share.members.len();
            fixed += u64::from(self.problem.fixed(share.root as usize).is_some());
            let next = shares.get(i + 1).map_or(0, |next| next.value);
            let parts = self.capacity.parts_without(weight, missing).max(fixed);
            sum = sum.saturating_add(u128::from(parts) * u128::from(share.value - next));
        }
        u64::try_from(sum).unwrap_or(u64::MAX)
    }

    /// A node of a unit, by which the checker knows it.
    fn node(&self, unit: u32) -> u32 {
        self.problem.units.row(unit as usize)[0]
    }

    fn cases(&self, cases: &[Case]) -> Vec<Value> {
        let value = |case: &Case| match *case {
            Case::Split(unit) => json!({ "split": self.node(unit) }),
            Case::Price(price) => json!({ "price": price }),
        };
        cases.iter().map(value).collect()
    }
}
