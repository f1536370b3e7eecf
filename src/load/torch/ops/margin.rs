//! Losses of margins: what lies on the right side of one costs nothing.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use super::loss::left;
use super::norm::row_norm;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "triplet_margin_loss" => triplets,
        "cosine_embedding_loss" => cosines,
        "hinge_embedding_loss" => hinges,
        "margin_ranking_loss" => ranks,
        "soft_margin_loss" => soft,
        "multi_margin_loss" => of_one_class,
        "multilabel_margin_loss" | "multilabel_margin_loss_forward" => of_several_classes,
        _ => return None,
    })
}

/// What exceeds 0.
fn positive(call: &mut Call<'_, '_>, x: &str, dtype: DType) -> String {
    let zero = call.scalar(dtype, 0.0);
    call.plain("Max", &[x, &zero])
}

/// Sums along axes that are not kept.
fn sum(call: &mut Call<'_, '_>, x: &str, axes: &[i64]) -> String {
    let axes = call.integers(axes);
    call.op("ReduceSum", &[x, &axes], &[("keepdims", Attribute::Int(0))])
}

/// A row is to be nearer to what is like it than to what is not.
fn triplets(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let [anchor, like, unlike] = ["anchor", "positive", "negative"].map(|name| call.operand(name, dtype));
    let (anchor, like, unlike) = (anchor?, like?, unlike?);
    let near = distance(call, &anchor, &like, dtype)?;
    let mut far = distance(call, &anchor, &unlike, dtype)?;
    if call.flag("swap", false)? {
        let other = distance(call, &like, &unlike, dtype)?;
        far = call.plain("Min", &[&far, &other]);
    }
    let margin = call.operand_or("margin", dtype, 1.0)?;
    let apart = call.plain("Sub", &[&near, &far]);
    let apart = call.plain("Add", &[&apart, &margin]);
    let each = positive(call, &apart, dtype);
    left(call, each)
}

fn distance(call: &mut Call<'_, '_>, x: &str, y: &str, dtype: DType) -> Result<String> {
    let (order, little) = (call.float("p", 2.0)?, call.operand_or("eps", dtype, 1e-6)?);
    let apart = call.plain("Sub", &[x, y]);
    let apart = call.plain("Add", &[&apart, &little]);
    row_norm(call, &apart, order, dtype, false)
}

/// Pairs of rows: 1 for those that are to point the same way, -1 for others.
fn cosines(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y, kind) =
        (call.operand("input1", dtype)?, call.operand("input2", dtype)?, call.tensor("target")?);
    let axis = call.rank("target")?;
    // PyTorch's own addition, so that nothing is divided by 0.
    let little = call.scalar(dtype, 1e-12);
    let [product, own, other] = [[&x, &y], [&x, &x], [&y, &y]].map(|[left, right]| {
        let product = call.plain("Mul", &[left, right]);
        sum(call, &product, &[axis])
    });
    let [own, other] = [own, other].map(|square| call.plain("Add", &[&square, &little]));
    let squares = call.plain("Mul", &[&own, &other]);
    let length = call.plain("Sqrt", &[&squares]);
    let cosine = call.plain("Div", &[&product, &length]);
    let (one, margin) = (call.scalar(dtype, 1.0), call.operand_or("margin", dtype, 0.0)?);
    let like = call.plain("Sub", &[&one, &cosine]);
    let beyond = call.plain("Sub", &[&cosine, &margin]);
    let unlike = positive(call, &beyond, dtype);
    let (is_like, is_unlike) = (targets(call, &kind, 1.0)?, targets(call, &kind, -1.0)?);
    let zero = call.scalar(dtype, 0.0);
    let like = call.plain("Where", &[&is_like, &like, &zero]);
    let unlike = call.plain("Where", &[&is_unlike, &unlike, &zero]);
    let each = call.plain("Add", &[&like, &unlike]);
    left(call, each)
}

/// Where the target is a number.
fn targets(call: &mut Call<'_, '_>, target: &str, number: f64) -> Result<String> {
    let number = call.scalar(call.dtype("target")?, number);
    Ok(call.plain("Equal", &[target, &number]))
}

/// Distances: as they are for what is alike (1), up to a margin for what is not (-1); both for other targets.
fn hinges(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, kind, margin) =
        (call.operand("self", dtype)?, call.tensor("target")?, call.operand_or("margin", dtype, 1.0)?);
    let short = call.plain("Sub", &[&margin, &x]);
    let short = positive(call, &short, dtype);
    let (is_like, is_unlike) = (targets(call, &kind, 1.0)?, targets(call, &kind, -1.0)?);
    let zero = call.scalar(dtype, 0.0);
    let like = call.plain("Where", &[&is_unlike, &zero, &x]);
    let unlike = call.plain("Where", &[&is_like, &zero, &short]);
    let each = call.plain("Add", &[&like, &unlike]);
    left(call, each)
}

/// The first is to rank above the second by a margin (1), or below it (-1).
fn ranks(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let [x, y, kind] = ["input1", "input2", "target"].map(|name| call.operand(name, dtype));
    let margin = call.operand_or("margin", dtype, 0.0)?;
    let apart = call.plain("Sub", &[&x?, &y?]);
    let apart = call.plain("Mul", &[&kind?, &apart]);
    let short = call.plain("Sub", &[&margin, &apart]);
    let each = positive(call, &short, dtype);
    left(call, each)
}

/// `log(1 + exp(-y x))`
fn soft(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("target", dtype)?);
    let product = call.plain("Mul", &[&x, &y]);
    let opposite = call.plain("Neg", &[&product]);
    let each = call.plain("Softplus", &[&opposite]);
    left(call, each)
}

/// How many classes there are.
fn classes(call: &Call<'_, '_>) -> Result<i64> {
    let count = call.meta("self")?.sizes.last().and_then(schema::size);
    count.ok_or_else(|| call.unsupported("of an open number of classes"))
}

/// Every other class is to lie a margin below the own one.
fn of_one_class(call: &mut Call<'_, '_>) -> Result<()> {
    let (dtype, count) = (call.result_dtype()?, classes(call)?);
    let (x, target) = (call.operand("self", dtype)?, call.operand("target", DType::I64)?);
    let last = call.integers(&[-1]);
    // A single row may come with a target that is a vector of one.
    let is_apart = call.rank("target")? < call.rank("self")?;
    let column = if is_apart { call.plain("Unsqueeze", &[&target, &last]) } else { target.clone() };
    let own = call.op("GatherElements", &[&x, &column], &[("axis", Attribute::Int(-1))]);
    let margin = call.operand_or("margin", dtype, 1.0)?;
    let apart = call.plain("Sub", &[&x, &own]);
    let apart = call.plain("Add", &[&apart, &margin]);
    let mut cost = positive(call, &apart, dtype);
    match call.int("p", 1)? {
        1 => {}
        2 => cost = call.plain("Mul", &[&cost, &cost]),
        power => return Err(call.unsupported(format!("of power {power}"))),
    }
    if let Some(weight) = call.optional("weight")? {
        let weight = call.op("Gather", &[&weight, &column], &[("axis", Attribute::Int(0))]);
        cost = call.plain("Mul", &[&cost, &weight]);
    }
    let numbers: Vec<i64> = (0..count).collect();
    let numbers = call.integers(&numbers);
    let is_own = call.plain("Equal", &[&numbers, &column]);
    let zero = call.scalar(dtype, 0.0);
    let cost = call.plain("Where", &[&is_own, &zero, &cost]);
    let cost = sum(call, &cost, &[-1]);
    let all = call.scalar(dtype, count as f64);
    let mut each = call.plain("Div", &[&cost, &all]);
    if !is_apart && call.int("reduction", 1)? == 0 {
        each = call.plain("Unsqueeze", &[&each, &last]);
    }
    left(call, each)
}

/// Every class that is no target, a margin of 1 below each that is. Targets are numbers of classes before the first -1.
fn of_several_classes(call: &mut Call<'_, '_>) -> Result<()> {
    if call.is_read(1) {
        return Err(call.unsupported("with the classes that are targets"));
    }
    let (dtype, count) = (call.result_dtype()?, classes(call)?);
    let (x, one) = (call.operand("self", dtype)?, call.scalar(dtype, 1.0));
    let (place, counts) = listed(call)?;
    let axis = ("axis", Attribute::Int(-1));
    let scores = call.op("GatherElements", &[&x, &place], &[axis]);
    let empty = call.zeros_like(&x, dtype);
    let attributes = [("axis", Attribute::Int(-1)), ("reduction", Attribute::Text("max"))];
    let is_target = call.op("ScatterElements", &[&empty, &place, &counts], &attributes);
    let others = call.plain("Sub", &[&one, &is_target]);
    // Each target, by each class that is none.
    let (last, before) = (call.integers(&[-1]), call.integers(&[-2]));
    let [scores, counts] = [scores, counts].map(|all| call.plain("Unsqueeze", &[&all, &last]));
    let [x, others] = [x, others].map(|all| call.plain("Unsqueeze", &[&all, &before]));
    let apart = call.plain("Sub", &[&x, &scores]);
    let apart = call.plain("Add", &[&apart, &one]);
    let cost = positive(call, &apart, dtype);
    let pairs = call.plain("Mul", &[&counts, &others]);
    let cost = call.plain("Mul", &[&cost, &pairs]);
    let cost = sum(call, &cost, &[-2, -1]);
    let all = call.scalar(dtype, count as f64);
    let each = call.plain("Div", &[&cost, &all]);
    left(call, each)
}

/// Targets before the first -1, 0 from there on, and 1 for each of those before it.
fn listed(call: &mut Call<'_, '_>) -> Result<(String, String)> {
    let dtype = call.result_dtype()?;
    let target = call.operand("target", DType::I64)?;
    let (none, along) = (call.scalar(DType::I64, 0.0), call.scalar(DType::I64, -1.0));
    let is_end = call.plain("Less", &[&target, &none]);
    let is_end = call.cast(&is_end, DType::I64);
    let ends = call.plain("CumSum", &[&is_end, &along]);
    let counts = call.plain("Equal", &[&ends, &none]);
    let place = call.plain("Where", &[&counts, &target, &none]);
    Ok((place, call.cast(&counts, dtype)))
}
