//! Operations of ATen as ONNX operators, by family.

use super::call::Call;
use crate::error::Result;

mod attention;
mod bag;
mod cell;
mod elementwise;
mod index;
mod layout;
mod loss;
mod make;
mod normalize;
mod product;
mod recurrent;
mod reduce;
mod replace;
mod running;
mod sample;
mod scatter;
mod size;
mod special;
mod stacked;
mod window;

/// Lowers a node.
pub(super) type Lower = fn(&mut Call<'_, '_>) -> Result<()>;

pub(super) use replace::put_back;

/// The lowering of an operation; none where it is not supported.
pub(super) fn find(target: &str) -> Option<Lower> {
    let is_ours = target.starts_with("torch.ops.aten.")
        || target.starts_with("_operator.")
        || target.starts_with("math.");
    let name = base(target);
    let name = if is_in_place(name) { name.trim_end_matches('_') } else { name };
    let families = [
        elementwise::find,
        reduce::find,
        layout::find,
        index::find,
        bag::find,
        cell::find,
        loss::find,
        running::find,
        special::find,
        stacked::find,
        scatter::find,
        replace::find,
        sample::find,
        make::find,
        product::find,
        normalize::find,
        window::find,
        attention::find,
        recurrent::find,
        size::find,
    ];
    families.iter().find_map(|find| find(name)).filter(|_| is_ours)
}

/// Nodes that only assert what shapes say: they compute nothing.
pub(super) fn is_assertion(target: &str) -> bool {
    let asserting = ["_assert_", "sym_constrain_range", "_assert_async", "_assert_tensor_metadata"];
    // Comparisons of sizes are there for such nodes alone.
    let compares = ["eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_"];
    let of_sizes = target.strip_prefix("_operator.").is_some_and(|name| compares.contains(&name));
    of_sizes || asserting.iter().any(|prefix| base(target).starts_with(prefix))
}

/// The name of an operation without its library and overload: `add` of `torch.ops.aten.add.Tensor`.
pub(super) fn base(target: &str) -> &str {
    let name = target.strip_prefix("torch.ops.aten.").or_else(|| target.strip_prefix("_operator."));
    let name = name.or_else(|| target.strip_prefix("math.")).unwrap_or(target);
    name.split('.').next().unwrap_or(name)
}

/// Whether an operation writes over its first operand: `relu_`, and not `__and__`.
pub(super) fn is_in_place(name: &str) -> bool {
    name.ends_with('_') && !name.ends_with("__")
}

/// Whether the result of an operation may lie in its operand's memory.
pub(super) fn may_be_view(name: &str) -> bool {
    layout::VIEWS.contains(&name)
}
