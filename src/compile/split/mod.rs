//! Which operations are split, and how: what the caller asks for, what a plan records, and what is split
//! because it fits nowhere whole or is faster so.

mod alike;
mod batch;
mod beam;
mod choose;
mod fit;
mod footprint;
mod held;
mod keep;
mod kinds;
mod layout;
mod otherwise;
mod parted;
mod pay;
mod pins;
mod record;
mod relay;
mod rule;
mod samples;
mod search;
mod side_by_side;
mod team;
mod units;
mod way;

use crate::error::Result;
use crate::ir::Graph;
use crate::plan::PlanSplit;

pub(super) use self::fit::{Splits, beyond_all, by_batch, narrower};
pub(super) use self::keep::together;
pub(super) use self::otherwise::{is_of, other_ways, own_ways};
pub(super) use self::parted::Parted;
pub(super) use self::pay::faster;
pub(super) use self::pins::{is_of_parts, pins_of_parts};
pub use self::rule::{SplitAxis, SplitRule};
pub(super) use self::samples::mixing;

/// What may be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitOptions {
    /// Whether what fits nowhere whole is split as far as it must be, and what a step is faster for where its
    /// latency is to be small.
    pub auto: bool,
    /// Whether sums may not be divided, so that results have the bits of one device.
    pub exact: bool,
    /// What is split in any case.
    pub rules: Vec<SplitRule>,
    /// Globs over prefixes of names: nodes under one prefix stay whole, on one device.
    pub keep_whole: Vec<String>,
    /// What a plan that was read has split: it takes the place of all else.
    pub planned: Option<Vec<PlanSplit>>,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self { auto: true, exact: false, rules: Vec::new(), keep_whole: Vec::new(), planned: None }
    }
}

impl SplitOptions {
    /// A simplified graph, divided as far as that is asked for before anything is known of devices.
    ///
    /// Errors: a rule that matches nothing, or whose parts there are not; a plan's split of nodes that are
    /// not there.
    pub(super) fn parted(&self, graph: Graph, places: Vec<u32>) -> Result<Parted> {
        match &self.planned {
            Some(planned) => Parted::planned(graph, places, planned),
            None if self.rules.is_empty() => Ok(Parted::whole(graph, places)),
            None => {
                let divisions = rule::divisions(&graph, &self.rules, self.exact)?;
                Parted::whole(graph, places).divided(&divisions)
            }
        }
    }
}
