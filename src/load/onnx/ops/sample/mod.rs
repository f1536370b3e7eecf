//! Reads of images between their elements: each sample is a sum of elements times weights. Where the positions are
//! known while the model is read, elements and weights are constants, an axis at a time ([`resample`]); where they
//! are data, elements are read by their number ([`Points`]).

pub(super) mod deform;
pub(super) mod grid;
mod regions;
pub(super) mod resample;
pub(super) mod roi;
mod roi_weights;

use super::super::node::At;
use super::layout::indices;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Size, Unary, ValueId};

/// How an element outside an axis is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outside {
    /// As zero.
    Zeros,
    /// As the nearest one inside.
    Border,
    /// As its mirror image; the mirrors stand at the centres of the outer elements, or at their outer edges.
    Reflection { at_centres: bool },
}

/// How a value between elements is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    Nearest,
    Linear,
    /// A cubic convolution (Keys 1981) with `a = -0.75`.
    Cubic,
}

/// One element that a sample reads along one axis.
pub(super) struct Tap {
    /// Its position, within the axis (f32 or f64).
    position: ValueId,
    /// False where it counts as zero.
    inside: Option<ValueId>,
    /// None: one.
    weight: Option<ValueId>,
}

/// Points at which an image is read.
pub(super) struct Points {
    /// The elements of the image, `[images * elements, channels]`.
    pub(super) elements: ValueId,
    /// The number of the first element of each point's image; broadcasts to the points.
    pub(super) first: Option<ValueId>,
    /// Sizes of the image.
    pub(super) sizes: Vec<i64>,
    /// The position along each axis; each broadcasts to the points.
    pub(super) coordinates: Vec<ValueId>,
}

impl Points {
    /// The values there, `[points..., channels]`.
    pub(super) fn read(&self, at: &mut At<'_>, between: Between, outside: Outside) -> Result<ValueId> {
        let mut axes = Vec::with_capacity(self.sizes.len());
        for (&coordinate, &size) in self.coordinates.iter().zip(&self.sizes) {
            axes.push(taps(at, coordinate, size, between, outside)?);
        }
        let mut total = None;
        for choice in choices(&axes) {
            let value = self.product(at, &choice)?;
            total = Some(match total {
                Some(total) => at.add(total, value)?,
                None => value,
            });
        }
        total.ok_or_else(|| at.wrong("its image has no axes"))
    }

    /// One element of each axis, times its weights.
    fn product(&self, at: &mut At<'_>, choice: &[&Tap]) -> Result<ValueId> {
        let (mut number, mut weight, mut inside) = (None, None, None);
        for (tap, &size) in choice.iter().zip(&self.sizes) {
            let position = at.convert(tap.position, DType::I64)?;
            number = Some(match number {
                Some(number) => {
                    let number = at.binary_scalar(Binary::Mul, number, size as f64)?;
                    at.add(number, position)?
                }
                None => position,
            });
            weight = both(at, weight, tap.weight, Binary::Mul)?;
            inside = both(at, inside, tap.inside, Binary::And)?;
        }
        let Some(mut number) = number else { return Err(at.wrong("its image has no axes")) };
        if let Some(first) = self.first {
            number = at.add(number, first)?;
        }
        let mut value = at.gather(self.elements, number, 0)?;
        let channel = at.sizes_of(number).len();
        let dtype = at.graph().ty(value).dtype;
        if let Some(weight) = weight {
            let weight = at.convert(weight, dtype)?;
            let weight = at.with_axis(weight, channel)?;
            value = at.mul(value, weight)?;
        }
        if let Some(inside) = inside {
            let inside = at.with_axis(inside, at.sizes_of(inside).len())?;
            value = at.select_or(inside, value, 0.0)?;
        }
        Ok(value)
    }
}

/// Two values combined, where both are there.
pub(super) fn both(
    at: &mut At<'_>,
    left: Option<ValueId>,
    right: Option<ValueId>,
    binary: Binary,
) -> Result<Option<ValueId>> {
    match (left, right) {
        (Some(left), Some(right)) => at.binary(binary, left, right).map(Some),
        (one, None) | (None, one) => Ok(one),
    }
}

/// Every choice of one tap of each axis.
pub(super) fn choices(axes: &[Vec<Tap>]) -> Vec<Vec<&Tap>> {
    let mut all: Vec<Vec<&Tap>> = vec![Vec::new()];
    for taps in axes {
        all = all
            .iter()
            .flat_map(|chosen| taps.iter().map(move |tap| [&chosen[..], &[tap]].concat()))
            .collect();
    }
    all
}

/// The elements that samples at these positions read along an axis.
pub(super) fn taps(
    at: &mut At<'_>,
    coordinate: ValueId,
    size: i64,
    between: Between,
    outside: Outside,
) -> Result<Vec<Tap>> {
    match between {
        Between::Nearest => {
            let nearest = at.unary(Unary::Round, coordinate)?;
            Ok(vec![tap(at, nearest, None, size, outside)?])
        }
        Between::Linear => {
            let below = at.unary(Unary::Floor, coordinate)?;
            let share = at.sub(coordinate, below)?;
            let rest = at.unary(Unary::Neg, share)?;
            let rest = at.binary_scalar(Binary::Add, rest, 1.0)?;
            let above = at.binary_scalar(Binary::Add, below, 1.0)?;
            Ok(vec![tap(at, below, Some(rest), size, outside)?, tap(at, above, Some(share), size, outside)?])
        }
        Between::Cubic => {
            let below = at.unary(Unary::Floor, coordinate)?;
            let share = at.sub(coordinate, below)?;
            let mut taps = Vec::with_capacity(4);
            for step in [-1.0, 0.0, 1.0, 2.0] {
                let position = at.binary_scalar(Binary::Add, below, step)?;
                let weight = cubic_weight(at, share, step)?;
                taps.push(tap(at, position, Some(weight), size, outside)?);
            }
            Ok(taps)
        }
    }
}

/// The weight of the element `step` from the one below, as a polynomial of the share.
fn cubic_weight(at: &mut At<'_>, share: ValueId, step: f64) -> Result<ValueId> {
    const A: f64 = -0.75;
    // Of the distance d: (a+2)d^3 - (a+3)d^2 + 1 up to one, a d^3 - 5a d^2 + 8a d - 4a from there to two.
    let (distance, near) = match step {
        -1.0 => (at.binary_scalar(Binary::Add, share, 1.0)?, false),
        0.0 => (share, true),
        other => {
            let negative = at.unary(Unary::Neg, share)?;
            (at.binary_scalar(Binary::Add, negative, other)?, other == 1.0)
        }
    };
    let factors = if near { [A + 2.0, -(A + 3.0), 0.0, 1.0] } else { [A, -5.0 * A, 8.0 * A, -4.0 * A] };
    let mut sum = at.binary_scalar(Binary::Mul, distance, factors[0])?;
    sum = at.binary_scalar(Binary::Add, sum, factors[1])?;
    for factor in &factors[2..] {
        sum = at.mul(sum, distance)?;
        sum = at.binary_scalar(Binary::Add, sum, *factor)?;
    }
    Ok(sum)
}

fn tap(
    at: &mut At<'_>,
    position: ValueId,
    weight: Option<ValueId>,
    size: i64,
    outside: Outside,
) -> Result<Tap> {
    let last = (size - 1) as f64;
    let (position, inside) = match outside {
        Outside::Zeros => {
            let low = at.compare_scalar(Compare::Ge, position, 0.0)?;
            let high = at.compare_scalar(Compare::Le, position, last)?;
            (position, Some(at.and(low, high)?))
        }
        Outside::Border => (position, None),
        Outside::Reflection { at_centres } => (reflected(at, position, size, at_centres)?, None),
    };
    let position = clamped(at, position, last)?;
    Ok(Tap { position, inside, weight })
}

/// From zero to `last`; what is not a number is zero.
pub(super) fn clamped(at: &mut At<'_>, x: ValueId, last: f64) -> Result<ValueId> {
    let number = at.compare_scalar(Compare::Ge, x, 0.0)?;
    let x = at.select_or(number, x, 0.0)?;
    at.binary_scalar(Binary::Min, x, last.max(0.0))
}

/// A position mirrored into its axis, as often as it takes.
pub(super) fn reflected(at: &mut At<'_>, x: ValueId, size: i64, at_centres: bool) -> Result<ValueId> {
    let (low, span) = if at_centres { (0.0, (size - 1) as f64) } else { (-0.5, size as f64) };
    if span <= 0.0 {
        return at.binary_scalar(Binary::Mul, x, 0.0);
    }
    let beyond = at.binary_scalar(Binary::Sub, x, low)?;
    let beyond = at.unary(Unary::Abs, beyond)?;
    let beyond = at.binary_scalar(Binary::Rem, beyond, 2.0 * span)?;
    let back = at.unary(Unary::Neg, beyond)?;
    let back = at.binary_scalar(Binary::Add, back, 2.0 * span)?;
    let nearer = at.binary(Binary::Min, beyond, back)?;
    at.binary_scalar(Binary::Add, nearer, low)
}

/// `[images, channels, sizes...]` as `[images * elements, channels]`.
pub(super) fn elements_of(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let sizes = at.sizes_of(x);
    let x = at.moved_axis(x, 1, sizes.len() - 1)?;
    let rows = [&sizes[..1], &sizes[2..]].concat();
    let rows = at.product(&rows)?;
    at.reshape(x, [rows, sizes[1].clone()])
}

/// The number of the first element of each of `count` images, along the first of `rank` axes.
pub(super) fn first_elements(at: &mut At<'_>, count: &Size, sizes: &[i64], rank: usize) -> Result<ValueId> {
    let mut line = vec![Size::Known(1); rank];
    line[0] = count.clone();
    let images = at.iota(indices(line), 0);
    let elements: f64 = sizes.iter().map(|&size| size as f64).product();
    at.binary_scalar(Binary::Mul, images, elements)
}
