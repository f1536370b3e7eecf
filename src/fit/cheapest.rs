//! The search for the cheapest set: first with whole operations, then for cheaper ones with parts of them.

use super::bounds::Bounds;
use super::parted::Parted;
use super::search::{Planner, Search, hopeless};
use super::sets::Sets;
use super::{Fitted, Request};
use crate::compile::{self, Costing};
use crate::control::Control;
use crate::error::Result;

/// The cheapest set of the catalogue for which a plan reaches the target.
///
/// Sets are planned for in the order of their prices, but those that bounds exclude: at most as many as the effort
/// counts. First operations stay whole, of which bounds tell most; where operations may be split, cheaper sets are then
/// planned for with parts of them. The same request gives the same answer, unless `control` says stop.
///
/// Errors: those of planning; [`Error::Infeasible`](crate::error::Error::Infeasible) where no set does, with what comes closest.
pub fn cheapest(request: Request<'_>, control: &Control<'_>) -> Result<Fitted> {
    let options = plan_options(&request)?;
    let costing = Costing::new(request.model, &options)?;
    let goal = request.target.of_steps(options.batch);
    let mut bounds = Bounds::new(&costing, request.catalogue, &goal, &options)?;
    let splitting = compile::Options { split: request.options.split.clone(), ..options.clone() };
    let network = costing.splittable(&splitting);
    if let Some(why) = bounds.excludes_all(network) {
        return Err(hopeless(&request, &goal, &bounds.words(&why)));
    }
    let whole =
        Planner { request, options: &options, costing: &costing, goal: &goal, control, is_whole: true };
    let mut search = Search::new(whole);
    let mut sets = Sets::new(request.catalogue, request.budget);
    let found = search.find(&mut sets, &mut bounds)?;
    if let Some(network) = network {
        let planner = Planner { options: &splitting, is_whole: false, ..whole };
        let parted = Parted::search(planner, network, found.as_ref().map(|(found, _)| found), &mut bounds)?;
        let dearer = match &found {
            Some((found, _)) if request.has_curve => search.beyond(found, &mut sets, &mut bounds)?,
            _ => Vec::new(),
        };
        return parted.fitted(found, search, dearer);
    }
    let Some((found, compiled)) = found else { return Err(search.none()?) };
    let mut curve = search.planned.clone();
    if request.has_curve {
        curve.extend(search.below()?);
        curve.extend(search.beyond(&found, &mut sets, &mut bounds)?);
    }
    curve.push(found.clone());
    curve.sort_by(|one, other| one.set.cmp(&other.set));
    let cheaper = search.cheaper(&found);
    Ok(Fitted { goal, found, compiled, cheaper, curve })
}

/// How plans are made for a target.
fn plan_options(request: &Request<'_>) -> Result<compile::Options> {
    let (_, every) = request.catalogue.one_of_each()?;
    // Bounds and the plans of all sets are to speak of one network, which any GPU lays otherwise.
    let mut options = request.options.clone().on(&every);
    options.place.objective = request.target.objective();
    // Most bounds on sets speak of whole operations.
    options.split.auto = false;
    options.batch = request.target.batch().or(options.batch);
    Ok(options)
}
