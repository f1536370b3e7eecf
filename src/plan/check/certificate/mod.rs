//! Whether a plan's certificate proves what it says.
//!
//! Without the model: the bound is on the objective of the plan, above zero, at most what the plan
//! reaches; its gap follows; its kind of proof is known and has the data it needs. With the
//! model's cost graph, the proof is gone through anew: from the graph, the topology and the data
//! alone, each kind in a file of its own. A certificate must hold for whatever plan the options
//! allow, so a proof may use pins, colocation and memory, and relaxes the rest.

mod boundary;
mod chains;
mod cut;
mod facts;
mod flow;
mod forest;
mod fork_joins;
mod glue;
mod packing;
mod parts;
mod path;
mod peaks;
mod runs;
mod search;
mod windows;
mod work;

use serde::Deserialize;

use super::super::{Bound, Plan};
use super::Faults;
use crate::costgraph::derive::Derived;
use crate::costgraph::{CostGraph, NodeIx};
use crate::error::Result;
use facts::Facts;

/// A proof's data, read.
trait Proof {
    /// What the data proves, where that does not depend on what is claimed; else what is claimed,
    /// if it is proven: no plan has less. Error, in words: the data proves nothing.
    fn proven(&self, facts: &Facts<'_>, claimed: u64) -> Result<u64, String>;
}

/// Reads a proof's data. Error, in words: the kind is unknown, or the data is not of that kind.
fn read(bound: &Bound) -> Result<Box<dyn Proof>, String> {
    match (bound.objective.as_str(), bound.proof.as_str()) {
        ("latency" | "throughput", "work") => read_as::<work::Work>(bound),
        ("latency", "critical-path") => read_as::<path::CriticalPath>(bound),
        ("latency", "forced-copies") => read_as::<chains::ForcedCopies>(bound),
        ("latency", "runs") => read_as::<runs::Runs>(bound),
        ("latency", "search") => read_as::<search::Search>(bound),
        ("latency", "windows") => read_as::<windows::Windows>(bound),
        ("throughput", "boundary") => read_as::<boundary::Boundary>(bound),
        ("throughput", "packing") => read_as::<packing::Packing>(bound),
        ("transfer", "forest") => read_as::<forest::Forest>(bound),
        ("transfer", "cut") => read_as::<cut::Cut>(bound),
        ("transfer", "cuts") => read_as::<cut::Cuts>(bound),
        (objective, proof) => Err(format!("the bound's proof is {proof}, which is none for {objective}")),
    }
}

fn read_as<'b, P: Proof + Deserialize<'b> + 'static>(bound: &'b Bound) -> Result<Box<dyn Proof>, String> {
    match P::deserialize(&bound.data) {
        Ok(proof) => Ok(Box::new(proof)),
        Err(error) => Err(format!("the bound's data is no {} proof: {error}", bound.proof)),
    }
}

/// What can be said of a certificate without the model.
pub(super) fn check(plan: &Plan, faults: &mut Faults) {
    let Some(bound) = &plan.bound else { return };
    let Some(reached) = plan.cost.of(&bound.objective) else {
        faults.add(|| format!("the bound is on {}, which is no objective", bound.objective));
        return;
    };
    if bound.objective != plan.options.objective {
        faults
            .add(|| format!("the bound is on {}, the plan for {}", bound.objective, plan.options.objective));
    }
    if bound.value == 0 || bound.value > reached {
        faults.add(|| format!("the bound on {} is {}, the plan has {reached}", bound.objective, bound.value));
        return;
    }
    let gap = 1.0 - bound.value as f64 / reached as f64;
    // The gap may be printed with as few as three digits.
    if bound.gap.is_nan() || (bound.gap - gap).abs() > 1e-3 {
        faults.add(|| format!("the bound's gap is {}, and should be {gap:.3}", bound.gap));
    }
    if let Err(words) = read(bound) {
        faults.add(|| words);
    }
    if let Some(peaks) = &bound.peaks {
        peaks::check(peaks, reached, faults);
    }
}

/// Proves what a plan's certificate says of plans that split operations, of which the model has so many in f32 and in
/// halves.
pub(super) fn prove_peaks(plan: &Plan, operations: [u64; 2], faults: &mut Faults) {
    if let Some(peaks) = plan.bound.as_ref().and_then(|bound| bound.peaks.as_ref()) {
        peaks::prove(peaks, plan, operations, faults);
    }
}

/// The names by which a plan's options speak of nodes: patterns over the graph's own names, or
/// none where pins and colocation are marked in the graph.
pub(super) struct Patterns<'p> {
    /// What the names are of, where the graph is one of instances.
    pub(super) of: Option<(&'p CostGraph, &'p Derived)>,
    /// `PATTERN=DEVICE`.
    pub(super) pins: &'p [String],
    /// Nodes that match one go together.
    pub(super) colocate: &'p [String],
}

impl<'p> Patterns<'p> {
    /// The name by which a node of `graph` is known.
    fn name<'n>(&self, graph: &'n CostGraph, node: NodeIx) -> &'n str
    where
        'p: 'n,
    {
        self.of.map_or_else(
            || graph.node_name(node),
            |(base, derived)| base.node_name(derived.instance(node).node),
        )
    }
}

/// Goes through the proof of a certificate that [`check`] has passed.
pub(super) fn prove(plan: &Plan, graph: &CostGraph, patterns: &Patterns<'_>, faults: &mut Faults) {
    let Some(bound) = &plan.bound else { return };
    let proven = read(bound).and_then(|proof| proof.proven(&Facts::new(plan, graph, patterns)?, bound.value));
    match proven {
        Ok(proven) if proven >= bound.value => {}
        Ok(proven) => faults
            .add(|| format!("the bound is {}, and its {} proof gives {proven}", bound.value, bound.proof)),
        Err(words) => faults.add(|| format!("the bound's {} proof fails: {words}", bound.proof)),
    }
}
