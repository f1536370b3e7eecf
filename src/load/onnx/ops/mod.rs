//! The operators: one small function each, found by name in a table.

mod arrange;
mod attention;
mod cells;
mod control;
mod einsum;
mod elementwise;
mod fold;
mod index;
mod layout;
mod loops;
mod loss;
mod microsoft;
mod ml;
mod normalize;
mod product;
mod quantized;
mod ragged;
mod random;
mod ranked;
mod ranks;
mod recurrent;
mod reduce;
mod sample;
mod select;
mod sequence;
mod signal;
mod sums;
mod training;
mod trigonometry;
mod window;

use std::borrow::Cow;

use super::evaluated;
use super::known::Known;
use super::lower::Lowering;
use super::narrow;
use super::node::At;
use super::proto::NodeProto;
use crate::error::{Error, Report, Result};
use crate::ir::{ArgReduce, Binary, Compare, ReduceKind, Unary};

/// Lowers one node.
type Lower = fn(&mut At<'_>) -> Result<()>;

/// Evaluates one node whose inputs are known; none where the result is not.
type Fold = fn(&At<'_>) -> Result<Option<Known>>;

/// An operator.
pub(super) struct Entry {
    /// Its name; of another domain than ONNX's own, behind that and a point.
    name: &'static str,
    /// The first operator set that has it (or 7, the first that is read).
    since: i64,
    /// The last that has it.
    until: i64,
    fold: Option<Fold>,
    lower: Lower,
}

const fn op(name: &'static str, since: i64, lower: Lower) -> Entry {
    Entry { name, since, until: i64::MAX, fold: None, lower }
}

const fn folding(name: &'static str, since: i64, fold: Fold, lower: Lower) -> Entry {
    Entry { name, since, until: i64::MAX, fold: Some(fold), lower }
}

const fn until(name: &'static str, since: i64, until: i64, lower: Lower) -> Entry {
    Entry { name, since, until, fold: None, lower }
}

/// Operators of the domain `ai.onnx`, in ascending order of name.
#[rustfmt::skip]
static TABLE: &[Entry] = &[
    folding("Abs", 7, |at| fold::unary(at, Unary::Abs), |at| elementwise::unary(at, Unary::Abs)),
    op("Acos", 7, trigonometry::acos),
    op("Acosh", 9, trigonometry::acosh),
    folding("Add", 7, |at| fold::binary(at, Binary::Add), |at| elementwise::binary(at, Binary::Add)),
    op("AffineGrid", 20, sample::grid::affine_grid),
    folding("And", 7, |at| fold::binary(at, Binary::And), |at| elementwise::logical(at, Binary::And)),
    op("ArgMax", 7, |at| reduce::arg_reduce(at, ArgReduce::Max)),
    op("ArgMin", 7, |at| reduce::arg_reduce(at, ArgReduce::Min)),
    op("Asin", 7, trigonometry::asin),
    op("Asinh", 9, trigonometry::asinh),
    op("Atan", 7, |at| elementwise::unary(at, Unary::Atan)),
    op("Atanh", 9, trigonometry::atanh),
    op("Attention", 23, attention::attention),
    op("AveragePool", 7, window::pool::average_pool),
    op("BatchNormalization", 7, normalize::batch_normalization),
    op("BitCast", 26, arrange::bit_cast),
    op("BitShift", 11, arrange::bit_shift),
    op("BitwiseAnd", 18, |at| elementwise::binary(at, Binary::And)),
    op("BitwiseNot", 18, arrange::bitwise_not),
    op("BitwiseOr", 18, |at| elementwise::binary(at, Binary::Or)),
    op("BitwiseXor", 18, |at| elementwise::binary(at, Binary::Xor)),
    op("BlackmanWindow", 17, signal::blackman_window),
    folding("Cast", 7, fold::cast, elementwise::cast),
    op("CastLike", 15, elementwise::cast_like),
    op("CausalConvWithState", 26, attention::causal_conv),
    folding("Ceil", 7, |at| fold::unary(at, Unary::Ceil), |at| elementwise::unary(at, Unary::Ceil)),
    op("Celu", 12, elementwise::celu),
    op("CenterCropPad", 18, arrange::center_crop_pad),
    op("Clip", 7, elementwise::clip),
    op("Col2Im", 18, arrange::col2im),
    op("Compress", 9, select::compress),
    folding("Concat", 7, fold::concat, layout::concat),
    op("ConcatFromSequence", 11, control::concat_from_sequence),
    op("Constant", 7, layout::constant),
    op("ConstantOfShape", 9, layout::constant_of_shape),
    op("Conv", 7, window::conv::conv),
    op("ConvInteger", 10, quantized::conv_integer),
    op("ConvTranspose", 7, window::conv::conv_transpose),
    op("Cos", 7, |at| elementwise::unary(at, Unary::Cos)),
    op("Cosh", 9, |at| elementwise::unary(at, Unary::Cosh)),
    op("CumProd", 26, arrange::cum_prod),
    folding("CumSum", 11, fold::cum_sum, reduce::cum_sum),
    op("DFT", 17, signal::dft),
    op("DeformConv", 19, sample::deform::deform_conv),
    op("DepthToSpace", 7, layout::depth_to_space),
    op("DequantizeLinear", 10, quantized::dequantize_linear),
    op("Det", 11, arrange::det),
    folding("Div", 7, |at| fold::binary(at, Binary::Div), |at| elementwise::binary(at, Binary::Div)),
    op("Dropout", 7, elementwise::dropout),
    op("DynamicQuantizeLinear", 11, quantized::dynamic_quantize_linear),
    op("Einsum", 12, einsum::einsum),
    op("Elu", 7, elementwise::elu),
    folding("Equal", 7, |at| fold::compare(at, Compare::Eq), |at| elementwise::compare(at, Compare::Eq)),
    op("Erf", 9, |at| elementwise::unary(at, Unary::Erf)),
    op("Exp", 7, |at| elementwise::unary(at, Unary::Exp)),
    folding("Expand", 8, fold::expand, layout::expand),
    op("EyeLike", 9, arrange::eye_like),
    folding("Flatten", 7, fold::flatten, layout::flatten),
    folding("Floor", 7, |at| fold::unary(at, Unary::Floor), |at| elementwise::unary(at, Unary::Floor)),
    op("GRU", 7, recurrent::gru),
    folding("Gather", 7, fold::gather, index::gather),
    op("GatherElements", 11, index::gather_elements),
    op("GatherND", 11, index::gather_nd),
    op("Gelu", 20, elementwise::gelu),
    op("Gemm", 7, product::gemm),
    op("GlobalAveragePool", 7, |at| window::pool::global_pool(at, ReduceKind::Mean)),
    op("GlobalLpPool", 7, arrange::global_lp_pool),
    op("GlobalMaxPool", 7, |at| window::pool::global_pool(at, ReduceKind::Max)),
    folding("Greater", 7, |at| fold::compare(at, Compare::Gt), |at| elementwise::compare(at, Compare::Gt)),
    folding("GreaterOrEqual", 12, |at| fold::compare(at, Compare::Ge), |at| elementwise::compare(at, Compare::Ge)),
    op("GridSample", 16, sample::grid::grid_sample),
    op("GroupNormalization", 18, normalize::group_normalization),
    op("HammingWindow", 17, signal::hamming_window),
    op("HannWindow", 17, signal::hann_window),
    op("HardSigmoid", 7, elementwise::hard_sigmoid),
    op("HardSwish", 14, elementwise::hard_swish),
    op("Hardmax", 7, arrange::hardmax),
    op("Identity", 7, |at| at.alias(0, 0)),
    op("If", 1, control::branch),
    op("InstanceNormalization", 7, normalize::instance_normalization),
    op("IsInf", 10, elementwise::is_inf),
    op("IsNaN", 9, |at| elementwise::unary(at, Unary::IsNan)),
    op("LRN", 7, normalize::lrn),
    op("LSTM", 7, recurrent::lstm),
    // onnxruntime's optimisers write it into files of any opset.
    op("LayerNormalization", 7, normalize::layer_normalization),
    op("LeakyRelu", 7, elementwise::leaky_relu),
    folding("Less", 7, |at| fold::compare(at, Compare::Lt), |at| elementwise::compare(at, Compare::Lt)),
    folding("LessOrEqual", 12, |at| fold::compare(at, Compare::Le), |at| elementwise::compare(at, Compare::Le)),
    op("LinearAttention", 26, attention::linear_attention),
    op("Log", 7, |at| elementwise::unary(at, Unary::Log)),
    op("LogSoftmax", 7, |at| normalize::softmax(at, true)),
    op("Loop", 1, loops::unrolled),
    op("LpNormalization", 7, normalize::lp_normalization),
    op("LpPool", 7, window::pool::lp_pool),
    op("MatMul", 7, product::matmul),
    op("MatMulInteger", 10, quantized::matmul_integer),
    folding("Max", 7, |at| fold::binary(at, Binary::Max), |at| elementwise::variadic(at, Binary::Max)),
    op("MaxPool", 7, window::pool::max_pool),
    op("MaxRoiPool", 7, sample::roi::max_roi_pool),
    op("MaxUnpool", 9, arrange::max_unpool),
    op("Mean", 7, elementwise::mean),
    op("MeanVarianceNormalization", 9, normalize::mean_variance_normalization),
    op("MelWeightMatrix", 17, signal::mel_weight_matrix),
    folding("Min", 7, |at| fold::binary(at, Binary::Min), |at| elementwise::variadic(at, Binary::Min)),
    op("Mish", 18, elementwise::mish),
    folding("Mod", 10, fold::modulo, elementwise::modulo),
    folding("Mul", 7, |at| fold::binary(at, Binary::Mul), |at| elementwise::binary(at, Binary::Mul)),
    op("Multinomial", 7, random::multinomial),
    folding("Neg", 7, |at| fold::unary(at, Unary::Neg), |at| elementwise::unary(at, Unary::Neg)),
    op("NegativeLogLikelihoodLoss", 12, loss::negative_log_likelihood),
    op("NonMaxSuppression", 10, select::non_max_suppression),
    folding("NonZero", 9, select::known_places, select::non_zero),
    folding("Not", 1, |at| fold::unary(at, Unary::Not), |at| elementwise::unary(at, Unary::Not)),
    folding("OneHot", 9, fold::one_hot, index::one_hot),
    op("Optional", 15, control::optional),
    op("OptionalGetElement", 15, control::optional_get_element),
    op("OptionalHasElement", 15, control::optional_has_element),
    folding("Or", 7, |at| fold::binary(at, Binary::Or), |at| elementwise::logical(at, Binary::Or)),
    op("PRelu", 7, elementwise::prelu),
    op("Pad", 7, layout::pad),
    folding("Pow", 7, fold::pow, elementwise::pow),
    op("QLinearConv", 10, quantized::qlinear_conv),
    op("QLinearMatMul", 10, quantized::qlinear_matmul),
    op("QuantizeLinear", 10, quantized::quantize_linear),
    op("RMSNormalization", 23, normalize::rms_normalization),
    op("RNN", 7, recurrent::rnn),
    op("RandomNormal", 7, random::normal),
    op("RandomNormalLike", 7, random::normal_like),
    op("RandomUniform", 7, random::uniform),
    op("Range", 11, sequence::range),
    folding("Reciprocal", 7, |at| fold::unary(at, Unary::Reciprocal), |at| elementwise::unary(at, Unary::Reciprocal)),
    op("ReduceL1", 7, reduce::reduce_l1),
    op("ReduceL2", 7, reduce::reduce_l2),
    op("ReduceLogSum", 7, reduce::reduce_log_sum),
    op("ReduceLogSumExp", 7, reduce::reduce_log_sum_exp),
    folding("ReduceMax", 7, |at| fold::reduce(at, ReduceKind::Max), |at| reduce::reduce(at, ReduceKind::Max)),
    folding("ReduceMean", 7, |at| fold::reduce(at, ReduceKind::Mean), |at| reduce::reduce(at, ReduceKind::Mean)),
    folding("ReduceMin", 7, |at| fold::reduce(at, ReduceKind::Min), |at| reduce::reduce(at, ReduceKind::Min)),
    folding("ReduceProd", 7, |at| fold::reduce(at, ReduceKind::Prod), |at| reduce::reduce(at, ReduceKind::Prod)),
    folding("ReduceSum", 7, |at| fold::reduce(at, ReduceKind::Sum), |at| reduce::reduce(at, ReduceKind::Sum)),
    op("ReduceSumSquare", 7, reduce::reduce_sum_square),
    folding("Relu", 7, |at| fold::unary(at, Unary::Relu), |at| elementwise::unary(at, Unary::Relu)),
    folding("Reshape", 7, fold::reshape, layout::reshape),
    op("Resize", 10, window::resize::resize),
    op("ReverseSequence", 10, control::reverse_sequence),
    op("RoiAlign", 10, sample::roi::roi_align),
    op("RotaryEmbedding", 23, attention::rotary_embedding),
    folding("Round", 11, |at| fold::unary(at, Unary::Round), |at| elementwise::unary(at, Unary::Round)),
    op("STFT", 17, signal::stft),
    op("Scan", 8, control::scan),
    until("Scatter", 9, 10, index::scatter_elements),
    folding("ScatterElements", 11, ranked::scatter_elements, index::scatter_elements),
    folding("ScatterND", 11, fold::scatter_nd, index::scatter_nd),
    op("Selu", 7, elementwise::selu),
    op("SequenceAt", 11, control::sequence_at),
    op("SequenceConstruct", 11, control::sequence_construct),
    op("SequenceEmpty", 11, control::sequence_empty),
    op("SequenceErase", 11, control::sequence_erase),
    op("SequenceInsert", 11, control::sequence_insert),
    op("SequenceLength", 11, control::sequence_length),
    op("SequenceMap", 17, control::sequence_map),
    op("Shape", 7, sequence::shape),
    op("Shrink", 9, elementwise::shrink),
    op("Sigmoid", 7, |at| elementwise::unary(at, Unary::Sigmoid)),
    folding("Sign", 9, |at| fold::unary(at, Unary::Sign), |at| elementwise::unary(at, Unary::Sign)),
    op("SimplifiedLayerNormalization", 7, normalize::rms_normalization),
    op("Sin", 7, |at| elementwise::unary(at, Unary::Sin)),
    op("Sinh", 9, |at| elementwise::unary(at, Unary::Sinh)),
    op("Size", 7, sequence::size),
    folding("Slice", 7, fold::slice, layout::slice),
    op("Softmax", 7, |at| normalize::softmax(at, false)),
    op("SoftmaxCrossEntropyLoss", 12, loss::softmax_cross_entropy),
    op("Softplus", 7, |at| elementwise::unary(at, Unary::Softplus)),
    op("Softsign", 7, elementwise::softsign),
    op("SpaceToDepth", 7, layout::space_to_depth),
    op("Split", 7, layout::split),
    op("SplitToSequence", 11, control::split_to_sequence),
    folding("Sqrt", 7, |at| fold::unary(at, Unary::Sqrt), |at| elementwise::unary(at, Unary::Sqrt)),
    folding("Squeeze", 7, fold::squeeze, layout::squeeze),
    folding("Sub", 7, |at| fold::binary(at, Binary::Sub), |at| elementwise::binary(at, Binary::Sub)),
    op("Sum", 7, |at| elementwise::variadic(at, Binary::Add)),
    op("Swish", 24, elementwise::swish),
    op("Tan", 7, |at| elementwise::unary(at, Unary::Tan)),
    op("Tanh", 7, |at| elementwise::unary(at, Unary::Tanh)),
    op("TensorScatter", 24, attention::tensor_scatter),
    op("TfIdfVectorizer", 9, ml::features::tf_idf),
    op("ThresholdedRelu", 10, elementwise::thresholded_relu),
    folding("Tile", 7, fold::tile, layout::tile),
    op("TopK", 7, index::topk),
    folding("Transpose", 7, fold::transpose, layout::transpose),
    op("Trilu", 14, index::trilu),
    op("Unique", 11, select::unique),
    folding("Unsqueeze", 7, fold::unsqueeze, layout::unsqueeze),
    until("Upsample", 7, 9, window::resize::upsample),
    folding("Where", 9, fold::select, elementwise::select),
    folding("Xor", 7, |at| fold::binary(at, Binary::Xor), |at| elementwise::binary(at, Binary::Xor)),
    op("ai.onnx.ml.ArrayFeatureExtractor", 1, ml::features::array_feature_extractor),
    op("ai.onnx.ml.Binarizer", 1, ml::features::binarizer),
    op("ai.onnx.ml.FeatureVectorizer", 1, ml::features::feature_vectorizer),
    op("ai.onnx.ml.Imputer", 1, ml::features::imputer),
    op("ai.onnx.ml.LabelEncoder", 1, ml::features::label_encoder),
    op("ai.onnx.ml.LinearClassifier", 1, ml::linear::classifier),
    op("ai.onnx.ml.LinearRegressor", 1, ml::linear::regressor),
    op("ai.onnx.ml.Normalizer", 1, ml::features::normalizer),
    op("ai.onnx.ml.OneHotEncoder", 1, ml::features::one_hot_encoder),
    op("ai.onnx.ml.SVMClassifier", 1, ml::linear::svm_classifier),
    op("ai.onnx.ml.SVMRegressor", 1, ml::linear::svm_regressor),
    op("ai.onnx.ml.Scaler", 1, ml::features::scaler),
    op("ai.onnx.ml.TreeEnsemble", 5, ml::trees::ensemble),
    op("ai.onnx.ml.TreeEnsembleClassifier", 1, ml::trees::classifier),
    op("ai.onnx.ml.TreeEnsembleRegressor", 1, ml::trees::regressor),
    op("ai.onnx.ml.ZipMap", 1, ml::zip_map),
    op("ai.onnx.preview.FlexAttention", 1, attention::flex_attention),
    op("ai.onnx.preview.training.Adagrad", 1, training::adagrad),
    op("ai.onnx.preview.training.Adam", 1, training::adam),
    op("ai.onnx.preview.training.Momentum", 1, training::momentum),
];

/// The domain of what other formats have and ONNX has not.
pub(super) const OWN: &str = "partition";
/// Its operators.
static OWN_TABLE: &[Entry] = &[op(STOP_GRADIENT, 1, elementwise::detach)];
/// What it is given, through which no gradient passes.
pub(super) const STOP_GRADIENT: &str = "StopGradient";

/// The operators of a domain, in ascending order of name.
fn table(domain: &str) -> &'static [Entry] {
    match domain {
        "com.microsoft" => microsoft::TABLE,
        OWN => OWN_TABLE,
        _ => TABLE,
    }
}

/// An operator that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// Its name; of another domain than ONNX's own, behind that and a point.
    pub name: String,
    /// The first version of its domain's operators that is read.
    pub since: i64,
    /// The last that has it, where it is gone.
    pub until: Option<i64>,
}

/// All operators that are read, in ascending order of name.
pub fn operators() -> Vec<Operator> {
    let until = |entry: &Entry| (entry.until != i64::MAX).then_some(entry.until);
    let of = |entry: &Entry, domain: &str| Operator {
        name: format!("{domain}{}", entry.name),
        since: entry.since,
        until: until(entry),
    };
    let fused = microsoft::TABLE.iter().map(|entry| of(entry, "com.microsoft."));
    TABLE.iter().map(|entry| of(entry, "")).chain(fused).collect()
}

/// What an operator is.
pub(super) enum Found {
    /// One of the table's, at this version.
    Operator(&'static Entry, i64),
    /// A function of the file.
    Function(usize),
}

/// The operator of a node and the version that the model asks for. Error: it is not supported.
pub(super) fn find(lowering: &Lowering, node: &NodeProto) -> Result<Found> {
    let function = || lowering.file.functions.find(node).map(Found::Function);
    match find_operator(lowering, node) {
        Ok((entry, opset)) => Ok(Found::Operator(entry, opset)),
        Err(error) => function().ok_or(error),
    }
}

fn find_operator(lowering: &Lowering, node: &NodeProto) -> Result<(&'static Entry, i64)> {
    let domain = if node.domain == "ai.onnx" { "" } else { node.domain.as_str() };
    let shown = if domain.is_empty() { "ai.onnx" } else { domain };
    // onnxruntime takes its own domain for imported.
    let own = (domain == "com.microsoft").then_some(1);
    let Some(opset) = lowering.opset(domain).or(own) else {
        return Err(Error::format(
            "",
            format!("op {} is of domain {shown}, of which the model imports no opset", node.op_type),
        ));
    };
    let name = match domain {
        "" | "com.microsoft" | OWN => Cow::Borrowed(node.op_type.as_str()),
        domain => Cow::Owned(format!("{domain}.{}", node.op_type)),
    };
    let table = table(domain);
    let entry = table.binary_search_by(|entry| (*entry.name).cmp(&*name)).ok();
    let entry = entry.map(|index| &table[index]).filter(|entry| (entry.since..=entry.until).contains(&opset));
    entry.map(|entry| (entry, opset)).ok_or_else(|| {
        let message = format!("op {} of domain {shown} at opset {opset} is not supported yet", node.op_type);
        Error::Unsupported(Report::new("", message))
    })
}

/// Lowers a node: evaluates it where it can be, else adds its operations.
pub(super) fn lower(entry: &Entry, at: &mut At<'_>) -> Result<()> {
    narrow::check(at)?;
    ranks::check(at)?;
    lower_checked(entry, at).map_err(|error| match error {
        // Only the size that is planned does not fit; the one that data has may.
        Error::Model(_) if ragged::reads_any(at) => at.depends_on_data(),
        error => error,
    })
}

fn lower_checked(entry: &Entry, at: &mut At<'_>) -> Result<()> {
    ragged::prepare(at)?;
    let known = (0..at.input_count()).all(|i| !at.has(i) || at.known(i).is_some());
    let folded = match entry.fold.filter(|_| known) {
        Some(fold) => fold(at)?,
        None => None,
    };
    let of_weights = (0..at.input_count()).any(|i| at.is_of_weights(i));
    match folded {
        None => {
            (entry.lower)(at)?;
            if known && !of_weights && at.input_count() > 0 {
                evaluated::outputs(at);
            }
        }
        Some(result) if !of_weights => at.set_known(0, result),
        // What is computed from parameters follows them, as training moves them or other files replace them.
        // But for what would have a size that depends on them.
        Some(result) => match (entry.lower)(at) {
            Ok(()) if !at.is_ragged_output(0) => at.know(0, result),
            Ok(()) | Err(_) => at.set_known(0, result),
        },
    }
    narrow::carry(at);
    ragged::carry(at)
}
