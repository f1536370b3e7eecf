//! Proves a plan sound from what the plan itself says. Shares no code with what makes plans.
//!
//! What is proven: ids are unique, and names name what is there; `after` points backwards in the
//! list, so nothing waits for itself; each read of a value comes after its write, along `after` and
//! the order of each lane, for every interleaving that these allow; no two buffers that share bytes
//! are alive at once, by the same order; buffers lie in their arenas, arenas under the caps; a
//! launch touches its own device's memory alone, and each value crosses to a device once; the
//! placement is complete; what runs for several microbatches, or again, does so as it should; a value has
//! one type and one maker; the figures under `cost` follow from the steps and buffers; a certificate
//! is well-formed.
//!
//! With the model ([`check_model`], [`check_costgraph`]) nothing that decides what is computed is taken
//! from the plan's word: each value is followed from what is there before the step through launches and
//! copies to the results and the state of the next step, and the certificate is proven anew.
//!
//! No interleaving gets stuck: all that a step waits for (the steps under `after` and the one before
//! it on its lane) comes before it in the list. Whatever has been done so far, of the steps that are
//! left the first in the list waits for none of the others, so some lane can always go on.
//!
//! What happens before a step is known through vector clocks, one entry for each lane (Mattern,
//! "Virtual time and global states of distributed systems", 1989), kept only while a later step
//! may ask; the last users of each byte are kept in an ordered map of ranges. O(steps x lanes +
//! accesses x log buffers).

mod bounds;
mod certificate;
mod contents;
mod costgraph;
mod costs;
mod expected;
mod instances;
mod memory;
mod model;
mod node_copies;
mod order;
mod parts;
mod placement;
mod resolve;
mod values;

use crate::costgraph::CostGraph;
use crate::costgraph::microbatch::{Sizes, microbatches};
use crate::error::{Error, Report, Result};
use crate::units::Bytes;

use super::{Buffer, BufferKind, Plan};
use resolve::{Resolved, Views};
use values::Names;

pub use costgraph::check_costgraph;
pub use expected::{ExpectedLaunch, ExpectedModel, ExpectedValue, InPlace, Origin};
pub use model::check_model;

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Devices of the plan.
    pub devices: usize,
    /// Steps, copies included.
    pub steps: usize,
    /// Copies.
    pub copies: usize,
    /// Buffers; none in a plan from a cost graph.
    pub buffers: usize,
    /// Bytes that the copies move.
    pub moved: Bytes,
}

/// Proves a plan sound; see the module's documentation. A plan from a cost graph has no buffers: that each of its copies
/// waits for what it moves, and what reads a value that comes back for its copy, is proven; what else launches read is not in
/// it, nor how much memory they need, and [`check_costgraph`] proves these too. Which buffers hold results, and which share
/// their bytes, is what the plan says: [`check_model`] proves that too. Times (`cost.latency_ns`, `cost.max_load_ns`) follow
/// from what the model's nodes take, which the plan does not say: nothing is proven of them here.
///
/// Errors: [`Error::Check`] with one line for each violation, the first twenty of them.
pub fn check(plan: &Plan) -> Result<Checked> {
    let mut faults = Faults::default();
    let (checked, _) = prove(plan, None, &mut faults);
    faults.result(plan).map(|()| checked)
}

/// What is proven without a model, or with one, whose results are kept whatever the plan calls
/// them. None where names do not resolve.
fn prove<'a>(
    plan: &'a Plan,
    model: Option<&Names<'_>>,
    faults: &mut Faults,
) -> (Checked, Option<Resolved<'a>>) {
    let known = model.map(|names| values::views(plan, names)).unwrap_or_default();
    let views = if model.is_some() { Views::Known(&known) } else { Views::Declared };
    let resolved = resolve::resolve(plan, views, faults);
    let mut checked = Checked {
        devices: plan.devices.len(),
        steps: plan.steps.len(),
        buffers: plan.buffers.len(),
        ..Checked::default()
    };
    if let Some(resolved) = &resolved {
        placement::check(plan, resolved, faults);
        instances::check(plan, resolved, faults);
        bounds::check(plan, resolved, faults);
        (checked.copies, checked.moved) = costs::check(plan, resolved, faults);
        if plan.buffers.is_empty() {
            node_copies::check(plan, resolved, faults);
        }
        let kept = |buffer: &Buffer| {
            buffer.kind == BufferKind::Output || model.is_some_and(|names| names.is_declared_result(buffer))
        };
        memory::check(plan, resolved, kept, faults);
        contents::check(plan, resolved, faults);
        certificate::check(plan, faults);
    }
    (checked, resolved)
}

/// Proves the certificate of a plan, where it has one, from the cost graph that the plan's model
/// was lowered to (one microbatch of it, where the plan has several); pins and colocation are those marked in
/// the graph. To be asked of plans that
/// [`check`] has passed.
///
/// Errors: [`Error::Check`] where the certificate proves less than it says; more microbatches than
/// can be counted.
pub fn check_bound(plan: &Plan, graph: &CostGraph) -> Result<()> {
    let mut faults = Faults::default();
    let marked = certificate::Patterns { of: None, pins: &[], colocate: &[] };
    match plan.options.microbatches {
        Some(count) if plan.bound.is_some() => {
            let derived = microbatches(graph, count, Sizes::Microbatch)?;
            certificate::prove(plan, &derived.graph, &marked, &mut faults);
        }
        _ => certificate::prove(plan, graph, &marked, &mut faults),
    }
    faults.result(plan)
}

/// Proves what the certificate of a plan says of plans that split operations, from the number of the model's operations in
/// f32 and in halves. To be asked of plans that [`check`] has passed.
///
/// Errors: [`Error::Check`] where it proves less than it says.
pub fn check_peaks(plan: &Plan, operations: [u64; 2]) -> Result<()> {
    let mut faults = Faults::default();
    certificate::prove_peaks(plan, operations, &mut faults);
    faults.result(plan)
}

/// Violations found so far; the first few in words.
#[derive(Debug, Default)]
struct Faults {
    details: Vec<String>,
    count: usize,
}

impl Faults {
    /// How many are described; others are only counted.
    const MOST_LISTED: usize = 20;

    /// Adds a violation; its words are made only where they will be told.
    fn add(&mut self, words: impl FnOnce() -> String) {
        self.count += 1;
        if self.details.len() < Self::MOST_LISTED {
            self.details.push(words());
        }
    }

    fn result(mut self, plan: &Plan) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let more = self.count - self.details.len();
        if more > 0 {
            self.details.push(format!("and {more} more"));
        }
        let count = if self.count == 1 { "1 violation".into() } else { format!("{} violations", self.count) };
        let first = self.details.first().cloned().unwrap_or_default();
        let report = Report::new(
            format!("plan of {}", plan.model.name),
            format!("is unsound: {count}, the first: {first}"),
        );
        Err(Error::Check(report.details(self.details)))
    }
}
