//! Attributes of the operations that have several.

use super::{
    Cell, Direction, HeadOrder, Interpolation, Layout, PadMode, PoolKind, Real, ResizeCoordinates, Shape,
    Size,
};

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
    /// Position of the channel axis.
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
    /// Position of the channel axis.
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
    /// Position of the channel axis.
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
    /// Scale of each axis, where the source gives one; else it is out / in. Coordinates follow from the
    /// length that it gives before that is rounded down to a size, of aligned corners too: so ONNX's
    /// reference does, where onnxruntime takes the rounded one.
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
/// (i64). Equal elements are in the order of their positions.
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
    /// Of queries, keys and values: the first head that is used, where several are in one tensor.
    pub first: [i64; 3],
    /// Of queries, keys, values and result.
    pub orders: [HeadOrder; 4],
    /// Factor of the scores.
    pub scale: Real,
    /// Row `i` meets keys `0..=i + offset` alone.
    pub causal: Option<i64>,
    /// The last operand is the position of the first row among the keys, an `i64[]` that is added to the
    /// offset of `causal`: of a cache, only the part that is filled is read.
    pub positioned: bool,
    /// Score where a bool mask is false.
    pub fill: Real,
    /// A row whose weights are not numbers, as where no key is left to it, gives zeros.
    pub zeros: bool,
}
