//! Operators that work along the axis of which only the first elements count: sums, extremes, weights, products, copies and
//! borders.

use super::super::super::lower::Ragged;
use super::super::super::node::At;
use super::super::{einsum, layout, reduce};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Type};

/// Puts what changes no result in the place of elements that do not count, where an operator works along their axis.
/// Reductions do so themselves.
pub(in super::super) fn hide_the_rest(at: &mut At<'_>) -> Result<()> {
    for i in 0..at.input_count() {
        let Some(of) = at.counted_input(i) else { continue };
        let Some(number) = neutral(at, i, of)? else { continue };
        let x = at.value(i)?;
        let counts = at.counting(x, of)?;
        let x = at.select_or(counts, x, number)?;
        let hidden = at.bound_ragged(x, Some(of));
        at.read_instead(i, hidden);
    }
    Ok(())
}

/// What changes no result of an operator along the axis; none where it works along another one, or is none of these.
fn neutral(at: &At<'_>, i: usize, of: Ragged) -> Result<Option<f64>> {
    let (low, high) = reduce::ends(at.ty(i)?.dtype);
    let is_along = |default: i64| Ok(i == 0 && at.axis(at.int_or("axis", default)?, at.rank(0)?)? == of.axis);
    let number = match at.op_type() {
        "Softmax" | "LogSoftmax" if at.opset >= 13 => is_along(-1)?.then_some(low),
        "ArgMax" => is_along(0)?.then_some(low),
        "ArgMin" => is_along(0)?.then_some(high),
        "CumSum" if i == 0 && at.flag("reverse", false)? => {
            (at.axis(at.integer(1, "axis")?, at.rank(0)?)? == of.axis).then_some(0.0)
        }
        // Targets that do not count are left out.
        "NegativeLogLikelihoodLoss" | "SoftmaxCrossEntropyLoss" if i == 1 && of.axis == 0 => {
            at.int("ignore_index")?.map(|ignored| ignored as f64)
        }
        "Einsum" => einsum::is_summed(at, i, of.axis)?.then_some(0.0),
        _ => matches!(product_axis(at, i, of)?, Some(ProductAxis::Summed)).then_some(0.0),
    };
    Ok(number)
}

/// What an axis of a product's operand is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProductAxis {
    /// One that both operands have, and the result: so many before its last.
    Batch(usize),
    /// The left operand's.
    Rows,
    /// The right one's.
    Columns,
    /// The one that is summed over.
    Summed,
}

/// None where the operator is no product, or the operand none of its factors.
fn product_axis(at: &At<'_>, i: usize, of: Ragged) -> Result<Option<ProductAxis>> {
    let is_left = i == 0;
    let outer = if is_left { ProductAxis::Rows } else { ProductAxis::Columns };
    let transposed = match at.op_type() {
        "MatMul" if i < 2 => false,
        "Gemm" | "FusedGemm" if i < 2 => at.flag(if is_left { "transA" } else { "transB" }, false)?,
        _ => return Ok(None),
    };
    let from_last = at.rank(i)? - 1 - of.axis;
    let is_vector = at.rank(i)? == 1;
    Ok(Some(match from_last {
        0 | 1 if is_vector || (from_last == 0) == (is_left != transposed) => ProductAxis::Summed,
        0 | 1 => outer,
        before => ProductAxis::Batch(before),
    }))
}

/// The axis of a product's result of which as many elements count as of its operands'.
pub(super) fn multiplied(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<usize>> {
    let Some(rank) = at.output_rank(0) else { return Ok(None) };
    let mut sides = [None; 2];
    for (i, side) in sides.iter_mut().enumerate() {
        if let Some(of) = inputs[i] {
            *side = product_axis(at, i, of)?;
        }
    }
    let is_right_a_vector = at.rank(1)? == 1;
    let axis = match sides {
        [Some(ProductAxis::Rows), None] => rank.checked_sub(if is_right_a_vector { 1 } else { 2 }),
        [None, Some(ProductAxis::Columns)] => rank.checked_sub(1),
        // Vectors among the operands have the result without its last axis.
        [Some(ProductAxis::Batch(before)), None] if is_right_a_vector => rank.checked_sub(before),
        [None, Some(ProductAxis::Batch(before))] if at.rank(0)? == 1 => rank.checked_sub(before),
        [Some(ProductAxis::Batch(before)), None] | [None, Some(ProductAxis::Batch(before))] => {
            rank.checked_sub(before + 1)
        }
        [Some(one), Some(other)] if one == other => match one {
            ProductAxis::Batch(before) => rank.checked_sub(before + 1),
            _ => None,
        },
        _ => None,
    };
    // What is added to it has as many rows, too, or one for all of them.
    let added = inputs.get(2).copied().flatten();
    let fits = |axis: usize| {
        added.is_none_or(|of| at.rank(2).is_ok_and(|own| of.axis + rank.saturating_sub(own) == axis))
    };
    Ok(axis.filter(|&axis| fits(axis)))
}

/// Whether the axis is gone from the results, which are then computed from the elements that count, and so all count: these
/// were left alone in [`hide_the_rest`].
pub(super) fn is_gone(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<bool> {
    let mut gone = Vec::new();
    for (i, of) in inputs.iter().enumerate() {
        if let Some(of) = of {
            gone.push(match at.op_type() {
                "ArgMax" | "ArgMin" => neutral(at, i, *of)?.is_some(),
                "Einsum" => einsum::is_summed(at, i, of.axis)?,
                _ => product_axis(at, i, *of)? == Some(ProductAxis::Summed),
            });
        }
    }
    // Of a product both operands have as many terms.
    let terms = if matches!(at.op_type(), "MatMul" | "Gemm" | "FusedGemm") { 2 } else { 1 };
    Ok(gone.len() >= terms && gone.into_iter().all(|gone| gone))
}

/// Whether a loss is one number, of samples of which only the first count.
pub(super) fn is_one_loss(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<bool> {
    let are_samples = matches!(inputs, [Some(x), Some(y), ..] if x.axis == 0 && y.axis == 0);
    let leaves_out = at.int("ignore_index")?.is_some() && !at.wants(1);
    Ok(are_samples && leaves_out && inputs[2..].iter().all(Option::is_none) && at.output_rank(0) == Some(0))
}

/// The axis of a result of attention, where the rows of the queries are counted: their keys may be the same ones, or all count.
/// None of these where only keys are counted, and none at all where something else is.
pub(super) fn attended(at: &At<'_>, inputs: &[Option<Ragged>]) -> Result<Option<Option<usize>>> {
    let rows = at.rank(0)?.saturating_sub(2);
    let are_rows = inputs.iter().take(3).flatten().all(|of| of.axis == rows);
    let are_others = inputs.iter().skip(3).any(Option::is_some);
    let [query, key, value, ..] = inputs else { return Ok(None) };
    let shows_more = (1..4).any(|output| at.wants(output));
    let is_fit = are_rows && !are_others && !shows_more && key.is_some() == value.is_some();
    // Rows in order meet the keys that stand before them, which count if they do.
    let is_ordered = key.is_none() || query.is_some() || !at.flag("is_causal", false)?;
    Ok((is_fit && is_ordered).then(|| query.map(|of| of.axis)))
}

/// Copies one behind the other: of those elements that count.
pub(super) fn tiled(at: &mut At<'_>, of: Ragged) -> Result<Option<Ragged>> {
    let repeats = at.integers(1, "repeats")?;
    let Some(&times) = repeats.get(of.axis) else { return Ok(None) };
    let (Some(y), true) = (at.output_value(0)?, times != 1) else {
        return Ok((times == 1).then_some(of));
    };
    let size = at.sizes_of(y)[of.axis].clone();
    let places = at.iota(layout::indices([size]), 0);
    let most = at.binary_scalar(Binary::Max, of.count, 1.0)?;
    let places = at.binary(Binary::Rem, places, most)?;
    let y = at.gather(y, places, of.axis)?;
    at.set(0, y);
    let count = at.binary_scalar(Binary::Mul, of.count, times as f64)?;
    Ok(Some(Ragged::along(of.axis, count)))
}

/// The border behind an axis begins where the elements that count end.
pub(super) fn padded(at: &mut At<'_>, of: Ragged) -> Result<Option<Ragged>> {
    let rank = at.rank(0)?;
    let pads = match at.ints("pads")? {
        Some(pads) => pads,
        None => at.integers(1, "pads")?,
    };
    let axes = if at.has(3) { at.integers(3, "axes")? } else { (0..rank as i64).collect() };
    let (mut before, mut behind) = (0, 0);
    for (place, &own) in axes.iter().enumerate() {
        if at.axis(own, rank)? == of.axis
            && let (Some(&one), Some(&other)) = (pads.get(place), pads.get(place + axes.len()))
        {
            (before, behind) = (one, other);
        }
    }
    if (before, behind) == (0, 0) {
        return Ok(Some(of));
    }
    let (Some(y), "constant") = (at.output_value(0)?, at.text("mode", "constant")?.as_str()) else {
        return Ok(None);
    };
    if before < 0 || behind < 0 {
        return Ok(None);
    }
    let end = at.binary_scalar(Binary::Add, of.count, before as f64)?;
    if behind > 0 {
        let number = match at.opset < 11 {
            true => at.float_or("value", 0.0)?,
            false if at.has(2) => at.reals(2, "value")?.first().copied().unwrap_or(0.0),
            false => 0.0,
        };
        let places = at.iota(Type::new(DType::I64, at.type_of(y).shape), of.axis);
        let inside = at.compare(Compare::Lt, places, end)?;
        let y = at.select_or(inside, y, number)?;
        at.set(0, y);
    }
    let count = at.binary_scalar(Binary::Add, end, behind as f64)?;
    Ok(Some(Ragged::along(of.axis, count)))
}
