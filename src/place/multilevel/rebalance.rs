//! Rebalancing: moves vertices out of blocks that are over their limits, at the least loss of
//! bytes for what they weigh.
//!
//! Source: the rebalancing of Maas, Gottesbüren, Seemaier, Parallel Unconstrained Local Search for
//! Partitioning Irregular Graphs, 2024.

use super::heap::Heaps;
use super::state::State;

/// Until no block is over its limits or nothing more can move. O(pins log vertices).
pub(super) fn rebalance(state: &mut State<'_>) {
    let over: Vec<bool> = (0..state.blocks.len()).map(|block| state.is_over(block)).collect();
    if !over.contains(&true) {
        return;
    }
    let mut heap = Heaps::new(1, state.graph.len());
    for vertex in 0..state.graph.len() as u32 {
        if over[state.block[vertex as usize] as usize]
            && let Some((gain, _)) = state.least_loss(vertex)
        {
            heap.set(0, vertex, worth(state, vertex, gain));
        }
    }
    let mut seen = Vec::new();
    while let Some((key, vertex)) = heap.peek(0) {
        let from = state.block[vertex as usize] as usize;
        let found = state.least_loss(vertex).filter(|_| state.is_over(from));
        let Some((gain, to)) = found else {
            heap.remove(vertex);
            continue;
        };
        // Keys are corrected when they surface.
        let now = worth(state, vertex, gain);
        if now < key {
            heap.set(0, vertex, now);
            continue;
        }
        heap.remove(vertex);
        state.touched.clear();
        state.shift(vertex, to);
        std::mem::swap(&mut seen, &mut state.touched);
        for &other in &seen {
            let found = state.least_loss(other).filter(|_| heap.contains(other));
            if let Some((gain, _)) = found {
                heap.set(0, other, worth(state, other, gain));
            }
        }
        seen.clear();
    }
}

/// Bytes saved, or lost for each part in 2^20 of what its block may hold that a vertex takes.
fn worth(state: &State<'_>, vertex: u32, gain: i64) -> i64 {
    let (v, block) = (vertex as usize, state.block[vertex as usize] as usize);
    if gain >= 0 {
        return gain;
    }
    let part = |have: u64, may: u64| ((u128::from(have) << 20) / u128::from(may.max(1))) as u64;
    let time = part(state.graph.time(v, state.blocks.kind[block]), state.blocks.limit[block]);
    let bytes = part(state.graph.bytes[v], state.blocks.capacity[block]);
    let late = state.load[block] > state.blocks.limit[block];
    let full = state.resident[block] > state.blocks.capacity[block];
    let weight = (if late { time } else { 0 }).max(if full { bytes } else { 0 });
    match weight {
        // Its move relieves nothing that is short.
        0 => i64::MIN,
        _ => i64::try_from(i128::from(gain) * 1024 / i128::from(weight)).unwrap_or(i64::MIN),
    }
}
