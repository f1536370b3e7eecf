//! Operations whose kernels are written by hand, in every form in which they are printed, on made-up operands.

use partition::unstable::ir::{
    ArgReduce, Attention, Conv, ConvTranspose, DType, HeadOrder, Layout, Op, Real, ReduceKind, ScatterKind,
    Window,
};
use partition::unstable::kernel::program;

use crate::cuda::values;
use crate::kernels::Case;
use crate::reference::Array;
use crate::run_ops::{decode, encode};

/// Elements that are neither negative nor far apart, so that little cancels.
pub(crate) fn made_up(dtype: DType, elements: u64, seed: u64) -> program::Array {
    let unit = |i: u64| {
        ((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed) >> 40) as f64 / (1u64 << 24) as f64
    };
    let data: Vec<f64> = (0..elements)
        .map(|i| match dtype {
            dtype if dtype.is_float() => 0.25 + unit(i),
            DType::Bool => (unit(i) * 2.0).floor(),
            _ => (unit(i) * 5.0).floor(),
        })
        .collect();
    values(dtype, &encode(&Array::new(dtype, &[data.len()], data)))
}

/// An operation on made-up operands of these types and sizes.
pub(crate) fn sized(op: Op, operands: &[(DType, &[usize])]) -> Case {
    let array = |(position, (dtype, dims)): (usize, &(DType, &[usize]))| {
        let elements = dims.iter().product::<usize>();
        let data = match made_up(*dtype, elements as u64, position as u64 * 991) {
            program::Array::Real(list) => list.iter().map(|x| x - 0.75).collect(),
            program::Array::Whole(list) => list.iter().map(|&x| x as f64).collect(),
        };
        let rounded = decode(*dtype, &encode(&Array::new(*dtype, dims, data)));
        Array::new(*dtype, dims, rounded)
    };
    Case { op, operands: operands.iter().enumerate().map(array).collect(), results: vec![] }
}

pub(crate) fn product(transpose_left: bool, transpose_right: bool) -> Op {
    Op::MatMul { transpose_left, transpose_right, wide: false, rounds: false }
}

pub(crate) fn attention((heads, key_heads): (i64, i64), causal: Option<i64>, order: HeadOrder) -> Attention {
    let (first, orders, scale) = ([0; 3], [order; 4], Real(0.3));
    let (fill, zeros) = (Real(f64::NEG_INFINITY), true);
    Attention { heads, key_heads, first, orders, scale, causal, positioned: false, fill, zeros }
}

/// Attention of halves by groups of threads: whole blocks and ends of rows, keys and elements of a head, shared heads, masks, rows
/// that see all keys, some and none, and heads that lie behind and beside one another.
pub(crate) fn attention_by_groups() -> Vec<Case> {
    let (f16, bf16) = (DType::F16, DType::Bf16);
    let (first, second) = (HeadOrder::HeadsFirst, HeadOrder::RowsFirst);
    let mut cases = Vec::new();
    for (dtype, mask, causal, order, [heads, key_heads, rows, keys, size, values]) in [
        (bf16, None, None, first, [1, 1, 192, 256, 64, 64]),
        (f16, None, None, first, [2, 1, 200, 300, 64, 64]),
        (bf16, None, Some(0), first, [1, 1, 450, 450, 64, 64]),
        (bf16, None, Some(-5), second, [2, 2, 150, 145, 128, 128]),
        (f16, Some(DType::Bool), None, second, [2, 1, 130, 390, 72, 128]),
        (bf16, Some(bf16), Some(100), first, [1, 1, 64, 128, 8, 24]),
        (bf16, None, Some(-140), first, [1, 1, 300, 140, 40, 88]),
        (f16, Some(f16), None, first, [1, 1, 67, 511, 128, 40]),
    ] {
        let lie = |heads: usize, lines: usize, size: usize| match order {
            HeadOrder::HeadsFirst => [1, heads, lines, size],
            HeadOrder::RowsFirst => [1, lines, heads, size],
        };
        let (q, k, v) = (lie(heads, rows, size), lie(key_heads, keys, size), lie(key_heads, keys, values));
        let shown = [1, 1, rows, keys];
        let mut operands: Vec<(DType, &[usize])> = vec![(dtype, &q), (dtype, &k), (dtype, &v)];
        operands.extend(mask.map(|mask| (mask, &shown[..])));
        let op = attention((heads as i64, key_heads as i64), causal, order);
        cases.push(sized(Op::Attention(Box::new(op.clone())), &operands));
        // And its gradients, of a result and what is above it.
        let result = lie(heads, rows, values);
        operands.splice(3..3, [(dtype, &result[..]), (dtype, &result[..])]);
        cases.push(sized(Op::AttentionGradient(Box::new(op)), &operands));
    }
    cases
}

/// Gradients of attention: a warp a row, and tiles with and without 16 bytes at a time, with ends, masks, shared
/// heads, rows without a key, and keys without a row.
pub(crate) fn attention_gradients() -> Vec<Case> {
    let (f32, f16, bf16) = (DType::F32, DType::F16, DType::Bf16);
    let mut cases = Vec::new();
    let mut case =
        |dtype: DType, mask: Option<DType>, op: Attention, [rows, keys, size, values]: [usize; 4]| {
            let lie = |heads: i64, rows: usize, size: usize| match op.orders[0] {
                HeadOrder::HeadsFirst => [1, heads as usize, rows, size],
                HeadOrder::RowsFirst => [1, rows, heads as usize, size],
            };
            let (q, k) = (lie(op.heads, rows, size), lie(op.key_heads, keys, size));
            let (v, out) = (lie(op.key_heads, keys, values), lie(op.heads, rows, values));
            let shown = [1, 1, rows, keys];
            let mut operands: Vec<(DType, &[usize])> =
                vec![(dtype, &q), (dtype, &k), (dtype, &v), (dtype, &out), (dtype, &out)];
            operands.extend(mask.map(|mask| (mask, &shown[..])));
            cases.push(sized(Op::AttentionGradient(Box::new(op)), &operands));
        };
    let (heads, rows) = (HeadOrder::HeadsFirst, HeadOrder::RowsFirst);
    case(f32, None, attention((2, 1), Some(2), heads), [9, 12, 5, 3]);
    // Tiles of f32, whole and with ends: a mask and shared heads, rows that meet no key.
    case(f32, Some(DType::Bool), attention((2, 1), None, rows), [33, 70, 24, 8]);
    case(f32, None, attention((1, 1), Some(30), heads), [140, 70, 48, 60]);
    case(f32, None, attention((2, 2), Some(-5), heads), [140, 40, 64, 64]);
    case(bf16, None, attention((2, 1), None, heads), [9, 12, 140, 3]);
    for dtype in [f16, bf16] {
        case(dtype, None, attention((2, 1), Some(3), rows), [67, 70, 24, 8]);
        case(dtype, None, attention((1, 1), None, heads), [70, 130, 64, 64]);
        case(dtype, None, attention((2, 2), Some(-5), heads), [70, 40, 11, 5]);
        case(dtype, Some(dtype), attention((2, 2), None, heads), [9, 13, 128, 24]);
        case(dtype, Some(DType::Bool), attention((2, 1), None, rows), [33, 13, 8, 120]);
    }
    let finite = Attention { fill: Real(-1e4), ..attention((2, 1), Some(0), heads) };
    case(bf16, Some(DType::Bool), finite, [12, 140, 16, 16]);
    cases
}

/// Updates of rows: of one column, of some, of more than a block has, several columns at once and one at a time, most of
/// them on a few rows. Many are sorted first: by digits of one row's number, of two and of three, rows with fewer than a part, with
/// just one, with many, more than a block sorts.
pub(crate) fn scatters() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, kind, [rows, columns, steps]) in [
        (DType::F32, ScatterKind::Add, [7, 1, 50]),
        (DType::F32, ScatterKind::Add, [5, 1028, 9]),
        (DType::Bf16, ScatterKind::Add, [1500, 24, 1100]),
        (DType::F16, ScatterKind::Max, [3, 9, 40]),
        (DType::I64, ScatterKind::Mul, [4, 6, 3]),
        (DType::F64, ScatterKind::Min, [4, 300, 30]),
        (DType::I8, ScatterKind::Add, [1, 32, 20]),
        (DType::F32, ScatterKind::Replace, [40, 3, 70]),
        (DType::F32, ScatterKind::Add, [3, 4, 0]),
        (DType::F32, ScatterKind::Add, [1, 4, 400]),
        (DType::F32, ScatterKind::Add, [200, 1028, 300]),
        (DType::F16, ScatterKind::Max, [300, 3, 257]),
        (DType::I64, ScatterKind::Add, [70_000, 2, 300]),
        (DType::F64, ScatterKind::Min, [40, 5, 4200]),
        (DType::I8, ScatterKind::Mul, [9, 32, 300]),
        (DType::I32, ScatterKind::Replace, [40, 1, 9000]),
    ] {
        let mut case = sized(
            Op::ScatterNd { kind },
            &[(dtype, &[rows, columns]), (DType::I64, &[steps, 1]), (dtype, &[steps, columns])],
        );
        let place = |step: usize| match step % 3 {
            0 => -1.0,
            1 => 0.0,
            _ => (step * 7 % rows) as f64,
        };
        case.operands[1].data = (0..steps).map(place).collect();
        cases.push(case);
    }
    cases
}

/// Products of no terms.
pub(crate) fn sums_of_nothing() -> Vec<Case> {
    let one = |right: bool, dtype: DType| {
        let y: &[usize] = if right { &[24, 0] } else { &[0, 24] };
        sized(product(false, right), &[(dtype, &[3, 0]), (dtype, y)])
    };
    vec![one(true, DType::F32), one(true, DType::Bf16), one(false, DType::F32), one(false, DType::F16)]
}

/// Convolutions straight from their images. Of few channels in halves: as networks begin, with strides that leave windows where no access begins, gaps, padding that
/// hides whole windows, one axis, and results of one or some blocks of channels.
pub(crate) fn from_images() -> Vec<Case> {
    let (f16, bf16) = (DType::F16, DType::Bf16);
    let window = |strides: [i64; 2], dilations: [i64; 2], pads: [i64; 2]| Window {
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        pads_before: vec![pads[0]; 2],
        pads_after: vec![pads[1]; 2],
    };
    let mut cases = Vec::new();
    for (dtype, window, [images, rows, columns, channels], [tall, wide, outer]) in [
        (bf16, window([2, 2], [1, 1], [3, 3]), [2, 21, 38, 3], [7, 7, 64]),
        (f16, window([1, 1], [1, 1], [1, 1]), [1, 9, 11, 3], [3, 3, 40]),
        (bf16, window([4, 1], [2, 3], [0, 5]), [1, 13, 10, 5], [2, 3, 20]),
        (f16, window([3, 4], [1, 1], [2, 0]), [3, 12, 9, 2], [5, 4, 72]),
        (bf16, window([2, 2], [1, 2], [1, 2]), [1, 8, 7, 16], [3, 2, 16]),
        (bf16, window([1, 8], [1, 1], [0, 3]), [1, 5, 40, 1], [2, 5, 32]),
        (bf16, window([1, 2], [3, 1], [4, 1]), [2, 6, 9, 12], [3, 5, 33]),
    ] {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let (x, w) = match layout {
                Layout::ChannelsFirst => ([images, channels, rows, columns], [outer, channels, tall, wide]),
                Layout::ChannelsLast => ([images, rows, columns, channels], [tall, wide, channels, outer]),
            };
            let op = Op::Conv(Box::new(Conv { layout, window: window.clone(), groups: 1 }));
            cases.push(sized(op, &[(dtype, &x), (dtype, &w), (dtype, &[outer])]));
        }
    }
    // Of f32 where there are enough of them: runs that rows end in, and that they do not; two parts of the channels.
    let f32 = DType::F32;
    for (window, [images, rows, columns, channels], [tall, wide, outer]) in [
        (window([1, 1], [1, 1], [1, 1]), [96, 4, 8, 11], [3, 3, 12]),
        (window([2, 2], [1, 1], [0, 2]), [100, 5, 9, 3], [3, 2, 36]),
        (window([1, 1], [2, 2], [2, 0]), [97, 6, 7, 2], [2, 3, 12]),
    ] {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let (x, w) = match layout {
                Layout::ChannelsFirst => ([images, channels, rows, columns], [outer, channels, tall, wide]),
                Layout::ChannelsLast => ([images, rows, columns, channels], [tall, wide, channels, outer]),
            };
            let op = Op::Conv(Box::new(Conv { layout, window: window.clone(), groups: 1 }));
            cases.push(sized(op, &[(f32, &x), (f32, &w), (f32, &[outer])]));
        }
    }
    let line = Window { strides: vec![2], dilations: vec![1], pads_before: vec![2], pads_after: vec![1] };
    let op = Conv { layout: Layout::ChannelsFirst, window: line, groups: 1 };
    cases.push(sized(Op::Conv(Box::new(op)), &[(bf16, &[3, 4, 50]), (bf16, &[24, 4, 5])]));
    cases
}

/// Products that Hopper's groups of threads make, too large to be run by anything else: of images with channels last, and of rows
/// by columns and by rows of the right operand.
pub(crate) fn products_by_groups() -> Vec<Case> {
    let (f16, bf16) = (DType::F16, DType::Bf16);
    let window = Window {
        strides: vec![1; 2],
        dilations: vec![1; 2],
        pads_before: vec![1; 2],
        pads_after: vec![1; 2],
    };
    let conv = Conv { layout: Layout::ChannelsLast, window, groups: 1 };
    vec![
        sized(Op::Conv(Box::new(conv)), &[(bf16, &[4, 48, 48, 64]), (bf16, &[3, 3, 64, 64])]),
        sized(product(false, false), &[(f16, &[6400, 256]), (f16, &[256, 256])]),
        sized(product(false, true), &[(bf16, &[6400, 264]), (bf16, &[136, 264])]),
    ]
}

/// Every form in which an operation of its own kernel is printed.
pub(crate) fn hero_cases() -> Vec<Case> {
    let (f32, f16, bf16) = (DType::F32, DType::F16, DType::Bf16);
    let softmax = |axis: u32| Op::Softmax { axis, log: false };
    let normalize = |axes: &[u32]| Op::Normalize {
        axes: axes.to_vec(),
        epsilon: Real(1e-5),
        center: true,
        moments: false,
    };
    let with_moments = |op: Op| match op {
        Op::Normalize { axes, epsilon, center, .. } => Op::Normalize { axes, epsilon, center, moments: true },
        other => other,
    };
    let centreless = |op: Op| match op {
        Op::Normalize { axes, epsilon, moments, .. } => {
            Op::Normalize { axes, epsilon, center: false, moments }
        }
        other => other,
    };
    let reduce = |kind: ReduceKind, axes: &[u32]| Op::Reduce { kind, axes: axes.to_vec(), keep: false };
    let argmax = |axis: u32| Op::ArgReduce { kind: ArgReduce::Max, axis, keep: false, last: true };
    let mut cases = vec![
        // Rows: of a warp, of blocks of each size, in registers and read again.
        sized(softmax(1), &[(f32, &[5, 33])]),
        sized(softmax(1), &[(f32, &[3, 1500])]),
        sized(softmax(1), &[(f16, &[2, 3001])]),
        sized(normalize(&[1]), &[(f32, &[2, 9000])]),
        sized(normalize(&[1]), &[(f32, &[1, 40_003])]),
        sized(normalize(&[1, 2]), &[(bf16, &[3, 20, 36])]),
        sized(argmax(1), &[(f32, &[2, 5000])]),
        sized(argmax(0), &[(f32, &[300, 37])]),
        // Columns.
        sized(reduce(ReduceKind::Sum, &[0]), &[(f32, &[700, 70])]),
        sized(reduce(ReduceKind::Mean, &[0, 2]), &[(f16, &[6, 7, 50])]),
        sized(softmax(1), &[(f32, &[2, 40, 35])]),
        sized(normalize(&[0]), &[(f32, &[90, 33])]),
        // Two stages: parts of rows and of columns, and parts that do not divide them.
        sized(reduce(ReduceKind::Sum, &[1]), &[(f32, &[2, 40_960])]),
        sized(reduce(ReduceKind::Max, &[0]), &[(f32, &[65_537])]),
        sized(reduce(ReduceKind::Mean, &[0]), &[(bf16, &[1024, 64])]),
        sized(reduce(ReduceKind::Sum, &[0, 2, 3]), &[(f16, &[100, 3, 16, 16])]),
        sized(reduce(ReduceKind::SumSquares, &[0, 1]), &[(bf16, &[260, 300])]),
        sized(reduce(ReduceKind::SumSquares, &[0]), &[(f32, &[4096, 33])]),
        // Three stages: elements follow from means and deviations, of rows and of columns, of parts as long and not.
        sized(normalize(&[0, 2]), &[(f32, &[32, 1, 2048])]),
        sized(normalize(&[0, 1]), &[(bf16, &[50, 48, 40])]),
        sized(with_moments(normalize(&[0])), &[(f32, &[4096, 32])]),
        sized(centreless(normalize(&[0, 2])), &[(f16, &[7, 3, 9363])]),
        // Neighbouring rows of a thread, where there are enough.
        sized(reduce(ReduceKind::Sum, &[0]), &[(bf16, &[4, 33_824])]),
        sized(argmax(1), &[(f32, &[1, 3, 16_900])]),
        // Wide rows in one pass: whole accesses, and rows that begin anywhere.
        sized(softmax(1), &[(f32, &[1, 40_960])]),
        sized(softmax(1), &[(bf16, &[2, 8193])]),
        // Transpositions of each type's size.
        sized(Op::Transpose { perm: vec![1, 0] }, &[(bf16, &[136, 72])]),
        sized(Op::Transpose { perm: vec![0, 2, 1] }, &[(f16, &[2, 64, 200])]),
        sized(Op::Transpose { perm: vec![1, 0] }, &[(DType::I8, &[70, 45])]),
        sized(Op::Transpose { perm: vec![2, 0, 1] }, &[(DType::F64, &[3, 40, 33])]),
        sized(Op::Transpose { perm: vec![0, 2, 1, 3] }, &[(f32, &[2, 10, 3, 16])]),
    ];
    for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
        for (m, n, k) in [(1, 70, 130), (8, 33, 65), (9, 10, 3), (70, 130, 50), (64, 64, 64)] {
            for dtype in [f32, f16, bf16, DType::I32] {
                let x: &[usize] = if left { &[k, m] } else { &[m, k] };
                let y: &[usize] = if right { &[n, k] } else { &[k, n] };
                cases.push(sized(product(left, right), &[(dtype, x), (dtype, y)]));
            }
        }
    }
    cases.push(sized(product(false, false), &[(f32, &[2, 3, 20, 12]), (f32, &[2, 1, 12, 20])]));
    cases.push(sized(product(false, true), &[(bf16, &[4, 20, 12]), (bf16, &[24, 12])]));
    // Few rows, sixteen bytes at a time, with ends.
    for (right, dtype) in [(true, f32), (true, bf16), (false, f32), (false, f16), (false, DType::F64)] {
        for (m, n, k) in [(1, 72, 136), (3, 40, 600), (8, 16, 24)] {
            let y: &[usize] = if right { &[2, n, k] } else { &[2, k, n] };
            cases.push(sized(product(false, right), &[(dtype, &[2, m, k]), (dtype, y)]));
        }
    }
    cases.push(sized(product(true, true), &[(bf16, &[136, 5]), (bf16, &[24, 136])]));
    cases.extend(sums_of_nothing());
    // Few rows of many terms, by as many threads as have some; and so many columns that blocks are wide.
    for (dtype, m, n, k) in [(f16, 1, 72, 1500), (f32, 3, 40, 600), (bf16, 1, 8456, 20)] {
        cases.push(sized(product(false, false), &[(dtype, &[m, k]), (dtype, &[k, n])]));
    }
    // Transposed convolutions, of which channels last are read eight at a time.
    for (layout, dtype, groups) in [
        (Layout::ChannelsFirst, f32, 1),
        (Layout::ChannelsLast, bf16, 1),
        (Layout::ChannelsFirst, f16, 2),
        (Layout::ChannelsLast, f32, 2),
    ] {
        let window = Window {
            strides: vec![2, 1],
            dilations: vec![1, 2],
            pads_before: vec![1, 0],
            pads_after: vec![0, 1],
        };
        let (x, w): (&[usize], &[usize]) = match layout {
            Layout::ChannelsFirst => (&[2, 16, 5, 6], &[16, 12, 3, 2]),
            Layout::ChannelsLast => (&[2, 5, 6, 16], &[3, 2, 12, 16]),
        };
        let op = ConvTranspose { layout, window, output_padding: vec![1, 0], groups };
        cases.push(sized(Op::ConvTranspose(Box::new(op)), &[(dtype, x), (dtype, w)]));
    }
    // Convolutions: of halves, whose operands are transposed first, in groups, with strides, gaps and padding; of single
    // elements, a product for each image.
    let gathered = Window {
        strides: vec![2, 1],
        dilations: vec![1, 2],
        pads_before: vec![1, 0],
        pads_after: vec![0, 2],
    };
    let single = Window {
        strides: vec![1; 2],
        dilations: vec![1; 2],
        pads_before: vec![0; 2],
        pads_after: vec![0; 2],
    };
    for (dtype, window, groups, x, w) in [
        (bf16, &gathered, 2, [2, 32, 7, 9], [64, 16, 3, 2]),
        (f16, &gathered, 1, [1, 24, 5, 12], [32, 24, 2, 3]),
        (f32, &single, 1, [3, 12, 6, 7], [9, 12, 1, 1]),
        (bf16, &single, 1, [2, 16, 8, 4], [40, 16, 1, 1]),
    ] {
        let op = Conv { layout: Layout::ChannelsFirst, window: window.clone(), groups };
        cases.push(sized(Op::Conv(Box::new(op)), &[(dtype, &x), (dtype, &w), (dtype, &[w[0]])]));
    }
    // The same with channels last, and of single elements the product of all positions.
    for (dtype, window, x, w) in [
        (bf16, &gathered, [2, 7, 9, 24], [3, 2, 24, 32]),
        (bf16, &single, [2, 5, 7, 16], [1, 1, 16, 40]),
        (f32, &single, [1, 3, 3, 12], [1, 1, 12, 9]),
    ] {
        let op = Conv { layout: Layout::ChannelsLast, window: window.clone(), groups: 1 };
        cases.push(sized(Op::Conv(Box::new(op)), &[(dtype, &x), (dtype, &w), (dtype, &[w[3]])]));
    }
    cases.extend(from_images());
    // Halves in larger tiles: 130 of 128, eight neighbours along k, along rows and columns, and one at a time.
    for (left, right, k) in [(false, true, 40), (true, false, 24), (false, true, 9)] {
        let x: &[usize] = if left { &[33, k, 136] } else { &[33, 136, k] };
        let y: &[usize] = if right { &[33, 136, k] } else { &[33, k, 136] };
        cases.push(sized(
            product(left, right),
            &[(if left { f16 } else { bf16 }, x), (if left { f16 } else { bf16 }, y)],
        ));
    }
    for (left, right) in [(false, false), (true, true)] {
        let x: &[usize] = if left { &[24, 18, 129] } else { &[24, 129, 18] };
        let y: &[usize] = if right { &[24, 129, 18] } else { &[24, 18, 129] };
        cases.push(sized(product(left, right), &[(f32, x), (f32, y)]));
    }
    // Attention: a warp a row; tiles with and without 16 bytes at a time, ends, masks and shared heads.
    let attend = |heads: i64, key_heads: i64, causal: Option<i64>, order: HeadOrder| {
        Op::Attention(Box::new(attention((heads, key_heads), causal, order)))
    };
    let (heads, rows) = (HeadOrder::HeadsFirst, HeadOrder::RowsFirst);
    let (q, k, v): (&[usize], &[usize], &[usize]) = (&[1, 4, 5, 20], &[1, 2, 70, 20], &[1, 2, 70, 40]);
    cases.push(sized(attend(4, 2, None, heads), &[(f32, q), (f32, k), (f32, v)]));
    cases.push(sized(attend(4, 2, Some(65), heads), &[(f16, q), (f16, k), (f16, v)]));
    for (dtype, causal) in [(f16, None), (bf16, Some(3))] {
        let (q, k, v): (&[usize], &[usize], &[usize]) = (&[1, 67, 2, 24], &[1, 70, 1, 24], &[1, 70, 1, 8]);
        cases.push(sized(attend(2, 1, causal, rows), &[(dtype, q), (dtype, k), (dtype, v)]));
    }
    let (q, k, v): (&[usize], &[usize], &[usize]) = (&[1, 2, 9, 11], &[1, 2, 13, 11], &[1, 2, 13, 5]);
    let mask: &[usize] = &[1, 1, 9, 13];
    cases.push(sized(attend(2, 2, None, heads), &[(bf16, q), (bf16, k), (bf16, v), (DType::Bool, mask)]));
    cases.push(sized(attend(2, 2, None, heads), &[(f16, q), (f16, k), (f16, v), (f16, mask)]));
    // Tiles of f32 with a mask, and with shared heads behind one another.
    cases.push(sized(attend(2, 2, None, heads), &[(f32, q), (f32, k), (f32, v), (DType::Bool, mask)]));
    let (q, k, v): (&[usize], &[usize], &[usize]) = (&[1, 67, 2, 24], &[1, 70, 1, 24], &[1, 70, 1, 8]);
    cases.push(sized(attend(2, 1, Some(1), rows), &[(f32, q), (f32, k), (f32, v)]));
    // Sixteen bytes of a key a lane: a warp a row, four warps and a block; causal rows without keys; two fragments a warp.
    for (dtype, causal, [batch, heads, rows, keys, size]) in [
        (bf16, Some(-2), [2, 3, 5, 40, 24]),
        (f32, None, [33, 4, 4, 64, 8]),
        (f32, Some(3), [2, 3, 33, 8, 12]),
        (bf16, None, [1, 2, 1, 300, 64]),
        (f16, Some(250), [1, 3, 2, 270, 16]),
        (DType::F64, None, [1, 2, 3, 70, 8]),
        (bf16, Some(0), [1, 132, 65, 24, 16]),
        // Tiles of f32: of 128 and of 64 rows, with ends, masked by position; and heads longer than 64.
        (f32, Some(2), [1, 132, 11, 9, 4]),
        (f32, Some(-3), [1, 2, 70, 67, 20]),
        (f32, None, [1, 1, 65, 40, 72]),
        // Many keys of few rows, in parts: all of them seen, not all, and none by the first row.
        (bf16, None, [1, 2, 1, 2304, 64]),
        (f32, Some(700), [2, 3, 2, 2053, 12]),
        (f16, Some(-1), [1, 1, 3, 2048, 8]),
    ] {
        let dims = |lines: usize| [batch, heads, lines, size];
        let [q, k] = [dims(rows), dims(keys)];
        let op = attend(heads as i64, heads as i64, causal, HeadOrder::HeadsFirst);
        cases.push(sized(op, &[(dtype, &q), (dtype, &k), (dtype, &k)]));
    }
    // Trees, whose nodes are counted in 32 bits.
    let [f32, i32] = [DType::F32, DType::I32];
    let nodes: [(DType, &[usize]); 5] =
        [(f32, &[70, 9]), (i32, &[5]), (i32, &[31]), (f32, &[31]), (i32, &[31])];
    cases.push(sized(Op::TreeLeaves { depth: 4 }, &nodes));
    // A slice that is written at a position, along each axis.
    for (axis, update) in [(0, [1, 5, 6]), (1, [4, 2, 6]), (2, [4, 5, 3])] {
        let operands: [(DType, &[usize]); 3] = [(bf16, &[4, 5, 6]), (DType::I64, &[]), (bf16, &update)];
        cases.push(sized(Op::UpdateSlice { axis }, &operands));
    }
    cases.extend(scatters());
    cases.extend(attention_gradients());
    cases
}
