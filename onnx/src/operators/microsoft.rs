//! Operators of the domain `com.microsoft` that ONNX Runtime's tools write beside ONNX's own, as its documentation of contributed operators says them: which there are,
//! and what each takes. Those of its quantizer are in `quantizer.rs` and `few_bits.rs`; those of its optimizers in `fused.rs`, `fused_attention.rs`, `grouped_attention.rs`
//! and `relative_position.rs`; of its tools for language models in `packed_batches.rs` and `experts.rs`; for models that make images in `diffusion.rs`. Those with their
//! channels behind the space are in `channels_last.rs`, and those that ONNX took over or has in another form in `early.rs`.

use super::table::Run;
use super::{
    arrange, channels_last, diffusion, early, experts, few_bits, fused, fused_attention, grouped_attention, indexing,
    packed_batches, quantization, quantizer, recurrent, relative_position,
};
use crate::refusal::{Outcome, unsupported};
use crate::signature::{MANY, Signature, row};

/// The domain.
pub(crate) const DOMAIN: &str = "com.microsoft";

/// Its operators, sorted by name.
const OPERATORS: &[(Signature, Run)] = &[
    (
        row(
            "Attention",
            1,
            (2, 7),
            "AAABAAB",
            (1, 2),
            "do_rotary=int mask_filter_value=float num_heads=int! past_present_share_buffer=int qkv_hidden_sizes=ints rotary_embedding_dim=int scale=float unidirectional=int",
        ),
        fused_attention::attention,
    ),
    (row("BiasAdd", 1, (3, 3), "A", (1, 1), ""), diffusion::bias_add),
    (row("BiasGelu", 1, (2, 2), "A", (1, 1), ""), fused::bias_gelu),
    (
        row(
            "BiasSoftmax",
            1,
            (2, 2),
            "A",
            (1, 1),
            "axis=int is_inner_broadcast=int!",
        ),
        fused::bias_softmax,
    ),
    (
        row("BiasSplitGelu", 1, (2, 2), "A", (1, 1), ""),
        diffusion::bias_split_gelu,
    ),
    (row("CDist", 1, (2, 2), "A", (1, 1), "metric=text"), early::distances),
    (row("ComplexMul", 1, (2, 2), "A", (1, 1), ""), early::complex_mul),
    (
        row("ComplexMulConj", 1, (2, 2), "A", (1, 1), ""),
        early::complex_mul_conj,
    ),
    (
        row(
            "ConvTransposeWithDynamicPads",
            1,
            (2, 4),
            "AA-A",
            (1, 1),
            "auto_pad=text dilations=ints group=int kernel_shape=ints output_padding=ints strides=ints",
        ),
        early::conv_transpose,
    ),
    (
        row(
            "DecoderMaskedMultiHeadAttention",
            1,
            (1, 11),
            "AAABAAABBBA",
            (1, 4),
            "mask_filter_value=float num_heads=int! output_qk=int past_present_share_buffer=int scale=float",
        ),
        fused_attention::masked_multi_head,
    ),
    (
        row("DequantizeLinear", 1, (2, 3), "A-A", (1, 1), "axis=int"),
        quantization::dequantize,
    ),
    (
        row(
            "DynamicQuantizeLSTM",
            1,
            (12, 12),
            "ABBA-AAAABAB",
            (0, 3),
            "activation_alpha=floats activation_beta=floats activations=texts clip=float direction=text hidden_size=int input_forget=int",
        ),
        recurrent::dynamic_lstm,
    ),
    (
        row("DynamicQuantizeMatMul", 1, (3, 5), "ABABA", (1, 1), ""),
        quantizer::dynamic_matmul,
    ),
    (
        row(
            "EmbedLayerNormalization",
            1,
            (7, 9),
            "AABBBBBA",
            (1, 3),
            "epsilon=float mask_index_type=int",
        ),
        fused::embed_layer_norm,
    ),
    (row("ExpandDims", 1, (2, 2), "", (1, 1), ""), early::expand_dims),
    (row("FastGelu", 1, (1, 2), "A", (1, 1), ""), fused::fast_gelu),
    (
        row(
            "FusedConv",
            1,
            (2, 4),
            "A",
            (1, 1),
            "activation=text activation_params=floats auto_pad=text dilations=ints group=int kernel_shape=ints pads=ints strides=ints",
        ),
        fused::conv,
    ),
    (
        row(
            "FusedGemm",
            1,
            (2, 3),
            "A",
            (1, 1),
            "activation=text activation_alpha=float activation_beta=float activation_gamma=float alpha=float beta=float transA=int transB=int",
        ),
        fused::gemm,
    ),
    (
        row(
            "FusedMatMul",
            1,
            (2, 2),
            "A",
            (1, 1),
            "alpha=float transA=int transB=int transBatchA=int transBatchB=int",
        ),
        fused::matmul,
    ),
    (
        row(
            "GatedRelativePositionBias",
            1,
            (6, 7),
            "AAAAAA-",
            (1, 1),
            "num_heads=int!",
        ),
        relative_position::gated,
    ),
    (
        row(
            "GatherBlockQuantized",
            1,
            (3, 4),
            "A--A",
            (1, 1),
            "bits=int block_size=int gather_axis=int quantize_axis=int",
        ),
        few_bits::gather_in_blocks,
    ),
    (row("GatherND", 1, (2, 2), "", (1, 1), ""), indexing::gather_nd),
    (row("Gelu", 1, (1, 1), "", (1, 1), ""), fused::gelu),
    (row("GemmFastGelu", 1, (2, 3), "A", (1, 1), ""), fused::gemm_fast_gelu),
    (
        row(
            "GridSample",
            1,
            (2, 2),
            "A",
            (1, 1),
            "align_corners=int mode=text padding_mode=text",
        ),
        early::grid_sample,
    ),
    (
        row(
            "GroupNorm",
            1,
            (3, 3),
            "-A",
            (1, 1),
            "activation=int! channels_last=int epsilon=float groups=int!",
        ),
        diffusion::group_norm,
    ),
    (
        row(
            "GroupQueryAttention",
            1,
            (7, 17),
            "AAABBCCAA-AADDAAC",
            (1, 4),
            "causal=int do_rotary=int k_norm_epsilon=float k_quant_type=text kv_cache_bit_width=int kv_num_heads=int! local_window_size=int num_heads=int! q_norm_epsilon=float qk_norm_epsilon=float qk_output=int rotary_interleaved=int scale=float sliding_window_cache=int smooth_softmax=int softcap=float v_quant_type=text",
        ),
        grouped_attention::grouped,
    ),
    (row("Inverse", 1, (1, 1), "", (1, 1), ""), early::inverse),
    (
        row(
            "Irfft",
            1,
            (1, 1),
            "",
            (1, 1),
            "normalized=int onesided=int signal_ndim=int!",
        ),
        early::irfft,
    ),
    (
        row(
            "MatMulBnb4",
            1,
            (3, 3),
            "A-A",
            (1, 1),
            "K=int! N=int! block_size=int! quant_type=int! training_mode=int transB=int",
        ),
        few_bits::matmul_by_table,
    ),
    (row("MatMulInteger16", 1, (2, 2), "", (1, 1), ""), quantizer::matmul_16),
    (
        row("MatMulIntegerToFloat", 1, (4, 7), "ABCCABC", (1, 1), ""),
        quantizer::matmul_to_float,
    ),
    (
        row(
            "MatMulNBits",
            1,
            (3, 6),
            "A-A--A",
            (1, 1),
            "K=int! N=int! accuracy_level=int bits=int block_size=int! weight_prepacked=int",
        ),
        few_bits::matmul_nbits,
    ),
    (
        row(
            "MoE",
            1,
            (5, 8),
            "A",
            (1, 1),
            "activation_alpha=float activation_beta=float activation_type=text k=int normalize_routing_weights=int swiglu_fusion=int swiglu_limit=float swiglu_limit_after_activation=int use_sparse_mixer=int",
        ),
        experts::mixture,
    ),
    (row("MulInteger", 1, (3, 4), "A", (1, 1), ""), quantizer::mul_integer),
    (
        row(
            "MultiHeadAttention",
            1,
            (1, 10),
            "AAAABAAAB",
            (1, 4),
            "mask_filter_value=float num_heads=int! scale=float unidirectional=int",
        ),
        fused_attention::multi_head,
    ),
    (
        row(
            "NhwcConv",
            1,
            (2, 3),
            "A",
            (1, 1),
            "auto_pad=text dilations=ints group=int kernel_shape=ints pads=ints strides=ints",
        ),
        channels_last::conv,
    ),
    (
        row(
            "NhwcFusedConv",
            1,
            (2, 4),
            "A",
            (1, 1),
            "activation=text activation_params=floats auto_pad=text dilations=ints group=int kernel_shape=ints pads=ints strides=ints",
        ),
        channels_last::fused_conv,
    ),
    (
        row(
            "NhwcMaxPool",
            1,
            (1, 1),
            "",
            (1, 1),
            "auto_pad=text ceil_mode=int dilations=ints kernel_shape=ints! pads=ints strides=ints",
        ),
        channels_last::max_pool,
    ),
    (
        row(
            "PackedAttention",
            1,
            (5, 6),
            "AAABBA",
            (1, 1),
            "num_heads=int! qkv_hidden_sizes=ints scale=float",
        ),
        packed_batches::attention,
    ),
    (
        row(
            "PackedMultiHeadAttention",
            1,
            (6, 7),
            "AAAABBA",
            (1, 1),
            "mask_filter_value=float num_heads=int! scale=float",
        ),
        packed_batches::multi_head_attention,
    ),
    (row("Pad", 1, (2, 3), "A-A", (1, 1), "mode=text"), early::pad),
    (
        row(
            "QAttention",
            1,
            (5, 9),
            "ABCCC-ABC",
            (1, 2),
            "do_rotary=int mask_filter_value=float num_heads=int! past_present_share_buffer=int scale=float unidirectional=int",
        ),
        quantizer::attention,
    ),
    (
        row(
            "QEmbedLayerNormalization",
            1,
            (18, 18),
            "AABBBBBACCCCCB",
            (2, 2),
            "epsilon=float",
        ),
        quantizer::embed_layer_norm,
    ),
    (
        row(
            "QGemm",
            1,
            (6, 9),
            "ABACBC-B-",
            (1, 1),
            "alpha=float transA=int transB=int",
        ),
        quantizer::gemm,
    ),
    (row("QLinearAdd", 1, (7, 8), "A-AA-A-A", (1, 1), ""), quantizer::add),
    (
        row(
            "QLinearAveragePool",
            1,
            (4, 5),
            "A-A-A",
            (1, 1),
            "auto_pad=text ceil_mode=int channels_last=int count_include_pad=int kernel_shape=ints! pads=ints strides=ints",
        ),
        quantizer::average_pool,
    ),
    (
        row("QLinearConcat", 1, (3, MANY), "", (1, 1), "axis=int!"),
        quantizer::concat,
    ),
    (
        row(
            "QLinearConv",
            1,
            (8, 9),
            "A-AB-B-",
            (1, 1),
            "auto_pad=text channels_last=int dilations=ints group=int kernel_shape=ints pads=ints strides=ints",
        ),
        quantizer::conv,
    ),
    (
        row(
            "QLinearGlobalAveragePool",
            1,
            (5, 5),
            "A-A-A",
            (1, 1),
            "channels_last=int",
        ),
        quantizer::global_average_pool,
    ),
    (
        row("QLinearLeakyRelu", 1, (4, 5), "A-A-A", (1, 1), "alpha=float"),
        quantizer::leaky_relu,
    ),
    (row("QLinearMul", 1, (7, 8), "A-AA-A-A", (1, 1), ""), quantizer::mul),
    (
        row(
            "QLinearReduceMean",
            1,
            (4, 5),
            "A-A-A",
            (1, 1),
            "axes=ints! keepdims=int!",
        ),
        quantizer::reduce_mean,
    ),
    (
        row("QLinearSigmoid", 1, (4, 5), "A-A-A", (1, 1), ""),
        quantizer::sigmoid,
    ),
    (
        row("QLinearSoftmax", 1, (5, 5), "A-A-A", (1, 1), "axis=int opset=int!"),
        quantizer::softmax,
    ),
    (
        row("QLinearWhere", 1, (9, 9), "-ABAABABA", (1, 1), ""),
        quantizer::select,
    ),
    (
        row(
            "QMoE",
            1,
            (6, 21),
            "AABCABCABCABBBADDDDC",
            (1, 1),
            "accuracy_level=int activation_alpha=float activation_beta=float activation_type=text block_size=int expert_weight_bits=int fc1_expert_weight_bits=int fc2_expert_weight_bits=int fc3_expert_weight_bits=int k=int normalize_routing_weights=int quant_type=text swiglu_fusion=int swiglu_limit=float swiglu_limit_after_activation=int use_sparse_mixer=int weights_prepacked=int",
        ),
        experts::quantized_mixture,
    ),
    (
        row("QuantizeLinear", 1, (2, 3), "AA-", (1, 1), "axis=int"),
        quantization::quantize,
    ),
    (
        row("QuickGelu", 1, (1, 1), "", (1, 1), "alpha=float"),
        fused::quick_gelu,
    ),
    (row("Range", 1, (2, 3), "A", (1, 1), ""), early::range),
    (
        row("ReduceSumInteger", 1, (1, 1), "", (1, 1), "axes=ints! keepdims=int!"),
        quantizer::reduce_sum,
    ),
    (
        row(
            "RelativePositionBias",
            1,
            (3, 3),
            "-A",
            (1, 1),
            "is_bidirectional=int max_distance=int!",
        ),
        relative_position::by_bucket,
    ),
    (row("RemovePadding", 1, (2, 2), "", (4, 4), ""), packed_batches::remove),
    (
        row("RestorePadding", 1, (2, 2), "", (1, 1), ""),
        packed_batches::restore,
    ),
    (
        row(
            "Rfft",
            1,
            (1, 1),
            "",
            (1, 1),
            "normalized=int onesided=int signal_ndim=int",
        ),
        early::rfft,
    ),
    (
        row(
            "RotaryEmbedding",
            1,
            (4, 4),
            "A-A",
            (1, 1),
            "interleaved=int is_packed_batching=int num_heads=int rotary_embedding_dim=int scale=float",
        ),
        fused::rotary,
    ),
    (
        row(
            "SimplifiedLayerNormalization",
            1,
            (2, 2),
            "",
            (1, 2),
            "axis=int epsilon=float stash_type=int",
        ),
        fused::rms_norm,
    ),
    (
        row(
            "SkipGroupNorm",
            1,
            (4, 5),
            "ABBA",
            (1, 2),
            "activation=int! channels_last=int epsilon=float groups=int!",
        ),
        diffusion::skip_group_norm,
    ),
    (
        row("SkipLayerNormalization", 1, (3, 5), "A", (1, 4), "epsilon=float"),
        fused::skip_layer_norm,
    ),
    (
        row(
            "SkipSimplifiedLayerNormalization",
            1,
            (3, 4),
            "A",
            (1, 4),
            "epsilon=float",
        ),
        fused::skip_rms_norm,
    ),
    (
        row(
            "TransposeMatMul",
            1,
            (2, 2),
            "A",
            (1, 1),
            "alpha=float transA=int transB=int",
        ),
        fused::matmul,
    ),
    (row("Trilu", 1, (1, 2), "", (1, 1), "upper=int"), arrange::trilu),
    (row("Unique", 1, (1, 1), "", (3, 3), ""), early::unique),
];

/// An operator of the domain.
///
/// # Errors
/// If there is none of that name here.
pub(crate) fn find(name: &str) -> Outcome<(&'static Signature, Run)> {
    match OPERATORS.iter().find(|(signature, _)| signature.name() == name) {
        Some((signature, run)) => Ok((signature, *run)),
        None => {
            let known: Vec<&str> = OPERATORS.iter().map(|(signature, _)| signature.name()).collect();
            unsupported(format!(
                "this operator of the domain `{DOMAIN}` is not supported; expected {}, or a function of the model",
                known.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(OPERATORS.windows(2).all(|w| w[0].0.name() < w[1].0.name()));
    }
}
