//! A proof by exhaustion: on small problems every schedule is looked at or ruled out.

use serde_json::json;

use super::super::jobs::Jobs;
use super::super::list::Timetable;
use super::super::makespan::exact;
use super::super::problem::Problem;
use super::super::{Effort, Objective};
use super::Certificate;
use crate::control::Control;

/// Jobs up to which there is a search; and devices.
const MOST: usize = 40;

/// Edges and tensors, likewise: each is looked at for every pair of devices.
const MOST_EDGES: usize = 4096;

/// The least time of any schedule whose copies are as fast as any relaying and splitting makes them,
/// where a search comes to an end soon enough to tell.
pub(super) fn bound(
    problem: &Problem<'_>,
    known: u64,
    incumbent: u64,
    control: &Control<'_>,
) -> Option<Certificate> {
    let beginnings = match problem.options.effort {
        Effort::Fast => return None,
        Effort::Default => 100_000,
        Effort::Best => 2_000_000,
    };
    let jobs: usize = (0..problem.unit_count()).map(|unit| problem.unit(unit).count()).sum();
    let edges = problem.graph.edge_count().max(problem.graph.tensor_count());
    if jobs > MOST || problem.topology.len() > MOST || edges > MOST_EDGES || known >= incumbent {
        return None;
    }
    let jobs = Jobs::undisturbed(problem)?;
    let search = exact::search(problem, &jobs, incumbent, beginnings, control);
    let value = search.found.as_ref().map_or(incumbent, Timetable::makespan);
    search.proven.then(|| Certificate {
        objective: Objective::Latency,
        value,
        proof: "search",
        data: json!({ "beginnings": beginnings }),
    })
}
