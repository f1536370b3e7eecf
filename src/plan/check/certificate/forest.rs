//! Classes that expensive nets connect and that need several devices: a net is cut for each device
//! beyond the first. A forest of nets is enough to connect them; what it leaves of the nets' bytes
//! may serve again.

use serde::Deserialize;

use super::Proof;
use super::facts::Facts;
use super::parts::{Parts, Resource};

/// `{"of":"memory","costs":[4194304,1024]}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Forest {
    of: Resource,
    /// By forest, the bytes that each of its nets must have left.
    costs: Vec<u64>,
}

/// The most forests.
const FORESTS: usize = 1000;

impl Proof for Forest {
    fn proven(&self, facts: &Facts<'_>, _: u64) -> Result<u64, String> {
        if self.costs.len() > FORESTS {
            return Err(format!("{} forests", self.costs.len()));
        }
        let parts = Parts::new(facts, self.of)?;
        let mut left: Vec<u64> = parts.nets.iter().map(|(bytes, _)| *bytes).collect();
        let mut sum = 0u64;
        for &cost in &self.costs {
            let mut group: Vec<u32> = (0..parts.first.len() as u32).collect();
            for (_, (_, classes)) in left.iter().zip(&parts.nets).filter(|(left, _)| **left >= cost) {
                join(&mut group, classes);
            }
            let mut weight = vec![0u64; group.len()];
            for class in 0..group.len() {
                weight[end(&mut group, class as u32) as usize] += parts.weight[class];
            }
            let cuts: Vec<u64> = weight
                .iter()
                .map(|&weight| parts.devices_for(weight, usize::MAX).saturating_sub(1))
                .collect();
            sum = sum.saturating_add(cost.saturating_mul(cuts.iter().sum()));
            let mut forest: Vec<u32> = (0..group.len() as u32).collect();
            for (left, (_, classes)) in left.iter_mut().zip(&parts.nets).filter(|(left, _)| **left >= cost) {
                if cuts[end(&mut group, classes[0]) as usize] > 0 && join(&mut forest, classes) {
                    *left -= cost;
                }
            }
        }
        Ok(sum)
    }
}

/// Joins classes into one group; true where they were not in one.
fn join(group: &mut [u32], classes: &[u32]) -> bool {
    let mut joined = false;
    for pair in classes.windows(2) {
        let (a, b) = (end(group, pair[0]), end(group, pair[1]));
        group[a.max(b) as usize] = a.min(b);
        joined |= a != b;
    }
    joined
}

fn end(group: &mut [u32], mut class: u32) -> u32 {
    while group[class as usize] != class {
        group[class as usize] = group[group[class as usize] as usize];
        class = group[class as usize];
    }
    class
}
