//! Work shared out: the highest load of the engines is at least any weighted mean of their
//! loads, and a node adds to that mean at least its cheapest weighted time.

use serde::Deserialize;

use super::Proof;
use super::facts::Facts;

/// `{"weights":[2,2,1]}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Work {
    /// By device, the weight of its engine; devices on one engine have the same.
    weights: Vec<u64>,
}

/// Weights by device.
pub(super) struct Weights<'w>(pub(super) &'w [u64]);

impl Weights<'_> {
    /// The weights of all engines together. Error: there is not one for each device, or slices of
    /// one engine differ, or all are zero.
    pub(super) fn total(&self, facts: &Facts<'_>) -> Result<u128, String> {
        let devices = facts.engines.len();
        if self.0.len() != devices {
            return Err(format!("{} weights for {devices} devices", self.0.len()));
        }
        let mut of_engine = vec![None; devices + facts.topology.physicals.len()];
        for (&engine, &weight) in facts.engines.iter().zip(self.0) {
            if *of_engine[engine].get_or_insert(weight) != weight {
                return Err("slices of one device have different weights".into());
            }
        }
        match of_engine.into_iter().flatten().map(u128::from).sum() {
            0 => Err("no device has a weight".into()),
            total => Ok(total),
        }
    }
}

impl Proof for Work {
    fn proven(&self, facts: &Facts<'_>, _claimed: u64) -> Result<u64, String> {
        let total = Weights(&self.weights).total(facts)?;
        // Nodes of one class go together; what no one device is best for costs more than this.
        let mut classes: Vec<(u32, u32)> =
            facts.runs().map(|node| (facts.class[node.index()], node.0)).collect();
        classes.sort_unstable();
        let cheapest = |class: &[(u32, u32)]| {
            let nodes = || class.iter().map(|&(_, node)| crate::costgraph::NodeIx(node));
            let Some(first) = nodes().next() else { return 0 };
            let cost = |&device: &crate::topology::DeviceId| {
                let times = nodes().map(|node| u128::from(facts.time(node, device).unwrap_or(0)));
                times.sum::<u128>().saturating_mul(self.weights[device.index()].into())
            };
            facts.devices(first).iter().map(cost).min().unwrap_or(0)
        };
        let sum = classes.chunk_by(|a, b| a.0 == b.0).map(cheapest).fold(0u128, u128::saturating_add);
        Ok(u64::try_from(sum.div_ceil(total)).unwrap_or(u64::MAX))
    }
}
