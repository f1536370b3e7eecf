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
mod normalize;
mod packed;
mod product;
mod recurrent;
mod reduce;
mod window;

use super::{DimId, Family, Op, Size, Type};
use crate::error::Result;
use context::Context;

pub(super) use bind::{bind_op, bind_type};
pub(crate) use normalize::Varies;

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
    match op.family() {
        Family::Leaf | Family::Generator(_) => {
            Err(context.fail("its type cannot be inferred: it has no operands"))
        }
        Family::Elementwise(op) => one(elementwise::result(context, op)),
        Family::Layout(op) => one(layout::result(context, op)),
        Family::Index(op) => index::results(context, op),
        Family::Window(op) => one(window::result(context, op)),
        Family::Reduce(op) => one(reduce::result(context, op)),
        Family::Normalize(op) => normalize::results(context, op),
        Family::Product(op) => one(product::result(context, op)),
        Family::Packed(op) => one(packed::result(context, op)),
        Family::Attention(op) => attention::results(context, op),
        Family::Recurrent(layer) => recurrent::results(context, layer),
    }
}

#[cfg(test)]
mod tests;
