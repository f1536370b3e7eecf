//! Where the body of a loop begins and ends: [`super::super::inline`] puts its nodes between the two.

use super::super::call::{Call, results};
use super::super::inline::{CLOSE, OPEN};
use super::Lower;
use crate::error::Result;

pub(super) fn find(target: &str) -> Option<Lower> {
    match target {
        OPEN => Some(open),
        CLOSE => Some(close),
        _ => None,
    }
}

fn open(call: &mut Call<'_, '_>) -> Result<()> {
    let (condition, first) = (call.tensor("condition")?, call.list("carried")?);
    let carried: Vec<String> = results(call.node).iter().map(|_| call.emit.fresh()).collect();
    call.emit.model.open_loop(&condition, &first, &carried);
    call.results(carried.into_iter().map(Some).collect())
}

fn close(call: &mut Call<'_, '_>) -> Result<()> {
    let (condition, next) = (call.tensor("condition")?, call.list("carried")?);
    let last: Vec<String> = results(call.node).iter().map(|_| call.emit.fresh()).collect();
    let closed = call.emit.model.close_loop(&condition, &next, &last);
    closed.ok_or_else(|| call.wrong("it ends a loop that does not begin"))?;
    call.results(last.into_iter().map(Some).collect())
}
