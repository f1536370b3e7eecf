//! Gradients of what moves elements: slices, padding, concatenation.

use super::build::{Build, inverse};
use super::rules::Site;
use crate::error::{Error, Result};
use crate::ir::{LayoutOp, Pad, PadMode, Size, Slice, ValueId};

pub(super) fn gradients(
    b: &mut Build<'_>,
    site: &Site<'_>,
    op: LayoutOp<'_>,
    dy: ValueId,
) -> Result<Vec<Option<ValueId>>> {
    let x = site.operands;
    match op {
        LayoutOp::Reshape { .. } => {
            let dims = b.dims(x[0])?;
            site.first(b.reshape(dy, &dims)?)
        }
        LayoutOp::Transpose { perm } => {
            let perm: Vec<usize> = perm.iter().map(|&axis| axis as usize).collect();
            site.first(b.transpose(dy, &inverse(&perm))?)
        }
        LayoutOp::Broadcast { .. } => site.summed(b, &[Some(dy)]),
        LayoutOp::Slice(part) => site.first(slice(b, part, x[0], dy)?),
        LayoutOp::Pad(padding) => site.first(pad(b, padding, x[0], dy)?),
        LayoutOp::Concat { axis } => concat(b, axis as usize, x, dy, site.want),
    }
}

fn known(sizes: &[Size]) -> Result<Vec<i64>> {
    let known = sizes.iter().map(Size::known).collect::<Option<Vec<i64>>>();
    known.ok_or_else(|| Error::usage("training", "a dimension has no value").with_help("--dim NAME=N"))
}

/// Puts the elements of a strided part back where they came from, zeros between.
fn slice(b: &mut Build<'_>, slice: &Slice, x: ValueId, dy: ValueId) -> Result<ValueId> {
    let whole = b.dims(x)?;
    spread(b, dy, &known(&slice.starts)?, &slice.steps, &whole)
}

/// A tensor of sizes `whole`, with element `i` of `value` at `start + i * step` of each axis and zeros
/// elsewhere.
pub(super) fn spread(
    b: &mut Build<'_>,
    value: ValueId,
    starts: &[i64],
    steps: &[i64],
    whole: &[i64],
) -> Result<ValueId> {
    let sizes = b.dims(value)?;
    if sizes.contains(&0) {
        return b.full(b.dtype(value), whole, 0.0);
    }
    let rank = sizes.len();
    let (mut value, mut starts) = (value, starts.to_vec());
    if steps.iter().any(|&step| step < 0) {
        let turned = |axis: usize, yes: i64, no: i64| if steps[axis] < 0 { yes } else { no };
        let from: Vec<i64> = (0..rank).map(|axis| turned(axis, sizes[axis] - 1, 0)).collect();
        let by: Vec<i64> = (0..rank).map(|axis| turned(axis, -1, 1)).collect();
        value = b.slice(value, &from, &sizes, &by)?;
        for axis in 0..rank {
            starts[axis] += turned(axis, (sizes[axis] - 1) * steps[axis], 0);
        }
    }
    let mut wide = sizes.clone();
    if steps.iter().any(|&step| step.abs() > 1) {
        let (mut split, mut after) = (Vec::new(), Vec::new());
        for axis in 0..rank {
            split.push(sizes[axis]);
            after.push(0);
            if steps[axis].abs() > 1 {
                split.push(1);
                after.push(steps[axis].abs() - 1);
                wide[axis] = sizes[axis] * steps[axis].abs();
            }
        }
        let split_axis = b.reshape(value, &split)?;
        let padded = b.pad(split_axis, &vec![0; after.len()], &after, 0.0)?;
        value = b.reshape(padded, &wide)?;
    }
    let after: Vec<i64> = (0..rank).map(|axis| whole[axis] - starts[axis] - wide[axis]).collect();
    b.pad(value, &starts, &after, 0.0)
}

/// Crops what was padded; what a reflected or repeated edge adds goes back to its element.
fn pad(b: &mut Build<'_>, pad: &Pad, x: ValueId, dy: ValueId) -> Result<ValueId> {
    if pad.mode == PadMode::Constant {
        let turned = |list: &[i64]| list.iter().map(|amount| -amount).collect::<Vec<i64>>();
        return b.pad(dy, &turned(&pad.before), &turned(&pad.after), 0.0);
    }
    let dims = b.dims(x)?;
    let mut gradient = dy;
    for (axis, &size) in dims.iter().enumerate() {
        let (before, after) = (pad.before[axis], pad.after[axis]);
        if before == 0 && after == 0 {
            continue;
        }
        let out = size + before + after;
        let mut matrix = vec![0.0; (out * size) as usize];
        for position in 0..out {
            let from = origin(pad.mode, position - before, size);
            matrix[(position * size + from) as usize] = 1.0;
        }
        let matrix = b.constant(b.dtype(dy), &[out, size], &matrix)?;
        gradient = b.along_transposed(gradient, axis, matrix)?;
    }
    Ok(gradient)
}

/// The element that a position outside an axis of `size` repeats.
fn origin(mode: PadMode, position: i64, size: i64) -> i64 {
    match mode {
        PadMode::Reflect if size > 1 => {
            let turn = position.rem_euclid(2 * (size - 1));
            turn.min(2 * (size - 1) - turn)
        }
        PadMode::Constant | PadMode::Edge | PadMode::Reflect => position.clamp(0, size - 1),
    }
}

/// Each operand's own part.
fn concat(
    b: &mut Build<'_>,
    axis: usize,
    x: &[ValueId],
    dy: ValueId,
    want: &[bool],
) -> Result<Vec<Option<ValueId>>> {
    let mut start = 0;
    let mut gradients = Vec::with_capacity(x.len());
    for (&operand, &want) in x.iter().zip(want) {
        let size = b.dims(operand)?[axis];
        gradients.push(if want { Some(b.part(dy, axis, start, size)?) } else { None });
        start += size;
    }
    Ok(gradients)
}
