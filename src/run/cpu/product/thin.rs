//! Products of one row with rows of numbers that are narrower in memory than f32: halves, and groups of few bits with
//! scales beside (`digits` multiplies other blocks). They become vectors where they are read, in registers, so that the time is that of reading them.
//!
//! Sums are made as those along contiguous operands are (`skinny`): of every sixteenth term each, in chains. So their bits
//! are those of the product with the widened rows.
//!
//! For more rows numbers are widened once ([`Widen`]), or into the panels of a product of blocks ([`IntoPanels`]).

use std::ops::Range;

use super::super::vectors::{Lanes, Task, fetch};
use super::blocks::{CHAIN, PANEL};
use super::skinny::{DOT, total};

/// Numbers that a row gives at a time.
pub(crate) const SOME: usize = 32;
/// Vectors that hold them, at most.
pub(crate) const VECTORS: usize = 4;
/// Rows that share each load of the left operand, and whose sums hide one another's latency.
const TOGETHER: usize = 4;

/// A row of numbers that are widened as they are read.
pub(crate) trait Narrow: Copy {
    /// Bytes of [`SOME`] numbers, about, where the rows that follow are asked for while some are read. Zero where rows take
    /// the time of fetching them: those that are read together are then of parts that lie apart, each of which the
    /// processor fetches as one stream.
    const AHEAD: usize;
    /// Numbers of a block, which have scales in common: a multiple of [`SOME`].
    const BLOCK: usize = SOME;
    /// The scales of a block.
    type Scales: Copy;
    /// Reads those of the block that begins at a number.
    fn scales<L: Lanes<f32>>(self, lanes: L, block: usize) -> Self::Scales;
    /// [`SOME`] numbers, that part of the block that begins at a number: as many vectors as hold them, the others unused.
    fn part<L: Lanes<f32>>(
        self,
        lanes: L,
        block: usize,
        part: usize,
        scales: &Self::Scales,
    ) -> [L::Vector; VECTORS];
    /// Numbers from one on, a multiple of [`SOME`], less than [`SOME`] of them.
    fn last(self, at: usize, to: &mut [f32]);
    /// Where its numbers begin.
    fn start(self) -> *const u8;
}

/// Rows of narrow numbers.
pub(crate) trait NarrowRows: Sync {
    type Row: Narrow;
    fn row(&self, row: usize) -> Self::Row;
}

/// `out = left rows^T`, or added to what is there: results of the rows from `first` on.
pub(crate) struct OneRow<'a, 'c, R> {
    pub(crate) left: &'a [f32],
    pub(crate) rows: &'a R,
    pub(crate) first: usize,
    pub(crate) out: &'c mut [f32],
    pub(crate) adds: bool,
    /// Terms that are one sum, a multiple of [`SOME`]; such sums are added one after the other. A row is read from its
    /// beginning to its end however many they are: what lies behind is fetched by then.
    pub(crate) deep: usize,
}

impl<R: NarrowRows> Task<f32> for OneRow<'_, '_, R> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, lanes: L) {
        let Self { left, rows, first, out, adds, deep } = self;
        let count = out.len();
        let (groups, whole) = (count / TOGETHER, count - count % TOGETHER);
        let (apart, next) = if R::Row::AHEAD == 0 { (groups, 1) } else { (1, TOGETHER) };
        let terms = |start: usize| start..left.len().min(start.saturating_add(deep));
        let mut put = |at: usize, start: usize, sum: f32| {
            out[at] = if adds || start > 0 { out[at] + sum } else { sum };
        };
        for group in 0..groups {
            let at = group * next;
            let row = first + at;
            let [second, third] = [row + apart, row + 2 * apart];
            let some = [rows.row(row), rows.row(second), rows.row(third), rows.row(third + apart)];
            for start in (0..left.len().max(1)).step_by(deep) {
                let sums = sums::<L, R::Row, TOGETHER>(lanes, left, some, terms(start));
                (0..TOGETHER).for_each(|number| put(at + number * apart, start, sums[number]));
            }
        }
        for at in whole..count {
            for start in (0..left.len().max(1)).step_by(deep) {
                let [sum] = sums(lanes, left, [rows.row(first + at)], terms(start));
                put(at, start, sum);
            }
        }
    }
}

/// The sums of some terms of some rows, from a multiple of [`SOME`] on.
#[inline(always)]
fn sums<L: Lanes<f32>, R: Narrow, const N: usize>(
    lanes: L,
    left: &[f32],
    rows: [R; N],
    terms: Range<usize>,
) -> [f32; N] {
    let (k, count) = (terms.end, terms.len());
    // What is read some at a time, and what is added up side by side.
    let (read, beside) = (k - count % SOME, k - count % DOT);
    let mut last = [[0.0; SOME]; N];
    if read < k {
        (0..N).for_each(|row| rows[row].last(read, &mut last[row][..k - read]));
    }
    // While some rows are read, those behind them are fetched, in the order in which they lie: as one stream.
    let apart = rows[N - 1].start().addr().wrapping_sub(rows[0].start().addr()) / (N - 1).max(1);
    let ahead = rows[0].start().wrapping_add(N * apart);
    let mut totals = [[lanes.zero(); VECTORS]; N];
    for first in (terms.start..beside).step_by(DOT * CHAIN) {
        let end = beside.min(first + DOT * CHAIN);
        let mut chains = [[lanes.zero(); VECTORS]; N];
        let until = end.min(read);
        for block in (first..until).step_by(R::BLOCK) {
            let mut scales = [rows[0].scales(lanes, block); N];
            for row in 1..N {
                scales[row] = rows[row].scales(lanes, block);
            }
            for part in 0..R::BLOCK.min(until - block) / SOME {
                let place = block / SOME + part;
                fetch(ahead.wrapping_add(place * N * R::AHEAD), N * R::AHEAD);
                let left = &left[place * SOME..][..SOME];
                // Loops of a known length without iterators or closures: what they hold stays in registers.
                for row in 0..N {
                    let numbers = rows[row].part(lanes, block, part, &scales[row]);
                    for v in 0..SOME / L::WIDTH {
                        let chain = &mut chains[row][v % (DOT / L::WIDTH)];
                        *chain = lanes.fused(lanes.load(&left[v * L::WIDTH..]), numbers[v], *chain);
                    }
                }
            }
        }
        if end > read {
            add_last(lanes, &left[read..], &last, &mut chains);
        }
        if first == terms.start {
            totals = chains;
            continue;
        }
        for row in 0..N {
            for v in 0..DOT / L::WIDTH {
                totals[row][v] = lanes.add(totals[row][v], chains[row][v]);
            }
        }
    }
    let mut sums = [0.0; N];
    for row in 0..N {
        sums[row] = total(lanes, &totals[row]);
        for at in beside..k {
            sums[row] = lanes.number(left[at], last[row][at - read], sums[row]);
        }
    }
    sums
}

/// Adds [`DOT`] terms that are widened.
#[inline(always)]
fn add_last<L: Lanes<f32>, const N: usize>(
    lanes: L,
    left: &[f32],
    last: &[[f32; SOME]; N],
    chains: &mut [[L::Vector; VECTORS]; N],
) {
    for row in 0..N {
        for v in 0..DOT / L::WIDTH {
            let at = v * L::WIDTH;
            chains[row][v] =
                lanes.fused(lanes.load(&left[at..]), lanes.load(&last[row][at..]), chains[row][v]);
        }
    }
}

/// Widens numbers of a row from one on, a multiple of [`SOME`].
pub(crate) struct Widen<'o, R> {
    pub(crate) row: R,
    pub(crate) first: usize,
    pub(crate) out: &'o mut [f32],
}

impl<R: Narrow> Task<f32> for Widen<'_, R> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, lanes: L) {
        let Self { row, first, out } = self;
        let whole = out.len() - out.len() % SOME;
        let mut scales = row.scales(lanes, first - first % R::BLOCK);
        for at in (0..whole).step_by(SOME) {
            let part = (first + at) % R::BLOCK;
            let block = first + at - part;
            if part == 0 {
                scales = row.scales(lanes, block);
            }
            let numbers = row.part(lanes, block, part / SOME, &scales);
            let out = &mut out[at..at + SOME];
            for v in 0..SOME / L::WIDTH {
                lanes.store(numbers[v], &mut out[v * L::WIDTH..]);
            }
        }
        if whole < out.len() {
            row.last(first + whole, &mut out[whole..]);
        }
    }
}

/// Widens rows into the panels of a right operand, whose columns they are: from a number of each on, a multiple of [`SOME`].
pub(crate) struct IntoPanels<'a, 'o, R> {
    pub(crate) rows: &'a R,
    pub(crate) first: usize,
    pub(crate) columns: usize,
    pub(crate) inner: usize,
    pub(crate) depth: usize,
    /// Whole panels.
    pub(crate) to: &'o mut [f32],
}

impl<R: NarrowRows> Task<f32> for IntoPanels<'_, '_, R> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, lanes: L) {
        let Self { rows, first, columns, inner, depth, to } = self;
        for (panel, to) in to.chunks_exact_mut(PANEL * depth).enumerate().take(columns.div_ceil(PANEL)) {
            let width = PANEL.min(columns - panel * PANEL);
            for beside in (0..width).step_by(L::WIDTH) {
                let count = L::WIDTH.min(width - beside);
                let first = first + panel * PANEL + beside;
                let some = Square { rows, first, count, inner, depth };
                some.turn(lanes, &mut to[beside..]);
            }
        }
    }
}

/// As many rows as a vector has numbers, or fewer.
struct Square<'a, R> {
    rows: &'a R,
    first: usize,
    count: usize,
    inner: usize,
    depth: usize,
}

impl<R: NarrowRows> Square<'_, R> {
    /// Writes them as columns, square by square.
    #[inline(always)]
    fn turn<L: Lanes<f32>>(&self, lanes: L, to: &mut [f32]) {
        let whole = self.depth - self.depth % SOME;
        let mut squares = [[lanes.zero(); 16]; VECTORS];
        let mut scales = [None; 16];
        for at in (0..whole).step_by(SOME) {
            let part = (self.inner + at) % R::Row::BLOCK;
            let block = self.inner + at - part;
            if self.count < L::WIDTH {
                // What the square before left where there are no rows.
                squares = [[lanes.zero(); 16]; VECTORS];
            }
            for row in 0..self.count {
                let own = self.rows.row(self.first + row);
                let scales = match scales[row] {
                    Some(scales) if part > 0 => scales,
                    _ => *scales[row].insert(own.scales(lanes, block)),
                };
                let numbers = own.part(lanes, block, part / SOME, &scales);
                for v in 0..SOME / L::WIDTH {
                    squares[v][row] = numbers[v];
                }
            }
            for v in 0..SOME / L::WIDTH {
                lanes.turn(&mut squares[v]);
                for line in 0..L::WIDTH {
                    lanes.store(squares[v][line], &mut to[(at + v * L::WIDTH + line) * PANEL..]);
                }
            }
        }
        if whole == self.depth {
            return;
        }
        for row in 0..self.count {
            let mut last = [0.0; SOME];
            let last = &mut last[..self.depth - whole];
            self.rows.row(self.first + row).last(self.inner + whole, last);
            for (line, number) in last.iter().enumerate() {
                to[(whole + line) * PANEL + row] = *number;
            }
        }
    }
}
