//! Every kernel of the CPU against the f64 reference, on random operands.

use partition::unstable::ir::{
    ArgReduce, Binary, Cell, Compare, Conv, ConvTranspose, DType, Direction, Interpolation, Layout, Op, Pad,
    PadMode, Pool, PoolKind, Real, Recurrent, ReduceKind, Resize, ResizeCoordinates, ScatterKind, Shape,
    Size, Slice, TopK, Type, Unary, Window, infer,
};
use partition::unstable::kernel::workspace::workspace;
use partition::unstable::run::cpu::{Team, View, ViewMut, execute};

use crate::reference::{Array, evaluate};

/// A linear congruential generator: tests need no more.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 11
    }

    /// One of `low..=high`.
    pub(crate) fn range(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % (high - low + 1) as u64) as i64
    }

    pub(crate) fn size(&mut self, low: usize, high: usize) -> usize {
        self.range(low as i64, high as i64) as usize
    }

    pub(crate) fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.size(0, list.len() - 1)]
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// Within -2..2.
    fn real(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 40) as f64 - 2.0
    }

    pub(crate) fn dims(&mut self, rank: usize, high: usize) -> Vec<usize> {
        (0..rank).map(|_| if self.range(0, 40) == 0 { 0 } else { self.size(1, high) }).collect()
    }
}

/// Aligned bytes.
pub(crate) struct Bytes(Vec<u64>, usize);

impl Bytes {
    pub(crate) fn new(length: usize) -> Self {
        // 64-byte alignment: the place of the first such address is found by `start`.
        Self(vec![0x5555_5555_5555_5555; length.div_ceil(8) + 8], length)
    }

    fn start(&self) -> usize {
        self.0.as_ptr().align_offset(64) * 8
    }

    pub(crate) fn get(&self) -> &[u8] {
        let start = self.start();
        // SAFETY: every byte of a u64 is a u8.
        let (_, bytes, _) = unsafe { self.0.align_to::<u8>() };
        &bytes[start..start + self.1]
    }

    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        let (start, length) = (self.start(), self.1);
        // SAFETY: every byte of a u64 is a u8, and the other way round.
        let (_, bytes, _) = unsafe { self.0.align_to_mut::<u8>() };
        &mut bytes[start..start + length]
    }
}

fn f16_bits(value: f64) -> u16 {
    // By search: the bits of the nearest of all finite halves of this sign.
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let (mut low, mut high) = (0u16, 0x7bff);
    while low < high {
        let middle = low + (high - low) / 2;
        if f16_value(middle) < value.abs() { low = middle + 1 } else { high = middle }
    }
    let below = low.saturating_sub(1);
    let nearer = value.abs() - f16_value(below) < f16_value(low) - value.abs();
    sign | if nearer { below } else { low }
}

fn f16_value(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
    let magnitude =
        if exponent == 0 { fraction * 2f64.powi(-14) } else { (1.0 + fraction) * 2f64.powi(exponent - 15) };
    if bits & 0x8000 != 0 { -magnitude } else { magnitude }
}

pub(crate) fn encode(array: &Array) -> Vec<u8> {
    let each = |f: &dyn Fn(f64) -> Vec<u8>| array.data.iter().flat_map(|&v| f(v)).collect();
    match array.dtype {
        DType::F32 => each(&|v| (v as f32).to_ne_bytes().to_vec()),
        DType::F64 => each(&|v| v.to_ne_bytes().to_vec()),
        DType::F16 => each(&|v| f16_bits(v).to_ne_bytes().to_vec()),
        DType::Bf16 => each(&|v| (((v as f32).to_bits() >> 16) as u16).to_ne_bytes().to_vec()),
        DType::I8 => each(&|v| (v as i8).to_ne_bytes().to_vec()),
        DType::I16 => each(&|v| (v as i16).to_ne_bytes().to_vec()),
        DType::I32 => each(&|v| (v as i32).to_ne_bytes().to_vec()),
        DType::I64 => each(&|v| (v as i64).to_ne_bytes().to_vec()),
        DType::U8 | DType::Bool => each(&|v| vec![v as u8]),
        DType::U16 => each(&|v| (v as u16).to_ne_bytes().to_vec()),
        DType::U32 => each(&|v| (v as u32).to_ne_bytes().to_vec()),
        DType::U64 => each(&|v| (v as u64).to_ne_bytes().to_vec()),
    }
}

/// The same of numbers of another type, whatever they are held in.
pub(crate) fn representable(dtype: DType, array: Array) -> Array {
    let data = decode(dtype, &encode(&Array::new(dtype, &array.dims, array.data)));
    Array::new(array.dtype, &array.dims, data)
}

pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let size = dtype.size() as usize;
    let wide = |b: &[u8]| -> u64 { b.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)) };
    bytes
        .chunks(size)
        .map(|b| match dtype {
            DType::F32 => f64::from(f32::from_bits(wide(b) as u32)),
            DType::F64 => f64::from_bits(wide(b)),
            DType::F16 => f16_value(wide(b) as u16),
            DType::Bf16 => f64::from(f32::from_bits((wide(b) as u32) << 16)),
            DType::I8 => f64::from(wide(b) as u8 as i8),
            DType::I16 => f64::from(wide(b) as u16 as i16),
            DType::I32 => f64::from(wide(b) as u32 as i32),
            DType::I64 => wide(b) as i64 as f64,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => wide(b) as f64,
        })
        .collect()
}

pub(crate) fn ty(array: &Array) -> Type {
    let dims: Vec<i64> = array.dims.iter().map(|&dim| dim as i64).collect();
    Type::new(array.dtype, Shape::known(&dims))
}

/// Runs the kernel with exactly the workspace that it asks for.
pub(crate) fn run(op: &Op, operands: &[Array], results: &[Type]) -> Result<Vec<Array>, partition::Error> {
    let types: Vec<Type> = operands.iter().map(ty).collect();
    let dims = |ty: &Type| ty.shape.dims().unwrap();
    let operand_dims: Vec<Vec<i64>> = types.iter().map(dims).collect();
    let result_dims: Vec<Vec<i64>> = results.iter().map(dims).collect();
    let buffers: Vec<Bytes> = operands
        .iter()
        .map(|array| {
            let bytes = encode(array);
            let mut buffer = Bytes::new(bytes.len());
            buffer.get_mut().copy_from_slice(&bytes);
            buffer
        })
        .collect();
    let inputs: Vec<View<'_>> = buffers
        .iter()
        .zip(&types)
        .zip(&operand_dims)
        .map(|((buffer, ty), dims)| View::new(ty.dtype, dims, buffer.get()).unwrap())
        .collect();
    let mut targets: Vec<Bytes> =
        results.iter().map(|ty| Bytes::new(ty.bytes().unwrap().get() as usize)).collect();
    let needed = workspace(op, &types.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>());
    let mut scratch = Bytes::new(needed.get() as usize);
    let mut outputs: Vec<ViewMut<'_>> = targets
        .iter_mut()
        .zip(results)
        .zip(&result_dims)
        .map(|((buffer, ty), dims)| ViewMut::new(ty.dtype, dims, buffer.get_mut()).unwrap())
        .collect();
    execute(&Team::alone(), op, &inputs, &mut outputs, scratch.get_mut())?;
    drop(outputs);
    Ok(targets
        .iter()
        .zip(results)
        .map(|(buffer, ty)| {
            let dims: Vec<usize> = ty.shape.dims().unwrap().iter().map(|&dim| dim as usize).collect();
            Array::new(ty.dtype, &dims, decode(ty.dtype, buffer.get()))
        })
        .collect())
}

/// Tolerance of a type, relative and absolute.
pub(crate) fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F32 => (2e-5, 4e-6),
        DType::F64 => (1e-12, 1e-12),
        DType::F16 => (2e-3, 2e-3),
        DType::Bf16 => (1.6e-2, 1.6e-2),
        _ => (0.0, 0.0),
    }
}

pub(crate) fn check(op: &Op, operands: &[Array]) {
    let types: Vec<Type> = operands.iter().map(ty).collect();
    let results = infer(op, &types.iter().collect::<Vec<_>>(), &|_| "n".to_owned())
        .unwrap_or_else(|error| panic!("{op:?} {:?}: {error}", types));
    check_typed(op, operands, &results);
}

fn check_typed(op: &Op, operands: &[Array], results: &[Type]) {
    // What the kernel sees is rounded to the type.
    let rounded: Vec<Array> = operands
        .iter()
        .map(|array| Array::new(array.dtype, &array.dims, decode(array.dtype, &encode(array))))
        .collect();
    if crate::kernels::collects(op, &rounded, results) {
        return;
    }
    let found = run(op, &rounded, results).unwrap_or_else(|error| panic!("{op:?}: {error}"));
    let shapes: Vec<(DType, Vec<usize>)> =
        found.iter().map(|array| (array.dtype, array.dims.clone())).collect();
    let expected = evaluate(op, &rounded, &shapes);
    for (found, expected) in found.iter().zip(&expected) {
        let (relative, absolute) = tolerance(found.dtype);
        for (i, (&a, &b)) in found.data.iter().zip(&expected.data).enumerate() {
            let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= absolute + relative * b.abs();
            let dims: Vec<_> = operands.iter().map(|array| (&array.dims, array.dtype)).collect();
            assert!(same, "{op:?} on {dims:?}: element {i} is {a}, expected {b}");
        }
    }
}

/// What checks operations on random operands, for other kernels to be checked on them too.
pub(crate) const GENERATORS: &[fn()] = &[
    unary_operations,
    binary_operations_broadcast,
    comparisons_selections_and_conversions,
    reductions,
    positions_of_extremes_and_running_sums,
    normalisations,
    matrix_products,
    crate::products_of_bytes::products_of_bytes,
    crate::packed::packed_weights,
    crate::attention::attentions,
    crate::attention::gradients_of_attentions,
    crate::attention::rotary_embeddings,
    crate::row_gradients::gradients_of_softmax,
    crate::row_gradients::cross_entropies,
    crate::row_gradients::gradients_of_normalisations,
    convolutions,
    a_convolution_of_several_parts,
    transposed_convolutions,
    poolings,
    resizes,
    recurrent_layers,
    moves,
    gathers,
    scatters,
];

const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];
const INTEGERS: [DType; 5] = [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8];
const NUMBERS: [DType; 9] = [
    DType::F32,
    DType::F32,
    DType::F64,
    DType::F16,
    DType::Bf16,
    DType::I8,
    DType::I32,
    DType::I64,
    DType::U8,
];

pub(crate) fn array(random: &mut Random, dtype: DType, dims: &[usize]) -> Array {
    let data = (0..dims.iter().product::<usize>())
        .map(|_| match dtype {
            DType::U8 => random.range(0, 5) as f64,
            DType::Bool => random.range(0, 1) as f64,
            dtype if dtype.is_integer() => random.range(-5, 5) as f64,
            _ => random.real(),
        })
        .collect();
    Array::new(dtype, dims, data)
}

fn indices(random: &mut Random, dims: &[usize], size: usize) -> Array {
    let dtype = *random.pick(&[DType::I32, DType::I64]);
    let data = (0..dims.iter().product::<usize>())
        .map(|_| random.range(-(size as i64), size as i64 - 1) as f64)
        .collect();
    Array::new(dtype, dims, data)
}

/// Two or more shapes that broadcast together.
pub(crate) fn broadcasting(random: &mut Random, count: usize, high: usize) -> Vec<Vec<usize>> {
    let rank = random.size(0, 4);
    let whole = random.dims(rank, high);
    (0..count)
        .map(|_| {
            let skip = random.size(0, rank);
            whole[skip..].iter().map(|&dim| if random.range(0, 3) == 0 { 1 } else { dim }).collect()
        })
        .collect()
}

#[test]
fn unary_operations() {
    let mut random = Random::new(1);
    for &f in Unary::ALL {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I32, DType::I8, DType::Bool] {
            let of_bools = f == Unary::Not;
            let of_all = matches!(f, Unary::Neg | Unary::Abs | Unary::Sign | Unary::Relu);
            if of_bools != (dtype == DType::Bool) || !of_all && !of_bools && !dtype.is_float() {
                continue;
            }
            let mut x = array(&mut random, dtype, &[1500]);
            if matches!(f, Unary::Log | Unary::Sqrt) {
                x.data.iter_mut().for_each(|v| *v = v.abs() + 0.1);
            }
            if f == Unary::Log1p {
                x.data.iter_mut().for_each(|v| *v = v.abs() - 0.9);
            }
            if f == Unary::Reciprocal {
                x.data.iter_mut().for_each(|v| *v = v.signum() * (v.abs() + 0.1));
            }
            check(&Op::Unary(f), &[x]);
        }
    }
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 1.0];
    for dtype in [DType::F32, DType::F64] {
        for f in [Unary::IsNan, Unary::IsInf, Unary::Exp, Unary::Tanh, Unary::Sigmoid] {
            check(&Op::Unary(f), &[Array::new(dtype, &[5], special.to_vec())]);
        }
    }
}

#[test]
fn binary_operations_broadcast() {
    let mut random = Random::new(2);
    for round in 0..600 {
        let f = Binary::ALL[round % Binary::ALL.len()];
        if f == Binary::Hash {
            // Its 64 bits are no f64: `noise` compares them with a generator of its own.
            continue;
        }
        let logic = f.is_of_bits();
        let dtype = match logic {
            true => *random.pick(&[DType::Bool, DType::I32, DType::U8]),
            false => *random.pick(&NUMBERS),
        };
        let shapes = broadcasting(&mut random, 2, 40);
        let mut x = array(&mut random, dtype, &shapes[0]);
        let mut y = array(&mut random, dtype, &shapes[1]);
        if matches!(f, Binary::Div | Binary::Mod | Binary::Rem) {
            y.data
                .iter_mut()
                .for_each(|v| *v = if dtype.is_float() { v.signum() * 0.75 } else { v.abs() + 1.0 });
        }
        if f == Binary::Pow {
            x.data
                .iter_mut()
                .for_each(|v| *v = if dtype.is_float() { v.abs() + 0.25 } else { v.abs().min(3.0) });
            y.data.iter_mut().for_each(|v| *v = if dtype.is_float() { *v } else { v.abs().min(3.0) });
        }
        if dtype == DType::U8 && f == Binary::Sub {
            x.data.iter_mut().for_each(|v| *v += 10.0);
        }
        check(&Op::Binary(f), &[x, y]);
    }
}

#[test]
fn comparisons_selections_and_conversions() {
    let mut random = Random::new(3);
    for round in 0..300 {
        let shapes = broadcasting(&mut random, 3, 30);
        let dtype = *random.pick(&NUMBERS);
        let (x, y) = (array(&mut random, dtype, &shapes[0]), array(&mut random, dtype, &shapes[1]));
        check(&Op::Compare(Compare::ALL[round % 6]), &[x.clone(), y.clone()]);
        let condition = array(&mut random, DType::Bool, &shapes[2]);
        check(&Op::Select, &[condition, x.clone(), y]);
        let to = DType::ALL[round % DType::ALL.len()];
        let x =
            Array { data: x.data.iter().map(|v| if to == DType::U8 { v.abs() } else { *v }).collect(), ..x };
        check(&Op::Convert { to }, &[x]);
    }
}

#[test]
fn reductions() {
    let mut random = Random::new(4);
    for round in 0..600 {
        let rank = random.size(1, 4);
        let dims: Vec<usize> = (0..rank).map(|_| random.size(1, 20)).collect();
        let axes: Vec<u32> = (0..rank as u32).filter(|_| random.flag()).collect();
        let kind = ReduceKind::ALL[round % ReduceKind::ALL.len()];
        let dtype = match kind {
            ReduceKind::Prod | ReduceKind::Sum | ReduceKind::SumSquares => {
                *random.pick(&[DType::F32, DType::F64, DType::I64])
            }
            _ => *random.pick(&NUMBERS),
        };
        let mut x = array(&mut random, dtype, &dims);
        if kind == ReduceKind::Prod {
            x.data.iter_mut().for_each(|v| *v = if dtype.is_float() { 1.0 + *v * 1e-3 } else { v.signum() });
        }
        if kind == ReduceKind::Mean && !dtype.is_float() {
            x.data.iter_mut().for_each(|v| *v = v.abs().min(1.0));
        }
        check(&Op::Reduce { kind, axes, keep: random.flag() }, &[x]);
    }
    let empty = Array::new(DType::F32, &[3, 0], vec![]);
    check(&Op::Reduce { kind: ReduceKind::Sum, axes: vec![1], keep: false }, std::slice::from_ref(&empty));
    check(&Op::Reduce { kind: ReduceKind::Mean, axes: vec![1], keep: true }, &[empty]);
}

#[test]
pub(crate) fn reductions_of_several_parts() {
    let mut random = Random::new(41);
    for (dims, axes) in [
        (vec![600, 200], vec![0]),
        (vec![300, 150], vec![1]),
        (vec![3, 500, 70], vec![1]),
        (vec![90, 5, 80], vec![0, 2]),
    ] {
        let x = array(&mut random, DType::F32, &dims);
        for kind in [ReduceKind::Sum, ReduceKind::SumSquares, ReduceKind::Mean, ReduceKind::Max] {
            check(&Op::Reduce { kind, axes: axes.clone(), keep: false }, std::slice::from_ref(&x));
        }
    }
}

#[test]
fn positions_of_extremes_and_running_sums() {
    let mut random = Random::new(5);
    for _ in 0..300 {
        let rank = random.size(1, 4);
        let dims: Vec<usize> = (0..rank).map(|_| random.size(1, 9)).collect();
        let axis = random.size(0, rank - 1) as u32;
        let dtype = *random.pick(&[DType::F32, DType::F64, DType::F16, DType::I32, DType::U8]);
        let x = array(&mut random, dtype, &dims);
        let kind = *random.pick(ArgReduce::ALL);
        check(
            &Op::ArgReduce { kind, axis, keep: random.flag(), last: random.flag() },
            std::slice::from_ref(&x),
        );
        check(
            &Op::CumSum { axis, exclusive: random.flag(), reverse: random.flag() },
            std::slice::from_ref(&x),
        );
        let topk = TopK { axis, k: random.range(0, dims[axis as usize] as i64), largest: random.flag() };
        check(&Op::TopK(topk.clone()), std::slice::from_ref(&x));
        if dtype.is_float() {
            let mut with_nan = x;
            with_nan.data.iter_mut().step_by(3).for_each(|value| *value = f64::NAN);
            check(&Op::TopK(topk), &[with_nan]);
        }
    }
}

#[test]
fn normalisations() {
    let mut random = Random::new(6);
    for _ in 0..300 {
        let rank = random.size(2, 4);
        let dims = random.dims(rank, if rank == 4 { 6 } else { 12 });
        let dtype = *random.pick(&FLOATS);
        let x = array(&mut random, dtype, &dims);
        let axis = random.size(0, rank - 1) as u32;
        check(&Op::Softmax { axis, log: random.flag() }, std::slice::from_ref(&x));
        let mut axes: Vec<u32> = (0..rank as u32).filter(|_| random.flag()).collect();
        if axes.is_empty() {
            axes.push(axis);
        }
        // The tests' halves have no code for what is not a number, as the mean of nothing.
        let moments = random.flag() && !x.data.is_empty();
        let center = moments || random.flag();
        check(&Op::Normalize { axes, epsilon: Real(1e-2), center, moments }, std::slice::from_ref(&x));
        let size = random.range(1, 6);
        let (alpha, beta, bias) = (Real(0.3), Real(0.75), Real(1.5));
        check(&Op::LocalResponseNorm { size, alpha, beta, bias }, &[x]);
    }
}

#[test]
pub(crate) fn matrix_products() {
    let mut random = Random::new(7);
    for _ in 0..400 {
        let batch = broadcasting(&mut random, 2, 3);
        let (m, n, k) = (random.size(0, 20), random.size(1, 20), random.size(0, 20));
        let (left, right) = (random.flag(), random.flag());
        let a = if left { [k, m] } else { [m, k] };
        let b = if right { [n, k] } else { [k, n] };
        let dtype = *random.pick(&[DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I32, DType::I64]);
        let (half, side) = (dtype.is_half(), random.size(0, 3));
        let (wide, rounds) = (half && random.flag(), half && random.flag());
        // One of the two may be of f32 where halves are read.
        let of = |position: usize| if rounds && side == position { DType::F32 } else { dtype };
        let x = representable(dtype, array(&mut random, of(0), &[&batch[0][..], &a].concat()));
        let y = representable(dtype, array(&mut random, of(1), &[&batch[1][..], &b].concat()));
        check(&Op::MatMul { transpose_left: left, transpose_right: right, wide, rounds }, &[x, y]);
    }
}

#[test]
pub(crate) fn products_of_many_columns() {
    let mut random = Random::new(19);
    for _ in 0..40 {
        let batch = broadcasting(&mut random, 2, 3);
        let (m, n, k) = (random.size(1, 30), random.size(60, 140), random.size(1, 40));
        let (left, right) = (random.flag(), random.flag());
        let a = if left { [k, m] } else { [m, k] };
        let b = if right { [n, k] } else { [k, n] };
        let dtype = *random.pick(&[DType::F32, DType::F64]);
        let x = array(&mut random, dtype, &[&batch[0][..], &a].concat());
        let y = array(&mut random, dtype, &[&batch[1][..], &b].concat());
        let op = Op::MatMul { transpose_left: left, transpose_right: right, wide: false, rounds: false };
        check(&op, &[x, y]);
    }
}

fn window(random: &mut Random, rank: usize) -> Window {
    let list = |random: &mut Random, low, high| (0..rank).map(|_| random.range(low, high)).collect();
    Window {
        strides: list(random, 1, 3),
        dilations: list(random, 1, 2),
        pads_before: list(random, 0, 2),
        pads_after: list(random, 0, 2),
    }
}

/// A layout's shape.
fn laid(layout: Layout, batch: usize, channels: usize, spatial: &[usize]) -> Vec<usize> {
    match layout {
        Layout::ChannelsFirst => [&[batch, channels], spatial].concat(),
        Layout::ChannelsLast => [&[batch], spatial, &[channels]].concat(),
    }
}

#[test]
fn convolutions() {
    let mut random = Random::new(8);
    for _ in 0..300 {
        let layout = *random.pick(Layout::ALL);
        let rank = random.size(1, 3);
        let (groups, inner, outer) = (random.size(1, 3), random.size(1, 3), random.size(1, 3));
        let kernel: Vec<usize> = (0..rank).map(|_| random.size(1, 3)).collect();
        let spatial: Vec<usize> = (0..rank).map(|_| random.size(5, 9)).collect();
        let dtype = *random.pick(&[DType::F32, DType::F32, DType::F64, DType::F16]);
        let mut window = window(&mut random, rank);
        if random.flag() {
            window.strides.fill(1);
            window.pads_before.fill(0);
            window.pads_after.fill(0);
        }
        let x = array(&mut random, dtype, &laid(layout, random_batch(groups), groups * inner, &spatial));
        let weights = match layout {
            Layout::ChannelsFirst => [&[groups * outer, inner], &kernel[..]].concat(),
            Layout::ChannelsLast => [&kernel[..], &[inner, groups * outer]].concat(),
        };
        let mut operands = vec![x, array(&mut random, dtype, &weights)];
        if random.flag() {
            operands.push(array(&mut random, dtype, &[groups * outer]));
        }
        check(&Op::Conv(Box::new(Conv { layout, window, groups: groups as i64 })), &operands);
    }
}

#[test]
pub(crate) fn convolutions_of_many_channels() {
    let mut random = Random::new(18);
    for _ in 0..12 {
        let (inner, outer) = (random.size(6, 20), random.size(16, 80));
        let kernel = [random.size(1, 4), random.size(1, 4)];
        let spatial = [random.size(7, 12), random.size(7, 16)];
        let dtype = *random.pick(&[DType::F32, DType::F32, DType::F64, DType::F16]);
        let x = array(&mut random, dtype, &[2, inner, spatial[0], spatial[1]]);
        let weights = array(&mut random, dtype, &[outer, inner, kernel[0], kernel[1]]);
        let weights = Array { data: weights.data.iter().map(|v| v * 0.25).collect(), ..weights };
        let bias = array(&mut random, dtype, &[outer]);
        let conv = Conv { layout: Layout::ChannelsFirst, window: window(&mut random, 2), groups: 1 };
        check(&Op::Conv(Box::new(conv)), &[x, weights, bias]);
    }
}

fn random_batch(groups: usize) -> usize {
    groups % 2 + 1
}

#[test]
fn a_convolution_of_several_parts() {
    // 600 windows of 64 * 9 elements are unfolded at most 252 at a time, across images, in two parts each.
    let mut random = Random::new(9);
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        let x = array(&mut random, DType::F32, &laid(layout, 2, 64, &[20, 15]));
        let weights = match layout {
            Layout::ChannelsFirst => vec![2, 64, 3, 3],
            Layout::ChannelsLast => vec![3, 3, 64, 2],
        };
        let weights = array(&mut random, DType::F32, &weights);
        let weights = Array { data: weights.data.iter().map(|v| v * 0.05).collect(), ..weights };
        let window = Window {
            strides: vec![1; 2],
            dilations: vec![1; 2],
            pads_before: vec![1; 2],
            pads_after: vec![1; 2],
        };
        check(&Op::Conv(Box::new(Conv { layout, window, groups: 1 })), &[x, weights]);
    }
}

#[test]
fn transposed_convolutions() {
    let mut random = Random::new(10);
    for _ in 0..300 {
        let layout = *random.pick(Layout::ALL);
        let rank = random.size(1, 3);
        let (groups, inner, outer) = (random.size(1, 3), random.size(1, 3), random.size(1, 3));
        let kernel: Vec<usize> = (0..rank).map(|_| random.size(2, 3)).collect();
        let spatial: Vec<usize> = (0..rank).map(|_| random.size(3, 5)).collect();
        let dtype = *random.pick(&[DType::F32, DType::F64, DType::Bf16]);
        let window = window(&mut random, rank);
        let output_padding = window.strides.iter().map(|&stride| random.range(0, stride - 1)).collect();
        let x = array(&mut random, dtype, &laid(layout, random_batch(groups), groups * inner, &spatial));
        let weights = match layout {
            Layout::ChannelsFirst => [&[groups * inner, outer], &kernel[..]].concat(),
            Layout::ChannelsLast => [&kernel[..], &[outer, groups * inner]].concat(),
        };
        let mut operands = vec![x, array(&mut random, dtype, &weights)];
        if random.flag() {
            operands.push(array(&mut random, dtype, &[groups * outer]));
        }
        let op = ConvTranspose { layout, window, output_padding, groups: groups as i64 };
        check(&Op::ConvTranspose(Box::new(op)), &operands);
    }
}

#[test]
fn poolings() {
    let mut random = Random::new(11);
    for _ in 0..400 {
        let layout = *random.pick(Layout::ALL);
        let kind = *random.pick(PoolKind::ALL);
        let rank = random.size(1, 3);
        let kernel: Vec<i64> = (0..rank).map(|_| random.range(2, 3)).collect();
        let spatial: Vec<usize> = (0..rank).map(|_| random.size(5, 8)).collect();
        let mut window = window(&mut random, rank);
        // Padding below the kernel: every window holds an element.
        window.dilations.fill(1);
        window.pads_before.iter_mut().zip(&kernel).for_each(|(pad, &k)| *pad = (*pad).min(k - 1));
        window.pads_after.iter_mut().zip(&kernel).for_each(|(pad, &k)| *pad = (*pad).min(k - 1));
        let extra_after = match kind {
            PoolKind::AverageWithPadding => {
                window.pads_after.iter().map(|&pad| random.range(0, pad)).collect()
            }
            _ => vec![0; rank],
        };
        let dtype = match kind {
            PoolKind::Max => *random.pick(&NUMBERS),
            _ => *random.pick(&FLOATS),
        };
        let x = array(&mut random, dtype, &laid(layout, 2, 3, &spatial));
        let pool = Pool { kind, layout, kernel, window, extra_after };
        check(&Op::Pool(Box::new(pool.clone())), std::slice::from_ref(&x));
        if kind == PoolKind::Max && dtype.is_float() {
            max_pool_gradient(&mut random, pool, x);
        }
    }
}

/// The gradient of a pooling of small integers, many of which are alike.
fn max_pool_gradient(random: &mut Random, pool: Pool, mut x: Array) {
    x.data.iter_mut().for_each(|x| *x = x.round());
    let found = ty(&x);
    let made = infer(&Op::Pool(Box::new(pool.clone())), &[&found], &|_| "n".to_owned()).unwrap();
    let dims: Vec<usize> = made[0].shape.dims().unwrap().iter().map(|&dim| dim as usize).collect();
    let y = evaluate(&Op::Pool(Box::new(pool.clone())), std::slice::from_ref(&x), &[(x.dtype, dims.clone())]);
    let given = array(random, x.dtype, &dims);
    check(&Op::MaxPoolGradient(Box::new(pool)), &[x, y[0].clone(), given]);
}

#[test]
fn resizes() {
    let mut random = Random::new(12);
    for _ in 0..400 {
        let rank = random.size(1, 4);
        let dims: Vec<usize> = (0..rank).map(|_| random.size(1, 6)).collect();
        let to: Vec<i64> =
            dims.iter().map(|&dim| if random.flag() { dim as i64 } else { random.range(1, 13) }).collect();
        let interpolation = *random.pick(Interpolation::ALL);
        let coordinates = *random.pick(ResizeCoordinates::ALL);
        let dtype = match interpolation {
            Interpolation::Linear => *random.pick(&FLOATS),
            _ => *random.pick(&NUMBERS),
        };
        let scales = (random.flag())
            .then(|| dims.iter().zip(&to).map(|(&dim, &to)| Real(to as f64 / dim as f64 * 1.01)).collect());
        let x = array(&mut random, dtype, &dims);
        let op = Resize { shape: Shape::known(&to), interpolation, coordinates, scales };
        check(&Op::Resize(Box::new(op)), &[x]);
    }
}

#[test]
fn recurrent_layers() {
    let mut random = Random::new(13);
    for round in 0..200 {
        let cell = Cell::ALL[round % 4];
        let direction = *random.pick(Direction::ALL);
        let gates = [1, 4, 3, 3][round % 4];
        let directions = if direction == Direction::Bidirectional { 2 } else { 1 };
        let (time, batch, features, hidden) =
            (random.size(0, 5), random.size(1, 4), random.size(1, 6), random.size(1, 6));
        let dtype = *random.pick(&[DType::F32, DType::F64, DType::F16]);
        let mut operands = vec![
            array(&mut random, dtype, &[time, batch, features]),
            array(&mut random, dtype, &[directions, gates * hidden, features]),
            array(&mut random, dtype, &[directions, gates * hidden, hidden]),
            array(&mut random, dtype, &[directions, 2 * gates * hidden]),
            array(&mut random, dtype, &[directions, batch, hidden]),
        ];
        if cell == Cell::Lstm {
            operands.push(array(&mut random, dtype, &[directions, batch, hidden]));
        }
        check(&Op::Recurrent(Box::new(Recurrent { cell, direction, hidden: hidden as i64 })), &operands);
    }
}

#[test]
fn moves() {
    let mut random = Random::new(14);
    for round in 0..400 {
        let dtype = DType::ALL[round % DType::ALL.len()];
        let rank = random.size(1, 5);
        let dims = random.dims(rank, if rank < 3 { 40 } else { 9 });
        let x = array(&mut random, dtype, &dims);
        let mut perm: Vec<u32> = (0..rank as u32).collect();
        for i in (1..rank).rev() {
            perm.swap(i, random.size(0, i));
        }
        check(&Op::Transpose { perm }, std::slice::from_ref(&x));
        let flat = Shape::known(&[dims.iter().product::<usize>() as i64]);
        check(&Op::Reshape { shape: flat }, std::slice::from_ref(&x));
        let shapes = broadcasting(&mut random, 1, 9);
        let whole: Vec<i64> = [&[2], &shapes[0][..]].concat().iter().map(|&dim| dim.max(1) as i64).collect();
        let part: Vec<usize> =
            whole.iter().map(|&dim| if random.flag() { 1 } else { dim as usize }).collect();
        let part = array(&mut random, dtype, &part);
        check(&Op::Broadcast { shape: Shape::known(&whole) }, &[part]);
        check(&slice(&mut random, &dims), std::slice::from_ref(&x));
        check(&pad(&mut random, &dims), std::slice::from_ref(&x));
        let axis = random.size(0, rank - 1);
        let parts: Vec<Array> = (0..random.size(1, 4))
            .map(|_| {
                let mut dims = dims.clone();
                dims[axis] = random.size(0, 5);
                array(&mut random, dtype, &dims)
            })
            .collect();
        check(&Op::Concat { axis: axis as u32 }, &parts);
        let result = Type::new(dtype, Shape::known(&[2, 3, 4]));
        if dtype != DType::Bool {
            check_typed(&Op::Iota { axis: random.size(0, 2) as u32 }, &[], &[result]);
        }
    }
    let sizes = Op::Sizes(vec![Size::Known(3), Size::Known(-1)].into());
    check_typed(&sizes, &[], &[Type::new(DType::I64, Shape::known(&[2]))]);
}

fn slice(random: &mut Random, dims: &[usize]) -> Op {
    let (mut starts, mut sizes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for &dim in dims {
        let dim = dim as i64;
        let step = *random.pick(&[1, 1, 2, -1, -3]);
        let start = if dim == 0 { 0 } else { random.range(0, dim - 1) };
        let room = if dim == 0 {
            0
        } else if step > 0 {
            (dim - 1 - start) / step + 1
        } else {
            start / -step + 1
        };
        starts.push(Size::Known(start));
        sizes.push(Size::Known(random.range(0, room)));
        steps.push(step);
    }
    Op::Slice(Box::new(Slice { starts, sizes, steps }))
}

fn pad(random: &mut Random, dims: &[usize]) -> Op {
    let mode = if dims.contains(&0) { PadMode::Constant } else { *random.pick(PadMode::ALL) };
    // Crops at most a third on each side, so that enough is left to mirror.
    let amount = |random: &mut Random, dim: usize| match mode {
        PadMode::Reflect => random.range(-(dim as i64) / 3, (dim as i64 - 1) / 3),
        _ => random.range(-(dim as i64) / 3, 4),
    };
    let before = dims.iter().map(|&dim| amount(random, dim)).collect();
    let after = dims.iter().map(|&dim| amount(random, dim)).collect();
    Op::Pad(Box::new(Pad { before, after, mode, value: Real(1.0) }))
}

#[test]
fn gathers() {
    let mut random = Random::new(15);
    for round in 0..400 {
        let dtype = DType::ALL[round % DType::ALL.len()];
        let rank = random.size(1, 4);
        let dims: Vec<usize> = (0..rank).map(|_| random.size(1, 6)).collect();
        let x = array(&mut random, dtype, &dims);
        let axis = random.size(0, rank - 1);
        let many = random.size(0, 2);
        let shape = random.dims(many, 5);
        let at = indices(&mut random, &shape, dims[axis]);
        check(&Op::Gather { axis: axis as u32 }, &[x.clone(), at]);
        let mut shape: Vec<usize> = dims.iter().map(|&dim| random.size(1, dim)).collect();
        shape[axis] = random.size(1, 7);
        let at = indices(&mut random, &shape, dims[axis]);
        check(&Op::GatherElements { axis: axis as u32 }, &[x.clone(), at]);
        let batch = random.size(0, rank - 1);
        let depth = random.size(1, rank - batch);
        let least = dims[batch..batch + depth].iter().copied().min().unwrap();
        let shape = [&dims[..batch], &[random.size(1, 4), depth]].concat();
        let at = indices(&mut random, &shape, least);
        check(&Op::GatherNd { batch_dims: batch as u32 }, &[x, at]);
    }
}

#[test]
fn scatters() {
    let mut random = Random::new(16);
    for round in 0..400 {
        let kind = ScatterKind::ALL[round % 5];
        let dtype = match kind {
            ScatterKind::Replace => *random.pick(&DType::ALL),
            _ => *random.pick(&[DType::F32, DType::F64, DType::F16, DType::I64]),
        };
        let rank = random.size(1, 4);
        let dims: Vec<usize> = (0..rank).map(|_| random.size(1, 6)).collect();
        let x = array(&mut random, dtype, &dims);
        let axis = random.size(0, rank - 1);
        let mut shape: Vec<usize> = dims.iter().map(|&dim| random.size(1, dim)).collect();
        shape[axis] = random.size(1, 3);
        let at = indices(&mut random, &shape, dims[axis]);
        let updates = array(&mut random, dtype, &shape);
        check(&Op::ScatterElements { axis: axis as u32, kind }, &[x.clone(), at, updates]);
        let depth = random.size(1, rank);
        let least = dims[..depth].iter().copied().min().unwrap();
        let count = random.size(1, 4);
        let at = indices(&mut random, &[count, depth], least);
        let updates = array(&mut random, dtype, &[&[count], &dims[depth..]].concat());
        check(&Op::ScatterNd { kind }, &[x, at, updates]);
    }
}

#[test]
fn updates_of_slices() {
    let mut random = Random::new(91);
    for _ in 0..60 {
        let rank = random.size(1, 4);
        let dtype = *random.pick(&[DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I64, DType::Bool]);
        let dims: Vec<usize> = (0..rank).map(|_| random.size(1, 5)).collect();
        let axis = random.size(0, rank - 1);
        let mut own = dims.clone();
        own[axis] = random.size(0, dims[axis]);
        let start = random.range(0, (dims[axis] - own[axis]) as i64);
        let at = Array::new(DType::I64, &[], vec![start as f64]);
        let (x, update) = (array(&mut random, dtype, &dims), array(&mut random, dtype, &own));
        check(&Op::UpdateSlice { axis: axis as u32 }, &[x.clone(), at, update.clone()]);
        for beyond in [-1, (dims[axis] - own[axis] + 1) as i64] {
            let at = Array::new(DType::I64, &[], vec![beyond as f64]);
            let operands = [x.clone(), at, update.clone()];
            let types: Vec<Type> = operands.iter().map(ty).collect();
            let op = Op::UpdateSlice { axis: axis as u32 };
            let results = infer(&op, &types.iter().collect::<Vec<_>>(), &|_| String::new()).unwrap();
            let error = run(&op, &operands, &results).unwrap_err().to_string();
            assert!(error.contains(&format!("{} from {beyond} on are not among", own[axis])), "{error}");
        }
    }
}

/// Trees of different depths, with nodes that compare with what is no number.
#[test]
fn leaves_of_trees() {
    let mut random = Random::new(92);
    for case in 0..40 {
        let dtype = *random.pick(&[DType::F32, DType::F64]);
        let (rows, width) = (*random.pick(&[0, 1, 5, 16, 70, 130]), random.size(1, 6));
        let (trees, depth) = (random.size(1, 40), random.range(0, 7));
        let (mut roots, mut columns, mut splits, mut next) = (vec![], vec![], vec![], vec![]);
        for _ in 0..trees {
            // Children stand side by side behind all that was there before.
            let mut level = vec![columns.len()];
            roots.push(columns.len() as f64);
            columns.push(0.0);
            for _ in 0..depth {
                let mut below = Vec::new();
                for node in level {
                    if random.range(0, 4) > 0 {
                        let first = columns.len();
                        columns.extend([0.0; 2]);
                        below.extend([first, first + 1]);
                        while next.len() < columns.len() {
                            next.push(next.len() as f64);
                            splits.push(f64::NAN);
                        }
                        columns[node] = random.range(0, width as i64 - 1) as f64;
                        splits[node] = random.range(-2, 2) as f64;
                        next[node] = first as f64;
                    }
                }
                level = below;
            }
            while next.len() < columns.len() {
                next.push(next.len() as f64);
                splits.push(f64::NAN);
            }
        }
        let mut x = array(&mut random, dtype, &[rows, width]);
        x.data.iter_mut().step_by(7).for_each(|value| *value = f64::NAN);
        let list = |dtype, data: Vec<f64>| Array::new(dtype, &[data.len()], data);
        let (roots, columns) = (list(DType::I32, roots), list(DType::I32, columns));
        let (splits, next) = (list(dtype, splits), list(DType::I32, next));
        let op = Op::TreeLeaves { depth: depth as u32 };
        check(&op, &[x.clone(), roots.clone(), columns.clone(), splits.clone(), next.clone()]);
        if rows == 0 || depth == 0 {
            continue;
        }
        let mut beyond = columns.clone();
        beyond.data.iter_mut().for_each(|column| *column = [-1.0, width as f64][case % 2]);
        let operands = [x, roots, beyond, splits, next];
        let types: Vec<Type> = operands.iter().map(ty).collect();
        let results = infer(&op, &types.iter().collect::<Vec<_>>(), &|_| String::new()).unwrap();
        let error = run(&op, &operands, &results).unwrap_err().to_string();
        assert!(error.contains("looks at a column, or goes on at a node, that there is not"), "{error}");
    }
}

#[test]
fn an_index_outside_its_axis_is_an_error() {
    let data = Array::new(DType::F32, &[3, 2], vec![0.0; 6]);
    for bad in [3.0, -4.0, 1e15] {
        let at = Array::new(DType::I64, &[1, 1], vec![bad]);
        let update = Array::new(DType::F32, &[1, 1], vec![0.0]);
        let row = Array::new(DType::F32, &[1, 2], vec![0.0; 2]);
        let cases = [
            (Op::Gather { axis: 0 }, vec![data.clone(), at.clone()]),
            (Op::GatherElements { axis: 0 }, vec![data.clone(), at.clone()]),
            (Op::GatherNd { batch_dims: 0 }, vec![data.clone(), at.clone()]),
            (Op::ScatterElements { axis: 0, kind: ScatterKind::Add }, vec![data.clone(), at.clone(), update]),
            (Op::ScatterNd { kind: ScatterKind::Replace }, vec![data.clone(), at.clone(), row]),
        ];
        for (op, operands) in cases {
            let types: Vec<Type> = operands.iter().map(ty).collect();
            let results = infer(&op, &types.iter().collect::<Vec<_>>(), &|_| String::new()).unwrap();
            let error = run(&op, &operands, &results).unwrap_err().to_string();
            assert_eq!(error, format!("index {bad} is outside an axis of 3 elements"));
        }
    }
}

#[test]
fn integers_do_not_panic() {
    let edge = Array::new(DType::I32, &[3], vec![f64::from(i32::MIN), -1.0, 7.0]);
    let zero = Array::new(DType::I32, &[3], vec![-1.0, 0.0, 0.0]);
    let types: Vec<Type> = vec![ty(&edge)];
    for &f in Binary::ALL {
        run(&Op::Binary(f), &[edge.clone(), zero.clone()], &types).unwrap();
    }
    for f in [Unary::Neg, Unary::Abs, Unary::Sign, Unary::Relu] {
        run(&Op::Unary(f), std::slice::from_ref(&edge), &types).unwrap();
    }
    assert_eq!(INTEGERS.len(), 5);
}

/// No two neighbours of a reversed transposition merge: each axis is walked by itself.
#[test]
fn many_axes_that_do_not_merge() {
    let mut random = Random::new(7);
    let x = array(&mut random, DType::F32, &[2; 17]);
    check(&Op::Transpose { perm: (0..17).rev().collect() }, std::slice::from_ref(&x));
    let mut dims = [1; 32];
    dims[..17].fill(2);
    let x = array(&mut random, DType::F32, &dims);
    check(&Op::Transpose { perm: (0..32).rev().collect() }, &[x]);
}
