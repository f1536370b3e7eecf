//! Placements by minimum cuts, for few bytes under tight caps.

use super::bound::transfer::split;
use super::context::{Context, Incumbents};
use super::pool::Pool;
use super::{Effort, Objective};
use crate::error::Result;

/// Units up to which cuts are sought ...
const UNITS: usize = 3000;
/// ... and under `--balance`, where multilevel partitioning finds all placements but odd ones.
const UNITS_BALANCED: usize = 500;

/// How full devices may be, in percent, where nothing that is fuller proves to fit: what is held
/// only for a while is not known before a placement is.
const FILLS: [u64; 8] = [100, 97, 94, 90, 86, 80, 70, 60];

/// Fills devices by cuts, less and less until a placement holds all constraints.
pub(super) fn find(context: &Context<'_, '_>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    // A split fails only where the options contradict one another, which is told elsewhere.
    let _ = filled(context, &mut incumbents).is_err();
    incumbents.pool
}

fn filled(context: &Context<'_, '_>, incumbents: &mut Incumbents<'_, '_>) -> Result<()> {
    let options = context.problem.options;
    // Arcs that one cut may look at: counted, so that the same input gives the same cut on any machine.
    let work = match options.effort {
        Effort::Fast => return Ok(()),
        Effort::Default => 1_000_000,
        Effort::Best => 20_000_000,
    };
    let most = if options.balance.is_some() { UNITS_BALANCED } else { UNITS };
    if options.objective != Objective::Transfer || context.problem.unit_count() > most {
        return Ok(());
    }
    for fill in FILLS {
        if context.control.stopped() {
            break;
        }
        // A lower fill is only stricter: where this one has no cut, the search is over.
        let Some(units) = split(context.problem, fill, work)? else { break };
        let units = context.filled(|unit| units[unit]);
        if incumbents.consider(units, &context.order).is_feasible() {
            break;
        }
    }
    Ok(())
}
