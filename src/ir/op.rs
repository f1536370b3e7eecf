//! The operations, a closed set: every stage matches on [`Op`] exhaustively, so that a new one
//! fails to compile until each stage knows it.
//!
//! Elementwise operations broadcast as in NumPy. Layers that are compositions (layer norm with
//! scale and bias, dense with activation) are lowered by the loaders to these primitives; what
//! has a kernel of its own on every backend (softmax, normalisation, recurrent cells) is one
//! operation.

use super::names::names;
use super::{
    ArgReduce, Attention, AttentionOp, Binary, Cell, Compare, ConstId, Conv, ConvTranspose, DType, Family,
    GeneratorOp, IndexOp, LayoutOp, NormalizeOp, Packed, Pad, ParamId, Pool, Real, Recurrent, ReduceKind,
    Resize, ScatterKind, Shape, Size, Slice, TopK, Unary, WindowOp,
};

/// An operation with its attributes. Axes are never negative.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Handed over before each step.
    Input,
    /// A trained tensor.
    Param(ParamId),
    /// A tensor known when the graph was made.
    Constant(ConstId),
    /// A vector (or, with one size and a result of rank 0, a scalar) of i64 sizes, which becomes
    /// a constant when the dimensions are bound.
    Sizes(Box<[Size]>),
    /// The position along `axis`: 0, 1, 2, ...
    Iota {
        /// The axis along which the values grow.
        axis: u32,
    },
    /// A function of each element.
    Unary(Unary),
    /// A function of two elements.
    Binary(Binary),
    /// A comparison of two elements.
    Compare(Compare),
    /// Operands: condition (bool), value where true, value where false.
    Select,
    /// Each element as another type; floats to integers towards zero, anything to bool by `!= 0`.
    Convert {
        /// Type of the result.
        to: DType,
    },
    /// A reduction. Axes in ascending order.
    Reduce {
        /// What is computed.
        kind: ReduceKind,
        /// The axes that go.
        axes: Vec<u32>,
        /// Whether they stay, with size 1.
        keep: bool,
    },
    /// Position (i64) of the extreme element along an axis; the first, or the last, of equal ones.
    ArgReduce {
        /// Which extreme.
        kind: ArgReduce,
        /// The axis.
        axis: u32,
        /// Whether it stays, with size 1.
        keep: bool,
        /// The last of equal ones.
        last: bool,
    },
    /// Running sum along an axis.
    CumSum {
        /// The axis.
        axis: u32,
        /// Leaves out the element itself.
        exclusive: bool,
        /// From the last to the first.
        reverse: bool,
    },
    /// `e^x / sum e^x` along an axis, or its logarithm.
    Softmax {
        /// The axis.
        axis: u32,
        /// The logarithm.
        log: bool,
    },
    /// `(x - mean) / sqrt(variance + epsilon)` over the axes, or without `center`
    /// `x / sqrt(mean of squares + epsilon)`. With `moments` two more results, of the sizes without the
    /// axes: the means and the variances.
    Normalize {
        /// The axes, ascending.
        axes: Vec<u32>,
        /// Added under the root.
        epsilon: Real,
        /// Whether the mean is subtracted.
        center: bool,
        /// Whether means and variances are results; only with `center`.
        moments: bool,
    },
    /// The gradient of a softmax or its logarithm `y` by what it was taken of. Operands: `y` and the
    /// gradient `g` of it; the result is `y (g - sum of y g)`, or `g - e^y sum of g`.
    SoftmaxGradient {
        /// The axis.
        axis: u32,
        /// The logarithm.
        log: bool,
    },
    /// The cross-entropy of logits along the last axis. Operands: logits, and either integers, the
    /// position of each row's class (negative ones count from the end), or weights of the logits'
    /// type and sizes. With `p` the softmax, the result is `-ln p` of the class, or the sum of
    /// `-w ln p`; it has the logits' axes without the last one.
    CrossEntropy,
    /// The gradient of a cross-entropy by its logits. Operands: those of [`Op::CrossEntropy`] and the
    /// gradient `g` of its result; the result is `g (sum of w * p - w)`, where the class's weight is 1.
    CrossEntropyGradient,
    /// The gradients of a normalisation of `x`, scaled or not. Operands: `x`, the gradient `g` of the
    /// result, and where it is scaled the factor, which broadcasts to `x` and varies either along the
    /// axes alone and along all of them, or likewise along the others. With `n` the normalised `x`,
    /// `r` what its deviations were multiplied with, and `d` the product of `g` and the factor, the first
    /// result is `r (d - mean of d - n mean of d n)`, without `center` that without the mean of `d`.
    /// Where it is scaled, two more, of the factor's sizes: the sums of `g n`, its gradient, and of `g`.
    /// With `moments`, two operands more give the means and the variances, which are not computed again.
    NormalizeGradient {
        /// The axes, ascending.
        axes: Vec<u32>,
        /// Added under the root.
        epsilon: Real,
        /// Whether the mean is subtracted.
        center: bool,
        /// Whether there is a factor.
        scaled: bool,
        /// Whether means and variances are operands; only with `center`.
        moments: bool,
    },
    /// Local response normalisation over channels (axis 1):
    /// `x / (bias + alpha / size * sum of squares over the window) ^ beta`.
    LocalResponseNorm {
        /// Channels in the window.
        size: i64,
        /// Factor.
        alpha: Real,
        /// Exponent.
        beta: Real,
        /// Summand.
        bias: Real,
    },
    /// Matrix product over the last two axes; the axes before broadcast. Both operands have rank
    /// 2 or more. A wide product of bytes may have two operands more, zero points that are taken off before numbers are
    /// multiplied: of the left operand's type, one for all or one for each row of a matrix (`[m, 1]`), and of the right
    /// one's, one for all or one for each column (`[n]`).
    MatMul {
        /// The left operand is `[..., k, m]`.
        transpose_left: bool,
        /// The right operand is `[..., n, k]`.
        transpose_right: bool,
        /// The result of halves is of f32, in which they are summed; else it is rounded to their type. That of bytes,
        /// signed ones or not, is of i32, whose sums wrap.
        wide: bool,
        /// One operand may be of f32 where the other one is of halves: it is rounded to these as it is read.
        rounds: bool,
    },
    /// Packed rows as numbers. Operands: those of [`Packed`], whose last axes are the rows; the result has the
    /// others, and the columns.
    Unpack(Packed),
    /// Matrix product of `x`, of f32, with packed rows as the columns of a right operand: `x` times the transposed of
    /// what [`Op::Unpack`] gives. Operands: `x` and those of [`Packed`], of rank 2 or more; the axes before broadcast.
    PackedMatMul(Packed),
    /// Scaled dot product attention.
    Attention(Box<Attention>),
    /// The gradients of an attention by its queries, keys and values, of the heads that it uses, in their
    /// orders. Operands: those three, the attention's result, the gradient of that, and the mask where
    /// there is one. A row to which no key is left passes nothing on.
    AttentionGradient(Box<Attention>),
    /// Rotary embedding of the last axis, whose halves are `x1` and `x2`: operands `x`, `cos` and
    /// `sin`, which broadcast to `x`; the result is `x * cos + concat(-x2, x1) * sin`. This is linear in
    /// `x`; `transposed` is the transposed of it, `x * cos + concat(y2, -y1)` with `y = x * sin`.
    Rotary {
        /// The way back, which gradients take.
        transposed: bool,
    },
    /// A convolution.
    Conv(Box<Conv>),
    /// A transposed convolution.
    ConvTranspose(Box<ConvTranspose>),
    /// A pooling.
    Pool(Box<Pool>),
    /// The gradient of a pooling of the largest element by its input. Operands: the input, the result, and the
    /// gradient of that; each window's goes to the first of its elements that is as large as its result.
    MaxPoolGradient(Box<Pool>),
    /// A resize.
    Resize(Box<Resize>),
    /// A recurrent layer.
    Recurrent(Box<Recurrent>),
    /// The same elements in the same order, with other sizes.
    Reshape {
        /// The sizes.
        shape: Shape,
    },
    /// Axis `i` of the result is axis `perm[i]` of the operand.
    Transpose {
        /// The permutation.
        perm: Vec<u32>,
    },
    /// Repeats as NumPy's `broadcast_to`.
    Broadcast {
        /// The sizes.
        shape: Shape,
    },
    /// A strided part.
    Slice(Box<Slice>),
    /// Padding.
    Pad(Box<Pad>),
    /// Operands one after the other along an axis.
    Concat {
        /// The axis.
        axis: u32,
    },
    /// Operands: data, indices (integer; negative ones count from the end). The indices' axes
    /// replace `axis` of the data.
    Gather {
        /// The axis of the data that is indexed.
        axis: u32,
    },
    /// Operands: data, indices of the same rank; ONNX `GatherElements`.
    GatherElements {
        /// The axis that is indexed.
        axis: u32,
    },
    /// Operands: data, indices; ONNX `GatherND`.
    GatherNd {
        /// Number of leading axes that both share.
        batch_dims: u32,
    },
    /// Operands: data, indices, updates; ONNX `ScatterElements`.
    ScatterElements {
        /// The axis that is indexed.
        axis: u32,
        /// What happens where an update lands.
        kind: ScatterKind,
    },
    /// Operands: data, indices, updates; ONNX `ScatterND`.
    ScatterNd {
        /// What happens where an update lands.
        kind: ScatterKind,
    },
    /// Operands: data, a position (`i64[]`), an update of the data's sizes but along `axis`, where it is
    /// no longer. The result is the data with the update from that position on along the axis, which is to
    /// lie within it.
    UpdateSlice {
        /// The axis.
        axis: u32,
    },
    /// The largest or smallest elements.
    TopK(TopK),
    /// Operands: rows (`[rows, columns]`, f32 or f64); the roots of trees (`i32[trees]`); of each node of all trees the column
    /// that it looks at (`i32[nodes]`), what that is compared with (of the rows' type), and where it goes on (`i32[nodes]`). From
    /// each root on, `depth` times, `node = next[node] + (row[column[node]] <= split[node])`. The result (`i32[rows, trees]`)
    /// is where that ends. A leaf is a node that compares with what is no number and goes on at itself.
    TreeLeaves {
        /// How many steps there are at most: [`Op::DEEPEST`].
        depth: u32,
    },
}

impl Op {
    /// The most steps of [`Op::TreeLeaves`]: kernel programs have each one of them.
    pub const DEEPEST: u32 = 256;

    /// The name in the text form, without attributes.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Input => OpName::Input.name(),
            Self::Param(_) => OpName::Param.name(),
            Self::Constant(_) => OpName::Constant.name(),
            Self::Sizes(_) => OpName::Sizes.name(),
            Self::Iota { .. } => OpName::Iota.name(),
            Self::Unary(unary) => unary.name(),
            Self::Binary(binary) => binary.name(),
            Self::Compare(compare) => compare.name(),
            Self::Select => OpName::Select.name(),
            Self::Convert { .. } => OpName::Convert.name(),
            Self::Reduce { .. } => OpName::Reduce.name(),
            Self::ArgReduce { kind, .. } => kind.name(),
            Self::CumSum { .. } => OpName::CumSum.name(),
            Self::Softmax { .. } => OpName::Softmax.name(),
            Self::SoftmaxGradient { .. } => OpName::SoftmaxGradient.name(),
            Self::CrossEntropy => OpName::CrossEntropy.name(),
            Self::CrossEntropyGradient => OpName::CrossEntropyGradient.name(),
            Self::Normalize { .. } => OpName::Normalize.name(),
            Self::NormalizeGradient { .. } => OpName::NormalizeGradient.name(),
            Self::LocalResponseNorm { .. } => OpName::LocalResponseNorm.name(),
            Self::MatMul { .. } => OpName::MatMul.name(),
            Self::Unpack(_) => OpName::Unpack.name(),
            Self::PackedMatMul(_) => OpName::PackedMatMul.name(),
            Self::Attention(_) => OpName::Attention.name(),
            Self::AttentionGradient(_) => OpName::AttentionGradient.name(),
            Self::Rotary { .. } => OpName::Rotary.name(),
            Self::Conv(_) => OpName::Conv.name(),
            Self::ConvTranspose(_) => OpName::ConvTranspose.name(),
            Self::Pool(_) => OpName::Pool.name(),
            Self::MaxPoolGradient(_) => OpName::MaxPoolGradient.name(),
            Self::Resize(_) => OpName::Resize.name(),
            Self::Recurrent(_) => OpName::Recurrent.name(),
            Self::Reshape { .. } => OpName::Reshape.name(),
            Self::Transpose { .. } => OpName::Transpose.name(),
            Self::Broadcast { .. } => OpName::Broadcast.name(),
            Self::Slice(_) => OpName::Slice.name(),
            Self::Pad(_) => OpName::Pad.name(),
            Self::Concat { .. } => OpName::Concat.name(),
            Self::Gather { .. } => OpName::Gather.name(),
            Self::GatherElements { .. } => OpName::GatherElements.name(),
            Self::GatherNd { .. } => OpName::GatherNd.name(),
            Self::ScatterElements { .. } => OpName::ScatterElements.name(),
            Self::ScatterNd { .. } => OpName::ScatterNd.name(),
            Self::UpdateSlice { .. } => OpName::UpdateSlice.name(),
            Self::TopK(_) => OpName::TopK.name(),
            Self::TreeLeaves { .. } => OpName::TreeLeaves.name(),
        }
    }

    /// True for operations that read nothing and are there before a step: inputs, parameters,
    /// constants.
    pub fn is_leaf(&self) -> bool {
        matches!(self.family(), Family::Leaf)
    }

    /// True for functions of each element of operands that broadcast together.
    pub fn is_elementwise(&self) -> bool {
        matches!(self.family(), Family::Elementwise(_))
    }

    /// Number of results.
    pub fn results(&self) -> usize {
        match self.family() {
            Family::Leaf
            | Family::Generator(_)
            | Family::Elementwise(_)
            | Family::Layout(_)
            | Family::Window(_)
            | Family::Reduce(_)
            | Family::Product(_)
            | Family::Packed(_) => 1,
            Family::Index(op) => match op {
                IndexOp::Gather { .. }
                | IndexOp::GatherElements { .. }
                | IndexOp::GatherNd { .. }
                | IndexOp::ScatterElements { .. }
                | IndexOp::ScatterNd { .. }
                | IndexOp::UpdateSlice { .. }
                | IndexOp::TreeLeaves { .. } => 1,
                IndexOp::TopK(_) => 2,
            },
            Family::Normalize(op) => match op {
                NormalizeOp::Softmax(_)
                | NormalizeOp::SoftmaxGradient(_)
                | NormalizeOp::CrossEntropy
                | NormalizeOp::CrossEntropyGradient
                | NormalizeOp::LocalResponseNorm(_) => 1,
                NormalizeOp::Normalize(of) => {
                    if of.moments {
                        3
                    } else {
                        1
                    }
                }
                NormalizeOp::NormalizeGradient { scaled, .. } => {
                    if scaled {
                        3
                    } else {
                        1
                    }
                }
            },
            Family::Attention(op) => match op {
                AttentionOp::Attention(_) | AttentionOp::Rotary { .. } => 1,
                AttentionOp::AttentionGradient(_) => 3,
            },
            Family::Recurrent(layer) => {
                if layer.cell == Cell::Lstm {
                    3
                } else {
                    2
                }
            }
        }
    }

    /// The sizes among the attributes, which may mention dimensions.
    pub fn sizes(&self) -> impl Iterator<Item = &Size> {
        let none: (&[Size], &[Size]) = (&[], &[]);
        let (first, second) = match self.family() {
            Family::Generator(GeneratorOp::Sizes(sizes)) => (sizes, &[][..]),
            Family::Generator(GeneratorOp::Iota { .. }) => none,
            Family::Layout(op) => match op {
                LayoutOp::Reshape { shape } | LayoutOp::Broadcast { shape } => (shape.sizes(), &[][..]),
                LayoutOp::Slice(slice) => (&slice.starts[..], &slice.sizes[..]),
                LayoutOp::Transpose { .. } | LayoutOp::Pad(_) | LayoutOp::Concat { .. } => none,
            },
            Family::Window(op) => match op {
                WindowOp::Resize(resize) => (resize.shape.sizes(), &[][..]),
                WindowOp::Conv(_)
                | WindowOp::ConvTranspose(_)
                | WindowOp::Pool(_)
                | WindowOp::MaxPoolGradient(_) => none,
            },
            Family::Leaf
            | Family::Elementwise(_)
            | Family::Index(_)
            | Family::Reduce(_)
            | Family::Normalize(_)
            | Family::Product(_)
            | Family::Packed(_)
            | Family::Attention(_)
            | Family::Recurrent(_) => none,
        };
        first.iter().chain(second)
    }
}

names! {
    /// The names of operations that have one of their own; the others have their function's
    /// ([`Unary`], [`Binary`], [`Compare`], [`ArgReduce`]). The reader of the text form matches on it
    /// exhaustively.
    OpName {
        /// [`Op::Input`]
        Input = "input",
        /// [`Op::Param`]
        Param = "param",
        /// [`Op::Constant`]
        Constant = "constant",
        /// [`Op::Sizes`]
        Sizes = "sizes",
        /// [`Op::Iota`]
        Iota = "iota",
        /// [`Op::Select`]
        Select = "select",
        /// [`Op::Convert`]
        Convert = "convert",
        /// [`Op::Reduce`]
        Reduce = "reduce",
        /// [`Op::CumSum`]
        CumSum = "cumsum",
        /// [`Op::Softmax`]
        Softmax = "softmax",
        /// [`Op::SoftmaxGradient`]
        SoftmaxGradient = "softmax_gradient",
        /// [`Op::CrossEntropy`]
        CrossEntropy = "cross_entropy",
        /// [`Op::CrossEntropyGradient`]
        CrossEntropyGradient = "cross_entropy_gradient",
        /// [`Op::Normalize`]
        Normalize = "normalize",
        /// [`Op::NormalizeGradient`]
        NormalizeGradient = "normalize_gradient",
        /// [`Op::LocalResponseNorm`]
        LocalResponseNorm = "local_response_norm",
        /// [`Op::MatMul`]
        MatMul = "matmul",
        /// [`Op::Unpack`]
        Unpack = "unpack",
        /// [`Op::PackedMatMul`]
        PackedMatMul = "packed_matmul",
        /// [`Op::Attention`]
        Attention = "attention",
        /// [`Op::AttentionGradient`]
        AttentionGradient = "attention_gradient",
        /// [`Op::Rotary`]
        Rotary = "rotary",
        /// [`Op::Conv`]
        Conv = "conv",
        /// [`Op::ConvTranspose`]
        ConvTranspose = "conv_transpose",
        /// [`Op::Pool`]
        Pool = "pool",
        /// [`Op::MaxPoolGradient`]
        MaxPoolGradient = "max_pool_gradient",
        /// [`Op::Resize`]
        Resize = "resize",
        /// [`Op::Recurrent`]
        Recurrent = "recurrent",
        /// [`Op::Reshape`]
        Reshape = "reshape",
        /// [`Op::Transpose`]
        Transpose = "transpose",
        /// [`Op::Broadcast`]
        Broadcast = "broadcast",
        /// [`Op::Slice`]
        Slice = "slice",
        /// [`Op::Pad`]
        Pad = "pad",
        /// [`Op::Concat`]
        Concat = "concat",
        /// [`Op::Gather`]
        Gather = "gather",
        /// [`Op::GatherElements`]
        GatherElements = "gather_elements",
        /// [`Op::GatherNd`]
        GatherNd = "gather_nd",
        /// [`Op::ScatterElements`]
        ScatterElements = "scatter_elements",
        /// [`Op::ScatterNd`]
        ScatterNd = "scatter_nd",
        /// [`Op::UpdateSlice`]
        UpdateSlice = "update_slice",
        /// [`Op::TopK`]
        TopK = "topk",
        /// [`Op::TreeLeaves`]
        TreeLeaves = "tree_leaves",
    }
}
