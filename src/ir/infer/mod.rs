//! Types of an operation's results from the types of its operands.
//!
//! Sizes may be affine in named dimensions. Two sizes fit where they are equal for every value
//! of the dimensions; a bound that depends on a dimension is accepted and checked again when
//! [`super::Graph::bind`] fixes it. Each file holds the rules of one family of operations.

mod attention;
mod bind;
mod context;
mod elementwise;
mod index;
mod layout;
mod product;
mod reduce;
mod window;

use super::{DimId, Op, Size, Type};
use crate::error::Result;
use context::Context;

pub(super) use bind::{bind_op, bind_type};
pub(crate) use reduce::Varies;

/// The types of the results of `op` on operands of these types. Sizes may be affine; what cannot
/// be decided until they are bound is accepted. `names` gives the dimensions' names for messages.
/// O(operands * rank).
///
/// Errors: the wrong number of operands, element types or sizes that do not fit, attributes out
/// of range, sizes that overflow or become negative. Leaf operations, [`Op::Sizes`] and
/// [`Op::Iota`] have no operands to infer from and are an error.
pub fn infer(op: &Op, operands: &[&Type], names: &dyn Fn(DimId) -> String) -> Result<Vec<Type>> {
    let context = Context::new(op.name(), operands, names);
    let results = results(op, &context)?;
    for result in &results {
        context.representable(result)?;
    }
    Ok(results)
}

/// The two sizes that would have to be equal for `op` to take operands that [`infer`] refuses; none where
/// that is not what is wrong.
pub(super) fn unequal(op: &Op, operands: &[&Type]) -> Option<(Size, Size)> {
    let names = |_: DimId| String::new();
    let context = Context::new(op.name(), operands, &names);
    results(op, &context).err().and_then(|_| context.unequal())
}

fn results(op: &Op, context: &Context<'_>) -> Result<Vec<Type>> {
    let one = |result: Result<Type>| result.map(|ty| vec![ty]);
    match op {
        Op::Input | Op::Param(_) | Op::Constant(_) | Op::Sizes(_) | Op::Iota { .. } => {
            Err(context.fail("its type cannot be inferred: it has no operands"))
        }
        Op::Unary(unary) => one(elementwise::unary(context, *unary)),
        Op::Binary(binary) => one(elementwise::binary(context, *binary)),
        Op::Compare(compare) => one(elementwise::compare(context, *compare)),
        Op::Select => one(elementwise::select(context)),
        Op::Convert { to } => one(elementwise::convert(context, *to)),
        Op::Reduce { kind, axes, keep } => one(reduce::reduce(context, *kind, axes, *keep)),
        Op::ArgReduce { axis, keep, .. } => one(reduce::arg_reduce(context, *axis, *keep)),
        Op::CumSum { axis, .. } => one(reduce::cum_sum(context, *axis)),
        Op::Softmax { axis, .. } => one(reduce::softmax(context, *axis)),
        Op::SoftmaxGradient { axis, .. } => one(reduce::softmax_gradient(context, *axis)),
        Op::CrossEntropy => one(reduce::cross_entropy(context)),
        Op::CrossEntropyGradient => one(reduce::cross_entropy_gradient(context)),
        Op::NormalizeGradient { axes, epsilon, center, scaled, moments } => {
            reduce::normalize_gradient(context, (axes, *epsilon), (*center, *moments), *scaled)
        }
        Op::Normalize { axes, epsilon, center, moments } => {
            reduce::normalize(context, (axes, *epsilon), (*center, *moments))
        }
        Op::LocalResponseNorm { size, .. } => one(reduce::local_response_norm(context, *size)),
        Op::MatMul { transpose_left, transpose_right } => {
            one(product::matmul(context, *transpose_left, *transpose_right))
        }
        Op::Attention(heads) => one(attention::attention(context, heads)),
        Op::AttentionGradient(heads) => attention::gradient(context, heads),
        Op::Rotary { .. } => one(attention::rotary(context)),
        Op::Conv(conv) => one(window::conv(context, conv)),
        Op::ConvTranspose(conv) => one(window::conv_transpose(context, conv)),
        Op::Pool(pool) => one(window::pool(context, pool)),
        Op::MaxPoolGradient(pool) => one(window::max_pool_gradient(context, pool)),
        Op::Resize(resize) => one(window::resize(context, resize)),
        Op::Recurrent(recurrent) => product::recurrent(context, recurrent),
        Op::Reshape { shape } => one(layout::reshape(context, shape)),
        Op::Transpose { perm } => one(layout::transpose(context, perm)),
        Op::Broadcast { shape } => one(layout::broadcast(context, shape)),
        Op::Slice(slice) => one(layout::slice(context, slice)),
        Op::Pad(pad) => one(layout::pad(context, pad)),
        Op::Concat { axis } => one(layout::concat(context, *axis)),
        Op::Gather { axis } => one(index::gather(context, *axis)),
        Op::GatherElements { axis } => one(index::gather_elements(context, *axis)),
        Op::GatherNd { batch_dims } => one(index::gather_nd(context, *batch_dims)),
        Op::ScatterElements { axis, kind } => one(index::scatter_elements(context, *axis, *kind)),
        Op::ScatterNd { kind } => one(index::scatter_nd(context, *kind)),
        Op::TopK(topk) => index::topk(context, topk),
    }
}

#[cfg(test)]
mod tests;
