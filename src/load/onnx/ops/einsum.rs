//! Einsum: diagonals, sums and products, and one matrix product for each operand but the first.

use super::super::node::At;
use crate::error::Result;
use crate::ir::{Compare, Op, Size, ValueId};

/// A letter, or an axis of the ellipsis counted from its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Letter(u8),
    Dots(usize),
}

/// A value and the labels of its axes, each there once.
struct Labelled {
    value: ValueId,
    labels: Vec<Label>,
}

/// The labels of the axes of all operands, and of the result.
struct Equation {
    operands: Vec<Vec<Label>>,
    result: Vec<Label>,
}

/// The equation of a node. Error: it is not for its operands.
fn equation(at: &At<'_>) -> Result<Equation> {
    let equation: String = at.text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != at.input_count() || terms.is_empty() {
        return Err(at.wrong(format!("equation {equation:?} is not for {} operands", at.input_count())));
    }
    let mut operands = Vec::with_capacity(terms.len());
    for (i, term) in terms.iter().enumerate() {
        operands.push(labels(at, term, Some(at.rank(i)?))?);
    }
    let all = operands.concat();
    let result = match output {
        Some(output) => written_output(at, output, &all)?,
        None => implied_output(&all),
    };
    Ok(Equation { operands, result })
}

pub(super) fn einsum(at: &mut At<'_>) -> Result<()> {
    let Equation { operands, result } = equation(at)?;
    let mut labelled = Vec::with_capacity(operands.len());
    for (labels, value) in operands.into_iter().zip(at.values()?) {
        labelled.push(diagonals(at, Labelled { value, labels })?);
    }
    let value = product(at, labelled, &result)?;
    at.set(0, value);
    Ok(())
}

/// Whether an axis of operand `i` is summed over.
pub(super) fn is_summed(at: &At<'_>, i: usize, axis: usize) -> Result<bool> {
    let Equation { operands, result } = equation(at)?;
    Ok(operands.get(i).and_then(|labels| labels.get(axis)).is_some_and(|label| !result.contains(label)))
}

/// Where in the result an axis stands that operands share: an axis of each, none of those that do not have it. None of the
/// result where it is summed over, and none at all where the axes have several labels, or another operand has theirs.
pub(super) fn shared_axis(at: &At<'_>, axes: &[Option<usize>]) -> Result<Option<Option<usize>>> {
    let Equation { operands, result } = equation(at)?;
    let mut found = None;
    for (labels, axis) in operands.iter().zip(axes) {
        let label = axis.and_then(|axis| labels.get(axis));
        if label.is_some() && found.is_some_and(|found| Some(found) != label) {
            return Ok(None);
        }
        found = found.or(label);
    }
    let Some(found) = found else { return Ok(None) };
    let has_it = |labels: &[Label]| labels.iter().filter(|&label| label == found).count();
    let are_all =
        operands.iter().zip(axes).all(|(labels, axis)| has_it(labels) == usize::from(axis.is_some()));
    Ok(are_all.then(|| result.iter().position(|label| label == found)))
}

/// The labels of a term. The ellipsis stands for the axes that the letters leave of a rank, for none without one.
fn labels(at: &At<'_>, term: &str, rank: Option<usize>) -> Result<Vec<Label>> {
    let (before, after) = term.split_once("...").unwrap_or((term, ""));
    let letters = |part: &str| -> Result<Vec<Label>> {
        match part.bytes().find(|byte| !byte.is_ascii_alphabetic()) {
            Some(_) => Err(at.wrong(format!("term {term:?} of its equation is not of letters"))),
            None => Ok(part.bytes().map(Label::Letter).collect()),
        }
    };
    let (before, after) = (letters(before)?, letters(after)?);
    let named = before.len() + after.len();
    let dots = match (rank, term.contains("...")) {
        (Some(rank), true) => rank.checked_sub(named),
        (Some(rank), false) => (rank == named).then_some(0),
        (None, _) => Some(0),
    };
    let Some(dots) = dots else {
        return Err(at.wrong(format!("term {term:?} of its equation is for another rank")));
    };
    let dots = (0..dots).rev().map(Label::Dots);
    Ok(before.into_iter().chain(dots).chain(after).collect())
}

/// The axes of the ellipsis, outermost first.
fn dots(all: &[Label]) -> impl Iterator<Item = Label> + use<> {
    let count = all.iter().map(|label| if let Label::Dots(at) = label { at + 1 } else { 0 }).max();
    (0..count.unwrap_or(0)).rev().map(Label::Dots)
}

fn written_output(at: &At<'_>, output: &str, all: &[Label]) -> Result<Vec<Label>> {
    let (before, after) = output.split_once("...").unwrap_or((output, ""));
    let mut result = labels(at, before, None)?;
    if output.contains("...") {
        result.extend(dots(all));
    }
    result.extend(labels(at, after, None)?);
    for (position, label) in result.iter().enumerate() {
        if !all.contains(label) || result[..position].contains(label) {
            return Err(
                at.wrong(format!("term {output:?} of its equation has a letter twice or of no operand"))
            );
        }
    }
    Ok(result)
}

/// The ellipsis, then the letters that are there once, in the order of the alphabet.
fn implied_output(all: &[Label]) -> Vec<Label> {
    let count = |letter: u8| all.iter().filter(|&&label| label == Label::Letter(letter)).count();
    let once = (0..=u8::MAX).filter(|&letter| count(letter) == 1).map(Label::Letter);
    dots(all).chain(once).collect()
}

/// With each label once: of axes with one label only the elements at equal positions count.
fn diagonals(at: &mut At<'_>, mut of: Labelled) -> Result<Labelled> {
    while let Some((first, second)) = twice(&of.labels) {
        let sizes = at.sizes_of(of.value);
        if sizes[first] != sizes[second] {
            return Err(at.wrong("axes with one letter differ in size"));
        }
        // A sum over one of the axes, of which all but the diagonal is zero: exact, and its gradient follows.
        let line = |axis: usize| {
            let mut line = vec![Size::Known(1); sizes.len()];
            line[axis] = sizes[axis].clone();
            super::layout::indices(line)
        };
        let (rows, columns) = (at.iota(line(first), first), at.iota(line(second), second));
        let same = at.compare(Compare::Eq, rows, columns)?;
        let diagonal = at.select_or(same, of.value, 0.0)?;
        of.value = at.sum(diagonal, [second], false)?;
        of.labels.remove(second);
    }
    Ok(of)
}

fn twice(labels: &[Label]) -> Option<(usize, usize)> {
    let second = (0..labels.len()).find(|&at| labels[..at].contains(&labels[at]))?;
    let first = labels.iter().position(|label| *label == labels[second])?;
    Some((first, second))
}

/// Multiplies from left to right. A label goes as soon as no later operand and not the result has it.
fn product(at: &mut At<'_>, operands: Vec<Labelled>, output: &[Label]) -> Result<ValueId> {
    let mut rest: Vec<Vec<Label>> = operands.iter().map(|operand| operand.labels.clone()).collect();
    let mut operands = operands.into_iter();
    let Some(mut left) = operands.next() else { return Err(at.wrong("it has no operands")) };
    rest.remove(0);
    let is_needed = |label: &Label, rest: &[Vec<Label>]| {
        output.contains(label) || rest.iter().any(|labels| labels.contains(label))
    };
    left = summed(at, left, |label| is_needed(label, &rest))?;
    for right in operands {
        rest.remove(0);
        let right = {
            let labels = left.labels.clone();
            summed(at, right, |label| labels.contains(label) || is_needed(label, &rest))?
        };
        left = contracted(at, left, right, |label| is_needed(label, &rest))?;
    }
    ordered(at, left, output)
}

/// Summed over the axes whose labels are not needed.
fn summed(at: &mut At<'_>, of: Labelled, is_needed: impl Fn(&Label) -> bool) -> Result<Labelled> {
    let gone = (0..of.labels.len()).filter(|&axis| !is_needed(&of.labels[axis]));
    let value = at.sum(of.value, gone, false)?;
    Ok(Labelled { value, labels: of.labels.into_iter().filter(is_needed).collect() })
}

/// The axes in the order of `labels`, those that are missing with size 1.
fn ordered(at: &mut At<'_>, of: Labelled, labels: &[Label]) -> Result<ValueId> {
    let there = labels.iter().filter_map(|label| of.labels.iter().position(|own| own == label));
    let perm: Vec<u32> = there.map(|axis| axis as u32).collect();
    let sizes = at.sizes_of(of.value);
    let value = at.transpose(of.value, perm)?;
    let size = |label| {
        of.labels.iter().position(|own| own == label).map_or(Size::Known(1), |axis| sizes[axis].clone())
    };
    at.reshape(value, labels.iter().map(size))
}

/// The axes of a product: of both and of the result, of the left alone, of the right alone, and those that are
/// summed.
struct Axes {
    batch: Vec<Label>,
    left: Vec<Label>,
    right: Vec<Label>,
    inner: Vec<Label>,
}

fn contracted(
    at: &mut At<'_>,
    left: Labelled,
    right: Labelled,
    is_needed: impl Fn(&Label) -> bool,
) -> Result<Labelled> {
    // Two operands are a batch of matrices when their axes are merged into these four kinds.
    let shared = |label: &&Label| right.labels.contains(label);
    let axes = Axes {
        batch: left.labels.iter().filter(|l| shared(l) && is_needed(l)).copied().collect(),
        left: left.labels.iter().filter(|l| !shared(l)).copied().collect(),
        right: right.labels.iter().filter(|l| !left.labels.contains(l)).copied().collect(),
        inner: left.labels.iter().filter(|l| shared(l) && !is_needed(l)).copied().collect(),
    };
    let labels = [&axes.batch[..], &axes.left, &axes.right].concat();
    let sizes = |at: &At<'_>, label: &Label| {
        let of = |side: &Labelled| {
            let axis = side.labels.iter().position(|own| own == label)?;
            Some(at.sizes_of(side.value)[axis].clone())
        };
        match (of(&left), of(&right)) {
            (Some(one), Some(other)) | (Some(other), Some(one)) if one == Size::Known(1) => other,
            (Some(one), _) | (None, Some(one)) => one,
            (None, None) => Size::Known(1),
        }
    };
    let result: Vec<Size> = labels.iter().map(|label| sizes(at, label)).collect();
    // A size of 1 is repeated, as everywhere, which a product of merged axes does not do.
    let plain = axes.inner.is_empty() || !repeats(at, &left, &right);
    let value = match plain && !axes.inner.is_empty() {
        true => {
            let sides = [
                (&left, [&axes.batch[..], &axes.left, &axes.inner]),
                (&right, [&axes.batch[..], &axes.inner, &axes.right]),
            ];
            let [x, y] = sides.map(|(side, groups)| merged(at, side, groups));
            let product = at.matmul(x?, y?)?;
            at.reshape(product, result)?
        }
        false => {
            let wide = [&labels[..], &axes.inner].concat();
            let (x, y) = (ordered(at, left, &wide)?, ordered(at, right, &wide)?);
            let product = at.mul(x, y)?;
            at.sum(product, labels.len()..wide.len(), false)?
        }
    };
    Ok(Labelled { value, labels })
}

/// Whether an axis of both has size 1 in one of them alone.
fn repeats(at: &At<'_>, left: &Labelled, right: &Labelled) -> bool {
    let (sizes, others) = (at.sizes_of(left.value), at.sizes_of(right.value));
    left.labels.iter().enumerate().any(|(axis, label)| {
        let other = right.labels.iter().position(|own| own == label);
        other.is_some_and(|other| sizes[axis] != others[other])
    })
}

/// As three axes: the labels of each group together.
fn merged(at: &mut At<'_>, side: &Labelled, groups: [&[Label]; 3]) -> Result<ValueId> {
    let sizes = at.sizes_of(side.value);
    let positions = groups.map(|group| -> Vec<usize> {
        group.iter().filter_map(|label| side.labels.iter().position(|own| own == label)).collect()
    });
    let perm = positions.iter().flatten().map(|&axis| axis as u32).collect();
    let value = at.apply(Op::Transpose { perm }, &[side.value])?;
    let merged: Result<Vec<Size>> = positions
        .iter()
        .map(|axes| at.product(&axes.iter().map(|&axis| sizes[axis].clone()).collect::<Vec<_>>()))
        .collect();
    at.reshape(value, merged?)
}
