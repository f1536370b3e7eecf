//! What attention and its gradients compute, in f64: every score of a row, then their softmax.

use super::{Array, Heads, Pass};

/// The operands, and where their rows lie.
struct Operands<'a> {
    heads: &'a Heads,
    lists: [Vec<f64>; 3],
    mask: Option<Array>,
    /// Of the first row.
    position: i64,
}

/// A row of one head of one element of the batch: of queries or results, or of keys or values.
#[derive(Clone, Copy)]
struct RowAt {
    batch: u64,
    head: u64,
    row: u64,
}

impl RowAt {
    fn with_row(self, row: u64) -> Self {
        Self { row, ..self }
    }
}

/// The scores of a row's keys.
struct Scores {
    scores: Vec<f64>,
    /// Whether they depend on query and key.
    passes: Vec<bool>,
    /// The logarithm of the sum of their exponentials; infinite where the weights are not numbers.
    log: f64,
}

impl Scores {
    /// The weights of the keys by the logarithm of the sum; none where that is infinite.
    fn weights(&self, log: f64) -> Option<Vec<f64>> {
        let weights = self.scores.iter().map(|score| (score - log).exp());
        (log != f64::INFINITY).then(|| weights.collect())
    }
}

fn size(size: u64) -> Option<usize> {
    usize::try_from(size).ok()
}

fn real(args: &[Array], arg: u32) -> Option<Vec<f64>> {
    match args.get(arg as usize)? {
        Array::Real(list) => Some(list.clone()),
        Array::Whole(_) => None,
    }
}

impl<'a> Operands<'a> {
    fn new(heads: &'a Heads, args: &[Array]) -> Option<Self> {
        let [q, k, v] = heads.reads;
        let mask = match heads.mask {
            Some(arg) => Some(args.get(arg as usize)?.clone()),
            None => None,
        };
        let position = match heads.position {
            Some(arg) => match args.get(arg as usize)? {
                Array::Whole(list) => *list.first()?,
                Array::Real(_) => return None,
            },
            None => 0,
        };
        Some(Self { heads, lists: [real(args, q)?, real(args, k)?, real(args, v)?], mask, position })
    }

    fn at(&self, position: usize, RowAt { batch, head, row }: RowAt) -> Option<usize> {
        let strides = self.heads.geometry.strides[position];
        size(strides.start + batch * strides.batch + head * strides.head + row * strides.row)
    }

    /// A row of queries, keys or values; of the last two by the head of the queries.
    fn row(&self, position: usize, RowAt { batch, head, row }: RowAt) -> Option<&[f64]> {
        let geometry = &self.heads.geometry;
        let head = if position == 0 { head } else { head / geometry.group.max(1) };
        let length = if position == 2 { geometry.value_size } else { geometry.size };
        self.lists[position].get(self.at(position, RowAt { batch, head, row })?..)?.get(..size(length)?)
    }

    fn scores(&self, RowAt { batch, head, row }: RowAt) -> Option<Scores> {
        let heads = self.heads;
        let query = self.row(0, RowAt { batch, head, row })?;
        let (mut scores, mut passes) = (Vec::new(), Vec::new());
        for key in 0..heads.geometry.keys {
            let dot = dot(query, self.row(1, RowAt { batch, head, row: key })?) * heads.op.scale.0;
            let [b, h, r, c] = heads.mask_strides;
            let place = size(batch * b + head * h + row * r + key * c)?;
            let (score, own) = match &self.mask {
                None => (dot, true),
                Some(Array::Real(mask)) => (dot + mask.get(place)?, true),
                Some(Array::Whole(mask)) if *mask.get(place)? == 0 => (heads.op.fill.0, false),
                Some(Array::Whole(_)) => (dot, true),
            };
            let at = (row as i64).saturating_add(self.position);
            let hidden = heads.op.causal.is_some_and(|offset| key as i64 > at.saturating_add(offset));
            scores.push(if hidden { f64::NEG_INFINITY } else { score });
            passes.push(own && !hidden);
        }
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
        let log = if total.is_nan() { f64::INFINITY } else { most + total.ln() };
        Some(Scores { scores, passes, log })
    }
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Every row of queries.
fn rows(heads: &Heads) -> impl Iterator<Item = RowAt> + use<> {
    let geometry = heads.geometry;
    let heads = (0..geometry.batch).flat_map(move |batch| (0..geometry.heads).map(move |head| (batch, head)));
    heads.flat_map(move |(batch, head)| (0..geometry.rows).map(move |row| RowAt { batch, head, row }))
}

pub(super) fn attention(heads: &Heads, args: &mut [Array]) -> Option<()> {
    let operands = Operands::new(heads, args)?;
    match heads.pass {
        Pass::Forward => {}
        Pass::Parts => return in_parts(&operands, args),
        Pass::Queries | Pass::Keys => return gradients(&operands, args),
    }
    let mut results = Vec::new();
    for place in rows(heads) {
        let found = operands.scores(place)?;
        let weights = found.weights(found.log);
        for column in 0..size(heads.geometry.value_size)? {
            let mut sum = 0.0;
            for (key, weight) in weights.iter().flatten().enumerate() {
                sum += weight * operands.row(2, place.with_row(key as u64))?.get(column)?;
            }
            let broken = weights.is_none() && !heads.op.zeros;
            results.push((operands.at(3, place)? + column, if broken { f64::NAN } else { sum }));
        }
    }
    write(args, heads.writes.first()?.0, results)
}

/// Parts of 16 keys or multiples, of what a row may see.
fn in_parts(operands: &Operands<'_>, args: &mut [Array]) -> Option<()> {
    let heads = operands.heads;
    let (geometry, [mosts, sums]) = (&heads.geometry, heads.rows?);
    let width = size(geometry.value_size)?;
    for (number, place) in rows(heads).enumerate() {
        let found = operands.scores(place)?;
        let causal = heads.op.causal.map(|offset| offset.saturating_add(operands.position));
        let seen = geometry.seen(causal, place.row);
        let length = seen.div_ceil(heads.parts).next_multiple_of(16);
        for part in 0..heads.parts {
            let keys = (part * length).min(seen)..((part + 1) * length).min(seen);
            let scores = found.scores.get(size(keys.start)?..size(keys.end)?)?;
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, |most, score| {
                if most.is_nan() || score.is_nan() { f64::NAN } else { most.max(score) }
            });
            let weight = |score: &f64| if *score == f64::NEG_INFINITY { 0.0 } else { (score - most).exp() };
            let weights: Vec<f64> = scores.iter().map(weight).collect();
            let mut values = vec![0.0; width];
            for (key, weight) in keys.zip(&weights) {
                let value = operands.row(2, place.with_row(key))?;
                values.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
            }
            let line = number * size(heads.parts)? + size(part)?;
            write(args, mosts, vec![(line, most)])?;
            write(args, sums, vec![(line, weights.iter().sum())])?;
            let first = line * width;
            let values = values.into_iter().enumerate().map(|(i, value)| (first + i, value)).collect();
            write(args, heads.writes.first()?.0, values)?;
        }
    }
    Some(())
}

fn write(args: &mut [Array], arg: u32, values: Vec<(usize, f64)>) -> Option<()> {
    let Array::Real(out) = args.get_mut(arg as usize)? else { return None };
    values.into_iter().try_for_each(|(at, value)| {
        *out.get_mut(at)? = value;
        Some(())
    })
}

/// Adds `factor * row` to a row of what the program writes, `position` among that.
fn add(
    heads: &Heads,
    args: &mut [Array],
    position: usize,
    RowAt { batch, head, row }: RowAt,
    factor: f64,
    values: &[f64],
) -> Option<()> {
    let &(arg, strides) = heads.writes.get(position)?;
    let start = size(strides.start + batch * strides.batch + head * strides.head + row * strides.row)?;
    let Array::Real(out) = args.get_mut(arg as usize)? else { return None };
    let out = out.get_mut(start..)?.get_mut(..values.len())?;
    out.iter_mut().zip(values).for_each(|(out, value)| *out += factor * value);
    Some(())
}

fn number_at(args: &[Array], arg: u32, number: usize) -> Option<f64> {
    match args.get(arg as usize)? {
        Array::Real(list) => list.get(number).copied(),
        Array::Whole(_) => None,
    }
}

/// Both passes; that by keys takes the rows' numbers as the other one left them.
fn gradients(operands: &Operands<'_>, args: &mut [Array]) -> Option<()> {
    let heads = operands.heads;
    let geometry = &heads.geometry;
    let by_rows = heads.pass == Pass::Queries;
    let ([result, dy], numbers) = (heads.upstream?, heads.rows?);
    let (result, dy) = (real(args, result)?, real(args, dy)?);
    for &(arg, _) in &heads.writes {
        let Array::Real(out) = args.get_mut(arg as usize)? else { return None };
        out.fill(0.0);
    }
    for (number, place) in rows(heads).enumerate() {
        let length = size(geometry.value_size)?;
        let at = operands.at(3, place)?;
        let dy = dy.get(at..)?.get(..length)?;
        let found = operands.scores(place)?;
        if by_rows {
            write(args, numbers[0], vec![(number, found.log)])?;
            let d = dot(result.get(at..)?.get(..length)?, dy);
            write(args, numbers[1], vec![(number, d)])?;
        }
        let (log, d) = (number_at(args, numbers[0], number)?, number_at(args, numbers[1], number)?);
        for (key, weight) in found.weights(log).iter().flatten().enumerate() {
            let own = place.with_row(key as u64);
            let ds = weight * (dot(dy, operands.row(2, own)?) - d) * heads.op.scale.0;
            let ds = if found.passes[key] { ds } else { 0.0 };
            if by_rows {
                add(heads, args, 0, place, ds, operands.row(1, own)?)?;
            } else {
                let own = RowAt { head: own.head / geometry.group.max(1), ..own };
                add(heads, args, 0, own, ds, operands.row(0, place)?)?;
                add(heads, args, 1, own, *weight, dy)?;
            }
        }
    }
    Some(())
}
