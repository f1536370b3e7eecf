//! What an ATen operation costs, from the shapes of what it reads and makes.

use serde_json::Value;

use super::base;
use super::value::{Array, Made};
use crate::error::{Error, Result};
use crate::topology::Preset;
use crate::units::{Nanos, Rate};

/// Products of matrices, with the place among their tensors of the one whose last axis is summed over.
const PRODUCTS: [(&str, usize); 11] = [
    ("_scaled_mm", 0),
    ("addbmm", 1),
    ("addmm", 1),
    ("addmv", 1),
    ("baddbmm", 1),
    ("bmm", 0),
    ("dot", 0),
    ("linear", 0),
    ("matmul", 0),
    ("mm", 0),
    ("mv", 0),
];

/// Operations that read of their first tensor as much as they make.
const PICKS: [&str; 12] = [
    "as_strided",
    "chunk",
    "embedding",
    "gather",
    "index",
    "index_select",
    "narrow",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "take",
];

/// Arithmetic and bytes of an operation.
pub(super) struct Work {
    flops: u128,
    is_half: bool,
    moved: u128,
}

impl Work {
    /// Those of an operation. Error: arguments that it does not have.
    pub(super) fn of(target: &str, args: &[Value], read: &[&Array], made: &Made) -> Result<Self> {
        let name = base(target);
        let written: u128 = made.arrays.iter().map(|array| u128::from(array.bytes)).sum();
        // The first tensor of these is read where it is picked from.
        let whole = match (PICKS.contains(&name), read) {
            (true, [_, others @ ..]) => others,
            _ => read,
        };
        let picked = if whole.len() < read.len() { written } else { 0 };
        let loaded = picked + whole.iter().map(|array| u128::from(array.bytes)).sum::<u128>();
        let is_half = made.arrays.first().is_some_and(|array| array.is_half);
        let elements = whole.iter().copied().chain(&made.arrays).map(Array::elements).max().unwrap_or(0);
        let flops = match products(name, args, read, made) {
            Some(flops) => {
                flops.ok_or_else(|| Error::model("args", format!("{name} lacks an operand that it has")))?
            }
            None => u128::from(elements),
        };
        Ok(Self { flops, is_half, moved: loaded + written })
    }

    /// A launch, and the longer of arithmetic and memory at the peak rates.
    pub(super) fn time(&self, preset: &Preset) -> Nanos {
        let rate = if self.is_half { preset.half_flops } else { preset.flops };
        let at = |amount: u128, rate: Rate| {
            amount.saturating_mul(1_000_000_000).div_ceil(u128::from(rate.0.max(1)))
        };
        let longer = at(self.flops, Rate(rate.0)).max(at(self.moved, preset.bandwidth));
        Nanos(u64::try_from(u128::from(preset.launch.0).saturating_add(longer)).unwrap_or(u64::MAX))
    }
}

/// Operations of products, convolutions and attention, a multiplication and an addition being two; none for others.
/// Inner none: an operand is missing.
fn products(name: &str, args: &[Value], read: &[&Array], made: &Made) -> Option<Option<u128>> {
    if let Some(&(_, operand)) = PRODUCTS.iter().find(|(product, _)| *product == name) {
        return Some(product(read.get(operand).copied(), made));
    }
    match name {
        "convolution" => Some(convolution(args, read, made)),
        "convolution_backward" => Some(convolution_backward(args, read)),
        _ if name.contains("scaled_dot_product") => Some(attention(name, read)),
        _ => None,
    }
}

fn product(left: Option<&Array>, made: &Made) -> Option<u128> {
    let inner = left?.shape.last().copied().unwrap_or(1);
    Some(2 * u128::from(made.one()?.elements()) * u128::from(inner))
}

/// Each element of the result, or of the operand of a transposed one, meets a filter.
fn convolution(args: &[Value], read: &[&Array], made: &Made) -> Option<u128> {
    let is_transposed = args.get(6)?.as_bool()?;
    let over = if is_transposed { *read.first()? } else { made.one()? };
    Some(filtered(over, read.get(1)?))
}

/// The gradients of operand and filters that are asked for; each is as many operations as the convolution.
fn convolution_backward(args: &[Value], read: &[&Array]) -> Option<u128> {
    let is_transposed = args.get(7)?.as_bool()?;
    let asked = args.get(10)?.as_array()?;
    let over = read.get(usize::from(is_transposed))?;
    let gradients = asked.iter().take(2).filter(|asked| asked.as_bool() == Some(true)).count();
    Some(filtered(over, read.get(2)?) * gradients as u128)
}

fn filtered(over: &Array, filters: &Array) -> u128 {
    let each: u128 = filters.shape.iter().skip(1).map(|&size| u128::from(size)).product();
    u128::from(over.elements()).saturating_mul(each).saturating_mul(2)
}

/// Scores and their product with the values; backward, five products in place of these two.
fn attention(name: &str, read: &[&Array]) -> Option<u128> {
    let is_backward = name.contains("backward");
    let at = usize::from(is_backward);
    let (queries, keys, values) = (read.get(at)?, read.get(at + 1)?, read.get(at + 2)?);
    let of = |array: &Array, back: usize| {
        array.shape.len().checked_sub(back).map(|axis| u128::from(array.shape[axis]))
    };
    let rows = u128::from(queries.elements()) / of(queries, 1)?.max(1);
    let wide = of(queries, 1)? + of(values, 1)?;
    let both = 2u128.saturating_mul(rows).saturating_mul(of(keys, 2)?).saturating_mul(wide);
    Some(if is_backward { both.saturating_mul(5) / 2 } else { both })
}
