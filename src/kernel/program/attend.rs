//! What attention computes, in f64: every score of a row, then their softmax.

use super::{Array, Heads};

pub(super) fn attention(heads: &Heads, args: &mut [Array]) -> Option<()> {
    let real = |position: usize| -> Option<Vec<f64>> {
        match args.get(*heads.reads.get(position)? as usize)? {
            Array::Real(list) => Some(list.clone()),
            Array::Whole(_) => None,
        }
    };
    let (q, k, v) = (real(0)?, real(1)?, real(2)?);
    let mask = match heads.reads.get(3) {
        Some(&arg) => Some(args.get(arg as usize)?.clone()),
        None => None,
    };
    let size = |size: u64| usize::try_from(size).ok();
    let geometry = &heads.geometry;
    let (rows, keys) = (size(geometry.rows)?, size(geometry.keys)?);
    let (depth, values) = (size(geometry.size)?, size(geometry.value_size)?);
    let at = |position: usize, batch: u64, head: u64, row: usize| {
        let lie = geometry.lies[position];
        size(lie.start + batch * lie.batch + head * lie.head + row as u64 * lie.row)
    };
    let mut results = Vec::new();
    for (batch, head) in (0..geometry.batch).flat_map(|b| (0..geometry.heads).map(move |h| (b, h))) {
        let key_head = head / geometry.group.max(1);
        for row in 0..rows {
            let query = q.get(at(0, batch, head, row)?..)?.get(..depth)?;
            let mut scores = Vec::with_capacity(keys);
            for key in 0..keys {
                let own = k.get(at(1, batch, key_head, key)?..)?.get(..depth)?;
                let dot: f64 = query.iter().zip(own).map(|(x, y)| x * y).sum();
                let [b, h, r, c] = heads.mask_strides;
                let place = size(batch * b + head * h + row as u64 * r + key as u64 * c)?;
                let score = match &mask {
                    None => dot * heads.op.scale.0,
                    Some(Array::Real(mask)) => dot * heads.op.scale.0 + mask.get(place)?,
                    Some(Array::Whole(mask)) if *mask.get(place)? == 0 => heads.op.fill.0,
                    Some(Array::Whole(_)) => dot * heads.op.scale.0,
                };
                let hidden =
                    heads.op.causal.is_some_and(|offset| key as i64 > (row as i64).saturating_add(offset));
                scores.push(if hidden { f64::NEG_INFINITY } else { score });
            }
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            for column in 0..values {
                let mut sum = 0.0;
                for (key, weight) in weights.iter().enumerate() {
                    sum += weight / total * v.get(at(2, batch, key_head, key)? + column)?;
                }
                let broken = total.is_nan() && heads.op.zeros;
                results.push((at(3, batch, head, row)? + column, if broken { 0.0 } else { sum }));
            }
        }
    }
    let Array::Real(out) = args.get_mut(heads.write as usize)? else { return None };
    results.into_iter().try_for_each(|(at, value)| {
        *out.get_mut(at)? = value;
        Some(())
    })
}
