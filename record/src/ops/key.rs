//! Random numbers by keys that are named.
//!
//! A [`Key`] is 64 bits, known when recording or given by a call. What is drawn by it follows from key, distribution and shape alone: not
//! from the order of recording, nor from the scope or the loop that it is recorded in.
//!
//! Invariants:
//! - A key derived by [`Key::fold_in`], [`Key::split`] or [`Key::named`] is a bijection of what it is derived by: no two numbers, parts or
//!   hashes of names give one key. The three begin with keys that differ (exclusive or with a constant each, then the bijection `mix` of
//!   SplitMix64), so that one has the keys of another only where two of 2^64 meet by chance.
//! - `fold_in(i)` is what iteration `i` of a loop makes of the key around it: see [`crate::ops::random`].
//! - Each distribution has streams of its own, which no draw without a named key has.

use tlc_ir::DType;
use tlc_ir::graph::NodeKind;
use tlc_ir::{Scalar, ScalarOp};

use super::random::{Draw, Kind};
use crate::dim::{Dim, IntoShape};
use crate::graph::scope::{Step, op, record, refuse_expecting};
use crate::graph::{Graph, Tensor, folded};
use crate::promotion::{Operand, Weak};
use crate::streams;

/// What the key is taken to before it is split: the first 64 bits of the fraction of √2.
const SPLIT: u64 = 0x6a09_e667_f3bc_c908;
/// What the key is taken to before a name is folded in: the first 64 bits of the fraction of √3.
const NAMED: u64 = 0xbb67_ae85_84ca_a73b;

/// What random numbers follow from: 64 bits, a value of a graph.
///
/// A key is for one draw of each distribution: draws of one distribution by one key have the same bits, whatever their shape and dtype. Keys
/// for further draws are derived.
///
/// ```
/// use tlc::{CompileOptions, DType, Graph, inputs};
///
/// // A training step folds in its number, so each step drops other elements, and step 7 always the same ones.
/// let g = Graph::new("step");
/// let step = g.input("step", DType::I64, ());
/// let [noise, mask] = g.key(42).fold_in(&step).split();
/// let x = noise.normal([4, 8], DType::F32).dropout_with(0.5, &mask);
/// g.output("x", &x);
/// let run = g.compile(&CompileOptions::default())?;
/// let at = |step: i64| run.run(&inputs![step]).map(|found| found[0].to_host());
/// assert_eq!(at(7)?, at(7)?);
/// assert_ne!(at(7)?, at(8)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Key(Tensor);

impl Graph {
    /// The key of that number. Draws of the graph that name no key, seeded with the same number, are others.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let draw = || Graph::default().key(7).uniform(4, DType::F32).eval().map(|v| v.to_host());
    /// assert_eq!(draw()?, draw()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn key(&self, seed: u64) -> Key {
        let body = || self.node(NodeKind::Const(Scalar::from_u64(DType::U64, seed)), &[]);
        Key(record(self, "key", &[], &[], body, |p| p))
    }

    /// Makes a key that of the random numbers recorded from here on without naming one, [`Tensor::dropout`]'s and
    /// [`Graph::randn`]'s, in place of [`Graph::seed`]'s. In the body of a loop the iteration's number is folded into it.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, inputs};
    ///
    /// let g = Graph::new("step");
    /// let step = g.input("step", DType::I64, ());
    /// g.draw_by(&g.key(42).fold_in(&step));
    /// g.output("y", &g.ones(64, DType::F32).dropout(0.5));
    /// let run = g.compile(&CompileOptions::default())?;
    /// assert_ne!(run.run(&inputs![1i64])?[0].to_host(), run.run(&inputs![2i64])?[0].to_host());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A key of another graph.
    #[track_caller]
    pub fn draw_by(&self, key: &Key) {
        let body = || {
            self.seed_by(&key.0);
            Ok(())
        };
        record(self, "draw_by", &[&key.0], &[], body, |_| ());
    }
}

impl Key {
    /// The key of those bits, `u64[]`: an input, so that each call can give another, or what a loop captured.
    ///
    /// ```
    /// use tlc::{CompileOptions, DType, Graph, Key, inputs};
    ///
    /// let g = Graph::new("noise");
    /// let key = Key::from_tensor(&g.input("key", DType::U64, ()));
    /// g.output("noise", &key.normal(8, DType::F32));
    /// let noise = g.compile(&CompileOptions::default())?;
    /// assert_ne!(noise.run(&inputs![1u64])?[0].to_host(), noise.run(&inputs![2u64])?[0].to_host());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another dtype than `u64`, a tensor with axes.
    #[track_caller]
    pub fn from_tensor(bits: &Tensor) -> Key {
        Key(op("key", &[bits], || match (bits.dtype(), bits.rank()) {
            (DType::U64, 0) => Ok(bits.clone()),
            _ => refuse_expecting(format!("a key {}", bits.type_text()), "u64[]"),
        }))
    }

    /// Its bits, `u64[]`. In a loop: `Key::from_tensor(&i.capture(key.tensor()))`.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// The key for a number: that of a step, a layer, an element of a batch; an integer tensor without axes, or a number. Integers
    /// below zero count as those modulo 2^64. Iteration `i` of a loop draws by the key around the loop with `i` folded in.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// let key = g.key(1);
    /// let (a, b) = (key.fold_in(3), key.fold_in(&g.scalar(3, DType::I32)));
    /// assert_eq!(a.tensor().eval()?.as_scalar::<u64>()?, b.tensor().eval()?.as_scalar::<u64>()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A number that is no integer or below zero, a tensor with axes or of another dtype than integers.
    #[track_caller]
    pub fn fold_in(&self, number: impl Into<Operand>) -> Key {
        let number = number.into();
        let operands: Vec<&Tensor> = std::iter::once(&self.0)
            .chain(match &number {
                Operand::Tensor(t) => Some(t),
                _ => None,
            })
            .collect();
        Key(op("fold_in", &operands, || {
            let number = match &number {
                Operand::Tensor(t) if t.dtype().is_int() && t.rank() == 0 => t.to(DType::U64)?,
                Operand::Tensor(t) => return refuse_expecting(t.type_text(), "an integer without axes"),
                Operand::Weak(Weak::Int(v)) => {
                    let v = Weak::Int(*v).of(DType::U64)?;
                    self.0.graph().filled(v.into(), &[], DType::U64)?
                }
                Operand::Scalar(v) if v.dtype().is_int() => self.0.graph().filled((*v).into(), &[], DType::U64)?,
                _ => return refuse_expecting("a number that is no integer", "an integer"),
            };
            folded(&self.0, &number)
        }))
    }

    /// The key for a name: that of a layer, a parameter. Names of two parts are two calls, or one with a mark between the parts.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// let key = g.key(1);
    /// let weight = |name: &str| key.named(name).normal(4, DType::F32).eval().map(|v| v.to_host());
    /// assert_ne!(weight("first")?, weight("second")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn named(&self, name: &str) -> Key {
        Key(op("named", &[&self.0], || self.part(NAMED, streams::of_name(name))))
    }

    /// `N` keys, none of which is this one with a number folded in: `let [weight, bias] = key.split();`. Those of a smaller `N` are the
    /// first of a larger one.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// let [a, b] = g.key(1).split();
    /// assert_ne!(a.normal(4, DType::F32).eval()?.to_host(), b.normal(4, DType::F32).eval()?.to_host());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn split<const N: usize>(&self) -> [Key; N] {
        let mut parts = 0..;
        [(); N].map(|()| self.split_at(parts.next().unwrap_or(0)))
    }

    /// As [`Key::split`], for a number of keys that the program computes.
    #[track_caller]
    pub fn split_n(&self, count: usize) -> Vec<Key> {
        let mut keys = Vec::with_capacity(count);
        for part in 0..count {
            keys.push(self.split_at(part));
        }
        keys
    }

    #[track_caller]
    fn split_at(&self, part: usize) -> Key {
        Key(op("split", &[&self.0], || self.part(SPLIT, part as u64)))
    }

    /// The key taken to another, with a number folded in.
    fn part(&self, domain: u64, number: u64) -> Step {
        let graph = self.0.graph();
        let constant = |v: u64| graph.node(NodeKind::Const(Scalar::from_u64(DType::U64, v)), &[]);
        folded(&self.0.map2(ScalarOp::Xor, &constant(domain)?)?, &constant(number)?)
    }

    #[track_caller]
    fn draw(&self, name: &str, kind: Kind, body: impl FnOnce(Draw) -> Step) -> Tensor {
        op(name, &[&self.0], || body(Draw::by(&self.0, kind)))
    }

    /// Uniform random bits, as [`Graph::random_bits`].
    #[track_caller]
    pub fn random_bits(&self, shape: impl IntoShape) -> Tensor {
        let shape = shape.into_shape();
        self.draw("random_bits", Kind::Bits, |draw| draw.bits(&shape))
    }

    /// Uniform in [0, 1), as [`Graph::rand`]. Float dtypes; at most 2^32 elements.
    #[track_caller]
    pub fn uniform(&self, shape: impl IntoShape, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        self.draw("uniform", Kind::Uniform, |draw| draw.uniform(&shape, dtype))
    }

    /// Normal with mean 0 and variance 1, as [`Graph::randn`]. Float dtypes; at most 2^32 elements.
    #[track_caller]
    pub fn normal(&self, shape: impl IntoShape, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        self.draw("normal", Kind::Normal, |draw| draw.normal(&shape, dtype))
    }

    /// Normal with mean 0 and variance 1, of which only what is in `lo..=hi` is left: the inverse of the distribution function (Wichura,
    /// algorithm AS 241, Applied Statistics 37, 1988) of a uniform number. One bound may be infinite, or both. Float dtypes (f16 and bf16
    /// are drawn in f32); at most 2^32 elements.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let x = Graph::default().key(1).truncated_normal(-2.0, 2.0, 1000, DType::F32).eval()?;
    /// assert!(x.as_slice::<f32>()?.iter().all(|v| v.abs() <= 2.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Bounds that are in no order, or that no normal number is between, 37 deviations off; a dtype that is no float.
    #[track_caller]
    pub fn truncated_normal(&self, lo: f64, hi: f64, shape: impl IntoShape, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        let body = |draw: Draw| draw.truncated_normal(lo, hi, &shape, dtype);
        self.draw("truncated_normal", Kind::TruncatedNormal, body)
    }

    /// Uniform integers in `lo..hi`, as [`Graph::randint`].
    ///
    /// # Errors
    /// An empty range, one beyond 2^32, bounds that the dtype cannot hold.
    #[track_caller]
    pub fn randint(&self, lo: i64, hi: i64, shape: impl IntoShape, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        let body = |draw: Draw| draw.integers(lo, hi, &shape, dtype);
        self.draw("randint", Kind::Integers, body)
    }

    /// True with probability `p`, as [`Graph::bernoulli`]. Bool.
    ///
    /// # Errors
    /// A `p` outside 0 to 1.
    #[track_caller]
    pub fn bernoulli(&self, p: f64, shape: impl IntoShape) -> Tensor {
        let shape = shape.into_shape();
        self.draw("bernoulli", Kind::Bernoulli, |draw| draw.bernoulli(p, &shape))
    }

    /// The numbers `0..n` in an order all of which are equally likely: `i64[n]`, the positions that sort 64 random bits each.
    ///
    /// ```
    /// use tlc::{Graph, DType};
    ///
    /// let g = Graph::default();
    /// let order = g.key(1).permutation(5);
    /// assert_eq!(order.sort(0, false).eval()?.as_slice::<i64>()?, [0, 1, 2, 3, 4]);
    /// let shuffled = g.arange(0.0, 5.0, 1.0, DType::F32).take(&order, 0);
    /// # assert_eq!(shuffled.const_shape(), Some(vec![5]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn permutation(&self, n: impl Into<Dim>) -> Tensor {
        let shape = n.into().into_shape();
        self.draw("permutation", Kind::Permutation, |draw| {
            let high = draw.bits(&shape)?.to(DType::U64)?;
            let low = draw.bits(&shape)?.to(DType::U64)?;
            Ok(((high << 32) | low).argsort(0, false))
        })
    }
}

impl Tensor {
    /// [`Tensor::dropout`] by a key.
    ///
    /// ```
    /// use tlc::{DType, Graph};
    ///
    /// let g = Graph::default();
    /// let (x, key) = (g.ones(64, DType::F32), g.key(3));
    /// assert_eq!(x.dropout_with(0.5, &key).eval()?.to_host(), x.dropout_with(0.5, &key).eval()?.to_host());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A `p` outside 0 to 1.
    #[track_caller]
    pub fn dropout_with(&self, p: f64, key: &Key) -> Tensor {
        op("dropout", &[self, &key.0], || {
            Draw::by(&key.0, Kind::Dropout).dropout(self, p)
        })
    }
}
