//! The domain `ai.onnx.ml`: what converters of classical models write. Labels that are texts are numbers of a table
//! (`narrow::Texts`); inputs of texts are refused.

mod coupling;
pub(super) mod features;
pub(super) mod linear;
pub(super) mod trees;

use super::super::narrow::Narrow;
use super::super::node::At;
use crate::error::Result;
use crate::ir::{ArgReduce, Binary, Compare, DType, Op, ReduceKind, Size, Unary, ValueId};

/// Input `i` in f32, with rows and columns.
fn rows(at: &mut At<'_>, i: usize) -> Result<ValueId> {
    let x = at.value(i)?;
    let x = at.convert(x, DType::F32)?;
    match at.sizes_of(x).len() {
        1 => at.with_axis(x, 0),
        2 => Ok(x),
        rank => Err(at.wrong(format!("its input has rank {rank}, not 2"))),
    }
}

/// What becomes of scores at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transform {
    None,
    Softmax,
    /// As a softmax, but zeros stay.
    SoftmaxZero,
    Logistic,
    Probit,
}

fn transform(at: &At<'_>) -> Result<Transform> {
    // From version 5 on, numbers.
    let stated = match at.opset >= 5 && at.op_type() == "TreeEnsemble" {
        true => at.int_or("post_transform", 0)?.to_string(),
        false => at.text("post_transform", "NONE")?,
    };
    Ok(match stated.as_str() {
        "NONE" | "0" => Transform::None,
        "SOFTMAX" | "1" => Transform::Softmax,
        "LOGISTIC" | "2" => Transform::Logistic,
        "SOFTMAX_ZERO" | "3" => Transform::SoftmaxZero,
        "PROBIT" | "4" => Transform::Probit,
        other => return Err(at.unsupported(format!("with post_transform {other}"))),
    })
}

impl Transform {
    /// Of scores `[rows, classes]`.
    fn apply(self, at: &mut At<'_>, scores: ValueId) -> Result<ValueId> {
        match self {
            Self::None => Ok(scores),
            Self::Softmax => at.apply(Op::Softmax { axis: 1, log: false }, &[scores]),
            Self::Logistic => at.unary(Unary::Sigmoid, scores),
            Self::SoftmaxZero => {
                let there = at.compare_scalar(Compare::Ne, scores, 0.0)?;
                let held = at.select_or(there, scores, f64::NEG_INFINITY)?;
                let soft = at.apply(Op::Softmax { axis: 1, log: false }, &[held])?;
                at.select_or(there, soft, 0.0)
            }
            Self::Probit => Err(at.unsupported("with post_transform PROBIT")),
        }
    }
}

/// Labels of classes.
struct Labels {
    kind: LabelKind,
    count: usize,
}

enum LabelKind {
    Numbers(Vec<i64>),
    Texts(Vec<String>),
}

fn labels(at: &At<'_>, names: [&str; 2]) -> Result<Labels> {
    let numbers = at.ints(names[0])?.filter(|list| !list.is_empty());
    let texts = at.texts(names[1])?.filter(|list| !list.is_empty());
    let (count, kind) = match (numbers, texts) {
        (None, Some(texts)) => (texts.len(), LabelKind::Texts(texts)),
        (numbers, _) => {
            let numbers = numbers.unwrap_or_default();
            (numbers.len(), LabelKind::Numbers(numbers))
        }
    };
    Ok(Labels { kind, count })
}

/// Output 0 is the label of each row's largest score.
fn set_labels(at: &mut At<'_>, labels: &Labels, class: ValueId) -> Result<()> {
    match &labels.kind {
        LabelKind::Numbers(numbers) => {
            let numbers = at.integer_constant(&[numbers.len() as i64], numbers)?;
            let label = at.gather(numbers, class, 0)?;
            at.set(0, label);
            Ok(())
        }
        LabelKind::Texts(_) if !at.wants(0) => Ok(()),
        LabelKind::Texts(texts) => {
            let table = at.lowering().texts.add(texts);
            let label = at.convert(class, DType::I64)?;
            at.set(0, label);
            at.set_narrow_output(0, Narrow::Text(table));
            Ok(())
        }
    }
}

/// The position of the largest of each row.
fn largest(at: &mut At<'_>, scores: ValueId) -> Result<ValueId> {
    at.apply(Op::ArgReduce { kind: ArgReduce::Max, axis: 1, keep: false, last: false }, &[scores])
}

/// Scores of two classes from one score `[rows, 1]`: its complement first, or its opposite.
fn both_classes(at: &mut At<'_>, score: ValueId, complement: bool) -> Result<ValueId> {
    let other = at.unary(Unary::Neg, score)?;
    let other = if complement { at.binary_scalar(Binary::Add, other, 1.0)? } else { other };
    at.concat(&[other, score], 1)
}

/// The sum of rows' elements, kept as a column.
fn row_sum(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    at.reduce(ReduceKind::Sum, x, [1], true)
}

/// What a pipeline of scikit-learn adds behind a classifier: maps from labels to scores. The scores are given as a
/// tensor, whose columns are the labels in the order in which they are stated.
pub(super) fn zip_map(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["classlabels_int64s", "classlabels_strings"]);
    let note = format!("node {}: scores are given as a tensor, not as maps from labels", at.name());
    at.lowering().graph.note(note);
    let x = at.value(0)?;
    let x = match at.sizes_of(x).len() {
        1 => at.reshape(x, [Size::Known(1), at.sizes_of(x)[0].clone()])?,
        _ => x,
    };
    at.set(0, x);
    Ok(())
}
