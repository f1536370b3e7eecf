//! Gathers, scatters and the selection of extreme elements.

use super::super::{DType, IndexOp, Op, ScatterKind, Shape, Size, TopK, Type};
use super::context::Context;
use crate::error::Result;

pub(super) fn results(context: &Context<'_>, op: IndexOp<'_>) -> Result<Vec<Type>> {
    let result = match op {
        IndexOp::Gather { axis } => gather(context, axis),
        IndexOp::GatherElements { axis } => gather_elements(context, axis),
        IndexOp::GatherNd { batch_dims } => gather_nd(context, batch_dims),
        IndexOp::ScatterElements { axis, kind } => scatter_elements(context, axis, kind),
        IndexOp::ScatterNd { kind } => scatter_nd(context, kind),
        IndexOp::UpdateSlice { axis } => update_slice(context, axis),
        IndexOp::TopK(of) => return topk(context, of),
        IndexOp::TreeLeaves { depth } => tree_leaves(context, depth),
    };
    result.map(|ty| vec![ty])
}

fn gather(context: &Context<'_>, axis: u32) -> Result<Type> {
    let [data, indices] = context.operands()?;
    context.integer("indices", indices.dtype)?;
    let axis = context.axis(axis, data.shape.rank())?;
    let (before, after) = (&data.shape.sizes()[..axis], &data.shape.sizes()[axis + 1..]);
    let sizes = before.iter().chain(indices.shape.sizes()).chain(after).cloned();
    Ok(Type::new(data.dtype, sizes.collect()))
}

fn gather_elements(context: &Context<'_>, axis: u32) -> Result<Type> {
    let [data, indices] = context.operands()?;
    elements(context, axis, data, indices)?;
    Ok(Type::new(data.dtype, indices.shape.clone()))
}

/// Indices of elements: of the data's rank, and within it on the axes that are not indexed.
fn elements(context: &Context<'_>, axis: u32, data: &Type, indices: &Type) -> Result<()> {
    context.integer("indices", indices.dtype)?;
    context.rank("indices", indices, data.shape.rank())?;
    let axis = context.axis(axis, data.shape.rank())?;
    for other in (0..data.shape.rank()).filter(|&other| other != axis) {
        let slack = data.shape[other].sub(&indices.shape[other]).ok_or_else(|| context.overflow())?;
        if slack.known().is_some_and(|slack| slack < 0) {
            return Err(context.fail(format!(
                "expected indices within {}, found {}",
                context.show(&data.shape),
                context.show(&indices.shape)
            )));
        }
    }
    Ok(())
}

fn gather_nd(context: &Context<'_>, batch_dims: u32) -> Result<Type> {
    let [data, indices] = context.operands()?;
    let batch = batch_dims as usize;
    let depth = depth(context, data, indices, batch)?;
    for axis in 0..batch {
        context.same(&format!("axis {axis} of the indices"), &data.shape[axis], &indices.shape[axis])?;
    }
    Ok(Type::new(data.dtype, slices(data, indices, batch + depth)))
}

fn scatter_elements(context: &Context<'_>, axis: u32, kind: ScatterKind) -> Result<Type> {
    let [data, indices, updates] = context.operands()?;
    elements(context, axis, data, indices)?;
    combines(context, data, updates, kind)?;
    context.same_shape("updates", &indices.shape, &updates.shape)?;
    Ok(data.clone())
}

fn scatter_nd(context: &Context<'_>, kind: ScatterKind) -> Result<Type> {
    let [data, indices, updates] = context.operands()?;
    let depth = depth(context, data, indices, 0)?;
    combines(context, data, updates, kind)?;
    context.same_shape("updates", &slices(data, indices, depth), &updates.shape)?;
    Ok(data.clone())
}

fn update_slice(context: &Context<'_>, axis: u32) -> Result<Type> {
    let [data, position, update] = context.operands()?;
    context.rank("a position", position, 0)?;
    context.same_dtype("a position", DType::I64, position.dtype)?;
    context.same_dtype("an update", data.dtype, update.dtype)?;
    context.rank("an update", update, data.shape.rank())?;
    let axis = context.axis(axis, data.shape.rank())?;
    for (at, (own, new)) in data.shape.sizes().iter().zip(update.shape.sizes()).enumerate() {
        let slack = own.sub(new).ok_or_else(|| context.overflow())?;
        let fits = slack.known().is_none_or(|slack| if at == axis { slack >= 0 } else { slack == 0 });
        if !fits {
            return Err(context.fail(format!(
                "expected an update within {}, found {}",
                context.show(&data.shape),
                context.show(&update.shape)
            )));
        }
    }
    Ok(data.clone())
}

/// Length of the index tuples in the last axis of the indices.
fn depth(context: &Context<'_>, data: &Type, indices: &Type, batch: usize) -> Result<usize> {
    context.integer("indices", indices.dtype)?;
    context.least_rank("indices", indices, batch + 1)?;
    context.least_rank("data", data, batch + 1)?;
    let most = data.shape.rank() - batch;
    let last = &indices.shape[indices.shape.rank() - 1];
    let depth = last.known().and_then(|depth| usize::try_from(depth).ok());
    depth.filter(|depth| (1..=most).contains(depth)).ok_or_else(|| {
        context.fail(format!(
            "expected indices whose last axis has 1 to {most} elements, found {}",
            context.show(&indices.shape)
        ))
    })
}

/// The shape of what the tuples name: the indices' outer axes, then the data's axes from `from`.
fn slices(data: &Type, indices: &Type, from: usize) -> Shape {
    let outer = &indices.shape.sizes()[..indices.shape.rank() - 1];
    outer.iter().chain(&data.shape.sizes()[from..]).cloned().collect()
}

fn combines(context: &Context<'_>, data: &Type, updates: &Type, kind: ScatterKind) -> Result<()> {
    context.same_dtype("updates", data.dtype, updates.dtype)?;
    match kind {
        ScatterKind::Replace => Ok(()),
        ScatterKind::Add | ScatterKind::Mul | ScatterKind::Max | ScatterKind::Min => {
            context.number("data", data.dtype)
        }
    }
}

fn topk(context: &Context<'_>, topk: &TopK) -> Result<Vec<Type>> {
    let [x] = context.operands()?;
    context.number("an operand", x.dtype)?;
    let axis = context.axis(topk.axis, x.shape.rank())?;
    let size = &x.shape[axis];
    if topk.k < 0 || size.known().is_some_and(|size| topk.k > size) {
        return Err(context.fail(format!(
            "expected k from 0 to {}, found {}",
            context.show_size(size),
            topk.k
        )));
    }
    let mut sizes = x.shape.sizes().to_vec();
    sizes[axis] = Size::Known(topk.k);
    let shape = Shape::new(sizes);
    Ok(vec![Type::new(x.dtype, shape.clone()), Type::new(DType::I64, shape)])
}

fn tree_leaves(context: &Context<'_>, depth: u32) -> Result<Type> {
    let [rows, roots, columns, splits, next] = context.operands()?;
    context.rank("rows", rows, 2)?;
    if !matches!(rows.dtype, DType::F32 | DType::F64) {
        return Err(context.fail(format!("expected rows of f32 or f64, found {}", rows.dtype)));
    }
    context.same_dtype("splits", rows.dtype, splits.dtype)?;
    for (what, list) in [("roots", roots), ("columns", columns), ("nodes that come next", next)] {
        context.same_dtype(what, DType::I32, list.dtype)?;
        context.rank(what, list, 1)?;
    }
    context.same_shape("splits", &columns.shape, &splits.shape)?;
    context.same_shape("nodes that come next", &columns.shape, &next.shape)?;
    if depth > Op::DEEPEST {
        return Err(context.fail(format!("expected a depth of at most {}, found {depth}", Op::DEEPEST)));
    }
    Ok(Type::new(DType::I32, Shape::new([rows.shape[0].clone(), roots.shape[0].clone()])))
}
