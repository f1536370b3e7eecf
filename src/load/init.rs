//! Fills parameters that have no data, as their initialisers say.
//!
//! The value of an element depends on the seed, the parameter's name and the element's position
//! alone: splitmix64 (Steele, Lea, Flood 2014) of a counter. Only IEEE basic operations and square
//! roots are used, so the bytes are the same on every machine.

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::ir::half::{f32_to_bf16, f32_to_f16};
use crate::ir::{DType, Distribution, Fan, Graph, Init, ParamId, Tensor};
use crate::random::{bits, mix};

/// The tensor that `init` gives a parameter of this name, type and sizes. Fans are those of
/// Keras: the last two sizes are inputs and outputs, and what stands before multiplies both.
///
/// O(elements); for [`Init::Orthogonal`] O(rows * columns * min(rows, columns)) with the last size
/// as columns and all others as rows.
///
/// Errors: sizes that overflow or do not fit into memory; an identity of another rank than 2.
pub fn fill(init: &Init, dims: &[u64], dtype: DType, seed: u64, name: &str) -> Result<Tensor> {
    let elements = count(dims, dtype)
        .ok_or_else(|| Error::model(format!("parameter {name}"), format!("sizes {dims:?} are too large")))?;
    let stream = Stream::new(seed, name);
    let written = match init {
        Init::Constant(value) => written(dtype, elements, |_| value.0),
        Init::Uniform { low, high } => {
            written(dtype, elements, |i| low.0 + stream.unit(i) * (high.0 - low.0))
        }
        Init::Normal { mean, deviation, truncated: true } => {
            written(dtype, elements, |i| mean.0 + deviation.0 * stream.truncated_normal(i))
        }
        Init::Normal { mean, deviation, truncated: false } => {
            written(dtype, elements, |i| mean.0 + deviation.0 * stream.normal(i))
        }
        Init::VarianceScaling { scale, fan, distribution } => {
            scaled(dtype, elements, &stream, scale.0 / fan_of(dims, *fan), *distribution)
        }
        Init::Orthogonal { gain } => orthogonal(dims, elements, &stream)
            .and_then(|values| written(dtype, elements, |i| gain.0 * values[i as usize])),
        Init::Identity { gain } => match dims {
            [_, columns] => {
                let step = columns + 1;
                written(dtype, elements, |i| if i % step == 0 { gain.0 } else { 0.0 })
            }
            _ => {
                return Err(Error::model(
                    format!("parameter {name}"),
                    format!("an identity of sizes {dims:?} (it needs two)"),
                ));
            }
        },
        Init::UnitForgetBias => {
            let quarter = (elements / 4).max(1);
            written(dtype, elements, |i| f64::from(u8::from(i / quarter == 1)))
        }
    };
    Tensor::new(dtype, dims.to_vec(), written.map_err(|error| error.within(&format!("parameter {name}")))?)
}

/// What a parameter's initialiser gives it under the name `name` of the whole: of a slice, its part of that.
///
/// Errors: those of [`fill`].
pub fn fill_param(graph: &Graph, id: ParamId, seed: u64, name: &str) -> Result<Tensor> {
    let param = graph.param(id);
    let ty = param.whole_type(graph);
    let dims: Vec<u64> = ty.shape.sizes().iter().map(|size| size.constant().unsigned_abs()).collect();
    param.own_part(graph, fill(&param.init, &dims, ty.dtype, seed, name)?)
}

/// Number of elements; none where the number of bytes overflows.
fn count(dims: &[u64], dtype: DType) -> Option<u64> {
    if dims.contains(&0) {
        return Some(0);
    }
    let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
    elements.checked_mul(dtype.size()).filter(|&bytes| bytes <= i64::MAX as u64)?;
    Some(elements)
}

fn scaled(
    dtype: DType,
    elements: u64,
    stream: &Stream,
    variance: f64,
    distribution: Distribution,
) -> Result<Vec<u8>> {
    /// Standard deviation of a standard normal cut at two deviations.
    const CUT: f64 = 0.879_625_661_034_239_8;
    match distribution {
        Distribution::Uniform => {
            let limit = (3.0 * variance).sqrt();
            written(dtype, elements, |i| (2.0 * stream.unit(i) - 1.0) * limit)
        }
        Distribution::Normal => {
            let deviation = variance.sqrt();
            written(dtype, elements, |i| deviation * stream.normal(i))
        }
        Distribution::TruncatedNormal => {
            let deviation = variance.sqrt() / CUT;
            written(dtype, elements, |i| deviation * stream.truncated_normal(i))
        }
    }
}

/// The number that divides a variance; at least 1.
fn fan_of(dims: &[u64], fan: Fan) -> f64 {
    let (inputs, outputs) = match dims {
        [] => (1.0, 1.0),
        [single] => (*single as f64, *single as f64),
        [receptive @ .., inputs, outputs] => {
            let field: f64 = receptive.iter().map(|&size| size as f64).product();
            (*inputs as f64 * field, *outputs as f64 * field)
        }
    };
    let fan = match fan {
        Fan::In => inputs,
        Fan::Out => outputs,
        Fan::Average => (inputs + outputs) / 2.0,
    };
    fan.max(1.0)
}

/// A matrix whose shorter side's vectors are orthonormal: the factor Q of a normal matrix, with
/// the signs of R's diagonal, so that it is uniformly distributed (Mezzadri 2007). Error: it does
/// not fit into memory.
fn orthogonal(dims: &[u64], elements: u64, stream: &Stream) -> Result<Vec<f64>> {
    let columns = dims.last().copied().unwrap_or(1).max(1);
    let rows = elements / columns;
    let (long, short) = (rows.max(columns) as usize, rows.min(columns) as usize);
    // Column-major, so that each vector is contiguous.
    let mut matrix = reserved(elements)?;
    let mut q = reserved(elements)?;
    let mut result = reserved(elements)?;
    matrix.extend((0..elements).map(|i| stream.normal(i)));
    let signs = factor(&mut matrix, long, short);
    q.resize(long * short, 0.0);
    expand(&mut q, &matrix, long, &signs);
    let (rows, columns) = (rows as usize, columns as usize);
    let transposed = rows < columns;
    result.extend((0..rows * columns).map(|i| {
        let (row, column) = (i / columns, i % columns);
        if transposed { q[row * long + column] } else { q[column * long + row] }
    }));
    Ok(result)
}

/// Room for this many numbers. Error: there is none.
fn reserved(elements: u64) -> Result<Vec<f64>> {
    let mut numbers = Vec::new();
    let length = usize::try_from(elements).unwrap_or(usize::MAX);
    numbers
        .try_reserve_exact(length)
        .map_err(|_| Error::run("", format!("{elements} numbers do not fit into memory")))?;
    Ok(numbers)
}

/// Householder factorisation in place: the reflectors (scaled to length sqrt 2) replace the matrix.
/// Gives the signs of R's diagonal.
fn factor(matrix: &mut [f64], long: usize, short: usize) -> Vec<f64> {
    let mut signs = vec![1.0; short];
    for k in 0..short {
        let (head, tail) = matrix.split_at_mut((k + 1) * long);
        let reflector = &mut head[k * long..];
        reflector[..k].fill(0.0);
        let norm = reflector.iter().map(|x| x * x).sum::<f64>().sqrt();
        let lead = reflector[k];
        // R's diagonal has the sign opposite to the leading element's.
        signs[k] = if lead >= 0.0 { -1.0 } else { 1.0 };
        reflector[k] = lead - signs[k] * norm;
        let length = reflector.iter().map(|x| x * x).sum::<f64>().sqrt();
        if length > 0.0 {
            let scale = std::f64::consts::SQRT_2 / length;
            reflector.iter_mut().for_each(|x| *x *= scale);
        }
        for column in tail.chunks_exact_mut(long) {
            reflect(column, reflector, k);
        }
    }
    signs
}

/// `column - reflector * (reflector . column)`, from row `first` on, where the reflector begins.
fn reflect(column: &mut [f64], reflector: &[f64], first: usize) {
    let dot: f64 = column[first..].iter().zip(&reflector[first..]).map(|(x, v)| x * v).sum();
    column[first..].iter_mut().zip(&reflector[first..]).for_each(|(x, v)| *x -= v * dot);
}

/// Fills `q`, which is zero, with the first columns of Q, each times the sign of R's diagonal.
fn expand(q: &mut [f64], reflectors: &[f64], long: usize, signs: &[f64]) {
    for (j, column) in q.chunks_exact_mut(long.max(1)).enumerate() {
        column[j] = signs[j];
        // Reflectors after the j-th leave the j-th unit vector as it is.
        for k in (0..=j).rev() {
            reflect(column, &reflectors[k * long..(k + 1) * long], k);
        }
    }
}

/// Random numbers by position.
struct Stream(u64);

impl Stream {
    fn new(seed: u64, name: &str) -> Self {
        Self(mix(seed ^ mix(xxh3_64(name.as_bytes()))))
    }

    fn bits(&self, position: u64) -> u64 {
        bits(self.0, position)
    }

    /// Uniform in the open interval from 0 to 1.
    fn unit(&self, position: u64) -> f64 {
        ((self.bits(position) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Standard normal.
    fn normal(&self, position: u64) -> f64 {
        quantile(self.unit(position))
    }

    /// Standard normal, truncated at two deviations.
    fn truncated_normal(&self, position: u64) -> f64 {
        /// Probability of less than minus two deviations.
        const BELOW: f64 = 0.022_750_131_948_179_21;
        quantile(BELOW + self.unit(position) * (1.0 - 2.0 * BELOW))
    }
}

/// The standard normal's quantile (Wichura, AS 241, PPND16), for `0 < p < 1`.
fn quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * ratio(r, &CENTRE);
    }
    let r = (-natural_log(p.min(1.0 - p))).sqrt();
    let value = if r <= 5.0 { ratio(r - 1.6, &MIDDLE) } else { ratio(r - 5.0, &TAIL) };
    if q < 0.0 { -value } else { value }
}

/// Numerator and denominator, lowest power first.
type Ratio = ([f64; 8], [f64; 8]);

fn ratio(r: f64, (numerator, denominator): &Ratio) -> f64 {
    let polynomial = |c: &[f64; 8]| c.iter().rev().fold(0.0, |sum, &c| sum * r + c);
    polynomial(numerator) / polynomial(denominator)
}

const CENTRE: Ratio = (
    [
        3.387_132_872_796_366_5,
        133.141_667_891_784_38,
        1_971.590_950_306_551_3,
        13_731.693_765_509_46,
        45_921.953_931_549_87,
        67_265.770_927_008_7,
        33_430.575_583_588_13,
        2_509.080_928_730_122_7,
    ],
    [
        1.0,
        42.313_330_701_600_91,
        687.187_007_492_057_9,
        5_394.196_021_424_751,
        21_213.794_301_586_597,
        39_307.895_800_092_71,
        28_729.085_735_721_943,
        5_226.495_278_852_854,
    ],
);
const MIDDLE: Ratio = (
    [
        1.423_437_110_749_683_5,
        4.630_337_846_156_545,
        5.769_497_221_460_691,
        3.647_848_324_763_204_5,
        1.270_458_252_452_368_4,
        0.241_780_725_177_450_6,
        0.022_723_844_989_269_184,
        0.000_774_545_014_278_341_4,
    ],
    [
        1.0,
        2.053_191_626_637_759,
        1.676_384_830_183_803_8,
        0.689_767_334_985_1,
        0.148_103_976_427_480_08,
        0.015_198_666_563_616_457,
        0.000_547_593_808_499_534_5,
        1.050_750_071_644_416_9e-9,
    ],
);
const TAIL: Ratio = (
    [
        6.657_904_643_501_103,
        5.463_784_911_164_114,
        1.784_826_539_917_291_3,
        0.296_560_571_828_504_87,
        0.026_532_189_526_576_124,
        0.001_242_660_947_388_078_4,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288_1e-7,
    ],
    [
        1.0,
        0.599_832_206_555_887_9,
        0.136_929_880_922_735_8,
        0.014_875_361_290_850_615,
        0.000_786_869_131_145_613_2,
        1.846_318_317_510_054_8e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ],
);

/// The natural logarithm of a normal positive number, by the series of `2 atanh((m - 1) / (m + 1))`
/// with `m` between sqrt(1/2) and sqrt(2). Relative error below 1e-15.
fn natural_log(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    // t is below 0.172, so 12 terms leave less than 1e-18.
    let series = (0..12).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    2.0 * t * series + exponent as f64 * std::f64::consts::LN_2
}

/// Fewer elements are not worth a thread.
const ELEMENTS_OF_A_THREAD: u64 = 1 << 17;

/// What `value` gives each position, as little-endian bytes of a type, on all cores. Floating-point types round to nearest;
/// integers too, within their range.
///
/// Error: they do not fit into memory.
fn written(dtype: DType, elements: u64, value: impl Fn(u64) -> f64 + Sync) -> Result<Vec<u8>> {
    let whole = |position| value(position).round();
    match dtype {
        DType::F32 => arrays(elements, |i| (value(i) as f32).to_le_bytes()),
        DType::F64 => arrays(elements, |i| value(i).to_le_bytes()),
        DType::F16 => arrays(elements, |i| f32_to_f16(value(i) as f32).to_le_bytes()),
        DType::Bf16 => arrays(elements, |i| f32_to_bf16(value(i) as f32).to_le_bytes()),
        DType::I8 => arrays(elements, |i| (whole(i) as i8).to_le_bytes()),
        DType::I16 => arrays(elements, |i| (whole(i) as i16).to_le_bytes()),
        DType::I32 => arrays(elements, |i| (whole(i) as i32).to_le_bytes()),
        DType::I64 => arrays(elements, |i| (whole(i) as i64).to_le_bytes()),
        DType::U8 => arrays(elements, |i| [whole(i) as u8]),
        DType::U16 => arrays(elements, |i| (whole(i) as u16).to_le_bytes()),
        DType::U32 => arrays(elements, |i| (whole(i) as u32).to_le_bytes()),
        DType::U64 => arrays(elements, |i| (whole(i) as u64).to_le_bytes()),
        DType::Bool => arrays(elements, |i| [u8::from(value(i) != 0.0)]),
    }
}

/// The bytes of each position, one after the other.
fn arrays<const N: usize>(elements: u64, bytes_of: impl Fn(u64) -> [u8; N] + Sync) -> Result<Vec<u8>> {
    let length = usize::try_from(elements).ok().and_then(|count| count.checked_mul(N)).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(length)
        .map_err(|_| Error::run("", format!("{length} bytes do not fit into memory")))?;
    bytes.resize(length, 0);
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let each = elements.div_ceil(threads).max(ELEMENTS_OF_A_THREAD);
    // A part of a vector in memory has a size that fits.
    on_threads(&mut bytes, (each as usize).saturating_mul(N), &|part: usize, own: &mut [u8]| {
        for (element, position) in own.chunks_exact_mut(N).zip(part as u64 * each..) {
            element.copy_from_slice(&bytes_of(position));
        }
    });
    Ok(bytes)
}

/// Fills each so many bytes on a thread. Not generic: a thread for each kind of array would be most of its code.
fn on_threads(bytes: &mut [u8], each: usize, fill: &(dyn Fn(usize, &mut [u8]) + Sync)) {
    if bytes.len() <= each {
        return fill(0, bytes);
    }
    std::thread::scope(|scope| {
        for (part, own) in bytes.chunks_mut(each).enumerate() {
            scope.spawn(move || fill(part, own));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Real;

    fn values(init: &Init, dims: &[u64]) -> Vec<f64> {
        fill(init, dims, DType::F32, 7, "w").unwrap().to_f32().unwrap().into_iter().map(f64::from).collect()
    }

    /// Mean, standard deviation, least and largest.
    fn moments(values: &[f64]) -> (f64, f64, f64, f64) {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / count;
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (mean, variance.sqrt(), least, largest)
    }

    #[test]
    fn quantiles_are_the_tabled_ones() {
        let cases = [
            (0.5, 0.0),
            (0.75, 0.674_489_750_196_081_7),
            (0.975, 1.959_963_984_540_054),
            (0.999, 3.090_232_306_167_813),
            (1e-10, -6.361_340_902_404_056),
            (1e-15, -7.941_345_326_170_998),
        ];
        for (p, expected) in cases {
            assert!((quantile(p) - expected).abs() < 1e-12, "{p}: {}", quantile(p));
        }
        for x in [1e-300f64, 1e-5, 0.3, 0.999, 1.0, 1.5, 12345.0] {
            assert!((natural_log(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0), "{x}");
        }
    }

    #[test]
    fn many_elements_are_what_one_thread_gives_each_position() {
        let elements = 3 * ELEMENTS_OF_A_THREAD + 5;
        let stream = Stream::new(3, "w");
        let all = written(DType::F32, elements, |i| stream.unit(i)).unwrap();
        let alone = (0..elements).flat_map(|i| (stream.unit(i) as f32).to_le_bytes());
        assert!(alone.eq(all));
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let dims = [300, 700];
        let (mean, deviation, least, largest) =
            moments(&values(&Init::Uniform { low: Real(-0.05), high: Real(0.05) }, &dims));
        assert!(mean.abs() < 3e-4 && (deviation - 0.1 / 12f64.sqrt()).abs() < 2e-4);
        assert!((-0.05..-0.0499).contains(&least) && largest > 0.0499 && largest <= 0.05);
        let normal = |truncated| Init::Normal { mean: Real(1.0), deviation: Real(2.0), truncated };
        let (mean, deviation, least, _) = moments(&values(&normal(false), &dims));
        assert!((mean - 1.0).abs() < 0.02 && (deviation - 2.0).abs() < 0.02 && least < -6.0);
        let (mean, deviation, least, largest) = moments(&values(&normal(true), &dims));
        assert!((mean - 1.0).abs() < 0.02 && (deviation - 2.0 * 0.879_625_66).abs() < 0.02);
        assert!(least >= -3.0 && largest <= 5.0);
    }

    #[test]
    fn scaled_variances_follow_the_fans() {
        // A kernel of 3 by 3: 30 inputs and 50 outputs, each times 9.
        let dims = [3, 3, 30, 50];
        for (fan, divisor) in [(Fan::In, 270.0), (Fan::Out, 450.0), (Fan::Average, 360.0)] {
            for distribution in [Distribution::Uniform, Distribution::Normal, Distribution::TruncatedNormal] {
                let init = Init::VarianceScaling { scale: Real(2.0), fan, distribution };
                let (mean, deviation, ..) = moments(&values(&init, &dims));
                let expected = (2.0f64 / divisor).sqrt();
                assert!(mean.abs() < 0.02 * expected, "{fan:?} {distribution:?}: mean {mean}");
                assert!((deviation / expected - 1.0).abs() < 0.03, "{fan:?} {distribution:?}: {deviation}");
            }
        }
        let (.., largest) = moments(&values(&Init::glorot_uniform(), &[100, 1000]));
        let limit = (6.0f64 / 1100.0).sqrt();
        assert!(largest <= limit && largest > 0.99 * limit);
    }

    #[test]
    fn orthogonal_matrices_are_orthonormal() {
        for dims in [vec![40, 12], vec![12, 40], vec![25, 25], vec![3, 3, 4, 10], vec![5, 1], vec![1, 1]] {
            let columns = *dims.last().unwrap() as usize;
            let flat = values(&Init::Orthogonal { gain: Real(1.0) }, &dims);
            let rows = flat.len() / columns;
            let at = |vector: usize, i: usize| {
                if rows >= columns { flat[i * columns + vector] } else { flat[vector * columns + i] }
            };
            for x in 0..rows.min(columns) {
                for y in 0..rows.min(columns) {
                    let dot: f64 = (0..rows.max(columns)).map(|i| at(x, i) * at(y, i)).sum();
                    let expected = f64::from(u8::from(x == y));
                    assert!((dot - expected).abs() < 1e-5, "{dims:?}: {x} . {y} = {dot}");
                }
            }
        }
    }

    #[test]
    fn other_initialisers_are_exact() {
        assert_eq!(values(&Init::Identity { gain: Real(2.0) }, &[2, 3]), [2.0, 0.0, 0.0, 0.0, 2.0, 0.0]);
        assert_eq!(values(&Init::UnitForgetBias, &[8]), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(values(&Init::ones(), &[2]), [1.0, 1.0]);
        assert!(fill(&Init::Identity { gain: Real(1.0) }, &[2], DType::F32, 0, "w").is_err());
        assert!(fill(&Init::zeros(), &[u64::MAX, 2], DType::F32, 0, "w").is_err());
        assert!(fill(&Init::ones(), &[1 << 60], DType::F32, 0, "w").is_err(), "does not fit into memory");
        assert_eq!(fill(&Init::ones(), &[0, 7], DType::F16, 0, "w").unwrap().bytes(), &[0u8; 0]);
        assert_eq!(fill(&Init::ones(), &[1], DType::F16, 0, "w").unwrap().bytes(), &[0x00, 0x3c]);
        assert_eq!(fill(&Init::ones(), &[1], DType::I64, 0, "w").unwrap().to_i64(), Some(vec![1]));
    }

    #[test]
    fn seed_and_name_decide() {
        let of = |seed, name| fill(&Init::glorot_uniform(), &[4, 4], DType::F32, seed, name).unwrap();
        assert_eq!(of(1, "a"), of(1, "a"));
        assert_ne!(of(1, "a"), of(2, "a"));
        assert_ne!(of(1, "a"), of(1, "b"));
        // Stored from one machine; the same on every other.
        let normal = Init::Normal { mean: Real(0.0), deviation: Real(1.0), truncated: false };
        let stored = fill(&normal, &[3], DType::F64, 42, "dense/kernel").unwrap();
        let bits: Vec<u64> =
            stored.bytes().chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
        assert_eq!(bits, [0xbff443a4c7ca882d, 0xbfad736425c6976b, 0xbfd414509d44f068]);
    }
}
