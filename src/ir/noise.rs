//! Layers that disturb a network while it trains, and the random bits that they draw.
//!
//! Inference leaves such a layer out, so loaders lower it to a reshape to the sizes that its input has
//! already, which the passes remove, and mark the source ([`Source::noise`](super::Source::noise));
//! training puts the disturbance in the reshape's place.

use super::names::names;
use super::{Graph, NodeId, Op, Real, SourceId, ValueId};
use crate::error::Result;
use crate::random::bits;

names! {
    /// What a layer does to its input while the network trains.
    NoiseKind {
        /// Each element is zero with this probability, or divided by its complement
        /// (Srivastava et al. 2014).
        Dropout = "dropout",
        /// A normal number of this deviation is added.
        GaussianNoise = "gaussian_noise",
        /// Times a normal number around 1 of deviation `sqrt(rate / (1 - rate))`.
        GaussianDropout = "gaussian_dropout",
        /// Each element is what SELU takes far from zero with this probability, and all are brought back
        /// to mean 0 and variance 1 (Klambauer et al. 2017).
        AlphaDropout = "alpha_dropout",
    }
}

impl NoiseKind {
    /// Whether the rate is a probability, from 0 to 1; else a deviation.
    pub const fn is_probability(self) -> bool {
        !matches!(self, Self::GaussianNoise)
    }

    /// The largest rate that the layer is defined for.
    pub const fn most(self) -> f64 {
        match self {
            Self::Dropout => 1.0,
            Self::GaussianDropout | Self::AlphaDropout => 1.0 - f64::EPSILON,
            Self::GaussianNoise => f64::MAX,
        }
    }
}

/// How a layer disturbs its input while the network trains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noise {
    /// What it does.
    pub kind: NoiseKind,
    /// How much: a probability or a deviation.
    pub rate: Real,
    /// Axes along which one draw stands for all elements, ascending.
    pub shared: Vec<u32>,
}

impl Noise {
    /// A draw for each element. None where the rate is not one that the layer is defined for.
    pub fn new(kind: NoiseKind, rate: f64) -> Option<Self> {
        let valid = rate >= 0.0 && rate <= kind.most();
        valid.then_some(Self { kind, rate: Real(rate), shared: Vec::new() })
    }
}

impl Graph {
    /// How training disturbs what a node hands on, where the node stands for that.
    pub(crate) fn disturbance(&self, node: NodeId) -> Option<&Noise> {
        let data = self.node(node);
        let noise = self.source(data.source).noise.as_ref()?;
        (matches!(data.op, Op::Reshape { .. }) && noise.rate.0 > 0.0).then_some(noise)
    }

    /// A value as a layer that disturbs it leaves it at inference: as it is. The source is marked.
    ///
    /// Errors: none but those of inference.
    pub(crate) fn disturbed(&mut self, x: ValueId, noise: Noise, source: SourceId) -> Result<ValueId> {
        self.source_mut(source).noise = Some(noise);
        let shape = self.ty(x).shape.clone();
        self.apply(Op::Reshape { shape }, &[x], source)
    }
}

/// The bits at a position of a stream: output `position` of splitmix64 begun with the stream's number
/// (Steele, Lea, Flood, Fast splittable pseudorandom number generators, 2014). Any position in O(1), so
/// who draws which of them changes nothing.
#[inline]
pub const fn random_bits(position: i64, stream: i64) -> i64 {
    bits(stream as u64, position as u64) as i64
}
