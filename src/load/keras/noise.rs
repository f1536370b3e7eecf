//! Layers that disturb their input while the network trains.

use super::config::Config;
use super::lower::Site;
use crate::error::Result;
use crate::ir::{Noise, NoiseKind, ValueId};

/// A layer of noise.
#[derive(Debug)]
pub(super) struct Disturb {
    noise: Noise,
    shared: Shared,
}

/// Along which axes one draw stands for all elements.
#[derive(Debug)]
enum Shared {
    /// None.
    Nothing,
    /// Those of size 1 in the layer's `noise_shape`.
    Ones(Vec<Option<i64>>),
    /// All but the batch and the channels.
    Spatial { channels_first: bool },
}

impl Disturb {
    /// Error: a rate that the layer is not defined for.
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Self> {
        let kind = match class {
            "GaussianNoise" => NoiseKind::GaussianNoise,
            "GaussianDropout" => NoiseKind::GaussianDropout,
            "AlphaDropout" => NoiseKind::AlphaDropout,
            _ => NoiseKind::Dropout,
        };
        let key = if kind.is_probability() { "rate" } else { "stddev" };
        let rate = config.real(key)?.ok_or_else(|| config.missing(key))?;
        let noise =
            Noise::new(kind, rate).ok_or_else(|| config.fault(key, format!("{rate} is out of range")))?;
        let shared = match class.starts_with("Spatial") {
            true => Shared::Spatial { channels_first: config.text("data_format")? == Some("channels_first") },
            false => config.shape("noise_shape")?.map_or(Shared::Nothing, Shared::Ones),
        };
        Ok(Self { noise, shared })
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        let rank = site.rank(x);
        let axes = 0..rank;
        let is_shared = |&axis: &usize| match &self.shared {
            Shared::Nothing => false,
            Shared::Ones(sizes) => sizes.get(axis) == Some(&Some(1)),
            Shared::Spatial { channels_first } => {
                let channels = if *channels_first { 1 } else { rank - 1 };
                axis != 0 && axis != channels
            }
        };
        let shared = axes.filter(is_shared).map(|axis| axis as u32).collect();
        site.disturbed(x, Noise { shared, ..self.noise.clone() })
    }
}

/// The probability with which a layer drops within itself while it trains.
///
/// Error: it is none.
pub(super) fn dropout(config: Config<'_>) -> Result<f64> {
    // Keras 1 called that of recurrent layers by the matrix.
    let rate = config.real("dropout")?.or(config.real("dropout_W")?).unwrap_or(0.0);
    match (0.0..=1.0).contains(&rate) {
        true => Ok(rate),
        false => Err(config.fault("dropout", format!("{rate} is out of range"))),
    }
}
