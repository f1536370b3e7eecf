//! Why nothing fits: proofs where there are any, else the placement that came closest.
//!
//! `conflict` looks for pins, caps and tensors that cannot all hold, in the relaxation of `relaxed` or at one `moment`,
//! and drops what the proof does not need; `words` puts it in words. `closest` describes what was found where nothing
//! is proven, `binding` what is large on one of its devices.

mod binding;
mod closest;
mod conflict;
mod moment;
mod relaxed;
mod words;

pub(crate) use binding::binding;
pub(super) use closest::not_found;

use super::evaluate::lasting_bytes;
use super::problem::Problem;
use crate::costgraph::NodeIx;
use crate::error::{Error, Infeasible, Member, MemberKind, Result};
use crate::topology::DeviceId;
use crate::units::Nanos;

/// Compute time that each device may take under `--balance` and `--use`; [`u64::MAX`] where there
/// is no limit. Fair shares are weighted by speed: all devices that take part would end together.
///
/// Errors: a count of devices that pins contradict or that the nodes are too few for.
pub(super) fn limits(problem: &Problem<'_>) -> Result<Vec<u64>> {
    check_count(problem)?;
    let mut limits = vec![u64::MAX; problem.topology.len()];
    let Some(balance) = problem.options.balance else { return Ok(limits) };
    let mut times: Vec<u64> = problem.devices.iter().map(|&id| problem.total_time(id)).collect();
    times.sort_unstable();
    times.truncate(problem.count.unwrap_or(times.len()));
    // 2^80 over the time is the speed: exact enough, and the same on every machine.
    let speed: u128 = times.iter().map(|&time| (1u128 << 80) / u128::from(time.max(1))).sum();
    let fair = (1u128 << 80) / speed.max(1);
    let limit = (fair as f64 * (1.0 + balance)).ceil() as u64;
    problem.devices.iter().for_each(|id| limits[id.index()] = limit);
    Ok(limits)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("one {what}") } else { format!("{count} {what}s") }
}

fn check_count(problem: &Problem<'_>) -> Result<()> {
    let Some(count) = problem.count else { return Ok(()) };
    let mut fixed = vec![false; problem.topology.len()];
    let mut free = 0usize;
    for unit in 0..problem.unit_count() {
        match problem.fixed(unit) {
            Some(id) => fixed[id.index()] = true,
            None => free += 1,
        }
    }
    let pinned = problem.devices.iter().filter(|id| fixed[id.index()]).count();
    if pinned > count {
        let message = format!("{count} devices asked for, but pins and kinds need {pinned}");
        return Err(Error::usage("--use", message));
    }
    if pinned + free < count {
        let units = problem.unit_count();
        let message = match units - free {
            0 => {
                format!(
                    "{count} devices asked for, but there are only {units} nodes or groups of nodes to place"
                )
            }
            fixed => format!(
                "{count} devices asked for, but pins and kinds hold {fixed} of {units} nodes or groups of nodes on {}, which \
                 leaves {free} for others",
                counted(pinned, "device")
            ),
        };
        let help =
            if units > free { format!("pin fewer, or --use {}", pinned + free) } else { String::new() };
        return Err(Error::usage("--use", message).with_help(help));
    }
    Ok(())
}

/// True where a look at the sizes alone tells that nothing fits; [`proven`] finds out why.
/// O(nodes + edges).
pub(super) fn is_certain(problem: &Problem<'_>) -> bool {
    is_overfull(problem) || conflict::oversized(problem).is_some()
}

/// True where what is there when the step ends is more than all devices hold. O(nodes + tensors).
pub(super) fn is_overfull(problem: &Problem<'_>) -> bool {
    lasting_bytes(problem.graph) > problem.caps.iter().fold(0u64, |sum, &cap| sum.saturating_add(cap))
}

/// Fails where it is certain that nothing fits, with the smallest conflict.
pub(super) fn proven(problem: &Problem<'_>) -> Result<()> {
    if let Some(found) = conflict::find(problem) {
        return Err(words::error(problem, &found));
    }
    balance(problem)
}

/// Whom a unit's first node goes with, in words.
fn company(problem: &Problem<'_>, unit: usize) -> String {
    match problem.units.row(unit).len() {
        1 => String::new(),
        members => format!(" (with the {} nodes colocated with it)", members - 1),
    }
}

/// A unit that takes longer than any device may be busy.
fn balance(problem: &Problem<'_>) -> Result<()> {
    let limits = limits(problem)?;
    for unit in 0..problem.unit_count() {
        let time = |id: DeviceId| problem.unit_time(unit, id).unwrap_or(u64::MAX);
        if problem.allowed(unit).iter().all(|id| time(id) > limits[id.index()]) {
            let least = problem.allowed(unit).iter().min_by_key(|&id| time(id));
            let Some(least) = least else { continue };
            let name = problem.graph.node_name(NodeIx(problem.units.row(unit)[0]));
            let member = |kind, name: String, amount| Member { kind, name, amount: Some(amount) };
            return Err(Error::Infeasible(Box::new(Infeasible {
                proven: true,
                conflict: format!(
                    "node {name}{} takes {} on {}, and --balance allows {}",
                    company(problem, unit),
                    Nanos(time(least)),
                    problem.topology.device(least).name,
                    Nanos(limits[least.index()])
                ),
                repair: "a larger --balance or fewer devices".into(),
                members: vec![
                    member(MemberKind::Time, name.to_owned(), time(least)),
                    member(MemberKind::Balance, "--balance".into(), limits[least.index()]),
                ],
                ..Infeasible::default()
            })));
        }
    }
    Ok(())
}
