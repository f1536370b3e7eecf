//! Refinement by localized searches: each starts at a few vertices of the boundary, moves the best
//! vertex whether it gains or not, wakes its neighbours, and in the end undoes all moves after the
//! best partition it saw.
//!
//! Source: Fiduccia and Mattheyses, 1982; localized k-way searches as in Sanders and Schulz,
//! Engineering Multilevel Graph Partitioning Algorithms, 2011.

use super::flows::Cuts;
use super::heap::Heaps;
use super::state::State;
use super::stopping::GainWalk;
use crate::control::Control;
use crate::random::Rng;

/// How hard to search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// Passes over the boundary at most.
    pub(super) passes: usize,
    /// Boundary vertices that one search starts from.
    pub(super) seeds: usize,
    /// Moves without a better partition after which a search ends.
    pub(super) fruitless: usize,
    /// How steadily gains have to fall for a search to end before that ([`super::stopping`]).
    pub(super) patience: f64,
    /// A pass that saves less than one part in this many is the last.
    pub(super) worthwhile: u64,
    /// Searches at most that go beyond the blocks' limits for a while.
    pub(super) beyond: usize,
    /// How hard to look for cuts of two blocks after that.
    pub(super) cuts: Cuts,
}

/// Moves vertices for fewer bytes within the limits; never ends with more bytes than it began with.
/// O(passes x pins of the boundary).
pub(super) fn refine(state: &mut State<'_>, search: Search, rng: &mut Rng, control: &Control<'_>) {
    let mut walk = FmWalk {
        heaps: Heaps::new(state.blocks.len(), state.graph.len()),
        done: vec![false; state.graph.len()],
        moves: Vec::new(),
        seen: Vec::new(),
        woken: vec![0; state.graph.len()],
        clock: 0,
        parked: vec![Vec::new(); state.blocks.len()],
    };
    state.slack = slack(state);
    state.only_raised = true;
    let mut bytes = state.connectivity();
    for _ in 0..search.passes {
        let saved = walk.pass(state, search, rng, control);
        if saved == 0 || saved < bytes / search.worthwhile || control.stopped() {
            break;
        }
        bytes -= saved.min(bytes);
    }
    state.slack = 0;
    state.only_raised = false;
}

/// A fraction of what a block may take, so that two vertices can change places.
fn slack(state: &State<'_>) -> u64 {
    if !state.blocks.time_binds() {
        return 0;
    }
    let heaviest = (0..state.graph.len()).map(|vertex| state.graph.time(vertex, 0)).max().unwrap_or(0);
    let least = state.blocks.limit.iter().min().copied().unwrap_or(0);
    heaviest.min(least / 8)
}

struct FmWalk {
    /// Vertices that may move, by their block.
    heaps: Heaps,
    /// Vertices that were moved or tried in this pass.
    done: Vec<bool>,
    /// Vertices moved by this search, and from where.
    moves: Vec<(u32, u32)>,
    /// Scratch for the vertices whose gains a move raised.
    seen: Vec<u32>,
    /// The move at which each vertex was woken last.
    woken: Vec<u32>,
    /// Moves made so far.
    clock: u32,
    /// By block, vertices that would go there were there room.
    parked: Vec<Vec<u32>>,
}

impl FmWalk {
    /// Searches from all of the boundary; the bytes saved.
    fn pass(&mut self, state: &mut State<'_>, search: Search, rng: &mut Rng, control: &Control<'_>) -> u64 {
        let boundary: Vec<u32> =
            (0..state.graph.len() as u32).filter(|&vertex| state.is_boundary(vertex)).collect();
        let seeds = rng.chunks(&boundary).concat();
        self.done.fill(false);
        let mut saved = 0;
        let mut next = 0;
        let mut searches = 0usize;
        while next < seeds.len() {
            let mut started = 0;
            while next < seeds.len() && started < search.seeds {
                started += usize::from(self.wake(state, seeds[next]));
                next += 1;
            }
            saved += self.search(state, search);
            searches += 1;
            if searches.is_multiple_of(64) && control.stopped() {
                break;
            }
        }
        saved
    }

    /// Puts a vertex into the heap, or corrects its key; false where it cannot move.
    fn wake(&mut self, state: &State<'_>, vertex: u32) -> bool {
        if self.done[vertex as usize] {
            return false;
        }
        match state.best_move(vertex) {
            Some((gain, _)) => {
                self.heaps.set(state.block[vertex as usize] as usize, vertex, gain);
                true
            }
            None => {
                self.heaps.remove(vertex);
                if let Some(to) = state.best_full(vertex) {
                    self.parked[to].push(vertex);
                }
                false
            }
        }
    }

    /// Moves the best vertex again and again; keeps the best prefix. The bytes saved.
    fn search(&mut self, state: &mut State<'_>, search: Search) -> u64 {
        let (mut sum, mut best, mut kept) = (0i64, 0i64, 0usize);
        let mut excess = (0i128, 0i128);
        let mut since_best = GainWalk::default();
        self.moves.clear();
        while let Some((key, vertex)) = self.next(state) {
            let Some((gain, to)) = state.best_move(vertex) else {
                self.wake(state, vertex);
                continue;
            };
            // Keys are corrected when they surface: moves of neighbours may have made them too high.
            if gain < key {
                self.heaps.set(0, vertex, gain);
                continue;
            }
            self.heaps.remove(vertex);
            self.done[vertex as usize] = true;
            let from = state.block[vertex as usize];
            self.moves.push((vertex, from));
            state.touched.clear();
            let before = over(state, from, to);
            state.shift(vertex, to);
            let after = over(state, from, to);
            excess = (excess.0 + after.0 - before.0, excess.1 + after.1 - before.1);
            sum += gain;
            since_best.add(gain);
            // A prefix counts if the blocks are no further over their limits than before the search.
            if sum > best && excess <= (0, 0) {
                (best, kept, since_best) = (sum, self.moves.len(), GainWalk::default());
            }
            if self.moves.len() - kept > search.fruitless || since_best.is_hopeless(search.patience) {
                break;
            }
            self.wake_raised(state);
            // There is room now for those that waited for it.
            let mut parked = std::mem::take(&mut self.parked[from as usize]);
            parked.drain(..).for_each(|vertex| {
                self.wake(state, vertex);
            });
            if self.parked[from as usize].is_empty() {
                self.parked[from as usize] = parked;
            }
        }
        self.heaps.clear();
        self.parked.iter_mut().for_each(Vec::clear);
        for &(vertex, from) in self.moves[kept..].iter().rev() {
            state.shift(vertex, from);
        }
        state.touched.clear();
        best as u64
    }

    /// The vertex to move next: from a block that is over its limits where one has any, else the
    /// one with the largest gain.
    fn next(&self, state: &State<'_>) -> Option<(i64, u32)> {
        let blocks = 0..state.blocks.len();
        let mut over = blocks.clone().filter(|&block| state.is_over(block));
        let relieving = over.find_map(|block| self.heaps.peek(block));
        relieving.or_else(|| blocks.filter_map(|block| self.heaps.peek(block)).max())
    }

    /// Keys that a move made too high are corrected when they surface; those that it made too low, here.
    fn wake_raised(&mut self, state: &mut State<'_>) {
        std::mem::swap(&mut self.seen, &mut state.touched);
        self.clock += 1;
        for at in 0..self.seen.len() {
            let vertex = self.seen[at];
            if std::mem::replace(&mut self.woken[vertex as usize], self.clock) != self.clock {
                self.wake(state, vertex);
            }
        }
        self.seen.clear();
    }
}

/// By how much the two blocks of a move are over their limits: of bytes, of time.
fn over(state: &State<'_>, from: u32, to: u32) -> (i128, i128) {
    let (from, to) = (state.over(from as usize), state.over(to as usize));
    (i128::from(from.0) + i128::from(to.0), i128::from(from.1) + i128::from(to.1))
}
