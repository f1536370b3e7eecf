//! Which devices to buy: the cheapest set of a catalogue on which a plan reaches a target.
//!
//! `catalogue` says what is on offer, `price` what for, and `target` what is to be reached. `sets` lists sets of devices by
//! price, `bounds` excludes those on which no plan reaches the target, and `search` plans for the others, with whole
//! operations; `parted` then looks for cheaper sets on which plans reach it that split operations. Few bounds speak of those.

mod bounds;
mod catalogue;
mod cheapest;
mod parted;
mod price;
mod search;
mod sets;
mod target;

use crate::compile::{self, Compiled};
use crate::load::Model;
use crate::units::Nanos;

pub use catalogue::Catalogue;
pub use cheapest::cheapest;
pub use price::Price;
pub use sets::Set;
pub use target::{Goal, Target};

/// What is sought.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// What is planned.
    pub model: &'r Model,
    /// What is on offer.
    pub catalogue: &'r Catalogue,
    /// What is to be reached.
    pub target: &'r Target,
    /// The most that the set may cost.
    pub budget: Option<Price>,
    /// How plans are made. Their objective is the target's.
    pub options: &'r compile::Options,
    /// Whether sets are planned for that only show what price buys: dearer ones; and where operations stay whole, cheaper
    /// ones that bounds exclude.
    pub has_curve: bool,
}

/// What became of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A plan reaches the target. What its objective comes to.
    Reaches(Nanos),
    /// The best plan found misses it.
    Misses {
        /// What its objective comes to.
        reached: Nanos,
        /// No plan on the set is below this.
        bound: Option<Nanos>,
    },
    /// There is no plan.
    Refused {
        /// Whether there can be none; else none was found.
        proven: bool,
        /// Why, in words.
        why: String,
    },
    /// Bounds show that no plan reaches the target, in these words.
    Excluded(String),
    /// No plan was sought, for this reason.
    Open(String),
}

impl Verdict {
    /// True where no plan on the set can reach the goal.
    fn is_proven(&self, goal: &Goal) -> bool {
        match self {
            Self::Reaches(_) | Self::Open(_) => false,
            Self::Misses { bound, .. } => bound.is_some_and(|bound| !goal.is_reached_by(bound)),
            Self::Refused { proven, .. } => *proven,
            Self::Excluded(_) => true,
        }
    }
}

/// A set that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The set.
    pub set: Set,
    /// What became of it.
    pub verdict: Verdict,
}

impl Tried {
    /// What the objective of the best plan found comes to.
    pub fn reached(&self) -> Option<Nanos> {
        match self.verdict {
            Verdict::Reaches(reached) | Verdict::Misses { reached, .. } => Some(reached),
            Verdict::Refused { .. } | Verdict::Excluded(_) | Verdict::Open(_) => None,
        }
    }

    /// True where no plan on the set can reach the goal.
    pub fn is_proven(&self, goal: &Goal) -> bool {
        self.verdict.is_proven(goal)
    }

    /// What became of the set, in words.
    pub fn words(&self, goal: &Goal) -> String {
        match &self.verdict {
            Verdict::Reaches(reached) => goal.words(*reached),
            Verdict::Misses { reached, bound: Some(bound) } if self.is_proven(goal) => {
                format!("{}, and {}", goal.words(*reached), goal.bound_words(*bound))
            }
            Verdict::Misses { reached, bound } => {
                let bound = bound.map_or(String::new(), |bound| format!(" ({})", goal.bound_words(bound)));
                format!("{} in the best plan found{bound}: not proven", goal.words(*reached))
            }
            Verdict::Refused { proven: true, why } => format!("nothing fits: {why}"),
            Verdict::Refused { proven: false, why } => format!("no plan that fits was found: {why}"),
            Verdict::Excluded(why) => why.clone(),
            Verdict::Open(why) => format!("{why}: no plan was sought, and nothing is proven"),
        }
    }
}

/// How the sets that are cheaper than the one found fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cheaper {
    /// How many there are; where the search was cut, how many it looked at.
    pub count: usize,
    /// Those that bounds excluded before they were planned for.
    pub excluded: usize,
    /// Those for which it is not proven that no plan reaches the target, by price; the dearest of them, where there are many.
    pub open: Vec<Tried>,
    /// How many these are.
    pub open_count: usize,
    /// The dearest of all cheaper sets.
    pub next: Option<Tried>,
    /// Whether the search ended before it had looked at all of them: nothing is proven of the others.
    pub is_cut: bool,
}

/// The cheapest set that was found.
#[derive(Debug)]
pub struct Fitted {
    /// What it reaches.
    pub goal: Goal,
    /// The set; of those that cost the same, the first of fewest devices.
    pub found: Tried,
    /// Its plan.
    pub compiled: Compiled,
    /// How cheaper sets fail.
    pub cheaper: Cheaper,
    /// Sets that were planned for, by price: what price buys.
    pub curve: Vec<Tried>,
}
