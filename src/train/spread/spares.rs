//! Spare replicas: the gradients of those that are done first count, the others' are dropped, so that a step
//! does not wait for stragglers (Chen et al. 2016).
//!
//! Who is done first is decided by a logical clock: how long a replica takes for a step is drawn from the seed.
//! So a run is the same on every machine, and goes on from a checkpoint. What a replica's loss counts is a
//! parameter that is set before each step, and its gradients follow.

use crate::error::Result;
use crate::ir::{Init, Shape, Source, SourceRole, Type, ValueId};
use crate::pass::gradient::build::Build;
use crate::random::first;
use crate::train::spread::replicas::Replicated;

/// What the names of the parameters that tell what counts begin with.
const COUNTS: &str = "optimizer/counts@";

/// The parameter that tells what a replica's loss counts.
pub(crate) fn count_name(replica: usize) -> String {
    format!("{COUNTS}{replica}")
}

/// Whether a parameter is such a one.
pub(crate) fn is_count(name: &str) -> bool {
    name.starts_with(COUNTS)
}

/// By replica: what its loss counts in a step, so that the mean is that of those that count. `spare` of `count`
/// are not waited for.
pub(crate) fn counts(seed: u64, step: u64, count: usize, spare: usize) -> Vec<f64> {
    let takes = |replica: usize| first(seed ^ first(replica as u64 ^ first(step)));
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&replica| (takes(replica), replica));
    let first = count.saturating_sub(spare);
    let mut counts = vec![0.0; count];
    for &replica in &order[..first] {
        counts[replica] = count as f64 / first as f64;
    }
    counts
}

impl Replicated<'_> {
    /// A value of a shard as far as its replica counts.
    pub(crate) fn counted(&mut self, shard: usize, value: ValueId) -> Result<ValueId> {
        if self.replicas.spare == 0 {
            return Ok(value);
        }
        let replica = self.replica(shard);
        let source = self.graph.maker(value).source;
        let dtype = self.graph.ty(value).dtype;
        let counts = match self.counts[replica] {
            Some(counts) => counts,
            None => {
                let name = count_name(replica);
                let data = self.graph.add_source(Source::new(name.clone(), "optimizer", SourceRole::Data));
                let ty = Type::new(dtype, Shape::scalar());
                let counts = self.graph.add_param(name, ty, Init::zeros(), None, data);
                *self.counts[replica].insert(counts)
            }
        };
        let mut b = Build { graph: &mut self.graph, source };
        let counts = b.convert(counts, dtype)?;
        b.mul(value, counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_count_as_are_waited_for_and_everybody_is_late_at_times() {
        let mut late = [0; 5];
        for step in 0..200 {
            let counts = counts(7, step, 5, 2);
            assert_eq!(counts.iter().filter(|&&counts| counts == 5.0 / 3.0).count(), 3);
            for (replica, _) in counts.iter().enumerate().filter(|(_, counts)| **counts == 0.0) {
                late[replica] += 1;
            }
        }
        assert!(late.iter().all(|&late| late > 50 && late < 110), "{late:?}");
        assert_ne!(counts(7, 0, 5, 2), counts(8, 0, 5, 2));
    }
}
