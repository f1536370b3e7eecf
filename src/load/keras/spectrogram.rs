//! Spectrograms of signals `[batch, samples]`: windows of a signal as a convolution with cosines and sines, and their
//! sizes in bands that are evenly spaced in mel.

use super::config::{Config, Unsupported};
use super::conv::{Padding, layout};
use super::lower::Site;
use crate::error::Result;
use crate::ir::{
    Binary, Conv as ConvOp, DType, Init, Layout, Op, Pad, PadMode, Real, ReduceKind, Size, Unary, ValueId,
    Window,
};

/// Longer windows are not transformed by a table.
const MOST: i64 = 4096;

/// `MelSpectrogram`.
#[derive(Debug)]
pub(super) struct Mel {
    length: i64,
    stride: i64,
    /// As long as the transform: zeros around the window itself.
    window: Vec<f64>,
    bands: i64,
    rate: f64,
    edges: [f64; 2],
    exponent: f64,
    /// Least power, that of the reference, and how far below the largest it goes; none where it stays a power.
    decibels: Option<[f64; 3]>,
}

impl Mel {
    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        let length = config.positive("fft_length")?;
        let own = config.int("sequence_length")?.unwrap_or(length);
        let stride = config.positive("sequence_stride")?;
        let bands = config.positive("num_mel_bins")?;
        if length > MOST || bands > MOST || !(1..=length).contains(&own) {
            return Err(config
                .fault("fft_length", format!("{length} elements are too many, or fewer than of a window")));
        }
        let cosine = |offset: f64, share: f64| -> Vec<f64> {
            let at = |i: i64| offset - share * libm::cos(std::f64::consts::TAU * i as f64 / own as f64);
            (0..own).map(at).collect()
        };
        let window = match config.get("window").map(|window| window.as_str()) {
            None => vec![1.0; own as usize],
            Some(Some("hann")) => cosine(0.5, 0.5),
            Some(Some("hamming")) => cosine(0.54, 0.46),
            Some(other) => {
                unsupported.add(config.place(), format!("window {other:?}"));
                vec![1.0; own as usize]
            }
        };
        let before = ((length - own) / 2) as usize;
        let behind = (length - own) as usize - before;
        let window = [vec![0.0; before], window, vec![0.0; behind]].concat();
        let rate = config.real_or("sampling_rate", 16_000.0)?;
        let edges = [config.real_or("min_freq", 20.0)?, config.real("max_freq")?.unwrap_or(rate / 2.0)];
        let decibels = [
            config.real_or("min_power", 1e-10)?,
            config.real_or("ref_power", 1.0)?,
            config.real_or("top_db", 80.0)?,
        ];
        Ok(Self {
            length,
            stride,
            window,
            bands,
            rate,
            edges,
            exponent: config.real_or("mag_exp", 2.0)?,
            decibels: config.flag("power_to_db", true)?.then_some(decibels),
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        site.expect_rank(x, 2)?;
        let x = site.convert(x, DType::F32)?;
        let half = self.length / 2;
        let pad =
            Pad { before: vec![0, half], after: vec![0, half], mode: PadMode::Reflect, value: Real(0.0) };
        let x = site.apply(Op::Pad(Box::new(pad)), &[x])?;
        let sizes = site.sizes(x).into_iter().chain([Size::Known(1)]).collect();
        let x = site.reshape(x, sizes)?;
        let bins = half + 1;
        let parts = self.transform(site, x, bins)?;
        let squares = site.binary(Binary::Mul, parts, parts)?;
        let (real, imaginary) = (site.slice(squares, 2, 0, bins)?, site.slice(squares, 2, bins, bins)?);
        let mut power = site.binary(Binary::Add, real, imaginary)?;
        if self.exponent != 2.0 {
            power = site.binary_scalar(Binary::Pow, power, self.exponent / 2.0)?;
        }
        let filters = site.vector(&self.filters(bins))?;
        let filters = site.reshape(filters, vec![Size::Known(bins), Size::Known(self.bands)])?;
        let mut y = site.matmul(power, filters, false)?;
        if let Some([least, reference, range]) = self.decibels {
            let per_log = 10.0 / std::f64::consts::LN_10;
            let floor = site.binary_scalar(Binary::Max, y, least)?;
            let log = site.unary(Unary::Log, floor)?;
            let level = site.binary_scalar(Binary::Mul, log, per_log)?;
            let level = site.binary_scalar(Binary::Sub, level, per_log * reference.abs().max(least).ln())?;
            let axes = (0..site.rank(level) as u32).collect();
            let most = site.apply(Op::Reduce { kind: ReduceKind::Max, axes, keep: true }, &[level])?;
            let bottom = site.binary_scalar(Binary::Sub, most, range)?;
            y = site.binary(Binary::Max, level, bottom)?;
        }
        site.transpose(y, &[0, 2, 1])
    }

    /// Cosine and sine parts of each window, `[batch, windows, 2 bins]`.
    fn transform(&self, site: &mut Site<'_>, x: ValueId, bins: i64) -> Result<ValueId> {
        let n = self.length;
        let elements = n * 2 * bins;
        site.list(elements)?;
        let rows = (0..n).zip(&self.window).flat_map(|(i, &weight)| {
            // The angle is reduced as an integer, so that it loses no digits.
            let angle = move |k: i64| std::f64::consts::TAU * ((k * i) % n) as f64 / n as f64;
            let cosines = (0..bins).map(move |k| weight * libm::cos(angle(k)));
            cosines.chain((0..bins).map(move |k| -weight * libm::sin(angle(k))))
        });
        let table = site.vector_of(elements as usize, rows)?;
        let kernel = site.reshape(table, vec![Size::Known(n), Size::Known(1), Size::Known(2 * bins)])?;
        let window = Window {
            strides: vec![self.stride],
            dilations: vec![1],
            pads_before: vec![0],
            pads_after: vec![0],
        };
        let conv = ConvOp { layout: Layout::ChannelsLast, window, groups: 1 };
        site.apply(Op::Conv(Box::new(conv)), &[x, kernel])
    }

    /// Triangles over the bins of a transform, `[bins, bands]`, without the lowest bin (HTK's filter bank).
    fn filters(&self, bins: i64) -> Vec<f64> {
        let mel = |frequency: f64| 1127.0 * (1.0 + frequency / 700.0).ln();
        let [low, high] = self.edges.map(mel);
        let edge = |at: i64| low + (high - low) * at as f64 / (self.bands + 1) as f64;
        let mut filters = vec![0.0; (bins * self.bands) as usize];
        for bin in 1..bins {
            let place = mel(self.rate / 2.0 * bin as f64 / (bins - 1) as f64);
            for band in 0..self.bands {
                let [left, centre, right] = [edge(band), edge(band + 1), edge(band + 2)];
                let share = ((place - left) / (centre - left)).min((right - place) / (right - centre));
                filters[(bin * self.bands + band) as usize] = share.max(0.0);
            }
        }
        filters
    }
}

/// What an [`Stft`] gives of each window's real and imaginary parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Real,
    Imaginary,
    Angle,
    Both,
    Density,
    Magnitude,
    Log,
}

/// `STFTSpectrogram`, of the channels of `[batch, samples, channels]` one by one. Its tables are weights.
#[derive(Debug)]
pub(super) struct Stft {
    shown: Shown,
    length: i64,
    stride: i64,
    bins: i64,
    padding: Padding,
    /// Channels stay an axis, and do not stand side by side as bins.
    keeps_channels: bool,
    layout: Layout,
}

impl Stft {
    pub(super) fn read(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Self> {
        // The stored kernels were made of them.
        config.ignore(&["window", "scaling", "periodic"]);
        let shown = match config.text("mode")?.unwrap_or("log") {
            "real" => Shown::Real,
            "imag" => Shown::Imaginary,
            "angle" => Shown::Angle,
            "stft" => Shown::Both,
            "psd" => Shown::Density,
            "magnitude" => Shown::Magnitude,
            "log" => Shown::Log,
            other => return Err(config.fault("mode", format!("{other} is not known"))),
        };
        let length = config.int("frame_length")?.unwrap_or(256);
        let stride = config.int("frame_step")?.unwrap_or(length / 2);
        let least = u64::try_from(length).map_or(1, |length| length.min(MOST as u64).next_power_of_two());
        let transform = config.int("fft_length")?.unwrap_or(least as i64);
        if !(1..=MOST).contains(&length) || !(length..=MOST).contains(&transform) || stride < 1 {
            return Err(
                config.fault("frame_length", "does not fit frame_step and fft_length, or is too large")
            );
        }
        Ok(Self {
            shown,
            length,
            stride,
            bins: transform / 2 + 1,
            padding: Padding::read(config, unsupported)?,
            keeps_channels: config.flag("expand_dims", false)?,
            layout: layout(config)?,
        })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        site.expect_rank(x, 3)?;
        let x = match self.layout {
            Layout::ChannelsLast => site.transpose(x, &[0, 2, 1])?,
            Layout::ChannelsFirst => x,
        };
        let sizes = site.sizes(x);
        let folded = vec![site.product(&sizes[..2])?, sizes[2].clone(), Size::Known(1)];
        let signals = site.reshape(x, folded)?;
        let real = match self.shown {
            Shown::Imaginary => None,
            _ => Some(self.transform(site, signals, "real_kernel", &sizes)?),
        };
        let imaginary = match self.shown {
            Shown::Real => None,
            _ => Some(self.transform(site, signals, "imag_kernel", &sizes)?),
        };
        let y = match (real, imaginary) {
            (Some(real), Some(imaginary)) => self.of_both(site, real, imaginary)?,
            (Some(part), None) | (None, Some(part)) => part,
            (None, None) => return Err(site.error("has no mode")),
        };
        self.arranged(site, y)
    }

    /// One part of each window's transform, `[batch, channels, windows, bins]`.
    fn transform(&self, site: &mut Site<'_>, x: ValueId, kernel: &str, sizes: &[Size]) -> Result<ValueId> {
        let kernel = site.fixed_weight(kernel, &[self.length, 1, self.bins], &Init::zeros())?;
        let window =
            self.padding.window(site, x, Layout::ChannelsLast, &[self.length], &[self.stride], &[1])?;
        let conv = ConvOp { layout: Layout::ChannelsLast, window, groups: 1 };
        let y = site.apply(Op::Conv(Box::new(conv)), &[x, kernel])?;
        let windows = site.sizes(y)[1].clone();
        site.reshape(y, vec![sizes[0].clone(), sizes[1].clone(), windows, Size::Known(self.bins)])
    }

    fn of_both(&self, site: &mut Site<'_>, real: ValueId, imaginary: ValueId) -> Result<ValueId> {
        // Keras' epsilon.
        const LEAST: f64 = 1e-7;
        match self.shown {
            Shown::Both => return site.concat(3, &[real, imaginary]),
            Shown::Angle => return super::operation::angle(site, imaginary, real),
            _ => {}
        }
        let squares = [real, imaginary].map(|part| site.binary(Binary::Mul, part, part));
        let [real, imaginary] = squares;
        let power = site.binary(Binary::Add, real?, imaginary?)?;
        if self.shown == Shown::Density {
            // The bins between the first and the last stand for two frequencies.
            let twice: Vec<f64> =
                (0..self.bins).map(|bin| if bin == 0 || bin + 1 == self.bins { 1.0 } else { 2.0 }).collect();
            let twice = site.vector(&twice)?;
            return site.binary(Binary::Mul, power, twice);
        }
        let power = site.binary_scalar(Binary::Max, power, LEAST)?;
        let size = site.unary(Unary::Sqrt, power)?;
        if self.shown == Shown::Magnitude {
            return Ok(size);
        }
        let size = site.binary_scalar(Binary::Max, size, LEAST)?;
        site.unary(Unary::Log, size)
    }

    /// From `[batch, channels, windows, bins]` to what the layer gives.
    fn arranged(&self, site: &mut Site<'_>, y: ValueId) -> Result<ValueId> {
        let sizes = site.sizes(y);
        let side_by_side = site.product(&[sizes[1].clone(), sizes[3].clone()])?;
        match (self.layout, self.keeps_channels) {
            (Layout::ChannelsLast, true) => site.transpose(y, &[0, 2, 3, 1]),
            (Layout::ChannelsFirst, true) => Ok(y),
            (Layout::ChannelsLast, false) => {
                let y = site.transpose(y, &[0, 2, 1, 3])?;
                site.reshape(y, vec![sizes[0].clone(), sizes[2].clone(), side_by_side])
            }
            (Layout::ChannelsFirst, false) => {
                let y = site.transpose(y, &[0, 1, 3, 2])?;
                site.reshape(y, vec![sizes[0].clone(), side_by_side, sizes[2].clone()])
            }
        }
    }
}
