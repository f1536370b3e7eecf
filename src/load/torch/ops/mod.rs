//! Operations of ATen as ONNX operators, by family.

use super::call::Call;
use super::schema::{NamedArgument, Node};
use crate::error::Result;

mod attention;
mod bag;
mod cell;
mod complex;
mod elementwise;
mod experts;
mod exponential;
mod fourier;
mod gamma;
mod index;
mod layout;
mod loss;
mod lu;
mod make;
mod margin;
mod norm;
mod normalize;
mod polynomial;
mod product;
mod quantized;
mod random;
mod ranked;
mod recurrent;
mod reduce;
mod reflected;
mod repeated;
mod replace;
mod running;
mod sample;
mod scatter;
mod shift;
mod singular;
mod size;
mod slope;
mod solve;
mod special;
mod stacked;
mod strided;
mod unique;
mod vision;
mod window;

/// Lowers a node.
pub(super) type Lower = fn(&mut Call<'_, '_>) -> Result<()>;

pub(super) use complex::{parts_of, put_back};

/// The lowering of an operation that has complex numbers; none where it is not supported.
pub(super) fn find_complex(target: &str) -> Option<Lower> {
    let name = plain(base(target));
    let found = complex::find(name).or_else(|| complex::find(of_copy(name)?));
    found.filter(|_| target.starts_with("torch.ops.aten."))
}

fn plain(name: &str) -> &str {
    if is_in_place(name) { name.trim_end_matches('_') } else { name }
}

/// The lowering of an operation; none where it is not supported.
pub(super) fn find(target: &str) -> Option<Lower> {
    if let Some(end_of_body) = repeated::find(target) {
        return Some(end_of_body);
    }
    let is_ours = LIBRARIES.iter().any(|library| target.starts_with(library))
        || target.starts_with("_operator.")
        || target.starts_with(OF_SIZES)
        || target.starts_with("math.");
    let name = plain(base(target));
    let families = [
        elementwise::find,
        experts::find,
        exponential::find,
        fourier::find,
        gamma::find,
        reduce::find,
        layout::find,
        index::find,
        bag::find,
        cell::find,
        loss::find,
        lu::find,
        margin::find,
        running::find,
        special::find,
        stacked::find,
        strided::find,
        scatter::find,
        replace::find,
        sample::find,
        make::find,
        polynomial::find,
        product::find,
        quantized::find,
        random::find,
        ranked::find,
        normalize::find,
        window::find,
        attention::find,
        recurrent::find,
        reflected::find,
        shift::find,
        singular::find,
        size::find,
        solve::find,
        unique::find,
        vision::find,
    ];
    let named = |name: &str| families.iter().find_map(|find| find(name));
    named(name).or_else(|| named(of_copy(name)?)).filter(|_| is_ours)
}

/// The operation that gives a view where this one copies what the view shows: `view` of `view_copy`.
pub(super) fn of_copy(name: &str) -> Option<&str> {
    let view = name.strip_suffix("_copy").filter(|_| !may_be_view(name))?;
    [view, view.trim_start_matches('_')].into_iter().find(|view| may_be_view(view))
}

/// PyTorch's own operations, and those that transformers, torchvision and torchao add.
const LIBRARIES: [&str; 5] = [
    "torch.ops.aten.",
    "torch.ops.quantized_decomposed.",
    "torch.ops.torchao.",
    "torch.ops.torchvision.",
    "torch.ops.transformers.",
];

/// What Python's own operators do not do with sizes.
const OF_SIZES: &str = "torch.sym_";

/// Nodes that only assert what shapes say, or that something succeeded: they compute nothing.
pub(super) fn is_assertion(node: &Node) -> bool {
    let of = |argument: &NamedArgument| argument.arg.parts().1.as_str().is_some_and(asserts);
    asserts(&node.target) || is_with_effects(&node.target) && node.inputs.iter().any(of)
}

/// What keeps the order of operations that do something beside computing.
fn is_with_effects(target: &str) -> bool {
    target == "torch.ops.higher_order.with_effects"
}

fn asserts(target: &str) -> bool {
    let asserting = [
        "_assert_",
        "_linalg_check_errors",
        "sym_constrain_range",
        "_assert_async",
        "_assert_tensor_metadata",
        "_cuda_version",
    ];
    // Comparisons of sizes are there for such nodes alone.
    let compares = ["eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_"];
    let of_sizes = target.strip_prefix("_operator.").is_some_and(|name| compares.contains(&name));
    let of_sizes = of_sizes || target == "torch.sym_not";
    of_sizes || asserting.iter().any(|prefix| base(target).starts_with(prefix))
}

/// The name of an operation without its library and overload: `add` of `torch.ops.aten.add.Tensor`.
pub(super) fn base(target: &str) -> &str {
    let name = LIBRARIES.iter().find_map(|library| target.strip_prefix(library));
    let name = name.or_else(|| target.strip_prefix("_operator."));
    let name = name.or_else(|| target.strip_prefix("torch.").filter(|_| target.starts_with(OF_SIZES)));
    let name = name.or_else(|| target.strip_prefix("math.")).unwrap_or(target);
    let name = name.split('.').next().unwrap_or(name);
    let own = ALIASES.iter().find(|(alias, _)| *alias == name.strip_suffix('_').unwrap_or(name));
    match own {
        Some((_, [plain, in_place])) => {
            if name.ends_with('_') {
                in_place
            } else {
                plain
            }
        }
        None => name,
    }
}

/// Operations of two names: the one that is read here, and that of the form that writes over its operand.
const ALIASES: [(&str, [&str; 2]); 34] = [
    ("absolute", ["abs", "abs_"]),
    ("arccos", ["acos", "acos_"]),
    ("arccosh", ["acosh", "acosh_"]),
    ("arcsin", ["asin", "asin_"]),
    ("arcsinh", ["asinh", "asinh_"]),
    ("arctan", ["atan", "atan_"]),
    ("arctan2", ["atan2", "atan2_"]),
    ("arctanh", ["atanh", "atanh_"]),
    ("argwhere", ["nonzero", "nonzero_"]),
    ("clip", ["clamp", "clamp_"]),
    ("concat", ["cat", "cat_"]),
    ("concatenate", ["cat", "cat_"]),
    ("divide", ["div", "div_"]),
    ("fix", ["trunc", "trunc_"]),
    ("ger", ["outer", "outer_"]),
    ("greater", ["gt", "gt_"]),
    ("greater_equal", ["ge", "ge_"]),
    ("less", ["lt", "lt_"]),
    ("less_equal", ["le", "le_"]),
    ("linalg_matmul", ["matmul", "matmul_"]),
    ("mH", ["adjoint", "adjoint_"]),
    ("matrix_H", ["adjoint", "adjoint_"]),
    ("moveaxis", ["movedim", "movedim_"]),
    ("multiply", ["mul", "mul_"]),
    ("negative", ["neg", "neg_"]),
    ("not_equal", ["ne", "ne_"]),
    ("reshape_as", ["view_as", "view_as_"]),
    ("special_exp2", ["exp2", "exp2_"]),
    ("special_expm1", ["expm1", "expm1_"]),
    ("special_log1p", ["log1p", "log1p_"]),
    ("special_softmax", ["softmax", "softmax_"]),
    ("subtract", ["sub", "sub_"]),
    ("swapdims", ["swapaxes", "swapaxes_"]),
    ("true_divide", ["div", "div_"]),
];

/// Whether an operation writes over its first operand: `relu_`, and not `__and__`.
pub(super) fn is_in_place(name: &str) -> bool {
    name.ends_with('_') && !name.ends_with("__")
}

/// Whether an operation makes rows of a table no longer than they may be, and nothing else.
pub(super) fn shortens_rows(name: &str) -> bool {
    matches!(name, "embedding_renorm" | "embedding_renorm_")
}

/// Whether the result of an operation may lie in its operand's memory.
pub(super) fn may_be_view(name: &str) -> bool {
    layout::VIEWS.contains(&name)
}

/// Whether results of an operation may lie in the memory of the tensors that it lists, of which there are so many.
pub(super) fn may_be_view_of_list(name: &str, count: usize) -> bool {
    match name {
        "broadcast_tensors" | "meshgrid" => true,
        "cartesian_prod" | "chain_matmul" => count == 1,
        _ => false,
    }
}
