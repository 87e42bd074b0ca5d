//! Storage types: conversions with a stated overflow and rounding, and the same bits as another type.
//!
//! [`Tensor::cast`] to a storage float rounds to nearest and saturates ([`tlc_ir::dtype::narrow`]). What else is asked of such
//! conversions is a function over it, written here.

use tlc_ir::dtype::narrow::{FloatFormat, encode};
use tlc_ir::{DType, Scalar, graph::NodeKind};

use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse_expecting};

/// How what lies between two powers of two becomes one of them, in a conversion to f8e8m0fnu.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PowerRounding {
    /// The nearer one, ties to the larger.
    #[default]
    Nearest,
    /// The larger one.
    Up,
    /// The smaller one.
    Down,
}

/// How a tensor converts to a storage float.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conversion {
    /// Whether what is too large becomes the largest finite number. If not, it becomes an infinity or, in a type without
    /// one, NaN (in f4e2m1fn, which has neither, it saturates all the same); and so does what is too small for f8e8m0fnu.
    pub saturate: bool,
    /// Rounding to f8e8m0fnu; other types round to nearest, ties to even.
    pub rounding: PowerRounding,
}

impl Default for Conversion {
    /// What [`Tensor::cast`] does.
    fn default() -> Conversion {
        Conversion {
            saturate: true,
            rounding: PowerRounding::Nearest,
        }
    }
}

impl Tensor {
    /// The tensor in that dtype, with a stated overflow and rounding where it is a storage float; any other dtype as
    /// [`Tensor::cast`].
    ///
    /// ```
    /// use tlc::ops::storage::Conversion;
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::new("casts");
    /// let x = g.constant([1.06f32, 1000.0, -1000.0]);
    /// let strict = Conversion { saturate: false, ..Conversion::default() };
    /// let y = x.cast(DType::F8E4M3FN).cast(DType::F32);
    /// let z = x.cast_with(DType::F8E4M3FN, strict).cast(DType::F32);
    /// assert_eq!(y.eval().unwrap().as_slice::<f32>().unwrap(), [1.0, 448.0, -448.0]);
    /// assert!(z.eval().unwrap().as_slice::<f32>().unwrap()[1..].iter().all(|v| v.is_nan()));
    /// ```
    #[track_caller]
    pub fn cast_with(&self, dtype: DType, how: Conversion) -> Tensor {
        op("cast", &[self], || match FloatFormat::of(dtype) {
            Some(format) if !how.saturate => self.cast_unbounded(dtype, &format),
            None if dtype == DType::F8E8M0FNU && how != Conversion::default() => self.cast_power(how),
            _ => self.to(dtype),
        })
    }

    /// The same stored bits as another dtype of equal width; to a type of fewer value bits, the low ones. The bits of a NaN
    /// are open.
    #[track_caller]
    pub fn bitcast(&self, dtype: DType) -> Tensor {
        op("bitcast", &[self], || match self.dtype() == dtype {
            true => Ok(self.clone()),
            false => self.node(NodeKind::Bitcast(dtype)),
        })
    }

    fn cast_unbounded(&self, dtype: DType, format: &FloatFormat) -> Step {
        let saturated = self.to(dtype)?;
        if format.nan.is_none() {
            return Ok(saturated);
        }
        let wide = match self.dtype() {
            DType::F64 => self.clone(),
            _ => self.to(DType::F32)?,
        };
        // Half way from the largest number to what would follow it; a tie goes to the one whose last bit is 0.
        let largest = dtype.highest().as_f64();
        let before = Scalar::from_bits(dtype, u64::from(format.largest) - 1).as_f64();
        let limit = largest + (largest - before) / 2.0;
        let size = wide.abs();
        let beyond = match format.largest % 2 {
            0 => size.gt(limit),
            _ => size.ge(limit),
        };
        let graph = self.graph();
        let special = |value: f64| {
            let bits = encode(dtype, value, false);
            graph.scalar(Scalar::from_bits(dtype, bits.into()), dtype)
        };
        let infinite = match format.infinity {
            Some(_) => wide.lt(0.0).select(special(f64::NEG_INFINITY), special(f64::INFINITY)),
            None => special(f64::NAN),
        };
        Ok(beyond.select(infinite, saturated))
    }

    /// To f8e8m0fnu by way of the bits of an f32, which hold the exponent already.
    fn cast_power(&self, how: Conversion) -> Step {
        let x = self.to(DType::F32)?;
        if x.dtype() != DType::F32 {
            return refuse_expecting("a conversion by way of f32", "a dtype that converts to it");
        }
        let bits = x.bitcast(DType::U32) & 0x7fff_ffffu32;
        // Below 2^-126 an f32 is denormal: the bits of 2^-127 are half those of 2^-126, and steps are half as large.
        let denormal = bits.lt(1u32 << 23);
        let (normal_step, denormal_step) = match how.rounding {
            PowerRounding::Nearest => (1u32 << 22, 1u32 << 21),
            PowerRounding::Up => ((1 << 23) - 1, (1 << 22) - 1),
            PowerRounding::Down => (0, 0),
        };
        let step = denormal.select(denormal_step, normal_step);
        let exponent = (&bits + step.cast(DType::U32)) >> 23u32;
        let exponent = match how.saturate {
            true => exponent.minimum(0xfeu32),
            // Less than 2^-127 is too small.
            false => bits.lt(1u32 << 22).select(0xffu32, exponent.minimum(0xffu32)),
        };
        let number = x.ge(0.0).select(exponent, 0xffu32);
        Ok(number.cast(DType::U8).bitcast(DType::F8E8M0FNU))
    }
}
