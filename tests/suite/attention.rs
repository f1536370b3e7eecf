//! Attention and rotary embeddings: random cases for every backend's test, and the definition in f64,
//! score by score.

use partition::unstable::ir::{Attention, DType, HeadOrder, Op, Real};

use crate::reference::Array;
use crate::run_ops::{Random, array, check};

/// The element of a head's row, as the order of its tensor says.
fn place(order: HeadOrder, [batch, head, row, at]: [usize; 4]) -> [usize; 4] {
    match order {
        HeadOrder::HeadsFirst => [batch, head, row, at],
        HeadOrder::RowsFirst => [batch, row, head, at],
    }
}

/// An element of a head of queries (0), keys (1) or values (2).
fn element(op: &Attention, x: &[Array], operand: usize, [batch, head, row, at]: [usize; 4]) -> f64 {
    x[operand].at(&place(op.orders[operand], [batch, head + op.first[operand] as usize, row, at]))
}

/// The weights of the keys of a row, and whether their scores depend on query and key; none where no key is
/// left.
fn weights(
    op: &Attention,
    (x, mask): (&[Array], Option<&Array>),
    [batch, head, row]: [usize; 3],
) -> Option<Vec<(f64, bool)>> {
    let share = (op.heads / op.key_heads) as usize;
    let element = |operand, head, row, at| element(op, x, operand, [batch, head, row, at]);
    let (_, keys) = op.orders[1].axes();
    let scores: Vec<(f64, bool)> = (0..x[1].dims[keys])
        .map(|key| {
            let terms =
                (0..x[0].dims[3]).map(|i| element(0, head, row, i) * element(1, head / share, key, i));
            let score = terms.sum::<f64>() * op.scale.0;
            let first = op.position(x).map_or(0, |position| position.data[0] as i64);
            let hidden = op.causal.is_some_and(|offset| key as i64 > row as i64 + offset + first);
            match mask {
                _ if hidden => (f64::NEG_INFINITY, false),
                None => (score, true),
                Some(mask) => match (mask.dtype, mask.broadcast_at(&[batch, head, row, key])) {
                    (DType::Bool, 0.0) => (op.fill.0, false),
                    (DType::Bool, _) => (score, true),
                    (_, added) => (score + added, true),
                },
            }
        })
        .collect();
    let most = scores.iter().fold(f64::NEG_INFINITY, |most, score| most.max(score.0));
    let total: f64 = scores.iter().map(|score| (score.0 - most).exp()).sum();
    let weights = scores.iter().map(|&(score, passes)| ((score - most).exp() / total, passes));
    (!total.is_nan()).then(|| weights.collect())
}

/// One element of the result of an attention.
pub(crate) fn attended(op: &Attention, x: &[Array], index: &[usize]) -> f64 {
    let [batch, head, row, at] = place(op.orders[3], [index[0], index[1], index[2], index[3]]);
    let share = (op.heads / op.key_heads) as usize;
    let Some(weights) = weights(op, (x, op.mask(x)), [batch, head, row]) else {
        return if op.zeros { 0.0 } else { f64::NAN };
    };
    let term = |(key, (w, _)): (usize, (f64, bool))| w * element(op, x, 2, [batch, head / share, key, at]);
    weights.into_iter().enumerate().map(term).sum()
}

/// The results of the gradient of an attention.
pub(crate) fn slopes(op: &Attention, x: &[Array], results: &[(DType, Vec<usize>)]) -> Vec<Array> {
    let mut made: Vec<Array> = results
        .iter()
        .map(|(dtype, dims)| Array::new(*dtype, dims, vec![0.0; dims.iter().product()]))
        .collect();
    let mut add = |which: usize, at: [usize; 4], value: f64| {
        let dims = made[which].dims.clone();
        let at = place(op.orders[which], at).iter().zip(&dims).fold(0, |sum, (&at, &dim)| sum * dim + at);
        made[which].data[at] += value;
    };
    let (head_axis, row_axis) = op.orders[3].axes();
    let (size, values) = (x[0].dims[3], x[2].dims[3]);
    let share = (op.heads / op.key_heads) as usize;
    for [batch, head, row] in
        crate::reference::indices(&[x[0].dims[0], x[3].dims[head_axis], x[3].dims[row_axis]])
            .into_iter()
            .map(|index| [index[0], index[1], index[2]])
    {
        let Some(weights) = weights(op, (x, x.get(5)), [batch, head, row]) else { continue };
        let of = |operand: usize, at: usize| x[operand].at(&place(op.orders[3], [batch, head, row, at]));
        let level: f64 = (0..values).map(|at| of(3, at) * of(4, at)).sum();
        for (key, (weight, passes)) in weights.into_iter().enumerate() {
            let own = [batch, head / share, key];
            let whole = |at: usize| [own[0], own[1], own[2], at];
            let dp: f64 = (0..values).map(|at| of(4, at) * element(op, x, 2, whole(at))).sum();
            let slope = if passes { weight * (dp - level) * op.scale.0 } else { 0.0 };
            for at in 0..size {
                add(0, [batch, head, row, at], slope * element(op, x, 1, whole(at)));
                add(1, whole(at), slope * element(op, x, 0, [batch, head, row, at]));
            }
            (0..values).for_each(|at| add(2, whole(at), weight * of(4, at)));
        }
    }
    made
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

fn case(
    random: &mut Random,
    dtype: DType,
    [batch, key_heads, share, rows, keys, size, values]: Sizes,
) -> (Attention, Vec<Array>) {
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
                // The tests' halves have no code for what is infinite.
                let hidden = if dtype.size() == 2 { -40.0 } else { f64::NEG_INFINITY };
                mask.data.iter_mut().filter(|x| **x < -1.0).for_each(|x| *x = hidden);
            }
            operands.push(mask);
        }
    }
    // A part of a cache is filled: what lies behind it is met by no row.
    let positioned = causal.is_some() && random.flag();
    if positioned {
        if random.flag() {
            let dims = [batch, heads, rows, keys].map(|dim| if random.flag() { dim } else { 1 });
            operands.push(array(random, DType::Bool, &dims));
        }
        causal = Some(random.range(-1, 1));
        operands.push(Array::new(DType::I64, &[], vec![random.range(0, keys as i64) as f64]));
    }
    let op = Attention {
        heads: heads as i64,
        key_heads: key_heads as i64,
        first: first.map(|first| first as i64),
        orders,
        scale: Real(if random.flag() { 1.0 } else { 0.37 }),
        causal,
        positioned,
        fill: Real(if random.flag() { f64::NEG_INFINITY } else { -1.5 }),
        // The tests' halves have no code for what is not a number.
        zeros: random.flag() || dtype.size() == 2,
    };
    (op, operands)
}

/// A case without a cache: what reads one has no gradient.
fn of_keys_that_stay(random: &mut Random, dtype: DType, sizes: Sizes) -> (Attention, Vec<Array>) {
    loop {
        let one = case(random, dtype, sizes);
        if !one.0.positioned {
            return one;
        }
    }
}

/// The gradient of a case: with its result, and a gradient of that.
fn gradient_of(random: &mut Random, (op, x): (Attention, Vec<Array>)) {
    let (rows, heads) = (x[0].dims[op.orders[0].axes().1], op.heads as usize);
    let dims = place(op.orders[3], [x[0].dims[0], heads, rows, x[2].dims[3]]);
    let result = crate::reference::indices(&dims).iter().map(|index| attended(&op, &x, index)).collect();
    let result = Array::new(x[0].dtype, &dims, result);
    let given = array(random, x[0].dtype, &dims);
    let mask = x.get(3).cloned();
    let operands: Vec<Array> = x[..3].iter().cloned().chain([result, given]).chain(mask).collect();
    check(&Op::AttentionGradient(Box::new(op)), &operands);
}

#[test]
pub(crate) fn attentions() {
    let mut random = Random::new(71);
    let floats = [DType::F32, DType::F32, DType::F64, DType::F16, DType::Bf16];
    for _ in 0..120 {
        let sizes = [2, 2, 3, 9, 9, 6, 6].map(|most| random.size(1, most));
        let dtype = *random.pick(&floats);
        let (op, operands) = case(&mut random, dtype, sizes);
        check(&Op::Attention(Box::new(op)), &operands);
    }
}

#[test]
pub(crate) fn gradients_of_attentions() {
    let mut random = Random::new(75);
    let floats = [DType::F32, DType::F32, DType::F64, DType::F16, DType::Bf16];
    for _ in 0..80 {
        let sizes = [2, 2, 3, 9, 9, 6, 6].map(|most| random.size(1, most));
        let dtype = *random.pick(&floats);
        let one = of_keys_that_stay(&mut random, dtype, sizes);
        gradient_of(&mut random, one);
    }
}

#[test]
fn attentions_of_several_tiles() {
    let mut random = Random::new(72);
    // One row and many keys; several tiles of rows; several blocks of keys; both; panels, chains and vectors with tails.
    let sizes = [
        [1, 1, 2, 1, 700, 7, 3],
        [2, 1, 1, 150, 12, 4, 2],
        [1, 1, 1, 130, 270, 3, 1],
        [1, 1, 2, 77, 33, 5, 17],
        [1, 2, 1, 21, 129, 3, 2],
        [1, 1, 1, 6, 530, 2, 1],
    ];
    for sizes in sizes {
        for dtype in [DType::F32, DType::F64, DType::Bf16] {
            let (op, operands) = case(&mut random, dtype, sizes);
            check(&Op::Attention(Box::new(op)), &operands);
        }
        for dtype in [DType::F32, DType::Bf16] {
            let one = of_keys_that_stay(&mut random, dtype, sizes);
            gradient_of(&mut random, one);
        }
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
