//! Which devices to buy, for programs.

use serde::Serialize;

use super::{Wanted, text};
use crate::error::{Error, Result};
use crate::escape::to_json_pretty;
use crate::fit::{Fitted, Tried};
use crate::topology::Description;
use crate::units::Nanos;

/// A set and what became of it.
#[derive(Serialize)]
struct Line {
    set: String,
    price_per_hour: f64,
    /// What the objective of the best plan found comes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    reached_ns: Option<Nanos>,
    reaches: bool,
    /// No plan on the set can reach the target.
    proven: bool,
    why: String,
}

#[derive(Serialize)]
struct Answer<'a> {
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_per_hour: Option<f64>,
    cheapest: Line,
    /// The next cheaper set, and why it fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    cheaper: Option<Line>,
    cheaper_sets: usize,
    excluded_by_bounds: usize,
    /// Cheaper sets of which it is not proven that no plan does it; the dearest of them, where there are many.
    open: Vec<Line>,
    open_sets: usize,
    /// No cheaper set can do it.
    proven: bool,
    certainty: String,
    /// Sets that were planned for, by price.
    curve: Vec<Line>,
    /// The devices, as `--devices` reads them from a file.
    devices: &'a Description,
}

pub(super) fn json(wanted: &Wanted, fitted: &Fitted) -> Result<String> {
    let line = |tried: &Tried| Line {
        set: wanted.catalogue.name(&tried.set.counts),
        price_per_hour: tried.set.price.amount(),
        reached_ns: tried.reached(),
        reaches: matches!(tried.verdict, crate::fit::Verdict::Reaches(_)),
        proven: tried.is_proven(&fitted.goal),
        why: tried.words(&fitted.goal),
    };
    let cheaper = &fitted.cheaper;
    let answer = Answer {
        target: fitted.goal.to_string(),
        budget_per_hour: wanted.budget.map(|budget| budget.amount()),
        cheapest: line(&fitted.found),
        cheaper: cheaper.next.as_ref().map(line),
        cheaper_sets: cheaper.count,
        excluded_by_bounds: cheaper.excluded,
        open: cheaper.open.iter().map(line).collect(),
        open_sets: cheaper.open_count,
        proven: cheaper.open_count == 0 && !cheaper.is_cut,
        certainty: text::certainty(fitted),
        curve: fitted.curve.iter().map(line).collect(),
        devices: fitted.compiled.topology.description(),
    };
    let text = to_json_pretty(&answer).map_err(|error| Error::Internal(error.to_string()))?;
    Ok(text + "\n")
}
