//! What is supported: each operator of ONNX's default domain, from which opset to which, and its function.
//!
//! An opset in which only documentation or element types changed shares a function with the one before; where the meaning
//! changed, the function looks at the version.

use super::*;
use crate::call::{Answer, Call};
use crate::refusal::{Outcome, unsupported};
use crate::{MAX_OPSET, MIN_OPSET};

/// An operator's function.
pub(crate) type Run = fn(&mut Call<'_, '_, '_>) -> Answer;

/// An operator, and the opsets in which it means what its function does.
pub(crate) struct Operator {
    pub(crate) name: &'static str,
    pub(crate) first: i64,
    pub(crate) last: i64,
    run: Run,
}

const fn op(name: &'static str, first: i64, run: Run) -> Operator {
    until(name, first, MAX_OPSET, run)
}

const fn until(name: &'static str, first: i64, last: i64, run: Run) -> Operator {
    Operator { name, first, last, run }
}

/// The table, sorted by name.
pub(crate) const OPERATORS: &[Operator] = &[
    op("Abs", 6, elementwise::abs),
    op("Acos", 7, elementwise::acos),
    op("Acosh", 9, elementwise::acosh),
    op("Add", 6, elementwise::add),
    op("AffineGrid", 20, sampling::affine_grid),
    op("And", 6, elementwise::and),
    op("ArgMax", 6, reduction::argmax),
    op("ArgMin", 6, reduction::argmin),
    op("Asin", 7, elementwise::asin),
    op("Asinh", 9, elementwise::asinh),
    op("Atan", 7, elementwise::atan),
    op("Atanh", 9, elementwise::atanh),
    op("Attention", 23, attention::attention),
    op("AveragePool", 6, pooling::average_pool),
    op("BatchNormalization", 6, normalization::batch),
    op("Bernoulli", 15, random::bernoulli),
    op("BitCast", 26, elementwise::bit_cast),
    op("BitShift", 11, elementwise::bit_shift),
    op("BitwiseAnd", 18, elementwise::bitwise_and),
    op("BitwiseNot", 18, elementwise::bitwise_not),
    op("BitwiseOr", 18, elementwise::bitwise_or),
    op("BitwiseXor", 18, elementwise::bitwise_xor),
    op("BlackmanWindow", 17, signal::blackman),
    op("Cast", 6, elementwise::cast),
    op("CastLike", 15, elementwise::cast_like),
    op("CausalConvWithState", 27, linear_attention::causal_conv),
    op("Ceil", 6, elementwise::ceil),
    op("Celu", 12, activation::celu),
    op("CenterCropPad", 18, arrange::center_crop_pad),
    op("Clip", 6, elementwise::clip),
    op("Col2Im", 18, pooling::col2im),
    op("Compress", 9, sorting::compress),
    op("Concat", 6, arrange::concat),
    op("ConcatFromSequence", 11, sequences::concat),
    op("Constant", 6, create::constant),
    op("ConstantOfShape", 9, create::constant_of_shape),
    op("Conv", 6, convolution::conv),
    op("ConvInteger", 10, convolution::conv_integer),
    op("ConvTranspose", 6, convolution::conv_transpose),
    op("Cos", 7, elementwise::cos),
    op("Cosh", 9, elementwise::cosh),
    op("CumProd", 26, reduction::cumprod),
    op("CumSum", 11, reduction::cumsum),
    op("DFT", 17, signal::dft),
    op("DeformConv", 19, sampling::deform_conv),
    op("DepthToSpace", 6, arrange::depth_to_space),
    op("DequantizeLinear", 10, quantization::dequantize),
    op("Det", 11, signal::det),
    op("Div", 6, elementwise::div),
    op("Dropout", 6, random::dropout),
    op("DynamicQuantizeLinear", 11, quantization::dynamic),
    op("Einsum", 12, linear::einsum),
    op("Elu", 6, activation::elu),
    op("Equal", 6, elementwise::equal),
    op("Erf", 9, elementwise::erf),
    op("Exp", 6, elementwise::exp),
    op("Expand", 8, arrange::expand),
    op("EyeLike", 9, create::eye_like),
    op("Flatten", 6, arrange::flatten),
    op("Floor", 6, elementwise::floor),
    op("GRU", 7, recurrent::gru),
    op("Gather", 6, indexing::gather),
    op("GatherElements", 11, indexing::gather_elements),
    op("GatherND", 11, indexing::gather_nd),
    op("Gelu", 20, activation::gelu),
    op("Gemm", 6, linear::gemm),
    op("GlobalAveragePool", 6, pooling::global_average_pool),
    op("GlobalLpPool", 6, pooling::global_lp_pool),
    op("GlobalMaxPool", 6, pooling::global_max_pool),
    op("Greater", 6, elementwise::greater),
    op("GreaterOrEqual", 12, elementwise::greater_or_equal),
    op("GridSample", 16, sampling::grid_sample),
    op("GroupNormalization", 18, normalization::group),
    op("HammingWindow", 17, signal::hamming),
    op("HannWindow", 17, signal::hann),
    op("HardSigmoid", 6, activation::hard_sigmoid),
    op("HardSwish", 14, activation::hard_swish),
    op("Hardmax", 6, activation::hardmax),
    op("Identity", 6, elementwise::identity),
    op("If", 6, control::branch),
    op("InstanceNormalization", 6, normalization::instance),
    op("IsInf", 10, elementwise::is_inf),
    op("IsNaN", 9, elementwise::is_nan),
    op("LRN", 6, normalization::local_response),
    op("LSTM", 7, recurrent::lstm),
    op("LayerNormalization", 17, normalization::layer),
    op("LeakyRelu", 6, activation::leaky_relu),
    op("Less", 6, elementwise::less),
    op("LessOrEqual", 12, elementwise::less_or_equal),
    op("LinearAttention", 27, linear_attention::attention),
    op("Log", 6, elementwise::log),
    op("LogSoftmax", 6, activation::log_softmax),
    op("Loop", 6, loops::repeat),
    op("LpNormalization", 6, normalization::lp),
    op("LpPool", 6, pooling::lp_pool),
    op("MatMul", 6, linear::matmul),
    op("MatMulInteger", 10, linear::matmul_integer),
    op("Max", 6, elementwise::max),
    op("MaxPool", 6, pooling::max_pool),
    op("MaxRoiPool", 1, sampling::max_roi_pool),
    op("MaxUnpool", 9, pooling::max_unpool),
    op("Mean", 6, elementwise::mean),
    op("MeanVarianceNormalization", 9, normalization::mean_variance),
    op("MelWeightMatrix", 17, signal::mel_weights),
    op("Min", 6, elementwise::min),
    op("Mish", 18, activation::mish),
    op("Mod", 10, elementwise::modulo),
    op("Mul", 6, elementwise::mul),
    op("Multinomial", 7, random::multinomial),
    op("Neg", 6, elementwise::neg),
    op("NegativeLogLikelihoodLoss", 12, loss::negative_log_likelihood),
    op("NonMaxSuppression", 10, sorting::suppress),
    op("NonZero", 9, sorting::nonzero),
    op("Not", 1, elementwise::not),
    op("OneHot", 9, indexing::one_hot),
    op("Or", 6, elementwise::or),
    op("PRelu", 6, elementwise::prelu),
    op("Pad", 6, arrange::pad),
    op("Pow", 6, elementwise::pow),
    op("QLinearConv", 10, convolution::qlinear_conv),
    op("QLinearMatMul", 10, quantization::qlinear_matmul),
    op("QuantizeLinear", 10, quantization::quantize),
    op("RMSNormalization", 23, normalization::rms),
    op("RNN", 7, recurrent::rnn),
    op("RandomNormal", 1, random::normal),
    op("RandomNormalLike", 1, random::normal_like),
    op("RandomUniform", 1, random::uniform),
    op("RandomUniformLike", 1, random::uniform_like),
    op("Range", 11, create::range),
    op("Reciprocal", 6, elementwise::reciprocal),
    op("ReduceL1", 6, reduction::l1),
    op("ReduceL2", 6, reduction::l2),
    op("ReduceLogSum", 6, reduction::log_sum),
    op("ReduceLogSumExp", 6, reduction::log_sum_exp),
    op("ReduceMax", 6, reduction::max),
    op("ReduceMean", 6, reduction::mean),
    op("ReduceMin", 6, reduction::min),
    op("ReduceProd", 6, reduction::prod),
    op("ReduceSum", 6, reduction::sum),
    op("ReduceSumSquare", 6, reduction::sum_square),
    op("Relu", 6, activation::relu),
    op("Reshape", 6, arrange::reshape),
    op("Resize", 10, resample::resize),
    op("ReverseSequence", 10, indexing::reverse_sequence),
    op("RoiAlign", 10, sampling::roi_align),
    op("RotaryEmbedding", 23, attention::rotary),
    op("Round", 11, elementwise::round),
    op("STFT", 17, signal::stft),
    op("Scan", 8, loops::scan),
    until("Scatter", 9, 10, indexing::scatter_elements),
    op("ScatterElements", 11, indexing::scatter_elements),
    op("ScatterND", 11, indexing::scatter_nd),
    op("Selu", 6, activation::selu),
    op("SequenceAt", 11, sequences::at),
    op("SequenceConstruct", 11, sequences::construct),
    op("SequenceEmpty", 11, sequences::empty),
    op("SequenceErase", 11, sequences::erase),
    op("SequenceInsert", 11, sequences::insert),
    op("SequenceLength", 11, sequences::length),
    op("Shape", 6, arrange::shape),
    op("Shrink", 9, activation::shrink),
    op("Sigmoid", 6, activation::sigmoid),
    op("Sign", 9, elementwise::sign),
    op("Sin", 7, elementwise::sin),
    op("Sinh", 9, elementwise::sinh),
    op("Size", 6, arrange::shape),
    op("Slice", 6, arrange::slice),
    op("Softmax", 6, activation::softmax),
    op("SoftmaxCrossEntropyLoss", 12, loss::softmax_cross_entropy),
    op("Softplus", 6, activation::softplus),
    op("Softsign", 6, activation::softsign),
    op("SpaceToDepth", 6, arrange::space_to_depth),
    op("Split", 6, arrange::split),
    op("SplitToSequence", 11, sequences::split),
    op("Sqrt", 6, elementwise::sqrt),
    op("Squeeze", 6, arrange::squeeze),
    op("Sub", 6, elementwise::sub),
    op("Sum", 6, elementwise::sum),
    op("SwiGLU", 28, activation::swiglu),
    op("Swish", 24, activation::swish),
    op("Tan", 7, elementwise::tan),
    op("Tanh", 6, elementwise::tanh),
    op("TensorScatter", 24, indexing::tensor_scatter),
    op("TfIdfVectorizer", 9, ngrams::tf_idf),
    op("ThresholdedRelu", 10, activation::thresholded_relu),
    op("Tile", 6, arrange::tile),
    op("TopK", 6, sorting::top_k),
    op("Transpose", 6, arrange::transpose),
    op("Trilu", 14, arrange::trilu),
    op("Unique", 11, sorting::unique),
    op("Unsqueeze", 6, arrange::unsqueeze),
    until("Upsample", 7, 9, resample::upsample),
    op("Where", 9, elementwise::select),
    op("Xor", 6, elementwise::xor),
];

/// The function of an operator at that opset.
pub(crate) fn find(name: &str, version: i64) -> Outcome<Run> {
    let at = OPERATORS.binary_search_by(|o| o.name.cmp(name));
    match at.ok().map(|i| &OPERATORS[i]) {
        Some(o) if (o.first..=o.last).contains(&version) => Ok(o.run),
        Some(o) => unsupported(format!(
            "this operator at opset {version} is not supported; expected opset {} to {}",
            o.first.max(MIN_OPSET),
            o.last
        )),
        None => unsupported("this operator is not supported"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_its_opsets_are_ranges() {
        assert!(OPERATORS.windows(2).all(|w| w[0].name < w[1].name));
        assert!(
            OPERATORS
                .iter()
                .all(|o| MIN_OPSET <= o.first && o.first <= o.last && o.last <= MAX_OPSET)
        );
    }
}
