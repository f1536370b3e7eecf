//! What a step took beside what was predicted for it, and what to do where the two are far apart.

use std::time::Duration;

use crate::plan::Plan;
use crate::units::Nanos;

/// Times that are further apart than by this factor are worth a word.
const FAR: f64 = 2.0;

/// The time of a step, as predicted and as measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Predicted {
    measured: Nanos,
    predicted: Nanos,
    basis: Basis,
}

/// What the prediction stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    /// What processors of this kind reach, or what the specification says.
    Estimates,
    /// A profile.
    Profile,
}

impl Predicted {
    /// That of a plan; `measured` is the median of its steps.
    pub(super) fn of(plan: &Plan, measured: Duration) -> Self {
        let basis = if plan.profile.is_some() { Basis::Profile } else { Basis::Estimates };
        let measured = Nanos(u64::try_from(measured.as_nanos()).unwrap_or(u64::MAX));
        Self { measured, predicted: plan.cost.latency_ns, basis }
    }

    /// `measured 1.2 ms, predicted 0.9 ms`.
    pub(super) fn text(&self) -> String {
        format!("measured {}, predicted {}", self.measured, self.predicted)
    }

    /// Whether the step took longer than was predicted.
    pub(super) fn is_slow(&self) -> bool {
        self.measured > self.predicted
    }

    /// What to do about a prediction that is far off; none where it is not.
    pub(super) fn advice(&self) -> Option<String> {
        let (measured, predicted) = (self.measured.get().max(1) as f64, self.predicted.get().max(1) as f64);
        let factor = (measured / predicted).max(predicted / measured);
        if factor <= FAR {
            return None;
        }
        let off = match measured > predicted {
            true => format!("a step takes {factor:.1} times the predicted time"),
            false => format!("the predicted time is {factor:.1} times what a step takes"),
        };
        Some(match self.basis {
            Basis::Estimates => format!(
                "{off}, which is an estimate: `partition run --calibrate -o machine.json` measures this machine, \
                 --profile machine.json plans with it"
            ),
            Basis::Profile => format!(
                "{off}: is the profile of this machine, and was it idle then and now? \
                 `partition run --calibrate` measures anew"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(measured: u64, predicted: u64, basis: Basis) -> Predicted {
        Predicted { measured: Nanos(measured), predicted: Nanos(predicted), basis }
    }

    #[test]
    fn a_prediction_that_is_far_off_says_what_to_do() {
        let near = of(1_900_000, 1_000_000, Basis::Estimates);
        assert_eq!(near.advice(), None);
        assert_eq!(near.text(), format!("measured {}, predicted {}", Nanos(1_900_000), Nanos(1_000_000)));
        let slow = of(5_000_000, 1_000_000, Basis::Estimates).advice().unwrap();
        assert!(slow.contains("5.0 times the predicted time") && slow.contains("--calibrate"), "{slow}");
        let fast = of(1_000_000, 5_000_000, Basis::Profile).advice().unwrap();
        assert!(
            fast.contains("is 5.0 times what a step takes") && fast.contains("the profile of this machine"),
            "{fast}"
        );
        assert!(of(0, 0, Basis::Estimates).advice().is_none());
    }
}
