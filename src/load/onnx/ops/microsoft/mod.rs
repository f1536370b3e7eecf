//! Operators of the domain `com.microsoft`, as onnxruntime's quantiser and its optimiser of transformers write them.

mod attention;
mod norm;
mod packed;
mod quantized;

use self::norm::Rows;
use super::{Entry, op};
use crate::ir::{Binary, Unary};

/// In ascending order of name.
#[rustfmt::skip]
pub(super) static TABLE: &[Entry] = &[
    op("Attention", 1, attention::attention),
    op("BiasAdd", 1, norm::bias_add),
    op("BiasGelu", 1, |at| norm::biased(at, Unary::Gelu)),
    op("BiasSplitGelu", 1, norm::bias_split_gelu),
    op("DequantizeLinear", 1, super::quantized::dequantize_linear),
    op("DynamicQuantizeLSTM", 1, super::recurrent::dynamic_quantize_lstm),
    op("DynamicQuantizeMatMul", 1, quantized::dynamic_quantize_matmul),
    op("EmbedLayerNormalization", 1, norm::embed),
    op("FastGelu", 1, |at| norm::biased(at, Unary::GeluTanh)),
    op("FusedConv", 1, norm::fused_conv),
    op("FusedGemm", 1, norm::fused_gemm),
    op("FusedMatMul", 1, norm::fused_matmul),
    op("GatherBlockQuantized", 1, quantized::gather_block_quantized),
    op("Gelu", 1, |at| super::elementwise::unary(at, Unary::Gelu)),
    op("GroupQueryAttention", 1, attention::group_query),
    op("MatMulIntegerToFloat", 1, quantized::matmul_integer_to_float),
    op("MatMulNBits", 1, packed::matmul_nbits),
    op("MultiHeadAttention", 1, attention::multi_head),
    op("QAttention", 1, attention::quantized),
    op("QGemm", 1, quantized::gemm),
    op("QLinearAdd", 1, |at| quantized::binary(at, Binary::Add)),
    op("QLinearAveragePool", 1, quantized::average_pool),
    op("QLinearConcat", 1, quantized::concat),
    op("QLinearConv", 1, super::quantized::qlinear_conv),
    op("QLinearGlobalAveragePool", 1, quantized::global_average_pool),
    op("QLinearLeakyRelu", 1, quantized::leaky_relu),
    op("QLinearMul", 1, |at| quantized::binary(at, Binary::Mul)),
    op("QLinearSigmoid", 1, |at| quantized::unary(at, Unary::Sigmoid)),
    op("QLinearSoftmax", 1, quantized::softmax),
    op("QLinearWhere", 1, quantized::select),
    op("QuantizeLinear", 1, super::quantized::quantize_linear),
    op("QuickGelu", 1, norm::quick_gelu),
    op("Range", 1, super::sequence::range),
    op("RotaryEmbedding", 1, attention::rotary),
    op("SimplifiedLayerNormalization", 1, super::normalize::rms_normalization),
    op("SkipLayerNormalization", 1, |at| norm::skip(at, &Rows { center: true, scale: 2, shift: Some(3) }, 4)),
    op("SkipSimplifiedLayerNormalization", 1, |at| norm::skip(at, &Rows { center: false, scale: 2, shift: None }, 3)),
    op("TransposeMatMul", 1, norm::fused_matmul),
];
