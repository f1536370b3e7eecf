//! Normalisation layers, and those that only scale and shift.

use serde_json::Value;

use super::config::{Config, Unsupported};
use super::init::initialiser;
use super::lower::Site;
use super::mask::Masked;
use crate::error::Result;
use crate::ir::{Binary, DType, Init, Op, Real, ReduceKind, Size, Statistic, StatisticKind, Unary, ValueId};

/// Normalisation by stored means and variances of each channel.
#[derive(Debug)]
pub(super) struct BatchNorm {
    axis: i64,
    epsilon: f64,
    gamma: Option<Init>,
    beta: Option<Init>,
    mean: Init,
    variance: Init,
    momentum: f64,
}

impl BatchNorm {
    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        if config.flag("renorm", false)? {
            unsupported.add(config.place(), "renorm");
        }
        let axis = match config.int_or_ints("axis")?.as_deref() {
            None => -1,
            Some([axis]) => *axis,
            Some(_) => {
                unsupported.add(config.place(), "normalisation over several axes");
                -1
            }
        };
        let gamma = initialiser(config, "gamma_initializer", Init::ones(), unsupported)?;
        let beta = initialiser(config, "beta_initializer", Init::zeros(), unsupported)?;
        Ok(Self {
            axis,
            epsilon: config.real_or("epsilon", 1e-3)?,
            momentum: config.real_or("momentum", 0.99)?,
            gamma: config.flag("scale", true)?.then_some(gamma),
            beta: config.flag("center", true)?.then_some(beta),
            mean: initialiser(config, "moving_mean_initializer", Init::zeros(), unsupported)?,
            variance: initialiser(config, "moving_variance_initializer", Init::ones(), unsupported)?,
        })
    }

    /// `x * scale + shift`, where `scale = gamma / sqrt(variance + epsilon)` and
    /// `shift = beta - mean * scale` are small vectors.
    /// Where `x` has a mask, the statistics of a batch are those of the steps that count.
    pub(super) fn lower(&self, site: &mut Site<'_>, x: Masked) -> Result<ValueId> {
        let policy = site.policy;
        if !policy.compute.is_half() {
            return self.lower_as(site, x);
        }
        // Keras normalises halves in f32.
        site.policy.compute = DType::F32;
        let value = site.convert(x.value, DType::F32)?;
        let y = self.lower_as(site, Masked { value, ..x });
        site.policy = policy;
        site.convert(y?, policy.compute)
    }

    fn lower_as(&self, site: &mut Site<'_>, x: Masked) -> Result<ValueId> {
        let x = x.mask.map_or(Ok(x.value), |mask| site.counted(x.value, mask))?;
        let axis = site.axis(x, self.axis)?;
        let channels = site.known(x, axis)?;
        let weight = |site: &mut Site<'_>, name: &str, init: &Option<Init>| {
            init.as_ref().map(|init| site.weight(name, &[channels], init)).transpose()
        };
        let gamma = weight(site, "gamma", &self.gamma)?;
        let beta = weight(site, "beta", &self.beta)?;
        let mean = site.weight("moving_mean", &[channels], &self.mean)?;
        let variance = site.weight("moving_variance", &[channels], &self.variance)?;
        let momentum = Real(self.momentum);
        site.statistic(mean, Statistic { kind: StatisticKind::Mean, momentum });
        site.statistic(variance, Statistic { kind: StatisticKind::Variance, momentum });
        let variance = site.binary_scalar(Binary::Add, variance, self.epsilon)?;
        let deviation = site.unary(Unary::Sqrt, variance)?;
        // `x * scale + shift`: both are of parameters alone, so that they are folded; training knows the pattern.
        let scale = match gamma {
            Some(gamma) => site.binary(Binary::Div, gamma, deviation)?,
            None => site.unary(Unary::Reciprocal, deviation)?,
        };
        let shift = site.binary(Binary::Mul, mean, scale)?;
        let shift = match beta {
            Some(beta) => site.binary(Binary::Sub, beta, shift)?,
            None => site.unary(Unary::Neg, shift)?,
        };
        let scale = along(site, scale, &[axis], site.rank(x))?;
        let shift = along(site, shift, &[axis], site.rank(x))?;
        let value = site.binary(Binary::Mul, x, scale)?;
        site.binary(Binary::Add, value, shift)
    }
}

/// Gives a tensor whose axes are `axes` of a tensor of this rank a shape that broadcasts with it.
fn along(site: &mut Site<'_>, value: ValueId, axes: &[usize], rank: usize) -> Result<ValueId> {
    let own = site.sizes(value);
    let Some(&first) = axes.first() else { return Ok(value) };
    let mut sizes = vec![Size::Known(1); rank - first];
    for (&axis, size) in axes.iter().zip(own) {
        sizes[axis - first] = size;
    }
    site.reshape(value, sizes)
}

/// Normalisation by the means and variances of each sample.
#[derive(Debug)]
pub(super) struct LayerNorm {
    axes: Vec<i64>,
    epsilon: f64,
    center: bool,
    /// Divided by the deviation, and not centred: what Keras calls rms_scaling.
    by_deviation: bool,
    scale_name: &'static str,
    gamma: Option<Init>,
    beta: Option<Init>,
}

impl LayerNorm {
    /// `rms` reads Keras' RMSNormalization, which neither centres nor shifts.
    pub(super) fn read(config: Config<'_>, rms: bool, unsupported: &mut Unsupported) -> Result<Self> {
        let gamma = initialiser(config, "gamma_initializer", Init::ones(), unsupported)?;
        let beta = initialiser(config, "beta_initializer", Init::zeros(), unsupported)?;
        let rms_scaling = config.flag("rms_scaling", false)?;
        let scale = rms || rms_scaling || config.flag("scale", true)?;
        Ok(Self {
            axes: config.int_or_ints("axis")?.unwrap_or_else(|| vec![-1]),
            epsilon: config.real_or("epsilon", if rms { 1e-6 } else { 1e-3 })?,
            center: !(rms || rms_scaling),
            by_deviation: rms_scaling,
            scale_name: if rms { "scale" } else { "gamma" },
            gamma: scale.then_some(gamma),
            beta: (!rms && !rms_scaling && config.flag("center", true)?).then_some(beta),
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let mut axes = self.axes.iter().map(|&axis| site.axis(x, axis)).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        axes.dedup();
        let dims = axes.iter().map(|&axis| site.known(x, axis)).collect::<Result<Vec<_>>>()?;
        let rank = site.rank(x);
        let normalize = Op::Normalize {
            axes: axes.iter().map(|&axis| axis as u32).collect(),
            epsilon: Real(self.epsilon),
            center: self.center,
            moments: false,
        };
        let mut value = match self.by_deviation {
            true => {
                let over: Vec<u32> = axes.iter().map(|&axis| axis as u32).collect();
                let (_, deviation) = deviation(site, x, &over, self.epsilon)?;
                site.binary(Binary::Div, x, deviation)?
            }
            false => site.apply(normalize, &[x])?,
        };
        if let Some(init) = &self.gamma {
            let gamma = site.weight(self.scale_name, &dims, init)?;
            let gamma = along(site, gamma, &axes, rank)?;
            value = site.binary(Binary::Mul, value, gamma)?;
        }
        if let Some(init) = &self.beta {
            let beta = site.weight("beta", &dims, init)?;
            let beta = along(site, beta, &axes, rank)?;
            value = site.binary(Binary::Add, value, beta)?;
        }
        Ok(value)
    }
}

/// Elements less their mean over some axes, and the root of their variance and a number.
pub(super) fn deviation(
    site: &mut Site<'_>,
    x: ValueId,
    over: &[u32],
    epsilon: f64,
) -> Result<(ValueId, ValueId)> {
    let mean = |site: &mut Site<'_>, x: ValueId| {
        site.apply(Op::Reduce { kind: ReduceKind::Mean, axes: over.to_vec(), keep: true }, &[x])
    };
    let middle = mean(site, x)?;
    let centred = site.binary(Binary::Sub, x, middle)?;
    let squares = site.binary(Binary::Mul, centred, centred)?;
    let variance = mean(site, squares)?;
    let variance = site.binary_scalar(Binary::Add, variance, epsilon)?;
    Ok((centred, site.unary(Unary::Sqrt, variance)?))
}

/// Normalisation by the mean and variance of each group of channels of each sample.
#[derive(Debug)]
pub(super) struct GroupNorm {
    /// None: a group for each channel.
    groups: Option<i64>,
    axis: i64,
    epsilon: f64,
    gamma: Option<Init>,
    beta: Option<Init>,
}

impl GroupNorm {
    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        let groups = match config.int("groups")?.unwrap_or(32) {
            -1 => None,
            groups if groups >= 1 => Some(groups),
            groups => return Err(config.fault("groups", format!("{groups} is neither -1 nor positive"))),
        };
        let gamma = initialiser(config, "gamma_initializer", Init::ones(), unsupported)?;
        let beta = initialiser(config, "beta_initializer", Init::zeros(), unsupported)?;
        Ok(Self {
            groups,
            axis: config.int("axis")?.unwrap_or(-1),
            epsilon: config.real_or("epsilon", 1e-3)?,
            gamma: config.flag("scale", true)?.then_some(gamma),
            beta: config.flag("center", true)?.then_some(beta),
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let (axis, rank, sizes) = (site.axis(x, self.axis)?, site.rank(x), site.sizes(x));
        let channels = site.known(x, axis)?;
        let groups = self.groups.unwrap_or(channels);
        if channels % groups != 0 || axis == 0 {
            return Err(site.error(&format!("{channels} channels cannot be divided into {groups} groups")));
        }
        let mut divided = sizes.clone();
        divided.splice(axis..=axis, [Size::Known(groups), Size::Known(channels / groups)]);
        // Groups are an axis of their own, which stays beside the batch.
        let value = site.reshape(x, divided)?;
        let normalize = Op::Normalize {
            axes: (1..=rank).filter(|&other| other != axis).map(|axis| axis as u32).collect(),
            epsilon: Real(self.epsilon),
            center: true,
            moments: false,
        };
        let value = site.apply(normalize, &[value])?;
        let mut value = site.reshape(value, sizes)?;
        for (name, init, binary) in [("gamma", &self.gamma, Binary::Mul), ("beta", &self.beta, Binary::Add)] {
            if let Some(init) = init {
                let weight = site.weight(name, &[channels], init)?;
                let weight = along(site, weight, &[axis], rank)?;
                value = site.binary(binary, value, weight)?;
            }
        }
        Ok(value)
    }
}

/// What Keras adds under the root when it normalises vectors.
const LEAST_SQUARE: f64 = 1e-12;

/// The vectors along these axes, each divided by its length.
pub(super) fn unit(site: &mut Site<'_>, x: ValueId, axes: &[i64]) -> Result<ValueId> {
    let axes = axes.iter().map(|&axis| Ok(site.axis(x, axis)? as u32)).collect::<Result<Vec<_>>>()?;
    let square = site.binary(Binary::Mul, x, x)?;
    let sum = site.apply(Op::Reduce { kind: ReduceKind::Sum, axes, keep: true }, &[square])?;
    let sum = site.binary_scalar(Binary::Max, sum, LEAST_SQUARE)?;
    let length = site.unary(Unary::Sqrt, sum)?;
    site.binary(Binary::Div, x, length)
}

/// Normalisation by a mean and a variance that were adapted to data and are stored as weights.
#[derive(Debug)]
pub(super) struct AdaptedNorm {
    /// Axes that have statistics of their own; none: one mean and one variance in all.
    axes: Vec<i64>,
    invert: bool,
}

/// Keras divides by no less than this.
const LEAST_DEVIATION: f64 = 1e-7;

impl AdaptedNorm {
    pub(super) fn read(config: Config<'_>) -> Result<Self> {
        // Absent is the last axis, null is none.
        let axes = match (config.int_or_ints("axis")?, config.has("axis")) {
            (Some(axes), _) => axes,
            (None, true) => Vec::new(),
            (None, false) => vec![-1],
        };
        Ok(Self { axes, invert: config.flag("invert", false)? })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let mut axes = self.axes.iter().map(|&axis| site.axis(x, axis)).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        let dims = axes.iter().map(|&axis| site.known(x, axis)).collect::<Result<Vec<_>>>()?;
        let rank = site.rank(x);
        let mean = site.fixed_weight("mean", &dims, &Init::zeros())?;
        let variance = site.fixed_weight("variance", &dims, &Init::ones())?;
        let (mean, variance) = (along(site, mean, &axes, rank)?, along(site, variance, &axes, rank)?);
        let deviation = site.unary(Unary::Sqrt, variance)?;
        let deviation = site.binary_scalar(Binary::Max, deviation, LEAST_DEVIATION)?;
        if self.invert {
            let value = site.binary(Binary::Mul, x, deviation)?;
            return site.binary(Binary::Add, value, mean);
        }
        let value = site.binary(Binary::Sub, x, mean)?;
        site.binary(Binary::Div, value, deviation)
    }
}

/// `x * scale + offset` by constants: one number each, or one for each element of an axis.
#[derive(Debug)]
pub(super) struct Affine {
    scale: Vec<f64>,
    offset: Vec<f64>,
    axis: i64,
}

impl Affine {
    pub(super) fn rescaling(config: Config<'_>) -> Result<Self> {
        let (scale, offset) = (numbers(config, "scale", 1.0)?, numbers(config, "offset", 0.0)?);
        Ok(Self { scale, offset, axis: -1 })
    }

    /// Normalisation by a mean and variance that the configuration holds.
    pub(super) fn normalization(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        let axes = config.int_or_ints("axis")?.unwrap_or_default();
        if config.get("mean").is_none() || config.get("variance").is_none() {
            unsupported.add(config.place(), "one of a mean and a variance in the configuration");
        }
        let mean = numbers(config, "mean", 0.0)?;
        let variance = numbers(config, "variance", 1.0)?;
        let deviation: Vec<f64> = variance.iter().map(|variance| variance.sqrt().max(1e-7)).collect();
        let count = mean.len().max(deviation.len());
        if axes.len() > 1 && count > 1 {
            unsupported.add(config.place(), "numbers for several axes in the configuration");
        }
        let pick = |values: &[f64], i: usize| values[i.min(values.len() - 1)];
        let is_inverse = config.flag("invert", false)?;
        let numbers = (0..count).map(|i| match (pick(&mean, i), pick(&deviation, i)) {
            (mean, deviation) if is_inverse => (deviation, mean),
            (mean, deviation) => (1.0 / deviation, -mean / deviation),
        });
        let (scale, offset) = numbers.unzip();
        Ok(Self { scale, offset, axis: axes.first().copied().unwrap_or(-1) })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let mut value = x;
        if self.scale != [1.0] {
            value = apply(site, Binary::Mul, value, &self.scale, self.axis)?;
        }
        if self.offset != [0.0] {
            value = apply(site, Binary::Add, value, &self.offset, self.axis)?;
        }
        Ok(value)
    }
}

fn apply(site: &mut Site<'_>, binary: Binary, x: ValueId, values: &[f64], axis: i64) -> Result<ValueId> {
    match values {
        [single] => site.binary_scalar(binary, x, *single),
        _ => {
            let vector = site.vector(values)?;
            let behind = site.rank(x) - 1 - site.axis(x, axis)?;
            let sizes = site.sizes(vector).into_iter().chain(vec![Size::Known(1); behind]).collect();
            let vector = site.reshape(vector, sizes)?;
            site.binary(binary, x, vector)
        }
    }
}

/// Numbers nested in lists, flattened; never empty.
fn numbers(config: Config<'_>, key: &str, default: f64) -> Result<Vec<f64>> {
    fn flatten(value: &Value, found: &mut Vec<f64>) -> bool {
        match value {
            Value::Array(items) => items.iter().all(|item| flatten(item, found)),
            value => value.as_f64().map(|number| found.push(number)).is_some(),
        }
    }
    let mut found = Vec::new();
    match config.get(key) {
        None => Ok(vec![default]),
        Some(value) if flatten(value, &mut found) && !found.is_empty() => Ok(found),
        Some(_) => Err(config.fault(key, "expected numbers")),
    }
}
