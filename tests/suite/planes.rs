//! Depthwise convolutions, poolings and normalised rows of more elements than vectors and strips hold, against
//! the f64 reference.

use partition::unstable::ir::{Conv, DType, Layout, Op, Pool, PoolKind, Real, Window};

use crate::reference::Array;
use crate::run_ops::{Random, array, check};

fn list(random: &mut Random, low: i64, high: i64) -> Vec<i64> {
    (0..2).map(|_| random.range(low, high)).collect()
}

/// Sizes at which windows of these fit.
fn spatial(random: &mut Random, window: &Window, kernel: &[i64]) -> Vec<usize> {
    let least = |axis: usize| ((kernel[axis] - 1) * window.dilations[axis] + 1) as usize;
    let size = |axis: usize| {
        let more = *random.pick(&[3, 20, 50, 110]);
        random.size(least(axis), least(axis) + more)
    };
    (0..2).map(size).collect()
}

#[test]
fn depthwise_convolutions() {
    let mut random = Random::new(31);
    for _ in 0..80 {
        let kernel = list(&mut random, 1, 7);
        let window = Window {
            strides: list(&mut random, 1, 4),
            dilations: list(&mut random, 1, 3),
            pads_before: list(&mut random, 0, 4),
            pads_after: list(&mut random, 0, 4),
        };
        let spatial = spatial(&mut random, &window, &kernel);
        let dtype = *random.pick(&[DType::F32, DType::F32, DType::F64, DType::F16]);
        let (groups, outer) = (random.size(2, 5), random.size(1, 2));
        let dims = [random.size(1, 2), groups, spatial[0], spatial[1]];
        let x = array(&mut random, dtype, &dims);
        let dims = [groups * outer, 1, kernel[0] as usize, kernel[1] as usize];
        let weights = array(&mut random, dtype, &dims);
        // Sums of about the size of their terms.
        let factor = 1.0 / (kernel[0] * kernel[1]) as f64;
        let weights = Array { data: weights.data.iter().map(|v| v * factor).collect(), ..weights };
        let bias = array(&mut random, dtype, &[groups * outer]);
        let conv = Conv { layout: Layout::ChannelsFirst, window, groups: groups as i64 };
        check(&Op::Conv(Box::new(conv)), &[x, weights, bias]);
    }
}

#[test]
fn poolings() {
    let mut random = Random::new(32);
    for _ in 0..60 {
        let kernel = list(&mut random, 1, 5);
        let pads = |random: &mut Random| kernel.iter().map(|&k| random.range(0, k - 1)).collect::<Vec<_>>();
        let kind = *random.pick(PoolKind::ALL);
        let window = Window {
            strides: list(&mut random, 1, 4),
            dilations: if kind == PoolKind::Max { list(&mut random, 1, 2) } else { vec![1; 2] },
            pads_before: pads(&mut random),
            pads_after: pads(&mut random),
        };
        let spatial = spatial(&mut random, &window, &kernel);
        let dtype = *random.pick(&[DType::F32, DType::F32, DType::F64, DType::F16]);
        let layout = *random.pick(Layout::ALL);
        let dims = match layout {
            Layout::ChannelsFirst => [2, 3, spatial[0], spatial[1]],
            Layout::ChannelsLast => [2, spatial[0], spatial[1], 3],
        };
        let mut x = array(&mut random, dtype, &dims);
        // The reference's maximum passes over what is not a number.
        if kind != PoolKind::Max && random.flag() {
            let last = x.data.len() - 1;
            x.data[random.size(0, last)] = f64::NAN;
        }
        let extra_after = match kind {
            PoolKind::AverageWithPadding => {
                window.pads_after.iter().map(|&pad| random.range(0, pad)).collect()
            }
            _ => vec![0; 2],
        };
        check(&Op::Pool(Box::new(Pool { kind, layout, kernel, window, extra_after })), &[x]);
    }
}

long! {
    normalised_rows;
}

/// Rows far from zero, and rows whose first element is far from the others, or the first 128 are.
fn normalised_rows() {
    let mut random = Random::new(33);
    for size in [1, 2, 31, 32, 33, 127, 128, 129, 300, 700] {
        for dtype in [DType::F32, DType::F64] {
            for (center, far) in [(false, 0.0), (true, 0.0), (true, 64.0), (true, -4096.0)] {
                let mut x = array(&mut random, dtype, &[5, size]);
                // Multiples of 1/1024, which f32 holds beside any of these numbers.
                x.data.iter_mut().for_each(|v| *v = far + (*v * 1024.0).round() / 1024.0);
                x.data[size * 4] = 100.0;
                x.data[size * 3..][..size.min(128)].iter_mut().for_each(|v| *v += 1000.0);
                check(&Op::Normalize { axes: vec![1], epsilon: Real(1e-2), center, moments: false }, &[x]);
            }
        }
    }
}
