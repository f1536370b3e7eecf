//! Unconstrained search: for a while blocks may take more than their limits, so that a cheap cut which is out of
//! balance can be reached; then vertices whose move costs little restore the balance.
//!
//! Source: Maas, Gottesbüren, Seemaier, Parallel Unconstrained Local Search for Partitioning Irregular Graphs, 2024.

use super::fm::{self, Search};
use super::rebalance::rebalance;
use super::state::State;
use crate::control::Control;
use crate::random::Rng;

/// A search goes beyond the limits by one in so many parts of the least. A quarter: less does not reach the cuts of real
/// training steps that only many tiny tensors more can balance.
const PART: u64 = 4;

/// Searches beyond the limits and back, as long as that leaves fewer bytes within them; never ends with more.
pub(super) fn refine(state: &mut State<'_>, search: Search, rng: &mut Rng, control: &Control<'_>) {
    if !state.blocks.time_binds() || state.blocks.ordered {
        return;
    }
    let least = state.blocks.limit.iter().min().copied().unwrap_or(0);
    for _ in 0..search.beyond {
        let before = (state.excess(), state.connectivity());
        let block = state.block.clone();
        state.tolerance = least / PART;
        fm::refine(state, search, rng, control);
        state.tolerance = 0;
        rebalance(state);
        fm::refine(state, search, rng, control);
        if (state.excess(), state.connectivity()) >= before {
            restore(state, &block);
            break;
        }
    }
}

/// Moves back what was moved.
fn restore(state: &mut State<'_>, block: &[u32]) {
    for vertex in 0..block.len() {
        if state.block[vertex] != block[vertex] {
            state.shift(vertex as u32, block[vertex]);
        }
    }
    state.touched.clear();
}
