//! Attributes that are left out where they have their default value. Printing and reading both take the default
//! from here. Three more follow from the result's type: `shape`, `sizes` of a slice, and `to`.

use super::super::{
    Direction, HeadOrder, Interpolation, Layout, PadMode, Real, ResizeCoordinates, ScatterKind, Type,
};

/// An attribute's name and its default; of a list, the default of each entry.
pub(super) struct Attribute<T> {
    pub(super) name: &'static str,
    pub(super) default: T,
}

const fn attribute<T>(name: &'static str, default: T) -> Attribute<T> {
    Attribute { name, default }
}

// Reductions, running sums, extremes.
pub(super) const KEEP: Attribute<bool> = attribute("keep", false);
pub(super) const LAST: Attribute<bool> = attribute("last", false);
pub(super) const EXCLUSIVE: Attribute<bool> = attribute("exclusive", false);
pub(super) const REVERSE: Attribute<bool> = attribute("reverse", false);
pub(super) const LARGEST: Attribute<bool> = attribute("largest", true);

// Normalisation. LocalResponseNorm's are those of ONNX.
pub(super) const LOG: Attribute<bool> = attribute("log", false);
pub(super) const CENTER: Attribute<bool> = attribute("center", true);
pub(super) const SCALED: Attribute<bool> = attribute("scaled", false);
pub(super) const ALPHA: Attribute<Real> = attribute("alpha", Real(0.0001));
pub(super) const BETA: Attribute<Real> = attribute("beta", Real(0.75));
pub(super) const BIAS: Attribute<Real> = attribute("bias", Real(1.0));

// Products, attention, recurrent layers. `key_heads` is `heads` by default.
pub(super) const TRANSPOSE_LEFT: Attribute<bool> = attribute("transpose_left", false);
pub(super) const TRANSPOSE_RIGHT: Attribute<bool> = attribute("transpose_right", false);
pub(super) const WIDE: Attribute<bool> = attribute("wide", false);
pub(super) const ROUNDS: Attribute<bool> = attribute("rounds", false);
pub(super) const TRANSPOSED: Attribute<bool> = attribute("transposed", false);
pub(super) const FIRST: Attribute<i64> = attribute("first", 0);
pub(super) const ORDERS: Attribute<HeadOrder> = attribute("orders", HeadOrder::HeadsFirst);
pub(super) const FILL: Attribute<Real> = attribute("fill", Real(f64::NEG_INFINITY));
pub(super) const ZEROS: Attribute<bool> = attribute("zeros", false);
pub(super) const DIRECTION: Attribute<Direction> = attribute("direction", Direction::Forward);

// Windows, one entry for each spatial axis.
pub(super) const LAYOUT: Attribute<Layout> = attribute("layout", Layout::ChannelsFirst);
pub(super) const STRIDES: Attribute<i64> = attribute("strides", 1);
pub(super) const DILATIONS: Attribute<i64> = attribute("dilations", 1);
pub(super) const PADS_BEFORE: Attribute<i64> = attribute("pads_before", 0);
pub(super) const PADS_AFTER: Attribute<i64> = attribute("pads_after", 0);
pub(super) const EXTRA_AFTER: Attribute<i64> = attribute("extra_after", 0);
pub(super) const OUTPUT_PADDING: Attribute<i64> = attribute("output_padding", 0);
pub(super) const GROUPS: Attribute<i64> = attribute("groups", 1);
pub(super) const INTERPOLATION: Attribute<Interpolation> = attribute("interpolation", Interpolation::Nearest);
pub(super) const COORDINATES: Attribute<ResizeCoordinates> =
    attribute("coordinates", ResizeCoordinates::HalfPixel);

// Slices, padding and indices, one entry for each axis where it is a list.
pub(super) const STARTS: Attribute<i64> = attribute("starts", 0);
pub(super) const STEPS: Attribute<i64> = attribute("steps", 1);
pub(super) const BEFORE: Attribute<i64> = attribute("before", 0);
pub(super) const AFTER: Attribute<i64> = attribute("after", 0);
pub(super) const MODE: Attribute<PadMode> = attribute("mode", PadMode::Constant);
pub(super) const VALUE: Attribute<Real> = attribute("value", Real(0.0));
pub(super) const SCATTER: Attribute<ScatterKind> = attribute("kind", ScatterKind::Replace);
pub(super) const BATCH_DIMS: Attribute<u32> = attribute("batch_dims", 0);

/// Number of spatial axes of a windowed operation's result: all but batch and channels.
pub(super) fn spatial_rank(result: &Type) -> usize {
    result.shape.rank().saturating_sub(2)
}
