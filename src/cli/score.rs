//! `partition MODEL --devices SPEC --score FILE`: checks and times a placement that was made
//! elsewhere.

use std::path::Path;

use super::args::{Emit, PlanArgs};
use super::deliver::{deliver, emitted, summary};
use super::notes::note_assumptions;
use super::terminal::Console;
use crate::compile;
use crate::error::{Error, Result};
use crate::load::Model;
use crate::plan::{Foreign, decompressed};
use crate::report::AlternativeLine;
use crate::topology::Topology;

/// A placement in any form that is known.
pub(super) fn read_placement(path: &Path) -> Result<Foreign> {
    let name = path.display().to_string();
    Foreign::read(&decompressed(crate::files::read(path)?, &name)?, &name)
}

/// What the planner's own placement comes to; none where it finds none.
///
/// Errors: those of planning but for this one.
fn planned(
    args: &PlanArgs,
    model: Model,
    topology: &Topology,
    options: &compile::Options,
    console: &Console,
) -> Result<Option<AlternativeLine>> {
    let compiled = super::planning::planning(&args.placement, console, |control| {
        compile::compile_with(model, topology, options, control)
    });
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(error @ Error::Infeasible(_)) => {
            console.note(&format!("the planner's own result: {error}"));
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let cost = &compiled.schedule.cost;
    Ok(Some(AlternativeLine {
        objective: options.place.objective.name(),
        latency: cost.latency,
        max_load: cost.max_load,
        transfer_bytes: cost.step_bytes + cost.load_bytes,
        devices: compiled.schedule.devices.iter().filter(|usage| usage.busy.get() > 0).count(),
    }))
}

/// A placement that breaks something is shown all the same, but no plan is made of it.
pub(super) fn score(
    args: &PlanArgs,
    model: Model,
    model_name: &str,
    topology: &Topology,
    options: &compile::Options,
    placement: &Path,
    console: &Console,
) -> Result<()> {
    let name = placement.display().to_string();
    let foreign = read_placement(placement)?;
    let place = |error: &Error| if matches!(error, Error::Format(_)) { &name } else { model_name };
    let own = match emitted(args)? {
        Emit::Summary | Emit::SummaryJson => planned(args, model.clone(), topology, options, console)?,
        _ => None,
    };
    let scored = {
        let _working = console.working("scoring");
        compile::score(model, topology, options, &foreign).map_err(|error| {
            let place = place(&error).to_owned();
            error.within(&place)
        })?
    };
    let verdict = scored.verdict(&name);
    if verdict.is_err() && !matches!(emitted(args)?, Emit::Summary | Emit::SummaryJson) {
        return verdict;
    }
    note_assumptions(&scored.compiled, console);
    let mut summary = summary(&scored.compiled, options, Vec::new());
    summary.violations.clone_from(&scored.violations);
    summary.planned = own;
    deliver(args, &scored.compiled, &summary, console)?;
    verdict
}
