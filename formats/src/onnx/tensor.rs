//! `TensorProto`: a constant's type, and its elements in one of several places.

use tlc_ir::dtype::{DType, Scalar};
use tlc_ir::tensor::{HostTensor, element_count};

use super::error::OnnxError;
use super::message::{Entry, Raw};

/// A tensor with its elements.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a>(pub(super) Raw<'a>);

/// Where the elements of a tensor are that are not in the model's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External<'a> {
    /// A path relative to the model's folder, not checked.
    pub location: &'a str,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; up to the end of the file if `None`.
    pub length: Option<u64>,
}

/// A tensor whose elements can be used where they are. Those of less than a byte share bytes ([`per_byte`]), low bits first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPlace<'e> {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Vec<usize>,
    /// The elements.
    pub bytes: &'e [u8],
}

/// Elements of that type in a byte of a file: more than one for the types of less than a byte.
pub fn per_byte(dtype: DType) -> usize {
    match dtype {
        DType::Bool => 1,
        d => (8 / d.value_bits() as usize).max(1),
    }
}

/// The element type of that number in ONNX's `TensorProto.DataType`.
///
/// # Errors
/// If there is no such number, or if the type is none of the IR's.
pub fn dtype(number: i64) -> Result<DType, OnnxError> {
    Ok(match number {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        17 => DType::F8E4M3FN,
        18 => DType::F8E4M3FNUZ,
        19 => DType::F8E5M2,
        20 => DType::F8E5M2FNUZ,
        21 => DType::U4,
        22 => DType::I4,
        23 => DType::F4E2M1FN,
        24 => DType::F8E8M0FNU,
        25 => DType::U2,
        26 => DType::I2,
        8 | 14 | 15 | 27 | 28 => {
            return Err(OnnxError::unsupported(format!(
                "elements of {} are not supported; expected bool, integers of 2 to 64 bits, or floats of 4, 8, 16, 32 or 64 bits",
                dtype_name(number)
            )));
        }
        _ => {
            return Err(OnnxError::invalid(format!(
                "element type {number}; expected a number of TensorProto.DataType"
            )));
        }
    })
}

/// ONNX's name of an element type.
pub fn dtype_name(number: i64) -> &'static str {
    const NAMES: [&str; 29] = [
        "undefined",
        "float",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "int32",
        "int64",
        "string",
        "bool",
        "float16",
        "double",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
        "bfloat16",
        "float8e4m3fn",
        "float8e4m3fnuz",
        "float8e5m2",
        "float8e5m2fnuz",
        "uint4",
        "int4",
        "float4e2m1",
        "float8e8m0",
        "uint2",
        "int2",
        "float6e2m3",
        "float6e3m2",
    ];
    usize::try_from(number)
        .ok()
        .and_then(|n| NAMES.get(n).copied())
        .unwrap_or("unknown")
}

impl<'a> Tensor<'a> {
    /// Its name.
    pub fn name(self) -> &'a str {
        self.0.text(8)
    }

    /// Extents, outermost first; a broken file may make them negative.
    pub fn dims(self) -> impl Iterator<Item = i64> + Clone {
        self.0.ints(1).map(|d| d as i64)
    }

    /// The element type's number in ONNX; 0 if there is none.
    pub fn element(self) -> i64 {
        self.0.int(2).unwrap_or(0)
    }

    /// Where the elements are, if they are in another file.
    ///
    /// # Errors
    /// If that place is named wrongly.
    pub fn external(self) -> Result<Option<External<'a>>, OnnxError> {
        match self.0.int(14) {
            None | Some(0) => return Ok(None),
            Some(1) => {}
            Some(n) => {
                return Err(OnnxError::invalid(format!("data location {n}; expected 0 or 1")));
            }
        }
        let (mut location, mut offset, mut length) = (None, 0, None);
        for entry in self.0.blobs(13).map(|b| Entry(Raw(b))) {
            let number = || {
                entry.value().parse::<u64>().map_err(|_| {
                    OnnxError::invalid(format!(
                        "external data with {} `{}`; expected a number of bytes",
                        entry.key(),
                        entry.value()
                    ))
                })
            };
            match entry.key() {
                "location" => location = Some(entry.value()),
                "offset" => offset = number()?,
                "length" => length = Some(number()?),
                _ => {}
            }
        }
        let location = location.ok_or_else(|| OnnxError::invalid("external data without a location"))?;
        Ok(Some(External {
            location,
            offset,
            length,
        }))
    }

    /// The shape, if no extent is negative.
    fn shape(self) -> Result<Vec<usize>, OnnxError> {
        let count = self.dims().count();
        if count > tlc_ir::graph::MAX_RANK {
            return Err(OnnxError::invalid(format!(
                "a tensor of rank {count}; expected at most {}",
                tlc_ir::graph::MAX_RANK
            )));
        }
        self.dims()
            .map(|d| {
                usize::try_from(d)
                    .map_err(|_| OnnxError::invalid(format!("a tensor with an extent of {d}; expected 0 or more")))
            })
            .collect()
    }

    /// The type, the shape and the elements, where the file holds them as a machine of this byte order does (not necessarily
    /// aligned, and bools not necessarily 0 or 1); `None` where they must be converted. `external` is what
    /// [`Tensor::external`] names.
    ///
    /// # Errors
    /// If the type is not one of the IR's, or if the elements do not fit the shape.
    pub fn in_place<'e>(self, external: Option<&'e [u8]>) -> Result<Option<InPlace<'e>>, OnnxError>
    where
        'a: 'e,
    {
        let dtype = dtype(self.element())?;
        let same_order = cfg!(target_endian = "little") || dtype.bytes() == 1;
        let Some(bytes) = external.or_else(|| self.0.blobs(9).next()) else {
            return Ok(None);
        };
        if !same_order {
            return Ok(None);
        }
        let shape = self.shape()?;
        let expected = element_count(&shape)
            .and_then(|n| n.checked_mul(dtype.bytes()))
            .map(|n| n.div_ceil(per_byte(dtype)));
        // What does not fit is reported where the elements are converted.
        Ok((expected == Some(bytes.len())).then_some(InPlace { dtype, shape, bytes }))
    }

    /// The tensor, its elements copied out of the file. `external` is what [`Tensor::external`] names.
    ///
    /// # Errors
    /// If the type is not one of the IR's, or if the elements do not fit the shape.
    pub fn to_host(self, external: Option<&[u8]>) -> Result<HostTensor, OnnxError> {
        let dtype = dtype(self.element())?;
        let shape = self.shape()?;
        let too_large = || OnnxError::invalid(format!("shape {shape:?} of {dtype} has too many elements"));
        let elements = element_count(&shape).ok_or_else(too_large)?;
        let shares = per_byte(dtype) > 1;
        let bytes = elements.checked_mul(dtype.bytes()).ok_or_else(too_large)?;
        let bytes = bytes.div_ceil(per_byte(dtype));
        let short = |expected: usize, found: usize, what: &str| {
            OnnxError::invalid(format!(
                "{what} do not fit {dtype}{shape:?}; expected {expected}, found {found}"
            ))
        };
        let raw = external.or_else(|| self.0.blobs(9).next());
        if let Some(raw) = raw {
            if raw.len() != bytes {
                return Err(short(bytes, raw.len(), "the tensor's bytes"));
            }
            return match shares {
                true => unpacked(dtype, &shape, raw),
                false => host(dtype, &shape, raw),
            };
        }
        // Counted before anything is allocated: a shape alone costs nothing.
        let found = match dtype {
            DType::F32 => self.0.words(4).count(),
            DType::F64 => self.0.double_words(10).count(),
            DType::I64 => self.0.ints(7).count(),
            DType::U32 | DType::U64 => self.0.ints(11).count(),
            _ => self.0.ints(5).count(),
        };
        if shares {
            if found != bytes {
                return Err(short(bytes, found, "the tensor's bytes"));
            }
            let raw: Vec<u8> = self.0.ints(5).map(|v| v as u8).collect();
            return unpacked(dtype, &shape, &raw);
        }
        if found != elements {
            return Err(short(elements, found, "the tensor's elements"));
        }
        let mut tensor = HostTensor::zeros(dtype, &shape).map_err(|e| OnnxError::limit(e.to_string()))?;
        let mut fill = |values: &mut dyn Iterator<Item = Scalar>| {
            for (i, value) in values.enumerate() {
                tensor.set(i, value);
            }
        };
        match dtype {
            DType::F32 => fill(&mut self.0.words(4).map(|w| Scalar::from_bits(dtype, w.into()))),
            DType::F64 => fill(&mut self.0.double_words(10).map(|w| Scalar::from_bits(dtype, w))),
            DType::I64 => fill(&mut self.0.ints(7).map(|v| Scalar::from_bits(dtype, v))),
            DType::U32 | DType::U64 => fill(&mut self.0.ints(11).map(|v| Scalar::from_u64(dtype, v))),
            DType::Bool => fill(&mut self.0.ints(5).map(|v| Scalar::from_bool(v != 0))),
            // f16, bf16 and float8 are their bits; the rest are sign-extended numbers.
            DType::F16 | DType::BF16 => fill(&mut self.0.ints(5).map(|v| Scalar::from_bits(dtype, v & 0xffff))),
            d if d.is_storage() => fill(&mut self.0.ints(5).map(|v| Scalar::from_bits(dtype, v & 0xff))),
            _ => fill(&mut self.0.ints(5).map(|v| Scalar::from_i64(dtype, v as i64))),
        }
        Ok(tensor)
    }
}

/// Elements of at most a byte that share bytes, each in one of its own. `raw` has at least as many bytes as the shape asks for.
///
/// # Errors
/// If there is no memory for them.
pub fn unpacked(dtype: DType, shape: &[usize], raw: &[u8]) -> Result<HostTensor, OnnxError> {
    let mut tensor = HostTensor::zeros(dtype, shape).map_err(|e| OnnxError::limit(e.to_string()))?;
    let (bits, per_byte) = (dtype.value_bits(), per_byte(dtype));
    for (targets, &byte) in tensor.bytes_mut().chunks_mut(per_byte).zip(raw) {
        for (i, target) in targets.iter_mut().enumerate() {
            *target = (byte >> (i as u32 * bits)) & (u8::MAX >> (8 - bits));
        }
    }
    Ok(tensor)
}

/// Elements of less than a byte, as many to a byte as there is room for.
pub fn packed(tensor: &HostTensor) -> Vec<u8> {
    let bits = tensor.dtype().value_bits();
    let pack = |c: &[u8]| c.iter().rev().fold(0u8, |byte, &v| byte << bits | v);
    tensor.bytes().chunks(per_byte(tensor.dtype())).map(pack).collect()
}

/// Little-endian elements as a host tensor.
fn host(dtype: DType, shape: &[usize], raw: &[u8]) -> Result<HostTensor, OnnxError> {
    let limit = |e: tlc_ir::tensor::TensorError| OnnxError::limit(e.to_string());
    if cfg!(target_endian = "little") || dtype.bytes() == 1 {
        return HostTensor::from_bytes(dtype, shape, raw).map_err(limit);
    }
    let mut swapped = raw.to_vec();
    swapped.chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
    HostTensor::from_bytes(dtype, shape, &swapped).map_err(limit)
}
