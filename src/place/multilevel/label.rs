//! Refinement by label propagation: vertex after vertex goes where it saves bytes. Cheap, and most
//! of the way on the finer levels.
//!
//! Source: Raghavan, Albert, Kumara, 2007; with gains of the connectivity as in Mt-KaHyPar.

use super::state::State;
use crate::control::Control;
use crate::random::Rng;

/// Vertices between two looks at the control.
const UNWATCHED: usize = 4096;

/// Moves single vertices of the boundary while that saves bytes, in at most so many rounds; each
/// looks at the vertices that the one before touched. O(pins) a round.
pub(super) fn propagate(state: &mut State<'_>, rounds: usize, rng: &mut Rng, control: &Control<'_>) {
    let mut active: Vec<u32> = (0..state.graph.len() as u32).collect();
    for _ in 0..rounds {
        active = rng.chunks(&active).concat();
        state.touched.clear();
        for (at, &vertex) in active.iter().enumerate() {
            if let Some((gain, to)) = state.best_move(vertex).filter(|&(gain, _)| gain > 0) {
                debug_assert_eq!(gain, state.gain(vertex, to as usize));
                state.shift(vertex, to);
            }
            if at % UNWATCHED == UNWATCHED - 1 && control.stopped() {
                return;
            }
        }
        active = std::mem::take(&mut state.touched);
        active.sort_unstable();
        active.dedup();
        if active.is_empty() {
            return;
        }
    }
}
