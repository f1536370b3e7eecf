//! Masks: which steps of a sequence count.
//!
//! As in Keras, a mask `[batch, time]` accompanies a tensor from the layer that makes it (`Embedding` with `mask_zero`,
//! `Masking`) through those that keep it to those that heed it: recurrent layers skip the steps that do not count,
//! attention does not see them, means leave them out. What a layer does with the masks of its inputs is that of
//! `compute_mask` of its class.

use super::activation::Activation;
use super::config::KerasVersion;
use super::layer::{Kind, Layer};
use super::lower::Site;
use super::merge::Merge;
use super::network::{Argument, CallOptions};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, ScatterKind, Shape, Size, Unary, ValueId};

/// A tensor and the mask that accompanies it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Masked {
    pub(super) value: ValueId,
    /// `[batch, time]` of bools: true where a step counts.
    pub(super) mask: Option<ValueId>,
}

impl Masked {
    pub(super) fn bare(value: ValueId) -> Self {
        Self { value, mask: None }
    }
}

/// The position of the argument whose mask a keyword hands over; none for other keywords. A list of masks has a
/// keyword for each: `mask[0]`, `mask[1]`.
fn masks_argument(keyword: &str) -> Option<usize> {
    match keyword {
        "mask" | "query_mask" => Some(0),
        "value_mask" => Some(1),
        "key_mask" => Some(2),
        _ => keyword.strip_prefix("mask[")?.strip_suffix(']')?.parse().ok(),
    }
}

/// The arguments with the masks that the call hands over, which take the place of those that accompany them.
pub(super) fn with_given(
    site: &mut Site<'_>,
    arguments: &[Argument<Masked>],
) -> Result<Vec<Argument<Masked>>> {
    let position = |argument: &Argument<Masked>| argument.keyword.as_deref().and_then(masks_argument);
    let is_mask = |argument: &&Argument<Masked>| position(argument).is_some();
    let mut kept: Vec<Argument<Masked>> =
        arguments.iter().filter(|argument| !is_mask(argument)).cloned().collect();
    for given in arguments.iter().filter(is_mask) {
        let mask = site.convert(given.tensor.value, DType::Bool)?;
        let at = position(given).and_then(|at| kept.get_mut(at));
        let Some(argument) = at else {
            return Err(site.error("is given a mask of an input that it is not given"));
        };
        argument.tensor.mask = Some(mask);
    }
    Ok(kept)
}

/// A softmax of what counts; zeros where nothing does. The mask broadcasts.
pub(super) fn softmax(site: &mut Site<'_>, softmax: &Activation, x: Masked) -> Result<ValueId> {
    let Some(mask) = x.mask else { return softmax.lower(site, x.value) };
    if site.rank(mask) > site.rank(x.value) {
        return Err(site.error("is given a mask of more axes than its input has"));
    }
    let hidden = if site.dtype(x.value) == DType::F16 { -3e4 } else { -1e9 };
    let hidden = site.scalar_like(hidden, x.value)?;
    let counted = site.apply(Op::Select, &[mask, x.value, hidden])?;
    let shares = softmax.lower(site, counted)?;
    let nothing = site.scalar_like(0.0, shares)?;
    site.apply(Op::Select, &[mask, shares, nothing])
}

/// The results of a layer with their masks.
pub(super) fn with_masks(
    site: &mut Site<'_>,
    layer: &Layer,
    arguments: &[Argument<Masked>],
    options: CallOptions,
    results: &[ValueId],
) -> Result<Vec<Masked>> {
    let mut masked: Vec<Masked> = results.iter().copied().map(Masked::bare).collect();
    let first = arguments.first().and_then(|argument| argument.tensor.mask);
    let mask = match &layer.kind {
        Kind::Embedding(embedding) if embedding.mask_zero && !options.reverse => {
            arguments.first().map(|argument| unequal(site, argument.tensor.value, 0.0)).transpose()?
        }
        Kind::Masking(value) => match arguments.first() {
            Some(argument) => Some(counts(site, argument.tensor.value, *value, false)?),
            None => None,
        },
        Kind::Merge(merge) => of_merged(site, merge, arguments)?,
        Kind::Rnn(rnn) if !rnn.sequences => None,
        Kind::StackedRnn(layers) if layers.last().is_none_or(|rnn| !rnn.sequences) => None,
        Kind::ConvLstm(layer) if !layer.sequences => None,
        Kind::Bidirectional(both) if !both.returns_sequences() => None,
        Kind::Bidirectional(both) if both.is_separate() => {
            masked.iter_mut().take(2).for_each(|result| result.mask = first);
            None
        }
        Kind::LayerNorm(_) if layer.class == "RMSNormalization" => None,
        Kind::Identity
        | Kind::Noise(_)
        | Kind::Dense(_)
        | Kind::Activation(_)
        | Kind::Prelu { .. }
        | Kind::LayerScale { .. }
        | Kind::BatchNorm(_)
        | Kind::LayerNorm(_)
        | Kind::GroupNorm(_)
        | Kind::UnitNorm(_)
        | Kind::AdaptedNorm(_)
        | Kind::Affine(_)
        | Kind::DotAttention(_)
        | Kind::Attention(_)
        | Kind::Rnn(_)
        | Kind::StackedRnn(_)
        | Kind::ConvLstm(_)
        | Kind::Bidirectional(_)
        | Kind::Spectral(_)
        | Kind::TimeDistributed(_) => first,
        Kind::Input(_)
        | Kind::Embedding(_)
        | Kind::Categories { .. }
        | Kind::Buckets(_)
        | Kind::Pipeline(_)
        | Kind::Mel(_)
        | Kind::Stft(_)
        | Kind::Einsum(_)
        | Kind::Conv(_)
        | Kind::Pool(_)
        | Kind::AdaptivePool(_)
        | Kind::GlobalPool(_)
        | Kind::Rearrange(_)
        | Kind::Operation(_)
        | Kind::Model(_)
        | Kind::Unknown => None,
    };
    if let (Some(result), Some(mask)) = (masked.first_mut(), mask) {
        result.mask = Some(mask);
    }
    Ok(masked)
}

/// Where elements differ from a number.
fn unequal(site: &mut Site<'_>, x: ValueId, value: f64) -> Result<ValueId> {
    let value = site.scalar_like(value, x)?;
    site.apply(Op::Compare(Compare::Ne), &[x, value])
}

/// Where any element along the last axis differs from a number.
fn counts(site: &mut Site<'_>, x: ValueId, value: f64, keep: bool) -> Result<ValueId> {
    let Some(last) = site.rank(x).checked_sub(1) else {
        return Err(site.error("expected an input with a batch axis"));
    };
    let differs = unequal(site, x, value)?;
    any(site, differs, last, keep)
}

/// Whether any along an axis is true.
fn any(site: &mut Site<'_>, x: ValueId, axis: usize, keep: bool) -> Result<ValueId> {
    let number = site.convert(x, DType::F32)?;
    let most = site.apply(Op::Reduce { kind: ReduceKind::Max, axes: vec![axis as u32], keep }, &[number])?;
    site.convert(most, DType::Bool)
}

/// `Masking`: steps whose elements all equal a number become 0.
pub(super) fn cleared(site: &mut Site<'_>, x: ValueId, value: f64) -> Result<ValueId> {
    let counts = counts(site, x, value, true)?;
    let zero = site.scalar_like(0.0, x)?;
    site.apply(Op::Select, &[counts, x, zero])
}

/// The mask of merged inputs.
fn of_merged(site: &mut Site<'_>, merge: &Merge, arguments: &[Argument<Masked>]) -> Result<Option<ValueId>> {
    let inputs: Vec<Masked> = arguments.iter().map(|argument| argument.tensor).collect();
    let masks: Vec<ValueId> = inputs.iter().filter_map(|input| input.mask).collect();
    let Some((&first, others)) = masks.split_first() else { return Ok(None) };
    match (merge, site.version()) {
        (Merge::Dot { .. } | Merge::Scaled(_), _) => Ok(None),
        (Merge::Concatenate { axis }, _) => of_concatenated(site, *axis, &inputs).map(Some),
        (Merge::Elementwise(_) | Merge::Average, KerasVersion::Three) => {
            if masks.len() < inputs.len() {
                return Ok(None);
            }
            others.iter().try_fold(first, |mask, &other| site.binary(Binary::Or, mask, other)).map(Some)
        }
        (Merge::Elementwise(_) | Merge::Average, KerasVersion::Two) => {
            others.iter().try_fold(first, |mask, &other| site.binary(Binary::And, mask, other)).map(Some)
        }
    }
}

/// Along the axis of time each step keeps its own; along another one any (Keras 2: every) input decides.
fn of_concatenated(site: &mut Site<'_>, axis: i64, inputs: &[Masked]) -> Result<ValueId> {
    let along = site.axis(inputs[0].value, axis)?;
    let mut masks = Vec::with_capacity(inputs.len());
    for input in inputs {
        masks.push(match input.mask {
            Some(mask) => mask,
            None => {
                let sizes = site.sizes(input.value).into_iter().take(2).collect();
                let ones = site.zeros(sizes)?;
                let ones = site.convert(ones, DType::Bool)?;
                site.unary(Unary::Not, ones)?
            }
        });
    }
    if along == 1 && site.rank(inputs[0].value) > 2 {
        return site.concat(1, &masks);
    }
    let binary = if site.version() == KerasVersion::Two { Binary::And } else { Binary::Or };
    let (first, others) = (masks[0], &masks[1..]);
    others.iter().try_fold(first, |mask, &other| site.binary(binary, mask, other))
}

/// The mean over the steps that count. `x` is `[batch, time, features]`.
pub(super) fn mean(site: &mut Site<'_>, x: ValueId, mask: ValueId, axis: u32, keep: bool) -> Result<ValueId> {
    let mut sizes = site.sizes(mask);
    sizes.insert(3 - axis as usize, Size::Known(1));
    let mask = site.reshape(mask, sizes)?;
    let zero = site.scalar_like(0.0, x)?;
    let kept = site.apply(Op::Select, &[mask, x, zero])?;
    let ones = site.convert(mask, site.dtype(x))?;
    let sum = Op::Reduce { kind: ReduceKind::Sum, axes: vec![axis], keep };
    let (total, count) = (site.apply(sum.clone(), &[kept])?, site.apply(sum, &[ones])?);
    site.binary(Binary::Div, total, count)
}

/// Masks of queries and keys as one of scores, `[batch, queries, keys]` that can be broadcast.
pub(super) fn of_scores(
    site: &mut Site<'_>,
    queries: Option<ValueId>,
    keys: &[Option<ValueId>],
) -> Result<Option<ValueId>> {
    let mut all = None;
    let sides = [(queries, 2)].into_iter().chain(keys.iter().map(|&mask| (mask, 1)));
    for (mask, at) in sides {
        let Some(mask) = mask else { continue };
        site.expect_rank(mask, 2)?;
        let mut sizes = site.sizes(mask);
        sizes.insert(at, Size::Known(1));
        let mask = site.reshape(mask, sizes)?;
        all = Some(match all {
            None => mask,
            Some(other) => site.binary(Binary::And, other, mask)?,
        });
    }
    Ok(all)
}

/// The steps of sequences that count, moved to the front of each in their order: what runs over them sees the steps
/// that do not count after all others, and what it then has to forget is behind what is read.
pub(super) struct Compacted {
    /// `[batch, time]`: which steps count.
    mask: ValueId,
    /// `[batch, time]`: how many steps up to this one count.
    upto: ValueId,
    /// `[batch, 1]`: how many count.
    total: ValueId,
    /// `[batch, time]`: the step that comes to this place.
    from: ValueId,
}

impl Compacted {
    pub(super) fn new(site: &mut Site<'_>, mask: ValueId) -> Result<Self> {
        site.expect_rank(mask, 2)?;
        let sizes = site.sizes(mask);
        let ones = site.convert(mask, DType::I64)?;
        let upto = site.apply(Op::CumSum { axis: 1, exclusive: false, reverse: false }, &[ones])?;
        let total = site.apply(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1], keep: true }, &[ones])?;
        let place = site.iota(&sizes, 1);
        // Steps that do not count come behind the others, in their order.
        let one = site.positions(&[1])?;
        let front = site.binary(Binary::Sub, upto, one)?;
        let behind = site.binary(Binary::Sub, place, upto)?;
        let behind = site.binary(Binary::Add, behind, total)?;
        let to = site.apply(Op::Select, &[mask, front, behind])?;
        let from =
            site.apply(Op::ScatterElements { axis: 1, kind: ScatterKind::Replace }, &[place, to, place])?;
        Ok(Self { mask, upto, total, from })
    }

    /// `[batch, time, features]` with the steps that count in front.
    pub(super) fn front(&self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        take(site, x, self.from)
    }

    /// `[batch, time, 1]`: 1 at places behind all that count.
    pub(super) fn behind(&self, site: &mut Site<'_>) -> Result<ValueId> {
        let mut sizes = site.sizes(self.from);
        let place = site.iota(&sizes, 1);
        let behind = site.apply(Op::Compare(Compare::Ge), &[place, self.total])?;
        let behind = site.computed(behind)?;
        sizes.push(Size::Known(1));
        site.reshape(behind, sizes)
    }

    /// What was computed of the steps in front, where they were; a step that does not count has what the last one
    /// before it has, or 0.
    pub(super) fn spread(&self, site: &mut Site<'_>, y: ValueId) -> Result<ValueId> {
        let one = site.positions(&[1])?;
        let zero = site.positions(&[0])?;
        let last = site.binary(Binary::Sub, self.upto, one)?;
        let last = site.binary(Binary::Max, last, zero)?;
        let y = take(site, y, last)?;
        let any = self.any(site, self.upto)?;
        let zero = site.scalar_like(0.0, y)?;
        site.apply(Op::Select, &[any, y, zero])
    }

    /// `[batch, time, features]` with 0 at steps that do not count.
    pub(super) fn zeroed(&self, site: &mut Site<'_>, y: ValueId) -> Result<ValueId> {
        let mut sizes = site.sizes(self.mask);
        sizes.push(Size::Known(1));
        let mask = site.reshape(self.mask, sizes)?;
        let zero = site.scalar_like(0.0, y)?;
        site.apply(Op::Select, &[mask, y, zero])
    }

    /// A state `[batch, units]` where any step counts, else the one before all of them.
    pub(super) fn state(&self, site: &mut Site<'_>, last: ValueId, before: ValueId) -> Result<ValueId> {
        let zero = site.positions(&[0])?;
        let any = site.apply(Op::Compare(Compare::Gt), &[self.total, zero])?;
        let before = site.reshape(before, site.sizes(last))?;
        site.apply(Op::Select, &[any, last, before])
    }

    /// Whether a count is more than 0, with an axis for features.
    fn any(&self, site: &mut Site<'_>, count: ValueId) -> Result<ValueId> {
        let zero = site.positions(&[0])?;
        let any = site.apply(Op::Compare(Compare::Gt), &[count, zero])?;
        let mut sizes = site.sizes(any);
        sizes.push(Size::Known(1));
        site.reshape(any, sizes)
    }
}

/// Steps of `[batch, time, features]` by their positions `[batch, time]`.
fn take(site: &mut Site<'_>, x: ValueId, positions: ValueId) -> Result<ValueId> {
    let mut sizes = site.sizes(positions);
    sizes.push(Size::Known(1));
    let positions = site.reshape(positions, sizes)?;
    let shape = Shape::new(site.sizes(x));
    let positions = site.apply(Op::Broadcast { shape }, &[positions])?;
    site.apply(Op::GatherElements { axis: 1 }, &[x, positions])
}
