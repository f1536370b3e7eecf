//! Weights of groups that all engines together cannot hold: column generation, whose columns are the heaviest sets that
//! an engine can hold.
//!
//! Weights begin as times, and are moved by a few subgradient steps; then the master problem of the sets that are known
//! prices the groups anew. Prices far from the best weights so far are pulled towards these (Wentges, "Weighted
//! Dantzig-Wolfe decomposition for linear mixed-integer programming", 1997).

use std::collections::BTreeSet;

use super::frontier::{Filled, Frontier};
use super::prices::Master;

/// Below the heaviest set of an engine, also sets that weigh so much less become columns.
const BELOW: [usize; 7] = [0, 1, 3, 8, 20, 50, 100];

/// Subgradient steps before prices are sought.
const SUBGRADIENT_STEPS: u32 = 12;

/// Steps aim at weights that exceed what the engines hold by so much.
const EXCESS: f64 = 0.01;

/// Trials of weights against one limit.
const TRIALS: u32 = 80;

/// How far prices are pulled towards the best weights: at first, and at most.
const PULL: (f64, f64) = (0.8, 0.9);

/// Engines that are alike.
pub(super) struct Class {
    /// How many they are.
    pub(super) count: u32,
    /// By group, its time there; none where it cannot be there.
    pub(super) times: Vec<Option<u64>>,
    /// What each can hold.
    pub(super) frontier: Frontier,
}

/// How much work is worth it.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    /// What all groups weigh together, about.
    pub(super) weight: u32,
    /// Numbers that are counted.
    pub(super) work: usize,
}

/// Weights, and what they prove.
pub(super) struct Found {
    /// No plan's highest load is less.
    pub(super) value: u64,
    /// By group.
    pub(super) weights: Vec<u32>,
}

/// Weights with what engines hold of them.
struct Trial {
    weights: Vec<u32>,
    total: u64,
    /// By class.
    filled: Vec<Filled>,
}

impl Trial {
    /// The most weight that all engines hold together if none is loaded above `limit`.
    fn capacity(&self, classes: &[Class], limit: u64) -> u64 {
        let held = classes.iter().zip(&self.filled);
        held.map(|(class, filled)| u64::from(class.count) * filled.heaviest(limit) as u64).sum()
    }

    /// The least limit, at most `most`, under which the engines hold all of the weight.
    fn value(&self, classes: &[Class], most: u64) -> u64 {
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.capacity(classes, middle) >= self.total {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}

/// A set that an engine of some class can hold.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    class: usize,
    groups: Vec<u32>,
    load: u64,
}

/// The search for a bound between two.
pub(super) struct Search<'s> {
    classes: &'s [Class],
    budget: Budget,
    /// What is proven, and what may be provable.
    low: u64,
    high: u64,
    best: Option<Found>,
    /// All sets that were found.
    held: BTreeSet<Held>,
    master: Master,
    /// By group, what is tried next.
    prices: Vec<f64>,
    /// The best prices under the present limit: the capacity for all of their weight, and themselves.
    center: (f64, Vec<f64>),
    pull: f64,
    steps: u32,
    trials: u32,
    work: usize,
}

impl<'s> Search<'s> {
    /// Between what is known and `most`, the least load that the frontiers do not count.
    pub(super) fn new(classes: &'s [Class], budget: Budget, known: u64, most: u64) -> Self {
        let groups = classes.first().map_or(0, |class| class.times.len());
        let time = |group: usize| classes.iter().filter_map(|class| class.times[group]).min().unwrap_or(most);
        let prices: Vec<f64> = (0..groups).map(|group| time(group) as f64).collect();
        Self {
            classes,
            budget,
            low: known,
            high: most,
            best: None,
            held: BTreeSet::new(),
            master: Master::new(groups, &counts(classes)),
            center: (f64::INFINITY, prices.clone()),
            prices,
            pull: PULL.0,
            steps: SUBGRADIENT_STEPS,
            trials: 0,
            work: 0,
        }
    }

    /// The highest bound found, with its weights.
    pub(super) fn run(mut self, stopped: &dyn Fn() -> bool) -> Option<Found> {
        while self.low < self.high && self.work < self.budget.work && !stopped() {
            let target = self.low + (self.high - self.low).div_ceil(2);
            let trial = self.trial();
            let value = trial.value(self.classes, self.high);
            let (held, is_new) = self.collect(&trial, target - 1);
            let ratio = trial.capacity(self.classes, target - 1) as f64 / trial.total.max(1) as f64;
            if ratio < self.center.0 {
                self.center = (ratio, self.prices.clone());
            }
            if value > self.low {
                self.low = value;
                self.best = Some(Found { value, weights: trial.weights });
            }
            if value >= target {
                self.begin(self.prices.clone());
            }
            let goes_on = match self.steps {
                0 => self.price(is_new),
                _ => self.step(&held, ratio),
            };
            if !goes_on {
                self.lower(target);
            }
        }
        self.best
    }

    /// Fills the engines with the prices in whole numbers.
    fn trial(&mut self) -> Trial {
        let sum: f64 = self.prices.iter().sum();
        let whole =
            |price: &f64| (price / sum.max(f64::MIN_POSITIVE) * f64::from(self.budget.weight) + 0.5) as u32;
        let weights: Vec<u32> = self.prices.iter().map(whole).collect();
        let filled: Vec<Filled> = self.classes.iter().map(|class| class.frontier.fill(&weights)).collect();
        self.work += filled.iter().map(Filled::len).sum::<usize>();
        self.trials += 1;
        let total = weights.iter().map(|&weight| u64::from(weight)).sum();
        Trial { weights, total, filled }
    }

    /// Makes sets of a trial columns. By group, how many engines hold it in their heaviest sets; and whether
    /// a set is new.
    fn collect(&mut self, trial: &Trial, limit: u64) -> (Vec<f64>, bool) {
        let mut engines = vec![0.0; trial.weights.len()];
        let mut is_new = false;
        for (number, (class, filled)) in self.classes.iter().zip(&trial.filled).enumerate() {
            let heaviest = filled.heaviest(limit);
            for weight in BELOW.iter().filter_map(|below| heaviest.checked_sub(*below)) {
                let Some(&load) = filled.loads().get(weight).filter(|&&load| load <= limit) else { continue };
                let groups = class.frontier.set(filled, &trial.weights, weight);
                if weight == heaviest {
                    groups.iter().for_each(|&group| engines[group as usize] += f64::from(class.count));
                }
                let held = Held { class: number, groups, load };
                if !self.held.contains(&held) {
                    self.master.add(&held.groups, number);
                    self.held.insert(held);
                    is_new = true;
                }
            }
        }
        (engines, is_new)
    }

    /// A subgradient step of Polyak's length; false where it leads nowhere.
    fn step(&mut self, engines: &[f64], ratio: f64) -> bool {
        self.steps -= 1;
        let slopes = || engines.iter().map(|held| 1.0 - held);
        let norm: f64 = slopes().map(|slope| slope * slope).sum();
        let sum: f64 = self.prices.iter().sum();
        let length = (ratio - 1.0 + EXCESS).max(EXCESS / 4.0) * sum / norm;
        if norm > 0.0 {
            let moved = self.prices.iter_mut().zip(slopes());
            moved.for_each(|(price, slope)| *price = (*price + length * slope).max(0.0));
        }
        norm > 0.0 && self.prices.iter().any(|&price| price > 0.0)
    }

    /// Prices the groups by the sets that are known; false where no prices can make the limit too low.
    fn price(&mut self, is_new: bool) -> bool {
        self.pull = match is_new {
            true => (self.pull * 1.05).min(PULL.1),
            false => self.pull * 0.7,
        };
        let (engines, prices) = self.master.prices(&mut self.work);
        let (all, of_center) = (prices.iter().sum::<f64>(), self.center.1.iter().sum::<f64>());
        let goes_on =
            engines > 1.0 + 1e-6 && self.trials < TRIALS && all > 0.0 && (is_new || self.pull > 0.01);
        if goes_on {
            let mixed = prices.iter().zip(&self.center.1);
            let mixed =
                mixed.map(|(price, center)| price / all * (1.0 - self.pull) + center / of_center * self.pull);
            self.prices = mixed.collect();
        }
        goes_on
    }

    /// Begins anew under another limit.
    fn begin(&mut self, center: Vec<f64>) {
        self.center = (f64::INFINITY, center);
        self.pull = PULL.0;
        self.trials = 0;
    }

    /// Aims below a bound that could not be proven.
    fn lower(&mut self, target: u64) {
        self.high = target - 1;
        let groups = self.prices.len();
        self.master = Master::new(groups, &counts(self.classes));
        let limit = self.low + (self.high - self.low).div_ceil(2);
        // A set that loads an engine more than the new limit is no column.
        self.held.retain(|held| held.load < limit);
        self.held.iter().for_each(|held| self.master.add(&held.groups, held.class));
        if let Some(best) = &self.best {
            // No price of zero: it would stay zero.
            self.prices = best.weights.iter().map(|&weight| f64::from(weight) + EXCESS).collect();
        }
        self.begin(self.prices.clone());
    }
}

fn counts(classes: &[Class]) -> Vec<u32> {
    classes.iter().map(|class| class.count).collect()
}
