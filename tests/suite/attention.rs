//! Attention and rotary embeddings: random cases for every backend's test, and the definition in f64,
//! score by score.

use partition::ir::{Attention, DType, HeadOrder, Op, Real};

use crate::reference::Array;
use crate::run_ops::{Random, array, check};

/// The element of a head's row, as the order of its tensor says.
fn place(order: HeadOrder, [batch, head, row, at]: [usize; 4]) -> [usize; 4] {
    match order {
        HeadOrder::HeadsFirst => [batch, head, row, at],
        HeadOrder::RowsFirst => [batch, row, head, at],
    }
}

/// One element of the result of an attention.
pub(crate) fn attended(op: &Attention, x: &[Array], index: &[usize]) -> f64 {
    let [batch, head, row, at] = place(op.orders[3], [index[0], index[1], index[2], index[3]]);
    let share = (op.heads / op.key_heads) as usize;
    let element = |operand: usize, head: usize, row: usize, at: usize| {
        x[operand].at(&place(op.orders[operand], [batch, head + op.first[operand] as usize, row, at]))
    };
    let (_, keys) = op.orders[1].axes();
    let scores: Vec<f64> = (0..x[1].dims[keys])
        .map(|key| {
            let terms =
                (0..x[0].dims[3]).map(|i| element(0, head, row, i) * element(1, head / share, key, i));
            let score = terms.sum::<f64>() * op.scale.0;
            let hidden = op.causal.is_some_and(|offset| key as i64 > row as i64 + offset);
            match x.get(3) {
                _ if hidden => f64::NEG_INFINITY,
                None => score,
                Some(mask) => match (mask.dtype, mask.broadcast_at(&[batch, head, row, key])) {
                    (DType::Bool, 0.0) => op.fill.0,
                    (DType::Bool, _) => score,
                    (_, added) => score + added,
                },
            }
        })
        .collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    if total.is_nan() && op.zeros {
        return 0.0;
    }
    weights.iter().enumerate().map(|(key, w)| w / total * element(2, head / share, key, at)).sum()
}

/// One element of what a rotary embedding gives.
pub(crate) fn turned(transposed: bool, x: &[Array], index: &[usize]) -> f64 {
    let (&at, outer) = index.split_last().unwrap();
    let half = x[0].dims.last().unwrap() / 2;
    let of = |at: usize| x[0].at(&[outer, &[at]].concat());
    let other = if at < half { at + half } else { at - half };
    let (sin_at, sign) = if transposed { (other, at < half) } else { (at, at >= half) };
    let sin = x[2].broadcast_at(&[outer, &[sin_at]].concat());
    of(at) * x[1].broadcast_at(index) + of(other) * sin * if sign { 1.0 } else { -1.0 }
}

/// Sizes of a case: batch, heads of keys, query heads for each, rows, keys, size, size of values.
type Sizes = [usize; 7];

fn case(random: &mut Random, dtype: DType, [batch, key_heads, share, rows, keys, size, values]: Sizes) {
    let heads = key_heads * share;
    let orders: [HeadOrder; 4] = std::array::from_fn(|_| *random.pick(HeadOrder::ALL));
    let first: [usize; 3] = std::array::from_fn(|_| random.size(0, 2));
    let mut operands = Vec::new();
    for (position, (own, rows, size)) in
        [(heads, rows, size), (key_heads, keys, size), (key_heads, keys, values)].into_iter().enumerate()
    {
        let all = first[position] + own + random.size(0, 1);
        operands.push(array(random, dtype, &place(orders[position], [batch, all, rows, size])));
    }
    let mut causal = None;
    match random.range(0, 3) {
        0 => {}
        1 => causal = Some(keys as i64 - rows as i64 + random.range(-1, 1)),
        kind => {
            let dtype = if kind == 2 { dtype } else { DType::Bool };
            let dims = [batch, heads, rows, keys].map(|dim| if random.flag() { dim } else { 1 });
            let mut mask = array(random, dtype, &dims);
            if dtype != DType::Bool {
                mask.data.iter_mut().filter(|x| **x < -1.0).for_each(|x| *x = f64::NEG_INFINITY);
            }
            operands.push(mask);
        }
    }
    let op = Attention {
        heads: heads as i64,
        key_heads: key_heads as i64,
        first: first.map(|first| first as i64),
        orders,
        scale: Real(if random.flag() { 1.0 } else { 0.37 }),
        causal,
        fill: Real(if random.flag() { f64::NEG_INFINITY } else { -1.5 }),
        // The tests' halves have no code for what is not a number.
        zeros: random.flag() || dtype.size() == 2,
    };
    check(&Op::Attention(Box::new(op)), &operands);
}

#[test]
pub(crate) fn attentions() {
    let mut random = Random::new(71);
    let floats = [DType::F32, DType::F32, DType::F64, DType::F16, DType::Bf16];
    for _ in 0..120 {
        let sizes = [2, 2, 3, 9, 9, 6, 6].map(|most| random.size(1, most));
        let dtype = *random.pick(&floats);
        case(&mut random, dtype, sizes);
    }
}

#[test]
fn attentions_of_several_tiles() {
    let mut random = Random::new(72);
    // One row and many keys; several tiles of rows; several blocks of keys; both.
    for sizes in [[1, 1, 2, 1, 700, 7, 3], [2, 1, 1, 150, 12, 4, 2], [1, 1, 1, 130, 270, 3, 1]] {
        case(&mut random, DType::F32, sizes);
        case(&mut random, DType::F64, sizes);
    }
}

#[test]
pub(crate) fn rotary_embeddings() {
    let mut random = Random::new(73);
    for _ in 0..40 {
        let rank = random.size(1, 4);
        let mut dims = random.dims(rank, 6);
        dims[rank - 1] = 2 * random.size(1, 5);
        let dtype = *random.pick(&[DType::F32, DType::F64, DType::F16, DType::Bf16]);
        let x = array(&mut random, dtype, &dims);
        let [cos, sin] = std::array::from_fn(|_| {
            let own = &dims[random.size(0, rank - 1)..];
            let own: Vec<usize> = own.iter().map(|&dim| if random.flag() { dim } else { 1 }).collect();
            array(&mut random, dtype, &own)
        });
        let transposed = random.flag();
        check(&Op::Rotary { transposed }, &[x, cos, sin]);
    }
}
