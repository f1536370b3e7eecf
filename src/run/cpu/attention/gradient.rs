//! Gradients of attention in tiles, without the matrix of all scores.
//!
//! One part has a head of keys with all the rows of queries that meet it, so that every sum is taken in one
//! order. A tile's scores are made once where its keys fit in a block; else once for the sums of its rows
//! and again for the gradients (Dao, "FlashAttention-2", 2023, section 3.1).

use crate::error::{Error, Result};
use crate::ir::{self, HeadOrder};
use crate::kernel::attention::{Geometry, PARTS, Tiling};
use crate::kernel::workspace::planned;

use super::super::element::Float;
use super::super::halves::{Held, with_held};
use super::super::normalize::entropy::sums;
use super::super::normalize::rows::largest;
use super::super::product::matmul::{Beta, Product, Strides};
use super::super::reduce::sum_run;
use super::super::team::{Matrices, MatrixMut, Team};
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Typed, View, ViewMut, take};
use super::forward::{Block, Heads, Mask, with_room};

/// `Op::AttentionGradient`.
pub(crate) fn attention_gradient(
    team: &Team<'_>,
    op: &ir::Attention,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    with_held!(inputs[0].dtype, "attention_gradient", (T, S) => {
        as_type::<T, S>(team, op, inputs, outputs, workspace)
    })
}

fn as_type<T: Typed + Float + Vectorised + Product, S: Held<T>>(
    team: &Team<'_>,
    op: &ir::Attention,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    mut workspace: &mut [u8],
) -> Result<()> {
    let misfit = || Error::Internal("operands of attention_gradient".to_owned());
    let [q, k, v, out] = [&inputs[0], &inputs[1], &inputs[2], &inputs[3]];
    let geometry = Geometry::new(op, [q.dims, k.dims, v.dims, out.dims]);
    let tiling = Tiling::of_gradients(&geometry);
    let heads = Heads::<T, S>::new(op, geometry, tiling, [q, k, v], inputs.get(5))?;
    let gradient = Gradient { heads, result: out.slice()?, dout: inputs[4].slice()? };
    let [dq, dk, dv] = outputs else { return Err(misfit()) };
    let key_heads = (geometry.heads / geometry.group.max(1)) as usize;
    let matrices = |position: usize, (heads, rows, columns): (u64, u64, u64)| {
        let abreast = op.orders[position] == HeadOrder::RowsFirst;
        let (rows, columns) = if abreast { (rows, heads * columns) } else { (heads * rows, columns) };
        let (outer, rows, columns) = (geometry.batch as usize, rows as usize, columns as usize);
        Matrices { outer, inner: key_heads, rows, columns, abreast }
    };
    let slices = [
        (dq.slice::<S>()?, matrices(0, (geometry.group, geometry.rows, geometry.size))),
        (dk.slice::<S>()?, matrices(1, (1, geometry.keys, geometry.size))),
        (dv.slice::<S>()?, matrices(2, (1, geometry.keys, geometry.value_size))),
    ];
    let head = |number: usize, made: &mut [MatrixMut<'_, S>; 3], memory: &mut [T]| {
        let (slot, room) = memory.split_at_mut(tiling.slot as usize);
        gradient.head((number / key_heads, number % key_heads), made, slot, room);
    };
    let memory = if S::WIDENS { tiling.of_gradients_of_halves(&geometry) } else { tiling.slot };
    if S::WIDENS && planned(memory) == 0 {
        let parts = &mut [(); PARTS as usize][..tiling.parts as usize];
        team.each_matrix(slices, (parts, 1), |number, made, _| {
            with_room(memory as usize, |room| head(number, made, room));
        });
    } else {
        let slots = take::<T>(&mut workspace, (tiling.parts * memory) as usize)?;
        team.each_matrix(slices, (slots, memory as usize), head);
    }
    Ok(())
}

struct Gradient<'a, T, S> {
    heads: Heads<'a, T, S>,
    result: &'a [S],
    dout: &'a [S],
}

/// What a tile works in.
struct Scratch<'a, T> {
    weights: &'a mut [T],
    ds: &'a mut [T],
    largest: &'a mut [T],
    /// The sums of exponentials, then what these are multiplied with.
    inverse_sums: &'a mut [T],
    /// The results times their gradients.
    d: &'a mut [T],
    /// What is widened of queries, of the results' gradients, and of a row of results: nothing where they lie as they
    /// are computed with.
    wide: [&'a mut [T]; 3],
}

impl<T: Typed + Float + Vectorised + Product, S: Held<T>> Gradient<'_, T, S> {
    /// All rows of queries that meet a head of keys.
    fn head(
        &self,
        (batch, key_head): (usize, usize),
        made: &mut [MatrixMut<'_, S>; 3],
        slot: &mut [T],
        room: &mut [T],
    ) {
        let Geometry { keys, size, value_size, .. } = self.heads.geometry;
        let of = |elements: u64| if S::WIDENS { elements as usize } else { 0 };
        let (of_keys, rest) = room.split_at_mut(of(keys * size));
        let (of_values, rest) = rest.split_at_mut(of(keys * value_size));
        let [dq, dk, dv] = made;
        S::make(dk, of_keys, |dk| {
            S::make(dv, of_values, |dv| self.sums((batch, key_head), (&mut *dq, &mut *dk, dv), slot, rest));
        });
    }

    /// The same, into sums of the type that is computed in.
    fn sums(
        &self,
        (batch, key_head): (usize, usize),
        (dq, dk, dv): (&mut MatrixMut<'_, S>, &mut MatrixMut<'_, T>, &mut MatrixMut<'_, T>),
        slot: &mut [T],
        room: &mut [T],
    ) {
        let Heads { op, geometry, tiling, .. } = &self.heads;
        let (rows, size, group) = (geometry.rows as usize, geometry.size as usize, geometry.group as usize);
        let (tall, wide) = (tiling.rows as usize, tiling.keys as usize);
        let (weights, rest) = slot.split_at_mut(tall * wide);
        let (ds, rest) = rest.split_at_mut(tall * wide);
        let (largest, rest) = rest.split_at_mut(tall);
        let (inverse_sums, rest) = rest.split_at_mut(tall);
        let of = |elements: usize| if S::WIDENS { elements } else { 0 };
        let (queries, more) = room.split_at_mut(of(tall * size));
        let (of_queries, more) = more.split_at_mut(of(tall * size));
        let (dout, more) = more.split_at_mut(of(tall * geometry.value_size as usize));
        let result = &mut more[..of(geometry.value_size as usize)];
        let wide = [queries, dout, result];
        let mut scratch = Scratch { weights, ds, largest, inverse_sums, d: &mut rest[..tall], wide };
        (0..dk.rows).for_each(|row| dk.row(row).fill(T::ZERO));
        (0..dv.rows).for_each(|row| dv.row(row).fill(T::ZERO));
        for number in 0..group {
            for first in (0..rows).step_by(tall) {
                let place = match op.orders[0] {
                    HeadOrder::HeadsFirst => (number * rows + first, 0),
                    HeadOrder::RowsFirst => (first, number * size),
                };
                let mut own = dq.block(place, (tall.min(rows - first), size));
                let head = (batch, key_head * group + number);
                S::make(&mut own, &mut *of_queries, |own| {
                    self.tile(head, first, (own, &mut *dk, &mut *dv), &mut scratch);
                });
            }
        }
    }

    /// The rows of one head from `first` on, as many as `dq` has.
    fn tile(
        &self,
        (batch, head): (usize, usize),
        first: usize,
        (dq, dk, dv): (&mut MatrixMut<'_, T>, &mut MatrixMut<'_, T>, &mut MatrixMut<'_, T>),
        scratch: &mut Scratch<'_, T>,
    ) {
        let heads = &self.heads;
        let Geometry { size, value_size, group, strides, .. } = heads.geometry;
        let (rows, size, value_size) = (dq.rows, size as usize, value_size as usize);
        let key_head = head / group as usize;
        let (at_query, at_result) = (heads.at(0, (batch, head), first), heads.at(3, (batch, head), first));
        let q_rows = (&heads.q[at_query..], Strides::rows(strides[0].row as usize));
        let dout_rows = (&self.dout[at_result..], Strides::rows(strides[3].row as usize));
        let [queries, dout, of_result] = &mut scratch.wide;
        let q = heads.queries((batch, head), (first, rows), queries);
        let dout = match value_size {
            0 => (&[][..], Strides::rows(0)),
            _ => S::rows(dout_rows.0, dout_rows.1.row, (rows, value_size), dout),
        };
        let result = &self.result[at_result..];
        for (row, d) in scratch.d.iter_mut().enumerate().take(rows) {
            if value_size == 0 {
                *d = T::ZERO;
                continue;
            }
            let x = &result[row * dout_rows.1.row..][..value_size];
            let x = S::rows(x, value_size, (1, value_size), of_result).0;
            let y = &dout.0[row * dout.1.row..][..value_size];
            *d = T::narrow(sums(&x[..value_size], y, |x, y| [x * y, 0.0])[0]);
        }
        let end = (0..rows).map(|row| heads.geometry.seen(heads.op.causal, (first + row) as u64)).max();
        let (end, wide) = (end.unwrap_or(0) as usize, heads.tiling.keys as usize);
        let block = |begin: usize| {
            let keys = wide.min(end - begin);
            Block { batch, head, row: first, key: begin, keys, is_first: begin == 0 }
        };
        scratch.largest.fill(T::LOWEST);
        scratch.inverse_sums.fill(T::ZERO);
        for begin in (0..end).step_by(wide) {
            let block = block(begin);
            let scores = &mut scratch.weights[..rows * block.keys];
            heads.scores(q, key_head, block, rows, scores);
            let (largest, sums) = (&mut *scratch.largest, &mut *scratch.inverse_sums);
            T::dispatch(Sums { heads, block, scores, largest, sums });
        }
        for sum in scratch.inverse_sums.iter_mut() {
            let total = sum.to_f64();
            let nothing = total == 0.0 || heads.op.zeros && total.is_nan();
            *sum = if nothing { T::ZERO } else { T::narrow(1.0 / total) };
        }
        for begin in (0..end).step_by(wide) {
            let block = block(begin);
            let n = block.keys;
            let (weights, ds) = (&mut scratch.weights[..rows * n], &mut scratch.ds[..rows * n]);
            if end > wide {
                heads.scores(q, key_head, block, rows, weights);
                let scores = weights.chunks_mut(n).enumerate();
                scores.for_each(|(row, scores)| heads.masked(block, first + row, scores));
            }
            let key = &heads.k[heads.at(1, (batch, key_head), begin)..];
            let value = &heads.v[heads.at(2, (batch, key_head), begin)..];
            let value = (value, Strides::rows(strides[2].row as usize).transposed());
            match value_size {
                0 => ds.fill(T::ZERO),
                _ => {
                    S::multiply(dout, value, value_size, &mut MatrixMut::new(ds, (rows, n), n), Beta::Replace)
                }
            }
            let (largest, inverse_sums, d) = (&*scratch.largest, &*scratch.inverse_sums, &*scratch.d);
            T::dispatch(ScoreGradients { heads, block, weights, ds, largest, inverse_sums, d });
            let turned = Strides::rows(n).transposed();
            if value_size > 0 {
                let mut dv = dv.block((begin, 0), (n, value_size));
                S::multiply((weights, turned), dout_rows, rows, &mut dv, Beta::Add);
            }
            if size > 0 {
                let mut dk = dk.block((begin, 0), (n, size));
                S::multiply((ds, turned), q_rows, rows, &mut dk, Beta::Add);
                let key = (key, Strides::rows(strides[1].row as usize));
                let beta = if begin == 0 { Beta::Replace } else { Beta::Add };
                S::multiply((ds, Strides::rows(n)), key, n, dq, beta);
            }
        }
        if end == 0 {
            (0..rows).for_each(|row| dq.row(row).fill(T::ZERO));
        }
    }
}

/// Masks the scores of a block, and takes its largest ones and sums of exponentials into those of the rows.
struct Sums<'a, T, S> {
    heads: &'a Heads<'a, T, S>,
    block: Block,
    scores: &'a mut [T],
    largest: &'a mut [T],
    sums: &'a mut [T],
}

impl<T: Typed + Float, S: Held<T>> Task<T> for Sums<'_, T, S> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let Self { heads, block, scores, largest: most, sums } = self;
        for (row, scores) in scores.chunks_mut(block.keys).enumerate() {
            heads.masked(block, block.row + row, scores);
            let new = most[row].larger(largest(scores));
            if new == T::LOWEST {
                continue;
            }
            let before = sums[row].to_f64() * Float::exp(most[row].sub(new)).to_f64();
            let added = sum_run(scores, |sum, x| sum + Float::exp(x.sub(new)).to_f64());
            sums[row] = T::narrow(before + added);
            most[row] = new;
        }
    }
}

/// Makes weights of scores, and slopes of the products of gradients and values.
struct ScoreGradients<'a, T, S> {
    heads: &'a Heads<'a, T, S>,
    block: Block,
    weights: &'a mut [T],
    ds: &'a mut [T],
    largest: &'a [T],
    inverse_sums: &'a [T],
    d: &'a [T],
}

impl<T: Typed + Float, S: Held<T>> Task<T> for ScoreGradients<'_, T, S> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let Self { heads, block, weights, ds, largest, inverse_sums, d } = self;
        let factor = T::narrow(heads.op.scale.0);
        let lines = weights.chunks_mut(block.keys).zip(ds.chunks_mut(block.keys));
        for (row, (weights, ds)) in lines.enumerate() {
            let (most, inverse_sum, d) = (largest[row], inverse_sums[row], d[row]);
            if inverse_sum == T::ZERO {
                weights.fill(T::ZERO);
                ds.fill(T::ZERO);
                continue;
            }
            for (weight, ds) in weights.iter_mut().zip(ds.iter_mut()) {
                *weight = Float::exp(weight.sub(most)).mul(inverse_sum);
                *ds = weight.mul(ds.sub(d)).mul(factor);
            }
            if let Mask::Shown(shown) = heads.mask {
                let (start, along) = heads.mask_at(block, block.row + row);
                for (i, ds) in ds.iter_mut().enumerate() {
                    if shown[start + i * along] == 0 {
                        *ds = T::ZERO;
                    }
                }
            }
        }
    }
}
