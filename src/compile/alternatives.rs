//! What other objectives, or fewer devices, would give: for a summary to mention.

use super::Compiled;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::explain::Fewer;
use crate::place::{self, Objective};
use crate::schedule::Cost;
use crate::strategy::{self, Problem};

/// What another objective comes to on the same problem.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The objective.
    pub objective: Objective,
    /// What a step costs then.
    pub cost: Cost,
    /// Devices that compute something then.
    pub devices: usize,
}

/// Cost graphs beyond this many nodes are not planned again for the sake of [`alternatives`] ...
const ALTERNATIVES: usize = 2_000;
/// ... nor beyond this many where the plan is spread over devices anyway.
const ALTERNATIVES_SPREAD: usize = 200;

/// What the other objectives would gain over a plan: those whose own measure is lower than this
/// plan's. None for large graphs, where planning again would take as long as planning. The
/// objectives are planned for side by side.
///
/// Errors: none but internal ones; an objective under which nothing fits is left out.
///
/// None where `control` says to stop.
pub fn alternatives(
    compiled: &Compiled,
    options: &place::Options,
    control: &Control<'_>,
) -> Result<Vec<Alternative>> {
    let spread = compiled.schedule.devices.iter().filter(|usage| usage.busy.get() > 0).count() > 1;
    let most = if spread { ALTERNATIVES_SPREAD } else { ALTERNATIVES };
    let large = compiled.cost_graph.node_count() > most;
    // Pipelines and rewritten steps are of derived graphs: what they cost says nothing of the graph itself.
    let other = compiled.pipeline.is_some() || compiled.is_rewritten();
    if large || other || compiled.plan.options.truncated {
        return Ok(Vec::new());
    }
    let others: Vec<Objective> =
        Objective::ALL.into_iter().filter(|&objective| objective != options.objective).collect();
    let found = control.map(others.len(), |number| alternative(compiled, options, others[number], control));
    found.into_iter().filter_map(Result::transpose).collect()
}

/// Whether fewer devices are as good as a plan's: see [`explain::fewer`](crate::explain::fewer).
/// None for graphs so large that planning again takes as long as planning did.
pub fn fewer(compiled: &Compiled, options: &place::Options, control: &Control<'_>) -> Option<Fewer> {
    let used = compiled.schedule.devices.iter().filter(|usage| usage.busy.get() > 0).count();
    if compiled.pipeline.is_some() || compiled.is_rewritten() {
        return None;
    }
    if compiled.cost_graph.node_count() > ALTERNATIVES || compiled.plan.options.truncated {
        return None;
    }
    let mut options = place::Options { effort: place::Effort::Fast, ..options.clone() };
    if compiled.network.is_some() {
        // The network's own marks say the same.
        (options.pins, options.colocate) = (Vec::new(), Vec::new());
    }
    let value = strategy::value(options.objective, &compiled.schedule.cost);
    crate::explain::fewer(&compiled.cost_graph, &compiled.topology, &options, value, used, control)
}

/// What one other objective gives, where that is less in its own measure.
fn alternative(
    compiled: &Compiled,
    options: &place::Options,
    objective: Objective,
    control: &Control<'_>,
) -> Result<Option<Alternative>> {
    let mut options = place::Options { objective, from: None, ..options.clone() };
    if compiled.network.is_some() {
        // The network's own marks say the same.
        (options.pins, options.colocate) = (Vec::new(), Vec::new());
    }
    match strategy::solve(Problem::new(&compiled.cost_graph, &compiled.topology, &options), control) {
        Ok((_, schedule))
            if strategy::value(objective, &schedule.cost)
                < strategy::value(objective, &compiled.schedule.cost) =>
        {
            let devices = schedule.devices.iter().filter(|usage| usage.busy.get() > 0).count();
            Ok(Some(Alternative { objective, cost: schedule.cost, devices }))
        }
        Ok(_) | Err(Error::Infeasible(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
