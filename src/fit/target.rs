//! What a set of devices is to reach.

use std::fmt;
use std::str::FromStr;

use crate::place::Objective;
use crate::schedule::Cost;
use crate::units::Nanos;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A step takes less than this.
    Latency(Nanos),
    /// So many millionths of samples a second, or more where it is `strict`.
    Throughput { rate: u64, strict: bool },
    /// A step of so many samples fits.
    Batch(i64),
}

/// `latency<30ms`, `throughput>200/s` or `batch>=64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    text: String,
    kind: Kind,
}

/// What is expected of a target.
const EXPECTED: &str = "expected 'latency<30ms', 'throughput>200/s' or 'batch>=64'";

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let at = text.find(['<', '>']).ok_or(EXPECTED)?;
        let (name, rest) = text.split_at(at);
        let (sign, value) = rest.split_at(if rest[1..].starts_with('=') { 2 } else { 1 });
        let kind = match (name, sign) {
            ("latency", "<" | "<=") => Kind::Latency(latency(value, sign == "<=")?),
            ("throughput", ">" | ">=") => Kind::Throughput { rate: rate(value)?, strict: sign == ">" },
            ("batch", ">" | ">=") => Kind::Batch(batch(value, sign == ">")?),
            ("latency" | "throughput" | "batch", _) => {
                return Err(format!(
                    "the less latency and the more throughput or batch, the better: {EXPECTED}"
                ));
            }
            _ => return Err(EXPECTED.to_owned()),
        };
        Ok(Self { text, kind })
    }
}

/// The time that a step must stay below.
fn latency(value: &str, or_equal: bool) -> Result<Nanos, String> {
    if value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(format!("a time has a unit (ns, us, ms, s): {EXPECTED}"));
    }
    let time: Nanos = value.parse()?;
    match time + Nanos(u64::from(or_equal)) {
        Nanos::ZERO => Err("no step takes less than no time".to_owned()),
        time => Ok(time),
    }
}

/// Millionths of samples a second.
fn rate(value: &str) -> Result<u64, String> {
    let number =
        value.strip_suffix("/s").ok_or_else(|| format!("a throughput is for each second: {EXPECTED}"))?;
    let rate = number.parse::<f64>().map(|rate| (rate * 1e6).round());
    match rate {
        Ok(rate) if (1.0..1e18).contains(&rate) => Ok(rate as u64),
        _ => Err(format!("a throughput is a number from 0.000001 up to 10^12: {EXPECTED}")),
    }
}

/// The samples that must fit.
fn batch(value: &str, more: bool) -> Result<i64, String> {
    match value.parse::<i64>().ok().and_then(|batch| batch.checked_add(i64::from(more))) {
        Some(batch) if batch > 0 => Ok(batch),
        _ => Err(format!("a batch is a number from 1: {EXPECTED}")),
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Target {
    /// What plans are made for.
    pub fn objective(&self) -> Objective {
        match self.kind {
            Kind::Latency(_) => Objective::Latency,
            Kind::Throughput { .. } => Objective::Throughput,
            Kind::Batch(_) => Objective::Transfer,
        }
    }

    /// The samples of a step, where the target says.
    pub fn batch(&self) -> Option<i64> {
        match self.kind {
            Kind::Batch(batch) => Some(batch),
            Kind::Latency(_) | Kind::Throughput { .. } => None,
        }
    }

    /// The target for steps of so many samples; of steps themselves where that is not known.
    pub fn of_steps(&self, samples: Option<i64>) -> Goal {
        Goal { target: self.clone(), samples: samples.and_then(|samples| u64::try_from(samples).ok()) }
    }
}

/// A target for steps whose size is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Goal {
    target: Target,
    samples: Option<u64>,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

impl Goal {
    /// What the objective must stay below; none where a plan that fits is enough.
    pub fn limit(&self) -> Option<Nanos> {
        match self.target.kind {
            Kind::Latency(time) => Some(time),
            Kind::Throughput { rate, strict } => {
                let (samples, rate) = (u128::from(self.samples.unwrap_or(1)), u128::from(rate));
                let nanos = samples * 1_000_000_000_000_000;
                let limit = if strict { nanos.div_ceil(rate) } else { nanos / rate + 1 };
                Some(Nanos(u64::try_from(limit).unwrap_or(u64::MAX)))
            }
            Kind::Batch(_) => None,
        }
    }

    /// True where an objective of this reaches the goal.
    pub fn is_reached_by(&self, nanos: Nanos) -> bool {
        self.limit().is_none_or(|limit| nanos < limit)
    }

    /// What a plan's objective comes to: the time of a step, or the load of the busiest device or link.
    pub fn measured(&self, cost: &Cost) -> Nanos {
        match self.target.kind {
            Kind::Latency(_) | Kind::Batch(_) => cost.latency,
            Kind::Throughput { .. } => cost.max_load,
        }
    }

    /// True where a step as a whole is timed, not the busiest device.
    pub fn is_of_latency(&self) -> bool {
        match self.target.kind {
            Kind::Latency(_) | Kind::Batch(_) => true,
            Kind::Throughput { .. } => false,
        }
    }

    /// What the objective is called.
    pub fn measure(&self) -> &'static str {
        if self.is_of_latency() { "time of a step" } else { "load for each step" }
    }

    /// An objective in the target's own unit.
    pub fn words(&self, nanos: Nanos) -> String {
        match self.target.kind {
            Kind::Latency(_) | Kind::Batch(_) => format!("a step of {nanos}"),
            Kind::Throughput { .. } => self.rate(nanos),
        }
    }

    /// What a bound on the objective says.
    pub fn bound_words(&self, nanos: Nanos) -> String {
        match self.target.kind {
            Kind::Latency(_) | Kind::Batch(_) => format!("no plan is below {nanos}"),
            Kind::Throughput { .. } => format!("no plan is above {}", self.rate(nanos)),
        }
    }

    fn rate(&self, nanos: Nanos) -> String {
        let rate = 1e9 * self.samples.unwrap_or(1) as f64 / nanos.get().max(1) as f64;
        let what = if self.samples.is_some() { "samples" } else { "steps" };
        match rate {
            rate if rate >= 1000.0 => format!("{rate:.0} {what}/s"),
            rate if rate >= 10.0 => format!("{rate:.1} {what}/s"),
            rate => format!("{rate:.4} {what}/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(target: &str, samples: Option<i64>) -> Option<Nanos> {
        target.parse::<Target>().unwrap().of_steps(samples).limit()
    }

    #[test]
    fn a_target_says_what_the_objective_must_stay_below() {
        assert_eq!(limit("latency < 30ms", None), Some(Nanos(30_000_000)));
        assert_eq!(limit("latency<=30ns", None), Some(Nanos(31)));
        assert_eq!(limit("throughput>200/s", Some(8)), Some(Nanos(40_000_000)));
        assert_eq!(limit("throughput>=200/s", None), Some(Nanos(5_000_001)));
        assert_eq!(limit("throughput>3/s", None), Some(Nanos(333_333_334)));
        assert_eq!(limit("batch>=64", None), None);
        assert_eq!("batch>63".parse::<Target>().unwrap().batch(), Some(64));
    }

    #[test]
    fn what_is_no_target_says_what_is_expected() {
        for (text, part) in [
            ("", "expected"),
            ("speed>3", "expected"),
            ("latency>3ms", "the less latency"),
            ("batch<4", "the better"),
            ("latency<3", "a time has a unit"),
            ("latency<0ms", "no time"),
            ("latency<3 parsecs", "parsecs"),
            ("throughput>200", "for each second"),
            ("throughput>0/s", "from 0.000001"),
            ("throughput>nan/s", "from 0.000001"),
            ("batch>=0", "from 1"),
            ("batch>9223372036854775807", "from 1"),
        ] {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn rates_count_the_samples_of_a_step() {
        let target: Target = "throughput>200/s".parse().unwrap();
        assert_eq!(target.of_steps(Some(8)).words(Nanos(40_000_000)), "200.0 samples/s");
        assert_eq!(
            target.of_steps(None).bound_words(Nanos(2_000_000_000)),
            "no plan is above 0.5000 steps/s"
        );
    }
}
