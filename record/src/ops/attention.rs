//! Scaled dot-product attention (Vaswani et al., arXiv:1706.03762).

use tlc_ir::{DType, ScalarOp};

use crate::graph::Tensor;
use crate::graph::scope::{op, refuse_expecting};
use crate::promotion::{float_of, promote};

/// What [`Tensor::attention`] does beside the plain form.
#[derive(Clone, Default, Debug)]
pub struct Attention {
    mask: Option<Tensor>,
    causal: bool,
    scale: Option<f64>,
}

impl Attention {
    /// The plain form: no mask, scale `1 / sqrt(features)`.
    pub fn new() -> Attention {
        Attention::default()
    }

    /// Bool: false where a key is hidden from a query. Other dtypes: added to the scaled scores. Broadcasts to `[.., s, t]`.
    pub fn mask(mut self, mask: &Tensor) -> Attention {
        self.mask = Some(mask.clone());
        self
    }

    /// Hides key `j` from query `i` where `j > i`.
    pub fn causal(mut self) -> Attention {
        self.causal = true;
        self
    }

    /// The factor of the scores.
    pub fn scale(mut self, scale: f64) -> Attention {
        self.scale = Some(scale);
        self
    }
}

impl Tensor {
    /// `softmax(scale * q kᵀ + mask) v`: `self` is the query `[.., s, features]`, `key` `[.., t, features]`, `value`
    /// `[.., t, width]`; the result is `[.., s, width]`. Scores and softmax of f16 and bf16 are f32, and weights are rounded
    /// before they are multiplied with values, as `jax.nn.dot_product_attention` does. A query that sees no key gives NaN.
    ///
    /// ```
    /// use tlc::{Attention, Graph};
    ///
    /// let g = Graph::default();
    /// let query = g.constant([[1.0f32, 0.0], [0.0, 1.0]]);
    /// let (key, value) = (g.constant([[0.0f32, 0.0], [0.0, 0.0]]), g.constant([[2.0f32], [4.0]]));
    /// // The first query sees the first key alone, the second one both, which are alike.
    /// let y = query.attention(&key, &value, &Attention::new().causal());
    /// assert_eq!(y.eval()?.as_slice::<f32>()?, [2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn attention(&self, key: &Tensor, value: &Tensor, options: &Attention) -> Tensor {
        let mut operands = vec![self, key, value];
        operands.extend(&options.mask);
        op("attention", &operands, || {
            for t in [self, key, value] {
                t.at_least_rank(2)?;
            }
            let graph = self.graph();
            let features = self.rank() - 1;
            key.extent_is("the key", key.rank() - 1, &self.extents()[features])?;
            value.extent_is("the value", value.rank() - 2, &key.extents()[key.rank() - 2])?;
            let dtype = float_of(promote(promote(self.dtype(), key.dtype()), value.dtype()));
            let wide = dtype.accumulator();
            let scores = self.matmul_step(&key.t(), Some(wide))?;
            let mut scores = match options.scale {
                Some(scale) => scores * scale,
                None => match self.extents()[features].as_const() {
                    Some(n) => scores * (1.0 / (n as f64).sqrt()),
                    None => scores * graph.dim_value(&self.dim(-1), wide)?.map(ScalarOp::Rsqrt)?,
                },
            };
            let rank = scores.rank();
            if options.causal {
                let seen = graph.band(&scores.extents()[rank - 2..], 0, ScalarOp::Le)?;
                scores = seen.select(scores, f64::NEG_INFINITY);
            }
            if let Some(mask) = &options.mask {
                scores = match mask.dtype() {
                    DType::Bool => mask.select(scores, f64::NEG_INFINITY),
                    _ => scores + mask.to(wide)?,
                };
                if scores.rank() != rank {
                    return refuse_expecting(
                        format!("a mask of rank {}", mask.rank()),
                        format!("at most {rank} axes"),
                    );
                }
            }
            scores.softmax(-1).to(dtype)?.matmul_step(value, Some(dtype))
        })
    }
}
