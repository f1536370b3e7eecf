//! Efforts that are spent one after the other, so that the search can end once a plan is good enough.

use std::str::FromStr;

use crate::place::Effort;

/// A gap at which a search ends: `gap<1%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Until {
    gap: f64,
    or_equal: bool,
}

/// Values above this are told from one another by no gap.
const MOST: u64 = 1 << 52;

impl Until {
    /// True where a plan that is within `gap` of its bound is good enough.
    pub fn is_met_by(self, gap: f64) -> bool {
        gap < self.gap || self.or_equal && gap <= self.gap
    }

    /// The largest value that is within the gap of `bound`; `bound` itself where none is.
    pub fn enough(self, bound: u64) -> u64 {
        let is_met = |value: u64| value >= bound.max(1) && self.is_met_by(1.0 - bound as f64 / value as f64);
        let most = ((bound as f64 / (1.0 - self.gap)) as u64).min(MOST);
        // Rounding may have gone one too far.
        [most, most.saturating_sub(1)].into_iter().find(|&value| is_met(value)).unwrap_or(bound)
    }

    /// The efforts up to the one asked for, the least first.
    pub fn efforts(until: Option<Self>, asked: Effort) -> &'static [Effort] {
        match (asked, until) {
            (Effort::Fast, _) => &[Effort::Fast],
            (Effort::Default, None) => &[Effort::Default],
            (Effort::Default, Some(_)) => &[Effort::Fast, Effort::Default],
            // More work may lead elsewhere: it is no worse than the usual work only where both are done.
            (Effort::Best, None) => &[Effort::Default, Effort::Best],
            (Effort::Best, Some(_)) => &[Effort::Fast, Effort::Default, Effort::Best],
        }
    }
}

impl FromStr for Until {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected 'gap<1%', 'gap<=0' or the like, from 0 to 100%".to_owned();
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let rest = text.strip_prefix("gap<").ok_or_else(expected)?;
        let (or_equal, value) = rest.strip_prefix('=').map_or((false, rest), |value| (true, value));
        let (value, parts) = value.strip_suffix('%').map_or((value, 1.0), |value| (value, 100.0));
        let gap = value.parse::<f64>().map_err(|_| expected())? / parts;
        match (0.0..=1.0).contains(&gap) && (gap > 0.0 || or_equal) {
            true => Ok(Self { gap, or_equal }),
            false => Err(expected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_read() {
        let until = |text: &str| text.parse::<Until>();
        assert!(until("gap<1%").unwrap().is_met_by(0.0099) && !until("gap < 0.01").unwrap().is_met_by(0.01));
        assert!(until("gap<=0").unwrap().is_met_by(0.0) && until("gap<=1%").unwrap().is_met_by(0.01));
        for wrong in ["", "gap", "gap<", "gap<0", "gap>1%", "gap<-1%", "gap<101%", "gap<nan", "1%"] {
            assert!(until(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_enough_meets_the_gap_and_no_more_does() {
        for text in ["gap<1%", "gap<=1%", "gap<50%", "gap<=0", "gap<=33%"] {
            let until: Until = text.parse().unwrap();
            for bound in (1..200).chain([1_000_003, 87_654_321]) {
                let enough = until.enough(bound);
                let gap = |value: u64| 1.0 - bound as f64 / value as f64;
                assert!(enough >= bound, "{text} {bound}");
                assert!(enough == bound || until.is_met_by(gap(enough)), "{text} {bound}");
                assert!(!until.is_met_by(gap(enough + 1)), "{text} {bound}");
            }
        }
        assert_eq!("gap<100%".parse::<Until>().unwrap().enough(5), MOST);
    }

    #[test]
    fn the_last_effort_is_the_one_asked_for() {
        for asked in Effort::ALL {
            for until in [None, "gap<1%".parse().ok()] {
                let efforts = Until::efforts(until, asked);
                assert!(efforts.last() == Some(&asked) && efforts.is_sorted_by_key(|effort| *effort as u8));
            }
        }
    }
}
