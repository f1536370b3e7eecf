//! How the learning rate goes over the steps of a run.
//!
//! Computed from IEEE basic operations alone, so that a run's parameters are the same on every machine.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::train::spec::Spec;

/// The shape of the rate after its warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// The same in every step.
    Constant,
    /// Multiplied by `factor` after each `every` steps.
    Step {
        /// Steps between.
        every: u64,
        /// What it is multiplied with.
        factor: f64,
    },
    /// Half a cosine from the rate to `floor` of it over `steps` (Loshchilov and Hutter 2017).
    Cosine {
        /// How many; none for all steps of the run.
        steps: Option<u64>,
        /// The share of the rate that is left.
        floor: f64,
    },
    /// Up from `1 / 25` of the rate over the first `up` of the steps, then down to a 250,000th of it,
    /// both along half cosines (Smith and Topin 2018).
    OneCycle {
        /// How many; none for all steps of the run.
        steps: Option<u64>,
        /// The share of the steps that goes up.
        up: f64,
    },
}

/// How the rate goes over the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The rate that the shape multiplies.
    pub base: f64,
    /// Its shape.
    pub shape: Shape,
    /// Steps in which it rises from zero first, along a line.
    pub warmup: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { base: 0.01, shape: Shape::Constant, warmup: 0 }
    }
}

impl FromStr for Shape {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Rate::parse(1.0, text).map(|rate| rate.shape)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::Constant => write!(f, "{}", self.base)?,
            Shape::Step { every, factor } => write!(f, "{}, times {factor} every {every} steps", self.base)?,
            Shape::Cosine { .. } => write!(f, "{}, along a cosine", self.base)?,
            Shape::OneCycle { .. } => write!(f, "{}, in one cycle", self.base)?,
        }
        if self.warmup > 0 {
            write!(f, ", after {} steps of warm-up", self.warmup)?;
        }
        Ok(())
    }
}

impl Rate {
    /// `constant`, `step:every=1000,factor=0.5`, `cosine:steps=5000,floor=0.1`, `one-cycle:up=0.3`, each
    /// with `warmup=100`.
    ///
    /// Errors: [`Error::Usage`] for another name, key or value.
    pub fn parse(base: f64, text: &str) -> Result<Self> {
        let mut spec = Spec::parse("--lr-schedule", text)?;
        let shape = match spec.name() {
            "constant" => Shape::Constant,
            "step" => {
                let every = spec
                    .count("every")?
                    .ok_or_else(|| Error::usage(format!("--lr-schedule {text}"), "it needs every=STEPS"))?;
                Shape::Step { every, factor: spec.real("factor", 0.1)? }
            }
            "cosine" => Shape::Cosine { steps: spec.count("steps")?, floor: spec.real("floor", 0.0)? },
            "one-cycle" => Shape::OneCycle { steps: spec.count("steps")?, up: spec.share("up", 0.3)? },
            _ => return Err(spec.unknown("schedule", "constant, step, cosine, one-cycle")),
        };
        let warmup = spec.count("warmup")?.unwrap_or(0);
        spec.finish()?;
        Ok(Self { base, shape, warmup })
    }

    /// True where the rate depends on the number of steps of the run and does not give it itself.
    pub const fn needs_steps(&self) -> bool {
        matches!(self.shape, Shape::Cosine { steps: None, .. } | Shape::OneCycle { steps: None, .. })
    }

    /// The rate in a step, counted from 0, of a run of `total` steps.
    pub fn at(&self, step: u64, total: u64) -> f64 {
        if step < self.warmup {
            return self.base * (step + 1) as f64 / self.warmup as f64;
        }
        let step = step - self.warmup;
        let total = total.saturating_sub(self.warmup).max(1);
        match self.shape {
            Shape::Constant => self.base,
            Shape::Step { every, factor } => {
                let mut rate = self.base;
                for _ in 0..(step / every.max(1)).min(2000) {
                    rate *= factor;
                }
                rate
            }
            Shape::Cosine { steps, floor } => {
                let done = (step as f64 / steps.unwrap_or(total).max(1) as f64).min(1.0);
                self.base * (floor + (1.0 - floor) * (1.0 + cos_pi(done)).max(0.0) / 2.0)
            }
            Shape::OneCycle { steps, up } => {
                let last = (steps.unwrap_or(total).max(2) - 1) as f64;
                // The last of the steps that go up has the whole rate, as in PyTorch.
                let (peak, at) = (up * (last + 1.0) - 1.0, (step as f64).min(last));
                let (low, end) = (self.base / 25.0, self.base / 250_000.0);
                let (from, to, done) = match at < peak {
                    true => (low, self.base, at / peak),
                    false => (self.base, end, (at - peak) / (last - peak)),
                };
                to + (from - to) * (1.0 + cos_pi(done)) / 2.0
            }
        }
    }
}

/// `cos(pi x)` for `x` from 0 to 1: the Taylor series of the sine about the middle, to the last bit or
/// two.
fn cos_pi(x: f64) -> f64 {
    let angle = (0.5 - x) * std::f64::consts::PI;
    let square = angle * angle;
    let (mut term, mut sum) = (angle, angle);
    for k in 1..14 {
        let k = f64::from(k);
        term *= -square / ((2.0 * k) * (2.0 * k + 1.0));
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Rate {
        Rate::parse(0.1, text).unwrap()
    }

    #[test]
    fn cosines_are_those_of_the_library() {
        for step in 0..=1000 {
            let x = f64::from(step) / 1000.0;
            assert!((cos_pi(x) - (std::f64::consts::PI * x).cos()).abs() < 1e-14, "{x}");
        }
    }

    #[test]
    fn rates_go_as_their_definitions_say() {
        assert_eq!(parse("constant").at(7, 10), 0.1);
        let warm = parse("constant:warmup=4");
        assert_eq!([warm.at(0, 9), warm.at(3, 9), warm.at(4, 9)], [0.025, 0.1, 0.1]);
        let steps = parse("step:every=3,factor=0.5");
        assert_eq!([steps.at(2, 9), steps.at(3, 9), steps.at(6, 9)], [0.1, 0.05, 0.025]);
        let cosine = parse("cosine:floor=0.2");
        assert!((cosine.at(50, 100) - 0.06).abs() < 1e-12 && (cosine.at(100, 100) - 0.02).abs() < 1e-12);
    }

    /// Rates of `torch.optim.lr_scheduler.OneCycleLR` with the same maximum and share.
    #[test]
    fn one_cycle_goes_as_pytorchs_does() {
        let long = [
            0.004,
            0.098_055_662_7,
            0.091_904_437_6,
            0.067_268_383_6,
            0.035_773_877_6,
            0.009_929_679_2,
            4e-7,
        ];
        let short = [0.096_984_643_1, 0.075_000_1, 0.041_317_825_8, 0.011_698_131_1, 4e-7];
        for (cycle, rates) in [("one-cycle", long.as_slice()), ("one-cycle:up=0.1", &short)] {
            let rate = parse(cycle);
            for (step, expected) in (0..).zip(rates) {
                let at = rate.at(step, rates.len() as u64);
                assert!((at - expected).abs() < 1e-9, "{cycle}, step {step}: {at}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for text in
            ["stairs", "step", "step:every=0", "cosine:speed=3", "constant:warmup=-1", "step:every=1,every=2"]
        {
            assert!(Rate::parse(0.1, text).is_err(), "{text}");
        }
    }
}
