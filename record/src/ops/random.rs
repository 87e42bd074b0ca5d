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
//!
//! Draws that name their key are those of a [`Key`](crate::Key).

use std::cell::Cell;
use std::f64::consts::TAU;

use tlc_ir::graph::{NodeKind, Shape};
use tlc_ir::{DType, ScalarOp};

use super::truncated::Truncated;
use crate::dim::IntoShape;
use crate::graph::Graph;
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, record, refuse_expecting};

/// Distributions of draws by a [`Key`](crate::Key): each has streams of its own, so that draws of different distributions by one
/// key have nothing in common.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Bits,
    Uniform,
    Normal,
    Integers,
    Bernoulli,
    TruncatedNormal,
    Permutation,
    Dropout,
}

impl Kind {
    /// As many as any distribution takes: a normal one of f64 is made of two uniform ones, of two words each.
    const STREAMS: u32 = 4;
}

const _: () = assert!((Kind::Dropout as u32 + 1) * Kind::STREAMS <= crate::streams::KEYED);

/// Where the bits of a draw come from, and the distributions over them.
pub(super) struct Draw {
    key: Tensor,
    /// The next stream of a draw by a key that is named; one in a place of the recording has those of its place.
    stream: Option<Cell<u32>>,
}

impl Draw {
    /// A draw in this place of the recording.
    fn here(graph: &Graph) -> Step<Draw> {
        let key = graph.random_key()?;
        Ok(Draw { key, stream: None })
    }

    /// A draw by a key that is named.
    pub(super) fn by(key: &Tensor, kind: Kind) -> Draw {
        Draw {
            key: key.clone(),
            stream: Some(Cell::new(kind as u32 * Kind::STREAMS)),
        }
    }

    pub(super) fn bits(&self, shape: &Shape) -> Step {
        let stream = match &self.stream {
            Some(next) => next.replace(next.get() + 1),
            None => self.key.graph().next_stream(),
        };
        let shape = shape.clone();
        self.key.node(NodeKind::Random { shape, stream })
    }

    /// Uniform in [0, 1): as many random bits as the significand holds, so every value is a multiple of 2^-24 (f32), 2^-53
    /// (f64), 2^-11 (f16) or 2^-8 (bf16).
    pub(super) fn uniform(&self, shape: &Shape, dtype: DType) -> Step {
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

    pub(super) fn normal(&self, shape: &Shape, dtype: DType) -> Step {
        let wide = dtype.accumulator();
        // In (0, 1], so that the logarithm is finite.
        let u = 1.0 - self.uniform(shape, wide)?;
        let v = self.uniform(shape, wide)?;
        ((-2.0 * u.log()).sqrt() * (TAU * v).cos()).to(dtype)
    }

    /// Normal in the units of its own deviation, between two bounds, by the inverse of the distribution function.
    pub(super) fn truncated_normal(&self, lo: f64, hi: f64, shape: &Shape, dtype: DType) -> Step {
        let between = Truncated::between(lo, hi)?;
        let wide = between.dtype(dtype.accumulator());
        // In (0, 1]: a multiple of the least positive number of the draw, not 0, whose quantile may be infinite.
        let u = 1.0 - self.uniform(shape, wide)?;
        between.quantile(&u)?.to(dtype)
    }

    pub(super) fn integers(&self, lo: i64, hi: i64, shape: &Shape, dtype: DType) -> Step {
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
        let picked = (self.bits(shape)?.to(DType::U64)? * range as u64) >> 32;
        (picked.to(DType::I64)? + lo).to(dtype)
    }

    pub(super) fn bernoulli(&self, p: f64, shape: &Shape) -> Step {
        if !(0.0..=1.0).contains(&p) {
            return refuse_expecting(format!("probability {p}"), "0 <= p <= 1");
        }
        Ok(self.uniform(shape, DType::F32)?.lt(p))
    }

    pub(super) fn dropout(&self, x: &Tensor, p: f64) -> Step {
        if !(0.0..=1.0).contains(&p) {
            return refuse_expecting(format!("probability {p}"), "0 <= p <= 1");
        }
        let x = x.floats()?;
        let kept = x.graph().filled((1.0 - p).into(), x.extents(), DType::F32)?;
        let keep = self.uniform(&x.ty().shape, DType::F32)?.map2(ScalarOp::Lt, &kept)?;
        // Where nothing is kept, dividing would make the derivative 0 / 0.
        let scaled = if p == 1.0 { &x * 0.0 } else { &x / (1.0 - p) };
        Ok(keep.select(scaled, 0))
    }
}

impl Graph {
    /// Uniform random bits.
    #[track_caller]
    pub fn random_bits(&self, shape: impl IntoShape) -> Tensor {
        let shape = shape.into_shape();
        record(self, "random_bits", &[], &[], || Draw::here(self)?.bits(&shape), |p| p)
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
        record(
            self,
            "rand",
            &[],
            &[],
            || Draw::here(self)?.uniform(&shape, dtype),
            |p| p,
        )
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
        let body = || Draw::here(self)?.normal(&shape, dtype);
        record(self, "randn", &[], &[], body, |p| p)
    }

    /// Uniform integers in `lo..hi`, by multiplying 32 random bits with the range: the bias is at most range / 2^32.
    ///
    /// # Errors
    /// An empty range, one beyond 2^32, bounds that the dtype cannot hold.
    #[track_caller]
    pub fn randint(&self, lo: i64, hi: i64, shape: impl IntoShape, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        let body = || Draw::here(self)?.integers(lo, hi, &shape, dtype);
        record(self, "randint", &[], &[], body, |p| p)
    }

    /// True with probability `p`, to 2^-24. Bool.
    ///
    /// # Errors
    /// A `p` outside 0 to 1.
    #[track_caller]
    pub fn bernoulli(&self, p: f64, shape: impl IntoShape) -> Tensor {
        let shape = shape.into_shape();
        let body = || Draw::here(self)?.bernoulli(p, &shape);
        record(self, "bernoulli", &[], &[], body, |p| p)
    }
}

impl Tensor {
    /// Zero with probability `p`, else divided by `1 - p` (Srivastava et al., JMLR 15, 2014). The derivative drops the same elements.
    ///
    /// ```
    /// use tlc::{DType, Graph, grad};
    ///
    /// let g = Graph::default();
    /// let x = g.ones(8, DType::F32);
    /// let y = x.dropout(0.5);
    /// assert!(y.eval()?.as_slice::<f32>()?.iter().all(|&v| v == 0.0 || v == 2.0));
    /// let d = grad(&y.sum(..), &[&x]).remove(0);
    /// assert_eq!(d.eval()?.to_host(), y.eval()?.to_host());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A `p` outside 0 to 1.
    #[track_caller]
    pub fn dropout(&self, p: f64) -> Tensor {
        op("dropout", &[self], || Draw::here(self.graph())?.dropout(self, p))
    }
}
