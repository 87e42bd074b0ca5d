//! Operators of the domain `com.microsoft` on weights of a few bits in blocks: products, and slices as of an embedding.

use tlc_formats::onnx::{per_byte, unpacked};
use tlc_ir::{DType, HostTensor};

use super::{indexing, quantization};
use crate::call::{Answer, Call, one};
use crate::refusal::{Outcome, invalid, unsupported};
use tlc_record::Tensor;
use tlc_record::dim::Dim;

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

/// An attribute that is a size.
fn size(c: &Call<'_, '_, '_>, name: &str) -> Outcome<i64> {
    match c.int(name, 0)? {
        n @ 1..=0x7fff_ffff => Ok(n),
        n => invalid(format!("{name} is {n}; expected it from 1 to {}", i32::MAX)),
    }
}

/// A product with the transposed of a constant matrix, `[N, K]`: rows of numbers of a few bits in blocks, each with a scale and a zero point.
pub(super) fn matmul_nbits(c: &mut Call<'_, '_, '_>) -> Answer {
    let (k, n, block) = (size(c, "K")?, size(c, "N")?, size(c, "block_size")?);
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
    if !a.dtype().is_float() {
        return invalid(format!("a product of {}; expected floats", a.dtype()));
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

/// What the 16 numbers of 4 bits stand for, as bitsandbytes has them: floats of 4 bits, and numbers that part a normal distribution into equal shares.
const FLOATS_OF_4: [f32; 16] = [
    0.0,
    0.005_208_333_3,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    -0.0,
    -0.005_208_333_3,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];
const NORMAL_OF_4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// A product with a constant matrix, `[N, K]` or its transposed, whose numbers of 4 bits stand for those of a table: in blocks of all its elements in order,
/// each times the largest of its block.
pub(super) fn matmul_by_table(c: &mut Call<'_, '_, '_>) -> Answer {
    let (k, n, block) = (size(c, "K")?, size(c, "N")?, size(c, "block_size")?);
    let table = match c.int("quant_type", 0)? {
        0 => FLOATS_OF_4,
        1 => NORMAL_OF_4,
        other => return invalid(format!("quant_type {other}; expected 0 or 1")),
    };
    let (a, largest) = (c.tensor(0)?, c.tensor(2)?);
    if !a.dtype().is_float() {
        return invalid(format!("a product of {}; expected floats", a.dtype()));
    }
    let Some(count) = n.checked_mul(k).filter(|n| *n < 1 << 40) else {
        return invalid(format!("a matrix of {n} by {k}; expected less than 2^40 elements"));
    };
    let blocks = (count - 1) / block + 1;
    if largest.elements().as_const() != Some(blocks) {
        return invalid(format!("scales of {}; expected {blocks}", largest.type_text()));
    }
    let packed = c.elements(1)?;
    let bytes = (count + 1) / 2;
    if packed.dtype() != DType::U8 || packed.len() as i64 != bytes {
        return invalid(format!(
            "operand 1 is {} elements of {}; expected {bytes} of u8",
            packed.len(),
            packed.dtype()
        ));
    }
    let graph = c.graph();
    // The high bits of a byte come first.
    let turned: Vec<u8> = packed.bytes().iter().map(|b| b.rotate_left(4)).collect();
    let numbers = unpacked(DType::U4, &[count as usize], &turned)?;
    let numbers = graph.constant(numbers).cast(DType::I32);
    let table = graph.constant(HostTensor::from_slice(&[16], &table)?).cast(a.dtype());
    let along = largest.reshape(blocks).repeat(block, 0);
    let along = if blocks * block == count {
        along
    } else {
        along.narrow(0, 0, count)
    };
    let weights = (table.take_from_start(&numbers, 0) * along).reshape([n, k]);
    one(match c.flag("transB", true)? {
        true => a.matmul(&weights.t()),
        false => a.matmul(&weights),
    })
}

/// Where operands of [`experts`] are.
pub(super) struct FewBits {
    pub(super) weights: usize,
    pub(super) scales: usize,
    pub(super) zeros: usize,
}

/// Constant weights of experts, `[experts, outputs, inputs]`, of numbers of so many bits: in blocks along the inputs if the node says so.
pub(super) fn experts(c: &mut Call<'_, '_, '_>, slots: &FewBits, bits: i64) -> Outcome<Tensor> {
    let dtype = match bits {
        2 => DType::U2,
        4 => DType::U4,
        8 => DType::U8,
        other => return unsupported(format!("weights of {other} bits; expected 2, 4 or 8")),
    };
    let stored = c.required(slots.weights)?.shape();
    let extents: Option<Vec<i64>> = stored.iter().map(Dim::as_const).collect();
    let Some([experts, outputs, bytes @ 1..=0x7fff_ffff]) = extents.as_deref() else {
        return invalid(format!("weights of {} axes; expected 3 of known extents", stored.len()));
    };
    let inputs = bytes * per_byte(dtype) as i64;
    let block = match c.int("block_size", 0)? {
        0 => inputs,
        n @ 1..=0x7fff_ffff => n,
        n => return invalid(format!("blocks of {n}; expected at least one number")),
    };
    let (rows, blocks) = (experts * outputs, (inputs - 1) / block + 1);
    let scales = c.tensor(slots.scales)?;
    if rows == 0 || scales.elements().as_const() != Some(rows * blocks) {
        return invalid(format!(
            "scales of {}; expected {rows} times {blocks}",
            scales.type_text()
        ));
    }
    let numbers = constant_of_bits(c, slots.weights, dtype, rows as usize, inputs as usize)?;
    let zero = match c.value(slots.zeros).map(|v| v.shape().len()) {
        None => c.graph().scalar(1 << (dtype.value_bits() - 1), DType::U8),
        // Those of an expert's outputs fill bytes together.
        Some(2) => constant_of_bits(c, slots.zeros, dtype, *experts as usize, *outputs as usize)?.reshape((rows, 1)),
        Some(_) => constant_of_bits(c, slots.zeros, dtype, rows as usize, blocks as usize)?,
    };
    let wide = scales.dtype().accumulator();
    let scales = scales.reshape((rows, blocks));
    let weights = quantization::dequantized(&numbers, &scales, Some(&zero), (1, block), wide)?;
    Ok(weights.reshape([*experts, *outputs, inputs]))
}

/// Slices of a matrix that is dequantized in blocks, as rows of an embedding: those that are asked for alone are dequantized. In u8 lie constants as
/// [`matmul_nbits`] has them, so many in a byte of the last axis, with the middle of the range as their zero point unless another is given.
pub(super) fn gather_in_blocks(c: &mut Call<'_, '_, '_>) -> Answer {
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
