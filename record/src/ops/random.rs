//! Random numbers from counter-based bits.
//!
//! Each call of a method here is a draw. Element `i` (in C order) of a draw is Threefry-2x32-20 under a key, of the counter
//! (`i`, stream): see [`NodeKind::Random`]. So the numbers follow from key and stream alone, and a graph that runs twice with
//! one key draws the same ones, on any number of threads, compiled or interpreted.
//!
//! - **Key.** The seed that [`Graph::seed`] gave, or a run-time input made by [`Graph::rng_key_input`]. The body of a loop has
//!   the key of the graph around it, unless [`Graph::seed`] of the body's graph gives another, and folds the iteration's
//!   number into it: no two iterations draw the same numbers, in nested loops either. In iteration `i` (from 0) the key is
//!   `mix(key) + (i + 1) * 0x9e3779b97f4a7c15`, wrapping, with the bijection `mix` of SplitMix64 (Steele, Lea and Flood,
//!   "Fast splittable pseudorandom number generators", OOPSLA 2014).
//! - **Stream.** No two draws of a graph, its loops included, have the same stream: no two calls are ever merged, and none
//!   draws what another does. A stream is a hash of the scopes and loops that the draw is recorded in and of its ordinal
//!   there, so that a draw that is added in one scope changes none in another: see [`named_scope`](crate::named_scope).
//!   The nodes of an imported model are such scopes.

use std::f64::consts::TAU;

use tlc_ir::graph::{NodeKind, Shape};
use tlc_ir::{DType, ScalarOp};

use crate::dim::IntoShape;
use crate::graph::Graph;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, record, refuse_expecting};

impl Graph {
    fn bits(&self, shape: &Shape) -> Step {
        let (key, stream) = (self.random_key()?, self.next_stream());
        let shape = shape.clone();
        self.node(NodeKind::Random { shape, stream }, &[&key])
    }

    /// Uniform in [0, 1): as many random bits as the significand holds, so every value is a multiple of 2^-24 (f32), 2^-53
    /// (f64), 2^-11 (f16) or 2^-8 (bf16).
    fn uniform(&self, shape: &Shape, dtype: DType) -> Step {
        let width = match dtype {
            DType::F32 => 24,
            DType::F16 => 11,
            DType::BF16 => 8,
            DType::F64 => {
                let high = (self.bits(shape)? >> 5).to(DType::F64)?;
                let low = (self.bits(shape)? >> 6).to(DType::F64)?;
                return Ok((high * (1u64 << 26) as f64 + low) * (-53f64).exp2());
            }
            other => return refuse_expecting(format!("dtype {other}"), "a float dtype"),
        };
        Ok((self.bits(shape)? >> (32 - width)).to(dtype)? * (-f64::from(width)).exp2())
    }

    /// Uniform random bits.
    #[track_caller]
    pub fn random_bits(&self, shape: impl IntoShape) -> Tensor {
        let shape = shape.into_shape();
        record(self, "random_bits", &[], &[], || self.bits(&shape), |p| p)
    }

    /// Uniform in [0, 1). Float dtypes; at most 2^32 elements.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// g.seed(7);
    /// let x = g.rand([1000], DType::F32).eval()?;
    /// assert!(x.as_slice::<f32>()?.iter().all(|v| (0.0..1.0).contains(v)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn rand(&self, shape: impl IntoShape, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        record(self, "rand", &[], &[], || self.uniform(&shape, dtype), |p| p)
    }

    /// Normal with mean 0 and variance 1, by Box and Muller ("A note on the generation of random normal deviates", 1958).
    /// Float dtypes (f16 and bf16 are drawn in f32); at most 2^32 elements.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// g.seed(7);
    /// let x = g.randn([10_000], DType::F32);
    /// let mean = x.mean(0).eval()?.as_scalar::<f32>()?;
    /// assert!(mean.abs() < 0.05);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn randn(&self, shape: impl IntoShape, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        let body = || {
            let wide = dtype.accumulator();
            // In (0, 1], so that the logarithm is finite.
            let u = 1.0 - self.uniform(&shape, wide)?;
            let v = self.uniform(&shape, wide)?;
            ((-2.0 * u.log()).sqrt() * (TAU * v).cos()).to(dtype)
        };
        record(self, "randn", &[], &[], body, |p| p)
    }

    /// Uniform integers in `lo..hi`, by multiplying 32 random bits with the range: the bias is at most range / 2^32.
    ///
    /// # Errors
    /// An empty range, one beyond 2^32, bounds that the dtype cannot hold.
    #[track_caller]
    pub fn randint(&self, lo: i64, hi: i64, shape: impl IntoShape, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        let body = || {
            let range = (hi as i128) - (lo as i128);
            if !(1..=1 << 32).contains(&range) || !dtype.is_int() {
                return refuse_expecting(
                    format!("{lo}..{hi} as {dtype}"),
                    "1 to 2^32 integers of an integer dtype",
                );
            }
            for end in [lo, hi - 1] {
                crate::promotion::Weak::Int(end.into()).of(dtype)?;
            }
            let picked = (self.bits(&shape)?.to(DType::U64)? * range as u64) >> 32;
            (picked.to(DType::I64)? + lo).to(dtype)
        };
        record(self, "randint", &[], &[], body, |p| p)
    }

    /// True with probability `p`. Bool.
    #[track_caller]
    pub fn bernoulli(&self, p: f64, shape: impl IntoShape) -> Tensor {
        let shape = shape.into_shape();
        let body = || Ok(self.uniform(&shape, DType::F32)?.lt(p));
        record(self, "bernoulli", &[], &[], body, |p| p)
    }
}

impl Tensor {
    /// Zero with probability `p`, else divided by `1 - p` (Srivastava et al., JMLR 15, 2014).
    ///
    /// # Errors
    /// A `p` outside 0 to 1 (1 excluded).
    #[track_caller]
    pub fn dropout(&self, p: f64) -> Tensor {
        op("dropout", &[self], || {
            if !(0.0..1.0).contains(&p) {
                return refuse_expecting(format!("probability {p}"), "0 <= p < 1");
            }
            let x = self.floats()?;
            let keep = self.graph().uniform(&self.ty().shape, DType::F32)?.map2(
                ScalarOp::Lt,
                &self.graph().filled((1.0 - p).into(), self.extents(), DType::F32)?,
            )?;
            Ok(keep.select(&x / (1.0 - p), 0))
        })
    }
}
