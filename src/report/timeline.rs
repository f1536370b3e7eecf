//! The simulated step as text: one row for each lane, one column for each slice of time.

use std::fmt::Write;

use crate::costgraph::{CostGraph, NodeIx};
use crate::escape::escaped;
use crate::plan::{self, Plan};
use crate::schedule::{self, Action, Lane, Schedule};
use crate::topology::Topology;
use crate::units::Nanos;

/// Columns of a drawing whose slices need not be exact.
const COLUMNS: u64 = 96;
/// Columns up to which slices are as fine as the launches ask for.
const MOST_COLUMNS: u64 = 160;

/// Draws a schedule and its plan: a row for the launches of each device that does something, and
/// one for the copies that it receives. Forward launches show their microbatch as a digit,
/// backward ones as a small letter, gradients of parameters as a capital one; what has no
/// microbatch is `=`, a copy `-`, nothing `.`. O(steps + rows x columns).
pub fn timeline(
    graph: &CostGraph,
    topology: &Topology,
    plan: &Plan,
    schedule: &Schedule,
    weights: &[NodeIx],
) -> String {
    let slice = slice(schedule);
    let columns = schedule.cost.latency.get().div_ceil(slice) as usize;
    let marks = marks(graph, plan, schedule, weights);
    let mut rows = vec![[vec!['.'; columns], vec!['.'; columns]]; topology.len()];
    for (step, mark) in schedule.steps.iter().zip(marks) {
        let row = &mut rows[step.device.index()][usize::from(step.lane == Lane::Copy)];
        // A step shows where it covers the middle of a slice; any step shows somewhere.
        let column = |time: Nanos| ((time.get() + slice / 2) / slice) as usize;
        let (from, to) = (column(step.start), column(step.end));
        if from < to {
            row[from.min(columns)..to.min(columns)].fill(mark);
        } else if let Some(cell) = row.get_mut((step.start.get() / slice) as usize)
            && *cell == '.'
        {
            *cell = mark;
        }
    }
    let lengths = topology.ids().map(|id| escaped(&topology.device(id).name).chars().count());
    // A name may be of any length, a column may not.
    let width = lengths.max().unwrap_or(0).min(64);
    let mut text = format!("{} in slices of {}\n", schedule.cost.latency, Nanos(slice));
    for (id, lanes) in topology.ids().zip(&rows) {
        for (row, name) in lanes.iter().zip([escaped(&topology.device(id).name).as_str(), ""]) {
            if row.iter().any(|&cell| cell != '.') {
                let row: String = row.iter().collect();
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{name:width$} |{row}|");
            }
        }
    }
    text
}

/// The length of a slice: what divides all starts and ends of launches, where that gives few
/// columns.
fn slice(schedule: &Schedule) -> u64 {
    let mut divisor = schedule.cost.latency.get();
    for step in schedule.steps.iter().filter(|step| step.lane == Lane::Compute) {
        divisor = gcd(gcd(divisor, step.start.get()), step.end.get());
    }
    let latency = schedule.cost.latency.get();
    let exact = divisor.max(1);
    if latency / exact <= MOST_COLUMNS { exact } else { latency.div_ceil(COLUMNS).max(1) }
}

fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// What each step is drawn as.
fn marks(graph: &CostGraph, plan: &Plan, schedule: &Schedule, weights: &[NodeIx]) -> Vec<char> {
    let letter = |first: u8, number: u32| char::from(first + (number % 26) as u8);
    let mark = |(step, planned): (&schedule::Step, &plan::Step)| match (step.action, &planned.action) {
        (Action::Launch(node), plan::Action::Launch(launch)) => match launch.microbatch {
            None => '=',
            Some(number) if weights.binary_search(&node).is_ok() => letter(b'A', number),
            Some(number) if graph.is_backward(node) => letter(b'a', number),
            Some(number) => char::from(b'0' + (number % 10) as u8),
        },
        (Action::Copy { .. } | Action::Launch(_), _) => '-',
    };
    schedule.steps.iter().zip(&plan.steps).map(mark).collect()
}
