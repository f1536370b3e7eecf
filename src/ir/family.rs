//! Families of operations. Every stage has a file or a function for each, under the same name: inference,
//! gradients, folding, costs, lowering, the kernels of the CPU.
//!
//! [`Op::family`] is the only list of all operations by family. A stage matches on the family, and the family's
//! own file on its operations, both without `_`: a new operation fails to compile until each stage knows it.
//!
//! Random bits are of the elementwise family: they are a function of a position and a stream
//! ([`Binary::Hash`]), so no operation keeps a state.

use super::{
    ArgReduce, Attention, Binary, Compare, Conv, ConvTranspose, DType, Op, Packed, Pad, Pool, Real,
    Recurrent, ReduceKind, Resize, ScatterKind, Shape, Size, Slice, TopK, Unary,
};

/// An operation as a member of its family. Attributes are documented at [`Op`].
#[derive(Clone, Copy, Debug)]
pub enum Family<'a> {
    /// Inputs, parameters and constants: there before a step.
    Leaf,
    /// Made of sizes alone.
    Generator(GeneratorOp<'a>),
    /// Functions of each element.
    Elementwise(ElementwiseOp),
    /// Moves elements to positions that do not depend on data.
    Layout(LayoutOp<'a>),
    /// Moves elements to or from positions that are data.
    Index(IndexOp<'a>),
    /// Walks windows of spatial axes.
    Window(WindowOp<'a>),
    /// Combines the elements along axes.
    Reduce(ReduceOp<'a>),
    /// Divides rows by what is summed over them, and what is made of that.
    Normalize(NormalizeOp<'a>),
    /// The matrix product.
    Product(MatMul),
    /// Weights of few bits.
    Packed(PackedOp),
    /// Attention, and the embedding of positions before it.
    Attention(AttentionOp<'a>),
    /// A recurrent layer.
    Recurrent(&'a Recurrent),
}

/// See [`Family::Generator`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub enum GeneratorOp<'a> {
    Sizes(&'a [Size]),
    Iota { axis: u32 },
}

/// See [`Family::Elementwise`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub enum ElementwiseOp {
    Unary(Unary),
    Binary(Binary),
    Compare(Compare),
    Select,
    Convert { to: DType },
}

/// See [`Family::Layout`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub enum LayoutOp<'a> {
    Reshape { shape: &'a Shape },
    Transpose { perm: &'a [u32] },
    Broadcast { shape: &'a Shape },
    Slice(&'a Slice),
    Pad(&'a Pad),
    Concat { axis: u32 },
}

/// See [`Family::Index`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub enum IndexOp<'a> {
    Gather { axis: u32 },
    GatherElements { axis: u32 },
    GatherNd { batch_dims: u32 },
    ScatterElements { axis: u32, kind: ScatterKind },
    ScatterNd { kind: ScatterKind },
    UpdateSlice { axis: u32 },
    TopK(&'a TopK),
    TreeLeaves { depth: u32 },
}

/// See [`Family::Window`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub enum WindowOp<'a> {
    Conv(&'a Conv),
    ConvTranspose(&'a ConvTranspose),
    Pool(&'a Pool),
    MaxPoolGradient(&'a Pool),
    Resize(&'a Resize),
}

/// See [`Family::Reduce`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub enum ReduceOp<'a> {
    Reduce { kind: ReduceKind, axes: &'a [u32], keep: bool },
    ArgReduce { kind: ArgReduce, axis: u32, keep: bool, last: bool },
    CumSum(CumSum),
}

/// See [`Family::Normalize`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub enum NormalizeOp<'a> {
    Softmax(Softmax),
    SoftmaxGradient(Softmax),
    CrossEntropy,
    CrossEntropyGradient,
    Normalize(Normalization<'a>),
    NormalizeGradient { of: Normalization<'a>, scaled: bool },
    LocalResponseNorm(LocalResponse),
}

/// See [`Family::Packed`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub enum PackedOp {
    Unpack(Packed),
    MatMul(Packed),
}

/// See [`Family::Attention`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub enum AttentionOp<'a> {
    Attention(&'a Attention),
    AttentionGradient(&'a Attention),
    Rotary { transposed: bool },
}

/// Attributes of [`Op::CumSum`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub struct CumSum {
    pub axis: u32,
    pub exclusive: bool,
    pub reverse: bool,
}

/// Attributes of [`Op::Softmax`] and its gradient.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub struct Softmax {
    pub axis: u32,
    pub log: bool,
}

/// Attributes of [`Op::Normalize`] and its gradient.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub struct Normalization<'a> {
    pub axes: &'a [u32],
    pub epsilon: f64,
    pub center: bool,
    pub moments: bool,
}

/// Attributes of [`Op::LocalResponseNorm`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub struct LocalResponse {
    pub size: i64,
    pub alpha: f64,
    pub beta: f64,
    pub bias: f64,
}

/// Attributes of [`Op::MatMul`]: which operands are transposed, and which types are those of halves.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "documented at Op")]
pub struct MatMul {
    pub transpose_left: bool,
    pub transpose_right: bool,
    pub wide: bool,
    pub rounds: bool,
}

impl Op {
    /// The operation as a member of its family.
    pub fn family(&self) -> Family<'_> {
        match self {
            Self::Input | Self::Param(_) | Self::Constant(_) => Family::Leaf,

            Self::Sizes(sizes) => Family::Generator(GeneratorOp::Sizes(sizes)),
            &Self::Iota { axis } => Family::Generator(GeneratorOp::Iota { axis }),

            &Self::Unary(f) => Family::Elementwise(ElementwiseOp::Unary(f)),
            &Self::Binary(f) => Family::Elementwise(ElementwiseOp::Binary(f)),
            &Self::Compare(f) => Family::Elementwise(ElementwiseOp::Compare(f)),
            Self::Select => Family::Elementwise(ElementwiseOp::Select),
            &Self::Convert { to } => Family::Elementwise(ElementwiseOp::Convert { to }),

            Self::Reshape { shape } => Family::Layout(LayoutOp::Reshape { shape }),
            Self::Transpose { perm } => Family::Layout(LayoutOp::Transpose { perm }),
            Self::Broadcast { shape } => Family::Layout(LayoutOp::Broadcast { shape }),
            Self::Slice(slice) => Family::Layout(LayoutOp::Slice(slice)),
            Self::Pad(pad) => Family::Layout(LayoutOp::Pad(pad)),
            &Self::Concat { axis } => Family::Layout(LayoutOp::Concat { axis }),

            &Self::Gather { axis } => Family::Index(IndexOp::Gather { axis }),
            &Self::GatherElements { axis } => Family::Index(IndexOp::GatherElements { axis }),
            &Self::GatherNd { batch_dims } => Family::Index(IndexOp::GatherNd { batch_dims }),
            &Self::ScatterElements { axis, kind } => Family::Index(IndexOp::ScatterElements { axis, kind }),
            &Self::ScatterNd { kind } => Family::Index(IndexOp::ScatterNd { kind }),
            &Self::UpdateSlice { axis } => Family::Index(IndexOp::UpdateSlice { axis }),
            Self::TopK(topk) => Family::Index(IndexOp::TopK(topk)),
            &Self::TreeLeaves { depth } => Family::Index(IndexOp::TreeLeaves { depth }),

            Self::Conv(conv) => Family::Window(WindowOp::Conv(conv)),
            Self::ConvTranspose(conv) => Family::Window(WindowOp::ConvTranspose(conv)),
            Self::Pool(pool) => Family::Window(WindowOp::Pool(pool)),
            Self::MaxPoolGradient(pool) => Family::Window(WindowOp::MaxPoolGradient(pool)),
            Self::Resize(resize) => Family::Window(WindowOp::Resize(resize)),

            &Self::Reduce { kind, ref axes, keep } => Family::Reduce(ReduceOp::Reduce { kind, axes, keep }),
            &Self::ArgReduce { kind, axis, keep, last } => {
                Family::Reduce(ReduceOp::ArgReduce { kind, axis, keep, last })
            }
            &Self::CumSum { axis, exclusive, reverse } => {
                Family::Reduce(ReduceOp::CumSum(CumSum { axis, exclusive, reverse }))
            }

            &Self::Softmax { axis, log } => Family::Normalize(NormalizeOp::Softmax(Softmax { axis, log })),
            &Self::SoftmaxGradient { axis, log } => {
                Family::Normalize(NormalizeOp::SoftmaxGradient(Softmax { axis, log }))
            }
            Self::CrossEntropy => Family::Normalize(NormalizeOp::CrossEntropy),
            Self::CrossEntropyGradient => Family::Normalize(NormalizeOp::CrossEntropyGradient),
            &Self::Normalize { ref axes, epsilon: Real(epsilon), center, moments } => {
                let of = Normalization { axes, epsilon, center, moments };
                Family::Normalize(NormalizeOp::Normalize(of))
            }
            &Self::NormalizeGradient { ref axes, epsilon: Real(epsilon), center, scaled, moments } => {
                let of = Normalization { axes, epsilon, center, moments };
                Family::Normalize(NormalizeOp::NormalizeGradient { of, scaled })
            }
            &Self::LocalResponseNorm { size, alpha, beta, bias } => {
                let response = LocalResponse { size, alpha: alpha.0, beta: beta.0, bias: bias.0 };
                Family::Normalize(NormalizeOp::LocalResponseNorm(response))
            }

            &Self::MatMul { transpose_left, transpose_right, wide, rounds } => {
                Family::Product(MatMul { transpose_left, transpose_right, wide, rounds })
            }

            &Self::Unpack(packed) => Family::Packed(PackedOp::Unpack(packed)),
            &Self::PackedMatMul(packed) => Family::Packed(PackedOp::MatMul(packed)),

            Self::Attention(heads) => Family::Attention(AttentionOp::Attention(heads)),
            Self::AttentionGradient(heads) => Family::Attention(AttentionOp::AttentionGradient(heads)),
            &Self::Rotary { transposed } => Family::Attention(AttentionOp::Rotary { transposed }),

            Self::Recurrent(layer) => Family::Recurrent(layer),
        }
    }
}
