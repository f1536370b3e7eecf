//! When to write a checkpoint: every so many steps, every so many minutes, or whichever comes first.

use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::units::Nanos;

/// How often checkpoints are written: `500`, `500 steps`, `10min`, or both as `500,10min`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// After each multiple of so many steps.
    pub steps: Option<u64>,
    /// After so much time since the last one.
    pub time: Option<Duration>,
}

impl FromStr for Policy {
    type Err = Error;

    /// Error: [`Error::Usage`] where neither steps nor a time are named.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut policy = Self::default();
        for part in text.split(',').map(str::trim) {
            let steps = part.strip_suffix("steps").or_else(|| part.strip_suffix("step")).unwrap_or(part);
            match steps.trim().parse() {
                Ok(0) => return Err(wrong(text)),
                Ok(steps) => policy.steps = Some(steps),
                Err(_) => policy.time = Some(minutes(part).ok_or_else(|| wrong(text))?),
            }
        }
        Ok(policy)
    }
}

fn wrong(text: &str) -> Error {
    Error::usage(format!("--checkpoint-every {text}"), "expected steps, a time, or both")
        .with_help("for example 500, 10min, 30s, or 500,10min")
}

/// A time, in minutes and hours too.
fn minutes(text: &str) -> Option<Duration> {
    let number = |unit: &str, seconds: f64| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok()
    };
    let nanos = || text.parse::<Nanos>().ok().map(|nanos| Duration::from_nanos(nanos.get()));
    let time =
        number("min", 60.0).or_else(nanos).or_else(|| number("m", 60.0)).or_else(|| number("h", 3600.0));
    time.filter(|time| !time.is_zero())
}

/// Tells after each step whether a checkpoint is due.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    policy: Policy,
    last: Instant,
}

impl Due {
    /// Time counts from now.
    pub fn new(policy: Policy) -> Self {
        Self { policy, last: Instant::now() }
    }

    /// Whether one is due when `step` steps are done.
    pub fn is_due(&self, step: u64) -> bool {
        self.policy.steps.is_some_and(|steps| step > 0 && step.is_multiple_of(steps))
            || self.policy.time.is_some_and(|time| self.last.elapsed() >= time)
    }

    /// One was written.
    pub fn written(&mut self) {
        self.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_times_are_read() {
        let policy = |text: &str| text.parse::<Policy>().unwrap();
        assert_eq!(policy("500"), Policy { steps: Some(500), time: None });
        assert_eq!(policy("500 steps, 10min").time, Some(Duration::from_secs(600)));
        assert_eq!(policy("30s"), Policy { steps: None, time: Some(Duration::from_secs(30)) });
        assert_eq!(policy("2h").time, Some(Duration::from_secs(7200)));
        for text in ["", "0", "-5", "soon", "0s", "NaNmin"] {
            assert!(text.parse::<Policy>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_checkpoint_is_due_by_steps_or_by_time() {
        let due = Due::new("10".parse().unwrap());
        assert!(!due.is_due(0) && !due.is_due(9) && due.is_due(10) && due.is_due(20));
        let mut due = Due::new("20ms".parse().unwrap());
        std::thread::sleep(Duration::from_millis(25));
        assert!(due.is_due(1));
        due.written();
        assert!(!due.is_due(2) || due.last.elapsed() >= Duration::from_millis(20));
    }
}
