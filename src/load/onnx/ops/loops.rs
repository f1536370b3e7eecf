//! Loops, which are unrolled: as often as their count or their condition says while the file is read. Where data ends a loop
//! before, iterations are computed to the end, and what those give that do not count is not taken.

use std::rc::Rc;

use super::super::body::Body;
use super::super::known::Known;
use super::super::lower::Ragged;
use super::super::node::At;
use super::control::{Counts, MOST_TRIPS, chosen, decided, no_slices, scalar, stack};
use crate::error::Result;
use crate::ir::{Binary, DType, Op, Size, Unary, ValueId};

/// A limit to the iterations of a loop that only its condition ends, once data may end it.
const MOST_OPEN_TRIPS: i64 = 1 << 12;

/// So many operations are looked at for what is known of a condition.
const LOOKED_AT: usize = 64;

/// The state of a loop.
struct Loop {
    body: Rc<Body>,
    /// How often at most, where it is known.
    trips: Option<i64>,
    carried: Vec<usize>,
    /// What the next iteration reads: what is carried, as long as iterations count.
    next: Vec<usize>,
    /// What each iteration adds to the outputs that are stacked.
    stacked: Vec<Vec<usize>>,
    /// Whether iterations still count, where that depends on data.
    active: Option<ValueId>,
    /// How many count whatever the data, and how many more do, where any depend on it.
    certain: i64,
    more: Option<ValueId>,
}

pub(super) fn unrolled(at: &mut At<'_>) -> Result<()> {
    let body = at.body("body")?;
    let trips = if at.has(0) { Some(at.integer(0, "number of iterations")?) } else { None };
    let carried: Option<Vec<usize>> = (2..at.input_count()).map(|i| at.binding(i)).collect();
    let Some(carried) = carried else { return Err(at.wrong("a value that it carries is missing")) };
    let stacked = body.output_count().checked_sub(carried.len() + 1);
    let (Some(stacked), true) = (stacked, body.input_count() == carried.len() + 2) else {
        return Err(at.wrong("its body has another number of inputs or outputs"));
    };
    let condition = at.binding(1).filter(|_| at.has(1));
    let stacked = vec![Vec::new(); stacked];
    let next = carried.clone();
    let mut state = Loop { body, trips, carried, next, stacked, active: None, certain: 0, more: None };
    iterate(at, &mut state, condition)?;
    let count = match state.more {
        Some(more) => Some(at.binary_scalar(Binary::Add, more, state.certain as f64)?),
        None => None,
    };
    for (i, &carried) in state.carried.iter().enumerate() {
        at.set_binding(i, carried)?;
    }
    let first = state.carried.len();
    let never_runs = state.stacked.first().is_some_and(Vec::is_empty);
    if never_runs && (first..first + state.stacked.len()).any(|output| at.wants(output)) {
        return stack_nothing(at, &state);
    }
    for (i, parts) in state.stacked.iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
        let stack = stack(at, parts, 0)?;
        at.set(first + i, stack);
        if let Some(count) = count {
            at.set_ragged_output(first + i, Ragged::along(0, count));
        }
    }
    Ok(())
}

/// The outputs that a loop stacks which never runs: of the types that an iteration would give, which nothing reads.
fn stack_nothing(at: &mut At<'_>, state: &Loop) -> Result<()> {
    let inputs = inputs(at, state, 0, None);
    let results = at.run(&state.body, &inputs, "0")?;
    for i in state.carried.len()..results.len() - 1 {
        let nothing = no_slices(at, results[i + 1], 0)?;
        at.set(i, nothing);
    }
    Ok(())
}

fn iterate(at: &mut At<'_>, state: &mut Loop, mut condition: Option<usize>) -> Result<()> {
    for trip in 0.. {
        if state.trips.is_some_and(|trips| trip >= trips) {
            return Ok(());
        }
        if let Some(condition) = condition {
            match decided(at, condition) {
                Some(false) => return Ok(()),
                Some(true) => {}
                None => still_active(at, state, condition)?,
            }
        }
        let is_bounded = match (state.trips, state.active, condition) {
            (Some(_), ..) | (None, None, _) | (None, _, None) => trip < MOST_TRIPS,
            (None, Some(_), Some(condition)) => trip < MOST_OPEN_TRIPS && may_be_decided(at, condition)?,
        };
        if !is_bounded {
            return Err(at.unsupported("whose number of iterations depends on data without a bound"));
        }
        condition = Some(step(at, state, trip, condition)?);
    }
    Ok(())
}

/// Notes that the iterations from here on count only where a condition holds as well.
fn still_active(at: &mut At<'_>, state: &mut Loop, condition: usize) -> Result<()> {
    let holds = scalar(at, condition)?;
    state.active = Some(match state.active {
        Some(active) => at.and(active, holds)?,
        None => holds,
    });
    Ok(())
}

/// What the body reads in an iteration.
fn inputs(at: &mut At<'_>, state: &Loop, trip: i64, condition: Option<usize>) -> Vec<usize> {
    let number = at.bound_known(Known::scalar(Size::Known(trip)));
    let condition = match condition {
        Some(condition) => condition,
        None => at.bound_known(Known { dtype: DType::Bool, ..Known::scalar(Size::Known(1)) }),
    };
    [number, condition].into_iter().chain(state.next.iter().copied()).collect()
}

/// One iteration. Returns the condition after it.
fn step(at: &mut At<'_>, state: &mut Loop, trip: i64, condition: Option<usize>) -> Result<usize> {
    let inputs = inputs(at, state, trip, condition);
    let results = at.run(&state.body, &inputs, &format!("{trip}"))?;
    let (next, results) = (results[0], &results[1..]);
    let (carried, stacked) = results.split_at(state.carried.len());
    let mut counts = Counts::new();
    let is_open = state.trips.is_none();
    for ((old, next), &new) in state.carried.iter_mut().zip(&mut state.next).zip(carried) {
        // An iteration that does not count is computed all the same, and its results are not taken.
        *old = match state.active {
            Some(active) => chosen(at, active, [new, *old], &mut counts)?,
            None => new,
        };
        // A counter goes on where the condition alone ends the loop, so that what it counts to does.
        let goes_on = is_open && at.lowering().binding(new).known.is_some();
        *next = if goes_on { new } else { *old };
    }
    for (parts, &part) in state.stacked.iter_mut().zip(stacked) {
        parts.push(part);
    }
    match state.active {
        None => state.certain += 1,
        Some(active) => {
            let one = at.convert(active, DType::I64)?;
            state.more = Some(match state.more {
                Some(more) => at.binary(Binary::Add, more, one)?,
                None => one,
            });
        }
    }
    Ok(next)
}

/// Whether something in a condition is known while the file is read, and may decide it at another iteration.
fn may_be_decided(at: &mut At<'_>, condition: usize) -> Result<bool> {
    let condition = at.lowering().value(condition)?;
    let graph = &at.lowering().graph;
    let mut waiting = vec![condition];
    for _ in 0..LOOKED_AT {
        let Some(value) = waiting.pop() else { break };
        let node = graph.maker(value);
        match &node.op {
            Op::Constant(_) | Op::Sizes(_) => return Ok(true),
            Op::Binary(Binary::And | Binary::Or) | Op::Unary(Unary::Not) => {
                waiting.extend(&node.operands[..]);
            }
            Op::Convert { .. } | Op::Reshape { .. } | Op::Broadcast { .. } => waiting.push(node.operands[0]),
            _ => {}
        }
    }
    Ok(false)
}
