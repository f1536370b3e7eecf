//! Steps of optimizers, of `ai.onnx.preview.training`: for any number of tensors at once.

use super::super::node::At;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Unary, ValueId};

/// What stands before the tensors: the rate and the number of steps done.
struct Step {
    rate: ValueId,
    count: ValueId,
}

fn step(at: &mut At<'_>) -> Result<Step> {
    let (rate, count) = (at.value(0)?, at.value(1)?);
    Ok(Step { rate: at.reshape(rate, [])?, count: at.reshape(count, [])? })
}

/// The inputs behind the first two in groups of as many as there are tensors: `[of[k] for k in groups]` for each.
fn tensors(at: &mut At<'_>, groups: usize) -> Result<Vec<Vec<ValueId>>> {
    let count = (at.input_count() - 2) / groups;
    if count * groups + 2 != at.input_count() || count == 0 {
        return Err(at.wrong("its tensors are not in groups of one size"));
    }
    (0..count).map(|i| (0..groups).map(|group| at.value(2 + group * count + i)).collect()).collect()
}

/// The gradient, and of the tensor what draws it towards zero.
fn regularized(at: &mut At<'_>, x: ValueId, gradient: ValueId, by: f64) -> Result<ValueId> {
    if by == 0.0 {
        return Ok(gradient);
    }
    let own = at.binary_scalar(Binary::Mul, x, by)?;
    at.add(own, gradient)
}

/// Sets the results of all tensors: all first ones, then all second ones.
fn set_all(at: &mut At<'_>, results: &[Vec<ValueId>]) {
    for (i, results_of_one) in results.iter().enumerate() {
        for (group, &value) in results_of_one.iter().enumerate() {
            at.set(group * results.len() + i, value);
        }
    }
}

pub(super) fn adagrad(at: &mut At<'_>) -> Result<()> {
    let (decay, epsilon) = (at.float_or("decay_factor", 0.0)?, at.float_or("epsilon", 0.0)?);
    let norm = at.float_or("norm_coefficient", 0.0)?;
    let Step { rate, count } = step(at)?;
    let mut results = Vec::new();
    for of in tensors(at, 3)? {
        let [x, gradient, squares] = of[..] else { continue };
        let dtype = at.graph().ty(x).dtype;
        let count = at.convert(count, dtype)?;
        let slower = at.binary_scalar(Binary::Mul, count, decay)?;
        let slower = at.binary_scalar(Binary::Add, slower, 1.0)?;
        let rate = at.convert(rate, dtype)?;
        let rate = at.div(rate, slower)?;
        let gradient = regularized(at, x, gradient, norm)?;
        let square = at.mul(gradient, gradient)?;
        let squares = at.add(squares, square)?;
        let root = at.unary(Unary::Sqrt, squares)?;
        let root = at.binary_scalar(Binary::Add, root, epsilon)?;
        let change = at.mul(rate, gradient)?;
        let change = at.div(change, root)?;
        results.push(vec![at.sub(x, change)?, squares]);
    }
    set_all(at, &results);
    Ok(())
}

/// `share * old + (1 - share) * new`
fn moving(at: &mut At<'_>, old: ValueId, new: ValueId, share: f64) -> Result<ValueId> {
    let old = at.binary_scalar(Binary::Mul, old, share)?;
    let new = at.binary_scalar(Binary::Mul, new, 1.0 - share)?;
    at.add(old, new)
}

pub(super) fn adam(at: &mut At<'_>) -> Result<()> {
    let (alpha, beta) = (at.float_or("alpha", f64::from(0.9f32))?, at.float_or("beta", f64::from(0.999f32))?);
    let (epsilon, norm) = (at.float_or("epsilon", 0.0)?, at.float_or("norm_coefficient", 0.0)?);
    let norm_post = at.float_or("norm_coefficient_post", 0.0)?;
    let Step { rate, count } = step(at)?;
    let mut results = Vec::new();
    for of in tensors(at, 4)? {
        let [x, gradient, momentum, squares] = of[..] else { continue };
        let dtype = at.graph().ty(x).dtype;
        let gradient = regularized(at, x, gradient, norm)?;
        let momentum = moving(at, momentum, gradient, alpha)?;
        let square = at.mul(gradient, gradient)?;
        let squares = moving(at, squares, square, beta)?;
        let root = at.unary(Unary::Sqrt, squares)?;
        let root = at.binary_scalar(Binary::Add, root, epsilon)?;
        let rate = at.convert(rate, DType::F64)?;
        let rate = corrected(at, rate, count, [alpha, beta])?;
        let rate = at.convert(rate, dtype)?;
        let change = at.div(momentum, root)?;
        let change = at.mul(rate, change)?;
        let x = at.sub(x, change)?;
        results.push(vec![at.binary_scalar(Binary::Mul, x, 1.0 - norm_post)?, momentum, squares]);
    }
    set_all(at, &results);
    Ok(())
}

/// The rate times `sqrt(1 - beta^t) / (1 - alpha^t)`, after the first step.
fn corrected(at: &mut At<'_>, rate: ValueId, count: ValueId, [alpha, beta]: [f64; 2]) -> Result<ValueId> {
    let count = at.convert(count, DType::F64)?;
    let rest = |at: &mut At<'_>, base: f64| -> Result<ValueId> {
        let base = at.scalar(DType::F64, base)?;
        let power = at.binary(Binary::Pow, base, count)?;
        let power = at.unary(Unary::Neg, power)?;
        at.binary_scalar(Binary::Add, power, 1.0)
    };
    let (above, below) = (rest(at, beta)?, rest(at, alpha)?);
    let above = at.unary(Unary::Sqrt, above)?;
    let factor = at.div(above, below)?;
    let later = at.mul(rate, factor)?;
    let started = at.compare_scalar(Compare::Gt, count, 0.0)?;
    at.select(started, later, rate)
}

pub(super) fn momentum(at: &mut At<'_>) -> Result<()> {
    let (alpha, beta) = (at.float_or("alpha", 0.0)?, at.float_or("beta", 0.0)?);
    let norm = at.float_or("norm_coefficient", 0.0)?;
    let nesterov = match at.text("mode", "standard")?.as_str() {
        "standard" => false,
        "nesterov" => true,
        other => return Err(at.unsupported(format!("with mode {other:?}"))),
    };
    let Step { rate, count } = step(at)?;
    let started = at.compare_scalar(Compare::Gt, count, 0.0)?;
    let mut results = Vec::new();
    for of in tensors(at, 3)? {
        let [x, gradient, momentum] = of[..] else { continue };
        let dtype = at.graph().ty(x).dtype;
        let gradient = regularized(at, x, gradient, norm)?;
        let (later, first) = (at.scalar(dtype, beta)?, at.scalar(dtype, 1.0)?);
        let share = at.select(started, later, first)?;
        let own = at.mul(share, gradient)?;
        let momentum = at.binary_scalar(Binary::Mul, momentum, alpha)?;
        let momentum = at.add(momentum, own)?;
        let change = match nesterov {
            true => {
                let ahead = at.binary_scalar(Binary::Mul, momentum, alpha)?;
                at.add(gradient, ahead)?
            }
            false => momentum,
        };
        let rate = at.convert(rate, dtype)?;
        let change = at.mul(rate, change)?;
        results.push(vec![at.sub(x, change)?, momentum]);
    }
    set_all(at, &results);
    Ok(())
}
