//! Initial values of parameters: what they are before training.
//!
//! An [`Init`] says how, [`Init::draw`] records the values by a [`Key`]. The functions of this module make them: [`kaiming_uniform`],
//! [`xavier_normal`], [`orthogonal`] and the others have the names and the formulas of `torch.nn.init`.
//!
//! Invariants:
//! - A value follows from key, shape, dtype and settings alone. Give each parameter a key of its own, by [`Key::named`] or [`Key::split`]: a
//!   parameter that is added then changes no other.
//! - f16 and bf16 are drawn in f32 and rounded once, f64 is drawn in f64.
//! - The fans of weights `[out, in, kernel..]`, which linear layers and convolutions have, are those of PyTorch: `in` and `out` times the
//!   elements of the kernel. [`Init::axes`] is for weights that are laid out otherwise.
//!
//! ```
//! use tlc::{DType, Graph, init};
//! use tlc::init::{Fan, Nonlinearity};
//!
//! let g = Graph::default();
//! let key = g.key(0);
//! let weight = init::kaiming_normal(Fan::In, Nonlinearity::Relu).draw(&key.named("weight"), [64, 3, 7, 7], DType::F32);
//! let bias = init::zeros().draw(&key.named("bias"), 64, DType::F32);
//! let values = weight.eval()?.to_host();
//! # let squares: f32 = values.as_slice::<f32>().unwrap().iter().map(|v| v * v).sum();
//! # assert!((squares / values.len() as f32 - 2.0 / 147.0).abs() < 1e-3);
//! # assert!(bias.eval()?.as_slice::<f32>()?.iter().all(|&v| v == 0.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use tlc_ir::graph::Shape;
use tlc_ir::{DType, IndexExpr};

use crate::dim::{Axes, IntoShape, keep};
use crate::graph::Tensor;
use crate::graph::scope::{Step, op, refuse, refuse_expecting};
use crate::ops::key::Key;

/// How many elements a unit is connected with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fans {
    /// How many inputs an output is a sum over.
    pub input: usize,
    /// How many outputs an input goes into.
    pub output: usize,
}

impl Fans {
    /// Those of weights `[out, in, kernel..]`, as PyTorch counts them; none with fewer than two axes.
    ///
    /// ```
    /// use tlc::init::Fans;
    ///
    /// assert_eq!(Fans::of(&[64, 3, 7, 7]), Some(Fans { input: 3 * 49, output: 64 * 49 }));
    /// assert_eq!(Fans::of(&[64]), None);
    /// ```
    pub fn of(shape: &[usize]) -> Option<Fans> {
        Fans::over(shape, 1, 0)
    }

    /// Those of weights whose inputs and outputs are along these axes; the other axes are the kernel's. None if an axis is not there or is
    /// given twice.
    ///
    /// ```
    /// use tlc::init::Fans;
    ///
    /// // A kernel [height, width, in, out].
    /// assert_eq!(Fans::over(&[7, 7, 3, 64], 2, 3), Some(Fans { input: 3 * 49, output: 64 * 49 }));
    /// ```
    pub fn over(shape: &[usize], inputs: impl Into<Axes>, outputs: impl Into<Axes>) -> Option<Fans> {
        let inputs = inputs.into().resolve(shape.len()).ok()?;
        let outputs = outputs.into().resolve(shape.len()).ok()?;
        if inputs.iter().any(|axis| outputs.contains(axis)) {
            return None;
        }
        let without = |left_out: &[usize]| {
            let kept = (0..shape.len()).filter(|axis| !left_out.contains(axis));
            kept.map(|axis| shape[axis]).product()
        };
        Some(Fans {
            input: without(&outputs),
            output: without(&inputs),
        })
    }

    fn of_which(self, fan: Fan) -> f64 {
        let (input, output) = (self.input as f64, self.output as f64);
        match fan {
            Fan::In => input,
            Fan::Out => output,
            Fan::Average => (input + output) / 2.0,
        }
    }
}

/// Which fan the variance is divided by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fan {
    /// [`Fans::input`]: keeps the variance of what goes forward.
    In,
    /// [`Fans::output`]: keeps the variance of what comes back.
    Out,
    /// The mean of both.
    Average,
}

/// What follows a layer, which its weights make up for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Nonlinearity {
    /// Nothing.
    Linear,
    /// [`Tensor::sigmoid`].
    Sigmoid,
    /// [`Tensor::tanh`](crate::Tensor::tanh).
    Tanh,
    /// [`Tensor::relu`].
    Relu,
    /// [`Tensor::leaky_relu`] with this slope.
    LeakyRelu(f64),
    /// Scaled exponential linear units (Klambauer et al., arXiv:1706.02515).
    Selu,
}

impl Nonlinearity {
    /// What deviations are multiplied with: the recommendations of `torch.nn.init.calculate_gain`.
    ///
    /// ```
    /// use tlc::init::Nonlinearity;
    ///
    /// assert_eq!(Nonlinearity::Tanh.gain(), 5.0 / 3.0);
    /// assert_eq!(Nonlinearity::LeakyRelu(0.0).gain(), 2f64.sqrt());
    /// ```
    pub fn gain(self) -> f64 {
        match self {
            Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
            Nonlinearity::Tanh => 5.0 / 3.0,
            Nonlinearity::Relu => 2f64.sqrt(),
            Nonlinearity::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
            Nonlinearity::Selu => 0.75,
        }
    }
}

/// A distribution with mean 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distribution {
    /// Uniform.
    Uniform,
    /// Normal.
    Normal,
    /// Normal without what is two deviations off; widened, so that what is left has the variance that is wanted.
    TruncatedNormal,
}

/// The deviation of what is left of a normal distribution within two deviations: `√(1 - 4 φ(2) / (Φ(2) - Φ(-2)))`.
const WITHIN_TWO: f64 = 0.879_625_661_034_239_8;

/// How a parameter begins.
#[derive(Clone, PartialEq, Debug)]
pub struct Init {
    name: &'static str,
    rule: Rule,
    inputs: Axes,
    outputs: Axes,
}

#[derive(Clone, PartialEq, Debug)]
enum Rule {
    Constant(f64),
    Uniform { lo: f64, hi: f64 },
    Normal { mean: f64, std: f64 },
    TruncatedNormal { mean: f64, std: f64, lo: f64, hi: f64 },
    Scaled { gain: f64, fan: Fan, like: Distribution },
    Orthogonal { gain: f64 },
}

fn of(name: &'static str, rule: Rule) -> Init {
    Init {
        name,
        rule,
        inputs: Axes::from(1),
        outputs: Axes::from(0),
    }
}

/// Every element 0.
pub fn zeros() -> Init {
    of("zeros", Rule::Constant(0.0))
}

/// Every element 1.
pub fn ones() -> Init {
    of("ones", Rule::Constant(1.0))
}

/// Every element `value`.
pub fn constant(value: f64) -> Init {
    of("constant", Rule::Constant(value))
}

/// Uniform in `[lo, hi)`, and `hi` where rounding leads there.
pub fn uniform(lo: f64, hi: f64) -> Init {
    of("uniform", Rule::Uniform { lo, hi })
}

/// Normal.
pub fn normal(mean: f64, std: f64) -> Init {
    of("normal", Rule::Normal { mean, std })
}

/// Normal, without what is outside of `lo..=hi`, as `torch.nn.init.trunc_normal_`: the deviation is that before the ends are cut off.
///
/// ```
/// use tlc::{DType, Graph, init};
///
/// let x = init::truncated_normal(0.0, 0.02, -0.04, 0.04).draw(&Graph::default().key(1), 1000, DType::F32).eval()?;
/// assert!(x.as_slice::<f32>()?.iter().all(|v| v.abs() <= 0.04));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn truncated_normal(mean: f64, std: f64, lo: f64, hi: f64) -> Init {
    of("truncated_normal", Rule::TruncatedNormal { mean, std, lo, hi })
}

/// Mean 0 and variance `gain² / fan`: what [`kaiming_normal`], [`xavier_normal`] and [`lecun_normal`] are cases of.
///
/// ```
/// use tlc::init::{self, Distribution, Fan};
///
/// // As `jax.nn.initializers.lecun_normal`.
/// let init = init::variance_scaling(1.0, Fan::In, Distribution::TruncatedNormal);
/// # let g = tlc::Graph::default();
/// # assert!(!init.draw(&g.key(1), [4, 3], tlc::DType::F32).is_poisoned());
/// ```
pub fn variance_scaling(gain: f64, fan: Fan, like: Distribution) -> Init {
    of("variance_scaling", Rule::Scaled { gain, fan, like })
}

fn scaled(name: &'static str, gain: f64, fan: Fan, like: Distribution) -> Init {
    of(name, Rule::Scaled { gain, fan, like })
}

/// Uniform with variance `gain² / fan`, that is within `± gain √(3 / fan)` (He et al., arXiv:1502.01852).
pub fn kaiming_uniform(fan: Fan, nonlinearity: Nonlinearity) -> Init {
    scaled("kaiming_uniform", nonlinearity.gain(), fan, Distribution::Uniform)
}

/// Normal with variance `gain² / fan` (He et al., arXiv:1502.01852).
pub fn kaiming_normal(fan: Fan, nonlinearity: Nonlinearity) -> Init {
    scaled("kaiming_normal", nonlinearity.gain(), fan, Distribution::Normal)
}

/// Uniform with variance `2 gain² / (in + out)`, that is within `± gain √(6 / (in + out))` (Glorot and Bengio, AISTATS 2010).
pub fn xavier_uniform(gain: f64) -> Init {
    scaled("xavier_uniform", gain, Fan::Average, Distribution::Uniform)
}

/// Normal with variance `2 gain² / (in + out)` (Glorot and Bengio, AISTATS 2010).
pub fn xavier_normal(gain: f64) -> Init {
    scaled("xavier_normal", gain, Fan::Average, Distribution::Normal)
}

/// Uniform with variance `1 / in` (LeCun et al., "Efficient BackProp", 1998).
pub fn lecun_uniform() -> Init {
    scaled("lecun_uniform", 1.0, Fan::In, Distribution::Uniform)
}

/// Normal with variance `1 / in` (LeCun et al., "Efficient BackProp", 1998): what self-normalizing networks begin with.
pub fn lecun_normal() -> Init {
    scaled("lecun_normal", 1.0, Fan::In, Distribution::Normal)
}

/// `gain` times a matrix whose rows are orthonormal, or whose columns are, whichever are fewer (Saxe et al., arXiv:1312.6120): the outputs by
/// all other axes. Every such matrix is equally likely (Haar's measure): it is the product of reflections of normal vectors, as in Stewart,
/// "The efficient generation of random orthogonal matrices with an application to condition estimators", SIAM J. Numer. Anal. 17 (1980).
///
/// ```
/// use tlc::{DType, Graph, init};
///
/// let g = Graph::default();
/// let q = init::orthogonal(1.0).draw(&g.key(1), [3, 5], DType::F64);
/// let off = (q.matmul(&q.transpose()) - g.eye(3, 3, 0, DType::F64)).abs().max(..);
/// assert!(off.eval()?.as_scalar::<f64>()? < 1e-14);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn orthogonal(gain: f64) -> Init {
    of("orthogonal", Rule::Orthogonal { gain })
}

impl Init {
    /// For weights whose inputs and outputs are along these axes, in place of 1 and 0; the other axes are the kernel's.
    ///
    /// ```
    /// use tlc::{DType, Graph, init};
    ///
    /// // Weights [in, out], for x.matmul(&w).
    /// let w = init::xavier_uniform(1.0).axes(0, 1).draw(&Graph::default().key(1), [4, 8], DType::F32);
    /// # assert!(!w.is_poisoned());
    /// ```
    #[must_use]
    pub fn axes(mut self, inputs: impl Into<Axes>, outputs: impl Into<Axes>) -> Init {
        self.inputs = inputs.into();
        self.outputs = outputs.into();
        self
    }

    /// The values of a parameter.
    ///
    /// # Errors
    /// A dtype that is no float, unless the values are constant; bounds in no order; a negative deviation. With fans, and for orthogonal
    /// weights: fewer than two axes, axes that are not there, symbolic extents.
    #[track_caller]
    pub fn draw(&self, key: &Key, shape: impl IntoShape, dtype: DType) -> Tensor {
        let shape = shape.into_shape();
        op(self.name, &[key.tensor()], || {
            if let Rule::Constant(value) = self.rule {
                return key.tensor().graph().filled_anew(value.into(), &shape, dtype);
            }
            if !dtype.is_float() {
                return refuse_expecting(format!("dtype {dtype}"), "a float dtype");
            }
            self.values(key, &shape, dtype.accumulator())?.to(dtype)
        })
    }

    fn values(&self, key: &Key, shape: &Shape, dtype: DType) -> Step {
        match self.rule {
            Rule::Constant(value) => key.tensor().graph().filled(value.into(), shape, dtype),
            Rule::Uniform { lo, hi } => uniform_in(key, shape, dtype, lo, hi),
            Rule::Normal { mean, std } => {
                let std = deviation(std)?;
                Ok(key.normal(shape.clone(), dtype) * std + mean)
            }
            Rule::TruncatedNormal { mean, std, lo, hi } => {
                if std == 0.0 || !mean.is_finite() {
                    return refuse_expecting(
                        format!("mean {mean} and deviation {std}"),
                        "a number, and one that is larger than 0",
                    );
                }
                let std = deviation(std)?;
                let unit = key.truncated_normal((lo - mean) / std, (hi - mean) / std, shape.clone(), dtype);
                Ok((unit * std + mean).clamp(lo, hi))
            }
            Rule::Scaled { gain, fan, like } => {
                let std = deviation(gain)? / self.fans(shape)?.of_which(fan).max(1.0).sqrt();
                match like {
                    Distribution::Uniform => {
                        let bound = std * 3f64.sqrt();
                        uniform_in(key, shape, dtype, -bound, bound)
                    }
                    Distribution::Normal => Ok(key.normal(shape.clone(), dtype) * std),
                    Distribution::TruncatedNormal => {
                        let unit = key.truncated_normal(-2.0, 2.0, shape.clone(), dtype);
                        Ok(unit * (std / WITHIN_TWO))
                    }
                }
            }
            Rule::Orthogonal { gain } => self.orthogonal(key, shape, dtype, gain),
        }
    }

    fn extents(shape: &Shape) -> Step<Vec<usize>> {
        let number = |d: &IndexExpr| d.as_const().and_then(|n| usize::try_from(n).ok());
        match shape.iter().map(number).collect() {
            Some(extents) => Ok(extents),
            None => refuse("a symbolic extent, but numbers are needed"),
        }
    }

    fn fans(&self, shape: &Shape) -> Step<Fans> {
        let extents = Init::extents(shape)?;
        match Fans::over(&extents, &self.inputs, &self.outputs) {
            Some(fans) => Ok(fans),
            None => refuse_expecting(
                format!("weights of rank {}", extents.len()),
                "an axis of outputs and another of inputs, 0 and 1 if `axes` says nothing else",
            ),
        }
    }

    /// The matrix of outputs by all else, laid out as `shape`.
    fn orthogonal(&self, key: &Key, shape: &Shape, dtype: DType, gain: f64) -> Step {
        self.fans(shape)?;
        let extents = Init::extents(shape)?;
        let outputs = self.outputs.resolve(extents.len()).unwrap_or_default();
        let others = (0..extents.len()).filter(|axis| !outputs.contains(axis));
        // The axes as the matrix has them, and back.
        let order: Vec<usize> = outputs.iter().copied().chain(others).collect();
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &axis)| back[axis] = at);
        let rows: usize = outputs.iter().map(|&axis| extents[axis]).product();
        let all: usize = extents.iter().product();
        if all == 0 {
            return key.tensor().graph().filled(0.0.into(), shape, dtype);
        }
        let columns = all / rows;
        let (short, long) = (rows.min(columns), rows.max(columns));
        let matrix = orthonormal_rows(key, short, long, dtype)?;
        let matrix = if rows > columns { matrix.transpose() } else { matrix };
        let laid_out: Vec<IndexExpr> = order.iter().map(|&axis| shape[axis].clone()).collect();
        (matrix * gain).reshaped(&laid_out)?.permuted(&back)
    }
}

fn deviation(std: f64) -> Step<f64> {
    match std >= 0.0 && std.is_finite() {
        true => Ok(std),
        false => refuse_expecting(format!("deviation {std}"), "a number of at least 0"),
    }
}

fn uniform_in(key: &Key, shape: &Shape, dtype: DType, lo: f64, hi: f64) -> Step {
    if !(lo <= hi && (hi - lo).is_finite()) {
        return refuse_expecting(format!("the bounds {lo} and {hi}"), "numbers, the lower one first");
    }
    Ok(key.uniform(shape.clone(), dtype) * (hi - lo) + lo)
}

/// A matrix `[n, m]`, `n <= m`, with orthonormal rows, of Haar's measure.
///
/// Row `j` of normal numbers, from its element `j` on, says which reflection `I - w wᵀ` takes it to a multiple of `e_j`. The rows of their
/// product are the `Q` of a factorization into an orthogonal and a triangular matrix, without the factorization; `Q` has Haar's
/// measure if the diagonal of the other factor is positive, hence the signs.
fn orthonormal_rows(key: &Key, n: usize, m: usize, dtype: DType) -> Step {
    let graph = key.tensor().graph();
    let x = key.normal([n, m], dtype);
    let x = graph.triu_mask(n, m, 0).select(&x, 0.0);
    let diagonal = graph.eye(n, m, 0, dtype);
    let pivot = (&x * &diagonal).sum(keep(1));
    let sign = pivot.lt(0.0).select(graph.scalar(-1.0, dtype), 1.0);
    let length = x.square().sum(keep(1)).sqrt();
    // wᵀw is 2. Nothing is reflected by a row of zeros.
    let half_square = (&length * (&length + pivot.abs())).maximum(f64::from(f32::MIN_POSITIVE));
    let w = (&x + &diagonal * (&sign * &length)) * half_square.rsqrt();
    let product = graph.repeat(n).carry(&diagonal).slice_reversed(&w, 0).record(|i| {
        let (rows, w) = (&i.carried[0], &i.slices[0]);
        vec![rows - rows.matmul(w).unsqueeze(1) * w]
    });
    match product.first() {
        Some(rows) => Ok(-(rows * sign)),
        None => refuse("no result"),
    }
}
