//! Activations. f16 and bf16 compute in f32 and round once; bool and integers convert to f32. At an infinity the result is
//! the limit. Results below 2^-120 in f32 (2^-1012 in f64) may come out as zero.

use std::f64::consts::{FRAC_1_SQRT_2, LN_2, LOG2_E, PI};

use crate::graph::Tensor;
use crate::graph::scope::{Step, op};
use crate::promotion::float_of;

/// Far beyond where an activation is flat. A product with a factor that is zero there, or its quotient by what is infinite
/// there, takes an infinite operand as this: the result is the limit, not NaN.
#[doc(hidden)]
pub const FAR: f64 = 1e30;

impl Tensor {
    /// Runs `f` on the tensor in at least f32, and converts the result to the tensor's float dtype.
    pub(crate) fn in_wide_float(&self, f: impl FnOnce(Tensor) -> Step) -> Step {
        let narrow = float_of(self.dtype());
        f(self.to(narrow.accumulator())?)?.to(narrow)
    }

    /// `max(x, 0)`; NaN stays NaN. The derivative at 0 is 0.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([-1.0f32, 2.0]);
    /// assert_eq!(x.relu().eval()?.as_slice::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        op("relu", &[self], || match self.dtype().is_float() {
            // Where it is 0 the constant is taken, whose derivative is 0.
            true => Ok(self.le(0).select(0, self)),
            false => Ok(self.maximum(0)),
        })
    }

    /// `min(max(x, 0), 6)`. The derivative at 0 and 6 is 0.
    #[track_caller]
    pub fn relu6(&self) -> Tensor {
        op("relu6", &[self], || self.in_wide_float(|x| Ok(x.hard_tanh(0.0, 6.0))))
    }

    /// Gaussian error linear unit, `x/2 * (1 + erf(x/√2))` (Hendrycks and Gimpel, arXiv:1606.08415). The sum cancels where
    /// `x` is far below zero, which leaves an error of some `|x| / 2^24` in f32, as in other libraries.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([0.0f32, 100.0]);
    /// assert_eq!(x.gelu().eval()?.as_slice::<f32>()?, [0.0, 100.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn gelu(&self) -> Tensor {
        op("gelu", &[self], || {
            self.in_wide_float(|x| Ok(x.maximum(-FAR) * 0.5 * (1.0 + (&x * FRAC_1_SQRT_2).erf())))
        })
    }

    /// The approximation of [`Tensor::gelu`] by tanh: `x/2 * (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    ///
    /// Computed as `x / (1 + 2^v)` with `v = -2u log2 e` and `u` the argument of tanh, which is the same: it costs less
    /// and, unlike `1 + tanh(u)`, loses no digits where `x` is negative.
    #[track_caller]
    pub fn gelu_tanh(&self) -> Tensor {
        op("gelu_tanh", &[self], || {
            let rate = -2.0 * LOG2_E * (2.0 / PI).sqrt();
            let exponent = |x: &Tensor| x * (x * x).fma(0.044715 * rate, rate);
            let function = |x: &Tensor| x.maximum(-FAR) / (1.0 + exponent(x).exp2());
            let slope = |x: &Tensor, _: &Tensor| {
                let s = 1.0 / (1.0 + exponent(x).exp2());
                // Beyond, the product with what is zero there is zero.
                let x = x.clamp(-1e4, 1e4);
                let inner = (&x * &x).fma(3.0 * 0.044715 * rate, rate) * (-LN_2);
                &s * (1.0 + x * (1.0 - &s) * inner)
            };
            self.in_wide_float(|x| Ok(x.with_slope("gelu_tanh", function, slope)))
        })
    }

    /// `1 / (1 + e^-x)`.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([0.0f32, f32::INFINITY]);
    /// assert_eq!(x.sigmoid().eval()?.as_slice::<f32>()?, [0.5, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn sigmoid(&self) -> Tensor {
        op("sigmoid", &[self], || {
            // Through the exponential, which is infinite far below zero, the derivative there would be NaN.
            let function = |x: &Tensor| 1.0 / (1.0 + (-x).exp());
            self.in_wide_float(|x| Ok(x.with_slope("sigmoid", function, |_, y| y * (1.0 - y))))
        })
    }

    /// `x * sigmoid(x)`, also called swish; computed as `x / (1 + e^-x)`.
    ///
    /// ```
    /// use tlc::Graph;
    ///
    /// let g = Graph::default();
    /// let x = g.constant([0.0f32, 100.0]);
    /// assert_eq!(x.silu().eval()?.as_slice::<f32>()?, [0.0, 100.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn silu(&self) -> Tensor {
        op("silu", &[self], || self.in_wide_float(|x| Ok(x.scaled_silu(1.0))))
    }

    /// `x / (1 + e^(-alpha x))`, at infinities its limit.
    #[doc(hidden)]
    #[track_caller]
    pub fn scaled_silu(&self, alpha: f64) -> Tensor {
        let falling = |x: &Tensor| match alpha == 1.0 {
            true => -x,
            false => -alpha * x,
        };
        let function = |x: &Tensor| {
            let numerator = match alpha < 0.0 {
                true => x.minimum(FAR),
                false => x.maximum(-FAR),
            };
            numerator / (1.0 + falling(x).exp())
        };
        let slope = |x: &Tensor, _: &Tensor| {
            let s = 1.0 / (1.0 + falling(x).exp());
            &s * (1.0 + alpha * x.clamp(-FAR, FAR) * (1.0 - &s))
        };
        match alpha == 0.0 {
            true => self * 0.5,
            false => self.with_slope("silu", function, slope),
        }
    }

    /// `ln(1 + e^x)`, computed as `max(x, 0) + log1p(e^-|x|)`, which does not overflow.
    ///
    /// ```
    /// use tlc::{Graph, grad};
    ///
    /// let g = Graph::default();
    /// let x = g.constant([0.0f64]);
    /// let first = grad(&x.softplus().sum(..), &[&x]).remove(0);
    /// let second = grad(&first.sum(..), &[&x]).remove(0);
    /// assert_eq!(first.eval()?.as_slice::<f64>()?, [0.5]);
    /// assert_eq!(second.eval()?.as_slice::<f64>()?, [0.25]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn softplus(&self) -> Tensor {
        op("softplus", &[self], || {
            self.in_wide_float(|x| {
                let (above, rest) = x.apart_at_zero();
                Ok(above.select(&x, 0) + rest)
            })
        })
    }

    /// `ln(sigmoid(x))`, computed as `min(x, 0) - log1p(e^-|x|)`.
    #[track_caller]
    pub fn log_sigmoid(&self) -> Tensor {
        op("log_sigmoid", &[self], || {
            self.in_wide_float(|x| {
                let (above, rest) = x.apart_at_zero();
                Ok(above.select(0, &x) - rest)
            })
        })
    }

    /// Whether the tensor is not below 0, and `log1p(e^-|x|)`. The absolute value is selected by the same condition as the other half of a
    /// sum: then each side is the whole function, 0 belongs to one of them, and derivatives of every order are right there. Those of `abs`
    /// and `max` are means of both sides at 0, of which only the first fit together.
    pub(super) fn apart_at_zero(&self) -> (Tensor, Tensor) {
        let above = self.ge(0);
        let rest = above.select(-self, self).exp().log1p();
        (above, rest)
    }

    /// `x` where positive, else `alpha * (e^x - 1)`.
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Tensor {
        op("elu", &[self], || {
            self.in_wide_float(|x| Ok(x.gt(0).select(&x, alpha * x.gt(0).select(0, &x).expm1())))
        })
    }

    /// `x` where positive, else `slope * x`.
    #[track_caller]
    pub fn leaky_relu(&self, slope: f64) -> Tensor {
        op("leaky_relu", &[self], || {
            self.in_wide_float(|x| Ok(x.gt(0).select(&x, slope * &x)))
        })
    }

    /// `x / (1 + |x|)`.
    #[track_caller]
    pub fn softsign(&self) -> Tensor {
        op("softsign", &[self], || {
            self.in_wide_float(|x| {
                let x = x.clamp(-FAR, FAR);
                Ok(&x / (1.0 + x.abs()))
            })
        })
    }

    /// `x * tanh(softplus(x))` (Misra, arXiv:1908.08681), computed as `x * n / (n + 2)` with `n = e^x (e^x + 2)`.
    #[track_caller]
    pub fn mish(&self) -> Tensor {
        op("mish", &[self], || {
            self.in_wide_float(|x| {
                // From 20 on the quotient is 1.
                let e = x.minimum(20).exp();
                let n = &e * (&e + 2.0);
                Ok(x.maximum(-FAR) * (&n / (&n + 2.0)))
            })
        })
    }

    /// `clamp(x/6 + 1/2, 0, 1)`, computed as `clamp(x + 3, 0, 6) / 6`, which keeps the digits near -3. The derivative at -3 and 3 is
    /// 0.
    #[track_caller]
    pub fn hard_sigmoid(&self) -> Tensor {
        op("hard_sigmoid", &[self], || {
            self.in_wide_float(|x| Ok((x + 3.0).hard_tanh(0.0, 6.0) / 6.0))
        })
    }

    /// `x * hard_sigmoid(x)`.
    #[track_caller]
    pub fn hard_swish(&self) -> Tensor {
        op("hard_swish", &[self], || {
            self.in_wide_float(|x| Ok(x.maximum(-FAR) * x.hard_sigmoid()))
        })
    }
}
