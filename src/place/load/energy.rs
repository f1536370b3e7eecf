//! What annealing makes small: a smooth maximum of the loads, with what is over a bound counted as
//! a load above all.
//!
//! The energy is the p-norm of the loads. While p is small the loads of all resources count, so
//! that work flows away from the loaded ones; as p grows only the highest counts. Powers and
//! logarithms are made of IEEE basic operations, the same on every machine.

use crate::random::Rng;

/// What a violated bound counts as at least, in highest loads.
const BROKEN: f64 = 1.05;

/// What exceeding a bound by all of it adds to that.
const SLOPE: f64 = 4.0;

/// The energy of a vector of levels: loads first, then what is bounded.
#[derive(Debug)]
pub(super) struct Energy<'b> {
    resources: usize,
    /// Bounds of the levels behind the loads.
    bounds: &'b [u64],
    scale: f64,
    power: u32,
    terms: Vec<f64>,
    total: f64,
}

impl<'b> Energy<'b> {
    /// The energy of levels of which the first `resources` are loads.
    pub(super) fn new(resources: usize, bounds: &'b [u64]) -> Self {
        Self { resources, bounds, scale: 1.0, power: 1, terms: Vec::new(), total: 0.0 }
    }

    /// Takes `power` as the norm's, the highest of `levels` as the unit, and counts anew.
    pub(super) fn tune(&mut self, power: u32, levels: &[u64]) {
        let highest = levels[..self.resources].iter().copied().max().unwrap_or(0);
        self.scale = 1.0 / highest.max(1) as f64;
        self.power = power;
        self.terms.clear();
        for (slot, &level) in levels.iter().enumerate() {
            let term = self.term(slot, level);
            self.terms.push(term);
        }
        self.total = self.terms.iter().sum();
    }

    fn term(&self, slot: usize, level: u64) -> f64 {
        if slot < self.resources {
            return power(level as f64 * self.scale, self.power);
        }
        let bound = self.bounds[slot - self.resources];
        if level <= bound {
            return 0.0;
        }
        let over = (level - bound) as f64 / bound.max(1) as f64;
        power(BROKEN + SLOPE * over.min(1.0), self.power)
    }

    /// What the total becomes with the changed levels.
    pub(super) fn after(&self, changed: &[(u32, u64)], levels: &[u64]) -> f64 {
        changed.iter().fold(self.total, |total, &(slot, _)| {
            let slot = slot as usize;
            total + (self.term(slot, levels[slot]) - self.terms[slot])
        })
    }

    /// Takes the changed levels as they are.
    pub(super) fn keep(&mut self, changed: &[(u32, u64)], levels: &[u64], total: f64) {
        for &(slot, _) in changed {
            self.terms[slot as usize] = self.term(slot as usize, levels[slot as usize]);
        }
        self.total = total;
    }

    /// Metropolis' rule: whether a change to `total` is taken at a temperature, which is relative
    /// to the norm.
    pub(super) fn accepts(&self, total: f64, temperature: f64, rng: &mut Rng) -> bool {
        total <= self.total || total <= self.total * power(1.0 + temperature * exponential(rng), self.power)
    }

    /// True where nothing is over its bound.
    pub(super) fn holds(&self, levels: &[u64]) -> bool {
        levels[self.resources..].iter().zip(self.bounds).all(|(level, bound)| level <= bound)
    }
}

/// `base` to the power of `exponent`, by squaring.
fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}

/// A draw from the exponential distribution of mean 1: minus the logarithm of a uniform number,
/// by its exponent and the series of the inverse hyperbolic tangent (to 1e-5).
fn exponential(rng: &mut Rng) -> f64 {
    let bits = rng.next_u64() | 1;
    let zeros = bits.leading_zeros();
    // The leading one is worth 1, so that the mantissa is in [1, 2).
    let mantissa = (bits << zeros) as f64 / (1u64 << 63) as f64;
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let logarithm = 2.0 * s * (1.0 + square * (1.0 / 3.0 + square * (0.2 + square / 7.0)));
    f64::from(zeros + 1) * std::f64::consts::LN_2 - logarithm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_products() {
        assert_eq!(power(3.0, 0), 1.0);
        assert_eq!(power(3.0, 13), 1_594_323.0);
        assert_eq!(power(0.5, 10), 1.0 / 1024.0);
    }

    #[test]
    fn draws_are_exponential() {
        let mut rng = Rng::new(3);
        let draws: Vec<f64> = (0..100_000).map(|_| exponential(&mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let above = |limit: f64| draws.iter().filter(|&&draw| draw > limit).count() as f64 / 1e5;
        assert!(draws.iter().all(|&draw| draw >= 0.0));
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!((above(2.0) - 0.1353).abs() < 0.005 && (above(0.5) - 0.6065).abs() < 0.005);
    }

    #[test]
    fn the_energy_of_changes_is_that_of_counting_anew() {
        let bounds = [100, 100];
        let mut levels = vec![50, 40, 90, 99, 130];
        let mut energy = Energy::new(3, &bounds);
        energy.tune(8, &levels);
        assert!(!energy.holds(&levels));
        levels[1] = 60;
        levels[4] = 100;
        let changed = [(1, 40), (4, 130)];
        let total = energy.after(&changed, &levels);
        energy.keep(&changed, &levels, total);
        let kept = energy.terms.clone();
        energy.tune(8, &levels);
        assert_eq!(kept, energy.terms);
        assert!((total - energy.total).abs() < 1e-9);
        assert!(energy.holds(&levels));
    }
}
