//! The operations, a closed set: every stage matches on [`Op`] exhaustively, so that a new one
//! fails to compile until each stage knows it.
//!
//! Elementwise operations broadcast as in NumPy. Layers that are compositions (layer norm with
//! scale and bias, dense with activation) are lowered by the loaders to these primitives; what
//! has a kernel of its own on every backend (softmax, normalisation, recurrent cells) is one
//! operation.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::{ConstId, DType, ParamId, Shape, Size};

/// A real attribute, compared by its bits so that operations can be keys.
#[derive(Clone, Copy, Debug)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Real {}

impl Hash for Real {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// Prints the shortest decimal that reads back to the same bits.
impl fmt::Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
        }

        impl $name {
            /// Every one, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in the text form.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The one with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(super) use names;

names! {
    /// Functions of one element. The type of the result is that of the operand, except for
    /// `not` (bool to bool) and `is_nan`, `is_inf` (float to bool).
    Unary {
        /// `-x`
        Neg = "neg",
        /// `|x|`
        Abs = "abs",
        /// -1, 0 or 1
        Sign = "sign",
        /// `e^x`
        Exp = "exp",
        /// natural logarithm
        Log = "log",
        /// square root
        Sqrt = "sqrt",
        /// `1 / x`
        Reciprocal = "reciprocal",
        /// largest integer not above
        Floor = "floor",
        /// smallest integer not below
        Ceil = "ceil",
        /// nearest integer, ties to even
        Round = "round",
        /// sine
        Sin = "sin",
        /// cosine
        Cos = "cos",
        /// hyperbolic tangent
        Tanh = "tanh",
        /// `1 / (1 + e^-x)`
        Sigmoid = "sigmoid",
        /// error function
        Erf = "erf",
        /// `max(x, 0)`
        Relu = "relu",
        /// `x * (1 + erf(x / sqrt 2)) / 2`
        Gelu = "gelu",
        /// `x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2`
        GeluTanh = "gelu_tanh",
        /// `x * sigmoid(x)`
        Silu = "silu",
        /// `log(1 + e^x)`
        Softplus = "softplus",
        /// logical negation
        Not = "not",
        /// true where not a number
        IsNan = "is_nan",
        /// true where infinite
        IsInf = "is_inf",
    }
}

names! {
    /// Functions of two elements of one type, with that type as result. `and`, `or`, `xor` are
    /// of bools, or bitwise of integers; `hash` is of i64.
    Binary {
        /// `x + y`
        Add = "add",
        /// `x - y`
        Sub = "sub",
        /// `x * y`
        Mul = "mul",
        /// `x / y`; of integers towards zero
        Div = "div",
        /// remainder with the sign of the divisor
        Mod = "mod",
        /// remainder with the sign of the dividend
        Rem = "rem",
        /// `x ^ y`
        Pow = "pow",
        /// the larger; not a number where either is not
        Max = "max",
        /// the smaller; not a number where either is not
        Min = "min",
        /// both
        And = "and",
        /// either
        Or = "or",
        /// one of the two
        Xor = "xor",
        /// of i64: the bits at position `x` of the random stream `y`, see [`random_bits`](super::random_bits)
        Hash = "hash",
    }
}

impl Binary {
    /// True for those of bools and integers alone, bit by bit.
    pub const fn is_of_bits(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor | Self::Hash)
    }
}

names! {
    /// Comparisons of two elements of one type; the result is a bool.
    Compare {
        /// equal
        Eq = "eq",
        /// not equal
        Ne = "ne",
        /// less
        Lt = "lt",
        /// less or equal
        Le = "le",
        /// greater
        Gt = "gt",
        /// greater or equal
        Ge = "ge",
    }
}

names! {
    /// Reductions over axes.
    ReduceKind {
        /// sum
        Sum = "sum",
        /// arithmetic mean
        Mean = "mean",
        /// product
        Prod = "prod",
        /// largest
        Max = "max",
        /// smallest
        Min = "min",
    }
}

names! {
    /// What the position of an extreme element is taken of.
    ArgReduce {
        /// the largest
        Max = "argmax",
        /// the smallest
        Min = "argmin",
    }
}

names! {
    /// Where the channels stand in the tensors of a convolution or a pooling.
    Layout {
        /// `[batch, channels, spatial...]`; convolution weights `[out, in/groups, spatial...]`
        ChannelsFirst = "channels_first",
        /// `[batch, spatial..., channels]`; convolution weights `[spatial..., in/groups, out]`
        ChannelsLast = "channels_last",
    }
}

names! {
    /// Where the heads stand in a tensor of attention.
    HeadOrder {
        /// `[batch, heads, rows, size]`
        HeadsFirst = "heads_first",
        /// `[batch, rows, heads, size]`
        RowsFirst = "rows_first",
    }
}

names! {
    /// What a pooling computes over its window.
    PoolKind {
        /// the largest; padding never counts
        Max = "max",
        /// the mean over the elements that are not padding
        Average = "average",
        /// the sum divided by the window's size, padding counted as zero
        AverageWithPadding = "average_with_padding",
    }
}

names! {
    /// What padding holds.
    PadMode {
        /// a constant
        Constant = "constant",
        /// the mirror image, without the edge
        Reflect = "reflect",
        /// the edge, repeated
        Edge = "edge",
    }
}

names! {
    /// What a scatter does where it writes.
    ScatterKind {
        /// replaces; the last of several updates of one element wins
        Replace = "replace",
        /// adds, in the order of the updates
        Add = "add",
        /// multiplies
        Mul = "mul",
        /// keeps the larger
        Max = "max",
        /// keeps the smaller
        Min = "min",
    }
}

names! {
    /// How a resize finds values between samples.
    Interpolation {
        /// the nearest sample; ties round down (ONNX `round_prefer_floor`)
        Nearest = "nearest",
        /// the nearest sample at or below (ONNX `floor`)
        NearestFloor = "nearest_floor",
        /// linear along each resized axis
        Linear = "linear",
    }
}

names! {
    /// Which sample of the input an output coordinate falls on (ONNX's names).
    ResizeCoordinates {
        /// `(x + 0.5) / scale - 0.5`
        HalfPixel = "half_pixel",
        /// as half_pixel; 0 where the output has one element
        PytorchHalfPixel = "pytorch_half_pixel",
        /// `x / scale`
        Asymmetric = "asymmetric",
        /// `x * (in - 1) / (out - 1)`
        AlignCorners = "align_corners",
    }
}

names! {
    /// The cell of a recurrent layer. Gates stand in the weights in the order given here.
    Cell {
        /// tanh cell
        Rnn = "rnn",
        /// long short-term memory; gates input, output, forget, cell
        Lstm = "lstm",
        /// gated recurrent unit; gates update, reset, hidden; the reset gate is applied before
        /// the recurrent product
        Gru = "gru",
        /// the same with the reset gate applied after the recurrent product (and its bias)
        GruResetAfter = "gru_reset_after",
    }
}

names! {
    /// The order in which a recurrent layer reads its sequence.
    Direction {
        /// first to last
        Forward = "forward",
        /// last to first
        Reverse = "reverse",
        /// both; results are stacked
        Bidirectional = "bidirectional",
    }
}

/// Window of a convolution or pooling; all lists have one entry for each spatial axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Steps between windows; at least 1.
    pub strides: Vec<i64>,
    /// Steps between the elements of a window; at least 1.
    pub dilations: Vec<i64>,
    /// Padding before; at least 0.
    pub pads_before: Vec<i64>,
    /// Padding after; at least 0.
    pub pads_after: Vec<i64>,
}

/// A convolution (cross-correlation). Operands: input, weights, and optionally a bias of the
/// number of output channels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conv {
    /// Where the channels stand.
    pub layout: Layout,
    /// Strides, dilations and padding.
    pub window: Window,
    /// Number of groups of channels that do not mix.
    pub groups: i64,
}

/// A transposed convolution. Operands as [`Conv`]; weights are `[in, out/groups, spatial...]`
/// channels first and `[spatial..., out/groups, in]` channels last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvTranspose {
    /// Where the channels stand.
    pub layout: Layout,
    /// Strides, dilations, and how much of the full result is cut off on each side.
    pub window: Window,
    /// Rows added after, for each spatial axis.
    pub output_padding: Vec<i64>,
    /// Number of groups of channels that do not mix.
    pub groups: i64,
}

/// A pooling. Operand: input. The number of windows is
/// `(size + pads - (dilation * (kernel - 1) + 1)) / stride + 1`, rounded down; loaders express
/// rounding up through `pads_after`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// What is computed.
    pub kind: PoolKind,
    /// Where the channels stand.
    pub layout: Layout,
    /// Size of the window along each spatial axis.
    pub kernel: Vec<i64>,
    /// Strides, dilations and padding.
    pub window: Window,
    /// For [`PoolKind::AverageWithPadding`]: how much of `pads_after` exists only through
    /// rounding up, and so never counts. One for each spatial axis.
    pub extra_after: Vec<i64>,
}

/// A resize to the sizes of the result. Operand: input, of the same rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resize {
    /// Sizes of the result.
    pub shape: Shape,
    /// How values between samples are found.
    pub interpolation: Interpolation,
    /// Which sample an output coordinate falls on.
    pub coordinates: ResizeCoordinates,
    /// Scale of each axis, where the source gives one; else it is out / in.
    pub scales: Option<Vec<Real>>,
}

/// Padding, or cropping where an amount is negative. Operand: input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pad {
    /// Added before, for each axis.
    pub before: Vec<i64>,
    /// Added after, for each axis.
    pub after: Vec<i64>,
    /// What the padding holds.
    pub mode: PadMode,
    /// The constant, for [`PadMode::Constant`].
    pub value: Real,
}

/// A strided part. Operand: input. Element `i` of the result along an axis is element
/// `start + i * step` of the operand; `size` of them. A negative step reads backwards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// First element along each axis.
    pub starts: Vec<Size>,
    /// Number of elements along each axis.
    pub sizes: Vec<Size>,
    /// Step along each axis; not 0.
    pub steps: Vec<i64>,
}

/// The largest (or smallest) elements along an axis, sorted. Two results: values, and positions
/// (i64). Equal elements stand in the order of their positions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopK {
    /// The axis.
    pub axis: u32,
    /// How many.
    pub k: i64,
    /// Largest first, or smallest first.
    pub largest: bool,
}

/// A recurrent layer over a sequence. Operands, as in ONNX: input `[time, batch, in]`, weights
/// `[directions, gates*hidden, in]`, recurrent weights `[directions, gates*hidden, hidden]`, bias
/// `[directions, 2*gates*hidden]` (input biases, then recurrent ones), initial hidden state
/// `[directions, batch, hidden]`, and for an LSTM the initial cell state likewise. Results:
/// all hidden states `[time, directions, batch, hidden]`, the last hidden state
/// `[directions, batch, hidden]`, and for an LSTM the last cell state likewise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recurrent {
    /// The cell.
    pub cell: Cell,
    /// The order in which the sequence is read.
    pub direction: Direction,
    /// Size of the hidden state.
    pub hidden: i64,
}

/// Scaled dot product attention. Operands, each of rank 4: queries, keys, values, and optionally a
/// mask, which broadcasts to `[batch, heads, rows, keys]`. With `s = scale * q k^T`, plus the mask
/// where it is a float, or `fill` in its place where a bool mask is false, the result is
/// `softmax(s) v` over the keys. Query head `h` meets key and value head `h * key_heads / heads`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Heads of the queries and of the result.
    pub heads: i64,
    /// Heads of keys and values; divides `heads`.
    pub key_heads: i64,
    /// Of queries, keys and values: the first head that is used, where several lie in one tensor.
    pub first: [i64; 3],
    /// Of queries, keys, values and result.
    pub orders: [HeadOrder; 4],
    /// Factor of the scores.
    pub scale: Real,
    /// Row `i` meets keys `0..=i + offset` alone.
    pub causal: Option<i64>,
    /// Score where a bool mask is false.
    pub fill: Real,
    /// A row whose weights are not numbers, as where no key is left to it, gives zeros.
    pub zeros: bool,
}

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
    /// `x / sqrt(mean of squares + epsilon)`.
    Normalize {
        /// The axes, ascending.
        axes: Vec<u32>,
        /// Added under the root.
        epsilon: Real,
        /// Whether the mean is subtracted.
        center: bool,
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
    NormalizeGradient {
        /// The axes, ascending.
        axes: Vec<u32>,
        /// Added under the root.
        epsilon: Real,
        /// Whether the mean is subtracted.
        center: bool,
        /// Whether there is a factor.
        scaled: bool,
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
    /// 2 or more.
    MatMul {
        /// The left operand is `[..., k, m]`.
        transpose_left: bool,
        /// The right operand is `[..., n, k]`.
        transpose_right: bool,
    },
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
    /// The largest or smallest elements.
    TopK(TopK),
}

impl Op {
    /// The name in the text form, without attributes.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Param(_) => "param",
            Self::Constant(_) => "constant",
            Self::Sizes(_) => "sizes",
            Self::Iota { .. } => "iota",
            Self::Unary(unary) => unary.name(),
            Self::Binary(binary) => binary.name(),
            Self::Compare(compare) => compare.name(),
            Self::Select => "select",
            Self::Convert { .. } => "convert",
            Self::Reduce { .. } => "reduce",
            Self::ArgReduce { kind, .. } => kind.name(),
            Self::CumSum { .. } => "cumsum",
            Self::Softmax { .. } => "softmax",
            Self::SoftmaxGradient { .. } => "softmax_gradient",
            Self::CrossEntropy => "cross_entropy",
            Self::CrossEntropyGradient => "cross_entropy_gradient",
            Self::Normalize { .. } => "normalize",
            Self::NormalizeGradient { .. } => "normalize_gradient",
            Self::LocalResponseNorm { .. } => "local_response_norm",
            Self::MatMul { .. } => "matmul",
            Self::Attention(_) => "attention",
            Self::AttentionGradient(_) => "attention_gradient",
            Self::Rotary { .. } => "rotary",
            Self::Conv(_) => "conv",
            Self::ConvTranspose(_) => "conv_transpose",
            Self::Pool(_) => "pool",
            Self::Resize(_) => "resize",
            Self::Recurrent(_) => "recurrent",
            Self::Reshape { .. } => "reshape",
            Self::Transpose { .. } => "transpose",
            Self::Broadcast { .. } => "broadcast",
            Self::Slice(_) => "slice",
            Self::Pad(_) => "pad",
            Self::Concat { .. } => "concat",
            Self::Gather { .. } => "gather",
            Self::GatherElements { .. } => "gather_elements",
            Self::GatherNd { .. } => "gather_nd",
            Self::ScatterElements { .. } => "scatter_elements",
            Self::ScatterNd { .. } => "scatter_nd",
            Self::TopK(_) => "topk",
        }
    }

    /// True for operations that read nothing and are there before a step: inputs, parameters,
    /// constants.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Self::Input | Self::Param(_) | Self::Constant(_))
    }

    /// True for functions of each element of operands that broadcast together.
    pub fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Self::Unary(_) | Self::Binary(_) | Self::Compare(_) | Self::Select | Self::Convert { .. }
        )
    }

    /// Number of results.
    pub fn results(&self) -> usize {
        match self {
            Self::TopK(_) => 2,
            Self::NormalizeGradient { scaled: true, .. } | Self::AttentionGradient(_) => 3,
            Self::Recurrent(recurrent) if recurrent.cell == Cell::Lstm => 3,
            Self::Recurrent(_) => 2,
            _ => 1,
        }
    }

    /// The sizes among the attributes, which may mention dimensions.
    pub fn sizes(&self) -> impl Iterator<Item = &Size> {
        let (first, second): (&[Size], &[Size]) = match self {
            Self::Sizes(sizes) => (sizes, &[]),
            Self::Reshape { shape } | Self::Broadcast { shape } => (shape.sizes(), &[]),
            Self::Resize(resize) => (resize.shape.sizes(), &[]),
            Self::Slice(slice) => (&slice.starts, &slice.sizes),
            Self::Input
            | Self::Param(_)
            | Self::Constant(_)
            | Self::Iota { .. }
            | Self::Unary(_)
            | Self::Binary(_)
            | Self::Compare(_)
            | Self::Select
            | Self::Convert { .. }
            | Self::Reduce { .. }
            | Self::ArgReduce { .. }
            | Self::CumSum { .. }
            | Self::Softmax { .. }
            | Self::SoftmaxGradient { .. }
            | Self::CrossEntropy
            | Self::CrossEntropyGradient
            | Self::Normalize { .. }
            | Self::NormalizeGradient { .. }
            | Self::LocalResponseNorm { .. }
            | Self::MatMul { .. }
            | Self::Attention(_)
            | Self::AttentionGradient(_)
            | Self::Rotary { .. }
            | Self::Conv(_)
            | Self::ConvTranspose(_)
            | Self::Pool(_)
            | Self::Recurrent(_)
            | Self::Transpose { .. }
            | Self::Pad(_)
            | Self::Concat { .. }
            | Self::Gather { .. }
            | Self::GatherElements { .. }
            | Self::GatherNd { .. }
            | Self::ScatterElements { .. }
            | Self::ScatterNd { .. }
            | Self::TopK(_) => (&[], &[]),
        };
        first.iter().chain(second)
    }
}
