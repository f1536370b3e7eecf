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
use super::super::halves::{StorageOf, with_storage};
use super::super::normalize::entropy::sums;
use super::super::normalize::rows::largest;
use super::super::product::matmul::{Beta, Matrix, Product, Strides};
use super::super::reduce::sum_run;
use super::super::team::{Matrices, MatrixMut, Slots, Team};
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Typed, View, ViewMut, take};
use super::forward::{Block, HeadAt, Heads, Mask, with_scratch};

/// `Op::AttentionGradient`.
pub(crate) fn attention_gradient(
    team: &Team<'_>,
    op: &ir::Attention,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    with_storage!(inputs[0].dtype, "attention_gradient", (T, S) => {
        as_type::<T, S>(team, op, inputs, outputs, workspace)
    })
}

fn as_type<T: Typed + Float + Vectorised + Product, S: StorageOf<T>>(
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
        let (slot, scratch) = memory.split_at_mut(tiling.slot as usize);
        let key_head = HeadAt { batch: number / key_heads, head: number % key_heads };
        gradient.head(key_head, made, slot, scratch);
    };
    let memory = if S::WIDENS { tiling.of_gradients_of_halves(&geometry) } else { tiling.slot };
    if S::WIDENS && planned(memory) == 0 {
        let parts = &mut [(); PARTS as usize][..tiling.parts as usize];
        team.each_matrix(slices, Slots { memory: parts, each: 1 }, |number, made, _| {
            with_scratch(memory as usize, |scratch| head(number, made, scratch));
        });
    } else {
        let slots = take::<T>(&mut workspace, (tiling.parts * memory) as usize)?;
        team.each_matrix(slices, Slots { memory: slots, each: memory as usize }, head);
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
    tables: Tables<'a, T>,
    /// What is widened of queries, of the results' gradients, and of a row of results: nothing where they lie as they
    /// are computed with.
    queries: &'a mut [T],
    dout: &'a mut [T],
    result: &'a mut [T],
}

/// Scores of a block of keys, and numbers of rows, under the names of the paper (section 2.3.2).
struct Tables<'a, T> {
    /// P, by row and key.
    weights: &'a mut [T],
    /// dP, then dS, by row and key.
    ds: &'a mut [T],
    /// The rows' largest scores.
    largest: &'a mut [T],
    /// The rows' sums of exponentials, then what these are multiplied with.
    inverse_sums: &'a mut [T],
    /// D: row sums of `dO * O`.
    d: &'a mut [T],
}

/// The sums that a tile adds to.
struct Sums<'g, 'q, 'k, 'v, T> {
    dq: &'g mut MatrixMut<'q, T>,
    dk: &'g mut MatrixMut<'k, T>,
    dv: &'g mut MatrixMut<'v, T>,
}

/// The rows of one head that a tile takes.
struct TileRows<'t, T, S> {
    batch: usize,
    head: usize,
    key_head: usize,
    first: usize,
    count: usize,
    /// Keys that any of them meets.
    end: usize,
    /// Queries and gradients of the results, as they are computed with and as they are held.
    q: Matrix<'t, T>,
    dout: Matrix<'t, T>,
    stored_q: Matrix<'t, S>,
    stored_dout: Matrix<'t, S>,
}

impl<T, S> TileRows<'_, T, S> {
    fn at(&self) -> HeadAt {
        HeadAt { batch: self.batch, head: self.head }
    }

    fn at_keys(&self) -> HeadAt {
        HeadAt { batch: self.batch, head: self.key_head }
    }
}

impl<T: Typed + Float + Vectorised + Product, S: StorageOf<T>> Gradient<'_, T, S> {
    /// All rows of queries that meet a head of keys.
    fn head(&self, key_head: HeadAt, made: &mut [MatrixMut<'_, S>; 3], slot: &mut [T], scratch: &mut [T]) {
        let Geometry { keys, size, value_size, .. } = self.heads.geometry;
        let of = |elements: u64| if S::WIDENS { elements as usize } else { 0 };
        let (of_keys, rest) = scratch.split_at_mut(of(keys * size));
        let (of_values, rest) = rest.split_at_mut(of(keys * value_size));
        let [dq, dk, dv] = made;
        S::make(dk, of_keys, |dk| {
            S::make(dv, of_values, |dv| self.sums(key_head, &mut *dq, &mut *dk, dv, slot, rest));
        });
    }

    /// The same, into sums of the type that is computed in.
    fn sums(
        &self,
        key_head: HeadAt,
        dq: &mut MatrixMut<'_, S>,
        dk: &mut MatrixMut<'_, T>,
        dv: &mut MatrixMut<'_, T>,
        slot: &mut [T],
        scratch: &mut [T],
    ) {
        let Heads { op, geometry, tiling, .. } = &self.heads;
        let (rows, size, group) = (geometry.rows as usize, geometry.size as usize, geometry.group as usize);
        let (tall, wide) = (tiling.rows as usize, tiling.keys as usize);
        let (weights, rest) = slot.split_at_mut(tall * wide);
        let (ds, rest) = rest.split_at_mut(tall * wide);
        let (largest, rest) = rest.split_at_mut(tall);
        let (inverse_sums, rest) = rest.split_at_mut(tall);
        let of = |elements: usize| if S::WIDENS { elements } else { 0 };
        let (queries, more) = scratch.split_at_mut(of(tall * size));
        let (of_queries, more) = more.split_at_mut(of(tall * size));
        let (dout, more) = more.split_at_mut(of(tall * geometry.value_size as usize));
        let result = &mut more[..of(geometry.value_size as usize)];
        let tables = Tables { weights, ds, largest, inverse_sums, d: &mut rest[..tall] };
        let mut scratch = Scratch { tables, queries, dout, result };
        (0..dk.rows).for_each(|row| dk.row(row).fill(T::ZERO));
        (0..dv.rows).for_each(|row| dv.row(row).fill(T::ZERO));
        for number in 0..group {
            for first in (0..rows).step_by(tall) {
                let place = match op.orders[0] {
                    HeadOrder::HeadsFirst => (number * rows + first, 0),
                    HeadOrder::RowsFirst => (first, number * size),
                };
                let mut own = dq.block(place, (tall.min(rows - first), size));
                let head = HeadAt { batch: key_head.batch, head: key_head.head * group + number };
                S::make(&mut own, &mut *of_queries, |dq| {
                    self.tile(head, first, Sums { dq, dk: &mut *dk, dv: &mut *dv }, &mut scratch);
                });
            }
        }
    }

    /// The rows of one head from `first` on, as many as `dq` has.
    fn tile(
        &self,
        head: HeadAt,
        first: usize,
        mut sums: Sums<'_, '_, '_, '_, T>,
        scratch: &mut Scratch<'_, T>,
    ) {
        let Scratch { tables, queries, dout, result } = scratch;
        let rows = self.rows(head, first, sums.dq.rows, queries, dout);
        self.products_of_rows(&rows, result, tables.d);
        self.statistics(&rows, tables);
        let wide = self.heads.tiling.keys as usize;
        for begin in (0..rows.end).step_by(wide) {
            self.weigh(&rows, begin, tables);
            self.add(&rows, begin, tables, &mut sums);
        }
        if rows.end == 0 {
            (0..rows.count).for_each(|row| sums.dq.row(row).fill(T::ZERO));
        }
    }

    fn rows<'t>(
        &'t self,
        at: HeadAt,
        first: usize,
        count: usize,
        queries: &'t mut [T],
        dout: &'t mut [T],
    ) -> TileRows<'t, T, S> {
        let heads = &self.heads;
        let Geometry { value_size, group, strides, .. } = heads.geometry;
        let (at_query, at_result) = (heads.at(0, at, first), heads.at(3, at, first));
        let stored_q = Matrix::new(&heads.q[at_query..], Strides::rows(strides[0].row as usize));
        let stored_dout = Matrix::new(&self.dout[at_result..], Strides::rows(strides[3].row as usize));
        let q = heads.queries(at, first..first + count, queries);
        let dout = match value_size as usize {
            0 => Matrix::new(&[], Strides::rows(0)),
            size => S::rows(stored_dout.elements, stored_dout.strides.row, (count, size), dout),
        };
        let end = (0..count).map(|row| heads.geometry.seen(heads.op.causal, (first + row) as u64)).max();
        let (key_head, end) = (at.head / group as usize, end.unwrap_or(0) as usize);
        TileRows {
            batch: at.batch,
            head: at.head,
            key_head,
            first,
            count,
            end,
            q,
            dout,
            stored_q,
            stored_dout,
        }
    }

    /// D of each row: what the softmax's gradient takes from every score alike.
    fn products_of_rows(&self, rows: &TileRows<'_, T, S>, widened: &mut [T], d: &mut [T]) {
        let size = self.heads.geometry.value_size as usize;
        let result = &self.result[self.heads.at(3, rows.at(), rows.first)..];
        for (row, d) in d.iter_mut().enumerate().take(rows.count) {
            if size == 0 {
                *d = T::ZERO;
                continue;
            }
            let x = &result[row * rows.stored_dout.strides.row..][..size];
            let x = S::rows(x, size, (1, size), widened).elements;
            let y = &rows.dout.elements[row * rows.dout.strides.row..][..size];
            *d = T::narrow(sums(&x[..size], y, |x, y| [x * y, 0.0])[0]);
        }
    }

    fn block(&self, rows: &TileRows<'_, T, S>, begin: usize) -> Block {
        let keys = (self.heads.tiling.keys as usize).min(rows.end - begin);
        let TileRows { batch, head, first, .. } = *rows;
        Block { batch, head, row: first, key: begin, keys, is_first: begin == 0 }
    }

    /// Largest scores and inverse sums of exponentials of all keys. The scores of the last block stay in the table.
    fn statistics(&self, rows: &TileRows<'_, T, S>, tables: &mut Tables<'_, T>) {
        let heads = &self.heads;
        tables.largest.fill(T::LOWEST);
        tables.inverse_sums.fill(T::ZERO);
        for begin in (0..rows.end).step_by(heads.tiling.keys as usize) {
            let block = self.block(rows, begin);
            let scores = &mut tables.weights[..rows.count * block.keys];
            heads.scores(rows.q, rows.key_head, block, rows.count, scores);
            let (largest, sums) = (&mut *tables.largest, &mut *tables.inverse_sums);
            T::dispatch(RowSums { heads, block, scores, largest, sums });
        }
        for sum in tables.inverse_sums.iter_mut() {
            let total = sum.to_f64();
            // A row to which no key is left passes nothing on.
            let nothing = total == 0.0 || heads.op.zeros && total.is_nan();
            *sum = if nothing { T::ZERO } else { T::narrow(1.0 / total) };
        }
    }

    /// P and dS of a block of keys: `dS = P * (dO V^T - D)`, scaled.
    fn weigh(&self, rows: &TileRows<'_, T, S>, begin: usize, tables: &mut Tables<'_, T>) {
        let heads = &self.heads;
        let Geometry { value_size, strides, .. } = heads.geometry;
        let block = self.block(rows, begin);
        let n = block.keys;
        let (weights, ds) = (&mut tables.weights[..rows.count * n], &mut tables.ds[..rows.count * n]);
        // Where all keys are one block its scores are still there.
        if rows.end > heads.tiling.keys as usize {
            heads.scores(rows.q, rows.key_head, block, rows.count, weights);
            let scores = weights.chunks_mut(n).enumerate();
            scores.for_each(|(row, scores)| heads.masked(block, rows.first + row, scores));
        }
        let value = &heads.v[heads.at(2, rows.at_keys(), begin)..];
        let value = Matrix::new(value, Strides::rows(strides[2].row as usize).transposed());
        match value_size as usize {
            0 => ds.fill(T::ZERO),
            size => {
                let mut dp = MatrixMut::new(ds, (rows.count, n), n);
                S::multiply(rows.dout, value, size, &mut dp, Beta::Replace);
            }
        }
        let (largest, inverse_sums, d) = (&*tables.largest, &*tables.inverse_sums, &*tables.d);
        T::dispatch(ScoreGradients { heads, block, weights, ds, largest, inverse_sums, d });
    }

    /// `dV += P^T dO`, `dK += dS^T Q`, `dQ += dS K`.
    fn add(
        &self,
        rows: &TileRows<'_, T, S>,
        begin: usize,
        tables: &Tables<'_, T>,
        sums: &mut Sums<'_, '_, '_, '_, T>,
    ) {
        let heads = &self.heads;
        let Geometry { size, value_size, strides, .. } = heads.geometry;
        let (size, value_size) = (size as usize, value_size as usize);
        let n = self.block(rows, begin).keys;
        let (weights, ds) = (&tables.weights[..rows.count * n], &tables.ds[..rows.count * n]);
        let transposed = Strides::rows(n).transposed();
        if value_size > 0 {
            let mut dv = sums.dv.block((begin, 0), (n, value_size));
            let weights = Matrix::new(weights, transposed);
            S::multiply(weights, rows.stored_dout, rows.count, &mut dv, Beta::Add);
        }
        if size > 0 {
            let mut dk = sums.dk.block((begin, 0), (n, size));
            S::multiply(Matrix::new(ds, transposed), rows.stored_q, rows.count, &mut dk, Beta::Add);
            let key = &heads.k[heads.at(1, rows.at_keys(), begin)..];
            let key = Matrix::new(key, Strides::rows(strides[1].row as usize));
            let beta = if begin == 0 { Beta::Replace } else { Beta::Add };
            S::multiply(Matrix::new(ds, Strides::rows(n)), key, n, &mut *sums.dq, beta);
        }
    }
}

/// Masks the scores of a block, and takes its largest ones and sums of exponentials into those of the rows.
struct RowSums<'a, T, S> {
    heads: &'a Heads<'a, T, S>,
    block: Block,
    scores: &'a mut [T],
    largest: &'a mut [T],
    sums: &'a mut [T],
}

impl<T: Typed + Float, S: StorageOf<T>> Task<T> for RowSums<'_, T, S> {
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

impl<T: Typed + Float, S: StorageOf<T>> Task<T> for ScoreGradients<'_, T, S> {
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
