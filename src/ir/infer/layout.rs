//! Operations that move elements without computing.

use super::super::{LayoutOp, Pad, PadMode, Shape, Size, Slice, Type};
use super::context::{Context, elements};
use crate::error::Result;

pub(super) fn result(context: &Context<'_>, op: LayoutOp<'_>) -> Result<Type> {
    match op {
        LayoutOp::Reshape { shape: to } => reshape(context, to),
        LayoutOp::Transpose { perm } => transpose(context, perm),
        LayoutOp::Broadcast { shape: to } => broadcast(context, to),
        LayoutOp::Slice(part) => slice(context, part),
        LayoutOp::Pad(padding) => pad(context, padding),
        LayoutOp::Concat { axis } => concat(context, axis),
    }
}

fn reshape(context: &Context<'_>, shape: &Shape) -> Result<Type> {
    let [x] = context.operands()?;
    let result = Type::new(x.dtype, shape.clone());
    context.representable(&result)?;
    if let (Some(from), Some(to)) = (elements(&x.shape), elements(shape))
        && from != to
    {
        let error = context.fail(format!(
            "expected {} elements for {}, found {} in {}",
            context.show_size(&to),
            context.show(shape),
            context.show_size(&from),
            context.show(&x.shape)
        ));
        return Err(match context.hint(&from, &to) {
            Some(help) => error.with_help(help),
            None => error,
        });
    }
    Ok(result)
}

fn transpose(context: &Context<'_>, perm: &[u32]) -> Result<Type> {
    let [x] = context.operands()?;
    let rank = x.shape.rank();
    let mut seen = vec![false; rank];
    for &axis in perm {
        let axis = context.axis(axis, rank)?;
        seen[axis] = true;
    }
    if perm.len() != rank || seen.contains(&false) {
        return Err(context.fail(format!("expected a permutation of {rank} axes, found {perm:?}")));
    }
    Ok(Type::new(x.dtype, perm.iter().map(|&axis| x.shape[axis as usize].clone()).collect()))
}

fn broadcast(context: &Context<'_>, shape: &Shape) -> Result<Type> {
    let [x] = context.operands()?;
    let mismatch = || {
        context.fail(format!(
            "expected a shape that broadcasts to {}, found {}",
            context.show(shape),
            context.show(&x.shape)
        ))
    };
    let Some(added) = shape.rank().checked_sub(x.shape.rank()) else { return Err(mismatch()) };
    for (from, to) in x.shape.sizes().iter().zip(&shape.sizes()[added..]) {
        if from != to && *from != Size::Known(1) {
            let error = mismatch();
            return Err(match context.hint(from, to) {
                Some(help) => error.with_help(help),
                None => error,
            });
        }
    }
    Ok(Type::new(x.dtype, shape.clone()))
}

fn slice(context: &Context<'_>, slice: &Slice) -> Result<Type> {
    let [x] = context.operands()?;
    let rank = x.shape.rank();
    for length in [slice.starts.len(), slice.sizes.len(), slice.steps.len()] {
        if length != rank {
            return Err(context.fail(format!("expected {rank} starts, sizes and steps, found {length}")));
        }
    }
    for axis in 0..rank {
        let (start, size, step) = (&slice.starts[axis], &slice.sizes[axis], slice.steps[axis]);
        if step == 0 {
            return Err(context.fail("expected a step other than 0, found 0"));
        }
        within(context, &x.shape[axis], start, size, step)?;
    }
    Ok(Type::new(x.dtype, slice.sizes.iter().cloned().collect()))
}

/// The first and the last element read exist, as far as that is decided.
fn within(context: &Context<'_>, whole: &Size, start: &Size, size: &Size, step: i64) -> Result<()> {
    if *size == Size::Known(0) {
        return Ok(());
    }
    let one = Size::Known(1);
    let last = size.sub(&one).and_then(|steps| steps.scale(step)?.add(start));
    let last = last.ok_or_else(|| context.overflow())?;
    for position in [start, &last] {
        let slack =
            whole.sub(position).and_then(|slack| slack.sub(&one)).ok_or_else(|| context.overflow())?;
        let before = position.known().is_some_and(|position| position < 0);
        if before || slack.known().is_some_and(|slack| slack < 0) {
            return Err(context.fail(format!(
                "expected positions below {}, found {}",
                context.show_size(whole),
                context.show_size(position)
            )));
        }
    }
    Ok(())
}

fn pad(context: &Context<'_>, pad: &Pad) -> Result<Type> {
    let [x] = context.operands()?;
    let rank = x.shape.rank();
    for length in [pad.before.len(), pad.after.len()] {
        if length != rank {
            return Err(context.fail(format!("expected {rank} amounts of padding, found {length}")));
        }
    }
    let sizes = x.shape.sizes().iter().zip(pad.before.iter().zip(&pad.after));
    let shape: Result<Shape> =
        sizes.map(|(size, (&before, &after))| padded(context, size, before, after, pad.mode)).collect();
    Ok(Type::new(x.dtype, shape?))
}

fn padded(context: &Context<'_>, size: &Size, before: i64, after: i64, mode: PadMode) -> Result<Size> {
    let plus = |amount: i64| move |size: Size| size.add(&Size::Known(amount));
    let cropped = Some(size.clone()).and_then(plus(before.min(0))).and_then(plus(after.min(0)));
    let cropped = context.not_negative(cropped.ok_or_else(|| context.overflow())?)?;
    let most = before.max(after);
    if let Some(left) = cropped.known().filter(|_| most > 0) {
        let enough = match mode {
            PadMode::Constant => true,
            PadMode::Reflect => most < left,
            PadMode::Edge => left > 0,
        };
        if !enough {
            return Err(context.fail(format!("expected enough elements for {most} of padding, found {left}")));
        }
    }
    let result = plus(before.max(0))(cropped).and_then(plus(after.max(0)));
    result.ok_or_else(|| context.overflow())
}

fn concat(context: &Context<'_>, axis: u32) -> Result<Type> {
    let operands = context.between(1, usize::MAX)?;
    let first = operands[0];
    let axis = context.axis(axis, first.shape.rank())?;
    let mut total = first.shape[axis].clone();
    for operand in &operands[1..] {
        context.same_dtype("every operand", first.dtype, operand.dtype)?;
        context.rank("every operand", operand, first.shape.rank())?;
        for other in (0..first.shape.rank()).filter(|&other| other != axis) {
            context.same(&format!("axis {other}"), &first.shape[other], &operand.shape[other])?;
        }
        total = total.add(&operand.shape[axis]).ok_or_else(|| context.overflow())?;
    }
    let mut sizes = first.shape.sizes().to_vec();
    sizes[axis] = total;
    Ok(Type::new(first.dtype, Shape::new(sizes)))
}
