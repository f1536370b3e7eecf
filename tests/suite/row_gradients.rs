//! Cross-entropy and the gradients of rows: random cases for every backend's test, and the definitions in
//! f64, element by element.

use std::collections::BTreeMap;

use partition::unstable::ir::{DType, Op, Real};

use crate::reference::{Array, indices};
use crate::run_ops::{Random, array, check};

/// One element of `softmax_gradient`.
pub(crate) fn softmax(axis: u32, log: bool, x: &[Array], index: &[usize]) -> f64 {
    let (y, given) = (&x[0], &x[1]);
    let mut at = index.to_vec();
    let mut sum = 0.0;
    for place in 0..y.dims[axis as usize] {
        at[axis as usize] = place;
        sum += given.at(&at) * if log { 1.0 } else { y.at(&at) };
    }
    let (y, given) = (y.at(index), given.at(index));
    if log { given - y.exp() * sum } else { y * (given - sum) }
}

/// The softmax of a row of logits, and its weights.
fn logits(x: &[Array], outer: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let classes = *x[0].dims.last().unwrap();
    let line =
        |array: &Array| -> Vec<f64> { (0..classes).map(|i| array.at(&[outer, &[i]].concat())).collect() };
    let own = line(&x[0]);
    let most = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = own.iter().map(|x| (x - most).exp()).sum();
    let share = own.iter().map(|x| (x - most).exp() / total).collect();
    let weights = if x[1].dtype.is_integer() {
        let class = (x[1].at(outer) as i64).rem_euclid(classes as i64);
        (0..classes).map(|i| f64::from(i as i64 == class)).collect()
    } else {
        line(&x[1])
    };
    (share, weights)
}

/// One element of `cross_entropy`.
pub(crate) fn entropy(x: &[Array], index: &[usize]) -> f64 {
    let (share, weights) = logits(x, index);
    share.iter().zip(weights).map(|(p, w)| if w == 0.0 { 0.0 } else { -w * p.ln() }).sum()
}

/// One element of `cross_entropy_gradient`.
pub(crate) fn entropy_slope(x: &[Array], index: &[usize]) -> f64 {
    let (&class, outer) = index.split_last().unwrap();
    let (share, weights) = logits(x, outer);
    x[2].at(outer) * (weights.iter().sum::<f64>() * share[class] - weights[class])
}

/// The places of the elements of each row.
fn rows(dims: &[usize], axes: &[u32]) -> Vec<Vec<usize>> {
    let mut rows: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (place, index) in indices(dims).iter().enumerate() {
        let along = |axis: usize| axes.contains(&(axis as u32));
        let row = (0..dims.len()).map(|axis| if along(axis) { 0 } else { index[axis] }).collect();
        rows.entry(row).or_default().push(place);
    }
    rows.into_values().collect()
}

/// The results of `normalize` with its moments.
pub(crate) fn normal(
    (axes, epsilon): (&[u32], f64),
    x: &Array,
    results: &[(DType, Vec<usize>)],
) -> Vec<Array> {
    let mut made = [vec![0.0; x.data.len()], vec![], vec![]];
    for row in rows(&x.dims, axes) {
        let count = row.len() as f64;
        let mean = row.iter().map(|&place| x.data[place]).sum::<f64>() / count;
        let variance = row.iter().map(|&place| (x.data[place] - mean).powi(2)).sum::<f64>() / count;
        row.iter().for_each(|&at| made[0][at] = (x.data[at] - mean) / (variance + epsilon).sqrt());
        made[1].push(mean);
        made[2].push(variance);
    }
    for (numbers, (_, dims)) in made.iter_mut().zip(results) {
        numbers.resize(dims.iter().product(), f64::NAN);
    }
    made.into_iter().zip(results).map(|(data, (dtype, dims))| Array::new(*dtype, dims, data)).collect()
}

/// The results of `normalize_gradient`, row by row; with `moments`, by the means and variances that are given.
pub(crate) fn normalize(
    (axes, epsilon, center, moments): (&[u32], f64, bool, bool),
    x: &[Array],
    results: &[(DType, Vec<usize>)],
) -> Vec<Array> {
    let dims = &x[0].dims;
    let all = indices(dims);
    let (x, known) = x.split_at(x.len() - if moments { 2 } else { 0 });
    let factor = |place: usize| x.get(2).map_or(1.0, |factor| factor.broadcast_at(&all[place]));
    let mut dx = vec![0.0; all.len()];
    let mut normal = dx.clone();
    for (number, row) in rows(dims, axes).iter().enumerate() {
        let count = row.len() as f64;
        let mean_of = |of: &dyn Fn(usize) -> f64| row.iter().map(|&place| of(place)).sum::<f64>() / count;
        let mean = if center { mean_of(&|i| x[0].data[i]) } else { 0.0 };
        let mean = known.first().map_or(mean, |means| means.data[number]);
        let variance = mean_of(&|i| (x[0].data[i] - mean).powi(2));
        let r = 1.0 / (known.get(1).map_or(variance, |variances| variances.data[number]) + epsilon).sqrt();
        row.iter().for_each(|&i| normal[i] = (x[0].data[i] - mean) * r);
        let d = |i: usize| x[1].data[i] * factor(i);
        let (level, along) = (if center { mean_of(&d) } else { 0.0 }, mean_of(&|i| d(i) * normal[i]));
        row.iter().for_each(|&i| dx[i] = r * (d(i) - level - normal[i] * along));
    }
    let mut made = vec![Array::new(results[0].0, dims, dx)];
    if let Some(factor) = x.get(2) {
        let mut sums = [vec![0.0; factor.data.len()], vec![0.0; factor.data.len()]];
        let outer = dims.len() - factor.dims.len();
        for (place, index) in all.iter().enumerate() {
            let own = index[outer..].iter().zip(&factor.dims);
            let at = own.fold(0, |at, (&i, &dim)| at * dim + if dim == 1 { 0 } else { i });
            sums[0][at] += x[1].data[place] * normal[place];
            sums[1][at] += x[1].data[place];
        }
        made.extend(sums.into_iter().map(|sums| Array::new(factor.dtype, &factor.dims, sums)));
    }
    made
}

const FLOATS: [DType; 5] = [DType::F32, DType::F32, DType::F64, DType::F16, DType::Bf16];

#[test]
pub(crate) fn gradients_of_softmax() {
    let mut random = Random::new(81);
    for _ in 0..120 {
        let rank = random.size(1, 4);
        let dims = random.dims(rank, 12);
        let dtype = *random.pick(&FLOATS);
        let operands = [array(&mut random, dtype, &dims), array(&mut random, dtype, &dims)];
        let axis = random.size(0, rank - 1) as u32;
        check(&Op::SoftmaxGradient { axis, log: random.flag() }, &operands);
    }
}

#[test]
pub(crate) fn cross_entropies() {
    let mut random = Random::new(82);
    for round in 0..120 {
        let rank = random.size(1, 3);
        let mut dims = random.dims(rank, 12);
        dims[rank - 1] = random.size(1, if round % 10 == 0 { 90 } else { 12 });
        let dtype = *random.pick(&FLOATS);
        let x = array(&mut random, dtype, &dims);
        let outer = &dims[..rank - 1];
        let target = if random.flag() {
            let named = *random.pick(&[DType::I32, DType::I64, DType::U8]);
            let classes = dims[rank - 1] as i64;
            let low = if named == DType::U8 { 0 } else { -classes };
            let count = outer.iter().product::<usize>();
            Array::new(named, outer, (0..count).map(|_| random.range(low, classes - 1) as f64).collect())
        } else {
            array(&mut random, dtype, &dims)
        };
        check(&Op::CrossEntropy, &[x.clone(), target.clone()]);
        let given = array(&mut random, dtype, outer);
        check(&Op::CrossEntropyGradient, &[x, target, given]);
    }
}

#[test]
pub(crate) fn gradients_of_normalisations() {
    let mut random = Random::new(83);
    for _ in 0..240 {
        let rank = random.size(1, 4);
        let dims = random.dims(rank, 9);
        let dtype = *random.pick(&FLOATS);
        let mut operands = vec![array(&mut random, dtype, &dims), array(&mut random, dtype, &dims)];
        // Rows as of a layer norm, channels as of a batch norm, or anything.
        let mut axes: Vec<u32> = match random.range(0, 3) {
            0 => (random.size(0, rank - 1) as u32..rank as u32).collect(),
            1 => (0..rank as u32).filter(|&axis| axis != 1).collect(),
            _ => (0..rank as u32).filter(|_| random.flag()).collect(),
        };
        if axes.is_empty() {
            axes.push(0);
        }
        let scaled = random.flag();
        if scaled {
            let along = random.flag();
            let varies = |axis: usize| axes.contains(&(axis as u32)) == along;
            let mut own: Vec<usize> =
                (0..rank).map(|axis| if varies(axis) { dims[axis] } else { 1 }).collect();
            while own.first() == Some(&1) && random.flag() {
                own.remove(0);
            }
            operands.push(array(&mut random, dtype, &own));
        }
        let moments = random.flag();
        let center = moments || random.flag();
        if moments {
            let kept: Vec<usize> =
                (0..rank).filter(|axis| !axes.contains(&(*axis as u32))).map(|axis| dims[axis]).collect();
            operands.push(array(&mut random, dtype, &kept));
            let mut variances = array(&mut random, dtype, &kept);
            variances.data.iter_mut().for_each(|variance| *variance = variance.abs());
            operands.push(variances);
        }
        let op = Op::NormalizeGradient { axes, epsilon: Real(1e-2), center, scaled, moments };
        check(&op, &operands);
    }
}

#[test]
fn gradients_of_rows_in_several_parts() {
    let mut random = Random::new(84);
    for (dims, own, axes) in [
        (vec![70, 300], vec![300], vec![1]),
        (vec![4, 40, 65], vec![65], vec![2]),
        (vec![5, 7, 9, 11], vec![7, 1, 1], vec![0, 2, 3]),
        (vec![5, 7, 9, 11], vec![11], vec![0, 1, 2]),
        (vec![3, 600, 40], vec![600, 1], vec![0, 2]),
        (vec![600, 70], vec![70], vec![0]),
    ] {
        let operands = [&dims, &dims, &own].map(|dims| array(&mut random, DType::F32, dims));
        let epsilon = Real(1e-5);
        let op = Op::NormalizeGradient { axes, epsilon, center: true, scaled: true, moments: false };
        check(&op, &operands);
    }
    let dims = [70, 300];
    let operands = [array(&mut random, DType::F32, &dims), array(&mut random, DType::F32, &dims)];
    check(&Op::SoftmaxGradient { axis: 1, log: false }, &operands);
}
