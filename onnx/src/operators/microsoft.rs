//! Operators of the domain `com.microsoft` that ONNX Runtime's tools write beside ONNX's own, as its documentation of contributed operators says them. Here are
//! those of its quantizer, operators on bytes with a scale and a zero point, whose values between bytes are f32 and sums of products i32, products
//! with weights of few bits and slices of such; in `fused.rs`, `fused_attention.rs` and `grouped_attention.rs` are those of its optimizers.

use tlc_formats::onnx::{per_byte, unpacked};
use tlc_ir::{DType, HostTensor};

use super::linear::centered;
use super::quantization::{self, quantized};
use super::table::Run;
use super::{activation, arrange, fused, fused_attention, grouped_attention, indexing, pooling, recurrent};
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use crate::signature::{MANY, Signature, row};
use tlc_record::Tensor;
use tlc_record::dim::Dim;

/// The domain.
pub(crate) const DOMAIN: &str = "com.microsoft";

/// Its operators, sorted by name.
const OPERATORS: &[(Signature, Run)] = &[
    (
        row(
            "Attention",
            1,
            (2, 7),
            (1, 2),
            "do_rotary=int mask_filter_value=float num_heads=int! past_present_share_buffer=int qkv_hidden_sizes=ints rotary_embedding_dim=int scale=float unidirectional=int",
        ),
        fused_attention::attention,
    ),
    (row("BiasGelu", 1, (2, 2), (1, 1), ""), fused::bias_gelu),
    (
        row("DequantizeLinear", 1, (2, 3), (1, 1), "axis=int"),
        quantization::dequantize,
    ),
    (
        row(
            "DynamicQuantizeLSTM",
            1,
            (12, 12),
            (0, 3),
            "activation_alpha=floats activation_beta=floats activations=texts clip=float direction=text hidden_size=int input_forget=int",
        ),
        recurrent::dynamic_lstm,
    ),
    (row("DynamicQuantizeMatMul", 1, (3, 5), (1, 1), ""), dynamic_matmul),
    (
        row(
            "EmbedLayerNormalization",
            1,
            (7, 9),
            (1, 3),
            "epsilon=float mask_index_type=int",
        ),
        fused::embed_layer_norm,
    ),
    (row("FastGelu", 1, (1, 2), (1, 1), ""), fused::fast_gelu),
    (
        row(
            "FusedConv",
            1,
            (2, 4),
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
            (1, 1),
            "alpha=float transA=int transB=int transBatchA=int transBatchB=int",
        ),
        fused::matmul,
    ),
    (
        row(
            "GatherBlockQuantized",
            1,
            (3, 4),
            (1, 1),
            "bits=int block_size=int gather_axis=int quantize_axis=int",
        ),
        gather_in_blocks,
    ),
    (row("Gelu", 1, (1, 1), (1, 1), ""), fused::gelu),
    (
        row(
            "GroupQueryAttention",
            1,
            (7, 12),
            (1, 3),
            "do_rotary=int k_quant_type=text kv_cache_bit_width=int kv_num_heads=int! local_window_size=int num_heads=int! qk_output=int rotary_interleaved=int scale=float smooth_softmax=int softcap=float v_quant_type=text",
        ),
        grouped_attention::grouped,
    ),
    (row("MatMulIntegerToFloat", 1, (4, 7), (1, 1), ""), matmul_to_float),
    (
        row(
            "MatMulNBits",
            1,
            (3, 6),
            (1, 1),
            "K=int! N=int! accuracy_level=int bits=int block_size=int! weight_prepacked=int",
        ),
        matmul_nbits,
    ),
    (
        row(
            "MultiHeadAttention",
            1,
            (1, 10),
            (1, 4),
            "mask_filter_value=float num_heads=int! scale=float unidirectional=int",
        ),
        fused_attention::multi_head,
    ),
    (
        row("QGemm", 1, (6, 9), (1, 1), "alpha=float transA=int transB=int"),
        gemm,
    ),
    (row("QLinearAdd", 1, (7, 8), (1, 1), ""), add),
    (
        row(
            "QLinearAveragePool",
            1,
            (4, 5),
            (1, 1),
            "auto_pad=text ceil_mode=int channels_last=int count_include_pad=int kernel_shape=ints! pads=ints strides=ints",
        ),
        average_pool,
    ),
    (row("QLinearConcat", 1, (3, MANY), (1, 1), "axis=int!"), concat),
    (
        row("QLinearGlobalAveragePool", 1, (5, 5), (1, 1), "channels_last=int"),
        global_average_pool,
    ),
    (row("QLinearLeakyRelu", 1, (4, 5), (1, 1), "alpha=float"), leaky_relu),
    (row("QLinearMul", 1, (7, 8), (1, 1), ""), mul),
    (row("QLinearSigmoid", 1, (4, 5), (1, 1), ""), sigmoid),
    (row("QLinearSoftmax", 1, (5, 5), (1, 1), "axis=int opset=int!"), softmax),
    (
        row("QuantizeLinear", 1, (2, 3), (1, 1), "axis=int"),
        quantization::quantize,
    ),
    (row("QuickGelu", 1, (1, 1), (1, 1), "alpha=float"), fused::quick_gelu),
    (
        row(
            "RotaryEmbedding",
            1,
            (4, 4),
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
            (1, 2),
            "axis=int epsilon=float stash_type=int",
        ),
        fused::rms_norm,
    ),
    (
        row("SkipLayerNormalization", 1, (3, 5), (1, 4), "epsilon=float"),
        fused::skip_layer_norm,
    ),
    (
        row("SkipSimplifiedLayerNormalization", 1, (3, 4), (1, 4), "epsilon=float"),
        fused::skip_rms_norm,
    ),
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

/// A number that is one for all elements.
fn number(t: Tensor) -> Outcome<Tensor> {
    match t.rank() == 0 || t.elements().as_const() == Some(1) {
        true => Ok(t.reshape(())),
        false => invalid(format!(
            "a scale or zero point of {}; expected one number",
            t.type_text()
        )),
    }
}

/// Operand `at`, bytes, by the scale and the zero point behind it, in f32.
fn dequantized(c: &Call<'_, '_, '_>, at: usize) -> Outcome<Tensor> {
    let zero = c.optional(at + 2)?.map(number).transpose()?;
    let x = centered(&c.tensor(at)?, zero, 0)?;
    Ok(x.cast(DType::F32) * number(c.tensor(at + 1)?)?.cast(DType::F32))
}

/// Bytes of that type of a value, by the scale that is operand `at` and the zero point behind it.
fn requantized(c: &Call<'_, '_, '_>, y: &Tensor, at: usize, dtype: DType) -> Answer {
    let scale = number(c.tensor(at)?)?.cast(DType::F32);
    let zero = match c.optional(at + 1)? {
        Some(zero) => number(zero)?,
        None => c.graph().scalar(dtype.zero(), dtype),
    };
    one(quantized(&(y / scale), Some(zero)))
}

/// A float operator on bytes: they, a scale and a zero point, and those of the result.
fn on_floats(c: &mut Call<'_, '_, '_>, run: Run) -> Answer {
    if c.flag("channels_last", false)? {
        return unsupported("channels behind the space; expected channels_last of 0");
    }
    let dtype = c.tensor(0)?.dtype();
    let x = dequantized(c, 0)?;
    let all = std::mem::replace(&mut c.inputs, vec![Some(x.into())]);
    let y = run(c);
    c.inputs = all;
    match &y?[..] {
        [y] => requantized(c, &y.tensor(&c.graph())?, 3, dtype),
        _ => invalid("several results; expected one"),
    }
}

fn average_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, pooling::average_pool)
}

fn global_average_pool(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, pooling::global_average_pool)
}

fn leaky_relu(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, activation::leaky_relu)
}

fn sigmoid(c: &mut Call<'_, '_, '_>) -> Answer {
    on_floats(c, activation::sigmoid)
}

fn softmax(c: &mut Call<'_, '_, '_>) -> Answer {
    // Of which of ONNX's operator sets it is.
    c.version = c.int("opset", 13)?;
    on_floats(c, activation::softmax)
}

fn add(c: &mut Call<'_, '_, '_>) -> Answer {
    let y = dequantized(c, 0)? + dequantized(c, 3)?;
    requantized(c, &y, 6, c.tensor(0)?.dtype())
}

fn mul(c: &mut Call<'_, '_, '_>) -> Answer {
    let y = dequantized(c, 0)? * dequantized(c, 3)?;
    requantized(c, &y, 6, c.tensor(0)?.dtype())
}

/// The scale and the zero point of the result come first, then each part with its own.
fn concat(c: &mut Call<'_, '_, '_>) -> Answer {
    let n = c.inputs.len();
    if n < 5 || !(n - 2).is_multiple_of(3) {
        return invalid(format!(
            "{n} operands; expected a scale, a zero point, and three for each part"
        ));
    }
    let dtype = c.tensor(2)?.dtype();
    let parts = (2..n).step_by(3).map(|at| dequantized(c, at).map(|x| Some(x.into())));
    let parts = parts.collect::<Outcome<Vec<_>>>()?;
    let all = std::mem::replace(&mut c.inputs, parts);
    let y = arrange::concat(c);
    c.inputs = all;
    match &y?[..] {
        [y] => requantized(c, &y.tensor(&c.graph())?, 0, dtype),
        _ => invalid("several results; expected one"),
    }
}

/// A product of matrices of bytes with an i32 for each column; bytes again, or f32 if the result has no scale.
fn gemm(c: &mut Call<'_, '_, '_>) -> Answer {
    let (a, b) = (c.tensor(0)?, c.tensor(3)?);
    if a.rank() != 2 || b.rank() != 2 {
        return invalid(format!(
            "operands of rank {} and {}; expected matrices",
            a.rank(),
            b.rank()
        ));
    }
    let turned = |t: Tensor, by: bool| if by { t.t() } else { t };
    let dtype = a.dtype();
    let a = turned(centered(&a, Some(number(c.tensor(2)?)?), 0)?, c.flag("transA", false)?);
    // A scale and a zero point of the second matrix may be one for each column of the product.
    let b = turned(b, c.flag("transB", false)?);
    let b = centered(&b, Some(c.tensor(5)?), -1)?;
    let mut sums = a.matmul(&b);
    if let Some(bias) = c.optional(6)? {
        sums += bias.cast(DType::I32);
    }
    let scale = number(c.tensor(1)?)?.cast(DType::F32) * c.tensor(4)?.cast(DType::F32) * c.float("alpha", 1.0)?;
    let y = sums.cast(DType::F32) * scale;
    match c.value(7).is_some() {
        true => requantized(c, &y, 7, dtype),
        false => one(y),
    }
}

/// A product of bytes in f32, times a scale that is one number or one a column, and with a bias that is operand `bias`. Zero points are one number
/// of the first matrix, and one or one a column of the second.
fn scaled_product(
    c: &Call<'_, '_, '_>,
    (a, a_zero): (&Tensor, Option<Tensor>),
    (b, b_zero): (&Tensor, Option<Tensor>),
    scale: &Tensor,
    bias: usize,
) -> Answer {
    let a = centered(a, a_zero.map(number).transpose()?, 0)?;
    let y = a.matmul(&centered(b, b_zero, -1)?).cast(DType::F32) * scale;
    one(match c.optional(bias)? {
        Some(bias) => y + bias,
        None => y,
    })
}

/// A scale for each column, or for all.
fn per_column(scale: Tensor) -> Tensor {
    match scale.elements().as_const() {
        Some(1) => scale.reshape(()),
        _ => scale,
    }
}

fn matmul_to_float(c: &mut Call<'_, '_, '_>) -> Answer {
    let scale = number(c.tensor(2)?)? * per_column(c.tensor(3)?);
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    scaled_product(c, (&a, c.optional(4)?), (&b, c.optional(5)?), &scale, 6)
}

/// A product whose first matrix is put into bytes by its range first.
fn dynamic_matmul(c: &mut Call<'_, '_, '_>) -> Answer {
    let bytes = quantization::in_bytes(&c.tensor(0)?);
    let scale = bytes.scale * per_column(c.tensor(2)?);
    let b = c.tensor(1)?;
    scaled_product(c, (&bytes.y, Some(bytes.zero)), (&b, c.optional(3)?), &scale, 4)
}

/// A constant of `rows` rows of numbers of a few bits, each beginning with a byte of its own; of a row the first `columns` numbers count.
fn constant_of_bits(c: &mut Call<'_, '_, '_>, at: usize, dtype: DType, rows: usize, columns: usize) -> Outcome<Tensor> {
    let packed = c.elements(at)?;
    let stride = packed.len() / rows;
    let least = columns.div_ceil(per_byte(dtype));
    if packed.dtype() != DType::U8 || stride * rows != packed.len() || stride < least {
        return invalid(format!(
            "operand {at} is {} elements of {}; expected {rows} times at least {least} of u8",
            packed.len(),
            packed.dtype()
        ));
    }
    let mut numbers = Vec::with_capacity(rows * columns);
    for row in packed.bytes().chunks_exact(stride) {
        numbers.extend_from_slice(unpacked(dtype, &[columns], row)?.bytes());
    }
    Ok(c.graph()
        .constant(HostTensor::from_bytes(dtype, &[rows, columns], &numbers)?))
}

/// A product with the transposed of a constant matrix, `[N, K]`: rows of numbers of a few bits in blocks, each with a scale and a zero point.
fn matmul_nbits(c: &mut Call<'_, '_, '_>) -> Answer {
    let size = |name: &str| match c.int(name, 0)? {
        n @ 1..=0x7fff_ffff => Ok(n),
        n => invalid(format!("{name} is {n}; expected it from 1 to {}", i32::MAX)),
    };
    let (k, n, block) = (size("K")?, size("N")?, size("block_size")?);
    let bits = c.int("bits", 4)?;
    let dtype = match bits {
        _ if block * bits.clamp(0, 8) % 8 != 0 => {
            return invalid(format!(
                "blocks of {block} numbers of {bits} bits; expected whole bytes"
            ));
        }
        2 => DType::U2,
        4 => DType::U4,
        8 => DType::U8,
        other => return unsupported(format!("weights of {other} bits; expected 2, 4 or 8")),
    };
    if c.int("weight_prepacked", 0)? != 0 {
        return unsupported("weights in an order of one device; expected weight_prepacked of 0");
    }
    if c.value(4).is_some() {
        return unsupported("an order of blocks in operand 4 (g_idx); expected blocks in order");
    }
    let a = c.tensor(0)?;
    let scale = c.tensor(2)?;
    if !a.dtype().is_float() || scale.dtype() != a.dtype() {
        return invalid(format!(
            "a product of {} with scales of {}; expected floats of one type",
            a.dtype(),
            scale.dtype()
        ));
    }
    let blocks = (k - 1) / block + 1;
    if scale.elements().as_const() != Some(n * blocks) {
        return invalid(format!("scales of {}; expected {n} times {blocks}", scale.type_text()));
    }
    let weights = constant_of_bits(c, 1, dtype, n as usize, k as usize)?;
    let zero = match c.optional(3)? {
        None => c.graph().scalar(1 << (dtype.value_bits() - 1), DType::U8),
        Some(zero) if zero.dtype().is_float() => zero.reshape((n, blocks)),
        Some(_) => constant_of_bits(c, 3, dtype, n as usize, blocks as usize)?,
    };
    let along = (1, block);
    let weights = quantization::dequantized(&weights, &scale.reshape((n, blocks)), Some(&zero), along, a.dtype())?;
    let y = a.matmul(&weights.t());
    one(match c.optional(5)? {
        Some(bias) => y + bias,
        None => y,
    })
}

/// Slices of a matrix that is dequantized in blocks, as rows of an embedding: those that are asked for alone are dequantized. In u8 lie constants as
/// [`matmul_nbits`] has them, so many in a byte of the last axis, with the middle of the range as their zero point unless another is given.
fn gather_in_blocks(c: &mut Call<'_, '_, '_>) -> Answer {
    let (indices, scale) = (c.tensor(1)?, c.tensor(2)?);
    let block = match c.int("block_size", 128)? {
        n @ 16..=0x7fff_ffff if n.count_ones() == 1 => n,
        n => return invalid(format!("blocks of {n}; expected a power of two from 16 on")),
    };
    let stored = c.required(0)?;
    let (bytes, in_bytes) = (stored.shape(), stored.dtype() == DType::U8);
    let rank = bytes.len();
    let gathered = c.axis(c.int("gather_axis", 0)?, rank)?;
    let quantized = c.axis(c.int("quantize_axis", 1)?, rank)?;
    if gathered == quantized {
        return unsupported(format!(
            "slices along axis {gathered}, which is the one of the blocks; expected another"
        ));
    }
    let bits = c.int("bits", 4)?;
    let (data, zero) = if in_bytes {
        let dtype = match bits {
            4 => DType::U4,
            8 => DType::U8,
            other => return unsupported(format!("numbers of {other} bits; expected 4 or 8")),
        };
        if quantized + 1 != rank {
            return invalid(format!(
                "blocks along axis {quantized} of numbers in bytes; expected the last"
            ));
        }
        let extents: Option<Vec<i64>> = bytes.iter().map(Dim::as_const).collect();
        let Some(mut extents) = extents else {
            return unsupported("numbers in bytes of symbolic extents; expected a constant");
        };
        let rows = extents[..quantized].iter().product::<i64>();
        extents[quantized] *= per_byte(dtype) as i64;
        let columns = extents[quantized];
        let unpacked = |c: &mut Call<'_, '_, '_>, at: usize, columns: i64| -> Outcome<Tensor> {
            let mut shape = extents.clone();
            shape[quantized] = columns;
            match rows * columns {
                0 => invalid(format!("operand {at} has no elements; expected some")),
                _ => Ok(constant_of_bits(c, at, dtype, rows as usize, columns as usize)?.reshape(shape)),
            }
        };
        let zero = match c.value(3) {
            Some(_) => unpacked(c, 3, (columns - 1) / block + 1)?,
            None => c.graph().scalar(1 << (dtype.value_bits() - 1), DType::U8),
        };
        (unpacked(c, 0, columns)?, Some(zero))
    } else {
        (c.tensor(0)?, c.optional(3)?)
    };
    let mut blocks = data.shape();
    blocks[quantized] = (&blocks[quantized] + (block - 1)) / block;
    let parameters = std::iter::once(&scale).chain(zero.iter().filter(|z| z.rank() > 0));
    for t in parameters {
        let differ = |(a, b): (&Dim, &Dim)| a.as_const().zip(b.as_const()).is_some_and(|(a, b)| a != b);
        if t.rank() != rank || t.shape().iter().zip(&blocks).any(differ) {
            return invalid(format!(
                "scales or zero points of {} for {}; expected one for each {block} along axis {quantized}",
                t.type_text(),
                data.type_text()
            ));
        }
    }
    let axis = gathered as i64;
    let extent = data.dim(axis);
    indexing::within(c, std::slice::from_ref(&extent))?;
    let along = indexing::from_start(&indices, &extent)?;
    let slices = |t: &Tensor| t.take_from_start(&along, axis);
    let zero = zero.map(|z| if z.rank() == 0 { z } else { slices(&z) });
    let behind = match quantized > gathered {
        true => quantized + indices.rank() - 1,
        false => quantized,
    };
    let scale = slices(&scale);
    let dtype = scale.dtype();
    one(quantization::dequantized(
        &slices(&data),
        &scale,
        zero.as_ref(),
        (behind as i64, block),
        dtype,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(OPERATORS.windows(2).all(|w| w[0].0.name() < w[1].0.name()));
    }
}
