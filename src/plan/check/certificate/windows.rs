//! A window of time that is too small: if a step took less than the bound, more work than the
//! engines can do would fall into the window, whatever the schedule.

use serde::Deserialize;

use super::Proof;
use super::chains::Spans;
use super::facts::Facts;
use super::fork_joins::ForkJoin;
use super::work::Weights;
use crate::costgraph::NodeIx;

/// `{"ancestors":64,"weights":[1,1],"from":0,"until":900}`, for a bound that says 1000.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Windows {
    /// Ancestors looked at for each node's head and tail.
    ancestors: usize,
    /// By device, the weight of its engine.
    weights: Vec<u64>,
    from: u64,
    until: u64,
    #[serde(default)]
    fork_joins: Vec<ForkJoin>,
}

impl Proof for Windows {
    fn proven(&self, facts: &Facts<'_>, claimed: u64) -> Result<u64, String> {
        let total = Weights(&self.weights).total(facts)?;
        let length = claimed.saturating_sub(1);
        if self.from >= self.until || self.until > length {
            return Err(format!("there is no window from {} until {}", self.from, self.until));
        }
        let spans = Spans::new(facts, self.ancestors, &self.fork_joins)?;
        let capacity = total.saturating_mul((self.until - self.from).into());
        let mut inside = 0u128;
        for node in facts.runs() {
            let span = (spans.heads[node.index()], length.saturating_sub(spans.tails[node.index()]));
            inside = inside.saturating_add(self.least_part(facts, node, span));
        }
        if inside > capacity {
            Ok(claimed)
        } else {
            Err(format!("{inside} of weighted work fall into the window, which has room for {capacity}"))
        }
    }
}

impl Windows {
    /// The least weighted part of a node that falls into the window if it starts and ends within
    /// a span; endless where there is no room in the span.
    fn least_part(&self, facts: &Facts<'_>, node: NodeIx, (start, end): (u64, u64)) -> u128 {
        let inside = |from: u64, time: u64| {
            from.saturating_add(time).min(self.until).saturating_sub(from.max(self.from))
        };
        // A run slides over a window: the least of it is inside at one end of its span.
        let part = |time: u64| {
            // With no room in its span the node cannot be on this device if the step is that short.
            let latest = end.checked_sub(time).filter(|&latest| latest >= start)?;
            Some(inside(start, time).min(inside(latest, time)))
        };
        let ways = facts.devices(node).iter().filter_map(|&device| {
            let part = part(facts.time(node, device)?)?;
            Some(u128::from(part).saturating_mul(self.weights[device.index()].into()))
        });
        ways.min().unwrap_or(u128::MAX)
    }
}
