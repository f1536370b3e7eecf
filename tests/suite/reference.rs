//! Every operation in f64, one element at a time, straight from its definition: what kernels are
//! compared with. Shares no code with them.

use partition::unstable::ir::{
    ArgReduce, Binary, Cell, Compare, Conv, ConvTranspose, DType, Direction, Interpolation, Layout, Op,
    PadMode, Pool, PoolKind, Recurrent, ReduceKind, Resize, ResizeCoordinates, ScatterKind, Unary,
};

use crate::attention::{attended, slopes, turned};
use crate::packed::number;
use crate::row_gradients;
use crate::run_ops::{decode, encode};

/// A tensor; integers and bools are held as whole numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub dtype: DType,
    pub dims: Vec<usize>,
    pub data: Vec<f64>,
}

impl Array {
    pub fn new(dtype: DType, dims: &[usize], data: Vec<f64>) -> Self {
        assert_eq!(dims.iter().product::<usize>(), data.len());
        Self { dtype, dims: dims.to_vec(), data }
    }

    /// Every element from its index.
    fn from(dtype: DType, dims: &[usize], mut f: impl FnMut(&[usize]) -> f64) -> Self {
        let data = indices(dims).iter().map(|index| f(index)).collect();
        Self::new(dtype, dims, data)
    }

    fn offset(&self, index: &[usize]) -> usize {
        assert_eq!(index.len(), self.dims.len());
        index.iter().zip(&self.dims).fold(0, |offset, (&i, &dim)| {
            assert!(i < dim);
            offset * dim + i
        })
    }

    pub(crate) fn at(&self, index: &[usize]) -> f64 {
        self.data[self.offset(index)]
    }

    /// The element that NumPy's broadcasting puts at an index of a larger shape.
    pub(crate) fn broadcast_at(&self, index: &[usize]) -> f64 {
        let own = &index[index.len() - self.dims.len()..];
        let own: Vec<usize> =
            own.iter().zip(&self.dims).map(|(&i, &dim)| if dim == 1 { 0 } else { i }).collect();
        self.at(&own)
    }
}

/// Every index of a shape, in row-major order.
pub fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &dim in dims {
        all = all.iter().flat_map(|head| (0..dim).map(move |i| [head.as_slice(), &[i]].concat())).collect();
    }
    all
}

/// The half next to a number of f32; of two as near, the even one.
fn nearest(half: DType, x: f64) -> f64 {
    if half == DType::F16 {
        let one = Array::new(half, &[1], vec![x]);
        return decode(half, &encode(&one))[0];
    }
    let of = |bits: u32| f64::from(f32::from_bits(bits));
    let below = (x as f32).to_bits() & 0xffff_0000;
    let (low, high) = (of(below), of(below + 0x1_0000));
    let (to_low, to_high) = ((x - low).abs(), (high - x).abs());
    if to_low < to_high || to_low == to_high && below & 0x1_0000 == 0 { low } else { high }
}

/// The results of `op`, whose types are given.
pub fn evaluate(op: &Op, x: &[Array], results: &[(DType, Vec<usize>)]) -> Vec<Array> {
    let (dtype, dims) = (results[0].0, results[0].1.as_slice());
    let out = |f: &mut dyn FnMut(&[usize]) -> f64| vec![Array::from(dtype, dims, f)];
    match op {
        Op::Input | Op::Param(_) | Op::Constant(_) => panic!("{} is not computed", op.name()),
        Op::Sizes(sizes) => out(&mut |i| sizes[i.first().copied().unwrap_or(0)].known().unwrap() as f64),
        Op::Iota { axis } => out(&mut |i| i[*axis as usize] as f64),
        Op::Unary(f) => out(&mut |i| unary(*f, x[0].at(i))),
        Op::Binary(f) => {
            out(&mut |i| binary(*f, !dtype.is_float(), x[0].broadcast_at(i), x[1].broadcast_at(i)))
        }
        Op::Compare(f) => out(&mut |i| compare(*f, x[0].broadcast_at(i), x[1].broadcast_at(i))),
        Op::Select => out(&mut |i| {
            if x[0].broadcast_at(i) != 0.0 { x[1].broadcast_at(i) } else { x[2].broadcast_at(i) }
        }),
        // Integers wrap.
        Op::Convert { to } if x[0].dtype.is_integer() && x[0].dtype != DType::U64 => {
            out(&mut |i| match (to, x[0].at(i) as i64) {
                (DType::U16, value) => f64::from(value as u16),
                (DType::U32, value) => f64::from(value as u32),
                (DType::U64, value) => value as u64 as f64,
                (_, value) => convert(*to, value as f64),
            })
        }
        Op::Convert { to } => out(&mut |i| convert(*to, x[0].at(i))),
        Op::Reduce { kind, axes, keep } => {
            out(&mut |i| reduce(*kind, &gathered(&x[0], axes, *keep, i), dtype))
        }
        Op::ArgReduce { kind, axis, keep, last } => {
            out(&mut |i| extreme(*kind, *last, &gathered(&x[0], &[*axis], *keep, i)) as f64)
        }
        Op::CumSum { axis, exclusive, reverse } => out(&mut |i| {
            let (axis, here) = (*axis as usize, i[*axis as usize]);
            let counts = |p: usize| match (reverse, exclusive) {
                (false, false) => p <= here,
                (false, true) => p < here,
                (true, false) => p >= here,
                (true, true) => p > here,
            };
            (0..dims[axis]).filter(|&p| counts(p)).map(|p| x[0].at(&with(i, axis, p))).sum()
        }),
        Op::Softmax { axis, log } => out(&mut |i| {
            let axis = *axis as usize;
            let line: Vec<f64> = (0..dims[axis]).map(|p| x[0].at(&with(i, axis, p))).collect();
            let most = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = line.iter().map(|v| (v - most).exp()).sum();
            let e = x[0].at(i) - most;
            if *log { e - total.ln() } else { e.exp() / total }
        }),
        Op::Normalize { axes, epsilon, moments: true, .. } => {
            row_gradients::normal((axes, epsilon.0), &x[0], results)
        }
        Op::Normalize { axes, epsilon, center, .. } => out(&mut |i| {
            let kept: Vec<usize> = i
                .iter()
                .enumerate()
                .map(|(axis, &p)| if axes.contains(&(axis as u32)) { 0 } else { p })
                .collect();
            let all = gathered(&x[0], axes, true, &kept);
            let count = all.len() as f64;
            let mean = if *center { all.iter().sum::<f64>() / count } else { 0.0 };
            let variance = all.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
            (x[0].at(i) - mean) / (variance + epsilon.0).sqrt()
        }),
        Op::LocalResponseNorm { size, alpha, beta, bias } => out(&mut |i| {
            let c = i[1] as i64;
            let window = (c - (size - 1) / 2)..=(c + (size - 1) - (size - 1) / 2);
            let squares: f64 = window
                .filter(|&c| c >= 0 && c < dims[1] as i64)
                .map(|c| x[0].at(&with(i, 1, c as usize)).powi(2))
                .sum();
            x[0].at(i) / (bias.0 + alpha.0 / *size as f64 * squares).powf(beta.0)
        }),
        Op::SoftmaxGradient { axis, log } => out(&mut |i| row_gradients::softmax(*axis, *log, x, i)),
        Op::CrossEntropy => out(&mut |i| row_gradients::entropy(x, i)),
        Op::CrossEntropyGradient => out(&mut |i| row_gradients::entropy_slope(x, i)),
        Op::NormalizeGradient { axes, epsilon, center, moments, .. } => {
            row_gradients::normalize((axes, epsilon.0, *center, *moments), x, results)
        }
        Op::Attention(op) => out(&mut |i| attended(op, x, i)),
        Op::AttentionGradient(op) => slopes(op, x, results),
        Op::Rotary { transposed } => out(&mut |i| turned(*transposed, x, i)),
        Op::MatMul { rounds: true, .. } if x[0].dtype != x[1].dtype => {
            let half = if x[0].dtype.is_half() { x[0].dtype } else { x[1].dtype };
            let rounded =
                |of: &Array| Array::new(half, &of.dims, of.data.iter().map(|&x| nearest(half, x)).collect());
            evaluate(op, &[rounded(&x[0]), rounded(&x[1])], results)
        }
        Op::MatMul { transpose_left, transpose_right, .. } => out(&mut |i| {
            let (outer, [row, column]) = i.split_at(i.len() - 2) else { unreachable!() };
            let rank = x[0].dims.len();
            let inner = if *transpose_left { x[0].dims[rank - 2] } else { x[0].dims[rank - 1] };
            // Of bytes: one for all, or one for each row or column.
            let zero = |operand: usize, at: usize| match x.get(operand) {
                None => 0.0,
                Some(zeros) => zeros.data[if zeros.dims.is_empty() { 0 } else { at }],
            };
            let zeros = [zero(2, *row), zero(3, *column)];
            (0..inner)
                .map(|k| {
                    let a = if *transpose_left { [k, *row] } else { [*row, k] };
                    let b = if *transpose_right { [*column, k] } else { [k, *column] };
                    (x[0].broadcast_at(&pad_matrix(&x[0], outer, a)) - zeros[0])
                        * (x[1].broadcast_at(&pad_matrix(&x[1], outer, b)) - zeros[1])
                })
                .sum()
        }),
        Op::Unpack(packed) => out(&mut |i| {
            let (k, outer) = i.split_last().unwrap();
            number(*packed, x, outer, *k)
        }),
        Op::PackedMatMul(packed) => out(&mut |i| {
            let (outer, [row, column]) = i.split_at(i.len() - 2) else { unreachable!() };
            let read = pad_matrix(&x[1], outer, [*column, 0]);
            let rank = x[1].dims.len();
            let of = &read[read.len() - rank..];
            let of: Vec<usize> = of
                .iter()
                .zip(&x[1].dims)
                .take(rank - 1)
                .map(|(&at, &dim)| if dim == 1 { 0 } else { at })
                .collect();
            (0..packed.columns as usize)
                .map(|k| {
                    x[0].broadcast_at(&pad_matrix(&x[0], outer, [*row, k])) * number(*packed, &x[1..], &of, k)
                })
                .sum()
        }),
        Op::Conv(op) => out(&mut |i| conv(op, x, i)),
        Op::ConvTranspose(op) => conv_transpose(op, x, dtype, dims),
        Op::Pool(op) => out(&mut |i| pool(op, &x[0], i)),
        Op::MaxPoolGradient(op) => vec![max_pool_gradient(op, x)],
        Op::Resize(op) => out(&mut |i| resize(op, &x[0], dims, i)),
        Op::Recurrent(op) => recurrent(op, x, results),
        Op::Reshape { .. } => vec![Array::new(dtype, dims, x[0].data.clone())],
        Op::Transpose { perm } => out(&mut |i| {
            let mut from = vec![0; i.len()];
            perm.iter().zip(i).for_each(|(&axis, &p)| from[axis as usize] = p);
            x[0].at(&from)
        }),
        Op::Broadcast { .. } => out(&mut |i| x[0].broadcast_at(i)),
        Op::Slice(op) => out(&mut |i| {
            let from: Vec<usize> = i
                .iter()
                .enumerate()
                .map(|(axis, &p)| (op.starts[axis].known().unwrap() + p as i64 * op.steps[axis]) as usize)
                .collect();
            x[0].at(&from)
        }),
        Op::Pad(op) => out(&mut |i| {
            let mut from = Vec::new();
            for (axis, &p) in i.iter().enumerate() {
                let (before, after) = (op.before[axis], op.after[axis]);
                let size = x[0].dims[axis] as i64 + before.min(0) + after.min(0);
                let mut p = p as i64 - before.max(0);
                match op.mode {
                    PadMode::Constant if p < 0 || p >= size => return convert(dtype, op.value.0),
                    PadMode::Constant => {}
                    PadMode::Edge => p = p.max(0).min(size - 1),
                    PadMode::Reflect => {
                        while p < 0 || p >= size {
                            p = if p < 0 { -p } else { 2 * (size - 1) - p };
                        }
                    }
                }
                from.push((p - before.min(0)) as usize);
            }
            x[0].at(&from)
        }),
        Op::Concat { axis } => out(&mut |i| {
            let axis = *axis as usize;
            let mut p = i[axis];
            for part in x {
                if p < part.dims[axis] {
                    return part.at(&with(i, axis, p));
                }
                p -= part.dims[axis];
            }
            unreachable!()
        }),
        Op::Gather { axis } => out(&mut |i| {
            let axis = *axis as usize;
            let many = x[1].dims.len();
            let named = wrap(x[1].at(&i[axis..axis + many]), x[0].dims[axis]);
            x[0].at(&[&i[..axis], &[named], &i[axis + many..]].concat())
        }),
        Op::GatherElements { axis } => out(&mut |i| {
            let axis = *axis as usize;
            x[0].at(&with(i, axis, wrap(x[1].at(i), x[0].dims[axis])))
        }),
        Op::GatherNd { batch_dims } => out(&mut |i| {
            let outer = x[1].dims.len() - 1;
            let named = tuple(&x[1], &i[..outer], &x[0].dims[*batch_dims as usize..]);
            x[0].at(&[&i[..*batch_dims as usize], &named, &i[outer..]].concat())
        }),
        Op::ScatterElements { axis, kind } => {
            let mut result = x[0].clone();
            for i in indices(&x[1].dims) {
                let axis = *axis as usize;
                let at = result.offset(&with(&i, axis, wrap(x[1].at(&i), x[0].dims[axis])));
                result.data[at] = scattered(*kind, result.data[at], x[2].at(&i));
            }
            vec![result]
        }
        Op::ScatterNd { kind } => {
            let mut result = x[0].clone();
            let outer = x[1].dims.len() - 1;
            for i in indices(&x[2].dims) {
                let named = tuple(&x[1], &i[..outer], &x[0].dims);
                let at = result.offset(&[&named, &i[outer..]].concat());
                result.data[at] = scattered(*kind, result.data[at], x[2].at(&i));
            }
            vec![result]
        }
        Op::UpdateSlice { axis } => {
            let (mut result, start) = (x[0].clone(), x[1].data[0] as usize);
            for i in indices(&x[2].dims) {
                let at = result.offset(&with(&i, *axis as usize, start + i[*axis as usize]));
                result.data[at] = x[2].at(&i);
            }
            vec![result]
        }
        Op::TreeLeaves { depth } => vec![Array::from(DType::I32, dims, |i| {
            let step = |place: f64, _| {
                let place = place as usize;
                let holds = x[0].at(&[i[0], x[2].data[place] as usize]) <= x[3].data[place];
                x[4].data[place] + f64::from(holds)
            };
            (0..*depth).fold(x[1].data[i[1]], step)
        })],
        Op::TopK(op) => {
            let axis = op.axis as usize;
            let chosen = |i: &[usize]| -> usize {
                let mut line: Vec<usize> = (0..x[0].dims[axis]).collect();
                let value = |p: usize| x[0].at(&with(i, axis, p));
                line.sort_by(|&a, &b| {
                    let (one, other) = (value(a), value(b));
                    let by_number = one.partial_cmp(&other);
                    let order = by_number.unwrap_or_else(|| one.is_nan().cmp(&other.is_nan()));
                    if op.largest { order.reverse() } else { order }
                });
                line[i[axis]]
            };
            let values = Array::from(dtype, dims, |i| x[0].at(&with(i, axis, chosen(i))));
            let positions = Array::from(DType::I64, dims, |i| chosen(i) as f64);
            vec![values, positions]
        }
    }
}

fn with(index: &[usize], axis: usize, position: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index[axis] = position;
    index
}

fn wrap(index: f64, size: usize) -> usize {
    if index < 0.0 { (index + size as f64) as usize } else { index as usize }
}

fn tuple(indices: &Array, outer: &[usize], dims: &[usize]) -> Vec<usize> {
    let depth = *indices.dims.last().unwrap();
    (0..depth).map(|k| wrap(indices.at(&[outer, &[k]].concat()), dims[k])).collect()
}

/// An index of a matrix with as many outer axes as the operand has.
fn pad_matrix(x: &Array, outer: &[usize], [row, column]: [usize; 2]) -> Vec<usize> {
    let own = x.dims.len() - 2;
    [&outer[outer.len() - own..], &[row, column]].concat()
}

/// The elements that a reduction to index `i` takes.
fn gathered(x: &Array, axes: &[u32], keep: bool, i: &[usize]) -> Vec<f64> {
    let goes = |axis: usize| axes.contains(&(axis as u32));
    let sizes: Vec<usize> = axes.iter().map(|&axis| x.dims[axis as usize]).collect();
    indices(&sizes)
        .iter()
        .map(|inner| {
            let (mut inner, mut outer) = (inner.iter(), i.iter());
            let index: Vec<usize> = (0..x.dims.len())
                .map(|axis| {
                    if goes(axis) {
                        if keep {
                            outer.next();
                        }
                        *inner.next().unwrap()
                    } else {
                        *outer.next().unwrap()
                    }
                })
                .collect();
            x.at(&index)
        })
        .collect()
}

fn reduce(kind: ReduceKind, all: &[f64], dtype: DType) -> f64 {
    match kind {
        ReduceKind::Sum => all.iter().sum(),
        ReduceKind::Mean => {
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            if dtype.is_float() { mean } else { mean.trunc() }
        }
        ReduceKind::SumSquares => all.iter().map(|x| x * x).sum(),
        ReduceKind::Prod => all.iter().product(),
        ReduceKind::Max => all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ReduceKind::Min => all.iter().copied().fold(f64::INFINITY, f64::min),
    }
}

fn extreme(kind: ArgReduce, last: bool, all: &[f64]) -> usize {
    let best = match kind {
        ArgReduce::Max => all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        ArgReduce::Min => all.iter().copied().fold(f64::INFINITY, f64::min),
    };
    let found = |v: &f64| *v == best;
    if last { all.iter().rposition(found) } else { all.iter().position(found) }.unwrap()
}

/// The error function by its Maclaurin series, or its limits.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..300 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

/// The arc tangent by its Taylor series, the argument made small by halving the angle: `2 atan(x / (1 + sqrt(1 + x^2)))`.
fn atan(x: f64) -> f64 {
    if x.is_infinite() {
        return x.signum() * std::f64::consts::FRAC_PI_2;
    }
    let mut small = x;
    for _ in 0..6 {
        small /= 1.0 + (1.0 + small * small).sqrt();
    }
    let terms = (0..12).map(|n| f64::from(1 - 2 * (n % 2)) * small.powi(2 * n + 1) / f64::from(2 * n + 1));
    64.0 * terms.sum::<f64>()
}

/// `log(1 + x)` by the series of `2 atanh(x / (2 + x))`, the argument made small by halving the logarithm:
/// `2 log1p(x / (1 + sqrt(1 + x)))`.
fn log1p(x: f64) -> f64 {
    if x.is_infinite() || x <= -1.0 {
        return (1.0 + x).ln();
    }
    let mut small = x;
    for _ in 0..10 {
        small /= 1.0 + (1.0 + small).sqrt();
    }
    let z = small / (2.0 + small);
    let terms = (0..24).map(|n| z.powi(2 * n + 1) / f64::from(2 * n + 1));
    2048.0 * terms.sum::<f64>()
}

fn unary(f: Unary, x: f64) -> f64 {
    let bool = |b: bool| f64::from(u8::from(b));
    match f {
        Unary::Neg => -x,
        Unary::Detach => x,
        Unary::Abs => x.abs(),
        Unary::Sign => bool(x > 0.0) - bool(x < 0.0),
        Unary::Exp => x.exp(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log1p => log1p(x),
        Unary::Sqrt => x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => {
            let low = x.floor();
            match x - low {
                rest if rest < 0.5 => low,
                rest if rest > 0.5 => low + 1.0,
                _ if low % 2.0 == 0.0 => low,
                _ => low + 1.0,
            }
        }
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Atan => atan(x),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Unary::Erf => erf(x),
        Unary::Relu => x.max(0.0),
        Unary::Gelu => x * (1.0 + erf(x / 2f64.sqrt())) / 2.0,
        Unary::GeluTanh => {
            x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()) / 2.0
        }
        Unary::Silu => x / (1.0 + (-x).exp()),
        Unary::Softplus => {
            if x > 30.0 {
                x
            } else {
                (1.0 + x.exp()).ln()
            }
        }
        Unary::Not => bool(x == 0.0),
        Unary::IsNan => bool(x.is_nan()),
        Unary::IsInf => bool(x.is_infinite()),
    }
}

fn binary(f: Binary, integer: bool, x: f64, y: f64) -> f64 {
    match f {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div if integer => (x / y).trunc(),
        Binary::Div => x / y,
        Binary::Mod => x - (x / y).floor() * y,
        Binary::Rem => x - (x / y).trunc() * y,
        Binary::Pow => x.powf(y),
        Binary::Max => x.max(y),
        Binary::Min => x.min(y),
        Binary::And => (x as i64 & y as i64) as f64,
        Binary::Or => (x as i64 | y as i64) as f64,
        Binary::Xor => (x as i64 ^ y as i64) as f64,
        // Its 64 bits are no f64; `noise` has a reference of its own.
        Binary::Hash => f64::NAN,
    }
}

fn compare(f: Compare, x: f64, y: f64) -> f64 {
    f64::from(u8::from(match f {
        Compare::Eq => x == y,
        Compare::Ne => x != y,
        Compare::Lt => x < y,
        Compare::Le => x <= y,
        Compare::Gt => x > y,
        Compare::Ge => x >= y,
    }))
}

fn convert(to: DType, x: f64) -> f64 {
    match to {
        DType::Bool => f64::from(u8::from(x != 0.0)),
        DType::I8 => f64::from(x as i8),
        DType::I16 => f64::from(x as i16),
        DType::I32 => f64::from(x as i32),
        DType::I64 => x as i64 as f64,
        DType::U8 => f64::from(x as u8),
        DType::U16 => f64::from(x as u16),
        DType::U32 => f64::from(x as u32),
        DType::U64 => x as u64 as f64,
        DType::F32 | DType::F16 | DType::Bf16 => f64::from(x as f32),
        DType::F64 => x,
    }
}

fn scattered(kind: ScatterKind, old: f64, new: f64) -> f64 {
    match kind {
        ScatterKind::Replace => new,
        ScatterKind::Add => old + new,
        ScatterKind::Mul => old * new,
        ScatterKind::Max => old.max(new),
        ScatterKind::Min => old.min(new),
    }
}

/// An index of a tensor in a layout: image, channel, position.
fn laid(layout: Layout, image: usize, channel: usize, position: &[usize]) -> Vec<usize> {
    match layout {
        Layout::ChannelsFirst => [&[image, channel], position].concat(),
        Layout::ChannelsLast => [&[image], position, &[channel]].concat(),
    }
}

/// Image, channel and position of an index.
fn parts(layout: Layout, i: &[usize]) -> (usize, usize, Vec<usize>) {
    match layout {
        Layout::ChannelsFirst => (i[0], i[1], i[2..].to_vec()),
        Layout::ChannelsLast => (i[0], i[i.len() - 1], i[1..i.len() - 1].to_vec()),
    }
}

/// Where a window's element falls; none in padding.
fn touch(
    window: &partition::unstable::ir::Window,
    size: &[usize],
    at: &[usize],
    offset: &[usize],
) -> Option<Vec<usize>> {
    (0..at.len())
        .map(|axis| {
            let p = at[axis] as i64 * window.strides[axis] + offset[axis] as i64 * window.dilations[axis]
                - window.pads_before[axis];
            (p >= 0 && p < size[axis] as i64).then_some(p as usize)
        })
        .collect()
}

fn spatial(layout: Layout, dims: &[usize]) -> Vec<usize> {
    match layout {
        Layout::ChannelsFirst => dims[2..].to_vec(),
        Layout::ChannelsLast => dims[1..dims.len() - 1].to_vec(),
    }
}

fn conv(op: &Conv, x: &[Array], i: &[usize]) -> f64 {
    let (image, channel, at) = parts(op.layout, i);
    let rank = at.len();
    let (kernel, inner, outer) = match op.layout {
        Layout::ChannelsFirst => (x[1].dims[2..].to_vec(), x[1].dims[1], x[1].dims[0]),
        Layout::ChannelsLast => (x[1].dims[..rank].to_vec(), x[1].dims[rank], x[1].dims[rank + 1]),
    };
    let group = channel / (outer / op.groups as usize);
    let mut sum = x.get(2).map_or(0.0, |bias| bias.data[channel]);
    for offset in indices(&kernel) {
        let Some(from) = touch(&op.window, &spatial(op.layout, &x[0].dims), &at, &offset) else { continue };
        for c in 0..inner {
            let weight = match op.layout {
                Layout::ChannelsFirst => x[1].at(&[&[channel, c], offset.as_slice()].concat()),
                Layout::ChannelsLast => x[1].at(&[offset.as_slice(), &[c, channel]].concat()),
            };
            sum += weight * x[0].at(&laid(op.layout, image, group * inner + c, &from));
        }
    }
    sum
}

fn conv_transpose(op: &ConvTranspose, x: &[Array], dtype: DType, dims: &[usize]) -> Vec<Array> {
    let rank = dims.len() - 2;
    let (kernel, outer) = match op.layout {
        Layout::ChannelsFirst => (x[1].dims[2..].to_vec(), x[1].dims[1]),
        Layout::ChannelsLast => (x[1].dims[..rank].to_vec(), x[1].dims[rank]),
    };
    let mut result =
        Array::from(dtype, dims, |i| x.get(2).map_or(0.0, |bias| bias.data[parts(op.layout, i).1]));
    for i in indices(&x[0].dims) {
        let (image, channel, at) = parts(op.layout, &i);
        let inner = match op.layout {
            Layout::ChannelsFirst => x[0].dims[1],
            Layout::ChannelsLast => x[0].dims[rank + 1],
        } / op.groups as usize;
        let group = channel / inner;
        for offset in indices(&kernel) {
            let Some(to) = touch(&op.window, &spatial(op.layout, dims), &at, &offset) else { continue };
            for o in 0..outer {
                let weight = match op.layout {
                    Layout::ChannelsFirst => x[1].at(&[&[channel, o], offset.as_slice()].concat()),
                    Layout::ChannelsLast => x[1].at(&[offset.as_slice(), &[o, channel]].concat()),
                };
                let at = result.offset(&laid(op.layout, image, group * outer + o, &to));
                result.data[at] += weight * x[0].at(&i);
            }
        }
    }
    vec![result]
}

/// Window by window, to the first element that is as large as the result.
fn max_pool_gradient(op: &Pool, x: &[Array]) -> Array {
    let mut dx = Array::from(x[0].dtype, &x[0].dims, |_| 0.0);
    let size = spatial(op.layout, &x[0].dims);
    let kernel: Vec<usize> = op.kernel.iter().map(|&k| k as usize).collect();
    for i in indices(&x[1].dims) {
        let (image, channel, at) = parts(op.layout, &i);
        let places = indices(&kernel).into_iter().filter_map(|offset| touch(&op.window, &size, &at, &offset));
        let mut places = places.map(|from| laid(op.layout, image, channel, &from));
        if let Some(place) = places.find(|place| x[0].at(place) == x[1].at(&i)) {
            let at = dx.offset(&place);
            dx.data[at] += x[2].at(&i);
        }
    }
    dx
}

fn pool(op: &Pool, x: &Array, i: &[usize]) -> f64 {
    let (image, channel, at) = parts(op.layout, i);
    let size = spatial(op.layout, &x.dims);
    let kernel: Vec<usize> = op.kernel.iter().map(|&k| k as usize).collect();
    let (mut found, mut counted) = (Vec::new(), 0.0);
    for offset in indices(&kernel) {
        if let Some(from) = touch(&op.window, &size, &at, &offset) {
            found.push(x.at(&laid(op.layout, image, channel, &from)));
        }
        let within = (0..size.len()).all(|axis| {
            let p = at[axis] as i64 * op.window.strides[axis]
                + offset[axis] as i64 * op.window.dilations[axis]
                - op.window.pads_before[axis];
            p < size[axis] as i64 + op.window.pads_after[axis] - op.extra_after[axis]
        });
        counted += f64::from(u8::from(within));
    }
    match op.kind {
        PoolKind::Max => found.into_iter().fold(f64::NEG_INFINITY, f64::max),
        PoolKind::Average => found.iter().sum::<f64>() / found.len().max(1) as f64,
        PoolKind::AverageWithPadding => found.iter().sum::<f64>() / counted,
    }
}

fn resize(op: &Resize, x: &Array, dims: &[usize], i: &[usize]) -> f64 {
    let coordinate = |axis: usize| -> f64 {
        let (from, to, at) = (x.dims[axis] as f64, dims[axis] as f64, i[axis] as f64);
        let scale = op.scales.as_ref().map_or(to / from, |scales| scales[axis].0);
        match op.coordinates {
            ResizeCoordinates::PytorchHalfPixel if dims[axis] == 1 => 0.0,
            ResizeCoordinates::HalfPixel | ResizeCoordinates::PytorchHalfPixel => (at + 0.5) / scale - 0.5,
            ResizeCoordinates::Asymmetric => at / scale,
            ResizeCoordinates::AlignCorners if dims[axis] == 1 => 0.0,
            ResizeCoordinates::AlignCorners => {
                let length = op.scales.as_ref().map_or(to, |scales| scales[axis].0 * from);
                at * (from - 1.0) / (length - 1.0)
            }
        }
    };
    let inside = |axis: usize, p: f64| p.max(0.0).min(x.dims[axis] as f64 - 1.0);
    let coordinates: Vec<f64> = (0..dims.len()).map(coordinate).collect();
    let nearest = |round: &dyn Fn(f64) -> f64| {
        let from: Vec<usize> =
            coordinates.iter().enumerate().map(|(axis, &c)| inside(axis, round(c)) as usize).collect();
        x.at(&from)
    };
    match op.interpolation {
        Interpolation::Nearest => nearest(&|c| if c - c.floor() <= 0.5 { c.floor() } else { c.ceil() }),
        Interpolation::NearestFloor => nearest(&f64::floor),
        Interpolation::Linear => indices(&vec![2; dims.len()])
            .iter()
            .map(|corner| {
                let mut weight = 1.0;
                let mut from = Vec::new();
                for (axis, &high) in corner.iter().enumerate() {
                    let c = inside(axis, coordinates[axis]);
                    let rest = c - c.floor();
                    weight *= if high == 1 { rest } else { 1.0 - rest };
                    from.push(inside(axis, c.floor() + high as f64) as usize);
                }
                weight * x.at(&from)
            })
            .sum(),
    }
}

fn recurrent(op: &Recurrent, x: &[Array], results: &[(DType, Vec<usize>)]) -> Vec<Array> {
    let (input, w, r, b, initial) = (&x[0], &x[1], &x[2], &x[3], &x[4]);
    let (time, batch, features) = (input.dims[0], input.dims[1], input.dims[2]);
    let h = op.hidden as usize;
    let gates = match op.cell {
        Cell::Rnn => 1,
        Cell::Lstm => 4,
        Cell::Gru | Cell::GruResetAfter => 3,
    };
    let mut out: Vec<Array> =
        results.iter().map(|(dtype, dims)| Array::from(*dtype, dims, |_| 0.0)).collect();
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    let directions = if op.direction == Direction::Bidirectional { 2 } else { 1 };
    for d in 0..directions {
        for n in 0..batch {
            let mut state: Vec<f64> = (0..h).map(|j| initial.at(&[d, n, j])).collect();
            let mut cell: Vec<f64> = (0..h).map(|j| x.get(5).map_or(0.0, |c| c.at(&[d, n, j]))).collect();
            for step in 0..time {
                let backwards = op.direction == Direction::Reverse || d == 1;
                let t = if backwards { time - 1 - step } else { step };
                let from_input = |gate: usize, j: usize| -> f64 {
                    let row = gate * h + j;
                    b.at(&[d, row])
                        + (0..features).map(|k| w.at(&[d, row, k]) * input.at(&[t, n, k])).sum::<f64>()
                };
                let from_state = |gate: usize, j: usize, state: &[f64]| -> f64 {
                    let row = gate * h + j;
                    b.at(&[d, gates * h + row]) + (0..h).map(|k| r.at(&[d, row, k]) * state[k]).sum::<f64>()
                };
                let gate = |g: usize, j: usize| from_input(g, j) + from_state(g, j, &state);
                let next: Vec<f64> = match op.cell {
                    Cell::Rnn => (0..h).map(|j| gate(0, j).tanh()).collect(),
                    Cell::Lstm => (0..h)
                        .map(|j| {
                            let (i, o, f, c) = (gate(0, j), gate(1, j), gate(2, j), gate(3, j));
                            cell[j] = sigmoid(f) * cell[j] + sigmoid(i) * c.tanh();
                            sigmoid(o) * cell[j].tanh()
                        })
                        .collect(),
                    Cell::Gru | Cell::GruResetAfter => {
                        let reset: Vec<f64> = (0..h).map(|j| sigmoid(gate(1, j))).collect();
                        let damped: Vec<f64> = (0..h).map(|j| reset[j] * state[j]).collect();
                        (0..h)
                            .map(|j| {
                                let update = sigmoid(gate(0, j));
                                let hidden = if op.cell == Cell::Gru {
                                    from_input(2, j) + from_state(2, j, &damped)
                                } else {
                                    from_input(2, j) + reset[j] * from_state(2, j, &state)
                                };
                                (1.0 - update) * hidden.tanh() + update * state[j]
                            })
                            .collect()
                    }
                };
                state = next;
                for (j, &value) in state.iter().enumerate() {
                    let at = out[0].offset(&[t, d, n, j]);
                    out[0].data[at] = value;
                }
            }
            for j in 0..h {
                let at = out[1].offset(&[d, n, j]);
                out[1].data[at] = state[j];
                if let Some(last) = out.get_mut(2) {
                    last.data[at] = cell[j];
                }
            }
        }
    }
    out
}
